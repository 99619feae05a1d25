# The rules of election as 051_model.pl has them, without any server. A state of
# its model is a hash:
#
#	moments     counts what is told apart by its time
#	elections   by name, each with
#		strategy, quorum
#		delay       of a takeover
#		term        the last one
#		leader      undef: vacant
#		over        why its leadership is over, though nobody has noticed
#		yield       '', 'strategy', 'operator', 'paused' or 'drained': who has asked it to
#		to          in favour of whom; undef: of the next in line
#		reserved    whom the vacant seat is kept for
#		paused      '', 'paused' or 'vacated'; all: so are all elections
#		drained     names that are not elected
#		preempt_delay, settle  true: for ever
#		unsettled   nobody stood to follow when the seat fell vacant
#		history     the last few terms
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

our @EXPORT = qw(die_session end_term has_quorum is_paused leads led picture
  rest sit_out stand vacate waiting_for withdraw);

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

# spread: how many elections but this one does a candidate lead, or is it about
# to?
sub count_seats
{
	my ($s, $election, $name) = @_;
	my $n = 0;

	foreach my $other (keys %{ $s->{elections} })
	{
		my $l = $s->{elections}{$other};
		my $whose;

		next if $other eq $election || $l->{strategy} ne 'spread';
		if (!defined $l->{leader}) { $whose = $l->{reserved}; }
		elsif ($l->{yield} || defined $l->{over}) { $whose = $l->{to}; }
		else { $whose = $l->{leader}; }
		$n++ if defined $whose && $whose eq $name;
	}
	return $n;
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
		spread => [ count_seats($s, $election, $name) ]);

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

# Stands, and is not drained.
sub may_follow
{
	my ($l, $name) = @_;

	return $l->{candidates}{$name} && !$l->{drained}{$name};
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

	$l->{term}++;
	$l->{leader} = $name;
	$l->{auto_renew} = $l->{candidates}{$name}{auto_renew};
	$l->{yield} = '';
	delete @$l{qw(to reserved over)};
	$l->{unsettled} = 0;
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
sub settles
{
	my ($l) = @_;

	return $l->{settle} && $l->{unsettled} && !defined $l->{reserved};
}

# A vacant seat: elect the next in line, or keep the seat for it.  True if that
# changes anything.  The caller, if any, is the candidate whose call it is.
sub decide
{
	my ($s, $election, $caller) = @_;
	my $l = $s->{elections}{$election};
	my $lapsed = 0;
	my ($next, @eligible);

	if (defined $l->{reserved} && !may_follow($l, $l->{reserved}))
	{
		delete $l->{reserved};
		$lapsed = 1;
	}
	return $lapsed unless has_quorum($l);
	return $lapsed if is_paused($l) && !defined $l->{reserved};
	return $lapsed if settles($l);

	@eligible = grep { !$l->{candidates}{$_}{out} && !$l->{drained}{$_} }
	  order($s, $election);
	if (defined $l->{reserved})
	{
		$next = $l->{reserved};
	}
	elsif (!@eligible)
	{
		return $lapsed
		  unless defined $caller && may_follow($l, $caller);
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
	$c->{place} = ++$s->{moments};
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
	  if $reason eq 'yielded' && $l->{yield} =~ /paused|drained/ && !$how{later};
	sit_out($s, $election, $l->{leader})
	  if $how{sits_out} && $l->{yield} !~ /paused|drained/;
	$l->{reserved} = $how{to}
	  // ($l->{yield} eq 'operator' || is_paused($l) ? $l->{to} : undef);
	$l->{unsettled} = grep({ $_ ne $l->{leader} } keys %{ $l->{candidates} }) ? 0 : 1;
	$l->{yield} = '';
	delete @$l{qw(leader over to)};
	delete $l->{reserved}
	  unless defined $l->{reserved} && may_follow($l, $l->{reserved});
	decide($s, $election) unless $how{later};
	return;
}

# Whom the strategy wants a leader to make way for
sub challenger
{
	my ($s, $election) = @_;
	my $l = $s->{elections}{$election};
	my $leader = $l->{candidates}{ $l->{leader} };
	my $seats = count_seats($s, $election, $l->{leader}) + 1;
	my @challengers;

	return if !has_quorum($l) || $l->{preempt_delay};
	foreach my $name (order($s, $election))
	{
		my $c = $l->{candidates}{$name};
		my $asked_for = $l->{yield} && defined $l->{to} && $l->{to} eq $name;
		my $claims = 0;

		next if $name eq $l->{leader} || $l->{drained}{$name};
		$claims = !$c->{defers} && $c->{rank} > $leader->{rank}
		  if $l->{strategy} eq 'bully';
		$claims = $seats - count_seats($s, $election, $name) >=
		  ($asked_for ? 1 : 2)
		  if $l->{strategy} eq 'spread';
		return $name if $claims && $asked_for;
		push @challengers, $name if $claims;
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

		if (!defined $l->{leader})
		{
			push @states, $n if decide($n, $election);
		}
		elsif (defined $l->{over})
		{
			end_term($n, $election, $l->{over},
				sits_out => $l->{over} !~ /^session/
				  && (!$l->{auto_renew} || $l->{yield} eq 'operator'),
				later => $l->{delay} && $l->{over} ne 'yielded');
			push @states, $n;
		}
		elsif ($l->{yield} =~ /operator|paused|drained/ || is_paused($l))
		{
			next;
		}
		elsif ($l->{drained}{ $l->{leader} })
		{
			$l->{yield} = 'drained';
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
		place => ++$s->{moments},
		out => 0,
		defers => 0
	};

	$c->{defers} = 0 if defined $says{rank} && $says{rank} != $c->{rank};
	foreach my $key (qw(rank progress auto_renew))
	{
		$c->{$key} = $says{$key} if defined $says{$key};
	}
	decide($s, $election, $name)
	  unless defined $s->{elections}{$election}{leader};
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
	my ($l) = @_;
	my $live = keys %{ $l->{candidates} };
	my @drained = grep { $l->{drained}{$_} } keys %{ $l->{candidates} };
	my @eligible = grep { !$l->{candidates}{$_}{out} && !$l->{drained}{$_} }
	  keys %{ $l->{candidates} };

	return '' if led($l);
	return "reserved for $l->{reserved}" if defined $l->{reserved};
	return 'paused' if is_paused($l);
	return 'no candidates' unless $live;
	return "quorum $live of $l->{quorum}" unless has_quorum($l);
	return 'settle' if settles($l);
	return 'drained' if @drained && !@eligible;
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

		push @lines, join '|', $election, $l->{strategy},
		  $led ? $l->{yield} ? 'yielding' : 'led' : 'vacant',
		  waiting_for($l),
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
				join ' ', $l->{drained}{$_} ? () : ++$position, $_,
				  @$c{qw(kind rank progress)},
				  leads($l, $_) ? 't' : 'f'
			} (grep { !$l->{drained}{$_} } order($s, $election)),
			(grep { $l->{drained}{$_} } sort keys %{ $l->{candidates} })),
		  $l->{term},
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
