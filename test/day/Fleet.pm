# The hundred clients of a day, and their 200 elections. In C, a client is a process
# that stands in several elections; in other languages, a leadership is a client, and
# one process of each language has all of them.

package Fleet;

use strict;
use warnings;

use Cluster;
use Exporter qw(import);
use Languages;
use Nemesis;

our @EXPORT = qw(make_fleet start_client look_after_clients clients_running $SESSION $DETACHED $CLIENTS);

our $SESSION = 160;		# elections in which sessions stand
our $DETACHED = 40;		# ... and others do: a session always comes first
our $CLIENTS = 0;

# How many processes in C, of each kind; each election has candidates in two of them
my %C = (session => 24, detached => 12);
my $MANUAL = 4;
my $LISTENERS = 4;
my $PG_LEADER = 3;		# of each mode

# Leaderships of each kind in a process
my %LEADERSHIPS = (
	python => [ 8, 6 ],
	asyncpg => [ 4, 2 ],
	node => [ 6, 4 ],
	java => [ 6, 4 ],
	go => [ 6, 2 ],
);

sub session_elections { return map { sprintf 's%03d', $_ } 1 .. $SESSION; }
sub detached_elections { return map { sprintf 'd%03d', $_ } 1 .. $DETACHED; }

# Each election in two processes, which are neighbours in another way each time
sub share
{
	my ($prefix, $kind, @elections) = @_;
	my $n = $C{$kind};

	foreach my $i (0 .. $#elections)
	{
		my $first = $i % $n;
		my $second = ($first + 1 + int($i / $n) % ($n - 1)) % $n;

		push @{ $candidates{ sprintf '%s%02d', $prefix, $_ + 1 }{in} }, $elections[$i] foreach $first, $second;
	}
	foreach my $name (grep { /^$prefix\d/ } keys %candidates)
	{
		$candidates{$name}{kind} = $kind;
		$candidates{$name}{via} = $kind eq 'detached' && $name =~ /[147]$/ ? 'p' : 'd';
	}
	return;
}

sub make_fleet
{
	my @session = session_elections();
	my @detached = detached_elections();
	my ($s, $d) = (0, 0);

	%elections = map { $_ => "'race', '$lease_ms ms', 1, '0'" } @session, @detached;
	share('cs', 'session', @session);
	share('cd', 'detached', @detached);
	foreach my $i (1 .. $MANUAL)
	{
		$candidates{"cm$i"} = { kind => 'manual', via => 'd', in => [ @session[ 8 * $i .. 8 * $i + 3 ] ] };
	}
	foreach my $i (1 .. $LISTENERS)
	{
		$candidates{"li$i"} = { kind => $i == 1 ? 'restless listener' : 'listener', via => 'd', in => [ $session[0] ] };
	}
	$candidates{w1} = { kind => 'watcher changes', via => 'd', in => [ @session[ 0 .. 9 ], @detached[ 0 .. 9 ] ] };
	$candidates{w2} = { kind => 'watcher status', via => 'd', in => [ @session[ 0 .. 9 ], @detached[ 0 .. 9 ] ] };
	foreach my $i (1 .. $PG_LEADER)
	{
		$candidates{"ps$i"} = { kind => 'pg_leader session', via => 'd', in => [ $session[ -$i ] ] };
		$candidates{"pd$i"} = { kind => 'pg_leader detached', via => 'd', in => [ $detached[ -$i ] ] };
	}
	$CLIENTS = keys %candidates;

	# Everywhere in the lists, so that each language has rivals in C, and in other languages
	foreach my $language (@LANGUAGES)
	{
		my ($sessions, $others) = @{ $LEADERSHIPS{$language} };
		my @members;

		push @members, [ 'session', $session[ (7 * $s++) % @session ] ] foreach 1 .. $sessions;

		# A client of a session leads until its own deadline, half a lease, where the word
		# that its session has ended does not reach it.
		$elections{ $_->[1] } = "'race', '$lease_ms ms', 1, '$lease_ms ms'" foreach @members;
		push @members, [ 'detached', $detached[ (7 * $d++) % @detached ] ] foreach 1 .. $others;
		$candidates{$language} = { kind => $language, via => 'd', members => \@members, in => [ map { $_->[1] } @members ] };
		$CLIENTS += @members;
	}
	return;
}

sub start_client
{
	my ($name) = @_;
	my $c = $candidates{$name};
	my $instance = ++$c->{instance};
	my ($connection) = $c->{via} eq 'p' ? pooled_connection($name) : client_connections($name);

	# A hundred clients that give up each login after 2 s can keep a loaded server from
	# answering anybody: after a restart, it is busy with those that have gone.
	$connection =~ s/connect_timeout=2/connect_timeout=15/;
	my $log = "$out/candidate.$name.$instance";
	my @arguments = ($name, $instance, $$ % 1000, $log, "$dir/resource", $connection, $lease_ms, @{ $c->{in} });

	local $ENV{CHAOS_TICK_MS} = 200;
	$c->{pid} =
	    $c->{members} ? start_language($name, $c, $connection, $connection =~ /port=(\d+)/, 'postgres')
	  : $c->{kind} =~ /^pg_leader (\w+)/
	  ? start_process("pg_leader.$name", 'pg_leader', 'run', '-d', $connection, '-e', $c->{in}[0], '-n', $name,
		"--mode=$1", '--forever', '--grace=200ms', '--', "$dir/candidate", 'command', @arguments)
	  : $c->{kind} =~ /^watcher (\w+)/
	  ? start_process('watcher.out', "$dir/watcher", $1, $name, $instance, $log, $connection, @{ $c->{in} })
	  : start_process('candidate.out', "$dir/candidate", $c->{kind}, @arguments);
	$c->{restart_at} = undef;

	# For the meter
	spit("$dir/pids", join '', map { "$candidates{$_}{pid} " . ($candidates{$_}{kind} =~ tr/ /_/r) . "\n" }
		  grep { $candidates{$_}{pid} } sort keys %candidates);
	return;
}

# A process that has ended is started again after a while.
sub look_after_clients
{
	my ($at_once) = @_;

	foreach my $name (sort keys %candidates)
	{
		my $c = $candidates{$name};

		next if running($c->{pid});
		$c->{restart_at} //= now() + rand(3_000_000);
		start_client($name) if $at_once || now() >= $c->{restart_at};
	}
	return;
}

sub clients_running { return !grep { !running($_->{pid}) } values %candidates; }

1;
