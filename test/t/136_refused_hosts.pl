# A host that refuses pg_leader is one of several: it goes on with the others. All
# that refuse, and a primary that does, may come to their senses: pg_leader tries
# on for as long as --refusal-timeout says, and only then ends, with an exit status
# of its own. It never spins, and says of one trouble a few lines.
#
# Here the standby has a pg_hba.conf of its own, the real one of a cluster whose
# hosts are not all managed alike.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use IO::Socket::INET;
use LeaderElection;
use MachineTime;
use PgLeader;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Sidecar;
use Test::More;
use Time::HiRes qw(sleep time);

my $dir = PostgreSQL::Test::Utils::tempdir();
my $LEASE = 3 * slowness();
my $primary = new_server(
	name => 'primary',
	streaming => 1,
	config => qq(
leader_election.lease_duration = '${LEASE}s'
listen_addresses = '127.0.0.2'
client_min_messages = warning
log_connections = on
));

$primary->safe_psql('postgres', q(
	SET password_encryption = 'scram-sha-256';
	CREATE ROLE app LOGIN PASSWORD 'right';
	CREATE ROLE stranger LOGIN;
	CREATE DATABASE private;
	REVOKE CONNECT ON DATABASE private FROM public;
	GRANT USAGE ON SCHEMA leader_election TO public;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO public;
	SET ROLE app;
	SELECT leader_election.create_election('e', candidate_role => 'app')));
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);

# Both have the same port, on addresses of their own.
my $port = $primary->port;
my $sockets = PostgreSQL::Test::Utils::tempdir_short();
$standby->append_conf('postgresql.conf', "port = $port\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '$sockets'\n");
@$standby{qw(_port _host)} = ($port, $sockets);
my $ANY = "host all all 127.0.0.0/8 trust\n";

sub set_hba
{
	my ($node, $lines) = @_;

	unlink $node->data_dir . '/pg_hba.conf';
	$node->append_conf('pg_hba.conf', "local all all trust\nlocal replication all trust\n$lines");
	$node->reload if -e $node->data_dir . '/postmaster.pid';
	return;
}

set_hba($primary, "host all app all scram-sha-256\n$ANY");
set_hba($standby, "host all app all reject\n$ANY");
$standby->start;

my $sql = session($primary, name => 'observer');
my $P = "host=127.0.0.2 port=$port dbname=postgres user=app";
my $S = "host=127.0.0.1 port=$port dbname=postgres user=app";
my $BOTH = "host=127.0.0.1,127.0.0.2 port=$port dbname=postgres user=app";
$ENV{PGPASSWORD} = 'right';
my @run = ('-e', 'e', '--grace=100ms');
my $n = 0;

# How often this has connected, by the servers' logs
sub attempts
{
	my ($regexp) = @_;

	return scalar map { slurp_file($_->logfile) =~ /$regexp/g } $primary, $standby;
}

sub leads
{
	my ($name) = @_;

	return wait_until(sub { $sql->query("SELECT leader_election.leader('e')") eq $name }, "$name to lead");
}

# Ends its sessions on the primary.
sub terminate
{
	my ($name) = @_;

	return $sql->query("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'app' AND application_name = '$name'");
}

# --- a host that refuses, and another one

my %REFUSALS = (
	'28000' => "host all app all reject\n$ANY",
	'28P01' => "host all app all password\n$ANY");

# A password that only the primary takes: it trusts.
foreach my $sqlstate (sort keys %REFUSALS)
{
	local $ENV{PGPASSWORD} = $sqlstate eq '28P01' ? 'stale' : 'right';

	set_hba($primary, $ANY) if $sqlstate eq '28P01';
	set_hba($standby, $REFUSALS{$sqlstate});
	is_deeply([ run_pg_leader($BOTH, @run, '--', 'echo', 'runs') ], [ 0, "runs\n" ], "$sqlstate of the standby, which comes first: run");
	foreach my $call ([qw(status -e e)], [qw(history -e e)], [qw(yield -e e)])
	{
		my ($code, $out, $err) = ask($BOTH . ($call->[0] eq 'yield' ? '' : ' target_session_attrs=any'), @$call);

		like($code, qr/^[01]$/, "... @$call");
		is($err, '', '... without a word') if $call->[0] ne 'yield';
	}
	set_hba($primary, "host all app all scram-sha-256\n$ANY");
}
set_hba($standby, $REFUSALS{28000});

# Its backend is terminated, once and again: it leads on.
foreach my $mode (qw(detached session))
{
	my $name = "$mode one";
	local $ENV{PGAPPNAME} = $name;
	my $one = pg_leader($BOTH, @run, '-n', $name, "--mode=$mode", '--forever', '--', 'sleep', '600');

	leads($name);
	my $term = $sql->query("SELECT term FROM leader_election.status WHERE election = 'e'");
	foreach (1 .. 2)
	{
		my $renewed = $sql->query("SELECT clock_timestamp()");

		is(terminate($name), 1, "$mode: its session is terminated");
		wait_until(sub { $sql->query("SELECT leader = '$name' AND renewed_at > '$renewed' FROM leader_election.status WHERE election = 'e'") eq 't' },
			sub { 'it to lead again: ' . $one->output });
	}
	is($sql->query("SELECT term - $term FROM leader_election.status WHERE election = 'e'"), $mode eq 'session' ? 2 : 0, '... and leads on');
	$one->signal('TERM');
	is($one->exit_code, 143, '... until it is ended');
}

# --- one name with the addresses of both, and a service

{
	local $ENV{LD_PRELOAD} = preload('two_addresses');

	is_deeply([ run_pg_leader("host=db.test port=$port dbname=postgres user=app", @run, '--', 'echo', 'runs') ],
		[ 0, "runs\n" ], 'a name with two addresses, the first of which refuses');
	set_hba($standby, $ANY);
	is_deeply([ run_pg_leader("host=db.test port=$port dbname=postgres user=app", @run, '--', 'echo', 'runs') ],
		[ 0, "runs\n" ], '... or is a standby');
	is((ask("host=db.test port=$port dbname=postgres user=app target_session_attrs=prefer-standby", 'status', '-e', 'e', '--json'))[0], 1, '... prefer-standby');
	set_hba($standby, $REFUSALS{28000});
}
{
	local $ENV{PGSERVICEFILE} = "$dir/services";
	append_to_file("$dir/services", "[app]\nhost=127.0.0.1,127.0.0.2\nport=$port\ndbname=postgres\nuser=app\n");
	is_deeply([ run_pg_leader('service=app', @run, '--', 'echo', 'runs') ], [ 0, "runs\n" ], 'the hosts of a service');
	local $ENV{PGSERVICE} = 'app';
	is_deeply([ run_pg_leader('', @run, '--', 'echo', 'runs') ], [ 0, "runs\n" ], '... of the environment');
}

# --- all refuse

# By hand, the first round is the only one.
foreach my $case (
	[ 'a wrong password', $P, { PGPASSWORD => 'wrong' }, 120, qr/password authentication failed/ ],
	[ 'no password', $P, { PGPASSWORD => undef }, 120, qr/no password/ ],
	[ 'a standby alone', $S, {}, 120, qr/pg_hba.conf rejects/ ],
	[ 'no such database', "host=127.0.0.2 port=$port dbname=none user=stranger", {}, 120, qr/database "none" does not exist/ ],
	[ 'a database of others', "host=127.0.0.2 port=$port dbname=private user=stranger", {}, 120, qr/permission denied for database/ ],
	[ 'a wrong password at both', $BOTH, { PGPASSWORD => 'wrong' }, 120, qr/pg_hba.conf rejects(.*\n)+.*password authentication failed/ ],
	[ 'not in the role', "host=127.0.0.2 port=$port dbname=postgres user=stranger", {}, 120, qr/permission denied/ ],
	[ 'one refuses, and one is down', "host=127.0.0.1,127.0.0.3 port=$port dbname=postgres user=app", {}, 123, qr/pg_hba.conf rejects(.*\n)+.*refused/ ],
	[ 'no extension', "host=127.0.0.2 port=$port dbname=template1 user=stranger", {}, 124, qr/does not have the extension/ ])
{
	my ($what, $connstr, $env, $code, $says) = @$case;
	local %ENV = (%ENV, %$env);
	delete $ENV{$_} foreach grep { !defined $env->{$_} } keys %$env;
	my ($is, $output) = run_pg_leader($connstr, @run, '--refusal-timeout=1h', '--', 'true');

	is($is, $code, "$what: at once");
	like($output, $says, '... says why');
	unlike($output, qr/LOCATION|\.c:\d|28P01|28000|3D000/, '... in words');
}

# Who may wait goes on until the while is over, and then does not.
my $WHILE = 2;
foreach my $case (
	[ 'a wrong password at both', $BOTH, { PGPASSWORD => 'wrong' }, 120, qr/password authentication failed/, '--forever' ],
	[ 'a wrong password, with --wait', $P, { PGPASSWORD => 'wrong' }, 120, qr/password authentication failed/, '--wait=1h' ],
	[ 'not in the role', "host=127.0.0.2 port=$port dbname=postgres user=stranger", {}, 120, qr/permission denied/, '--forever' ],
	[ 'not in the role, in a session', "host=127.0.0.2 port=$port dbname=postgres user=stranger", {}, 120, qr/permission denied/, '--forever', '--mode=session' ],
	[ 'no extension', "host=127.0.0.2 port=$port dbname=template1 user=stranger", {}, 124, qr/does not have the extension/, '--forever' ])
{
	my ($what, $connstr, $env, $code, $says, @args) = @$case;
	local %ENV = (%ENV, %$env);
	my $began = time;
	my $before = attempts(qr/connection received/);
	my ($is, $output) = run_pg_leader($connstr, @run, @args, "--refusal-timeout=${WHILE}s", '--', 'true');
	my $took = time - $began;
	my $hosts = $connstr =~ /,/ ? 2 : 1;

	is($is, $code, "$what, for a while");
	like($output, $says, '... says why');
	cmp_ok($took, '>=', $WHILE, '... not before it is over');
	cmp_ok(attempts(qr/connection received/) - $before, '<=', 10 * ($took + 1), '... at most 10 attempts a second');
	cmp_ok($output =~ tr/\n//, '<=', 4 + 2 * $hosts, '... and a few lines') or note($output);
}

# It is mended in time.
{
	local $ENV{PGPASSWORD} = 'new';
	my $one = pg_leader($BOTH, @run, '--forever', '--refusal-timeout=1h', '-n', 'patient', '--', 'sleep', '600');

	wait_until(sub { attempts(qr/password authentication failed for user "app"/) > 3 && $one->output =~ /password/ }, 'refusals');
	$sql->query("SET password_encryption = 'scram-sha-256'; ALTER ROLE app PASSWORD 'new'");
	leads('patient');
	pass('a password that is set later');
	$one->signal('TERM');
	is($one->exit_code, 143, '... and its end');
}
$ENV{PGPASSWORD} = 'new';

# A GRANT, and an extension that comes, are in time, too.
{
	my $one = pg_leader("host=127.0.0.2 port=$port dbname=postgres user=stranger", @run, '--forever', '--refusal-timeout=1h', '-n', 'granted', '--', 'sleep', '600');
	my $two = pg_leader("host=127.0.0.2 port=$port dbname=private user=app", '-e', 'e', '--forever', '--refusal-timeout=1h', '-n', 'later', '--', 'sh', '-c', 'echo runs; sleep 600');

	wait_until(sub { $one->output =~ /permission denied/ }, 'a refusal');
	wait_until(sub { $two->output =~ /permission denied/ }, '... and another one');
	$sql->query('GRANT app TO stranger');
	$sql->query('GRANT CONNECT ON DATABASE private TO app');
	leads('granted');
	pass('a role that is granted later');
	wait_until(sub { $two->output =~ /extension/ }, 'the word that there is no extension');
	ok(!$two->ended, 'no extension');
	$primary->safe_psql('private', 'CREATE EXTENSION leader_election');
	wait_until(sub { $two->output =~ /runs/ || $two->output =~ /permission denied for schema/ }, 'its start');
	pass('... until it is made');
	$_->signal('TERM') foreach $one, $two;
	is(join(' ', map { $_->exit_code } $one, $two), '143 143', '... and the end of both');
	$sql->query('REVOKE app FROM stranger');
}

# One that refuses, and one that is down, are no refusal: it waits for the latter.
{
	my $one = pg_leader($BOTH, @run, '--forever', '--refusal-timeout=100ms', '-n', 'waits', '--', 'sleep', '600');

	leads('waits');
	$primary->stop('immediate');
	my $before = attempts(qr/pg_hba.conf rejects/);
	wait_until(sub { attempts(qr/pg_hba.conf rejects/) > $before + 5 }, 'attempts at the standby');
	ok(!$one->ended, 'a primary that is down: it waits');
	$primary->start;
	$sql = session($primary, name => 'observer');
	wait_until(sub { $sql->query("SELECT leader = 'waits' AND renewed_at > pg_postmaster_start_time() FROM leader_election.status WHERE election = 'e'") eq 't' },
		'a lease of the server that is up again');
	pass('... and leads when that is up again');
	$one->signal('TERM');
	is($one->exit_code, 143, '... and ends');
}

# While the command runs, the deadline ends it, and no refusal.
{
	my $log = "$dir/command";
	local $ENV{PGAPPNAME} = 'cut off';
	my $one = pg_leader($BOTH, @run, '--refusal-timeout=100ms', '-n', 'cut off', '--', 'sh', '-c', "echo started >$log; trap 'echo ended >>$log; exit 0' TERM; while :; do sleep 0.05; done");

	wait_until(sub { -e $log && slurp_file($log) =~ /started/ }, 'its start');
	set_hba($primary, "host all app all reject\n$ANY");
	my $renewed = $sql->query("SELECT extract(epoch FROM renewed_at) FROM leader_election.status WHERE election = 'e'");
	my $began = time;
	is(terminate('cut off'), 1, 'its session is terminated, and it is refused');
	is($one->exit_code, 121, '... which ends its leadership when that is over');
	cmp_ok(time - $began, '>', $LEASE / 4, '... and no sooner');
	like($one->output, qr/could not be renewed in time/, '... says why');
	set_hba($primary, "host all app all scram-sha-256\n$ANY");
}

# What is done is recorded, although that is refused at first.
{
	my $one = pg_leader($P, '-e', 'runs', '-n', 'one', '--every=366d', '--refusal-timeout=1h', '--', 'sh', '-c', "echo started; until [ -e $dir/go ]; do sleep 0.05; done");

	wait_until(sub { $one->output =~ /started/ }, 'its start');
	my ($release) = $sql->query("SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'leader_election'::regnamespace AND proname = 'release'");
	$sql->query("REVOKE EXECUTE ON FUNCTION $release FROM public");
	append_to_file("$dir/go", '');
	wait_until(sub { $one->output =~ /permission denied/ }, 'a refusal');
	$sql->query("GRANT EXECUTE ON FUNCTION $release TO public");
	wait_until(sub { $sql->query("SELECT run_done IS NOT NULL FROM leader_election.status WHERE election = 'runs'") eq 't' }, 'the record');
	pass('a run that is done is recorded when that is allowed again');
	$one->signal('TERM');
	is($one->exit_code, 143, '... and its end');
}

# --- the sidecar

SKIP:
{
	my $why = no_http($primary);
	skip $why, 2 if $why;
	local $ENV{PGPASSWORD} = 'wrong';
	my $http = http_port();
	my $one = sidecar($BOTH, '-e', 'e', '-n', 'sidecar', "--http=$http", '--refusal-timeout=' . 5 * slowness() . 's');
	my $reply;

	wait_until(sub { $reply = get($http, '/leader'); $reply && $reply->{body} =~ /refused/ }, 'a word that it is refused');
	is($reply->{status}, 503, 'a sidecar says that it is refused');
	is($one->exit_code, 120, '... and ends');
}

# --- hosts that say nothing

# A signal ends the round, and not only the attempt.
{
	my @deaf = map { IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 5) or die } 1 .. 3;
	my $one = pg_leader('host=127.0.0.1,127.0.0.1,127.0.0.1 dbname=d user=u port=' . join(',', map { $_->sockport } @deaf), '-e', 'e', '--forever', '--', 'true');

	my $client = $deaf[0]->accept;
	my $began = machine_time();
	$one->signal('TERM');
	is($one->exit_code, 143, 'ended while it connects');
	cmp_ok(machine_time() - $began, '<', 5, '... at once');
}

# --- no spinning

# A server that accepts, and hangs up
{
	my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 50) or die;
	my $one = pg_leader('host=127.0.0.1,127.0.0.1 dbname=d user=u port=' . $listener->sockport, '-e', 'e', '--forever', '--', 'true');
	my ($began, $count) = (undef, 0);

	while ($count < 15)
	{
		my $client = $listener->accept or next;
		$began //= time;
		$count++;
		close($client);
	}
	cmp_ok(time - $began, '>=', 0.9, 'hung up on: no more than 10 attempts in a second');
	$one->signal('TERM');
	is($one->exit_code, 143, '... until it is ended');
	cmp_ok($one->output =~ tr/\n//, '<', 8, '... a few lines');
}

# A server that ends each session that asks for the lease: who stands, and who looks
{
	$sql->query('CREATE DATABASE ends');
	$primary->safe_psql('ends', q(CREATE EXTENSION leader_election;
		CREATE FUNCTION public.hang_up() RETURNS boolean LANGUAGE sql SECURITY DEFINER AS 'SELECT pg_terminate_backend(pg_backend_pid())';
		ALTER TABLE leader_election.history RENAME TO real_history;
		CREATE VIEW leader_election.history AS SELECT * FROM leader_election.real_history WHERE public.hang_up();
		ALTER EXTENSION leader_election DROP FUNCTION leader_election.acquire(text, text, integer, bigint, jsonb, text, integer, uuid);
		DROP FUNCTION leader_election.acquire(text, text, integer, bigint, jsonb, text, integer, uuid);
		CREATE FUNCTION leader_election.acquire(text, text, integer, request uuid, run text, attempts integer, OUT term bigint, OUT remaining_ms bigint, OUT yielding boolean)
			RETURNS SETOF record LANGUAGE sql AS $$SELECT 1::bigint, 1::bigint, false WHERE public.hang_up()$$));
	foreach my $call ([qw(run -e x --forever -- true)], [qw(watch -e x)])
	{
		my $name = "spins $call->[0]";
		my ($subcommand, @args) = @$call;
		local $ENV{PGAPPNAME} = $name;
		my $seen = qr/application_name=$name/;
		my $connstr = $primary->connstr('ends');
		my $one = $subcommand eq 'run' ? pg_leader($connstr, @args) : undef;
		my $watch = $one ? undef : start_client($connstr, $subcommand, @args);

		wait_until(sub { attempts($seen) > 0 }, 'an attempt');
		my $began = time;
		wait_until(sub { attempts($seen) >= 15 || time - $began > 10 }, 'attempts');
		cmp_ok(attempts($seen) / (time - $began + 1), '<=', 10.5, "$subcommand: no more than 10 in a second");
		if ($one)
		{
			$one->signal('TERM');
			is($one->exit_code, 143, '... until it is ended');
			cmp_ok($one->output =~ tr/\n//, '<', 8, '... a few lines') or note($one->output);
		}
		else
		{
			$watch->[0]->signal('TERM');
			$watch->[0]->finish;
		}
	}
}

# --- the name that it has unless it is given one

foreach my $case (
	[ qr/^HOST-\d+-[0-9a-f]{4}$/, {} ],
	[ qr/^mailer-5f7c-\d+$/, { KUBERNETES_SERVICE_HOST => '10.0.0.1', POD_NAME => 'mailer-5f7c', HOSTNAME => 'other' } ],
	[ qr/^HOST-\d+-[0-9a-f]{4}$/, { KUBERNETES_SERVICE_HOST => '10.0.0.1', POD_NAME => '', HOSTNAME => '' } ],
	[ qr/^mailer-6f7c-\d+$/, { KUBERNETES_SERVICE_HOST => '10.0.0.1', HOSTNAME => 'mailer-6f7c' } ])
{
	my ($name, $env) = @$case;
	chomp(my $host = `uname -n`);
	local %ENV = (%ENV, %$env);
	my (undef, $output) = run_pg_leader($P, @run, '--', 'sh', '-c', 'echo "$PG_LEADER_CANDIDATE"');

	$output =~ s/^\Q$host\E-/HOST-/;
	chomp $output;
	like($output, $name, 'a name: ' . join(' ', sort keys %$env));
}

# --- who is ended while it waits leaves no trouble in the server's log

{
	my $leader = pg_leader($P, @run, '-n', 'leader', '--', 'sleep', '600');
	leads('leader');
	my @all = map { pg_leader($P, @run, '-n', "waits $_", $_ % 2 ? '--mode=session' : (), '--', 'true') } 1 .. 6;
	wait_for($primary, "SELECT count(*) = 6 FROM leader_election.candidates WHERE candidate LIKE 'waits %' AND alive");
	my $offset = -s $primary->logfile;
	foreach (@all)
	{
		$_->signal('TERM');
		sleep(0.05);
	}
	is(join(' ', map { $_->exit_code } @all), join(' ', (143) x 6), 'ended while they wait');
	$leader->signal('TERM');
	is($leader->exit_code, 143, '... and the leader');
	unlike(slurp_file($primary->logfile, $offset), qr/FATAL|could not (send|receive)|unexpected EOF|connection to client lost/, '... without a word in the log');
}

done_testing();
