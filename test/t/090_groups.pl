# Groups of elections: N leaders, none of whom has more seats than it may.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Rules;
use Test::More;

serve();

sub group
{
	my ($group, $seats, $settings) = @_;

	$settings = defined $settings ? ", $settings" : '';
	$admin->query(
		"SELECT leader_election.create_group('$group', $seats$settings)");
	die $admin->errors if $admin->errors;
	return;
}

sub alter
{
	my ($group, $settings) = @_;

	$admin->query("SELECT leader_election.alter_group('$group', $settings)");
	die $admin->errors if $admin->errors;
	return;
}

# The seats that it leads: "1,2"
sub join_group
{
	my ($session, $group, $candidate, $profile) = @_;

	$profile = defined $profile ? ", $profile" : '';
	return $session->query(
		"SELECT string_agg(split_part(election, '/', 2), ',' ORDER BY election)
			FROM leader_election.join_group('$group', '$candidate'$profile)");
}

# A new session that stands for all seats of a group.
sub member
{
	my ($group, $candidate, $profile) = @_;
	my $session = session($node, name => "$group: $candidate");

	join_group($session, $group, $candidate, $profile);
	die $session->errors if $session->errors;
	return $session;
}

# The leader of n/1 calls transfer(). It has its locks, but the lease row is busy; when
# that is free, another session has the group lock. So nobody can know how many seats
# the candidate has.
sub busy_transfer
{
	my ($leader) = @_;
	my ($row, $gate, $other) = map { session($node, name => $_) } qw(row gate other);
	my $locks = 'SELECT count(*) FROM pg_locks WHERE locktype = \'advisory\' AND pid = '
	  . $leader->backend_pid;
	my $before = $admin->query($locks);

	$gate->query('SELECT pg_advisory_lock(4711)');

	# The call waits for a second: a machine that takes longer to get there tries again.
	foreach my $try (1 .. 20)
	{
		$row->query('BEGIN');
		$row->query("SELECT 1 FROM leader_election.lease WHERE election = 'n/1' FOR UPDATE");
		$leader->query_async("SELECT leader_election.transfer('n/1', 'b')");
		wait_until(sub { $leader->finished || $admin->query("SELECT ($locks) > $before") eq 't' }, 'locks');
		$other->query_async("DO \$\$ BEGIN
			PERFORM leader_election.alter_group('n');
			PERFORM pg_advisory_xact_lock_shared(4711);
			END \$\$");
		wait_until(sub { $admin->query("SELECT wait_event = 'advisory' AND query LIKE 'DO%'
			AND (SELECT count(*) > 1 FROM pg_locks l WHERE l.pid = a.pid AND granted AND locktype = 'advisory')
			FROM pg_stat_activity a WHERE pid = " . $other->backend_pid) eq 't' }, 'the group lock');
		my $in_time = !$leader->finished;
		$row->query('ROLLBACK');
		is($leader->result, '', 'named: transfer() without the group lock is refused');
		is($leader->sqlstate, '55P03', 'named: SQLSTATE');
		last if $in_time;
		$gate->query('SELECT pg_advisory_unlock(4711)');
		$other->result;
		$gate->query('SELECT pg_advisory_lock(4711)');
	}
	$gate->query('SELECT pg_advisory_unlock(4711)');
	$other->result;
	is($other->sqlstate, '00000', 'named: the group was altered meanwhile');
	$_->finish foreach $row, $gate, $other;
	return;
}

# A session makes these calls, in a transaction that goes on. Returns what undoes them.
sub hold
{
	my ($calls) = @_;
	my ($gate, $other) = map { session($node, name => $_) } qw(gate other);

	$gate->query('SELECT pg_advisory_lock(4713)');
	$other->query_async("DO \$\$ BEGIN
		$calls;
		PERFORM pg_advisory_xact_lock_shared(4713);
		RAISE EXCEPTION 'undone';
		END \$\$");
	wait_for($node, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . $other->backend_pid);
	return sub {
		$gate->query('SELECT pg_advisory_unlock(4713)');
		$other->result;
		$_->finish foreach $gate, $other;
	};
}

# The seats that a detached candidate was granted: "1 1, 2 1" (seat and term)
sub acquire_any
{
	my ($group, $candidate, $profile) = @_;

	$profile = defined $profile ? ", $profile" : '';
	return $admin->query(
		"SELECT string_agg(concat_ws(' ', split_part(election, '/', 2), term), ', ' ORDER BY election)
			FROM leader_election.acquire_any('$group', '$candidate'$profile)");
}

# Who leads which seat: "a b -" (-: nobody)
my $LEADERS = <<~'END';
	(SELECT string_agg(coalesce(leader_election.leader(election), '-'), ' '
			ORDER BY length(election), election)
		FROM leader_election.election WHERE group_name = '%s')
	END

sub leaders { return $admin->query('SELECT ' . sprintf($LEADERS, $_[0])); }

sub leaders_soon
{
	my ($group, $leaders, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return comes_true(sprintf($LEADERS, $group) . " = '$leaders'", $name);
}

sub state
{
	return $admin->query("SELECT state FROM leader_election.status WHERE election = '$_[0]'");
}

sub seats
{
	return $admin->query(
		"SELECT string_agg(election, ' ' ORDER BY length(election), election)
			FROM leader_election.election WHERE group_name = '$_[0]'");
}

# --- Sessions: one seat each

{
	group('g', 3);
	is(seats('g'), 'g/1 g/2 g/3', 'seats are elections of their own');
	my %m = map { $_ => member('g', $_) } 'a' .. 'e';
	leaders_soon('g', 'a b c', 'each seat has a leader of its own');
	is(join_group($m{b}, 'g', 'b'), '2', 'join_group() tells the seat');
	is(join_group($m{d}, 'g', 'd'), '', 'nobody has more than one');
	is($m{b}->query("SELECT leader_election.is_leader('g/2')"), 't', 'is_leader() takes the seat');
	is(lease('g/1', 'term'), 1, 'each seat counts its own terms');

	$m{b}->kill;
	leaders_soon('g', 'a d c', 'the seat of one that dies goes to the next');
	is($m{e}->query("SELECT leader_election.join('g/1', 'e')"), '', 'join() stands for one seat');
	$m{a}->query("SELECT leader_election.resign('g/1')");
	leaders_soon('g', 'e d c', 'the seat of one that resigns goes to the next');

	# Fewer candidates than seats
	$m{d}->query('SELECT leader_election.leave_all()');
	leaders_soon('g', 'e a c', 'one that sat out here is elected elsewhere');
	$m{e}->query('SELECT leader_election.leave_all()');
	leaders_soon('g', '- a c', 'a seat stays vacant');
	comes_true("waiting_for = 'cap' FROM leader_election.status WHERE election = 'g/1'",
		'because the others have enough');
	is( $admin->query(
			"SELECT string_agg(candidate || coalesce(position::text, '-'), ' ' ORDER BY candidate)
				FROM leader_election.candidates WHERE election = 'g/1'"),
		'a- c-', 'which is why they have no position');
	worker_looks();
	my $xmin = lease('g/1', 'xmin');
	join_group($m{a}, 'g', 'a');
	is(lease('g/1', 'xmin'), $xmin, 'a call in vain writes nothing');

	# A raised cap, and a lowered one
	alter('g', 'max_per_candidate => 2');
	comes_true("leader_election.leader('g/1') IN ('a', 'c')", 'a raised cap fills it');
	my $leaders = leaders('g');
	alter('g', 'max_per_candidate => 1');
	worker_looks();
	is(leaders('g'), $leaders, 'a lowered one takes nothing');
	$_->finish foreach grep { $_->alive } values %m;
}

# --- Detached candidates

{
	group('d', 3, 'max_per_candidate => 2');
	is(acquire_any('d', 'x'), '1 1, 2 1', 'acquire_any() grants no more than it may');
	is(acquire_any('d', 'x'), '', 'and tells only what this call grants');
	is(acquire_any('d', 'y'), '3 1', 'the next candidate gets the rest');
	is($admin->query("SELECT term FROM leader_election.renew('d/2', 1)"), 1, 'renew() takes the seat');
	is($admin->query("SELECT leader_election.release('d/2', 1)"), 't', 'so does release()');
	is(acquire_any('d', 'y'), '2 2', 'which gets it');
	is(acquire('d/1', 'z'), '', 'acquire() by name finds a leader');
}

# --- A named candidate, and what is due to it

{
	group('n', 3, "lease_duration => '1 h'");
	my %m = map { $_ => member('n', $_) } 'a' .. 'c';
	leaders_soon('n', 'a b c', 'named: all are led');
	is($m{a}->sqlstate_of("SELECT leader_election.transfer('n/1', 'b')"),
		'LE005', 'named: no transfer to one that has enough');
	is($admin->sqlstate_of("SELECT leader_election.request_yield('n/1', 'b')"),
		'LE005', 'named: nor a request');
	busy_transfer($m{a});
	is(lease('n/1', 'leader, term'), 'a|1', 'named: nor while another session has the group');
	$m{d} = member('n', 'd');
	$admin->query("SELECT leader_election.request_yield('n/1', 'd')");
	is($admin->sqlstate_of("SELECT leader_election.request_yield('n/2', 'd')"),
		'LE005', 'named: nor a request to one to which another seat is due');
	is(lease('n/1', 'yielding, successor'), 't|d', 'named: the first one stands');

	# It may not have what is due to it, and another seat as well.
	$m{c}->kill;
	worker_looks();
	is(leaders('n'), 'a b -', 'named: one to which a seat is due gets no other');
	$m{a}->query("SELECT leader_election.resign('n/1')");
	leaders_soon('n', 'd b a', 'named: it gets that one; who made way gets the vacant one');

	# At the cap, what is due is void: the rules decide.
	alter('n', 'max_per_candidate => 2');
	$m{e} = member('n', 'e');
	$admin->query("SELECT leader_election.request_yield('n/1', 'b')");
	is(lease('n/1', 'successor'), 'b', 'named: with a higher cap it may have two');
	alter('n', 'max_per_candidate => 1');
	$m{d}->query("SELECT leader_election.resign('n/1')");
	leaders_soon('n', 'e b a', 'named: lowered, the rules decide instead');
	$_->finish foreach grep { $_->alive } values %m;
}

# --- A leader gives up while another session has the group

{
	my ($gate, $other) = map { session($node, name => $_) } qw(gate other);
	group('r', 2);
	my %m = map { $_ => member('r', $_) } 'a' .. 'd';
	leaders_soon('r', 'a b', 'resign: both are led');
	$gate->query('SELECT pg_advisory_lock(4712)');
	$other->query_async("DO \$\$ BEGIN
		PERFORM leader_election.alter_group('r');
		PERFORM pg_advisory_xact_lock_shared(4712);
		END \$\$");
	wait_for($node, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND pid = " . $other->backend_pid, 1);
	is($m{a}->query("SELECT leader_election.resign('r/1')"), 't', 'resign: no leader waits for the group (G9)');
	is(leaders('r'), '- b', 'resign: nobody follows meanwhile');
	is($m{d}->query("SELECT leader_election.leave('r/1')"), 't', 'resign: nor does one wait that only stands for it, and leaves');
	$gate->query('SELECT pg_advisory_unlock(4712)');
	$other->result;
	leaders_soon('r', 'c b', 'resign: but afterwards');

	# One that has given up another election in the same statement does not queue for the
	# seat, which is locked, too.
	my $alone = "SELECT leader_election.resign('r alone')";
	is($m{b}->query("SELECT leader_election.join('r alone', 'b')"), 1, 'resign: one of them leads elsewhere, too');
	$gate->query('SELECT pg_advisory_lock(4712)');
	$other->query_async("DO \$\$ BEGIN
		PERFORM leader_election.alter_group('r', lease_duration => '1 h');
		PERFORM pg_advisory_xact_lock_shared(4712);
		END \$\$");
	wait_for($node, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND pid = " . $other->backend_pid, 1);
	is($m{b}->sqlstate_of("$alone, leader_election.resign('r/2')"), '55P03', 'resign: busy');
	$gate->query('SELECT pg_advisory_unlock(4712)');
	$other->result;
	is($m{b}->query("SELECT leader_election.is_leader('r alone'), leader_election.is_leader('r/2')"),
		't|t', 'resign: and leads both');
	is($m{b}->query("$alone, leader_election.resign('r/2')"), 't|t', 'resign: afterwards it gives up both');
	leaders_soon('r', 'c a', 'resign: and is followed');
	$_->finish foreach values %m, $gate, $other;
}

# --- A leader dies, and one is drained, while another session has the group

{
	group('p', 3);
	my %m = map { $_ => member('p', $_) } 'a' .. 'd';
	leaders_soon('p', 'a b c', 'dies: all are led');
	my $undo = hold("PERFORM leader_election.alter_group('p')");
	$m{a}->kill;
	comes_true("reason = 'session ended' FROM leader_election.history WHERE election = 'p/1'",
		'dies: its term ends without the group (G9)');
	comes_true("waiting_for = 'worker waits for a lock' FROM leader_election.status WHERE election = 'p/1'",
		'dies: nobody follows meanwhile, and the view tells why');
	is(leaders('p'), '- b c', 'dies: the other seats are led');
	$admin->query("SELECT leader_election.drain_candidate('b', 'p/2')");
	worker_looks();
	$undo->();
	leaders_soon('p', 'd b c', 'dies: afterwards somebody follows');
	comes_true("yielding AND yield_ordered FROM leader_election.lease WHERE election = 'p/2'",
		'dies: and who is drained is asked to yield');
	$_->finish foreach grep { $_->alive } values %m;
}

# --- Another session has a seat locked: that keeps nobody from another seat.

{
	group('k', 4);
	my %m = map { $_ => member('k', $_) } 'a' .. 'c';
	leaders_soon('k', 'a b c -', 'locked: three are led');
	my $undo = hold("PERFORM leader_election.pause_election('k/1'), leader_election.pause_election('k/4')");
	$m{d} = member('k', 'd');
	comes_true("waiting_for = 'worker waits for a lock' FROM leader_election.status WHERE election = 'k/4'",
		'locked: nobody is elected there');
	$m{a}->kill;
	$m{b}->kill;
	leaders_soon('k', '- d c -', 'locked: the next one leads another seat (G9)');
	$undo->();
	comes_true("reason = 'session ended' FROM leader_election.history WHERE election = 'k/1'",
		'locked: afterwards the term of the locked one ends');
	$m{$_} = member('k', $_) foreach qw(e f);
	leaders_soon('k', 'e d c f', 'locked: and both are filled');
	$_->finish foreach grep { $_->alive } values %m;
}

# --- A lease that is over and may yet be renewed

{
	my $blocker = session($node, name => 'blocker');
	group('late', 2, "lease_duration => '" . slowness() . " s'");
	is(acquire_any('late', 'x'), '1 1', 'late: it leads one');
	$blocker->query("BEGIN; SELECT FROM leader_election.lease WHERE election = 'late/1' FOR UPDATE");
	comes_true("expires_at < clock_timestamp() - interval '100ms' FROM leader_election.lease WHERE election = 'late/1'",
		'late: its lease is over');
	is( $admin->sqlstate_of("SELECT * FROM leader_election.acquire('late/2', 'x')"),
		'55P03',
		'late: it is granted no other seat while its lease might be being renewed');
	$blocker->query('ROLLBACK');
	comes_true("EXISTS (SELECT FROM leader_election.acquire('late/2', 'x'))",
		'late: but afterwards');

	# Nor when another leader gives up: that one's term ends, and nobody follows for now.
	group('gives up', 2, "lease_duration => '" . slowness() . " s'");
	my $x = candidate('gives up/1', 'x', 'auto_renew => false');
	$blocker->query("BEGIN; SELECT FROM leader_election.lease WHERE election = 'gives up/1' FOR UPDATE");
	comes_true("expires_at < clock_timestamp() - interval '100ms' FROM leader_election.lease WHERE election = 'gives up/1'",
		'gives up: a lease is over');
	$admin->query("UPDATE leader_election.election SET lease_duration = '1 h' WHERE election = 'gives up/2'");
	is($admin->query("SELECT term FROM leader_election.acquire('gives up/2', 'y')"), 1, 'gives up: another one leads');
	stand_as($x, 'gives up/2', 'x');
	is($admin->sqlstate_of("SELECT leader_election.transfer('gives up/2', 1, 'x')"), '55P03',
		'gives up: it cannot be handed over');
	is($admin->query("SELECT leader_election.is_leader('gives up/2', 1)"), 't', 'gives up: and is led');
	is($admin->query("SELECT leader_election.release('gives up/2', 1)"), 't', 'gives up: but it can be given back');
	is(leader('gives up/2'), '', 'gives up: nobody follows while the lease might be being renewed');
	$blocker->query('ROLLBACK');
	comes_true("(SELECT string_agg(leader, ' ') = 'x' FROM leader_election.status WHERE election LIKE 'gives up/%')",
		'gives up: afterwards it leads one');
	$_->finish foreach $blocker, $x;
}

# --- Fewer seats, and more

{
	group('s', 2, "channel => 'seats'");
	my $seats = Announced->new($node, channel => 'seats');
	my %m = map { $_ => member('s', $_) } 'a' .. 'c';
	leaders_soon('s', 'a b', 'seats: both are led');
	my $term = lease('s/2', 'term');
	alter('s', 'seats => 1');
	comes_true("yielding AND yield_ordered AND yield_cause = 'withdrawn'
			FROM leader_election.lease WHERE election = 's/2'",
		'seats: the leader of one too many is asked to yield');
	is(join_group($m{b}, 's', 'b'), '2', 'seats: join_group() tells it still');
	is($admin->sqlstate_of("SELECT leader_election.request_yield('s/2', 'c')"),
		'LE005', 'seats: nobody else is elected there');
	$m{b}->query("SELECT leader_election.resign('s/2')");
	comes_true("NOT EXISTS (SELECT FROM leader_election.election WHERE election = 's/2')",
		'seats: when it has yielded, the seat is dropped');
	is(history('s/2'), 'b yielded', 'seats: as the history tells');
	is($m{c}->sqlstate_of("SELECT leader_election.join('s/2', 'c')"),
		'LE003', 'seats: nobody makes it by standing for it');
	is($admin->sqlstate_of("SELECT leader_election.create_election('s/2')"),
		'42710', 'seats: nor by hand');
	is(join_group($m{b}, 's', 'b'), '', 'seats: who stood there stands for the other');

	alter('s', 'seats => 3');
	is(seats('s'), 's/1 s/2 s/3', 'seats: there are more');
	$seats->wait_for_event('s/3', 'created');
	pass('seats: which is announced on the channel of the group');
	is($admin->query("SELECT channel FROM leader_election.election WHERE election = 's/3'"),
		'seats', 'seats: they are like the others');
	join_group($m{$_}, 's', $_) foreach sort keys %m;
	comes_true("count(leader_election.leader(election)) = 3 FROM leader_election.election WHERE group_name = 's'",
		'seats: and are led by those who have joined again');
	cmp_ok(lease('s/2', 'term'), '>', $term, 'seats: no term comes twice');

	# Kept, if it is wanted again
	alter('s', 'seats => 2');
	comes_true("yielding FROM leader_election.lease WHERE election = 's/3'", 'seats: withdrawn');
	alter('s', 'seats => 3');
	comes_true("NOT yielding AND leader IS NOT NULL FROM leader_election.lease WHERE election = 's/3'",
		'seats: raised again, it is kept, and filled anew');
	is($admin->query("SELECT count(*) FROM leader_election.history WHERE election = 's/3' AND reason = 'dropped'"),
		0, 'seats: it was not dropped');

	# While a candidate joins another seat, or its own row is locked, a seat is kept.
	foreach my $lock (q{PERFORM leader_election.join('s/1', 'joins')},
		q{PERFORM FROM leader_election.candidate WHERE election = 's/3' FOR UPDATE})
	{
		my $stays = session($node, name => 'stays');
		comes_true("leader IS NOT NULL FROM leader_election.lease WHERE election = 's/3'", 'kept: led');
		stand_as($stays, 's/3', 'stays');
		alter('s', 'seats => 2');
		my $undo = hold($lock);
		comes_true(q{EXISTS (SELECT FROM leader_election.diagnose('s/3')
			WHERE finding ~ 'worker .* waits for a lock, .*electing in "s/3"')},
			'kept: the seat is not dropped meanwhile, and diagnose() tells why');
		is(seats('s'), 's/1 s/2 s/3', "kept: it is there; $lock");
		$undo->();
		comes_true("NOT EXISTS (SELECT FROM leader_election.election WHERE election = 's/3')",
			'kept: but afterwards it is dropped');
		alter('s', 'seats => 3');
		join_group($m{$_}, 's', $_) foreach sort keys %m;
		$stays->finish;
	}

	# Settings of all seats
	alter('s', "lease_duration => '5s', quorum => 2, strategy => 'bully'");
	is( $admin->query(
			"SELECT DISTINCT strategy, lease_duration, quorum, channel
				FROM leader_election.election WHERE group_name = 's'"),
		'bully|00:00:05|2|seats', 'seats: settings are those of all');
	is($admin->sqlstate_of("SELECT leader_election.$_"), '42809', "seats: $_ is refused")
	  foreach "alter_election('s/1', quorum => 1)", "drop_election('s/1')";
	is($admin->sqlstate_of("SELECT leader_election.drop_group('s')"),
		'55006', 'seats: no group is dropped that is led');
	$_->finish foreach values %m;
	leaders_soon('s', '- - -', 'seats: nobody leads');
	$admin->query("SELECT leader_election.drop_group('s')");
	is(seats('s'), '', 'seats: it is dropped, with its seats');
	is($admin->sqlstate_of("SELECT leader_election.join_group('s', 'a')"), 'LE003', 'seats: it is gone');
}

# --- A group that is dropped while candidates ask for its seats

foreach my $call (qw(join_group acquire_any))
{
	group("gone $call", 2);
	my $dropper = session($node, name => 'dropper');
	my $caller = session($node, name => $call);
	$dropper->query("BEGIN; SELECT leader_election.drop_group('gone $call')");
	$caller->query_async("SELECT count(*) FROM leader_election.$call('gone $call', 'x')");
	wait_for($node, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'Extension'
			AND query ~ 'leader_election.$call' AND pid <> pg_backend_pid()", 1);
	$dropper->query('COMMIT');
	is($caller->result, 0, "$call: finds the seats gone");
	is($admin->query("SELECT count(*) FROM leader_election.election WHERE election ~ '^gone $call'"),
		0, "$call: and makes no elections in their place");
	$_->finish foreach $dropper, $caller;
}

# --- Spread, by weight, and beside other elections

{
	create("other$_", 'spread') foreach 1 .. 6;
	my $other = session($node, name => 'other');
	stand_as($other, "other$_", 'a') foreach 1 .. 6;
	group('w', 8, "strategy => 'spread', max_per_candidate => 8");
	my %m = (a => member('w', 'a', 'rank => 3'), b => member('w', 'b', 'rank => 1'));
	comes_true("(SELECT array_agg(n ORDER BY n) FROM (SELECT count(*) AS n FROM leader_election.lease
			WHERE election LIKE 'w/%' AND NOT yielding GROUP BY leader) x) = '{2,6}'",
		'spread: by weight, whatever else they lead');
	$_->finish foreach values %m, $other;
}

# --- Bad input, and names

{
	my %refused = (
		"create_group('g', 3)" => '42710',
		"create_group('x', 0)" => '22023',
		"create_group('x', 1001)" => '22023',
		"create_group('x', NULL)" => '22023',
		"create_group(NULL, 1)" => '22023',
		"create_group('', 1)" => '22023',
		"create_group(repeat('x', 196), 1)" => '22023',
		"create_group('x', 1, 'none')" => '22023',
		"create_group('x', 1, max_per_candidate => 0)" => '22023',
		"alter_group('none', seats => 1)" => 'LE003',
		"drop_group('none')" => 'LE003',
		"join_group('none', 'a')" => 'LE003',
		"acquire_any('none', 'a')" => 'LE003',
		"join_group('g', NULL)" => '22023',
		"acquire_any('g', '')" => '22023');

	foreach my $call (sort keys %refused)
	{
		is($admin->sqlstate_of("SELECT leader_election.$call"),
			$refused{$call}, "$call: $refused{$call}");
	}
	create('taken/2', 'race');
	is($admin->sqlstate_of("SELECT leader_election.create_group('taken', 2)"),
		'42710', 'a group is not made if a seat of its is there');
	is(seats('taken'), '', 'not even in part');
	is($admin->query("SELECT leader_election.leader('taken/1')"), '', 'nor its first seat');
	create('far/7', 'race');
	group('far', 2);
	is(seats('far'), 'far/1 far/2', 'an election beyond the seats is none of them');
	is($admin->sqlstate_of("SELECT leader_election.alter_group('far', seats => 8)"),
		'42710', 'and keeps it from having so many');
	my $seven = candidate('far/7', 'seven');
	leads_soon('far/7', 'seven', 'and is led by itself');
	worker_looks();
	is($admin->query("SELECT string_agg(election, ' ') FROM leader_election.status WHERE election LIKE 'far/%' AND candidates > 0"),
		'far/7', 'who stands there stands for no seat');
	$seven->finish;
	comes_true("leader_election.leader('far/7') IS NULL", 'until that one goes');
	$admin->query("SELECT leader_election.drop_election('far/7')");
	is($admin->sqlstate_of("SELECT leader_election.alter_group('far', seats => 8)"),
		'00000', 'as long as it is there');
	is($admin->sqlstate_of("SELECT leader_election.create_group(repeat('y', 195), 1000)"),
		'00000', 'the longest name, and the most seats');
	my $y = session($node, name => 'y');
	is( $y->query(
			"SELECT count(*) FROM leader_election.join_group(repeat('y', 195), repeat('z', 200))"),
		1, 'stood for at once');
	$y->finish;
}

# --- Whose it is

{
	$admin->query('CREATE ROLE app LOGIN');
	$admin->query('GRANT USAGE ON SCHEMA leader_election TO app');
	$admin->query('GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app');
	my $app = session($node, name => 'app', user => 'app');
	is($app->sqlstate_of("SELECT leader_election.alter_group('g', seats => 1)"),
		'42501', 'a group is altered by its owner');
	is($app->sqlstate_of("SELECT leader_election.drop_group('g')"), '42501', 'and dropped');
	$app->query("SELECT leader_election.create_group('app', 2)");
	is($app->sqlstate_of("SELECT leader_election.alter_group('app', seats => 3)"), '00000',
		'who has made it is its owner');
	is($app->sqlstate_of("SELECT leader_election.pause_election('app/1')"), '00000',
		'and the owner of its seats');
	is($app->sqlstate_of("BEGIN; SELECT leader_election.join_group('app', 'a')"), '25001',
		'join_group() runs in no transaction block');
	$app->finish;
}

never_two_leaders();
done_testing();
