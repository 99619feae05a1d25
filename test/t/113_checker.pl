# The checker of the chaos run (test/chaos/check.pl) finds nothing in the logs of a run
# in which all was well; and after each single change that makes these logs contradict
# the contract, it says so.
#
# The logs are of no real run: they are short, and written by this test. They need no
# server.

use strict;
use warnings;

use FindBin;
use File::Path qw(make_path);
use PostgreSQL::Test::Utils;
use Test::More;

my $CHECKER = "$FindBin::RealBin/../chaos/check.pl";
my $EPOCH = 1_767_225_600;	# 2026-01-01, when the clock of the run was 0
my $ROUND = 10;				# seconds of the run: its only round begins,
my $CALM = 32;				# a calm begins and is over,
my $CALM_OVER = 38.5;
my $ENDING = 40;			# and all candidates are asked to end

my $dir = PostgreSQL::Test::Utils::tempdir();

sub us { return sprintf '%d', $_[0] * 1e6 + 0.5; }

# A time of the run, as servers write it
sub stamp
{
	my ($time, $between) = @_;

	return sprintf '2026-01-01%s00:00:%09.6f+00', $between // ' ', $time;
}

# --- the run

# Election, term, leader, kind, from, to, reason of the end
my @TERMS = (
	[ 'calm', 1, 'calm3', 'detached', 5 ],
	[ 'calm_q', 1, 'calm1', 'session', 5 ],
	[ 'crew/1', 1, 'g1', 'session', 11, 30, 'resigned' ],
	[ 'crew/1', 2, 'g2', 'session', 30.2 ],
	[ 'crew/2', 1, 'g3', 'session', 11.5 ],
	[ 'lone', 5, 'd1', 'detached', 11, 25, 'resigned' ],
	[ 'lone', 6, 'd2', 'detached', 25.2 ],
	[ 'race', 1, 's1', 'session', 11, 20, 'resigned' ],
	[ 'race', 2, 's2', 'session', 20.3 ],
);

# What a session says while it leads, once a second, and all the time that it stands
sub session_lines
{
	my ($election, $term, $from, $to) = @_;
	my @lines;

	for (my $t = 10.1; $t < $ENDING; $t += 0.5)
	{
		push @lines, sprintf 'j 1 %s %s %s 00000', $election, us($t), us($t + 0.01);
		next unless $term && $t > $from && $t < $to - 0.1;
		push @lines, sprintf 'm 1 %s %s %d 1500', $election, us($t + 0.01), $term
		  if $election !~ /^calm/;
		push @lines, sprintf 'q 1 %s %s %s %d', $election, us($t + 0.02), us($t + 0.03), $term;
	}
	return @lines;
}

# The same of a detached candidate: it is granted the lease, or not
sub detached_lines
{
	my ($election, $term, $from, $to) = @_;
	my @lines;

	for (my $t = 10.1; $t < $ENDING; $t += 0.5)
	{
		my @call = ($election, us($t), us($t + 0.02));

		push @lines, $term && $t + 0.02 > $from && $t < $to
		  ? "g @call $term 1500 0" : "a @call";
		push @lines, sprintf 'r %s %s %d resigned', $election, us($to - 0.01), $term
		  if $term && $to < $ENDING && $t < $to && $t + 0.5 >= $to;
	}
	return @lines;
}

sub notification
{
	my ($election, $event, $term, $leader, $previous, $reason, $time) = @_;
	my @json = map { defined $_ ? qq("$_") : 'null' } $leader, $previous, $reason;

	return sprintf 'l 1 %s {"election":"%s","event":"%s","term":%d,"leader":%s,"previous":%s,"reason":%s,"at":"%s:00"}',
	  us($time + 0.05), $election, $event, $term, @json, stamp($time, 'T');
}

sub listener_lines
{
	my %at = map { us($_) => "i 1 " . us($_) } 4 .. $ENDING;

	foreach (@TERMS)
	{
		my ($election, $term, $leader, $kind, $from, $to, $reason) = @$_;

		$at{ us($from + 0.05) . " $election" } = notification($election, 'elected', $term, $leader, undef, undef, $from);
		$at{ us($to + 0.05) . " $election" } = notification($election, 'vacated', $term, undef, $leader, $reason, $to)
		  if $to;
		next if "$election $term" ne 'race 1';
		$at{ us($_ + 0.05) } = notification($election, 'metadata_changed', $term, $leader, undef, undef, $_)
		  foreach $from + 0.5, $from + 0.6;
	}
	return ('s 1 ' . us(3) . ' server1.00000001.1', map { $at{$_} }
		  sort { ($a =~ /(\d+)/)[0] <=> ($b =~ /(\d+)/)[0] || $a cmp $b } keys %at);
}

# What the observers were told
sub status_lines
{
	my @lines;

	for (my $t = 12; $t < $ENDING; $t += 0.5)
	{
		my ($term, $leader) = $t < 25 ? (5, 'd1') : (6, 'd2');
		my @asked = ('lone', us($t), us($t + 0.01));

		next if $t == 25;
		push @lines, "o @asked led $term $leader -",
		  qq(f @asked ok "${leader}"_leads_election_"lone"_since_2026-01-01_00:00:11+00_(for_1_s),_in_term_$term._Live_candidates:_2.);
		push @lines, qq(F @asked notice Election_"lone"_is_paused_by_role_"postgres".)
		  if $t > 26 && $t < 30;
		$lines[-2] =~ s/ ok / notice / if $t > 26 && $t < 30;
	}
	return @lines;
}

# File => lines
sub good_logs
{
	my %logs;

	$logs{events} = [ map { us($_->[0]) . " $_->[1]" }
		  [ 1, 'candidate s1 session' ],
		[ 1.1, 'start seed 1 profile fence lease 1500' ],
		[ 1.2, 'epoch ' . $EPOCH * 1e6 ],
		[ 2, 'workers 16' ],
		[ 2.1, 'altering crew 1 2 1' ],
		[ 2.2, 'altered crew 1' ],
		[ $ROUND, 'round' ],
		[ 12, 'draining race s3' ],
		[ 12.1, 'drained race s3' ],
		[ 12.2, 'fault drain candidates: s3 in race' ],
		[ 18, 'undraining race s3' ],
		[ 18.1, 'undrained race s3' ],
		[ 26, 'pausing lone' ],
		[ 26.1, 'paused lone' ],
		[ 26.2, 'fault pause elections: lone' ],
		[ 29.8, 'resuming lone' ],
		[ 29.9, 'resumed lone' ],
		[ 31, 'healing' ],
		[ $CALM, 'calm' ],
		[ $CALM + 0.1, 'led race 0.1' ],
		[ $CALM + 0.2, 'led lone 0.2' ],
		[ $CALM_OVER - 0.1, 'measured 500 3500 600 14 30 lease:300' ],
		[ $CALM_OVER, 'calm over' ],
		[ $ENDING, 'ending' ],
		[ $ENDING + 4, 'left 0|0|0' ],
		[ $ENDING + 5, 'end' ] ];
	$logs{'ticks.out'} = [ map { us($_ / 100) } 100 .. $ENDING * 100 + 500 ];

	foreach (@TERMS)
	{
		my ($election, $term, $leader, $kind, $from, $to, $reason) = @$_;

		push @{ $logs{"candidate.$leader.1"} }, $kind eq 'session'
		  ? session_lines($election, $term, $from, $to // $ENDING)
		  : detached_lines($election, $term, $from, $to // $ENDING);
		push @{ $logs{history} }, join '|', $election, $term, $leader, $kind, stamp($from),
		  $to ? (stamp($to), $reason) : ('', ''), $EPOCH + $from, $to ? $EPOCH + $to : '';
	}
	push @{ $logs{'candidate.s3.1'} }, session_lines('race'), sprintf('z 1 %s %s', us(39.8), us(39.81)),
	  sprintf(q(e %s LE006 %s SELECT * FROM leader_election.renew('race', metadata => '{}'): ERROR:  this session was reset while it stood in election "race"),
		us(39.83), us(39.82));
	push @{ $logs{'candidate.s1.1'} }, sprintf('w race %s %s 1 1000001 committed', us(12), us(12.1)),
	  sprintf('z 1 %s %s', us(39.8), us(39.81));
	push @{ $logs{'candidate.s2.1'} }, sprintf 'w race %s %s 2 1000001 committed', us(22), us(22.1);
	push @{ $logs{'candidate.calm4.1'} }, detached_lines('calm');
	push @{ $logs{'candidate.d3.1'} }, sprintf('b runs %s %s 1 0001', us(12), us(12.1)),
	  sprintf('d runs %s %s 1 0001 recorded', us(13), us(13.1)),
	  sprintf('b runs %s %s 1 0002', us(14), us(14.1));
	$logs{'candidate.listener.1'} = [ listener_lines() ];
	$logs{'candidate.listener2.1'} = [ listener_lines() ];
	$logs{'candidate.w1.1'} = [
		'p lone ' . us(12) . ' 500 5 d1', 'h lone ' . us(12) . ' ' . us(12.51) . ' 500 5 d1 5 d1',
		'p lone ' . us(24) . ' 5000 5 d1', 'h lone ' . us(24) . ' ' . us(25.1) . ' 5000 5 d1 - -',
		'p lone ' . us(27) . ' 500 6 d2', 'h lone ' . us(27) . ' ' . us(27.51) . ' 500 6 d2 6 d2' ];
	$logs{'candidate.w3.1'} = [ status_lines() ];
	$logs{writes} = [ "race|1|s1|1000001|" . ($EPOCH + 12.05) . '|700', "race|2|s2|1000001|" . ($EPOCH + 22.05) . '|701' ];
	$logs{resource} = [ sprintf('a race 1 s1 %s %s', us(12), us(12.1)), sprintf('a race 2 s2 %s %s', us(22), us(22.1)) ];
	$logs{'server1.log'} = [ '2026-01-01 00:00:11.000 UTC [100] 00000 client backend/s1: LOG:  all is well' ];
	return %logs;
}

# --- changes

my %logs;	# those that are changed

# One line, the first that is like this; or all
sub edit
{
	my ($file, $pattern, $code, $all) = @_;
	my $done = 0;

	foreach (grep { $_ =~ $pattern } @{ $logs{$file} })
	{
		$code->() if $all || !$done;
		$done = 1;
	}
	die "nothing like $pattern in $file" unless $done;
	return;
}

sub remove
{
	my ($pattern, @files) = @_;

	foreach my $file (@files)
	{
		my @left = grep { $_ !~ $pattern } @{ $logs{$file} };

		die "nothing like $pattern in $file" if @left == @{ $logs{$file} };
		$logs{$file} = \@left;
	}
	return;
}

# Times in the format are seconds of the run.
sub add
{
	my ($file, $format, @times) = @_;

	push @{ $logs{$file} }, sprintf $format, map { us($_) } @times;
	return;
}

my @LISTENERS = qw(candidate.listener.1 candidate.listener2.1);

# A snapshot was taken in the beginning of the round, and the tables take up so many kB.
sub hold_snapshot
{
	my ($kb) = @_;

	insert('events', qr/ round$/, us($ROUND) . ' snapshot taken');
	edit('events', qr/measured/, sub { s/ 600 / $kb / });
	return;
}

# Changes fields of a term in history.
sub set_history
{
	my ($term, %fields) = @_;

	edit('history', qr/^\Q$term\E\|/, sub {
		my @f = split /\|/, $_, -1;

		@f[ keys %fields ] = values %fields;
		$_ = join '|', @f;
	});
	return;
}

sub begin_at
{
	my ($term, $time) = @_;

	set_history($term, 4 => stamp($time), 7 => $EPOCH + $time);
	return;
}

sub end_at
{
	my ($term, $time, $reason) = @_;

	set_history($term, 5 => stamp($time), 6 => $reason, 8 => $EPOCH + $time);
	return;
}

# Puts a line behind the first one that is like this.
sub insert
{
	my ($file, $pattern, $line) = @_;
	my $lines = $logs{$file};
	my ($i) = grep { $lines->[$_] =~ $pattern } 0 .. $#$lines;

	splice @$lines, $i + 1, 0, $line;
	return;
}

# The election was dropped, and created again, in that time.
sub recreate
{
	my ($election, $from, $to) = @_;

	add('events', "%s fault recreate election: $election", $from);
	add('events', "%s doing recreate $election", $from);
	add('events', "%s done recreate $election", $to);
	return;
}

# diagnose() says how the terms of an election have ended.
sub tell_terms
{
	insert('candidate.w3.1', qr/^f lone 32000000/, 'F lone 32000000 32010000 warning Within_the_last_hour,_0_of_2_terms_ended_by_"left":_x');
	return;
}

sub tell_failure
{
	add('candidate.w3.1', 'o race %s %s vacant 1 - worker_fails', 20.1, 20.15);
	return;
}

# A statement takes all locks, so that the leader of a calm election gets none until its
# lease is over. There is no worker then, unless with one.
sub lack_locks
{
	my ($with, $statement) = @_;

	$statement //= q(SELECT * FROM leader_election.renew('calm', 1, 2));
	end_at('calm|1', 20, 'expired');
	add('events', '%s fault huge statement: 2000', 18);
	add('candidate.calm3.1', "e %s 53200 %s $statement: ERROR:  out of shared memory", 19.5, 19.49);
	$logs{'candidate.calm3.1'} = [ grep { !/^g calm (\d+)/ || $1 < us(18.5) || $1 > us(20) } @{ $logs{'candidate.calm3.1'} } ];
	add('events', '%s workers 0', 15) unless $with;
	return;
}

# Another server goes on, by what the nemesis says.
sub fail_over
{
	my ($from, $to) = @_;

	add('events', '%s split crash 1 2', $from);
	add('events', '%s joined 1', $to);
	return;
}

# On the server that is promoted, d9 is granted a term and told that it is over. A later
# term is kept.
sub lose_term
{
	my ($term) = @_;

	fail_over(16, 17);
	add('events', '%s promoted 2', 16.3);
	push @{ $logs{history} }, 'zab|4194400|d8|detached|' . stamp(18) . '|||' . ($EPOCH + 18) . '|';
	add('candidate.d9.1', "g zab %s %s $term 1500 0", 16.5, 16.52);
	add('candidate.d9.1', "n zab %s %s $term", 17.2, 17.22);
	return;
}

# Nobody leads for 5 s, or until that time, and a detached candidate has asked just before,
# and not since.
sub fall_asleep
{
	my ($reason, $to, $kind) = @_;

	end_at('lone|5', 17, $reason);
	begin_at('lone|6', $to // 22);
	if (($kind // 'detached') eq 'detached')
	{
		add('candidate.d9.1', 'a lone %s %s', 16.9, 16.92);
	}
	else
	{
		add('candidate.s9.1', 'j 1 lone %s %s 00000', 16.9, 16.92);
	}
	return;
}

# A client in another language writes a row of an older term, in a failover.
sub write_late
{
	add('events', '%s member python1 session', 1);
	fail_over(25.5, 26);
	add('candidate.python1.1', 'w race %s %s 1 77 committed', 25.6, 25.7);
	return;
}

# A session of a calm election is told that it leads before that time and after it, and
# not in between.
sub lapse
{
	my ($from, $to) = @_;

	@{ $logs{'candidate.calm1.1'} } = grep { !/^q 1 calm_q (\d+)/ || $1 < us($from) || $1 > us($to) } @{ $logs{'candidate.calm1.1'} };
	return;
}

# A calm term ends at 20 s; a server process was stopped, and nothing was committed until it went on.
sub stand_still
{
	my ($from, $to) = @_;

	end_at('calm|1', 20, 'expired');
	add('events', '%s fault stop leader: client backend s1', $from);
	add('events', '%s standstill %s WAL', $to, $from);
	return;
}

# The run ends the session of a pg_leader, whose command lives until 23.05 s. Before that,
# somebody is told that nobody leads.
sub end_session
{
	my ($time) = @_;

	add('events', '%s candidate l1 pg_leader session', 1);
	add('events', '%s fault terminate leader: client backend l1', $time);
	add('candidate.l1.1.77', 'c bound %s 1', $_) foreach 21.5, 22, 23.05;
	add('candidate.w3.1', 'o bound %s %s vacant 1 - -', 23.02, 23.04);
	return;
}

# The kind of violation, what was changed, how, and what the text is like
my @CHANGES = (
	[ 'two leaders', 'somebody else leads for a second', sub { add('candidate.s4.1', 'q 1 race %s %s 9', $_, $_ + 0.01) foreach 15, 16 } ],
	[ 'two leaders', 'somebody else leads for a moment', sub { add('candidate.s4.1', 'q 1 race %s %s 9', 15, 15.01) } ],
	[ 'two leaders', 'a command of somebody else shows once that it runs', sub { add('candidate.pd9.1.77', 'c race %s 9', 15) } ],
	[ 'two leaders', 'two servers name two leaders',
		sub { add('events', "%s seen $_->[0] %s %s zab $_->[0] s$_->[0]", $_->[1] + 0.02, $_->[1], $_->[1] + 0.01) foreach [ 1, 15 ], [ 2, 15.2 ], [ 1, 15.4 ], [ 2, 15.6 ] } ],
	[ 'past the deadline', 'a lease is not renewed any more', sub { edit('candidate.s1.1', qr/^m /, sub { s/1500$/-1/ }); remove(qr/^m .*1500$/, 'candidate.s1.1') } ],
	[ 'past the deadline', 'a lease was renewed for 1 ms', sub { edit('candidate.s1.1', qr/^m /, sub { s/1500$/1/ }) } ],
	[ 'past the deadline', 'a lease is not renewed any more, and no call for that is answered',
		sub { my $first = 1; edit('candidate.s1.1', qr/^m /, sub { s/1500$/-1/ unless $first-- > 0 }, 'all') } ],
	[ 'past the deadline', 'a lease is not renewed any more, and each call for that fails',
		sub {
			my $first = 1;

			edit('candidate.s1.1', qr/^m /, sub { s/1500$/-1/ unless $first-- > 0 }, 'all');
			insert('candidate.s1.1', qr/^j 1 race $_/, 'e ' . ($_ + 10_000) . " 55P03 $_ SELECT * FROM leader_election.renew('race'): ERROR:  busy") foreach map { us(11.6 + $_ / 2) } 0 .. 15;
		}, qr/renewed until 12611000/ ],
	[ 'past the deadline', 'a detached leader renews a lease that is over',
		sub { @{ $logs{'candidate.d1.1'} } = grep { !/^g lone 1[4-6]/ } @{ $logs{'candidate.d1.1'} } } ],
	[ 'ended early', 'a renewal is refused', sub { edit('candidate.d1.1', qr/^g lone 126/, sub { s/^g (\S+ \S+ \S+ \S+).*/n $1/ }) } ],
	[ 'ended early', 'a term that began before a failover is lost in it',
		sub { fail_over(16, 17); remove(qr/^lone\|5/, 'history'); edit('candidate.d1.1', qr/^g lone 176/, sub { s/^g (\S+ \S+ \S+ \S+).*/n $1/ }) } ],
	[ 'ended early', 'a term of the server that is promoted is over', sub { lose_term(4194310) }, qr/told at 17220000/ ],
	[ 'earlier term', 'a session is told of an earlier term on the same connection, in a failover',
		sub { fail_over(25.5, 26); add('candidate.s2.1', "q 1 race %s %s $_->[1]", $_->[0], $_->[0] + 0.01) foreach [ 25.6, 9 ], [ 25.7, 8 ] } ],
	[ 'earlier term', 'a leader is told that its term is over, and then that it leads in it',
		sub { edit('candidate.d1.1', qr/^g lone 126/, sub { s/^g (\S+ \S+ \S+ \S+).*/n $1/ }) }, qr/after that it is over/ ],
	[ 'earlier term', 'a session is told of an earlier term', sub { add('candidate.s2.1', 'q 1 race %s %s 1', 39.5, 39.51) }, qr/of term 1, after 2/ ],
	[ 'term', 'a renewal is answered with an older term', sub { edit('candidate.d1.1', qr/^g lone 126/, sub { s/0$/7/ }) } ],
	[ 'term twice', 'the resource was told of another leader', sub { add('resource', 'a race 2 s3 %s %s', 25, 25.1) } ],
	[ 'term twice', 'status names another leader, in a failover',
		sub { fail_over(15, 15.3); edit('candidate.w3.1', qr/^o lone 15500000/, sub { s/led 5 d1/led 5 d9/ }) } ],
	[ 'term twice', 'wait_for_change() names another leader, in a failover',
		sub { fail_over(15, 15.3); add('candidate.w1.1', 'h lone %s %s 500 - - 5 d9', 15.4, 15.6) } ],
	[ 'term twice', 'another leader is announced, in a failover',
		sub { fail_over(15, 16); add('candidate.s9.1', 'q 1 zab %s %s 9', 15.4, 15.41); push @{ $logs{ $LISTENERS[0] } }, notification('zab', 'elected', 9, 's8', undef, undef, 15.3) } ],
	[ 'term order', 'a first term is announced after the second one', sub { edit($LISTENERS[0], qr/"race","event":"elected","term":1/, sub { s/^l 1 \d+/l 1 39900000/ }) } ],
	[ 'term order', 'metadata is changed in a term that has ended', sub { edit($LISTENERS[0], qr/metadata_changed/, sub { s/^l 1 \d+/l 1 39900000/ }) } ],
	[ 'not announced', 'metadata is changed in a term that is not announced',
		sub { edit($_, qr/metadata_changed/, sub { s/^l 1 \d+/l 1 20100000/; s/s1/s2/; s/term":1/term":2/ }) foreach @LISTENERS } ],
	[ 'history', 'somebody else changes the metadata', sub { edit($LISTENERS[0], qr/metadata_changed/, sub { s/s1/s9/ }) }, qr/metadata_changed 1.* s9, and in it is s1/ ],
	[ 'announced twice', 'a term is announced twice', sub { push @{ $logs{ $LISTENERS[0] } }, (grep { /"race"/ } @{ $logs{ $LISTENERS[0] } })[-1] } ],
	[ 'heard otherwise', 'one listener lacks an event', sub { remove(qr/"race","event":"vacated"/, $LISTENERS[1]) } ],
	[ 'not announced', 'an end is not announced', sub { remove(qr/"race","event":"vacated"/, @LISTENERS) }, qr/before race: elected 2/ ],
	[ 'not announced', 'the last changes of an election are not announced',
		sub { remove(qr/"race","event":"(?:vacated|elected","term":2)/, @LISTENERS) }, qr/which heard of a change/ ],
	[ 'not announced', 'nothing is announced any more', sub { remove(qr/^l 1 30/, @LISTENERS) }, qr/in a calm$/m ],
	[ 'history', 'a term of the server that is promoted is not in it', sub { lose_term(4194310) }, qr/nothing of zab/ ],
	[ 'history', 'a term is not in it', sub { remove(qr/^race\|2/, 'history') }, qr/nothing of race/ ],
	[ 'history', 'a term begins before the end of another one', sub { end_at('race|1', 20.5, 'resigned') }, qr/term 2 began at/ ],
	[ 'history', 'numbers of terms are left out', sub { set_history('race|2', 1 => 4) }, qr/after term 1 comes term 4/ ],
	[ 'history', 'numbers of terms are left out, and the election is recreated later',
		sub { set_history('race|2', 1 => 4); recreate('race', 23, 24) }, qr/after term 1 comes term 4/ ],
	[ 'history', 'numbers of terms of a seat are left out, and the group has fewer seats later',
		sub { set_history('crew/1|2', 1 => 7); add('events', '%s altering crew 2 0 1', 37); add('events', '%s altered crew 2', 37.1) }, qr/after term 1 comes term 7/ ],
	[ 'taken', 'a session that lives is taken for dead', sub { end_at('race|1', 20, 'session ended') } ],
	[ 'taken', 'a session that lives is taken for dead, and was reset before that term',
		sub { unshift @{ $logs{'candidate.s1.1'} }, 'z 1 ' . us(10.05) . ' ' . us(10.06); end_at('race|1', 20, 'session ended') } ],
	[ 'taken', 'a session is taken for one that was reset',
		sub { end_at('race|1', 20, 'session reset'); edit($_, qr/"race","event":"vacated"/, sub { s/"resigned"/"session reset"/ }) foreach @LISTENERS } ],
	[ 'taken', 'a lease is taken for over that is not', sub { end_at('lone|5', 24, 'expired') } ],
	[ 'led when it was over', 'is_leader() is true after the end', sub { end_at('race|1', 19.5, 'resigned') } ],
	[ 'led when it was over', 'is_leader() is true when another leads, who says nothing',
		sub { end_at('race|1', 19.3, 'transferred'); begin_at('race|2', 19.3); delete $logs{'candidate.s2.1'} } ],
	[ 'elected while paused', 'another leads after a failover, in a pause', sub { end_at('lone|5', 28, 'failover'); begin_at('lone|6', 28) } ],
	[ 'elected while paused', 'a leader is elected in a pause', sub { begin_at('lone|6', 28) } ],
	[ 'elected while paused', 'a leader is elected in a race, long after all elections were paused',
		sub { add('events', "%s $_->[1] all", $_->[0]) foreach [ 16, 'pausing' ], [ 16.1, 'paused' ], [ 22, 'resuming' ], [ 22.1, 'resumed' ] } ],
	[ 'drained elected', 'who is drained is elected', sub { begin_at('race|1', 14); set_history('race|1', 2 => 's3') } ],
	[ 'run again', 'a run is granted that is done', sub { add('candidate.d3.1', 'b runs %s %s 1 0001', 15, 15.1) } ],
	[ 'cap', 'a candidate leads two seats', sub { $logs{'candidate.g1.2'} = delete $logs{'candidate.g3.1'}; set_history('crew/2|1', 2 => 'g1') } ],
	[ 'withdrawn seat', 'a seat too many is led', sub { push @{ $logs{history} }, 'crew/3|1|g4|session|' . stamp(12) . '|||' . ($EPOCH + 12) . '|' } ],
	[ 'withdrawn seat', 'seats are withdrawn late', sub { add('events', '%s withdrawn seats gone 4', 36) } ],
	[ 'fenced row', 'a row of an older term is committed later', sub { edit('writes', qr/^race\|1/, sub { s/\|\d+\.05/'|' . ($EPOCH + 23)/e }) } ],
	[ 'fenced row', 'a row is committed after the end of its term', sub { edit('writes', qr/^race\|1/, sub { s/\|\d+\.05/'|' . ($EPOCH + 20.2)/e }) }, qr/after its end/ ],
	[ 'fenced row', 'COMMIT is sent when another is known to lead',
		sub { edit('candidate.s1.1', qr/^w /, sub { s/12000000 12100000/21000000 21100000/ }) }, qr/s2 was known at/ ],
	[ 'fenced row', 'COMMIT is sent when another is known to lead, in a failover, and the row is kept',
		sub { write_late(); push @{ $logs{writes} }, 'race|1|python1|77||700' }, qr/python1 77 .* s2 was known at/ ],
	[ 'fenced row', 'COMMIT is sent when another is known to lead, is not answered, and the row is kept',
		sub { add('candidate.s1.1', 'w race %s %s 1 1000002 08006', 21, 21.1); push @{ $logs{writes} }, 'race|1|s1|1000002||700' }, qr/s1 1000002 .* s2 was known at/ ],
	[ 'lost row', 'a row is not there', sub { remove(qr/^race\|2/, 'writes') } ],
	[ 'outside resource', 'it denied a leader', sub { add('resource', 'd race 2 s2 %s %s', 25, 25.1) } ],
	[ 'returned without a change', 'wait_for_change() returns early', sub { edit('candidate.w1.1', qr/^h/, sub { s/12510000/12300000/ }) } ],
	[ 'missed a change', 'wait_for_change() tells an older term', sub { add('candidate.w1.1', 'h lone %s %s 500 5 d1 5 d1', 30, 30.6) } ],
	[ 'missed a change', 'wait_for_change() tells an older term than that of a failover, and of later',
		sub { fail_over(25.5, 26); add('candidate.d9.1', 'g lone %s %s 7 100 0', 29.1, 29.12); add('candidate.w1.1', 'h lone %s %s 500 5 d1 5 d1', 33, 33.6) } ],
	[ 'late answer', 'wait_for_change() returns late', sub { edit('candidate.w1.1', qr/^h/, sub { s/12510000/16000000/ }) } ],
	[ 'late answer', 'wait_for_change() does not return', sub { add('candidate.w1.1', 'p lone %s 500 6 d2', 31) } ],
	[ 'status', 'a seat is vacant that is led', sub { edit('candidate.w3.1', qr/^o /, sub { s/led 5 d1 -/vacant 5 - a_worker_or_a_call/ }) }, qr/lone: vacant 5 -, / ],
	[ 'status', 'it names another leader', sub { edit('candidate.w3.1', qr/^o /, sub { s/d1/d2/ }) } ],
	[ 'status', 'it names a later leader, in a failover', sub { fail_over(15, 15.3); edit('candidate.w3.1', qr/^o lone 15500000/, sub { s/led 5 d1/led 7 d9/ }) }, qr/led 7 d9/ ],
	[ 'status', 'it names another leader in the same term, in a failover',
		sub { fail_over(15, 15.3); edit('candidate.w3.1', qr/^o lone 15500000/, sub { s/led 5 d1/led 5 d9/ }) }, qr/led 5 d9/ ],
	[ 'status', 'it names another leader, while a session is silent', sub { add('candidate.w3.1', 'o race %s %s led 1 s1 -', 25.3, 25.31) }, qr/led 1 s1/ ],
	[ 'status', 'nobody leads, while a command runs whose session ended long before', sub { end_session(22.9) }, qr/bound: vacant/ ],
	[ 'status', 'nobody leads, while a command runs whose session the run ends later', sub { end_session(23.1) }, qr/bound: vacant/ ],
	[ 'status', 'a seat waits for what there is not', sub { add('candidate.w3.1', 'o crew/1 %s %s vacant 1 - takeover_delay', 30.1, 30.15) }, qr/it has none/ ],
	[ 'status', 'a seat waits for candidates, of which there are some', sub { add('candidate.w3.1', 'o race %s %s vacant 1 - no_candidates', 20.1, 20.15) }, qr/s3 stand/ ],
	[ 'diagnose', 'it names another leader', sub { edit('candidate.w3.1', qr/^f /, sub { s/"d1"/"d2"/ }) } ],
	[ 'diagnose', 'it counts fewer candidates than stand', sub { edit('candidate.w3.1', qr/^f lone 17/, sub { s/2\.$/0./ }) }, qr/0 alive/ ],
	[ 'diagnose', 'it says nothing of a pause', sub { remove(qr/^F/, 'candidate.w3.1') }, qr/nothing of a pause/ ],
	[ 'diagnose', 'it tells of a pause that there is not',
		sub { insert('candidate.w3.1', qr/^f lone 20000000/, 'F lone 20000000 20010000 notice Election_"lone"_is_paused_by_role_"postgres".') },
		qr/a pause that there is not/ ],
	[ 'diagnose', 'it counts too few terms', sub { tell_terms() }, qr/lone: 0 terms ended by resigned, not 1 to 1/ ],
	[ 'diagnose', 'it says nothing of the terms that have ended',
		sub {
			my ($row) = grep { /^lone\|5/ } @{ $logs{history} };

			unshift @{ $logs{history} }, map { my @f = split /\|/, $row, -1; @f[ 1, 4, 5, 7, 8 ] = ($_, stamp(10 + $_ / 5), stamp(10.1 + $_ / 5), $EPOCH + 10 + $_ / 5, $EPOCH + 10.1 + $_ / 5); join '|', @f } 2 .. 4;
		}, qr/lone: nothing of terms that have ended, of which there are 3,/ ],
	[ 'diagnose', 'it counts too few terms of a seat that there always was',
		sub {
			add('candidate.w3.1', 'f crew/1 %s %s ok "g2"_leads_election_"crew/1"_since_2026-01-01_00:00:30+00_(for_1_s),_in_term_2._Live_candidates:_2.', 38.3, 38.31);
			add('candidate.w3.1', 'F crew/1 %s %s warning Within_the_last_hour,_0_of_2_terms_ended_by_"left":_x', 38.3, 38.31);
		}, qr{crew/1: 0 terms ended by resigned, not 1 to 1} ],
	[ 'status', 'the worker fails, long after the disk was full', sub { tell_failure(); add('events', '%s fault full disk: all servers', 7) }, qr/nothing makes it fail/ ],
	[ 'status', 'the worker fails, and nothing makes it fail', sub { tell_failure() }, qr/nothing makes it fail/ ],
	[ 'not reset', 'a session is told of a reset that there was not',
		sub { add('candidate.s2.1', q(e %s LE006 %s SELECT leader_election.join('race', 's2'): ERROR:  this session was reset while it stood in election "race"), 39.9, 39.89) } ],
	[ 'reset not told', 'a session that was reset joins as if it had not been', sub { add('candidate.s1.1', 'j 1 race %s %s 00000', $_, $_ + 0.01) foreach 39.85, 39.9 } ],
	[ 'calm election', 'a term of a calm election ends', sub { end_at('calm|1', 20, 'expired') } ],
	[ 'calm election', 'the leader of a calm election leads no more, and then again', sub { lapse(20, 23) }, qr/calm_q: calm1 .* 1: not between 19/ ],
	[ 'calm election', 'a calm election has no leader for a moment',
		sub { add('candidate.w3.1', 'o calm_q %s %s vacant 1 - -', 21.2, 21.21) }, qr/calm_q: vacant/ ],
	[ 'calm election', 'a server process is stopped, while others commit', sub { end_at('calm|1', 20, 'expired'); add('events', '%s fault stop leader: client backend s1', 18.8) } ],
	[ 'calm election', 'nothing was committed for a while, long before the term ended', sub { stand_still(14.8, 16.4) } ],
	[ 'calm election', 'there is no lock for another statement of a leader, and no worker', sub { lack_locks(undef, 'SELECT 1') } ],
	[ 'calm election', 'there is no lock for a leader, and no worker, but only long before',
		sub { lack_locks(); edit('candidate.calm3.1', qr/^e /, sub { s/^e 19500000/e 18700000/ }) } ],
	[ 'calm election', 'there is no lock for a leader, but a worker', sub { lack_locks('a worker') } ],
	[ 'calm election', 'a candidate of a calm election loses its connection', sub { add('candidate.calm4.1', 'x %s lost', 20) } ],
	[ 'vacancy', 'nobody leads for long in a calm', sub { edit('events', qr/led race/, sub { s/0\.1$/4.1/ }) } ],
	[ 'quiet vacancy', 'nobody leads for long', sub { begin_at('race|2', 24) } ],
	[ 'quiet vacancy', 'nobody leads for long in a race, for which no seat is kept', sub { fall_asleep('resigned') } ],
	[ 'quiet vacancy', 'nobody leads for long where a session was named',
		sub { fall_asleep('resigned', undef, 'session'); add('events', '%s named lone', 16.5) } ],
	[ 'quiet vacancy', 'nobody leads for long in a race of the portable edition, and nobody was named',
		sub { fall_asleep('resigned', undef, 'session'); add('events', '%s edition portable', 1) } ],
	[ 'growth', 'locks', sub { edit('events', qr/measured/, sub { s/30 lease/101 lease/ }) }, qr/101 locks/ ],
	[ 'growth', 'tables', sub { edit('events', qr/measured/, sub { s/ 600 / 9000 / }) }, qr/9000 kB .* lease:300/ ],
	[ 'growth', 'tables, where a snapshot was held', sub { hold_snapshot(26000) }, qr/26000 kB/ ],
	[ 'growth', 'memory', sub { add('events', '%s measured 500 6000 600 14 30 lease:300', 39) }, qr/6000 kB/ ],
	[ 'left over', 'a lock', sub { edit('events', qr/left/, sub { s/0\|0\|0/1|0|0/ }) } ],
	[ 'crash', 'a process crashes',
		sub { add('server1.log', '2026-01-01 00:00:12.000 UTC [1] 00000 postmaster/: LOG:  server process (PID 100) was terminated by signal 11: Segmentation fault') } ],
	[ 'error in a log', 'an error that cannot be', sub { add('server1.log', '2026-01-01 00:00:12.000 UTC [100] XX000 client backend/s1: ERROR:  cache lookup failed for index 16409') } ],
	[ 'error in a log', 'a warning of what is left open', sub { add('server1.log', '2026-01-01 00:00:12.000 UTC [100] 01000 client backend/s1: WARNING:  buffer refcount leak: [001]') } ],
	[ 'error in a log', 'the lock table is full, and nobody has filled it', sub { add('server1.log', '2026-01-01 00:00:12.000 UTC [100] 53200 client backend/s1: ERROR:  out of shared memory') } ],
	[ 'error at a client', 'an error that cannot be', sub { add('candidate.s2.1', 'e %s XX000 %s SELECT 1: ERROR:  cache lookup failed', 39.9, 39.89) } ],
	[ 'gave up', 'a client ends', sub { $logs{'language.node.out'} = ["Error: Unhandled error. ('x')"] } ],
	[ 'nothing compared', 'no session renews', sub { remove(qr/^m/, qw(candidate.s1.1 candidate.s2.1 candidate.g1.1 candidate.g2.1 candidate.g3.1)) }, qr/no renewals/ ],
	[ 'nothing compared', 'no status is asked for', sub { remove(qr/^o/, 'candidate.w3.1') } ],
	[ 'nothing compared', 'nothing is announced', sub { remove(qr/^l/, @LISTENERS) }, qr/no announced terms/ ],
	[ 'nothing compared', 'a long run has little time in which calm elections are to be calm',
		sub { edit('events', qr/ ending$/, sub { s/^\d+/us(400)/e }); add('events', '%s fault full lock table: 1', 10 + 4.96 * $_) foreach 0 .. 77 }, qr/to be calm for [1-3]\S* s in 390 s/ ],
	[ 'the run itself', 'it does not end', sub { remove(qr/ end$/, 'events') } ],
);

# --- checks

# What the checker says of these logs: the output, and the kinds of violations
sub check_logs
{
	my ($name, %logs) = @_;
	my $folder = "$dir/$name";

	make_path($folder);
	foreach my $file (keys %logs)
	{
		append_to_file("$folder/$file", join '', map { "$_\n" } @{ $logs{$file} });
	}

	my $output = `$^X $CHECKER $folder 2>&1`;
	my %kinds = map { $_ => 1 } $output =~ /^VIOLATION, (.*) \(\d+\):$/mg;

	return ($output, %kinds);
}

my ($output, %kinds) = check_logs('good', good_logs());

is($?, 0, 'good logs: the exit code');
like($output, qr/^Violations: 0$/m, 'good logs: no violation') or diag $output;


# A term may follow at any number, if its election was dropped before.
%logs = good_logs();
set_history('race|2', 1 => 4);
recreate('race', 20.05, 20.35);
($output) = check_logs('recreated', %logs);
unlike($output, qr/after term 1 comes term 4/, 'numbers of terms are left out by a drop');

# What diagnose() counts begins anew then.
%logs = good_logs();
tell_terms();
recreate('lone', 26, 26.1);
($output) = check_logs('counted', %logs);
unlike($output, qr/terms ended by/, 'terms before a drop need not count');

# What is dead stays in the tables while an old snapshot is held.
%logs = good_logs();
hold_snapshot(24000);
($output) = check_logs('held', %logs);
like($output, qr/^Violations: 0$/m, 'tables grow while a snapshot is held') or diag $output;

# Where pg_dump meets REINDEX CONCURRENTLY
%logs = good_logs();
add('server1.log', '2026-01-01 00:00:12.000 UTC [100] XX000 client backend/pg_dump: ERROR:  cache lookup failed for index 16409');
($output) = check_logs('replaced', %logs);
like($output, qr/^Violations: 0$/m, 'pg_dump may miss an index that was replaced') or diag $output;

# Where a postmaster is killed
sub assertion_is_found
{
	my (@before) = @_;

	%logs = good_logs();
	push @{ $logs{'server1.log'} }, @before, 'TRAP: failed Assert("!IsTransactionOrTransactionBlock()"), File: "pgstat.c", Line: 732, PID: 100';
	($output, %kinds) = check_logs('assertion' . @before, %logs);
	return $kinds{crash};
}

my $ORPHANED = '2026-01-01 00:00:12.000 UTC [101] 57P01 client backend/s1: FATAL:  terminating connection due to unexpected postmaster exit';
ok(!assertion_is_found($ORPHANED), 'an assertion of PostgreSQL where a postmaster is killed') or diag $output;
ok(assertion_is_found(), '... and where none is');
ok(assertion_is_found($ORPHANED, '2026-01-01 00:00:13.000 UTC [1] 00000 postmaster/: LOG:  starting PostgreSQL 18.6'), '... or one was before');

# What a huge statement does is not committed before it ends.
sub late_is_found
{
	my ($name, @events) = @_;

	%logs = good_logs();
	push @{ $logs{history} }, map { join '|', 'vast-1', $_->[0], 'vast', 'detached', stamp($_->[1]), stamp($_->[2]), 'resigned', $EPOCH + $_->[1], $EPOCH + $_->[2] }
	  [ 1, 11.1, 11.2 ], [ 2, 12.5, 30.5 ];
	foreach my $listener (@LISTENERS)
	{
		insert($listener, qr/"race","event":"elected"/, notification('vast-1', 'elected', 1, 'vast', undef, undef, 11.1));
	}
	add('events', @$_) foreach @events;
	($output, %kinds) = check_logs($name, %logs);
	return $output =~ /^  vast-1: elected 2 .* which heard of a change/m;
}

ok(late_is_found('nothuge'), 'a term that is not announced for long') or diag $output;
ok(!late_is_found('huge', [ '%s fault huge statement: 2000, acquire', 12.4 ], [ '%s huge 2000 acquire', 30.4 ]),
	'... unless a huge statement commits it later') or diag $output;
ok(late_is_found('hugeloop', [ '%s fault huge statement: 2000, campaign', 12.4 ], [ '%s huge 2000 campaign', 30.4 ]),
	'... and not in a loop, which commits each') or diag $output;

# A worker that was stopped tells first of the leases that have expired. A listener
# that ends then does not hear the rest.
sub rest_is_missed
{
	my ($name, $stopped, $ended) = @_;

	%logs = good_logs();
	remove(qr/"race","event":"(?:vacated|elected","term":2)/, @LISTENERS);
	remove(qr/^[il] 1 (?:2[6-9]|[34]\d)\d{6}\b/, @LISTENERS) if $ended;
	add('events', '%s fault stop worker: leader_election worker', 20.3) if $stopped;
	($output, %kinds) = check_logs($name, %logs);
	return $output =~ /^  race: elected 2 .* which heard of a change/m;
}

ok(!rest_is_missed('stopped', 1, 1), 'a worker was stopped, and a listener ends') or diag $output;
ok(rest_is_missed('ended', 0, 1), '... or only the listener ends') or diag $output;
ok(rest_is_missed('heard', 1, 0), '... or it goes on') or diag $output;

# What makes a worker fail
%logs = good_logs();
tell_failure();
add('events', '%s fault full disk: all servers', 19);
($output) = check_logs('full', %logs);
unlike($output, qr/nothing makes it fail/, 'a worker may fail where the disk is full');

# What takes the lease of a leader that nobody attacks
%logs = good_logs();
lack_locks();
($output, %kinds) = check_logs('locks', %logs);
ok(!$kinds{'calm election'}, 'a lease runs out where there is neither a lock nor a worker') or diag $output;

# The lease of a session that is renewing it, in time, may run out until that is committed.
sub ask_often
{
	my ($vacant) = @_;
	my $file = 'candidate.s2.1';

	%logs = good_logs();
	add($file, 'q 1 race %s %s 2', $_ / 50, $_ / 50 + 0.01) foreach 1250 .. 1280, 1283 .. 1300;
	edit($file, qr/^j /, sub { s/@{[ us(25.61) ]}/us(25.65)/e }, 'all');
	$logs{$file} = [ sort { ($a =~ / (\d{5,})/)[0] <=> ($b =~ / (\d{5,})/)[0] } @{ $logs{$file} } ];
	add('candidate.w3.1', 'o race %s %s vacant 2 - -', $vacant, $vacant + 0.01);
	($output, %kinds) = check_logs("vacant$vacant", %logs);
	return $kinds{status};
}

ok(!ask_often(25.63), 'a session that renews may be shown to lead no longer');
ok(ask_often(25.33), 'but not between two renewals') or diag $output;

# What looks like a violation of that kind, and is none
my @EXCUSES = (
	[ 'ended early', 'a term of the old side of a failover is over', sub { lose_term(300) } ],
	[ 'history', 'a term of the old side of a failover is not in it', sub { lose_term(300) } ],
	[ 'fenced row', 'a row of another language may be committed on the old side of a failover', sub { write_late() } ],
	[ 'taken', 'a session that was reset is taken for one that was',
		sub { add('candidate.s1.1', 'z 1 %s %s', 15, 15.01); end_at('race|1', 20, 'session reset') } ],
	[ 'past the deadline', 'a call that was cancelled may have renewed a lease',
		sub {
			my @errors = (undef, '57014', '55P03', '55P03');

			edit('candidate.s1.1', qr/^m /, sub { s/1500$/-1/ if defined shift @errors }, 'all');
			insert('candidate.s1.1', qr/^j 1 race $_->[0]/, 'e ' . ($_->[0] + 10_000) . " $_->[1] $_->[0] SELECT * FROM leader_election.renew('race'): ERROR:  x")
			  foreach [ us(11.6), '57014' ], [ us(12.1), '55P03' ], [ us(12.6), '55P03' ];
		} ],
	[ 'quiet vacancy', 'who has just called still stands for a race',
		sub { fall_asleep('resigned', 19.6); edit('events', qr/ start /, sub { s/1500$/3000/ }) } ],
	[ 'quiet vacancy', 'a seat may be kept for whom it is handed over to', sub { fall_asleep('transferred') } ],
	[ 'quiet vacancy', 'a seat may be kept for who was named', sub { fall_asleep('resigned'); add('events', '%s named lone', 16.5) } ],
	[ 'quiet vacancy', 'in the portable edition a seat may be kept for a session that was named',
		sub { fall_asleep('resigned', undef, 'session'); add('events', $_, 1, 16.5) foreach '%s edition portable', '%2$s named lone' } ],
	[ 'status', 'nobody leads, while a command runs whose session has just ended', sub { end_session(22.99) } ],
	[ 'calm election', 'nothing is committed while a server process is stopped', sub { stand_still(18.8, 20.4) } ],
	[ 'calm election', 'a session may not lead where the whole server is hit', sub { lapse(20, 23); add('events', '%s fault full lock table: kept', 21) } ],
	[ 'calm election', 'a calm election may be vacant where the whole server is hit',
		sub { add('candidate.w3.1', 'o calm_q %s %s vacant 1 - -', 21.2, 21.21); add('events', '%s fault full lock table: kept', 21) } ],
	[ 'calm election', 'there is no lock for any statement of a session that leads, and no worker',
		sub {
			lack_locks();
			end_at('calm_q|1', 20, 'expired');
			add('candidate.calm1.1', 'e %s 53200 %s INSERT INTO chaos."w_calm_q": ERROR:  out of shared memory', 19.5, 19.49);
		} ],
);

foreach my $i (0 .. $#EXCUSES)
{
	my ($kind, $what, $change) = @{ $EXCUSES[$i] };

	%logs = good_logs();
	$change->();
	($output, %kinds) = check_logs("excuse$i", %logs);
	ok(!$kinds{$kind}, "no $kind: $what") or diag $output;
}

foreach my $i (0 .. $#CHANGES)
{
	my ($kind, $what, $change, $text) = @{ $CHANGES[$i] };

	%logs = good_logs();
	$change->();
	($output, %kinds) = check_logs("change$i", %logs);
	ok($kinds{$kind} && $output =~ ($text // qr//), "$kind: $what") or diag $output;
}

done_testing();
