# What a vacant seat waits for, by the view status: a reason that there cannot be is
# false, and so is none where there certainly is one.
#
# The reasons are those of the contract, as observers log them, with _ for each space.

package Check::Waiting;

use strict;
use warnings;

use Check::Answers;
use Check::Clients;
use Check::Events;
use Check::Known;
use Check::Quiet;
use Check::Record;
use Check::Standing;
use Check::Watched;
use Exporter qw(import);
use List::Util qw(first);

our @EXPORT = qw(check_waiting);

my $REJOIN_US = 10_000_000;	# for a new election, or seat, those who stood have to stand anew
my $EARLY_US = 1_000_000;	# a fault is told of when it is there
my $GRACE_US = 6_000_000;	# a restart, and the longest lease
my $SITS_OUT = qr/^(?:resigned|left|transferred|yielded|expired)$/;	# whose leader may sit out
my $NOBODY_ATTACKS = qr/^(?:calm|twin)/;
my $RESERVES = qr/^(?:bully|zab|spread\d|wide-\d+)$/;	# elections whose strategies do
my $WITH_QUORUM = qr/^(?:zab|quorum)$/;	# and that is 2
my $WITH_DELAY = qr/^(?:zab|quorum|apps)$/;	# elections with a takeover delay
my $MAY_HOLD = qr/^(?:race|lone)$/;	# elections with a pg_leader
my $IN_A_PAUSE = qr/^(?:paused|withdrawn|reserved_for|hold|takeover_delay|grace)/;

my %altered;	# {election or group} = [when, takeover delay, initial delay] of each change
my $history;

# Each reason, and why it is false, if it is
my @reasons = (
	[ qr/^-$/, \&none ],
	[ qr/^withdrawn$/, sub { !may_be_withdrawn(@{ $_[0] }{qw(election sent received)}) && 'its group has had no fewer seats' } ],
	[ qr/^paused$/, sub { !may_be_paused(@{ $_[0] }{qw(election sent received)}) && !failed_over_since_calm($_[0]) && 'nobody has paused it' } ],
	[ qr/^grace_after_failover$/, \&grace ],
	[ qr/^hold$/, sub { $_[0]{election} !~ $MAY_HOLD && !failed_over_since_calm($_[0]) && 'nobody has asked for one' } ],
	[ qr/^takeover_delay$/, sub { $_[0]{election} !~ $WITH_DELAY && !was_altered($_[0], 1) && !has_default_delay($_[0]) && 'it has none' } ],
	[ qr/^reserved_for_/, \&reserved ],
	[ qr/^no_candidates$/, sub { my @stand = certain_candidates($_[0]); @stand && "@stand stand" } ],
	[ qr/^quorum_\d+_of_\d+$/, \&quorum ],
	[ qr/^initial_delay$/, sub { !was_altered($_[0], 2) && 'it has none' } ],
	[ qr/^drained$/, sub { !may_drain_anybody(@{ $_[0] }{qw(election sent received)}) && !failed_over_since_calm($_[0]) && 'nobody has drained anybody' } ],
	[ qr/^cap$/, sub { $_[0]{election} !~ m{/\d+$} && 'it is no seat' } ],
	[ qr/^candidates_that_do_not_sit_out$/, \&sitting_out ],
	[ qr/^acquire\(\)$/, sub { $_[0]{election} =~ $RESERVES && !was_dropped(@{ $_[0] }{qw(election sent received)}) && 'its strategy keeps the seat for a detached candidate' } ],
	[ qr/^a_worker_or_a_call$/, sub { $edition eq 'extension' && !may_lack_worker($_[0]) && 'there is a worker' } ],
	[ qr/^synchronous_standbys$/, \&none ],
	[ qr/^worker_(?:waits_for_a_lock|was_cancelled)$/, \&none ],
	[ qr/^worker_fails$/, sub { !may_fail($_[0]) && 'nothing makes it fail' } ],
);

# Nobody but a worker elects at once, and there has to be one.
sub none
{
	my ($row) = @_;
	my (undef, $most) = slots_between($row->{sent} - $EARLY_US, $row->{received} + $EARLY_US);

	return !$most && !is_expected('53200', $row->{sent}) && 'there is no slot for a worker';
}

# Who stands first in the portable edition, after a drop, has it made with a delay.
sub has_default_delay
{
	my ($row) = @_;

	return $edition eq 'portable' && was_dropped($row->{election}, $row->{sent} - $REJOIN_US, $row->{received});
}

# The portable edition has it after a restart, and when the clock was set back, too.
sub grace
{
	my ($row) = @_;

	return if $edition eq 'portable' && (!$wall_clock || may_have_crashed($row->{sent} - $GRACE_US, $row->{received}));
	return !failed_over_since_calm($row) && 'there was no failover';
}

# The worker fails where the disk or the lock table is full, while that lasts.
sub may_fail
{
	my ($row) = @_;

	return grep({ is_expected($_, $row->{sent}) } '53100', '53200')
	  && grep { overlaps($_, @{$row}{qw(sent received)}) } disturbed($row->{election});
}

sub reserved
{
	my ($row) = @_;
	my ($name) = $row->{waiting_for} =~ /^reserved_for_(.*)/;

	return 'nobody hands it over' if $row->{election} =~ $NOBODY_ATTACKS;
	return is_drained($name, $row) && "$name is drained";
}

sub quorum
{
	my ($row) = @_;
	my ($alive, $needed) = $row->{waiting_for} =~ /(\d+)/g;
	my @stand = certain_candidates($row);

	return if was_dropped($row->{election}, $row->{sent} - $REJOIN_US, $row->{received});
	return 'it has no such quorum' if $row->{election} !~ $WITH_QUORUM || $needed != 2;
	return 'it has that quorum' if $alive >= $needed;
	return @stand > $alive && "@stand stand";
}

# A candidate that sits out has led before, and given up or let its lease run out, by
# history, which a failover may have taken; or it has not come for a seat that was reserved.
sub sitting_out
{
	my ($row) = @_;
	my @rows = values %{ $history->{ $row->{election} } // {} };

	return if in_failover(0, $row->{received}) || $row->{election} =~ m{$RESERVES|/\d+$};
	return !(grep { ($_->{reason} // '') =~ $SITS_OUT && (!$_->{over} || !$wall_clock || $_->{over} < $row->{received}) } @rows)
	  && 'nobody has given up';
}

# Who certainly stood, and whose row was there. A crash empties the table. In the portable
# edition a row that was written before the clock was set back by more than a lease is of
# a time to come, and counts as dead until the next call of its candidate.
sub certain_candidates
{
	my ($row) = @_;

	return if may_have_crashed(@{$row}{qw(sent received)})
	  || ($edition eq 'portable' && faults_between(qr/^set clock/, $row->{sent} - $REJOIN_US, $row->{received}))
	  || was_dropped($row->{election}, $row->{sent} - $REJOIN_US, $row->{received});
	return stood_throughout(@{$row}{qw(election sent received)});
}

# Was the election, or its group, given a takeover delay (1), or an initial delay (2)?
sub was_altered
{
	my ($row, $what) = @_;
	my $name = $row->{election} =~ s{/\d+$}{}r;

	return grep { $_->[0] - $EARLY_US < $row->{received} && $_->[$what] } @{ $altered{$name} // [] };
}

# Does the group certainly have fewer seats?
sub is_withdrawn
{
	my ($row) = @_;
	my ($group, $number) = $row->{election} =~ m{^(.*)/(\d+)$} or return 0;
	my @seats = ((map { in_force($group, 'seats', $_) } @{$row}{qw(sent received)}),
		map { $_->{group} eq $group && $_->{sent} > $row->{sent} && $_->{sent} < $row->{received} ? $_->{seats} : () } @groups);

	return @seats && !grep { $_ >= $number } @seats;
}

# A pause, and a seat too many, come before any other reason. In a pause nobody is
# elected, so that it does not matter who stands; but a hand-over under way is finished,
# and a hold or the grace may come before that.
sub check_row
{
	my ($row) = @_;
	my $why = $row->{waiting_for};
	my $reason = first { $why =~ $_->[0] } @reasons;
	my $what = $why =~ /^(quorum|reserved_for)/ ? $1 : $why;
	my @false;

	push @false, 'it is led' if $row->{state} ne 'vacant' && $why ne '-';
	if ($row->{state} eq 'vacant')
	{
		$count{"seats that waited for: $what"}++;
		push @false, 'there is no such reason' unless $reason;
		push @false, grep { $_ } $reason->[1]->($row) if $reason;
		if (is_withdrawn($row))
		{
			$count{'rows of status of withdrawn seats'}++;
			push @false, 'its group has fewer seats' if $why ne 'withdrawn';
		}
		if (certain_pause($row) && !is_unclear($row))
		{
			$count{'rows of status in a pause'}++;
			push @false, 'it is paused' if $why !~ $IN_A_PAUSE;
		}
	}
	violation('status', "$row->{election}: $row->{state}, waits for $why, but $_; " . between($row)) foreach @false;
	return;
}

sub check_waiting
{
	($history) = @_;

	foreach (lines("$out/events"))
	{
		push @{ $altered{$2} }, [ $1, $3, $4 ] if /^(\d+) fault alter election: (\S+) \d+ (\d+) \d+ (\d+)$/;
	}
	check_row($_) foreach grep { !in_failover($_->{sent} - 2 * $lease_us, $_->{received}) } @rows;
	return;
}

1;
