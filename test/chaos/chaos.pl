# The chaos run: starts the cluster and the candidates, lets the nemesis loose in
# rounds, each of which ends with a calm in which every election has to find a
# leader, and leaves in a folder what check.pl looks at.
#
#	perl chaos.pl --dir DIR --seconds N --seed N [--edition extension|portable]
#	     [--profile all|clock|split|fence|quorum|pressure] [--many N] [--clients]
#	     [--small-disk]
#
# DIR has the programs of compile.sh, and a folder disk for the servers,
# which may be a small file system. run is what starts this.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use Calm;
use Cluster;
use Getopt::Long;
use Languages;
use Nemesis;
use Pressure;
use Replication;
use Time::HiRes qw(sleep time);

my $LONG_CALM = 8;	# seconds: see Check/Announced.pm

my %option = (seconds => 60, seed => 1, profile => 'all', edition => 'extension');

GetOptions(\%option, 'dir=s', 'edition=s', 'seconds=i', 'seed=i', 'profile=s', 'many=i', 'clients', 'small-disk') or die;
$dir = $option{dir};
$out = "$dir/out";
mkdir $out;
srand($option{seed});
$small_disk = $option{'small-disk'};
$edition = $option{edition};
$clock = "$dir/clock.so" if $option{profile} =~ /^(clock|back)$/;
$lease_ms = 3000 if $option{profile} =~ /^(split|quorum)$/;
@servers = (1 .. 3) if $option{profile} eq 'quorum';
$many = $option{many} // $many;

# A server that has no slot for any worker
$synchronous_commit = 'remote_apply' if $option{profile} =~ /^(?:all|pressure)$/ && $option{seed} % 3 == 1;
$workers = 0 if $option{profile} eq 'pressure' && $option{seed} % 4 == 0;

# Room for huge statements. The worker keeps a copy of a lock table that is full, 60 bytes
# for each lock, which has to be less than what Check/Growth.pm allows.
$locks = $many > 1000 ? 512 : 128 if $option{profile} eq 'pressure';

# Strategy, lease, quorum, takeover delay
%elections = (
	race => "'race', '$lease_ms ms', 1, '0'",
	lone => "'race', '$lease_ms ms', 1, '0'",
	runs => "'race', '$lease_ms ms', 1, '0'",
	bully => "'bully', '$lease_ms ms', 1, '0'",
	spread1 => "'spread', '$lease_ms ms', 1, '0'",
	spread2 => "'spread', '$lease_ms ms', 1, '0'",
	zab => "'zab', '$lease_ms ms', 2, '100 ms'",
);

# These, their candidates and what serves them are left alone: see Calm.pm. The second
# name has been chosen for one that would share a lock with it: see hold_twin().
%calm_elections = (
	calm => "'race', '$lease_ms ms', 1, '0'",
	$calm_twin => "'race', '$lease_ms ms', 1, '0'",
);

# Seats, strategy, limit of each candidate, lease, quorum, takeover delay. There are
# more and fewer seats now and then, but never more or fewer than these.
%groups = (crew => "3, 'race', 1, '$lease_ms ms', 1, '0'");

# The portable edition has one strategy, no groups and no worker.
if ($edition eq 'portable')
{
	$workers = 0;
	%groups = ();
	delete @elections{qw(bully spread1 spread2 zab)};
	$elections{quorum} = "'race', '$lease_ms ms', 2, '100 ms'";
}

# Those of the project's clients. One that stands in a session leads until half a lease has
# passed, where the word that the server has ended the session does not reach it: its
# election has to have a takeover delay, and to keep it.
if ($option{clients})
{
	$elections{jobs} = "'race', '$lease_ms ms', 1, '0'";
	%kept_elections = (apps => "'race', '$lease_ms ms', 1, '$lease_ms ms'");
}
my @elections = sort keys %elections, keys %kept_elections, keys %calm_elections, seats(1 .. $most_seats);

# Candidates: kind, the connection (d: direct, p: through the pooler), and in
# what they stand. A session always comes before a detached candidate in a
# race, so those have one of their own.
my @sessions = qw(race bully zab);
my @detached = (qw(lone runs bully zab), $option{clients} ? 'jobs' : ());
my @spread = qw(spread1 spread2);
my @crew = ("crew*$most_seats");
%candidates = (
	s1 => { kind => 'session', via => 'd', in => [ @sessions, @spread ] },
	s2 => { kind => 'session', via => 'd', in => [ @sessions, @spread, @crew ] },
	s3 => { kind => 'session', via => 'd', in => \@sessions },
	m1 => { kind => 'manual', via => 'd', in => \@sessions },
	m2 => { kind => 'manual', via => 'd', in => [ @sessions, @crew ] },
	d1 => { kind => 'detached', via => 'd', in => \@detached },
	d2 => { kind => 'detached', via => 'd', in => [ @detached, @crew ] },
	p1 => { kind => 'detached', via => 'p', in => [ @detached, @spread, @crew ] },
	p2 => { kind => 'detached', via => 'p', in => \@detached },
	g1 => { kind => 'session', via => 'd', in => \@crew },
	g2 => { kind => 'manual', via => 'd', in => \@crew },
	g3 => { kind => 'detached', via => 'd', in => \@crew },
	g4 => { kind => 'detached', via => 'd', in => \@crew },
	g5 => { kind => 'detached', via => 'p', in => \@crew },
	g6 => { kind => 'detached', via => 'p', in => \@crew },
	calm1 => { kind => 'session', via => 'd', in => [$calm_twin] },
	calm2 => { kind => 'session', via => 'd', in => [$calm_twin] },
	calm3 => { kind => 'detached', via => 'd', in => ['calm'] },
	calm4 => { kind => 'detached', via => 'd', in => ['calm'] },
	l1 => { kind => 'pg_leader detached', via => 'd', in => ['lone'] },
	l2 => { kind => 'pg_leader session', via => 'd', in => ['race'] },
	listener => { kind => 'listener', via => 'd', in => ['race'] },
	listener2 => { kind => 'listener', via => 'd', in => ['race'] },
	listener3 => { kind => 'restless listener', via => 'd', in => ['race'] },
	w1 => { kind => 'watcher changes', via => 'd', in => \@elections },
	w2 => { kind => 'watcher changes', via => 'd', in => \@elections },
	w3 => { kind => 'watcher status', via => 'd', in => \@elections },
);

# ... and its sessions renew their leases themselves.
if ($edition eq 'portable')
{
	delete @candidates{qw(g1 g2 g3 g4 g5 g6)};
	foreach my $c (values %candidates)
	{
		next if $c->{kind} =~ /^(watcher|.*listener)/;
		$c->{kind} = 'manual' if $c->{kind} eq 'session';
		$c->{in} = [ map { s/^zab$/quorum/r } grep { !/^(bully|spread\d|crew.*)$/ } @{ $c->{in} } ];
	}
	$ENV{PG_LEADER_PORTABLE} = 1;

	# It sleeps between its looks, and by the wall clock: for as long as that is set back.
	$ENV{CHAOS_NO_CAMPAIGN} = 1 if $option{profile} eq 'back';
}

if ($option{clients})
{
	$candidates{$_} = { kind => $_, via => 'd', members => [ [qw(session apps)], [qw(detached jobs)] ], in => [qw(apps jobs)] }
	  foreach @LANGUAGES;
}

sub start_candidate
{
	my ($name) = @_;
	my $c = $candidates{$name};
	my $instance = ++$c->{instance};
	my @connections =
	  $c->{via} eq 'p' ? pooled_connection($name)
	  : client_connections($name);
	my @arguments = (
		$name, $instance, $option{seed}, "$out/candidate.$name.$instance",
		"$dir/resource", join('|', @connections), $lease_ms, @{ $c->{in} });

	local %ENV = (%ENV, $c->{pressed} ? (PGOPTIONS => draw_timeouts($name)) : ());
	if ($c->{members})
	{
		my ($pool_port) = pooled_connection($name) =~ /port=(\d+)/;

		$c->{pid} = start_language($name, $c, $connections[ $instance % @connections ], $pool_port, 'pool');
	}
	elsif ($c->{kind} =~ /^pg_leader (\w+)/)
	{
		$c->{pid} = start_process("pg_leader.$name", 'pg_leader', 'run', '-d',
			$connections[ $instance % @connections ], '-e', $c->{in}[0], '-n', $name, "--mode=$1", '--forever',
			'--grace=200ms', '--', "$dir/candidate", 'command', @arguments);
	}
	elsif ($c->{kind} =~ /^watcher (\w+)/)
	{
		$c->{pid} = start_process('watcher.out', "$dir/watcher", $1, $name,
			$option{seed} * 1000 + $instance, "$out/candidate.$name.$instance",
			join('|', @connections), @{ $c->{in} });
	}
	else
	{
		$c->{pid} = start_process('candidate.out', "$dir/candidate", $c->{kind},
			@arguments);
	}
	$c->{restart_at} = undef;
	return;
}

# A process that has ended is started again after a while.
sub look_after_candidates
{
	my ($at_once) = @_;

	foreach my $name (sort keys %candidates)
	{
		my $c = $candidates{$name};

		next if running($c->{pid});
		$c->{restart_at} //= now() + rand(1_500_000);
		start_candidate($name) if $at_once || now() >= $c->{restart_at};
	}
	return;
}

# What there is to be done after this edition was installed, as statements
sub install
{
	return 'CREATE EXTENSION leader_election' if $edition eq 'extension';
	system("psql -Xq -v ON_ERROR_STOP=1 -v anyway=1 -d 'host=$dir port=@{[ port_of(1) ]} user=postgres dbname=postgres' "
		  . "-f '$FindBin::RealBin/../../sql/portable.sql' >>'$out/psql.out' 2>&1") == 0
	  or die 'portable.sql fails';
	return "SELECT leader_election.configure(lease_duration => '$lease_ms ms')";
}

sub set_up
{
	watch_for_stalls();
	start_cluster($option{seed} % 2);
	sql(1, $_, 60) // die "failed: $_" foreach (
		'CREATE DATABASE other',
		install(),
		'CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA leader_election TO app;
		GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app;
		CREATE SCHEMA chaos AUTHORIZATION app',
		(map { "SELECT leader_election.create_election('$_', " . ($elections{$_} // $kept_elections{$_} // $calm_elections{$_}) . ')' }
			  sort keys %elections, keys %kept_elections, keys %calm_elections),
		$edition eq 'portable' ? () : "SELECT leader_election.create_election('$twin')",
		(map { "SELECT leader_election.create_group('$_', $groups{$_})" } sort keys %groups),
		map { qq(CREATE TABLE chaos."w_$_" (term bigint NOT NULL, candidate text NOT NULL, id bigint NOT NULL, written timestamptz DEFAULT clock_timestamp());
			ALTER TABLE chaos."w_$_" OWNER TO app;
			CREATE TRIGGER only_leader BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON chaos."w_$_"
			FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('$_'))
		} @elections);
	note_groups();
	set_up_pressure($option{profile}) if $edition eq 'extension';
	build_standby($_) or die 'no standby' foreach standbys();
	attach_standbys(60) or die 'the standbys do not follow';
	start_process('resource', 'perl', "$FindBin::RealBin/resource.pl",
		"$dir/resource", "$out/resource");
	look_after_candidates(1);
	return;
}

# Waits for something that has to happen in some time.
sub await
{
	my ($what, $seconds, $code) = @_;
	my $end = stopwatch() + $seconds;

	until ($code->())
	{
		if (stopwatch() > $end)
		{
			note_failure("waited for $seconds s: $what");
			return 0;
		}
		look_after_candidates(1);
		sleep 0.02;
	}
	return 1;
}

# All faults are over; everything has to be well again. A long calm lasts for so long
# that all changes before it have to be announced.
sub calm
{
	my ($long) = @_;
	my (%vacant, %kept, $start, $gone);

	event('healing');
	end_pressure();
	heal_all();
	await('what is done to the servers', 120, sub { !operation_running() });
	heal_all();
	signal_all('CONT');
	spit("$dir/clock", "+0\n") unless $option{profile} eq 'back';		# which goes only back
	start_pooler() unless running(pooler_pid());
	foreach my $n (primary(), standbys())
	{
		start_server($n) unless server_running($n);
	}
	follow($_, primary()) foreach grep { upstream($_) != primary() } standbys();
	await('the primary', 30, sub { sql(primary(), 'SELECT 1') });
	await('the standbys', 30, sub { attach_standbys(1) });
	relieve_servers();
	await('the end of pauses and drains', 20, \&resume_elections) if $edition eq 'extension';
	sql(primary(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'nemesis' AND pid <> pg_backend_pid()");
	await('the end of what others have made', 20, \&nothing_foreign);
	await('seats of groups', 20, \&alter_group) if %groups;
	await('the end of leases in many elections', 120 + $many / 50, \&few_elections_led);
	look_after_candidates(1);

	event('calm');
	$start = stopwatch();
	%vacant = map { $_ => 1 } grep({ $_ ne 'runs' } sort keys %elections, keys %kept_elections, keys %calm_elections), present_seats();

	# When no seat was left that is withdrawn: looked at meanwhile, not after an election
	# that had another lease to wait for. What an answer tells was so when it was asked for,
	# or soon after that.
	my $are_gone = sub {
		my $asked = stopwatch() - $start;

		$gone //= $asked
		  if (sql(primary(), "SELECT string_agg(election, ',' ORDER BY election) FROM leader_election.election
			WHERE group_name IS NOT NULL") // '') eq join(',', sort(present_seats()));
		return defined $gone;
	};
	await('a leader of each election', 20, sub {
		$are_gone->();
		my $asked = stopwatch() - $start;
		my $led = sql(primary(), "SELECT string_agg(e, ',') FROM unnest('{"
			  . join(',', sort keys %vacant) . "}'::text[]) e WHERE leader_election.leader(e) IS NOT NULL") // '';

		my $kept = sql(primary(), "SELECT string_agg(election, ',') FROM leader_election.status
			WHERE waiting_for LIKE 'reserved for %'") // '';

		# These have the delay to wait for.
		$kept{$_} = 1 foreach split(/,/, $kept), keys %kept_elections;
		foreach my $election (split /,/, $led)
		{
			event('led', $election, $asked, $kept{$election} ? 'kept' : ());
			delete $vacant{$election};
		}
		return !%vacant;
	}) or event('status', (sql(primary(), 'SELECT jsonb_agg(to_jsonb(s)) FROM leader_election.status s') // 'unknown') =~ s/\s+/ /gr);
	workers_of(primary()) and await('the end of seats that are withdrawn', 20, $are_gone)
	  and event('withdrawn seats gone', $gone);
	while ($long && stopwatch() < $start + $LONG_CALM)
	{
		look_after_candidates(1);
		sleep 0.02;
	}
	measure();
	event('calm over');
	return;
}

# The worker removes what history is older than it is kept for. A new worker begins with
# that at once, and nothing is in its way now.
sub remove_old_history
{
	my $old = "SELECT count(*) FROM leader_election.history WHERE ended_at < now() - interval '30 days'";
	my $worker = "FROM pg_stat_activity WHERE backend_type = 'leader_election worker' AND datname = 'postgres'";
	my $end = stopwatch() + 20;
	my ($left, $former);

	return unless $option{profile} eq 'pressure' && workers_of(primary());
	$former = sql(primary(), "SELECT pid, pg_terminate_backend(pid) $worker") // '';
	($former) = $former =~ /^(\d+)/ ? $1 : 0;
	event('fault', 'terminate worker:', 'for old history');

	# Until a new one is there, too: if all candidates ended before, nobody would start it.
	until (stopwatch() > $end
		|| ($left = sql(primary(), $old) // 'unknown') eq '0'
		&& (sql(primary(), "SELECT count(*) $worker AND pid <> $former") // 0) > 0)
	{
		look_after_candidates(1);
		sleep 0.2;
	}
	event('old history', $left // 'unknown');
	return;
}

# Nobody stands any more: nothing may be left.
sub end_all
{
	my $left;
	my $dead = workers_of(primary()) ? '' : ' WHERE alive';	# who removes them is a worker
	my $locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND " . ($edition eq 'portable' ? 'true' : 'objsubid >= 20');
	my $running = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'leader_election worker' AND datname = 'postgres'";

	event('ending');
	kill 'TERM', map { $_->{pid} } values %candidates;
	for (my $end = stopwatch() + $lease_ms / 500 + 8; stopwatch() < $end; sleep 0.2)
	{
		$left = sql(primary(), "SELECT ($locks), ($running), (SELECT count(*) FROM leader_election.candidates$dead)") // 'unknown';
		last if $left eq '0|0|0';
	}
	event('left', $left);
	return;
}

sub collect
{
	my $p = primary();

	spit("$out/history", sql($p, 'SELECT election, term, leader, kind, acquired_at, ended_at, reason,
		extract(epoch FROM acquired_at), extract(epoch FROM ended_at)
		FROM leader_election.history ORDER BY 1, 2', 60) . "\n");
	spit("$out/writes", join '', map {
		(sql($p, "SELECT '$_', term, candidate, id, extract(epoch FROM pg_xact_commit_timestamp(xmin))::numeric(20, 6), xmin
			FROM chaos.\"w_$_\"", 60) // '') . "\n"
	} @elections);
	return;
}

my $end;
my $round = 0;

event('candidate', $_, $candidates{$_}{kind}) foreach sort keys %candidates;
note_members();
event('edition', $edition);
event('start', 'seed', $option{seed}, 'profile', $option{profile}, 'lease', $lease_ms);
event('epoch', int(time() * 1_000_000) - now());
set_up();
$end = now() + $option{seconds} * 1_000_000;
while (now() < $end)
{
	my $round_end = now() + (12 + rand(12)) * 1_000_000;
	my $narrow = ++$round % 3 == 2 && $option{profile} ne 'fence';

	# Of a short one too little is calm: see Check/Calm.pm.
	$round_end += 6_000_000 if $narrow;

	$round_end = $end if $end - $round_end < 8_000_000;
	event('round', $narrow ? 'narrow' : ());
	$edition eq 'extension' && begin_pressure($option{profile}) and event('pressed');
	while (now() < $round_end)
	{
		heal_due();
		look_after_candidates(0);
		inject($option{profile}, $narrow);
		sleep 0.05 + rand(0.5);
	}
	calm($round % 3 == 1 || now() >= $end);
}
remove_old_history();
end_all();
collect();
stop_servers();
event('end');
