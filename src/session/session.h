/*-------------------------------------------------------------------------
 *
 * session.h
 *		What a backend knows of its own candidacies and leaderships.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_SESSION_H
#define LE_SESSION_H

#include "decide/decide.h"

/* keepalive.c */
extern void le_keepalive_init(void);
extern void le_keepalive_fit(int64 lease_duration);
extern int64 le_keepalive_lasts(void);

/* session.c */
typedef struct Candidacy
{
	char		election[LE_NAME_MAX + 1];	/* hash key */
	char		candidate[LE_NAME_MAX + 1];
	Oid			role;			/* who made it */
	NameData	role_name;		/* ... as it was called then */
	int64		session_id;
	LOCKTAG		lock;
	const LOCALLOCK *lock_entry;
	LOCKTAG		election_lock;
	Oid			lease_oid;		/* the table that has its lease */
	int64		lease_duration; /* of its lease or, while it follows, election;
								 * 0: not known yet */

	/* what the running transaction did to it */
	bool		made;
	char		former[LE_NAME_MAX + 1];	/* its name before leave() */
	bool		withdrawn;
	bool		stepped_down;
	bool		campaigning;	/* ends with the campaign that made it */

	/* the cached view of the lease row */
	uint64		changes;		/* generation when it was read; 0: never */
	int64		term;			/* 0: does not lead */
	int64		deadline;
	int64		next_read;
	int64		renew_not_before;	/* join() renews no sooner (monotonic) */
} Candidacy;

extern Candidacy *le_session_find(const char *election, Size length);
extern Candidacy *le_session_add(const char *election,
								 const char *candidate, const Role *role,
								 int64 session_id, bool campaigning);
extern int64 le_session_id(void);
extern void le_session_withdraw(Candidacy *candidacy);
extern void le_session_return(Candidacy *candidacy, const char *candidate);
extern void le_session_drop(Candidacy *candidacy);
extern void le_session_lose(Candidacy *candidacy);
extern bool le_session_take_loss(Oid lease_oid, const char *election,
								 const char *candidate);
extern List *le_session_elections(void);
extern void le_session_set_lease(Candidacy *c, int64 duration);
extern int64 le_session_term(Candidacy *candidacy);
extern int64 le_session_term_of(Candidacy *candidacy, const Lease *lease,
								uint64 changes);
extern int64 le_session_remaining(Candidacy *candidacy);
extern bool le_session_holds_lock(const Candidacy *c);
extern void le_session_mark_losses(void);
extern void le_session_end_of_xact(bool committed);

/* fence.c */
extern bool le_fence_is_set(const char *election);
extern void le_fence_by_session(const char *election);
extern void le_fence_by_term(const char *election, const int64 *term);
extern void le_fence_check(void);
extern void le_fence_refuse_prepare(void);
extern void le_fence_end_of_xact(bool committed);

/* callback.c */
extern void le_callback_init(void);

#endif							/* LE_SESSION_H */
