# pg_leader among others who mean harm, or whose answers are not what they
# should be: a schema leader_election of somebody else, functions that were
# replaced, forged notifications, storms of them, names made to deceive; and what
# it says about durations, passwords and itself.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use Encode qw(decode encode);
use IPC::Run;
use JSON::PP;
use LeaderElection;
use PgLeader;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

# A machine that is held up for seconds is to cost nobody the lease: where one is led for
# a while, that is with a short grace. A longer lease would be waited for by yield.
my $node = new_server(
	config => q(
leader_election.lease_duration = '6s'
client_min_messages = warning
log_statement = all
log_line_prefix = '%m [%p] %a '
));
my $sql = session($node, name => 'observer');

$sql->query('CREATE ROLE mallory LOGIN');

sub connstr
{
	return $node->connstr($_[0] // 'postgres');
}

sub leads
{
	my ($election) = @_;

	return wait_until(sub { $sql->query("SELECT leader_election.leader('$election') IS NOT NULL") eq 't' }, "a leader of $election");
}

# How often the server was sent what matches, by whom, since then.
sub sent
{
	my ($from, $name, $regexp) = @_;

	return scalar(() = slurp_file($node->logfile, $from) =~ /\] $name LOG:  execute [^:]*: [^\n]*$regexp/g);
}

# --- a schema of that name that is not the extension's

# All that pg_leader could ask for, made by the owner of the database
my $FORGED = q(
CREATE FUNCTION leader_election.trap() RETURNS void LANGUAGE plpgsql AS
	$$BEGIN RAISE WARNING 'TRAP ran as %', current_user; END$$;
CREATE FUNCTION leader_election.leader(text) RETURNS text LANGUAGE sql VOLATILE AS
	$$SELECT leader_election.trap(); SELECT 'x'$$;
CREATE FUNCTION leader_election.join(text, text, integer, auto_renew boolean) RETURNS bigint LANGUAGE sql AS
	$$SELECT leader_election.trap(); SELECT 1::bigint$$;
CREATE FUNCTION leader_election.acquire(text, text, integer, request uuid, run text, attempts integer, OUT term bigint, OUT remaining_ms bigint, OUT expires_at timestamptz, OUT yielding boolean) LANGUAGE sql AS
	$$SELECT leader_election.trap(); SELECT 1::bigint, 60000::bigint, now(), false$$;
CREATE FUNCTION leader_election.renew(text, bigint, OUT term bigint, OUT remaining_ms bigint, OUT expires_at timestamptz, OUT yielding boolean) LANGUAGE sql AS
	$$SELECT leader_election.trap(); SELECT 1::bigint, 60000::bigint, now(), false$$;
CREATE FUNCTION leader_election.renew(text, OUT term bigint, OUT remaining_ms bigint, OUT expires_at timestamptz, OUT yielding boolean) LANGUAGE sql AS
	$$SELECT leader_election.trap(); SELECT 1::bigint, 60000::bigint, now(), false$$;
CREATE FUNCTION leader_election.release(text, bigint, interval, done boolean) RETURNS boolean LANGUAGE sql AS
	$$SELECT leader_election.trap(); SELECT true$$;
CREATE FUNCTION leader_election.leave(text, text) RETURNS boolean LANGUAGE sql AS
	$$SELECT leader_election.trap(); SELECT true$$;
CREATE FUNCTION leader_election.request_yield(text, text, boolean) RETURNS interval LANGUAGE sql AS
	$$SELECT leader_election.trap(); SELECT '1 s'::interval$$;
CREATE VIEW leader_election.election AS SELECT 'e' AS election, 'race' AS strategy, interval '30 s' AS lease_duration,
	NULL::text AS channel FROM leader_election.trap();
CREATE VIEW leader_election.status AS SELECT 'e' AS election, 'led' AS state, 'x' AS leader, 1::bigint AS term, now() AS since,
	interval '1 s' AS remaining, NULL::text AS waiting_for, 1 AS candidates, 1 AS quorum, 'race' AS strategy, 'session' AS kind,
	1 AS backend_pid, now() AS renewed_at, now() AS expires_at, NULL::jsonb AS metadata, NULL::timestamptz AS metadata_at FROM leader_election.trap();
CREATE VIEW leader_election.history AS SELECT 'e' AS election, 1::bigint AS term, 'x' AS leader, 'session' AS kind,
	'x' AS role, NULL::inet AS client_addr, 1 AS backend_pid, now() AS acquired_at, NULL::timestamptz AS ended_at,
	NULL::text AS reason, NULL::text AS detail FROM leader_election.trap();
CREATE VIEW leader_election.candidates AS SELECT 'e' AS election, 'x' AS candidate, 'session' AS kind, 0 AS rank,
	0::bigint AS progress, NULL::jsonb AS metadata, now() AS joined_at, true AS alive, true AS leads, 1 AS "position" FROM leader_election.trap();
);

$sql->query("CREATE DATABASE $_ OWNER mallory") foreach qw(forged replaced);
$node->safe_psql('forged', "CREATE SCHEMA leader_election; $FORGED", extra_params => [ '-U', 'mallory' ]);
foreach my $call (
	['status'], [ 'status', '-e', 'e' ], [ 'status', '--json' ], [ 'history', '-e', 'e' ], ['watch'], [ 'yield', '-e', 'e' ],
	[ 'run', '-e', 'e', '--', 'true' ], [ 'run', '-e', 'e', '--skip', '--', 'true' ],
	[ 'run', '-e', 'e', '--mode', 'session', '--', 'true' ])
{
	my ($code, undef, $err) = ask(connstr('forged'), @$call);

	is($code, 124, "a schema of the owner: @$call");
	like($err, qr/does not have the extension.*\n.*schema "leader_election" that does not belong to the extension/, 'says so');
}
unlike(slurp_file($node->logfile), qr/WARNING:  TRAP/, 'nothing in it is run');

# The extension goes while pg_leader is at work, and its name is taken at once.
{
	$node->safe_psql('replaced', 'CREATE EXTENSION leader_election');
	my $watch = start_client(connstr('replaced'), 'watch');
	my $leads = pg_leader(connstr('replaced'), '-e', 'e', '-n', 'leads', '--grace', '100ms', '--', 'sleep', '600');
	wait_for_output($watch, qr/"leads" leads/);
	my $stands = pg_leader(connstr('replaced'), '-e', 'e', '-n', 'stands', '--', 'sleep', '600');
	wait_for($node, "SELECT count(*) = 2 FROM leader_election.candidates WHERE alive", 't', undef, 'replaced');
	$node->safe_psql('replaced', "BEGIN; DROP EXTENSION leader_election; CREATE SCHEMA leader_election; $FORGED; COMMIT");
	is($stands->exit_code, 124, 'a schema that replaces the extension: who stands');
	like($stands->output, qr/does not belong to the extension/, 'says so');
	is($leads->exit_code, 121, 'who leads');
	like($leads->output, qr/does not belong to the extension/, 'says so');
	wait_for_output($watch, qr/does not belong to the extension/);
	$watch->[0]->finish;
	is($watch->[0]->full_result >> 8, 124, 'watch');
	unlike(slurp_file($node->logfile), qr/WARNING:  TRAP/, 'nothing in it is run');
}

# --- answers that are not what they should be

sub forge
{
	my ($db, $function, $definition) = @_;

	$node->safe_psql($db, "ALTER EXTENSION leader_election DROP FUNCTION leader_election.$function; DROP FUNCTION leader_election.$function; $definition");
	return;
}

{
	$sql->query("CREATE DATABASE shapes");
	$node->safe_psql('shapes', 'CREATE EXTENSION leader_election');
	is((ask(connstr('shapes'), 'run', '-e', 'e', '--', 'true'))[0], 0, 'all is well');
	forge('shapes', 'acquire(text, text, integer, bigint, jsonb, text, integer, uuid)',
		'CREATE FUNCTION leader_election.acquire(text, text, integer, request uuid, run text, attempts integer, OUT term bigint) RETURNS SETOF bigint LANGUAGE sql AS $$SELECT 1::bigint$$');
	my ($code, undef, $err) = ask(connstr('shapes'), 'run', '-e', 'e', '--', 'true');
	is($code, 125, 'a grant row with too few columns');
	like($err, qr/column "remaining_ms" does not exist/, 'says so');
	forge('shapes', 'acquire(text, text, integer, uuid, text, integer)',
		'CREATE FUNCTION leader_election.acquire(text, text, integer, request uuid, run text, attempts integer, OUT term bigint, OUT remaining_ms bigint, OUT yielding boolean) RETURNS SETOF record LANGUAGE sql AS $$SELECT NULL::bigint, NULL::bigint, NULL::boolean$$')
	  if eval { $node->safe_psql('shapes', 'ALTER EXTENSION leader_election ADD FUNCTION leader_election.acquire(text, text, integer, uuid, text, integer)'); 1 };
	is((ask(connstr('shapes'), 'run', '-e', 'e', '--wait', '2s', '--', 'true'))[0], 122, 'a grant row of NULLs is none');
	forge('shapes', 'leader(text)', 'CREATE FUNCTION leader_election.leader(text) RETURNS SETOF text LANGUAGE sql AS $$SELECT 1::text WHERE false$$');
	($code, undef, $err) = ask(connstr('shapes'), 'run', '-e', 'e', '--', 'true');
	is($code, 125, 'an answer without a row');
	like($err, qr/answered with 0 rows instead of 1/, 'says so');
	forge('shapes', 'request_yield(text, text, boolean)',
		'CREATE FUNCTION leader_election.request_yield(text, text, boolean) RETURNS SETOF interval LANGUAGE sql AS $$SELECT interval \'1 s\' FROM generate_series(1, 2)$$');
	is((ask(connstr('shapes'), 'yield', '-e', 'e'))[0], 125, 'one with two');
}

# --- a pool that has reset the session

# Each of the next calls fails with LE006, as a server's does once.
foreach my $function (qw(join renew))
{
	my $db = "reset_$function";
	my $is_join = $function eq 'join';
	my $args = $is_join ?
	  'election text, candidate text, rank integer DEFAULT NULL, progress bigint DEFAULT NULL, metadata jsonb DEFAULT NULL, auto_renew boolean DEFAULT NULL' :
	  'election text, term bigint DEFAULT NULL, progress bigint DEFAULT NULL, metadata jsonb DEFAULT NULL';
	my $result = $is_join ? 'bigint' : 'SETOF leader_election.lease_grant';
	my $set = $is_join ? '' : 'QUERY SELECT * FROM';
	my $names = $is_join ? 'election, candidate, rank, progress, metadata, auto_renew' : 'election, term, progress, metadata';
	my $symbol = $is_join ? 'le_join' : 'le_renew';

	$sql->query("CREATE DATABASE $db");
	$node->safe_psql($db, qq(
		CREATE EXTENSION leader_election;
		CREATE TABLE resets (n integer);
		INSERT INTO resets VALUES (0);
		CREATE SEQUENCE calls;
		CREATE FUNCTION real_call($args) RETURNS $result LANGUAGE c AS '\$libdir/leader_election', '$symbol';
		CREATE OR REPLACE FUNCTION leader_election.$function($args) RETURNS $result LANGUAGE plpgsql AS \$\$
		BEGIN
			IF nextval('public.calls') <= (SELECT n FROM public.resets) THEN
				RAISE EXCEPTION 'this session was reset by a pool' USING ERRCODE = 'LE006';
			END IF;
			RETURN $set public.real_call($names);
		END \$\$));
	foreach my $n (0 .. 2)
	{
		$node->safe_psql($db, "UPDATE resets SET n = $n; SELECT setval('calls', 1, false)");
		my ($code, $out, $err) = ask(connstr($db), 'run', '-e', "e $n", '--mode', 'session', '--', 'echo', 'runs');
		is($code, $n < 2 ? 0 : 125, "$function(), reset $n times: exit code");
		is($out, $n < 2 ? "runs\n" : '', "$function(), reset $n times: the command");
		is(() = $err =~ /reset by a pool/g, $n, "$function(), reset $n times: says so");
	}
	next if $is_join;

	# While it leads
	$node->safe_psql($db, "SELECT setval('calls', 1, false); UPDATE resets SET n = 0");
	my $one = pg_leader(connstr($db), '-e', 'led', '--mode', 'session', '--grace', '100ms', '--', 'sleep', '600');
	wait_for($node, "SELECT leader_election.leader('led') IS NOT NULL", 't', undef, $db);
	$node->safe_psql($db, "UPDATE resets SET n = (SELECT last_value FROM calls) + 1");
	wait_until(sub { $one->output =~ /reset by a pool/ }, 'a call that fails');
	my $renewed = $node->safe_psql($db, 'SELECT clock_timestamp()');
	wait_for($node, "SELECT renewed_at > '$renewed' FROM leader_election.status WHERE election = 'led'", 't', undef, $db);
	ok(!$one->ended, 'a leader asks again, once, and leads on');
	$one->signal('TERM');
	is($one->exit_code, 143, 'to the end');
}

# --- notifications

# What is forged is not shown; what is so is, once, as the tables have it.
{
	my $watch = start_client(connstr('postgres'), 'watch', '--json', '-e', 'notified');
	my $text = start_client(connstr('postgres'), 'watch', '-e', 'notified');

	$sql->query("SELECT leader_election.create_election('notified', lease_duration => '30 s')");
	my $one = session($node, name => 'one');
	$one->query("SELECT leader_election.join('notified', 'one')");
	wait_for_output($watch, qr/"(elected|state)".*"one"/);
	wait_for_output($text, qr/"one" leads/);
	my $mallory = session($node, name => 'mallory', user => 'mallory');
	my $forged = '{"election":"notified","event":"yield_requested","term":1,"leader":"one","previous":"mallory","reason":"for fun","at":"1999-01-01T00:00:00+00:00"}';
	my $other = '{"election":"notified","event":"elected","term":2,"leader":"mallory","previous":"one","reason":"expired","at":"1999-01-01T00:00:00+00:00"}';

	$mallory->query("SELECT pg_notify('leadership_changed', '$_')") foreach $forged, $other, $forged . ' ', 'nonsense "yield_requested"';
	$sql->query("SELECT leader_election.request_yield('notified')");
	wait_for_output($_, qr/(yield_requested|asked to yield).*\n/) foreach $watch, $text;
	$mallory->query("SELECT pg_notify('leadership_changed', '$_')") foreach $forged, $other;
	$one->query("SELECT leader_election.leave('notified')");
	wait_for_output($_, qr/vaca(ted.*\n|nt, ".*\n)/) foreach $watch, $text;
	unlike(${ $_->[1] }, qr/mallory|for fun|1999/, 'nothing that was forged') foreach $watch, $text;
	my @events = map { decode_json($_) } split(/\n/, ${ $watch->[1] });
	is(join(' ', map { $_->{event} } grep { $_->{leader} || $_->{event} ne 'state' } @events) =~ s/^state/elected/r,
		'elected yield_requested vacated', 'each event once');
	is_deeply([ map { [ @$_{qw(previous reason)} ] } grep { $_->{event} ne 'state' } @events ],
		[ ($events[-3]{event} eq 'elected' ? [ undef, undef ] : ()), [ undef, undef ], [ 'one', 'left' ] ], 'as it was');
	$_->finish foreach $one, $mallory;
}

# A storm makes nobody call more often than once in 50 ms.
{
	my %apps = (leader => 'renew', waiter => 'acquire', watcher => 'leader_election.history', yielder => 'leader_election.status');
	my %runs;

	$sql->query("SELECT leader_election.create_election('storm', lease_duration => '60 s')");
	foreach my $app (qw(leader waiter))
	{
		local $ENV{PGAPPNAME} = $app;
		$runs{$app} = pg_leader($node, '-e', 'storm', '-n', $app, '--', 'sleep', '600');
		wait_until(sub { $sql->query("SELECT count(*) FROM leader_election.candidates WHERE election = 'storm' AND alive") eq scalar(keys %runs) }, $app);
	}
	local $ENV{PGAPPNAME} = 'watcher';
	my $watch = start_client(connstr('postgres'), 'watch');
	wait_for_output($watch, qr/storm/);
	my $mallory = session($node, name => 'mallory', user => 'mallory');
	my $from = -s $node->logfile;
	my $start = time;

	$mallory->query(q(DO $$ BEGIN FOR i IN 1 .. 500 LOOP
		PERFORM pg_notify('leadership_changed', '{"election":"storm","event":"yield_requested","n":' || i || '}');
		COMMIT; PERFORM pg_sleep(0.002); END LOOP; END $$));
	my $took = time - $start;
	my %calls = map { $_ => sent($from, $_, $apps{$_}) } qw(leader waiter watcher);
	note("500 notifications in $took s, calls: ", join(', ', map { "$_ $calls{$_}" } sort keys %calls));
	foreach my $app (sort keys %calls)
	{
		cmp_ok($calls{$app}, '<=', (time - $start) / 0.05 + 3, "$app: not more often than once in 50 ms");
		cmp_ok($calls{$app}, '>', 2, "$app: but it calls");
	}

	# Nor does who waits for the leader to go.
	$ENV{PGAPPNAME} = 'yielder';
	$runs{waiter}->signal('TERM');
	$runs{waiter}->exit_code;
	kill('STOP', $runs{leader}->pid, $runs{leader}->guardian);
	my $yield = start_client(connstr('postgres'), 'yield', '-e', 'storm');
	wait_for_output($yield, qr/asked to yield/);
	$from = -s $node->logfile;
	$start = time;
	$mallory->query(q(DO $$ BEGIN FOR i IN 1 .. 200 LOOP
		PERFORM pg_notify('leadership_changed', i::text); COMMIT; PERFORM pg_sleep(0.002); END LOOP; END $$));
	my $calls = sent($from, 'yielder', $apps{yielder});
	cmp_ok($calls, '<=', (time - $start) / 0.05 + 3, "yield: not more often than once in 50 ms: $calls");
	kill('KILL', $runs{leader}->pid, $runs{leader}->guardian);
	$mallory->finish;
}
delete $ENV{PGAPPNAME};

# --- names made to deceive

{
	local $ENV{LC_ALL} = 'C.UTF-8';
	my @hidden = map { chr } 0x85, 0x9B, 0xAD, 0x061C, 0x180E, 0x200B .. 0x200F, 0x2028 .. 0x202E, 0x2060 .. 0x2069, 0xFE0F, 0xFEFF, 0xE0001, 0xE0041;
	my $hidden = join('|', map { encode('UTF-8', $_) } @hidden);
	my $name = 'a' . join('', @hidden) . "\x{E9}\x{1F600}\x{301}z";
	my $bytes = encode('UTF-8', $name);
	my $escaped = 'a' . join('', map { sprintf('\\x%02X', ord) } split(//, encode('UTF-8', join('', @hidden)))) . encode('UTF-8', "\x{E9}\x{1F600}\x{301}z");
	my $watch = start_client(connstr('postgres'), 'watch', '-e', 'hidden');

	$sql->query("SELECT leader_election.create_election('hidden')");
	my $one = pg_leader($node, '-e', 'hidden', '-n', $bytes, '--grace', '100ms', '--', 'sleep', '600');
	leads('hidden');
	wait_for_output($watch, qr/leads/);
	my %shown = (
		watch => ${ $watch->[1] },
		status => (ask(connstr('postgres'), 'status', '-e', 'hidden'))[1],
		history => (ask(connstr('postgres'), 'history', '-e', 'hidden'))[1],
		run => (ask(connstr('postgres'), 'run', '-e', 'hidden', '-v', '--skip', '--', 'true'))[2],
		error => (ask(connstr('postgres'), 'run', '-e', 'hidden', '-n', $bytes, '--mode', 'session', '--wait', '2s', '--', 'true'))[2]);
	foreach my $what (sort keys %shown)
	{
		unlike($shown{$what}, qr/$hidden/, "$what: nothing that is not seen");
		like($shown{$what}, qr/\Q$escaped\E/, "$what: it is shown escaped, and the rest as it is");
	}
	foreach my $subcommand (qw(status history))
	{
		my $json = (ask(connstr('postgres'), $subcommand, '-e', 'hidden', '--json'))[1];

		unlike($json, qr/$hidden/, "$subcommand --json: nothing that is not seen");
		is(decode_json($json)->{leader}, $name, "$subcommand --json: the name all the same");
	}
	my $yield = (ask(connstr('postgres'), 'yield', '-e', 'hidden'))[1];
	unlike($yield, qr/$hidden/, 'yield: nothing that is not seen');
	$one->exit_code;

	# In an encoding with other controls than those of ASCII
	local $ENV{PGCLIENTENCODING} = 'LATIN1';
	is((ask(connstr('postgres'), 'run', '-e', 'latin', '-n', "a\x9Bz\xE9", '--', 'true'))[0], 0, 'LATIN1');
	like((ask(connstr('postgres'), 'history', '-e', 'latin'))[1], qr/\ta\\x9Bz\xE9\t/, 'LATIN1: nothing that is not seen');
	$ENV{PGCLIENTENCODING} = 'EUC_JP';
	is((ask(connstr('postgres'), 'run', '-e', 'japan', '-n', "\xC6\xFC", '--', 'true'))[0], 0, 'EUC_JP');
	like((ask(connstr('postgres'), 'history', '-e', 'japan'))[1], qr/\t\xC6\xFC\t/, 'EUC_JP: two bytes are one character');
}

# A name that the owner of a database gives to its time zone
{
	local $ENV{COLUMNS} = 100;
	my $drawn = '';

	$sql->query('CREATE DATABASE zone');
	$node->safe_psql('zone', qq(CREATE EXTENSION leader_election; ALTER DATABASE zone SET timezone = '<a\e[31m>3'; ALTER DATABASE zone SET datestyle = 'SQL'));
	is((ask(connstr('zone'), 'run', '-e', 'e', '--', 'true'))[0], 0, 'a time zone: it runs');
	IPC::Run::run([ 'pg_leader', 'history', '-d', connstr('zone'), '-e', 'e' ], '<', \undef, '>pty>', \$drawn);
	like($drawn, qr/r resigned/, 'a time zone: drawn');
	unlike($drawn, qr/\e/, 'a time zone: no control character');
}

# --- what it says

foreach my $case ([ '--hold', '3' ], [ '--wait', '3' ], [ '--grace', '0' ], [ '--wait', '1.5' ])
{
	my ($code, undef, $err) = ask(connstr('postgres'), 'run', '-e', 'units', @$case, '--', 'true');
	is($code, 125, "a duration without a unit: @$case");
	like($err, qr/invalid value "\Q$case->[1]\E" for option $case->[0]\n.*a number and one of/, 'says so');
}
is((ask(connstr('postgres'), 'run', '-e', 'units', '--hold', '0s', '--wait', '3 s', '--', 'true'))[0], 0, 'and with one');

my ($code, undef, $err) = ask(connstr('postgres'), 'run', '-e', "says\e", '-v', '--', 'true');
is($code, 0, '-v');
like($err, qr/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[-+]\d{4} pg_leader: election "says\\x1B": leading in term 1$/m, '-v: the time and the election');
($code, undef, $err) = ask(connstr('postgres'), 'run', '-e', 'units', '--grace', '1h', '--', 'true');
like($err, qr/^pg_leader: error: /, 'but not without it');

foreach my $subcommand (qw(run status watch history yield))
{
	like(`pg_leader $subcommand --help`, qr/can see a password in it \(ps\).*service file\. +Put a password there, or into the password file/s, "$subcommand --help: passwords");
}

$sql->finish;
done_testing();
