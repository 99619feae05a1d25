# Two sessions and two detached candidates contend for one election, and give it
# up in every way, while an operator transfers it and asks for yields. Each notes
# when it led by what it was told; two watchers ask about each term meanwhile.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Detached;
use LeaderElection;
use Test::More;
use Time::HiRes qw(sleep time);

serve();
watch_terms();

my $CONTENDERS = <<'END';
CREATE PROCEDURE note(e text, me text, t bigint, first_after bigint,
	last_before bigint)
LANGUAGE sql AS $$
	INSERT INTO stint SELECT e, me, t, first_after, last_before
	WHERE first_after IS NOT NULL
$$;
CREATE PROCEDURE contend_as_session(e text, me text)
LANGUAGE plpgsql AS $$
DECLARE
	mine bigint;
	seen bigint;
	clock_before bigint;
	first_after bigint;
	last_before bigint;
	give_up_at timestamptz;
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop WHERE what = e) LOOP
		CALL leader_election.campaign(e, me, '200 ms', term => mine);
		CONTINUE WHEN mine IS NULL;
		first_after := NULL;
		give_up_at := clock_timestamp() + random() * interval '50 ms';
		LOOP
			clock_before := leader_election._monotonic_clock();
			seen := leader_election.term(e);
			EXIT WHEN seen IS DISTINCT FROM mine;
			first_after := coalesce(first_after,
				leader_election._monotonic_clock());
			last_before := clock_before;
			EXIT WHEN clock_timestamp() > give_up_at;
			PERFORM pg_sleep(0.002);
		END LOOP;
		CALL note(e, me, mine, first_after, last_before);
		-- Detached candidates are elected where no session stands.
		IF random() < 0.5 THEN
			PERFORM leader_election.resign(e);
		ELSE
			PERFORM leader_election.leave(e);
			COMMIT;
			PERFORM pg_sleep(random() * 0.2);
		END IF;
		COMMIT;
	END LOOP;
	PERFORM leader_election.leave(e);
END $$;
CREATE PROCEDURE contend_detached(e text, me text)
LANGUAGE plpgsql AS $$
DECLARE
	mine bigint;
	clock_before bigint;
	first_after bigint;
	last_before bigint;
	give_up_at timestamptz;
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop WHERE what = e) LOOP
		mine := NULL;
		SELECT term INTO mine FROM leader_election.acquire(e, me);
		COMMIT;
		IF mine IS NULL THEN
			PERFORM pg_sleep(0.002);
			CONTINUE;
		END IF;
		first_after := NULL;
		give_up_at := clock_timestamp() + random() * interval '50 ms';
		LOOP
			clock_before := leader_election._monotonic_clock();
			EXIT WHEN NOT leader_election.is_leader(e, mine);
			first_after := coalesce(first_after,
				leader_election._monotonic_clock());
			last_before := clock_before;
			EXIT WHEN clock_timestamp() > give_up_at;
			PERFORM leader_election.renew(e, mine);
			COMMIT;
			PERFORM pg_sleep(0.002);
		END LOOP;
		CALL note(e, me, mine, first_after, last_before);
		-- Now and then it is forgotten, and runs out.
		IF random() < 0.8 THEN
			PERFORM leader_election.release(e, mine);
		END IF;
		COMMIT;
	END LOOP;
END $$;
END

{
	my $e = 'contest';
	my @contenders;
	my $refused = 0;
	my ($reasons, $noted) = ('', '');
	my $noted_by_all = 'd1,d2,s1,s2,watcher 1,watcher 2|t';
	my $start = time;

	# A call that waits while the machine stands still is busy.
	my %expected = map { $_ => 1 } qw(00000 22023 LE005);
	my $busy = 0;

	create_election($e, 300_000);
	$control->query($CONTENDERS);
	foreach my $name (qw(s1 s2 d1 d2))
	{
		my $kind = $name =~ /^s/ ? 'as_session' : 'detached';
		my $s = session($node, name => $name);

		$s->query('\set VERBOSITY sqlstate');
		$s->query_async("CALL contend_$kind('$e', '$name');\n" x 3);
		push @contenders, $s;
	}
	until (time - $start > 3
		  && $reasons eq 'expired, resigned, transferred, yielded'
		  && $noted eq $noted_by_all)
	{
		last if time - $start > $PostgreSQL::Test::Utils::timeout_default;
		my $now = lease($e);
		my $name = (qw(s1 s2 d1 d2))[ rand 4 ];
		my $sql =
		  rand() < 0.5 && $now->{kind} eq 'detached'
		  ? "transfer('$e', $now->{term}, '$name')"
		  : "request_yield('$e'" . (rand() < 0.5 ? ", '$name')" : ')');

		any("SELECT leader_election.$sql");
		$refused++ unless $expected{ $pool[0]->sqlstate } || $pool[0]->sqlstate eq '55P03' && $busy++ < 2;

		# Now and then they are left alone: what is forgotten runs out.  A campaign
		# whose timeout passes just when it is elected counts as a reset session.
		sleep(rand() < 0.05 ? 0.7 : 0.02);
		$reasons = $control->query(
			"SELECT string_agg(DISTINCT reason, ', ' ORDER BY reason)"
			  . " FROM leader_election.history WHERE election = '$e'"
			  . " AND reason NOT IN ('left', 'session reset')");
		$noted = $control->query(
			"SELECT string_agg(DISTINCT watcher, ',' ORDER BY watcher),"
			  . " count(*) > 80 FROM stint WHERE election = '$e'");
	}
	$control->query("INSERT INTO stop VALUES ('$e')");
	foreach my $s (@contenders)
	{
		$s->result;
		is($s->errors_but_busy, '', "contest: $s->{name} saw no error");
		$s->finish;
	}
	is($refused, 0, 'contest: nor did the operator');
	is($noted, $noted_by_all, 'contest: all of them led, and both watchers saw it');
	is($reasons, 'expired, resigned, transferred, yielded',
		'contest: and lost it in all ways');
	is( $control->query(
			"SELECT min(term), max(term) - count(*),"
			  . ' count(*) FILTER (WHERE next < ended_at OR'
			  . ' (next IS NOT NULL AND ended_at IS NULL))'
			  . ' FROM (SELECT *, lead(acquired_at) OVER (ORDER BY term) AS next'
			  . " FROM leader_election.history WHERE election = '$e') h"),
		'1|0|0',
		'contest: each term ended before the next began (G1)');
}

watched_ok();
$node->stop;
done_testing();
