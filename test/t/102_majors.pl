# From an older major version of PostgreSQL to this one: by a dump, and by
# pg_upgrade, with all that 048_upgrade.pl asks of that.
#
# The older version is that of a pg_config of PG_CONFIGS (make check-versions), or a
# package of Debian's, with the files to build extensions for it.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use NextVersion;
use PostgreSQL::Test::Utils;
use Test::More;

sub major_of
{
	my ($pg_config) = @_;

	return (`$pg_config --version` // '') =~ /^PostgreSQL (\d+)/ ? $1 : 0;
}

sub can_build
{
	my ($pg_config) = @_;

	chomp(my ($pgxs, $include) = map { `$pg_config $_` } '--pgxs', '--includedir-server');
	return -e $pgxs && -e "$include/postgres.h";
}

my $present = major_of($ENV{PG_CONFIG} // 'pg_config');
my ($older) =
  grep { -x && major_of($_) >= 15 && major_of($_) < $present && can_build($_) }
  split(' ', $ENV{PG_CONFIGS} // ''), glob('/usr/lib/postgresql/*/bin/pg_config');

plan skip_all => 'no older major version is installed' unless $older;

my $install = make_installation('older', pg_config => $older, other_server => 1);
my @TABLES = qw(election election_group drain pause_all lease history epoch);

# The restored extension has a row of epoch of its own as well.
my $ROWS = join(' UNION ALL ',
	map { "SELECT '$_ ' || r::text FROM leader_election.$_ AS r" } @TABLES)
  . ' WHERE incarnation IN (SELECT incarnation FROM leader_election.lease) ORDER BY 1';
my $old = new_server(name => 'dumped', install => $install->{path});
my $new = new_server(name => 'restored', start => 0);
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';

# A minor release may add options of columns to a dump (pg_attver of November 2026),
# which older minor releases of a newer version do not know.
session($old)->query('CREATE TABLE any_table (a text)');
$new->start;
plan skip_all => 'this PostgreSQL does not take dumps of that minor release'
  unless run_log([ 'pg_dump', '-t', 'any_table', '-f', $dump, '-d', $old->connstr('postgres') ])
  && run_log([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $new->connstr('postgres') ]);
session($_)->query('DROP TABLE any_table') foreach $old, $new;

my $app = session($old, name => 'app');
my $renewed;

cmp_ok($app->query('SHOW server_version_num'), '<', $present * 10000, 'an older server');
$app->query(q(SELECT leader_election.create_election('e', 'bully', channel => 'news',
		preempt_delay => '1 s');
	SELECT leader_election.create_election('paused', initial_delay => '2 s');
	SELECT leader_election.pause_election('paused', 'for a test', '1 day');
	SELECT leader_election.create_group('team', 3, max_per_candidate => 2);
	SELECT leader_election.drain_candidate('host-*', reason => 'it is old');
	SELECT leader_election.pause_all('all');
	SELECT leader_election.resume_all();
	SELECT leader_election.acquire('runs', 'detached', run => '2026-11-21');
	SELECT leader_election.release('runs', 1, done => true);
	CREATE TABLE jobs (what text);
	CREATE TRIGGER only_leader BEFORE INSERT ON jobs
		FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('e')));
is($app->acquire('e', 'détaché'), 1, 'somebody leads');
$app->query("SELECT leader_election.pause_all('all')");

$new->command_ok([ 'pg_dump', '-f', $dump, '-d', $old->connstr('postgres') ],
	'it is dumped');
$new->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $new->connstr('postgres') ],
	'and restored');
is(session($new)->query("SELECT count(*) FROM ($ROWS) r WHERE r::text LIKE '%$_ %'") > 0,
	1, "$_ has rows") foreach @TABLES;
is( scalar session($new)->query($ROWS), scalar $app->query($ROWS),
	'all rows are the same');
$app = session($new, name => 'app');
is($app->sqlstate_of("INSERT INTO jobs VALUES ('unfenced')"), 'LE001', 'the trigger is there');
$renewed = query_unless_busy($app, "SELECT term FROM leader_election.acquire('e', 'détaché')");
wait_until(
	sub {
		$renewed = query_unless_busy($app, "SELECT term FROM leader_election.renew('e', 1)");
		return $renewed ne '';
	},
	'the leader to lead on');
cmp_ok($renewed, '>', 1, 'the detached leader leads on, in a greater term (G5)');
$_->stop('fast') foreach $old, $new;

$ENV{oldinstall} = $install->{path};
do "$FindBin::RealBin/048_upgrade.pl" or die $@ || $!;
