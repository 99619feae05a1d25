# The files of figures of runs that take hours, and are ended and begun again: a line
# for each run, with commas between and the names of the columns first. No value has
# a comma or a quote.

package Figures;

use strict;
use warnings;

use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename;

our @EXPORT = qw(append commit content read_figures run_limited);

my $git = "git -C '" . dirname(abs_path(__FILE__)) . "/..'";

# Runs a command that does not end by itself, maybe: after so many seconds it is asked
# to. Returns what it has said; $? is its status. No terminal reaches it, since timeout
# makes a process group of its own: what ends us is passed on, and we end when it has
# cleaned up.
sub run_limited
{
	my ($seconds, @command) = @_;
	my $ended;

	my $pid = open(my $out, '-|', 'sh', '-c', 'exec "$@" 2>&1', 'sh', 'timeout', '-k', 60, $seconds, @command)
	  or die "timeout: $!\n";
	local @SIG{qw(HUP INT TERM)} = (sub { $ended = 1; kill('TERM', $pid) }) x 3;
	my $text = do { local $/; <$out> } // '';

	close $out;
	exit 1 if $ended;
	return $text;
}

# The names of the columns, and each line as a hash by these names
sub read_figures
{
	my ($figures) = @_;

	open my $file, '<', $figures or die "$figures: $!\n";
	my ($head, @lines) = <$file>;
	chomp($head, @lines);
	my @columns = split /,/, $head;
	my @rows;

	foreach (@lines)
	{
		my %row;

		@row{@columns} = split /,/, $_, -1;
		push @rows, \%row;
	}
	return (\@columns, @rows);
}

# In one write, since others may do the same
sub append
{
	my ($figures, $row) = @_;
	my ($columns) = read_figures($figures);

	open my $file, '>>', $figures or die "$figures: $!\n";
	syswrite $file, join(',', map { ($row->{$_} // '') =~ tr/,"\n/; /r } @$columns) . "\n"
	  or die "$figures: $!\n";
	return;
}

# The last commit that changed these files; with a + where they are changed since
sub commit
{
	my $files = join ' ', map { "'$_'" } @_;
	my $commit = `$git log -1 --format=%h --abbrev=10 -- $files 2>/dev/null` || "unknown\n";

	chomp $commit;
	$commit .= '+' if `$git status --porcelain -- $files 2>/dev/null`;
	return $commit;
}

# What is in these files, whatever a rebase calls their commit; with a + where they
# are changed since it
sub content
{
	my (@files) = @_;
	my $files = join ' ', map { "'$_'" } @files;
	my $id = `$git ls-tree -r HEAD -- $files 2>/dev/null | git hash-object --stdin`;

	return substr($id, 0, 10) . (commit(@files) =~ /\+/ ? '+' : '');
}

1;
