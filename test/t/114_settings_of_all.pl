# Settings that end transactions or processes, make them read-only, or change what a
# name means: of the whole server, and of a database, by an owner who is no superuser.
# The worker has its own, and renews, elects and announces all the same. A call of a
# candidate succeeds, or fails with nothing held while others are elected.

use strict;
use warnings;

use Carp;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use List::Util qw(max);
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

my %SETTINGS = (
	statement_timeout => '1ms',
	lock_timeout => '1ms',
	idle_in_transaction_session_timeout => '1ms',
	default_transaction_isolation => 'serializable',
	default_transaction_read_only => 'on',
	default_transaction_deferrable => 'on',
	synchronous_commit => 'off',
	search_path => 'nowhere',
	check_function_bodies => 'off',
	row_security => 'off',
	extra_float_digits => -15,
	timezone => 'Pacific/Kiritimati',
	datestyle => 'SQL, DMY',
	intervalstyle => 'iso_8601',
);

my $node = new_server;

$SETTINGS{transaction_timeout} = '1ms'
  if $node->safe_psql('postgres', "SELECT count(*) FROM pg_settings WHERE name = 'transaction_timeout'");

# What clients have
$ENV{PGOPTIONS} = join ' ', '-c search_path=public', '-c default_transaction_read_only=off',
  '-c default_transaction_isolation=read\ committed', '-c client_min_messages=warning',
  map { "-c $_=0" } grep { /timeout/ } keys %SETTINGS;

$node->safe_psql('postgres', "ALTER SYSTEM SET $_ = '$SETTINGS{$_}'")
  foreach sort keys %SETTINGS;
$node->reload;
{
	local $ENV{PGOPTIONS} = '';

	wait_until(
		sub {
			my ($code, $out, $errors) = $node->psql('postgres', 'SELECT pg_sleep(0.5)');
			return $errors =~ /(?:statement|transaction) timeout/;
		},
		'the settings to be those of all');
}

# On a slow machine to connect alone takes longer than transaction_timeout allows.
my %s;
foreach my $name (qw(one two listener owner))
{
	wait_until(sub { $s{$name} = eval { session($node, name => $name) } }, "$name to connect");
}

$s{listener}->query('LISTEN leadership_changed');
$s{owner}->query("SELECT leader_election.create_election('e', 'lowest', '3 s')");
$s{owner}->query("SELECT leader_election.create_election('detached', 'lowest', '600ms')");
is($s{one}->query("SELECT leader_election.join('e', 'one', rank => 1)"), '1', 'a session leads');
is($s{two}->query("SELECT leader_election.join('e', 'two', rank => 2)"), '', 'another one stands');
my $first = ($s{owner}->lease('e', 'deadline_mono'))[0];

wait_until(sub { ($s{owner}->lease('e', 'deadline_mono'))[0] > $first + 2_000_000 }, 'renewals');
is($s{one}->query("SELECT leader_election.term('e')"), '1', 'the worker renews its lease');
$s{one}->kill;
wait_until(sub { $s{two}->query("SELECT leader_election.term('e')") eq '2' }, 'the next leader');
pass('and elects the next one, when that session has ended');

is($s{owner}->query("SELECT term FROM leader_election.acquire('detached', 'd')"), '1', 'a detached candidate leads');
wait_until(sub { $s{owner}->query("SELECT reason FROM leader_election.history WHERE election = 'detached'") eq 'expired' }, 'the end of the lease');
pass('the worker ends its term');

my @told;
wait_until(
	sub {
		push @told, map { /"election": ?"(\w+)", ?"event": ?"(\w+)", ?"term": ?(\d+)/ ? "$1 $2 $3" : $_ } $s{listener}->notifications;
		return @told >= 4;
	},
	sub { "four notifications: @told" });
is_deeply([ sort @told ], [ 'detached elected 1', 'detached vacated 1', 'e elected 1', 'e elected 2' ], 'and tells of it all');
unlike(slurp_file($node->logfile), qr/leader_election worker.*(?:ERROR|FATAL)/, 'without an error');

# -- Settings of a database

# The owner of a database may give it any setting of context "user". (Those of context
# "backend" can only come with a connection: no worker has them from there.) The worker
# of that database has them, too, and each session. All of them are set to their
# extremes, in batches: each round takes the next value of each setting.
#
# What pg_settings has and no list names fails the test: is it one that changes how
# statements, transactions or processes end? Then say so in %MAY_END.

# They do not end calls.
my %HARMLESS = map { $_ => 1 } qw(
  DateStyle IntervalStyle TimeZone application_name array_nulls backend_flush_after
  backslash_quote bytea_output check_function_bodies client_connection_check_interval
  client_encoding client_min_messages commit_siblings constraint_exclusion
  cpu_index_tuple_cost cpu_operator_cost cpu_tuple_cost createrole_self_grant
  cursor_tuple_fraction debug_logical_replication_streaming debug_parallel_query
  debug_pretty_print debug_print_parse debug_print_plan debug_print_raw_parse
  debug_print_rewritten default_statistics_target default_table_access_method
  default_tablespace default_text_search_config default_toast_compression
  default_transaction_deferrable default_transaction_isolation effective_cache_size
  effective_io_concurrency enable_async_append enable_bitmapscan
  enable_distinct_reordering enable_eager_aggregate enable_gathermerge
  enable_group_by_reordering enable_groupagg enable_hashagg enable_hashjoin
  enable_incremental_sort enable_indexonlyscan enable_indexscan enable_material
  enable_memoize enable_mergejoin enable_nestloop enable_parallel_append
  enable_parallel_hash enable_partition_pruning enable_partitionwise_aggregate
  enable_partitionwise_join enable_presorted_aggregate enable_self_join_elimination
  enable_seqscan enable_sort enable_tidscan escape_string_warning
  extra_float_digits file_copy_method force_parallel_mode from_collapse_limit geqo
  geqo_effort geqo_generations geqo_pool_size geqo_seed geqo_selection_bias
  geqo_threshold gin_fuzzy_search_limit gin_pending_list_limit hash_mem_multiplier
  icu_validation_level io_combine_limit jit jit_above_cost
  jit_expressions jit_inline_above_cost jit_optimize_above_cost jit_tuple_deforming
  join_collapse_limit lc_monetary lc_numeric lc_time
  log_parameter_max_length_on_error logical_decoding_work_mem
  logical_replication_mode maintenance_io_concurrency maintenance_work_mem
  max_parallel_maintenance_workers max_parallel_workers
  max_parallel_workers_per_gather md5_password_warnings min_eager_agg_group_size
  min_parallel_index_scan_size min_parallel_table_scan_size optimize_bounded_sort
  parallel_leader_participation parallel_setup_cost parallel_tuple_cost
  password_encryption plan_cache_mode quote_all_identifiers random_page_cost
  recursive_worktable_factor restrict_nonsystem_relation_kind row_security
  scram_iterations search_path seed seq_page_cost ssl_renegotiation_limit
  standard_conforming_strings stats_fetch_consistency synchronize_seqscans
  synchronous_commit tcp_keepalives_count tcp_keepalives_idle
  tcp_keepalives_interval tcp_user_timeout temp_buffers temp_tablespaces
  timezone_abbreviations trace_notify trace_sort trace_syncscan
  transaction_deferrable transaction_isolation transaction_read_only
  transform_null_equals vacuum_buffer_usage_limit vacuum_cost_delay
  vacuum_cost_limit vacuum_cost_page_dirty vacuum_cost_page_hit
  vacuum_cost_page_miss vacuum_failsafe_age vacuum_freeze_min_age
  vacuum_freeze_table_age vacuum_max_eager_freeze_failure_rate
  vacuum_multixact_failsafe_age vacuum_multixact_freeze_min_age
  vacuum_multixact_freeze_table_age vacuum_truncate wal_receiver_timeout wal_sender_shutdown_timeout
  wal_sender_timeout wal_skip_threshold work_mem xmlbinary xmloption
  leader_election.dead_peer_detection);

# They may end a candidate's call, or its session, with these SQLSTATEs.
my %MAY_END = (
	default_transaction_read_only => '25006',
	exit_on_error => 'LE00[13]',    # with FATAL
	idle_in_transaction_session_timeout => '25P03',
	idle_session_timeout => '57P05',
	local_preload_libraries => '58P01|42501',
	lock_timeout => '55P03',
	role => '42501|22023',
	session_authorization => '42501|22023',
	statement_timeout => '57014',
	transaction_timeout => '25P04');

# The shortest time that is no "never"
my %SHORTEST = map { $_ => '1ms' } grep { /timeout/ } keys %MAY_END;

# The values of the others that end calls
my %MAY_BE_BAD = (
	default_transaction_read_only => 'on',
	exit_on_error => 'on',
	local_preload_libraries => 'nowhere',
	role => 'database_owner',
	session_authorization => 'database_owner');

# What pg_settings hides, but ALTER DATABASE takes
my @HIDDEN = qw(role session_authorization seed);

# Texts, which have no extremes
my %TEXTS = (
	DateStyle => [ 'SQL, DMY', 'German, YMD' ],
	TimeZone => [ 'Pacific/Kiritimati', 'Etc/GMT+12' ],
	application_name => [ '', 'x' x 63 ],
	client_encoding => [ 'SQL_ASCII', 'LATIN1', 'EUC_JP' ],
	createrole_self_grant => [ '', 'set, inherit' ],
	default_table_access_method => ['heap'],
	default_tablespace => [ '', 'pg_default' ],
	default_text_search_config => [ 'pg_catalog.simple', 'pg_catalog.german' ],
	lc_monetary => [ '', 'C' ],
	lc_numeric => [ '', 'C' ],
	lc_time => [ '', 'C' ],
	local_preload_libraries => [ '', 'nowhere' ],
	restrict_nonsystem_relation_kind => [ '', 'view, foreign-table' ],
	role => [ 'none', 'database_owner' ],
	search_path => [ '', 'nowhere' ],
	seed => [ -1, 1 ],
	session_authorization => ['database_owner'],
	temp_tablespaces => [ '', 'pg_default' ],
	timezone_abbreviations => [ 'Default', 'Australia' ]);

$s{owner}->query($_) foreach 'ALTER SYSTEM RESET ALL', "ALTER SYSTEM SET leader_election.lease_duration = '1s'";
$node->reload;
wait_until(sub { $s{owner}->query('SELECT 1'); $node->safe_psql('postgres', 'SHOW search_path') =~ /public/ },
	'the settings to be gone');

delete $ENV{PGOPTIONS};
$node->safe_psql('postgres', q{
	CREATE ROLE database_owner LOGIN; CREATE ROLE app LOGIN;
	CREATE DATABASE d OWNER database_owner});
$node->safe_psql('d', q{
	CREATE EXTENSION leader_election;
	GRANT USAGE ON SCHEMA leader_election TO app;
	GRANT USAGE ON SCHEMA leader_election TO database_owner;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app});

# These sessions are older than the settings, and so do not have them.
my $owner = session($node, name => 'database_owner', dbname => 'd', user => 'database_owner');
my $control = session($node, name => 'control', dbname => 'd', options => '-c client_min_messages=error');
my %old = map { $_ => session($node, name => "old $_", dbname => 'd', options => '-c client_min_messages=error') }
  qw(first second holder);

# name => values
my %values;
$_->query("SELECT leader_election.is_leader('e')") foreach $owner, $control;    # load the library
foreach my $row ($control->query(q{SELECT name, vartype, min_val, max_val, array_to_string(enumvals, ',')
	FROM pg_settings WHERE context = 'user'}))
{
	my ($name, $type, $min, $max, $enum) = split /\|/, $row, -1;

	$values{$name} =
	    $TEXTS{$name} ? $TEXTS{$name}
	  : $SHORTEST{$name} ? [ $SHORTEST{$name}, $max ]
	  : $type eq 'bool' ? [ 'on', 'off' ]
	  : $type eq 'enum' ? [ split /,/, $enum ]
	  : $type eq 'string' ? undef
	  : [ $min, $max ];
}
$values{$_} = $TEXTS{$_} foreach @HIDDEN;
is_deeply([ grep { !$HARMLESS{$_} && !$MAY_END{$_} } sort keys %values ], [],
	'each setting is in a list: does it end calls?');
is_deeply([ grep { !$values{$_} } sort keys %values ], [], 'each setting has values');
cmp_ok(scalar keys %values, '>', 100, 'settings: ' . keys %values);

# Gives the database these settings, and no others. Returns those that it refuses.
sub set_all
{
	my (%to) = @_;

	$control->query('ALTER DATABASE d RESET ALL');    # its owner cannot reset "seed" since 16
	$owner->query(join(";\n",
		map { "ALTER DATABASE d SET $_ = " . ($_ eq 'search_path' && $to{$_} eq '' ? "''" : "'$to{$_}'") } sort keys %to));
	my %has = map { s/=.*//sr => 1 } $control->query(q{SELECT unnest(setconfig) FROM pg_db_role_setting
		WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = 'd')});
	return grep { !$has{$_} } sort keys %to;
}

# Ends the worker. The next call starts one, which has the settings of now.
sub new_worker
{
	wait_until(
		sub {
			$control->query("SELECT pg_terminate_backend(pid) FROM $WORKERS");
			return $control->query($NO_WORKER) eq 't';
		},
		'the end of the last worker');
	$control->query("SELECT leader_election.join('keeps a worker', 'control')");
	wait_until(sub { $control->query($ONE_WORKER) eq 't' }, 'a worker');
	return $control->query($WORKER_PID);
}

# Has the worker do all of its work, and meet a lock that is not free, in elections
# of this round. That session is to end in it.
sub worker_works
{
	my ($round, $pid, $title, $ends) = @_;
	my ($e, $busy, $detached) = map { "$_ $round" } qw(e busy detached);
	my ($first, $second, $holder) = @old{qw(first second holder)};
	my $worker_is_there = sub { croak "$title: the worker has ended" if $control->query($WORKER_PID) ne $pid };

	$control->query("SELECT leader_election.create_election('$e', lease_duration => '3 s'),
		leader_election.create_election('$busy', lease_duration => '1 h'),
		leader_election.create_election('$detached', lease_duration => '300ms')");
	$ends->query("SELECT leader_election.join('$busy', 'ends')");
	$first->query("SELECT leader_election.join('$e', 'first')");
	$second->query("SELECT leader_election.join('$busy', 'second'), leader_election.join('$e', 'second')");
	$holder->query_async("SELECT leader_election.pause_election('$busy'), pg_sleep(3600)");
	$control->query("SELECT leader_election.acquire('$detached', 'd')");
	my $renewed = ($control->lease($e, 'acquired_mono + 3100000'))[0];

	# The session of a leader ends while the lock of its election is held: the worker
	# waits for it, in vain.
	wait_until(sub { $control->query("SELECT count(*) FROM pg_locks WHERE mode = 'ExclusiveLock'
		AND objsubid = 21 AND pid = " . $holder->backend_pid) eq '1' }, "$title: the lock to be held");
	$ends->kill;
	wait_until(
		sub {
			$worker_is_there->();
			return $control->query("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = $pid") eq '1';
		},
		"$title: the worker to wait for a lock");
	wait_until(
		sub {
			$worker_is_there->();
			return ($control->lease($e, 'deadline_mono'))[0] > $renewed
			  && $control->query("SELECT count(*) FROM leader_election.history
				WHERE election = '$detached' AND reason = 'expired'") eq '1';
		},
		"$title: a renewal, and the end of a lease");
	$first->query("SELECT leader_election.resign('$e')");
	wait_until(
		sub {
			$worker_is_there->();
			return $second->query("SELECT leader_election.term('$e')") eq '2'
			  && $control->query("SELECT term FROM leader_election.announced WHERE election = '$e'") eq '2';
		},
		"$title: the next leader, and the announcement");
	$control->query('SELECT pg_cancel_backend(' . $holder->backend_pid . ')');
	$holder->result;
	wait_until(
		sub {
			$worker_is_there->();
			return $second->query("SELECT leader_election.term('$busy')") eq '2';
		},
		"$title: the next leader of the election whose lock was held");
	$_->query('SELECT leader_election.leave_all()') foreach $first, $second;
	return;
}

# After a round that has failed
sub reset_old
{
	$control->query('SELECT pg_cancel_backend(' . $old{holder}->backend_pid . ')');
	$old{holder}->result if $old{holder}{busy};
	$_->query('SELECT leader_election.leave_all()') foreach @old{qw(first second)};
	return;
}

# What a candidate does. %s: the round
my @CALLS = (
	q{SELECT leader_election.join('session %s', 'c')},
	q{SELECT term FROM leader_election.renew('session %s')},
	q{SELECT leader_election.assert_leader('session %s')},
	q{SELECT leader_election.resign('session %s')},
	q{CALL leader_election.campaign('campaign %s', 'c', '1 min')},
	q{SELECT term FROM leader_election.acquire('acquired %s', 'c')},
	q{SELECT term FROM leader_election.renew('acquired %s', 1)},
	q{SELECT leader_election.release('acquired %s', 1)},
	q{SELECT leader_election.leave_all()});

# -- All settings at once, for the worker; then those that end no calls, for a
# candidate

my $rounds = max(map { scalar @{ $values{$_} } } keys %values);
my @ends = map { session($node, name => "ends $_", dbname => 'd', options => '-c client_min_messages=error') } 1 .. $rounds;
my (%refused, @failed);

foreach my $round (1 .. $rounds)
{
	my %to = map { $_ => $values{$_}[ $round % @{ $values{$_} } ] } keys %values;

	$refused{$_} = 1 foreach set_all(%to);
	my $title = "round $round of $rounds";
	my $pid = new_worker();
	my $worked = eval { worker_works($round, $pid, $title, shift @ends); 1 };
	ok($worked, "$title: the worker does its work (G7)") or diag($@ =~ /^(.*)/);
	reset_old() unless $worked;
	is($control->query($WORKER_PID), $pid, "$title: and has not ended");

	delete @to{ keys %MAY_END };
	set_all(%to);
	my $candidate = session($node, name => 'candidate', dbname => 'd', user => 'app');
	foreach my $call (@CALLS)
	{
		push @failed, $call . ': ' . $candidate->errors
		  if $candidate->sqlstate_of(sprintf($call, $round)) ne '00000';
	}
	is($control->query("SELECT count(*) FROM leader_election.history
			WHERE election IN ('session $round', 'campaign $round', 'acquired $round')"),
		'3', "$title: a candidate was elected by each call");
	$candidate->finish;
}
is("@failed", '', 'no call of it failed');

# The first ones are those of a transaction, which the command has itself; the last one
# can only be on since 19.
is(join(' ', grep { !/^transaction_|^standard_conforming_strings$/ } sort keys %refused),
	'', 'ALTER DATABASE takes them all');

# -- Those that may end calls: with the SQLSTATE that is known, and nothing held

# What is held by others than the worker and the sessions that have other settings
my $HELD = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
	AND database = (SELECT oid FROM pg_database WHERE datname = 'd')
	AND pid NOT IN (SELECT pid FROM $WORKERS)
	AND pid NOT IN (" . join(', ', map { $_->backend_pid } $control, values %old) . ')';

foreach my $name (sort grep { $values{$_} } keys %MAY_END)
{
	my $value = $SHORTEST{$name} // $MAY_BE_BAD{$name};
	my @bad;

	set_all($name => $value);
	foreach my $call (map { sprintf($_, $name) } @CALLS)
	{
		my ($election) = $call =~ /'(\w+ \w+)'/;
		my ($out, $errors);

		$node->psql('d', "\\set VERBOSITY verbose\n$call", stdout => \$out, stderr => \$errors,
			extra_params => [ '-U', 'app' ]);

		# A leader's call says that the one before it did not make a leader.
		push @bad, "$call: $errors"
		  if grep { !/^(?:$MAY_END{$name}|LE00[13])$/ } $errors =~ /^(?:psql:\S+ )?(?:ERROR|FATAL): +(\w{5}):/mg;
		eval {
			wait_until(sub { $control->query($HELD) eq '0' }, 'nothing to be held');
			wait_until(
				sub {
					my $term = $control->query("SELECT term FROM leader_election.acquire('$election', 'rival')");

					return $term ne '' && $control->query("SELECT leader_election.release('$election', $term)") eq 't';
				},
				'a rival to be elected', 20) if $election;
			1;
		} or push @bad, "$call: " . $@ =~ s/\n.*//sr;
	}
	is("@bad", '', "$name = $value: calls succeed, or end as is known; nothing is held, and others are elected");
}

done_testing();
