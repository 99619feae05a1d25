# What an election's owner may change while candidates stand and lead: its
# settings, its strategy, its channel. Also: elections that are dropped beside
# calls in them, a copy of the database, and a strategy that the code does not
# know. And which settings there are: the reference says it as the library does.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Rules;
use Test::More;

serve();

#
# The reference's table of settings
#

sub arguments
{
	my ($function) = @_;

	return $admin->query("SELECT unnest(proargnames[2:]) FROM pg_proc WHERE proname = '$function'
		AND pronamespace = 'leader_election'::regnamespace");
}

sub alters
{
	my ($setting, $value) = @_;

	return $admin->sqlstate_of("SELECT leader_election.alter_group('all', $setting => '$value')");
}

my ($table) = slurp_file("$FindBin::RealBin/../../docs/reference.md") =~
  /^\| setting \| default \| values \|.*\n\|---.*\n((?:\|.*\n)+)/m;
my %settings = map { /^\| `(\w+)` \| (.*?) \| (.*?) \|/ ? ($1 => { default => $2, values => $3 }) : () }
  split /\n/, $table;
is_deeply([ sort keys %settings ], [ sort(arguments('alter_group')) ],
	'the reference has each setting of a group');
is_deeply([ sort grep { !/^(seats|max_per_candidate)$/ } keys %settings ], [ sort(arguments('alter_election')) ],
	'and each of an election');

$admin->query("SELECT leader_election.create_group('all', 2)");
foreach my $setting (sort { ($a eq 'seats') <=> ($b eq 'seats') || $a cmp $b } keys %settings)
{
	my ($default, $values) = @{ $settings{$setting} }{qw(default values)};
	my $is = $admin->query("SELECT to_jsonb(e) || to_jsonb(g) ->> '$setting' FROM leader_election.election e
		JOIN leader_election.election_group g USING (group_name) WHERE election = 'all/1'");

	$default = $admin->query("SHOW $1") if $default =~ /^`(leader_election\.\w+)`$/;
	is($admin->query("SELECT '$is'::interval = '$default'"), 't', "$setting: its default") if $is =~ /:/;
	is($is, { none => '', 'who creates it' => $admin->query('SELECT current_user'),
		'has to be given' => 2 }->{$default} // $default =~ s/`//gr, "$setting: its default") if $is !~ /:/;
	is($admin->sqlstate_of("SELECT leader_election.create_group('lacks', NULL)"), '22023',
		"$setting: it has to be given") if $default eq 'has to be given';

	if (my ($least, $most) = $values =~ /^(\d+(?: \w+)?) to (\d+ \w+)$/ and $values !~ /bytes/)
	{
		is(alters($setting, $_), '00000', "$setting: $_") foreach $least, $most;
		is(alters($setting, $_), '22023', "$setting: $_") foreach "$least'::interval - '1 us", "$most 1 us";
	}
	elsif (($least, $most) = $values =~ /^(\d+)(?: to (\d+))?(?: or more)?$/)
	{
		is(alters($setting, $_), '00000', "$setting: $_") foreach $least, $most // 2**31 - 1;
		is(alters($setting, $_), '22023', "$setting: $_") foreach $least - 1, $most ? $most + 1 : ();
	}
	elsif (my ($bytes) = $values =~ /^0 to (\d+) bytes$/)
	{
		is(alters($setting, 'x' x $_), '00000', "$setting: $_ bytes") foreach $bytes, 0;
		is(alters($setting, 'x' x ($bytes + 1)), '22023', "$setting: more bytes");
	}
	else
	{
		is(alters($setting, 'no such'), $values eq 'a role' ? '42704' : '22023', "$setting: no such value");
	}
}
is($admin->sqlstate_of("SELECT leader_election.drop_group('all')"), '00000', 'that group is dropped');

#
# Settings that change while somebody leads
#

create('shorter', 'race', "lease_duration => '6 s'");
create('longer', 'race');
create('to bully', 'race', "lease_duration => '1 min'");
create('quorum', 'race');
my $one = session($node, name => 'one');
my $two = session($node, name => 'two');
my @altered = ('shorter', 'longer', 'to bully', 'quorum');
stand_as($one, $_, 'one', 1) foreach @altered;
stand_as($two, $_, 'two', 2) foreach @altered;
my $deadline = lease('shorter', 'deadline_mono');
$admin->query(
	"SELECT leader_election.alter_election('shorter', lease_duration => '3 s');
	SELECT leader_election.alter_election('longer', lease_duration => '30 s');
	SELECT leader_election.alter_election('to bully', 'bully');
	SELECT leader_election.alter_election('quorum', quorum => 9)");
comes_true(
	"deadline_mono > $deadline AND duration < 3100000 FROM leader_election.lease WHERE election = 'shorter'",
	'altered: a shorter lease, after the granted one');
comes_true(
	"expires_at - renewed_at > '29 s' FROM leader_election.lease WHERE election = 'longer'",
	'altered: a longer lease');
is_renewed('quorum', 'altered: too few for a quorum, but the leader leads on');
is_asked('to bully', 'two', 'altered: a strategy that preempts');
$admin->query("SELECT leader_election.alter_election('to bully', 'ring')");
comes_true(
	"NOT yielding FROM leader_election.lease WHERE election = 'to bully'",
	'altered: a strategy that does not');
is($one->query("SELECT leader_election.term('$_')"),
	1, "altered: $_: the term goes on (G2)")
  foreach @altered;
$one->query("SELECT leader_election.resign('quorum')");
worker_looks();
is(waiting_for('quorum'), 'quorum 2 of 9', 'altered: nobody new is elected');
$admin->query("SELECT leader_election.alter_election('quorum', quorum => 2)");
leads_soon('quorum', 'two', 'altered: until the quorum is reached');

# A channel of its own
my $own_channel = Announced->new($node, channel => 'own channel');
$admin->query("SELECT leader_election.alter_election('quorum', channel => 'own channel')");
$two->query("SELECT leader_election.leave('quorum')");
$own_channel->wait_for_event('quorum', 'vacated 2');
$admin->query("SELECT leader_election.alter_election('quorum', quorum => 1)");
leads_soon('quorum', 'one', 'altered: the next one leads');
$own_channel->wait_for_count('quorum', 2);
$listener->events_ok(
	'quorum',
	[ 'elected 1 one', 'vacated 1, one resigned', 'elected 2 two' ],
	'altered: announced where it was to be');
is_deeply(
	[ $own_channel->events('quorum') ],
	[ 'vacated 2, two left', 'elected 3 one' ],
	'altered: and then where it is to be, and only there');
$_->finish foreach $one, $two;

#
# Dropped elections
#

create('dropped', 'race', 'quorum => 9');
create('replaced', 'race', 'quorum => 9');
my %waiter = map { $_ => session($node, name => "waits in $_") } qw(dropped replaced);
foreach my $election (qw(dropped replaced))
{
	$waiter{$election}
	  ->query_async("CALL leader_election.campaign('$election', 'waiter')");
	wait_for($node,
		"SELECT candidates = 1 FROM leader_election.status WHERE election = '$election'"
	);
}
$admin->query("SELECT leader_election.drop_election('dropped')");
$admin->query(
	"BEGIN;
	SELECT leader_election.drop_election('replaced');
	SELECT leader_election.create_election('replaced', quorum => 1);
	COMMIT");
foreach my $election (qw(dropped replaced))
{
	$waiter{$election}->result;
	is($waiter{$election}->sqlstate, 'LE003',
		"$election: a waiting campaign ends");
	is($waiter{$election}->query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"),
		0, "$election: and leaves no lock behind");
}
worker_looks();
is(waiting_for('replaced'), 'no candidates',
	'replaced: nobody stands in the new one');
like(stand_as($waiter{replaced}, 'replaced', 'waiter'),
	qr/^\d+$/, 'replaced: the same session may');
$_->finish foreach values %waiter;

# join() beside a drop that is not committed yet
sub homeless
{
	return $admin->query(
		"SELECT count(*) FROM leader_election.candidate c WHERE NOT EXISTS
			(SELECT FROM leader_election.election e WHERE e.election = c.election)"
	);
}

$admin->query('SET leader_election.auto_create = off');
foreach my $call (
	"SELECT leader_election.join('%s', 'late')",
	"SELECT leader_election.acquire('%s', 'late')",
	"CALL leader_election.campaign('%s', 'late', '10 ms')")
{
	my ($name) = $call =~ /leader_election.(\w+)/;
	my $dropper = session($node, name => 'dropper');
	my $late = session($node, name => 'late', options => '-c leader_election.auto_create=off');

	foreach my $when ('before', 'during')
	{
		my $election = "$name $when";

		create($election, 'race');
		$dropper->query(
			"BEGIN; SELECT leader_election.drop_election('$election')");
		$late->query_async(sprintf($call, $election));
		$late->result if $when eq 'before';
		$dropper->query('COMMIT');
		$late->result if $when eq 'during';
		comes_true(
			"NOT EXISTS (SELECT FROM leader_election.candidate WHERE election = '$election')",
			"$name() that ended $when a drop leaves no candidate in what is gone");
		isnt($late->sqlstate, '08006', "$name(), $when: no crash");
		$late->query("SELECT leader_election.join('$election', 'late')");
		is($late->sqlstate, 'LE003', "$name(), $when: it is gone");
	}
	$_->finish foreach $dropper, $late;
}

#
# Grace: a copy of a database is another incarnation.
#

$node->safe_psql('postgres', 'CREATE DATABASE original');
$node->safe_psql('original',
	"CREATE EXTENSION leader_election; SELECT leader_election.create_election('e', lease_duration => '3 s')"
);
$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE original');
$one = session($node, name => 'one', dbname => 'copy');
$one->query("SELECT leader_election.join('e', 'one')");
wait_for($node,
	"SELECT waiting_for = 'grace after failover' FROM leader_election.status WHERE election = 'e'",
	't', undef, 'copy');
pass('grace: nobody is elected in a copy at first (G6)');
is($one->query("SELECT leader_election.is_leader('e')"), 'f', 'grace: nor leads (G6)');
wait_for($node, "SELECT leader_election.leader('e')", 'one', undef, 'copy');
pass('grace: somebody is later');
$one->finish;

#
# A strategy that the code does not know: only that election suffers.
#

$one = session($node, name => 'one');
$two = session($node, name => 'two');
my $high = session($node, name => 'high');
create($_, 'bully') foreach 'sound', 'sound asked';
create('broken led', 'bully', "lease_duration => '1 min'");
create('broken vacant', 'bully', "quorum => 3");
create('broken detached', 'bully', "quorum => 2");
foreach my $election ('broken led', 'broken vacant', 'sound', 'sound asked')
{
	stand_as($one, $election, 'one', 1);
	stand_as($two, $election, 'two', 0);
}
acquire('broken detached', 'detached');
$admin->query(
	"UPDATE leader_election.election SET strategy = 'of a later version', quorum = 1
		WHERE election LIKE 'broken%'");
stand_as($high, 'broken led', 'high', 2);
is_renewed('sound', 'broken: others are renewed');
is_renewed('sound', 'broken: again and again');
stand_as($high, 'sound asked', 'high', 2);
is_asked('sound asked', 'high', 'broken: others are asked to yield');
leads_soon('sound asked', 'high', 'broken: and replaced');
foreach my $view (qw(status candidates))
{
	$admin->query("SELECT * FROM leader_election.$view");
	is($admin->sqlstate, '00000', "broken: the view $view shows them all");
}
is(lease('broken led', 'leader, term, yielding'),
	'one|1|f', 'broken: its leader leads on');
$one->kill;
leads_soon('sound', 'two', 'broken: leaders of others are succeeded');
is( $admin->sqlstate_of(
		"SELECT leader_election.alter_election('$_', 'lowest')"),
	'00000',
	"$_: can be mended")
  foreach 'broken led', 'broken vacant', 'broken detached';
leads_soon($_, 'two', "$_: goes on when mended")
  foreach 'broken led', 'broken vacant';
acquire('broken detached', 'detached');
is(leader('broken detached'), 'detached',
	'broken detached: goes on when mended');
$_->finish foreach $two, $high;

never_two_leaders();
is(homeless(), 0, 'nobody stands in an election that is gone');
$node->stop;
done_testing();
