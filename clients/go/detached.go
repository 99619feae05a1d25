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

// NewDetached makes a detached candidate over the application's own pool, of
// any driver. The pool has to have a connection to spare for each call. A
// connection whose answer does not come in time is thrown away when the driver
// returns.
func NewDetached(db *sql.DB, opts Options) *Leadership {
	l := newLeadership(opts)
	l.addresses.round, l.addresses.tried = []address{{where: "the pool"}}, 1
	l.link = &pool{l: l, db: db}
	return l
}

// A pool is the link of a detached candidate. For the engine it is one address, of a round
// that is over: a failed call is followed by a pause.
type pool struct {
	l       *Leadership
	db      *sql.DB
	request string // one for all tries until it is granted, so that no grant is lost [lost answer]
	stands  bool   // the server may know us: leave has to be called
	// How much of the CallTimeout after the end of Run is over: leave has the rest.
	spent time.Duration
}

// stand asks once, and the end of Run leaves it time for the answer: leave has to come
// after it.
func (p *pool) stand(context.Context) (grant, error) {
	p.stands = true
	p.request = or(p.request, random(16))
	g, err := p.call("leader_election.acquire(%s, %s, request => '%s'%s)",
		p.l.election(), p.l.candidate(), p.request, p.l.rank()+p.l.shown())
	if err == nil {
		p.request = ""
	}
	return g, err
}

func (p *pool) renew(term int64) (grant, error) {
	return p.call("leader_election.renew(%s, %d%s)", p.l.election(), term, p.l.shown())
}

// leave is tried once: what it does not give back ends by itself. The statement gives
// the term back (FROM) before it withdraws: the server refuses a leader that withdraws.
// It has the columns of a grant, as query reads no others.
func (p *pool) leave(term int64) {
	if p.stands {
		p.stands, p.request = false, ""
		_, _ = p.call("(SELECT 0 AS term, 0 AS remaining_ms, leader_election.leave(%s, %s) AS yielding "+
			"FROM leader_election.release(%s, %d)) left_election",
			p.l.election(), p.l.candidate(), p.l.election(), term)
	}
}

func (p *pool) idle(ctx context.Context, d time.Duration) { p.l.sleepOrWake(ctx, d) }
func (p *pool) wake()                                     {}

// call waits for the answer no longer than CallTimeout, whatever the driver does. When Run
// is to end meanwhile, it waits for half of CallTimeout more at most. An answer that comes
// later is thrown away.
func (p *pool) call(format string, args ...any) (grant, error) {
	type answer struct {
		g          grant
		login, err error
	}
	answers := make(chan answer, 1)
	end := p.l.ctx.Done()
	if p.l.ctx.Err() != nil { // Run is to end already: most often this call is leave
		end = nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.l.opts.CallTimeout-p.spent)
	defer cancel() // not in the goroutine: the end of ctx would compete with the answer
	go func() {
		var a answer
		a.g, a.login, a.err = p.ask(ctx, fmt.Sprintf(format, args...))
		answers <- a
	}()
	a := answer{login: errNoAnswer} // until there is one
	select {
	case a = <-answers:
	case <-ctx.Done():
	case <-end:
		ended := time.Now()
		select {
		case a = <-answers:
		case <-ctx.Done():
		case <-time.After(p.l.opts.CallTimeout / 2):
		}
		p.spent = time.Since(ended)
	}
	p.l.addresses.heard(p.l.addresses.round[0], a.login)
	if a.login != nil {
		return grant{}, notByPrimary{a.login}
	}
	return a.g, a.err
}

// ask takes a connection, and asks for a grant. One that was idle in the pool may have
// broken: then ask tries another one. An error of the kinds wrong and passing counts only
// if a primary says so. The result login is the error of a pool that gave no connection,
// err that of the call.
func (p *pool) ask(ctx context.Context, grants string) (g grant, login, err error) {
	for {
		idle := p.db.Stats().Idle > 0
		conn, err := p.db.Conn(ctx)
		if err != nil {
			return g, err, nil
		}
		g, err = query(ctx, conn, 1, "%s", grants)
		if state := sqlState(err); state == "25006" { // read only
			err = notByPrimary{ofStandby{err}}
		} else if passing.MatchString(state) || wrong.MatchString(state) {
			var standby bool
			row := conn.QueryRowContext(ctx, "SELECT pg_catalog.pg_is_in_recovery()")
			if row.Scan(&standby) != nil {
				err = notByPrimary{err}
			} else if standby {
				err = notByPrimary{ofStandby{err}}
			}
		}
		conn.Close()
		if !idle || !errors.Is(err, driver.ErrBadConn) {
			return g, nil, err
		}
	}
}

// query asks for a grant. Of what remains of the lease we believe in one part (1: all, 2:
// half of it), from when it was sent. All arguments are literals: lib/pq prepares no
// statement that has no parameters, so that it passes a pooler.
func query(ctx context.Context, conn *sql.Conn, part time.Duration, format string, args ...any) (g grant, err error) {
	sent, ms := time.Now(), time.Duration(0)
	err = conn.QueryRowContext(ctx, "SELECT term, remaining_ms, yielding FROM "+fmt.Sprintf(format, args...)).
		Scan(&g.term, &ms, &g.yielding)
	g.deadline = sent.Add(ms * time.Millisecond / part)
	if err == sql.ErrNoRows {
		err = errNotGranted
	}
	return g, err
}

func (l *Leadership) election() string  { return pq.QuoteLiteral(l.opts.Election) }
func (l *Leadership) candidate() string { return pq.QuoteLiteral(l.opts.Candidate) }

// rank and shown (the metadata) are further arguments, if the program has given them. An
// acquire() without them that is in vain is cheap: the server answers from its memory.
func (l *Leadership) rank() string {
	if l.opts.Rank == 0 {
		return ""
	}
	return fmt.Sprintf(", rank => %d", l.opts.Rank)
}

func (l *Leadership) shown() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.metadata == "" {
		return ""
	}
	return ", metadata => " + pq.QuoteLiteral(l.metadata)
}
