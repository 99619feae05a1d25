# Clients and servers of different versions: a client may only use what the first
# version of the extension had. Looks for each leader_election.NAME(...) in the
# files of clients, and compares it with the signatures.
#
#	perl names.pl sql/leader_election--1.0.sql FOLDER
#
# (Or sql/portable.sql.) Prints what does not fit; exit code 1 then.

use strict;
use warnings;

use File::Find;

my ($script, $folder) = @ARGV;
my (%signatures, @wrong);
my $calls = 0;

sub slurp
{
	my ($path) = @_;

	open my $file, '<', $path or die "$path: $!";
	local $/ = undef;
	return <$file>;
}

# Splits at commas that are not within parentheses.
sub arguments
{
	my ($text) = @_;
	my @list = ('');
	my $depth = 0;

	return unless $text =~ /\S/;
	foreach my $c (split //, $text)
	{
		$depth += $c eq '(' ? 1 : $c eq ')' ? -1 : 0;
		push(@list, ''), next if $c eq ',' && $depth == 0;
		$list[-1] .= $c;
	}
	return map { s/^\s+|\s+$//gr } @list;
}

# Names of the arguments, and how many have no default
sub note_signature
{
	my ($name, $text) = @_;
	my @names = map { /^(?:INOUT\s+|OUT\s+)?(\w+)/ } arguments($text);
	my $needed = grep { !/\bDEFAULT\b|^OUT\b/ } arguments($text);

	push @{ $signatures{$name} }, { names => \@names, needed => $needed };
	return;
}

sub fits
{
	my ($signature, @arguments) = @_;
	my @positional = grep { !/=>/ } @arguments;
	my %known = map { $_ => 1 } @{ $signature->{names} };

	return @positional <= @{ $signature->{names} }
	  && @arguments >= $signature->{needed}
	  && !grep { /^(\w+)\s*=>/ && !$known{$1} } @arguments;
}

sub check_file
{
	my ($path) = @_;
	my $text = slurp($path);

	# Literals that are put together
	$text =~ s/"\s*\+?\s*\n\s*\+?\s*"//g;
	# (The list may be made up by the program, after its beginning.)
	while ($text =~ /leader_election\.(\w+)\((?:((?:[^()]|\([^()]*\))*)\))?/g)
	{
		my ($name, $arguments) = ($1, $2);

		$calls++;
		push @wrong, "$path: there is no function $name" and next
		  unless $signatures{$name};
		push @wrong, "$path: $name($arguments) fits no signature"
		  unless !defined $arguments
		  || grep { fits($_, arguments($arguments)) } @{ $signatures{$name} };
	}
	return;
}

my $sql = slurp($script);

note_signature($1, $2)
  while $sql =~ /CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE) leader_election\.(\w+)\(((?:[^()]|\([^()]*\))*)\)/g;
die "no signatures in $script" unless %signatures;
find({ no_chdir => 1, wanted => sub {
	check_file($_) if -f && m{\.(?:py|js|java|go)$} && !m{node_modules|test};
} }, $folder);
die "no calls in $folder\n" unless $calls;
print "FAILURE $_\n" foreach @wrong;
printf "%d calls of %d functions are in %s\n", $calls, scalar keys %signatures, $script
  unless @wrong;
exit(@wrong ? 1 : 0);
