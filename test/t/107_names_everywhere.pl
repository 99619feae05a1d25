# Names that mean something elsewhere, through every output: each election, and
# the candidate that leads it, arrives as it was given where a program reads, and
# without anything that a terminal, a shell, a browser or a monitor obeys.
#
# The outputs are not listed here, but found: in --help, in the sources, in the
# catalog and in monitoring/. One that was not seen with names fails the test.

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
use NamesInSql;
use PgLeader;
use PostgreSQL::Test::Utils;
use Sidecar;
use Test::More;

$ENV{LC_ALL} = 'C.UTF-8';

my $dir = abs_path(PostgreSQL::Test::Utils::tempdir());
my $touched = "$dir/touched";
my $TOP = "$FindBin::RealBin/../..";
my $COMPLETION = "$TOP/src/bin/pg_leader.bash";

# What monitors run: queries by what they are in
my %MONITORS = (
	(map { (m{([^/]+)\z})[0] => slurp_file($_) =~ s/;\s*\z//r } glob("$TOP/monitoring/*.sql")),
	slurp_file("$TOP/monitoring/queries.yaml") =~ /^(\w+):\n  query: \|\n(.*?)^  \w/msg);

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

# --- the outputs that there are, and those that names were seen in

my %seen;

# Options that say what is done, or to what, and not what comes out
my %INPUT = map { $_ => 1 } qw(dbname host port username no-password password election candidate rank group mode wait
  skip hold grace every offset attempts once forever check-every check-timeout check-failures since to terminate pooler
  refusal-timeout portable);

sub find_outputs
{
	my @found = ('completion', 'an error', 'an error of the server', 'a seat', sql_outputs($sql), keys %MONITORS);

	foreach my $subcommand (`pg_leader --help` =~ /^  (\w+)  +[a-z]/mg)
	{
		push @found, $subcommand, map { $INPUT{$_} ? () : "$subcommand --$_" } `pg_leader $subcommand --help` =~ /^ {2,6}(?:-\w, )?--([a-z-]+)/mg;
	}
	push @found, slurp_file("$TOP/src/bin/reply.c") =~ m{\{"(/\w+)", \w+_reply\}}g;
	push @found, map { "NOTIFY $_" } slurp_file("$TOP/src/worker/notify.c") =~ /write_event\(t, "(\w+)"/g;
	# Names in the log: formats that they are written with
	push @found, map { "log: $_" } map { slurp_file("$TOP/src/$_") =~ /"([^"]*%s[^"]*)"[^;"]*?le_quote\(/g } qw(base/commit.c state/election.c);
	return grep { !$skips_http || !m{^(/|stand)} } @found;
}

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

my @outputs = find_outputs();

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
	shown($skips_http ? 'run --verbose' : 'stand --verbose', $one->output, $name);
	$seen{stand} = 1;

	shown('status', (ask($node, 'status', "--election=$e"))[1], @all);
	shown('status --all', (ask($node, 'status', '--all', "--election=$e"))[1], @all);
	# Its texts are the server's, which quotes names in its own way.
	shown('diagnose', (ask($node, 'diagnose', "--election=$e"))[1], $name);
	shown('diagnose --all', (ask($node, 'diagnose', '--all'))[1], $name);
	told('diagnose --json', (split /\n/, scalar(ask($node, 'diagnose', '--json', "--election=$e")))[0], election => $name);
	shown('diagnose --json', scalar(ask($node, 'diagnose', '--json', "--election=$e")));
	told('status --json', scalar(ask($node, 'status', '--json', "--election=$e")), election => $name, leader => $candidate);
	shown('history', (ask($node, 'history', "--election=$e"))[1], $candidate);
	told('history --json', (split /\n/, scalar(ask($node, 'history', '--json', "--election=$e")))[-1], election => $name, leader => $candidate);
	shown('status --json', scalar(ask($node, 'status', '--json', "--election=$e")));
	shown('history --json', scalar(ask($node, 'history', '--json', "--election=$e")));

	my $page = ask($node, 'history', '--html', '-', "--election=$e");
	is(join(' ', $page =~ /([^\n\x20-\x7e])/g), '', 'a page: ASCII');
	unlike($page, qr/<img|<\/?script/, 'a page: no markup');
	shown('history --html', encode('UTF-8', $page =~ s/&#x([0-9A-F]+);/chr hex $1/ger), @all);

	wait_for_output($watches[0], qr/leads in term/);
	shown('watch', ${ $watches[0][1] }, @all);
	wait_for_output($watches[1], qr/.*\n.*\n/);
	told('watch --json', (split /\n/, ${ $watches[1][1] })[1], election => $name, leader => $candidate);
	shown('watch --json', ${ $watches[1][1] });
	wait_until(sub { -e "$dir/hook" && (() = slurp_file("$dir/hook") =~ /\0/g) >= 6 }, 'the hook');
	is((split /\0/, slurp_file("$dir/hook"))[3], $e, 'a hook: the election');
	is((split /\0/, slurp_file("$dir/hook"))[4], $c, 'a hook: the leader');
	$seen{'watch --exec'} = 1;

	unless ($skips_http)
	{
		told('/status', get($port, '/status')->{body}, election => $name, candidate => $candidate);
		shown('/leader', get($port, '/leader')->{body});
		$seen{'stand --http'} = 1;
		my $metrics = get($port, '/metrics')->{body};
		my $label = qr/"((?:[^"\\\n]|\\["\\n])*)"/;
		my ($metric) = $metrics =~ /^pg_leader_leading\{election=$label,/m;
		my ($of) = $metrics =~ /^pg_leader_leading\{election=$label,candidate=($label)\} 1$/m ? $3 : '';

		$seen{'/metrics'} = 1;
		is_deeply([ map { s/\\(.)/$1 eq 'n' ? "\n" : $1/ger } $metric, $of ], [ $e, $c ], '/metrics: as it is');
		is(join('', grep { !/^(#.*|\w+\{election=$label,candidate=$label(,code="\d+")?\} [-+.\de]+)$/ } split /\n/, $metrics),
			'', '/metrics: nothing else');
	}

	# What the command has, and the check
	my $print = q(printf '%s\0' "$PG_LEADER_ELECTION" "$PG_LEADER_CANDIDATE");
	my (undef, $environment, $verbose) = ask($node, 'run', '-v', "--election=r$e", "--candidate=$c", "--check=$print >$dir/check", '--', 'sh', '-c', $print);
	is($environment, "r$e\0$c\0", 'run: the environment');
	is(slurp_file("$dir/check"), "r$e\0$c\0", '--check: the environment');
	shown('run --verbose', $verbose, "r$name");
	$seen{$_} = 1 foreach 'run', 'run --check';
	$sql->query('SELECT leader_election.create_group(' . $quoted =~ s/'/'G/r . ', 1)');
	is(scalar(ask($node, 'run', "--group=G$e", "--candidate=$c", '--', 'sh', '-c', $print)), "G$e/1\0$c\0", 'run --group: the environment');
	shown('a seat', (ask($node, 'status', "--election=G$e/1"))[1], "G$name/1");

	query_unless_busy($sql, "SELECT leader_election.renew(election, term, metadata => '1')
		FROM leader_election.status WHERE election = $quoted");

	# To yield, and what it says; a second candidate is there, which does not come.
	# For that it waits for one lease, which is shorter then.
	$sql->query("SELECT leader_election.acquire($quoted, " . $quoted =~ s/'\z/ too'/r . ')');
	my $yield = start_client($node, 'yield', "--election=$e");
	wait_for_output($yield, qr/asked to yield/);
	query_unless_busy($sql, "SELECT leader_election.alter_election($quoted, lease_duration => '100ms')");
	$yield->[0]->finish;
	query_unless_busy($sql, "SELECT leader_election.alter_election($quoted, lease_duration => '6s')");
	shown('yield', ${ $yield->[1] }, $candidate);
	$one->exit_code if $skips_http;

	# Notifications
	my %events;
	wait_until(
		sub {
			foreach my $event (map { eval { decode_json(/(\{.*\})/s) } // () } $sql->notifications)
			{
				$seen{"NOTIFY $event->{event}"} = 1 if index($event->{election}, $name) >= 0;
				push @{ $events{ $event->{event} } }, $event if $event->{election} eq $name;
			}
			return $events{yield_requested} && $events{elected} && $events{metadata_changed};
		},
		"notifications: $what");
	same($events{$_}[0]{leader}, $candidate, "$_: as it is") foreach qw(yield_requested metadata_changed);
	ok((grep { $_->{leader} eq $candidate } @{ $events{elected} }), 'elected: as it is');

	# What the server says in SQL
	give($name, $candidate, "$name too", "r$name", "G$name", "G$name/1", 1);
	my ($in_sql, @wrong) = names_in_sql($sql, $name);
	is(join("\n", @wrong), '', 'SQL: as it is');
	$seen{$_} = 1 foreach keys %$in_sql;

	# What monitors read
	foreach my $of (sort keys %MONITORS)
	{
		my $json = $sql->query("SELECT coalesce(jsonb_agg(q), '[]') FROM ($MONITORS{$of}) q");
		my $rows = eval { decode_json($json) } // [];
		my @elections = map { $_->{election} // () } @$rows;

		is($sql->sqlstate, '00000', "$of: read") or diag($sql->errors);
		ok((!grep { !was_given($_) } @elections), "$of: as it is") or diag($json);
		# Where elections are not named, no name is.
		$seen{$of} = 1 if grep { index($_, $name) >= 0 } @elections or @$rows && !exists $rows->[0]{election};
	}

	my $findings = $sql->query("SELECT string_agg(finding, ' ') FROM leader_election.diagnose($quoted)");
	isnt($findings, '', 'diagnose()');
	is(join(' ', $findings =~ /([\x00-\x1f])/g), '', 'diagnose(): no controls');

	# The log
	my $log = slurp_file($node->logfile, $from);
	foreach my $format (map { /^log: (.*)/ ? $1 : () } @outputs)
	{
		my $line = join(qr/"(?:[^"\\]|\\.)*"|\w+/, map { quotemeta } split /%s/, $format, -1);

		$seen{"log: $format"} = 1 if $log =~ $line;
	}
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
	$seen{completion} = 1;

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
is_deeply([ grep { !$seen{$_} } sort @outputs ], [], scalar(@outputs) . ' outputs were seen');

$sql->finish;
$node->stop;
done_testing();
