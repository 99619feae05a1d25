# The portable edition, when its file is run over an older copy of it: internal routines
# may have other names; nobody loses a term by that, calls in that moment end as busy at
# most, what was granted and revoked stays, and a run that fails changes nothing.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

my $FILE = "$FindBin::RealBin/../../sql/portable.sql";
my $node = new_server(start => 0, config => "client_min_messages = warning\n");
$node->start;
$node->safe_psql('postgres', $_) foreach 'CREATE ROLE installer LOGIN', 'CREATE ROLE app LOGIN', 'CREATE ROLE other LOGIN',
  'CREATE DATABASE portable TEMPLATE template0', 'GRANT CREATE ON DATABASE portable TO installer';

sub run_file
{
	my ($file) = @_;

	IPC::Run::run([ 'psql', '-Xq', '-v', 'anyway=1', '-f', $file, '-d', $node->connstr('portable') . ' user=installer' ],
		'<' => \'', '>' => \my $out, '2>' => \my $err);
	return ($? >> 8) . " $err$out";
}

# An older copy: routines with another argument and another result, which have other
# names in the present one
my $old = slurp_file($FILE);
ok($old =~ s/leader_election_internal\.check_term\(\Kterm bigint(.*?IF )term /of_term bigint$1of_term /s
	  && $old =~ s/leader_election_internal\.check_term\(/leader_election_internal.check_a_term(/g, 'another argument');
ok($old =~ s/FUNCTION leader_election_internal\.tries\(.*?RETURNS \Kinteger/bigint/
	  && $old =~ s/leader_election_internal\.tries\(/leader_election_internal.tries_left(/g, 'and another result');
ok($old =~ s/(version CONSTANT integer := )1;/${1}0;/g && $old =~ s/SELECT 1, '1.0', 'the first one'(.*?number = )1/SELECT 0, '0.9', 'older'${1}0/s, 'of an older version');
my $folder = PostgreSQL::Test::Utils::tempdir();
append_to_file("$folder/old.sql", $old);
is(run_file("$folder/old.sql"), '0 ', 'an older copy is installed');

my $owner = session($node, name => 'owner', dbname => 'portable', user => 'installer');
$owner->query($_) foreach 'GRANT USAGE ON SCHEMA leader_election TO app, other',
  'GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app',
  'REVOKE EXECUTE ON FUNCTION leader_election.leader(text) FROM PUBLIC',
  q(SELECT leader_election.create_election(e, takeover_delay => '0', lease_duration => '1 hour') FROM unnest(ARRAY['detached', 'session', 'fenced', 'changes']) e);
my ($detached, $session, $changes, $watcher, $beside, $fenced) =
  map { session($node, name => $_, dbname => 'portable', user => 'app') } qw(detached session changes watcher beside fenced);
my $term = $detached->acquire('detached', 'one');
is($session->query("SELECT leader_election.join('session', 'two', auto_renew => false)"), 1, 'a session leads');
is($fenced->query("SELECT leader_election.join('fenced', 'four', auto_renew => false)"), 1, 'and another');

# What an update must not change: who may do what, and who leads in which term
my $RIGHTS = q(SELECT string_agg(x, ' ' ORDER BY x) FROM (
	SELECT n.nspname || n.nspacl::text FROM pg_namespace n WHERE n.nspname LIKE 'leader_election%'
	UNION ALL SELECT c.relname || coalesce(c.relacl::text, '') FROM pg_class c WHERE c.relnamespace::regnamespace::text LIKE 'leader_election%'
	UNION ALL SELECT p.oid::regprocedure || p.proacl::text FROM pg_proc p WHERE p.pronamespace = 'leader_election'::regnamespace) a (x));
my $LEADERS = q(SELECT string_agg(concat_ws(' ', election, state, leader, term), ', ' ORDER BY election) FROM leader_election.status WHERE election <> 'changes');
my $ROUTINES = q(SELECT md5(string_agg(concat_ws(' ', p.oid::regprocedure, p.proargnames, p.prorettype::regtype, p.prosrc), ' ' ORDER BY p.oid::regprocedure::text)) FROM pg_proc p
	WHERE p.pronamespace::regnamespace::text LIKE 'leader_election%');
my ($rights, $leaders, $routines) = map { scalar $owner->query($_) } $RIGHTS, $LEADERS, $ROUTINES;

# A run that fails changes nothing: something is in the way.
$owner->query('CREATE FUNCTION leader_election_internal.tries(interval) RETURNS text RETURN NULL');
isnt(substr(run_file($FILE), 0, 1), '0', 'a run fails');
$owner->query('DROP FUNCTION leader_election_internal.tries(interval)');
is($owner->query($ROUTINES), $routines, 'and leaves all routines as they were');
is($detached->query("SELECT term FROM leader_election.renew('detached', $term)"), $term, 'which work');

# So does one that meets a call whose transaction goes on. It does not hold up others
# for longer than a second.
$beside->query("BEGIN; SELECT count(*) FROM leader_election.acquire('changes', 'beside')");
like(run_file($FILE), qr/^[^0].*lock timeout/s, 'a run that a call holds up ends');
is($owner->query($ROUTINES), $routines, 'it has changed nothing, either');
$beside->query('ROLLBACK');

# Calls that are under way, and calls that queue behind an update over the older version,
# find the routines that they come to. (The machine may be too slow for their second.)
my @queued = (
	[ $detached, "SELECT term FROM leader_election.renew('detached', $term)" ],
	[ $session, q(SELECT term FROM leader_election.renew('session')) ],
	[ $changes, q(SELECT leader_election.release('changes', a.term) FROM leader_election.acquire('changes', 'three') a) ],
	[ $watcher, q(SELECT string_agg(s.leader, ' ') FROM leader_election.status s) ],
	[ $beside, q(SELECT leader_election.join('detached', 'beside', auto_renew => false)) ],
	[ $fenced, q(SELECT leader_election.assert_leader('fenced')) ]);
$_->[0]->query($_->[1]) foreach @queued;
my $old_routines = 'SELECT string_agg(p.oid::text, $$,$$ ORDER BY p.oid) FROM pg_proc p WHERE p.pronamespace = $$leader_election_internal$$::regnamespace';
my $oids = $owner->query($old_routines);
{
	my ($in, $out, $err) = ("BEGIN;\n\\i $FILE\nSELECT 'made';\n", '', '');
	my $update = IPC::Run::start([ 'psql', '-Xqt', '-v', 'anyway=1', '-v', 'in_transaction=1', '-d', $node->connstr('portable') . ' user=installer' ],
		'<' => \$in, '>' => \$out, '2>' => \$err);

	wait_until(sub { $update->pump_nb; $out =~ /made/ }, sub { "an update that has not committed: $err" });
	$owner->query(q(BEGIN; SELECT FROM leader_election.lease WHERE election = 'fenced' FOR UPDATE));
	$_->[0]->query_async($_->[1]) foreach @queued;
	wait_until(sub { $node->safe_psql('postgres', q(SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND state = 'active' AND wait_event IN ('relation', 'PgSleep')))
			+ grep({ $_->[0]->finished } @queued) >= @queued }, 'calls that queue, or have waited for their second');
	$in .= "COMMIT;\n";
	$update->finish;
	$owner->query('ROLLBACK');
	is($err, '', 'an update commits');
	foreach my $queued (@queued)
	{
		$queued->[0]->result;
		like($queued->[0]->sqlstate, qr/^(00000|55P03)$/, "$queued->[1]: it is no error") or diag($queued->[0]->errors);
	}
	isnt($owner->query($ROUTINES), $routines, 'the routines are new ones');
	is($owner->query("SELECT count(*) FROM pg_proc WHERE oid IN ($oids)"), 1 + $oids =~ tr/,//, 'none is dropped');
}

# A fence is no hindrance.
$beside->query("BEGIN; SELECT leader_election.assert_leader('detached', $term)");

# Leaders renew, a candidate is elected and gives up, and a listener waits, all the time.
$owner->query(q(CREATE SCHEMA work; GRANT ALL ON SCHEMA work TO app));
$detached->query(q(CREATE TABLE work.said (call text, state text, answer text);
	CREATE PROCEDURE work.repeat(call text) LANGUAGE plpgsql AS $$
	DECLARE
		state text;
		answer text;
	BEGIN
		WHILE NOT EXISTS (SELECT FROM work.said s WHERE s.call = 'stop') LOOP
			BEGIN
				state := '00000';
				EXECUTE call INTO answer;
			EXCEPTION WHEN OTHERS THEN
				state := SQLSTATE;
				answer := SQLERRM;
			END;
			COMMIT;
			INSERT INTO work.said VALUES (call, state, answer);
			COMMIT;
			PERFORM pg_sleep(0.001);
		END LOOP;
	END $$));
my %CALLS = (
	"SELECT r.term FROM leader_election.renew('detached', $term) r" => $detached,
	q(SELECT r.term FROM leader_election.renew('session') r) => $session,
	q(SELECT leader_election.release('changes', a.term) FROM leader_election.acquire('changes', 'three') a) => $changes,
	q(SELECT leader_election.is_leader('fenced') FROM leader_election.assert_leader('fenced')) => $fenced,
	q(SELECT string_agg(s.leader, ' ') FROM leader_election.status s WHERE s.election <> 'changes') => $watcher);
$CALLS{$_}->query_async("CALL work.repeat(\$call\$$_\$call\$)") foreach keys %CALLS;
my $made = 'SELECT count(*) FROM (SELECT call FROM work.said GROUP BY 1 HAVING count(*) FILTER (WHERE state = $$00000$$) > 20) x';
wait_for($node, $made, scalar keys %CALLS, undef, 'portable');
foreach my $what ('over an older version', map { "again: $_" } 1 .. 8)
{
	my $said;

	$node->safe_psql('portable', 'TRUNCATE work.said');
	wait_until(sub { ($said = run_file($FILE)) !~ /lock timeout/ }, 'the update');
	is($said, '0 ', "the file is run $what");
	wait_for($node, $made, scalar keys %CALLS, undef, 'portable');
	is($node->safe_psql('portable', "SELECT DISTINCT call, state, answer FROM work.said WHERE state NOT IN ('00000', '55P03')"), '', 'no call fails otherwise than as busy');
	is($node->safe_psql('portable', "SELECT DISTINCT call FROM work.said WHERE state = '00000' AND answer IS NULL AND call LIKE '%renew%'"), '', 'no term is lost');
}
$node->safe_psql('portable', q(INSERT INTO work.said VALUES ('stop')));
like(run_file("$folder/old.sql"), qr/newer portable edition/, 'an older file is refused');
foreach my $caller (values %CALLS)
{
	$caller->result;
	is($caller->sqlstate, '00000', 'a caller ends');
}
is($beside->sqlstate_of('COMMIT'), '00000', 'the fence has stood through it');

is($owner->query(q(SELECT string_agg(concat_ws(' ', number, version, changes), ', ' ORDER BY number) FROM leader_election_internal.edition WHERE installed_at <= clock_timestamp())),
	'0 0.9 older, 1 1.0 the first one', 'which files were run is in a table');
is($owner->query($LEADERS), $leaders, 'each leader leads on in its term');
is($session->query("SELECT leader_election.is_leader('session')"), 't', 'as a session knows');
is($owner->query('SELECT count(*) = count(DISTINCT term) FROM leader_election.history WHERE election = $$changes$$'), 't', 'no term was given twice');
is($owner->query($RIGHTS), $rights, 'who may do what is as it was');
is($owner->query(q(SELECT count(*) FROM pg_proc p WHERE p.pronamespace = 'leader_election_internal'::regnamespace
	AND (has_function_privilege('app', p.oid, 'EXECUTE') OR has_function_privilege('other', p.oid, 'EXECUTE')))),
	0, 'what is internal nobody else may call');
my $fresh = session($node, name => 'fresh', dbname => 'portable', user => 'app');
is($fresh->query("SELECT leader_election.release('detached', $term)"), 't', 'a new session calls what is new');

done_testing();
