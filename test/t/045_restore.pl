# Dumps, backups and copies of a database in which elections are led.
#
# A copy knows what was, not what has happened since where it came from: nobody
# leads there until everybody may be sure that the leaders of then have heard of
# it or are over, and the terms that it grants are not those that were, or will
# be, granted elsewhere.  All copies here are made of one database, while the
# original goes on counting.
#
# What a copy is made by: pg_dump, plain and custom, into another cluster; parts
# of a dump, into a database of the same cluster in which elections are led
# already; a base backup, recovered twice to the same moment of the past; CREATE
# DATABASE ... TEMPLATE; the files of a stopped server, started in another boot
# of the machine, and on a clock that shows another time.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

# The lease, and so what the grace lasts, in microseconds.  Some calls have to
# be made within it.
my $LEASE = 4_000_000;

# No ghost may keep anybody waiting for much longer.
my $LATE = 20_000_000;

my $DAY = 86_400_000_000;

my $EPOCH_BITS = 22;

# Led by a session, and by detached candidates; vacant for various reasons; and
# one whose lease is so long that whoever stands in it does so all the time.
my @detached = qw(renewed lapsing yielding);
my @vacant = qw(vacant reserved team);
my @elections = ('held', @detached, @vacant);
my $LONG = 'long';

my $CONFIG = qq(
leader_election.lease_duration = '${LEASE}us'
client_min_messages = warning
);

sub new_session
{
	my ($node, $dbname, %opts) = @_;

	return session($node, dbname => $dbname, name => $dbname, %opts);
}

# Runs SQL as that role, in a session of its own that ends with it: the rows, and
# for once_sqlstate the SQLSTATE.
sub once
{
	my ($node, $dbname, $user, $sql) = @_;
	my $session = new_session($node, $dbname, user => $user);
	my $result = $session->query($sql);

	$session->finish;
	return $result;
}

sub once_sqlstate
{
	my ($node, $dbname, $user, $sql) = @_;
	my $session = new_session($node, $dbname, user => $user);
	my $sqlstate = $session->sqlstate_of($sql);

	$session->finish;
	return $sqlstate;
}

# The terms that a database knows of, by election.  bigint fits in Perl's.
sub terms_of
{
	my ($session) = @_;
	my %terms;

	m{^(.*)\|(\d+)$} and push @{ $terms{$1} }, $2
	  foreach $session->query(
		'SELECT election, term FROM leader_election.history ORDER BY 2');
	return \%terms;
}

# Ends the worker of a database.  Unless somebody calls, what is due is not done
# any more: nothing that is held is given up for as long as a copy takes.
sub end_worker
{
	my ($node, $dbname) = @_;

	wait_for(
		$node,
		"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = '$dbname' AND backend_type = 'leader_election worker'",
		0);
	return;
}

#
# The original.
#

my $origin = new_server(
	name => 'origin',
	streaming => 1,
	start => 0,
	config => $CONFIG);
my $fresh = new_server(name => 'fresh', start => 0, config => $CONFIG);
my %term;

sub set_up_roles
{
	my ($session) = @_;

	$session->query('CREATE ROLE team; CREATE ROLE owner LOGIN;
		CREATE ROLE member LOGIN IN ROLE team; CREATE ROLE outsider LOGIN;
		CREATE ROLE dumper LOGIN');
	return;
}

# A detached candidate is granted the lease.
sub acquire
{
	my ($session, $election, $candidate) = @_;

	return $session->query("SELECT term FROM
		leader_election.acquire('$election', '$candidate')");
}

# A session is elected.  (join() leaves an election that is busy to the worker.)
sub campaign
{
	my ($session, $election, $candidate) = @_;

	return $session->query("CALL
		leader_election.campaign('$election', '$candidate', '1 s')");
}

$origin->enable_archiving;
$origin->start;
$fresh->start;

my $control = new_session($origin, 'postgres');

set_up_roles($control);
$control->query('CREATE DATABASE app');

my $app = new_session($origin, 'app');

$app->query('CREATE EXTENSION leader_election;
	GRANT USAGE ON SCHEMA leader_election TO owner, member, outsider, dumper;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election
		TO owner, member, outsider;
	GRANT SELECT ON ALL TABLES IN SCHEMA leader_election TO dumper');
$origin->backup('backup');
once(
	$origin, 'app', 'owner',
	"SELECT leader_election.create_election('team', candidate_role => 'team',
		channel => 'team_news')");
$app->query(
	"SELECT leader_election.create_election('$LONG', lease_duration => '1 h')");

# Some history, and terms that differ
foreach my $round (1 .. 3)
{
	foreach my $election (@elections[ $round - 1 .. $#elections ])
	{
		my $term = acquire($app, $election, 'first');

		$app->query("SELECT leader_election.release('$election', $term);
			SELECT leader_election.leave('$election', 'first')");
	}
}

my $holder = new_session($origin, 'app', name => 'holder');

# Lets them be led, or not, as it is to be copied.
sub set_scene
{
	my ($name) = @_;

	$holder = new_session($origin, 'app', name => 'holder')
	  unless $holder && $holder->alive;
	$app = new_session($origin, 'app') unless $app && $app->alive;
	$app->query("SELECT leader_election.leave('held');
		SELECT leader_election.leave('reserved', 'successor')");
	$term{held} = campaign($holder, 'held', 'holder');
	foreach my $election (@detached, 'reserved')
	{
		$app->query(
			"SELECT leader_election.release('$election', $term{$election})")
		  if $term{$election};
		wait_until(
			sub { $term{$election} = acquire($app, $election, 'detached') },
			"a term of \"$election\"");
	}
	acquire($app, 'reserved', 'successor');
	$app->query(
		"SELECT leader_election.transfer('reserved', $term{reserved}, 'successor');
		SELECT leader_election.request_yield('yielding')");
	acquire($app, $LONG, 'successor');
	acquire($app, $LONG, 'bystander');
	$term{$_} = $app->query(
		"SELECT term FROM leader_election.lease WHERE election = '$_'")
	  foreach @vacant, $LONG;
	is($holder->query("SELECT leader_election.is_leader('held')"),
		't', "$name: a session leads");
	is( $app->query(
			"SELECT leader_election.is_leader('renewed', $term{renewed})"),
		't',
		"$name: a detached candidate leads");
	end_worker($origin, 'app');
	check_scene($app, $name);
	return;
}

# Is it as set_scene has set it?  By the rows: what they mean is another matter.
sub check_scene
{
	my ($session, $name) = @_;
	my %leader = (held => 'holder', $LONG => 'successor');

	is( $session->query(
			"SELECT string_agg(format('%s %s %s', election, leader, term), ', '
				ORDER BY election)
			FROM leader_election.lease
			WHERE leader IS NOT NULL AND election <> 'own'"),
		join(', ',
			map { "$_ " . ($leader{$_} // 'detached') . " $term{$_}" }
			  sort 'held', @detached, $LONG),
		"$name: there are leaders to be taken for ghosts");
	is( $session->query(
			"SELECT successor FROM leader_election.lease
			WHERE election = 'reserved'"),
		'successor',
		"$name: and a reserved seat");
	return;
}

set_scene('dumps');

#
# What must be so in any copy
#

my @sides;

# What each has granted
my %granted;

# In the grace: nobody leads as far as anybody can see; whoever stands is not
# elected; who led may lead on. (was_there: somebody has called already, so that
# no seat is reserved any more.)
sub arrive
{
	my ($name, $node, $dbname, %opts) = @_;
	my $session = new_session($node, $dbname, name => $name);
	my $side = {
		name => $name,
		node => $node,
		dbname => $dbname,
		session => $session,
		term => { %term },
	};
	my $new;

	check_scene($session, $name) unless $opts{was_there};
	$side->{known} = terms_of($session);
	is( $session->query(
			"SELECT count(*) FROM leader_election.status s
			WHERE (state <> 'vacant' OR leader IS NOT NULL
				OR leader_election.leader(election) IS NOT NULL
				OR leader_election.is_leader(election)
				OR leader_election.is_leader(election, (SELECT term
					FROM leader_election.lease l WHERE l.election = s.election)))
				AND election <> 'own'"),
		0,
		"$name: nobody leads");
	is( $session->sqlstate_of(
			"SELECT leader_election.assert_leader('renewed', $term{renewed})"),
		'LE001',
		"$name: assert_leader()");
	foreach my $election (@elections)
	{
		is( $session->query(
				"SELECT leader_election.join('$election', 'newcomer')"),
			'',
			"$name: $election: a newcomer is not elected");
	}
	is( $session->query(
			"SELECT string_agg(election, ', ' ORDER BY election)
			FROM leader_election.status
			WHERE waiting_for IS DISTINCT FROM 'grace after failover'
				AND election NOT IN ('$LONG', 'own')"),
		'',
		"$name: because of the grace");
	is( $session->sqlstate_of("SELECT leader_election.drop_election('held')"),
		'55P03', "$name: an election is not dropped in it");
	is( query_unless_busy(
			$session,
			"SELECT * FROM leader_election.renew('renewed', $term{renewed} + 1)"),
		'',
		"$name: renew() of a term that never was");

	# Whoever knows the old term leads on, in a new one.
	$new = query_unless_busy($session,
		"SELECT term FROM leader_election.renew('renewed', $term{renewed})");
	cmp_ok($new, '>', $term{renewed}, "$name: the detached leader leads on");
	$side->{renewed} = $new;
	is( $session->query(
			"SELECT leader_election.leader('renewed'),
			leader_election.is_leader('renewed', $term{renewed}),
			leader_election.is_leader('renewed', $new)"),
		'detached|f|t',
		"$name: in the new term only");
	is( $session->query(
			"SELECT term, reason FROM leader_election.history
			WHERE election = 'renewed' AND term >= $term{renewed} ORDER BY term"),
		"$term{renewed}|failover\n$new|",
		"$name: history");
	is( $session->query(
			"SELECT leader_election.monotonic_clock()
				< max(first_seen_mono) + $LEASE
			FROM leader_election.epoch
			WHERE incarnation = leader_election.incarnation()"),
		't',
		"$name: all of that was in the grace, on this machine");
	is( $session->query(
			"SELECT string_agg(candidate, ', ') FROM leader_election.candidates
			WHERE election = '$LONG' AND alive"),
		'',
		"$name: no ghost stands");
	push @sides, $side;
	return $side;
}

# After the grace
sub settle
{
	my ($side) = @_;
	my ($name, $session) = @$side{qw(name session)};
	my $known = $side->{known};
	my ($epoch, $others);

	foreach my $election (grep { $_ ne 'renewed' } @elections)
	{
		wait_until(
			sub {
				$session->query(
					"SELECT leader_election.renew('renewed', $side->{renewed})");
				return $session->query(
					"SELECT leader_election.is_leader('$election')") eq 't';
			},
			"$name: an election in \"$election\"");
	}
	is( $session->query(
			"SELECT string_agg(election, ', ') FROM leader_election.lease
			WHERE leader = 'newcomer' AND acquired_mono - (SELECT first_seen_mono
				FROM leader_election.epoch
				WHERE incarnation = leader_election.incarnation())
				NOT BETWEEN $LEASE AND $LEASE + $LATE"),
		'',
		"$name: elected after the grace of a lease, and soon");
	is( $session->query(
			"SELECT * FROM
			leader_election.renew('lapsing', $side->{term}{lapsing})"),
		'',
		"$name: who has not renewed in it is over");
	is( $session->query(
			"SELECT string_agg(DISTINCT reason, ', ') FROM leader_election.history
			WHERE (election, term) IN (VALUES "
			  . join(', ',
				map { "('$_', $side->{term}{$_})" } 'held', @detached)
			  . ')'),
		'failover',
		"$name: history tells what became of the old terms");

	# The terms
	($epoch, $others) = split /\|/, $session->query(
		"SELECT max(epoch) FILTER (WHERE incarnation = present),
			max(epoch) FILTER (WHERE incarnation <> present)
		FROM leader_election.epoch, leader_election.incarnation() present");
	cmp_ok($epoch, '>', $others, "$name: a new epoch");
	$side->{epoch} = $epoch;
	{
		my $terms = terms_of($session);
		my %small;
		my %foreign;

		foreach my $election (@elections)
		{
			my %known = map { $_ => 1 } @{ $known->{$election} };
			my @new = grep { !$known{$_} } @{ $terms->{$election} };

			$granted{$name}{$election} = \@new;
			$small{$election} = 1
			  unless @new && $new[0] > $known->{$election}[-1];
			$foreign{$election} = 1
			  if grep { $_ >> $EPOCH_BITS != $epoch || $_ >= 2**53 } @new;
		}
		is_deeply(\%small, {}, "$name: terms are greater than all before");
		is_deeply(\%foreign, {}, "$name: and of that epoch");
	}
	return;
}

#
# Dumps
#

my $dir = PostgreSQL::Test::Utils::tempdir;
my %file = map { $_ => "$dir/$_.dump" } qw(plain custom schema data noacl);

$origin->command_ok([ 'pg_dump', '-U', 'dumper', '-f', $file{plain}, 'app' ],
	'pg_dump, plain, by a role that may read');
$origin->command_ok([ 'pg_dump', '-Fc', '-f', $file{custom}, 'app' ],
	'pg_dump, custom');
$origin->command_ok(
	[ 'pg_dump', '--schema-only', '-f', $file{schema}, 'app' ],
	'pg_dump, schema only');
$origin->command_ok([ 'pg_dump', '--data-only', '-f', $file{data}, 'app' ],
	'pg_dump, data only');
$origin->command_ok(
	[ 'pg_dump', '--no-owner', '--no-acl', '-f', $file{noacl}, 'app' ],
	'pg_dump, without privileges');

sub restore
{
	my ($node, $dbname, $what) = @_;

	$node->command_ok(
		$what eq 'custom'
		? [ 'pg_restore', '-e', '-d', $dbname, $file{$what} ]
		: [
			'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $dbname, '-f',
			$file{$what}
		],
		"$dbname: $what restored");
	return;
}

# Without the roles that it names, what can be told is told, and a superuser can
# help.
my $there = new_session($fresh, 'postgres');

$there->query("CREATE DATABASE $_") foreach qw(noroles plain custom);
restore($fresh, 'noroles', 'noacl');
{
	my $session = new_session($fresh, 'noroles');

	is( $session->query(
			"SELECT state, waiting_for FROM leader_election.status
			WHERE election = 'team'"),
		'vacant|a worker or a call',
		'noroles: status, before anybody has called');
	is($session->sqlstate_of("SELECT leader_election.join('team', 'newcomer')"),
		'42704', 'noroles: nobody can be a member of a role that is not there');
	$session->query(
		"SELECT leader_election.alter_election('team', candidate_role => '')");
	is($session->sqlstate_of("SELECT leader_election.join('team', 'newcomer')"),
		'00000', 'noroles: a superuser can do without');
	$session->finish;
}

set_up_roles($there);
foreach my $what (qw(plain custom))
{
	restore($fresh, $what, $what);
	arrive($what, $fresh, $what);
	is( once_sqlstate(
			$fresh, $what, 'member',
			"SELECT leader_election.join('team', 'member')"),
		'00000',
		"$what: a member may stand");
	foreach my $call ("join('team', 'outsider')",
		"alter_election('team', quorum => 2)")
	{
		is( once_sqlstate(
				$fresh, $what, 'outsider', "SELECT leader_election.$call"),
			'42501',
			"$what: an outsider may not: $call");
	}
	is( once_sqlstate(
			$fresh, $what, 'owner',
			"SELECT leader_election.alter_election('team', quorum => 1)"),
		'00000',
		"$what: the owner may alter");
	is( once($fresh, $what, 'owner',
			"SELECT owner, candidate_role, channel FROM leader_election.election
			WHERE election = 'team'"),
		'owner|team|team_news',
		"$what: settings");
}

# The tables in another order, and somebody calls in between: that there was
# another incarnation is known before its name is.
$there->query('CREATE DATABASE disordered');
{
	my ($list) = run_command([ 'pg_restore', '-l', $file{custom} ]);
	my @contents = split /^/, "$list\n";
	my @epoch = grep { /TABLE DATA leader_election epoch / } @contents;
	my $session;

	is(@epoch, 1, 'disordered: the dump has the epochs');
	append_to_file("$dir/first", join '', grep { !/TABLE DATA leader_election epoch / } @contents);
	append_to_file("$dir/last", $epoch[0]);
	$fresh->command_ok([ 'pg_restore', '-e', '-d', 'disordered', '-L', "$dir/first", $file{custom} ],
		'disordered: all but the epochs');
	$session = new_session($fresh, 'disordered');
	foreach my $election (@elections)
	{
		is($session->query("SELECT leader_election.join('$election', 'early')"),
			'', "disordered: $election: nobody is elected");
	}
	$session->query('SELECT leader_election.leave_all()');
	$session->finish;
	$fresh->command_ok([ 'pg_restore', '-e', '-d', 'disordered', '-L', "$dir/last", $file{custom} ],
		'disordered: the epochs');
	arrive('disordered', $fresh, 'disordered', was_there => 1);
}

# A database that has elections of its own, led at the time
$control->query('CREATE DATABASE parts');
restore($origin, 'parts', 'schema');
my $own = new_session($origin, 'parts', name => 'own');

is( $own->query('SELECT count(*) FROM leader_election.lease'),
	0, 'parts: schema only: no elections');
is($own->query("SELECT leader_election.join('own', 'own')"),
	1, 'parts: schema only: counts from 1');
is($own->query('SELECT max(epoch) FROM leader_election.epoch'),
	0, 'parts: schema only: in epoch 0');
restore($origin, 'parts', 'data');
{
	my $parts = arrive('parts', $origin, 'parts');

	is($own->query("SELECT leader_election.term('own')"),
		1, 'parts: who led there goes on leading');
	$own->query("SELECT leader_election.resign('own')");
	is( $parts->{session}->query(
			"SELECT leader_election.join('own', 'newcomer')"),
		'',
		'parts: but nobody new is elected in the grace');
}

#
# The past, and a history that will be abandoned.
#

set_scene('the past');
$app->query("SELECT pg_create_restore_point('the past')");
my $past = { %term };

#
# A copy within the cluster.  Nobody may be connected to the original, not even
# its worker, which has not seen the end of the session that leads.
#

$_->finish foreach $holder, $app;
$control->query('CREATE DATABASE copy TEMPLATE app');
is($control->sqlstate, '00000', 'CREATE DATABASE ... TEMPLATE');
arrive('copy', $origin, 'copy');

# The original does not notice.
$app = new_session($origin, 'app');
$term{held}++;
is( campaign($app, 'held', 'successor'),
	$term{held},
	'origin: the dead leader is replaced at once, in the next term');
foreach my $round (1 .. 3)
{
	$app->query("SELECT leader_election.leave('held')");
	is(campaign($app, 'held', 'successor'),
		++$term{held}, "origin: goes on counting: $term{held}");
	is(acquire($app, 'vacant', 'first'),
		++$term{vacant}, "origin: vacant: goes on counting: $term{vacant}");
	$app->query("SELECT leader_election.release('vacant', $term{vacant})");
}
is( $app->query('SELECT count(*), max(epoch) FROM leader_election.epoch'),
	'1|0', 'origin: the same incarnation all the time');

# Backups, recovered to the past.  The second one does not know of the first.
my $segment = $app->query('SELECT pg_walfile_name(pg_switch_wal())');

wait_for($origin,
	"SELECT last_archived_wal >= '$segment' FROM pg_stat_archiver");
{
	my %now = %term;

	%term = %$past;
	foreach my $name (qw(recovered again))
	{
		my $node = PostgreSQL::Test::Cluster->new($name);

		$node->init_from_backup($origin, 'backup',
			has_restoring => 1, standby => 0);
		$node->append_conf(
			'postgresql.conf', q(
recovery_target_name = 'the past'
recovery_target_action = 'promote'
));
		$node->start;
		wait_for($node, 'SELECT NOT pg_is_in_recovery()');
		arrive($name, $node, 'app');
		settle($sides[-1]) if $name eq 'recovered';
		($sides[-1]{timeline}) =
		  $sides[-1]{session}->query('SELECT leader_election.incarnation()')
		  =~ m{^\d+/(\d+)/};
	}
	%term = %now;
}
is_deeply([ map { $_->{timeline} } @sides[ -2, -1 ] ],
	[ 2, 3 ], 'each recovery has a timeline of its own');

# The graces of all these have overlapped.
foreach my $side (@sides)
{
	settle($side) unless $side->{epoch};
}
is($own->query("SELECT leader_election.leader('own')"),
	'newcomer', 'parts: elected after the grace there');
cmp_ok(
	$own->query("SELECT term FROM leader_election.lease WHERE election = 'own'")
	  >> $EPOCH_BITS,
	'>',
	0,
	'parts: and in the new epoch');

$_->{session}->finish foreach @sides;
$own->finish;
foreach my $side (@sides)
{
	$side->{node}->stop('immediate')
	  if $side->{node} != $origin && $side->{node} != $fresh;
}
$fresh->stop('immediate');

#
# A row that cannot have been written here, by its deadline; counters that run
# out; elections that are dropped.
#

$control->query('CREATE DATABASE odd');
my $odd = new_session($origin, 'odd');

$odd->query('CREATE EXTENSION leader_election');
foreach my $odd_row (
	[ 'deadline', 'detached', '0' ],
	[ 'all of it', 'detached', '1 day' ],
	[ 'of a session', 'session', '1 day' ])
{
	my ($election, $kind, $expires_later) = @$odd_row;
	my $session = new_session($origin, 'odd', name => 'holder');
	my $newcomer = new_session($origin, 'odd', name => 'newcomer');
	my $deadline;
	my $elected;

	$odd->query("SELECT leader_election.create_election('$election',
		lease_duration => '1 s')");
	is( $kind eq 'detached' ? acquire($session, $election, 'holder')
		: $session->query("SELECT leader_election.join('$election', 'holder',
			auto_renew => false)"),
		1,
		"$election: led");
	$deadline = $odd->query("UPDATE leader_election.lease
		SET deadline_mono = deadline_mono + $DAY,
			expires_at = expires_at + interval '$expires_later'
		WHERE election = '$election'
		RETURNING deadline_mono - $DAY");
	is( $odd->query(
			"SELECT state, leader_election.leader('$election') IS NULL,
				leader_election.is_leader('$election', 1)
			FROM leader_election.status WHERE election = '$election'"),
		'vacant|t|f',
		"$election: a deadline too far ahead is none");
	$elected = campaign($newcomer, $election, 'newcomer');
	$elected ||= campaign($newcomer, $election, 'newcomer')
	  foreach 1 .. $LATE / 1_000_000;
	cmp_ok($elected || 0, '>=', 2,
		"$election: and blocks nobody for longer than it lasts");
	is( $odd->query(
			"SELECT acquired_mono >= $deadline FROM leader_election.lease
			WHERE election = '$election' AND term > 1"),
		't',
		"$election: but for as long")
	  if $elected;
	is($session->query("SELECT leader_election.is_leader('$election')"),
		'f', "$election: nor is it believed by who led");
	$_->finish foreach $session, $newcomer;
}

{
	my $next = 1 << $EPOCH_BITS;
	my $far;

	acquire($odd, 'counter', 'c');
	$odd->query("SELECT leader_election.release('counter', 1)");
	$odd->query("UPDATE leader_election.lease SET term = $next - 1
		WHERE election = 'counter'");
	is(acquire($odd, 'counter', 'c'),
		$next, 'counter: one that runs out opens the next epoch');
	$odd->query("SELECT leader_election.release('counter', $next)");
	is(acquire($odd, 'counter', 'c'),
		++$next, 'counter: and goes on in it');
	is($odd->query('SELECT max(epoch) FROM leader_election.epoch'),
		0, 'counter: which is no new incarnation');

	# Further than any clock: the clock of a server of before was ahead.
	$far = int(time) + 1_000_000;
	$odd->query("SELECT leader_election.release('counter', $next)");
	$next = $far << $EPOCH_BITS;
	$odd->query("UPDATE leader_election.lease SET term = $next - 1
		WHERE election = 'counter'");
	is(acquire($odd, 'counter', 'c'),
		$next, 'counter: in an epoch that lies ahead');

	# What is dropped is remembered.
	acquire($odd, 'dropped', 'c');
	$odd->query("SELECT leader_election.release('dropped', 1)");
	is(acquire($odd, 'dropped', 'c'), 2, 'dropped: counts');
	$odd->query("SELECT leader_election.release('dropped', 2);
		SELECT leader_election.drop_election('dropped')");
	is($odd->query('SELECT dropped_term FROM leader_election.epoch'),
		2, 'dropped: the last term is kept');
	is(acquire($odd, 'dropped', 'c'), 3, 'dropped: created again, it counts on');
	is(acquire($odd, 'created later', 'c'),
		3, 'dropped: and so do others that are created later');

	$odd->finish;
	end_worker($origin, 'odd');
	$control->query('CREATE DATABASE oddcopy TEMPLATE odd');
	$odd = new_session($origin, 'oddcopy');
	$odd->query("SELECT leader_election.create_election('new',
		lease_duration => '100 ms')");
	is(acquire($odd, 'new', 'c'),
		'', 'counter: not elected in the grace of the copy');
	wait_until(sub { acquire($odd, 'new', 'c') }, 'the end of it');
	is( $odd->query("SELECT term >> $EPOCH_BITS FROM leader_election.lease
			WHERE election = 'new'"),
		$far + 1,
		'counter: the copy\'s epoch is later than that');
	$odd->finish;

	$odd = new_session($origin, 'odd');
	$odd->query('DROP EXTENSION leader_election;
		CREATE EXTENSION leader_election');
	is(acquire($odd, 'dropped', 'c'),
		1, 'DROP EXTENSION: forgets, as it is documented to');
	$odd->finish;
}

#
# The same files in another boot of the machine.
#

set_scene('files');
$origin->stop('fast');
$origin->backup_fs_cold('files');

# The original is restarted, which is no new incarnation: its dead sessions are
# replaced at once.
$origin->start;
$app = new_session($origin, 'app');
is( campaign($app, 'held', 'successor'),
	++$term{held},
	'restart: the dead leader is replaced at once, in the next term');
is( $app->query('SELECT count(*), max(epoch) FROM leader_election.epoch'),
	'1|0', 'restart: in the same incarnation');
$term{held}--;

# Starts a server in namespaces of its own, which need no privilege where the
# system allows user namespaces.
my $own_user = '--user --map-current-user --keep-caps';

sub start_in
{
	my ($node, $unshare, $command) = @_;
	my $bin = "$dir/" . $node->name;
	my ($pg_ctl) = grep { -x } map { "$_/pg_ctl" } split /:/, $ENV{PATH};

	mkdir $bin;
	append_to_file("$bin/pg_ctl", <<END);
#!/bin/sh
exec unshare $own_user $unshare -- sh -c '
	$command
	exec "\$0" "\$@"' '$pg_ctl' "\$@"
END
	chmod 0755, "$bin/pg_ctl";
	local $ENV{PATH} = "$bin:$ENV{PATH}";
	$node->start;
	return;
}

my $boot_id = '/proc/sys/kernel/random/boot_id';
my $other_id = "$dir/boot_id";
my $behind = int((slurp_file('/proc/uptime') =~ /^(\d+)/)[0] / 2);

append_to_file($other_id, "01234567-89ab-cdef-0123-456789abcdef\n");
foreach my $boot (
	[
		'reboot', '--mount',
		"mount --bind $other_id $boot_id || exit",
		qr{/01234567-89ab-cdef-0123-456789abcdef/}
	],
	[
		'clock ahead', '--fork --time --boottime=100000',
		'', qr{\+100000/\d+/\d+$}
	],
	[
		'clock behind', "--fork --time --boottime=-$behind",
		'', qr{-$behind/\d+/\d+$}
	])
{
	my ($name, $unshare, $command, $like) = @$boot;

  SKIP:
	{
		my $node;
		my $tried =
		  qx(unshare $own_user $unshare -- sh -c '$command' 2>&1);

		chomp $tried;
		skip "$name: no such namespace can be made: $tried", 1 if $? != 0;
		$node = PostgreSQL::Test::Cluster->new($name =~ s/ /_/r);
		$node->init_from_backup($origin, 'files');
		start_in($node, $unshare, $command);
		like(
			once($node, 'app', 'owner', 'SELECT leader_election.incarnation()'),
			$like, "$name: is another boot");
		arrive($name, $node, 'app');
	}
}
settle($_) foreach grep { !$_->{epoch} } @sides;

#
# All that was granted anywhere
#

{
	my %issued;
	my $compared = 0;
	my $original = terms_of($app);

	foreach my $side (@sides)
	{
		my $name = $side->{name};
		my %small = map { $_ => 1 }
		  grep { $granted{$name}{$_}[0] <= $original->{$_}[-1] } @elections;

		is_deeply(\%small, {},
			"$name: terms are greater than those of the original, even now");
	}
	$granted{original} = $original;
	foreach my $name (keys %granted)
	{
		foreach my $election (@elections)
		{
			push @{ $issued{"$election/$_"} }, $name
			  foreach @{ $granted{$name}{$election} };
			$compared += @{ $granted{$name}{$election} };
		}
	}
	is_deeply([ grep { @{ $issued{$_} } > 1 } sort keys %issued ],
		[], "no term was granted twice, of $compared");
	{
		my %epoch = map { $_->{name} => $_->{epoch} } @sides;

		cmp_ok($epoch{again}, '>', $epoch{recovered},
			'again: a later epoch than that of the recovery that it abandons');
	}
}
is( $app->query('SELECT max(term) < 100 FROM leader_election.history'),
	't', 'origin: counts from 1');

done_testing();
