# What the clients' packages say of themselves is the same for all: their name, and the
# version and the licence of META.json. Go's go.mod has no place for the latter two
# but a comment.
#
#	perl metadata.pl TOP
#
# Prints what differs; exit code 1 then.

use strict;
use warnings;

my ($top) = @ARGV;
my $NAME = 'leader-election-postgresql';
my %patterns = (
	'clients/python/pyproject.toml' =>
	  [ qr/^name = "(.*?)"/m, qr/^version = "(.*?)"/m, qr/^license = \{text = "(.*?)"/m ],
	'clients/node/package.json' =>
	  [ qr/"name": "(.*?)"/, qr/"version": "(.*?)"/, qr/"license": "(.*?)"/ ],
	'clients/java/pom.xml' => [ qr{<artifactId>(.*?)</artifactId>}, qr{<version>(.*?)</version>},
		qr{<license>\s*<name>(.*?) License</name>} ],
	'clients/go/go.mod' =>
	  [ qr{^module (?:\S*/)?(\S+)}m, qr/^\/\/ Version ([\d.]+)/m, qr/^\/\/ .*, (\w+) License/m ],
	'META.json' => [ undef, qr/"version": "(.*?)"/, qr/"license": "(.*?)"/ ]);

sub slurp
{
	my ($path) = @_;

	open my $file, '<', $path or die "$path: $!";
	local $/ = undef;
	return <$file>;
}

# The name, the version and the licence that a file has
sub told
{
	my ($file) = @_;
	my $text = slurp("$top/$file");

	return map { !defined $_ ? $NAME : $text =~ $_ ? lc $1 : 'nothing' } @{ $patterns{$file} };
}

my @right = told('META.json');
my @wrong;

foreach my $file (sort keys %patterns)
{
	my @told = told($file);

	push @wrong, "$file: $told[$_], not $right[$_]" foreach grep { $told[$_] ne $right[$_] } 0 .. 2;
}
print "FAILURE $_\n" foreach @wrong;
print "all packages are called $NAME, version $right[1]\n" unless @wrong;
exit(@wrong ? 1 : 0);
