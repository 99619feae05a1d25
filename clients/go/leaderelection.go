// Package leaderelection is the client of the PostgreSQL extension
// leader_election for database/sql and lib/pq. It stands in an election, calls
// a function while it leads, and reconnects by itself.
//
// The invariant: Term is never given out after the deadline, which is counted
// from the sending of the last answered renewal; every elected (the function of
// Run is called) has exactly one lost (its context is cancelled); the term is
// gone, and the function has returned, before the lease is given back.
//
// The clock is Go's monotonic one, which may stop while the machine sleeps (it
// does on Linux): a machine that wakes up believes that its lease goes on. Send
// the term with your work (Fenced) where a machine can sleep.
package leaderelection

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/lib/pq"
)

// Options say in which election to stand, and how. Only Election is needed.
type Options struct {
	// The election; the name of this instance, host-pid-random unless given; what
	// is shown while it leads, in JSON.
	Election, Candidate, Metadata string
	// Of a session: the connection string of lib/pq; of several hosts, one a line.
	// They are tried in turn, standbys passed over. Else the PG* environment says.
	DSN string
	// Of a detached candidate: the Notify of a pq.Listener that listens to
	// leadership_changed, so that it need not wait for Interval. Close the listener
	// after Run.
	Wake <-chan *pq.Notification
	// What strategies compare.
	Rank int
	// How long an answer may take (5 s), how long one call of campaign() waits
	// (5 s), how often a detached follower asks (1 s).
	CallTimeout, Slice, Interval time.Duration
	// False, or no return: the lease is not renewed. It looks at what your work
	// has noted ("my last turn is younger than 5 s"), and must not wait itself.
	HealthCheck func() bool
	// The server asks this term to go: finish, and call Resign. Without it the
	// client resigns at once. It must not wait: no renewal is sent meanwhile.
	OnYield func(term int64)
}

var (
	// ErrNotLeader is Fenced's answer if there is no term.
	ErrNotLeader = errors.New("leaderelection: not the leader, or without a term (NewSole)")

	errUnhealthy = errors.New("the health check failed")
	// The same call would be answered the same again.
	fatal = regexp.MustCompile("^(28...|3D000|3F000|42883|42P01|42501|22023|0A000|25001|LE003)$")
)

// Statements are formats, for the arguments that ask has.
const (
	selectGrant = "SELECT term, remaining_ms, yielding FROM leader_election."
	// The time limits that a role or the server has would end a waiting campaign.
	noTimeouts = "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings " +
		"WHERE name OPERATOR(pg_catalog.~) '^(statement|transaction|idle_session)_timeout$'"
)

// Leadership is a candidate: of a session (New), detached (NewDetached), the
// only one there is (NewSole), or one that a test moves (NewFake). Its methods
// may be called from any goroutine.
type Leadership struct {
	opts        Options
	now         func() time.Time // the clock of the deadline
	begun, done chan struct{}    // closed when Run begins, and when it returns
	ctx         context.Context  // of Run
	cancel      context.CancelFunc
	fn          func(ctx context.Context, term int64) error
	working     sync.WaitGroup // until fn has returned
	asking      sync.WaitGroup // until the driver has returned
	err         error          // what Run returns
	db          *sql.DB
	session     *session // nil unless there is one

	// In what the kinds of candidates differ. Sole and Fake ask no server.
	join           []string // the statements by which we stand, the last for a grant
	renew, leave   string
	part, patience time.Duration // 1/part of a lease is ours; how long a driver may wait
	local          grant
	unfenced       bool

	mu    sync.Mutex
	state state
	timer *time.Timer        // of the deadline
	end   context.CancelFunc // of the context of fn
}

type state struct {
	grant
	leads   bool
	changes int64
	reason  string
}

// A grant is a lease, or err says why there is none: sql.ErrNoRows if the server
// has none for us.
type grant struct {
	term     int64
	deadline time.Time
	yielding bool
	err      error
}

func or[T comparable](value, otherwise T) T {
	if value == *new(T) {
		return otherwise
	}
	return value
}

func newLeadership(opts Options) *Leadership {
	host, _ := os.Hostname()
	name := fmt.Sprintf("%s-%d-%x", host, os.Getpid(), time.Now().UnixNano())
	opts.Candidate = or(opts.Candidate, name)
	opts.Metadata = or(opts.Metadata, "{}")
	opts.CallTimeout = or(opts.CallTimeout, 5*time.Second)
	opts.Slice = or(opts.Slice, 5*time.Second)
	opts.Interval = or(opts.Interval, time.Second)
	begun, done := make(chan struct{}), make(chan struct{})
	return &Leadership{opts: opts, now: time.Now, begun: begun, done: done}
}

// New makes a session candidate, with a connection of its own.
func New(opts Options) *Leadership {
	l := newLeadership(opts)
	l.opts.Interval = 0 // it waits in campaign()
	// Half of a lease: the server may end the session of a peer that went silent
	// sooner than its lease ends, and then another leads at once. And patience
	// without end: lib/pq would end the session before fn has returned.
	l.part, l.patience = 2, 1<<62
	l.renew = selectGrant + "renew(%[1]s)"
	l.join = []string{noTimeouts,
		"SELECT leader_election.join(%[1]s, %[2]s, " +
			"rank => %[3]d, metadata => %[4]s, auto_renew => %[6]t)",
		"CALL leader_election.campaign(%[1]s, %[2]s, timeout => '%[7]d ms'::pg_catalog.interval)",
		l.renew}
	l.leave = "SELECT leader_election.leave(%[1]s)"
	return l
}

// NewDetached makes a detached candidate over the application's own pool, of
// any driver. The pool has to have a connection to spare for each call; one
// whose answer does not come in time is thrown away when the driver returns.
func NewDetached(db *sql.DB, opts Options) *Leadership {
	l := newLeadership(opts)
	l.db, l.part, l.patience = db, 1, 2*l.opts.CallTimeout
	l.join = []string{selectGrant + "acquire(%[1]s, %[2]s, rank => %[3]d, metadata => %[4]s)"}
	l.renew = selectGrant + "renew(%[1]s, %[5]d)"
	l.leave = "SELECT leader_election.leave(%[1]s, %[2]s) FROM leader_election.release(%[1]s, %[5]d)"
	return l
}

// NewSole makes one that always leads and asks no server, for laptops. It has
// no term: Term says none, the function of Run gets 0, and Fenced refuses,
// unless unfenced is true.
func NewSole(opts Options, unfenced bool) *Leadership {
	l := newLeadership(opts)
	l.local.deadline, l.unfenced = time.Now().Add(1<<62), unfenced
	return l
}

// Run stands, and calls fn in each term. The context of fn is cancelled when
// the leadership is lost (Reason says why). Then fn has to return: the lease is
// given back after that, and Run stands again. If fn returns by itself, Run
// gives the lease back and returns what fn returned. When ctx is cancelled, Run
// hands over and returns ctx.Err(); if there is a fatal error, that. It is
// called once. A panic in fn ends the program, as it should: others take over.
func (l *Leadership) Run(ctx context.Context, fn func(context.Context, int64) error) error {
	defer close(l.done)
	l.ctx, l.cancel = context.WithCancel(ctx)
	defer l.cancel()
	l.fn = fn
	close(l.begun)
	l.stand()
	asked := make(chan struct{}) // what is granted now, ask gives back
	go func() {
		l.asking.Wait()
		close(asked)
	}()
	select {
	case <-asked:
	case <-time.After(l.opts.CallTimeout):
	}
	if l.err == nil {
		l.err = ctx.Err()
	}
	return l.err
}

func (l *Leadership) get() state {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state
	if s.leads = s.leads && l.ctx.Err() == nil && l.now().Before(s.deadline); !s.leads {
		s.term = 0
	}
	return s
}

// Term is the term, and whether we lead in one now. It never blocks.
func (l *Leadership) Term() (int64, bool) {
	term := l.get().term
	return term, term != 0
}

// Leads says whether we lead now: a gauge, where metrics are collected.
func (l *Leadership) Leads() bool { return l.get().leads }

// Changes counts how often this candidate was elected.
func (l *Leadership) Changes() int64 { return l.get().changes }

// Reason says why the last leadership ended: resigned, closed (the context of
// Run), yielded, expired (the local deadline passed), connection lost, not
// renewed (the server says that the term is over), unhealthy, failover (a new
// term follows), error.
func (l *Leadership) Reason() string { return l.get().reason }

// Wait waits until we lead and returns the term, or what Run has returned, or
// ctx.Err().
func (l *Leadership) Wait(ctx context.Context) (int64, error) {
	for {
		if s := l.get(); s.leads {
			return s.term, nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-l.done:
			return 0, l.err
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// Fenced has tx, on whatever connection, commit only if our term still leads
// then: ErrNotLeader if we do not lead, LE001 and LE002 from the server.
func (l *Leadership) Fenced(ctx context.Context, tx *sql.Tx) error {
	s := l.get()
	if l.unfenced && s.leads {
		return nil
	} else if s.term == 0 {
		return ErrNotLeader
	}
	_, err := tx.ExecContext(ctx, l.sql("SELECT leader_election.assert_leader(%[1]s, %[5]d)", s.term))
	return err
}

// Resign gives up the leadership, if we lead, and goes on standing after a
// pause. Term is none when it returns; the lease is given back when the function
// of Run has returned. NewSole's never resigns.
func (l *Leadership) Resign() { l.lose("resigned") }

// elect begins a leadership, and returns the context that ends with it. The end
// of the context of Run is the end of that one, too: its reason is there before.
func (l *Leadership) elect(g grant) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, end := context.WithCancel(l.ctx)
	l.end = end
	g.yielding = false // extend looks at that
	l.state = state{g, true, l.state.changes + 1, "closed"}
	l.timer = time.AfterFunc(g.deadline.Sub(l.now()), func() { l.lose("expired") })
	l.working.Add(1)
	go func() {
		defer l.working.Done()
		if err := l.fn(ctx, g.term); ctx.Err() == nil { // it returned by itself
			l.err = err
			l.cancel()
		}
		l.lose("closed")
	}()
	return ctx
}

// lose ends the leadership, if there is one.
func (l *Leadership) lose(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.state.deadline.Sub(l.now())
	switch {
	case !l.state.leads, reason == "resigned" && l.state.term == 0:
		return
	case reason == "expired" && left > 0: // it was renewed
		l.timer.Reset(left)
		return
	case reason == "resigned" && l.state.yielding:
		reason = "yielded"
	}
	l.state.leads, l.state.reason = false, reason
	l.timer.Stop()
	l.end()
}

// extend notes the deadline of g, and that the server asks us to go.
func (l *Leadership) extend(g grant) {
	l.mu.Lock()
	asked := g.yielding && !l.state.yielding && l.state.leads
	l.state.deadline, l.state.yielding = g.deadline, l.state.yielding || g.yielding
	l.mu.Unlock()
	if asked && l.opts.OnYield != nil {
		l.opts.OnYield(g.term)
	} else if asked {
		l.lose("yielded")
	}
}

// stand stands and leads until the context of Run ends, or there is a fatal
// error. An error ends a candidacy, and a connection is not used again after one,
// but a leadership goes on up to its deadline while it is unknown what has become
// of its lease.
func (l *Leadership) stand() {
	var g grant  // the last one of this leadership
	ctx := l.ctx // of this leadership, if there is one
	for pause := time.Duration(0); ; {
		next := grant{err: l.ctx.Err()}
		if next.err == nil {
			next = l.next(ctx, g.term)
		}
		state, reason := sqlState(next.err), "closed"
		switch {
		case next.err == nil:
			if ctx == l.ctx || next.term != g.term {
				l.lose("failover")
				l.working.Wait()
				if !l.now().Before(next.deadline) { // too late: it is given back
					g, next.err, reason = next, context.DeadlineExceeded, "expired"
					break
				}
				ctx, pause = l.elect(next), time.Second/2
			}
			g = next
			l.extend(g)
		case next.err == sql.ErrNoRows && ctx == l.ctx:
			pause = 0
		case next.err == sql.ErrNoRows:
			reason = "not renewed"
		case next.err == errUnhealthy:
			reason = "unhealthy"
		case fatal.MatchString(state):
			reason = "error"
		case ctx.Err() != nil: // what ended it has said why
		case ctx == l.ctx || l.session != nil && state != "55P03":
			reason = "connection lost"
		}
		wait := l.opts.Interval
		if ctx != l.ctx { // also before a renewal that failed is sent again
			wait = g.deadline.Sub(l.now()) / 3
		}
		// After a call that was given up lib/pq may still read: do not watch the connection.
		if reason == "closed" && ctx.Err() == nil && l.idle(ctx, wait) {
			continue
		}
		l.lose(reason)
		l.working.Wait()
		l.giveBack(g.term, next.err)
		if state == "3F000" || state == "42883" {
			next.err = fmt.Errorf("no extension (CREATE EXTENSION leader_election): %w", next.err)
		}
		if fatal.MatchString(state) {
			l.err = fmt.Errorf("leaderelection: %w", next.err)
			return
		}
		if pause = 2*pause + 100*time.Millisecond; pause > 5*time.Second {
			pause = 5 * time.Second
		}
		select {
		case <-time.After(pause/2 + time.Duration(time.Now().UnixNano())%(pause/2)):
			if next.err != nil {
				log.Printf("leaderelection: %s: stands again: %v", l.opts.Election, next.err)
			}
		case <-l.ctx.Done():
		}
		if ctx, g = l.ctx, (grant{}); ctx.Err() != nil {
			return
		}
	}
}

// next renews the lease of the term, or stands once.
func (l *Leadership) next(ctx context.Context, term int64) (g grant) {
	if l.opts.HealthCheck != nil && !l.opts.HealthCheck() {
		return grant{err: errUnhealthy}
	} else if term != 0 {
		return l.ask(ctx, l.opts.CallTimeout, l.renew, term)
	}
	if g = l.local; l.part == 2 && l.session == nil {
		g.err = l.connect()
	}
	for i := 0; i < len(l.join) && g.err == nil; i++ {
		g = l.ask(ctx, l.opts.Slice+l.opts.CallTimeout, l.join[i], 0)
	}
	return g
}

// giveBack gives back what we have at the server, at the end of a leadership or
// of a candidacy. A session is not asked again after an error; a detached follower
// stays a candidate.
func (l *Leadership) giveBack(term int64, err error) {
	left := term != 0 || err == errUnhealthy || l.ctx.Err() != nil
	if l.db != nil && (err == nil || l.part == 1 && left) {
		l.ask(context.Background(), l.opts.CallTimeout, l.leave, term)
	}
	if first, others, ok := strings.Cut(l.opts.DSN, "\n"); ok && term == 0 {
		l.opts.DSN = others + "\n" + first
	}
	if l.session != nil {
		l.session.destroy()
		l.db.Close()
		l.session = nil
	}
}

// ask sends a statement, and waits for its answer for so long, and until ctx
// ends. A session whose answer comes too late is destroyed by the caller, or else
// a campaign would go on at the server, to be elected with nobody knowing.
func (l *Leadership) ask(ctx context.Context, limit time.Duration, call string, term int64) grant {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answers, db, sent := make(chan grant), l.db, l.now()
	l.asking.Add(1)
	go func() {
		defer l.asking.Done()
		own, cancel := context.WithTimeout(context.Background(), l.patience)
		defer cancel()
		var g grant
		var ms time.Duration
		if strings.HasPrefix(call, selectGrant) {
			g.err = db.QueryRowContext(own, l.sql(call, term)).Scan(&g.term, &ms, &g.yielding)
		} else {
			_, g.err = db.ExecContext(own, l.sql(call, term))
		}
		g.deadline = sent.Add(ms * time.Millisecond / l.part)
		select {
		case answers <- g:
		case <-ctx.Done():
			// Of a renewal, stand gives the lease back, after fn has returned.
			if term == 0 && g.term != 0 && g.term != l.get().term { // nobody leads by it
				_, _ = db.ExecContext(own, l.sql(l.leave, g.term))
			}
		}
	}()
	select {
	case g := <-answers:
		return g
	case <-ctx.Done():
		return grant{err: ctx.Err()}
	}
}

// idle waits: the time that is given, until ctx ends (false), or until there is
// something new.
func (l *Leadership) idle(ctx context.Context, d time.Duration) bool {
	pause, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	if s := l.session; s != nil {
		// What comes in, the end of the connection above all, is left to the next call.
		watched := make(chan struct{})
		go func() {
			_, _ = s.in.Peek(1)
			cancel()
			close(watched)
		}()
		<-pause.Done()
		_ = s.SetReadDeadline(time.Unix(1, 0))
		<-watched
		_ = s.SetReadDeadline(time.Time{})
	}
	select {
	case <-pause.Done():
	case <-l.opts.Wake: // a hint and no more
	}
	return ctx.Err() == nil
}

// sql has the arguments as literals: a statement without parameters is not
// prepared by lib/pq, so that it passes a pooler.
func (l *Leadership) sql(format string, term int64) string {
	o, quote := &l.opts, pq.QuoteLiteral
	// %[8]s: not all arguments need be used then.
	return fmt.Sprintf(format+"%[8]s", quote(o.Election), quote(o.Candidate), o.Rank,
		quote(o.Metadata), term, o.HealthCheck == nil, o.Slice.Milliseconds(), "")
}

// sqlState is that of an error of lib/pq or pgx; "" of one that is not the
// server's.
func sqlState(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// A session is a socket of our own, for a pool of one connection, which does not
// connect again. destroy ends whatever waits on it, and the candidacy at the
// server. in holds what has come in while lib/pq did not read.
type session struct {
	pq.Dialer // for its names: lib/pq calls DialContext
	net.Conn
	in      *bufio.Reader
	ctx     context.Context
	destroy context.CancelFunc
}

func (l *Leadership) connect() error {
	dsn, _, _ := strings.Cut(l.opts.DSN, "\n")
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		return &pq.Error{Code: "22023", Message: err.Error()}
	}
	l.session = new(session)
	l.session.ctx, l.session.destroy = context.WithCancel(context.Background())
	connector.Dialer(l.session)
	l.db = sql.OpenDB(connector)
	return nil
}

// DialContext is what lib/pq connects by. The kernel gives up a peer that went
// silent; how many probes it sends is left to the system.
func (s *session) DialContext(_ context.Context, network, address string) (net.Conn, error) {
	if s.Conn != nil {
		return nil, net.ErrClosed
	}
	c, err := (&net.Dialer{KeepAlive: 5 * time.Second}).DialContext(s.ctx, network, address)
	if err != nil {
		return nil, err
	}
	s.Conn, s.in = c, bufio.NewReader(c)
	go func() {
		<-s.ctx.Done()
		c.Close()
	}()
	return s, nil
}

func (s *session) Read(b []byte) (int, error) { return s.in.Read(b) }

// A Fake is a Leadership that a test moves, also in time. Elect waits for Run,
// and for the function of the last term.
type Fake struct {
	*Leadership
	clock time.Time
}

// NewFake makes one. Hand its Leadership to what is tested, which calls Run.
func NewFake(opts Options) *Fake {
	f := &Fake{newLeadership(opts), time.Now()}
	f.local.err, f.unfenced = sql.ErrNoRows, true
	f.now = func() time.Time { return f.clock }
	return f
}

// Elect has it elected for a lease, and returns the term. 0: the next term, 15 s.
func (f *Fake) Elect(term int64, lease time.Duration) int64 {
	<-f.begun
	f.lose("failover")
	f.working.Wait()
	term = or(term, f.state.term+1)
	f.elect(grant{term: term, deadline: f.clock.Add(or(lease, 15*time.Second))})
	return term
}

// Lose ends the leadership.
func (f *Fake) Lose(reason string) { f.lose(reason) }

// AskYield asks the leader to go, once a term.
func (f *Fake) AskYield() { f.extend(grant{f.state.term, f.state.deadline, true, nil}) }

// Advance moves the clock.
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	f.clock = f.clock.Add(d)
	f.mu.Unlock()
	f.lose("expired")
}
