# Random steps in elections of every strategy, against a model of what the rules
# say: after each step the leader, the term, why the last ones ended, and who
# comes next in which order have to be as the model has them.
#
#	MODEL_SEED   what is done is drawn from it; 1 unless set, others find more
#	MODEL_STEPS  how many steps in all, 6500 unless set
#
# Each strategy has a database of its own, so that its worker is woken by nothing
# else, with elections and candidates, sessions and detached ones; and another
# one with a group as well, beside elections in which the same candidates stand.
# What happens there does not depend on the others.  They take turns, so that one
# can wait for a lease to run out while others go on.
#
# The leases are longer than the test: nothing in here expires but what is
# meant to.  For that the lease is made a short one just for the call that it
# counts for, since a lease that is granted, and a sign of life, count for as
# long as was said at that moment.
#
# Where several elections are to be decided at once, as those of a worker that
# died, nobody says which one comes first.  So the model is a set of states, all
# that can be reached by any order of the single decisions; the server has to be
# in one of them.
#
# ModelRules.pm has the rules, ModelRun.pm compares the server with them, and
# ModelSteps.pm, ModelGroups.pm and ModelExpiry.pm have the steps.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use ModelExpiry;
use ModelGroups;
use ModelRules;
use ModelRun;
use ModelSteps;
use Test::More;
use Time::HiRes qw(sleep time);

my $MAY_BE_LATE = 5;

# How often each step was taken, and what ended terms
my (%done, %reasons);

my @STEPS = (
	[ 20, \&join_new, 'join_new' ],
	[ 8, \&call_again, 'call_again' ],
	[ 30, \&come, 'come' ],
	[ 15, \&resign, 'resign' ],
	[ 6, \&transfer, 'transfer' ],
	[ 6, \&leave, 'leave' ],
	[ 2, \&leave_all, 'leave_all' ],
	[ 8, \&die_at_once, 'die_at_once' ],
	[ 6, \&request_yield, 'request_yield' ],
	[ 5, \&renew, 'renew' ],
	[ 5, \&alter_quorum, 'alter_quorum' ],
	[ 4, \&alter_strategy, 'alter_strategy' ],
	[ 2, \&alter_delay, 'alter_delay' ],
	[ 8, \&alter_flap, 'alter_flap' ],
	[ 4, \&misuse, 'misuse' ],
	[ 3, \&pause, 'pause' ],
	[ 20, \&resume, 'resume' ],
	[ 8, \&pause_all, 'pause_all' ],
	[ 5, \&drain, 'drain' ],
	[ 12, \&undrain, 'undrain' ],
	[ 40, \&join_group, 'join_group' ],
	[ 30, \&acquire_any, 'acquire_any' ],
	[ 8, \&alter_seats, 'alter_seats' ],
	[ 8, \&alter_cap, 'alter_cap' ],
	[ 20, \&resign_withdrawn, 'resign_withdrawn' ],
	[ 3, \&vanish, 'vanish' ],
	[ 3, \&lapse, 'lapse' ],
	[ 5, \&expire, 'expire' ]);

# Some step for which there is occasion
sub any_step
{
	my ($run) = @_;
	my $sum = 0;

	$sum += $_->[0] foreach @STEPS;
	for (;;)
	{
		my $s = $run->{states}[0];
		my $election = pick($run, sort keys %{ $s->{elections} });
		my $l = $s->{elections}{$election};
		my $n = dice($run, $sum);
		my $i = 0;

		# Often somebody joins where there are few.
		$n = 0 if keys %{ $l->{candidates} } < 3 && chance($run, 30);
		$n -= $STEPS[ $i++ ][0] while $n >= $STEPS[$i][0];

		# Where a seat would wait for others to stand, they go, until nobody is left to
		# follow the leader.
		if ($l->{initial_delay} && led($l) && chance($run, 25))
		{
			my $goes = keys %{ $l->{candidates} } > 1 ? 'leave' : 'resign';

			($i) = grep { $STEPS[$_][2] eq $goes } 0 .. $#STEPS;
		}

		# Where several seats are due to a candidate, soon it may have but one.
		($i) = grep { $STEPS[$_][2] eq 'alter_cap' } 0 .. $#STEPS
		  if $l->{group} && chance($run, 30) && is_due_twice($s, $l->{group});
		if ($STEPS[$i][1]->($run, $election, $l) || $run->{failed})
		{
			$done{ $STEPS[$i][2] }++;
			return;
		}
	}
}

# A look at a run: have it take a step, unless it waits for something.  False:
# it does still.
sub turn
{
	my ($run) = @_;

	unless ($run->{expected})
	{
		$run->{steps}--;
		push @{ $run->{log} }, '--';
		any_step($run);
		return 1;
	}
	return 0 if time < $run->{next_look};
	if (arrived($run))
	{
		check_views($run);
		return 1;
	}
	my $waited = time - $run->{since};
	complain($run, 'comes to rest elsewhere') if $waited > $SETTLED_IN;
	$run->{next_look} = time + $waited / 10;
	return 0;
}

note("MODEL_SEED=$SEED MODEL_STEPS=$STEPS");

$node = new_server(
	config => qq(
autovacuum = off
client_min_messages = warning
));

my @runs = map {
	my $n = $_;

	map {
		{
			name => $STRATEGIES[$n] . ($_ ? '_group' : ''),
			strategy => $STRATEGIES[$n],
			has_group => $_,
			dice => $SEED + ($n + $_ * @STRATEGIES) * 7919,
			generation => 1,
			sessions => {},
			# spread, the last one, has more to be decided
			steps => int($STEPS / (2 * @STRATEGIES + 1)) *
			  ($STRATEGIES[$n] eq 'spread' && !$_ ? 2 : 1),
			log => []
		}
	} 0, 1
} 0 .. $#STRATEGIES;
foreach my $run (@runs)
{
	my $db = $run->{name};

	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql($db, 'CREATE EXTENSION leader_election');
	$run->{control} = session($node, name => "$db control", dbname => $db);
	$run->{pool} =
	  [ map { session($node, name => "$db pool $_", dbname => $db) } 1 .. 2 ];
	dice($run, 1) foreach 1 .. 10;
	begin($run);
}

while (my @going =
	grep { !$_->{failed} && ($_->{steps} > 0 || $_->{expected}) } @runs)
{
	sleep(0.005) unless grep { turn($_) } @going;
}
foreach my $run (@runs)
{
	ok(!$run->{failed}, "$run->{name}: as the model has it (G1, G2, G5)");
	$reasons{$_}++
	  foreach $run->{control}->query('SELECT reason'
		  . ' FROM leader_election.history WHERE reason IS NOT NULL');
}
note('steps: ' . join ', ', map { "$_ $done{$_}" } sort keys %done);
note('elections: ' . join ', ', map { "$_ $seen{$_}" } sort keys %seen);
note('terms that ended: ' . join ', ', map { "$_ $reasons{$_}" } sort keys %reasons);
cmp_ok($late, '<=', $MAY_BE_LATE + held_up() / 1e6, 'what a short lease was for was done in time');

$node->stop;
done_testing();
