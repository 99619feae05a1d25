# Faults in the places where people run clients: lists of servers of which one
# refuses, service files, names, poolers, servers that log what is slow. The table
# has the form of Faults.pm.

package Deployments;

use strict;
use warnings;

use Checker qw($LEASE);
use Faults;
use Network;
use Servers;
use Stands;
use Subjects;

# No more attempts to connect in a second, no more lines of log about the election for
# one trouble, and no more in all: pools of drivers say something, too.
my $ATTEMPTS = 10;
my $LINES = 10;
my $ALL_LINES = 400;

# Those whose drivers are libpq's, and those that have a parameter "service"
my %LIBPQ = map { $_ => 1 } qw(python pg_leader);
my %SERVICE = map { $_ => 1 } qw(python);

# The primary and the standby that lags, in either order
sub servers { return ('1,3' =~ s/(\d)/port($1)/ger, '3,1' =~ s/(\d)/port($1)/ger); }

# A detached candidate is where its program's pool is: there, the primary is first.
sub beside_a_standby
{
	my ($kind) = @_;
	my @servers = servers();

	return (WORKPORT => port(1), PGPORT => $kind eq 'session' ? \@servers : $servers[0]);
}

sub terminate_all { terminate(processes_of($_[0])); return; }

# --- services and names

my %SERVER_OF_OTHERS = map { $_ => undef } qw(PGHOST PGPORT PGUSER PGPASSWORD PGDATABASE);

sub write_service
{
	open my $file, '>', "$out/../service.conf" or die $!;
	print $file "# the standby comes first\n[other]\nhost=nowhere.invalid\n\n[app]\n",
	  "host=$WORK_HOST,$WORK_HOST\nport=" . (servers())[1] . "\n",
	  "user=app\npassword=app\ndbname=postgres\n";
	close $file or die $!;
	return;
}

# By the environment; the second member, by a parameter, where there is one.
sub by_service
{
	my ($kind, $subject) = @_;

	return (%SERVER_OF_OTHERS, WORKPORT => port(1), PGSERVICEFILE => "$out/../service.conf",
		$SERVICE{$subject} ? (PGSERVICE => [ 'app', undef ], SERVICE => [ undef, 'app' ])
		: (PGSERVICE => 'app'));
}

# One name; the second member of those who use libpq, by PGHOSTADDR.
sub by_name
{
	my ($kind, $subject) = @_;

	return (WORKPORT => port(1), PGHOST => 'cluster.test', PGPORT => port('named'))
	  unless $LIBPQ{$subject};
	return (WORKPORT => port(1), PGHOST => [ 'cluster.test', 'one.invalid,two.invalid' ],
		PGHOSTADDR => [ undef, "$WORK_HOST,$WORK_HOST" ],
		PGPORT => [ port('named'), (servers())[1] ]);
}

sub start_name
{
	start_lagging();
	name_addresses('cluster.test', "$out/../hosts");
	start_program("named-$_->[0]", $^X, "$FindBin::RealBin/slow.pl",
		"$_->[0]:" . port('named'), port($_->[1]), 0)
	  foreach [ $NAMED[0], 3 ], [ $NAMED[1], 1 ];
	return;
}

sub stop_name
{
	stop_program("named-$_") foreach @NAMED;
	stop_lagging();
	return;
}

# A leader that has just not renewed has two thirds of its lease, and the pooler tries
# again a second after the server is there: a longer restart loses leaders.
sub restart_quickly
{
	my (@stands) = @_;
	my $start = now_ns();

	restart('fast');
	$_->{excused} = (now_ns() - $start) / 1e9 > $LEASE / 2 foreach @stands;
	return;
}

# --- spinning

sub start_knocks
{
	start_program('knocks', $^X, "$FindBin::RealBin/knocks.pl");
	await(sub { -s "$out/knocks.log" });
	return;
}

# What each process of these stands does in a while: how often it asks for a
# connection, and how many lines it writes.
sub watch_them
{
	my (@stands) = @_;
	my @members = map { @{ $_->{members} } } @stands;
	my $seconds = 2 * $LEASE;
	my $known = -s "$out/knocks.log";
	my (%knocks, %known);

	$known{ $_->{n} } = -s $_->{process}{log} foreach @members;
	pause($seconds);
	$knocks{$_}++ foreach map { /^(\S+) / } written_since('knocks.log', $known);
	foreach my $stand (@stands)
	{
		$stand->{spins} = [];
		foreach my $member (@{ $stand->{members} })
		{
			my $process = $member->{process};
			my $attempts = $knocks{ address_of($member->{n}) } // 0;
			my @lines = written_since($process->{log} =~ s{.*/}{}r, $known{ $member->{n} });
			my $about = grep { /\Q$process->{election}\E/ } @lines;
			my $too_many = @lines > $ALL_LINES
			  || $about > $LINES && can_do($member->{subject}, 'terse');

			push @{ $stand->{spins} }, map { "$process->{candidate}: $_" }
			  ($attempts > $ATTEMPTS * ($seconds + 1) ? "$attempts attempts in $seconds s" : ()),
			  ($too_many ? "$about lines of log about the election, "
				  . @lines . " in all, in $seconds s" : ()),
			  (ended($process) ? 'has ended' : ());
		}
	}
	return;
}

sub spins { return @{ $_[0]{spins} }; }

# --- the server's log

my ($logged, %backends);

# From now on, what the server logs of those who stand now counts.
sub watch_log
{
	$logged = -s "$out/server1.log";
	%backends = map { split /\|/ } split /\n/, sql('SELECT backend_pid, election
		FROM leader_election.candidate WHERE backend_pid IS NOT NULL');
	return;
}

# What it has logged of a stand's sessions that fits
sub logged_of
{
	my ($stand, $what) = @_;

	return map { s/\n//r } grep {
		/^\S+ \S+ \S+ \[(\d+)\]/ && ($backends{$1} // '') eq $stand->{name} && /$what/
	} written_since('server1.log', $logged);
}

sub log_slow
{
	my ($setting) = @_;

	sql("ALTER SYSTEM SET log_min_duration_statement = '$setting'");
	sql('SELECT pg_reload_conf()');
	return;
}

# The table

my @groups = (
	{ name => 'refusing', lags => 1, env => \&beside_a_standby,
		open => sub { admit(3, 'host all app all reject'); start_lagging() },
		close => \&stop_lagging },
	{ name => 'service', lags => 1, kinds => ['session'], env => \&by_service,
		open => sub { write_service(); admit(3); start_lagging() },
		close => \&stop_lagging },
	{ name => 'names', lags => 1, kinds => ['session'], env => \&by_name, cuts => 1,
		open => \&start_name, close => \&stop_name },
	{ name => 'pooled', kinds => ['session'],
		env => sub { (PGPORT => port('documented'), PGDATABASE => 'session',
			POOLER => 'session', WORKPORT => port(1)) },
		open => \&start_documented,
		close => sub { stop_load(); stop_program('documented') } },
	{ name => 'documented', kinds => ['detached'], lease => 2,
		env => sub { (PGPORT => port('documented'), WORKPORT => port(1)) },
		open => sub { start_documented(); start_knocks() if can_cut() },
		close => sub { stop_program('knocks'); stop_program('documented') } },
	{ name => 'slices', kinds => ['session'],
		subjects => [qw(python asyncpg node java go)],
		env => sub { (PGPORT => port(1), WORKPORT => port(1), DEFAULT_SLICE => 1) },
		open => sub { log_slow('1s') }, close => sub { log_slow('-1') } },
	{ name => 'spin', cuts => 1,
		env => sub { (PGPORT => port(1), WORKPORT => port(1)) },
		open => \&start_knocks, close => sub { stop_program('knocks') } },
);

my @faults = (
	{ name => 'refused by the standby: 28000', group => 'refusing', delay => 1,
		then => 'any', within => 15, to => \&terminate_all },
	{ name => 'refused by the standby: restart', group => 'refusing', delay => 1,
		then => 'any', within => 20, to_all => sub { restart('fast') } },
	{ name => 'refused by the standby: 28P01', group => 'refusing', delay => 1,
		prepare => sub { admit(3, 'host all app all scram-sha-256') },
		then => 'any', within => 15, to => \&terminate_all },
	{ name => 'refused by the standby: 3F000', group => 'refusing', delay => 1,
		prepare => sub { admit(3) },
		then => 'any', within => 15, to => \&terminate_all },

	{ name => 'service file', group => 'service', delay => 1,
		then => 'any', within => 15, to => \&terminate_all },

	{ name => 'one name', group => 'names', delay => 1,
		then => 'any', within => 15, to => \&terminate_all },

	{ name => 'session pooler: SIGKILL', group => 'pooled',
		then => 'other', within => 8, dies => 1, to => sub { send_signal($_[1], 'KILL') } },
	{ name => 'session pooler: loaded', group => 'pooled',
		prepare => sub { start_load('session') },
		then => 'other', within => 8, dies => 1, to => sub { send_signal($_[1], 'KILL') } },
	{ name => 'session pooler: SIGTERM', group => 'pooled',
		then => 'other', within => 5, dies => 1, reason => 'closed',
		to => sub { send_signal($_[1], 'TERM') },
		check => \&found_by_load },

	{ name => 'restart behind the pooler', group => 'documented',
		then => 'same', to_all => \&restart_quickly },
	{ name => 'spin: release refused', group => 'documented', cuts => 1,
		then => 'nobody', needs => 'resign',
		to_all => sub {
			# The pooler refuses everybody at once.
			stop_primary();
			send_line($_->{led}, 'resign') foreach @_;
			watch_them(@_);
		},
		heal => \&start_primary, after => 'any', within => 20, check => \&spins },

	{ name => 'slices: nothing happens', group => 'slices', then => 'same',
		to_all => \&watch_log,
		check => sub {
			my @slow = logged_of($_[0], 'duration:.*campaign');

			return @slow ? "the server logs campaigns: $slow[-1]" : ();
		} },
	{ name => 'slices: SIGTERM', group => 'slices', then => 'same',
		to_all => sub {
			watch_log();
			$_->{dies} = 1, send_signal($_, 'TERM') foreach map { @{ $_->{followed} } } @_;
		},
		check => sub {
			my @fatal = logged_of($_[0], 'FATAL');

			return @fatal ? "the server logs $fatal[-1]" : ();
		} },

	{ name => 'spin: server down', group => 'spin', then => 'nobody',
		to_all => sub {
			stop_primary();
			send_line($_->{led}, 'resign')
			  foreach grep { can_do($_->{led}{subject}, 'resign') } @_;
			watch_them(@_);
		},
		heal => \&start_primary, after => 'any', within => 20, check => \&spins },
	{ name => 'spin: connections reset', group => 'spin', then => 'nobody',
		to_all => sub { stop_primary(); start_impostor('reset'); watch_them(@_) },
		heal => sub { stop_program('impostor'); start_primary() },
		after => 'any', within => 20, check => \&spins },
	{ name => 'spin: hung up', group => 'spin', then => 'nobody',
		to_all => sub { stop_primary(); start_impostor('hangup'); watch_them(@_) },
		heal => sub { stop_program('impostor'); start_primary() },
		after => 'any', within => 20, check => \&spins },
	{ name => 'spin: login refused', group => 'spin', then => 'nobody',
		to_all => sub {
			admit(1, 'host all app all reject');
			terminate_all($_) foreach @_;
			watch_them(@_);
		},
		heal => sub { admit(1) },
		after => 'any', within => 20, check => \&spins },
);

$_->{deployment} = 1 foreach @faults;
add_faults(__FILE__, \@groups, @faults);

1;
