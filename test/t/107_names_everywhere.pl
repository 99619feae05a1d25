# Names that mean something elsewhere, through every output: each election, and
# the candidate that leads it, arrives as it was given where a program reads, and
# without anything that a terminal, a shell, a browser or a monitor obeys.
#
# A new output is to be added here; those that there are, are told by %seen.

use strict;
use warnings;
use utf8;

use FindBin;
use lib $FindBin::RealBin;

use Cwd qw(abs_path);
use Encode qw(decode encode);
use IPC::Run;
use JSON::PP;
use LeaderElection;
use PgLeader;
use PostgreSQL::Test::Utils;
use Sidecar;
use Test::More;

$ENV{LC_ALL} = 'C.UTF-8';

my $dir = abs_path(PostgreSQL::Test::Utils::tempdir());
my $touched = "$dir/touched";
my $COMPLETION = "$FindBin::RealBin/../../src/bin/pg_leader.bash";
my $CHECK = slurp_file("$FindBin::RealBin/../../monitoring/check.sql") =~ s/;\s*\z//r;

# What it is, and the name
my %NAMES = (
	'quotes and backslashes' => q{a"b'c\\d\\"e\\'},
	'a shell\'s' => "\$(touch $touched)`id`;id|id&<>~*?[x]{y,z}!!'",
	'an option' => '--help',
	'markup' => '</script></title>]]><img src=x onerror=alert(1)>&lt;&#60;',
	'JSON' => '","leader":"forged","event":"elected","x":{"y":["',
	'a metric' => qq(e"} 1\npg_leader_leading{election="forged),
	'a line of a log' => qq{x": vacant\n2026-01-01 00:00:00 UTC LOG:  forged},
	'lines and fields' => "a\nb\r\nc\td|e",
	'a terminal\'s' => "\e[2J\e]0;title\a\x{07}\x{08}\x{7f}",
	'controls of Unicode' => "a\x{85}\x{9b}31m",
	'directions' => "\x{202e}gnp.\x{2066}x\x{2069}\x{200f}",
	'unseen' => "a\x{200b}\x{ad}\x{feff}\x{e0041}b",
	'formats' => '%s%n%d%1000000s$1:name',
	'SQL' => q{'; DROP TABLE leader_election.lease; --},
	'spaces' => '  a  b  ',
	'letters' => "é\x{1F600}e\x{301}漢",
	'the longest' => "\x01" x 190);

my $node = new_server(
	config => q(
leader_election.lease_duration = '6s'
client_min_messages = warning
log_line_prefix = '%m '
));
my $sql = session($node, name => 'observer');
my $skips_http = no_http($node);

$sql->query('LISTEN leadership_changed');

# A name as pg_leader prints it
sub printable
{
	my ($name) = @_;
	my $hidden = qr/[\x00-\x1f\x7f-\x9f\x{ad}\x{61c}\x{200b}-\x{200f}\x{2028}-\x{202e}\x{2060}-\x{206f}\x{feff}\x{e0000}-\x{e0fff}]/;

	return join('', map {
			!/$hidden/ ? $_ : /[\n\r\t]/ ? { "\n" => '\n', "\r" => '\r', "\t" => '\t' }->{$_}
			: join('', map { sprintf('\\x%02X', ord) } split //, encode('UTF-8', $_))
	} split //, $name);
}

# What of a text is not inert on a terminal
sub harm
{
	my ($text) = @_;

	return join(' ', map { sprintf('U+%04X', ord) } decode('UTF-8', $text) =~
		  /([\x00-\x08\x0b-\x1f\x7f-\x9f\x{ad}\x{200b}-\x{200f}\x{2028}-\x{202e}\x{2060}-\x{206f}\x{feff}\x{e0000}-\x{e0fff}])/g);
}

my %seen;

# Two texts, which are not printed as they are
sub same
{
	my ($got, $expected, $what) = @_;

	return is(JSON::PP->new->ascii->allow_nonref->encode($got), JSON::PP->new->ascii->allow_nonref->encode($expected), $what);
}

# A text for people: inert, and with these in it, one line each.
sub shown
{
	my ($what, $text, @names) = @_;

	$seen{$what} = 1;
	is(harm($text), '', "$what: inert");
	my @missing = grep { index(decode('UTF-8', $text), printable($_)) < 0 } @names;
	ok(!@missing, "$what: shown") or diag($text);
	return;
}

# A line of JSON for programs: these in these fields
sub told
{
	my ($what, $json, %fields) = @_;
	my $told = eval { decode_json($json) } // {};

	$seen{$what} = 1;
	same($told->{$_}, $fields{$_}, "$what, $_: as it is") or diag($json) foreach sort keys %fields;
	return;
}

# What a shell has after a completion
sub completed
{
	my ($line) = @_;
	my ($out, $err) = ('', '');
	my $script = <<'END_OF_SCRIPT';
. "$1"
COMP_LINE=$2 COMP_POINT=${#2}
_pg_leader pg_leader
for word in "${COMPREPLY[@]}"; do eval "set -- $word"; printf '%s\0' "$@"; done
END_OF_SCRIPT

	IPC::Run::run([ 'bash', '--norc', '-c', $script, 'bash', $COMPLETION, $line ], '<', \undef, '>', \$out, '2>', \$err);
	is($err, '', 'completion: quiet');
	return split(/\0/, $out);
}

# Some terms that were lost, so many that monitors are alarmed
sub lose_terms
{
	my ($quoted) = @_;

	foreach (1 .. 6)
	{
		my $term = $sql->query("SELECT term FROM leader_election.acquire($quoted, $quoted)");

		is($sql->query("SELECT leader_election.release($quoted, $term)"), 't', 'a term');
	}
	$sql->query("SELECT leader_election.leave($quoted, $quoted)");
	$sql->query("UPDATE leader_election.history SET reason = 'expired' WHERE election = $quoted");
	return;
}

foreach my $what (sort keys %NAMES)
{
	my $name = $NAMES{$what};
	my $candidate = "$name'";
	my ($e, $c) = map { encode('UTF-8', $_) } $name, $candidate;
	my $quoted = "'" . $e =~ s/'/''/gr . "'";
	my $from = -s $node->logfile;
	my $connstr = $node->connstr('postgres');
	my @all = ($name, $candidate);

	note("--- $what");
	$sql->query("SELECT leader_election.create_election($quoted)");
	is($sql->sqlstate, '00000', "$what: an election");
	lose_terms($quoted);
	my @watches = map { start_client($node, 'watch', "--election=$e", @$_) } [], ['--json'],
	  [ '--exec', qq(printf '%s\\0' "\$PG_LEADER_ELECTION" "\$PG_LEADER_LEADER" "\$PG_LEADER_METADATA" >>$dir/hook) ];
	wait_for_output($_, qr/\n/) foreach @watches;

	my $port = http_port();
	my $one = $skips_http
	  ? pg_leader($node, '-v', "--election=$e", "--candidate=$c", '--', 'sleep', '600')
	  : sidecar($node, '-v', "--election=$e", "--candidate=$c", "--http=$port");
	wait_until(sub { $sql->query("SELECT leader_election.leader($quoted) IS NOT NULL") eq 't' }, "a leader: $what");
	wait_until(sub { $one->output =~ /leading in term/ }, 'it to know');
	shown('-v', $one->output, $name);

	shown('status', (ask($node, 'status', "--election=$e"))[1], @all);
	told('status --json', scalar(ask($node, 'status', '--json', "--election=$e")), election => $name, leader => $candidate);
	shown('history', (ask($node, 'history', "--election=$e"))[1], $candidate);
	told('history --json', (split /\n/, scalar(ask($node, 'history', '--json', "--election=$e")))[-1], election => $name, leader => $candidate);
	shown('status --json', scalar(ask($node, 'status', '--json', "--election=$e")));
	shown('history --json', scalar(ask($node, 'history', '--json', "--election=$e")));

	my $page = ask($node, 'history', '--html', '-', "--election=$e");
	is(join(' ', $page =~ /([^\n\x20-\x7e])/g), '', 'a page: ASCII');
	unlike($page, qr/<img|<\/?script/, 'a page: no markup');
	shown('a page', encode('UTF-8', $page =~ s/&#x([0-9A-F]+);/chr hex $1/ger), @all);

	wait_for_output($watches[0], qr/leads in term/);
	shown('watch', ${ $watches[0][1] }, @all);
	wait_for_output($watches[1], qr/.*\n.*\n/);
	told('watch --json', (split /\n/, ${ $watches[1][1] })[1], election => $name, leader => $candidate);
	shown('watch --json', ${ $watches[1][1] });
	wait_until(sub { -e "$dir/hook" && (() = slurp_file("$dir/hook") =~ /\0/g) >= 6 }, 'the hook');
	is((split /\0/, slurp_file("$dir/hook"))[3], $e, 'a hook: the election');
	is((split /\0/, slurp_file("$dir/hook"))[4], $c, 'a hook: the leader');

	unless ($skips_http)
	{
		told('/status', get($port, '/status')->{body}, election => $name, candidate => $candidate);
		my $metrics = get($port, '/metrics')->{body};
		my $label = qr/"((?:[^"\\\n]|\\["\\n])*)"/;
		my ($metric) = $metrics =~ /^pg_leader_leading\{election=$label,/m;
		my ($of) = $metrics =~ /^pg_leader_leading\{election=$label,candidate=($label)\} 1$/m ? $3 : '';

		$seen{'/metrics'} = 1;
		is_deeply([ map { s/\\(.)/$1 eq 'n' ? "\n" : $1/ger } $metric, $of ], [ $e, $c ], '/metrics: as it is');
		is(join('', grep { !/^(#.*|\w+\{election=$label,candidate=$label(,code="\d+")?\} [-+.\de]+)$/ } split /\n/, $metrics),
			'', '/metrics: nothing else');
	}

	# What the command has
	is(scalar(ask($node, 'run', "--election=r$e", "--candidate=$c", '--', 'sh', '-c', 'printf "%s\0" "$PG_LEADER_ELECTION" "$PG_LEADER_CANDIDATE"')),
		"r$e\0$c\0", 'run: the environment');

	# To yield, and what it says; a second candidate is there.
	$sql->query("SELECT leader_election.acquire($quoted, " . $quoted =~ s/'\z/ too'/r . ')');
	shown('yield', (ask($node, 'yield', "--election=$e"))[1], $candidate);
	$one->exit_code if $skips_http;

	# Notifications
	my @events;
	wait_until(
		sub {
			push @events, grep { $_->{election} eq $name } map { eval { decode_json(/(\{.*\})/s) } // () } $sql->notifications;
			@events = grep { $_->{event} eq 'yield_requested' } @events;
			return scalar @events;
		},
		"notifications: $what");
	$seen{NOTIFY} = 1;
	same($events[0]{leader}, $candidate, 'a notification: as it is');

	# What monitors read
	foreach my $query ([ 'check.sql', $CHECK ], [ 'metrics', 'SELECT * FROM leader_election.metrics' ], [ 'candidates', 'SELECT * FROM leader_election.candidates' ])
	{
		my $rows = $sql->query("SELECT jsonb_agg(q) FROM ($query->[1]) q WHERE election = $quoted");

		$seen{ $query->[0] } = 1;
		same(eval { decode_json($rows)->[0]{election} }, $name, "$query->[0]: as it is") or diag($rows, $sql->errors);
	}
	my $findings = $sql->query("SELECT string_agg(finding, ' ') FROM leader_election.diagnose($quoted)");
	$seen{'diagnose()'} = 1;
	isnt($findings, '', 'diagnose()');
	is(join(' ', $findings =~ /([\x00-\x1f])/g), '', 'diagnose(): no controls');

	# The log
	my $log = slurp_file($node->logfile, $from);
	$seen{log} = 1;
	my @lines = grep { /LOG:  leader_election: / } split /\n/, $log;
	cmp_ok(scalar(grep { /leads in term/ } @lines), '>', 0, 'the log says it');
	is(join('', grep { /[\x00-\x1f]/ } @lines), '', 'the log: no controls');
	unlike($log, qr/^2026-01-01.*forged/m, 'the log: no forged line');

	# Errors name it, too.
	shown('an error', (ask($node, 'status', "--election=no $e"))[2]);
	shown('an error of the server', (ask($node, 'run', "--election=$e", "--candidate=$c", '--mode=session', '--wait=50ms', '--', 'true'))[2]);

	# bash is offered what JSON has as it is, and nothing else.
	my @offered = grep { $_ eq $e } completed("pg_leader status -h " . $node->host . ' -p ' . $node->port . ' -d postgres -e ');
	is(scalar @offered, printable($name) eq $name && $e !~ /["\\]/ ? 1 : 0, 'completion');

	$_->[0]->kill_kill foreach @watches;
	unless ($one->ended)
	{
		$one->signal('TERM');
		$one->exit_code;
	}
	unlink "$dir/hook";
	ok(!-e $touched, "$what: nothing was run");
}
is($sql->query("SELECT count(*) > 0 FROM leader_election.lease"), 't', 'the tables are there');
note('seen: ' . join(', ', sort keys %seen));
is(scalar keys %seen, $skips_http ? 17 : 19, 'outputs');

$sql->finish;
$node->stop;
done_testing();
