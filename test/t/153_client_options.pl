# The table of the clients' options in docs/clients.md has those of the sources, all
# of them and no others, in each language, and their defaults.

use strict;
use warnings;

use Cwd qw(abs_path);
use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

my $TOP = abs_path("$FindBin::RealBin/../..");

# A part of a source, which begins and ends with these
sub part
{
	my ($file, $begin, $end) = @_;
	my ($part) = slurp_file("$TOP/clients/$file") =~ /$begin(.*?)$end/ms;

	die "$file has no $begin ... $end" unless defined $part;
	return $part;
}

# What the sources take: their name and, of a duration, the default in ms.
sub python_options
{
	my $signature = part('python/leader_election_core.py', '^class Candidate:.*?def __init__\(self, ', '\):\n') =~ s/\*, //r;

	return map { /(\w+)(?:=([\d.]+)$)?/ ? ($1 => defined $2 ? $2 * 1000 : undef) : () } split(/,\s*/, $signature);
}

sub node_options
{
	my $typedef = part('node/leader_election.js', '@typedef \{object\} Options', '@typedef');

	return $typedef =~ /\@property \{.*?\} \[?(\w+)(?:=(\d+))?/g;
}

sub java_options
{
	my $class = part('java/src/main/java/leaderelection/LeaderElection.java', 'public static final class Options \{', '\n    \}');
	my %options;

	while ($class =~ /^\s+public (?:final |volatile )?[\w.<>]+ (\w+)(?: = ([^;]*))?;/mg)
	{
		my ($name, $default) = ($1, $2 // '');

		$options{$name} = $default =~ /ofSeconds\((\d+)\)/ ? $1 * 1000 : undef;
	}
	return %options;
}

sub go_options
{
	my $struct = part('go/leaderelection.go', 'type Options struct \{\n', '\n\}') =~ s,//.*,,gr;
	my $new = slurp_file("$TOP/clients/go/leaderelection.go");
	my %options = map { $_ => undef } map { split(/, /, $_) } $struct =~ /^\t((?:[A-Z]\w*, )*[A-Z]\w*) \S/mg;

	$options{$1} = ($2 // 1) * 1000 while $new =~ /opts\.(\w+) = or\(opts\.\w+, (?:(\d+)\*)?time\.Second\)/g;
	return %options;
}

my %sources = ('Python' => { python_options() }, 'Node.js' => { node_options() },
	'Java' => { java_options() }, 'Go' => { go_options() });

# The table: what is in backquotes, and is no argument of a constructor or method,
# is an option.
my ($header, $rows) = slurp_file("$TOP/docs/clients.md") =~ /^### Options\n.*?^(\| option .*?)\n\|[-|]+\n(.*?)\n\n/ms;
BAIL_OUT('docs/clients.md has no table of options') unless $rows;

my @columns = split(/\s*\|\s*/, $header);
my %table;
foreach my $row (split(/\n/, $rows))
{
	my @cells = split(/\s*\|\s*/, $row);
	my ($seconds) = $cells[2] =~ /^(\d+) s\b/;    # cell 0 is before the first bar

	foreach my $i (3 .. 6)
	{
		$table{ $columns[$i] }{$_} = $seconds foreach $cells[$i] =~ /`(\w+)`/g;
	}
}

foreach my $language (sort keys %sources)
{
	my ($source, $table) = ($sources{$language}, $table{$language});

	cmp_ok(scalar(keys %$source), '>=', 10, "$language: the sources have options");
	is_deeply([ sort keys %$table ], [ sort keys %$source ], "$language: the table has the options of the sources");
	is($table->{$_} * 1000, $source->{$_}, "$language: the default of $_")
	  foreach grep { defined $source->{$_} && defined $table->{$_} } sort keys %$source;
	is(join(' ', grep { defined $source->{$_} && !defined $table->{$_} } sort keys %$source),
		'', "$language: the table has the defaults of the sources");
}
done_testing();
