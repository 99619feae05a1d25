# What listeners are told after a crash and after a promotion: the last change of
# each election, once, even if it was told before; then every change, in order.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use JSON::PP;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

my $ELECTIONS = 4;
my $TERMS = 1000;

my $node = new_server(config => NotifyLock::config() . q(
leader_election.lease_duration = '10min'
restart_after_crash = on
client_min_messages = warning
log_statement = none
));
my ($control, $notify);

# Ends a process and with it all sessions. Nothing starts a worker before some
# session calls.
sub crash
{
	my ($pid, @sessions) = @_;

	kill('KILL', $pid) or die "cannot kill $pid: $!";
	foreach my $session (@sessions)
	{
		$session->result if $session->{busy};
		wait_until(sub { $session->sqlstate_of('SELECT 1') eq '08006' },
			'the end of a session');
	}
	wait_for($node, 'SELECT true');
	return;
}

# Terms from the next on, the last of which goes on if $leads.
sub change
{
	my ($election, $terms, $leads) = @_;

	foreach my $n (1 .. $terms)
	{
		my $term = $control->acquire($election, 'x');

		die "$election: no term" if $term eq '';
		$control->query("SELECT leader_election.release('$election', $term)")
		  unless $leads && $n == $terms;
	}
	return;
}

#
# What was not told when the server crashed
#

{
	$control = session($node, name => 'control');
	$notify = NotifyLock->new($node);
	my $before = Announced->new($node);
	my $leader = session($node, name => 'leader');

	change('told', 2, 1);
	change('told, then changed', 1, 0);
	change('left', 1, 0);
	is($leader->query("SELECT leader_election.join('session', 'leader')"),
		1, 'crash: leads');
	$control->query("SELECT leader_election.create_election('never led')");
	$before->all_told_ok('^(told|left|session)', 'crash: before it');
	$notify->hold;
	change('told, then changed', 3, 1);
	change('untold', 2, 0);
	change('dropped', 1, 0);
	$control->query("SELECT leader_election.drop_election('dropped')");
	is($control->sqlstate, '00000', 'crash: one is dropped');
	crash($leader->backend_pid, $leader, $control, $notify->{session},
		$before->session_of);

	$control = session($node, name => 'control');
	my $after = Announced->new($node);
	$after->fence;
	$after->events_ok('told', [ 'elected 2 x' ],
		'crash: the last change is told again, once (G10)');
	$after->events_ok('told, then changed', [ 'elected 4 x' ],
		'crash: of what was not told, the last change is');
	$after->events_ok('left', [ 'vacated 1, x resigned' ], 'crash: a vacancy as well');
	$after->events_ok('untold', [ 'vacated 2, x resigned' ],
		'crash: also if nothing was told before');
	$after->events_ok('never led', [], 'crash: nothing of what was never led');
	$after->wait_for_count('session', 1);
	wait_until(sub { ($after->events('session'))[-1] =~ /^vacated/ },
		'the end of a session to be told');
	like(join('; ', $after->events('session')),
		qr/^(elected 1 leader; )?vacated 1, leader session ended$/,
		'crash: a leader that died with the server');
	cmp_ok(scalar $after->events('dropped'), '<=', 1,
		'crash: a dropped election at most once');

	# And then all goes on.
	change('left', 1, 0);
	change('untold', 1, 1);
	my $first = $control->acquire('never led', 'x');
	$after->events_ok(
		'left',
		[ 'vacated 1, x resigned', 'elected 2 x', 'vacated 2, x resigned' ],
		'crash: then each change (G10)');
	$after->events_ok('untold', [ 'vacated 2, x resigned', 'elected 3 x' ],
		'crash: in order');
	$after->events_ok('never led', [ "elected $first x" ], 'crash: from the first on');
	$_->finish foreach $control, $after->session_of;
}

#
# A worker that is killed while thousands of changes are under way. Each listener
# is told a part without a gap, which begins at, or after, the end of what was
# told before.
#

{
	my $json = JSON::PP->new->canonical;
	my @listeners;
	my @clients;

	# Each time there are more terms to come, however fast the last ones were.
	foreach my $crash (1 .. 3)
	{
		my $listener = Announced->new($node);
		my $pid;

		push @listeners, $listener;
		@clients = Announced::start_changes($node, 'busy', $ELECTIONS, $crash * $TERMS);
		wait_until(
			sub {
				return $listener->told('^busy') > 300
				  && !grep { !$listener->told("^busy $_\$") } 1 .. $ELECTIONS;
			},
			'something of each election to be told');
		$control = session($node, name => 'control');
		wait_until(
			sub {
				$pid = $control->query("SELECT min(pid) FROM $WORKERS");
				return $pid ne '';
			},
			'a worker');
		crash($pid, $control, @clients, $listener->session_of);
		$listener->told;
	}
	push @listeners, Announced->new($node);
	@clients = Announced::start_changes($node, 'busy', $ELECTIONS, 4 * $TERMS);
	wait_until(
		sub {
			$listeners[-1]->told;
			return !grep { !$_->finished } @clients;
		},
		'all changes');
	Announced::end_changes(@clients);
	$listeners[-1]->fence;

	foreach my $n (1 .. $ELECTIONS)
	{
		my %place;
		my @expected = map { $json->encode($_) } $listeners[-1]->expected("^busy $n\$");
		my $from = 0;
		my $last = -1;
		my $repeated = 0;
		my $skipped = 0;

		$place{ $expected[$_] } = $_ foreach 0 .. $#expected;
		foreach my $part (0 .. $#listeners)
		{
			my @got = map { $json->encode($_) } $listeners[$part]->told("^busy $n\$");
			my @places = map { $place{$_} // -1 } @got;
			my @should = map { $places[0] + $_ } 0 .. $#places;

			cmp_ok(scalar @got, '>', 0, "busy $n, part $part: is told something");
			is_deeply(\@places, \@should, "busy $n, part $part: without a gap, in order");
			cmp_ok($places[0], '>=', $last, "busy $n, part $part: at most one is repeated (G10)")
			  if $part > 0;
			is($places[0], 0, "busy $n: from the first on") if $part == 0;
			$repeated++ if $places[0] == $last;
			$skipped += $places[0] - $last - 1 if $places[0] > $last;
			$last = $places[-1];
		}
		is($last, $#expected, "busy $n: to the last (G10)");
		note("busy $n: $repeated repeated, $skipped skipped of " . @expected);
	}
	$_->session_of->finish foreach $listeners[-1];
	$node->stop;
}

#
# After a promotion, there is nothing to tell of a lease of the old primary until
# its holder leads on, or the grace is over.
#

my $old = new_server(
	name => 'old',
	streaming => 1,
	config => q(
leader_election.lease_duration = '6s'
client_min_messages = warning
));
$control = session($old, name => 'control');
change('vacant', 2, 0);
$control->query("SELECT leader_election.create_election('never led')");
$old->backup('backup');
my $new = PostgreSQL::Test::Cluster->new('new');
$new->init_from_backup($old, 'backup', has_streaming => 1);
$new->start;
change('continued', 2, 1);
change('lost', 1, 1);
$old->wait_for_catchup('new');
$control->finish;
$old->stop('immediate');
$new->promote;

my $listener = Announced->new($new);
my $there = session($new, name => 'there');
my $term = query_unless_busy($there,
	"SELECT term FROM leader_election.renew('continued', 2)");
cmp_ok($term, '>', 2, 'promoted: leads on');
$listener->wait_for_count('continued', 1);
is($there->query("SELECT count(*) FROM leader_election.history
	WHERE election = 'lost' AND ended_at IS NULL"),
	1, 'promoted: in the grace');
is_deeply([ $listener->events('lost') ], [],
	'promoted: nothing of a lease that may be led on');
is($there->query("SELECT term FROM leader_election.renew('continued', $term)"),
	$term, 'promoted: renewed');
wait_for($new, "SELECT count(*) FROM leader_election.history
	WHERE election = 'lost' AND reason = 'failover'", 1);
$listener->events_ok('lost', [ 'vacated 1, x failover' ], 'promoted: after the grace');
$listener->events_ok('vacant', [ 'vacated 2, x resigned' ],
	'promoted: the last change before it');
is(($listener->events('continued'))[0], "elected $term x, x failover",
	'promoted: to lead on is one event');
$listener->events_ok('never led', [], 'promoted: nothing of what was never led');

$there->finish;
$new->stop;
done_testing();
