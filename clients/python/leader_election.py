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

No locks: a signal handler may call close() and resign(), whatever it interrupts. All that they do
is one assignment, and to ring.

The clock goes on while the machine sleeps where the system has such a clock (Linux). Even so a
process can be paused between the look at `term` and its next write: fence what must not be late.
A forked child does not lead. Start after a fork: a child that has not called exec keeps the socket
open, and so the session of a parent that was killed.
"""

import contextlib
import itertools
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
import types

import psycopg
from psycopg import pq

log = logging.getLogger("leader_election")

# A class of SQLSTATEs, or one: the same call would be answered the same for ever.
_FATAL = ("28", "3D000", "3F000", "42883", "42P01", "42501", "22023", "0A000", "25001", "LE003")
# libpq tells no SQLSTATE of a refused connection, only the server's text.
_REFUSED = {"28P01": "password authentication failed|no password supplied|SASL authentication",
            "28000": r'pg_hba\.conf|role ".*" does not exist|not permitted to log in|no such user',
            "3D000": r'database ".*" does not exist|no such database',
            "42501": "permission denied for database"}
# By these a connection notices that its path is cut.
_NETWORK = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3,
            "tcp_user_timeout": 10000}


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


def _grant(term, deadline, lasts=0.0, yielding=False):
    """A lease, and if we take it, a leadership: over is then the reason for its end, and told are
    the events whose handlers have returned."""
    return types.SimpleNamespace(term=term, deadline=deadline, third=lasts / 3, yielding=yielding,
                                 pid=os.getpid(), over=None, told=[])


class _Candidate:
    """What all four have in common, also their options, so that one can stand in for another.

    health_check: a callable; unless it says true, we do not stand, and the lease is not renewed.
    call_timeout: how many seconds a call may take. Handlers are called one at a time: stop the
    work in on_lost, but do not do it in on_elected.
    """

    def __init__(self, election="election", candidate=None, *, rank=None, metadata=None,
                 health_check=None, call_timeout=5.0, slice=5.0, interval=1.0, listen=None,
                 unfenced=False, on_elected=None, on_lost=None, on_yield=None, on_error=None):
        self.election = election
        self.candidate = candidate or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.changes, self._bells = 0, []       # elections of this client; see _await()
        self._me = (self.candidate, rank, None if metadata is None else json.dumps(metadata))
        self._check, self._call_timeout = health_check or (lambda: True), call_timeout
        self._slice, self._interval, self._listen = slice, interval, listen
        self._unfenced = unfenced
        self._handlers = {"elected": on_elected, "lost": on_lost, "error": on_error,
                          "yield": on_yield or (lambda term: self.resign())}
        self._lead = None       # the last leadership; its "lost" is told before there is another
        self._closing = self._error = None      # why we end for good: "closed", or an "error"

    def _now(self):
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if boottime is None else time.clock_gettime(boottime)

    def _current(self):
        """Our leadership, unless it has ended. The first who sees that it has, ends it for good,
        so that an answer that comes too late revives nothing."""
        lead = self._lead
        if lead and not lead.over:
            why = self._closing or (self._now() >= lead.deadline and "expired")
            lead.over = lead.over or why or None
        return lead if lead and not lead.over and lead.pid == os.getpid() else None

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
        self._await(lambda: self.leads or self._closing, 1e9 if timeout is None else timeout)
        if self._error:
            raise self._error
        return self.term

    def fenced(self, connection):
        """Fence the transaction that is open on this DB-API connection (or Django's): from here
        on its COMMIT fails with SQLSTATE LE002 unless this very term still leads then. Raises
        NotLeader, without asking the server, if this instance does not lead; the driver's error,
        LE001, if the server says so."""
        lead = self._current()
        if not lead:
            raise NotLeader(f"{self.candidate!r} does not lead election {self.election!r}")
        if not self._unfenced:
            with contextlib.closing(connection.cursor()) as cursor:     # Django connects here
                status = getattr(getattr(connection, "info", None), "transaction_status", 0)
                if lead.term is None or getattr(connection, "autocommit", False) and not status:
                    raise RuntimeError("fenced() would fence nothing: no transaction, or no term")
                cursor.execute("SELECT leader_election.assert_leader(%s, %s)",
                               (self.election, lead.term))

    def resign(self):
        """Give up now, and stand again after a second. Does nothing if we do not lead, and waits
        for nothing: the lease is given back when the handler of "lost" has returned."""
        lead = self._lead
        self._lose("yielded" if lead and lead.yielding else "resigned")

    def close(self):
        """Give up, withdraw, end; at most call_timeout seconds. Others are elected at once."""
        self._closing = self._closing or "closed"
        self._ring()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    def _await(self, condition, seconds):
        """Until the condition holds, looked at when somebody rings, and each second: a wait does
        not count while the machine sleeps. A queue, because its put() may interrupt anything."""
        bell, until = queue.SimpleQueue(), time.monotonic() + seconds
        self._bells.append(bell)
        try:
            while not condition() and time.monotonic() < until:
                with contextlib.suppress(queue.Empty):
                    bell.get(timeout=max(0.0, min(1.0, until - time.monotonic())))
        finally:
            self._bells.remove(bell)

    def _ring(self):
        for bell in tuple(self._bells):
            bell.put(None)

    def _begin(self, grant):
        """Lead, unless the answer came too late."""
        if self._now() < grant.deadline and not self._closing:
            self.changes += 1
            self._lead = grant
            self._ring()

    def _lose(self, reason):
        """End the leadership, if there is one: the term, then the handlers, then the lease."""
        lead = self._current()
        if lead:
            lead.over = reason
            self._ring()

    def _due(self):
        """What a handler is to be told next."""
        lead, current = self._lead, self._current()
        if not lead or "lost" in lead.told:
            return None
        if "elected" not in lead.told:
            return lead, "elected", lead.term
        if lead.over:
            return lead, "lost", lead.over
        asked = current and lead.yielding and "yield" not in lead.told
        return (lead, "yield", lead.term) if asked else None

    def _tell(self):
        """Call the handler that is due, if one is: then True."""
        due = self._due()
        if due:
            self._call_handler(*due[1:])
            due[0].told.append(due[1])
            self._ring()
        return due is not None

    def _call_handler(self, event, value):
        try:
            if self._handlers[event]:
                self._handlers[event](value)
        except (Exception, SystemExit):
            log.exception("handler of %r, election %r", event, self.election)


class _Engine(_Candidate):
    """Both threads. _lead is what the application knows; it ends by the clock, too. _held is what
    the server may take us to have: what is held, but not led, is given back."""

    def __init__(self, where, election, candidate=None, **options):
        super().__init__(election, candidate, **options)
        self._conn = self._held = None          # a pq.PGconn; a grant
        self._over, self._threads = False, []
        # Each host by itself: one time limit for all of them would be used up by a dead first one.
        given = {"fallback_application_name": self.candidate, **_NETWORK,
                 **psycopg.conninfo.conninfo_to_dict(where), "client_encoding": "UTF8"}
        lists = {key: str(given.get(key) or os.environ.get(f"PG{key.upper()}", "")).split(",")
                 for key in ("host", "hostaddr", "port")}
        self._targets = itertools.cycle([
            {**given, **{key: names[i % len(names)] or None for key, names in lists.items()}}
            for i in range(max(map(len, lists.values())))])

    def start(self):
        if not self._threads and not self._closing:
            # By these whoever rings wakes the engine, which waits for an answer.
            self._poked, self._poker = socket.socketpair()
            self._poker.setblocking(False)
            self._threads = [threading.Thread(target=target, daemon=True)
                             for target in (self._engine, self._teller)]
            for thread in self._threads:
                thread.start()
        return self

    def close(self):
        super().close()
        until = time.monotonic() + self._call_timeout
        if threading.current_thread() not in self._threads:     # a handler: they wait for it
            for thread in self._threads:
                thread.join(max(0.0, until - time.monotonic()))

    def _ring(self):
        super()._ring()
        if self._threads:
            with contextlib.suppress(OSError):      # full: it is awake; closed: it has ended
                self._poker.send(b"!")

    def _teller(self):
        while self._tell() or not self._over:
            lead = self._current()
            left = max(0.0, lead.deadline - self._now()) if lead else 1.0
            self._await(lambda: self._due() or self._over, left)
        if self._error:
            self._call_handler("error", self._error)

    def _settle(self):
        """Wait until the handlers of a leadership that has ended have returned."""
        while self._lead and "lost" not in self._lead.told:
            self._await(lambda: "lost" in self._lead.told, 1.0)

    def _engine(self):
        rest, failures = 0.0, 0
        while self._held or not self._closing:
            try:
                self._pause(rest)
                rest, failures = self._turn(), 0
            except Exception as error:
                self._recover(error)
                lead = self._current()
                rest = min(0.1 * 2 ** failures, lead.third if lead else 5.0) * random.uniform(0.5, 1)
                failures = min(failures + 1, 6)
        self._settle()
        self._leave(None)
        with self._poked, self._poker:
            self._over = True
            self._ring()

    def _recover(self, error):
        state = _sqlstate(error)
        if not self._closing:
            log.warning("election %r, candidate %r: %s", self.election, self.candidate,
                        str(error) or repr(error))
        if state.startswith(_FATAL) and not self._closing:
            lacks = "the database lacks the extension (CREATE EXTENSION leader_election): "
            text = (lacks if state in ("3F000", "42883") else "") + str(error)
            self._error, self._closing = LeadershipError(text, state), "error"
        # 55P03: busy, 57014: cancelled. It did nothing, and the deadline decides.
        if not (self._current() and state in ("55P03", "57014")):
            if self._bound:                         # first tell: a closed socket gives it back
                self._lose("connection lost")
                self._settle()
            if self._bound or self._closing:
                self._held = None
            self._disconnect()
        self._ring()

    def _turn(self):
        """Make one call, if need be. Returns for how many seconds to rest then."""
        lead = self._current()
        if self._held and not lead:
            self._settle()
            self._leave(self._held)
            self._held = None
            self._await(lambda: self._closing, 1.0)     # a lone candidate does not spin
        if self._closing:
            return 0.0
        if not self._healthy():
            self._lose("unhealthy") if lead else self._leave(None)
            return 1.0
        grant = self._renew(lead) if lead else self._stand()
        self._held = grant or lead
        if lead and (not grant or grant.term != lead.term):
            self._lose("failover" if grant else "not renewed")
            self._settle()
            self._held, lead = grant, None
        if not lead and grant:
            self._begin(grant)
        elif lead and self._current():
            lead.deadline, lead.third = grant.deadline, grant.third
            lead.yielding = lead.yielding or grant.yielding
            self._ring()
        return grant.third if grant else self._interval

    def _healthy(self):
        try:
            return self._check()
        except Exception:
            log.exception("health check, election %r", self.election)
            return False

    def _ask(self, call, *values):
        """A call that answers with a grant: what remains counts from its sending."""
        sent, lead = self._now(), self._current()
        row = self._call(f"SELECT term, remaining_ms, yielding FROM leader_election.{call}", values,
                         min(self._call_timeout, lead.deadline - sent if lead else 1e9))
        lasts = int(row[1]) / 1000 * self._share if row else 0.0
        return row and _grant(int(row[0]), sent + lasts, lasts, row[2] == b"t")

    def _fetch(self, pgconn, encoding, sql, values, until):
        """The first row of the answer. After an error the call may go on at the server: then the
        connection is closed, and never used again."""
        texts = [None if v is None else str(v).encode(encoding) for v in values]
        pgconn.send_query_params(sql.encode(), texts)
        results = []
        while not results or results[-1] is not None:
            while pgconn.is_busy():
                self._await_socket(pgconn, until, 3 if pgconn.flush() else selectors.EVENT_READ)
                pgconn.consume_input()
            results.append(pgconn.get_result())
        if results[0].status == pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(results[0], encoding)
        return [results[0].get_value(0, i) for i in range(3)] if results[0].ntuples else None

    def _await_socket(self, pgconn, until, events):
        # close() waits for no campaign; but for a call that may have got us the lease elsewhere.
        if self._now() >= until or self._closing and self._bound and not self._held:
            raise TimeoutError("the server did not answer in time")
        with selectors.DefaultSelector() as selector:
            selector.register(self._poked, selectors.EVENT_READ)
            if pgconn:
                selector.register(pgconn.socket, events)
            ready = [key.fileobj for key, _ in selector.select(until - self._now())]
        if self._poked in ready:
            self._poked.recv(4096)

    def _pause(self, seconds):
        """Rest, with an eye on the connection: until there is something to do."""
        until, name = self._now() + seconds, json.dumps(self.election, ensure_ascii=False).encode()
        while not self._closing and not (self._held and not self._current()):
            if self._conn:
                self._conn.consume_input()
                if any([name in event.extra for event in iter(self._conn.notifies, None)]):
                    return
            if self._now() >= until:
                return
            self._await_socket(self._conn, until, selectors.EVENT_READ)

    def _connect(self):
        """By libpq's steps (the values of which are those of selectors' events), so that close()
        interrupts them. But looking up the host's name blocks."""
        until, target = self._now() + self._call_timeout, next(self._targets)
        self._conn = pq.PGconn.connect_start(psycopg.conninfo.make_conninfo(**target).encode())
        step = 0 if self._conn.status == pq.ConnStatus.BAD else selectors.EVENT_WRITE
        while step != pq.PollingStatus.OK:
            if step == pq.PollingStatus.FAILED:
                raise psycopg.OperationalError(pq.error_message(self._conn))
            self._await_socket(self._conn, until, step)
            step = self._conn.connect_poll()
        self._conn.nonblocking = 1

    def _disconnect(self):
        if self._conn:
            self._conn.finish()
        self._conn = None


class Leadership(_Engine):
    """A session candidate: a connection of its own, never a pool's.

    conninfo: libpq's connection string or URI ('': the PG* environment); several hosts are tried
    in turn. slice: how long one campaign waits, and so how soon a dead path is noticed.
    """

    _bound = True       # a closed connection gives the lease back
    # The server may end the session of a silent peer after 3 * floor(lease / 3) seconds, at least
    # 3, and another leads at once then. Half a lease is before that.
    _share = 0.5

    def __init__(self, conninfo, election, candidate=None, **options):
        super().__init__(conninfo, election, candidate, **options)
        self._interval = 0.0

    def _stand(self):
        """Joins first: so our place in line survives each campaign. Without auto_renew: the server
        could elect a follower that is cut off, or the session of a process that hangs, and would
        renew that lease. A time limit of the session's would end a campaign."""
        if not self._conn:
            self._connect()
            self._call("""SELECT leader_election.join($1, $2, rank => $3::pg_catalog.int4,
                    metadata => $4::pg_catalog.jsonb, auto_renew => false),
                pg_catalog.set_config('statement_timeout', '0', false),
                pg_catalog.set_config('idle_session_timeout', '0', false)""", self._me)
        row = self._call("CALL leader_election.campaign($1, $2, timeout => $3::pg_catalog.interval)",
                         (self.candidate, f"{self._slice} s"), self._slice + self._call_timeout)
        return self._renew(None) if row[0] else None

    def _renew(self, lead):
        return self._ask("renew($1)")

    def _leave(self, held):
        if held and self._conn:
            self._call("SELECT leader_election.leave($1)")
        self._disconnect()

    def _call(self, sql, values=(), seconds=None):
        until = self._now() + (seconds or self._call_timeout)
        return self._fetch(self._conn, "utf-8", sql, (self.election, *values), until)


class DetachedLeadership(_Engine):
    """A detached candidate: each call over any connection, also through PgBouncer.

    pool: a psycopg_pool.ConnectionPool. interval: how often one that does not lead asks. listen: a
    connection string for LISTEN, past any pooler; then a vacancy is noticed at once.
    """

    _bound, _share = False, 1.0

    def __init__(self, pool, election, candidate=None, **options):
        super().__init__(options.get("listen") or "", election, candidate, **options)
        self._pool, self._listen_at = pool, 0.0

    def _stand(self):
        if self._listen is not None and not self._conn and self._now() >= self._listen_at:
            self._listen_at = self._now() + 30.0        # the next try
            self._connect()
            self._fetch(self._conn, "utf-8", "LISTEN leadership_changed", (),
                        self._now() + self._call_timeout)
        return self._ask("acquire($1, $2, rank => $3::pg_catalog.int4, "
                         "metadata => $4::pg_catalog.jsonb)", *self._me)

    def _renew(self, lead):
        return self._ask("renew($1, $2::pg_catalog.int8)", lead.term)

    def _leave(self, held):
        if held:
            self._call("SELECT leader_election.release($1, $2)", [held.term])
            return
        self._disconnect()
        with contextlib.suppress(psycopg.Error, TimeoutError):  # it leads, by a lost answer
            self._call("SELECT leader_election.leave($1, $2)", [self.candidate])

    def _call(self, sql, values, seconds=None):
        until = self._now() + (seconds or self._call_timeout)
        conn = self._take(until)
        try:
            encoding = conn.info.encoding.replace("ascii", "utf-8")     # SQL_ASCII takes all
            return self._fetch(conn.pgconn, encoding, sql, (self.election, *values), until)
        except BaseException:
            conn.close()                        # never back into the pool
            raise
        finally:
            self._pool.putconn(conn)

    def _take(self, until):
        """A connection of the pool that the server has not closed, as far as we were told: after
        a restart the pool is full of those that it has, and each would cost us a back-off."""
        while True:
            try:
                conn = self._pool.getconn(max(0.0, until - self._now()))
            except psycopg.OperationalError:    # it does not tell why: try, for a clear error
                if not self._current() and not self._closing:
                    more = {"connect_timeout": max(2, round(self._call_timeout))}
                    psycopg.connect(self._pool.conninfo, **{**more, **self._pool.kwargs}).close()
                raise
            try:
                conn.pgconn.consume_input()
                return conn
            except psycopg.OperationalError:
                conn.close()
                self._pool.putconn(conn)


class _Local(_Candidate):
    """Without threads: handlers are called in the thread that causes the event."""

    _telling = False

    def _ring(self):
        super()._ring()
        if not self._telling:       # else a handler caused it, and the outer call goes on
            self._telling = True
            while self._tell():
                pass
            self._telling = False


class SoleLeadership(_Local):
    """For a laptop, or one instance without the extension: always leads, and issues no term: term
    is None, leads is True. fenced() refuses, unless unfenced: then it does nothing."""

    _started = False

    def start(self):
        self._started = True
        self._ring()
        return self

    def _tell(self):
        if self._started and (not self._lead or "lost" in self._lead.told):
            self._begin(_grant(None, float("inf")))
        return super()._tell()


class FakeLeadership(_Local):
    """For tests: the test says who leads, and moves the clock. fenced() asks no server."""

    def __init__(self, election="election", candidate=None, **options):
        super().__init__(election, candidate, **{**options, "unfenced": True})
        self._time, self._last = 0.0, 0

    def elect(self, term=None, lease=15.0):
        """Be elected in this term (default: the next one), for so many seconds; returns it."""
        self._lose("not renewed")
        self._last = self._last + 1 if term is None else term
        self._begin(_grant(self._last, self._time + lease))
        return self._last

    def lose(self, reason="connection lost"):
        self._lose(reason)

    def ask_yield(self):
        if self._lead:
            self._lead.yielding = True
            self._ring()

    def advance(self, seconds):
        """Move the clock; past the deadline the leadership has expired."""
        self._time += seconds
        self._ring()

    def _now(self):
        return self._time
