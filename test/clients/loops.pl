# Prints the loop for a language in docs/loops.md: its program there, but for the last
# paragraph, which starts it.
#
#	perl loops.pl LANGUAGE

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../t";
use Papers;

my ($language) = @ARGV;

open my $file, '<', "$FindBin::RealBin/../../docs/loops.md" or die "docs/loops.md: $!\n";
local $/ = undef;
my ($loop) = map { $_->{text} } grep { $_->{language} eq $language && !$_->{hidden} } blocks_of(<$file>);

die "docs/loops.md has no program in $language\n" unless $loop;
print $loop =~ s/\n\n(?:(?!\n\n).)*\z/\n/sr;
