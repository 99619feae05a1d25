// Package leaderelection is the client of the PostgreSQL extension
// leader_election for database/sql and lib/pq. It stands in an election, says
// when it leads and when no longer, and reconnects by itself.
//
// The invariant: Term is never given out after the deadline, which is counted
// from the sending of the last answered renewal; every elected has exactly one
// lost; lost is reported, and its handlers and the function of Run have
// returned, before the lease is given back.
//
// The clock is CLOCK_BOOTTIME on 64-bit Linux. Elsewhere it is Go's monotonic
// clock, which may stop while the machine sleeps: send the term with your work
// (Fenced) where a machine can sleep.
package leaderelection

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	mathrand "math/rand"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/lib/pq"
)

// Options say in which election to stand, and how. Only Election is needed;
// a session needs DSN, too, unless the PG* environment says where to connect.
// Handlers are called one after the other and in order; they must not call
// Close. A panic in one is logged.
type Options struct {
	DSN         []string      // of a session: connection strings of lib/pq, one a host, tried in turn
	Election    string        // in which to stand
	Candidate   string        // the name of this instance; default host-pid-random
	Rank        int           // what strategies compare
	Metadata    string        // JSON, shown while this candidate leads
	HealthCheck func() bool   // false, or no return: the lease is not renewed
	Slice       time.Duration // how long one call of campaign() waits; default 5 s
	CallTimeout time.Duration // how long an answer may take; default 5 s
	Interval    time.Duration // how often a detached follower asks; default 1 s
	Listen      string        // detached: the connection string of a connection for LISTEN

	OnElected func(term int64)
	OnLost    func(reason string)
	OnYield   func(term int64) // asked to go: finish, and call Resign; without it we resign at once

	Logf func(format string, v ...any) // default log.Printf
}

// Errors beside those of the server, which are passed on as they are.
var (
	ErrNotLeader = errors.New("leaderelection: not the leader")
	ErrClosed    = errors.New("leaderelection: closed")
	errUnhealthy = errors.New("the health check failed")
	errLate      = errors.New("no answer in time")
)

// Leadership is a candidate: of a session (New), detached (NewDetached), the
// only one there is (NewSole), or one that a test moves (NewFake). Its methods
// may be called from any goroutine.
type Leadership struct {
	opts    Options
	engine  func() error         // stands until closing; returns the fatal error
	now     func() time.Duration // the clock of the deadline
	begun   chan struct{}        // closed by Start and Run
	closing chan struct{}        // closed by Close
	done    chan struct{}        // closed when the engine has ended
	wake    chan struct{}        // a notification came
	result  chan error           // what the function of Run returned by itself
	fn      func(context.Context, int64) error
	base    context.Context // of Run
	check   chan bool       // the answer of the health check that is under way
	local   bool            // no server: Fenced looks at fence alone
	fence   error

	mu       sync.Mutex
	leading  bool
	held     bool // the handlers of the last leadership may not have returned
	yielding bool // the server has asked this term to go
	term     int64
	deadline time.Duration
	closedAt time.Duration
	changes  int64
	reason   string
	err      error
	over     chan struct{} // closed when this leadership ends
	changed  chan struct{} // closed when something that Wait waits for happened
	event    chan struct{} // closed when the last event's handlers have returned
	cancel   context.CancelFunc
	finished chan struct{} // closed when the function of Run has returned
	timer    *time.Timer
	conn     *session
}

func newLeadership(opts Options) *Leadership {
	defaults := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	defaults(&opts.Slice, 5*time.Second)
	defaults(&opts.CallTimeout, 5*time.Second)
	defaults(&opts.Interval, time.Second)
	if opts.Candidate == "" {
		host, _ := os.Hostname()
		random := make([]byte, 4)
		_, _ = rand.Read(random)
		opts.Candidate = fmt.Sprintf("%s-%d-%x", host, os.Getpid(), random)
	}
	if opts.Logf == nil {
		opts.Logf = log.Printf
	}
	if len(opts.DSN) == 0 {
		opts.DSN = []string{""}
	}
	l := &Leadership{opts: opts, now: clock, base: context.Background(), begun: make(chan struct{}),
		closing: make(chan struct{}), done: make(chan struct{}), wake: make(chan struct{}, 1),
		result: make(chan error, 1), changed: make(chan struct{}), event: make(chan struct{})}
	close(l.event)
	return l
}

// New makes a session candidate, with a connection of its own.
func New(opts Options) *Leadership {
	l := newLeadership(opts)
	l.engine = l.standInSessions
	return l
}

// NewDetached makes a detached candidate over the application's own pool, of
// any driver. The pool has to have a connection to spare for each call; one
// whose answer does not come in time is thrown away when the driver returns.
func NewDetached(db *sql.DB, opts Options) *Leadership {
	l := newLeadership(opts)
	l.engine = func() error { return l.standDetached(db) }
	return l
}

// NewSole makes one that always leads and asks no server, for laptops. It has
// no term: Term says none, OnElected and the function of Run get 0, and Fenced
// refuses, unless unfenced is true.
func NewSole(opts Options, unfenced bool) *Leadership {
	l := newLeadership(opts)
	if l.local = true; !unfenced {
		l.fence = errors.New("leaderelection: NewSole issues no term that could fence a transaction")
	}
	l.engine = func() error {
		if over := l.elect(0, math.MaxInt64); over != nil {
			<-over
		}
		return nil
	}
	return l
}

// Start begins to stand and returns at once. A candidate is started once.
func (l *Leadership) Start() error { return l.start(context.Background(), nil) }

func (l *Leadership) start(ctx context.Context, fn func(context.Context, int64) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.begun) {
		return errors.New("leaderelection: already started")
	} else if isClosed(l.closing) {
		return ErrClosed
	}
	l.base, l.fn = ctx, fn
	close(l.begun)
	go func() {
		err := l.engine()
		l.end("error")
		l.settle()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.err = firstError(err, ErrClosed)
		close(l.changed)
		close(l.done)
	}()
	return nil
}

// Run stands, and calls fn in each term. The context of fn is cancelled when
// the leadership is lost (Reason says why). Then fn has to return: the lease is
// given back after that, and Run stands again. If fn returns by itself, Run
// gives the lease back and returns what fn returned. Run returns ctx.Err() when
// ctx is cancelled, and the fatal error if there is one; never before fn has
// returned. A panic in fn ends the program, as it should: others take over.
func (l *Leadership) Run(ctx context.Context, fn func(ctx context.Context, term int64) error) (err error) {
	if err = l.start(ctx, fn); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case err = <-l.result:
	case <-l.done:
		err = l.Err()
	}
	_ = l.Close()
	<-l.done
	return err
}

// Term is the term, and whether we lead in one now. It never blocks.
func (l *Leadership) Term() (int64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.leading || l.term == 0 || l.now() >= l.deadline {
		return 0, false
	}
	return l.term, true
}

// Leads says whether we lead now: a gauge, where metrics are collected.
func (l *Leadership) Leads() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leading && l.now() < l.deadline
}

// Changes counts how often this candidate was elected.
func (l *Leadership) Changes() int64 { return get(l, &l.changes) }

// Reason says why the last leadership ended: resigned, closed, yielded,
// expired (the local deadline passed), connection lost, not renewed (the server
// says that the term is over), unhealthy, failover (a new term follows), error.
func (l *Leadership) Reason() string { return get(l, &l.reason) }

// Err says why the candidate has ended: the fatal error, or ErrClosed.
func (l *Leadership) Err() error { return get(l, &l.err) }

// Done is closed when the candidate has ended, by Close or by a fatal error.
func (l *Leadership) Done() <-chan struct{} { return l.done }

// Wait waits until we lead and returns the term, or the fatal error, ErrClosed
// or ctx.Err().
func (l *Leadership) Wait(ctx context.Context) (int64, error) {
	for {
		l.mu.Lock()
		changed, term, err := l.changed, l.term, l.err
		leads := l.leading && l.now() < l.deadline
		l.mu.Unlock()
		if leads {
			return term, nil
		} else if err != nil {
			return 0, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// Fenced has tx, on whatever connection, commit only if our term still leads
// then: ErrNotLeader if we do not lead, LE001 and LE002 from the server.
func (l *Leadership) Fenced(ctx context.Context, tx *sql.Tx) error {
	term, ok := l.Term()
	if l.local && (l.fence != nil || l.Leads()) {
		return l.fence
	} else if !ok {
		return ErrNotLeader
	}
	_, err := tx.ExecContext(ctx, fmt.Sprintf("SELECT leader_election.assert_leader(%s, %d)", l.name(), term))
	return err
}

// Resign gives up the leadership, if we lead, and goes on standing after a
// second. Term is none when it returns; the lease is given back after the
// handlers. NewSole's never resigns.
func (l *Leadership) Resign() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leading && l.term != 0 {
		l.endLocked("resigned")
	}
}

// Close gives up, withdraws and ends all that Start began. It waits for that as
// long as CallTimeout. An error says that it has not come to an end by then,
// because a handler, or the function of Run, has not returned: the lease is
// given back when it does.
func (l *Leadership) Close() error {
	l.mu.Lock()
	if !isClosed(l.closing) {
		l.closedAt = l.now()
		close(l.closing)
		l.endLocked("closed")
		// A follower: break off what it waits for. A leader's connection has to
		// stay until its handlers have returned.
		if l.conn != nil && !l.held {
			l.conn.destroy()
		}
	}
	l.mu.Unlock()
	if !isClosed(l.begun) {
		return nil
	}
	select {
	case <-l.done:
		return nil
	case <-time.After(l.opts.CallTimeout + 200*time.Millisecond):
		return errors.New("leaderelection: a handler has not returned")
	}
}

// ---- state and events ----

// post queues an event. Each waits for the one before, so handlers are called
// one after the other and in order. The caller has mu.
func (l *Leadership) post(f func()) {
	before, done := l.event, make(chan struct{})
	l.event = done
	go func() {
		<-before
		defer close(done)
		f()
	}()
}

// guard calls a handler. A panic in it is logged and does not end the engine.
func (l *Leadership) guard(f func()) {
	defer func() {
		if p := recover(); p != nil {
			l.opts.Logf("leaderelection: %s: panic in a handler: %v", l.opts.Election, p)
		}
	}()
	f()
}

// elect begins a leadership and returns the channel that is closed when it
// ends; nil if it is over or unwanted already: then the caller has to give back
// what the server has granted.
func (l *Leadership) elect(term int64, deadline time.Duration) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.closing) || l.now() >= deadline {
		return nil
	}
	ctx, cancel := context.WithCancel(l.base)
	over, finished, fn := make(chan struct{}), make(chan struct{}), l.fn
	l.leading, l.held, l.yielding, l.term, l.deadline = true, true, false, term, deadline
	l.over, l.cancel, l.finished = over, cancel, finished
	l.changes++
	close(l.changed)
	l.changed = make(chan struct{})
	l.timer = time.AfterFunc(0, func() { l.expire(over) })
	l.post(func() {
		if l.opts.OnElected != nil {
			l.guard(func() { l.opts.OnElected(term) })
		}
		if fn == nil || ctx.Err() != nil {
			close(finished)
			return
		}
		go func() {
			err := fn(ctx, term)
			if ctx.Err() == nil { // it returned by itself
				select {
				case l.result <- err:
				default:
				}
			}
			close(finished)
		}()
	})
	return over
}

// expire ends a leadership at its deadline. It looks once a second, because
// timers do not count the time in which the machine sleeps.
func (l *Leadership) expire(over chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.leading || l.over != over {
		return
	}
	if left := l.deadline - l.now(); left <= 0 {
		l.endLocked("expired")
	} else if left < time.Second {
		l.timer.Reset(left)
	} else {
		l.timer.Reset(time.Second)
	}
}

// end ends the leadership, if there is one, and returns what is closed when the
// handlers have returned.
func (l *Leadership) end(reason string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(reason)
	return l.event
}

func (l *Leadership) endLocked(reason string) {
	if !l.leading {
		return
	}
	if l.now() >= l.deadline {
		reason = "expired" // whoever was the first to notice
	} else if reason == "resigned" && l.yielding {
		reason = "yielded"
	}
	l.leading, l.reason = false, reason
	finished := l.finished
	l.timer.Stop()
	l.cancel()
	close(l.over)
	l.post(func() {
		if l.opts.OnLost != nil {
			l.guard(func() { l.opts.OnLost(reason) })
		}
		<-finished
	})
}

// settle waits until all handlers have returned.
func (l *Leadership) settle() {
	<-get(l, &l.event)
	l.mu.Lock()
	l.held = false
	l.mu.Unlock()
}

func get[T any](l *Leadership, field *T) T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *field
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// ---- what sessions and detached candidates have in common ----

// A link is how an engine asks the server: its session, or the pool.
type link interface {
	// ask returns the first row, nil if there is none. An answer that comes
	// after the timeout is none: nobody leads by it.
	ask(query string, timeout time.Duration, stop <-chan struct{}) ([]driver.Value, error)
	// idle waits, until stop is closed at most. An error: the connection is lost.
	idle(d time.Duration, stop <-chan struct{}) error
}

const grantColumns = "SELECT term, remaining_ms, yielding FROM leader_election."

type grant struct {
	term           int64
	sent, deadline time.Duration
	yielding       bool
}

// request asks for a grant; nil if the server has none. The deadline counts
// from before the sending: the answer may have been under way for long.
func (l *Leadership) request(c link, call string, timeout time.Duration, stop <-chan struct{}) (*grant, error) {
	g := &grant{sent: l.now()}
	row, err := c.ask(grantColumns+call, timeout, stop)
	if err != nil || row == nil {
		return nil, err
	}
	g.term, _ = row[0].(int64)
	ms, _ := row[1].(int64)
	g.yielding, _ = row[2].(bool)
	// Half of it for a session: the server may end the session of a peer that
	// went silent sooner than its lease ends, and then another leads at once.
	if _, session := c.(*session); session {
		ms /= 2
	}
	g.deadline = g.sent + time.Duration(ms)*time.Millisecond
	return g, nil
}

// lead leads by g until that ends and the handlers have returned. It returns
// why, "" if g came too late, and the term. The caller gives the lease back.
func (l *Leadership) lead(c link, g *grant) (reason string, term int64, err error) {
	_, session := c.(*session)
	call, wait, third, retry := "renew("+l.name()+")", time.Duration(0), time.Duration(0), backoff{}
	over := l.elect(g.term, g.deadline)
	for over != nil {
		if g != nil {
			third = (g.deadline - g.sent) / 3
			term, wait, retry = g.term, third-(l.now()-g.sent), backoff{}
			l.extend(g, over)
		}
		if e := c.idle(wait, over); e != nil && !isClosed(over) {
			l.logf("connection lost: %v", e)
			l.end("connection lost")
		} else if !l.healthy(over, math.MaxInt64) {
			l.end("unhealthy")
		}
		if isClosed(over) {
			l.settle()
			return l.Reason(), term, err
		}
		if !session {
			call = fmt.Sprintf("renew(%s, %d)", l.name(), term)
		}
		var e error
		g, e = l.request(c, call, l.left(), over)
		switch state := sqlState(e); {
		case e != nil && fatal(e):
			err = e
			l.end("error")
		case state == "LE006" || e == nil && (g == nil || session && g.term != term):
			l.end("not renewed")
		case e != nil && session && (state == "" || strings.HasPrefix(state, "57P") || strings.HasPrefix(state, "08")):
			l.logf("renew: %v", e)
			l.end("connection lost")
		case e != nil && !isClosed(over):
			// Unknown, or busy: we lead on, up to the deadline that we have.
			l.logf("renew: %v", e)
			wait = retry.next(third)
		case e == nil && g.term != term:
			l.end("failover")
			over = l.elect(g.term, g.deadline)
		}
	}
	l.settle()
	return "", g.term, errLate
}

// extend notes the deadline of g, and that the server asks us to go.
func (l *Leadership) extend(g *grant, over chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leading && l.over == over {
		l.deadline = g.deadline
		if g.yielding && !l.yielding {
			l.yielding = true
			if f := l.opts.OnYield; f != nil {
				l.post(func() { l.guard(func() { f(g.term) }) })
			} else {
				l.endLocked("yielded")
			}
		}
	}
}

// left is how long a call may take: CallTimeout, but not past the deadline of
// the leadership, nor past CallTimeout after Close.
func (l *Leadership) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.opts.CallTimeout
	if l.leading && left > l.deadline-l.now() {
		left = l.deadline - l.now()
	} else if isClosed(l.closing) {
		if left -= l.now() - l.closedAt; left < 100*time.Millisecond {
			left = 100 * time.Millisecond
		}
	}
	return left
}

// healthy calls the health check, in a goroutine of its own: one that hangs
// must hold up neither the deadline nor Close. While it has not returned, it is
// not called again.
func (l *Leadership) healthy(stop <-chan struct{}, limit time.Duration) bool {
	if l.opts.HealthCheck == nil {
		return true
	}
	if l.check == nil {
		check := make(chan bool, 1)
		l.check = check
		go func() {
			ok := false
			l.guard(func() { ok = l.opts.HealthCheck() })
			check <- ok
		}()
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case ok := <-l.check:
		l.check = nil
		return ok
	case <-timer.C:
	case <-stop:
	}
	return false
}

// sleep waits for d, for wake, or until stop is closed.
func (l *Leadership) sleep(d time.Duration, stop, wake <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-stop:
	}
}

func (l *Leadership) name() string { return pq.QuoteLiteral(l.opts.Election) }

// candidacy is the arguments with which we stand, as literals: a statement
// without parameters is not prepared by lib/pq, so that it passes a pooler.
func (l *Leadership) candidacy() string {
	s := fmt.Sprintf("%s, %s, rank => %d", l.name(), pq.QuoteLiteral(l.opts.Candidate), l.opts.Rank)
	if l.opts.Metadata != "" {
		s += ", metadata => " + pq.QuoteLiteral(l.opts.Metadata)
	}
	return s
}

func (l *Leadership) logf(format string, v ...any) {
	l.opts.Logf("leaderelection: %s: "+format, append([]any{l.opts.Election}, v...)...)
}

type backoff struct{ d time.Duration }

// next is 0.1 s, doubling up to most, less up to a half by chance.
func (b *backoff) next(most time.Duration) time.Duration {
	if b.d *= 2; b.d == 0 {
		b.d = 100 * time.Millisecond
	}
	if b.d > most {
		b.d = most
	}
	return b.d - time.Duration(mathrand.Int63n(int64(b.d)/2+1))
}

// sqlState is that of an error of lib/pq or pgx; "" of one that is not the
// server's.
func sqlState(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) && len(e.SQLState()) == 5 {
		return e.SQLState()
	}
	return ""
}

// firstError is the first of these that is one.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// fatal says whether the same call would be answered the same again.
func fatal(err error) bool {
	switch state := sqlState(err); state {
	case "3D000", "3F000", "42883", "42P01", "42501", "22023", "0A000", "25001", "LE003":
		return true
	default:
		return errors.Is(err, pq.ErrSSLNotSupported) || strings.HasPrefix(state, "28")
	}
}

func explain(err error) error {
	if state := sqlState(err); state == "3F000" || state == "42883" {
		return fmt.Errorf("leaderelection: the database lacks the extension (CREATE EXTENSION leader_election): %w", err)
	}
	return fmt.Errorf("leaderelection: %w", err)
}

// ---- sessions ----

// A session is a connection of our own. We own its socket: destroy ends
// whatever waits on it, and its candidacy at the server.
type session struct {
	pq.Dialer // for its names: lib/pq calls DialContext
	l         *Leadership
	ctx       context.Context
	cancel    context.CancelFunc
	conn      driver.Conn
	mu        sync.Mutex
	dead      bool
	wire      *wire
	stood     bool // the server has answered a campaign
}

func (l *Leadership) newSession() *session {
	s := &session{l: l}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// A wire is a socket of lib/pq that can be watched while lib/pq does not read:
// what comes in meanwhile is kept for lib/pq's next Read.
type wire struct {
	net.Conn
	held []byte
}

func (w *wire) Read(b []byte) (int, error) {
	if len(w.held) > 0 {
		n := copy(b, w.held)
		w.held = w.held[n:]
		return n, nil
	}
	return w.Conn.Read(b)
}

func (s *session) destroy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = true
	s.cancel()
	if s.wire != nil {
		s.wire.Close()
	}
}

// DialContext is what lib/pq connects by.
func (s *session) DialContext(_ context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: s.l.opts.CallTimeout, KeepAlive: 5 * time.Second}).DialContext(s.ctx, network, address)
	if err != nil {
		return nil, err
	}
	watchPeer(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wire = (&wire{Conn: c}); s.dead {
		c.Close()
	}
	return s.wire, nil
}

// watchPeer has the kernel give up a peer that went silent: after 11 s when
// idle, after 10 s with data on their way. The latter, and the number of
// probes, are set on Linux only.
func watchPeer(c net.Conn) {
	tcp, ok := c.(*net.TCPConn)
	if !ok || runtime.GOOS != "linux" {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			for option, value := range map[int]int{4: 5, 5: 2, 6: 3, 18: 10000} { // TCP_KEEPIDLE, _KEEPINTVL, _KEEPCNT, _USER_TIMEOUT
				_ = setsockopt(syscall.SetsockoptInt, fd, option, value)
			}
		})
	}
}

// setsockopt makes of fd what the system takes for a socket.
func setsockopt[T ~int | ~uintptr](set func(T, int, int, int) error, fd uintptr, option, value int) error {
	return set(T(fd), syscall.IPPROTO_TCP, option, value)
}

// connect connects within CallTimeout.
func (s *session) connect(dsn string) (err error) {
	defer func() {
		if p := recover(); p != nil { // lib/pq's, of an environment that it does not support
			err = &pq.Error{Code: "22023", Message: fmt.Sprint(p)}
		}
	}()
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		return &pq.Error{Code: "22023", Message: err.Error()}
	}
	connector.Dialer(s)
	timer := time.AfterFunc(s.l.opts.CallTimeout, s.destroy)
	s.conn, err = connector.Connect(s.ctx)
	if !timer.Stop() {
		return errLate
	}
	return err
}

// ask gives its own timer to each call: one that only gave up waiting would
// leave a campaign at the server, to be elected with nobody knowing. A leader's
// handlers return before its socket is destroyed, for that gives the lease back.
func (s *session) ask(query string, timeout time.Duration, _ <-chan struct{}) (row []driver.Value, err error) {
	timer := time.AfterFunc(timeout, func() {
		<-s.l.end("connection lost")
		s.destroy()
	})
	rows, err := s.conn.(driver.QueryerContext).QueryContext(context.Background(), query, nil)
	if err == nil {
		dest := make([]driver.Value, len(rows.Columns()))
		if err = rows.Next(dest); err == nil {
			row = dest
			err = rows.Next(make([]driver.Value, len(dest)))
		}
		if err == io.EOF {
			err = nil
		}
		rows.Close()
	}
	if !timer.Stop() {
		return nil, errLate
	}
	return row, err
}

// idle watches the socket: the end of the connection is the end of the
// leadership at that moment.
func (s *session) idle(d time.Duration, stop <-chan struct{}) error {
	lost, w := make(chan error, 1), s.wire
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := w.Conn.Read(b)
			w.held = append(w.held, b[:n]...)
			if err != nil {
				lost <- err
				return
			}
		}
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case err := <-lost:
		return err
	case <-timer.C:
	case <-stop:
	}
	_ = w.SetReadDeadline(time.Unix(1, 0))
	if err := <-lost; !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return w.SetReadDeadline(time.Time{})
}

// standInSessions stands over one connection after the other.
func (l *Leadership) standInSessions() error {
	var retry backoff
	for host := 0; ; {
		for !l.healthy(l.closing, l.opts.CallTimeout) && !isClosed(l.closing) {
			l.sleep(500*time.Millisecond, l.closing, nil)
		}
		s := l.newSession()
		l.mu.Lock()
		l.conn = s // from now on Close destroys it
		l.mu.Unlock()
		var err error
		if !isClosed(l.closing) {
			err = l.stand(s, l.opts.DSN[host%len(l.opts.DSN)])
		}
		s.destroy()
		if isClosed(l.closing) {
			return nil
		} else if fatal(err) {
			return explain(err)
		}
		l.logf("stands again after: %v", err)
		if s.stood {
			retry = backoff{}
		} else if host++; host%len(l.opts.DSN) != 0 {
			continue
		}
		l.sleep(retry.next(5*time.Second), l.closing, nil)
	}
}

// stand stands over one connection, until an error, after which the caller
// destroys it. Only after a resignation it is used further.
func (l *Leadership) stand(s *session, dsn string) error {
	call := func(statement string, timeout time.Duration, args ...any) ([]driver.Value, error) {
		return s.ask(fmt.Sprintf(statement, args...), timeout, nil)
	}
	candidate, limit := pq.QuoteLiteral(l.opts.Candidate), l.opts.CallTimeout
	if err := s.connect(dsn); err != nil {
		return err
	}
	// The time limits that a role or the server has would end a waiting campaign.
	if _, err := call("SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name OPERATOR(pg_catalog.=) "+
		"ANY ('{statement_timeout,transaction_timeout,idle_session_timeout}'::pg_catalog.text[])", limit); err != nil {
		return err
	}
	row, err := call("SELECT leader_election.join(%s, auto_renew => %t)", limit, l.candidacy(), l.opts.HealthCheck == nil)
	for err == nil {
		if !l.healthy(l.closing, limit) {
			return errUnhealthy
		}
		if len(row) == 1 && row[0] != nil {
			if err := l.leadSession(s); err != nil {
				return err
			}
		}
		row, err = call("CALL leader_election.campaign(%s, %s, timeout => '%d ms'::pg_catalog.interval)", l.opts.Slice+limit,
			l.name(), candidate, l.opts.Slice.Milliseconds())
		s.stood = s.stood || err == nil
	}
	return err
}

// leadSession leads, and gives the lease back. nil: the session stands on.
func (l *Leadership) leadSession(s *session) error {
	g, err := l.request(s, "renew("+l.name()+")", l.opts.CallTimeout, nil)
	if err != nil {
		return err
	} else if g == nil {
		return errors.New("elected, but not any more")
	}
	s.stood = true
	reason, _, err := l.lead(s, g)
	switch {
	case err != nil:
	case reason == "resigned" || reason == "yielded":
		if _, err = s.ask("SELECT leader_election.resign("+l.name()+")", l.left(), nil); err == nil {
			err = s.idle(time.Second, l.closing)
		}
	case reason == "closed" || reason == "unhealthy":
		_, _ = s.ask("SELECT leader_election.leave("+l.name()+")", l.left(), nil)
		err = errors.New(reason)
	default:
		err = errors.New(reason)
	}
	// Close does not destroy the connection before the handlers have returned.
	if err == nil && isClosed(l.closing) {
		err = ErrClosed
	}
	return err
}

// ---- detached candidates ----

type pool struct {
	l       *Leadership
	db      *sql.DB
	acquire string // the statement whose answer must not get lost
}

func (p *pool) idle(d time.Duration, stop <-chan struct{}) error {
	p.l.sleep(d, stop, p.l.wake)
	return nil
}

// standDetached asks for the lease every Interval, and when listen heard of a
// change.
func (l *Leadership) standDetached(db *sql.DB) error {
	acquire, standing, retry := "acquire("+l.candidacy()+")", false, backoff{}
	p := &pool{l, db, grantColumns + acquire}
	leave := func() {
		if standing {
			_, _ = p.ask(fmt.Sprintf("SELECT leader_election.leave(%s, %s)", l.name(), pq.QuoteLiteral(l.opts.Candidate)), l.left(), nil)
		}
		standing = false
	}
	defer leave()
	if l.opts.Listen != "" {
		go l.listen()
	}
	for !isClosed(l.closing) {
		if !l.healthy(l.closing, l.opts.CallTimeout) {
			leave()
			l.sleep(500*time.Millisecond, l.closing, nil)
			continue
		}
		standing = true
		pause, wake := l.opts.Interval, l.wake
		g, err := l.request(p, acquire, l.opts.CallTimeout, nil)
		if err == nil {
			retry = backoff{}
		} else if pause = retry.next(5 * time.Second); !fatal(err) {
			l.logf("acquire: %v", err)
		}
		if g != nil {
			var reason string
			var term int64
			if reason, term, err = l.lead(p, g); reason != "not renewed" {
				_, _ = p.ask(l.release(term), l.left(), nil)
			}
			if reason == "resigned" || reason == "yielded" {
				pause, wake = time.Second, nil
			}
		}
		if err != nil && fatal(err) {
			return explain(err)
		}
		l.sleep(pause, l.closing, wake)
	}
	return nil
}

func (l *Leadership) release(term any) string {
	return fmt.Sprintf("SELECT leader_election.release(%s, %d)", l.name(), term)
}

// listen wakes the engine when something has changed in our election. It is a
// hint and no more: without it, the engine asks every Interval.
func (l *Leadership) listen() {
	s := l.newSession()
	listener := pq.NewDialListener(s, l.opts.Listen, 100*time.Millisecond, 5*time.Second, nil)
	go func() {
		<-l.closing
		s.destroy()
		listener.Close()
	}()
	if err := listener.Listen("leadership_changed"); err != nil {
		l.logf("listen: %v", err)
	}
	for n := range listener.NotificationChannel() {
		var change struct{ Election string }
		if n != nil && (json.Unmarshal([]byte(n.Extra), &change) != nil || change.Election != l.opts.Election) {
			continue
		}
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// ask asks over any connection of the pool, in a goroutine: neither a pool
// without a free connection, nor a driver that waits for a dead path, may hold
// up the engine. A grant that comes when nobody waits for it is released.
func (p *pool) ask(query string, timeout time.Duration, stop <-chan struct{}) ([]driver.Value, error) {
	type answer struct {
		row []driver.Value
		err error
	}
	answers, late := make(chan answer, 1), new(atomic.Bool)
	go func() {
		// A driver that heeds its context frees the connection after that.
		ctx, cancel := context.WithTimeout(context.Background(), 2*timeout)
		defer cancel()
		conn, err := p.db.Conn(ctx)
		if err != nil {
			answers <- answer{nil, err}
			return
		}
		defer conn.Close()
		row, err := []driver.Value(nil), errLate
		if !late.Load() {
			row, err = queryRow(ctx, conn, query)
		}
		abandoned := late.Swap(true)
		if abandoned || sqlState(err) == "25006" { // late, or of a server that is a standby by now
			if abandoned && row != nil && query == p.acquire {
				_, _ = queryRow(ctx, conn, p.l.release(row[0]))
			}
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		}
		answers <- answer{row, err}
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a.row, a.err
	case <-timer.C:
	case <-stop:
	}
	if late.Swap(true) { // it comes just now
		a := <-answers
		return a.row, a.err
	}
	return nil, errLate
}

func queryRow(ctx context.Context, conn *sql.Conn, query string) ([]driver.Value, error) {
	rows, err := conn.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil || !rows.Next() {
		return nil, firstError(err, rows.Err())
	}
	row, dest := make([]driver.Value, len(columns)), make([]any, len(columns))
	for i := range row {
		dest[i] = &row[i]
	}
	return row, firstError(rows.Scan(dest...), rows.Close())
}

// ---- the clock ----

var clockStart = time.Now()

// clock counts suspend on 64-bit Linux (CLOCK_BOOTTIME, 7). This file has to
// compile elsewhere, too, where the type of the system call, or its number, is
// unknown.
var clock = func() func() time.Duration {
	monotonic := func() time.Duration { return time.Since(clockStart) }
	call, ok := any(syscall.Syscall).(func(trap, a1, a2, a3 uintptr) (uintptr, uintptr, syscall.Errno))
	number := map[string]uintptr{"amd64": 228, "arm64": 113, "riscv64": 113, "ppc64le": 246, "s390x": 260}[runtime.GOARCH]
	if !ok || number == 0 || runtime.GOOS != "linux" {
		return monotonic
	}
	var mu sync.Mutex
	now := new([2]int64) // not on a stack, which may move
	boottime := func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		if _, _, errno := call(number, 7, uintptr(unsafe.Pointer(now)), 0); errno != 0 {
			return -1
		}
		return time.Duration(now[0]*int64(time.Second) + now[1])
	}
	if boottime() < 0 {
		return monotonic
	}
	return boottime
}()

// ---- for tests ----

// A Fake is a Leadership that a test moves, also in time. Its methods return
// when the handlers have returned; none of them may be called from a handler.
type Fake struct {
	*Leadership
	elapsed atomic.Int64
}

// NewFake makes one. Hand its Leadership to what is tested, which calls Start
// or Run.
func NewFake(opts Options) *Fake {
	f := &Fake{Leadership: newLeadership(opts)}
	f.local = true
	f.now = func() time.Duration { return time.Duration(f.elapsed.Load()) }
	f.engine = func() error { <-f.closing; return nil }
	return f
}

// Elect has it elected, once it was started, for a lease, and returns the term.
// 0: the next term, 15 s.
func (f *Fake) Elect(term int64, lease time.Duration) int64 {
	<-f.begun
	f.Lose("failover")
	if term == 0 {
		term = get(f.Leadership, &f.term) + 1
	}
	if lease == 0 {
		lease = 15 * time.Second
	}
	f.elect(term, f.now()+lease)
	f.settle()
	return term
}

// Lose ends the leadership.
func (f *Fake) Lose(reason string) { <-f.end(reason) }

// AskYield asks the leader to go, once a term.
func (f *Fake) AskYield() {
	f.mu.Lock()
	over, g := f.over, &grant{term: f.term, deadline: f.deadline, yielding: true}
	f.mu.Unlock()
	f.extend(g, over)
	f.settle()
}

// Advance moves the clock.
func (f *Fake) Advance(d time.Duration) {
	f.elapsed.Add(int64(d))
	f.expire(get(f.Leadership, &f.over))
	f.settle()
}
