# What takes up more and more, of each kind that verdict.pl has a bound for: each of
# these has to be named when it is there.

package Leaks;

use strict;
use warnings;

use Cluster;
use Exporter qw(import);

our @EXPORT = qw(start_leaks);

sub session
{
	my ($name, @statements) = @_;
	my $psql = Cluster::psql(1, \@statements, 3600, 'postgres') =~ s/application_name=nemesis/application_name=leak_$name/r;

	# Until the run ends, also after a crash of the server
	return start_process("leak.$name", 'sh', '-c', "while :; do $psql; sleep 1; done");
}

sub start_leaks
{
	my ($subscriber_port) = @_;
	my $pid;

	# Memory of a backend; locks of it
	session('memory', "DO \$\$ BEGIN FOR i IN 1..100000 LOOP EXECUTE format('PREPARE p%s AS SELECT %s, repeat(''x'', 1000) FROM pg_class a, pg_class b WHERE a.oid = %s', i, i, i); PERFORM pg_sleep(0.002); END LOOP; END \$\$");
	session('locks', 'SELECT count(pg_advisory_lock(i)) FROM generate_series(1, 800) i', 'SELECT pg_sleep(3600)');

	# A transaction that nobody ends: dead rows, age, of many ids, and what is read from
	# the queue
	session('prepared', "BEGIN; INSERT INTO chaos.orders (what) VALUES ('leak'); PREPARE TRANSACTION 'leak'", 'SELECT pg_sleep(3600)');
	session('age', 'SET synchronous_commit = off', 'CALL chaos.burn(100000)');
	session('listener', 'LISTEN leadership_changed', 'BEGIN; SELECT 1; SELECT pg_sleep(3600)');

	# Lines of log, WAL, files, WAL that is kept
	session('log', "DO \$\$ BEGIN LOOP RAISE LOG 'leak'; PERFORM pg_sleep(0.2); END LOOP; END \$\$");
	session('wal', "DO \$\$ BEGIN LOOP PERFORM pg_logical_emit_message(false, 'leak', repeat('x', 500000)); PERFORM pg_sleep(0.1); COMMIT; END LOOP; END \$\$");
	session('files', "DO \$\$ BEGIN FOR i IN 1..400 LOOP EXECUTE format('CREATE TABLE IF NOT EXISTS chaos.leak%s (i int)', i); COMMIT; END LOOP; END \$\$", 'SELECT pg_sleep(3600)');
	session('slot', "SELECT pg_create_physical_replication_slot('leak', true)", 'SELECT pg_sleep(3600)');

	# A client: memory, files, sockets
	$pid = start_process('leak.client', $^X, '-MIO::Socket::INET', '-e',
		'$s = IO::Socket::INET->new(Listen => 500, LocalAddr => "127.0.0.1"); while (1) { push @k, IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $s->sockport), "x" x 300_000; select undef, undef, undef, 0.3 }');
	spit("$dir/leaking", "$pid session\n");

	# Nobody leads
	session('vacant', map({ sprintf "SELECT leader_election.pause_election('s%03d', 'leak', NULL, true)", $_ } 60 .. 110), 'SELECT pg_sleep(3600)');

	# The subscriber has what the publisher has not
	start_process('leak.subscriber', 'sh', '-c', "sleep 20; psql -Xq -h '$dir' -p $subscriber_port -U postgres copy -c 'INSERT INTO chaos.orders (id, what) VALUES (-1, 1)'");
	return;
}

1;
