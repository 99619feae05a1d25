# pg_leader history --html: the page's rows and bars are what the history says;
# names are text, whatever they are; a file is replaced as a whole, or not at
# all. How the page looks in a browser is test/browser/run's.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use IPC::Run;
use LeaderElection;
use List::Util qw(max min);
use PgLeader;
use PostgreSQL::Test::Utils;
use Test::More;

$ENV{LC_ALL} = 'C.UTF-8';
my $node = new_server(config => 'client_min_messages = warning');
my $top = PostgreSQL::Test::Utils::tempdir();

# A term, so many seconds before the test
my $now = $node->safe_psql('postgres', 'SELECT now()');

sub insert
{
	my ($election, $term, $leader, $began, $ended, $reason, $detail) = @_;

	my $text = sub { defined $_[0] ? "E'" . ($_[0] =~ s/'/''/gr) . "'" : 'NULL' };

	$node->safe_psql('postgres',
		"INSERT INTO leader_election.history SELECT " . join(', ', $text->($election), $term, $text->($leader),
			"timestamptz '$now' - interval '$began s'", defined $ended ? "timestamptz '$now' - interval '$ended s'" : 'NULL', $text->($reason), $text->($detail),
			"'detached', 'app'"));
	return;
}

# Every element and attribute that a page may have
my %ELEMENTS = map { $_ => 1 } qw(html head meta title style body h1 h2 p b bdi span div ul li figure figcaption
  table thead tbody tr th td svg defs pattern g rect line path text);
my %ATTRIBUTES = map { $_ => 1 } qw(lang charset http-equiv content name class width height role aria-label aria-hidden tabindex scope
  x y x1 x2 y1 y2 rx d fill id transform overflow patternUnits text-anchor data-term);

sub unescaped { return $_[0] =~ s/&#x([0-9A-F]+);/chr(hex($1))/ger; }

# What the page says, or undef and why it is none: {head}, {rows}, {bars}, {vacant}
sub parse
{
	my ($page) = @_;
	my %said = (rows => [], bars => [], vacant => [], epochs => 0, page => $page);
	my @open;
	my ($cell, $svg);

	return (undef, 'not ASCII') if $page =~ /[^\n\x20-\x7e]/;
	return (undef, 'no doctype') unless $page =~ s/\A<!DOCTYPE html>\n//;
	$page =~ s{<style>\n([^<]*)</style>}{}s or return (undef, 'no style');
	while ($page =~ m{\G(?:<(/?)([a-z][a-z0-9]*)((?: [a-zA-Z0-9:-]+="[^"<>]*")*)(/?)>|([^<]+))}gc)
	{
		my ($ends, $element, $attributes, $is_empty, $text) = ($1, $2, $3, $4, $5);

		if (defined $text)
		{
			return (undef, "bare & in $text") if $text =~ /&(?!#x[0-9A-F]+;)/ || $text =~ />/;
			$cell->{text} .= $text if $cell;
			next;
		}
		return (undef, "element $element") unless $ELEMENTS{$element};
		my %is = map { /^(\S+)="(.*)"$/s ? ($1 => $2) : () } $attributes =~ /([a-zA-Z0-9:-]+="[^"]*")/g;
		foreach (keys %is)
		{
			return (undef, "attribute $_") unless $ATTRIBUTES{$_};
			return (undef, "address in $_") if $is{$_} =~ /url\((?!#[a-z]+\))|:\/\/|javascript/i;
		}
		if ($ends)
		{
			my $last = pop @open;

			return (undef, "</$element> ends <$last>") unless $last eq $element;
			if ($element =~ /^t[dh]$/ && "@open" =~ /tbody/)
			{
				push @{ $said{rows}[-1] }, unescaped($cell->{text});
				undef $cell;
			}
			next;
		}
		push @{ $said{rows} }, [] if $element eq 'tr' && "@open" =~ /tbody/;
		$cell = { text => '' } if $element =~ /^t[dh]$/ && "@open" =~ /tbody/;
		$svg = [ $is{class}, $is{'data-term'} ] if $element eq 'g';
		$said{epochs}++ if $element eq 'g' && $is{class} eq 'epoch';
		if ($element eq 'svg' && $svg && $svg->[0] ne 'epoch')
		{
			my ($from, $width) = map { $is{$_} =~ /^([0-9.]+)%$/ ? $1 : die } qw(x width);

			push @{ $said{ $svg->[0] eq 'vacant' ? 'vacant' : 'bars' } }, [ $from, $from + $width, @$svg ];
			undef $svg;
		}
		push @open, $element unless $is_empty || $element eq 'meta';
	}
	return (undef, 'a stray < at ' . substr($page, pos($page) // 0, 40)) if (pos($page) // 0) < length($page);
	return (undef, "not ended: @open") if @open;
	return (\%said, '');
}

sub page
{
	my (@args) = @_;
	my ($code, $out, $err) = ask($node, 'history', '--html', '-', @args);
	my ($said, $wrong) = parse($out);

	is("$code $wrong", '0 ', "a page: @args");
	return $said;
}

# The rows as they should be: those of history as text, and of SQL
sub expected
{
	my ($election) = @_;
	my @times = map { [ split(/\|/, $_, -1) ] } split(/\n/, $node->safe_psql('postgres', sprintf(q(
		SELECT to_char(acquired_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS'), to_char(ended_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS')
		FROM leader_election.history WHERE election = %s ORDER BY term), "E'" . ($election =~ s/'/''/gr) . "'")));
	my @terms = map { [ split(/\t/, $_, -1) ] } split(/\n/, scalar ask($node, 'history', '-e', $election));

	return [ map { join('|', @$_[0 .. 2], @{ shift @times }, $_->[5] eq '' ? 'leads' : $_->[5], $_->[6]) } @terms ];
}

# ... and as the page has them, without how long they lasted
sub rows
{
	my ($said) = @_;

	return [ map { my @r = @$_; splice(@r, -3, 1); utf8::encode($_) foreach @r; join('|', @r) } @{ $said->{rows} } ];
}

# --- rows and bars

insert('e', 1, 'one', 1000, 800, 'resigned', 'hold');
insert('e', 2, 'two', 800, 600, 'expired', undef);
insert('e', 3, 'one', 500, 400, 'session ended', undef);
insert('e', 4, 'one', 400, 400, 'session reset', undef);
insert('e', 5, 'two', 300, 200, 'failover', undef);
insert('e', 911000000000001, 'two', 200, 150, 'transferred', 'one');
insert('e', 911000000000002, 'one', 150, undef, undef, undef);
my $said = page('-e', 'e');
is_deeply([ map { s/ new epoch//r } @{ rows($said) } ], expected('e'), 'rows are those of history');
is(scalar(grep { /new epoch/ } @{ rows($said) }), 1, 'one is the first of a new epoch');
is($said->{epochs}, 1, '... in the picture, too');
is(join(' ', map { "$_->[2]/$_->[3]" } @{ $said->{bars} }),
	'term given/1 term lost/2 term lost/3 term lost/4 term failover/5 term given/911000000000001 term leads/911000000000002', 'bars: a look for each reason');
my @bars = @{ $said->{bars} };
my $scale = ($bars[1][1] - $bars[0][0]) / 400;
is(sprintf('%.2f', $bars[0][0]), '0.00', 'the first bar begins at the left');
is(sprintf('%.2f', $bars[-1][1]), '100.00', 'what goes on ends at the right');
cmp_ok(abs($bars[$_->[0]][0] - (1000 - $_->[1]) * $scale), '<', 0.05, "place of bar $_->[0]") foreach [ 1, 800 ], [ 2, 500 ], [ 4, 300 ], [ 6, 150 ];
cmp_ok($bars[3][1] - $bars[3][0], '>=', 0.19, 'a short term can be seen');
is(join(' ', map { sprintf('%.1f-%.1f', $_->[0] / $scale, $_->[1] / $scale) } @{ $said->{vacant} }) =~ s/\.0//gr,
	join(' ', map { sprintf('%.1f-%.1f', @$_) } [ 400, 500 ], [ 600, 700 ]) =~ s/\.0//gr, 'vacancies');
like($said->{page}, qr/Times are UTC/, 'times are UTC');
like($said->{page}, qr/http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"/, 'a policy');
is(join(' ', map { $_->[0] } @{ page('-e', 'e', '--since', '350 s')->{rows} }) =~ s/ new epoch//r, '5 911000000000001 911000000000002', 'since');

# All elections: also one that is vacant, and one that was dropped
insert('gone', 1, 'x', 500, 300, 'dropped', undef);
insert('vacant', 1, 'x', 500, 300, 'left', undef);
$said = page();
is(join(' ', map { "$_->[0]/$_->[1]" } @{ $said->{rows} }) =~ s/ new epoch//r,
	'e/1 e/2 e/3 e/4 e/5 e/911000000000001 e/911000000000002 gone/1 vacant/1', 'rows of all elections');
is(scalar(@{ $said->{vacant} }), 3, 'a vacancy that goes on, and none after an election was dropped');
is(sprintf('%.1f', $said->{vacant}[-1][1]), '100.0', 'until now');
like($said->{page}, qr/vacant for 5 min/, 'says so');
like($said->{page}, qr/dropped 5 min/, '... and so');

is_deeply(page('-e', 'none')->{rows}, [], 'no terms');

# What is led comes first; each leader has a chip, by which it is found again
insert('z led', 1, 'three', 60, undef, undef, undef);
insert('z led', 2, 'two', 90, 60, 'left', undef);
$node->safe_psql('postgres', "SELECT leader_election.create_election(e) FROM unnest('{never,<i>never</i>,vacant}'::text[]) e");
$said = page();
is(join(' ', map { "$_->[0]" } @{ $said->{rows} }) =~ s/(\b[\w ]+?)(?: \1)+\b/$1/gr, 'e z led gone vacant', 'what is led comes first');
my $list = join("\n", $said->{page} =~ m{<ul class="leaders">(.*?)</ul>}s);
is(join(', ', map { s/<[^>]*>//gr } $list =~ m{<li>(.*?)</li>}g),
	'1one 4 terms, leads 1 now, 2two 4 terms, 3three 1 term, leads 1 now, 4x 2 terms', 'a chip for each leader');
my %chip;
while ($said->{page} =~ m{<g class="term[^>]*><title>(\w+)\n.*?</g>}gs)
{
	my ($leader, $bar) = ($1, $&);

	$chip{$leader}{$1} = 1 while $bar =~ m{ text-anchor="middle">(\d+)</text>}g;
	$chip{$leader}{$1} = 1 while $bar =~ m{fill="(hsl[^"]*)"}g;
}
is(join(', ', map { "$_: " . join(' ', sort keys %{ $chip{$_} }) } sort keys %chip) =~ s/hsl\(/(/gr,
	'one: 1 (205,55%,var(--chip)), three: 3 (120,55%,var(--chip)), two: 2 (342,55%,var(--chip)), x: 4 (257,55%,var(--chip))', '... in the lanes, too');
like($said->{page}, qr{Nobody led, as far as the page goes back: <bdi>&#x3C;i&#x3E;never&#x3C;/i&#x3E;</bdi>, <bdi>never</bdi>\.}, 'elections that nobody led');
like(page('-e', 'never')->{page}, qr{goes back: <bdi>never</bdi>\.}, '... alone');
like(page('--since', '10 s')->{page}, qr{goes back: .*<bdi>vacant</bdi>\.}, '... or not in that time');
unlike(page('-e', 'e')->{page}, qr/Nobody led/, '... and not, if it was led');
like($said->{page}, qr{<p class="key">Each bar is a term; its colour says how it ended:.* leads now<.* given up<.* lost<.* failover<.* nobody led<}s, 'what the colours mean');
$node->safe_psql('postgres', "DELETE FROM leader_election.history WHERE election = 'z led'");

# --- colours that can be told apart (WCAG 2.2: of text 4.5, of other things 3)

# Red, green and blue of a colour of the style, from 0 to 1
sub rgb
{
	my ($colour) = @_;

	return map { hex($_) * 17 / 255 } $1, $2, $3 if $colour =~ /^#(.)(.)(.)$/;
	return map { hex($_) / 255 } $1, $2, $3 if $colour =~ /^#(..)(..)(..)$/;
	my ($hue, $saturation, $light) = $colour =~ /^hsl\((\d+),(\d+)%,(\d+)%\)$/ or die $colour;
	my $range = $saturation / 100 * min($light, 100 - $light) / 100;
	return map { $light / 100 - $range * max(-1, min($_ - 3, 9 - $_, 1)) }
	  map { ($_ + $hue / 30) - 12 * int(($_ + $hue / 30) / 12) } 0, 8, 4;
}

sub luminance
{
	my ($r, $g, $b) = map { $_ <= 0.04045 ? $_ / 12.92 : (($_ + 0.055) / 1.055)**2.4 } rgb($_[0]);

	return 0.2126 * $r + 0.7152 * $g + 0.0722 * $b;
}

sub contrast
{
	my ($dark, $light) = sort { $a <=> $b } map { luminance($_) } @_;

	return ($light + 0.05) / ($dark + 0.05);
}

is(sprintf('%.2f %.2f %.2f', contrast('#fff', '#000000'), contrast('hsl(60,100%,50%)', '#ffff00'), contrast('#777777', '#fff')),
	'21.00 1.00 4.48', 'contrasts are computed rightly');
my @TINTS = qw(leads given lost failover dropped);
my %light = $said->{page} =~ /:root\{color-scheme:light dark;([^}]*)/ ? $1 =~ /--(\w+):([^;]+)/g : ();
my %dark = $said->{page} =~ /prefers-color-scheme:dark\)\{:root\{([^}]*)/ ? $1 =~ /--(\w+):([^;]+)/g : ();
foreach my $paper ([ 'light', %light ], [ 'dark', %dark ])
{
	my ($name, %colour) = @$paper;

	cmp_ok(min(map { contrast($colour{ink}, $colour{$_}) } 'page', @TINTS), '>=', 4.5, "$name: text on paper and in bars");
	cmp_ok(min(map { contrast($colour{$_}, $colour{page}) } 'quiet', 'failover2'), '>=', 4.5, "$name: quiet text");
	my @chips = map { "hsl($_,55%,$colour{chip})" } 0 .. 359;
	cmp_ok(min(map { contrast($_, $colour{number}) } @chips), '>=', 4.5, "$name: numbers on chips of all hues");
	foreach my $ground ('page', @TINTS)
	{
		cmp_ok(min(map { contrast($_, $colour{$ground}) } @chips), '>=', 3, "$name: chips of all hues on $ground");
	}
}

# --- names that are long, wide, high or blank

sub texts { return map { unescaped($_) } $_[0]{page} =~ m{<text class="name"[^>]*>([^<]*)</text>}g; }

# In each bar there is room for some columns.
insert('wide', 2000 - $_->[1], $_->[0], $_->[1], $_->[1] - 100, 'left', undef)
  foreach [ 'w' x 90, 1000 ], [ '\u6F22' x 30, 800 ], [ '\u6F22x', 600 ], [ 'x' . '\u6F22' x 30, 400 ], [ 'e\u0301' x 25, 200 ];
my ($narrow, $wide, $short, $odd, $marked) = texts(page('-e', 'wide'));
my $columns = length($narrow);
like($narrow, qr/^w{3,}\x{2026}$/, 'a long name is cut');
like($wide, qr/^\x{6F22}+\x{2026}$/, 'one of wide letters, without a gap');
cmp_ok(abs(2 * length($wide) - 1 - $columns), '<=', 1, '... counts two columns for each');
is($short, "\x{6F22}x", 'one that fits');
like($odd, qr/^x\x{6F22}+\x{2026}$/, 'an odd one');
like($marked, qr/^(?:e\x{301})+\x{2026}$/, 'marks stay with their letters');
is(length($marked), 2 * $columns - 1, '... and take no room');
insert($_, 1, $_, 100, 50, 'left', $_) foreach 'blank', 'blank ', ' two  blanks', 'in the middle', '\u00A0', 'x\u3000';
$said = page();
is(join('|', map { unescaped($_) } grep { /blank|middle|x3000|xA0/ } $said->{page} =~ m{<figcaption><b><bdi>(.*?)</bdi></b>}g),
	qq(" two  blanks"|blank|"blank "|in the middle|"x\x{3000}"|"\xA0"), 'blanks at the ends of a name are seen');
like($said->{page}, qr/bdi\{[^}]*white-space:pre-wrap.*^text\{[^}]*white-space:pre/ms, '... and how many there are');
like($said->{page}, qr/bdi\{[^}]*overflow:clip/, 'a name is not higher than its line');
like(page('-e', 'blank ')->{page}, qr{<title>Who led: &#x22;blank &#x22;</title>.*<h1>Who led <bdi>&#x22;blank &#x22;</bdi></h1>}s, 'the heading, too');
$node->safe_psql('postgres', "DELETE FROM leader_election.history WHERE election NOT IN ('e', 'gone', 'vacant')");

# --- names that mean harm

my %names = (
	'</script><script>alert(1)</script>' => '</script><script>alert(1)</script>',
	'"><img src=x onerror=alert(1)>' => '"><img src=x onerror=alert(1)>',
	"' onload='alert(1)" => "' onload='alert(1)",
	'</style></title><!--' => '</style></title><!--',
	'&lt;b&gt; &amp; &#x3c;' => '&lt;b&gt; &amp; &#x3c;',
	'a\u202Eb\u2066c\u200Bd' => 'a\xE2\x80\xAEb\xE2\x81\xA6c\xE2\x80\x8Bd',
	'e\tf\ng\u0001' => 'e\tf\ng\x01',
	'\u05D0\u05D1 \U0001F600' => "\xD7\x90\xD7\x91 \xF0\x9F\x98\x80",
	'W' x 200 => 'W' x 200);
my $term = 0;

foreach my $name (sort keys %names)
{
	insert('evil', ++$term, $name, 900 - $term, 899 - $term, 'left', $name);
	insert($name, 1, 'x', 10, 5, 'left', undef);
}
foreach my $locale ('C', 'C.UTF-8')
{
	local $ENV{LC_ALL} = $locale;

	$said = page('-e', 'evil');
	is_deeply([ map { my $l = $_->[1]; utf8::encode($l); $l } @{ $said->{rows} } ], [ map { $names{$_} } sort keys %names ], "$locale: leaders");
	is_deeply(rows($said), expected('evil'), "$locale: rows");
}
$said = page();
my %elections = map { my $e = $_->[0]; utf8::encode($e); $e => 1 } @{ $said->{rows} };
ok($elections{$_}, "election $_") foreach sort values %names;
like(page('-e', $_)->{page}, qr/Who led/, "alone: $_") foreach grep { !/\\/ } sort keys %names;
ok(!defined +(parse("<!DOCTYPE html>\n<style>\n</style>$_"))[0], "found: $_") foreach '<script>x</script>', '<p onload="x"></p>', '<p>&lt;</p>', '<b>', 'a < b', '<p id="http://x"></p>';

# What only the extension writes is text, too.
$node->safe_psql('postgres', q(INSERT INTO leader_election.history SELECT 'kind', 1, 'x', now(), now(), '</b>', NULL, '<b>&"', 'app'));
is(page('-e', 'kind')->{rows}[0][2], '<b>&"', 'a kind that is not known');

# A database whose name is one of these
$node->safe_psql('postgres', 'CREATE DATABASE "<b>"');
$node->safe_psql('<b>', 'CREATE EXTENSION leader_election');
like(scalar ask($node->connstr('<b>'), 'history', '--html', '-'), qr/Database <bdi>&#x3C;b&#x3E;<\/bdi>/, 'the name of a database');

# --- more terms than a page shows

$node->safe_psql('postgres', q(INSERT INTO leader_election.history SELECT 'many', i, 'x',
	now() - (3001 - i) * interval '1 s', now() - (3000 - i) * interval '1 s', 'left', NULL, 'detached', 'app' FROM generate_series(1, 2500) i));
$said = page('-e', 'many');
is(scalar(@{ $said->{rows} }) . " $said->{rows}[0][0] $said->{rows}[-1][0]", '2000 501 2500', 'the newest terms are shown');
like($said->{page}, qr/There are 2500 terms. Shown are the 2000 that ended last/, 'says so');
is(scalar(@{ $said->{vacant} }), 1, 'no vacancy where terms are left out, but one at the end');
is(sprintf('%.1f', $said->{bars}[1][0]), '0.0', 'the picture begins when the first of them ended');

# --- the file

sub files { opendir(my $d, $top) or die; return join(' ', sort grep { !/^\.\.?$/ } readdir($d)); }

sub write_html
{
	my ($file, $before) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run([ 'sh', '-c', ($before // ':') . '; exec pg_leader history -d "$1" -e many --html "$2"', 'sh', $node->connstr('postgres'), $file ], '<', \undef, '>', \$out, '2>', \$err);
	return (($? & 127) ? 128 + ($? & 127) : $? >> 8, $err);
}

is((write_html("$top/page.html", 'umask 027'))[0], 0, 'a new file');
is(sprintf('%o', (stat("$top/page.html"))[2] & 0777), '640', 'as umask says');
my ($parsed, $wrong) = parse(slurp_file("$top/page.html"));
is($wrong, '', 'is a page');
append_to_file("$top/old.html", 'old');
chmod(0604, "$top/old.html");
symlink('old.html', "$top/link.html");
is((write_html("$top/link.html"))[0], 0, 'a symbolic link');
ok(-l "$top/link.html", 'stays one');
is((parse(slurp_file("$top/old.html")))[1], '', 'its file is replaced');
is(sprintf('%o', (stat("$top/old.html"))[2] & 0777), '604', '... and keeps its mode');

my $before = files();
my $old = slurp_file("$top/old.html");
my ($code, $err) = write_html("$top/old.html", 'ulimit -f 8');
is($code, 125, 'the page is too large for the disk');
like($err, qr/could not write ".*old.html": File too large/, 'says so');
is(slurp_file("$top/old.html"), $old, 'the old one is there');
($code, $err) = write_html("$top/new.html", 'ulimit -f 8');
is($code, 125, '... for a new file');
mkdir("$top/closed", 0500);
($code, $err) = write_html("$top/closed/page.html");
is($code, 125, 'a folder that cannot be written to');
like($err, qr/could not write ".*page.html": Permission denied/, 'says so');
chmod(0400, "$top/old.html");
is((write_html("$top/old.html"))[0], 125, 'a file that cannot be written to');
is((write_html("$top/nowhere/page.html"))[0], 125, 'a folder that is not there');
is((write_html($top))[0], 125, 'a folder');
is((write_html('/dev/full'))[0], 125, 'a device that is full');
is((write_html('-', 'exec >/dev/full'))[0], 125, 'standard output that is full');
is((write_html('/dev/null'))[0], 0, 'a device');
ok(-c '/dev/null', 'is still one');
is(files(), join(' ', sort(split(' ', $before), 'closed')), 'nothing is left');

# --- more leaders than chips, and more elections that nobody led than are named

$node->safe_psql('postgres', q{
	INSERT INTO leader_election.history SELECT 'crowd', i, 'leader ' || i, now() - interval '2 h', now() - interval '1 h',
		'resigned', NULL, 'detached', 'app' FROM generate_series(1, 63) i;
	SELECT count(leader_election.create_election('never ' || i)) FROM generate_series(1, 101) i});
$said = page('-e', 'crowd');
is(scalar(@{ $said->{rows} }), 63, 'a crowd: all terms are in the table');
like($said->{page}, qr{<li class="quiet">and 3 more</li>\n</ul>}, '... 60 leaders have chips');
my ($never) = page()->{page} =~ m{<p class="never">(.*?)</p>}s;
is(scalar(() = $never =~ /<bdi>/g), 100, 'so many elections that nobody led are named');
like($never, qr/, and more\.\z/, '... and more');

# --- the command line

foreach my $wrong ([ 'exclude each other', '-e', 'e', '--html', '-', '--json' ], [ 'has no name', '--html', '' ], ['no election is named'])
{
	my ($says, @args) = @$wrong;
	my ($code, undef, $err) = ask($node, 'history', @args);

	is($code, 125, "wrong usage: @args");
	like($err, qr/$says/, 'says why');
}

done_testing();
