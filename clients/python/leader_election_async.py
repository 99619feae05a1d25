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

Two tasks: the *engine* talks to the server, the *teller* runs the handlers (functions or
coroutine functions), one after the other, so that a slow one holds up no renewal. A timer of the
loop ends the leadership at the deadline; another one destroys the connection of a call that takes
too long. (asyncpg's own time limits ask the server, over another connection, to cancel: over a cut
path the campaign goes on, and its connection is elected later with nobody knowing.)

While the event loop is blocked, nothing is renewed and nothing is told; `term` is None all the
same once the deadline is over. The clock goes on while the machine sleeps where the system has
such a clock (Linux). Even so a process can be paused between the look at `term` and its next
write: fence what must not be late.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import datetime
import inspect
import json
import logging
import os
import random
import secrets
import socket
import time
from urllib.parse import urlsplit, urlunsplit

import asyncpg

__all__ = ["Leadership", "DetachedLeadership", "SoleLeadership", "FakeLeadership",
           "NotLeader", "LeadershipError"]

log = logging.getLogger("leader_election")

# A class of SQLSTATEs, or one: the same call would be answered the same for ever.
_FATAL = ("28", "3D000", "3F000", "42883", "42P01", "42501", "22023", "0A000", "25001", "LE003")
_FOREVER = 86400.0      # asyncpg's own time limit of a call, out of the way of ours

_SETTINGS = """SELECT pg_catalog.set_config('statement_timeout', '0', false),
    pg_catalog.set_config('idle_session_timeout', '0', false),
    pg_catalog.set_config('default_transaction_isolation', 'read committed', false)"""
_JOIN = "SELECT leader_election.join($1, $2, rank => $3, metadata => $4, auto_renew => $5)"
_CAMPAIGN = """CALL leader_election.campaign($1, $2, rank => $3, metadata => $4, auto_renew => $5,
    timeout => $6)"""
_RENEW = "SELECT term, remaining_ms, yielding FROM leader_election.renew($1)"
_RESIGN = "SELECT leader_election.resign($1)"
_LEAVE = "SELECT leader_election.leave($1)"
# COPY, because it is the one way in which asyncpg reads rows without preparing a statement. A
# prepared one takes two steps, which a transaction pooler may send to two different sessions.
_ACQUIRE = """SELECT term, remaining_ms, yielding FROM leader_election.acquire({election},
    {candidate}, rank => {rank}::pg_catalog.int4, metadata => {metadata}::pg_catalog.jsonb)"""
_RENEW_TERM = "SELECT term, remaining_ms, yielding FROM leader_election.renew({election}, {term})"
_RELEASE = "SELECT leader_election.release({election}, {term})"
_WITHDRAW = "SELECT leader_election.leave({election}, {candidate})"
_ASSERT = "SELECT leader_election.assert_leader({election}, {term})"


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


def _literal(value):
    """An SQL literal, whatever standard_conforming_strings is."""
    if value is None or isinstance(value, int):
        return "NULL" if value is None else str(int(value))
    return " E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _fill(sql, **values):
    return sql.format(**{key: _literal(value) for key, value in values.items()})


def _fatal(error):
    """The LeadershipError that this exception is, or None: try again."""
    state = getattr(error, "sqlstate", None)
    if state is None or not state.startswith(_FATAL):
        return None
    hint = ""
    if state in ("3F000", "42883"):
        hint = "this database lacks the extension (CREATE EXTENSION leader_election): "
    fatal = LeadershipError(hint + str(error), state)
    fatal.__cause__ = error
    return fatal


def _targets(where):
    """asyncpg's arguments for each host. It would give all its time to a dead first one, and
    would stay with a standby."""
    if isinstance(where, str) and where:
        parts = urlsplit(where)
        login, at, hosts = parts.netloc.rpartition("@")
        return [{"dsn": urlunsplit(parts._replace(netloc=login + at + host))}
                for host in hosts.split(",")]
    given = dict(where or {})
    hosts, ports = (given.get(key) or os.environ.get(f"PG{key.upper()}", "")
                    for key in ("host", "port"))
    hosts = hosts.split(",") if isinstance(hosts, str) else list(hosts)
    ports = list(ports) if isinstance(ports, (list, tuple)) else str(ports).split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return [{**given, **({"host": host} if host else {}), **({"port": int(port)} if port else {})}
            for host, port in zip(hosts, ports)]


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
        self._grant = None                # (term, deadline) until the leadership has ended
        self._ended = None                # the reason why the last one did
        self._yielding = False
        self._closing = False
        self._error = None
        self._waiters = set()
        self._events = collections.deque()
        self._users = set()               # tasks of handlers and of the health check

    @property
    def term(self):
        """The term in which this instance leads now, else None. No I/O."""
        grant = self._grant
        return grant[0] if grant and self._now() < grant[1] else None

    @property
    def leads(self):
        grant = self._grant
        return bool(grant) and self._now() < grant[1]

    async def start(self):
        return self

    async def wait(self, timeout=None):
        """Until this instance leads: the term, or None after timeout seconds or close()."""
        until = None if timeout is None else time.monotonic() + timeout
        while not (self.leads or self._error or self._closing):
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return None
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await asyncio.wait([waiter], timeout=left)
            finally:
                self._waiters.discard(waiter)
        if self._error:
            raise self._error
        return self.term

    async def fenced(self, connection):
        """Fence the transaction that is open on this asyncpg connection: from here on its COMMIT
        fails with SQLSTATE LE002 unless this very term still leads then. Raises NotLeader, without
        asking the server, if this instance does not lead; LE001 if the server says so."""
        term = self.term
        if term is None:
            raise NotLeader(f"{self.candidate!r} does not lead election {self.election!r}")
        if not connection.is_in_transaction():
            raise RuntimeError("fenced() outside of a transaction would fence nothing: open one")
        await connection.execute(_fill(_ASSERT, election=self.election, term=term))

    async def resign(self):
        """Give up now, and go on standing. Does nothing if this instance does not lead."""
        self._end("resigned")
        await self._drain()

    async def close(self):
        """Give up, withdraw, end. Others are elected at once."""
        self._closing = True
        self._end("closed")
        self._notify()
        await self._drain()

    async def __aenter__(self):
        return await self.start()

    async def __aexit__(self, *_):
        await self.close()

    def _notify(self):
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _begin(self, term, deadline):
        """False, and nothing is told, if the grant is too late: then give it back."""
        if self._closing or self._now() >= deadline:
            return False
        self._grant, self._yielding = (term, deadline), False
        self.changes += 1
        self._emit("elected", term)
        self._notify()
        return True

    def _extend(self, deadline):
        """False if the leadership has ended: an answer after the deadline does not revive it."""
        self._expire()
        if self._grant:
            self._grant = (self._grant[0], deadline)
        return self._grant is not None

    def _expire(self):
        return bool(self._grant) and self._now() >= self._grant[1] and self._end("expired")

    def _ask_to_go(self):
        """The server wants us to yield: tell the application, once per term, or go at once."""
        if self._grant and not self._yielding:
            self._yielding = True
            if self._handlers["yield"]:
                self._emit("yield", self._grant[0])
            else:
                self._end("yielded")

    def _end(self, reason):
        """The one place where a leadership ends. False if there is none."""
        if self._grant is None:
            return False
        self._grant = None
        self._ended = "yielded" if reason == "resigned" and self._yielding else reason
        self._emit("lost", self._ended)
        return True

    def _emit(self, event, value):
        self._events.append((event, value))

    async def _drain(self):
        """Tell what is to be told, in order; a handler's own calls do not nest."""
        while self._events and not self._users:
            await self._handle(*self._events.popleft())

    async def _handle(self, event, value):
        try:
            if self._handlers[event]:
                await self._result(self._handlers[event](value))
        except Exception:
            log.exception("handler of %r, election %r", event, self.election)

    async def _result(self, answer):
        """The application's answer. Its coroutine has a task of its own, for if that is cancelled
        from within, the CancelledError is not meant for us."""
        if not inspect.isawaitable(answer):
            return answer
        task = asyncio.ensure_future(answer)
        self._users.add(task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            self._users.discard(task)
        if task.cancelled():
            raise RuntimeError("cancelled")
        return task.result()


class _Engine(_Candidate):
    """The tasks, their timers and their sleep."""

    _bound = False              # the leadership ends with the connection

    def __init__(self, election, candidate=None, *, rank=None, metadata=None, health_check=None,
                 call_timeout=5.0, **handlers):
        super().__init__(election, candidate, **handlers)
        self._call_timeout = call_timeout
        self._check = health_check
        self._rank = rank
        self._metadata = None if metadata is None else json.dumps(metadata)
        self._tasks = []
        self._failures = 0
        self._cut = None            # destroys the connection of the call that is under way
        self._timer = None          # ... by then
        self._ticker = None         # looks at the deadline
        self._overdue = False
        self._hasty = False         # that call: close() does not wait for its answer
        self._severed = False
        self._close_by = 0.0

    async def start(self):
        if not self._tasks and not self._closing:
            self._wake, self._told, self._news = asyncio.Event(), asyncio.Event(), asyncio.Event()
            self._told.set()        # the handlers of "lost" have returned
            self._tasks = [asyncio.ensure_future(task) for task in (self._engine(), self._teller())]
            self._tasks[0].add_done_callback(lambda _: self._emit("end", None))
        return self

    async def _drain(self):
        pass                        # the teller does

    async def close(self):
        """Give up, withdraw, end; at most call_timeout seconds. Others are elected at once."""
        hasty = self._hasty and not self._grant
        if not self._closing:
            self._close_by = self._now() + self._call_timeout
            await super().close()
            if self._tasks:
                self._poke()
            if self._timer:
                self._set_timer(0.0 if hasty else self._call_timeout / 2)
        if self._tasks and asyncio.current_task() not in {*self._tasks, *self._users}:
            # wait() does not cancel what it waits for: if we are cancelled, they go on giving back.
            left = max(0.0, self._close_by - self._now())
            _, hung = await asyncio.wait(self._tasks, timeout=left)
            for task in hung:
                task.cancel()

    async def _engine(self):
        cancelled = None
        try:
            while not self._closing:
                try:
                    await self._work()
                except Exception as error:
                    fatal = _fatal(error)
                    self._trouble(error, fatal)
                    if fatal and not self._closing:
                        self._end("error")
                        self._error = fatal
                        self._emit("error", fatal)
                        self._notify()
                        break
        except asyncio.CancelledError as error:     # the loop is being shut down: close in order
            cancelled, self._closing = error, True
            self._close_by = self._now() + self._call_timeout
            self._end("closed")
            self._notify()
        try:
            await self._told.wait()
            await self._give_back()
        except Exception as error:
            log.info("election %r: while giving up: %s", self.election, error)
        finally:
            self._disconnect()
        if cancelled:
            raise cancelled

    async def _teller(self):
        cancelled = None
        while True:
            event = None
            try:
                while not self._events:
                    self._news.clear()
                    await self._news.wait()
                event, value = self._events.popleft()
                if event == "end":
                    break
                await self._handle(event, value)
            except asyncio.CancelledError as error:
                if cancelled:
                    raise
                cancelled = error       # tell the rest, for the engine is ending, too
            if event == "lost":
                self._told.set()
                if self._overdue:
                    self._sever()
        if cancelled:
            raise cancelled

    def _emit(self, event, value):
        super()._emit(event, value)
        self._news.set()

    def _begin(self, term, deadline):
        begun = super()._begin(term, deadline)
        if begun:
            if self._ticker:
                self._ticker.cancel()
            self._tick()
        return begun

    def _tick(self):
        """The deadline's timer. One second at most: the loop's clock stands while the machine is
        suspended."""
        if self._expire():
            self._set_timer(0.0)        # whatever hangs must not keep the session
        elif self._grant:
            left = max(0.001, min(1.0, self._grant[1] - self._now()))
            self._ticker = asyncio.get_running_loop().call_later(left, self._tick)

    def _end(self, reason):
        ended = super()._end(reason)
        if ended:
            self._told.clear()
            self._poke()
        return ended

    def _poke(self):
        self._wake.set()

    async def _pause(self, seconds):
        """Sleep. A poke ends it."""
        if seconds > 0:
            alarm = asyncio.get_running_loop().call_later(seconds, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                alarm.cancel()
        self._wake.clear()

    async def _sleep(self, seconds):
        """Sleep. Only close() ends it."""
        until = self._now() + seconds
        while not self._closing and self._now() < until:
            await self._pause(until - self._now())

    def _backoff(self, longest):
        self._failures += 1
        return min(longest, 0.1 * 2 ** min(self._failures - 1, 10)) * random.uniform(0.5, 1.0)

    async def _healthy(self):
        try:
            return self._check is None or bool(await self._result(self._check()))
        except Exception:
            log.exception("health check, election %r", self.election)
            return False

    def _trouble(self, error, fatal=None):
        log.log(logging.ERROR if fatal else logging.WARNING, "election %r, candidate %r: %s",
                self.election, self.candidate, str(error) or repr(error))

    @contextlib.contextmanager
    def _timed(self, seconds, cut, hasty=False):
        """The block is one call; cut() destroys its connection after so many seconds."""
        if self._closing:
            seconds = 0.0 if hasty else min(seconds, self._close_by - self._now())
        self._cut, self._hasty, self._severed, self._overdue = cut, hasty, False, False
        self._set_timer(seconds)
        try:
            yield
        finally:
            self._timer.cancel()
            self._timer, self._cut, self._hasty = None, None, False
        if self._severed:               # an answer that came when it was too late counts as none
            raise TimeoutError("the server did not answer in time")

    async def _within(self, seconds, coroutine, hasty=False):
        """Its result; it is cancelled when the time is over."""
        task = asyncio.ensure_future(coroutine)
        try:
            with self._timed(seconds, task.cancel, hasty):
                await asyncio.wait([task])
            if task.cancelled():
                raise TimeoutError("the call was cancelled")
            return task.result()
        finally:
            if not task.cancel() and not task.cancelled():
                task.exception()        # seen; asyncio need not report it

    def _set_timer(self, seconds):
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._on_timer)

    def _on_timer(self):
        self._overdue = True
        if self._bound:         # a session's cut connection gives the lease back: first tell
            self._end("connection lost")
        if self._told.is_set() or not self._bound:
            self._sever()

    def _sever(self):
        self._severed = True
        if self._cut:
            self._cut()

    def _disconnect(self):
        pass


class Leadership(_Engine):
    """A session candidate: a connection of its own, never a pool's.

    where: a DSN, or a dict of asyncpg.connect()'s arguments ("": the PG* environment); several
    hosts are tried in turn. With health_check (a function or coroutine function; false or an
    exception: not well) the lease is renewed only after it returned true.
    """

    _bound = True

    def __init__(self, where, election, candidate=None, *, slice=5.0, **options):
        super().__init__(election, candidate, **options)
        self._targets = _targets(where)
        self._slice = slice
        self._conn = None
        self._turn = 0

    async def _work(self):
        """One connection's life."""
        try:
            target = self._targets[self._turn % len(self._targets)]
            await self._within(self._call_timeout + 1.0, self._connect(target), hasty=True)
            await self._stand()
        except Exception as error:
            if _fatal(error):
                raise
            self._end("connection lost")
            if not self._closing:
                self._trouble(error)
        if self._closing:
            return                      # _engine gives back and disconnects
        await self._told.wait()
        self._disconnect()
        self._turn += 1
        if self._turn % len(self._targets) == 0:
            await self._sleep(self._backoff(5.0))

    async def _connect(self, target):
        settings = {"application_name": self.candidate[:63], **target.get("server_settings", {})}
        self._conn = await asyncpg.connect(
            **{"timeout": self._call_timeout, **target, "server_settings": settings})
        self._conn.add_termination_listener(self._on_termination)

    def _on_termination(self, conn):
        if conn is self._conn:
            self._end("connection lost")

    def _sever(self):
        super()._sever()
        if self._conn is not None:
            self._conn.terminate()

    def _disconnect(self):
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.terminate()

    async def _call(self, sql, *args, seconds=None, hasty=False):
        with self._timed(self._call_timeout if seconds is None else seconds, None, hasty):
            try:
                rows = await self._conn.fetch(sql, *args, timeout=_FOREVER)
                return rows[0] if rows else None
            except asyncio.CancelledError:
                self._severed = True    # asyncpg has not finished with that connection
                raise

    async def _stand(self):
        """Returns when this connection is not to be used again."""
        await self._call(_SETTINGS, hasty=True)
        me = (self.election, self.candidate, self._rank, self._metadata, self._check is None)
        standing = False
        while not self._closing:
            if not await self._healthy():
                if standing:
                    await self._call(_LEAVE, self.election)
                standing = False
                await self._sleep(min(1.0, self._slice))
                continue
            if standing:
                row = await self._call(_CAMPAIGN, *me, datetime.timedelta(seconds=self._slice),
                                       seconds=self._slice + self._call_timeout, hasty=True)
            else:   # join() first: so this candidate keeps its place in line between two campaigns
                row = await self._call(_JOIN, *me, hasty=True)
            standing, self._failures = True, 0
            if row[0] is not None and not await self._lead(row[0]):
                return

    async def _lead(self, term):
        """True: resigned; the connection is good for the next campaign."""
        leading = False
        while True:
            if not await self._healthy():
                self._end("unhealthy")
                break
            self._expire()
            sent, grant = self._now(), self._grant
            if leading and grant is None:
                break
            try:
                left = grant[1] - sent if grant else self._call_timeout
                row = await self._call(_RENEW, self.election, hasty=not leading,
                                       seconds=min(self._call_timeout, left))
            except asyncpg.PostgresError as error:
                if not leading or self._conn.is_closed():
                    raise
                if error.sqlstate == "LE006":      # a reset: the server has ended this leadership
                    self._end("not renewed")
                    break
                if _fatal(error):
                    raise
                self._trouble(error)               # busy, or cancelled: the deadline decides
                if not await self._rest_until(self._now() + 0.1):
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
            if not await self._rest_until(max(sent + (deadline - sent) / 3, self._now() + 0.01)):
                break
        await self._told.wait()
        if leading and self._ended in ("resigned", "yielded") and not self._closing:
            await self._call(_RESIGN, self.election)
            await self._sleep(1.0)      # let others have it; a lone candidate does not spin
            return True
        if not self._closing:
            await self._give_back()
        return False

    async def _rest_until(self, moment):
        """Sleep. False if the leadership has ended, also by the connection's end."""
        while self._grant and self._now() < moment:
            await self._pause(moment - self._now())
        return self._grant is not None

    async def _give_back(self):
        if self._conn is not None and not self._conn.is_closed() and not self._severed:
            await self._call(_LEAVE, self.election)


class DetachedLeadership(_Engine):
    """A detached candidate: each call over any connection, also through PgBouncer.

    pool: an asyncpg.Pool, or a callable that returns an async context manager of an asyncpg
    connection. interval: how often one that does not lead asks. listen: a DSN or dict for LISTEN,
    past any pooler; then a vacancy is noticed at once.
    """

    def __init__(self, pool, election, candidate=None, *, interval=1.0, listen=None, **options):
        super().__init__(election, candidate, **options)
        self._pool = pool
        self._interval = interval
        self._listen = None if listen is None else _targets(listen)
        self._listener = None
        self._owed = None               # a term that is to be released
        self._standing = False

    async def start(self):
        await super().start()
        if self._listen and self._listener is None:
            self._listener = asyncio.ensure_future(self._listening())
        return self

    def _disconnect(self):
        if self._listener:
            self._listener.cancel()

    def _end(self, reason):
        if self._grant and reason not in ("not renewed", "failover"):
            self._owed = self._grant[0]
        return super()._end(reason)

    async def _ask(self, sql, term=None, seconds=None):
        """The first row of the answer, as text, or None."""
        seconds = self._call_timeout if seconds is None else seconds
        sql = _fill(sql, election=self.election, candidate=self.candidate, rank=self._rank,
                    metadata=self._metadata, term=term)
        return await self._within(seconds, self._ask_pool(sql, seconds))

    async def _ask_pool(self, sql, seconds):
        answer = bytearray()

        async def collect(data):
            answer.extend(data)
        acquire = getattr(self._pool, "acquire", None)
        async with acquire(timeout=seconds) if acquire else self._pool() as conn:
            self._cut = conn.terminate              # never back into the pool
            await conn.copy_from_query(sql, output=collect, timeout=_FOREVER)
        rows = answer.decode().splitlines()
        return rows[0].split("\t") if rows else None

    async def _work(self):
        try:
            pause = await self._step()
            self._failures = 0
        except Exception as error:
            if _fatal(error):
                raise
            if not self._closing:
                self._trouble(error)
            grant = self._grant
            pause = self._backoff(max(0.1, (grant[1] - self._now()) / 2) if grant else 5.0)
        if not self._closing:
            await self._pause(pause)

    async def _step(self):
        """One call. Returns for how long to sleep then."""
        self._expire()
        if self._owed is not None and self._grant is None:
            await self._told.wait()
            await self._ask(_RELEASE, self._owed)
            self._owed = None
            if self._ended in ("resigned", "yielded"):
                await self._sleep(1.0)
            return 0.0
        if not await self._healthy():
            if self._end("unhealthy"):
                return 0.0
            if self._standing:
                await self._withdraw()
            return min(1.0, self._interval)
        grant, sent = self._grant, self._now()
        if grant is None:
            if self._closing or self._owed is not None:
                return 0.0
            self._standing = True
            row = await self._ask(_ACQUIRE)
            if row is None:
                return self._interval
            term, remaining = int(row[0]), int(row[1]) / 1000
            self._take(term, sent + remaining)
        else:
            row = await self._ask(_RENEW_TERM, grant[0], min(self._call_timeout, grant[1] - sent))
            if row is None:
                self._end("not renewed")
                return 0.0
            term, remaining = int(row[0]), int(row[1]) / 1000
            if term == grant[0]:
                self._extend(sent + remaining)
            elif self._end("failover"):         # the lease goes on, under a new term
                await self._told.wait()
                self._take(term, sent + remaining)
            else:
                self._owed = term
        if row[2] == "t":
            self._ask_to_go()
        return max(0.01, sent + remaining / 3 - self._now()) if self._grant else 0.0

    def _take(self, term, deadline):
        if not self._begin(term, deadline):
            self._owed = term

    async def _withdraw(self):
        self._standing = False
        try:
            await self._ask(_WITHDRAW)
        except asyncpg.PostgresError as error:
            self._trouble(error)

    async def _give_back(self):
        if self._owed is not None:
            await self._ask(_RELEASE, self._owed)
        if self._standing:
            await self._withdraw()

    async def _listening(self):
        turn = 0
        while True:
            conn = None
            try:
                conn = await asyncpg.connect(**{"timeout": self._call_timeout,
                                                **self._listen[turn % len(self._listen)]})
                await asyncio.wait_for(conn.add_listener("leadership_changed", self._heard),
                                       self._call_timeout)
                self._poke()                    # something may have changed before
                while True:                     # a cut path is told by silence only
                    await asyncio.sleep(15.0)
                    await conn.execute("SELECT 1", timeout=self._call_timeout)
            except Exception as error:
                self._trouble(error)
            finally:
                if conn:
                    conn.terminate()
            turn += 1
            await asyncio.sleep(1.0)

    def _heard(self, _conn, _pid, _channel, payload):
        with contextlib.suppress(ValueError):
            event = json.loads(payload)
            if event.get("election") == self.election and event.get("event") != "elected":
                self._poke()


class SoleLeadership(_Candidate):
    """For a laptop, or one instance without the extension: always leads, and issues no term: term
    is None, leads is True. fenced() refuses, unless unfenced: then it does nothing."""

    def __init__(self, election="election", candidate=None, *, unfenced=False, **handlers):
        super().__init__(election, candidate, **handlers)
        self._unfenced = unfenced

    async def start(self):
        if not self.changes:
            self._begin(None, float("inf"))
            await self._drain()
        return self

    async def fenced(self, connection):
        if not self._unfenced:
            raise RuntimeError("SoleLeadership has no term to fence with (unfenced=True: go on)")
        if not self.leads:
            raise NotLeader("closed")

    async def resign(self):
        if self._end("resigned"):
            self._begin(None, float("inf"))
        await self._drain()


class FakeLeadership(_Candidate):
    """For tests: the test says who leads, and moves the clock. fenced() asks no server."""

    def __init__(self, election="election", candidate=None, **handlers):
        self._time = 0.0
        super().__init__(election, candidate, clock=lambda: self._time, **handlers)
        self._last = 0

    async def elect(self, term=None, lease=15.0):
        """Be elected in this term (default: the next one), for so many seconds; returns it."""
        self._end("not renewed")
        self._last = self._last + 1 if term is None else term
        self._begin(self._last, self._time + lease)
        await self._drain()
        return self._last

    async def lose(self, reason="connection lost"):
        self._end(reason)
        await self._drain()

    async def ask_yield(self):
        self._ask_to_go()
        await self._drain()

    async def advance(self, seconds):
        """Move the clock; past the deadline the leadership has expired."""
        self._time += seconds
        self._expire()
        await self._drain()

    async def fenced(self, connection):
        if self.term is None:
            raise NotLeader(f"{self.candidate!r} does not lead election {self.election!r}")
