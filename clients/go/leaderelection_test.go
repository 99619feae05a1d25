package leaderelection

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
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
	if f.timer.Stop() {
		t.Error("the timer of a lost term is kept until its deadline")
	}
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
	if f.timer.Stop() {
		t.Error("the timer of a term that ended with Run is kept until its deadline")
	}
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
	l := NewSole(Options{Wake: wake, HealthCheck: func() bool { return false }}, false)
	ctx, cancel := context.WithCancel(context.Background())
	r.run(ctx, l)
	<-r.begin
	if term, err := l.Wait(ctx); term != 0 || err != nil {
		t.Error(term, err)
	}
	if _, ok := l.Term(); ok || !l.Leads() {
		t.Error("has a term, or does not lead")
	}
	if err := l.Fenced(ctx, nil); err == nil || errors.Is(err, ErrNotLeader) {
		t.Error("fences without a term, or says that it does not lead:", err)
	}
	l.Resign()
	<-r.begin
	cancel()
	<-r.ended
	r.expect(t, "elected 0", "lost resigned", "elected 0", "lost closed")
	if err := l.Fenced(ctx, nil); err != ErrNotLeader {
		t.Error(err)
	}
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
	if _, err = l.Wait(context.Background()); err != ErrClosed {
		t.Error(err)
	}
	l = NewSole(Options{}, false)
	err = l.Run(context.Background(), func(ctx context.Context, term int64) error { return l.Fenced(ctx, nil) })
	if err == nil || l.Changes() != 1 {
		t.Error("stands again and again: ", err)
	}
}

// What the function returns: an error ends Run, before the loss and after it, unless
// it only says that the leadership is lost.
func TestErrorOfFunction(t *testing.T) {
	mine := errors.New("mine")
	for _, c := range []struct {
		err    error
		lose   bool // before it returns
		ends   bool
		reason string
	}{
		{mine, false, true, "error"},
		{mine, true, true, "connection lost"},
		{nil, false, true, "closed"},
		{nil, true, false, "connection lost"},
		{context.Canceled, false, true, "error"},
		{fmt.Errorf("%w", context.Canceled), true, false, "connection lost"},
		{context.DeadlineExceeded, true, false, "connection lost"},
		{context.DeadlineExceeded, false, true, "error"},
		{&pq.Error{Code: "57014"}, true, false, "connection lost"},
		{&pq.Error{Code: "57014"}, false, true, "error"},
		{&pq.Error{Code: "LE002"}, false, false, "not renewed"},
		{ErrNotLeader, false, false, "not renewed"},
	} {
		f := NewFake(Options{})
		ctx, cancel := context.WithCancel(context.Background())
		calls, ended, reason := make(chan bool), make(chan error, 1), ""
		go func() {
			ended <- f.Run(ctx, func(ctx context.Context, term int64) error {
				if calls <- true; term > 1 {
					return nil
				}
				if c.lose {
					f.Lose("connection lost")
				}
				return c.err
			})
		}()
		f.Elect(0, 0)
		<-calls
		if !c.ends {
			f.working.Wait()
			reason = f.Reason()
			f.Elect(0, 0)
			<-calls
			<-ended
		} else if err := <-ended; err != c.err {
			t.Error(c, err)
		} else if reason = f.Reason(); c.err != nil && f.State() != "failed: "+describe(c.err) {
			t.Error(c, f.State())
		}
		if reason != c.reason {
			t.Error(c, reason)
		}
		cancel()
	}
}

// A function that asks Leads may return at the deadline before the timer of the deadline
// has run: that is a loss, and Run stands again.
func TestReturnsAtDeadline(t *testing.T) {
	f := NewFake(Options{})
	calls, ended := make(chan int64, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		ended <- f.Run(ctx, func(ctx context.Context, term int64) error {
			for calls <- term; f.Leads(); {
				time.Sleep(time.Millisecond)
			}
			return nil
		})
	}()
	f.Elect(0, 0)
	<-calls
	f.mu.Lock()
	f.clock = f.clock.Add(time.Minute) // the timer has not noticed
	f.mu.Unlock()
	if f.working.Wait(); f.Reason() != "expired" {
		t.Error(f.Reason())
	}
	f.Elect(0, 0)
	select {
	case <-calls:
	case err := <-ended:
		t.Error("Run has ended: ", err)
	}
}

// A function that ends its goroutine would leave a leader that does nothing.
func TestGoexit(t *testing.T) {
	f := NewFake(Options{})
	ended := make(chan error)
	go func() {
		ended <- f.Run(context.Background(), func(context.Context, int64) error {
			runtime.Goexit()
			return nil
		})
	}()
	f.Elect(0, 0)
	if err := <-ended; err == nil || f.Run(context.Background(), nil) == nil {
		t.Error(err)
	}
}

// OnYield may wait, and the lease is not given back before it has returned.
func TestYieldWaits(t *testing.T) {
	var r record
	leave, asked := make(chan bool), make(chan bool)
	f := NewFake(Options{OnYield: func(int64) { asked <- true; <-leave }})
	ctx, cancel := context.WithCancel(context.Background())
	r.run(ctx, f.Leadership)
	f.Elect(0, 0)
	<-r.begin
	f.AskYield()
	<-asked
	if f.Advance(5 * time.Second); !f.Leads() {
		t.Error("does not lead on")
	}
	f.Advance(time.Minute)
	elected := make(chan bool)
	go func() { f.Elect(0, 0); close(elected) }()
	select {
	case <-elected:
		t.Error("elected, and OnYield runs on")
	case <-time.After(50 * time.Millisecond):
	}
	close(leave)
	<-r.begin
	cancel()
	<-r.ended
	r.expect(t, "elected 1", "lost expired", "elected 2", "lost closed")
}

// A health check that hangs is not healthy, is not called a second time, and what it
// says late does not count.
func TestHealth(t *testing.T) {
	leave, calls := make(chan bool), make(chan bool, 9)
	f := NewFake(Options{CallTimeout: 50 * time.Millisecond,
		HealthCheck: func() bool { calls <- true; return <-leave }})
	f.ctx = context.Background()
	if f.healthy() || f.healthy() {
		t.Error("healthy before it has answered")
	}
	leave <- true // it takes that when it was called
	if len(calls) != 1 {
		t.Fatal("asked twice")
	}
	for len(f.check) == 0 { // it is noted
		time.Sleep(time.Millisecond)
	}
	if f.healthy() {
		t.Error("healthy by what it said late")
	}
	leave <- true
	if len(calls) != 2 {
		t.Fatal("not asked again")
	}
	for len(f.check) == 0 {
		time.Sleep(time.Millisecond)
	}
	f.opts.CallTimeout = time.Minute
	go func() { leave <- true }()
	if !f.healthy() || len(calls) != 3 {
		t.Error("not healthy")
	}
}

// Where lib/pq is told to connect
func TestHosts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "services")
	if err := os.WriteFile(file, []byte("[other]\nhost=no\n\n# of ours\n[app]\nhost=a,b\nport=1,2\n"+
		"target_session_attrs=read-write\nkeepalives=1\n[last]\nport=9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"PGHOST", "PGHOSTADDR", "PGPORT", "PGSERVICE"} {
		t.Setenv(name, "") // to have it back in the end
		os.Unsetenv(name)
	}
	t.Setenv("PGSERVICEFILE", file)
	TakeEnvironment()
	defer func() { taken = map[string]string{} }()
	for dsn, want := range map[string]string{
		"":                                         "[{localhost 5432}]",
		"host=a":                                   "[{a 5432}]",
		"host=a,b,c port=1":                        "[{a 1} {b 1} {c 1}]",
		"host=a,b port=1,2":                        "[{a 1} {b 2}]",
		"host=a,b port=1,":                         "[{a 1} {b 5432}]",
		"host=a,b port=1,2,3":                      "2 hosts, 2 addresses and 3 ports",
		"hostaddr=10.0.0.1,10.0.0.2":               "[{10.0.0.1 5432} {10.0.0.2 5432}]",
		"host=a,b hostaddr=10.0.0.1":               "2 hosts, 1 addresses and 1 ports",
		"host=a hostaddr=10.0.0.1":                 "[{10.0.0.1 5432}]",
		"host=a port=1\nhost=b port=2":             "[{a 1} {b 2}]",
		"host=/tmp port=1":                         "[{/tmp 1}]",
		"postgres://u:p@a:1,b:2/d":                 "[{a 1} {b 2}]",
		"postgresql://a,b:2":                       "[{a 5432} {b 2}]",
		"postgres://[::1]:1,[::2]/d":               "[{::1 1} {::2 5432}]",
		"postgres:///d?host=a":                     "[{a 5432}]",
		"service=app":                              "[{a 1} {b 2}]",
		"service=app host=c port=3":                "[{c 3}]",
		"postgres:///d?service=last":               "[{localhost 9}]",
		"service=none":                             "there is no service",
		"host = 'a' password = 'b \\' c' user=x'y": "[{a 5432}]",
		"nonsense":                                 "a connection string has words",
		"host='a":                                  "a connection string has words",
		"host=a passfile=x":                        "lib/pq does not know passfile",
		"host=a target_session_attrs=standby":      "target_session_attrs: only",
	} {
		hosts, err := readHosts(dsn)
		got := ""
		for _, h := range hosts {
			got += fmt.Sprintf(" {%s %s}", h.name, h.port)
		}
		if got = "[" + strings.TrimPrefix(got, " ") + "]"; err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%q: %s, not %s", dsn, got, want)
		}
	}
	t.Setenv("PGREALM", "x") // neither of us knows it
	if _, err := readHosts(""); err == nil {
		t.Error("does not say what lib/pq cannot do")
	}
}

// The environment is the whole program's, also that of what it starts: it is changed when the
// program says so, and never by a session.
func TestEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "services")
	if err := os.WriteFile(file, []byte("[app]\nhost=a,b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"PGHOST": "", "PGPORT": "", "PGSYSCONFDIR": "/etc", "PGSERVICE": "app",
		"PGSERVICEFILE": file, "PGHOSTADDR": "10.0.0.1,10.0.0.2"} {
		t.Setenv(name, value)
	}
	stop, missed := make(chan bool), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				missed <- n
				return
			default:
				if os.Getenv("PGSERVICE") != "app" {
					n++
				}
			}
		}
	}()
	var err error
	for i := 0; i < 1000; i++ {
		_, err = readHosts("host=a hostaddr=10.0.0.1")
	}
	stop <- true
	if n := <-missed; n > 0 {
		t.Errorf("another goroutine missed PGSERVICE %d times", n)
	}
	if err == nil || !strings.Contains(err.Error(), "TakeEnvironment") {
		t.Error("does not say what to do:", err)
	}
	TakeEnvironment()
	defer func() { taken = map[string]string{} }()
	hosts, err := readHosts("")
	if err != nil || len(hosts) != 2 || hosts[1].name != "10.0.0.2" {
		t.Fatal(hosts, err)
	}
	if _, err = pq.NewConnector(""); err != nil || os.Getenv("PGSERVICE") != "" {
		t.Error(err)
	}
}

func TestParse(t *testing.T) {
	settings, err := parse(`host = 'a' password='b \' c' user=x'y  options=-c\ work_mem=1MB dbname=`)
	want := map[string]string{"host": "a", "password": "b ' c", "user": "x'y", "options": "-c work_mem=1MB", "dbname": ""}
	if err != nil || !reflect.DeepEqual(settings, want) {
		t.Error(settings, err)
	}
}

// A password is not shown, whatever is wrong with the connection string.
func TestPassword(t *testing.T) {
	for _, dsn := range []string{"postgres://u:secret%zz@a/d", "postgresql://u:secret@a/%zz", "password=secret user"} {
		if _, err := readHosts(dsn); err == nil || strings.Contains(err.Error(), "secret") {
			t.Error(err)
		}
	}
}

// The next round begins with the primary. What one address says counts for it alone.
func TestAddresses(t *testing.T) {
	a := addresses{lines: "host=127.0.0.1,127.0.0.2,127.0.0.3", refusals: map[string]refusal{}}
	var got []string
	next := func() address {
		at, err := a.next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.TrimSuffix(at.where, ":5432"))
		return at
	}
	refused := &pq.Error{Code: "28000"}
	a.heard(next(), refused)
	second := next()
	a.prefer(second)
	if a.heard(second, nil); a.more() {
		t.Error("the round goes on")
	}
	a.heard(next(), refused)
	if a.verdict(0) != nil {
		t.Error("ends although two have not refused")
	}
	a.heard(next(), refused)
	a.heard(next(), refused)
	if a.verdict(0) != refused || a.verdict(time.Minute) != nil {
		t.Error(a.verdict(0), a.verdict(time.Minute))
	}
	if a.heard(second, errors.New("no route")); a.verdict(0) != nil {
		t.Error("ends although one may be the primary")
	}
	if want := "127.0.0.1 127.0.0.2 127.0.0.2 127.0.0.1 127.0.0.3"; strings.Join(got, " ") != want {
		t.Error(got)
	}
}

// A name server speaks as much of DNS as TestLookUp needs: it knows every name, or is down.
type nameServer struct{ ip net.IP }

func (s *nameServer) dial(context.Context, string, string) (net.Conn, error) {
	if s.ip == nil {
		return nil, errors.New("down")
	}
	ours, theirs := net.Pipe()
	go s.serve(theirs)
	return ours, nil
}

// serve answers one question, which has the bytes LENGTH ID FLAGS COUNTS NAME TYPE CLASS, as
// over TCP. Of type A (1) there is one address, of AAAA none.
func (s *nameServer) serve(conn net.Conn) {
	defer conn.Close()
	length := make([]byte, 2)
	if _, err := io.ReadFull(conn, length); err != nil {
		return
	}
	message := make([]byte, binary.BigEndian.Uint16(length))
	_, _ = io.ReadFull(conn, message)
	end := 12 + bytes.IndexByte(message[12:], 0) + 5
	isA := message[end-3] == 1
	message = append([]byte{message[0], message[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, message[12:end]...)
	if isA {
		message[7] = 1
		message = append(append(message, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4), s.ip.To4()...)
	}
	_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...))
}

// An outage of the name service is no refusal: what was refused before it does not count.
func TestLookUp(t *testing.T) {
	names := &nameServer{net.IPv4(10, 0, 0, 1)}
	usual := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: names.dial}
	defer func() { net.DefaultResolver = usual }()
	a := addresses{lines: "host=primary.test.", refusals: map[string]refusal{}}
	try := func(where string, err error) {
		t.Helper()
		at, _ := a.next(context.Background())
		if a.heard(at, err); at.where != where {
			t.Error(at.where)
		}
	}
	refused := &pq.Error{Code: "28000"}
	try("10.0.0.1:5432", refused)
	first := a.refusals["10.0.0.1:5432"]
	if first.since = first.since.Add(-time.Hour); a.verdict(0) != refused {
		t.Error("is not refused")
	}
	a.refusals["10.0.0.1:5432"] = first
	try("10.0.0.1:5432", refused)
	if a.verdict(time.Minute) != refused {
		t.Error("is not refused for an hour")
	}
	names.ip = nil
	try("primary.test.:5432", errors.New("no such host"))
	names.ip = net.IPv4(10, 0, 0, 1)
	try("10.0.0.1:5432", refused)
	if a.verdict(0) != refused || a.verdict(time.Minute) != nil {
		t.Error("a refusal of before the outage counts:", a.verdict(time.Minute))
	}
}

func TestSlice(t *testing.T) {
	for _, c := range [][4]int{ // given, logged from, limit; and what comes of it, in ms
		{0, -1, 0, 5000}, {0, 0, 0, 5000}, {0, 1000, 0, 800}, {0, 10000, 0, 5000}, {0, 100, 0, 5000},
		{0, -1, 1000, 800}, {0, 1000, 100, 80}, {3000, 1000, 1000, 3000},
	} {
		ms := func(i int) time.Duration { return time.Duration(c[i]) * time.Millisecond }
		s := session{l: New(Options{Slice: ms(0)})}
		if s.chooseSlice(ms(1), ms(2)); s.slice != ms(3) {
			t.Error(c, s.slice)
		}
	}
}

func TestName(t *testing.T) {
	host, _ := os.Hostname()
	match := func(pattern string) {
		t.Helper()
		if name := defaultName(); !regexp.MustCompile("^("+pattern+")$").MatchString(name) || len(name) > 200 {
			t.Error(name)
		}
	}
	pid := fmt.Sprintf("-%d", os.Getpid())
	match(regexp.QuoteMeta(host) + pid + "-[0-9a-f]{4}")
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
	t.Setenv("HOSTNAME", "pod")
	match("pod" + pid)
	t.Setenv("POD_NAME", strings.Repeat("\u00e4", 150))
	match(".*\u00e4" + pid)
}

// Final is what a primary refuses for RefusalTimeout, without anything else in between.
func TestJudge(t *testing.T) {
	refusal := &pq.Error{Code: "22023"}
	for _, between := range []error{nil, errors.New("no route"), errNoAnswer, &pq.Error{Code: "08006"}, &pq.Error{Code: "57P01"},
		&pq.Error{Code: "53300"}, &pq.Error{Code: "3F000"}, notByPrimary{errStandby}, notByPrimary{&pq.Error{Code: "28000"}},
		notByPrimary{ofStandby{&pq.Error{Code: "42501"}}}, notByPrimary{ofStandby{&pq.Error{Code: "25006"}}}} {
		l := New(Options{Election: "e", RefusalTimeout: time.Minute})
		if err := l.judge(refusal); err != nil {
			t.Error("final at once:", err)
		}
		l.refusedSince = l.refusedSince.Add(-time.Hour)
		if between != nil {
			l.judge(between)
		}
		standby := errors.Is(between, errStandby) || errors.As(between, new(ofStandby)) // no other word of a primary
		if err := l.judge(refusal); (err != nil) != (between == nil || standby) {
			t.Errorf("%v in between: %v", between, err)
		}
	}
}

// One line for a trouble, and one for its end; then it is quiet for a while.
func TestLog(t *testing.T) {
	var lines bytes.Buffer
	log.SetOutput(&lines)
	defer log.SetOutput(os.Stderr)
	l := New(Options{Election: "e"})
	for i := 0; i < 100; i++ {
		l.report(&pq.Error{Code: "28000", Message: "no"})
		if l.report(errors.New("no route")); l.State() != "unreachable: no route" {
			t.Error(l.State())
		}
		l.report(notByPrimary{errStandby})
		l.answered()
	}
	if n := strings.Count(lines.String(), "\n"); n != 3 || l.State() != "standing" {
		t.Errorf("%d lines, %s:\n%s", n, l.State(), lines.String())
	}
	l.wellSince = time.Now().Add(-time.Minute)
	l.report(errors.New("no route"))
	if n := strings.Count(lines.String(), "\n"); n != 4 {
		t.Errorf("%d lines:\n%s", n, lines.String())
	}
}

func TestHint(t *testing.T) {
	for _, state := range []string{"3F000", "42883", "42501"} {
		l := New(Options{})
		l.report(&pq.Error{Code: pq.ErrorCode(state), Message: "no"})
		want := "refused: " + state + " no"
		if state != "42501" {
			want += " (CREATE EXTENSION leader_election, or portable.sql?)"
		}
		if l.State() != want {
			t.Errorf("%q, not %q", l.State(), want)
		}
	}
}

// What is logged, line by line
type linesTo chan string

func (l linesTo) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// When a leadership begins and ends, the program's own log says so. Where it has none, only
// trouble is logged.
func TestLogOfLeaderships(t *testing.T) {
	for _, own := range []bool{true, false} {
		var standard bytes.Buffer
		log.SetOutput(&standard)
		opts := Options{Election: "e"}
		lines, got := make(linesTo, 10), ""
		if own {
			opts.Log = log.New(lines, "", 0)
		}
		var r record
		f := NewFake(opts)
		ctx, cancel := context.WithCancel(context.Background())
		r.run(ctx, f.Leadership)
		for term := int64(1); term <= 2; term++ {
			f.Elect(term, 0)
			<-r.begin
		}
		for i := 0; own && i < 3; i++ {
			got += <-lines
		}
		f.report(errors.New("no route"))
		cancel()
		<-r.ended
		log.SetOutput(os.Stderr)
		for close(lines); len(lines) > 0; {
			got += <-lines
		}
		trouble := "leaderelection: e: unreachable: no route\n"
		want := "elected leader of \"e\", term 1\n" +
			"lost leadership of \"e\", term 1: failover\n" +
			"elected leader of \"e\", term 2\n" + trouble +
			"lost leadership of \"e\", term 2: closed\n"
		if own && (got != want || standard.Len() > 0) {
			t.Errorf("%s%s", got, standard.String())
		} else if !own && (strings.Count(standard.String(), "\n") != 1 || !strings.HasSuffix(standard.String(), trouble)) {
			t.Error(standard.String())
		}
	}
}

// A leadership without a term has none in the log.
func TestLogOfSole(t *testing.T) {
	lines := make(linesTo, 10)
	err := NewSole(Options{Election: "e", Log: log.New(lines, "", 0)}, false).Run(context.Background(),
		func(context.Context, int64) error { return nil })
	if got := <-lines + <-lines; err != nil || got != "elected leader of \"e\"\nlost leadership of \"e\": closed\n" {
		t.Error(got, err)
	}
}

// A log that blocks holds up neither the function of Run nor, for long, the end of its term. It
// gets its lines later, with the reasons of then.
func TestLogBlocks(t *testing.T) {
	lines := make(linesTo)
	f := NewFake(Options{Election: "e", CallTimeout: 20 * time.Millisecond, Log: log.New(lines, "", 0)})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	begun, ended := make(chan int64, 2), make(chan error, 1)
	go func() {
		ended <- f.Run(ctx, func(work context.Context, term int64) error {
			begun <- term
			<-work.Done()
			return ctx.Err()
		})
	}()
	for term := int64(1); term <= 2; term++ {
		f.Elect(0, 0)
		select {
		case <-begun:
		case <-ctx.Done():
			t.Error("the log holds the function up in term", term)
		}
		f.Resign()
	}
	cancel()
	<-ended
	if got := <-lines + <-lines + <-lines + <-lines; got != "elected leader of \"e\", term 1\n"+
		"lost leadership of \"e\", term 1: resigned\nelected leader of \"e\", term 2\n"+
		"lost leadership of \"e\", term 2: resigned\n" {
		t.Error(got)
	}
}

type asking func()

func (a asking) Write(line []byte) (int, error) {
	a()
	return len(line), nil
}

// What the log is written to may ask for the state, for whatever line.
func TestLogAsks(t *testing.T) {
	f := NewFake(Options{})
	log.SetOutput(asking(func() { f.State() }))
	ended := make(chan error, 1)
	go func() {
		ended <- f.Run(context.Background(), func(context.Context, int64) error { return errors.New("mine") })
	}()
	go f.Elect(0, 0)
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		panic("Run has not ended")
	}
	log.SetOutput(os.Stderr)
}

// What the log is written to may even resign.
func TestLogResigns(t *testing.T) {
	var f *Fake
	f = NewFake(Options{Election: "e", Log: log.New(asking(func() { f.Resign() }), "", 0)})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- f.Run(ctx, func(ctx context.Context, _ int64) error {
			<-ctx.Done()
			return errors.New(f.Reason())
		})
	}()
	f.Elect(0, 0)
	if err := <-ended; err.Error() != "resigned" {
		t.Error(err)
	}
}

// A candidate to which a server has granted terms, and what it gave back
type granting struct {
	l      *Leadership
	grants []grant
	asked  func() // while a renewal is under way
	left   []int64
	stop   context.CancelFunc
}

func (s *granting) stand(context.Context) (grant, error) { return s.next() }
func (s *granting) renew(int64) (grant, error) {
	s.asked()
	return s.next()
}
func (s *granting) leave(term int64)                    { s.left = append(s.left, term) }
func (s *granting) idle(context.Context, time.Duration) {}
func (s *granting) wake()                               {}
func (s *granting) next() (g grant, err error) {
	g, s.grants = s.grants[0], s.grants[1:]
	if len(s.grants) == 0 {
		s.stop()
	}
	return g, nil
}

// A term whose grant came too late, or after its loss, or after the end of Run, is
// told to nobody, and given back.
func TestGivenBack(t *testing.T) {
	good, past := time.Now().Add(time.Hour), time.Now().Add(-time.Second)
	ctx, stop := context.WithCancel(context.Background())
	l := newLeadership(Options{Election: "e"})
	l.rest = 0
	s := &granting{l: l, stop: stop, asked: l.Resign, grants: []grant{{term: 1, deadline: past},
		{term: 2, deadline: good}, {term: 3, deadline: good}, {term: 4, deadline: good}}}
	l.link = s
	var told []int64
	_ = l.Run(ctx, func(ctx context.Context, term int64) error {
		told = append(told, term)
		<-ctx.Done()
		return nil
	})
	if !reflect.DeepEqual(told, []int64{2}) || l.Changes() != 1 || l.Reason() != "resigned" {
		t.Error(told, l.Changes(), l.Reason())
	}
	if len(s.left) < 3 || !reflect.DeepEqual(s.left[:3], []int64{1, 3, 4}) {
		t.Error(s.left)
	}
}

// A program that resigns when a failover's new term has come, but has not begun yet, does
// not lead in it: it is given back. (A line of log is written in between.)
func TestResignAtFailover(t *testing.T) {
	good := time.Now().Add(time.Hour)
	ctx, stop := context.WithCancel(context.Background())
	l := newLeadership(Options{Election: "e"})
	l.rest = 0
	s := &granting{l: l, stop: stop, grants: []grant{{term: 1, deadline: good}, {term: 2, deadline: good}, {term: 3}}}
	s.asked = func() { l.complained = true }
	l.link = s
	log.SetOutput(asking(l.Resign))
	defer log.SetOutput(os.Stderr)
	var told []string
	_ = l.Run(ctx, func(ctx context.Context, term int64) error {
		<-ctx.Done()
		told = append(told, fmt.Sprint(term, " ", l.Reason()))
		return nil
	})
	if !reflect.DeepEqual(told, []string{"1 resigned"}) || len(s.left) == 0 || s.left[0] != 2 {
		t.Errorf("told %q, left %d", told, s.left)
	}
}

// Where nobody answers, Run ends at once all the same; a wrong DSN ends it.
func TestEnd(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
	defer cancel()
	begun := time.Now()
	err := New(Options{DSN: "host=127.0.0.1 port=1\nhost=127.0.0.1 port=2", Election: "e"}).Run(ctx, nil)
	if err != context.DeadlineExceeded || time.Since(begun) > 5*time.Second {
		t.Error(err, time.Since(begun))
	}
	if err := New(Options{DSN: "nonsense"}).Run(context.Background(), nil); err == nil || sqlState(err) != "22023" {
		t.Error(err)
	}
}

// A session keeps its lease after errors of a server that did nothing.
func TestDidNothing(t *testing.T) {
	for state, keeps := range map[string]bool{"55P03": true, "57014": true, "40001": true, "XX000": false} {
		f := NewFake(Options{})
		f.link = &session{l: f.Leadership}
		f.work, f.end = context.WithCancel(context.Background())
		f.grant.deadline = f.now().Add(time.Hour)
		f.timer = time.NewTimer(time.Hour)
		f.attemptFailed(&pq.Error{Code: pq.ErrorCode(state)})
		if (f.work.Err() == nil) != keeps {
			t.Error(state)
		}
		f.end()
	}
}
