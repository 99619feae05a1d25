# Calls of detached candidates in sessions whose transactions are repeatable read
# or serializable: a snapshot that is older than what has happened changes no
# answer, and competing calls do not fail.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Detached;
use LeaderElection;
use MachineTime;
use Test::More;

serve();

foreach my $isolation ('repeatable read', 'serializable')
{
	my $e = "iso $isolation";
	my $slow = session($node, name => 'slow');
	my $right =
	  "abs(extract(epoch FROM g.expires_at - clock_timestamp()) * 1000"
	  . ' - g.remaining_ms) < 300';
	my $slowness = slowness();
	my $sleep = '(SELECT pg_sleep(' . 0.5 * $slowness . ')::text OFFSET 0) s (s),';
	my $lease = 3_000 * $slowness;    # milliseconds, six sleeps

	# A statement that waits until something else has been done, however long that takes
	my $gate = '(SELECT pg_advisory_xact_lock_shared(4711)::text OFFSET 0) s (s),';
	my $while_waiting = sub {
		my ($sql, $do) = @_;

		$control->query('SELECT pg_advisory_lock(4711)');
		$slow->query_async($sql);
		wait_for($node, "SELECT count(*) = 1 FROM pg_stat_activity"
			  . " WHERE application_name = 'slow' AND wait_event = 'advisory'");
		$do->();
		$control->query('SELECT pg_advisory_unlock(4711)');
		return scalar $slow->result;
	};

	create_election($e, 1000 * $lease);
	$_->query("SET default_transaction_isolation = '$isolation'")
	  foreach $slow, @pool;
	is( any("SELECT g.term, g.remaining_ms BETWEEN $lease - 500 * $slowness AND $lease, $right,"
			  . " g.yielding FROM leader_election.acquire('$e', 'd') g"),
		'1|t|t|f',
		"$isolation: acquire");

	# The snapshot of each statement is older than what it finds. First, than
	# its own renewal, which counts from now and not from then.
	is( $slow->query("SELECT g.term, g.remaining_ms BETWEEN $lease - 300 * $slowness AND $lease,"
			  . " $right, g.yielding FROM $sleep"
			  . " LATERAL leader_election.renew('$e', 1 + length(s)) g"),
		'1|t|t|f',
		"$isolation: renew, late in a statement");

	# Then, than somebody else's renewal and request.
	my $renew = "SELECT g.term, g.expires_at, g.yielding,"
	  . " g.remaining_ms < $lease, $right FROM $gate"
	  . " LATERAL leader_election.renew('$e', 1 + length(s)) g";
	my $known = $while_waiting->(
		$renew,
		sub {
			is(renew($e, 1), 1, "$isolation: renewed elsewhere");
			any("SELECT leader_election.request_yield('$e')");
		});

	# The sign of life that it gives may be in conflict with what others have written.
	if ($isolation eq 'serializable' && $slow->sqlstate eq '40001')
	{
		$known = $slow->query($renew);
	}
	is($known, '1|' . lease($e)->{expires_at} . '|t|t|t',
		"$isolation: renew knows what has happened since");

	# And than the next term.
	my $over = $while_waiting->(
		"SELECT g.term FROM $gate LATERAL leader_election.renew('$e', 1 + length(s)) g",
		sub {
			is(any("SELECT leader_election.release('$e', 1)"), 't', 'released');
			is(acquire($e, 'd'), 2, "$isolation: another term");
		});
	is($over, '', "$isolation: the old one is over");
	is($slow->sqlstate, '00000', "$isolation: which is no error");

	my $told = $while_waiting->(
		"SELECT s || leader_election.is_leader('$e', 3)"
		  . " || coalesce((SELECT g.term FROM leader_election.acquire('$e', 'x')"
		  . " g)::text, ' none') FROM $gate (SELECT 1) one",
		sub {
			is(any("SELECT leader_election.release('$e', 2)"), 't', 'released again');
			is(acquire($e, 'd'), 3, "$isolation: a third term");
		});
	# Serializable transactions may conflict, as documented: then it is told so.
	is( $slow->sqlstate eq '40001' && $isolation eq 'serializable'
		? 'true none'
		: $told,
		'true none',
		"$isolation: a loser knows it");

	# In a transaction with a snapshot of long ago
	$slow->query('BEGIN');
	is($slow->query("SELECT leader_election.is_leader('$e', 3)"),
		't', "$isolation: is_leader in a transaction");
	is(any("SELECT leader_election.release('$e', 3)"), 't', 'released');
	is($slow->query("SELECT leader_election.is_leader('$e', 3)"),
		'f', "$isolation: knows the end of a term");
	is(acquire($e, 'x'), 4, "$isolation: a fourth term");
	is($slow->query("SELECT leader_election.is_leader('$e', 4)"),
		't', "$isolation: and the beginning of another");
	$slow->query('COMMIT');

	$slow->finish;
	$_->query('RESET default_transaction_isolation') foreach @pool;
	next if $isolation eq 'serializable';

	# Neither do they fail because others do the same.
	my @many = map { session($node, name => "many $_") } 1 .. 4;
	my %do;

	create_election("$e many", 1000 * $lease);
	create_election("$e $_->{name}", 1000 * $lease) foreach @many;
	foreach my $s (@many)
	{
		$s->query("SET default_transaction_isolation = '$isolation'");
		$do{ $s->{name} } = qq{DO \$\$
			DECLARE
				until timestamptz := clock_timestamp() + '1 s';
				own bigint;
				mine bigint;
			BEGIN
				own := coalesce((SELECT term FROM leader_election.lease
						WHERE election = '$e $s->{name}' AND leader = 'own'),
					(SELECT term FROM
						leader_election.acquire('$e $s->{name}', 'own')));
				COMMIT;
				LOOP
					EXIT WHEN clock_timestamp() > until AND (SELECT term > 20
						FROM leader_election.lease WHERE election = '$e many');
					COMMIT;
					IF NOT EXISTS (SELECT FROM
						leader_election.renew('$e $s->{name}', own)) THEN
						RAISE 'lost';
					END IF;
					COMMIT;
					mine := (SELECT term FROM
						leader_election.acquire('$e many', '$s->{name}'));
					COMMIT;
					CONTINUE WHEN mine IS NULL;
					PERFORM * FROM leader_election.renew('$e many', mine);
					COMMIT;
					PERFORM leader_election.release('$e many', mine);
					COMMIT;
				END LOOP;
			END \$\$};
		$s->query_async($do{ $s->{name} });
	}
	foreach my $s (@many)
	{
		# A call that waits for others while the machine stands still is busy: it may be
		# twice.
		$s->result;
		foreach (1 .. 2)
		{
			$s->query($do{ $s->{name} }) if $s->sqlstate eq '55P03';
		}
		is($s->sqlstate, '00000', "$isolation: $s->{name} saw no error");
		$s->finish;
	}
}

$node->stop;
done_testing();
