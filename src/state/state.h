/*-------------------------------------------------------------------------
 *
 * state.h
 *		The floor of the rows: what each of our tables holds, and what it means.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_STATE_H
#define LE_STATE_H

#include "base/base.h"

/* epoch.c */
typedef struct Incarnation
{
	char	   *name;
	bool		known;			/* has a row of its own in epoch */
	int64		epoch;			/* the effective one; 0: never changed */
	int64		dropped_term;	/* new elections start above it */
	int64		first_seen;		/* monotonic; only if known */
} Incarnation;

extern Incarnation *le_epoch_read(void);
extern bool le_epoch_write(const Store *store, bool foreign,
						   int64 highest_term);
extern bool le_epoch_note_dropped(const Store *store,
								  const Incarnation *inc, int64 term);
extern int64 le_epoch_next_term(int64 last, const Incarnation *inc);

typedef enum LeaseState
{
	LEASE_VACANT,
	LEASE_LED,
	LEASE_EXPIRED,				/* the deadline has passed */
	LEASE_ORPHANED,				/* its session is provably dead */
	LEASE_FOREIGN				/* granted by another incarnation */
} LeaseState;

typedef struct Lease
{
	char	   *election;
	int64		term;			/* the present or, when vacant, the last one */
	int64		previous_term;	/* that it continues, after a failover; 0:
								 * none */
	char	   *leader;			/* NULL: vacant */
	bool		incomplete;		/* led, but it lacks what every grant writes */
	int64		session_id;		/* 0: none */
	int			backend_pid;
	char	   *role;			/* "" (nobody's): not there */
	bool		auto_renew;
	int			rank;
	int64		progress;
	Datum		metadata;		/* 0: none */
	TimestampTz acquired_at;
	TimestampTz renewed_at;
	TimestampTz expires_at;
	int64		acquired_mono;
	int64		deadline_mono;
	int64		duration;
	int64		configured;		/* what the election's settings said then */
	char	   *incarnation;	/* NULL: never granted */
	bool		yielding;
	bool		yield_ordered;	/* by an operator, not by the strategy */
	int64		yields;			/* requests to yield, in this term */
	char	   *successor;		/* whom it is yielded to or reserved for */
	char	   *successor_role; /* "": not there */
	TimestampTz not_before_at;
	int64		not_before_mono;	/* nobody follows before; 0: no such bar */
	int64		not_before_for; /* counted from when it was set */
	bool		held;			/* it is a hold; false: a takeover delay */
	int64		reserved_mono;	/* until then, if vacant; 0: not reserved */
	int64		reserved_for;	/* ... counted from not_before_mono, if set */
	TransactionId xmin;			/* who has written the row ... */
	bool		own_write;		/* ... is it the running transaction? */
	Row		   *row;			/* NULL: not locked */
} Lease;

struct Candidate;

typedef void (*LeaseReader) (Lease *lease, void *arg);

extern const char *le_kind(int64 session_id);
extern Lease *le_lease_read(const Store *store, const char *election,
							Snapshot snapshot);
extern Lease *le_lease_read_self(const Store *store, const char *election);
extern bool le_lease_read_committed(Oid lease_oid, const char *election,
									Lease **lease);
extern List *le_lease_read_all(const Store *store);
extern void le_lease_scan(const Store *store, LeaseReader reader, void *arg);
extern Lease *le_lease_copy(const Lease *lease);
extern LeaseState le_lease_state_if_alive(const Lease *lease,
										  const char *incarnation, int64 now);
extern LeaseState le_lease_state(const Lease *lease, const char *incarnation,
								 int64 now);
extern LeaseState le_lease_state_now(const Store *store, const Lease *lease);
extern bool le_lease_unexpired(const Lease *lease, const char *incarnation,
							   int64 now);
extern bool le_lease_is_own(const Lease *lease, const char *incarnation);
extern bool le_lease_is_foreign(const Lease *lease, const char *incarnation);
extern bool le_lease_is_void(const Lease *lease, const char *incarnation);
extern bool le_lease_is_term(const Lease *lease, int64 term);
extern Lease *le_lease_lock(const Store *store, const char *election);
extern Lease *le_lease_find_lock(Finder *finder, const char *election);
extern void le_lease_create(const Store *store, const char *election);
extern void le_lease_grant(Lease *lease, const struct Candidate *to,
						   int64 term, int64 previous_term, int64 duration,
						   int64 t0, TimestampTz at,
						   const char *incarnation);
extern void le_lease_hold(Lease *lease, int64 not_before, int64 now,
						  TimestampTz at);
extern void le_lease_vacate(Lease *lease, int64 not_before, bool held,
							const struct Candidate *successor,
							int64 reserved_for,
							int64 now, TimestampTz at,
							const char *incarnation);
extern void le_lease_renew(Lease *lease, int64 term, int64 duration,
						   int64 t0, TimestampTz at, const int64 *progress);
extern void le_lease_yield(Lease *lease, bool yields, bool ordered,
						   const struct Candidate *successor);
extern void le_lease_reserve(Lease *lease, const struct Candidate *successor,
							 int64 reserved_for, int64 now,
							 const char *incarnation);
extern void le_lease_unreserve(Lease *lease);
extern bool le_lease_delete(const Store *store, const char *election);
extern int64 le_lease_not_before(const Lease *lease, const Incarnation *inc);
extern int64 le_lease_reserved_mono(const Lease *lease,
									const char *incarnation);
extern int64 le_lease_reserved_since(const Lease *lease);

/* candidate.c */
typedef struct Candidate
{
	char	   *election;
	char	   *candidate;
	int64		session_id;		/* 0: detached */
	char	   *role;
	int			rank;
	int64		progress;
	Datum		metadata;		/* 0: none */
	bool		auto_renew;
	int			backend_pid;	/* 0: detached */
	Datum		client_addr;	/* 0: none */
	TimestampTz joined_at;
	int64		place;
	int64		sits_out;		/* the term that it gave up, -1: none */
	bool		defers;			/* has given up, and is not to preempt */
	int			leads;			/* other elections, where the strategy counts */
	int64		seen;			/* monotonic; detached candidates only */
	int64		seen_for;		/* it counts as alive for so long */
	Row		   *row;			/* NULL: not locked */
} Candidate;

/* What a call says of its candidacy; the rest is as it was */
typedef struct Profile
{
	bool		sets_rank;
	bool		sets_progress;
	bool		sets_auto_renew;
	int32		rank;
	int64		progress;
	bool		auto_renew;
	Datum		metadata;		/* 0: not said */
} Profile;

/* False: enough */
typedef bool (*CandidateReader) (const Candidate *c, void *arg);

extern List *le_candidates_read(const Store *store, const char *election);
extern void le_candidates_read_until(int64 until);
extern bool le_candidates_exist(const Store *store);
extern void le_candidates_scan(const Store *store, const char *election,
							   const char *candidate, CandidateReader reader,
							   void *arg);
extern Candidate *le_candidate_find(const Store *store, const char *election,
									const char *name);
extern bool le_candidate_alive(const Candidate *c);
extern bool le_candidate_is_same(const Candidate *a, const Candidate *b);
extern bool le_candidate_leads(const Candidate *c, const Lease *lease);
extern bool le_candidate_succeeds(const Candidate *c, const Lease *lease);
extern bool le_candidate_differs(const Candidate *c, const Profile *profile,
								 int64 lease_duration);
extern void le_candidate_insert(const Store *store, const Candidate *who,
								const Profile *profile, int64 lease_duration);
extern bool le_candidate_update(const Store *store, const Candidate *present,
								Candidate *who, const Profile *profile,
								int64 lease_duration);
extern bool le_candidate_needs_sign(int64 seen, int64 lease_duration);
extern Candidate *le_candidate_of_lease(const Lease *lease);
extern bool le_candidate_lock(const Store *store, Candidate *c);
extern void le_candidate_set_sits_out(Candidate *c, int64 term, int64 place);
extern bool le_candidate_withdraw(const Store *store, const Candidate *who);
extern bool le_candidate_prune(const Store *store, const Candidate *c);

/* candidacy.c */
typedef enum StandResult
{
	STAND_OK,
	STAND_BUSY,					/* somebody is writing that row right now */
	STAND_IN_USE,				/* the name of another live candidate */
	STAND_DROPPED				/* there is no such election any more */
} StandResult;

extern StandResult le_candidate_stand(const Store *store,
									  Candidate *who,
									  const Profile *profile,
									  int64 lease_duration);

/* history.c */
typedef struct Term
{
	int64		term;
	char	   *leader;
	TimestampTz acquired_at;
	bool		ended;
	TimestampTz ended_at;		/* if it has */
	char	   *reason;			/* NULL: not known */
} Term;

/* False: enough */
typedef bool (*TermReader) (const Term *term, void *arg);

extern void le_history_read(const Store *store, const char *election,
							int64 from, ScanDirection direction,
							Snapshot snapshot, TermReader reader, void *arg);
extern void le_history_begin(const Store *store, const Candidate *leader,
							 int64 term, TimestampTz at);
extern bool le_history_lock(const Store *store, const char *election,
							int64 term, Row **row);
extern void le_history_end(Row *row, const char *reason, const char *detail,
						   TimestampTz at);
extern bool le_history_prune(const Store *store, TimestampTz before,
							 int limit, int64 until, Walk *walk, bool *left);

/* mark.c */
typedef struct Mark
{
	char	   *election;
	int64		term;			/* listeners know of terms up to this one */
	bool		vacated;		/* ... and of its end */
	int64		yields;			/* ... and of so many requests to yield */
	char	   *channel;		/* told on it last; NULL: the default one */
	Row		   *row;			/* NULL: not locked */
} Mark;

extern Mark *le_mark_read(const Store *store, const char *election);
extern List *le_marks_read(const Store *store);
extern Mark *le_mark_lock(const Store *store, const char *election,
						  bool deletes, bool *busy);
extern void le_mark_write(const Store *store, Mark *mark);
extern void le_mark_create(const Store *store, const char *election,
						   const char *channel);
extern void le_mark_delete(Mark *mark);

/* election.c */
typedef struct Election
{
	char	   *name;
	char	   *strategy;
	int64		lease_duration;
	int			quorum;
	int64		takeover_delay;
	char	   *candidate_role;
	char	   *channel;
	char	   *owner;
	bool		own_write;		/* written by the running transaction */
} Election;

/* What create_election and alter_election set; the rest is as it was */
typedef struct Configuration
{
	const char *strategy;		/* NULL: not said */
	int64		lease_duration; /* 0: not said */
	int			quorum;			/* 0: not said */
	int64		takeover_delay; /* -1: not said */
	const char *candidate_role; /* NULL: not said, "": none */
	const char *channel;		/* NULL: not said, "": the default one */
} Configuration;

extern Datum le_interval(int64 us);
extern void le_election_complete(Configuration *config);
extern Election *le_election_read(const Store *store, const char *name);
extern List *le_elections_read(const Store *store);
extern char *le_election_channel(const Store *store, const char *name,
								 Snapshot snapshot);
extern Election *le_election_get(const Store *store, const char *name);
extern Election *le_election_get_or_create(const Store *store,
										   const char *name, bool wait);
extern bool le_election_admits(const Election *election, const char *role);
extern void le_election_lease_durations(const Store *store, List *leases);
extern int64 le_election_lease_duration(const Store *store, const Lease *lease);
extern bool le_election_insert(const Store *store, const char *name,
							   const char *owner, const Configuration *config);
extern bool le_election_alter(const Store *store, const char *name,
							  const Configuration *config);
extern bool le_election_delete(const Store *store, const char *name);
LE_NORETURN extern void le_report_no_election(const char *name);

#endif							/* LE_STATE_H */
