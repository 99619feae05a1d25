# What is done to the candidates, the servers and the network: the table of
# faults, and the profiles that favour some of them.
#
# A fault is injected by a function, which returns what it did it to, or undef
# if there was nothing to do it to. What has to be undone is undone some time
# later by whatever it gave to heal().

package Nemesis;

use strict;
use warnings;

use Calm;
use Cluster;
use Exporter qw(import);
use Failover;
use List::Util qw(sum);
use Pressure;
use StandbyFaults;
use Time::HiRes qw(sleep time);
use Wide;

our @EXPORT = qw(
  inject heal_due heal_all resume_elections alter_group note_groups seats present_seats
  %candidates %elections %kept_elections %groups $most_seats $small_disk
);

our %candidates;	# name => {pid, kind, ...}, see chaos.pl
our %elections;		# name => arguments of create_election()
our %kept_elections;	# the same; these are not altered, nor dropped
our %groups;		# name => arguments of create_group()
our $most_seats = 4;	# of a group
our $small_disk = 0;	# the servers' disk may be filled

my @heals;			# [when, what, number of the fault]
my $injected = 0;	# faults

sub pick { return @_ ? $_[ int(rand(@_)) ] : undef; }

sub heal
{
	my ($seconds, $code) = @_;

	push @heals, [ now() + $seconds * 1_000_000, $code ];
	return;
}

sub heal_due
{
	my @due = grep { $_->[0] <= now() } @heals;

	@heals = grep { $_->[0] > now() } @heals;
	undo(@due);
	return;
}

sub heal_all
{
	undo(splice @heals);
	return;
}

sub undo
{
	foreach (@_)
	{
		$_->[1]->();
		event('over', $_->[2]) if $_->[2];
	}
	return;
}

# Stops processes for up to so many seconds.
sub pause
{
	my ($seconds, @pids) = @_;

	return 0 unless @pids && kill('STOP', @pids);
	heal(rand($seconds), sub { kill 'CONT', @pids });
	return 1;
}

# --- clients

# All but those of the calm elections
sub disturbed_candidates { return grep { !is_calm($_) } sort keys %candidates; }

sub any_candidate
{
	return pick(grep { running($candidates{$_}{pid}) } disturbed_candidates());
}

sub detached_candidates
{
	return grep { $candidates{$_}{kind} =~ /detached/ && running($candidates{$_}{pid}) }
	  disturbed_candidates();
}

# pg_leader, its guardian, or the command: never the first two at a time
sub process_of
{
	my ($name) = @_;
	my $pid = $candidates{$name}{pid};
	my @all = ($pid);

	return $pid unless $candidates{$name}{kind} =~ /^pg_leader/;
	for (my $i = 0; $i < @all; $i++)
	{
		push @all, split ' ', slurp("/proc/$all[$i]/task/$all[$i]/children");
	}
	return @all > 2 ? pick($all[0], $all[2]) : $pid;
}

sub kill_client
{
	my $name = any_candidate() // return;
	my $pid = process_of($name);

	kill 'KILL', $pid;
	return $name . ($pid == $candidates{$name}{pid} ? '' : ', its command');
}

sub stop_client
{
	my $name = any_candidate() // return;

	return pause(2 * $lease_ms / 1000, process_of($name)) ? $name : undef;
}

# --- server processes

# One process of the primary that this condition on pg_stat_activity is true of
sub backend
{
	my ($condition) = @_;
	my $row = sql(primary(),
		"SELECT pid, backend_type, application_name FROM pg_stat_activity
		WHERE $condition AND application_name NOT IN ('nemesis', 'snapshot') AND application_name !~ '^calm' ORDER BY random() LIMIT 1", 2)
	  // return;

	return split /\|/, $row;
}

my $CLIENTS = "backend_type = 'client backend'";
my $WORKER = "backend_type = 'leader_election worker'";
our $LEADERS = "pid IN (SELECT backend_pid FROM leader_election.lease)";

sub signal_backend
{
	my ($signal, $condition, $seconds) = @_;
	my ($pid, @who) = backend($condition);

	return unless $pid;
	return kill($signal, $pid) ? "@who" : undef if $signal ne 'STOP';
	return unless kill 'STOP', $pid;
	my ($n, $since, $idle) = (primary(), now());

	heal(rand($seconds), sub { note_standstill($n, $since) unless $idle || $edition eq 'portable'; kill 'CONT', $pid; });
	$idle = is_idle($pid);
	return "@who" . ($idle ? ', idle' : '');
}

# A process that is stopped while it writes WAL holds a lock of PostgreSQL's, and nothing is
# committed in the whole server until it goes on. That is so if statements have waited for such a
# lock for 0.3 s. (Procedures may have begun to wait for something else then.) If the server does
# not answer at all, that counts, too.
sub note_standstill
{
	my ($n, $since) = @_;
	my $waiting = sql($n, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'LWLock' AND wait_event ~ '^WAL'
		AND query_start < clock_timestamp() - interval '0.3 s' AND query !~* '^ *CALL'", 1);

	event('standstill', $since, defined $waiting ? 'WAL' : 'no answer') unless defined $waiting && $waiting eq '0';
	return;
}

# Does a process that is stopped certainly hold nothing that others wait for? It waited
# for something itself, outside of a transaction that writes.
sub is_idle
{
	my ($pid) = @_;

	return (sql(primary(), "SELECT count(*) FROM pg_stat_activity a WHERE pid = $pid
		AND (state = 'idle' OR wait_event_type IN ('Client', 'Activity', 'Extension'))
		AND NOT EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND granted
			AND (locktype = 'transactionid' OR locktype = 'advisory' AND objsubid IN (21, 22, 25, 29)
				OR locktype = 'relation' AND mode ~ 'Exclusive'))", 2) // '') eq '1';
}

# A process of a standby: what receives its WAL, or what replays it
sub stop_replication
{
	my ($kind) = @_;
	my $n = standby();
	my $pid = sql($n, "SELECT pid FROM pg_stat_activity WHERE backend_type = '$kind'", 2);

	return if operation_running();
	return $pid && pause(2, $pid) ? "of server$n" : undef;
}

# --- the network

sub cut
{
	my ($name, $seconds) = @_;

	my $proxy = proxy_pid($name);

	event('cut', $name);
	kill 'STOP', $proxy or return;
	heal(rand($seconds), sub { kill 'CONT', $proxy; event('healed', $name); });
	return $name;
}

sub slow_down
{
	my ($name, $seconds) = @_;

	kill 'USR2', proxy_pid($name);
	heal(rand($seconds), sub { kill 'USR1', proxy_pid($name) });
	return $name;
}

sub reset_network
{
	my ($name) = @_;

	return kill(pick('HUP', 'USR1'), proxy_pid($name)) ? $name : undef;
}

sub kill_pooler
{
	return unless running(pooler_pid());
	kill 'KILL', pooler_pid();
	heal(rand(1), sub { start_pooler() unless running(pooler_pid()) });
	return 'pooler';
}

# --- the servers

# Does something, if that is given, while the server is down
sub restart
{
	my ($mode, $n, $between) = @_;

	return operation("restart $mode", sub {
		if ($mode eq 'kill')
		{
			kill 'KILL', postmaster($n) // 0;
		}
		else
		{
			# A process that is stopped would hold up a fast stop.
			ctl($n, "-m $mode -w -t 5 stop") || ctl($n, '-m immediate -w stop');
		}
		sleep rand(1);
		$between->() if $between;
		for (1 .. 20)
		{
			return if start_server($n);
			sleep 0.5;
		}
		die "server$n does not start; of it is left: " . left_processes($n);
	}) ? "server$n" : undef;
}

# Nothing more can be written; only where the servers have a disk of their own.
sub fill_disk
{
	return unless $small_disk;
	return operation('full disk', sub {
		my ($free) = `df --output=avail -B1 '$dir/disk'` =~ /^(\d+)$/m;

		system('fallocate', '-l', $free - ($free > 1e6 ? int(rand(1e6)) : 0), "$dir/disk/ballast");

		# Until no segment of WAL is left that could be used again
		for (1 .. int(rand(12)))
		{
			sql(primary(), [ "SELECT pg_logical_emit_message(true, '', '')", 'SELECT pg_switch_wal()' ], 2) // last;
		}
		sleep rand(2);
		unlink "$dir/disk/ballast";

		# Where recovery fails after a crash, PostgreSQL 18 goes on without it, and
		# accepts no connections for ever.
		foreach my $n (@servers)
		{
			ctl($n, '-m immediate -w stop') if server_running($n) && !defined sql($n, 'SELECT 1');
			start_server($n) unless server_running($n);
		}
	}) ? 'all servers' : undef;
}

# The servers' wall clocks, not their monotonic ones
sub set_clock
{
	my ($only_back) = @_;

	return unless $clock;

	my $offset = $only_back ? slurp("$dir/clock") - 1 - int(rand(3)) : int(rand(7)) - 3;

	return if slurp("$dir/clock") == $offset;
	spit("$dir/clock", sprintf("%+d\n", $offset));
	my $before = time;
	my $seen = sql(primary(), 'SELECT extract(epoch FROM clock_timestamp())');
	note_failure("the clock is not $offset s ahead: $seen, from $before to " . time)
	  if defined $seen && ($seen < $before + $offset - 0.01 || $seen > time + $offset + 0.01);
	return "$offset s";
}

# --- what operators and applications do

sub long_transaction
{
	my $seconds = 1 + int(rand(5));

	sql_async(primary(), pick(
			"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM leader_election.lease; SELECT pg_sleep($seconds); COMMIT",
			"BEGIN; SELECT pg_current_xact_id(); SELECT leader_election.leader('race'); SELECT pg_sleep($seconds); COMMIT",
			"BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM leader_election.history; SELECT pg_sleep($seconds); COMMIT"));
	return "$seconds s";
}

sub any_table
{
	return pick($edition eq 'portable' ? qw(election lease candidate history dropped server)
		: qw(election lease candidate history epoch pause_all drain announced election_group dropped));
}

sub lock_table
{
	my $table = any_table();
	my $mode = pick('ACCESS EXCLUSIVE', 'EXCLUSIVE', 'SHARE');
	my $seconds = sprintf '%.1f', rand($lease_ms / 1000);

	sql_async(primary(), "SET lock_timeout = '2s'; BEGIN; LOCK TABLE leader_election.$table IN $mode MODE; SELECT pg_sleep($seconds); COMMIT");
	return "$table $mode";
}

sub lock_row
{
	my $seconds = sprintf '%.1f', rand($lease_ms / 1500);
	my $election = any_election();

	sql_async(primary(), "BEGIN; SELECT 1 FROM leader_election.lease WHERE election = '$election'
		FOR UPDATE; SELECT pg_sleep($seconds); COMMIT");
	return "lease of $election";
}

sub maintain
{
	my $table = any_table();
	my $what = pick('VACUUM FULL', 'VACUUM FREEZE', 'REINDEX TABLE', 'REINDEX TABLE CONCURRENTLY', 'ANALYZE', 'CLUSTER');
	my $sql = "$what leader_election.$table" . ($what eq 'CLUSTER' ? " USING ${table}_pkey" : '');

	end_snapshot() if $what =~ /CONCURRENTLY/;

	# Who waits for a huge statement may not hold up everybody for as long as that takes.
	sql_async(primary(), [ "SET lock_timeout = '2s'", $sql ]);
	return $sql;
}

sub dump_database
{
	start_process('pg_dump', 'timeout', 10, 'pg_dump', '-d',
		(client_connections('pg_dump', 'postgres'))[0],
		'-f', '/dev/null');
	return 'postgres';
}

# In another database of the same servers
sub change_extension
{
	sql_async(primary(), pick(
			'DROP EXTENSION IF EXISTS leader_election; DROP SCHEMA IF EXISTS leader_election CASCADE',
			'CREATE EXTENSION IF NOT EXISTS leader_election',
			[ "SELECT leader_election.join('race', 'other')", 'SELECT pg_sleep(1)' ]),
		5, 'other');
	return 'other';
}

# The seats of all groups that have these numbers
sub seats
{
	my (@numbers) = @_;

	return map { my $group = $_; map { "$group/$_" } @numbers } sort keys %groups;
}

sub any_election { return pick(sort(keys %elections, keys %kept_elections), seats(1 .. $most_seats)); }

sub request_yield
{
	my $election = shift // any_election();
	my $terminate = rand() < 0.3 && $edition eq 'extension' ? 'true' : 'false';
	my $to = rand() < 0.3
	  ? "(SELECT candidate FROM leader_election.candidates WHERE election = '$election' AND alive AND NOT leads ORDER BY random() LIMIT 1)"
	  : 'NULL';

	event('named', $election) if $to ne 'NULL';
	sql_async(primary(), "SELECT leader_election.request_yield('$election', $to, $terminate)");
	return $election;
}

# Pauses an election, or all of them, until it is resumed or, sometimes, for a
# duration.  Long enough that what was under way is over meanwhile; and not again
# before the statement that resumes it is over, too.
my %paused;	# until when

sub pause_elections
{
	my $what = rand() < 0.3 ? 'all' : any_election();
	my $seconds = sprintf '%.3f', (3 + 2 * rand) * $lease_ms / 1000;
	my $ends = $what ne 'all' && rand() < 0.3;
	my $sent = now();

	return if ($paused{$what} // 0) > now();
	event('pausing', $what);
	defined sql(primary(), $what eq 'all' ? "SELECT leader_election.pause_all('chaos')"
		: "SELECT leader_election.pause_election('$what', 'chaos', "
		  . ($ends ? "'$seconds s'" : 'NULL') . ', ' . (rand() < 0.5 ? 'true' : 'false') . ')', 3)
	  or return;
	$paused{$what} = now() + 3_600_000_000;
	event('paused', $what, $ends ? $sent + $seconds * 1e6 : ());
	heal($seconds, sub {
		event('resuming', $what);
		$paused{$what} = now() + 15_000_000;
		note_end(sql_async(primary(), $what eq 'all' ? 'SELECT leader_election.resume_all()'
				: "SELECT leader_election.resume_election('$what')"), 'resumed', $what);
	});
	return $what;
}

# Drains one candidate, or all of a kind, in one election or in all. For so long
# that what was under way is over meanwhile; and not again before the statement that
# ends it is over, too.
my %drained;	# until when

sub drain_candidates
{
	my $election = rand() < 0.4 ? 'all' : any_election();
	my $in = $election eq 'all' ? '' : $election =~ s{/\d+$}{*$most_seats}r;
	my $names = pick(grep { $candidates{$_}{kind} !~ /listener|watcher/
			  && index("@{ $candidates{$_}{in} }", $in) >= 0 } disturbed_candidates());
	my $arguments;

	$names .= '*' if $candidates{$names}{members};		# whose names begin so
	$names =~ s/\d+$/*/ if rand() < 0.4;
	$arguments = "'$names', " . ($election eq 'all' ? 'NULL' : "'$election'");
	return if ($drained{"$election $names"} // 0) > now();
	event('draining', $election, $names);
	defined sql(primary(), "SELECT leader_election.drain_candidate($arguments, 'chaos')", 3)
	  or return;
	$drained{"$election $names"} = now() + 3_600_000_000;
	event('drained', $election, $names);
	heal((3 + 3 * rand) * $lease_ms / 1000, sub {
		event('undraining', $election, $names);
		$drained{"$election $names"} = now() + 15_000_000;
		note_end(sql_async(primary(), "SELECT leader_election.undrain_candidate($arguments)"),
			'undrained', $election, $names);
	});
	return "$names in $election";
}

# Nothing is paused, and nobody drained, any more.  False: the server does not say so.
sub resume_elections
{
	return defined sql(primary(), "SELECT leader_election.resume_all(),
		(SELECT count(leader_election.resume_election(election)) FROM leader_election.election
			WHERE paused_at IS NOT NULL),
		(SELECT count(leader_election.undrain_candidate(candidate, nullif(election, ''))) FROM leader_election.drain)");
}

# A group gets another strategy, more or fewer seats, and another limit: what it was
# when it was made, and from then on. (At least two seats stay: session.c joins
# these by name.)  False: the server does not say that it was done.
my %present;	# seats of each group
my $change = 0;

sub alter_group
{
	my $group = pick(sort keys %groups);
	my ($seats, $limit) = (2 + int(rand($most_seats - 1)), 1 + int(rand(1.5)));
	my $strategy = pick(qw(race spread));

	$change++;
	event('altering', $group, $change, $seats, $limit);
	defined sql(primary(), "SELECT leader_election.alter_group('$group', seats => $seats,
		max_per_candidate => $limit, strategy => '$strategy')", 3)
	  or return;
	event('altered', $group, $change);
	$present{$group} = $seats;
	return "$group $seats $strategy $limit";
}

# As they were made
sub note_groups
{
	foreach my $group (sort keys %groups)
	{
		my ($seats, undef, $limit) = split /, /, $groups{$group};

		event('altering', $group, ++$change, $seats, $limit);
		event('altered', $group, $change);
	}
	return;
}

sub present_seats { return map { my $group = $_; map { "$group/$_" } 1 .. $present{$group} } sort keys %groups; }

# Drops an election, once nobody leads it, and creates it again, unless somebody
# who stands has done so.
sub recreate_election
{
	my $election = pick(sort keys %elections);

	return operation("recreate $election", sub {
		my ($p, $end) = (primary(), now() + 3_000 * $lease_ms);

		sql($p, [ "SELECT leader_election.alter_election('$election', quorum => 1000)",
				"SELECT leader_election.request_yield('$election', terminate => @{[ $edition eq 'extension' ? 'true' : 'false' ]})" ]);
		until (defined sql($p, "SELECT leader_election.drop_election('$election')") || now() > $end)
		{
			sleep 0.1;
		}

		# A call whose client has given up on it would drop the new one.
		sql($p, "SELECT count(pg_terminate_backend(pid, 1000)) FROM pg_stat_activity
			WHERE query = 'SELECT leader_election.drop_election(''$election'')'", 10);
		for (1 .. 30)
		{
			foreach my $function (qw(create_election alter_election))
			{
				return if defined sql($p, "SELECT leader_election.$function('$election', $elections{$election})");
			}
			sleep 0.5;
		}
		die 'not possible';
	}) ? $election : undef;
}

sub alter_election
{
	my $election = pick(sort(keys %elections), keys %groups);
	my $kind = $groups{$election} ? 'group' : 'election';
	my $ms = int($lease_ms * (0.75 + rand(0.5)));
	my $delay = int(rand(300));
	my $preempt = rand() < 0.5 ? 0 : int(rand(2 * $lease_ms));
	my $initial = rand() < 0.5 ? 0 : int(rand(300));

	$preempt = $initial = 0 if $edition eq 'portable';

	sql_async(primary(), "SELECT leader_election.alter_$kind('$election', lease_duration => '$ms ms',
		takeover_delay => '$delay ms', preempt_delay => '$preempt ms', initial_delay => '$initial ms')");
	return "$election $ms $delay $preempt $initial";
}

# name => [function, weight in each profile]. A profile favours what brings out
# a kind of defect; "all" is the run.
my %faults = (
	#                                                                 all split fence
	'kill client' => [ \&kill_client,                                  10,  2,  4 ],
	'stop client' => [ \&stop_client,                                  10,  2,  8 ],
	'terminate backend' => [ sub { signal_backend('TERM', $CLIENTS) },  5,  0,  2 ],
	'terminate leader' => [ sub { signal_backend('TERM', $LEADERS) },   5,  0,  4 ],
	'cancel' => [ sub { signal_backend('INT', "$CLIENTS AND state = 'active'") }, 5, 1, 0 ],
	'cancel worker' => [ sub { signal_backend('INT', $WORKER) },        2,  1,  0 ],
	'kill backend' => [ sub { signal_backend('KILL', $CLIENTS) },       1,  0,  0 ],
	'stop backend' => [ sub { signal_backend('STOP', $CLIENTS, 2) },    5,  0,  2 ],
	'stop leader' => [ sub { signal_backend('STOP', $LEADERS, 3) },     3,  0,  4 ],
	'terminate worker' => [ sub { signal_backend('TERM', $WORKER) },    4,  0,  2 ],
	'kill worker' => [ sub { signal_backend('KILL', $WORKER) },         1,  0,  0 ],
	'stop worker' => [ sub { signal_backend('STOP', $WORKER, 2) },      4,  1,  4 ],
	'stop walsender' => [ sub { signal_backend('STOP', "backend_type = 'walsender'", 2) }, 2, 0, 0 ],
	'stop walreceiver' => [ sub { stop_replication('walreceiver') },                          2,  0,  0 ],
	'cancel waits for standby' => [ \&cancel_sync_waits,                6,  4,  0 ],
	'cut clients' => [ sub { cut('c' . primary(), 2) },                 3,  0,  2 ],
	'cut pooler' => [ sub { cut('b', 2) },                              2,  0,  0 ],
	'cut replication' => [ sub { operation_running() ? undef : cut('r' . standby(), 2) }, 4, 0, 0 ],
	'reset clients' => [ sub { reset_network('c' . primary()) },        2,  0,  1 ],
	'reset pooler' => [ sub { reset_network('b') },                     2,  0,  0 ],
	'slow replication' => [ sub { operation_running() ? undef : slow_down('r' . standby(), 2) }, 2, 0, 0 ],
	'reset replication' => [ sub { operation_running() ? undef : reset_network('r' . standby()) }, 2, 0, 0 ],
	'kill pooler' => [ \&kill_pooler,                                   2,  0,  0 ],
	'stop pooler' => [ sub { pause(2, pooler_pid()) ? 'pooler' : undef }, 2, 0, 0 ],
	'immediate restart' => [ sub { restart('immediate', primary()) },   3,  0,  0 ],
	'fast restart' => [ sub { restart('fast', primary()) },             1,  0,  0 ],
	'kill postmaster' => [ sub { restart('kill', primary()) },          2,  0,  0 ],
	'restart standby' => [ sub { restart('immediate', standby()) },     1,  0,  0 ],
	'standby forgotten' => [ \&forget_standby,                           1,  0,  0 ],
	'failover, crashed' => [ sub { fail_over('crash') },                2,  1,  0 ],
	'failover, split' => [ sub { fail_over('split') },                  2, 10,  0 ],
	'full disk' => [ \&fill_disk,                                        3,  0,  0 ],
	'set clock' => [ \&set_clock,                                        4,  0,  0 ],
	'long transaction' => [ \&long_transaction,                         3,  0,  0 ],
	'lock table' => [ \&lock_table,                                     4,  0,  0 ],
	'lock row' => [ \&lock_row,                                         3,  0,  0 ],
	'maintenance' => [ \&maintain,                                      4,  0,  0 ],
	'pg_dump' => [ \&dump_database,                                     1,  0,  0 ],
	'extension elsewhere' => [ \&change_extension,                      2,  0,  0 ],
	'request yield' => [ \&request_yield,                               4,  1,  4 ],
	'request yield of a seat' => [ sub { request_yield(pick(seats(1 .. $most_seats))) }, 3, 1, 8 ],
	'pause elections' => [ \&pause_elections,                           4,  1,  4 ],
	'drain candidates' => [ \&drain_candidates,                         5,  1,  6 ],
	'alter group' => [ \&alter_group,                                   4,  1,  8 ],
	'alter election' => [ \&alter_election,                             2,  0,  0 ],
	'recreate election' => [ \&recreate_election,                       3,  0,  4 ],
	'hold twin election' => [ \&hold_twin,                              2,  0,  4 ],
);
my %column = (all => 1, clock => 1, split => 2, fence => 3, quorum => 2, pressure => 1, back => 3, linear => 1, day => 1);

# What there is not in the portable edition; and what it does not promise to survive:
# see cancel_sync_waits().
my $EXTENSION = qr/worker|seat|pause|drain|group|twin|extension|cancel/;

# What makes an answer less than exact, and is allowed to: see ../linear/README.md.
my $INEXACT = qr/^(?:cancel waits|lock table|maintenance|alter group|recreate|hold twin)/;

# What there is not in a day of one server; and what changes the elections for good:
# the end of it is compared with the beginning.
my $NOT_IN_A_DAY = qr/walsender|walreceiver|standby|replication|failover|full disk|clock|group|seat|twin|alter|extension/;

# Does one thing, chosen at random. In a narrow round, nothing that hits a whole server;
# and nothing that hits the worker, if that is what $narrow says.
sub inject
{
	my ($profile, $narrow) = @_;
	my $c = $column{$profile};
	my %chosen = map { $_ => [ @{ $faults{$_} }[ 0, $c ] ] } keys %faults;

	%chosen = (%chosen, %standby_faults) if $profile eq 'quorum';
	%chosen = (%chosen, pressure_faults($profile)) if $edition eq 'extension';
	$chosen{'set clock'} = [ sub { set_clock(1) }, 6 ] if $profile eq 'back';
	delete @chosen{ grep { /$EXTENSION/ } keys %chosen } if $edition eq 'portable';
	delete @chosen{ grep { /$INEXACT/ } keys %chosen } if $profile eq 'linear';
	delete @chosen{ grep { /$NOT_IN_A_DAY/ } keys %chosen } if $profile eq 'day';
	delete @chosen{ grep { /worker/ } keys %chosen } if $narrow && $narrow eq 'worker';
	delete @chosen{ grep { /$WIDE/ } keys %chosen } if $narrow;

	my $left = rand(sum(map { $_->[1] } values %chosen));

	foreach my $name (sort keys %chosen)
	{
		$left -= $chosen{$name}[1];
		next if $left >= 0;

		my $what = $chosen{$name}[0]->();

		last unless defined $what && $what ne '';
		event('fault', "$name:", $what);
		$injected++;
		$_->[2] //= $injected foreach @heals;
		last;
	}
	return;
}

1;
