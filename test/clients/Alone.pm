# Processes that stand alone, each in an election of its own, and that nothing else
# than what is in its script is done to. Many at a time: a script is a list of steps,
#
#	[ WHAT, CODE ]    CODE returns true when it is so, false as long as it is not yet,
#	                  and dies, with a text, if it cannot be any more
#
# and CODE is given the case: its process, and what the steps before have kept in it.
# A case is
#
#	name       its election is NAME.SUBJECT.KIND
#	subject, kind
#	env        what is not usual
#	steps
#	before     what is done before its process is started, with the case
#	under      the command that starts the process
#	unchecked  the checker does not know it: its election is in another database, or
#	           its name is its own
#	at         FILE:LINE of what has to be so
#	again      it may be done again, where the machine was so late that a lease may
#	           have run out by that alone: up to three times
#
# A process that ends while a step is not so has failed, and is killed after its last
# step.

package Alone;

use strict;
use warnings;

use Checker qw($LEASE);
use Exporter qw(import);
use Network;
use Servers qw(sql $out);
use Stands;
use Subjects;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

our @EXPORT = qw(after ends event has_said_state leads_in run_alone says_state sends stays);

# Java needs a second of a processor before it says anything.
my $AT_A_TIME = 24;
my $ROUNDS = 3;

# --- steps

# An event with these words, since the script has begun or since the last one that a
# step has found; what it says fits.
sub event
{
	my ($words, $fits) = @_;

	return sub {
		my ($case) = @_;
		my $events = $case->{process}{events};

		for my $i ($case->{found} // 0 .. $#$events)
		{
			my $event = $events->[$i];

			next unless $event->[0] =~ /^(?:$words)$/;
			die "says: $event->[0] $event->[3]\n" if $fits && $event->[3] !~ /^(?:$fits)/s;
			$case->{found} = $i + 1;
			$case->{event} = $event;
			return 1;
		}
		return ended($case->{process}) ? die "has ended\n" : 0;
	};
}

# Whatever states there are before
sub says_state
{
	my ($fits) = @_;

	return sub {
		my ($case) = @_;
		my $state = last_event($case->{process}, 'state') // return 0;

		return $state->[3] =~ /^(?:$fits)/;
	};
}

# At any time: a process that goes on may say other states before it is looked at.
sub has_said_state
{
	my ($fits) = @_;

	return sub {
		my ($case) = @_;

		return scalar grep { $_->[0] eq 'state' && $_->[3] =~ /^(?:$fits)/ }
		  @{ $case->{process}{events} };
	};
}

sub leads_in
{
	my ($case) = @_;

	return $case->{process}{leads};
}

# So many leases after the last step
sub after
{
	my ($leases) = @_;

	return sub { return (now_ns() - $_[0]{stepped}) / 1e9 > $leases * $LEASE; };
}

# For so many leases, since the last step or the last event that a step has found, none
# of these words comes: but where the process itself is late. What comes later is no
# matter, however late this is looked at.
sub stays
{
	my ($leases, $words, $since_event) = @_;

	return sub {
		my ($case) = @_;
		my $process = $case->{process};
		my $since = $since_event ? $case->{event}[2] + 1 : $case->{stepped};
		my $until = $since + $leases * $LEASE * 1e9;
		my ($event) = grep { $_->[0] =~ /^(?:$words)$/ && $_->[2] >= $since && $_->[2] < $until }
		  @{ $process->{events} };

		die "says: $event->[0] $event->[3]\n" if $event;
		die "has ended\n" if ended($process);
		return now_ns() > $until;
	};
}

sub sends
{
	my ($what) = @_;

	return sub {
		my ($case) = @_;

		$what =~ /^[A-Z]+$/ ? send_signal($case->{process}, $what)
		  : send_line($case->{process}, $what);
		return 1;
	};
}

# With this exit status
sub ends
{
	my ($status) = @_;

	return sub {
		my ($case) = @_;
		my $process = $case->{process};

		return 0 unless ended($process);
		die "exit status $process->{exit}\n" if $process->{exit} !~ /^(?:$status)$/;
		return 1;
	};
}

# --- the cases

sub start_case
{
	my ($case, $n) = @_;

	$case->{n} = $n;
	$case->{script} //= [ @{ $case->{steps} } ];
	$case->{steps} = [ @{ $case->{script} } ];
	$case->{failure} = $case->{found} = undef;
	$case->{started} = now_ns();
	$case->{candidate} = "$case->{subject}-$n";
	$case->{logged} = -s "$out/$case->{election}.err" // 0;
	$case->{before}->($case) if $case->{before};
	$case->{process} = start_subject(
		subject => $case->{subject}, kind => $case->{kind}, election => $case->{election},
		candidate => $case->{candidate}, n => $n, under => $case->{under},
		log => "$out/$case->{election}.err", env => environment($n, %{ $case->{env} }));
	$case->{stepped} = now_ns();
	return;
}

# Takes all steps that can be taken. False if there are more.
sub step
{
	my ($case) = @_;

	while (my $step = $case->{steps}[0])
	{
		my $so = eval { $step->[1]->($case) };
		my $why = $@ =~ s/\n\z//r;

		if (!$why && !$so && ended($case->{process}))
		{
			# What it said last was read just now.
			$so = eval { $step->[1]->($case) };
			$why = $so ? '' : 'has ended';
		}
		if (!$why && !$so && (now_ns() - $case->{stepped}) / 1e9 > $TIMEOUT)
		{
			$why = "not so within $TIMEOUT s";
		}
		if ($why)
		{
			$case->{failure} = "$case->{election}, $step->[0] ($case->{at}): $why"
			  . describe({ members => [ { process => $case->{process} } ] });
			return 1;
		}
		return 0 unless $so;
		shift @{ $case->{steps} };
		$case->{stepped} = now_ns();
	}
	return 1;
}

# May a lease have run out because of the machine alone? A renewal takes no more than four
# steps, and is due when a third of the lease is over. For that it may have to connect, as
# the bare driver has, beside it in its process, for its work.
sub may_be_the_machine
{
	my ($case) = @_;

	return 4 * was_late($case->{started}) > $LEASE / 3
	  || stood_still($case->{process}) > $LEASE / 3;
}

# A failure, unless it is to be done again. That a lease has run out, each time, cannot be
# told from the machine's lateness.
sub is_to_be_done_again
{
	my ($case) = @_;

	return 0 unless $case->{failure};
	if ($case->{again} && may_be_the_machine($case))
	{
		return 1 if ++$case->{rounds} < $ROUNDS;
		if ($case->{failure} =~ /: says: lost expired/)
		{
			push @skipped, "$ROUNDS times, on a machine that is too late to tell whether that is "
			  . "its own fault: $case->{failure}";
			return 0;
		}
	}
	note_failure($case->{failure});
	return 0;
}

# All of them, some at a time
sub run_alone
{
	my (@cases) = @_;
	my (@running, %free);
	my $start = now_ns();

	return unless @cases;
	$_->{election} = "$_->{name}.$_->{subject}.$_->{kind}" =~ s/[ :,]+/-/gr foreach @cases;
	sql(join ' ', map { "SELECT leader_election.create_election('$_->{election}',
		lease_duration => '$LEASE s');" } @cases);
	%free = map { $_ => 1 } 1 .. $AT_A_TIME;
	while (@cases || @running)
	{
		while (@cases && @running < $AT_A_TIME)
		{
			my $case = shift @cases;
			my ($n) = sort { $a <=> $b } keys %free;

			delete $free{$n};
			start_case($case, $n);
			push @running, $case;
		}
		hear(0.02);
		my @done = grep { step($_) } @running;

		foreach my $case (@done)
		{
			send_signal($case->{process}, 'KILL') unless ended($case->{process});
			await(sub { ended($case->{process}) });
			$free{ $case->{n} } = 1;
			@running = grep { $_ != $case } @running;
			push @processes, $case->{process} unless $case->{unchecked};
			push @cases, $case if is_to_be_done_again($case);
		}
	}
	return;
}

1;
