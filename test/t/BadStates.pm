# The states in which 070_bad_input.pl makes its calls, and what a call may come
# to in each.
#
#	use BadStates;
#
#	my %states = states($version);
#	my $sql = statement_of($states{block}, $call);
#	my @sqlstates = expected($call, $states{block}, $role);

package BadStates;

use strict;
use warnings;

use Exporter qw(import);

our @EXPORT = qw(@ATOMIC expected statement_of states);

#
# A state:
#
#	before, after	statements around the call
#	statement		makes a statement of the call, %s, a query without a
#					procedure; or, with text, of its text
#	then			another statement, if that one succeeded
#	errors			what each kind of function comes to there, if that differs
#	also			what may be an error there, beside all else
#	always			the only SQLSTATE there
#	slow			too slow for many calls
#	bare			elections are not made as they should be before each call
#	server			another than the usual one
#	connection		more to connect with
#

my @REFUSED = (errors => { changes => ['25001'], waits => [ '22023', '25001' ] });
my @BLOCK = (@REFUSED, after => 'ROLLBACK');
our @ATOMIC = (text => 1, errors => {}, also => ['25001']);
my $UNDO = q{$$ROLLBACK PREPARED 'p'$$};

# All of them, by name, in a server of this version
sub states
{
	my ($version) = @_;
	my $parallel = $version >= 160000 ? 'debug_parallel_query' : 'force_parallel_mode';

	return (
		'autocommit' => {},
		'repeatable read' => {
			before => "SET default_transaction_isolation = 'repeatable read'",
			after => 'RESET default_transaction_isolation' },
		'serializable' => {
			before => 'SET default_transaction_isolation = serializable',
			after => 'RESET default_transaction_isolation' },
		'read only' => {
			before => 'SET default_transaction_read_only = on',
			after => 'RESET default_transaction_read_only',
			errors => { changes => ['25006'], defines => ['25006'] } },
		'block' => { @BLOCK, before => 'BEGIN' },
		'repeatable read block' =>
		  { @BLOCK, before => 'BEGIN ISOLATION LEVEL REPEATABLE READ' },
		'serializable block' =>
		  { @BLOCK, before => 'BEGIN ISOLATION LEVEL SERIALIZABLE' },
		'read only block' => {
			before => 'BEGIN READ ONLY',
			after => 'ROLLBACK',
			errors => {
				changes => ['25001'],
				waits => [ '22023', '25001' ],
				defines => ['25006'] } },
		'savepoint' => { @BLOCK, before => "BEGIN;\nSAVEPOINT s" },
		'undone savepoint' =>
		  { @BLOCK, before => "BEGIN;\nSAVEPOINT s;\nROLLBACK TO s" },
		'failed block' => {
			before => "BEGIN;\nSELECT 1 / 0",
			after => 'ROLLBACK',
			always => '25P02' },
		'several statements' => { @REFUSED, statement => 'SELECT\; %s' },
		'prepared statement' => {
			statement => 'PREPARE p AS %s',
			then => 'EXECUTE p',
			after => 'DEALLOCATE ALL' },
		'cursor' => {
			@BLOCK,
			before => 'BEGIN',
			statement => 'DECLARE c CURSOR FOR %s',
			then => 'FETCH ALL FROM c' },
		'cursor with hold' =>
		  { statement => 'DECLARE c CURSOR WITH HOLD FOR %s', after => 'CLOSE ALL' },
		'new table' => {
			statement => 'CREATE TABLE made.new AS %s',
			after => 'DROP TABLE IF EXISTS made.new' },
		'materialized view' => {
			statement => 'CREATE MATERIALIZED VIEW made.new AS %s',
			after => 'DROP MATERIALIZED VIEW IF EXISTS made.new' },
		'explain' => { statement => 'EXPLAIN (ANALYZE, COSTS OFF) %s' },
		'copy' => { statement => q{COPY (%s) TO '/dev/null'} },
		'parallel queries' => {
			before => "SET $parallel = on",
			after => "RESET $parallel",
			statement => '%s' },
		'parallel query, wrongly' => {
			slow => 1,
			text => 1,
			before => "SET $parallel = on",
			statement => 'SELECT count(*) FROM numbers WHERE run_parallel(%s)',
			after => "RESET $parallel",
			errors => {
				changes => [ '22023', '25000', '25001' ],
				waits => [ '22023', '25001' ],
				defines => [ '22023', '25000', '42704' ] },
			also => [ '25000', '55P03' ] },
		'function' => { @ATOMIC, statement => 'SELECT run(%s)' },
		'DO' =>
		  { @ATOMIC, statement => 'DO $DO$BEGIN EXECUTE %s; END$DO$' },
		'exception handler' =>
		  { @REFUSED, text => 1, statement => 'SELECT run_caught(%s) AS code \gset' },
		'trigger' =>
		  { @ATOMIC, statement => 'INSERT INTO made.at_once VALUES (%s)' },
		'deferred trigger' =>
		  { @ATOMIC, statement => 'INSERT INTO made.deferred VALUES (%s)' },
		'deferred trigger of a block' => {
			@REFUSED,
			text => 1,
			before => 'BEGIN',
			statement => 'INSERT INTO made.deferred VALUES (%s)',
			then => 'COMMIT',
			after => 'ROLLBACK' },
		'prepared transaction' => {
			errors => {
				changes => ['25001'],
				waits => [ '22023', '25001' ],
				fences => [ '0A000', '22023', 'LE001', 'LE003' ] },
			also => ['0A000'],
			before => 'BEGIN',
			then => q{PREPARE TRANSACTION 'p'},
			after => "ROLLBACK;\nSELECT $UNDO FROM pg_prepared_xacts\n\\gexec\n" },
		'replication connection' => { connection => 'replication=database' });
}

# The statement of a call
sub statement_of
{
	my ($state, $call) = @_;
	my $is_procedure = $call->{f}{is_procedure};
	my $sql = ($is_procedure ? 'CALL ' : 'SELECT ') . $call->{text};

	$sql = '$call$' . $sql . '$call$' if $state->{text};
	$sql = "SELECT count(*) FROM $call->{text}"
	  if $state->{statement} && !$state->{text} && !$is_procedure;
	return $state->{statement} ? $state->{statement} =~ s/%s/$sql/r : $sql;
}

# What a call may come to
sub expected
{
	my ($call, $state, $role) = @_;
	my $f = $call->{f};
	my $errors = $state->{errors}{ $f->{kind} };

	return '22021' if $call->{is_invalid};
	return $state->{always} if $state->{always};
	return '42501' if !$role->{may}{ $f->{oid} };
	return @$errors, @{ $state->{also} // [] } if $errors;
	return (
		'00000', '22023',
		@{ $f->{errors} },
		@{ $state->{also} // [] },
		@{ $role->{errors} // [] },
		$call->{may_wait} ? '57014' : ());
}

1;
