# One statement that calls for several elections and groups: each call counts what those
# before it have changed. And transactions that undo, or prepare, what a session has done.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaderElection;
use Test::More;

my $node = new_server(config => "max_prepared_transactions = 2\nclient_min_messages = warning");
my $admin = session($node, name => 'admin');

# Calls one after the other, in one statement
sub do_calls
{
	my ($session, @calls) = @_;

	$session->query('DO $$ BEGIN ' . join(' ', map { "PERFORM leader_election.$_;" } @calls) . ' END $$');
	return $session->sqlstate;
}

# The elections that a candidate leads, of those with such names
sub leads
{
	my ($candidate, $like) = @_;

	return $admin->query("SELECT string_agg(election, ' ' ORDER BY election) FROM leader_election.status
		WHERE leader = '$candidate' AND election LIKE '$like'");
}

# -- Groups

$admin->query("SELECT leader_election.create_group('$_', 2)") foreach qw(a b);
is(do_calls($admin, map { "acquire_any('$_', 'x')" } qw(a b a b)), '00000', 'two groups in one statement');
is(leads('x', '_/_'), 'a/1 b/1', 'a seat of each, and no more than one');

$admin->query("SELECT leader_election.create_group('c', 2)");
is(do_calls($admin, "acquire_any('c', 'x')", "acquire_any('c', 'x')",
		"alter_group('c', seats => 3, max_per_candidate => 2)", "acquire_any('c', 'x')"),
	'00000', 'a group that is altered between two calls');
is(leads('x', 'c/_'), 'c/1 c/2', 'the second call asks for nothing more, and the third for what it may have by then');

# Names that look like those of seats, made before the group
$admin->query("SELECT leader_election.create_election('$_')") foreach qw(d/7 d/07 d/x);
$admin->query("SELECT leader_election.create_group('d', 4, max_per_candidate => 2)");
is(do_calls($admin, map { "acquire('$_', 'x')" } qw(d/1 d/7 d/07 d/x d/2 d/3)), '00000',
	'seats, and elections whose names look like that');
is(leads('x', 'd/%'), 'd/07 d/1 d/2 d/7 d/x', 'only seats count');
is(do_calls($admin, map { "acquire('$_', 'y')" } qw(d/3 d/4)), '00000', 'the seats of another candidate');
is(leads('y', 'd/%'), 'd/3 d/4', 'count for that one');
is($admin->query("SELECT leader_election.release('d/1', term) FROM leader_election.lease WHERE election = 'd/1'"),
	't', 'a seat is given back');
is($admin->acquire('d/1', 'x'), 2, 'and granted again: others, in later calls, do not count either');

# -- Spread: who leads one that was granted in the same statement is next in none

{
	my %s = map { $_ => session($node, name => $_) } qw(p q);

	$admin->query("SELECT leader_election.create_election('s$_', 'spread', quorum => 2)") foreach 1 .. 4;
	is(do_calls($s{q}, map { "join('s$_', 'q')" } 1 .. 3), '00000', 'spread: one candidate waits for a quorum');
	is(do_calls($s{p}, "join('s1', 'p')", "join('race', 'p')", "drop_election('s4')", "join('s2', 'p')"),
		'00000', 'spread: another one stands');
	is(leads('q', 's_'), 's1', 'spread: the first in line leads the first one');
	is(leads('p', 's_'), 's2', 'spread: and then leads more than the other, who leads the next');
	is(leads('p', 'race'), 'race', 'spread: elections of no such strategy are none of them');
	$_->finish foreach values %s;
}

# -- A candidacy that ends and stands again, under other names, in one statement

{
	my $session = session($node, name => 'renamed');
	my @calls = ("leave('names')", "join('names', 'b')", "leave('names')", "join('names', 'c')");

	is($session->query("SELECT leader_election.join('names', 'a')"), 1, 'names: leads');
	$session->query('DO $$ BEGIN ' . join(' ', map { "PERFORM leader_election.$_;" } @calls)
		  . q( RAISE EXCEPTION 'undone'; END $$));
	is($session->sqlstate, 'P0001', 'names: all is undone');
	is($session->query("SELECT leader_election.is_leader('names')"), 't', 'names: leads on');
	is($session->query("SELECT leader_election.join('names', 'a')"), 1, 'names: under the first name');
	is(leads('a', 'names'), 'names', 'names: as others see it');
	is(do_calls($session, @calls), '00000', 'names: all is done');
	is(leads('c', 'names'), 'names', 'names: leads under the last name');
	is($session->sqlstate_of("SELECT leader_election.join('names', 'a')"), 'LE004', 'names: and has no other');
	is($session->query("SELECT leader_election.is_leader('names')"), 't', 'names: leads');
	$session->finish;
}

# -- A lost session fences nothing, although its term was asserted just before.

{
	my $session = session($node, name => 'fenced');

	is($session->query("SELECT leader_election.join('fenced', 'a')"), 1, 'fenced: leads');
	$session->query('BEGIN');
	is($session->sqlstate_of("SELECT leader_election.assert_leader('fenced', 1)"), '00000', 'fenced: in term 1');
	$session->query('SELECT pg_advisory_unlock_all()');
	is($session->sqlstate_of("SELECT leader_election.assert_leader('fenced', 1)"), 'LE001',
		'fenced: not once its session lock is lost (G3)');
	$session->query('ROLLBACK');
	$session->finish;
}

# -- Transactions of others that are prepared

{
	my $session = session($node, name => 'prepared');

	is($session->query("SELECT leader_election.join('prepared', 'a')"), 1, 'prepared: leads');
	foreach my $end (qw(COMMIT ROLLBACK))
	{
		is($session->sqlstate_of("BEGIN; CREATE TABLE t (i int); PREPARE TRANSACTION 'p'"), '00000',
			'prepared: a transaction of no concern to elections');
		is($session->query("SELECT leader_election.is_leader('prepared')"), 't', 'prepared: its session leads on');
		is($session->sqlstate_of("$end PREPARED 'p'"), '00000', "prepared: $end");
		is($session->query("SELECT leader_election.is_leader('prepared')"), 't', 'prepared: and leads on');
		$session->query('DROP TABLE IF EXISTS t');
	}

	# It loses its session lock in one.
	$session->query("BEGIN; SELECT pg_advisory_unlock_all(); CREATE TABLE t (i int); PREPARE TRANSACTION 'p'");
	is($session->sqlstate, '00000', 'prepared: one that releases the session lock');
	is($session->query("SELECT leader_election.is_leader('prepared')"), 'f', 'prepared: leads no more (G3)');
	is($session->sqlstate_of("SELECT leader_election.join('prepared', 'a')"), 'LE006', 'prepared: and is told so');
	$session->query("ROLLBACK PREPARED 'p'");
	$session->finish;
}

$node->stop;
done_testing();
