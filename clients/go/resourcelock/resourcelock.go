// Package resourcelock is a lock for the leader election of client-go and
// controller-runtime whose lease is one of the PostgreSQL extension leader_election,
// instead of an object of the Kubernetes API:
//
//	lock := resourcelock.New(db, "scheduler", identity)
//	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{Lock: lock, ...})
//	ctrl.NewManager(config, ctrl.Options{LeaderElection: true, LeaderElectionResourceLockInterface: lock})
//
// What an elector may do with it is what client-go says of it: OnStoppedLeading comes
// when RenewDeadline is over, and nobody waits for what OnStartedLeading has begun. So
// end the program there, as usual, and have writes fenced by the term.
//
// The invariant: an elector that leads leads in one term, or in those that follow it
// by a failover of the server. Once the server has said that the term is over, the lock
// refuses, until the elector has said that it has stopped. Otherwise the elector might be
// granted a second term and take it for the first, and another one may have led in
// between.
package resourcelock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lib/pq"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const callTimeout = 5 * time.Second

var now = time.Now // tests have a clock of their own

// Lock is a detached candidate. Its elector is the only one who calls it.
type Lock struct {
	db                 *sql.DB
	election, identity string

	request string // one for all tries, so that no grant is lost with its answer

	// What follows is guarded by mu, which is not held during a call: Term and RecordEvent
	// never wait for the server.
	mu    sync.Mutex
	term  int64 // 0: none
	leads bool  // the elector does, and has not said yet that it has stopped
	over  bool  // its term was lost, and it does not know yet
}

var _ resourcelock.Interface = (*Lock)(nil)

// New makes one, over a pool of any driver. The identity has to be another one for
// each process. The lease of the election has to be LeaseDuration at least, and
// RenewDeadline and RetryPeriod together nine tenths of it at most.
func New(db *sql.DB, election, identity string) *Lock {
	return &Lock{db: db, election: election, identity: identity}
}

// Term is the term that the last answered call has granted, for fencing; 0 if there is
// none. It has no deadline of its own: the elector has. It never blocks.
func (l *Lock) Term() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term
}

// Identity and Describe are for the elector's log.
func (l *Lock) Identity() string { return l.identity }
func (l *Lock) Describe() string { return "leader_election/" + l.election }

// RecordEvent is how an elector says that it leads, which changes nothing here, and that
// it has stopped.
func (l *Lock) RecordEvent(event string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if event == "stopped leading" {
		l.leads, l.over = false, false
	}
}

// Get tells who leads. When the lease is over that is nobody: then an elector calls
// Update at once, and does not wait for LeaseDuration on its own clock.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var leader sql.NullString
	var term sql.NullInt64
	var since, renewed sql.NullTime
	err := within(ctx, func() error {
		return l.db.QueryRowContext(ctx, "SELECT leader, term, since, renewed_at FROM leader_election.status "+
			"WHERE election OPERATOR(pg_catalog.=) "+pq.QuoteLiteral(l.election)).
			Scan(&leader, &term, &since, &renewed)
	})
	if err != nil && err != sql.ErrNoRows { // acquire() makes the election
		return nil, nil, err
	}
	record := resourcelock.LeaderElectionRecord{HolderIdentity: leader.String,
		LeaderTransitions: int(term.Int64),
		AcquireTime:       metav1.NewTime(since.Time), RenewTime: metav1.NewTime(renewed.Time)}
	raw, err := json.Marshal(record)
	return &record, raw, err
}

// Create is of the interface only: an elector calls it where Get finds no record, and
// ours always finds one.
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, record)
}

// Update gives the lease back if the record names nobody. Else it renews the term, or, if
// there is none, asks for one.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	l.mu.Lock()
	term, over := l.term, l.over
	l.mu.Unlock()
	lease := time.Duration(record.LeaseDurationSeconds) * time.Second
	switch {
	case record.HolderIdentity == "":
		return l.release(ctx, term)
	case over:
		return errors.New("the term is over")
	case term != 0:
		return l.renew(ctx, term, lease)
	default:
		return l.acquire(ctx, lease)
	}
}

// renew notes a new term after a failover, and that the term is over. That is no news to
// an elector which has stopped before: it may ask for a new one.
func (l *Lock) renew(ctx context.Context, term int64, lease time.Duration) error {
	term, remaining, err := l.ask(ctx, "leader_election.renew(%s, %d)", pq.QuoteLiteral(l.election), term)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == sql.ErrNoRows {
		l.term, l.over = 0, l.leads
		return errors.New("the term is over")
	} else if err != nil {
		return err
	}
	l.term = term
	if err = l.tooShort(remaining, lease); err == nil {
		l.leads = true
	}
	return err
}

// tooShort is an error if a lease may end before the elector thinks so. That counts from the
// answer, and leads for RetryPeriod and RenewDeadline after it: so these may have nine tenths
// of LeaseDuration together.
func (l *Lock) tooShort(remaining, lease time.Duration) error {
	if remaining >= lease*9/10 {
		return nil
	}
	return fmt.Errorf("the lease of election %s is %v yet: the answer was late, or this leader is asked to yield, "+
		"or make the lease longer (alter_election), or LeaseDuration shorter", l.election, remaining)
}

// acquire asks for a term. One whose lease is too short is given back, and is an error.
func (l *Lock) acquire(ctx context.Context, lease time.Duration) error {
	if l.request == "" {
		id := make([]byte, 16)
		_, _ = rand.Read(id)
		l.request = fmt.Sprintf("%x", id)
	}
	term, remaining, err := l.ask(ctx, "leader_election.acquire(%s, %s, request => '%s')",
		pq.QuoteLiteral(l.election), pq.QuoteLiteral(l.identity), l.request)
	if err == sql.ErrNoRows {
		return errors.New("another one leads, or comes first")
	} else if err != nil {
		return err
	}
	l.request = ""
	if err = l.tooShort(remaining, lease); err != nil {
		_ = l.release(ctx, term)
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term, l.leads = term, true
	return nil
}

// release gives the term back, and withdraws. It forgets the term first: if the call
// fails, the term ends by itself.
func (l *Lock) release(ctx context.Context, term int64) error {
	if term == 0 {
		return nil
	}
	l.mu.Lock()
	l.term = 0
	l.mu.Unlock()
	return within(ctx, func() error {
		_, err := l.db.ExecContext(ctx, fmt.Sprintf(
			"SELECT leader_election.leave(%s, %s) FROM leader_election.release(%s, %d)",
			pq.QuoteLiteral(l.election), pq.QuoteLiteral(l.identity), pq.QuoteLiteral(l.election), term))
		return err
	})
}

// ask makes a call that grants a term: sql.ErrNoRows if it does not. What remains of the lease
// counts from when the call was sent.
func (l *Lock) ask(ctx context.Context, format string, args ...any) (int64, time.Duration, error) {
	var term, ms int64
	sent := now()
	err := within(ctx, func() error {
		return l.db.QueryRowContext(ctx, "SELECT term, remaining_ms FROM "+fmt.Sprintf(format, args...)).Scan(&term, &ms)
	})
	if err != nil {
		return 0, 0, err
	}
	return term, time.Duration(ms)*time.Millisecond - now().Sub(sent), nil
}

// within makes a call, and waits for it until ctx has ended, whatever the driver does
// (lib/pq does not return over a dead path). A call that returns later may still write
// its results: they are not read after an error.
func within(ctx context.Context, call func() error) error {
	returned := make(chan error, 1)
	go func() { returned <- call() }()
	select {
	case err := <-returned:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
