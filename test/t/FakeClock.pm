# Servers whose wall clock a test sets: libfaketime does that, and leaves the monotonic
# ones alone.
#
#	plan skip_all => 'libfaketime is not installed' unless fake_clock_found();
#	start_with_fake_clock($node);
#	set_clock(3600);
#
# (In the server, nothing may be in pg_sleep() when the clock is set back: that goes by
# the wall clock.)

package FakeClock;

use strict;
use warnings;

use Exporter qw(import);
use PostgreSQL::Test::Utils;

our @EXPORT = qw(fake_clock_found set_clock start_with_fake_clock);

my ($library) = grep { -e } map { glob "$_/faketime/libfaketime.so.1" }
  qw(/usr/lib/* /usr/lib /usr/lib64 /usr/local/lib);
my $file;		# that says how far it is from the true time

sub fake_clock_found { return defined $library; }

# Sets the servers' clock to that many seconds from the true time.
sub set_clock
{
	my ($offset) = @_;

	$file //= PostgreSQL::Test::Utils::tempdir . '/clock';
	append_to_file("$file.new", sprintf("%+d\n", $offset));
	rename("$file.new", $file) or die "cannot rename: $!";
	return;
}

# set_clock() comes first.
sub start_with_fake_clock
{
	my ($node) = @_;

	local $ENV{LD_PRELOAD} = $library;
	local $ENV{FAKETIME_TIMESTAMP_FILE} = $file;
	local $ENV{FAKETIME_NO_CACHE} = 1;
	local $ENV{FAKETIME_DONT_FAKE_MONOTONIC} = 1;
	local $ENV{DONT_FAKE_MONOTONIC} = 1;
	local $ENV{NO_FAKE_STAT} = 1;

	$node->start;
	return;
}

1;
