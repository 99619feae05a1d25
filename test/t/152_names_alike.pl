# Elections and groups whose names are easily taken for one another, since they
# differ by case or white space only: each has a leader of its own, where one was
# meant.  diagnose() points them out, for each of the two, also on a standby, and
# says nothing of names that differ otherwise.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server(initdb => [ '--locale=C.UTF-8' ], streaming => 1);
my $psql = session($node, name => 'psql', options => '-c client_min_messages=warning');

sub alike
{
	my ($name, $session) = @_;

	$name =~ s/'/''/g;
	return ($session // $psql)->query("SELECT severity, finding FROM leader_election.diagnose('$name')
		WHERE finding LIKE 'The name differs %'");
}

sub is_alike
{
	my ($name, $others, $title, $session) = @_;

	is( alike($name, $session),
		$others eq '' ? '' : "warning|The name differs only by case or white space from these: $others. Each has a leader of its own.",
		$title);
	return;
}

my $NBSP = "\xc2\xa0";
my $ZERO_WIDTH = "\xe2\x80\x8b";

$psql->query("SELECT leader_election.create_election('$_')")
  foreach ('orders', 'reports', 'two words', 'two  words', 'twowords', 'mail', "mail$NBSP", "ma${ZERO_WIDTH}il",
	"\xc3\x84rzte", "\xc3\xa4rzte", 'jobs 1 11', 'jobs 11 1');

# -- Nothing is alike.

is_alike($_, '', "\"$_\" is like no other name") foreach ('orders', 'reports', 'twowords', 'jobs 1 11');

# -- Case, in any language that the database knows; white space

$psql->query("SELECT leader_election.create_election('Orders')");
is_alike('orders', '"Orders"', 'case');
is_alike('Orders', '"orders"', '... the other way round');
is_alike("\xc3\xa4rzte", "\"\xc3\x84rzte\"", '... of letters beyond ASCII');
is_alike('two words', '"two  words"', 'two blanks for one, and not none for one');
is_alike('mail', "\"ma${ZERO_WIDTH}il\", \"mail$NBSP\"", 'white space that nobody sees');
$psql->query("SELECT leader_election.create_election(E'\\treports \\n')");
is_alike('reports', '"\\treports \\n"', 'white space around a name, as the log shows it');
like($psql->query("SELECT remedy FROM leader_election.diagnose('reports') WHERE finding LIKE 'The name differs %'"),
	qr/drop_election\(/, 'what to do');

# -- Groups, and their seats

$psql->query("SELECT leader_election.create_group('Shards', 2)");
$psql->query("SELECT leader_election.create_group('shards', 2)");
is_alike('shards', '"Shards"', 'a group like another one');
is_alike('shards/2', '"Shards/2"', '... and their seats');
$psql->query("SELECT leader_election.create_election('SHARDS')");
is_alike('shards', '"SHARDS", "Shards"', 'an election like a group');

# -- What is unknown; what is locked; a standby

$psql->query("SELECT leader_election.diagnose('ORDERS')");
is($psql->sqlstate, 'LE003', 'an unknown name is an error, as ever');
my $locker = session($node, name => 'locker');
$locker->query($_) for 'BEGIN', 'LOCK TABLE leader_election.election';
unlike(alike('orders'), qr/differs/, 'a locked table: nothing is known');
$locker->query('ROLLBACK');

$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
my $there = session($standby, name => 'there');
is_alike('orders', '"Orders"', 'a standby', $there);

$psql->query("SELECT leader_election.drop_election('Orders')");
is_alike('orders', '', 'mended');

done_testing();
