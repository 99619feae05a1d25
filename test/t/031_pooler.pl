# Through a real connection pooler: PgBouncer in transaction mode, with fewer
# server connections than clients.
#
# Detached candidates work there.  Session candidates do not, and why is shown
# as well.  Many clients that compete are in 029_pooler_contest.pl.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Pooler;
use Test::More;
use Time::HiRes qw(clock_gettime CLOCK_BOOTTIME);

plan skip_all => 'there is no pgbouncer' unless find_pooler();

my $POOL_SIZE = 3;

my $node = new_server(
	config => q(
leader_election.lease_duration = '30s'
client_min_messages = warning
autovacuum = off
));
my $control = session($node, name => 'control');

set_up_pooler(
	$node,
	pool => "pool_size=$POOL_SIZE",
	shared => 'pool_size=1',
	session => 'pool_size=1 pool_mode=session');

# The extended protocol with parameters, where psql knows how
my $can_bind = $control->query('\echo :VERSION_NUM') >= 160000;

# A call of one of our functions, as a query
sub call
{
	my ($extended, $function, @args) = @_;

	return "SELECT * FROM leader_election.$function("
	  . join(', ',
		map { $extended ? "\$$_" : "'$args[$_ - 1]'" } 1 .. @args)
	  . ')'
	  . ($extended ? " \\bind @args \\g" : '');
}

# The clock that leases are measured with
sub now
{
	return clock_gettime(CLOCK_BOOTTIME);
}

# --- Parameters, by the extended protocol

SKIP:
{
	skip 'this psql has no \bind', 7 unless $can_bind;

	my $one = pooled('one');
	my $two = pooled('two');

	like($one->query(call(1, 'acquire', 'bind', 'one')),
		qr/^1\|\d+\|.*\|f$/, 'acquire with parameters');
	is($two->query(call(1, 'acquire', 'bind', 'two')),
		'', '... is not granted twice');
	like($two->query(call(1, 'renew', 'bind', 1)),
		qr/^1\|\d+\|.*\|f$/, 'renew with parameters');
	is($two->query(call(1, 'is_leader', 'bind', 1)),
		't', 'is_leader with parameters');
	is($one->query(call(1, 'transfer', 'bind', 1, 'two')),
		't', 'transfer with parameters');
	like($two->query(call(1, 'acquire', 'bind', 'two')),
		qr/^2\|/, '... to the one that calls');
	is($one->query(call(1, 'release', 'bind', 2)),
		't', 'release with parameters');
	$_->finish foreach $one, $two;
}

# --- Why session calls are not supported behind a pooler: two clients that
# share a server connection are one session.

{
	my $a = pooled('a', 'shared');
	my $b = pooled('b', 'shared');

	is($a->backend_pid, $b->backend_pid, 'two clients have one backend');
	is($a->query("SELECT leader_election.join('shared', 'a')"),
		'1', 'one joins, and leads');
	is($b->query("SELECT leader_election.is_leader('shared')"),
		't', '... and the other is told that it leads, too');
	is($b->query("SELECT leader_election.join('shared', 'a')"),
		'1', '... also when it joins under the same name');
	is($b->sqlstate_of("SELECT leader_election.join('shared', 'b')"),
		'LE004', '... but another name is refused');
	like($b->errors, qr/HINT: .*transaction pooler.*acquire\(\)/,
		'... with a hint at what to use');

	is($b->query(
			"SELECT leader_election.is_leader('shared', 1),"
			  . " leader_election.is_leader('shared', 2)"),
		't|f',
		'what is asked by term is right');
	is($b->sqlstate_of("SELECT leader_election.release('shared', 1)"),
		'22023', '... and a session\'s term is not for sale');
	$a->finish;
	is( $control->query(
			"SELECT state, leader FROM leader_election.status"
			  . " WHERE election = 'shared'"),
		'led|a',
		'the session outlives its client, and goes on leading');
	is($b->query("SELECT leader_election.resign('shared')"),
		't', '... until another client resigns for it');

	# On the same backend, detached candidates do not mind.
	$a = pooled('a', 'shared');
	is($a->backend_pid, $b->backend_pid, 'again one backend');
	like($a->query("SELECT leader_election.acquire('by_term', 'a')"),
		qr/^\(1,/, 'one acquires');
	is($b->query("SELECT leader_election.acquire('by_term', 'b')"),
		'', '... and the other does not');
	is($b->query("SELECT leader_election.is_leader('by_term')"),
		'f', '... nor does its session lead');
	is($b->query("SELECT leader_election.is_leader('by_term', 1)"),
		't', '... but it sees that somebody does');

	# Anybody may reset the session that all of them share.
	is($a->query("SELECT leader_election.join('reset', 'a')"),
		'1', 'a session leads');
	$b->query('DISCARD ALL');
	is($a->query("SELECT leader_election.is_leader('reset')"),
		'f', '... until another client discards all');
	is($a->query("SELECT leader_election.is_leader('by_term', 1)"),
		't', '... which costs a detached leader nothing');
	$_->finish foreach $a, $b;
}

# --- In session mode a client has a session, as long as it is connected: then
# the pooler resets it (server_reset_query) and lends it to the next.

{
	my $heir = session($node, name => 'heir');
	my $a = pooled('a', 'session');
	my $backend = $a->backend_pid;

	is($a->query("SELECT leader_election.join('session', 'a')"),
		'1', 'a client in session mode leads');
	is($a->query("SELECT leader_election.is_leader('session')"),
		't', '... and is told so');
	$heir->query_async("CALL leader_election.campaign('session', 'heir')");
	$a->kill;
	is($heir->result, '2', 'when it is killed, another leads');

	my $b = pooled('b', 'session');
	is($b->backend_pid, $backend, 'the next client has the same backend');
	is($b->query("SELECT leader_election.is_leader('session')"),
		'f', '... and leads nothing');
	is($b->query("SELECT leader_election.join('session', 'b')"),
		'', '... but may stand under a name of its own');
	is( $control->query(
			"SELECT string_agg(candidate, ' ' ORDER BY candidate)"
			  . " FROM leader_election.candidates"
			  . " WHERE election = 'session' AND alive"),
		'b heir',
		'... and the former candidacy is gone');
	is( $control->query(
			'SELECT leader, reason FROM leader_election.history'
			  . " WHERE election = 'session' AND term = 1"),
		'a|session reset',
		'... for a reason that history knows');
	$_->finish foreach $b, $heir;
}

# --- Lead on one connection, work on a pool.

{
	my $leader = session($node, name => 'leader');
	my @workers = map { pooled("worker_$_") } 1 .. $POOL_SIZE + 1;
	my $ask = "SELECT leader_election.is_leader('work', 1)";
	my %instead = (
		"renew('work', 1)" => 'renew(election)',
		"release('work', 1)" => 'resign(election)',
		"transfer('work', 1, 'other')" => 'transfer(election, to_candidate)');

	is($leader->query("SELECT leader_election.join('work', 'leader')"),
		'1', 'a session leads');
	is_deeply([ map { scalar $_->query($ask) } @workers ],
		[ ('t') x @workers ], 'clients of the pool see its term');
	is($workers[0]->query("SELECT leader_election.is_leader('work')"),
		'f', '... and do not lead themselves');
	foreach my $call (sort keys %instead)
	{
		is($workers[0]->sqlstate_of("SELECT leader_election.$call"),
			'22023', "$call is not for them");
		like($workers[0]->errors,
			qr/HINT:  Call \Q$instead{$call}\E in that session\./,
			'... and what is, is said');
	}
	is($leader->query("SELECT leader_election.is_leader('work')"),
		't', 'all that has changed nothing');

	is($leader->query("SELECT leader_election.resign('work')"),
		't', 'the session resigns');
	is_deeply([ map { scalar $_->query($ask) } @workers ],
		[ ('f') x @workers ], '... which clients of the pool see at once');
	is( $workers[0]->query("SELECT count(*) FROM leader_election.renew('work', 1)"),
		'0',
		'... and its term can be renewed by nobody');

	# The same when its process dies
	is($leader->query("SELECT leader_election.join('work', 'leader')"),
		'2', 'it leads again');
	$ask =~ s/1/2/;
	is($workers[1]->query($ask), 't', '... in a term that the pool sees');
	$leader->kill;
	wait_until(sub { $workers[1]->query($ask) eq 'f' },
		'the end of a term', 5);
	pass('... until its process is killed');
	$_->finish foreach @workers;
}

# --- The connections of a detached leader die, and it leads on.

{
	my $leader = pooled('leader');
	my $rival = session($node, name => 'rival');
	my ($term, $remaining) = split /\|/,
	  $leader->query("SELECT * FROM leader_election.acquire('alone', 'leader')");
	my $until = now() + $remaining / 1000;

	# Nothing but the lease keeps the rival out.
	my $leads_on = sub {
		my ($when) = @_;

		is($rival->query("SELECT leader_election.acquire('alone', 'rival')"),
			'', "$when: its rival does not lead");
		is( $rival->query("SELECT leader_election.is_leader('alone', $term)"),
			't', '... because it does still');
	};

	# It tries again and again, over whatever connection it can get.
	my $renews = sub {
		my ($when) = @_;
		my $renewed;

		wait_until(
			sub {
				my $sent = now();

				return 0 unless eval {
					$leader = pooled('leader') unless $leader->alive;
					1;
				};
				$renewed = $leader->query(
					"SELECT term, remaining_ms FROM leader_election.renew('alone', $term)"
				);
				return 0 unless $leader->sqlstate eq '00000';
				cmp_ok($sent, '<', $until, "$when: it asks in time");
				$until = $sent + ($renewed =~ s/\|(\d+)$// ? $1 : 0) / 1000;
				return 1;
			},
			"$when: an answer");
		is($renewed, $term, '... and renews its lease');
	};

	is($term, 1, 'a detached candidate leads');
	kill_pooler();
	$leads_on->('the pooler was killed');
	is($leader->sqlstate_of('SELECT 1'), '08006', 'its connection is lost');
	ok(!eval { pooled('other'); 1 }, '... and there is no other');
	start_pooler();
	$renews->('the pooler is back');

	my $server_connections = q(
FROM pg_stat_activity WHERE backend_type = 'client backend'
	AND application_name NOT IN ('control', 'rival', 'wait_for'));
	my $terminate = "SELECT count(pg_terminate_backend(pid, 10000)) $server_connections";

	cmp_ok($control->query($terminate), '>', 0,
		'the idle connections of the pooler are terminated');
	$leads_on->('its server connection was terminated');
	$renews->('its server connection is replaced');

	$leader->query_async('SELECT pg_sleep(100)');
	wait_for($node,
		"SELECT count(*) > 0 $server_connections AND query ~ '^SELECT pg_sleep'");
	cmp_ok($control->query($terminate),
		'>', 0, 'the one that it uses is terminated');
	$leader->result;
	isnt($leader->sqlstate, '00000', '... which it is told');
	$leads_on->('its running query was ended');
	$renews->('its server connection is replaced again');

	is( $control->query(
			'SELECT leader, ended_at IS NULL FROM leader_election.history'
			  . " WHERE election = 'alone'"),
		'leader|t',
		'nobody else has led in between');
	is($leader->query("SELECT leader_election.release('alone', $term)"),
		't', 'it gives the lease back');
	like($rival->query("SELECT leader_election.acquire('alone', 'rival')"),
		qr/^\(2,/, '... and its rival leads');
}

kill_pooler();
done_testing();
