package leaderelection

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/lib/pq"
)

// A grant is a lease: a term, until when we may believe in it, and whether the
// server asks that term to go.
type grant struct {
	term     int64
	deadline time.Time
	yielding bool
}

// A link is how a kind of candidate (session, detached, ...) calls its election. Only
// the goroutine of Run uses it, but for wake, which the goroutine of fn calls.
type link interface {
	// stand asks to be elected. A session waits for that, for a slice or until ctx has
	// ended. It returns errNotGranted if it was not elected.
	stand(ctx context.Context) (grant, error)
	// renew returns a grant of another term after a failover of the server, and
	// errNotGranted if the term is over.
	renew(term int64) (grant, error)
	// leave gives the term back, if there is one (not 0), and withdraws. If that fails,
	// nobody is told: the lease ends by itself.
	leave(term int64)
	// idle is a leader's pause between renewals: it waits for d, until something has
	// happened, or until ctx has ended (a session: and wake was called).
	idle(ctx context.Context, d time.Duration)
	// wake ends idle. It is called when ctx has ended and fn has returned.
	wake()
}

// Errors of links. All others are a server's, or say that there is none.
var (
	errNotGranted = errors.New("not granted")
	errNoAnswer   = errors.New("no answer in time")
	errStandby    = errors.New("a standby, or a server in recovery")
)

// notByPrimary marks an error that is no primary's word: one of the login, or of a standby.
type notByPrimary struct{ error }

func (e notByPrimary) Unwrap() error { return e.error }

// ofStandby marks an error that a standby has answered to a call of a pool.
type ofStandby struct{ error }

func (e ofStandby) Unwrap() error { return e.error }

// final marks an error that only the program's author can mend: it ends Run at once.
type final struct{ error }

func (e final) Unwrap() error { return e.error }

// finalError makes a final error.
func finalError(sqlState, format string, args ...any) error {
	return final{&pq.Error{Code: pq.ErrorCode(sqlState), Message: fmt.Sprintf(format, args...)}}
}

// What the goroutine of Run does

// A phase is one of the states of the drawing in leaderelection.go. Closed is none of
// them: turn is not called then.
type phase int

const (
	standing phase = iota
	leads
	losing // it does not lead any more, but fn may run, and the lease was not given back
)

func (l *Leadership) phase() phase {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.work == nil:
		return standing
	case l.leads():
		return leads
	}
	return losing
}

// turn takes one step. A leader waits before it.
func (l *Leadership) turn() {
	if l.phase() == leads {
		l.idle()
	}
	switch phase := l.phase(); {
	case phase == losing:
		l.giveBack()
		if l.Reason() != "connection lost" {
			l.sleep(l.rest)
		}
	case !l.healthy():
		l.standDown()
	case phase == leads:
		l.renew()
	default:
		l.stand()
	}
}

// idle waits for a third of what is left of the lease, less after a failed renewal, or
// until the leadership is lost.
func (l *Leadership) idle() {
	l.mu.Lock()
	work, pause := l.work, l.grant.deadline.Sub(l.now())/3
	l.mu.Unlock()
	if l.retry > 0 && l.retry < pause {
		pause = l.retry
	}
	l.link.idle(work, pause)
}

// stand makes one attempt to be elected, and pauses after it if it was in vain.
func (l *Leadership) stand() {
	if !l.throttle() {
		return
	}
	switch g, err := l.link.stand(l.ctx); {
	case err == nil:
		l.answered()
		l.elect(g)
	case l.ctx.Err() != nil: // Run is to end: the error may only say that
	case err == errNotGranted:
		l.answered()
		l.sleepOrWake(l.ctx, l.opts.Interval)
	default:
		l.attemptFailed(err)
		// The next address at once, but the next round after a pause, which notifications
		// do not cut short: a candidate hears of its own resignation, too, and would be
		// the first to ask.
		if !l.addresses.more() {
			l.sleep(l.backOff())
		}
	}
}

// renew makes one attempt to renew the lease. If it fails, idle waits for less.
func (l *Leadership) renew() {
	if !l.throttle() {
		return
	}
	l.mu.Lock()
	term := l.grant.term
	l.mu.Unlock()
	switch g, err := l.link.renew(term); {
	case err == nil && g.term == term:
		l.answered()
		l.extend(g)
	case err == nil:
		l.answered()
		l.failOver(g)
	case err == errNotGranted:
		l.lose("not renewed")
	default:
		l.attemptFailed(err)
		l.retry = l.backOff()
	}
}

// failOver goes on in a new term, which the server has granted to the holder of the
// old one: the old one is lost, fn returns and is called again. If the old one was lost
// meanwhile for another reason, the new one is the term to be given back. [failover]
func (l *Leadership) failOver(g grant) {
	if l.lose("failover") {
		l.working.Wait()
		l.elect(g)
		return
	}
	l.mu.Lock()
	l.grant.term = g.term
	l.mu.Unlock()
}

// giveBack waits for fn and OnYield, and gives back what we have at the server: our
// lease, or our candidacy. It forgets first that we have it, so that a call that fails
// is made once, not for ever. For the log it waits a while only, as that may block.
func (l *Leadership) giveBack() {
	l.working.Wait()
	if l.announced != nil {
		select {
		case <-l.announced:
		case <-time.After(l.opts.CallTimeout):
		}
	}
	l.mu.Lock()
	term := l.grant.term
	if l.work == nil {
		term = 0
	} else if l.timer != nil { // lose was not called if the context of Run has ended
		l.timer.Stop()
	}
	l.work, l.end = nil, nil
	l.mu.Unlock()
	l.link.leave(term)
}

// standDown is what follows a failing health check: we give back what we have, and do
// not stand until the next check, a second later.
func (l *Leadership) standDown() {
	if l.ctx.Err() != nil { // Run is to end, and healthy did not wait for the answer
		return
	}
	l.lose("unhealthy")
	l.complain("unhealthy", "", "the health check fails")
	l.giveBack()
	l.sleep(time.Second)
}

// healthy asks the program's own check, before each attempt to stand or renew. One that
// hangs is not called again before it has returned; its late answer does not count.
func (l *Leadership) healthy() bool {
	if l.opts.HealthCheck == nil {
		return true
	}
	if l.check != nil {
		select {
		case <-l.check:
		default:
			return false
		}
	}
	answer := make(chan bool, 1)
	l.check = answer
	go func() { answer <- l.opts.HealthCheck() }()
	select {
	case healthy := <-answer:
		l.check = nil
		return healthy
	case <-time.After(l.opts.CallTimeout): // [hangs, with a check]
	case <-l.ctx.Done():
	}
	return false
}

// What begins and ends a leadership

// leads says whether we do. The caller holds mu.
func (l *Leadership) leads() bool {
	return l.work != nil && l.work.Err() == nil && l.now().Before(l.grant.deadline)
}

// elect begins a leadership. The end of the context of Run is its end, too: the
// reason for that, closed, is noted now. A grant that comes after its deadline, or after
// the end of Run, is told to nobody: turn, or Run, gives it back.
func (l *Leadership) elect(g grant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.work, l.end = context.WithCancel(l.ctx)
	l.grant = grant{term: g.term, deadline: g.deadline} // not yielding: extend is to notice that, at the next renewal
	if !l.leads() {
		l.end()
		return
	}
	close(l.elected)
	l.elected = make(chan struct{})
	l.changes++
	l.reason = "closed"
	l.timer = time.AfterFunc(g.deadline.Sub(l.now()), func() { l.lose("expired") })
	l.announce(l.work, g.term)
	l.working.Add(1)
	go l.perform(l.work, g.term)
}

// perform calls fn, which may not come back: a panic ends the program, and
// runtime.Goexit the goroutine. Then the client, too, has to end: it would lead, and
// nobody work.
func (l *Leadership) perform(work context.Context, term int64) {
	defer l.working.Done()
	defer l.link.wake()
	err := errors.New("leaderelection: the function of Run did not return")
	defer func() {
		l.lose("expired") // fn may have asked Leads, and returned, before the timer has run
		l.performed(err, work.Err() != nil)
	}()
	err = l.fn(work, term)
}

// announce logs the beginning of a leadership, and later its end, after the lines of the last
// one. The log's writer may call Resign, which takes mu, and it may block; so elect and lose do
// not log. The reason is read before the next leadership has another one.
func (l *Leadership) announce(work context.Context, term int64) {
	if l.opts.Log == nil {
		return
	}
	name := fmt.Sprintf("\"%s\"", l.opts.Election)
	if term != 0 {
		name += fmt.Sprintf(", term %d", term)
	}
	before, announced, reason := l.announced, make(chan struct{}), make(chan string, 1)
	l.announced = announced
	l.working.Add(1)
	go func() {
		defer l.working.Done()
		<-work.Done()
		reason <- l.Reason()
	}()
	go func() {
		defer close(announced)
		if before != nil {
			<-before
		}
		l.opts.Log.Printf("elected leader of %s", name)
		l.opts.Log.Printf("lost leadership of %s: %s", name, <-reason)
	}()
}

// performed does what follows when fn has returned err, after the leadership was lost, or
// by itself. An error that only tells the loss ends the leadership, if it is not lost
// yet, and Run stands again. Any other error, and a return by itself, end Run.
func (l *Leadership) performed(err error, lost bool) {
	if err != nil && tellsLoss(err, lost) {
		l.lose("not renewed")
	} else if err != nil || !lost {
		l.fail(err)
	}
}

// tellsLoss says whether an error of fn only tells that the leadership is lost, or, once
// it is lost, that the context of fn was cancelled.
func tellsLoss(err error, lost bool) bool {
	switch sqlState(err) {
	case "LE001", "LE002":
		return true
	case "57014":
		return lost
	}
	return errors.Is(err, ErrNotLeader) || lost && (errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, sql.ErrTxDone) || errors.Is(err, driver.ErrBadConn))
}

// extend notes that the lease was renewed, and, once a term, that the server asks us to
// go: then it calls OnYield, or resigns. The timer is set anew by lose, when it runs. An
// answer that comes after the deadline extends nothing: a process that was stopped
// may read it before the timer has run, and would go on in a term that Term has
// said to be over, without a word. [stopped]
func (l *Leadership) extend(g grant) {
	l.mu.Lock()
	inTime := l.leads()
	asked := inTime && g.yielding && !l.grant.yielding // once a term
	if inTime {
		g.yielding = g.yielding || l.grant.yielding
		l.grant = g
	}
	l.mu.Unlock()
	if asked && l.opts.OnYield != nil {
		l.working.Add(1)
		go func() { // renewals go on
			defer l.working.Done()
			l.opts.OnYield(g.term)
		}()
	} else if asked {
		l.Resign()
	}
}

// lose ends the leadership, if there is one, and cancels the context of fn. It returns
// true if it did, and noted this very reason: after the deadline the reason is expired,
// whatever the caller says.
func (l *Leadership) lose(reason string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.work == nil || l.work.Err() != nil {
		return false
	}
	left := l.grant.deadline.Sub(l.now())
	if reason == "expired" && left > 0 { // the timer was set before the last renewal
		l.timer.Reset(left)
		return false
	}
	l.reason = reason
	if left <= 0 { // the timer is late: the process was stopped
		l.reason = "expired"
	}
	l.timer.Stop()
	l.end()
	return l.reason == reason
}

// fail ends Run, which returns err; nil, if fn has returned that by itself. The first
// call counts.
func (l *Leadership) fail(err error) {
	l.mu.Lock()
	if !l.ended {
		l.ended, l.err = true, err
	}
	l.mu.Unlock()
	if err != nil {
		l.lose("error")
	}
	l.cancel()
}

// conclude notes how Run ends, and returns what Run returns: what fail has noted, or
// else closed, which is the error of the program's context.
func (l *Leadership) conclude(closed error) error {
	l.mu.Lock()
	failed := l.err != nil
	l.trouble = "closed"
	if failed {
		l.trouble = "failed: " + describe(l.err)
	} else if !l.ended {
		l.err = closed
	}
	l.mu.Unlock()
	if failed {
		l.warn("%s", l.trouble)
	}
	close(l.done)
	return l.err
}
