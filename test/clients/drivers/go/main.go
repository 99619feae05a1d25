// The driver program of the Go client (test/clients): it stands in an election
// and tells on stdout what happens. main.go session|detached ELECTION CANDIDATE
package main

import (
	"bufio"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/lib/pq"

	leaderelection "leader_election/clients/go"
)

// say prints a line with the time of CLOCK_MONOTONIC in nanoseconds.
func say(words ...any) {
	var now [2]int64
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&now)), 0)
	os.Stdout.WriteString(fmt.Sprintln(append(words, now[0]*1e9+now[1])...))
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func seconds(name, otherwise string) time.Duration {
	v, _ := strconv.ParseFloat(env(name, otherwise), 64)
	return time.Duration(v * float64(time.Second))
}

// dsns are connection strings of lib/pq, which knows one host each.
func dsns(hosts, ports string) (list hosts) {
	port := strings.Split(ports, ",")
	for i, host := range strings.Split(hosts, ",") {
		dsn := fmt.Sprintf("host=%s port=%s user=%s dbname=%s sslmode=disable connect_timeout=2", host, port[i%len(port)], os.Getenv("PGUSER"), env("PGDATABASE", "postgres"))
		list = append(list, dsn)
	}
	return list
}

// hosts connects a pool to the first that is no standby.
type hosts []string

func (h hosts) Driver() driver.Driver { return &pq.Driver{} }

func (h hosts) Connect(ctx context.Context) (c driver.Conn, err error) {
	for _, dsn := range h {
		if c, err = pq.Open(dsn); err != nil {
			continue
		}
		rows, e := c.(driver.QueryerContext).QueryContext(ctx, "SELECT pg_catalog.pg_is_in_recovery()", nil)
		standby := make([]driver.Value, 1)
		if e == nil && rows.Next(standby) == nil && rows.Close() == nil && standby[0] == false {
			return c, nil
		}
		c.Close()
		err = errors.New("a standby")
	}
	return nil, err
}

func main() {
	var l *leaderelection.Leadership
	var turn atomic.Int64 // when the work loop last took a turn
	var hang = make(chan time.Duration, 1)
	at := dsns(os.Getenv("PGHOST"), env("PGPORT", "5432"))
	work := sql.OpenDB(dsns(env("WORKHOST", os.Getenv("PGHOST")), env("WORKPORT", env("PGPORT", "5432"))))
	opts := leaderelection.Options{
		DSN: at, Election: os.Args[2], Candidate: os.Args[3],
		CallTimeout: seconds("CALL_TIMEOUT", "1"), Slice: seconds("SLICE", "1"), Interval: seconds("INTERVAL", "0.2"),
		OnElected: func(term int64) { say("elected", term) },
		OnLost:    func(reason string) { say("lost", reason) },
	}
	if limit := os.Getenv("QUERY_TIMEOUT"); limit != "" {
		for i := range at {
			at[i] += fmt.Sprintf(" statement_timeout=%d", seconds("QUERY_TIMEOUT", "0").Milliseconds())
		}
	}
	if os.Getenv("HEALTH") == "1" {
		opts.HealthCheck = func() bool { return time.Since(time.UnixMilli(turn.Load())) < 500*time.Millisecond }
	}
	if os.Getenv("YIELD") == "1" {
		opts.OnYield = func(term int64) {
			say("yield", term)
			time.AfterFunc(200*time.Millisecond, l.Resign)
		}
	}
	if os.Getenv("LISTEN") == "1" {
		opts.Listen = at[0]
	}
	if os.Args[1] == "session" {
		l = leaderelection.New(opts)
	} else {
		l = leaderelection.NewDetached(sql.OpenDB(at), opts)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			switch word := strings.Fields(in.Text() + " 0"); word[0] {
			case "resign":
				l.Resign()
			case "close":
				cancel()
			case "hang":
				ms, _ := strconv.Atoi(word[1])
				hang <- time.Duration(ms) * time.Millisecond
			}
		}
	}()
	go func() { // the work loop
		for i := 0; ; i++ {
			turn.Store(time.Now().UnixMilli())
			if term, ok := l.Term(); ok {
				if say("working", term); i%5 == 0 {
					write(l, work, term, os.Args[2], os.Args[3])
				}
			}
			select {
			case d := <-hang:
				time.Sleep(d)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	say("ready")
	err := l.Run(ctx, func(ctx context.Context, term int64) error {
		<-ctx.Done() // a real program works here
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		say("error", state(err), strings.ReplaceAll(err.Error(), "\n", " "))
		os.Exit(3)
	}
	say("closed")
}

func state(err error) string {
	if e := (&pq.Error{}); errors.As(err, &e) {
		return string(e.Code)
	}
	return "-"
}

// write is a fenced write on a connection of the application's own.
func write(l *leaderelection.Leadership, db *sql.DB, term int64, election, candidate string) {
	tx, err := db.Begin()
	if err == nil {
		defer tx.Rollback()
		err = l.Fenced(context.Background(), tx)
	}
	if err == nil {
		_, err = tx.Exec("SELECT conformance.write($1, $2, $3)", election, candidate, term)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		say("refused", term, state(err))
		return
	}
	say("wrote", term)
}
