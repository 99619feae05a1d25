# Who stands in the elections of the run: clients of all languages and pg_leader, which
# speak the protocol of ../clients, and candidates of ../chaos, which write logs of
# their own. Half of them are on one host, half on another.
#
#	create_elections($n);           at the primary, node $n
#	start_members($folder, $seed);
#	look_after_members();           starts again what has ended
#	led($n);                        the elections that nobody leads, asked at node $n
#	leaders();                      of the members with the protocol
#	hit($member, 'KILL');
#	end_members();

package Members;

use strict;
use warnings;

use Checker qw($LEASE);
use Exporter qw(import);
use Hosts;
use Nodes;
use Servers qw($JOURNAL);
use Subjects;
use Three;

our @EXPORT = qw(create_elections end_members hit leaders look_after_members start_members
  unled @ELECTIONS @ENDED_THEMSELVES @LOGGED @processes);

$LEASE = 5;    # seconds
our (@processes, @ENDED_THEMSELVES);

my @CLIENTS = qw(python asyncpg node java go pg_leader);

# These find the primary among hosts with any connection. The others' clients do, with
# a session of their own, but a pool of theirs would keep to a host that answers: such
# a pool, also that of their fenced writes, goes through PgBouncer.
my %IS_LIBPQ = (python => 1, pg_leader => 1);

# With the protocol: who stands, how, and over what. Where a session's connection is cut,
# its server may elect another one before it can hear of its end.
my %MEMBERS = (
	sessions => { kind => 'session', over => 'hosts', who => \@CLIENTS, options => ", takeover_delay => '$LEASE s'" },
	detached => { kind => 'detached', over => 'hosts', who => [qw(python pg_leader python pg_leader)], options => '' },
	pooled => { kind => 'detached', over => 'pooler', who => \@CLIENTS, options => '' },
);

# With logs: kind, over what, in which election
my %LOGGED = (
	s1 => [ 'session', 'hosts', 'race' ],
	s2 => [ 'session', 'hosts', 'race' ],
	m1 => [ 'manual', 'hosts', 'race' ],
	d1 => [ 'detached', 'hosts', 'lone' ],
	d2 => [ 'detached', 'hosts', 'lone' ],
	p1 => [ 'detached', 'pooler', 'lone' ],
	l1 => [ 'pg_leader', 'hosts', 'lone' ],
);
our @LOGGED = qw(lone race);
our @ELECTIONS = (sort(keys %MEMBERS), @LOGGED);

my ($folder, $seed, %member, %logged, %starts);

sub create_elections
{
	my ($n) = @_;

	return query($n, 'CREATE EXTENSION leader_election', 'CREATE ROLE app LOGIN',
		'GRANT USAGE ON SCHEMA leader_election TO app', 'GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app',
		$JOURNAL, 'CREATE SCHEMA chaos AUTHORIZATION app',
		(map { "SELECT leader_election.create_election('$_', lease_duration => '$LEASE s'" . ($MEMBERS{$_}{options} // '') . ')' }
			  @ELECTIONS),
		map { qq(CREATE TABLE chaos."w_$_" (term bigint NOT NULL, candidate text NOT NULL, id bigint NOT NULL, written timestamptz DEFAULT clock_timestamp());
			ALTER TABLE chaos."w_$_" OWNER TO app;
			CREATE TRIGGER only_leader BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON chaos."w_$_"
			FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('$_')) } @LOGGED);
}

# The hosts and ports, in another order for each
sub places
{
	my ($over, $i) = @_;

	return (address_of('pooler'), 6432) if $over eq 'pooler';
	return (join(',', map { address_of('node' . (1 + ($i + $_) % 3)) } 0 .. 2), join(',', (5432) x 3));
}

sub client_host { return $_[0] % 2 ? 'east' : 'west'; }

sub start_client
{
	my ($election, $i) = @_;
	my $e = $MEMBERS{$election};
	my $subject = $e->{who}[$i];
	my ($hosts, $ports) = places($e->{over}, $i);
	my ($work_hosts, $work_ports) = $IS_LIBPQ{$subject} ? ($hosts, $ports) : places('pooler');
	my $name = "$election-$subject-$i";
	my $process = start_subject(subject => $subject, kind => $e->{kind}, election => $election, n => $i,
		candidate => "$name." . ++$starts{$name}, log => "$folder/out/$name.log",
		under => [ on_host(client_host($i)) ],
		env => {
			PGUSER => 'app', PGDATABASE => 'postgres', PGCONNECT_TIMEOUT => 2,
			$e->{over} eq 'hosts' ? (PGTARGETSESSIONATTRS => 'read-write') : (),
			CALL_TIMEOUT => 1, SLICE => 1, INTERVAL => 0.5,
			PGHOST => $hosts, PGPORT => $ports, WORKHOST => $work_hosts, WORKPORT => $work_ports });

	$member{$name} = [ $process, $election, $i ];
	push @processes, $process;
	return;
}

sub start_logged
{
	my ($name) = @_;
	my ($kind, $over, $election) = @{ $LOGGED{$name} };
	my $instance = ++$starts{$name};
	my ($where) = client_host(ord(substr $name, -1) + ord $name);
	my @connections = map {
		my ($hosts, $ports) = places($over, $_);
		"application_name=$name user=app dbname=postgres connect_timeout=2 host=$hosts port=$ports"
		  . ($over eq 'hosts' ? ' target_session_attrs=read-write' : '')
	} 0 .. 2;
	my @arguments = ($name, $instance, $seed, "$folder/out/candidate.$name.$instance", "$folder/resource",
		join('|', @connections), $LEASE * 1000, $election);
	my @command = $kind ne 'pg_leader' ? ("$programs/candidate", $kind, @arguments) : (
		qw(pg_leader run --mode=detached --forever --grace=200ms -d), $connections[ $instance % 3 ],
		'-e', $election, '-n', $name, '--', "$programs/candidate", 'command', @arguments);

	$logged{$name} = start_program("candidate.$name", on_host($where, @command));
	return;
}

sub start_members
{
	($folder, $seed) = @_;
	start_program('resource', $^X, "$FindBin::RealBin/../chaos/resource.pl", "$folder/resource", "$folder/out/resource");
	foreach my $election (sort keys %MEMBERS)
	{
		start_client($election, $_) foreach 0 .. $#{ $MEMBERS{$election}{who} };
	}
	start_logged($_) foreach sort keys %LOGGED;
	return;
}

# A client ends by itself only if it is told for long that it will never be let in, and
# none of the faults says so.
sub look_after_members
{
	foreach my $name (sort keys %member)
	{
		my ($process, $election, $i) = @{ $member{$name} };

		next unless ended($process);
		push @ENDED_THEMSELVES, "$process->{candidate}: exit status $process->{exit}" unless $process->{killed};
		start_client($election, $i);
	}
	foreach my $name (sort keys %LOGGED)
	{
		start_logged($name) unless runs($logged{$name});
	}
	return;
}

sub leaders
{
	return grep { leads($_) && last_event($_, 'working', now_ns() - 1e9) } map { $_->[0] } values %member;
}

# The logs tell nobody who leads: the server is asked.
sub unled
{
	my ($n) = @_;
	my %led = map { $_->{election} => 1 } grep { last_event($_, 'wrote', now_ns() - 4e9) } leaders();
	my $answer = query($n, "SELECT string_agg(e, ' ') FROM unnest('{" . join(',', @LOGGED)
		  . "}'::text[]) e WHERE leader_election.leader(e) IS NOT NULL") // '';

	$led{$_} = 1 foreach split ' ', $answer;
	return grep { !$led{$_} } @ELECTIONS;
}

sub hit
{
	my ($process, $signal) = @_;

	$process->{killed} = 1 if $signal eq 'KILL';
	send_signal($process, $signal);
	return;
}

sub end_members
{
	foreach my $process (map { $_->[0] } values %member)
	{
		$process->{killed} = 1;
		send_signal($process, 'CONT');
		send_signal($process, 'TERM');
	}
	stop_subject($_->[0], 10) foreach values %member;
	kill 'TERM', values %logged;
	return;
}

1;
