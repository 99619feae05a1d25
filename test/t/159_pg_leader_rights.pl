# pg_leader of a role that lacks a privilege: a hardened database, where PUBLIC may
# read nothing, not even the view that says which edition this is. It says what was
# refused, and what a role needs.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PgLeader;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $NEEDS = qr/hint: A role needs USAGE on schema leader_election, SELECT on what PUBLIC can read there by default, and to stand also EXECUTE on its routines\.$/m;
my $node = new_server(config => "client_min_messages = warning\n");
my $super = session($node, name => 'super');

$super->query($_) foreach 'CREATE EXTENSION leader_election', 'CREATE ROLE app LOGIN',
  "SELECT leader_election.create_election('e')";
my $APP = $node->connstr('postgres') . ' user=app';
my @RUN = ($APP, 'run', '-e', 'e', '--', 'true');

# What it is refused, one after the other, and the GRANT that mends it
my @LACKS = (
	[ 'schema leader_election', 'GRANT USAGE ON SCHEMA leader_election TO app' ],
	[ 'view protocol', 'GRANT SELECT ON leader_election.protocol TO app' ],
	[ 'table election', 'GRANT SELECT ON leader_election.election TO app' ],
	[ 'function acquire', 'GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app' ]);

$super->query('REVOKE SELECT ON leader_election.election, leader_election.protocol FROM PUBLIC');
foreach my $lacks (@LACKS)
{
	my ($object, $grant) = @$lacks;
	my ($code, undef, $err) = ask(@RUN);

	is($code, 120, "without privileges on $object");
	like($err, qr/error: permission denied for $object\n/, 'says which');
	like($err, $NEEDS, 'and what is needed');
	$super->query($grant);
}
is((ask(@RUN))[0], 0, 'with all of them it leads');

# What else has that SQLSTATE is no privilege.
my ($code, undef, $err) = ask($APP, 'yield', '-e', 'e');
unlike($err, qr/A role needs USAGE/, "who is not the owner is not told to GRANT ($code)");
$super->query('REVOKE SELECT ON leader_election.status FROM PUBLIC');
($code, undef, $err) = ask($APP, 'status');
is($code, 125, 'an observer');
like($err, $NEEDS, 'is told the same');
done_testing();
