# From when a leader that did not give up cannot have led any more.
#
#	session ended	The nemesis has killed its process, or ended its session.
#	lease over		A detached candidate leads until its deadline, also if its process
#					was killed.  The last answer to it says when that is, unless a later
#					call was not answered: that may have renewed the lease.
#	after a last sign	For all others: the last moment at which the leader certainly
#					led.  It may have led for one lease more.

package Check::LastSigns;

use strict;
use warnings;

use Check::Quiet;
use Check::Record;
use Check::Standing;
use Exporter qw(import);
use List::Util qw(first max);

our @EXPORT = qw(read_last_signs last_led);

my $LAG_US = 500_000;		# of the nemesis, and of what the command of pg_leader does yet
my $ANSWER_US = 3_500_000;	# a call takes no longer: see connection.c

my %signs;		# {election}{term} = when the leader last said anything that proves that it led
my %granted;	# {election}{term} = [when that was answered, until when], of detached ones
my %unheard;	# {candidate} = when a call of it failed: whatever it may have done

sub read_grants
{
	my ($path) = @_;
	my ($candidate) = $path =~ m{/candidate\.(\w+)\.};

	foreach (lines($path))
	{
		my ($kind, @f) = split / /;

		if ($kind eq 'g')
		{
			my ($election, undef, $received, $term, $ms) = @f;

			$granted{$election}{$term} = [ $received, $received + ($ms + 1) * 1000 ];
		}
		push @{ $unheard{$candidate} }, $f[0] if $kind =~ /^[xe]$/;
	}
	return;
}

# In which elections somebody has said so
sub read_last_signs
{
	read_grants($_) foreach glob "$out/candidate.*";
	foreach (@claims, @moments)
	{
		my $sign = \$signs{ $_->{election} }{ $_->{term} };

		$$sign = max($$sign // 0, $_->{to});
	}
	return keys %signs;
}

sub is_in { my ($time, $from, $to) = @_; return $time > $from && $time <= $to; }

# A detached leader: the lease is over when it was last told; a lease later, where a
# call may have renewed it that was not answered.
sub lease_over
{
	my ($leader, $answered, $deadline) = @_;
	my $death = first { is_in($_, $answered, $deadline) } deaths_of($leader);

	return ('after a last sign', $death) if defined $death;
	return ('after a last sign', $deadline)
	  if grep { is_in($_, $answered, $deadline + $ANSWER_US) } @{ $unheard{$leader} // [] };
	return ('lease over', $deadline);
}

# A session ends with its process; but while the server's process is stopped, when that
# goes on.
sub session_over
{
	my ($leader, $death) = @_;

	foreach (sort { $a->[0] <=> $b->[0] } stopped_candidate($leader))
	{
		$death = max($death, $_->[1]) if $_->[0] <= $death;
	}
	return ('session ended', $death);
}

# What is known of the end of a term, in which the leader did not give up: what that is,
# and when it was.  Nothing: it may have led on up to what history gives as the end, since
# it was stopped or cut off, or keeps no log.
sub last_led
{
	my ($election, $term, $row, $end) = @_;
	my $last = max($row->{began}, $signs{$election}{$term} // 0);
	my $leader = $row->{leader};
	my $death = first { is_in($_, max($row->{began}, $last - $LAG_US), $end) } deaths_of($leader);
	my $grant = $granted{$election}{$term};

	return if $last >= $end || !is_logged($leader);
	return session_over($leader, max($last, $death)) if defined $death && $row->{kind} eq 'session';
	return if grep { overlaps($_, $last, $end) } stopped_candidate($leader);
	return lease_over($leader, @$grant) if $grant;
	return ('after a last sign', max($last, $death // 0));
}

1;
