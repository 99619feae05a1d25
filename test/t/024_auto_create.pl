# Elections are created on first use only by who may create them: the setting
# leader_election.auto_create is the administrator's, but as long as the library
# is not loaded PostgreSQL takes any value for it from a client, and when it is
# loaded that value is refused and the default (on) counts.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Test::More;

my $node = new_server();
my $admin = session($node, name => 'admin');

$admin->query(
	q{CREATE ROLE creator LOGIN;
	  CREATE ROLE candidate LOGIN;
	  GRANT USAGE ON SCHEMA leader_election TO creator, candidate;
	  GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election
		 TO creator, candidate;
	  REVOKE EXECUTE ON FUNCTION leader_election.create_election FROM candidate;
	  SELECT leader_election.create_election('there')});

my $owner = $admin->query('SELECT current_user');
my %uses = (
	join => q{SELECT leader_election.join('%s', '%s')},
	campaign => q{CALL leader_election.campaign('%s', '%s', '0')},
	acquire => q{SELECT leader_election.acquire('%s', '%s')});

sub elections
{
	return $admin->query(
		"SELECT coalesce(string_agg(election || ' ' || owner, ', ' ORDER BY election), '')
		FROM leader_election.election WHERE election <> 'there'");
}

# The first call of each session loads the library.
sub try_all
{
	my ($what, $user, $options, $expected) = @_;

	foreach my $use (sort keys %uses)
	{
		my $one = session(
			$node,
			user => $user,
			options => "-c client_min_messages=error $options");

		my $name = "$use of $user";

		is($one->sqlstate_of(sprintf $uses{$use}, $name, $name),
			$expected, "$what: $use");
		if ($expected eq 'LE003')
		{
			like($one->errors, qr/HINT:/, "$what: $use: with a hint");
			is($one->sqlstate_of(sprintf $uses{$use}, 'there', $name),
				'00000', "$what: $use of one that is there");
		}
		$one->finish;
	}
	return;
}

# What a client sets first, whatever the value, is not taken for the
# administrator's word.
foreach my $where ('ALTER DATABASE postgres', 'ALTER SYSTEM')
{
	$admin->query(q{LOAD 'leader_election'});
	$admin->query("$where SET leader_election.auto_create = off");
	$admin->query('SELECT pg_reload_conf()');
	wait_for($node, q{LOAD 'leader_election';
		SELECT current_setting('leader_election.auto_create') = 'off'});
	try_all("$where, $_", 'candidate', "-c leader_election.auto_create=$_",
		'LE003')
	  foreach qw(x on);
	try_all("$where, nothing", 'candidate', '', 'LE003');
	try_all("$where, nothing", 'creator', '', 'LE003');
	is(elections(), '', "$where: nothing was created");
	$admin->query("$where RESET leader_election.auto_create");
	$admin->query('SELECT pg_reload_conf()');
	wait_for($node, q{LOAD 'leader_election';
		SELECT current_setting('leader_election.auto_create') = 'on'});
}

# Nor does it say who may: with the default, every role that may call
# create_election().
try_all('on', 'candidate', '', 'LE003');
is(elections(), '', 'on: nothing was created');
try_all('on', 'creator', '', '00000');
is( elections(),
	join(', ', map { "$_ of creator $owner" } sort keys %uses),
	'on: who may create them creates them');

# A function of the same name that is not the extension's gives no privilege.
$admin->query(
	q{CREATE FUNCTION leader_election.create_election() RETURNS void
	  LANGUAGE sql AS '';
	  CREATE FUNCTION public.create_election(text) RETURNS void
	  LANGUAGE sql AS '';
	  CREATE FUNCTION public.create_election(int, int, int, int, int, int, int,
		int, int, int, int, int, int, int) RETURNS void LANGUAGE sql AS '';
	  GRANT EXECUTE ON FUNCTION leader_election.create_election() TO candidate});
try_all('another function', 'candidate', '', 'LE003');
is(session($node, user => 'creator')->sqlstate_of(q{SELECT leader_election.acquire('another', 'c')}),
	'00000', 'nor does it take one');

# The privilege may come by a role, and goes when it is revoked.
my $one = session($node, user => 'candidate',
	options => '-c client_min_messages=error');
$admin->query('GRANT creator TO candidate');
is($one->sqlstate_of(q{SELECT leader_election.acquire('granted', 'c')}),
	'00000', 'by membership');
$admin->query('REVOKE creator FROM candidate');
is($one->sqlstate_of(q{SELECT leader_election.acquire('revoked', 'c')}),
	'LE003', 'and not after it');
like(
	$one->errors,
	qr/"candidate" may not create it.*create_election/,
	'who lacks what');
$one->finish;

$admin->finish;
$node->stop;
done_testing();
