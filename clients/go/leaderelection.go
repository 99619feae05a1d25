// Package leaderelection is the client of the PostgreSQL extension
// leader_election for database/sql and lib/pq. It stands in an election, calls
// a function while it leads, and reconnects by itself.
//
//	standing --elect--> leads --lose(reason)--> losing --giveBack--> standing
//	leads --failOver--> leads, in a new term
//	any of them --the context of Run ends, fail(error)--> losing if it led --giveBack--> closed
//
// The invariants: Term is never given out after the deadline, which is counted
// from the sending of the last answered renewal, or of the call that granted the
// term. Every elected (the function of Run is called) has exactly one lost (its
// context is cancelled). The term is gone, and the function has returned, before
// the lease is given back.
//
// The clock is Go's monotonic one, which may stop while the machine sleeps (it
// does on Linux): a machine that wakes up believes that its lease goes on. Send
// the term with your work (Fenced) where a machine can sleep.
//
// This file has what programs call. The engine, which is the goroutine of Run, is in
// engine.go. It reaches the server by a link: session.go (over socket.go), detached.go.
// The links of fake.go have no server. What an error means, and how often the engine
// tries, is in trouble.go; where a session connects to, in addresses.go; what a
// connection string says, in settings.go.
// A word in brackets, like [failover], names the fault of test/clients that a line is for.
package leaderelection

import (
	"context"
	crypto "crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"math/rand"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/lib/pq"
)

// Options say in which election to stand, and how. Only Election is needed.
type Options struct {
	// The election; and the name of this instance: host, process ID and four hex
	// digits unless given, in Kubernetes that of the pod.
	Election, Candidate string
	// What view status shows of this instance while it leads, in JSON.
	Metadata string
	// What strategies compare.
	Rank int

	// Of a session: the connection string of lib/pq, also with what libpq knows
	// beside it: several hosts, hostaddr, service. Or several strings, one a line.
	// What it does not say, the environment does (PGHOST ...; PGSERVICE and PGHOSTADDR
	// after TakeEnvironment). Each host, and each address of its name, is tried in turn;
	// standbys are passed over.
	DSN string
	// Of a session: "session" if the connection is one of a pooler in session mode.
	// Then no setting of the session is changed: others get it after us.
	Pooler string
	// Of a detached candidate: the Notify of a pq.Listener that listens to
	// leadership_changed, so that it need not wait for Interval. Close the listener
	// after Run.
	Wake <-chan *pq.Notification

	// How long an answer may take (5 s).
	CallTimeout time.Duration
	// Of a session: how long one call of campaign() waits (5 s, or less, so that the
	// server does not log each as slow).
	Slice time.Duration
	// Of a detached candidate: how often it asks (1 s).
	Interval time.Duration
	// For how long every server has to refuse until Run ends (30 s).
	RefusalTimeout time.Duration

	// False, or no answer in CallTimeout: gives up, and does not stand. It looks at
	// what your work has noted ("my last turn is younger than 5 s"), in a goroutine
	// of its own.
	HealthCheck func() bool
	// The server asks this term to go: finish, and call Resign. It is called in a
	// goroutine of its own, once a term. Without it the client resigns at once.
	OnYield func(term int64)

	// Where each leadership is logged when it begins and ends, and trouble. Without it
	// trouble goes to package log, and leaderships are not logged.
	Log *log.Logger
}

var (
	// ErrNotLeader is what Fenced returns if we do not lead.
	ErrNotLeader = errors.New("leaderelection: not the leader")
	// ErrClosed is what Wait returns when Run has returned nil.
	ErrClosed = errors.New("leaderelection: closed")
)

// Leadership is a candidate: of a session (New), detached (NewDetached), the
// only one there is (NewSole), or one that a test moves (NewFake). Its methods
// may be called from any goroutine.
type Leadership struct {
	opts     Options
	link     link             // to the server: in what the kinds of candidates differ
	now      func() time.Time // the clock of the deadline
	rest     time.Duration    // the pause after a leadership, for others to have their turn; 0: there is no server
	unfenced bool             // Fenced passes without a server

	begun, done chan struct{} // closed when Run begins, and when it returns
	ctx         context.Context
	cancel      context.CancelFunc
	fn          func(ctx context.Context, term int64) error
	working     sync.WaitGroup // until fn and OnYield have returned

	// What follows is used by the goroutine of Run alone.
	addresses    addresses
	announced    chan struct{} // closed when the log has the lines of the last leadership; nil: there is none
	check        chan bool     // the answer of a health check that is not back yet
	attempts     [10]time.Time // the last ten, in a circle
	attempt      int           // the next one's place there
	pause        time.Duration // of backOff, before a part of it is taken at random; 0: the last call was answered
	retry        time.Duration // until a leader's next renewal, if the last one failed; else 0
	jitter       *rand.Rand
	refusedSince time.Time            // since when a primary refuses our calls for good; zero: it does not
	logged       map[string]time.Time // when each kind of trouble was logged
	complained   bool                 // the present trouble was logged, and its end has to be
	wellSince    time.Time            // zero: there is trouble, or nothing was heard yet

	// What follows is guarded by mu.
	mu       sync.Mutex
	err      error              // what Run returns
	ended    bool               // fail was called: by an error, or because fn has returned
	grant    grant              // the lease that we have, or had last
	work     context.Context    // of fn: it ends when the leadership is lost
	end      context.CancelFunc // of work; both are nil once the lease is given back
	elected  chan struct{}      // closed when the next leadership begins
	timer    *time.Timer        // of the deadline
	changes  int64
	reason   string
	trouble  string // what State says unless we lead; "" if there is none
	metadata string
}

// Run stands, and calls fn in each term. The context of fn is cancelled when
// the leadership is lost (Reason says why). Then fn has to return: the lease is
// given back after that, and Run stands again. When ctx is cancelled, Run hands
// over and returns ctx.Err().
//
// If fn returns by itself, Run gives the lease back and returns what fn returned.
// An error that fn returns after the leadership was lost ends Run, too. Some errors
// only say that it is lost, and Run stands again: ErrNotLeader, LE001 and LE002 at any
// time; after the loss also context.Canceled, context.DeadlineExceeded, 57014,
// sql.ErrTxDone and driver.ErrBadConn, which a cancelled context leads to. A panic in fn ends the
// program, as it should: others take over.
//
// Run returns an error of a server if it lasts: for RefusalTimeout every address has
// refused the login (28..., 3D000, 42501), or a primary a call (22023, 0A000, 25001).
// It returns one at once if a pooler is in between, or for a wrong DSN. It may be
// called once.
func (l *Leadership) Run(ctx context.Context, fn func(context.Context, int64) error) error {
	l.mu.Lock()
	if l.ctx != nil {
		l.mu.Unlock()
		return errors.New("leaderelection: Run was called before")
	}
	l.ctx, l.cancel = context.WithCancel(ctx)
	l.fn = fn
	l.mu.Unlock()
	defer l.cancel()
	close(l.begun)

	for l.ctx.Err() == nil {
		l.turn()
	}
	l.giveBack()
	return l.conclude(ctx.Err())
}

// Term is the term in which we lead now, and true; or 0 and false, if we do not lead
// or have no term (NewSole). It never blocks.
func (l *Leadership) Term() (int64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.leads() || l.grant.term == 0 {
		return 0, false
	}
	return l.grant.term, true
}

// Leads says whether we lead now: a gauge, where metrics are collected. It never blocks.
func (l *Leadership) Leads() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leads()
}

// State says what the last attempt came to: standing, leads, unhealthy,
// "unreachable: TEXT", "refused: SQLSTATE TEXT" (of a server), and, when Run has
// returned, closed or "failed: SQLSTATE TEXT". A leader whose renewals fail leads up to
// its deadline; one that has lost, and whose function has not returned, is standing, or
// has the trouble that it lost by. State never blocks.
func (l *Leadership) State() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leads() {
		return "leads"
	}
	return or(l.trouble, "standing")
}

// Candidate is the name of this instance.
func (l *Leadership) Candidate() string { return l.opts.Candidate }

// Changes counts how often this candidate was elected.
func (l *Leadership) Changes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes
}

// Reason says why the last leadership ended: resigned, closed (the context of
// Run; or its function returned), yielded, expired (the local deadline passed),
// connection lost, not renewed (the server says that the term is over),
// unhealthy, failover (a new term follows), error. It is for the function of Run, once
// its context has ended, and for later: it is "" before the first leadership, and closed
// while we lead.
func (l *Leadership) Reason() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reason
}

// Wait waits until we lead and returns the term (0 with NewSole), or the error that Run
// has returned (ErrClosed if it was nil), or ctx.Err().
func (l *Leadership) Wait(ctx context.Context) (int64, error) {
	for {
		l.mu.Lock()
		leads, term, elected := l.leads(), l.grant.term, l.elected
		l.mu.Unlock()
		if leads {
			return term, nil
		}
		select {
		case <-elected:
		case <-l.done:
			if l.err == nil {
				return 0, ErrClosed
			}
			return 0, l.err
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// Fenced has tx, on whatever connection, commit only if our term still leads then. It
// returns ErrNotLeader if we do not lead now, and LE001 if the server says so; LE002
// comes from tx.Commit().
func (l *Leadership) Fenced(ctx context.Context, tx *sql.Tx) error {
	l.mu.Lock()
	leads, term := l.leads(), l.grant.term
	l.mu.Unlock()
	switch {
	case !leads:
		return ErrNotLeader
	case l.unfenced:
		return nil
	case term == 0:
		return errors.New("leaderelection: NewSole has no term that could fence")
	}
	_, err := tx.ExecContext(ctx, fmt.Sprintf("SELECT leader_election.assert_leader(%s, %d)",
		pq.QuoteLiteral(l.opts.Election), term))
	return err
}

// SetMetadata changes what view status shows of us: from the next renewal on, or when
// we lead next. It takes JSON; "" is not sent, and changes nothing at the server.
func (l *Leadership) SetMetadata(json string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.metadata = json
}

// Resign gives up the leadership, if we lead (Reason: yielded if the server has asked
// for that, else resigned). Term is none when it returns. When the function of Run has
// returned, the lease is given back, and Run stands again after a pause.
func (l *Leadership) Resign() {
	l.mu.Lock()
	yielding := l.grant.yielding
	l.mu.Unlock()
	if yielding {
		l.lose("yielded")
	} else {
		l.lose("resigned")
	}
}

func newLeadership(opts Options) *Leadership {
	opts.Candidate = or(opts.Candidate, defaultName())
	opts.CallTimeout = or(opts.CallTimeout, 5*time.Second)
	opts.Interval = or(opts.Interval, time.Second)
	opts.RefusalTimeout = or(opts.RefusalTimeout, 30*time.Second)
	return &Leadership{opts: opts, metadata: opts.Metadata, now: time.Now, rest: time.Second,
		begun: make(chan struct{}), done: make(chan struct{}), elected: make(chan struct{}),
		logged: map[string]time.Time{}, addresses: addresses{lines: opts.DSN, refusals: map[string]refusal{}},
		jitter: rand.New(rand.NewSource(time.Now().UnixNano()))}
}

// defaultName is a name of at most 200 bytes. A pod that is started again has the same
// one; elsewhere each process has another one.
func defaultName() string {
	host, _ := os.Hostname()
	suffix := fmt.Sprintf("-%d", os.Getpid())
	if os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		suffix += "-" + random(2)
	} else {
		host = or(or(os.Getenv("POD_NAME"), os.Getenv("HOSTNAME")), host)
		if os.Getpid() == 1 {
			suffix = ""
		}
	}
	if room := 200 - len(suffix); len(host) > room {
		host = strings.ToValidUTF8(host[:room], "")
	}
	return host + suffix
}

// or is value, or otherwise if value is the zero value.
func or[T comparable](value, otherwise T) T {
	if value == *new(T) {
		return otherwise
	}
	return value
}

// random is so many random bytes in hex.
func random(bytes int) string {
	b := make([]byte, bytes)
	_, _ = crypto.Read(b)
	return fmt.Sprintf("%x", b)
}
