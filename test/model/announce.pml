/*
 * announce.pml
 *		How listeners are told of one election, for model checking.
 *
 * Who leads is the matter of leader_election.pml.  Here changes of holder just
 * happen, each in one transaction, and the question is what listeners hear of
 * them.  README.md, beside this file, says which function of src each action
 * stands for; `run` checks all of it.
 *
 * Each change has a place: 2t - 1 is the beginning of term t, 2t its end.  If
 * one transaction ends term t and begins term t + 1, that is one event, at the
 * place of the beginning, and there is no event at place 2t.
 *
 * What is chosen with -D: NO_... is one rule less, and bounds: TERMS, YIELDS
 * (requests in a term), DROPS, CRASHES, BATCH (events in a transaction).
 */

#ifndef TERMS
#define TERMS		3
#endif
#ifndef YIELDS
#define YIELDS		2
#endif
#ifndef DROPS
#define DROPS		2
#endif
#ifndef CRASHES
#define CRASHES		1
#endif
#ifndef BATCH
#define BATCH		2
#endif

/* The lease row and history, as everybody sees them */
bool exists = true;				/* the election; else it was dropped */
byte term;						/* the last one that was granted */
bool led;
byte yields;					/* requests to yield in this term */
bool yielding;					/* the last of them was not withdrawn */
byte successions;				/* a bit for each term that began in the
								 * transaction that ended the one before */
byte first = 1;					/* terms below were pruned from history */

#define LAST		(led -> 2 * term - 1 : 2 * term)
#define SUCCEEDS(t)	((successions >> (t)) & 1)
#define TERM_OF(p)	(((p) + 1) / 2)

/* The row of announced, the mark: what was told last */
bool marked = true;
byte mark;
byte mark_yields;

/* Locks */
bool notifying;					/* the one of commits that NOTIFY */
bool dropping;					/* the election's, by a drop */
bool name_exclusive;			/* the election's name */
byte name_shared;

bool quiet;						/* from now on, nothing changes */

#define IDLE		0

/*
 * The worker, and one more, as if there were no worker lock.
 */
#define WORKERS		2
#define WANTS		1			/* a look has found that there is news */
#define TURN		2			/* has the lock of commits that NOTIFY */
#define READ		3			/* knows what to tell; needs the name lock */
#define READY		4
#define HALF		5			/* has committed only half of it */

typedef Announcer {
	unsigned pc : 3;
	bit named;					/* has the name lock, in Share mode */

	/* What it has read */
	bit exists;
	bit marked;
	byte mark;
	byte mark_yields;
	byte upto;					/* the last change in history */
	byte now;					/* the last change by the lease row */
	byte yields;
	bit yielding
};

Announcer worker[WORKERS];

/*
 * The owner of the election drops it and creates it.
 */
#define DROPPED		1
#define CREATES		2
#define CREATED		3

byte owner;						/* how far its transaction is */
bool finds;						/* it has found a mark */
byte drops;

/* Ghosts: what listeners have heard */
byte told;
byte told_yields;				/* in that term */
bool torn;						/* nothing was told since a crash, ... */
byte at_crash;					/* ... at which this was the last change */
byte crashes;

/* For assertions, so that they say what is broken (G10) */
bool told_once;
bool in_order;
bool none_left_out;
bool last_change_after_a_crash;
bool all_told;

byte p;							/* within a step */
byte y;
byte n;

/* What listeners have heard just before this event, without a crash */
#define BEFORE(p) \
	((p) % 2 == 1 && SUCCEEDS(TERM_OF(p)) -> (p) - 2 : (p) - 1)

/* Is it in history? */
#define KNOWN(p)	((p) > 0 && TERM_OF(p) >= first)

/*** listeners ***/

/* After a crash, what was told last may be told again, but nothing older. */
inline tell(event)
{
	assert(event != told || torn || told_once);
	assert(event >= told || in_order);
	if
	:: torn -> assert(event >= at_crash || last_change_after_a_crash)
	:: else -> assert(BEFORE(event) == told || none_left_out)
	fi;
	told = event;
	told_yields = 0;
	torn = false
}

inline tell_yield(event, number)
{
	assert(number > told_yields || told_once);
	assert(event == told || in_order);
	told_yields = number
}

/* What is not told since there was a crash counts as told from then on. */
inline skip_to(event, number)
{
	if
	:: torn ->
		torn = false;
		told = event;
		told_yields = number
	:: else
	fi
}

/*** changes ***/

#define MAY_CHANGE	(!quiet && exists && !dropping)

inline no_yield()
{
	yields = 0;
	yielding = false
}

proctype Candidates()
{
	do
	:: d_step {
			MAY_CHANGE && !led && term < TERMS ->
			term++;
			led = true
		}
	:: d_step { MAY_CHANGE && led -> led = false; no_yield() }
	:: d_step {
			MAY_CHANGE && led && term < TERMS ->
			term++;
			successions = successions | (1 << term);
			no_yield()
		}
	:: d_step {
			MAY_CHANGE && led && !yielding && yields < YIELDS ->
			yields++;
			yielding = true
		}
	:: d_step { MAY_CHANGE && led && yielding -> yielding = false }
	od
}

#define NAME_FREE	(!name_exclusive && name_shared == 0)

#ifdef NO_KEPT_MARK
#define KEEPS_MARK	0
#else
#define KEEPS_MARK	finds
#endif
#ifdef NO_FLOOR
#define FIRST_MARK	0
#else
#define FIRST_MARK	LAST
#endif

inline end_owner()
{
	owner = IDLE;
	finds = false;
	dropping = false;
	name_exclusive = false
}

proctype Owner()
{
	do
	:: d_step {
			owner == IDLE && !quiet && exists && drops < DROPS && NAME_FREE ->
			drops++;
			dropping = true;
			name_exclusive = true;
			owner = DROPPED
		}
	:: d_step {
			owner == IDLE && !quiet && !exists && NAME_FREE ->
			name_exclusive = true;
			owner = CREATES
		}
	/* drops it, and creates it again in the same transaction */
	:: d_step { owner == DROPPED -> owner = CREATES }
	:: d_step {
			owner == CREATES ->
			finds = marked;
			owner = CREATED
		}
	/* commits */
	:: d_step {
			owner == DROPPED || owner == CREATED ->
			exists = (owner == CREATED);
			led = false;
			no_yield();
			if
			:: owner == CREATED && !KEEPS_MARK ->
				marked = true;
				mark = FIRST_MARK;
				mark_yields = 0;
				skip_to(LAST, 0)
			:: else
			fi;
			end_owner()
		}
	/* fails, or is ended */
	:: d_step { owner != IDLE -> end_owner() }
	od
}

/*** announcing ***/

#ifdef NO_YIELD_COUNT
#define IS_ASKED(asks, count, told)	((asks) && (told) == 0)
#define COUNTED(asks, count)	((asks) -> 1 : 0)
#define NEWS_OF_YIELD	(led && yielding != mark_yields)
#else
#define IS_ASKED(asks, count, told)	((asks) && (count) > (told))
#define COUNTED(asks, count)	(count)
#define NEWS_OF_YIELD	(led && yields > mark_yields)
#endif

#define HAS_NEWS \
	(exists && marked -> mark != LAST || NEWS_OF_YIELD : \
	 (exists -> LAST > 0 : marked))

inline rest(i)
{
	if
	:: worker[i].pc != IDLE && worker[i].pc != WANTS -> notifying = false
	:: else
	fi;
#ifndef NO_NAME_LOCK
	name_shared = name_shared - worker[i].named;
#endif
	worker[i].pc = IDLE;
	worker[i].named = 0;
	worker[i].exists = 0;
	worker[i].marked = 0;
	worker[i].mark = 0;
	worker[i].mark_yields = 0;
	worker[i].upto = 0;
	worker[i].now = 0;
	worker[i].yields = 0;
	worker[i].yielding = 0
}

inline read_lease(i)
{
	worker[i].exists = exists;
	worker[i].now = LAST;
	worker[i].yields = yields;
	worker[i].yielding = yielding
}

inline read_all(i)
{
	worker[i].marked = marked;
	worker[i].mark = mark;
	worker[i].mark_yields = mark_yields;
	worker[i].upto = LAST;
	read_lease(i)
}

/*
 * What there is to tell beyond the mark: p and y become the new one.
 */
#ifdef NO_MARK_ONLY
#define TELLS_LAST(i)	0
#else
#define TELLS_LAST(i)	(!worker[i].marked)
#endif

inline derive(i, tells)
{
	p = worker[i].mark;
	y = worker[i].mark_yields;
	if
	:: TELLS_LAST(i) ->
		p = worker[i].upto;
		y = COUNTED(worker[i].yielding, worker[i].yields);
#ifndef NO_MARK_LAST
		if
		:: tells && worker[i].yielding ->
			skip_to(p, 0);
			tell_yield(worker[i].now, worker[i].yields)
		:: tells && !worker[i].yielding && KNOWN(p) ->
			tell(p);
			told_yields = worker[i].yields
		:: tells && !worker[i].yielding && !KNOWN(p) ->
			skip_to(p, worker[i].yields)
		:: else
		fi
#endif
	:: else ->
		do
		:: n < BATCH && p < worker[i].upto ->
			n++;
			p = (p % 2 == 1 && SUCCEEDS(TERM_OF(p) + 1) &&
				 p + 1 < worker[i].upto -> p + 2 : p + 1);
#ifndef NO_YIELD_RESET
			y = 0;
#endif
			if
			:: tells && KNOWN(p) -> tell(p)
			:: else
			fi
		:: else -> break
		od;
#ifdef NO_ONE_SNAPSHOT
		if
		:: p == worker[i].upto -> p = worker[i].now
		:: else
		fi;
#endif
		if
		:: n < BATCH && p == worker[i].now && p % 2 == 1 ->
			if
			:: tells && IS_ASKED(worker[i].yielding, worker[i].yields, y) ->
				tell_yield(worker[i].now, worker[i].yields)
			:: else
			fi;
			y = COUNTED(worker[i].yielding, worker[i].yields)
		:: else
		fi
	fi;
	n = 0
}

inline write_mark(i)
{
	if
	:: !worker[i].exists && worker[i].named && p == worker[i].now ->
		marked = false;
		mark = 0;
		mark_yields = 0
	:: else ->
		marked = true;
		mark = p;
		mark_yields = y
	fi
}

/*
 * A mark is deleted if its election was dropped, and inserted if the election
 * has none: under the name lock, the worker looks at both again.
 */
#define NEEDS_NAME(i)	(!worker[i].exists || !worker[i].marked)
#ifdef NO_NAME_LOOK
#define IS_STILL_SO(i)	1
#elif defined(NO_NAME_HISTORY)
#define IS_STILL_SO(i) \
	(exists == worker[i].exists && marked == worker[i].marked)
#else
#define IS_STILL_SO(i) \
	(exists == worker[i].exists && marked == worker[i].marked && \
	 (exists || LAST == worker[i].now))
#endif

inline take_name(i)
{
	if
#ifdef NO_NAME_LOCK
	:: IS_STILL_SO(i) -> worker[i].named = 1
#else
	:: IS_STILL_SO(i) && !name_exclusive ->
		worker[i].named = 1;
		name_shared++
#endif
	:: else
	fi
}

inline announce(i)
{
#ifdef NO_ONE_SNAPSHOT
	read_lease(i);
#endif
	if
	:: !worker[i].marked &&
	   (!worker[i].exists || !worker[i].named || marked) -> rest(i)
	:: else ->
#ifndef NO_ONE_COMMIT
		derive(i, 1);
		write_mark(i);
		rest(i)
#else
#ifdef MARK_FIRST
		derive(i, 0);
		write_mark(i);
#else
		derive(i, 1);
#endif
		worker[i].pc = HALF
#endif
	fi;
	p = 0;
	y = 0
}

proctype Worker(byte i)
{
	do
	:: d_step {
			worker[i].pc == IDLE && HAS_NEWS ->
#ifdef NO_SECOND_LOOK
			read_all(i);
#endif
			worker[i].pc = WANTS
		}
	:: d_step {
			worker[i].pc == WANTS && !notifying ->
			notifying = true;
			worker[i].pc = TURN
		}
	/* One snapshot, that is taken now */
	:: d_step {
			worker[i].pc == TURN ->
#ifndef NO_SECOND_LOOK
			read_all(i);
#endif
			worker[i].pc = (NEEDS_NAME(i) -> READ : READY)
		}
	:: d_step {
			worker[i].pc == READ ->
			take_name(i);
			worker[i].pc = READY
		}
	:: d_step { worker[i].pc == READY -> announce(i) }
#ifdef NO_ONE_COMMIT
	:: d_step {
			worker[i].pc == HALF ->
#ifdef MARK_FIRST
			derive(i, 1);
#else
			derive(i, 0);
			write_mark(i);
#endif
			rest(i);
			p = 0;
			y = 0
		}
#endif
	/* is terminated, or fails */
	:: d_step { worker[i].pc != IDLE -> rest(i) }
	od
}

/* Old history is removed, but nothing that was not announced yet. */
#ifdef NO_PRUNE_RULE
#define MAY_PRUNE	1
#else
#define MAY_PRUNE	(marked -> 2 * first <= mark : !exists)
#endif

proctype Prune()
{
	do
	:: d_step { !quiet && 2 * first <= LAST && MAY_PRUNE -> first++ }
	od
}

proctype Crash()
{
	do
	:: d_step {
			!quiet && crashes < CRASHES ->
			crashes++;
			torn = true;
			at_crash = LAST;
			marked = false;
			mark = 0;
			mark_yields = 0;
			rest(0);
			rest(1);
			end_owner()
		}
	od
}

/* Once nothing changes any more, and everything was told that was to be */
proctype End()
{
	quiet = true;
	timeout;
	d_step {
		assert(told == LAST || (!exists && torn) || all_told);
		assert(!yielding || told_yields == yields || all_told)
	}
}

init
{
	atomic {
		run Candidates();
		run Owner();
		run Worker(0);
		run Worker(1);
		run Prune();
		run Crash();
		run End()
	}
}
