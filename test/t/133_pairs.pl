# Every two reasons for which a seat is not filled, or a candidate is not elected,
# meet in elections of their own (Pairs.pm).  Who is elected then, and what the
# views candidates, status and metrics and diagnose() say of it, is what
# docs/reference.md says: by test/rules/reference.c, which was written from that
# alone, and shares nothing with src/.
#
# Once with a worker, which has been seen to look at all elections after they
# were made; and once on a server that can have none, where the candidates' own
# calls elect.

use strict;
use warnings;

use FindBin;
use IPC::Run;
use lib $FindBin::RealBin;
use LeaderElection;
use Pairs;
use POSIX qw(ceil);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::Local;
use Worker;

my $MOST_TOLD = 10;    # differences of an aspect
my @ASPECTS = ('who is elected', 'candidates', 'waiting_for', 'metrics', 'diagnose()');

# The server, its sessions by name, the cases on it, what holds for all of them, and
# the worker's process, 0 if there is none.  The world has {pause_all}, {grace} and
# {revoked} (Pairs.pm), and {tidied}: the worker has removed those that died.
my ($node, %session, @cases, %world, $worker);
my $nodes = 0;

# -- The second implementation

my $ask = PostgreSQL::Test::Utils::tempdir() . '/ask';
my $rules = "$FindBin::RealBin/../rules";

compile('-O1', '-Wall', '-Werror', '-o', $ask,
	"$rules/ask.c", "$rules/reference.c");

# What it answers to cases: a hash for each
sub answers
{
	my ($world, $caller, @cases) = @_;
	my $in = join('', map { line($_, $world, $caller) . "\n" } @cases);
	my @answers;

	IPC::Run::run([$ask], '<' => \$in, '>' => \my $out) or die 'test/rules/ask failed';
	foreach my $line (split(/\n/, $out))
	{
		my ($waiting) = $line =~ / waiting_for=(.*)$/;
		my %answer = map { split(/=/, $_, 2) } $line =~ /(\S+=\S+)/g;

		push @answers, { %answer, waiting_for => $waiting };
	}
	die 'test/rules/ask answers too little' if @answers != @cases;
	return @answers;
}

# What an answer makes of a case.  True: it is another one than before.
sub follow
{
	my ($case, $answer) = @_;

	if (defined $case->{leader})
	{
		my $to = $answer->{challenger} eq '-' ? undef : $answer->{challenger};

		# "A leader that has to make way is asked by the worker."
		return 0 if !$worker;
		return 0 if ($to // '') eq ($case->{successor} // '');
		$case->{successor} = $to;
		return 1;
	}
	if ($answer->{elected} ne '-')
	{
		$case->{leader} = $answer->{elected};
		$case->{sits_out} = {};
		delete $case->{reserved};
		return 1;
	}
	return 0 if $case->{dropped};
	if ($answer->{dropped} && $world{tidied})
	{
		$case->{dropped} = 1;
		return 1;
	}
	my $for = $answer->{kept_for} eq '-' ? undef : $answer->{kept_for};

	return 0 if ($for // '') eq ($case->{reserved} // '');
	$case->{reserved} = $for;
	return 1;
}

# What comes of cases if the worker decides, until nothing is left to be decided
sub come_to_rest
{
	my ($world, @cases) = @_;
	my $rounds = 0;

	while (@cases)
	{
		my @answers = answers($world, undef, @cases);

		die 'it never comes to rest: ' . line($cases[0], $world) if ++$rounds > 10;
		@cases = @cases[ grep { follow($cases[$_], $answers[$_]) } 0 .. $#cases ];
	}
	return;
}

# -- A server, with the cases

sub new_session
{
	my ($name) = @_;

	$session{$name} = session($node, name => $name,
		options => '-c client_min_messages=error -c timezone=utc -c datestyle=iso');
	return;
}

# Runs statements of a session, each as its role. They may not fail.
sub run_all
{
	my ($name, @statements) = @_;
	my $role = '';
	my $sql = '';

	foreach my $statement (@statements)
	{
		$sql .= "SET ROLE $statement->[0];\n" if $statement->[0] ne $role;
		$role = $statement->[0];
		$sql .= "$statement->[1];\n";
	}
	$session{$name}->query($sql);
	is($session{$name}->errors, '', "$name: " . scalar(@statements) . ' statements');
	return;
}

# Makes cases, with or without a failover before what befalls the candidates.
sub make_cases
{
	my ($fails_over, @those) = @_;
	my $plan = plan_of(@those);

	foreach my $phase (@PHASES, $fails_over ? qw(failover stand) : (), qw(spoil bar))
	{
		fail_over() if $phase eq 'failover';
		foreach my $name (grep { $plan->{$phase}{$_} } @SESSIONS)
		{
			run_all($name, @{ $plan->{$phase}{$name} });
		}
		if ($phase eq 'end')
		{
			$session{gone}->kill;
			wait_gone($node, $session{gone});
			# Leases that are to run out
			wait_for($node, 'SELECT count(*) FROM leader_election.lease
				WHERE deadline_mono > leader_election._monotonic_clock() AND duration < 1000000', 0);
		}
		elsif ($phase eq 'spoil')
		{
			my @dead = grep { /dead/ } @SESSIONS;

			$_->kill foreach @session{@dead};
			wait_gone($node, @session{@dead});
			run_all('admin',
				map { [ 'none', "SELECT leader_election.drain_candidate('$_')" ] } drains(@those));
			$session{admin}->query('REVOKE members FROM returner');
		}
	}
	return;
}

# -- What is expected of them, and what is seen

# The reason that diagnose() gives, and until when
my %TEXTS = (
	'withdrawn' => qr/the seat is withdrawn/,
	'paused' => qr/paused by role .* until (?:that is resumed|(\S+ \S+)\.$)/,
	'grace after failover' => qr/the grace after a failover.* before (\S+ \S+) /,
	'hold' => qr/a hold, .* ends at (\S+ \S+) /,
	'takeover delay' => qr/the takeover delay ends at (\S+ \S+) /,
	'reserved' => qr/the election is reserved for .* until (\S+ \S+) /,
	'no candidates' => qr/nobody stands/,
	'quorum' => qr/(?!\d{4})\d+ of the \d+ candidates that are needed/,
	'initial delay' => qr/for others to stand, too .* until (\S+ \S+) /,
	'drained' => qr/who could be elected is drained/,
	'cap' => qr/each candidate has as many other seats/,
	'candidates that do not sit out' => qr/each candidate sits out, or may not be elected/,
	'acquire()' => qr/only detached candidates stand, and the next one that calls/,
	'a worker or a call' => qr/there is no worker that elects/);

# The row that names those who are not elected for this reason
my %ROWS = (
	dead => qr/^(?:Candidates whose sessions have ended|Detached candidates that have not called)/,
	drained => qr/^Candidate .* is drained/,
	full => qr/^Candidates that have as many other seats/,
	not_admitted => qr/^Candidates whose roles are not in candidate_role/,
	sits_out => qr/^Candidates that gave up, and sit out/);

# For these no monitor is to be alarmed, nor while others may stand, too.
my %NOT_OVERDUE = map { $_ => 1 } 'withdrawn', 'paused', 'grace after failover',
  'hold', 'takeover delay', 'reserved', 'no candidates', 'initial delay', 'acquire()';

# What is to be seen of a case: the text of each aspect
sub expected
{
	my ($case, $answer) = @_;
	my %is;
	my $word = $answer->{waiting_for};
	my $leader = $case->{leader};
	my $alive = $answer->{alive};

	return { word => 'dropped', map { $_ => 'no such election' } @ASPECTS }
	  if $case->{dropped};
	$word = 'a worker or a call' if $word eq 'the worker' && !$worker;
	$is{word} = defined $leader ? 'led' : $word;
	$is{'who is elected'} = defined $leader ? name_of($case, $leader) : '-';
	$is{candidates} = join(' ', sort map { name_of($case, $_) . "=$answer->{$_}" }
		grep { exists $answer->{$_} && $answer->{"$_.why"} ne 'dead' } qw(a b c));
	if (defined $leader)
	{
		$is{waiting_for} = defined $case->{successor} ? 'yielding -' : 'led -';
		$is{metrics} = "1 - f";
	}
	else
	{
		$is{waiting_for} = 'vacant ' . (
			$word eq 'reserved' ? "reserved for " . name_of($case, $case->{reserved})
			: $word eq 'quorum' ? "quorum $alive of $case->{quorum}"
			: $word);
		my $waits = $case->{seat}{initial_delay} && !$case->{lifted};

		$is{metrics} = "0 $word " . ($NOT_OVERDUE{$word} || $waits ? 'f' : 't');
	}
	$is{waiting_for} .= " $alive";
	$is{metrics} .= " $alive $case->{quorum} "
	  . ($world{pause_all} || ($case->{seat}{paused} && !$case->{lifted}) ? 1 : 0);
	$is{'diagnose()'} = (defined $leader ? 'led' : "$word $answer->{until}") . ':'
	  . join('', map { " $_ $answer->{\"$_.why\"}" }
		grep { exists $answer->{$_} && $answer->{"$_.why"} !~ /eligible/
			&& !($world{tidied} && $answer->{"$_.why"} eq 'dead') } qw(a b c));
	return \%is;
}

# All rows of a query whose first column is an election, by that
sub rows_of
{
	my ($sql) = @_;
	my %rows;

	foreach my $row ($session{admin}->query($sql))
	{
		my ($election, @columns) = split(/\t/, $row, -1);

		push @{ $rows{$election} }, \@columns;
	}
	is($session{admin}->errors, '', 'looked');
	return \%rows;
}

# What all views say now
sub look
{
	return {
		status => rows_of(q{
			SELECT concat_ws(E'\t', election, state, coalesce(waiting_for, '-'),
				CASE WHEN leader_election.is_leader(election, term) THEN leader ELSE '-' END,
				candidates)
			FROM leader_election.status}),
		candidates => rows_of(q{SELECT concat_ws(E'\t', election, candidate, coalesce("position", 0))
			FROM leader_election.candidates WHERE alive}),
		metrics => rows_of(q{
			SELECT concat_ws(E'\t', election, led, coalesce(waiting_for, '-'),
				overdue_seconds > 0, candidates, quorum, paused)
			FROM leader_election.metrics}),
		diagnose => rows_of(q{SELECT concat_ws(E'\t', election, severity, finding)
			FROM leader_election.election, leader_election.diagnose(election)}),
		now => $session{admin}->query('SELECT extract(epoch FROM clock_timestamp())')
	};
}

# In how many hours, the last one begun, is that?
sub hours_until
{
	my ($time, $now) = @_;
	my ($year, $month, @rest) = $time =~ /(\d+)/g;

	return ceil((timegm(reverse(@rest[ 0 .. 3 ]), $month - 1, $year) - $now) / 3600);
}

# What diagnose() says of a case.  Of candidates that several reasons keep from
# being elected it may name all or the first.
sub diagnosed
{
	my ($case, $look, $answer) = @_;
	my ($first, @rows) = map { $_->[1] } @{ $look->{diagnose}{ $case->{election} } };
	my (@said, @named);

	if ($first =~ /^".*" leads election/) { @said = ('led'); }
	elsif ($first =~ /^Nobody leads election .*? The reason: (.*)/s)
	{
		my $reason = $1;

		foreach my $word (sort keys %TEXTS)
		{
			push @said, "$word " . (defined $1 ? hours_until($1, $look->{now}) : 'never')
			  if $reason =~ $TEXTS{$word};
		}
	}
	foreach my $letter (grep { exists $answer->{$_} } qw(a b c))
	{
		my $name = name_of($case, $letter);
		my $why = $answer->{"$letter.why"};

		foreach my $row (@rows)
		{
			my ($is) = grep { $row =~ $ROWS{$_} } sort keys %ROWS;

			push @named, "$letter $is"
			  if defined $is && $row =~ /"\Q$name\E"/
			  && ($is eq $why || !has($case, $letter, $is, \%world));
		}
	}
	return join(' and ', @said) . ':' . join('', map { " $_" } @named);
}

# What is seen of a case, in the same words as expected()
sub seen
{
	my ($case, $look, $answer) = @_;
	my $election = $case->{election};
	my ($status) = map { $_->[0] } $look->{status}{$election};
	my %is;

	return { map { $_ => 'no such election' } @ASPECTS } unless $status;
	$is{'who is elected'} = $status->[2];
	$is{candidates} = join(' ', sort map { "$_->[0]=$_->[1]" } @{ $look->{candidates}{$election} // [] });
	$is{waiting_for} = "$status->[0] $status->[1] $status->[3]";
	$is{metrics} = join(' ', @{ $look->{metrics}{$election}[0] });
	$is{'diagnose()'} = diagnosed($case, $look, $answer);
	return \%is;
}

# What do all cases look like, and what were they to look like?
my (%compared, %words);

sub compare
{
	my ($when, @aspects) = @_;
	my @answers = answers(\%world, undef, @cases);
	my $look = look();
	my %differences = map { $_ => [] } @ASPECTS;

	foreach my $i (0 .. $#cases)
	{
		my $case = $cases[$i];
		my $expected = expected($case, $answers[$i]);
		my $seen = seen($case, $look, $answers[$i]);

		$compared{ $case->{pair} }++;
		$words{ $expected->{word} }++;
		foreach my $aspect (grep { $expected->{$_} ne $seen->{$_} } @aspects)
		{
			push @{ $differences{$aspect} },
			  "$case->{pair}: " . line($case, \%world)
			  . "\n  is       $seen->{$aspect}\n  expected $expected->{$aspect}";
		}
	}
	foreach my $aspect (@aspects)
	{
		my @told = @{ $differences{$aspect} };
		my $more = @told - $MOST_TOLD;

		splice(@told, $MOST_TOLD, @told, "and $more more") if $more > 0;
		ok(!@told, "$when: $aspect") or diag(join("\n", @told));
	}
	return;
}

# -- What happens

# Waits until the worker has looked at all there was when this was called: it
# removes a dead candidate's row last of all.
my $looks = 0;

sub worker_looks
{
	my $election = 'look ' . ++$looks;
	my $follower = session($node, name => 'follower');

	$follower->query("SELECT leader_election.join('$election', 'follower')");
	$follower->finish;
	wait_for($node,
		"SELECT NOT EXISTS (SELECT FROM leader_election.candidate WHERE election = '$election')");
	return;
}

# Waits until the worker has elected as many as it is to elect.  It takes a while: it
# decides one election after the other, and notices within a second or two that a
# role was granted.  If it does not, the comparison tells which are wrong.
my $waits_in_vain = 0;

sub wait_for_worker
{
	my @there = grep { !$_->{dropped} } @cases;
	my @led = grep { defined $_->{leader} } @there;
	my $elections = join(', ', map { "'$_->{election}'" } @cases);

	$waits_in_vain ||= !eval {
		wait_for($node, "SELECT count(*), count(leader), count(*) FILTER (WHERE yielding),
				count(*) FILTER (WHERE leader IS NULL AND successor IS NOT NULL)
			FROM leader_election.lease WHERE election IN ($elections)",
			join('|', scalar(@there), scalar(@led),
				scalar(grep { defined $_->{successor} } @led),
				scalar(grep { !defined $_->{leader} && defined $_->{reserved} } @there)));
	};
	return;
}

# Every candidate of these calls, one after the other; after each, is elected who
# is to be?  A call of one whose role may not stand is refused.
sub all_call
{
	my ($when, @those) = @_;

	foreach my $letter (qw(a b c))
	{
		my @callers = grep {
			$_->{who}{$letter} && !$_->{dropped} && !has($_, $letter, 'dead', \%world)
		} @those;
		my %calls;

		push @{ $calls{ $_->{who}{$letter}{detached} ? 'pool' : $letter } },
		  [ caller_of($_, $letter) ]
		  foreach @callers;
		foreach my $name (sort keys %calls)
		{
			$session{$name}->query(
				join('', map { "SET ROLE $_->[0];\n$_->[1];\n" } @{ $calls{$name} }));
		}
		@callers = grep {
			stands($_->{who}{$letter}) && !has($_, $letter, 'not_admitted', \%world)
		} @callers;

		my @answers = answers(\%world, $letter, @callers);

		follow($callers[$_], $answers[$_]) foreach 0 .. $#callers;
		$_->{unnoticed} = 0 foreach @callers;
		compare("$when, $letter has called", 'who is elected');
	}
	return;
}

# From now on somebody can be elected.
sub begin_elections
{
	my (@those) = @_;

	run_all('admin', map { [ 'none', final_quorum($_) ] } @those);
	return;
}

# The worker decides, or those call; then all is to be as the reference says.
sub decide
{
	my ($when, @those) = @_;

	if ($worker)
	{
		$world{tidied} = 1;
		$_->{unnoticed} = 0 foreach @cases;
		come_to_rest(\%world, @cases);
		wait_for_worker();
		worker_looks();
	}
	else { all_call($when, @those); }
	compare($when, @ASPECTS);
	return;
}

# The server becomes another one: its incarnation is new to it, as are all that
# connect, and no candidate's row is left.
sub fail_over
{
	my $admin = $session{admin};

	$_->finish foreach grep { $_->alive && $_ != $admin } values %session;
	new_session($_) foreach grep { $_ ne 'admin' } @SESSIONS;
	$admin->query(q{
		UPDATE leader_election.lease SET incarnation = 'was ' || incarnation;
		UPDATE leader_election.epoch SET incarnation = 'was ' || incarnation;
		DELETE FROM leader_election.candidate});
	is($admin->errors, '', 'a failover');
	resume_process($worker) if $worker;
	wait_until(
		sub {
			$session{a}->query("SELECT leader_election.join('first', 'first')");
			return $admin->query('SELECT count(*) FROM leader_election.epoch
				WHERE incarnation = leader_election._incarnation()');
		},
		'an epoch');
	$worker = stop_worker($admin) if $worker;
	return;
}

# All reasons in a grace, and what comes after it.
sub test_failover
{
	my ($name) = @_;
	my $admin = $session{admin};

	%world = (grace => 1);
	@cases = grep { $_->{seat}{grace} } cases();
	new_session($_) foreach grep { $_ ne 'admin' } @SESSIONS;
	make_cases(1, @cases);
	begin_state($_) foreach @cases;
	$admin->query('GRANT members TO returner');
	resume_process($worker) if $worker;
	$admin->query('SELECT leader_election.pause_all()');
	$world{pause_all} = 1;
	begin_elections(@cases);
	decide("$name, all is paused in the grace", @cases);
	$admin->query('SELECT leader_election.resume_all()');
	$world{pause_all} = 0;
	decide("$name, in the grace", @cases);

	# The failover was longer ago than a lease.
	$admin->query("UPDATE leader_election.epoch SET first_seen_mono =
		first_seen_mono - 1000000::bigint * 3600 * ($HOURS{lease} + 1)");
	$world{grace} = 0;
	decide("$name, after the grace", @cases);
	return;
}

# All reasons but a grace.  Those in which all is paused begin when it is.
sub test_server
{
	my ($name) = @_;
	my $admin = $session{admin};

	%world = (revoked => 1);
	@cases = grep { !$_->{seat}{grace} } cases();
	begin_state($_) foreach @cases;
	new_session($_) foreach grep { $_ ne 'admin' } @SESSIONS;
	make_cases(0, @cases);
	compare("$name, nothing is decided", @ASPECTS);

	my @plain = grep { !$_->{seat}{paused_all} } @cases;
	my @paused = grep { $_->{seat}{paused_all} } @cases;

	begin_elections(@plain);
	resume_process($worker) if $worker;
	decide($name, @plain);

	$admin->query('GRANT members TO returner');
	$world{revoked} = 0;
	decide("$name, the role is granted again",
		grep { grep { $_->{has}{regranted} } values %{ $_->{who} } } @plain);

	$admin->query('SELECT leader_election.pause_all()');
	$world{pause_all} = 1;
	begin_elections(@paused);
	decide("$name, all is paused", @paused);
	$admin->query('SELECT leader_election.resume_all()');
	$world{pause_all} = 0;
	decide("$name, all is resumed", @paused);

	# All at once, as the worker sees it: it is stopped meanwhile.
	$worker = stop_worker($admin) if $worker;
	run_all('admin',
		(map { [ 'none', $_ ] } map { lift($_) } grep { !$_->{dropped} } @cases),
		(map { [ 'none', "SELECT leader_election.undrain_candidate('$_')" ] } drains(@cases)));
	resume_process($worker) if $worker;
	decide("$name, what can be ended is ended", @cases);
	return;
}

# A server, and an administrator's session
sub serve
{
	my ($name, $config) = @_;

	$node = new_server(name => $name, config => "$config
leader_election.worker_idle_timeout = '1 h'
max_locks_per_transaction = 500
autovacuum = off
");
	$node->safe_psql('postgres', q{
		CREATE ROLE members; CREATE ROLE app IN ROLE members;
		CREATE ROLE returner IN ROLE members; CREATE ROLE outsider;
		GRANT USAGE ON SCHEMA leader_election TO app, returner, outsider;
		GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app, returner, outsider});
	new_session('admin');
	return;
}

foreach my $name ('with a worker', 'without a worker')
{
	my $has = $name =~ /with a/ ? 16 : 0;

	foreach my $test (\&test_server, \&test_failover)
	{
		serve($name =~ tr/ /_/r . $nodes++, "max_worker_processes = $has");
		$session{admin}->query("SELECT leader_election.join('first', 'first')");
		$worker = $has ? stop_worker($session{admin}) : 0;
		$test->($name);
		$node->stop('immediate');
	}
}

# Each two reasons have met, on both kinds of servers, and what a seat can wait for
# has occurred.
my %pairs = map { $_->{pair} => 1 } cases();

is(scalar(keys %pairs), @REASONS * (@REASONS + 1) / 2, 'all pairs of reasons');
is_deeply([ sort keys %compared ], [ sort keys %pairs ], 'all of them were compared');
is_deeply([ grep { !$words{$_} } 'led', 'dropped', sort keys %TEXTS ], [], 'all that a seat waits for');

done_testing();
