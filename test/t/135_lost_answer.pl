# The answer to acquire() is lost: a call that repeats its request is told the
# term. Nobody else is, whatever they repeat, and nobody once it was renewed.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SyncStandby;
use Test::More;

my $node = new_server(
	streaming => 1,
	config => q(
leader_election.lease_duration = '1h'
client_min_messages = warning
));
my $a = session($node, name => 'a');
my $b = session($node, name => 'b');
my ($R, $S) = ('00000000-0000-4000-8000-00000000000a', '00000000-0000-4000-8000-00000000000b');

# An acquire(): the term, or ''
sub asks
{
	my ($session, $election, $candidate, $request, $more) = @_;

	return scalar $session->query("SELECT term FROM leader_election.acquire('$election', '$candidate'"
		  . (defined $request ? ", request => '$request'" : '') . ($more // '') . ')');
}

sub row
{
	my ($election) = @_;

	return scalar $a->query("SELECT ctid, xmin, * FROM leader_election.lease WHERE election = '$election'");
}

#
# Repeated: the same term, for as long as it lasts, and no write
#

is(asks($a, 'e', 'one', $R), 1, 'granted');
my $row = row('e');
is(asks($b, 'e', 'one', $R), 1, 'repeated, on another connection');
is(asks($a, 'e', 'one', $R), 1, 'and again');
is(row('e'), $row, 'which writes nothing');
is($a->query("SELECT count(*) FROM leader_election.history WHERE election = 'e'"), 1, 'it is one term');
is($b->query("SELECT remaining_ms <= 3600000 AND remaining_ms > 0 AND NOT yielding, expires_at =
		(SELECT expires_at FROM leader_election.lease WHERE election = 'e')
	FROM leader_election.acquire('e', 'one', request => '$R')"), 't|t', 'with what is left of it');
is(scalar(() = $b->query("SELECT (leader_election.acquire('e', 'one', request => '$R')).*")), 1, 'column by column');

is(asks($b, 'e', 'one', $S), '', 'a namesake with a request of its own is told nothing (G1)');
is(asks($b, 'e', 'one'), '', 'nor one without');
is(asks($b, 'e', 'two', $R), '', 'nor another candidate, by any request');
$b->query('CREATE ROLE other');
$b->query('GRANT USAGE ON SCHEMA leader_election TO other');
$b->query('GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO other');
$b->query('SET ROLE other');
is($b->sqlstate_of("SELECT * FROM leader_election.acquire('e', 'one', request => '$R')"), 'LE004',
	'nor another role');
$b->query('RESET ROLE');

is($a->query("SELECT leader_election.request_yield('e') > '0'"), 't', 'asked to yield');
is($b->query("SELECT term, yielding FROM leader_election.acquire('e', 'one', request => '$R')"), '1|t',
	'a grant that was asked to yield says so');

# The first renewal shows that the answer has come.
is(asks($a, 'f', 'one', $R), 1, 'f: granted');
is($a->query("SELECT term FROM leader_election.renew('f', 1)"), 1, 'f: renewed');
is(asks($b, 'f', 'one', $R), '', 'f: from then on the request is worth nothing (G1)');
is($a->query("SELECT request IS NULL FROM leader_election.lease WHERE election = 'f'"), 't', 'f: nor kept');

# Without a request nothing is repeated, also if both have none.
is(asks($a, 'g', 'one'), 1, 'g: granted without a request');
is(asks($b, 'g', 'one', $R), '', 'g: is not repeated with one');
is(asks($b, 'g', 'one'), '', 'g: nor without');

# A term that is over is over.
is($a->query("SELECT leader_election.release('g', 1)"), 't', 'g: released');
is(asks($a, 'g', 'one', $R), 2, 'g: asks anew');
is($a->query("SELECT leader_election.release('g', 2)"), 't', 'g: released');
is(asks($a, 'g', 'one', $R), 3, 'g: a request of a term that is over is a new one');
$a->query("SELECT leader_election.create_election('short', lease_duration => '100ms')");
is(asks($a, 'short', 'one', $R), 1, 'short: granted');
wait_for($node, "SELECT leader_election.leader('short') IS NULL", 't');
is(asks($a, 'short', 'one', $R), 2, 'short: the deadline has passed');

# What a process remembers of its calls in vain is no answer to a request.
is(asks($a, 'vain', 'two'), 1, 'vain: another one leads');
is(asks($b, 'vain', 'one', $R), '', "vain: call $_") foreach 1 .. 3;
is($a->query("SELECT leader_election.release('vain', 1)"), 't', 'vain: released');
is(asks($a, 'vain', 'one', $R), 2, 'vain: granted');
is(asks($b, 'vain', 'one', $R), 2, 'vain: repeated where it was in vain');
is(asks($b, 'vain', 'one'), '', "vain: without a request, call $_") foreach 1 .. 3;
is(asks($b, 'vain', 'one', $R), 2, 'vain: repeated after these');

#
# A run that may be tried once is not lost with the answer.
#

my $once = ", run => '2026-01-01', attempts => 1";
is(asks($a, 'run', 'one', $R, $once), 1, 'run: granted');
is(asks($b, 'run', 'one', $R, $once), 1, 'run: repeated, which is no attempt');
is(asks($b, 'run', 'one', $S, $once), '', 'run: another request would be');
is(asks($b, 'run', 'one', $R, ", run => '2026-01-02'"), '', 'run: not for another run');
is(asks($b, 'run', 'one', $R), '', 'run: nor for none');
is($a->query("SELECT leader_election.release('run', 1)"), 't', 'run: failed');
is(asks($a, 'run', 'one', $R, $once), '', 'run: used up');

#
# Seats of a group
#

sub any
{
	my ($session, $request) = @_;

	return join(' ', sort $session->query("SELECT election || ' ' || term FROM
		leader_election.acquire_any('group', 'one', request => '$request')"));
}

$a->query("SELECT leader_election.create_group('group', 4, max_per_candidate => 2)");
is(any($a, $R), 'group/1 1 group/2 1', 'group: granted');
is(any($b, $R), 'group/1 1 group/2 1', 'group: repeated');
is(any($b, $S), '', 'group: not to a namesake');
is($a->query("SELECT term FROM leader_election.renew('group/1', 1)"), 1, 'group: one is renewed');
is(any($b, $R), 'group/2 1', 'group: the other one is repeated');
is($a->query("SELECT leader_election.release('group/1', 1)"), 't', 'group: one is given back');
is(any($b, $R), 'group/1 2 group/2 1', 'group: one is granted, the other one is repeated');

#
# At the same time, on two connections: one request, one term; two, one leader
#

foreach my $n (1 .. 10)
{
	foreach ([ "same $n", $R, $R ], [ "different $n", $R, $S ])
	{
		my ($e, @requests) = @$_;

		$a->query("SELECT leader_election.create_election('$e')");
		$a->query_async("SELECT term FROM leader_election.acquire('$e', 'one', request => '$requests[0]')");
		$b->query_async("SELECT term FROM leader_election.acquire('$e', 'one', request => '$requests[1]')");
		like(scalar($a->result) . '|' . scalar($b->result), $e =~ /same/ ? qr/^1\|1$/ : qr/^(1\||\|1)$/, $e);
	}
}

#
# A crash, and a failover: who does not know its term cannot go on after one.
#

is(asks($a, 'h', 'one', $R), 1, 'crash: granted');
is(asks($a, "twice $_", 'one'), 1, "twice $_: granted") foreach 1 .. 10;
$_->finish foreach $a, $b;
$node->stop('immediate');
$node->start;
$a = session($node, name => 'a again');
is(asks($a, 'h', 'one', $R), 1, 'crash: repeated');
my $new = PostgreSQL::Test::Cluster->new('new');
$node->backup('backup');
$new->init_from_backup($node, 'backup', has_streaming => 1);
$new->start;
$node->wait_for_catchup('new', 'replay');
$node->stop('immediate');
$new->promote;
my $here = session($new, name => 'here');
is(query_unless_busy($here, "SELECT term FROM leader_election.acquire('h', 'one', request => '$R')"), '',
	'failover: nobody is told, in the grace');

# Who knows its term goes on in another one. A renewal whose answer is late is asked for once
# more, while the first one commits, which takes 20 ms here: both are told the same, and
# neither that the term is over.
$new->append_conf('postgresql.conf', "fsync = on\ncommit_delay = 20000\ncommit_siblings = 0\n");
$new->reload;
wait_for($new, "SELECT current_setting('fsync') = 'on' AND current_setting('commit_delay') = '20000'");
my $there = session($new, name => 'there');

foreach my $n (1 .. 10)
{
	my $renew = "SELECT term FROM leader_election.renew('twice $n', 1)";
	my @told;

	$_->query_async($renew) foreach $here, $there;
	foreach my $session ($here, $there)
	{
		my $term = $session->result;

		push @told, $session->sqlstate eq '55P03' ? query_unless_busy($session, $renew) : $term;
	}
	cmp_ok($told[0], '>', 1, "twice $n: leads on (G5)");
	is($told[1], $told[0], "twice $n: told once more (G2)");
}
$_->finish foreach $here, $there;
$new->stop;

#
# Where a standby has to have the grant, it has it before anybody is told, also if the
# call that it was granted to has lost its connection while it waited for that.
#

my $pair = SyncStandby->new(config => q(
leader_election.lease_duration = '1h'
client_min_messages = warning
));
my $election;

$a = session($pair->{primary}, name => 'granted');
$b = session($pair->{primary}, name => 'repeats');
$b->query("SELECT leader_election.create_election('sync $_')") foreach 1 .. 20;
$pair->catch_at_commit(
	sub {
		$election = "sync $_[0]";
		return [ $a, "SELECT term FROM leader_election.acquire('$election', 'one', request => '$R')" ];
	});
is($pair->cancel($a), 1, 'sync: granted, but the standby does not know');
is($b->term_of($election), 1, 'sync: which others see here');
is($b->sqlstate_of("SELECT term FROM leader_election.acquire('$election', 'one', request => '$R')"), '55P03',
	'sync: not repeated (G6)');
$pair->resume_line;
is(query_unless_busy($b, "SELECT term FROM leader_election.acquire('$election', 'one', request => '$R')"), 1,
	'sync: repeated, now that it knows');
$_->finish foreach $a, $b;
done_testing();
