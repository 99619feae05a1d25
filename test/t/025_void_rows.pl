# Rows that lack what the extension always writes: restored, replicated, or
# written by hand.  The constraints of the table of leases refuse them.  Where a
# superuser has dropped these, a led lease row that is incomplete is void: nobody
# leads, no call and no view fails for it, and when a lease has passed somebody is
# elected.  No process crashes over any NULL.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

# What a call may answer: nothing internal, and no lost connection
my $ANSWERS = qr/^(00000|LE00[1345]|22023|55P03|55006)$/;

my $node = new_server(
	config => qq(
leader_election.lease_duration = '1h'
client_min_messages = error
restart_after_crash = off
));
my $super = session($node, name => 'super');
my $holder = session($node, name => 'holder');
my $observer = session($node, name => 'observer');
my @kinds = qw(session detached);

# The columns of a table that may be NULL
sub columns
{
	my ($table) = @_;

	return $super->query("SELECT attname FROM pg_attribute
		WHERE attrelid = 'leader_election.$table'::regclass
			AND attnum > 0 AND NOT attnotnull ORDER BY attnum");
}

sub run
{
	my ($session, $sql) = @_;
	my @result = $session->query($sql);

	die "$sql: " . $session->errors if $session->sqlstate ne '00000';
	return wantarray ? @result : $result[0];
}

sub lead
{
	my ($election, $kind) = @_;

	return run($holder,
		$kind eq 'session'
		? "SELECT leader_election.join('$election', 'holder')"
		: "SELECT term FROM leader_election.acquire('$election', 'holder')");
}

# What every grant writes
sub is_required
{
	my ($column, $kind) = @_;

	return 1 if $kind eq 'session' && $column =~ /^(session_id|backend_pid)$/;
	return scalar grep { $_ eq $column }
	  qw(kind role auto_renew rank progress acquired_at renewed_at expires_at
	  acquired_mono deadline_mono duration incarnation);
}

my @columns = grep { $_ ne 'leader' } columns('lease');
run($holder, "SELECT leader_election.join('stays', 'holder')");
is(lead($_, $_), 1, "$_: led") foreach @kinds;

#
# The constraints
#

# What comes of a change of the lease row, which is undone
sub try_change
{
	my ($election, $change) = @_;
	my $sqlstate;

	run($super, 'BEGIN');
	$sqlstate = $super->sqlstate_of(
		"UPDATE leader_election.lease SET $change WHERE election = '$election'");
	run($super, 'ROLLBACK');
	return $sqlstate;
}

foreach my $kind (@kinds)
{
	is( try_change($kind, "$_ = NULL"),
		is_required($_, $kind) ? '23514' : '00000',
		"constraints: $kind: $_")
	  foreach @columns;
}
is(try_change(@$_), '23514', "constraints: $_->[0]: $_->[1]")
  foreach
  [ session => q{kind = 'detached'} ],
  [ detached => q{kind = 'session'} ],
  [ detached => q{kind = 'other'} ],
  [ detached => q{session_id = 1} ],
  [ detached => q{backend_pid = 1} ],
  [ detached => q{successor = 'x'} ],
  [ detached => q{successor_role = 'x'} ],
  [ detached => q{not_before_at = now()} ],
  [ detached => q{not_before_mono = 1, not_before_for = 1, held = true} ],
  [ detached => q{not_before_at = now(), not_before_mono = 1, not_before_for = 1} ],
  [ detached => q{reserved_mono = 1, reserved_for = 1} ],
  [ stays => q{leader = NULL, reserved_mono = 1} ],
  [ stays => q{leader = NULL, reserved_for = 1} ],
  [ stays => q{leader = NULL, reserved_mono = 1, reserved_for = 1} ];
is(run($super, "SELECT count(*) FROM pg_constraint
		WHERE conrelid = 'leader_election.lease'::regclass AND contype = 'c'
			AND conname NOT LIKE 'kept\\_%'"),
	0, 'constraints: all are of the kind that is not checked for each renewal');

# Renewals go on without an index entry for each.
run($super, "SELECT pg_stat_reset_single_table_counters('leader_election.lease'::regclass)");
run($holder, q{DO $$BEGIN
	FOR i IN 1..200 LOOP
		PERFORM leader_election.renew('detached', 1);
		COMMIT;
	END LOOP;
	END$$});
$holder->query('SELECT pg_stat_force_next_flush()');
wait_for($node, q{SELECT n_tup_upd >= 200 AND n_tup_hot_upd = n_tup_upd
	FROM pg_stat_user_tables WHERE relname = 'lease'});
pass('renewals stay HOT');

# What a superuser adds is checked.
run($super, q{ALTER TABLE leader_election.lease ADD CONSTRAINT mine
	CHECK (election <> 'detached' OR yielding) NOT VALID});
is($holder->sqlstate_of(q{SELECT leader_election.renew('detached', 1)}),
	'23514', 'constraints: another one is checked');
run($super, 'ALTER TABLE leader_election.lease DROP CONSTRAINT mine');

#
# Without the constraints: every call, with every column NULL in turn
#

run($super, q{DO $$
	DECLARE
		c name;
	BEGIN
		FOR c IN SELECT conname FROM pg_constraint
			WHERE conrelid = 'leader_election.lease'::regclass AND contype = 'c'
		LOOP
			EXECUTE format('ALTER TABLE leader_election.lease DROP CONSTRAINT %I', c);
		END LOOP;
	END$$});
run($super, 'CREATE TABLE saved AS SELECT * FROM leader_election.lease');
# %s: the election; whose call it is comes first.
my @calls = (
	[ $observer, q{SELECT leader_election.leader('%s')} ],
	[ $observer, q{SELECT leader_election.is_leader('%s', 1)} ],
	[ $observer, q{SELECT leader_election.assert_leader('%s', 1)} ],
	[ $observer, q{SELECT * FROM leader_election.status WHERE election = '%s'} ],
	[ $observer, q{SELECT * FROM leader_election.candidates WHERE election = '%s'} ],
	[ $observer, q{CALL leader_election.wait_for_change('%s', NULL, NULL, '0')} ],
	[ $observer, q{SELECT leader_election.request_yield('%s')} ],
	[ $observer, q{SELECT leader_election.request_yield('%s', 'other')} ],
	[ $observer, q{SELECT leader_election.alter_election('%s', 'lowest')} ],
	[ $observer, q{SELECT leader_election.alter_election('%s', 'spread')} ],
	[ $observer, q{SELECT leader_election.acquire('%s', 'other')} ],
	[ $observer, q{SELECT leader_election.acquire('%s', 'holder')} ],
	[ $observer, q{SELECT leader_election.renew('%s', 1)} ],
	[ $observer, q{SELECT leader_election.leave('%s', 'other')} ],
	[ $observer, q{SELECT leader_election.set_run_done('%s', 'r1')} ],
	[ $holder, q{SELECT leader_election.is_leader('%s')} ],
	[ $holder, q{SELECT leader_election.term('%s')} ],
	[ $holder, q{SELECT leader_election.assert_leader('%s')} ],
	[ $holder, q{SELECT leader_election.renew('%s')} ],
	[ $holder, q{SELECT leader_election.join('%s', 'holder')} ],
	[ $holder, q{CALL leader_election.campaign('%s', 'holder', '0')} ],
	[ $holder, q{SELECT leader_election.transfer('%s', 'other')} ],
	[ $holder, q{SELECT leader_election.transfer('%s', 1, 'other')} ],
	[ $holder, q{SELECT leader_election.release('%s', 1)} ],
	[ $holder, q{SELECT leader_election.resign('%s')} ],
	[ $holder, q{SELECT leader_election.leave('%s')} ],
	[ $holder, q{SELECT leader_election.leave('%s', 'holder')} ],
	[ $observer, q{SELECT leader_election.drop_election('%s')} ]);

# The lease row as it was, but for these changes, and the election's own
sub spoil
{
	my ($election, $change) = @_;

	run($super, "BEGIN;
		INSERT INTO leader_election.election (election, strategy, lease_duration, quorum,
				takeover_delay, owner)
			VALUES ('$election', 'race', '1 h', 1, '0', current_user) ON CONFLICT DO NOTHING;
		DELETE FROM leader_election.lease WHERE election = '$election';
		INSERT INTO leader_election.lease SELECT * FROM saved WHERE election = '$election';
		UPDATE leader_election.lease SET $change WHERE election = '$election';
		COMMIT");
	return;
}

# Everybody calls everything; what is answered that should not be
sub call_all
{
	my ($election, $spoil) = @_;
	my @bad;

	foreach my $call (@calls)
	{
		my ($session, $sql) = @$call;

		$spoil->();
		$session->query(sprintf $sql, $election);
		push @bad, "$sql: " . $session->sqlstate . ' ' . $session->errors
		  if $session->sqlstate !~ $ANSWERS;
	}
	return \@bad;
}

foreach my $kind (@kinds)
{
	my @successor = (q{successor = 'other', successor_role = NULL},
		q{successor = NULL, successor_role = 'postgres'});
	my %changes = map { ("$_ = NULL" => is_required($_, $kind)) } @columns;

	$changes{ join ', ', map { "$_ = NULL" } @columns } = 1;
	$changes{$kind eq 'session' ? q{kind = 'detached'} : q{kind = 'session'}} = 1;
	$changes{q{kind = 'another'}} = 1;
	$changes{q{session_id = 1, backend_pid = NULL}} = 1;
	$changes{"yielding = true, yield_ordered = true, $_"} = 0 foreach @successor;
	$changes{"leader = NULL, reserved_mono = deadline_mono, reserved_for = duration, $_"} = 1
	  foreach @successor;
	$changes{"incarnation = 'another', role = NULL"} = 1;
	foreach my $change (sort keys %changes)
	{
		spoil($kind, $change);
		is( $observer->query("SELECT coalesce(leader_election.leader('$kind'), ''),
				leader_election.is_leader('$kind', 1)"),
			$changes{$change} ? '|f' : 'holder|t',
			"$kind: $change: who leads");
		is_deeply(call_all($kind, sub { spoil($kind, $change) }),
			[], "$kind: $change: every call");
	}
}

# What a call writes into a void row leaves it void.
foreach my $kind (@kinds)
{
	spoil($kind, 'auto_renew = NULL, rank = NULL, progress = NULL');
	run($super, "SELECT leader_election.set_run_done('$kind', 'r1')");
	is(run($super, "SELECT run_done, num_nulls(auto_renew, rank, progress), leader_election.leader('$kind') IS NULL
			FROM leader_election.lease WHERE election = '$kind'"),
		'r1|3|t', "$kind: written, nobody leads");
}

# The other tables' columns
foreach my $table (qw(candidate history election))
{
	foreach my $kind (@kinds)
	{
		foreach my $column (columns($table))
		{
			is_deeply(
				call_all(
					$kind,
					sub {
						spoil($kind, 'term = 1');
						$holder->query(
							$kind eq 'session'
							? "SELECT leader_election.join('$kind', 'holder')"
							: "SELECT leader_election.acquire('$kind', 'holder')");
						run($super, "UPDATE leader_election.$table
							SET $column = NULL WHERE election = '$kind'");
					}),
				[],
				"$table: $kind: $column = NULL: every call");
		}
	}
}

#
# The worker sees to it that these elections go on, but not before the lease
# that was granted can be over.
#

run($super, "SELECT leader_election.create_election(kind || ' ' || c, lease_duration => '5 s')
	FROM unnest('{session,detached}'::text[]) kind,
		unnest('{" . join(',', @columns) . "}'::text[]) c");
foreach my $kind (@kinds)
{
	lead("$kind $_", $kind) foreach @columns;
}
my $before = run($super, 'SELECT leader_election._monotonic_clock()');
my $next = session($node, name => 'next');
my (@required, @session);
foreach my $kind (@kinds)
{
	foreach my $column (grep { is_required($_, $kind) } @columns)
	{
		run($super, "UPDATE leader_election.lease SET $column = NULL
			WHERE election = '$kind $column' AND leader = 'holder'");
		run($next, "SELECT leader_election.join('$kind $column', 'next')");
		push @required, "'$kind $column'";
		push @session, "'$kind $column'" if $kind eq 'session';
	}
}
my $required = join ', ', @required;
wait_for($node, "SELECT count(*) = 0 FROM leader_election.status
	WHERE election IN ($required) AND leader IS NULL");
pass('all void leases are succeeded');
is( $super->query("SELECT string_agg(DISTINCT reason, ', ')
		FROM (SELECT DISTINCT ON (election) reason FROM leader_election.history
			WHERE election IN (" . join(', ', @session) . ')
			ORDER BY election, term) h'),
	'failover', 'as leases of another server');
is( $super->query("SELECT min(acquired_mono) - $before > 5000000
		FROM leader_election.lease WHERE election IN (" . join(', ', @session) . ')'),
	't', 'and not before a lease has passed');
is($holder->query(q{SELECT leader_election.is_leader('stays')}),
	't', 'as does who led another election all the time');

unlike(slurp_file($node->logfile),
	qr/was terminated by signal|PANIC:|TRAP:/, 'nobody has crashed');
$_->finish foreach $super, $holder, $observer, $next;
$node->stop;
done_testing();
