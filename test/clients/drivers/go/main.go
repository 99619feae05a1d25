// The driver program of the Go client (test/clients): it stands in an election
// and tells on stdout what happens. main.go session|detached ELECTION CANDIDATE
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/lib/pq"

	leaderelection "leader-election-postgresql"
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

func open(hosts, ports, dsn string) (places pool, db *sql.DB) {
	port := strings.Split(ports, ",")
	for i, host := range strings.Split(hosts, ",") {
		places = append(places, net.JoinHostPort(host, port[i]))
	}
	connector, _ := pq.NewConnector(dsn)
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

// whose are the fenced writes, if they have a role and a database of their own?
func whose() (dsn string) {
	if user := os.Getenv("WORKUSER"); user != "" {
		dsn = "user=" + user
	}
	if database := os.Getenv("WORKDATABASE"); database != "" {
		dsn += " dbname=" + database
	}
	return dsn
}

// where is what the client is told of it: one connection string a line, or nothing
// if the environment says it all.
func where(places pool, environment bool) string {
	if service := os.Getenv("SERVICE"); service != "" {
		return "service=" + service
	}
	if environment {
		return ""
	}
	return "postgres://" + strings.Join(places, "\npostgres://")
}

// handler does once what HANDLER says of an event, and returns the error to raise.
type handler struct {
	resign, close, wait func()
	done                atomic.Bool
}

func (h *handler) handle(event string) error {
	name, what, _ := strings.Cut(os.Getenv("HANDLER"), ":")
	if name != event || h.done.Swap(true) {
		return nil
	}
	switch what {
	case "raise":
		return errors.New("raised in " + event)
	case "exit":
		os.Exit(7)
	case "block":
		time.Sleep(2 * seconds("LEASE"))
	case "close":
		h.close()
	case "resign":
		h.resign()
	case "wait":
		h.wait()
	}
	return nil
}

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
	environment := os.Getenv("PGSERVICE") != "" || os.Getenv("PGHOSTADDR") != ""
	leaderelection.TakeEnvironment()
	places, db := open(os.Getenv("PGHOST"), os.Getenv("PGPORT"), "")
	_, work := open(os.Getenv("WORKHOST"), os.Getenv("WORKPORT"), whose())
	opts := leaderelection.Options{
		DSN:      where(places, environment),
		Election: os.Args[2], Candidate: os.Args[3],
		CallTimeout: seconds("CALL_TIMEOUT"), Slice: seconds("SLICE"),
		Interval: seconds("INTERVAL"), RefusalTimeout: seconds("REFUSAL_TIMEOUT"),
		Pooler: os.Getenv("POOLER"),
	}
	if os.Getenv("DEFAULT_NAME") != "" {
		opts.Candidate = ""
	}
	if os.Getenv("DEFAULT_SLICE") != "" {
		opts.Slice = 0
	}
	if healthy := seconds("HEALTH"); healthy != 0 {
		opts.HealthCheck = func() bool { return time.Now().UnixNano()-turn.Load() < int64(healthy) }
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	h := &handler{resign: func() { l.Resign() }, close: stop, wait: func() { l.Wait(ctx) }}
	if yields := os.Getenv("YIELD") != ""; yields || strings.HasPrefix(os.Getenv("HANDLER"), "yield:") {
		opts.OnYield = func(term int64) {
			say("yield", term)
			if err := h.handle("yield"); err != nil { // no error can come out of it
				log.Printf("%s: %v", os.Args[2], err)
				l.Resign()
			} else if yields {
				time.AfterFunc(200*time.Millisecond, l.Resign)
			}
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
	if opts.Candidate == "" {
		say("name", l.Candidate())
	}
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
		said := ""
		for i := 0; ; i++ {
			turn.Store(time.Now().UnixNano())
			if text := l.State(); text != said {
				said = text
				say("state", text)
			}
			asked := nanoseconds()
			if term, ok := l.Term(); ok {
				if say("working", term, asked); i%5 == 0 {
					say(write(l, work, term)...)
				}
			}
			time.Sleep(20*time.Millisecond + time.Duration(hang.Swap(0)))
		}
	}()
	raised := false
	say("ready")
	err := l.Run(ctx, func(ctx context.Context, term int64) error {
		say("elected", term)
		if err := h.handle("elected"); err != nil {
			raised = true
			return err
		}
		<-ctx.Done() // a real program works here
		say("lost", l.Reason())
		return h.handle("lost")
	})
	if raised {
		say("lost", l.Reason())
	}
	if !errors.Is(err, context.Canceled) {
		say("state", l.State())
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
