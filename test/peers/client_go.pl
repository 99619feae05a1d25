# client-go's tests of leaderelection (tools/leaderelection), with a Lease or with
# LeaseCandidates.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../t";
use Peers;

peer('client-go');

scenario('acquire where there is no object', sub {
	my ($e) = @_;

	same(acquire($e, 'baz'), 1, 'makes it');
	same(status($e, 'leader, state'), 'baz|led', 'and leads');
});

scenario('acquire an object that nobody leads', sub {
	my ($e) = @_;

	create_election($e, $LEASE);
	same(status($e, "state, term IS NULL"), 'vacant|t', 'there it is');
	same(acquire($e, 'baz'), 1, 'leads');
});

scenario('do not acquire what another leads', sub {
	my ($e) = @_;

	acquire($e, 'bing');
	my $before = lease($e);

	same(acquire($e, 'baz'), '', 'does not lead');
	unchanged($e, $before, 'and has touched nothing');
});

# client-go waits for a whole lease from when it saw the record first.
scenario('acquire what another has led, seen for the first time', sub {
	my ($e) = @_;

	create_election($e, $SHORT);
	same(acquire($e, 'bing'), 1, 'bing leads');
	my $due = lease($e)->{deadline_mono};

	wait_over($e);
	same(acquire($e, 'baz'), 2, 'baz does, by its first call after the deadline');
	since($due, lease($e)->{acquired_mono}, 0, 'and not before');
});

scenario('renewing keeps the time of the acquisition and counts no transition', sub {
	my ($e) = @_;

	acquire($e, 'baz');
	my $since = status($e, 'since');

	renew($e, 1) foreach 1 .. 3;
	same(status($e, 'term, since'), "1|$since", 'as before');
	same(status($e, 'renewed_at > since'), 't', 'but renewed');
});

scenario('release, and the transitions go on from there', sub {
	my ($e) = @_;

	acquire($e, 'baz');
	same(release($e, 1), 't', 'released');
	same(status($e, 'state, leader IS NULL'), 'vacant|t', 'nobody leads');
	same(release($e, 1), 'f', 'once');
	same(acquire($e, 'baz'), 2, 'the next term');
});

scenario('release of what does not exist', sub {
	my ($e) = @_;

	same(refused("SELECT leader_election.release('$e', 1)"), 'LE003', 'is an error');
	same(any("SELECT count(*) FROM leader_election.election WHERE election = '$e'"), 0,
		'and makes nothing');
});

scenario('release beside another write of the record', sub {
	my ($e) = @_;
	my ($other, $baz) = people(qw(other baz));

	acquire($e, 'baz');
	lock_row($other, $e);
	$baz->query_async("SELECT leader_election.release('$e', 1)");
	wait_for($node, "SELECT state = 'active' FROM pg_stat_activity WHERE pid = " . $baz->backend_pid);
	$other->query('COMMIT');
	my $released = $baz->result;

	# On a machine that is slower than the second for which it waits: again
	$released = $baz->query("SELECT leader_election.release('$e', 1)") if $baz->sqlstate eq '55P03';
	same($released, 't', 'waits for it');

	acquire($e, 'baz');
	my $before = lease($e);

	lock_row($other, $e);
	same($baz->sqlstate_of("SELECT leader_election.release('$e', 2)"), '55P03', 'not for ever');
	$other->query('COMMIT');
	unchanged($e, $before, 'then it has released nothing');
	same($baz->query("SELECT leader_election.release('$e', 2)"), 't', 'and can be repeated');
});

scenario('release after a renewal that was cancelled', sub {
	my ($e) = @_;
	my ($other, $baz) = people(qw(other baz));

	acquire($e, 'baz');
	lock_row($other, $e);
	$baz->query_async("SELECT leader_election.renew('$e', 1)");
	wait_for($node, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE state = 'active'
		AND query LIKE '%renew(%' AND pid = " . $baz->backend_pid);
	$baz->result;
	same($baz->sqlstate =~ /^(57014|55P03)$/, 1, 'the renewal fails');
	$other->query('COMMIT');
	same($baz->query("SELECT leader_election.release('$e', 1)"), 't', 'the lease is given back');
	same(status($e, 'state'), 'vacant', 'and nobody leads');
});

scenario('no identity', sub {
	my ($e) = @_;

	same(refused("SELECT leader_election.acquire('$e', '')"), '22023', 'is refused');
	same(refused("SELECT leader_election.acquire('$e', NULL)"), '22023', 'NULL is, too');
	same(refused("SELECT leader_election.join('$e', '')"), '22023', 'also of a session');
});

scenario('asked who leads while the record is written', sub {
	my ($e) = @_;
	my $asks = people('asks');

	acquire($e, 'baz');
	$asks->query_async("SELECT count(*) FROM generate_series(1, 100000)
		WHERE NOT leader_election.is_leader('$e', 1)");
	do { renew($e, 1) } until $asks->finished;
	same($asks->result, 0, 'it is true each time');
	same($asks->sqlstate, '00000', 'and never an error');
});

scenario('a preferred holder', sub {
	my ($e) = @_;

	acquire($e, 'baz');
	acquire($e, $_) foreach qw(first preferred);
	any("SELECT leader_election.request_yield('$e', 'preferred')");
	my $before = lease($e);

	same(any("SELECT yielding FROM leader_election.renew('$e', 1)"), 't', 'baz is told when it renews');
	same(lease($e)->{deadline_mono}, $before->{deadline_mono}, 'and has no more time than before');
	release($e, 1);
	same(acquire($e, 'first'), '', 'who stood first does not lead');
	same(acquire($e, 'preferred'), 2, 'the preferred one does');
});

scenario("a lease's duration is its holder's", sub {
	my $e = 'a duration';

	create_election($e, 60_000_000);
	acquire($e, 'baz');
	my $before = lease($e);

	any("SELECT leader_election.alter_election('$e', lease_duration => '1 s')");
	unchanged($e, $before, 'a shorter one takes nothing away');
	same(any("SELECT remaining_ms > 1000 FROM leader_election.renew('$e', 1)"), 't',
		'nor when it renews');
	release($e, 1);
	at_most(any("SELECT remaining_ms FROM leader_election.acquire('$e', 'next')"), 1000,
		'the next holder has the new one');
});

done_testing();
