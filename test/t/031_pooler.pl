# Through a real connection pooler: PgBouncer in transaction mode, with fewer
# server connections than clients.
#
# Detached candidates work there.  Session candidates do not, and why is shown
# as well.  The pooler is the test's own, on a port of the loopback interface.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use LeaderElection;
use List::Util qw(max min uniq);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock_gettime sleep CLOCK_BOOTTIME);

my $CLIENTS = 10;
my $POOL_SIZE = 3;

my ($pgbouncer) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}),
  '/usr/sbin';
plan skip_all => 'there is no pgbouncer' unless $pgbouncer;

# Autovacuum must not lock the leases to truncate them: in doubt, is_leader()
# is false, and here it has to be true all the time.
my $node = new_server(
	config => q(
leader_election.lease_duration = '500ms'
client_min_messages = warning
autovacuum = off
));
my $control = session($node, name => 'control');

# --- The pooler

my $pooler;
my $pooler_pid;
my $pooler_port = PostgreSQL::Test::Cluster::get_free_port();
my $pooler_conf = $node->basedir . '/pgbouncer.ini';
my $pooler_log = "${PostgreSQL::Test::Utils::log_path}/031_pooler_pgbouncer.log";

# What it calls databases are pools.
my $server = 'host=' . $node->host . ' port=' . $node->port
  . ' dbname=postgres user=' . $control->query('SELECT current_user');
append_to_file($pooler_conf, qq(
[databases]
pool = $server pool_size=$POOL_SIZE
shared = $server pool_size=1
session = $server pool_size=1 pool_mode=session

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $pooler_port
unix_socket_dir =
auth_type = any
pool_mode = transaction
server_round_robin = 1
));

END
{
	kill('KILL', $pooler_pid) if $pooler_pid;
}

sub pooled
{
	my ($name, $pool) = @_;

	return session(
		$node,
		name => $name,
		dbname => $pool // 'pool',
		host => '127.0.0.1',
		port => $pooler_port);
}

# It does not outlive this test, even if that is killed.
sub start_pooler
{
	$pooler = IPC::Run::start(
		[ qw(setpriv --pdeathsig KILL), $pgbouncer, $pooler_conf ],
		'<' => \'',
		'>>' => $pooler_log,
		'2>&1');
	$pooler_pid = $pooler->{KIDS}[0]{PID};
	wait_until(
		sub {
			return eval { pooled('probe')->finish; 1 };
		},
		'the pooler');
	return;
}

sub kill_pooler
{
	kill('KILL', $pooler_pid);
	eval { $pooler->finish };
	$pooler_pid = undef;
	return;
}

start_pooler();

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

# --- Ten clients compete for one election.
#
# Each keeps its own books as the README tells it to: it leads from the moment
# at which it has the answer until remaining_ms after the moment at which it
# sent the request, or until it sends the release.  One that falls silent, or is
# killed, has the rest of its lease all the same: that is never taken early.
# The server's clock, asked right after the grant, tells when the term began:
# all that runs on one machine, and both read the same clock.

my @clients;
my @leads;          # { name, term, granted, from, to, over, how, reason }
my @lost;           # who never got the answer to an acquire
my @wrong;
my @observations;   # { by, from, to, terms }
my %served;         # backends by pooler, and by client
my %done = map { $_ => 0 } qw(release silence kill);
my %wanted = (release => 6, silence => 3, kill => 3);
my $poolers = 1;

# How leaders are to end: one way after the other, as often as is wanted
sub next_fate
{
	my @left = grep { $done{$_} < $wanted{$_} } sort keys %wanted;

	return @left ? $left[ @leads % @left ] : 'release';
}

sub send_call
{
	my ($c, $function, @args) = @_;
	my $sql = call($can_bind && $c->{extended}, $function, 'e', @args);

	# Which backend serves it, and when, is told even if there is no row.
	$sql =~ s/^SELECT \* FROM (.*\))/
SELECT pg_backend_pid(), leader_election.monotonic_clock(), f.*
FROM (VALUES (1)) one LEFT JOIN $1 f ON true/;
	$c->{call} =
	  { function => $function, pooler => $poolers, sent => now() };
	$c->{session}->query_async($sql);
	return;
}

sub reconnect
{
	my ($c) = @_;

	push @lost, $c->{name}
	  if $c->{call} && $c->{call}{function} eq 'acquire';
	delete $c->{call};
	$c->{session} = pooled($c->{name});
	$c->{next} = now();
	return;
}

# What a client does when its time has come
sub act
{
	my ($c) = @_;
	my $lead = $c->{lead};

	unless ($lead)
	{
		send_call($c, 'acquire', $c->{name});
		return;
	}
	if ($c->{renewals}-- > 0)
	{
		send_call($c, 'renew', $lead->{term});
		return;
	}

	if ($lead->{how} eq 'release')
	{
		$c->{to} = $lead->{to};
		$lead->{to} = min($lead->{to}, now());
		send_call($c, 'release', $lead->{term});
	}
	elsif ($lead->{how} eq 'kill')
	{
		send_call($c, 'renew', $lead->{term});
		$c->{session}->kill;
		$lead->{reason} = 'expired';
		$done{kill}++;
		delete $c->{lead};
		reconnect($c);
	}
	elsif (!$lead->{silent})
	{
		$lead->{silent} = 1;
		$c->{next} = $lead->{over} + rand(0.2);
	}
	else
	{
		send_call($c, 'renew', $lead->{term});
	}
	return;
}

# What a client makes of an answer
sub answered
{
	my ($c, $call, $got, $row) = @_;
	my ($pid, $clock, $result, $remaining) = split /\|/, $row;
	my $lead = $c->{lead};
	my $ends = $call->{sent} + ($remaining || 0) / 1000;

	# When it is over for the server, too; milliseconds are rounded down.
	my $over = $got + (($remaining || 0) + 1) / 1000;

	$served{"pooler $call->{pooler}"}{$pid} = 1;
	$served{ $c->{name} }{$pid} = 1;
	if ($call->{function} eq 'acquire')
	{
		$c->{next} = $got + 0.02 + rand(0.04);
		return unless defined $result && $result ne '';
		$c->{lead} = {
			name => $c->{name},
			term => $result,
			granted => $clock / 1e6,
			from => $got,
			to => $ends,
			over => $over,
			how => next_fate()
		};
		push @leads, $c->{lead};
		$c->{renewals} = 1 + int(rand(3));
		$c->{next} = $got + 0.1;
	}
	elsif ($call->{function} eq 'release')
	{
		push @wrong, "term $lead->{term} could not be released"
		  if $result ne 't' && $got < $c->{to};
		$lead->{reason} = 'resigned' if $result eq 't';
		$done{release}++ if $result eq 't';
		delete $c->{lead};
	}
	elsif (defined $result && $result ne '')
	{
		push @wrong, "term $lead->{term} was renewed after its deadline"
		  if $lead->{silent};
		push @wrong, "term $lead->{term} was renewed as $result"
		  if $result ne $lead->{term};
		$lead->{to} = max($lead->{to}, $ends);
		$lead->{over} = max($lead->{over}, $over);
		$c->{next} = $got + 0.1;
	}
	else
	{
		push @wrong, "term $lead->{term} was over before its deadline"
		  if $got < $lead->{to};
		$lead->{reason} = 'expired';
		$done{silence}++ if $lead->{silent};
		delete $c->{lead};
	}
	return;
}

sub step
{
	my ($c) = @_;

	if (my $call = $c->{call})
	{
		return unless $c->{session}->finished;
		my $got = now();
		my $row = $c->{session}->result;

		if (!$c->{session}->alive)
		{
			reconnect($c);
			return;
		}
		delete $c->{call};
		if ($c->{session}->sqlstate ne '00000')
		{
			push @wrong, "$c->{name}: " . $c->{session}->errors;
			return;
		}
		answered($c, $call, $got, $row);
	}
	elsif (now() >= $c->{next})
	{
		act($c);
	}
	return;
}

# Somebody else asks which terms are valid.  The calls are made one after the
# other, the greatest term first: if two were valid at once, both would show.
sub observe
{
	my ($o) = @_;

	if ($o->{sent})
	{
		return unless $o->{session}->finished;
		my $terms = $o->{session}->result;

		push @observations,
		  {
			by => $o->{name},
			from => $o->{sent},
			to => now(),
			terms => { map { $_ => 1 } split(/,/, $terms) }
		  }
		  if $o->{session}->sqlstate eq '00000';
		$o->{session} = pooled($o->{name}) unless $o->{session}->alive;
	}
	my $most = 3 + max(0, map { $_->{term} } @leads);
	$o->{sent} = now();
	$o->{session}->query_async(
		"SELECT array_to_string(ARRAY(SELECT t FROM generate_series($most, 1, -1) t"
		  . " WHERE leader_election.is_leader('e', t)), ',')");
	return;
}

note 'seed ' . srand;
@clients = map {
	{
		name => "client_$_",
		extended => $_ % 2,
		session => pooled("client_$_"),
		next => 0
	}
} 1 .. $CLIENTS;
my @observers = (
	{ name => 'direct', session => session($node, name => 'direct') },
	{ name => 'pooled', session => pooled('pooled') });

# The pooler dies and comes back on the way.
my $until = now() + $PostgreSQL::Test::Utils::timeout_default;
while (grep { $done{$_} < $wanted{$_} } keys %wanted)
{
	if ($poolers == 1 && @leads >= 5)
	{
		kill_pooler();
		start_pooler();
		$poolers++;
	}
	step($_) foreach @clients;
	observe($_) foreach @observers;
	die 'timed out: ' . join(' ', %done) if now() > $until;
	sleep(0.001);
}
foreach my $c (grep { $_->{call} } @clients)
{
	wait_until(sub { $c->{session}->finished }, "an answer to $c->{name}");
	step($c);
}

note scalar(@leads) . ' leaderships, ' . scalar(@observations)
  . ' observations, lost answers: ' . scalar(@lost);
is_deeply(\@wrong, [], 'every answer is the right one');

# A connection whose client is killed while it is in use is replaced.
cmp_ok(
	keys %{ $served{"pooler $_"} },
	'<=',
	$POOL_SIZE + $wanted{kill},
	"$CLIENTS clients share fewer server connections of pooler $_")
  foreach 1 .. $poolers;
is_deeply([ grep { keys %{ $served{ $_->{name} } } < 2 } @clients ],
	[], '... and each is served by several of them');
cmp_ok(uniq(map { $_->{name} } @leads), '>', 1, 'leaders change');

# No two valid terms at a time, as far as the leaders themselves believe
my @overlaps;
my $last = { term => 0, to => 0 };
foreach my $lead (sort { $a->{granted} <=> $b->{granted} } @leads)
{
	push @overlaps,
	  "term $lead->{term} of $lead->{name} began"
	  . " at $lead->{granted}, term $last->{term} ended at $last->{to}"
	  if $lead->{term} <= $last->{term} || $lead->{granted} < $last->{to};
	$last = $lead;
}
is_deeply(\@overlaps, [],
	'no leader led before the one before it was over, and terms grow');

# ... and as far as others are told
my $agreed = 0;
my @contradictions;
foreach my $o (@observations)
{
	my $seen = join(',', keys %{ $o->{terms} });

	push @contradictions, "the $o->{by} observer saw terms $seen at once"
	  if keys %{ $o->{terms} } > 1;
	foreach my $lead (@leads)
	{
		next unless $lead->{from} <= $o->{from} && $o->{to} <= $lead->{to};
		if ($seen eq $lead->{term})
		{
			$agreed++;
			next;
		}
		push @contradictions,
		  "term $lead->{term} was led, the $o->{by} observer saw ($seen)";
	}
}
is_deeply(\@contradictions, [],
	'is_leader(election, term) is true for others while it is led,'
	  . ' and never for another term');
cmp_ok($agreed, '>', 20, '... as was seen often enough');

# History knows them all.  A term whose grant was lost on the way is nobody's.
my %history =
  map { my @f = split /\|/, $_, -1; ($f[0] => \@f) }
  $control->query("SELECT term, leader, reason, detail"
	  . " FROM leader_election.history WHERE election = 'e'");
my @unheard = grep {
	my $term = $_;
	!grep { $_->{term} == $term } @leads
} sort { $a <=> $b } keys %history;
my @unexplained = grep {
	my $name = $history{$_}[1];
	!grep { $_ eq $name } @lost
} @unheard;

is_deeply([ sort { $a <=> $b } keys %history ],
	[ 1 .. keys %history ], 'terms count one by one');
is_deeply(
	[
		map { "$_->{term} $_->{name} " . ($_->{reason} // 'any') } @leads
	],
	[
		map {
			my $h = $history{ $_->{term} } // [];
			"$_->{term} " . ($h->[1] // 'nobody') . ' '
			  . ($_->{reason} ? $h->[2] // 'none' : 'any')
		} @leads
	],
	'history tells who led in each term, and why it ended');
is_deeply(\@unexplained, [],
	'a term that no client was told of is one whose answer was lost');
is( $control->query(
		"SELECT count(*) FROM (SELECT acquired_at, lag(ended_at)"
		  . ' OVER (ORDER BY term) AS before FROM leader_election.history'
		  . " WHERE election = 'e') t WHERE acquired_at < before"),
	'0',
	'... and no term began before the one before had ended');

is( $control->query(
		'SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)'
		  . " WHERE locktype = 'advisory' AND backend_type = 'client backend'"),
	'0',
	'no lock is left on any server connection (authentik#23876)');
$_->{session}->kill foreach @clients, @observers;

# From here on leases are long: nothing expires by itself.
$node->append_conf('postgresql.conf',
	"leader_election.lease_duration = '30s'");
$node->reload;
wait_for($node, 'SHOW leader_election.lease_duration', '30s');

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
