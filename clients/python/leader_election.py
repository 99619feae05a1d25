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

Three threads. The *engine* talks to the server. The *watchdog* waits for nobody: it ends the
leadership at the deadline, and shuts down the socket of a call that takes too long. (A time limit
that leaves the socket open leaves a campaign running at the server, whose connection is elected
later with nobody knowing.) The *teller* runs the handlers, one after the other, so that a slow
one holds up no renewal.

The clock goes on while the machine sleeps where the system has such a clock (Linux). Even so a
process can be paused between the look at `term` and its next write: fence what must not be late.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import os
import queue
import random
import re
import secrets
import selectors
import socket
import threading
import time

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

__all__ = ["Leadership", "DetachedLeadership", "SoleLeadership", "FakeLeadership",
           "NotLeader", "LeadershipError"]

log = logging.getLogger("leader_election")

# A class of SQLSTATEs, or one: the same call would be answered the same for ever.
_FATAL = ("28", "3D000", "3F000", "42883", "42P01", "42501", "22023", "0A000", "25001", "LE003")
# libpq tells no SQLSTATE of a refused connection, only the server's text.
_REFUSED = (
    ("28P01", r"password authentication failed|no password supplied|SASL authentication failed"),
    ("28000", r'no pg_hba\.conf entry|role ".*" does not exist|not permitted to log in'
              r"|authentication failed for user|no such user"),
    ("3D000", r'database ".*" does not exist|no such database'),
    ("42501", r"permission denied for database"))

_SETTINGS = """SELECT pg_catalog.set_config('statement_timeout', '0', false),
    pg_catalog.set_config('idle_session_timeout', '0', false),
    pg_catalog.set_config('default_transaction_isolation', 'read committed', false)"""
_JOIN = """SELECT leader_election.join(%(election)s, %(candidate)s,
    rank => %(rank)s::pg_catalog.int4, metadata => %(metadata)s::pg_catalog.jsonb,
    auto_renew => %(auto_renew)s)"""
_CAMPAIGN = """CALL leader_election.campaign(%(election)s, %(candidate)s,
    timeout => %(slice)s::pg_catalog.interval, rank => %(rank)s::pg_catalog.int4,
    metadata => %(metadata)s::pg_catalog.jsonb, auto_renew => %(auto_renew)s)"""
_RENEW = "SELECT term, remaining_ms, yielding FROM leader_election.renew(%(election)s)"
_RESIGN = "SELECT leader_election.resign(%(election)s)"
_LEAVE = "SELECT leader_election.leave(%(election)s)"
_ACQUIRE = """SELECT term, remaining_ms, yielding FROM leader_election.acquire(%(election)s,
    %(candidate)s, rank => %(rank)s::pg_catalog.int4, metadata => %(metadata)s::pg_catalog.jsonb)"""
_RENEW_TERM = """SELECT term, remaining_ms, yielding
    FROM leader_election.renew(%(election)s, %(term)s::pg_catalog.int8)"""
_RELEASE = "SELECT leader_election.release(%(election)s, %(term)s::pg_catalog.int8)"
_WITHDRAW = "SELECT leader_election.leave(%(election)s, %(candidate)s)"
_ASSERT = "SELECT leader_election.assert_leader(%s, %s::pg_catalog.int8)"


class NotLeader(Exception):
    """fenced() was called, and this instance does not lead."""


class LeadershipError(Exception):
    """The engine has ended: the server would answer the same for ever. See sqlstate."""

    def __init__(self, message, sqlstate):
        super().__init__(message)
        self.sqlstate = sqlstate


def _clock():
    """Seconds; goes on while the machine sleeps, where the system has such a clock."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _fatal(error):
    """The LeadershipError that this exception is, or None: try again."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None and isinstance(error, psycopg.OperationalError):
        state = next((code for code, text in _REFUSED if re.search(text, str(error))), None)
    if state is None or not state.startswith(_FATAL):
        return None
    hint = ""
    if state in ("3F000", "42883"):
        hint = "this database lacks the extension (CREATE EXTENSION leader_election): "
    fatal = LeadershipError(hint + str(error), state)
    fatal.__cause__ = error
    return fatal


class _Candidate:
    """What all four have in common: who leads, until when, and who is told."""

    def __init__(self, election, candidate=None, *, on_elected=None, on_lost=None, on_yield=None,
                 on_error=None, clock=_clock):
        self.election = election
        self.candidate = candidate or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.changes = 0                  # elections of this client
        self._handlers = {"elected": on_elected, "lost": on_lost, "yield": on_yield,
                          "error": on_error}
        self._now = clock
        self._lock = threading.Condition()    # an RLock: a signal handler may interrupt us
        self._grant = None                # (term, deadline) until the leadership has ended
        self._ended = None                # the reason why the last one did
        self._yielding = False
        self._closing = False
        self._error = None
        self._told = threading.Event()    # the handlers of "lost" have returned
        self._told.set()

    @property
    def term(self):
        """The term in which this instance leads now, else None. Does not block."""
        grant = self._grant
        return grant[0] if grant and self._now() < grant[1] else None

    @property
    def leads(self):
        grant = self._grant
        return bool(grant) and self._now() < grant[1]

    def start(self):
        return self

    def wait(self, timeout=None):
        """Until this instance leads: the term, or None after timeout seconds or close()."""
        with self._lock:
            self._lock.wait_for(lambda: self.leads or self._error or self._closing, timeout)
            if self._error:
                raise self._error
            return self.term

    def fenced(self, connection):
        """Fence the transaction that is open on this connection (DB-API, Django's, SQLAlchemy's):
        from here on its COMMIT fails with SQLSTATE LE002 unless this very term still leads then.
        Raises NotLeader, without asking the server, if this instance does not lead; the driver's
        error, LE001, if the server says so."""
        term = self.term
        if term is None:
            raise NotLeader(f"{self.candidate!r} does not lead election {self.election!r}")
        if callable(getattr(connection, "connection", None)):           # SQLAlchemy's Session
            connection = connection.connection()
        execute = getattr(connection, "exec_driver_sql", None)          # its Connection
        raw = connection.connection if execute else connection
        raw = getattr(raw, "dbapi_connection", None) or raw
        cursor = None if execute else connection.cursor()               # Django connects here
        status = getattr(getattr(raw, "info", None), "transaction_status", 0)
        if getattr(raw, "autocommit", False) and status == 0:
            raise RuntimeError("fenced() outside of a transaction would fence nothing: "
                               "open one, or turn autocommit off")
        (execute or cursor.execute)(_ASSERT, (self.election, term))
        if cursor:
            cursor.close()

    def resign(self):
        """Give up now, and go on standing. Does nothing if this instance does not lead."""
        self._end("resigned")

    def close(self):
        """Give up, withdraw, end. Others are elected at once."""
        with self._lock:
            self._closing = True
            self._end("closed")
            self._lock.notify_all()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    def _begin(self, term, deadline):
        """False, and nothing is told, if the grant is too late: then give it back."""
        with self._lock:
            if self._closing or self._now() >= deadline:
                return False
            self._grant, self._yielding = (term, deadline), False
            self.changes += 1
            self._emit("elected", term)
            self._lock.notify_all()
            return True

    def _extend(self, deadline):
        """False if the leadership has ended: an answer after the deadline does not revive it."""
        with self._lock:
            if self._grant and self._now() >= self._grant[1]:
                self._end("expired")
            if self._grant:
                self._grant = (self._grant[0], deadline)
            return self._grant is not None

    def _ask_to_go(self):
        """The server wants us to yield: tell the application, once per term, or go at once."""
        with self._lock:
            if self._grant and not self._yielding:
                self._yielding = True
                if self._handlers["yield"]:
                    self._emit("yield", self._grant[0])
                else:
                    self._end("yielded")

    def _end(self, reason):
        """The one place where a leadership ends. False if there is none."""
        with self._lock:
            if self._grant is None:
                return False
            self._grant = None
            self._ended = "yielded" if reason == "resigned" and self._yielding else reason
            self._told.clear()
            self._emit("lost", self._ended)
            self._lock.notify_all()
            return True

    def _handle(self, event, value):
        try:
            if self._handlers[event]:
                self._handlers[event](value)
        except Exception:
            log.exception("handler of %r, election %r", event, self.election)
        if event == "lost":
            with self._lock:
                self._told.set()
                self._lock.notify_all()


class _Engine(_Candidate):
    """The threads, their timer and their sleep."""

    _bound = False              # the leadership ends with the connection

    def __init__(self, election, candidate=None, *, rank=None, metadata=None, health_check=None,
                 call_timeout=5.0, **handlers):
        super().__init__(election, candidate, **handlers)
        self._call_timeout = call_timeout
        self._check = health_check
        self._args = {"election": election, "candidate": self.candidate, "rank": rank,
                      "metadata": None if metadata is None else json.dumps(metadata),
                      "auto_renew": False}
        self._events = queue.SimpleQueue()
        self._threads = []
        self._finished = threading.Event()
        self._failures = 0
        self._cut_at = None         # when the watchdog shuts down the socket of the call under way
        self._hasty = False         # that call: close() does not wait for its answer
        # A duplicate: the watchdog must not shut down whatever gets the number of a closed one.
        self._socket = None
        self._severed = False
        self._close_by = 0.0

    def start(self):
        with self._lock:
            if not self._threads and not self._closing:
                self._poked, self._poker = socket.socketpair()
                self._poker.setblocking(False)
                self._threads = [threading.Thread(target=target, daemon=True,
                                                  name=f"leader_election {target.__name__}")
                                 for target in (self._engine, self._watchdog, self._teller)]
                for thread in self._threads:
                    thread.start()
        return self

    def close(self):
        """Give up, withdraw, end; at most call_timeout seconds. Others are elected at once."""
        with self._lock:
            if not self._closing:
                self._close_by = self._now() + self._call_timeout
                if self._cut_at is not None:
                    hasty = self._hasty and not self._grant
                    spare = 0.0 if hasty else self._call_timeout / 2
                    self._cut_at = min(self._cut_at, self._now() + spare)
                    if hasty and not self._socket:      # still connecting: nothing to give back,
                        self._close_by = self._now()    # and that thread ends by itself
            super().close()
            if self._threads:
                self._poke()
        if self._threads and threading.current_thread() not in self._threads:
            for thread in self._threads:
                thread.join(max(0.0, self._close_by - self._now()))
            with self._lock:
                if self._told.is_set():
                    self._sever()

    def _engine(self):
        try:
            while not self._closing:
                try:
                    self._work()
                except Exception as error:
                    fatal = _fatal(error)
                    self._trouble(error, fatal)
                    if fatal and not self._closing:
                        with self._lock:
                            self._end("error")
                            self._error = fatal
                            self._emit("error", fatal)
                        break
            self._told.wait()
            self._give_back()
        except Exception as error:
            log.info("election %r: while giving up: %s", self.election, error)
        finally:
            self._told.wait()
            self._disconnect()
            with self._lock:
                self._finished.set()
                self._poker.close()
                self._poked.close()
                self._lock.notify_all()
            self._events.put(None)

    def _watchdog(self):
        with self._lock:
            while not self._finished.is_set():
                now, due = self._now(), []
                if self._grant and now >= self._grant[1]:
                    self._end("expired")
                    self._cut_at = now          # whatever hangs must not keep the session
                if self._cut_at is not None and now >= self._cut_at:
                    if self._bound:     # a session's cut socket gives the lease back: first tell
                        self._end("connection lost")
                    if self._told.is_set() or not self._bound:
                        self._sever()
                elif self._cut_at is not None:
                    due.append(self._cut_at)
                if self._grant:
                    due.append(self._grant[1])
                # One second at most: a sleep does not count while the machine is suspended.
                self._lock.wait(min([1.0] + [at - now for at in due]) if due else None)

    def _teller(self):
        for event in iter(self._events.get, None):
            self._handle(*event)

    def _emit(self, event, value):
        self._events.put((event, value))

    def _end(self, reason):
        ended = super()._end(reason)
        if ended:
            self._poke()
        return ended

    def _poke(self):
        with contextlib.suppress(OSError):
            self._poker.send(b"!")

    def _pause(self, seconds, sock=None):
        """Sleep. A poke, or something to read on sock, ends it. Returns what did."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._poked, selectors.EVENT_READ)
            if sock:
                selector.register(sock, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(max(0.0, seconds))]
        if self._poked in ready:
            self._poked.recv(4096)
        return ready

    def _sleep(self, seconds):
        """Sleep. Only close() ends it."""
        until = self._now() + seconds
        while not self._closing and self._now() < until:
            self._pause(until - self._now())

    def _backoff(self, longest):
        self._failures += 1
        return min(longest, 0.1 * 2 ** min(self._failures - 1, 10)) * random.uniform(0.5, 1.0)

    def _healthy(self):
        try:
            return self._check is None or bool(self._check())
        except Exception:
            log.exception("health check, election %r", self.election)
            return False

    def _trouble(self, error, fatal=None):
        log.log(logging.ERROR if fatal else logging.WARNING, "election %r, candidate %r: %s",
                self.election, self.candidate, error)

    @contextlib.contextmanager
    def _timed(self, seconds, hasty=False):
        """The block is one call. Its socket is cut off after so many seconds."""
        with self._lock:
            now = self._now()
            self._cut_at = min(now + seconds, self._close_by) if self._closing else now + seconds
            self._hasty = hasty
            if hasty and self._closing:
                self._cut_at = now
            self._lock.notify_all()
        try:
            yield
        finally:
            with self._lock:
                self._cut_at = None

    def _attach(self, conn):
        with self._lock:
            self._socket = socket.socket(fileno=os.dup(conn.fileno()))
            self._severed = False
            self._lock.notify_all()         # the time may be over already

    def _detach(self):
        """True if the connection was cut off."""
        with self._lock:
            if self._socket:
                self._socket.close()
            self._socket = None
            return self._severed

    def _sever(self):
        if self._socket:
            self._severed = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)    # wakes whoever waits for an answer

    def _fetch(self, conn, sql, **more):
        """The first row of the answer. One that came when the socket was cut counts as none."""
        with conn.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(sql, {**self._args, **more}, prepare=False).fetchone()
        if self._severed:
            raise psycopg.OperationalError("the server did not answer in time")
        return row

    def _network(self):
        """libpq's keywords by which a connection notices that its path is cut."""
        return {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3,
                "tcp_user_timeout": 10000, "connect_timeout": max(2, round(self._call_timeout)),
                "fallback_application_name": self.candidate}


class Leadership(_Engine):
    """A session candidate: a connection of its own, never a pool's.

    conninfo: libpq's connection string or URI ('': the PG* environment); several hosts are tried
    in turn. With health_check (a callable; false or an exception: not well) the lease is renewed
    only after it returned true, so a working loop that hangs loses the lease.
    """

    _bound = True

    def __init__(self, conninfo, election, candidate=None, *, slice=5.0, **options):
        super().__init__(election, candidate, **options)
        self._args["slice"] = f"{slice} s"
        self._slice = slice
        self._conn = None
        self._turn = 0
        given = conninfo_to_dict(conninfo)
        self._keywords = {**self._network(), **given}
        # psycopg 3.1.7 has one time limit for all hosts, which a dead first one uses up.
        hosts, ports = ((str(given.get(key) or os.environ.get(f"PG{key.upper()}", ""))).split(",")
                        for key in ("host", "port"))
        ports = ports * len(hosts) if len(ports) == 1 else ports
        self._hosts = [{key: value for key, value in (("host", host), ("port", port)) if value}
                       for host, port in zip(hosts, ports)]

    def _work(self):
        """One connection's life."""
        try:
            host = self._hosts[self._turn % len(self._hosts)]
            with self._timed(float(self._keywords["connect_timeout"]), hasty=True):
                self._conn = psycopg.connect(**{**self._keywords, **host},
                                             autocommit=True, prepare_threshold=None)
            self._attach(self._conn)
            self._stand()
        except Exception as error:
            if _fatal(error):
                raise
            self._end("connection lost")
            if not self._closing:
                self._trouble(error)
        if self._closing:
            return                      # _engine gives back and disconnects
        self._told.wait()
        self._disconnect()
        self._turn += 1
        if self._turn % len(self._hosts) == 0:
            self._sleep(self._backoff(5.0))

    def _disconnect(self):
        self._detach()
        if self._conn is not None:
            self._conn.close()
        self._conn = None

    def _call(self, sql, seconds=None, hasty=False):
        with self._timed(self._call_timeout if seconds is None else seconds, hasty):
            return self._fetch(self._conn, sql)

    def _stand(self):
        """Returns when this connection is not to be used again."""
        self._call(_SETTINGS, hasty=True)
        standing = False
        while not self._closing:
            if not self._healthy():
                if standing:
                    self._call(_LEAVE)
                standing = False
                self._sleep(min(1.0, self._slice))
            else:
                # join() first: so this candidate keeps its place in line between two campaigns.
                sql, wait = (_CAMPAIGN, self._slice) if standing else (_JOIN, 0.0)
                term = self._call(sql, wait + self._call_timeout, hasty=True)[0]
                standing, self._failures = True, 0
                if term is not None and not self._lead(term):
                    return

    def _lead(self, term):
        """True: resigned; the connection is good for the next campaign."""
        leading = False
        while True:
            if not self._healthy():
                self._end("unhealthy")
                break
            sent = self._now()
            grant = self._grant
            if leading and grant is None:
                break
            try:
                left = grant[1] - sent if grant else self._call_timeout
                row = self._call(_RENEW, min(self._call_timeout, left), hasty=not leading)
            except psycopg.Error as error:
                if not leading or self._conn.broken or self._severed or error.sqlstate is None:
                    raise
                if error.sqlstate == "LE006":      # a reset: the server has ended this leadership
                    self._end("not renewed")
                    break
                if _fatal(error):
                    raise
                self._trouble(error)               # busy, or cancelled: the deadline decides
                if not self._watch_until(self._now() + 0.1):
                    break
                continue
            if row is None or row[0] != term:
                self._end("not renewed")
                break
            # Half: the server may end the session of a silent peer after 3 * floor(lease / 3)
            # seconds, at least 3, and another leads at once then.
            deadline = sent + row[1] / 2000
            if not (self._extend(deadline) if leading else self._begin(term, deadline)):
                break
            leading = True
            if row[2]:
                self._ask_to_go()
            if not self._watch_until(max(sent + (deadline - sent) / 3, self._now() + 0.01)):
                break
        self._told.wait()
        if leading and self._ended in ("resigned", "yielded") and not self._closing:
            self._call(_RESIGN)
            self._sleep(1.0)            # let others have it; a lone candidate does not spin
            return True
        if not self._closing:
            self._give_back()
        return False

    def _watch_until(self, moment):
        """Sleep, with an eye on the connection. False if the leadership has ended."""
        while self._grant and self._now() < moment:
            if self._socket in self._pause(moment - self._now(), self._socket):
                if not self._socket.recv(1, socket.MSG_PEEK):
                    raise psycopg.OperationalError("the server closed the connection")
                self._conn.pgconn.consume_input()
        return self._grant is not None

    def _give_back(self):
        if self._conn is not None and not self._conn.closed and not self._severed:
            self._call(_LEAVE)


class DetachedLeadership(_Engine):
    """A detached candidate: each call over any connection, also through PgBouncer.

    pool: a psycopg_pool.ConnectionPool, or a callable that returns a context manager of a psycopg
    connection. interval: how often one that does not lead asks. listen: a connection string for
    LISTEN, past any pooler; then a vacancy is noticed at once.
    """

    def __init__(self, pool, election, candidate=None, *, interval=1.0, listen=None, **options):
        super().__init__(election, candidate, **options)
        self._pool = pool
        self._interval = interval
        self._listen = listen
        self._listener = None
        self._listen_again = 0.0
        self._owed = None               # a term that is to be released
        self._standing = False
        self._reached = False           # the pool has given a connection once

    def _end(self, reason):
        with self._lock:
            if self._grant and reason not in ("not renewed", "failover"):
                self._owed = self._grant[0]
            return super()._end(reason)

    def _ask(self, sql, seconds=None, **more):
        seconds = self._call_timeout if seconds is None else seconds
        with self._timed(seconds):
            source = (self._pool.connection(timeout=seconds) if hasattr(self._pool, "connection")
                      else self._pool())
            with source as conn:
                self._reached = True
                self._attach(conn)
                try:
                    before = conn.autocommit
                    conn.autocommit = True
                    return self._fetch(conn, sql, **more)
                finally:
                    if self._detach():
                        conn.close()                # never back into the pool
                    elif not conn.closed:
                        conn.autocommit = before

    def _work(self):
        try:
            pause = self._step()
            self._failures = 0
        except Exception as error:
            if _fatal(error):
                raise
            self._probe()
            if not self._closing:
                self._trouble(error)
            grant = self._grant
            pause = self._backoff(max(0.1, (grant[1] - self._now()) / 2) if grant else 5.0)
        self._rest(pause)

    def _probe(self):
        """psycopg_pool does not tell why it has no connection: while none has come, try one."""
        where, kwargs = (getattr(self._pool, name, None) for name in ("conninfo", "kwargs"))
        if self._reached or not isinstance(where, str) or not isinstance(kwargs, dict):
            return
        try:
            psycopg.connect(where, **{**kwargs, **self._network()}).close()
        except psycopg.Error as error:
            if _fatal(error):
                raise

    def _step(self):
        """One call. Returns for how long to sleep then."""
        if self._owed is not None and self._grant is None:
            self._told.wait()
            self._ask(_RELEASE, term=self._owed)
            self._owed = None
            if self._ended in ("resigned", "yielded"):
                self._sleep(1.0)
            return 0.0
        if not self._healthy():
            if self._end("unhealthy"):
                return 0.0
            if self._standing:
                self._withdraw()
            return min(1.0, self._interval)
        grant, sent = self._grant, self._now()
        if grant is None:
            if self._closing or self._owed is not None:
                return 0.0
            self._standing = True
            row = self._ask(_ACQUIRE)
            if row is None:
                return self._interval
            deadline = sent + row[1] / 1000
            self._take(row[0], deadline)
        else:
            left = max(0.0, grant[1] - sent)
            row = self._ask(_RENEW_TERM, min(self._call_timeout, left), term=grant[0])
            if row is None:
                self._end("not renewed")
                return 0.0
            deadline = sent + row[1] / 1000
            if row[0] == grant[0]:
                self._extend(deadline)
            elif self._end("failover"):         # the lease goes on, under a new term
                self._told.wait()
                self._take(row[0], deadline)
            else:
                self._owed = row[0]
        if row[2]:
            self._ask_to_go()
        return max(0.01, sent + row[1] / 3000 - self._now()) if self._grant else 0.0

    def _take(self, term, deadline):
        if not self._begin(term, deadline):
            self._owed = term

    def _withdraw(self):
        self._standing = False
        try:
            self._ask(_WITHDRAW)
        except psycopg.Error as error:
            self._trouble(error)

    def _give_back(self):
        if self._owed is not None:
            self._ask(_RELEASE, term=self._owed)
        if self._standing:
            self._withdraw()

    def _rest(self, seconds):
        until = self._now() + seconds
        if self._listen is not None and self._listener is None and not self._grant:
            if self._connect_listener():
                return                          # ask once: something may have changed meanwhile
        while self._now() < until and not self._closing:
            ready = self._pause(until - self._now(), self._listener)
            if self._poked in ready or (ready and self._heard()):
                return

    def _connect_listener(self):
        if self._now() < self._listen_again or self._closing:
            return False
        self._listen_again = self._now() + 5.0
        try:
            self._listener = psycopg.connect(
                autocommit=True, **{**self._network(), **conninfo_to_dict(self._listen)})
            with self._timed(self._call_timeout):
                self._attach(self._listener)
                self._listener.execute("LISTEN leadership_changed")
            return True
        except psycopg.Error as error:
            self._trouble(error)
            self._disconnect()
            return False
        finally:
            self._detach()

    def _heard(self):
        """Has something happened in this election that is worth a call?"""
        try:
            self._listener.pgconn.consume_input()
            heard = [json.loads(n.extra) for n in iter(self._listener.pgconn.notifies, None)]
        except (psycopg.Error, ValueError) as error:
            self._trouble(error)
            self._disconnect()
            return False
        return any(event.get("election") == self.election and event.get("event") != "elected"
                   for event in heard)

    def _disconnect(self):
        if self._listener is not None:
            self._listener.close()
        self._listener = None


class _Local(_Candidate):
    """Without threads: events are told in the thread that causes them, one after the other."""

    def __init__(self, election="election", candidate=None, **options):
        super().__init__(election, candidate, **options)
        self._events = collections.deque()

    def _emit(self, event, value):
        self._events.append((event, value))
        if len(self._events) == 1:          # else a handler caused it, and the loop below goes on
            while self._events:
                self._handle(*self._events[0])
                self._events.popleft()


class SoleLeadership(_Local):
    """For a laptop, or one instance without the extension: always leads, and issues no term: term
    is None, leads is True. fenced() refuses, unless unfenced: then it does nothing."""

    def __init__(self, election="election", candidate=None, *, unfenced=False, **handlers):
        super().__init__(election, candidate, **handlers)
        self._unfenced = unfenced

    def start(self):
        if not self.changes:
            self._begin(None, float("inf"))
        return self

    def fenced(self, connection):
        if not self._unfenced:
            raise RuntimeError("SoleLeadership has no term to fence with (unfenced=True: go on)")
        if not self.leads:
            raise NotLeader("closed")

    def resign(self):
        if self._end("resigned"):
            self._begin(None, float("inf"))


class FakeLeadership(_Local):
    """For tests: the test says who leads, and moves the clock. fenced() asks no server."""

    def __init__(self, election="election", candidate=None, **handlers):
        self._time = 0.0
        super().__init__(election, candidate, clock=lambda: self._time, **handlers)
        self._last = 0

    def elect(self, term=None, lease=15.0):
        """Be elected in this term (default: the next one), for so many seconds; returns it."""
        self._end("not renewed")
        self._last = self._last + 1 if term is None else term
        self._begin(self._last, self._time + lease)
        return self._last

    def lose(self, reason="connection lost"):
        self._end(reason)

    def ask_yield(self):
        self._ask_to_go()

    def advance(self, seconds):
        """Move the clock; past the deadline the leadership has expired."""
        self._time += seconds
        if self._grant and self._time >= self._grant[1]:
            self._end("expired")

    def fenced(self, connection):
        if self.term is None:
            raise NotLeader(f"{self.candidate!r} does not lead election {self.election!r}")
