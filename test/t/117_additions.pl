# What others can attach to the extension's tables, piece by piece: it never runs with
# more rights than the tables' owner has, it stops no election unless it has to,
# diagnose() names it, and the remedy that diagnose() names removes it.
#
# The lists of pieces are those of the catalogs: a piece that PostgreSQL adds, and that is
# not in a list here, fails the test.  And: the extension's objects with an owner that is
# no superuser.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

my $node = new_server(start => 0, config => "leader_election.lease_duration = '5min'");
$node->start;
$node->safe_psql('postgres', q{
	CREATE ROLE dba LOGIN SUPERUSER;
	CREATE ROLE app LOGIN;
	CREATE ROLE reader LOGIN;
	GRANT CREATE ON DATABASE postgres TO app;
	GRANT CREATE ON SCHEMA public TO app;
	SET ROLE dba;
	CREATE EXTENSION leader_election});
my $dba = session($node, name => 'dba', user => 'dba');
my $app = session($node, name => 'app', user => 'app');
$dba->query('GRANT USAGE ON SCHEMA leader_election TO reader');
my $reader = session($node, name => 'reader', user => 'reader');

#
# All pieces that there are
#

# What refers to pg_class: by which pieces below it is covered, or why it need not be.
my $OTHER = 'no part of a relation: tells the catalog in which an object is';
my %refers = (
	'pg_attrdef.adrelid' => 'default, added columns',
	'pg_attribute.attrelid' => 'columns',
	'pg_class.relrewrite' => 'while ALTER TABLE rewrites it: the table is locked then',
	'pg_class.reltoastrelid' => 'its TOAST table, which only the server makes',
	'pg_constraint.conindid' => 'constraints',
	'pg_constraint.confrelid' => 'foreign keys to it',
	'pg_constraint.conrelid' => 'constraints',
	'pg_depend.classid' => $OTHER,
	'pg_depend.refclassid' => $OTHER,
	'pg_description.classoid' => $OTHER,
	'pg_extension.extconfig' => 'what a dump contains of it',
	'pg_foreign_table.ftrelid' => 'foreign tables: it is none',
	'pg_index.indexrelid' => 'indexes',
	'pg_index.indrelid' => 'indexes',
	'pg_inherits.inhparent' => 'child',
	'pg_inherits.inhrelid' => 'parent, partition',
	'pg_init_privs.classoid' => $OTHER,
	'pg_partitioned_table.partdefid' => 'partitioned tables: it is none',
	'pg_partitioned_table.partrelid' => 'partitioned tables: it is none',
	'pg_policy.polrelid' => 'policy',
	'pg_propgraph_element.pgepgid' => 'property graphs: it is none',
	'pg_propgraph_element.pgerelid' => 'a property graph that reads it',
	'pg_propgraph_label.pglpgid' => 'property graphs: it is none',
	'pg_propgraph_property.pgppgid' => 'property graphs: it is none',
	'pg_publication_rel.prrelid' => 'publication',
	'pg_rewrite.ev_class' => 'rule',
	'pg_seclabel.classoid' => $OTHER,
	'pg_sequence.seqrelid' => 'sequence of a column',
	'pg_shdepend.classid' => $OTHER,
	'pg_shdepend.refclassid' => $OTHER,
	'pg_shdescription.classoid' => $OTHER,
	'pg_shseclabel.classoid' => $OTHER,
	'pg_statistic.starelid' => 'what ANALYZE has found',
	'pg_statistic_ext.stxrelid' => 'extended statistics',
	'pg_subscription_rel.srrelid' => 'written by an apply worker, as by any other statement',
	'pg_trigger.tgconstrindid' => 'constraints',
	'pg_trigger.tgconstrrelid' => 'foreign keys to it',
	'pg_trigger.tgrelid' => 'triggers',
	'pg_type.typrelid' => 'its row type',
	);

# What pg_depend can tell of.
my $NONE = 'cannot depend on a relation';
my $READS = 'reads it when it is called';
my %kinds = (
	pg_am => $NONE, pg_amop => $NONE, pg_amproc => $NONE, pg_auth_members => $NONE,
	pg_authid => $NONE, pg_cast => $READS, pg_collation => $NONE, pg_conversion => $NONE,
	pg_database => $NONE, pg_enum => $NONE, pg_extension => $NONE,
	pg_foreign_data_wrapper => $NONE, pg_foreign_server => $NONE, pg_language => $NONE,
	pg_largeobject_metadata => $NONE, pg_operator => $READS, pg_opclass => $READS,
	pg_opfamily => $NONE, pg_parameter_acl => $NONE, pg_subscription => $NONE,
	pg_tablespace => $NONE, pg_transform => $NONE, pg_ts_config => $NONE, pg_ts_dict => $NONE,
	pg_ts_parser => $NONE, pg_ts_template => $NONE, pg_user_mapping => $NONE,
	pg_propgraph_element => 'a property graph that reads it', pg_propgraph_element_label => $NONE,
	pg_propgraph_label => $NONE, pg_propgraph_label_property => 'a property graph that reads it',
	pg_propgraph_property => $NONE,
	pg_attrdef => 'default, added columns',
	pg_class => 'indexes, child, parent, partition, sequence of a column',
	pg_constraint => 'constraints',
	pg_default_acl => 'privileges of what is made in the schema: scripts undo them',
	pg_event_trigger => '118_event_triggers',
	pg_namespace => 'the schema',
	pg_policy => 'policy',
	pg_proc => 'a function in the schema',
	pg_publication => 'publication',
	pg_publication_namespace => 'publication of the schema',
	pg_publication_rel => 'publication',
	pg_rewrite => 'rule',
	pg_statistic_ext => 'extended statistics',
	pg_trigger => 'triggers',
	pg_type => 'a type in the schema; a domain with a constraint',
	);

# What a relation and a column have themselves.
my %columns = (
	pg_class => { map { $_ => 1 }
		qw(oid relname relnamespace reltype reloftype relowner relam relfilenode reltablespace
		relpages reltuples relallvisible relallfrozen reltoastrelid relhasindex relisshared relpersistence
		relkind relnatts relchecks relhasrules relhastriggers relhassubclass relrowsecurity
		relforcerowsecurity relispopulated relreplident relispartition relrewrite relfrozenxid
		relminmxid relacl reloptions relpartbound) },
	pg_attribute => { map { $_ => 1 }
		qw(attrelid attname atttypid attstattarget attlen attnum attndims attcacheoff atttypmod
		attbyval attalign attstorage attcompression attnotnull atthasdef atthasmissing attidentity
		attgenerated attisdropped attislocal attinhcount attcollation attacl attoptions
		attfdwoptions attmissingval) },
	);

foreach ($dba->query(q{SELECT fktable || '.' || array_to_string(fkcols, ',')
		FROM pg_get_catalog_foreign_keys() WHERE pktable = 'pg_class'::regclass}))
{
	ok(exists $refers{$_}, "$_ refers to relations: the test knows what that is");
}
foreach ($dba->query(q{SELECT c.relname FROM pg_class c JOIN pg_attribute ON attrelid = c.oid
		WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r' AND attname = 'oid'}))
{
	ok(exists $kinds{$_}, "$_ has objects: the test knows how they depend on relations");
}
foreach my $catalog (sort keys %columns)
{
	ok(exists $columns{$catalog}{$_}, "$catalog.$_: the test knows it")
	  foreach $dba->query("SELECT attname FROM pg_attribute WHERE attrelid = '$catalog'::regclass
		AND attnum > 0 AND NOT attisdropped");
}

#
# The textbook removal of an administrator
#

my $early = session($node, name => 'early');
$early->query("SELECT leader_election.create_election('e')");
is($early->errors, '', 'a superuser is not warned of superusers');
$dba->query('REASSIGN OWNED BY dba TO app');

sub diagnose
{
	return $reader->query("SELECT severity, finding, remedy FROM leader_election.diagnose('e')");
}

my $WARNED = qr/WARNING:  role "app", which is no superuser, owns objects of extension "leader_election"/;

$early->query("SELECT leader_election.create_election('f')");
like($early->errors, $WARNED, 'REASSIGN OWNED: a superuser that was there before is warned');
$early->query("SELECT leader_election.create_election('g')");
is($early->errors, '', 'once');
$early->query('CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql RETURN 1');
$early->query("SELECT leader_election.join('g', 'early')");
is($early->errors, '', 'in a session, whatever changes');
my $super = session($node, name => 'super');
$super->query("CALL leader_election.campaign('f', 'super', '1 min')");
is(() = $super->errors =~ /$WARNED/g, 1, 'one that comes later is warned once, also while it campaigns');
$app->query("SELECT leader_election.join('f', 'app')");
is($app->errors, '', 'others are not');
my ($owned) = grep { /no superuser, owns/ } split /\n/, diagnose();
like($owned, qr/^warning\|Role "app", which is no superuser, owns objects of the extension \((\d+)\)/,
	'diagnose() names the owner');
my $members = $dba->query(q{SELECT count(*) FROM pg_depend d WHERE refclassid = 'pg_extension'::regclass
	AND deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leader_election')
	AND NOT (classid = 'pg_type'::regclass AND EXISTS (SELECT FROM pg_depend part
		WHERE part.classid = d.classid AND part.objid = d.objid AND part.deptype = 'i'))});
is(($owned =~ /extension \((\d+)\)/)[0], $members, 'of each object');
$dba->query('ALTER FUNCTION leader_election.leader(text) OWNER TO dba');
like(diagnose(), qr/^warning\|Role "app", .* owns objects of the extension \(@{[ $members - 1 ]}\)/m, 'but those of superusers');
$dba->query('ALTER FUNCTION leader_election.leader(text) OWNER TO app');

#
# Each piece: what app attaches, and what diagnose() says.  Its code asks for a superuser's
# rights.
#

$app->query(q{CREATE TABLE public.keys (k text COLLATE "C" PRIMARY KEY);
	CREATE FUNCTION public.evil(what text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $f$
	DECLARE
		super boolean := (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user);
	BEGIN
		RAISE LOG 'evil: % as % (%)', what, current_user, super;
		IF super THEN
			PERFORM public.become();
		END IF;
		RETURN true;
	END $f$;
	CREATE FUNCTION public.become() RETURNS void VOLATILE LANGUAGE plpgsql AS
		$f$BEGIN ALTER ROLE app SUPERUSER; END$f$;
	CREATE FUNCTION public.evil_text(what text) RETURNS text IMMUTABLE LANGUAGE sql
		AS $f$SELECT CASE WHEN public.evil($1) THEN $1 END$f$;
	CREATE FUNCTION public.evil_trigger() RETURNS trigger LANGUAGE plpgsql AS $f$
	BEGIN
		PERFORM public.evil('trigger');
		RAISE 'a trigger fires';
	END $f$;
	CREATE DOMAIN public.evil_domain AS text NOT NULL CHECK (public.evil(VALUE))});

my $LEASE = 'leader_election.lease';
my $RIGHTS = qr/with the rights of the table's owner; a write for which (it fails|they fail) is not made/;
my $UNKEPT = qr/The extension's writes do not keep it: it is not enforced/;

# name, severity, what, effect, SQL that attaches it, options:
#	stops    SQLSTATE of writes
#	runs     with the rights of the owner, when the extension writes
#	super    only a superuser can attach it
#	before   SQL of a superuser, without which it cannot be attached
#	more     rows that diagnose() has of it beside
#	is_routine  it is no addition, and runs nothing
#	clear    SQL after which it is gone, if the remedy leaves something
my @pieces = (
	[ 'trigger', 'warning', qr/trigger "a t" on $LEASE/, qr/It does not fire when the extension writes/,
		qq(CREATE TRIGGER "a t" BEFORE INSERT OR UPDATE OR DELETE ON $LEASE FOR EACH ROW EXECUTE FUNCTION public.evil_trigger()) ],
	[ 'trigger, of statements, always', 'warning', qr/trigger t on $LEASE/, qr/It does not fire/,
		qq(CREATE TRIGGER t AFTER INSERT OR UPDATE OR DELETE ON $LEASE EXECUTE FUNCTION public.evil_trigger();
		ALTER TABLE $LEASE ENABLE ALWAYS TRIGGER t) ],
	[ 'trigger, constraint', 'warning', qr/trigger t on leader_election.history/, qr/It does not fire/,
		q(CREATE CONSTRAINT TRIGGER t AFTER INSERT OR UPDATE ON leader_election.history DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.evil_trigger()) ],
	[ 'rule', 'warning', qr/rule "a r" on $LEASE/, qr/It does not apply/,
		qq(CREATE RULE "a r" AS ON UPDATE TO $LEASE DO INSTEAD SELECT public.evil('rule')) ],
	[ 'row security', 'warning', qr/row security of $LEASE/, qr/roles that observe do not see them/,
		"ALTER TABLE $LEASE ENABLE ROW LEVEL SECURITY" ],
	[ 'row security, forced', 'warning', qr/row security of leader_election.election/, qr/roles that observe do not see them/,
		'ALTER TABLE leader_election.election ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY' ],
	[ 'row security, only forced', 'warning', qr/row security of leader_election.history/, qr/all rows/,
		'ALTER TABLE leader_election.history FORCE ROW LEVEL SECURITY' ],
	[ 'policy', 'warning', qr/policy "a p" on $LEASE/, qr/what it lets through/,
		qq(ALTER TABLE $LEASE ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
		CREATE POLICY "a p" ON $LEASE USING (public.evil('policy')) WITH CHECK (false)),
		more => 1, clear => "ALTER TABLE $LEASE DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY" ],
	[ 'index', 'notice', qr/index leader_election."an i"/, qr/slower/,
		qq(CREATE INDEX "an i" ON $LEASE (leader)) ],
	[ 'index, unique', 'warning', qr/index leader_election.i/, qr/A write of the extension that it refuses/,
		"CREATE UNIQUE INDEX i ON $LEASE (election, leader)" ],
	[ 'index, expression', 'warning', qr/index leader_election.i/, $RIGHTS,
		"CREATE INDEX i ON $LEASE (public.evil('index' || leader))", runs => 1 ],
	[ 'index, expression of constants', 'warning', qr/index leader_election.i/, $RIGHTS,
		"CREATE INDEX i ON $LEASE (public.evil('constant'))", runs => 1 ],
	[ 'index, partial', 'warning', qr/index leader_election.i/, $RIGHTS,
		"CREATE INDEX i ON $LEASE (election) WHERE public.evil('partial' || leader)", runs => 1 ],
	[ 'index, BRIN', 'warning', qr/index leader_election.i/, $RIGHTS,
		"CREATE INDEX i ON $LEASE USING brin (public.evil_text('BRIN' || leader))", runs => 1 ],
	[ 'exclusion constraint', 'warning', qr/table constraint c on $LEASE/, qr/A write of the extension that it refuses/,
		"ALTER TABLE $LEASE ADD CONSTRAINT c EXCLUDE USING btree (public.evil_text('exclusion' || election) WITH =)", runs => 1 ],
	[ 'exclusion constraint, deferrable', 'warning', qr/table constraint c on $LEASE/, $UNKEPT,
		"ALTER TABLE $LEASE ADD CONSTRAINT c EXCLUDE USING btree (acquired_at WITH =) DEFERRABLE INITIALLY DEFERRED" ],
	[ 'unique constraint', 'warning', qr/table constraint c on $LEASE/, qr/A write of the extension that it refuses/,
		"ALTER TABLE $LEASE ADD CONSTRAINT c UNIQUE (election, term)" ],
	[ 'unique constraint, deferrable', 'warning', qr/table constraint c on leader_election.history/, $UNKEPT,
		'ALTER TABLE leader_election.history ADD CONSTRAINT c UNIQUE (acquired_at) DEFERRABLE INITIALLY DEFERRED' ],
	[ 'check', 'warning', qr/table constraint "a c" on $LEASE/, $RIGHTS,
		qq(ALTER TABLE $LEASE ADD CONSTRAINT "a c" CHECK (public.evil('check' || leader))), runs => 1 ],
	[ 'check, of the candidates', 'warning', qr/table constraint c on leader_election.candidate/, $RIGHTS,
		"ALTER TABLE leader_election.candidate ADD CONSTRAINT c CHECK (public.evil('check' || candidate))", runs => 1 ],
	[ 'check, not valid', 'warning', qr/table constraint c on leader_election.history/, $RIGHTS,
		"ALTER TABLE leader_election.history ADD CONSTRAINT c CHECK (public.evil('check' || leader)) NOT VALID", runs => 1 ],
	[ 'foreign key', 'warning', qr/table constraint "a f" on leader_election.history/, $UNKEPT,
		'ALTER TABLE leader_election.history ADD CONSTRAINT "a f" FOREIGN KEY (leader) REFERENCES public.keys NOT VALID' ],
	[ 'foreign key to it', 'warning', qr/table constraint f on public.refers/, $UNKEPT,
		'CREATE TABLE public.refers (e text COLLATE "C", t bigint, CONSTRAINT f FOREIGN KEY (e, t) REFERENCES leader_election.history ON DELETE RESTRICT)',
		clear => 'DROP TABLE public.refers' ],
	[ 'default', 'notice', qr/default value for $LEASE.leader/, qr/does not use it/,
		"ALTER TABLE $LEASE ALTER COLUMN leader SET DEFAULT public.evil_text('default')" ],
	[ 'column', 'notice', qr/column "a c" of $LEASE/, qr/leaves it NULL and uses no default/,
		qq(ALTER TABLE $LEASE ADD COLUMN "a c" text DEFAULT public.evil_text('column default')) ],
	[ 'column of a domain', 'notice', qr/column c of leader_election.candidate/, qr/leaves it NULL/,
		'ALTER TABLE leader_election.candidate ADD COLUMN c public.evil_domain', before => 'DELETE FROM leader_election.candidate' ],
	[ 'column, generated', 'warning', qr/column c of $LEASE/, $RIGHTS,
		"ALTER TABLE $LEASE ADD COLUMN c text GENERATED ALWAYS AS (public.evil_text('generated' || leader)) STORED", runs => 1 ],
	[ 'column, not null', 'error', qr/NOT NULL of column "a c" of leader_election.candidate/, qr/whatever has to be written/,
		q(ALTER TABLE leader_election.candidate ADD COLUMN "a c" text NOT NULL DEFAULT 'x'),
		stops => '23502', clear => 'ALTER TABLE leader_election.candidate DROP COLUMN "a c"' ],
	[ 'column, identity', 'error', qr/NOT NULL of column c of leader_election.history/, qr/whatever has to be written/,
		'ALTER TABLE leader_election.history ADD COLUMN c bigint GENERATED ALWAYS AS IDENTITY', stops => '23502' ],
	[ 'not null', 'error', qr/NOT NULL of column detail of leader_election.history/, qr/whatever has to be written/,
		'ALTER TABLE leader_election.history ALTER COLUMN detail SET NOT NULL', stops => '23502', before => 'DELETE FROM leader_election.history' ],
	[ 'extended statistics', 'notice', qr/statistics object leader_election.s/, qr/ANALYZE computes it/,
		"CREATE STATISTICS leader_election.s ON (public.evil_text('statistics' || leader)), term FROM $LEASE" ],
	[ 'child', 'warning', qr/table public.child, which inherits $LEASE/, qr/does not know them/,
		"CREATE TABLE public.child () INHERITS ($LEASE)", clear => 'DROP TABLE public.child' ],
	[ 'child, foreign', 'warning', qr/foreign table public.far, which inherits $LEASE/, qr/does not know them/,
		"CREATE FOREIGN TABLE public.far () INHERITS ($LEASE) SERVER far",
		before => 'CREATE FOREIGN DATA WRAPPER far; CREATE SERVER far FOREIGN DATA WRAPPER far; GRANT USAGE ON FOREIGN SERVER far TO app',
		clear => 'DROP FOREIGN DATA WRAPPER far CASCADE' ],
	[ 'parent', 'warning', qr/table public.parent, which is inherited by $LEASE/, qr/read and write the extension's rows/,
		qq(CREATE TABLE public.parent (leader text COLLATE "C"); ALTER TABLE $LEASE INHERIT public.parent),
		clear => 'DROP TABLE public.parent' ],
	[ 'partition', 'warning', qr/table public.parts, which has as a partition leader_election.announced/, qr/do not keep the partition's bounds/,
		q(CREATE TABLE public.parts (LIKE leader_election.announced) PARTITION BY LIST (election);
		ALTER TABLE public.parts ATTACH PARTITION leader_election.announced FOR VALUES IN ('e')),
		super => 1, before => 'DELETE FROM leader_election.announced', clear => 'DROP TABLE public.parts' ],
	[ 'publication', 'notice', qr/publication relation $LEASE in publication a p/, qr/mean nothing to them/,
		qq(CREATE PUBLICATION "a p" FOR TABLE $LEASE), clear => 'DROP PUBLICATION "a p"' ],
	[ 'publication with a filter', 'notice', qr/publication relation $LEASE in publication p/, qr/mean nothing to them/,
		"CREATE PUBLICATION p FOR TABLE $LEASE WHERE (leader = 'x')", clear => 'DROP PUBLICATION p' ],
	[ 'publication of the schema', 'notice', qr/publication namespace leader_election in publication p/, qr/mean nothing to them/,
		'CREATE PUBLICATION p FOR TABLES IN SCHEMA leader_election', super => 1, clear => 'DROP PUBLICATION p' ],
	[ 'sequence of a column', 'notice', qr/sequence leader_election.s, which depends on $LEASE/, qr/Nothing of the extension uses it/,
		"CREATE SEQUENCE leader_election.s OWNED BY $LEASE.term" ],
	[ 'unlogged', 'error', qr/UNLOGGED of leader_election.history/, qr/two may lead/,
		'ALTER TABLE leader_election.history SET UNLOGGED' ],
	[ 'logged', 'warning', qr/LOGGED of leader_election.candidate/, qr/waits for standbys/,
		'ALTER TABLE leader_election.candidate SET LOGGED' ],
	[ 'function in the schema', 'warning', qr/function leader_election.is_leader\(character\), in the extension's schema/, qr/in place of/,
		q(CREATE FUNCTION leader_election.is_leader(character) RETURNS boolean LANGUAGE sql AS $$SELECT public.evil('overload')$$) ],
	[ 'type in the schema', 'warning', qr/type leader_election.d, in the extension's schema/, qr/in place of/,
		'CREATE DOMAIN leader_election.d AS text' ],
	[ 'table in the schema', 'warning', qr/table leader_election.metric, in the extension's schema/, qr/in place of/,
		'CREATE TABLE leader_election.metric ()' ],
	[ 'object of another schema', 'warning', qr/view public.v, as a part of the extension/, qr/Dumps do not contain it/,
		'CREATE VIEW public.v AS SELECT 1; ALTER EXTENSION leader_election ADD VIEW public.v', clear => 'DROP VIEW public.v' ],
	[ 'type of another schema', 'warning', qr/type public.word, as a part of the extension/, qr/Dumps do not contain it/,
		'CREATE DOMAIN public.word AS text; ALTER EXTENSION leader_election ADD DOMAIN public.word', clear => 'DROP DOMAIN public.word' ],
	[ 'cast, which has no owner', 'warning', qr/cast \(public\.pair AS \S+\), as a part of the extension/, qr/Dumps do not contain it/,
		'CREATE TYPE public.pair AS (a int, b int); CREATE CAST (public.pair AS text) WITH INOUT;
		ALTER EXTENSION leader_election ADD CAST (public.pair AS text)', super => 1, clear => 'DROP TYPE public.pair CASCADE' ],
	[ 'another schema', 'warning', qr/schema another, as a part of the extension/, qr/Dumps do not contain it/,
		'CREATE SCHEMA another; ALTER EXTENSION leader_election ADD SCHEMA another', clear => 'DROP SCHEMA another' ],
	[ 'settings of a function', 'warning', qr/procedure leader_election.campaign\(.*\) was given SET/, qr/a procedure fails/,
		q(ALTER PROCEDURE leader_election.campaign SET search_path = ''), is_routine => 1 ],
);
push @pieces, [ 'column, computed when it is read', 'notice', qr/column c of $LEASE/, qr/It is computed when it is read/,
	"ALTER TABLE $LEASE ADD COLUMN c text GENERATED ALWAYS AS (upper(leader)) VIRTUAL" ]
  if $app->query('SHOW server_version_num') >= 180000;

# Others that only read a table, or name it, are no additions.
$app->query(q{CREATE VIEW public.mine AS SELECT * FROM leader_election.history;
	CREATE MATERIALIZED VIEW public.kept AS SELECT * FROM leader_election.history;
	CREATE FUNCTION public.reads() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM leader_election.lease; END;
	ALTER FUNCTION public.reads() DEPENDS ON EXTENSION leader_election;
	CREATE TABLE public.guarded (e text);
	CREATE POLICY p ON public.guarded USING (EXISTS (SELECT FROM leader_election.lease));
	CREATE TRIGGER only_leader BEFORE INSERT ON public.guarded FOR EACH STATEMENT
		EXECUTE FUNCTION leader_election.only_leader('e');
	CREATE TABLE public.rows OF leader_election.lease_grant;
	CREATE TABLE public.names (r oid DEFAULT 'leader_election.lease'::regclass, CHECK (r <> 'leader_election.lease'::regclass));
	ALTER DEFAULT PRIVILEGES IN SCHEMA leader_election GRANT SELECT ON TABLES TO reader});
is($app->sqlstate, '00000', 'others read the tables');
if ($app->query('SHOW server_version_num') >= 190000)
{
	$app->query('CREATE PROPERTY GRAPH public.graph VERTEX TABLES (leader_election.lease KEY (election))');
	is($app->sqlstate, '00000', 'a property graph reads a table');
}
unlike(diagnose(), qr/Not the extension's/, 'what only reads the tables, or uses functions and types, is no addition');

sub log_since { my ($from) = @_; return substr(slurp_file($node->logfile), $from); }

# A superuser's call, a session that ends, and the worker write each table.
sub write_ok
{
	my ($name, $stops) = @_;
	my $one = session($node, name => 'one', options => '-c client_min_messages=error');
	my $two = session($node, name => 'two', options => '-c client_min_messages=error');
	my $term;

	$one->query("SELECT leader_election.drop_election('w')") unless $stops;
	$one->query("SELECT leader_election.create_election('w')");
	$one->query("SELECT leader_election.join('w', 'one')");
	if ($stops)
	{
		is($one->sqlstate, $stops, "$name: stops join()");
		like($one->errors, qr/admits no null value, which leader_election has to write.*DROP (?:NOT NULL|COLUMN)/s,
			"$name: with one clear error");
		$_->kill foreach $one, $two;
		return;
	}
	is($one->sqlstate, '00000', "$name: join()");
	$two->query("SELECT leader_election.join('w', 'two')");
	cmp_ok($one->query("SELECT leader_election.term('w')"), '>', 0, "$name: leads");
	is($one->sqlstate_of("SELECT leader_election.renew('w')"), '00000', "$name: renews");
	$one->kill;
	wait_for($node, "SELECT leader_election.leader('w')", 'two');
	$two->query("SELECT leader_election.leave('w')");
	is($two->sqlstate, '00000', "$name: leaves");
	$two->finish;
	return;
}

foreach my $piece (@pieces)
{
	my ($name, $severity, $what, $effect, $attach, %o) = @$piece;
	my $from = -s $node->logfile;
	my (@rows, $row, $remedy);

	$super->query($o{before}) if $o{before};
	($o{super} ? $super : $app)->query($attach);
	is(($o{super} ? $super : $app)->sqlstate, '00000', "$name: attached");
	@rows = grep { /Not the extension's|was given/ } split /\n/, diagnose();
	($row) = grep { /$what/ } @rows;
	like($row // '', $o{is_routine} ? qr/^$severity\|The $what.*$effect/ :
		qr/^$severity\|Not the extension's: $what\. .*$effect/, "$name: diagnose() names it");
	is(scalar(@rows), 1 + ($o{more} // 0), "$name: in one row");
	write_ok($name, $o{stops}) unless $o{is_routine};
	is($super->query("SELECT rolsuper FROM pg_roles WHERE rolname = 'app'"), 'f', "$name: app is no superuser");
	unlike(log_since($from), qr/evil: .* \(t\)/, "$name: nothing ran with a superuser's rights");
	like(log_since($from), qr/evil: .* as app \(f\)/, "$name: it ran as the owner") if $o{runs};

	($remedy) = ($row // '') =~ /\|([^|]*)$/;
	is($super->sqlstate_of($remedy // 'there is none'), '00000', "$name: the remedy");
	unlike(diagnose(), qr/: $what/, "$name: removes it");
	$super->query($o{clear}) if $o{clear};
	is($super->sqlstate, '00000', "$name: and what is left") if $o{clear};
	$super->query('ALTER ROLE app NOSUPERUSER');
}
unlike(diagnose(), qr/Not the extension's/, 'nothing is left');

# Each column, in each way
foreach my $column ($super->query(q{SELECT format('%s ALTER COLUMN %I', attrelid::regclass, attname)
	FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid
	WHERE relnamespace = 'leader_election'::regnamespace AND relkind = 'r' AND attnum > 0
		AND NOT attisdropped AND NOT attnotnull}))
{
	my ($table, $name) = $column =~ /^(\S+) ALTER COLUMN (\S+)/;

	$super->query("BEGIN; DELETE FROM $table; ALTER TABLE $column SET NOT NULL");
	like($super->query("SELECT finding FROM leader_election.diagnose('g')"),
		qr/^Not the extension's: NOT NULL of column $name of $table\./m, "$column: NOT NULL is named")
	  unless $table eq 'leader_election.election';
	$super->query('ROLLBACK');
}
#
# The owner of a function may replace its body.
#

$app->query(q{CREATE OR REPLACE FUNCTION leader_election.leader(election text) RETURNS text
	LANGUAGE plpgsql AS $$BEGIN RETURN CASE WHEN public.evil('body') THEN 'nobody' END; END$$});
is($app->sqlstate, '00000', 'the owner replaces a function');
like(diagnose(), qr/^error\|The function leader_election\.leader\(pg_catalog\.text\) is not the extension's any more/m,
	'diagnose() says so');
my $LEADER = q{CREATE OR REPLACE FUNCTION leader_election.leader(election text) RETURNS text
	AS '%s', 'le_leader' LANGUAGE C VOLATILE PARALLEL UNSAFE STRICT};
$super->query(sprintf($LEADER, 'leader_election'));
is($super->sqlstate, '00000', 'it becomes the function of a library that is looked for in dynamic_library_path');
like(diagnose(), qr/is not the extension's any more/, 'which the extension has not made either');
$super->query(sprintf($LEADER, '$libdir/leader_election'));
unlike(diagnose(), qr/any more/, 'until it is mended');
my ($commands) = diagnose() =~ /Then, as a superuser:(.*;)$/m;
is($super->sqlstate_of($commands), '00000', 'the remedy: the commands of diagnose()');
unlike(diagnose(), qr/no superuser/, 'after which a superuser owns all');
is($app->sqlstate_of(q(CREATE OR REPLACE VIEW leader_election.protocol AS
		SELECT 1 AS number, 'extension'::text AS edition, '1.0'::text COLLATE "C" AS version)),
	'42501', 'and the former owner can replace nothing');

#
# An owner that ceases to be a superuser
#

$node->safe_psql('postgres', q{CREATE DATABASE other;
	CREATE ROLE dba2 LOGIN SUPERUSER});
$node->safe_psql('other', 'SET ROLE dba2; CREATE EXTENSION leader_election');
$super = session($node, dbname => 'other', name => 'super');
$super->query("SELECT leader_election.create_election('e')");
is($super->errors, '', 'a superuser owns all');
$node->safe_psql('postgres', 'ALTER ROLE dba2 NOSUPERUSER');
$super->query("SELECT leader_election.create_election('f')");
like($super->errors, qr/WARNING:  role "dba2", which is no superuser/, 'until that role is none any more');
like($super->query("SELECT finding FROM leader_election.diagnose('e')"),
	qr/^Role "dba2", which is no superuser, owns/m, 'diagnose() says so');

done_testing();
