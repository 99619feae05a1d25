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

use strict;
use warnings;

use JSON::PP;
use List::Util qw(max min sum0 uniq);

my ($out) = @ARGV;
my (%count, %violations, %faults, %info);
my @claims;			# {election, term, candidate, who, from, to}
my @moments;		# the same, from and to: sent and received
my %leader;			# {election}{term}{candidate} = where it was said
my @written;		# what candidates say of their fenced rows
my @announced;		# notifications: {time, number, payload, session}
my %listening;		# sessions that listen: {server, from, to}
my @delays;			# from a change to its notification
my @begun;			# [when it was asked for, election, run, who]: a run was granted
my @finished;		# [when that was known, election, run, who]: it was recorded as done
my @early;			# [when, claim]: a leader was told that its term is over
my @windows;		# [from, to] of failovers, from when the standby may have lagged
my @cuts;			# [from, to, name] of the clients' network
my %bound;			# candidates whose command depends on a session
my %recreated;		# elections that were dropped and created again
my @dropping;		# [from, to, election]: that was under way
my @paused;			# [from, to, election or "all"]: it was certainly paused
my @drained;		# {from, to, election (or "all"), names}: they certainly were
my @groups;			# {group, sent, received, seats, limit}: it was altered
my @named;			# [when, election]: a leader was asked to yield to a candidate
my $lease_us = 0;
my $wall_clock = 1;	# timestamps mean something
my $epoch_us = 0;	# a timestamp less our time

my $LATE_US = 4_000_000;	# how long a listener may be stopped, or cut off
my $LONG_US = 3_000_000;	# how much later one election may be announced than another

sub violation
{
	my ($kind, $text) = @_;

	push @{ $violations{$kind} }, $text;
	return;
}

sub lines
{
	my ($path) = @_;

	open my $file, '<', $path or return;
	my @lines = <$file>;
	chomp @lines;
	return @lines;
}

sub describe
{
	my ($c) = @_;

	return sprintf '%s: %s (%s) in term %s from %s to %s', $c->{election},
	  $c->{candidate}, $c->{who}, $c->{term}, $c->{from}, $c->{to};
}

# --- what happened

sub read_events
{
	my $ended = 0;

	foreach (lines("$out/events"))
	{
		my ($time, $kind, @rest) = split / /;

		$ended = 1 if $kind eq 'end';
		if ($kind eq 'start')
		{
			$lease_us = $rest[-1] * 1000;
			$wall_clock = $rest[3] ne 'clock';
		}
		$epoch_us = $rest[0] if $kind eq 'epoch';
		$count{rounds}++ if $kind eq 'round';
		$faults{ join(' ', @rest) =~ s/:.*//r }++ if $kind eq 'fault';
		if ("$kind @rest" =~ /^fault recreate election: (\w+)/)
		{
			$recreated{$1} = 1;
			push @dropping, [ $time - 1_000_000, undef, $1 ];
		}
		$_->[1] //= $time foreach grep { "$kind @rest" =~ /^done recreate \Q$_->[2]\E/ } @dropping;
		push @paused, [ $time, $rest[1], $rest[0] ] if $kind eq 'paused';
		$_->[1] = min($_->[1] // $time, $time) foreach grep { $kind eq 'resuming' && $_->[2] eq $rest[0] } @paused;
		$_->[1] = min($_->[1] // $time, $time) foreach grep { $kind eq 'healing' } @paused;
		push @drained, { from => $time, election => $rest[0], names => $rest[1] } if $kind eq 'drained';
		$_->{to} //= $time foreach grep { $kind eq 'undraining' && "$_->{election} $_->{names}" eq "@rest" } @drained;
		push @groups, { group => $rest[0], number => $rest[1], sent => $time, seats => $rest[2], limit => $rest[3] }
		  if $kind eq 'altering';
		$_->{received} = $time foreach grep { $kind eq 'altered' && $_->{number} == $rest[1] } @groups;
		push @named, [ $time, $rest[0] ] if $kind eq 'named';
		$count{"standbys $kind"}++ if $kind =~ /^(rewound|copied)$/;
		$count{'promotions'}++ if $kind eq 'promoted';
		$count{"standbys $kind @rest" =~ s/:.*//r}++ if $kind eq 'chosen';
		$count{'standbys left with the old primary'}++ if $kind eq 'stays';
		$count{'changes of synchronous_standby_names'}++ if $kind eq 'names';
		if ($kind eq 'seen')
		{
			my ($n, $sent, $received, $election, $term, $candidate) = @rest;

			$count{'leaders seen on the old side'}++;
			push @moments, { election => $election, term => $term, candidate => $candidate,
				who => "by server$n", from => $sent, to => $received };
			$leader{$election}{$term}{$candidate} //= "server$n";
		}
		$bound{ $rest[0] } = 1 if "$kind @rest" =~ /^candidate \w+ pg_leader session$/;
		push @cuts, [ $time, undef, $rest[0] ] if $kind eq 'cut' && $rest[0] =~ /^c/;
		$_->[1] //= $time foreach grep { $kind eq 'healed' && $_->[2] eq $rest[0] } @cuts;
		push @windows, [ $time - 3_000_000, undef ] if $kind eq 'split';
		$windows[-1][1] = $time if $kind eq 'joined';
		violation('the run itself', "$time @rest") if $kind eq 'failure';
		if ($kind eq 'led')
		{
			my $lease = $lease_us * 1.25 / 1e6;
			my $bound = $lease + 2;

			# A detached candidate had this time to come for it.
			$bound += $lease if ($rest[2] // '') eq 'kept';

			$count{'bounded vacancies'}++;
			$info{'longest vacancy in a calm, s'} =
			  max($info{'longest vacancy in a calm, s'} // 0, $rest[1]);
			violation('vacancy', "$rest[0]: $rest[1] s") if $rest[1] > $bound;	# G7
		}
		violation('withdrawn seat', "they were there for $rest[-1] s in a calm")
		  if $kind eq 'withdrawn' && $rest[-1] > $lease_us * 1.25 / 1e6 + 2;
		violation('left over', "locks|workers|candidates: @rest")
		  if $kind eq 'left' && $rest[0] ne '0|0|0';
	}
	violation('the run itself', 'it was not finished') unless $ended;
	return;
}

# Was that in a failover, in which the old side may do what is lost?
sub in_failover
{
	my ($from, $to) = @_;

	return grep { $from <= ($_->[1] // $to) && $to >= $_->[0] } @windows;
}

# Does this command run on in a session of which it cannot know, until its
# deadline, that the server has ended it? Its network was cut off then.
sub cannot_know
{
	my ($c, $time) = @_;

	return $c->{command} && $bound{ $c->{candidate} }
	  && grep { $_->[0] <= $time && $time < ($_->[1] // $time) + 100_000 } @cuts;
}

# Errors that a client may get, and why
my %expected_error = (
	'53100' => 'the disk is full',
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

sub add_claim
{
	my (%c) = @_;

	push @claims, \%c;
	$leader{ $c{election} }{ $c{term} }{ $c{candidate} } //= $c{who};
	return \%c;
}

sub read_candidate
{
	my ($path) = @_;
	my ($who) = $path =~ m{/candidate\.([^/]+)$};
	my ($candidate) = $who =~ /^(\w+)/;
	my %now;		# the present claim in each election
	my %deadline;	# of sessions that renew themselves
	my $session;	# that listens

	foreach (lines($path))
	{
		my ($kind, @f) = split / /;

		if ($kind eq 'q')
		{
			my ($serial, $election, $sent, $received, $term) = @f;
			my $c = $now{$election};

			my $deadline = $deadline{"$serial $election $term"};

			$count{'is_leader() = true'}++;
			# It must know that its lease is over (G3).
			violation('past the deadline', "$who: true for $election in term $term at $sent, renewed until $deadline")
			  if defined $deadline && $sent > $deadline;
			push @moments, { election => $election, term => $term, candidate => $candidate,
				who => "$who.$serial", from => $sent, to => $received };
			$leader{$election}{$term}{$candidate} //= $who;
			if ($c && $c->{who} eq "$who.$serial" && $c->{term} == $term)
			{
				$c->{to} = max($c->{to}, $sent);
				next;
			}
			$now{$election} = add_claim(election => $election, term => $term,
				candidate => $candidate, who => "$who.$serial",
				from => $received, to => $received);
		}
		elsif ($kind eq 'm')
		{
			my ($serial, $election, $received, $term, $ms) = @f;

			$count{'leases renewed by sessions'}++;
			$deadline{"$serial $election $term"} = $ms < 0 ? undef : $received + ($ms + 1) * 1000;
		}
		elsif ($kind eq 'g')
		{
			my ($election, $sent, $received, $term, $ms, $asked) = @f;
			my $c = $now{$election};

			$count{'leases granted to detached candidates'}++;
			violation('term', "$path: asked with $asked, told $term")
			  if $asked > $term;
			if ($c && $c->{term} == $term && $c->{to} >= $received)
			{
				$c->{to} = max($c->{to}, $sent + $ms * 1000);
				next;
			}

			# After a failover it leads on in another term.
			$c->{to} = min($c->{to}, $sent) if $c && $c->{term} == $asked;
			$now{$election} = add_claim(election => $election, term => $term,
				candidate => $candidate, who => $who,
				from => $received, to => $sent + $ms * 1000);
		}
		elsif ($kind eq 'b')
		{
			my ($election, $sent, $received, $term, $run) = @f;

			$count{'runs granted'}++;
			push @begun, [ $sent, $election, $run, $who ];
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
			$listening{$session} = { server => $server, from => $received, to => $received };
		}
		elsif ($kind eq 'l')
		{
			my ($serial, $received, @payload) = @f;

			push @announced, { time => $received, number => scalar(@announced),
				payload => decode_json(join ' ', @payload), session => $session };
		}
		elsif ($kind eq 'e')
		{
			$count{"errors at clients: $f[1]"}++;
			violation('error at a client', "$who: $_") unless $expected_error{ $f[1] };
		}
		elsif ($kind eq 'x')
		{
			$count{'connections lost'}++;
		}
	}
	return;
}

# --- one leader at a time (G1)

sub check_overlaps
{
	foreach my $election (uniq map { $_->{election} } @claims)
	{
		my @sorted = sort { $a->{from} <=> $b->{from} }
		  grep { $_->{election} eq $election && $_->{from} < $_->{to} } @claims;
		my @open;

		foreach my $c (@sorted)
		{
			@open = grep { $_->{to} > $c->{from} } @open;
			foreach my $other (grep { $_->{who} ne $c->{who} } @open)
			{
				$count{'pairs compared'}++;
				next if cannot_know($other, $c->{from});
				violation('two leaders', describe($other) . ', and ' . describe($c));
			}
			push @open, $c;
		}
		$count{'intervals of leadership'} += @sorted;
		$info{"led, $election, s"} =
		  sum0(map { $_->{to} - $_->{from} } @sorted) / 1e6;

		# Moments within somebody else's interval
		foreach my $m (sort { $a->{from} <=> $b->{from} }
			grep { $_->{election} eq $election } @moments)
		{
			while (@sorted && $sorted[0]{to} < $m->{from} - 60_000_000) { shift @sorted; }
			foreach my $c (@sorted)
			{
				last if $c->{from} > $m->{from};
				violation('two leaders', describe($c) . ', and at a moment ' . describe($m))
				  if $c->{to} > $m->{to} && $c->{who} ne $m->{who}
				  && ($c->{candidate} ne $m->{candidate} || $m->{who} !~ /^by server/)
				  && !cannot_know($c, $m->{from});
			}
		}
	}
	return;
}

# --- terms: each is led by one candidate (G1), and they only grow (G5)

sub check_terms
{
	foreach my $election (sort keys %leader)
	{
		foreach my $term (sort { $a <=> $b } keys %{ $leader{$election} })
		{
			my @names = sort keys %{ $leader{$election}{$term} };

			$count{'terms that somebody led in'}++;
			violation('term twice', "$election: term $term: @names") if @names > 1;
		}
	}

	# The same term by two processes of the same name
	my %who;
	$who{"$_->{election} $_->{term}"}{ $_->{who} } = 1 foreach @claims;
	foreach my $key (sort keys %who)
	{
		violation('term twice', "$key: " . join(', ', sort keys %{ $who{$key} }))
		  if keys %{ $who{$key} } > 1;
	}
	return;
}

# The terms that the last server knows of
sub kept_terms
{
	return map { join(' ', (split /\|/)[ 0, 1 ]) => 1 } lines("$out/history");
}

# A beginning or an end is in history as it was told. What was told may have been
# lost in a failover: then there is another end, or nothing.
sub check_event
{
	my ($e, $row) = @_;
	my $n = $e->{payload};
	my $began = $n->{event} eq 'elected';
	my $at = $n->{at} =~ tr/T/ /r =~ s/:00$//r;
	my ($who, $stored, $stored_at) =
	  $began ? ($n->{leader}, @{ $row // {} }{qw(leader acquired)})
	  : ($n->{reason}, @{ $row // {} }{qw(reason ended)});

	return if $row && $stored && $stored eq $who && $stored_at eq $at;
	return if (!$row || !$began) && !$e->{counts};
	violation('history', "$e->{what}: $who, $at; and in it is "
		  . ($row ? ($stored // 'nothing') . ", $stored_at" : 'no such term'));
	return;
}

# Does this event come next after the last one, in the ears of a session that has
# heard both? If one transaction ends a term and begins another, only the
# beginning is told, which then names the previous leader.
sub check_next
{
	my ($event, $last, $kept) = @_;
	my $n = $event->{payload};
	my @between = grep { /^$n->{election} (\d+)/ && $1 > $last->{term} && $1 < $n->{term} } keys %$kept;
	my $follows = $event->{event} eq 'elected' ? ($last->{event} eq 'vacated') != defined $n->{previous}
	  : $event->{event} eq 'vacated' && $n->{term} == $last->{term};

	$count{'announced in turn'}++;
	violation('not announced', "before $event->{what}, after $last->{event} $last->{term}"
		  . (@between ? ': ' . join(', ', sort @between) : ''))
	  if @between || !$follows;
	return;
}

# What is told of an election, in the order in which it was received. Each change
# has a place in that order: 2t - 1 is the beginning of term t, 2t its end.
#
# While a server lives, no event is heard twice, or after a later one, and a session
# misses none between two that it hears. After a crash or a promotion the last one
# may be repeated; events that a failover has lost do not count then (G10).
sub check_announced
{
	my ($history) = @_;
	my %kept = kept_terms();
	my (%heard, %last_kept);

	foreach my $e (sort { $a->{time} <=> $b->{time} || $a->{number} <=> $b->{number} } @announced)
	{
		my ($time, $n, $session) = @{$e}{qw(time payload session)};
		my ($election, $term, $event) = @{$n}{qw(election term event)};
		my $row = $history->{$election}{$term};
		my $last = $heard{$election};

		$count{"announced: $event"}++;
		next if $event eq 'created';	# a seat of a group; in no term
		$e->{$_} = $n->{$_} foreach qw(term event);
		$e->{place} = $event eq 'vacated' ? 2 * $term : 2 * $term - 1;
		$e->{server} = $listening{$session}{server};
		$e->{what} = "$election: $event $term at $time to $session";
		$e->{counts} = !in_failover($time - $LATE_US, $time);
		check_event($e, $row) if $event ne 'yield_requested';
		if ($last && $last->{server} eq $e->{server})
		{
			violation('announced twice', "$e->{what}, and before at $last->{time}")
			  if $e->{place} == $last->{place} && $event ne 'yield_requested';
			violation('term order', "$e->{what}, after $last->{event} $last->{term}")
			  if $e->{place} < $last->{place};
			check_next($e, $last, \%kept)
			  if $last->{session} eq $session && $e->{place} > $last->{place};
		}
		else
		{
			violation('term order', "$e->{what}, after $last_kept{$election}{what}")
			  if $last_kept{$election} && $e->{place} < $last_kept{$election}{place};
			$count{'announced again after a crash'}++
			  if $last && $e->{place} == $last->{place} && $event eq $last->{event};
		}
		if ($event eq 'elected' && $wall_clock && $e->{counts} && $row && $row->{began})
		{
			push @delays, $time - $row->{began};
			$listening{$session}{until} = max($listening{$session}{until} // 0, $row->{began});
		}
		$heard{$election} = $listening{$session}{heard}{$election} = $e;
		$listening{$session}{to} = $time;
		$last_kept{$election} = $e if $kept{"$election $term"} || $e->{counts};
	}
	return;
}

# A session that hears of a change has heard of the changes of other elections that
# happened long before it, if it has heard anything of those elections (G10).
sub check_unannounced
{
	my ($history) = @_;

	foreach my $session (sort keys %listening)
	{
		my ($from, $to, $until, $heard) = @{ $listening{$session} }{qw(from to until heard)};

		next if !$until || in_failover($from, $to);
		foreach my $election (sort keys %$heard)
		{
			my $last = $heard->{$election};
			my $rows = $history->{$election};

			foreach my $term (sort { $a <=> $b } keys %$rows)
			{
				my %when = (elected => $rows->{$term}{began}, vacated => $rows->{$term}{over});

				foreach my $event (grep { $when{$_} && $when{$_} > $from && $when{$_} < $until - $LONG_US } sort keys %when)
				{
					$count{'changes that were to be announced'}++;
					violation('not announced', "$election: $event $term at $when{$event} to $session, which heard of a change at $until")
					  if $event eq 'elected' ? $term > $last->{term} : $term == $last->{term} && $last->{event} ne 'vacated';
				}
			}
		}
	}
	return;
}

# No term began before the one before it had ended (G1), and none was left out (G5).
sub read_history
{
	my (%history, %order);

	foreach my $path ("$out/history", glob "$out/history.old.*")
	{
		foreach (lines($path))
		{
			my ($election, $term, $leader, undef, $acquired, $ended, $reason, $began, $over) = split /\|/;

			next unless defined $leader;
			$leader{$election}{$term}{$leader} //= 'history';
			$history{$election}{$term} //= { leader => $leader, reason => $reason,
				acquired => $acquired, ended => $ended,
				began => $began && $began * 1e6 - $epoch_us, over => $over && $over * 1e6 - $epoch_us };
		}
		last if $path ne "$out/history" && !%history;
	}
	violation('history', 'there is none') unless %history;

	# The server's own, in order of terms
	foreach (lines("$out/history"))
	{
		my ($election, $term, $leader, $kind, $acquired, $ended, $reason) = split /\|/;
		my $last = $order{$election};

		next unless defined $leader;
		$count{'terms in history'}++;
		violation('history', "$election: term $term began at $acquired, term $last->[0] ended at $last->[1]")
		  if $wall_clock && $last && ($last->[1] eq '' || $last->[1] gt $acquired);

		# Within an epoch (its number is above the lowest 22 bits) none is left out;
		# but a new election begins above whatever was dropped.
		violation('history', "$election: after term $last->[0] comes term $term")
		  if $last && $term != $last->[0] + 1 && $term >> 22 == $last->[0] >> 22
		  && !$recreated{$election} && !may_be_withdrawn($election, 0, undef);
		$order{$election} = [ $term, $ended ];
	}
	return \%history;
}

# A lease ends when it runs out, and not before (G2). A grant that no standby knew
# of, since the wait for it was cut short, may be lost in a failover: then it is
# over indeed (and nobody else leads in that time).
sub check_early
{
	my %kept = kept_terms();

	foreach (@early)
	{
		my ($time, $c) = @$_;

		next if !$kept{"$c->{election} $c->{term}"} && in_failover($c->{from}, $time);
		violation('ended early', "told at $time that this is over: " . describe($c));
	}
	return;
}

# Was the election dropped meanwhile, or may it have been, as a seat of a group? With
# it goes what was said of it.
sub was_dropped
{
	my ($election, $from, $to) = @_;

	return may_be_withdrawn($election, $from, $to)
	  || grep { $_->[2] eq $election && $_->[0] < $to && ($_->[1] // $to) > $from } @dropping;
}

# In a paused election nobody new leads but by a hand-over to a named candidate: a
# transfer, or a yield that an operator asked for.  Where the strategy may have asked
# for one before, or (all) a leader may have been chosen before, that has time until
# it must be over.  A pause is gone with an election that is dropped, and may be
# lost with a failover, if its wait for the standby was cut short.
sub check_paused
{
	my ($history) = @_;
	my $slack = 50_000;
	my $under_way = 2 * 1.25 * $lease_us + 800_000;

	return unless $wall_clock;
	foreach my $election (sort keys %$history)
	{
		my $rows = $history->{$election};
		my $last;

		foreach my $term (sort { $a <=> $b } keys %$rows)
		{
			my $row = $rows->{$term};
			my $before = $last;

			$last = $row;
			next unless $row->{began};
			foreach my $pause (grep { $_->[2] eq $election || $_->[2] eq 'all' } @paused)
			{
				my ($from, $to, $what) = @$pause;
				my $began = $row->{began};

				next unless defined $to && $began > $from + $slack && $began < $to - $slack;
				next if in_failover($from, $to) || was_dropped($election, $from, $to);
				$count{'terms that began in a pause'}++;
				next if $began < $from + $under_way && ($what eq 'all' || $election !~ /^(race|lone|runs)$/);
				next if $before && ($before->{reason} // '') =~ /^(transferred|failover)$/;
				next if grep { $_->[1] eq $election && $_->[0] <= $began && $began < $_->[0] + $under_way } @named;
				violation('elected while paused', "$election: $row->{leader} in term $term at $began, paused ($what) from $from to $to");
			}
		}
	}
	$count{pauses} = @paused if @paused;
	return;
}

# No run is granted after it, or a later one, was recorded as done, but in an election
# that was dropped in between.
sub check_runs
{
	foreach my $done (@finished)
	{
		my ($when, $election, $run, $who) = @$done;

		foreach my $again (grep { $_->[1] eq $election && $_->[0] > $when && $_->[2] le $run } @begun)
		{
			next if grep { $_->[2] eq $election && $_->[0] < $again->[0] && ($_->[1] // $when) >= $when } @dropping;
			violation('run again', "$election: run $again->[2] was granted to $again->[3], who asked at $again->[0]; $run was done by $who at $when");
		}
	}
	return;
}

# Nobody new is elected who is drained, not even if nobody else stands. A drain of
# all elections takes no locks: what was decided before has some time to be told. A
# drain is gone with its election, and may be lost with a failover.
sub check_drained
{
	my ($history) = @_;
	my $slack = 50_000;
	my $under_way = 3_000_000;	# a process may be stopped for so long

	return unless $wall_clock;
	foreach my $election (sort keys %$history)
	{
		my $rows = $history->{$election};
		my $last;

		foreach my $term (sort { $a <=> $b } keys %$rows)
		{
			my $row = $rows->{$term};
			my $before = $last;

			$last = $row;
			next unless $row->{began};
			foreach my $drain (grep { $_->{election} eq $election || $_->{election} eq 'all' } @drained)
			{
				my ($from, $to, $names) = @{$drain}{qw(from to names)};
				my $margin = $drain->{election} eq 'all' ? $under_way : 0;

				next unless defined $to && $row->{began} > $from + $margin + $slack && $row->{began} < $to - $slack;
				next if in_failover($from, $to) || was_dropped($election, $from, $to);
				$count{'terms that began in a drain'}++;
				next unless $names =~ /(.*)\*$/ ? index($row->{leader}, $1) == 0 : $names eq $row->{leader};
				next if continues($before, $row);
				violation('drained elected', "$election: $row->{leader} in term $term at $row->{began}, drained ($names in $drain->{election}) from $from to $to");
			}
		}
	}
	$count{drains} = @drained if @drained;
	return;
}

# --- groups

# Whatever a group may have had at that time, of seats or as the limit of a
# candidate: what it was last given, if that is certain, and whatever else may have
# come into force before or after it, or come back with a failover.
sub in_force
{
	my ($group, $what, $time) = @_;
	my $slack = 50_000;
	my @before = grep { $_->{group} eq $group && $_->{sent} < $time + $slack } @groups;
	my @values;

	foreach my $change (@before)
	{
		my $over = $change->{received} // $change->{sent} + 15_000_000;

		push @values, $change->{$what}
		  unless grep { defined $_->{received} && $_->{received} < $time - $slack
			  && $_->{sent} > $over && !in_failover($_->{sent}, $_->{received}) } @before;
	}
	return @values;
}

# May a seat have had a number that is too high, at some time in between?
sub may_be_withdrawn
{
	my ($election, $from, $to) = @_;
	my ($group, $number) = $election =~ m{^(.*)/(\d+)$} or return 0;

	return grep { $_ < $number } in_force($group, 'seats', $from),
	  map { $_->{seats} } grep { $_->{group} eq $group && $_->{sent} > $from && $_->{sent} < ($to // $_->{sent} + 1) } @groups;
}

# Does a leader lead on after a failover?
sub continues
{
	my ($before, $row) = @_;

	return $before && ($before->{reason} // '') eq 'failover' && $before->{leader} eq $row->{leader};
}

# Seats that a candidate certainly leads at the same time: the limit was not lower when
# it was granted the last of these.  A leader that leads on after a failover is not
# refused, and a limit that is lowered takes nothing.  Where the wall clock says
# nothing, any limit that there was will do.
sub check_cap
{
	my ($history) = @_;
	my %led;	# {group and candidate} = claims

	foreach my $c (grep { $_->{election} =~ m{/} && $_->{from} < $_->{to} } @claims)
	{
		push @{ $led{ ($c->{election} =~ s{/\d+$}{}r) . " $c->{candidate}" } }, $c;
	}
	foreach my $key (sort keys %led)
	{
		my ($group) = split / /, $key;

		foreach my $c (@{ $led{$key} })
		{
			my %seats = map { $_->{election} => $_ }
			  grep { $_->{from} <= $c->{from} && $_->{to} > $c->{from} } @{ $led{$key} };
			my @seats = sort { $a->{granted} <=> $b->{granted} } map { granted_at($history, $_) } values %seats;
			my $last = $seats[-1];

			next if @seats < 2;
			$count{'times that a candidate led ' . @seats . ' seats of a group'}++;
			next if $last->{continues} || grep { $_->{granted} == 0 || (!$wall_clock && $_->{continues}) } @seats;
			next if @seats <= max($wall_clock ? in_force($group, 'limit', $last->{granted}) : map { $_->{limit} } @groups);
			violation('cap', join('; ', map { describe($_->{claim}) } @seats) . "; the last one was granted at $last->{granted}");
		}
	}
	return;
}

# When was the term granted? 0: unknown
sub granted_at
{
	my ($history, $c) = @_;
	my $rows = $history->{ $c->{election} };
	my $row = $rows->{ $c->{term} };
	my $before = max(grep { $_ < $c->{term} } keys %$rows);

	return { claim => $c, granted => $row && $row->{began} || 0,
		continues => $row && $before && continues($rows->{$before}, $row) };
}

# Nobody new leads a seat whose number is higher than there are seats.
sub check_seats
{
	my ($history) = @_;

	return unless $wall_clock;
	foreach my $election (grep { m{/} } sort keys %$history)
	{
		my ($group, $number) = $election =~ m{^(.*)/(\d+)$};
		my $rows = $history->{$election};
		my $before;

		foreach my $term (sort { $a <=> $b } keys %$rows)
		{
			my $row = $rows->{$term};

			$count{'terms in seats of groups'}++;
			violation('withdrawn seat', "$election: $row->{leader} was elected in term $term at $row->{began}")
			  if $row->{began} && !continues($before, $row) && $number > max(in_force($group, 'seats', $row->{began}));
			$before = $row;
		}
	}
	return;
}

# Every term that was led is in history (G10).
sub check_claims_in_history
{
	my ($history) = @_;

	foreach my $c (@claims)
	{
		my $row = $history->{ $c->{election} }{ $c->{term} };

		next if $row && $row->{leader} eq $c->{candidate};
		violation('history', 'nothing of ' . describe($c))
		  unless !$row && in_failover($c->{from}, $c->{to});
	}
	return;
}

# --- fenced rows: written by the leader of that term (G8), and not lost (G6)

sub check_writes
{
	my (%rows, %present);

	foreach (lines("$out/writes"))
	{
		my ($election, $term, $candidate, $id, $committed) = split /\|/;

		next unless defined $committed;
		$count{'fenced rows'}++;
		$present{$election}{"$candidate $id"} = 1;
		$leader{$election}{$term}{$candidate} //= 'fenced row';
		push @{ $rows{$election} }, [ $term, $committed, "$candidate $id" ];
	}
	foreach my $election (sort keys %rows)
	{
		my $highest = [ 0, 0, '' ];

		foreach my $row (sort { $a->[1] <=> $b->[1] } @{ $rows{$election} })
		{
			last unless $wall_clock;
			violation('fenced row', "$election: $row->[2] of term $row->[0] was committed at $row->[1], after $highest->[2] of term $highest->[0] at $highest->[1]")
			  if $row->[0] < $highest->[0];
			$highest = $row if $row->[0] > $highest->[0];
		}
	}

	# By the clients' clock, and none is lost
	my %first;
	foreach my $w (sort { $a->{received} <=> $b->{received} } grep { $_->{outcome} eq 'committed' } @written)
	{
		$first{ $w->{election} }{ $w->{term} } //= $w;
		violation('lost row', "$w->{election}: $w->{candidate} $w->{id} of term $w->{term}, committed at $w->{received}")
		  unless $present{ $w->{election} }{"$w->{candidate} $w->{id}"};
	}
	foreach my $w (grep { $_->{outcome} eq 'committed' } @written)
	{
		foreach my $term (grep { $_ > $w->{term} } keys %{ $first{ $w->{election} } })
		{
			my $other = $first{ $w->{election} }{$term};

			violation('fenced row', "$w->{election}: $w->{candidate} $w->{id} of term $w->{term}: COMMIT was sent at $w->{sent}, that of $other->{candidate} $other->{id} of term $term answered at $other->{received}")
			  if $w->{sent} > $other->{received};
		}
	}
	return;
}

# --- the outside resource

sub check_resource
{
	my %highest;

	foreach (lines("$out/resource"))
	{
		my ($answer, $election, $term, $candidate, $sent, $received) = split / /;
		my $before = $highest{$election} // 0;

		$count{'outside resource: ' . ($answer eq 'a' ? 'accepted' : 'denied')}++;
		if ($answer eq 'a')
		{
			violation('outside resource', "$election: $candidate in term $term after $before") if $term < $before;
			$highest{$election} = max($before, $term);
			$leader{$election}{$term}{$candidate} //= 'outside resource';
			next;
		}
		violation('outside resource', "$election: $candidate was denied in term $term at $sent, although it led: " . describe($_))
		  foreach grep { $_->{election} eq $election && $_->{term} == $term
			  && $_->{candidate} eq $candidate && $_->{from} <= $sent && $_->{to} > $received
			  && !cannot_know($_, $sent) } @claims;
	}
	return;
}

# --- the servers' logs

# Errors that a server may log, and why; where the SQLSTATE says too little,
# with the message
my %expected_log = (
	%expected_error,
	'08003' => 'connection lost',
	'53300' => 'all connections used, by those that are stopped',
);
my @expected_messages = (
	qr/could not (receive data from|send data to|connect to).*(primary|WAL stream)/,	# the network
	qr/(terminating walreceiver|replication terminated by primary|streaming replication)/,
	qr/requested (timeline|WAL segment|starting point)/,	# before a rebuild
	qr/canceling (the )?wait for synchronous replication/,	# the nemesis
	qr/could not (send|receive|write|read).*(client|data)/,	# the network
	qr/terminating connection because of (crash|unexpected postmaster)/,
	qr/could not write init file/,	# the disk is full
	qr/pre-existing shared memory block/,	# its postmaster was killed, and some are stopped
	qr/lock file "postmaster.pid" already exists/,	# started twice by the nemesis
);

sub check_logs
{
	foreach my $path (glob "$out/server*.log")
	{
		my ($name) = $path =~ m{([^/]+)$};
		my %disk_full;

		foreach (lines($path))
		{
			# As it has to be, for WAL
			$disk_full{$1} = 1, next if /\[(\d+)\].* PANIC:  .*No space left on device/;
			next if /\(PID (\d+)\) was terminated by signal 6/ && $disk_full{$1};

			if (/PANIC:|TRAP:|was terminated by signal (?!9\b)\d+/)
			{
				violation('crash', "$name: $_");
				next;
			}
			next unless /^\S+ \S+ \S+ \[\d+\] (\w{5}) ([^:]*): (ERROR|FATAL):  (.*)/;
			my ($state, $who, $message) = ($1, $2, $4);

			$count{"errors in servers' logs: $state"}++;

			# The nemesis may get any, but none that cannot happen.
			next if $who =~ m{/(nemesis|pg_dump)$} && $state !~ /^XX/;
			violation('error in a log', "$name: $_")
			  unless $expected_log{$state} || grep { $message =~ $_ } @expected_messages;
		}
	}
	return;
}

# --- all

read_events();
read_candidate($_) foreach glob "$out/candidate.*";
my $history = read_history();
check_overlaps();
check_announced($history);
check_unannounced($history);
check_paused($history);
check_drained($history);
check_cap($history);
check_seats($history);
check_early();
check_runs();
check_claims_in_history($history);
check_writes();
check_resource();
check_terms();
check_logs();
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
