# What pg_leader looks like on a terminal: colours there, and only there; what
# needs an operator comes first, what nobody uses not at all.

use strict;
use warnings;

use Cwd qw(abs_path);
use FindBin;
use lib $FindBin::RealBin;

use JSON::PP;
use LeaderElection;
use PgLeader;
use PostgreSQL::Test::Utils;
use Test::More;

my $TOP = abs_path("$FindBin::RealBin/../..");

$ENV{PGTZ} = 'UTC';
$ENV{LC_ALL} = 'C.UTF-8';
$ENV{TERM} = 'xterm';
delete @ENV{qw(NO_COLOR COLUMNS)};
my $node = new_server(config => 'client_min_messages = warning');
my $sql = session($node, name => 'sql');

# What a subcommand writes on a terminal.
sub on_terminal
{
	my (@args) = @_;
	my $out = '';

	IPC::Run::run([ 'pg_leader', $args[0], '-d', $node->connstr('postgres'), @args[ 1 .. $#args ] ],
		'<' => \undef, '>pty>' => \$out, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return $out =~ s/\r\n/\n/gr;
}

# ... on one that has so many columns
sub on_terminal_of
{
	my ($columns, $subcommand) = @_;
	my $out = '';

	IPC::Run::run([ 'sh', '-c', "stty cols $columns <&1; exec pg_leader $subcommand -d \"\$1\"", 'sh', $node->connstr('postgres') ],
		'<' => \undef, '>pty>' => \$out, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return $out =~ s/\r\n/\n/gr;
}

sub plain { return $_[0] =~ s/\e\[[0-9;]*m//gr; }

# ... whenever it was asked, and however it is wrapped
sub timeless { return $_[0] =~ s/\s+/ /gr =~ s/[\d.]+ (?:ms|s|min|h)\b/9 s/gr; }

my %COLOUR = (bad => "\e[1;31m", care => "\e[33m", well => "\e[32m", quiet => "\e[2m");

sub coloured
{
	my ($colour, $text) = @_;

	return qr/\Q$COLOUR{$colour}$text\E\e\[0m/;
}

# --- status

# Elections in each state, by names that would have another order
$sql->query($_) foreach (
	"SELECT leader_election.create_election(e, lease_duration => '1 h') FROM unnest('{a unused,b led,c paused,d deserted,e done,f asked,g quorum}'::text[]) e",
	"SELECT leader_election.alter_election('g quorum', quorum => 2)",
	"SELECT leader_election.acquire(e, 'one') FROM unnest('{b led,d deserted,f asked,g quorum}'::text[]) e",
	"SELECT leader_election.acquire('f asked', 'two')",
	"SELECT leader_election.request_yield('f asked')",
	"SELECT leader_election.pause_election('c paused')",
	"SELECT leader_election.acquire('e done', 'one', run => '1')",
	"SELECT leader_election.release('e done', 1, done => true), leader_election.leave('e done', 'one')",
	"SELECT leader_election.release('d deserted', 1), leader_election.leave('d deserted', 'one')");

my $screen = on_terminal('status');
is(join(', ', plain($screen) =~ /^(\w \w+)/gm), 'd deserted, g quorum, b led, f asked, c paused, e done',
	'what needs an operator, what is led, what is not');
like($screen, qr/\A\e\[1mElection\e\[0m /, 'a head');
like($screen, qr/^\Q$_->[0]\E +\Q$COLOUR{$_->[1]}$_->[2]\E\e\[0m /m, "$_->[0]: $_->[1]")
  foreach [ 'b led', 'well', 'led' ], [ 'c paused', 'care', 'vacant' ], [ 'd deserted', 'bad', 'vacant' ],
	[ 'e done', 'care', 'vacant' ], [ 'f asked', 'care', 'yielding' ], [ 'g quorum', 'bad', 'vacant' ];
like($screen, coloured('quiet', 'and 1 that nobody has led or stands for: see --all'), 'how many are unused');
like(plain($screen), qr/^e done .* no candidates  run 1 done at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00$/m, 'which run was done');
unlike(plain($screen), qr/ $/m, 'no blanks at the end, which a narrow terminal would take for a line');
like(on_terminal('status', '--all'), qr/^a unused +\Q$COLOUR{quiet}\Evacant\e\[0m /m, '--all');
like(plain(on_terminal('status', '--all')), qr/^e done .*\na unused [^\n]*\n\z/m, '... at the end');
like(on_terminal('status', '-e', 'a unused'), qr/^a unused +\Q$COLOUR{quiet}\Evacant\e\[0m /m, 'one that is named');
like(on_terminal('status', '-e', 'b led'), coloured('well', 'leads'), 'a candidate that leads');
is(plain(on_terminal('status', '--all') =~ s/\d+\.\d s/9.9 s/gr), scalar(ask($node, 'status', '--all')) =~ s/\d+\.\d s/9.9 s/gr,
	'elsewhere the same, without colours');
unlike(scalar(ask($node, 'status')), qr/\e/, 'none in a file');
foreach my $no ([ NO_COLOR => 1 ], [ TERM => 'dumb' ])
{
	local $ENV{ $no->[0] } = $no->[1];
	unlike(on_terminal('status'), qr/\e/, "none with $no->[0]=$no->[1]");
}
{
	local $ENV{NO_COLOR} = '';
	like(on_terminal('status'), qr/\e/, 'an empty NO_COLOR means nothing (no-color.org)');
}

# --- diagnose: all that is said, wrapped, and the worst as the exit status

my $found = on_terminal('diagnose');
is(join(', ', plain($found) =~ /^(\w \w+)/gm), 'c paused, d deserted, g quorum, b led, e done, f asked', 'diagnose: the worst first');
like($found, qr/^  \Q$COLOUR{$_->[0]}$_->[1]\E *\e\[0m  /m, "$_->[1]: $_->[0]") foreach [ 'bad', 'error' ], [ 'care', 'notice' ], [ 'well', 'ok' ];
is(join('', grep { length > 79 } split(/\n/, plain($found))), '', 'wrapped');
like(plain($found), qr/^ {8}-> \S.*\n {11}\S/m, '... also what is to be done');
{
	my ($narrow, $wide) = map { my $n = $_; (sort { $b <=> $a } map { length } split(/\n/, plain(on_terminal_of($n, 'diagnose'))))[0] } 50, 120;

	cmp_ok($narrow, '<', 50, '... on a narrow terminal');
	cmp_ok($wide, '<', 120, '... on a wide one');
	cmp_ok($wide, '>', 80, '... which is used');
}
my ($gravest, $all) = ask($node, 'diagnose');
unlike($all, qr/\e/, 'elsewhere there are no colours');
like($all, qr/^  error    Nobody leads election "d deserted": .{80,}\n {8}-> Start the programs/m, '... and lines are not wrapped');
is(timeless(plain($found)), timeless($all), '... but the same');
is($gravest, 2, 'an error: exit code');
like((ask($node, 'diagnose', '--all'))[1], qr/^a unused$/m, '--all');
{
	my $rows = $sql->query("SELECT string_agg(concat_ws('|', severity, finding, remedy), E'\\n') FROM leader_election.diagnose('f asked')");
	my @json = map { decode_json($_) } split(/\n/, scalar(ask($node, 'diagnose', '--json', '-e', 'f asked')));

	is(timeless(join("\n", map { join('|', @$_{qw(severity finding remedy)}) } @json)), timeless($rows),
		'JSON: what diagnose() says');
	is($json[0]{election}, 'f asked', '... of which election');
}
is((ask($node, 'diagnose', '-e', $_->[0]))[0], $_->[1], "$_->[0]: exit code") foreach [ 'b led', 0 ], [ 'f asked', 0 ], [ 'd deserted', 2 ], [ 'none', 125 ];
$sql->query("SELECT leader_election.create_group('seats', 2)");
$sql->query("SELECT leader_election.acquire_any('seats', 'one')");
like((ask($node, 'diagnose'))[1], qr/^seats$/m, 'a group is one');
is((ask($node, 'diagnose', '-e', 'seats'))[0], 1, '... of which a seat has nobody: a warning');

$sql->query("SELECT leader_election.alter_election('b led', quorum => 5)");
is((ask($node, 'diagnose', '-e', 'b led'))[0], 1, 'a warning: exit code');
$sql->query("SELECT leader_election.alter_election('b led', quorum => 1)");

# --- run -v: who leads instead

$sql->query("SELECT leader_election.alter_election('g quorum', quorum => 1)");
my $waits = pg_leader($node, '-v', '-e', 'b led', '-n', 'three', '--', 'sleep', '600');
my $tells = sub {
	my ($one, $what) = @_;

	wait_until(sub { $one->output =~ $what }, sub { "$what in: " . $one->output });
	like($one->output, qr/^\d{4}-\S+ \S+ pg_leader: election "[^"]+": $what$/m, 'run -v: ' . $what);
};

$tells->($waits, qr/waiting: "one" leads in term 1/);
$sql->query("SELECT leader_election.acquire('b led', 'two')");
$sql->query("SELECT leader_election.transfer('b led', 1, 'two')");
$sql->query("SELECT leader_election.acquire('b led', 'two')");
$tells->($waits, qr/waiting: "two" leads in term 2/);
$sql->query("SELECT leader_election.pause_election('b led'), leader_election.release('b led', 2)");
$tells->($waits, qr/waiting: nobody leads: paused/);
{
	# It asks who leads at the end of each try. Where it has begun to for the third
	# time, what it says of the second answer is in its output.
	my $last = '';
	my $asks_again = sub {
		my $at = $sql->query("SELECT max(query_start) FROM pg_stat_activity WHERE query ~ 'leads in term' AND pid <> pg_backend_pid()") // '';
		my $is_new = $at ne '' && $at ne $last;

		$last = $at if $is_new;
		return $is_new;
	};

	wait_until($asks_again, 'it asks again') foreach 1 .. 3;
}
unlike($waits->output, qr/(waiting: .*)\n.*\1\n/, '... each once, though it asks again');
$sql->query("SELECT leader_election.resume_election('b led')");
$tells->($waits, qr/leading in term 3/);
my $quiet = pg_leader($node, '-e', 'b led', '-n', 'four', '--wait', '2s', '--', 'true');
is($quiet->exit_code, 122, 'without -v it waits, too');
unlike($quiet->output, qr/waiting:/, '... and says nothing');
$sql->query("SELECT leader_election.create_group('crew', 2, max_per_candidate => 2, lease_duration => '1 h')");
$sql->query("SELECT leader_election.acquire_any('crew', 'one')") foreach 1 .. 2;
my $crew = pg_leader($node, '-v', '--group', 'crew', '-n', 'two', '--', 'sleep', '600');
$tells->($crew, qr/waiting: 2 of 2 seats are led/);
$_->signal('TERM') foreach $waits, $crew;
$_->exit_code foreach $waits, $crew;

# --- since when: of a leader its term, of a vacancy the end of the last one

$sql->query($_) foreach (
	"SELECT leader_election.create_election(e, lease_duration => '1 h') FROM unnest('{h long,i gone}'::text[]) e",
	"SELECT leader_election.acquire(e, 'one') FROM unnest('{h long,i gone}'::text[]) e",
	"SELECT leader_election.release('i gone', 1)",
	"UPDATE leader_election.lease SET acquired_at = '2001-02-03 04:05:06+00' WHERE election = 'h long'",
	"UPDATE leader_election.history SET ended_at = '2002-03-04 05:06:07+00' WHERE election = 'i gone'");
my $since = ask($node, 'status');
like($since, qr/^h long +led +one +1 +2001-02-03 04:05:06\+00 /m, 'since when it is led');
like($since, qr/^i gone +vacant +2002-03-04 05:06:07\+00 /m, '... or vacant');

# Two who know what needs an operator: the rules, and status
my $rules = slurp_file("$TOP/src/rules/reasons.c");
my $program = slurp_file("$TOP/src/bin/observer.h");
my ($known) = $program =~ /#define NEEDS_OPERATOR \\\n(.*?)\n\n/s;
my %grave = map { $_ => 1 } $rules =~ /^\t\[OBSTACLE_\w+\] = \{"([^"]+)", \w+, SEVERITY_(?:WARNING|ERROR),/gm;

is(join(', ', sort map { split(/\|/) } join('', $known =~ /"(.*?)"/g)), join(', ', sort keys %grave),
	'status knows what needs an operator, as diagnose() does');

done_testing();
