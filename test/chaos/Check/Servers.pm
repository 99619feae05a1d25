# The servers' logs: nothing crashed, and no error that is not to be expected.

package Check::Servers;

use strict;
use warnings;

use Check::Clients;
use Check::Record;
use Exporter qw(import);
use Time::Local qw(timegm);

our @EXPORT = qw(check_logs);

# Errors that a server may log, and why; where the SQLSTATE says too little,
# with the message
my %expected_log = (
	'08003' => 'connection lost',
	'53300' => 'all connections used, by those that are stopped',
);

my @expected_messages = (
	qr/could not (receive data from|send data to|connect to).*(primary|WAL stream)/,	# the network
	qr/(terminating walreceiver|replication terminated by primary|streaming replication)/,
	qr/requested (timeline|WAL segment|starting point)/,	# before a rebuild
	qr/canceling (the )?wait for synchronous replication/,	# the nemesis
	qr/could not (send|receive|write|read).*(client|data)/,	# the network
	qr/terminating connection because of (crash|unexpected postmaster)/,
	qr/could not write init file/,	# the disk is full
	qr/pre-existing shared memory block/,	# its postmaster was killed, and some are stopped
	# a parallel query that has ended meanwhile
	qr/could not (?:map dynamic shared memory segment|attach to dynamic shared area)/,
	qr/lock file "postmaster.pid" already exists/,	# started twice by the nemesis
);

# What a server warns of at the end of a transaction that has left something open, or of
# pages and memory that are damaged
my $FORGOTTEN = qr/(?:\bleak\b|not closed|still active|still referenced|page verification failed|problem in alloc set)/;

my $SLACK_US = 1_000_000;
my $JUMP_US = 4_000_000;	# for so much wall clocks are ahead, or behind, in the profile clock

# When was this line written, by our clock? The servers log in UTC. undef: they do not.
sub time_of
{
	my ($line) = @_;
	my ($year, $month, $day, $hour, $minute, $second, $ms) =
	  $line =~ /^(\d+)-(\d+)-(\d+) (\d+):(\d+):(\d+)\.(\d{3}) (?:UTC|GMT) / or return;

	return (timegm($second, $minute, $hour, $day, $month - 1, $year) * 1000 + $ms) * 1000 - $epoch_us;
}

# May this error be in a log at that time? In the round of a fault of which it comes.
sub may_be_logged
{
	my ($state, $time) = @_;
	my $slack = $wall_clock ? $SLACK_US : $JUMP_US;

	return $expected_log{$state}
	  || (defined $time && grep { is_expected($state, $_) } $time, $time - $slack, $time + $slack);
}

sub check_logs
{
	foreach my $path (glob "$out/server*.log")
	{
		my ($name) = $path =~ m{([^/]+)$};
		my (%disk_full, $orphaned);

		foreach (lines($path))
		{
			# As it has to be, for WAL
			$disk_full{$1} = 1, next if /\[(\d+)\].* PANIC:  .*No space left on device/;
			next if /\(PID (\d+)\) was terminated by signal 6/ && $disk_full{$1};

			# PostgreSQL's own: some that are in a transaction when their postmaster is
			# killed, in a parallel query or a CLUSTER that waits for a lock
			$orphaned = 0 if / LOG:  starting PostgreSQL /;
			$orphaned = 1 if / FATAL:  .*(?:unexpected postmaster exit|postmaster exited during a parallel transaction)/;
			next if /^TRAP: .*!IsTransactionOrTransactionBlock\(\).*pgstat\.c/ && $orphaned;

			if (/PANIC:|TRAP:|was terminated by signal (?!9\b)\d+/)
			{
				violation('crash', "$name: $_");
				next;
			}
			violation('error in a log', "$name: $_") if /WARNING:  .*$FORGOTTEN/;
			next unless /^\S+ \S+ \S+ \[\d+\] (\w{5}) ([^:]*): (ERROR|FATAL):  (.*)/;
			my ($state, $who, $message) = ($1, $2, $4);

			$count{"errors in servers' logs: $state"}++;

			# The nemesis may get any, but none that cannot happen.
			next if $who =~ m{/(nemesis|pg_dump)$} && $state !~ /^XX/;

			# PostgreSQL's own: what pg_get_constraintdef() says where REINDEX
			# CONCURRENTLY has replaced an index since pg_dump has seen it
			next if $who =~ m{/pg_dump$} && $message =~ /^cache lookup failed for index \d+$/;
			violation('error in a log', "$name: $_")
			  unless may_be_logged($state, time_of($_)) || grep { $message =~ $_ } @expected_messages;
		}
	}
	return;
}

1;
