# What happens to an asynchronous cluster that splits.
#
#	$OF_A_SPLIT{$rule}     whether a split may bring this violation with it
#	overlaps(@texts)       seconds that two worked at once, by the texts of rule overlap
#
# Two leaders at once, the old side's terms that the new one does not know, and its
# writes that are lost: such a cluster is told so, and it is no failure. Terms that
# repeat are, and writes of the surviving side out of order.

package Split;

use strict;
use warnings;

use Exporter qw(import);
use List::Util qw(max min);

our @EXPORT = qw(overlaps %OF_A_SPLIT);

our %OF_A_SPLIT = map { $_ => 1 } qw(overlap order owner late lost),
  'two leaders', 'lost row', 'history', 'fenced row', 'ended early', 'outside resource', 'taken', 'led when it was over', 'earlier term';

sub overlaps
{
	my @seconds;

	foreach (@_)
	{
		my ($a, $b, $c, $d) = /from ([\d.]+) to ([\d.]+) s/g;

		push @seconds, min($b, $d) - max($a, $c) if defined $d;
	}
	return @seconds;
}

1;
