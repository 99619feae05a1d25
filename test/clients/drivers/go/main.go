// The driver program of the Go client (test/clients): it stands in an election
// and tells on stdout what happens. main.go session|detached ELECTION CANDIDATE
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
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
	os.Stdout.WriteString(fmt.Sprintln(append(words, nanoseconds())...))
}

func nanoseconds() int64 {
	var now [2]int64
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&now)), 0)
	return now[0]*1e9 + now[1]
}

func seconds(name string) time.Duration {
	d, _ := time.ParseDuration(os.Getenv(name) + "s")
	return d
}

// A pool connects to the first place that answers: lib/pq knows one host.
type pool []string

func open(hosts, ports string) (places pool, db *sql.DB) {
	port := strings.Split(ports, ",")
	for i, host := range strings.Split(hosts, ",") {
		places = append(places, net.JoinHostPort(host, port[i]))
	}
	connector, _ := pq.NewConnector("")
	connector.Dialer(places)
	return places, sql.OpenDB(connector)
}

func (p pool) Dial(network, _ string) (c net.Conn, err error) {
	err = net.ErrClosed
	for i := 0; i < len(p) && err != nil; i++ {
		c, err = net.DialTimeout(network, p[i], 2*time.Second)
	}
	return c, err
}

func (p pool) DialTimeout(n, a string, _ time.Duration) (net.Conn, error) { return p.Dial(n, a) }

func main() {
	os.Setenv("PGSSLMODE", "disable")
	if os.Args[1] == "bare" {
		bare(os.Args[2])
		return
	}
	if limit := os.Getenv("QUERY_TIMEOUT"); limit != "" {
		os.Setenv("PGOPTIONS", "-c statement_timeout="+limit+"s")
	}
	var l *leaderelection.Leadership
	var turn, hang atomic.Int64 // when the work loop last took a turn; for how long it shall hang
	places, db := open(os.Getenv("PGHOST"), os.Getenv("PGPORT"))
	_, work := open(os.Getenv("WORKHOST"), os.Getenv("WORKPORT"))
	opts := leaderelection.Options{
		DSN:      "postgres://" + strings.Join(places, "\npostgres://"),
		Election: os.Args[2], Candidate: os.Args[3],
		CallTimeout: seconds("CALL_TIMEOUT"), Slice: seconds("SLICE"),
		Interval: seconds("INTERVAL"),
	}
	if healthy := seconds("HEALTH"); healthy != 0 {
		opts.HealthCheck = func() bool { return time.Now().UnixNano()-turn.Load() < int64(healthy) }
	}
	if os.Getenv("YIELD") != "" {
		opts.OnYield = func(term int64) {
			say("yield", term)
			time.AfterFunc(200*time.Millisecond, l.Resign)
		}
	}
	if os.Getenv("LISTEN") != "" && os.Args[1] == "detached" {
		listener := pq.NewListener("postgres://"+places[0], time.Second/10, 5*time.Second, nil)
		go listener.Listen("leadership_changed")
		opts.Wake = listener.Notify
	}
	if l = leaderelection.New(opts); os.Args[1] == "detached" {
		l = leaderelection.NewDetached(db, opts)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	go func() {
		var word string
		var ms time.Duration
		for n := 1; n > 0; n, _ = fmt.Scanln(&word, &ms) {
			switch word {
			case "resign":
				l.Resign()
			case "say":
				l.SetMetadata(`"said"`)
			case "close":
				stop()
			case "hang":
				hang.Store(int64(ms * time.Millisecond))
			}
		}
	}()
	go func() { // the work loop
		for i := 0; ; i++ {
			turn.Store(time.Now().UnixNano())
			asked := nanoseconds()
			if term, ok := l.Term(); ok {
				if say("working", term, asked); i%5 == 0 {
					say(write(l, work, term)...)
				}
			}
			time.Sleep(20*time.Millisecond + time.Duration(hang.Swap(0)))
		}
	}()
	say("ready")
	err := l.Run(ctx, func(ctx context.Context, term int64) error {
		say("elected", term)
		<-ctx.Done() // a real program works here
		say("lost", l.Reason())
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		say("error", state(err), strings.ReplaceAll(err.Error(), "\n", " "))
		os.Exit(3)
	}
	say("closed")
}

func state(err error) pq.ErrorCode {
	e := &pq.Error{Code: "none"}
	errors.As(err, &e)
	return e.Code
}

// write is a fenced write on a connection of the application's own.
func write(l *leaderelection.Leadership, db *sql.DB, term int64) []any {
	tx, err := db.Begin()
	if err == nil {
		defer tx.Rollback()
		err = l.Fenced(context.Background(), tx)
	}
	if err == nil {
		_, err = tx.Exec("SELECT conformance.write($1, $2, $3)", os.Args[2], os.Args[3], term)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return []any{"refused", term, state(err)}
	}
	return []any{"wrote", term}
}
