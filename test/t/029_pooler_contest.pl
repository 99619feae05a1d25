# Ten clients behind PgBouncer in transaction mode, which has three connections to
# the server for them, compete for one election as detached candidates.
#
# Each keeps its own books as the README tells it to: it leads from the moment
# at which it has the answer until remaining_ms after the moment at which it
# sent the request, or until it sends the release.  One that falls silent, or is
# killed, has the rest of its lease all the same: that is never taken early.
# The server's clock, asked right after the grant, tells when the term began:
# all that runs on one machine, and both read the same clock.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use List::Util qw(max min uniq);
use Pooler;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock_gettime sleep CLOCK_BOOTTIME);

plan skip_all => 'there is no pgbouncer' unless find_pooler();

my $CLIENTS = 10;
my $POOL_SIZE = 3;

# Autovacuum must not lock the leases to truncate them: in doubt, is_leader()
# is false, and here it has to be true all the time.
my $node = new_server(
	config => q(
leader_election.lease_duration = '500ms'
client_min_messages = warning
autovacuum = off
));
my $control = session($node, name => 'control');

set_up_pooler($node, pool => "pool_size=$POOL_SIZE");

# The extended protocol with parameters, where psql knows how
my $can_bind = $control->query('\echo :VERSION_NUM') >= 160000;

# A call of one of our functions, as a query
sub call
{
	my ($extended, $function, @args) = @_;

	return "SELECT * FROM leader_election.$function("
	  . join(', ',
		map { $extended ? "\$$_" : "'$args[$_ - 1]'" } 1 .. @args)
	  . ')'
	  . ($extended ? " \\bind @args \\g" : '');
}

# The clock that leases are measured with
sub now
{
	return clock_gettime(CLOCK_BOOTTIME);
}

my @clients;
my @leads;          # { name, term, granted, from, to, over, how, reason }
my @lost;           # who never got the answer to an acquire
my @wrong;
my @observations;   # { by, from, to, terms }
my %served;         # backends by pooler, and by client
my %done = map { $_ => 0 } qw(release silence kill);
my %wanted = (release => 6, silence => 3, kill => 3);
my $poolers = 1;

# How leaders are to end: one way after the other, as often as is wanted
sub next_fate
{
	my @left = grep { $done{$_} < $wanted{$_} } sort keys %wanted;

	return @left ? $left[ @leads % @left ] : 'release';
}

sub send_call
{
	my ($c, $function, @args) = @_;
	my $sql = call($can_bind && $c->{extended}, $function, 'e', @args);

	# Which backend serves it, and when, is told even if there is no row.
	$sql =~ s/^SELECT \* FROM (.*\))/
SELECT pg_backend_pid(), leader_election._monotonic_clock(), f.*
FROM (VALUES (1)) one LEFT JOIN $1 f ON true/;
	$c->{call} =
	  { function => $function, pooler => $poolers, sent => now() };
	$c->{session}->query_async($sql);
	return;
}

sub reconnect
{
	my ($c) = @_;

	push @lost, $c->{name}
	  if $c->{call} && $c->{call}{function} eq 'acquire';
	delete $c->{call};
	$c->{session} = pooled($c->{name});
	$c->{next} = now();
	return;
}

# What a client does when its time has come
sub act
{
	my ($c) = @_;
	my $lead = $c->{lead};

	unless ($lead)
	{
		send_call($c, 'acquire', $c->{name});
		return;
	}
	if ($c->{renewals}-- > 0)
	{
		send_call($c, 'renew', $lead->{term});
		return;
	}

	if ($lead->{how} eq 'release')
	{
		$c->{to} = $lead->{to};
		$lead->{to} = min($lead->{to}, now());
		send_call($c, 'release', $lead->{term});
	}
	elsif ($lead->{how} eq 'kill')
	{
		send_call($c, 'renew', $lead->{term});
		$c->{session}->kill;
		$lead->{reason} = 'expired';
		$done{kill}++;
		delete $c->{lead};
		reconnect($c);
	}
	elsif (!$lead->{silent})
	{
		$lead->{silent} = 1;
		$c->{next} = $lead->{over} + rand(0.2);
	}
	else
	{
		send_call($c, 'renew', $lead->{term});
	}
	return;
}

# What a client makes of an answer
sub answered
{
	my ($c, $call, $got, $row) = @_;
	my ($pid, $clock, $result, $remaining) = split /\|/, $row;
	my $lead = $c->{lead};
	my $ends = $call->{sent} + ($remaining || 0) / 1000;

	# When it is over for the server, too; milliseconds are rounded down.
	my $over = $got + (($remaining || 0) + 1) / 1000;

	$served{"pooler $call->{pooler}"}{$pid} = 1;
	$served{ $c->{name} }{$pid} = 1;
	if ($call->{function} eq 'acquire')
	{
		$c->{next} = $got + 0.02 + rand(0.04);
		return unless defined $result && $result ne '';
		$c->{lead} = {
			name => $c->{name},
			term => $result,
			granted => $clock / 1e6,
			from => $got,
			to => $ends,
			over => $over,
			how => next_fate()
		};
		push @leads, $c->{lead};
		$c->{renewals} = 1 + int(rand(3));
		$c->{next} = $got + 0.1;
	}
	elsif ($call->{function} eq 'release')
	{
		push @wrong, "term $lead->{term} could not be released"
		  if $result ne 't' && $got < $c->{to};
		$lead->{reason} = 'resigned' if $result eq 't';
		$done{release}++ if $result eq 't';
		delete $c->{lead};
	}
	elsif (defined $result && $result ne '')
	{
		push @wrong, "term $lead->{term} was renewed after its deadline"
		  if $lead->{silent};
		push @wrong, "term $lead->{term} was renewed as $result"
		  if $result ne $lead->{term};
		$lead->{to} = max($lead->{to}, $ends);
		$lead->{over} = max($lead->{over}, $over);
		$c->{next} = $got + 0.1;
	}
	else
	{
		push @wrong, "term $lead->{term} was over before its deadline"
		  if $got < $lead->{to};
		$lead->{reason} = 'expired';
		$done{silence}++ if $lead->{silent};
		delete $c->{lead};
	}
	return;
}

sub step
{
	my ($c) = @_;

	if (my $call = $c->{call})
	{
		return unless $c->{session}->finished;
		my $got = now();
		my $row = $c->{session}->result;

		if (!$c->{session}->alive)
		{
			reconnect($c);
			return;
		}
		delete $c->{call};
		if ($c->{session}->sqlstate ne '00000')
		{
			push @wrong, "$c->{name}: " . $c->{session}->errors;
			return;
		}
		answered($c, $call, $got, $row);
	}
	elsif (now() >= $c->{next})
	{
		act($c);
	}
	return;
}

# Somebody else asks which terms are valid.  The calls are made one after the
# other, the greatest term first: if two were valid at once, both would show.
sub observe
{
	my ($o) = @_;

	if ($o->{sent})
	{
		return unless $o->{session}->finished;
		my $terms = $o->{session}->result;

		push @observations,
		  {
			by => $o->{name},
			from => $o->{sent},
			to => now(),
			terms => { map { $_ => 1 } split(/,/, $terms) }
		  }
		  if $o->{session}->sqlstate eq '00000';
		$o->{session} = pooled($o->{name}) unless $o->{session}->alive;
	}
	my $most = 3 + max(0, map { $_->{term} } @leads);
	$o->{sent} = now();
	$o->{session}->query_async(
		"SELECT array_to_string(ARRAY(SELECT t FROM generate_series($most, 1, -1) t"
		  . " WHERE leader_election.is_leader('e', t)), ',')");
	return;
}

# What was observed, against who has led: how often both agree, and where not
sub compare
{
	my $agreed = 0;
	my @contradictions;

	foreach my $o (@observations)
	{
		my $seen = join(',', keys %{ $o->{terms} });

		push @contradictions, "the $o->{by} observer saw terms $seen at once"
		  if keys %{ $o->{terms} } > 1;
		foreach my $lead (@leads)
		{
			next unless $lead->{from} <= $o->{from} && $o->{to} <= $lead->{to};
			if ($seen eq $lead->{term})
			{
				$agreed++;
				next;
			}
			push @contradictions,
			  "term $lead->{term} was led, the $o->{by} observer saw ($seen)";
		}
	}
	return ($agreed, @contradictions);
}

note 'seed ' . srand;
@clients = map {
	{
		name => "client_$_",
		extended => $_ % 2,
		session => pooled("client_$_"),
		next => 0
	}
} 1 .. $CLIENTS;
my @observers = (
	{ name => 'direct', session => session($node, name => 'direct') },
	{ name => 'pooled', session => pooled('pooled') });

# The pooler dies and comes back on the way.
my $until = now() + $PostgreSQL::Test::Utils::timeout_default;
while ((grep { $done{$_} < $wanted{$_} } keys %wanted) || (compare())[0] <= 20)
{
	if ($poolers == 1 && @leads >= 5)
	{
		kill_pooler();
		start_pooler();
		$poolers++;
	}
	step($_) foreach @clients;
	observe($_) foreach @observers;
	die 'timed out: ' . join(' ', %done) if now() > $until;
	sleep(0.001);
}
foreach my $c (grep { $_->{call} } @clients)
{
	wait_until(sub { $c->{session}->finished }, "an answer to $c->{name}");
	step($c);
}

note scalar(@leads) . ' leaderships, ' . scalar(@observations)
  . ' observations, lost answers: ' . scalar(@lost);
is_deeply(\@wrong, [], 'every answer is the right one');

# A connection whose client is killed while it is in use is replaced.
cmp_ok(
	keys %{ $served{"pooler $_"} },
	'<=',
	$POOL_SIZE + $wanted{kill},
	"$CLIENTS clients share fewer server connections of pooler $_")
  foreach 1 .. $poolers;
is_deeply([ grep { keys %{ $served{ $_->{name} } } < 2 } @clients ],
	[], '... and each is served by several of them');
cmp_ok(uniq(map { $_->{name} } @leads), '>', 1, 'leaders change');

# No two valid terms at a time, as far as the leaders themselves believe
my @overlaps;
my $last = { term => 0, to => 0 };
foreach my $lead (sort { $a->{granted} <=> $b->{granted} } @leads)
{
	push @overlaps,
	  "term $lead->{term} of $lead->{name} began"
	  . " at $lead->{granted}, term $last->{term} ended at $last->{to}"
	  if $lead->{term} <= $last->{term} || $lead->{granted} < $last->{to};
	$last = $lead;
}
is_deeply(\@overlaps, [],
	'no term began before the last one was over, and terms grow (G1)');

# ... and as far as others are told
my (undef, @contradictions) = compare();
is_deeply(\@contradictions, [],
	'is_leader(election, term) is true for others while it is led,'
	  . ' and never for another term');

# History knows them all.  A term whose grant was lost on the way is nobody's.
my %history =
  map { my @f = split /\|/, $_, -1; ($f[0] => \@f) }
  $control->query("SELECT term, leader, reason, detail"
	  . " FROM leader_election.history WHERE election = 'e'");
my @unheard = grep {
	my $term = $_;
	!grep { $_->{term} == $term } @leads
} sort { $a <=> $b } keys %history;
my @unexplained = grep {
	my $name = $history{$_}[1];
	!grep { $_ eq $name } @lost
} @unheard;

is_deeply([ sort { $a <=> $b } keys %history ],
	[ 1 .. keys %history ], 'terms count one by one');
is_deeply(
	[
		map { "$_->{term} $_->{name} " . ($_->{reason} // 'any') } @leads
	],
	[
		map {
			my $h = $history{ $_->{term} } // [];
			"$_->{term} " . ($h->[1] // 'nobody') . ' '
			  . ($_->{reason} ? $h->[2] // 'none' : 'any')
		} @leads
	],
	'history tells who led in each term, and why it ended');
is_deeply(\@unexplained, [],
	'a term that no client was told of is one whose answer was lost');
is( $control->query(
		"SELECT count(*) FROM (SELECT acquired_at, lag(ended_at)"
		  . ' OVER (ORDER BY term) AS before FROM leader_election.history'
		  . " WHERE election = 'e') t WHERE acquired_at < before"),
	'0',
	'... and no term began before the last one had ended');

is( $control->query(
		'SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)'
		  . " WHERE locktype = 'advisory' AND backend_type = 'client backend'"),
	'0',
	'no lock is left on any server connection (authentik#23876)');
$_->{session}->kill foreach @clients, @observers;

kill_pooler();
done_testing();
