# pg_leader and a server that answers nonsense (HostileServer.pm): in each of its
# modes pg_leader ends with an exit code of the documented ones, ends when it is
# asked to, never runs its command without a lease that it was told of, and
# writes nothing that a terminal obeys. Under sanitizers, a report ends it with
# an exit code of its own.
#
# From the environment: HOSTILE_SEED (1), and HOSTILE_ROUNDS (1), each of which
# has all modes, with seeds from that on.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use HostileAnswers ();
use HostileServer;
use IO::Pty;
use IO::Socket::INET;
use JSON::PP;
use LeaderElection;
use MachineTime;
use PgLeader;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep clock_gettime CLOCK_MONOTONIC);

my $SEED = $ENV{HOSTILE_SEED} // 1;
my $ROUNDS = $ENV{HOSTILE_ROUNDS} // 1;

# How many run at a time
my $AT_ONCE = 6;

# Seconds: when those that do not end by themselves are asked to; when all have
# ended. A server that is silent hangs up after one.
my $LONG_ENOUGH = 1.5 * slowness();
my $TOO_LONG = $PostgreSQL::Test::Utils::timeout_default;

my $dir = PostgreSQL::Test::Utils::tempdir();
my $command = "$dir/command.pl";

$ENV{$_} = join(':', grep { defined } $ENV{$_}, 'exitcode=99') foreach qw(ASAN_OPTIONS UBSAN_OPTIONS);
$ENV{LC_ALL} = 'C.UTF-8';
$ENV{TERM} = 'xterm';

# The command says when it runs, and in which term.
append_to_file($command, <<'END_OF_COMMAND');
use Time::HiRes qw(sleep clock_gettime CLOCK_MONOTONIC);

open(my $file, '>>', $ARGV[0]) or die;
while (getppid > 1)
{
	syswrite($file, join(' ', clock_gettime(CLOCK_MONOTONIC), $$, $ENV{PG_LEADER_TERM}) . "\n");
	sleep(0.02);
}
END_OF_COMMAND

#
# Sessions
#

sub now { return clock_gettime(CLOCK_MONOTONIC); }

my $started = 0;

# Starts pg_leader, on a terminal or not.
sub start
{
	my ($server, $on_terminal, @args) = @_;
	my %one = (
		server => $server,
		args => "@args",
		subcommand => $args[0],
		output => "$dir/output-" . ++$started,
		ran => "$dir/ran-$started",
		began => now());
	my ($subcommand, @options) = map { s/\@RAN\@/$one{ran}/r } @args;

	append_to_file($one{$_}, '') foreach qw(output ran);
	$one{terminal} = IO::Pty->new if $on_terminal;
	$one{http} = $1 if "@options" =~ /--http=(\d+)/;
	$one{pid} = fork // die "cannot fork: $!";
	if ($one{pid} == 0)
	{
		if ($on_terminal)
		{
			$one{terminal}->make_slave_controlling_terminal;
			open(STDIN, '<&', $one{terminal}->slave);
			open(STDOUT, '>&', $one{terminal}->slave);
		}
		else
		{
			open(STDIN, '<', '/dev/null');
			open(STDOUT, '>>', $one{output});
		}
		open(STDERR, '>>', $one{output});
		POSIX::close($_) for 3 .. 63;
		exec('pg_leader', $subcommand, '-d', $server->connstr, @options) or POSIX::_exit(127);
	}
	if ($on_terminal)
	{
		$one{terminal}->close_slave;
		$one{terminal}->blocking(0);
	}
	return \%one;
}

# What it has written on its terminal
sub read_terminal
{
	my ($one) = @_;

	return unless $one->{terminal};
	while (sysread($one->{terminal}, my $data, 65536))
	{
		$one->{shown} .= $data;
	}
	return;
}

# Whether it has ended. If not, does what is due.
sub tend
{
	my ($one) = @_;
	my $age = now() - $one->{began};
	my $asked = $one->{asked} // 0;

	read_terminal($one);
	if (waitpid($one->{pid}, POSIX::WNOHANG()) == $one->{pid})
	{
		read_terminal($one);
		$one->{code} = $? & 127 ? 128 + ($? & 127) : $? >> 8;
		return 1;
	}
	if ($one->{http} && !$one->{replies} && $age > $LONG_ENOUGH / 2)
	{
		$one->{replies} = [ map { get($one->{http}, $_) } qw(leader status metrics) ];
	}
	# The second one ends those that still wait for an answer. Those that are to tell
	# something may be slow to come to it.
	if ($one->{subcommand} =~ /^(run|stand|watch|yield)$/ && $age > $LONG_ENOUGH + 5 * $asked && $asked < 3
		&& !($one->{tells} && !-s $one->{output}))
	{
		kill('TERM', $one->{pid});
		$one->{asked}++;
	}
	if ($age > $TOO_LONG && !$one->{late})
	{
		$one->{late} = join('', map { my $file = $_; map { "$file: $_" } eval { slurp_file("/proc/$one->{pid}/$file") } // '' } qw(stat syscall));
		kill('KILL', $one->{pid});
	}
	return 0;
}

sub get
{
	my ($port, $path) = @_;
	my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port, Timeout => 10) or return;
	my $reply = '';

	print $socket "GET /$path HTTP/1.0\r\n\r\n";
	$socket->flush;
	while (sysread($socket, $reply, 65536, length $reply)) { }
	return $reply;
}

sub free_port
{
	return IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 0, Listen => 1)->sockport;
}

#
# What must not be
#

# A number as pg_leader reads it
sub number
{
	my ($text) = @_;

	return 0 if $text !~ /^_*([-+]?\d+)/;
	return $1 > 2**63 ? 2**63 - 1 : $1 < 0 ? 0 : $1;
}

# What a terminal obeys, but for what pg_leader draws with
sub controls
{
	my ($text) = @_;

	$text =~ s/\e\[(\?25[lh]|\d*[AHJK])//g;
	$text =~ s/\e\[(?:[12]|3[23]|1;31)m([^\e\n]*)\e\[0m/$1/g;
	$text =~ s/\r\n/\n/g;
	$text =~ s/\r//g if $text =~ /^Election /m;
	return join(' ', map { sprintf('%vd', $_) }
		  $text =~ /([\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\x8b-\x8f\xa8-\xae])/g);
}

# Moments at which the command ran without a lease of which pg_leader was told
sub runs_without_lease
{
	my ($one, @log) = @_;
	my @grants = map { /^GRANT (\S+) (\S+) (\S+)$/ ? [ $1, number($2), $1 + number($3) / 1000 ] : () } @log;
	my @wrong;

	foreach my $run (split /\n/, slurp_file($one->{ran}))
	{
		my ($at, undef, $term) = split / /, $run;

		push @wrong, $run
		  unless grep { $_->[0] <= $at && $_->[1] > 0 && $at <= $_->[2] } @grants
		  and grep { $_->[0] <= $at && $_->[1] == $term } @grants;
	}
	return @wrong;
}

my (%asked, %sent);	# patterns of statements, and kinds of answers: how often

# What is wrong with one that has ended
sub wrongs_of
{
	my ($one) = @_;
	my @log = $one->{server}->finish;
	my $output = slurp_file($one->{output}) . ($one->{shown} // '');
	my %codes = (run => '0|12[0-5]|143', stand => '12[045]|143', history => '0|12[345]|143', diagnose => '[0-2]|12[345]|143');
	my $codes = $codes{ $one->{subcommand} } // '0|1|12[345]|143';
	my @wrong;

	push @wrong, "it did not end: $one->{late}" if $one->{late};
	push @wrong, "exit code $one->{code}" if $one->{code} !~ /^($codes)$/ && !$one->{late};
	push @wrong, "a sanitizer's report" if $output =~ /runtime error:|Sanitizer/;
	push @wrong, "no message" if $one->{code} =~ /^12[0-7]$/ && $output !~ /(?:^|^[\d-]+ \S+ )pg_leader: (election "e": )?(error|warning): \S/m;
	push @wrong, 'control characters: ' . substr(controls($output), 0, 100) if controls($output) ne '';
	push @wrong, 'markup' if $one->{args} =~ /--html/ && $output =~ /<(script|img)/;
	$asked{$_}++ foreach map { /^ASKED (.*)/ ? $1 : () } @log;
	$sent{$_}++ foreach map { /^SENT (.*)/ ? $1 : () } @log;
	push @wrong, "log: $_" foreach grep { !/^(?:GRANT|ASKED|SENT) / } @log;
	push @wrong, map { "without a lease: $_" } (runs_without_lease($one, @log))[ 0 .. 2 ]
	  if runs_without_lease($one, @log);
	$one->{ran_command} = -s $one->{ran};
	my %pids = map { (split / /)[1] => 1 } split /\n/, slurp_file($one->{ran});
	wait_until(sub { !grep { is_running($_) } keys %pids }, "the end of the command of $one->{args}");
	unlink $one->{ran};
	foreach my $reply (grep { defined && /./ } @{ $one->{replies} // [] })
	{
		my ($head, $body) = split /\r\n\r\n/, $reply, 2;

		push @wrong, "HTTP: $head" if $head !~ m{^HTTP/1\.[01] (200|503) };
		push @wrong, "HTTP body: $body" if controls($body) ne '';
		push @wrong, "no JSON: $body" if $head =~ /json/ && !eval { decode_json($body) };
	}
	return @wrong;
}

# Runs all of them, some at a time. Each: what it is, its options, and pg_leader's
# arguments. Returns those that have ended, in any order.
sub run_all
{
	my ($check, @all) = @_;
	my @running;

	while (@all || @running)
	{
		while (@all && @running < $AT_ONCE)
		{
			my ($what, $options, @args) = @{ shift @all };
			my $server = HostileServer->new(patience => 1, %$options);
			push @running, start($server, $options->{terminal}, @args);
			@{ $running[-1] }{qw(what tells)} = ($what, $options->{tells});
		}
		my @ended = grep { tend($_) } @running;
		my %ended = map { $_ => 1 } @ended;

		@running = grep { !$ended{$_} } @running;
		$check->($_) foreach @ended;
		sleep(0.01);
	}
	return;
}

#
# Answers of which each did harm, or was about to
#

my @RUN = ('--', $^X, $command, '@RAN@');
my $NOW = 1795230200;

# A term of the history, as columns of `history` and of its page
sub term_row
{
	my ($from, $to) = @_;

	return [ 7, 'x', 'session', 'then', 'later', 'resigned', undef, $from, $to, '{}' ];
}

sub page_row
{
	my ($from, $to, $now) = @_;

	return [ 'e', 7, 'x', 'session', 'then', 'later', 'resigned', undef, $from, $to, undef, $now, 'now', 1 ];
}

my @TOLD = (
	(
		map { [ "$_ instead of rows", 'status|history|run', [ qr/FROM leader_election\.(status|history|acquire)/, $_ ] ] }
		  'copy in', 'copy out', 'copy both'),
	# An election that was dropped is made again, and its leader asked to yield.
	[ 'a request to yield without a state', 'watch', [ qr/FULL JOIN/, 'rows', [ 'e', (undef) x 5, 'now', '"now"', 7, 't', undef ] ] ],
	[ 'a term below 0', 'watch --exec', [ qr/FULL JOIN/, 'rows', [ 'e', 'state', -7, 'x', (undef) x 2, 'now', '"now"', -7, 'f', undef ] ] ],
	[ 'nothing of the election', 'run', [ qr/SELECT channel FROM/, 'nothing' ] ],
	(
		map { ([ "an odd error, $_", 'status', [ qr/FROM leader_election\.status/, "an odd error, $_" ] ],
			[ "an odd error, $_", 'run', [ qr/acquire/, "an odd error, $_" ] ],
			[ "an odd error, $_", 'run --every', [ qr/SELECT run_done/, "an odd error, $_" ] ]) } 0 .. 4),
	(map { [ 'a seat: ' . ($_ // 'NULL'), 'run --group', [ qr/acquire_any/, 'rows', [ 7, 3000, 'f', $_ ] ] ] } undef, '', 'e', 'f/1', 'e/', 'e/x'),
	(
		map { [ "a clock: $_", 'run --every', [ qr/SELECT run_done/, 'rows', [ $_, undef ] ] ] }
		  qw(1e18 1e300 -1e300 inf -inf NaN nonsense)),
	(
		map { [ "a term from $_->[0] to $_->[1]", 'history', [ qr/row_to_json\(h\)/, 'rows', term_row($NOW, $NOW + 9), term_row(@$_), term_row($NOW + 10, $NOW + 20) ] ] }
		  [ $NOW + 15, $NOW + 2 ], [ 'NaN', $NOW ], [ $NOW, 'NaN' ], [ '-inf', 'inf' ], [ 1e300, -1e300 ]),
	(
		map { [ 'a page: ' . join(' ', @$_), 'history --html', [ qr/'UTC'/, 'rows', page_row($NOW, $NOW + 9, $NOW + 30), page_row(@$_) ] ], [ 'a page: ' . join(' ', @$_), 'history --html', [ qr/'UTC'/, 'rows', page_row(@$_) ] ] }
		  [ $NOW + 9, $NOW, $NOW ], [ $NOW, $NOW, 'inf' ], [ '-inf', 'inf', 'inf' ], [ 0, 1, 'NaN' ], [ -1e300, 1e300, 1e300 ],
		[ 1e18, 1e18, 1e18 ], [ -1e18, 1, 1e18 ], [ 1e17, 1e17, 9e18 ]),
	(
		map { my $column = $_; [ "markup in column $_ of a page", 'history --html',
			[ qr/'UTC'/, 'rows', [ map { $_ == $column ? '<script>"\'\x{9b}' : page_row($NOW, $NOW + 9, $NOW + 30)->[$_] } 0 .. 13 ] ] ] } 0 .. 13));

{
	my %args = (
		'status' => [ 1, 'status' ],
		'watch' => [ 1, 'watch' ],
		'watch --exec' => [ 0, 'watch', '--exec', 'true' ],
		'history' => [ 1, 'history', '-e', 'e' ],
		'history --html' => [ 0, 'history', '--html=-' ],
		'run' => [ 0, 'run', '-e', 'e', @RUN ],
		'run --group' => [ 0, 'run', '--group=e', '--forever', @RUN ],
		'run --every' => [ 0, 'run', '-e', 'e', '--every=1h', @RUN ]);

	run_all(
		sub {
			my ($one) = @_;
			my @wrongs = wrongs_of($one);

			ok(!@wrongs, "$one->{what}: $one->{subcommand}") or diag(join("\n", @wrongs, slurp_file($one->{output})));
		},
		map {
			my ($what, $modes, @answers) = @$_;
			map {
				my ($on_terminal, @args) = @{ $args{$_} };
				[ $what, { answers => \@answers, terminal => $on_terminal }, @args ]
			} split /\|/, $modes
		} @TOLD);
}

# What never ends is an answer that does not come.
foreach my $what ('a flood of notices', 'a flood of notifications', 'a flood of answers')
{
	my $one = start(HostileServer->new(patience => 100, answers => [ [ qr/renew\(/, $what ] ]), 0, 'run', '-e', 'e', @RUN);

	wait_until(sub { tend({ %$one, subcommand => 'none' }) && ($one->{code} = $? >> 8) }, "the end of run in $what");
	is($one->{code}, 121, "$what, without an end");
	is(join("\n", wrongs_of($one)), '', 'and all is well otherwise');
}

# What says nothing is told of nevertheless: at the start, and later.
run_all(
	sub {
		my ($one) = @_;
		my $output = slurp_file($one->{output});

		is(join("\n", wrongs_of($one)), '', "$one->{what}: $one->{subcommand}");
		like($output, qr/^pg_leader: (warning|error): \w/m, 'a message');
		unlike($output, qr/^pg_leader: (warning|error): *$/m, 'and none that is empty');
	},
	map {
		my ($statement, @args) = @$_;
		map { [ $_, { answers => [ [ $statement, $_ ] ], tells => 1 }, @args ] } 'an error without a text', 'a hang-up without a text'
	} (
		[ qr/^SELECT leader_election\.leader\(/, 'run', '-e', 'e', @RUN ],
		[ qr/FROM leader_election\.acquire\(/, 'run', '-e', 'e', '--wait=1s', @RUN ],
		[ qr/leader_election\.renew\(/, 'run', '-e', 'e', @RUN ],
		[ qr/leader_election\.status/, 'status' ]));

# Neither is in an answer to a statement: what comes before them, and what a
# terminal with UTF-8 takes for a control, though it is a character of GBK.
run_all(
	sub {
		my ($one) = @_;

		is(join("\n", wrongs_of($one)), '', "$one->{what}: $one->{subcommand}");
		is($one->{code}, 0, 'exit code');
	},
	[ 'a notice at first', { greeting => [ 'UTF8', HostileAnswers::notice("\e[2J") ] }, 'status' ],
	map {
		[ 'GBK', { greeting => ['GBK'], answers => [ [ qr/leader_election\.(status|history)/, 'rows', $_->[0] ] ] }, @{ $_->[1] } ]
	} (
		[ [ 'f', 'f', ("a\xc2\x9b31m\xe2\x80\xae") x 3, 7, 'then', '2.0 s', 1, (undef) x 2 ], ['status'] ],
		[ [ 7, ("a\xc2\x9b31m\xe2\x80\xae") x 2, 'then', 'later', 'resigned', undef, 1, 2, '{}' ], [ 'history', '-e', 'e' ] ]));

#
# Each mode of each subcommand, and answers by a seed
#

my @MODES = (
	['status'], [ 'status', '-e', 'e' ], [ 'status', '--json' ], [ 'status', '-e', 'e', '-n', 'x' ],
	[ 'status', '--json', '-e', 'e' ], ['diagnose'], [ 'diagnose', '-e', 'e' ], [ 'diagnose', '--json' ], ['watch'], [ 'watch', '--json', '-e', 'e' ], [ 'watch', '--exec', 'true' ],
	[ 'history', '-e', 'e' ], [ 'history', '--json', '-e', 'e' ], [ 'history', '--html=-' ],
	[ 'history', '--html=-', '-e', 'e', '--since=2h' ], [ 'yield', '-e', 'e' ],
	[ 'yield', '-e', 'e', '--to', 'x', '--terminate' ], [ 'stand', '-e', 'e', '--http=@PORT@' ],
	(
		map { [ 'run', @$_, @RUN ] }
		  [ '-e', 'e' ], [ '-e', 'e', '--mode=session' ], [ '-e', 'e', '--forever' ], [ '--group=e' ],
		[ '--group=e', '--forever', '-v' ], [ '-e', 'e', '--every=1h', '--attempts=3' ],
		[ '-e', 'e', '--skip' ], [ '-e', 'e', '--wait=1s' ], [ '-e', 'e', '--forever', '-v' ], [ '-e', 'e', '--once', '--hold=1s' ],
		[ '-e', 'e', '--check=true', '--check-every=50ms', '--check-timeout=50ms', '--forever' ],
		[ '-e', 'e', '--mode=session', '--forever' ]));
my @ON_TERMINAL = (['status'], [ 'status', '-e', 'e' ], ['diagnose'], ['watch'], [ 'history', '-e', 'e' ], [ 'yield', '-e', 'e' ]);

# Each short kind of answer, to what each subcommand is there to ask. (Who asks for a
# lease otherwise gets none, and --skip asks why.)
run_all(
	sub {
		my ($one) = @_;

		is(join("\n", wrongs_of($one)), '', "$one->{what}: $one->{subcommand}");
	},
	map {
		my ($statement, @args) = @$_;
		map { [ $_, { answers => [ [ $statement, $_ ], [ qr/acquire(?:_any)?\(/, 'rows' ] ] }, map { s/\@PORT\@/free_port()/er } @args ] } HostileAnswers::short_kinds()
	} (
		[ qr/leader_election\.status/, 'status' ],
		[ qr/FULL JOIN/, 'watch' ],
		[ qr/leader_election\.history/, 'history', '-e', 'e' ],
		[ qr/request_yield\(/, 'yield', '-e', 'e' ],
		[ qr/acquire\(/, 'run', '-e', 'e', @RUN ],
		[ qr/seats are led/, 'run', '--group=e', '--wait=1s', '-v', @RUN ],
		[ qr/leads in term/, 'run', '-e', 'e', '--wait=1s', '-v', @RUN ],
		[ qr/^SELECT state, waiting_for/, 'run', '-e', 'e', '--skip', @RUN ],
		[ qr/acquire\(/, 'stand', '-e', 'e', '--http=@PORT@' ],
		[ qr/^SELECT CASE WHEN paused_at/, 'stand', '-e', 'e', '--http=@PORT@' ]));

note("HOSTILE_SEED=$SEED HOSTILE_ROUNDS=$ROUNDS");
my $round = 0;
while ($round < $ROUNDS)
{
	my $seed = $SEED + $round++;
	my $n = 0;
	my $ran = 0;
	my (@wrong, %codes);
	my @all = ((map { [ 0, $_ ] } @MODES), (map { [ 1, $_ ] } @ON_TERMINAL));

	run_all(
		sub {
			my ($one) = @_;
			my @wrongs = wrongs_of($one);

			$codes{"$one->{subcommand} $one->{code}"}++;
			$ran++ if $one->{ran_command};
			push @wrong, join("\n  ", "$one->{what}, $one->{args}", @wrongs, substr(slurp_file($one->{output}), -1500)) if @wrongs;
		},
		map {
			my ($on_terminal, $args) = @$_;
			[ "seed $seed, mode $n", { seed => $seed * 100 + $n++, terminal => $on_terminal },
				map { s/\@PORT\@/free_port()/er } @$args ]
		} @all);
	ok(!@wrong, "seed $seed: " . @all . ' sessions') or diag(join("\n", @wrong));
	note(join(', ', map({ "$_: $codes{$_}" } sort keys %codes), "commands that ran: $ran"));
}

#
# Nothing was left out: statements, short answers, subcommands
#

is_deeply([ grep { !$asked{$_} } HostileAnswers::patterns() ], [], 'each statement was asked');
is_deeply([ grep { !$sent{$_} } HostileAnswers::short_kinds() ], [], 'and was answered in each way');
my %tried = map { $_->[0] => 1 } @MODES;
my %known = map { $_ => 1 } `pg_leader --help` =~ /^  pg_leader (\w+)/mg;
is_deeply([ sort keys %tried ], [ sort keys %known ], 'by each subcommand');
done_testing();
