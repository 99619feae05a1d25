# What makes a candidate eligible can change in PostgreSQL's own catalogs, which
# wakes nobody: roles are granted and revoked, and become superusers or cease to
# be.  The worker finds out by itself, within seconds.
#
# Leases last for an hour, so that neither a renewal nor the end of a lease has
# the worker look.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Rules;
use Test::More;

my $LONG = "lease_duration => '1 h'";

serve();

sub run
{
	my ($sql) = @_;

	$admin->query($sql);
	die $admin->errors if $admin->errors;
	return;
}

run("CREATE ROLE team; CREATE ROLE part IN ROLE team;
	CREATE ROLE low LOGIN IN ROLE team; CREATE ROLE high LOGIN IN ROLE team;
	GRANT USAGE ON SCHEMA leader_election TO PUBLIC;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO PUBLIC");

# A new session of that role that stands, named after it
sub member
{
	my ($election, $role, $rank) = @_;
	my $session = session($node, name => "$election: $role", user => $role);

	stand_as($session, $election, $role, "rank => $rank");
	die $session->errors if $session->errors;
	return $session;
}

# low leads, and high stands, who outranks it but is in no role of the election;
# the worker has looked at that.
sub contest
{
	my ($election, $settings) = @_;
	my @c;

	run('GRANT team TO high');
	create($election, 'bully', "candidate_role => 'team', $settings");
	@c = member($election, 'low', 1);
	leads_soon($election, 'low', "$election: low leads");
	run("SELECT leader_election.pause_election('$election')");
	push @c, member($election, 'high', 2);
	run("REVOKE team FROM high;
		SELECT leader_election.resume_election('$election')");
	worker_looks();
	is(lease($election, 'leader, yielding'), 'low|f', "$election: high may not lead");
	return @c;
}

sub is_asked_soon
{
	my ($election, $what) = @_;

	comes_true("yielding AND successor = 'high' FROM leader_election.lease
		WHERE election = '$election'", $what);
	return;
}

# --- A challenger is given the role

foreach my $give (
	[ 'granted', 'GRANT team TO high', 'REVOKE team FROM high' ],
	[ 'by another role', 'GRANT part TO high', 'REVOKE part FROM high' ],
	[ 'superuser', 'ALTER ROLE high SUPERUSER', 'ALTER ROLE high NOSUPERUSER' ])
{
	my ($election, $grant, $revoke) = @$give;
	my @c = contest($election, $LONG);

	run($grant);
	is_asked_soon($election, "$election: low is asked to yield (G7)");
	run($revoke);
	comes_true("NOT yielding AND leader = 'low' FROM leader_election.lease
		WHERE election = '$election'", "$election: that is taken back when high may not lead");
	run($grant);
	is_asked_soon($election, "$election: and asked for again");
	run($revoke);
	$_->finish foreach @c;
}

# --- The database gets another owner

{
	my @c;

	run('ALTER DATABASE postgres OWNER TO low');
	create('owner', 'bully', "candidate_role => 'pg_database_owner', $LONG");
	@c = member('owner', 'low', 1);
	leads_soon('owner', 'low', 'owner: low leads');
	run("SELECT leader_election.pause_election('owner'); ALTER DATABASE postgres OWNER TO high");
	push @c, member('owner', 'high', 2);
	run("ALTER DATABASE postgres OWNER TO low; SELECT leader_election.resume_election('owner')");
	worker_looks();
	is(lease('owner', 'leader, yielding'), 'low|f', 'owner: high may not lead');
	run('ALTER DATABASE postgres OWNER TO high');
	is_asked_soon('owner', 'owner: low is asked to yield');
	$_->finish foreach @c;
}

# --- Where the worker renews in between, and reads no crowd in its look

foreach my $case ([ 'renewed', "lease_duration => '2 s'", 0 ],
	[ 'crowd', $LONG, 1000 ])
{
	my ($election, $settings, $crowd) = @$case;
	my @c = contest($election, $settings);

	run("SELECT count(*) FROM generate_series(1, $crowd) n,
		LATERAL leader_election.acquire('$election', 'c' || n, 0)");
	worker_looks();
	run('GRANT team TO high');
	comes_true("leader = 'high' OR yielding AND successor = 'high'
		FROM leader_election.lease WHERE election = '$election'",
		"$election: high is noticed");
	run('REVOKE team FROM high');
	$_->finish foreach @c;
}

# --- A seat is kept for a candidate that may not lead any more

{
	my $low;

	run('GRANT team TO high');
	create('kept', 'lowest', "candidate_role => 'team', $LONG, takeover_delay => '0'");
	is( $admin->query("SET ROLE low;
			SELECT term > 0 FROM leader_election.acquire('kept', 'first', 1)"),
		't', 'kept: one leads');
	run("SET ROLE high; SELECT leader_election.acquire('kept', 'heir', 2); RESET ROLE");
	$low = session($node, name => 'kept: low', user => 'low');
	stand_as($low, 'kept', 'other', 'rank => 3');
	run("SET ROLE low;
		SELECT leader_election.release('kept', term) FROM leader_election.status
			WHERE election = 'kept';
		RESET ROLE");
	comes_true("successor = 'heir' FROM leader_election.lease WHERE election = 'kept'",
		'kept: the seat is reserved');
	worker_looks();
	run('REVOKE team FROM high');
	leads_soon('kept', 'other', 'kept: the next one leads at once');
	$low->finish;
}

# --- The role itself is dropped

{
	my @c;

	run('CREATE ROLE guild; GRANT guild TO low, high');
	create('dropped', 'bully', "candidate_role => 'guild', $LONG");
	@c = member('dropped', 'low', 1);
	push @c, member('dropped', 'high', 2);
	is_asked_soon('dropped', 'dropped: low is asked to yield');
	run('DROP ROLE guild');
	comes_true("NOT yielding AND leader = 'low' FROM leader_election.lease
		WHERE election = 'dropped'", 'dropped: that is taken back when nobody may lead');
	$_->finish foreach @c;
}

# --- A vacant seat waits for a candidate that may lead

{
	my $high;

	run('GRANT team TO high');
	create('vacant', 'bully', "candidate_role => 'team', $LONG");
	run("SELECT leader_election.pause_election('vacant')");
	$high = member('vacant', 'high', 1);
	run("REVOKE team FROM high; SELECT leader_election.resume_election('vacant')");
	worker_looks();
	is(lease('vacant', 'leader IS NULL'), 't', 'vacant: high may not lead');

	# Somebody has its lock: the worker would be told so if it tried to elect.
	my $holder = session($node, name => 'holder');

	$holder->query(q{BEGIN; SELECT leader_election.drop_election('vacant')});
	worker_looks();
	is( $admin->query("SELECT query FROM pg_stat_activity
			WHERE backend_type = 'leader_election worker' AND query LIKE '%vacant%'"),
		'',
		'vacant: the worker does not even try');
	$holder->query('ROLLBACK');
	$holder->finish;
	run('GRANT team TO high');
	leads_soon('vacant', 'high', 'vacant: it leads when it may');
	$high->finish;
}

# --- A leader that may not be elected any more leads on, and has no position

{
	my @c;

	run('GRANT team TO high');
	create('position', 'bully', "candidate_role => 'team', $LONG");
	push @c, member('position', 'high', 2);
	leads_soon('position', 'high', 'position: high leads');
	push @c, member('position', 'low', 1);
	run('REVOKE team FROM high');
	is( $admin->query("SELECT string_agg(concat_ws(' ', candidate, leads, position), ', '
				ORDER BY candidate)
			FROM leader_election.candidates WHERE election = 'position'"),
		'high t, low f 1',
		'position: it leads on, and the other one is first');
	$_->finish foreach @c;
}

done_testing();
