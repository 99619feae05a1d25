package resourcelock

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"testing"
	"time"

	_ "github.com/lib/pq"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func Example() {
	db, _ := sql.Open("postgres", "") // also through PgBouncer
	host, _ := os.Hostname()
	lock := New(db, "controller", fmt.Sprintf("%s-%d", host, os.Getpid()))
	leaderelection.RunOrDie(context.Background(), leaderelection.LeaderElectionConfig{
		Lock: lock, ReleaseOnCancel: true,
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				for ctx.Err() == nil { // each write: assert_leader('controller', term)
					fmt.Println("working, term", lock.Term())
					time.Sleep(time.Second)
				}
			},
			OnStoppedLeading: func() { os.Exit(1) }, // nobody waits for the work
		},
	})
}

// An elector of client-go, and what it told
type elector struct {
	lock      *Lock
	began     chan bool
	stopped   chan bool
	cancel    context.CancelFunc
	newLeader chan string
}

func connect(t *testing.T) *sql.DB {
	if os.Getenv("PGHOST") == "" {
		t.Skip("no server: see test/clients/resourcelock")
	}
	db, err := sql.Open("postgres", "sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func create(t *testing.T, db *sql.DB, lease string) (election string) {
	t.Helper()
	election = t.Name()
	if _, err := db.Exec("SELECT leader_election.create_election($1, lease_duration => $2::interval)", election, lease); err != nil {
		t.Fatal(err)
	}
	return election
}

func start(t *testing.T, lock *Lock, release bool) *elector {
	t.Helper()
	e := &elector{lock, make(chan bool, 9), make(chan bool, 9), nil, make(chan string, 99)}
	le, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 200 * time.Millisecond,
		ReleaseOnCancel: release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { e.began <- true },
			OnStoppedLeading: func() { e.stopped <- true },
			OnNewLeader:      func(identity string) { e.newLeader <- identity },
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	t.Cleanup(cancel)
	go le.Run(ctx)
	return e
}

func await(t *testing.T, what string, c chan bool) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatal("not so within a minute: ", what)
	}
}

func quiet(t *testing.T, what string, c chan bool, d time.Duration) {
	t.Helper()
	select {
	case <-c:
		t.Fatal(what)
	case <-time.After(d):
	}
}

// One leads and renews; when it is cancelled, another one leads.
func TestHandover(t *testing.T) {
	db := connect(t)
	election := create(t, db, "3 s")
	a := start(t, New(db, election, "a"), true)
	await(t, "a leads", a.began)
	b := start(t, New(db, election, "b"), true)
	quiet(t, "b leads, too", b.began, 5*time.Second)
	if term := a.lock.Term(); term != 1 || b.lock.Term() != 0 {
		t.Error(term, b.lock.Term())
	}
	if identity := <-b.newLeader; identity != "a" {
		t.Error(identity)
	}
	a.cancel()
	await(t, "a has stopped", a.stopped)
	await(t, "b leads", b.began)
	if a.lock.Term() != 0 || b.lock.Term() != 2 {
		t.Error(a.lock.Term(), b.lock.Term())
	}
}

// One that gives nothing back is replaced when its lease is over.
func TestDeath(t *testing.T) {
	db := connect(t)
	election := create(t, db, "3 s")
	a := start(t, New(db, election, "a"), false)
	await(t, "a leads", a.began)
	b := start(t, New(db, election, "b"), false)
	a.cancel()
	begun := time.Now()
	await(t, "b leads", b.began)
	if took := time.Since(begun); took < 2*time.Second {
		t.Error(took)
	}
}

// A term that was ended behind the elector's back: it has to stop before it leads anew,
// also where nobody else stands.
func TestOver(t *testing.T) {
	db := connect(t)
	election := create(t, db, "3 s")
	a := start(t, New(db, election, "a"), false)
	await(t, "a leads", a.began)
	if _, err := db.Exec("SELECT leader_election.release($1, 1)", election); err != nil {
		t.Fatal(err)
	}
	await(t, "a has stopped", a.stopped)
	if a.lock.Term() != 0 {
		t.Error("has been granted term ", a.lock.Term())
	}
	again := start(t, a.lock, false) // the lock of an elector that has stopped
	await(t, "leads again", again.began)
	if a.lock.Term() != 2 {
		t.Error(a.lock.Term())
	}
}

// A second process of the same identity, and a lease that is too short, are refused.
func TestRefused(t *testing.T) {
	db := connect(t)
	election := create(t, db, "1 s")
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}
	lock := New(db, election, "a")
	if err := lock.Update(context.Background(), record); err == nil || lock.Term() != 0 {
		t.Error(err, lock.Term())
	}
	record.LeaseDurationSeconds = 1
	if err := lock.Update(context.Background(), record); err != nil {
		t.Error(err)
	}
	other := New(db, election, "a")
	if err := other.Update(context.Background(), record); err == nil {
		t.Error("two of one identity")
	}
}
