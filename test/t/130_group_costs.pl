# What calls and views cost on a group of many seats: each counts the seats once,
# and not once for each of them. Rows that are read are counted by the server, in
# a group of N seats and in one of four times as many: there may be ten times as
# many of them, where it was sixteen times. (Four would be enough, but a call that
# takes long lets others have a turn, and counts anew.)

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaderElection;
use Test::More;

my $N = 40;
my $FACTOR = 4;

my $node = new_server(
	config => qq(
max_worker_processes = 0
client_min_messages = error
max_locks_per_transaction = 256
leader_election.lease_duration = '10 min'
autovacuum = off
));
my $admin = session($node, name => 'admin');

# Leases that a statement has read. A call is refused in a transaction block: it
# runs in a DO block, in whose transaction the server tells what was read so far.
sub reads
{
	my ($who, $sql) = @_;

	$who->query(
		"DO \$\$ DECLARE before bigint; BEGIN
		before := (SELECT idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'leader_election.lease'::regclass);
		PERFORM $sql;
		PERFORM set_config('test.reads', (SELECT (idx_tup_fetch - before)::text FROM pg_stat_xact_user_tables
			WHERE relid = 'leader_election.lease'::regclass), false);
		END \$\$");
	is($who->sqlstate, '00000', "done: $sql");
	return $who->query("SELECT current_setting('test.reads')");
}

# Each call, by a session of that name, in a group of so many seats
sub costs
{
	my ($seats) = @_;
	my $g = "g$seats";
	my %who = map { $_ => session($node, name => "$_ $g") } qw(one two three);
	my @costs;

	$admin->query("SELECT leader_election.create_group('$g', $seats)");
	foreach (
		[ 'join_group', one => "* FROM leader_election.join_group('$g', 'one')" ],
		[ 'join_group, a second one', two => "* FROM leader_election.join_group('$g', 'two')" ],
		[ 'join_group, again', two => "* FROM leader_election.join_group('$g', 'two')" ],
		[ 'acquire_any', three => "* FROM leader_election.acquire_any('$g', 'three')" ],
		[ 'acquire_any, again', three => "* FROM leader_election.acquire_any('$g', 'three')" ],
		[ 'status', three => "* FROM leader_election.status WHERE election LIKE '$g/%'" ],
		[ 'candidates', three => "* FROM leader_election.candidates WHERE election LIKE '$g/%'" ],
		[ 'metrics', three => "* FROM leader_election.metrics" ],
		[ 'alter_group', admin => "leader_election.alter_group('$g', max_per_candidate => 1000, quorum => 1)" ],
		[ 'join_group, of all that are left', one => "* FROM leader_election.join_group('$g', 'one')" ],
		[ 'leave_all, who leads one', two => 'leader_election.leave_all()' ],
		[ 'leave_all, who leads nearly all', one => 'leader_election.leave_all()' ],
	  )
	{
		my ($what, $name, $sql) = @$_;

		push @costs, [ $what, reads($who{$name} // $admin, $sql) ];
	}
	is( $admin->query(
			"SELECT count(*) FROM leader_election.lease WHERE election LIKE '$g/%' AND leader = 'three'"
		),
		1,
		'the detached one leads its seat');
	$_->finish foreach values %who;
	return @costs;
}

my @few = costs($N);
$admin->query("SELECT leader_election.release(election, term) FROM leader_election.lease WHERE leader = 'three'");
$admin->query("SELECT leader_election.drop_group('g$N')");
is($admin->sqlstate, '00000', 'the small group goes');
my @many = costs($FACTOR * $N);

for my $i (0 .. $#few)
{
	my ($what, $few) = @{ $few[$i] };
	my $many = $many[$i][1];

	cmp_ok($few, '>=', $N - 2, "$what: reads the seats");
	cmp_ok($many, '<', 2.5 * $FACTOR * $few, "$what: $few leases are read, and $many of $FACTOR times as many seats");
}

# A call keeps the group lock from one seat to the next, but not while it waits:
# here for a seat whose row is locked. Others are granted theirs meanwhile.
{
	my $locker = session($node, name => 'locker');
	my $waits = session($node, name => 'waits');
	my $granted;

	$admin->query("SELECT leader_election.create_group('busy', 2)");
	$locker->query('BEGIN');
	$locker->query("SELECT FROM leader_election.lease WHERE election = 'busy/1' FOR UPDATE");
	wait_until(
		sub {
			if (!$granted)
			{
				$waits->query_async("SELECT count(*) FROM leader_election.acquire_any('busy', 'waits')");
				wait_for($node, "SELECT EXISTS (SELECT FROM pg_stat_activity
					WHERE pid = " . $waits->backend_pid . " AND (wait_event_type = 'Extension' OR state = 'idle'))");
				$granted = $admin->query(
					"SELECT term FROM leader_election.acquire('busy/2', 'other')");
				$granted &&= !$waits->finished;
				$waits->result;
			}
			return $granted;
		},
		'a seat to be granted while a call waits for another one');
	pass('nobody waits for a call that waits');
	$locker->query('ROLLBACK');
	$_->finish foreach $locker, $waits;
}

# Who makes a group large is told so.
foreach (
	[ "create_group('large', 101)", 101 ],
	[ "alter_group('large', seats => 100)", undef ],
	[ "alter_group('large', seats => 102)", 102 ],
	[ "alter_group('large', quorum => 2)", undef ],
	[ "create_group('small', 100)", undef ],
  )
{
	my ($call, $seats) = @$_;
	my (undef, undef, $told) = $node->psql('postgres',
		"SET client_min_messages = notice; SELECT leader_election.$call");
	my ($expected, $what) = defined $seats ?
	  (qr/NOTICE:  group "large" has $seats seats\nDETAIL:.*\nHINT:  .*fewer seats/, 'tells the costs') :
	  (qr/^(?!.*has \d+ seats)/s, 'tells nothing');

	like($told, $expected, "$call $what");
}

done_testing();
