# What test/run tells of a run that failed: test/failures names each check, with its
# file and line; test/machine tells how slow the machine was, and gives up on one that
# is too slow.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;

use Cwd qw(getcwd);
use IPC::Run;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

my $TOP = "$FindBin::RealBin/../..";
my $run = PostgreSQL::Test::Utils::tempdir();

sub put
{
	my ($file, $text) = @_;

	open my $out, '>', "$run/$file" or die "$file: $!";
	print $out $text;
	close $out;
	return;
}

# What a program says, and its exit code
sub said
{
	IPC::Run::run([@_], '>&' => \my $said, init => sub { chdir $run });
	return ($said, $? >> 8);
}

mkdir "$run/$_" foreach qw(log test test/t test/pgtap);

# -- The TAP tests: logs of 15, and of later versions with their times; a name of two
# lines; a wait in vain, whose report has other lines of this kind; a skip.

put('tap.out', <<'END');
test/t/001_one.pl .. ok
Test Summary Report
-------------------
test/t/002_two.pl   (Wstat: 256 (exited 1) Tests: 9 Failed: 2)
  Failed tests:  3, 5
test/t/003_three.pl (Wstat: 7424 Tests: 2 Failed: 0)
test/t/004_four.pl (Wstat: 65280 (exited 255) Tests: 0 Failed: 0)
END
put('log/regress_log_002_two', <<'END');
ok 1 - leads
not ok 3 - one leads
#   Failed test 'one leads'
#   at test/t/002_two.pl line 12.
#          got: ''
[21:48:38.674](0.001s) not ok 5 - a name with
# two lines
[21:48:38.691](0.005s) #   Failed test 'a name with
# two lines'
[21:48:38.691](0.005s) #   at test/t/Rules.pm line 345.
END
put('log/regress_log_003_three', <<'END');
[21:48:38.674](0.001s) ok 1 - leads
timed out after 300 s waiting for a renewal
== server main
2026-11-25 21:45:38.420 UTC [22859] late LOG:  statement: SELECT 1
 at /somewhere/test/t/003_three.pl line 77.
# Tests were run but no plan was declared and done_testing() was not seen.
END
put('log/regress_log_004_four', "Can't locate Nothing.pm in \@INC at test/t/004_four.pl line 3.\n");

is_deeply(
	[ said("$TOP/test/failures", $run, 'tap') ],
	[ <<'END', 0 ],
  test/t/002_two.pl:12: 'one leads' (tap)
  test/t/Rules.pm:345: 'a name with# two lines' (tap)
  test/t/003_three.pl:77: the test ended: timed out after 300 s waiting for a renewal (tap)
  test/t/004_four.pl:3: the test ended: Can't locate Nothing.pm in @INC (tap)
END
	'TAP: each failed check; else what the test died of');

# -- pg_regress and isolationtester: the first line of each test that differs

put('regress.diffs', <<'END');
diff -U3 /tmp/x/src/expected/session.out /tmp/x/src/results/session.out
--- /tmp/x/src/expected/session.out	2026-11-25 21:00:00
+++ /tmp/x/src/results/session.out	2026-11-25 21:00:01
@@ -41,7 +41,7 @@
 SELECT leader_election.join('e', 'one');
  join 
 ------
-    1
+    2
 (1 row)
 
@@ -90,3 +90,3 @@
-gone
+here
diff -U3 /tmp/x/src/expected/install.out /tmp/x/src/results/install.out
--- /tmp/x/src/expected/install.out	2026-11-25 21:00:00
+++ /tmp/x/src/results/install.out	2026-11-25 21:00:01
@@ -1,2 +1,3 @@
+WARNING:  something
 SELECT 1;
END
is_deeply(
	[ said("$TOP/test/failures", $run, 'regress', 'isolation') ],
	[ <<"END", 0 ],
  expected/session.out:44: - 1 (regress)
  expected/install.out:1: +WARNING: something (regress)
  $run/isolation.out:1: ended without a check that failed (isolation)
END
	'regress: the first line of each test that differs; a suite that did not get so far');

# -- pgTAP: a check that failed, and a file that did; a crash, and a skip that has no reason

put('test/pgtap/schema.sql', "SELECT plan(2);\nSELECT has_view('status');\nSELECT has_table('lease');\n");
put('pgtap.tap', <<'END');
test/pgtap/schema.sql .. 
ok 1 - has_view('status')
not ok 2 - has_table('lease')
# Failed test 2: "has_table('lease')"
END
put('pgtap.out', "psql:test/pgtap/schema.sql:1: ERROR:  function plan(integer) does not exist\nLINE 1: SELECT plan(2);\n");
put('log/server_log', "LOG:  all is well\nPANIC:  stuck spinlock\n");
put('crashes', "/gone/server_log:PANIC:  stuck spinlock\n");
put('unlisted', "not in the list of test/README.md: 001_one: no time (1)\n");
is_deeply(
	[ said("$TOP/test/failures", $run, 'pgtap') ],
	[ <<"END", 0 ],
  test/pgtap/schema.sql:3: has_table('lease') (pgtap)
  test/pgtap/schema.sql:1: ERROR: function plan(integer) does not exist (pgtap)
  $run/log/server_log:2: PANIC: stuck spinlock (crash)
  test/README.md:1: not in the list of test/README.md: 001_one: no time (1) (skips)
END
	'pgTAP, a crash, a skip without a reason');

# -- The machine

my $watched = "$run/machine";
my $pid = fork // die "cannot fork: $!";

exec("$TOP/test/machine", $$, $watched) if $pid == 0;
wait_until(sub { -s $watched }, 'a line about the machine');
kill('TERM', $pid);
waitpid($pid, 0);
like(
	slurp_file($watched),
	qr/^\d+ processors?, load [\d.]+; a process that computed had \d+ % of one, one that slept woke up to [\d.]+ s late\n\z/,
	'how slow the machine is');

my $machine = '2 processors, load 9.0; a process that computed had %d %% of one, one that slept woke up to %s s late';

foreach ([ 20, '0.30', 1 ], [ 4, '0.30', 0 ], [ 20, '5.10', 0 ])
{
	my ($share, $late, $code) = @$_;

	put('machine', sprintf("$machine\n", $share, $late));
	my ($said, $exit) = said("$TOP/test/machine", '--too-slow', $watched);
	is($exit, $code, "$share %, $late s: " . ($code ? 'quick enough' : 'too slow'));
	like($said, $code ? qr/^\z/ : qr/^gave up: this machine was too slow/, '... and is told so');
}

done_testing();
