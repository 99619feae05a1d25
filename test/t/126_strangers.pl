# What others can do whom no privilege on the extension was given: members of
# PostgreSQL's own roles, who may read, write or maintain all tables; logical
# replication, and fences; a pooler that keeps the session of a leader that is
# gone. And what diagnose() says of what they have done.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server(
	config => q(
leader_election.lease_duration = '300ms'
client_min_messages = warning
wal_level = logical
max_wal_senders = 10
max_replication_slots = 10
));
my $super = session($node, name => 'super');
my $version = $super->query('SHOW server_version_num');
my $can_maintain = $version >= 170000;
my %is_in = (
	reader => 'pg_read_all_data',
	writer => 'pg_write_all_data',
	keeper => $can_maintain ? 'pg_maintain' : 'pg_read_all_stats',
	other => undef);
$super->query("CREATE ROLE $_ LOGIN" . ($is_in{$_} ? " IN ROLE $is_in{$_}" : '')) foreach keys %is_in;
my %as = map { $_ => session($node, name => $_, user => $_) } keys %is_in;

sub diagnose
{
	my ($election, $session) = @_;

	return join("\n", ($session // $super)->query("SELECT severity, finding, remedy FROM leader_election.diagnose('$election')"));
}

sub finds
{
	my ($election, $row, $title) = @_;
	my $rows;

	eval {
		wait_until(sub { $rows = diagnose($election); $rows =~ /^$row/m }, $title);
	};
	like($rows, qr/^$row/m, $title);
	return;
}

# -- A leader whose client is gone, while something keeps its session

my $lost = session($node, name => 'lost', user => 'other');
$super->query('GRANT USAGE ON SCHEMA leader_election TO other; GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO other');
is($lost->query("SELECT leader_election.join('kept', 'lost')"), '1', 'a session leads');
my $pid = $lost->query('SELECT pg_backend_pid()');
wait_until(
	sub {
		$lost->query("SELECT leader_election.is_leader('kept')");
		return diagnose('kept') =~ /^ok\|.*All is well/;
	},
	'all to be well, as soon as the worker has renewed in time');
pass('and all is well');
finds('kept', qr/notice\|The session in which "lost" leads has sent nothing since \d.* \(for [\d.]+ m?s\), and the server renews its lease all the same: process $pid of role "other" \(client address .*\) is "idle"\.\|.*pg_terminate_backend\($pid\)/,
	'silent for long: since when, in which process');
unlike(diagnose('kept'), qr/All is well/, 'all is not well then');
unlike(diagnose('kept', $as{reader}), qr/sent nothing/, 'told to those only who see it in pg_stat_activity');
$lost->query("SELECT leader_election.is_leader('kept')");
unlike(diagnose('kept'), qr/sent nothing/, 'not after it has asked');
$lost->query('BEGIN');
finds('kept', qr/notice\|The session in which "lost" leads .* is "idle in transaction"/, 'silent in a transaction');
$lost->query('SELECT 1 / 0');
finds('kept', qr/notice\|The session in which "lost" leads .* is "idle in transaction \(aborted\)"/, 'or in one that has failed');
$lost->query('ROLLBACK');
$lost->query("SELECT leader_election.leave('kept')");
$lost->query("SELECT leader_election.join('renews', 'lost', auto_renew => false)");
unlike(diagnose('renews'), qr/sent nothing/, 'not of a session that renews its lease itself');
$lost->finish;

# Without the right to read, a role cannot write one row of many.
foreach my $election (qw(kept renews))
{
	wait_until(sub { $super->sqlstate_of("SELECT leader_election.drop_election('$election')") eq '00000' }, "the end of $election");
}
$super->query('REVOKE ALL ON ALL ROUTINES IN SCHEMA leader_election FROM other; REVOKE ALL ON SCHEMA leader_election FROM other');

# -- What members of PostgreSQL's own roles may do

my $leader = session($node, name => 'leader');
$super->query("SELECT leader_election.create_election('e', lease_duration => '1 h')");
$leader->query("SELECT leader_election.join('e', 'one')");
my $term = $leader->query("SELECT leader_election.term('e')");
foreach my $case (
	[ 'observe', 'SELECT state FROM leader_election.status', 'reader writer' ],
	[ 'fence', "SELECT leader_election.is_leader('e', $term)", 'reader writer' ],
	[ 'read the tables', 'SELECT count(*) FROM leader_election.lease', 'reader' ],
	[ 'stand', "SELECT leader_election.join('e', 'x')", '' ],
	[ 'alter', "SELECT leader_election.alter_election('e', quorum => 1)", '' ],
	[ 'write the tables', 'DELETE FROM leader_election.pause_all', 'writer' ],
	[ 'write the history', "UPDATE leader_election.history SET detail = ''", 'writer' ],
	[ 'lock the tables', 'BEGIN; LOCK TABLE leader_election.lease IN ROW EXCLUSIVE MODE; ROLLBACK', 'writer' ],
	[ 'empty the tables', 'TRUNCATE leader_election.drain', '' ],
	[ 'hang a trigger on them', 'CREATE TRIGGER t BEFORE INSERT ON leader_election.drain FOR EACH STATEMENT EXECUTE FUNCTION suppress_redundant_updates_trigger()', '' ],
	[ 'rewrite the tables', 'REINDEX TABLE leader_election.drain', '' ])
{
	my ($what, $sql, $who) = @$case;

	foreach my $role (sort keys %as)
	{
		my $state = $as{$role}->sqlstate_of($sql);

		$as{$role}->query('ROLLBACK') if $sql =~ /^BEGIN/;
		is($state, $who =~ /$role/ ? '00000' : '42501', ($is_in{$role} // 'no role') . ": $what");
	}
}

if ($can_maintain)
{
	$super->query('GRANT USAGE ON SCHEMA leader_election TO keeper');
	is($as{keeper}->sqlstate_of($_), '00000', "pg_maintain and USAGE: $_")
	  foreach 'VACUUM FULL leader_election.drain', 'REINDEX TABLE leader_election.drain',
	  'BEGIN; LOCK TABLE leader_election.drain IN ACCESS EXCLUSIVE MODE; ROLLBACK';
}

# -- Rows that one of them wrote

is($leader->query("SELECT leader_election.is_leader('e')"), 't', 'it leads through all of that');
unlike(diagnose('e'), qr/not written/, 'no rows of others');
$as{writer}->query("UPDATE leader_election.lease SET leader = 'nobody'");
finds('e', qr/warning\|The lease row of election "e" has "nobody" in term $term, and the history does not: .*\|.*has_table_privilege/, 'a leader that was written by another role');
$as{writer}->query("UPDATE leader_election.lease SET leader = 'one'");
unlike(diagnose('e'), qr/not written/, 'no more');
$as{writer}->query("INSERT INTO leader_election.history (election, term, leader, kind, role, acquired_at) VALUES ('e', 1000, 'x', 'session', 'x', now())");
is($as{writer}->sqlstate, '00000', 'a later term in the history');
my $repair = qr/error\|The lease row of election "e" has term $term, and the history a later one, 1000: .*\|.*(UPDATE leader_election.lease SET term = 1000 \+ 1 WHERE election = 'e';)/;
finds('e', $repair, 'is found');
my ($remedy) = diagnose('e') =~ $repair;
$leader->kill;
$super->query($remedy);
my $next = session($node, name => 'next');
wait_until(sub { $next->query("SELECT leader_election.join('e', 'two')") =~ /^\d+$/ }, 'the next leader');
cmp_ok($next->query("SELECT leader_election.term('e')"), '>', 1000, 'the remedy helps');
unlike(diagnose('e'), qr/not written/, 'and no more is found');
is(join(' ', $super->query("SELECT rolname FROM pg_roles WHERE NOT rolsuper AND has_table_privilege(oid, 'leader_election.lease', 'INSERT, UPDATE, DELETE') ORDER BY 1")),
	'pg_write_all_data writer', 'who can write them');
$next->finish;

# -- What logical replication writes passes ENABLE ALWAYS

my $tables = 'CREATE TABLE rows (id int PRIMARY KEY); CREATE TABLE copied (id int PRIMARY KEY); CREATE TABLE emptied (id int PRIMARY KEY);';
my $connection = $node->connstr('postgres') =~ s/'//gr;

$node->safe_psql('postgres', 'CREATE DATABASE subscriber');
$node->safe_psql('postgres', "$tables INSERT INTO copied VALUES (1); CREATE PUBLICATION p FOR TABLE rows, emptied; CREATE PUBLICATION copies FOR TABLE copied;");
$node->safe_psql('postgres', "SELECT pg_create_logical_replication_slot(name, 'pgoutput') FROM unnest('{s,copies}'::text[]) name");
$node->safe_psql('subscriber', "CREATE EXTENSION leader_election; SELECT leader_election.create_election('e'); $tables");
foreach my $table (qw(rows copied emptied))
{
	$node->safe_psql('subscriber', "CREATE TRIGGER fenced BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON $table FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('e'); ALTER TABLE $table ENABLE ALWAYS TRIGGER fenced");
}
my $subscriber = session($node, name => 'subscriber', dbname => 'subscriber');
is($subscriber->sqlstate_of('INSERT INTO rows VALUES (0)'), 'LE001', 'fenced');
$subscriber->query("SET session_replication_role = replica");
is($subscriber->sqlstate_of('INSERT INTO rows VALUES (0)'), 'LE001', 'ENABLE ALWAYS: and by a session that says it replicates');
my $log = sub { slurp_file($node->logfile) };
my $before = length $log->();
$subscriber->query($_) foreach "CREATE SUBSCRIPTION s CONNECTION '$connection' PUBLICATION p WITH (create_slot = false, copy_data = false)",
  "CREATE SUBSCRIPTION copies CONNECTION '$connection' PUBLICATION copies WITH (create_slot = false)";

sub wait_rows
{
	my ($rows) = @_;

	wait_until(sub { $subscriber->query('SELECT string_agg(id::text, \' \' ORDER BY id) FROM rows') eq $rows }, "rows $rows");
	return pass("replicated although nobody leads: $rows");
}

$super->query('INSERT INTO rows VALUES (1), (2), (3)');
wait_rows('1 2 3');
$super->query('UPDATE rows SET id = 4 WHERE id = 3');
$super->query('DELETE FROM rows WHERE id = 1');
wait_rows('2 4');

# The first copy of a table, and TRUNCATE, fire triggers for each statement.
wait_until(sub { substr($log->(), $before) =~ /ERROR:  this session does not lead election "e"/ }, 'the first copy is refused');
is($subscriber->query('SELECT count(*) FROM copied'), '0', 'the first copy of a table is refused');
$super->query('INSERT INTO emptied VALUES (1)');
wait_until(sub { $subscriber->query('SELECT count(*) FROM emptied') eq '1' }, 'a row');
$before = length $log->();
$super->query('TRUNCATE emptied');
wait_until(sub { substr($log->(), $before) =~ /message type "TRUNCATE"/ }, 'TRUNCATE is refused');
is($subscriber->query('SELECT count(*) FROM emptied'), '1', 'so is TRUNCATE');

foreach my $name (qw(s copies))
{
	$subscriber->query($_) foreach "ALTER SUBSCRIPTION $name DISABLE", "ALTER SUBSCRIPTION $name SET (slot_name = NONE)", "DROP SUBSCRIPTION $name";
}
$_->finish foreach $subscriber, $super, values %as;
$node->stop('immediate');
done_testing();
