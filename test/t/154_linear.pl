# All that clients were told can have happened in one order, each call at one moment
# between its call and its answer, although server processes are killed: test/linear
# has the checker. It is given histories first that it has to refuse.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $LINEAR = "$FindBin::RealBin/../linear";
my $LEASE_MS = 400;
my $SECONDS = 6;

# --- histories that were made up

my $dir = PostgreSQL::Test::Utils::tempdir();
my $id = 0;

# One call: from, to (undef: no answer), what it was, and what it was told. Times are in
# milliseconds.
sub call
{
	my ($from, $to, $op, $arguments, $answer) = @_;
	my ($seat) = $arguments =~ /"seat": "(\S+)"/ ? $1 : 'e';
	my $object = $seat =~ s{/\d+$}{}r;

	$id++;
	return sprintf('{"id": %d, "client": "%s", "op": "%s", "object": "%s", "seat": "%s", %s, "call": %d}' . "\n",
		$id, $arguments =~ /"client": "(\w+)"/ ? $1 : 'a', $op, $object, $seat, $arguments, $from * 1000)
	  . (defined $to ? sprintf('{"id": %d, "sent": %d, "return": %d, %s}' . "\n", $id, $from * 1000, $to * 1000, $answer) : '');
}

sub grant { my ($term, $ms, $seat) = @_; return sprintf '"rows": [["%s", %d, %d]]', $seat // 'e', $term, $ms; }

# Another server goes on; the former one, if there is an until, beside it until then.
sub failover
{
	my ($from, $to, $until, $port) = @_;

	$id++;
	return sprintf('{"id": %d, "op": "failover", "object": "*", "call": %d, "from": "%s"%s}' . "\n",
		$id, $from * 1000, $port // 5432, $until ? sprintf(', "until": %d', $until * 1000) : '')
	  . sprintf('{"id": %d, "return": %d, "value": true}' . "\n", $id, $to * 1000);
}

# Does the checker say that these calls can be explained?
sub explained
{
	my (@calls) = @_;

	open(my $file, '>', "$dir/made_up") or die $!;
	print $file qq({"caps": {"g": 1}, "longest lease": 100}\n), @calls;
	close $file;
	IPC::Run::run([ $^X, "$LINEAR/check.pl", "$dir/made_up" ], '>&' => \my $said);
	my $status = $? >> 8;

	note($said);
	$said =~ /linearizable$/mi or die $said;
	return $status == 0;
}

my @granted = call(0, 2, 'acquire', '"run": null', grant(1, 100));
my ($term, $b) = ('"term": 1', '"client": "b", "run": null');
my $new = '"term": 9';	# that a failover continues it in
my ($true, $false, $none) = ('"value": true', '"value": false', '"rows": []');

# The leader is renewed after a failover; and releases its lease, while the former server
# goes on, which is asked from then on whether it leads.
sub continued { return @granted, failover(50, 60, 200), call(70, 71, 'renew', $term, grant(9, 100)); }
sub released_elsewhere { return continued(), call(72, 73, 'release', $new, $true); }
sub is_former { my ($at, $of, $answer) = @_; return call($at, $at + 1, 'is_leader', $of, qq("server": "5432", $answer)); }

sub run { return qq("run": "$_[0]", "attempts": 1); }

# What is so, and what is not: calls, and the same with one of them changed, or more such.
my @CASES = (
	[ 'a lease lasts as long as it was said to',
		[ @granted, call(95, 103.5, 'acquire', $b, grant(2, 100)) ],
		[ @granted, call(95, 99, 'acquire', $b, grant(2, 100)) ] ],
	[ 'a lease is over when it is over',
		[ @granted, call(102, 104, 'is_leader', $term, $true) ],
		[ @granted, call(104, 106, 'is_leader', $term, $true) ] ],
	[ 'what has been over is over',
		[ @granted, call(101, 101.5, 'is_leader', $term, $true), call(101.6, 102, 'is_leader', $term, $false) ],
		[ @granted, call(101, 101.5, 'is_leader', $term, $false), call(101.6, 102, 'is_leader', $term, $true) ] ],
	[ 'nobody leads before having been elected',
		[ @granted, call(1, 3, 'is_leader', $term, $true) ],
		[ @granted, call(0, 3, 'is_leader', '"term": 2', $true) ] ],
	[ 'terms grow',
		[ @granted, call(103, 104, 'acquire', $b, grant(2, 100)) ],
		[ @granted, call(103, 104, 'acquire', $b, grant(1, 100)) ] ],
	[ 'a renewal prolongs the lease',
		[ @granted, call(50, 52, 'renew', $term, grant(1, 100)), call(140, 141, 'is_leader', $term, $true) ],
		[ @granted, call(50, 52, 'renew', $term, grant(1, 100)), call(140, 141, 'renew', $term, $none) ] ],
	[ 'no deadline goes back',
		[ @granted, call(50, 52, 'renew', $term, grant(1, 48)) ],
		[ @granted, call(50, 52, 'renew', $term, grant(1, 40)) ] ],
	[ 'a term that is over cannot be renewed',
		[ @granted, call(10, 12, 'release', $term, $true), call(11, 13, 'renew', $term, grant(1, 100)) ],
		[ @granted, call(10, 12, 'release', $term, $true), call(13, 14, 'renew', $term, grant(1, 100)) ] ],
	[ 'it can be released once',
		[ @granted, call(10, 12, 'release', $term, $true), call(11, 13, 'release', $term, $false) ],
		[ @granted, call(10, 12, 'release', $term, $true), call(13, 14, 'release', $term, $true) ] ],
	[ 'a release without an answer may come at any time, or never',
		[ @granted, call(10, undef, 'release', $term), call(20, 21, 'is_leader', $term, $true), call(22, 23, 'is_leader', $term, $false) ],
		[ @granted, call(20, 21, 'is_leader', $term, $false), call(22, undef, 'release', $term) ] ],
	[ 'a renewal without an answer may come at any time',
		[ @granted, call(10, undef, 'renew', $term), call(190, 191, 'is_leader', $term, $true) ],
		[ @granted, call(10, undef, 'renew', $term), call(50, 51, 'is_leader', $term, $false) ] ],
	[ 'but then the lease may be the longest one at most',
		[ @granted, call(10, undef, 'renew', $term), call(202, 203, 'is_leader', $term, $true) ],
		[ @granted, call(10, undef, 'renew', $term), call(206, 207, 'is_leader', $term, $true) ] ],
	[ 'and so may each of two',
		[ @granted, (map { call($_, undef, 'renew', $term) } 10, 20), call(302, 303, 'is_leader', $term, $true) ],
		[ @granted, (map { call($_, undef, 'renew', $term) } 10, 20), call(308, 309, 'is_leader', $term, $true) ] ],
	[ 'while one is under way, that a term is over is in doubt, but not before its lease may be over',
		[ @granted, call(95, 130, 'renew', $term, grant(1, 60)), call(104, 105, 'is_leader', $term, $false), call(131, 132, 'is_leader', $term, $true) ],
		[ @granted, call(90, 130, 'renew', $term, grant(1, 60)), call(95, 96, 'is_leader', $term, $false), call(131, 132, 'is_leader', $term, $true) ] ],
	[ 'it takes effect once',
		[ @granted, call(10, undef, 'renew', $term), call(190, 191, 'renew', $term, grant(1, 100)), call(280, 281, 'is_leader', $term, $true) ],
		[ @granted, call(10, undef, 'renew', $term), call(190, 191, 'renew', $term, grant(1, 100)), call(300, 301, 'is_leader', $term, $true) ] ],
	[ 'after a failover the leader goes on in a greater term',
		[ @granted, failover(50, 60), call(70, 71, 'renew', $term, grant(9, 100)), call(72, 73, 'is_leader', $new, $true) ],
		[ @granted, failover(50, 60), call(70, 71, 'renew', $term, grant(1, 100)) ] ],
	[ 'it does not lead before',
		[ @granted, failover(50, 60), call(61, 62, 'is_leader', $term, $false) ],
		[ @granted, failover(50, 60), call(61, 62, 'is_leader', $term, $true) ] ],
	[ 'the former server may say that it leads, for as long as it did there',
		[ @granted, failover(50, 60, 200), call(80, 81, 'is_leader', $term, qq("server": "5432", $true)) ],
		[ @granted, failover(50, 60, 200), call(110, 111, 'is_leader', $term, qq("server": "5432", $true)) ] ],
	[ 'and what is left of its lease, but prolongs nothing',
		[ @granted, failover(50, 60, 200), call(80, 81, 'renew', $term, '"server": "5432", ' . grant(1, 20)) ],
		[ @granted, failover(50, 60, 200), call(80, 81, 'renew', $term, '"server": "5432", ' . grant(1, 90)) ] ],
	[ 'the former server says so, too, when the leader has renewed and released its lease at the new one',
		[ released_elsewhere(), is_former(80, $term, $true), call(82, 83, 'renew', $term, '"server": "5432", ' . grant(1, 18)) ],
		[ released_elsewhere(), is_former(110, $term, $true) ],
		[ released_elsewhere(), call(82, 83, 'renew', $term, '"server": "5432", ' . grant(1, 90)) ] ],
	[ 'the former server knows no term of the new one',
		[ released_elsewhere(), is_former(80, $new, $false) ],
		[ released_elsewhere(), is_former(80, $new, $true) ] ],
	[ 'nobody else is elected before the lease at the former server is over',
		[ released_elsewhere(), call(99, 101, 'acquire', $b, grant(10, 100)) ],
		[ released_elsewhere(), call(82, 83, 'acquire', $b, grant(10, 100)) ],
		[ released_elsewhere(), call(99, 101, 'acquire', $b, grant(10, 100)), is_former(102, $term, $true) ] ],
	[ 'nor is anybody before that, after another failover',
		[ released_elsewhere(), failover(80, 82), call(99, 101, 'acquire', $b, grant(10, 100)) ],
		[ released_elsewhere(), failover(80, 82), call(85, 86, 'acquire', $b, grant(10, 100)) ] ],
	[ 'a failover brings back no lease that was released',
		[ released_elsewhere(), failover(90, 92, 200), call(93, 94, 'renew', $new, $none) ],
		[ released_elsewhere(), failover(90, 92, 200), call(93, 94, 'renew', $new, grant(11, 100)) ],
		[ released_elsewhere(), failover(90, 92, 200), is_former(95, $new, $true) ] ],
	[ 'a former server does not say that a term leads which was over there',
		[ call(0, 20, 'acquire', '"run": null', grant(1, 100)), call(104, 105, 'is_leader', $term, $false), failover(106, 107, 200), is_former(110, $term, $false) ],
		[ call(0, 20, 'acquire', '"run": null', grant(1, 100)), call(104, 105, 'is_leader', $term, $false), failover(106, 107, 200), is_former(110, $term, $true) ] ],
	[ 'each of two former servers has its own term',
		[ continued(), call(110, 120.5, 'is_leader', $new, qq("server": "5433", $true)), failover(120, 130, 300, 5433), call(121.5, 122, 'renew', $new, '"server": "5433", ' . grant(9, 100)) ],
		[ continued(), failover(120, 130, 300, 5433), call(240, 241, 'is_leader', $new, qq("server": "5433", $true)) ] ],
	[ 'the old number is accepted until a renewal has named the new one',
		[ continued(), call(72, 73, 'renew', $term, grant(9, 100)), call(74, 75, 'renew', $new, grant(9, 100)), call(76, 77, 'renew', $term, $none) ],
		[ continued(), call(76, 77, 'renew', $term, $none) ],
		[ continued(), call(74, 75, 'renew', $new, grant(9, 100)), call(76, 77, 'release', $term, $true) ] ],
	[ 'the old number may be accepted for longer, if that renewal has prolonged nothing',
		[ continued(), call(74, 75, 'renew', $new, grant(9, 95)), call(76, 77, 'release', $term, $true) ],
		[ continued(), call(74, 75, 'renew', $new, grant(9, 100)), call(76, 77, 'release', $term, $true) ] ],
	[ 'a release by the old number, without an answer, has no effect after that',
		[ continued(), call(72, undef, 'release', $term), call(74, 75, 'renew', $new, grant(9, 100)), call(173, 176, 'acquire', $b, grant(10, 100)) ],
		[ continued(), call(72, undef, 'release', $term), call(74, 75, 'renew', $new, grant(9, 100)), call(120, 121, 'acquire', $b, grant(10, 100)) ] ],
	[ 'a renewal without an answer may end the use of the old number',
		[ continued(), call(74, undef, 'renew', $new), call(76, 77, 'renew', $term, $none) ],
		[ continued(), call(76, 77, 'renew', $term, $none), call(78, undef, 'renew', $new) ] ],
	[ 'and may prolong the lease, too',
		[ continued(), call(160, undef, 'renew', $new), call(161, 162, 'renew', $term, $none), call(200, 201, 'is_leader', $new, $true) ],
		[ continued(), call(160, undef, 'renew', $new), call(161, 162, 'renew', $term, $none), call(270, 271, 'is_leader', $new, $true) ] ],
	[ 'a fenced write is of the present term',
		[ @granted, call(9, 12, 'release', $term, $true), call(10, 11, 'write', qq($term, "old": "", "new": "x"), $true) ],
		[ @granted, call(9, 10, 'release', $term, $true), call(11, 12, 'write', qq($term, "old": "", "new": "x"), $true) ] ],
	[ 'it is refused only if that is over',
		[ @granted, call(9, 12, 'release', $term, $true), call(10, 11, 'write', qq($term, "old": "", "new": "x"), $false) ],
		[ @granted, call(9, 12, 'write', qq($term, "old": "", "new": "x"), $false) ] ],
	[ 'what was written is read',
		[ @granted, call(10, 14, 'write', qq($term, "old": "", "new": "x"), $true), call(11, 12, 'read', qq($term, "old": "x"), $true) ],
		[ @granted, call(10, 11, 'write', qq($term, "old": "", "new": "x"), $true), call(12, 13, 'read', qq($term, "old": ""), $true) ] ],
	[ 'and is not lost again',
		[ @granted, call(10, 14, 'write', qq($term, "old": "", "new": "x"), $true), call(11, 12, 'read', qq($term, "old": ""), $true) ],
		[ @granted, call(10, 14, 'write', qq($term, "old": "", "new": "x"), $true), call(11, 12, 'read', qq($term, "old": "x"), $true),
			call(12.1, 13, 'read', qq($term, "old": ""), $true) ] ],
	[ 'a write without an answer is there by the end of its term, or never',
		[ @granted, call(10, undef, 'write', qq($term, "old": "", "new": "x")), call(12, 13, 'read', qq($term, "old": ""), $true),
			call(20, 21, 'release', $term, $true), call(22, 23, 'acquire', $b, grant(2, 100)), call(24, 25, 'read', '"term": 2, "old": "x"', $true) ],
		[ @granted, call(10, undef, 'write', qq($term, "old": "", "new": "x")), call(12, 13, 'read', qq($term, "old": ""), $true),
			call(20, 21, 'release', $term, $true), call(22, 23, 'acquire', $b, grant(2, 100)), call(24, 25, 'read', '"term": 2, "old": ""', $true),
			call(26, 27, 'read', '"term": 2, "old": "x"', $true) ] ],
	[ 'a run is granted until it is done',
		[ call(0, 2, 'acquire', run(5), grant(1, 100)), call(10, 12, 'release done', $term, $true), call(11, 13, 'acquire', run(6), grant(2, 100)) ],
		[ call(0, 2, 'acquire', run(5), grant(1, 100)), call(10, 12, 'release done', $term, $true), call(11, 13, 'acquire', run(5), grant(2, 100)) ] ],
	[ 'it can be done late, but not when another term has begun',
		[ call(0, 2, 'acquire', run(5), grant(1, 100)), call(104, 105, 'is_leader', $term, $false), call(105, 112, 'release done', $term, $true),
			call(111, 113, 'acquire', run(6), grant(2, 100)) ],
		[ call(0, 2, 'acquire', run(5), grant(1, 100)), call(104, 105, 'acquire', run(6), grant(2, 100)), call(106, 107, 'release done', $term, $true) ] ],
	[ 'a run that is recorded when its lease has run out gives nothing up, so that a failover may bring the lease back',
		[ call(0, 2, 'acquire', run(5), grant(1, 100)), call(99, 112, 'release done', $term, $true), failover(113, 115), call(120, 121, 'renew', $term, grant(9, 100)) ],
		[ call(0, 2, 'acquire', run(5), grant(1, 100)), call(90, 92, 'release done', $term, $true), failover(113, 115), call(120, 121, 'renew', $term, grant(9, 100)) ] ],
	[ 'a run that is recorded before its lease has run out gives the lease up',
		[ call(0, 2, 'acquire', run(5), grant(1, 100)), call(90, 112, 'release done', $term, $true), call(95, 96, 'acquire', run(6), grant(2, 100)) ],
		[ call(0, 2, 'acquire', run(5), grant(1, 100)), call(97, 112, 'release done', $term, $true), call(95, 96, 'acquire', run(6), grant(2, 100)) ] ],
	[ 'it can be done by the term that a failover has continued, as long as no other has begun',
		[ call(0, 2, 'acquire', run(5), grant(1, 100)), failover(50, 60), call(70, 71, 'renew', $term, grant(9, 100)),
			call(72, 73, 'release', $term, $true), call(74, 75, 'release done', $term, $true) ],
		[ call(0, 2, 'acquire', run(5), grant(1, 100)), failover(50, 60), call(70, 71, 'renew', $term, grant(9, 100)),
			call(72, 73, 'release', $term, $true), call(74, 75, 'acquire', run(6), grant(10, 100)),
			call(76, 77, 'release done', $term, $true) ] ],
	[ 'it can be done, unless a grant of which nobody has heard has begun another term just before',
		[ call(0, 2, 'acquire', run(5), grant(1, 100)), call(104, undef, 'acquire', $b), call(106, 107, 'release done', $term, $false) ],
		[ call(0, 2, 'acquire', run(5), grant(1, 100)), call(104, undef, 'acquire', $b), call(60_000, 60_001, 'release done', $term, $false) ] ],
	[ 'it is granted so many times, and none that is below',
		[ call(0, 2, 'acquire', run(5), grant(1, 100)), call(10, 12, 'release', $term, $true), call(13, 14, 'acquire', run(6), grant(2, 100)) ],
		[ call(0, 2, 'acquire', run(5), grant(1, 100)), call(10, 12, 'release', $term, $true), call(13, 14, 'acquire', run(5), grant(2, 100)) ] ],
	[ 'nobody has more seats than allowed',
		[ call(0, 2, 'acquire', '"seat": "g/1"', grant(1, 100, 'g/1')), call(99, 101, 'acquire', '"seat": "g/1"', grant(1, 100, 'g/2')) ],
		[ call(0, 2, 'acquire', '"seat": "g/1"', grant(1, 100, 'g/1')), call(50, 52, 'acquire', '"seat": "g/1"', grant(1, 100, 'g/2')) ] ],
);

foreach (@CASES)
{
	my ($title, $right, @wrong) = @$_;

	ok(explained(@$right), "explained: $title");
	ok(!explained(@$_), "not explained, where that is not so: $title") foreach @wrong;
}

# --- a server

my $node = new_server(config => 'restart_after_crash = on');
my $client = "$dir/client";
my $pg_config = $ENV{PG_CONFIG} // 'pg_config';
chomp(my $include = `$pg_config --includedir`);
chomp(my $libdir = `$pg_config --libdir`);
compile('-O2', "-I$include", '-o', $client, "$LINEAR/client.c", "$LINEAR/../chaos/log.c",
	"-L$libdir", "-Wl,-rpath,$libdir", '-lpq');

$node->safe_psql('postgres', "CREATE SCHEMA linear; CREATE TABLE linear.register (name text PRIMARY KEY, value text);
	INSERT INTO linear.register SELECT unnest('{lone,runs,crew/1,crew/2,crew/3}'::text[]), '';
	SELECT leader_election.create_election(e, 'race', '$LEASE_MS ms') FROM unnest('{lone,runs}'::text[]) e;
	SELECT leader_election.create_group('crew', 3, lease_duration => '$LEASE_MS ms');");
append_to_file("$dir/history.settings", qq({"caps": {"crew": 1}}\n));
append_to_file("$dir/terms", "\0" x 4096);

my %clients;
my $started = 0;

sub start_client
{
	my ($name) = @_;

	$started++;
	$clients{$name} = IPC::Run::start([ $client, $name, $started, "$dir/history.$started", "$dir/terms",
			$node->connstr('postgres') . " application_name=$name", $LEASE_MS, 'lone', 'runs=run', 'crew*3' ]);
	return;
}

# Has so much happened that this says something?
sub happened
{
	my $history = join '', map { slurp_file($_) } glob "$dir/history.*";

	return (() = $history =~ /"rows": \[\[/g) > 20
	  && !grep { $history !~ /"op": "$_"/ } ('acquire', 'renew', 'release', 'release done', 'is_leader', 'assert', 'read', 'write');
}

start_client("c$_") foreach 1 .. 5;
my $end = time + $SECONDS;
my $limit = time + $PostgreSQL::Test::Utils::timeout_default;
for (my $round = 0; time < $end || !happened() && time < $limit; $round++)
{
	sleep 0.4;
	if ($round % 4 == 2)
	{
		my $name = 'c' . (1 + $round % 5);

		$clients{$name}->kill_kill;
		start_client($name);
		next;
	}
	my $pid = eval { $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity
		WHERE application_name ~ '^c' ORDER BY random() LIMIT 1") } or next;

	# The server ends all processes then, and recovers.
	kill $round % 4 ? 'TERM' : 'KILL', $pid;
}
$_->kill_kill foreach values %clients;
wait_for($node, 'SELECT true');

my @histories = glob "$dir/history.*";
IPC::Run::run([ $^X, "$LINEAR/check.pl", @histories ], '>&' => \my $said);
is($? >> 8, 0, 'what clients were told can be explained (G1, G2, G3, G5, G8)') or diag($said);
note($said);

ok(happened(), 'each call was made, and there were grants and renewals');

done_testing();
