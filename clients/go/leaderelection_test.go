package leaderelection

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/lib/pq"
)

// A record runs a candidate, and keeps what its function saw.
type record struct {
	told  []string
	begin chan int64
	ended chan error
}

func (r *record) run(ctx context.Context, l *Leadership) {
	r.begin, r.ended = make(chan int64), make(chan error)
	go func() {
		r.ended <- l.Run(ctx, func(ctx context.Context, term int64) error {
			r.told = append(r.told, fmt.Sprint("elected ", term))
			r.begin <- term
			<-ctx.Done()
			if l.Leads() {
				r.told = append(r.told, "leads on")
			}
			r.told = append(r.told, "lost "+l.Reason())
			return nil
		})
	}()
}

func (r *record) expect(t *testing.T, want ...string) {
	t.Helper()
	if !reflect.DeepEqual(r.told, want) {
		t.Errorf("told %q, not %q", r.told, want)
	}
}

func TestFake(t *testing.T) {
	var r record
	f := NewFake(Options{})
	ctx, cancel := context.WithCancel(context.Background())
	elect := func(term int64, lease time.Duration) {
		f.Elect(term, lease)
		<-r.begin
	}
	r.run(ctx, f.Leadership)
	if _, ok := f.Term(); ok || f.Leads() {
		t.Error("leads before it was elected")
	}
	elect(0, 0)
	f.Advance(15*time.Second - 1)
	if term, ok := f.Term(); !ok || term != 1 || f.Fenced(ctx, nil) != nil {
		t.Error("does not lead before the deadline")
	}
	f.mu.Lock()
	f.clock = f.clock.Add(1) // before the timer has noticed
	f.mu.Unlock()
	if _, ok := f.Term(); ok || !errors.Is(f.Fenced(ctx, nil), ErrNotLeader) {
		t.Error("leads at the deadline")
	}
	f.Advance(0)
	elect(7, time.Second)
	f.Lose("connection lost")
	elect(0, 0)
	f.Resign()
	elect(0, 0)
	f.AskYield() // has no handler
	elect(0, 0)
	cancel()
	if err := <-r.ended; err != context.Canceled {
		t.Error(err)
	}
	r.expect(t, "elected 1", "lost expired", "elected 7", "lost connection lost", "elected 8", "lost resigned",
		"elected 9", "lost yielded", "elected 10", "lost closed")
	if f.Changes() != 5 || f.Reason() != "closed" || f.Leads() {
		t.Error(f.Changes(), f.Reason())
	}
	if _, err := f.Wait(context.Background()); err != context.Canceled {
		t.Error(err)
	}
}

// A process that was stopped may read the answer to a renewal before the timer of
// its deadline has run: it goes on leading nevermore.
func TestLate(t *testing.T) {
	var r record
	f := NewFake(Options{})
	ctx, cancel := context.WithCancel(context.Background())
	r.run(ctx, f.Leadership)
	f.Elect(0, time.Second)
	<-r.begin
	f.extend(grant{term: 1, deadline: f.clock.Add(2 * time.Second)}) // in time
	f.mu.Lock()
	f.clock = f.clock.Add(2 * time.Second)
	f.mu.Unlock()
	f.extend(grant{term: 1, deadline: f.clock.Add(time.Second)})
	if f.Leads() {
		t.Error("leads on after its deadline")
	}
	f.Lose("not renewed") // what another answer may say before the timer has run
	cancel()
	<-r.ended
	r.expect(t, "elected 1", "lost expired")
}

func TestYield(t *testing.T) {
	var r record
	var asked []int64
	f := NewFake(Options{OnYield: func(term int64) { asked = append(asked, term) }})
	ctx, cancel := context.WithCancel(context.Background())
	r.run(ctx, f.Leadership)
	f.Elect(3, 0)
	<-r.begin
	f.AskYield()
	f.AskYield()
	if !f.Leads() {
		t.Error("the handler decides when it goes")
	}
	f.Resign()
	cancel()
	<-r.ended
	r.expect(t, "elected 3", "lost yielded")
	if !reflect.DeepEqual(asked, []int64{3}) {
		t.Error(asked)
	}
}

// Nobody is elected before the function of the last term has returned, and Run
// returns what the function does.
func TestRun(t *testing.T) {
	f := NewFake(Options{})
	mine := errors.New("mine")
	result, terms, leave, elected := make(chan error), make(chan int64), make(chan bool), make(chan bool)
	go func() {
		result <- f.Run(context.Background(), func(ctx context.Context, term int64) error {
			if terms <- term; term == 2 {
				return mine
			}
			<-ctx.Done()
			<-leave
			return nil
		})
	}()
	f.Elect(0, 0)
	<-terms
	f.Advance(time.Minute)
	go func() { f.Elect(2, 0); close(elected) }()
	select {
	case <-elected:
		t.Error("elected, and its function runs on")
	case <-time.After(50 * time.Millisecond):
	}
	leave <- true
	<-terms
	if err := <-result; err != mine {
		t.Error(err)
	}
}

func TestSole(t *testing.T) {
	var r record
	wake := make(chan *pq.Notification, 1)
	wake <- nil
	l := NewSole(Options{Wake: wake}, false)
	ctx, cancel := context.WithCancel(context.Background())
	r.run(ctx, l)
	<-r.begin
	if term, err := l.Wait(ctx); term != 0 || err != nil {
		t.Error(term, err)
	}
	l.Resign()
	if _, ok := l.Term(); ok || !l.Leads() {
		t.Error("has a term, or does not lead")
	}
	if l.Fenced(ctx, nil) == nil {
		t.Error("fences without a term")
	}
	cancel()
	<-r.ended
	r.expect(t, "elected 0", "lost closed")
	if len(wake) == 0 {
		t.Error("asks a server")
	}

	l = NewSole(Options{}, true)
	if l.Fenced(ctx, nil) == nil {
		t.Error("does not lead yet")
	}
	err := l.Run(context.Background(), func(ctx context.Context, term int64) error { return l.Fenced(ctx, nil) })
	if err != nil || l.Leads() {
		t.Error(err)
	}
}

// Where nobody answers, Run ends at once all the same; a wrong DSN ends it.
func TestEnd(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
	defer cancel()
	begun := time.Now()
	err := New(Options{DSN: "host=127.0.0.1 port=1\nhost=127.0.0.1 port=2", Election: "e"}).Run(ctx, nil)
	if err != context.DeadlineExceeded || time.Since(begun) > time.Second {
		t.Error(err, time.Since(begun))
	}
	if err := New(Options{DSN: "nonsense"}).Run(context.Background(), nil); err == nil || sqlState(err) != "22023" {
		t.Error(err)
	}
}
