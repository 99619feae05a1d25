# Settings of the whole server that end transactions, make them read-only, or change
# what a name means. Clients have set theirs otherwise; the worker has its own, and
# renews, elects and announces all the same.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

my %SETTINGS = (
	statement_timeout => '1ms',
	lock_timeout => '1ms',
	idle_in_transaction_session_timeout => '1ms',
	default_transaction_isolation => 'serializable',
	default_transaction_read_only => 'on',
	default_transaction_deferrable => 'on',
	synchronous_commit => 'off',
	search_path => 'nowhere',
	check_function_bodies => 'off',
	row_security => 'off',
	extra_float_digits => -15,
	timezone => 'Pacific/Kiritimati',
	datestyle => 'SQL, DMY',
	intervalstyle => 'iso_8601',
);

my $node = new_server;

$SETTINGS{transaction_timeout} = '1ms'
  if $node->safe_psql('postgres', "SELECT count(*) FROM pg_settings WHERE name = 'transaction_timeout'");

# What clients have
$ENV{PGOPTIONS} = join ' ', '-c search_path=public', '-c default_transaction_read_only=off',
  '-c default_transaction_isolation=read\ committed', '-c client_min_messages=warning',
  map { "-c $_=0" } grep { /timeout/ } keys %SETTINGS;

$node->safe_psql('postgres', "ALTER SYSTEM SET $_ = '$SETTINGS{$_}'")
  foreach sort keys %SETTINGS;
$node->reload;
{
	local $ENV{PGOPTIONS} = '';

	wait_until(
		sub {
			my ($code, $out, $errors) = $node->psql('postgres', 'SELECT pg_sleep(0.5)');
			return $errors =~ /(?:statement|transaction) timeout/;
		},
		'the settings to be those of all');
}

my %s = map { $_ => session($node, name => $_) } qw(one two listener owner);

$s{listener}->query('LISTEN leadership_changed');
$s{owner}->query("SELECT leader_election.create_election('e', 'lowest', '600ms')");
$s{owner}->query("SELECT leader_election.create_election('detached', 'lowest', '600ms')");
is($s{one}->query("SELECT leader_election.join('e', 'one', rank => 1)"), '1', 'a session leads');
is($s{two}->query("SELECT leader_election.join('e', 'two', rank => 2)"), '', 'another one stands');
my $first = ($s{owner}->lease('e', 'deadline_mono'))[0];

wait_until(sub { ($s{owner}->lease('e', 'deadline_mono'))[0] > $first + 2_000_000 }, 'renewals');
is($s{one}->query("SELECT leader_election.term('e')"), '1', 'the worker renews its lease');
$s{one}->kill;
wait_until(sub { $s{two}->query("SELECT leader_election.term('e')") eq '2' }, 'the next leader');
pass('and elects the next one, when that session has ended');

is($s{owner}->query("SELECT term FROM leader_election.acquire('detached', 'd')"), '1', 'a detached candidate leads');
wait_for($node, "SELECT reason FROM leader_election.history WHERE election = 'detached'", 'expired');
pass('the worker ends its term');

my @told;
wait_until(
	sub {
		push @told, map { /"election": ?"(\w+)", ?"event": ?"(\w+)", ?"term": ?(\d+)/ ? "$1 $2 $3" : $_ } $s{listener}->notifications;
		return @told >= 4;
	},
	sub { "four notifications: @told" });
is_deeply([ sort @told ], [ 'detached elected 1', 'detached vacated 1', 'e elected 1', 'e elected 2' ], 'and tells of it all');
unlike(slurp_file($node->logfile), qr/leader_election worker.*(?:ERROR|FATAL)/, 'without an error');

done_testing();
