# What diagnose() found, compared with what is certain for all of the time between
# question and answer.
#
# The texts are as observers log them, with _ for each space.

package Check::Diagnosed;

use strict;
use warnings;

use Check::Answers;
use Check::Clients;
use Check::Events;
use Check::History;
use Check::Known;
use Check::Quiet;
use Check::Record;
use Check::Standing;
use Check::Watched;
use Exporter qw(import);
use List::Util qw(max sum0);

our @EXPORT = qw(check_diagnosed);

my $SLACK_US = 50_000;
my $LATE_US = 5_000_000;	# from the end of a term to its commit, by a process that was stopped
my $OFTEN = 3;			# it tells of so many terms that have ended
my $GONE = qr/Candidates_whose_sessions_have_ended|Detached_candidates_that_have_not_called|Nobody_stands_for_these_seats/;
my $LOCKS_FULL = qr/^The_server's_lock_table_is_full/;	# then nobody can see whether there is a worker
my $REJOIN_US = 10_000_000;	# for a new election, or seat, those who stood have to stand anew

my %claims;		# of each election
my $history;
my %kept;		# {election and term}: the last server knows of it

# A violation, of an answer with a row that is false, or without one that has to be there
sub wrong
{
	my ($f, $text) = @_;

	violation('diagnose', "$f->{election}: $text, " . between($f));
	return;
}

sub rows_of { my ($f) = @_; return ($f, @{ $f->{more} // [] }); }

sub has_row
{
	my ($f, $pattern) = @_;

	return grep { $_->{finding} =~ $pattern } rows_of($f);
}

# The first row names the leader and its term, and is right if somebody certainly leads.
sub check_leader
{
	my ($f) = @_;
	my ($name, $election, $term) = $f->{finding} =~ /^"([^"]+)"_leads_election_"([^"]+)"_since_.*?,_in_term_(\d+)\./;
	my $leads = defined $name || $f->{finding} =~ /^Nobody_leads/ ? contradicted(\%claims, $f, $name, $term) : undef;

	$count{'diagnose(): named a leader'}++ if defined $name;
	wrong($f, "$f->{finding}; " . describe($leads)) if $leads;
	return unless defined $name;
	wrong($f, "it tells of $election") if $election ne $f->{election};
	$leader{$election}{$term}{$name} //= $f->{who};
	return;
}

# A pause is told of while there certainly is one, and only while there may be one. A
# failover may bring one back.
sub check_pause
{
	my ($f) = @_;
	my $told = has_row($f, qr/_paused_by_role_/);

	if (certain_pause($f))
	{
		$count{'diagnose(): in a pause'}++;
		wrong($f, 'nothing of a pause') unless $told || has_row($f, qr/could_not_be_read/);
	}
	wrong($f, 'a pause that there is not')
	  if $told && !may_be_paused(@{$f}{qw(election sent received)}) && !failed_over_since_calm($f);
	return;
}

# Nobody stands, fewer do than are needed, or some do not any more: that is false of
# those who certainly stand.
sub check_standing
{
	my ($f) = @_;
	my ($live) = $f->{finding} =~ /_Live_candidates:_(\d+)\.$/;
	my $led = $f->{finding} =~ /^"[^"]+"_leads_election_/ && !has_row($f, qr/could_not_be_read/);
	my @stand = stood_throughout(@{$f}{qw(election sent received)});

	return if may_have_crashed(@{$f}{qw(sent received)})
	  || was_dropped($f->{election}, $f->{sent} - $REJOIN_US, $f->{received});
	$count{'diagnose(): who certainly stood'} += @stand;
	$live = $1 if !defined $live && $f->{finding} =~ /The_reason:_(\d+)_of_the_\d+_candidates_that_are_needed/;
	$live = 0 if $f->{finding} =~ /The_reason:_nobody_stands/;
	$live //= 0 if $led;	# which is not said
	wrong($f, "$live alive; @stand stand") if defined $live && $live < @stand;
	foreach my $row (@{ $f->{more} // [] })
	{
		my ($what, $names) = $row->{finding} =~ /^($GONE)[^"]*(?:"crew":_)?(.*)/ or next;
		my %named = map { $_ => 1 } $names =~ /"([^"]+)"/g;

		$count{'diagnose(): who does not stand'} += keys %named;
		wrong($f, "$what: $_, who stands") foreach grep { $named{$_} } @stand, @stand ? $f->{election} : ();
	}
	return;
}

# The drain of a candidate that stands is told of, and no other one.
sub check_drains
{
	my ($f) = @_;
	my ($election, $sent, $received) = @{$f}{qw(election sent received)};
	my %told = map { $_->{finding} =~ /^Candidate_"([^"]+)"_is_drained/ ? ($1 => 1) : () } rows_of($f);
	my $complete = !has_row($f, qr/could_not_be_read|^These_candidates_are_drained/);

	foreach my $name (sort keys %told)
	{
		$count{'diagnose(): told of a drain'}++;
		wrong($f, "$name is drained, and is not")
		  unless failed_over_since_calm($f)
		  || grep { $_->[0] < $received && $_->[1] > $sent } may_be_drained($name, $election);
	}
	return if may_have_crashed($sent, $received) || was_dropped($election, $sent - $REJOIN_US, $received);
	foreach my $name ($complete ? stood_throughout($election, $sent, $received) : ())
	{
		wrong($f, "nothing of the drain of $name") if !$told{$name} && is_drained($name, $f);
	}
	return;
}

# There is a worker unless something has ended it, or there are no slots.
sub check_worker
{
	my ($f) = @_;
	my $told = has_row($f, qr/^No_worker_runs_in_this_database/);
	my (undef, $most) = slots_between($f->{sent}, $f->{received});

	$count{'diagnose(): no worker'}++ if $told;
	wrong($f, 'nothing of a worker that there is not')
	  if !$most
	  && !$told
	  && !has_row($f, $LOCKS_FULL)
	  && !failed_over_since_calm($f)	# the old side may know of no leader
	  && certain_leader(\%claims, $f);
	wrong($f, 'no worker, and nothing has ended it')
	  if $told && !may_lack_worker($f);
	return;
}

# The lock table is full only where somebody has filled it; and no seat is withdrawn
# while there are as many.
sub check_server
{
	my ($f) = @_;

	wrong($f, 'the lock table is full')
	  if has_row($f, $LOCKS_FULL) && !is_expected('53200', $f->{sent});
	wrong($f, 'withdrawn') if has_row($f, qr/the_seat_is_withdrawn/) && !may_be_withdrawn(@{$f}{qw(election sent received)});
	return;
}

# When the election was made, at the latest: 0, unless it was dropped and made anew, as a
# seat that was withdrawn is
sub made_at
{
	my ($f) = @_;
	my ($election, $now) = @{$f}{qw(election received)};

	return $now if may_be_withdrawn($election, 0, $now);
	return max(0, map { $_->[2] eq $election && $_->[0] < $now ? ($_->[1] // $now) + $DROPPED_US : () } @dropping);
}

# How many terms ended within the last hour, by what is left of history in the end. What
# a failover has taken with it, the server that was promoted never knew; what ended just
# before a failover may wait, unseen, for the standbys that follow it. Terms of an election
# that had this name before, or of a seat that was withdrawn, may count no more.
sub check_past
{
	my ($f) = @_;
	my $terms = $history->{ $f->{election} } // {};
	my @rows = map { $kept{"$f->{election} $_"} ? $terms->{$_} : () } keys %$terms;
	my $made = made_at($f);
	my (%told, %least);
	my $all = 0;

	return if !$wall_clock || (in_failover(0, $f->{received}) && may_have_crashed(@{$f}{qw(sent received)}));
	return if has_row($f, qr/could_not_be_read/);
	foreach (rows_of($f))
	{
		($told{$3}, $all) = ($1, $2)
		  if $_->{finding} =~ /^Within_the_last_hour,_(\d+)_of_(?:the_last_)?(\d+)_terms_ended_by_"([^"]+)"/;
	}
	return if $all >= 1000;
	foreach (grep { $_->{over} && $_->{over} < $f->{sent} - $LATE_US && ($_->{began} || 0) >= $made } @rows)
	{
		$least{ $_->{reason} =~ tr/ /_/r }++;
	}
	wrong($f, 'nothing of terms that have ended, of which there are ' . sum0(values %least))
	  if !$all && sum0(values %least) >= $OFTEN;
	foreach my $reason (sort keys %{ { %told, map { $_->{reason} ? ($_->{reason} =~ tr/ /_/r => 1) : () } @rows } })
	{
		my @ended = grep { $_->{over} && ($_->{reason} // '') =~ tr/ /_/r eq $reason } @rows;
		my $least = $least{$reason} // 0;
		my $most = grep { $_->{over} < $f->{received} + $SLACK_US } @ended;

		$count{ 'diagnose(): numbers of terms' . (in_failover(0, $f->{received}) ? ', after a failover' : '') }++ if $told{$reason};
		wrong($f, ($told{$reason} // 0) . " terms ended by $reason, not $least to $most")
		  if $all && (($told{$reason} // 0) < $least || ($told{$reason} // 0) > $most);
	}
	return;
}

sub check_diagnosed
{
	($history) = @_;
	%kept = kept_terms();

	push @{ $claims{ $_->{election} } }, $_ foreach @claims;
	foreach my $f (@findings)
	{
		$count{"diagnose(): $f->{severity}"}++;
		check_server($f);
		check_worker($f);
		check_leader($f);
		next if is_unclear($f);
		check_pause($f);
		check_standing($f);
		check_drains($f);
		check_past($f);
		$count{'answers of diagnose() compared'}++;
		wrong($f, "ok, and more: $f->{more}[0]{finding}") if $f->{severity} eq 'ok' && $f->{more};
	}
	return;
}

1;
