# Helpers for the tests of what listeners are told.
#
#	use Announced;
#
#	my $listener = Announced->new($node);
#	$one->query("SELECT leader_election.join('e', 'one')");
#	$listener->wait_for_event('e', 'elected 1 one');
#	$listener->all_told_ok('^e', 'joined');
#
# A listener listens from when it is made. Elections are chosen by a regular
# expression that means the same to Perl and to PostgreSQL.
#
#	my $notify = NotifyLock->new($node);
#	$notify->hold;      no commit with NOTIFY gets on
#	$notify->free;

package Announced;

use strict;
use warnings;

use JSON::PP;
use LeaderElection;
use Test::More;

# What the history says, as the events that must have been told. A term that
# begins in the very moment in which the one before it ended is one event.
my $EVENTS = q{
	WITH terms AS (
		SELECT h.*, lag(leader) OVER w AS before, lag(reason) OVER w AS why,
			   lag(ended_at) OVER w AS before_ended_at,
			   lead(acquired_at) OVER w AS next_acquired_at
		  FROM leader_election.history h WHERE election ~ '%s'
		WINDOW w AS (PARTITION BY election ORDER BY term)
	), events AS (
		SELECT election, 'elected' AS event, term, leader,
			   CASE WHEN before_ended_at = acquired_at THEN before END AS previous,
			   CASE WHEN before_ended_at = acquired_at THEN why END AS reason,
			   acquired_at AS at
		  FROM terms
		UNION ALL
		SELECT election, 'vacated', term, NULL, leader, reason, ended_at
		  FROM terms
		 WHERE ended_at IS NOT NULL AND
			   next_acquired_at IS DISTINCT FROM ended_at
	)
	SELECT row_to_json(events) FROM events
	 ORDER BY election COLLATE "C", term, event
};

my $json = JSON::PP->new->canonical->allow_nonref;
my $fences = 0;

# Options:
#	channel  'leadership_changed'
#	dbname   'postgres'
sub new
{
	my ($class, $node, %opts) = @_;
	my $channel = $opts{channel} // 'leadership_changed';
	my $self = bless {
		node => $node,
		session => session(
			$node,
			name => 'listener',
			dbname => $opts{dbname},
			options => '-c client_min_messages=warning -c log_statement=none'),
		told => []
	}, $class;

	$self->{session}->query("LISTEN \"$channel\"");
	return $self;
}

sub session_of { return $_[0]{session}; }

# All that was told so far about some elections, or all, in the order in which it
# came. What is no JSON is text.
sub told
{
	my ($self, $pattern) = @_;

	push @{ $self->{told} },
	  map { eval { decode_json($_) } // $_ } $self->{session}->notifications;
	return grep { !defined $pattern || !ref || $_->{election} =~ /$pattern/ }
	  @{ $self->{told} };
}

# What was told of one election as short texts: "elected 2 two, one resigned",
# "vacated 2, two left", "yield_requested 3 three, to four"
sub events
{
	my ($self, $election) = @_;

	return map { "$_->{event} " . _text($_) }
	  grep { $_->{election} eq $election } $self->told;
}

# The requests to yield in the elections that match, sorted: "e 3 three, to four"
sub requests
{
	my ($self, $pattern) = @_;

	return sort map { "$_->{election} " . _text($_) }
	  grep { $_->{event} eq 'yield_requested' } $self->told($pattern);
}

sub _text
{
	my ($event) = @_;
	my $text = $event->{term};

	$text .= " $event->{leader}" if defined $event->{leader};
	$text .= ", $event->{previous} $event->{reason}"
	  if defined $event->{previous};
	$text .= ", to $event->{successor}" if defined $event->{successor};
	return $text;
}

# Waits until an event of an election was told that begins like this.
sub wait_for_event
{
	my ($self, $election, $event) = @_;

	return wait_until(
		sub { grep { /^\Q$event\E\b/ } $self->events($election) },
		sub { "\"$event\" in $election; there are\n"
			  . join("\n", $self->events($election)) });
}

# Waits until so many events of an election were told.
sub wait_for_count
{
	my ($self, $election, $count) = @_;

	return wait_until(
		sub { $self->events($election) >= $count },
		sub { "$count events of $election; there are\n"
			  . join("\n", $self->events($election)) });
}

# These events, in this order, and no others, were told of an election.
sub events_ok
{
	my ($self, $election, $expected, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$self->wait_for_count($election, scalar @$expected);
	$self->fence;
	return is_deeply([ $self->events($election) ], $expected, $what);
}

# Waits until what changes now is told: everything before it has been, or never
# will be.
sub fence
{
	my ($self, $timeout) = @_;
	my $election = 'fence ' . ++$fences;
	my $term = '';
	my $call = session($self->{node}, name => $election,
		options => '-c client_min_messages=warning -c log_statement=none');

	wait_until(
		sub {
			$term = $call->query("SELECT term
				FROM leader_election.acquire('$election', 'fence')");
			return $term ne '';
		},
		"$election to be granted");
	wait_until(sub { $self->told("^$election\$") }, "$election to be told",
		$timeout);
	$call->query("SELECT leader_election.release('$election', $term)");
	wait_until(sub { $self->told("^$election\$") > 1 }, "$election to be told",
		$timeout);
	$call->finish;
	return;
}

# What must be told of the elections that match, as the history has it now.
sub expected
{
	my ($self, $pattern) = @_;
	my $call = session($self->{node}, name => 'reads history',
		options => '-c log_statement=none');
	my @events = map { decode_json($_) } $call->query(sprintf($EVENTS, $pattern));

	$call->finish;
	return @events;
}

# All changes of the elections that match, which change no more, were told, each
# once, within an election in the order in which they happened, as JSON that
# agrees with the history. Waits for what is under way. Requests to yield are
# left out. Returns the events.
sub all_told_ok
{
	my ($self, $pattern, $what, $timeout) = @_;
	my (@expected, @after, @told);

	local $Test::Builder::Level = $Test::Builder::Level + 1;

	# A lease may run out meanwhile: then there is one more to be told.
	do
	{
		@expected = $self->expected($pattern);
		wait_until(
			sub {
				@told = grep { !ref || $_->{event} ne 'yield_requested' }
				  $self->told($pattern);
				return @told >= @expected;
			},
			sub {
				my %told = map { $json->encode($_) => 1 } @told;
				my %expected = map { $json->encode($_) => 1 } @expected;

				join("\n", @expected . " events of $pattern to be told, not only " . @told . '; not told:',
					(grep { !$told{$_} } sort keys %expected),
					'told instead:',
					grep { !$expected{$_} } sort keys %told);
			},
			$timeout);
		$self->fence($timeout);
		@told = grep { !ref || $_->{event} ne 'yield_requested' }
		  $self->told($pattern);
		@after = $self->expected($pattern);
	} while (@after > @expected);

	# In the order in which they came, but for that of elections
	my %of;
	push @{ $of{ ref ? $_->{election} : '' } }, $json->encode($_) foreach @told;
	same_lists([ map { @{ $of{$_} } } sort keys %of ],
		[ map { $json->encode($_) } @expected ],
		"$what: " . @expected . ' events, each told once, in order (G10)');
	return @expected;
}

# Clients that change who leads, as fast as they can: one for each of some
# elections, "PREFIX 1", "PREFIX 2"..., who leads and gives up in turn until so
# many terms are over. Who finds it busy, or is continued later, goes on from
# there.
sub start_changes
{
	my ($node, $prefix, $elections, $terms) = @_;
	my @clients = map { session($node, name => "client $_") } 1 .. $elections;

	$clients[0]->query(
		q{CREATE OR REPLACE PROCEDURE lead(e text, terms int)
		LANGUAGE plpgsql AS $$
		DECLARE
			last bigint;
			who text;
			t bigint;
		BEGIN
			LOOP
				SELECT term, leader INTO last, who
				  FROM leader_election.lease WHERE election = e;
				EXIT WHEN who IS NULL AND last >= terms;
				IF who IS NULL THEN
					t := (SELECT term FROM leader_election.acquire(e, 'x'));
					IF t <> last + 1 THEN
						RAISE 'after term % of % came term %', last, e, t;
					END IF;
				ELSIF NOT leader_election.release(e, last) THEN
					RAISE 'term % of % is over', last, e;
				END IF;
				COMMIT;
			END LOOP;
		END $$});
	foreach my $n (1 .. $elections)
	{
		$clients[ $n - 1 ]->query('\set VERBOSITY sqlstate');
		$clients[ $n - 1 ]->query_async("CALL lead('$prefix $n', $terms);\n" x 100);
	}
	return @clients;
}

# They come to their end, without errors.
sub end_changes
{
	my (@clients) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $client (@clients)
	{
		$client->result;
		is_deeply(
			[ grep { $_ ne '55P03' } $client->errors =~ /(?:ERROR|WARNING):\s+(.*)/g ],
			[], "$client->{name}: all its changes");
		$client->finish;
	}
	return;
}

# Says where two lists differ first.
sub same_lists
{
	my ($got, $expected, $what) = @_;
	my $n = 0;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$n++
	  while $n < @$got && $n < @$expected && $got->[$n] eq $expected->[$n];
	return ok($n == @$got && $n == @$expected, $what) || diag(
		@$got . ' events, of ' . @$expected . "; after $n:\n",
		join("\n", map { $_ // 'nothing' } @$got[ $n .. $n + 2 ]),
		"\nshould be\n",
		join("\n", map { $_ // 'nothing' } @$expected[ $n .. $n + 2 ]), "\n");
}

package NotifyLock;

use strict;
use warnings;

use LeaderElection;
use PostgreSQL::Test::Utils;

my $config;

# The settings that a server needs for it
sub config
{
	$config //= compile_library('notify_lock');
	return $config;
}

# A session of another database, which is made.
sub new
{
	my ($class, $node) = @_;
	my $self = bless { node => $node }, $class;

	$node->safe_psql('postgres', 'CREATE DATABASE other');
	$self->{session} = session($node, name => 'holder', dbname => 'other');
	$self->{session}->query(
		"CREATE FUNCTION hold_notify_lock() RETURNS void LANGUAGE c AS 'notify_lock'"
	);
	return $self;
}

sub hold
{
	my ($self) = @_;

	$self->{session}->query('BEGIN; SELECT hold_notify_lock()');
	die $self->{session}->errors if $self->{session}->sqlstate ne '00000';
	return;
}

sub free
{
	my ($self) = @_;

	$self->{session}->query('ROLLBACK');
	return;
}

1;
