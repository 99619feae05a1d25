// The driver program of the Go client (test/clients): it stands in an election
// and tells on stdout what happens. main.go session|detached ELECTION CANDIDATE
package main

import (
	"bufio"
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
	d, _ := time.ParseDuration(env(name, otherwise) + "s")
	return d
}

func places(hosts, ports string) (list []string) {
	port := strings.Split(ports, ",")
	for i, host := range strings.Split(hosts, ",") {
		list = append(list, net.JoinHostPort(host, port[i%len(port)]))
	}
	return list
}

// A pool connects to the first place that answers: lib/pq knows one host.
type pool []string

func open(places []string) *sql.DB {
	connector, _ := pq.NewConnector("sslmode=disable")
	connector.Dialer(pool(places))
	return sql.OpenDB(connector)
}

func (p pool) Dial(network, _ string) (c net.Conn, err error) {
	for _, place := range p {
		if c, err = net.DialTimeout(network, place, 2*time.Second); err == nil {
			break
		}
	}
	return c, err
}

func (p pool) DialTimeout(n, a string, _ time.Duration) (net.Conn, error) { return p.Dial(n, a) }

func main() {
	var l *leaderelection.Leadership
	var turn atomic.Int64 // when the work loop last took a turn
	hang := make(chan time.Duration, 1)
	hosts, ports := os.Getenv("PGHOST"), env("PGPORT", "5432")
	at := places(hosts, ports)
	dsn := "postgres://" + strings.Join(at, "/?sslmode=disable\npostgres://") + "/?sslmode=disable"
	opts := leaderelection.Options{
		DSN: dsn, Election: os.Args[2], Candidate: os.Args[3],
		CallTimeout: seconds("CALL_TIMEOUT", "1"), Slice: seconds("SLICE", "1"),
		Interval: seconds("INTERVAL", "0.2"),
	}
	if limit := os.Getenv("QUERY_TIMEOUT"); limit != "" {
		os.Setenv("PGOPTIONS", "-c statement_timeout="+limit+"s")
	}
	if os.Getenv("HEALTH") == "1" {
		opts.HealthCheck = func() bool { return time.Since(time.UnixMilli(turn.Load())) < time.Second/2 }
	}
	if os.Getenv("YIELD") == "1" {
		opts.OnYield = func(term int64) {
			say("yield", term)
			time.AfterFunc(200*time.Millisecond, l.Resign)
		}
	}
	if os.Getenv("LISTEN") == "1" {
		listener := pq.NewListener(strings.Split(dsn, "\n")[0], time.Second/10, 5*time.Second, nil)
		go listener.Listen("leadership_changed")
		opts.Wake = listener.Notify
	}
	if l = leaderelection.New(opts); os.Args[1] == "detached" {
		l = leaderelection.NewDetached(open(at), opts)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			var word, ms string
			switch fmt.Sscan(in.Text(), &word, &ms); word {
			case "resign":
				l.Resign()
			case "close":
				stop()
			case "hang":
				d, _ := time.ParseDuration(ms + "ms")
				hang <- d
			}
		}
	}()
	go func() { // the work loop
		db := open(places(env("WORKHOST", hosts), env("WORKPORT", ports)))
		for i := 0; ; i++ {
			turn.Store(time.Now().UnixMilli())
			if term, ok := l.Term(); ok {
				if say("working", term); i%5 == 0 {
					write(l, db, term)
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

func state(err error) string {
	if e := (&pq.Error{}); errors.As(err, &e) {
		return string(e.Code)
	}
	return "none"
}

// write is a fenced write on a connection of the application's own.
func write(l *leaderelection.Leadership, db *sql.DB, term int64) {
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
		say("refused", term, state(err))
		return
	}
	say("wrote", term)
}
