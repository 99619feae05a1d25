# What pg_leader takes from its environment, with nonsense in it: each variable
# that the sources read, and some of libpq's, the C library's and PostgreSQL's
# own. Each subcommand ends with an exit code of the documented ones and, if that
# is not 0, a message; it writes nothing that a terminal obeys, and draws what it
# would without.
#
# A variable that the sources read, and that has no values here, fails the test.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use HostileServer;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $LONG = 'x' x 100_000;
my $MARK = "\e[2J\e]0;title\a";
my $dir = PostgreSQL::Test::Utils::tempdir();

delete @ENV{ grep { /^PG/ } keys %ENV };
$ENV{$_} = join(':', grep { defined } $ENV{$_}, 'exitcode=99') foreach qw(ASAN_OPTIONS UBSAN_OPTIONS);
$ENV{LC_ALL} = 'C.UTF-8';
$ENV{TERM} = 'xterm';

#
# Variables, and values of each
#

my @ANY = ('', ' ', 'nonsense', $MARK, "\xff\xfe", '%s%n%1000000s', '../../etc/passwd', "'\"\\\$(id)`id`;", "a\nb", $LONG);
my @NUMBERS = ('', '0', '-1', '1', '7', '1e9', '2147483647', '2147483648', '9' x 400, 'x', '80x', "80\e[2J", ' 80');

my %VALUES = (
	COLUMNS => \@NUMBERS,
	TERM => [ @ANY, 'dumb', 'linux' ],
	TMPDIR => [ @ANY, '/', '/no/such', '/dev/null', "/tmp/$MARK", $dir, '.' ],
	PGSERVICE => \@ANY,
	PGSERVICEFILE => [ @ANY, '/dev/zero', '/proc/self/mem', $dir ],
	PGTARGETSESSIONATTRS => [ @ANY, qw(any read-write standby) ],
	PG_LEADER_PORTABLE => [ @ANY, 'off', 'on' ],
	NO_COLOR => \@ANY,
	KUBERNETES_SERVICE_HOST => \@ANY,
	POD_NAME => \@ANY,
	HOSTNAME => \@ANY,
	PGCLIENTENCODING => [ @ANY, qw(UTF8 LATIN1 SJIS SQL_ASCII auto) ]);

# Others read these.
my %OTHERS = (
	PGAPPNAME => \@ANY,
	PGCONNECT_TIMEOUT => \@NUMBERS,
	PGOPTIONS => \@ANY,
	PGPASSFILE => [ @ANY, '/dev/null', $dir ],
	PGSSLMODE => [ @ANY, qw(disable prefer) ],
	PGDATESTYLE => \@ANY,
	PGTZ => \@ANY,
	LC_ALL => [ @ANY, qw(C POSIX en_US.UTF-8) ],
	LANGUAGE => \@ANY,
	TZ => [ @ANY, ':/dev/zero', '<a>3', 'UTC-25:99' ]);

my %read = map { $_ => 1 }
  map { slurp_file($_) =~ /\bgetenv\("(\w+)"\)/g } glob("$FindBin::RealBin/../../src/bin/*.[ch]");
is_deeply([ sort keys %read ], [ sort keys %VALUES ], 'variables that the sources read');
is(join(' ', map { slurp_file($_) =~ /\b(getenv\([^"].*)/g } glob("$FindBin::RealBin/../../src/bin/*.[ch]")),
	'', 'all of them by their names');

#
# Subcommands: what they are given, whether on a terminal, and the exit codes
#

my $command = "$dir/command";
append_to_file($command, "#!/bin/sh\ncat \"\$PG_LEADER_TERM_FILE\"\n");
chmod 0755, $command;

my @CALLS = (
	[ [ 'status' ], 1, '0|12[345]' ],
	[ [ 'diagnose' ], 1, '[0-2]|12[345]' ],
	[ [ 'history', '-e', 'e' ], 1, '0|12[345]' ],
	[ [ 'history', '--html=-' ], 0, '0|12[345]' ],
	[ [ 'run', '-v', '-e', 'e', '--once', '--', $command ], 0, '0|12[0-5]' ]);

my $server = HostileServer->new();
my @columns;

# What of a text is not inert on a terminal
sub controls
{
	my ($text) = @_;

	$text =~ s/\r\n/\n/g;
	# pg_leader's own colours
	$text =~ s/\e\[(?:[12]|3[23]|1;31)m([^\e\n]*)\e\[0m/$1/g;
	return join(' ', map { sprintf('%vd', $_) } $text =~ /([\x00-\x08\x0b-\x1f\x7f])/g);
}

# Runs pg_leader: what is wrong, and what it wrote
sub run_in
{
	my ($call, %env) = @_;
	my ($args, $on_terminal, $codes) = @$call;
	my ($out, $err) = ('', '');
	my ($subcommand, @options) = @$args;
	my @wrong;

	local @ENV{ keys %env } = values %env;
	IPC::Run::run(
		[ 'pg_leader', $subcommand, '-d', $server->connstr, @options ],
		'<' => \undef,
		($on_terminal ? '>pty>' : '>') => \$out,
		'2>' => \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	my $code = $? & 127 ? 128 + ($? & 127) : $? >> 8;
	push @wrong, "exit code $code" if $code !~ /^($codes)$/;
	push @wrong, 'no message' if $code >= 121 && $err !~ /pg_leader: .*(error|warning): \S/;
	push @wrong, 'control characters: ' . controls("$out$err") if controls("$out$err") ne '';
	push @wrong, 'a report' if $err =~ /runtime error:|Sanitizer/;
	push @wrong, "not the term: $out" if $subcommand eq 'run' && $code == 0 && $out ne "7\n";
	push @wrong, substr($err, 0, 300) if @wrong;
	return (join(', ', @wrong), $out);
}

# The widest line of what was drawn
sub width_of
{
	my ($text) = @_;

	return (sort { $b <=> $a } map { length } split /\r?\n/, $text =~ s/\xe2\x96\x88|\xc2\xb7/x/gr)[0];
}

foreach my $call (@CALLS)
{
	is((run_in($call))[0], '', "@{ $call->[0] }: as it is");
}

my %both = (%VALUES, %OTHERS);
foreach my $name (sort keys %both)
{
	my @wrong;
	my $n = 0;

	foreach my $value (@{ $both{$name} })
	{
		foreach my $call (@CALLS)
		{
			my ($wrong, $out) = run_in($call, $name => $value);

			$wrong = join(', ', grep { $_ } $wrong, 'too wide')
			  if $name eq 'COLUMNS' && $call->[0][0] eq 'history' && $call->[1] && width_of($out) > 1000;
			push @wrong, substr("$name=" . $value =~ s/([^\x20-\x7e])/sprintf('\\x%02X', ord $1)/ger, 0, 60) . " @{ $call->[0] }: $wrong" if $wrong;
			$n++;
		}
	}
	is(join("\n", @wrong), '', "$name: $n calls");
}

# It tells the server its name, whatever that is.
my @unknown = grep { !/^(?:GRANT|ASKED|SENT) / } $server->finish;
is(join("\n", @unknown), '', 'no statement that nobody knows');
done_testing();
