# The portable edition where a database may come to: dumps, templates, pg_upgrade,
# logical replication, promoted standbys, servers that do not tell their timeline.
# Everywhere the same has to hold: the leader goes on, in a term of a later epoch;
# nobody new is elected for a lease; terms only grow, and two copies do not issue the
# same ones (G5). And in the transactions that are special in this edition: prepared
# ones, blocks with EXCEPTION, what is rolled back; and what its page says of
# settings, tick() and old rows.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $SQL = "$FindBin::RealBin/../../sql";
my $LEASE = int(400 * slowness());    # of elections whose lease is to run out, in ms
my %common = (streaming => 1, initdb => ['--data-checksums'],
	config => "wal_level = logical\nmax_prepared_transactions = 5\nautovacuum = off\n");

my $node = new_server(%common);
my $super = session($node, name => 'super');
my $SUPERUSER = $super->query('SELECT current_user');
my %seen;    # terms that were granted somewhere
my @counters;    # of the first terms of epochs

sub roles
{
	my ($session) = @_;

	$session->query("CREATE ROLE $_ LOGIN") foreach qw(installer app);
	return;
}

sub psql_file
{
	my ($on, $dbname, @args) = @_;

	system_or_bail('psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', @args, '-d', $on->connstr($dbname));
	return;
}

sub portable
{
	my ($on, $dbname) = @_;

	psql_file($on, $dbname, '-U', 'installer', '-v', 'anyway=1', '-f', "$SQL/portable.sql");
	return;
}

sub database
{
	my ($on, $name) = @_;

	$on->safe_psql('postgres', $_) foreach "CREATE DATABASE $name TEMPLATE template0", "GRANT CREATE ON DATABASE $name TO installer";
	portable($on, $name);
	$on->safe_psql($name, 'SET ROLE installer; GRANT USAGE ON SCHEMA leader_election TO app;
		GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app');
	return;
}

sub app
{
	my ($on, $dbname, $name) = @_;

	return session($on, name => $name // $dbname, dbname => $dbname, user => 'app');
}

# Elections: one that is led for long, one that is vacant, one that was dropped.
# Their terms.
sub stood
{
	my ($app) = @_;
	my %term;

	$app->query("SELECT leader_election.create_election('led', lease_duration => '12 hours');
		SELECT leader_election.create_election('vacant', lease_duration => '$LEASE ms', takeover_delay => '0');
		SELECT leader_election.create_election('gone', takeover_delay => '0')");
	$term{led} = $app->acquire('led', 'a');
	foreach my $election (qw(vacant gone))
	{
		$term{$election} = $app->acquire($election, 'a');
		$app->query("SELECT leader_election.release('$election', $term{$election})");
	}
	$app->query("SELECT leader_election.drop_election('gone')");
	die $app->errors if $app->sqlstate ne '00000';
	return %term;
}

# What has to be so where these elections have come to.
sub arrived_ok
{
	my ($where, $on, $dbname, %term) = @_;
	my $there = app($on, $dbname, 'there');
	my $seconds = $there->query("SELECT floor(extract(epoch FROM clock_timestamp() - timestamptz '2020-01-01 00:00+00'))");
	my $again = app($on, $dbname, 'again');
	my $renew = "SELECT term FROM leader_election.renew('led', $term{led})";
	my ($new, $told, $gone);

	is($there->query("SELECT leader_election.is_leader('led', $term{led})"), 'f', "$where: the old term does not lead") ;
	is($there->acquire('led', 'b'), '', "$where: nobody new is elected");
	is($there->sqlstate, '00000', '... and that is no error') or diag($there->errors);
	is($there->query("SELECT waiting_for FROM leader_election.status WHERE election = 'led'"), 'grace after failover', '... for a lease');
	is($there->sqlstate_of("SELECT leader_election.assert_leader('led', $term{led})"), 'LE001', '... and no old term is a fence');

	# Its answer is late: it is asked for once more, before the first call commits.
	$there->query('BEGIN');
	$new = $there->query($renew);
	$again->query_async($renew);
	wait_until(sub {
		$again->finished || $on->safe_psql($dbname, q(SELECT 1 FROM pg_stat_activity
			WHERE wait_event = 'PgSleep' AND pid = ) . $again->backend_pid);
	}, "$where: the second call");
	$there->query('COMMIT');
	$told = $again->result;
	$told = query_unless_busy($again, $renew) if $again->sqlstate eq '55P03';
	is($told, $new, "$where: a renewal that is asked for twice is told the same (G2)");
	$again->finish;
	cmp_ok($new || 0, '>=', ($term{led} >> 22) + 1 << 22, "$where: the leader goes on, in a term of another epoch (G5)");
	is($there->query("SELECT reason FROM leader_election.history WHERE election = 'led' AND term = $term{led}"), 'failover', '... and history says why');
	cmp_ok($new >> 22, '>=', $seconds, '... an epoch of these seconds, or a later one');
	push @counters, $new % (1 << 22);
	ok(!$seen{"led $new"}++, '... which no other copy has issued');
	my $vacant;
	wait_until(sub { $vacant = $there->acquire('vacant', 'c') }, "$where: an election after the grace");
	cmp_ok($vacant, '>=', ($term{vacant} >> 22) + 1 << 22, "$where: who is elected then has a greater term, too (G5)");
	$there->query("SELECT leader_election.release('vacant', $vacant)");
	$there->query("SELECT leader_election.create_election('gone', lease_duration => '$LEASE ms', takeover_delay => '0')");
	wait_until(sub { $gone = $there->acquire('gone', 'c') }, "$where: a new election of an old name");
	cmp_ok($gone, '>', $term{gone}, '... begins above the one that was dropped (G5)');
	$there->query("SELECT leader_election.release('gone', $gone); SELECT leader_election.drop_election('gone')");
	$there->finish;
	return (led => $new, vacant => $vacant, gone => $gone);
}

# pg_current_wal_lsn() as on Aurora, in this database
sub refuse_timeline
{
	my ($on, $dbname) = @_;

	$on->safe_psql($dbname, q(SET allow_system_table_mods = on;
		ALTER FUNCTION pg_catalog.pg_walfile_name(pg_lsn) RENAME TO pg_walfile_name_told;
		CREATE FUNCTION pg_catalog.pg_walfile_name(pg_lsn) RETURNS text LANGUAGE plpgsql AS $$
		BEGIN RAISE EXCEPTION 'wal_level must be set to ''logical''' USING ERRCODE = '55000'; END $$));
	return;
}

roles($super);

#
# Copies in SQL
#

database($node, 'origin');
my $app = app($node, 'origin');
my %origin = stood($app);
my $folder = PostgreSQL::Test::Utils::tempdir();

# As the owner, who is no superuser; restored by another role, as where roles differ
system_or_bail('pg_dump', '-Fc', '-U', 'installer', '-f', "$folder/dump", '-d', $node->connstr('origin'));
$super->query('CREATE ROLE elsewhere LOGIN; CREATE DATABASE dumped TEMPLATE template0; GRANT CREATE ON DATABASE dumped TO elsewhere');
system_or_bail('pg_restore', '-e', '-U', 'elsewhere', '--no-owner', '-d', $node->connstr('dumped'), "$folder/dump");
arrived_ok('dump', $node, 'dumped', %origin);

# Only the rows, into what the file has made
database($node, 'rows');
system_or_bail('pg_dump', '--data-only', '-U', 'installer', '-t', 'leader_election.*', '-f', "$folder/rows", '-d', $node->connstr('origin'));
psql_file($node, 'rows', '-U', $SUPERUSER, '-1', '-f', "$folder/rows");
arrived_ok('rows', $node, 'rows', %origin);

$app->finish;
wait_until(sub { $super->sqlstate_of('CREATE DATABASE copied TEMPLATE origin') eq '00000' }, 'a copy');
my %copied = arrived_ok('TEMPLATE', $node, 'copied', %origin);
wait_until(sub { $super->sqlstate_of('CREATE DATABASE again TEMPLATE copied') eq '00000' }, 'a copy of the copy');
arrived_ok('a copy of the copy', $node, 'again', %copied);
$app = app($node, 'origin');
is($app->query("SELECT term FROM leader_election.renew('led', $origin{led})"), $origin{led}, 'the original goes on as it was');

# In the same database: only the tables are others.
my $in_place = session($node, name => 'in place', dbname => 'again');
system_or_bail('pg_dump', '-Fc', '-f', "$folder/again", '-d', $node->connstr('again'));
my %again = (led => $in_place->term_of('led'), vacant => $in_place->term_of('vacant'), gone => $copied{gone});
$in_place->query('SET client_min_messages = warning; DROP SCHEMA leader_election, leader_election_internal CASCADE');
system_or_bail('pg_restore', '-e', '-d', $node->connstr('again'), "$folder/again");
$in_place->finish;
arrived_ok('a dump restored in its place', $node, 'again', %again);

#
# Logical replication
#

my $subscriber = new_server(%common, name => 'subscriber');
my $new = session($subscriber, name => 'new');
roles($new);
database($subscriber, 'origin');
my $where = $node->connstr('origin') =~ s/'/''/gr;
$node->safe_psql('origin', 'CREATE PUBLICATION moved FOR TABLE leader_election.election, leader_election.lease,
	leader_election.history, leader_election.dropped, leader_election.server');
$subscriber->safe_psql('origin', "CREATE SUBSCRIPTION moved CONNECTION '$where' PUBLICATION moved");
wait_for($subscriber, "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'", 0, undef, 'origin');
$app->query("SELECT term FROM leader_election.renew('led', $origin{led})");
$app->query("SELECT leader_election.release('handed', term) FROM leader_election.acquire('handed', '$_')") foreach qw(a b);
$node->wait_for_catchup('moved');
is($subscriber->safe_psql('origin', q(SELECT count(*) FROM leader_election.history h JOIN leader_election.lease l USING (election) WHERE election = 'handed' AND h.term <= l.term)), 2, 'logical replication: changes of holder come over');
$subscriber->safe_psql('origin', 'DROP SUBSCRIPTION moved');
my %moved = arrived_ok('logical replication', $subscriber, 'origin', %origin);
$node->safe_psql('origin', 'DROP PUBLICATION moved');

#
# pg_upgrade
#

my $upgraded = new_server(%common, name => 'upgraded', start => 0);
my ($old_bin, $new_bin) = map { $_->config_data('--bindir') } $subscriber, $upgraded;
$new->finish;
$subscriber->stop('fast');
chdir $folder;
if (-x "$new_bin/pg_upgrade")
{
	$upgraded->command_ok([ 'pg_upgrade', '--no-sync', '-b', $old_bin, '-B', $new_bin,
			'-d', $subscriber->data_dir, '-D', $upgraded->data_dir,
			'-p', $subscriber->port, '-P', $upgraded->port, '-s', $upgraded->host ], 'pg_upgrade');
	$upgraded->start;
	arrived_ok('pg_upgrade', $upgraded, 'origin', %moved);
	$upgraded->stop('fast');
}

#
# Standbys that are promoted, where the timeline is told and where not
#

database($node, 'silent');
refuse_timeline($node, 'silent');
my %silent = stood(app($node, 'silent'));
is($node->safe_psql('silent', 'SELECT timeline IS NULL FROM leader_election.server'), 't', 'a server that does not tell its timeline');

# It told once, on the server whose files this is.
database($node, 'told');
my %told = stood(app($node, 'told'));
refuse_timeline($node, 'told');
is(app($node, 'told')->query("SELECT term FROM leader_election.renew('led', $told{led})"), $told{led}, 'a server that tells its timeline no more');

$node->backup('backup');
my @standbys = map {
	my $standby = PostgreSQL::Test::Cluster->new($_);
	$standby->init_from_backup($node, 'backup', has_streaming => 1);
	$standby->start;
	$standby;
} qw(first second);
$node->wait_for_catchup($_, 'replay') foreach @standbys;
my (%at_first);
foreach my $standby (@standbys)
{
	$standby->promote;
	my %there = arrived_ok($standby->name, $standby, 'origin', %origin);
	%at_first = %there unless %at_first;
	arrived_ok($standby->name . ', silent', $standby, 'silent', %silent);
}
$standbys[1]->stop;

# One that follows the first one, and is promoted in its turn
$standbys[0]->backup('backup');
my $third = PostgreSQL::Test::Cluster->new('third');
$third->init_from_backup($standbys[0], 'backup', has_streaming => 1);
$third->start;
$standbys[0]->wait_for_catchup($third, 'replay');
$third->promote;
arrived_ok('promoted in its turn', $third, 'origin', %at_first);
$_->stop foreach $third, $standbys[0];

# A restart: the same server, if it tells its timeline
$app->finish;
$super->finish;
$node->restart;
$super = session($node, name => 'super');
$app = app($node, 'origin');
is($app->acquire('led', 'b'), '', 'a restart: nobody new is elected');
is($app->query("SELECT term FROM leader_election.renew('led', $origin{led})"), $origin{led}, 'the leader goes on, in its term');
arrived_ok('a restart, silent', $node, 'silent', %silent);
arrived_ok('a restart, silent since then', $node, 'told', %told);

# Counters of an epoch begin at random, in the lower half: two servers that begin the same
# one do not issue the same terms.
is(join(' ', grep { $_ > 1 << 21 } @counters), '', 'first terms of an epoch are in its lower half');
cmp_ok(scalar(grep { $_ > 1000 } @counters), '>', @counters / 2, 'and begin at random');

#
# Transactions
#

my $two = app($node, 'origin', 'two');
my $owner = session($node, name => 'owner', dbname => 'origin', user => 'installer');
my $admin = session($node, name => 'admin', dbname => 'origin');
$admin->query("UPDATE leader_election.server SET first_seen_at = first_seen_at - interval '1 day'");    # the grace is over

my $number = 0;
sub led
{
	my ($settings) = @_;
	my $election = 'special ' . ++$number;

	$app->query("SELECT leader_election.create_election('$election', takeover_delay => '0', lease_duration => '$settings')");
	return ($election, $app->acquire($election, 'a'));
}

# A lease that must not run out before is long, and ends by this.
sub end_lease
{
	my ($election) = @_;

	$admin->query("UPDATE leader_election.lease SET expires_at = clock_timestamp() WHERE election = '$election'");
	return;
}

# Prepared: its lock is held until it is decided, whatever becomes of the lease.
my ($election, $term) = led('1 hour');
$two->query("SET lock_timeout = '200ms'");
$app->query("BEGIN; SELECT leader_election.assert_leader('$election', $term); PREPARE TRANSACTION 'fenced'");
is($app->sqlstate, '00000', 'a fenced transaction can be prepared');
end_lease($election);
is($two->acquire($election, 'b'), '', 'nobody is elected meanwhile');
is($two->sqlstate, '00000', 'the candidate stands (G8)');
like(scalar $app->query("SELECT finding, remedy FROM leader_election.diagnose('$election')"),
	qr/^a prepared transaction has locked the lease.*pg_prepared_xacts/m, 'and diagnose() what it is');
$app->query("COMMIT PREPARED 'fenced'");
cmp_ok($two->acquire($election, 'b'), '>', $term, 'after its commit somebody is');
$app->query("LISTEN told; UNLISTEN told; SELECT leader_election.join('prepared', 'session', auto_renew => false)");
is($app->query(q(SELECT leader_election.is_leader('prepared'))), 't', 'a session leads that has listened once');
$app->query(q(BEGIN; SELECT leader_election.assert_leader('prepared'); PREPARE TRANSACTION 'told'));
is($app->sqlstate, '0A000', 'it cannot prepare what it has fenced');
$app->query('ROLLBACK');

# A block with EXCEPTION that fails gives back what it has locked. (What a call changes
# after one that locked in vain, whatever blocks there are, is in portable_fence.spec.)
($election, $term) = led('1 hour');
end_lease($election);
$app->query("DO \$\$ BEGIN
	BEGIN
		PERFORM leader_election.acquire('$election', 'c') / 0 FROM (SELECT 0) x;
	EXCEPTION WHEN OTHERS THEN NULL;
	END;
	PERFORM leader_election.acquire('$election', 'c'); END \$\$");
is($app->query("SELECT leader_election.leader('$election')"), 'c', 'after acquire() in a block with EXCEPTION that failed, another one elects');

# What is rolled back was never granted.
my ($first) = $app->query("SELECT leader_election.create_election('block', takeover_delay => '0'); BEGIN; SELECT term FROM leader_election.acquire('block', 'a'); ROLLBACK");
is($app->query("SELECT leader_election.leader('block')"), '', 'a grant that is rolled back was none');
is($two->acquire('block', 'b'), '1', 'the next one is granted that term');

# Old snapshots
($election, $term) = led('1 hour');
end_lease($election);
$two->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM leader_election.status');
$admin->query("UPDATE leader_election.lease SET expires_at = clock_timestamp() + interval '1 min' WHERE election = '$election'");
is($two->sqlstate_of("SELECT leader_election.assert_leader('$election', $term)"), '40001',
	'a snapshot of before a renewal cannot fence once its deadline is over');
$two->query('ROLLBACK');

# A grant is flushed, whatever the session says.
$app->query("SELECT leader_election.create_election('flushed', lease_duration => '1 hour')");
is($app->query("BEGIN; SET LOCAL synchronous_commit = off; SELECT FROM leader_election.acquire('flushed', 'a'); SHOW synchronous_commit; COMMIT") =~ s/\n//gr, 'on',
	'a grant is flushed with synchronous_commit = off (G6)');
is($app->query("SELECT leader_election.release('flushed', 1); BEGIN; SET LOCAL synchronous_commit = remote_apply; SELECT FROM leader_election.acquire('flushed', 'a'); SHOW synchronous_commit; COMMIT") =~ s/^t|\n//gr,
	'remote_apply', 'and waits for no less than the session wants');

# Sessions: no worker renews.
is($app->sqlstate_of("SELECT leader_election.join('auto', 'a')"), '0A000', 'no lease renews itself');

#
# tick(), old rows, a second run
#

$owner->query("SELECT leader_election.configure(history_retention => '1 h')");
($election, $term) = led('10 min');
$admin->query("INSERT INTO leader_election.history (election, term, leader, acquired_at, ended_at, kind, role)
	SELECT 'old', t, 'a', now() - interval '1 day', now() - interval '1 day', 'detached', 'app' FROM generate_series(1, 1050) t");
my $old = "SELECT count(*) FROM leader_election.history WHERE election = 'old'";
led('10 min');
is($admin->query($old), 1040, 'ten old terms go with each new one');
$app->query('SELECT leader_election.tick()');
is($admin->query($old), 40, 'a thousand with each tick()');
is($owner->query('SELECT leader_election.prune()'), 40, 'all with prune()');
$app->acquire($election, 'b');
$app->acquire($election, 'c');
$admin->query("UPDATE leader_election.candidate SET seen_at = seen_at - interval '2 hours' WHERE election = '$election' AND candidate = 'b'");
$admin->query("BEGIN; SELECT FROM leader_election.lease WHERE election = '$election' FOR UPDATE");
$app->query('SELECT leader_election.tick()');
is($app->sqlstate, '00000', 'tick() waits for nobody');
$admin->query('COMMIT');
is($admin->query("SELECT string_agg(candidate, ' ' ORDER BY candidate) FROM leader_election.candidate WHERE election = '$election'"), 'a c',
	'it removes who has not called for ten leases');

my $rows = q(SELECT md5(string_agg(l::text, '' ORDER BY election)), (SELECT count(*) FROM leader_election.history),
	(SELECT s::text FROM leader_election.server s), (SELECT md5(string_agg(x, '' ORDER BY x)) FROM
	(SELECT p.oid::regprocedure::text || p.proacl::text FROM pg_proc p WHERE p.pronamespace = 'leader_election'::regnamespace
	UNION ALL SELECT c.relname || c.relacl::text FROM pg_class c WHERE c.relnamespace = 'leader_election'::regnamespace) y (x)) FROM leader_election.lease l);
$owner->query('REVOKE SELECT ON leader_election.history FROM PUBLIC; GRANT EXECUTE ON FUNCTION leader_election.tick() TO PUBLIC');
my $before = $admin->query($rows);
$owner->query('DROP FUNCTION leader_election.prune()');
$admin->query('ALTER DEFAULT PRIVILEGES FOR ROLE installer GRANT EXECUTE ON FUNCTIONS TO elsewhere');
portable($node, 'origin');
is($admin->query("SELECT has_function_privilege('elsewhere', 'leader_election.prune()', 'EXECUTE'), has_function_privilege('app', 'leader_election.prune()', 'EXECUTE')"),
	'f|f', 'when the file is run again, what it makes anew is nobody\'s');
$owner->query('GRANT EXECUTE ON FUNCTION leader_election.prune() TO app');
is($admin->query($rows), $before, 'when the file is run again, rows, settings and privileges stay');
is($app->query("SELECT term FROM leader_election.renew('$election', $term)"), $term, 'and the leader leads on');
$_->finish foreach $app, $two, $owner, $admin, $super;

done_testing();
