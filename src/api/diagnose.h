/*-------------------------------------------------------------------------
 *
 * diagnose.h
 *		What diagnose() looks at and says, and the objects of the extension.
 *
 * diagnose_api.c reads what can be read, and calls the finders; these call
 * diagnose_say.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_DIAGNOSE_H
#define LE_DIAGNOSE_H

#include "access/genam.h"
#include "api/api.h"
#include "catalog/objectaddress.h"

typedef struct Finding
{
	Severity	severity;
	int			place;			/* the first row says what is so */
	const char *finding;
	const char *remedy;
} Finding;

/* What diagnose() has found out, and what it says */
typedef struct Diagnosis
{
	const char *name;			/* of the election, or of the group */
	char	   *quoted;			/* for findings */
	char	   *literal;		/* for SQL */
	bool		on_standby;
	int			readable;		/* the tables that nobody keeps us from */
	List	   *unread;			/* names of the others */
	const Election *election;	/* NULL: of a group, or not readable */
	const ElectionGroup *group; /* NULL: of none, or not readable */
	const Lease *lease;			/* NULL: there is no row, or not readable */
	bool		led;
	bool		has_worker;
	const WorkerTrouble *trouble;	/* of the worker; NULL: none */

	/* who stands, and why nobody leads; nothing if tables are locked */
	bool		knows_vacancy;
	Turnout		turnout;		/* nothing on a standby */
	View	   *view;			/* NULL on a standby */
	Vacancy		vacancy;		/* on a standby, only its obstacle */

	const Pause *pause;			/* NULL: none, or not readable */
	bool		pause_ends;		/* by itself */
	Past		past;			/* nothing, if the history is not readable */
	LockData   *locks;			/* all of this server */
	List	   *findings;
} Diagnosis;

/* diagnose_say.c */
extern void le_diagnose_say(Diagnosis *d, Severity severity,
							const char *finding, const char *remedy);
extern char *le_diagnose_time(TimestampTz at);
extern char *le_diagnose_duration(int64 us);
extern char *le_diagnose_since(TimestampTz at);
extern char *le_diagnose_names(List *names);
extern char *le_diagnose_owner_runs(const Diagnosis *d, const char *call);

/* diagnose_fill.c */
extern char *le_diagnose_fill(const Diagnosis *d, const char *sentence);

/* diagnose_alike.c */
extern void le_diagnose_report_unknown(const Diagnosis *d);
extern void le_diagnose_alike(Diagnosis *d);

/* diagnose_leader.c */
extern void le_diagnose_leader(Diagnosis *d);
extern void le_diagnose_renewal(Diagnosis *d);
extern void le_diagnose_silent(Diagnosis *d);
extern void le_diagnose_yield(Diagnosis *d);
extern void le_diagnose_pause(Diagnosis *d);

/* diagnose_vacancy.c */
extern void le_diagnose_vacancy(Diagnosis *d);

/* diagnose_standing.c */
extern void le_diagnose_roles(Diagnosis *d);
extern void le_diagnose_candidates(Diagnosis *d);
extern void le_diagnose_quorum(Diagnosis *d);
extern void le_diagnose_seats(Diagnosis *d);
extern void le_diagnose_group(Diagnosis *d);

/* diagnose_past.c */
extern void le_diagnose_changes(Diagnosis *d);
extern void le_diagnose_announced(Diagnosis *d);
extern void le_diagnose_no_lease(Diagnosis *d);
extern void le_diagnose_rows(Diagnosis *d);

/* diagnose_server.c */
extern void le_diagnose_worker(Diagnosis *d);
extern void le_diagnose_read_trouble(Diagnosis *d);
extern void le_diagnose_trouble(Diagnosis *d);
extern void le_diagnose_standbys(Diagnosis *d);
extern void le_diagnose_recovery(Diagnosis *d);
extern void le_diagnose_preload(Diagnosis *d);

/* diagnose_locks.c */
extern void le_diagnose_unread(Diagnosis *d);
extern bool le_diagnose_has_late_commit(const Diagnosis *d);
extern void le_diagnose_locks(Diagnosis *d);
extern void le_diagnose_room(Diagnosis *d);

/* diagnose_members.c */
extern void le_diagnose_members(Diagnosis *d);
extern void le_diagnose_additions(Diagnosis *d);

/* members.c */
/* An object of the extension */
typedef struct Member
{
	ObjectAddress object;
	Oid			owner;			/* InvalidOid: its kind has none */
	Oid			namespace;		/* the same */
	bool		is_new;			/* this transaction has made it */
} Member;

extern bool le_members_read(List **members);
extern bool le_member_is_astray(const Member *member);
extern bool le_member_is_altered(const Member *member, bool *replaced);
extern SysScanDesc le_member_dependents_begin(Oid classid, Oid objid);
extern void le_member_dependents_end(SysScanDesc scan);

/* addition.c */
/* What others have added, what it does, and the command that undoes it */
typedef struct Addition
{
	Severity	severity;
	char	   *what;
	const char *effect;
	char	   *remedy;
} Addition;

/* What is looked at for them */
typedef struct Search
{
	List	   *members;
	bool		only_new;		/* of objects that this transaction has made */
	TableId		id;
	Oid			rel;			/* the table; InvalidOid: the schema */
	char	   *table;			/* its name, as SQL */
	List	   *seen;			/* OIDs: some have several rows in pg_depend */
	List	  **found;			/* of Addition */
} Search;

extern void le_addition_note(Search *s, Severity severity, char *what,
							 const char *effect, char *remedy);
extern char *le_addition_describe(const ObjectAddress *object);
extern char *le_addition_command(const char *verb, const ObjectAddress *object);
extern char *le_addition_drop(const ObjectAddress *object);

/* additions.c */
extern bool le_additions_find(bool only_new, List **found);

/* additions_columns.c */
extern void le_additions_of_table(Search *s);
extern void le_addition_default(Search *s, const ObjectAddress *object,
								char *what);

#endif							/* LE_DIAGNOSE_H */
