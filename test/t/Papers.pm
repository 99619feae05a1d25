# The fenced blocks of a Markdown file, which PaperRunner.pm runs.
#
# A block needs a language. What readers do not see, in HTML comments:
#
#	<!-- run: WORDS -->    just before a block: how it is run
#	<!-- LANGUAGE          a block that is run like others; in js, go, ruby and
#	...                    php, where each block is a program, it belongs to the
#	-->                    next one
#
# WORDS, with commas between:
#
#	session NAME    sql: in another psql session than the first
#	background      sh, programs: not waited for; a text after it is waited for;
#	                ended with the paper
#	fails STATE     this SQLSTATE, or this exit status, is expected
#	terminal        sh: its output is a terminal
#	varies WORD...  text: these words stand for any word

package Papers;

use strict;
use warnings;

use Exporter qw(import);

our @EXPORT = qw(blocks_of headings_of links_of output_differs);

# How a block of a language may be run
my %WORDS = (
	sql => 'session|fails',
	sh => 'background|fails|terminal',
	python => 'fails',
	java => 'background|fails',
	js => 'background|fails',
	go => 'background|fails',
	ruby => 'background|fails',
	php => 'background|fails',
	rust => '',
	csharp => '',
	elixir => '',
	crontab => '',
	yaml => '',
	ini => '',
	json => '',
	text => 'varies');

# The blocks of a file: language, text, line, and what its comment says (run).
# What is wrong with one is in its fault.
sub blocks_of
{
	my ($markdown) = @_;
	my ($block, $end, $run, @blocks);
	my ($line, $blank, $in_list) = (0, 1, 0);

	foreach (split(/\n/, $markdown))
	{
		$line++;
		if ($block)
		{
			if ($_ =~ $end)
			{
				push @blocks, $block;
				undef $block;
			}
			else
			{
				$block->{text} .= "$_\n";
			}
			next;
		}
		if (/^\s*(```+|~~~+)\s*(.*?)\s*$/)
		{
			($block, $end) = (_block($2, $line, $run), qr/^\s*\Q$1\E\s*$/);
			undef $run;
		}
		elsif (/^<!--\s*run:\s*(.*?)\s*-->$/)
		{
			push @blocks, _fault($line, 'two comments before one block') if defined $run;
			$run = $1;
		}
		elsif (/^<!--\s*(.*)$/)
		{
			($block, $end) = (_block($1, $line, undef), qr/^-->$/);
			$block->{hidden} = 1;
		}
		else
		{
			push @blocks, _fault($line, 'a comment that is before no block')
			  if defined $run;
			undef $run;
			push @blocks, _fault($line, 'an indented block: fence it, and name its language')
			  if /^( {4,}|\t)\S/ && $blank && !$in_list;
			$in_list = /^\s*([*+-]|\d+\.)\s/ || ($in_list && /^(\s|$)/);
		}
		$blank = /^\s*$/;
	}
	push @blocks, _fault($block->{line}, 'a block without an end') if $block;
	return @blocks;
}

sub _fault
{
	my ($line, $fault) = @_;

	return { language => '', text => '', line => $line, run => {}, fault => $fault };
}

sub _block
{
	my ($language, $line, $run) = @_;
	my $block = { language => $language, text => '', line => $line, run => {} };

	unless (exists $WORDS{$language})
	{
		$block->{fault} = $language eq '' ? 'a block without a language'
		  : "a block of language \"$language\", of which nothing can be shown";
		return $block;
	}
	foreach (split(/\s*,\s*/, $run // ''))
	{
		my ($word, @args) = split;

		$block->{fault} = "\"$word\" means nothing for $language"
		  unless $word =~ /^($WORDS{$language})$/ && $1 ne '';
		$block->{run}{$word} = @args ? "@args" : 1;
	}
	return $block;
}

# Where links to other papers, and to headings, lead to
sub links_of
{
	my ($markdown) = @_;

	$markdown =~ s/^```.*?^```$//gms;
	return grep { !/^\w+:/ } $markdown =~ /\]\(([^()\s]+)\)/g;
}

# What links call the headings
sub headings_of
{
	my ($markdown) = @_;

	$markdown =~ s/^```.*?^```$//gms;
	return map { lc(s/[^\w\s-]//gr) =~ tr/ /-/r } $markdown =~ /^#+ +(.*?) *$/gm;
}

# Makes output comparable: columns may be wider or narrower, and times differ.
sub _plain
{
	my ($text) = @_;
	my @lines;

	foreach (split(/\n/, $text))
	{
		s/\r$//;
		s/\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d(:?\d\d)?)?/TIME/g;
		s/\b\d\d:\d\d:\d\d(\.\d+)?\b/TIME/g;
		s/-[-+]+/-/g;
		s/\s+/ /g;
		s/^ | $//g;
		push @lines, $_ if $_ ne '';
	}
	return join("\n", @lines);
}

# Whether output is not what a text block shows: '...' and the words that vary
# stand for anything in a line, and a last line '...' for any lines.
sub output_differs
{
	my ($output, $shown) = @_;
	my $pattern = quotemeta(_plain($shown->{text}));

	$pattern =~ s/\\\.\\\.\\\./.*/g;
	$pattern =~ s/\\\n\.\*$/(?s:.*)/;
	$pattern =~ s/(?<![\w.])\Q${\quotemeta}\E(?![\w.])/[^\\s]+/g
	  foreach split(' ', $shown->{run}{varies} // '');
	return _plain($output) !~ /\A$pattern\z/;
}

1;
