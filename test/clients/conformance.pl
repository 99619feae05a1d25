# The conformance suite: puts all clients through the same faults. See README.md.
#
#	perl conformance.pl --dir DIR [--subjects NAME,NAME] [--edition NAME]
#	     [--faults TEXT,TEXT | --deployments | --all] [--network]
#
# DIR has the programs that run, which starts this, has compiled, and a folder
# out. With --network the process is in a network namespace of its own.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use Alone;
use Checker;
use Deployments;
use Faults;
use Getopt::Long;
use Handlers;
use List::Util qw(max min);
use Network;
use POSIX ();
use Refusals;
use Servers qw(grant is_portable port sql start_servers stop_servers use_edition $out);
use Stands;
use Starts;
use Subjects;

my %option;

GetOptions(\%option, 'dir=s', 'subjects=s', 'edition=s', 'faults=s', 'deployments', 'all',
	'network') or die;

my $dir = $option{dir};
my @subjects = $option{subjects} ? split(/,/, $option{subjects}) : subjects();
my %took;    # milliseconds, the best, by fault, subject and kind
my %own;                 # the same, without what the machine was late meanwhile
my %bare;                # all of them, by fault and subject: what machine and driver take

# What the machine's own lateness allows. A step is what a process does between two
# waits: no fault is followed by more steps, one after the other, than the first
# number; a renewal, over a new connection, or a handover takes the second. A
# handover and the notice of a lost connection are compared with those of the same
# driver without a client: so many times as long. (Without a client some drivers hand
# over in less than a millisecond, and a handover of a lease is two commits and a
# notification: so it is compared with the median of all drivers if that is more.)
my $STEPS = 20;
my $FEW_STEPS = 4;
my %HANDOVERS = (session => 10, detached => 10);

# So often campaign() looks in the portable edition, in ms
my $POLL = 50;
my $NOTICES = 5;
my $ROUNDS = 3;

$| = 1;
$SIG{TERM} = $SIG{INT} = $SIG{HUP} = sub { exit 1 };
$programs = $dir;
$out = "$dir/out";
use_edition($option{edition} // 'extension');

sub wanted
{
	my ($fault) = @_;
	my $name = $fault->{name};

	return $option{all} || !$option{deployments} == !$fault->{deployment} unless $option{faults};
	return grep { $name =~ /^\Q$_\E$|^\Q$_\E\b/i } split /,/, $option{faults};
}

# --- what has to follow a fault

# How long it took until one of these was elected
sub takeover
{
	my ($stand, @of) = @_;
	my $elected = elected_since($stand->{since}, @of) // return;

	return ($elected->[2] - $stand->{since}) / 1e6;
}

# Each returns what a stand's outcome is so far: undef, or the milliseconds that
# the takeover took; 0 if there was none.
my %FOLLOWS = (
	other => sub {
		my ($stand) = @_;

		return takeover($stand, grep { $_ != $stand->{led} } processes_of($stand));
	},
	again => sub { return takeover($_[0], $_[0]{led}) },
	any => sub {
		my ($stand) = @_;
		my $leader = leader($stand) // return;
		my $elected = elected_since($stand->{since}, processes_of($stand));

		return unless last_event($leader, 'working', $stand->{done});
		hear(0.1);
		return unless
		  (eval { sql("SELECT leader_election.leader('$stand->{name}')") } // '')
		  eq $leader->{candidate};
		return $elected ? ($elected->[2] - $stand->{since}) / 1e6 : 0;
	},
	gone => sub {
		my ($stand) = @_;

		return (grep { !ended($_) } processes_of($stand)) ? undef : 0;
	},
	nobody => sub { return 0 },
);

# Nothing changes, for two leases. Returns what did.
sub disturbed
{
	my ($stand) = @_;
	my $paused = now_ns();
	my ($event) = grep { $_->[0] =~ /^(?:elected|lost)$/ && $_->[2] >= $stand->{since} }
	  map { @{ $_->{events} } } processes_of($stand);

	return "$event->[0] $event->[3]" if $event;
	foreach my $what (qw(working wrote))
	{
		return "the leader says no more \"$what\"" . describe($stand)
		  unless await(sub { last_event($stand->{led}, $what, $paused) });
	}
	return;
}

# May a lease have run out, or a call have failed, because of the machine alone? A
# renewal is due when a third of a session's own deadline, half of the lease, is
# over.
sub may_be_the_machine
{
	my ($since) = @_;

	return $FEW_STEPS * was_late($since) > $LEASE / 3;
}

sub await_outcome
{
	my ($fault, $follows, @stands) = @_;
	my $start = now_ns();

	if ($follows eq 'same')
	{
		pause(2 * $LEASE * max(map { $_->{lease} } @stands));
		foreach my $stand (@stands)
		{
			my $what = disturbed($stand);

			if ($what && ($stand->{excused} || may_be_the_machine($stand->{since})))
			{
				$stand->{again} = $what;
			}
			elsif ($what)
			{
				failed($stand, $fault, "changed: $what");
			}
			$stand->{took} //= 0;
		}
		return;
	}
	await(sub {
		revive($_) foreach @stands;
		foreach my $stand (grep { !defined $_->{took} } @stands)
		{
			$stand->{took} = $FOLLOWS{$follows}->($stand) // next;
			check_time($fault, $stand, (now_ns() - $start) / 1e9, was_late($start));
		}
		return !grep { !defined $_->{took} } @stands;
	});
	foreach my $stand (grep { !defined $_->{took} } @stands)
	{
		failed($stand, $fault, "not so within $TIMEOUT s: $follows" . describe($stand));
	}
	return;
}

# Was that in time, but for what the machine was late?
sub check_time
{
	my ($fault, $stand, $seconds, $late) = @_;

	my $within = ($fault->{within} // return) * $LEASE / 2;

	return if $seconds <= $within + $STEPS * $late;
	failed($stand, $fault, sprintf('after %.1f s, where %d s are enough, and %.1f s for a '
		  . 'machine that is %.0f ms late', $seconds, $within, $STEPS * $late,
		$late * 1000) . describe($stand));
	return;
}

sub failed
{
	my ($stand, $fault, $text) = @_;

	$stand->{failed} = 1;
	note_failure("$stand->{name}, $fault->{name} ($fault->{at}): $text");
	return;
}

sub follows
{
	my ($fault, $stand) = @_;
	my $then = $fault->{then};

	return $then unless ref $then;
	return $then->{"$stand->{led}{subject} $stand->{kind}"}
	  // $then->{ $stand->{kind} };
}

# A driver whose leadership has ended has to say so, and why. pg_leader kills its
# worker instead. Two reasons may be true at once: the fence of the work may be the
# first to tell that the term is over, on a connection of its own; and if the
# machine was late enough, what the clock or the connection says.
sub check_loss
{
	my ($fault, $stand) = @_;
	my $led = $stand->{led};

	return if $led->{quiet} || $stand->{kind} eq 'bare';
	return if !$fault->{reason} || follows($fault, $stand) eq 'same';
	await(sub { last_event($led, 'lost', $stand->{since}) })
	  or return failed($stand, $fault, 'the leader does not say that it lost' . describe($stand));
	my ($lost) = grep { $_->[0] eq 'lost' && $_->[2] >= $stand->{since} } @{ $led->{events} };

	return if $lost->[3] =~ /^(?:$fault->{reason})$/;
	return if $lost->[3] eq 'not renewed'
	  && grep { $_->[0] eq 'refused' && $_->[3] =~ / LE00[12]$/
			&& $_->[2] >= $stand->{since} && $_->[2] <= $lost->[2] } @{ $led->{events} };
	return if $lost->[3] =~ /^(?:expired|connection lost|not renewed|unhealthy)$/
	  && may_be_the_machine($stand->{since});
	failed($stand, $fault, "lost for this reason: $lost->[3]" . describe($stand));
	return;
}

# How long a leader took to notice that its connection is lost, and not later than
# so many times what the same driver takes without a client.
sub check_notice
{
	my ($fault, @stands) = @_;
	my %notice;

	foreach my $stand (grep { follows($fault, $_) eq 'other' } @stands)
	{
		my $led = $stand->{led};
		my $word = $led->{quiet} ? 'working' : 'lost';

		await(sub { last_event($led, 'lost', $stand->{since}) }) if $word eq 'lost';
		my $event = last_event($led, $word, $stand->{since}) // next;

		$notice{ $stand->{kind} }{ $stand->{subject} } = ($event->[2] - $stand->{since}) / 1e6;
	}
	foreach my $stand (grep { $_->{kind} eq 'session' } @stands)
	{
		my ($took, $bare) = ($notice{session}{ $stand->{subject} } // 0,
			$notice{bare}{ $stand->{led}{subject} } // next);

		failed($stand, $fault, sprintf('noticed after %d ms, without a client after %d ms',
				$took, $bare) . describe($stand))
		  if $took > $NOTICES * $bare;
	}
	return;
}

# --- a fault

sub do_fault
{
	my ($fault, @all) = @_;
	my @stands = grep { my $stand = $_; await(sub { leader($stand) }) } @all;

	foreach my $stand (@stands)
	{
		$stand->{led} = leader($stand);
		$stand->{followed} = [ followers($stand) ];
		$stand->{led}{dies} = 1
		  if $fault->{dies} || $fault->{handover} && $stand->{kind} eq 'bare';
		$stand->{took} = $stand->{failed} = $stand->{again} = $stand->{excused} = undef;
	}
	foreach my $stand (@stands)
	{
		$stand->{since} = now_ns();
		$fault->{to}->($stand, $stand->{led}) if $fault->{to};
	}
	$fault->{to_all}->(@stands) if $fault->{to_all};
	$_->{done} = now_ns() foreach @stands;
	foreach my $follows (qw(other again any gone nobody same))
	{
		my @those = grep { follows($fault, $_) eq $follows } @stands;

		await_outcome($fault, $follows, @those) if @those;
	}
	# Of a moment before it, too: a handover is shorter than the meter's turn.
	$_->{late} = was_late($_->{since} - 2e9) foreach @stands;
	$fault->{heal}->(@stands) if $fault->{heal};
	if ($fault->{after})
	{
		my $healed = now_ns();

		$_->{took} = undef foreach @stands;
		$_->{since} = $healed foreach @stands;
		await_outcome($fault, $fault->{after}, @stands);
	}
	$fault->{finally}->() if $fault->{finally};
	check_loss($fault, $_) foreach @stands;
	check_notice($fault, @stands) if $fault->{notice};
	if ($fault->{check})
	{
		foreach my $stand (@stands)
		{
			failed($stand, $fault, $_)
			  foreach $fault->{check}->($stand, $stand->{led}, $stand->{since});
		}
	}
	check_error($fault, $_) foreach grep { follows($fault, $_) eq 'gone' } @stands;
	return;
}

sub check_error
{
	my ($fault, $stand) = @_;

	foreach my $process (processes_of($stand))
	{
		next unless defined $process->{exit};
		my $error = last_event($process, 'error');

		$process->{dies} = 1;
		if ($process->{subject} eq 'pg_leader')
		{
			failed($stand, $fault, "exit status $process->{exit}")
			  unless $process->{exit} =~ /^12[145]$/;
			next;
		}
		failed($stand, $fault, 'no error' . describe($stand)), next unless $error;
		failed($stand, $fault, "error $error->[3]")
		  if $error->[1] !~ /^(?:LE003|3F000|42883|42P01)$/;
		failed($stand, $fault, "exit status $process->{exit}") if $process->{exit} != 3;
	}
	return;
}

# Notes the best time of each stand, and by how much the machine may have been late
# in each of its steps.
sub note_times
{
	my ($fault, @stands) = @_;

	foreach my $stand (grep { defined $_->{took} } @stands)
	{
		my $best = \$took{ $fault->{name} }{ $stand->{subject} }{ $stand->{kind} };
		my $own = \$own{ $fault->{name} }{ $stand->{subject} }{ $stand->{kind} };
		my $its = $stand->{took} - $FEW_STEPS * 1000 * $stand->{late};

		$$best = min($$best // $stand->{took}, $stand->{took});
		$$own = min($$own // $its, $its);
		push @{ $bare{ $fault->{name} }{ $stand->{subject} } }, $stand->{took}
		  if $stand->{kind} eq 'bare';
	}
	return;
}

# How long a handover may take, and how long it took at best, without what the machine
# was late, in milliseconds
sub handover
{
	my ($fault, $stand) = @_;
	my $measured = $bare{ $fault->{name} };
	my @all = sort { $a <=> $b } map { @$_ } values %$measured;
	my @bare = $stand->{subject} eq 'mixed' ? @all
	  : (@{ $measured->{ $stand->{subject} } // [] }, @all ? $all[ @all / 2 ] : ());

	# A loop asks now and then: nothing to compare.
	@bare = () if grep { !can_do($_->{subject}, 'bare') } @{ $stand->{members} };
	return (($HANDOVERS{ $stand->{kind} } // 'inf') * (max(@bare) // 'inf')
		  + (is_portable() && $stand->{kind} eq 'session' ? $POLL : 0),
		$own{ $fault->{name} }{ $stand->{subject} }{ $stand->{kind} } // 0);
}

# Those that have to go through this once more: too slow, or disturbed although the
# machine may have done that. With their measure.
sub once_more
{
	my ($fault, @stands) = @_;
	my %slow;

	foreach my $stand (@stands)
	{
		my ($allowed, $best) = handover($fault, $stand);

		$slow{ $stand->{subject} } = 1
		  if $stand->{again} || $fault->{handover} && $best > $allowed;
	}
	return grep { $slow{ $_->{subject} } || $_->{kind} eq 'bare' && $slow{mixed} } @stands;
}

sub judge
{
	my ($fault, @stands) = @_;

	foreach my $stand (@stands)
	{
		my ($allowed, $best) = handover($fault, $stand);

		failed($stand, $fault, sprintf('took %d ms at best of %d, beyond what the machine was late; '
			  . '%d ms are allowed: %d times as long as without a client',
				$best, $ROUNDS, $allowed, $HANDOVERS{ $stand->{kind} }))
		  if $fault->{handover} && $best > $allowed;
		push @skipped, "$stand->{name}, $fault->{name}: changed $ROUNDS times, on a machine that is "
		  . "too late to tell whether that is its own fault: $stand->{again}"
		  if $stand->{again};
	}
	return;
}

sub run_fault
{
	my ($fault, @stands) = @_;
	my $start = now_ns();
	my @needs = $fault->{needs} // ();
	my @all = grep { my $kind = $_->{kind}; !$fault->{kinds} || grep { $_ eq $kind } @{ $fault->{kinds} } } @stands;

	@all = grep { my $stand = $_; !grep { !can_do($_->{subject}, @needs) } @{ $stand->{members} } } @all;
	@all = grep { $_->{kind} ne 'bare' } @all unless $fault->{handover} || $fault->{notice};
	# What is compared is done at about the same time.
	@all = sort { $a->{subject} cmp $b->{subject} || $a->{kind} cmp $b->{kind} } @all
	  if $fault->{alone};
	return unless @all;
	if ($fault->{cuts} && !can_cut())
	{
		push @skipped, "$fault->{name}: no network namespace can be made";
		return;
	}
	$fault->{prepare}->() if $fault->{prepare};
	my $delay = ($fault->{delay} // 0) * $LEASE / 2;

	sql("SELECT count(leader_election.alter_election(election, takeover_delay => '$delay s'))
		FROM leader_election.election WHERE takeover_delay <> '$delay s'");
	my @again = @all;

	for my $round (1 .. $ROUNDS)
	{
		my %again = map { $_ => 1 } @again;
		my @well = grep { $again{$_} } settle($fault->{name}, @all);

		if ($fault->{alone})
		{
			do_fault($fault, $_) foreach @well;
		}
		else
		{
			do_fault($fault, @well) if @well;
		}
		note_times($fault, @well);
		@again = once_more($fault, @well) or last;
	}
	judge($fault, @again);
	printf "%-24s %2d elections, %5.1f s; the machine was up to %.0f ms late\n",
	  $fault->{name}, scalar @all, (now_ns() - $start) / 1e9, was_late($start) * 1000;
	return;
}

# --- a group

sub in_group
{
	my ($group, $subject) = @_;

	return (!$group->{subjects} || grep { $_ eq $subject } @{ $group->{subjects} })
	  && grep { can_do($subject, $_) } kinds_of($group);
}

sub kinds_of { return @{ $_[0]{kinds} // [qw(session detached)] }; }

sub make_stands
{
	my ($group) = @_;
	my @stands;

	foreach my $kind (kinds_of($group))
	{
		my %common = (group => $group->{name}, kind => $kind, lease => $group->{lease});
		my @able = grep { can_do($_, $kind) } @subjects;

		push @stands, make_stand(%common, subject => $_, members => [ $_, $_ ],
			env => { $group->{env}->($kind, $_) })
		  foreach grep { in_group($group, $_) } @able;
		push @stands, make_stand(%common, subject => 'mixed', members => \@able,
			env => { $group->{env}->($kind, 'mixed') })
		  if $group->{mixed} && @able > 1 && $kind ne 'bare';
	}
	return @stands;
}

# With how long a lease can this machine run them all, so that no lease runs out
# because of the machine? False if with none that is worth waiting for.
sub fit_lease
{
	my ($group, @stands) = @_;

	while (1)
	{
		await(sub {
			return !grep { $_->{subject} ne 'pg_leader' && !last_event($_, 'ready') && !ended($_) }
			  map { processes_of($_) } @stands;
		});
		pause($LEASE);
		my $late = was_late(now_ns() - $LEASE * 1e9);

		return 1 if $FEW_STEPS * $late < $LEASE / 3;
		printf "the machine is %.0f ms late: too much for a lease of %d s\n", $late * 1000, $LEASE;
		return 0 if $LEASE >= 16;
		$LEASE *= 2;
		end_stands(@stands);
		remake_stand($_, { $group->{env}->(@{$_}{qw(kind subject)}) }) foreach @stands;
	}
}

sub faults_of
{
	my ($group) = @_;

	return grep { $_->{group} eq $group->{name} && wanted($_) } @FAULTS;
}

sub run_group
{
	my ($group) = @_;
	my @faults = faults_of($group);
	my $start = now_ns();
	my $history;

	return unless @faults && grep { in_group($group, $_) } @subjects;
	if ($group->{cuts} && !can_cut())
	{
		push @skipped, "$group->{name}: no network namespace can be made";
		return;
	}
	number_anew();
	$group->{open}->() if $group->{open};
	my @stands = make_stands($group);

	if (!fit_lease($group, @stands))
	{
		push @skipped, "$group->{name}: the machine is too slow";
		@faults = ();
	}
	settle($group->{name}, @stands) if @faults;
	printf "== %s: %d processes, %.1f s\n", $group->{name},
	  scalar(map { processes_of($_) } @stands), (now_ns() - $start) / 1e9;
	foreach my $fault (@faults)
	{
		$history = sql(history_sql()) if $fault->{then} eq 'gone';
		run_fault($fault, @stands);
	}
	settle('the end', @stands) unless $history || !@faults;
	end_stands(@stands);
	$group->{close}->() if $group->{close};
	check_processes($history);
	return;
}

sub check_processes
{
	my ($history) = @_;

	report_violations(check([ grep { $_->{kind} ne 'bare' } @processes ],
			$history // sql(history_sql()), sql(journal_sql())));
	write_lines();
	@processes = ();
	return;
}

sub report_violations
{
	note_failure("VIOLATION of $_->[0], $_->[1]: $_->[2]") foreach @_;
	return;
}

# All lines of all processes, for whoever has to find out what happened
sub write_lines
{
	foreach my $process (@processes)
	{
		open my $file, '>', "$out/$process->{election}.$process->{candidate}" or die $!;
		print $file map { "$_->[2] $_->[0] $_->[3]\n" } @{ $process->{events} };
		print $file "exit $process->{exit}\n" if defined $process->{exit};
		close $file;
	}
	return;
}

# The checker has to find two processes that lead without asking, and, in made-up
# lines of a third, a violation of every other rule.
sub check_checker
{
	my @fakes = map {
		start_subject(subject => 'fake', kind => 'session', election => 'fake',
			candidate => "fake-$_", n => $_, log => "$out/fake.err", env => {})
	} 1, 2;
	my $start = now_ns();
	my @lines = ([ 'working', 7 ], [ 'elected', 8 ], [ 'working', 8 ], [ 'wrote', 8 ],
		[ 'elected', 9 ], [ 'lost', 'closed' ], [ 'lost', 'closed' ], [ 'working', 9 ],
		[ 'working', 6 ], [ 'odd', 'what' ]);
	my %made_up = (subject => 'fake', kind => 'session', election => 'made-up',
		candidate => 'fake-3', events => [ map { my $ns = $start + $_ * 1e8;
				[ @{ $lines[$_] }, $ns, '', $ns ] } 0 .. $#lines ]);
	my $history = join '', map { "made-up\t$_->[0]\tfake-3\t$_->[1]\t$_->[2]\tleft\n" }
	  [ 7, time - 9, time - 8 ], [ 8, time - 1, 0 ], [ 9, time + 9, 0 ];

	await(sub {
		return !grep { $_ < 5 }
		  map { scalar grep { $_->[0] eq 'working' } @{ $_->{events} } } @fakes;
	});
	stop_subject($_, 0) foreach @fakes;
	sql("SELECT conformance.write('fake', 'fake-' || c, t)
		FROM (VALUES (1, 1), (2, 1), (2, 3), (1, 2)) v (c, t)");
	my %found = map { $_->[0] => 1 }
	  check([ @fakes, \%made_up ], $history, sql(journal_sql()));

	foreach my $rule (qw(overlap order token owner early late events journal lost protocol))
	{
		note_failure("the checker does not find a violation of $rule")
		  unless $found{$rule};
	}
	return;
}

sub print_table
{
	return unless %took;
	foreach my $kind (qw(session detached bare))
	{
		my %seen;

		printf "\n%-24s%s\n", "$kind: takeover in ms",
		  join '', map { sprintf '%10s', $_ } @subjects, 'mixed';
		foreach my $fault (grep { !$seen{ $_->{name} }++ } @FAULTS)
		{
			my @cells = map { $took{ $fault->{name} }{$_}{$kind} } @subjects, 'mixed';

			next unless grep { defined } @cells;
			printf "%-24s%s\n", $fault->{name}, join '',
			  map { sprintf '%10s', !defined ? '-' : $_ == 0 ? 'ok' : sprintf('%.0f', $_) } @cells;
		}
	}
	return;
}

# --- processes that stand alone, most of them in deployments

# What has to wait most comes first: others run meanwhile.
my @ALONE = (
	{ name => 'passing refusals', cases => \&refused_for_a_while, line => __LINE__ },
	{ name => 'refused everywhere', cases => \&refused_everywhere, line => __LINE__ },
	{ name => 'refused for good', cases => \&refused_for_good, line => __LINE__ },
	{ name => 'handlers', cases => \&handlers, line => __LINE__, deployment => 0 },
	{ name => 'begins and ends', cases => \&begins_and_ends, line => __LINE__ },
	{ name => 'default names', cases => \&default_names, line => __LINE__ },
	{ name => 'forks', cases => \&forks, line => __LINE__ },
	{ name => 'behind a pooler', run => \&session_behind_a_pooler, line => __LINE__ },
);

sub run_those_alone
{
	my @wanted = grep { wanted({ deployment => 1, %$_ }) } @ALONE;
	my @able = grep { can_do($_, 'session') } @subjects;
	my $start = now_ns();

	return unless @wanted && @able;
	number_anew();
	run_alone(map { $_->{cases}->("conformance.pl:$_->{line}", @able) }
		  grep { $_->{cases} } @wanted);
	$_->{run}->("conformance.pl:$_->{line}", @able) foreach grep { $_->{run} } @wanted;
	printf "== %s: %.1f s\n", join(', ', map { $_->{name} } @wanted), (now_ns() - $start) / 1e9;
	check_processes();
	return;
}

my $start = now_ns();

open_network() if $option{network};
start_servers($dir, $Faults::SLOW, grep { $_->{lags} && faults_of($_) } @GROUPS);
start_meter({ PGHOST => "$WORK_HOST,$WORK_HOST", PGPORT => port('both') }, "$out/meter.err");
check_checker();
run_those_alone();
run_group($_) foreach @GROUPS;
stop_servers();
close_network();
print_table();
print "\nFAILURE $_\n" foreach @failures;
printf "\n%s: %d failures, %d skipped, %d s, %s\n",
  @failures ? 'FAILED' : @skipped ? 'passed, but not all was tried' : 'passed',
  scalar @failures, scalar @skipped, (now_ns() - $start) / 1e9, join(' ', @subjects);
print "skipped: $_\n" foreach @skipped;
exit(@failures ? 1 : 0);
