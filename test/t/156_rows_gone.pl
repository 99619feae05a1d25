# Rows that somebody has deleted by hand, and an extension that was created anew: nobody
# leads there, every call answers, and none grants anything.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Test::More;

my $REQUEST = '5c6b0f0e-3f6a-4a52-9d0c-000000000156';
my $node = new_server(config => "leader_election.lease_duration = '1h'\nclient_min_messages = error");
my $super = session($node, name => 'super');
my $holder = session($node, name => 'holder');

# --- The lease row of an election

$super->query("SELECT leader_election.create_election('gone')");
is($holder->query("SELECT leader_election.join('gone', 'holder')"), 1, 'one leads');
is($super->query("SELECT count(*) FROM leader_election.acquire('gone', 'detached')"), 0, 'another one stands');
$super->query("DELETE FROM leader_election.lease WHERE election = 'gone'");
is($super->sqlstate, '00000', 'the lease row is deleted');

# Whose call, what, the SQLSTATE, and what it answers
foreach my $call (
	[ $holder, "is_leader('gone')", '00000', 'f' ],
	[ $super, "is_leader('gone', 1)", '00000', 'f' ],
	[ $super, "leader('gone')", '00000', '' ],
	[ $holder, "assert_leader('gone')", 'LE003', '' ],
	[ $holder, "renew('gone')", 'LE003', '' ],
	[ $holder, "resign('gone')", 'LE003', '' ],
	[ $super, "acquire('gone', 'detached')", '00000', '' ],
	[ $super, "acquire('gone', 'detached', request => '$REQUEST')", '00000', '' ],
	[ $super, "acquire('gone', 'detached', run => 'r')", '00000', '' ],
	[ $super, "acquire('gone', 'holder')", 'LE004', '' ],
	[ $super, "renew('gone', 1)", 'LE003', '' ],
	[ $super, "release('gone', 1)", '00000', 'f' ],
	[ $super, "release('gone', 1, done => true)", '00000', 'f' ],
	[ $super, "transfer('gone', 1, 'detached')", '00000', 'f' ],
	[ $super, "request_yield('gone')", '00000', '' ],
	[ $super, "request_yield('gone', 'detached')", '00000', '' ],
	[ $super, "alter_election('gone', quorum => 1)", '55P03', '' ],
	[ $super, "pause_election('gone')", '00000', '' ],
	[ $super, "request_yield('gone', 'detached')", '55P03', '' ],
	[ $super, "leave('gone', 'detached')", '00000', 't' ])
{
	my ($session, $sql, $sqlstate, $answer) = @$call;
	my $result = $session->query("SELECT leader_election.$sql");

	is($session->sqlstate, $sqlstate, "$sql: SQLSTATE");
	is($result // '', $answer, "$sql: its answer");
}
like($super->query("SELECT severity, finding FROM leader_election.diagnose('gone')"),
	qr/^error\|Election "gone" has no lease row.*Only a DELETE by hand removes it/m, 'diagnose() says what is so');

my ($remedy) = $super->query("SELECT remedy FROM leader_election.diagnose('gone') WHERE remedy LIKE '%INSERT INTO%'") =~ /(UPDATE leader_election\..*known;)/;
$super->query($remedy);
is($super->sqlstate, '00000', 'the remedy makes the row again');
is($super->query("SELECT reason FROM leader_election.history WHERE election = 'gone'"), 'expired', 'and ends the last term');
$super->query("SELECT leader_election.resume_election('gone'), leader_election.drain_candidate('holder', 'gone')");
is($super->query("SELECT term FROM leader_election.acquire('gone', 'detached')"), 2, 'and the terms go on');

# --- Rows of the seats of a group

$super->query("SELECT leader_election.create_group('seats', 3)");
cmp_ok($holder->query("SELECT leader_election.join('seats/3', 'holder')"), '>', 0, 'a seat is led');
$super->query("DELETE FROM leader_election.lease WHERE election = 'seats/1'");
$super->query("DELETE FROM leader_election.election WHERE election = 'seats/2'");
my $told = $super->query("SELECT severity, finding FROM leader_election.diagnose('seats')");
is($super->sqlstate_of("SELECT leader_election.acquire_any('seats', 'detached')"), '55P03', 'nobody is elected for any of them');
like($told, qr/^\w+\|Seats of group "seats": 3\. Led: 1\./m, 'the others are told of');
like($told, qr/^warning\|Nobody stands for these seats of group "seats": "seats\/1", "seats\/2"/m, 'and that nobody stands for those');

# --- The extension, while a session campaigns

$super->query("SELECT leader_election.acquire('led', 'detached')");
$holder->query_async("CALL leader_election.campaign('led', 'waits')");
wait_for($node, "SELECT count(*) FROM leader_election.candidates WHERE candidate = 'waits'", 1);
$super->query('BEGIN; DROP EXTENSION leader_election; CREATE EXTENSION leader_election; COMMIT');
is($super->sqlstate, '00000', 'the extension is created anew');
$holder->result;
is($holder->sqlstate, 'LE003', 'a campaign of before ends');
like($holder->errors, qr/DETAIL:  (?:They ended with the extension|It was dropped while this session campaigned)/, 'and says why');
is($super->query("SELECT count(*) FROM leader_election.candidates"), 0, 'it stands no more');

done_testing();
