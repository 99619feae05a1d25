# pg_leader run --group: each host leads one seat of a group.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PgLeader;
use PostgreSQL::Test::Utils;
use Test::More;

my $LEASE = 6 * slowness();
my $node = new_server(config => "leader_election.lease_duration = '${LEASE}s'");
my $sql = session($node, name => 'observer', options => '-c client_min_messages=warning');
my @SHOW = ('--', 'sh', '-c', 'echo "seat $PG_LEADER_SEAT of $PG_LEADER_ELECTION"; exec sleep 600');

sub leaders_soon
{
	my ($leaders, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_for($node,
		"SELECT string_agg(coalesce(leader_election.leader(election), '-'), ' ' ORDER BY election)
			FROM leader_election.election WHERE group_name = 'g'",
		$leaders);
	return pass($name);
}

my ($out, $err);
foreach my $wrong ([ '-e', 'e' ], [ '--mode', 'session' ], ['--skip'], [ '--every', '1d' ])
{
	ok(!run_log([ 'pg_leader', 'run', '--group', 'g', @$wrong, '--', 'true' ], '>', \$out, '2>', \$err),
		"--group @$wrong is refused");
	like($err, qr/exclude/, 'as contradictory');
}
is(run_pg_leader($node, '--group', 'g', '--', 'true'), 125, 'a group has to be there');

$sql->query("SELECT leader_election.create_group('g', 2, max_per_candidate => 2)");
my %host = map { $_ => pg_leader($node, '--group', 'g', '-n', $_, '--forever', @SHOW) } qw(a);
leaders_soon('a -', 'a host leads one seat, although it might have more');
$host{b} = pg_leader($node, '--group', 'g', '-n', 'b', '--forever', @SHOW);
leaders_soon('a b', 'the next one leads the next');
wait_until(sub { $host{b}->output =~ /seat 2 of g\/2/ }, 'the seat in the environment');
pass('the command is told which');
$host{c} = pg_leader($node, '--group', 'g', '-n', 'c', '--forever', @SHOW);
wait_for($node, "SELECT count(*) FROM leader_election.candidates WHERE candidate = 'c'", 2);
$host{a}->signal('KILL');
leaders_soon('c b', 'a host that dies is replaced in its seat');
wait_until(sub { $host{c}->output =~ /seat 1 of g\/1/ }, 'its command');

# More seats are announced, and stood for; with fewer, who leads there goes.
$host{d} = pg_leader($node, '--group', 'g', '-n', 'd', '--forever', @SHOW);
wait_for($node, "SELECT count(*) FROM leader_election.candidates WHERE candidate = 'd'", 2);
$sql->query("SELECT leader_election.alter_group('g', seats => 3)");
leaders_soon('c b d', 'a new seat is led by the host that waits');
$sql->query("SELECT leader_election.alter_group('g', seats => 2)");
leaders_soon('c b', 'a seat too many is given up, and dropped');
is($sql->query("SELECT count(*) FROM leader_election.candidates WHERE candidate = 'c'"),
	1, 'who leads a seat stands for no other');
$host{b}->signal('TERM');
is($host{b}->exit_code, 143, 'ended by the signal');
is($sql->query("SELECT count(*) FROM leader_election.candidates WHERE candidate = 'b'"),
	0, 'who is ended stands for none');
leaders_soon('c d', 'and who led it stands for the others again');

# A sick host stands for no seat.
$host{e} = pg_leader($node, '--group', 'g', '-n', 'e', '--check', 'false', '--check-every', '100ms',
	'--check-timeout', '100ms', @SHOW);
$host{d}->signal('TERM');
leaders_soon('c -', 'a seat for which only a sick host could stand is vacant');
is($sql->query("SELECT count(*) FROM leader_election.candidates WHERE candidate = 'e'"),
	0, 'which does not stand');
$host{c}->signal('TERM');
is($host{c}->exit_code, 143, 'ended by the signal');
$_->signal('TERM') foreach $host{e};

done_testing();
