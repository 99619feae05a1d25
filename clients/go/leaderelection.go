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
	"crypto/rand"
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
	// The election; the name of this instance, host-pid-time unless given; what is
	// shown while it leads, in JSON.
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
	// False, or no return in CallTimeout: the lease is not renewed. It looks at what
	// your work has noted ("my last turn is younger than 5 s"), in a goroutine of its
	// own, and must not wait itself.
	HealthCheck func() bool
	// The server asks this term to go: finish, and call Resign. Without it the
	// client resigns at once. It must not wait: no renewal is sent meanwhile.
	OnYield func(term int64)
}

// What is sent. For $words see sql. The last answer has the three columns of a
// grant: a term, for how long, and whether the server asks that term to go.
const (
	// The time limits that a role or the server has would end a waiting campaign.
	noTimeouts = "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings " +
		"WHERE name OPERATOR(pg_catalog.~) '^(statement|transaction|idle_session)_timeout$'"
	// Always without auto_renew: the network may be cut, without a word, of a follower
	// whose session the server takes for alive for a while. If that one is elected,
	// nobody renews its lease, and another leads after that.
	join = "SELECT leader_election.join($election, $candidate, rank => $rank, " +
		"metadata => $metadata, auto_renew => false)"
	campaign = "CALL leader_election.campaign($election, $candidate, " +
		"timeout => '$slice ms'::pg_catalog.interval)"
	grants  = "SELECT term, remaining_ms, yielding FROM "
	acquire = grants + "leader_election.acquire($election, $candidate, " +
		"rank => $rank, metadata => $metadata, request => '$request')"
	renew     = grants + "leader_election.renew($election, metadata => $metadata)"
	renewTerm = grants + "leader_election.renew($election, $term, metadata => $metadata)"
	assert    = "SELECT leader_election.assert_leader($election, $term)"
	leave     = "SELECT 0, 0, leader_election.leave($election)"
	leaveTerm = "SELECT 0, 0, leader_election.leave($election, $candidate) " +
		"FROM leader_election.release($election, $term)"
	noExtension = " (the database lacks the extension: CREATE EXTENSION leader_election)"
)

var (
	// ErrNotLeader is Fenced's answer if there is no term.
	ErrNotLeader = errors.New("leaderelection: not the leader, or without a term (NewSole)")

	hints        = map[string]string{"3F000": noExtension, "42883": noExtension}
	errUnhealthy = errors.New("the health check failed")
	// The same call would be answered the same again.
	fatal = regexp.MustCompile("^(28...|3D000|3F000|42883|42P01|42501|22023|0A000|25001|LE003)$")
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
	err         error          // what Run returns
	db          *sql.DB
	session     *session // nil unless there is one

	// In what the kinds of candidates differ. Sole and Fake ask no server.
	stand          func() grant // asks to lead, once
	renew, leave   string
	part, patience time.Duration // 1/part of a lease is ours; how long a driver may wait
	unfenced       bool
	request        string // detached: until it is granted

	mu       sync.Mutex
	metadata string
	state    state
	elected  chan struct{} // closed when the next leadership begins
	timer    *time.Timer   // of the deadline
}

// The last leadership, or that of now.
type state struct {
	grant
	ctx     context.Context // of fn
	end     context.CancelFunc
	changes int64
	reason  string
	leads   bool // get sets it
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

// newRequest is a random UUID.
func newRequest() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	return fmt.Sprintf("%x", id)
}

func newLeadership(opts Options) *Leadership {
	host, _ := os.Hostname()
	name := fmt.Sprintf("%s-%d-%x", host, os.Getpid(), time.Now().UnixNano())
	opts.Candidate = or(opts.Candidate, name)
	opts.CallTimeout = or(opts.CallTimeout, 5*time.Second)
	opts.Slice = or(opts.Slice, 5*time.Second)
	opts.Interval = or(opts.Interval, time.Second)
	begun, done := make(chan struct{}), make(chan struct{})
	return &Leadership{opts: opts, metadata: or(opts.Metadata, "{}"),
		now: time.Now, begun: begun, done: done,
		elected: make(chan struct{})}
}

// New makes a session candidate, with a connection of its own.
func New(opts Options) *Leadership {
	l := newLeadership(opts)
	l.opts.Interval = 0 // it waits in campaign
	// Half of a lease: the server may end the session of a peer that went silent
	// sooner than its lease ends, and then another leads at once. And patience
	// without end: lib/pq would end the session before fn has returned.
	l.part, l.patience, l.renew, l.leave = 2, 1<<62, renew, leave
	l.stand = func() (g grant) {
		if l.session == nil {
			g.err = l.connect()
		}
		if g.err != nil {
			return g
		}
		return l.ask(l.ctx, l.opts.Slice+l.opts.CallTimeout, 0, noTimeouts, join, campaign, renew)
	}
	return l
}

// NewDetached makes a detached candidate over the application's own pool, of
// any driver. The pool has to have a connection to spare for each call; one
// whose answer does not come in time is thrown away when the driver returns.
func NewDetached(db *sql.DB, opts Options) *Leadership {
	l := newLeadership(opts)
	l.db, l.part, l.patience, l.renew, l.leave = db, 1, 2*l.opts.CallTimeout, renewTerm, leaveTerm
	// Not cut short by the end of Run: leave has to come after it.
	l.stand = func() grant {
		// All tries make one request, so that no grant is lost with its answer.
		l.request = or(l.request, newRequest())
		g := l.ask(context.Background(), l.opts.CallTimeout, 0, acquire)
		if g.term != 0 {
			l.request = ""
		}
		return g
	}
	return l
}

// NewSole makes one that always leads and asks no server, for laptops. It has
// no term: Term says none, the function of Run gets 0, and Fenced refuses,
// unless unfenced is true.
func NewSole(opts Options, unfenced bool) *Leadership {
	opts.Wake = nil // it has nothing to ask
	l := newLeadership(opts)
	l.unfenced = unfenced
	l.stand = func() grant { return grant{deadline: time.Now().Add(1 << 62)} }
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
	for pause := time.Duration(0); l.ctx.Err() == nil; {
		g := l.stand()
		if g.err == sql.ErrNoRows && l.idle(l.ctx, l.opts.Interval, l.opts.Wake) {
			pause = 0
			continue
		} else if g.err == nil {
			g, pause = l.lead(g), time.Second/2
		}
		l.giveBack(g)
		if state := sqlState(g.err); fatal.MatchString(state) {
			l.err = fmt.Errorf("leaderelection: %w%s", g.err, hints[state])
			break
		}
		if pause = 2*pause + 100*time.Millisecond; pause > 5*time.Second {
			pause = 5 * time.Second
		}
		if g.err != nil && l.ctx.Err() == nil {
			log.Printf("leaderelection: %s: stands again: %v", l.opts.Election, g.err)
		}
		// Not woken up: who resigns hears of that, too, and would be the first to ask.
		l.idle(l.ctx, pause/2+time.Duration(time.Now().UnixNano())%(pause/2), nil)
	}
	if l.err == nil {
		l.err = ctx.Err()
	}
	return l.err
}

// get is the state of now: without a term unless we lead.
func (l *Leadership) get() state {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state
	if s.leads = l.now().Before(s.deadline) && s.ctx.Err() == nil; !s.leads {
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
		l.mu.Lock()
		elected := l.elected
		l.mu.Unlock()
		s := l.get()
		if s.leads {
			return s.term, nil
		}
		select {
		case <-elected:
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
	_, err := tx.ExecContext(ctx, l.sql(assert, s.term))
	return err
}

// Resign gives up the leadership, if we lead, and goes on standing after a
// pause. Term is none when it returns; the lease is given back when the function
// of Run has returned. NewSole's never resigns.
func (l *Leadership) Resign() {
	if s := l.get(); s.yielding {
		l.lose("yielded")
	} else if s.term != 0 {
		l.lose("resigned")
	}
}

// elect begins a leadership, and returns the context that ends with it. The end
// of the context of Run is the end of that one, too: its reason is there before.
func (l *Leadership) elect(g grant) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.elected)
	l.elected = make(chan struct{})
	ctx, end := context.WithCancel(l.ctx)
	g.yielding = false // extend looks at that
	l.state = state{grant: g, ctx: ctx, end: end, changes: l.state.changes + 1, reason: "closed"}
	l.timer = time.AfterFunc(g.deadline.Sub(l.now()), func() { l.lose("expired") })
	l.working.Add(1)
	go func() {
		defer l.working.Done()
		if err := l.fn(ctx, g.term); ctx.Err() == nil { // it returned by itself
			l.err = err
			l.cancel()
		}
		if l.session != nil { // ends idle
			_ = l.session.SetReadDeadline(time.Unix(1, 0))
		}
	}()
	return ctx
}

// lose ends the leadership, if there is one.
func (l *Leadership) lose(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.state.deadline.Sub(l.now())
	if reason == "expired" && left > 0 { // it was renewed
		l.timer.Reset(left)
	} else if l.state.ctx != nil && l.state.ctx.Err() == nil {
		if left <= 0 { // the timer is late: the process was stopped
			reason = "expired"
		}
		l.state.reason = reason
		l.state.end()
	}
}

// extend notes that the lease was renewed, and that the server asks us to go. An
// answer that comes after the deadline extends nothing: a process that was stopped
// may read it before the timer has run, and would go on in a term that Term has
// said to be over, without a word.
func (l *Leadership) extend(g grant) {
	l.mu.Lock()
	inTime := l.now().Before(l.state.deadline) && l.state.ctx.Err() == nil
	asked := inTime && g.yielding && !l.state.yielding
	if inTime {
		g.yielding = g.yielding || l.state.yielding // once a term
		l.state.grant = g
	}
	l.mu.Unlock()
	if asked && l.opts.OnYield != nil {
		l.opts.OnYield(g.term)
	} else if asked {
		l.Resign()
	}
}

// lead leads, and returns the last grant, with the error of the last call. A
// leadership goes on up to its deadline while it is unknown what has become of its
// lease.
func (l *Leadership) lead(g grant) grant {
	for ctx := l.elect(g); l.idle(ctx, g.deadline.Sub(l.now())/3, l.opts.Wake); l.extend(g) {
		next := l.ask(ctx, l.opts.CallTimeout, g.term, l.renew)
		switch g.err = next.err; {
		case g.err == nil && next.term != g.term:
			l.lose("failover")
			l.working.Wait()
			return l.lead(next)
		case g.err == nil:
			g = next
		case g.err == sql.ErrNoRows:
			l.lose("not renewed")
		case g.err == errUnhealthy:
			l.lose("unhealthy")
		case fatal.MatchString(sqlState(g.err)):
			l.lose("error")
		case l.session != nil && sqlState(g.err) != "55P03":
			l.lose("connection lost")
		}
	}
	return g
}

// giveBack gives back what we have at the server, at the end of a leadership or
// of a candidacy. A detached follower stays a candidate after an error.
func (l *Leadership) giveBack(g grant) {
	l.working.Wait()
	if g.term != 0 || l.part == 1 && (g.err == sql.ErrNoRows || g.err == errUnhealthy) {
		l.ask(context.Background(), l.opts.CallTimeout, g.term, l.leave)
	}
	if l.session != nil {
		l.session.destroy()
		l.db.Close()
		l.session = nil
	}
	if first, others, ok := strings.Cut(l.opts.DSN, "\n"); ok && g.term == 0 {
		l.opts.DSN = others + "\n" + first
	}
}

// ask sends statements, if the work is healthy, and waits for the answer of the last
// one for so long, and until ctx ends. All that may hang does so in a goroutine that
// nobody waits for longer: the health check, the pool, the driver. A session whose
// answer comes too late is destroyed by the caller, or else a campaign would go on at
// the server, to be elected with nobody knowing.
func (l *Leadership) ask(ctx context.Context, d time.Duration, term int64, calls ...string) grant {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	answers, db, last := make(chan grant, 1), l.db, len(calls)-1
	go func() {
		own, cancel := context.WithTimeout(context.Background(), l.patience)
		defer cancel()
		g := grant{err: errUnhealthy}
		if l.opts.HealthCheck == nil || calls[0] == l.leave || l.opts.HealthCheck() {
			g.err = ctx.Err() // a check that took too long must not renew
		}
		for i := 0; i < last && g.err == nil; i++ {
			_, g.err = db.ExecContext(own, l.sql(calls[i], term))
		}
		sent, ms := l.now(), time.Duration(0)
		if g.err == nil {
			row := db.QueryRowContext(own, l.sql(calls[last], term))
			g.err = row.Scan(&g.term, &ms, &g.yielding)
		}
		g.deadline = sent.Add(ms * time.Millisecond / l.part)
		answers <- g
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
func (l *Leadership) idle(ctx context.Context, d time.Duration, wake <-chan *pq.Notification) bool {
	if s := l.session; s != nil {
		// What comes in, the end of the connection above all, is left to the next call.
		_ = s.SetReadDeadline(time.Now().Add(d))
		if ctx.Err() == nil { // or else the end of fn may have been before
			_, _ = s.in.Peek(1)
		}
		return ctx.Err() == nil
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	case <-wake: // a hint and no more
	}
	return ctx.Err() == nil
}

// SetMetadata changes what view status shows of us, JSON: from the next renewal
// on, or when we lead next.
func (l *Leadership) SetMetadata(json string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.metadata = json
}

// sql has the arguments as literals: a statement without parameters is not
// prepared by lib/pq, so that it passes a pooler.
func (l *Leadership) sql(statement string, term int64) string {
	o, quote := &l.opts, pq.QuoteLiteral
	l.mu.Lock()
	metadata := l.metadata
	l.mu.Unlock()
	return strings.NewReplacer("$election", quote(o.Election), "$candidate", quote(o.Candidate),
		"$rank", fmt.Sprint(o.Rank), "$metadata", quote(metadata), "$term", fmt.Sprint(term),
		"$request", l.request, "$slice", fmt.Sprint(o.Slice.Milliseconds())).Replace(statement)
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
func (s *session) DialContext(_ context.Context, network, address string) (_ net.Conn, err error) {
	if s.Conn != nil {
		return nil, net.ErrClosed
	}
	s.Conn, err = (&net.Dialer{KeepAlive: 5 * time.Second}).DialContext(s.ctx, network, address)
	if err == nil {
		s.in = bufio.NewReader(s.Conn)
		go func() {
			<-s.ctx.Done()
			s.Close()
		}()
	}
	return s, err
}

// Read waits without the limit that idle has set.
func (s *session) Read(b []byte) (int, error) {
	_ = s.SetReadDeadline(time.Time{})
	return s.in.Read(b)
}

// A Fake is a Leadership that a test moves, also in time. Elect waits for Run,
// and for the function of the last term.
type Fake struct {
	*Leadership
	clock time.Time
}

// NewFake makes one. Hand its Leadership to what is tested, which calls Run.
func NewFake(opts Options) *Fake {
	f := &Fake{newLeadership(opts), time.Now()}
	f.unfenced = true
	f.now = func() time.Time { return f.clock }
	f.stand = func() grant { return grant{err: sql.ErrNoRows} } // Elect does not come by this way
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
