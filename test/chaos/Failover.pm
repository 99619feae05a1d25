# A standby is promoted, as a failover manager does it: crash or split, which one is
# chosen, and how the others follow it. And how waits for standbys are cut short.

package Failover;

use strict;
use warnings;

use Cluster;
use Exporter qw(import);
use List::Util qw(max shuffle uniq);
use Replication;
use Time::HiRes qw(sleep);

our @EXPORT = qw(fail_over forget_standby cancel_sync_waits);

my $splits = 0;

# --- waits for standbys

# How many; undef where nobody waits.  The portable edition has no proof: a wait that is
# cancelled is taken for granted, as its page says.
sub cancel_sync_waits
{
	my ($n) = @_;

	return if $edition eq 'portable';
	return sql($n // primary(),
		"SELECT nullif(count(*) FILTER (WHERE pg_cancel_backend(pid)), 0)
		FROM pg_stat_activity WHERE wait_event = 'SyncRep'", 2) || undef;
}

sub cut_waits_short
{
	my ($n, $seconds) = @_;
	my $end = now() + $seconds * 1_000_000;

	while (now() < $end)
	{
		cancel_sync_waits($n);
		note_leaders($_) foreach uniq($n, primary());
		sleep 0.05;
	}
	return;
}

# Who leads, by what that server says to anybody
sub note_leaders
{
	my ($n) = @_;
	my $sent = now();
	my $rows = sql($n, "SELECT election, term, leader FROM leader_election.lease
		WHERE leader_election.is_leader(election, term)", 2) // return;
	my $received = now();

	event('seen', $n, $sent, $received, split /\|/) foreach split /\n/, $rows;
	return;
}

# Nobody waits for the standby for a while, as when one is taken away.
sub forget_standby
{
	my $n = primary();

	return operation('standby forgotten', sub {
		set_synchronous($n, '');
		sleep rand(2 * $lease_ms / 1000);
		attach_standbys(10);
	}) ? "by server$n" : undef;
}

# --- the servers that change places

# The history of a server that is about to go, for the checker
sub save_history
{
	my ($n) = @_;
	my $rows = sql($n, "SELECT election, term, leader, kind, acquired_at, ended_at, reason
		FROM leader_election.history");

	spit("$out/history.old." . now(), "$rows\n") if defined $rows;
	return;
}

# The same lease for all elections. Those that are held go on as they are until
# they are renewed. undef: the server does not say that it was done.
sub alter_leases
{
	my ($n, $ms) = @_;

	return sql($n, [ (map { "SELECT leader_election.alter_election('$_', lease_duration => '$ms ms')" } keys %Nemesis::elections),
			(map { "SELECT leader_election.alter_group('$_', lease_duration => '$ms ms')" } keys %Nemesis::groups) ], 5);
}

# As they were, all of them; some may be busy at first.
sub restore_leases
{
	my ($n) = @_;

	for (1 .. 10)
	{
		return event('leases', 'restored') if defined alter_leases($n, $lease_ms);
	}
	return;
}

# --- which standby

# As long as all standbys that are named have to confirm, the primary can do nothing
# without any one of these: one is promoted, and may have less than the others, which
# may even stay with the old primary.
sub choose_named
{
	my (@named) = @_;
	my ($new) = shuffle(@named);

	event('chosen', 'as named:', "server$new");
	return ($new, grep { $_ != $new } standbys());
}

# Else one of the standbys has all that was ever confirmed, but only the one with the
# most WAL certainly does, once no more comes to any of them. So all of them have to
# answer.
sub choose_by_wal
{
	my (@standbys) = @_;

	isolate(@standbys) or die "the standbys still receive\n";

	my %has = map { $_ => received_by($_) // die "server$_ does not answer\n" } @standbys;
	my ($new) = shuffle(grep { $has{$_} == max(values %has) } @standbys);

	event('chosen', 'for its WAL:', "server$new;", map { "server$_ has $has{$_}" } sort keys %has);
	return $new;
}

# May a standby be promoted, as soon as the primary is gone? Only if commits have
# waited for standbys for more than a lease, and if what was committed before has got
# to one. If all that are named have to confirm, and have had to for so long that no
# lease is left that others confirmed, they are returned, too. all: have them confirm.
sub can_fail_over
{
	my ($old, $lease, $all) = @_;
	my ($had, %has, $end);

	attach_standbys(5) or return;
	set_synchronous($old, any_names($old, $all)) if $all;
	sleep max($lease / 2, 1.5 * $lease - synchronous_for(), $all ? 1.5 * $lease - same_names_for() : 0);
	attach_standbys(1) or return;
	return if grep { !server_running($_) } standbys();
	return 1 if standbys() == 1;

	# The names may change at the last moment.
	set_synchronous($old, any_names($old)) if !$all && rand() < 0.3;
	$had = flushed_by($old) // return;
	$end = stopwatch() + 5;
	until (grep { $_ >= $had } values %has)
	{
		return if stopwatch() > $end;
		%has = map { $_ => received_by($_) // 0 } standbys();
		sleep 0.05;
	}

	my ($needed, @named) = names_of($old);

	@named = () if $needed < @named || same_names_for() < 1.5 * $lease || grep { $has{$_} < $had } @named;
	return (1, @named);
}

# --- what is done

# The primary goes: at once, or when its standbys have all that it has.
sub crash
{
	my ($n) = @_;
	my $way = rand();

	return kill('KILL', postmaster($n) // 0) if $way < 0.5;
	return 1 if standbys() > 1 && $way < 0.7 && ctl($n, '-m fast -w -t 5 stop');
	return ctl($n, '-m immediate -w stop');
}

# The primary is cut off from its standbys: while its network is slow, and some
# leaders' sessions have just ended; from one earlier than from the next.
sub cut_off
{
	my ($n, @standbys) = @_;

	kill 'USR2', proxy_pid("r$_") foreach @standbys;
	foreach (grep { rand() < 0.3 } split /\n/,
		sql($n, "SELECT pid, application_name FROM pg_stat_activity WHERE $Nemesis::LEADERS") // '')
	{
		my ($pid, $who) = split /\|/;

		event('terminated', $who) if kill('TERM', $pid);
	}
	sleep 0.05 + rand(0.3);
	foreach (shuffle(@standbys))
	{
		kill 'STOP', proxy_pid("r$_");
		sleep rand($lease_ms / 3000) if @standbys > 1;
	}
	return;
}

# These standbys stay with the old primary, and go on confirming to it.
sub leave_with
{
	my ($old, @standbys) = @_;

	foreach my $n (@standbys)
	{
		follow($n, $old) if upstream($n) != $old;
		event('stays', $n);
	}
	return;
}

# The old side goes on for a while, with some of its clients.
sub split_brain
{
	my ($n) = @_;

	# Some clients stay with the old side, some find the new one.
	kill 'USR1', proxy_pid("c$n");
	cut_waits_short($n, (0.2 + rand(0.5)) * $lease_ms / 1000);

	# A leader that leads on at the new side may say no more.
	my @silent = map { Nemesis::process_of($_) } grep { rand() < 0.5 } Nemesis::detached_candidates();

	kill 'STOP', @silent;
	cut_waits_short($n, (1.3 + rand) * $lease_ms / 1000);
	kill 'CONT', @silent;
	save_history($n);
	return;
}

# Standbys that may have more than the new primary had cannot follow it: they are
# made anew, as the old primary is.
sub rebuild
{
	my ($rewinds, @standbys) = @_;

	foreach my $n (@standbys)
	{
		my $built = 0;

		for (1 .. 20)
		{
			ctl($n, '-m immediate -w stop') if server_running($n);
			last if $built = build_standby($n, $rewinds && $_ == 1);
			sleep 0.5;
		}
		die "server$n cannot be rebuilt\n" unless $built;
	}
	attach_standbys(40) or die "the standbys do not follow\n";
	return;
}

# A standby is promoted, the others follow it, and the old primary becomes a standby
# of it. crash: the old primary is dead before. split: it goes on for a while, cut off
# from what is promoted, but not from its clients, and its waits for standbys are cut
# short; what it granted last is longer than what is granted from now on, and some of
# it may not have got to any standby. Each second time standbys stay with it.
sub fail_over
{
	my ($kind) = @_;
	my $old = primary();
	my @standbys = standbys();
	my $leaves = @standbys > 1 && $kind eq 'split' && ++$splits % 2;

	return operation("failover $kind", sub {
		alter_leases($old, $lease_ms * 1.25) if $kind eq 'split' && attach_standbys(5);

		my ($may, @named) = can_fail_over($old, $lease_ms / 1000, $leaves || @standbys > 1 && rand() < 0.3);
		my ($new, @ahead) = @named ? choose_named(@named) : @standbys;
		my @lost = @named && ($leaves || rand() < 0.5) ? $new : @standbys;
		my @processes = server_processes($old);
		my $rewinds = rand() < 0.5;

		return event('skipped', "failover $kind") unless $may;
		event('leases', 'short') if $kind eq 'split';
		alter_leases($old, $lease_ms / 4) if $kind eq 'split';
		leave_with($old, @ahead) if @lost < @standbys;
		event('split', $kind, $old, @lost);
		$kind eq 'crash' ? crash($old) : cut_off($old, @lost);
		if ($kind eq 'split' && rand() < 0.3)
		{
			# Nothing can be granted there, and what ends there is not known here.
			cut_waits_short($old, rand($lease_ms / (rand() < 0.5 ? 500 : 2000)));
		}
		($new, @ahead) = choose_by_wal(@standbys) if @standbys > 1 && !@named;
		name_before_promotion($new) if @standbys > 1 && @lost == @standbys && rand() < 0.5;
		ctl($new, '-w -t 50 promote') or die "server$new: no promotion";
		event('promoted', $new);
		set_primary($new);
		follow($_, $new) foreach grep { my $n = $_; $n != $new && !grep { $_ == $n } @ahead } @standbys;
		split_brain($old) if $kind eq 'split';
		ctl($old, '-m immediate -w stop') if server_running($old);
		kill 'KILL', @processes;	# who is stopped has not noticed its end
		event('joined', $old);
		alter_leases($new, $lease_ms) if $kind eq 'split';
		kill 'CONT', map { proxy_pid("r$_") } @standbys;
		kill 'HUP', proxy_pid("r$new"), map { proxy_pid("r$_") } @ahead;
		rebuild($rewinds, $old, @ahead);
		restore_leases($new) if $kind eq 'split';
	}) ? "server$old" : undef;
}

1;
