# River's tests of its electors and of the statements below them
# (internal/leadership, riverdrivertest/leader.go).

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../t";
use Peers;
use Worker;

peer('River');

scenario('a second elector is denied', sub {
	my ($e) = @_;

	same(acquire($e, 'first'), 1, 'the first leads');
	my $before = lease($e);

	same(acquire($e, 'second'), '', 'the second does not');
	unchanged($e, $before, 'and moves no deadline');
});

scenario('the leader is re-elected', sub {
	my ($e) = @_;

	same(acquire($e, 'first'), 1, 'leads');
	my $before = lease($e);

	same(renew($e, 1), 1, 'renews by its term, on another connection');
	my $after = lease($e);

	since($before->{deadline_mono}, $after->{deadline_mono}, 1, 'has more time');
	same($after->{acquired_mono}, $before->{acquired_mono}, 'has led since the same moment');
});

# Here the term is the proof, for the role that was granted it. The name is none.
scenario('another elector renews', sub {
	my ($e) = @_;

	any("CREATE ROLE river_other LOGIN; GRANT USAGE ON SCHEMA leader_election TO river_other;
		GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO river_other");
	same(acquire($e, 'first'), 1, 'leads');
	my $before = lease($e);
	my $other = people('other', { user => 'river_other' });

	same(renew($e, 2), '', 'a term that was never granted renews nothing');
	same($other->sqlstate_of("SELECT leader_election.renew('$e', 1)"),
		'42501', 'another role may not, although it knows the term');
	same($other->sqlstate_of("SELECT leader_election.release('$e', 1)"),
		'42501', 'nor release');
	unchanged($e, $before, 'the lease is as it was');
});

scenario('a lease that is over, and that nobody has removed yet', sub {
	my ($e) = @_;

	create_election($e, $SHORT);
	acquire("$e: another, for which there is a worker", 'first');
	my $worker = stop_worker($control);

	same(acquire($e, 'first'), 1, 'leads');
	wait_over($e);
	same(lease($e)->{leader}, 'first', 'the row still names the leader');
	same(renew($e, 1), '', 'who cannot renew it');
	same(holds($e, 1), '', 'and does not lead');
	same(acquire($e, 'second'), 2, 'another is elected');
	resume_process($worker);
});

scenario('resigning without leading', sub {
	my ($e) = @_;
	my ($one, $two) = people(qw(one two));

	same(joins($one, $e), 1, 'one leads');
	same(joins($two, $e), '', 'two does not');
	same($two->query("SELECT leader_election.resign('$e')"), 'f', 'two has nothing to resign');
	same(release($e, 2), 'f', 'nor has who names a term that does not exist');
	same(term_in($one, $e), 1, 'one leads on');
});

scenario('resigning from an earlier term of the same name', sub {
	my ($e) = @_;

	create_election($e, $SHORT);
	same(acquire($e, 'first'), 1, 'leads');
	wait_over($e);
	any("SELECT leader_election.alter_election('$e', lease_duration => '1 min')");
	same(acquire($e, 'first'), 2, 'leads again');
	my $before = lease($e);

	same(release($e, 1), 'f', 'the earlier term is over');
	unchanged($e, $before, 'the later one goes on');
});

scenario('the same name in a later term', sub {
	my ($e) = @_;
	my $one = people('one');

	same(joins($one, $e), 1, 'leads');
	$one->query("SELECT leader_election.resign('$e')");
	same(elected($one, $e), 2, 'leads anew');
	same(holds($e, 1), '', 'the earlier term is over');
	same(refused("SELECT leader_election.assert_leader('$e', 1)"), 'LE001',
		'nothing can be written in it');
});

scenario('asked to resign five times', sub {
	my ($e) = @_;
	my ($one, $two) = people(qw(one two));

	same(joins($one, $e), 1, 'one leads');
	joins($two, $e);
	any("SELECT leader_election.request_yield('$e')") foreach 1 .. 5;
	same(status($e, 'state'), 'yielding', 'is asked');
	same(term_in($one, $e), 1, 'and leads until it resigns');
	$one->query("SELECT leader_election.resign('$e')");
	wait_for_leader($e, 'two');
	same(status($e, 'state, term'), 'led|2', 'the next one is asked nothing');
});

scenario('asked to resign, and alone', sub {
	my ($e) = @_;
	my $one = people('one');

	same(joins($one, $e), 1, 'leads');
	any("SELECT leader_election.request_yield('$e')");
	same($one->query("SELECT leader_election.resign('$e')"), 't', 'resigns');
	same(elected($one, $e), 2, 'leads again');
	same(status($e, 'state'), 'led', 'and is not asked any more');
});

scenario('two databases', sub {
	my ($e) = @_;

	any('CREATE DATABASE river_other');
	my $one = people('one');
	my $other = people('one', { dbname => 'river_other' });

	$other->query('CREATE EXTENSION leader_election');
	same(joins($one, $e), 1, 'one leads');
	same(joins($other, $e), 1, 'its namesake leads elsewhere');
	$one->query("SELECT leader_election.leave('$e')");
	same(term_in($other, $e), 1, 'whatever happens here');
});

scenario('starting and stopping thirty times', sub {
	my ($e) = @_;
	my $one = people('one');

	same(join(' ', map { elected($one, $e), $one->query("SELECT leader_election.leave('$e')") } 1 .. 30),
		join(' ', map { "$_ t" } 1 .. 30), 'leads each time');
	everybody_has_left($e);
	same(status($e, 'state'), 'vacant', 'nobody leads');
});

scenario('a listener that does not listen for a while', sub {
	my ($e) = @_;
	my $slow = people('slow');

	$slow->query('LISTEN leadership_changed');
	foreach my $term (1 .. 10)
	{
		acquire($e, 'first');
		release($e, $term);
	}
	wait_told($node);
	same(join(', ', told($slow, $e)), join(', ', map { ("elected $_", "vacated $_") } 1 .. 10),
		'is told of each change, in order');
});

scenario('a leader that lives leads', sub {
	my ($e) = @_;

	create_election($e, $LEASE);
	my ($one, $two) = people(qw(one two));

	same(joins($one, $e), 1, 'leads');
	joins($two, $e);
	wait_for_clock(lease($e)->{acquired_mono} + 1.5 * $LEASE);
	same(term_in($one, $e), 1, 'after more than a lease, too');
});

done_testing();
