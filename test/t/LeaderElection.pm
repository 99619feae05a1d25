# Helpers for the TAP tests, over PostgreSQL::Test::Cluster of 15 and up.
#
#	use FindBin;
#	use lib $FindBin::RealBin;
#	use LeaderElection;
#
#	my $node = new_server();
#	my $one = session($node, name => 'one');
#	is($one->query("SELECT leader_election.join('e', 'one')"), '1', 'leads');
#	$one->kill;
#	wait_for($node, "SELECT leader_election.leader('e') IS NULL");
#
# A session is a psql process of its own, so that it can be killed or stopped as
# an application's process can. Each wait here is for a condition, and
# dies, which fails the test, when that takes too long: after the seconds of
# PostgreSQL::Test::Utils, which test/lib.sh sets for all. What the servers and
# pg_leader (PgLeader.pm) know at that moment is part of the message. A wait has a
# limit of its own only where a test is about how prompt something is; that
# counts in the machine's time (MachineTime.pm).

package LeaderElection;

use strict;
use warnings;

use Carp;
use Cwd qw(abs_path);
use Exporter qw(import);
use Fcntl qw(:flock);
use File::Basename qw(dirname);
use IPC::Run;
use List::Util qw(max min);
use MachineTime;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(compile compile_library new_server query_unless_busy resume_process
  session stop_process stop_where wait_for wait_gone wait_stopped wait_told wait_until);

# A wait looks again after a twentieth of what it has waited for so far, within
# these limits: it costs little, and is never late by much.
my @POLL_INTERVAL = (0.005, 0.05);

# What adds to the message of a wait that has timed out: code references that
# return text.
our @REPORTS = (\&report_servers);

my @servers;

# Processes that are stopped. None stays so, however the test ends.
my %stopped;

END
{
	local $?;
	kill('CONT', keys %stopped);
}

# Compile with PostgreSQL's compiler, which may be a command of several words, like
# "ccache gcc".
sub compile
{
	my (@arguments) = @_;
	my $pg_config = $ENV{PG_CONFIG} // 'pg_config';

	system_or_bail(split(' ', `$pg_config --cc`), @arguments);
	return;
}

# Compile NAME.c, which is beside this file: a line for postgresql.conf, with
# which servers find the library NAME.
sub compile_library
{
	my ($name) = @_;
	my $folder = PostgreSQL::Test::Utils::tempdir();
	my $pg_config = $ENV{PG_CONFIG} // 'pg_config';
	chomp(my $include = `$pg_config --includedir-server`);

	compile('-shared', '-fPIC', "-I$include", '-o',
		"$folder/$name.so", dirname(abs_path(__FILE__)) . "/$name.c");
	return "dynamic_library_path = '\$libdir:$folder'\n";
}

# A server that runs, with the extension in its database postgres. Options:
#	name       of the node, 'main'
#	config     lines for postgresql.conf
#	streaming  allow standbys
#	preload    start with the library preloaded
#	start      0: leave it initialised but not started, without the extension
#	initdb     more options for initdb
#	install    the installation to use, if not that of PATH
# The servers of one test have system identifiers of their own.
sub new_server
{
	my (%opts) = @_;
	my $node = PostgreSQL::Test::Cluster->new($opts{name} // 'main',
		install_path => $opts{install});

	initialise($node,
		allows_streaming => $opts{streaming} // 0,
		extra => [ '--no-locale', '--encoding=UTF8', @{ $opts{initdb} // [] } ],
		copy => !@servers && !$opts{initdb} && !$opts{install});
	push @servers, $node;
	$node->append_conf(
		'postgresql.conf', qq(
max_connections = 100
max_worker_processes = 16
));
	$node->append_conf('postgresql.conf',
		"shared_preload_libraries = 'leader_election'\n")
	  if $opts{preload};
	$node->append_conf('postgresql.conf', "$opts{config}\n")
	  if defined $opts{config};

	if ($opts{start} // 1)
	{
		$node->start;
		$node->safe_psql('postgres', 'CREATE EXTENSION leader_election');
	}
	return $node;
}

# initdb costs more than many a test does. So it is run once, and the first
# server of each test is a copy of what it made, also in the versions of Cluster
# that know no INITDB_TEMPLATE (before 17), and with options. All calls of initdb
# are made by system_or_bail.
sub initialise
{
	my ($node, %params) = @_;
	my $run = \&PostgreSQL::Test::Utils::system_or_bail;
	my $copy = delete $params{copy};

	no warnings 'redefine';
	local *PostgreSQL::Test::Utils::system_or_bail = sub {
		my @command = @_;

		if ($copy && $command[0] eq 'initdb')
		{
			@command = ('cp', '-RPp', template($run, @command), $node->data_dir);
		}
		$run->(@command);
	};
	$node->init(%params);
	return;
}

# The folder that this initdb makes, for all tests of this run. Only whole ones
# have that name, whatever happens to who makes it; others wait.
sub template
{
	my ($run, @initdb) = @_;
	my $folder = "$PostgreSQL::Test::Utils::tmp_check/template";
	my ($at) = grep { $initdb[$_] =~ /^(-D|--pgdata)$/ } 0 .. $#initdb;

	open(my $lock, '>', "$folder.lock") or croak "$folder.lock: $!";
	flock($lock, LOCK_EX) or croak "$folder.lock: $!";
	unless (-d $folder)
	{
		$initdb[ $at + 1 ] = "$folder.new";
		$run->('rm', '-rf', "$folder.new");
		$run->(@initdb);
		rename("$folder.new", $folder) or croak "$folder: $!";
	}
	return $folder;
}

# A new session; see LeaderElection::Session::new for the options.
sub session
{
	my ($node, %opts) = @_;

	return LeaderElection::Session->new($node, %opts);
}

# Runs SQL in a session, and again until it is not refused as busy: until the
# worker has started an epoch, say, or its grace is over.
sub query_unless_busy
{
	my ($session, $sql) = @_;
	my $result;

	wait_until(
		sub {
			$result = $session->query($sql);
			return $session->sqlstate ne '55P03';
		},
		"an answer to: $sql");
	return $result;
}

# Waits until a code reference returns true. $what says for what; it may be a
# code reference too. $limit is for what has to be prompt. Returns the seconds that
# it took, in the machine's time, and true.
sub wait_until
{
	my ($condition, $what, $limit) = @_;
	my $patience = $PostgreSQL::Test::Utils::timeout_default;
	my ($began, $start) = (time, machine_time());

	until ($condition->())
	{
		croak sprintf('timed out after %.1f s waiting for ', time - $began)
		  . (ref $what ? $what->() : $what)
		  . report()
		  if time - $began > $patience
		  || (defined $limit && machine_time() - $start > $limit);
		sleep(max($POLL_INTERVAL[0], min($POLL_INTERVAL[1], (time - $began) / 20)));
	}
	return machine_time() - $start || '0e0';
}

# Waits until the worker has told listeners of everything. It does so in a transaction
# of its own, which writes.
sub wait_told
{
	my ($node) = @_;

	return wait_for($node, 'SELECT count(*) FROM leader_election.lease l
		LEFT JOIN leader_election.announced a USING (election)
		WHERE (l.term, l.leader IS NULL) IS DISTINCT FROM (a.term, a.vacated)', 0);
}

# Waits until a query returns the expected text, by default 't'. A server that
# is down, or a query that fails, counts as not yet. Returns the seconds.
sub wait_for
{
	my ($node, $sql, $expected, $limit, $dbname) = @_;
	my ($session, $result, $elapsed);

	$expected //= 't';
	$elapsed = wait_until(
		sub {
			$session = eval {
				LeaderElection::Session->new(
					$node,
					name => 'wait_for',
					dbname => $dbname,
					options => '-c log_statement=none');
			} unless $session && $session->alive;
			return 0 unless $session;
			$result = $session->query($sql);
			return $session->sqlstate eq '00000' && $result eq $expected;
		},
		sub {
			"'$expected' from: $sql\nlast result: "
			  . ($result // 'none') . "\n"
			  . ($session ? $session->errors : '');
		},
		$limit);
	$session->finish;
	return $elapsed;
}

# Waits until the server processes of sessions are gone.
sub wait_gone
{
	my ($node, @sessions) = @_;

	return wait_for($node,
		'SELECT count(*) = 0 FROM pg_stat_activity WHERE pid IN ('
		  . join(', ', map { $_->backend_pid } @sessions)
		  . ')');
}

# Stops a process, which has stopped when this returns.
sub stop_process
{
	my ($pid) = @_;

	kill('STOP', $pid) or croak "cannot stop $pid: $!";
	wait_stopped($pid);
	return;
}

# Stops a process of the server where $condition is true of its row in pg_stat_activity:
# where it sleeps, say. If it were stopped somewhere else, it might have a lock of the
# server's own (SyncRepLock of a walsender), for which everybody waits without limit.
# So may this query: then it does not end in ten seconds, and the process is resumed first.
# $pid_query finds its process id, which is returned.
sub stop_where
{
	my ($session, $pid_query, $condition) = @_;
	my $pid;

	wait_until(
		sub {
			my $looks = 1000;
			my $answered;

			$pid = $session->query($pid_query);
			return 0 unless $pid && eval { stop_process($pid); 1 };
			$session->query_async("SELECT $condition
				FROM pg_catalog.pg_stat_activity WHERE pid = $pid");
			sleep(0.01) until ($answered = $session->finished) || --$looks == 0;
			return 1 if $answered && $session->result eq 't';
			resume_process($pid);
			$session->result unless $answered;
			return 0;
		},
		"a process with $condition");
	return $pid;
}

# Waits until a process has stopped, if it can be told. A zombie will not.
sub wait_stopped
{
	my ($pid) = @_;

	$stopped{$pid} = 1;
	wait_until(sub { slurp_file("/proc/$pid/stat") =~ /\) [TtZX] / },
		"$pid to stop")
	  if -e '/proc/self/stat';
	return;
}

sub resume_process
{
	my ($pid) = @_;

	kill('CONT', $pid) or croak "cannot resume $pid: $!";
	delete $stopped{$pid};
	return;
}

my $LATELY = "clock_timestamp() - interval '10 min'";
my @REPORT = (
	[ 'status', "SELECT s.election, s.state, s.waiting_for, s.leader, s.term,
		s.remaining, s.candidates FROM leader_election.status s
		WHERE s.state <> 'vacant' OR s.candidates > 0 ORDER BY s.election LIMIT 50" ],
	[ 'candidates', 'SELECT election, candidate, kind, alive, leads, "position"
		FROM leader_election.candidates ORDER BY 1, 6, 2 LIMIT 100' ],
	[ 'history', "SELECT election, term, leader, acquired_at::time, ended_at::time,
		reason FROM leader_election.history
		WHERE coalesce(ended_at, acquired_at) > $LATELY
		ORDER BY acquired_at DESC LIMIT 50" ],
	[ 'lease', "SELECT election, term, leader, kind, session_id, acquired_mono,
		deadline_mono, duration, successor, not_before_mono, reserved_mono, incarnation,
		leader_election._monotonic_clock() AS clock FROM leader_election.lease
		WHERE renewed_at > $LATELY ORDER BY renewed_at DESC LIMIT 50" ],
	[ 'epoch', 'SELECT * FROM leader_election.epoch' ],
	[ 'pg_stat_activity', q(SELECT pid, backend_type, application_name, datname,
		state, wait_event_type, wait_event, xact_start::time, query_start::time,
		pg_blocking_pids(pid) AS blocked_by, left(regexp_replace(query, '\s+', ' ', 'g'), 100) AS query
		FROM pg_stat_activity WHERE pid <> pg_backend_pid()
		ORDER BY backend_start LIMIT 100) ],
	[ 'pg_locks', "SELECT pid, locktype, relation::regclass, classid, objid, objsubid,
		mode, granted, waitstart::time FROM pg_locks
		WHERE locktype <> 'virtualxid' AND pid <> pg_backend_pid()
		ORDER BY granted, pid LIMIT 100" ]);

# What each server that was made by new_server knows, and the end of its log.
sub report_servers
{
	my $sql = "SET lock_timeout = '2s';\nSET statement_timeout = '10s';\n"
	  . join('', map { "\\qecho '-- $_->[0]'\n$_->[1];\n" } @REPORT);
	my $report = '';

	foreach my $node (grep { -e $_->logfile } @servers)
	{
		my @log = split(/^/, slurp_file($node->logfile));

		$report .= '== server ' . $node->name . "\n";
		eval {
			IPC::Run::run(
				[ 'psql', '-Xq', '-P', 'pager=off', '-d',
					$node->connstr('postgres') . ' connect_timeout=10' ],
				'<' => \$sql, '>&' => \my $known, IPC::Run::timeout(60));
			$report .= $known;
		} or $report .= "no answer\n";
		splice(@log, 0, -200);
		$report .= join('', "-- the end of its log\n", @log);
	}
	return $report;
}

# All that can be reported.
sub report
{
	return join('', map { "\n" . $_->() } @REPORTS);
}

package LeaderElection::Session;

use strict;
use warnings;

use Carp;
use IPC::Run;

# Ends the output of each query; psql adds the SQLSTATE.
my $MARK = '--end-of-query--';

# The clients that run. None outlives its test, not even a stopped one.
my %processes;

END
{
	CORE::kill('KILL', keys %processes);
}

# Connects. Options:
#	name     application_name, and the name in messages
#	dbname   'postgres'
#	user     the role to connect as
#	options  command-line options for the backend, '-c name=value'
#	host     instead of the node's own, with port: through a pooler or a proxy
#	port
#	command  what starts psql, [ 'nsenter', ... ]; it has to become psql (exec)
sub new
{
	my ($class, $node, %opts) = @_;
	my $name = $opts{name} // 'session';
	my $conn = $node->connstr($opts{dbname} // 'postgres');

	$conn .= " application_name='$name'";
	foreach my $key (qw(user options host port))
	{
		$conn .= " $key='$opts{$key}'" if defined $opts{$key};
	}

	my $self = bless {
		name => $name,
		in => '',
		out => '',
		err => '',
		errors => '',
		sqlstate => '00000',
		notifications => [],
		busy => 0,
		alive => 1,
		timer =>
		  IPC::Run::timer($PostgreSQL::Test::Utils::timeout_default),
	}, $class;

	$self->{run} = IPC::Run::start(
		[ @{ $opts{command} // [] }, 'psql', '-XqAt', '-d', $conn ],
		'<' => \$self->{in},
		'>' => \$self->{out},
		'2>' => \$self->{err},
		$self->{timer});
	$self->{pid} = $self->{run}{KIDS}[0]{PID};
	$processes{ $self->{pid} } = 1;
	$self->{backend_pid} = $self->query('SELECT pg_catalog.pg_backend_pid()');
	croak "$name cannot connect: $self->{errors}" unless $self->alive;
	return $self;
}

# The client's process, and its server process.
sub pid { return $_[0]{pid}; }
sub backend_pid { return $_[0]{backend_pid}; }

# Runs SQL or psql commands. Returns the rows that they output, as a list or as
# one text, fields separated by '|'. An error does not end the session: see
# sqlstate and errors.
sub query
{
	my ($self, $sql, $timeout) = @_;

	$self->query_async($sql);
	return $self->result($timeout);
}

# Sends a query and does not wait for it; result does.
sub query_async
{
	my ($self, $sql) = @_;

	croak "$self->{name}: the query before this one was not finished"
	  if $self->{busy};
	$sql =~ s/[\s;]+\z//;
	$self->{sql} = $sql;
	$self->{errors} = '';
	$self->{sqlstate} = '00000';
	$self->{busy} = 1;
	$self->{in} .= "\\set LAST_ERROR_SQLSTATE 00000\n$sql\n;\n"
	  . "\\echo $MARK :LAST_ERROR_SQLSTATE\n\\warn $MARK\n";
	$self->_pump(0);
	return;
}

# Whether the query sent by query_async has ended, without waiting for it.
sub finished
{
	my ($self) = @_;

	$self->_pump(0) unless $self->_ended;
	return $self->_ended;
}

# Waits for the query sent by query_async and returns what query does.
sub result
{
	my ($self, $timeout) = @_;

	croak "$self->{name}: no query was sent" unless $self->{busy};
	$self->_wait($timeout, "the end of: $self->{sql}", sub { $self->_ended });
	$self->{busy} = 0;

	# psql knows no SQLSTATE of a connection that it lost.
	$self->{sqlstate} = $1
	  if $self->{out} =~ s/^\Q$MARK\E (\w*)\n\z//m;
	$self->{sqlstate} = '08006'
	  unless $self->alive && $self->{sqlstate} ne '';
	$self->{err} =~ s/^\Q$MARK\E\n//m;
	$self->{errors} = $self->{err};
	Test::More::note("$self->{name}: $self->{errors}") if $self->{errors};

	my $out = $self->{out};
	$self->{out} = $self->{err} = '';
	push @{ $self->{notifications} }, $1 // ''
	  while $out =~ s/^Asynchronous\ notification\ "[^"]*"
	  (?:\ with\ payload\ "(.*)")?
	  \ received\ from\ server\ process\ with\ PID\ \d+\.\n//mx;
	chomp $out;
	return wantarray ? split(/\n/, $out) : $out;
}

# What psql wrote to stderr for the last query: errors, warnings, notices.
sub errors { return $_[0]{errors}; }

# The SQLSTATE of the last query's last error; '00000' if there was none,
# '08006' if the connection was lost.
sub sqlstate { return $_[0]{sqlstate}; }

# Runs a query for its SQLSTATE: is($one->sqlstate_of('...'), 'LE001', '...')
sub sqlstate_of
{
	my ($self, $sql, $timeout) = @_;

	$self->query($sql, $timeout);
	return $self->{sqlstate};
}

# The SQLSTATEs of all errors of the last query, which may be several statements, but for two
# of 55P03: a call that waits for others is told so once, each time that the machine stands
# still for a second. A call that starves gets this error more often, if the query has it
# three times. For a session with psql's VERBOSITY sqlstate.
sub errors_but_busy
{
	my ($self) = @_;
	my @errors = $self->{errors} =~ /(?:ERROR|FATAL|PANIC):\s+(\w+)/g;
	my $busy = grep { $_ eq '55P03' } @errors;

	push @errors, '08006' unless $self->alive;
	return join ' ', $busy > 2 ? @errors : grep { $_ ne '55P03' } @errors;
}

# The term in which a detached candidate is granted the lease by this call; ''
# if it is not.
sub acquire
{
	my ($self, $election, $candidate) = @_;

	return scalar $self->query(
		"SELECT term FROM leader_election.acquire('$election', '$candidate')");
}

# Columns of an election's lease row, as a list.
sub lease
{
	my ($self, $election, $columns) = @_;

	return split /\|/,
	  $self->query(
		"SELECT $columns FROM leader_election.lease WHERE election = '$election'"
	  );
}

# The last term of an election.
sub term_of { return ($_[0]->lease($_[1], 'term'))[0]; }

# The payloads of the notifications that came since the last call.
sub notifications
{
	my ($self) = @_;

	$self->query('');
	return splice @{ $self->{notifications} };
}

# Whether the client's process and its connection are there, as far as the last
# query told.
sub alive { return $_[0]{alive}; }

# Disconnects politely, after what is still running, and returns psql's exit
# code (128 and the signal's number if one ended it).
sub finish
{
	my ($self, $timeout) = @_;

	$self->{in} .= "\\q\n" if $self->{alive};
	$self->_wait($timeout, 'its end', sub { !$self->{alive} });
	return $self->{exit};
}

# Sends a signal to the client's process, by default KILL: then it is gone when
# this returns, as is its side of the connection.
sub kill
{
	my ($self, $signal) = @_;

	$signal //= 'KILL';
	CORE::kill($signal, $self->{pid})
	  or croak "$self->{name}: cannot send $signal to $self->{pid}: $!"
	  if $self->{alive};
	$self->_wait(undef, "its end after SIG$signal", sub { !$self->{alive} })
	  if $signal =~ /^(SIG)?KILL$/;
	return;
}

# Whether all output of the current query is there.
sub _ended
{
	my ($self) = @_;

	return !$self->{alive}
	  || ( $self->{out} =~ /^\Q$MARK\E \w*\n\z/m
		&& $self->{err} =~ /^\Q$MARK\E\n/m);
}

# Exchanges what can be exchanged with psql, waiting for it or not.
sub _pump
{
	my ($self, $wait) = @_;

	return unless $self->{alive};
	eval {
		local $SIG{PIPE} = 'IGNORE';
		$wait ? $self->{run}->pump : $self->{run}->pump_nb;
	};

	# A psql that has ended reads nothing. As long as there is a pipe to it with
	# something to write, IPC::Run tries that for ever and does not see the end.
	if ($@ =~ /Broken pipe/)
	{
		$self->{run}->_clobber($_)
		  foreach grep { $_->{TYPE} eq '<' } @{ $self->{run}{PIPES} };
	}
	unless ($self->{run}->pumpable)
	{
		$self->{alive} = 0;
		eval { $self->{run}->finish };
		my ($status) = $self->{run}->full_results;
		$self->{exit} = $status & 127 ? 128 + ($status & 127) : $status >> 8;
		delete $processes{ $self->{pid} };
	}
	return;
}

sub _wait
{
	my ($self, $timeout, $what, $condition) = @_;

	$timeout //= $PostgreSQL::Test::Utils::timeout_default;
	$self->{timer}->start($timeout);
	until ($condition->())
	{
		croak "$self->{name}: timed out after $timeout s waiting for $what\n"
		  . $self->{err}
		  . LeaderElection::report()
		  if $self->{timer}->is_expired;
		$self->_pump(1);
	}
	$self->{timer}->reset;
	return;
}

1;
