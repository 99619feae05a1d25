# Makes a line of figures.csv of what a run has printed, and the table of README.md of
# all lines.
#
#	perl figures.pl [REPORT]

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";
use Figures;

my $figures = "$FindBin::RealBin/figures.csv";
my $readme = "$FindBin::RealBin/README.md";
my @SOURCES = qw(src sql/leader_election--1.0.sql leader_election.control);
my @RUN = ('test/day', 'test/chaos', ':!test/day/figures.csv', ':!test/day/README.md', ':!test/chaos/figures.csv', ':!test/chaos/README.md');
my @SUMS = map { ("$_.server", "$_.client") } qw(memory files sockets);

sub slurp
{
	my ($path) = @_;

	open my $in, '<', $path or die "$path: $!\n";
	local $/ = undef;
	return scalar <$in>;
}

sub add
{
	my ($text) = @_;
	my %count = $text =~ /^  (\S.*?)\s+(\S+)$/mg;
	my %sum = map { $_->[0] => [ @$_[ 1, 2 ] ] } map { [split] } $text =~ /^[ !] (sum\.\S+ +\S+ +\S+) /mg;
	my ($version, $seed, $minutes) = $text =~ /^PostgreSQL (\S+)(?: \(.*\))?, seed (\d+), (\S+) min/m;
	my ($violations, $kinds) = $text =~ /^Violations: (\d+)(?: \((.*)\))?$/m;
	my ($grown, $names) = $text =~ /^Grown: (\d+)(?: \((.*)\))?$/m;
	my ($wraparound) = $text =~ /^Vacuums to prevent wraparound, .*?: (.*)/m;
	my $vacuums = 0;

	$vacuums += $_ foreach ($wraparound // '') =~ / (\d+)/g;
	append($figures, {
		commit => commit(@SOURCES), content => content(@SOURCES), day => commit(@RUN),
		version => $version, seed => $seed, minutes => $minutes,
		clients => $text =~ /^Clients: (\d+)/m ? $1 : '',
		faults => $count{'in all'}, terms => $count{'terms that somebody led in'}, 'fenced rows' => $count{'fenced rows'},
		'wraparound vacuums' => $vacuums, dumps => $text =~ /^Dumps: (\d+)/m ? $1 : '',
		(map { ("$_ at first" => $sum{"sum.$_"}[0], "$_ at last" => $sum{"sum.$_"}[1]) } @SUMS),
		violations => $violations // 1, kinds => ($kinds // (defined $violations ? '' : 'the run itself')) =~ tr/,/;/r,
		grown => $grown // 1, names => ($names // '') =~ tr/,/;/r,
	});
	return;
}

sub write_table
{
	my (undef, @rows) = read_figures($figures);
	my $text = slurp($readme);
	my @columns = ('version', 'seed', 'minutes', 'faults', 'terms', 'fenced rows', 'wraparound vacuums', 'dumps');
	my $table = '| ' . join(' | ', @columns, 'memory of the server, MB', '... of the clients', 'files', '...', 'sockets', '...', 'violations', 'grown') . " |\n"
	  . '|---' x (@columns + 8) . "|\n";

	foreach my $row (@rows)
	{
		my @sums = map {
			my ($unit, $name) = (/memory/ ? 1024 : 1, $_);
			join ' to ', map { sprintf '%.0f', ($row->{"$name $_"} || 0) / $unit } 'at first', 'at last';
		} @SUMS;

		$table .= '| ' . join(' | ', @$row{@columns}, @sums, @$row{qw(violations grown)}) . " |\n";
	}
	$text =~ s/(^\| version \| seed .*\n(?:\|.*\n)*)|\z/$table/m;
	open my $file, '>', $readme or die "$readme: $!\n";
	print $file $text;
	close $file or die "$readme: $!\n";
	return;
}

add(slurp($ARGV[0])) if @ARGV;
write_table();
