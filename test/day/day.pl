# A day, compressed: starts the server, its subscriber and the clients, lets the
# nemesis loose between two quiet phases, and leaves in a folder what check.pl and
# verdict.pl look at.
#
#	perl day.pl --dir DIR --minutes N --seed N [--leaks]
#
# DIR has the programs, and a folder disk for the servers. run is what starts this.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../chaos";

use Calm;
use Cluster;
use Fleet;
use Getopt::Long;
use Languages;
use List::Util qw(max min);
use Leaks;
use Meter;
use Nemesis;
use POSIX ();
use Time::HiRes qw(sleep time);

my %option = (minutes => 3, seed => 1);

GetOptions(\%option, 'dir=s', 'minutes=f', 'seed=i', 'leaks') or die;
$dir = $option{dir};
$out = "$dir/out";
srand($option{seed});
@servers = (1);
$lease_ms = 500;

# Three parts of each cycle: nothing hits the worker, so that it grows old; nothing hits
# the whole server; anything. An old snapshot is held for every second part of $HOLD.
my $FAULTS = 60 * $option{minutes};
my $CYCLE = $FAULTS / max(1, int($option{minutes} / 30 + 0.5));
my $HOLD = min(300, $CYCLE / 4);
my $QUIET = $option{minutes} >= 20 ? 180 : 50;	# seconds of a quiet phase
my $WARM = $option{minutes} >= 20 ? 120 : 60;	# before the first: programs load what they need
my $SETTLE = $option{minutes} >= 20 ? 120 : 45;	# before the last: what faults left is cleaned up
my $DUMP = $option{minutes} >= 20 ? 240 : 60;
my $SAMPLE = $option{minutes} >= 20 ? 10 : 5;
my $SAMPLES = 6;	# of a quiet phase, at least
my $BURN = 1000;	# transaction ids per second

my $main = $$;
my $subscriber_port = Cluster::free_port();
my $next_dump = 0;
my $dumps = 0;
my $dump_pid;

# --- the servers

sub subscriber_sql
{
	my ($database, $sql, $seconds) = @_;

	$sql =~ s/'/'\\''/g;
	my $output = readpipe('timeout -k 1 ' . ($seconds // 60) . " psql -XqAt -v ON_ERROR_STOP=1 "
		  . "'host=$dir port=$subscriber_port user=postgres dbname=$database' -c '$sql' 2>>'$out/psql.out'");

	return if $? != 0;
	chomp $output;
	return $output;
}

sub shell { return system("($_[0]) >>'$out/ctl.out' 2>&1") == 0; }

sub configure
{
	spit("$dir/disk/server1/chaos.conf", qq(
wal_level = logical
max_connections = 300
wal_sender_timeout = '60s'
max_prepared_transactions = 5
autovacuum_freeze_max_age = 100000
autovacuum_multixact_freeze_max_age = 10000
log_autovacuum_min_duration = 0
leader_election.history_retention = '3min'
));
	ctl(1, '-m fast -w stop') && start_server(1) or die 'the server does not restart';
	return;
}

# Another server, with the tables that are there by now, and what becomes of them
sub start_subscriber
{
	my $data = "$dir/disk/subscriber";
	my $dump = "pg_dump -s -h '$dir' -p " . port_of(1) . ' -U postgres --no-publications --no-subscriptions postgres';

	shell("initdb -D '$data' -U postgres -A trust -E UTF8 --no-locale -N") or die 'initdb';
	open my $conf, '>>', "$data/postgresql.conf" or die;
	print $conf "listen_addresses = ''\nport = $subscriber_port\nunix_socket_directories = '$dir'\nfsync = off\n"
	  . "shared_buffers = '32MB'\nmax_logical_replication_workers = 8\nmax_worker_processes = 16\nwal_retrieve_retry_interval = '500ms'\nmax_wal_size = '128MB'\n"
	  . "cluster_name = 'subscriber'\n";
	close $conf;
	shell("pg_ctl -D '$data' -l '$out/subscriber.log' -w start") or die 'the subscriber does not start';
	subscriber_sql('postgres', 'CREATE ROLE app LOGIN') // die;
	sql(1, 'CREATE PUBLICATION everything FOR ALL TABLES', 60) // die;
	subscriber_sql('postgres', 'CREATE DATABASE copy') // die;
	shell("$dump | psql -Xq -h '$dir' -p $subscriber_port -U postgres copy") or die 'no copy of the schema';
	subscriber_sql('copy', "CREATE SUBSCRIPTION everything CONNECTION 'host=$dir port=@{[ port_of(1) ]} user=postgres dbname=postgres' PUBLICATION everything", 60) // die;
	for (1 .. 600)
	{
		return if (subscriber_sql('copy', "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'") // 1) eq '0';
		sleep 0.2;
	}
	die 'the subscriber does not follow';
}

sub set_up
{
	my @elections;

	watch_for_stalls();
	start_cluster($option{seed} % 2);
	configure();
	make_fleet();
	@elections = sort keys %elections;
	sql(1, $_, 60) // die "failed: $_" foreach (
		'CREATE EXTENSION leader_election',
		'CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA leader_election TO app;
		GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app;
		CREATE SCHEMA chaos AUTHORIZATION app',
		'CREATE TABLE chaos.orders (id bigserial PRIMARY KEY, what text, changed int DEFAULT 0)',
		"CREATE PROCEDURE chaos.burn(n int) LANGUAGE plpgsql AS 'BEGIN FOR i IN 1..n LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END'",
		(map { "SELECT leader_election.create_election('$_', $elections{$_})" } @elections),
		join('; ', map { qq(CREATE TABLE chaos."w_$_" (term bigint NOT NULL, candidate text NOT NULL, id bigint NOT NULL,
				written timestamptz DEFAULT clock_timestamp(), PRIMARY KEY (candidate, id));
			ALTER TABLE chaos."w_$_" OWNER TO app;
			CREATE TRIGGER only_leader BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON chaos."w_$_"
			FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('$_'))
		} @elections));
	start_subscriber();
	start_process('resource', 'perl', "$FindBin::RealBin/../chaos/resource.pl", "$dir/resource", "$out/resource");
	spit("$dir/phase", 'warm');
	start_loop('burner', 'SET synchronous_commit = off', "CALL chaos.burn(@{[ int($BURN / 2) ]})");
	start_loop('shop', "INSERT INTO chaos.orders (what) SELECT repeat('x', 100) FROM generate_series(1, 3)",
		'UPDATE chaos.orders SET changed = changed + 1 WHERE id % 7 = 0 AND id > (SELECT max(id) FROM chaos.orders) - 100',
		'DELETE FROM chaos.orders WHERE id < (SELECT max(id) FROM chaos.orders) - 1000');
	background(\&keep_measuring);
	background(\&keep_collecting);
	foreach my $name (sort keys %candidates)
	{
		start_client($name);
		sleep 0.1;
	}
	event('clients', $CLIENTS, 'in', scalar(keys %candidates), 'processes');
	return;
}

# Twice a second, for as long as the file is there
sub start_loop
{
	my ($name, @statements) = @_;
	my $psql = Cluster::psql(1, \@statements, 20, 'postgres') =~ s/application_name=nemesis/application_name=$name/r;

	spit("$dir/$name.on", '');
	return start_process($name, 'sh', '-c', "while [ -e '$dir/$name.on' ]; do $psql; sleep 0.5; done");
}

sub background
{
	my ($code) = @_;
	my $pid = fork // die "fork: $!";

	return $pid if $pid;
	eval { $code->(); 1 } or note_failure($@ =~ s/\s+/ /gr);
	POSIX::_exit(0);
}

sub phase
{
	my ($phase) = @_;

	spit("$dir/phase", $phase);
	event('phase', $phase);
	return;
}

sub keep_measuring
{
	open my $samples, '>>', "$out/samples" or die;
	open my $lives, '>>', "$out/lives" or die;
	while (slurp("$dir/phase") ne 'over' && getppid() == $main)
	{
		my $next = now() + $SAMPLE * 1e6;

		measure_all($samples, $lives);
		$_->flush foreach $samples, $lives;
		sleep max(0.1, ($next - now()) / 1e6);
	}
	return;
}

# --- what is kept for the checker, before it is removed

# What has begun, ended or gone on since the last time that this was possible
my $collected = time();

sub collect_history
{
	my $since = $collected - 20;
	my $now = time();
	my $rows = sql(1, "SELECT election, term, leader, kind, acquired_at, ended_at, reason,
		extract(epoch FROM acquired_at), extract(epoch FROM ended_at)
		FROM leader_election.history WHERE ended_at IS NULL OR ended_at > to_timestamp($since)", 20) // return;

	open my $file, '>>', "$out/history.all" or die;
	print $file "$rows\n";
	close $file;
	$collected = $now;
	return 1;
}

# Rows that are older than any transaction that may still be open, by one snapshot. Until
# when is a constant: what is removed has to be what was read.
# What is collected twice does no harm.
sub collect_writes
{
	my ($until) = @_;
	my @tables = sort keys %elections;
	my $rows = sql(1, join('; ', 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SET LOCAL session_replication_role = replica',
			(map { "SELECT '$_', term, candidate, id, extract(epoch FROM pg_xact_commit_timestamp(xmin))::numeric(20, 6), xmin FROM chaos.w_$_ WHERE written < $until" } @tables),
			(map { "DELETE FROM chaos.w_$_ WHERE written < $until" } @tables), 'COMMIT'), 60) // return;

	open my $file, '>>', "$out/writes" or die;
	print $file "$rows\n";
	close $file;
	return 1;
}

sub keep_collecting
{
	for (my $n = 0; slurp("$dir/phase") ne 'over' && getppid() == $main; $n++)
	{
		collect_history();
		collect_writes('to_timestamp(' . (time() - 30) . ')') if $n % 2;
		sleep 15;
	}
	return;
}

# --- beside

sub look_after_dumps
{
	if ($dump_pid)
	{
		return if running($dump_pid);
		$dump_pid = undef;
		my $well = -e "$dir/dump.done";

		event($well ? 'dumped' : 'dump failed');
		$next_dump = now() + ($well ? $DUMP : 5) * 1e6;
		rename "$dir/dump.new", "$dir/dump" if $well;
		unlink "$dir/dump.done";
	}
	return if now() < $next_dump;
	$dumps++;
	$dump_pid = start_process('pg_dump', 'sh', '-c', "pg_dump -Fc -h '$dir' -p @{[ port_of(1) ]} -U postgres -f '$dir/dump.new' postgres && touch '$dir/dump.done'");
	return;
}

sub restore_dump
{
	my $well = -e "$dir/dump"
	  && defined subscriber_sql('postgres', 'CREATE DATABASE restored')
	  && shell("pg_restore -h '$dir' -p $subscriber_port -U postgres --no-publications --no-subscriptions -d restored '$dir/dump'");
	my $elections = subscriber_sql('restored', 'SELECT count(*) FROM leader_election.election') // 'none';

	event('restored', $well ? 'well' : 'badly', $elections);
	subscriber_sql('postgres', 'DROP DATABASE restored WITH (FORCE)', 30);
	return;
}

# All that was written has come to the subscriber.
sub compare_subscriber
{
	my %sql = (
		orders => "SELECT count(*), sum(id), sum(changed) FROM chaos.orders",
		leases => "SELECT (SELECT count(*) FROM leader_election.election), (SELECT string_agg(election || ' ' || term, ',' ORDER BY election) FROM leader_election.lease)",
	);

	foreach my $name (sort keys %sql)
	{
		my ($here, $there);

		for (my $end = stopwatch() + 60; stopwatch() < $end; sleep 0.5)
		{
			($here, $there) = (sql(1, $sql{$name}) // 'nothing', subscriber_sql('copy', $sql{$name}) // 'nothing there');
			last if $here eq $there;
		}
		event('subscriber', $name, $here eq $there ? 'equal' : substr("here: $here, there: $there", 0, 1000) =~ s/\s/_/gr);
	}
	return;
}

my $snapshots = 0;

sub hold_snapshot
{
	my ($since) = @_;
	my $n = int($since / $HOLD);

	return if $n % 2 == 0 || $snapshots > $n;
	my $left = ($n + 1) * $HOLD - $since;
	my $psql = Cluster::psql(1, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM chaos.orders; SELECT pg_sleep($left); COMMIT", $left + 5, 'postgres')
	  =~ s/application_name=nemesis/application_name=snapshot/r;

	# Where its server ends, it is taken again.
	$snapshots = $n + 1;
	start_process('snapshot', 'sh', '-c', "end=\$((\$(date +%s) + @{[ int($left) ]})); while [ \$(date +%s) -lt \$end ]; do $psql; sleep 1; done");
	event('snapshot', int($left));
	return;
}

# --- phases

sub pass
{
	my ($seconds, $code) = @_;
	my $start = now();

	while (now() < $start + $seconds * 1e6)
	{
		heal_due();
		look_after_clients(0);
		look_after_dumps();
		$code->((now() - $start) / 1e6) if $code;
		sleep 0.2;
	}
	return;
}

# At least for so long, and on a loaded machine until there is enough to compare
sub be_quiet
{
	my ($phase) = @_;
	my $end = now() + 10 * $QUIET * 1e6;

	phase($phase);
	pass($QUIET);
	pass(1) while length slurp("$dir/sampled.$phase") < $SAMPLES && now() < $end;
	return;
}

sub disturb
{
	my $next = 0;

	pass($FAULTS, sub {
		my ($since) = @_;
		my $part = 3 * ($since - $CYCLE * int($since / $CYCLE)) / $CYCLE;

		hold_snapshot($since);
		return if now() < $next;
		inject('day', $part < 1 ? 'worker' : $part < 2);
		$next = now() + (5 + rand(10)) * 1e6;
	});
	return;
}

# What the worker, autovacuum and the clients do when all is over; as at first
sub settle
{
	heal_all();
	for (1 .. 600) { last unless operation_running(); sleep 0.2; }
	heal_all();
	signal_all('CONT');
	start_pooler() unless running(pooler_pid());
	start_server(1) unless server_running(1);
	sql(1, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name IN ('nemesis', 'snapshot') AND pid <> pg_backend_pid()");
	for (1 .. 20) { last if resume_elections(); sleep 1; }
	foreach my $index (split /\n/, sql(1, "SELECT indexrelid::regclass FROM pg_index JOIN pg_class c ON c.oid = indrelid
		WHERE NOT indisvalid AND relnamespace IN ('leader_election'::regnamespace, 'chaos'::regnamespace)") // '')
	{
		sql(1, [ "SET lock_timeout = '5s'", "DROP INDEX $index" ], 10);
	}
	return;
}

# A new worker removes the history that is old, as one does once an hour.
sub renew_worker
{
	sql(1, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'leader_election worker'");
	return;
}

event('start', 'seed', $option{seed}, 'profile', 'day', 'lease', $lease_ms);
event('epoch', int(time() * 1_000_000) - now());
set_up();
event('candidate', $_, $candidates{$_}{kind}) foreach sort keys %candidates;
note_members();
pass($WARM / 2);
renew_worker();
pass($WARM / 2);
be_quiet('begin');
phase('faults');
start_leaks($subscriber_port) if $option{leaks};
disturb();
phase('settle');
settle();
pass($SETTLE / 2);
renew_worker();
pass($SETTLE / 2);
be_quiet('end');
phase('ending');
event('dumps', $dumps);
unlink "$dir/$_.on" foreach qw(burner shop);
kill 'TERM', map { $_->{pid} } values %candidates;
for (my $end = stopwatch() + 20; stopwatch() < $end; sleep 0.2) { last unless grep { running($_->{pid}) } values %candidates; }
kill 'KILL', map { $_->{pid} } grep { running($_->{pid}) } values %candidates;
compare_subscriber();
restore_dump();
phase('over');
collect_history() || sleep(1) && collect_history();
collect_writes("'infinity'") or note_failure('writes were not collected');
shell("pg_ctl -D '$dir/disk/subscriber' -m immediate -w stop");
stop_servers();
event('end');
