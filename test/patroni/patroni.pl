# Runs docs/patroni.md, and before its end, faults. See README.md.
#
#	perl patroni.pl --dir DIR --seconds N --seed N [--logs DIR]
#
# DIR is a folder of its own, with the program "worker" of test/clients.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../clients";

use Checker;
use Getopt::Long;
use List::Util qw(max shuffle sum0);
use Nodes;
use Paper;
use Servers qw($JOURNAL);
use Split;
use Subjects;

my %option = (seconds => 600, seed => 1);

GetOptions(\%option, 'dir=s', 'seconds=i', 'seed=i') or die;

$LEASE = 5;           # seconds
my $SETTLES = 90;     # until all is well again
my $folder = "$option{dir}/two-nodes";
my $failures = 0;
my $runner = $$;

$| = 1;
$programs = $option{dir};
srand $option{seed};
$SIG{TERM} = $SIG{INT} = $SIG{HUP} = sub { exit 1 };

# Everything that was started in the background has our process group.
END
{
	if ($$ == $runner)
	{
		local $?;

		local $SIG{TERM} = 'IGNORE';
		kill 'CONT', -getpgrp;
		kill 'TERM', -getpgrp;
	}
}

sub failed
{
	my ($text) = @_;

	$failures++;
	print "FAILURE $text\n";
	return;
}

# --- who stands

# Three elections, each with two processes, for the kinds of candidates; in each
# phase, others.
my @KINDS = ([ 'session', 'python' ], [ 'detached', 'python' ], [ 'detached', 'pg_leader' ]);

my (@stands, @processes, %runs, $starts);

# Starts a candidate. The second ones know the nodes in the other order, so that
# after a split each side has candidates.
sub start_candidate
{
	my ($stand, $n) = @_;
	my $port = ports_of_paper();
	my @ports = @$port{ $n == 1 ? qw(5433 5434) : qw(5434 5433) };
	my %where = (HOST => '127.0.0.1,127.0.0.1', PORT => join(',', @ports));

	$runs{"$stand->{election} $n"} = start_subject(%$stand, n => $n,
		candidate => "$stand->{election}-$n-" . ++$starts,
		log => "$option{dir}/candidates.log",
		env => {
			PGUSER => 'app', PGDATABASE => 'app', PGCONNECT_TIMEOUT => 2,
			PGTARGETSESSIONATTRS => 'read-write', CALL_TIMEOUT => 1, SLICE => 1, INTERVAL => 0.2,
			map { ("PG$_" => $where{$_}, "WORK$_" => $where{$_}) } keys %where });
	push @processes, $runs{"$stand->{election} $n"};
	return;
}

sub leader_of
{
	my ($election) = @_;

	return (grep { leads($_) && last_event($_, 'working', now_ns() - 5e8) }
		map { $runs{"$election $_"} } 1, 2)[0];
}

sub settled
{
	my ($synchronous) = @_;

	return 0 unless well($synchronous);
	pause(0.3);    # to hear what was said while the nodes were asked
	foreach my $stand (@stands)
	{
		my $leader = leader_of($stand->{election}) // return 0;

		return 0 unless last_event($leader, 'wrote', now_ns() - 2e9);
	}
	return 1;
}

# --- faults, each of which says what it has done

sub wait_for
{
	my ($seconds, $what, $code) = @_;

	await($code, $seconds) // failed("not within $seconds s: $what");
	return;
}

sub wait_for_other
{
	my ($n) = @_;

	wait_for(60, "node" . (3 - $n) . " is the primary",
		sub { (primary() // 0) == 3 - $n });
	return;
}

my %FAULT = (
	switchover => sub { switch_over(primary()) },
	'primary killed' => sub {
		my $n = primary();

		kill_node($n);
		wait_for_other($n);
		start_node($n);
	},
	'server killed, not Patroni' => sub { kill_server(primary()) },
	'standby killed' => sub {
		my $n = 3 - primary();

		kill_node($n);
		pause(rand 30);
		start_node($n);
	},
	'primary frozen' => sub {
		my $n = primary();

		freeze($n);
		wait_for_other($n);
		pause(rand 8);
		thaw_server($n);
		thaw_patroni($n);
	},

	# Patroni is slower to wake up: the old side lives on for so long.
	'primary frozen, Patroni longer' => sub {
		my $n = primary();

		freeze($n);
		wait_for_other($n);
		pause(rand 3);
		thaw_server($n);
		pause(10);
		thaw_patroni($n);
	},
	'leaders killed' => sub {
		foreach my $stand (@stands)
		{
			my $leader = leader_of($stand->{election}) // next;

			send_signal($leader, 'KILL');
			await(sub { ended($leader) }, 5);
			start_candidate($stand, $leader->{n});
		}
	},
	'leaders stopped' => sub {
		my @leaders = grep { defined } map { leader_of($_->{election}) } @stands;

		send_signal($_, 'STOP') foreach @leaders;
		pause(8);
		send_signal($_, 'CONT') foreach @leaders;
	});

# --- what is found

sub run_phase
{
	my ($name, $synchronous, $delay, $seconds) = @_;
	my $prefix = $name =~ s/\W+/_/gr;
	my $end = now_ns() + $seconds * 1e9;
	my (%did, %found, @queue);

	(@processes, %runs) = ();
	@stands = map { { kind => $_->[0], subject => $_->[1], election => "$prefix.$_->[1].$_->[0]" } } @KINDS;
	query(primary(), map {
		"SELECT leader_election.create_election('$_->{election}',
			lease_duration => '$LEASE s', takeover_delay => '$delay s')" } @stands)
	  // return failed('no elections');
	foreach my $stand (@stands)
	{
		start_candidate($stand, $_) foreach 1, 2;
	}
	print "== $name\n";
	wait_for($SETTLES, "all well: $name", sub { settled($synchronous) });
	while (now_ns() < $end && !$failures)
	{
		# Without synchronous_mode, what splits the cluster comes first.
		@queue = sort { !$synchronous && ($b =~ /frozen/) - ($a =~ /frozen/) }
		  shuffle(sort keys %FAULT)
		  unless @queue;
		my $fault = shift @queue;
		my $start = now_ns();

		$FAULT{$fault}->();
		wait_for($SETTLES + 2 * $delay, "all well after: $fault", sub { settled($synchronous) });
		$did{$fault}++;
		printf "  %-32s %5.1f s\n", $fault, (now_ns() - $start) / 1e9;
	}
	stop_subject($_, 10) foreach values %runs;
	wait_for(60, 'a primary', sub { primary() });
	my ($history, $journal) = map { query(primary(), $_) } history_sql(), journal_sql();

	foreach my $violation (check(\@processes, $history, $journal))
	{
		my ($rule, $election, $text) = @$violation;

		push @{ $found{$rule} }, $text;
		print "    $rule, $election: $text\n" if !$synchronous && $OF_A_SPLIT{$rule};
		failed("$name: violation of $rule, $election: $text")
		  if $synchronous || !$OF_A_SPLIT{$rule};
	}
	my @overlaps = overlaps(@{ $found{overlap} // [] });
	my %terms = map { ("$_->[0] $_->[1]" => 1) }
	  map { my $p = $_; map { [ $p->{election}, $_->[1] ] } grep { $_->[0] eq 'elected' } @{ $p->{events} } } @processes;
	printf "  %d faults, %d terms, %d fenced writes, %d overlaps (longest %.1f s), lost writes of %d terms\n",
	  sum0(values %did), scalar keys %terms, scalar(grep { /^\Q$prefix.\E/ } split /\n/, $journal), scalar @overlaps,
	  max(0, @overlaps), scalar @{ $found{lost} // [] };
	return;
}

my $paper = "$FindBin::RealBin/../../docs/patroni.md";

open_paper($paper, $option{dir});
my $wrong = run_blocks_until('Uninstall');
failed($wrong) if $wrong;
if (!$failures && $option{seconds} > 0)
{
	my $port = ports_of_paper();

	nodes_in($folder, 'app', {
		1 => { host => '127.0.0.1', sql => $port->{5433}, rest => $port->{8008} },
		2 => { host => '127.0.0.1', sql => $port->{5434}, rest => $port->{8009} } });
	query(primary(), $JOURNAL) // failed('no journal');
	run_phase('synchronous_mode', 1, 0, $option{seconds} / 2);
	synchronous(0) unless $failures;
	run_phase('asynchronous', 0, 0, $option{seconds} / 4) unless $failures;
	run_phase('asynchronous, takeover_delay 15 s', 0, 15, $option{seconds} / 4) unless $failures;
}
if (!$wrong)
{
	$wrong = run_blocks_until(undef);
	failed($wrong) if $wrong;
}
printf "%s: %d failures, seed %d\n", $failures ? 'FAILED' : 'passed', $failures, $option{seed};
exit($failures ? 1 : 0);
