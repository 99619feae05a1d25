# The judge of a day: is what is taken up at the end what it was at the beginning?
#
#	perl verdict.pl [--leaks] FOLDER
#
# Two phases without faults are compared, with the same load: the medians of each
# quantity (means of what there is per minute). Its bound is a factor and an amount, in @BOUNDS, with the reason. Tables and
# indexes do not shrink: of these, the highest of the second half is compared with that
# of the first half. And each process that lives long is compared with itself.
#
# With --leaks, there has to be a complaint of each kind, and the exit code is 0 then.

use strict;
use warnings;

use Getopt::Long;
use List::Util qw(max min sum0);

my $leaks;
GetOptions('leaks' => \$leaks) && @ARGV == 1 or die "usage: see the head of $0\n";
my ($out) = @ARGV;
my @complaints;

# [what, factor, amount, why]: the first that fits. Memory in kB.
my @BOUNDS = (
	[ qr/^memory\.server\.postmaster/, 1.2, 512, 'it has a child or a few more' ],
	[ qr/^memory\.(?:most\.)?server\.leader_election_worker/, 1, 3248, 'a first look, and 6 kB for each of 200 elections: Check/Growth.pm' ],
	[ qr/^memory\.most\.server\.(?:autovacuum|parallel)/, 1, 65536, 'short lives: maintenance_work_mem' ],
	[ qr/^memory\.server\.(?:autovacuum_worker|parallel)/, 1, 16384, 'short lives: of one large table or of a small one' ],
	[ qr/^memory\.(?:most\.)?server\.walsender/, 1.5, 16384, 'changes of transactions that have not ended, which wait there' ],
	[ qr/^memory\.most\.server\.client_backend/, 1.5, 8192, 'who dumps or looks at all elections caches all tables' ],
	[ qr/^memory\.(?:most\.)?server\./, 1.25, 1024, 'caches of what was looked at' ],
	[ qr/^memory\.(?:most\.)?client\.java/, 1, 40960, 'collected when the heap of 48 MB is full, not before' ],
	[ qr/^memory\.(?:most\.)?client\.node/, 1, 32768, 'collected when the heap of 64 MB is full, not before' ],
	[ qr/^memory\.(?:most\.)?client\.go/, 1.5, 8192, 'its heap doubles before it is collected' ],
	[ qr/^memory\.(?:most\.)?client\.(?:python|asyncpg)/, 1.15, 6144, 'arenas that are not given back' ],
	[ qr/^memory\.(?:most\.)?client\.(?:pg_leader|\w*listener)/, 1.25, 4096, 'notifications of all elections, which wait there while it is stopped' ],
	[ qr/^memory\.(?:most\.)?client\./, 1.25, 1024, 'buffers of one answer' ],
	[ qr/^sum\.memory/, 1.15, 65536, 'the sum of these, most of which do not change together' ],
	[ qr/^(?:files|sockets)\.client\.(?:python|asyncpg|node|java|go)/, 1, 16, 'pools of at most 2 connections for each detached leadership' ],
	[ qr/^files\.server\.(?:checkpointer|background_writer|io_worker|autovacuum_worker)/, 1, 1000, 'max_files_per_process: files of all tables, by and by' ],
	[ qr/^(?:files|sockets)\.server\./, 1.3, 24, 'a backend keeps files of tables open that it has touched' ],
	[ qr/^(?:files|sockets)\.client\./, 1, 4, 'a connection that is ending while the next one begins' ],
	[ qr/^sum\.(?:files|sockets)/, 1.15, 60, 'the sum of these' ],
	[ qr/^n\./, 1.1, 8, 'one more that is ending while the next one begins' ],
	[ qr/^dead\./, 2, 3000, 'autovacuum comes each 5 s, to a table with 50 dead rows and a fifth of what it has' ],
	[ qr/^locks\./, 1.2, 80, 'what statements of that moment hold' ],
	[ qr/^notify\./, 1, 8, 'pages that the slowest listener has not read yet' ],
	[ qr/^slots\./, 1, 65536, 'up to the last checkpoint, of at most 128 MB' ],
	[ qr/^prepared/, 1, 0, 'there are none' ],
	[ qr/^log\.change/, 1.5, 30, 'two lines for a term at most' ],
	[ qr/^log\.other/, 1.6, 2000, 'a dozen lines of each vacuum' ],
	[ qr/^log\.vacuum/, 1.6, 150, 'each table when its ids are old: some at once' ],
	[ qr/^log\./, 1.5, 30, 'leases that a loaded machine loses' ],
	[ qr/^wal\./, 1.5, 20, 'whole pages after a checkpoint' ],
	[ qr/^elections\.vacant/, 1.5, 20, 'one in ten, while a loaded machine is late' ],
	[ qr/^elections\.all/, 1, 0, 'none is made' ],
	[ qr/^candidates/, 1.1, 10, 'those of a client that has just come again' ],
	[ qr/^catalog/, 1.5, 8192, 'rows of catalogs that died while a snapshot was old' ],
	[ qr{^folder\.base}, 1.02, 12, 'forks of tables' ],
	[ qr{^folder\.pg_commit_ts}, 1, 10, 'of 26,000 ids each, until all tables are frozen' ],
	[ qr{^folder\.pg_logical}, 1, 500, 'one each 15 s and more, for each that decodes; a checkpoint removes them' ],
	[ qr{^folder\.pg_wal}, 1, 16, 'of 16 MB, up to max_wal_size and a checkpoint' ],
	[ qr{^folder\.}, 1, 4, 'segments, which checkpoints and vacuum remove' ],
	[ qr/^(?:age|database)\b/, 0, 220_000, 'autovacuum_freeze_max_age, and a minute of ids until it comes' ],
	[ qr/^multiage/, 0, 40_000, 'the same for row locks' ],
);

# [kind of a process, kB, why]: so much more than it was at first, in one life
my @LIVES = (
	[ qr/^server\.leader_election_worker/, 3248, 'see above' ],
	[ qr/^server\.walsender/, 65536, 'logical_decoding_work_mem' ],
	[ qr/^server\.autovacuum_worker|^server\.parallel/, 65536, 'maintenance_work_mem' ],
	[ qr/^server\.client_backend/, 8192, 'caches of all tables and plans that it uses' ],
	[ qr/^server\./, 4096, 'caches' ],
	[ qr/^client\.java/, 49152, 'its heap' ],
	[ qr/^client\.node/, 65536, 'its heap' ],
	[ qr/^client\.go/, 16384, 'its heap' ],
	[ qr/^client\.(?:python|asyncpg)/, 12288, 'arenas' ],
	[ qr/^client\.(?:pg_leader|\w*listener)/, 4096, 'notifications, see above: libpq keeps its largest buffer' ],
	[ qr/^client\./, 1024, 'buffers of an answer' ],
);
# A machine that is loaded by others loses leases. What comes of a change of leaders may be
# more where there are more of these.
my $OF_TERMS = qr/^(?:log|wal|dead)\./;
my $PER_MINUTE = qr/^(?:log|wal|terms)\./;	# of which there is much at a time: the mean, and not the median

my $LOGIN_MS = 2000;	# on an idle machine it is 20
my $LIFE_US = 60_000_000;	# such a life counts, after ...
my $YOUTH_US = 30_000_000;	# ... this
my $FILES_OF_LIFE = 150;	# files that a process may open in its life: a backend, of each table that it touches

# Peaks of the second half: [what, factor, kB, why]
my @PEAKS = (
	[ qr/^size\.history/, 2, 4096, 'old terms go once an hour, or when a worker starts' ],
	[ qr/^size\./, 1.5, 1024, 'snapshots of the same age, under the same load' ],
);

# What has to be named where all of it leaks
my @LEAKS = (qr/^life: server\.client_backend/, qr/^life: client\.session.*kB/, qr/^life: client\.session.*files/,
	qr/^locks\./, qr/^(?:size|dead)\./, qr/^(?:age|database)/, qr/^prepared/, qr/^notify\./, qr/^log\./, qr/^wal\./, qr{^folder\.base},
	qr/^slots\./, qr/^elections\.vacant/, qr/^sum\.sockets|^sockets/, qr/^subscriber/);

sub lines
{
	my ($path) = @_;

	open my $file, '<', "$out/$path" or return;
	my @lines = <$file>;
	chomp @lines;
	return @lines;
}

sub median
{
	my @sorted = sort { $a <=> $b } @_;

	return $sorted[ $#sorted / 2 ];
}

sub mean { return sum0(@_) / @_; }

sub complain { push @complaints, $_[0]; return; }

# --- the two phases

my (%samples, @faults);	# {phase}{key} = [values]; [time, key, value]

foreach (lines('samples'))
{
	my ($time, $phase, $key, $value) = split / /;

	push @{ $samples{$phase}{$key} }, $value;
	push @faults, [ $time, $key, $value ] if $key =~ /^size\./ && $phase =~ /^(?:begin|faults|settle|end)$/;
}

sub compare_phases
{
	my %keys = map { $_ => 1 } map { keys %{ $samples{$_} // {} } } qw(begin end);

	my ($before, $after) = map { mean(@{ $samples{$_}{'terms.begun'} // [0] }) } qw(begin end);
	my $changes = max(1, $after / max($before, 1));

	printf "Terms begun per minute: %d at first, %d at last; load of the machine: %s, %s\n", $before, $after,
	  map { median(@{ $samples{$_}{'machine.load'} // [0] }) } qw(begin end);
	print "Quantity: beginning, end, bound\n";
	foreach my $key (sort keys %keys)
	{
		my ($begin, $end) = map { $key =~ $PER_MINUTE ? mean(@{ $samples{$_}{$key} // [0] }) : median(@{ $samples{$_}{$key} // [0] }) } qw(begin end);
		my ($bound) = grep { $key =~ $_->[0] } @BOUNDS;

		next if $key =~ /^(?:size|rows|machine|terms)\./;
		if (!$bound)
		{
			complain("$key: no bound");
			next;
		}
		my $scale = $key =~ /$OF_TERMS/ ? $changes : 1;
		my $most = $bound->[1] * $scale * $begin + $bound->[2];
		my $grown = $end > $most;

		printf "%s %-44s %12.6g %12.6g %12.6g%s\n", $grown ? '!' : ' ', $key, $begin, $end, $most, $grown ? "  ($bound->[3])" : '';
		complain(sprintf '%s: %.6g at first, %.6g at last', $key, $begin, $end) if $grown;
	}
	foreach my $phase (qw(begin end))
	{
		my $login = median(@{ $samples{$phase}{'machine.login_ms'} // [0] });

		complain("the run itself: the machine is too loaded to compare anything: a login takes $login ms in the phase $phase") if $login > $LOGIN_MS;
		my $n = @{ $samples{$phase}{'elections.all'} // [] };

		complain("the run itself: $n samples of the phase $phase") if $n < 3;
	}
	return;
}

# --- tables and indexes

sub compare_peaks
{
	my ($first, $last) = ((min(map { $_->[0] } @faults) // 0), (max(map { $_->[0] } @faults) // 0));
	my $middle = ($first + $last) / 2;
	my (%before, %after);

	foreach (@faults)
	{
		my ($time, $key, $value) = @$_;
		my $half = $time < $middle ? \%before : \%after;

		$half->{$key} = max($half->{$key} // 0, $value);
	}
	print "Highest, kB: first half, second half, bound; median of the phases\n";
	foreach my $key (sort keys %after)
	{
		my ($bound) = grep { $key =~ $_->[0] } @PEAKS;
		my $before = $before{$key};

		# An index that somebody builds anew has another name meanwhile.
		next if $key =~ /_cc(?:new|old)\d*$/ || $key =~ /pg_toast|pg_temp/;
		my $most = $bound->[1] * ($before // 0) + $bound->[2];
		my $grown = $after{$key} > $most;

		printf "%s %-44s %12d %12d %12d %8d %8d%s\n", $grown ? '!' : ' ', $key, $before // 0, $after{$key}, $most,
		  (map { median(@{ $samples{$_}{$key} // [0] }) } qw(begin end)), $grown ? "  ($bound->[3])" : '';
		complain("$key: at most " . ($before // 0) . " kB in the first half, $after{$key} kB in the second") if $grown;
	}
	return;
}

# --- lives

sub compare_lives
{
	my (%life, %longest, %most);

	foreach (lines('lives'))
	{
		my ($time, $phase, $pid, $kind, $memory, $files) = split / /;

		push @{ $life{"$pid $kind"} }, [ $time, $memory, $files ] unless $phase eq 'ending';
	}
	foreach my $who (sort keys %life)
	{
		my ($kind) = $who =~ / (\S+)/;
		my @all = @{ $life{$who} };
		my @old = grep { $_->[0] >= $all[0][0] + $YOUTH_US } @all;
		my ($bound) = grep { $kind =~ $_->[0] } @LIVES or next;

		next if @old < 6 || $old[-1][0] - $old[0][0] < $LIFE_US;
		my $seconds = ($old[-1][0] - $all[0][0]) / 1e6;
		my ($memory, $files) = map { my $i = $_; median(map { $_->[$i] } @old[ -3 .. -1 ]) - median(map { $_->[$i] } @old[ 0 .. 2 ]) } 1, 2;

		$longest{$kind} = max($longest{$kind} // 0, $seconds);
		$most{$kind} = max($most{$kind} // -1e9, $memory);
		complain(sprintf 'life: %s: %d kB more in %d s', $kind, $memory, $seconds) if $memory > $bound->[1];
		complain(sprintf 'life: %s: %d files more in %d s', $kind, $files, $seconds)
		  if $files > ($kind =~ /^server\.(?:checkpointer|background_writer|io_worker|autovacuum_worker)/ ? 1000 : $kind =~ /^server/ ? $FILES_OF_LIFE : $kind =~ /(?:python|asyncpg|node|java|go)$/ ? 40 : 8);
	}
	print "Lives: the longest, s; the most that one has grown, kB; bound\n";
	foreach my $kind (sort keys %longest)
	{
		my ($bound) = grep { $kind =~ $_->[0] } @LIVES;

		printf "  %-44s %8d %8d %8d\n", $kind, $longest{$kind}, $most{$kind}, $bound->[1];
	}
	return;
}

# --- what has to have happened

sub check_vacuums
{
	my (%wraparound, %aggressive);

	foreach (lines('server1.log'))
	{
		/automatic (aggressive )?vacuum (to prevent wraparound )?of table "postgres\.leader_election\.(\w+)"/ or next;
		$wraparound{$3}++ if $2;
		$aggressive{$3}++ if $1;
	}
	print "Vacuums to prevent wraparound, of these tables: " . join(', ', map { "$_ $wraparound{$_}" } sort keys %wraparound) . "\n";
	print "Aggressive vacuums, with these: " . join(', ', map { "$_ $aggressive{$_}" } sort keys %aggressive) . "\n";
	complain('the run itself: no vacuum to prevent wraparound of a table of the extension') unless %wraparound;
	return sum0(values %wraparound);
}

sub check_beside
{
	my %count;
	my ($last_dump, $begun, $restored, %equal, $clients, $faults);
	my $longest = 0;

	foreach (lines('events'))
	{
		my ($time, $kind, @rest) = split / /;

		$count{$kind}++;
		$clients = $rest[0] if $kind eq 'clients';
		$last_dump //= $time if $kind eq 'phase';
		if ($kind eq 'dumped' || $kind eq 'dumps')
		{
			$longest = max($longest, $time - ($last_dump // $time));
			$last_dump = $time;
		}
		if ($kind eq 'restored')
		{
			$restored = 1;
			complain("dump: restored @rest") if "@rest" ne 'well 200';
		}
		if ($kind eq 'subscriber')
		{
			$equal{ $rest[0] } = 1;
			complain("subscriber: @rest") if $rest[1] ne 'equal';
		}
	}
	printf "Dumps: %d, that failed while a fault was there: %d, longest time between two: %d s\n", $count{dumped} // 0, $count{'dump failed'} // 0, $longest / 1e6;
	printf "Clients: %d\n", $clients // 0;
	complain('dump: none for ' . int($longest / 1e6) . ' s') if $longest > 600e6;
	complain('dump: none') unless $count{dumped};
	complain('the run itself: no dump was restored') unless $restored;
	complain('the run itself: the subscriber was not compared') unless $equal{orders} && $equal{leases};
	complain('the run itself: less than a hundred clients') if ($clients // 0) < 100;
	return;
}

compare_phases();
compare_peaks();
compare_lives();
check_vacuums();
check_beside();

if ($leaks)
{
	my @missed = grep { my $leak = $_; !grep { $_ =~ $leak } @complaints } @LEAKS;

	print "$_\n" foreach @complaints;
	print "NOT NAMED: $_\n" foreach @missed;
	printf "Leaks named: %d of %d\n", @LEAKS - @missed, scalar @LEAKS;
	exit(@missed ? 1 : 0);
}
print "GROWN: $_\n" foreach @complaints;
printf "Grown: %d%s\n", scalar @complaints, @complaints ? ' (' . join('; ', map { s/:.*//r } @complaints[ 0 .. min($#complaints, 9) ]) . ')' : '';
exit(@complaints ? 1 : 0);
