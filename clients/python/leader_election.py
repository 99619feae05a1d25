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
import selectors
import socket
import threading
import time
import types
import uuid

import psycopg

log = logging.getLogger("leader_election")
LeadershipError = psycopg.Error     # what wait() raises, and on_error is told: see sqlstate

# A class of SQLSTATEs, or one: the same call would be answered the same for ever.
_FATAL = ("28", "3D000", "3F000", "42883", "42P01", "42501", "22023", "0A000", "25001", "LE003")
# libpq tells no SQLSTATE of a refused connection, only the server's text.
_REFUSED = {"28P01": "password authentication failed|no password supplied|SASL authentication",
            "28000": r'pg_hba\.conf|role ".*" does not exist|not permitted to log in|no such user',
            "3D000": r'database ".*" does not|no such database', "42501": "permission denied for"}
# Without auto_renew: the server could elect a follower that is cut off, or the session of a process
# that hangs, and would renew that lease. A time limit of the session's would end a campaign.
_JOIN = """SELECT leader_election.join($1, $2, rank => $3::pg_catalog.int4,
        metadata => $4::pg_catalog.jsonb, auto_renew => false),
    pg_catalog.set_config('statement_timeout', '0', false),
    pg_catalog.set_config('idle_session_timeout', '0', false)"""
_ASSERT = "SELECT leader_election.assert_leader(%s, %s)"
_CAMPAIGN = "CALL leader_election.campaign($1, $2, timeout => $3::pg_catalog.interval)"
_ACQUIRE = """SELECT term, remaining_ms, yielding FROM leader_election.acquire($1, $2,
    rank => $3::pg_catalog.int4, metadata => $4::pg_catalog.jsonb, request => $5::pg_catalog.uuid)"""


class NotLeader(Exception):
    """fenced() was called, and this instance does not lead."""


def _grant(term, sent, lasts=0.0, yielding=False, told=()):
    """A lease, and if we take it, a leadership. ends: the reasons for its end, of which the first
    counts; told: the events whose handlers have returned."""
    return types.SimpleNamespace(term=term, deadline=sent + lasts, third=lasts / 3, ends=[],
                                 yielding=yielding, told=list(told), pid=os.getpid())


def _hosts(where, name, seconds):
    """libpq's words for each host, again and again: one time limit for all of them would be used
    up by a dead first one."""
    given = {"fallback_application_name": name, "connect_timeout": seconds, "keepalives_idle": 5,
             "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10000,
             **psycopg.conninfo.conninfo_to_dict(where)}
    lists = {key: str(given.get(key) or os.environ.get(f"PG{key.upper()}", "")).split(",")
             for key in ("host", "hostaddr", "port")}
    return itertools.cycle([{**given, **{key: v[i % len(v)] or None for key, v in lists.items()}}
                            for i in range(max(map(len, lists.values())))])


class _Candidate:
    """What all four have in common, also their options, so that one can stand in for another.

    _lead is the last leadership, as the application knows it; it ends by the clock, too. _held is
    what the server may take us to have. What is held, but not led, is given back; when all have
    been told, and before we lead again.

    health_check: a callable; unless it says true, we do not stand, and the lease is not renewed.
    call_timeout: how many seconds a call may take. Handlers are called one at a time: stop the
    work in on_lost, but do not do it in on_elected.
    """

    def __init__(self, election="election", candidate=None, *, rank=None, metadata=None,
                 health_check=None, call_timeout=5.0, slice=5.0, interval=1.0, listen=None,
                 unfenced=False, on_elected=None, on_lost=None, on_yield=None, on_error=None):
        self.election, self.changes = election, 0       # changes: how often we were elected
        self.candidate = candidate or f"{socket.gethostname()}-{os.getpid()}-{random.random():.9f}"
        self._me = (self.candidate, rank, None if metadata is None else json.dumps(metadata))
        self._limit, self._slice, self._rest, self._listen = call_timeout, slice, interval, listen
        self._on = {"elected": on_elected, "lost": on_lost, "error": on_error,
                    "health": health_check, "yield": on_yield or (lambda term: self.resign())}
        self._lead, self._held, self._conn = _grant(None, 0.0, told=("elected", "lost")), None, None
        self._closing = self._error = None      # why we end for good: "closed", or an "error"
        self._threads, self._bells, self._telling, self._unfenced = [], [], False, unfenced
        self._hosts = _hosts(listen or "", self.candidate, max(2, round(call_timeout)))

    def _now(self, boottime=getattr(time, "CLOCK_BOOTTIME", None)):
        return time.clock_gettime(boottime) if boottime else time.monotonic()

    def _current(self):
        """Our leadership, unless it has ended. The first who sees that it has, ends it for good,
        so that an answer that comes too late revives nothing."""
        lead = self._lead
        if not lead.ends and (self._closing or self._now() >= lead.deadline):
            lead.ends.append(self._closing or "expired")
        return None if lead.ends or lead.pid != os.getpid() else lead

    @property
    def leads(self):
        return self._current() is not None

    @property
    def term(self):
        """The term in which this instance leads now, else None. Does not block."""
        return getattr(self._current(), "term", None)

    def start(self):
        if hasattr(self, "_stand") and not self._threads and not self._closing:
            # By these whoever rings wakes the engine, which waits for an answer.
            self._poked, self._poker = socket.socketpair()
            self._poker.setblocking(False)
            for target in (self._engine, self._teller):
                self._threads.append(threading.Thread(target=target, daemon=True))
                self._threads[-1].start()
        self._ring()
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
                cursor.execute(_ASSERT, (self.election, lead.term))

    def set_metadata(self, metadata):
        """What view status is to show of us: from the next renewal on, or when we lead next."""
        self._me = (*self._me[:2], json.dumps(metadata))

    def resign(self):
        """Give up now, and stand again after a second. Does nothing if we do not lead, and waits
        for nothing: the lease is given back when the handler of "lost" has returned."""
        self._lose("yielded" if self._lead.yielding else "resigned")

    def close(self):
        """Give up, withdraw, end; at most call_timeout seconds. Others are elected at once."""
        self._closing = self._closing or "closed"
        self._ring()
        if self._threads and threading.current_thread() not in self._threads:   # they wait for it
            self._threads[-1].join(self._limit)     # the last to end

    __enter__ = start

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
        if self._threads:
            with contextlib.suppress(OSError):      # full: it is awake; closed: it has ended
                self._poker.send(b"!")
        elif not self._telling:         # Sole and Fake: in the thread that caused what is told
            self._telling = True
            while self._tell():
                pass
            self._telling = False

    def _extend(self, lead, grant):
        """Go on leading, or begin to (lead is None), unless the answer came too late."""
        if lead and self._current():
            lead.deadline, lead.third, lead.yielding = grant.deadline, grant.third, grant.yielding
        elif not lead and self._now() < grant.deadline and not self._closing:
            self._lead, self.changes = grant, self.changes + 1
        self._ring()

    def _lose(self, reason="connection lost"):
        """End the leadership, if there is one: the term, then the handlers, then the lease."""
        if self.leads:
            self._lead.ends.append(reason)
        self._ring()

    def _tell(self):
        """Call the handler that is due, if one is: then true."""
        leads, lead = self.leads, self._lead
        due = {"elected": [lead.term], "yield": [lead.term] if leads and lead.yielding else [],
               "lost": lead.ends[:1], "error": [self._error] if lead.ends and self._error else []}
        event = next((event for event in due if due[event] and event not in lead.told), None)
        if event:
            self._run(event, due[event])
            lead.told.append(event)
            self._ring()
        return event

    def _run(self, name, values=()):
        """Call a function of the application's: what it returns, or None if it fails."""
        try:
            return self._on[name](*values) if self._on[name] else True
        except (Exception, SystemExit):
            log.exception("%r of election %r", name, self.election)

    def _teller(self):
        while self._tell() or self._poked.fileno() >= 0:        # the engine closes it
            left = self._lead.deadline - self._now() if self.leads else 1.0
            self._await(lambda: self._tell() or self._poked.fileno() < 0, left)

    def _engine(self):
        rest, pause = 0.0, 0.05
        while self._held or not self._closing:
            try:
                self._pause(rest)
                rest, pause = self._turn(), 0.05
            except Exception as error:
                self._recover(error)
                # Often while we lead: a pool may hand out one broken connection after the other.
                pause = min(2 * pause, self._lead.third / 8 if self.leads else 5.0)
                rest = pause * random.uniform(0.5, 1.0)
        with self._poked, self._poker:
            self._leave(None)
            self._conn = self._conn and self._conn.close()
        self._ring()

    def _recover(self, error):
        refusals = (state for state, text in _REFUSED.items() if re.search(text, str(error)))
        error.sqlstate = state = getattr(error, "sqlstate", None) or next(refusals, "")
        if state in ("3F000", "42883"):
            error.args = (f"no extension, CREATE EXTENSION leader_election: {error}",)
        if not self._closing:
            log.warning("election %r, %r: %r", self.election, self.candidate, error)
            if state.startswith(_FATAL):
                self._error, self._closing = error, "error"
        # 55P03: busy, 57014: cancelled. It did nothing, and the deadline decides.
        if self._closing or self._bound and not (self.leads and state in ("55P03", "57014")):
            self._lose("connection lost")
        if not (self._bound and self._held):    # else first tell: a closed socket gives it back
            self._conn = self._conn and self._conn.close()

    def _turn(self):
        """Make one call, if need be. Returns for how many seconds to rest then."""
        lead = self._current()
        if self._held and not lead:
            self._await(lambda: "lost" in self._lead.told, 1e9)
            self._leave(self._held)
            self._held = None
            # Others first, and a lone candidate does not spin.
            self._await(lambda: self._closing or "connection lost" in self._lead.ends, 1.0)
            return 0.0
        if not self._run("health"):
            self._lose("unhealthy") if lead else self._leave(None)
            return 1.0
        grant = self._ask(self._renewal, lead.term, self._me[2]) if lead else self._stand()
        if lead and (not grant or grant.term != lead.term):
            self._lose("failover" if grant else "not renewed")
            self._await(lambda: "lost" in self._lead.told, 1e9)
            lead = None
        self._held = grant
        if grant:
            self._extend(lead, grant)
        return grant.third if grant else self._rest

    def _ask(self, sql, *values):
        """A call that answers with a grant: what remains counts from its sending."""
        sent, row = self._now(), self._call(sql, *values)
        return row and _grant(int(row[0]), sent, int(row[1]) / 1000, row[2] == "t")

    def _until(self, more=0.0):
        """The time limit of a call that begins now. A renewal is of no use after the deadline."""
        return min(self._now() + self._limit + more, self._lead.deadline if self.leads else 1e99)

    def _fetch(self, conn, until, sql, *values):
        """The first row of the answer. After an error the call may go on at the server: then the
        connection is closed, and never used again."""
        encoding = conn.info.encoding.replace("ascii", "utf-8")     # SQL_ASCII: as it is
        texts = [None if v is None else str(v).encode(encoding) for v in values]
        conn.pgconn.send_query_params(sql.encode(), texts)
        results = []
        while None not in results:
            while conn.pgconn.is_busy():
                self._read(conn, until)
            results.append(conn.pgconn.get_result())
        if results[0].status == psycopg.pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(results[0], encoding)
        row = [results[0].get_value(0, i) for i in range(results[0].nfields)]
        return [(v or b"").decode() for v in row] if results[0].ntuples else None

    def _read(self, conn, until):
        """Wait for what comes over the connection, or for somebody who rings."""
        # close() waits for no campaign; but for a call over the pool, which may get us the lease.
        if self._now() >= until or self._closing and conn is self._conn and not self._held:
            raise TimeoutError("the server did not answer in time")
        with selectors.DefaultSelector() as selector:
            selector.register(self._poked, selectors.EVENT_READ, lambda: self._poked.recv(4096))
            if conn:        # 1: to read, 2: to write, if not all was sent
                selector.register(conn, 1 + 2 * conn.pgconn.flush(), conn.pgconn.consume_input)
            for key, _ in selector.select(min(1.0, until - self._now())):
                key.data()

    def _pause(self, seconds):
        """Rest, with an eye on the connection: until there is something to do, or news."""
        until, name = self._now() + seconds, json.dumps(self.election, ensure_ascii=False).encode()
        heard = []
        with contextlib.suppress(TimeoutError):
            while bool(self._held) == self.leads and not any(name in n.extra for n in heard):
                self._read(self._conn, until)
                heard = list(iter(self._conn.pgconn.notifies, None)) if self._conn else []


class Leadership(_Candidate):
    """A session candidate: a connection of its own, never a pool's.

    where: libpq's connection string or URI ('': the PG* environment); several hosts are tried in
    turn. slice: how long one campaign waits, and so how soon a dead path is noticed.
    """

    _bound = True       # a closed connection gives the lease back
    # Half: the server may end the session of a silent peer after 3 * floor(lease / 3) seconds, at
    # least 3, and another leads at once then.
    _renewal = """SELECT term, remaining_ms / 2, yielding FROM leader_election.renew($1,
        metadata => $3::pg_catalog.jsonb) WHERE term = $2"""

    def __init__(self, where, election, candidate=None, **options):
        super().__init__(election, candidate, **{**options, "listen": where, "interval": 0.0})

    def _stand(self):
        """Joins first: so our place in line survives each campaign. A standby refuses it."""
        if not self._conn:
            self._conn = psycopg.connect(**next(self._hosts), autocommit=True)
            self._call(_JOIN, *self._me)
        row = self._call(_CAMPAIGN, self.candidate, f"{self._slice} s", more=self._slice)
        return self._ask(self._renewal, row[0], self._me[2]) if row[0] else None

    def _leave(self, held):
        with contextlib.suppress(psycopg.Error, TimeoutError):  # then the end of the session does
            if held:
                self._call("SELECT leader_election.leave($1)")
        self._conn = self._conn and self._conn.close()

    def _call(self, sql, *values, more=0.0):
        return self._fetch(self._conn, self._until(more), sql, self.election, *values)


class DetachedLeadership(_Candidate):
    """A detached candidate: each call over any connection, also through PgBouncer.

    pool: a psycopg_pool.ConnectionPool. interval: how often one that does not lead asks. listen: a
    connection string for LISTEN, past any pooler; then a vacancy is noticed at once.
    """

    _bound = False
    _renewal = """SELECT term, remaining_ms, yielding FROM leader_election.renew($1, $2,
        metadata => $3::pg_catalog.jsonb)"""

    def __init__(self, pool, election, candidate=None, **options):
        super().__init__(election, candidate, **options)
        self._pool, self._listen_at = pool, 1e99 if self._listen is None else 0.0
        self._request = None    # the same until it is granted: no grant is lost with its answer

    def _stand(self):
        self._request = self._request or uuid.uuid4()   # not before a fork
        grant = self._ask(_ACQUIRE, *self._me, self._request)
        if grant:
            self._request = None
        elif not self._conn and self._now() >= self._listen_at:
            self._listen_at = self._now() + 30.0        # if that path is cut, we still ask often
            self._conn = psycopg.connect(**next(self._hosts), autocommit=True)
            self._fetch(self._conn, self._until(), "LISTEN leadership_changed")
        return grant

    def _leave(self, held):
        if held and self._now() < held.deadline:
            self._call("SELECT leader_election.release($1, $2)", held.term)
        elif not held:
            with contextlib.suppress(psycopg.Error, TimeoutError):  # it leads, by a lost answer
                self._call("SELECT leader_election.leave($1, $2)", self.candidate)

    def _call(self, sql, *values):
        pool, until = self._pool, self._until()
        try:
            conn = pool.getconn(max(0.0, until - self._now()))
        except psycopg.OperationalError:    # it does not tell why: try, for a clear error
            if not self.leads and not self._closing:
                psycopg.connect(pool.conninfo, **{"connect_timeout": 2, **pool.kwargs}).close()
            raise
        try:
            return self._fetch(conn, until, sql, self.election, *values)
        finally:
            if conn.info.transaction_status:    # not idle: never back into the pool
                conn.close()
            pool.putconn(conn)


class SoleLeadership(_Candidate):
    """For a laptop, or one instance without the extension: always leads, and issues no term: term
    is None, leads is True. fenced() refuses, unless unfenced: then it does nothing."""

    def _tell(self):
        if "lost" in self._lead.told:
            self._extend(None, _grant(None, float("inf")))
        return super()._tell()


class FakeLeadership(_Candidate):
    """For tests: the test says who leads, and moves the clock. fenced() asks no server."""

    def __init__(self, election="election", candidate=None, **options):
        super().__init__(election, candidate, **{**options, "unfenced": True})
        self._time, self._last = 0.0, 0
        self._now = lambda: self._time

    lose = _Candidate._lose

    def elect(self, term=None, lease=15.0):
        """Be elected in this term (default: the next one), for so many seconds; returns it."""
        self._lose("not renewed")
        self._last = self._last + 1 if term is None else term
        self._extend(None, _grant(self._last, self._time, lease))
        return self._last

    def ask_yield(self):
        self._lead.yielding = True
        self._ring()

    def advance(self, seconds):
        """Move the clock; past the deadline the leadership has expired."""
        self._time += seconds
        self._ring()
