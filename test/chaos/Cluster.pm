# What the chaos run plays with: two or three servers, all but one of which are
# standbys, a pooler, proxies that are the network, and processes that can be
# started, stopped and killed. How standbys follow is in Replication.pm.
#
# Everything is in $dir, and what is to be checked later in $out. Each fault and
# each change of the cluster is a line of $out/events:
#
#	TIME KIND REST...		microseconds of CLOCK_BOOTTIME, as in all logs

package Cluster;

use strict;
use warnings;

use Exporter qw(import);
use IO::Socket::INET;
use POSIX ();
use Time::HiRes qw(clock_gettime sleep CLOCK_BOOTTIME);

our @EXPORT = qw(
  $dir $out $edition $lease_ms $clock @servers $synchronous_commit $workers $locks workers_of set_workers now stopwatch event note_failure slurp spit signal_all
  start_process running note_end
  start_cluster stop_servers server_running start_server primary standbys standby
  set_primary sql sql_async port_of write_settings
  proxy_pid client_connections pooled_connection start_pooler
  pooler_pid operation operation_running server_processes left_processes postmaster ctl
);

our ($dir, $out);
our $edition = 'extension';	# or portable
our $clock = '';	# the library that sets the servers' wall clocks
our $lease_ms = 1500;
our @servers = (1, 2);
our $synchronous_commit = 'on';
our $workers = 16;		# max_worker_processes, but where a restart has changed it
our $locks = 64;		# max_locks_per_transaction

my %port;			# of servers (1, ...), proxies (c1, ..., r1, ..., b), pooler
my %proxy;			# process ids of the proxies
my $pooler_pid;
my %children;		# processes without anybody who waits for them
my %ends;			# {process id} = what to note when it has ended
my $operation;		# process id of what is done to the servers now
my $events;
my @CRASHES = (4, 6, 7, 8, 11);	# ILL, ABRT, BUS, FPE, SEGV
my $TICK_BYTES = 17;	# of a line of ticks.out

sub now { return int(clock_gettime(CLOCK_BOOTTIME) * 1_000_000); }

# Seconds of the run, as far as the machine has kept up: what comes late of a
# timer of 10 ms does not count.
sub stopwatch { return (-s "$out/ticks.out") / $TICK_BYTES / 100; }

sub event
{
	open $events, '>>', "$out/events" or die "$out/events: $!" unless $events;
	syswrite $events, join(' ', now(), @_) . "\n";
	return;
}

# The run itself does not work: that is a failure, too.
sub note_failure
{
	event('failure', @_);
	return;
}

sub slurp
{
	my ($path) = @_;

	open my $file, '<', $path or return '';
	local $/ = undef;
	return scalar(<$file>) // '';
}

# In one step, so that no reader finds half of it
sub spit
{
	my ($path, $text) = @_;

	open my $file, '>', "$path.new" or die "$path: $!";
	print $file $text;
	close $file or die "$path: $!";
	rename "$path.new", $path or die "$path: $!";
	return;
}

# Not by rand(): a run with the same seed may be under way beside.
sub free_port
{
	for (1 .. 100)
	{
		my $port = 10_000 + now() % 20_000;

		next if grep { $_ == $port } values %port;
		return $port
		  if IO::Socket::INET->new(
			LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 1);
	}
	die 'no free port';
}

# --- processes

# Starts a program that does not outlive this one, with its output in $out.
sub start_process
{
	my ($name, @command) = @_;
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		open STDIN, '<', '/dev/null';
		open STDOUT, '>>', "$out/$name.out";
		open STDERR, '>&', \*STDOUT;
		exec qw(setpriv --pdeathsig KILL), @command or POSIX::_exit(127);
	}
	$children{$pid} = 1;
	return $pid;
}

# Forgets the children that have ended.
sub reap
{
	while ((my $pid = waitpid(-1, POSIX::WNOHANG())) > 0)
	{
		my $end = delete $ends{$pid};

		note_failure("process $pid has crashed: signal " . ($? & 127)) if grep { ($? & 127) == $_ } @CRASHES;
		event($? ? 'futile' : (), @$end) if $end;
		delete $children{$pid};
		$operation = undef if $operation && $pid == $operation;
	}
	return;
}

sub running
{
	my ($pid) = @_;

	reap();
	return $pid && $children{$pid};
}

# Notes that a process has ended; if not well, the word futile comes before the rest.
sub note_end
{
	my ($pid, @event) = @_;

	$ends{$pid} = \@event;
	return;
}

# Does something to the servers in the background, one thing at a time.
sub operation
{
	my ($name, $code) = @_;

	reap();
	return 0 if $operation;
	$operation = fork // die "fork: $!";
	if ($operation == 0)
	{
		srand($$);
		event('doing', $name);
		eval { $code->(); 1 } or note_failure("$name: $@" =~ s/\s+/ /gr);
		event('done', $name);
		POSIX::_exit(0);
	}
	$children{$operation} = 1;
	return 1;
}

sub operation_running
{
	reap();
	return defined $operation;
}

# --- servers

sub primary { return slurp("$dir/primary") + 0; }
sub port_of { return $port{ $_[0] }; }

sub standbys
{
	my $p = primary();

	return grep { $_ != $p } @servers;
}

# One of them
sub standby
{
	my @standbys = standbys();

	return $standbys[ @standbys > 1 ? int(rand(@standbys)) : 0 ];
}

# From now on clients of the pooler, and standbys that connect again, come to it.
sub set_primary
{
	my ($n) = @_;

	spit("$dir/primary", $n);
	event('workers', workers_of($n));
	spit("$dir/$_.target", $port{$n}) foreach 'b', map { "r$_" } standbys();
	kill 'HUP', $proxy{b};
	event('moved', 'pooler', $n);
	return;
}

sub postmaster
{
	my ($n) = @_;
	my ($pid) = slurp("$dir/disk/server$n/postmaster.pid") =~ /^(\d+)/;

	return $pid && kill(0, $pid) ? $pid : undef;
}

sub server_running { return defined postmaster($_[0]); }

# The postmaster's children
sub server_processes
{
	my ($n) = @_;
	my $postmaster = postmaster($n) // return;

	return grep { /^\d+$/ } split ' ',
	  slurp("/proc/$postmaster/task/$postmaster/children");
}

# What a dead postmaster has left: its children keep the folder that they worked in. Where
# each stands is written to "left", if there is a gdb.
sub left_processes
{
	my ($n) = @_;
	my @left;

	foreach my $pid (map { m{/(\d+)$} } glob '/proc/[0-9]*')
	{
		next unless (readlink("/proc/$pid/cwd") // '') eq "$dir/disk/server$n";
		push @left, join ' ', $pid, slurp("/proc/$pid/stat") =~ /\) (\w)/, slurp("/proc/$pid/cmdline") =~ tr/\0/ /r;
		system "timeout 20 gdb -batch -p $pid -ex bt >>'$out/left' 2>&1";
	}
	return join('; ', @left) || 'nothing';
}

sub signal_all
{
	my ($signal) = @_;

	foreach my $n (@servers)
	{
		my $postmaster = postmaster($n) // next;

		kill $signal, $postmaster, server_processes($n);
	}
	kill $signal, keys %children;
	return;
}

# pg_ctl, which is given up after a while
sub ctl
{
	my ($n, @arguments) = @_;

	local %ENV = %ENV;
	@ENV{qw(LD_PRELOAD CLOCK_FILE)} = ($clock, "$dir/clock") if $clock && grep { /start/ } @arguments;

	return system("timeout -k 1 60 pg_ctl -D '$dir/disk/server$n' "
		  . "-l '$out/server$n.log' -s @arguments >>'$out/ctl.out' 2>&1") == 0;
}

sub start_server { return ctl($_[0], '-w -t 50 start'); }

# A query over the server's own socket: no proxy in between. Returns undef if
# that fails or takes too long. Several, in a list, are transactions of their own.
sub psql
{
	my ($n, $sql, $seconds, $database) = @_;

	my @statements = ref $sql ? @$sql : ($sql);

	s/'/'\\''/g foreach @statements;
	$database //= 'postgres';
	return "timeout -k 1 $seconds psql -XqAt -v ON_ERROR_STOP=1 "
	  . "'host=$dir port=$port{$n} user=postgres dbname=$database "
	  . "application_name=nemesis' " . join(' ', map { "-c '$_'" } @statements) . " 2>>'$out/psql.out'";
}

sub sql
{
	my ($n, $sql, $seconds, $database) = @_;
	my $output = readpipe(psql($n, $sql, $seconds // 3, $database));

	return if $? != 0;
	chomp $output;
	return $output;
}

# The same in the background; nobody looks at the answer.
sub sql_async
{
	my ($n, $sql, $seconds, $database) = @_;

	return start_process('psql', 'sh', '-c', psql($n, $sql, $seconds // 10, $database));
}

# How many slots a server has for workers, since it was started
sub workers_of
{
	my ($n) = @_;
	my ($slots) = slurp("$dir/disk/server$n/workers.conf") =~ /(\d+)/;

	return $slots // $workers;
}

# For a server that is about to be started. A standby needs as many slots as its
# primary, and so has all of them, from write_settings() on.
sub set_workers
{
	my ($n, $slots) = @_;

	event('workers', $slots) if $n == primary();
	spit("$dir/disk/server$n/workers.conf", "max_worker_processes = $slots\n");
	return;
}

sub write_settings
{
	my ($n) = @_;

	open my $conf, '>>', "$dir/disk/server$n/postgresql.conf" or die $!;
	print $conf qq(
listen_addresses = '127.0.0.1'
port = $port{$n}
unix_socket_directories = '$dir'
cluster_name = 'server$n'
fsync = off
wal_level = replica
max_wal_senders = 10
max_connections = 150
max_worker_processes = $workers
max_prepared_transactions = 5
max_locks_per_transaction = $locks
hot_standby = on
synchronous_commit = $synchronous_commit
track_commit_timestamp = on
wal_log_hints = on
wal_keep_size = '64MB'
min_wal_size = '32MB'
max_wal_size = '128MB'
shared_buffers = '64MB'
wal_receiver_timeout = '3s'
wal_sender_timeout = '3s'
wal_retrieve_retry_interval = '200ms'
autovacuum_naptime = '5s'
log_line_prefix = '%m [%p] %e %b/%a: '
log_timezone = 'UTC'
log_checkpoints = off
log_min_messages = warning
leader_election.lease_duration = '$lease_ms ms'
include_if_exists = 'chaos.conf'
include_if_exists = 'pressure.conf'
include_if_exists = 'workers.conf'
);
	close $conf;
	spit("$dir/disk/server$n/pressure.conf", '');
	spit("$dir/disk/server$n/workers.conf", '');
	return;
}

# --- the network and the pooler

sub proxy_pid { return $proxy{ $_[0] }; }

# To whichever server may be written; each of these looks first at another one
sub client_connections
{
	my ($name, $user) = @_;
	my @order = @servers;
	my @connections;

	foreach (@servers)
	{
		push @connections, join ' ', "application_name=$name", 'user=' . ($user // 'app'),
		  'dbname=postgres',
		  'host=' . join(',', map { '127.0.0.1' } @order),
		  'port=' . join(',', map { $port{"c$_"} } @order),
		  'connect_timeout=2 target_session_attrs=read-write';
		push @order, shift @order;
	}
	return @connections;
}

sub pooled_connection
{
	my ($name) = @_;

	return "application_name=$name user=app dbname=pool host=127.0.0.1 "
	  . "port=$port{pooler} connect_timeout=2";
}

sub pooler_pid { return $pooler_pid; }

sub start_pooler
{
	my ($pgbouncer) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}),
	  '/usr/sbin';

	$pooler_pid = start_process('pooler', $pgbouncer, "$dir/pgbouncer.ini");
	return;
}

sub start_network
{
	$port{pooler} = free_port();
	foreach my $name ((map { ("c$_", "r$_") } @servers), 'b')
	{
		my ($n) = $name =~ /c(\d)/;

		$port{$name} = free_port();
		spit("$dir/$name.target", $port{ $n // 1 });
		$proxy{$name} = start_process("proxy-$name", "$dir/proxy", $port{$name},
			"$dir/$name.target");
	}
	spit("$dir/pgbouncer.ini", qq([databases]
pool = host=127.0.0.1 port=$port{b} dbname=postgres user=app pool_size=4
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port{pooler}
unix_socket_dir =
auth_type = any
pool_mode = transaction
server_round_robin = 1
server_login_retry = 0.2
server_connect_timeout = 2
query_wait_timeout = 3
ignore_startup_parameters = extra_float_digits
));
	start_pooler();
	return;
}

# --- from nothing

# odd: with the library preloaded, if there is one, and with checksums of data pages, which servers up to
# 17 have only where initdb is told so
sub start_cluster
{
	my ($odd) = @_;
	my $checksums = $odd ? '--data-checksums' : '';

	start_process('ticks', $^X, '-MTime::HiRes=sleep,clock_gettime,CLOCK_BOOTTIME', '-e',
		'$| = 1; printf "%016d\n", clock_gettime(CLOCK_BOOTTIME) * 1e6 while sleep 0.01');
	$port{$_} = free_port() foreach @servers;
	spit("$dir/clock", "+0\n");
	start_network();
	system("initdb -D '$dir/disk/server1' -U postgres -A trust -E UTF8 --no-locale -N $checksums "
		  . ">>'$out/ctl.out' 2>&1") == 0
	  or die 'initdb failed';
	open my $conf, '>>', "$dir/disk/server1/postgresql.conf" or die $!;
	print $conf "shared_preload_libraries = 'leader_election'\n" if $odd && $edition eq 'extension';
	close $conf;
	open my $hba, '>>', "$dir/disk/server1/pg_hba.conf" or die $!;
	print $hba "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n";
	close $hba;
	write_settings(1);
	spit("$dir/disk/server1/chaos.conf", '');
	set_primary(1);
	start_server(1) or die 'the primary does not start';
	return;
}

sub stop_servers
{
	foreach my $n (standbys(), primary())
	{
		ctl($n, '-m fast -w -t 20 stop') || ctl($n, '-m immediate -w -t 20 stop')
		  if server_running($n);
	}
	return;
}

1;
