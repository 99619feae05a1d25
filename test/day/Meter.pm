# What is taken up, every few seconds: lines of $out/samples,
#
#	TIME PHASE KEY VALUE
#
# and of $out/lives, for each process: TIME PID KIND KILOBYTES FILES SOCKETS. Memory is
# what a process has for itself (Pss_Anon): what is shared with others is the server's
# buffers, which are used when they are touched first.

package Meter;

use strict;
use warnings;

use Cluster;
use Exporter qw(import);
use List::Util qw(max sum0);

our @EXPORT = qw(measure_all median);

my $log_read = 0;		# bytes of the server's log
my ($last_lsn, $last_terms);
my $last_time;
my $serial = 0;

# These keep files of all tables open, by and by
my $WRITERS = qr/^server\.(?:checkpointer|background_writer|io_worker|autovacuum_worker)/;

my $TABLES = q{SELECT 'size.' || relname, pg_relation_size(oid) / 1024 FROM pg_class
	WHERE relnamespace = 'leader_election'::regnamespace AND relkind IN ('r', 'i')
	UNION ALL SELECT 'age.' || relname, age(relfrozenxid) FROM pg_class
	WHERE relnamespace = 'leader_election'::regnamespace AND relkind = 'r'
	UNION ALL SELECT 'multiage.' || relname, mxid_age(relminmxid) FROM pg_class
	WHERE relnamespace = 'leader_election'::regnamespace AND relkind = 'r'
	UNION ALL SELECT 'dead.' || relname, n_dead_tup FROM pg_stat_all_tables WHERE schemaname = 'leader_election'
	UNION ALL SELECT 'rows.' || relname, n_live_tup FROM pg_stat_all_tables WHERE schemaname = 'leader_election'};
my $REST = q{SELECT 'locks.' || locktype, count(*) FROM pg_locks GROUP BY 1
	UNION ALL SELECT 'notify.pages', pg_notification_queue_usage() * 1048576
	UNION ALL SELECT 'slots.kept_kB', coalesce(max(pg_current_wal_lsn() - restart_lsn), 0) / 1024 FROM pg_replication_slots
	UNION ALL SELECT 'prepared', count(*) FROM pg_prepared_xacts
	UNION ALL SELECT 'lsn', pg_current_wal_lsn() - '0/0'
	UNION ALL SELECT 'database.age', age(datfrozenxid) FROM pg_database WHERE datname = 'postgres'
	UNION ALL SELECT 'elections.vacant', count(*) FILTER (WHERE leader IS NULL) FROM leader_election.status
	UNION ALL SELECT 'elections.all', count(*) FROM leader_election.status
	UNION ALL SELECT 'candidates', count(*) FROM leader_election.candidates
	UNION ALL SELECT 'terms', sum(term & 4194303) FROM leader_election.lease
	UNION ALL SELECT 'catalog.size', sum(pg_relation_size(oid)) / 1024 FROM pg_class
		WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'i')};

sub median
{
	my @sorted = sort { $a <=> $b } @_;

	return $sorted[ $#sorted / 2 ];
}

# What the title of a server process says that it is
sub kind_of
{
	my ($pid) = @_;
	my $title = slurp("/proc/$pid/cmdline") =~ s/\0.*//sr;

	return unless $title =~ s/^postgres: server1: //;
	return 'walsender' if $title =~ /^walsender /;
	return 'client_backend' if $title =~ /\(\d+\)|\[local\]/;
	return $title =~ s/^((?:\S+ )?(?:worker|launcher|writer|receiver)).*/$1/r =~ s/ (?:for|\d).*//r =~ s/\s+$//r =~ tr/ /_/r;
}

# Memory in kilobytes, descriptors, sockets; nothing if it has ended
sub taken_by
{
	my ($pid) = @_;
	my ($memory) = slurp("/proc/$pid/smaps_rollup") =~ /^Pss_Anon:\s+(\d+) kB/m or return;

	opendir my $folder, "/proc/$pid/fd" or return;
	my @files = grep { !/^\./ } readdir $folder;
	my $sockets = grep { (readlink "/proc/$pid/fd/$_" // '') =~ /^socket:/ } @files;
	return ($memory, scalar(@files), $sockets);
}

# All of the server, and all clients with what they have started
sub processes
{
	my %kind;
	my $postmaster = postmaster(1);

	if ($postmaster)
	{
		$kind{$postmaster} = 'server.postmaster';
		foreach my $pid (server_processes(1))
		{
			my $kind = kind_of($pid) // next;

			$kind{$pid} = "server.$kind";
		}
	}
	foreach (split /\n/, slurp("$dir/pids") . slurp("$dir/leaking"))
	{
		my ($pid, $kind) = split / /;
		my @children = split ' ', slurp("/proc/$pid/task/$pid/children");

		$kind{$pid} = "client.$kind";
		$kind{$_} = "client.child_of_$kind" foreach @children;
	}
	return %kind;
}

sub count_files
{
	my ($folder) = @_;
	my @files = glob "$dir/disk/server1/$folder/*";

	# Tables and indexes, but not their forks, which come when they are first written
	@files = grep { m{/\d+$} } @files if $folder =~ /^base/;
	return scalar(@files);
}

# New lines of the server's log, by what they are
sub read_log
{
	my %lines = map { $_ => 0 } qw(change vacuum LOG ERROR FATAL WARNING other);

	open my $log, '<', "$out/server1.log" or return %lines;
	seek $log, $log_read, 0;
	while (<$log>)
	{
		my ($level) = /^\S+ \S+ \S+ \[\d+\] \S+ [^:]*: (\w+):  /;

		$lines{ !$level ? 'other' : /automatic (?:aggressive )?(?:vacuum|analyze)/ ? 'vacuum' : /LOG:  leader_election: election "/ ? 'change' : exists $lines{$level} ? $level : 'other' }++;
	}
	$log_read = tell $log;
	return %lines;
}

# How long it takes to be answered: a new process of psql, and of the server
sub login_ms
{
	my $start = now();

	return defined sql(1, 'SELECT 1', 20) ? (now() - $start) / 1000 : 20_000;
}

sub measure_all
{
	my ($file, $lives) = @_;
	my ($time, $phase) = (now(), slurp("$dir/phase"));
	my (%by_kind, %values);
	my %kind = processes();

	foreach my $pid (sort { $a <=> $b } keys %kind)
	{
		my @taken = taken_by($pid) or next;

		print $lives "$time $phase $pid $kind{$pid} @taken\n";
		push @{ $by_kind{ $kind{$pid} } }, \@taken;
	}
	foreach my $kind (keys %by_kind)
	{
		my @all = @{ $by_kind{$kind} };

		$values{"n.$kind"} = @all;
		$values{"memory.$kind"} = median(map { $_->[0] } @all);
		$values{"memory.most.$kind"} = max(map { $_->[0] } @all);
		$values{"files.$kind"} = max(map { $_->[1] } @all);
		$values{"sockets.$kind"} = max(map { $_->[2] } @all);
	}
	foreach my $side (qw(server client))
	{
		my @all = map { @{ $by_kind{$_} } } grep { /^$side/ && !/$WRITERS/ } keys %by_kind;

		$values{"sum.memory.$side"} = sum0(map { $_->[0] } @all);
		$values{"sum.files.$side"} = sum0(map { $_->[1] } @all);
		$values{"sum.sockets.$side"} = sum0(map { $_->[2] } @all);
	}
	my $rows = sql(1, $serial++ % 2 ? $REST : [ $TABLES, $REST ], 20);

	foreach (split /\n/, $rows // '')
	{
		my ($key, $value) = split /\|/;

		$values{$key} = $value;
	}
	$values{"folder.$_"} = count_files($_) foreach qw(base/* pg_xact pg_subtrans pg_commit_ts pg_multixact/offsets pg_multixact/members pg_notify pg_replslot pg_logical/snapshots pg_wal);
	my %lines = read_log();
	my $minutes = $last_time ? ($time - $last_time) / 60e6 : undef;

	if ($minutes)
	{
		$values{"log.$_"} = $lines{$_} / $minutes foreach keys %lines;
	}
	if (defined(my $lsn = delete $values{lsn}))
	{
		$values{'wal.MB'} = ($lsn - $last_lsn) / 1048576 / $minutes if $minutes && $last_lsn;
		$last_lsn = $lsn;
	}
	else
	{
		$last_lsn = undef;
	}
	if (defined(my $terms = delete $values{terms}))
	{
		$values{'terms.begun'} = ($terms - $last_terms) / $minutes if $minutes && defined $last_terms;
		$last_terms = $terms;
	}
	$values{'machine.login_ms'} = login_ms();
	($values{'machine.load'}) = split / /, slurp('/proc/loadavg');
	$last_time = $time;

	# On a loaded machine this takes seconds, in which a phase may have ended.
	$phase = 'between' if slurp("$dir/phase") ne $phase;
	spit("$dir/sampled.$phase", slurp("$dir/sampled.$phase") . 'x');
	print $file "$time $phase $_ " . sprintf('%.6g', $values{$_}) . "\n" foreach sort keys %values;
	return;
}

1;
