# The checker of the chaos run: reads what candidates, listener, resource,
# nemesis and servers have written down, and says where they contradict the
# contract. It shares no code with the extension, and needs no server.
#
#	perl check.pl FOLDER
#
# All logs are of one machine, with times of one clock. A claim is an interval
# in which a candidate has certainly led, if what it was told is true:
#
#	session    from the receipt of a "true" to the sending of a later one, on the
#	           same connection and in the same term
#	detached   from the receipt of a grant to its own deadline (counted from when
#	           the request was sent), or to when it gave up: its being killed
#	           changes nothing
#	command    from one sign of life to a later one
#
# A single "true" proves a moment somewhere between sending and receipt.
#
# Each part of it is a module in Check, by topic; the parts share what is in
# Check/Record.pm.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use Check::Announced;
use Check::Calm;
use Check::Clients;
use Check::Compared;
use Check::Diagnosed;
use Check::Events;
use Check::Groups;
use Check::Growth;
use Check::History;
use Check::Known;
use Check::Late;
use Check::Leaders;
use Check::Listeners;
use Check::Over;
use Check::Quiet;
use Check::Record;
use Check::Resets;
use Check::Rules;
use Check::Servers;
use Check::Standing;
use Check::Takeover;
use Check::Waiting;
use Check::Watched;
use Check::Writes;
use List::Util qw(min sum0);

($out) = @ARGV;
read_events();
read_faults();
read_candidate($_) foreach glob "$out/candidate.*";
read_standing($_) foreach glob "$out/candidate.*";
my $history = read_history();
check_overlaps();
check_announced($history);
check_unannounced($history);
check_calms_announced($history);
check_agreement();
read_watcher($_) foreach glob "$out/candidate.w*";
check_watched();
check_waiting($history);
check_late();
check_diagnosed($history) if $edition eq 'extension';		# the portable one says less
check_takeovers($history);
check_calm($history);
check_growth();
check_resets($_) foreach glob "$out/candidate.*";
check_paused($history);
check_drained($history);
check_cap($history);
check_seats($history);
check_early();
check_runs();
check_claims_in_history($history);
check_over($history);
check_ends();
check_languages();
check_writes();
check_resource();
check_terms();
check_logs();
check_compared();
violation('the run itself', 'nobody led for long')
  if ($count{'intervals of leadership'} // 0) < 3 || !$count{'fenced rows'};

if (@delays)
{
	@delays = sort { $a <=> $b } @delays;
	$info{'from a change to its notification, s, median'} = $delays[ @delays / 2 ] / 1e6;
	$info{'from a change to its notification, s, longest'} = $delays[-1] / 1e6;
}
print "Faults:\n";
printf "  %-44s %8d\n", $_, $faults{$_} foreach sort keys %faults;
printf "  %-44s %8d\n", 'in all', sum0(values %faults);
print "Counts:\n";
printf "  %-44s %8d\n", $_, $count{$_} foreach sort keys %count;
printf "  %-44s %8.4g\n", $_, $info{$_} foreach sort keys %info;
foreach my $kind (sort keys %violations)
{
	my @all = @{ $violations{$kind} };

	print "VIOLATION, $kind (" . @all . "):\n";
	print "  $_\n" foreach @all[ 0 .. min($#all, 9) ];
}
printf "Violations: %d%s\n", sum0(map { scalar @$_ } values %violations),
  %violations ? ' (' . join(', ', sort keys %violations) . ')' : '';
exit(%violations ? 1 : 0);
