package leaderelection

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"time"
)

// New makes a session candidate, with a connection of its own.
func New(opts Options) *Leadership {
	l := newLeadership(opts)
	l.opts.Interval = 0 // no pause between two slices: it waits in campaign
	l.link = &session{l: l}
	return l
}

// A session is the link of a session candidate. We believe in half of a lease only
// (renew): the server may end the session of a peer that went silent sooner than its
// lease ends, and then another leads at once. [leader's network cut]
type session struct {
	l      *Leadership
	socket *socket
	db     *sql.DB       // of this one connection
	conn   *sql.Conn     // nil: there is none
	slice  time.Duration // how long a campaign waits
	warned bool          // it was logged that the server's log will have each campaign
}

const (
	// What examine asks the server, before it sets or calls anything there
	examineSQL = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery(), " +
		"(SELECT setting FROM pg_catalog.pg_settings " +
		"WHERE name OPERATOR(pg_catalog.=) 'log_min_duration_statement'), " +
		"(SELECT setting FROM pg_catalog.pg_settings " +
		"WHERE name OPERATOR(pg_catalog.=) 'statement_timeout')"
	// Time limits of a role, or of the server, would end a campaign that waits.
	noTimeoutsSQL = "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings " +
		"WHERE name OPERATOR(pg_catalog.~) '^(statement|transaction|idle_session)_timeout$'"
)

// stand connects, if need be, and joins. It waits in campaign() for a slice and no
// longer, as the network of a follower may have been cut without a word. Its last call,
// renew, tells whether we are elected. After any error it leaves. [follower's network cut]
func (s *session) stand(ctx context.Context) (grant, error) {
	if s.conn == nil {
		if err := s.connect(ctx); err != nil {
			return grant{}, err
		}
	}
	// Always without auto_renew: if a follower is elected whose network was cut, and
	// whose session the server takes for alive, nobody renews its lease, and another
	// leads after that. join keeps its place in line between the slices.
	err := s.call(func() error {
		return s.exec("SELECT leader_election.join(%s, %s%s, auto_renew => false)",
			s.l.election(), s.l.candidate(), s.l.rank()+s.l.shown())
	})
	if err == nil {
		s.l.calm() // it stands: campaign may wait for long
		err = s.within(ctx, s.slice+s.l.opts.CallTimeout, s.l.opts.CallTimeout, func() error {
			return s.campaign(ctx)
		})
	}
	var g grant
	if err == nil {
		g, err = s.renew(0)
	}
	if err != nil && err != errNotGranted {
		s.leave(0)
	}
	return g, err
}

// campaign waits for a slice. When ctx ends, lib/pq has the server cancel the call, and
// reads the answer: no call goes on at the server, and the connection is in order for
// leave. (If the statement were not prepared, lib/pq would end the connection.)
func (s *session) campaign(ctx context.Context) error {
	campaign, err := s.conn.PrepareContext(context.Background(), fmt.Sprintf(
		"CALL leader_election.campaign(%s, %s, timeout => '%d ms'::pg_catalog.interval)",
		s.l.election(), s.l.candidate(), s.slice.Milliseconds()))
	if err != nil {
		return err
	}
	defer campaign.Close() // a pooler's next client may prepare one of the same name
	_, err = campaign.ExecContext(ctx)
	return err
}

// renew takes no term: the server knows the session, and tells in which term it leads.
func (s *session) renew(int64) (g grant, err error) {
	err = s.call(func() error {
		g, err = query(context.Background(), s.conn, 2, "leader_election.renew(%s%s)",
			s.l.election(), s.l.shown())
		return err
	})
	return g, err
}

// leave gives the lease back, withdraws, and ends the connection as a client should:
// nothing is left in a session that a pooler gives to others. A late cancel of campaign
// may hit the call (57014): then it is made once more.
func (s *session) leave(int64) {
	if s.conn == nil {
		return
	}
	_ = s.call(func() error {
		err := s.exec("SELECT leader_election.leave(%s)", s.l.election())
		if sqlState(err) == "57014" {
			err = s.exec("SELECT leader_election.leave(%s)", s.l.election())
		}
		s.conn.Close()
		s.db.Close()
		return err
	})
	s.drop()
}

// idle ends when the server says something unasked, the end of the connection above all.
// The next call reads what it was. [backend terminated]
func (s *session) idle(ctx context.Context, d time.Duration) { s.socket.idle(ctx, d) }
func (s *session) wake()                                     { s.socket.wake() }

// connect tries one address, the next one. If it fails, there is no connection.
func (s *session) connect(ctx context.Context) error {
	if pooler := s.l.opts.Pooler; pooler != "" && pooler != "session" {
		return finalError("22023", "Pooler is \"session\" or nothing")
	}
	limit, end := context.WithTimeout(ctx, s.l.opts.CallTimeout)
	at, err := s.l.addresses.next(limit)
	end()
	if err != nil {
		return err
	}
	s.socket = newSocket(at)
	at.connector.Dialer(s.socket)
	s.db = sql.OpenDB(at.connector)
	err = s.within(ctx, s.l.opts.CallTimeout, 0, func() (err error) {
		s.conn, err = s.db.Conn(context.Background())
		return err
	})
	if s.l.addresses.heard(at, err); err != nil {
		err = notByPrimary{err}
	} else {
		err = s.call(s.examine)
	}
	if err == nil {
		s.l.addresses.prefer(at)
	} else {
		s.drop()
	}
	return err
}

// examine refuses a standby and a pooler, turns off the session's time limits, and
// chooses the slice.
func (s *session) examine() error {
	var pid int64
	var standby bool
	var logged, limit time.Duration
	err := s.conn.QueryRowContext(context.Background(), examineSQL).Scan(&pid, &standby, &logged, &limit)
	if err != nil {
		return notByPrimary{err}
	} else if standby {
		return notByPrimary{fmt.Errorf("%s: %w", s.socket.at.where, errStandby)}
	}
	if s.l.opts.Pooler == "" { // else others would have after us what we set
		if known, err := backendPid(s.conn); err != nil {
			return err
		} else if known != pid {
			return finalError("0A000", "this is a pooler: use NewDetached, "+
				"or say Pooler: \"session\" if it is in session mode")
		}
		err, limit = s.exec(noTimeoutsSQL), 0
	}
	s.chooseSlice(logged*time.Millisecond, limit*time.Millisecond)
	return err
}

// chooseSlice has a campaign end before the server logs it as slow (logged), or cancels
// it (limit), unless the program has given the slice.
func (s *session) chooseSlice(logged, limit time.Duration) {
	s.slice = or(s.l.opts.Slice, 5*time.Second)
	if s.l.opts.Slice != 0 {
		return
	}
	if below := logged * 4 / 5; logged > 0 && below < s.slice {
		if below >= 200*time.Millisecond {
			s.slice = below
		} else if !s.warned {
			s.warned = true
			s.l.warn("log_min_duration_statement is %v: the server logs each campaign", logged)
		}
	}
	if below := limit * 4 / 5; limit > 0 && below < s.slice {
		s.slice = below
	}
}

// backendPid is the process ID that the server has told the driver at login. A
// pooler has told one of its own, and another process answers.
func backendPid(conn *sql.Conn) (pid int64, err error) {
	err = conn.Raw(func(driverConn any) (err error) {
		var ok bool
		if pid, ok = processID(driverConn); !ok {
			err = finalError("0A000", "this version of lib/pq does not tell the process ID of its backend, "+
				"so that a pooler cannot be noticed: use NewDetached, or say Pooler: \"session\"")
		}
		return err
	})
	return pid, err
}

// processID reads a field that lib/pq does not export. There is no other place: our
// socket sees only what TLS has encrypted, and lib/pq offers nothing that tells it.
func processID(driverConn any) (int64, bool) {
	conn := reflect.Indirect(reflect.ValueOf(driverConn))
	if conn.Kind() != reflect.Struct {
		return 0, false
	}
	field := conn.FieldByName("processID")
	if !field.IsValid() || !field.CanInt() {
		return 0, false
	}
	return field.Int(), true
}

// exec makes a call without a limit of its own: within call, always.
func (s *session) exec(format string, args ...any) error {
	_, err := s.conn.ExecContext(context.Background(), fmt.Sprintf(format, args...))
	return err
}

// call makes a call that may take CallTimeout, whatever has ended.
func (s *session) call(call func() error) error {
	return s.within(context.Background(), s.l.opts.CallTimeout, 0, call)
}

// within makes a call that may take d, and no longer than after once ctx has ended. If it
// takes longer, the socket is destroyed, and the call returns: errNoAnswer.
// [connections forgotten]
func (s *session) within(ctx context.Context, d, after time.Duration, call func() error) error {
	over := make(chan struct{})
	go func() {
		select {
		case <-over:
			return
		case <-time.After(d):
		case <-ctx.Done():
			select {
			case <-over:
				return
			case <-time.After(after):
			}
		}
		s.socket.destroy()
	}()
	err := call()
	close(over)
	if s.socket.ctx.Err() != nil {
		return errNoAnswer
	}
	return err
}

// drop forgets the connection without a word to the server. leave says its word first.
func (s *session) drop() {
	if s.conn != nil {
		s.conn.Close()
	}
	s.db.Close()
	s.socket.destroy()
	s.conn = nil
}
