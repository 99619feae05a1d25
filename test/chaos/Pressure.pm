# What presses on the servers rather than breaks them: others' load, full tables,
# missing processes, clients that read slowly, hostile roles. Nemesis.pm takes these
# faults into its table; a profile that has none of them is not changed by them.
#
# What candidates do to their own sessions meanwhile is in pressure.c: they do it
# while the file $dir/pressure is there.

package Pressure;

use strict;
use warnings;

use Cluster;
use Exporter qw(import);
use Hostile;
use List::Util qw(shuffle);
use Time::HiRes qw(sleep);

our @EXPORT = qw(
  begin_pressure draw_timeouts end_pressure end_snapshot relieve_servers nothing_foreign few_elections_led set_up_pressure pressure_faults
  $many $HISTORY_ROWS
);

our $many = 300;	# elections of the strategy spread
our $HISTORY_ROWS = 100_000;

my $HUGE = 5000;	# elections of a statement, at most
my $HUGE_SECONDS = 25;	# it may take: with all that goes on, there are 200 in a second
my @huge;			# process ids of who runs such statements
my $snapshot;		# process id of who holds an old one
my $version;		# of the servers, as a number

my $NOTIFY_LOCK = "locktype = 'object' AND classid = 'pg_database'::regclass AND objid = 0 AND granted";

# Statements of a role, one after the other, whatever becomes of each
sub command
{
	my ($role, $seconds, $database, @statements) = @_;
	my $command = Cluster::psql(primary(), \@statements, $seconds, $database);

	$command =~ s/user=postgres/user=$role/;
	return $command =~ s/-v ON_ERROR_STOP=1//r;
}

sub client { return start_process('psql', 'sh', '-c', command(@_)); }

sub seconds { return sprintf '%.1f', 0.5 + rand($_[0]); }

# --- NOTIFY

# Many transactions of another database that notify, and wait for each other. Each
# client looks at the clock: a commit that waits for the standby may swallow the
# timeout, and a postmaster that is killed meanwhile is not noticed there, so that the
# server could not be started again.
sub storm
{
	my $seconds = seconds(4);
	my $clients = 2 + int(rand(5));

	client('postgres', $seconds + 1, 'other', "SET statement_timeout = '$seconds s'",
		"DO \$\$ DECLARE started timestamptz := clock_timestamp(); BEGIN
			FOR i IN 1 .. 5000 LOOP
				INSERT INTO storm VALUES (i);
				PERFORM pg_notify('storm', 'by $_');
				COMMIT;
				EXIT WHEN abs(extract(epoch FROM clock_timestamp() - started)) > $seconds;
			END LOOP;
		END \$\$")
	  foreach 1 .. $clients;
	return "$clients for $seconds s";
}

# No standby replays anything, and a commit of another database that notifies waits
# until one does.
sub stick_behind_standby
{
	my $seconds = seconds(3);
	my @paused;

	return if operation_running();
	@paused = grep { defined sql($_, 'SELECT pg_wal_replay_pause()') } standbys();
	return unless @paused;
	Nemesis::heal($seconds, \&resume_replay);
	client('postgres', $seconds + 2, 'other', 'SET synchronous_commit = remote_apply',
		q{BEGIN; INSERT INTO storm VALUES (0); NOTIFY storm; COMMIT});
	return 'behind ' . join(', ', map { "server$_" } @paused) . " for $seconds s";
}

sub resume_replay
{
	sql($_, 'SELECT CASE WHEN pg_is_in_recovery() THEN pg_wal_replay_resume() END')
	  foreach grep { server_running($_) } @servers;
	return;
}

# Whoever notifies, in any database, stops in the middle of its commit.
sub stop_in_commit
{
	storm();
	for (1 .. 10)
	{
		my ($pid) = split /\n/, sql(primary(), "SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid)
			WHERE $NOTIFY_LOCK AND application_name !~ '^calm'", 2) // '';

		return "process $pid" if $pid && Nemesis::pause(2, $pid);
	}
	return;
}

# --- what there is only so much of

# A role without any right takes all locks, and keeps them, or grabs each one that
# becomes free.
sub fill_lock_table
{
	my $seconds = 0.5 + seconds(3);	# it takes about half a second to fill it
	my $grabs = rand() < 0.3;
	my $then = $grabs ? 'PERFORM pg_sleep(0.005);' : 'PERFORM pg_sleep(100);';

	client('hostile', $seconds + 1, 'other', "SET statement_timeout = '$seconds s'",
		"DO \$\$ DECLARE i bigint := 0; BEGIN
			LOOP
				BEGIN
					LOOP i := i + 1; PERFORM pg_advisory_lock(i); END LOOP;
				EXCEPTION WHEN out_of_memory THEN NULL; END;
				$then
			END LOOP;
		END \$\$");
	return ($grabs ? 'and more' : 'kept') . " for $seconds s";
}

# Parallel queries hold all slots of background workers: one takes what is free, the
# other one that of the elections' worker, if it comes first.
sub take_worker_slots
{
	return unless workers_of(primary());

	my $seconds = seconds(3);

	foreach my $turn (1, 2)
	{
		client('hostile', $seconds + 1, 'other',
			"SET statement_timeout = '$seconds s'", 'SET max_parallel_workers = 1000',
			'SET max_parallel_workers_per_gather = 100',
			'SET parallel_setup_cost = 0', 'SET parallel_tuple_cost = 0',
			'SELECT count(pg_sleep(1)) FROM parallel');
		sleep 0.1;
		Nemesis::signal_backend('TERM', "backend_type = 'leader_election worker'") if $turn == 1;
	}
	return "for $seconds s";
}

# The primary is restarted, and has no slot for any worker from then on; or it has all
# of them again. It also has after a failover.
sub change_workers
{
	my ($slots) = @_;
	my $n = primary();

	return if workers_of($n) == $slots;
	return Nemesis::restart(Nemesis::pick(qw(immediate fast kill)), $n, sub { set_workers($n, $slots) });
}

# --- huge statements, and many elections

# The server does not notice that the client has been killed before the statement ends.
# It holds locks on all tables. Those who rewrite one give up soon: everybody would wait
# for them meanwhile. Noted: huge N, and whether it was all done; "futile" if not. Where
# servers have little room for locks, in other profiles, half of it is all they have.
sub huge_statement
{
	# One at a time: each would be busy where the other one is.
	@huge = grep { running($_) } @huge;
	return if operation_running() || @huge;

	my $most = $locks > 64 ? $HUGE : $HUGE / 2;
	my $n = rand() < 0.2 ? $most : 500 + int(rand(1501));
	my $quiet = "SET client_min_messages = error; SET statement_timeout = '$HUGE_SECONDS s'";
	my $statement = Nemesis::pick(
		"SELECT count(leader_election.join('huge-' || i, 'huge')) FROM generate_series(1, $n) i",
		"SELECT count(*) FROM generate_series(1, $n) i, leader_election.acquire('vast-' || i, 'vast')",
		"DO \$\$ DECLARE t bigint; BEGIN FOR i IN 1 .. $n / 10 LOOP
			CALL leader_election.campaign('huge-' || i, 'huge', timeout => '0', term => t);
		END LOOP; END \$\$");
	my $end = Nemesis::pick('SELECT leader_election.leave_all()', 'DISCARD ALL', 'SELECT pg_advisory_unlock_all()', 'SELECT 1');

	my $pid = start_process('psql', 'sh', '-c', command('postgres', $HUGE_SECONDS + 4, 'postgres', $quiet, $statement,
			'\echo huge :ERROR', 'SELECT pg_sleep(1)',
			"SELECT count(leader_election.is_leader('huge-' || i)) FROM generate_series(1, $n) i", $end)
		  . " | grep -cx 'huge false'");
	my ($what) = $statement =~ /leader_election\.(\w+)/;

	note_end($pid, 'huge', $n, $what);
	push @huge, $pid;
	return "$n, $what";
}

# Candidates that stand for all of many elections come and go.
my $last = 0;

sub spread_widely
{
	my $name = 'wide' . ($last = $last % 3 + 1);
	my @join = map {
		"SELECT count(leader_election.join('wide-' || i, '$name')) FROM generate_series($_, least($_ + 999, $many)) i"
	} grep { $_ % 1000 == 1 } 1 .. $many;
	my $seconds = seconds(6 + $many / 500);

	client('postgres', $seconds + 1, 'postgres', 'SET client_min_messages = error',
		map { (@join, "SELECT pg_sleep(0.5 + random())") } 1 .. 20);
	return "$name for $seconds s";
}

# --- the pooler's sessions

# A client resets one of the pooler's sessions after the other, between the calls of
# detached candidates: nothing of theirs is in a session.
sub reset_pooled
{
	my $seconds = seconds(4);
	my @resets = ('DISCARD ALL', 'SELECT pg_advisory_unlock_all()', 'RESET ALL');

	start_process('resets', 'timeout', $seconds, 'psql', '-XAt', '-d', pooled_connection('resets'),
		map { ('-c', Nemesis::pick(@resets[ 0, 0, 1, 2 ]), '-c', '\! sleep 0.02') } 1 .. 200);
	return "for $seconds s";
}

# --- those who look on

# A socket that nobody reads from fills up.
sub read_slowly
{
	my $seconds = 1 + int(rand(4));

	client('app', $seconds + 2, 'postgres', 'LISTEN leadership_changed', 'LISTEN flood',
		"\\copy (SELECT repeat('x', 1000), leader_election.leader('race') FROM generate_series(1, 300000)) TO PROGRAM 'sleep $seconds'")
	  for 1 .. 2;
	return "for $seconds s";
}

# The same for the one who listens to what is announced
sub flood_listener
{
	my $pid = $Nemesis::candidates{listener}{pid};

	running($pid) && Nemesis::pause(2.5, $pid) or return;
	client('postgres', 5, 'postgres',
		"SELECT count(pg_notify('flood', i || repeat('x', 7900))) FROM generate_series(1, 1500) i");
	return 'listener';
}

# Nothing that has been updated since can be cleared away, for all of the run: the
# snapshot ends with its server, or for those who wait for all snapshots, and another is
# taken when the next round begins. (It has not read our tables: whoever wants to rewrite
# one would wait for it, and everybody for them.)
sub keep_snapshot
{
	return if running($snapshot);
	event('snapshot', 'taken');
	$snapshot = start_process('snapshot', 'sh', '-c',
		Cluster::psql(primary(), [ 'BEGIN ISOLATION LEVEL REPEATABLE READ',
				'SELECT pg_current_snapshot()', 'SELECT pg_sleep(36000)' ], 36000)
		  =~ s/application_name=nemesis/application_name=snapshot/r);
	return;
}

sub end_snapshot
{
	return unless running($snapshot);
	sql(primary(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'snapshot'");
	event('snapshot', 'ended');
	return;
}

# --- slow servers

sub slow_disk
{
	my $seconds = seconds(4);
	my $delay = 1000 * (5 + int(rand(60)));
	my $method = Nemesis::pick(qw(fdatasync fsync open_datasync open_sync));
	my $n = primary();

	set_pressing($n, "fsync = on\ncommit_delay = $delay\ncommit_siblings = 0\nwal_sync_method = $method\n");
	Nemesis::heal($seconds, sub { set_pressing($n, '') });
	return "$delay us, $method";
}

sub set_pressing
{
	my ($n, $settings) = @_;
	my $path = "$dir/disk/server$n/pressure.conf";

	return unless -e $path && slurp($path) ne $settings;
	return Nemesis::heal(0.5, sub { set_pressing($n, '') })
	  unless eval { spit($path, $settings); 1 };	# the disk is full
	ctl($n, 'reload') if server_running($n);
	return;
}

sub maintain_all
{
	my @tables = shuffle(qw(election lease candidate history epoch pause_all drain announced election_group dropped));
	my @statements = Nemesis::pick(
		[ map { "VACUUM FULL leader_election.$_" } @tables ],
		[ map { "CLUSTER leader_election.$_ USING ${_}_pkey" } @tables ],
		[ map { "REINDEX TABLE CONCURRENTLY leader_election.$_" } @tables ])->@*;

	end_snapshot() if $statements[0] =~ /CONCURRENTLY/;
	client('postgres', 20, 'postgres', "SET lock_timeout = '500ms'", @statements);
	return 'all tables';
}

# --- hostile roles

sub be_hostile
{
	my ($role) = @_;
	my $seconds = 1 + int(rand(4));

	# An intruder may pause and drain what it has made itself.
	if ($role eq 'intruder')
	{
		event('pausing', $_), event('draining', $_, '*') foreach qw(intruded intrusion missing);
	}
	client($role, $seconds, 'postgres', "SET statement_timeout = '1500ms'", hostile_statements($role));
	return "$role for $seconds s";
}

# --- all of it

# name => [function, weight in the profile pressure, in all and clock]
my %faults = (
	'NOTIFY storm elsewhere' => [ \&storm,                                 8, 2 ],
	'NOTIFY stuck behind the standby' => [ \&stick_behind_standby,         6, 2 ],
	'NOTIFY stopped in its commit' => [ \&stop_in_commit,                  5, 1 ],
	'full lock table' => [ \&fill_lock_table,                              8, 2 ],
	'all worker slots taken' => [ \&take_worker_slots,                     8, 2 ],
	'restart without workers' => [ sub { change_workers(0) },              4, 2 ],
	'restart with workers' => [ sub { change_workers($workers) },          8, 4 ],
	'huge statement' => [ \&huge_statement,                                6, 1 ],
	'many spread elections' => [ \&spread_widely,                         10, 1 ],
	'DISCARD ALL through the pooler' => [ \&reset_pooled,                  6, 2 ],
	'slow readers' => [ \&read_slowly,                                     4, 1 ],
	'slow listener' => [ \&flood_listener,                                 4, 1 ],
	'slow disk' => [ \&slow_disk,                                          6, 2 ],
	'maintenance of all tables' => [ \&maintain_all,                       5, 1 ],
	'hostile role' => [ sub { be_hostile('hostile') },                     8, 2 ],
	'hostile candidate role' => [ sub { be_hostile('intruder') },          8, 2 ],
);
my %column = (pressure => 1, all => 2, clock => 2);

# What the profile has of them
sub pressure_faults
{
	my ($profile) = @_;
	my $c = $column{$profile} or return;

	return map { $_ => [ @{ $faults{$_} }[ 0, $c ] ] } keys %faults;
}

# For the new primary, before there are standbys
sub set_up_pressure
{
	my ($profile) = @_;

	return unless $column{$profile};
	$version = sql(1, 'SHOW server_version_num') // die;
	find_functions();
	sql(1, [ 'CREATE ROLE hostile LOGIN', 'CREATE ROLE intruder LOGIN',
			'GRANT USAGE ON SCHEMA leader_election TO hostile, intruder',
			'GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO intruder',
			'CREATE TABLE chaos.scratch (i int); ALTER TABLE chaos.scratch OWNER TO app',
			"SELECT count(leader_election.create_election('wide-' || i, 'spread', '$lease_ms ms')) FROM generate_series(1, $many) i" ], 60) // die;
	sql(1, [ 'CREATE TABLE storm (i int); CREATE TABLE parallel (x text); GRANT SELECT ON parallel TO PUBLIC',
			'ALTER TABLE parallel ALTER x SET STORAGE PLAIN; ALTER TABLE parallel SET (parallel_workers = 100)',
			"INSERT INTO parallel SELECT repeat('x', 3000) FROM generate_series(1, 100)" ], 20, 'other') // die;
	defined changed_hands() or die;
	$ENV{CHAOS_PRESSURE} = "$dir/pressure";
	return if $profile ne 'pressure';

	# Of elections that were dropped: half of it is older than it is kept for
	sql(1, "INSERT INTO leader_election.history (election, term, leader, kind, role, acquired_at, ended_at, reason)
		SELECT 'past-' || e, t, 'past', 'session', 'app', began, began + interval '1 min', 'dropped'
		FROM generate_series(0, $HISTORY_ROWS / 100 - 1) e, generate_series(1, 100) t,
			LATERAL (SELECT now() - (101 - t) * interval '14 h' - e * interval '1 s') b(began)", 60) // die;
	return;
}

# Timeouts for all of what a pg_leader does, as PGOPTIONS: 1 ms to 1 s, of each order
# of magnitude as often; or none
sub draw_timeouts
{
	my ($name) = @_;
	my @timeouts = ('statement_timeout', 'lock_timeout', $version >= 170000 ? 'transaction_timeout' : ());
	my $options = join ' ', map { "-c $_=" . (rand() < 0.6 ? 0 : 1 + int(rand(2**(1 + int(rand(10)))))) } @timeouts;

	event('options', $name, $options);
	return $options;
}

# Each pg_leader that this is true of is killed, and started again as it is to be then.
sub start_pg_leaders_again
{
	my ($pressed, $chosen) = @_;

	foreach my $name (sort keys %Nemesis::candidates)
	{
		my $c = $Nemesis::candidates{$name};

		next unless $c->{kind} =~ /^pg_leader/ && $chosen->($c);
		$c->{pressed} = $pressed;
		kill 'KILL', $c->{pid} if running($c->{pid});
	}
	return;
}

# What candidates do to themselves begins, in some rounds. True if it does.
sub begin_pressure
{
	my ($profile) = @_;

	keep_snapshot() if $profile eq 'pressure';

	return 0 unless $column{$profile} && rand() < ($profile eq 'pressure' ? 0.7 : 0.2);
	spit("$dir/pressure", '');
	start_pg_leaders_again(1, sub { rand() < 0.5 });
	return 1;
}

# They do it no more, once they run again ...
sub end_pressure
{
	unlink "$dir/pressure";
	start_pg_leaders_again(0, sub { $_[0]{pressed} });
	return;
}

# ... and nothing is left of it, or of this, on servers that may be others now. The
# pooler's sessions have what candidates have set there.
sub relieve_servers
{
	return unless $ENV{CHAOS_PRESSURE};
	while (@huge = grep { running($_) } @huge) { sleep 0.05; }	# whom the calm would end
	resume_replay();
	set_pressing($_, '') foreach @servers;

	my $changed = changed_hands() // '';

	note_failure("not ours any more: $changed") if $changed ne '';
	kill 'KILL', pooler_pid() if running(pooler_pid());
	sleep 0.05 while running(pooler_pid());
	start_pooler();
	return;
}

# Groups that an intruder has made are dropped. True once there are none.
sub no_foreign_groups
{
	my $names = join ', ', map { "'$_'" } keys %Nemesis::groups;

	return (sql(primary(), "SELECT count(leader_election.drop_group(group_name))
		FROM leader_election.election_group WHERE group_name NOT IN ($names)") // '') eq '0';
}

# What is in nobody's way, but is not ours, is gone; and what intruders have paused at the
# last moment goes on.
sub nothing_foreign { return no_invalid_indexes() && (!$ENV{CHAOS_PRESSURE} || no_foreign_groups() && Nemesis::resume_elections()); }

# What a REINDEX CONCURRENTLY leaves that did not get to its end is dropped. True once
# there is none.
sub no_invalid_indexes
{
	my $ours = "SELECT oid FROM pg_class WHERE relnamespace = 'leader_election'::regnamespace
		UNION SELECT reltoastrelid FROM pg_class WHERE relnamespace = 'leader_election'::regnamespace";
	my $invalid = "SELECT indexrelid::regclass AS index FROM pg_index WHERE NOT indisvalid AND indrelid IN ($ours)";
	my $left = sql(primary(), $invalid) // return 0;

	return 1 if $left eq '';
	event('invalid', split /\n/, $left);

	# Autovacuum gives way to who has waited for deadlock_timeout, 1 s.
	sql(primary(), [ "SET lock_timeout = '2s'", "DROP INDEX IF EXISTS $_" ]) foreach split /\n/, $left;
	return 0;
}

# Who led hundreds of elections has gone, and the worker ends these terms one by one.
# What others wait for comes after them.
sub few_elections_led
{
	return 1 unless $ENV{CHAOS_PRESSURE} && workers_of(primary());
	return (sql(primary(), "SELECT count(*) FROM leader_election.lease
		WHERE election ~ '^(wide|huge|vast)-' AND leader IS NOT NULL") // '') eq '0';
}

1;
