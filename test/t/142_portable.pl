# The portable edition (sql/portable.sql): SQL and PL/pgSQL alone, for servers on
# which no extension can be installed.
#
# - It goes in as a role that has CREATE on the database and nothing else, whatever
#   is set there, and refuses where it must not be.
# - It has the extension's names: the two catalogs are compared, and what differs is
#   in a table, with its reason.
# - It has the extension's words: one script of calls has the same results, SQLSTATEs,
#   messages and hints in both; what differs is in a table, too.
# - Its locks: each sentence at the top of the file, with the interleaving that
#   would break it. Where that can be done in SQL, the rule is then left out, and the
#   same scenario has to end otherwise: so it tests what it says.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use File::Basename qw(dirname);
use File::Copy qw(copy);
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $FILE = "$FindBin::RealBin/../../sql/portable.sql";
my $TOP = dirname(dirname($FILE));
my $LEASE = int(400 * slowness());	# of elections whose lease is to run out, in ms

my $node = new_server(
	streaming => 1,
	config => "leader_election.lease_duration = '10min'\nclient_min_messages = notice\nlisten_addresses = '127.0.0.1'\n");
my $super = session($node, name => 'super');
my $SUPERUSER = $super->query('SELECT current_user');

# Runs the file as the role installer in a database; its exit code and its errors
sub run_file
{
	my ($dbname, @args) = @_;
	my $user = grep({ $_ eq '-U' } @args) ? '' : ' user=installer';
	my $err;

	IPC::Run::run([ 'psql', '-Xq', @args, '-f', $FILE,
			'-d', $node->connstr($dbname) . $user ],
		'<' => \'', '>' => \my $out, '2>' => \$err);
	return ($? >> 8, $err . $out);
}

sub database
{
	my ($name, @sql) = @_;

	$super->query("CREATE DATABASE $name TEMPLATE template0");
	$super->query("GRANT CREATE ON DATABASE $name TO installer");
	$node->safe_psql($name, join ";\n", 'REVOKE ALL ON SCHEMA public FROM PUBLIC', @sql);
	return;
}

#
# Installing
#

$super->query("CREATE ROLE $_ LOGIN") foreach qw(installer app operator stranger);
my $scs = $super->query('SHOW server_version_num') < 190000
  ? 'ALTER ROLE installer SET standard_conforming_strings = off' : 'SELECT 1';

database('portable', q(
	CREATE SCHEMA evil;
	GRANT USAGE ON SCHEMA evil TO PUBLIC;
	CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT 'infinity'::timestamptz $$;
	CREATE FUNCTION evil.same(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
	CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same);
	CREATE DOMAIN evil.text AS pg_catalog.int4;
	CREATE TABLE evil.pg_class ();
	CREATE ACCESS METHOD another TYPE TABLE HANDLER pg_catalog.heap_tableam_handler;
	ALTER DEFAULT PRIVILEGES FOR ROLE installer GRANT ALL ON TABLES TO stranger;
	ALTER DEFAULT PRIVILEGES FOR ROLE installer GRANT ALL ON SCHEMAS TO stranger));
$super->query($scs);
$super->query('ALTER ROLE installer SET search_path = evil, pg_catalog');
$super->query(q(ALTER ROLE installer SET "plpgsql.extra_errors" = 'all'));
$super->query('ALTER ROLE installer IN DATABASE portable SET default_table_access_method = another');

# As on some services: each table has row security, and a trigger
$node->safe_psql('portable', q(
	CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
	CREATE FUNCTION public.secure() RETURNS event_trigger LANGUAGE plpgsql AS $$
	DECLARE
		t text;
	BEGIN
		FOR t IN SELECT object_identity FROM pg_catalog.pg_event_trigger_ddl_commands() WHERE object_type = 'table' LOOP
			EXECUTE 'ALTER TABLE ' || t || ' ENABLE ROW LEVEL SECURITY';
			EXECUTE 'CREATE TRIGGER nothing BEFORE INSERT ON ' || t || ' FOR EACH ROW EXECUTE FUNCTION public.nothing()';
		END LOOP;
	END $$;
	GRANT USAGE ON SCHEMA public TO installer;
	CREATE EVENT TRIGGER secure ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION public.secure()));

my ($code, $said) = run_file('portable');
isnt($code, 0, 'it is not put where the extension is available');
like($said, qr/is available on this server.*HINT:.*CREATE EXTENSION/s, 'and names the extension');

($code, $said) = run_file('portable', '-v', 'anyway=1');
is($code, 0, 'it goes in as a role with CREATE alone, with a hostile search_path') or diag($said);
is($said, '', 'without a word');
($code, $said) = run_file('portable', '-v', 'anyway=1');
is("$code $said", '0 ', 'and again');

$node->safe_psql('portable', 'DROP EVENT TRIGGER secure');
is($node->safe_psql('portable', 'SELECT number, version FROM leader_election_internal.edition'), '1|1.0', 'it knows its version');
is($node->safe_psql('portable', 'SELECT number, edition, version FROM leader_election.protocol'),
	$node->safe_psql('postgres', "SELECT number, 'portable', version FROM leader_election.protocol"),
	'and tells it as the extension does');
my $owner = session($node, name => 'owner', dbname => 'portable', user => 'installer');
$owner->query('SET search_path = pg_catalog');

# A foreign key of the owner's with CASCADE would delete its rows with each change of holder.
$owner->query('CREATE SCHEMA refers');
is($owner->sqlstate_of('CREATE TABLE refers.there (election text REFERENCES leader_election.lease ON DELETE CASCADE)'), '42501', 'no foreign key of the owner refers to a lease');
is($owner->sqlstate_of('CREATE TABLE refers.there (election text REFERENCES leader_election.election ON DELETE CASCADE)'), '00000', 'but to an election');
$owner->query('DROP SCHEMA refers CASCADE');

is($owner->query(q(SELECT count(*) FROM pg_class c JOIN pg_am a ON a.oid = c.relam
	WHERE c.relnamespace::regnamespace::text LIKE 'leader_election%' AND c.relkind = 'r' AND a.amname <> 'heap')), 0, 'its tables are heaps');
is($owner->query(q(SELECT count(*) FROM pg_class c, aclexplode(c.relacl) a
	WHERE c.relnamespace::regnamespace::text LIKE 'leader_election%' AND a.grantee = 'stranger'::regrole)),
	0, 'what default privileges gave away is taken back');
is($owner->query(q(SELECT count(*) FROM pg_class c LEFT JOIN pg_trigger t ON t.tgrelid = c.oid
	WHERE c.relnamespace::regnamespace::text LIKE 'leader_election%' AND (c.relrowsecurity OR t.oid IS NOT NULL))),
	0, 'so is what an event trigger has added');
is($owner->query(q(SELECT count(*) FROM pg_proc p WHERE p.pronamespace = 'leader_election_internal'::regnamespace
	AND has_function_privilege('stranger', p.oid, 'EXECUTE'))), 0, 'nobody may call what is internal');
is($owner->query(q(SELECT string_agg(proname, ' ') FROM pg_proc p WHERE p.pronamespace = 'leader_election'::regnamespace
	AND prosecdef AND proconfig IS DISTINCT FROM ARRAY['search_path=pg_catalog, pg_temp']
	AND proconfig IS DISTINCT FROM ARRAY['search_path=pg_catalog, pg_temp', 'lock_timeout=1s'])),
	'', 'who runs as the owner has a search_path of its own');

($code, $said) = run_file('postgres', '-v', 'anyway=1');
like($said, qr/this database has the extension/, 'it is not put beside the extension');
database('theirs', 'CREATE SCHEMA leader_election AUTHORIZATION operator');
($code, $said) = run_file('theirs', '-v', 'anyway=1');
like($said, qr/schema "leader_election" belongs to role "operator"/, 'nor into a schema of another owner');
($code, $said) = run_file('theirs', '-v', 'anyway=1', '-U', $node->safe_psql('postgres', 'SELECT current_user'));
like($said, qr/schema "leader_election" belongs to role "operator"/, '... not even as a superuser, who would run what is in it');
$node->safe_psql('theirs', 'ALTER SCHEMA leader_election OWNER TO installer');
($code, $said) = run_file('theirs', '-v', 'anyway=1');
like($said, qr/is not that of the portable edition/, 'nor into one that is something else');
$owner->query(q(INSERT INTO leader_election_internal.edition (number, version, changes) VALUES (2, '2.0', 'tomorrow')));
($code, $said) = run_file('portable', '-v', 'anyway=1');
like($said, qr/of a newer portable edition.*version 2, this file is of version 1/s, 'nor over newer data');
$owner->query('DELETE FROM leader_election_internal.edition WHERE number = 2');

#
# The same names
#

my %CATALOG = (
	function => q(SELECT p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
		concat_ws(' ', p.prokind, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
			p.provolatile, p.proparallel, p.proisstrict)
		FROM pg_proc p WHERE p.pronamespace = 'leader_election'::regnamespace),
	column => q(SELECT c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod)
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		WHERE c.relnamespace = 'leader_election'::regnamespace AND c.relname IN ('status', 'candidates', 'history',
			'metrics', 'server_metrics', 'protocol', 'election', 'election_group', 'drain', 'lease_grant')),
	order => q(SELECT c.relname, string_agg(a.attname, ' ' ORDER BY a.attnum)
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
		WHERE c.relnamespace = 'leader_election'::regnamespace AND c.relname IN ('status', 'candidates', 'history',
			'metrics', 'server_metrics', 'protocol', 'lease_grant') GROUP BY 1),
	comment => q(SELECT i.type || ' ' || i.identity, d.description
		FROM pg_description d, pg_identify_object(d.classoid, d.objoid, d.objsubid) i
		WHERE (i.schema = 'leader_election' OR i.identity = 'leader_election') AND i.type IN ('function', 'procedure', 'view', 'schema',
			'composite type', 'table', 'type') AND i.type || i.identity NOT IN ('x')),
	public => q(SELECT 'function ' || p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')', 'may call'
		FROM pg_proc p WHERE p.pronamespace = 'leader_election'::regnamespace
		AND has_function_privilege('stranger', p.oid, 'EXECUTE')
		UNION ALL SELECT 'relation ' || relname, 'may read' FROM pg_class c
		WHERE c.relnamespace = 'leader_election'::regnamespace AND has_table_privilege('stranger', c.oid, 'SELECT')));

# What differs, and why. Each entry has to be needed.
my $BEYOND = 'the portable edition has it beyond the extension';
my $INTERNAL = 'a table of its own code, which nobody else reads';
my %DIFFERS = (
	'function tick()' => $BEYOND,
	'function prune()' => $BEYOND,
	'function configure(lease_duration interval, history_retention interval, auto_create boolean, announce boolean)' => $BEYOND,
	'function _stands(election text)' => 'what campaign() asks, which cannot read tables as the owner',
	'comment function leader_election.tick()' => $BEYOND,
	'comment function leader_election.prune()' => $BEYOND,
	'comment function leader_election.configure(interval,interval,boolean,boolean)' => $BEYOND,
	'function create_election(election text, strategy text, lease_duration interval, quorum integer, takeover_delay interval, candidate_role name, channel text, preempt_delay interval, initial_delay interval)'
	  => 'takeover_delay is 1 s unless it is given: a leap of the wall clock by less is harmless then',
	(map { ("column election.$_" => 'there are no pauses') } qw(paused_at paused_by
		pause_reason pause_vacates resumes_at resumes_mono resumes_for pause_incarnation)),
	(map { ("column election.$_" => 'roles are told by their names') } qw(owner_id candidate_role_id)),
	'comment type leader_election.change' => $INTERNAL,
	'comment composite type leader_election.change' => $INTERNAL,
	(map { ("comment table leader_election.$_" => $INTERNAL) } qw(announced dropped epoch pause_all)),
	'comment table leader_election.drain' => 'a view: nothing is drained',
	'comment table leader_election.election_group' => 'a view: there are no groups',
);

sub catalog
{
	my ($dbname) = @_;
	my $session = session($node, name => 'catalog', dbname => $dbname);
	my %all;

	foreach my $kind (sort keys %CATALOG)
	{
		foreach my $line ($session->query(
			"SELECT a || '\t' || replace(b, E'\\n', ' ') FROM ($CATALOG{$kind}) x (a, b)"))
		{
			my ($name, $value) = split /\t/, $line, 2;
			$all{ ($kind eq 'function' ? '' : "$kind ") . ($kind eq 'function' ? 'function ' : '') . $name } = $value;
		}
		die $session->errors if $session->sqlstate ne '00000';
	}
	$session->finish;
	return %all;
}

my %theirs = catalog('postgres');
my %ours = catalog('portable');
cmp_ok(scalar keys %theirs, '>', 200, 'there is a catalog to compare with');
my %needed;
my @differences;
foreach my $name (sort keys %{ { %theirs, %ours } })
{
	next if defined $theirs{$name} && defined $ours{$name} && $theirs{$name} eq $ours{$name};
	if (exists $DIFFERS{$name})
	{
		$needed{$name} = 1;
		next;
	}
	push @differences, "$name\n  extension: " . ($theirs{$name} // 'none')
	  . "\n  portable:  " . ($ours{$name} // 'none');
}
is(join("\n", @differences), '', 'the catalogs differ only where the table says so');
is(join("\n", grep { !/^comment .*type/ && !$needed{$_} } sort keys %DIFFERS), '', 'each entry of the table is needed');

#
# The reference says which of them are in this edition, too: its tables of calls and
# views have a mark.
#

my $owns = session($node, name => 'owns', dbname => 'portable');
my %lacks = map { $_ => 1 } $owns->query(q{SELECT proname FROM pg_proc WHERE pronamespace = 'leader_election'::regnamespace
	AND prosrc ~ '^\s*BEGIN\s+RAISE EXCEPTION ''leader_election\.\w+\(\) is not in the portable edition'''});
cmp_ok(scalar keys %lacks, '>', 10, 'functions that are not in it');
foreach my $relation (qw(status candidates history metrics server_metrics protocol))
{
	$lacks{$relation} = 1 if $owns->sqlstate_of("SELECT FROM leader_election.$relation") ne '00000';
}
$owns->finish;
my ($calls) = slurp_file("$TOP/docs/reference.md") =~ /^## Session candidates\n(.*?)^`waiting_for` says/ms;
my %marks;
foreach my $row ($calls =~ /^\| (.*?) \| /gm)
{
	my $marked = $row =~ s/^(?:\xe2\x97\x86|\x{25c6}) // ? 1 : 0;

	next unless $row =~ /^(?:`|view `|table `)/;
	foreach my $name ($row =~ /`(?:CALL )?(\w+)\(/g, $row =~ /^(?:view|table) `(\w+)`/)
	{
		is($marked, $lacks{$name} ? 0 : 1, "docs/reference.md: the mark of $name");
		$marks{$name} = 1;
	}
}
cmp_ok(scalar keys %marks, '>', 35, 'calls and views in the reference');

#
# The same words
#

my $setup = q(
	CREATE TABLE public.jobs (id int);
	CREATE TABLE public.wrong (id int);
	GRANT USAGE ON SCHEMA public, leader_election TO app, operator;
	GRANT ALL ON public.jobs, public.wrong TO app;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app, operator;
	CREATE TRIGGER only_the_leader BEFORE INSERT ON public.jobs FOR EACH STATEMENT
		EXECUTE FUNCTION leader_election.only_leader('scheduler');
	CREATE TRIGGER not_so BEFORE INSERT ON public.wrong FOR EACH ROW
		EXECUTE FUNCTION leader_election.only_leader('scheduler');
);
$node->safe_psql($_, $setup) foreach qw(postgres portable);

# Who calls, and what. Arguments of another role's are for refusals.
my @CALLS = (
	# Detached candidates
	[ app => "SELECT term, yielding FROM leader_election.acquire('scheduler', 'a')" ],
	[ app => "SELECT term FROM leader_election.acquire('scheduler', 'a')" ],
	[ app => "SELECT term FROM leader_election.acquire('scheduler', 'b')" ],
	[ app => "SELECT (leader_election.acquire('other', 'a')).term" ],
	[ app => "SELECT (leader_election.acquire('third', 'a', 1, 2, '{}')).*" => 'columns' ],
	[ app => "SELECT term, yielding FROM leader_election.renew('scheduler', 1)" ],
	[ app => "SELECT term FROM leader_election.renew('scheduler', 1, 7, '{\"url\": 1}')" ],
	[ app => "SELECT state, leader, term, candidates, quorum, strategy, kind, metadata FROM leader_election.status WHERE election = 'scheduler'" ],
	[ app => "SELECT candidate, position, leads, alive, drained, kind, rank, progress, metadata FROM leader_election.candidates WHERE election = 'scheduler' ORDER BY position" ],
	[ app => "SELECT leader_election.is_leader('scheduler', 1), leader_election.is_leader('scheduler', 2), leader_election.is_leader('scheduler', NULL), leader_election.is_leader(NULL, 1)" ],
	[ app => "SELECT leader_election.leader('scheduler'), leader_election.leader('nobody'), leader_election.leader(NULL)" ],
	[ app => "SELECT term FROM leader_election.renew('scheduler', 2)" ],
	[ app => "SELECT leader_election.release('scheduler', 2)" ],
	[ app => "SELECT leader_election.leave('scheduler', 'a')" ],
	[ app => "SELECT leader_election.leave('scheduler', 'nobody')" ],
	[ operator => "SELECT term FROM leader_election.renew('scheduler', 1)" ],
	[ operator => "SELECT leader_election.release('scheduler', 1)" ],
	[ operator => "SELECT term FROM leader_election.acquire('scheduler', 'b')" ],
	[ operator => "SELECT leader_election.leave('scheduler', 'b')" ],
	[ app => "SELECT leader_election.transfer('scheduler', 1, 'nobody')" ],
	[ app => "SELECT leader_election.transfer('scheduler', 1, 'a')" ],
	[ app => "SELECT leader_election.transfer('scheduler', 1, 'b')" ],
	[ app => "SELECT state, waiting_for FROM leader_election.status WHERE election = 'scheduler'" ],
	[ app => "SELECT term FROM leader_election.acquire('scheduler', 'a')" ],
	[ app => "SELECT term FROM leader_election.acquire('scheduler', 'b')" ],
	[ app => "SELECT leader_election.release('scheduler', 2)" ],
	[ app => "SELECT term FROM leader_election.acquire('scheduler', 'b')" ],
	[ app => "SELECT term FROM leader_election.acquire('scheduler', 'a')" ],
	[ app => "SELECT leader_election.release('scheduler', 3, '1 hour')" ],
	[ app => "SELECT state, waiting_for FROM leader_election.status WHERE election = 'scheduler'" ],
	[ app => "SELECT term FROM leader_election.acquire('scheduler', 'b')" ],
	[ app => "SELECT term, leader, reason, detail, kind, role FROM leader_election.history WHERE election = 'scheduler' ORDER BY term" ],
	# As the clients do it: several calls in one statement
	[ app => "SELECT term FROM leader_election.acquire('gone', 'a')" ],
	[ app => "SELECT leader_election.leave('gone', 'a') FROM leader_election.release('gone', 1)" ],
	[ app => "SELECT state, candidates FROM leader_election.status WHERE election = 'gone'" ],
	[ app => "SELECT term FROM leader_election.acquire('gone', 'a')" ],
	[ app => "SELECT r.term, leader_election.release('gone', 2) FROM leader_election.renew('gone', 2) r" ],
	[ app => "SELECT leader_election.release('gone', 2)" ],
	[ app => "DO \$\$ BEGIN PERFORM leader_election.acquire('gone', 'a'); PERFORM leader_election.release('gone', 3); END \$\$" ],
	[ app => "SELECT e, (leader_election.acquire('many ' || e, 'a')).term FROM generate_series(1, 3) e" ],
	[ app => "SELECT e, leader_election.release('many ' || e, 1) FROM generate_series(1, 3) e" ],
	[ app => "SELECT term, leader, reason FROM leader_election.history WHERE election IN ('gone', 'many 2') ORDER BY election, term" ],
	# Arguments
	[ app => "SELECT * FROM leader_election.acquire(NULL, 'a')" ],
	[ app => "SELECT * FROM leader_election.acquire('', 'a')" ],
	[ app => "SELECT * FROM leader_election.acquire(repeat('x', 201), 'a')" ],
	[ app => "SELECT * FROM leader_election.acquire('scheduler', NULL)" ],
	[ app => "SELECT * FROM leader_election.acquire('scheduler', repeat('x', 201))" ],
	[ app => "SELECT * FROM leader_election.acquire('scheduler', 'a', metadata => to_jsonb(repeat('x', 9000)))" ],
	[ app => "SELECT * FROM leader_election.acquire('scheduler', 'a', attempts => 1)" ],
	[ app => "SELECT * FROM leader_election.acquire('scheduler', 'a', run => 'r', attempts => 0)" ],
	[ app => "SELECT * FROM leader_election.acquire('scheduler', 'a', run => '')" ],
	[ app => "SELECT leader_election.release('scheduler', NULL)" ],
	[ app => "SELECT leader_election.release('scheduler', 1, '-1 s')" ],
	[ app => "SELECT leader_election.release('scheduler', 1, '367 days')" ],
	[ app => "SELECT leader_election.transfer('scheduler', NULL, 'b')" ],
	[ app => "SELECT leader_election.transfer('scheduler', 1, NULL)" ],
	[ app => "SELECT * FROM leader_election.renew('nobody', 1)" ],
	[ app => "SELECT leader_election.release('nobody', 1)" ],
	[ app => "SELECT leader_election.leave('nobody', 'a')" ],
	[ app => "SELECT leader_election.assert_leader('nobody', 1)" ],
	[ app => "SELECT leader_election.assert_leader('nobody')" ],
	[ app => "SELECT leader_election.assert_leader(NULL, 1)" ],
	# Requests and runs
	[ app => "SELECT term FROM leader_election.acquire('asked', 'a', request => '5c6b0f0e-3f6a-4a52-9d0c-8f1f0e6f2a11')" ],
	[ app => "SELECT term FROM leader_election.acquire('asked', 'a', request => '5c6b0f0e-3f6a-4a52-9d0c-8f1f0e6f2a11')" ],
	[ app => "SELECT term FROM leader_election.acquire('asked', 'b', request => '5c6b0f0e-3f6a-4a52-9d0c-8f1f0e6f2a11')" ],
	[ app => "SELECT term FROM leader_election.renew('asked', 1)" ],
	[ app => "SELECT term FROM leader_election.acquire('asked', 'a', request => '5c6b0f0e-3f6a-4a52-9d0c-8f1f0e6f2a11')" ],
	[ app => "SELECT leader_election.release('asked', 1, done => true)" ],
	[ app => "SELECT term FROM leader_election.acquire('nightly', 'a', run => '2026-11-21', attempts => 2)" ],
	[ app => "SELECT run, run_done FROM leader_election.status WHERE election = 'nightly'" ],
	[ app => "SELECT leader_election.release('nightly', 1)" ],
	[ app => "SELECT term FROM leader_election.acquire('nightly', 'a', run => '2026-11-21', attempts => 2)" ],
	[ app => "SELECT leader_election.release('nightly', 2)" ],
	[ app => "SELECT term FROM leader_election.acquire('nightly', 'a', run => '2026-11-21', attempts => 2)" ],
	[ app => "SELECT leader_election.release('nightly', 2, done => true)" ],
	[ app => "SELECT leader_election.release('nightly', 1, done => true)" ],
	[ app => "SELECT term FROM leader_election.acquire('nightly', 'a', run => '2026-11-20')" ],
	[ app => "SELECT term FROM leader_election.acquire('nightly', 'a', run => '2026-11-21')" ],
	[ app => "SELECT term FROM leader_election.acquire('nightly', 'a', run => '2026-11-22')" ],
	[ app => "SELECT leader_election.release('nightly', 3, '1 s', true)" ],
	[ app => "SELECT run_done, done_at IS NOT NULL FROM leader_election.status WHERE election = 'nightly'" ],
	[ app => "SELECT leader_election.set_run_done('nightly', '2026')" ],
	# Sessions
	[ app => "SELECT leader_election.join('session', 's', auto_renew => false)" ],
	[ app => "SELECT leader_election.join('session', 's', auto_renew => false)" ],
	[ app => "SELECT leader_election.join('session', 's')" ],
	[ app => "CALL leader_election.campaign('session', 's', '1 s')" ],
	[ app => "SELECT leader_election.join('session', 'other', auto_renew => false)" ],
	[ app => "SELECT leader_election.is_leader('session'), leader_election.term('session'), leader_election.remaining_ms('session') > 1000" ],
	[ app => "SELECT leader_election.is_leader('nobody'), leader_election.term('nobody'), leader_election.remaining_ms('nobody')" ],
	[ app => "SELECT term FROM leader_election.renew('session')" ],
	[ app => "SELECT * FROM leader_election.renew('session', 1)" ],
	[ app => "SELECT leader_election.release('session', 1)" ],
	[ app => "SELECT leader_election.transfer('session', 's')" ],
	[ app => "BEGIN; SELECT leader_election.assert_leader('session'); COMMIT" ],
	[ operator => "SELECT leader_election.is_leader('session'), leader_election.is_leader('session', 1)" ],
	[ operator => "SELECT term FROM leader_election.renew('session')" ],
	[ operator => "SELECT leader_election.leave('session', 's')" ],
	[ operator => "SELECT leader_election.assert_leader('session')" ],
	[ app => "SELECT * FROM leader_election.acquire('session', 's')" ],
	[ app => "SELECT term FROM leader_election.acquire('session', 'd')" ],
	[ operator => "SELECT leader_election.join('session', 's', auto_renew => false)" ],
	[ operator => "SELECT leader_election.join('session', 'd', auto_renew => false)" ],
	[ app => "SELECT leader_election.leave('session', 'd')" ],
	[ app => "SELECT leader_election.join('session', 's', auto_renew => true)" => 'auto_renew' ],
	[ app => "BEGIN; SELECT leader_election.assert_leader('session', 1); SELECT leader_election.is_leader('session'); ROLLBACK" ],
	[ app => "BEGIN READ ONLY; SELECT leader_election.assert_leader('session', 1); ROLLBACK" ],
	[ app => "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT leader_election.assert_leader('session', 1); COMMIT" ],
	[ app => "SELECT state, leader, kind, backend_pid IS NOT NULL, waiting_for FROM leader_election.status WHERE election = 'session'" ],
	[ app => "SELECT candidate, position, leads, kind, stood > '0' FROM leader_election.candidates WHERE election = 'session'" ],
	[ app => "BEGIN; CALL leader_election.campaign('session', 's', '1 s', auto_renew => false); ROLLBACK" => 'procedure' ],
	[ app => "BEGIN; CALL leader_election.wait_for_change('session', NULL, NULL, '1 s'); ROLLBACK" => 'procedure' ],
	[ app => "CALL leader_election.wait_for_change('nobody', NULL, NULL, '10 ms')" ],
	[ app => "CALL leader_election.wait_for_change('session', NULL, NULL, '-1 s')" ],
	[ app => "CALL leader_election.campaign(NULL, 's')" ],
	[ app => "SELECT leader_election.renew(NULL)" ],
	[ app => "SELECT leader_election.resign(NULL)" ],
	[ app => "SELECT leader_election.resign('nobody')" ],
	[ app => "SELECT leader_election.leave('nobody')" ],
	[ app => "SELECT leader_election.transfer('nobody', 'x')" ],
	[ app => "SELECT leader_election.renew('nobody')" ],
	[ app => "CALL leader_election.campaign('session', 's', '1 s', auto_renew => false)" ],
	[ app => "CALL leader_election.campaign('session', 's', '-1 s', auto_renew => false)" ],
	[ app => "SELECT leader_election.resign('session', '1 hour')" ],
	[ app => "SELECT leader_election.resign('session')" ],
	[ app => "SELECT leader_election.leave('session')" ],
	[ app => "SELECT leader_election.leave('session')" ],
	[ app => "SELECT leader_election.leave_all()" ],
	[ app => "CALL leader_election.wait_for_change('other', NULL, NULL, '1 min')" ],
	[ app => "CALL leader_election.wait_for_change('other', 1, 'a', '10 ms')" ],
	# Elections (a dropped one moves the first term of those that come after it)
	[ operator => "SELECT leader_election.create_election('mine', takeover_delay => '0', lease_duration => '10 min')" ],
	[ operator => "SELECT leader_election.create_election('mine')" ],
	[ operator => "SELECT leader_election.create_election('bad', 'fastest')" ],
	[ operator => "SELECT leader_election.create_election('bad', lease_duration => '50 ms')" ],
	[ operator => "SELECT leader_election.create_election('bad', lease_duration => '2 days')" ],
	[ operator => "SELECT leader_election.create_election('bad', quorum => 0)" ],
	[ operator => "SELECT leader_election.create_election('bad', takeover_delay => '-1 s')" ],
	[ operator => "SELECT leader_election.create_election('bad', candidate_role => 'noone')" ],
	[ operator => "SELECT leader_election.create_election('bad', channel => repeat('x', 64))" ],
	[ operator => "SELECT leader_election.create_election(NULL)" ],
	[ app => "SELECT leader_election.alter_election('mine', quorum => 2)" ],
	[ app => "SELECT leader_election.drop_election('mine')" ],
	[ app => "SELECT leader_election.request_yield('mine')" ],
	[ operator => "SELECT leader_election.alter_election('nobody', quorum => 2)" ],
	[ operator => "SELECT leader_election.alter_election('mine', owner => 'stranger')" ],
	[ operator => "SELECT leader_election.alter_election('mine', candidate_role => 'operator')" ],
	[ app => "SELECT * FROM leader_election.acquire('mine', 'a')" ],
	[ operator => "SELECT leader_election.alter_election('mine', candidate_role => '', quorum => 2)" ],
	[ app => "SELECT term FROM leader_election.acquire('mine', 'a')" ],
	[ app => "SELECT state, waiting_for FROM leader_election.status WHERE election = 'mine'" ],
	[ app => "SELECT term FROM leader_election.acquire('mine', 'b')" ],
	[ operator => "SELECT leader_election.drop_election('mine')" ],
	[ operator => "SELECT leader_election.request_yield('mine', 'nobody')" ],
	[ operator => "SELECT leader_election.request_yield('mine', 'b')" ],
	[ operator => "SELECT leader_election.request_yield('mine', 'a') > '1 min'" ],
	[ app => "SELECT term, yielding FROM leader_election.renew('mine', 1)" ],
	[ app => "SELECT state, leader FROM leader_election.status WHERE election = 'mine'" ],
	[ app => "SELECT leader_election.release('mine', 1)" ],
	[ app => "SELECT term FROM leader_election.acquire('mine', 'b')" ],
	[ app => "SELECT term FROM leader_election.acquire('mine', 'a')" ],
	[ app => "SELECT term, leader, reason FROM leader_election.history WHERE election = 'mine' ORDER BY term" ],
	[ app => "SELECT leader_election.release('mine', 2)" ],
	[ operator => "SELECT leader_election.request_yield('mine')" ],
	[ operator => "SELECT leader_election.set_run_done('mine', '2026'), (SELECT run_done FROM leader_election.status WHERE election = 'mine')" ],
	[ operator => "SELECT leader_election.drop_election('mine')" ],
	[ operator => "SELECT leader_election.drop_election('mine')" ],
	[ operator => "SELECT leader_election.create_election('mine')" ],
	[ app => "SELECT state, since IS NULL FROM leader_election.status WHERE election = 'mine'" ],
	[ app => "SELECT term FROM leader_election.acquire('mine', 'a')" ],
	# A name that another role has by now: the leader was not asked to yield to that, unless
	# it is asked again.
	(map {
		my ($election, @again) = @$_;

		([ operator => "SELECT leader_election.create_election('$election')" ],
			[ app => "SELECT count(*) FROM leader_election.acquire('$election', 'a')" ],
			[ app => "SELECT count(*) FROM leader_election.acquire('$election', 'b')" ],
			[ operator => "SELECT leader_election.request_yield('$election', 'b') > '0'" ],
			[ app => "SELECT leader_election.leave('$election', 'b')" ],
			[ operator => "SELECT count(*) FROM leader_election.acquire('$election', 'b')" ],
			@again,
			[ app => "SELECT leader_election.release('$election', (SELECT term FROM leader_election.status WHERE election = '$election'))" ],
			[ app => "SELECT count(*) FROM leader_election.acquire('$election', 'c')" ],
			[ operator => "SELECT count(*) FROM leader_election.acquire('$election', 'b')" ])
	} [ 'namesakes' ], [ 'again', [ operator => "SELECT leader_election.request_yield('again', 'b') > '0'" ] ]),
	[ operator => "SELECT leader_election.alter_election('mine', strategy => 'bully')" => 'not here' ],
	[ operator => "SELECT leader_election.pause_election('mine')" => 'not here' ],
	[ operator => "SELECT leader_election.create_group('g', 2)" => 'not here' ],
	# Fences
	[ app => "BEGIN; SELECT leader_election.assert_leader('mine', 1); COMMIT" ],
	[ app => "SELECT leader_election.assert_leader('mine', NULL)" ],
	[ app => "INSERT INTO public.jobs VALUES (1)" ],
	[ app => "INSERT INTO public.wrong VALUES (1)" ],
	# Blocks
	[ app => "BEGIN; INSERT INTO public.jobs SELECT 1 WHERE false; SELECT * FROM leader_election.acquire('mine', 'a'); ROLLBACK" ],
	[ app => "BEGIN; SELECT pg_current_xact_id() IS NULL; SELECT * FROM leader_election.acquire('mine', 'a'); ROLLBACK" ],
	[ app => "BEGIN; SELECT * FROM leader_election.acquire('mine', 'b'); ROLLBACK" => 'first call' ],
	[ app => "BEGIN READ ONLY; SELECT leader_election.drop_election('mine'); ROLLBACK" ],
	[ app => "BEGIN READ ONLY; SELECT leader_election.is_leader('mine', 4); ROLLBACK" ],
);

# What ends otherwise in the portable edition, how, and why
my %OTHERWISE = (
	'columns' => [ qr/^1\|\d+\|[^|]*\|f /, 'the times differ' ],
	'auto_renew' => [ qr/^0A000 .*auto_renew is not in the portable edition.*HINT:  Pass auto_renew => false/s, 'there is no worker that renews' ],
	'procedure' => [ qr/^2D000 .*invalid transaction termination/, 'nothing but its COMMIT tells a procedure that it cannot' ],
	'not here' => [ qr/^0A000 .*is not in the portable edition/, 'these are left out' ],
	'first call' => [ qr/^(?!25001)/, 'the first call in a block cannot be told from one outside' ],
);

# Runs the script: "SQLSTATE output errors" of each call
sub script
{
	my ($dbname) = @_;
	my %who = map {
		my $s = session($node, name => $_, dbname => $dbname, user => $_,
			options => '-c search_path=pg_catalog');
		$s->query('\set SHOW_CONTEXT never');
		($_ => $s)
	} qw(app operator);
	my @results;

	foreach my $call (@CALLS)
	{
		my ($who, $sql) = @$call;
		my $out = $who{$who}->query($sql);
		my $errors = $who{$who}->errors =~ s/process ID \d+[^"\n]*("[^"\n]*")?\.?/process ID N/gr;

		# Who owns what was created on first use: the extension's owner, or the schema's
		$errors =~ s/owned by role "($SUPERUSER|installer)"/owned by the owner/;

		push @results, $who{$who}->sqlstate . " $out $errors";
	}
	$_->finish foreach values %who;
	return @results;
}

$owner->query("SELECT leader_election.configure(lease_duration => '10 min')");
my @extension = script('postgres');
my @portable = script('portable');
foreach my $i (0 .. $#CALLS)
{
	my ($who, $sql, $difference) = @{ $CALLS[$i] };

	if (defined $difference)
	{
		like($portable[$i] =~ s/^00000 //r, $OTHERWISE{$difference}[0], "$who: $sql ($OTHERWISE{$difference}[1])");
	}
	else
	{
		is($portable[$i], $extension[$i], "$who: $sql");
	}
}

#
# The locks
#

sub portable
{
	my ($name, $options) = @_;

	return session($node, name => $name, dbname => 'portable', user => 'app',
		options => "-c search_path=pg_catalog $options");
}

my $one = portable('one', '');
my $two = portable('two', '-c lock_timeout=200ms');
my $fence = portable('fence', '');
my $locker = session($node, name => 'locker', dbname => 'portable');

# A new election, led by a in this term
my $number = 0;
sub led
{
	my ($settings) = @_;
	my $election = 'lock ' . ++$number;

	$one->query("SELECT leader_election.create_election('$election', takeover_delay => '0'"
		. (defined $settings ? ", $settings" : '') . ')');
	return ($election, $one->acquire($election, 'a'));
}

# A lease that must not run out before is long, and ends by this.
sub end_lease
{
	my ($election) = @_;

	$locker->query("UPDATE leader_election.lease SET expires_at = clock_timestamp() WHERE election = '$election'");
	return;
}

# Leave a rule out, by replacing text in the source of an internal function
sub seed_bug
{
	my ($function, $from, $to) = @_;
	my $sql = $locker->query(
		"SELECT pg_get_functiondef('leader_election_internal.$function'::regproc)");
	my $wrong = $sql;

	die "no $from in $function" unless $wrong =~ s/\Q$from\E/$to/;
	$locker->query($wrong);
	die $locker->errors if $locker->sqlstate ne '00000';
	return $sql;
}

# READ COMMITTED: a change of holder waits for a fence, a renewal does not.
my ($election, $term) = led();
$fence->query('BEGIN');
is($fence->sqlstate_of("SELECT leader_election.assert_leader('$election', $term)"), '00000', 'a fence');
is($one->query("SELECT term FROM leader_election.renew('$election', $term)"), $term, 'lets a renewal pass by');
is($two->sqlstate_of("SELECT leader_election.release('$election', $term)"), '55P03', 'and holds up a change of holder');
like($two->errors, qr/election "$election" is busy.*HINT:.*Try again/s, 'which says so in the words of the extension');
is($two->query('SHOW lock_timeout'), '200ms', 'and changes no setting');
my $process = $fence->backend_pid;
like(scalar $two->query("SELECT finding FROM leader_election.diagnose('$election')"),
	qr/^process $process has locked the lease/m, 'diagnose() names it');
like(scalar $two->query("SELECT finding FROM leader_election.diagnose('$election')"),
	qr/\(the portable edition, which has no worker\)$/m, 'and says of which edition it is');
$fence->query('COMMIT');
is($two->query("SELECT leader_election.release('$election', $term)"), 't', 'until it commits');
is($fence->sqlstate_of("SELECT leader_election.assert_leader('$election', $term)"), 'LE001', 'a late fence is refused');

# The same without the fence's lock: the rule is what held it up.
($election, $term) = led();
my $locks = seed_bug('fence', ' FOR KEY SHARE SKIP LOCKED', '');
$fence->query("BEGIN; SELECT leader_election.assert_leader('$election', $term)");
is($two->query("SELECT leader_election.release('$election', $term)"), 't',
	'seeded bug: a fence that locks nothing holds nobody up');
$fence->query('ROLLBACK');
$locker->query($locks);

# The procedures run with the caller's search_path, and take nothing from it.
my $hostile = portable('hostile', '');
($election, $term) = led();
$hostile->query('SET search_path = evil, pg_catalog');
is($hostile->query("CALL leader_election.wait_for_change('$election', $term, 'z', '1 min')"), "$term|a",
	'wait_for_change() with a hostile search_path returns at once');
is($hostile->query("CALL leader_election.wait_for_change('$election', $term, 'a', '10 ms')"), "$term|a",
	'and when the time is over');
is($hostile->query("CALL leader_election.campaign('$election', 'c', '10 ms', auto_renew => false)"), '',
	'so does campaign()');
is($one->query("SELECT count(*) FROM leader_election.candidates WHERE election = '$election'"), 1,
	'which has left no candidate behind');
is($hostile->query("SELECT term FROM leader_election.renew('$election', $term)"), $term, 'functions do not mind it');

# Nor from what else the session has: its cursors, prepared statements and channels.
my ($names) = $locker->query("SELECT pg_get_functiondef('leader_election_internal.caller'::regproc)") =~ /\$function\$(.*)\$function\$/s;
foreach my $name (grep { !/^"leader_election_internal\.caller\(\)"$/ } 'leader_election_caller', $names =~ /(\w*leader_election\w*|"[^"]*")/g)
{
	$hostile->query("DECLARE $name CURSOR WITH HOLD FOR SELECT 42");
	$hostile->query("PREPARE $name AS SELECT 43; LISTEN $name");
	is($hostile->query("SELECT term FROM leader_election.renew('$election', $term)"), $term, "nor a cursor, a statement and a channel of its own: $name");
	is(join(' ', $hostile->query("FETCH $name"), $hostile->query("EXECUTE $name"), $hostile->query('SELECT pg_listening_channels()')),
		"42 43 $name", 'which it has still');
	$hostile->query("CLOSE $name; DEALLOCATE $name; UNLISTEN *");
}
$hostile->finish;

# ROLLBACK TO gives the fence back, and the trigger knows.
($election, $term) = led();
$node->safe_psql('portable', "CREATE TRIGGER fenced BEFORE UPDATE ON public.jobs FOR EACH STATEMENT
	EXECUTE FUNCTION leader_election.only_leader('$election')");
$fence->query("BEGIN; SAVEPOINT s; SELECT leader_election.assert_leader('$election', $term)");
is($fence->sqlstate_of('UPDATE public.jobs SET id = 2'), '00000', 'a fenced transaction writes');
$fence->query('ROLLBACK TO s');
is($fence->sqlstate_of('UPDATE public.jobs SET id = 2'), 'LE001', 'not after the fence was rolled back');
$fence->query('ROLLBACK');
$fence->query("BEGIN; SET LOCAL leader_election_portable.fenced = '{\"$election\": 99}'");
is($fence->sqlstate_of('UPDATE public.jobs SET id = 2'), 'LE001', 'nor by a setting alone');
$fence->query('ROLLBACK');
my $watcher = session($node, name => 'watcher', dbname => 'portable', user => 'operator');
$node->safe_psql('portable', 'GRANT UPDATE, SELECT ON public.jobs TO operator;
	REVOKE EXECUTE ON FUNCTION leader_election.assert_leader(text, bigint) FROM operator');
$watcher->query("BEGIN; SET LOCAL leader_election_portable.fenced = '{\"$election\": $term}'");
is($watcher->sqlstate_of('UPDATE public.jobs SET id = 2'), 'LE001', 'nor by that of a role that may not assert');
$watcher->finish;
$node->safe_psql('portable', 'REVOKE UPDATE, SELECT ON public.jobs FROM operator;
	GRANT EXECUTE ON FUNCTION leader_election.assert_leader(text, bigint) TO operator');

# is_leader() believes no row that may be undone: what the running transaction has
# written, also in a block with EXCEPTION. What others have committed since counts.
$node->safe_psql('portable', q(CREATE FUNCTION public.leads_in_block(e text, t bigint, undo boolean, OUT inside boolean, OUT behind boolean)
	LANGUAGE plpgsql AS $$
	BEGIN
		BEGIN
			PERFORM leader_election.renew(e, t);
			inside := leader_election.is_leader(e, t);
			IF undo THEN
				RAISE division_by_zero;
			END IF;
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
		behind := leader_election.is_leader(e, t);
	END $$));
($election, $term) = led();
is($one->query("SELECT * FROM public.leads_in_block('$election', $term, true)"), 'f|t', 'is_leader() in a block that is undone, and behind it');
is($one->query("SELECT * FROM public.leads_in_block('$election', $term, false)"), 'f|f', 'and one that is not undone yet');
is($one->query("SELECT leader_election.is_leader('$election', $term)"), 't', 'until that has committed');
$fence->query('BEGIN; SELECT pg_current_xact_id()');
is($one->query("SELECT term FROM leader_election.renew('$election', $term)"), $term, 'another one renews since a transaction has an ID');
is($fence->query("SELECT leader_election.is_leader('$election', $term)"), 't', 'which makes it doubt nothing');
$fence->query('ROLLBACK');

# A call that finds another leader, and has nothing to say, is answered by one look and
# writes nothing. What it has to say is written, and what it may not do is refused.
($election, $term) = led();
my $row = "SELECT c.seen_at, c.rank, c.progress, c.metadata FROM leader_election.candidate c WHERE c.election = '$election' AND c.candidate = 'b'";
my $in_vain = "count(*) FROM leader_election.acquire('$election', 'b'";
is($two->query("SELECT $in_vain, 1, 2, '{\"a\": 1}')"), 0, 'a call in vain');
my $told = $locker->query($row);
is($two->query("SELECT $in_vain, 1, 2, '{\"a\": 1}')") . $two->query("SELECT $in_vain)"), '00', 'and two more');
is($locker->query($row), $told, 'have nothing to write');
foreach ([ 'rank', '3' ], [ 'progress', '4' ], [ 'metadata', q('{"a": 2}') ])
{
	my ($name, $value) = @$_;

	is($two->query("SELECT $in_vain, $name => $value)"), 0, "one with another $name");
	is($locker->query("SELECT r.$name = $value FROM ($row) r"), 't', 'writes it');
}
$locker->query("UPDATE leader_election.candidate SET seen_at = seen_at - interval '4 min' WHERE election = '$election'");
is($two->query("SELECT $in_vain)"), 0, 'one when a third of a lease has passed');
is($locker->query("SELECT r.seen_at > clock_timestamp() - interval '3 min' FROM ($row) r"), 't', 'writes its heartbeat');
$two->query("BEGIN; SELECT $in_vain)");
is($two->sqlstate_of("SELECT $in_vain)"), '25001', 'a second one in a block is refused');
$two->query('ROLLBACK');
is($two->sqlstate_of("BEGIN READ ONLY; SELECT $in_vain)"), '25006', 'as is one in a read-only transaction');
$two->query('ROLLBACK');
$locker->query("UPDATE leader_election.election SET candidate_role = 'operator' WHERE election = '$election'");
is($two->sqlstate_of("SELECT $in_vain)"), '42501', 'and one that may not stand any more');
$locker->query("UPDATE leader_election.election SET candidate_role = NULL WHERE election = '$election'");
is($two->query("SELECT $in_vain)"), 0, 'until it may again');
my $stranger = session($node, name => 'namesake', dbname => 'portable', user => 'operator');
is($stranger->sqlstate_of("SELECT $in_vain)"), 'LE004', 'another role by its name is refused');
$stranger->finish;
end_lease($election);
is($two->acquire($election, 'b'), $term + 1, 'it is elected when the lease is over');

# (The look leaves out a heartbeat that is due.)
($election, $term) = led();
$two->query("SELECT $in_vain)" =~ s/lock \d+/$election/r);
$locker->query("UPDATE leader_election.candidate SET seen_at = seen_at - interval '4 min' WHERE election = '$election'");
{
	my $look = $locker->query("SELECT pg_get_functiondef('leader_election.acquire'::regproc)");

	$locker->query($look =~ s/AND c\.seen_at BETWEEN .* AND clock_timestamp\(\)\n//r);
	$two->query("SELECT $in_vain)" =~ s/lock \d+/$election/r);
	is($locker->query("SELECT seen_at > clock_timestamp() - interval '3 min' FROM leader_election.candidate WHERE election = '$election' AND candidate = 'b'"),
		'f', 'seeded bug: a look that asks for no heartbeat leaves it out');
	$locker->query($look);
}

# REPEATABLE READ: the snapshot is that of the old leader, a renewal comes, and
# then the holder changes.
sub late_fence
{
	my ($change) = @_;
	my ($election, $term) = led();
	my $new;

	$fence->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM public.jobs');
	$one->query("SELECT term FROM leader_election.renew('$election', $term)");
	$change->($election, $term);
	my $state = $fence->sqlstate_of("SELECT leader_election.assert_leader('$election', $term)");
	$fence->query('ROLLBACK');
	return $state;
}

sub hand_over
{
	my ($election, $term) = @_;

	$one->query("SELECT leader_election.release('$election', $term)");
	die 'nobody took over' if $two->acquire($election, 'b') <= $term;
	return;
}

is(late_fence(sub { }), '00000', 'REPEATABLE READ: a renewal does not fail a fence');
is(late_fence(\&hand_over), '40001', 'a change of holder does, with a renewal in between');
is(late_fence(sub {
	$one->query("BEGIN; SELECT leader_election.release('$_[0]', $_[1]); SAVEPOINT s; SELECT 1; RELEASE s; COMMIT");
}), '40001', 'also if a savepoint comes after it');
is(late_fence(sub { $one->query("BEGIN; SELECT leader_election.release('$_[0]', $_[1])") }), '55P03', 'and one that has not committed is not waited for, but for a second');
$one->query('ROLLBACK');

# The row is made anew: without that, all would hang on the lock and the UPDATE.
my $replaced = seed_bug('replace_row', 'WITH old AS', 'RETURN; WITH old AS');
my $sound = seed_bug('lock_lease', 'FOR UPDATE SKIP LOCKED', 'FOR NO KEY UPDATE SKIP LOCKED');
is(late_fence(\&hand_over), '00000', 'seeded bug: the holder is changed by an UPDATE under a weak lock, and the fence passes');
$locker->query($sound);
seed_bug('lock_lease',
	'SELECT x AS lease INTO seen FROM leader_election.lease x WHERE x.election = el FOR UPDATE SKIP LOCKED;',
	'BEGIN SELECT x AS lease INTO seen FROM leader_election.lease x WHERE x.election = el FOR UPDATE SKIP LOCKED;
		EXCEPTION WHEN division_by_zero THEN NULL; END;');
is(late_fence(\&hand_over), '00000', 'seeded bug: a block with EXCEPTION between lock and UPDATE, and the fence passes');
$locker->query($replaced);
is(late_fence(\&hand_over), '40001', 'and not if the row is made anew');
$locker->query($sound);
is(late_fence(\&hand_over), '40001', 'nor after that');
is(late_fence(sub {
	my ($election, $term) = @_;

	$one->query("DO \$\$ BEGIN
		BEGIN
			PERFORM leader_election.release('$election', $term);
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
		END \$\$");
	die $one->errors if $one->sqlstate ne '00000';
}), '40001', 'nor if there are blocks around');

# A weaker lock of the same transaction, and then a change in a subtransaction: FOR
# UPDATE and UPDATE would be members of a multixact, of which the UPDATE marks nothing.
sub late_after
{
	my ($sql) = @_;
	my ($state, $leads);
	my $late = late_fence(sub {
		my ($election, $term) = @_;

		$two->acquire($election, $_) foreach qw(x y z b);
		$sql =~ s/ELECTION/'$election'/g;
		$sql =~ s/TERM/$term/g;
		$one->query($sql);
		$state = $one->sqlstate;
		$one->query('ROLLBACK');
		$leads = $locker->query("SELECT leader IS NOT DISTINCT FROM 'a' AND term = $term FROM leader_election.lease WHERE election = '$election'");
	});
	return "$state $leads $late";
}

# Each statement of a list that begins with + has a block with EXCEPTION of its own.
sub late_after_block
{
	return late_after('DO $$ BEGIN '
		. join(' ', map { /^\+(.*)/ ? "BEGIN PERFORM leader_election.$1; EXCEPTION WHEN division_by_zero THEN NULL; END;" : "PERFORM leader_election.$_;" } @_)
		. ' END $$');
}

my %WEAKER = (
	'leave()' => [ q(leave(ELECTION, 'x')), '+release(ELECTION, TERM)' ],
	'leave(), and once more' => [ q(leave(ELECTION, 'x')), '+release(ELECTION, TERM)', q(leave(ELECTION, 'y')), q(+acquire(ELECTION, 'b')) ],
	'renew()' => [ 'renew(ELECTION, TERM)', '+release(ELECTION, TERM)' ],
	'assert_leader()' => [ q(acquire(ELECTION, 'z')), 'assert_leader(ELECTION, TERM)', '+release(ELECTION, TERM)' ],
	'alter_election()' => [ 'alter_election(ELECTION, quorum => 1)', '+release(ELECTION, TERM)' ],
	'set_run_done()' => [ q(set_run_done(ELECTION, 'r')), '+release(ELECTION, TERM)' ],
	'request_yield()' => [ q(request_yield(ELECTION, 'b')), '+release(ELECTION, TERM)', q(leave(ELECTION, 'y')), q(+acquire(ELECTION, 'b')) ]);
foreach my $lock (sort keys %WEAKER)
{
	is(late_after_block(@{ $WEAKER{$lock} }), '00000 f 40001', "after $lock, a change in the same transaction fails a late fence");
}
is(late_after(q(BEGIN\; SELECT leader_election.leave(ELECTION, 'x')\; SAVEPOINT s\; SELECT leader_election.release(ELECTION, TERM)\;
	RELEASE s\; COMMIT)), '00000 f 40001', 'also if all is one string');
is(late_after_block('+release(ELECTION, TERM)', q(+acquire(ELECTION, 'b')), q(renew(ELECTION, TERM + 1))), '00000 f 40001',
	'two changes are marked, and a renewal after them changes nothing');
is(late_after(q(DO $$ BEGIN
	PERFORM leader_election.renew(ELECTION, TERM);
	PERFORM set_config(name, '', true) FROM unnest(ARRAY['locked', 'kept', 'fenced', 'granted']) n, concat('leader_election_portable.', n) name;
	BEGIN
		PERFORM leader_election.release(ELECTION, TERM);
	EXCEPTION WHEN division_by_zero THEN NULL;
	END;
	END $$)), '00000 f 40001', 'and nothing hangs on what a caller may set');
is($one->query(q(SELECT current_setting('leader_election_portable.fenced', true))), '', 'what is noted of a transaction ends with it');

# The clock is read when the row is locked. A renewal that waits until the
# deadline has passed comes too late.
# (The lease is shorter than what a call waits for. On a slow machine it may be
# over before the renewal waits, or the call may give up: then once more.)
sub renew_late
{
	for (1 .. 100)
	{
		my ($election, $term) = led("lease_duration => '500 ms'");
		my $is_led = "SELECT expires_at > clock_timestamp() FROM leader_election.lease WHERE election = '$election'";

		$locker->query("BEGIN; SELECT 1 FROM leader_election.lease WHERE election = '$election' FOR NO KEY UPDATE");
		$one->query_async("SELECT 'renewed' FROM leader_election.renew('$election', $term)");
		wait_until(sub { $one->finished
			|| $super->query("SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE application_name = 'one'") eq 't' },
			'the renewal to wait');
		my $in_time = $locker->query($is_led);
		$locker->query("SELECT pg_sleep(greatest(0, extract(epoch FROM expires_at - clock_timestamp()) + 0.001))
			FROM leader_election.lease WHERE election = '$election'");
		$locker->query('COMMIT');
		my $result = $one->result;
		return $result if $in_time eq 't' && $one->sqlstate eq '00000';
		die $one->errors unless $one->sqlstate =~ /^(00000|55P03)$/;
	}
	die 'the machine is too slow';
}

is(renew_late(), '', 'a renewal that waits past the deadline is refused');
my $renew = $locker->query("SELECT pg_get_functiondef('leader_election_internal.renew'::regproc)");
my $early = $renew =~ s/(\tl := leader_election_internal\.lock_lease\(\$1, false\);\n)(\tt := clock_timestamp\(\);\n)/$2$1/r;
isnt($early, $renew, 'the rule can be left out');
$locker->query($early);
is(renew_late(), 'renewed', 'seeded bug: the clock is read before the lock, and a lease is renewed that was over');
$locker->query($renew);

# A server that is cut off does not know a term of another epoch, and has no proof.
($election, $term) = led("lease_duration => '1 hour'");
my $promoted = ($term >> 22) + 1 << 22;
is($one->query("SELECT term FROM leader_election.renew('$election', $promoted)"), '', 'a term that another server granted is over here');
is($one->query("SELECT leader_election.release('$election', $promoted)"), 'f', 'it cannot be given back');
is($one->query("SELECT term FROM leader_election.renew('$election', $term)"), $term, 'and the term of this server goes on');

# A takeover waits for a fence that works, and counts from its own lock.
($election, $term) = led("lease_duration => '1 hour'");
$locker->query('SELECT pg_advisory_lock(142)');
$fence->query("BEGIN; SELECT leader_election.assert_leader('$election', $term)");
$fence->query_async('SELECT pg_advisory_xact_lock(142)');
end_lease($election);
is($two->acquire($election, 'b'), '', 'nobody is elected while a fence is open, though the lease is over');
is($two->sqlstate, '00000', 'the candidate stands');
$locker->query('SELECT pg_advisory_unlock(142)');
$fence->result;
$two->query('RESET lock_timeout');
my $at = $fence->query('SELECT clock_timestamp()');
$fence->query('COMMIT');
cmp_ok($two->acquire($election, 'b'), '>', $term, 'when it has committed');
is($owner->query("SELECT acquired_at >= '$at'::timestamptz AND expires_at = acquired_at + interval '1 hour'
	FROM leader_election.lease WHERE election = '$election'"), 't', 'a lease counts from then');
$two->query("SET lock_timeout = '200ms'");

# One that sits idle for the length of a lease is ended. (This lease has not run out before
# it is fenced, however slow the machine is.)
($election, $term) = led("lease_duration => '$LEASE ms'");
$locker->query("UPDATE leader_election.lease SET expires_at = clock_timestamp() + interval '1 hour' WHERE election = '$election'");
my $idle = portable('idle', '');
$idle->query("BEGIN; SELECT leader_election.assert_leader('$election', $term)");
is($idle->sqlstate, '00000', 'a fence');
end_lease($election);
wait_until(sub { $two->acquire($election, 'b') }, 'an election in spite of a fence that sits idle');
is($idle->sqlstate_of('COMMIT'), '08006', 'a fenced transaction that sits idle for a lease is ended');

# Where settings of the server end the session of a silent client sooner than the
# lease, the client is told to count on no more.
foreach my $tight (
	'-c tcp_keepalives_idle=1 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3',
	'-c tcp_user_timeout=7000', '-c idle_session_timeout=7s')
{
	my $client = session($node, name => 'tight', dbname => 'portable', user => 'app', host => '127.0.0.1', options => $tight);

	$owner->query("SELECT leader_election.create_election('$tight', lease_duration => '40 s')");
	$client->query("SELECT leader_election.join('$tight', 'c', auto_renew => false)");
	is($client->query("SELECT remaining_ms, expires_at > clock_timestamp() + '30 s' FROM leader_election.renew('$tight')"),
		'7000|t', "$tight: the client counts on no more");
	$client->finish;
}

# A clock that was set back: nobody is given more than a lease.
($election, $term) = led("lease_duration => '10 s'");
$locker->query("UPDATE leader_election.lease SET expires_at = clock_timestamp() + interval '1 hour' WHERE election = '$election'");
cmp_ok($one->query("SELECT remaining_ms FROM leader_election.renew('$election', $term)"), '<=', 10000,
	'a deadline that is further ahead than the lease is not granted again');
$locker->query("UPDATE leader_election.lease SET expires_at = clock_timestamp() + interval '1 hour' WHERE election = '$election'");
is($two->acquire($election, 'b'), '', 'nobody else is elected by that');
is($owner->query("SELECT expires_at < clock_timestamp() + interval '11 s' FROM leader_election.lease WHERE election = '$election'"),
	't', 'but the deadline is shortened');

#
# What listeners are told
#

my $listener = portable('listener', '');
$listener->query('LISTEN leadership_changed');
($election, $term) = led();
$one->query("SELECT term FROM leader_election.renew('$election', $term, metadata => '1')");
$one->query("SELECT leader_election.request_yield('$election')");
$one->query("SELECT leader_election.release('$election', $term)");
is(join("\n", map { s/"at":"[^"]*"/"at":"then"/r } $listener->notifications), join("\n",
	qq({"election":"$election","event":"elected","term":1,"leader":"a","previous":null,"reason":null,"at":"then"}),
	qq({"election":"$election","event":"metadata_changed","term":1,"leader":"a","previous":null,"reason":null,"at":"then"}),
	qq({"election":"$election","event":"yield_requested","term":1,"leader":"a","previous":null,"reason":null,"at":"then"}),
	qq({"election":"$election","event":"vacated","term":1,"leader":null,"previous":"a","reason":"yielded","at":"then"})),
	'listeners are told, in the words of the extension');
is($one->sqlstate_of('SELECT leader_election.configure(announce => false)'), '42501', 'only the owner may change settings');
$owner->query('SELECT leader_election.configure(announce => false)');
led();
is(join("\n", $listener->notifications), '', 'announcements can be turned off');
$owner->query('SELECT leader_election.configure(announce => true)');
my $other = session($node, name => 'other', dbname => 'portable', user => 'installer');
$other->query('BEGIN');
$other->query('SELECT FROM leader_election.server FOR UPDATE');
is($owner->sqlstate_of('SELECT leader_election.configure(announce => true)'), '55P03', 'that waits for a second at most');
$other->query('ROLLBACK');
$other->finish;

# tick() tells of what is over.
($election, $term) = led("lease_duration => '$LEASE ms'");
wait_for($node, "SELECT state = 'vacant' FROM leader_election.status WHERE election = '$election'", 't', undef, 'portable');
$listener->notifications;
cmp_ok($owner->query('SELECT leader_election.tick()'), '>=', 1, 'tick() ends a term that is over');
like(join("\n", $listener->notifications), qr/"election":"$election","event":"vacated","term":1,"leader":null,"previous":"a","reason":"expired"/,
	'and tells listeners');
$listener->finish;

#
# Sessions
#

my $keys = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
$one->query("SELECT leader_election.create_election('keys', takeover_delay => '0')");
is($one->sqlstate_of("SELECT leader_election.join('keys', 'one')"), '0A000', 'who stands anew has to say that it renews');
is($one->query("SELECT leader_election.join('keys', 'one', auto_renew => false)"), '1', 'a session leads');
$two->query("DO \$\$ BEGIN FOR i IN 1 .. 300 LOOP
	BEGIN PERFORM leader_election.join('keys', 'one', auto_renew => false); EXCEPTION WHEN SQLSTATE 'LE004' THEN NULL; END;
	END LOOP; END \$\$");
is($two->sqlstate, '00000', 'another one fails 300 times');
$two->sqlstate_of("SELECT leader_election.join('keys', 'one', auto_renew => false)") foreach 1 .. 5;
is($two->sqlstate, 'LE004', 'and in calls of their own');
cmp_ok($two->query($keys), '<=', 1, 'which leaves no more than one key behind');
is($one->query($keys), 1, 'as a session that stands has');

is($two->query("SELECT leader_election.join('keys', 'two', auto_renew => false)"), '', 'it stands');
is($one->acquire('keys', 'detached'), '', "a leader's session does not take itself for dead, in a call of another kind");
is($one->query("SELECT leader_election.leader('keys')"), 'one', 'it leads on');
$one->query("SELECT leader_election.leave('keys', 'detached')");
$one->query('RESET ALL');
is($one->query("SELECT leader_election.is_leader('keys')"), 't', 'RESET ALL ends nothing');
$one->query('BEGIN');
is($one->query("SELECT leader_election.is_leader('keys')"), 't', 'nor does a rollback');
$one->query('ROLLBACK');
is($one->query("SELECT leader_election.is_leader('keys')"), 't', 'of it');
is($one->query($keys), 1, 'the key is held all the time');
$one->query('DISCARD ALL');
is($one->query("SELECT leader_election.is_leader('keys')"), 'f', 'DISCARD ALL ends the leadership');
is($two->query("SELECT leader_election.join('keys', 'two', auto_renew => false)"), '2', 'another session leads at once');
is($one->sqlstate_of("SELECT * FROM leader_election.renew('keys')"), 'LE006', 'who was reset is told');
is($one->sqlstate_of("SELECT * FROM leader_election.renew('keys')"), '00000', 'once');
is($one->query("SELECT leader_election.join('keys', 'one', auto_renew => false)"), '', 'and may stand anew');
$two->query('SELECT pg_advisory_unlock_all()');
is($two->sqlstate_of("SELECT leader_election.join('keys', 'two', auto_renew => false)"), 'LE006',
	'so may one whose locks alone were released');
is($one->query("SELECT leader_election.join('keys', 'one', auto_renew => false)"), '3', 'its place is free');
my $forgets = portable('forgets', '');
$forgets->query("SELECT leader_election.join('forgotten', 'a', auto_renew => false)");
$forgets->query('DISCARD ALL');
is($forgets->query("SELECT leader_election.join('elsewhere', 'a', auto_renew => false)"), '1', 'a first call in another election says nothing');
is($forgets->sqlstate_of("SELECT leader_election.join('forgotten', 'a', auto_renew => false)"), '00000', 'nor do those that follow it');
is($forgets->query("SELECT alive FROM leader_election.candidates WHERE election = 'forgotten'"), 't', 'it stands anew');
$forgets->finish;

# One whose session has died, and that is back at once, lets the others go first.
$one->query("SELECT leader_election.create_election('back', takeover_delay => '0')");
my $back = portable('back', '');
$back->query("SELECT leader_election.join('back', 'back', auto_renew => false)");
$one->query("SELECT leader_election.join('back', 'other', auto_renew => false)");
$back->kill;
wait_gone($node, $back);
$back = portable('back', '');
is($back->query("SELECT leader_election.join('back', 'back', auto_renew => false)"), '', 'a leader that is back after its session has died is not the first');
is($one->query("SELECT leader_election.join('back', 'other', auto_renew => false)"), '2', 'another one that stands is');
$back->finish;

# A call that asks again only tries: a fence does not have it fail.
($election, $term) = led("lease_duration => '$LEASE ms'");
my $holder = session($node, name => 'holder', dbname => 'portable');
$holder->query("BEGIN; SELECT FROM leader_election.lease WHERE election = '$election' FOR KEY SHARE");
wait_for($node, "SELECT state = 'vacant' FROM leader_election.status WHERE election = '$election'", 't', undef, 'portable');
is($two->query("SELECT leader_election.join('$election', 'two', auto_renew => false)"), '', 'behind a fence a session stands');
is($two->sqlstate, '00000', 'without an error');
is($two->query("CALL leader_election.campaign('$election', 'two', '100 ms')"), '', 'and waits');
$holder->query('COMMIT');
is($two->query("SELECT leader_election.join('$election', 'two')"), $term + 1, 'until it is over');
$holder->finish;

# But one that stands and never calls keeps nobody out for longer than a lease.
$one->query("SELECT leader_election.create_election('silent', takeover_delay => '0', lease_duration => '1 hour')");
$term = $one->acquire('silent', 'a');
$two->query("SELECT leader_election.join('silent', 'silent', auto_renew => false)");
$one->query("SELECT leader_election.release('silent', $term)");
is($one->acquire('silent', 'a'), '', 'who gave up lets another one go first');
is($locker->query(q(SELECT l.reserved_until - h.ended_at FROM leader_election.lease l JOIN leader_election.history h USING (election, term)
	WHERE l.election = 'silent')), '01:00:00', 'for a lease');
$locker->query("UPDATE leader_election.lease SET reserved_until = clock_timestamp() WHERE election = 'silent'");
is($one->acquire('silent', 'a'), $term + 1, 'and no longer');
$one->kill;
wait_gone($node, $one);
is($two->query("SELECT leader_election.join('keys', 'two', auto_renew => false)"), '4', 'a session that has died leads no more');
is($two->query("SELECT reason FROM leader_election.history WHERE election = 'keys' AND term = 3"), 'session ended', 'and history says why');
$two->finish;

#
# An extension of pg_tle
#

# pg_tle has the server run what it was given as an extension's script. From 18 on
# the server finds that by itself; before that, the file is only made.
my $made = PostgreSQL::Test::Utils::tempdir();
system_or_bail('make', '-s', '-C', $TOP, 'portable', "PORTABLE=$made");
my $tle = slurp_file("$made/leader_election--1.0.tle.sql");
like($tle, qr/\ASELECT pgtle\.install_extension\('leader_election', '1\.0',\n'[^']*', \$_portable_\$\n.*\n\$_portable_\$\);\n\z/s,
	'make portable makes a call of pg_tle');
unlike($tle, qr/^(\\|BEGIN;|COMMIT;)/m, 'without what only psql knows');
if ($super->query('SHOW server_version_num') >= 180000)
{
	mkdir "$made/extension";
	append_to_file("$made/extension/leader_election.control",
		"default_version = '1.0'\nsuperuser = false\nrelocatable = false\n");
	append_to_file("$made/extension/leader_election--1.0.sql",
		$tle =~ s/\A.*?\$_portable_\$\n//sr =~ s/\$_portable_\$\);\n\z//r);
	# The server wants a schema to be selected, for what has none.
	database('tle', 'GRANT USAGE, CREATE ON SCHEMA public TO installer');
	my $creator = session($node, name => 'creator', dbname => 'tle');
	$creator->query("SET extension_control_path = '$made'; SET ROLE installer");
	is($creator->sqlstate_of('CREATE EXTENSION leader_election'), '00000', 'its script makes an extension');
	is($creator->query('SELECT edition FROM leader_election.protocol'), 'portable', 'which is this edition');
	is($creator->acquire('scheduler', 'a'), '1', 'and works');
	is($creator->query(q(SELECT count(*) FROM pg_extension, unnest(extconfig) WHERE extname = 'leader_election')),
		5, 'its rows are dumped');

	# The same file again, as an update
	copy("$made/extension/leader_election--1.0.sql", "$made/extension/leader_election--1.0--1.1.sql");
	$creator->query('GRANT USAGE ON SCHEMA leader_election TO app; GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app');
	is($creator->sqlstate_of("ALTER EXTENSION leader_election UPDATE TO '1.1'"), '00000', 'it is updated');
	my $user = session($node, name => 'user', dbname => 'tle', user => 'app');
	$user->query("SELECT leader_election.create_election('update', lease_duration => '1 hour')");
	is($user->query("SELECT term FROM leader_election.acquire('update', 'a')"), '1', 'and who may do what is as it was');

	# To plain objects, as the page says
	my ($take_out) = slurp_file("$TOP/docs/portable.md") =~ /^(DO \$\$ DECLARE member.*?END \$\$;)$/ms;
	is($creator->sqlstate_of($take_out), '00000', 'all is taken out of it, by its owner');
	is($creator->query('SELECT count(*) FROM pg_extension WHERE extname = $$leader_election$$'), 0, 'which drops it');
	is($user->query("SELECT term FROM leader_election.renew('update', 1)"), '1', 'and its leader leads on');
	$user->finish;
	$creator->finish;
}

#
# A dump
#

$one = portable('one', '');
($election, $term) = led("lease_duration => '1 hour'");
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump.sql';
system_or_bail('pg_dump', '-f', $dump, '-d', $node->connstr('portable'));
database('restored');
system_or_bail('psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', $dump, '-d', $node->connstr('restored'));
my $restored = session($node, name => 'restored', dbname => 'restored', user => 'app');
is($restored->query("SELECT leader_election.is_leader('$election', $term)"), 'f', 'in a restored dump no term leads');
is($restored->acquire($election, 'b'), '', 'nobody is elected there for a lease');
cmp_ok($restored->query("SELECT term FROM leader_election.renew('$election', $term)"), '>', ($term >> 22) + 1 << 22,
	'its leader may go on, in a term of another epoch');
$restored->finish;

#
# Another timeline
#

($election, $term) = led("lease_duration => '1 hour'");
my ($vacant, $last) = led("lease_duration => '100 ms'");
$one->query("SELECT leader_election.release('$vacant', $last)");
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby, 'replay');
my $there = session($standby, name => 'there', dbname => 'portable', user => 'app');
is($there->sqlstate_of("SELECT * FROM leader_election.acquire('$election', 'b')"), '25006', 'a standby refuses');
like($there->errors, qr/cannot be executed during recovery.*Connect to the primary/s, 'in the words of the extension');
is($there->query("SELECT leader, candidates FROM leader_election.status WHERE election = '$election'"), 'a|', 'but shows who leads');
is($there->query("SELECT leader_election.is_leader('$election', $term)"), 'f', 'and never says that a term leads');
$standby->promote;
is($there->query("SELECT leader_election.is_leader('$election', $term)"), 'f', 'when promoted, it trusts no old term');
is($there->sqlstate_of("SELECT leader_election.assert_leader('$election', $term)"), 'LE001', 'nor do fences');
is($there->acquire($election, 'b'), '', 'it elects nobody new');
is($there->query("SELECT waiting_for FROM leader_election.status WHERE election = '$election'"), 'grace after failover', 'for a lease');
my $continued = $there->query("SELECT term FROM leader_election.renew('$election', $term)");
cmp_ok($continued, '>', ($term >> 22) + 1 << 22, 'its leader goes on, in a term of another epoch');
is($there->query("SELECT term FROM leader_election.renew('$election', $term)"), $continued, 'and is told that again, if the answer was lost');
wait_for($standby, "SELECT first_seen_at + interval '100 ms' < clock_timestamp() FROM leader_election.server", 't', undef, 'portable');
my $next;
wait_until(sub { $next = $there->acquire($vacant, 'c') }, 'an election');
cmp_ok($next, '>', $last, 'terms only grow');
is($one->query("SELECT term FROM leader_election.renew('$election', $term)"), $term, 'the old primary goes on below');

done_testing();
