# Random steps in elections of every strategy, against a model of what the rules
# say: after each step the leader, the term, why the last ones ended, and who
# comes next in which order have to be as the model has them.
#
#	MODEL_SEED   what is done is drawn from it; 1 unless set, others find more
#	MODEL_STEPS  how many steps in all, 3500 unless set
#
# Each strategy has a database of its own, so that its worker is woken by nothing
# else, with elections and candidates, sessions and detached ones.  What happens
# there does not depend on the others.  They take turns, so that one can wait for
# a lease to run out while others go on.
#
# The leases are longer than the test: nothing in here expires but what is
# meant to.  For that the lease is made a short one just for the call that it
# counts for, since a lease that is granted, and a sign of life, count for as
# long as was said at that moment.
#
# Where several elections are to be decided at once, as those of a worker that
# died, nobody says which one comes first.  So the model is a set of states, all
# that can be reached by any order of the single decisions; the server has to be
# in one of them.

use strict;
use warnings;

use Data::Dumper;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Storable qw(dclone);
use Test::More;
use Time::HiRes qw(sleep time);

my @STRATEGIES = qw(race lowest bully ring zab spread);
my $SEED = $ENV{MODEL_SEED} // 1;
my $STEPS = $ENV{MODEL_STEPS} // 3500;

# Leases, in milliseconds
my $LONG = 3_600_000;
my $SHORT = 1_000;

# What has to be done within a short lease has to be done within this part of
# it, in seconds; the machine may be too slow for it now and then.
my $IN_TIME = 0.6 * $SHORT / 1000;
my $MAY_BE_LATE = 5;

# How long it may take until everything has come to rest, in seconds
my $SETTLED_IN = 20;

my $SHOWN_STEPS = 20;

$Data::Dumper::Sortkeys = 1;
$Data::Dumper::Terse = 1;
$Data::Dumper::Indent = 0;
$Data::Dumper::Useqq = 0;

#
# -- The model.  A state is a hash:
#
#	moments     counts what is told apart by its time
#	elections   by name, each with
#		strategy, quorum
#		delay       of a takeover
#		term        the last one
#		leader      undef: vacant
#		over        why its leadership is over, though nobody has noticed
#		yield       '', 'strategy' or 'operator': who has asked it to
#		to          in favour of whom; undef: of whoever is next
#		reserved    whom the vacant seat is kept for
#		history     the last few terms
#		candidates  by name; only those who are alive, each with
#			kind, rank, progress, auto_renew
#			place       in the line: when it came
#			out         sits out
#			defers      does not preempt
#

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

# Somebody is elected: from now on nobody sits out.
sub elect
{
	my ($s, $election, $name) = @_;
	my $l = $s->{elections}{$election};

	$l->{term}++;
	$l->{leader} = $name;
	$l->{auto_renew} = $l->{candidates}{$name}{auto_renew};
	$l->{yield} = '';
	delete @$l{qw(to reserved)};
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

# A vacant seat: elect whoever is next, or keep it for it.  True if that
# changes anything.  The caller, if any, is the candidate whose call it is.
sub decide
{
	my ($s, $election, $caller) = @_;
	my $l = $s->{elections}{$election};
	my $lapsed = 0;
	my ($next, @eligible);

	if (defined $l->{reserved} && !$l->{candidates}{ $l->{reserved} })
	{
		delete $l->{reserved};
		$lapsed = 1;
	}
	return $lapsed unless has_quorum($l);

	@eligible = grep { !$l->{candidates}{$_}{out} } order($s, $election);
	if (defined $l->{reserved})
	{
		$next = $l->{reserved};
	}
	elsif (!@eligible)
	{
		return $lapsed
		  unless defined $caller && $l->{candidates}{$caller};
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
	sit_out($s, $election, $l->{leader}) if $how{sits_out};
	$l->{reserved} = $how{to} // ($l->{yield} eq 'operator' ? $l->{to} : undef);
	$l->{yield} = '';
	delete @$l{qw(leader over to)};
	delete $l->{reserved}
	  unless defined $l->{reserved} && $l->{candidates}{ $l->{reserved} };
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

	return unless has_quorum($l);
	foreach my $name (order($s, $election))
	{
		my $c = $l->{candidates}{$name};
		my $asked_for = $l->{yield} && defined $l->{to} && $l->{to} eq $name;
		my $claims = 0;

		next if $name eq $l->{leader};
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
		elsif ($l->{yield} ne 'operator')
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
	my @eligible = grep { !$_->{out} } values %{ $l->{candidates} };

	return '' if led($l);
	return "reserved for $l->{reserved}" if defined $l->{reserved};
	return 'no candidates' unless $live;
	return "quorum $live of $l->{quorum}" unless has_quorum($l);
	return 'candidates that do not sit out' unless @eligible;
	return 'acquire()';
}

# What can be seen of a state, in the words of $LOOK below
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
		  scalar keys %{ $l->{candidates} },
		  $l->{quorum},
		  join(
			', ',
			map {
				my $c = $l->{candidates}{$_};
				join ' ', ++$position, $_,
				  @$c{qw(kind rank progress)},
				  leads($l, $_) ? 't' : 'f'
			} order($s, $election)),
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

# The same of the server, once no hold and no delay is in force.  %s: a pattern
# for the names of the elections.  Of history the end is enough, since every
# step looks at it.
my $LOOK = q{
SELECT concat_ws('|', s.election, s.strategy, s.state,
	coalesce(s.waiting_for, ''), coalesce(s.leader, ''),
	coalesce(s.term::text, ''), coalesce(s.kind, ''),
	leader_election.is_leader(s.election, s.term),
	coalesce(l.not_before_at <= clock_timestamp(), true), s.candidates, s.quorum,
	(SELECT coalesce(string_agg(concat_ws(' ', c.position, c.candidate, c.kind,
			c.rank, c.progress, c.leads), ', ' ORDER BY c.position), '')
		FROM leader_election.candidates c
		WHERE c.election = s.election AND c.alive),
	(SELECT count(*) FROM leader_election.history h
		WHERE h.election = s.election),
	(SELECT coalesce(string_agg(concat_ws(' ', h.term, h.leader, h.kind,
			coalesce(h.reason, 'leads'),
			CASE WHEN h.reason = 'transferred' THEN h.detail END), ', '
			ORDER BY h.term), '')
		FROM (SELECT * FROM leader_election.history h
			WHERE h.election = s.election ORDER BY h.term DESC LIMIT 3) h))
FROM leader_election.status s JOIN leader_election.lease l USING (election)
WHERE s.election LIKE '%s'
ORDER BY s.election COLLATE "C"
};

#
# -- The machinery: for each strategy a run, with
#
#	name        of the strategy and of the database
#	control     a session that looks, and is the operator
#	pool        the connections of detached candidates
#	dice, steps, log, failed
#	generation  counts new beginnings
#	sessions    by candidate
#	states      of the model
#	expected    states, if there is something to wait for; since, and what
#

my ($node, %done, %seen, %reasons, $late);

sub dice
{
	my ($run, $n) = @_;

	$run->{dice} = ($run->{dice} * 1103515245 + 12345) % 2**31;
	return int($run->{dice} / 2**31 * $n);
}

sub chance
{
	my ($run, $percent) = @_;

	return dice($run, 100) < $percent;
}

sub pick
{
	my ($run, @from) = @_;

	return $from[ dice($run, scalar @from) ];
}

# A detached candidate has no connection of its own.
sub any
{
	my ($run, $sql) = @_;

	push @{ $run->{pool} }, shift @{ $run->{pool} };
	return ask($run->{pool}[0], $sql);
}

# The result, or the SQLSTATE if that is an error
sub ask
{
	my ($session, $sql) = @_;
	my $result = $session->query($sql);

	return $session->sqlstate eq '00000' ? $result : $session->sqlstate;
}

# The names of a run's elections and candidates begin anew with each generation.
sub begin
{
	my ($run) = @_;
	my $prefix = "$run->{name}$run->{generation}";
	my $spread = $run->{name} eq 'spread';

	$_->finish foreach values %{ $run->{sessions} };
	$run->{sessions} = {};
	$run->{pattern} = "$prefix.%";
	$run->{candidates} =
	  [ map { "$prefix$_" } 'a' .. ($spread ? 'd' : 'e') ];
	my %elections = map {
		;
		"$prefix.$_" => {
			strategy => $run->{name},
			quorum => 1,
			delay => 0,
			term => 0,
			yield => '',
			ended => {},
			history => [],
			candidates => {}
		}
	} 1 .. ($spread ? 5 : 1);
	foreach my $election (sort keys %elections)
	{
		$run->{control}->query("SELECT leader_election.create_election('$election',"
			  . " '$run->{name}', '$LONG ms')");
	}
	$run->{states} = [ { moments => 0, elections => \%elections } ];
	delete $run->{expected};
	return;
}

sub session_of
{
	my ($run, $name) = @_;

	return $run->{sessions}{$name} //=
	  session($node, name => $name, dbname => $run->{name});
}

sub complain
{
	my ($run, $why) = @_;
	my @log = @{ $run->{log} };

	splice @log, 0, @log - $SHOWN_STEPS if @log > $SHOWN_STEPS;
	$run->{failed} = 1;
	diag("$run->{name}: $why\nMODEL_SEED=$SEED MODEL_STEPS=$STEPS\n"
		  . "the last steps:\n\t"
		  . join("\n\t", @log)
		  . "\nthe model, before:\n"
		  . join("\nor\n", map { Dumper($_) } @{ $run->{states} })
		  . "\nthe model, after:\n"
		  . join("\nor\n", map { picture($_) } @{ $run->{expected} // [] })
		  . "\nthe server:\n"
		  . look($run));
	return 0;
}

sub look
{
	my ($run) = @_;

	return scalar $run->{control}->query(sprintf $LOOK, $run->{pattern});
}

# One step: do it (returns what the server answers), and what it means to the
# model (returns what the answer has to be, a text or a pattern; undef: any).
# Where the model is not sure about the order, there are several.
sub step
{
	my ($run, $what, $do, @means) = @_;
	my (@expected, @answers, $got);

	$got = $do->();
	push @{ $run->{log} }, "$what: " . ($got eq '' ? 'nothing' : $got);
	foreach my $state (@{ $run->{states} })
	{
		foreach my $mean (@means)
		{
			my $s = dclone($state);
			my $answer = $mean->($s);

			push @answers, $answer;
			push @expected, $s
			  if !defined $answer
			  || (ref $answer ? $got =~ $answer : $got eq $answer);
		}
	}
	unless (@expected)
	{
		$run->{expected} = [];
		return complain($run, "wrong answer; expected: @answers");
	}
	return expect($run, rest(@expected));
}

# From now on the server has to come to one of these states.
sub expect
{
	my ($run, @states) = @_;

	$run->{expected} = \@states;
	$run->{pictures} = {};
	push @{ $run->{pictures}{ picture($_) } }, $_ foreach @states;
	$run->{since} = time;
	return 1;
}

# Has it?  Then that is the model's state.
sub arrived
{
	my ($run) = @_;
	my $seen = look($run);
	my $states = $run->{pictures}{$seen} or return 0;

	foreach my $election (values %{ $states->[0]{elections} })
	{
		my $what =
		  !led($election) ? waiting_for($election) :
		  $election->{yield} ? "yielding to $election->{yield}" :
		  'led';
		$what =~ s/^(quorum|reserved).*/$1/;
		$seen{$what}++;
	}
	$run->{states} = $states;
	delete @$run{qw(expected pictures)};
	return 1;
}

# Waits for that.
sub settled
{
	my ($run, $limit) = @_;
	my $until = time + ($limit // $SETTLED_IN);

	return 0 if $run->{failed};
	while ($run->{expected})
	{
		return 1 if arrived($run);
		if (time > $until)
		{
			return 0 if defined $limit;
			return complain($run, 'comes to rest elsewhere');
		}
		sleep(0.002);
	}
	return 1;
}

# Each session, too, knows whether it leads.
sub check_views
{
	my ($run) = @_;
	my $s = $run->{states}[0];

	foreach my $name (sort keys %{ $run->{sessions} })
	{
		foreach my $election (sort keys %{ $s->{elections} })
		{
			my $l = $s->{elections}{$election};
			my $leads = leads($l, $name)
			  && $l->{candidates}{$name}{kind} eq 'session';
			my $got = ask(
				$run->{sessions}{$name},
				"SELECT leader_election.is_leader('$election'),"
				  . " leader_election.term('$election')");

			return complain($run, "$name in $election: is_leader, term: $got")
			  unless $got eq ($leads ? "t|$l->{term}" : 'f|');
		}
	}
	return 1;
}

#
# -- Steps.  Each returns false if there is no occasion for it.
#

sub profile
{
	my ($says) = @_;

	return join '', map { ", $_ => '$says->{$_}'" } sort keys %$says;
}

# A candidate calls: join, campaign or acquire
sub call
{
	my ($run, $election, $name, $kind, %says) = @_;
	my $args = "'$election', '$name'" . profile(\%says);
	my $before = $run->{states}[0]{elections}{$election};
	my $present = $before->{candidates}{$name};
	my $led_before = leads($before, $name);
	my $after = dclone($run->{states}[0]);
	my $elected;

	stand($after, $election, $name, $kind, %says);
	$elected =
	  !$led_before && leads($after->{elections}{$election}, $name);
	if ($kind eq 'detached')
	{
		return step(
			$run,
			"acquire($args)",
			sub { any($run, "SELECT term FROM leader_election.acquire($args)") },
			sub {
				my ($s) = @_;
				my $l = $s->{elections}{$election};
				my $term = $l->{term};

				stand($s, $election, $name, $kind, %says);
				return $l->{term} > $term && leads($l, $name) ?
				  $l->{term} : '';
			});
	}
	if ($elected && chance($run, 30))
	{
		return step(
			$run,
			"campaign($args)",
			sub {
				ask(session_of($run, $name),
					"CALL leader_election.campaign($args, timeout => '10 s')");
			},
			sub {
				my ($s) = @_;

				stand($s, $election, $name, $kind, %says);
				return $s->{elections}{$election}{term};
			});
	}
	return step(
		$run,
		"join($args)",
		sub {
			ask(session_of($run, $name), "SELECT leader_election.join($args)");
		},
		sub {
			my ($s) = @_;
			my $l = $s->{elections}{$election};
			my $only = $l->{candidates}{$name} && $l->{candidates}{$name}{out};
			my $led = leads($l, $name);

			stand($s, $election, $name, $kind, %says);
			return '' unless leads($l, $name);

			# It may be the worker who elects it, a moment later, unless the
			# worker must not.
			return $led || $only ? $l->{term} : qr/^($l->{term})?$/;
		});
}

sub says
{
	my ($run, $percent) = @_;
	my %says;

	$says{rank} = dice($run, 4) if chance($run, $percent);
	$says{progress} = dice($run, 4) if chance($run, $percent);
	return %says;
}

sub join_new
{
	my ($run, $election, $l) = @_;
	my $name =
	  pick($run, grep { !$l->{candidates}{$_} } @{ $run->{candidates} })
	  or return 0;
	my $kind = chance($run, 60) ? 'session' : 'detached';
	my %says = says($run, 60);

	$says{auto_renew} = 0
	  if $kind eq 'session' && chance($run, 25);
	return call($run, $election, $name, $kind, %says);
}

# Once more, perhaps with news
sub call_again
{
	my ($run, $election, $l) = @_;
	my $name = pick($run, sort keys %{ $l->{candidates} }) or return 0;

	return call($run, $election, $name, $l->{candidates}{$name}{kind},
		says($run, 40));
}

# Whoever the seat is kept for comes for it, or somebody comes to a vacant one.
sub come
{
	my ($run, $election, $l) = @_;
	my $name = $l->{reserved};

	return 0 if defined $l->{leader};
	$name = pick($run, sort keys %{ $l->{candidates} })
	  unless defined $name && chance($run, 80);
	return 0 unless defined $name;
	return call($run, $election, $name, $l->{candidates}{$name}{kind});
}

# What ends a leadership takes its term from a detached leader.
sub give_up
{
	my ($run, $election, $l, $function, $more, $mean) = @_;
	my $name = $l->{leader};
	my $session = $l->{candidates}{$name}{kind} eq 'session';
	my $call;

	$function = 'release' if $function eq 'resign' && !$session;
	$call = "leader_election.$function('$election'"
	  . ($session ? '' : ", $l->{term}")
	  . ($more // '') . ')';
	return step(
		$run,
		"$name: $call",
		sub {
			$session ? ask(session_of($run, $name), "SELECT $call") :
			  any($run, "SELECT $call");
		},
		$mean);
}

sub resign
{
	my ($run, $election, $l) = @_;
	my $hold = chance($run, 20) ? ", hold => '300 ms'" : '';

	return 0 unless defined $l->{leader};
	return give_up(
		$run,
		$election,
		$l, 'resign', $hold,
		sub {
			my ($s) = @_;

			end_term($s, $election,
				$s->{elections}{$election}{yield} ? 'yielded' : 'resigned',
				sits_out => 1,
				later => $hold);
			return 't';
		});
}

sub transfer_to
{
	my ($run, $election, $l, $to) = @_;

	return give_up(
		$run,
		$election,
		$l,
		'transfer',
		", '$to'",
		sub {
			my ($s) = @_;

			end_term($s, $election, 'transferred', to => $to);
			return 't';
		});
}

sub followers
{
	my ($l, $kind) = @_;

	return grep {
		$_ ne $l->{leader}
		  && (!defined $kind || $l->{candidates}{$_}{kind} eq $kind)
	} sort keys %{ $l->{candidates} };
}

sub transfer
{
	my ($run, $election, $l) = @_;
	my $to;

	return 0 unless defined $l->{leader};
	$to = pick($run, followers($l)) or return 0;
	return transfer_to($run, $election, $l, $to);
}

sub leave
{
	my ($run, $election, $l) = @_;
	my $name = pick($run, sort keys %{ $l->{candidates} }) or return 0;

	if ($l->{candidates}{$name}{kind} eq 'detached')
	{
		my $leads = leads($l, $name);

		return step(
			$run,
			"leave('$election', '$name')",
			sub { any($run, "SELECT leader_election.leave('$election', '$name')") },
			sub {
				return '22023' if $leads;
				withdraw($_[0], $election, $name, 'left');
				return 't';
			});
	}
	return step(
		$run,
		"$name: leave('$election')",
		sub {
			ask(session_of($run, $name),
				"SELECT leader_election.leave('$election')");
		},
		sub {
			withdraw($_[0], $election, $name, 'left');
			return 't';
		});
}

sub permutations
{
	my (@list) = @_;

	return [] unless @list;
	return map {
		my @rest = @list;
		my $first = splice @rest, $_, 1;
		map { [ $first, @$_ ] } permutations(@rest)
	} 0 .. $#list;
}

# From all elections, in any order
sub leave_all
{
	my ($run) = @_;
	my $s = $run->{states}[0];
	my $name = pick($run, sort keys %{ $run->{sessions} }) or return 0;
	my @stands = grep {
		my $c = $s->{elections}{$_}{candidates}{$name};
		$c && $c->{kind} eq 'session'
	} sort keys %{ $s->{elections} };

	return step(
		$run,
		"$name: leave_all()",
		sub {
			ask($run->{sessions}{$name}, 'SELECT leader_election.leave_all()');
		},
		map {
			my @elections = @$_;
			sub {
				my ($n) = @_;

				withdraw($n, $_, $name, 'left') foreach @elections;
				return scalar @elections;
			}
		} permutations(@stands));
}

# A session ends, in one of many ways.
sub die_at_once
{
	my ($run, $election, $l) = @_;
	my $s = $run->{states}[0];
	my @stand = grep {
		my $name = $_;
		grep {
			my $c = $_->{candidates}{$name};
			$c && $c->{kind} eq 'session'
		} values %{ $s->{elections} };
	} sort keys %{ $run->{sessions} };
	my $name = pick($run, @stand) or return 0;
	my $session = $run->{sessions}{$name};
	my $how = pick($run, qw(kill terminate discard));

	return step(
		$run,
		"$name: $how",
		sub {
			if ($how eq 'discard')
			{
				$session->query('DISCARD ALL');

				# It is told, in each election in which it stood.
				foreach my $e (sort keys %{ $s->{elections} })
				{
					my $c = $s->{elections}{$e}{candidates}{$name};

					next unless $c && $c->{kind} eq 'session';
					return "no LE006 in $e: " . $session->sqlstate
					  if $session->sqlstate_of(
						"SELECT leader_election.renew('$e')") ne 'LE006';
				}
			}
			elsif ($how eq 'kill') { $session->kill; }
			else
			{
				ask($run->{control},
					'SELECT pg_terminate_backend('
					  . $session->backend_pid
					  . ')');
				$session->kill;
			}
			delete $run->{sessions}{$name} unless $how eq 'discard';
			return '';
		},
		sub {
			die_session($_[0], $name,
				$how eq 'discard' ? 'session reset' : undef);
			return '';
		});
}

sub ask_to_yield
{
	my ($run, $election, $l, $to, $terminate) = @_;
	my $args = "'$election'"
	  . (defined $to ? ", '$to'" : '')
	  . ($terminate ? ', terminate => true' : '');

	return step(
		$run,
		"request_yield($args)",
		sub { any($run, "SELECT leader_election.request_yield($args)") },
		sub {
			my ($s) = @_;
			my $n = $s->{elections}{$election};

			return '' unless led($n);
			$n->{yield} = 'operator';
			$n->{to} = $to;
			if ($terminate && $n->{candidates}{ $n->{leader} }{kind} eq 'session')
			{
				(delete $run->{sessions}{ $n->{leader} })->kill
				  if $run->{sessions}{ $n->{leader} };
				die_session($s, $n->{leader});
			}
			return qr/:/;
		});
}

sub request_yield
{
	my ($run, $election, $l) = @_;
	my $to;

	return 0 if !defined $l->{leader} && !chance($run, 20);
	$to = pick($run, undef, followers($l)) if defined $l->{leader};
	return ask_to_yield($run, $election, $l, $to, chance($run, 20));
}

# Renewing changes nothing, and says whether to yield.
sub renew
{
	my ($run, $election, $l) = @_;
	my $name = $l->{leader} // return 0;
	my $yielding = $l->{yield} ? 't' : 'f';
	my $what = 'term, yielding FROM leader_election.renew';

	if ($l->{candidates}{$name}{kind} eq 'session')
	{
		return step(
			$run,
			"$name: renew('$election')",
			sub {
				ask(session_of($run, $name), "SELECT $what('$election')");
			},
			sub { return "$l->{term}|$yielding"; });
	}
	my $progress = chance($run, 50) && !$l->{yield} ? dice($run, 4) : undef;
	my $args =
	  "'$election', $l->{term}" . (defined $progress ? ", $progress" : '');
	return step(
		$run,
		"$name: renew($args)",
		sub { any($run, "SELECT $what($args)") },
		sub {
			$_[0]{elections}{$election}{candidates}{$name}{progress} = $progress
			  if defined $progress;
			return "$l->{term}|$yielding";
		});
}

sub alter
{
	my ($run, $election, $setting, $value, $mean) = @_;

	return step(
		$run,
		"alter_election('$election', $setting => $value)",
		sub {
			ask($run->{control},
				"SELECT leader_election.alter_election('$election', "
				  . "$setting => $value)");
		},
		$mean // sub { return ''; });
}

sub alter_quorum
{
	my ($run, $election, $l) = @_;
	my $quorum = pick($run, 1, 1, 1, 2, 2, 3);

	return alter($run, $election, 'quorum', $quorum,
		sub { $_[0]{elections}{$election}{quorum} = $quorum; return ''; });
}

# To another one, and soon back
sub alter_strategy
{
	my ($run, $election, $l) = @_;
	my $strategy = $run->{name};

	if ($l->{strategy} eq $strategy)
	{
		return 0 unless chance($run, 40);
		$strategy = pick($run, @STRATEGIES);
	}
	return alter($run, $election, 'strategy', "'$strategy'",
		sub { $_[0]{elections}{$election}{strategy} = $strategy; return ''; });
}

sub alter_delay
{
	my ($run, $election, $l) = @_;

	my $delay = pick($run, 0, 30);

	return alter($run, $election, 'takeover_delay', "'$delay ms'",
		sub { $_[0]{elections}{$election}{delay} = $delay; return ''; });
}

# What has to fail, and to change nothing
sub misuse
{
	my ($run, $election, $l) = @_;
	my $stranger = pick($run, grep { !$l->{candidates}{$_} } @{ $run->{candidates} });
	my $name = pick($run, sort keys %{ $l->{candidates} });
	my @ways;

	if (defined $l->{leader})
	{
		my $leads_by = $l->{candidates}{ $l->{leader} }{kind};
		my $last = $l->{term} - 1;

		push @ways,
		  [ "SELECT leader_election.request_yield('$election', '$stranger')", 'LE005' ]
		  if $stranger;
		push @ways,
		  [ "SELECT leader_election.request_yield('$election', '$l->{leader}')", '22023' ];
		push @ways,
		  [ "SELECT leader_election.release('$election', $l->{term})", '22023' ]
		  if $leads_by eq 'session';
		push @ways,
		  [ "SELECT leader_election.release('$election', $last)", 'f' ],
		  [ "SELECT term FROM leader_election.renew('$election', $last)", '' ];
		push @ways,
		  [
			"SELECT leader_election.transfer('$election', $l->{term}, '$l->{leader}')",
			'22023'
		  ],
		  [
			"SELECT leader_election.transfer('$election', $l->{term}, 'nobody')",
			'LE005'
		  ]
		  if $leads_by eq 'detached';
	}
	else
	{
		push @ways,
		  [ "SELECT leader_election.release('$election', $l->{term})", 'f' ];
	}
	if ($name)
	{
		push @ways,
		  $l->{candidates}{$name}{kind} eq 'session' ?
		  [
			"SELECT term FROM leader_election.acquire('$election', '$name')",
			'LE004'
		  ] :
		  [ "SELECT leader_election.join('$election', '$name')", 'LE004' ];
	}
	my ($sql, $answer) = @{ pick($run, @ways) };
	return step($run, $sql, sub { any($run, $sql) }, sub { return $answer; });
}

# -- Steps in which something runs out

# Does these with a short lease, and some more with a long one again, each after
# the one before has had its effect, as long as the short lease is sure not to
# run out.  False: it took too long, or failed.
sub in_time
{
	my ($run, $election, $calls, @more) = @_;
	my $until = time + $IN_TIME;

	foreach my $call (
		sub { alter($run, $election, 'lease_duration', "'$SHORT ms'") },
		@$calls,
		sub { alter($run, $election, 'lease_duration', "'$LONG ms'") },
		@more)
	{
		$call->($run->{states}[0]{elections}{$election});
		next if settled($run, $until - time) && time < $until;
		return 0 if $run->{failed};
		push @{ $run->{log} }, 'too late';
		$late++;
		$run->{generation}++;
		begin($run);
		return 0;
	}
	return 1;
}

# Time passes.
sub passes
{
	my ($run, $what, $mean) = @_;

	return step($run, $what, sub { '' }, sub { $mean->($_[0]); return ''; });
}

# A detached follower calls no more; perhaps the seat is kept for it.
sub vanish
{
	my ($run, $election, $l) = @_;
	my $name;

	return 0 unless defined $l->{leader};
	$name = pick($run, followers($l, 'detached')) or return 0;
	return !$run->{failed}
	  unless in_time(
		$run,
		$election,
		[ sub { call($run, $election, $name, 'detached') } ],
		chance($run, 40) ?
		  sub { transfer_to($run, $election, $_[0], $name) } :
		  ());
	return passes($run, "$name is silent",
		sub { withdraw($_[0], $election, $name) });
}

# The seat is kept for a detached candidate, which does not come.
sub lapse
{
	my ($run, $election, $l) = @_;
	my ($name, $to);

	return 0 unless defined $l->{leader} && has_quorum($l);
	$name = pick($run, followers($l, 'session')) or return 0;
	$to = pick($run, grep { $_ ne $name } followers($l, 'detached'))
	  or return 0;
	return !$run->{failed}
	  unless in_time(
		$run,
		$election,
		[
			sub { transfer_to($run, $election, $_[0], $name) },
			sub { transfer_to($run, $election, $_[0], $to) }
		]);
	return passes(
		$run,
		"$to does not come",
		sub {
			my ($s) = @_;

			delete $s->{elections}{$election}{reserved};
			sit_out($s, $election, $to);
		});
}

# A leader does not renew its lease, or may not, since it was asked to yield.
sub expire
{
	my ($run, $election, $l) = @_;
	my ($name, $kind, $asked, $to);

	return 0 unless defined $l->{leader} && has_quorum($l);
	$name = pick($run, followers($l)) or return 0;
	$kind = $l->{candidates}{$name}{kind};
	$asked = $l->{candidates}{$name}{auto_renew} || chance($run, 50);
	$to = pick($run, undef, grep { $_ ne $name } sort keys %{ $l->{candidates} });
	return !$run->{failed}
	  unless in_time(
		$run,
		$election,
		[
			sub { transfer_to($run, $election, $_[0], $name) },
			$kind eq 'detached' ?
			  sub { call($run, $election, $name, $kind) } :
			  (),
			sub {
				ask_to_yield($run, $election, $_[0], $to)
				  if $asked && !$_[0]{yield};
			}
		],

		# It goes on standing.
		$kind eq 'detached' ?
		  sub { call($run, $election, $name, $kind) } :
		  ());
	return passes(
		$run,
		"$name lets its lease run out",
		sub {
			my $n = $_[0]{elections}{$election};

			$n->{over} = $n->{yield} ? 'yielded' : 'expired';
		});
}

my @STEPS = (
	[ 20, \&join_new, 'join_new' ],
	[ 8, \&call_again, 'call_again' ],
	[ 30, \&come, 'come' ],
	[ 15, \&resign, 'resign' ],
	[ 6, \&transfer, 'transfer' ],
	[ 6, \&leave, 'leave' ],
	[ 2, \&leave_all, 'leave_all' ],
	[ 8, \&die_at_once, 'die_at_once' ],
	[ 6, \&request_yield, 'request_yield' ],
	[ 5, \&renew, 'renew' ],
	[ 5, \&alter_quorum, 'alter_quorum' ],
	[ 4, \&alter_strategy, 'alter_strategy' ],
	[ 2, \&alter_delay, 'alter_delay' ],
	[ 4, \&misuse, 'misuse' ],
	[ 3, \&vanish, 'vanish' ],
	[ 3, \&lapse, 'lapse' ],
	[ 5, \&expire, 'expire' ]);

# Some step for which there is occasion
sub any_step
{
	my ($run) = @_;
	my $sum = 0;

	$sum += $_->[0] foreach @STEPS;
	for (;;)
	{
		my $s = $run->{states}[0];
		my $election = pick($run, sort keys %{ $s->{elections} });
		my $l = $s->{elections}{$election};
		my $n = dice($run, $sum);
		my $i = 0;

		# Often somebody joins where there are few.
		$n = 0 if keys %{ $l->{candidates} } < 3 && chance($run, 30);
		$n -= $STEPS[ $i++ ][0] while $n >= $STEPS[$i][0];
		if ($STEPS[$i][1]->($run, $election, $l) || $run->{failed})
		{
			$done{ $STEPS[$i][2] }++;
			return;
		}
	}
}

# A look at a run: have it take a step, unless it waits for something.  False:
# it does still.
sub turn
{
	my ($run) = @_;

	unless ($run->{expected})
	{
		$run->{steps}--;
		push @{ $run->{log} }, '--';
		any_step($run);
		return 1;
	}
	if (arrived($run))
	{
		check_views($run);
		return 1;
	}
	complain($run, 'comes to rest elsewhere')
	  if time - $run->{since} > $SETTLED_IN;
	return 0;
}

note("MODEL_SEED=$SEED MODEL_STEPS=$STEPS");

$node = new_server(
	config => qq(
autovacuum = off
client_min_messages = warning
));

my @runs = map {
	{
		name => $STRATEGIES[$_],
		dice => $SEED + $_ * 7919,
		generation => 1,
		sessions => {},
		# spread, the last one, has more to be decided
		steps => int($STEPS / (@STRATEGIES + 1)) *
		  ($STRATEGIES[$_] eq 'spread' ? 2 : 1),
		log => []
	}
} 0 .. $#STRATEGIES;
foreach my $run (@runs)
{
	my $db = $run->{name};

	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql($db, 'CREATE EXTENSION leader_election');
	$run->{control} = session($node, name => "$db control", dbname => $db);
	$run->{pool} =
	  [ map { session($node, name => "$db pool $_", dbname => $db) } 1 .. 2 ];
	dice($run, 1) foreach 1 .. 10;
	begin($run);
}

while (my @going =
	grep { !$_->{failed} && ($_->{steps} > 0 || $_->{expected}) } @runs)
{
	sleep(0.005) unless grep { turn($_) } @going;
}
foreach my $run (@runs)
{
	ok(!$run->{failed}, "$run->{name}: as the model has it");
	$reasons{$_}++
	  foreach $run->{control}->query('SELECT reason'
		  . ' FROM leader_election.history WHERE reason IS NOT NULL');
}
note('steps: ' . join ', ', map { "$_ $done{$_}" } sort keys %done);
note('elections: ' . join ', ', map { "$_ $seen{$_}" } sort keys %seen);
note('terms that ended: ' . join ', ', map { "$_ $reasons{$_}" } sort keys %reasons);
cmp_ok($late // 0, '<=', $MAY_BE_LATE, 'what a short lease was for was done in time');

$node->stop;
done_testing();
