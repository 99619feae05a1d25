# What follows if a handler raises an error, exits, blocks, or calls close(), resign() or wait():
# the table in docs/clients.md. And what a client does before it leads: the name it
# takes, and what it tells in a forked child.

package Handlers;

use strict;
use warnings;

use Alone;
use Checker qw($LEASE);
use Exporter qw(import);
use Network;
use POSIX ();
use Servers;
use Stands;
use Subjects;

our @EXPORT = qw(default_names forks handlers);

my @CLIENTS = qw(python asyncpg node java go);

sub clients
{
	my (@subjects) = @_;

	return grep { my $subject = $_; grep { $_ eq $subject } @CLIENTS } @subjects;
}

# How its last term ended, as the server has it: undef if it has not
sub reason
{
	my ($case) = @_;

	return (sql("SELECT reason FROM leader_election.history
		WHERE election = '$case->{election}' ORDER BY term DESC LIMIT 1"))[0] || undef;
}

sub gave_back
{
	return sub {
		my $reason = reason($_[0]) // return 0;

		die "the lease was not given back: $reason\n" if $reason eq 'expired';
		return 1;
	};
}

# Nobody renews it while the handler blocks, for two leases: so it may be over.
sub is_leased
{
	return sub {
		my $reason = reason($_[0]) // 'expired';

		die "the lease has ended: $reason\n" if $reason ne 'expired';
		return 1;
	};
}

sub still_works
{
	return sub {
		my ($case) = @_;
		my $process = $case->{process};
		my $working = last_event($process, 'working', now_ns() - $LEASE / 2 * 1e9) // return 0;

		die "works in term $working->[1]\n" if $working->[1] != ($process->{leads} // 0);
		return 1;
	};
}

sub request_yield
{
	return sub {
		sql("SELECT leader_election.request_yield('$_[0]{election}')");
		return 1;
	};
}

my @error = ([ 'says the error' => event('error') ], [ 'ends' => ends(3) ],
	[ 'gave the lease back' => gave_back() ]);
my @closed = ([ 'closes' => event('closed') ], [ 'ends' => ends(0) ]);
my @elected = ([ 'is elected' => event('elected') ]);
my @loses = (@elected, [ 'resigns' => sends('resign') ],
	[ 'loses' => event('lost', 'resigned') ]);
my @asked = (@elected, [ 'is asked to yield' => request_yield() ],
	[ 'hears it' => event('yield') ]);

# After the handler's line
my %FOLLOWS = (
	'elected:raise' => [ @elected, [ 'loses' => event('lost', 'error') ], @error ],
	'elected:exit' => [ @elected, [ 'ends' => ends(7) ] ],
	'elected:block' => [ @elected, [ 'keeps the term' => stays(1.5, 'lost|elected|error') ],
		[ 'works' => still_works() ],
		[ 'the handler returns' => stays(1, 'lost|elected|error') ],
		[ 'resigns' => sends('resign') ], [ 'loses' => event('lost', 'resigned') ] ],
	'elected:close' => [ @elected, [ 'loses' => event('lost', 'closed') ], @closed ],
	'elected:resign' => [ @elected, [ 'loses' => event('lost', 'resigned') ], @elected ],
	'elected:wait' => [ @elected, [ 'works' => still_works() ], [ 'resigns' => sends('resign') ],
		[ 'loses' => event('lost', 'resigned') ], @elected ],

	'lost:raise' => [ @loses, @error ],
	'lost:exit' => [ @loses, [ 'ends' => ends(7) ] ],
	'lost:block' => [ @loses, [ 'has it still' => is_leased() ],
		[ 'does not stand' => stays(1.5, 'elected|error', 1) ], @elected ],
	'lost:close' => [ @loses, @closed ],
	'lost:resign' => [ @loses, @elected ],
	'lost:wait' => [ @loses, [ 'does not stand' => stays(1.5, 'elected|error', 1) ],
		[ 'SIGTERM' => sends('TERM') ], @closed ],

	'yield:raise' => [ @asked, [ 'loses' => event('lost', 'yielded|resigned') ] ],
	'yield:exit' => [ @asked, [ 'ends' => ends(7) ] ],
	'yield:block' => [ @asked,
		[ 'is over' => event('lost', 'expired|not renewed|yielded|resigned') ] ],
	'yield:close' => [ @asked, [ 'loses' => event('lost', 'closed|yielded') ], @closed ],
	'yield:resign' => [ @asked, [ 'loses' => event('lost', 'yielded|resigned') ] ],
);

# Of the handler, and of what it did, this time
sub logs_little
{
	my ($least, $most) = @_;

	return sub {
		my ($case) = @_;
		my $lines = grep { /\Q$case->{election}\E/ } written_since("$case->{election}.err", $case->{logged});

		die "$lines lines of log about the election\n" if $lines < $least || $lines > $most;
		return 1;
	};
}

# Python's two have a handler of error, which hears what ended the client, sys.exit()
# as well.
my %TOLD = map { ("$_:raise" => 'RuntimeError', "$_:exit" => 'SystemExit') } qw(elected lost yield);
delete $TOLD{'yield:raise'};

sub told_once
{
	my ($told) = @_;

	return sub {
		my @told = map { $_->[1] } grep { $_->[0] eq 'told' } @{ $_[0]{process}{events} };

		die 'is told: ' . join(' ', @told, '-') . "\n" if "@told" ne $told;
		return 1;
	};
}

sub handlers
{
	my ($at, @subjects) = @_;
	my @cases;

	foreach my $handler (sort keys %FOLLOWS)
	{
		foreach my $subject (clients(@subjects))
		{
			push @cases, map { { name => "handler $handler", subject => $subject, kind => $_,
				at => $at, again => 1, env => { HANDLER => $handler },
				steps => [ @{ $FOLLOWS{$handler} },
					[ 'says it in the log' => logs_little($handler =~ /raise/ ? 1 : 0, 10) ],
					$subject =~ /^(?:python|asyncpg)$/
					? ([ 'the handler of error is told' => told_once($TOLD{$handler} // '') ]) : () ] } }
			  qw(session detached);
		}
	}
	return @cases;
}

# --- names

my $PID_1 = 1;

# [ CASE, ENVIRONMENT, WHAT THE NAME IS, START IT UNDER ]; PID is the process's.
sub names
{
	my $host = quotemeta +(POSIX::uname())[1];
	my %kubernetes = (KUBERNETES_SERVICE_HOST => '10.0.0.1', HOSTNAME => 'host-of-pod');

	return (
		[ 'default name', {}, "$host-PID-[0-9a-f]{4}" ],
		[ 'default name in a pod', { %kubernetes, POD_NAME => 'mailer-7d4-x2' },
			'mailer-7d4-x2-PID' ],
		[ 'default name in a pod without POD_NAME', {%kubernetes}, 'host-of-pod-PID' ],
		[ 'default name that is long', { %kubernetes, POD_NAME => 'x' x 250 }, 'x{100,200}\S*' ],
		can_cut() ? [ 'default name of process 1', { %kubernetes, POD_NAME => 'mailer-7d4-x2' },
			'mailer-7d4-x2', [qw(unshare --pid --fork --kill-child=KILL)] ] : ());
}

sub default_names
{
	my ($at, @subjects) = @_;
	my @cases;

	foreach my $subject (clients(@subjects))
	{
		push @cases, map { my $fits = $_->[2]; { name => $_->[0], subject => $subject, unchecked => 1,
			kind => 'session', at => $at, env => { DEFAULT_NAME => 1, %{ $_->[1] } },
			under => $_->[3],
			steps => [ [ 'says its name' => event('name') ],
				[ 'has a right name' => sub {
						my ($case) = @_;
						my ($name, $pid) = ($case->{event}[1], $case->{process}{pid});
						my $right = $fits =~ s/PID/$pid/r;

						die "is $name, process $pid\n" if $name !~ /^(?:$right)$/;
						die "is $name\n" if length $name > 200;
						$case->{taken} = $name;
						return 1;
					} ],
				@elected,
				[ 'leads by that name' => sub {
						my ($case) = @_;
						my $leader = sql("SELECT leader_election.leader('$case->{election}')");

						die "is $leader\n" if $leader ne $case->{taken};
						return 1;
					} ] ] } } names();
	}
	return @cases;
}

# --- forks

my %IN_A_CHILD = (wait => 'RuntimeError', fenced => 'RuntimeError', start => 'RuntimeError',
	term => 'None', leads => 'False');

sub forks
{
	my ($at, @subjects) = @_;
	my @cases;

	foreach my $subject (grep { /^(?:python|asyncpg)$/ } @subjects)
	{
		push @cases, map { { name => 'fork', subject => $subject, kind => $_, at => $at,
			env => { FORK => 1 },
			steps => [
				[ 'the child is told' => sub {
						my ($case) = @_;
						my %told = map { $_->[1] => $_->[4] }
						  grep { $_->[0] eq 'forked' } @{ $case->{process}{events} };

						return 0 if grep { !defined $told{$_} } keys %IN_A_CHILD;
						foreach my $what (sort keys %IN_A_CHILD)
						{
							die "$what: $told{$what}\n" if $told{$what} ne $IN_A_CHILD{$what};
						}
						return 1;
					} ],
				[ 'the parent leads on' => stays(2, 'lost|error') ],
				[ 'works' => still_works() ],
				[ 'SIGTERM' => sends('TERM') ], [ 'loses' => event('lost', 'closed') ], @closed ] } }
		  qw(session detached);
	}
	return @cases;
}

1;
