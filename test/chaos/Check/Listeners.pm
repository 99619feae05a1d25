# What several listeners heard of one server: the same, in the same order (G10).

package Check::Listeners;

use strict;
use warnings;

use Check::Record;
use Exporter qw(import);
use JSON::PP;

our @EXPORT = qw(check_agreement);

my $json = JSON::PP->new->canonical;

# What each session heard, in order
sub sequences
{
	my %heard;

	foreach my $e (sort { $a->{number} <=> $b->{number} } @announced)
	{
		push @{ $heard{ $e->{session} } }, $json->encode($e->{payload});
	}
	return \%heard;
}

# What a session heard, from the first to the last event that the other one heard, too
sub shared_part
{
	my ($mine, $others) = @_;
	my %theirs = map { $_ => 1 } @$others;
	my @places = grep { $theirs{ $mine->[$_] } } 0 .. $#$mine;

	return @places ? @{$mine}[ $places[0] .. $places[-1] ] : ();
}

# All that listen to a server, from one crash or promotion to the next, are sent the
# same. So of two sessions, neither lacks what the other one heard between two events
# that both of them heard.
sub check_agreement
{
	my $heard = sequences();
	my @sessions = sort keys %$heard;

	foreach my $i (0 .. $#sessions)
	{
		foreach my $other (@sessions[ 0 .. $i - 1 ])
		{
			my $session = $sessions[$i];

			next if $listening{$session}{server} ne $listening{$other}{server};

			my @mine = shared_part($heard->{$session}, $heard->{$other});
			my @theirs = shared_part($heard->{$other}, $heard->{$session});

			$count{'events that two sessions heard'} += @mine;
			while (@mine && @theirs && $mine[0] eq $theirs[0])
			{
				shift @mine;
				shift @theirs;
			}
			violation('heard otherwise', "$session: " . ($mine[0] // 'nothing')
				  . ", and $other at that place: " . ($theirs[0] // 'nothing'))
			  if @mine || @theirs;
		}
	}
	return;
}

1;
