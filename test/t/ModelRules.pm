# The rules of election as 051_model.pl has them, without any server. A state of
# its model is a hash:
#
#	dropped     the highest term of a seat that was dropped
#	gone        by name, what history knows of the seats that were dropped
#	groups      by name, each with seats (how many) and max_per_candidate
#	elections   by name, each with
#		group       that it is a seat of; undef: of none
#		strategy, quorum
#		delay       of a takeover
#		moments     counts what is told apart by its time
#		after       the term above which its own begin
#		term        the last one
#		leader      undef: vacant
#		over        why its leadership is over, though nobody has noticed
#		yield       '', 'strategy', 'operator', 'paused', 'withdrawn' or 'drained': who has
#		            asked it to
#		to          in favour of whom; undef: of the next in line
#		reserved    whom the vacant seat is kept for
#		paused      '', 'paused' or 'vacated'; all: so are all elections
#		drained     names that are not elected
#		preempt_delay, initial_delay  true: for ever
#		deserted   nobody stood to follow when the seat fell vacant
#		terms       how many there were
#		history     the last few of them
#		candidates  by name; only those who are alive, each with
#			kind, rank, progress, auto_renew
#			place       in the line: when it came
#			out         sits out
#			defers      does not preempt

package ModelRules;

use strict;
use warnings;

use Data::Dumper;
use Exporter qw(import);
use Storable qw(dclone);

our @EXPORT = qw(die_session end_term has_quorum is_paused is_withdrawn leads led
  make_seats picture refuses rest seats sit_out stand vacate waiting_for withdraw);

# The worker has the lock of each group at the moment: what a session does ends
# terms of seats, but the worker decides who follows.
our $busy = 0;

$Data::Dumper::Sortkeys = 1;
$Data::Dumper::Terse = 1;
$Data::Dumper::Indent = 0;
$Data::Dumper::Useqq = 0;

my %RESERVES = map { $_ => 1 } qw(lowest bully ring zab spread);

# Leads it, and nobody has noticed otherwise
sub led
{
	my ($l) = @_;

	return defined $l->{leader} && !defined $l->{over};
}

# The seats of a group, by their numbers; there are less than ten.
sub seats
{
	my ($s, $group) = @_;

	return sort grep { ($s->{elections}{$_}{group} // '') eq $group }
	  keys %{ $s->{elections} };
}

# Nobody is elected there any more.
sub is_withdrawn
{
	my ($s, $election) = @_;
	my $group = $s->{elections}{$election}{group} // return 0;

	return $election =~ m{/(\d+)$} && $1 > $s->{groups}{$group}{seats};
}

# Has it as many other seats of the group as it may?  Those that are to become
# its own count, too, unless this is one of them (is_due).
sub is_capped
{
	my ($s, $election, $name, $is_due) = @_;
	my $group = $s->{elections}{$election}{group} // return 0;
	my $n = 0;

	foreach my $other (grep { $_ ne $election } seats($s, $group))
	{
		my $l = $s->{elections}{$other};
		my $heir =
		  !defined $l->{leader} ? $l->{reserved} :
		  $l->{yield} ? $l->{to} :
		  undef;

		$n++ if leads($l, $name);
		$n++ if !$is_due && defined $heir && $heir eq $name && !is_withdrawn($s, $other);
	}
	return $n >= $s->{groups}{$group}{max_per_candidate};
}

# May nobody name it as the next leader, though it stands and is not drained?
sub refuses
{
	my ($s, $election, $name) = @_;

	return is_withdrawn($s, $election) || is_capped($s, $election, $name, 0);
}

# Makes the seats that a group has not yet; they are like the first one.
sub make_seats
{
	my ($s, $group, %settings) = @_;
	my ($first) = seats($s, $group);

	%settings = map { $_ => $s->{elections}{$first}{$_} }
	  qw(strategy quorum delay preempt_delay initial_delay all)
	  if defined $first;
	foreach my $seat (map { "$group/$_" } 1 .. $s->{groups}{$group}{seats})
	{
		$s->{elections}{$seat} //= {
			%settings,
			group => $group,
			moments => 0,
			after => $s->{dropped},
			term => 0,
			yield => '',
			paused => '',
			drained => {},
			deserted => 1,
			terms => 0,
			history => [],
			candidates => {},
			%{ $s->{gone}{$seat} // {} }
		};
	}
	return;
}

# A seat that the group has no more is vacant.
sub drop_seat
{
	my ($s, $election) = @_;
	my $l = delete $s->{elections}{$election};

	$s->{gone}{$election} = { map { $_ => $l->{$_} } qw(terms history) };
	$s->{dropped} = $l->{term} if $l->{term} > $s->{dropped};
	return;
}

# spread: how many elections but this one, and of the same group, does a
# candidate lead, or is it about to?
sub count_seats
{
	my ($s, $election, $name) = @_;
	my $n = 0;

	foreach my $other (keys %{ $s->{elections} })
	{
		my $l = $s->{elections}{$other};
		my $whose;

		next
		  if $other eq $election
		  || $l->{strategy} ne 'spread'
		  || ($l->{group} // '') ne ($s->{elections}{$election}{group} // '');
		if (!defined $l->{leader}) { $whose = $l->{reserved}; }
		elsif ($l->{yield} || defined $l->{over}) { $whose = $l->{to}; }
		else { $whose = $l->{leader}; }
		$n++ if defined $whose && $whose eq $name;
	}
	return $n;
}

# spread: how much can a candidate bear?
sub weight
{
	my ($l, $name) = @_;
	my $rank = $l->{candidates}{$name}{rank};

	return defined $l->{group} && $rank > 0 ? $rank : 1;
}

# By what the candidates of a strategy are compared; the lowest comes first.
sub merits
{
	my ($s, $election, $name) = @_;
	my $l = $s->{elections}{$election};
	my $c = $l->{candidates}{$name};
	my %merits = (
		race => [ $c->{kind} eq 'session' ? 0 : 1 ],
		lowest => [ $c->{rank} ],
		bully => [ -$c->{rank} ],
		ring => [ -$c->{rank} ],
		zab => [ -$c->{progress}, -$c->{rank} ],
		spread =>
		  [ (count_seats($s, $election, $name) + 1) / weight($l, $name) ]);

	return (
		$c->{out} ? 1 : 0,
		@{ $merits{ $l->{strategy} } },
		$c->{place});
}

# All candidates, in the order in which they would be elected
sub order
{
	my ($s, $election) = @_;
	my %merits;

	$merits{$_} = [ merits($s, $election, $_) ]
	  foreach keys %{ $s->{elections}{$election}{candidates} };
	return sort {
		my $result = 0;
		foreach my $i (0 .. $#{ $merits{$a} })
		{
			$result = $merits{$a}[$i] <=> $merits{$b}[$i] and last;
		}
		$result;
	} keys %merits;
}

sub has_quorum
{
	my ($l) = @_;

	return keys %{ $l->{candidates} } >= $l->{quorum};
}

# Stands, and is not drained, and has not too many other seats.
sub may_follow
{
	my ($s, $election, $name, $is_due) = @_;
	my $l = $s->{elections}{$election};

	return
		 $l->{candidates}{$name}
	  && !$l->{drained}{$name}
	  && !is_capped($s, $election, $name, $is_due);
}

sub is_paused
{
	my ($l) = @_;

	return $l->{paused} || $l->{all};
}

# Where it is paused so that nobody leads it, the leader is asked to go, unless it
# was asked before.
sub vacate
{
	my ($l) = @_;

	$l->{yield} = 'paused' if $l->{paused} eq 'vacated' && led($l) && !$l->{yield};
	return;
}

# Somebody is elected: from now on nobody sits out.
sub elect
{
	my ($s, $election, $name) = @_;
	my $l = $s->{elections}{$election};

	$l->{term} = ($l->{term} || $l->{after}) + 1;
	$l->{terms}++;
	$l->{leader} = $name;
	$l->{auto_renew} = $l->{candidates}{$name}{auto_renew};
	$l->{yield} = '';
	delete @$l{qw(to reserved over)};
	$l->{deserted} = 0;
	vacate($l);
	$_->{out} = 0 foreach values %{ $l->{candidates} };
	push @{ $l->{history} },
	  {
		term => $l->{term},
		leader => $name,
		kind => $l->{candidates}{$name}{kind}
	  };
	shift @{ $l->{history} } if @{ $l->{history} } > 3;
	return;
}

# The vacant seat waits for others to stand.
sub waits_for_others
{
	my ($l) = @_;

	return $l->{initial_delay} && $l->{deserted} && !defined $l->{reserved};
}

# A vacant seat: elect the next in line, or keep the seat for it.  True if that
# changes anything.  The caller, if any, is the candidate whose call it is.
sub decide
{
	my ($s, $election, $caller) = @_;
	my $l = $s->{elections}{$election};
	my $lapsed = 0;
	my ($next, @eligible);

	if (defined $l->{reserved}
		&& !may_follow($s, $election, $l->{reserved}, 1))
	{
		delete $l->{reserved};
		$lapsed = 1;
	}
	return $lapsed if is_withdrawn($s, $election) || !has_quorum($l);
	return $lapsed if is_paused($l) && !defined $l->{reserved};
	return $lapsed if waits_for_others($l);

	@eligible =
	  grep { !$l->{candidates}{$_}{out} && may_follow($s, $election, $_, 0) }
	  order($s, $election);
	if (defined $l->{reserved})
	{
		$next = $l->{reserved};
	}
	elsif (!@eligible)
	{
		return $lapsed
		  unless defined $caller && may_follow($s, $election, $caller, 0);
		$next = $caller;
	}
	else
	{
		$next = $eligible[0];
		if (  !$RESERVES{ $l->{strategy} }
			&& $l->{candidates}{$next}{kind} eq 'detached')
		{
			return $lapsed
			  unless defined $caller && grep { $_ eq $caller } @eligible;
			$next = $caller;
		}
	}

	if ($l->{candidates}{$next}{kind} eq 'session'
		|| (defined $caller && $caller eq $next))
	{
		elect($s, $election, $next);
		return 1;
	}
	return $lapsed if defined $l->{reserved};
	$l->{reserved} = $next;
	return 1;
}

# Has given up, or let pass what it was offered: goes to the end of the line,
# and sits out.
sub sit_out
{
	my ($s, $election, $name) = @_;
	my $c = $s->{elections}{$election}{candidates}{$name};

	return unless $c;
	$c->{out} = $c->{defers} = 1;
	$c->{place} = ++$s->{elections}{$election}{moments};
	return;
}

# The leadership ends, and the next one begins if there is somebody: with it, or
# (later) after a hold or a delay, when others may have been decided meanwhile.
sub end_term
{
	my ($s, $election, $reason, %how) = @_;
	my $l = $s->{elections}{$election};
	my $h = $l->{history}[-1];

	$h->{reason} = $reason;
	$h->{detail} = "to $how{to}" if $reason eq 'transferred';
	$h->{detail} = $l->{yield}
	  if $reason eq 'yielded' && $l->{yield} =~ /paused|withdrawn|drained/ && !$how{later};
	sit_out($s, $election, $l->{leader})
	  if $how{sits_out} && $l->{yield} !~ /paused|withdrawn|drained/;
	$l->{reserved} = $how{to}
	  // ($l->{yield} eq 'operator' || is_paused($l) ? $l->{to} : undef);
	$l->{deserted} = grep({ $_ ne $l->{leader} } keys %{ $l->{candidates} }) ? 0 : 1;
	$l->{yield} = '';
	delete @$l{qw(leader over to)};
	delete $l->{reserved}
	  unless defined $l->{reserved}
	  && !is_withdrawn($s, $election)
	  && may_follow($s, $election, $l->{reserved}, 1);
	decide($s, $election) unless $how{later} || ($busy && $l->{group});
	return;
}

# Whom the strategy wants a leader to make way for
sub challenger
{
	my ($s, $election) = @_;
	my $l = $s->{elections}{$election};
	my $leader = $l->{candidates}{ $l->{leader} };
	my $seats = count_seats($s, $election, $l->{leader});
	my $weight = weight($l, $l->{leader});
	my @challengers;

	return if !has_quorum($l) || $l->{preempt_delay};
	foreach my $name (order($s, $election))
	{
		my $c = $l->{candidates}{$name};
		my $asked_for = $l->{yield} && defined $l->{to} && $l->{to} eq $name;
		my ($claims, $claims_still) = (0, 0);

		next if $name eq $l->{leader} || $l->{drained}{$name};
		if ($l->{strategy} eq 'bully')
		{
			$claims = !$c->{defers} && $c->{rank} > $leader->{rank};
			$claims_still = $claims;
		}
		if ($l->{strategy} eq 'spread')
		{
			my $n = count_seats($s, $election, $name);
			my $w = weight($l, $name);

			$claims = ($n + 1) * $weight < ($seats + 1) * $w;
			$claims_still = $n * $weight <= $seats * $w;
		}
		return $name
		  if $asked_for && $claims_still && !is_capped($s, $election, $name, 1);
		push @challengers, $name
		  if $claims && !is_capped($s, $election, $name, 0);
	}
	return $challengers[0];
}

# What the server may do next by itself: the states after each of these
sub next_states
{
	my ($s) = @_;
	my @states;

	foreach my $election (sort keys %{ $s->{elections} })
	{
		my $n = dclone($s);
		my $l = $n->{elections}{$election};

		if (!defined $l->{leader} && is_withdrawn($n, $election))
		{
			drop_seat($n, $election);
			push @states, $n;
		}
		elsif (!defined $l->{leader})
		{
			push @states, $n if decide($n, $election);
		}
		elsif (defined $l->{over})
		{
			foreach my $locked (0 .. (defined $l->{group} ? 1 : 0))
			{
				my $ended = dclone($n);

				local $busy = $locked;
				end_term($ended, $election, $l->{over},
					sits_out => $l->{over} !~ /^session/
					  && (!$l->{auto_renew} || $l->{yield} eq 'operator'),
					later => $l->{delay} && $l->{over} ne 'yielded');
				push @states, $ended;
			}
		}
		elsif ($l->{yield} =~ /operator|paused|withdrawn|drained/ || is_paused($l))
		{
			next;
		}
		elsif (is_withdrawn($n, $election) || $l->{drained}{ $l->{leader} })
		{
			$l->{yield} =
			  is_withdrawn($n, $election) ? 'withdrawn' : 'drained';
			delete $l->{to};
			push @states, $n;
		}
		else
		{
			my $challenger = challenger($n, $election);

			next if ($challenger // '') eq ($l->{to} // '');
			$l->{yield} = defined $challenger ? 'strategy' : '';
			$l->{to} = $challenger;
			push @states, $n;
		}
	}
	return @states;
}

# The states of rest that can be reached from these
sub rest
{
	my @open = @_;
	my (%seen, @rest);

	while (my $s = shift @open)
	{
		next if $seen{ Dumper($s) }++;
		my @next = next_states($s);
		push @rest, $s unless @next;
		push @open, @next;
	}
	return @rest;
}

# Stands, or says something new.  What is not given is as it was.
sub stand
{
	my ($s, $election, $name, $kind, %says) = @_;
	my $candidates = $s->{elections}{$election}{candidates};
	my $c = $candidates->{$name} //= {
		kind => $kind,
		rank => 0,
		progress => 0,
		auto_renew => $kind eq 'session' ? 1 : 0,
		place => ++$s->{elections}{$election}{moments},
		out => 0,
		defers => 0
	};

	$c->{defers} = 0 if defined $says{rank} && $says{rank} != $c->{rank};
	foreach my $key (qw(rank progress auto_renew))
	{
		$c->{$key} = $says{$key} if defined $says{$key};
	}
	decide($s, $election, $name)
	  unless defined $s->{elections}{$election}{leader}
	  || ($busy && $kind eq 'session' && $s->{elections}{$election}{group});
	return;
}

# Stands no more.
sub withdraw
{
	my ($s, $election, $name, $reason) = @_;
	my $l = $s->{elections}{$election};
	my $leads = leads($l, $name);

	delete $l->{candidates}{$name};
	end_term($s, $election, $reason) if $leads;
	return;
}

# Its session is over.
sub die_session
{
	my ($s, $name, $reason) = @_;

	foreach my $l (values %{ $s->{elections} })
	{
		my $c = $l->{candidates}{$name};

		next unless $c && $c->{kind} eq 'session';
		$l->{over} = $reason // 'session ended' if leads($l, $name);
		delete $l->{candidates}{$name};
	}
	return;
}

sub leads
{
	my ($l, $name) = @_;

	return led($l) && $l->{leader} eq $name;
}

# Why nobody leads
sub waiting_for
{
	my ($s, $election) = @_;
	my $l = $s->{elections}{$election};
	my @live = keys %{ $l->{candidates} };
	my $live = @live;
	my @drained = grep { $l->{drained}{$_} } @live;
	my @capped = grep { is_capped($s, $election, $_, 0) } @live;
	my @eligible =
	  grep { !$l->{candidates}{$_}{out} && may_follow($s, $election, $_, 0) }
	  @live;

	return '' if led($l);
	return 'withdrawn' if is_withdrawn($s, $election);
	return "reserved for $l->{reserved}" if defined $l->{reserved};
	return 'paused' if is_paused($l);
	return 'no candidates' unless $live;
	return "quorum $live of $l->{quorum}" unless has_quorum($l);
	return 'initial delay' if waits_for_others($l);
	return 'drained' if @drained && !@eligible;
	return 'cap' if @capped && !@eligible;
	return 'candidates that do not sit out' unless @eligible;
	return 'acquire()';
}

# What can be seen of a state, in the words of $LOOK in ModelRun.pm
sub picture
{
	my ($s) = @_;
	my @lines;

	foreach my $election (sort keys %{ $s->{elections} })
	{
		my $l = $s->{elections}{$election};
		my $led = led($l);
		my $position = 0;
		my @ranked = grep { !$l->{drained}{$_} && !is_capped($s, $election, $_, 0) }
		  order($s, $election);
		my %ranked = map { $_ => 1 } @ranked;

		push @lines, join '|', $election, $l->{strategy},
		  $led ? $l->{yield} ? 'yielding' : 'led' : 'vacant',
		  waiting_for($s, $election),
		  $led ? @$l{qw(leader term)} : ('', ''),
		  $led ? $l->{history}[-1]{kind} : '',
		  $led ? 't' : 'f',
		  't',
		  is_paused($l) ? 't' : 'f',
		  scalar keys %{ $l->{candidates} },
		  $l->{quorum},
		  join(
			', ',
			map {
				my $c = $l->{candidates}{$_};
				join ' ', $ranked{$_} ? ++$position : (), $_,
				  @$c{qw(kind rank progress)},
				  leads($l, $_) ? 't' : 'f'
			} @ranked,
			(grep { !$ranked{$_} } sort keys %{ $l->{candidates} })),
		  $l->{terms},
		  join(
			', ',
			map {
				join ' ',
				  @$_{qw(term leader kind)},
				  $_->{reason} // 'leads',
				  $_->{detail} // ()
			} @{ $l->{history} });
	}
	return join "\n", @lines;
}

1;
