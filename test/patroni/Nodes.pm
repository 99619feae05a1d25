# The nodes of a cluster that Patroni looks after, as long as faults go on.
#
#	nodes_in($folder, $database, { 1 => { host => ..., sql => PORT, rest => PORT }, ... });
#	primary();                    1, 2..., or undef: who holds the key in etcd
#	well($synchronous);           of two nodes: one primary, and a standby that follows it
#	freeze(1); thaw_server(1); thaw_patroni(1);
#	kill_node(1); start_node(1);
#	query(1, $sql, $sql...);      statements at a node, as superuser

package Nodes;

use strict;
use warnings;

use Exporter qw(import);
use IO::Socket::INET;
use POSIX ();

our @EXPORT = qw(first_line freeze is kill_node kill_server nodes_in patroni_pid primary query
  server_pids start_node switch_over synchronous thaw_patroni thaw_server well);

my ($folder, $database, %node);

sub nodes_in
{
	my ($nodes);

	($folder, $database, $nodes) = @_;
	%node = %$nodes;
	return;
}

sub first_line
{
	my ($path) = @_;

	open my $file, '<', "$folder/$path" or return;
	my $line = <$file>;
	chomp $line if defined $line;
	return $line;
}

# Whether Patroni at a node says "yes" to a question of its REST interface, within
# a second: it may be frozen.
sub is
{
	my ($n, $question) = @_;
	my $socket = IO::Socket::INET->new(PeerAddr => $node{$n}{host}, PeerPort => $node{$n}{rest},
		Timeout => 1) // return 0;
	my ($wanted, $answer) = ('', '');

	print $socket "GET /$question HTTP/1.0\r\n\r\n";
	vec($wanted, fileno $socket, 1) = 1;
	return 0 unless select $wanted, undef, undef, 1;
	local $/ = undef;
	$answer = <$socket> // '';
	return $answer =~ m{^HTTP/1\.\d 200};
}

sub primary
{
	return (grep { is($_, 'primary') } sort keys %node)[0];
}

sub well
{
	my ($synchronous) = @_;
	my $primary = primary() // return 0;
	my $other = 3 - $primary;

	return 0 unless is($other, $synchronous ? 'synchronous' : 'replica') && !is($other, 'primary');
	my $following = query($primary, q(SELECT string_agg(sync_state, ' ') FROM pg_stat_replication
		WHERE state = 'streaming')) // '';
	return $following eq ($synchronous ? 'sync' : 'async');
}

# undef if it fails
sub query
{
	my ($n, @sql) = @_;

	open my $psql, '-|', 'sh', '-c', 'exec timeout 20 psql "$@" 2>>"$0"', "$folder/query.log",
	  qw(-XqAt -v ON_ERROR_STOP=1 -d),
	  "host=$node{$n}{host} port=$node{$n}{sql} user=postgres dbname=$database connect_timeout=2",
	  map { ('-c', $_) } @sql
	  or die "psql: $!";
	local $/ = undef;
	my $said = <$psql> // '';
	close $psql or return;
	$said =~ s{\n\z}{};
	return $said;
}

sub run
{
	my (@command) = @_;

	system('sh', '-c', 'cd "$0" && exec "$@" >>runner.log 2>&1', $folder, @command) == 0
	  or die "failed, see runner.log: @command\n";
	return;
}

sub patroni_pid { return first_line("node$_[0].pid"); }

# The server, with all its processes
sub server_pids
{
	my ($n) = @_;
	my $pid = first_line("node$n/postmaster.pid") // return;

	return ($pid, split ' ', `pgrep -P $pid`);
}

sub freeze
{
	my ($n) = @_;

	kill 'STOP', patroni_pid($n);
	# Twice: its children, too, that were made meanwhile
	kill 'STOP', server_pids($n) foreach 1, 2;
	return;
}

sub thaw_server { kill 'CONT', reverse server_pids($_[0]); return; }
sub thaw_patroni { kill 'CONT', patroni_pid($_[0]); return; }

sub kill_server
{
	my ($n) = @_;
	my ($pid) = server_pids($n);

	kill 'KILL', $pid if $pid;
	return;
}

sub kill_node
{
	my ($n) = @_;

	kill 'KILL', patroni_pid($n);
	kill_server($n);
	return;
}

sub start_node
{
	my ($n) = @_;

	run('sh', '-c', "patroni node$n.yml >>node$n.log 2>&1 & echo \$! >node$n.pid");
	return;
}

sub switch_over
{
	my ($from) = @_;

	run(qw(patronictl -c node1.yml switchover --force --leader), "node$from",
		'--candidate', 'node' . (3 - $from));
	return;
}

sub synchronous
{
	my ($on) = @_;

	run(qw(patronictl -c node1.yml edit-config --force -s),
		'synchronous_mode=' . ($on ? 'true' : 'false'));
	return;
}

1;
