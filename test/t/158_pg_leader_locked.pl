# pg_leader run -v and stand, while tables are locked: they try to be elected, whose
# wait is short, and ask nothing that would wait for the locks. Such a question has
# no answer in time, which costs the connection, and with it a session's candidacy.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PgLeader;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Sidecar;
use Test::More;

my $TRIES = 3;

my $node = new_server(config => q(
client_min_messages = warning
log_statement = all
log_connections = on
log_line_prefix = '%p %a %q| '
));
my $super = session($node, name => 'super');

$super->query("SELECT leader_election.create_election('e', lease_duration => '1 h')");
$super->query("SELECT leader_election.acquire('e', 'leader')");

# One that they do not need in order to connect is locked before they do. So their
# first try is refused, and no question is under way when the others are locked.
my $holder = session($node, name => 'holder');
$holder->query($_) for 'BEGIN', 'LOCK TABLE leader_election.candidate';

my $connstr = $node->connstr('postgres');
my %candidates = (
	detached => pg_leader("$connstr application_name=detached",
		qw(-v -e e -n detached -- sleep 600)),
	session => pg_leader("$connstr application_name=session",
		qw(-v --mode=session -e e -n session -- sleep 600)),
	no_http($node) ? () : (sidecar => sidecar("$connstr application_name=sidecar",
		qw(-v -e e -n sidecar), '--http=' . http_port())));

# The lines of the server's log that are of one candidate and match
sub logged
{
	my ($name, $regexp) = @_;

	return grep { /^\d+ $name \|.*$regexp/ } split /\n/, slurp_file($node->logfile);
}

my $CALL = qr/ execute .* leader_election\.(?:join|acquire)\(/;
my $QUESTION = qr/ execute .* leader_election\.(?:status|candidates|drain)\b/;

wait_until(sub { logged($_, qr/election "e" is busy/) }, "$_: to be refused") foreach sort keys %candidates;
$holder->query('LOCK TABLE leader_election.election, leader_election.drain');
my %before = map { $_ => scalar logged($_, $CALL) } keys %candidates;
foreach my $name (sort keys %candidates)
{
	wait_until(sub { logged($name, $CALL) > $before{$name} + $TRIES || logged($name, $QUESTION) },
		"$name: to try to be elected");
	is(scalar logged($name, $QUESTION), 0, "$name: while tables are locked, it asks nothing that waits for that");
	is(scalar(() = slurp_file($node->logfile) =~ /connection authorized: .* application_name=$name$/mg), 1,
		"$name: so it keeps its connection");
	unlike($candidates{$name}->output, qr/waiting: /, "$name: nor does it say who leads");
}

$holder->query('COMMIT');
foreach my $name (sort keys %candidates)
{
	my $one = $candidates{$name};

	wait_until(sub { $one->output =~ /waiting: "leader" leads in term 1$/m }, "$name: to ask again");
	like($one->output, qr/the server answers again.*waiting: /s, "$name: when the lock is gone, it asks again");
	$one->signal('TERM');
	$one->exit_code;
}

done_testing();
