package leaderelection

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"
)

// A socket is a session's connection as lib/pq sees it. It leads to one address,
// whatever lib/pq asks for, can be destroyed at any time, and can be waited on while
// lib/pq does not read.
type socket struct {
	net.Conn
	in      *bufio.Reader
	at      address
	ctx     context.Context
	destroy context.CancelFunc
	mu      sync.Mutex // of the deadline for reading
	idling  bool
}

func newSocket(at address) *socket {
	s := &socket{at: at}
	s.ctx, s.destroy = context.WithCancel(context.Background())
	return s
}

// DialContext is what lib/pq calls to connect. It calls it once more to cancel a campaign:
// that connection is a plain one, but is destroyed with the first. The kernel sends
// keepalives, 5 s apart, and gives up a peer that went silent; how many it sends is left
// to the system.
func (s *socket) DialContext(context.Context, string, string) (net.Conn, error) {
	conn, err := (&net.Dialer{KeepAlive: 5 * time.Second}).DialContext(s.ctx, s.at.network, s.at.where)
	if err != nil {
		return nil, err
	}
	go func() {
		<-s.ctx.Done()
		conn.Close()
	}()
	if s.Conn != nil {
		return conn, nil
	}
	s.Conn, s.in = conn, bufio.NewReader(conn)
	return s, nil
}

// Dial and DialTimeout are for pq.Dialer only: lib/pq calls DialContext.
func (s *socket) Dial(network, address string) (net.Conn, error) {
	return s.DialContext(s.ctx, network, address)
}

func (s *socket) DialTimeout(network, address string, _ time.Duration) (net.Conn, error) {
	return s.DialContext(s.ctx, network, address)
}

func (s *socket) Read(b []byte) (int, error) { return s.in.Read(b) }

// idle waits until something comes in, which the next Read reads, or d is over, or wake
// is called. The end of ctx alone does not end it.
func (s *socket) idle(ctx context.Context, d time.Duration) {
	if s.beginIdle(ctx, d) {
		_, _ = s.in.Peek(1)
		s.mu.Lock()
		s.idling = false
		_ = s.SetReadDeadline(time.Time{})
		s.mu.Unlock()
	}
}

// beginIdle says whether to wait: not if ctx has ended, as wake may have been called.
func (s *socket) beginIdle(ctx context.Context, d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idling = ctx.Err() == nil
	if s.idling {
		_ = s.SetReadDeadline(time.Now().Add(d))
	}
	return s.idling
}

// wake ends idle. It comes after the end of ctx, so no idle begins after it.
func (s *socket) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idling {
		_ = s.SetReadDeadline(time.Unix(1, 0))
	}
}
