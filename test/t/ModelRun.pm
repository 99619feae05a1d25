# The machinery of 051_model.pl: runs, which take steps on the server and compare
# it with the model. A run is a hash:
#
#	name        of the database
#	strategy    of its elections
#	has_group   there is a group, too; and group: its name
#	control     a session that looks, and is the operator
#	pool        the connections of detached candidates
#	dice, steps, log, failed
#	generation  counts new beginnings
#	sessions    by candidate
#	states      of the model
#	expected    states, if there is something to wait for; since when, what for,
#	            and when to look again

package ModelRun;

use strict;
use warnings;

use Data::Dumper;
use Exporter qw(import);
use LeaderElection;
use ModelRules;
use Storable qw(dclone);
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw($LONG $MOST_SEATS $SEED $SETTLED_IN $STEPS @STRATEGIES $node %seen any
  arrived ask begin chance check_views complain dice expect look pick
  session_of settled step wait_moved);

our @STRATEGIES = qw(race lowest bully ring zab spread);
our $SEED = $ENV{MODEL_SEED} // 1;
our $STEPS = $ENV{MODEL_STEPS} // 6500;

# The lease that counts for ever, in milliseconds
our $LONG = 3_600_000;

# How many seats groups have
our $MOST_SEATS = 4;

# How long it may take until everything has come to rest, in seconds
our $SETTLED_IN = $PostgreSQL::Test::Utils::timeout_default;

my $SHOWN_STEPS = 20;

# The server, and how often elections were in which state
our ($node, %seen);

# What picture() shows of a state, as the server has it, once no hold and no delay is in force.  %s: a pattern
# for the names of the elections.  Of history the end is enough, since every
# step looks at it.
my $LOOK = q{
SELECT concat_ws('|', s.election, s.strategy, s.state,
	coalesce(s.waiting_for, ''), coalesce(s.leader, ''),
	coalesce(s.term::text, ''), coalesce(s.kind, ''),
	leader_election.is_leader(s.election, s.term),
	coalesce(l.not_before_at <= clock_timestamp(), true),
	s.paused_at IS NOT NULL, s.candidates, s.quorum,
	(SELECT coalesce(string_agg(concat_ws(' ', c.position, c.candidate, c.kind,
			c.rank, c.progress, c.leads), ', '
			ORDER BY c.position, c.candidate COLLATE "C"), '')
		FROM leader_election.candidates c
		WHERE c.election = s.election AND c.alive),
	(SELECT count(*) FROM leader_election.history h
		WHERE h.election = s.election),
	(SELECT coalesce(string_agg(concat_ws(' ', h.term, h.leader, h.kind,
			coalesce(h.reason, 'leads'),
			CASE WHEN h.reason = 'transferred' OR h.detail IN ('paused', 'withdrawn', 'drained')
				THEN h.detail END), ', '
			ORDER BY h.term), '')
		FROM (SELECT * FROM leader_election.history h
			WHERE h.election = s.election ORDER BY h.term DESC LIMIT 3) h))
FROM leader_election.status s JOIN leader_election.lease l USING (election)
WHERE s.election LIKE '%s'
ORDER BY s.election COLLATE "C"
};

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

# What is set for elections
sub settings
{
	my ($run) = @_;

	return (
		strategy => $run->{strategy},
		quorum => 1,
		delay => 0,
		preempt_delay => 0,
		initial_delay => 0,
		all => $run->{all_paused} // 0);
}

# A group, whose seats are elections as well.  The last one loses no seat any
# more: no term of that would come into the way of the next ones.
sub begin_group
{
	my ($run, $s, $prefix) = @_;
	my $seats = $MOST_SEATS - 1;

	ask($run->{control},
		"SELECT leader_election.alter_group('$run->{group}', seats => $MOST_SEATS)")
	  if defined $run->{group};
	$run->{group} = "$prefix.g";
	wait_moved($run);
	$s->{dropped} = ask($run->{control},
		'SELECT coalesce(max(dropped_term), 0) FROM leader_election.epoch');
	ask($run->{control},
		"SELECT leader_election.create_group('$run->{group}', $seats,"
		  . " '$run->{strategy}', 1, '$LONG ms')");
	$s->{groups}{ $run->{group} } = { seats => $seats, max_per_candidate => 1 };
	make_seats($s, $run->{group}, settings($run));
	return;
}

# The worker moves the last terms of dropped seats to where all that is created begins
# above them: until then, only what has the name of a dropped one does.
sub wait_moved
{
	my ($run) = @_;

	return wait_until(
		sub { ask($run->{control}, 'SELECT count(*) FROM leader_election.dropped') eq '0' },
		'dropped seats to be moved');
}

# The names of a run's elections and candidates begin anew with each generation.
sub begin
{
	my ($run) = @_;
	my $prefix = "$run->{name}$run->{generation}";
	my $spread = $run->{strategy} eq 'spread';
	my $elections = !$spread ? 1 : $run->{has_group} ? 2 : 5;
	my $s = { dropped => 0, gone => {}, groups => {} };

	$run->{pattern} = "$prefix.%";
	$run->{candidates} = [
		map { "$prefix$_" } 'a' .. ($spread || $run->{has_group} ? 'd' : 'e')
	];
	$s->{elections} = {
		map {
			;
			"$prefix.$_" => {
				settings($run),
				moments => 0,
				term => 0,
				yield => '',
				paused => '',
				drained => {},
				deserted => 1,
				terms => 0,
				history => [],
				candidates => {}
			}
		} 1 .. $elections
	};
	foreach my $election (sort keys %{ $s->{elections} })
	{
		$run->{control}->query("SELECT leader_election.create_election('$election',"
			  . " '$run->{strategy}', '$LONG ms')");
		$s->{elections}{$election}{after} = ask($run->{control},
			"SELECT after_term FROM leader_election.lease WHERE election = '$election'");
	}
	begin_group($run, $s, $prefix) if $run->{has_group};
	$_->finish foreach values %{ $run->{sessions} };
	$run->{sessions} = {};
	$run->{states} = [$s];
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
		foreach my $busy (0 .. ($run->{has_group} ? 1 : 0))
		{
			local $ModelRules::busy = $busy;
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
	$run->{since} = $run->{next_look} = time;
	return 1;
}

# Has it?  Then that is the model's state.
sub arrived
{
	my ($run) = @_;
	my $seen = look($run);
	my $states = $run->{pictures}{$seen} or return 0;

	foreach my $election (keys %{ $states->[0]{elections} })
	{
		my $l = $states->[0]{elections}{$election};
		my $what =
		  !led($l) ? waiting_for($states->[0], $election) :
		  $l->{yield} ? "yielding to $l->{yield}" :
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

1;
