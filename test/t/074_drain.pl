# Drained candidates: they stand, count for the quorum, and are not elected.  One
# that leads is asked to yield, and keeps its place in line.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Rules;
use Test::More;

serve();
$admin->query('SET client_min_messages = notice');

sub drain
{
	my ($candidate, $election, $reason) = @_;

	$admin->query("SELECT leader_election.drain_candidate('$candidate'"
		  . ($election ? ", '$election'" : '')
		  . ($reason ? ", reason => '$reason'" : '') . ')');
	die $admin->errors if $admin->errors;
	return;
}

sub undrain
{
	my ($candidate, $election) = @_;

	return $admin->query("SELECT leader_election.undrain_candidate('$candidate'"
		  . ($election ? ", '$election'" : '') . ')');
}

# Who led, why that ended, and the detail: "a yielded drained, b"
sub reasons
{
	return $admin->query(
		"SELECT string_agg(concat_ws(' ', leader, reason, detail), ', ' ORDER BY term)
			FROM leader_election.history WHERE election = '$_[0]'");
}

# The leader is asked to yield, and the rules will decide who follows.
sub is_asked_to_go
{
	my ($election, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return comes_true(
		"yielding AND yield_ordered AND successor IS NULL
			FROM leader_election.lease WHERE election = '$election'", $name);
}

sub standing_as
{
	my ($election, $candidate) = @_;

	return $admin->query(
		"SELECT place_mono, sits_out, defers FROM leader_election.candidate
			WHERE election = '$election' AND candidate = '$candidate'");
}

# --- Before it leads: alone, in its own call, and beside others

{
	create('before', 'race');
	drain('a', 'before', 'new disks');
	my $a = candidate('before', 'a');
	worker_looks();
	is(leader('before'), '', 'before: alone, it is not elected');
	is(stand_as($a, 'before', 'a'), '', 'before: nor in its own call');
	is(waiting_for('before'), 'drained', 'before: which the view tells');
	my $xmin = lease('before', 'xmin');
	stand_as($a, 'before', 'a') foreach 1 .. 3;
	is(lease('before', 'xmin'), $xmin, 'before: its calls write nothing');
	my $b = candidate('before', 'b');
	leads_soon('before', 'b', 'before: one that is not drained leads');
	is( $admin->query(
			"SELECT candidate, drained, leads, position FROM leader_election.candidates
				WHERE election = 'before' ORDER BY 1"),
		"a|t|f|\nb|f|t|1",
		'before: the view shows who is drained');
	is( $admin->query(
			"SELECT candidate, reason, drained_by = current_user, drained_at <= now()
				FROM leader_election.drain WHERE election = 'before'"),
		'a|new disks|t|t',
		'before: the table by whom, and why');
	$b->kill;
	comes_true("waiting_for = 'drained' FROM leader_election.status
		WHERE election = 'before'", 'before: when that one dies, nobody follows');
	is(undrain('a', 'before'), 't', 'before: undrained');
	is($admin->errors, '', 'before: without a notice');
	leads_soon('before', 'a', 'before: then it leads');
	is(undrain('a', 'before'), 'f', 'before: it was not drained any more');
	$a->finish;
}

# --- While it leads

{
	create('while', 'race');
	my @c = map { candidate('while', $_) } qw(a b);
	my $place = standing_as('while', 'a');
	drain('a', 'while');
	is_asked_to_go('while', 'while: the leader is asked to yield');
	is($admin->query("SELECT state, leader FROM leader_election.status
			WHERE election = 'while'"),
		'yielding|a', 'while: it leads on meanwhile');
	is($c[0]->query("SELECT leader_election.is_leader('while')"), 't', 'while: as it knows');
	$c[0]->query("SELECT leader_election.resign('while')");
	is(leader('while'), 'b', 'while: it gives up, and the next one leads');
	is(reasons('while'), 'a yielded drained, b', 'while: the history tells why');
	is(standing_as('while', 'a'), $place, 'while: it has not lost its place');
	undrain('a', 'while');
	worker_looks();
	is(leader('while'), 'b', 'while: undrained, it does not take over');
	$c[1]->query("SELECT leader_election.resign('while')");
	is(leader('while'), 'a', 'while: but is first in line');

	# In each term
	drain('a*', 'while');
	is_asked_to_go('while', 'while: it is asked in the next term, too');
	leads_soon('while', 'b', 'while: which it lets run out');
	is(reasons('while'), 'a yielded drained, b resigned, a yielded drained, b',
		'while: as the history tells');
	is(standing_as('while', 'a'), $place, 'while: it has not lost its place then, either');
	$_->finish foreach @c;
}

# --- Undrained before it has gone: the order stands, and so does its place

{
	create('meanwhile', 'race');
	my @c = map { candidate('meanwhile', $_) } qw(a b);
	my $place = standing_as('meanwhile', 'a');
	drain('a', 'meanwhile');
	is_asked_to_go('meanwhile', 'meanwhile: asked');
	undrain('a', 'meanwhile');
	worker_looks();
	is(lease('meanwhile', 'yielding, yield_ordered'), 't|t',
		'meanwhile: undrain does not take that back');
	$c[0]->query("SELECT leader_election.resign('meanwhile')");
	is(reasons('meanwhile'), 'a yielded drained, a',
		'meanwhile: it goes, and is first in line, for it does not sit out');
	is(standing_as('meanwhile', 'a'), $place, 'meanwhile: nor has it lost its place');
	$_->finish foreach @c;

	# An operator's request is one of its own, whatever was asked before it.
	create('asked again', 'race');
	@c = map { candidate('asked again', $_) } qw(a b);
	drain('a', 'asked again');
	is_asked_to_go('asked again', 'asked again: asked because of the drain');
	undrain('a', 'asked again');
	$admin->query("SELECT leader_election.request_yield('asked again')");
	$c[0]->query("SELECT leader_election.resign('asked again')");
	is(reasons('asked again'), 'a yielded, b',
		'asked again: asked by an operator, it gives way to another candidate');
	$_->finish foreach @c;

	# Alone
	create('alone', 'race');
	my $alone = candidate('alone', 'a');
	drain('a', 'alone');
	is_asked_to_go('alone', 'alone: asked');
	$alone->query("SELECT leader_election.resign('alone')");
	is(waiting_for('alone'), 'drained', 'alone: the seat is vacant');
	undrain('a', 'alone');
	leads_soon('alone', 'a', 'alone: until it is undrained, with no call of its own');
	$alone->finish;
}

# --- What an operator has ordered for a named candidate is not overwritten.

{
	create('ordered', 'race');
	my @c = map { candidate('ordered', $_) } qw(a b c);
	$admin->query("SELECT leader_election.request_yield('ordered', 'c')");
	drain('a', 'ordered');
	worker_looks();
	is(lease('ordered', 'successor, yields'), 'c|1', 'ordered: to whom, is as it was');
	drain('c', 'ordered');
	$c[0]->query("SELECT leader_election.resign('ordered')");
	is(leader('ordered'), 'b', 'ordered: if that one is drained, the rules decide');
	undrain('a', 'ordered');
	undrain('c', 'ordered');

	$c[1]->query("SELECT leader_election.transfer('ordered', 'a')");
	drain('a', 'ordered');
	is_asked_to_go('ordered', 'ordered: asked because of a drain');
	is($admin->query("SELECT leader_election.request_yield('ordered', 'c') > '0'"),
		't', 'ordered: then an operator names one');
	worker_looks();
	$c[0]->query("SELECT leader_election.resign('ordered')");
	is(leader('ordered'), 'c', 'ordered: which follows');
	like(reasons('ordered'), qr/, a yielded, c$/, 'ordered: it went because of the operator');
	$_->finish foreach @c;
}

# --- A drained candidate cannot be named; a reservation for it is void.

{
	create('named', 'race');
	my @c = map { candidate('named', $_) } qw(a b);
	drain('b', 'named');
	is($c[0]->sqlstate_of("SELECT leader_election.transfer('named', 'b')"),
		'LE005', 'named: no transfer to it');
	like($c[0]->errors, qr/is drained.*HINT:.*undrain_candidate/s, 'named: with a hint');
	is($admin->sqlstate_of("SELECT leader_election.request_yield('named', 'b')"),
		'LE005', 'named: nor a request to yield to it');
	is(leader('named'), 'a', 'named: nothing has changed');
	acquire('named', 'd');
	drain('d', 'named');
	is($c[0]->sqlstate_of("SELECT leader_election.transfer('named', 'd')"),
		'LE005', 'named: nor to a detached one');
	undrain('d', 'named');
	undrain('b', 'named');
	$c[0]->query("SELECT leader_election.transfer('named', 'd')");
	is(waiting_for('named'), 'reserved for d', 'named: a seat is reserved');
	drain('d', 'named');
	leads_soon('named', 'a', 'named: until its candidate is drained');
	is(acquire('named', 'd'), '', 'named: whose call is in vain');
	$_->finish foreach @c;

	# In a paused election, by hand
	create('by hand', 'race');
	my $a = candidate('by hand', 'a');
	$admin->query("SELECT leader_election.pause_election('by hand')");
	$a->query("SELECT leader_election.resign('by hand')");
	drain('a', 'by hand');
	is($admin->sqlstate_of("SELECT leader_election.request_yield('by hand', 'a')"),
		'LE005', 'by hand: a drained candidate is refused');
	is(waiting_for('by hand'), 'paused', 'by hand: the pause is told before the drain');
	undrain('a', 'by hand');
	$admin->query("SELECT leader_election.request_yield('by hand', 'a')");
	leads_soon('by hand', 'a', 'by hand: undrained, it is not');

	# Its leader is asked only after the pause.
	drain('a', 'by hand');
	worker_looks();
	is(lease('by hand', 'yielding'), 'f', 'by hand: no leader is asked in a pause');
	$admin->query("SELECT leader_election.resume_election('by hand')");
	is_asked_to_go('by hand', 'by hand: but after it');
	$a->finish;
	create('vacated', 'race');
	$a = candidate('vacated', 'a');
	$admin->query("SELECT leader_election.pause_election('vacated')");
	drain('a', 'vacated');
	$admin->query("SELECT leader_election.pause_election('vacated', vacate => true)");
	is(lease('vacated', 'yielding'), 't', 'vacated: the pause may ask it');
	$a->query("SELECT leader_election.resign('vacated')");
	is(reasons('vacated'), 'a yielded paused', 'vacated: as the history tells');
	$a->finish;
}

# --- Detached candidates

{
	create('detached', 'lowest');
	my $term = acquire('detached', 'd1');
	acquire('detached', 'd2', 'rank => 1');
	is($term, 1, 'detached: one leads');
	my $place = standing_as('detached', 'd1');
	drain('d1', 'detached');
	is_asked_to_go('detached', 'detached: it is asked');
	is( $admin->query("SELECT term, yielding FROM leader_election.renew('detached', 1)"),
		'1|t', 'detached: and told by its renewal');
	is($admin->query("SELECT leader_election.release('detached', 1)"), 't', 'detached: it goes');
	is(waiting_for('detached'), 'reserved for d2', 'detached: the next one follows');
	is(acquire('detached', 'd1'), '', 'detached: its own call is in vain');
	is(acquire('detached', 'd2'), 2, 'detached: the next one leads');
	is((split /\|/, standing_as('detached', 'd1'))[0], (split /\|/, $place)[0],
		'detached: it has not lost its place');
	is(reasons('detached'), 'd1 yielded drained, d2', 'detached: as the history tells');
	drain('d*', 'detached');
	is_asked_to_go('detached', 'detached: the other one is asked');
	comes_true("leader_election.leader('detached') IS NULL", 'detached: and lets that run out');
	acquire('detached', 'd1');
	is(waiting_for('detached'), 'drained', 'detached: nobody is left');
	undrain('d1', 'detached');
	undrain('d*', 'detached');
	isnt(acquire('detached', 'd1'), '', 'detached: undrained, its own call is granted');
}

# --- By the beginning of names, byte by byte

{
	create('prefix', 'race');
	drain('h1*', 'prefix');
	drain('a*b', 'prefix');
	drain("\x{c3}\x{a9}*", 'prefix');
	my @names = ('h1', 'h1a', 'h1*', 'h2', 'H1', 'a*b', 'axb', 'a*bc',
		"\x{c3}\x{a9}t\x{c3}\x{a9}", "e\x{cc}\x{81}te", "\x{c3}\x{a8}");
	my @c = map { candidate('prefix', $_) } @names;
	is( $admin->query(
			"SELECT string_agg(candidate, ' ' ORDER BY joined_at)
				FROM leader_election.candidates WHERE election = 'prefix' AND drained"),
		"h1 h1a h1* a*b \x{c3}\x{a9}t\x{c3}\x{a9}",
		'prefix: whose names begin so');
	is(leader('prefix'), 'h2', 'prefix: the first of the others leads');
	is(undrain('h1', 'prefix'), 'f', 'prefix: a name is no prefix');
	like($admin->errors, qr/^NOTICE:.*"h1" is still drained.*DETAIL:  "h1\*" is drained in election "prefix"\./s,
		'prefix: and undrain says what drains it');
	drain('h1', 'prefix');
	drain('h1b', 'prefix');
	drain('h1*');
	is(undrain('h1*', 'prefix'), 't', 'prefix: undrain removes just that entry');
	like($admin->errors, qr/DETAIL:  "h1\*" is drained in all elections\./,
		'prefix: and says that they all are drained still');
	undrain('h1', 'prefix');
	is(undrain('h1*'), 't', 'prefix: of all elections');
	is($admin->errors, '', 'prefix: nothing else drains them all');
	undrain('h1b', 'prefix');
	is($admin->errors, '', 'prefix: nothing is left');
	$_->finish foreach @c;
	undrain($_, 'prefix') foreach 'a*b', "\x{c3}\x{a9}*";
}

# --- All elections

{
	my @elections = map { "all $_" } 1 .. 5;
	create($_, 'spread') foreach @elections;
	my %host = map { $_ => session($node, name => $_) } 'host1', 'host2';
	foreach my $name (sort keys %host)
	{
		stand_as($host{$name}, $_, $name) foreach @elections;
	}
	worker_looks();
	drain('host1', undef, 'kernel');
	foreach my $election (@elections)
	{
		comes_true("NOT (leader = 'host1' AND NOT yielding)
			FROM leader_election.lease WHERE election = '$election'", "$election: no seat is left to it");
		$host{host1}->query("SELECT leader_election.resign('$election')");
	}
	leads_soon($_, 'host2', "$_: is the other one's") foreach @elections;
	worker_looks();
	is( $admin->query("SELECT count(*) FROM leader_election.lease
			WHERE election LIKE 'all %' AND yielding"),
		0, 'all: where it has no claim to a balance');
	create('all new', 'race');
	stand_as($host{host1}, 'all new', 'host1');
	is(waiting_for('all new'), 'drained', 'all: nor is it elected in a new election');
	drain('host1', 'all new');
	is(undrain('host1'), 't', 'all: undrained');
	like($admin->errors, qr/"host1" is drained in election "all new"/, 'all: but not where it is drained as well');
	worker_looks();
	is(leader('all new'), '', 'all: which stays so');
	comes_true("count(*) = 2 FROM leader_election.lease
		WHERE election LIKE 'all _' AND yielding AND successor = 'host1'",
		'all: it gets its share again');
	$_->finish foreach values %host;
}

# --- Quorum, and strategies

{
	create('quorum', 'race', 'quorum => 2');
	drain('a', 'quorum');
	my $a = candidate('quorum', 'a');
	is(waiting_for('quorum'), 'quorum 1 of 2', 'quorum: is told before the drain');
	my $b = candidate('quorum', 'b');
	leads_soon('quorum', 'b', 'quorum: a drained candidate counts for it');
	$_->finish foreach $a, $b;

	create('bully', 'bully');
	drain('high', 'bully');
	my $low = candidate('bully', 'low', 'rank => 1');
	my $middle = candidate('bully', 'middle', 'rank => 2');
	is_asked('bully', 'middle', 'bully: a challenger');
	my $high = candidate('bully', 'high', 'rank => 3');
	worker_looks();
	is(lease('bully', 'successor'), 'middle', 'bully: one that is drained is none');
	drain('middle', 'bully');
	is_renewed('bully', 'bully: when the challenger is drained, the request is taken back');
	undrain('middle', 'bully');
	is_asked('bully', 'middle', 'bully: and made again');
	drain('low', 'bully');
	comes_true("yield_ordered FROM leader_election.lease WHERE election = 'bully'",
		'bully: a drain asks in place of the strategy');
	$low->query("SELECT leader_election.resign('bully')");
	leads_soon('bully', 'middle', 'bully: the first one that is not drained follows');
	undrain('low', 'bully');
	is(standing_as('bully', 'low') =~ s/.*\|//r, 'f', 'bully: it does not defer');

	# One that sits out elects itself if the others are drained.
	create('last', 'race');
	my @c = map { candidate('last', $_) } qw(a b);
	drain('b', 'last');
	$c[0]->query("SELECT leader_election.resign('last')");
	is(waiting_for('last'), 'drained', 'last: one has given up, the other is drained');
	is(stand_as($c[0], 'last', 'a'), 2, 'last: who has given up may elect itself');
	$_->finish foreach $low, $middle, $high, @c;
}

# --- A rolling maintenance: one host after the other is drained, restarted and
# undrained.  No seat is vacant for longer than a hand-over, which is one event.

{
	my @hosts = qw(rack1 rack2 rack3);
	my @seats = map { "rolling $_" } 1 .. 6;
	create($_, $_ =~ /[246]/ ? 'spread' : 'race') foreach @seats;
	my %host = map { $_ => session($node, name => $_) } @hosts;
	my $stand = sub { stand_as($host{$_[0]}, $_, $_[0]) foreach @seats; };
	my $leads = sub {
		return $admin->query("SELECT election FROM leader_election.status
			WHERE leader = '$_[0]' AND election LIKE 'rolling %' ORDER BY 1");
	};
	# What each application does when it is asked
	my $yield = sub {
		foreach my $name (@hosts)
		{
			$host{$name}->query("SELECT leader_election.resign('$_')")
			  foreach $admin->query("SELECT election FROM leader_election.status
				WHERE leader = '$name' AND state = 'yielding' AND election LIKE 'rolling %'");
		}
	};
	$stand->($_) foreach @hosts;
	foreach my $name (@hosts)
	{
		drain("$name*", undef, 'kernel');
		wait_until(sub { $yield->(); $leads->($name) eq '' }, "$name to lead nothing");
		$host{$name}->finish;
		$host{$name} = session($node, name => $name);
		$stand->($name);
		is($leads->($name), '', "rolling: $name came back, and leads nothing yet");
		undrain("$name*");
	}
	wait_until(
		sub {
			$yield->();
			$admin->query("SELECT count(DISTINCT leader) = 3 FROM leader_election.lease
				WHERE election LIKE 'rolling %' AND NOT yielding") eq 't';
		},
		'each host to lead again');
	is( $admin->query(
			"SELECT count(*) FROM leader_election.history a JOIN leader_election.history b
				ON b.election = a.election AND b.term = a.term + 1
				WHERE a.election LIKE 'rolling %' AND b.acquired_at <> a.ended_at"),
		0,
		'rolling: no seat was vacant');
	is( $admin->query(
			"SELECT string_agg(DISTINCT concat_ws(' ', reason, detail), ', ')
				FROM leader_election.history WHERE election LIKE 'rolling %' AND reason IS NOT NULL"),
		'yielded, yielded drained',
		'rolling: nobody was taken anything');
	$_->finish foreach values %host;
}

# --- What is written, and how

{
	my $other = session($node, name => 'other');
	create('locked', 'race');
	$other->query("BEGIN; SELECT pg_advisory_xact_lock(0)");
	$other->query("LOCK TABLE leader_election.drain");
	my $l = session($node, name => 'locked');
	is($l->sqlstate_of("SELECT leader_election.drain_candidate('a', 'locked')"),
		'55P03', 'locked: a drain does not wait for ever');
	is($l->sqlstate_of("SELECT leader_election.undrain_candidate('a')"),
		'55P03', 'locked: nor does an undrain');
	is($l->sqlstate_of("SELECT count(*) FROM leader_election.acquire('locked', 'a')"),
		'55P03', 'locked: nor a candidate');
	$other->query('ROLLBACK');
	is($l->query("SELECT term FROM leader_election.acquire('locked', 'a')"), 1,
		'locked: which leads when it is free');

	# Two at the same moment
	$other->query_async(
		"DO \$\$ BEGIN PERFORM leader_election.drain_candidate('two'); PERFORM pg_sleep(0.3); END \$\$");
	wait_until(
		sub {
			$admin->query("SELECT count(*) > 0 FROM pg_locks WHERE relation = 'leader_election.drain'::regclass
				AND mode = 'RowExclusiveLock' AND pid = " . $other->backend_pid) eq 't';
		},
		'the first one');
	is($l->sqlstate_of("SELECT leader_election.drain_candidate('two')"),
		'00000', 'two at the same moment: one waits for the other');
	$other->result;
	is($admin->query("SELECT count(*) FROM leader_election.drain WHERE candidate = 'two'"),
		1, 'and there is one entry');
	undrain('two');
	$_->finish foreach $other, $l;
}

# --- Limits

{
	create('limits', 'race');
	$admin->query("DO \$\$ BEGIN FOR i IN 1 .. 100 LOOP
		PERFORM leader_election.drain_candidate('c' || i, 'limits'); END LOOP; END \$\$");
	is($admin->sqlstate, '00000', 'limits: 100 of an election');
	is($admin->sqlstate_of("SELECT leader_election.drain_candidate('more', 'limits')"),
		'54000', 'limits: no more');
	is($admin->sqlstate_of("SELECT leader_election.drain_candidate('c1', 'limits', 'again')"),
		'00000', 'limits: one that is there may be changed');
	is($admin->query("SELECT reason FROM leader_election.drain
			WHERE election = 'limits' AND candidate = 'c1'"), 'again', 'limits: its reason');
	is($admin->sqlstate_of("SELECT leader_election.drain_candidate('more')"),
		'00000', 'limits: those of all elections are others');
	$admin->query("DO \$\$ BEGIN FOR i IN 1 .. 999 LOOP
		PERFORM leader_election.drain_candidate('c' || i); END LOOP; END \$\$");
	is($admin->sqlstate, '00000', 'limits: 1,000 of these');
	is($admin->sqlstate_of("SELECT leader_election.drain_candidate('c1000')"),
		'54000', 'limits: no more');
	undrain('c7', 'limits');
	like($admin->errors, qr/DETAIL:  "c7" is drained in all elections\.$/m, 'limits: a notice');
	my $before = $admin->query("SELECT count(*) FROM leader_election.drain WHERE election = ''");
	is(undrain('c*'), 'f', 'limits: a prefix that is not there');
	is($admin->errors, '', 'limits: that would drain others');
	is($admin->query("SELECT count(*) FROM leader_election.drain WHERE election = ''"),
		$before, 'limits: nothing is removed by that');
	my $c = candidate('limits', 'c999');
	is(waiting_for('limits'), 'drained', 'limits: the last one of all counts');
	$admin->query("SELECT leader_election.undrain_candidate(candidate)
		FROM leader_election.drain WHERE election = ''");
	leads_soon('limits', 'c999', 'limits: and is not drained any more');
	$c->finish;

	# A drop ends the drains of an election.
	comes_true("leader_election.leader('limits') IS NULL", 'limits: nobody leads');
	is($admin->sqlstate_of("SELECT leader_election.drop_election('limits')"), '00000', 'dropped');
	is($admin->query("SELECT count(*) FROM leader_election.drain WHERE election = 'limits'"),
		0, 'with its drains');
}

# --- Who may, and what is refused

{
	$admin->query('CREATE ROLE app; CREATE ROLE boss');
	$admin->query("GRANT USAGE ON SCHEMA leader_election TO app, boss");
	$admin->query("GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app, boss");
	$admin->query('SET ROLE boss');
	create('owned', 'race');
	is($admin->sqlstate_of("SELECT leader_election.drain_candidate('a', 'owned')"),
		'00000', 'the owner may');
	is($admin->sqlstate_of("SELECT leader_election.drain_candidate('a')"),
		'42501', 'but not in all elections');
	is($admin->sqlstate_of("SELECT leader_election.undrain_candidate('a')"),
		'42501', 'nor undrain there');
	$admin->query('SET ROLE app');
	is($admin->sqlstate_of("SELECT leader_election.drain_candidate('a', 'owned')"),
		'42501', 'another role may not');
	is($admin->sqlstate_of("SELECT leader_election.undrain_candidate('a', 'owned')"),
		'42501', 'nor undrain');
	is($admin->query("SELECT count(*) FROM leader_election.drain WHERE election = 'owned'"),
		1, 'but it may look');
	is($admin->sqlstate_of("DELETE FROM leader_election.drain"), '42501', 'and not write');
	$admin->query('RESET ROLE');
	my %refused = (
		"NULL" => '22023',
		"''" => '22023',
		"'*'" => '22023',
		"'*', 'owned'" => '22023',
		"repeat('x', 201)" => '22023',
		"repeat('x', 10000000)" => '22023',
		"'a', ''" => '22023',
		"'a', repeat('x', 10000000)" => '22023',
		"'a', 'unknown'" => 'LE003');
	foreach my $args (sort keys %refused)
	{
		is($admin->sqlstate_of("SELECT leader_election.${_}_candidate($args)"),
			$refused{$args}, "refused: $_: $args")
		  foreach qw(drain undrain);
	}
	is($admin->sqlstate_of("SELECT leader_election.drain_candidate('a', 'owned', repeat('x', $_->[0]))"),
		$_->[1], "a reason of $_->[0] bytes")
	  foreach [ 1000, '00000' ], [ 1001, '22023' ], [ 10_000_000, '22023' ];
	$admin->query('BEGIN');
	is($admin->sqlstate_of("SELECT leader_election.drain_candidate('a')"),
		'25001', 'refused in a transaction block');
	$admin->query('ROLLBACK');
	is($admin->sqlstate_of("SELECT leader_election.drain_candidate(repeat('x', 199) || '*', 'owned')"),
		'00000', 'the longest prefix');
}

never_two_leaders();

# --- A crash, and a dump

{
	drain('survivor', 'owned', 'to stay');
	drain('everywhere*');
	$node->stop('immediate');
	$node->start;
	$admin = session($node, name => 'admin');
	my $s = candidate('owned', 'survivor');
	is(waiting_for('owned'), 'drained', 'it outlasts a crash');
	$node->safe_psql('postgres', 'CREATE DATABASE copy');
	my ($dump) =
	  run_command([ 'pg_dump', '-h', $node->host, '-p', $node->port, 'postgres' ]);
	$node->psql('copy', $dump);
	is( $node->safe_psql('copy',
			"SELECT string_agg(concat_ws(' ', election, candidate, reason), ', ' ORDER BY election)
				FROM leader_election.drain WHERE candidate IN ('survivor', 'everywhere*')"),
		' everywhere*, owned survivor to stay',
		'and a dump');
	is($node->safe_psql('copy', "SELECT count(*) FROM leader_election.acquire('owned', 'survivor')"),
		0, 'where it counts as well');
	$s->finish;
	$node->stop('immediate');
}

# --- No worker: the leader's own call asks it.

{
	my $lease = 3 * slowness();
	my $alone = new_server(
		name => 'alone',
		config => qq(
leader_election.lease_duration = '${lease}s'
max_worker_processes = 0
max_parallel_workers = 0
client_min_messages = error
));
	my $boss = session($alone, name => 'boss');
	my ($joins, $renews, $next) =
	  map { session($alone, name => $_) } qw(joins renews next);
	my $yields = sub {
		return $boss->query("SELECT leader, yielding, yield_ordered
			FROM leader_election.lease WHERE election = '$_[0]'");
	};

	$joins->query("SELECT leader_election.join('joins', 'h1')");
	$renews->query("SELECT leader_election.join('renews', 'h1', auto_renew => false)");
	$boss->query("SELECT leader_election.acquire('detached', 'h1')");
	$next->query("SELECT leader_election.join('$_', 'h2')") foreach qw(joins renews detached);
	$boss->query("SELECT leader_election.drain_candidate('h1*')");
	is($yields->($_), 'h1|f|f', "no worker: $_: nobody has asked") foreach qw(joins renews detached);
	is($next->query("SELECT leader_election.join('joins', 'h2')"),
		'', "no worker: others' calls ask nobody");
	is($yields->('joins'), 'h1|f|f', 'no worker: in fact');
	$boss->query("SELECT leader_election.pause_election('joins')");
	$joins->query("SELECT leader_election.join('joins', 'h1')");
	is($yields->('joins'), 'h1|f|f', 'no worker: in a pause, its own call does not ask');
	$boss->query("SELECT leader_election.resume_election('joins')");
	is($joins->query("SELECT leader_election.join('joins', 'h1')"), 1, 'no worker: it leads on');
	is($yields->('joins'), 'h1|t|t', 'no worker: join() asks');
	is($renews->query("SELECT term, yielding FROM leader_election.renew('renews')"),
		'1|t', 'no worker: renew() asks');
	$boss->query('SET client_min_messages = warning');
	is( $boss->sqlstate_of("DO \$\$ BEGIN
			PERFORM leader_election.assert_leader('detached', 1);
			PERFORM leader_election.renew('detached', 1);
			RAISE division_by_zero; END \$\$"),
		'22012', 'no worker: a statement that is fenced, and asks, fails');
	unlike($boss->errors, qr/own a lock/, 'no worker: with no warning of a lock');
	$boss->query('SET client_min_messages = error');
	is($boss->query("SELECT term, yielding FROM leader_election.renew('detached', 1)"),
		'1|t', 'no worker: so does that of a detached leader');
	is($yields->('detached'), 'h1|t|t', 'no worker: by order');
	$joins->query("SELECT leader_election.resign('joins')");
	is($boss->query("SELECT leader_election.leader('joins')"), 'h2', 'no worker: it goes');
	is($boss->query("SELECT string_agg(concat_ws(' ', reason, detail), '')
			FROM leader_election.history WHERE election = 'joins'"),
		'yielded drained', 'no worker: as the history tells');
	$joins->query("SELECT leader_election.join('new', 'h1')");
	is($boss->query("SELECT waiting_for FROM leader_election.status WHERE election = 'new'"),
		'drained', 'no worker: its own call does not elect it');
	$boss->query("SELECT leader_election.undrain_candidate('h1*')");
	is($joins->query("SELECT leader_election.join('new', 'h1')"), 1, 'no worker: but when it is undrained');
	$alone->stop('immediate');
}

done_testing();
