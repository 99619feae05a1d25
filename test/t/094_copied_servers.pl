# Copies of a whole server, and a server that follows by logical replication.
#
# Whether a copy is a new incarnation hangs on how it is started: in another boot
# of the machine, or promoted, it begins an epoch, and its terms are the
# original's never. Started beside the original, in the same boot and timeline, a
# copy cannot be told from the original that was restarted: it counts on, and both
# grant the same terms. docs/operations.md says so, and that is shown here, too,
# lest the paper promise more than is so. 045 has the other copies.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Copies qw($EPOCH_BITS $boot_id start_in tried_in);
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;

my $INCARNATION = 'SELECT leader_election._incarnation()';
my $CONFIG = q(
leader_election.lease_duration = '1 s'
client_min_messages = warning
wal_level = logical
max_wal_senders = 4
);
my $dir = PostgreSQL::Test::Utils::tempdir();

my $origin = new_server(name => 'origin', allows_streaming => 1, config => $CONFIG);
my $app = session($origin, name => 'app');

$app->query('CREATE EXTENSION leader_election');
foreach my $term (1 .. 2)
{
	is($app->acquire('vacant', 'x'), $term, "origin: term $term");
	$app->query("SELECT leader_election.release('vacant', $term)");
}
my $incarnation = $app->query($INCARNATION);

# The next term of each of two servers that count on from the same term.
sub twins_ok
{
	my ($node, $name) = @_;
	my $session = session($node, name => $name);
	my ($term) = $app->query("SELECT max(term) FROM leader_election.history
		WHERE election = 'vacant'");

	is($session->query($INCARNATION), $incarnation, "$name: counts as the original, restarted");
	is($session->acquire('vacant', 'twin'), $term + 1, "$name: counts on");
	$session->finish;
	return;
}

# A new incarnation: nobody is elected in the grace, terms are another epoch's.
sub new_incarnation_ok
{
	my ($node, $name) = @_;
	my $session = session($node, name => $name);

	isnt($session->query($INCARNATION), $incarnation, "$name: is a new incarnation");
	is($session->acquire('vacant', 'twin'), '', "$name: nobody is elected in the grace (G6)");
	my $term = '';
	wait_until(sub { ($term = query_unless_busy($session,
		"SELECT term FROM leader_election.acquire('vacant', 'twin')") // '') ne '' },
		"$name: elects after the grace");
	cmp_ok($term, '>=', 1 << $EPOCH_BITS, "$name: in an epoch of its own (G5)");
	$session->finish;
	return;
}

#
# pg_basebackup
#

$origin->backup('base');

my $beside = PostgreSQL::Test::Cluster->new('beside');

$beside->init_from_backup($origin, 'base');
$beside->start;
twins_ok($beside, 'pg_basebackup, beside the original');
$beside->stop('immediate');

my $promoted = PostgreSQL::Test::Cluster->new('promoted');

$promoted->init_from_backup($origin, 'base');
append_to_file($promoted->data_dir . '/standby.signal', '');
$promoted->start;
$promoted->promote;
new_incarnation_ok($promoted, 'pg_basebackup, promoted');
$promoted->stop('immediate');

#
# A snapshot of the running server's files: all processes stand still meanwhile.
#

my $snapshot = $origin->backup_dir . '/snapshot';
my ($postmaster) = slurp_file($origin->data_dir . '/postmaster.pid') =~ /^(\d+)/;
my @children = split ' ', qx(ps -o pid= --ppid $postmaster);

kill 'STOP', $postmaster, @children;
PostgreSQL::Test::RecursiveCopy::copypath($origin->data_dir, $snapshot,
	filterfn => sub { $_[0] !~ m{^(?:log|postmaster\.pid)$} });
kill 'CONT', $postmaster, @children;

my $copy = PostgreSQL::Test::Cluster->new('copy');

$copy->init_from_backup($origin, 'snapshot');
$copy->start;
twins_ok($copy, 'snapshot, in the same boot');
$copy->stop('immediate');

SKIP:
{
	my $other_id = "$dir/boot_id";
	my @how = ('--mount', "mount --bind $other_id $boot_id || exit");

	append_to_file($other_id, "01234567-89ab-cdef-0123-456789abcdef\n");
	my $refusal = tried_in(@how);
	skip "no such namespace can be made: $refusal", 1 if $refusal;

	my $elsewhere = PostgreSQL::Test::Cluster->new('elsewhere');

	$elsewhere->init_from_backup($origin, 'snapshot');
	start_in($elsewhere, @how);
	new_incarnation_ok($elsewhere, 'snapshot, on another host');
	$elsewhere->stop('immediate');
}

#
# Logical replication: the subscriber has the rows, and goes on above the terms
# when it is called at last.
#

my $subscriber = new_server(name => 'subscriber', config => $CONFIG);
my $new = session($subscriber, name => 'new');
my $where = $origin->connstr('postgres') =~ s/'/''/gr;

$app->query('CREATE PUBLICATION everything FOR ALL TABLES');
$new->query('CREATE EXTENSION leader_election');
$new->query("CREATE SUBSCRIPTION everything CONNECTION '$where' PUBLICATION everything");
wait_for($subscriber, "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'", 0);
is($app->acquire('vacant', 'x'), 3, 'logical replication: the original goes on');
$app->query("SELECT leader_election.release('vacant', 3)");
$origin->wait_for_catchup('everything');
$app->finish;
$origin->stop('fast');
$new->query('ALTER SUBSCRIPTION everything DISABLE;
	ALTER SUBSCRIPTION everything SET (slot_name = NONE); DROP SUBSCRIPTION everything');
new_incarnation_ok($subscriber, 'logical replication');

#
# A subscriber without the extension, of a publication FOR ALL TABLES that was
# there before it: nothing arrives any more, until it has the extension, too.
#

$origin->start;
$origin->safe_psql('postgres', 'CREATE DATABASE later');
$origin->safe_psql('later', 'CREATE TABLE t (i integer PRIMARY KEY); CREATE PUBLICATION later FOR ALL TABLES');
$subscriber->safe_psql('postgres', 'CREATE DATABASE later');
$subscriber->safe_psql('later', 'CREATE TABLE t (i integer PRIMARY KEY)');
$where = $origin->connstr('later') =~ s/'/''/gr;
$subscriber->safe_psql('later', "CREATE SUBSCRIPTION later CONNECTION '$where' PUBLICATION later");
wait_for($subscriber, "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'", 0, undef, 'later');
my $offset = -s $subscriber->logfile;
$origin->safe_psql('later', 'CREATE EXTENSION leader_election; INSERT INTO t VALUES (1)');
wait_until(
	sub { slurp_file($subscriber->logfile, $offset) =~ /target relation "leader_election\.\w+" does not exist/ },
	'a subscriber without the extension');
is($subscriber->safe_psql('later', 'SELECT count(*) FROM t'), 0, '... gets nothing');
$subscriber->safe_psql('later', 'CREATE EXTENSION leader_election');
wait_for($subscriber, 'SELECT count(*) FROM t', 1, undef, 'later');
pass('... until it has it');
$subscriber->safe_psql('later', 'ALTER SUBSCRIPTION later DISABLE;
	ALTER SUBSCRIPTION later SET (slot_name = NONE); DROP SUBSCRIPTION later');

done_testing();
