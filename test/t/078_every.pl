# pg_leader run --every: a command runs once in each period, on one of the hosts,
# until it has succeeded; not while another host runs it, and not any more after
# that was recorded.  Whatever is killed, restarted, or promoted, and whatever the
# clocks of the hosts say: the server's clock decides.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FakeClock;
use LeaderElection;
use MachineTime;
use PgLeader;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock_gettime time CLOCK_MONOTONIC);

my $dir = PostgreSQL::Test::Utils::tempdir();
my $HOUR = 3600;
my $LEASE = 3 * slowness();

# What runs: it notes when it starts, for which run, and how it ends.  A file of
# its election says what it does: exit with that number, "hang", "polite" (exit
# with 0 at SIGTERM), "wait" until the file says something else; or for the
# candidate NAME only, in a line "NAME: ..."
my $JOB = <<'END';
use strict;
use warnings;
use Fcntl qw(:flock F_SETFD);
use Time::HiRes qw(clock_gettime sleep CLOCK_MONOTONIC);

my ($file) = @ARGV;

sub note
{
	open(my $log, '>>', "$file.log") or die;
	syswrite($log, sprintf("%.6f %s %s %s\n", clock_gettime(CLOCK_MONOTONIC), $ENV{PG_LEADER_CANDIDATE}, $ENV{PG_LEADER_RUN}, $_[0]));
}

sub plan
{
	open(my $plan, '<', $file) or die;
	my %plan = map { /^(?:(\S+): )?(\S+)$/ ? ($1 // '' => $2) : () } <$plan>;

	return $plan{ $ENV{PG_LEADER_CANDIDATE} } // $plan{''};
}

open(my $lock, '>>', "$file.lock") or die;
fcntl($lock, F_SETFD, 0);
$SIG{TERM} = sub { note('told'); exit 0 } if plan() eq 'polite';
note(flock($lock, LOCK_EX | LOCK_NB) ? 'started' : 'OVERLAP');
sleep 0.01 while plan() !~ /^\d/;
note('exit ' . plan());
exit plan();
END
append_to_file("$dir/job.pl", $JOB);

sub plan_for
{
	my ($election, @lines) = @_;

	append_to_file("$dir/new", join('', map { "$_\n" } @lines));
	rename("$dir/new", "$dir/$election") or die "cannot rename: $!";
	return;
}

# A host, by its name; its clock is wrong by some seconds. It has a short grace, so that
# the rest of the lease is for a machine that is held up.
sub host
{
	my ($node, $election, $name, $wrong, @options) = @_;

	set_clock($wrong, "host$wrong");
	my %env = fake_clock("host$wrong");
	local @PgLeader::ON_HOST = ('env', map { "$_=$env{$_}" } sort keys %env);

	return pg_leader($node, '-e', $election, '-n', $name, '-v', '--grace=100ms', @options, '--', $^X,
		"$dir/job.pl", "$dir/$election");
}

sub noted
{
	my ($election) = @_;

	return map { [split] } split /\n/,
	  -e "$dir/$election.log" ? slurp_file("$dir/$election.log") : '';
}

# What ran, on which hosts: "a started, a exit 1"
sub story
{
	my ($election) = @_;

	return join ', ', map { "@$_[1, 3 .. $#$_]" } noted($election);
}

sub wait_for_story
{
	my ($election, $regexp) = @_;

	return wait_until(sub { story($election) =~ $regexp },
		sub { "$regexp in: " . story($election) });
}

my $config = qq(
leader_election.lease_duration = '${LEASE}s'
client_min_messages = warning
log_statement = all
log_line_prefix = '%m [%p] %a '
);
my $node = new_server(start => 0, streaming => 1, config => $config);

# The clock of the server: the middle of an hour, and of a day
my $true = time;
my $noon = $HOUR * 12 + $HOUR / 2 - $true % ($HOUR * 24);
set_clock($noon);
start_with_fake_clock($node);
$node->safe_psql('postgres', 'CREATE EXTENSION leader_election');
my $sql = session($node, name => 'observer');

sub status
{
	my ($election) = @_;

	return scalar $sql->query(
		"SELECT state, candidates, run_done FROM leader_election.status WHERE election = '$election'");
}

# The moment, by the server's clock, as runs are named
my $utc = "to_char((%s) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";

sub run_of
{
	my ($moment) = @_;

	return $sql->query('SELECT ' . sprintf($utc, $moment));
}

sub wait_for_done
{
	my ($election, $run) = @_;

	return wait_until(sub { status($election) eq "vacant|0|$run" },
		sub { "$run to be done: " . status($election) . '; ' . story($election) });
}

# Has hosts that sleep look at the server's clock, which was set: else they do so
# once a minute.
sub wake
{
	my ($election) = @_;

	$sql->query("SELECT pg_notify('leadership_changed', '{\"election\":\"$election\",}')");
	return;
}

# Waits until so many hosts stand, or lead
sub wait_for_standing
{
	my ($election, $hosts) = @_;

	return wait_for($node, "SELECT count(*) FROM leader_election.candidates
		WHERE election = '$election' AND alive", $hosts);
}

# How often hosts have asked the server something since then
sub asked
{
	my ($from) = @_;

	return scalar(() = slurp_file($node->logfile, $from) =~ /\] pg_leader LOG:  execute /g);
}

sub end_hosts
{
	my @codes = map { $_->signal('TERM'); $_->exit_code } @_;

	return "@codes";
}

# --- what cannot be asked for

foreach my $wrong (
	[ '--every=1d', '--mode=session' ], [ '--every=1d', '--hold=1h' ],
	[ '--every=1d', '--skip' ], [ '--every=1d', '--once' ], [ '--every=1d', '--wait=1s' ],
	['--every=0s'], ['--every=500ms'], ['--every=1500ms'], ['--every=367d'],
	[ '--every=1d', '--offset=1d' ], [ '--every=1d', '--offset=1ms' ],
	['--offset=1h'], ['--attempts=1'], [ '--every=1d', '--attempts=0' ],
	[ '--every=1d', '--attempts=many' ])
{
	my ($code, $output) = run_pg_leader($node, '-e', 'wrong', @$wrong, '--', 'true');

	is($code, 125, "@$wrong: refused");
	like($output, qr/error: .*--|whole seconds/, "@$wrong: with a reason");
}

# --- three hosts, whose clocks differ by minutes.  On two of them the command fails.

my $day = run_of("date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' + interval '3 h'");
my @hosts;

# The first command to run ends when all of them are there.
plan_for('job', 'wait');
push @hosts, host($node, 'job', @$_, '--every=1d', '--offset=3h')
  foreach [ 'a', -1200 ], [ 'b', 1200 ], [ 'c', 86_400 ];
wait_for_standing('job', 3);
plan_for('job', 'a: 1', 'b: 2', 'c: 0');
wait_for_done('job', $day);
my @noted = noted('job');
is( join(' ', map { "@$_[1, 3 .. $#$_]" } grep { $_->[3] eq 'exit' && $_->[4] == 0 } @noted),
	'c exit 0', 'it succeeds once, on the third (ShedLock#6)');
is(scalar(grep { $_->[2] ne $day } @noted), 0, "always for the run $day");
is(scalar(grep { $_->[3] eq 'OVERLAP' } @noted), 0, 'one at a time');
my @starts = map { $_->[1] } grep { $_->[3] eq 'started' } @noted;
is(scalar(grep { $starts[$_] eq $starts[ $_ - 1 ] } 1 .. $#starts), 0,
	"no host twice in a row: @starts");
is( $sql->query("SELECT bool_and(acquired_at >= before + interval '1 s') FROM
		(SELECT acquired_at, lag(acquired_at) OVER (ORDER BY term) AS before,
			lag(detail) OVER (ORDER BY term) AS detail
		FROM leader_election.history WHERE election = 'job') h
		WHERE detail LIKE 'hold%'"),
	@starts > 1 ? 't' : '', 'after a failure nobody begins at once');
is( $sql->query("SELECT done_at BETWEEN now() - interval '10 min' AND now()
		FROM leader_election.status WHERE election = 'job'"),
	't', 'the view says when it was done');
like(ask($node, 'status', '-e', 'job'), qr/$day/, 'and so does pg_leader');
like(ask($node, 'status', '-e', 'job', '--json'), qr/"run_done":"$day"/, 'in JSON, too');

# All of them sleep until the next period: they look now, and then not for a minute.
my $from = -s $node->logfile;
wake('job');
wait_until(sub { asked($from) >= 12 }, 'three hosts to look');
my $asked = asked($from);
my $later = time + 3;
wait_until(sub { time > $later }, 'a while');
is(asked($from), $asked, 'they do not ask in the meantime');

# A host that was down
my $story = story('job');
push @hosts, host($node, 'job', 'd', 0, '--every=1d', '--offset=3h');
wait_for($node, "SELECT count(*) = 4 FROM pg_stat_activity
	WHERE application_name = 'pg_leader' AND state = 'idle' AND query LIKE '%acquire(%'");
is(status('job'), "vacant|0|$day", 'a host that was down does not stand');
is(story('job'), $story, 'and does nothing that is done (redbeat#271)');

# --- The server's clock is set back, and ahead.

set_clock($noon - 24 * $HOUR);
wake('job');
push @hosts, host($node, 'job', 'e', 0, '--every=1d', '--offset=3h');
wait_for($node, "SELECT count(*) = 5 FROM pg_stat_activity
	WHERE application_name = 'pg_leader' AND state = 'idle' AND query LIKE '%acquire(%'");
is(story('job'), $story, 'a day back: nothing is repeated');
plan_for('job', '0');
set_clock($noon + 72 * $HOUR);
wake('job');
wait_for_done('job', my $third = run_of("timestamptz '$day' + interval '3 d'"));
is(scalar(noted('job')), @noted + 2, 'three days ahead: one run, of the last of them');

# --- The owner has a run done anew, once each host has seen this clock.

set_clock($noon + 48 * $HOUR);
$from = -s $node->logfile;
wake('job');
wait_until(sub { asked($from) >= 20 }, 'five hosts to look');
$sql->query("SELECT leader_election.set_run_done('job', NULL)");
wake('job');
wait_for_done('job', run_of("timestamptz '$day' + interval '2 d'"));
is(scalar(noted('job')), @noted + 4, 'set back by its owner: it is done anew');
is(end_hosts(@hosts), '143 143 143 143 143', 'all end');
set_clock($noon);

# --- pg_leader is killed, its command, or told to end.

my $hour = run_of("date_trunc('hour', now())");
my @every = ('--every=1h');

plan_for('killed', 'wait');
@hosts = host($node, 'killed', 'a', 0, @every);
wait_for_story('killed', qr/a started/);
push @hosts, host($node, 'killed', 'b', 0, @every);
$hosts[0]->signal('KILL');
wait_for_story('killed', qr/b started/);
plan_for('killed', '0');
wait_for_done('killed', $hour);
is(story('killed'), 'a started, b started, b exit 0', 'pg_leader was killed: another host does it');
is($sql->query("SELECT run_attempts FROM leader_election.lease WHERE election = 'killed'"),
	2, 'which was another attempt');
end_hosts($hosts[1]);

plan_for('attempts', 'wait');
@hosts = host($node, 'attempts', 'a', 0, @every, '--attempts=1');
wait_for_story('attempts', qr/a started/);
push @hosts, host($node, 'attempts', 'b', 0, @every, '--attempts=1');
kill 'KILL', (descendants($hosts[0]->pid))[1];
wait_until(sub { $hosts[1]->output =~ /./ || status('attempts') =~ /^vacant\|0/ },
	'one attempt, and nobody who stands for another');
is(story('attempts'), 'a started', 'the command was killed: with --attempts=1 there is no other');
set_clock($noon + $HOUR);
plan_for('attempts', '0');
wait_for_done('attempts', run_of("date_trunc('hour', now())"));
is(scalar(noted('attempts')), 3, 'but in the next period');
end_hosts(@hosts);
set_clock($noon);

plan_for('told', 'a: polite', 'b: 0');
@hosts = host($node, 'told', 'a', 0, @every);
wait_for_story('told', qr/a started/);
$hosts[0]->signal('TERM');
is($hosts[0]->exit_code, 0, 'told to end: so it does');
is(status('told') =~ s/\d+/N/r, 'vacant|N|', 'but its run is not done, whatever the command says');
@hosts = host($node, 'told', 'b', 0, @every);
wait_for_done('told', $hour);
is(story('told'), 'a started, a told, b started, b exit 0', 'another host does it at once');
end_hosts(@hosts);

# --- It outlasts its period, twice; then the clock is two periods further, and the
# next run is of that.

plan_for('long', 'wait');
@hosts = map { host($node, 'long', $_, 0, @every) } qw(a b);
wait_for_story('long', qr/started/);
set_clock($noon + 2 * $HOUR);
wake('long');
plan_for('long', '0');
wait_for_done('long', run_of("date_trunc('hour', now())"));
is(join(' ', map { $_->[3] } noted('long')), 'started exit started exit', 'late: the next run is one');
isnt((noted('long'))[0][2], (noted('long'))[2][2], 'of the newest period');
end_hosts(@hosts);
set_clock($noon);

# --- The server is down when the command ends, until the lease is over.  Then the host
# that has run it comes first, and records it; or the other one does, which is
# elected: then it has not been recorded, and is done again.

foreach my $first (qw(records stands))
{
	my $e = "down, $first";

	plan_for($e, 'wait');
	@hosts = host($node, $e, 'a', 0, @every);
	wait_for_story($e, qr/a started/);
	push @hosts, host($node, $e, 'b', 0, @every);
	wait_for_standing($e, 2);
	$node->stop('immediate');
	plan_for($e, '0');
	wait_for_story($e, qr/a exit 0/);
	my ($comes, $waits) = map { $_->pid } $first eq 'records' ? @hosts : reverse @hosts;
	stop_process($waits);
	$later = time + $LEASE + 1;
	wait_until(sub { time > $later }, 'the end of the lease');
	start_with_fake_clock($node);
	$sql = session($node, name => 'observer');
	wait_for_done($e, $hour);
	resume_process($waits);
	is(story($e), $first eq 'records' ? 'a started, a exit 0' :
		  'a started, a exit 0, b started, b exit 0',
		"$e: it is done " . ($first eq 'records' ? 'once' : 'again, if it was not recorded'));

	# The other one finds that it is done.
	wait_for($node, "SELECT count(*) = 2 FROM pg_stat_activity
		WHERE application_name = 'pg_leader' AND state = 'idle' AND query LIKE '%acquire(%'");
	is(scalar(noted($e)), $first eq 'records' ? 2 : 4, "$e: and not once more");
	end_hosts(@hosts);
}

# --- Random kills, restarts and failures, with a period of a second.  A run that the
# view has shown as done is never started again.

{
	my $e = 'random';
	my ($end, $patience) = map { time + $_ } 25, $PostgreSQL::Test::Utils::timeout_default;
	my %known;      # when a run was first seen to be done
	my @wrong;
	my $turn = 0;

	srand(7);
	plan_for($e, 'a: 0', 'b: 1', 'c: 0');
	@hosts = map { host($node, $e, $_, 600 - int(rand(1200)), '--every=1s') } qw(a b c);
	while (time < $end || keys %known <= 5)
	{
		my $next = time + 0.3;

		die 'the runs that were done: ' . join(' ', sort keys %known) . '; ' . story($e)
		  if time > $patience;
		my $chosen = int(rand(3));
		my $fate = rand;

		if ($turn++ % 5 == 4 && $fate < 0.7)
		{
			$hosts[$chosen]->signal('KILL');
			$hosts[$chosen]->exit_code;
			$hosts[$chosen] = host($node, $e, (qw(a b c))[$chosen], 0, '--every=1s');
		}
		elsif ($turn % 20 == 10)
		{
			$node->stop('immediate');
			start_with_fake_clock($node);
			$sql = session($node, name => 'observer');
		}
		wait_until(
			sub {
				my $done = (split /\|/, status($e))[2];

				$known{$done} //= clock_gettime(CLOCK_MONOTONIC) if $done;
				return time > $next;
			},
			'the next turn');
	}
	foreach my $start (grep { $_->[3] eq 'started' } noted($e))
	{
		push @wrong, "@$start" if grep { $_ ge $start->[2] && $known{$_} < $start->[0] } keys %known;
	}
	is(join("\n", @wrong), '', 'no run was started after it was seen to be done');
	is(scalar(grep { $_->[3] eq 'OVERLAP' } noted($e)), 0, 'nor beside another (G1)');
	cmp_ok(scalar(keys %known), '>', 5, 'and some were done: ' . keys %known);
	end_hosts(@hosts);
}

# --- A failover, while the command runs, and as it ends: in the grace.

{
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	my $connstr;

	$sql->query("SELECT leader_election.create_election('$_', lease_duration => '1 min')")
	  foreach qw(goes_on ends);
	$sql->query("SELECT leader_election.create_election('done')");
	$node->backup('backup');
	$standby->init_from_backup($node, 'backup', has_streaming => 1);
	start_with_fake_clock($standby);
	$connstr = sprintf('host=%s,%s port=%s,%s dbname=postgres', $node->host, $standby->host,
		$node->port, $standby->port);
	plan_for($_, 'wait') foreach qw(goes_on ends);
	plan_for('done', '0');
	@hosts = host($connstr, 'done', 'a', 0, @every);
	wait_for_done('done', $hour);
	foreach my $e (qw(goes_on ends))
	{
		push @hosts, host($connstr, $e, 'a', 0, @every, '--attempts=1');
		wait_for_story($e, qr/a started/);
		push @hosts, host($connstr, $e, 'b', 0, @every, '--attempts=2');
	}
	$node->wait_for_catchup($standby, 'replay', $node->lsn('write'));
	$node->stop('immediate');
	plan_for('ends', '0');
	wait_for_story('ends', qr/exit 0/);
	$standby->promote;
	$node = $standby;
	$sql = session($node, name => 'observer');
	wait_until(sub { status('ends') =~ /\|$hour$/ }, sub { 'the record: ' . status('ends') });
	wait_until(sub { $sql->query("SELECT term > 4194304 FROM leader_election.status
			WHERE election = 'goes_on'") eq 't' }, 'its term after the failover');
	plan_for('goes_on', '0');
	wait_for_done($_, $hour) foreach qw(goes_on ends done);
	is(story($_), 'a started, a exit 0', "failover: $_: once") foreach qw(goes_on ends done);
	is($sql->query("SELECT run_attempts FROM leader_election.lease WHERE election = 'goes_on'"),
		1, 'which is one attempt');
	end_hosts(@hosts);
}

$node->stop;
done_testing();
