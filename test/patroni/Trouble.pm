# What is done to three nodes, at random by a seed: each fault begins, and is over some
# time later, so that they overlap. A switchover each minute besides.
#
#	trouble($seconds, 14); so long; a fault begins after 2 to 14 s, again and again. Each
#	                       is a line of the events, and printed
#	heal();                all that is under way is over
#	%done                  { fault => how often }

package Trouble;

use strict;
use warnings;

use Exporter qw(import);
use Hosts;
use List::Util qw(shuffle sum0);
use Members;
use Nodes;
use Subjects;
use Three;

our @EXPORT = qw(heal trouble %done);

our %done;

my $TTL = 20;    # seconds: see Three.pm
my (@later, %busy);
my $started = now_ns();

sub say_event
{
	my ($text) = @_;

	note('fault', $text);
	printf "  %6.1f s  %s\n", (now_ns() - $started) / 1e9, $text;
	return;
}

sub between { my ($least, $most) = @_; return $least + rand($most - $least); }

# In so many seconds, or with heal(), what a fault has done is over.
sub later
{
	my ($seconds, $text, $code) = @_;

	push @later, { at => now_ns() + $seconds * 1e9, code => sub { say_event($text); $code->() } };
	return;
}

# Nobody demotes a primary whose Patroni is gone or asleep, when another node has been
# promoted, and a standby without its Patroni goes on confirming that primary's commits. Only a
# watchdog helps against both at once: so one such node at a time.
sub may_be_with
{
	my ($state) = @_;
	my %there = map { $_ => 1 } values %busy;

	return 0 if $there{'without Patroni'} && $state =~ /^(?:without Patroni|frozen)$/;
	return 0 if $there{frozen} && $state eq 'without Patroni';
	return 1;
}

# A node that nothing is done to, most often the primary; two are done to at most.
sub choose_node
{
	my ($state) = @_;
	my $primary = primary();

	return if (grep { $busy{$_} } @VOTERS) >= 2 || !may_be_with($state);
	return $primary if $primary && !$busy{$primary} && rand() < 0.6;
	return (shuffle(grep { !$busy{$_} } @NODES))[0];
}

# Takes a node for a fault that lasts so long. The state is what its server is meanwhile.
sub on_node
{
	my ($what, $state, $seconds, $do, $undo) = @_;
	my $n = choose_node($state) // return;

	$busy{$n} = $state;
	say_event(sprintf '%s: node%d, %.0f s', $what, $n, $seconds);
	$do->($n);
	later($seconds, "over: $what: node$n", sub { $undo->($n); delete $busy{$n} });
	return 1;
}

sub everything { my ($n) = @_; return processes_on("node$n"); }

sub of_patroni
{
	my ($n) = @_;
	my $pid = pid_of('patroni', $n);

	return ($pid, grep { $_ } split ' ', `pgrep -P $pid`);
}

sub signal_twice
{
	my ($signal, $processes, $n) = @_;

	kill $signal, $processes->($n) foreach 1, 2;    # their children, too, that were made meanwhile
	return;
}

sub stop_part
{
	my ($what, $state, $seconds, $processes) = @_;

	return on_node($what, $state, $seconds, sub { signal_twice('STOP', $processes, @_) },
		sub { kill 'CONT', reverse $processes->(@_) });
}

# Killed, and started again when it is over
sub kill_part
{
	my ($what, $state, $seconds, $program, $processes) = @_;
	my @programs = ref $program ? @$program : $program;

	return on_node($what, $state, $seconds,
		sub { my ($n) = @_; $is_down{"$_ $n"} = 1 foreach @programs; signal_twice('KILL', $processes, $n) },
		sub { my ($n) = @_; delete $is_down{"$_ $n"} foreach @programs; look_after() });
}

sub cut_ways
{
	my ($what, $seconds, @ways) = @_;

	say_event(sprintf '%s, %.0f s', $what, $seconds);
	cut(@$_) foreach @ways;
	later($seconds, "over: $what", sub { mend(@$_) foreach @ways });
	return 1;
}

# A primary that no standby confirms to any more goes on by itself as soon as somebody
# cancels its waits: a lease must not count on them. COMMIT is left alone: programs would
# take for confirmed what is not.
sub cut_waits_short
{
	my ($n, $seconds) = @_;
	my $host = address_of("node$n");
	my $pid = start_program('cancelled', 'sh', '-c', qq(while sleep 0.2; do psql -XqAt -d "host=$host user=postgres dbname=postgres connect_timeout=2" -c "\$0"; done),
		q(SELECT pg_cancel_backend(pid), backend_type, query FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query !~* '^\s*commit'));

	say_event(sprintf 'waits cut short: node%d, %.0f s', $n, $seconds);
	later($seconds, "over: waits cut short: node$n", sub { kill 'KILL', $pid });
	return 1;
}

sub both_ways { my ($a, @others) = @_; return map { ([ $a, $_ ], [ $_, $a ]) } @others; }

sub nodes { return map { "node$_" } @_; }

# Name, how often, what is done: true if it was
my @FAULTS = (
	[ 'server killed', 2, sub {
		return on_node('server killed', 'down', 1, sub { my ($pid) = server_pids(@_); kill 'KILL', $pid if $pid }, sub { });
	} ],
	[ 'a process of the server killed', 1, sub {
		return on_node('a process of the server killed', 'down', 1, sub {
			my (undef, @children) = server_pids(@_);
			kill 'KILL', (shuffle @children)[0] if @children;
		}, sub { });
	} ],
	[ 'server frozen', 2, sub { return stop_part('server frozen', 'frozen', between(3, 40), sub { server_pids(@_) }) } ],
	[ 'Patroni killed', 2, sub { return kill_part('Patroni killed', 'without Patroni', between(1, 45), 'patroni', sub { pid_of('patroni', @_) }) } ],
	[ 'Patroni frozen', 2, sub { return stop_part('Patroni frozen', 'without Patroni', between(5, 45), \&of_patroni) } ],
	[ 'etcd killed', 2, sub {
		return kill_part('etcd killed', 'without etcd', between(1, 40), 'etcd', sub { pid_of('etcd', @_) // () });
	} ],
	[ 'etcd frozen', 1, sub { return stop_part('etcd frozen', 'without etcd', between(3, 30), sub { pid_of('etcd', @_) // () }) } ],
	[ 'node killed', 3, sub {
		return kill_part('node killed', 'down', between(1, 40), [qw(patroni etcd)], \&everything);
	} ],
	[ 'node frozen', 4, sub { return stop_part('node frozen', 'frozen', between($TTL + 4, $TTL + 25), \&everything) } ],
	[ 'node frozen for short', 2, sub { return stop_part('node frozen for short', 'frozen', between(1, 15), \&everything) } ],

	# The old side lives on for so long.
	[ 'node frozen, Patroni longer', 3, sub {
		return on_node('node frozen, Patroni longer', 'without Patroni', between($TTL + 14, $TTL + 35), sub {
				my ($n) = @_;

				signal_twice('STOP', \&everything, $n);
				later(between($TTL + 3, $TTL + 8), "awake but for Patroni: node$n", sub {
						my %patroni = map { $_ => 1 } of_patroni($n);

						kill 'CONT', grep { !$patroni{$_} } everything($n);
					});
			}, sub { kill 'CONT', everything(@_) });
	} ],
	[ 'waits cut short', 4, sub { return cut_waits_short(primary() // return, between(20, 90)) } ],
	[ 'cut between two nodes', 4, sub {
		my ($a, $b) = nodes((shuffle @NODES)[ 0, 1 ]);
		my $one_way = rand() < 0.3;

		return cut_ways("cut from $a to $b" . ($one_way ? ', one way' : ''), between(3, 50),
			$one_way ? [ $a, $b ] : both_ways($a, $b));
	} ],
	[ 'cut off from all nodes', 3, sub {
		my $n = rand() < 0.6 && primary() || $VOTERS[ rand @VOTERS ];

		return cut_ways("node$n cut off from all nodes", between(5, 50), both_ways("node$n", nodes(grep { $_ != $n } @NODES)));
	} ],
	[ 'cut off from clients', 3, sub {
		my $n = rand() < 0.6 && primary() || $VOTERS[ rand @VOTERS ];
		my $host = (qw(east west pooler))[ rand 3 ];

		return cut_ways("$host cut off from node$n", between(3, 40), both_ways("node$n", $host));
	} ],
	[ 'clients cut off', 1, sub {
		my $host = (qw(east west))[ rand 2 ];

		return cut_ways("$host cut off from all", between(1, 20), both_ways($host, nodes(@VOTERS), 'pooler'));
	} ],
	[ 'leaders killed', 2, sub {
		my @leaders = leaders();

		say_event('leaders killed: ' . join(' ', map { $_->{candidate} } @leaders));
		hit($_, 'KILL') foreach @leaders;
		return 1;
	} ],
	[ 'leaders stopped', 2, sub {
		my @leaders = leaders();

		say_event('leaders stopped: ' . join(' ', map { $_->{candidate} } @leaders));
		hit($_, 'STOP') foreach @leaders;
		later(between(2, 12), 'leaders go on', sub { hit($_, 'CONT') foreach @leaders });
		return 1;
	} ],
	[ 'pooler killed', 1, sub { say_event('pooler killed'); kill 'KILL', pid_of('pooler'); return 1 } ],
);

sub inject
{
	my $at = rand(sum0(map { $_->[1] } @FAULTS));

	foreach my $fault (@FAULTS)
	{
		my ($name, $weight, $do) = @$fault;

		next if ($at -= $weight) >= 0;
		$done{$name}++ if $do->();
		return;
	}
	return;
}

# False: there is nobody to switch over to now. No candidate is named: Patroni 4 promotes one
# that is, in mode quorum, although it lacks what only others have confirmed.
sub switch_at_random
{
	my $from = primary() // return 0;

	return 0 unless grep { $_ != $from && !$busy{$_} } @VOTERS;
	say_event("switchover from node$from");
	ask_for_switchover($from);
	$done{switchover}++;
	return 1;
}

sub do_due
{
	my ($until) = @_;
	my @due = sort { $a->{at} <=> $b->{at} } grep { $_->{at} <= $until } @later;

	@later = grep { $_->{at} > $until } @later;
	$_->{code}->() foreach @due;
	return;
}

sub trouble
{
	my ($seconds, $pause) = @_;
	my $end = now_ns() + $seconds * 1e9;
	my $switch = now_ns() + between(2, 20) * 1e9;
	my $next = now_ns();

	while (now_ns() < $end)
	{
		do_due(now_ns());
		look_after();
		look_after_members();
		if (now_ns() >= $switch)
		{
			$switch = now_ns() + (switch_at_random() ? 60e9 : 5e9);
		}
		if (now_ns() >= $next)
		{
			inject();
			$next = now_ns() + between(2, $pause) * 1e9;
		}
		pause(0.1);
	}
	return;
}

sub heal
{
	do_due('inf');
	%is_down = ();
	look_after();
	return;
}

1;
