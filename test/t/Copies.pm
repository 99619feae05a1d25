# Helpers for the tests of copies of a database: what is so before it is copied,
# and what must be so in each copy.
#
#	use Copies;
#
#	$origin = new_server(...);
#	set_scene('dumps');
#	my $side = arrive('plain', $fresh, 'plain');    in the grace
#	settle($side);                                  after it
#	all_granted_ok();

package Copies;

use strict;
use warnings;

use Exporter qw(import);
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw($CONFIG $EPOCH_BITS $LATE $LEASE $LONG $app $boot_id $holder
  $origin @elections @sides %term all_granted_ok arrive campaign end_worker
  new_session once once_sqlstate set_scene settle set_up_roles start_in
  tried_in);

# The lease, and so what the grace lasts, in microseconds.  Some calls have to
# be made within it.
our $LEASE = 4_000_000 * slowness();

# No ghost may keep anybody waiting for much longer.
our $LATE = 20_000_000;

our $EPOCH_BITS = 22;

# Elections: led by a session, and by detached candidates; vacant for various
# reasons; and one with a lease so long that its candidates stand all the time.
my @detached = qw(renewed lapsing yielding);
my @vacant = qw(vacant reserved team);
our @elections = ('held', @detached, @vacant);
our $LONG = 'long';

our $CONFIG = qq(
leader_election.lease_duration = '${LEASE}us'
client_min_messages = warning
);

# The original, and the last term of each election there
our ($origin, $app, $holder);
our %term;

our @sides;

# The file in which Linux says which boot this is.
our $boot_id = '/proc/sys/kernel/random/boot_id';

# What each copy has granted
my %granted;

sub new_session
{
	my ($node, $dbname, %opts) = @_;

	return session($node, dbname => $dbname, name => $dbname, %opts);
}

# Runs SQL as that role, in a session of its own that ends with it: the rows, and
# for once_sqlstate the SQLSTATE.
sub once
{
	my ($node, $dbname, $user, $sql) = @_;
	my $session = new_session($node, $dbname, user => $user);
	my $result = $session->query($sql);

	$session->finish;
	return $result;
}

sub once_sqlstate
{
	my ($node, $dbname, $user, $sql) = @_;
	my $session = new_session($node, $dbname, user => $user);
	my $sqlstate = $session->sqlstate_of($sql);

	$session->finish;
	return $sqlstate;
}

# The terms that a database knows of, by election.  bigint fits in Perl's.
sub terms_of
{
	my ($session) = @_;
	my %terms;

	m{^(.*)\|(\d+)$} and push @{ $terms{$1} }, $2
	  foreach $session->query(
		'SELECT election, term FROM leader_election.history ORDER BY 2');
	return \%terms;
}

# Ends the worker of a database.  Unless somebody calls, what is due is not done
# any more: nothing that is held is given up for as long as a copy takes.
sub end_worker
{
	my ($node, $dbname) = @_;

	wait_for(
		$node,
		"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = '$dbname' AND backend_type = 'leader_election worker'",
		0);
	return;
}

# Namespaces of one's own need no privilege where the system allows user
# namespaces.
my $OWN_USER = '--user --map-current-user --keep-caps';

# Why a command cannot be run in such namespaces: '' if it can.
sub tried_in
{
	my ($unshare, $command) = @_;
	my $said = qx(unshare $OWN_USER $unshare -- sh -c '$command' 2>&1);

	chomp $said;
	return $? == 0 ? '' : $said || 'failed';
}

# Starts a server in namespaces of its own, after a command was run there.
sub start_in
{
	my ($node, $unshare, $command) = @_;
	my $bin = PostgreSQL::Test::Utils::tempdir() . '/' . $node->name;
	my ($pg_ctl) = grep { -x } map { "$_/pg_ctl" } split /:/, $ENV{PATH};

	mkdir $bin;
	append_to_file("$bin/pg_ctl", <<END);
#!/bin/sh
exec unshare $OWN_USER $unshare -- sh -c '
	$command
	exec "\$0" "\$@"' '$pg_ctl' "\$@"
END
	chmod 0755, "$bin/pg_ctl";
	local $ENV{PATH} = "$bin:$ENV{PATH}";
	$node->start;
	return;
}

sub set_up_roles
{
	my ($session) = @_;

	$session->query('CREATE ROLE team; CREATE ROLE owner LOGIN;
		CREATE ROLE member LOGIN IN ROLE team; CREATE ROLE outsider LOGIN;
		CREATE ROLE dumper LOGIN');
	return;
}

# A session is elected.  (join() leaves an election that is busy to the worker.)
sub campaign
{
	my ($session, $election, $candidate) = @_;

	return $session->query("CALL
		leader_election.campaign('$election', '$candidate', '5 min')");
}

# Lets them be led, or not, as it is to be copied.
sub set_scene
{
	my ($name) = @_;

	$holder = new_session($origin, 'app', name => 'holder')
	  unless $holder && $holder->alive;
	$app = new_session($origin, 'app') unless $app && $app->alive;
	$app->query("SELECT leader_election.leave('held');
		SELECT leader_election.leave('reserved', 'successor')");
	$term{held} = campaign($holder, 'held', 'holder');
	foreach my $election (@detached, 'reserved')
	{
		$app->query(
			"SELECT leader_election.release('$election', $term{$election})")
		  if $term{$election};
		wait_until(
			sub { $term{$election} = $app->acquire($election, 'detached') },
			"a term of \"$election\"");
	}
	$app->acquire('reserved', 'successor');
	$app->query(
		"SELECT leader_election.transfer('reserved', $term{reserved}, 'successor');
		SELECT leader_election.request_yield('yielding')");
	$app->acquire($LONG, 'successor');
	$app->acquire($LONG, 'bystander');
	$term{$_} = $app->query(
		"SELECT term FROM leader_election.lease WHERE election = '$_'")
	  foreach @vacant, $LONG;
	is($holder->query("SELECT leader_election.is_leader('held')"),
		't', "$name: a session leads");
	is( $app->query(
			"SELECT leader_election.is_leader('renewed', $term{renewed})"),
		't',
		"$name: a detached candidate leads");
	end_worker($origin, 'app');
	check_scene($app, $name);
	return;
}

# Is it as set_scene has set it?  By the rows: what they mean is another matter.
sub check_scene
{
	my ($session, $name) = @_;
	my %leader = (held => 'holder', $LONG => 'successor');

	is( $session->query(
			"SELECT string_agg(format('%s %s %s', election, leader, term), ', '
				ORDER BY election)
			FROM leader_election.lease
			WHERE leader IS NOT NULL AND election <> 'own'"),
		join(', ',
			map { "$_ " . ($leader{$_} // 'detached') . " $term{$_}" }
			  sort 'held', @detached, $LONG),
		"$name: there are leaders to be taken for ghosts");
	is( $session->query(
			"SELECT successor FROM leader_election.lease
			WHERE election = 'reserved'"),
		'successor',
		"$name: and a reserved seat");
	return;
}

# In the grace: no call and no view shows a leader; no newcomer is elected; a
# detached leader may lead on. (was_there: a candidate has called already, so that
# no seat is reserved any more.)
sub arrive
{
	my ($name, $node, $dbname, %opts) = @_;
	my $session = new_session($node, $dbname, name => $name);
	my $side = {
		name => $name,
		node => $node,
		dbname => $dbname,
		session => $session,
		term => { %term },
	};
	my $new;

	check_scene($session, $name) unless $opts{was_there};
	$side->{known} = terms_of($session);
	is( $session->query(
			"SELECT count(*) FROM leader_election.status s
			WHERE (state <> 'vacant' OR leader IS NOT NULL
				OR leader_election.leader(election) IS NOT NULL
				OR leader_election.is_leader(election)
				OR leader_election.is_leader(election, (SELECT term
					FROM leader_election.lease l WHERE l.election = s.election)))
				AND election <> 'own'"),
		0,
		"$name: nobody leads (G6)");
	is( $session->sqlstate_of(
			"SELECT leader_election.assert_leader('renewed', $term{renewed})"),
		'LE001',
		"$name: assert_leader()");
	foreach my $election (@elections)
	{
		is( $session->query(
				"SELECT leader_election.join('$election', 'newcomer')"),
			'',
			"$name: $election: a newcomer is not elected (G6)");
	}
	is( $session->query(
			"SELECT string_agg(election, ', ' ORDER BY election)
			FROM leader_election.status
			WHERE waiting_for IS DISTINCT FROM 'grace after failover'
				AND election NOT IN ('$LONG', 'own')"),
		'',
		"$name: because of the grace");
	is( $session->sqlstate_of("SELECT leader_election.drop_election('held')"),
		'55P03', "$name: an election is not dropped in it");
	is( query_unless_busy(
			$session,
			"SELECT * FROM leader_election.renew('renewed', $term{renewed} + 1)"),
		'',
		"$name: renew() of a term that never was");

	# A detached leader that knows its old term leads on, in a new one.
	$new = query_unless_busy($session,
		"SELECT term FROM leader_election.renew('renewed', $term{renewed})");
	cmp_ok($new, '>', $term{renewed}, "$name: the detached leader leads on");
	$side->{renewed} = $new;
	is( $session->query(
			"SELECT leader_election.leader('renewed'),
			leader_election.is_leader('renewed', $term{renewed}),
			leader_election.is_leader('renewed', $new)"),
		'detached|f|t',
		"$name: in the new term only");
	is( $session->query(
			"SELECT term, reason FROM leader_election.history
			WHERE election = 'renewed' AND term >= $term{renewed} ORDER BY term"),
		"$term{renewed}|failover\n$new|",
		"$name: history");
	is( $session->query(
			"SELECT leader_election._monotonic_clock()
				< max(first_seen_mono) + $LEASE
			FROM leader_election.epoch
			WHERE incarnation = leader_election._incarnation()"),
		't',
		"$name: all of that was in the grace, on this machine");
	is( $session->query(
			"SELECT string_agg(candidate, ', ') FROM leader_election.candidates
			WHERE election = '$LONG' AND alive"),
		'',
		"$name: no ghost stands");
	push @sides, $side;
	return $side;
}

# After the grace
sub settle
{
	my ($side) = @_;
	my ($name, $session) = @$side{qw(name session)};
	my $known = $side->{known};
	my ($epoch, $others);

	foreach my $election (grep { $_ ne 'renewed' } @elections)
	{
		wait_until(
			sub {
				$session->query(
					"SELECT leader_election.renew('renewed', $side->{renewed})");
				return $session->query(
					"SELECT leader_election.is_leader('$election')") eq 't';
			},
			"$name: an election in \"$election\"");
	}
	is( $session->query(
			"SELECT string_agg(election, ', ') FROM leader_election.lease
			WHERE leader = 'newcomer' AND acquired_mono - (SELECT first_seen_mono
				FROM leader_election.epoch
				WHERE incarnation = leader_election._incarnation())
				NOT BETWEEN $LEASE AND $LEASE + $LATE + " . held_up()),
		'',
		"$name: elected after the grace of a lease, and soon (G6)");
	is( $session->query(
			"SELECT * FROM
			leader_election.renew('lapsing', $side->{term}{lapsing})"),
		'',
		"$name: who has not renewed in it is over");
	is( $session->query(
			"SELECT string_agg(DISTINCT reason, ', ') FROM leader_election.history
			WHERE (election, term) IN (VALUES "
			  . join(', ',
				map { "('$_', $side->{term}{$_})" } 'held', @detached)
			  . ')'),
		'failover',
		"$name: history tells what became of the old terms");

	# The terms
	($epoch, $others) = split /\|/, $session->query(
		"SELECT max(epoch) FILTER (WHERE incarnation = present),
			max(epoch) FILTER (WHERE incarnation <> present)
		FROM leader_election.epoch, leader_election._incarnation() present");
	cmp_ok($epoch, '>', $others, "$name: a new epoch");
	$side->{epoch} = $epoch;
	{
		my $terms = terms_of($session);
		my %small;
		my %foreign;

		foreach my $election (@elections)
		{
			my %known = map { $_ => 1 } @{ $known->{$election} };
			my @new = grep { !$known{$_} } @{ $terms->{$election} };

			$granted{$name}{$election} = \@new;
			$small{$election} = 1
			  unless @new && $new[0] > $known->{$election}[-1];
			$foreign{$election} = 1
			  if grep { $_ >> $EPOCH_BITS != $epoch || $_ >= 2**53 } @new;
		}
		is_deeply(\%small, {}, "$name: terms are greater than all before (G5)");
		is_deeply(\%foreign, {}, "$name: and of that epoch");
	}
	return;
}

# All terms that were granted anywhere
sub all_granted_ok
{
	my %issued;
	my $compared = 0;
	my $original = terms_of($app);

	foreach my $side (@sides)
	{
		my $name = $side->{name};
		my %small = map { $_ => 1 }
		  grep { $granted{$name}{$_}[0] <= $original->{$_}[-1] } @elections;

		is_deeply(\%small, {},
			"$name: terms are greater than those of the original, even now (G5)");
	}
	$granted{original} = $original;
	foreach my $name (keys %granted)
	{
		foreach my $election (@elections)
		{
			push @{ $issued{"$election/$_"} }, $name
			  foreach @{ $granted{$name}{$election} };
			$compared += @{ $granted{$name}{$election} };
		}
	}
	is_deeply([ grep { @{ $issued{$_} } > 1 } sort keys %issued ],
		[], "no term was granted twice, of $compared (G5)");
	return;
}

1;
