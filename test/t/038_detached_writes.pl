# What detached candidates cost: a call that loses or only looks writes nothing,
# and a sign of life is written at most once in a third of a lease.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Detached;
use LeaderElection;
use Test::More;

# No process but those of this test writes WAL here.
serve(
	name => 'quiet',
	config => q(
leader_election.lease_duration = '1h'
wal_level = minimal
max_wal_senders = 0
autovacuum = off
checkpoint_timeout = 1h
client_min_messages = warning
));

# -- A call that loses, or only looks, writes nothing.

# The versions of the rows of lease and of what may refer to them, none of
# which is replaced or locked, the sizes of the tables, the next transaction and
# the end of the WAL, which what is aborted moves as well. (Reading prunes pages, so
# that it comes first.)
sub written
{
	return $control->query(
		q{SELECT ctid, xmin, xmax, term, deadline_mono FROM leader_election.lease ORDER BY election;
		  SELECT ctid, xmin, xmax, seen_mono FROM leader_election.candidate ORDER BY election, candidate;
		  SELECT relname, pg_relation_size(relid) FROM pg_stat_user_tables ORDER BY relname;
		  SELECT pg_snapshot_xmax(pg_current_snapshot());
		  SELECT pg_current_wal_insert_lsn()});
}

{
	my $leader = session($node, name => 'leader');
	my $before;
	my %calls = (
		'losing acquire()' =>
		  "* FROM leader_election.acquire('detached', 'd2')",
		'losing acquire(), saying what is known' =>
		  "* FROM leader_election.acquire('detached', 'd2', 0, 0)",
		'acquire() of a namesake' =>
		  "* FROM leader_election.acquire('detached', 'd1')",
		'losing acquire() against a session' =>
		  "* FROM leader_election.acquire('session', 'd2')",
		'is_leader(), detached' =>
		  "leader_election.is_leader('detached', 1)",
		'is_leader(), session' => "leader_election.is_leader('session', 1)",
		'is_leader(), another term' =>
		  "leader_election.is_leader('detached', 2)",
		'is_leader(), no election' => "leader_election.is_leader('none', 1)",
		'acquire() during a hold' =>
		  "* FROM leader_election.acquire('hold', 'd2')",
		'acquire() of a seat that is reserved' =>
		  "* FROM leader_election.acquire('reserved', 'd2')",
		'renew() of another term' =>
		  "* FROM leader_election.renew('detached', 2)",
		'release() of another term' =>
		  "leader_election.release('detached', 2)");

	is(acquire('detached', 'd1'), 1, 'quiet: leads');
	$leader->query(
		"CALL leader_election.campaign('session', 'leader', auto_renew => false)"
	);
	ok(leads($leader, 'session'), 'quiet: so does a session, unrenewed');
	acquire('hold', 'd1');
	is( any("SELECT leader_election.release('hold', 1, '1 h')"),
		't', 'quiet: a hold');
	acquire('reserved', $_) foreach 'd1', 'd3';
	is( any("SELECT leader_election.transfer('reserved', 1, 'd3')"),
		't', 'quiet: a reservation');
	wait_told($node);
	foreach my $round (1, 2)
	{
		foreach my $call (sort keys %calls)
		{
			my $times = $round == 1 ? 1 : 1000;

			# The first round reads what planning reads, and makes candidates.
			if ($round == 1)
			{
				written();
			}
			else
			{
				$before = written();
			}
			foreach my $s (@pool)
			{
				$s->query("DO \$\$ BEGIN FOR i IN 1 .. $times LOOP"
					  . " PERFORM $calls{$call}; COMMIT; END LOOP; END \$\$");
				is($s->sqlstate, '00000', "$call") if $round == 1;
			}
			is(written(), $before, "$call writes nothing (oban#651, G9)")
				  if $round == 2;
		}
	}
	is( any("SELECT count(*), count(a.term),"
			  . ' bool_and(pg_current_xact_id_if_assigned() IS NULL)'
			  . ' FROM generate_series(1, 1000) LEFT JOIN LATERAL'
			  . " leader_election.acquire('detached', 'd2') a ON true"),
		'1000|0|t',
		'nor do a thousand in one statement (G9)');
	$leader->finish;
}

# -- A sign of life is written at most once in a third of a lease.

{
	my $third = 300_000;
	my $loop = q{
		CREATE TABLE IF NOT EXISTS seen (who text, mono bigint);
		DO $$
		DECLARE
			until bigint := leader_election._monotonic_clock() + 2600000;
		BEGIN
			WHILE leader_election._monotonic_clock() < until LOOP
				PERFORM * FROM %s;
				COMMIT;
				INSERT INTO seen SELECT '%2$s', seen_mono
					FROM leader_election.candidate
					WHERE election = 'life' AND candidate = '%2$s'
				EXCEPT TABLE seen;
				COMMIT;
			END LOOP;
		END $$};

	# A lease that is granted for an hour, and whose next one would be short
	is(acquire('life', 'd1'), 1, 'life: leads');
	is(acquire('life', 'd2'), '', 'life: another follows');
	$control->query('UPDATE leader_election.election SET lease_duration ='
		  . " '900 ms' WHERE election = 'life'");
	$control->query('CREATE TABLE seen (who text, mono bigint)');
	$pool[0]->query_async(
		sprintf $loop, "leader_election.acquire('life', 'd2')", 'd2');
	$pool[1]->query_async(
		sprintf $loop, "leader_election.renew('life', 1)", 'd1');
	foreach my $s (@pool[ 0, 1 ])
	{
		$s->result;
		is($s->sqlstate, '00000', 'life: no error');
	}
	is( $control->query(
			"SELECT who, count(*) BETWEEN 3 AND 10, min(pause) >= $third,"
			  . " percentile_disc(0.5) WITHIN GROUP (ORDER BY pause)"
			  . " < $third + 200000"
			  . ' FROM (SELECT who, mono - lag(mono)'
			  . ' OVER (PARTITION BY who ORDER BY mono) AS pause FROM seen) s'
			  . ' GROUP BY who ORDER BY who'),
		"d1|t|t|t\nd2|t|t|t",
		'life: a sign of it after a third of a lease, not before (oban#651)');
}

$node->stop;
done_testing();
