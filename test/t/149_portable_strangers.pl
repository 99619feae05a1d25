# The portable edition, against roles that may call its functions, own objects in the
# database, and want more: what they have others run does not act in the others' name.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server(start => 0, config => "client_min_messages = error
autovacuum_naptime = 1
autovacuum_analyze_threshold = 0
autovacuum_analyze_scale_factor = 0
");
$node->start;
my $super = session($node, name => 'super');
my $SUPERUSER = $super->query('SELECT current_user');
$super->query("CREATE ROLE $_ LOGIN") foreach qw(installer stranger members);
$super->query('CREATE DATABASE portable TEMPLATE template0');
$super->query("GRANT CREATE ON DATABASE portable TO installer, stranger");
system_or_bail('psql', '-Xq', '-v', 'anyway=1', '-v', 'ON_ERROR_STOP=1',
	'-f', "$FindBin::RealBin/../../sql/portable.sql", '-d', $node->connstr('portable') . ' user=installer');
$node->safe_psql('portable', q(
	SET ROLE installer;
	GRANT USAGE ON SCHEMA leader_election TO stranger;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO stranger));
my $admin = session($node, name => 'admin', dbname => 'portable');
my $stranger = session($node, name => 'stranger', dbname => 'portable', user => 'stranger');

#
# Maintenance commands run functions of the tables' owners.
#

my $lease = "lease_duration => '1 hour'";
$admin->query("SELECT leader_election.create_election('theirs', $lease)");
$admin->query("SELECT leader_election.create_election('closed', $lease, candidate_role => 'members')");
$admin->query("SELECT leader_election.create_election('led', $lease)");
my $term = $admin->acquire('led', 'admin');
is($term, 1, 'a superuser leads');
$admin->query("SELECT leader_election.create_election('own', $lease)");
is($admin->query("SELECT leader_election.join('own', 'admin', auto_renew => false)"), 1, 'and so does its session');

# What the function of an index calls, as the session's role if that were believed
my @CALLS = (
	'leader_election.configure(auto_create => false)',
	q(leader_election.drop_election('theirs')),
	q(leader_election.alter_election('theirs', quorum => 9)),
	q(leader_election.alter_election('led', owner => 'stranger')),
	q(leader_election.set_run_done('theirs', 'z')),
	q(leader_election.request_yield('led')),
	q(leader_election.create_election('made')),
	q(leader_election.acquire('closed', 'stranger')),
	q(leader_election.join('closed', 'stranger', auto_renew => false)),
	qq(leader_election.renew('led', $term)),
	qq(leader_election.transfer('led', $term, 'admin')),
	qq(leader_election.release('led', $term)),
	q(leader_election.leave('led', 'admin')),
	q(leader_election.assert_leader('own')),
);
$stranger->query(q(
	CREATE SCHEMA evil;
	CREATE TABLE evil.said (session name, call text, state text);
	CREATE TABLE evil.calls (call text);
	CREATE FUNCTION evil.try() RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		try text;
		state text;
		said evil.said[];
	BEGIN
		FOR try IN SELECT call FROM evil.calls LOOP
			BEGIN
				state := '00000';
				EXECUTE 'SELECT ' || try;
			EXCEPTION WHEN OTHERS THEN
				state := SQLSTATE;
			END;
			said := said || ROW(session_user, try, state)::evil.said;
		END LOOP;
		INSERT INTO evil.said SELECT * FROM unnest(said);		-- at last: no call may follow a write
	END $$;
	CREATE FUNCTION evil.indexed(integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$
	BEGIN
		IF session_user <> 'stranger' THEN
			PERFORM evil.try();
		END IF;
		RETURN $1;
	END $$;
	CREATE TABLE evil.bait (a integer);
	ALTER TABLE evil.bait SET (autovacuum_enabled = off);
	INSERT INTO evil.bait VALUES (1);
	CREATE INDEX baited ON evil.bait (evil.indexed(a));
));
is($stranger->sqlstate, '00000', 'a role that may call and create has a table with an index');
$stranger->query('INSERT INTO evil.calls VALUES ($call$' . $_ . '$call$)') foreach @CALLS;

# All that may change
my $ALL = q(SELECT (SELECT string_agg(e::text, ' ' ORDER BY e.election) FROM leader_election.election e),
	(SELECT string_agg(concat_ws(' ', l.election, l.leader, l.role, l.term, l.expires_at, l.yielding, l.run_done), ', ' ORDER BY l.election) FROM leader_election.lease l),
	(SELECT string_agg(c.election || ' ' || c.candidate, ', ' ORDER BY c.election) FROM leader_election.candidate c),
	(SELECT auto_create FROM leader_election.server));
my $before = $admin->query($ALL);

sub refused_all
{
	my ($what) = @_;

	is($admin->query('SELECT string_agg(DISTINCT session::text, $$ $$) FROM evil.said'), $SUPERUSER, "$what runs it in a superuser's session");
	is($admin->query(q(SELECT string_agg(state || ' ' || call, E'\n') FROM evil.said WHERE state NOT IN ('42501', '25001'))), '', "$what: no call is served");
	cmp_ok($admin->query('SELECT count(*) FROM evil.said'), '>=', @CALLS, "$what: all were tried");
	is($admin->query($ALL), $before, "$what: nothing has changed");
	$admin->query('TRUNCATE evil.said');
	return;
}

$admin->query('ANALYZE evil.bait');
refused_all('ANALYZE');
$admin->query('REINDEX TABLE evil.bait');
refused_all('REINDEX');
$stranger->query('ALTER TABLE evil.bait SET (autovacuum_enabled = on); INSERT INTO evil.bait VALUES (2)');
wait_for($node, "SELECT autoanalyze_count > 0 FROM pg_stat_all_tables WHERE relid = 'evil.bait'::regclass", 't', undef, 'portable');
refused_all('autovacuum');
$stranger->query('DROP TABLE evil.bait');

#
# SECURITY DEFINER: what such a function of another role calls, it calls for the session's
# role. That cannot be told, but the right to call can be taken away.
#

$stranger->query(q(CREATE FUNCTION evil.helpful(call text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS
	'BEGIN EXECUTE $1; END'));
is($admin->sqlstate_of(q(SELECT evil.helpful('SELECT leader_election.configure(auto_create => true)'))), '00000',
	'a superuser calls a SECURITY DEFINER function of a stranger, which then may what the superuser may');
my ($page) = slurp_file("$FindBin::RealBin/../../docs/portable.md") =~ /^(REVOKE EXECUTE ON .*?;)$/ms;
$node->safe_psql('portable', 'SET ROLE installer; ' . $page =~ s/FROM \w+;/FROM stranger;/r);
foreach my $call (q(configure(auto_create => true)), q(drop_election('theirs')), q(alter_election('theirs', quorum => 9)),
	q(set_run_done('theirs', 'z')), q(request_yield('led')))
{
	is($admin->sqlstate_of("SELECT evil.helpful('SELECT leader_election." . $call =~ s/'/''/gr . "')"), '42501', "until that is revoked: $call");
}
is($admin->query($ALL), $before, 'nothing has changed');

#
# Keys of sessions can be foreseen, and locked in advance.
#

my $last = $admin->query('SELECT last_value FROM leader_election_internal.session_number');
is($stranger->sqlstate_of("SELECT pg_advisory_lock_shared(hashint8extended(n, 20200101) & 9223372036854775807)
	FROM generate_series($last, $last + 40) n"), '00000', 'a stranger locks the next keys');
my $victim = session($node, name => 'victim', dbname => 'portable');
is($victim->query("SELECT leader_election.join('theirs', 'victim', auto_renew => false)"), 1, 'a session finds one that is free');
is($victim->query("SELECT leader_election.is_leader('theirs')"), 't', 'and leads');

done_testing();
