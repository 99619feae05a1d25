# Curator's tests of LeaderLatch and LeaderSelector (recipes/leader).

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../t";
use Peers;

peer('Curator');

scenario('who leads what nobody has made', sub {
	my ($e) = @_;

	same(any("SELECT leader_election.leader('$e') IS NULL"), 't', 'nobody');
	same(any("SELECT leader_election.is_leader('$e', 1)"), 'f', 'in no term');
	same(any("SELECT count(*) FROM leader_election.election WHERE election = '$e'"), 0,
		'and asking makes nothing');
});

scenario('an interrupted session does not split the brain', sub {
	my ($e) = @_;
	my ($one, $two) = people(qw(one two));

	same(joins($one, $e), 1, 'one leads');
	campaigns($two, $e);
	any('SELECT pg_terminate_backend(' . $one->backend_pid . ')');
	same($two->result, 2, 'two leads');
	same(holds($e, 1), '', 'the term of one is over');
	$one->query('SELECT 1');
	my $again = people('one');

	same(joins($again, $e), '', 'one comes back, and does not lead');
	same(term_in($two, $e), 2, 'two does');
});

scenario('one in the middle of the line leaves', sub {
	my ($e) = @_;
	my @all = people(qw(one two three four five));

	same(join('|', map { joins($_, $e) } @all), '1||||', 'one of five leads');
	$all[2]->query("SELECT leader_election.leave('$e')");
	same(join('|', map { term_in($_, $e) } @all), '1||||', 'nothing changes');
	$all[0]->query("SELECT leader_election.leave('$e')");
	wait_for_leader($e, 'two');
	same(join('|', map { term_in($_, $e) } @all), '|2|||', 'the first in line is next');
});

scenario('closed while it starts', sub {
	my ($e) = @_;

	create_election($e, $LEASE);
	foreach my $n (1 .. 5)
	{
		my $hasty = people('hasty');

		$hasty->query_async("CALL leader_election.campaign('$e', 'hasty')");
		$hasty->kill;
		wait_gone($node, $hasty);
	}
	everybody_has_left($e);
	same(status($e, 'state'), 'vacant', 'leaves nothing behind');
});

scenario('started twice', sub {
	my ($e) = @_;
	my ($one, $two) = people(qw(one two));

	joins($one, $e);
	joins($two, $e) foreach 1 .. 3;
	same(any("SELECT count(*) FROM leader_election.candidates WHERE election = '$e'
		AND candidate = 'two'"), 1, 'stands once');
	$two->query("SELECT leader_election.leave('$e')");
	same(any("SELECT count(*) FROM leader_election.candidates WHERE election = '$e'
		AND candidate = 'two'"), 0, 'and leaves with one call');
});

scenario('interrupted twice, alone, and queued again', sub {
	my ($e) = @_;
	my $one = people('one');

	same(joins($one, $e), 1, 'leads');
	same($one->query("SELECT leader_election.resign('$e')"), 't', 'is interrupted');
	same($one->query("SELECT leader_election.resign('$e')"), 'f', 'twice');
	same(elected($one, $e), 2, 'leads again');
});

scenario('leadership goes around', sub {
	my ($e) = @_;
	my @all = people(qw(one two three));

	joins($_, $e) foreach @all;
	foreach my $n (1 .. 6)
	{
		wait_for($node, "SELECT max(term) FROM leader_election.history
			WHERE election = '$e' AND ended_at IS NULL", $n);
		$all[ ($n - 1) % 3 ]->query("SELECT leader_election.resign('$e')");
	}
	same(any("SELECT string_agg(leader, ' ' ORDER BY term) FROM leader_election.history
		WHERE election = '$e' AND term <= 6"), 'one two three one two three',
		'each has two of six turns');
});

scenario('participants', sub {
	my ($e) = @_;
	my @all = people(qw(one two three));

	joins($_, $e) foreach @all;
	same(any("SELECT string_agg(candidate || CASE WHEN leads THEN ' leads' ELSE '' END, ', '
			ORDER BY leads DESC, position) FROM leader_election.candidates WHERE election = '$e'"),
		'one leads, two, three', 'are listed, with the one that leads');
	same(any("SELECT leader_election.leader('$e')"), 'one', 'as anybody is told');
});

scenario('its session is killed, both queue again, the leader closes', sub {
	my ($e) = @_;
	my ($one, $two) = people(qw(one two));

	joins($one, $e);
	campaigns($two, $e);
	any('SELECT pg_terminate_backend(' . $one->backend_pid . ')');
	same($two->result, 2, 'two leads');
	my $again = people('one');

	same(joins($again, $e), '', 'one waits');
	same(joins($two, $e), 2, 'two leads on');
	$two->finish;
	wait_for_leader($e, 'one');
	same(term_in($again, $e), 3, 'one leads');
});

scenario('no permission', sub {
	my ($e) = @_;

	any("CREATE ROLE curator_watcher LOGIN; CREATE ROLE curator_stranger LOGIN;
		CREATE ROLE curator_member;
		GRANT USAGE ON SCHEMA leader_election TO curator_watcher, curator_stranger;
		GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO curator_stranger;
		SELECT leader_election.create_election('$e', candidate_role => 'curator_member')");
	my ($watcher) = people('watcher', { user => 'curator_watcher' });
	my ($stranger) = people('stranger', { user => 'curator_stranger' });

	same($watcher->sqlstate_of("SELECT leader_election.join('$e', 'watcher')"), '42501',
		'is an error for who may only watch');
	same($stranger->sqlstate_of("SELECT leader_election.join('$e', 'stranger')"), '42501',
		'and for who may stand elsewhere');
	same($stranger->sqlstate_of("CALL leader_election.campaign('$e', 'stranger')"), '42501',
		'nobody waits for it');
	same($watcher->query("SELECT state FROM leader_election.status WHERE election = '$e'"),
		'vacant', 'who may watch sees that nobody leads');
});

scenario('all are lost with the server, and one leads afterwards', sub {
	my ($e) = @_;
	my $term = joins((people(qw(a b c d e)))[0], $e);

	$node->stop('immediate');
	$node->start;
	connect_all();
	my @again = people(qw(a b c d e));
	my @terms;

	wait_until(sub { @terms = grep { $_ ne '' } map { joins($_, $e) } @again }, 'a leader');
	same(scalar @terms, 1, 'one of five leads');
	since($term, $terms[0], 1, 'in a later term');
});

done_testing();
