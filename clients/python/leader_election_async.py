"""
Stand for election in PostgreSQL, with the extension leader_election, asyncio and asyncpg.

    async with Leadership("postgresql:///app", "scheduler") as leadership:
        while True:
            term = await leadership.wait()           # until this instance leads
            while leadership.term == term:
                async with pool.acquire() as conn, conn.transaction():
                    await leadership.fenced(conn)    # its COMMIT fails unless we still lead
                    await do_one_piece_of_work(conn)

Leadership          a session of its own; takeover in milliseconds when its process dies
DetachedLeadership  calls over the application's pool, also through PgBouncer
SoleLeadership      for a laptop: always leads, asks nobody
FakeLeadership      for tests: the test elects, and moves the clock

Invariant: a term is never given out after the deadline, which is counted from the *sending* of
the last answered renewal; every "elected" has exactly one "lost"; "lost" is reported, and its
handlers have returned, before the lease is given back.

While the event loop is blocked, nothing is renewed and nothing is told; `term` is None all the
same once the deadline is over. The clock goes on while the machine sleeps where the system has
such a clock (Linux). Even so a process can be paused between the look at `term` and its next
write: fence what must not be late.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import re
import secrets
import socket
import time
from collections import namedtuple
from urllib.parse import urlsplit, urlunsplit

import asyncpg

log = logging.getLogger("leader_election")
LeadershipError = asyncpg.PostgresError     # what wait() raises and on_error is told: see sqlstate

# A class of SQLSTATEs, or one: the same call would be answered the same for ever.
_FATAL = ("28", "3D000", "3F000", "42883", "42P01", "42501", "22023", "0A000", "25001", "LE003")
_BUSY = ("55P03", "57014")      # the call did nothing, and its connection is good

_Grant = namedtuple("_Grant", "term deadline third yielding")


class NotLeader(Exception):
    """fenced() was called, and this instance does not lead."""


def _clock():
    """Seconds; goes on while the machine sleeps, where the system has such a clock."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


def _fill(sql, *values):
    """The values in the places of $1, $2...: a statement with arguments takes two steps, which a
    transaction pooler may send to two sessions."""
    def literal(place):     # right whatever standard_conforming_strings is
        value = values[int(place[1]) - 1]
        return "NULL" if value is None else " E'" + re.sub(r"(['\\])", r"\1\1", str(value)) + "'"
    return re.sub(r"\$(\d)", literal, sql)


def _targets(where):
    """asyncpg's arguments for each host. It would give all its time to a dead first one, and
    would stay with a standby."""
    if isinstance(where, str) and where:
        parts = urlsplit(where)
        login, at, hosts = parts.netloc.rpartition("@")
        return [{"dsn": urlunsplit(parts._replace(netloc=login + at + host))}
                for host in hosts.split(",")]
    given = {"host": os.environ.get("PGHOST", ""), "port": os.environ.get("PGPORT", ""),
             **(where or {})}
    hosts, ports = (value if isinstance(value, (list, tuple)) else str(value).split(",")
                    for value in (given["host"], given["port"]))
    return [{**given, "host": host or None, "port": int(port) if port else None}
            for host, port in zip(hosts, itertools.cycle(ports))]


async def _called(function, *values):
    """What the application's function, or coroutine function, returns. (Not awaited: a task.)"""
    answer = function(*values)
    return await answer if asyncio.iscoroutine(answer) else answer


class _Candidate:
    """What all four have in common. One task makes all calls, one after the other. `_lead` is what
    the application knows; it ends by the clock, too. `_held` is what the server may take us to
    have. What is held, but not led, is given back.

    health_check: a function or coroutine function; unless it says true, we do not stand, and the
    lease is not renewed. call_timeout: how many seconds a call may take. Handlers are functions or
    coroutine functions, called one at a time: start the work in on_elected, do not await its end.
    """

    _bound = False      # leadership ends with the connection
    _share = 1.0        # of what remains of the lease: our deadline
    _rest = 0.0         # how long a follower rests
    _unfenced = False   # fenced() passes, and fences nothing
    _now = staticmethod(_clock)

    def __init__(self, election="election", candidate=None, *, rank=None, metadata=None,
                 health_check=None, call_timeout=5.0, on_elected=None, on_lost=None,
                 on_yield=None, on_error=None):
        self.election = election
        self.candidate = candidate or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.changes = 0                        # elections of this client
        self._me = (election, self.candidate, rank, metadata and json.dumps(metadata))
        self._check, self._call_timeout = health_check or (lambda: True), call_timeout
        self._handlers = {"elected": on_elected, "lost": on_lost, "yield": on_yield,
                          "error": on_error}
        self._events = []                       # whose handlers have not been called
        self._asked = self._closing = False
        self._lead = self._held = self._error = None
        self._task = self._teller = self._timer = self._changed = self._closed = None

    @property
    def leads(self):
        return self._lead is not None and self._now() < self._lead.deadline

    @property
    def term(self):
        """The term in which this instance leads now, else None. No I/O."""
        return self._lead.term if self.leads else None

    async def start(self):
        if not self._task and not self._closing:
            self._closed = asyncio.get_running_loop().create_future()
            self._task = asyncio.ensure_future(self._live())
        return self

    async def wait(self, timeout=None):
        """Until this instance leads: the term, or None after timeout seconds or close()."""
        end = time.monotonic() + (1e9 if timeout is None else timeout)
        while not (self.leads or self._closing) and time.monotonic() < end:
            await asyncio.wait([self._change()], timeout=end - time.monotonic())
        if self._error:
            raise self._error
        return self.term

    async def fenced(self, connection):
        """Fence the transaction that is open on this asyncpg connection: from here on its COMMIT
        fails with SQLSTATE LE002 unless this very term still leads then. Raises NotLeader, without
        asking the server, if this instance does not lead; LE001 if the server says so."""
        term = self.term
        if not self.leads:
            raise NotLeader(f"{self.candidate!r} does not lead election {self.election!r}")
        if not self._unfenced:
            if term is None or not connection.is_in_transaction():
                raise RuntimeError("fenced() would fence nothing: no transaction, or no term")
            await connection.execute(
                _fill("SELECT leader_election.assert_leader($1, $2)", self.election, term))

    async def resign(self):
        """Give up now, and stand again after a second. Does nothing if we do not lead, and waits
        for nothing: the lease is given back when the handler of "lost" has returned."""
        self._lose("resigned")

    async def close(self):
        """Give up, withdraw, end; at most call_timeout seconds. Others are elected at once."""
        self._shut("closed")
        left = [task for task in (self._task, self._teller) if task and not task.done()]
        if left and asyncio.current_task() is not self._teller:     # a handler: we wait for it
            await asyncio.wait(left, timeout=self._call_timeout)
            left[0].cancel()        # a call over a dead path

    async def __aenter__(self):
        return await self.start()

    async def __aexit__(self, *_):
        await self.close()

    async def _live(self):
        rest = failures = 0
        changed = self._change()
        while self._held or not self._closing:
            try:
                await asyncio.wait([changed], timeout=rest)
                changed = self._change()        # also by what happens in this turn
                rest, failures = await self._turn(), 0
            except asyncio.CancelledError:      # the loop is being shut down: close in order
                self._shut("closed")
            except Exception as error:
                self._recover(error)
                longest = self._lead.third if self._lead else 5.0
                rest = min(longest, 0.1 * 2 ** failures) * (1 - secrets.randbelow(500) / 1000)
                failures = min(failures + 1, 6)
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await self._leave(None)
        await self._settle()

    async def _turn(self):
        """Make one call, if need be. Returns for how many seconds to rest then."""
        lead = self._lead
        if not lead:
            await self._settle()                # first the handlers
        if self._held and not lead:
            held, self._held = self._held, None
            await self._leave(held)
            await asyncio.wait([self._closed], timeout=1.0)     # a lone candidate does not spin
        if not await self._healthy():
            self._lose("unhealthy")
            if not self._held:
                await self._leave(None)
            return 1.0
        if self._closing or self._lead is not lead:
            return 0.0
        grant = await (self._renew(lead) if lead else self._stand())
        self._held = grant or lead
        self._watch()       # a loop that was blocked may come here before the timer does
        if self._lead is not lead:
            return 0.0
        if lead and (not grant or grant.term != lead.term):
            self._lose("failover" if grant else "not renewed")
            await self._settle()
        if grant:
            self._extend(grant)
        return self._lead.third if self._lead else 0.0 if self._held else self._rest

    async def _healthy(self):
        try:
            return await self._within(_called(self._check), self._call_timeout)
        except Exception:
            log.exception("health check, election %r", self.election)

    def _recover(self, error):
        state = getattr(error, "sqlstate", None) or ""
        if not self._closing:
            log.warning("election %r, candidate %r: %r", self.election, self.candidate, error)
        if state in ("3F000", "42883"):
            error.hint = "this database lacks the extension: CREATE EXTENSION leader_election"
        if state.startswith(_FATAL):
            self._shut("error", error)
        if self._bound and not (self._lead and state in _BUSY):
            self._lose("connection lost")

    async def _within(self, awaitable, seconds, cut=None):
        """Its result, or an error after so many seconds; then it is cut (cancelled, by default)."""
        task = asyncio.ensure_future(awaitable)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())   # seen
        # close() waits for no campaign; but for a call that may have got us the lease elsewhere.
        ends = [task, self._closed] if self._bound and not self._held else [task]
        try:
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled():
                return task.result()
            raise TimeoutError("no answer in time")
        finally:
            if not task.done():
                (cut or task.cancel)()

    async def _ask(self, call, *values):
        """A call that answers with a grant: what remains counts from its sending."""
        sent, lead = self._now(), self._lead
        seconds = min(self._call_timeout, lead.deadline - sent if lead else self._call_timeout)
        row = await self._call(f"SELECT term, remaining_ms, yielding FROM {call}", *values,
                               seconds=seconds)
        lasts = int(row[1]) / 1000 * self._share if row else 0.0
        return row and _Grant(int(row[0]), sent + lasts, lasts / 3, row[2] in (True, "t"))

    def _extend(self, grant):
        """Go on leading, or begin to. Not if the answer came too late: then it is given back."""
        if self._closing or self._now() >= grant.deadline:
            return
        begun, self._lead = not self._lead, grant
        if begun:
            self.changes += 1
            self._asked = False
            self._tell("elected", grant.term)
        self._watch()
        if grant.yielding and not self._asked:
            self._asked = True
            if self._handlers["yield"]:
                self._tell("yield", grant.term)
            else:
                self._lose("yielded")

    def _watch(self):
        """End the leadership at its deadline, now or by a timer."""
        if self._timer:
            self._timer.cancel()
        if not self.leads:
            self._lose("expired")
        else:       # a second at most: the loop's clock stands still while the machine sleeps
            left = min(1.0, self._lead.deadline - self._now())
            self._timer = asyncio.get_running_loop().call_later(left, self._watch)

    def _lose(self, reason):
        """The one place where a leadership ends: the term, then the handlers, then the lease."""
        if self._lead:
            self._lead = None
            self._tell("lost", "yielded" if self._asked and reason == "resigned" else reason)

    def _shut(self, reason, error=None):
        """End for good."""
        if not self._closing:
            self._closing, self._error = True, error
            self._lose(reason)
            self._tell("error" if error else "closed", error)
            if self._closed:
                self._closed.set_result(None)

    def _tell(self, event, value):
        self._wake()
        if self._handlers.get(event):
            self._events.append((event, value))
            if not self._teller or self._teller.done():
                self._teller = asyncio.ensure_future(self._tell_all())

    async def _tell_all(self):
        """A task of its own, so that a slow handler holds up no renewal."""
        while self._events:
            event, value = self._events.pop(0)
            try:
                await _called(self._handlers[event], value)
            except (Exception, asyncio.CancelledError):
                log.exception("handler of %r, election %r", event, self.election)

    async def _settle(self):
        """Until the handlers of all that has happened have returned."""
        teller = self._teller
        while teller and not teller.done() and teller is not asyncio.current_task():
            await asyncio.wait([teller], timeout=self._call_timeout)
            if not teller.done():
                log.warning("election %r: a handler has not returned yet", self.election)

    def _change(self):
        """A future that is done when something changes."""
        if not self._changed or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def _wake(self):
        if self._changed and not self._changed.done():
            self._changed.set_result(None)


class Leadership(_Candidate):
    """A session candidate: a connection of its own, never a pool's.

    where: a DSN, or a dict of asyncpg.connect()'s arguments ("": the PG* environment); several
    hosts are tried in turn. slice: how long one campaign waits, and so how soon a dead path is
    noticed.

    A call that fails may go on at the server: a campaign would be elected there, and nobody would
    know. The connection is destroyed then, and after each leadership, and never used again. (To
    cancel a call, asyncpg asks the server over another connection: over a cut path the campaign
    goes on. asyncpg has no keepalives either: our timers, and slices, take their place.)
    """

    _bound = True
    # The server may end the session of a silent peer after 3 * floor(lease / 3) seconds, at least
    # 3, and another leads at once then. Half a lease is before that.
    _share = 0.5

    def __init__(self, where, election, candidate=None, *, slice=5.0, **options):
        super().__init__(election, candidate, **options)
        self._hosts = itertools.cycle(_targets(where))
        self._slice = slice
        self._conn = None

    async def _stand(self):
        if not self._conn:
            await self._connect()
        sql = "CALL leader_election.campaign($1, $2, timeout => pg_catalog.make_interval(secs => $3))"
        row = await self._call(sql, *self._me[:2], self._slice, seconds=self._slice + self._call_timeout)
        return row[0] and await self._renew(None)

    async def _connect(self):
        """To the next host, and stand there: so our place in line survives each campaign. A standby
        refuses it."""
        arguments = {"timeout": self._call_timeout, **next(self._hosts), "command_timeout": None}
        self._conn = await self._within(asyncpg.connect(**arguments), self._call_timeout)
        self._conn.add_termination_listener(
            lambda conn: conn is self._conn and self._lose("connection lost"))
        # Without auto_renew: the server could elect a follower that is cut off, or a process that
        # hangs, and would renew that lease. A timeout of the session's would end a campaign.
        await self._call(
            "SELECT leader_election.join($1, $2, rank => $3::pg_catalog.int4,"
            " metadata => $4::pg_catalog.jsonb, auto_renew => false),"
            " pg_catalog.set_config('statement_timeout', '0', false),"
            " pg_catalog.set_config('idle_session_timeout', '0', false)", *self._me)

    async def _renew(self, lead):
        return await self._ask("leader_election.renew($1)", self.election)

    async def _call(self, sql, *values, seconds=None):
        call = self._conn.fetchrow(sql, *values)
        try:
            return await self._within(call, seconds or self._call_timeout, cut=lambda: None)
        except BaseException:
            if not self._held:      # else not before "lost" was told
                self._disconnect()
            raise

    async def _leave(self, held):
        if self._conn:              # fails at once if a call is under way still
            await self._call("SELECT leader_election.leave($1)", self.election)
            self._disconnect()

    def _disconnect(self):
        conn, self._conn = self._conn, None
        conn.terminate()


class DetachedLeadership(_Candidate):
    """A detached candidate: each call over any connection, also through PgBouncer.

    pool: an asyncpg.Pool, or a callable that returns an async context manager of an asyncpg
    connection. interval: how often one that does not lead asks. listen: a DSN or dict for LISTEN,
    past any pooler; then a vacancy is noticed at once.
    """

    def __init__(self, pool, election, candidate=None, *, interval=1.0, listen=None, **options):
        super().__init__(election, candidate, **options)
        self._acquire = getattr(pool, "acquire", pool)
        self._rest = interval
        self._hosts = [] if listen is None else _targets(listen)

    async def _live(self):
        listener = asyncio.ensure_future(self._listen())
        await super()._live()
        listener.cancel()

    async def _stand(self):
        return await self._ask("leader_election.acquire($1, $2, rank => $3::pg_catalog.int4,"
                               " metadata => $4::pg_catalog.jsonb)", *self._me)

    async def _renew(self, lead):
        return await self._ask("leader_election.renew($1, $2)", self.election, lead.term)

    async def _leave(self, held):
        call = "SELECT leader_election.release($1, $2)" if held else "SELECT leader_election.leave($1, $2)"
        with contextlib.suppress(asyncpg.PostgresError):    # it leads, by an answer that was lost
            await self._call(call, self.election, held.term if held else self.candidate)

    async def _call(self, sql, *values, seconds=None):
        """The first row of the answer, as text. The time that it takes to get a connection counts.
        COPY, because it is the one way in which asyncpg reads rows without preparing."""
        conns, answer = [], []

        async def collect(data):
            answer.append(data)

        async def call():
            async with self._acquire() as conn:
                conns.append(conn)      # asyncpg's own time limit is out of the way of ours
                await conn.copy_from_query(_fill(sql, *values), output=collect, timeout=86400)
        task = asyncio.ensure_future(call())
        await self._within(task, seconds or self._call_timeout,
                           cut=lambda: conns[0].terminate() if conns else task.cancel())
        return b"".join(answer).decode().rstrip("\n").split("\t") if answer else None

    async def _listen(self):
        """Wake the follower up when something has changed; over a connection of its own."""
        limits = {"timeout": self._call_timeout, "command_timeout": self._call_timeout}
        for host in itertools.cycle(self._hosts):
            try:
                conn = await asyncpg.connect(**{**host, **limits})
                try:
                    await conn.add_listener("leadership_changed", self._heard)
                    self._wake()                    # something may have changed before
                    while True:                     # a cut path is told by silence only
                        await asyncio.sleep(15.0)
                        await conn.execute("SELECT 1")
                finally:
                    conn.terminate()
            except Exception as error:
                log.warning("election %r: cannot listen: %r", self.election, error)
            await asyncio.sleep(1.0)

    def _heard(self, _conn, _pid, _channel, payload):
        if not self._lead and json.dumps(self.election, ensure_ascii=False) in payload:
            self._wake()


class SoleLeadership(_Candidate):
    """For a laptop, or one instance without the extension: always leads, and issues no term: term
    is None, leads is True. fenced() refuses, unless unfenced: then it does nothing."""

    def __init__(self, election="election", candidate=None, *, unfenced=False, **options):
        super().__init__(election, candidate, **options)
        self._unfenced = unfenced

    async def start(self):
        self._extend(_Grant(None, float("inf"), 0.0, False))
        return self

    async def resign(self):
        self._lose("resigned")
        await self.start()


class FakeLeadership(_Candidate):
    """For tests: the test says who leads, and moves the clock. fenced() asks no server. When a
    method returns, so have the handlers."""

    _unfenced = True

    def __init__(self, election="election", candidate=None, **options):
        super().__init__(election, candidate, **options)
        self._time, self._last = 0.0, 0
        self._now = lambda: self._time

    async def start(self):
        return self

    async def elect(self, term=None, lease=15.0):
        """Be elected in this term (default: the next one), for so many seconds; returns it."""
        self._lose("not renewed")
        self._last = self._last + 1 if term is None else term
        self._extend(_Grant(self._last, self._time + lease, 0.0, False))
        await self._settle()
        return self._last

    async def lose(self, reason="connection lost"):
        self._lose(reason)
        await self._settle()

    async def resign(self):
        await self.lose("resigned")

    async def ask_yield(self):
        if self._lead:
            self._extend(self._lead._replace(yielding=True))
        await self._settle()

    async def advance(self, seconds):
        """Move the clock; past the deadline the leadership has expired."""
        self._time += seconds
        self._watch()
        await self._settle()
