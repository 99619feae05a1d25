# What is rolled back to a savepoint has not happened: the log has no line of it, and it
# has no effect on what the transaction commits.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server();
my $admin = session($node, name => 'admin');

sub log_of
{
	my ($election) = @_;

	return scalar grep { /leader_election: election "\Q$election\E": / } split /^/, slurp_file($node->logfile);
}

$admin->query("SELECT leader_election.create_election('$_')") foreach qw(kept gone twice);

# A line comes when the transaction is committed, before the client is told.
$admin->query(
	"BEGIN; SAVEPOINT s;
	SELECT leader_election.drop_election('kept'), leader_election.drop_election('twice');
	ROLLBACK TO s;
	SELECT leader_election.drop_election('gone'), leader_election.drop_election('twice');
	COMMIT");
is($admin->sqlstate, '00000', 'two are dropped, one of them again after a savepoint');
is($admin->query("SELECT string_agg(election, ' ') FROM leader_election.election"), 'kept', 'a third one is not');
is(log_of('gone'), 1, 'the log tells of the one');
is(log_of('twice'), 1, 'of the other once');
is(log_of('kept'), 0, 'and not of the one that was kept (G10)');
cmp_ok($admin->query("SELECT term FROM leader_election.acquire('kept', 'c')"), '>', 0, 'which can be led');

done_testing();
