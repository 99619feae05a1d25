# What monitoring/ has for those who watch, with the programs that it is for: each
# alert of rules.yml fires when its fault is there, and no more when it is gone;
# check.sql says the same to those who have no Prometheus; and neither says
# anything in a calm hour. The dashboard shows series that are there.
#
# Time passes $SCALE times as fast for the rules: their durations are shortened.

use strict;
use warnings;

use Cwd qw(abs_path);
use FindBin;
use lib "$FindBin::RealBin/../t", $FindBin::RealBin;
use JSON::PP;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Prometheus;
use SyncStandby;
use Test::More;
use Time::HiRes qw(time);
use Worker;

my $TOP = abs_path("$FindBin::RealBin/../..");
my $SCALE = 20;
my $CALM = 3600 / $SCALE;
my $QUIET = '-c client_min_messages=error';

# An hour's rules, for $SCALE times less
sub shorten
{
	my ($text) = @_;
	my %ms = (s => 1000, m => 60000, d => 86400000);

	$text =~ s{(for: |\[)(\d+)([smd])\b}{ $1 . $2 * $ms{$3} / $SCALE . 'ms' }ge;
	$text =~ s{(_seconds > )(\d+)}{ $1 . $2 / $SCALE }ge;
	return $text;
}

my $pair = SyncStandby->new(config => "leader_election.lease_duration = '4s'\n" . compile_library('notify_lock'));
my $node = $pair->{primary};
my $super = session($node, name => 'super', options => $QUIET);
my $check = shorten(slurp_file("$TOP/monitoring/check.sql")) =~ s/;\s*\z//r;

# As docs/monitoring.md says
$super->query($_)
  foreach 'CREATE ROLE monitor LOGIN', 'GRANT USAGE ON SCHEMA leader_election TO monitor',
  "ALTER ROLE monitor SET lock_timeout = '200ms'",
  "CREATE FUNCTION hold_notify_lock() RETURNS void LANGUAGE c AS 'notify_lock'";
my $monitor = session($node, name => 'monitor', user => 'monitor');
my $exporter = start_exporter($node, 'monitor', "$TOP/monitoring/queries.yaml");
my $standby = start_exporter($pair->{standby}, 'monitor', "$TOP/monitoring/queries.yaml");
my $prometheus = start_prometheus(shorten(slurp_file("$TOP/monitoring/rules.yml")),
	primary => $exporter, standby => $standby);

# A session that stands
sub candidate
{
	my ($election, $name) = @_;
	my $session = session($node, name => $name, options => $QUIET);

	$session->query("SELECT leader_election.join('$election', '$name')");
	return $session;
}

# How often the metrics have been read, each second once
sub scrapes
{
	my ($sample) = samples($prometheus, 'count_over_time(leader_election_led{election="led"}[1h])');

	return $sample ? $sample->[1] : 0;
}

sub leader { return $super->query("SELECT leader_election.leader('$_[0]')"); }

# --- A calm hour: all that is as it should be

my @stands = (candidate('led', 'one'), candidate('led', 'two'), candidate('late', 'one'));
my $odd = 'odd "name" {a="b"}, \ ' . "\x{e2}\x{80}\x{ae}" . 'desrever';
push @stands, candidate($odd, 'one');
$super->query("SELECT leader_election.create_election('$_')") foreach qw(paused deserted held);
$super->query("SELECT leader_election.pause_election('paused')");
push @stands, candidate('paused', 'one');
$super->query("SELECT leader_election.create_group('group', 30, max_per_candidate => 20)");
foreach my $name (qw(one two))
{
	my $session = session($node, name => $name, options => $QUIET);

	$session->query("SELECT leader_election.join_group('group', '$name')");
	push @stands, $session;
}
$super->query("SELECT leader_election.alter_election('late', lease_duration => '10 s')");
my ($held) = split(/\|/, $super->query("SELECT term FROM leader_election.acquire('held', 'one')"));
$super->query("SELECT leader_election.release('held', $held, hold => '1 h')");
push @stands, candidate('held', 'two');
my $detached = session($node, name => 'detached', options => $QUIET);
my @handed = (candidate('handed', 'one'), candidate('handed', 'two'));
my ($hand_over_at, $round, $scraped) = (0, 0, 0);
my %wrong;
while ($scraped < $CALM)
{
	wait_until(sub { scrapes() > $scraped }, 'a scrape');
	$scraped = scrapes();
	$detached->query("SELECT leader_election.acquire('detached', 'one')");
	$detached->query("SELECT leader_election.renew('detached', term) FROM leader_election.status
		WHERE election = 'detached' AND state = 'led'");
	if (time >= $hand_over_at)
	{
		$handed[ $round % 2 ]->query("SELECT leader_election.resign('handed')");
		$handed[ $round++ % 2 ]->query("SELECT leader_election.join('handed', 'x')");
		$hand_over_at = time + 10;
	}
	my $result = $monitor->query($check);
	$wrong{$result} = 1 if $result ne '' || $monitor->sqlstate ne '00000';
}
is(join("\n", keys %wrong), '', 'a calm hour: check.sql has no row');
is_deeply([ samples($prometheus, 'count_over_time(ALERTS{alertstate="firing"}[1h])') ], [],
	'and no alert has fired');
cmp_ok($super->query("SELECT count(*) FROM leader_election.history WHERE election = 'handed'"),
	'>', 5, 'though leadership was handed over');

# --- What there is to see of it

my @series = samples($prometheus, '{__name__=~"leader_election_.+"}');
my %named = map { $_->[0]{__name__} => 1 } @series;
my %described = map { $_ => 1 } page($exporter, '/metrics') =~ /^# HELP (leader_election_\w+)/mg;
my $queries = slurp_file("$TOP/monitoring/queries.yaml");
my @promised;
while ($queries =~ /^(leader_election\w*):\n(.*?)(?=^leader|\z)/msg)
{
	my ($query, $text) = ($1, $2);

	push @promised, map { "${query}_$_" } $text =~ /^    - (\w+):\n        usage: "GAUGE"/mg;
}
is(join(' ', sort keys %named), join(' ', sort @promised), 'each series of queries.yaml is there');

my ($seats) = samples($prometheus, 'leader_election_seats{election="group"}');
is($seats->[1], 30, 'a group is one series');
is(scalar(samples($prometheus, '{election="group"}')), 13, 'of each of 13 kinds');
is(scalar(samples($prometheus, '{__name__=~"leader_election_server_.+", server="primary"}')), 8, 'and a database has 8');
is(scalar(grep { ($_->[0]{election} // '') =~ m{^group/} } @series), 0, 'and its seats are none');
is(scalar(samples($prometheus, 'leader_election_led{election=~"odd .*"} == 1')), 1, 'an odd name');
is_deeply([ map { $_->[0]{waiting_for} }
		samples($prometheus, 'sort(leader_election_waiting_seats{election=~"paused|held|deserted"})') ],
	[ 'no candidates', 'hold', 'paused' ], 'what vacant seats wait for');
is_deeply([ sort map { $_->[0]{__name__} } samples($prometheus, '{__name__=~"leader_election_.+", server="standby"}') ],
	[ sort grep { /_server_/ } keys %named ], 'a standby has no elections');
is_deeply([ map { $_->[1] } samples($prometheus, 'leader_election_server_in_recovery{server="standby"}') ],
	[1], 'and says that it is one');

# --- The dashboard

my $dashboard = decode_json(slurp_file("$TOP/monitoring/dashboard.json"));
my @shown = (
	(map { [ "$_->{title}", map { $_->{expr} } @{ $_->{targets} } ] } @{ $dashboard->{panels} }),
	map { [ "annotation $_->{name}", $_->{expr} ] } @{ $dashboard->{annotations}{list} });
foreach my $one (@shown)
{
	my ($title, @queries) = @$one;
	my @unknown;

	foreach my $query (@queries)
	{
		push @unknown, grep { !$named{$_} } $query =~ /\b(leader_election_\w+)/g;
		$query =~ s/\$(?:job|datname|election)/.*/g;
		eval { samples($prometheus, $query); 1 } or push @unknown, $@;
	}
	is("@unknown", '', "dashboard: $title");
}
my @variables = map { $_->{definition} // () } @{ $dashboard->{templating}{list} };
is(scalar(@variables), 3, 'dashboard: variables');
foreach my $variable (@variables)
{
	my ($name, $label) = $variable =~ /^label_values\((leader_election_\w+).*, (\w+)\)$/;

	ok((grep { $_->[0]{__name__} eq $name && defined $_->[0]{$label} } @series), "dashboard: $variable");
}
my %id;
$id{ $_->{id} }++ foreach @{ $dashboard->{panels} };
is(scalar(keys %id), scalar(@{ $dashboard->{panels} }), 'dashboard: numbers of panels');

# --- Faults

sub firing
{
	my ($alert, $election) = @_;
	my $of = defined $election ? qq(, election="$election") : '';

	return scalar(samples($prometheus, qq(ALERTS{alertname="$alert", alertstate="firing"$of})));
}

# The alert fires some time after the fault, check.sql has a row (or, by sqlstate,
# fails), and diagnose(), with which the runbook begins, names something (not where
# the fault is the monitor's: blind); when the fault is gone, alert and check are
# quiet.
sub fires_and_clears
{
	my ($alert, $election, $title, $clear, %opts) = @_;
	my $whose = $election // '';
	my $rows;
	my $says = sub {
		$rows = $monitor->query($check);
		return 1 if $opts{sqlstate} && $monitor->sqlstate eq $opts{sqlstate};
		return index("\n$rows", "\n$alert|$whose|") >= 0;
	};
	my $diagnose = 'SELECT count(*) > 0 FROM leader_election.diagnose('
	  . "'" . ($election // 'led') . "') WHERE severity IN ('warning', 'error')";
	my ($is_told, $is_diagnosed) = (0, $opts{blind});
	my $look = sub {
		$is_told ||= $says->();
		$is_diagnosed ||= $super->query($diagnose) eq 't';
	};

	eval { wait_until(sub { $look->(); firing($alert, $election) }, "$alert to fire", 60); 1 }
	  or diag($@);
	ok(firing($alert, $election), "$title: $alert fires");
	eval { wait_until(sub { $look->(); $is_told && $is_diagnosed }, 'check.sql and diagnose()', 30) };
	ok($is_told, "$title: check.sql says so") or diag($rows, $monitor->errors);
	ok($is_diagnosed, "$title: diagnose() names it") unless $opts{blind};
	$clear->();
	eval { wait_until(sub { !firing($alert, $election) && !$says->() }, "$alert to clear", 120); 1 }
	  or diag($@);
	ok(!firing($alert, $election), "$title: and no more, when that is mended");
	return;
}

# A quorum that is not met
$super->query("SELECT leader_election.create_election('quorum', quorum => 2)");
push @stands, candidate('quorum', 'one');
fires_and_clears('LeaderElectionVacant', 'quorum', 'a quorum is not met',
	sub { push @stands, candidate('quorum', 'two') });

# The worker hangs while a leader goes
my @left = (candidate('left', 'one'), candidate('left', 'two'));
my $worker = stop_worker($super);
$left[0]->finish;
fires_and_clears('LeaderElectionVacant', 'left', 'the worker is stopped', sub { resume_process($worker) });

# ... and longer than leases should wait, but not too long
push @stands, candidate('late', 'one') if leader('late') eq '';
wait_until(sub { leader('late') ne '' }, 'a leader');
wait_until(sub { !firing('LeaderElectionRenewedLate', 'late')
	&& !samples($prometheus, 'changes(leader_election_term{election="late"}[15s]) > 0') }, 'calm');
my $late = $super->query("SELECT leader_election.status.term FROM leader_election.status WHERE election = 'late'");
$worker = stop_worker($super);
wait_until(sub { $super->query("SELECT lease_left_ratio < 0.2 FROM leader_election.metrics WHERE election = 'late'") eq 't' },
	'the lease to be nearly over');
resume_process($worker);
fires_and_clears('LeaderElectionRenewedLate', 'late', 'a lease is renewed at the last moment', sub { });
is($super->query("SELECT term FROM leader_election.status WHERE election = 'late'"), $late, 'the leader leads on');

# A leader that dies again and again
foreach my $n (1 .. 7)
{
	my $session = candidate('flapping', "n$n");

	wait_until(sub { leader('flapping') eq "n$n" }, "n$n to lead");
	$session->kill;
}
fires_and_clears('LeaderElectionFlapping', 'flapping', 'leaders die',
	sub {
		# An hour later
		$super->query("UPDATE leader_election.history SET acquired_at = acquired_at - interval '1 h',
			ended_at = ended_at - interval '1 h' WHERE election = 'flapping'");
	});

# No worker
$super->query("SELECT pg_terminate_backend(pid) FROM $WORKERS");
fires_and_clears('LeaderElectionNoWorker', undef, 'the worker is killed',
	sub { push @stands, candidate('led', 'three') });

# The worker fails: a constraint that somebody has added
my $loses = candidate('failing', 'one');
push @stands, candidate('failing', 'two');
$super->query("ALTER TABLE leader_election.lease ADD CONSTRAINT c CHECK (election <> 'failing') NOT VALID");
$loses->kill;
fires_and_clears('LeaderElectionWorkerFails', undef, 'a constraint is in the way',
	sub { $super->query('ALTER TABLE leader_election.lease DROP CONSTRAINT c') });

# Synchronous standbys: one that is connected and hangs, and none
$pair->stop_line;
fires_and_clears('LeaderElectionStandbysSilent', undef, 'the standby hangs', sub { $pair->resume_line });
$pair->{standby}->stop;
fires_and_clears('LeaderElectionStandbysSilent', undef, 'the standby is gone', sub { $pair->{standby}->start });

# Notifications
my $blocker = session($node, name => 'blocker', options => $QUIET);
$blocker->query('BEGIN; SELECT hold_notify_lock()');
push @stands, candidate('untold', 'one');
fires_and_clears('LeaderElectionNotificationsLate', 'untold', 'the lock of commits that NOTIFY is held',
	sub { $blocker->query('ROLLBACK') });

# Tables that are locked: so that nothing can be written, and so that nothing can
# be read
$blocker->query('BEGIN; LOCK TABLE leader_election.announced IN SHARE MODE');
fires_and_clears('LeaderElectionTablesLocked', undef, 'a table is locked against writes',
	sub { $blocker->query('ROLLBACK') });
$blocker->query('BEGIN; LOCK TABLE leader_election.lease');
fires_and_clears('LeaderElectionTablesLocked', undef, 'a table is locked against reads',
	sub { $blocker->query('ROLLBACK') }, sqlstate => '55P03');

# Nobody may look
$super->query('REVOKE USAGE ON SCHEMA leader_election FROM monitor');
fires_and_clears('LeaderElectionUnwatched', undef, 'a privilege is revoked',
	sub { $super->query('GRANT USAGE ON SCHEMA leader_election TO monitor') }, sqlstate => '42501', blind => 1);

$_->finish foreach grep { $_->alive } @stands, @handed, @left, $detached, $blocker, $monitor, $super;
done_testing();
