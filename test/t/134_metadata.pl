# A leader changes its metadata: renew(..., metadata => ). What observers and
# listeners see of that, what it costs, who may, and what is left of it after a
# crash and a failover.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

my $node = new_server(
	streaming => 1,
	config => NotifyLock::config() . q(
leader_election.lease_duration = '1h'
client_min_messages = warning
));
my $admin = session($node, name => 'admin');
my $notify = NotifyLock->new($node);
my $listener = Announced->new($node);

# What the views say of an election and one of its candidates
sub shown
{
	my ($election, $candidate) = @_;

	return scalar $admin->query(
		"SELECT s.metadata, c.metadata, s.metadata_at >= s.since
		FROM leader_election.status s LEFT JOIN leader_election.candidates c
			ON c.election = s.election AND candidate = '$candidate'
		WHERE s.election = '$election'");
}

sub lease { return ($admin->lease(@_))[0]; }

sub renews
{
	my ($session, $args) = @_;

	return scalar $session->query("SELECT term FROM leader_election.renew($args)");
}

sub untold
{
	my ($election, $compared) = @_;

	return scalar $admin->query("SELECT unannounced_seconds $compared 0
		FROM leader_election.metrics WHERE election = '$election'");
}

#
# A session and a detached candidate: the same in both forms
#

my $one = session($node, name => 'one');

is($one->query(q(SELECT leader_election.join('session', 'one', metadata => '{"at": 1}'))),
	1, 'a session leads');
is($admin->query(q(SELECT term FROM leader_election.acquire('detached', 'one',
	metadata => '{"at": 1}'))), 1, 'and a detached candidate');
foreach ([ $one, 'session', '' ], [ $admin, 'detached', ', term => 1' ])
{
	my ($session, $e, $term) = @$_;

	is(shown($e, 'one'), '{"at": 1}|{"at": 1}|', "$e: as it said before");
	is(renews($session, qq('$e'$term, metadata => '{"at": 2}')), 1, "$e: changed");
	is(shown($e, 'one'), '{"at": 2}|{"at": 2}|t', "$e: shown, in both views");
	is(renews($session, "'$e'$term"), 1, "$e: renewed without");
	is(renews($session, "'$e'$term, progress => 7, metadata => NULL"), 1, "$e: NULL");
	is(shown($e, 'one'), '{"at": 2}|{"at": 2}|t', "$e: that changes nothing");
	is(lease($e, 'progress'), 7, "$e: progress");

	my $at = lease($e, 'metadata_at');
	is(renews($session, qq('$e'$term, metadata => '{"at": 2}')), 1, "$e: said again");
	is(lease($e, 'metadata_at'), $at, "$e: which is no change");
	is($session->query(qq(SELECT (leader_election.renew('$e'$term, metadata => '{"at": 3}')).term)),
		1, "$e: as a value");
	is($session->query(qq(SELECT (leader_election.renew('$e'$term, metadata => '{"at": 4}')).*)) =~ /^1\|/,
		1, "$e: column by column");
	$listener->wait_for_event($e, 'metadata_changed 1 one');
	is(renews($session, "'$e'$term, metadata => 'null'"), 1, "$e: cleared");
	is(shown($e, 'one'), 'null|null|t', "$e: with JSON's null");

	# The size is that of join(), and what is too long changes nothing.
	my $long = "to_jsonb((SELECT string_agg(md5(i::text), '') FROM generate_series(1, 255) i))";
	is($session->sqlstate_of("SELECT * FROM leader_election.renew('$e'$term,
		metadata => to_jsonb(repeat('x', 8190)))"), '22023', "$e: too long");
	is(shown($e, 'one'), 'null|null|t', "$e: so it stays");
	is(renews($session, "'$e'$term, metadata => $long"), 1, "$e: long");
	is(renews($session, "'$e'$term"), 1, "$e: renewed without");
	is(renews($session, "'$e'$term, metadata => $long"), 1, "$e: the same again");
	is($admin->query("SELECT metadata = $long FROM leader_election.status
		WHERE election = '$e'"), 't', "$e: long, as it was given");
}

#
# Listeners: each change, when it can be told; of several the last one
#

{
	my $told = sub { return scalar grep { /^metadata/ } $listener->events('told') };

	is($one->query(q(SELECT leader_election.join('told', 'one'))), 1, 'told: leads');
	$listener->wait_for_count('told', 1);
	$listener->fence;
	$notify->hold;
	renews($one, "'told', metadata => '$_'") foreach 1 .. 5;
	is($told->(), 0, 'told: nobody waits for listeners (G9)');
	is(untold('told', '>'), 't', 'told: monitors see that they have not been told');
	wait_until(
		sub {
			$admin->query(q(SELECT finding FROM leader_election.diagnose('told'))) =~
			  /^Listeners have not been told of the last change, .*: they do not know of its metadata\.$/m;
		},
		'told: so does diagnose()');
	$notify->free;
	$listener->events_ok('told', [ 'elected 1 one', 'metadata_changed 1 one' ],
		'told: once');
	my ($event) = grep { $_->{event} eq 'metadata_changed' } $listener->told('^told$');
	is(untold('told', '='), 't', 'told: and that they have');
	is_deeply(
		[ map { $event->{$_} } qw(previous reason) ], [ undef, undef ], 'told: nobody led before');
	is($admin->query("SELECT metadata_at = '$event->{at}' FROM leader_election.status
		WHERE election = 'told'"), 't', 'told: with its time');

	renews($one, "'told', metadata => '5'");
	renews($one, "'told'");
	$listener->fence;
	is($told->(), 1, 'told: not a renewal');

	# A worker that ends before it has told is followed by one that does.
	my $pid = stop_worker($admin);
	renews($one, "'told', metadata => '6'");
	$admin->query("SELECT pg_terminate_backend($pid)");
	resume_process($pid);
	wait_until(
		sub {
			renews($one, "'told'");		# the next call starts it
			return $told->() == 2;
		},
		'told: by the next worker');
	$listener->fence;
	is($told->(), 2, 'told: once, also across workers (G10)');

	# A term that ends first is told as ever.
	$notify->hold;
	renews($one, "'told', metadata => '7'");
	is($one->query("SELECT leader_election.leave('told')"), 't', 'told: left');
	is($one->query("SELECT leader_election.join('told', 'one')"), 2, 'told: and again');
	$notify->free;
	$listener->events_ok('told',
		[ 'elected 1 one', ('metadata_changed 1 one') x 2, 'vacated 1, one left', 'elected 2 one' ],
		'told: not what nobody can see any more');
	is(shown('told', 'one'), '||', 'told: a new candidacy says nothing');
	renews($one, "'told', metadata => '8'");
	$listener->wait_for_event('told', 'metadata_changed 2 one');
}

#
# The next election copies what the candidate said last.
#

is(renews($one, q('session', metadata => '"last"')), 1, 'next: said');
$one->query("SELECT leader_election.resign('session')");
is($one->query("SELECT leader_election.join('session', 'one')"), 2, 'next: elected again');
is(shown('session', 'one'), '"last"|"last"|', 'next: with that');

#
# Who may not
#

is(renews($admin, q('session', metadata => '"other"')), '', 'a session that does not lead');
is(renews($admin, q('detached', 2, metadata => '"other"')), '', 'a term that is not the present one');
$admin->query('CREATE ROLE other');
$admin->query('GRANT USAGE ON SCHEMA leader_election TO other');
$admin->query('GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO other');
$admin->query('SET ROLE other');
is($admin->sqlstate_of(q(SELECT * FROM leader_election.renew('detached', 1, metadata => '"other"'))),
	'42501', 'another role');
$admin->query('RESET ROLE');
is($admin->sqlstate_of(q(SELECT * FROM leader_election.renew('session', 2, metadata => '"other"'))),
	'22023', 'by the term of a session');
is(shown('session', 'one'), '"last"|"last"|', 'the session said nothing');

# A leader that was paused until its lease was over
$admin->query("SELECT leader_election.create_election('late', lease_duration => '100ms')");
$admin->query(q(SELECT leader_election.acquire('late', 'one', metadata => '"in time"')));
wait_for($node, "SELECT leader_election.leader('late') IS NULL", 't');
is(renews($admin, q('late', 1, metadata => '"too late"')), '', 'late: no row');
is($admin->query("SELECT coalesce(metadata, '\"in time\"') FROM leader_election.lease
	WHERE election = 'late'"), '"in time"', 'late: and nothing is changed');
$listener->fence;
is_deeply([ grep { /^metadata/ } $listener->events('late') ], [], 'late: nor told');

#
# A leader that is asked to yield leads on, and may: its deadline stays.
#

foreach ([ $one, 'session', '' ], [ $admin, 'detached', ', 1' ])
{
	my ($session, $e, $term) = @$_;

	$admin->query("SELECT leader_election.request_yield('$e')");
	my $deadline = lease($e, 'deadline_mono');
	is($session->query("SELECT yielding FROM leader_election.renew('$e'$term,
		metadata => '\"going\"')"), 't', "$e: yields");
	is($session->query("SELECT yielding FROM leader_election.renew('$e'$term,
		progress => 17)"), 't', "$e: says how far it is");
	is(lease($e, 'progress'), 17, "$e: which a crash does not take");
	is(shown($e, 'one'), '"going"|"going"|t', "$e: and says so");
	is(lease($e, 'deadline_mono'), $deadline, "$e: not renewed");
	$listener->wait_for_event($e, 'metadata_changed ' . $admin->term_of($e) . ' one');
}

#
# In the transaction that grants, by calls that cannot be told from plain ones
#

$admin->query(q{DO $$ BEGIN
	PERFORM leader_election.acquire('block', 'one', metadata => '1');
	PERFORM leader_election.renew('block', 1, metadata => '2');
	PERFORM leader_election.join('block too', 'one', metadata => '1');
	PERFORM leader_election.renew('block too', metadata => '2');
END $$});
is($admin->sqlstate, '00000', 'in a block');
is(shown('block', 'one'), '2|2|t', 'block: the last word');
is(shown('block too', 'one'), '2|2|t', 'block: of a session, too');
$listener->wait_for_event($_, 'metadata_changed 1 one') foreach 'block', 'block too';

#
# What it costs: the row stays in its page, whatever it says.
#

{
	my $stats = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_get_tuples_updated('leader_election.lease'::regclass) n_tup_upd,
		pg_stat_get_tuples_hot_updated('leader_election.lease'::regclass) n_tup_hot_upd";
	my $flushed = sub {
		$admin->query("SELECT pg_stat_force_next_flush()");
		return split /\|/, $admin->query($stats);
	};

	is($admin->acquire('hot', 'one'), 1, 'hot: leads');
	my ($updates, $hot) = $flushed->();
	$admin->query(q(DO $$ BEGIN
		FOR i IN 1..200 LOOP
			PERFORM leader_election.renew('hot', 1, metadata => to_jsonb(repeat(i::text, 50)));
			COMMIT;
		END LOOP;
	END $$));
	is($admin->sqlstate, '00000', 'hot: changed 200 times');
	my ($updates_after, $hot_after) = $flushed->();
	cmp_ok($updates_after - $updates, '>=', 200, 'hot: as many updates');
	cmp_ok($hot_after - $hot, '>=', 190, 'hot: all but a few, which found the page full');

	# Without metadata nothing else is written than before.
	my ($candidate) = $admin->query("SELECT ctid, xmin FROM leader_election.candidate
		WHERE election = 'hot'");
	renews($admin, "'hot', 1") foreach 1 .. 3;
	is($admin->query("SELECT ctid, xmin FROM leader_election.candidate WHERE election = 'hot'"),
		$candidate, 'hot: a plain renewal writes no candidate');
}

# A leader must not lose its lease for want of its candidate's row.
{
	my $locker = session($node, name => 'locker');

	$locker->query('BEGIN; LOCK leader_election.candidate IN SHARE MODE');
	is(renews($admin, q('hot', 1, metadata => '"alone"')), 1, 'locked: renewed (G9)');
	is(lease('hot', 'metadata'), '"alone"', 'locked: and changed');
	$locker->query('COMMIT');
	$locker->finish;
}

#
# A crash, and a failover: the lease row has it.
#

is(renews($admin, q('detached', 1, metadata => '"kept"')), 1, 'crash: said');
is(renews($admin, q('hot', 1, metadata => '"kept"')), 1, 'failover: said');
$_->finish foreach $one, $listener->session_of;
my $new = PostgreSQL::Test::Cluster->new('new');
$node->backup('backup');
$node->stop('immediate');
$node->start;
$admin = session($node, name => 'admin again');
is(shown('detached', 'one'), '"kept"||t', 'crash: it leads on, with that');
is(query_unless_busy($admin, "SELECT term FROM leader_election.renew('hot', 1)"), 1, 'crash: calls');
is(shown('hot', 'one'), '"kept"|"kept"|t', 'crash: its candidacy says so again');

$new->init_from_backup($node, 'backup', has_streaming => 1);
$new->start;
$node->wait_for_catchup('new', 'replay');
is($new->safe_psql('postgres', "SELECT metadata, metadata_at IS NOT NULL
	FROM leader_election.status WHERE election = 'hot'"), '"kept"|t', 'a standby shows it');
$node->stop('immediate');
$new->promote;
my $here = session($new, name => 'here');
my $term = query_unless_busy($here, q(SELECT term FROM leader_election.renew('hot', 1, metadata => '"new"')));
cmp_ok($term, '>', 1, 'failover: leads on');
$admin = $here;
is(shown('hot', 'one'), '"new"|"new"|t', 'failover: and says what is new');
is(query_unless_busy($here, "SELECT term FROM leader_election.renew('hot', $term)"), $term, 'failover: renewed');
$here->finish;
$new->stop;
done_testing();
