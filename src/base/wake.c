/*-------------------------------------------------------------------------
 *
 * wake.c
 *		Waking other processes by their latches.
 *
 * These functions wait for nothing and cannot fail: backends call them while they
 * commit, and while they exit.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"

/*
 * Wake the other background workers of a database (InvalidOid: those of none),
 * ours among them: a handful, and a spurious wake-up is harmless.  That needs no
 * shared memory of our own.  It waits for nothing and cannot fail: backends
 * call it while they exit.
 */
void
le_wake_workers(Oid database)
{
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];

		if (proc->pid != 0 && proc != MyProc &&
			proc->databaseId == database && LeIsBackgroundWorker(proc))
			SetLatch(&proc->procLatch);
	}
}

void
le_wake_backend(int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);

	if (proc != NULL)
		SetLatch(&proc->procLatch);
}

/*
 * The wait event of wait_for_change, by which its backends are found.
 */
uint32
le_observer_wait_event(void)
{
	static uint32 event = 0;

	if (event == 0)
		event = LeWaitEvent("LeaderElectionWaitForChange", 0x4C45);
	return event;
}

/*
 * Wake the backends of this database that are in wait_for_change.
 */
void
le_wake_observers(void)
{
	uint32		event = le_observer_wait_event();

	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];

		if (proc->pid != 0 && proc->databaseId == MyDatabaseId &&
			proc->wait_event_info == event)
			SetLatch(&proc->procLatch);
	}
}
