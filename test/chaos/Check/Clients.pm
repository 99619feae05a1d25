# What the candidates and listeners have written down.

package Check::Clients;

use strict;
use warnings;

use Check::Known;
use Check::Record;
use Exporter qw(import);
use JSON::PP;
use List::Util qw(max min uniq);

our @EXPORT = qw(is_expected read_candidate check_ends check_languages);

my $CANCELLED = '57014';
my $SILENT_US = 80_000;	# a session asks, and is answered, more often, unless something keeps it from that

# Errors that a client may get, and why
my %expected_error = (
	'25P04' => 'the transaction_timeout of the session',
	'55P03' => 'busy: locks and waits are part of the nemesis',
	'57014' => 'cancelled',
	'57P01' => 'terminated, or shut down',
	'57P02' => 'crash of another server process',
	'57P03' => 'the server is starting',
	'25006' => 'a standby, or a server that is being promoted',
	'LE001' => 'no longer the leader',
	'LE002' => 'fenced',
	'LE003' => 'dropped',
	'LE004' => 'the former session of this name has not ended yet',
	'LE005' => 'the candidate chosen for a transfer has gone',
	'LE006' => 'the session was reset before',
	'08006' => 'connection lost',
	'08P01' => 'connection lost, as the pooler puts it',
	'58000' => 'connection lost, as the pooler puts it',
	'25P02' => 'after another error in the transaction',
	'23502' => 'a session that has ceased to lead after the trigger has no term',
	'22023' => 'a term that a session leads in by now, or a transfer to itself',
);

# Errors that there may only be after one of these faults, and why
my %expected_after = (
	'42501' => [ qr/^hostile candidate role$/, 'the intruder stands under this name' ],
	'53100' => [ qr/^full disk$/, 'the disk is full' ],
	'53200' => [ qr/^(full lock table|huge statement|many spread elections)$/, 'the lock table is full' ],
);

# Is this error what the nemesis has done, in a round in which it did so?
sub is_expected
{
	my ($state, $time) = @_;

	return 'a fenced transaction that sits idle is ended' if $state eq '25P03' && $edition eq 'portable';

	my ($faults) = @{ $expected_after{$state} // return $expected_error{$state} };

	return grep { $_->[2] =~ $faults && $time > $_->[0] && $time < ($_->[1] // $time + 1) } @pressing;
}

sub add_claim
{
	my (%c) = @_;

	push @claims, \%c;
	$leader{ $c{election} }{ $c{term} }{ $c{candidate} } //= $c{who};
	return \%c;
}

# The terms of one process only grow, but that the old side of a failover may tell it of
# an earlier one.  A session has one server.
sub check_growing
{
	my ($who, $serial, $highest, $election, $term, $time) = @_;
	my $before = \$highest->{$election};
	my $in_session = defined $serial ? \$highest->{"$serial $election"} : \undef;

	violation('earlier term', "$who: $election: told at $time of term $term, after $$before")
	  if $term < ($$before // 0) && ($term < ($$in_session // 0) || !in_failover($time - 2 * $lease_us, $time));
	$$before = max($$before // 0, $term);
	$$in_session = max($$in_session // 0, $term) if defined $serial;
	return;
}

# Until when the lease of a session lasts that renews it itself: [until when, and whether a
# call since then may have renewed it].  A call that was cancelled, or whose answer did not
# come, may have; any other one that failed was rolled back.
sub renewed
{
	my ($lease, $received, $ms, $error) = @_;

	return [ $received + ($ms + 1) * 1000, 0 ] if $ms >= 0;
	return $lease if $lease && ($lease->[1] || ($error // $CANCELLED) ne $CANCELLED);
	return [ $received + $lease_us * 1.25, 1 ];
}

sub read_candidate
{
	my ($path) = @_;
	my ($who) = $path =~ m{/candidate\.([^/]+)$};
	my ($candidate) = $who =~ /^(\w+)/;
	my %now;		# the present claim in each election
	my %deadline;	# of sessions that renew themselves: see renewed()
	my %granted;	# to a detached candidate, by the last answer: [term, until when at most]
	my %joined;		# calls of join() since the session was told that it leads, or might have been
	my %highest;	# the highest term that this process led in, in each election
	my %refused;	# ... that it was told is over
	my $session;	# that listens
	my ($error, $last_error);	# of this line, and of the one before

	foreach (lines($path))
	{
		my ($kind, @f) = split / /;

		($last_error, $error) = ($error, $kind eq 'e' ? $f[1] : undef);
		%joined = () if $kind =~ /^[exzy]$/;
		%granted = () if $kind =~ /^[ex]$/;		# that call may have renewed it
		if ($kind eq 'q')
		{
			my ($serial, $election, $sent, $received, $term) = @f;
			my $c = $now{$election};
			my ($deadline) = @{ $deadline{"$serial $election $term"} // [] };
			my $joined = delete $joined{$election} // 0;

			$count{'is_leader() = true'}++;
			$answered{"$who.$serial"} = $sent;
			check_growing($who, $serial, \%highest, $election, $term, $received);
			# It must know that its lease is over (G3).
			violation('past the deadline', "$who: true for $election in term $term at $sent, renewed until $deadline")
			  if defined $deadline && $sent > $deadline && ($wall_clock || $edition eq 'extension');
			push @moments, { election => $election, term => $term, candidate => $candidate,
				who => "$who.$serial", from => $sent, to => $received };
			$leader{$election}{$term}{$candidate} //= $who;
			if ($c && $c->{who} eq "$who.$serial" && $c->{term} == $term)
			{
				push @{ $c->{silent} }, [ $c->{to}, $received ] if $received - $c->{to} > $SILENT_US;

				# It asks after each join().
				push @{ $c->{lapses} }, [ $c->{to}, $received ] if $joined > 1;
				$c->{to} = max($c->{to}, $sent);
				next;
			}
			$now{$election} = add_claim(election => $election, term => $term,
				candidate => $candidate, who => "$who.$serial",
				from => $received, to => $received);
		}
		elsif ($kind eq 'j')
		{
			my ($serial, $election, $sent, $received) = @f;
			my $c = $now{$election};

			push @{ $c->{silent} }, [ $sent, $received ] if $c && $c->{who} eq "$who.$serial";
			$answered{"$who.$serial"} = $sent if $f[4] eq '00000';
			$joined{$election}++;
		}
		elsif ($kind =~ /^[yz]$/)
		{
			push @{ $resets{"$who.$f[0]"} }, [ @f[ 1, 2 ] ];
		}
		elsif ($kind eq 'm')
		{
			my ($serial, $election, $received, $term, $ms) = @f;

			$count{'leases renewed by sessions'}++;
			my $lease = \$deadline{"$serial $election $term"};

			$$lease = renewed($$lease, $received, $ms, $last_error);
		}
		elsif ($kind eq 'g')
		{
			my ($election, $sent, $received, $term, $ms, $asked) = @f;
			my $c = $now{$election};

			$count{'leases granted to detached candidates'}++;
			violation('term', "$path: asked with $asked, told $term")
			  if $asked > $term;
			violation('earlier term', "$path: told at $received that term $term is its own, after that it is over")
			  if $term <= ($refused{$election} // 0) && !in_failover($received - 2 * $lease_us, $received);
			check_growing($who, undef, \%highest, $election, $term, $received);

			# A lease whose deadline has passed is over (G2).
			my ($before, $until) = @{ $granted{$election} // [ 0, 0 ] };

			violation('past the deadline', "$who: $election: granted anew in term $term, asked for at $sent, which lasted until $until")
			  if $before == $term && $sent > $until && ($wall_clock || $edition eq 'extension');
			$granted{$election} = [ $term, $received + ($ms + 1) * 1000 ];
			if ($c && $c->{term} == $term && $c->{to} >= $received)
			{
				$c->{to} = max($c->{to}, $sent + $ms * 1000);
				next;
			}

			# After a failover it leads on in another term.
			$c->{to} = min($c->{to}, $sent) if $c && $c->{term} == $asked;
			$now{$election} = add_claim(election => $election, term => $term,
				candidate => $candidate, who => $who,
				from => $received, to => $sent + $ms * 1000, granted => 1);
		}
		elsif ($kind eq 'b')
		{
			my ($election, $sent, $received, $term, $run) = @f;

			$count{'runs granted'}++;
			push @begun, [ $sent, $election, $run, $who, $received ];
		}
		elsif ($kind eq 'd')
		{
			my ($election, $sent, $received, $term, $run, $outcome) = @f;

			$count{"runs done: $outcome"}++;
			push @finished, [ $received, $election, $run, $who ] if $outcome eq 'recorded';
		}
		elsif ($kind eq 'r')
		{
			my ($election, $time, $term) = @f;

			$now{$election}{to} = min($now{$election}{to}, $time)
			  if $now{$election} && $now{$election}{term} == $term;
		}
		elsif ($kind eq 'n')
		{
			my ($election, $sent, $received, $term) = @f;
			my $c = $now{$election};

			$refused{$election} = max($refused{$election} // 0, $term);
			push @early, [ $received, $c ]
			  if $c && $c->{term} == $term && $c->{to} > $received;
		}
		elsif ($kind eq 'c')
		{
			my ($election, $time, $term) = @f;
			my $c = $now{$election};

			$count{'signs of life of commands'}++;
			if ($c && $c->{term} == $term)
			{
				$c->{to} = $time;
				next;
			}
			$now{$election} = add_claim(election => $election, term => $term,
				candidate => $candidate, who => $who, from => $time, to => $time,
				command => 1);
			push @moments, { %{ $now{$election} } };
		}
		elsif ($kind eq 'w')
		{
			my ($election, $sent, $received, $term, $id, $outcome) = @f;

			$count{"fenced transactions: $outcome"}++;
			push @written, { election => $election, sent => $sent, received => $received,
				term => $term, id => $id, outcome => $outcome, candidate => $candidate };
		}
		elsif ($kind eq 's')
		{
			my ($serial, $received, $server) = @f;

			$session = "$who.$serial";
			$listening{$session} = { server => $server, from => $received, to => $received, lived => $received };
		}
		elsif ($kind eq 'i')
		{
			$listening{$session}{lived} = $f[1];
		}
		elsif ($kind eq 'l')
		{
			my ($serial, $received, @payload) = @f;

			$listening{$session}{lived} = $received;

			# What anybody else has sent on the channel says so itself.
			$count{'lies announced'}++, next if "@payload" =~ /liar/;
			my $n = decode_json(join ' ', @payload);

			push @announced, { time => $received, number => scalar(@announced), payload => $n, session => $session };
			$leader{ $n->{election} }{ $n->{term} }{ $n->{leader} } //= $who if $n->{event} eq 'elected';
		}
		elsif ($kind eq 'e')
		{
			$count{"errors at clients: $f[1]"}++;
			violation('error at a client', "$who: $_") unless is_expected($f[1], $f[0]);
		}
		elsif ($kind eq 'x')
		{
			$count{'connections lost'}++;
		}
	}
	return;
}

# A client that has ended by itself, other than by a signal, has given up.
sub check_ends
{
	foreach my $path (glob "$out/language.*.out")
	{
		foreach (lines($path))
		{
			violation('gave up', ($path =~ s{.*/}{}r) . ": $_") if /gave up|Exception in thread|panic:|fatal error:|Unhandled/;
		}
	}
	return;
}

# Each language has begun; and in some minutes each has its turn, in a session or detached.
sub check_languages
{
	my @times = map { @{$_}{qw(from to)} } @claims;

	foreach my $language (sort keys %languages)
	{
		violation('the run itself', "$language has not begun") unless () = glob "$out/candidate.${language}1.*";
	}
	return unless @times && max(@times) - min(@times) > 300e6;
	foreach my $language (sort keys %languages)
	{
		my @terms = uniq map { "$_->{election} $_->{term}" } grep { $_->{candidate} =~ /^$language\d$/ } @claims;

		$count{"terms of $language"} = @terms;
		violation('the run itself', "$language never led") unless @terms;
	}
	return;
}

1;
