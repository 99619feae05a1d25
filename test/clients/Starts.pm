# How a client begins and ends where that goes wrong: without a server, under a name that
# is in use, told to go while it starts, three times, or while the row of its lease is locked;
# and what disturbs no client: calls that are cancelled, and a wall clock that is set.
# The tests of others' clients do that: test/peers names them.

package Starts;

use strict;
use warnings;

use Alone;
use Checker qw($LEASE);
use Exporter qw(import);
use Network;
use Servers;
use Stands;
use Subjects;

our @EXPORT = qw(begins_and_ends);

# The languages that have a client. A program of Go takes the time from no library.
my @CLIENTS = qw(python asyncpg node java go);
my %CLOCK_CAN_BE_SET = map { $_ => 1 } qw(python asyncpg node java);

# --- steps

# So many seconds after a line with this word
sub seconds_after
{
	my ($seconds, $word) = @_;

	return sub {
		my $event = last_event($_[0]{process}, $word) // return 0;

		return now_ns() - $event->[2] >= $seconds * 1e9;
	};
}

sub signals
{
	my ($times) = @_;

	return sub { send_signal($_[0]{process}, 'TERM') foreach 1 .. $times; return 1; };
}

# The server knows nothing of it any more: it has not just fallen silent, for then it
# would stand for a lease and a third.
sub leaves_nothing
{
	return sub {
		my ($case) = @_;
		my $left = sql("SELECT count(*) FROM leader_election.candidates
			WHERE election = '$case->{election}' AND alive");

		return 1 if $left == 0;
		die "stands still\n" if (now_ns() - $case->{stepped}) / 1e9 > $LEASE / 2 + was_late($case->{stepped});
		return 0;
	};
}

# How a term has ended: "" if it has not, or if there is none
sub reason_of
{
	my ($case, $term) = @_;

	return sql("SELECT reason FROM leader_election.history
		WHERE election = '$case->{election}' AND term = $term");
}

# If there was a term, it has not run out.
sub gave_back
{
	return sub {
		my ($case) = @_;
		my $term = sql("SELECT max(term) FROM leader_election.history
			WHERE election = '$case->{election}'") || return 1;
		my $reason = reason_of($case, $term) || 'it has not ended';

		die "the lease was not given back: $reason\n" if $reason =~ /^(?:expired|it has not ended)$/;
		return 1;
	};
}

# Not while a leader's program connects for its first write: what a driver makes of a
# cancelled connect is no matter of ours.
my @closes = ([ 'has written, if it leads' => sub {
			my ($case) = @_;
			my $elected = last_event($case->{process}, 'elected') // return 1;

			return last_event($case->{process}, 'wrote', $elected->[2]);
		} ],
	[ 'SIGTERM' => sends('TERM') ], [ 'ends' => ends(0) ]);
my @elected = ([ 'is elected' => event('elected') ]);

# A language that is still warming up may lose its first lease by that.
my @leads = ([ 'leads for a while' => sub {
			my ($case) = @_;
			my $elected = last_event($case->{process}, 'elected') // return 0;

			return $case->{process}{leads} && now_ns() - $elected->[2] > $LEASE / 2 * 1e9;
		} ]);

# --- others in the same election

# Each time that a case is done, this is another name.
sub name_of
{
	my ($what, $case) = @_;

	return join '.', $what, $case->{election}, $case->{rounds} // 0;
}

sub where
{
	my ($name, $user) = @_;

	return "host=$WORK_HOST port=" . port(1) . " user=$user dbname=postgres application_name=$name";
}

sub start_psql
{
	my ($name, $user, @statements) = @_;

	start_program($name, qw(psql -XqAt -v ON_ERROR_STOP=1 -d), where($name, $user),
		map { (-c => $_) } @statements, "SELECT 'done'");
	return;
}

# A session that stands, and renews its lease as one without a worker has to
sub start_session
{
	my ($name, $election, $candidate) = @_;

	start_program($name, 'bash', '-c', 'exec psql -XqAt -d "$0" < <(echo "$1"; yes "$2")',
		where($name, 'app'),
		"SELECT leader_election.join('$election', '$candidate', auto_renew => false); SELECT 'done';",
		"SELECT FROM leader_election.renew('$election'); SELECT FROM pg_sleep(0.1);");
	return;
}

sub done
{
	my ($name) = @_;

	return -e "$out/$name.log" && grep { /^done$/ } written_since("$name.log", 0);
}

# Somebody else leads, or stands, under this name, until it is ended.
sub led_by
{
	my ($name, $kind) = @_;

	return sub {
		my ($case) = @_;
		my $who = $name // $case->{candidate};
		my $other = name_of('other', $case);

		$kind eq 'session' ? start_session($other, $case->{election}, $who)
		  : start_psql($other, 'app',
			"SELECT FROM leader_election.acquire('$case->{election}', '$who')");
		await(sub { done($other) });
		return 1;
	};
}

sub other_ends
{
	return sub {
		sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE application_name = '" . name_of('other', $_[0]) . "'");
		return 1;
	};
}

# The row of its lease is locked for a quarter of a lease.
sub row_is_locked
{
	return sub {
		my ($case) = @_;
		my $name = name_of('lock', $case);

		return done($name) if $case->{locked}{$name}++;
		start_psql($name, 'postgres', 'BEGIN',
			"SELECT FROM leader_election.lease WHERE election = '$case->{election}' FOR UPDATE",
			"SELECT 'done'", 'SELECT pg_sleep(' . $LEASE / 4 . ')', 'COMMIT');
		return 0;
	};
}

# What it asks of the server is cancelled, if it is still at work when it is looked at,
# for so many leases. Calls of the portable edition take several times longer: looked at
# as often, none of a whole lease might come through.
sub is_cancelled
{
	my ($leases) = @_;
	my $seconds = $leases * $LEASE;

	return sub {
		my ($case) = @_;
		my $pause = is_portable() ? 0.01 : 0.002;
		my $ports = join ', ', 0, map { $_->[1] } connections($case->{n});

		start_psql(name_of('cancel', $case), 'postgres', "DO \$\$
			DECLARE until timestamptz := clock_timestamp() + interval '$seconds s';
			BEGIN
				WHILE clock_timestamp() < until LOOP
					PERFORM pg_stat_clear_snapshot(), pg_sleep($pause);
					PERFORM pg_cancel_backend(pid) FROM pg_stat_activity
						WHERE state = 'active' AND client_port IN ($ports);
				END LOOP;
			END \$\$");
		return 1;
	};
}

sub clock_of { return "$out/clock.$_[0]{election}"; }

sub set_clock
{
	my ($seconds) = @_;

	return sub {
		my $path = clock_of($_[0]);

		open my $file, '>', "$path.new" or die $!;
		printf $file "%+d\n", $seconds;
		close $file or die $!;
		rename "$path.new", $path or die $!;
		return 1;
	};
}

sub clock_is_right
{
	my ($case) = @_;

	$case->{env}{CLOCK_FILE} = clock_of($case);
	return set_clock(0)->($case);
}

# --- the cases

sub closed_at_once
{
	return map { my $ms = $_; [ "closed $ms ms after its start", {}, [
		[ 'is there' => seconds_after($ms / 1000, 'ready') ],
		[ 'SIGTERM' => sends('TERM') ], [ 'ends' => ends('0|143') ],
		[ 'leaves nothing' => leaves_nothing() ], [ 'gave back what it had' => gave_back() ] ] ] }
	  0, 20, 60, 150, 400;
}

sub without_a_server
{
	return map { [ "closed where nobody $_->[0]", { PGPORT => port($_->[1]) }, [
		[ 'tries' => seconds_after(0.3, 'state') ], @closes ] ] }
	  [ 'listens', 'nobody' ], [ 'answers', 'silent' ];
}

# The server comes when all these have said that there is none. Where one is done again,
# it is there.
my ($waiting, $server_is_there, %waits);

sub server_later
{
	return { name => 'a server that comes later', env => { PGPORT => port('late'), WORKPORT => port(1) },
		steps => [
			[ 'says so' => sub { return $server_is_there || has_said_state('unreachable: ')->(@_); } ],
			[ 'goes on' => stays(1, 'error') ],
			[ 'the server comes' => sub {
					my ($case) = @_;

					$waits{ $case->{election} } = 1;
					return 0 if keys %waits < $waiting;
					return 1 if $server_is_there++;
					start_program('late', $^X, "$FindBin::RealBin/slow.pl", port('late'), port(1), 0);
					return 1;
				} ], @elected, @closes ] };
}

sub one_name
{
	my ($kind) = @_;

	return [ 'a name in use', { REFUSAL_TIMEOUT => $LEASE / 4 }, [
		$kind eq 'session' ? ([ 'says so' => says_state('refused: LE004') ],
			[ 'waits' => stays(1, 'elected|error') ], [ 'the other one ends' => other_ends() ], @elected)
		: (@elected, [ 'not before the lease was over' => sub {
					my $reason = reason_of($_[0], $_[0]{process}{leads} - 1);

					die "the term before: $reason\n" if $reason ne 'expired';
					return 1;
				} ]), @closes ], led_by(undef, $kind) ];
}

sub resigned
{
	return (
		[ 'resigned three times', {}, [ @elected,
			[ 'resigns' => sub { send_line($_[0]{process}, 'resign') foreach 1 .. 3; return 1 } ],
			[ 'loses' => event('lost', 'resigned') ], @elected,
			[ 'leads on' => stays(0.5, 'lost|error') ],
			[ 'has lost once' => sub {
					my $lost = grep { $_->[0] eq 'lost' } @{ $_[0]{process}{events} };

					die "$lost times\n" if $lost != 1;
					return 1;
				} ], @closes ] ],
		[ 'resigned while it waits', {}, [
			[ 'waits' => says_state('standing') ], [ 'resigns' => sends('resign') ],
			[ 'nothing comes of it' => stays(0.5, 'lost|elected|error') ],
			[ 'the other one ends' => other_ends() ], @elected, @closes ],
			led_by('somebody else', 'session') ]);
}

# In the program for Python each SIGTERM raises an exception: the second one ends close().
sub told_to_go
{
	my ($subject) = @_;

	return (
		[ 'SIGTERM three times', {}, [ @elected,
			[ 'SIGTERM' => signals(3) ], [ 'ends' => ends(0) ],
			$subject eq 'python' ? () : ([ 'leaves nothing' => leaves_nothing() ],
				[ 'gave back what it had' => gave_back() ]) ] ],
		[ 'SIGTERM while its row is locked', { CALL_TIMEOUT => $LEASE }, [ @leads,
			[ 'the row is locked' => row_is_locked() ], @closes,
			[ 'gave back what it had' => gave_back() ] ] ]);
}

sub undisturbed
{
	my ($subject) = @_;

	return (
		[ 'calls of a leader cancelled', {}, [ @leads,
			[ 'cancelled' => is_cancelled(1.5) ],
			[ 'leads on' => stays(1.5, 'lost|elected|error') ], @closes ] ],
		[ 'calls of a follower cancelled', {}, [
			[ 'waits' => says_state('standing') ], [ 'cancelled' => is_cancelled(1) ],
			[ 'goes on' => stays(1, 'elected|error') ],
			[ 'the other one ends' => other_ends() ], @elected, @closes ],
			led_by('somebody else', 'session') ],
		$CLOCK_CAN_BE_SET{$subject} ? [ 'wall clock set', { LD_PRELOAD => "$out/../clock.so" },
			[ @leads,
				map { ([ 'an hour' => set_clock($_) ],
					[ 'leads on' => stays(1, 'lost|elected|error') ]) } 3600, -3600 ],
			\&clock_is_right ] : ());
}

# [ NAME, ENVIRONMENT, STEPS, BEFORE ] of each
sub cases_of
{
	my ($subject, $kind) = @_;

	return (closed_at_once(), without_a_server(), one_name($kind), resigned(), told_to_go($subject),
		undisturbed($subject));
}

sub begins_and_ends
{
	my ($at, @subjects) = @_;
	my (@late, @cases);

	start_program('silent', $^X, "$FindBin::RealBin/impostor.pl", port('silent'), 'silent');
	foreach my $subject (grep { my $subject = $_; grep { $_ eq $subject } @subjects } @CLIENTS)
	{
		foreach my $kind (qw(session detached))
		{
			my %case = (subject => $subject, kind => $kind, at => $at, again => 1);

			push @late, { %case, %{ server_later() } };
			push @cases, map { { %case, name => $_->[0], steps => $_->[2], before => $_->[3],
				env => { PGPORT => port(1), WORKPORT => port(1), %{ $_->[1] } } } }
			  cases_of($subject, $kind);
		}
	}
	$waiting = @late;
	return (@late, @cases);
}

1;
