/*
 * epochs.pml
 *		How candidates begin an epoch where there is no worker, for model
 *		checking.
 *
 * P is a server that has become another incarnation, and has no epoch yet; Q
 * is its synchronous standby, and may be promoted at any time.  Both serve
 * clients that call for one election.  README.md, beside this file, says which
 * function of src each action stands for; `run` checks all of it.
 *
 * Who may be elected, and when, is the matter of leader_election.pml: here a
 * call may grant a term whenever it has an epoch.  There is no time, and the
 * worst is assumed of clocks and of chance: an epoch is the highest that is
 * known and one, and its counter begins at 1.
 *
 * What is chosen with -D: NO_... is one rule less, and bounds: TERMS (that a
 * server grants), REBOOTS (of P), QUEUE (records of WAL that are on their way;
 * there are never more than 2, since each grant waits for those before).
 */

#ifndef TERMS
#define TERMS		2
#endif
#ifndef REBOOTS
#define REBOOTS		1
#endif
#ifndef QUEUE
#define QUEUE		2
#endif

#define P			0
#define Q			1

/* A term is an epoch and a counter. */
#define COUNTER		4
#define FLOOR(e)	((e) * COUNTER)

/* What is committed: the rows of epoch, and of the lease */
byte own[2];					/* the epoch of this incarnation; 0: none yet */
byte epoch[2];					/* the highest of any incarnation */
byte term[2];
byte grants[2];
bool epoch_lock[2];
bool election_lock[2];			/* in Exclusive mode */

typedef Record {				/* a commit; 0: there is none of that in it */
	byte epoch;
	byte term
};

Record wal[QUEUE];				/* what Q has not received yet */
byte wal_length;
bool promoted;

/* Calls: two on P at once, one on Q, where nothing is to be proven */
#define CALLS		3
#define SERVER(i)	((i) == 2 -> Q : P)

#define IDLE		0
#define PROVES_P	1			/* that standbys follow, to begin an epoch */
#define BEGINS		2			/* that is proven */
#define BEGUN		3			/* has written it, and has the epoch lock */
#define PROVES		4			/* to grant a term */
#define PROVEN		5
#define DECIDED		6			/* has the election lock */
#define COMMITTING	7			/* the record is in the WAL, but not visible */
byte pc[CALLS];
byte ahead[CALLS];				/* records of WAL before the probe */
byte known[CALLS];				/* the epoch when the proof began; 0: none */
byte new_epoch[CALLS];			/* what it has written */
byte new_term[CALLS];

/* Ghosts */
int granted = 2;				/* a bit for each term: term 1, before all this */
byte highest_of_p;
byte lowest_of_q;

/* For assertions, so that they say what is broken */
bool begun_once;
bool unique_terms;				/* G5 */
bool ordered_terms;				/* G5 */

byte k;							/* within a step */
byte t;

#define PRIMARY(s)	((s) == P || promoted)
#define ROOM(s)		((s) == Q || promoted || wal_length < QUEUE)
#define CONFIRMED(i)	(SERVER(i) == Q || (ahead[i] == 0 && !promoted))

inline probe(i)
{
	ahead[i] = (SERVER(i) == P -> wal_length : 0)
}

/* The transaction is over, and its locks are free. */
inline stop(i, s)
{
	if
	:: new_epoch[i] != 0 -> epoch_lock[s] = false
	:: else
	fi;
	if
	:: new_term[i] != 0 -> election_lock[s] = false
	:: else
	fi;
	ahead[i] = 0;
	known[i] = 0;
	new_epoch[i] = 0;
	new_term[i] = 0;
	pc[i] = IDLE
}

/* What the transaction itself sees: its own epoch, too */
#define EPOCH(i, s)	(new_epoch[i] != 0 -> new_epoch[i] : own[s])

inline next_term(i, s)
{
	t = FLOOR(EPOCH(i, s));
	t = (term[s] > t -> term[s] : t) + 1
}

/* The commit record is written. */
inline write_record(i, s)
{
	if
	:: new_epoch[i] != 0 -> assert(own[s] == 0 || begun_once)
	:: else
	fi;
	if
	:: new_term[i] != 0 ->
		assert(!(granted & (1 << new_term[i])) || unique_terms);
		granted = granted | (1 << new_term[i]);
		assert(new_term[i] > term[s] || ordered_terms);
		if
		:: s == P -> highest_of_p = new_term[i]
		:: s == Q && lowest_of_q == 0 -> lowest_of_q = new_term[i]
		:: else
		fi;
		assert(lowest_of_q == 0 || lowest_of_q > highest_of_p ||
			   ordered_terms)
	:: else
	fi;
	if
	:: s == P && !promoted ->
		wal[wal_length].epoch = new_epoch[i];
		wal[wal_length].term = new_term[i];
		wal_length++
	:: else
	fi;
	pc[i] = COMMITTING
}

/* It is visible. */
inline publish(i, s)
{
	if
	:: new_epoch[i] != 0 ->
		own[s] = new_epoch[i];
		epoch[s] = new_epoch[i]
	:: else
	fi;
	if
	:: new_term[i] != 0 ->
		term[s] = new_term[i];
		grants[s]++
	:: else
	fi;
	stop(i, s)
}

#ifdef NO_HIGHER
#define NEXT_EPOCH(s)	(epoch[s] > 0 -> epoch[s] : 1)
#else
#define NEXT_EPOCH(s)	(epoch[s] + 1)
#endif
#ifdef NO_SECOND_LOOK
#define IS_MISSING(s)	1
#else
#define IS_MISSING(s)	(own[s] == 0)
#endif
#ifdef NO_PROOF_EPOCH
#define COVERS(i, s)	(EPOCH(i, s) != 0)
#else
#define COVERS(i, s) \
	(EPOCH(i, s) != 0 && ((s) == Q || known[i] == EPOCH(i, s)))
#endif

/* A client that calls again and again: join(), campaign(), acquire() */
proctype Call(byte i; byte s)
{
	do
	/* There is no epoch. */
	:: d_step {
			pc[i] == IDLE && PRIMARY(s) && own[s] == 0 ->
			probe(i);
			pc[i] = PROVES_P
		}
	:: d_step { pc[i] == PROVES_P && CONFIRMED(i) -> pc[i] = BEGINS }
	/* It takes the epoch lock if that is free, and looks once more. */
	:: d_step {
			pc[i] == BEGINS ->
			if
			:: !epoch_lock[s] && IS_MISSING(s) ->
				epoch_lock[s] = true;
				new_epoch[i] = NEXT_EPOCH(s);
				pc[i] = BEGUN
			:: else -> stop(i, s)
			fi
		}
	/* This transaction does nothing more. */
	:: d_step { pc[i] == BEGUN && ROOM(s) -> write_record(i, s) }
#ifdef NO_ALONE
	:: d_step {
			pc[i] == BEGUN && grants[s] < TERMS ->
			known[i] = (s == P -> EPOCH(i, s) : 0);
			probe(i);
			pc[i] = PROVES
		}
#endif
	/* A term is to be granted.  (It may find no epoch even now.) */
	:: d_step {
			pc[i] == IDLE && PRIMARY(s) && grants[s] < TERMS ->
			known[i] = (s == P -> own[s] : 0);
			probe(i);
			pc[i] = PROVES
		}
	:: d_step { pc[i] == PROVES && CONFIRMED(i) -> pc[i] = PROVEN }
	:: d_step {
			pc[i] == PROVEN && !election_lock[s] ->
			if
			:: COVERS(i, s) && grants[s] < TERMS ->
				election_lock[s] = true;
				next_term(i, s);
				new_term[i] = t;
				t = 0;
				pc[i] = DECIDED
			:: else -> stop(i, s)
			fi
		}
	:: d_step { pc[i] == DECIDED && ROOM(s) -> write_record(i, s) }
	/* The standby has confirmed the commit, or the wait was cut short. */
	:: d_step { pc[i] == COMMITTING -> publish(i, s) }
	/* fails, is ended, or is not confirmed in time; a crash */
	:: d_step { pc[i] != IDLE && pc[i] != COMMITTING -> stop(i, s) }
	od
}

/*
 * P becomes another incarnation once more (a reboot, say): no call outlives
 * that.
 */
proctype Reboot()
{
	byte n;

	do
	:: d_step {
			n < REBOOTS && own[P] != 0 &&
			pc[0] != COMMITTING && pc[1] != COMMITTING ->
			n++;
			stop(0, P);
			stop(1, P);
			own[P] = 0
		}
	od
}

/*** the standby ***/

inline forget_first()
{
	for (k : 1 .. QUEUE - 1) {
		wal[k - 1].epoch = wal[k].epoch;
		wal[k - 1].term = wal[k].term
	}
	wal[QUEUE - 1].epoch = 0;
	wal[QUEUE - 1].term = 0;
	wal_length--;
	k = 0
}

inline ahead_down(i)
{
	if
	:: ahead[i] > 0 -> ahead[i]--
	:: else
	fi
}

proctype Standby()
{
	do
	:: d_step {
			!promoted && wal_length > 0 ->
			epoch[Q] = (wal[0].epoch > epoch[Q] -> wal[0].epoch : epoch[Q]);
			term[Q] = (wal[0].term > term[Q] -> wal[0].term : term[Q]);
			forget_first();
			ahead_down(0);
			ahead_down(1)
		}
	/* What it has not received by now, it never does. */
	:: d_step {
			!promoted ->
			promoted = true;
			for (k : 0 .. QUEUE - 1) {
				wal[k].epoch = 0;
				wal[k].term = 0
			}
			wal_length = 0;
			k = 0
		}
	od
}

init
{
	atomic {
		term[P] = 1;
		term[Q] = 1;
		highest_of_p = 1;
		run Call(0, P);
		run Call(1, P);
		run Call(2, Q);
		run Reboot();
		run Standby()
	}
}
