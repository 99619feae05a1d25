# Limits that the documentation tells of, as they are told: what a guard on a
# partition or an inherited table does not see, what USAGE is enough for, what a
# new role of an old name may do, what is_leader() waits for, and how an owner
# drops a database in use.  A change of any of them is to be told, too.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Test::More;

my $node = new_server(
	config => qq(
client_min_messages = warning
listen_addresses = '127.0.0.1'
));
my $super = session($node, name => 'super');
my $leader = session($node, name => 'leader', host => '127.0.0.1');

$super->query(
	q{CREATE ROLE observer LOGIN;
	  GRANT USAGE ON SCHEMA leader_election TO observer});
is($leader->query(q{SELECT leader_election.join('e', 'leader')}), 1, 'led');
my $observer = session($node, name => 'observer', user => 'observer');

#
# A guard sees the statements that name its table, and no others.
#

$super->query(
	q{CREATE TABLE parted (i int) PARTITION BY LIST (i);
	  CREATE TABLE part PARTITION OF parted FOR VALUES IN (1);
	  CREATE TABLE parent (i int);
	  CREATE TABLE heir () INHERITS (parent)});
$super->query(
	"CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON $_
	FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('e')")
  foreach qw(part heir);
is($super->sqlstate_of('INSERT INTO part VALUES (1)'), 'LE001', 'a guard on a partition');
is($super->sqlstate_of('INSERT INTO parted VALUES (1)'), '00000',
	'does not see a write through the parent');
is($super->sqlstate_of('INSERT INTO heir VALUES (1)'), 'LE001', 'a guard on an heir');
$leader->query('INSERT INTO heir VALUES (1)');
is($super->sqlstate_of('UPDATE parent SET i = 2'), '00000',
	'does not see a write through the parent');
is($super->query('SELECT i FROM heir'), '2', 'that changes its rows');
$super->query(
	q{DROP TRIGGER guard ON part;
	  CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON parted
		FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('e')});
is($super->sqlstate_of('INSERT INTO parted VALUES (1)'), 'LE001', 'a guard on the parent');
is($super->sqlstate_of('INSERT INTO part VALUES (1)'), '00000',
	'does not see a write that names a partition');

#
# only_leader() is no access control: any role that may call assert_leader() with a
# term can read the term, and assert it. USAGE alone is not enough.
#

$super->query('CREATE TABLE guarded (i int); GRANT INSERT ON guarded TO observer');
$super->query(
	q{CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH STATEMENT
	EXECUTE FUNCTION leader_election.only_leader('e')});
is($observer->sqlstate_of('INSERT INTO guarded VALUES (1)'), 'LE001', 'USAGE: guarded');
my $assert = q{SELECT leader_election.assert_leader('e', term)
	FROM leader_election.status WHERE election = 'e'};
is($observer->sqlstate_of($assert), '42501', 'USAGE: may not assert a term');
$super->query('GRANT EXECUTE ON FUNCTION leader_election.assert_leader(text, bigint) TO observer');
$observer->query('BEGIN');
is($observer->sqlstate_of($assert), '00000', 'EXECUTE: may assert a term that it has read');
$observer->query('INSERT INTO guarded VALUES (1)');
is($observer->sqlstate_of('COMMIT'), '00000', 'EXECUTE: and write');
is($observer->query('SELECT host(client_addr), leader FROM leader_election.history'),
	'127.0.0.1|leader', 'USAGE: shows the addresses of leaders');

#
# A role of the name of one that was dropped does not have its elections.
#

$super->query('CREATE ROLE again LOGIN; GRANT USAGE ON SCHEMA leader_election TO again;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO again');
my $first = session($node, user => 'again');
$first->query(q{SELECT leader_election.create_election('inherited')});
$first->finish;
$super->query('DROP OWNED BY again; DROP ROLE again; CREATE ROLE again LOGIN;
	GRANT USAGE ON SCHEMA leader_election TO again;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO again');
my $second = session($node, user => 'again');
is($second->sqlstate_of(q{SELECT leader_election.alter_election('inherited', 'lowest')}),
	'42501', 'a role of the same name does not own what the dropped one did');
$second->finish;

#
# is_leader() waits for nothing of ours, but for the server's own catalogs.
#

my $fresh = session($node, name => 'fresh');
$super->query('BEGIN; LOCK TABLE pg_class IN ACCESS EXCLUSIVE MODE');
$fresh->query_async(q{SELECT leader_election.is_leader('e', 1)});
wait_until(
	sub {
		$super->query("SELECT wait_event_type = 'Lock' FROM pg_stat_get_activity("
			  . $fresh->backend_pid . ')') eq 't';
	},
	'a wait for pg_class');
$super->query('COMMIT');
is($fresh->result, 't', 'is_leader() waits while somebody has locked pg_class');
$fresh->finish;

#
# DROP DATABASE ... WITH (FORCE) ends no worker of ours for an owner who is no
# superuser.  What the owner can do:
#

$super->query('CREATE ROLE owner LOGIN; CREATE ROLE app LOGIN; CREATE DATABASE owned OWNER owner');
my $inside = session($node, dbname => 'owned');
$inside->query('CREATE EXTENSION leader_election;
	GRANT USAGE ON SCHEMA leader_election TO app;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app');
$inside->finish;
my $owner = session($node, user => 'owner');
my $candidate = session($node, user => 'app', dbname => 'owned');
is($candidate->query(q{SELECT leader_election.join('e', 'candidate')}),
	1, 'led in a database of somebody else');
is($owner->sqlstate_of('DROP DATABASE owned WITH (FORCE)'),
	'42501', 'WITH (FORCE) fails');
is($owner->sqlstate_of('ALTER DATABASE owned ALLOW_CONNECTIONS false'),
	'00000', 'allow no more connections');
my $END_SESSIONS = q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
	WHERE datname = 'owned' AND backend_type = 'client backend'};
is($owner->query($END_SESSIONS), '', 'sessions of other roles are not shown');
$super->query('GRANT pg_read_all_stats, pg_signal_backend TO owner');
is($owner->query($END_SESSIONS), 't', 'but are ended by members of two roles');
wait_until(
	sub { $owner->sqlstate_of('DROP DATABASE owned') eq '00000' },
	'DROP DATABASE');
pass('DROP DATABASE');

$_->finish foreach $super, $leader, $observer, $owner;
$node->stop;
done_testing();
