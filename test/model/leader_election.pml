/*
 * leader_election.pml
 *		The protocol of one election, on two servers, for model checking.
 *
 * README.md, beside this file, says what is modelled and how, which function
 * of src each action stands for, and how to read a counterexample.  `run`
 * checks all of it.
 *
 * What is chosen with -D:
 *
 *	SYNC		B is A's synchronous standby, and may be promoted
 *	ASYNC		B is A's asynchronous standby, and may be promoted
 *				neither: there is only A
 *	FENCE		somebody commits fenced transactions
 *	YIELD		somebody asks leaders to yield
 *	CAMPAIGN	session candidates elect in their own calls, too, and not
 *				only the worker and detached candidates
 *	LIVE		faults end some day, and a process that has something to do then does
 *				it before time goes on
 *	NO_...		one rule less
 *
 * and bounds: L (the lease, in ticks), TERMS_A, TERMS_B (terms that a server
 * can grant), CONNECTS (sessions of a candidate), CRASHES, QUEUE (records of
 * WAL that are on their way).
 */

#if defined(SYNC) || defined(ASYNC)
#define FAILOVER
#endif

#ifndef L
#define L			2
#endif
#ifndef TERMS_A
#define TERMS_A		3
#endif
#ifndef TERMS_B
#define TERMS_B		2
#endif
#ifndef CONNECTS
#define CONNECTS	2
#endif
#ifndef CRASHES
#define CRASHES		1
#endif
#ifndef QUEUE
#define QUEUE		2
#endif

/* Servers; also where a session is */
#define A			0
#define B			1
#define NOWHERE		2

/*
 * Candidates: two that are sessions, and one that is detached.  In a record of
 * WAL, FENCED stands for what a fenced transaction wrote.
 */
#define NOBODY		0
#define S1			1
#define S2			2
#define D			3
#define FENCED		4

/*
 * Agents: processes of the servers that look after the lease row.  A session's
 * own is number S1 or S2.
 */
#define WORKER_A	0
#define CALL_A		3			/* a call of the detached candidate, on A ... */
#define CALL_B		4			/* ... and on B */
#define WORKER_B	5
#ifdef FAILOVER
#define AGENTS		6
#else
#define AGENTS		4
#endif

#define IS_CALL(i)	((i) == CALL_A || (i) == CALL_B)
#define IS_SESSION(i)	((i) == S1 || (i) == S2)
#define IS_WORKER(i)	((i) == WORKER_A || (i) == WORKER_B)

/* What an agent does, and how far it is */
#define SETTLE		1
#define RENEW		2
#define CONTINUE	3
#define UNHEARD		4			/* the same, but the answer will be lost */
#define GIVE_UP		5
#define ASK			6

#define IDLE		0
#define PROVING		1			/* waits for the standby to confirm a probe */
#define PROVEN		2			/* t0 counts; waits for locks */
#define DECIDED		3			/* has the locks, and knows what to write */
#define COMMITTING	4			/* the record is in the WAL, but not visible */

#define NO_TERM		15

#define PROOF		((L + 2) / 3)	/* how long a proof may take, in ticks */

typedef Row {
	unsigned term : 4;
	unsigned prev : 4;			/* previous_term */
	unsigned holder : 2;
	unsigned sid : 2;			/* 0: detached */
	unsigned left : 2;			/* ticks until the deadline */
	bit own;					/* granted by this server's incarnation */
	bit yielding
};

typedef Agent {
	unsigned pc : 3;
	unsigned op : 3;
	unsigned age : 2;			/* ticks since t0 */
	unsigned seen : 4;			/* a term; what for depends on op */
	unsigned ahead : 2			/* records of WAL before the probe */
};

typedef Record {
	unsigned term : 4;
	unsigned holder : 3;
	unsigned sid : 2
};

Row row[2];						/* as everybody sees it */
Row next[2];					/* as the holder of the row's lock writes it */
bit row_lock[2];
bit election_lock[2];			/* in Exclusive mode */
bit shared[2];					/* in Share mode, by the fenced transaction */
Agent agent[AGENTS];

/* Sessions: index is the candidate */
byte where[3] = NOWHERE;
byte connects[3];				/* also the session_id of the last session */
byte view[3];					/* the cached deadline: ticks until then */
bit stepped_down[3];
#ifdef NO_R3
bit trusts[3];					/* the view says so, whatever the time */
#endif

/* The detached candidate: what it was told */
byte known_term;
byte told[2];					/* by which server: ticks until the deadline */

#ifdef FAILOVER
Record wal[QUEUE];				/* what B has not received yet */
byte wal_length;
bit promoted;
bit known;						/* B's incarnation has its row in epoch */
byte grace;						/* ticks */
#endif
byte crashes;

#ifdef FENCE
byte fence_pc;					/* as an agent's; PROVEN: marked */
byte fence_at;
byte fence_term;
bit fence_acked;				/* ghosts: the client was told that it is */
bit fence_pending;				/* committed; it is on its way to B */
#endif

#ifdef NO_DURABLE
Row flushed;					/* what a crash leaves */
bit not_flushed;
#endif

/* Ghosts: the terms that were granted */
short granted;				/* a bit for each */
byte highest[2];

byte w;					/* within a step */
byte k;
byte t;

/* For assertions, so that they say what is broken */
bool mutual_exclusion;				/* G1 */
bool unique_terms;					/* G5 */
bool ordered_terms;					/* G5 */
bool fenced_by_the_present_term;	/* G8 */
bool no_lost_fenced_write;			/* G6 */

#ifdef SYNC
#define WAITS(s)	((s) == A)
#else
#define WAITS(s)	0
#endif
#if defined(SYNC) && !defined(NO_R6)
#define REQUIRED(s)	((s) == A)
#else
#define REQUIRED(s)	0
#endif

#ifdef FAILOVER
#define PRIMARY(s)		((s) == A || ((s) == B && promoted))
#define GRACE_OVER(s)	((s) == A || (known && grace == 0))
#define REACHABLE		(!promoted)
#define ROOM			(promoted || wal_length < QUEUE)
#else
#define PRIMARY(s)		((s) == A)
#define GRACE_OVER(s)	1
#define REACHABLE		1
#define ROOM			1
#endif

#if defined(FAILOVER) && !defined(NO_EPOCH)
#define FLOOR(s)		((s) == A -> 0 : TERMS_A)
#else
#define FLOOR(s)		0
#endif
#define LAST_TERM(s)	((s) == A -> TERMS_A : TERMS_A + TERMS_B)
#define NEXT_TERM(s)	((row[s].term > FLOOR(s) -> row[s].term : FLOOR(s)) + 1)

/* le_lease_state(): the rest is expired or orphaned */
#define VACANT(s)		(row[s].holder == NOBODY)
#define FOREIGN(s)		(!VACANT(s) && !row[s].own)
#define LASTS(s)		(!VACANT(s) && row[s].own && row[s].left > 0)
#define ALIVE(s) \
	(row[s].sid == 0 || (where[row[s].holder] == (s) && \
						 connects[row[s].holder] == row[s].sid))
#define LED(s)			(LASTS(s) && ALIVE(s))

/* le_lease_is_term() */
#define IS_TERM(s) \
	(row[s].holder == D && known_term != 0 && \
	 (row[s].term == known_term || row[s].prev == known_term))

#define HOLDS(i, s) \
	(IS_CALL(i) -> IS_TERM(s) : \
	 (row[s].holder == (i) && row[s].sid == connects[i]))

/*
 * Who leads, as it can be asked: is_leader(election) in its own session, what a
 * detached candidate was told, is_leader(election, term) on any connection.
 */
#ifdef NO_R3
#define BELIEVES(c, s)	(where[c] == (s) && trusts[c])
#else
#define BELIEVES(c, s)	(where[c] == (s) && view[c] > 0)
#endif
#define SHOWN(c, s)		(PRIMARY(s) && LED(s) && row[s].holder == (c))
#define LEADS_ON(c, s)	(BELIEVES(c, s) || SHOWN(c, s))
#define D_LEADS_ON(s)	(told[s] > 0 || SHOWN(D, s))
#define LEADS(c)		(LEADS_ON(c, A) || LEADS_ON(c, B))
#define D_LEADS			(D_LEADS_ON(A) || D_LEADS_ON(B))

#define TWO(a, b, c)	(((a) && (b)) || ((a) && (c)) || ((b) && (c)))

#ifdef ASYNC
#define TWO_LEADERS \
	(TWO(LEADS_ON(S1, A), LEADS_ON(S2, A), D_LEADS_ON(A)) || \
	 TWO(LEADS_ON(S1, B), LEADS_ON(S2, B), D_LEADS_ON(B)))
#else
#define TWO_LEADERS		TWO(LEADS(S1), LEADS(S2), D_LEADS)
#endif

inline copy_row(to, from)
{
	to.term = from.term;
	to.prev = from.prev;
	to.holder = from.holder;
	to.sid = from.sid;
	to.left = from.left;
	to.own = from.own;
	to.yielding = from.yielding
}

inline clear_row(r)
{
	r.term = 0;
	r.prev = 0;
	r.holder = 0;
	r.sid = 0;
	r.left = 0;
	r.own = 0;
	r.yielding = 0
}

/* The agent's transaction is over. */
inline stop(i)
{
	agent[i].pc = IDLE;
	agent[i].op = 0;
	agent[i].age = 0;
	agent[i].seen = 0;
	agent[i].ahead = 0
}

inline unlock(s)
{
	row_lock[s] = 0;
	election_lock[s] = 0;
	clear_row(next[s])
}

/*
 * Sessions read their row at once, and believe it for as long as they may: that
 * covers those that read it later.
 */
inline look(c, s)
{
	if
	:: where[c] == s && !stepped_down[c] && row[s].holder == c &&
	   row[s].own && row[s].sid == connects[c] ->
		view[c] = (row[s].left > view[c] -> row[s].left : view[c]);
#ifdef NO_R3
		trusts[c] = 1
	:: where[c] == s && !(row[s].holder == c && row[s].sid == connects[c]) ->
		trusts[c] = 0			/* the news reaches it, at once */
#endif
	:: else
	fi
}

inline stop_session(c, s)
{
	stop(c);
	stepped_down[c] = 0;
	look(c, s)
}

/* le_proof_make(): what was seen before is in agent[i].seen already. */
inline probe(i)
{
#ifdef FAILOVER
	agent[i].ahead = wal_length;
#endif
	agent[i].pc = PROVING
}

/* A record is written; B will receive it, if nothing happens before. */
inline write_wal(s, term_, holder_, sid_)
{
#ifdef FAILOVER
	if
	:: s == A && !promoted ->
		wal[wal_length].term = term_;
		wal[wal_length].holder = holder_;
		wal[wal_length].sid = sid_;
		wal_length++
	:: else
	fi
#else
	skip
#endif
}

/* The new row is visible, and its caller is told. */
inline publish(i, s)
{
	copy_row(row[s], next[s]);
	unlock(s);
	if
	:: IS_CALL(i) && row[s].holder == D && agent[i].op != GIVE_UP &&
	   agent[i].op != UNHEARD ->
		told[s] = row[s].left;
		known_term = (row[s].term > known_term -> row[s].term : known_term)
	:: else
	fi;
	stop(i);
	if
	:: IS_SESSION(i) -> stepped_down[i] = 0
	:: else
	fi;
	look(S1, s);
	look(S2, s)
}

#ifdef LIVE
#ifndef SPARE_TERMS
#define SPARE_TERMS		3
#endif
bit stable;						/* no faults any more, and nobody gives up */
#define MAY_FAIL		(!stable)
#define MAY_CONNECT(c)	(CONNECTS + stable)
#define MAY_GRANT(s) \
	(NEXT_TERM(s) <= LAST_TERM(s) - (stable -> 0 : SPARE_TERMS))
#define MAY_SETTLE(i, s) \
	(!stable || \
	 (!IS_CALL(i) && (!VACANT(s) || where[S1] == (s) || where[S2] == (s))))
#define NOBODY_MAY_DO(i, s) \
	(!ELIGIBLE(S1, i, s) && !ELIGIBLE(S2, i, s) && !ELIGIBLE_D(i, s))
#else
#define MAY_FAIL		1
#define MAY_CONNECT(c)	((c) == S1 -> CONNECTS : 1)
#define MAY_GRANT(s)	(NEXT_TERM(s) <= LAST_TERM(s))
#define MAY_SETTLE(i, s)	1
#define NOBODY_MAY_DO(i, s)	1
#endif

/* The commit record is written.  Without a standby to wait for, that is all. */
inline write_record(i, s)
{
	t = next[s].term;
	if
	:: next[s].holder != NOBODY && t != row[s].term ->
		assert(!(granted & (1 << t)) || unique_terms);
		assert((t > highest[s] && (s == A || t > highest[A]) &&
				(s == B || highest[B] == 0 || t < highest[B])) ||
			   ordered_terms);
		granted = granted | (1 << t);
		highest[s] = t
	:: else
	fi;
	if							/* a renewal means nothing to B */
	:: t != row[s].term || next[s].holder != row[s].holder ->
		write_wal(s, t, next[s].holder, next[s].sid)
	:: else
	fi;
	t = 0;
	if
	:: WAITS(s) -> agent[i].pc = COMMITTING
	:: else -> publish(i, s)
	fi
#ifdef NO_DURABLE
	; not_flushed = 1
#endif
}

/* On B nothing comes between a decision and its commit (A is the example). */
inline at_once(i, s)
{
	if
	:: s == B && agent[i].pc == DECIDED -> write_record(i, s)
	:: else
	fi
}

/*** what is decided under the locks ***/

#define LOCKS_FREE(s) \
	(!election_lock[s] && !shared[s] && !row_lock[s] && ROOM)

/* Can somebody be elected by this agent now? */
#define CONFIRMED(i, s) \
	(!REQUIRED(s) || agent[i].op != GIVE_UP || agent[i].seen)
#ifdef NO_TWO_COMMITS
#define SECOND_COMMIT(s)	0
#else
#define SECOND_COMMIT(s)	(REQUIRED(s) && !VACANT(s) && row[s].sid == 0)
#endif
#define MAY_ELECT(i, s) \
	(GRACE_OVER(s) && MAY_GRANT(s) && CONFIRMED(i, s) && !SECOND_COMMIT(s))
#define ELIGIBLE(c, i, s) \
	(MAY_ELECT(i, s) && where[c] == (s) && \
	 !(agent[i].op == GIVE_UP && (i) == (c)))
#define ELIGIBLE_D(i, s) \
	(MAY_ELECT(i, s) && IS_CALL(i) && agent[i].op == SETTLE)

/* le_settle() */
inline decide(i, s)
{
	if
	/* goes_on() */
#ifdef NO_R2
	:: LED(s) && agent[i].op == GIVE_UP && !HOLDS(i, s) -> w = NO_TERM
#else
	:: LED(s) && !(agent[i].op == GIVE_UP && HOLDS(i, s)) -> w = NO_TERM
#endif
	:: FOREIGN(s) && !GRACE_OVER(s) -> w = NO_TERM
	/* is_proven(); nor can a vacant seat be given up */
	:: VACANT(s) && (agent[i].op == GIVE_UP || !GRACE_OVER(s) ||
					 (REQUIRED(s) && agent[i].seen != row[s].term)) ->
		w = NO_TERM
	:: !LED(s) && !VACANT(s) && !CONFIRMED(i, s) -> w = NO_TERM
	:: else ->
		/* decide(), whatever the strategy says */
		if
		:: ELIGIBLE(S1, i, s) -> w = S1
		:: ELIGIBLE(S2, i, s) -> w = S2
		:: ELIGIBLE_D(i, s) -> w = D
		:: NOBODY_MAY_DO(i, s) && !VACANT(s) -> w = NOBODY
		:: NOBODY_MAY_DO(i, s) && VACANT(s) -> w = NO_TERM
		fi
	fi;
	if
	:: w == NO_TERM ->
		if
		:: IS_SESSION(i) -> stop_session(i, s)
		:: else -> stop(i)
		fi
	:: else ->
		row_lock[s] = 1;
		election_lock[s] = 1;
		next[s].holder = w;
		next[s].own = 1;
		if
		:: w == NOBODY -> next[s].term = row[s].term
		:: else ->
			next[s].term = NEXT_TERM(s);
			next[s].sid = (w == D -> 0 : connects[w]);
			next[s].left = (REQUIRED(s) -> L - agent[i].age : L)
		fi;
		agent[i].age = 0;
		agent[i].seen = 0;
		agent[i].ahead = 0;
		agent[i].pc = DECIDED
	fi;
	w = 0;
	at_once(i, s)
}

/* le_lease_renew() */
inline extend(i, s)
{
	if
	:: !row[s].yielding && LASTS(s) &&
	   (IS_CALL(i) -> IS_TERM(s) :
		row[s].sid != 0 && row[s].term == agent[i].seen) ->
		row_lock[s] = 1;
		copy_row(next[s], row[s]);
		next[s].left = (row[s].left > L - agent[i].age ->
						row[s].left : L - agent[i].age);
		next[s].prev = (IS_CALL(i) && row[s].prev == known_term ->
						row[s].prev : 0);
		agent[i].age = 0;
		agent[i].seen = 0;
		agent[i].pc = DECIDED
	:: else -> stop(i)
	fi;
	at_once(i, s)
}

/*** what agents do: where there is nothing to be proven, at once ***/

/* Nobody leads: the process that finds that elects a candidate. */
inline begin_settle(i, s)
{
	atomic {
		agent[i].pc == IDLE && PRIMARY(s) && GRACE_OVER(s) &&
#ifndef NO_R2
		!LED(s) &&
#endif
		MAY_SETTLE(i, s) && (REQUIRED(s) -> REACHABLE : LOCKS_FREE(s)) ->
		agent[i].op = SETTLE;
		if
		:: REQUIRED(s) ->
			agent[i].seen = (VACANT(s) -> row[s].term : NO_TERM);
			probe(i)
		:: else -> decide(i, s)
		fi
	}
}

/* The worker renews, or the session itself. */
inline begin_renew(i, s)
{
	d_step {
		agent[i].pc == IDLE && PRIMARY(s) && LED(s) && row[s].sid != 0 &&
		(IS_WORKER(i) || HOLDS(i, s)) && !row[s].yielding && row[s].left < L &&
		(REQUIRED(s) -> REACHABLE : !row_lock[s] && ROOM) ->
		agent[i].op = RENEW;
		agent[i].seen = row[s].term;
		if
		:: REQUIRED(s) -> probe(i)
		:: else -> extend(i, s)
		fi
	}
}

/* renew(election, term) */
inline begin_renew_term(i, s)
{
	atomic {
		agent[i].pc == IDLE && PRIMARY(s) && IS_TERM(s) &&
		(FOREIGN(s) || (LED(s) && !row[s].yielding && row[s].left < L)) &&
		(REQUIRED(s) -> REACHABLE : !row_lock[s] && ROOM) ->
		agent[i].op = RENEW;
		if
		:: FOREIGN(s) ->
			if
			:: agent[i].op = CONTINUE
			:: agent[i].op = UNHEARD
			fi;
			agent[i].pc = PROVEN
		:: else ->
			if
			:: REQUIRED(s) -> probe(i)
			:: else -> extend(i, s)
			fi
		fi
	}
}

/* resign, leave, transfer: the session's own view ends first. */
inline begin_resign(c, s)
{
	atomic {
		agent[c].pc == IDLE && MAY_FAIL && PRIMARY(s) &&
		(HOLDS(c, s) || (REQUIRED(s) && next[s].holder == c &&
						 next[s].sid == connects[c])) &&
		(REQUIRED(s) -> !HOLDS(c, s) || REACHABLE : LOCKS_FREE(s)) ->
#ifndef NO_STEP_DOWN
		stepped_down[c] = 1;
		view[c] = 0;
#ifdef NO_R3
		trusts[c] = 0;
#endif
#endif
		agent[c].op = GIVE_UP;
		if
		:: !REQUIRED(s) -> decide(c, s)
		:: else ->
			if
			:: HOLDS(c, s) ->
				agent[c].seen = 1;		/* it is to be proven */
				probe(c)
			:: else -> agent[c].pc = PROVEN
			fi
		fi
	}
}

/* release(election, term): from now on its client does not lead. */
inline begin_release(i, s)
{
	atomic {
		agent[i].pc == IDLE && MAY_FAIL && PRIMARY(s) && IS_TERM(s) &&
		GRACE_OVER(s) && (REQUIRED(s) -> REACHABLE : LOCKS_FREE(s)) ->
		told[A] = 0;
		told[B] = 0;
		agent[i].op = GIVE_UP;
		if
		:: REQUIRED(s) ->
			agent[i].seen = 1;
			probe(i)
		:: else -> decide(i, s)
		fi
	}
}

/* request_yield, or the strategy's: the row's lock will do. */
inline ask(i, s)
{
	d_step {
		agent[i].pc == IDLE && MAY_FAIL && PRIMARY(s) && LED(s) &&
		!row[s].yielding && !row_lock[s] && ROOM ->
		row_lock[s] = 1;
		copy_row(next[s], row[s]);
		next[s].yielding = 1;
		agent[i].op = ASK;
		agent[i].pc = DECIDED
	}
}

/* The standby has confirmed the probe. */
inline prove(i)
{
	d_step {
		agent[i].pc == PROVING && agent[i].ahead == 0 && REACHABLE ->
		agent[i].pc = PROVEN
	}
}

/* Under the election lock and the row's */
inline settle(i, s)
{
	atomic {
		agent[i].pc == PROVEN &&
		(agent[i].op == SETTLE || agent[i].op == GIVE_UP) && LOCKS_FREE(s) ->
		decide(i, s)
	}
}

/* Under the row's lock */
inline renew(i, s)
{
	d_step {
		agent[i].pc == PROVEN && agent[i].op == RENEW && !row_lock[s] && ROOM ->
		extend(i, s)
	}
}

/* le_renew_stale(): under the election lock and the row's */
inline continue(i, s)
{
	d_step {
		agent[i].pc == PROVEN &&
		(agent[i].op == CONTINUE || agent[i].op == UNHEARD) && LOCKS_FREE(s) ->
		if
		:: IS_TERM(s) && FOREIGN(s) && !GRACE_OVER(s) && known && MAY_GRANT(s) ->
			row_lock[s] = 1;
			election_lock[s] = 1;
			next[s].term = NEXT_TERM(s);
			next[s].prev = row[s].term;
			next[s].holder = D;
			next[s].left = L - agent[i].age;
			next[s].own = 1;
			agent[i].age = 0;
			agent[i].pc = DECIDED
		:: else -> stop(i)
		fi
	}
}

inline commit(i, s)
{
	d_step {
		agent[i].pc == DECIDED && ROOM ->
		write_record(i, s)
	}
}

/* The wait is over: the standby has confirmed it, or it was cut short. */
inline end_wait(i, s)
{
	d_step {
		agent[i].pc == COMMITTING ->
		publish(i, s)
	}
}

/* Not confirmed in time; or an error, a cancel, a terminate before the commit */
inline abort(i, s)
{
	d_step {
		(agent[i].pc == DECIDED && MAY_FAIL) ||
		((agent[i].pc == PROVING || agent[i].pc == PROVEN) &&
		 (MAY_FAIL || (s == A && !REACHABLE))) ->
		if
		:: agent[i].pc == DECIDED -> unlock(s)
		:: else
		fi;
		if
		:: IS_SESSION(i) -> stop_session(i, s)
		:: else -> stop(i)
		fi
	}
}

proctype Worker(byte i; byte s)
{
	do
#ifndef NO_WORKER
	:: begin_settle(i, s)
#endif
	:: begin_renew(i, s)
#ifdef YIELD
	:: ask(i, s)
#endif
	:: prove(i)
	:: settle(i, s)
	:: renew(i, s)
	:: commit(i, s)
	:: end_wait(i, s)
	:: abort(i, s)
	od
}

/* What happens in a session, and to it.  s_: where it is */
#define s_	where[c]
#define CONNECTED	(where[c] != NOWHERE)

proctype Session(byte c)
{
	do
	/* S1 is, by definition, the first that comes. */
	:: atomic {
			!CONNECTED && connects[c] < MAY_CONNECT(c) &&
			(c == S1 || connects[S1] > 0) ->
			connects[c]++;
			if
			:: MAY_FAIL || REACHABLE -> where[c] = A
#ifdef FAILOVER
			:: promoted -> where[c] = B
#endif
			fi
		}
#ifdef NO_COMMITTED
	/* is_leader() reads what this transaction has written, but not committed */
	:: d_step {
			agent[c].pc == DECIDED && agent[c].op == RENEW &&
			next[s_].left > view[c] ->
			view[c] = next[s_].left
		}
#endif
	:: begin_resign(c, s_)
#ifdef CAMPAIGN
	:: begin_settle(c, s_)
	:: begin_renew(c, s_)
#endif
	:: prove(c)
	:: settle(c, s_)
	:: renew(c, s_)
	:: commit(c, s_)
	:: end_wait(c, s_)
	:: abort(c, s_)

	/* It ends, for any reason; a wait for the standby is cut short first. */
	:: d_step {
			CONNECTED && agent[c].pc != COMMITTING &&
			(MAY_FAIL || (!REACHABLE && where[c] == A)) ->
			if
			:: agent[c].pc == DECIDED -> unlock(s_)
			:: else
			fi;
			stop_session(c, s_);
			where[c] = NOWHERE;
			view[c] = 0;
#ifdef NO_R3
			trusts[c] = 0
#endif
		}
	od
}

/* The detached candidate, which can call both servers, and not wait */
proctype Call(byte i; byte s)
{
	do
	:: begin_settle(i, s)		/* acquire() */
	:: begin_renew_term(i, s)
	:: begin_release(i, s)
	:: prove(i)
	:: settle(i, s)
	:: renew(i, s)
#ifdef FAILOVER
	:: continue(i, s)
#endif
	:: commit(i, s)
	:: end_wait(i, s)
	:: abort(i, s)
	od
}

#ifdef FENCE
/*
 * Transactions that are fenced by a term, on any connection; one at a time.
 */
inline fence_over()
{
	shared[fence_at] = 0;
	fence_pc = IDLE;
	fence_at = 0;
	fence_term = 0
}

inline mark(s)
{
	atomic {
		fence_pc == IDLE && !fence_pending && PRIMARY(s) && LED(s) ->
		fence_acked = 0;
		fence_at = s;
		fence_term = row[s].term;
		fence_pc = PROVEN
	}
}

#ifdef NO_SYNC_WAIT
#define IS_CONFIRMED	1
#elif defined(FAILOVER)
#define IS_CONFIRMED	(!fence_pending && REACHABLE)
#else
#define IS_CONFIRMED	1
#endif

#ifdef NO_FENCE_TERM
#define IS_FENCED_TERM	1
#else
#define IS_FENCED_TERM	(row[fence_at].term == fence_term)
#endif

proctype Fenced()
{
	do
	/* assert_leader(): after that, it may be paused for any time */
	:: mark(A)
#ifdef FAILOVER
	:: mark(B)
#endif
	/* still_leads(): under the election lock in Share mode */
	:: atomic {
			fence_pc == PROVEN && !election_lock[fence_at] ->
			if
			:: LASTS(fence_at) && IS_FENCED_TERM ->
				fence_pc = DECIDED;
#ifndef NO_FENCE_LOCK
				shared[fence_at] = 1
#endif
			:: else -> fence_over()	/* LE002 */
			fi
		}
	:: atomic {
			fence_pc == DECIDED && ROOM ->
			assert((highest[fence_at] == fence_term &&
					row[fence_at].holder != NOBODY) ||
				   fenced_by_the_present_term);
#ifdef FAILOVER
			fence_pending = (fence_at == A && !promoted);
#endif
			write_wal(fence_at, fence_term, FENCED, 0);
			fence_pc = COMMITTING
		}
	/* confirmed, and told so; or the wait was cut short, with a warning */
	:: atomic {
			fence_pc == COMMITTING &&
			(!WAITS(fence_at) || IS_CONFIRMED) ->
			fence_acked = 1;
			fence_over()
		}
	:: atomic { fence_pc == COMMITTING && WAITS(fence_at) -> fence_over() }
	:: atomic { fence_pc == PROVEN || fence_pc == DECIDED -> fence_over() }
	od
}
#endif

/*** the world ***/

inline forget_first()
{
	for (k : 1 .. QUEUE - 1) {
		wal[k - 1].term = wal[k].term;
		wal[k - 1].holder = wal[k].holder;
		wal[k - 1].sid = wal[k].sid
	}
	wal[QUEUE - 1].term = 0;
	wal[QUEUE - 1].holder = 0;
	wal[QUEUE - 1].sid = 0;
	wal_length--;
	k = 0
}

inline ahead_down(i)
{
	if
	:: agent[i].ahead > 0 -> agent[i].ahead--
	:: else
	fi
}

inline down(x)
{
	if
	:: x > 0 -> x--
	:: else
	fi
}

inline older(i)
{
	if
	:: agent[i].pc == PROVING && agent[i].age >= PROOF ->
		if
		:: IS_SESSION(i) -> stop_session(i, A)
		:: else -> stop(i)
		fi
	:: (agent[i].pc == PROVING || agent[i].pc == PROVEN) && agent[i].age < L ->
		agent[i].age++
	:: else
	fi
}

inline unproven(i)
{
	if
	:: agent[i].pc == PROVING ->
		if
		:: IS_SESSION(i) -> stop_session(i, A)
		:: else -> stop(i)
		fi
	:: else
	fi
}

#ifdef LIVE
/* In the end, nobody is slow: what is due is done before time goes on. */
#define IN_TIME(s) \
	(!PRIMARY(s) || !GRACE_OVER(s) || (REQUIRED(s) && !REACHABLE) || \
	 (LED(s) -> row[s].sid == 0 || row[s].left == L : \
	  where[S1] != (s) && where[S2] != (s)))
#define ALL_IDLE \
	(agent[0].pc == IDLE && agent[1].pc == IDLE && agent[2].pc == IDLE && \
	 agent[3].pc == IDLE && agent[AGENTS - 2].pc == IDLE && \
	 agent[AGENTS - 1].pc == IDLE)
#define MAY_TICK	(!stable || (ALL_IDLE && IN_TIME(A) && IN_TIME(B)))
#else
#define MAY_TICK	1
#endif

proctype Clock()
{
	do
#ifdef LIVE
	:: !MAY_TICK				/* it stands still; that is no end */
#endif
	:: d_step {
			MAY_TICK ->
			down(row[A].left);
			down(next[A].left);
			down(view[S1]);
			down(view[S2]);
			down(told[A]);
			older(WORKER_A);
			older(S1);
			older(S2);
			older(CALL_A);
#ifdef FAILOVER
			down(row[B].left);
			down(next[B].left);
			down(told[B]);
			down(grace);
			older(CALL_B);
			if					/* nobody will lead on A any more */
			:: promoted && REQUIRED(A) && row[A].left == 0 &&
			   !row_lock[A] && !shared[A] && agent[WORKER_A].pc == IDLE &&
			   agent[CALL_A].pc == IDLE &&
			   (where[S1] != A || agent[S1].pc == IDLE) &&
			   (where[S2] != A || agent[S2].pc == IDLE) ->
				clear_row(row[A]);
				row[A].own = 1
			:: else
			fi
#endif
		}
	od
}

#ifdef FAILOVER
/* WAL goes to B, in its order, until B is promoted. */
proctype Standby()
{
	do
	:: d_step {
			!promoted && wal_length > 0 ->
			if
			:: wal[0].holder != FENCED ->
				row[B].term = wal[0].term;
				row[B].holder = wal[0].holder;
				row[B].sid = wal[0].sid
			:: else ->
#ifdef FENCE
				fence_pending = 0
#endif
				skip
			fi;
			forget_first();
			ahead_down(WORKER_A);
			ahead_down(S1);
			ahead_down(S2);
			ahead_down(CALL_A)
		}
	:: d_step {
			!promoted && MAY_FAIL ->
			promoted = 1;
#ifdef FENCE
			assert(!(fence_acked && fence_pending) || no_lost_fenced_write);
			fence_pending = 0;
#endif
			do
			:: wal_length > 0 -> forget_first()
			:: else -> break
			od;
			unproven(WORKER_A);
			unproven(S1);
			unproven(S2);
			unproven(CALL_A);
			agent[WORKER_A].ahead = 0;
			agent[S1].ahead = 0;
			agent[S2].ahead = 0;
			agent[CALL_A].ahead = 0;
#ifdef NO_R5
			/* as if all that the row says were meant for this server */
			known = 1;
			row[B].own = 1;
			row[B].left = (row[B].sid != 0 -> L : 0)
#endif
		}
	/* le_epoch_write() */
	:: d_step {
			promoted && !known ->
			known = 1;
#ifndef NO_GRACE
			grace = L
#endif
		}
	od
}
#endif

inline end_agent(i, s)
{
	if
	:: agent[i].pc == COMMITTING -> copy_row(row[s], next[s])
	:: else
	fi;
	stop(i)
}

inline end_session(c, s)
{
	if
	:: where[c] == s ->
		end_agent(c, s);
		stepped_down[c] = 0;
		where[c] = NOWHERE;
		view[c] = 0
#ifdef NO_R3
		; trusts[c] = 0
#endif
	:: else
	fi
}

/* A crash of the server, which recovers what is in its WAL */
inline crash(s, worker, call)
{
	d_step {
		crashes < CRASHES && MAY_FAIL && PRIMARY(s) ->
		crashes++;
		end_agent(worker, s);
		end_agent(call, s);
		end_session(S1, s);
		end_session(S2, s);
		unlock(s);
#ifdef NO_DURABLE
		copy_row(row[s], flushed);
#endif
#ifdef FENCE
		if
		:: fence_pc != IDLE && fence_at == s -> fence_over()
		:: else
		fi
#endif
	}
}

proctype Crash()
{
	do
#ifdef NO_DURABLE
	:: d_step {
			not_flushed -> copy_row(flushed, row[A]); not_flushed = 0 }
#endif
	:: crash(A, WORKER_A, CALL_A)
#ifdef FAILOVER
	:: crash(B, WORKER_B, CALL_B)
#endif
	od
}

proctype Monitor()
{
	do
	:: atomic { TWO_LEADERS -> assert(mutual_exclusion) }
	od
}

#ifdef LIVE
inline cancel(i, s)
{
	if
	:: agent[i].pc == PROVING || agent[i].pc == PROVEN ->
		if
		:: IS_SESSION(i) -> stop_session(i, s)
		:: else -> stop(i)
		fi
	:: else
	fi
}

/* The last fault: calls that have not decided yet are cancelled. */
proctype Peace()
{
	d_step {
		stable = 1;
		cancel(WORKER_A, A);
		cancel(S1, where[S1]);
		cancel(S2, where[S2]);
		cancel(CALL_A, A);
#ifdef FAILOVER
		cancel(CALL_B, B);
		cancel(WORKER_B, B)
#endif
	}
}
#endif

init
{
	atomic {
		row[A].own = 1;
		run Worker(WORKER_A, A);
		run Session(S1);
		run Session(S2);
		run Call(CALL_A, A);
		run Clock();
#ifdef FAILOVER
		run Call(CALL_B, B);
		run Worker(WORKER_B, B);
		run Standby();
#endif
#ifdef FENCE
		run Fenced();
#endif
#if CRASHES > 0
		run Crash();
#endif
#ifdef LIVE
		run Peace();
#endif
		run Monitor()
	}
}

#ifdef LIVE
#ifdef FAILOVER
#define SOMEBODY_LEADS	((promoted && LED(B)) || (!promoted && LED(A)))
#else
#define SOMEBODY_LEADS	LED(A)
#endif
ltl a_leader_eventually { <> [] SOMEBODY_LEADS }	/* G7 */
#endif
