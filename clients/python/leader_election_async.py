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
import random
import re
import socket
import time
import uuid
from collections import namedtuple

import asyncpg

log = logging.getLogger("leader_election")
LeadershipError = asyncpg.PostgresError     # what wait() raises, and on_error is told: see sqlstate

# A class of SQLSTATEs, or one: the same call would be answered the same for ever.
_FATAL = ("28", "3D000", "3F000", "42883", "42P01", "42501", "22023", "0A000", "25001", "LE003")
# Without auto_renew: the server could elect a follower that is cut off, or the session of a process
# that hangs, and would renew that lease. A time limit of the session's would end a campaign.
_JOIN = """SELECT leader_election.join($1, $2, rank => $3::pg_catalog.int4,
        metadata => $4::pg_catalog.jsonb, auto_renew => false),
    pg_catalog.set_config('statement_timeout', '0', false),
    pg_catalog.set_config('idle_session_timeout', '0', false)"""
_CAMPAIGN = "CALL leader_election.campaign($1, $2, timeout => pg_catalog.make_interval(secs => $3))"
_ACQUIRE = """SELECT term, remaining_ms, yielding FROM leader_election.acquire($1, $2,
    rank => $3::pg_catalog.int4, metadata => $4::pg_catalog.jsonb, request => $5::pg_catalog.uuid)"""
_ASSERT = "SELECT leader_election.assert_leader($1, $2)"

_Grant = namedtuple("_Grant", "term deadline third yielding")


class NotLeader(Exception):
    """fenced() was called, and this instance does not lead."""


def _fill(sql, *values):
    """The values in the places of $1, $2...: a statement with arguments takes two steps, which a
    transaction pooler may send to two sessions."""
    # E'': right whatever standard_conforming_strings is
    text = ["NULL" if v is None else " E'%s'" % re.sub(r"(['\\])", r"\1\1", str(v)) for v in values]
    return re.sub(r"\$(\d)", lambda place: text[int(place[1]) - 1], sql)


def _targets(where):
    """asyncpg's arguments for each host. It would give all its time to a dead first one, and
    would stay with a standby."""
    if isinstance(where, str) and where:
        login, hosts, rest = re.match(r"(\w*:?/{0,2}(?:[^/]*@)?)([^/?]*)(.*)", where).groups()
        return [{"dsn": login + host + rest} for host in hosts.split(",")]
    given = {"host": os.environ.get("PGHOST"), "port": os.environ.get("PGPORT"), **(where or {})}
    hosts, ports = (value if isinstance(value, (list, tuple)) else str(value or "").split(",")
                    for value in (given["host"], given["port"]))
    return [{**given, "host": host or None, "port": int(port) if port else None}
            for host, port in zip(hosts, itertools.cycle(ports))]


async def _called(function, *values):
    """What the application's function, or coroutine function, returns. (A task is not awaited.)"""
    answer = function and function(*values)
    return await answer if asyncio.iscoroutine(answer) else answer


class _Candidate:
    """What all four have in common, also their options, so that one can stand in for another.

    One task makes all calls, one after the other. `_lead` is what the application knows; it ends by
    the clock, too. `_held` is what the server may take us to have. What is held, but not led, is
    given back.

    health_check: a function or coroutine function; unless it says true, we do not stand, and the
    lease is not renewed. call_timeout: how many seconds a call may take. Handlers are functions or
    coroutine functions, called one at a time: start the work in on_elected, do not await its end.
    """

    def __init__(self, election="election", candidate=None, *, rank=None, metadata=None,
                 health_check=None, call_timeout=5.0, slice=5.0, interval=1.0, listen=None,
                 unfenced=False, on_elected=None, on_lost=None, on_yield=None, on_error=None):
        self.election = election
        self.candidate = candidate or f"{socket.gethostname()}-{os.getpid()}-{random.random():.9f}"
        self.changes, self._events = 0, []      # elections; what the handlers are to be told
        self._me = (self.candidate, rank, None if metadata is None else json.dumps(metadata))
        self._check, self._limit = health_check or (lambda: True), call_timeout
        self._slice, self._rest, self._listen, self._unfenced = slice, interval, listen, unfenced
        on_yield = on_yield or (lambda term: term == self.term and self._lose("yielded"))
        self._on = {"elected": on_elected, "lost": on_lost, "yield": on_yield, "error": on_error}
        self._lead = self._held = self._error = self._task = self._told = None
        self._closing, self._closed, self._changed, self._asked = False, None, None, 0

    def _now(self):
        """Seconds; goes on while the machine sleeps, where the system has such a clock."""
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if boottime is None else time.clock_gettime(boottime)

    @property
    def leads(self):
        return self._lead is not None and self._now() < self._lead.deadline

    @property
    def term(self):
        """The term in which this instance leads now, else None. No I/O."""
        return self._lead.term if self.leads else None

    async def start(self):
        if not self._task and not self._closing:
            self._closed, self._task = asyncio.Future(), asyncio.ensure_future(self._live())
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
            await connection.execute(_fill(_ASSERT, self.election, term))

    def set_metadata(self, metadata):
        """What view status is to show of us: from the next renewal on, or when we lead next."""
        self._me = (*self._me[:2], json.dumps(metadata))

    async def resign(self):
        """Give up now, and stand again after a second. Does nothing if we do not lead, and waits
        for nothing: the lease is given back when the handler of "lost" has returned."""
        self._lose("resigned")

    async def close(self):
        """Give up, withdraw, end; at most call_timeout seconds. Others are elected at once."""
        self._shut("closed")
        left = [task for task in (self._task, self._told) if task and not task.done()]
        if left and asyncio.current_task() is not self._told:     # a handler: we wait for it
            await asyncio.wait(left, timeout=self._limit)
            left[0].cancel()                    # a call over a dead path

    async def __aenter__(self):
        return await self.start()

    async def __aexit__(self, *_):
        await self.close()

    async def _live(self):
        rest, pause, changed = 0.0, 0.05, self._change()
        while self._held or not self._closing:
            try:
                await asyncio.wait([changed], timeout=rest)
                changed = self._change()        # also by what happens in this turn
                rest, pause = await self._turn(), 0.05
            except asyncio.CancelledError:      # the loop is being shut down: close in order
                self._shut("closed")
            except Exception as error:
                state = getattr(error, "sqlstate", None) or ""
                if not self._closing:
                    log.warning("election %r, %r: %r", self.election, self.candidate, error)
                if state in ("3F000", "42883"):
                    error.hint = "CREATE EXTENSION leader_election: this database lacks it"
                if state.startswith(_FATAL):
                    self._shut("error", error)
                # 55P03: busy, 57014: cancelled. It did nothing, and the deadline decides.
                if self._bound and not (self._lead and state in ("55P03", "57014")):
                    self._lose("connection lost")
                pause = min(2 * pause, self._lead.third if self._lead else 5.0)
                rest = pause * random.uniform(0.5, 1.0)
        await asyncio.gather(self._leave(None), self._settle(), return_exceptions=True)

    async def _turn(self):
        """Make one call, if need be. Returns for how many seconds to rest then."""
        lead = self._lead
        if self._held and not lead:
            await self._settle()                # first the handlers
            held, self._held = self._held, None
            await self._leave(held)
            await asyncio.wait([self._closed], timeout=1.0)     # a lone candidate does not spin
        [health] = await asyncio.gather(self._within(_called(self._check)), return_exceptions=True)
        if not health or isinstance(health, Exception):
            self._lose("unhealthy")
            if not self._held:
                await self._leave(None)
            raise RuntimeError(f"the health check says: {health!r}")
        if self._closing or self._lead is not lead:
            return 0.0
        grant = await (self._ask(self._renewal, lead.term, self._me[2]) if lead else self._stand())
        self._held = grant or lead
        self._watch(lead)       # a loop that was blocked may come here before the timer does
        if self._lead and (not grant or grant.term != lead.term):
            self._lose("failover" if grant else "not renewed")
            await self._settle()
            lead = None
        if grant and self._lead is lead:
            self._extend(grant)
        return self._lead.third if self._lead else 0.0 if self._held else self._rest

    async def _within(self, awaitable, more=0.0, cut=asyncio.Task.cancel):
        """Its result, in call_timeout and more, and before our deadline; else it is cut."""
        task = asyncio.ensure_future(awaitable)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())   # seen
        # close() waits for no campaign; but for a call that may have got us the lease elsewhere.
        ends = [task, self._closed] if self._bound and not self._held else [task]
        limit = min(self._limit + more, self._lead.deadline - self._now() if self._lead else 1e9)
        try:
            await asyncio.wait(ends, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled():
                return task.result()
            raise TimeoutError("no answer in time")
        finally:
            if cut and not task.done():
                cut(task)

    async def _ask(self, sql, *values):
        """A call that answers with a grant: what remains counts from its sending."""
        sent = self._now()
        row = await self._call(sql, *values)
        lasts = int(row[1]) / 1000 if row else 0.0
        return row and _Grant(int(row[0]), sent + lasts, lasts / 3, row[2] in (True, "t"))

    def _extend(self, grant):
        """Go on leading, or begin to. Not if the answer came too late: then it is given back."""
        if not self._closing and self._now() < grant.deadline:
            if not self._lead:
                self.changes += 1
                self._tell("elected", grant.term)
            self._lead = grant
            self._watch(grant)
            if grant.yielding and self._asked != grant.term:     # once in each term
                self._asked = grant.term
                self._tell("yield", grant.term)

    def _watch(self, lead):
        """End this leadership at its deadline, now or by a timer: by one that looks each second,
        because the loop's clock stands still while the machine sleeps."""
        if lead and self._lead is lead and self.leads:
            left = lead.deadline - self._now()
            asyncio.get_running_loop().call_later(min(1.0, left), self._watch, lead)
        elif self._lead is lead:
            self._lose("expired")

    def _lose(self, reason):
        """The one place where a leadership ends: the term, then the handlers, then the lease."""
        lead, self._lead = self._lead, None
        if lead:
            yielded = lead.term == self._asked and reason == "resigned"
            self._tell("lost", "yielded" if yielded else reason)

    def _shut(self, reason, error=None):
        """End for good."""
        if not self._closing:
            self._closing, self._error = True, error
            self._lose(reason)
            self._tell("error" if error else "closed", error)
            if self._closed:
                self._closed.set_result(None)

    def _tell(self, event, value):
        self._change().set_result(None)
        self._events.append((event, value))
        if not self._told or self._told.done():
            self._told = asyncio.ensure_future(self._tell_all())

    async def _tell_all(self):
        """A task of its own, so that a slow handler holds up no renewal."""
        while self._events:
            event, value = self._events.pop(0)
            try:
                await _called(self._on.get(event), value)
            except (Exception, asyncio.CancelledError):
                log.exception("handler of %r, election %r", event, self.election)

    async def _settle(self):
        """Until the handlers of all that has happened have returned."""
        while self._told and not self._told.done() and self._told is not asyncio.current_task():
            if not (await asyncio.wait([self._told], timeout=self._limit))[0]:
                log.warning("election %r: a handler has not returned yet", self.election)

    def _change(self):
        """A future that is done when something changes."""
        if not self._changed or self._changed.done():
            self._changed = asyncio.Future()
        return self._changed


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

    _bound = True       # leadership ends with the connection
    # Half: the server may end the session of a silent peer after 3 * floor(lease / 3) seconds, at
    # least 3, and another leads at once then.
    _renewal = """SELECT term, remaining_ms / 2, yielding FROM leader_election.renew($1,
        metadata => $3::pg_catalog.jsonb) WHERE term = $2"""

    def __init__(self, where, election, candidate=None, **options):
        super().__init__(election, candidate, **options)
        self._hosts, self._conn, self._rest = itertools.cycle(_targets(where)), None, 0.0

    async def _stand(self):
        """Joins first: so our place in line survives each campaign. A standby refuses it."""
        if not self._conn or self._conn.is_closed():
            host = {"timeout": self._limit, **next(self._hosts), "command_timeout": None}
            self._conn = await self._within(asyncpg.connect(**host))
            self._conn.add_termination_listener(
                lambda conn: conn is self._conn and self._lose("connection lost"))
            await self._call(_JOIN, *self._me)
        row = await self._call(_CAMPAIGN, self.candidate, self._slice, more=self._slice)
        return row[0] and await self._ask(self._renewal, row[0], self._me[2])

    async def _call(self, sql, *values, more=0.0):
        try:
            return await self._within(self._conn.fetchrow(sql, self.election, *values), more, None)
        except BaseException:
            if not self._held:      # else not before "lost" was told
                self._conn.terminate()
            raise

    async def _leave(self, held):
        if held or self._conn and not self._conn.is_closed():
            await self._call("SELECT leader_election.leave($1)")
            self._conn.terminate()


class DetachedLeadership(_Candidate):
    """A detached candidate: each call over any connection, also through PgBouncer.

    pool: an asyncpg.Pool, or a callable that returns an async context manager of an asyncpg
    connection. interval: how often one that does not lead asks. listen: a DSN or dict for LISTEN,
    past any pooler; then a vacancy is noticed at once.
    """

    _bound = False
    _renewal = """SELECT term, remaining_ms, yielding FROM leader_election.renew($1, $2,
        metadata => $3::pg_catalog.jsonb)"""

    def __init__(self, pool, election, candidate=None, **options):
        super().__init__(election, candidate, **options)
        self._acquire = getattr(pool, "acquire", pool)
        self._request = None    # the same until it is granted: no grant is lost with its answer

    async def _live(self):
        ear = asyncio.ensure_future(self._hear())
        await super()._live()
        ear.cancel()

    async def _stand(self):
        self._request = self._request or uuid.uuid4()   # not before a fork
        grant = await self._ask(_ACQUIRE, *self._me, self._request)
        self._request = None if grant else self._request
        return grant

    async def _leave(self, held):
        call = "leader_election.release($1, $2)" if held else "leader_election.leave($1, $2)"
        with contextlib.suppress(asyncpg.PostgresError):    # it leads, by an answer that was lost
            await self._call(f"SELECT {call}", held.term if held else self.candidate)

    async def _call(self, sql, *values):
        """The first row of the answer, as text. The time that it takes to get a connection counts.
        COPY, because it is the one way in which asyncpg reads rows without preparing."""
        sql, used, rows = _fill(sql, self.election, *values), [], asyncio.Queue()

        async def call():
            async with self._acquire() as conn:
                used.append(conn)       # asyncpg's own time limit is out of the way of ours
                await conn.copy_from_query(sql, output=rows.put, timeout=86400)
        await self._within(call(), cut=lambda it: used[0].terminate() if used else it.cancel())
        return None if rows.empty() else rows.get_nowait().decode().rstrip("\n").split("\t")

    async def _hear(self):
        """Wake the follower up when something has changed; over a connection of its own."""
        for host in itertools.cycle([] if self._listen is None else _targets(self._listen)):
            try:
                with contextlib.ExitStack() as stack:
                    conn = await asyncpg.connect(**{"timeout": self._limit, **host})
                    stack.callback(conn.terminate)
                    await self._within(conn.add_listener("leadership_changed", self._heard))
                    await asyncio.sleep(60.0)   # then anew: a cut path is told by silence only
            except Exception as error:
                log.warning("election %r: cannot listen: %r", self.election, error)
                await asyncio.sleep(1.0)

    def _heard(self, _conn, _pid, _channel, payload):
        if json.dumps(self.election, ensure_ascii=False) in payload:
            self._change().set_result(None)


class SoleLeadership(_Candidate):
    """For a laptop, or one instance without the extension: always leads, and issues no term: term
    is None, leads is True. fenced() refuses, unless unfenced: then it does nothing."""

    async def start(self):
        self._extend(_Grant(None, float("inf"), 0.0, False))
        return self

    async def resign(self):
        self._lose("resigned")
        await self.start()


class FakeLeadership(_Candidate):
    """For tests: the test says who leads, and moves the clock. fenced() asks no server. When a
    method returns, so have the handlers."""

    def __init__(self, election="election", candidate=None, **options):
        super().__init__(election, candidate, **options)
        self._time, self._last, self._unfenced = 0.0, 0, True
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
        self._watch(self._lead)
        await self._settle()
