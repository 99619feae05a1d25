# pg_leader watch on a terminal: a line for each election, drawn anew when
# something changes, in the middle of what else is on the terminal; smaller and
# larger terminals, more elections than lines, names that mean harm, a lost
# connection, Ctrl-Z and Ctrl-C. Piped, it prints lines.
#
# A small terminal reads what it writes: a line that wrapped or scrolled, or a
# sequence that the terminal does not know, is a failure.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use IPC::Run;
use LeaderElection;
use PgLeader;
use PostgreSQL::Test::Utils;
use Test::More;

$ENV{PGTZ} = 'UTC';
$ENV{LC_ALL} = 'C.UTF-8';
$ENV{TERM} = 'xterm';
# Where the tests run in the background, a shell or nohup has had these ignored.
$SIG{$_} = 'DEFAULT' foreach qw(HUP INT QUIT);
my $node = new_server(config => 'client_min_messages = warning');
my $one = session($node, name => 'one');
my $two = session($node, name => 'two');

# --- the terminal

my ($rows, $columns, $read, $row, $column, @screen, $cursor_hidden, @wrong);

sub reset_terminal
{
	($rows, $columns) = @_;
	($read, $row, $column, @screen, @wrong) = (0, 0, 0);
	$cursor_hidden = 0;
	return;
}

# Shows what has been written since the last time.
sub show
{
	my ($out) = @_;
	my $new = substr($out, $read);

	while (length $new)
	{
		last if $new =~ /\A\e(?:\[[?0-9;]*)?\z/;    # the rest is yet to come
		my $before = length $new;
		if ($new =~ s/\A\e\[(\d+)A//)
		{
			push @wrong, "$1 up from $row" if $1 > $row;
			$row -= $1;
		}
		elsif ($new =~ s/\A\e\[H//) { ($row, $column) = (0, 0); }
		elsif ($new =~ s/\A\e\[K//) { $screen[$row] = substr($screen[$row] // '', 0, $column); }
		elsif ($new =~ s/\A\e\[J//) { $screen[$row] = substr($screen[$row] // '', 0, $column); splice(@screen, $row + 1); }
		elsif ($new =~ s/\A\e\[[0-9;]*m//) { }    # a colour
		elsif ($new =~ s/\A\e\[\?25([hl])//) { $cursor_hidden = $1 eq 'l'; }
		elsif ($new =~ s/\A\r//) { $column = 0; }
		elsif ($new =~ s/\A\n//)
		{
			$row++;
			push @wrong, 'scrolled' if $row >= $rows;
		}
		elsif ($new =~ s/\A([\x20-\x7e\x80-\xff]+)//)
		{
			$screen[$row] //= '';
			$screen[$row] .= ' ' x ($column - length($screen[$row])) if length($screen[$row]) < $column;
			substr($screen[$row], $column, length $1, $1);
			$column += length $1;
			push @wrong, "wrapped: $1" if $column >= $columns;
		}
		else
		{
			push @wrong, sprintf('sent \\x%02X', ord($new));
			substr($new, 0, 1, '');
		}
		$read += $before - length $new;
	}
	return join("\n", map { ($_ // '') =~ s/ +$//r } @screen) =~ s/\n*\z/\n/r;
}

# Starts watch on a terminal of that size, in a shell that says its name and, at
# the end, how watch has ended and what the terminal is like.
sub watch
{
	my ($height, $width, @args) = @_;
	my ($in, $out) = ('', '');
	my $run = IPC::Run::start(
		[ 'sh', '-c', 'stty rows ' . $height . ' cols ' . $width . '; tty; exec pg_leader watch "$@"', 'sh', '-d', $node->connstr('postgres'), @args ],
		'<pty<', \$in, '>pty>', \$out, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));

	wait_until(sub { $run->pump_nb; $out =~ /\n/ }, 'a terminal');
	my ($tty) = $out =~ m{(/dev/\S+)} or die "no terminal: $out";
	reset_terminal($height, $width);
	return { run => $run, out => \$out, in => \$in, tty => $tty, pid => $run->{KIDS}[0]{PID} };
}

sub screen_is
{
	my ($w, $regexp, $what) = @_;
	my $screen = '';

	wait_until(sub { $w->{run}->pump_nb if $w->{run}->pumpable; ($screen = show(${ $w->{out} })) =~ $regexp }, sub { "$what: $regexp on:\n$screen" });
	is("@wrong", '', $what);
	return $screen;
}

sub resize
{
	my ($w, $height, $width) = @_;

	show(${ $w->{out} });
	($rows, $columns) = ($height, $width);
	# What does not fit any more is gone; the cursor stays on the terminal.
	splice(@screen, $height) if @screen > $height;
	$row = $height - 1 if $row >= $height;
	system_or_bail('stty', '-F', $w->{tty}, 'rows', $height, 'cols', $width);
	return;
}

sub modes { return scalar `stty -F $_[0]{tty} -a`; }

my $time = qr/\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?\+00/;

# --- what is shown

$one->query("SELECT leader_election.join('a', 'one')");
$two->query("SELECT leader_election.join('a', 'two')");
$node->safe_psql('postgres', "SELECT leader_election.create_election('b', lease_duration => '1 min')");
my $w = watch(12, 100);
my $shell = qr{\A/dev/\S+\n};
screen_is($w, qr/${shell}Election +State +Leader +Term +Since +Remaining +Waiting for\na +led +one +1 +$time +(?:15|14\.\d) s\nb +vacant +no candidates\n\z/, 'the present state, below what was there');
like(modes($w), qr/ -echo /, 'what is typed is not shown');
ok($cursor_hidden, 'nor is the cursor');
$one->query("SELECT leader_election.resign('a')");
screen_is($w, qr/${shell}Election .*\na +led +two +2 +$time +[\d.]+ s +resigned, one\nb +vacant +no candidates\n\z/, 'a change');
$node->safe_psql('postgres', "SELECT leader_election.request_yield('a')");
screen_is($w, qr/\na +yielding +two +2 +$time/, 'a request to yield');
like(${ $w->{out} }, qr/\e\[33myielding\e\[0m/, '... has a colour');
$two->query("SELECT leader_election.leave('a')");
screen_is($w, qr/\na +led +one +3 +$time +[\d.]+ s +\w+, two\n/, 'is followed');
$one->query("SELECT leader_election.leave('a')");
screen_is($w, qr/\na +vacant +$time +no candidates +left, one\n/, 'a vacancy, and why');
like(${ $w->{out} }, qr/\e\[1;31mvacant\e\[0m/, '... has the colour of what needs an operator');
$two->query("SELECT leader_election.alter_election('b', quorum => 2)");
$two->query("SELECT leader_election.join('b', 'two')");
screen_is($w, qr/\nb +vacant +quorum 1 of 2\n/, 'another reason, which is no event');
$two->query("SELECT leader_election.leave('b')");
$two->query("SELECT leader_election.alter_election('b', quorum => 1)");
screen_is($w, qr/\nb +vacant +no candidates\n/, 'a new one');
$two->query("SELECT leader_election.acquire('a', 'three')");
my ($lasts) = screen_is($w, qr/\na +led +three +4 +$time +1[0-4]\.\d s/, 'how long the lease lasts yet') =~ /\na +led .* ([\d.]+) s/;
wait_until(sub { $w->{run}->pump_nb; show(${ $w->{out} }) =~ /\na +led .* ([\d.]+) s/ && $1 < $lasts }, "less than $lasts s");
pass('... goes on, though nothing happens');
$two->query("SELECT leader_election.release('a', 4), leader_election.leave('a', 'three')");
screen_is($w, qr/\na +vacant +$time +no candidates +\w+, three\n/, '... and ends');
$two->query("SELECT leader_election.join('aa', 'two')");
screen_is($w, qr/${shell}Election .*\na +vacant.*\naa +led +two .*\nb +vacant +no candidates\n\z/, 'a new election, in its place');
$two->query("SELECT leader_election.leave('aa')");
screen_is($w, qr/\naa +vacant/, 'which goes');

# --- names

$two->query("SELECT leader_election.join('c', E'evil\\x1B[2J\\r\\nx\\u202E')");
screen_is($w, qr/\nc +led +evil\\x1B\[2J\\r\\nx\\xE2\\x80\\xAE +1/, 'a name that means harm');
$two->query("SELECT leader_election.leave('c')");
$two->query("SELECT leader_election.join('c', repeat('W', 200))");
screen_is($w, qr/\nc +led +W{33}  \d/, 'a long one');
$two->query("SELECT leader_election.leave('c')");
screen_is($w, qr/\nc +vacant/, 'which goes');

# --- sizes

resize($w, 12, 30);
screen_is($w, qr/\AElection .*\na +vacant.*\naa +vacant.*\nb +vacant\nc +vacant.*\n\z/, 'a narrow terminal: from the top');
resize($w, 6, 60);
screen_is($w, qr/\AElection .*\na .*\naa .*\nc .*\nand 1 more, which changed earlier\n\z/, 'a low one: what changed last');
$two->query("SELECT leader_election.join('b', 'two')");
screen_is($w, qr/\AElection .*\naa .*\nb +led +two.*\nc .*\nand 1 more, which changed earlier\n\z/, 'a change there');
resize($w, 3, 60);
screen_is($w, qr/\AElection .*\nb +led +two.*\n\z/, 'the lowest one with room');
resize($w, 2, 60);
screen_is($w, qr/\A\n\z/, 'one with no room');
resize($w, 1, 1);
screen_is($w, qr/\A\n\z/, 'one of a single character');
resize($w, 6, 1);
screen_is($w, qr/\A\n\z/, 'one column');
resize($w, 20, 100);
screen_is($w, qr/\AElection .*\na .*\naa .*\nb .*\nc .*\n\z/, 'a high one');

# --- a request to yield that came before watch, and is taken back

$node->safe_psql('postgres', "SELECT leader_election.alter_election('b', strategy => 'bully')");
$one->query("SELECT leader_election.join('b', 'one', 1)");
screen_is($w, qr/\nb +yielding +two +1 /, 'a better candidate comes');
my $late = watch(20, 100);
screen_is($late, qr/\nb +yielding +two +1 /, 'who looks later sees that, too');
$late->{run}->signal('TERM');
$late->{run}->finish;
reset_terminal(20, 100);
$one->query("SELECT leader_election.leave('b')");
screen_is($w, qr/\nb +led +two +1 /, 'the better candidate goes');

# --- a lost connection

$node->stop('fast');
screen_is($w, qr/\nc .*\nno connection: .+\n\z/, 'no connection');
$node->start;
screen_is($w, qr/\nc [^\n]*\n\z/, 'a new one');

# --- the end

kill('TSTP', $w->{pid});
wait_stopped($w->{pid});
show(${ $w->{out} });
like(modes($w), qr/ echo /, 'stopped: what is typed is shown');
wait_until(sub { $w->{run}->pump_nb; show(${ $w->{out} }); !$cursor_hidden }, 'the cursor');
kill('CONT', $w->{pid});
screen_is($w, qr/\nElection .*\na .*\naa .*\nb .*\nc .*\n\z/, 'continued: below that');
wait_until(sub { $w->{run}->pump_nb; show(${ $w->{out} }); $cursor_hidden }, 'no cursor');
like(modes($w), qr/ -echo /, 'what is typed is not shown');

# Ctrl-C, and the other signals
foreach my $signal (qw(INT TERM HUP QUIT))
{
	my $number = { INT => 2, TERM => 15, HUP => 1, QUIT => 3 }->{$signal};

	$w = watch(20, 100) unless $signal eq 'INT';
	screen_is($w, qr/\nc .*\n\z/, "before $signal");
	if ($signal eq 'INT') { ${ $w->{in} } .= "\x03"; }
	else { kill($signal, $w->{pid}); }
	my $modes = '';
	open(my $keep, '<', $w->{tty}) or die "$w->{tty}: $!";
	wait_until(sub { $w->{run}->pump_nb if $w->{run}->pumpable; show(${ $w->{out} }); !$cursor_hidden && ($modes = modes($w)) =~ / echo / }, "the terminal after $signal");
	close($keep);
	$w->{run}->finish;
	is($? & 127, $number, "$signal ends it");
}

# --- what the server says when it refuses a connection

# A role, and so its messages, may have a tab in its name, which is as wide as
# the terminal likes.
{
	my $role = "a\ttab";
	my $super = session($node, name => 'super');

	$super->query(qq(CREATE ROLE "$role" SUPERUSER LOGIN));
	$w = watch(20, 300, '-U', $role);
	screen_is($w, qr/\nc .*\n\z/, 'a role with a tab');
	$super->query(qq(ALTER ROLE "$role" NOLOGIN));
	$super->query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = E'a\\ttab'");
	screen_is($w, qr/\nno connection: .*a.*tab.*\n\z/, 'is shown without the tab, when it is refused');
	kill('TERM', $w->{pid});
	$w->{run}->finish;
}

# --- since when, which is of the history

$node->safe_psql('postgres', "UPDATE leader_election.history SET ended_at = '2001-02-03 04:05:06+00' WHERE election = 'c'");
$w = watch(20, 100);
screen_is($w, qr/\nc +vacant +2001-02-03 04:05:06\+00 /, 'since when it is vacant');
$node->safe_psql('postgres', q(INSERT INTO leader_election.history
	SELECT 'z', 1, 'two', now() - interval '1 min', now(), 'dropped', NULL, 'detached', 'app'; SELECT pg_notify('leadership_changed', '')));
screen_is($w, qr/\nz +dropped +.*dropped, two\n/, 'one that was dropped when its leader was gone');
like(${ $w->{out} }, qr/\e\[2mdropped\e\[0m/, '... is of no concern any more');

# What is no event: an election that nobody leads is dropped, or made.
$node->safe_psql('postgres', "SELECT leader_election.drop_election('c')");
screen_is($w, qr/\nc +dropped\nz /, 'one that was dropped while nobody led it');
$node->safe_psql('postgres', "SELECT leader_election.create_election('c')");
screen_is($w, qr/\nc +vacant +no candidates\nz /, '... and is made anew');
$node->safe_psql('postgres', "SELECT leader_election.create_election('y', quorum => 3)");
$two = session($node, name => 'two');
$two->query("SELECT leader_election.join('y', 'two')");
screen_is($w, qr/\ny +vacant +quorum 1 of 3\nz /, 'one that is made, and that nobody has led yet');
$two->query("SELECT leader_election.alter_election('y', quorum => 1)");
screen_is($w, qr/\ny +led +two +\d+ +$time +[\d.]+ s\nz /, '... is led');
$two->query("SELECT leader_election.leave('y')");
screen_is($w, qr/\ny +vacant +$time +no candidates +left, two\nz /, '... is left');
$node->safe_psql('postgres', "SELECT leader_election.drop_election('y')");
screen_is($w, qr/\ny +dropped\nz /, '... is dropped');
$node->safe_psql('postgres', "SELECT leader_election.create_election('y')");
screen_is($w, qr/\ny +vacant +no candidates\nz /, '... and is made anew');
kill('TERM', $w->{pid});
$w->{run}->finish;
$w = watch(20, 100);
screen_is($w, qr/\nc +vacant .*\ny +vacant .*\n\z/, 'what was dropped before watch is not shown');
kill('TERM', $w->{pid});
$w->{run}->finish;

# --- no terminal that can be drawn on, or no wish to

foreach my $how ([ undef, qr/^$time  c: vacant/m ], [ '', qr/^$time  c: vacant/m ], [ 'dumb', qr/^$time  c: vacant/m ], [ 'xterm', qr/^\{"election" : "c"/m, '--json' ], [ 'xterm', qr/^$time  c: vacant/m, '--exec', 'true' ])
{
	my ($term, $regexp, @args) = @$how;

	local $ENV{TERM} = $term // '';
	delete $ENV{TERM} unless defined $term;
	$term //= 'no TERM';
	$w = watch(20, 100, @args);
	wait_until(sub { $w->{run}->pump_nb; ${ $w->{out} } =~ $regexp }, sub { "lines: $term @args in: ${ $w->{out} }" });
	unlike(${ $w->{out} }, qr/\e/, "lines: $term @args");
	$w->{run}->signal('TERM');
	$w->{run}->finish;
}
{
	my ($in, $out) = ('', '');
	my $shell = IPC::Run::start([ 'sh', '-c', 'set -m; pg_leader watch -d "$1" & echo "pid $!."; wait', 'sh', $node->connstr('postgres') ],
		'<pty<', \$in, '>pty>', \$out, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));

	wait_until(sub { $shell->pump_nb; $out =~ /^$time  c: vacant/m && $out =~ /^pid \d+\./m }, sub { "lines: in the background, in: $out" });
	unlike($out, qr/\e/, 'lines: in the background of a terminal');
	kill('TERM', $out =~ /^pid (\d+)\./m);
	$shell->finish;
}
my $piped = start_client($node, 'watch');
wait_for_output($piped, qr/^$time  c: vacant/m);
unlike(${ $piped->[1] }, qr/\e/, 'lines: piped');
$piped->[0]->signal('TERM');
$piped->[0]->finish;

done_testing();
