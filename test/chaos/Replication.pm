# How the standbys of the chaos run follow, and who has to confirm what the primary
# commits.
#
# Each server has a link, the proxy r$n, through which its WAL comes when it is a
# standby; the file of the link's target says from which server, or 0: from none.

package Replication;

use strict;
use warnings;

use Cluster;
use Exporter qw(import);
use List::Util qw(max shuffle);
use Time::HiRes qw(sleep);

our @EXPORT = qw(
  follow upstream isolate received_by flushed_by
  names_of any_names set_synchronous name_before_promotion synchronous_for same_names_for
  build_standby attach_standbys
);

# --- the links

# Its connection to another server, if it has one, is reset.
sub follow
{
	my ($n, $upstream) = @_;

	spit("$dir/r$n.target", $upstream ? port_of($upstream) : 0);
	kill 'HUP', proxy_pid("r$n");
	return;
}

sub upstream
{
	my ($n) = @_;
	my $port = slurp("$dir/r$n.target");

	return (grep { port_of($_) == $port } @servers)[0];
}

# Nothing comes to these standbys any more, and nothing that they confirm gets to the
# primary. False: a standby still waits for more, or does not answer.
sub isolate
{
	my (@standbys) = @_;
	my $end = stopwatch() + 20;

	foreach my $n (@standbys)
	{
		follow($n, 0);
		kill 'CONT', proxy_pid("r$n");
	}
	while (stopwatch() < $end)
	{
		return 1 unless grep { (sql($_, 'SELECT count(*) FROM pg_stat_wal_receiver') // 1) != 0 } @standbys;
		sleep 0.05;
	}
	return 0;
}

# How much WAL a standby has, as a number: at least what it has ever confirmed, if it
# was not started anew just before
sub received_by
{
	my ($n) = @_;

	return sql($n, "SELECT coalesce(greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0', 0)");
}

sub flushed_by
{
	my ($n) = @_;

	return sql($n, "SELECT pg_current_wal_flush_lsn() - '0/0'");
}

# --- who has to confirm

# How many, and which servers; nothing where nobody has to
sub names_of
{
	my ($n) = @_;
	my ($names) = slurp("$dir/disk/server$n/chaos.conf") =~ /^synchronous_standby_names = '(.*)'$/m
	  or return;
	my ($needed) = $names =~ /^\w+ (\d) /;

	return $needed // 1, $names =~ /server(\d)/g;
}

# Names of standbys of this server; all: each one that is named has to confirm
sub any_names
{
	my ($n, $all) = @_;
	my @names = shuffle(map { "server$_" } grep { $_ != $n } @servers);
	my $list = '(' . join(', ', @names) . ')';

	return $names[0] if @names == 1;
	return Nemesis::pick($names[0], "FIRST 1 ($names[0])", "ANY 2 $list", "FIRST 2 $list") if $all || rand() < 0.3;
	return Nemesis::pick('FIRST', 'ANY') . " 1 $list";
}

# Noted when somebody has to confirm, after nobody had
sub set_synchronous
{
	my ($n, $names) = @_;
	my ($needed) = names_of($n);

	spit("$dir/asynchronous", '') if $names eq '' || !$needed;
	event('names', $n, $names);
	spit("$dir/disk/server$n/chaos.conf", $names eq '' ? '' : "synchronous_standby_names = '$names'\n");
	ctl($n, 'reload') if server_running($n);
	return;
}

# A standby has names, too: it waits from its first commit on, when it is promoted.
sub name_before_promotion
{
	my ($n) = @_;
	my $names = any_names($n);

	event('names', $n, $names);
	spit("$dir/asynchronous", '');
	spit("$dir/disk/server$n/chaos.conf",
		slurp("$dir/disk/server$n/chaos.conf") . "synchronous_standby_names = '$names'\n");
	ctl($n, 'reload');
	return;
}

# For how many seconds the primary has waited for any standby
sub synchronous_for { return time - (stat("$dir/asynchronous"))[9] - 1; }

# ... for the same ones
sub same_names_for
{
	return time - (stat("$dir/disk/server" . primary() . '/chaos.conf'))[9] - 1;
}

# --- the standbys

# Makes server $n a standby of the primary, from its own data or from a new copy. It
# is the replication that goes through the proxy, not the copying.
sub build_standby
{
	my ($n, $rewinds) = @_;
	my $data = "$dir/disk/server$n";
	my $source = "host=$dir port=" . port_of(primary()) . ' user=postgres';

	# It has to know its new timeline.
	sql(primary(), 'CHECKPOINT', 20) if $rewinds;
	system("rm -rf '$data'") unless $rewinds;
	system('timeout -k 1 60 ' . ($rewinds ? "pg_rewind -N --source-server '$source dbname=postgres'"
			: "pg_basebackup -c fast -X stream -d '$source'") . " -D '$data' >>'$out/ctl.out' 2>&1") == 0
	  or return 0;
	follow($n, primary());
	event($rewinds ? 'rewound' : 'copied', $n);
	spit("$data/standby.signal", '');
	spit("$data/chaos.conf", "primary_conninfo = 'host=127.0.0.1 port=" . port_of("r$n")
		  . " user=postgres application_name=server$n connect_timeout=2'\n");
	write_settings($n);
	return start_server($n);
}

# Waits until all standbys follow, and has the primary wait for them from then on, if
# it waits for none. One that follows another standby need not be seen.
sub attach_standbys
{
	my ($seconds) = @_;
	my $p = primary();
	my $end = stopwatch() + $seconds;

	while (stopwatch() < $end)
	{
		my %state = map { split /\|/ } split /\n/, sql($p, "SELECT right(application_name, 1), sync_state
			FROM pg_stat_replication WHERE state = 'streaming' AND application_name ~ '^server.\$'") // '';

		if (!grep { !$state{$_} && (upstream($_) // 0) == $p } standbys())
		{
			my (undef, @named) = names_of($p);

			return 1 if grep { /^(sync|quorum)$/ } values %state;
			set_synchronous($p, any_names($p)) if %state && !grep { $_ != $p } @named;
		}
		sleep 0.1;
	}
	return 0;
}

1;
