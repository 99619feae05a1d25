# Wall clocks that a test sets, of servers and of other programs: clock.c, which they
# preload, does that, and leaves the monotonic ones alone.
#
#	set_clock(3600);
#	start_with_fake_clock($node);
#
# (In the server, nothing may be in pg_sleep() when the clock is set back: that goes by
# the wall clock.)

package FakeClock;

use strict;
use warnings;

use Exporter qw(import);
use PgLeader;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(fake_clock set_clock start_with_fake_clock);

my ($dir, $library);

# That says how far a clock is from the true time
sub file
{
	my ($name) = @_;

	$dir //= PostgreSQL::Test::Utils::tempdir();
	return "$dir/$name";
}

# Sets a clock, by default that of the servers, to that many seconds from the true time.
sub set_clock
{
	my ($offset, $name) = @_;
	my $file = file($name // 'servers');

	append_to_file("$file.new", sprintf("%+d\n", $offset));
	rename("$file.new", $file) or die "cannot rename: $!";
	return;
}

# The environment of a program that goes by this clock: names and values
sub fake_clock
{
	my ($name) = @_;

	$library //= preload('clock');
	return (LD_PRELOAD => $library, CLOCK_FILE => file($name));
}

# set_clock() comes first.
sub start_with_fake_clock
{
	my ($node) = @_;

	local %ENV = (%ENV, fake_clock('servers'));
	$node->start;
	return;
}

1;
