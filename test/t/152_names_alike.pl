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

# All white space, and what takes no room, as PostgreSQL's names have it: in quotes
my ($alone, $between) = ('spaced', 'un spaced');
$psql->query("SELECT leader_election.create_election('$_')") foreach $alone, $between;
foreach my $code (0x9 .. 0xd, 0x85, 0xa0, 0x1680, 0x2000 .. 0x200b, 0x2028, 0x2029, 0x202f, 0x205f, 0x2060, 0x3000, 0xfeff)
{
	my $takes_room = $code != 0x200b && $code != 0x2060 && $code != 0xfeff;
	my $name = $takes_room ? "un' || chr($code) || 'spaced" : "spa' || chr($code) || 'ced";
	my $like = $takes_room ? $between : $alone;

	$psql->query("SELECT leader_election.create_election('$name')");
	like(alike($like), qr/^warning\|The name differs only by case or white space from these: ".*"\./s, sprintf('U+%04X', $code));
	$psql->query("SELECT leader_election.drop_election('$name')");
	is(alike($like), '', '... and not without it');
}
foreach my $code (0x86, 0x1681, 0x1fff, 0x2010, 0x202a, 0x2058, 0x3001)
{
	$psql->query("SELECT leader_election.create_election('un' || chr($code) || 'spaced')");
	is(alike($between), '', sprintf('U+%04X is no white space', $code));
}
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

# -- In another encoding, letters are bytes: one that is a space in UTF-8 is none there.

$psql->query(q(CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'));
is($psql->sqlstate, '00000', 'a database with another encoding');
my $latin = session($node, name => 'latin', dbname => 'latin', options => '-c client_min_messages=warning -c client_encoding=UTF8');
$latin->query('CREATE EXTENSION leader_election');
$latin->query("SELECT leader_election.create_election('$_')") foreach ('mail', "mail$NBSP", "\xc3\xa4rzte", "\xc3\xa4Rzte");
is_alike('mail', '', 'LATIN1: white space of one byte is not known', $latin);
is_alike("\xc3\xa4rzte", "\"\xc3\xa4Rzte\"", '... but case is', $latin);
$latin->finish;

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
