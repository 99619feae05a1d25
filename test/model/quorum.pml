/*
 * quorum.pml
 *		Two standbys of which the primary needs one or both, for model
 *		checking: which promotions are safe.
 *
 * P is the primary.  Candidates lead there, one at a time: that is the matter
 * of leader_election.pml, and here it is just P's lease, which is granted or
 * renewed on a proof.  A and B are its standbys.  A failover manager promotes
 * one of them, while P lives on.  README.md, beside this file, says which
 * function of src each action stands for; `run` checks all of it.
 *
 * What is chosen with -D:
 *
 *	NAMES		synchronous_standby_names: one of the NAMES_... below
 *	CHANGED		what it is changed to, at any time before the promotion
 *				(NAMES: it is not)
 *	SESSION		the first holder is a session: it does not go on elsewhere
 *	ALONE		P has no other agent than this one
 *	NO_...		one rule less
 *
 * and bounds: L (the lease, in ticks), RECORDS (of WAL: probes, and what fenced
 * transactions write).
 */

#define NAMES_NONE		0		/* '': nothing is proven */
#define NAMES_A			1		/* 'a' */
#define NAMES_B			2		/* 'b' */
#define NAMES_ANY		3		/* 'ANY 1 (a, b)' */
#define NAMES_FIRST		4		/* 'FIRST 1 (a, b)' */
#define NAMES_BOTH		5		/* 'ANY 2 (a, b)', 'FIRST 2 (a, b)' */

#ifndef NAMES
#define NAMES		NAMES_ANY
#endif
#ifndef CHANGED
#define CHANGED		NAMES
#endif
#ifndef L
#define L			2
#endif
#ifndef RECORDS
#define RECORDS		4
#endif

#define A			0
#define B			1
#define NOBODY		2

#define PROOF		((L + 2) / 3)	/* how long a proof may take, in ticks */

byte names = NAMES;

/* WAL is numbered from 1 */
byte written;					/* by P */
byte received[2];				/* and flushed, by each standby */
bool linked[2] = true;			/* it is connected to P */
bool cut[2];					/* the manager has seen to it that it is not */
byte confirmed;					/* what commits on P wait for, and proofs */

/* P's lease */
byte left;						/* ticks until its deadline */

/* The agent on P that grants or renews it: the worker, or a call */
#define IDLE		0
#define BEGUN		1			/* has read t0, but not names (or reversed) */
#define PROVING		2
#define PROVEN		3
#define NEEDLESS	4			/* nothing is to be proven: waits for locks */
#define LOCKED		5			/* has them, and has read the clock again */
#define GRANTS		6			/* and has looked at names again */
byte pc;
byte age;						/* ticks since t0 or, if LOCKED, since then */
byte probe;						/* its place in the WAL; 0: nothing is proven */

/*
 * At first the holder is detached: it knows its term, and may go on in it on
 * the promoted server.
 */
byte ended;						/* the place of its end in the WAL of P */
bool continued;					/* it leads there */

/* A fenced transaction on P */
#define WAITING		1			/* at its commit, for standbys */
byte fence;
byte fenced;					/* the place of its record */
bool acked;						/* ghost: its client was told that it is */

/* The promoted standby */
byte promoted = NOBODY;
byte grace;						/* ticks until a candidate may be elected */
bool elected;

#if NAMES == NAMES_NONE
byte settled;					/* ticks since the change, at most L */
#endif

/* For assertions, so that they say what is broken */
bool mutual_exclusion;			/* G1 */
bool no_lost_fenced_write;		/* G6 */

/*** what P knows of its standbys ***/

#define LESS(x, y)	((x) < (y) -> (x) : (y))
#define MORE(x, y)	((x) > (y) -> (x) : (y))
#define GOT(s)		(linked[s] -> received[s] : 0)

/* Up to where have as many standbys confirmed as are needed? */
#define POSITION \
	(names == NAMES_NONE -> 0 : \
	 (names == NAMES_A -> GOT(A) : \
	  (names == NAMES_B -> GOT(B) : \
	   (names == NAMES_ANY -> MORE(GOT(A), GOT(B)) : \
		(names == NAMES_BOTH -> LESS(GOT(A), GOT(B)) : \
		 (linked[A] -> received[A] : GOT(B)))))))

#define REQUIRED	(names != NAMES_NONE)

inline stop()
{
	pc = IDLE;
	age = 0;
	probe = 0
}

/* Two?  The detached holder itself may lead on both servers. */
#define TWO_LEADERS	(left > 0 && (elected || (continued && ended > 0)))

/*
 * Standbys that are asked have to know that the detached holder's term is
 * over.
 */
#ifdef NO_ENDED
#define MAY_LEAD	1
#else
#define MAY_LEAD	(probe == 0 || ended < probe)
#endif

inline lead(ticks)
{
	if
	:: MAY_LEAD -> left = (left > (ticks) -> left : (ticks))
	:: else
	fi;
	assert(!TWO_LEADERS || mutual_exclusion);
	stop()
}

/*
 * A renewal finds the lease unexpired, perhaps since an agent that is not here
 * has renewed it meanwhile.
 */
#ifdef ALONE
#define RENEWS		(left > 0)
#else
#define RENEWS		1
#endif

/* Are proofs needed?  Then the probe is written. */
inline look()
{
	if
	:: REQUIRED ->
		written++;
		probe = written;
		pc = PROVING
	:: else -> pc = NEEDLESS
	fi
}

proctype Agent()
{
	do
#ifdef NO_T0_FIRST
	/* le_proof_make() with names read before t0 */
	:: d_step {
			pc == IDLE && written < RECORDS && REQUIRED ->
			look()
		}
	:: d_step { pc == IDLE && !REQUIRED -> pc = BEGUN }
	:: d_step { pc == BEGUN -> age = 0; pc = NEEDLESS }
#else
	/* le_proof_make(): t0, then names */
	:: d_step { pc == IDLE -> pc = BEGUN }
	:: d_step { pc == BEGUN && (!REQUIRED || written < RECORDS) -> look() }
#endif
	:: d_step {
			pc == PROVING && confirmed >= probe ->
#ifdef NO_T0
			age = 0;
#endif
			pc = PROVEN
		}
#ifdef NO_PROOF
	/* The commit itself waits, and that can be cut short. */
	:: d_step { pc == PROVING -> age = 0; pc = PROVEN }
#endif
	:: d_step { pc == PROVEN -> lead(L - age) }
	/* A renewal counts from t0, ... */
	:: d_step { pc == NEEDLESS && RENEWS -> lead(L - age) }
	/* ... a grant from when it has its locks: then it looks once more. */
#ifdef NO_NOW_FIRST
	:: d_step { pc == NEEDLESS && !REQUIRED -> pc = LOCKED }
	:: d_step { pc == LOCKED -> age = 0; pc = GRANTS }
#else
	:: d_step { pc == NEEDLESS -> age = 0; pc = LOCKED }
#ifdef NO_SECOND_LOOK
	:: d_step { pc == LOCKED -> pc = GRANTS }
#else
	:: d_step { pc == LOCKED && !REQUIRED -> pc = GRANTS }
#endif
#endif
	:: d_step { pc == GRANTS -> lead(L - age) }
	/* fails, or is ended */
	:: d_step { pc != IDLE -> stop() }
	od
}

/* The detached holder's term ends on P, by its own call or by others'. */
proctype End()
{
	d_step {
		ended == 0 && written < RECORDS ->
		written++;
		ended = written;
		left = 0
	}
}

/* A transaction that is fenced by the term that P's lease is for */
proctype Fenced()
{
	do
	:: d_step {
			fence == IDLE && !acked && left > 0 && written < RECORDS ->
			written++;
			fenced = written;
			fence = WAITING
		}
	:: d_step {
			fence == WAITING && (!REQUIRED || confirmed >= fenced) ->
			acked = REQUIRED;		/* else nothing is promised */
			assert(promoted == NOBODY || !acked ||
				   received[promoted] >= fenced || no_lost_fenced_write);
			fence = IDLE
		}
	:: d_step { fence == WAITING -> fence = IDLE }
	/* It is forgotten, so that there may be another one. */
	:: d_step { fence == IDLE && acked -> acked = false; fenced = 0 }
	od
}

/*** standbys ***/

proctype Standby(byte s)
{
	do
	:: d_step {
			linked[s] && promoted != s && received[s] < written ->
			received[s]++
		}
	/* Its answer reaches P, also while or after it is promoted. */
	:: d_step { linked[s] && POSITION > confirmed -> confirmed = POSITION }
	:: d_step { linked[s] -> linked[s] = false }
	:: d_step { !linked[s] && !cut[s] && promoted != s -> linked[s] = true }
	od
}

/*** the failover manager ***/

#define OTHER(s)	(1 - (s))

/* Could P still have enough standbys, without this one? */
#define ENOUGH_WITHOUT(s) \
	(!cut[OTHER(s)] && \
	 (names == NAMES_ANY || names == NAMES_FIRST || \
	  (names == NAMES_A && (s) == B) || (names == NAMES_B && (s) == A)))

#ifdef NO_CUT
#define IS_CUT(s)	1
#else
#define IS_CUT(s)	(!ENOUGH_WITHOUT(s))
#endif
#ifdef NO_ADVANCED
#define IS_ADVANCED(s)	1
#else
#define IS_ADVANCED(s)	(received[s] >= received[OTHER(s)])
#endif
#if NAMES == NAMES_NONE && !defined(NO_LEASE_LATER)
#define IS_SETTLED	(names != NAMES_NONE && settled == L)
#else
#define IS_SETTLED	(names != NAMES_NONE)
#endif

inline promote(s)
{
	d_step {
		promoted == NOBODY && IS_CUT(s) && IS_ADVANCED(s) && IS_SETTLED ->
		promoted = s;
		grace = L;
		assert(!acked || received[s] >= fenced || no_lost_fenced_write)
	}
}

proctype Manager()
{
	do
	:: d_step {
			promoted == NOBODY && !cut[A] && !cut[B] ->
			cut[A] = true;
			linked[A] = false
		}
	:: d_step {
			promoted == NOBODY && !cut[A] && !cut[B] ->
			cut[B] = true;
			linked[B] = false
		}
	:: promote(A)
	:: promote(B)
#if CHANGED != NAMES
	:: d_step { promoted == NOBODY && names == NAMES -> names = CHANGED }
#endif
	od
}

/* On the promoted server, once its grace is over */
proctype Election()
{
	d_step {
		promoted != NOBODY && grace == 0 ->
		elected = true;
		assert(!TWO_LEADERS || mutual_exclusion)
	}
}

/* The detached holder goes on there, if its term is not over for that server. */
proctype Holder()
{
	d_step {
		promoted != NOBODY && grace > 0 &&
		(ended == 0 || received[promoted] < ended) ->
		continued = true;
		assert(!TWO_LEADERS || mutual_exclusion)
	}
}

inline down(x)
{
	if
	:: x > 0 -> x--
	:: else
	fi
}

proctype Clock()
{
	do
	:: d_step {
			down(left);
			down(grace);
			if
			:: pc == PROVING && age >= PROOF -> stop()
			:: pc != IDLE && pc != PROVING && age < L -> age++
			:: pc == PROVING && age < PROOF -> age++
			:: else
			fi
#if NAMES == NAMES_NONE
			;
			if
			:: names != NAMES_NONE && settled < L -> settled++
			:: else
			fi
#endif
		}
	od
}

init
{
	atomic {
		run Agent();
		run Fenced();
		run Standby(A);
		run Standby(B);
		run Manager();
		run Election();
		run End();
#ifndef SESSION
		run Holder();
#endif
		run Clock()
	}
}
