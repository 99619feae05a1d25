# What the command of pg_leader run leaves behind is found and killed whatever it
# calls itself, also where the kernel keeps no lists of children and its name is
# read with its parent's number from one line of /proc.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use HostileServer;
use LeaderElection;
use PgLeader;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'needs /proc' unless -e '/proc/self/stat';

# Seconds: leases last 3
my $LONG_ENOUGH = 20;

my $dir = PostgreSQL::Test::Utils::tempdir();
my $library = preload('no_children');

# The command leaves a process that has another session and another name, and
# does not end when it is asked to.
append_to_file("$dir/command.pl", <<'END_OF_COMMAND');
use POSIX ();

my ($file, $name) = @ARGV;

if (fork == 0)
{
	POSIX::setsid();
	$SIG{TERM} = 'IGNORE';
	$0 = $name;
	open(my $handle, '>', "$file.new") or die;
	print $handle "$$\n";
	close($handle);
	rename("$file.new", $file);
	sleep(120);
	exit 0;
}
select(undef, undef, undef, 0.01) until -e $file;
END_OF_COMMAND

my @NAMES = ('plain', '', ' ', '(', ')', ') S 1', 'a) S 1 (b', '1 (x) R 1 1 1', "\n", "a\nb", "a\n) S 1 1", "\e[2J", "\xff\xfe", '%s%n');
my @running;
my $server = HostileServer->new();

foreach my $name (@NAMES)
{
	foreach my $how ('lists of children', 'no such lists')
	{
		local $ENV{LD_PRELOAD} = $library if $how ne 'lists of children';
		my %one = (name => $name =~ s/([^\x20-\x7e])/sprintf('\\x%02x', ord $1)/ger, how => $how, file => "$dir/pid-" . @running);

		$one{run} = pg_leader($server->connstr, '-e', 'e', '--grace=200ms', '--', $^X, "$dir/command.pl", $one{file}, $name);
		push @running, \%one;
	}
}
foreach my $one (@running)
{
	wait_until(sub { $one->{pid} = -e $one->{file} && slurp_file($one->{file}) + 0 }, "a process named \"$one->{name}\"");
}
eval { wait_until(sub { !grep { is_running($_->{pid}) } @running }, 'their end', $LONG_ENOUGH) };
foreach my $one (@running)
{
	my $is_left = is_running($one->{pid});

	ok(!$is_left, "a process named \"$one->{name}\" is killed ($one->{how})");
	kill('KILL', $one->{pid}) if $is_left;
	is($one->{run}->exit_code, 0, '... and the exit code is that of the command') unless $is_left;
}
done_testing();
