# Names that are odd: in databases of other encodings, in the log, and as the
# argument of the trigger function.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

# More than a message with an election, two candidates and a hint
my $LONGEST_MESSAGE = 2000;

my $node = new_server(
	config => q(
leader_election.lease_duration = '1h'
log_error_verbosity = verbose
log_min_error_statement = panic
log_statement = none
));
my $super = session($node, name => 'super');
my $other = session($node, name => 'other');

# Another session leads, and goes on leading.
$other->query("SELECT leader_election.join('theirs', 'other')");

#
# The trigger function
#

# 070_bad_input calls all other functions.
is( join(
		' ',
		$super->query(
			q{SELECT proname FROM pg_proc WHERE pronamespace = 'leader_election'::regnamespace
				AND prorettype IN ('trigger'::regtype, 'event_trigger'::regtype) ORDER BY 1})),
	'only_leader',
	'the only function for triggers');
is($super->sqlstate_of('SELECT leader_election.only_leader()'),
	'39P01', 'a trigger function');
foreach my $trigger (
	[ '39P01', 'BEFORE INSERT ON t FOR EACH STATEMENT', '' ],
	[ '39P01', 'BEFORE INSERT ON t FOR EACH STATEMENT', q{'a', 'b'} ],
	[ 'LE003', 'BEFORE INSERT ON t FOR EACH STATEMENT', q{''} ],
	[ '39P01', 'BEFORE INSERT ON t FOR EACH STATEMENT', "'" . 'm' x 201 . "'" ],
	[ '39P01', 'BEFORE INSERT ON t FOR EACH STATEMENT', "'" . 'm' x 1000000 . "'" ],
	[ '39P01', 'BEFORE INSERT ON t FOR EACH ROW', q{'theirs'} ],
	[ '39P01', 'AFTER INSERT ON t FOR EACH STATEMENT', q{'theirs'} ],
	[ 'LE003', 'BEFORE INSERT ON t FOR EACH STATEMENT', "'" . 'm' x 200 . "'" ],
	[ 'LE001', 'BEFORE INSERT ON t FOR EACH STATEMENT', q{'theirs'} ])
{
	my ($expected, $definition, $args) = @$trigger;

	$super->query("CREATE TABLE t (); CREATE TRIGGER t $definition
		EXECUTE FUNCTION leader_election.only_leader($args)");
	is( $super->sqlstate_of('INSERT INTO t DEFAULT VALUES'),
		$expected, "trigger $definition (" . substr($args, 0, 20) . ')');
	cmp_ok(length $super->errors, '<', $LONGEST_MESSAGE, 'and no long message');
	$super->query('DROP TABLE t');
}

#
# In databases of other encodings, with a name of bytes that are not UTF-8
#

foreach my $encoding (qw(LATIN1 SQL_ASCII))
{
	my $name = q{E'\x80\xe9\xff\xf0'};
	my $session;

	$super->query("CREATE DATABASE other ENCODING '$encoding' LOCALE 'C' TEMPLATE template0");
	$session = session($node, name => $encoding, dbname => 'other',
		options => "-c client_encoding=$encoding");
	$session->query($_)
	  for 'CREATE EXTENSION leader_election', 'LISTEN leadership_changed';
	is($session->query("SELECT leader_election.join($name, $name)"),
		'1', "$encoding: leads");
	is( $session->query(
			"SELECT leader_election.leader($name) = $name, leader_election.is_leader($name),
				(SELECT election = $name AND leader = $name FROM leader_election.status),
				(SELECT candidate = $name FROM leader_election.candidates)"),
		't|t|t|t', "$encoding: is seen");
	is($session->sqlstate_of("SELECT leader_election.join($name, 'x')"),
		'LE004', "$encoding: an error");
	is($session->sqlstate_of("SELECT leader_election.join(repeat($name, 51), 'x')"),
		'22023', "$encoding: bytes count");
	is($session->query("SELECT leader_election.leave_all()"), '1', "$encoding: leaves");
	my @told;
	wait_until(
		sub {
			$session->query('SELECT 1');
			push @told, $session->notifications;
			return scalar grep { /"event":"vacated"/ } @told;
		},
		"$encoding: news");
	is( scalar grep({ /"leader":"\x80\xe9\xff\xf0"/ } @told),
		1, "$encoding: is told of");
	$session->finish;
	wait_for($node,
		q{SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'other'});
	$super->query('DROP DATABASE other');
}

#
# The longest names, of which only the last byte differs
#

my ($first, $second) = map { "repeat('x', 199) || '$_'" } qw(a b);
my $VIEW = "SELECT string_agg(right(election, 1) || ':' || right(leader, 1), ' ' ORDER BY 1)
	FROM leader_election.status WHERE state = 'led' AND election LIKE 'xx%'";

is($super->query("SELECT leader_election.join($first, $first), leader_election.join($second, $first)"),
	'1|1', 'two elections are two');
is($other->query("SELECT leader_election.join($second, $second) IS NULL"), 't', 'two candidates are two');
is($super->query("SELECT leader_election.leave($first), leader_election.is_leader($first),
	leader_election.is_leader($second)"), 't|f|t', 'the first is left, the second is not');
is($super->query($VIEW), 'b:a', 'and is led');
$super->query("SELECT leader_election.leave($second)");
wait_for($node, $VIEW, 'b:b');

#
# A name is one name in the log, whatever it has in it.
#

my $odd = q{E'a": "b" leads in term x, "c" led before: y\n\\\\LOG:  z'};
my $shown = q{"a\": \"b\" leads in term x, \"c\" led before: y\n\\\\LOG:  z"};
my $end = -s $node->logfile;
$super->query("SELECT leader_election.acquire($odd, $odd)");
$super->query("SELECT leader_election.request_yield($odd)");
$super->query("SELECT leader_election.release($odd, term)
	FROM leader_election.status WHERE election = $odd");
wait_for($node, "SELECT leader_election.leader($odd) IS NULL");
is_deeply(
	[
		map { s/term \d+/term N/r }
		  slurp_file($node->logfile, $end) =~ /LOG:  .*?leader_election: (.*\n(?:\t.*\n)*)/g
	],
	[
		"election $shown is created on first use\n",
		"election $shown: $shown leads in term N\n",
		"election $shown: $shown is asked to yield, in term N\n",
		"election $shown: vacant after term N, $shown led before: yielded\n"
	],
	'names with quotes and newlines in the log');

my $log = slurp_file($node->logfile);
my ($longest) = sort { $b <=> $a } map { length } split /\n/, $log;
cmp_ok($longest, '<', $LONGEST_MESSAGE, 'no line of the log is longer than a message');
is_deeply([ $log =~ /^(.* XX\d\d\d: .*|.*(?:PANIC|TRAP): .*|.*leak.*)/mg ],
	[], 'nothing worse in it');
$_->finish for $super, $other;
$node->stop;
done_testing();
