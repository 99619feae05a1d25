# For 107_names_everywhere.pl: names in what the extension returns in SQL. Each
# of its tables, views and functions with columns of text is looked at; each such
# column holds what was given, as it was given, or a word of the extension's own.
#
#	my @outputs = sql_outputs($session);
#	my ($seen, @wrong) = names_in_sql($session, $name);
#
# A function that is not called here, and a column that is of no known kind, are
# among what is wrong.

package NamesInSql;

use strict;
use warnings;
use utf8;

use Encode qw(encode);
use Exporter qw(import);
use JSON::PP;

our @EXPORT = qw(give names_in_sql sql_outputs was_given);

# A name that a role, or a channel, can have: bytes
my $LONGEST_IDENTIFIER = 63;

# Columns by their names, or by those of what they belong to, too
my %KINDS = (
	(
		map { $_ => 'given' }
		  qw(election candidate leader successor successor_role group_name owner candidate_role channel role run_role
		  paused_by pause_reason drained_by run run_done run_granted metadata reason)),
	(map { $_ => 'word' } qw(strategy state waiting_for kind incarnation _incarnation pause_incarnation scope yield_cause severity worker_sqlstate
		  edition version
		  history.reason)),
	(map { $_ => 'identity' } qw(owner_id candidate_role_id role_id successor_role_id run_role_id)),
	(map { $_ => 'text' } qw(detail finding remedy worker_failure)));

# How functions are called: %e, %c, %d and %g are an election, its leader, another
# candidate and a group
my %CALLS = (
	acquire_any => 'SELECT * FROM leader_election.acquire_any(%g, %d)',
	diagnose => 'SELECT * FROM leader_election.diagnose(%e)',
	_incarnation => 'SELECT leader_election._incarnation()',
	join_group => 'SELECT * FROM leader_election.join_group(%g, %c)',
	leader => 'SELECT leader_election.leader(%e)',
	_measure => 'SELECT * FROM leader_election._measure()',
	_measure_server => 'SELECT * FROM leader_election._measure_server()',
	_observe => 'SELECT * FROM leader_election._observe(%e)',
	_standing => 'SELECT * FROM leader_election._standing(%e)',
	wait_for_change => q{SELECT :'told_leader'::text AS leader});

# All that anybody may have been named, or have given
my %given = ('' => 1);

sub give
{
	$given{$_} = 1 foreach @_;
	return;
}

sub was_given { return $given{ $_[0] }; }

# In SQL
sub literal { return "'" . encode('UTF-8', $_[0]) =~ s/'/''/gr . "'"; }
sub identifier { return '"' . encode('UTF-8', $_[0]) =~ s/"/""/gr . '"'; }

# Tables and views, and functions that return text: names
sub relations_of
{
	my ($session) = @_;

	return $session->query(
		q{SELECT c.relname FROM pg_class c JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
			JOIN pg_extension e ON e.oid = d.refobjid AND d.deptype = 'e'
		   WHERE e.extname = 'leader_election' AND c.relkind IN ('r', 'v', 'm') ORDER BY 1});
}

sub functions_of
{
	my ($session) = @_;

	return $session->query(
		q{SELECT DISTINCT p.proname FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
			JOIN pg_extension e ON e.oid = d.refobjid AND d.deptype = 'e'
		   WHERE e.extname = 'leader_election' AND (
			p.prorettype IN ('text'::regtype, 'name'::regtype, 'jsonb'::regtype, 'json'::regtype)
			OR EXISTS (SELECT FROM unnest(p.proallargtypes, p.proargmodes) a (type, mode)
				WHERE mode IN ('o', 'b', 't') AND type IN ('text'::regtype, 'name'::regtype, 'jsonb'::regtype, 'json'::regtype))
			OR EXISTS (SELECT FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
				WHERE t.oid = p.prorettype AND a.attnum > 0
					AND a.atttypid IN ('text'::regtype, 'name'::regtype, 'jsonb'::regtype, 'json'::regtype))) ORDER BY 1});
}

sub sql_outputs
{
	my ($session) = @_;

	return ((map { "relation $_" } relations_of($session)), map { "function $_()" } functions_of($session));
}

# What is in a value of JSON: all texts of it
sub texts_in
{
	my ($value) = @_;

	return map { texts_in($_) } %$value if ref $value eq 'HASH';
	return map { texts_in($_) } @$value if ref $value eq 'ARRAY';
	return defined $value && !ref $value ? $value : ();
}

sub kind_of
{
	my ($of, $column) = @_;

	return $KINDS{"$of.$column"} // $KINDS{$column} // 'unknown';
}

# What is wrong with a value, of which these are the texts
sub wrongs_of_texts
{
	my ($kind, $column, @texts) = @_;

	return 'it is of no known kind' if $kind eq 'unknown';
	return map { 'it is not as it was given: ' . JSON::PP->new->ascii->allow_nonref->encode($_) } grep { !$given{$_} } @texts
	  if $kind eq 'given';
	# A role's name comes last.
	return map { "it is no identity: $_" } grep { !(m{\A\d+/\d+/\d+/(.*)\z}s && $given{$1}) } @texts
	  if $kind eq 'identity';
	# One word ends with the name of a candidate.
	return map { "it is no word: $_" } grep { !/\A[\w :,.\/()+-]*\z/a && !(/\Areserved for (.*)\z/s && $given{$1}) } @texts
	  if $kind eq 'word';
	# A remedy is a statement, with names as literals.
	return map { "it has controls: $_" } grep { $column ne 'remedy' && /[\x00-\x08\x0b-\x1f]/ } @texts;
}

# Columns of text in the rows of a query: numbers, times and addresses have no
# names in them.
sub columns_of
{
	my ($session, $query) = @_;

	return map { /^(.*)\|(?:text|name|jsonb?)$/ ? $1 : () } $session->query("$query \\gdesc");
}

# Those of each output, which are the same for all names
my %columns;

# Looks at one output, which this query shows.
sub look_at
{
	my ($session, $seen, $name, $of, $query) = @_;
	my @wrong;
	my ($short) = $of =~ /(\w+)(?:\(\))?$/;
	my @columns = @{ $columns{$of} //= [ columns_of($session, $query) ] };
	my $json = $session->query("SELECT coalesce(jsonb_agg(q), '[]') FROM ($query) q");
	my $has_name = !grep { kind_of($short, $_) eq 'given' } @columns;

	push @wrong, "$of: " . $session->errors if $session->sqlstate ne '00000';
	my $rows = eval { decode_json($json) } // [];
	foreach my $row (@$rows)
	{
		foreach my $column (@columns)
		{
			my @texts = texts_in($row->{$column});
			my $kind = kind_of($short, $column);

			push @wrong, map { "$of.$column: $_" } wrongs_of_texts($kind, $column, @texts);
			$has_name = 1 if $kind eq 'given' && grep { index($_, $name) >= 0 } @texts;
		}
	}
	# What gives no names back is seen, too.
	$seen->{$of} = 1 if $has_name;
	return @wrong;
}

# Looks at all of it, with these in the place of %e and so on.
sub look
{
	my ($session, $seen, $name, %args) = @_;
	my @wrong;
	my %queries = (map { ("relation $_" => "SELECT * FROM leader_election.$_") } relations_of($session));

	foreach my $function (functions_of($session))
	{
		my $query = $CALLS{$function};

		push @wrong, "$function() is not called here" unless $query;
		$queries{"function $function()"} = $query =~ s/%(\w)/$args{$1}/gr if $query;
	}
	$session->query("CALL leader_election.wait_for_change($args{e}, -1, NULL, '0') \\gset told_");
	foreach my $of (sort keys %queries)
	{
		push @wrong, look_at($session, $seen, $name, $of, $queries{$of});
	}
	return @wrong;
}

# Gives a name to whatever can have one, and looks at all.
sub names_in_sql
{
	my ($session, $name) = @_;
	my %names = (e => "x$name", c => "x$name'", d => "y$name", g => "g$name");
	my %args = map { $_ => literal($names{$_}) } keys %names;
	my ($e, $c, $d, $g) = @args{qw(e c d g)};
	my $n = literal($name);
	my $is_channel = length encode('UTF-8', $name) <= $LONGEST_IDENTIFIER;
	# From 19 on, a role's name has no line feed.
	my $is_role = $is_channel && ($name !~ /[\r\n]/ || $session->query('SHOW server_version_num') < 190000);
	my %seen;
	my @wrong;

	my $run = sub {
		my ($sql) = @_;

		my $result = $session->query($sql);
		push @wrong, "$sql: " . $session->errors if $session->sqlstate ne '00000';
		return $result;
	};

	give($name, values %names, "g$name/1", "g$name/2", scalar $session->query('SELECT current_user'));
	if ($is_role)
	{
		my $role = identifier($name);

		$run->("CREATE ROLE $role SUPERUSER");
		$run->("SET ROLE $role");
	}
	$run->("SELECT leader_election.create_election($e, lease_duration => '1 h'"
		  . ($is_channel ? ", channel => $n" : '')
		  . ($is_role ? ", candidate_role => $n)" : ')'));
	$run->("SELECT leader_election.create_group($g, 2)");
	my $term = $run->("SELECT term FROM leader_election.acquire($e, $c, metadata => jsonb_build_object($n, $n), run => $n)");
	$run->("SELECT leader_election.acquire($e, $d)");
	$run->("SELECT leader_election.pause_election($e, reason => $n)");
	$run->("SELECT leader_election.pause_all(reason => $n)");
	$run->("SELECT leader_election.drain_candidate($d, election => $e, reason => $n)");
	$run->("SELECT leader_election.drain_candidate($d, reason => $n)");
	push @wrong, look($session, \%seen, $name, %args);

	$run->('SELECT leader_election.resume_all()');
	$run->("SELECT leader_election.resume_election($e)");
	$run->("SELECT leader_election.undrain_candidate($d, election => $e)");
	$run->("SELECT leader_election.undrain_candidate($d)");
	$run->("SELECT leader_election.request_yield($e, to_candidate => $d)");
	push @wrong, look($session, \%seen, $name, %args);

	$run->("SELECT leader_election.release($e, $term, done => true)");
	$run->("SELECT leader_election.acquire($e, $d)");
	push @wrong, look($session, \%seen, $name, %args);
	$run->('SELECT leader_election.leave_all()');
	$run->("SELECT leader_election.release(election, term) FROM leader_election.lease WHERE leader = $d");
	$run->("SELECT leader_election.leave(election, $d) FROM leader_election.election WHERE election = $e OR group_name = $g");

	# The worker moves what a drop leaves as soon as it is committed.
	$run->('BEGIN');
	$run->("SELECT leader_election.drop_election($e)");
	push @wrong, look_at($session, \%seen, $name, 'relation dropped', 'SELECT * FROM leader_election.dropped');
	$run->('ROLLBACK');
	$run->('RESET ROLE');
	return (\%seen, map { s/([^\n\x20-\x7e])/sprintf('\\x{%x}', ord $1)/ger } @wrong);
}

1;
