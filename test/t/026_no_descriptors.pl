# A process that cannot find out which boot of the machine this is, because no
# file descriptor is left, knows nothing about leases: is_leader() is false then,
# and no error; what cannot do without it fails, and says why.  It is asked
# again, and answers as soon as there is a descriptor.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

my $pg_config = $ENV{PG_CONFIG} // 'pg_config';
my $folder = PostgreSQL::Test::Utils::tempdir();
my $compiler = (split ' ', `$pg_config --cc`)[0];
my $switch = "$folder/none-left";

plan skip_all => 'the boot has no name here'
  unless -e '/proc/sys/kernel/random/boot_id';
system_or_bail($compiler, '-shared', '-fPIC', '-o', "$folder/no_boot_id.so",
	"$FindBin::RealBin/no_boot_id.c", '-ldl');

my $node = new_server(start => 0);
{
	local $ENV{LD_PRELOAD} = "$folder/no_boot_id.so";
	local $ENV{NO_BOOT_ID} = $switch;

	$node->start;
}
$node->safe_psql('postgres', 'CREATE EXTENSION leader_election');

my $leader = session($node, name => 'leader');
is($leader->query(q{SELECT leader_election.join('e', 'leader')}), 1, 'led');

append_to_file($switch, '');
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

$_->finish foreach $leader, $worker;
$node->stop;
done_testing();
