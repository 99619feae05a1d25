# What is wrong with one election, or locked, keeps no other from being
# announced; and nobody else's NOTIFY waits for the worker meanwhile. What could
# not be told comes when it can be.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

# Seconds: far more than a NOTIFY, and far less than a lock is held
my $PROMPT = 2;

my $node = new_server(config => NotifyLock::config() . q(
leader_election.lease_duration = '10min'
client_min_messages = warning
autovacuum = off
));
my $control = session($node, name => 'control');
my $blocker = session($node, name => 'blocker');
my $notify = NotifyLock->new($node);
my $innocent = session($node, name => 'innocent', dbname => 'other',
	options => '-c log_statement=none');
my $listener = Announced->new($node);

# A change of each of these elections: led by y, or given up
sub change
{
	foreach my $election (@_)
	{
		my ($term, $led) = split /\|/, $control->query(
			"SELECT term, leader IS NOT NULL FROM leader_election.lease
			WHERE election = '$election'");

		$control->query($led eq 't' ?
			  "SELECT leader_election.release('$election', $term)" :
			  "SELECT leader_election.acquire('$election', 'y')");
		die "$election: no change: " . $control->errors
		  if $control->sqlstate ne '00000';
	}
	return;
}

# While something is as it should not be: changes elsewhere are told, several
# times, and others' notifications do not wait. $stuck is what cannot be told.
sub others_go_on
{
	my ($what, $stuck) = @_;
	my $before = $listener->told("^$stuck\$");
	my $longest = 0;

	foreach my $round (1 .. 4)
	{
		my $told = $listener->told('^beside$');

		change('beside');
		wait_until(
			sub {
				my $start = machine_time();
				$innocent->query('NOTIFY innocent');
				$longest = machine_time() - $start if machine_time() - $start > $longest;
				return $listener->told('^beside$') > $told;
			},
			"$what: round $round to be told");
	}
	cmp_ok($longest, '<', $PROMPT, "$what: others notify, and others are told (G9)");
	is(scalar $listener->told("^$stuck\$"), $before, "$what: it itself is not");
	return;
}

$control->query("SELECT leader_election.create_election(e)
	FROM unnest('{beside,a,b,channel,empty channel,long,mark}'::text[]) e");
change(qw(beside a b channel), 'empty channel', qw(long mark));
$listener->all_told_ok('^(?!fence)', 'all is well');

#
# Names
#

# Four names of 200 bytes that JSON escapes to six each
{
	my $x = "repeat(chr(1), 200)";
	my ($one, $two, $three) = map { session($node, name => $_) } qw(one two three);

	is($one->query("SELECT leader_election.join($x, repeat(chr(2), 200))"), 1, 'long names');
	$two->query("SELECT leader_election.join($x, repeat(chr(3), 200))");
	is($one->query("SELECT leader_election.transfer($x, repeat(chr(3), 200))"), 't', 'handed on');
	$control->query("SELECT leader_election.request_yield($x, repeat(chr(2), 200))");
	wait_until(sub { $listener->told('^\x01{200}$') == 3 }, 'long names to be told');
	is_deeply(
		[ map { length($_->{leader}) . length($_->{previous} // '') . length($_->{successor} // '') }
			  $listener->told('^\x01{200}$') ],
		[ '20000', '2002000', '2000200' ],
		'long names');
	$_->finish foreach $one, $two, $three;
}

# What no call can make, but a superuser, or another version
$notify->hold;
change(qw(long beside));
$control->query("UPDATE leader_election.history SET leader = repeat('x', 9000)
	WHERE election = 'long'");
$notify->free;
others_go_on('a payload that is too long', 'long');
$control->query("UPDATE leader_election.history SET leader = 'shorter'
	WHERE election = 'long'");
wait_until(sub { $listener->told('^long$') == 2 }, 'it is told');
$listener->all_told_ok('^(beside|a|b)$', 'a payload that is too long');
is(($listener->events('long'))[-1], 'vacated 1, shorter resigned',
	'a payload that is too long, once it is not');

foreach (
	[ 'channel', "repeat('c', 64)" ],
	[ 'empty channel', "''" ])
{
	my ($election, $channel) = @$_;

	$control->query("UPDATE leader_election.election SET channel = $channel
		WHERE election = '$election'");
	change($election, 'a');
	others_go_on("$election of a kind that cannot be", $election);
	change($election);
	$control->query("UPDATE leader_election.election SET channel = NULL
		WHERE election = '$election'");
	wait_until(sub { $listener->told("^$election\$") == 3 }, 'it is told');
	$listener->all_told_ok("^($election|beside|a|b)\$", "$election mended");
}

# The log says so, but not over and over.
{
	my @said = slurp_file($node->logfile) =~ /(?:channel name|payload string) (too long|cannot be empty)/g;

	cmp_ok(scalar @said, '>=', 3, 'the log says why');
	cmp_ok(scalar @said, '<', 20, 'but not over and over: ' . @said);
}

#
# Locked tables, indexes and rows
#

foreach my $lock (
	[ 'the table of marks', 'LOCK TABLE leader_election.announced' ],
	[ 'its index', 'REINDEX INDEX leader_election.announced_pkey' ],
	[ 'the table of marks, for reading', 'LOCK TABLE leader_election.announced IN SHARE MODE' ])
{
	my ($what, $sql) = @$lock;
	my $told = $listener->told('^a$');
	my $longest = 0;

	$blocker->query($_) foreach 'BEGIN', $sql;
	is($blocker->sqlstate, '00000', "$what: locked");
	my $start = machine_time();
	change('a') foreach 1 .. 5;
	cmp_ok(machine_time() - $start, '<', $PROMPT, "$what: elections do not wait");
	foreach (1 .. 100)
	{
		my $start = machine_time();
		$innocent->query('NOTIFY innocent');
		$longest = machine_time() - $start if machine_time() - $start > $longest;
	}
	cmp_ok($longest, '<', $PROMPT, "$what: nor does a NOTIFY (G9)");
	is(scalar $listener->told('^a$'), $told, "$what: nothing is told");
	$blocker->query('ROLLBACK');
	wait_until(sub { $listener->told('^a$') == $told + 5 }, 'all to be told');
	$listener->all_told_ok('^a$', $what);
}

# Where what they need themselves is locked, elections are busy.
foreach my $table (qw(history lease))
{
	my $told = $listener->told('^b$');
	my $longest = 0;

	$notify->hold;
	change('b');
	$blocker->query($_) foreach 'BEGIN', "LOCK TABLE leader_election.$table";
	$notify->free;
	foreach (1 .. 100)
	{
		my $start = machine_time();
		$innocent->query('NOTIFY innocent');
		$longest = machine_time() - $start if machine_time() - $start > $longest;
	}
	cmp_ok($longest, '<', $PROMPT, "$table locked: a NOTIFY does not wait (G9)");
	is(scalar $listener->told('^b$'), $told, "$table locked: nothing is told");
	is($control->sqlstate_of("SELECT leader_election.acquire('b', 'z')"),
		'55P03', "$table locked: nothing is changed")
	  if $table eq 'lease';
	$blocker->query('ROLLBACK');
	wait_until(sub { $listener->told('^b$') == $told + 1 }, 'it is told');
	$listener->all_told_ok('^b$', "$table locked");
}

# A row
$blocker->query($_) foreach 'BEGIN',
  "SELECT FROM leader_election.announced WHERE election = 'mark' FOR UPDATE";
change('mark');
others_go_on('a row of a mark', 'mark');
change('mark');
$blocker->query('ROLLBACK');
wait_until(sub { $listener->told('^mark$') == 3 }, 'it is told');
$listener->all_told_ok('^(mark|beside|a|b)$', 'a row of a mark');

#
# An uncommitted drop and re-creation: with the mark that there is, and without
# one, as after a crash; then it is made while another of that key may be.
#

my $opened = 0;

foreach my $case (
	[ 'marked', 'ROLLBACK' ],
	[ 'marked', 'COMMIT' ],
	[ 'without a mark', 'ROLLBACK' ],
	[ 'without a mark', 'COMMIT' ])
{
	my ($marked, $end) = @$case;
	my $what = "uncommitted, then $end, $marked";
	my $election = 'open ' . ++$opened;
	my @before;

	$control->query("SELECT leader_election.create_election('$election')");
	change($election);
	$listener->fence;
	@before = $listener->events($election);
	is(scalar @before, 1, "$what: led");
	$notify->hold;
	change($election);
	if ($marked ne 'marked')
	{
		# What a worker has in memory goes with a crash, too.
		$control->query("SELECT pg_terminate_backend(pid, 60000) FROM $WORKERS");
		$control->query("TRUNCATE leader_election.announced");
		is($control->sqlstate, '00000', "$what: no marks");
	}
	$blocker->query($_)
	  foreach 'BEGIN', "SELECT leader_election.drop_election('$election')",
	  "SELECT leader_election.create_election('$election')";
	is($blocker->sqlstate, '00000', "$what: it is");
	$notify->free;
	others_go_on($what, $marked eq 'marked' ? 'none' : $election);
	$blocker->query($end);
	is($blocker->sqlstate, '00000', "$what: no longer");
	wait_until(sub { $listener->events($election) > 1 }, 'its last change to be told')
	  unless $what eq 'uncommitted, then COMMIT, without a mark';
	change($election);
	change($election);
	if ($what eq 'uncommitted, then COMMIT, without a mark')
	{
		# The former one had neither a mark nor listeners.
		my ($term) = $control->query(
			"SELECT term FROM leader_election.lease WHERE election = '$election'");
		wait_until(sub { ($listener->events($election))[-1] =~ /^vacated $term/ },
			'its last change to be told');
		is_deeply([ ($listener->events($election))[ -2, -1 ] ],
			[ "elected $term y", "vacated $term, y resigned" ],
			"$what: told of the new one");
	}
	else
	{
		$listener->all_told_ok("^$election\$", $what);
	}
}

$_->finish foreach $control, $blocker, $innocent;
$node->stop;
done_testing();
