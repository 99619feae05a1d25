# Strategy spread counts what each candidate leads. It counts once for many
# choices, and keeps that up to date: the outcome must be that of counting anew
# for each, and no more than one look at the table of leases may be needed for
# hundreds of elections. How often it was looked at is counted by the server.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

my $N = 300;
my $ALL = "generate_series(1, $N) n";

# The table is looked at by the worker, too, once in each round.
my $FEW = 60;

my $node = new_server(
	config => qq(
max_locks_per_transaction = 256
leader_election.lease_duration = '5 min'
autovacuum = off
));
my $control = session($node, name => 'control');
my %session = map { $_ => session($node, name => $_) } qw(a b c d);

sub create
{
	my ($prefix, %opts) = @_;

	$control->query(
		"SELECT count(leader_election.create_election('$prefix ' || n, '"
		  . ($opts{strategy} // 'spread') . "', quorum => " . ($opts{quorum} // 1) . ")) FROM $ALL");
	return;
}

# Joins all elections of a group in one statement; returns how many it leads.
sub joins
{
	my ($name, $prefix) = @_;

	return $session{$name}->query(
		"SELECT count(leader_election.join('$prefix ' || n, '$name')) FROM $ALL"
	);
}

# How often a session has read as many leases as there are, while it ran a query
sub scans
{
	my ($who, $sql) = @_;
	my @scans;
	my $result;

	foreach my $turn (0, 1)
	{
		$result = $who->query($sql) if $turn;
		$who->query('SELECT pg_stat_force_next_flush()');
		$who->query('SELECT 1');
		push @scans, $control->query(
			"SELECT idx_tup_fetch FROM pg_stat_user_tables
				WHERE relid = 'leader_election.lease'::regclass");
	}
	return (
		int(($scans[1] - $scans[0]) /
			  $control->query('SELECT count(*) FROM leader_election.lease')),
		$result);
}

sub shares
{
	my ($prefix) = @_;

	return scalar $control->query(
		"SELECT string_agg(leader || ':' || n, ' ' ORDER BY leader)
			FROM (SELECT leader, count(*) n FROM leader_election.lease
				WHERE election LIKE '$prefix %' AND leader IS NOT NULL GROUP BY leader) l"
	);
}

sub drop
{
	my ($prefix) = @_;

	foreach my $name (sort keys %session)
	{
		$session{$name}->query('SELECT leader_election.leave_all()');
	}
	wait_for($node, "SELECT count(leader_election.drop_election('$prefix ' || n)) = $N FROM $ALL");
	return;
}

my ($scans, $result);

#
# One candidate: there is nothing to choose.
#
create('one');
($scans, $result) = scans($session{a},
	"SELECT count(leader_election.join('one ' || n, 'a')) FROM $ALL");
is($result, $N, 'one candidate: it leads all');
cmp_ok($scans, '<', $FEW, "one candidate: the leases are not read for each ($scans times)");
drop('one');

#
# The worker asks for yields, one election at a time, each seeing the last.
#
create('asked', strategy => 'race');
joins($_, 'asked') foreach qw(a b c d);
is(shares('asked'), "a:$N", 'yields: one leads all');
$control->query("SELECT count(leader_election.alter_election('asked ' || n, 'spread')) FROM $ALL");
my $quarter = $N / 4;
my $asked = "SELECT string_agg(successor || ':' || n, ' ' ORDER BY successor)
	FROM (SELECT successor, count(*) n FROM leader_election.lease
		WHERE yielding AND election LIKE 'asked %' GROUP BY successor) l";
wait_for($node, $asked, join(' ', map { "$_:$quarter" } qw(b c d)));
pass('yields: asked for by turns, and no more than are needed');
$session{a}->query("SELECT count(leader_election.resign(election)) FROM leader_election.lease
	WHERE leader = 'a' AND yielding");
is(shares('asked'), join(' ', map { "$_:$quarter" } qw(a b c d)),
	'yields: each leads its share when the leader has given up, in one statement');

#
# The view counts once for a query, and never for another one.
#
($scans, $result) = scans($control, 'SELECT count(*) FROM leader_election.candidates');
is($result, 4 * $N, 'view candidates: shows all');
cmp_ok($scans, '<', $FEW, "view candidates: the leases are not read for each ($scans times)");
drop('asked');

#
# A call that has many choices to make, of two candidates
#
create('two', quorum => 2);
is(joins('a', 'two'), 0, 'two candidates: none leads before there are two');
($scans, $result) = scans($session{b},
	"SELECT count(leader_election.join('two ' || n, 'b')) FROM $ALL");
is(shares('two'), join(' ', map { "$_:" . $N / 2 } qw(a b)),
	'two candidates: elected by turns, in one statement');
is($result, $N / 2, 'two candidates: as the call has answered');
cmp_ok($scans, '<', $FEW, "two candidates: the leases are not read for each choice ($scans times)");
is( $control->query(
		"SELECT count(*) FROM leader_election.history WHERE election LIKE 'two %'"),
	$N,
	'two candidates: nobody has to make way afterwards');

# What has changed is seen at once by the next query of a transaction block.
my $first = "SELECT candidate FROM leader_election.candidates
	WHERE election = 'late' AND \"position\" = 1";
$control->query("SELECT leader_election.create_election('late', 'spread', quorum => 3)");
$session{$_}->query("SELECT leader_election.join('late', '$_')") foreach qw(a b);
$session{d}->query('BEGIN');
is($session{d}->query($first), 'a', 'view: the first in line, both lead as many');
$session{a}->query("SELECT leader_election.create_election('more', 'spread')");
$session{a}->query("SELECT leader_election.join('more', 'a')");
is($session{d}->query($first), 'b', 'view: another one in the next query of the same transaction');
$session{d}->query('COMMIT');
drop('two');

#
# The worker has many choices to make: of three candidates, in a round
#
create('three', quorum => 4);
joins($_, 'three') foreach qw(a b c);
is(shares('three'), '', 'three candidates: none leads below the quorum');
my $more = $control->query("SELECT count(*) FROM leader_election.lease WHERE leader = 'a'");
is($more, 0, 'three candidates: none leads anything else');
$control->query("SELECT count(leader_election.alter_election('three ' || n, quorum => 1)) FROM $ALL");
wait_for($node, "SELECT count(*) = $N FROM leader_election.lease
	WHERE election LIKE 'three %' AND leader IS NOT NULL");
is(shares('three'), join(' ', map { "$_:" . $N / 3 } qw(a b c)),
	'three candidates: elected by turns by the worker');

# One dies: its share is spread, and the others keep theirs.
$session{c}->kill;
delete $session{c};
wait_for($node, "SELECT count(*) = $N FROM leader_election.lease
	WHERE election LIKE 'three %' AND leader <> 'c'");
is(shares('three'), join(' ', map { "$_:" . $N / 2 } qw(a b)),
	'one dies: its share is spread evenly');
is( $control->query(
		"SELECT string_agg(DISTINCT reason, ' ') FROM leader_election.history
			WHERE election LIKE 'three %' AND ended_at IS NOT NULL"),
	'session ended',
	'one dies: nobody else had to yield');

done_testing();
