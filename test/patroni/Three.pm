# Three nodes with a host for each: etcd, Patroni and PostgreSQL; a fourth one, without
# etcd, whose server streams from a standby and is never promoted; and PgBouncer on a
# host of its own, where a script asks the nodes which of them is the primary.
#
#	make_cluster($folder, \%setting);
#	start('etcd', 1); start('patroni', 1); start_pooler();
#	look_after();          starts what has ended, but what is_down('etcd', 1)
#	settled_cluster();     one primary, which three follow, those that have to confirm among them
#	ask_for_switchover($from);
#	make_anew();           copies the nodes that do not come back by themselves
#	note(@words)           a line of the events: what was done, and when
#
# Of %setting: mode (of synchronous_mode), dcs, failsafe (false, true), timeout
# (of senders and receivers of WAL, in seconds), preload.

package Three;

use strict;
use warnings;

use Exporter qw(import);
use Hosts;
use Nodes;
use POSIX ();
use Time::HiRes qw(clock_gettime CLOCK_BOOTTIME);

our @EXPORT = qw(ask_for_switchover look_after make_anew make_cluster note now_us pid_of settled_cluster
  runs start start_pooler start_program write_file %is_down @NODES @VOTERS);

our @VOTERS = (1 .. 3);    # of etcd; one of them is the primary
our @NODES = (1 .. 4);
our %is_down;              # {"etcd 1"}: was killed, and is not to be started yet

my ($folder, %setting, %pid, %is_child);

sub now_us { return int(clock_gettime(CLOCK_BOOTTIME) * 1e6); }

# For the checker, too: see ../chaos/Check/Events.pm
sub note
{
	open my $file, '>>', "$folder/out/events" or die "events: $!";
	print $file join(' ', now_us(), @_) . "\n";
	close $file;
	return;
}

sub write_file
{
	my ($path, $text, $mode) = @_;

	open my $file, '>', "$folder/$path.new" or die "$path: $!";
	print $file $text;
	close $file or die "$path: $!";
	chmod $mode // oct(644), "$folder/$path.new";
	rename "$folder/$path.new", "$folder/$path" or die "$path: $!";
	return;
}

# Starts a program that does not outlive this one, with its output in a log.
sub start_program
{
	my ($log, @command) = @_;
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		chdir $folder;
		open STDIN, '<', '/dev/null';
		open STDOUT, '>>', "$folder/out/$log.log";
		open STDERR, '>&', \*STDOUT;
		exec qw(setpriv --pdeathsig KILL), @command or POSIX::_exit(127);
	}
	$is_child{$pid} = 1;
	return $pid;
}

# Whether it runs. Also forgets the others that have ended.
sub runs
{
	my ($pid) = @_;

	foreach my $child (keys %is_child)
	{
		delete $is_child{$child} if waitpid($child, POSIX::WNOHANG()) > 0;
	}
	return $pid && $is_child{$pid};
}

sub pid_of { return $pid{"@_"}; }

# The program of Patroni that is so called: the one that is installed, or of $PATRONI
sub patroni
{
	my ($name) = @_;

	return $ENV{PATRONI} ? ('/usr/bin/python3', "$ENV{PATRONI}/$name.py") : ($name);
}

sub patroni_config
{
	my ($n) = @_;
	my $host = address_of("node$n");
	my $dcs = join ', ', map { address_of("node$_") . ':2379' } @VOTERS;
	my $tags = $n == 4 ? 'tags: {replicatefrom: node3, nofailover: true, nosync: true}' : '';
	my $preload = $setting{preload} ? 'shared_preload_libraries: leader_election' : '';

	return <<"END";
scope: app
name: node$n
$setting{dcs}: {hosts: [$dcs]}
restapi: {listen: $host:8008, connect_address: $host:8008}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 2
    retry_timeout: 5
    synchronous_mode: $setting{mode}
    failsafe_mode: $setting{failsafe}
    postgresql:
      use_pg_rewind: true
      parameters:
        $preload
        max_worker_processes: 16
        max_connections: 200
        wal_sender_timeout: $setting{timeout}s
        wal_receiver_timeout: $setting{timeout}s
        track_commit_timestamp: on
        fsync: off
        log_line_prefix: '%m [%p] %e %b/%a: '
  initdb: [encoding: UTF8, locale: C]
postgresql:
  listen: $host:5432
  connect_address: $host:5432
  data_dir: node$n
  authentication:
    superuser: {username: postgres}
    replication: {username: replicator}
  pg_hba:
    - host all all 192.0.2.0/24 trust
    - host replication all 192.0.2.0/24 trust
  parameters: {unix_socket_directories: ''}
$tags
END
}

# What the pooler's host does all the time: PgBouncer goes where the primary is. Patroni's
# callbacks are not enough for that. One may be lost with its Patroni; and a Patroni that
# comes back beside an old primary calls on_start with "primary", just before it demotes it.
sub follower
{
	my $hosts = join ' ', map { address_of("node$_") } @VOTERS;

	return <<"END";
#!/bin/sh
at=
while sleep 0.5; do
	for host in $hosts; do
		if [ "\$host" != "\$at" ] && curl -sf -m 1 -o /dev/null "http://\$host:8008/primary"; then
			at=\$host
			echo "\$(date +%s.%N) \$at"
			echo "* = host=\$at port=5432 user=app pool_size=40" >primary.new
			mv primary.new primary.ini
			kill -HUP "\$(cat pooler.pid)"
		fi
	done
done
END
}

sub start_pooler
{
	my ($pgbouncer) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin';

	$pid{pooler} = start_program('pooler', on_host('pooler', $pgbouncer // die('no pgbouncer'), 'pgbouncer.ini'));
	write_file('pooler.pid', "$pid{pooler}\n");
	return;
}

sub start
{
	my ($what, $n) = @_;
	my $host = address_of("node$n");
	my @command = $what eq 'patroni' ? (patroni('patroni'), "node$n.yml") : (
		'etcd', '--name', "node$n", '--data-dir', "etcd$n", $setting{dcs} eq 'etcd' ? '--enable-v2' : (),
		'--listen-client-urls', "http://$host:2379", '--advertise-client-urls', "http://$host:2379",
		'--listen-peer-urls', "http://$host:2380", '--initial-advertise-peer-urls', "http://$host:2380",
		'--initial-cluster', join(',', map { "node$_=http://" . address_of("node$_") . ':2380' } @VOTERS),
		qw(--initial-cluster-token app --heartbeat-interval 200 --election-timeout 2000));

	$pid{"$what $n"} = start_program("$what$n", on_host("node$n", @command));
	write_file("node$n.pid", $pid{"$what $n"} . "\n") if $what eq 'patroni';
	return;
}

sub look_after
{
	foreach my $program ((map { "etcd $_" } @VOTERS), map { "patroni $_" } @NODES)
	{
		start(split / /, $program) unless runs($pid{$program}) || $is_down{$program};
	}
	start_pooler() unless runs($pid{pooler});
	return;
}

sub make_cluster
{
	my ($where, $settings) = @_;

	$folder = $where;
	%setting = %$settings;
	nodes_in($folder, 'postgres', { map { $_ => { host => address_of("node$_"), sql => 5432, rest => 8008 } } @NODES });
	write_file('primary.ini', '* = host=' . address_of('node1') . " port=5432 user=app pool_size=40\n");
	write_file('pgbouncer.ini', <<"END");
[databases]
%include primary.ini
[pgbouncer]
listen_addr = @{[ address_of('pooler') ]}
listen_port = 6432
unix_socket_dir =
auth_type = any
server_connect_timeout = 2
%include $FindBin::RealBin/../../docs/pgbouncer.ini
END
	start_pooler();
	write_file("node$_.yml", patroni_config($_)) foreach @NODES;
	write_file('follow', follower(), oct(755));
	start_program('follow', on_host('pooler', './follow'));
	start('etcd', $_) foreach @VOTERS;
	return;
}

# Each standby asked, and what the primary says of who follows it. The fourth node may
# follow any standby, or the primary.
sub settled_cluster
{
	my @primaries = grep { is($_, 'primary') } @NODES;

	return 0 unless @primaries == 1;
	return 0 if grep { $_ != $primaries[0] && !is($_, 'replica') } @NODES;
	my $follow = query($primaries[0], q(SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state )
		  . ($setting{mode} eq 'false' ? q(= 'async') : q(IN ('sync', 'quorum')))) // 0;

	return $follow >= ($setting{mode} eq 'true' ? 1 : 2);
}

# What an operator does with a node that Patroni does not bring back by itself: it is copied
# from the primary. Which ones
sub make_anew
{
	my @primaries = grep { is($_, 'primary') } @NODES;

	return unless @primaries == 1;
	my $follow = query($primaries[0], q(SELECT string_agg(application_name, ' ') FROM pg_stat_replication WHERE state = 'streaming')) // '';
	my @lost = grep { $_ != $primaries[0] && ($_ == 4 ? !is($_, 'replica') : $follow !~ /node$_/) } @NODES;

	foreach my $n (@lost)
	{
		note('anew', "node$n");
		print "  node$n does not come back: it is copied\n";
		start_program('reinit', qw(timeout -k 1 45), patroni('patronictl'), '-c', 'node1.yml', 'reinit', '--force', 'app', "node$n");
	}
	return @lost;
}

# In the background; what is said is in a log.
sub ask_for_switchover
{
	my ($from) = @_;

	return start_program('switchovers', qw(timeout -k 1 45), patroni('patronictl'), '-c', 'node1.yml', 'switchover', '--force',
		'--leader', "node$from", 'app');
}

1;
