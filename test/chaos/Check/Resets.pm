# Sessions that were reset, as a pool does it: their next join() says so (LE006), once
# for each election in which they stood, and nothing else does.

package Check::Resets;

use strict;
use warnings;

use Check::Known;
use Check::Record;
use Exporter qw(import);

our @EXPORT = qw(check_resets);

my $DETACHED = qr/leader_election\.(?:acquire|acquire_any|release|renew)\('[^']+', ['\d]/;	# calls of detached candidates
my $TOLD_US = 9_000_000;	# for so long a reset is certainly remembered

# A call that has to begin an epoch does nothing else, and is to be repeated: so it
# takes two that say nothing.
sub check_join
{
	my ($who, $joined, $lost, $election, $time, $state) = @_;
	my $loss = $lost->{$election};

	if ($loss && $state eq 'LE006')
	{
		$count{'resets that join() told of'}++;
		delete $lost->{$election};
	}
	elsif ($loss && $state eq '00000')
	{
		violation('reset not told', "$who: join('$election') at $time, reset at $loss->{time}")
		  if $loss->{silent}++ && $time < $loss->{time} + $TOLD_US
		  && !was_dropped($election, $loss->{joined}, $time);
		delete $lost->{$election} if $loss->{silent} > 1;
	}
	$joined->{$election} = $time if $state eq '00000';
	return;
}

sub check_resets
{
	my ($path) = @_;
	my ($who) = $path =~ m{/candidate\.([^/]+)$};
	my ($was_reset, %joined, %lost);

	foreach (lines($path))
	{
		my ($kind, @f) = split / /;

		if ($kind eq 'z')
		{
			$count{'sessions that were reset'}++;
			$was_reset = 1;
			$lost{$_} = { time => $f[1], joined => $joined{$_}, silent => 0 } foreach keys %joined;
			%joined = ();
		}
		elsif ($kind eq 'y')
		{
			# It may have been: it may be told, and need not be.
			$was_reset = 1;
			%joined = ();
		}
		elsif ($kind eq 'x')
		{
			($was_reset, %joined, %lost) = ();
		}
		elsif ($kind eq 'v')
		{
			delete @{$_}{ $f[0] eq 'all' ? keys %$_ : $f[0] } foreach \%joined, \%lost;
		}
		elsif ($kind eq 'j' && $f[1] !~ m{/})
		{
			check_join($who, \%joined, \%lost, @f[ 1 .. 3 ]);
		}
		elsif ($kind eq 'e' && $f[1] eq 'LE006')
		{
			violation('not reset', "$who: $_") if !$was_reset || /$DETACHED/;

			# renew() tells of it, too.
			delete $lost{$1} if /leader_election\.renew\('([^']+)'/;
		}
	}
	return;
}

1;
