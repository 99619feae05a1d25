# Paused elections on a server that was promoted, in its grace, and after a restart.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# In microseconds.  A pause lasts for longer than a grace, so that it is seen to end.
my $LEASE = 3_000_000;
my $PAUSE = 6_000_000;
my $LATE = 20_000_000;

my $old = new_server(
	name => 'old',
	streaming => 1,
	config => qq(
leader_election.lease_duration = '${LEASE}us'
client_min_messages = warning
));
my $primary = session($old, name => 'primary');

sub status
{
	my ($session, $election, $columns) = @_;

	return scalar $session->query(
		"SELECT $columns FROM leader_election.status WHERE election = '$election'");
}

# --- On the primary: each of these is paused in its own way.

my %pause = (
	short => "duration => '1 day'",
	wrong => "duration => '${PAUSE}us'",
	long => "'for an hour', '1h'",
	goes_on => "'moving'",
	vacated => 'vacate => true');
foreach my $election (sort keys %pause)
{
	# What a detached candidate leads has a lease that lasts until it is looked at.
	$primary->query("SELECT leader_election.create_election('$election'"
		  . ($election =~ /goes_on|vacated/ ? ", lease_duration => '1 h')" : ')'));
}

my $new = PostgreSQL::Test::Cluster->new('new');
$old->backup('backup');
$new->init_from_backup($old, 'backup', has_streaming => 1);
$new->start;
my $there = session($new, name => 'there');

$primary->acquire($_, 'd') foreach qw(goes_on vacated);
$primary->query("SELECT leader_election.pause_election('$_', $pause{$_})")
  foreach sort keys %pause;
is($primary->query("SELECT yielding FROM leader_election.renew('vacated', 1)"),
	't', 'on the primary a leader was asked to yield');

# One has lasted for long by now; of the other, the primary's clock was wrong.
$primary->query("UPDATE leader_election.election
	SET resumes_at = clock_timestamp() + interval '${PAUSE}us' WHERE election = 'short';
	UPDATE leader_election.election
	SET resumes_at = resumes_at + interval '1 day' WHERE election = 'wrong'");
$old->wait_for_catchup('new', 'replay');
is( status($there, 'long', 'paused_by = current_user, pause_reason, resumes_at - paused_at'),
	't|for an hour|01:00:00', 'a standby shows who paused, why, and until when');
is(status($there, 'goes_on', 'leader, pause_reason, resumes_at'), 'd|moving|', 'one without an end, too');
is($there->query("SELECT led, waiting_for, overdue_seconds, paused FROM leader_election.metrics WHERE election = 'long'"),
	'0|||1', 'and in numbers what it knows');
is(status($there, 'long', 'waiting_for'), 'paused', 'nobody leads, since it is paused');
$primary->query("SELECT leader_election.acquire('long', 'd')");
is($primary->query("SELECT leader_election.request_yield('long', 'd') IS NOT NULL"), 't', 'on the primary, a paused one is kept for one');
$primary->query("SELECT leader_election.pause_all('all are moved')");
$old->wait_for_catchup('new', 'replay', $old->lsn('insert'));
is(status($there, 'long', 'waiting_for'), '', 'the standby cannot tell whether that one stands yet');
is(status($there, 'long', 'pause_reason, resumes_at'), 'for an hour|', 'and its pause does not end while all are paused');
$primary->query("SELECT leader_election.acquire('long', 'd')");
$primary->query("SELECT leader_election.release('long', 1), leader_election.leave('long', 'd')");
$primary->query('SELECT leader_election.resume_all()');
$old->wait_for_catchup('new', 'replay', $old->lsn('insert'));
$old->stop('immediate');
$new->promote;

# --- On the promoted server, which has begun no epoch yet

my $here = session($new, name => 'here');
is(status($here, 'short', 'paused_at IS NOT NULL'),
	't', 'it is paused before the new epoch begins');

# Those who wait for the end of each pause
my %heir;
foreach my $election (qw(short wrong long))
{
	$heir{$election} = session($new, name => "heir of $election");
	$heir{$election}->query_async(
		"CALL leader_election.campaign('$election', 'heir')");
}
is(query_unless_busy($here, "SELECT yielding FROM leader_election.renew('goes_on', 1)"),
	'f', 'a detached leader leads on in a paused election');
is(query_unless_busy($here, "SELECT yielding FROM leader_election.renew('vacated', 1)"),
	't', 'and is asked to yield at once where the pause vacates the seat');
is($here->sqlstate_of("SELECT leader_election.request_yield('long', 'heir')"),
	'55P03', 'in the grace no seat is filled by hand');
is($here->sqlstate_of("SELECT leader_election.pause_election('long', 'in the grace', '1h')"),
	'00000', 'but an election can be paused');
my ($term) = $here->lease('vacated', 'term');
is(query_unless_busy($here, "SELECT leader_election.release('vacated', $term)"),
	't', 'it goes');
is( $here->query("SELECT string_agg(concat_ws(' ', reason, detail), ', ' ORDER BY term)
		FROM leader_election.history WHERE election = 'vacated'"),
	'failover, yielded paused', 'as the history says');

# What ends when
foreach my $election (qw(short wrong))
{
	my $due = $election eq 'short' ?
	  "(SELECT resumes_at FROM leader_election.election WHERE election = 'short')" :
	  "(SELECT first_seen_at + interval '${PAUSE}us' FROM leader_election.epoch
		ORDER BY epoch DESC LIMIT 1)";

	like($heir{$election}->result, qr/^\d+$/, "$election: the pause ends");
	my ($early, $late) = split /\|/, $here->query(
		"SELECT acquired_at < $due - interval '10 ms',
			acquired_at > $due + interval '@{[ $LATE + held_up() ]} us'
		FROM leader_election.lease WHERE election = '$election'");
	is($early, 'f', "$election: not before it is due, "
		  . ($election eq 'short' ? 'by its timestamp' :
			'its own length after the server was first seen'));
	is($late, 'f', "$election: nor late");
}
ok(!$heir{long}->finished, 'one that is longer goes on');
is(status($here, 'long', 'state, waiting_for, pause_reason'),
	'vacant|paused|in the grace', 'and the view says so');
is(status($here, 'goes_on', 'leader, pause_reason'), 'd|moving', 'and its leader leads on');
$here->query("SELECT leader_election.request_yield('long', 'heir')");
like($heir{long}->result, qr/^\d+$/, 'after the grace its seat is filled by hand');

# --- A restart is no change of incarnation: the duration goes on.

my $mark = held_up();
$here->query("SELECT leader_election.create_election('restart')");
$here->query("SELECT leader_election.pause_election('restart', 'restart', '${PAUSE}us')");
my ($due) = $here->query(
	"SELECT resumes_mono FROM leader_election.election WHERE election = 'restart'");
$new->stop('fast');
$new->start;
$here = session($new, name => 'here');
is(status($here, 'restart', 'pause_reason'), 'restart', 'it is paused after a restart');
$here->query("CALL leader_election.campaign('restart', 'c')");
my ($acquired) = $here->lease('restart', 'acquired_mono');
cmp_ok($acquired, '>=', $due, 'until its time has come');
cmp_ok($acquired, '<', $due + $LATE + held_up($mark), 'and no longer');

$new->stop;
done_testing();
