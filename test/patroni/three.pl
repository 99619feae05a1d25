# Three nodes, their faults, and what is found. See README.md.
#
#	perl three.pl --dir DIR --minutes N --seed N [--mode false]
#
# DIR is a folder of its own, with the programs of ../clients and ../chaos. To be
# called in name spaces for processes and networks of its own.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../clients", "$FindBin::RealBin/../chaos";

use Checker;
use Getopt::Long;
use Hosts;
use Judge;
use List::Util qw(max sum0 uniq);
use Members;
use Nodes;
use Split;
use Subjects;
use Three;
use Time::HiRes qw(time);
use Trouble;

my $SETTLES = 240;           # seconds until all is well again: after that, it never will be
my $HELPED_AFTER = 60;       # seconds, until an operator does
my $BETWEEN_CALMS = 150;     # seconds of faults

my %option = (minutes => 10, seed => 1);

GetOptions(\%option, 'dir=s', 'minutes=f', 'seed=i', 'mode=s') or die;

my $folder = "$option{dir}/three";
my ($failures, $settled, $setting, @settling, @made_anew) = (0, 1);
my $version = version();

$| = 1;
$programs = $option{dir};
srand $option{seed};
mkdir $folder;
mkdir "$folder/out";

sub version
{
	my $said = $ENV{PATRONI} ? qx(/usr/bin/python3 "$ENV{PATRONI}/patroni.py" --version) : qx(patroni --version);

	return $said =~ /(\d\S*)/ ? $1 : die "no Patroni\n";
}

# What differs between the seeds
sub settings
{
	my ($seed) = @_;
	my $new = $version =~ /^(\d+)/ && $1 >= 4;

	return {
		mode => $option{mode} // ($new ? 'quorum' : 'true'),
		dcs => $new ? 'etcd3' : 'etcd',
		failsafe => $seed % 2 ? 'false' : 'true',
		timeout => $seed % 3 ? 60 : 5,
		preload => $seed % 4 != 0,
	};
}

sub failed
{
	my ($text) = @_;

	$failures++;
	note('failure', $text =~ s/\n/ /gr);
	print "FAILURE $text\n";
	return;
}

# A server says all the time who leads there, if it takes itself for a primary.
sub watch
{
	my ($n) = @_;
	my $sql = "SELECT 'seen', $n, extract(epoch FROM statement_timestamp()), extract(epoch FROM clock_timestamp()),
		election, term, leader FROM leader_election.lease
		WHERE leader_election.is_leader(election, term) AND NOT pg_is_in_recovery() \\watch 0.25" =~ s/\s+/ /gr;
	my $host = address_of("node$n");

	start_program("seen.$n", 'sh', '-c', qq(while :; do echo "\$0" | psql -XqAt -d "host=$host user=postgres dbname=postgres connect_timeout=2" 2>/dev/null; sleep 0.3; done), $sql);
	return;
}

# How long that took, or undef
sub wait_for
{
	my ($what, $code) = @_;
	my $start = now_ns();
	my $next = 0;

	await(sub {
			return 0 if now_ns() < $next;
			look_after();
			look_after_members() if @processes;
			my $good = $code->();
			$next = now_ns() + 5e8;
			return $good;
		}, $SETTLES) // do { failed("not within $SETTLES s: $what"); return };
	return (now_ns() - $start) / 1e9;
}

sub settle
{
	my ($when) = @_;
	my ($cluster, $members, @unled);
	my $next = now_ns() + $HELPED_AFTER * 1e9;

	note('calm');
	$cluster = wait_for("three nodes that follow a primary, $when", sub {
			return 1 if settled_cluster();
			return 0 if now_ns() < $next;
			$next = now_ns() + $HELPED_AFTER * 1e9;
			push @made_anew, make_anew();
			return 0;
		}) // return 0;
	$members = wait_for("a leader of each election, $when",
		sub { my $n = primary() // return 0; @unled = unled($n); return !@unled });
	if (!defined $members)
	{
		print "  without a leader: @unled\n", query(primary() // 1, 'SELECT to_jsonb(s) FROM leader_election.status s') // '', "\n";
		return 0;
	}
	note('calm', 'over');
	push @settling, [ $cluster, $members ];
	printf "  all is well: the cluster after %.1f s, the elections %.1f s later\n", $cluster, $members;
	return 1;
}

sub slurp
{
	my ($path) = @_;

	open my $file, '<', $path or return '';
	local $/ = undef;
	return scalar(<$file>) // '';
}

# What the members have said
sub write_events
{
	foreach my $process (@processes)
	{
		write_file("out/said.$process->{candidate}", join '', map { join(' ', map { $_ // '' } @$_) . "\n" } @{ $process->{events} });
	}
	return;
}

# As ../chaos/chaos.pl does
sub collect
{
	my ($n) = @_;
	my $history = query($n, 'SELECT election, term, leader, kind, acquired_at, ended_at, reason,
		extract(epoch FROM acquired_at), extract(epoch FROM ended_at) FROM leader_election.history ORDER BY 1, 2');
	my $writes = join "\n", map { query($n, "SELECT '$_', term, candidate, id,
		extract(epoch FROM pg_xact_commit_timestamp(xmin))::numeric(20, 6) FROM chaos.\"w_$_\"") // () } @LOGGED;

	write_file('out/history', ($history // '') . "\n");
	write_file('out/writes', "$writes\n");
	return (query($n, history_sql()) // '', query($n, journal_sql()) // '');
}

sub report
{
	my ($n, $history, $journal) = @_;
	my @all = judge("$folder/out", \@processes, $history, $journal);
	my @found = grep { $setting->{mode} ne 'false' || !$OF_A_SPLIT{ $_->[0] } } @all;
	my $figures = figures();
	my $switched = () = slurp("$folder/out/switchovers.log") =~ /Successfully switched over/g;
	my $terms = scalar(() = $history =~ /^\w/mg);
	my (%kinds, %split);

	$split{ $_->[0] }++ foreach grep { $setting->{mode} eq 'false' && $OF_A_SPLIT{ $_->[0] } } @all;
	foreach my $kind (sort keys %split)
	{
		my ($first) = map { $_->[1] } grep { $_->[0] eq $kind } @all;

		print "of a split, $kind: $split{$kind}, first $first\n";
	}
	printf "of a split, longest that two clients worked at once: %.1f s\n",
	  max(overlaps(map { $_->[0] eq 'overlap' ? $_->[1] : () } @all)) if $split{overlap};
	$kinds{ $_->[0] }++ foreach @found;
	foreach my $kind (sort keys %kinds)
	{
		my @texts = map { $_->[1] } grep { $_->[0] eq $kind } @found;

		print "VIOLATION, $kind ($kinds{$kind}):\n", map { "  $_\n" } grep { defined } @texts[ 0 .. 14 ];
	}
	print "Counts:\n";
	printf "  %-44s %8.6g\n", $_, $figures->{$_} foreach sort keys %$figures;
	print "Faults:\n";
	printf "  %-44s %8d\n", $_, $done{$_} foreach sort keys %done;
	my $timelines = query($n, "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int") // 0;
	printf "figures: faults=%d;asked=%d;switchovers=%d;timelines=%d;terms=%d;fenced=%d;calms=%d;anew=%d;cluster=%.1f;elections=%.1f;violations=%d;kinds=%s\n",
	  sum0(values %done) - ($done{switchover} // 0), $done{switchover} // 0, $switched, $timelines, $terms,
	  scalar(() = $journal =~ /^\w/mg) + ($figures->{'fenced rows'} // 0), scalar @settling, scalar @made_anew,
	  max(0, map { $_->[0] } @settling), max(0, map { $_->[1] } @settling),
	  @found + $failures, join(' / ', sort(keys %kinds), $failures ? 'the run itself' : ());
	$failures += @found;
	return;
}

$setting = settings($option{seed});
my $label = join ', ', map { "$_ $setting->{$_}" } sort keys %$setting;

print "Patroni $version, seed $option{seed}: $label\n";
open_hosts((map { "node$_" } @NODES), 'pooler', 'east', 'west');
make_cluster($folder, $setting);
note('start', 'seed', $option{seed}, 'profile', 'patroni', 'lease', $LEASE * 1000);
note('epoch', int(time() * 1e6) - now_us());
note('candidate', 'l1', 'pg_leader detached');
start('patroni', 1);
$is_down{"patroni $_"} = 1 foreach 2 .. 4;
defined wait_for('the first primary', sub { is(1, 'primary') }) or exit 1;
%is_down = ();
create_elections(1) // do { failed('no elections, see query.log'); exit 1 };
defined wait_for('a cluster', \&settled_cluster) or exit 1;
start_members($folder, $option{seed});
watch($_) foreach @VOTERS;
$settled = settle('at first');
for (my ($stint, $stints) = (1, max(1, int($option{minutes} * 60 / $BETWEEN_CALMS))); $settled && $stint <= $stints; $stint++)
{
	trouble($option{minutes} * 60 / $stints, $stint % 2 ? 14 : 40);
	heal();
	$settled = settle('after faults');
}
failed("a client ended by itself: $_") foreach @ENDED_THEMSELVES;
end_members();
write_events();
my $n = await(\&primary, 30);
note('end');
if (defined $n) { report($n, collect($n)); }
else { failed('no primary at the end'); print "figures: violations=1;kinds=the run itself\n"; }
printf "%s: %d failures, Patroni %s, %s, seed %d\n", $failures ? 'FAILED' : 'passed', $failures, $version,
  (qx("$ENV{PG_CONFIG}" --version) =~ s/\s*\n//r), $option{seed};
exit($failures ? 1 : 0);
