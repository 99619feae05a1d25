# Calls that meet what another transaction has locked: the row of one of the tables, a
# name, or an election while the caller has locked another. Each one says in time that
# the election is busy, has done nothing, and works once that transaction is over. And
# what calls do where the worker has noticed nothing yet, or where there is none.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

my $node = new_server(config => "leader_election.lease_duration = '10min'\nclient_min_messages = warning\n");
my $admin = session($node, name => 'admin');
my $other = session($node, name => 'other');
my $caller = session($node, name => 'caller');
my $other_pid = $other->backend_pid;
my $caller_pid = $caller->backend_pid;

# A call must not fail.
sub call
{
	my ($sql, $session) = @_;
	my $result = ($session // $admin)->query($sql);

	die "$sql: " . ($session // $admin)->errors if ($session // $admin)->sqlstate ne '00000';
	return $result;
}

call("SELECT leader_election.create_election('$_')") foreach qw(e drop led yields held);
call("SELECT leader_election.create_group('g', 1), leader_election.create_group('drops', 1)");
call("SELECT leader_election.join_group('g', 'admin')");
call("SELECT leader_election.drain_candidate('d', 'e', 'disks')");
call("SELECT leader_election.acquire_any('g', 'next')");
call("SELECT leader_election.join('led', 'admin'), leader_election.join('yields', 'admin')");
call("SELECT leader_election.request_yield('yields')");
call("SELECT leader_election.acquire('held', 'first')");
call("SELECT leader_election.acquire('held', '$_')") foreach qw(second third);
call("SELECT leader_election.create_election('few', quorum => 2)");
call("SELECT leader_election.acquire('few', 'lone')");

sub row
{
	my ($table, $where, $mode) = @_;

	$mode //= 'UPDATE';
	return "SELECT FROM leader_election.$table WHERE $where FOR $mode";
}

# --- What another transaction has locked

# What it does (a call of ours goes on for long), the call, and what is told to be busy.
# What the caller has locked before in its statement; who calls; what undoes the call.
my @LOCKED = (
	[ 'its settings', row(election => "election = 'e'"), "alter_election('e', quorum => 1)", 'e' ],
	[ 'its settings', row(election => "election = 'e'"), "pause_election('e')", 'e' ],
	[ 'its settings', row(election => "election = 'e'"), "resume_election('e')", 'e' ],
	[ 'its settings', row(election => "election = 'drop'"), "drop_election('drop')", 'drop' ],
	[ 'its lease', row(lease => "election = 'e'"), "set_run_done('e', 'r1')", 'e' ],
	[ 'its lease', row(lease => "election = 'led'"), "request_yield('led')", 'led' ],
	[ 'its lease', row(lease => "election = 'g/1'"), "request_yield('g/1', 'next')", 'g/1' ],
	[ 'its lease', row(lease => "election = 'yields'"), q(renew('yields', metadata => '{"a": 1}')), 'yields', who => $admin ],
	[ 'a drain', row(drain => "election = 'e'"), "drop_election('e')", 'e' ],
	[ 'a drain', row(drain => "election = 'e'"), "undrain_candidate('d', 'e')", 'e' ],
	[ 'the drains of all', "drain_candidate('x')", "undrain_candidate('y')" ],
	[ 'the drains of all', "drain_candidate('x')", "drain_candidate('y')", undef, undo => "undrain_candidate('y')" ],
	[ 'a candidate', row(candidate => "election = 'held'"), "leave('held', 'second')", 'held' ],
	[ 'a candidate, for the key', row(candidate => "election = 'held'", 'KEY SHARE'), "leave('held', 'third')", 'held' ],
	[ 'a candidate', row(candidate => "election = 'few'"), "acquire('few', 'lone', rank => 5)", 'few' ],
	[ 'the group', row(election_group => "group_name = 'g'"), "alter_group('g', max_per_candidate => 1)", 'g' ],
	[ 'the group', row(election_group => "group_name = 'drops'"), "drop_group('drops')", 'drops' ],
	[ 'the group, in use', "alter_group('g', max_per_candidate => 1)", "alter_group('g', seats => 1)", 'g' ],
	[ 'the group, in use', "alter_group('g', max_per_candidate => 1)", "request_yield('g/1', 'next')", 'g/1' ],
	[ 'the pause of all', 'pause_all()', 'pause_all()', undef, undo => 'resume_all()' ],
	[ 'the name', "create_group('drop', 1)", "drop_election('drop')", 'drop' ],
	[ 'the name', "create_election('g')", "alter_group('g', max_per_candidate => 1)", 'g' ],
	[ 'the name', "create_group('new', 1)", "create_group('new', 1)", 'new' ],
	[ 'the name of its group', "create_group('new', 1)", "create_election('new/1')", 'new/1' ],
	[ 'the table of groups', 'LOCK TABLE leader_election.election_group', "create_election('new/1')", 'new/1' ],
	[ 'the table of last terms', 'LOCK TABLE leader_election.dropped', "create_election('new')", 'new' ],
	[ 'the table of last terms', 'LOCK TABLE leader_election.dropped', "drop_election('drop')", 'drop' ],
	[ 'the table of last terms', 'LOCK TABLE leader_election.dropped', "create_group('new', 1)", 'new' ],
	[ 'the second election', "drain_candidate('x', 'drop')", "drop_election('drop')", 'drop', before => "drain_candidate('y', 'e')" ],
	[ 'the second election', "drain_candidate('x', 'e')", "alter_election('e', quorum => 1)", 'e', before => "drain_candidate('y', 'drop')" ],
	[ 'a seat', "drain_candidate('x', 'drops/1')", "drop_group('drops')", 'drops' ],
	[ 'the lease of a seat', row(lease => "election = 'drops/1'"), "drop_group('drops')", 'drops' ],
	[ 'the settings of a seat', row(election => "election = 'drops/1'"), "drop_group('drops')", 'drops' ],
	[ 'an index', 'ALTER INDEX leader_election.history_acquired_at SET TABLESPACE pg_default', "join('led anew', 'c')", 'led anew', undo => "leave_all()" ],
	[ 'the name of a seat', "create_election('new/1')", "create_group('new', 1)", 'new' ],
);

my $TABLES = join ', ', map { "(SELECT jsonb_agg(to_jsonb(t) ORDER BY to_jsonb(t)) FROM leader_election.$_ t)" }
  qw(election election_group drain pause_all dropped);

# Has the other session lock that, and hold it.
sub lock_it
{
	my ($lock) = @_;

	call('BEGIN', $other) if $lock !~ /^\w+\(/;
	return call($lock, $other) if $lock !~ /^\w+\(/;
	$other->query_async("SELECT leader_election.$lock, pg_sleep(600)");
	return wait_for($node, "SELECT wait_event FROM pg_stat_activity WHERE pid = $other_pid", 'PgSleep');
}

sub unlock_it
{
	my ($lock) = @_;

	return call('ROLLBACK', $other) if $lock !~ /^\w+\(/;
	call("SELECT pg_cancel_backend($other_pid)");
	return $other->result;
}

foreach my $locked (@LOCKED)
{
	my ($what, $lock, $sql, $busy, %o) = @$locked;
	my $title = "$sql, $what is locked";
	my $was = call("SELECT $TABLES");
	my $who = $o{who} // $caller;
	my $all = join ', ', map { "leader_election.$_" } grep { defined } $o{before}, $sql;

	call("SET lock_timeout = '50ms'", $who);
	lock_it($lock);
	is($who->sqlstate_of("SELECT $all"), '55P03', "$title: busy");
	like($who->errors, defined $busy ? qr/election "\Q$busy\E" is busy/ : qr/ is busy/, "$title: and says so");
	unlock_it($lock);
	is(call("SELECT $TABLES"), $was, "$title: nothing has changed");
	call('RESET lock_timeout', $who);
	call('BEGIN', $who) if $sql =~ /^(create|drop)_/;
	is($who->sqlstate_of("SELECT leader_election.$sql"), '00000', "$title: until that is over");
	call('ROLLBACK', $who) if $sql =~ /^(create|drop)_/;
	call("SELECT leader_election.$o{undo}") if $o{undo};
}

# The row of a pause of all
call('SELECT leader_election.pause_all()');
call($_, $other) foreach 'BEGIN', row(pause_all => 'true');
is($caller->sqlstate_of('SELECT leader_election.pause_all()'), '55P03', 'pause_all(), its row is locked: busy');
call('ROLLBACK', $other);
call('SELECT leader_election.resume_all()');

# Who waits in a campaign for an election that cannot be made yet, makes it later.
lock_it('LOCK TABLE leader_election.announced');
is(call("CALL leader_election.campaign('made later', 'c', '100ms')", $caller), '', 'campaign(), the marks are locked: waits');
$caller->query_async("CALL leader_election.campaign('made later', 'c')");
wait_for($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $caller_pid AND query LIKE 'CALL %' AND state = 'active'", 1);
unlock_it('');
is($caller->result, 1, 'campaign(): until they are not');
call("SELECT leader_election.leave('made later')", $caller);

# A renewal waits neither for the settings of the election nor to stand again.
my $seat_term = call("SELECT term FROM leader_election.acquire_any('drops', 'd')");
my $LASTS = "SELECT expires_at - renewed_at > '9 min' FROM leader_election.lease WHERE election = 'drops/1'";
call("DELETE FROM leader_election.candidate WHERE candidate = 'd'");
lock_it('LOCK TABLE leader_election.election');
is(call("SELECT count(*) FROM leader_election.renew('drops/1', $seat_term)", $caller), 1, 'renew(), the settings are locked: renews');
unlock_it('');
is(call($LASTS), 't', 'renew(): for as long as before');
is(call("SELECT count(*) FROM leader_election.candidate WHERE candidate = 'd'"), 0, 'renew(): and leaves standing again');
call("SELECT leader_election.renew('drops/1', $seat_term)", $caller);
is(call("SELECT count(*) FROM leader_election.candidate WHERE candidate = 'd'"), 1, 'renew(): to a later call');
call("SELECT leader_election.release('drops/1', $seat_term)");

# Where even the version cannot be read: it is not taken for another one.
lock_it('LOCK TABLE leader_election.protocol');
is(call('SELECT worker FROM leader_election.server_metrics', $caller), 1, 'server_metrics, the view protocol is locked: answers');
unlock_it('');

# --- An election that is dropped while a call waits for its lock

my $term = $admin->acquire('drop', 'd');
call('SELECT pg_advisory_lock(1)');
$other->query_async("SELECT leader_election.release('drop', $term), leader_election.drop_election('drop'), pg_advisory_xact_lock(1)");
wait_for($node, "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = $other_pid", 1);
call('RESET lock_timeout', $caller);
$caller->query_async("SELECT leader_election.release('drop', $term)");
wait_for($node, "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = $caller_pid", 1);
call('SELECT pg_advisory_unlock(1)');
$_->result foreach $other, $caller;
is($other->errors, "", "an election is dropped");
like($caller->errors, qr/^ERROR:  election "drop" does not exist/m, 'while release() waits for it: there is none');

# --- A group whose seats somebody has deleted by hand

call("SELECT leader_election.create_group('empty', 2, lease_duration => '1 h')");
call("DELETE FROM leader_election.$_ WHERE election LIKE 'empty/%'") foreach qw(lease election announced);
is(call("SELECT count(*) FROM leader_election.acquire_any('empty', 'c')"), 0, 'seats that were deleted by hand: nobody gets one');
call("SELECT leader_election.alter_group('empty', quorum => 2)");
is(call("SELECT string_agg(concat(election, ' ', lease_duration, ' ', quorum), ', ' ORDER BY election)
	FROM leader_election.election WHERE group_name = 'empty'"), 'empty/1 00:10:00 2, empty/2 00:10:00 2',
	'seats that were deleted by hand: alter_group() makes them, with the defaults');

# --- An election whose lease somebody has deleted by hand

call("SELECT leader_election.create_election('torn')");
call("SELECT leader_election.join('torn', 'admin'), leader_election.acquire('torn', 'c')");
call("DELETE FROM leader_election.lease WHERE election = 'torn'");
is(call("SELECT state, leader, candidates FROM leader_election.status WHERE election = 'torn'"), '||',
	'a lease that was deleted by hand: status tells nothing');
is(call("SELECT count(*) FROM leader_election.candidates WHERE election = 'torn'"), 0, 'nor who stands');
is(call("SELECT led, vacant_seconds, term, candidates, paused FROM leader_election.metrics WHERE election = 'torn'"), '0||||',
	'but that nobody leads');
is(call("SELECT leader_election.is_leader('torn')"), 'f', 'nor does its leader');
is($admin->sqlstate_of("SELECT leader_election.leave('torn')"), 'LE003', 'to whom leave() tells that there is none');

# --- A call that asks twice in one statement

call("SELECT leader_election.create_group('twice', 2, max_per_candidate => 2)");
is(call("SELECT string_agg(concat_ws(' ', a.election, b.election, b.term - a.term), ', ' ORDER BY a.election, b.election)
		FROM leader_election.acquire_any('twice', 'c') a, leader_election.acquire_any('twice', 'c') b WHERE a.election = b.election"),
	'twice/1 twice/1 0, twice/2 twice/2 0', 'acquire_any(): what this transaction was granted');
call("SELECT leader_election.create_group('joined', 1)");
is(call("SELECT a.election, b.election, b.term - a.term
		FROM leader_election.join_group('joined', 'admin') a, leader_election.join_group('joined', 'admin') b"),
	'joined/1|joined/1|0', 'join_group() tells so, too');

# --- The worker hangs: a lease is over, and nobody has noticed.

call("SELECT leader_election.create_election('$_')") foreach qw(over filled);
my %term = map { $_ => $admin->acquire($_, 'gone') } qw(over filled);
call("SELECT leader_election.acquire('filled', 'next')");
call("SELECT leader_election.pause_election('filled')");
call("SELECT leader_election.acquire('held', 'silent')");
call("SELECT leader_election.set_run_done('held', 'r1')");
my $worker = stop_worker($admin);
call("UPDATE leader_election.lease SET deadline_mono = deadline_mono - 3600000000::bigint,
	expires_at = expires_at - interval '1 h' WHERE election IN ('over', 'filled')");
is(call("SELECT leader_election.request_yield('over') IS NULL"), 't', 'over: nobody is asked to yield');
call("SET lock_timeout = '50ms'", $caller);
call($_, $other) foreach 'BEGIN', row(lease => "election = 'over'");
is($caller->sqlstate_of("SELECT leader_election.renew('over', $term{over})"), '55P03',
	'over: whether it was renewed in time cannot be told while its row is locked');
is($caller->sqlstate_of("SELECT leader_election.leave('over', 'gone')"), '55P03', 'over: nor whether it leads, and may not leave');
call('ROLLBACK', $other);
is(call("SELECT count(*) FROM leader_election.renew('over', $term{over})", $caller), 0, 'over: then it was not');
call("SELECT leader_election.acquire('held', 'late')");
call("UPDATE leader_election.candidate SET seen_mono = 0 WHERE candidate = 'late'");
call($_, $other) foreach 'BEGIN', row(candidate => "candidate = 'late'");
is($caller->sqlstate_of("SELECT leader_election.join('held', 'late')"), '55P03', 'a name whose last owner is dead, but its row is locked');
call('ROLLBACK', $other);
is($caller->sqlstate_of("SELECT leader_election.join('held', 'late')"), '00000', 'is free when it is not');
is(call("SELECT leader_election.leave('over', 'gone')", $caller), 't', 'over: and who led may leave');
call("UPDATE leader_election.candidate SET seen_mono = seen_mono - 3600000000::bigint
	WHERE election = 'held' AND candidate = 'silent'");
is(call("SELECT count(*) FROM leader_election.acquire('held', 'silent', run => 'r1')", $caller), 0,
	'silent: a run that is done is not granted to a candidate that has not called for long');
is(call("SELECT count(*) FROM leader_election.candidate WHERE election = 'held' AND candidate = 'silent'"), 1,
	'silent: the worker will remove its row, not this call');
is(call("SELECT leader_election.request_yield('filled', 'next') IS NOT NULL"), 't', 'filled: a paused election is reserved');
is(call("SELECT concat(leader, '|', successor) FROM leader_election.lease WHERE election = 'filled'"), '|next',
	'filled: after its last leader, whose lease is over');
is(call("SELECT reason FROM leader_election.history WHERE election = 'filled' AND term = $term{filled}"), 'expired',
	'filled: which is told');
resume_process($worker);

# --- An administrator has locked the catalog that tells what belongs to the extension.

call('CREATE ROLE app');
call($_, $other) foreach 'BEGIN', 'LOCK TABLE pg_catalog.pg_depend';
like(call("SELECT severity, finding FROM leader_election.diagnose('e')"),
	qr/^notice\|These rows do not tell what others have added to the extension's tables, .*: the catalog pg_depend is locked/m,
	'pg_depend is locked: diagnose() says what it does not tell');
is($caller->sqlstate_of("SELECT leader_election.join('led', 'caller')"), '00000',
	'and a superuser whose roles have changed does not wait for it');
call('ROLLBACK', $other);
unlike(call("SELECT finding FROM leader_election.diagnose('e')"), qr/pg_depend/, 'until it is unlocked');

# --- An index that has another name: the library does not find it.

my $leads = "SELECT leader_election.is_leader('led', @{[ call(q{SELECT term FROM leader_election.lease WHERE election = 'led'}) ]})";
foreach my $index (qw(history_acquired_at drain_pkey))
{
	is(call($leads, $caller), 't', "$index: who leads");
	call("ALTER INDEX leader_election.$index RENAME TO renamed");
	isnt($caller->sqlstate_of("SELECT leader_election.join('led', 'caller')"), '00000', "$index renamed: no call works");
	is(call($leads, $caller), 'f', "$index renamed: nobody leads, for what can be told");
	call("ALTER INDEX leader_election.renamed RENAME TO $index");
	is($caller->sqlstate_of("SELECT leader_election.join('led', 'caller')"), '00000', "$index renamed: until it is as before");
}

# --- Code in a write of ours that puts another table in the place of one

call(q{CREATE FUNCTION public.replaces() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN
		IF current_setting('my.replaces', true) = 'on' THEN
			ALTER TABLE leader_election.drain RENAME TO former;
			ALTER INDEX leader_election.drain_pkey RENAME TO former_pkey;
			CREATE TABLE leader_election.drain (LIKE leader_election.former INCLUDING ALL);
		END IF;
		RETURN true;
	END$$;
	ALTER TABLE leader_election.election ADD CONSTRAINT replaces CHECK (public.replaces())});
call('SET my.replaces = on', $caller);
$caller->query("SELECT leader_election.alter_election('e', quorum => 1)");
like($caller->errors, qr/^ERROR:  the elections of this database have been dropped/m, 'another table in the place of one: the write fails');
call('RESET my.replaces', $caller);
call('ALTER TABLE leader_election.election DROP CONSTRAINT replaces');
is($caller->sqlstate_of("SELECT leader_election.alter_election('e', quorum => 1)"), '00000', 'which changes nothing');

# --- The postmaster hangs: it starts no worker.

call("SELECT leader_election.create_election('brief', lease_duration => '100 ms'),
	leader_election.create_group('briefs', 1, lease_duration => '100 ms')");
call("SELECT pg_terminate_backend(pid) FROM $WORKERS");
wait_for($node, $NO_WORKER);
my @impatient = map { session($node, name => "impatient $_", options => '-c lock_timeout=20ms') } 1 .. 5;
my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
stop_process($postmaster);
is($caller->sqlstate_of("SELECT leader_election.join('led', 'caller')"), '00000', 'the postmaster hangs: join() works');
is($caller->sqlstate_of("SELECT leader_election.join('e', 'caller')"), '00000', 'and works again');
is(call("SELECT leader_election.join('brief', 'admin')"), '', 'a lease that is over when the wait for a worker ends is no grant');
is(call("SELECT count(*) FROM leader_election.join_group('briefs', 'other')", $other), 0, 'nor is that of a seat');
is(call("SELECT count(*) FROM leader_election.history WHERE election LIKE 'brief%'"), 2, 'though both had been granted');

# A call waits for a worker only for as long as it may wait at all. (A slow machine may be
# slow once.)
my @waited = map { $_->query("SELECT -leader_election._monotonic_clock(), leader_election.join('led', '@{[ $_->backend_pid ]}'),
	leader_election._monotonic_clock()") =~ /^(-\d+)\|\|(\d+)$/ ? $1 + $2 : die 'no times' } @impatient;
cmp_ok((sort { $a <=> $b } @waited)[0], '<', 450_000, 'nor does a call wait longer than its lock_timeout');
resume_process($postmaster);
$_->finish foreach @impatient;
wait_for($node, $ONE_WORKER);

# --- The catalog of databases is locked: no worker gets as far as to work.

call("SELECT pg_terminate_backend(pid, 60000) FROM $WORKERS");
call($_, $other) foreach 'BEGIN', 'LOCK TABLE pg_catalog.pg_database';
is($caller->sqlstate_of("SELECT leader_election.join('led', 'caller')"), '00000', 'a worker that ends as it starts: join() works');
call('ROLLBACK', $other);
is($caller->sqlstate_of("SELECT leader_election.join('led', 'caller')"), '00000', 'and starts another one later');
wait_for($node, $ONE_WORKER);

# --- A server without a worker

my $alone = new_server(name => 'alone', streaming => 1,
	config => "leader_election.lease_duration = '10min'\nclient_min_messages = error\nmax_worker_processes = 1\n");
$admin = session($alone, name => 'admin');
$other = session($alone, name => 'other');
$other_pid = $other->backend_pid;
call("SELECT leader_election.create_election('drained'), leader_election.create_group('g', 2)");
$term = $admin->acquire('drained', 'd');
my @stale = map { $admin->acquire($_, 'd') } qw(one two);
call("SELECT leader_election.drain_candidate('d', 'drained')");
$other->query_async("SELECT leader_election.drain_candidate('x', 'drained'), pg_sleep(600)");
wait_for($alone, "SELECT wait_event FROM pg_stat_activity WHERE pid = $other_pid", 'PgSleep');
is($admin->sqlstate_of("SELECT leader_election.renew('drained', $term)"), '00000', 'drained, without a worker: renews');
is(call("SELECT yielding FROM leader_election.lease WHERE election = 'drained'"), 'f',
	'and is not asked to yield while the election is locked');
call("SELECT pg_cancel_backend($other_pid)");
$other->result;
foreach my $table (qw(drain history))
{
	call($_, $other) foreach 'BEGIN', "LOCK TABLE leader_election.$table";
	is($admin->sqlstate_of("SELECT leader_election.renew('drained', $term)"), '00000', "$table is locked: renews");
	is(call("SELECT yielding FROM leader_election.lease WHERE election = 'drained'"), 'f', 'and is not asked, either');
	call('ROLLBACK', $other);
}
call($_, $other) foreach 'BEGIN', row(lease => "election = 'drained'");
is($admin->sqlstate_of("SELECT leader_election.renew('drained', $term)"), '55P03', 'its lease is locked: does not renew');
call('ROLLBACK', $other);
call("SELECT leader_election.renew('drained', $term)");
is(call("SELECT yielding FROM leader_election.lease WHERE election = 'drained'"), 't', 'but by the next call');

# A leader that calls join() is asked to yield there, too. If half of its lease is over it is
# renewed, unless its row is locked.
call("SELECT leader_election.create_election('joins', lease_duration => '30 s')");
is(call("SELECT leader_election.join('$_', 'admin')"), 1, "$_, without a worker: leads") foreach qw(asked joins);
call("SELECT leader_election.drain_candidate('admin', 'asked')");
is(call("SELECT leader_election.join('asked', 'admin')"), 1, 'asked: and leads still');
is(call("SELECT yielding FROM leader_election.lease WHERE election = 'asked'"), 't', 'asked: but is to yield');
call("UPDATE leader_election.lease SET deadline_mono = leader_election._monotonic_clock() + 14500000 WHERE election = 'joins'");
my $deadline = call("SELECT deadline_mono FROM leader_election.lease WHERE election = 'joins'");
call($_, $other) foreach 'BEGIN', row(lease => "election = 'joins'");
is(call("SELECT leader_election.join('joins', 'admin')"), 1, 'joins, whose row is locked: leads still') foreach 1, 2;
is(call("SELECT deadline_mono FROM leader_election.lease WHERE election = 'joins'"), $deadline, 'joins: is not renewed');
call('ROLLBACK', $other);
wait_until(sub {
		die 'lost' if call("SELECT leader_election.join('joins', 'admin')") ne '1';
		return call("SELECT deadline_mono > $deadline FROM leader_election.lease WHERE election = 'joins'") eq 't';
	}, 'a renewal');
pass('joins: until the row is free');

# A campaign polls again while something is locked, and is elected then.
call("SELECT leader_election.create_election('campaign'), leader_election.create_group('of', 1)");
foreach my $case (
	[ 'an index', 'ALTER INDEX leader_election.history_acquired_at SET TABLESPACE pg_default', 'campaign' ],
	[ 'groups', 'LOCK TABLE leader_election.election_group', 'of/1' ])
{
	my ($what, $lock, $election) = @$case;

	call("BEGIN; $lock", $other);
	$admin->query_async("CALL leader_election.campaign('$election', 'admin')");
	wait_until(sub { $admin->finished
				|| $other->query("SELECT wait_event_type FROM pg_stat_activity WHERE pid = @{[ $admin->backend_pid ]}") eq 'Extension' },
		'a campaign that waits');
	is($other->query("SELECT count(*) FROM leader_election.lease WHERE election = '$election' AND leader IS NULL"), 1,
		"$what: a campaign elects nobody");
	$other->query('COMMIT');
	like($admin->result, qr/^[1-9]\d*$/, 'until it is free');
}

# A session's first write opens all indexes, and waits for them no longer than for others.
call("SELECT leader_election.leave('campaign')");
my $cold = session($alone, name => 'cold');
my $held = call("SELECT term FROM leader_election.acquire('campaign', 'cold')");
call('BEGIN; ALTER INDEX leader_election.history_acquired_at SET TABLESPACE pg_default', $other);
$cold->query("SELECT leader_election.release('campaign', $held)");
like($cold->sqlstate, qr/^(?:00000|55P03)$/, 'an index: a first write waits for a second at most');
call('ROLLBACK', $other);
$cold->finish;

# Another table is given the name of one for whose lock a call waits.
call($_, $other) foreach 'BEGIN', 'CREATE TABLE leader_election.c2 (LIKE leader_election.candidate INCLUDING ALL)',
  'ALTER TABLE leader_election.candidate RENAME TO c1', 'ALTER INDEX leader_election.candidate_pkey RENAME TO c1_pkey',
  'ALTER TABLE leader_election.c2 RENAME TO candidate', 'ALTER INDEX leader_election.c2_pkey RENAME TO candidate_pkey';
$admin->query_async("SELECT term FROM leader_election.acquire('campaign', 'admin')");
wait_for($alone, "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = @{[ $admin->backend_pid ]}", 1);
call('COMMIT', $other);
is($admin->result, '', 'a table that was given the name: is not written to');
is($admin->sqlstate, 'LE003', 'and the call says so');
call($_, $other) foreach 'DROP TABLE leader_election.candidate', 'ALTER TABLE leader_election.c1 RENAME TO candidate',
  'ALTER INDEX leader_election.c1_pkey RENAME TO candidate_pkey';

# Of the calls of one transaction the first begins the epoch, and all leave the rest to
# later ones.
$alone->backup('backup');
my $promoted = PostgreSQL::Test::Cluster->new('promoted');
$promoted->init_from_backup($alone, 'backup', has_streaming => 1);
$promoted->start;
$alone->wait_for_catchup($promoted);
is(session($promoted, name => 'standby')->query('SELECT leader_election._incarnation() IS NULL'), 't', 'a standby is no incarnation');
$alone->stop('immediate');
$promoted->promote;
$admin = session($promoted, name => 'admin');
my $epochs = call('SELECT count(*) FROM leader_election.epoch');
is(call("SELECT (SELECT count(*) FROM leader_election.join_group('g', 's')),
		(SELECT count(*) FROM leader_election.acquire('drained', 'd')),
		(SELECT count(*) FROM leader_election.acquire_any('g', 'd')),
		(SELECT count(*) FROM leader_election.join_group('g', 't'))"), '0|0|0|0', 'promoted: nobody is elected');
is(call('SELECT count(*) FROM leader_election.epoch'), $epochs + 1, 'promoted: the epoch has begun');
is(call('SELECT count(*) FROM leader_election.candidate'), 0, 'promoted: and nobody stands');
call("SELECT leader_election.acquire_any('g', 'd')");
is(call('SELECT count(*) FROM leader_election.candidate'), 2, 'promoted: until a later call');

# A transaction that has locked an election waits for no other one.
$other = session($promoted, name => 'other');
$other_pid = $other->backend_pid;
$other->query_async("SELECT leader_election.drain_candidate('x', 'two'), pg_sleep(600)");
wait_for($promoted, "SELECT wait_event FROM pg_stat_activity WHERE pid = $other_pid", 'PgSleep');
is($admin->sqlstate_of("SELECT leader_election.renew('one', $stale[0]), leader_election.renew('two', $stale[1])"),
	'55P03', 'promoted: two that lead on, one of them locked');
call("SELECT pg_cancel_backend($other_pid)");
$other->result;
is(call("SELECT count(*) FROM leader_election.renew('one', $stale[0]) one, leader_election.renew('two', $stale[1]) two"), 1,
	'promoted: both lead on then');

done_testing();
