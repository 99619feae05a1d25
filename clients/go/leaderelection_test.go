package leaderelection

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"
)

type record struct {
	mu   sync.Mutex
	told []string
}

func (r *record) add(v ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, fmt.Sprint(v...))
}

func (r *record) options() Options {
	return Options{Election: "e",
		OnElected: func(term int64) { r.add("elected ", term) },
		OnLost:    func(reason string) { r.add("lost ", reason) },
		Logf:      func(string, ...any) {}}
}

func (r *record) expect(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !reflect.DeepEqual(r.told, want) {
		t.Errorf("told %q, not %q", r.told, want)
	}
}

func TestFake(t *testing.T) {
	var r record
	f := NewFake(r.options())
	if err := f.Start(); err != nil {
		t.Fatal(err)
	}
	if _, ok := f.Term(); ok || f.Leads() {
		t.Error("leads before it was elected")
	}
	f.Elect(0, 0)
	f.Advance(15*time.Second - 1)
	if term, ok := f.Term(); !ok || term != 1 || f.Fenced(context.Background(), nil) != nil {
		t.Error("does not lead before the deadline")
	}
	f.elapsed.Add(1) // before the timer has noticed
	if _, ok := f.Term(); ok || !errors.Is(f.Fenced(context.Background(), nil), ErrNotLeader) {
		t.Error("leads at the deadline")
	}
	f.Advance(0)
	f.Elect(7, time.Second)
	f.Lose("connection lost")
	f.Elect(0, 0)
	f.Resign()
	f.Elect(0, 0)
	f.AskYield() // has no handler
	f.Elect(0, 0)
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	r.expect(t, "elected 1", "lost expired", "elected 7", "lost connection lost", "elected 8", "lost resigned",
		"elected 9", "lost yielded", "elected 10", "lost closed")
	if f.Changes() != 5 || f.Reason() != "closed" {
		t.Error(f.Changes(), f.Reason())
	}
	if _, err := f.Wait(context.Background()); err != ErrClosed {
		t.Error(err)
	}
}

func TestYield(t *testing.T) {
	var r record
	opts := r.options()
	var f *Fake
	opts.OnYield = func(term int64) { r.add("yield ", term); panic("goes on") }
	f = NewFake(opts)
	_ = f.Start()
	f.Elect(3, 0)
	f.AskYield()
	f.AskYield()
	if !f.Leads() {
		t.Error("the handler decides when it goes")
	}
	f.Resign()
	f.Close()
	r.expect(t, "elected 3", "yield 3", "lost yielded")
}

// The lease is given back after the function of Run has returned: lost is not
// over before. A loss makes Run stand again.
func TestRun(t *testing.T) {
	var r record
	f := NewFake(r.options())
	mine := errors.New("mine")
	result, terms, leave := make(chan error), make(chan int64), make(chan bool)
	go func() {
		result <- f.Run(context.Background(), func(ctx context.Context, term int64) error {
			if terms <- term; term == 2 {
				return mine
			}
			<-ctx.Done()
			if _, ok := f.Term(); ok || f.Reason() != "expired" {
				t.Error("leads after its context was cancelled")
			}
			<-leave
			return nil
		})
	}()
	f.Elect(0, 0)
	<-terms
	settled := make(chan bool)
	go func() { f.Advance(time.Minute); close(settled) }()
	select {
	case <-settled:
		t.Error("lost, and its function runs on")
	case <-time.After(50 * time.Millisecond):
	}
	leave <- true
	<-settled
	f.Elect(2, 0)
	<-terms
	if err := <-result; err != mine {
		t.Error(err)
	}
	r.expect(t, "elected 1", "lost expired", "elected 2", "lost closed")
}

func TestSole(t *testing.T) {
	var r record
	l := NewSole(r.options(), false)
	_ = l.Start()
	if term, err := l.Wait(context.Background()); term != 0 || err != nil {
		t.Error(term, err)
	}
	l.Resign()
	if _, ok := l.Term(); ok || !l.Leads() {
		t.Error("has a term, or does not lead")
	}
	if l.Fenced(context.Background(), nil) == nil {
		t.Error("fences without a term")
	}
	l.Close()
	r.expect(t, "elected 0", "lost closed")

	l = NewSole(r.options(), true)
	ctx, cancel := context.WithCancel(context.Background())
	err := l.Run(ctx, func(ctx context.Context, term int64) error {
		if err := l.Fenced(ctx, nil); err != nil {
			t.Error(err)
		}
		cancel()
		<-ctx.Done()
		return nil
	})
	if err != context.Canceled || l.Leads() {
		t.Error(err)
	}
}

// The deadline does not depend on a health check that hangs, nor does Close.
func TestClose(t *testing.T) {
	opts := (&record{}).options()
	opts.DSN = []string{"host=127.0.0.1 port=1"}
	opts.HealthCheck = func() bool { select {} }
	for _, l := range []*Leadership{New(opts), NewDetached(nil, opts)} {
		_ = l.Start()
		time.Sleep(20 * time.Millisecond)
		sent := time.Now()
		if err := l.Close(); err != nil || time.Since(sent) > time.Second || l.Close() != nil {
			t.Error(err, time.Since(sent))
		}
		if l.Start() == nil {
			t.Error("started again")
		}
	}
}

func TestClock(t *testing.T) {
	a, at := clock(), time.Now()
	time.Sleep(20 * time.Millisecond)
	if d := clock() - a - time.Since(at); d > 5*time.Millisecond || d < -5*time.Millisecond {
		t.Error(d)
	}
}
