# A worker that discards what it has cached all the time, so that it takes tens of
# milliseconds to open a table: all of its work is done, nevertheless.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Test::More;

my $node = new_server(config => q(
leader_election.lease_duration = '1min'
client_min_messages = warning
));

plan skip_all => 'a server without assertions discards nothing'
  if $node->safe_psql('postgres', 'SHOW debug_assertions') ne 'on';

my %s = map { $_ => session($node, name => $_) } qw(one two observer);

$s{observer}->query("SELECT leader_election.create_election('led', 'lowest')");
is($s{one}->query("SELECT leader_election.join('led', 'one', rank => 1)"), 1, 'a session leads');
is($s{two}->query("SELECT leader_election.join('led', 'two', rank => 2)"), '', 'another one stands');

# Clients discard nothing.
$ENV{PGOPTIONS} = '-c debug_discard_caches=0';
$_->query('SET debug_discard_caches = 0') foreach values %s;
$node->safe_psql('postgres', 'ALTER SYSTEM SET debug_discard_caches = 1');
$node->reload;

$s{one}->kill;
wait_until(sub { $s{two}->query("SELECT leader_election.is_leader('led')") eq 't' }, 'the next leader');
pass('the next candidate is elected');
wait_for($node, "SELECT count(*) FROM leader_election.candidate
	WHERE election = 'led' AND candidate = 'one'", 0);
pass('the row of the former leader is removed');
wait_told($node);
pass('listeners are told');
$s{two}->kill;
wait_for($node, "SELECT count(*) FROM leader_election.candidate
	WHERE election = 'led' AND session_id <> 0", 0);
pass('and so is that of the last candidate');

$node->stop;
done_testing();
