# Clients of other languages than C, which are the project's own (../../clients): one
# process of each language has several leaderships, as a program may. Each of these is a
# candidate with a log of its own, like that of candidate.c.

package Languages;

use strict;
use warnings;

use Cluster;
use Exporter qw(import);
use FindBin;
use Nemesis;
use Time::HiRes qw(clock_gettime CLOCK_BOOTTIME CLOCK_MONOTONIC);

our @EXPORT = qw(@LANGUAGES note_members start_language);

our @LANGUAGES = qw(python asyncpg node java go);

my $drivers = "$FindBin::RealBin/../chaos/drivers";

sub command_of
{
	my ($language) = @_;

	return {
		python => [ '/usr/bin/python3', "$drivers/many.py" ],
		asyncpg => [ '/usr/bin/python3', "$drivers/many_async.py" ],
		node => [ 'node', '--max-old-space-size=64', "$drivers/many.js" ],
		java => [ qw(java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx48m -cp), "$dir/java:/usr/share/java/postgresql.jar", 'Many' ],
		go => ["$dir/many"],
	}->{$language};
}

# The checker has to know that a candidate is of such a process.
sub note_members
{
	foreach my $name (grep { $candidates{$_}{members} } sort keys %candidates)
	{
		my $n = 0;

		event('member', $name . ++$n, $_->[0]) foreach @{ $candidates{$name}{members} };
	}
	return;
}

# Its members are pairs of a kind, session or detached, and an election; the candidates are
# NAME1, NAME2, ... Sessions look for the primary among the hosts of the connection. Pools, which
# only libpq's could do so, connect to POOL_PORT.
#
# asyncio receives into 256 kB each time, and keeps what came. In the heap, where glibc takes
# such pieces from once the first was freed, these remains leave gaps, each too small for the
# next piece: asyncpg's process grew by 0.4 MB a minute while its connections were ended, with
# nothing kept. From mmap(), they leave no gaps, and a leak would be seen.
sub start_language
{
	my ($name, $c, $connection, $pool_port, $pool_database) = @_;
	my ($hosts, $ports) = $connection =~ /host=(\S+) port=(\S+)/;
	my $n = 0;
	my @members = map { $n++; "$_->[0]:$_->[1]:$name$n:$out/candidate.$name$n.$c->{instance}" } @{ $c->{members} };

	local %ENV = (%ENV, PGHOST => $hosts, PGPORT => $ports, PGUSER => 'app', PGDATABASE => 'postgres', PGAPPNAME => $name,
		POOL_PORT => $pool_port, POOL_DATABASE => $pool_database, MALLOC_MMAP_THRESHOLD_ => 65536,
		CLOCK_OFFSET_US => int((clock_gettime(CLOCK_BOOTTIME) - clock_gettime(CLOCK_MONOTONIC)) * 1e6));
	return start_process("language.$name", @{ command_of($name) }, $c->{instance}, @members);
}

1;
