# A run of the linearizability test: a primary and its standby, clients, and the nemesis
# of the chaos run. It leaves in DIR/out the histories that check.pl looks at.
#
#	perl linear.pl --dir DIR --seconds N --seed N [--edition extension|portable]
#	     [--faults chaos|crash|none]
#
# DIR has the programs client and proxy, and a folder disk for the servers. crash: the
# server is killed, and started again, every second or two, and all sessions have
# synchronous_commit = off: what the elections commit has to be durable all the same.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../chaos";

use Cluster;
use Getopt::Long;
use JSON::PP;
use Nemesis;
use Replication;
use Time::HiRes qw(sleep);

my %option = (seconds => 20, seed => 1, edition => 'extension', faults => 'chaos');

GetOptions(\%option, 'dir=s', 'edition=s', 'seconds=i', 'seed=i', 'faults=s') or die;
$dir = $option{dir};
$out = "$dir/out";
mkdir $out;
srand($option{seed});
$edition = $option{edition};
$lease_ms = 600;
@servers = (1) if $option{faults} ne 'chaos';

my $portable = $edition eq 'portable';

%elections = map { $_ => "'race', '$lease_ms ms', 1, '0'" } qw(lone runs);
%groups = $portable ? () : (crew => "3, 'race', 1, '$lease_ms ms'");
$most_seats = 3;
$workers = 0 if $portable;

my @objects = ('lone', 'runs=run', $portable ? () : 'crew*3');

%candidates = map { $_ => { kind => 'detached', via => /^p/ ? 'p' : 'd', in => [ 'lone', 'runs', $portable ? () : 'crew*3' ] } }
  qw(c1 c2 c3 c4), $option{faults} eq 'crash' ? () : qw(p1 p2);

sub start_client
{
	my ($name) = @_;
	my $c = $candidates{$name};
	my $instance = ++$c->{instance};
	my @connections = $c->{via} eq 'p' ? pooled_connection($name) : client_connections($name);

	if ($option{faults} eq 'crash')
	{
		$_ .= " options='-c synchronous_commit=off'" foreach @connections;
		$ENV{LINEAR_NO_REGISTER} = 1;
	}
	$c->{pid} = start_process('client.out', "$dir/client", $name, $option{seed} * 1000 + $instance,
		"$out/calls.$name.$instance", "$dir/terms", join('|', @connections), $lease_ms, @objects);
	return;
}

sub look_after_clients
{
	foreach my $name (sort keys %candidates)
	{
		start_client($name) unless running($candidates{$name}{pid});
	}
	return;
}

sub install
{
	return 'CREATE EXTENSION leader_election' unless $portable;
	system("psql -Xq -v ON_ERROR_STOP=1 -v anyway=1 -d 'host=$dir port=@{[ port_of(1) ]} user=postgres dbname=postgres' "
		  . "-f '$FindBin::RealBin/../../sql/portable.sql' >>'$out/psql.out' 2>&1") == 0
	  or die 'portable.sql fails';
	return "SELECT leader_election.configure(lease_duration => '$lease_ms ms')";
}

sub set_up
{
	start_cluster($option{seed} % 2);
	sql(1, $_, 60) // die "failed: $_" foreach (
		'CREATE DATABASE other',
		install(),
		'CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA leader_election TO app;
		GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app;
		CREATE SCHEMA linear AUTHORIZATION app;
		CREATE TABLE linear.register (name text PRIMARY KEY, value text);
		ALTER TABLE linear.register OWNER TO app',
		(map { "SELECT leader_election.create_election('$_', $elections{$_})" } sort keys %elections),
		(map { "SELECT leader_election.create_group('$_', $groups{$_})" } sort keys %groups),
		"INSERT INTO linear.register SELECT unnest('{lone,runs,crew/1,crew/2,crew/3}'::text[]), ''");
	foreach (standbys()) { build_standby($_) or die 'no standby'; }
	attach_standbys(60) or die 'the standby does not follow' if standbys();
	my %settings = ('longest lease' => 1.25 * $lease_ms, $portable ? (caps => {}, 'fences wait' => 1) : (caps => { crew => 1 }));

	spit("$out/calls.settings", encode_json(\%settings) . "\n");
	spit("$dir/terms", "\0" x 4096);
	look_after_clients();
	return;
}

sub inject_fault
{
	return inject('linear', 0) if $option{faults} eq 'chaos';
	return if $option{faults} eq 'none';
	sleep 0.7 + rand(0.7);
	return unless server_running(1);
	event('fault', 'crash:', 1);
	kill 'KILL', postmaster(1);
	sleep 0.02 while server_processes(1);
	sleep 0.05;
	for (1 .. 20) { last if start_server(1); sleep 0.2; }
	return;
}

# Each promotion, from when the old primary was gone, or cut off, to when the new one was
# told of. An old primary that was cut off goes on for a while. The pooler sends calls to it,
# too, until the pooler is moved to the new one.
sub note_failovers
{
	my (@failovers, %last);
	my $id = 0;

	foreach (split /\n/, slurp("$out/events"))
	{
		my ($time, $event, $what, $server) = split;

		%last = (call => $time, kind => $what, from => $server) if $event eq 'split';
		push @failovers, { %last, return => $time, moved => $time } if $event eq 'promoted';
		$failovers[-1]{moved} = $time if $event eq 'moved' && @failovers;
		$failovers[-1]{until} = $time if $event eq 'joined' && @failovers;
	}
	spit("$out/calls.failovers", join '', map {
		$id++;
		sprintf(qq({"id": %d, "client": "nemesis", "op": "failover", "object": "*", "call": %d, "from": "%s", "pooler": "%s", "moved": %d%s}\n),
			$id, $_->{call}, port_of("c$_->{from}"), port_of('pooler'), $_->{moved}, $_->{kind} eq 'split' ? sprintf(', "until": %d', $_->{until} // 9e15) : '')
		  . qq({"id": $id, "return": $_->{return}, "value": true}\n)
	} @failovers);
	return;
}

event('start', 'seed', $option{seed});
set_up();
my $end = now() + $option{seconds} * 1_000_000;
while (now() < $end)
{
	heal_due();
	look_after_clients();
	inject_fault();
	sleep 0.05 + rand(0.5);

	# Now and then all is well for a while: many faults at a time leave little to tell.
	if (rand() < 0.03)
	{
		heal_all();
		for (1 .. 30) { look_after_clients(); sleep 0.1; }
	}
}
heal_all();
for (1 .. 600) { last unless operation_running(); sleep 0.2; }
signal_all('CONT');
kill 'KILL', map { $_->{pid} } values %candidates;
note_failovers();
stop_servers();
event('end');
