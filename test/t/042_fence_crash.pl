# The server dies, again and again, at random moments while elections change
# hands as fast as they can and their leaders write, fenced.  Afterwards every
# change has happened or has not: lease row and history agree, no term is
# missing or was given to two, and what a client was told is so.
#
# All of it with synchronous_commit = off, which must not cost a single grant.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $CHANGES = 60;

# No term ends by itself.
my $node = new_server(
	config => qq(
leader_election.lease_duration = '1 h'
client_min_messages = warning
restart_after_crash = on
track_commit_timestamp = on
synchronous_commit = off
wal_writer_delay = '10s'
));
my $observer;
my $clients = 0;
my @clients;

END
{
	kill('KILL', map { $_->{run}{KIDS}[0]{PID} } @clients);
}

# What a candidate does, in psql, until its connection is lost.  What it says
# was told by the server, and not in the round before: a call that fails leaves
# psql's variables as they were.
my %candidate = (
	detached => q{
\set term 0
\set granted f
SELECT coalesce((SELECT term FROM leader_election.acquire(:'election', :'name')), 0) AS term \gset
SELECT :term > 0 AS granted \gset
\if :granted
\echo granted :election :term :name
BEGIN\; SET LOCAL synchronous_commit = on\; SELECT leader_election.assert_leader(:'election', :term)\; INSERT INTO written VALUES (:'election', :term, :'name')\; COMMIT;
\if :ERROR
ROLLBACK;
\else
\echo written :election :term :name
\endif
\unset released
SELECT leader_election.release(:'election', :term) AS released \gset
\echo released :released :election :term :name
\endif
},
	session => q{
\set term 0
\set granted f
SELECT coalesce(leader_election.join(:'election', :'name'), 0) AS term \gset
SELECT :term > 0 AS granted, :term % 3 = 0 AS leaves \gset
\if :granted
\echo granted :election :term :name
BEGIN\; SET LOCAL synchronous_commit = on\; INSERT INTO written VALUES (:'election', :term, :'name')\; SELECT leader_election.assert_leader(:'election')\; COMMIT;
\if :ERROR
ROLLBACK;
\else
\echo written :election :term :name
\endif
\unset released
\if :leaves
SELECT leader_election.leave(:'election') AS released \gset
\else
SELECT leader_election.resign(:'election') AS released \gset
\endif
\echo released :released :election :term :name
\endif
});

foreach my $kind (keys %candidate)
{
	my $file = "$PostgreSQL::Test::Utils::tmp_check/crash_$kind";

	append_to_file("$file.step", $candidate{$kind});
	append_to_file("$file.sql", "\\i $file.step\n" x 50_000);
}

sub start_candidate
{
	my ($kind, $election) = @_;
	my $name = 'c' . ++$clients;
	my $client = { out => '', err => '' };

	$client->{run} = IPC::Run::start(
		[
			'psql', '-XqAt', '-v', "election=$election",
			'-v', "name=$name",
			'-f', "$PostgreSQL::Test::Utils::tmp_check/crash_$kind.sql",
			'-d', $node->connstr('postgres')
		],
		'>' => \$client->{out},
		'2>' => \$client->{err});
	push @clients, $client;
	return;
}

# All processes of the server, the first of which is the postmaster
sub processes
{
	my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /\A(\d+)/;
	my @others = split /\n/,
	  $observer->query('SELECT pid FROM pg_catalog.pg_stat_activity');

	return ($postmaster, @others);
}

my %crash = (
	# Everything is gone at once, as in a loss of power.
	everything => sub {
		my @all = processes();

		sleep(rand(0.05));
		kill('KILL', @all);
		$node->{_pid} = undef;
		wait_until(sub { !kill(0, @all) }, 'the end of all processes');
		$node->start;
	},

	# One server process dies, at any moment of its work, and takes the others
	# along.
	backend => sub {
		my $pid = $observer->query(
			"SELECT pid FROM pg_catalog.pg_stat_activity
			WHERE application_name = 'psql' AND state = 'active'
			ORDER BY random() LIMIT 1") || $observer->backend_pid;

		sleep(rand(0.05));
		kill('KILL', $pid);
	},
	'immediate stop' => sub {
		sleep(rand(0.05));
		$node->stop('immediate');
		$node->start;
	});

# The elections as they are, and what was told of them
my $TERMS = <<'END';
SELECT l.election,
	l.term = (SELECT max(term) FROM leader_election.history h
		WHERE h.election = l.election),
	l.term = (SELECT count(*) FROM leader_election.history h
		WHERE h.election = l.election)
FROM leader_election.lease l ORDER BY 1
END

# A term that has begun and not ended is the present one, of the present leader;
# there is one where somebody leads, and none where nobody does.
my $HALF_DONE = <<'END';
SELECT l.election, l.term, l.leader, h.term, h.leader
FROM (SELECT * FROM leader_election.lease WHERE leader IS NOT NULL) l
	FULL JOIN
	(SELECT * FROM leader_election.history WHERE ended_at IS NULL) h
	USING (election, term, leader, kind, role, acquired_at)
WHERE l.term IS NULL OR h.term IS NULL
END
my $OVERLAP = <<'END';
SELECT * FROM (
	SELECT election, term, acquired_at, ended_at, reason,
		lead(acquired_at) OVER (PARTITION BY election ORDER BY term) AS next
	FROM leader_election.history) h
WHERE ended_at < acquired_at OR next < ended_at
	OR (next IS NOT NULL AND ended_at IS NULL)
	OR (ended_at IS NULL) <> (reason IS NULL)
END
my $OUTSIDE = <<'END';
SELECT * FROM (
	SELECT election, term, name, pg_xact_commit_timestamp(xmin) AS at
	FROM written) w LEFT JOIN leader_election.history h
	ON h.election = w.election AND h.term = w.term AND h.leader = w.name
		AND w.at >= h.acquired_at AND w.at <= coalesce(h.ended_at, 'infinity')
WHERE h.term IS NULL
END

$node->safe_psql(
	'postgres', q{
CREATE TABLE written (election text, term bigint, name text,
	PRIMARY KEY (election, term));
CREATE TABLE told (what text, election text, term bigint, name text);
});

my @rounds = ('everything', 'backend', 'everything', 'immediate stop',
	'backend', 'everything');
foreach my $round (1 .. @rounds)
{
	my $how = $rounds[ $round - 1 ];
	my $name = "round $round, $how";
	my (%before, @told);
	my $told = '';
	my $leads;

	$observer = session($node, name => 'observer');
	$before{$_} = $observer->query(
		"SELECT coalesce(max(term), 0) FROM leader_election.lease
		WHERE election = '$_'")
	  foreach qw(detached session);
	start_candidate('detached', 'detached') foreach 1 .. 3;
	start_candidate('session', 'session') foreach 1 .. 3;
	wait_until(
		sub {
			$_->{run}->pump_nb foreach @clients;
			return $observer->query(
				"SELECT count(*) FROM leader_election.lease
				WHERE term > CASE election WHEN 'session' THEN $before{session}
					ELSE $before{detached} END + $CHANGES") eq '2';
		},
		'elections to change hands');

	$crash{$how}->();
	foreach my $client (@clients)
	{
		$client->{run}->finish;
		$told .= $client->{out};
	}
	@clients = ();
	wait_for($node, 'SELECT true');
	$observer = session($node, name => 'observer');

	$leads = $observer->query("SELECT leader IS NOT NULL
		FROM leader_election.lease WHERE election = 'detached'") eq 't';

	# Before anybody stands again: nothing has changed since.
	is( $observer->query($TERMS),
		"detached|t|t\nsession|t|t",
		"$name: lease and history agree on the terms");
	is($observer->query($HALF_DONE), '', "$name: no change is half done");
	is($observer->query($OVERLAP), '', "$name: one term after the other (G1)");
	is( $observer->query(
			'SELECT count(*), max(epoch) FROM leader_election.epoch'),
		'1|0',
		"$name: the same incarnation");

	push @told, "('$1', '$2', $3, '$4')"
	  while $told =~ /^(granted|written|released t) (\w+) (\d+) (\w+)$/mg;
	cmp_ok(scalar(@told), '>', $CHANGES, "$name: there was something to tell");
	$observer->query('INSERT INTO told VALUES ' . join(', ', @told));
	is( $observer->query(
			"SELECT DISTINCT t.* FROM told t LEFT JOIN leader_election.history h
				ON h.election = t.election AND h.term = t.term AND h.leader = t.name
			WHERE h.term IS NULL OR (t.what LIKE 'released%' AND
				coalesce(h.reason, '') NOT IN ('resigned', 'left'))"),
		'',
		"$name: what clients were told of terms and their ends is so (G6)");
	is( $observer->query(
			"SELECT election, term FROM told WHERE what = 'granted'
			GROUP BY 1, 2 HAVING count(*) > 1"),
		'',
		"$name: no term was granted twice (G5)");
	is( $observer->query(
			"SELECT * FROM told t WHERE what = 'written' AND NOT EXISTS (
				SELECT FROM written w WHERE w.election = t.election
					AND w.term = t.term AND w.name = t.name)"),
		'',
		"$name: what was written is there");
	is($observer->query($OUTSIDE), '',
		"$name: each writer led at that moment (G8)");

	# The detached one still leads, and who knows its term may act for it.
	is( $observer->query(
			"SELECT bool_and(leader_election.release(election, term))
			FROM leader_election.lease
			WHERE election = 'detached' AND leader IS NOT NULL"),
		$leads ? 't' : '',
		"$name: a detached leader is not harmed");
	$observer->finish;
}

$node->stop;
done_testing();
