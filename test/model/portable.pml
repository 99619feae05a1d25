/*
 * The portable edition (sql/portable.sql): one election, whose lease is a row that
 * calls lock; two candidates, which believe what they are told by clocks of their
 * own; fenced transactions; and a server whose wall clock is set.  With FAILOVER, a
 * synchronous standby is promoted.
 *
 *	L		a lease, in ticks; L_NEW: leases that are granted after a failover
 *	D		takeover_delay
 *	LEAP	by how much the clock leaps ahead, in all; BACK: by how much it is set back
 *	RESTARTS, RESTART_LEAP	of the server; by how much the clock leaps meanwhile
 *	TERMS	that are granted, on each server
 *	NO_...	a rule that is left out: see README.md
 *
 * All times of a row are by the wall clock, so that they are kept as what is left of
 * them: a tick takes one from each, and so does a leap.  What a candidate believes
 * loses one with a tick only.
 */
#ifndef L
#define L			3
#endif
#ifndef L_NEW
#define L_NEW		L
#endif
#ifndef D
#define D			1
#endif
#ifndef LEAP
#define LEAP		D
#endif
#ifndef BACK
#define BACK		0
#endif
#ifndef RESTARTS
#define RESTARTS	0
#endif
#ifndef RESTART_LEAP
#define RESTART_LEAP	0
#endif
#ifndef TERMS
#define TERMS		3
#endif

#define NOBODY		0
#define A			0
#define B			1
#define EPOCH		20			/* terms on B begin above it */

/* always 0: for the messages of assertions */
bool mutual_exclusion;			/* G1 */
bool unique_terms;				/* G5 */
bool fenced_by_the_present_term;	/* G8 */

typedef Row {
	byte holder;
	byte term;
	short left;					/* until its deadline; -D: and the delay is over */
	byte dur;					/* its length */
	bit stale;					/* another server has granted it */
	short hold;					/* until others may follow, whatever else is so */
	byte key;					/* changes of its holder */
};

Row row[2];						/* as committed */
Row next[2];					/* as the call writes it that has the lock */
bit locked[2];					/* by who changes it */
bit for_update[2];				/* ... the holder: fences wait for that */
byte fences[2];					/* that have locked it */
short grace[2];					/* nobody new is elected */
bit promoted;
byte leapt, set_back, restarts;
byte granted[2];				/* terms on each server */
byte owner[32];					/* of each term */

/* Candidates: what each believes, and the call that it has sent */
#define IDLE		0
#define LOOKED		1
#define DECIDED		2
#define ACQUIRE		1
#define RENEW		2
#define RELEASE		3
typedef Candidate {
	byte term;
	short told;					/* for so long it believes that it leads */
	byte pc;
	byte op;
	bit at;						/* the server */
	byte age;					/* since the call was sent */
	bit seen;					/* might it lead, before it had the lock? */
	short answer;				/* what it will be told, counted from then */
};
Candidate c[3];					/* 1 and 2 */

#ifdef SESSION					/* 1 is a session, and 2 may test its key */
#ifdef NO_KEY_TWICE
byte keys = 1;
#else
byte keys = 2;
#endif
#define DEAD(s)		(row[s].holder == 1 && keys == 0)
#else
#define DEAD(s)		0
#endif

#define LED(s)		(row[s].holder != NOBODY && row[s].left > 0 && !row[s].stale && !DEAD(s))
#define SERVES(s)	(s == A || promoted)
#ifdef NO_GRACE
#define GRACE(s)	0
#define WAITED(s)	1
#else
#define GRACE(s)	(grace[s] > 0)
#define WAITED(s)	(grace[s] <= -D)
#endif
#ifdef NO_DELAY
#define OVER(s)		(row[s].left <= 0)
#else
#define OVER(s)		(row[s].left <= -D)
#endif
#ifdef NO_HOLD
#define HELD(s)		0
#else
#define HELD(s)		(row[s].hold > 0)
#endif
/* may_lead(): a stale row is waited for until the grace and the delay are over */
#define MAY_LEAD(s)	(!GRACE(s) && !HELD(s) && \
	(row[s].holder == NOBODY || (row[s].stale && WAITED(s)) || \
	 (!row[s].stale && (DEAD(s) || OVER(s)))))
#define LENGTH(s)	(s == A -> L : L_NEW)
#define MIN(x, y)	(x < y -> x : y)
#define MAX(x, y)	(x > y -> x : y)

inline copy(to, from)
{
	to.holder = from.holder; to.term = from.term; to.left = from.left; to.dur = from.dur;
	to.stale = from.stale; to.hold = from.hold; to.key = from.key
}

inline unlock(i, s)
{
	locked[s] = 0; for_update[s] = 0;
	c[i].pc = IDLE; c[i].op = 0; c[i].age = 0; c[i].seen = 0; c[i].answer = 0
}

inline grant(i, s)
{
	if
	:: s == B && row[s].term < EPOCH ->
#ifdef NO_EPOCH
		next[s].term = row[s].term + 1
#else
		next[s].term = EPOCH + 1
#endif
	:: else -> next[s].term = row[s].term + 1
	fi;
	next[s].holder = i; next[s].left = LENGTH(s); next[s].dur = LENGTH(s);
	next[s].stale = 0; next[s].hold = 0; next[s].key = row[s].key + 1
}

/* Sent, and what is seen without the lock.  age counts from here: the client's clock. */
inline send(i, s, what, sees)
{
	c[i].op = what; c[i].at = s; c[i].age = 0; c[i].pc = LOOKED; c[i].seen = sees
}

#ifdef NO_SECOND_LOOK
#define DECIDES(i, s)	c[i].seen
#else
#define DECIDES(i, s)	MAY_LEAD(s)
#endif
#ifdef NO_SENT
#define SINCE_SENT(i)	0
#else
#define SINCE_SENT(i)	c[i].age
#endif
#ifdef NO_CAP
#define CAPPED(s)		next[s].left
#else
#define CAPPED(s)		MIN(next[s].left, next[s].dur)
#endif

#define HOLDS(i, s)		(row[s].term == c[i].term && row[s].holder == i)

/* Under the lock: the clock is read, and everything is looked at again. */
inline decide(i, s)
{
	locked[s] = 1;
	copy(next[s], row[s]);
	if
	:: c[i].op == ACQUIRE && DECIDES(i, s) && granted[s] < TERMS ->
		for_update[s] = 1; grant(i, s); c[i].answer = next[s].left; c[i].pc = DECIDED
	:: c[i].op == ACQUIRE && LED(s) && row[s].left > row[s].dur && !(DECIDES(i, s)) ->
		next[s].left = row[s].dur; c[i].pc = DECIDED; c[i].answer = 0	/* it was set back */
	:: c[i].op == RENEW && HOLDS(i, s) && !row[s].stale && row[s].left > 0 ->
#ifdef NO_CAP
		next[s].left = MAX(LENGTH(s), row[s].left);
#else
		next[s].left = MAX(LENGTH(s), MIN(row[s].left, row[s].dur));
#endif
		next[s].dur = MIN(next[s].left, L);
#ifdef LONGER
		c[i].answer = next[s].left + 1;
#else
		c[i].answer = CAPPED(s);
#endif
		c[i].pc = DECIDED
	:: c[i].op == RENEW && HOLDS(i, s) && row[s].stale && grace[s] > 0 && granted[s] < TERMS ->
		for_update[s] = 1; grant(i, s);
#ifndef NO_HOLD
		next[s].left = MAX(row[s].dur, L_NEW); next[s].dur = next[s].left; next[s].hold = grace[s] + D;
#endif
		c[i].answer = next[s].left; c[i].pc = DECIDED
	:: c[i].op == RELEASE && HOLDS(i, s) && !row[s].stale ->
		for_update[s] = 1; next[s].holder = NOBODY; next[s].left = 0; next[s].key = row[s].key + 1;
		c[i].pc = DECIDED
	:: else -> c[i].told = (c[i].op == RENEW -> 0 : c[i].told); unlock(i, s)
	fi
}

inline hear(i, s)
{
	if
	:: c[i].answer > SINCE_SENT(i) && next[s].holder == i && c[i].op != RELEASE ->
		c[i].told = c[i].answer - SINCE_SENT(i); c[i].term = next[s].term
	:: else
	fi
}

inline note_grant(i, s)
{
	if
	:: next[s].term != row[s].term ->
#ifdef NO_DURABLE
		assert(owner[next[s].term] == NOBODY || owner[next[s].term] == i || unique_terms);
#else
		assert(owner[next[s].term] == NOBODY || unique_terms);
#endif
		owner[next[s].term] = next[s].holder;
		granted[s]++
	:: else
	fi
}

/*
 * Commit, and the answer.  What A commits waits for the standby, and after a
 * promotion for ever.  (ASYNC: for nobody; the standby has it, or has not.)
 */
inline commit(i, s)
{
	note_grant(i, s);
	copy(row[s], next[s]);
	if
	:: s == A && !promoted -> copy(row[B], next[s])
#ifdef ASYNC
	:: s == A
#endif
	:: else
	fi;
	hear(i, s);
	unlock(i, s)
}

#ifdef ASYNC
#define MAY_COMMIT(s)	1
#else
#define MAY_COMMIT(s)	(s == B || !promoted)
#endif
#define FREE(i, s)	(!locked[s] && (c[i].op == RENEW && !row[s].stale || fences[s] == 0))

proctype Cand(byte i)
{
	bit s;
	do
	:: d_step { c[i].pc == IDLE && c[i].told <= 0 && MAY_LEAD(A) -> send(i, A, ACQUIRE, 1) }
	:: d_step { c[i].pc == IDLE && c[i].told <= 0 && LED(A) && row[A].left > row[A].dur -> send(i, A, ACQUIRE, 0) }
	:: d_step { c[i].pc == IDLE && c[i].told > 0 -> send(i, A, RENEW, 0) }
	:: d_step { c[i].pc == IDLE && c[i].told > 0 -> c[i].told = 0; send(i, A, RELEASE, 0) }
#ifdef FAILOVER
	:: d_step { c[i].pc == IDLE && promoted && c[i].told <= 0 && MAY_LEAD(B) -> send(i, B, ACQUIRE, 1) }
	:: d_step { c[i].pc == IDLE && promoted && c[i].told > 0 -> send(i, B, RENEW, 0) }
	:: d_step { c[i].pc == IDLE && promoted && c[i].told > 0 && row[B].term == c[i].term -> c[i].told = 0; send(i, B, RELEASE, 0) }
#endif
	:: d_step { c[i].pc == LOOKED && c[i].at == A && FREE(i, A) -> decide(i, A) }
	:: d_step { c[i].pc == LOOKED && c[i].at == B && FREE(i, B) -> decide(i, B) }
	:: d_step { c[i].pc == DECIDED && c[i].at == A && MAY_COMMIT(A) -> commit(i, A) }
	:: d_step { c[i].pc == DECIDED && c[i].at == B -> commit(i, B) }
#ifdef NO_DURABLE
	/* told, and not on disk yet */
	:: d_step { c[i].pc == DECIDED && c[i].op == ACQUIRE && c[i].answer > c[i].age && c[i].told <= 0 ->
			note_grant(i, A); c[i].told = c[i].answer - c[i].age; c[i].term = next[A].term }
#endif
	/* busy, cancelled, or its connection lost: nothing has happened */
	:: d_step { c[i].pc == LOOKED -> c[i].pc = IDLE; c[i].op = 0; c[i].age = 0; c[i].seen = 0 }
	:: d_step { c[i].pc == DECIDED && MAY_COMMIT(c[i].at) -> s = c[i].at; unlock(i, s); s = 0 }
	od
}

/* --- a fenced transaction, in the term of which the client has heard */

#ifdef FENCE
byte f_pc;						/* IDLE, LOOKED: it has a snapshot, DECIDED: it has passed */
byte f_term;
byte f_key;						/* of its snapshot */
bit f_old;						/* REPEATABLE READ: it goes by that */

inline fence_over()
{
	f_pc = IDLE; f_term = 0; f_key = 0; f_old = 0
}

proctype Fence()
{
	do
	:: d_step { f_pc == IDLE && LED(A) -> f_term = row[A].term; f_key = row[A].key; f_pc = LOOKED }
	:: d_step { f_pc == LOOKED && !f_old -> f_old = 1 }
	/* FOR KEY SHARE waits for who changes the holder, and not for a renewal. */
	:: d_step { f_pc == LOOKED && !for_update[A] ->
			if
#ifdef NO_MARK					/* it locks the version that it sees, and finds its leader there */
			:: f_old -> f_pc = DECIDED
#else
			:: f_old && row[A].key != f_key -> fence_over()		/* 40001 */
#endif
#ifdef NO_LOOK_AFTER_LOCK
			:: !f_old -> f_pc = DECIDED
#endif
			:: else ->
				if
				:: row[A].term == f_term && LED(A) -> f_pc = DECIDED
				:: else -> fence_over()							/* LE001 */
				fi
			fi;
#ifndef NO_FENCE_LOCK
			if
			:: f_pc == DECIDED -> fences[A]++
			:: else
			fi
#endif
		}
	:: d_step { f_pc == DECIDED ->
			assert((row[A].term == f_term && row[A].holder != NOBODY) || fenced_by_the_present_term);
#ifndef NO_FENCE_LOCK
			fences[A]--;
#endif
			fence_over()
		}
	od
}
#endif

/* --- the session's look whether it has its key, and that of others */

#ifdef SESSION
proctype Looks()
{
	do
	:: keys > 0 ->
		d_step { keys > 0 -> keys-- };		/* pg_advisory_unlock() */
		d_step { keys++ }					/* pg_try_advisory_lock() */
	od
}
#endif

/* --- the world */

inline pass(x) { x = (x > -D -> x - 1 : x) }
inline down(x) { x = (x > 0 -> x - 1 : x) }
inline wall(s)
{
	pass(row[s].left); pass(next[s].left); down(row[s].hold); down(next[s].hold); pass(grace[s])
}

proctype World()
{
	do
	:: d_step {
			wall(A); wall(B);
			down(c[1].told); down(c[2].told);
			c[1].age = (c[1].pc != IDLE && c[1].age < L + 1 -> c[1].age + 1 : c[1].age);
			c[2].age = (c[2].pc != IDLE && c[2].age < L + 1 -> c[2].age + 1 : c[2].age)
		}
	/* each server has a clock of its own */
	:: d_step { leapt < LEAP -> leapt++; wall(A) }
#ifdef FAILOVER
	:: d_step { leapt < LEAP && promoted -> leapt++; wall(B) }
#endif
	:: d_step { set_back < BACK -> set_back++;
			row[A].left = (row[A].holder != NOBODY -> row[A].left + 1 : row[A].left);
			next[A].left++; grace[A] = (grace[A] > -D -> grace[A] + 1 : grace[A]) }
	/* Calls that have not committed did not happen, and the clock may be another one. */
	:: d_step { restarts < RESTARTS && !promoted ->
			restarts++;
			if
			:: c[1].pc != IDLE -> unlock(1, A)
			:: else
			fi;
			if
			:: c[2].pc != IDLE -> unlock(2, A)
			:: else
			fi;
#ifdef FENCE
			fence_over(); fences[A] = 0;
#endif
			row[A].left = MAX(row[A].left - RESTART_LEAP, -D);
#ifndef NO_RESTART_GRACE
			grace[A] = L;
#endif
			skip
		}
#ifdef FAILOVER
	:: d_step { !promoted ->
			promoted = 1;
			row[B].stale = 1;
			grace[B] = MAX(row[B].dur, L_NEW)
		}
#endif
	od
}

#ifdef ASYNC
#define TWO_LEADERS		0
#else
#define OTHER(s, i)		(LED(s) && row[s].holder != i)
#define TWO_LEADERS \
	((c[1].told > 0 && c[2].told > 0) || \
	 (c[1].told > 0 && (OTHER(A, 1) || (promoted && OTHER(B, 1)))) || \
	 (c[2].told > 0 && (OTHER(A, 2) || (promoted && OTHER(B, 2)))) || \
	 (promoted && LED(A) && LED(B) && row[A].holder != row[B].holder))
#endif

proctype Monitor()
{
	do
#ifdef ANY_LEAP
	:: 0							/* the clock leaps as it likes: only fences are promised */
#else
	:: atomic { TWO_LEADERS -> assert(mutual_exclusion) }
#endif
	od
}

init
{
	atomic {
		row[A].left = -D; row[B].left = -D; next[A].left = -D; next[B].left = -D;
		grace[A] = -D; grace[B] = -D;
		run Cand(1);
		run Cand(2);
#ifdef FENCE
		run Fence();
#endif
#ifdef SESSION
		run Looks();
#endif
		run World();
		run Monitor()
	}
}
