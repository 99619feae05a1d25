# What the checker has read, for all of its parts.

package Check::Record;

use strict;
use warnings;

use Exporter qw(import);

our @EXPORT = qw(
  violation lines describe $out %count %violations %faults %info @claims
  @moments @spans %leader @written @announced %listening @delays @begun @finished
  @early %answered %resets @windows @huge @cuts @ended %bound %believes %languages %recreated @dropping @paused @drained @groups
  @named @pressing @calms @short_leases $edition $lease_us $wall_clock $epoch_us
);

our $out;			# the folder of logs
our (%count, %violations, %faults, %info);
our @claims;		# {election, term, candidate, who, from, to; silent, lapses: [from, to] of
					# each; and if it is so command, granted (to a detached one)}
our @moments;		# the same, from and to: sent and received
our @spans;			# the same as claims, of what a server says again and again to anybody
our %leader;		# {election}{term}{candidate} = where it was said
our @written;		# what candidates say of their fenced rows
our @announced;		# notifications: {time, number, payload, session}
our %listening;		# sessions that listen: {server, from, to, lived: the last answer}
our @delays;		# from a change to its notification
our @begun;			# [when it was asked for, election, run, who, when that was answered]: a run was granted
our @finished;		# [when that was known, election, run, who]: it was recorded as done
our @early;			# [when, claim]: a leader was told that its term is over
our %answered;		# {session} = when it last asked what it was answered
our %resets;		# {session} = when it was reset, or may have been: [sent, received] of each
our @windows;		# [from, to] of failovers, from when the standby may have lagged
our @huge;			# [from, to] of huge statements; to: when what they do is committed
our @cuts;			# [from, to, name] of the clients' network
our @ended;			# [when, candidate]: its session was ended
our %bound;			# candidates whose command depends on a session
our %languages;		# that clients are written in, other than C
our %believes;		# candidates that lead until a deadline of their own
our %recreated;		# elections that were dropped and created again
our @dropping;		# [from, to, election]: that was under way
our @paused;		# [from, to, election or "all"]: it was certainly paused
our @drained;		# {from, to, election (or "all"), names}: they certainly were
our @groups;		# {group, sent, received, seats, limit}: it was altered
our @named;			# [when, election]: a leader was asked to yield to a candidate
our @pressing;		# [from, to, fault]: until the calm after it
our @calms;			# [from, to]: to is not defined of one that was not over
our @short_leases;	# [from, to]: they may have been a quarter of what they are
our $edition = 'extension';
our $lease_us = 0;
our $wall_clock = 1;	# timestamps mean something
our $epoch_us = 0;	# a timestamp less our time

sub violation
{
	my ($kind, $text) = @_;

	push @{ $violations{$kind} }, $text;
	return;
}

sub lines
{
	my ($path) = @_;

	open my $file, '<', $path or return;
	my @lines = <$file>;
	chomp @lines;
	return @lines;
}

sub describe
{
	my ($c) = @_;

	return sprintf '%s: %s (%s) in term %s from %s to %s', $c->{election},
	  $c->{candidate}, $c->{who}, $c->{term}, $c->{from}, $c->{to};
}

1;
