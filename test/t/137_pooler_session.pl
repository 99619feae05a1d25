# pg_leader in a session, behind a real pooler. One that pools transactions gives
# its candidacy to others: it says so and ends, before it has set anything in the
# connections of others. One that pools sessions can be used by who says so, and has
# nothing of it left in the end.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaderElection;
use PgLeader;
use Pooler;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'there is no pgbouncer' unless find_pooler();

my $node = new_server(
	config => q(
leader_election.lease_duration = '5s'
client_min_messages = warning
idle_session_timeout = '1h'
log_statement = all
));
my $sql = session($node, name => 'observer');

set_up_pooler(
	$node,
	pool => 'pool_size=3',
	session => 'pool_size=3 pool_mode=session',
	kept => 'pool_size=3 pool_mode=session',
	'[pgbouncer]' => 'server_reset_query =');

my $user = $sql->query('SELECT current_user');

sub through { return "host=127.0.0.1 port=" . pooler_port() . " dbname=$_[0] user=$user"; }

sub leads
{
	my ($election, $name) = @_;

	return wait_until(sub { $sql->query("SELECT leader_election.leader('$election')") eq $name }, "$name to lead $election");
}

# --- it is told apart

foreach my $pool (qw(pool session))
{
	foreach my $more ([], ['--forever'], [ '--skip' ])
	{
		my ($code, $output) = run_pg_leader(through($pool), '-e', 'told', '--mode=session', @$more, '--', 'echo', 'runs');

		is($code, 125, "$pool: refused @$more");
		like($output, qr/this is a pooler: use --mode=detached, or --pooler=session if it is in session mode/, '... says why');
		unlike($output, qr/runs/, '... and no command is run');
	}
}
unlike(slurp_file($node->logfile), qr/set_config|LISTEN|leader_election\.join/, 'nothing was set, nor listened to, nor asked for');
is(run_pg_leader($node, '-e', 'told', '--mode=session', '--', 'true'), 0, 'without a pooler: all is well');

# --- a detached candidate sets nothing for others, either

{
	my $one = pg_leader(through('pool'), '-e', 'detached', '-n', 'one', '--', 'sleep', '600');
	my $offset = -s $node->logfile;

	leads('detached', 'one');
	my $watch = start_client(through('pool'), 'watch', '-e', 'detached');
	wait_for_output($watch, qr/"one" leads/);
	unlike(slurp_file($node->logfile, $offset), qr/set_config|LISTEN/, 'detached: nothing is set, nor listened to');
	$watch->[0]->signal('TERM');
	$watch->[0]->finish;
	$one->signal('TERM');
	is($one->exit_code, 143, '... and all is well');
}

# --- a pooler that pools sessions

{
	my $offset = -s $node->logfile;
	my @args = ('--mode=session', '--pooler=session', '--forever');
	my $one = pg_leader(through('kept'), '-e', 'kept', '-n', 'one', @args, '--', 'sleep', '600');

	leads('kept', 'one');
	my $two = pg_leader(through('kept'), '-e', 'kept', '-n', 'two', @args, '--', 'sleep', '600');
	wait_for($node, "SELECT count(*) = 2 FROM leader_election.candidates WHERE election = 'kept' AND alive");
	$two->signal('TERM');
	is($two->exit_code, 143, 'a session-mode pooler: who waits ends');
	wait_for($node, "SELECT count(*) = 1 FROM leader_election.candidates WHERE election = 'kept' AND alive");
	$two = pg_leader(through('kept'), '-e', 'kept', '-n', 'two', @args, '--', 'sleep', '600');
	wait_for($node, "SELECT count(*) = 2 FROM leader_election.candidates WHERE election = 'kept' AND alive");
	$one->signal('TERM');
	is($one->exit_code, 143, '... the leader ends');
	leads('kept', 'two');
	pass('... and another leads');
	$two->signal('TERM');
	is($two->exit_code, 143, '... which ends, too');
	is($sql->query("SELECT count(*) FROM leader_election.candidates WHERE election = 'kept' AND alive"), '0', '... nobody stands');
	is($sql->query("SELECT leader_election.leader('kept')"), '', '... nor leads');

	# What other clients of the pool find in the same sessions, which nobody resets
	my @next = map { pooled("next $_", 'kept') } 1 .. 3;
	my $all = sub { my ($query) = @_; return join(' ', map { scalar $_->query($query) } @next); };

	is($all->('SHOW idle_session_timeout'), '1h 1h 1h', '... nothing is set');
	is($all->('SELECT count(*) FROM pg_listening_channels()'), '0 0 0', '... nor listened to');
	is($all->("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"), '0 0 0', '... nor locked');
	$_->finish foreach @next;
	unlike(slurp_file($node->logfile, $offset), qr/FATAL/, '... without a word in the log');
}

kill_pooler();
done_testing();
