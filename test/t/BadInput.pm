# The calls of 070_bad_input.pl: which values are tried at which arguments, which
# functions there are and what each may come to.
#
#	use BadInput;
#
#	my @functions = find_functions($session);
#	my @calls = single_calls(\&few);    each argument at a few of its values

package BadInput;

use strict;
use warnings;

use Exporter qw(import);

our @EXPORT = qw(all few find_functions pair_calls random_calls single_calls unused_entries);

my @functions;

#
# The values of each type, in SQL: a few, and more of them.
#

# Text that is not valid in the database's encoding: the server's error, before
# anything is called
my %INVALID =
  map { $_ => 1 } ("'\xff'", "'e\xc3'", "'\xed\xa0\x80'", q{E'\xc0\x80'}, q{E'a\000b'});

# 10 MB
my $LONG = q{repeat(repeat('m', 100000), 100)};
my $LONG_UTF8 = q{repeat(repeat('𝄞', 25000), 100)};

my %VALUES = (
	text => [
		[
			'NULL', q{''}, q{'me'}, q{'mine'}, q{'detached'}, q{'theirs'},
			q{repeat('m', 200)}, q{repeat('m', 201)},
			q{'''; DROP TABLE leader_election.lease; --'} ],
		[
			q{' '}, q{'me '}, q{' me'}, q{'d'}, q{'heir'}, q{'other'},
			q{'vacant'}, q{'spare'}, q{'no such election'},
			q{'"quoted"'}, q{'$1'}, q{'%s%n%d%-1000000s'}, q{'\\'}, q{'\N'},
			q{'../../x'}, q{'{"a":[1,null]}'},
			q{E'\x01\x02\x1b[31m\x7f\u0085'}, q{E'line\r\nline\tab'},
			q{E'e\u0301\u202e\u200b\ufeff\uffff\U0010ffff\U0001f600'},
			q{repeat('é', 100)}, q{'m' || repeat('é', 100)},
			q{repeat('m', 199) || 'é'}, q{repeat('𝄞', 50) || 'm'},
			q{repeat(E'\x01', 200)},
			$LONG, $LONG_UTF8, sort keys %INVALID ] ],
	name => [
		[ 'NULL', q{''}, q{'le_app'}, q{'no such role'} ],
		[
			q{' '}, q{'none'}, q{'public'}, q{'pg_monitor'}, q{'"le_app"'},
			q{repeat('m', 63)}, $LONG_UTF8 ] ],
	integer => [ [qw(NULL 0 2147483647 -2147483648)], [qw(1 -1 2)] ],
	bigint => [
		[qw(NULL 1 9223372036854775807 -9223372036854775808)],
		[
			qw(0 -1 2147483648 9007199254740992), q{term_of('mine')},
			q{term_of('theirs')} ] ],
	boolean => [ [qw(NULL true false)], [] ],
	interval => [
		[ 'NULL', map { "'$_'" } '0', '-1 us', '1 day', '178000000 years' ],
		[
			map { "'$_'" } '1 us', '99 ms', '100 ms', '1 day 1 us', '366 days',
			'366 days 1 us', '1 month', '-1 month', '1 month -30 days',
			'-1 month 31 days', '1 day -24 h', '-1 day 24 h',
			'-178000000 years', '2147483647 days', '-2147483648 days',
			'2147483647 months 2147483647 days 2562047788 h',
			'2147483647 months -2147483648 days', '9223372036854.775807 s',
			'-9223372036854.775808 s' ] ],
	jsonb => [
		[ 'NULL', q{'{}'}, q{megabyte()} ],
		[
			q{'null'}, q{'1e1000'}, q{'"text"'}, q{'[]'},
			q{'{"": {"election": "mine", "\u0001\ud834\udd1e": null}}'},
			q{(repeat('[', 1000) || repeat(']', 1000))::jsonb},
			qq{to_jsonb($LONG)}, qq{jsonb_build_object($LONG, 1)} ] ],
	uuid => [ [ 'NULL', 'gen_random_uuid()', q{'00000000-0000-0000-0000-000000000000'} ], [] ]);

# What an argument is good with: by its function and its name, or by its name.
my %GOOD = (
	election => q{'mine'},
	candidate => q{'me'},
	to_candidate => q{'heir'},
	rank => '0',
	progress => '0',
	metadata => q{'{"a": 1}'},
	auto_renew => 'true',
	timeout => q{'0'},
	hold => q{'0'},
	term => q{term_of('detached')},
	leader => q{'nobody'},
	terminate => 'false',
	strategy => q{'race'},
	lease_duration => q{'1 h'},
	quorum => '1',
	takeover_delay => q{'0'},
	candidate_role => q{''},
	owner => 'NULL',
	channel => q{''},
	preempt_delay => q{'0'},
	initial_delay => q{'0'},
	reason => q{'upgrade'},
	duration => q{'1 day'},
	vacate => 'false',
	run => 'NULL',
	attempts => 'NULL',
	request => 'NULL',
	done => 'false',
	group_name => q{'crew'},
	seats => '2',
	max_per_candidate => '1',
	'acquire.election' => q{'detached'},
	'acquire.candidate' => q{'d'},
	'acquire_any.candidate' => q{'d'},
	'alter_election.election' => q{'spare'},
	'pause_election.election' => q{'spare'},
	'campaign.term' => 'NULL',
	'create_election.election' => q{'new'},
	'create_group.group_name' => q{'fresh'},
	'drain_candidate.election' => q{'spare'},
	'drain_candidate.candidate' => q{'gone*'},
	'drop_election.election' => q{'spare'},
	'request_yield.election' => q{'detached'},
	'request_yield.to_candidate' => 'NULL',
	'undrain_candidate.election' => q{'spare'},
	'undrain_candidate.candidate' => q{'gone*'},
	'wait_for_change.term' => '-1');

#
# The functions: of which kind they are decides where they may be called, and
# beside it is what they may come to, other than success and 22023.
#

my %FUNCTIONS = (
	acquire => [ 'changes', 'LE004' ],
	acquire_any => [ 'changes', 'LE003', 'LE004' ],
	alter_election => [ 'changes', '42704', 'LE003' ],
	alter_group => [ 'changes', '42704', 'LE003' ],
	assert_leader => [ 'fences', 'LE001', 'LE003' ],
	campaign => [ 'changes', 'LE004' ],
	create_election => [ 'defines', '42704', '42710' ],
	create_group => [ 'defines', '42704', '42710' ],
	diagnose => [ 'observes', 'LE003' ],
	drain_candidate => [ 'changes', '42501', '54000', 'LE003' ],
	drop_election => [ 'defines', '55006', 'LE003' ],
	drop_group => [ 'defines', '55006', 'LE003' ],
	_incarnation => ['observes'],
	is_leader => ['observes'],
	join => [ 'changes', 'LE004' ],
	join_group => [ 'changes', 'LE003', 'LE004' ],
	leader => ['observes'],
	leave => [ 'changes', 'LE003' ],
	leave_all => ['changes'],
	_measure => ['observes'],
	_measure_server => ['observes'],
	_monotonic_clock => ['observes'],
	_observe => ['observes'],
	pause_all => [ 'changes', '42501' ],
	pause_election => [ 'changes', 'LE003' ],
	remaining_ms => ['observes'],
	release => [ 'changes', 'LE003' ],
	renew => [ 'changes', 'LE003' ],
	request_yield => [ 'changes', 'LE003', 'LE005' ],
	resign => [ 'changes', 'LE003' ],
	resume_all => [ 'changes', '42501' ],
	resume_election => [ 'changes', 'LE003' ],
	_standing => ['observes'],
	set_run_done => [ 'changes', 'LE003' ],
	term => ['observes'],
	transfer => [ 'changes', 'LE003', 'LE005' ],
	undrain_candidate => [ 'changes', '42501', 'LE003' ],
	wait_for_change => [ 'waits', 'LE003' ]);

# What was looked up in the tables above
my %used;

sub look_up
{
	my ($table, @keys) = @_;
	my ($key) = grep { exists $table->{$_} } @keys;

	return unless defined $key;
	$used{$table}{$key} = 1;
	return $table->{$key};
}

# As they are in the catalog, with the arguments that go in.
sub find_functions
{
	my ($session) = @_;
	my @found;

	push @{ $VALUES{interval}[1] }, q{'infinity'}, q{'-infinity'}
	  if $session->query('SHOW server_version_num') >= 170000;
	foreach my $row (
		$session->query(
			q{SELECT p.oid, proname, prokind,
					 (SELECT string_agg(a.name || '=' || format_type(a.type, NULL), ',' ORDER BY a.n)
						FROM unnest(proargnames, coalesce(proallargtypes, proargtypes::oid[]), proargmodes)
							 WITH ORDINALITY a (name, type, mode, n)
					   WHERE coalesce(a.mode, 'i') IN ('i', 'b', 'v'))
				FROM pg_proc p
					 JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
					 JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'leader_election'
			   WHERE prorettype <> 'trigger'::regtype
			   ORDER BY proname, pronargs, p.oid}))
	{
		my ($oid, $name, $prokind, $args) = split /\|/, $row, -1;
		my ($kind, @errors) = @{ look_up(\%FUNCTIONS, $name) // [] };
		my %f = (
			oid => $oid,
			name => $name,
			kind => $kind,
			errors => \@errors,
			is_procedure => $prokind eq 'p',
			args => []);

		foreach my $arg (split /,/, $args)
		{
			my ($arg_name, $type) = split /=/, $arg;
			my $good = look_up(\%GOOD, "$name.$arg_name", $arg_name);

			# A function that takes a term is for detached candidates.
			$good = q{'detached'}
			  if $arg_name eq 'election' && $args =~ /\bterm=/ && $prokind eq 'f';
			push @{ $f{args} },
			  { name => "$name($arg_name $type)", good => $good, values => look_up(\%VALUES, $type) };
		}
		push @found, \%f;
	}
	return @functions = @found;
}

# What the tables have for functions, arguments and types that there are not
sub unused_entries
{
	return map {
		my $table = $_;
		grep { !$used{$table}{$_} } sort keys %$table;
	} \%VALUES, \%GOOD, \%FUNCTIONS;
}

#
# The calls: a function, and the SQL of each argument.
#

# None that would end the calling session, which may lead any election by now.
sub make_call
{
	my ($f, @values) = @_;

	return
	  if $f->{name} eq 'request_yield'
	  && $values[2] eq 'true'
	  && $values[0] !~ /^(NULL|'')$|m', 201|1000/;
	return {
		f => $f,
		text => "leader_election.$f->{name}(" . join(', ', @values) . ')',
		values => \@values,
		is_invalid => scalar grep({ $INVALID{$_} } @values),
		may_wait => scalar grep({
			$f->{args}[$_]{name} =~ /\(timeout / && $values[$_] ne q{'0'}
		} 0 .. $#values) };
}

# A function with all arguments good but these, by number
sub change_good
{
	my ($f, %changes) = @_;

	return make_call($f,
		map { $changes{$_} // $f->{args}[$_]{good} } 0 .. $#{ $f->{args} });
}

sub few
{
	my ($arg) = @_;

	return @{ $arg->{values}[0] };
}

sub all
{
	my ($arg) = @_;

	return map { @$_ } @{ $arg->{values} };
}

# Each argument at each of its values
sub single_calls
{
	my ($values) = @_;
	my @calls;

	foreach my $f (@functions)
	{
		my $args = $f->{args};

		push @calls, change_good($f);
		foreach my $n (0 .. $#$args)
		{
			push @calls, map { change_good($f, $n => $_) } $values->($args->[$n]);
		}
	}
	return @calls;
}

# Each two arguments at their values
sub pair_calls
{
	my ($values) = @_;
	my @calls;

	foreach my $f (@functions)
	{
		my $args = $f->{args};

		foreach my $m (0 .. $#$args)
		{
			foreach my $n ($m + 1 .. $#$args)
			{
				foreach my $x ($values->($args->[$m]))
				{
					push @calls,
					  map { change_good($f, $m => $x, $n => $_) } $values->($args->[$n]);
				}
			}
		}
	}
	return @calls;
}

sub random_calls
{
	my ($count) = @_;
	my @with_args = grep { @{ $_->{args} } } @functions;
	my @calls;

	while (@calls < $count)
	{
		my $f = $with_args[ rand @with_args ];

		push @calls, make_call(
			$f,
			map {
				my @values = all($_);
				rand() < 0.4 ? $_->{good} : $values[ rand @values ];
			} @{ $f->{args} });
	}
	return @calls;
}

1;
