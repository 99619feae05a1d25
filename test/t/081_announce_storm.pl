# Thirty clients of another database that INSERT and NOTIFY all the time, on a
# server whose commits take 50 ms: they commit one after the other, a second and
# a half each. Elections take no longer than with the same slow commits and
# nobody else, while that goes on; and what listeners are told of them then may
# come late, but it comes, each change once, and in order.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use IPC::Run;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $CLIENTS = 30;
my $ROUNDS = 5;

# How much longer than without the storm each may take: the other tests' load
# comes and goes. A call that waits for the storm's clients takes all of it.
my $FACTOR = 10;

my $node = new_server(
	config => q(
leader_election.lease_duration = '10min'
client_min_messages = warning
fsync = on
commit_delay = 50000
commit_siblings = 0
));
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE TABLE storm (client int)');

my $control = session($node, name => 'control');
my $meter = session($node, name => 'meter', dbname => 'other',
	options => '-c log_statement=none');
my $listener = Announced->new($node);

# The storm
my $script = PostgreSQL::Test::Utils::tempdir() . '/storm.sql';
append_to_file($script, "BEGIN;\nINSERT INTO storm VALUES (:client_id);\n"
	  . "NOTIFY storm;\nCOMMIT;\n");
my $storm;
my ($storm_out, $storm_err) = ('', '');

sub commits { return $meter->query('SELECT count(*) FROM storm'); }

# How many wait for their turn to notify
sub waiting
{
	return $meter->query(
		"SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND NOT granted
			AND classid = 'pg_database'::regclass AND objid = 0
			AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = 'other')");
}

sub start_storm
{
	$storm = IPC::Run::start(
		[ 'pgbench', '-n', '-c', $CLIENTS, '-j', 2, '-T', 3600, '-f', $script,
			'-h', $node->host, '-p', $node->port, 'other' ],
		'<' => \undef, '>' => \$storm_out, '2>' => \$storm_err);
	wait_until(
		sub {
			$storm->pump_nb;
			return waiting() > $CLIENTS / 2 && commits() > 0;
		},
		sub { "the storm: $storm_err" });
	return;
}

# What was measured, in seconds, by what it was
my %took;

# Runs something $ROUNDS times, and checks that the storm goes on meanwhile.
# $round returns the seconds that it measured.
sub measure
{
	my ($what, $round) = @_;
	my $commits = $storm ? commits() : 0;
	my $start = time;
	my @took = map { $round->($_) } 1 .. $ROUNDS;
	my $all = join(', ', map { sprintf('%.0f', 1000 * $_) } @took);
	my $median = (sort { $a <=> $b } @took)[ $ROUNDS / 2 ];

	unless ($storm)
	{
		$took{$what} = $median;
		note("$what: $all ms");
		return;
	}
	my $rate = (commits() - $commits) / (time - $start);

	cmp_ok($rate, '>', 2, "$what: the storm goes on");
	cmp_ok(waiting(), '>', $CLIENTS / 2, "$what: with most of it waiting");
	cmp_ok($median, '<', $FACTOR * $took{$what}, "$what: as without it (G9)");
	note(sprintf('%s: %s ms (without: %.0f), beside %.1f commits/s',
			$what, $all, 1000 * $took{$what}, $rate));
	return;
}

sub succeeds
{
	my ($session, $call, $what) = @_;

	is($session->query("SELECT leader_election.$call"), 't', $what);
	is($session->sqlstate, '00000', "$what: no error")
	  or die "it goes on with what has failed: $what";
	return;
}

# A leader and a campaign that waits
sub pair
{
	my ($election) = @_;
	my ($one, $two) = map { session($node, name => $_) } qw(one two);

	ok($one->query("SELECT leader_election.join('$election', 'one')") ne '',
		"$election: leads");
	$two->query_async("CALL leader_election.campaign('$election', 'two')");
	wait_for($node, "SELECT candidates FROM leader_election.status
		WHERE election = '$election'", 2);
	return ($one, $two);
}

sub run_all
{
	my ($when) = @_;

	# A campaign looks for itself; who only stands is elected by the worker.
	measure('takeover', sub {
		my $election = "$when takeover $_[0]";
		my ($one, $two) = pair($election);
		my $start = time;

		$one->kill;
		is($two->result, 2, "$election: the next one leads");
		my $took = time - $start;
		$two->finish;
		return $took;
	});
	measure('takeover by the worker', sub {
		my $election = "$when worker $_[0]";
		my ($one, $two) = map { session($node, name => $_) } qw(one two);

		is($one->query("SELECT leader_election.join('$election', 'one')"),
			1, "$election: leads");
		is($two->query("SELECT leader_election.join('$election', 'two')"),
			'', "$election: another stands");
		my $start = time;

		$one->kill;
		wait_until(sub { $two->query("SELECT leader_election.term('$election')") eq 2 },
			"$election: a takeover");
		my $took = time - $start;
		$two->finish;
		return $took;
	});
	measure('resign', sub {
		my $election = "$when resign $_[0]";
		my ($one, $two) = pair($election);
		my $start = time;

		succeeds($one, "resign('$election')", $election);
		is($two->result, 2, "$election: the next one leads");
		my $took = time - $start;
		$_->finish foreach $one, $two;
		return $took;
	});
	measure('transfer', sub {
		my $election = "$when transfer $_[0]";
		my ($one, $two) = pair($election);
		my $start = time;

		succeeds($one, "transfer('$election', 'two')", $election);
		is($two->result, 2, "$election: the next one leads");
		my $took = time - $start;
		$_->finish foreach $one, $two;
		return $took;
	});
	measure('acquire and release', sub {
		my $election = "$when acquire";
		my $start = time;
		my $term = $control->query("SELECT term
			FROM leader_election.acquire('$election', 'x')");

		is($term, $_[0], "$election: in term $_[0]")
		  or die 'it goes on with what has failed';
		succeeds($control, "release('$election', $term)", "$election: release()");
		return time - $start;
	});
	return;
}

run_all('quiet');
$listener->all_told_ok('^quiet', 'without a storm');
start_storm();
run_all('storm');

# Leaders of other elections notice nothing either.
my $lives = session($node, name => 'lives');
$lives->query("SELECT leader_election.create_election('short', lease_duration => '3 s')");
is($lives->query("SELECT leader_election.join('short', 'lives')"), 1, 'short: leads');
my $deadline = $control->query(
	"SELECT deadline_mono FROM leader_election.lease WHERE election = 'short'");
my $commits = commits();
wait_for($node, "SELECT deadline_mono - $deadline > 4500000
	FROM leader_election.lease WHERE election = 'short'");
is($lives->query("SELECT leader_election.term('short')"), 1,
	'short: a lease is renewed all the time');
cmp_ok(commits(), '>', $commits + 10, 'short: beside the storm');
$lives->query("SELECT leader_election.leave('short')");

# The storm ends.
$storm->signal('TERM');
$storm->finish;
is($storm_err =~ /(.*(?:error|aborted).*)/ ? $1 : '', '', 'no client of the storm has failed');
$listener->all_told_ok('^(storm|short)', 'told in or after the storm');

$_->finish foreach $control, $meter, $lives;
$node->stop;
done_testing();
