# pg_leader in a database whose owner sets traps: functions, operators, types,
# casts and relations in schema public, which a search_path names before
# pg_catalog. A superuser's pg_leader that found any of them would run it.
#
# The statements are taken from the server's log, of all subcommands with all of
# their options, so that a statement that is added later is held to the same:
# nothing in it is looked up by search_path, and there are traps for all names
# in it. What pg_leader could send and did not is a failure, too.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use IPC::Run;
use LeaderElection;
use MachineTime;
use PgLeader;
use PostgreSQL::Test::Utils;
use Test::More;

# In seconds; a slow machine takes longer for what is done within a lease.
my $LEASE = 3 * slowness();
my $node = new_server(
	config => qq(
leader_election.lease_duration = '${LEASE}s'
client_min_messages = warning
log_statement = all
log_line_prefix = '%m [%p] %a '
));
my $dir = PostgreSQL::Test::Utils::tempdir();
my %SCHEMAS = map { $_ => 1 } qw(pg_catalog leader_election);

# --- everything that pg_leader can do

my @used;                       # what it was called with

sub connect_to
{
	my ($db, $name) = @_;

	return session($node, name => $name, dbname => $db, options => '-c search_path=pg_catalog');
}

# Runs a subcommand to its end: its exit code.
sub code
{
	my ($db, @args) = @_;
	my ($out, $err) = ('', '');

	local $ENV{PGAPPNAME} = 'pg_leader';

	push @used, "@args";
	splice @args, 1, 0, '--dbname', $node->connstr($db);
	IPC::Run::run([ 'pg_leader', @args ], '<', \undef, '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	note("@args: $err") if $err;
	return $? >> 8;
}

# Starts one: see start_client.
sub start
{
	my ($db, @args) = @_;

	local $ENV{PGAPPNAME} = 'pg_leader';

	push @used, "@args";
	return start_client($node->connstr($db), @args);
}

sub end
{
	my ($one) = @_;

	$one->[0]->signal('TERM');
	$one->[0]->finish;
	return;
}

# What watch asks where it draws.
sub watch_on_terminal
{
	my ($db) = @_;
	my $out = '';

	local $ENV{PGAPPNAME} = 'pg_leader';
	local $ENV{TERM} = 'xterm';

	my $run = IPC::Run::start([ 'pg_leader', 'watch', '-d', $node->connstr($db) ], '<' => \undef, '>pty>' => \$out);
	wait_until(sub { $run->pump_nb; $out =~ /Remaining/ }, sub { "a screen: $out" });
	$run->signal('TERM');
	$run->finish;
	return;
}

# Runs all subcommands in a database.
sub exercise
{
	my ($db) = @_;
	my $one = connect_to($db, 'one');
	my $two = connect_to($db, 'two');
	my $is = sub {
		my ($expected, @args) = @_;

		is(code($db, @args), $expected, "$db: @args");
	};

	$one->query("SELECT leader_election.create_election('led', lease_duration => '30 s')");
	$one->query("SELECT leader_election.create_election('quorum', quorum => 2)");
	$one->query("SELECT leader_election.join('led', 'one')");
	$two->query("SELECT leader_election.join('led', 'two')");

	# It has to connect within that.
	my $wait = slowness() . 's';

	foreach my $mode (qw(detached session))
	{
		my @run = ('run', '--mode', $mode, '--election');

		# It renews; it is made before there is an election.
		my $renewed = "$dir/renewed";
		my $new = start($db, @run, "new $mode", qw(--candidate me --rank 3 --hold 100ms --grace 100ms --once --verbose -- sh -c),
			"until rm $renewed; do sleep 0.1; done 2>/dev/null; exit 3");
		wait_until(sub { $one->query("SELECT renewed_at OPERATOR(pg_catalog.>) since FROM leader_election.status
			WHERE election OPERATOR(pg_catalog.=) 'new $mode'") eq 't' }, 'a renewal');
		append_to_file($renewed, '');
		$new->[0]->finish;
		is($new->[0]->full_result >> 8, 3, "$db: new $mode");
		$is->(122, @run, 'led', '--wait', $wait, qw(--verbose -- true));
		$is->(122, @run, 'led', '--wait', $wait, qw(--check false --check-every 1s --check-timeout 1s --check-failures 2 -- true));
		$is->(0, @run, 'led', qw(--skip -- true));
		$is->(122, @run, 'quorum', qw(--skip -- true));
		my $forever = start($db, @run, "forever $mode", qw(--forever -- echo runs));
		wait_for_output($forever, qr/runs\nruns/);
		end($forever);
	}

	$is->(0, qw(run --mode session --pooler session --refusal-timeout 1h --election pooled -- true));
	my $every = start($db, qw(run --election periods --every 366d --offset 1h --attempts 2 --verbose -- true));
	wait_for_output($every, qr/run \S+ is done/);
	end($every);

	$one->query("SELECT leader_election.create_group('crew', 2, max_per_candidate => 2)");
	my $seat = start($db, qw(run --group crew --candidate me --check true -- sleep 600));
	wait_until(sub { $one->query("SELECT leader_election.leader('crew/1') OPERATOR(pg_catalog.=) 'me'") eq 't' }, 'a seat');
	end($seat);
	$one->query("SELECT leader_election.create_group('full', 1)");
	$one->query("SELECT leader_election.join_group('full', 'one')");
	$is->(122, 'run', '--group', 'full', '--wait', $wait, qw(--verbose -- true));
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $sidecar = start($db, 'stand', qw(--election served --candidate me --rank 1 --grace 100ms --refusal-timeout 1h --verbose --http), $port);
	wait_until(sub { $one->query("SELECT leader_election.leader('served') OPERATOR(pg_catalog.=) 'me'") eq 't' }, 'a sidecar');
	end($sidecar);

	# One that stands, and asks why it is not elected.
	my $stands = start($db, 'stand', qw(--election quorum --candidate me --http), $port);
	wait_until(sub { $one->query("SELECT pg_catalog.count(*) OPERATOR(pg_catalog.>) 0
		FROM pg_catalog.pg_stat_activity WHERE query OPERATOR(pg_catalog.~~) 'SELECT CASE%drained%'") eq 't' }, 'a question of a sidecar');
	end($stands);
	foreach my $how ([], ['--json'])
	{
		$is->(0, 'status', @$how);
		$is->(0, 'status', '--election', 'led', @$how);
		$is->(1, 'status', '--election', 'quorum', @$how);
		$is->(1, 'status', '--election', 'led', '--candidate', 'nobody of this name', @$how);
		$is->(0, 'history', '--election', 'led', @$how);
	}
	$is->(0, qw(status --all));
	$is->(2, qw(diagnose --all));
	$is->(0, qw(diagnose --election led --json));
	$is->(125, qw(status --election none));
	$is->(0, qw(history --election led --since 2020-01-01));
	$is->(0, qw(history --election led --since 1h));
	$is->(0, qw(history --html -));

	my @watches = (
		start($db, 'watch'),
		start($db, qw(watch --json)),
		start($db, qw(watch --election led)),
		start($db, qw(watch --election led --exec true)));
	wait_for_output($_, qr/led.*\n/) foreach @watches;
	watch_on_terminal($db);
	$two->query("SELECT leader_election.request_yield('led')");
	wait_for_output($_, qr/(yield_requested|asked to yield).*\n/) foreach @watches;
	$two->query("SELECT leader_election.leave('led')");
	$one->query("SELECT leader_election.leave('led')");
	wait_for_output($_, qr/led(: vacant|.*"vacated")/) foreach @watches;

	$is->(0, qw(yield --election led));
	$one->query("SELECT leader_election.create_election('yields', lease_duration => '30 s')");
	my $leads = start($db, qw(run --election yields --candidate first -- sleep 600));
	wait_until(sub { $one->query("SELECT leader_election.leader('yields') OPERATOR(pg_catalog.=) 'first'") eq 't' }, 'a leader');
	$two->query("SELECT leader_election.join('yields', 'two')");
	$is->(0, qw(yield --election yields --to two));
	$leads->[0]->finish;
	$one->query("SELECT leader_election.join('yields', 'one')");
	$is->(0, qw(yield --election yields --terminate));
	end($_) foreach @watches;
	$one->finish;
	return;
}

# --- what it has sent

# The statements of pg_leader in the server's log from there on.
sub statements
{
	my ($from) = @_;
	my $log = slurp_file($node->logfile, $from);
	my %statements;

	$statements{$1} = 1
	  while $log =~ /^\S+ \S+ \S+ \[\d+\] pg_leader LOG:  (?:execute [^:]*|statement): (.*)$/mg;
	return sort keys %statements;
}

# Everything in the program that looks like a statement, as a regular expression.
sub statements_in_program
{
	my ($program) = grep { -x } map { "$_/pg_leader" } split(/:/, $ENV{PATH});
	my @found;

	foreach my $text (split(/[^\x20-\x7E]+/, slurp_file($program)))
	{
		next unless $text =~ /^\s*(SELECT|WITH|VALUES|TABLE|CALL|LISTEN|UNLISTEN|NOTIFY|SET|RESET|SHOW|BEGIN|COMMIT|DO|INSERT|UPDATE|DELETE|DECLARE|FETCH|PREPARE|EXECUTE|DISCARD) /;
		push @found, join('.*', map { quotemeta } split(/%\w+/, $text, -1));
	}
	return @found;
}

# A statement as a list of [kind, text].
sub tokens
{
	my ($sql) = @_;
	my @tokens;

	while ($sql =~ /\G\s*
		(?: (?<string>'(?:[^']|'')*') | "(?<name>(?:[^"]|"")*)" | (?<param>\$\d+) | (?<number>\d[\d.]*)
		| (?<word>[A-Za-z_][\w\$]*) | (?<sign>::|=>|[()\[\],;.]) | (?<operator>[-+*\/<>=~!@#%^&|`?:]+) | (?<odd>\S) )/gcx)
	{
		my ($kind) = keys %+;

		push @tokens, [ $kind, $kind eq 'word' ? lc $+{$kind} : $+{$kind} ];
	}
	return @tokens;
}

sub text_of
{
	my @tokens = @_;

	return join(' ', map { $_->[0] eq 'name' ? qq("$_->[1]") : $_->[1] } @tokens);
}

# Keywords that look nothing up; there are others in expressions that do: IN,
# BETWEEN, LIKE, USING, COLLATE ... And those of them that may be before "(".
my %HARMLESS = map { $_ => 1 } qw(
  all and any as asc by case coalesce desc distinct else end exists false from
  full group having in_from is join left limit listen not null on operator or
  order over partition rows select then true union when where window with);
my %BEFORE_PARENTHESIS = map { $_ => 1 } qw(
  and any as coalesce distinct else exists from join not on operator or over
  select then union when where);
my %ENDS_FROM = map { $_ => 1 } qw(where group having order window union limit select);
my %keywords = map { $_ => 1 }
  split(/\n/, $node->safe_psql('postgres', "SELECT word FROM pg_get_keywords() WHERE catcode <> 'U'"));

# What of a statement is looked up by search_path, or may be, for all that this
# test knows.
sub lookups
{
	my ($sql) = @_;
	my @t = tokens($sql);
	my @in_from = (0);
	my @defines = (0);          # names and types of columns: AS x (y type, ...)
	my (%ctes, @found);
	my $is = sub { my ($i, $text) = @_; return $i >= 0 && $i < @t && $t[$i][0] =~ /^(word|sign)$/ && $t[$i][1] eq $text; };
	my $is_schema = sub { my ($i) = @_; return $i >= 0 && $i < @t && $SCHEMAS{ $t[$i][1] } && $is->($i + 1, '.'); };

	foreach my $i (0 .. $#t)
	{
		$ctes{ $t[$i][1] } = 1 if $i > 0 && $is->($i + 1, 'as') && $is->($i + 2, '(') && ($is->($i - 1, 'with') || $is->($i - 1, ','));
	}
	foreach my $i (0 .. $#t)
	{
		my ($kind, $text) = @{ $t[$i] };
		my $is_word = $kind eq 'word' || $kind eq 'name';
		my $wrong = sub { push @found, "$_[0]: " . text_of(@t[ ($i < 3 ? 0 : $i - 3) .. ($i + 3 > $#t ? $#t : $i + 3) ]); };
		my $relation = sub {
			my $next = $t[ $i + 1 ];
			$wrong->('relation') unless $next && ($next->[1] eq '(' || $is_schema->($i + 1)
				|| $ctes{ $next->[1] } || ($is->($i + 1, 'rows') && $is->($i + 2, 'from')));
		};

		if ($kind eq 'string')
		{
			$wrong->('type of a constant')
			  if $i > 0 && ($t[ $i - 1 ][0] eq 'name' || ($t[ $i - 1 ][0] eq 'word' && !$HARMLESS{ $t[ $i - 1 ][1] }));
			$wrong->('name in a string')
			  if $is->($i + 1, '::') && $t[ $i + 4 ] && $t[ $i + 4 ][1] =~ /^reg/ && $text !~ /^'(pg_catalog|leader_election)\.\w+'$/;
		}
		elsif ($kind eq 'operator')
		{
			$wrong->('operator')
			  unless $i > 3 && $is->($i - 4, 'operator') && $is->($i - 3, '(') && $is_schema->($i - 2) && $is->($i + 1, ')');
		}
		elsif ($kind eq 'odd' || $text eq '[')
		{
			$wrong->('syntax');
		}
		elsif ($text eq '::')
		{
			$wrong->('type') unless $is_schema->($i + 1);
		}
		elsif ($kind eq 'sign')
		{
			push @in_from, 0 if $text eq '(';
			push @defines, $is->($i - 2, 'as') && $t[ $i - 1 ][0] eq 'word' if $text eq '(';
			if ($text eq ')') { pop @in_from; pop @defines; }
			$relation->() if $text eq ',' && $in_from[-1];
		}
		elsif ($is_word && !($i > 0 && $is->($i - 1, '.')))
		{
			my $harmless = $kind eq 'word' && $HARMLESS{$text};

			$wrong->('type of a column') if $defines[-1] && $t[ $i - 1 ][0] eq 'word' && !$is_schema->($i);
			$wrong->('column, or a call of its name') if $is->($i + 1, '.') && !$is_schema->($i);
			$wrong->('function')
			  if $is->($i + 1, '(') && !$is->($i - 1, 'as')
			  && !($harmless && $BEFORE_PARENTHESIS{$text} && ($text ne 'join' || $is->($i + 2, 'select')));
			next unless $kind eq 'word';
			$wrong->('keyword') if ($keywords{$text} && !$harmless) || $text =~ /^(at|escape|uescape)$/;
			$wrong->('CASE') if $text eq 'case' && !$is->($i + 1, 'when');
			$wrong->('DISTINCT') if $text eq 'distinct' && !$is->($i - 1, 'select') && !$is->($i - 1, '(');
			$wrong->('ANY') if $text eq 'any' && !($is->($i - 1, ')') && $is->($i - 6, 'operator'));
			$wrong->('ALL') if $text eq 'all' && !$is->($i - 1, 'union');
			$in_from[-1] = 1 if $text eq 'from';
			$in_from[-1] = 0 if $ENDS_FROM{$text};
			$relation->() if ($text eq 'from' && !$is->($i - 1, 'rows')) || $text eq 'join';
		}
	}
	return @found;
}

# All versions of a statement with one qualification less.
sub mutants
{
	my ($sql) = @_;
	my @t = tokens($sql);
	my @mutants;

	foreach my $i (0 .. $#t)
	{
		my ($kind, $text) = @{ $t[$i] };
		my @copy = map { [@$_] } @t;

		if ($kind eq 'word' && $text eq 'operator')
		{
			splice @copy, $i, 6, $copy[ $i + 4 ];
		}
		elsif ($kind eq 'word' && $SCHEMAS{$text} && $t[ $i + 1 ][1] eq '.' && $t[ $i + 2 ][0] ne 'operator')
		{
			splice @copy, $i, 2;
		}
		elsif ($kind eq 'string' && $i + 4 <= $#t && $t[ $i + 1 ][1] eq '::' && $t[ $i + 4 ][1] =~ /^reg/)
		{
			$copy[$i][1] =~ s/\w+\.//;
		}
		else
		{
			next;
		}
		push @mutants, text_of(@copy);
	}
	return @mutants;
}

# --- in a database where nobody means any harm

$node->safe_psql('postgres', 'CREATE ROLE mallory LOGIN');
foreach my $db (qw(plain trapped))
{
	$node->safe_psql('postgres', "CREATE DATABASE $db OWNER mallory");
	$node->safe_psql($db, 'CREATE EXTENSION leader_election');
}
exercise('plain');

my @statements = statements(0);
cmp_ok(scalar @statements, '>', 15, 'statements in the log: ' . @statements);

# Everything that it can do was done.
foreach my $pattern (statements_in_program())
{
	ok((grep { /^$pattern$/ } @statements), "was sent: $pattern");
}
my $help = `pg_leader --help`;
my ($list) = $help =~ /^Subcommands:\n(.*?)\n\n/ms;
foreach my $subcommand ($list =~ /^  (\w+)/mg)
{
	my $of_all = qr/^(dbname|host|port|username|password|no-password|portable)$/;
	my $options = `pg_leader $subcommand --help`;

	ok((grep { /^$subcommand\b/ } @used), "was called: $subcommand");
	foreach my $option (grep { !/$of_all/ } $options =~ /^ +(?:-\w, )?--([\w-]+)/mg)
	{
		ok((grep { /^$subcommand\b.* --$option\b/ } @used), "was called: $subcommand --$option");
	}
}

# --- nothing is looked up by search_path

foreach my $sql (@statements)
{
	is(join("\n", lookups($sql)), '', "qualified: $sql");
	my @missed = grep { !lookups($_) } mutants($sql);
	is(join("\n", @missed), '', 'and it would be seen if one qualification less was there');
}

# That this test sees what it should
foreach my $sql (
	'SELECT now()', 'SELECT a.b FROM leader_election.status', 'SELECT 1 + 1', 'SELECT $1::text',
	"SELECT interval '1 s'", 'SELECT election FROM status', 'SELECT 1 FROM leader_election.status, public.x',
	'SELECT 1 FROM leader_election.status, x', 'SELECT $1 IN (1, 2)', 'SELECT $1 BETWEEN 1 AND 2', "SELECT \$1 LIKE 'x'",
	'SELECT CASE $1 WHEN 1 THEN 2 END', 'SELECT $1 IS DISTINCT FROM 1', 'SELECT NULLIF($1, 1)', 'SELECT extract(epoch FROM $1)',
	'SELECT 1 FROM leader_election.status JOIN leader_election.history USING (election)', 'SELECT CAST($1 AS text)',
	'SELECT 1 FROM leader_election.status NATURAL JOIN leader_election.history', 'SELECT $1[1]', 'SELECT ARRAY[1]',
	"SELECT \$1 AT TIME ZONE 'UTC'", 'SELECT $1 COLLATE "x"', "SELECT 'x'::pg_catalog.regclass", "SELECT E'x'", 'SELECT 1 -- x',
	'SELECT * FROM leader_election.status', 'SELECT public.f()',
	'SELECT y FROM pg_catalog.json_to_recordset($1) AS x (y text)',
	'SELECT 1 OPERATOR(public.+) 1', 'SELECT 1 OPERATOR(+) 1')
{
	isnt(join('', lookups($sql)), '', "seen: $sql");
}

# --- in one that is full of traps

# The names that statements look up, qualified or not, by what they are.
my (%functions, %types, %relations);
my %operators = ('=' => 1);
foreach my $sql (@statements)
{
	my @t = tokens($sql);

	foreach my $i (0 .. $#t)
	{
		my ($kind, $name) = @{ $t[$i] };
		my $schema = $i > 1 && $t[ $i - 1 ][1] eq '.' && $SCHEMAS{ $t[ $i - 2 ][1] } ? $t[ $i - 2 ][1] : '';
		my $before = $i - 1 - ($schema ? 2 : 0);
		my $next = $t[ $i + 1 ] ? $t[ $i + 1 ][1] : '';

		if ($kind eq 'operator') { $operators{$name} = 1; }
		elsif ($kind ne 'word' || $next eq '.') { next; }
		elsif ($before >= 0 && $t[$before][1] eq '::') { $types{$name} = 1; }
		elsif ($next eq '(') { $functions{$name} = 1 if $schema || !$HARMLESS{$name}; }
		elsif ($schema && $t[$before][0] eq 'word' && !$HARMLESS{ $t[$before][1] }) { $types{$name} = 1; }
		elsif ($schema) { $relations{"$schema.$name"} = 1; }
	}
}
note('functions: ', join(' ', sort keys %functions));
note('operators: ', join(' ', sort keys %operators));
note('types: ', join(' ', sort keys %types));
note('relations: ', join(' ', sort keys %relations));

sub sql_array
{
	return 'ARRAY[' . join(', ', map { "'$_'" } sort @_) . ']::pg_catalog.text[]';
}

my $functions = sql_array(keys %functions);
my $operators = sql_array(keys %operators);
my $types = sql_array(keys %types);
my $relations = sql_array(keys %relations);

# The very signatures that are called, and others that arguments of unknown or of
# other types could lead to. Whatever runs says so in the log.
$node->safe_psql('trapped', 'GRANT USAGE ON SCHEMA leader_election TO mallory; GRANT CREATE ON SCHEMA public TO mallory');
my $traps = $node->safe_psql('trapped', <<"END", extra_params => [ '-U', 'mallory' ]);
SET search_path = pg_catalog;
CREATE TABLE public.traps (made integer);
CREATE PROCEDURE public.make(what text) LANGUAGE plpgsql AS \$\$
BEGIN
	EXECUTE what;
	INSERT INTO public.traps VALUES (1);
EXCEPTION WHEN others THEN
	RAISE DEBUG '%: %', what, SQLERRM;
END \$\$;
CREATE FUNCTION public.body(name text, result text) RETURNS text LANGUAGE sql AS \$\$
	SELECT format('LANGUAGE plpgsql AS %L', format('BEGIN RAISE WARNING %L, current_user; %s; END',
		'TRAP ' || replace(name, '%', '%%') || ' ran as %', result))
\$\$;
CREATE TYPE public.lure AS (x text);
CREATE FUNCTION public.trap(anyelement) RETURNS boolean LANGUAGE plpgsql AS
	'BEGIN RAISE WARNING ''TRAP % ran as %'', \$1, current_user; RETURN true; END';
DO \$\$
DECLARE
	kinds text[] := ARRAY['text', 'numeric', 'int8', 'int4', 'interval', 'timestamptz', 'name', 'bool', 'json', 'jsonb', 'anyelement', 'public.lure'];
	r record;
	n integer := 0;
BEGIN
	-- Functions and aggregates of the same name and types
	FOR r IN SELECT proname, oidvectortypes(proargtypes) AS args, format_type(prorettype, NULL) AS result, proretset, prokind
		FROM pg_proc WHERE proname = ANY ($functions) AND pronamespace IN ('pg_catalog'::regnamespace, 'leader_election'::regnamespace)
	LOOP
		n := n + 1;
		IF r.prokind = 'f' THEN
			CALL public.make(format('CREATE FUNCTION public.%I(%s) RETURNS %s %s %s', r.proname, r.args,
				CASE WHEN r.proretset THEN 'SETOF' ELSE '' END, r.result,
				public.body(r.proname, CASE WHEN r.proretset THEN 'RETURN' ELSE 'RETURN NULL' END)));
		ELSE
			CALL public.make(format('CREATE FUNCTION public.step_%s(int8, %s) RETURNS int8 %s', n, r.args, public.body(r.proname, 'RETURN 0')));
			CALL public.make(format('CREATE AGGREGATE public.%I(%s) (SFUNC = public.step_%s, STYPE = int8)', r.proname, r.args, n));
		END IF;
	END LOOP;
	-- and of some others
	FOR r IN
		SELECT f, args FROM unnest($functions) f, (
			SELECT a FROM unnest(kinds) a
			UNION ALL SELECT concat_ws(', ', a, b) FROM unnest(kinds) a, unnest(kinds) b
			UNION ALL SELECT concat_ws(', ', a, b, c) FROM unnest(kinds[1:4]) a, unnest(kinds[1:4]) b, unnest(kinds[1:4]) c
			UNION ALL SELECT '' UNION ALL SELECT 'VARIADIC text[]' UNION ALL SELECT 'VARIADIC anyarray') x (args)
	LOOP
		CALL public.make(format('CREATE FUNCTION public.%I(%s) RETURNS text %s', r.f, r.args, public.body(r.f, 'RETURN NULL')));
	END LOOP;
	-- Operators
	FOR r IN
		SELECT oprname, format_type(oprleft, NULL) AS l, format_type(oprright, NULL) AS r, format_type(oprresult, NULL) AS result
		FROM pg_operator WHERE oprname = ANY ($operators) AND oprnamespace = 'pg_catalog'::regnamespace AND oprleft <> 0
		UNION ALL SELECT o, a, b, CASE WHEN o IN ('=', '>', '<', '>=', '<=', '<>') THEN 'boolean' ELSE 'text' END
		FROM unnest($operators) o, unnest(kinds) a, unnest(kinds) b WHERE a <> b OR a = 'public.lure'
	LOOP
		n := n + 1;
		CALL public.make(format('CREATE FUNCTION public.operate_%s(%s, %s) RETURNS %s %s', n, r.l, r.r, r.result,
			public.body('operator ' || r.oprname, 'RETURN NULL')));
		CALL public.make(format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.operate_%s)', r.oprname, r.l, r.r, n));
	END LOOP;
	-- Types, and casts to one
	FOR r IN SELECT * FROM unnest($types) t
	LOOP
		CALL public.make(format('CREATE DOMAIN public.%I AS pg_catalog.%1\$I CHECK (public.trap(%L::text) AND VALUE IS NOT NULL)', r.t, 'type ' || r.t));
	END LOOP;
	FOR r IN SELECT * FROM unnest(kinds) t WHERE t !~ 'any|lure'
	LOOP
		CALL public.make(format('CREATE FUNCTION public.lure_%s(%1\$s) RETURNS public.lure %s', r.t, public.body('cast', 'RETURN NULL')));
		CALL public.make(format('CREATE CAST (%s AS public.lure) WITH FUNCTION public.lure_%1\$s(%1\$s) AS IMPLICIT', r.t));
	END LOOP;
	-- Relations
	FOR r IN SELECT * FROM unnest($relations) v
	LOOP
		CALL public.make(format('CREATE VIEW public.%I AS SELECT * FROM %s WHERE public.trap(%L::text)', split_part(r.v, '.', 2), r.v, 'relation ' || r.v));
	END LOOP;
END \$\$;
ALTER DATABASE trapped SET search_path = public, pg_catalog, leader_election;
SELECT count(*) FROM public.traps;
END
cmp_ok($traps, '>', 1000, "traps: $traps");

# The traps that were run from there on.
sub sprung
{
	my ($from) = @_;

	my %sprung = map { $_ => 1 } slurp_file($node->logfile, $from) =~ /TRAP (.* ran as \w+)/g;

	return sort keys %sprung;
}

my $from = -s $node->logfile;
ok(eval { exercise('trapped'); 1 }, 'it does all the same there') or diag($@);
is(join("\n", sprung($from)), '', 'no trap was run');
is(join("\n", statements($from)), join("\n", @statements), 'and nothing else was sent');

# The traps work.
my $superuser = $node->safe_psql('postgres', 'SELECT current_user');
foreach my $sql (
	'SELECT clock_timestamp()', "SELECT 'a' || 'b'", "SELECT 1.5 || ' s'", 'SELECT 1.5 * 1000', "SELECT to_json('x'::pg_catalog.text)",
	"SELECT 'a'::text", "SELECT '2020-01-01'::timestamptz", 'SELECT 1 FROM status', 'SELECT 1 FROM pg_depend', "SELECT leader('x')",
	'SELECT 1 FROM leader_election.status JOIN leader_election.history USING (election)', "SELECT acquire('x', 'y', NULL)",
	"SELECT max(election) FROM leader_election.election")
{
	my $start = -s $node->logfile;

	$node->psql('trapped', $sql);
	like((sprung($start))[0], qr/ ran as \Q$superuser\E$/, "a trap: $sql");
}

$node->stop;
done_testing();
