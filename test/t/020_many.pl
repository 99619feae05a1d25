# Many at once: 20 sessions that race for one election, round after round, and
# one session that leads 300 elections and is killed. However it goes, there is
# one leader at a time, each term is given once, and every change is told once:
# in the history, to the listeners and in the log.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use Announced;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;

my $SESSIONS = 20;
my $ELECTIONS = 300;
my @ISOLATION = ('read committed', 'repeatable read', 'serializable');

my $node = new_server();
my $observer = session($node, name => 'observer');
my $listener = Announced->new($node);

# Checks what is left of the elections whose names begin with this.
sub check_records
{
	my ($pattern, $what) = @_;

	is( $observer->query(
			qq{SELECT count(*) FROM (
				SELECT term, row_number() OVER (PARTITION BY election ORDER BY term)
				  FROM leader_election.history WHERE election LIKE '$pattern%'
			) numbered WHERE term <> row_number}),
		'0',
		"$what: terms 1, 2, 3... without a gap or a repeat (G5)");
	is( $observer->query(
			qq{SELECT count(*) FROM (
				SELECT *, lead(acquired_at) OVER (PARTITION BY election ORDER BY term) AS next
				  FROM leader_election.history WHERE election LIKE '$pattern%'
			) terms
			 WHERE ended_at < acquired_at OR next < ended_at OR
				   (next IS NOT NULL AND ended_at IS NULL) OR
				   (ended_at IS NULL) <> (reason IS NULL)}),
		'0',
		"$what: each term ends for a reason before the next one begins (G1)");

	return $listener->all_told_ok("^$pattern", $what);
}

# Checks that the log has one line for each of these events.
sub check_log
{
	my ($what, @events) = @_;
	my @lines = sort map {
		my $line = qq{election "$_->{election}": };
		$line .= $_->{event} eq 'elected'
		  ? qq{"$_->{leader}" leads in term $_->{term}}
		  : qq{vacant after term $_->{term}};
		$line .= qq{, "$_->{previous}" led before: $_->{reason}}
		  if defined $_->{previous};
		$line;
	} @events;
	my %election = map { $_->{election} => 1 } @events;
	my @logged = sort grep { /^election "([^"]*)"/ && $election{$1} }
	  slurp_file($node->logfile) =~
	  /LOG:\s+leader_election: (election "[^"]*": .*(?:leads in|vacant after) term.*)$/mg;

	is_deeply(\@logged, \@lines, "$what: one line in the log for each change");
}

# 1. 20 sessions, of all isolation levels, join at once.

my @sessions;

sub new_candidate
{
	my ($n) = @_;

	$sessions[$n] = session(
		$node,
		name => "candidate $n",
		options => '-c default_transaction_isolation='
		  . ($ISOLATION[ $n % @ISOLATION ] =~ s/ /\\\\ /r));
	return;
}

# Has all sessions run something at the same time, and again if it could not be
# serialized, or was busy for as long as a call waits; returns what each got.
sub all_at_once
{
	my ($sql) = @_;
	my @results;

	$sessions[$_]->query_async($sql =~ s/:n/$_/gr) for 0 .. $#sessions;
	foreach my $n (0 .. $#sessions)
	{
		my $session = $sessions[$n];
		my $result = $session->result;

		# As every client of serializable transactions has to; and twice, if the machine
		# stood still while it waited
		my $busy = 0;
		$result = $session->query($sql =~ s/:n/$n/gr)
		  while $session->sqlstate eq '40001' || $session->sqlstate eq '55P03' && $busy++ < 2;

		push @results,
		  $session->sqlstate eq '00000'
		  ? $result
		  : 'error ' . $session->sqlstate;
	}
	return @results;
}

# The same, where no error is expected.
sub all_succeed
{
	my ($what, $sql) = @_;
	my @results = all_at_once($sql);

	is_deeply([ grep { /error/ } @results ], [], "$what: no errors");
	return @results;
}

sub leaders
{
	my @leads = all_at_once("SELECT leader_election.is_leader('race')");

	return grep { $leads[$_] eq 't' } 0 .. $#sessions;
}

sub check_one_leader
{
	my ($round) = @_;

	# A call that found the election busy has left it to the call that was there.
	wait_for($node, "SELECT leader_election.leader('race') IS NOT NULL");
	my @leaders = leaders();
	is(scalar @leaders, 1, "$round: exactly one leader (G1)");
	is( $observer->query("SELECT leader_election.leader('race')"),
		"candidate $leaders[0]",
		"$round: and it is the one that observers see");
	return $leaders[0];
}

sub check_race
{
	my ($round, @joined) = @_;

	is_deeply([ grep { /error/ } @joined ], [], "$round: no errors");
	cmp_ok(scalar(grep { /^\d+$/ } @joined),
		'<=', 1, "$round: at most one was told that it leads (G1)");
	return check_one_leader($round);
}

new_candidate($_) for 0 .. $SESSIONS - 1;

my $JOIN = q{SELECT leader_election.join('race', 'candidate :n')};
my $leader = check_race('first use', all_at_once($JOIN));

# Who leads leaves while the others join or leave too.
check_race('joined again', all_at_once($JOIN));
all_succeed('all leave', 'SELECT leader_election.leave_all()');
is($observer->query("SELECT count(*) FROM leader_election.candidates"),
	'0', 'all have left');
$leader = check_race('after all had left', all_at_once($JOIN));

for my $round (1 .. 3)
{
	$sessions[$leader]->query("SELECT leader_election.resign('race')");
	$leader = check_race("after resignation $round", all_at_once($JOIN));
}

# The same call by all: only the leader's does something, and so do those of
# the leaders that follow from it.
for my $round (1 .. 2)
{
	my @resigned = all_succeed("all resign, $round",
		"SELECT leader_election.resign('race')");

	cmp_ok(scalar(grep { $_ eq 't' } @resigned),
		'>=', 1, "all resign, $round: at least one of them led");
	$leader = check_race("after all had resigned, $round", all_at_once($JOIN));
}
for my $round (1 .. 2)
{
	my $to = ($leader + 7) % $SESSIONS;
	my @transferred = all_succeed("transfer $round",
		qq{SELECT leader_election.transfer('race', 'candidate $to') WHERE :n <> $to});

	# The session that it went to does not hand it on.
	is(scalar(grep { $_ eq 't' } @transferred),
		1, "transfer $round: one of them could");
	is(check_one_leader("transfer $round"), $to, "transfer $round: to whom it said");
	$leader = $to;
}

# Sessions are killed while the others join.
for my $round (1 .. 3)
{
	my $killed = $leader;

	$sessions[$_]->query_async($JOIN =~ s/:n/$_/r)
	  for grep { $_ != $killed } 0 .. $#sessions;
	$sessions[$killed]->kill;
	my @errors =
	  grep { $sessions[$_]->result; $sessions[$_]->sqlstate ne '00000' }
	  grep { $_ != $killed } 0 .. $#sessions;
	is_deeply(\@errors, [], "killed, $round: no errors");
	wait_for($node, qq{SELECT leader_election.leader('race') <> 'candidate $killed'});
	new_candidate($killed);
	$leader = check_one_leader("killed, $round");
	wait_for($node,
		"SELECT count(*) = $SESSIONS - 1 FROM leader_election.candidates WHERE alive");
	$leader = check_race("the killed one is back, $round", all_at_once($JOIN));
}

# All want the same name, and one of them gets it.
for my $round (1 .. 3)
{
	my @joined = all_at_once(
		"SELECT coalesce(leader_election.join('one name', 'everybody'), 0)");
	my @others = grep { /error/ } @joined;

	is(scalar @others, $SESSIONS - 1, "same name, $round: one gets it");
	is_deeply([ grep { !/LE004|55P03/ } @others ],
		[], "same name, $round: the others are told that it is in use");
	wait_for($node, "SELECT leader_election.leader('one name') IS NOT NULL");
	my @leads = all_at_once("SELECT leader_election.is_leader('one name')");
	is_deeply(
		[ grep { $leads[$_] eq 't' } 0 .. $#leads ],
		[ grep { $joined[$_] !~ /error/ } 0 .. $#joined ],
		"same name, $round: it leads, and nobody else (oban-py#32, oban#1488, G1)");
	foreach my $n (grep { $joined[$_] !~ /error/ } 0 .. $#joined)
	{
		is($sessions[$n]->query("SELECT leader_election.leave('one name')"),
			't', "same name, $round: it leaves");
	}
}

all_succeed('all leave again', 'SELECT leader_election.leave_all()');
is($observer->query("SELECT leader_election.leader('race') IS NULL"),
	't', 'nobody leads in the end');
is( $observer->query(
		q{SELECT string_agg(DISTINCT reason, ', ' ORDER BY reason)
		  FROM leader_election.history WHERE election = 'race'}),
	'left, resigned, session ended, transferred',
	'terms have ended for every reason of these');
is( $observer->query(
		q{SELECT count(*) FROM leader_election.history WHERE election = 'race' AND ended_at IS NULL}),
	'0',
	'no term goes on');
check_log('race', check_records('race', 'race'));
is( $observer->query(
		q{SELECT count(*) FROM pg_locks
		  WHERE locktype = 'advisory' AND objsubid = 20 AND mode = 'ExclusiveLock'}),
	'0',
	'no session lock is left');
$_->finish for @sessions;

# 2. One session leads 300 elections, three others stand in all of them, and
# the leader's client is killed.

my $ALL = "FROM generate_series(1, $ELECTIONS) AS i";
my ($one, @others) =
  map { session($node, name => $_, options => '-c client_min_messages=warning') }
  qw(one two three four);

is($one->query("SELECT count(leader_election.join('many ' || i, 'one')) $ALL"),
	$ELECTIONS, 'one statement, 300 elections');
is( $one->query(
		"SELECT count(*) $ALL WHERE leader_election.is_leader('many ' || i)"),
	$ELECTIONS,
	'and it leads in all of them');
foreach my $other (@others)
{
	my $join = "leader_election.join('many ' || i, '$other->{name}')";

	is($other->query("SELECT count(*) || ' ' || count($join) $ALL"),
		"$ELECTIONS 0", "$other->{name} stands in all of them");
}

my $mark = held_up();
my $killed_at = $observer->query('SELECT clock_timestamp()');
$one->kill;
wait_for(
	$node,
	q{SELECT count(*) = 0 FROM leader_election.status
	  WHERE election LIKE 'many %' AND (leader IS NULL OR leader = 'one')});
my $seconds = $observer->query(
	qq{SELECT extract(epoch FROM max(acquired_at) - '$killed_at')
	   FROM leader_election.history WHERE election LIKE 'many %' AND term = 2});
diag("$ELECTIONS elections have new leaders $seconds s after their leader's client was killed"
);
cmp_ok($seconds, '<', 3 + held_up($mark) / 1e6, 'all of them have new leaders in no time (G7)');
is( $observer->query(
		q{SELECT DISTINCT leader || ' ' || term || ' ' || candidates
		  FROM leader_election.status WHERE election LIKE 'many %'}),
	'two 2 3',
	'each the one that stood there longest, in the next term');
is( $others[0]->query(
		"SELECT count(*) $ALL WHERE leader_election.term('many ' || i) = 2"),
	$ELECTIONS,
	'and it knows that it leads');
is( $others[1]->query(
		"SELECT count(*) $ALL WHERE leader_election.is_leader('many ' || i)"),
	'0',
	'the others do not');
is( $observer->query(
		q{SELECT DISTINCT reason FROM leader_election.history
		  WHERE election LIKE 'many %' AND term = 1}),
	'session ended',
	'it is known why');
check_log('many', check_records('many ', 'many'));

# The elections that a session leads are left in one statement as well.
is($others[0]->query('SELECT leader_election.leave_all()'),
	$ELECTIONS, 'two leaves them all');
is( $observer->query(
		q{SELECT DISTINCT leader || ' ' || term
		  FROM leader_election.status WHERE election LIKE 'many %'}),
	'three 3',
	'three leads them all');

# Another database has elections of its own, of the same names.
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION leader_election');
my $other = session($node, dbname => 'other', options => '-c client_min_messages=warning');
is($other->query("SELECT leader_election.join('many 1', 'three')"),
	'1', 'the same candidate in another database leads there');
is($others[1]->query("SELECT leader_election.term('many 1')"), '3', 'and here');
$other->query("SELECT leader_election.resign('many 1')");
is($others[1]->query("SELECT leader_election.term('many 1')"),
	'3', 'what happens there changes nothing here');

done_testing();
