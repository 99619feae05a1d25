#!/usr/bin/perl
#
# Is there an order of all calls that explains all answers? Each call has to take
# effect at one moment between its call and its return, and the answers have to be those
# of Model.pm, one call after the other. That is to be linearizable; README.md has the
# format of histories, and what is claimed.
#
#	test/linear/check.pl HISTORY...
#
# Elections and groups are checked one by one: no call concerns two of them. For each,
# the checker goes through the calls and returns in the order of time, and keeps all
# states that the answers so far allow. At a return, the call has to have taken effect:
# by itself, or after others that are under way. When no state is left, the history is
# not linearizable, and this call cannot be explained.
#
# A call without an answer may take effect at any time, or never. If it was
#	acquire()	nobody knows the term, and no call names it
#	renew()		it may take effect once, and the lease may be the longest one then
#	release()	the term may be over from then on
#	a write		it may take effect until the term is over
# An error has changed nothing. That a term is over may be in doubt, and is told, while a
# renewal of it is under way, and the lease of before may be over: that tells nothing.
# Exit code: 0 if all is linearizable, 1 if not.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use JSON::PP;
use List::Util qw(max min);
use Model;

my $MOST_STATES = 20_000;	# of one election at a time
my $NEVER = 9e15;
my $LATE_US = 30_000_000;	# no call is under way for so long, if nobody awaits it any more
my $RESET_US = 50_000;		# the pooler's connections are reset when it is moved

# --- histories

# Calls and what was answered to them, by election or group
sub read_histories
{
	my ($settings, @files) = @_;
	my $json = JSON::PP->new;
	my %objects;

	foreach my $path (@files)
	{
		my %calls;

		open my $file, '<', $path or die "$path: $!\n";
		while (my $line = <$file>)
		{
			last if $line !~ /\n\z/;	# who wrote it was killed

			my $said = $json->decode($line);

			if ($said->{caps})
			{
				%$settings = %$said;
			}
			elsif (defined $said->{call})
			{
				$said->{line} = "$path:$.";
				$calls{ $said->{id} } = $said;
				push @{ $objects{ $said->{object} } }, $said;
			}
			else
			{
				my $call = delete $calls{ $said->{id} } or die "$path:$.: an answer without a call\n";

				%$call = (%$call, %$said);
			}
		}
	}

	# What happens to a server happens to all.
	my $all = delete $objects{'*'} // [];

	push @$_, map { {%$_} } @$all foreach values %objects;
	return \%objects;
}

# Is it in doubt whether the term is over, about which this call was told so? By what had
# been answered before, the lease may be over by then, but a renewal is under way.
sub in_doubt
{
	my ($op, $leases) = @_;
	my @of_term = @{ $leases->{ $op->{seat} }{ $op->{term} } // [] };

	return !(grep { $_->{until} > $op->{return} && $_->{return} < $op->{call} } @of_term)
	  && grep { $_->{renews} && $_->{call} < $op->{return} && $_->{return} > $op->{call} } @of_term;
}

# For each seat and term, when it was granted and renewed, and until when at least
sub leases
{
	my (@calls) = @_;
	my %leases;

	foreach my $op (@calls)
	{
		my $renews = $op->{op} eq 'renew';

		next if defined $op->{failed} || $op->{op} !~ /^(acquire|renew)$/;
		foreach my $row ($op->{return} ? @{ $op->{rows} } : $renews ? [ @$op{qw(seat term)}, 0 ] : ())
		{
			my %lease = (call => $op->{call}, return => $op->{return} // $op->{call} + $LATE_US, renews => $renews,
				until => ($op->{sent} // 0) + 1000 * $row->[2]);

			push @{ $leases{ $row->[0] }{$_} }, \%lease foreach $row->[1], $renews ? $op->{term} : ();
		}
	}
	return \%leases;
}

# What changes nothing and tells nothing is left out; what is not known is as the head
# of this file says.
sub simplify
{
	my ($calls) = @_;
	my @unheard = map { $_->{call} } grep { $_->{op} eq 'acquire' && !defined $_->{return} } @$calls;
	my $failovers = [ grep { $_->{op} eq 'failover' } @$calls ];
	my $leases = leases(@$calls);
	my @kept;

	foreach my $op (@$calls)
	{
		my $unknown = !defined $op->{return};

		next if defined $op->{failed};
		next if $unknown && $op->{op} =~ /^(acquire|is_leader|assert|read)$/;
		next if $op->{op} eq 'acquire' && !@{ $op->{rows} };

		# A former server that goes on beside the new one may not know of what is so by now.
		# Nobody can tell which of the two servers has answered a call over the pooler, until the
		# pooler is moved to the new one.
		my @splits = grep { $_->{until} && !$unknown && $op->{return} > $_->{call} } @$failovers;
		my $pooled = grep { ($op->{server} // '') eq ($_->{pooler} // '-') && $op->{call} < $_->{moved} + $RESET_US } @splits;

		next if $pooled && $op->{op} =~ /^(is_leader|assert|read)$/;
		$op->{beside} = grep { ($op->{server} // '') eq $_->{from} && $op->{call} < $_->{until} } @splits;
		next if ($op->{beside} || $pooled) && !$op->{value} && !@{ $op->{rows} // [] };
		next if !$unknown && $op->{op} =~ /^(is_leader|assert|read|write)$/ && !$op->{value} && in_doubt($op, $leases);
		$op->{unknown} = $unknown;
		$op->{value} = 1 if $unknown;
		$op->{unheard} = !$unknown && grep { $_ < $op->{return} && $_ > $op->{call} - $LATE_US } @unheard;
		push @kept, $op;
	}
	return @kept;
}

# --- the search

# The states, each with the calls under way that have taken effect in it
sub config
{
	my ($state, %done) = @_;

	return { state => $state, done => \%done };
}

sub config_key
{
	my ($config) = @_;

	return join ';', key($config->{state}), sort keys %{ $config->{done} };
}

# Of states that differ in time only, the earliest allows all that the others do.
sub keep
{
	my ($configs, $config) = @_;
	my $key = config_key($config);

	$configs->{$key} = $config
	  if !$configs->{$key} || $configs->{$key}{state}{now} > $config->{state}{now};
	return;
}

# A call takes effect, in one of the ways that are possible. Questions under way that were
# answered with yes, and would be answered with no from then on, have to come before.
sub take_effect_so
{
	my ($config, $op, $pending, $which) = @_;
	my ($before, %done) = ($config->{state}, %{ $config->{done} });
	my $after = (step($before, $op, $pending->{until}))[$which];
	my $now = $before->{now};

	foreach my $question (@{ $pending->{questions} })
	{
		next if $done{ $question->{line} } || $question == $op;
		next if !holds($before, $question)
		  || holds($after, $question) && latest($after, $question) >= $after->{now};
		$now = max($now, $question->{call});
		return if $now > latest($before, $question);
		$done{ $question->{line} } = 1;
	}
	if ($now > $before->{now})
	{
		$after = (step({ %$before, now => $now }, $op, $pending->{until}))[$which] // return;
	}
	$done{ $op->{line} } = 1;
	return config($after, %done);
}

sub take_effect
{
	my ($config, $op, $pending) = @_;
	my @ways = step($config->{state}, $op, $pending->{until});

	return map { take_effect_so($config, $op, $pending, $_) } 0 .. $#ways;
}

# Renewals without an answer of one term differ in nothing but when they were called: is
# there an earlier one, which has not taken effect yet?
sub has_peer
{
	my ($op, $config, $pending) = @_;

	return $op->{unknown} && $op->{op} eq 'renew'
	  && grep { $_->{unknown} && $_->{op} eq 'renew' && $_->{term} == $op->{term} && $_->{seat} eq $op->{seat}
		  && !$config->{done}{ $_->{line} } && ($_->{call} <=> $op->{call} || $_->{line} cmp $op->{line}) < 0 } @{ $pending->{changes} };
}

# All states in which a call has taken effect, that can be reached by having calls under
# way take effect, and then this one
sub explain
{
	my ($configs, $op, $pending) = @_;
	my (%seen, %found);
	my @left = values %$configs;

	while (my $config = shift @left)
	{
		my $key = config_key($config);

		next if defined $seen{$key} && $seen{$key} <= $config->{state}{now};
		$seen{$key} = $config->{state}{now};
		if ($config->{done}{ $op->{line} })
		{
			my %done = %{ $config->{done} };

			delete $done{ $op->{line} };
			keep(\%found, config($config->{state}, %done));
			next;
		}
		push @left, map { take_effect($config, $_, $pending) }
		  $op, grep { $_ != $op && !$config->{done}{ $_->{line} } && !has_peer($_, $config, $pending) } @{ $pending->{changes} };
		die "$op->{line}: more than $MOST_STATES states: undecided\n" if keys %seen > $MOST_STATES;
	}
	return \%found;
}

# A release begins whose answer never came.
sub allow_end
{
	my ($configs, $op) = @_;
	my %allowed;

	foreach my $config (values %$configs)
	{
		keep(\%allowed, config(may_end($config->{state}, $op), %{ $config->{done} }));
	}
	return \%allowed;
}

# A call without an answer, of a term after which another has begun in all states, cannot
# take effect any more: whether it has makes no difference from then on.
sub forget
{
	my ($configs, $under_way) = @_;
	my %kept;
	my @late = grep { my ($name, $term) = @$_{qw(seat term)};
		!grep { $_->{term} <= $term || $_->{former} == $term } map { $_->{state}{seats}{$name} } values %$configs } grep { $_->{unknown} } values %$under_way;

	return $configs unless @late;
	delete @$under_way{ map { $_->{line} } @late };
	foreach my $config (values %$configs)
	{
		my %done = %{ $config->{done} };

		delete @done{ map { $_->{line} } @late };
		keep(\%kept, config($config->{state}, %done));
	}
	return \%kept;
}

# The first call that cannot be explained, and the states before it; or nothing
sub check
{
	my ($rules, @ops) = @_;
	my %seats = map { $_ => 1 } map { $_->{rows} && @{ $_->{rows} } ? map { $_->[0] } @{ $_->{rows} } : $_->{seat} // () } @ops;
	my @events = sort { $a->[0] <=> $b->[0] || $a->[1] <=> $b->[1] }
	  map { ([ $_->{call}, 0, $_ ], $_->{unknown} ? () : [ $_->{return}, 1, $_ ]) } @ops;
	my %configs = (first => config(first_state($rules, keys %seats)));
	my $configs = \%configs;
	my %under_way;

	foreach (@events)
	{
		my ($time, $returns, $op) = @$_;

		if (!$returns)
		{
			$op->{unknown} && $op->{op} =~ /^release/ ? $configs = allow_end($configs, $op)
			  : ($under_way{ $op->{line} } = $op);
			next;
		}
		$configs = forget($configs, \%under_way);

		my @changes = grep { changes($_) } values %under_way;
		my @questions = grep { !$_->{rows} && !changes($_) && $_->{value} } values %under_way;
		my $found = explain($configs, $op,
			{ until => $op->{return}, changes => \@changes, questions => \@questions });

		return ($op, $configs, values %under_way) unless %$found;
		$configs = $found;
		delete $under_way{ $op->{line} };
	}
	return;
}

# --- what is said about it

sub describe
{
	my ($op) = @_;
	my $at = $op->{line} // '';
	my $answer = $op->{unknown} ? 'no answer'
	  : $op->{rows} ? 'rows ' . join(', ', map { "@$_" } @{ $op->{rows} })
	  : $op->{value} ? 'true' : 'false';

	return sprintf '%s  %.3f to %s  %s(%s%s%s%s): %s', $at, $op->{call} / 1000,
	  $op->{unknown} ? 'open' : sprintf('%.3f', $op->{return} / 1000), $op->{op}, $op->{seat} // '*',
	  defined $op->{term} ? ", $op->{term}" : '', defined $op->{run} ? ", run $op->{run}" : '',
	  defined $op->{old} ? ", $op->{old}" . (defined $op->{new} ? " -> $op->{new}" : '') : '', $answer;
}

sub report
{
	my ($object, $op, $configs, @under_way) = @_;

	print "NOT LINEARIZABLE, $object: ", describe($op), "\n";
	print "  under way: ", describe($_), "\n" foreach sort { $a->{call} <=> $b->{call} } grep { $_ != $op } @under_way;
	foreach my $config ((values %$configs)[ 0 .. min(3, keys(%$configs) - 1) ])
	{
		my $seat = $config->{state}{seats}{ $op->{seat} // (keys %{ $config->{state}{seats} })[0] };

		printf "  a state before: time %.3f, term %s %s of %s, ends from %.3f to %.3f, register '%s'%s\n",
		  $config->{state}{now} / 1000, $seat->{term}, $seat->{over} ? 'over' : 'leads', $seat->{who},
		  $seat->{lo} / 1000, $seat->{hi} / 1000, $seat->{value},
		  $seat->{run_top} ne '' ? ", run $seat->{run_top} granted $seat->{tries} times, done up to '$seat->{run_done}'" : '';
	}
	return;
}

my %settings = (caps => {}, 'longest lease' => 1000);
my $objects = read_histories(\%settings, @ARGV);
my ($bad, $calls, $checked, $unanswered, $grants, %terms) = (0, 0, 0, 0, 0);

foreach my $object (sort keys %$objects)
{
	my @ops = simplify($objects->{$object});
	my ($op, @why) = check({ cap => $settings{caps}{$object} // 0, fences_wait => $settings{'fences wait'},
			longest => 1000 * $settings{'longest lease'} }, @ops);

	$calls += @{ $objects->{$object} };
	$checked += @ops;
	$unanswered += grep { !defined $_->{return} } @{ $objects->{$object} };
	foreach (map { @{ $_->{rows} // [] } } @ops)
	{
		$grants++;
		$terms{"@$_[0, 1]"} = 1;
	}
	next unless $op;
	$bad++;
	report($object, $op, @why);
}
die "no history\n" unless $calls;
printf "%d without an answer, %d grants and renewals of %d terms\n", $unanswered, $grants, scalar keys %terms;
printf "%d calls about %d elections and groups, %d of them told something: %s\n", $calls,
  scalar keys %$objects, $checked, $bad ? 'NOT LINEARIZABLE' : 'linearizable';
exit($bad ? 1 : 0);
