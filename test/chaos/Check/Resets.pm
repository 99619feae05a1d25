# Sessions that were reset, as a pool does it: their next join() says so (LE006), once
# for each election in which they stood, and nothing else does. join_group(),
# campaign() and renew() tell of it as join() does.

package Check::Resets;

use strict;
use warnings;

use Check::Clients;
use Check::Known;
use Check::Record;
use Exporter qw(import);
use List::Util qw(max min);

our @EXPORT = qw(check_resets);

my $TELLS = qr/leader_election\.(?:(?:join|join_group|campaign)\('|renew\('[^']+'(?:\)|, metadata))/;	# the calls of sessions that tell
my $MEMORY_US = 10_000_000;	# a reset is told for so long, or for a lease
my $ANSWER_US = 3_000_000;	# a call waits no longer for its answer

# What is known of a session is, for each election:
#
#	standing	2: the session stands; 1: it may stand
#	joined		since when
#	loss		its candidacy was lost, and nobody has told it; from, to: when;
#				joined: since when it had stood; may: or was not lost; silent: how
#				many calls said nothing of it

# The session was reset, or (may) perhaps not.
sub lose
{
	my ($stands, $sent, $received, $may) = @_;

	foreach my $s (grep { $_->{standing} } values %$stands)
	{
		my $old = $s->{loss} // { from => $sent, joined => $s->{joined}, may => 1 };

		$s->{loss} = { from => $old->{from}, to => $received, joined => $old->{joined}, silent => 0,
			may => $may || ($s->{standing} < 2 && $old->{may}) };
		$s->{standing} = 0 unless $may;
	}
	return;
}

# Is it a violation that a call, which was answered at that time, said nothing?
sub is_due
{
	my ($election, $loss, $time) = @_;

	return !$loss->{may} && $time < $loss->{from} + $MEMORY_US
	  && !was_dropped($election, $loss->{joined}, $time);
}

# A call was answered, and said nothing of a reset.  join() that has to begin an epoch
# does nothing else, and is to be repeated: so it takes two that say nothing.  A
# campaign that finds no room in the lock table does not even stand.
sub check_silence
{
	my ($who, $stands, $election, $time, $how) = @_;
	my $s = $stands->{$election} //= { standing => 0 };

	# In the portable edition, the first call after a reset gives a session a new key, and
	# all that was under the old one is forgotten.
	$_->{loss}{may} = 1 foreach grep { $edition eq 'portable' && $_ != $s && $_->{loss} } values %$stands;

	my $loss = $s->{loss} // return $s;

	if ($how eq 'waited' && is_expected('53200', $time))
	{
		$loss->{may} = 1;
		return $s;
	}
	$loss->{silent}++;
	return $s if $loss->{silent} < 2 && $how =~ /^(?:join|waited)/;
	violation('reset not told', "$who: $how in $election, answered at $time, reset at $loss->{to}")
	  if is_due($election, $loss, $time);
	delete $s->{loss};
	return $s;
}

# Who has joined stands from then on.
sub check_join
{
	my ($who, $stands, $election, $time) = @_;
	my $s = check_silence($who, $stands, $election, $time, 'join()');

	@{$s}{qw(standing joined)} = (2, $time) if $s->{standing} < 2;
	return;
}

# ... in a group, for all of its seats, however many there were
sub check_join_group
{
	my ($who, $stands, $group, $time) = @_;
	my @numbers = (in_force($group, 'seats', $time - $ANSWER_US), in_force($group, 'seats', $time));
	my ($least, $most) = (min(@numbers), max(0, map { $_->{group} eq $group ? $_->{seats} : () } @groups));

	foreach my $number (1 .. $most)
	{
		my $s = $stands->{"$group/$number"} //= { standing => 0 };

		if ($number > $least)
		{
			@{$s}{qw(standing joined)} = (1, $time) unless $s->{standing};
			$s->{loss}{may} = 1 if $s->{loss};
			next;
		}
		check_join($who, $stands, "$group/$number", $time);
	}
	return;
}

# A call has told of a reset: of one that there was, a short time ago, and of which
# nobody has told.
sub check_told
{
	my ($who, $stands, $line, $sent) = @_;
	my ($election) = $line =~ /while it stood in election "([^"]+)"/;
	my $s = $stands->{ $election // '' };
	my $loss = $s && $s->{loss};
	my ($asked) = $line =~ /leader_election\.\w+\('([^']+)'/;

	violation('not reset', "$who: $line") if !$loss || $line !~ $TELLS
	  || $sent > $loss->{to} + max($MEMORY_US, 1.25 * $lease_us)
	  || ($asked ne $election && $election !~ m{^\Q$asked\E/\d+$});
	return unless $loss;
	$count{ 'resets that were told of, in ' . ($election =~ m{/} ? 'seats' : 'elections') }++;
	delete $s->{loss};
	$s->{standing} = 0;

	# The portable edition tells it once for the session, not for each election.
	$_->{loss}{may} = 1 foreach grep { $edition eq 'portable' && $_->{loss} } values %$stands;
	return;
}

# What the session has read of itself so far, in the log's order
sub check_line
{
	my ($who, $stands, $kind, @f) = @_;

	if ($kind =~ /^[zy]$/)
	{
		$count{'sessions that were reset'}++ if $kind eq 'z';
		lose($stands, @f[ 1, 2 ], $kind eq 'y');
	}
	elsif ($kind eq 'x')
	{
		%$stands = ();
	}
	elsif ($kind eq 'v')
	{
		$_->{standing} = min($_->{standing}, 1)
		  foreach grep { $_ && defined $_->{standing} } $f[0] eq 'all' ? values %$stands : $stands->{ $f[0] };
	}
	elsif ($kind eq 'j' && $f[4] eq '00000')
	{
		if ($f[1] =~ m{^(.*)/\*$}) { check_join_group($who, $stands, $1, $f[3]); }
		else { check_join($who, $stands, @f[ 1, 3 ]); }
	}
	elsif ($kind eq 'k' && $f[3] eq '00000')
	{
		my $s = check_silence($who, $stands, @f[ 1, 2, 4 ]);

		@{$s}{qw(standing joined)} = (2, $f[2]) if $f[4] eq 'elected' && $s->{standing} < 2;
	}
	return;
}

sub check_resets
{
	my ($path) = @_;
	my ($who) = $path =~ m{/candidate\.([^/]+)$};
	my %stands;
	my $in_transaction = 0;	# the session was reset, and that may not be over

	foreach my $line (lines($path))
	{
		my ($kind, @f) = split / /, $line;

		check_line($who, \%stands, $kind, @f);
		check_told($who, \%stands, $line, $f[2]) if $kind eq 'e' && $f[1] eq 'LE006';

		# The server notes a reset at the end of a transaction.
		if ($kind eq 'w' && $in_transaction)
		{
			$_->{loss}{to} = max($_->{loss}{to}, $f[2]) foreach grep { $_->{loss} } values %stands;
		}
		$in_transaction = $kind =~ /^[zy]$/ || ($in_transaction && $kind eq 'e');
	}
	return;
}

1;
