# The steps of 051_model.pl: what candidates, leaders and operators do. Each does
# it, and says what it means to the model; it returns false if there is no
# occasion for it.

package ModelSteps;

use strict;
use warnings;

use Exporter qw(import);
use ModelRules;
use ModelRun;
use Storable qw(dclone);

our @EXPORT = qw(alter alter_delay alter_flap alter_quorum alter_strategy
  ask_to_yield call call_again come die_at_once drain followers give_up
  hold join_new leave leave_all misuse pause pause_all permutations profile renew
  request_yield resign resume says transfer transfer_to undrain);

# From how many elections a session goes in one step: that many can be left in
# any order.
my $MOST_LEFT = 5;

sub profile
{
	my ($says) = @_;

	return join '', map { ", $_ => '$says->{$_}'" } sort keys %$says;
}

# A candidate calls: join, campaign or acquire
sub call
{
	my ($run, $election, $name, $kind, %says) = @_;
	my $args = "'$election', '$name'" . profile(\%says);
	my $before = $run->{states}[0]{elections}{$election};
	my $present = $before->{candidates}{$name};
	my $led_before = leads($before, $name);
	my $after = dclone($run->{states}[0]);
	my $elected;

	stand($after, $election, $name, $kind, %says);
	$elected =
	  !$led_before && leads($after->{elections}{$election}, $name);
	if ($kind eq 'detached')
	{
		return step(
			$run,
			"acquire($args)",
			sub { any($run, "SELECT term FROM leader_election.acquire($args)") },
			sub {
				my ($s) = @_;
				my $l = $s->{elections}{$election};
				my $term = $l->{term};

				stand($s, $election, $name, $kind, %says);
				return $l->{term} > $term && leads($l, $name) ?
				  $l->{term} : '';
			});
	}
	if ($elected && chance($run, 30))
	{
		return step(
			$run,
			"campaign($args)",
			sub {
				ask(session_of($run, $name),
					"CALL leader_election.campaign($args, timeout => '10 s')");
			},
			sub {
				my ($s) = @_;

				stand($s, $election, $name, $kind, %says);
				return $s->{elections}{$election}{term};
			});
	}
	return step(
		$run,
		"join($args)",
		sub {
			ask(session_of($run, $name), "SELECT leader_election.join($args)");
		},
		sub {
			my ($s) = @_;
			my $l = $s->{elections}{$election};
			my $only = $l->{candidates}{$name} && $l->{candidates}{$name}{out};
			my $led = leads($l, $name);

			stand($s, $election, $name, $kind, %says);
			return '' unless leads($l, $name);

			# It may be the worker who elects it, a moment later, unless the
			# worker must not.
			return $led || $only ? $l->{term} : qr/^($l->{term})?$/;
		});
}

sub says
{
	my ($run, $percent) = @_;
	my %says;

	$says{rank} = dice($run, 4) if chance($run, $percent);
	$says{progress} = dice($run, 4) if chance($run, $percent);
	return %says;
}

sub join_new
{
	my ($run, $election, $l) = @_;
	my $name =
	  pick($run, grep { !$l->{candidates}{$_} } @{ $run->{candidates} })
	  or return 0;
	my $kind = chance($run, 60) ? 'session' : 'detached';
	my %says = says($run, 60);

	$says{auto_renew} = 0
	  if $kind eq 'session' && chance($run, 25);
	return call($run, $election, $name, $kind, %says);
}

# Once more, perhaps with news
sub call_again
{
	my ($run, $election, $l) = @_;
	my $name = pick($run, sort keys %{ $l->{candidates} }) or return 0;

	return call($run, $election, $name, $l->{candidates}{$name}{kind},
		says($run, 40));
}

# The candidate that a seat is kept for comes for it, or any candidate comes to a
# vacant one.
sub come
{
	my ($run, $election, $l) = @_;
	my $name = $l->{reserved};

	return 0 if defined $l->{leader};
	$name = pick($run, sort keys %{ $l->{candidates} })
	  unless defined $name && chance($run, 80);
	return 0 unless defined $name;
	return call($run, $election, $name, $l->{candidates}{$name}{kind});
}

# What ends a leadership takes its term from a detached leader.
sub give_up
{
	my ($run, $election, $l, $function, $more, $mean) = @_;
	my $name = $l->{leader};
	my $session = $l->{candidates}{$name}{kind} eq 'session';
	my $call;

	$function = 'release' if $function eq 'resign' && !$session;
	$call = "leader_election.$function('$election'"
	  . ($session ? '' : ", $l->{term}")
	  . ($more // '') . ')';
	return step(
		$run,
		"$name: $call",
		sub {
			$session ? ask(session_of($run, $name), "SELECT $call") :
			  any($run, "SELECT $call");
		},
		$mean);
}

# An argument with which nobody follows for a while.  A hold counts from when the
# term began.
sub hold
{
	my ($election) = @_;

	return ", hold => (SELECT clock_timestamp() - acquired_at + '300 ms'"
	  . " FROM leader_election.lease WHERE election = '$election')";
}

sub resign
{
	my ($run, $election, $l) = @_;
	my $hold = chance($run, 20) ? hold($election) : '';

	return 0 unless defined $l->{leader};
	return give_up(
		$run,
		$election,
		$l, 'resign', $hold,
		sub {
			my ($s) = @_;

			end_term($s, $election,
				$s->{elections}{$election}{yield} ? 'yielded' : 'resigned',
				sits_out => 1,
				later => $hold);
			return 't';
		});
}

sub transfer_to
{
	my ($run, $election, $l, $to) = @_;

	return give_up(
		$run,
		$election,
		$l,
		'transfer',
		", '$to'",
		sub {
			my ($s) = @_;

			return 'LE005' if refuses($s, $election, $to);
			end_term($s, $election, 'transferred', to => $to);
			return 't';
		});
}

sub followers
{
	my ($l, $kind) = @_;

	return grep {
		$_ ne $l->{leader}
		  && !$l->{drained}{$_}
		  && (!defined $kind || $l->{candidates}{$_}{kind} eq $kind)
	} sort keys %{ $l->{candidates} };
}

sub transfer
{
	my ($run, $election, $l) = @_;
	my $to;

	return 0 unless defined $l->{leader};
	$to = pick($run, followers($l)) or return 0;
	return transfer_to($run, $election, $l, $to);
}

sub leave
{
	my ($run, $election, $l) = @_;
	my $name = pick($run, sort keys %{ $l->{candidates} }) or return 0;

	if ($l->{candidates}{$name}{kind} eq 'detached')
	{
		my $leads = leads($l, $name);

		return step(
			$run,
			"leave('$election', '$name')",
			sub { any($run, "SELECT leader_election.leave('$election', '$name')") },
			sub {
				return '22023' if $leads;
				withdraw($_[0], $election, $name, 'left');
				return 't';
			});
	}
	return step(
		$run,
		"$name: leave('$election')",
		sub {
			ask(session_of($run, $name),
				"SELECT leader_election.leave('$election')");
		},
		sub {
			withdraw($_[0], $election, $name, 'left');
			return 't';
		});
}

sub permutations
{
	my (@list) = @_;

	return [] unless @list;
	return map {
		my @rest = @list;
		my $first = splice @rest, $_, 1;
		map { [ $first, @$_ ] } permutations(@rest)
	} 0 .. $#list;
}

# From all elections, in any order
sub leave_all
{
	my ($run) = @_;
	my $s = $run->{states}[0];
	my $name = pick($run, sort keys %{ $run->{sessions} }) or return 0;
	my @stands = grep {
		my $c = $s->{elections}{$_}{candidates}{$name};
		$c && $c->{kind} eq 'session'
	} sort keys %{ $s->{elections} };

	return 0 if @stands > $MOST_LEFT;
	return step(
		$run,
		"$name: leave_all()",
		sub {
			ask($run->{sessions}{$name}, 'SELECT leader_election.leave_all()');
		},
		map {
			my @elections = @$_;
			sub {
				my ($n) = @_;

				withdraw($n, $_, $name, 'left') foreach @elections;
				return scalar @elections;
			}
		} permutations(@stands));
}

# A session ends, in one of many ways.
sub die_at_once
{
	my ($run, $election, $l) = @_;
	my $s = $run->{states}[0];
	my @stand = grep {
		my $name = $_;
		grep {
			my $c = $_->{candidates}{$name};
			$c && $c->{kind} eq 'session'
		} values %{ $s->{elections} };
	} sort keys %{ $run->{sessions} };
	my $name = pick($run, @stand) or return 0;
	my $session = $run->{sessions}{$name};
	my $how = pick($run, qw(kill terminate discard));

	return step(
		$run,
		"$name: $how",
		sub {
			if ($how eq 'discard')
			{
				$session->query('DISCARD ALL');

				# A seat that was dropped may be made again.
				ask($session, "SELECT leader_election.renew('$run->{group}/$_')")
				  foreach defined $run->{group} ?
				  grep { !$s->{elections}{"$run->{group}/$_"} } 1 .. $MOST_SEATS :
				  ();

				# It is told, in each election in which it stood.
				foreach my $e (sort keys %{ $s->{elections} })
				{
					my $c = $s->{elections}{$e}{candidates}{$name};

					next unless $c && $c->{kind} eq 'session';
					return "no LE006 in $e: " . $session->sqlstate
					  if $session->sqlstate_of(
						"SELECT leader_election.renew('$e')") ne 'LE006';
				}
			}
			elsif ($how eq 'kill') { $session->kill; }
			else
			{
				ask($run->{control},
					'SELECT pg_terminate_backend('
					  . $session->backend_pid
					  . ')');
				$session->kill;
			}
			delete $run->{sessions}{$name} unless $how eq 'discard';
			return '';
		},
		sub {
			die_session($_[0], $name,
				$how eq 'discard' ? 'session reset' : undef);
			return '';
		});
}

sub ask_to_yield
{
	my ($run, $election, $l, $to, $terminate) = @_;
	my $args = "'$election'"
	  . (defined $to ? ", '$to'" : '')
	  . ($terminate ? ', terminate => true' : '');

	return step(
		$run,
		"request_yield($args)",
		sub { any($run, "SELECT leader_election.request_yield($args)") },
		sub {
			my ($s) = @_;
			my $n = $s->{elections}{$election};

			return '' unless led($n) || (defined $to && is_paused($n));
			return 'LE005' if defined $to && refuses($s, $election, $to);
			if (!led($n))
			{
				$n->{reserved} = $to;
				return qr/:/;
			}
			$n->{yield} = 'operator';
			$n->{to} = $to;
			if ($terminate && $n->{candidates}{ $n->{leader} }{kind} eq 'session')
			{
				(delete $run->{sessions}{ $n->{leader} })->kill
				  if $run->{sessions}{ $n->{leader} };
				die_session($s, $n->{leader});
			}
			return qr/:/;
		});
}

sub request_yield
{
	my ($run, $election, $l) = @_;
	my $to;

	return 0 if !defined $l->{leader} && !is_paused($l) && !chance($run, 20);
	$to = pick($run, undef, defined $l->{leader} ? followers($l) :
		is_paused($l) ? sort grep { !$l->{drained}{$_} } keys %{ $l->{candidates} } : ());
	return ask_to_yield($run, $election, $l, $to, chance($run, 20));
}

# Renewing changes nothing, and says whether to yield.
sub renew
{
	my ($run, $election, $l) = @_;
	my $name = $l->{leader} // return 0;
	my $yielding = $l->{yield} ? 't' : 'f';
	my $what = 'term, yielding FROM leader_election.renew';

	if ($l->{candidates}{$name}{kind} eq 'session')
	{
		return step(
			$run,
			"$name: renew('$election')",
			sub {
				ask(session_of($run, $name), "SELECT $what('$election')");
			},
			sub { return "$l->{term}|$yielding"; });
	}
	my $progress = chance($run, 50) && !$l->{yield} ? dice($run, 4) : undef;
	my $args =
	  "'$election', $l->{term}" . (defined $progress ? ", $progress" : '');
	return step(
		$run,
		"$name: renew($args)",
		sub { any($run, "SELECT $what($args)") },
		sub {
			$_[0]{elections}{$election}{candidates}{$name}{progress} = $progress
			  if defined $progress;
			return "$l->{term}|$yielding";
		});
}

# Sets something for an election or, if it is a seat, for all seats of its group.
# Returns what it means to the model, which may know it by another name.
sub alter
{
	my ($run, $election, $setting, $value, $key, $known_value) = @_;
	my $group = $run->{states}[0]{elections}{$election}{group};
	my $call =
	  defined $group ? "alter_group('$group'" : "alter_election('$election'";

	return step(
		$run,
		"$call, $setting => $value)",
		sub {
			ask($run->{control},
				"SELECT leader_election.$call, $setting => $value)");
		},
		sub {
			my ($s) = @_;

			return '' unless defined $key;
			$s->{elections}{$_}{$key} = $known_value
			  foreach defined $group ? seats($s, $group) : $election;
			return '';
		});
}

sub alter_quorum
{
	my ($run, $election, $l) = @_;
	my $quorum = pick($run, 1, 1, 1, 2, 2, 3);

	return alter($run, $election, 'quorum', $quorum, 'quorum', $quorum);
}

# To another one, and soon back
sub alter_strategy
{
	my ($run, $election, $l) = @_;
	my $strategy = $run->{strategy};

	if ($l->{strategy} eq $strategy)
	{
		return 0 unless chance($run, 40);
		$strategy = pick($run, @STRATEGIES);
	}
	return alter($run, $election, 'strategy', "'$strategy'", 'strategy',
		$strategy);
}

sub alter_delay
{
	my ($run, $election, $l) = @_;

	my $delay = pick($run, 0, 30);

	return alter($run, $election, 'takeover_delay', "'$delay ms'", 'delay',
		$delay);
}

# For ever, or (more often) not at all
sub alter_flap
{
	my ($run, $election, $l) = @_;
	my $setting = pick($run, 'preempt_delay', 'initial_delay');
	my $on = $l->{$setting} ? 0 : chance($run, 50) ? 1 : 0;

	return alter($run, $election, $setting, $on ? "'1 day'" : "'0'", $setting,
		$on);
}

sub pause
{
	my ($run, $election) = @_;
	my $vacates = chance($run, 50);

	return step(
		$run,
		"pause_election('$election'" . ($vacates ? ', vacate)' : ')'),
		sub {
			ask($run->{control},
				"SELECT leader_election.pause_election('$election', 'why', '1 day', "
				  . ($vacates ? 'true)' : 'false)'));
		},
		sub {
			my $l = $_[0]{elections}{$election};

			$l->{paused} = $vacates ? 'vacated' : 'paused';
			vacate($l);
			return '';
		});
}

# Often, so that elections are paused for some steps only
sub resume
{
	my ($run, $election, $l) = @_;

	return 0 unless $l->{paused} || chance($run, 2);
	return step(
		$run,
		"resume_election('$election')",
		sub {
			ask($run->{control},
				"SELECT leader_election.resume_election('$election')");
		},
		sub {
			my $n = $_[0]{elections}{$election};
			my $was = $n->{paused} ? 't' : 'f';

			$n->{paused} = '';
			return $was;
		});
}

sub drain
{
	my ($run, $election, $l) = @_;
	my $name = pick($run, @{ $run->{candidates} });

	return step(
		$run,
		"drain_candidate('$name', '$election')",
		sub {
			ask($run->{control},
				"SELECT leader_election.drain_candidate('$name', '$election')");
		},
		sub { $_[0]{elections}{$election}{drained}{$name} = 1; return ''; });
}

# Often, so that candidates are drained for some steps only
sub undrain
{
	my ($run, $election, $l) = @_;
	my $name = pick($run,
		%{ $l->{drained} } ? sort keys %{ $l->{drained} } : @{ $run->{candidates} });

	return 0 unless %{ $l->{drained} } || chance($run, 2);
	return step(
		$run,
		"undrain_candidate('$name', '$election')",
		sub {
			ask($run->{control},
				"SELECT leader_election.undrain_candidate('$name', '$election')");
		},
		sub {
			return delete $_[0]{elections}{$election}{drained}{$name} ? 't' : 'f';
		});
}

# Pauses all elections, or resumes them.
sub pause_all
{
	my ($run, $election, $l) = @_;
	my $was = $l->{all};

	return 0 unless $was || chance($run, 20);
	$run->{all_paused} = $was ? 0 : 1;
	return step(
		$run,
		$was ? 'resume_all()' : 'pause_all()',
		sub {
			ask($run->{control}, $was ? 'SELECT leader_election.resume_all()' :
				'SELECT leader_election.pause_all()');
		},
		sub {
			$_->{all} = $was ? 0 : 1 foreach values %{ $_[0]{elections} };
			return $was ? 't' : '';
		});
}

# What has to fail, and to change nothing
sub misuse
{
	my ($run, $election, $l) = @_;
	my $stranger = pick($run, grep { !$l->{candidates}{$_} } @{ $run->{candidates} });
	my $name = pick($run, sort keys %{ $l->{candidates} });
	my @ways;

	if (defined $l->{leader})
	{
		my $leads_by = $l->{candidates}{ $l->{leader} }{kind};
		my $last = $l->{term} - 1;
		my $itself = $l->{drained}{ $l->{leader} }
		  || refuses($run->{states}[0], $election, $l->{leader}) ? 'LE005' : '22023';

		push @ways,
		  [ "SELECT leader_election.request_yield('$election', '$stranger')", 'LE005' ]
		  if $stranger;
		push @ways,
		  [ "SELECT leader_election.request_yield('$election', '$l->{leader}')", $itself ];
		push @ways,
		  [ "SELECT leader_election.release('$election', $l->{term})", '22023' ]
		  if $leads_by eq 'session';
		push @ways,
		  [ "SELECT leader_election.release('$election', $last)", 'f' ],
		  [ "SELECT term FROM leader_election.renew('$election', $last)", '' ];
		push @ways,
		  [
			"SELECT leader_election.transfer('$election', $l->{term}, '$l->{leader}')",
			$itself
		  ],
		  [
			"SELECT leader_election.transfer('$election', $l->{term}, 'nobody')",
			'LE005'
		  ]
		  if $leads_by eq 'detached';
	}
	else
	{
		push @ways,
		  [ "SELECT leader_election.release('$election', $l->{term})", 'f' ];
	}
	if ($name)
	{
		push @ways,
		  $l->{candidates}{$name}{kind} eq 'session' ?
		  [
			"SELECT term FROM leader_election.acquire('$election', '$name')",
			'LE004'
		  ] :
		  [ "SELECT leader_election.join('$election', '$name')", 'LE004' ];
	}
	push @ways,
	  [ "SELECT leader_election.alter_election('$election', quorum => 1)", '42809' ],
	  [ "SELECT leader_election.drop_election('$election')", '42809' ]
	  if defined $l->{group};
	my ($sql, $answer) = @{ pick($run, @ways) };
	return step($run, $sql, sub { any($run, $sql) }, sub { return $answer; });
}

1;
