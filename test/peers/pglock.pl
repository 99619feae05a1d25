# pglock's tests of its client (client_test.go).

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../t";
use Peers;

peer('pglock');

scenario('fail if locked', sub {
	my ($e) = @_;

	same(acquire($e, 'one'), 1, 'leads');
	same(acquire($e, 'two'), '', 'does not wait');
	same($pool[0]->sqlstate, '00000', 'and is no error');
});

scenario('acquire waits for the release', sub {
	my ($e) = @_;
	my ($one, $two) = people(qw(one two));

	same(joins($one, $e), 1, 'one leads');
	campaigns($two, $e);
	same($two->finished, '', 'two waits');
	$one->query("SELECT leader_election.leave('$e')");
	same($two->result, 2, 'and leads');
});

# There the data stays with the lock. Here each candidate brings its own.
scenario('data of a lock that was released', sub {
	my ($e) = @_;

	any("SELECT leader_election.acquire('$e', 'one', metadata => '42')");
	same(status($e, 'leader, metadata'), 'one|42', 'is seen');
	release($e, 1);
	same(status($e, 'metadata IS NULL'), 't', 'goes with the leader');
	any("SELECT leader_election.acquire('$e', 'two')");
	same(status($e, 'leader, metadata IS NULL'), 'two|t', 'and is not the next one\'s');
});

scenario('closed twice', sub {
	my ($e) = @_;

	acquire($e, 'one');
	same(release($e, 1) . release($e, 1), 'tf', 'is no error');
	same($pool[0]->sqlstate, '00000', 'also the second time');
});

scenario('an unknown name', sub {
	my ($e) = @_;

	same(any("SELECT leader_election.is_leader('$e', 1)"), 'f', 'has no leader');
	same(refused("SELECT leader_election.renew('$e', 1)"), 'LE003', 'cannot be renewed');
});

scenario('created twice', sub {
	my ($e) = @_;

	create_election($e, $LEASE);
	same(refused("SELECT leader_election.create_election('$e')"), '42710', 'is an error');
	same(acquire($e, 'one'), 1, 'first use creates what is not there yet');
});

scenario('first used by eight at the same time', sub {
	my ($e) = @_;
	my @all = people(map { "p$_" } 1 .. 8);

	$_->query_async("SELECT term FROM leader_election.acquire('$e', '$_->{name}')") foreach @all;
	my @terms = grep { $_ ne '' } map { scalar $_->result } @all;

	same("@terms", '1', 'one leads');
	same(join(' ', grep { $_ !~ /^(00000|55P03)$/ } map { $_->sqlstate } @all), '',
		'nobody sees the conflict');
});

scenario('a heartbeat after the release', sub {
	my ($e) = @_;

	acquire($e, 'one');
	release($e, 1);
	same(renew($e, 1), '', 'renews nothing');
	same(status($e, 'state'), 'vacant', 'and nobody leads');
});

scenario('a heartbeat beside the release', sub {
	my ($e) = @_;
	my ($beats, $closes) = people(qw(beats closes));
	my $revived = 0;

	foreach my $term (1 .. 20)
	{
		acquire($e, 'one');
		$beats->query_async("SELECT leader_election.renew('$e', $term)");
		$closes->query_async("SELECT leader_election.release('$e', $term)");
		$_->result foreach $beats, $closes;
		release($e, $term) if $closes->sqlstate eq '55P03';
		$revived++ if lease($e)->{leader} ne '' || holds($e, $term);
	}
	same($revived, 0, 'revives nothing in twenty rounds');
	same(any("SELECT string_agg(DISTINCT reason, ' ') FROM leader_election.history
		WHERE election = '$e'"), 'resigned', 'each was released');
});

scenario('release of a lock that was lost', sub {
	my ($e) = @_;

	create_election($e, $SHORT);
	acquire($e, 'one');
	any("SELECT leader_election.request_yield('$e')");
	wait_over($e);
	same(release($e, 1), 'f', 'releases nothing');
	same(holds($e, 1), '', 'as its holder can see');
});

scenario('six that acquire and release, none of whom sees a serialization error', sub {
	my ($e) = @_;
	my @all = people(map { "p$_" } 1 .. 6);

	create_election($e, $LEASE);
	$_->query("SET default_transaction_isolation = 'repeatable read'") foreach @all;
	$_->query_async("\\set VERBOSITY verbose\n" . join "\n",
		("SELECT coalesce(max(term), 0) AS t FROM leader_election.acquire('$e', '$_->{name}') \\gset",
			"SELECT leader_election.release('$e', t) FROM (VALUES (:t)) v (t) WHERE t > 0;") x 25)
	  foreach @all;
	$_->result foreach @all;
	same(join(' ', map { grep { $_ ne '55P03' } $_->errors =~ /ERROR:\s+(\w+):/g } @all), '',
		'nor any other');
	same(any("SELECT count(*) > 0 FROM leader_election.history WHERE election = '$e'"), 't',
		'and there were leaders');
});

scenario('all locks', sub {
	my ($e) = @_;

	acquire("$e $_", "owner $_") foreach 1 .. 3;
	same(any("SELECT string_agg(leader, ', ' ORDER BY election) FROM leader_election.status
		WHERE election LIKE '$e %'"), 'owner 1, owner 2, owner 3', 'are listed with their owners');
});

scenario('a lease that is too short', sub {
	my ($e) = @_;

	foreach my $lease ('99 ms', '0', '-1 s', '1 day 1 us')
	{
		same(refused("SELECT leader_election.create_election('$e', lease_duration => '$lease')"),
			'22023', "$lease is refused");
	}
	create_election($e, 100_000);
	same(any("SELECT lease_duration FROM leader_election.election WHERE election = '$e'"),
		'00:00:00.1', '100 ms are taken');
});

done_testing();
