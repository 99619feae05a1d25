# What is said of pg_leader agrees: --help, docs/pg_leader.md (with sidecar.md),
# the manual page and the table of options in the program. The completion in bash
# offers what --help has, and names from the server that the command line says;
# it is quiet, and evaluates nothing.

use strict;
use warnings;

use Cwd qw(abs_path);
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use LeaderElection;
use PgLeader;
use PostgreSQL::Test::Utils;
use Test::More;

my $TOP = abs_path("$FindBin::RealBin/../..");
my $COMPLETION = "$TOP/src/bin/pg_leader.bash";
my $WORD = qr/(?<![\w-])--[a-z][a-z-]*/;

sub all { return join(' ', sort @_); }

# --- options and subcommands

# The table in options.c: subcommand => { option => what --help has before it }
my (%options, %program);
my $source = slurp_file("$TOP/src/bin/options.c");
my ($all) = $source =~ /^#define ALL\s+"(.*)"/m;

while ($source =~ /^\t\{"([a-z-]+)", ('.'|0), VALUE_(\w+), .*?, (ALL|"[a-z ]+")[,}]/gm)
{
	my ($name, $letter, $kind, $subcommands) = ($1, $2, $3, $4 eq 'ALL' ? $all : $4 =~ tr/"//dr);

	$program{$_}{"--$name"} = ($letter eq '0' ? '' : '-' . substr($letter, 1, 1) . ', ') . "--$name" . ($kind =~ /^(?:YES|NO)$/ ? '' : '=')
	  foreach split(' ', $subcommands);
}

my ($subcommands) = (`pg_leader --help` =~ /^Subcommands:\n(.*?)\n\n/ms);
my @subcommands = $subcommands =~ /^  (\w+)/gm;

is(all(@subcommands), all(split(' ', $all)), 'subcommands: --help, and the program');
foreach my $subcommand (@subcommands)
{
	my $help = `pg_leader $subcommand --help`;

	$options{$subcommand}{$2} = $1 while $help =~ /^ {2,6}((?:-\w, )?(--[a-z-]+)=?)(?:[A-Z]+)?(?: {2}.*)?$/gm;
	is(all(values %{ $options{$subcommand} }), all(values %{ $program{$subcommand} }), "$subcommand --help: options, as in the program");
}

# --- the papers

my $paper = slurp_file("$TOP/docs/pg_leader.md");
my $papers = $paper . slurp_file("$TOP/docs/sidecar.md");
$papers =~ s/pg_config --\w+//g;
my %known = (map { %{ $options{$_} } } @subcommands);
$known{'--help'} = $known{'--version'} = 1;

# An option is in a text by its name or, that of libpq, by its letter.
sub lacks
{
	my ($text) = @_;

	return all(grep { my ($letter) = ($known{$_} =~ /^(-\w)/); $text !~ /(?<![\w-])\Q$_\E(?![\w-])/ && !($letter && $text =~ /(?<![\w-])\Q$letter\E\b/) } keys %known);
}

sub unknown
{
	my ($text) = @_;
	my %in_text = map { $_ => 1 } $text =~ /$WORD/g;

	return all(grep { !$known{$_} } keys %in_text);
}

is(lacks($papers), '', 'docs/pg_leader.md has all options');
is(unknown($papers), '', '... and no others');
is(all($paper =~ /^\| `pg_leader (\w+)/gm), all(@subcommands), '... and all subcommands');
like(lacks($papers =~ s/--offset//gr), qr/^--offset$/, 'found: an option that is lacking');
is(unknown("$papers --not-there"), '--not-there', 'found: one that is not there');

# --- the manual page

is(system("$TOP/docs/manual", '--check'), 0, 'the manual page is up to date');

my ($page, $warnings) = ('', '');
{
	local $ENV{MANWIDTH} = 80;
	IPC::Run::run([ 'man', '--warnings', '-l', "$TOP/docs/pg_leader.1" ], '>', \$page, '2>', \$warnings);
}
is($warnings, '', 'man has no warnings');
my ($connecting) = $page =~ /^CONNECTION OPTIONS\n(.*?)^\S/ms;
foreach my $subcommand (@subcommands)
{
	my ($section) = $page =~ /^PG_LEADER \U$subcommand\E\n(.*?)^(?=\S)/ms;
	my @terms = "$section$connecting" =~ /^ {7}((?:-\w, )?--[a-z-]+=?)/gm;

	is(all(@terms), all(values %{ $options{$subcommand} }), "manual: the options of $subcommand");
}
is(lacks($page), '', 'manual: all options');
is(unknown($page), '', 'manual: no others');

# --- the completion

my $node = new_server();
my $one = session($node, name => 'one');
my $host = $node->host;
my $port = $node->port;
my $touched = PostgreSQL::Test::Utils::tempdir() . '/touched';

$one->query("SELECT leader_election.join(e, 'one') FROM unnest(ARRAY['scheduler', 'my job', 'team:nightly', 'team:daily', 'it''s', '\$(touch $touched)', 'a\"b', E'c\\nd', 'shards/1', 'shards/2']) e");
session($node, name => 'two')->query("SELECT leader_election.join('scheduler', 'two')");

# What is offered after a line, and what bash and the completion say.
sub offered
{
	my ($line) = @_;
	my ($out, $err) = ('', '');
	my $script = <<'END';
. "$1"
COMP_LINE=$2 COMP_POINT=${#2}
_pg_leader pg_leader
((${#COMPREPLY[@]} == 0)) || printf '%s\n' "${COMPREPLY[@]}"
END

	# Whatever the environment says is the user's, too: here, nothing.
	local @ENV{qw(PGHOST PGPORT PGCONNECT_TIMEOUT)} = ('/nonexistent', 1, 10);
	IPC::Run::run([ 'bash', '--norc', '-c', $script, 'bash', $COMPLETION, $line ], '<', \undef, '>', \$out, '2>', \$err);
	is($err, '', "quiet: $line");
	return all(split(/\n/, $out));
}

my $at = "-h $host -p $port -d postgres";

is(offered('pg_leader '), all(@subcommands, '--help', '--version'), 'subcommands');
is(offered('pg_leader st'), 'stand status', 'subcommands that begin so');
is(offered("pg_leader $_ --"), all('--help', map { /(--.*)/ } values %{ $options{$_} }), "options of $_") foreach @subcommands;
is(offered('pg_leader run --check-'), '--check-every= --check-failures= --check-timeout=', 'options that begin so');
is(offered('pg_leader run --mode='), 'detached session', 'modes');
is(offered('pg_leader run --mode s'), 'session', 'a mode in a word of its own');
is(offered('pg_leader no-such-subcommand --'), '--help', 'a subcommand that is not there');

my $NAMES = '\$\(touch\ ' . $touched . '\) ' . q(it\'s my\ job scheduler shards/1 shards/2 team:daily team:nightly);

foreach my $case (
	[ "status $at -e ", $NAMES, 'elections, as the shell needs them' ],
	[ "status $at --election=", $NAMES, 'elections after =' ],
	[ "status --host=$host --port $port -dpostgres -e sch", 'scheduler', 'options in other forms' ],
	[ "status -d \"host=$host port=$port dbname=postgres\" -e sch", 'scheduler', 'a connection string in quotes' ],
	[ "status -d host=$host\\ port=$port\\ dbname='postgres' -e sch", 'scheduler', '... and others' ],
	[ "status $at -e my", 'my\ job', 'a name with a space' ],
	[ "status $at -e my\\ j", 'my\ job', '... that has begun' ],
	[ "status $at -e team:d", 'daily', 'bash takes what is after : for a word' ],
	[ "status $at --election=team:", 'daily nightly', '... and what is after =' ],
	[ "run $at --group ", 'shards', 'groups' ],
	[ "yield $at -e scheduler --to ", 'one two', 'candidates' ],
	[ "yield $at --to ", '', 'candidates of no election' ],

	# Others connect to nothing, or to what is not there
	[ 'status -e ', '', 'no server' ],
	[ "status -h $host -p $port -d nowhere -e ", '', 'no database' ],
	[ "status $at -d template1 -e ", '', 'no extension' ],
	[ "status -d '$host -e ", '', 'an open quote' ],
	[ "status -d \"\$(touch $touched)\" -e ", '', 'a substitution is not made' ],
	[ "status -d \`touch $touched\` --", '', '... nor of the old kind' ],
	[ "status --[ --mode x", '', 'what is no pattern' ],
  )
{
	my ($line, $names, $what) = @$case;

	is(offered("pg_leader $line"), $names, $what);
}
ok(!-e $touched, 'nothing was evaluated');
ok(offered('pg_leader run -e scheduler -- ech') =~ /\becho\b/, 'the command of run');
ok(offered('pg_leader run -e scheduler ech') =~ /\becho\b/, '... without --');
is(offered('pg_leader run -e scheduler -- echo --mo'), '', 'its options are its own');
is(offered('pg_leader status x --'), '', 'other subcommands have no command');

# In a shell at a terminal: what is typed, with tabs, is what the shell then has.
{
	my ($in, $out) = ('', '');
	local $ENV{TERM} = 'dumb';
	local $ENV{INPUTRC} = '/dev/null';
	my $bash = IPC::Run::start([ 'bash', '--norc', '--noprofile', '-i' ],
		'<pty<' => \$in, '>pty>' => \$out, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));

	# The line, put after a command that prints its words
	my $typed = sub {
		my ($line) = @_;

		$out = '';
		$in .= "$line\x01words \n";
		$bash->pump until $out =~ /<<(.*)>>/;
		return $1;
	};

	$in = "PS1=; bind 'set bell-style none'; words() { printf '<'; printf '<%s>' \"\$@\"; printf '>\\n'; }; . $COMPLETION; echo re''ady\n";
	$bash->pump until $out =~ /^ready/m;
	is($typed->("pg_leader stat\t$at -e sch\t"), join('><', qw(pg_leader status), split(' ', $at), qw(-e scheduler)), 'a terminal: subcommand and election');
	is($typed->("pg_leader status $at --elec\tteam:n\t"), join('><', qw(pg_leader status), split(' ', $at), '--election=team:nightly'), '... an option with = and a name with :');
	is($typed->("pg_leader status $at -e my\t"), join('><', qw(pg_leader status), split(' ', $at), '-e', 'my job'), '... a name with a space');
	is($typed->("pg_leader status $at -e it\t"), join('><', qw(pg_leader status), split(' ', $at), '-e', "it's"), '... with a quote');
	is($typed->("pg_leader status $at -e \\\$\t"), join('><', qw(pg_leader status), split(' ', $at), '-e', "\$(touch $touched)"), '... with a substitution');
	$in .= "exit\n";
	$bash->finish;
}
ok(!-e $touched, 'nothing was evaluated there');

done_testing();
