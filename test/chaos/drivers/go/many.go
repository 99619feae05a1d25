// Several leaderships of clients/go in one process, with the log of test/chaos/candidate.c for
// each: many INSTANCE KIND:ELECTION:CANDIDATE:LOG...
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/lib/pq"

	leaderelection "leader-election-postgresql"
)

const (
	turn          = 200 * time.Millisecond
	turnsPerWrite = 10
	clockBoottime = 7
)

var nextID atomic.Int64

func now() int64 {
	var t [2]int64
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&t)), 0)
	return t[0]*1e6 + t[1]/1000
}

type member struct {
	election, candidate string
	log                 *os.File
	leadership          *leaderelection.Leadership
}

func newMember(argument, dsn, pool string) *member {
	words := strings.SplitN(argument, ":", 4)
	m := &member{election: words[1], candidate: words[2]}
	var err error
	if m.log, err = os.OpenFile(words[3], os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644); err != nil {
		panic(err)
	}
	opts := leaderelection.Options{
		DSN: dsn, Election: m.election, Candidate: m.candidate,
		CallTimeout: 5 * time.Second, Slice: 500 * time.Millisecond, Interval: 200 * time.Millisecond,
	}
	if words[0] == "session" {
		m.leadership = leaderelection.New(opts)
	} else {
		m.leadership = leaderelection.NewDetached(open(pool), opts)
	}
	return m
}

func open(pool string) *sql.DB {
	db, err := sql.Open("postgres", pool+"?connect_timeout=15&binary_parameters=yes")
	if err != nil {
		panic(err)
	}
	db.SetMaxOpenConns(2)
	return db
}

func (m *member) look(work *sql.DB) {
	for n := 0; ; n++ {
		sent := now()
		if term, ok := m.leadership.Term(); ok {
			fmt.Fprintf(m.log, "q 1 %s %d %d %d\n", m.election, sent, now(), term)
			if n%turnsPerWrite == 0 {
				m.write(work, term)
			}
		}
		time.Sleep(turn)
	}
}

func (m *member) write(work *sql.DB, term int64) {
	id, sent := nextID.Add(1), now()
	tx, err := work.Begin()
	if err == nil {
		defer tx.Rollback()
		err = m.leadership.Fenced(context.Background(), tx)
	}
	if fenced, ok := m.leadership.Term(); ok {
		term = fenced // else COMMIT fails
	}
	if err == nil {
		_, err = tx.Exec(`INSERT INTO chaos."w_`+m.election+`" (term, candidate, id) VALUES ($1, $2, $3)`,
			term, m.candidate, id)
	}
	if err == nil {
		sent = now()
		err = tx.Commit()
	}
	outcome := "committed"
	if err != nil {
		e := &pq.Error{Code: "lost"}
		errors.As(err, &e)
		outcome = string(e.Code)
	}
	fmt.Fprintf(m.log, "w %s %d %d %d %d %s\n", m.election, sent, now(), term, id, outcome)
}

func main() {
	os.Setenv("PGSSLMODE", "disable")
	instance, _ := strconv.ParseInt(os.Args[1], 10, 64)
	nextID.Store(instance * 1000000)
	dsn := fmt.Sprintf("host=%s port=%s user=%s dbname=postgres", os.Getenv("PGHOST"), os.Getenv("PGPORT"), os.Getenv("PGUSER"))
	pool := fmt.Sprintf("postgres://%s@127.0.0.1:%s/%s", os.Getenv("PGUSER"), os.Getenv("POOL_PORT"), os.Getenv("POOL_DATABASE"))
	leaderelection.TakeEnvironment()
	work := open(pool)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var running sync.WaitGroup
	for _, argument := range os.Args[2:] {
		m := newMember(argument, dsn, pool)
		running.Add(1)
		go m.look(work)
		go func() {
			defer running.Done()
			err := m.leadership.Run(ctx, func(ctx context.Context, term int64) error {
				<-ctx.Done()
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				fmt.Println("gave up:", err)
				os.Exit(3)
			}
		}()
	}
	running.Wait()
}
