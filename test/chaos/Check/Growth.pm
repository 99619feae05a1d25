# Nothing grows over the run: the worker's memory, the tables, the locks. All of it is
# measured at the end of each calm.

package Check::Growth;

use strict;
use warnings;

use Check::Record;
use Exporter qw(import);
use List::Util qw(max);

our @EXPORT = qw(check_growth);

my $MEMORY_KB = 2048;	# more than in the first calm of that worker, and what a look takes ...
my $TABLES_KB = 8192;	# in all, with what is dead in them, ...
my $ELECTION_KB = 16;	# ... and for each election: memory, too, which malloc keeps
my $LOCKS = 60;			# and four for each election

sub check_growth
{
	my %first;		# calm of each worker
	my $huge = 0;	# the most elections that one statement has made, and that have gone

	foreach (lines("$out/events"))
	{
		my ($time, $kind, $pid, $memory, $tables, $elections, $locks) = split / /;

		$huge = max($huge, $1) if /^\d+ fault huge statement: (\d+)/;
		next if $kind ne 'measured';
		$first{$pid} //= $memory;
		$count{'calms measured'}++;
		$info{"worker's memory, kB, most"} = max($info{"worker's memory, kB, most"} // 0, $memory);
		$info{"worker's memory grew, kB, most"} =
		  max($info{"worker's memory grew, kB, most"} // 0, $memory - $first{$pid});
		$info{'tables but history, kB, most'} = max($info{'tables but history, kB, most'} // 0, $tables);
		$info{'locks in a calm, most'} = max($info{'locks in a calm, most'} // 0, $locks);
		violation('growth', "worker $pid: from $first{$pid} to $memory kB at $time")
		  if $memory > $first{$pid} + $MEMORY_KB + ($elections + $huge) * $ELECTION_KB;
		violation('growth', "tables of $elections elections: $tables kB at $time")
		  if $tables > $TABLES_KB + $elections * $ELECTION_KB;
		violation('growth', "$locks locks, of $elections elections, at $time")
		  if $locks > $LOCKS + $elections * 4;
	}
	return;
}

1;
