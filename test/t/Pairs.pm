# The cases of 133_pairs: elections in which two reasons not to elect meet, how
# they are made on a server, and how they are told to test/rules/ask.
#
#	my @cases = cases();
#	my $plan = plan_of(@cases);
#	statements($plan, 'stand', 'a')
#	line($case, $world)
#
# Reasons of a seat bar it, whoever stands.  Reasons of a candidate are why that
# one is not elected.  For each two of them there are some layouts: each on a
# candidate of its own, both on the same one, with and without others beside.
#
# What a reason needs is done in the phases @PHASES, for all cases together, by
# sessions that are named after what they do: "a" and "b" are candidates, "dead a"
# and "dead b" those that die, "former" a leader that gives up, "gone" one that
# dies, "pool" is the connection of those that are detached, "admin" that of the
# operator.  In the meantime the quorum is one that is never reached.

package Pairs;

use strict;
use warnings;

use Exporter qw(import);

our @EXPORT = qw(%HOURS @PHASES @REASONS @SESSIONS alter begin_state caller_of cases drains
  final_quorum has lift line name_of plan_of session_of stands);

# Hours, all different, and longer than any test: leases, holds and so on.
our %HOURS = (
	paused => 2,
	hold => 4,
	takeover_delay => 5,
	initial_delay => 6,
	lease => 10);

our $NEVER_REACHED = 1000;
my $QUORUM = 9;

our @SEAT = qw(withdrawn paused paused_all grace hold takeover_delay quorum
  initial_delay reserved);
our @CANDIDATE = qw(drained drained_all drained_prefix cap not_admitted regranted
  sits_out dead silent run_done attempts);
our @REASONS = (@SEAT, @CANDIDATE);
my %IS_OF_SEAT = map { $_ => 1 } @SEAT;

# In the order in which they are done; the sessions within each
our @PHASES = qw(create run lead delay end lapse stand reserve);
our @SESSIONS = ('former', 'gone', 'dead a', 'a', 'dead b', 'b', 'c', 'pool', 'admin');

# Reasons of a detached candidate, and those that cannot meet on one candidate
my %DETACHED = map { $_ => 1 } qw(silent run_done attempts);
my %APART = (
	dead => { silent => 1, run_done => 1, attempts => 1 },
	not_admitted => { regranted => 1 });

my @STRATEGIES = qw(race lowest bully ring zab);
my %RANKS = (a => 2, b => 1, c => 3);
# The run that is done, and a later one that was tried
my ($DONE, $TRIED) = ('2026-11-21', '2026-11-22');

sub meet
{
	my ($one, $two) = @_;

	return !$APART{$one}{$two} && !$APART{$two}{$one};
}

# The layouts of two reasons, or of one: reasons of each candidate that stands
sub layouts
{
	my ($one, $two) = @_;
	my @on = grep { !$IS_OF_SEAT{$_} } grep { defined } $one, $two;

	return ({ a => [], b => [] }, { a => [] }) unless @on;
	if (@on == 1)
	{
		return ({ a => \@on }, { a => \@on, b => [] }, { a => [], b => \@on });
	}
	return (
		{ a => [ $on[0] ], b => [ $on[1] ] },
		{ a => [ $on[1] ], b => [ $on[0] ] },
		{ a => [ $on[0] ], b => [ $on[1] ], c => [] },
		meet(@on) ? ({ a => \@on }, { a => \@on, b => [] }) : ());
}

# A case: what holds for the seat, and who stands.
sub make_case
{
	my ($number, $reasons, $layout, $for) = @_;
	my %seat = map { $_ => 1 } grep { $IS_OF_SEAT{$_} } @$reasons;
	my %case = (
		pair => join(' x ', @$reasons),
		seat => \%seat,
		strategy => $STRATEGIES[ $number % @STRATEGIES ],
		who => {});

	foreach my $letter (sort keys %$layout)
	{
		my %has = map { $_ => 1 } @{ $layout->{$letter} };
		my $detached = grep { $DETACHED{$_} } keys %has;

		# Some others are detached, too.
		$detached ||= !$has{dead}
		  && ($letter eq 'a' ? $number % 3 == 2 : $number % 4 == 3);
		$case{who}{$letter} = { has => \%has, detached => $detached ? 1 : 0 };
	}
	if ($seat{reserved})
	{
		$case{reserved} = $for;
		$case{who}{$for} //= { has => {} };
		$case{who}{$for}{detached} = 1 unless $case{who}{$for}{has}{dead};
	}

	my ($is_group) =
	  grep { $_ eq 'cap' || $_ eq 'withdrawn' } @$reasons;
	$case{group} = "case-$number" if $is_group;
	$case{election} = $is_group ? "case-$number/3" : "case $number";
	set_places(\%case);
	return \%case;
}

# Who sits out has stood before the others.
sub set_places
{
	my ($case) = @_;
	my $who = $case->{who};
	my $place = 0;

	$who->{$_}{place} = ++$place
	  foreach sort { ($who->{$b}{has}{sits_out} // 0) <=> ($who->{$a}{has}{sits_out} // 0)
		  || $a cmp $b } keys %$who;
	return;
}

# All cases
sub cases
{
	my @cases;

	foreach my $i (0 .. $#REASONS)
	{
		foreach my $k ($i .. $#REASONS)
		{
			my @pair = $i == $k ? ($REASONS[$i]) : @REASONS[ $i, $k ];

			foreach my $layout (layouts(@pair))
			{
				# For another one, or for who has the other reason
				my @for =
				    !grep({ $_ eq 'reserved' } @pair) ? (undef)
				  : stands({ has => { map { $_ => 1 } @{ $layout->{a} } } }) ? qw(c a)
				  : 'c';

				push @cases, make_case(scalar @cases, \@pair, $layout, $_) foreach @for;
			}
		}
	}
	return @cases;
}

# The name under which a candidate of that letter stands: a drain of all elections
# has to find it by that.
sub name_of
{
	my ($case, $letter) = @_;
	my $has = $case->{who}{$letter}{has};

	return join(' ',
		$has->{drained_prefix} ? 'host9' : (),
		$has->{drained_all} ? 'everywhere' : (), $letter);
}

# Does it stand?  Who asks for a run that is done, or was tried often enough,
# does not.
sub stands
{
	my ($c) = @_;

	return !$c->{has}{run_done} && !$c->{has}{attempts};
}

# --- How they are made

sub role_of
{
	my ($c) = @_;

	return
	    $c->{has}{not_admitted} ? 'outsider'
	  : $c->{has}{regranted} ? 'returner'
	  : 'app';
}

sub session_of
{
	my ($c, $letter) = @_;

	return $c->{detached} ? 'pool' : $c->{has}{dead} ? "dead $letter" : $letter;
}

# The run that it asks for
sub run_of { return $_[0]{has}{attempts} ? $TRIED : $DONE; }

# What a candidate says to stand, and to be elected
sub call_of
{
	my ($case, $letter, $election) = @_;
	my $c = $case->{who}{$letter};
	my $name = name_of($case, $letter);

	$election //= $case->{election};
	return "SELECT leader_election.join('$election', '$name', $RANKS{$letter})"
	  unless $c->{detached};
	return "SELECT count(*) FROM leader_election.acquire('$election', '$name', $RANKS{$letter}"
	  . (stands($c) ? ')'
		: ", run => '" . run_of($c) . "', attempts => "
		  . ($c->{has}{attempts} ? '1)' : 'NULL)'));
}

# By which role, and how, a candidate calls
sub caller_of
{
	my ($case, $letter) = @_;

	return (role_of($case->{who}{$letter}), call_of($case, $letter));
}

# The plan has, for each phase and session, the statements of each role.
sub add
{
	my ($plan, $phase, $session, $role, @sql) = @_;

	push @{ $plan->{$phase}{$session} }, map { [ $role, $_ ] } @sql;
	return;
}

sub alter
{
	my ($case, $settings) = @_;

	return defined $case->{group}
	  ? "SELECT leader_election.alter_group('$case->{group}', $settings)"
	  : "SELECT leader_election.alter_election('$case->{election}', $settings)";
}

# The term of an election that a detached leader has, given back
sub release
{
	my ($election, $arguments) = @_;

	return "SELECT leader_election.release(election, term$arguments)
		FROM leader_election.status WHERE election = '$election'";
}

sub plan_creation
{
	my ($plan, $case) = @_;
	my $settings = "'$case->{strategy}', lease_duration => '$HOURS{lease} h'";

	$settings .= ", takeover_delay => '$HOURS{takeover_delay} h'"
	  if $case->{seat}{takeover_delay};
	add($plan, 'create', 'admin', 'none',
		defined $case->{group}
		? "SELECT leader_election.create_group('$case->{group}', 3, max_per_candidate => 3, strategy => $settings)"
		: "SELECT leader_election.create_election('$case->{election}', $settings)");
	return;
}

# The run that is done, or was tried, by a candidate that is no more; or by the one
# that sits out.
sub plan_run
{
	my ($plan, $case) = @_;
	my $election = $case->{election};

	my $who = $case->{who};

	foreach my $letter (
		sort { run_of($who->{$a}) cmp run_of($who->{$b}) }
		grep { !stands($who->{$_}) } keys %$who)
	{
		my $c = $who->{$letter};
		my $name = $c->{has}{sits_out} ? name_of($case, $letter) : 'runner';
		my $done = $c->{has}{run_done} ? ', done => true' : '';

		add($plan, 'run', 'pool', role_of($c),
			"SELECT count(*) FROM leader_election.acquire('$election', '$name', run => '"
			  . run_of($c) . "', attempts => 1)",
			release($election, $done));
		add($plan, 'run', 'pool', role_of($c),
			"SELECT leader_election.leave('$election', '$name')")
		  unless $c->{has}{sits_out};
	}
	return;
}

# The former leader: one that sits out since, or somebody else.  A delay is for one
# that did not give up: its lease ran out, or its session died.
sub plan_former
{
	my ($plan, $case) = @_;
	my ($letter) = grep { $case->{who}{$_}{has}{sits_out} } keys %{ $case->{who} };
	my $election = $case->{election};
	my $hold = $case->{seat}{hold} ? "'$HOURS{hold} h'" : 'NULL';

	if (!defined $letter)
	{
		my $session =
		    $case->{seat}{hold} ? 'former'
		  : $case->{seat}{takeover_delay} ? 'gone'
		  : return;

		add($plan, 'lead', $session, 'app', "SELECT leader_election.join('$election', '$session')");
		add($plan, 'end', $session, 'app',
			"SELECT leader_election.resign('$election', $hold)",
			"SELECT leader_election.leave('$election')")
		  if $session eq 'former';
		return;
	}

	my $c = $case->{who}{$letter};
	my @as = (session_of($c, $letter), role_of($c));

	return if !stands($c);
	if ($case->{seat}{takeover_delay} && !$case->{seat}{hold})
	{
		my $call = call_of($case, $letter);

		$call =~ s/\)$/, auto_renew => false)/ unless $c->{detached};
		add($plan, 'create', 'admin', 'none', alter($case, "lease_duration => '100 ms'"));
		add($plan, 'lead', @as, $call);
		add($plan, 'delay', 'admin', 'none', alter($case, "lease_duration => '$HOURS{lease} h'"));
		add($plan, 'lapse', @as, call_of($case, $letter));
		return;
	}
	add($plan, 'lead', @as, call_of($case, $letter));
	add($plan, 'end', @as,
		$c->{detached}
		? release($election, ", hold => $hold")
		: "SELECT leader_election.resign('$election', $hold)");
	return;
}

# Before a seat falls vacant for good
sub plan_delay
{
	my ($plan, $case) = @_;
	my $settings = "quorum => $NEVER_REACHED";

	$settings .= ", initial_delay => '$HOURS{initial_delay} h'"
	  if $case->{seat}{initial_delay};
	add($plan, 'delay', 'admin', 'none', alter($case, $settings));
	return;
}

sub plan_candidates
{
	my ($plan, $case) = @_;
	my $other = 0;

	foreach my $letter (sort keys %{ $case->{who} })
	{
		my $c = $case->{who}{$letter};
		my @as = (session_of($c, $letter), role_of($c));

		add($plan, 'lead', @as, call_of($case, $letter, "$case->{group}/" . ++$other))
		  if $c->{has}{cap};
		add($plan, 'stand', @as, call_of($case, $letter));
	}
	return;
}

sub plan_reservation
{
	my ($plan, $case) = @_;
	my $election = $case->{election};
	my $name = name_of($case, $case->{reserved});

	add($plan, 'reserve', 'admin', 'none',
		"SELECT leader_election.pause_election('$election')",
		"SELECT leader_election.request_yield('$election', '$name')",
		"SELECT leader_election.resume_election('$election')");
	return;
}

# What befalls the candidates that stand
sub plan_spoiling
{
	my ($plan, $case) = @_;
	my $election = $case->{election};
	my %once;

	foreach my $letter (sort keys %{ $case->{who} })
	{
		my $has = $case->{who}{$letter}{has};
		my $name = name_of($case, $letter);

		$once{"SELECT leader_election.drain_candidate('$name', '$election')"}++
		  if $has->{drained};
		$once{ alter($case, "candidate_role => 'members'") }++
		  if $has->{not_admitted} || $has->{regranted};
		$once{ alter($case, 'max_per_candidate => 1') }++ if $has->{cap};
		$once{
			"UPDATE leader_election.candidate SET seen_mono = seen_mono - seen_for - 1
				WHERE election = '$election' AND candidate = '$name'"
		}++ if $has->{silent};
	}
	add($plan, 'spoil', 'admin', 'none', sort keys %once);
	return;
}

sub plan_bars
{
	my ($plan, $case) = @_;

	add($plan, 'bar', 'admin', 'none',
		"SELECT leader_election.pause_election('$case->{election}', duration => '$HOURS{paused} h')")
	  if $case->{seat}{paused};
	add($plan, 'bar', 'admin', 'none', alter($case, 'seats => 2'))
	  if $case->{seat}{withdrawn};
	return;
}

# What is drained in all elections
sub drains
{
	my (@cases) = @_;
	my %drains;

	foreach my $case (@cases)
	{
		foreach my $letter (keys %{ $case->{who} })
		{
			my $has = $case->{who}{$letter}{has};

			$drains{ name_of($case, $letter) } = 1 if $has->{drained_all};
			$drains{'host9*'} = 1 if $has->{drained_prefix};
		}
	}
	return sort keys %drains;
}

# How all of these are made: {phase}{session}, a list of [ role, statement ]
sub plan_of
{
	my (@cases) = @_;
	my $plan = {};

	foreach my $case (@cases)
	{
		plan_creation($plan, $case);
		plan_run($plan, $case);
		plan_former($plan, $case);
		plan_delay($plan, $case);
		plan_candidates($plan, $case);
		plan_reservation($plan, $case) if $case->{seat}{reserved};
		plan_spoiling($plan, $case);
		plan_bars($plan, $case);
	}
	return $plan;
}

# --- What they are told to test/rules/ask

# What may change later, as it is when all has been made
sub begin_state
{
	my ($case) = @_;

	$case->{quorum} = $NEVER_REACHED;

	# Only a candidate's call, or the worker, notices that the leader has died.
	$case->{unnoticed} = !grep { stands($_) } values %{ $case->{who} };
	$case->{sits_out} =
	  { map { $_ => 1 } grep { $case->{who}{$_}{has}{sits_out} } keys %{ $case->{who} } };

	# Candidates' rows, and what counts by the clock of the former server, are gone.
	if ($case->{seat}{grace})
	{
		$case->{sits_out} = {};
		delete $case->{reserved};
		my $place = 0;

		$case->{who}{$_}{place} = ++$place foreach sort keys %{ $case->{who} };
	}
	$case->{gave_up} = { %{ $case->{sits_out} } };
	return;
}

# The quorum, once all has been made
sub final_quorum
{
	my ($case) = @_;

	$case->{quorum} = $case->{seat}{quorum} ? $QUORUM : 1;
	return alter($case, "quorum => $case->{quorum}");
}

# What of a candidate is over once all is lifted
my %LIFTED = map { $_ => 1 } qw(drained full not_admitted);

# Is that so of a candidate, in the words of test/rules/ask?
sub has
{
	my ($case, $letter, $what, $world) = @_;
	my $has = $case->{who}{$letter}{has};

	return 0 if $case->{lifted} && $LIFTED{$what};
	return
	    $what eq 'dead' ? $has->{dead} || $has->{silent}
	  : $what eq 'drained' ? $has->{drained} || $has->{drained_all} || $has->{drained_prefix}
	  : $what eq 'full' ? $has->{cap} && (!$case->{seat}{grace} || $world->{grace})
	  : $what eq 'not_admitted' ? $has->{not_admitted} || ($has->{regranted} && $world->{revoked})
	  : $case->{$what}{$letter};
}

# All that an operator can end is ended: how, and from now on the case is told so.
sub lift
{
	my ($case) = @_;
	my %settings = (
		quorum => $case->{seat}{quorum} ? 1 : undef,
		initial_delay => $case->{seat}{initial_delay} ? "'0'" : undef);
	my @sql;

	foreach my $letter (sort keys %{ $case->{who} })
	{
		my $has = $case->{who}{$letter}{has};

		push @sql, "SELECT leader_election.undrain_candidate('"
		  . name_of($case, $letter) . "', '$case->{election}')"
		  if $has->{drained};
		$settings{candidate_role} = "''" if $has->{not_admitted};
		$settings{max_per_candidate} = 3 if $has->{cap};
	}
	push @sql, "SELECT leader_election.resume_election('$case->{election}')"
	  if $case->{seat}{paused};
	push @sql, map { alter($case, "$_ => $settings{$_}") }
	  grep { defined $settings{$_} } sort keys %settings;
	$case->{lifted} = 1;
	$case->{quorum} = 1;
	return @sql;
}

sub line_of_candidate
{
	my ($case, $letter, $world) = @_;
	my $c = $case->{who}{$letter};

	return join(',',
		"$letter=" . ($c->{detached} ? 'detached' : 'session'),
		"rank=$RANKS{$letter}",
		"place=$c->{place}",
		grep { has($case, $letter, $_, $world) }
		  qw(dead drained full not_admitted sits_out gave_up));
}

sub line_of_seat
{
	my ($case, $world) = @_;
	my $seat = $case->{seat};

	# A hold or a delay counts for its own length at most after a failover, which is
	# longer ago once the grace has ended.
	my $is_over = $seat->{grace} && !$world->{grace};

	return ("led=$case->{leader}",
		defined $case->{successor} ? "yielding=$case->{successor}" : ())
	  if defined $case->{leader};
	return (
		# Nobody but the former leader has stood when it fell vacant.
		'waits=0',
		$is_over ? ()
		: $seat->{hold} ? "hold=$HOURS{hold}"
		: $seat->{takeover_delay} && !$case->{unnoticed} ? "takeover_delay=$HOURS{takeover_delay}"
		: (),
		defined $case->{reserved}
		? ("reserved=$case->{reserved}", "reserved_until=$HOURS{lease}")
		: ());
}

# A case in words.  The world: {pause_all}, {grace}, {revoked}: whether the role of
# those that are "regranted" is no member; the caller, if any.
sub line
{
	my ($case, $world, $caller) = @_;
	my %seat = %{ $case->{seat} };

	delete @seat{qw(paused initial_delay)} if $case->{lifted};
	return join(' ',
		$case->{election} =~ tr/ /_/r,
		"strategy=$case->{strategy}",
		"quorum=$case->{quorum}",
		$seat{withdrawn} ? 'withdrawn' : (),
		$world->{pause_all} ? 'paused=never' : $seat{paused} ? "paused=$HOURS{paused}" : (),
		$world->{grace} ? "grace=$HOURS{lease}" : (),
		$seat{initial_delay} ? "initial_delay=$HOURS{initial_delay}" : (),
		line_of_seat($case, $world),
		(map { line_of_candidate($case, $_, $world) }
			  grep { stands($case->{who}{$_}) } sort keys %{ $case->{who} }),
		defined $caller ? "caller=$caller" : ());
}

1;
