# A process that cannot find out which boot of the machine this is, because no
# file descriptor is left, knows nothing about leases: is_leader() is false then,
# and no error; what cannot do without it fails, and says why.  It is asked
# again, and answers as soon as there is a descriptor.  A system that has no name for
# the boot, or no time namespaces, is no trouble.

use strict;
use warnings;

use Errno qw(EACCES EMFILE ENOENT EPERM);
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

my $folder = PostgreSQL::Test::Utils::tempdir();
my $switch = "$folder/none-left";

plan skip_all => 'the boot has no name here'
  unless -e '/proc/sys/kernel/random/boot_id';
compile('-shared', '-fPIC', '-o', "$folder/no_boot_id.so",
	"$FindBin::RealBin/no_boot_id.c", '-ldl');

my $BOOT = '/proc/sys/kernel/random/boot_id';
my $OFFSETS = '/proc/self/timens_offsets';
my $node = new_server(start => 0);

sub start
{
	local $ENV{LD_PRELOAD} = "$folder/no_boot_id.so";
	local $ENV{NO_BOOT_ID} = $switch;

	$node->start;
	return;
}

# From now on this file cannot be opened.
sub hide
{
	my ($path, $errno) = @_;

	append_to_file("$switch.new", "$path $errno");
	rename("$switch.new", $switch) or die "$switch: $!";
	return;
}

start();
$node->safe_psql('postgres', 'CREATE EXTENSION leader_election');

my $leader = session($node, name => 'leader');
is($leader->query(q{SELECT leader_election.join('e', 'leader')}), 1, 'led');

hide($BOOT, EMFILE);
my $worker = session($node, name => 'worker');
is( $worker->query(q{SELECT leader_election.is_leader('e', 1),
		leader_election.is_leader('e'), leader_election.term('e')}),
	'f|f|',
	'a process that cannot tell says that nobody leads (G3)');
is($worker->sqlstate, '00000', 'without an error');
is($worker->query(q{SELECT leader_election.is_leader('e', 1)}),
	'f', 'and again');
is($worker->sqlstate_of(q{SELECT leader_election.assert_leader('e', 1)}),
	'53000', 'what has to tell fails');
like(
	$worker->errors,
	qr/could not find out which boot of the machine this is: Too many open files/,
	'and says why');
is($worker->sqlstate_of(q{SELECT leader_election.join('e', 'worker')}),
	'53000', 'nobody stands');
is($leader->query(q{SELECT leader_election.is_leader('e'),
		leader_election.is_leader('e', 1)}),
	't|t', 'a process that knew before leads on');

unlink($switch) or die "cannot remove $switch: $!";
is($worker->query(q{SELECT leader_election.is_leader('e', 1)}),
	't', 'it tells as soon as it can');
is($worker->query(q{SELECT leader_election.join('e', 'worker')}),
	'', 'and may stand');

# The offsets of the time namespace

foreach my $errno (ENOENT, EACCES, EPERM)
{
	hide($OFFSETS, $errno);
	is(session($node, name => 'other')->query(q{SELECT leader_election.is_leader('e', 1)}),
		't', "a system that shows no time namespace ($errno): as without an offset");
}
hide($OFFSETS, EMFILE);
is(session($node, name => 'other')->sqlstate_of(q{SELECT leader_election.assert_leader('e', 1)}),
	'53000', 'where it cannot be told whether there is an offset, no boot is known either');
$_->finish foreach $leader, $worker;

# A system whose boots have no names

sub incarnation
{
	return $node->safe_psql('postgres', 'SELECT leader_election._incarnation()');
}

$node->stop;
hide($BOOT, ENOENT);
start();
my $former = incarnation();
like($former, qr{/start-\d+/}, 'a boot without a name: the start of the server stands for it');
is(incarnation(), $former, 'in all processes');
is($node->safe_psql('postgres', q{SELECT leader_election.leader('e') IS NULL}), 't', 'nobody leads by what another one has granted');
$node->stop;
start();
isnt(incarnation(), $former, 'and each start counts as a boot');

$node->stop;
done_testing();
