# The servers of the conformance suite: a primary (1), a standby when one is needed
# (2), one that lags (3), poolers, a slow way to the primary, and one that loses
# grants. Databases:
#
#	postgres   with the extension, and with schema conformance: write() notes in
#	           the table journal who wrote in which term, in the order of commits
#	bare       without the extension, at first
#
# Instead of the extension they may have its portable edition: use_edition().
#
# Roles: app, which may stand; watcher, which may not; locked, whose password
# nobody knows; pooled, which the documented pooler logs in as; installer, which
# may create schemas.
#
# The standby that lags has heard of nothing since before CREATE EXTENSION, and of
# no password of app but its first one.

package Servers;

use strict;
use warnings;

use Exporter qw(import);
use IO::Socket::INET;
use POSIX ();
use Subjects qw($TIMEOUT);
use Time::HiRes qw(clock_gettime sleep CLOCK_MONOTONIC);

our @EXPORT = qw(admit fail_over found_by_load grant install_edition is_portable
  kill_pooler lost_answers make_standby port remove_edition restart sql start_documented
  start_impostor start_lagging start_load start_pooler start_primary start_program
  start_servers stop_lagging stop_load stop_primary stop_program stop_servers use_edition
  written_since $out $JOURNAL);

our $out;    # the folder for logs

$ENV{PGCTLTIMEOUT} = $TIMEOUT;

my ($dir, %port, %pid);
my $primary = 1;
my $edition = 'extension';

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

# Runs statements at the primary, over its own socket. Dies if one fails.
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
sub start_program
{
	my ($name, @command) = @_;

	$pid{$name} = fork // die "fork: $!";
	return if $pid{$name} != 0;
	open STDIN, '<', '/dev/null';
	open STDOUT, '>>', "$out/$name.log";
	open STDERR, '>&', \*STDOUT;
	exec qw(setpriv --pdeathsig KILL), @command or POSIX::_exit(127);
}

sub stop_program
{
	my ($name) = @_;
	my $pid = delete $pid{$name} // return;

	kill 'KILL', $pid;
	waitpid $pid, 0;
	return;
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
leader_election.lease_duration = '2 s'
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

# Everything in a folder. The slow way has this delay each way, in milliseconds. A
# standby that lags can be started later only if it is told here.
sub start_servers
{
	my ($folder, $delay, $lags) = @_;

	$dir = $folder;
	$port{$_} = free_port() foreach 1, 2, 3, qw(pooler documented nobody slow lossy named silent late);
	run("initdb -D '$dir/server1' -U postgres -A trust -E UTF8 --no-locale -N");
	write_settings(1);
	admit(1);
	start_primary();
	sql('CREATE DATABASE bare');
	sql("CREATE ROLE app LOGIN PASSWORD 'first'; CREATE ROLE watcher LOGIN;
		CREATE ROLE locked LOGIN PASSWORD 'unknown'; CREATE ROLE pooled LOGIN IN ROLE app;
		CREATE ROLE installer LOGIN");
	sql($JOURNAL, dbname => 'bare');
	copy_primary(3) if $lags;
	sql("ALTER ROLE app PASSWORD 'app'");
	install_edition('postgres');
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
	start_program('slow', $^X, "$FindBin::RealBin/slow.pl", $port{slow}, $port{1}, $delay);
	start_program('lossy', $^X, "$FindBin::RealBin/lossy.pl", $port{lossy}, $port{1});
	wait_for_port($port{$_}) foreach 'slow', 'lossy';
	return;
}

# Which edition the databases have: "extension", or "portable"
sub use_edition { ($edition) = @_; return; }

sub is_portable { return $edition eq 'portable'; }

# CREATE EXTENSION; or the file of the portable edition, as a role that may create
# schemas and nothing else.
sub install_edition
{
	my ($database) = @_;

	return sql('CREATE EXTENSION leader_election', dbname => $database) unless is_portable();
	sql("GRANT CREATE ON DATABASE $database TO installer", dbname => $database);
	run("psql -Xq -v ON_ERROR_STOP=1 -v anyway=1 -f '$FindBin::RealBin/../../sql/portable.sql' "
		  . "'host=$dir port=$port{$primary} user=installer dbname=$database'");
	return;
}

sub remove_edition
{
	my ($database) = @_;

	return sql('DROP EXTENSION leader_election CASCADE', dbname => $database) unless is_portable();
	return sql('DROP SCHEMA leader_election, leader_election_internal CASCADE', dbname => $database);
}

# What a role needs, after each install_edition(), in a database; and what else is
# done in the same transaction.
sub grant
{
	my ($database, $more) = @_;

	sql('GRANT USAGE ON SCHEMA leader_election TO app, watcher;
		GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app; ' . ($more // ''),
		dbname => $database);
	return;
}

# How many answers with a grant in that election the lossy way has not passed on
sub lost_answers
{
	my ($election) = @_;

	open my $file, '<', "$out/lossy.log" or die "lossy.log: $!";
	return scalar grep { /^lost .*\Q$election\E\b/ } <$file>;
}

sub pgbouncer
{
	my ($program) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin';

	return $program // die 'no pgbouncer';
}

sub start_pooler
{
	start_program('pooler', pgbouncer(), "$dir/pgbouncer.ini");
	wait_for_port($port{pooler});
	return;
}

sub kill_pooler
{
	stop_program('pooler');
	return;
}

# PgBouncer as docs/pgbouncer.ini has it: "postgres" is pooled by transaction,
# "session" by session. Both log in as pooled, whose time limits are not the default
# ones: $pooled is what a program behind it must find, always.
my $pooled = '61s|62s';

sub start_documented
{
	my ($statement, $idle) = split /\|/, $pooled;

	sql("ALTER ROLE pooled SET statement_timeout = '$statement';
		ALTER ROLE pooled SET idle_session_timeout = '$idle'");
	open my $ini, '>', "$dir/documented.ini" or die $!;
	print $ini qq([databases]
postgres = host=$dir port=$port{1} user=pooled pool_size=10
session = host=$dir port=$port{1} user=pooled dbname=postgres pool_size=40 pool_mode=session
[pgbouncer]
listen_addr = *
listen_port = $port{documented}
unix_socket_dir =
%include $FindBin::RealBin/../../docs/pgbouncer.ini
auth_type = any
server_round_robin = 1
);
	close $ini or die $!;
	start_program('documented', pgbouncer(), "$dir/documented.ini");
	wait_for_port($port{documented});
	return;
}

my $LOAD = 6;    # programs

# Programs that ask for settings, all the time, each over any connection of a pool
sub start_load
{
	my ($database) = @_;
	my $sql = "SELECT 'found ' || concat_ws('|', current_setting('statement_timeout'), "
	  . "current_setting('idle_session_timeout')) FROM pg_sleep(0.01);";

	unlink map { "$out/load-$_.log" } 1 .. $LOAD;
	start_program("load-$_", 'bash', '-c', 'exec psql -XqAt -d "$0" < <(yes "$1")',
		"host=127.0.0.1 port=" . port('documented') . " user=app dbname=$database", $sql)
	  foreach 1 .. $LOAD;
	return;
}

sub stop_load
{
	stop_program("load-$_") foreach 1 .. $LOAD;
	return;
}

# What they found that was not theirs
sub found_by_load
{
	my ($answers, %other) = (0);

	foreach my $n (1 .. $LOAD)
	{
		open my $file, '<', "$out/load-$n.log" or next;
		foreach (<$file>)
		{
			$answers++ if /^found \Q$pooled\E$/;
			$other{$1}++ if /^found (\S+)$/ && $1 ne $pooled;
		}
	}
	return ((map { "others of the pool find settings $_" } sort keys %other),
		$answers ? () : 'others of the pool get no answer');
}

sub ctl
{
	my ($n, $do) = @_;

	run("pg_ctl -D '$dir/server$n' -l '$out/server$n.log' -s -w $do");
	return;
}

sub restart
{
	my ($mode) = @_;

	ctl($primary, "-m $mode restart");
	return;
}

sub start_primary { ctl($primary, 'start'); return; }

sub stop_primary { ctl($primary, '-m immediate stop'); return; }

# Who is let in by a server, over the network: these lines of pg_hba.conf, then
# the usual ones.
sub admit
{
	my ($n, @lines) = @_;

	open my $file, '>', "$dir/server$n/pg_hba.conf" or die $!;
	print $file map { "$_\n" } 'local all,replication all trust', @lines,
	  'host all locked all scram-sha-256', 'host all all all trust';
	close $file or die $!;
	sql('SELECT pg_reload_conf()', server => $n) if -e "$dir/server$n/postmaster.pid";
	return;
}

# The lines that were written into a log after so many bytes
sub written_since
{
	my ($log, $bytes) = @_;

	open my $file, '<', "$out/$log" or die "$log: $!";
	seek $file, $bytes, 0;
	return <$file>;
}

# Something on the primary's port that is no server, see impostor.pl. The primary is
# down.
sub start_impostor
{
	my ($mode) = @_;

	start_program('impostor', $^X, "$FindBin::RealBin/impostor.pl", $port{$primary}, $mode);
	wait_for_port($port{$primary});
	return;
}

sub copy_primary
{
	my ($n) = @_;

	run("pg_basebackup -c fast -X stream -R -D '$dir/server$n' "
		  . "-d 'host=$dir port=$port{1} user=postgres'");
	write_settings($n);
	return;
}

sub start_lagging
{
	append("$dir/server3/postgresql.conf", "recovery_min_apply_delay = '1d'\n");
	ctl(3, 'start');
	return;
}

sub stop_lagging { ctl(3, '-m immediate stop'); return; }

# Makes the second server, which the first one waits for from now on.
sub make_standby
{
	copy_primary(2);
	ctl(2, 'start');
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
	ctl(1, '-m immediate stop');
	ctl(2, 'promote');
	$primary = 2;
	return;
}

sub stop_servers
{
	stop_program($_) foreach keys %pid;
	ctl($_, '-m immediate stop') foreach grep { -e "$dir/server$_/postmaster.pid" } 1 .. 3;
	return;
}

1;
