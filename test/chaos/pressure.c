/*-------------------------------------------------------------------------
 *
 * pressure.c
 *		What a candidate of the chaos run does to its own session, while the
 *		file that CHAOS_PRESSURE names is there: timeouts that end any statement
 *		anywhere, resets, subtransactions, its own NOTIFY.
 *
 *		Without that file, nothing is done, and no random number is drawn.
 *
 *-------------------------------------------------------------------------
 */
#include "candidate.h"

#define SUBTRANSACTIONS	100		/* more than a server keeps in mind */

/*
 * Once in a while, other timeouts; none of them when that is over, however often
 * they end the statement that says so.
 */
void
press_session(void)
{
	static bool drawn = false;
	bool		any = pressed();

	if (any ? !chance(30) : !drawn)
		return;
	RUN("%s", set_timeouts(any, server_version()));
	drawn = any || !succeeded();
}

/*
 * As a pool does with a connection that it is given back, be it a leader's or not
 */
void
reset_session(void)
{
	if (!pressed() || !chance(8))
		return;
	if (chance(500))
		RUN("DISCARD ALL");
	else
		RUN("SELECT pg_catalog.pg_advisory_unlock_all()");
}

/*
 * To stand is refused in a subtransaction, and nothing comes of it.  If it were
 * not refused, the error that is raised then is one that the checker does not know.
 */
void
join_nested(const char *election, const char *candidate)
{
	RUN("DO $$ BEGIN "
		"BEGIN PERFORM leader_election.join('%s', '%s'); "
		"EXCEPTION WHEN active_sql_transaction THEN RETURN; END; "
		"RAISE 'not refused in a subtransaction'; END $$",
		election, candidate);
}

/*
 * Now and then, a notification of the client's own, in the transaction of a call
 * that may be followed by more columns, or by more functions in FROM; otherwise
 * nothing.  A call that changes something is refused in a transaction block, so
 * its statement is all that its transaction has.
 */
const char *
own_notification(int per_mille)
{
	if (!pressed() || !chance(per_mille))
		return "";
	if (chance(300))
		RUN("NOTIFY own, 'before'");
	return ", pg_catalog.pg_notify('own', 'beside')";
}

/*
 * At the beginning of a fenced transaction, before its row is written
 */
void
begin_nested(void)
{
	if (pressed() && chance(300))
		RUN("SAVEPOINT row");
}

/*
 * After its row was written, before it commits.  What is rolled back here is not
 * the row, nor is its fence.
 */
void
end_nested(const char *election)
{
	if (!pressed())
		return;
	if (chance(200))
		RUN("DO $$ BEGIN FOR i IN 1 .. %d LOOP "
			"BEGIN INSERT INTO chaos.scratch VALUES (i); "
			"IF i %% 3 = 0 THEN RAISE division_by_zero; END IF; "
			"EXCEPTION WHEN division_by_zero THEN NULL; END; "
			"END LOOP; END $$", SUBTRANSACTIONS);
	if (chance(200))
	{
		RUN("SAVEPOINT assertion");
		if (succeeded())
		{
			RUN("SELECT leader_election.assert_leader('%s')", election);
			RUN("ROLLBACK TO assertion");
		}
	}
	if (chance(100))
		RUN("NOTIFY own, 'fenced'");
	if (chance(50))
		RUN("SELECT pg_catalog.pg_advisory_unlock_all()");
}
