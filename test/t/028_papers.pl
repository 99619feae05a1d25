# Every example in the papers, run as it stands there: the fenced blocks of the
# Markdown files, one after the other. SQL, shell, Python and Java run, YAML, INI
# and JSON are parsed, and text is what the block before it has to print.
# Papers.pm has what a paper may say of its blocks, PaperRunner.pm how they are
# run. Links from paper to paper lead to a file, and a heading, that is there;
# pictures are as their sources say. Seeded bugs apply.

use strict;
use warnings;

use Cwd qw(abs_path);
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PaperRunner;
use Papers;
use PostgreSQL::Test::Utils;
use Test::More;

my $TOP = abs_path("$FindBin::RealBin/../..");

# All Markdown files, but for the list of changes, what is in languages that
# ../clients/papers.pl has installed, and what ../patroni/run runs
my @PAPERS = grep { !m{^\Q$TOP\E/(CHANGELOG\.md|docs/(clients|frameworks|loops|patroni)\.md|clients/)} }
  map { glob("$TOP/$_") } qw(*.md docs/*.md */README.md */*/README.md);

plan skip_all => missing_for_papers() if missing_for_papers();

paper_ok($_) foreach @PAPERS;
is_deeply([ broken_links($_, slurp_file($_)) ], [], 'docs/patroni.md: links')
  foreach "$TOP/docs/patroni.md";

is(system("$TOP/docs/draw", '--check'), 0, 'pictures');

# The reference has each routine, with its arguments, and each setting.
my $reference = slurp_file("$TOP/docs/reference.md");
my $script = join('', map { slurp_file($_) } glob("$TOP/sql/*.sql"));
my $settings = slurp_file("$TOP/src/leader_election.c");
my @missing;

while ($script =~ /^CREATE (?:FUNCTION|PROCEDURE) leader_election\.(\w+)\((.*?)\)\n/gms)
{
	my ($name, $args) = ($1, $2);

	next if $name =~ /^_/ || $script =~ /^DROP FUNCTION leader_election\.$name\(/m;
	$args =~ s/\s+/ /g;
	$args =~ s/ DEFAULT [^,]+//g;
	$args =~ s/(?:^|,) ?OUT .*//;
	$args =~ s/,.*/, .../ if $name =~ /^alter_/;
	$args = "'election'" if $name eq 'only_leader';
	push @missing, "$name($args)" if index($reference, "$name($args)") < 0;
}
push @missing, grep { index($reference, "`$_`") < 0 } $settings =~ /Variable\("([^"]+)"/g;
is(join("\n", @missing), '', 'what the reference lacks');

# The map in docs/architecture.md has a line for each folder, with its files.
my $map = slurp_file("$TOP/docs/architecture.md");
foreach my $folder (map { s,^\Q$TOP\E/,,r } glob("$TOP/src/*/"))
{
	my ($line) = $map =~ /^\| `\Q$folder\E` \|(.*)/m;
	my @files = map { m{([^/]+)\.c$} } glob("$TOP/$folder*.c");

	is(join(' ', grep { ($line // '') !~ /`\Q$_\E`/ } @files), '', "$folder: files that the map lacks");
}

# --- What this test has to find

my $BAD = <<'END_OF_PAPER';
A wrong column, an unexpected error, an expected one that does not come:
```sql
SELECT wrong FROM leader_election.status;
```
<!-- run: fails 25001 -->
```sql
SELECT leader_election.join('e', 'one');
```
Output that differs, and output that does not:
```sql
SELECT leader_election.term('e') AS term, now(), 7 AS n;
```
```text
 term |              now              | n
    2 | 2026-11-21 04:10:44.174793+00 | 7
```
<!-- run: varies 1234 -->
```text
 term |              now              | n
------+-------------------------------+---
 1234 | 2026-11-21 04:10:44.174793+00 | 7
(1 row)
```
Languages:
```
SELECT 1;
```
```cobol
STOP RUN.
```

    indented

Programs:
```python
term = unknown
```
```sh
false
```
```java
public class Bad { public static void main(String[] args) { int i = ""; } }
```
```crontab
0 3 * * /usr/local/bin/nightly-report
```
```yaml
a: [
```
```ini
no section
```
```ini
[Service]
ExecStart=/usr/local/bin/pg_leader run -e e --unknown -- true
```
```json
{"a": }
```
Nothing can be hidden, and what is only checked is checked:
<!-- run: skip -->
```sh
true
```
```sh
make test
psql -c 'SELECT 1'
```
```sh
make no-such-target
```
```sh
test/run --no-such-option
```
```sh
docker compose -f docker/compose.yaml kill no-such-service
```
```sh
test/run regress session
docker compose -f docker/compose.yaml kill pod-1
sudo make install
```
END_OF_PAPER
my @WRONG = (
	[ sql => qr/42703/ ],
	[ sql => qr/00000 instead of 25001/ ],
	[ sql => undef ],
	[ text => qr/printed was/ ],
	[ text => undef ],
	[ '' => qr/without a language/ ],
	[ cobol => qr/"cobol"/ ],
	[ '' => qr/indented/ ],
	[ python => qr/NameError/ ],
	[ sh => qr/1 instead of 0/ ],
	[ java => qr/incompatible types/ ],
	[ crontab => qr/no line of crontab/ ],
	[ yaml => qr/while parsing/ ],
	[ ini => qr/MissingSectionHeader/ ],
	[ ini => qr/does not know --unknown/ ],
	[ json => qr/./ ],
	[ sh => qr/"skip" means nothing/ ],
	[ sh => qr/is not run/ ],
	[ sh => qr/No rule to make target/ ],
	[ sh => qr/does not know --no-such-option/ ],
	[ sh => qr/there is no no-such-service/ ],
	[ sh => undef ]);
my @found = run_paper($BAD);

is(scalar @found, scalar @WRONG, 'a bad paper: all its blocks');
foreach my $i (0 .. $#WRONG)
{
	my ($language, $expected) = @{ $WRONG[$i] };
	my (undef, $found_language, $wrong) = @{ $found[$i] // [ 0, 'none', undef ] };

	is($found_language, $language, "a bad paper: block $i");
	if ($expected) { like($wrong // '', $expected, '... is found'); }
	else { is($wrong, undef, '... is good'); }
}

is_deeply(
	[ broken_links($PAPERS[0], '[a](no-such-file.md) [b](#no-such-heading) [c](Makefile)') ],
	[ 'no-such-file.md', '#no-such-heading' ],
	'links that lead nowhere');

# The seeded bugs are in the sources as they are.
foreach my $bug (glob "$TOP/test/*/bugs/*.patch")
{
	my ($name) = $bug =~ m{(test/.*)};

	is(system('git', '-C', $TOP, 'apply', '--check', $bug), 0, "$name applies");
}

done_testing();
