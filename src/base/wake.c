/*-------------------------------------------------------------------------
 *
 * wake.c
 *		Waking other processes by their latches.
 *
 * Invariant: the functions that wake wait for nothing and cannot fail, since
 * backends call them after they have committed, and while they exit.
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
 * Wake all other background workers of a database, and the processes that wait
 * for that event (0: none).
 */
static void
wake(Oid database, uint32 event)
{
	PGPROC	   *procs = ProcGlobal->allProcs;
	uint32		count = ProcGlobal->allProcCount;

	for (PGPROC *proc = procs; proc < procs + count; proc++)
	{
		if (proc->databaseId == database && proc->pid != 0 &&
			((LeIsBackgroundWorker(proc) && proc != MyProc) ||
			 (event != 0 && proc->wait_event_info == event)))
			SetLatch(&proc->procLatch);
	}
}

/*
 * Wake all other background workers of a database (InvalidOid: those of none).
 * Ours is among them, and for the few others a wake-up is harmless.  To know
 * which one is ours would need shared memory, and so a restart to install.
 */
void
le_wake_workers(Oid database)
{
	wake(database, 0);
}

void
le_wake_backend(int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);

	if (proc != NULL)
		SetLatch(&proc->procLatch);
}

/*
 * The wait event of wait_for_change, by which wake() finds its backends.  The
 * first call in a process may raise an error: the server keeps the event's name
 * in shared memory, where there may be no room.
 */
uint32
le_wake_observer_event(void)
{
	static uint32 event = 0;

	if (event == 0)
		event = LeWaitEvent("LeaderElectionWaitForChange", 0x4C45);
	return event;
}

/*
 * Wake the workers and the backends of this database that are in
 * wait_for_change.  One that is about to sleep has set its wait event before it
 * looked: either it has seen the change, or it is found here.
 */
void
le_wake_workers_and_observers(void)
{
	wake(MyDatabaseId, le_wake_observer_event());
}
