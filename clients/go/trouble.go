package leaderelection

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"log"
	"regexp"
	"strings"
	"time"

	"github.com/lib/pq"
)

// attemptFailed is what follows when a link has failed to stand or renew. It ends the client
// if the error is a lasting one; else it notes it for State and the log. A detached
// leadership goes on up to its deadline. That of a session is lost ("connection lost",
// whatever the error), except by the errors that leave a session as it was: busy, cancelled,
// or (the portable edition, where transactions are serializable by default) to be repeated.
func (l *Leadership) attemptFailed(err error) {
	if lasting := l.judge(err); lasting != nil {
		l.fail(fmt.Errorf("leaderelection: %w", lasting))
		return
	}
	l.report(err)
	_, isSession := l.link.(*session)
	if isSession && !didNothing.MatchString(sqlState(err)) {
		l.lose("connection lost") // [backend terminated]
	}
}

var (
	didNothing = regexp.MustCompile("^(55P03|57014|40001)$")
	// After login: a restore, CREATE EXTENSION, GRANT or a rename may mend it. It is tried for ever.
	passing = regexp.MustCompile("^(42501|3F000|42883|42P01|LE003)$")
	// After login: it ends the client if it lasts, as a person has to mend it.
	wrong = regexp.MustCompile("^(28...|3D000|22023|0A000|25001)$")
	// Before login: it ends the client if every address says so, and it lasts.
	refusing = regexp.MustCompile("^(28...|3D000|42501)$")
	// The server is not there, or not ready, or full: State says unreachable.
	absent = regexp.MustCompile("^(|08...|57P0.|53...)$")
)

// judge returns the error that ends the client, or nil. A final error does at once. An
// error of login does when every address has refused us for RefusalTimeout; one of a
// primary when that has refused calls for so long, and nothing else came in between, but for
// the answer of a standby.
func (l *Leadership) judge(err error) error {
	byPrimary := !errors.As(err, new(notByPrimary))
	if errors.Is(err, errStandby) || errors.As(err, new(ofStandby)) {
		// refusedSince stays as it is
	} else if !byPrimary || !wrong.MatchString(sqlState(err)) {
		l.refusedSince = time.Time{}
	} else if l.refusedSince.IsZero() {
		l.refusedSince = time.Now()
	}
	switch {
	case errors.As(err, new(final)):
		return err
	case !byPrimary:
		return l.addresses.verdict(l.opts.RefusalTimeout)
	case !l.refusedSince.IsZero() && time.Since(l.refusedSince) >= l.opts.RefusalTimeout:
		return err
	}
	return nil
}

// throttle lets ten attempts pass in a second, whatever fails or wakes us: it sleeps
// until the tenth last attempt is a second ago, unless there is no server. It is false
// when Run is to end.
func (l *Leadership) throttle() bool {
	last := &l.attempts[l.attempt%len(l.attempts)]
	if l.rest > 0 { // else nobody is asked
		l.sleep(time.Until(last.Add(time.Second)))
	}
	*last = time.Now()
	l.attempt++
	return l.ctx.Err() == nil
}

// backOff is the pause after a failure: 0.1 s, then twice as long up to 5 s, times 0.5
// to 1 at random.
func (l *Leadership) backOff() time.Duration {
	l.pause = or(2*l.pause, 100*time.Millisecond)
	if l.pause > 5*time.Second {
		l.pause = 5 * time.Second
	}
	return l.pause/2 + time.Duration(l.jitter.Int63n(int64(l.pause/2)))
}

func (l *Leadership) sleep(d time.Duration) { sleepFor(l.ctx, d, nil) }

// sleepOrWake is sleep that a notification (Wake) ends, or the end of ctx. A channel that was
// closed would end it at once each time, so it is forgotten.
func (l *Leadership) sleepOrWake(ctx context.Context, d time.Duration) {
	if closed := sleepFor(ctx, d, l.opts.Wake); closed {
		l.opts.Wake = nil
	}
}

// sleepFor waits until d is over, ctx has ended, or something comes from a channel (of a nil
// channel nothing does). It says whether that was closed.
func sleepFor(ctx context.Context, d time.Duration, wake <-chan *pq.Notification) (closed bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case _, open := <-wake:
		return !open
	}
	return false
}

// report notes an error for State and the log. That a server is a standby is noted only
// at the end of a round, and if no other trouble is.
func (l *Leadership) report(err error) {
	if errors.Is(err, errStandby) && (l.trouble != "" || l.addresses.more()) {
		return
	}
	state := sqlState(err)
	if absent.MatchString(state) {
		l.complain("unreachable", state, describe(err))
	} else {
		l.complain("refused", state, describe(err))
	}
}

// complain notes a trouble for State, and logs it: each kind (word and SQLSTATE) when it
// begins, and then once a minute. It begins anew when all was well for 5 s.
func (l *Leadership) complain(word, state, text string) {
	l.mu.Lock()
	l.trouble = word
	if word != "unhealthy" {
		l.trouble += ": " + text
	}
	l.mu.Unlock()
	if !l.wellSince.IsZero() && time.Since(l.wellSince) > 5*time.Second {
		l.logged = map[string]time.Time{} // a new trouble
	}
	l.wellSince = time.Time{}
	if kind := word + state; time.Since(l.logged[kind]) >= time.Minute {
		l.logged[kind] = time.Now()
		l.complained = true
		l.warn("%s: %s", word, text)
	}
}

// answered is what follows an answer of the server's, a grant or none: the next failure
// is the first one again for backOff and judge.
func (l *Leadership) answered() {
	l.pause, l.retry, l.refusedSince = 0, 0, time.Time{}
	l.calm()
}

// calm takes back what complain has noted, and logs the end of the trouble, if its
// begin was logged.
func (l *Leadership) calm() {
	l.wellSince = or(l.wellSince, time.Now())
	l.mu.Lock()
	l.trouble = ""
	l.mu.Unlock()
	if l.complained {
		l.complained = false
		l.warn("all is well again")
	}
}

// warn logs what is about trouble.
func (l *Leadership) warn(format string, args ...any) {
	or(l.opts.Log, log.Default()).Printf("leaderelection: %s: %s", l.opts.Election, fmt.Sprintf(format, args...))
}

// describe is the SQLSTATE, if there is one, and the text of an error, in one line.
func describe(err error) string {
	text := strings.TrimPrefix(err.Error(), "leaderelection: ")
	text = strings.ReplaceAll(strings.TrimPrefix(text, "pq: "), "\n", " ")
	if errors.Is(err, driver.ErrBadConn) { // also lib/pq's word for a FATAL of the server
		text = "the connection was lost"
	}
	switch state := sqlState(err); state {
	case "":
		return text
	case "3F000", "42883":
		return state + " " + text + " (CREATE EXTENSION leader_election, or portable.sql?)"
	default:
		return state + " " + text
	}
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
