# Connection pools of drivers, which reset a connection that is given back: all
# its advisory locks are released, and so its session leads nothing any more.
# The client is told (LE006), once, by its next call.
#
# First with asyncpg, whose pool does that, as an application would use it; then
# with psql, case by case: what is told, to whom, for how long, and what is not.
# And whose session it is that has a name already (LE004), for it may be one's
# own.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use LeaderElection;
use PgLeader;
use Pooler;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $CALLS = 36;
my @INSTANCES = qw(one two three);

# Seconds: a loss is told for a lease, and for no less than this.
my $SHORTEST_MEMORY = 10;
my $LONG_LEASE = 11;

my ($python) = grep { system("$_ -c 'import asyncpg' >/dev/null 2>&1") == 0 }
  qw(/usr/bin/python3 python3);
plan skip_all => 'there is no asyncpg' unless $python;
plan skip_all => 'there is no pgbouncer' unless find_pooler();

my $node = new_server(
	config => q(
listen_addresses = '127.0.0.1'
client_min_messages = warning
));
my $control = session($node, name => 'control');

sub join_of
{
	my ($election, $name) = @_;

	return "SELECT leader_election.join('$election', '$name')";
}

# Joins, and waits until that session leads: the worker may look at the same
# election just now.
sub lead
{
	my ($session, $election, $name) = @_;

	is($session->sqlstate_of(join_of($election, $name)),
		'00000', "$election: $name stands");
	wait_until(
		sub { $session->query("SELECT leader_election.is_leader('$election')") eq 't' },
		"$name to lead $election");
	return;
}

sub told
{
	my ($session, $sql, $what) = @_;

	is($session->sqlstate_of($sql), 'LE006', "$what: LE006");
	return;
}

sub not_told
{
	my ($session, $sql, $what) = @_;

	is($session->sqlstate_of($sql), '00000', "$what: no error");
	return;
}

sub reasons
{
	my ($election) = @_;

	return $control->query("SELECT string_agg(coalesce(reason, 'leads'), ', ' ORDER BY term)
		FROM leader_election.history WHERE election = '$election'");
}

sub ends_with
{
	my ($election, $reason) = @_;

	wait_for($node,
		"SELECT reason FROM leader_election.history WHERE election = '$election'
		ORDER BY term DESC LIMIT 1",
		$reason);
	pass("$election: $reason");
	return;
}

# --- Three instances, with the loop of the README but with asyncpg's pool.

my $program = "${PostgreSQL::Test::Utils::tmp_check}/pools.py";
append_to_file($program, <<'END');
import asyncio, sys, time
import asyncpg

host, port, user, kind, election, calls, *names = sys.argv[1:]

class Kept(asyncpg.Connection):          # for a pool that does not reset
    async def reset(self, *, timeout=None):
        pass

async def call(pool, name):
    async with pool.acquire() as conn:
        pid = conn.get_server_pid()
        try:
            term = await conn.fetchval("SELECT leader_election.join($1, $2)", election, name)
            leads = await conn.fetchval("SELECT leader_election.is_leader($1)", election)
            print(name, pid, term, leads, '00000', repr(time.time()))
        except asyncpg.PostgresError as error:
            print(name, pid, None, False, error.sqlstate, repr(time.time()))

async def main():
    async def create():
        return await asyncpg.create_pool(
            host=host, port=port, user=user, database='postgres', min_size=1, max_size=1,
            connection_class=Kept if kind == 'kept' else asyncpg.Connection)
    if kind == 'shared':
        pools = [await create()] * len(names)
    else:
        pools = [await create() for _ in names]
    for n in range(int(calls)):
        await call(pools[n % len(names)], names[n % len(names)])
    print('done', flush=True)
    sys.stdin.read()                     # sessions that were reset live on

asyncio.run(main())
END

# Runs them: each call's answer, in order. Sessions live on until $finish->().
sub run_instances
{
	my ($kind) = @_;
	my ($in, $out) = ('', '');
	my $run = IPC::Run::start(
		[
			$python, $program, $node->host, $node->port,
			$control->query('SELECT current_user'), $kind, $kind, $CALLS,
			@INSTANCES ],
		'<' => \$in,
		'>' => \$out,
		'2>' => \my $err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	eval { $run->pump until $out =~ /^done$/m };
	die "asyncpg: $@\n$out$err" unless $out =~ /^done$/m;

	my @answers;
	foreach (grep { !/^done/ } split(/\n/, $out))
	{
		my %a;
		@a{qw(name pid term leads sqlstate at)} = split;
		push @answers, \%a;
	}
	return (sub { $run->kill_kill; }, @answers);
}

foreach my $kind (qw(own shared))
{
	my ($finish, @answers) = run_instances($kind);
	my (%calls, @terms, @wrong);

	is(scalar @answers, $CALLS, "$kind: $CALLS calls");
	push @{ $calls{ $_->{name} } }, $_ foreach @answers;
	is(scalar(keys %{ { map { $_->{pid} => 1 } @answers } }),
		$kind eq 'own' ? 3 : 1, "$kind: as many sessions as pools");

	# An instance lost its candidacy when its connection was given back. Its next
	# call on that connection says so.
	foreach my $name (@INSTANCES)
	{
		is( join(' ', map { $_->{sqlstate} } @{ $calls{$name} }),
			join(' ', ('00000 LE006') x ($CALLS / @INSTANCES / 2)),
			"$kind: $name is told of every loss, once");
	}
	cmp_ok(scalar(grep { $_->{leads} eq 'True' } @answers),
		'>=', 3, "$kind: some of them led");

	# No two consecutive terms of an instance begin without an LE006 between.
	# (Of different instances they do: each can only be told by its own call.)
	wait_for($node,
		"SELECT count(*) FROM leader_election.history WHERE election = '$kind' AND ended_at IS NULL", 0);
	foreach my $line ($control->query(
		"SELECT leader, extract(epoch FROM acquired_at) FROM leader_election.history
		WHERE election = '$kind' ORDER BY term"))
	{
		my ($name, $at) = split(/\|/, $line);
		my ($last) = grep { $_->{name} eq $name } reverse @terms;

		push @wrong, "$name: $last->{at}, $at"
		  if $last && !grep {
			     $_->{sqlstate} eq 'LE006'
			  && $_->{at} > $last->{at}
			  && $_->{at} < $at
		  } @{ $calls{$name} };
		push @terms, { name => $name, at => $at };
	}
	is_deeply(\@wrong, [], "$kind: between two terms of an instance it is told");
	cmp_ok(scalar @terms, '>=', 3, "$kind: there were terms");
	is( $control->query("SELECT string_agg(DISTINCT reason, ', ')
			FROM leader_election.history WHERE election = '$kind'"),
		'session reset', "$kind: history says why they ended");
	$finish->();
}

# A pool that does not reset: the session leads on while it is idle, and nobody
# is told anything.
{
	my ($finish, @answers) = run_instances('kept');

	is( join(' ', map { "$_->{term}:$_->{sqlstate}" } @answers),
		join(' ', ('1:00000 None:00000 None:00000') x ($CALLS / 3)),
		'kept: the first one leads all the time');
	is(reasons('kept'), 'leads', 'kept: also while the pool has its connection');
	$finish->();
	ends_with('kept', 'session ended');
}

# --- What is told, and when

foreach my $reset ('DISCARD ALL', 'SELECT pg_advisory_unlock_all()')
{
	my $e = $reset =~ /DISCARD/ ? 'discard' : 'unlock';
	my $one = session($node, name => 'one');
	my $two = session($node, name => 'two');

	# A leader
	lead($one, $e, 'one');
	$one->query($reset);
	is($one->query("SELECT leader_election.is_leader('$e'), leader_election.term('$e'),
			leader_election.remaining_ms('$e')"),
		'f||', "$reset: leads no more");
	ends_with($e, 'session reset');
	told($one, join_of($e, 'one'), "$reset, join()");
	like($one->errors, qr/this session was reset while it stood in election "$e", as candidate "one"/,
		'... which names the election');
	like($one->errors, qr/DETAIL:.*DISCARD ALL or pg_advisory_unlock_all\(\)/, '... and the cause');
	like($one->errors, qr/HINT:  Connection pools .*no pool manages\. .*acquire\(\)/,
		'... and the remedy');
	lead($one, $e, 'one');

	# One that follows, and the elections of a session one by one
	not_told($two, join_of($e, 'two'), "$reset: another stands");
	lead($two, "$e 2", 'two');
	$two->query($reset);
	told($two, join_of("$e 2", 'two'), "$reset, the leader of another election");
	lead($two, "$e 2", 'two');
	told($two, join_of($e, 'two'), "$reset, who did not lead");
	not_told($two, join_of($e, 'two'), "$reset, again");

	# renew() and campaign()
	$one->query($reset);
	told($one, "SELECT * FROM leader_election.renew('$e')", "$reset, renew()");
	is($one->query("SELECT * FROM leader_election.renew('$e')"), '', '... once');
	is($one->sqlstate, '00000', '... without an error');
	not_told($one, join_of($e, 'one'), '... and nor does join()');
	$one->query($reset);
	told($one, "CALL leader_election.campaign('$e', 'one', '0')", "$reset, campaign()");
	not_told($one, "CALL leader_election.campaign('$e', 'one', '0')", '... once');
	not_told($two, "SELECT leader_election.leave_all()", "$reset: the other session leaves");

	# A campaign's candidacy has a lock of its own.
	is($one->query("CALL leader_election.campaign('$e 3', 'one')"), 1, "$reset: elected by campaign()");
	$one->query($reset);
	ends_with("$e 3", 'session reset');
	told($one, join_of("$e 3", 'one'), "$reset after campaign()");

	# What only looks, or gives up, says what is so, and the loss is still told.
	lead($one, $e, 'one');
	$one->query($reset);
	is( $one->query("SELECT leader_election.resign('$e'), leader_election.leave('$e'),
			leader_election.transfer('$e', 'two'), leader_election.leave_all()"),
		'f|f|f|0', "$reset: there is nothing to give up");
	told($one, join_of($e, 'one'), "$reset, after that");

	# Other names belong to other clients, who have lost nothing.
	lead($one, "$e 4", 'one');
	$one->query($reset);
	not_told($one, join_of("$e 4", 'another'), "$reset, another name");
	told($one, join_of("$e 4", 'one'), "$reset, the first one");
	$one->query($reset);
	told($one, join_of("$e 4", 'another'), "$reset, then the other");
	not_told($one, join_of("$e 4", 'one'), "$reset, which is free");
	$_->finish foreach $one, $two;
}

# However many elections a session stands in, it is told of each.
{
	my $one = session($node, name => 'one');
	my @all = map { "many $_" } 1 .. 400;

	# For so long the server remembers that it was reset: longer than all calls take.
	$one->query("SELECT count(leader_election.create_election('many ' || i, lease_duration => '1 hour'))
		FROM generate_series(1, 400) i");
	is($one->query("SELECT count(*) FROM (SELECT leader_election.join('many ' || i, 'one')
			FROM generate_series(1, 400) i) stood"),
		400, 'stands in many elections');
	$one->query('DISCARD ALL');
	is_deeply([ grep { $one->sqlstate_of(join_of($_, 'one')) ne 'LE006' } @all ],
		[], 'told of each');
	is_deeply([ grep { $one->sqlstate_of(join_of($_, 'one')) ne '00000' } @all ],
		[], '... once');
	$one->finish;
}

# --- In the very transaction that releases the locks

{
	my $one = session($node, name => 'one');
	my $e = 'block';

	lead($one, $e, 'one');
	$one->query("BEGIN; SELECT pg_advisory_unlock_all() \\g /dev/null\nROLLBACK");
	told($one, join_of($e, 'one'), 'unlocked, rolled back');

	# While the transaction goes on, others see that its session lives.
	my $two = session($node, name => 'two');

	lead($one, 'open', 'one');
	not_told($two, join_of('open', 'two'), 'another stands');
	$one->query("BEGIN; SELECT pg_advisory_unlock_all() \\g /dev/null");
	lead($two, 'open', 'two');
	is(reasons('open'), 'session reset, leads', 'unlocked, not yet committed');
	$one->query('ROLLBACK');
	$two->finish;
	lead($one, $e, 'one');
	told($one,
		"DO \$\$ BEGIN PERFORM pg_advisory_unlock_all(); PERFORM leader_election.join('$e', 'one'); END \$\$",
		'unlocked and joined in a DO block');
	ends_with($e, 'session reset');
	not_told($one, join_of($e, 'one'), '... and not again');

	# Made and lost in one: with its commit it stood, without it did not.
	$e = 'made';
	told($one,
		"DO \$\$ BEGIN PERFORM leader_election.join('$e', 'one'); PERFORM pg_advisory_unlock_all();
		PERFORM leader_election.join('$e', 'one'); END \$\$",
		'joined, unlocked and joined in a DO block');
	not_told($one, join_of($e, 'one'), '... and not again');
	told($one, join_of('block', 'one'), '... but in the other election');
	$e = 'made 2';
	is($one->sqlstate_of(join_of($e, 'one') . ', pg_advisory_unlock_all(), 1 / (pg_backend_pid() - pg_backend_pid())'),
		'22012', 'joined, unlocked and failed');
	not_told($one, join_of($e, 'one') . ', pg_advisory_unlock_all()', '... it did not stand');
	told($one, join_of($e, 'one'), 'joined and unlocked');

	# What a client gives up itself it has not lost.
	$e = 'left';
	$one->query('SELECT pg_advisory_unlock_all()');
	lead($one, $e, 'one');
	is($one->query("SELECT leader_election.leave('$e') FROM pg_advisory_unlock_all()"),
		'f', 'unlocked and left');
	told($one, join_of($e, 'one'), '... is a loss');
	lead($one, $e, 'one');
	is($one->query("SELECT leader_election.leave('$e') AND pg_advisory_unlock_all() IS NOT NULL"),
		't', 'left and unlocked');
	not_told($one, join_of($e, 'one'), '... is none');
	not_told($one,
		"DO \$\$ BEGIN PERFORM leader_election.leave('$e'); PERFORM pg_advisory_unlock_all();
		PERFORM leader_election.join('$e', 'one'); END \$\$",
		'left, unlocked and joined in a DO block');
	is($one->query("SELECT leader_election.leave('$e')"), 't', 'left');
	$one->query('DISCARD ALL');
	not_told($one, join_of($e, 'one'), '... is none either');
	$one->finish;
}

# A campaign that ended without a term has left nothing to be lost; nor has the
# extension, when it is dropped.
{
	my $one = session($node, name => 'one');
	my $two = session($node, name => 'two');

	lead($one, 'failed', 'one');
	is($two->query("CALL leader_election.campaign('failed', 'two', '0')"), '', 'not elected');
	$two->query('DISCARD ALL');
	not_told($two, join_of('failed', 'two'), 'after a campaign that failed');
	$two->query('DISCARD ALL');
	$node->safe_psql('postgres', 'DROP EXTENSION leader_election; CREATE EXTENSION leader_election');
	not_told($two, join_of('failed', 'two'), 'in another extension');
	$_->finish foreach $one, $two;
}

# A session that was reset before may end like any other.
{
	my $one = session($node, name => 'one');

	lead($one, 'ended', 'one');
	$one->query('DISCARD ALL');
	ends_with('ended', 'session reset');
	told($one, join_of('ended', 'one'), 'reset');
	lead($one, 'ended', 'one');
	$one->kill;
	ends_with('ended', 'session ended');
}

# --- Locks that are released inside a campaign, by a constraint

$control->query(q{
	CREATE FUNCTION reset_session() RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM pg_advisory_unlock_all();
		RETURN true;
	END $$});
foreach my $table (qw(candidate lease))
{
	my $e = "reset in $table";
	my $one = session($node, name => 'one');
	my $campaign = "CALL leader_election.campaign('$e', 'one')";

	not_told($control, "SELECT leader_election.create_election('$e')", "$e: election");
	$control->query("ALTER TABLE leader_election.$table ADD CONSTRAINT reset
		CHECK (election <> '$e' OR public.reset_session()) NOT VALID");
	is($control->sqlstate, '00000', "$e: constraint");

	# The worker may come first: then the constraint is checked there.
	foreach my $time (qw(first again))
	{
		wait_until(
			sub {
				$one->query($campaign);
				return $one->sqlstate ne '00000'
				  || $one->sqlstate_of("SELECT leader_election.leave('$e')") ne '00000';
			},
			"$e: a reset inside campaign()");
		is($one->sqlstate, 'LE006', "$e: campaign(), $time");
	}
	$control->query("ALTER TABLE leader_election.$table DROP CONSTRAINT reset");
	like($one->query($campaign), qr/^\d+$/, "$e: without the constraint it is elected");
	$one->finish;
}

# --- For how long it is told: for a lease, and for 10 s at least

{
	my $one = session($node, name => 'one');
	my %memory = (short => $SHORTEST_MEMORY, long => $LONG_LEASE);
	my %lease = (short => 2, long => $LONG_LEASE);
	my $n = 200;
	my ($from, $to);

	foreach my $length (keys %lease)
	{
		$control->query("SELECT count(leader_election.create_election('$length ' || i,
			lease_duration => '$lease{$length} s')) FROM generate_series(1, $n / 2) i");
		is($one->query("SELECT count(*) FROM (SELECT leader_election.join('$length ' || i, 'one')
			FROM generate_series(1, $n / 2) i) stood"),
			$n / 2, "$length leases");
	}
	$from = time;
	$one->query('DISCARD ALL');
	$to = time;
	foreach my $length (qw(short long))
	{
		my ($asked, $answered, $last);

		# Each election is asked once: what is told is forgotten.
		foreach my $i (1 .. $n / 2)
		{
			$asked = time;
			$one->query(join_of("$length $i", 'one'));
			$answered = time;
			last if $one->sqlstate ne 'LE006';
			$last = $asked;
			sleep 0.2;
		}
		is($one->sqlstate, '00000', "$length: told no more in the end");
		cmp_ok($answered - $from, '>=', $memory{$length}, "$length: not too early");
		cmp_ok($last - $to, '<=', $memory{$length}, "$length: nor too late");
	}
	$one->query('SELECT leader_election.leave_all()');
	wait_until(
		sub {
			$one->query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
				AND objsubid >= 20 AND pid = pg_backend_pid()") eq '0';
		},
		'no lock of ours to be left');
	pass('no lock is left');
	$one->finish;
}

# --- pg_leader, in session mode through a pooler that gives a new client the
# session of the former one

{
	my $file = $node->basedir . '/command';

	set_up_pooler($node, postgres => 'pool_size=1 pool_mode=session');
	my @run = ('host=127.0.0.1 dbname=postgres port=' . pooler_port(), '--mode=session',
		'--pooler=session', '-e', 'command', '-n', 'same');
	my $one = pg_leader(@run, worker($file, 'polite'));

	wait_until(sub { -e "$file.log" && slurp_file("$file.log") =~ /started/ }, 'its start');
	kill('KILL', $one->pid, $one->guardian);
	$one->exit_code;
	ends_with('command', 'session reset');
	my ($code, $output) = run_pg_leader(@run, '--wait=5min', '--', 'true');

	is($code, 0, 'pg_leader, in the session of a former one, is elected');
	like($output, qr{\A[^\n]*warning: [^\n]*this session was reset}, '... with a warning');
	kill_pooler();
}

# --- Whose session has a name already

{
	my %sees;

	$control->query(q{
		CREATE ROLE app LOGIN; CREATE ROLE other LOGIN; CREATE ROLE stats LOGIN;
		CREATE ROLE member LOGIN;
		GRANT pg_read_all_stats TO stats;
		GRANT app TO member;
		GRANT USAGE ON SCHEMA leader_election TO PUBLIC;
		GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO PUBLIC});
	is($control->sqlstate, '00000', 'roles');
	my $first = session($node, name => 'the first one', user => 'app');
	my $pid = $first->backend_pid;

	lead($first, 'names', 'same');
	foreach my $user (qw(app other stats member super))
	{
		my $second = $user eq 'super' ? session($node) : session($node, user => $user);

		is($second->sqlstate_of(join_of('names', 'same')), 'LE004', "$user: in use");
		like($second->errors,
			qr/DETAIL:  A session of role "app" stands under this name: process ID $pid/,
			"$user is told whose session it is");
		if ($user eq 'other')
		{
			unlike($second->errors, qr/the first one|address|\[local\]/, "... and nothing that $user may not see");
		}
		else
		{
			like($second->errors, qr/process ID $pid, client address \[local\], application_name "the first one"\./,
				'... with its address and name');
		}
		($user eq 'app' ? \&like : \&unlike)->($second->errors,
			qr/HINT:.*connection pool.*acquire\(\)/, "$user: may it be its own pool?");
		is($second->sqlstate_of("SELECT * FROM leader_election.acquire('names', 'same')"),
			'LE004', "$user: in use for acquire(), too");
		like($second->errors, qr/process ID $pid/, '... which says whose it is');
		$second->finish;
	}
	# From elsewhere
	my $remote =
	  session($node, user => 'app', host => '127.0.0.1', port => $node->port);

	is($remote->sqlstate_of(join_of('names', 'same')), 'LE004', 'another host: in use');
	unlike($remote->errors, qr/pool/, '... not by a pool of ours');
	$first->finish;
	wait_for($node, "SELECT count(*) FROM leader_election.candidates
		WHERE election = 'names' AND alive", 0);
	lead($remote, 'names', 'same');
	foreach my $host ('127.0.0.1', $node->host)
	{
		my $second =
		  session($node, user => 'app', host => $host, port => $node->port);

		is($second->sqlstate_of(join_of('names', 'same')), 'LE004', "from $host: in use");
		like($second->errors, qr/client address 127\.0\.0\.1, application_name "session"\./,
			'... by a session of another host');
		($host eq '127.0.0.1' ? \&like : \&unlike)->($second->errors, qr/pool/,
			'... and where it is the same one, by a pool of ours, maybe');
		$second->finish;
	}
	$remote->finish;

	my $app = session($node, user => 'app');
	my $other = session($node, user => 'other');
	$app->query("SELECT * FROM leader_election.acquire('names', 'detached')");
	is($other->sqlstate_of(join_of('names', 'detached')), 'LE004', 'a detached candidate');
	like($other->errors, qr/DETAIL:  A detached candidate of role "app" stands under this name\./,
		'... is named by its role');
	unlike($other->errors, qr/pool/, '... and is no pool of ours');
	$_->finish foreach $app, $other;
}

# --- Several statements that come as one

{
	my $one = session($node, name => 'one');

	$one->query(join_of('several', 'one') . '\; SELECT 1');
	is($one->sqlstate, '25001', 'two statements in one string');
	like($one->errors, qr/HINT:.*several statements in one string.*pipeline.*SQLAlchemy.*Django/,
		'... the hint says that, and what to do');
	$one->finish;
}

$node->stop;
done_testing();
