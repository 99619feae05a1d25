package leaderelection

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lib/pq"
)

// A server speaks as much of PostgreSQL's protocol as these tests need. It refuses
// logins with a SQLSTATE, or tells a process ID at login, and, by the client's first
// statement, another one, and whether it is a standby.
type server struct {
	net.Listener
	refuses  string
	pid      uint32
	standby  string
	mu       sync.Mutex
	logins   []time.Time
	said     []string // statements
	terminal int      // connections that were ended as they should be
}

func startServer(t *testing.T, s *server) *server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Listener = listener
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	return s
}

func (s *server) dsn() string {
	host, port, _ := net.SplitHostPort(s.Addr().String())
	return "sslmode=disable user=u dbname=d host=" + host + " port=" + port
}

func message(kind byte, parts ...any) []byte {
	var body bytes.Buffer
	for _, part := range parts {
		if text, ok := part.(string); ok {
			body.WriteString(text + "\000")
		} else {
			_ = binary.Write(&body, binary.BigEndian, part)
		}
	}
	head := append([]byte{kind}, binary.BigEndian.AppendUint32(nil, uint32(body.Len()+4))...)
	return append(head, body.Bytes()...)
}

func (s *server) serve(conn net.Conn) {
	defer conn.Close()
	head := make([]byte, 4)
	if _, err := io.ReadFull(conn, head); err != nil {
		return
	}
	_, _ = io.ReadFull(conn, make([]byte, binary.BigEndian.Uint32(head)-4))
	s.mu.Lock()
	s.logins = append(s.logins, time.Now())
	s.mu.Unlock()
	if s.refuses != "" {
		_, _ = conn.Write(message('E', "SFATAL", "C"+s.refuses, "Mrefused", byte(0)))
		return
	}
	_, _ = conn.Write(bytes.Join([][]byte{message('R', uint32(0)), message('K', s.pid, uint32(2)),
		message('Z', byte('I'))}, nil))
	for {
		head := make([]byte, 5)
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		_, _ = io.ReadFull(conn, body)
		s.mu.Lock()
		if head[0] == 'X' {
			s.terminal++
		}
		s.said = append(s.said, string(bytes.TrimRight(body, "\000")))
		s.mu.Unlock()
		_, _ = conn.Write(s.examined())
	}
}

// examined is the answer to what a session asks first.
func (s *server) examined() []byte {
	values := []string{"7", s.standby, "-1", "0"}
	columns, row := []any{uint16(len(values))}, []any{uint16(len(values))}
	for _, value := range values {
		columns = append(columns, "c", uint32(0), uint16(0), uint32(25), uint16(1), uint32(1), uint16(0))
		row = append(row, uint32(len(value)), []byte(value))
	}
	return bytes.Join([][]byte{message('T', columns...), message('D', row...), message('C', "SELECT 1"),
		message('Z', byte('I'))}, nil)
}

func (s *server) seen() (logins int, said []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.logins), s.said
}

func run(opts Options, limit time.Duration) (*Leadership, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	opts.Election = "e"
	l := New(opts)
	return l, l.Run(ctx, nil)
}

// runUntil runs a candidate until that is true of what the server has seen; a minute at most.
func (s *server) runUntil(opts Options, enough func(logins int, said []string) bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if enough(s.seen()) {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	opts.Election = "e"
	return New(opts).Run(ctx, nil)
}

// hears says what this server hears of a candidate, until that has said three things.
func (s *server) hears(opts Options) []string {
	_ = s.runUntil(opts, func(_ int, said []string) bool { return len(said) >= 3 })
	_, said := s.seen()
	return said
}

// What the server has told lib/pq at login, and what it says now: a pooler has told
// something of its own. Nothing is set there.
func TestPooler(t *testing.T) {
	s := startServer(t, &server{pid: 6, standby: "f"})
	l, err := run(Options{DSN: s.dsn()}, time.Minute)
	if sqlState(err) != "0A000" || !strings.Contains(l.State(), "failed: 0A000 this is a pooler") {
		t.Error(err, l.State())
	}
	if _, said := s.seen(); len(said) == 0 || strings.Contains(said[0], "set_config") {
		t.Errorf("%q", said)
	}
	// The same process: then it sets its time limits, and goes on to stand.
	s = startServer(t, &server{pid: 7, standby: "f"})
	if said := s.hears(Options{DSN: s.dsn()}); len(said) < 3 || !strings.Contains(said[1], "set_config") {
		t.Errorf("%q", said)
	}
	// The program knows: nothing is set.
	s = startServer(t, &server{pid: 6, standby: "f"})
	if said := s.hears(Options{DSN: s.dsn(), Pooler: "session"}); len(said) < 3 || strings.Contains(strings.Join(said, " "), "set_config") {
		t.Errorf("%q", said)
	}
	if _, err = run(Options{DSN: s.dsn(), Pooler: "transaction"}, time.Minute); sqlState(err) != "22023" {
		t.Error(err)
	}
}

// Only when every address refuses, and has done so for a while, Run ends.
func TestRefused(t *testing.T) {
	refuses := startServer(t, &server{refuses: "28000"})
	begun := time.Now()
	l, err := run(Options{DSN: refuses.dsn() + "\n" + refuses.dsn(), RefusalTimeout: time.Second}, time.Minute)
	if took := time.Since(begun); sqlState(err) != "28000" || took < time.Second || took > 10*time.Second {
		t.Error(err, took)
	}
	if l.State() != "failed: 28000 refused" {
		t.Error(l.State())
	}
	if logins, _ := refuses.seen(); logins > 20 {
		t.Errorf("%d attempts", logins)
	}
	standby := startServer(t, &server{pid: 7, standby: "t"})
	for _, other := range []string{standby.dsn(), "sslmode=disable user=u host=127.0.0.1 port=1"} {
		l, err = run(Options{DSN: refuses.dsn() + "\n" + other, RefusalTimeout: time.Second}, 2*time.Second)
		if err != context.DeadlineExceeded || l.State() != "closed" {
			t.Error(other, err)
		}
	}
	if logins, said := standby.seen(); logins == 0 || strings.Contains(strings.Join(said, " "), "leader_election") {
		t.Errorf("%q", said)
	}
}

// Ten attempts a second at most, whatever is refused.
func TestThrottle(t *testing.T) {
	s := startServer(t, &server{refuses: "53300"})
	dsn := strings.TrimSuffix(strings.Repeat(s.dsn()+"\n", 40), "\n")
	begun := time.Now()
	err := s.runUntil(Options{DSN: dsn}, func(logins int, _ []string) bool { return logins >= 15 })
	most := 10 * (1 + int(time.Since(begun).Seconds())) // ten in any second
	if logins, _ := s.seen(); err != context.Canceled || logins > most {
		t.Error(err, logins)
	}
}

// lib/pq does not export what TestPooler needs: say so where it has been renamed.
func TestBackendPid(t *testing.T) {
	s := startServer(t, &server{pid: 7, standby: "f"})
	connector, _ := pq.NewConnector(s.dsn())
	conn, err := connector.Connect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if pid, ok := processID(conn); !ok || pid != 7 {
		t.Error(pid, ok)
	}
}

// A driver hands each call to a function, which may ignore the call's context. It answers with
// no row.
type driverFunc func(ctx context.Context, call string)

func (f driverFunc) Connect(context.Context) (driver.Conn, error) { return f, nil }
func (f driverFunc) Driver() driver.Driver                        { return nil }
func (f driverFunc) Prepare(string) (driver.Stmt, error)          { panic("not called") }
func (f driverFunc) Begin() (driver.Tx, error)                    { panic("not called") }
func (f driverFunc) Close() error                                 { return nil }
func (f driverFunc) QueryContext(ctx context.Context, call string, _ []driver.NamedValue) (driver.Rows, error) {
	f(ctx, call)
	return noRows{}, nil
}

type noRows struct{}

func (noRows) Columns() []string         { return []string{"term", "remaining_ms", "yielding"} }
func (noRows) Close() error              { return nil }
func (noRows) Next([]driver.Value) error { return io.EOF }

// When Run is to end, a call that hangs leaves time for the one that withdraws: both together
// have CallTimeout.
func TestEndOfDetached(t *testing.T) {
	const limit = 6 * time.Second
	asked, hang, left := make(chan bool), make(chan bool), make(chan time.Time, 1)
	defer close(hang)
	db := sql.OpenDB(driverFunc(func(ctx context.Context, call string) {
		if strings.Contains(call, "leader_election.leave(") {
			deadline, _ := ctx.Deadline()
			left <- deadline
			return
		}
		asked <- true
		<-hang
	}))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- NewDetached(db, Options{Election: "e", CallTimeout: limit}).Run(ctx, nil) }()
	<-asked
	end := time.Now()
	cancel()
	if err := <-ended; err != context.Canceled || len(left) == 0 {
		t.Fatal("does not withdraw:", err)
	}
	if after := (<-left).Sub(end); after < limit*2/3 || after > limit*4/3 {
		t.Errorf("withdraws until %v after the end, not %v", after, limit)
	}
}
