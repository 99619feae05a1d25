# What a client is refused, for a while or for good. Before login only one of many
# servers may have said it; after login it may pass: somebody creates the extension,
# grants what is missing, or restores a database. The client tells what it was refused
# in its state, goes on trying, and ends with an error only if every address refuses
# it for as long as it was told, or at once if a pooler is in between where it says
# that none is.

package Refusals;

use strict;
use warnings;

use Alone;
use Exporter qw(import);
use Network;
use Servers;
use Stands;
use Subjects;

our @EXPORT = qw(refused_everywhere refused_for_a_while refused_for_good
  session_behind_a_pooler);

my $TIMEOUT_OF_REFUSALS = 1;    # seconds
my $NOT_INSTALLED = 'refused: (?:3F000|42883) .*\(CREATE EXTENSION leader_election, or portable\.sql\?\)';
my %nowhere = (PGUSER => 'locked', PGPASSWORD => 'wrong');

# Every address refuses it: [ NAME, ENVIRONMENT, SQLSTATE, KINDS ]
sub everywhere
{
	return (
		[ 'wrong password', { PGPORT => port(1), %nowhere }, '28P01' ],
		[ 'wrong password twice', { PGPORT => port(1) . ',' . port(1), %nowhere }, '28P01' ],
		[ 'no database', { PGPORT => port(1), PGDATABASE => 'nowhere' }, '3D000' ]);
}

# It says so, tries for a while, and ends with that error.
sub lasting
{
	my ($state) = @_;

	return ([ 'gives up' => event('error', $state) ],
		[ 'has said what it was refused' => has_said_state("refused: $state") ],
		[ 'not at once' => sub {
				my ($case) = @_;
				my ($ready) = grep { $_->[0] eq 'ready' } @{ $case->{process}{events} };
				my $seconds = ($case->{event}[2] - $ready->[2]) / 1e9;

				die sprintf("after %.2f s\n", $seconds) if $seconds < $TIMEOUT_OF_REFUSALS;
				return 1;
			} ],
		[ 'ends' => ends(3) ]);
}

# pg_leader has no state, and ends with its own exit status.
sub ends_with
{
	my ($status) = @_;

	return ([ 'tries for a while' => sub {
				my ($case) = @_;

				return 1 if (now_ns() - $case->{stepped}) / 1e9 > $TIMEOUT_OF_REFUSALS;
				die "has ended, status $case->{process}{exit}\n" if ended($case->{process});
				return 0;
			} ],
		[ 'ends' => ends($status) ]);
}

sub refused_everywhere
{
	my ($at, @subjects) = @_;
	my @cases;

	foreach my $subject (@subjects)
	{
		foreach my $kind (qw(session detached))
		{
			my %case = (subject => $subject, kind => $kind, at => $at);

			push @cases, map { { %case, name => $_->[0],
				env => { %{ $_->[1] }, REFUSAL_TIMEOUT => $TIMEOUT_OF_REFUSALS },
				steps => [ $subject eq 'pg_leader' ? ends_with(120) : lasting($_->[2]) ] } }
			  everywhere();
		}
		# Another address says nothing: there the primary may be. (What a pool is told,
		# is its program's.)
		push @cases, { subject => $subject, kind => 'session', at => $at,
			name => 'wrong password and a dead server',
			env => { %nowhere, PGPORT => port(1) . ',' . port('nobody'),
				REFUSAL_TIMEOUT => $TIMEOUT_OF_REFUSALS },
			steps => [ [ 'goes on' => stays(2 * $TIMEOUT_OF_REFUSALS, 'error') ],
				$subject eq 'pg_leader' ? ()
				: ([ 'says why' => says_state('refused: 28P01|unreachable: ') ]),
				[ 'SIGTERM' => sends('TERM') ], [ 'ends' => ends('0|143') ] ] };
	}
	return @cases;
}

# --- what passes

sub at_home
{
	my ($sql) = @_;

	return sub {
		my ($case) = @_;

		sql($sql =~ s/ELECTION/$case->{election}/gr, dbname => $case->{env}{PGDATABASE});
		return 1;
	};
}

sub to_database
{
	my ($do) = @_;

	return sub { $do->($_[0]{env}{PGDATABASE}); return 1; };
}

sub create_and_grant
{
	return ([ 'the extension' => to_database(\&install_edition) ],
		[ 'is not allowed to' => says_state('refused: 42501') ],
		[ 'GRANT, but for create_election()' => sub {
				grant($_[0]{env}{PGDATABASE},
					'REVOKE EXECUTE ON ROUTINE leader_election.create_election FROM app');
				return 1;
			} ],
		[ 'no election' => says_state('refused: LE003') ],
		[ 'an election' => at_home("SELECT leader_election.create_election('ELECTION')") ]);
}

# pg_leader does not wait for it for ever: [ NAME, ENVIRONMENT, EXIT STATUS ].
sub passing_for_pg_leader
{
	my ($at) = @_;
	my @refusals = ([ 'no extension', { PGDATABASE => 'bare' }, 124 ],
		[ 'no EXECUTE', { PGUSER => 'watcher' }, 120 ]);

	return map { my $kind = $_; map { { name => "passing $_->[0]", subject => 'pg_leader',
		kind => $kind, at => $at, env => { PGPORT => port(1), WORKPORT => port(1),
			REFUSAL_TIMEOUT => $TIMEOUT_OF_REFUSALS, %{ $_->[1] } },
		steps => [ ends_with($_->[2]) ] } } @refusals } qw(session detached);
}

sub refused_for_a_while
{
	my ($at, @subjects) = @_;
	my @cases = (grep { $_ eq 'pg_leader' } @subjects) ? passing_for_pg_leader($at) : ();

	foreach my $subject (grep { $_ ne 'pg_leader' } @subjects)
	{
		foreach my $kind (qw(session detached))
		{
			my $database = "bare_${subject}_$kind";

			sql("CREATE DATABASE $database TEMPLATE bare");
			push @cases, { name => 'passing', unchecked => 1, subject => $subject, kind => $kind, at => $at,
				env => { PGPORT => port(1), WORKPORT => port(1), PGDATABASE => $database,
					WORKDATABASE => $database, REFUSAL_TIMEOUT => $TIMEOUT_OF_REFUSALS },
				steps => [
					[ 'no extension' => says_state($NOT_INSTALLED) ],
					[ 'goes on' => stays(2 * $TIMEOUT_OF_REFUSALS, 'error') ],
					create_and_grant(),
					[ 'leads' => event('elected') ],
					[ 'DROP EXTENSION' => to_database(\&remove_edition) ],
					[ 'loses' => event('lost') ],
					[ 'no extension any more' => says_state($NOT_INSTALLED) ],
					create_and_grant(),
					[ 'leads again' => event('elected') ],
					[ 'SIGTERM' => sends('TERM') ], [ 'loses' => event('lost', 'closed') ],
					[ 'ends' => ends(0) ] ] };
		}
	}
	return @cases;
}

# --- what lasts: a wrong argument, or a call that this server or driver cannot do

# [ NAME, SQLSTATE, ROUTINES, KINDS, NOT ]. (pg_leader calls no campaign().)
my @FINAL = (
	[ 'refused for good 22023', '22023', [qw(acquire join)], [qw(session detached)], '' ],
	[ 'refused for good 0A000', '0A000', [qw(acquire join)], [qw(session detached)], '' ],
	[ 'refused for good 25001', '25001', [qw(acquire join)], [qw(session detached)], '' ],
	[ 'campaign refused for good', '0A000', ['campaign'], ['session'], 'pg_leader' ]);

# A database in which these routines raise that.
sub create_refusing
{
	my ($database, $sqlstate, @routines) = @_;

	my $names = join ', ', map { "'$_'" } @routines;

	sql("CREATE DATABASE $database TEMPLATE bare");
	sql('CREATE EXTENSION leader_election', dbname => $database);
	grant($database);
	sql(sprintf(<<'SQL', $sqlstate, $names), dbname => $database);
DO $do$
DECLARE
	body text := $$BEGIN RAISE 'is not for you' USING ERRCODE = '%s'; END$$;
	r record;
BEGIN
	FOR r IN SELECT oid, proname, prokind FROM pg_proc
		WHERE pronamespace = 'leader_election'::regnamespace AND proname IN (%s)
	LOOP
		EXECUTE concat('CREATE OR REPLACE ',
			CASE r.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END, ' leader_election.',
			quote_ident(r.proname), '(', pg_get_function_arguments(r.oid), ')',
			' RETURNS ' || pg_get_function_result(r.oid),
			' LANGUAGE plpgsql AS ', quote_literal(body));
	END LOOP;
END
$do$;
SQL
	return;
}

# That a connection is made, and that join() is answered, is no break in it.
sub refused_for_good
{
	my ($at, @subjects) = @_;
	my @cases;

	foreach my $final (@FINAL)
	{
		my ($name, $sqlstate, $routines, $kinds, $not) = @$final;
		my $database = lc $name =~ s/ /_/gr;

		create_refusing($database, $sqlstate, @$routines);
		foreach my $subject (grep { $_ ne $not } @subjects)
		{
			push @cases, map { { name => $name, unchecked => 1, subject => $subject, kind => $_,
				at => $at, env => { PGPORT => port(1), WORKPORT => port(1),
					PGDATABASE => $database, WORKDATABASE => $database,
					REFUSAL_TIMEOUT => $TIMEOUT_OF_REFUSALS },
				steps => [ $subject eq 'pg_leader' ? ends_with(125) : lasting($sqlstate) ] } } @$kinds;
		}
	}
	return @cases;
}

# --- poolers

sub behind_a_pooler
{
	my ($at, $how, @subjects) = @_;

	return map { { name => "behind a pooler $how", subject => $_, kind => 'session', at => $at,
		env => { PGPORT => port('documented'), WORKPORT => port(1) },
		steps => [ $_ eq 'pg_leader' ? ()
			: ([ 'says what is wrong' => event('error|elected', '\S+ .*pooler') ]),
			[ 'ends' => ends($_ eq 'pg_leader' ? 125 : 3) ] ] } } @subjects;
}

sub session_behind_a_pooler
{
	my ($at, @subjects) = @_;

	start_documented();
	run_alone(behind_a_pooler($at, 'idle', @subjects));
	start_load('postgres');
	await(sub { !found_by_load() }, 2);
	run_alone(behind_a_pooler($at, 'loaded', @subjects));
	note_failure("behind a pooler ($at): $_") foreach found_by_load();
	stop_load();
	stop_program('documented');
	return;
}

1;
