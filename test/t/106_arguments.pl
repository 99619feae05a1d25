# pg_leader's arguments: each option of each subcommand, as --help has them, with
# values that it takes and values that it does not, without one, twice, and with
# any other options. What is wrong is told on standard error, with exit code 125,
# before pg_leader connects; what is right goes on to a server that is not there:
# exit code 123.
#
# An option whose value has no list here fails the test, and so does one in the
# program's table (src/bin/options.c) that was not both taken and refused.
# 110_environment.pl is about variables of the environment.
#
# From the environment: ARGUMENTS_SEED (1) and ARGUMENTS_CALLS (250), of random
# arguments.

use strict;
use warnings;

use FindBin;
use IO::Socket::INET;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $SEED = $ENV{ARGUMENTS_SEED} // 1;
my $CALLS = $ENV{ARGUMENTS_CALLS} // 250;

my $AT_ONCE = 6;

# Seconds after which a signal ends those that would try to connect for ever
my $ENOUGH = 5;
my $WAITS = 128 + POSIX::SIGALRM();

srand($SEED);
note("ARGUMENTS_SEED=$SEED ARGUMENTS_CALLS=$CALLS");

my $dir = PostgreSQL::Test::Utils::tempdir();
my $LONG = 'x' x 100_000;

delete @ENV{ grep { /^PG/ } keys %ENV };
$ENV{PGHOST} = '/no/such/folder';
$ENV{PGPORT} = 1;
$ENV{$_} = join(':', grep { defined } $ENV{$_}, 'exitcode=99') foreach qw(ASAN_OPTIONS UBSAN_OPTIONS);

#
# Values that each kind of option takes, and that it does not
#

my @NAMES = ('x', ' ', "\e[2J", "a\nb", "\xff", '-e', '--', '"\'\\$(id)`;|&<>%s%n', 'n' x 200);
my @NO_DURATIONS = (
	'', ' ', '1', '1.5', '-1s', '+1s', '1e3s', 'inf s', 'nan s', '0x10s', 's', '.', '.s', '1..5s', '1 ms ', ' 1s',
	'1S', '1s1s', "1\ns", '99999999999999999999d', '9' x 400 . 's', "${LONG}s", '%s%n');
my @NO_NUMBERS = ('', ' ', 'x', '1x', ' 1', '+1', '--1', '1.0', '0x1', '2147483648', '-2147483649', '9' x 400, $LONG, '%n');

my %VALUES = (
	ELECTION => [ [@NAMES], [ '', 'n' x 201, "\e[2J" x 51, $LONG ] ],
	INTEGER => [ [qw(1 2147483647)], \@NO_NUMBERS ],
	N => [ [qw(1 1000)], [ @NO_NUMBERS, qw(0 -1 1001 2147483647) ] ],
	MODE => [ [qw(detached session)], [ '', 'Session', 'detached ', $LONG ] ],
	DURATION => [ [ '1s', '1 s', '1.5s' ], \@NO_DURATIONS ],
	ADDRESS => [
		['127.0.0.1:@PORT@'],
		[ '', ' ', 'x', ':', '-1', '65536', '1.2.3:80', '256.0.0.1:80', '127.0.0.1:', '127.0.0.1:x', '[::1]', '[::1:80', '::1:80', '[]:80', '[::1]:x', '[::1]:65536', '99999999999999', $LONG ] ],
	# What these may be is for others to say.
	COMMAND => [ [ 'true', '', "\e[2J", "$LONG" ], [] ],
	FILE => [ [ '-', "$dir/page", "$dir/no/such", "$dir/$LONG" ], [''] ],
	TIME => [ [ '2h', '2026-11-21', '', 'nonsense', '-1 h', 'infinity', $LONG ], [] ],
	DBNAME => [ [ 'd', '', 'dbname=d', "\e[2J", 'nonsense=', 'host=/', 'postgresql://', 'postgresql:///%zz', "host='", 'd' x 1000, "service=$LONG" ], [] ],
	HOSTNAME => [ [ '/no', '', "/\e[2J", '/' . 'x' x 1000, ',,,', '127.0.0.1', '/a,/b' ], [] ],
	PORT => [ [ '1', '', 'x', '-1', '65536', '0', '1,2,3', '9' x 400 ], [] ],
	USERNAME => [ [ 'u', '', "\e[2J", $LONG ], [] ]);

$VALUES{NAME} = $VALUES{GROUP} = $VALUES{CANDIDATE} = $VALUES{ELECTION};
my %OWN = (
	# A rank may be less than 1, a number of attempts may not.
	'--rank' => [ [qw(0 -1 2147483647 -2147483648)], \@NO_NUMBERS ],
	'--attempts' => [ [qw(1 2147483647)], [ @NO_NUMBERS, qw(0 -1) ] ],
	'--every' => [ [qw(1s 1h 366d)], [ @NO_DURATIONS, qw(0s 1ms 1.5s 367d) ] ],
	'--offset' => [ [qw(0s 1s)], [ @NO_DURATIONS, qw(1ms 1.5s 1h 367d) ] ],
	'--hold' => [ [qw(0s 1us 366d)], [ @NO_DURATIONS, qw(367d) ] ],
	'--grace' => [ [qw(0s 1d)], [ @NO_DURATIONS, qw(25h) ] ],
	'--pooler' => [ ['session'], [ '', 'Session', 'transaction', $LONG ] ],
	'--check-every' => [ [qw(10ms 1d)], [ @NO_DURATIONS, qw(0s 9ms 25h) ] ],
	'--check-timeout' => [ [qw(10ms 1s)], [ @NO_DURATIONS, qw(0s 9ms 25h) ] ]);

#
# Subcommands and their options
#

my @subcommands = `pg_leader --help` =~ /^  (\w+)  +[a-z]/mg;
my %options;

cmp_ok(scalar @subcommands, '>', 5, "subcommands: @subcommands");
foreach my $subcommand (@subcommands)
{
	my $help = `pg_leader $subcommand --help`;

	foreach my $line (split /\n/, $help)
	{
		my ($short, $long, $value) = $line =~ /^  (?:(-\w), |    )(--[a-z-]+)(?:=([A-Z]+))?(?:  |$)/ or next;

		$options{$subcommand}{$long} = { name => $long, short => $short, value => $value,
			values => $OWN{$long} && $value ? $OWN{$long} : $value && $VALUES{$value} };
	}
	cmp_ok(scalar keys %{ $options{$subcommand} }, '>', 7, "$subcommand has options");
	is(join(' ', map { $_->{name} } grep { $_->{value} && !$_->{values} } values %{ $options{$subcommand} }),
		'', 'and each has values');
}

# The same in the program
my $SOURCES = "$FindBin::RealBin/../../src/bin";
my $table = slurp_file("$SOURCES/options.c");
my ($all) = $table =~ /^#define ALL\s+"(.*)"/m;
my ($rows) = $table =~ /^static const Option options\[\] = \{\n(.*?)^\};/ms;
my %program;

foreach my $row (split /\n/, $rows)
{
	my ($name, $of) = $row =~ /^\t\{"([a-z-]+)", .*, (ALL|"[a-z ]+")[,}]/
	  or BAIL_OUT("no row of the table of options: $row");

	$program{"$_ --$name"} = 1 foreach split ' ', $of eq 'ALL' ? $all : $of =~ tr/"//dr;
}
my @options = map { my $of = $_; map { "$of $_" } sort keys %{ $options{$of} } } @subcommands;
is_deeply([ sort @options ], [ sort keys %program ], 'options in --help and in the program');

# What a subcommand cannot do without, and what some options need
my %NEEDED = (run => ['-ex'], stand => [ '-ex', '--http=127.0.0.1:@PORT@' ], history => ['-ex'], yield => ['-ex']);
my %WITH = (
	'run --group' => [],
	'run --pooler' => [ '-ex', '--mode=session' ],
	'run --check-every' => [ '-ex', '--check=true', '--check-timeout=10ms' ],
	'run --check-timeout' => [ '-ex', '--check=true', '--check-every=1d' ],
	'run --check-failures' => [ '-ex', '--check=true' ],
	'run --offset' => [ '-ex', '--every=1h' ],
	'run --attempts' => [ '-ex', '--every=1h' ],
	'status --candidate' => ['-ex']);

# What the command would leave
my @COMMAND = ('--', 'touch', "$dir/ran");

#
# Calls: what is expected, and the arguments
#

my @calls;

# Options that no value is bad for
my %takes_any;

sub arguments
{
	my ($subcommand, $option, @words) = @_;

	my @needed = @{ $WITH{"$subcommand $option->{name}"} // $NEEDED{$subcommand} // [] };
	@needed = grep { !/^-e/ || $option->{name} ne '--election' } @needed;
	return ($subcommand, @needed, @words, $subcommand eq 'run' ? @COMMAND : ());
}

foreach my $subcommand (@subcommands)
{
	foreach my $option (map { $options{$subcommand}{$_} } sort keys %{ $options{$subcommand} })
	{
		my ($name, $short) = @$option{qw(name short)};
		my @call = ($subcommand, $option);
		my ($good, $bad) = @{ $option->{values} // [] };
		# What tries to connect for ever is tried only once.
		my @good = $subcommand eq 'stand' || $name =~ /^--(wait|every|offset|attempts)/ ? $good->[0] : @{ $good // [] };

		if (!$option->{value})
		{
			push @calls, [ 'good', arguments(@call, $name) ];
			push @calls, [ 'bad', arguments(@call, "$name=x") ];
			next;
		}
		$takes_any{"$subcommand $name"} = 1 unless @$bad;
		push @calls, [ 'good', arguments(@call, "$name=$_") ] foreach grep { defined } @good;
		push @calls, [ 'bad', arguments(@call, "$name=$_") ] foreach @$bad;
		push @calls, [ 'bad', arguments(@call, $short, $_) ] foreach $short ? @$bad : ();
		push @calls, [ 'bad', $subcommand, @{ $NEEDED{$subcommand} // [] }, $_ ] foreach grep { defined } $name, $short;
		push @calls, [ 'bad', arguments(@call, "$name=$good->[0]", "$name=$bad->[0]") ] if @$bad;
		push @calls, [ 'any', arguments(@call, ("$name=$good->[0]") x 500) ];
	}
	push @calls, map { [ 'bad', $subcommand, @{ $NEEDED{$subcommand} // [] }, $_ ] } '--no-such', '-Z', "--$LONG", "--\e[2J", '--=';
	push @calls, map { [ 'bad', $subcommand, @{ $NEEDED{$subcommand} // [] }, $_ ] } '', 'x', $LONG, "\e[2J", '-'
	  if $subcommand ne 'run';
	push @calls, [ 'bad', $subcommand ] if $NEEDED{$subcommand};
}
push @calls, map { [ 'bad', @$_ ] } [], [''], ['no-such'], [$LONG], ["\e[2J"], ['--no-such'], ['-e'], [ 'run', '-ex' ], [ 'run', '-ex', '--' ];

# Any options of any subcommand, with any values
foreach (1 .. $CALLS)
{
	my $subcommand = $subcommands[ rand @subcommands ];
	my @words;

	foreach (0 .. rand 6)
	{
		my $of = $options{ rand() < 0.9 ? $subcommand : $subcommands[ rand @subcommands ] };
		my $option = $of->{ (sort keys %$of)[ rand keys %$of ] };
		my @values = map { @$_ } rand() < 0.8 ? $option->{values}[0] // [] : @{ $option->{values} // [] };
		my $value = @values ? $values[ rand @values ] : 'x';

		push @words, !$option->{value} && rand() < 0.9 ? $option->{name}
		  : $option->{short} && rand() < 0.3 ? ($option->{short}, $value)
		  : rand() < 0.05 ? $option->{name} : "$option->{name}=$value";
	}
	unshift @words, @{ $NEEDED{$subcommand} // [] } if rand() < 0.8;
	push @words, @COMMAND if $subcommand eq 'run' && rand() < 0.9;
	push @calls, [ 'any', $subcommand, @words ];
}

#
# Making them
#

my %running;
my @wrong;
my %codes;
my $n = 0;

# Options ("run --rank") that were taken, and that were refused
my (%taken, %refused);

sub free_port
{
	return IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 0, Listen => 1)->sockport;
}

sub start
{
	my ($expected, @words) = @_;
	my $file = "$dir/output-" . $n++;
	my $port = free_port();

	s/\@PORT\@/$port/ foreach @words;
	my $pid = fork // die "cannot fork: $!";

	if ($pid == 0)
	{
		# Nor is there a terminal to ask for a password.
		POSIX::setsid();
		open(STDIN, '<', '/dev/null');
		open(STDOUT, '>', "$file.out");
		open(STDERR, '>', "$file.err");
		alarm($ENOUGH);
		exec('pg_leader', @words) or POSIX::_exit(127);
	}
	$running{$pid} = [ $file, $expected, @words ];
	return;
}

sub check
{
	my ($code, $file, $expected, @words) = @_;
	my ($out, $err) = map { slurp_file("$file.$_") } qw(out err);
	my $waits = $words[0] && ($words[0] eq 'stand' || grep { /^--(wait|forever|every)/ } @words);
	my %expected = (good => '123', bad => '125', any => '12[35]');
	my $codes = $expected{$expected} . ($waits && $expected ne 'bad' ? "|$WAITS" : '');
	my @wrongs;

	unlink map { "$file.$_" } qw(out err);
	$codes{"$expected $code"}++;
	if ($code == 125)
	{
		$refused{"$words[0] --" . ($1 // $2 // $3)} = 1
		  if $err =~ m{ for option (?:-\w/)?--([\w-]+)$| option '--([\w-]+)' doesn't allow| the file of --([\w-]+) has}m;
	}
	elsif ($expected eq 'good' && $code =~ /^(123|$WAITS)$/)
	{
		$taken{"$words[0] $_"} = 1 foreach map { /^(--[\w-]+)/ ? $1 : () } @words;
	}
	push @wrongs, "exit code $code" if $code !~ /^($codes)$/;
	push @wrongs, 'no message' if $code != $WAITS && $err !~ /^([\d -]+:.* )?(Password: \n?)?pg_leader: ./;
	push @wrongs, 'no hint' if $code == 125 && $err !~ /^pg_leader: (hint|detail): ./m;
	push @wrongs, 'output' if $out ne '';
	push @wrongs, 'control characters' if join('', $err =~ /^(.*invalid value ".*)/ms) =~ /[\x00-\x08\x0b-\x1f\x7f]/;
	push @wrongs, 'a report' if $err =~ /runtime error:|Sanitizer/;
	push @wrong, join(', ', @wrongs) . ': ' . substr("@words", 0, 300) . "\n" . substr($err, 0, 1000) if @wrongs;
	return;
}

my @left = @calls;
while (@left || %running)
{
	start(@{ shift @left }) while @left && keys %running < $AT_ONCE;
	my $pid = waitpid(-1, 0);
	check($? & 127 ? 128 + ($? & 127) : $? >> 8, @{ delete $running{$pid} }) if $running{$pid};
}
ok(!@wrong, scalar(@calls) . ' calls') or diag(scalar(@wrong) . " are wrong, among them:\n", join("\n", map { $_ // () } @wrong[ 0 .. 14 ]));
note(join(', ', map { "$_: $codes{$_}" } sort keys %codes));
ok(!-e "$dir/ran", 'no command was run');

# No option was left out.
is_deeply([ grep { !$taken{$_} } @options ], [], 'each option was taken');
is_deeply([ grep { !$refused{$_} && !$takes_any{$_} } @options ], [], 'each was refused, with a bad value');
done_testing();
