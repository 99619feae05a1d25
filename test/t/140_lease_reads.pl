# How often a call reads its lease row. The first read says whether anybody
# leads; under the name lock, the election lock and the row's own lock it is read
# again, since it may have changed; and nothing else reads it. The server counts
# the scans of the row's index by the session that calls.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaderElection;
use Test::More;

my $node = new_server(
	config => q(
client_min_messages = error
leader_election.lease_duration = '10 min'
autovacuum = off
));
my %session = map { $_ => session($node, name => $_) } qw(admin one two three);

# Expressions of a statement are evaluated from left to right.
sub reads_ok
{
	my ($who, $call, $expected, $at_most, $title) = @_;
	my $scans = q{pg_stat_get_xact_numscans('leader_election.lease_pkey'::regclass)};
	my ($before, $result, $after) = split /\|/,
	  scalar $session{$who}->query("SELECT $scans, $call, $scans");

	is($result, $expected, "$title: the result");
	cmp_ok($after - $before, '<=', $at_most, "$title: reads of the lease row");
	return;
}

sub acquire_by
{
	my ($name) = @_;

	return "(SELECT sum(term) FROM leader_election.acquire('detached', '$name'))";
}

# The worker that the first call starts, and the caches of each session, come first.
$session{$_}->query("SELECT leader_election.join('other', '$_')") foreach sort keys %session;
$session{admin}->query(
	"SELECT leader_election.create_election(e) FROM unnest('{session,detached,next}'::text[]) e");

reads_ok(one => "leader_election.join('session', 'one')", '1', 4, 'join() of a vacant seat');
reads_ok(one => "leader_election.join('session', 'one')", '1', 1, 'join() of the leader');
reads_ok(two => "leader_election.join('session', 'two')", '', 2, 'the first join() of a led seat');
reads_ok(two => "leader_election.join('session', 'two')", '', 1, 'join() of a led seat');
reads_ok(two => "leader_election.join('session', 'two', 1)", '', 1, 'join() with another rank');
reads_ok(one => "leader_election.resign('session')", 't', 3, 'resign()');

reads_ok(one => acquire_by('d1'), '1', 4, 'the first acquire() of a vacant seat');
reads_ok(two => acquire_by('d2'), '', 2, 'the first acquire() in vain');
reads_ok(two => acquire_by('d2'), '', 1, 'acquire() in vain');
reads_ok(three => "leader_election.release('detached', 1)", 't', 3, 'release()');
reads_ok(two => acquire_by('d2'), '2', 3, 'acquire() of a vacant seat');

done_testing();
