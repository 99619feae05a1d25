/*-------------------------------------------------------------------------
 *
 * api.h
 *		What the SQL-callable functions share: arguments, results, waits.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_API_H
#define LE_API_H

#include "session/session.h"

#define LE_LONGEST_HOLD		(366 * USECS_PER_DAY)
#define LE_LONGEST_TIMEOUT	(100000 * USECS_PER_DAY)

/* A call that may wait, and the tables that it works on */
typedef struct Call
{
	const char *election;
	Store		store;
	BoundedWaits waits;
} Call;

extern void le_call_begin(Call *call, const char *election, int tables,
						  LOCKMODE mode);
extern void le_call_enter(Call *call, const char *election, int tables,
						  LOCKMODE mode);
extern void le_call_end(Call *call);
extern void le_check_block(const char *call, bool in_transaction_block);
extern void le_check_callable(const char *call, bool in_transaction_block);
extern void le_check_function(const char *call);
extern char *le_name_arg(FunctionCallInfo fcinfo, int n, const char *what);
extern int64 le_interval_arg(FunctionCallInfo fcinfo, int n, const char *what,
							 int64 shortest, int64 longest);
extern int64 le_hold_arg(FunctionCallInfo fcinfo, int n, const char **detail);
extern void le_profile_args(FunctionCallInfo fcinfo, int first,
							bool with_auto_renew, Profile *profile);
extern bool le_call_is_atomic(FunctionCallInfo fcinfo);
extern Datum le_call_result(FunctionCallInfo fcinfo, Datum *values,
							bool *nulls);
extern void le_return_grant(FunctionCallInfo fcinfo, const Lease *lease);
extern void le_check_candidate_role(const Election *election,
									const char *role);
LE_NORETURN extern void le_report_name_in_use(const Store *store,
											  const Candidate *who);
LE_NORETURN extern void le_report_not_owner(const char *election,
											const char *candidate,
											const char *role);
extern void le_poll_commit(MemoryContext context);
extern void le_poll_sleep(int64 until, uint32 wait_event);
extern void le_poll_end(void);

#endif							/* LE_API_H */
