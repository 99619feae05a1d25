/*-------------------------------------------------------------------------
 *
 * state.h
 *		The floor of the rows: what each of our tables holds, and what it
 *		means.
 *
 * Monotonic values: columns in _mono, and the fields of the same names, are
 * values of le_clock(), that is microseconds since the machine has started.
 * They mean something only on the incarnation of the server that has written
 * them (clock.c), which the lease row names; a column in _for beside one says
 * how far ahead it was when it was written, so that a value that lies further
 * ahead is recognized as another clock's.
 *
 *	acquired_mono	lease: the moment that the present term counts from; if
 *					this incarnation has only vacated the election, when it did so
 *	deadline_mono	lease: the lease is over from then on, which is duration
 *					after the moment that its last grant or renewal counts
 *					from (proof.c)
 *	not_before_mono	lease: nobody else is elected before
 *	reserved_mono	lease: until then the vacant election is only the successor's
 *	first_stood_mono	lease: when the first candidate stood for the election,
 *					if none but the former leader did when it fell vacant
 *	place_mono		candidate: its queue position, earlier ones first: when
 *					it joined, or last gave up the leadership
 *	stood_mono		candidate: since when it stands or, if that is later, since
 *					a term of its own has ended that it did not give up
 *	seen_mono		candidate: a detached one's last heartbeat
 *	first_seen_mono	epoch: when this incarnation was seen first; the grace
 *					counts from it
 *
 * Columns in _at are the wall clock's, for people and for other incarnations.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_STATE_H
#define LE_STATE_H

#include "base/base.h"

typedef struct Candidate Candidate;

/* role.c */
typedef struct Role
{
	const char *name;			/* as the row has it; "": none */
	Oid			oid;			/* here; InvalidOid: there is no such role */
} Role;

typedef struct RoleKey
{
	Oid			oid;
	NameData	name;			/* if there is no such role */
} RoleKey;

extern const Role le_role_none;

extern Role le_role_of(Oid oid);
extern Role le_role_current(void);
extern Role le_role_get(const Row *row, int name, int id);
extern void le_role_set(Row *row, int name, int id, const Role *role);
extern bool le_role_exists(const Role *role);
extern const char *le_role_name(const Role *role);
extern const char *le_role_missing(const Role *role);
extern bool le_role_is_same(const Role *a, const Role *b);
extern bool le_role_is_caller(const Role *role);
extern bool le_role_owns(const Role *owner);
extern bool le_role_is_member(const Role *role, const Role *group);
extern RoleKey le_role_key(const Role *role);
extern uint64 le_role_changes(void);

/* field.c */
/* The type of a column, and of the member of a struct that it is read into */
typedef enum FieldType
{
	FIELD_TEXT,					/* char *; NULL: null */
	FIELD_STRATEGY,				/* the same: the name of one */
	FIELD_NAME,					/* the same */
	FIELD_DATUM,				/* Datum, of any other type; 0: null */
	FIELD_ROLE,					/* Role, in two columns; "": null */
	FIELD_INTEGER,				/* int */
	FIELD_BIGINT,				/* int64, and TimestampTz */
	FIELD_BOOLEAN,				/* bool */
	FIELD_INTERVAL				/* int64, in microseconds */
} FieldType;

typedef struct Field
{
	FieldType	type;
	int			column;			/* its number, from 0 on */
	Size		offset;			/* of the member */
	bool		or_null;		/* 0 and false are written as null */
	int			id_column;		/* of a role */
	const char *name;			/* of a setting, and of its argument, or NULL */
	int			arg;			/* of create_election(), alter_election() */
	int			group_arg;		/* of create_group() and alter_group() */
	int64		least;			/* a value, or the length of one ... */
	int64		most;			/* ... of a text; a role of length 0 is none */
} Field;

extern int64 le_field_interval(Datum value);
extern void le_fields_read(const Field *fields, int n, const Row *row,
						   void *into);
extern void le_fields_write(const Field *fields, int n, Row *row,
							const void *from);

/* epoch.c */
typedef struct Incarnation
{
	char	   *name;
	bool		known;			/* table epoch has a row for it */
	int64		epoch;			/* of new terms; 0: the first incarnation's */
	int64		dropped_term;	/* of elections that table dropped has not */
	int64		first_seen;		/* monotonic; only if known */
} Incarnation;

extern Incarnation *le_epoch_read(void);
extern bool le_epoch_is_missing(const Incarnation *inc, bool stale);
extern bool le_epoch_write(int64 highest_term);
extern bool le_epoch_note_dropped(int64 term);
extern int64 le_epoch_moment(const Incarnation *inc, bool own, int64 mono,
							 TimestampTz at, int64 lasts);
extern int64 le_epoch_next_term(int64 last, const Incarnation *inc);

/* dropped.c */
extern bool le_dropped_note(const char *election, int64 term);
extern bool le_dropped_read(const char *election, int64 *term);
extern int64 le_dropped_highest(void);
extern List *le_dropped_names(int limit);
extern bool le_dropped_take(const char *election, int64 *highest);

/* run.c */
/* What a call asks for that is to be done once */
typedef struct Run
{
	const char *name;			/* NULL: nothing */
	int			attempts;		/* how often it may be granted; 0: any number */
} Run;

/* What a lease row knows of runs */
typedef struct Runs
{
	char	   *present;		/* of this term, or of the last; NULL: none */
	Role		role;			/* that it was granted to; "": none */
	char	   *granted;		/* the highest that was granted; NULL: none */
	char	   *done;			/* the highest that is done; NULL: none */
	TimestampTz done_at;
	int			attempts;		/* how often granted was granted */
} Runs;

/* What a call sets of its candidacy; all else stays as it is */
typedef struct Profile
{
	bool		sets_rank;
	bool		sets_progress;
	bool		sets_auto_renew;
	int32		rank;
	int64		progress;
	bool		auto_renew;
	Datum		metadata;		/* 0: not set */
} Profile;

/* lease.c */
/*
 * A lease: what its row says.  Who holds the row's lock changes members, and
 * then writes them all (le_lease_write()).
 */
typedef struct Lease
{
	char	   *election;
	int64		term;			/* the present or, when vacant, the last one */
	int64		previous_term;	/* continued by term in a failover; 0: none */

	/* the holder; NULL, 0 and "" while it is vacant */
	char	   *leader;
	int64		session_id;		/* 0: detached */
	Role		role;
	int64		progress;
	Datum		metadata;		/* 0: none */
	TimestampTz metadata_at;	/* when it was changed last; 0: not in this
								 * term */
	const pg_uuid_t *request;	/* that it was granted to, until it is
								 * renewed; NULL: none */

	/* for how long */
	TimestampTz acquired_at;
	TimestampTz renewed_at;
	TimestampTz expires_at;
	int64		acquired_mono;
	int64		deadline_mono;
	int64		duration;		/* from the last renewal to the deadline */
	int64		left_at_renewal;	/* of the lease; -1: not renewed yet */
	char	   *incarnation;	/* writer of the _mono values; NULL: none */

	/* requests to yield */
	int64		yields;			/* how many, in this term */
	char	   *yield_cause;	/* yield_ordered: an LE_CAUSE_... (decide.h);
								 * NULL: an operator has called */
	char	   *successor;		/* of leader or vacant election; NULL: nobody */
	Role		successor_role; /* "": none */

	/* the vacant election */
	TimestampTz not_before_at;
	int64		not_before_mono;	/* 0: another may follow at once */
	int64		not_before_for; /* from when it was set to not_before_mono */
	int64		reserved_mono;	/* 0: not reserved */
	int64		reserved_for;	/* until reserved_mono, after any not_before */
	TimestampTz first_stood_at;
	int64		first_stood_mono;	/* 0: nobody has stood for it yet */

	Runs		runs;
	TimestampTz created_at;		/* when the election was; 0: not known */
	int64		after_term;		/* its terms are greater */
	Row		   *row;			/* NULL: this transaction has not locked it */

	/* what is small, in the same order */
	int			backend_pid;	/* 0: detached */
	int			rank;
	TransactionId xmin;			/* of the transaction that wrote the row */
	ItemPointerData tid;		/* where the row was read */
	bool		own_write;		/* the running transaction wrote it */
	bool		auto_renew;
	bool		incomplete;		/* led, but it lacks what every grant writes */
	bool		yielding;
	bool		yield_ordered;	/* an operator asked, not the strategy */
	bool		held;			/* not_before is a hold; false: a delay */
	bool		deserted;		/* vacant, and no follower stood at first */
} Lease;

extern const char *le_lease_kind(int64 session_id);
extern Lease *le_lease_read(const char *election, Snapshot snapshot);
extern Lease *le_lease_read_self(const char *election);
extern bool le_lease_read_committed(Oid lease_oid, const char *election,
									Lease **lease);
extern RowScan *le_lease_scan(Key key);
extern Lease *le_lease_next(RowScan *scan);
extern Lease *le_lease_lock(const char *election);
extern Lease *le_lease_find_lock(RowScan *scan, const char *election);
extern Lease *le_lease_lock_read(const Lease *seen);
extern void le_lease_create(const char *election,
							TimestampTz created_at, int64 after_term);
extern void le_lease_grant(Lease *lease, const Candidate *to,
						   int64 term, int64 previous_term, int64 duration,
						   int64 t0, TimestampTz at);
extern void le_lease_write(Lease *lease);
extern void le_lease_set_not_before(Lease *lease, int64 not_before, bool held);
extern void le_lease_vacate(Lease *lease, int64 not_before, bool held,
							const Candidate *successor, int64 reserved_for,
							bool deserted, int64 first_stood);
extern void le_lease_renew(Lease *lease, int64 term, int64 duration, int64 t0,
						   const Profile *said);
extern bool le_lease_differs(const Lease *lease, const Profile *said);
extern void le_lease_say(Lease *lease, const Profile *said);
extern void le_lease_yield(Lease *lease, bool yields, bool ordered,
						   const Candidate *successor, const char *cause);
extern void le_lease_reserve(Lease *lease, const Candidate *successor,
							 int64 reserved_for);
extern void le_lease_note_first(Lease *lease, int64 first_stood,
								int64 not_before);

extern bool le_runs_admit(const Runs *runs, const Run *run);
extern void le_runs_begin(Lease *lease, const Run *run, const Role *role);
extern bool le_runs_finish(Lease *lease);
extern void le_runs_set_done(Lease *lease, const char *done);

/* lease_state.c */
typedef enum LeaseState
{
	LEASE_VACANT,
	LEASE_LED,
	LEASE_EXPIRED,				/* the deadline has passed */
	LEASE_ORPHANED,				/* the leader's session is provably dead */
	LEASE_STALE					/* granted by another incarnation or clock */
} LeaseState;

extern bool le_lease_is_own(const Lease *lease);
extern bool le_lease_is_stale(const Lease *lease);
extern bool le_lease_is_void(const Lease *lease);
extern bool le_lease_is_term(const Lease *lease, int64 term);
extern bool le_lease_is_held_by(const Lease *lease, int64 session_id,
								int64 term);
extern bool le_lease_was_term(const Lease *lease, int64 term);
extern bool le_lease_unexpired(const Lease *lease);
extern LeaseState le_lease_state(const Lease *lease, int64 now);
extern LeaseState le_lease_state_now(const Lease *lease);
extern int64 le_lease_not_before(const Lease *lease, const Incarnation *inc);
extern int64 le_lease_reserved_mono(const Lease *lease);
extern int64 le_lease_reserved_since(const Lease *lease);
extern int64 le_lease_first_stood(const Lease *lease);
extern int64 le_lease_grace(const Lease *lease, int64 lease_duration,
							const Incarnation *inc);

/* candidate.c */
struct Candidate
{
	char	   *election;
	char	   *candidate;
	int64		session_id;		/* 0: detached */
	Role		role;
	int			rank;
	int64		progress;
	Datum		metadata;		/* 0: none */
	bool		auto_renew;
	int			backend_pid;	/* 0: detached */
	Datum		client_addr;	/* 0: none */
	TimestampTz joined_at;
	int64		place;			/* place_mono */
	int64		stood;			/* stood_mono */
	int64		sits_out;		/* passed over until a later term; -1: not */
	bool		defers;			/* has given up, and is not to preempt */
	int64		seen;			/* seen_mono; 0: a session's candidate */
	int64		seen_for;		/* it counts as alive for so long since */
	bool		own_write;		/* the running transaction has written it */
	ItemPointerData tid;		/* where it was read; invalid: in no row */
	Run			run;			/* that its own call asks for; in no table */
	const pg_uuid_t *request;	/* which that is; in no table; NULL: none */
	Row		   *row;			/* NULL: this transaction has not locked it */
};

extern List *le_candidates_read(const char *election);
extern void le_candidates_read_until(int64 until);
extern bool le_candidates_exist(void);
extern RowScan *le_candidates_scan(const char *election,
								   const char *candidate);
extern bool le_candidate_next(RowScan *scan, Candidate *c);
extern Candidate *le_candidate_find(const char *election, const char *name);
extern bool le_candidate_alive(const Candidate *c);
extern bool le_candidate_is_same(const Candidate *a, const Candidate *b);
extern bool le_candidate_leads(const Candidate *c, const Lease *lease);
extern bool le_candidate_succeeds(const Candidate *c, const Lease *lease);
extern bool le_candidate_sits_out(const Candidate *c, const Lease *lease);
extern bool le_candidate_differs(const Candidate *c, const Profile *profile,
								 int64 lease_duration);
extern void le_candidate_insert(Candidate *who,
								const Profile *profile, int64 lease_duration);
extern bool le_candidate_update(Candidate *who,
								const Profile *profile, int64 lease_duration);
extern bool le_candidate_needs_heartbeat(int64 seen, int64 lease_duration);
extern Candidate *le_candidate_of_lease(const Lease *lease);
extern bool le_candidate_lock(Candidate *c);
extern bool le_candidate_lock_read(Candidate *c);
extern void le_candidate_set_back(Candidate *c, bool sits_out, bool loses,
								  int64 last_term, int64 now);
extern bool le_candidate_withdraw(const Candidate *who);
extern bool le_candidate_prune(const Candidate *dead);

/* candidacy.c */
typedef enum StandResult
{
	STAND_OK,
	STAND_BUSY,					/* another transaction is writing that row */
	STAND_IN_USE,				/* the name is another live candidate's */
	STAND_DROPPED				/* there is no such election any more */
} StandResult;

extern StandResult le_candidacy_stand(Candidate *who, const Profile *profile,
									  int64 lease_duration);

/* mark.c */
typedef struct Mark
{
	char	   *election;
	int64		term;			/* listeners know of the terms up to this */
	bool		vacated;		/* they know that it has ended */
	int64		yields;			/* requests to yield in it that they know of */
	char	   *channel;		/* where they were told; NULL: the default */
	TimestampTz created_at;		/* of the lease that they know of; 0: none */
	TimestampTz metadata_at;	/* of its last change in this term that they
								 * know of; 0: of none */
	Row		   *row;			/* NULL: this transaction has not locked it */
} Mark;

extern Mark *le_mark_read(const char *election);
extern List *le_marks_read(void);
extern bool le_mark_lacks_metadata(const Mark *mark, const Lease *lease);
extern Mark *le_mark_lock(const char *election, bool deletes, bool *busy);
extern void le_mark_write(Mark *mark);
extern void le_mark_create(const char *election,
						   const char *channel, TimestampTz created_at,
						   int64 after_term);

/* history.c */
typedef struct Term
{
	int64		term;
	char	   *leader;
	TimestampTz acquired_at;
	bool		ended;
	TimestampTz ended_at;		/* if it has ended */
	char	   *reason;			/* NULL: it has not ended */
} Term;

extern RowScan *le_history_scan(const char *election,
								int64 from, ScanDirection direction,
								Snapshot snapshot);
extern Term *le_history_next(RowScan *scan);
extern void le_history_begin(const Candidate *leader,
							 int64 term, TimestampTz at);
extern bool le_history_lock(const char *election, int64 term, Row **row);
extern bool le_history_is_begun_here(const char *election, int64 term);
extern void le_history_end(Row *row, const char *reason, const char *detail,
						   TimestampTz at);
extern TimestampTz le_history_untold_since(const Mark *mark);
extern bool le_history_prune(TimestampTz before,
							 int limit, int64 max_time, Walk *walk, bool *left);

/* election.c */
struct Pause;

typedef struct Election
{
	char	   *name;
	char	   *strategy;
	int64		lease_duration;
	int			quorum;
	int64		takeover_delay;
	Role		candidate_role; /* "": any role may stand */
	char	   *channel;		/* NULL: the default one */
	Role		owner;
	const struct Pause *pause;	/* NULL: it is not paused itself */
	int64		preempt_delay;
	int64		initial_delay;
	char	   *group;			/* NULL: it is no seat of a group */
	bool		own_write;		/* the running transaction has written it */
} Election;

extern const Field le_election_settings[];

extern Election le_election_new(char *name, Role owner);
extern Election *le_election_read(const char *name);
extern List *le_elections_read(void);
extern List *le_elections_read_seats(const char *group);
extern char *le_election_channel(const char *name,
								 Snapshot snapshot, bool *is_seat);
extern Election *le_election_get(const char *name);
extern bool le_election_is_restricted(const Election *election);
extern bool le_election_admits(const Election *election, const Role *role);
extern RowScan *le_election_durations_begin(void);
extern int64 le_election_duration_find(RowScan *scan, const char *election,
									   int64 if_unknown);
extern int64 le_election_lease_duration(const Lease *lease);
extern bool le_election_write(const Election *election);
pg_noreturn extern void le_election_report_missing(const char *name);

/* create.c */
extern bool le_create(const Election *election, bool on_first_use);
extern bool le_create_is_allowed(void);
extern Election *le_create_on_first_use(const char *name, bool wait);

/* seat.c */
extern char *le_seat_name(const char *group, int number);
extern int	le_seat_number(const char *election);
extern bool le_seat_is_of(const char *election, const char *group);
extern char *le_seat_group(const char *election);
extern Key	le_seat_key(const char *group);
#ifdef USE_ASSERT_CHECKING
extern bool le_seat_holds_name(const char *election, const char *candidate);
#endif

/* group.c */
typedef struct ElectionGroup
{
	char	   *name;
	int			seats;
	int			max_per_candidate;
	Role		owner;
	struct Tally *tally;		/* who has how many; NULL: not counted */
} ElectionGroup;

extern const Field le_group_settings[];

extern ElectionGroup *le_group_read(const char *name);
extern ElectionGroup *le_group_of(const Election *election);
extern void le_group_remember(void);
extern void le_group_forget(void);
extern bool le_group_withdraws(const ElectionGroup *group, const char *election);
extern bool le_group_may_withdraw(const char *election);
extern bool le_group_write(const ElectionGroup *group);
extern Election *le_group_seat_read(const char *name);
extern char *le_group_lock_seat_name(const char *election);
extern ElectionGroup *le_group_get(const char *name);

/* pause.c */
typedef struct Pause
{
	TimestampTz at;
	const char *by;				/* a role */
	const char *reason;			/* NULL: none was given */
	bool		vacates;		/* every leader is asked to yield */
	TimestampTz resumes_at;		/* for people and for other incarnations */
	int64		resumes_mono;
	int64		resumes_for;	/* 0: until it is resumed */
	const char *incarnation;	/* on which it was paused */
} Pause;


extern Pause *le_pause_make(const Row *row);
extern void le_pause_set(Row *row, const Pause *pause);
extern Pause *le_pause_all_read(void);
extern void le_pause_all_remember(void);
extern bool le_pause_all_write(const Pause *pause, bool *was);
extern const Pause *le_pause_now(const Election *election,
								 const Incarnation *inc, int64 *until);
extern bool le_pause_in_force(const Pause *own, const Incarnation *inc);

/* drain.c */
typedef struct Drain
{
	char	   *election;		/* "": all */
	char	   *candidate;
	int			length;			/* of the name, or of the beginning of names */
	bool		is_prefix;
	TimestampTz at;				/* le_drain_find() fills in this ... */
	char	   *by;				/* ... this, a role ... */
	char	   *reason;			/* ... and this; NULL: none was given */
} Drain;

typedef struct Drains Drains;

typedef enum DrainResult
{
	DRAIN_OK,
	DRAIN_NONE,					/* there was no such entry */
	DRAIN_FULL,					/* there are too many */
	DRAIN_BUSY					/* another transaction is writing there */
} DrainResult;

extern void le_drain_remember(void);
extern const Drains *le_drain_read(const char *election);
extern bool le_drain_covers(const Drains *drains, const char *candidate);
extern Drain *le_drain_find(const char *election, const char *candidate);
extern DrainResult le_drain_write(const char *election,
								  const char *candidate, const char *by,
								  const char *reason, int limit);
extern DrainResult le_drain_delete(const char *election,
								   const char *candidate);
extern bool le_drain_drop(const char *election);

#endif							/* LE_STATE_H */
