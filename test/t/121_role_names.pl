# Roles that are renamed, dropped and made anew: what belongs to a role stays
# that role's, whatever it is called now, and goes to no other role that has its
# name, or its OID on another server.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Rules;
use Test::More;

my $RIGHTS = 'GRANT USAGE ON SCHEMA leader_election TO PUBLIC;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO PUBLIC';
my $LONG = "lease_duration => '1 h'";
our $said;    # by the server, of the last error

serve();

sub run
{
	my ($sql) = @_;

	$admin->query($sql);
	die $admin->errors if $admin->errors;
	return;
}

# Runs SQL as that role; the result, or the SQLSTATE of an error
sub as
{
	my ($role, $sql) = @_;
	my $result;

	run("SET ROLE $role");
	$result = $admin->query($sql);
	$result = $admin->sqlstate if $admin->sqlstate ne '00000';
	$said = $admin->errors;
	run('RESET ROLE');
	return $result;
}



sub call { return as($_[0], "SELECT leader_election.$_[1]"); }

sub remedies
{
	my ($election) = @_;

	return $admin->query("SELECT finding || ' ' || remedy
		FROM leader_election.diagnose('$election')");
}

run("$RIGHTS; CREATE ROLE team");

# --- A session's candidacies are its own, whatever its role is called now

{
	my $session;
	my $term;

	run('CREATE ROLE app LOGIN IN ROLE team; CREATE ROLE other LOGIN');
	create('mine', 'race', "candidate_role => 'team', $LONG");
	$session = session($node, name => 'app', user => 'app');
	$session->query("SELECT leader_election.join('mine', 'one', auto_renew => false),
		leader_election.join('left', 'one'), leader_election.join('passed', 'one')");
	my $heir = candidate('passed', 'heir');
	run('ALTER ROLE app RENAME TO app_new; CREATE ROLE app LOGIN IN ROLE team');

	foreach my $call (
		[ "join('mine', 'one', rank => 2) > 0", 'join' ],
		[ "renew('mine') IS NOT NULL", 'renew' ],
		[ "resign('mine')", 'resign' ],
		[ "join('mine', 'one') > 0", 'join, and lead again' ],
		[ "leave('left')", 'leave' ],
		[ "transfer('passed', 'heir')", 'transfer' ],
		[ 'leave_all() = 2', 'leave_all' ],
		[ "join('anew', 'one') > 0", 'join another election' ])
	{
		is($session->query("SELECT leader_election.$call->[0]"), 't',
			"session: $call->[1], after its role was renamed");
	}
	is($admin->query("SELECT role FROM leader_election.history WHERE election = 'anew'"),
		'app_new', 'session: history names the role as it is called');
	$session->query("CALL leader_election.campaign('waits', 'one')");
	is($session->query("SELECT leader_election.leave('waits')"), 't',
		'session: so does campaign()');
	$_->finish foreach $session, $heir;
	run('DROP ROLE app; ALTER ROLE app_new RENAME TO app');
}

# --- A detached candidate's lease, candidacy and run are its role's

{
	my $term;

	run("SELECT leader_election.create_election('far', $LONG, candidate_role => 'team')");
	$term = as('app', "SELECT term FROM leader_election.acquire('far', 'one', run => '1')");
	as('app', "SELECT leader_election.acquire('far', 'two')");
	run('ALTER ROLE app RENAME TO app_new; CREATE ROLE app LOGIN IN ROLE team');

	is(as('app', "SELECT term FROM leader_election.renew('far', $term)"), '42501',
		'detached: who has the name now may not renew');
	like($said, qr/granted to role "app_new".*use SET ROLE/s, 'detached: and is told whose it is');
	is(call('app', "release('far', $term)"), '42501', 'detached: nor release');
	is(call('app', "leave('far', 'two')"), '42501', 'detached: nor withdraw a candidate');
	like($said, qr/made by role "app_new"/, 'detached: and is told whose it is');
	is(call('app', "acquire('far', 'two')"), 'LE004', 'detached: nor stand under its name');
	like($said, qr/detached candidate of role "app_new"/, 'detached: and is told whose it is');

	is(as('app_new', "SELECT term FROM leader_election.renew('far', $term)"), $term,
		'detached: the role may renew');
	is( as('app_new', "SELECT count(*) FROM leader_election.acquire('far', 'two')"), 0,
		'detached: and stand on');
	is($admin->query("SELECT count(*) FROM leader_election.candidate WHERE election = 'far'"),
		2, 'detached: as the same candidates');
	is(call('app_new', "leave('far', 'two')"), 't', 'detached: and withdraw one');
	is(call('app_new', "release('far', $term)"), 't', 'detached: and release');
	is(call('app', "release('far', $term, done => true)"), '42501',
		'detached: who has the name now may not say that its run is done');
	is(call('app_new', "release('far', $term, done => true)"), 't', 'detached: the role may');

	# Nobody may touch what a dropped role has left.
	$term = as('app', "SELECT term FROM leader_election.acquire('gone', 'one')");
	run('DROP ROLE app; CREATE ROLE app LOGIN IN ROLE team');
	is(as('app', "SELECT term FROM leader_election.renew('gone', $term)"), '42501',
		'detached: not even a new role of the name of one that was dropped');
	like($said, qr/role "app", which was dropped.*ends by itself/s, 'detached: and is told so');
	unlike($said, qr/SET ROLE/, 'detached: and not to be that role');
	run('DROP ROLE app; ALTER ROLE app_new RENAME TO app');
}

# --- What a candidate leads, and may lead, is counted for its role

{
	run("SELECT leader_election.create_group('crew', 2, $LONG)");
	is(as('app', "SELECT election FROM leader_election.acquire_any('crew', 'one')"), 'crew/1',
		'group: it has a seat');
	run('ALTER ROLE app RENAME TO app_new');
	is(as('app_new', "SELECT count(*) FROM leader_election.acquire_any('crew', 'one')"), 0,
		'group: it gets no more seats by another name');
	run('ALTER ROLE app_new RENAME TO app');
}

# --- candidate_role

{
	my $session = session($node, name => 'member', user => 'app');

	create('roles', 'race', "candidate_role => 'team', $LONG");
	run('ALTER ROLE team RENAME TO team_new; CREATE ROLE team; GRANT team TO other');
	is(stand_as($session, 'roles', 'one') > 0, 1, 'candidate_role: members may stand after it was renamed');
	is(call('other', "join('roles', 'two')"), '42501',
		'candidate_role: members of another role by its name may not');
	like($said, qr/members of role "team_new"/, 'candidate_role: and are told of which role');
	create('vacant roles', 'race', "candidate_role => 'team_new', $LONG");
	run('DROP ROLE team_new');
	is(call('other', "join('roles', 'two')"), '42704', 'candidate_role: dropped, it admits nobody');
	like($said, qr/candidate_role "team" of election "roles" was dropped.*alter_election/s,
		'candidate_role: and that is said, and what to do');
	like(remedies('roles'), qr/candidate_role "team".*was dropped.*alter_election/s,
		'candidate_role: diagnose() says so, too');
	foreach my $vacant (0, 1)
	{
		my ($election, $severity) = $vacant ? ('vacant roles', 'error') : ('roles', 'warning');

		is($admin->query("SELECT severity FROM leader_election.diagnose('$election') WHERE finding LIKE 'Nobody can stand%'"),
			$severity, "candidate_role: which is worse while nobody leads: $severity");
	}
	run("SELECT leader_election.alter_election('roles', candidate_role => 'team')");
	is(call('other', "join('roles', 'two')"), '', 'candidate_role: another one may be named');
	$session->finish;
}

# --- Owners

# As the view has it: the present name, of a role that exists
sub owner { return $admin->query("SELECT owner FROM leader_election.status WHERE election = '$_[0]'"); }

{
	my $all = "strategy => 'race'";

	is(call('app', "create_election('owned', $LONG, candidate_role => 'team')"), '', 'owner: app');
	is(call('app', "create_group('owned group', 1, $LONG)"), '', 'owner: app has a group');
	run('ALTER ROLE app RENAME TO app_new; CREATE ROLE app LOGIN');
	is(call('app', "alter_election('owned', $all)"), '42501', 'owner: who has the name now is not it');
	like($said, qr/owned by role "app_new"/, 'owner: and is told who is');
	is(call('app', "alter_group('owned group', $all)"), '42501', 'owner: nor of the group');
	like($said, qr/owned by role "app_new"/, 'owner: and is told who is');
	run("SELECT leader_election.pause_election('owned')");
	like(remedies('owned'), qr/run as role "app_new" or as a superuser/,
		'owner: diagnose() names the role as it is called');
	is(owner('owned'), 'app_new', 'owner: and so does the view');
	is(call('app_new', "alter_election('owned', $all)"), '', 'owner: the role may alter');
	is($admin->query("SELECT owner FROM leader_election.election WHERE election = 'owned'"),
		'app_new', 'owner: and the table has its name then');
	is(call('app_new', "alter_group('owned group', $all)"), '', 'owner: and the group');
	is(call('app_new', "drain_candidate('x', 'owned')"), '', 'owner: drain');
	is(call('app_new', "undrain_candidate('x', 'owned')"), 't', 'owner: undrain');
	is(call('app_new', "pause_election('owned')"), '', 'owner: pause');
	is(call('app_new', "resume_election('owned')"), 't', 'owner: resume');
	run("SELECT leader_election.pause_election('owned')");
	is(call('app_new', "request_yield('owned')"), '', 'owner: ask for a yield');

	# PostgreSQL's commands on what a role owns do not know of elections.
	run('REASSIGN OWNED BY app_new TO other; DROP OWNED BY app_new; DROP ROLE app_new');
	is(call('app', "alter_election('owned', $all)"), '42501', 'owner: dropped');
	like($said, qr/role "app_new", which was dropped.*superuser.*alter_election\(.*owner =>/s,
		'owner: and that is said, and what to do');
	is(owner('owned'), '', 'owner: the view names nobody');
	is(call('app', "drop_group('owned group')"), '42501', 'owner: the group');
	like($said, qr/role "app_new", which was dropped.*alter_group\(.*owner =>/s, 'owner: and that is said');
	foreach my $name ('owned', 'owned group', 'owned group/1')
	{
		my $text = remedies($name);

		like($text, qr/owner.*"app_new".*was dropped.*owner =>/s, "owner: diagnose('$name') says so");
		unlike($text, qr/run as role "app_new"/, "owner: and nobody is to be that role: $name");
	}
	run('CREATE ROLE app_new LOGIN');
	is(call('app_new', "alter_election('owned', $all)"), '42501', 'owner: not a new role of that name');
	run("SELECT leader_election.alter_election('owned', owner => 'app_new'),
		leader_election.alter_group('owned group', owner => 'app_new')");
	is(call('app_new', "alter_election('owned', $all)"), '', 'owner: unless a superuser says so');
	is(call('app_new', "alter_group('owned group', $all)"), '', 'owner: nor of the group');
	is(owner('owned group/1'), 'app_new', 'owner: whose seats are its own');
}

# --- Who may name another owner

{
	run('CREATE ROLE twin IN ROLE app, app_new; CREATE ROLE taker IN ROLE app');
	is(call('taker', "alter_election('owned', owner => 'app')"), '42501', 'owner: who owns nothing gives nothing');
	is(call('app_new', "alter_election('owned', owner => 'app')"), '42501', 'owner: nor to whom it is not');
	like($said, qr/"app"/, 'owner: which is said');
	is(owner('owned'), 'app_new', 'owner: it stays');
	is(call('twin', "alter_election('owned', owner => 'app')"), '', 'owner: who is both may');
	is(owner('owned'), 'app', 'owner: app');
	is(call('app_new', "alter_election('owned', strategy => 'race')"), '42501', 'owner: the former one is it no more');
	is(call('twin', "alter_group('owned group', owner => 'app')"), '', 'owner: of the group, too');
	is(owner('owned group/1'), 'app', 'owner: and its seats');
	is(call('twin', "alter_election('owned', owner => 'no such role')"), '42704', 'owner: it must exist');
	is(call('twin', "alter_election('owned group/1', owner => 'app_new')"), '42809', 'owner: not of a seat alone');
	run("SELECT leader_election.alter_election('owned', owner => 'twin')");
	is(owner('owned'), 'twin', 'owner: a superuser may name any');
}

# --- The role of a session may be dropped while it leads

{
	my $session;

	run('CREATE ROLE brief LOGIN');
	$session = session($node, name => 'brief', user => 'brief');
	is(stand_as($session, 'brief', 'one') > 0, 1, 'dropped: it leads');
	run('DROP ROLE brief');
	is($session->query("SELECT leader_election.is_leader('brief')"), 't', 'dropped: it leads on');
	is($session->query("SELECT leader_election.resign('brief')"), 't', 'dropped: and may resign');
	is($session->query("SELECT leader_election.leave('brief')"), 't', 'dropped: and leave');
	$session->finish;
}

# --- Names that a superuser has written by hand

{
	run("SELECT leader_election.create_election('by hand');
		UPDATE leader_election.election SET owner = 'app' WHERE election = 'by hand'");
	is(call('app', "drop_election('by hand')"), '', 'by hand: a name that was written counts');
}

# --- A dump, restored where the OIDs are those of other roles

{
	my $there = new_server(name => 'there', start => 0, config => "leader_election.lease_duration = '10s'");
	my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';
	my (%oid, %oid_there, $term);

	# Roles that are made first have the first OIDs, on each server.
	my $here = new_server(name => 'here', start => 0, config => "leader_election.lease_duration = '10s'");
	$here->start;
	$there->start;
	local ($node, $admin) = ($here, session($here, name => 'here', dbname => 'postgres'));
	run('CREATE ROLE app LOGIN; CREATE ROLE team; CREATE ROLE lost LOGIN; CREATE ROLE member LOGIN IN ROLE team;
		CREATE DATABASE d');
	$admin = session($here, name => 'here', dbname => 'd');
	run("CREATE EXTENSION leader_election; $RIGHTS");
	foreach my $role (qw(app lost))
	{
		call($role, "create_election('of $role', $LONG, candidate_role => 'team')");
		call($role, "create_group('crew of $role', 1, $LONG)");
	}
	$term = as('app', "SELECT term FROM leader_election.acquire('led', 'one', run => '1')");
	my $query = "SELECT oid || ' ' || rolname FROM pg_roles WHERE oid >= 16384 ORDER BY oid";
	%oid = map { reverse split / / } split /\n/, $admin->query($query);
	command_ok([ 'pg_dump', '-d', $here->connstr('d'), '-f', $dump ], 'dump: made');

	my $restored = session($there, name => 'there', dbname => 'postgres');
	$restored->query('CREATE ROLE stranger LOGIN; CREATE ROLE guild; CREATE ROLE thief LOGIN;
		CREATE ROLE member LOGIN; CREATE ROLE app LOGIN; CREATE ROLE team; CREATE ROLE clubber LOGIN IN ROLE guild;
		CREATE DATABASE d');
	%oid_there = map { reverse split / / } split /\n/, $restored->query($query);
	is("@oid_there{qw(stranger guild thief)}", "@oid{qw(app team lost)}",
		'dump: other roles have the OIDs there');
	command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $there->connstr('d'), '-f', $dump ],
		'dump: restored');

	$restored->finish;
	($node, $admin) = ($there, session($there, name => 'there', dbname => 'd'));
	foreach my $role (qw(stranger thief))
	{
		foreach my $call ("alter_election('of app', strategy => 'race')",
			"alter_election('of lost', strategy => 'race')",
			"alter_group('crew of app', max_per_candidate => 1)",
			"alter_group('crew of lost', max_per_candidate => 1)",
			"drop_election('of lost')", "drop_group('crew of lost')",
			"pause_election('of app')", "request_yield('of app')",
			"drain_candidate('x', 'of app')",
			"alter_election('of lost', owner => '$role')",
			"renew('led', $term)", "release('led', $term)",
			"release('led', $term, done => true)", "transfer('led', $term, 'x')",
			"join('of app', 'x')", "acquire('of lost', 'x')")
		{
			is(call($role, $call), '42501', "dump: $role may not: $call");
		}
	}
	is(call('clubber', "join('of app', 'x')"), '42501', 'dump: nor may a member of a role with the OID stand');
	like(remedies('of lost'), qr/owner.*"lost".*does not exist/s, 'dump: a role that is not there is named');
	is(query_unless_busy($admin, "SET ROLE app;
		SELECT term > $term FROM leader_election.renew('led', $term);
		RESET ROLE"), 't', 'dump: the role of that name renews');
	is(call('app', "alter_election('of app', strategy => 'lowest')"), '', 'dump: and owns');
	run('GRANT team TO clubber');
	is(call('clubber', "join('of app', 'x')"), '', 'dump: a member of the role of that name may stand');

	# From then on, it is that role's, whatever it is called.
	run('ALTER ROLE app RENAME TO app_new; CREATE ROLE app');
	is(call('app_new', "alter_election('of app', strategy => 'race')"), '', 'dump: and that stays so');
	is(call('app', "alter_election('of app', strategy => 'race')"), '42501', 'dump: for that role alone');
	is(call('app_new', "leave('led', 'one')"), '22023', 'dump: and so does the lease');
	$admin->finish;
}

done_testing();
