# The steps of 051_model.pl in which time passes: a lease, a seat that is kept, or
# the life of a detached candidate runs out.

package ModelExpiry;

use strict;
use warnings;

use Exporter qw(import);
use ModelRules;
use ModelRun;
use ModelSteps;
use Time::HiRes qw(time);

our @EXPORT = qw($late expire lapse vanish);

# A short lease, in milliseconds
my $SHORT = 1_000;

# What has to be done within a short lease has to be done within this part of
# it, in seconds; the machine may be too slow for it now and then.
my $IN_TIME = 0.6 * $SHORT / 1000;

# How often it was not
our $late = 0;

# May a lease be a short one here?  The seats of a group have one setting: others
# must not be granted meanwhile.
sub may_be_short
{
	my ($run, $election) = @_;
	my $s = $run->{states}[0];
	my $group = $s->{elections}{$election}{group} // return 1;

	return !grep { $_ ne $election && !defined $s->{elections}{$_}{leader} }
	  seats($s, $group);
}

# Followers whom the leader may name
sub heirs
{
	my ($run, $election, $l, $kind) = @_;

	return grep { !refuses($run->{states}[0], $election, $_) }
	  followers($l, $kind);
}

# Does these with a short lease, and some more with a long one again, each after
# the one before has had its effect, as long as the short lease is sure not to
# run out.  False: it took too long, or failed.
sub in_time
{
	my ($run, $election, $calls, @more) = @_;
	my $until = time + $IN_TIME;

	foreach my $call (
		sub { alter($run, $election, 'lease_duration', "'$SHORT ms'") },
		@$calls,
		sub { alter($run, $election, 'lease_duration', "'$LONG ms'") },
		@more)
	{
		$call->($run->{states}[0]{elections}{$election});
		next if settled($run, $until - time) && time < $until;
		return 0 if $run->{failed};
		push @{ $run->{log} }, 'too late';
		$late++;
		$run->{generation}++;
		begin($run);
		return 0;
	}
	return 1;
}

# Time passes.
sub passes
{
	my ($run, $what, $mean) = @_;

	return step($run, $what, sub { '' }, sub { $mean->($_[0]); return ''; });
}

# A detached follower calls no more; perhaps the seat is kept for it.
sub vanish
{
	my ($run, $election, $l) = @_;
	my $name;

	return 0 unless defined $l->{leader} && may_be_short($run, $election);
	$name = pick($run, heirs($run, $election, $l, 'detached')) or return 0;
	return !$run->{failed}
	  unless in_time(
		$run,
		$election,
		[ sub { call($run, $election, $name, 'detached') } ],
		chance($run, 40) ?
		  sub { transfer_to($run, $election, $_[0], $name) } :
		  ());
	return passes($run, "$name is silent",
		sub { withdraw($_[0], $election, $name) });
}

# The seat is kept for a detached candidate, which does not come.
sub lapse
{
	my ($run, $election, $l) = @_;
	my ($name, $to);

	return 0
	  unless defined $l->{leader}
	  && has_quorum($l)
	  && may_be_short($run, $election);

	# The first transfer may change to whom strategies want other seats to go.
	return 0 if defined $l->{group} && $l->{strategy} =~ /^(bully|spread)$/;
	$name = pick($run, heirs($run, $election, $l, 'session')) or return 0;
	$to =
	  pick($run, grep { $_ ne $name } heirs($run, $election, $l, 'detached'))
	  or return 0;
	return !$run->{failed}
	  unless in_time(
		$run,
		$election,
		[
			sub { transfer_to($run, $election, $_[0], $name) },
			sub { transfer_to($run, $election, $_[0], $to) }
		]);
	return passes(
		$run,
		"$to does not come",
		sub {
			my ($s) = @_;

			delete $s->{elections}{$election}{reserved};
			sit_out($s, $election, $to);
		});
}

# A leader does not renew its lease, or may not, since it was asked to yield.
sub expire
{
	my ($run, $election, $l) = @_;
	my ($name, $kind, $asked, $to);

	return 0
	  unless defined $l->{leader}
	  && has_quorum($l)
	  && may_be_short($run, $election);
	$name = pick($run, heirs($run, $election, $l)) or return 0;
	$kind = $l->{candidates}{$name}{kind};
	$asked = $l->{candidates}{$name}{auto_renew} || chance($run, 50);
	$to = pick($run, undef, grep { $_ ne $name && !$l->{drained}{$_} } sort keys %{ $l->{candidates} })
	  unless defined $l->{group};
	return !$run->{failed}
	  unless in_time(
		$run,
		$election,
		[
			sub { transfer_to($run, $election, $_[0], $name) },
			$kind eq 'detached' ?
			  sub { call($run, $election, $name, $kind) } :
			  (),
			sub {
				ask_to_yield($run, $election, $_[0], $to)
				  if $asked && !$_[0]{yield};
			}
		],

		# It goes on standing.
		$kind eq 'detached' ?
		  sub { call($run, $election, $name, $kind) } :
		  ());
	return passes(
		$run,
		"$name lets its lease run out",
		sub {
			my $n = $_[0]{elections}{$election};

			$n->{over} = $n->{yield} ? 'yielded' : 'expired';
		});
}

1;
