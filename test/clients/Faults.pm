# The faults of the conformance suite. Each is done to all stands of its group,
# in the order of this table:
#
#	name     as in the table of results
#	group    whose processes and connections it needs, see below
#	deployment  1: of the deployments
#	delay    1: a takeover delay of half a lease: where a connection breaks while its
#	         process lives, another session may be elected before that process
#	         can know, unless there is a delay
#	kinds    of stands, both unless given
#	needs    what its subjects have to be able to do, see Subjects
#	alone    done to one stand after the other: takeover takes milliseconds
#	handover the best of three may take so many times as long as that of the same
#	         driver without a client, see conformance.pl
#	notice   the same for how long it takes to notice the fault
#	prepare  before anything is measured
#	to       what is done to a stand, with its leader
#	to_all   what is done to all stands at once
#	then     what has to follow, for each kind (of a subject) or for all:
#	           other  another process is elected
#	           again  the same process is elected again
#	           same   nothing changes, for two leases
#	           any    somebody leads, and the server agrees; maybe still the same
#	           gone   all processes end with an error
#	within   so many seconds, with a lease of 2 s, on a machine that is not late
#	heal     ends the fault, for all stands
#	finally  when all was awaited
#	after    what follows then, if that is not what then says, and has to follow
#	reason   with which a driver reports that it lost
#	dies     the leader's process ends
#	check    more that has to be so afterwards: returns what is wrong
#
# A group is:
#
#	name     its elections are NAME.SUBJECT.KIND
#	kinds    of stands, session and detached unless given; mixed: there is also one of
#	         all subjects
#	subjects all unless given
#	cuts     1: without a network of its own there is no such group
#	lags     1: it needs the standby that lags
#	lease    of its elections, in leases
#	open     before its processes start; close: when they have ended
#	env      of a kind and a subject: the environment of the processes
#
# The moment from which a takeover counts is when the fault was done, or, if it
# is the healing that matters (after), when it was healed.

package Faults;

use strict;
use warnings;

use Checker qw($LEASE);
use Exporter qw(import);
use List::Util qw(max min);
use Network;
use Servers;
use Stands;
use Subjects;

our @EXPORT = qw(add_faults addresses terminate @FAULTS @GROUPS);

our $SLOW = 50;     # milliseconds each way
my $OUTAGE = 3;     # seconds

# How old the last turn of a loop may be, in seconds: longer than one that this machine
# delays, and shorter than one that hangs.
my $healthy = 0.5;

sub healthy
{
	$healthy = min(max($healthy, 0.5 + 20 * was_late(now_ns() - 5e9)), 2 * $LEASE);
	return sprintf '%.3f', $healthy;
}

our (@FAULTS, @GROUPS);

# The last group is the one whose server fails over.
my @groups = (
	{ name => 'pooler', kinds => ['detached'],
		open => sub { start_pooler() }, close => sub { kill_pooler() },
		env => sub { (PGPORT => port('pooler'), WORKPORT => port(1)) } },
	{ name => 'slow',
		env => sub { (PGPORT => port('slow'), WORKPORT => port(1), CALL_TIMEOUT => $LEASE) } },
	{ name => 'lossy', kinds => ['detached'],
		env => sub { (PGPORT => port('lossy'), WORKPORT => port(1)) } },
	{ name => 'query',
		env => sub { (QUERY_TIMEOUT => $LEASE / 4,
			PG_LEADER_PGOPTIONS => '-c statement_timeout=' . 250 * $LEASE) } },
	{ name => 'fenced', env => sub { (CALL_TIMEOUT => $LEASE) } },
	{ name => 'long', kinds => ['session'], lease => 6, cuts => 1,
		env => sub { (CALL_TIMEOUT => 6 * $LEASE) } },
	{ name => 'health',
		env => sub {
			(HEALTH => healthy(), YIELD => 1);
		} },
	{ name => 'plain', mixed => 1, kinds => [qw(bare session detached)],
		env => sub { (LISTEN => 1) } },
);

# The addresses of processes, for cuts
sub addresses { return map { $_->{n} } @_; }

# Ends the server's side of all connections of processes, but those of the work.
sub terminate
{
	my @pids = map { $_->[2] } connections(addresses(@_));

	sql('SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE pid IN (' . join(', ', 0, @pids) . ')');
	return;
}

sub stop_after_a_turn
{
	my ($leader) = @_;

	# Not between reading the term and reading the clock.
	wait_for_line($leader, 'working');
	send_signal($leader, 'STOP');
	return;
}

sub continue_leader { send_signal($_->{led}, 'CONT') foreach @_; return; }

sub request_yield
{
	my ($stand) = @_;

	sql("SELECT leader_election.request_yield('$stand->{name}')");
	return;
}

# What a fence has said
sub said_by_fence
{
	my $log = "$_[0]{fence}.log";

	return -e "$out/$log" ? join '', written_since($log, 0) : '';
}

# A transaction on another connection, fenced by the leader's term: it writes at its
# end, when the leader has given up. In the portable edition the lease cannot change
# hands before that: the call that gives it back fails, with 55P03.
sub open_fences
{
	my (@stands) = @_;
	my $seconds = 1.5 * $LEASE;

	foreach my $stand (@stands)
	{
		my ($election, $led) = @{$stand}{qw(name led)};
		my $term = last_event($led, 'elected')->[1];

		$stand->{fence} = "fence.$election." . ++$stand->{fences};
		start_program($stand->{fence}, qw(psql -XqAt -v ON_ERROR_STOP=1 -d),
			"host=$WORK_HOST port=" . port(1) . " user=app dbname=postgres application_name=$stand->{fence}",
			'-c', 'BEGIN', '-c', "SELECT leader_election.assert_leader('$election', $term)",
			'-c', "SELECT 'fenced'", '-c', "SELECT pg_sleep($seconds)",
			'-c', "SELECT conformance.write('$election', '$led->{candidate}', $term)",
			'-c', 'COMMIT', '-c', "SELECT 'committed'");
	}
	await(sub { !grep { said_by_fence($_) !~ /^fenced$|ERROR/m } @stands });
	return;
}

# In the portable edition it was committed, before another leader wrote: the checker
# looks at their order. (The machine may have been too slow for the leader.)
sub fence_held
{
	my ($stand) = @_;

	await(sub { said_by_fence($stand) =~ /^committed$|ERROR|error/m });
	my $said = said_by_fence($stand);

	return !is_portable() || $said =~ /^committed$/m || $said !~ /^fenced$/m ? ()
	  : "the fenced write was not committed: $said";
}

# The first answer to each grant is lost. The next call is told it: no lease runs out
# of which its leader has not heard.
sub no_grant_was_lost
{
	my ($stand, $led) = @_;
	my ($expired, $terms) = split /\|/, sql("SELECT
		count(*) FILTER (WHERE reason = 'expired' AND leader <> '$led->{candidate}'), count(*)
		FROM leader_election.history WHERE election = '$stand->{name}'");
	my $lost = lost_answers($stand->{name});

	return (
		$expired ? "$expired leaders have not heard of their terms" : (),
		$lost < $terms ? "$lost answers were lost, and there were $terms terms" : ());
}

my @faults = (
	{ name => 'pooler: SIGKILL', group => 'pooler', then => 'other', within => 8,
		dies => 1, to => sub { send_signal($_[1], 'KILL') } },
	{ name => 'pooler: restarted', group => 'pooler', then => 'same',
		to_all => sub { kill_pooler(); start_pooler() } },

	{ name => 'slow: nothing happens', group => 'slow', then => 'same' },
	{ name => 'slow: SIGKILL', group => 'slow', then => 'other', within => 10,
		dies => 1, to => sub { send_signal($_[1], 'KILL') } },

	{ name => 'lost answer', group => 'lossy', then => 'other', within => 8, dies => 1,
		to => sub { send_signal($_[1], 'KILL') },
		check => \&no_grant_was_lost },

	{ name => 'query timeout', group => 'query', then => 'other', within => 12,
		dies => 1, to => sub { send_signal($_[1], 'KILL') } },

	{ name => 'fence open: resign', group => 'fenced', needs => 'resign',
		then => { session => 'other', detached => 'any' }, within => 12, reason => 'resigned',
		to_all => sub { open_fences(@_); send_line($_->{led}, 'resign') foreach @_ },
		check => \&fence_held },
	{ name => 'fence open: SIGTERM', group => 'fenced',
		then => 'other', within => 12, reason => 'closed', dies => 1,
		to_all => sub { open_fences(@_); send_signal($_->{led}, 'TERM') foreach @_ },
		check => sub {
			my ($stand, $led) = @_;

			await(sub { ended($led) });
			return (fence_held($stand), $led->{subject} eq 'pg_leader' || ($led->{exit} // 1) == 0
				  && last_event($led, 'closed') ? () : 'exit status ' . ($led->{exit} // 'none'));
		} },

	{ name => 'yield, with a handler', group => 'health', needs => 'yield',
		then => 'other', within => 6, reason => 'yielded',
		to => \&request_yield,
		check => sub {
			my ($stand, $led, $since) = @_;
			my $yields = grep { $_->[0] eq 'yield' && $_->[2] >= $since } @{ $led->{events} };

			return $yields == 1 ? () : "asked to yield $yields times";
		} },
	{ name => 'stopped, with a check', group => 'health', needs => 'hang',
		then => 'other', within => 10,
		to => sub { stop_after_a_turn($_[1]) }, heal => \&continue_leader,
		reason => 'expired|not renewed|connection lost|unhealthy' },
	{ name => 'hangs, with a check', group => 'health', needs => 'hang',
		then => 'other', within => 10,
		to => sub { send_line($_[1], 'hang ' . int(1000 * ($healthy + 2 * $LEASE))) },
		reason => 'expired|not renewed|connection lost|unhealthy' },

	{ name => 'nothing happens', group => 'plain', then => 'same' },
	{ name => 'long work', group => 'plain', kinds => ['detached'], needs => 'long',
		then => 'other', within => 8,
		to => sub { send_line($_[1], 'work ' . int(3000 * $LEASE)) } },
	{ name => 'metadata', group => 'plain', kinds => [qw(session detached)], needs => 'say',
		then => 'same', to => sub { send_line($_[1], 'say') },
		check => sub {
			my ($stand) = @_;
			my $said = sql("SELECT metadata FROM leader_election.status WHERE election = '$stand->{name}'");

			return $said eq '"said"' ? () : "status shows \"$said\"";
		} },
	{ name => 'resign', group => 'plain', needs => 'resign', alone => 1,
		then => 'other', within => 5, handover => 1, reason => 'resigned',
		to => sub {
			my ($stand, $leader) = @_;

			return send_signal($leader, 'TERM') if $stand->{kind} eq 'bare';
			send_line($leader, 'resign');
		} },
	{ name => 'resign, alone', group => 'plain', needs => 'resign',
		then => 'again', within => 10, reason => 'resigned',
		to => sub {
			my ($stand, $leader) = @_;

			foreach my $follower (@{ $stand->{followed} })
			{
				$follower->{dies} = 1;
				send_signal($follower, 'KILL');
			}
			send_line($leader, 'resign');
		},
		check => sub {
			my ($stand) = @_;

			# Others must have had their turn before.
			return if !defined $stand->{took} || $stand->{took} > 500;
			return sprintf 'is elected again after %d ms', $stand->{took};
		} },
	{ name => 'yield', group => 'plain', then => 'other', within => 6,
		reason => 'yielded', to => \&request_yield },
	{ name => 'SIGTERM', group => 'plain', alone => 1, then => 'other',
		within => 5, handover => 1, reason => 'closed', dies => 1,
		to => sub { send_signal($_[1], 'TERM') },
		check => sub {
			my ($stand, $led) = @_;

			await(sub { ended($led) });
			return "does not end within $TIMEOUT s" unless defined $led->{exit};
			return "exit status $led->{exit}" if $led->{subject} ne 'pg_leader'
			  && !($led->{exit} == 0 && last_event($led, 'closed'));
			return if $stand->{kind} eq 'bare';
			my ($reason) = sql("SELECT reason FROM leader_election.history
				WHERE election = '$stand->{name}' AND leader = '$led->{candidate}'
				ORDER BY term DESC LIMIT 1");

			return $reason eq 'expired' ? 'the lease was not given back' : ();
		} },
	{ name => 'SIGKILL', group => 'plain', kinds => [qw(bare session)], alone => 1,
		then => 'other', within => 5, handover => 1, dies => 1,
		to => sub { send_signal($_[1], 'KILL') } },
	{ name => 'SIGKILL', group => 'plain', kinds => ['detached'],
		then => 'other', within => 8, dies => 1,
		to => sub { send_signal($_[1], 'KILL') } },
	{ name => 'stopped', group => 'plain',
		then => 'other', within => 8,
		to => sub { stop_after_a_turn($_[1]) }, heal => \&continue_leader,
		reason => 'expired|not renewed|connection lost' },
	{ name => 'backend terminated', group => 'plain', delay => 1,
		then => { bare => 'other', session => 'other', detached => 'same' },
		within => 8, notice => 1, reason => 'connection lost',
		to => sub { terminate($_[1]) } },
	{ name => "leader's network cut", group => 'plain', delay => 1, cuts => 1,
		then => 'other', within => 15,
		reason => 'expired|connection lost|not renewed',
		to_all => sub { cut(addresses(map { $_->{led} } @_)) },
		heal => sub { mend(addresses(map { $_->{led} } @_)) } },
	{ name => "network cut, a long lease", group => 'long', cuts => 1,
		then => 'other', within => 30,
		reason => 'expired|connection lost|not renewed',
		to_all => sub { cut(addresses(map { $_->{led} } @_)) },
		heal => sub { mend(addresses(map { $_->{led} } @_)) } },
	{ name => "follower's network cut", group => 'plain', delay => 1, cuts => 1,
		then => 'nobody', after => 'other', within => 15, dies => 1,
		to_all => sub {
			cut(addresses(map { @{ $_->{followed} } } @_));
			send_signal($_->{led}, 'KILL') foreach @_;
			pause($OUTAGE);
		},
		heal => sub { mend(addresses(map { @{ $_->{followed} } } @_)) } },
	{ name => 'connections forgotten', group => 'plain', cuts => 1,
		then => 'other', within => 15, dies => 1,
		to_all => sub {
			my @followers = map { @{ $_->{followed} } } @_;

			# The server notices within half a minute. It is told here.
			forget(addresses(@followers));
			terminate(@followers);
			send_signal($_->{led}, 'KILL') foreach @_;
		},
		finally => \&remember },
	{ name => 'forgotten meanwhile', group => 'plain', cuts => 1,
		then => 'other', within => 20, dies => 1,
		to_all => sub {
			my @followers = map { @{ $_->{followed} } } @_;

			# While they connect and stand, each at another step
			foreach my $turn (1 .. 8)
			{
				terminate(@followers);
				pause(0.04 * $turn);
				forget(addresses(@followers));
			}
			terminate(@followers);
			send_signal($_->{led}, 'KILL') foreach @_;
		},
		finally => \&remember },
	{ name => 'fast restart', group => 'plain', delay => 1, then => 'any',
		within => 20, to_all => sub { restart('fast') } },
	{ name => 'immediate restart', group => 'plain', delay => 1, then => 'any',
		within => 20, to_all => sub { restart('immediate') } },
	{ name => 'failover', group => 'plain', delay => 1, then => 'any',
		within => 25, prepare => \&make_standby, to_all => \&fail_over },
);

# Adds faults, and their groups, to those that follow. Each fault begins a line of the
# file.
sub add_faults
{
	my ($path, $groups, @new) = @_;
	my ($name) = $path =~ m{([^/]+)$};

	open my $file, '<', $path or die $!;
	my @lines = <$file>;
	close $file;
	my @begin = grep { $lines[ $_ - 1 ] =~ /^\t\{ name => .*group =>/ } 1 .. @lines;

	die "$path: where do the faults begin?\n" if @begin != @new;
	$_->{at} = "$name:" . shift @begin foreach @new;
	unshift @GROUPS, @$groups;
	unshift @FAULTS, @new;
	return;
}

add_faults(__FILE__, \@groups, @faults);

1;
