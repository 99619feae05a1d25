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
// by a failover of the server. Once the term is over the lock refuses, until the
// elector has said that it has stopped: else it might be granted a second term, while
// it believes that it is the first, and another one may have led in between.
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

// Lock is a detached candidate. Its elector is the only one who calls it.
type Lock struct {
	db                 *sql.DB
	election, identity string

	mu      sync.Mutex
	term    int64  // 0: none
	over    bool   // it was lost, and the elector does not know yet
	request string // one for all tries, so that no grant is lost with its answer
}

var _ resourcelock.Interface = (*Lock)(nil)

// New makes one, over a pool of any driver. The identity has to be another one for
// each process. The lease of the election has to be LeaseDuration at least.
func New(db *sql.DB, election, identity string) *Lock {
	return &Lock{db: db, election: election, identity: identity}
}

// Term is the term in which the elector leads, for fencing; 0 if there is none. It
// has no deadline of its own: the elector has.
func (l *Lock) Term() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term
}

// Identity and Describe are for the elector's log.
func (l *Lock) Identity() string { return l.identity }
func (l *Lock) Describe() string { return "leader_election/" + l.election }

// RecordEvent is how an elector says that it leads, and that it has stopped.
func (l *Lock) RecordEvent(event string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if event == "stopped leading" {
		l.over = false
	}
}

// Get tells who leads: nobody, when the lease is over. Then an elector does not wait
// for its own clock, but asks.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var leader sql.NullString
	var term sql.NullInt64
	var since, renewed sql.NullTime
	err := l.db.QueryRowContext(ctx, "SELECT leader, term, since, renewed_at FROM leader_election.status "+
		"WHERE election OPERATOR(pg_catalog.=) "+pq.QuoteLiteral(l.election)).
		Scan(&leader, &term, &since, &renewed)
	if err != nil && err != sql.ErrNoRows { // acquire() makes the election
		return nil, nil, err
	}
	record := resourcelock.LeaderElectionRecord{HolderIdentity: leader.String,
		LeaderTransitions: int(term.Int64),
		AcquireTime:       metav1.NewTime(since.Time), RenewTime: metav1.NewTime(renewed.Time)}
	raw, err := json.Marshal(record)
	return &record, raw, err
}

// Create is not called, for Get finds a record always.
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, record)
}

// Update gives the lease back if the record names nobody. Else it renews, or asks.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case record.HolderIdentity == "":
		return l.release(ctx)
	case l.over:
		return errors.New("the term is over")
	case l.term != 0:
		return l.renew(ctx)
	default:
		return l.acquire(ctx, time.Duration(record.LeaseDurationSeconds)*time.Second)
	}
}

func (l *Lock) renew(ctx context.Context) error {
	term, _, err := l.ask(ctx, "leader_election.renew(%s, %d)", pq.QuoteLiteral(l.election), l.term)
	if err == sql.ErrNoRows {
		l.term, l.over = 0, true
		return errors.New("the term is over")
	} else if err == nil {
		l.term = term
	}
	return err
}

// acquire refuses a lease that ends before the elector thinks so.
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
	l.request, l.term = "", term
	if remaining < lease*9/10 {
		_ = l.release(ctx)
		return fmt.Errorf("the lease of election %s is %v: make it longer (alter_election), or LeaseDuration shorter",
			l.election, remaining)
	}
	return nil
}

func (l *Lock) release(ctx context.Context) error {
	if l.term == 0 {
		return nil
	}
	_, err := l.db.ExecContext(ctx, fmt.Sprintf("SELECT leader_election.leave(%s, %s) FROM leader_election.release(%s, %d)",
		pq.QuoteLiteral(l.election), pq.QuoteLiteral(l.identity), pq.QuoteLiteral(l.election), l.term))
	l.term = 0 // if that failed, it ends by itself
	return err
}

func (l *Lock) ask(ctx context.Context, format string, args ...any) (term int64, remaining time.Duration, err error) {
	var ms int64
	err = l.db.QueryRowContext(ctx, "SELECT term, remaining_ms FROM "+fmt.Sprintf(format, args...)).Scan(&term, &ms)
	return term, time.Duration(ms) * time.Millisecond, err
}
