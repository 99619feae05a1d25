# Failover to asynchronous standbys, while the old primary lives on, cut off.
#
# Two standbys of one primary are promoted apart from each other, and all three
# go on electing.  Nothing can keep two leaders from leading on the two sides of
# such a split; but their terms must tell them apart for ever: each term that the
# old side grants is smaller than all that a new side grants, no term is granted
# twice, and a new side elects nobody new before every lease that it can have
# heard of is over.
#
# Nothing here has to happen within some time, except the calls in the grace:
# the elections that these are about have a long lease.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);
use Worker;

# Leases, and so what the grace lasts, in microseconds: a slow machine takes
# longer for the calls in it
my $SHORT = 1_000_000 * slowness();
my $LEASE = 2 * $SHORT;
my $LONG = 5 * $SHORT;

# Elections with a long lease, held by a detached candidate; in the last one
# nobody else stands.
my @detached = qw(continued released transferred lapsed unattended);

# Elections in which many terms are granted on every side.  The old side alone
# has created the last ones when it was split off, under names that the other
# sides use later.
my @known = map { "known $_" } 1 .. 8;
my @unknown = map { "unknown $_" } 1 .. 8;
my $ROUNDS = 4;

my $old = new_server(
	name => 'old',
	streaming => 1,
	config => qq(
leader_election.lease_duration = '${LEASE}us'
client_min_messages = warning
));
my %node = (old => $old);
my %term;

# Grants and gives back the lease of each of these elections, again and again.
sub grant_many
{
	my ($session, $side, @elections) = @_;
	my $list = join ', ', map { "('$_')" } @elections;

	$session->query_async(
		qq{SELECT format(call, election, 'candidate of $side')
		FROM generate_series(1, $ROUNDS) r, (VALUES $list) e (election),
			(VALUES (1, 'SELECT term FROM leader_election.acquire(%L, %L)'),
				(2, 'SELECT leader_election.release(%1\$L,
					(SELECT term FROM leader_election.lease WHERE election = %1\$L))'))
				c (n, call)
		ORDER BY r, election, n \\gexec});
	return;
}

# Every term of a server, as "election/term".
sub terms_of
{
	my ($session) = @_;

	return map { s/\|/\//r } $session->query(
		'SELECT election, term FROM leader_election.history ORDER BY 1, 2');
}

# {election}{term} of such a list
sub by_election
{
	my %by;

	m{^(.*)/(\d+)$} and $by{$1}{$2} = 1 foreach @_;
	return \%by;
}

sub lowest { return (sort { $a <=> $b } keys %{ $_[0] })[0]; }
sub highest { return (sort { $b <=> $a } keys %{ $_[0] })[0]; }

#
# The old primary, its elections, and the standbys.
#

my $holder = session($old, name => 'holder');
my $primary = session($old, name => 'primary');
$primary->query('CREATE ROLE other LOGIN;
	GRANT USAGE ON SCHEMA leader_election TO other;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO other');

# Held by a session: by its usual lease, by one that is configured longer than
# it was granted, and the other way round.
$primary->query(
	qq{SELECT leader_election.create_election('held', lease_duration => '${LEASE}us');
	SELECT leader_election.create_election('granted longer', lease_duration => '${LONG}us');
	SELECT leader_election.create_election('configured longer', lease_duration => '${SHORT}us');
	SELECT leader_election.create_election('vacant', lease_duration => '${LEASE}us');
	SELECT leader_election.create_election('vacant longer', lease_duration => '${LONG}us')});
is($holder->query("SELECT leader_election.join('held', 'holder')"),
	1, 'held: led on the primary');
$primary->query("SELECT leader_election.acquire('vacant', 'somebody')");
$primary->query("SELECT leader_election.release('vacant', 1)");
$primary->query("SELECT leader_election.create_election('$_', lease_duration => '${LONG}us')")
  foreach @detached;
grant_many($primary, 'old', @known);
$primary->result;

$old->backup('backup');
foreach my $name (qw(one two))
{
	$node{$name} = PostgreSQL::Test::Cluster->new($name);
	$node{$name}->init_from_backup($old, 'backup', has_streaming => 1);
	$node{$name}->start;
}
my ($one, $two) = @node{qw(one two)};
my %on = map { $_ => session($node{$_}, name => "on $_") } qw(one two);
my $watcher = session($one, name => 'watcher');

$old->wait_for_catchup($_, 'replay') foreach $one, $two;

#
# On a standby: observers are answered, everybody else is sent to the primary.
#

my $standby = $on{one};

is($standby->query("SELECT leader_election.leader('held')"),
	'holder', 'standby: leader()');
is( $standby->query(
		"SELECT state, leader, term, kind, candidates IS NULL, waiting_for IS NULL
		FROM leader_election.status WHERE election = 'held'"),
	'led|holder|1|session|t|t',
	'standby: status');
is($standby->query("SELECT state FROM leader_election.status
		WHERE election = 'vacant'"), 'vacant', 'standby: status of a vacant one');
is($standby->query('SELECT count(*) FROM leader_election.candidates'),
	0, 'standby: candidates');
is( $standby->query(
		"SELECT leader_election.is_leader('held'), leader_election.is_leader('held', 1),
			leader_election.term('held') IS NULL, leader_election.is_leader('none'),
			leader_election.remaining_ms('held') IS NULL"),
	'f|f|t|f|t',
	'standby: is_leader()');
is($standby->query("CALL leader_election.wait_for_change('held', NULL, NULL)"),
	'1|holder', 'standby: wait_for_change() tells what is news');
is( $standby->query(
		"CALL leader_election.wait_for_change('held', 1, 'holder', '10ms')"),
	'1|holder',
	'standby: wait_for_change() waits');
is($standby->sqlstate_of("SELECT leader_election.assert_leader('held')"),
	'LE001', 'standby: assert_leader()');
is($standby->sqlstate_of("SELECT leader_election.assert_leader('held', 1)"),
	'LE001', 'standby: assert_leader() with a term');
foreach my $call (
	"SELECT leader_election.join('held', 'x')",
	"SELECT leader_election.join('new', 'x')",
	"CALL leader_election.campaign('held', 'x')",
	"SELECT leader_election.renew('held')",
	"SELECT leader_election.resign('held')",
	"SELECT leader_election.leave('held')",
	"SELECT leader_election.leave_all()",
	"SELECT leader_election.transfer('held', 'x')",
	"SELECT leader_election.acquire('held', 'x')",
	"SELECT leader_election.renew('continued', 1)",
	"SELECT leader_election.release('continued', 1)",
	"SELECT leader_election.transfer('continued', 1, 'x')",
	"SELECT leader_election.leave('continued', 'detached')",
	"SELECT leader_election.create_election('new')",
	"SELECT leader_election.alter_election('held', quorum => 2)",
	"SELECT leader_election.drop_election('vacant')",
	"SELECT leader_election.request_yield('held')",)
{
	is($standby->sqlstate_of($call), '25006', "standby: $call");
	like(
		$standby->errors,
		qr/^HINT:\s+Connect to the primary server\.$/m,
		"standby: $call: hint");
}

# Just before the failover.  The worker does not renew what is granted for
# longer than it is configured from then on: it would be granted for less.
is( $holder->query(
		"SELECT leader_election.join('granted longer', 'holder', auto_renew => false)"
	),
	1,
	'granted longer: led on the primary');
$primary->query("SELECT leader_election.alter_election('granted longer',
	lease_duration => '${SHORT}us')");
# This lease is short until its settings change in the next statement.
is($holder->query("SELECT leader_election.join('configured longer', 'holder')"),
	1, 'configured longer: led on the primary');
$primary->query("SELECT leader_election.alter_election('configured longer',
	lease_duration => '${LONG}us')");
foreach my $election (@detached)
{
	$term{$election} = $primary->query(
		"SELECT term FROM leader_election.acquire('$election', 'detached')");
	is($term{$election}, 1, "$election: led on the primary");
}

# A lease that is longer than they are granted from then on
$primary->query("SELECT leader_election.create_election('shortened', lease_duration => '${LONG}us')");
is( $primary->query(
		"SELECT term FROM leader_election.acquire('shortened', 'detached')"),
	1,
	'shortened: led on the primary');
$primary->query("SELECT leader_election.alter_election('shortened',
	lease_duration => '${SHORT}us')");
my $long_deadline = $primary->query(
	"SELECT deadline_mono FROM leader_election.lease WHERE election = 'shortened'");
$old->wait_for_catchup($_, 'replay') foreach $one, $two;

# It waits across the promotion.
$watcher->query_async(
	"CALL leader_election.wait_for_change('continued', 1, 'detached')");
wait_for($one,
	"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'watcher'
	AND state = 'active'",
	1);
ok(!$watcher->finished, 'standby: waits for a change');

#
# The split.  Nothing that happens on the old primary from here on reaches
# anybody.
#

my %before = map { $_ => 1 } terms_of($primary);

foreach my $name (qw(one two))
{
	$node{$name}->append_conf('postgresql.conf', "primary_conninfo = ''");
	$node{$name}->reload;
	wait_for($node{$name}, 'SELECT count(*) FROM pg_stat_wal_receiver', 0);
}
grant_many($primary, 'old', @known, @unknown);
is($on{one}->query("SELECT leader_election.leader('held')"),
	'holder', 'cut off, the standby goes by what it has');
$_->promote foreach $one, $two;

# An epoch begins with the first call.  Let both begin in the same second, as a
# rule: they will have the same number then.
{
	my $now = time;

	sleep(1 - ($now - int($now)))
	  if $now - int($now) > 0.3;
	$on{$_}->query_async("SELECT leader_election.join('held', 'from $_')")
	  foreach qw(one two);
	foreach my $name (qw(one two))
	{
		is($on{$name}->result, '', "$name: the same session stands");
		is($on{$name}->sqlstate, '00000', "$name: without an error");
	}
}

#
# In the grace.  First what takes effect only as long as nobody has renewed.
#

my $new = $on{one};
my $other = session($one, name => 'other', user => 'other');

foreach my $call ("release('%s', %s)", "transfer('%s', %s, 'x')")
{
	my $sql = sprintf("SELECT leader_election.$call", 'continued',
		$term{continued});

	is($new->sqlstate_of($sql), '55P03', "grace: not known yet: $sql");
}
foreach my $term ($term{continued} + 1, 4_000_000_000_000)
{
	is( query_unless_busy(
			$new, "SELECT * FROM leader_election.renew('continued', $term)"),
		'',
		"grace: renew() of term $term, which was none");
	is($new->query("SELECT leader_election.release('continued', $term)"),
		'f', "grace: release() of term $term, which was none");
}
is( $new->query(
		"SELECT leader_election.leader('continued') IS NULL,
			leader_election.is_leader('continued', $term{continued}),
			(SELECT state FROM leader_election.status WHERE election = 'continued')"),
	't|f|vacant',
	'grace: nobody leads');
is( $new->sqlstate_of(
		"SELECT leader_election.assert_leader('continued', $term{continued})"),
	'LE001',
	'grace: assert_leader()');
is( $new->sqlstate_of("SELECT leader_election.join('continued', 'detached')"),
	'LE004',
	'grace: no session has the name of who may lead on');
is( $other->sqlstate_of(
		"SELECT * FROM leader_election.acquire('continued', 'detached')"),
	'LE004',
	'grace: and no other role');
is( $new->query(
		"SELECT * FROM leader_election.acquire('continued', 'detached')"),
	'',
	'grace: under the same name, without the term, nothing is granted (G6)');
is($new->sqlstate, '00000', 'grace: which is no error');
is($watcher->result, '|', 'promotion: wait_for_change() tells the vacancy');

# Everybody stands everywhere, also in elections that did not exist, and waits.
my @all = (
	'held', 'granted longer', 'configured longer', 'vacant', 'vacant longer',
	'new here', grep { $_ ne 'unattended' } @detached);

foreach my $election (@all)
{
	is($new->query("SELECT leader_election.join('$election', 'from one')"),
		'', "grace: $election: join() elects nobody (G6)");
}
is( $new->query(
		"SELECT string_agg(election, ', ' ORDER BY election)
		FROM leader_election.status
		WHERE waiting_for IS DISTINCT FROM 'grace after failover'
			AND election NOT LIKE '%known%'
			AND election NOT IN ('new here', 'held', 'vacant', 'unattended', 'shortened')"),
	'',
	'grace: which status says');
is( $new->query(
		"SELECT * FROM leader_election.acquire('vacant longer', 'passer-by')"),
	'',
	'grace: acquire() elects nobody');

# Who leads on, by the old term as long as it has not used the new one
my %now;

foreach my $election (qw(continued released transferred))
{
	$now{$election} = query_unless_busy($new,
		"SELECT term FROM leader_election.renew('$election', $term{$election})"
	);
	cmp_ok($now{$election}, '>', $term{$election}, "$election: leads on (G5)");
	is( $new->query(
			"SELECT leader_election.leader('$election'),
			leader_election.is_leader('$election', $term{$election}),
			leader_election.is_leader('$election', $now{$election})"),
		'detached|f|t',
		"$election: in the new term only");
	is( $new->sqlstate_of(
			"SELECT leader_election.assert_leader('$election', $term{$election})"
		),
		'LE001',
		"$election: assert_leader()");
	is( $new->query(
			"SELECT term, reason, leader, kind FROM leader_election.history
			WHERE election = '$election' AND term >= $term{$election}
			ORDER BY term"),
		"$term{$election}|failover|detached|detached\n"
		  . "$now{$election}||detached|detached",
		"$election: history");
	is( $new->query(
			"SELECT alive, leads FROM leader_election.candidates
			WHERE election = '$election' AND candidate = 'detached'"),
		't|t',
		"$election: stands again");
	is( $new->query(
			"SELECT term FROM leader_election.renew('$election', $term{$election})"
		),
		$now{$election},
		"$election: an answer that was lost is told again");
}
is( $new->sqlstate_of(
		"SELECT leader_election.transfer('transferred', $term{transferred}, 'from one')"
	),
	'55P03',
	'transferred: not in the grace');
is( $new->query(
		"SELECT leader_election.release('released', $term{released})"),
	't',
	'released: by the old term');
is( $new->query(
		"SELECT term FROM leader_election.renew('continued', $now{continued})"),
	$now{continued},
	'continued: the new term is used');
is( $new->query(
		"SELECT * FROM leader_election.renew('continued', $term{continued})"),
	'',
	'continued: from then on the old one is over for renew()');
is( $new->query(
		"SELECT leader_election.release('continued', $term{continued})"),
	'f',
	'continued: for release()');
is( $new->query(
		"SELECT leader_election.transfer('continued', $term{continued}, 'from one')"
	),
	'f',
	'continued: for transfer()');
is($new->query("SELECT leader_election.leader('continued')"),
	'detached', 'continued: leads on');

# It may be believed in on the old side for as long as it was granted there.
cmp_ok(
	query_unless_busy($new,
		"SELECT term FROM leader_election.renew('shortened', 1)"),
	'>', 1, 'shortened: leads on');
cmp_ok(
	$new->query("SELECT deadline_mono FROM leader_election.lease WHERE election = 'shortened'"),
	'>=', $long_deadline, 'shortened: no sooner over than on the old side (G6)');
is( $new->query(
		"SELECT leader_election.release('shortened', 1),
			leader_election.join('shortened', 'from one')"),
	't|',
	'shortened: nor does anybody follow, if it gives up (G6)');

my $in_time = $new->query(
	"SELECT leader_election._monotonic_clock() < max(first_seen_mono) + $LONG
	FROM leader_election.epoch");
is($in_time, 't', 'all of that was in the grace, on this machine');

#
# After it.  A session that was there before the promotion may campaign.
#

$watcher->query_async("CALL leader_election.campaign('new there', 'watcher')");

# A renewal after the grace is too late even if no process has ended the lease:
# the worker is stopped meanwhile.
{
	my $worker = stop_worker($new);

	wait_until(
		sub {
			$new->query("SELECT leader_election.renew('continued', $now{continued}),
				leader_election.renew('transferred', $term{transferred})");
			return $new->query(
				"SELECT leader_election._monotonic_clock() >= max(first_seen_mono) + $LONG
				FROM leader_election.epoch") eq 't';
		},
		'the end of the grace');
	is( $new->query(
			"SELECT * FROM leader_election.renew('unattended', $term{unattended})"
		),
		'',
		'unattended: renew() after the grace');
	is( $new->query(
			"SELECT leader FROM leader_election.lease WHERE election = 'unattended'"
		),
		'detached',
		'unattended: which nobody had looked at');
	resume_process($worker);
}

foreach my $election ('held', 'granted longer', 'configured longer',
	'vacant', 'vacant longer', 'new here', 'lapsed', 'released')
{
	# A detached leader's renewal keeps the others alive meanwhile.
	wait_until(
		sub {
			$new->query("SELECT leader_election.renew('continued', $now{continued}),
				leader_election.renew('transferred', $term{transferred})");
			return $new->query("SELECT leader_election.is_leader('$election')") eq
			  't';
		},
		"an election in \"$election\"");
}
cmp_ok($watcher->result, '>', 0, 'new there: campaign() after the promotion');

wait_for($one, "SELECT leader_election.leader('shortened')", 'from one');

# Nobody was a microsecond early.
foreach my $grace (
	[ 'held', $LEASE ],
	[ 'granted longer', $LONG ],
	[ 'configured longer', $LONG ],
	[ 'vacant', $LEASE ],
	[ 'vacant longer', $LONG ],
	[ 'new here', $LEASE ],
	[ 'new there', $LEASE ],
	[ 'lapsed', $LONG ],
	[ 'released', $LONG ],
	[ 'shortened', $LONG ])
{
	my ($election, $longest) = @$grace;

	is( $new->query(
			"SELECT acquired_mono - (SELECT max(first_seen_mono) FROM leader_election.epoch)
				>= $longest
			FROM leader_election.lease WHERE election = '$election'"),
		't',
		"$election: nobody was elected in the grace of $longest us (G6)");
}
wait_for(
	$one,
	"SELECT string_agg(DISTINCT election, ', ' ORDER BY election)
	FROM leader_election.history WHERE term = 1 AND reason = 'failover'",
	'configured longer, continued, granted longer, held, lapsed, released, '
	  . 'shortened, transferred, unattended');

is( $new->query(
		"SELECT * FROM leader_election.renew('lapsed', $term{lapsed})"),
	'',
	'lapsed: renew() after the grace');
is($new->query("SELECT leader_election.release('lapsed', $term{lapsed})"),
	'f', 'lapsed: release() after the grace');
is( $new->query(
		"SELECT leader_election.transfer('lapsed', $term{lapsed}, 'x')"),
	'f',
	'lapsed: transfer() after the grace');
is( $new->query(
		"SELECT leader_election.transfer('transferred', $term{transferred}, 'from one')"
	),
	't',
	'transferred: after the grace, by the old term');
is($new->query("SELECT leader_election.is_leader('transferred')"),
	't', 'transferred: has arrived');

#
# The three sides elect on.  Compare what they have issued.
#

$primary->result;
is($holder->query("SELECT leader_election.is_leader('held')"),
	't', 'old: its leader leads on');
grant_many($primary, 'old', @known, @unknown, 'new here', 'new there');
foreach my $name (qw(one two))
{

	# Its own grace is over when somebody is elected there.
	wait_until(
		sub {
			$on{$name}->query(
				"SELECT term FROM leader_election.acquire('ready', 'candidate')")
			  ne '';
		},
		"the end of the grace on $name");
	grant_many($on{$name}, $name, @known, @unknown);
}
$_->result foreach $primary, $on{one}, $on{two};

my $epochs = join ' and ',
  map { $on{$_}->query('SELECT max(epoch) FROM leader_election.epoch') }
  qw(one two);
note("epochs of the promoted servers: $epochs");

my %granted =
  (old => by_election(terms_of($primary)));

$granted{$_} = by_election(grep { !$before{$_} } terms_of($on{$_}))
  foreach qw(one two);
foreach my $name (qw(one two))
{
	my %late;
	my %foreign;

	foreach my $election (sort keys %{ $granted{$name} })
	{
		my @terms = keys %{ $granted{$name}{$election} };

		$foreign{$election} = 1
		  if grep { $_ >= 2**53 || $_ < 2**22 } @terms;
		next unless $granted{old}{$election};
		$late{$election} = 1
		  unless highest($granted{old}{$election}) <
		  lowest($granted{$name}{$election});
	}
	is_deeply(\%late, {},
		"$name: what the old side issued is smaller than what this one issued (G5)");
	is_deeply(\%foreign, {}, "$name: its terms are those of an epoch");

	# There was something to compare.
	foreach my $election (@known, @unknown)
	{
		my $too_few = keys %{ $granted{$name}{$election} } < $ROUNDS;

		fail("$name: $election: too few terms") if $too_few;
	}
}
{
	my %issued;
	my $compared = 0;

	foreach my $name (qw(old one two))
	{
		foreach my $election (keys %{ $granted{$name} })
		{
			foreach my $term (keys %{ $granted{$name}{$election} })
			{
				push @{ $issued{"$election/$term"} }, $name;
				$compared++;
			}
		}
	}
	is_deeply([ grep { @{ $issued{$_} } > 1 } sort keys %issued ],
		[], "no term was issued twice (G5)");
	cmp_ok($compared, '>', 3 * $ROUNDS * (@known + @unknown),
		"of $compared terms");
}
is( $primary->query(
		'SELECT count(*), max(epoch) FROM leader_election.epoch'),
	'1|0',
	'old: the same incarnation all the time');
is( $primary->query(
		'SELECT max(term) < 100 FROM leader_election.history'),
	't',
	'old: counts from 1');

done_testing();
