# The extension beside the server, not in it, as CloudNativePG mounts it: the control
# file is found by extension_control_path, the library by dynamic_library_path. The
# worker, which has no session's settings, finds it there, too. From PostgreSQL 18 on.

use strict;
use warnings;

use File::Copy qw(copy);
use File::Path qw(make_path);
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

sub pg_config
{
	my ($option) = @_;
	my ($out) = run_command([ $ENV{PG_CONFIG} // 'pg_config', $option ]);

	return $out;
}

my ($major) = pg_config('--version') =~ /^PostgreSQL (\d+)/;

plan skip_all => 'no extension_control_path before 18' if $major < 18;

my $image = PostgreSQL::Test::Utils::tempdir();
make_path("$image/lib", "$image/share/extension");
copy($_, "$image/share/extension/") or die "$_: $!"
  foreach glob(pg_config('--sharedir') . '/extension/leader_election*');
copy(pg_config('--pkglibdir') . '/leader_election.so', "$image/lib/") or die "the library: $!";

# Not '$system': there it would be found anyway. '$libdir' has PL/pgSQL, which the
# script needs, and comes second.
my $node = new_server(config => "extension_control_path = '$image/share'
dynamic_library_path = '$image/lib:\$libdir'");
my $sql = session($node);

sub libraries_of
{
	my ($pid) = @_;
	my %libraries = map { $_ => 1 } slurp_file("/proc/$pid/maps") =~ m{(/\S*/leader_election\.so)$}mg;

	return join(' ', keys %libraries);
}

is($sql->query("SELECT leader_election.join('e', 'one')"), '1', 'a session leads');
is(libraries_of($sql->query('SELECT pg_backend_pid()')), "$image/lib/leader_election.so", '... by that library');
wait_for($node, $ONE_WORKER);
is(libraries_of($sql->query($WORKER_PID)), "$image/lib/leader_election.so", 'so does the worker');

done_testing();
