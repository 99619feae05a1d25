"""
Stand for election in PostgreSQL, with the extension leader_election and psycopg 3.

    with Leadership("dbname=app", "scheduler") as leadership:
        while True:
            term = leadership.wait()                 # until this instance leads
            while leadership.term == term:
                with pool.connection() as conn:      # one transaction
                    leadership.fenced(conn)          # its COMMIT fails unless we still lead
                    do_one_piece_of_work(conn)

Leadership          a session of its own; takeover in milliseconds when its process dies
DetachedLeadership  calls over the application's pool, also through PgBouncer
SoleLeadership      for a laptop: always leads, asks nobody
FakeLeadership      for tests: the test elects, and moves the clock

Invariant: a term is never given out after the deadline, which is counted from the *sending* of
the last answered renewal; every "elected" has exactly one "lost"; "lost" is reported, and its
handlers have returned, before the lease is given back.

Two threads. The *engine* makes all calls, one after the other, and waits for their answers itself,
with a time limit of its own: then it closes the socket. (A limit that leaves the socket open
leaves a campaign running at the server, whose connection is elected later with nobody knowing.)
The *teller* calls the handlers, one after the other, and ends the leadership at the deadline: a
slow handler holds up no renewal, and a health check that hangs does not hold up "lost".

The clock goes on while the machine sleeps where the system has such a clock (Linux). Even so a
process can be paused between the look at `term` and its next write: fence what must not be late.
"""

import collections
import contextlib
import itertools
import json
import logging
import os
import random
import re
import secrets
import selectors
import socket
import threading
import time

import psycopg

log = logging.getLogger("leader_election")

# A class of SQLSTATEs, or one: the same call would be answered the same for ever.
_FATAL = ("28", "3D000", "3F000", "42883", "42P01", "42501", "22023", "0A000", "25001", "LE003")
_BUSY = ("55P03", "57014")      # the call did nothing, and its connection is good
# libpq tells no SQLSTATE of a refused connection, only the server's text.
_REFUSED = {"28P01": "password authentication failed|no password supplied|SASL authentication",
            "28000": r'pg_hba\.conf|role ".*" does not exist|not permitted to log in|no such user',
            "3D000": r'database ".*" does not exist|no such database',
            "42501": "permission denied for database"}
# By these a connection notices that its path is cut.
_NETWORK = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3,
            "tcp_user_timeout": 10000}

_Grant = collections.namedtuple("_Grant", "term deadline third yielding")


class NotLeader(Exception):
    """fenced() was called, and this instance does not lead."""


class LeadershipError(Exception):
    """The engine has ended: the server would answer the same for ever. See sqlstate."""

    def __init__(self, message, sqlstate):
        super().__init__(message)
        self.sqlstate = sqlstate


def _sqlstate(error):
    refusals = (state for state, text in _REFUSED.items() if re.search(text, str(error)))
    return getattr(error, "sqlstate", None) or next(refusals, "")


class _Candidate:
    """What all four have in common: who leads, until when, and who is told."""

    def __init__(self, election="election", candidate=None, *, on_elected=None, on_lost=None,
                 on_yield=None, on_error=None):
        self.election = election
        self.candidate = candidate or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.changes = 0                        # elections of this client
        self._handlers = {"elected": on_elected, "lost": on_lost, "yield": on_yield,
                          "error": on_error}
        self._events = collections.deque()      # until their handlers have returned
        self._lock = threading.Condition()      # an RLock: a signal handler may interrupt us
        self._lead = self._error = None         # a grant, until the leadership has ended
        self._yielding = self._closing = False

    @staticmethod
    def _now():
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if boottime is None else time.clock_gettime(boottime)

    def _current(self):
        lead = self._lead
        return lead if lead and self._now() < lead.deadline else None

    @property
    def leads(self):
        return self._current() is not None

    @property
    def term(self):
        """The term in which this instance leads now, else None. Does not block."""
        lead = self._current()
        return lead.term if lead else None

    def start(self):
        return self

    def wait(self, timeout=None):
        """Until this instance leads: the term, or None after timeout seconds or close()."""
        with self._lock:
            self._lock.wait_for(lambda: self.leads or self._closing, timeout)
            if self._error:
                raise self._error
            return self.term

    def fenced(self, connection):
        """Fence the transaction that is open on this DB-API connection (or Django's): from here
        on its COMMIT fails with SQLSTATE LE002 unless this very term still leads then. Raises
        NotLeader, without asking the server, if this instance does not lead; the driver's error,
        LE001, if the server says so."""
        lead = self._current()
        if lead is None:
            raise NotLeader(f"{self.candidate!r} does not lead election {self.election!r}")
        self._fence(connection, lead.term)

    def _fence(self, connection, term):
        with contextlib.closing(connection.cursor()) as cursor:         # Django connects here
            status = getattr(getattr(connection, "info", None), "transaction_status", 0)
            if getattr(connection, "autocommit", False) and status == 0:
                raise RuntimeError("fenced() outside of a transaction would fence nothing")
            cursor.execute("SELECT leader_election.assert_leader(%s, %s)", (self.election, term))

    def resign(self):
        """Give up now, and go on standing. Does nothing if this instance does not lead."""
        self._end("resigned")

    def close(self):
        """Give up, withdraw, end. Others are elected at once."""
        self._shut("closed")

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    def _extend(self, lead, grant):
        """Go on leading, or begin to (lead is None). Not if that has ended meanwhile: an answer
        that comes too late revives nothing."""
        with self._lock:
            self._expire()
            if self._lead is not lead or self._closing or self._now() >= grant.deadline:
                return
            self._lead = grant
            if lead is None:
                self.changes += 1
                self._yielding = False
                self._emit("elected", grant.term)
            if grant.yielding:
                self._ask_to_go()

    def _ask_to_go(self):
        """The server wants us to yield: tell the application, once per term, or go at once."""
        if self._lead and not self._yielding:
            self._yielding = True
            if self._handlers["yield"]:
                self._emit("yield", self._lead.term)
            else:
                self._end("yielded")

    def _expire(self):
        if self._lead and not self._current():
            self._end("expired")

    def _end(self, reason):
        """The one place where a leadership ends. Returns it, if there was one."""
        with self._lock:
            lead, self._lead = self._lead, None
            if lead:
                asked = self._yielding and reason == "resigned"
                self._emit("lost", "yielded" if asked else reason)
            return lead

    def _shut(self, reason, error=None):
        """End for good."""
        with self._lock:
            if not self._closing:
                self._closing, self._error = True, error
                self._end(reason)
                self._emit("error" if error else "closed", error)

    def _emit(self, event, value):
        self._events.append((event, value))
        self._lock.notify_all()

    def _tell(self):
        """Call the handlers of what has happened, one after the other."""
        while self._events:
            event, value = self._events[0]
            try:
                if self._handlers.get(event):
                    self._handlers[event](value)
            except Exception:
                log.exception("handler of %r, election %r", event, self.election)
            with self._lock:
                self._events.popleft()
                self._lock.notify_all()


class _Engine(_Candidate):
    """Both threads. _lead is what the application knows; it ends by the clock, too. _held is what
    the server may take us to have: what is held, but not led, is given back."""

    _bound = False          # a closed connection gives the lease back
    _share = 1.0            # of what remains of the lease: our deadline
    _interval = 0.0         # how long a follower rests

    def __init__(self, where, election, candidate=None, *, rank=None, metadata=None,
                 health_check=None, call_timeout=5.0, **handlers):
        super().__init__(election, candidate, **handlers)
        self._me = (election, self.candidate, rank, metadata and json.dumps(metadata))
        self._check, self._call_timeout = health_check, call_timeout
        self._close_by = float("inf")
        self._conn = self._held = None
        self._over, self._threads = False, []
        self._poked, self._poker = socket.socketpair()      # wakes the engine, whatever it waits for
        self._poker.setblocking(False)
        # psycopg 3.1.7 has one time limit for all hosts, which a dead first one uses up.
        given = {**_NETWORK, "connect_timeout": max(2, round(call_timeout)),
                 "fallback_application_name": self.candidate,
                 **psycopg.conninfo.conninfo_to_dict(where)}
        hosts, ports = (str(given.get(key) or os.environ.get(f"PG{key.upper()}", "")).split(",")
                        for key in ("host", "port"))
        self._targets = itertools.cycle([{**given, "host": host or None, "port": port or None}
                                         for host, port in zip(hosts, ports * len(hosts))])

    def start(self):
        if not self._threads and not self._closing:
            self._threads = [threading.Thread(target=target, daemon=True)
                             for target in (self._engine, self._teller)]
            for thread in self._threads:
                thread.start()
        return self

    def close(self):
        """Give up, withdraw, end; at most call_timeout seconds. Others are elected at once."""
        self._close_by = min(self._close_by, self._now() + self._call_timeout)
        super().close()
        if threading.current_thread() not in self._threads:
            for thread in self._threads:
                thread.join(max(0.0, self._close_by - self._now()))

    def _emit(self, event, value):
        super()._emit(event, value)
        with contextlib.suppress(OSError):
            self._poker.send(b"!")

    def _teller(self):
        while not self._over:
            with self._lock:
                lead = self._lead
                left = lead.deadline - self._now() if lead else 1.0
                # One second at most: a wait does not count while the machine is suspended.
                self._lock.wait_for(lambda: self._events, min(1.0, left))
                self._expire()
            self._tell()

    def _settle(self):
        """Wait until the handlers of all that has happened have returned."""
        with self._lock:
            self._lock.wait_for(lambda: not self._events)

    def _engine(self):
        rest = failures = 0
        while self._held or not self._closing:
            try:
                self._pause(rest)
                rest, failures = self._turn(), 0
            except Exception as error:
                self._recover(error)
                lead = self._lead
                rest = min(0.1 * 2 ** failures, lead.third if lead else 5.0) * random.uniform(0.5, 1)
                failures = min(failures + 1, 6)
        self._leave(None)
        self._settle()
        self._over = True
        with self._poked, self._poker:
            self._emit("over", None)

    def _recover(self, error):
        state = _sqlstate(error)
        if not self._closing:
            log.warning("election %r, candidate %r: %s", self.election, self.candidate,
                        str(error) or repr(error))
        if state.startswith(_FATAL):
            lacks = "the database lacks the extension (CREATE EXTENSION leader_election): "
            text = (lacks if state in ("3F000", "42883") else "") + str(error)
            self._shut("error", LeadershipError(text, state))
        if not (self._lead and state in _BUSY):     # else the deadline decides
            if self._bound:                         # first tell
                self._end("connection lost")
                self._settle()
            if self._bound or self._closing:
                self._held = None
            self._disconnect()

    def _turn(self):
        """Make one call, if need be. Returns for how many seconds to rest then."""
        lead = self._lead
        if self._held and not lead:
            self._settle()
            self._leave(self._held)
            self._held = None
            with self._lock:        # let others have it; a lone candidate does not spin
                self._lock.wait_for(lambda: self._closing, 1.0)
        if self._closing:
            return 0.0
        if not self._healthy():
            if not self._end("unhealthy"):
                self._leave(None)
            return 1.0
        grant = self._renew(lead) if lead else self._stand()
        self._held = grant or lead
        if lead and (not grant or grant.term != lead.term):
            if not self._end("failover" if grant else "not renewed"):
                return 0.0
            self._settle()
            lead = None
        if grant:
            self._extend(lead, grant)
        lead = self._lead
        return lead.third if lead else 0.0 if self._held else self._interval

    def _healthy(self):
        try:
            return self._check is None or bool(self._check())
        except Exception:
            log.exception("health check, election %r", self.election)
            return False

    def _ask(self, call, *values):
        """A call that answers with a grant: what remains counts from its sending."""
        sent, lead = self._now(), self._lead
        seconds = min(self._call_timeout, lead.deadline - sent if lead else self._call_timeout)
        row = self._call(f"SELECT * FROM leader_election.{call}", values, seconds)
        if row is None:
            return None
        lasts = int(row[1]) / 1000 * self._share
        return _Grant(int(row[0]), sent + lasts, lasts / 3, row[3] == b"t")

    def _fetch(self, conn, sql, values, until):
        """The first row of the answer. After an error the call may go on at the server: then the
        connection is closed, and never used again."""
        pgconn, encoding, results = conn.pgconn, conn.info.encoding, []
        pgconn.send_query_params(
            sql.encode(), [None if v is None else str(v).encode(encoding) for v in values])
        while not results or results[-1] is not None:
            while pgconn.is_busy():
                limit = min(until, self._close_by)
                if self._now() >= limit or self._closing and self._bound and not self._held:
                    raise TimeoutError("the server did not answer in time")
                self._wait(conn, limit)
                pgconn.consume_input()
            results.append(pgconn.get_result())
        first = results[0]
        if first.status == psycopg.pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(first, encoding)
        return [first.get_value(0, i) for i in range(first.nfields)] if first.ntuples else None

    def _wait(self, conn, until):
        """Until there is something to read on conn, or this thread is poked: then True."""
        with selectors.DefaultSelector() as selector:
            for source in filter(None, (self._poked, conn)):
                selector.register(source, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(max(0.0, until - self._now()))]
        return self._poked in ready and bool(self._poked.recv(4096))

    def _pause(self, seconds):
        """Rest, with an eye on the connection. A poke or a notification ends it."""
        until, woken = min(self._now() + seconds, self._close_by), False
        name = json.dumps(self.election, ensure_ascii=False).encode()
        while not woken and self._now() < until:
            woken = self._wait(self._conn, until)
            if self._conn:
                self._conn.pgconn.consume_input()
                for event in iter(self._conn.pgconn.notifies, None):
                    woken = woken or name in event.extra

    def _connect(self):
        self._conn = psycopg.connect(**next(self._targets), autocommit=True)

    def _disconnect(self):
        if self._conn:
            self._conn.close()
        self._conn = None


class Leadership(_Engine):
    """A session candidate: a connection of its own, never a pool's.

    conninfo: libpq's connection string or URI ('': the PG* environment); several hosts are tried
    in turn. slice: how long one campaign waits, and so how soon a dead path is noticed. With
    health_check (a callable; false or an exception: not well) the lease is renewed only after it
    returned true, so a working loop that hangs loses the lease.
    """

    _bound = True
    # The server may end the session of a silent peer after 3 * floor(lease / 3) seconds, at least
    # 3, and another leads at once then. Half a lease is before that.
    _share = 0.5

    def __init__(self, conninfo, election, candidate=None, *, slice=5.0, **options):
        super().__init__(conninfo, election, candidate, **options)
        self._slice = slice

    def _stand(self):
        if self._conn is None:          # join() keeps our place in line between two campaigns
            self._connect()
            self._call("""SELECT leader_election.join($1, $2, rank => $3::pg_catalog.int4,
                    metadata => $4::pg_catalog.jsonb, auto_renew => $5),
                pg_catalog.set_config('statement_timeout', '0', false),
                pg_catalog.set_config('idle_session_timeout', '0', false)""",
                       (*self._me, self._check is None))
        self._call("CALL leader_election.campaign($1, $2, timeout => $3::pg_catalog.interval)",
                   (*self._me[:2], f"{self._slice} s"), self._slice + self._call_timeout)
        return self._renew(None)        # nothing, if we were not elected

    def _renew(self, lead):
        return self._ask("renew($1)", self.election)

    def _leave(self, held):
        if held and self._conn:
            self._call("SELECT leader_election.leave($1)", (self.election,))
        self._disconnect()

    def _call(self, sql, values, seconds=None):
        return self._fetch(self._conn, sql, values, self._now() + (seconds or self._call_timeout))


class DetachedLeadership(_Engine):
    """A detached candidate: each call over any connection, also through PgBouncer.

    pool: a psycopg_pool.ConnectionPool. interval: how often one that does not lead asks. listen: a
    connection string for LISTEN, past any pooler; then a vacancy is noticed at once.
    """

    def __init__(self, pool, election, candidate=None, *, interval=1.0, listen=None, **options):
        super().__init__(listen or "", election, candidate, **options)
        self._pool, self._interval = pool, interval
        self._listen_at = float("inf") if listen is None else 0.0

    def _stand(self):
        if self._conn is None and self._now() >= self._listen_at:
            self._listen_at = self._now() + 30.0        # the next try
            self._connect()
            self._conn.execute("LISTEN leadership_changed")
        return self._ask("acquire($1, $2, rank => $3::pg_catalog.int4, "
                         "metadata => $4::pg_catalog.jsonb)", *self._me)

    def _renew(self, lead):
        return self._ask("renew($1, $2::pg_catalog.int8)", self.election, lead.term)

    def _leave(self, held):
        if held:
            self._call("SELECT leader_election.release($1, $2)", (self.election, held.term))
            return
        self._disconnect()
        with contextlib.suppress(psycopg.Error, TimeoutError):  # a grant that we do not know of
            self._call("SELECT leader_election.leave($1, $2)", self._me[:2])

    def _call(self, sql, values, seconds=None):
        until = min(self._now() + (seconds or self._call_timeout), self._close_by)
        try:
            conn = self._pool.getconn(until - self._now())
        except psycopg.OperationalError:        # it does not tell why: try, for a clear error
            if self._lead is None:
                psycopg.connect(self._pool.conninfo, **{**_NETWORK, **self._pool.kwargs}).close()
            raise
        try:
            return self._fetch(conn, sql, values, until)
        except BaseException:
            conn.close()                        # never back into the pool
            raise
        finally:
            self._pool.putconn(conn)


class _Local(_Candidate):
    """Without threads: handlers are called in the thread that causes the event."""

    def _emit(self, event, value):
        super()._emit(event, value)
        if len(self._events) == 1:          # else a handler caused it, and the outer call goes on
            self._tell()


class SoleLeadership(_Local):
    """For a laptop, or one instance without the extension: always leads, and issues no term: term
    is None, leads is True. fenced() refuses, unless unfenced: then it does nothing."""

    def __init__(self, election="election", candidate=None, *, unfenced=False, **handlers):
        super().__init__(election, candidate, **handlers)
        self._unfenced = unfenced

    def start(self):
        self._extend(None, _Grant(None, float("inf"), 0.0, False))
        return self

    def resign(self):
        if self._end("resigned"):
            self.start()

    def _fence(self, connection, term):
        if not self._unfenced:
            raise RuntimeError("SoleLeadership has no term to fence with (unfenced=True: go on)")


class FakeLeadership(_Local):
    """For tests: the test says who leads, and moves the clock. fenced() asks no server."""

    _time, _last = 0.0, 0

    def elect(self, term=None, lease=15.0):
        """Be elected in this term (default: the next one), for so many seconds; returns it."""
        self._end("not renewed")
        self._last = self._last + 1 if term is None else term
        self._extend(None, _Grant(self._last, self._time + lease, 0.0, False))
        return self._last

    def lose(self, reason="connection lost"):
        self._end(reason)

    def ask_yield(self):
        self._ask_to_go()

    def advance(self, seconds):
        """Move the clock; past the deadline the leadership has expired."""
        self._time += seconds
        self._expire()

    def _now(self):
        return self._time

    def _fence(self, connection, term):
        pass
