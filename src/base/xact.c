/*-------------------------------------------------------------------------
 *
 * xact.c
 *		What the running transaction holds and has written.
 *
 * Invariant: what is noted here belongs to one transaction, and is forgotten
 * when that has ended.  In which order all parts of the extension end a
 * transaction, callback.c says.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "base/base.h"

/* Counts this process's writes that are logged */
uint64		le_xact_writes = 0;

/*
 * ... and those that may have waited: they used more than the row's own page
 */
uint64		le_xact_slow_writes = 0;

/*
 * This transaction holds a row or a lock of ours, for which others wait until
 * its commit has ended.  This is not taken back with a savepoint: then the
 * commit is hurried without need (see set_durability() and
 * le_commit_bounded()).
 */
bool		le_xact_holds = false;

/*
 * The callbacks before the end of this transaction have begun: fences are
 * looked at, and the commit is made durable, only there.
 */
bool		le_xact_is_ending = false;

/*
 * Raise an error (25000) where a fence is set, or elections are changed, after
 * our callbacks have begun: they would not see it.  The callbacks of libraries
 * that were loaded before this one come after ours, and may run statements.
 */
void
le_xact_check_not_ending(void)
{
	if (le_xact_is_ending)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_STATE),
				 errmsg("cannot fence a transaction, or change elections, while it is being committed"),
				 errdetail("Another library has called %s when the transaction's fences were checked already.",
						   LE_EXTENSION),
				 errhint("Call it earlier in the transaction, or load that library after %s.",
						 LE_EXTENSION)));
}

/*
 * From here to le_xact_wal_end(), what the server logs on the side, when reads
 * tidy up pages, does not count as this transaction's own, unless we write a
 * logged row.  Without that, the commit of a call that has changed nothing would wait
 * for a flush, and for synchronous standbys: that may be for ever.  (A
 * transaction that has no ID yet has logged nothing of its own.)
 */
void
le_xact_wal_begin(WalMark *mark)
{
	mark->end = TransactionIdIsValid(GetTopTransactionIdIfAny()) ?
		XactLastRecEnd : InvalidXLogRecPtr;
	mark->writes = le_xact_writes;
}

void
le_xact_wal_end(const WalMark *mark)
{
	if (mark->writes == le_xact_writes)
		XactLastRecEnd = mark->end;
}
