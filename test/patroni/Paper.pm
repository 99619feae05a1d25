# Runs docs/patroni.md word by word: its blocks, one after the other, in one
# shell, in a folder of their own (test/t/Papers.pm has what a paper may say of
# its blocks; here there are sh and text).
#
#	open_paper($file, $folder);
#	run_blocks_until('A heading');     up to there, or undef: to the end
#	ports_of_paper();                  { port of the paper => port here }
#
# The ports of the paper are replaced by free ones, from 7260 on.

package Paper;

use strict;
use warnings;

use Exporter qw(import);
use FindBin;
use lib "$FindBin::RealBin/../t";
use IO::Handle;
use IO::Socket::INET;
use Papers;

our @EXPORT = qw(open_paper ports_of_paper run_blocks_until);

my ($name, @parts, $shell, $output, %port, $folder);

# The first six from 7260, 7266 and so on that are all free: in a cluster of
# another run, some node may be down, but etcd runs.
sub free_ports
{
	for (my $base = 7260;; $base += 6)
	{
		my @ports = $base .. $base + 5;

		return @ports
		  unless grep { !IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $_,
				Listen => 1, ReuseAddr => 1) } @ports;
	}
}

sub ports_of_paper { return \%port; }

# Starts the shell, whose output is read through a pipe. Its background processes
# are in our process group.
sub open_paper
{
	my ($file, $where) = @_;
	my $heading = '';
	my $markdown = do { local (@ARGV, $/) = ($file); <> };

	($name, $folder) = ($file =~ m{(docs/.*)}, $where);
	@port{ qw(2379 2380 5433 5434 8008 8009) } = free_ports();
	foreach my $text (split /^(?=## )/m, $markdown)
	{
		my ($heading) = $text =~ /^## (.*)/;

		push @parts, { heading => $heading // '', blocks => [ blocks_of($text) ] };
	}
	pipe my $in, $shell or die "pipe: $!";
	pipe $output, my $out or die "pipe: $!";
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		chdir $folder;
		$ENV{HOME} = $folder;
		close $_ foreach $shell, $output;
		open STDIN, '<&', $in;
		open STDOUT, '>&', $out;
		open STDERR, '>&', $out;
		exec qw(bash -eu -o pipefail) or die;
	}
	close $_ foreach $in, $out;
	$shell->autoflush(1);
	return;
}

# Runs a block in the shell: true if it succeeded; and its output. What it starts
# in the background has the shell's pipe only if it is not redirected.
sub run_sh
{
	my ($block) = @_;
	my ($text, $n) = ($block->{text}, $block->{n});
	my $said = '';

	$text =~ s/\b(\d{4})\b/$port{$1} \/\/ $1/ge;
	open my $file, '>', "$folder/block" or die "$folder/block: $!";
	print $file $text;
	close $file;
	print $shell ". '$folder/block' </dev/null\necho; echo '--end-of-block--'\n";
	while (my $line = <$output>)
	{
		return (1, $said) if $line eq "--end-of-block--\n";
		$said .= $line;
	}
	return (0, $said);
}

# Returns what was wrong, and where, as a text.
sub run_blocks_until
{
	my ($until) = @_;
	my $said;

	while (@parts && (!defined $until || $parts[0]{heading} ne $until))
	{
		my $part = shift @parts;
		my $n = 0;

		foreach my $block (@{ $part->{blocks} })
		{
			my $where = "$name, $part->{heading}, block " . ++$n;
			my $good = 1;

			return "$where: $block->{fault}" if $block->{fault};
			if ($block->{language} eq 'text')
			{
				$block->{text} =~ s/\b(\d{4})\b/$port{$1} \/\/ $1/ge;
				return "$where: printed was\n$said" if output_differs($said, $block);
			}
			else
			{
				return "$where: is in no language that is run here" if $block->{language} ne 'sh';
				($good, $said) = run_sh($block);
				return "$where failed:\n$said" unless $good;
			}
			print "ok: $where\n";
		}
	}
	return;
}

1;
