package resourcelock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"io"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// A server is a driver that ignores contexts. It answers a call with a row (nil: none)
// when answer has returned.
type server struct {
	answer func(call string) []driver.Value
}

func (s server) Connect(context.Context) (driver.Conn, error) { return s, nil }
func (s server) Driver() driver.Driver                        { return nil }
func (s server) Prepare(string) (driver.Stmt, error)          { panic("not called") }
func (s server) Begin() (driver.Tx, error)                    { panic("not called") }
func (s server) Close() error                                 { return nil }
func (s server) QueryContext(_ context.Context, call string, _ []driver.NamedValue) (driver.Rows, error) {
	return &rows{s.answer(call)}, nil
}
func (s server) ExecContext(_ context.Context, call string, _ []driver.NamedValue) (driver.Result, error) {
	s.answer(call)
	return driver.RowsAffected(1), nil
}

type rows struct{ row []driver.Value }

func (r *rows) Columns() []string { return make([]string, len(r.row)) }
func (r *rows) Close() error      { return nil }
func (r *rows) Next(to []driver.Value) error {
	if r.row == nil {
		return io.EOF
	}
	copy(to, r.row)
	r.row = nil
	return nil
}

var record = resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 3}

// In time, whatever the driver does: Get, Update (renewal and release), and meanwhile Term
// and RecordEvent. What the calls answer later is thrown away.
func TestDriverHangs(t *testing.T) {
	begun, hang := make(chan bool, 9), make(chan bool)
	db := sql.OpenDB(server{func(call string) []driver.Value {
		if !strings.Contains(call, ".acquire(") {
			begun <- true
			<-hang
		}
		return []driver.Value{int64(1), int64(3000)}
	}})
	lock := New(db, "e", "a")
	if err := lock.Update(context.Background(), record); err != nil {
		t.Fatal(err)
	}
	for what, call := range map[string]func(ctx context.Context) error{
		"Get":    func(ctx context.Context) error { _, _, err := lock.Get(ctx); return err },
		"Update": func(ctx context.Context) error { return lock.Update(ctx, record) },
	} {
		ctx, cancel := context.WithCancel(context.Background())
		returned := make(chan error, 1)
		go func() { returned <- call(ctx) }()
		told := make(chan bool)
		go func() {
			<-begun
			lock.RecordEvent("stopped leading")
			if lock.Term() != 1 {
				t.Error(what, lock.Term())
			}
			close(told)
		}()
		await(t, "Term during "+what, told)
		cancel()
		select {
		case err := <-returned:
			if err != context.Canceled {
				t.Error(what, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal(what, " hangs")
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := lock.Update(ctx, resourcelock.LeaderElectionRecord{}); err != context.DeadlineExceeded || lock.Term() != 0 {
		t.Error(err, lock.Term())
	}
	for close(hang); db.Stats().InUse > 0; {
		time.Sleep(time.Millisecond)
	}
	if lock.Term() != 0 {
		t.Error("a late answer counts")
	}
}

// An elector that leads, and hears that the term is over, has to stop first. If it had
// stopped before, nothing hinders it: it asks for a new term.
func TestStopped(t *testing.T) {
	term, over := int64(1), false
	db := sql.OpenDB(server{func(call string) []driver.Value {
		if over && strings.Contains(call, ".renew(") {
			return nil
		}
		return []driver.Value{term, int64(3000)}
	}})
	lock := New(db, "e", "a")
	expect := func(ok bool, term int64) {
		t.Helper()
		if err := lock.Update(context.Background(), record); (err == nil) != ok || lock.Term() != term {
			t.Error(err, lock.Term())
		}
	}
	expect(true, 1)
	lock.RecordEvent("stopped leading") // for want of answers
	term, over = 2, true
	expect(false, 0)
	expect(true, 2)
	expect(false, 0) // it leads
	expect(false, 0)
	lock.RecordEvent("stopped leading")
	expect(true, 2)
}

// What remains of a lease counts from when the call was sent. A call after which less than
// nine tenths of LeaseDuration remain is no success: the elector would count from its answer.
func TestLateAnswers(t *testing.T) {
	clock, late, ms, released := time.Now(), time.Duration(0), int64(3000), 0
	now = func() time.Time { return clock }
	t.Cleanup(func() { now = time.Now })
	db := sql.OpenDB(server{func(call string) []driver.Value {
		clock = clock.Add(late)
		if strings.Contains(call, ".release(") {
			released++
		}
		return []driver.Value{int64(1), ms}
	}})
	lock := New(db, "e", "a")
	for _, c := range []struct {
		what     string
		late     time.Duration
		ms       int64
		ok       bool
		term     int64
		released int
	}{
		{"a grant that comes late", time.Second, 3000, false, 0, 1},
		{"one in time", 0, 3000, true, 1, 1},
		{"a renewal that comes late", time.Second, 3000, false, 1, 1},
		{"one in time", 0, 3000, true, 1, 1},
		{"one that renews nothing: to be yielded", 0, 2000, false, 1, 1},
		{"the next one", 0, 3000, true, 1, 1},
	} {
		late, ms = c.late, c.ms
		if err := lock.Update(context.Background(), record); (err == nil) != c.ok || lock.Term() != c.term || released != c.released {
			t.Error(c.what, err, lock.Term(), released)
		}
	}
}
