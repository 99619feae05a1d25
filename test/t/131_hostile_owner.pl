# An owner of the extension's objects who is no superuser, and alters them, ends no
# process of the server: functions that were STRICT, the row type lease_grant, NULLs in
# columns that only seem to be NOT NULL, and code attached to one table that alters
# another, or calls us again, in the middle of a write.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server(config => "client_min_messages = warning\n");
my $super = session($node, name => 'super');

$super->query(q{
	CREATE ROLE dba LOGIN SUPERUSER;
	CREATE ROLE heir LOGIN;
	CREATE SCHEMA AUTHORIZATION heir;
	DROP EXTENSION leader_election});
session($node, user => 'dba')->query('CREATE EXTENSION leader_election');
$super->query('REASSIGN OWNED BY dba TO heir; DROP OWNED BY dba; DROP ROLE dba');
is($super->sqlstate, '00000', 'the objects have another owner');
my $heir = session($node, name => 'heir', user => 'heir');
my $one = session($node, name => 'one');

sub alter
{
	my ($what, $sql) = @_;

	$heir->query($sql);
	is($heir->sqlstate, '00000', $what);
	return;
}

like(query_unless_busy($one, "SELECT leader_election.join('e', 'one')"), qr/^\d+$/, 'a leader');

# --- Functions: what is STRICT is so no longer

foreach my $function (qw(leader _observe _standing))
{
	alter("$function() is called with NULL", "ALTER FUNCTION leader_election.$function(text) CALLED ON NULL INPUT");
	is($super->query("SELECT count(*) FROM leader_election.$function(NULL) f WHERE f IS NOT NULL"), '0',
		"$function(NULL) shows nothing");
	alter("$function() is strict again", "ALTER FUNCTION leader_election.$function(text) STRICT");
}

# --- The row type of grants

foreach my $change (
	[ 'ALTER ATTRIBUTE expires_at TYPE text', 'ALTER ATTRIBUTE expires_at TYPE timestamptz' ],
	[ 'ADD ATTRIBUTE more text', undef ])
{
	my ($do, $undo) = @$change;

	alter("lease_grant: $do", "ALTER TYPE leader_election.lease_grant $do");
	is($one->sqlstate_of("SELECT * FROM leader_election.renew('e')"), '55000', "$do: renew()");
	is($one->sqlstate_of("SELECT * FROM leader_election.acquire('d', 'one')"), '55000', "$do: acquire()");
	like($one->errors, qr/type "leader_election.lease_grant" is not as the extension has made it/, "$do: what");
	alter("lease_grant: $undo", "ALTER TYPE leader_election.lease_grant $undo") if defined $undo;
}

# --- What has another name

foreach my $member (
	[ 'TABLE', 'lease', 'lease' ], [ 'INDEX', 'candidate_pkey', 'candidate' ],
	[ 'INDEX', 'history_acquired_at', 'history' ], [ 'TYPE', 'change', 'change' ],
	[ 'TYPE', 'lease_grant', 'lease_grant' ], [ 'VIEW', 'protocol', 'protocol' ])
{
	my ($kind, $name, $named) = @$member;

	alter("$kind $name is renamed", "ALTER $kind leader_election.$name RENAME TO other");
	is($one->sqlstate_of("SELECT leader_election.join('renamed', 'one')"), '55000', "$name: join()");
	like($one->errors, qr/"leader_election.$named" is not as the extension has made it/, "$name: what");
	alter("$kind $name is back", "ALTER $kind leader_election.other RENAME TO $name");
}

# --- Another index, or a table that lacks a column, in the place of ours

foreach my $index ('lease (leader)', 'history (acquired_at) WHERE term > 0', 'history USING hash (acquired_at)',
	'history (acquired_at, term)', 'history ((acquired_at))')
{
	my $ok = $index =~ /\(\(/;

	alter("history_acquired_at is on $index", "ALTER INDEX leader_election.history_acquired_at RENAME TO other;
		CREATE INDEX history_acquired_at ON leader_election.$index");
	is($one->sqlstate_of("SELECT leader_election.join('index', 'one')"), $ok ? '00000' : '55000', "$index: join()");
	like($one->errors, qr/"leader_election.history" is not as the extension has made it/, "$index: what") if !$ok;
	alter('it is back', 'DROP INDEX leader_election.history_acquired_at;
		ALTER INDEX leader_election.other RENAME TO history_acquired_at');
}

# --- Something else in the place of the view protocol

foreach my $other ('TABLE %s AS SELECT 1 AS number', 'VIEW %s AS SELECT', q(VIEW %s AS SELECT '1'::text AS number),
	'VIEW %s AS SELECT NULL::int AS number', 'VIEW %s AS SELECT 0 AS number')
{
	my ($kind) = $other =~ /^(\w+)/;
	my $do = sprintf $other, 'leader_election.protocol';

	alter($other, "ALTER VIEW leader_election.protocol RENAME TO other; CREATE $do");
	my $new = session($node, name => 'new');
	is($new->query("SELECT leader_election.is_leader('e', 1)"), 'f', "$other: is_leader()");
	is($new->sqlstate_of("SELECT leader_election.join('e', 'new')"), '55000', "$other: join()");
	like($new->errors, qr/speaks protocol -1,/, "$other: why");
	is($new->query("SELECT leader_election.is_leader('e', 1)"), 'f', "$other: and is_leader() again");
	$new->finish;
	alter('it is back', "DROP $kind leader_election.protocol; ALTER VIEW leader_election.other RENAME TO protocol");
}

# --- NULLs where the table says NOT NULL

if ($super->query("SELECT current_setting('server_version_num')::int >= 180000") eq 't')
{
	alter('NOT NULL that is NOT VALID', q{
		ALTER TABLE leader_election.candidate ALTER COLUMN kind DROP NOT NULL, ALTER COLUMN role DROP NOT NULL;
		INSERT INTO leader_election.candidate
			SELECT 'null', 'null', NULL, NULL, 1, 1, NULL, true, NULL, NULL, NULL, now(), 1, NULL, false, 1, 2;
		ALTER TABLE leader_election.candidate ADD CONSTRAINT k NOT NULL kind NOT VALID,
			ADD CONSTRAINT r NOT NULL role NOT VALID});
	$super->query("SELECT leader_election.create_election('null')");
	is($super->sqlstate, '00000', 'create_election()');
	is($super->sqlstate_of("SELECT * FROM leader_election._standing('null')"), '55000', 'standing()');
	like($super->errors, qr/has a row with a null value/, 'standing(): why');
	is($super->sqlstate_of("SELECT leader_election.join('null', 'x')"), '55000', 'join()');
	alter('the row is gone', 'DELETE FROM leader_election.candidate WHERE kind IS NULL');
}

# --- Code that is attached to one table, and does something to the others

sub attach
{
	my ($table, $do) = @_;

	alter("on $table: $do", qq{
		DROP FUNCTION IF EXISTS heir.look CASCADE;
		CREATE OR REPLACE FUNCTION heir.act(text) RETURNS void LANGUAGE plpgsql AS \$\$ BEGIN $do; END \$\$;
		CREATE FUNCTION heir.look(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS \$\$
		BEGIN
			IF current_setting('application_name') <> 'heir' THEN
				PERFORM heir.act(t);
			END IF;
			RETURN t;
		END \$\$;
		CREATE INDEX attached ON leader_election.$table (heir.look(election))});
	return;
}

$one->query('SELECT leader_election.leave_all()');
foreach my $table (qw(history candidate))
{
	attach($table, 'ALTER TABLE leader_election.lease ALTER COLUMN yield_cause TYPE bigint USING 1311768467463790320');
	is($one->sqlstate_of("SELECT leader_election.join('altered', 'one')"), '55000', "$table: join()");
	like($one->errors, qr/"leader_election.lease" is not as the extension has made it/, "$table: why");
}
foreach my $table (qw(lease history candidate))
{
	foreach my $call ("leader_election.leader('e')", "leader_election.drop_election('e')",
		"leader_election.diagnose('e')")
	{
		attach($table, "PERFORM $call");
		is($one->sqlstate_of("SELECT leader_election.join('again', 'one')"), '55000', "$table: $call");
		like($one->errors, qr/while the extension writes a table/, "$table: $call: why");
	}
}
alter('nothing is attached', 'DROP FUNCTION heir.look CASCADE');
like($one->query("SELECT leader_election.join('again', 'one')"), qr/^\d+$/, 'a leader again');
unlike(slurp_file($node->logfile), qr/terminated by signal|PANIC|TRAP/, 'no crash');

$node->stop;
done_testing();
