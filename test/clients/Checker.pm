# What must never happen, whatever the fault. The checker believes no client: it
# takes from a process only at which moments it worked, and in which term, and
# compares that with what other processes did, with the server's history, and
# with the journal, which the server wrote in the order of commits.
#
#	foreach my $violation (check(\@processes, $history, $journal)) {...}
#
# $history and $journal are rows as text, fields separated by tabs, as history_sql
# and journal_sql select them. A violation is [ RULE, ELECTION, TEXT ]:
#
#	overlap    two processes worked at the same time
#	order      a later interval has a smaller term
#	token      two processes worked in one term
#	owner      worked in a term that history does not give to this candidate
#	early      worked in a term before it was acquired
#	late       worked in a term after it had ended
#	events     elected and lost do not take turns, or a term was never announced
#	journal    fenced writes are not in the order of terms, or two candidates
#	           wrote in one term
#	lost       a write that was confirmed is not there
#	protocol   a line that is none
#
# Times of clients are of CLOCK_MONOTONIC, in nanoseconds, and are compared with
# each other exactly. Those of history are the wall clock's of the same host. Each
# "working" was asked for between two times, with any pause of the machine between
# them: from the later time of the first line to the earlier one of the last line
# the process has worked for certain.

package Checker;

use strict;
use warnings;

use Exporter qw(import);
use Time::HiRes qw(clock_gettime time CLOCK_MONOTONIC);

our @EXPORT = qw(check history_sql journal_sql $LEASE);

our $LEASE = 2;    # seconds, of all elections; more on a slow machine

# How much later than its end in history a term may be worked in, in seconds.
# Elsewhere than here that is 20 ms, for the two clocks are not one. A session that
# has ended, or a server that failed over, cannot tell its client sooner than a
# message arrives. Then the client's own deadline has to end the term, whatever the
# machine does: a lease from the last renewal that the server has answered, in a
# session half of it (not pg_leader's, which kills). Until then the takeover delay,
# or the grace, keeps others from leading.
my %KNOWS_LATER = ('session ended' => 1, 'failover' => 1);
my $CLOCKS = 0.02;

sub own_deadline
{
	my ($process) = @_;

	return $process->{kind} eq 'session' && $process->{subject} ne 'pg_leader'
	  ? $LEASE / 2 : $LEASE;
}

# The wall clock less the monotonic one. This process may be paused between reading
# the two: what counts is the quickest of many readings.
sub clock_offset
{
	my ($offset, $quickest);

	foreach (1 .. 1000)
	{
		my $before = clock_gettime(CLOCK_MONOTONIC);
		my $wall = time;
		my $took = clock_gettime(CLOCK_MONOTONIC) - $before;

		next if defined $quickest && $took >= $quickest;
		($offset, $quickest) = ($wall - $before, $took);
	}
	return $offset;
}

sub history_sql
{
	return q(SELECT concat_ws(E'\t', election, term, leader,
		extract(epoch FROM acquired_at), coalesce(extract(epoch FROM ended_at), 0),
		reason) FROM leader_election.history ORDER BY election, term);
}

sub journal_sql
{
	return q(SELECT concat_ws(E'\t', election, term, candidate)
		FROM conformance.journal ORDER BY election, n);
}

my @violations;

sub violation
{
	my ($rule, $process, $text) = @_;

	push @violations, [ $rule, $process->{election}, "$process->{candidate} $text" ];
	return;
}

# The intervals of a process: [ PROCESS, TERM, FIRST, LAST ], one for each term. LAST
# is before FIRST if there is but one line.
sub intervals
{
	my ($process) = @_;
	my (%interval, @list);

	foreach my $event (grep { $_->[0] eq 'working' } @{ $process->{events} })
	{
		my (undef, $term, $ns, undef, $asked) = @$event;

		push @list, $interval{$term} = [ $process, $term, $ns, $asked ]
		  unless $interval{$term};
		$interval{$term}[3] = $asked;
	}
	return @list;
}

sub check_intervals
{
	my @intervals = sort { $a->[2] <=> $b->[2] } @_;
	my %works;   # who works in a term
	my @last;    # the interval that ends last, of the two processes that end last

	foreach my $interval (@intervals)
	{
		my ($process, $term, $first, $end) = @$interval;

		$works{$term} //= $process;
		violation('token', $process, "worked in term $term of $works{$term}{candidate}")
		  if $works{$term} != $process;
		foreach my $before (@last)
		{
			my ($other, $its_term, $start, $its_end) = @$before;

			violation('overlap', $process, sprintf(
				'worked in term %s from %.3f to %.3f s, and %s in term %s from %.3f to %.3f s',
				$term, $first / 1e9, $end / 1e9, $other->{candidate}, $its_term,
				$start / 1e9, $its_end / 1e9))
			  if $other != $process && $its_end >= $first;
			violation('order', $process,
				"worked in term $term after $other->{candidate} in term $its_term")
			  if $its_term > $term;
		}
		@last = ((sort { $b->[3] <=> $a->[3] } $interval,
				grep { $_->[0] != $process } @last)[ 0, 1 ]);
		@last = grep { defined } @last;
	}
	return;
}

sub check_history
{
	my ($history, @intervals) = @_;
	my $offset = clock_offset();

	foreach my $interval (@intervals)
	{
		my ($process, $term, $first, $last) = @$interval;
		my $row = $history->{ $process->{election} }{$term};
		my ($leader, $acquired, $ended, $reason) = @{ $row // [''] };

		if ($leader ne $process->{candidate})
		{
			violation('owner', $process,
				"worked in term $term, which is "
				  . ($row ? "$leader\'s" : 'not in history'));
			next;
		}
		violation('early', $process, sprintf('worked in term %s %.3f s before it',
				$term, $acquired - $first / 1e9 - $offset))
		  if $first / 1e9 + $offset < $acquired - $CLOCKS;
		violation('late', $process,
			sprintf('worked in term %s %.3f s after its end (%s)', $term,
				$last / 1e9 + $offset - $ended, $reason))
		  if $ended > 0
		  && $last / 1e9 + $offset > $ended + $CLOCKS
		  + ($KNOWS_LATER{$reason} ? own_deadline($process) : 0);
	}
	return;
}

# A process that was killed, or that is quiet, like a worker that pg_leader has
# killed, says nothing more: its last election needs no end.
sub check_events
{
	my ($process) = @_;
	my ($leads, %announced);

	foreach my $event (@{ $process->{events} })
	{
		my ($word, $term) = @$event;

		if ($word eq 'elected')
		{
			violation('events', $process, "was elected in term $term while it led in $leads")
			  if defined $leads && !$process->{quiet};
			violation('events', $process, "was elected in term $term again")
			  if $announced{$term}++;
			$leads = $term;
		}
		elsif ($word eq 'lost')
		{
			violation('events', $process, 'lost what it did not lead')
			  unless defined $leads;
			$leads = undef;
		}
		elsif ($word eq 'odd')
		{
			violation('protocol', $process, "said: $term");
		}
	}
	foreach my $term (map { $_->[1] } intervals($process))
	{
		violation('events', $process, "worked in term $term without being elected")
		  unless $announced{$term};
	}
	violation('events', $process, "ended politely and did not lose term $leads")
	  if defined $leads
	  && !$process->{quiet}
	  && grep { $_->[0] eq 'closed' } @{ $process->{events} };
	return;
}

# $journal: rows [ TERM, CANDIDATE ]
sub check_journal
{
	my ($election, $journal, @processes) = @_;
	my (%author, %written, $newest);

	foreach my $row (@$journal)
	{
		my ($term, $candidate) = @$row;
		my $process = { election => $election, candidate => $candidate };

		violation('journal', $process, "wrote in term $term after term $newest")
		  if defined $newest && $term < $newest;
		$newest = $term if !defined $newest || $term > $newest;
		$author{$term} //= $candidate;
		violation('journal', $process, "wrote in term $term of $author{$term}")
		  if $author{$term} ne $candidate;
		$written{"$candidate $term"}++;
	}
	foreach my $process (@processes)
	{
		my %confirmed;

		$confirmed{ $_->[1] }++
		  foreach grep { $_->[0] eq 'wrote' } @{ $process->{events} };
		foreach my $term (sort keys %confirmed)
		{
			my $count = $written{"$process->{candidate} $term"} // 0;

			violation('lost', $process,
				"wrote $confirmed{$term} times in term $term, of which $count are there")
			  if $confirmed{$term} > $count;
		}
	}
	return;
}

sub check
{
	my ($processes, $history, $journal) = @_;
	my (%terms, %writes, %processes);

	@violations = ();
	foreach my $row (split /\n/, $history)
	{
		my ($election, $term, @rest) = split /\t/, $row;

		$terms{$election}{$term} = \@rest;
	}
	foreach my $row (split /\n/, $journal)
	{
		my ($election, @rest) = split /\t/, $row;

		push @{ $writes{$election} }, \@rest;
	}
	push @{ $processes{ $_->{election} } }, $_ foreach @$processes;
	foreach my $election (sort keys %processes)
	{
		my @own = @{ $processes{$election} };
		my @intervals = map { intervals($_) } @own;

		check_intervals(@intervals);
		check_history(\%terms, @intervals);
		check_events($_) foreach @own;
		check_journal($election, $writes{$election} // [], @own);
	}
	return @violations;
}

1;
