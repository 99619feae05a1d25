# The servers of the conformance suite: a primary, a standby when one is needed,
# a pooler, a slow way to the primary, and one that loses grants. Databases:
#
#	postgres   with the extension, and with schema conformance: write() notes in
#	           the table journal who wrote in which term, in the order of commits
#	bare       without the extension
#
# Roles: app, which may stand; watcher, which may not; locked, whose password
# nobody knows.

package Servers;

use strict;
use warnings;

use Exporter qw(import);
use IO::Socket::INET;
use POSIX ();
use Subjects qw($TIMEOUT);
use Time::HiRes qw(clock_gettime sleep CLOCK_MONOTONIC);

our @EXPORT = qw(fail_over grant kill_pooler lost_answers make_standby port restart sql
  start_pooler start_servers stop_servers $JOURNAL $out);

our $out;    # the folder for logs

$ENV{PGCTLTIMEOUT} = $TIMEOUT;

my ($dir, %port, %pid);
my $primary = 1;

# The port of a server (1, 2), both of them, the pooler, the slow way, or the lossy one.
sub port
{
	my ($name) = @_;

	return $name eq 'both' ? "$port{1},$port{2}" : $port{$name};
}

sub free_port
{
	for (1 .. 100)
	{
		my $port = 10_000 + int(rand(20_000));

		next if grep { $_ == $port } values %port;
		return $port
		  if IO::Socket::INET->new(LocalPort => $port, Listen => 1);
	}
	die 'no free port';
}

sub run
{
	my ($command) = @_;

	system("$command >>'$out/servers.log' 2>&1") == 0
	  or die "failed, see servers.log: $command\n";
	return;
}

# Runs one statement at the primary, over its own socket. Dies if it fails.
sub sql
{
	my ($sql, %opts) = @_;
	my $n = $opts{server} // $primary;

	open my $psql, '-|', 'psql', qw(-XqAt -v ON_ERROR_STOP=1 -d),
	  "host=$dir port=$port{$n} user=postgres application_name=runner dbname="
	  . ($opts{dbname} // 'postgres'), '-c', $sql
	  or die "psql: $!";
	local $/ = undef;
	my $output = <$psql> // '';
	close $psql or die "failed: $sql\n";
	$output =~ s/\n\z//;
	return $output;
}

sub append
{
	my ($path, $text) = @_;

	open my $file, '>>', $path or die "$path: $!";
	print $file $text;
	close $file or die "$path: $!";
	return;
}

# A process that does not outlive the runner
sub start
{
	my ($name, @command) = @_;

	$pid{$name} = fork // die "fork: $!";
	return if $pid{$name} != 0;
	open STDIN, '<', '/dev/null';
	open STDOUT, '>>', "$out/$name.log";
	open STDERR, '>&', \*STDOUT;
	exec qw(setpriv --pdeathsig KILL), @command or POSIX::_exit(127);
}

sub wait_for_port
{
	my ($port) = @_;
	my $end = clock_gettime(CLOCK_MONOTONIC) + $TIMEOUT;

	until (IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port))
	{
		die "nothing on port $port after $TIMEOUT s: $!\n" if clock_gettime(CLOCK_MONOTONIC) > $end;
		sleep 0.02;
	}
	return;
}

# A transaction whose client hangs holds a row of the journal that the next
# leader wants: it is ended soon.
sub write_settings
{
	my ($n) = @_;

	append("$dir/server$n/postgresql.conf", qq(
listen_addresses = '*'
port = $port{$n}
unix_socket_directories = '$dir'
cluster_name = 'server$n'
fsync = off
wal_level = replica
hot_standby = on
max_connections = 300
max_worker_processes = 16
idle_in_transaction_session_timeout = '300ms'
wal_retrieve_retry_interval = '200ms'
log_line_prefix = '%m [%p] %e %a %h: '
));
	return;
}

# Schema conformance
our $JOURNAL = q(
CREATE SCHEMA conformance;
CREATE TABLE conformance.line (election text PRIMARY KEY, n bigint NOT NULL);
CREATE TABLE conformance.journal (
	election text, n bigint, candidate text NOT NULL, term bigint NOT NULL,
	PRIMARY KEY (election, n));

/* The row of table line is locked until COMMIT: n is the order of commits. */
CREATE FUNCTION conformance.write(election text, candidate text, term bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '500ms' AS $$
DECLARE
	mine bigint;
BEGIN
	INSERT INTO conformance.line AS l VALUES ($1, 1)
		ON CONFLICT ON CONSTRAINT line_pkey DO UPDATE SET n = l.n + 1
		RETURNING l.n INTO mine;
	INSERT INTO conformance.journal VALUES ($1, mine, $2, $3);
END
$$;
GRANT USAGE ON SCHEMA conformance TO PUBLIC;
);

# Everything in a folder. The slow way has this delay each way, in milliseconds.
sub start_servers
{
	my ($folder, $delay) = @_;

	$dir = $folder;
	$port{$_} = free_port() foreach 1, 2, 'pooler', 'slow', 'lossy';
	run("initdb -D '$dir/server1' -U postgres -A trust -E UTF8 --no-locale -N");
	append("$dir/server1/pg_hba.conf", "host all locked all scram-sha-256\n"
		  . "host all all all trust\n");
	write_settings(1);
	run("pg_ctl -D '$dir/server1' -l '$out/server1.log' -s -w start");
	sql('CREATE DATABASE bare');
	sql('CREATE EXTENSION leader_election');
	sql("CREATE ROLE app LOGIN; CREATE ROLE watcher LOGIN;
		CREATE ROLE locked LOGIN PASSWORD 'unknown'");
	sql($JOURNAL);
	grant();

	append("$dir/pgbouncer.ini", qq([databases]
* = host=$dir port=$port{1} user=app pool_size=40
[pgbouncer]
listen_addr = *
listen_port = $port{pooler}
unix_socket_dir =
auth_type = any
pool_mode = transaction
server_round_robin = 1
server_reset_query = DISCARD ALL
server_reset_query_always = 1
server_login_retry = 0.2
ignore_startup_parameters = extra_float_digits,options
));
	start('slow', $^X, "$FindBin::RealBin/slow.pl", $port{slow}, $port{1}, $delay);
	start('lossy', $^X, "$FindBin::RealBin/lossy.pl", $port{lossy}, $port{1});
	wait_for_port($port{$_}) foreach 'slow', 'lossy';
	return;
}

# What a role needs, after each CREATE EXTENSION
sub grant
{
	sql('GRANT USAGE ON SCHEMA leader_election TO app, watcher;
		GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app');
	return;
}

# How many answers with a grant in that election the lossy way has not passed on
sub lost_answers
{
	my ($election) = @_;

	open my $file, '<', "$out/lossy.log" or die "lossy.log: $!";
	return scalar grep { /^lost .*\Q$election\E\b/ } <$file>;
}

sub start_pooler
{
	my ($pgbouncer) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}),
	  '/usr/sbin';

	start('pooler', $pgbouncer // die('no pgbouncer'), "$dir/pgbouncer.ini");
	wait_for_port($port{pooler});
	return;
}

sub kill_pooler
{
	kill 'KILL', $pid{pooler};
	waitpid $pid{pooler}, 0;
	return;
}

sub restart
{
	my ($mode) = @_;

	run("pg_ctl -D '$dir/server$primary' -l '$out/server$primary.log' -s -w "
		  . "-m $mode restart");
	return;
}

# Makes the second server, which the first one waits for from now on.
sub make_standby
{
	run("pg_basebackup -c fast -X stream -R -D '$dir/server2' "
		  . "-d 'host=$dir port=$port{1} user=postgres'");
	write_settings(2);
	run("pg_ctl -D '$dir/server2' -l '$out/server2.log' -s -w start");
	sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
	sql('SELECT pg_reload_conf()');
	my $end = clock_gettime(CLOCK_MONOTONIC) + $TIMEOUT;

	until (sql("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"))
	{
		die "no synchronous standby after $TIMEOUT s: "
		  . sql('SELECT json_agg(r) FROM pg_stat_replication r') . "\n"
		  if clock_gettime(CLOCK_MONOTONIC) > $end;
		sleep 0.02;
	}
	return;
}

# The primary dies, and the standby is promoted.
sub fail_over
{
	run("pg_ctl -D '$dir/server1' -s -w -m immediate stop");
	run("pg_ctl -D '$dir/server2' -s promote");
	$primary = 2;
	return;
}

sub stop_servers
{
	kill 'KILL', grep { defined } delete @pid{qw(pooler slow lossy)};
	foreach my $n (grep { -e "$dir/server$_/postmaster.pid" } 1, 2)
	{
		run("pg_ctl -D '$dir/server$n' -s -w -m immediate stop");
	}
	return;
}

1;
