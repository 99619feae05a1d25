/*
 * versions.pml
 *		Two versions of the library in one database, for model checking.
 *
 * An update of the extension changes its objects, while processes go on with
 * the library that they have loaded.  What the new protocol changes is left
 * open, at its worst: rows are copied into other tables, so that row locks of
 * the two do not meet, and (other_tags) the tags of advisory locks may be
 * others, so that neither sees the election lock or the session locks of the
 * other.  README.md, beside this file, says which function of src each action
 * stands for; `run` checks all of it.
 *
 * There is no time here: a lease lasts as long as its session is alive.
 *
 * What is chosen with -D: NO_... is one rule less; ENDLESS: clients never stop
 * to begin something (so that what is to be in the end is not looked at); and
 * bounds: TERMS, JOINS (sessions of a candidate), FENCES (fenced transactions
 * of a library).
 */

#ifndef TERMS
#define TERMS		2
#endif
#ifndef JOINS
#define JOINS		2
#endif
#ifndef FENCES
#define FENCES		1
#endif

/* Protocols: the number in the view, and LE_PROTOCOL of a library */
#define OLD			1
#define NEW			2

/*
 * Processes of the server; those with an even number have the old library
 */
#define LIBRARY(i)	((i) % 2 == 0 -> OLD : NEW)
#define WORKER_OLD	0
#define WORKER_NEW	1
#define FENCED_OLD	2
#define FENCED_NEW	3
#define O			4			/* the session of a candidate, old library */
#define N			5			/* the same, new library */
#define PROCESSES	6
#define NOBODY		0

byte number = OLD;				/* as it is committed */
bool other_tags;				/* the two protocols lock other tags */

/* The lock of the view protocol */
byte sharing;					/* how many have it in AccessShare mode */
bool exclusive;					/* the update has it, in AccessExclusive */

/* The election lock, under the tag of each protocol */
#define TAG(l)		(other_tags && (l) == NEW -> 1 : 0)
bool lock[2];
byte lock_shared[2];

/* The lease row */
byte term;
byte holder;
byte session_id;				/* of the holder */

/* Processes: how far they are, and what they know */
#define IDLE		0
#define LOCKED		1			/* has the lock of the view */
#define WORKS		2			/* and has found its own number there */
#define DECIDED		3			/* has the election lock, and has looked */
#define MARKED		4			/* fenced, but not about to commit yet */
byte pc[PROCESSES];
bool shares[PROCESSES];			/* has the lock of the view */
bool works[PROCESSES];			/* acts on elections in this transaction */
bool news[PROCESSES];			/* an invalidation waits to be accepted */
byte cached[PROCESSES];			/* the number; 0: it is to be read */
byte seen[PROCESSES];			/* the term that it has read */
byte winner[PROCESSES];

/* Sessions that stand: index is O or N */
byte joins[PROCESSES];			/* also the session_id of the last session */
bool stands[PROCESSES];			/* has its session lock */
bool view[PROCESSES];			/* has cached that it leads */

/* The update */
byte update;					/* how far it is */
byte copied_term;
byte copied_holder;
byte copied_session_id;

bool quiet;						/* from now on, clients begin nothing */

/* Ghosts */
byte granted;					/* a bit for each term */
byte fences[3];

/* For assertions, so that they say what is broken */
bool one_protocol;
bool unique_terms;				/* G5 */
bool mutual_exclusion;			/* G1 */
bool fenced_by_the_present_term;	/* G8 */
bool nobody_stands_in_vain;		/* G7 */

byte k;							/* within a step */

/*** the lock of the view ***/

inline share(i)
{
	shares[i] = true;
	sharing++
}

inline unshare(i)
{
	sharing = sharing - shares[i];
	shares[i] = false
}

/* Taking the lock accepts invalidations; then the number is read if need be. */
inline compare(i)
{
#ifndef NO_READ_AGAIN
	if
	:: news[i] -> news[i] = false; cached[i] = 0
	:: else
	fi;
#endif
	if
	:: cached[i] == 0 -> cached[i] = number
	:: else
	fi;
	works[i] = (cached[i] == LIBRARY(i));
#ifdef NO_LOCK_TO_END
	unshare(i)
#endif
}

inline end(i)
{
	unshare(i);
	works[i] = false;
	seen[i] = 0;
	winner[i] = NOBODY;
	pc[i] = IDLE
}

/*** elections ***/

/* What a library finds when it tests a session lock */
#define SEES(l, c)	(stands[c] && ((l) == LIBRARY(c) || !other_tags))
#define LED(l) \
	(holder != NOBODY && SEES(l, holder) && joins[holder] == session_id)
#define HAS_WORK(l) \
	(!LED(l) && term < TERMS && (SEES(l, O) || SEES(l, N)))

/* A process that has found another number waits for news of it. */
#define HOPES(i)	(news[i] || cached[i] == 0 || cached[i] == LIBRARY(i))

/* The worker, or whoever else elects with that library */
proctype Worker(byte i)
{
	do
	:: d_step {
			pc[i] == IDLE && !exclusive && HOPES(i) && HAS_WORK(LIBRARY(i)) ->
			share(i);
			pc[i] = LOCKED
		}
	:: d_step {
			pc[i] == LOCKED ->
			compare(i);
			if
			:: works[i] -> pc[i] = WORKS
			:: else -> end(i)
			fi
		}
	:: atomic {
			pc[i] == WORKS && !lock[TAG(LIBRARY(i))] &&
			lock_shared[TAG(LIBRARY(i))] == 0 ->
			if
			:: HAS_WORK(LIBRARY(i)) && SEES(LIBRARY(i), O) -> winner[i] = O
			:: HAS_WORK(LIBRARY(i)) && SEES(LIBRARY(i), N) -> winner[i] = N
			:: !HAS_WORK(LIBRARY(i)) -> end(i)
			fi;
			if
			:: pc[i] == WORKS ->
				lock[TAG(LIBRARY(i))] = true;
				seen[i] = term;
				pc[i] = DECIDED
			:: else
			fi
		}
	/* commits */
	:: d_step {
			pc[i] == DECIDED ->
			assert(!(granted & (1 << (seen[i] + 1))) || unique_terms);
			granted = granted | (1 << (seen[i] + 1));
			term = seen[i] + 1;
			holder = winner[i];
			session_id = joins[winner[i]];
			lock[TAG(LIBRARY(i))] = false;
			end(i)
		}
	/* fails, or is ended */
	:: d_step {
			pc[i] != IDLE ->
			if
			:: pc[i] == DECIDED -> lock[TAG(LIBRARY(i))] = false
			:: else
			fi;
			end(i)
		}
	od
}

/*** sessions ***/

#define HOLDS(c)	(holder == (c) && session_id == joins[c])

/* What is_leader() would answer: it accepts invalidations first. */
#ifdef NO_VIEW_VOID
#define BELIEVES(c)	view[c]
#else
#define BELIEVES(c)	(view[c] && !news[c])
#endif

inline accept(c)
{
	if
	:: news[c] ->
		news[c] = false;
		cached[c] = 0;
#ifndef NO_VIEW_VOID
		view[c] = false
#endif
	:: else
	fi
}

inline end_session(c)
{
	stands[c] = false;
	view[c] = false
}

/*
 * The lease is read again, under the lock of the view, which is only tried.
 * A session that finds another number there gives up its session lock.
 */
inline read_view(c)
{
#ifdef NO_VIEW_COMPARE
	cached[c] = LIBRARY(c);
#else
	cached[c] = number;
#endif
	if
	:: cached[c] == LIBRARY(c) -> view[c] = HOLDS(c)
	:: else ->
#ifdef NO_ENDING
		view[c] = false
#else
		end_session(c)
#endif
	fi
}

proctype Session(byte c)
{
	do
	/* join(), in a session of its own */
	:: d_step {
			!quiet && !stands[c] && joins[c] < JOINS && !exclusive &&
			number == LIBRARY(c) ->
			accept(c);
			cached[c] = number;
			joins[c]++;
			stands[c] = true
		}
	/* is_leader() */
	:: d_step {
			stands[c] && news[c] ->
			accept(c);
			if
			:: !exclusive -> read_view(c)
			:: else
			fi
		}
	:: d_step {
			stands[c] && !news[c] && !exclusive &&
			(cached[c] == 0 ||
			 (cached[c] == LIBRARY(c) && !view[c] && HOLDS(c))) ->
			read_view(c)
		}
	/* It ends, for any reason. */
	:: d_step { !quiet && stands[c] -> end_session(c) }
	od
}

/*** fences ***/

/* A transaction that is fenced by a term, on any connection */
proctype Fenced(byte i)
{
	do
	/* assert_leader() */
	:: d_step {
			pc[i] == IDLE && !quiet && fences[LIBRARY(i)] < FENCES &&
			!exclusive && number == LIBRARY(i) && LED(LIBRARY(i)) ->
			fences[LIBRARY(i)]++;
			news[i] = false;
			cached[i] = number;
			seen[i] = term;
			pc[i] = MARKED
		}
	/* It is about to commit, any time later. */
	:: d_step {
			pc[i] == MARKED && !exclusive ->
#ifdef NO_FENCE_HOLD
			pc[i] = WORKS
#else
			share(i);
			pc[i] = LOCKED
#endif
		}
	:: d_step {
			pc[i] == LOCKED ->
			compare(i);
			if
			:: works[i] -> pc[i] = WORKS
			:: else -> end(i)	/* 55000 */
			fi
		}
	:: d_step {
			pc[i] == WORKS && !lock[TAG(LIBRARY(i))] ->
			if
			:: term == seen[i] ->
				lock_shared[TAG(LIBRARY(i))]++;
				pc[i] = DECIDED
			:: else -> end(i)	/* LE002 */
			fi
		}
	:: d_step {
			pc[i] == DECIDED ->
			assert(term == seen[i] || fenced_by_the_present_term);
			lock_shared[TAG(LIBRARY(i))]--;
			end(i)
		}
	/* fails, or is ended */
	:: d_step {
			pc[i] != IDLE ->
			if
			:: pc[i] == DECIDED -> lock_shared[TAG(LIBRARY(i))]--
			:: else
			fi;
			end(i)
		}
	od
}

/*** ALTER EXTENSION UPDATE ***/

#define REPLACED	1			/* the view, uncommitted: has its lock */
#define COPIED		2			/* the rows */
#define VISIBLE		3			/* its commit: others see the new objects, ... */
#define TOLD		4			/* ... then they get invalidations, ... */
#define UPDATED		5			/* ... then its locks are released */

#ifdef NO_EXCLUSIVE
#define MAY_REPLACE	1
#else
#define MAY_REPLACE	(sharing == 0)
#endif

inline replace_view()
{
#ifndef NO_EXCLUSIVE
	exclusive = true
#else
	skip
#endif
}

inline copy_rows()
{
	copied_term = term;
	copied_holder = holder;
	copied_session_id = session_id
}

inline invalidate()
{
	for (k : 0 .. PROCESSES - 1) {
		news[k] = true
	}
	k = 0
}

proctype Update()
{
	do
#ifdef NO_VIEW_FIRST
	:: d_step { update == IDLE && !quiet -> copy_rows(); update = REPLACED }
	:: d_step {
			update == REPLACED && MAY_REPLACE ->
			replace_view();
			update = COPIED
		}
#else
	:: d_step {
			update == IDLE && !quiet && MAY_REPLACE ->
			replace_view();
			update = REPLACED
		}
	:: d_step { update == REPLACED -> copy_rows(); update = COPIED }
#endif
	:: d_step {
			update == COPIED ->
			number = NEW;
			term = copied_term;
			holder = copied_holder;
			session_id = copied_session_id;
			update = VISIBLE
		}
#ifdef NO_ORDER
	:: d_step { update == VISIBLE -> exclusive = false; update = TOLD }
	:: d_step { update == TOLD -> invalidate(); update = UPDATED }
#else
	:: d_step { update == VISIBLE -> invalidate(); update = TOLD }
	:: d_step { update == TOLD -> exclusive = false; update = UPDATED }
#endif
	/* fails, or is ended */
	:: d_step {
			update == REPLACED || update == COPIED ->
			exclusive = false;
			update = IDLE
		}
	od
}

/*** what must not be ***/

#define STRANGER(i)	(works[i] && LIBRARY(i) != number)

proctype Monitor()
{
	do
	:: atomic {
			STRANGER(WORKER_OLD) || STRANGER(WORKER_NEW) ||
			STRANGER(FENCED_OLD) || STRANGER(FENCED_NEW) ->
			assert(one_protocol)
		}
	:: atomic { BELIEVES(O) && BELIEVES(N) -> assert(mutual_exclusion) }
	od
}

/*
 * Once clients begin nothing more, and all others have done what they had to:
 * no seat is kept for a session whose library cannot lead.
 */
proctype End()
{
	quiet = true;
	timeout;
	assert(holder == NOBODY || !LED(number) || LIBRARY(holder) == number ||
		   nobody_stands_in_vain)
}

init
{
	atomic {
		if
		:: other_tags = false
		:: other_tags = true
		fi;
		run Worker(WORKER_OLD);
		run Worker(WORKER_NEW);
		run Fenced(FENCED_OLD);
		run Fenced(FENCED_NEW);
		run Session(O);
		run Session(N);
		run Update();
#ifndef ENDLESS
		run End();
#endif
		run Monitor()
	}
}
