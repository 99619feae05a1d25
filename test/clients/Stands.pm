# A stand: one election, and the processes that stand in it, the members. Each
# fault is done to all stands of a group.
#
#	name      of the election: GROUP.SUBJECT.KIND
#	subject   its name; "mixed" if the members are not all of one subject
#	kind      session, detached, or bare: no election, and no client
#	members   [ { subject, n, process, starts } ]
#	env       of the processes; a list has one value for each member
#	lease     of this election, in leases
#
# Whether a stand is well is known from two sides: what its members say, and whom
# the server takes for alive.

package Stands;

use strict;
use warnings;

use Checker qw($LEASE);
use Exporter qw(import);
use Network;
use Servers qw(is_portable port sql $out);
use Subjects;

our @EXPORT = qw(describe elected_since end_stands environment followers leader
  make_stand note_failure number_anew processes_of remake_stand revive settle @failures
  @processes @skipped);

our @failures;        # texts
our @skipped;         # texts: what could not be tried, or not be told
our @processes;       # all that were ever started

my $CALM = 0.5;       # seconds without a change
my $next_n = 1;

sub note_failure
{
	my ($text) = @_;

	push @failures, $text;
	print "FAILURE $text\n";
	return;
}

# Addresses are not endless: when all processes have ended, they are given again.
sub number_anew { $next_n = 1; return; }

# Makes the election and starts the members. Options: group, subject, kind,
# members (subjects), env, lease.
sub make_stand
{
	my (%stand) = @_;

	$stand{name} = join '.', @stand{qw(group subject kind)};
	$stand{lease} //= 1;
	$stand{members} =
	  [ map { { subject => $_, n => $next_n++, starts => 0 } } @{ $stand{members} } ];
	$stand{members}[$_]{place} = $_ foreach 0 .. $#{ $stand{members} };
	sql("SELECT leader_election.create_election('$stand{name}',
		lease_duration => $stand{lease} * interval '$LEASE s')")
	  if $stand{kind} ne 'bare';
	start_member(\%stand, $_) foreach @{ $stand{members} };
	return \%stand;
}

# Starts new members, when the old ones have ended, with a lease that is now $LEASE.
sub remake_stand
{
	my ($stand, $env) = @_;

	$stand->{env} = $env;
	sql("SELECT leader_election.alter_election('$stand->{name}',
		lease_duration => $stand->{lease} * interval '$LEASE s')")
	  if $stand->{kind} ne 'bare';
	start_member($stand, $_) foreach @{ $stand->{members} };
	return;
}

# The environment of the process with this number, with what is not usual. What is
# undefined there, is not in it.
sub environment
{
	my ($n, %more) = @_;
	my %env = (
		PGUSER => 'app', PGPASSWORD => 'app', PGDATABASE => 'postgres',
		WORKUSER => 'app', WORKDATABASE => 'postgres', LEASE => $LEASE,
		CALL_TIMEOUT => $LEASE / 2, SLICE => $LEASE / 2, INTERVAL => $LEASE / 10,
		PGPORT => port('both'), WORKPORT => port('both'),
		PG_LEADER_PORTABLE => is_portable() ? 1 : undef, %more);
	my $address = address_of($n);

	$env{PGHOST} //= join ',', map { $address } split /,/, $env{PGPORT}
	  if defined $env{PGPORT};
	$env{WORKHOST} = join ',', map { $WORK_HOST } split /,/, $env{WORKPORT};
	delete @env{ grep { !defined $env{$_} } keys %env };
	return \%env;
}

sub start_member
{
	my ($stand, $member) = @_;
	my %more = %{ $stand->{env} };

	$_ = ref $_ ? $_->[ $member->{place} ] : $_ foreach values %more;
	$member->{process} = start_subject(
		subject => $member->{subject},
		kind => $stand->{kind},
		election => $stand->{name},
		candidate => "$member->{subject}-$member->{n}-" . ++$member->{starts},
		n => $member->{n},
		log => "$out/$stand->{name}.$member->{place}.err",
		env => environment($member->{n}, LEASE => $stand->{lease} * $LEASE, %more));
	push @processes, $member->{process};
	return;
}

# What ends itself is started anew at once, as what keeps it running would do.
sub revive
{
	my ($stand) = @_;

	foreach my $member (@{ $stand->{members} })
	{
		start_member($stand, $member) if ended_itself($member->{process}) && !$member->{process}{dies};
	}
	return;
}

sub processes_of { return map { $_->{process} } @{ $_[0]{members} }; }

# The process that leads as far as the processes say, and all the others
sub leader
{
	my ($stand) = @_;

	return (grep { leads($_) } processes_of($stand))[0];
}

sub followers
{
	my ($stand) = @_;
	my $leader = leader($stand) // 0;

	return grep { $_ != $leader } processes_of($stand);
}

# The first event by which one of these processes was elected at or after a time
sub elected_since
{
	my ($since, @of) = @_;
	my @elected = sort { $a->[2] <=> $b->[2] }
	  grep { $_->[0] eq 'elected' && $_->[2] >= $since }
	  map { @{ $_->{events} } } @of;

	return $elected[0];
}

# Does one lead, and work, and has nothing changed for a while?
sub is_calm
{
	my ($stand) = @_;
	my @leading = grep { leads($_) } processes_of($stand);

	return @leading == 1
	  && last_event($leading[0], 'working', now_ns() - (0.3 + 2 * was_late(now_ns() - 2e9)) * 1e9)
	  && !grep { last_event($_, 'elected|lost', now_ns() - $CALM * 1e9) }
	  processes_of($stand);
}

# Does the server take all members, and the leader, for what they are? $known is
# what it takes them for.
sub is_confirmed
{
	my ($stand, $known) = @_;
	my $leader = leader($stand) // return 0;

	return is_waited_for($stand->{name}, processes_of($stand) - 1) if $stand->{kind} eq 'bare';
	foreach my $process (processes_of($stand))
	{
		my $leads = $process == $leader ? 't' : 'f';

		return 0 unless $known->{"$stand->{name} $process->{candidate} $leads"};
	}
	return 1;
}

# Do so many wait for the lock of the bare drivers? One that is just starting would
# let a leader that has lost it have it back.
sub is_waited_for
{
	my ($election, $followers) = @_;

	return sql(qq(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
		AND objid = (hashtext('$election')::bigint & x'ffffffff'::bigint)::oid)) >= $followers;
}

sub candidates
{
	return { map { $_ => 1 } split /\n/, sql(q(
		SELECT concat_ws(' ', election, candidate, leads)
		FROM leader_election.candidates WHERE alive)) };
}

sub describe
{
	my ($stand) = @_;
	my $text = '';

	foreach my $process (processes_of($stand))
	{
		my @lines = map { join ' ', $_->[0], $_->[3], int($_->[2] / 1e6) } @{ $process->{events} };

		splice(@lines, 0, -6);
		$text .= "\n    $process->{candidate}"
		  . (defined $process->{exit} ? " (exit $process->{exit})" : '') . ': '
		  . join(', ', @lines);
	}
	return $text;
}

# Starts members anew that a fault has ended, and waits until all is well. Returns
# the stands that are; the others are started from nothing for the next fault, once.
sub settle
{
	my ($before, @all) = @_;
	my @stands = grep { ($_->{ill} // 0) < 2 } @all;
	my @dying = grep { $_->{dies} } map { processes_of($_) } @stands;
	my @well;

	await(sub { !grep { !ended($_) } @dying });
	foreach my $stand (@stands)
	{
		foreach my $member (@{ $stand->{members} })
		{
			my $process = $member->{process};

			next unless ended($process);
			note_failure("$stand->{name}, before $before: $process->{candidate} "
				  . "has ended, status $process->{exit}" . describe($stand))
			  unless $process->{dies} || ended_itself($process);
			start_member($stand, $member);
		}
	}
	await(sub {
		my $known = candidates();

		revive($_) foreach @stands;
		hear(0.1);
		@well = grep { is_calm($_) && is_confirmed($_, $known) } @stands;
		return @well == @stands;
	}) and return @stands;

	foreach my $stand (@stands)
	{
		next if grep { $_ == $stand } @well;
		note_failure("$stand->{name}, before $before: is not well after $TIMEOUT s"
			  . describe($stand) . "\n    "
			  . sql("SELECT coalesce(to_jsonb(s)::text, '') FROM leader_election.status s
				WHERE election = '$stand->{name}'"));
		$stand->{ill}++;
		start_over($stand);
	}
	return @well;
}

sub start_over
{
	my ($stand) = @_;

	foreach my $member (@{ $stand->{members} })
	{
		send_signal($member->{process}, 'KILL');
		$member->{process}{dies} = 1;
	}
	return;
}

# SIGTERM to all; each has to end by itself.
sub end_stands
{
	my (@stands) = @_;
	my @left = grep { !ended($_) } map { processes_of($_) } @stands;

	send_signal($_, 'TERM') foreach @left;
	await(sub { !grep { !ended($_) } @left });
	foreach my $process (grep { !ended($_) } @left)
	{
		note_failure("$process->{election}: $process->{candidate} does not end on SIGTERM "
			  . "within $TIMEOUT s" . (map { describe($_) }
				  grep { $_->{name} eq $process->{election} } @stands)[0]);
		stop_subject($process, 0);
	}
	return;
}

1;
