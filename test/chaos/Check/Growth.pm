# Nothing grows over the run: the worker's memory, the tables, the locks. All of it is
# measured at the end of each calm. And the worker removes history that is old.

package Check::Growth;

use strict;
use warnings;

use Check::Events;
use Check::Record;
use Exporter qw(import);
use List::Util qw(max);

our @EXPORT = qw(check_growth);

# Of a worker, more than the first one that was measured in the run: what a look at few
# elections takes (malloc keeps it), and for each election. 9,000 candidacies in 3,000
# elections took 4.5 kB for each of these. What is rolled back takes nothing.
my $MEMORY_KB = 2048;
my $MEMORY_EACH_KB = 6;
my $TABLES_KB = 8192;	# in all, with what is dead in them, ...
my $TABLES_EACH_KB = 16;	# ... and for each election

# Instead of $TABLES_KB, once an old snapshot was held: nothing dead is removed then, and
# files do not get shorter later. 300 elections that were renewed each 0.5 s took 8.5 MB in
# 30 s. A snapshot ends with its primary, which was after 85 s in a run of 15 minutes.
my $HELD_KB = 24576;
my $LOCKS = 100;		# nobody leads hundreds of elections in a calm, ...
my $LOCKS_EACH = 4;		# ... but where there is no worker that ends their terms

sub note_most
{
	my ($what, $n) = @_;

	$info{$what} = max($info{$what} // 0, $n);
	return;
}

sub check_memory
{
	my ($time, $pid, $memory, $first, $elections) = @_;

	$count{'calms in which a worker was measured'}++;
	note_most("worker's memory, kB, most", $memory);
	note_most("worker's memory, kB, most above the first one's", $memory - $first);
	violation('growth', "worker $pid: $memory kB at $time, with $elections elections; the first one had $first kB")
	  if $memory > $first + $MEMORY_KB + $elections * $MEMORY_EACH_KB;
	return;
}

sub check_growth
{
	my $first;	# the memory of the first worker that was measured
	my $most = $TABLES_KB;

	foreach (lines("$out/events"))
	{
		my ($time, $kind, $pid, $memory, $tables, $elections, $locks, $largest) = split / /;

		if (/ old history (\w+)$/)
		{
			$count{'runs in which old history had to go'}++;
			violation('growth', "$1 terms in history that are older than they are kept for, at $time") if $1 ne '0';
		}
		$most = $HELD_KB if $kind eq 'snapshot';
		next if $kind ne 'measured';
		my ($slots) = slots_between($time, $time);

		$count{'calms measured'}++;
		check_memory($time, $pid, $memory, $first //= $memory, $elections) if $pid;
		note_most('tables but history, kB, most', $tables);
		note_most('locks in a calm, most', $locks);
		violation('growth', "tables of $elections elections: $tables kB at $time, the largest " . ($largest // 'unknown'))
		  if $tables > $most + $elections * $TABLES_EACH_KB;
		violation('growth', "$locks locks, of $elections elections, at $time")
		  if $locks > $LOCKS + ($slots ? 0 : $elections * $LOCKS_EACH);
	}
	return;
}

1;
