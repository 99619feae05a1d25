# The conformance suite: puts all clients through the same faults. See README.md.
#
#	perl conformance.pl --dir DIR [--subjects NAME,NAME] [--faults TEXT,TEXT]
#	     [--network] [--settles SECONDS]
#
# DIR has the programs that run, which starts this, has compiled, and a folder
# out. With --network the process is in a network namespace of its own.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use Checker;
use Faults;
use Getopt::Long;
use List::Util qw(min);
use Network;
use POSIX ();
use Refusals;
use Servers qw(grant port sql start_servers stop_servers $out);
use Stands;
use Subjects;

my %option;

GetOptions(\%option, 'dir=s', 'subjects=s', 'faults=s', 'network', 'settles=i') or die;

my $dir = $option{dir};
my @subjects = $option{subjects} ? split(/,/, $option{subjects}) : subjects();
my (%took, @skipped);    # milliseconds, by fault, subject and kind

$| = 1;
$SIG{TERM} = $SIG{INT} = $SIG{HUP} = sub { exit 1 };
$programs = $dir;
$SETTLES = $option{settles} // $SETTLES;
$out = "$dir/out";

sub wanted
{
	my ($name) = @_;

	return !$option{faults}
	  || grep { $name =~ /^\Q$_\E$|^\Q$_\E\b/i } split /,/, $option{faults};
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
	my ($event) = grep { $_->[0] =~ /^(?:elected|lost)$/ && $_->[2] >= $stand->{since} }
	  map { @{ $_->{events} } } processes_of($stand);

	return "$event->[0] $event->[3]" if $event;
	return 'the leader does not work'
	  if !last_event($stand->{led}, 'working', now_ns() - 5e8);
	return 'the leader does not write'
	  if !last_event($stand->{led}, 'wrote', now_ns() - 2e9);
	return;
}

sub await_outcome
{
	my ($fault, $follows, @stands) = @_;
	my $within = $fault->{within};

	if ($follows eq 'same')
	{
		pause(2 * $LEASE);
		foreach my $stand (@stands)
		{
			my $what = disturbed($stand);

			failed($stand, $fault, "changed: $what") if $what;
			$stand->{took} //= 0;
		}
		return;
	}
	await($within, sub {
		$_->{took} //= $FOLLOWS{$follows}->($_) foreach @stands;
		return !grep { !defined $_->{took} } @stands;
	});
	foreach my $stand (grep { !defined $_->{took} } @stands)
	{
		failed($stand, $fault, "not so within $within s: $follows" . describe($stand));
	}
	return;
}

sub failed
{
	my ($stand, $fault, $text) = @_;

	$stand->{failed} = 1;
	note_failure("$stand->{name}, $fault->{name}: $text");
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
# worker instead.
sub check_loss
{
	my ($fault, $stand) = @_;
	my $led = $stand->{led};

	return if $led->{subject} eq 'pg_leader' || !$fault->{reason};
	return if follows($fault, $stand) eq 'same';
	await(10, sub { last_event($led, 'lost', $stand->{since}) })
	  or return failed($stand, $fault, 'the leader does not say that it lost' . describe($stand));
	my ($lost) = grep { $_->[0] eq 'lost' && $_->[2] >= $stand->{since} } @{ $led->{events} };

	failed($stand, $fault, "lost for this reason: $lost->[3]")
	  if $lost->[3] !~ /^(?:$fault->{reason})$/;
	return;
}

# --- a fault

sub do_fault
{
	my ($fault, @all) = @_;
	my @stands = grep { await(2, sub { leader($_) }) } @all;

	foreach my $stand (@stands)
	{
		$stand->{led} = leader($stand);
		$stand->{followed} = [ followers($stand) ];
		$stand->{led}{dies} = 1 if $fault->{dies};
		$stand->{took} = $stand->{failed} = undef;
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

# Notes the best time of each stand; returns those that have to do better.
sub note_times
{
	my ($fault, @stands) = @_;

	foreach my $stand (grep { defined $_->{took} } @stands)
	{
		my $best = \$took{ $fault->{name} }{ $stand->{subject} }{ $stand->{kind} };

		$$best = min($$best // $stand->{took}, $stand->{took});
	}
	return grep { defined $_->{took} && $fault->{best} && $_->{took} > $fault->{best} } @stands;
}

sub run_fault
{
	my ($fault, @stands) = @_;
	my $start = now_ns();
	my %not = map { $_ => 1 } @{ $fault->{not} // [] };
	my @all = grep { my $kind = $_->{kind}; !$fault->{kinds} || grep { $_ eq $kind } @{ $fault->{kinds} } } @stands;

	@all = grep { !$not{ $_->{subject} } } @all;
	if (grep { $_->{subject} eq 'mixed' } @all)
	{
		@all = grep { $_->{subject} ne 'mixed' } @all if $fault->{not};
	}
	return unless @all;
	if ($fault->{cuts} && !can_cut())
	{
		push @skipped, "$fault->{name}: no network namespace can be made";
		return;
	}
	$fault->{prepare}->() if $fault->{prepare};
	my $delay = $fault->{delay} // 0;

	sql("SELECT count(leader_election.alter_election(election, takeover_delay => '$delay s'))
		FROM leader_election.election WHERE takeover_delay <> '$delay s'");
	my @again = @all;

	for my $round (1 .. 3)
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
		@again = note_times($fault, @well);
		last unless @again;
	}
	foreach my $stand (grep { $fault->{limit} } @again)
	{
		my $best = $took{ $fault->{name} }{ $stand->{subject} }{ $stand->{kind} };

		failed($stand, $fault, sprintf('took %d ms at best', $best))
		  if $best > $fault->{limit};
	}
	printf "%-24s %2d elections, %5.1f s\n", $fault->{name}, scalar @all,
	  (now_ns() - $start) / 1e9;
	return;
}

# --- a group

sub run_group
{
	my ($group) = @_;
	my @faults = grep { $_->{group} eq $group->{name} && wanted($_->{name}) } @FAULTS;
	my @stands;
	my $start = now_ns();
	my $history;

	return unless @faults;
	$group->{open}->() if $group->{open};
	foreach my $kind (@{ $group->{kinds} // [qw(session detached)] })
	{
		my @env = $group->{env}->();
		my %common = (group => $group->{name}, kind => $kind, env => {@env});

		push @stands, make_stand(%common, subject => $_, members => [ $_, $_ ])
		  foreach @subjects;
		push @stands, make_stand(%common, subject => 'mixed', members => \@subjects)
		  if $group->{mixed} && @subjects > 1;
	}
	settle($group->{name}, @stands);
	printf "== %s: %d processes, %.1f s\n", $group->{name},
	  scalar(map { processes_of($_) } @stands), (now_ns() - $start) / 1e9;
	foreach my $fault (@faults)
	{
		$history = sql(history_sql()) if $fault->{then} eq 'gone';
		run_fault($fault, @stands);
	}
	settle('the end', @stands) unless $history;
	end_stands(@stands);
	$group->{close}->() if $group->{close};
	report_violations(check(\@processes, $history // sql(history_sql()), sql(journal_sql())));
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
	my %made_up = (subject => 'fake', election => 'made-up', candidate => 'fake-3',
		events => [ map { [ @{ $lines[$_] }, $start + $_ * 1e8, '' ] } 0 .. $#lines ]);
	my $history = join '', map { "made-up\t$_->[0]\tfake-3\t$_->[1]\t$_->[2]\tleft\n" }
	  [ 7, time - 9, time - 8 ], [ 8, time - 1, 0 ], [ 9, time + 9, 0 ];

	await(10, sub {
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
	my @columns = map { my $kind = $_; map { [ $_, $kind ] } @subjects, 'mixed' } qw(session detached);

	return unless %took;
	foreach my $kind (qw(session detached))
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

my $start = now_ns();

open_network() if $option{network};
start_servers($dir, $Faults::SLOW);
check_checker();
if (wanted('refusals'))
{
	my $refused = refusals(@subjects);

	printf "%-24s %2d processes, %5.1f s\n", 'refusals', $refused,
	  (now_ns() - $start) / 1e9;
}
run_group($_) foreach @GROUPS;
stop_servers();
close_network();
print_table();
print "\nskipped: $_\n" foreach @skipped;
print "\nFAILURE $_\n" foreach @failures;
printf "\n%s: %d failures, %d s, %s\n", @failures ? 'FAILED' : 'passed',
  scalar @failures, (now_ns() - $start) / 1e9, join(' ', @subjects);
exit(@failures ? 1 : 0);
