# A server that speaks PostgreSQL's protocol, version 3, to pg_leader, and
# answers nonsense: of its own choice, by a seed, or as it is told.
#
#	my $server = HostileServer->new(seed => 1);
#	my $server = HostileServer->new(answers => [ [ qr/request_yield/, 'rows', ['1e308'] ] ]);
#	... $server->connstr ...
#	my @log = $server->finish;
#
# It knows each statement of pg_leader, with an answer that could be true, and
# makes nonsense of some. Each connection has a process of its own, so that what
# it answers depends on the seed and on what it is asked only.
#
# The log has a line for each statement that it does not know, and for each
# lease that it grants: when it was asked for, term and remaining time.

package HostileServer;

use strict;
use warnings;

use Carp;
use HostileAnswers;
use IO::Socket::INET;
use POSIX ();
use PostgreSQL::Test::Utils;

# How long it is silent, or floods its client, before it hangs up: seconds
my $PATIENCE = 3;

my %servers;

END
{
	my $status = $?;

	$_->finish foreach values %servers;
	$? = $status;
}

# Starts one. Options:
#	seed      of the nonsense; without it, all answers are as they should be
#	answers   a list of [ regexp, what, more... ]: the answer to statements that
#	          match. What: a kind of nonsense (HostileAnswers), or 'rows' and the
#	          rows
#	greeting  its client_encoding, and more messages that come first
#	patience  see above
sub new
{
	my ($class, %opts) = @_;
	my $listener = IO::Socket::INET->new(
		LocalAddr => '127.0.0.1', LocalPort => 0, Listen => 50, ReuseAddr => 1)
	  or croak "no server: $@";
	my $self = bless {
		patience => $PATIENCE,
		answers => [],
		greeting => [],
		%opts,
		log => PostgreSQL::Test::Utils::tempdir() . '/log',
		port => $listener->sockport }, $class;

	PostgreSQL::Test::Utils::append_to_file($self->{log}, '');
	$self->{pid} = fork // croak "cannot fork: $!";
	if ($self->{pid} == 0)
	{
		# What belongs to the test is not for the server.
		@SIG{qw(TERM INT CHLD PIPE)} = qw(DEFAULT DEFAULT IGNORE IGNORE);
		setpgrp;
		eval { $self->_accept($listener) };
		POSIX::_exit(1);
	}
	$servers{ $self->{pid} } = $self;
	return $self;
}

sub connstr
{
	my ($self) = @_;

	return "host=127.0.0.1 port=$self->{port} user=u dbname=d";
}

# What it has logged until now
sub log_lines
{
	my ($self) = @_;

	return split /\n/, slurp_file($self->{log});
}

# Ends it, with all its connections. Returns the log.
sub finish
{
	my ($self) = @_;

	return unless delete $servers{ $self->{pid} };
	kill('KILL', $self->{pid});
	kill('KILL', -$self->{pid});
	waitpid($self->{pid}, 0);
	return $self->log_lines;
}

sub _accept
{
	my ($self, $listener) = @_;
	my $n = 0;

	while (getppid > 1)
	{
		my $client = $listener->accept or next;
		my $pid = fork;

		$n++;
		next if !defined $pid || $pid;
		close($listener);
		srand(($self->{seed} // 0) * 1000 + $n);
		# By connection: mostly good, some nonsense, much nonsense
		my $rate = defined $self->{seed} ? (0.02, 0.1, 0.4)[ rand 3 ] : 0;
		eval { HostileServer::Connection->new($self, $client, $rate)->serve };
		$self->_note("DIED $@") if $@ !~ /^(gone|too much|the end|enough|hang up|) at |^$/;
		POSIX::_exit(0);
	}
	return;
}

sub _note
{
	my ($self, $line) = @_;

	open(my $file, '>>', $self->{log}) or die;
	syswrite($file, "$line\n");
	close($file);
	return;
}

package HostileServer::Connection;

use strict;
use warnings;

use HostileAnswers;
use Time::HiRes qw(sleep clock_gettime CLOCK_MONOTONIC);

sub new
{
	my ($class, $server, $client, $rate) = @_;

	return bless { server => $server, client => $client, rate => $rate, sql => '' }, $class;
}

# Reads so many bytes, or dies: the client is gone, or has sent too much.
sub receive
{
	my ($self, $length) = @_;
	my $data = '';

	die 'too much' if $length < 0 || $length > 10_000_000;
	while (length $data < $length)
	{
		# After nonsense, the client may wait for more.
		die 'enough' if $self->{is_odd} && !$self->is_readable($self->{server}{patience});
		sysread($self->{client}, $data, $length - length $data, length $data) or die 'gone';
	}
	return $data;
}

sub send_all
{
	my ($self, $data, $pause) = @_;
	my $offset = 0;

	while ($offset < length $data)
	{
		$offset += syswrite($self->{client}, $data, $pause ? 1 : 65536, $offset) // die 'gone';
		next unless $pause;
		sleep($pause);
		die 'enough' if $offset * $pause > $self->{server}{patience};
	}
	return;
}

# Sends the same again and again, until the client goes, or for as long as
# patience lasts.
sub flood
{
	my ($self, $data) = @_;
	my $end = clock_gettime(CLOCK_MONOTONIC) + $self->{server}{patience};
	my $much = $data x (1 + int(20000 / length $data));

	$self->send_all($much) while clock_gettime(CLOCK_MONOTONIC) < $end;
	die 'enough';
}

# Reads, and says nothing.
sub hush
{
	my ($self) = @_;
	my $end = clock_gettime(CLOCK_MONOTONIC) + $self->{server}{patience};

	while ((my $left = $end - clock_gettime(CLOCK_MONOTONIC)) > 0)
	{
		last unless $self->is_readable($left);
		sysread($self->{client}, my $ignored, 65536) or last;
	}
	die 'enough';
}

# Waits until there is something to be read, for so many seconds at most.
sub is_readable
{
	my ($self, $seconds) = @_;
	my $bits = '';

	vec($bits, fileno $self->{client}, 1) = 1;
	return select($bits, undef, undef, $seconds) > 0;
}

# From the first byte on
sub serve
{
	my ($self) = @_;

	for (;;)
	{
		my $length = unpack('N', $self->receive(4));
		my $code = unpack('N', $self->receive($length - 4));

		# A request to cancel; those for encryption; the start
		return if $code == 80877102;
		last if $code != 80877103 && $code != 80877104;
		return $self->send_all(random_bytes()) if rand() < $self->{rate} / 4;
		$self->send_all('N');
	}
	my $greeting = greeting(@{ $self->{server}{greeting} });

	$self->send_odd(rand() < $self->{rate} / 4 ? any_greeting() : $greeting, $greeting);
	$self->take_message while 1;
	return;
}

sub take_message
{
	my ($self) = @_;
	my ($type, $length) = unpack('aN', $self->receive(5));
	my $body = $self->receive($length - 4);

	die 'the end' if $type eq 'X';
	(undef, $self->{sql}) = unpack('Z*Z*', $body) if $type eq 'P';
	$self->{sql} = unpack('Z*', $body) if $type eq 'Q';
	$self->answer($type eq 'Q') if $type eq 'Q' || $type eq 'S';
	return;
}

# Answers the statement that has come.
sub answer
{
	my ($self, $is_simple) = @_;
	my $asked = clock_gettime(CLOCK_MONOTONIC);
	my $server = $self->{server};
	my $known = statement_of($self->{sql});

	if (!$known)
	{
		$server->_note("UNKNOWN $self->{sql}");
		return $self->send_all(error('42601', 'what?'));
	}
	# The look at the schema comes before each statement.
	my $rate = $known->{often} ? $self->{rate} / 10 : $self->{rate};
	my ($told) = grep { $self->{sql} =~ $_->[0] } @{ $server->{answers} };
	my @rows = map { [@$_] } @{ $known->{rows} };
	my $kind;

	(undef, $kind, @rows) = (@$told, $told->[1] eq 'rows' ? () : @rows) if $told;
	$kind //= rand() < $rate ? any_kind() : 'rows';
	@rows = odd_rows(@rows) if $kind eq 'values';
	my $before = $is_simple ? '' : message('1', '') . message('2', '');
	my %answer = (types => $known->{types}, rows => \@rows, before => $before,
		all => $before . rows($known->{types}, @rows) . ready());
	my $is_odd = $kind !~ /^(rows|values)$/;
	$server->_note("ASKED $known->{has}");
	$server->_note("SENT $kind");
	my $sent = $is_odd ? $KINDS{$kind}->(\%answer) : $answer{all};

	# What is odd grants this at most.
	$server->_note(join(' ', 'GRANT', $asked, map { defined $_ ? substr($_, 0, 500) =~ s/\s/_/gr : 'NULL' } @{ $rows[0] }[ 0, 1 ]))
	  if $known->{grants} && @rows;
	$self->send_odd($sent, $answer{all});
	$self->{is_odd} = 1 if $is_odd;
	return;
}

# Sends what is given: bytes, or a way to send them, or the whole answer.
sub send_odd
{
	my ($self, $what, $all) = @_;

	return $self->send_all($what) unless ref $what;
	my ($how, $data, $again) = @$what;
	return $self->hush if $how eq 'silence';
	return $self->send_all($all, 0.005) if $how eq 'slow';
	$self->send_all($data // '') if $how ne 'middle';
	return $self->flood($again) if $how eq 'flood';
	$self->send_all(substr($all, 0, rand length $all)) if $how eq 'middle';
	die 'hang up';
}

1;
