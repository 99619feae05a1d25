# Bad input: every function of the extension, with every value of a table at
# each of its arguments, in every state of a transaction and by every kind of
# role. What comes back is one of a few SQLSTATEs, never an internal error, and
# a message that is short and clean; no lock stays, no session ends, and others
# can lead afterwards.
#
# Functions and their arguments are found in the catalog: a new one is called
# like all the others, and one whose arguments have no values in BadInput.pm
# fails the test.
#
# From the environment: BAD_INPUT_SEED (1) and BAD_INPUT_CALLS (1500), of
# random values.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use BadInput;
use BadStates;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $SEED = $ENV{BAD_INPUT_SEED} // 1;
my $CALLS = $ENV{BAD_INPUT_CALLS} // 1500;

# More than a message with an election, two candidates and a hint
my $LONGEST_MESSAGE = 2000;

# Milliseconds: how long a call may take; and a procedure, which may wait for
# ever
my $LIMIT = 30000;
my $PATIENCE = 200;

srand($SEED);
note("BAD_INPUT_SEED=$SEED BAD_INPUT_CALLS=$CALLS");

my $node = new_server(
	streaming => 1,
	config => q(
leader_election.lease_duration = '1h'
log_error_verbosity = verbose
log_min_error_statement = panic
log_statement = none
max_prepared_transactions = 2
));
my $super = session($node, name => 'super');
my %STATES = states($super->query('SHOW server_version_num'));

my @functions = find_functions($super);
cmp_ok(scalar @functions, '>', 25, 'functions');
is_deeply([ map { $_->{name} } grep { !$_->{kind} } @functions ],
	[], 'each is of some kind');
is_deeply(
	[
		map { $_->{name} } grep { !$_->{values} || !defined $_->{good} }
		map { @{ $_->{args} } } @functions
	],
	[],
	'each argument has values');
is_deeply([ map { $_->{name} } grep { @{ ($_->{values} // [ [] ])->[0] } < 3 } map { @{ $_->{args} } } @functions ],
	[], 'of which some are bad');
is_deeply([ unused_entries() ], [], 'and there are values for no others');

# What could be called, or take a value, other than functions
is(join(' ', sort $super->query(
		q{SELECT DISTINCT coalesce(relkind::text || ' ', '') || classid::regclass::text
			FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
				 LEFT JOIN pg_class c ON c.oid = d.objid AND d.classid = 'pg_class'::regclass
		   WHERE d.deptype = 'e' AND e.extname = 'leader_election'})),
	'pg_namespace pg_proc pg_type r pg_class v pg_class',
	'the extension has only a schema, functions, types, tables and views');

#
# The server's side: what the calls are made on, and ways to make them.
#

$super->query(
	q{CREATE ROLE le_group;
	CREATE ROLE le_app LOGIN;
	CREATE ROLE le_reader LOGIN;
	CREATE ROLE le_none LOGIN;
	CREATE ROLE le_noinherit LOGIN NOINHERIT IN ROLE le_group;
	GRANT USAGE ON SCHEMA leader_election TO le_app, le_reader, le_group;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO le_app, le_group;

	CREATE SCHEMA made;
	GRANT CREATE, USAGE ON SCHEMA made TO PUBLIC;

	-- What this process has locked: sessions, and anything else
	CREATE FUNCTION locks() RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
		RETURN (
			SELECT count(*) FILTER (WHERE own) || ' ' || count(*) FILTER (WHERE NOT own)
			  FROM (SELECT locktype = 'advisory' AND objsubid = 20 AS own
					  FROM pg_locks
					 WHERE pid = pg_backend_pid() AND locktype <> 'virtualxid' AND
						   relation IS DISTINCT FROM 'pg_locks'::regclass) l);
	END
	$$;

	CREATE FUNCTION term_of(e text) RETURNS bigint SECURITY DEFINER
	LANGUAGE sql STABLE AS
		'SELECT term FROM leader_election.lease WHERE election = e';

	CREATE TABLE big AS
		SELECT jsonb_agg(md5(i::text)) AS metadata FROM generate_series(1, 30000) i;
	GRANT SELECT ON big TO PUBLIC;
	CREATE FUNCTION megabyte() RETURNS jsonb LANGUAGE sql STABLE AS
		'SELECT metadata FROM public.big';

	-- Makes an election like new.
	CREATE FUNCTION remake(e text) RETURNS void SECURITY DEFINER
	LANGUAGE plpgsql AS $$
	BEGIN
		UPDATE leader_election.lease SET leader = NULL, session_id = NULL,
			successor = NULL, successor_role = NULL, reserved_mono = NULL,
			reserved_for = NULL, not_before_at = NULL, not_before_mono = NULL,
			not_before_for = NULL, held = NULL
		 WHERE election = e;
		PERFORM leader_election.resume_all();
		DELETE FROM leader_election.drain;
		DELETE FROM leader_election.candidate WHERE election = e;
		PERFORM leader_election.drop_election(election)
		   FROM leader_election.election WHERE election = e;
		IF e <> 'new' THEN
			PERFORM leader_election.create_election(e);
		END IF;
	END
	$$;

	-- Leaves one group, as it was made.
	CREATE FUNCTION remake_groups() RETURNS void SECURITY DEFINER
	LANGUAGE plpgsql AS $$
	BEGIN
		IF (SELECT count(*) FROM leader_election.lease
			 WHERE election IN ('crew/1', 'crew/2') AND leader IS NULL) = 2
			AND (SELECT array_agg(group_name::text)
				   FROM leader_election.election_group) = '{crew}'
		THEN
			RETURN;
		END IF;
		UPDATE leader_election.lease SET leader = NULL, session_id = NULL,
			successor = NULL, successor_role = NULL, reserved_mono = NULL,
			reserved_for = NULL
		 WHERE election ~ '/[0-9]+$';
		DELETE FROM leader_election.candidate WHERE election ~ '/[0-9]+$';
		PERFORM leader_election.drop_group(group_name)
		   FROM leader_election.election_group;
		PERFORM leader_election.create_group('crew', 2);
	END
	$$;
	SELECT remake_groups();

	-- This session leads an election, a detached candidate another, and both
	-- have somebody to hand it to.
	CREATE PROCEDURE fixture(INOUT locks text) LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM leader_election.create_election('spare')
		  WHERE NOT EXISTS (SELECT FROM leader_election.election WHERE election = 'spare');
		PERFORM remake_groups();
		PERFORM remake('new')
		  WHERE EXISTS (SELECT FROM leader_election.election WHERE election = 'new');
		IF NOT leader_election.is_leader('mine') THEN
			PERFORM remake('mine');
			COMMIT;
			WHILE leader_election.join('mine', 'me') IS NULL LOOP
				COMMIT;
			END LOOP;
			COMMIT;
			PERFORM leader_election.acquire('mine', 'heir');
		END IF;
		IF NOT leader_election.is_leader('detached', term_of('detached')) THEN
			PERFORM remake('detached');
			COMMIT;
			PERFORM leader_election.acquire('detached', 'd');
			COMMIT;
			PERFORM leader_election.acquire('detached', 'heir');
		END IF;
		COMMIT;
		locks := locks();
	END
	$$;

	CREATE FUNCTION run(statement text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		EXECUTE statement;
	END
	$$;

	CREATE FUNCTION run_as_app(statement text) RETURNS void SECURITY DEFINER
	LANGUAGE plpgsql AS $$
	BEGIN
		EXECUTE statement;
	END
	$$;
	ALTER FUNCTION run_as_app OWNER TO le_app;

	CREATE FUNCTION run_caught(statement text) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
		EXECUTE statement;
		RETURN '00000';
	EXCEPTION WHEN others THEN
		RETURN sqlstate;
	END
	$$;

	-- It says what is not true.
	CREATE FUNCTION run_parallel(statement text) RETURNS boolean
	LANGUAGE plpgsql PARALLEL SAFE AS $$
	BEGIN
		EXECUTE statement;
		RETURN true;
	END
	$$;
	CREATE TABLE numbers AS SELECT n FROM generate_series(1, 10) n;
	ALTER TABLE numbers SET (parallel_workers = 1);

	CREATE FUNCTION run_row() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		EXECUTE NEW.statement;
		RETURN NULL;
	END
	$$;
	CREATE TABLE made.at_once (statement text);
	CREATE TRIGGER run AFTER INSERT ON made.at_once
		FOR EACH ROW EXECUTE FUNCTION run_row();
	CREATE TABLE made.deferred (statement text);
	CREATE CONSTRAINT TRIGGER run AFTER INSERT ON made.deferred
		DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION run_row()});
is($super->sqlstate, '00000', 'set up');

# Others lead, and go on leading.
my $other = session($node, name => 'other');
$other->query("SELECT leader_election.join('theirs', 'other')");
$super->query("SELECT leader_election.create_election('vacant')");

#
# Makes calls in one session, and checks each. A role may be given as
#
#	user	whom to connect as
#	become	statements with which to become somebody else
#	may		the functions that it may call
#	errors	what else it comes to
#	stands	whether it can stand in elections, so that there are some for it
#
my $made = 0;

# What they came to: SQLSTATEs by function; and the values of each argument
my (%codes, %tried);

sub script_of
{
	my ($n, $call, $state, $role) = @_;
	my $limit = $call->{may_wait} ? $PATIENCE : $LIMIT;
	my $statement = statement_of($state, $call);
	my $script = $role->{stands} && !$state->{bare}
	  ? "CALL fixture(NULL)\\gset before_\n" : "SELECT locks()\\gset before_\n";

	$script .= "SET statement_timeout = $limit;\n";
	$script .= "$state->{before};\n" if $state->{before};
	$script .= "\\warn \@$n\n\\set code 00000\n$statement";
	$script .= "\n;" unless $statement =~ /\\gset$/;
	$script .= "\n\\if :ERROR\n\\set code :SQLSTATE\n";
	$script .= "\\else\n$state->{then};\n\\set code :SQLSTATE\n" if $state->{then};
	$script .= "\\endif\n\\warn =:code\n";
	$script .= "$state->{after};\n" if $state->{after};
	return "$script\nSELECT locks()\\gset\n\\warn \@ :before_locks, :locks\n";
}

# What is wrong with the answer to a call
sub wrongs_of
{
	my ($code, $text, $later, $before, $locks, @expected) = @_;
	my @wrong;

	push @wrong, "SQLSTATE, not " . join(' ', @expected)
	  unless grep { $_ eq $code } @expected;
	push @wrong, 'length of the message' if length $text > $LONGEST_MESSAGE;
	push @wrong, 'warning' if $text =~ /^psql:\S+ WARNING:  (?!53400)/m;
	$later =~ s/^psql:\S+ WARNING:  25P01: .*\n(LOCATION.*\n)?//mg;
	push @wrong, 'what follows' if $later ne '';
	push @wrong, 'locks' if $locks !~ / 0$/;
	push @wrong, 'sessions'
	  if $code ne '00000' && (split / /, $locks)[0] > (split / /, $before)[0];
	return @wrong;
}

sub run_calls
{
	my ($what, $state, $role, @calls) = @_;
	my $server = $state->{server} // $node;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/calls';
	my $conn = $server->connstr($state->{dbname} // 'postgres') . " user='$role->{user}' "
	  . ($state->{connection} // '');
	my @bad;

	@calls = grep { !$_->{f}{is_procedure} } @calls
	  if $state->{statement} && !$state->{text};
	open my $script, '>:raw', $file or die "$file: $!";
	print $script "\\set VERBOSITY verbose\n\\o /dev/null\n",
	  "SET client_min_messages = warning;\n",
	  ($role->{become} // '') . "\n",
	  "SELECT pg_backend_pid() AS pid\\gset\n",
	  map({ script_of($_, $calls[$_], $state, $role) } 0 .. $#calls),
	  "SELECT pg_backend_pid() = :pid AS same\\gset\n\\warn same :same\n";
	close $script;

	my $status = system("psql -Xq -f '$file' -d \"$conn\" >/dev/null 2>'$file.errors'");
	my $out = slurp_file("$file.errors");

	push @bad, "the session ended, $status: " . substr($out, -1000)
	  if $status != 0 || $out !~ /^same t$/m;
	my (undef, %answers) = split /^\@(\d+)\n/m, $out;
	foreach my $n (0 .. $#calls)
	{
		my ($text, $code, $later, $before, $locks) = ($answers{$n} // '') =~
		  /\A(.*?)^=(\w*)\n(.*?)^\@ (\d+ \d+), (\d+ \d+)$/ms
		  or push(@bad, "$calls[$n]{text}: no answer: " . substr($answers{$n} // '', 0, 1000)), next;
		my @wrong = wrongs_of($code, $text, $later, $before, $locks,
			expected($calls[$n], $state, $role));
		my ($f, $values) = @{ $calls[$n] }{qw(f values)};

		$codes{ $f->{oid} }{$code}++;
		$tried{ $f->{oid} }[$_]{ $values->[$_] } = 1 foreach 0 .. $#$values;

		push @bad, join(', ', @wrong) . ": $calls[$n]{text}: $code, locks $before to $locks\n"
		  . substr($text, 0, 1000) . substr($later, 0, 1000)
		  if @wrong;
	}
	$made += @calls;

	# Nothing of it is left to the next run.
	$super->query(
		q{SELECT remake_groups();
		SELECT remake(election) FROM leader_election.election
		   WHERE election NOT IN ('theirs', 'vacant') AND group_name IS NULL;
		SELECT leader_election.drop_election(election) FROM leader_election.election
		 WHERE election NOT IN ('theirs', 'vacant') AND group_name IS NULL})
	  unless $state->{bare};
	ok(@bad == 0, "$what, $role->{user}: " . @calls . ' calls')
	  or diag(scalar @bad, " wrong, among them:\n",
		join("\n", @bad[ 0 .. ($#bad > 9 ? 9 : $#bad) ]));
	return;
}

# The functions that a role may call
sub may_call
{
	my ($role) = @_;

	return {
		map { $_ => 1 } $super->query(
			"SELECT oid FROM pg_proc
			  WHERE pronamespace = 'leader_election'::regnamespace
				AND has_schema_privilege('$role', pronamespace, 'USAGE')
				AND has_function_privilege('$role', oid, 'EXECUTE')") };
}

my $user = $super->query('SELECT current_user');
my %ROLES = (
	super => { user => $user, stands => 1, may => may_call($user) },
	app => { user => 'le_app', stands => 1, may => may_call('le_app'), errors => ['42501'] },
	reader => { user => 'le_reader', may => may_call('le_reader'), errors => ['42501'] },
	none => { user => 'le_none', may => {} },
	noinherit => { user => 'le_noinherit', may => {} },
	member => {
		user => 'le_noinherit',
		become => 'SET ROLE le_group;',
		stands => 1,
		may => may_call('le_group'),
		errors => ['42501'] },
);

#
# All values, in a transaction of their own
#

my @few = single_calls(\&few);
my @good = single_calls(sub { () });

run_calls('every value', {}, $ROLES{super}, single_calls(\&all));
run_calls('every two of a few values', {}, $ROLES{super}, pair_calls(\&few));
run_calls("random values (BAD_INPUT_SEED=$SEED)",
	{}, $ROLES{super}, random_calls($CALLS));

#
# Every state, and every kind of role
#

run_calls($_, $STATES{$_}, $ROLES{super}, $STATES{$_}{slow} ? @good : @few)
  foreach sort keys %STATES;
run_calls("as $_", {}, $ROLES{$_}, @few)
  foreach qw(app reader none noinherit member);
run_calls(
	'security definer',
	{ @ATOMIC, statement => 'SELECT run_as_app(%s)' },
	{ user => 'le_none', may => may_call('le_app'), errors => ['42501'] },
	@few);

# A role that is gone has no name to stand under.
$super->query(
	q{CREATE ROLE le_gone;
	GRANT USAGE ON SCHEMA leader_election TO PUBLIC;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO PUBLIC});
run_calls(
	'a role that was dropped',
	{},
	{
		user => $user,
		become => "SET ROLE le_gone;\n\\! psql -Xq -c 'DROP ROLE le_gone' -d '"
		  . $node->connstr('postgres') =~ s/'//gr . "'\n",
		may => may_call('le_none'),
		errors => [ '42501', '42704' ] },
	@few);
$super->query('REVOKE ALL ON SCHEMA leader_election FROM PUBLIC');

# A role that may read a view or a table can.
foreach my $relation (
	$super->query(
		q{SELECT oid::regclass FROM pg_class
		   WHERE relnamespace = 'leader_election'::regnamespace AND relkind IN ('r', 'v')}))
{
	foreach my $role (qw(super app reader none))
	{
		my $name = $ROLES{$role}{user};
		my $may = $super->query(
			"SELECT has_schema_privilege('$name', 'leader_election', 'USAGE')
				AND has_table_privilege('$name', '$relation', 'SELECT')");

		is( $super->sqlstate_of("SET ROLE $name; SELECT * FROM $relation"),
			$may eq 't' ? '00000' : '42501',
			"$role reads $relation: $may");
		$super->query('RESET ROLE');
	}
}

#
# Where a table is locked, calls say so, and repeat no long name.
#

$super->query($_) for 'BEGIN', 'LOCK TABLE leader_election.lease';
run_calls(
	'locked table',
	{
		bare => 1,
		before => "SET lock_timeout = '1 ms'",
		after => 'RESET lock_timeout',
		also => [qw(55P03 LE001)] },
	$ROLES{super},
	single_calls(sub { grep { /^NULL$|repeat/ } all($_[0]) }));
$super->query('ROLLBACK');

#
# On a standby
#

my $standby = PostgreSQL::Test::Cluster->new('standby');
$node->backup('backup');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
run_calls(
	'standby',
	{
		server => $standby,
		bare => 1,
		errors => { changes => ['25006'], defines => ['25006'] } },
	$ROLES{super},
	@few);
$standby->stop;

#
# In a server without other processes, and in one without room for a worker
#

$_->finish for $super, $other;
$node->stop;
SKIP: {
	skip 'only pg_ctl loads a sanitizer', 3 if ($ENV{ASAN_OPTIONS} // '') =~ /log_path/;

	my $file = PostgreSQL::Test::Utils::tempdir() . '/single';
	open my $script, '>:raw', $file or die "$file: $!";
	print $script map({ statement_of({}, $_) . "\n" } grep { $_->{f}{name} ne 'request_yield' } @few),
	  "SELECT 'the end' AS reached\n";
	close $script;
	my ($output, $errors);
	ok( IPC::Run::run(
			[ 'postgres', '--single', '-D', $node->data_dir, '-c', 'statement_timeout=100', 'postgres' ],
			'<' => $file,
			'>' => \$output,
			'2>' => \$errors),
		'single-user mode');
	like($output, qr/reached = "the end"/, 'to the end');
	is_deeply(
		[
			grep { !/ERROR:  (22023|42704|42710|55006|57014|LE00\d): / }
			  $errors =~ /^(.*(?:ERROR|FATAL|PANIC|TRAP): .*)/mg
		],
		[],
		'with no other errors than elsewhere');
}

$node->append_conf('postgresql.conf', "max_worker_processes = 1\n");
$node->start;
run_calls('no worker', { no_worker => 1 }, $ROLES{super}, @good);

#
# All is well with the others, and with the log.
#

$super = session($node, name => 'super');
$other = session($node, name => 'other');
is($other->query("SELECT leader_election.create_election('after')"),
	'', 'an election is made');
like($other->query("SELECT leader_election.join('after', 'other')"),
	qr/^\d+$/, 'and led');
is($super->query("SELECT leader_election.leader('after')"), 'other', 'as others see');
is($other->query("SELECT leader_election.resign('after')"), 't', 'and given up');
like($super->query("SELECT term FROM leader_election.acquire('after', 'd')"),
	qr/^\d+$/, 'and led by somebody else');

my $log = slurp_file($node->logfile);
my ($longest) = sort { $b <=> $a } map { length } split /\n/, $log;
cmp_ok($longest, '<', $LONGEST_MESSAGE, 'no line of the log is longer than a message');
is_deeply([ $log =~ /^(.* XX\d\d\d: .*|.*(?:PANIC|TRAP): .*|.*leak.*)/mg ],
	[], 'nothing worse in it');
note("$made calls");

#
# No function was left out: each was called with each value of each argument, and
# did something with good ones, so that bad ones were what it refused.
#

is_deeply([ map { $_->{name} } grep { !$codes{ $_->{oid} } } @functions ],
	[], 'each function was called');
is_deeply([ map { $_->{name} } grep { !$codes{ $_->{oid} }{'00000'} } @functions ],
	[], 'each succeeded with something');
foreach my $f (@functions)
{
	my $args = $f->{args};

	is_deeply(
		[
			map {
				my $n = $_;
				map { "$args->[$n]{name}: $_" } grep { !$tried{ $f->{oid} }[$n]{$_} } all($args->[$n]);
			} 0 .. $#$args
		],
		[], "$f->{name}: all values were tried");
}

done_testing();
