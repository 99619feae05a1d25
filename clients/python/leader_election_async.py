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

The states, the same in the clients for all languages:

    standing --grant--> leads --_lose(reason)--> losing: the handlers of "lost" run
        ^                                           |
        +---- after 1 s <---- _give_back() <--------+        close(), or a final error: ended

Invariant: a term is never given out after the deadline, which is counted from the *sending* of
the last answered renewal; every "elected" has exactly one "lost"; the handlers of "lost" have
returned before the lease is given back.

Two tasks of ours run beside the application's, in its loop, and belong to nobody else: a task of
the application that is cancelled takes neither with it.
  the engine  makes all calls to the server, one after the other
  the teller  calls the handlers, one after the other: a slow handler holds up no renewal

While the event loop is blocked, nothing is renewed and nothing is told; `term` is None all the
same once the deadline is over. The clock goes on while the machine sleeps where the system has
such a clock (Linux). Even so a process can be paused between the look at `term` and its next
write: fence what must not be late.

A name in brackets is that of the fault, in test/clients/README.md, which a line is there for.
"""

import asyncio
import json
import logging
import os
import pathlib
import random
import re
import socket
import sys
import threading
import time
import urllib.parse
import uuid
from collections import namedtuple

import asyncpg

log = logging.getLogger("leader_election")
LeadershipError = asyncpg.PostgresError     # what wait() raises, and on_error is told: see sqlstate

# SQLSTATEs, or their classes. A login that is refused: this server may be a standby that lags.
_REFUSES_LOGIN = ("28", "3D000", "42501")
# A primary that says one of these: a restore, CREATE EXTENSION, GRANT or a rename may mend it, so
# we go on trying.
_MAY_PASS = ("42501", "3F000", "42883", "42P01", "LE003")
# These end us when they have lasted for refusal_timeout.
_LASTING = ("28", "3D000", "22023", "0A000", "25001")
# No primary is there to refuse: connections, shutdown and start, resources, a standby
_NO_ANSWER = ("08", "57P", "53", "25006")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0     # between attempts, in seconds; it doubles

_ASSERT = "SELECT leader_election.assert_leader($1, $2)"


class NotLeader(Exception):
    """fenced() was called, and this instance does not lead."""


class _Candidate:
    """What all four classes have in common, also their options, so that each can stand in for
    another.

    health_check: a function or coroutine function; unless it says true, in call_timeout seconds, we
    do not stand, and the lease is given back. call_timeout: how many seconds a call to the server
    may take. refusal_timeout: after how many seconds a refusal is taken for final. slice: how many
    seconds one campaign waits, and so how soon a dead path is noticed. interval: how often a
    detached candidate asks. Handlers are functions or coroutine functions, called one at a time:
    stop the work in on_lost; start it in on_elected, but do not await its end there.
    """

    def __init__(self, election="election", candidate=None, *, rank=None, metadata=None,
                 health_check=None, call_timeout=5.0, refusal_timeout=30.0, slice=None,
                 interval=1.0, listen=None, pooler=None, unfenced=False,
                 on_elected=None, on_lost=None, on_yield=None, on_error=None):
        if pooler not in (None, "session"):
            raise ValueError("pooler is None or 'session'")
        self.election = election
        self.candidate = candidate or _default_name()
        self.changes = 0                    # how often we were elected
        self._named, self._made_in = candidate is not None, os.getpid()
        self._rank, self._metadata = rank, None if metadata is None else json.dumps(metadata)
        self._call_timeout, self._refusal_timeout = call_timeout, refusal_timeout
        self._slice, self._interval, self._listen, self._pooler = slice, interval, listen, pooler
        self._unfenced, self._health_check = unfenced, health_check
        self._handlers = {"elected": on_elected, "lost": on_lost, "yield": on_yield,
                          "error": on_error}
        self._lead = None                   # the grant by which we lead, for the application
        self._deadline_timer = None
        self._last_term = None              # the last one in which we led
        self._last_reason = None            # why that has ended
        self._asked_to_yield = 0            # the last term in which we were
        self._closing = None                # why we end for good: "closed", or an "error"
        self._error = None
        self._trouble = _Trouble(f"election {election!r}, candidate {self.candidate!r}")
        self._pid = None                    # of the process that called start()
        self._events = []                   # what the handlers are to be told
        self._engine = self._teller = None  # tasks
        self._changed = None                # see _change()

    # --- for the application

    @property
    def leads(self):
        return (self._lead is not None and self._now() < self._lead.deadline
                and not self._is_forked())

    @property
    def term(self):
        """The term in which this instance leads now, else None. No I/O."""
        return self._lead.term if self.leads else None

    @property
    def state(self):
        """What the last attempt came to: standing, leads, unhealthy, "unreachable: ...",
        "refused: SQLSTATE ...", closed, "failed: SQLSTATE ...". No I/O."""
        if self._is_forked():
            return f"failed: {self._forked_text()}"
        if self._error:
            return f"failed: {_words(self._error)}"
        if self._closing:
            return "closed"
        return "leads" if self.leads else self._trouble.text or "standing"

    async def start(self):
        self._refuse_forked()
        self._pid = os.getpid()
        return self

    async def wait(self, timeout=None):
        """Until this instance leads: the term, or None after timeout seconds or close(). Raises the
        error that has ended us, also the SystemExit of a handler."""
        self._refuse_forked()
        await self._await(lambda: self.leads or self._closing, timeout)
        if self._error:
            await self.close()              # waits until the lease is given back
            raise self._error
        return self.term

    async def fenced(self, connection):
        """Fence the transaction that is open on this asyncpg connection: from here on its COMMIT
        fails with SQLSTATE LE002 unless this very term still leads then. Raises NotLeader, without
        asking the server, if this instance does not lead; LE001 if the server says so."""
        self._refuse_forked()
        term = self.term
        if not self.leads:
            raise NotLeader(f"{self.candidate!r} does not lead election {self.election!r}")
        if self._unfenced:
            return
        if term is None or not connection.is_in_transaction():
            raise RuntimeError("fenced() would fence nothing: no transaction, or no term")
        await connection.execute(_fill(_ASSERT, self.election, term))

    def set_metadata(self, metadata):
        """What view status is to show of us: from the next renewal on, or when we lead next."""
        self._metadata = json.dumps(metadata)

    async def resign(self):
        """Give up now, and stand again after a second. Does nothing if we do not lead, and waits
        for nothing: the lease is given back when the handler of "lost" has returned."""
        self._lose("resigned")

    async def close(self):
        """Give up, withdraw, end; waits call_timeout seconds at most. Others are elected at once.
        All this is done even if the task that waits for it is cancelled."""
        if self._is_forked():
            return
        self._end("closed")
        ours = self._our_tasks()
        # A handler or health check that calls it is waited for, and does not wait [handlers].
        if ours and asyncio.current_task() not in ours:
            await asyncio.wait(ours, timeout=self._call_timeout)

    async def __aenter__(self):
        return await self.start()

    async def __aexit__(self, *_):
        await self.close()

    # --- a leadership: begins, goes on, ends

    def _now(self):
        """Seconds, on a clock that goes on while the machine sleeps, if there is one."""
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if boottime is None else time.clock_gettime(boottime)

    def _begin(self, grant):
        """Lead, unless the grant came too late: then the next turn gives it back."""
        if not self._closing and self._now() < grant.deadline:
            self.changes += 1
            self._last_term = grant.term
            self._tell("elected", grant.term)
            self._prolong(grant)

    def _extend(self, grant):
        """Go on leading, or begin to. A term of ours that has ended meanwhile is not revived: the
        next turn gives it back."""
        self._watch()       # a loop that was blocked comes here before its timer does [hangs]
        if grant.term != self._last_term:
            self._begin(grant)
        elif self._lead:
            self._prolong(grant)

    def _prolong(self, grant):
        self._lead = grant
        self._watch()
        if grant.yielding and self._asked_to_yield != grant.term:     # once in each term
            self._asked_to_yield = grant.term
            self._tell("yield", grant.term)

    def _watch(self):
        """End the leadership if its deadline is over. Else a timer looks again then; and each
        second, because the loop's clock stands still while the machine sleeps."""
        if self._deadline_timer:
            self._deadline_timer.cancel()
        if self._lead is None:
            return
        left = self._lead.deadline - self._now()
        if left <= 0:
            self._lose("expired")
        else:
            loop = asyncio.get_running_loop()
            self._deadline_timer = loop.call_later(min(1.0, left), self._watch)

    def _lose(self, reason):
        """End the leadership, if there is one. In this order: the term is gone; the teller calls
        the handlers; the engine gives the lease back."""
        lead, self._lead = self._lead, None
        if lead is None or self._is_forked():
            return
        if reason == "resigned" and lead.term == self._asked_to_yield:
            reason = "yielded"
        self._last_reason = reason
        self._tell("lost", reason)

    def _end(self, reason):
        """End for good. What is held is given back first."""
        if not self._closing:
            self._closing = reason
            self._lose(reason)
        self._notify()

    def _fail(self, error):
        """End for good with this error; also if we are closing already."""
        if not self._error:
            self._error = error
            log.error("%s: ends: %s", self._trouble.who, _words(error))
            self._end("error")
            if self._engine is None:        # else it does, when all is given back
                self._tell("error", error)

    # --- the teller

    def _tell(self, event, value):
        self._events.append((event, value))
        self._start_teller()
        self._notify()

    def _start_teller(self):
        if self._events and not self._is_telling():
            self._teller = asyncio.ensure_future(self._run_teller())
            self._teller.add_done_callback(_seen)

    def _is_telling(self):
        return self._teller is not None and not self._teller.done()

    async def _run_teller(self):
        while self._events:
            await self._handle(*self._events.pop(0))
            self._notify()

    async def _handle(self, event, value):
        """The teller. What an error of a handler means: see the table in docs/clients.md."""
        try:
            if self._handlers[event]:
                await _called(self._handlers[event], value)
            elif event == "yield" and value == self.term:
                self._lose("yielded")
        except asyncio.CancelledError:
            pass        # what `work.cancel(); await work` comes to: the handler has ended
        except SystemExit as error:         # [handlers]
            self._fail(error)
            raise       # leaves the loop, as in any task; _settle() tells what is left
        except Exception as error:          # [handlers]
            log.exception("%s: handler of %r", self._trouble.who, event)
            if event in ("elected", "lost"):
                self._fail(error)
            elif event == "yield" and value == self.term:
                self._lose("yielded")

    async def _settle(self):
        """Until the handlers of all that has happened have returned."""
        while (self._events or self._is_telling()) and asyncio.current_task() is not self._teller:
            self._start_teller()
            await asyncio.wait([self._teller], timeout=self._call_timeout)
            if self._is_telling():
                self._trouble.log_once("handler", "a handler has not returned yet")

    def _our_tasks(self):
        return [self._teller] if self._is_telling() else []

    # --- waiting

    def _change(self):
        """A future that is done when something changes."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def _notify(self):
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _await(self, condition, seconds=None):
        """Wait until the condition holds, or for so many seconds."""
        end = time.monotonic() + (1e9 if seconds is None else seconds)
        while not condition() and time.monotonic() < end:
            await asyncio.wait([self._change()], timeout=end - time.monotonic())

    # --- forks

    def _is_forked(self):
        return self._pid is not None and self._pid != os.getpid()

    def _forked_text(self):
        return (f"this leadership stands in the process that called start(), {self._pid}. Call "
                "start() after the fork, in each process that is to stand (gunicorn: in post_fork)")

    def _refuse_forked(self):
        """[forks] In a child no loop runs, and wait() would wait for ever."""
        if self._is_forked():
            raise RuntimeError(self._forked_text())


class _Standing(_Candidate):
    """The engine, and what Leadership and DetachedLeadership have in common.

    _held is the grant that the server may take us to hold. What is held, but not led, is given back
    when the handlers of "lost" have returned, and before we lead again.

    Subclasses say how to _stand(), _call(), _release() and _withdraw(), what _RENEW is, and
    whether the lease is _BOUND to a connection: then closing it, by _hang_up(), gives the lease
    back.
    """

    def __init__(self, election, candidate=None, **options):
        super().__init__(election, candidate, **options)
        self._held = None
        self._checker, self._diagnosis = None, ""   # the task of a health check, what it said
        self._closed = None                     # a future, which is done when we have to end
        self._heard = False                     # news of our election
        self._attempted = 0.0                   # when we tried last to connect, or to acquire
        self._pause = _FIRST_PAUSE
        self._refused_since = None              # by a primary, after login

    async def start(self):
        """Begin to stand, in a task of this loop."""
        await super().start()
        if self._engine is None and not self._closing:
            _refuse_uwsgi_without_threads()
            if not self._named and self._made_in != os.getpid():
                # The other name would be that of all children.
                self.candidate = _default_name()
                self._trouble.who = f"election {self.election!r}, candidate {self.candidate!r}"
            self._closed = asyncio.get_running_loop().create_future()
            self._engine = asyncio.ensure_future(self._run_engine())
            self._engine.add_done_callback(_seen)
        return self

    def _end(self, reason):
        super()._end(reason)
        if self._closed and not self._closed.done():
            self._closed.set_result(None)

    def _our_tasks(self):
        tasks = [self._engine, self._checker, self._teller]
        return [task for task in tasks if task is not None and not task.done()]

    # --- the engine: one turn after the other

    async def _run_engine(self):
        """The engine, from beginning to end."""
        seconds = 0.0
        while self._held or not self._closing:
            try:
                await self._rest(seconds)
                seconds = await self._turn()
                self._pause = _FIRST_PAUSE
            except (asyncio.CancelledError, SystemExit):    # the loop is shut down: end in order
                self._end("closed")
                seconds = 0.0
            except Exception as error:
                seconds = self._recover(error)
        try:
            await self._withdraw()
        except Exception as error:      # then the end of the session, or of the lease, does it
            log.debug("%s: %r", self._trouble.who, error)
        if self._error:
            self._tell("error", self._error)
        await self._settle()

    async def _turn(self):
        """One step. Returns for how many seconds to rest then."""
        if self._held and not self._lead:
            await self._give_back()
            return 0.0
        began, lead = self._now(), self._lead
        if not await self._is_healthy():
            return await self._fall_ill()
        if self._closing or self._lead is not lead:
            return 0.0
        self._held = await (self._renew(lead) if lead else self._stand())
        if self._held:
            self._extend(self._held)
        self._answered()
        if self._held:
            return self._held.third
        # At least a tenth of a second for each: a campaign may have ended at once [spin].
        return max(self._interval, began + 0.1 - self._now())

    async def _renew(self, lead):
        """Returns what we hold now: this term; after a failover of the server, a greater one; or
        nothing."""
        grant = await self._ask(self._RENEW, lead.term, self._metadata)
        if self._lead is not lead and grant:    # lost meanwhile: this is given back, and not begun
            self._last_term = grant.term
        if not grant or grant.term != lead.term:
            self._lose("failover" if grant else "not renewed")
            await self._settle()
        return grant

    async def _give_back(self):
        """The end of a leadership, at the server."""
        await self._settle()
        # Cleared first: a call that fails is tried once, not for ever [spin: server down].
        held, self._held = self._held, None
        await self._release(held)
        if self._last_reason != "connection lost":
            # Others first, and a lone candidate does not spin [resign, alone].
            await self._await(lambda: self._closing, 1.0)

    async def _rest(self, seconds):
        """Until there is something to do, or news of our election come."""
        await self._await(lambda: self._closing or self._heard or self._held and not self._lead,
                          seconds)
        self._heard = False         # before we ask, so that what comes meanwhile is not missed

    async def _pace(self):
        """Never more than 10 attempts a second, whatever fails or wakes us [spin]."""
        await self._await(lambda: self._closing, self._attempted + 0.1 - self._now())
        self._attempted = self._now()

    # --- the engine: the health check

    async def _is_healthy(self):
        """What the health check says, in a task of its own: one that hangs is ill."""
        if self._health_check is None:
            return True
        self._checker = asyncio.ensure_future(self._run_check())
        try:
            answer = await self._within(self._checker)
        except Exception as error:
            self._diagnosis = repr(error)
            return False
        self._diagnosis = repr(answer)
        return bool(answer)

    async def _run_check(self):
        try:
            return await _called(self._health_check)
        except SystemExit as error:
            self._fail(error)
            raise

    async def _fall_ill(self):
        """Do not stand until we are well. A lease that we hold is given back in the next turn."""
        self._lose("unhealthy")
        if not self._closing:
            self._trouble.goes_on("unhealthy", "", f"the health check says: {self._diagnosis}")
        if not self._held:
            await self._withdraw()
        return 1.0

    # --- the engine: what an error means

    def _recover(self, error):
        """What an error means for now. Returns for how many seconds to rest."""
        if self._closing:       # _withdraw() needs the connection
            return 0.0
        # Busy, cancelled: the call did nothing, and the deadline decides.
        did_nothing = self._lead and _sqlstate(error) in ("55P03", "57014")
        if self._BOUND and not did_nothing:
            self._lose("connection lost")
        # Closing the socket of a session gives its lease back, which is done only when the handlers
        # of "lost" have returned: by the next turn.
        if self._BOUND and not self._held:
            self._hang_up()
        self._judge(error)
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        if self._lead:      # often: a pool may hand out one broken connection after the other
            pause = min(pause, self._lead.third / 8)
        return pause * random.uniform(0.5, 1.0)

    def _judge(self, error):
        """What an error means for good. A refusal ends us when it has lasted for refusal_timeout:
        before login, if every address refuses us; after login, if it is a primary's word."""
        verdict = None
        if isinstance(error, _NotConnected):        # each address has been reported
            verdict = self._addresses.verdict()
        else:
            self._report(error)
        if isinstance(error, _Pooled):
            verdict = error
        elif _sqlstate(error).startswith(_LASTING):
            self._refused_since = self._refused_since or time.monotonic()
            if time.monotonic() - self._refused_since >= self._refusal_timeout:
                verdict = error
        elif not isinstance(error, (_NotConnected, _NotPrimary)):
            self._refused_since = None
        if verdict:
            self._fail(verdict)

    def _report(self, error):
        sqlstate = _sqlstate(error)
        if sqlstate and not sqlstate.startswith(_NO_ANSWER):
            self._trouble.goes_on("refused", sqlstate, _words(error))
        else:
            self._trouble.goes_on("unreachable", sqlstate, _text(error))

    def _answered(self):
        """The last attempt was answered, and not by a refusal."""
        self._refused_since = None
        self._trouble.ends()

    # --- the engine: calls

    async def _within(self, work, more=0.0, cut=None, until_closed=False):
        """What this task or coroutine returns, if it does so in call_timeout seconds (and more),
        and before our deadline. Else it is cut off: by cut(), or cancelled."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(_seen)
        limit = self._call_timeout + more
        if self._lead:
            limit = min(limit, self._lead.deadline - self._now())
        try:
            await asyncio.wait([task, self._closed] if until_closed else [task], timeout=limit,
                               return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done() and not task.cancelled():
            return task.result()
        if cut is None or until_closed and self._closed.done():
            task.cancel()
        else:
            cut()
        raise TimeoutError("no answer in time")

    async def _ask(self, sql, *values):
        """A call that answers with a grant, or None: what remains counts from its sending."""
        sent = self._now()
        row = await self._call(sql, *values)
        if row is None:
            return None
        term, remaining_ms, yielding = row
        lasts = int(remaining_ms) / 1000
        return _Grant(int(term), sent + lasts, lasts / 3, yielding == "t")


class Leadership(_Standing):
    """A session candidate: a connection of its own, never a pool's.

    where: a URI, or a dict of asyncpg.connect()'s arguments (and service, servicefile, hostaddr);
    "": the PG* environment. Several hosts, and the addresses of one name, are tried in turn, until
    one is the primary. pooler="session": there is a pooler in between, in session mode; then
    nothing is set in the session.

    A call that gets no answer may go on at the server: a campaign would be elected there, and
    nobody would know. Its connection is destroyed then, and never used again. (asyncpg would ask
    the server to cancel the call, over another connection: over a cut path the campaign goes on.
    asyncpg has no keepalives either: our timers, and slices, take their place.)
    """

    _BOUND = True
    # The first statement, before anything is set
    _HELLO = """SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery(),
        pg_catalog.min(setting) FILTER (WHERE name = 'log_min_duration_statement'),
        pg_catalog.min(setting) FILTER (WHERE name = 'statement_timeout')
        FROM pg_catalog.pg_settings"""
    # These would end a campaign, or the session. (transaction_timeout: since PostgreSQL 17)
    _NO_TIMEOUTS = """SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings
        WHERE name IN ('statement_timeout', 'idle_session_timeout', 'transaction_timeout')"""
    # Without auto_renew: the server could elect a follower that is cut off, or the session of a
    # process that hangs, and would renew that lease.
    _JOIN = """SELECT leader_election.join($1, $2, rank => $3::pg_catalog.int4,
        metadata => $4::pg_catalog.jsonb, auto_renew => false)"""
    _CAMPAIGN = """CALL leader_election.campaign($1, $2,
        timeout => pg_catalog.make_interval(secs => $3))"""
    # Half: the server may end the session of a silent peer after 3 * floor(lease / 3) seconds, at
    # least 3, and another leads at once then.
    _RENEW = """SELECT term, remaining_ms / 2, yielding FROM leader_election.renew($1,
        metadata => $3::pg_catalog.jsonb) WHERE term = $2"""
    _LEAVE = "SELECT leader_election.leave($1)"

    def __init__(self, where, election, candidate=None, **options):
        super().__init__(election, candidate, **{**options, "interval": 0.0})
        self._addresses = _Addresses(*_read(where), self._refusal_timeout)
        self._conn = None
        self._stuck = False         # a call over it got no answer
        self._slice_now = self._slice

    async def _stand(self):
        """A campaign, for a slice. Joins first: so our place in line survives each."""
        if self._conn is None:
            await self._connect()
            await self._call(self._JOIN, self.candidate, self._rank, self._metadata)
            self._trouble.ends()    # campaign() may refuse us all the same
        # close() waits for no campaign: asyncpg has the server cancel it, and _withdraw() reads the
        # answer. Were the connection closed now, the server would log that as FATAL [slices].
        row = await self._within(
            self._conn.fetchrow(self._CAMPAIGN, self.election, self.candidate, self._slice_now),
            more=self._slice_now, cut=self._cut_off, until_closed=True)
        return await self._ask(self._RENEW, row[0], self._metadata) if row[0] else None

    async def _connect(self):
        """A connection to the primary: asks each address, once."""
        error = None
        for address in await self._within(self._addresses.round(), until_closed=True):
            await self._pace()
            try:
                await self._try(address)
                return
            except Exception as failure:
                if isinstance(failure, _Pooled) or self._closing:
                    raise
                error = failure
                self._hang_up()
                if not isinstance(error, _NotPrimary):
                    self._report(error)
        if isinstance(error, _NotPrimary):      # no trouble while the next one is the primary
            self._report(error)
        raise _NotConnected from error

    async def _try(self, address):
        # Time limits are ours. Nothing is prepared, to be left behind in a pooler.
        arguments = {"timeout": self._call_timeout, **self._addresses.arguments(address),
                     "command_timeout": None, "statement_cache_size": 0}
        try:
            conn = await self._within(asyncpg.connect(**arguments), until_closed=True)
        except Exception as error:
            if _sqlstate(error).startswith(_REFUSES_LOGIN):
                self._addresses.refused(address, error)
            else:
                self._addresses.answered(address)
            raise
        self._addresses.answered(address)
        self._conn, self._stuck = conn, False
        conn.add_termination_listener(self._on_termination)
        await self._check_server(conn)
        self._addresses.found_primary(address)

    async def _check_server(self, conn):
        """Is it the primary, and is the session ours alone? Nothing is set before we know that no
        pooler lends it to others as well [behind a pooler]."""
        pid, in_recovery, logged_from, statement_timeout = await self._call(self._HELLO)
        if not self._pooler and int(pid) != conn.get_server_pid():
            raise _Pooled("this is a pooler: use DetachedLeadership, or say pooler='session' if it "
                          "is in session mode")
        if in_recovery == "t":
            raise _NotPrimary("this server is a standby")
        if not self._pooler:
            await self._call(self._NO_TIMEOUTS)
            statement_timeout = 0
        self._slice_now = self._fit_slice(int(logged_from) / 1000, int(statement_timeout) / 1000)

    def _fit_slice(self, logged_from, statement_timeout):
        """How long a campaign waits: shorter than the statements that the server logs [slices], or
        cancels, if that cannot be set."""
        if self._slice is not None:
            return self._slice
        fitted = 5.0
        if 0.25 <= logged_from < 5.0 / 0.8:
            fitted = 0.8 * logged_from
        elif 0 < logged_from < 0.25:
            self._trouble.log_once("slice", "log_min_duration_statement is "
                                   f"{1000 * logged_from:.0f} ms: the server's log will have each "
                                   "campaign")
        if statement_timeout > 0:
            fitted = min(fitted, 0.8 * statement_timeout)
        return fitted

    def _on_termination(self, conn):
        if conn is self._conn:
            self._lose("connection lost")   # [backend terminated]

    async def _call(self, sql, *values):
        return await self._within(_copy(self._conn, _fill(sql, self.election, *values)),
                                  cut=self._cut_off)

    def _cut_off(self):
        """A call got no answer. While something is held, _release() destroys the connection: others
        may lead as soon as it is closed, which must not be before "lost" was told."""
        if self._held:
            self._stuck = True
        else:
            self._conn.terminate()

    def _hang_up(self):
        if not self._held and self._conn is not None:
            conn, self._conn = self._conn, None
            conn.terminate()

    async def _release(self, held):
        await self._withdraw()

    async def _withdraw(self):
        """leave(), with which others are elected at once; then a proper end of the connection,
        which leaves nothing in a pooler [session pooler]."""
        conn, self._conn = self._conn, None
        if conn is None:
            return

        async def say_goodbye():
            await _copy(conn, _fill(self._LEAVE, self.election))
            await conn.close()
        try:
            if not self._stuck and not conn.is_closed():
                await self._within(say_goodbye(), cut=conn.terminate)
        finally:
            conn.terminate()


class DetachedLeadership(_Standing):
    """A detached candidate: each call over any connection, also through PgBouncer.

    pool: an asyncpg.Pool, or a callable that returns an async context manager of an asyncpg
    connection. interval: how often one that does not lead asks. listen: a URI or dict for LISTEN,
    past any pooler; then a vacancy is noticed at once.
    """

    _BOUND = False
    _ACQUIRE = """SELECT term, remaining_ms, yielding FROM leader_election.acquire($1, $2,
        rank => $3::pg_catalog.int4, metadata => $4::pg_catalog.jsonb,
        request => $5::pg_catalog.uuid)"""
    _RENEW = """SELECT term, remaining_ms, yielding FROM leader_election.renew($1, $2,
        metadata => $3::pg_catalog.jsonb)"""
    _RELEASE = "SELECT leader_election.release($1, $2)"
    _LEAVE = "SELECT leader_election.leave($1, $2)"
    _IN_RECOVERY = "SELECT pg_catalog.pg_is_in_recovery()"

    def __init__(self, pool, election, candidate=None, **options):
        super().__init__(election, candidate, **options)
        self._acquire = getattr(pool, "acquire", pool)
        self._addresses = _Addresses.of_a_pool(self._refusal_timeout)
        self._ears = None if self._listen is None else _Addresses(*_read(self._listen), 0.0)
        self._request = None    # the same until it is granted: no grant is lost with its answer
        self._known = False     # to the server, as a candidate

    async def _run_engine(self):
        ear = asyncio.ensure_future(self._run_ear())
        try:
            await super()._run_engine()
        finally:
            ear.cancel()

    async def _stand(self):
        await self._pace()
        self._request = self._request or uuid.uuid4()   # not before a fork
        self._known = True
        grant = await self._ask(self._ACQUIRE, self.candidate, self._rank, self._metadata,
                                self._request)
        if grant:
            self._request = None
        return grant

    async def _release(self, held):
        await self._call(self._RELEASE, held.term)

    async def _withdraw(self):
        if self._known:
            self._known = False     # tried once, as in _give_back()
            await self._call(self._LEAVE, self.candidate)

    async def _call(self, sql, *values):
        """The first row of the answer. The time that it takes to get a connection counts."""
        sql, lent = _fill(sql, self.election, *values), []

        async def call():
            async with self._acquire() as conn:
                lent.append(conn)
                self._addresses.answered("pool")
                try:
                    return await self._fetch(conn, sql)
                except asyncio.CancelledError:
                    # A pool of asyncpg's waits for the end of a COPY that was cancelled, for ever
                    # if all of its answer had come, and that keeps asyncio.run() from returning
                    # [handlers].
                    conn.terminate()
                    raise
        task = asyncio.ensure_future(call())

        def cut_off():      # a call may go on at the server: that connection must not be used again
            if lent:
                lent[0].terminate()
            else:
                task.cancel()
        try:
            return await self._within(task, cut=cut_off)
        except Exception as error:
            if lent:
                raise
            if _sqlstate(error).startswith(_REFUSES_LOGIN):
                self._addresses.refused("pool", error)
            else:
                self._addresses.answered("pool")
            self._report(error)
            raise _NotConnected from error

    async def _fetch(self, conn, sql):
        """A standby may lag: what it refuses, the primary may grant [refused by the standby]."""
        try:
            return await _copy(conn, sql)
        except asyncpg.PostgresError as error:
            if _sqlstate(error).startswith(_LASTING + _MAY_PASS) and await self._is_standby(conn):
                raise _NotPrimary("this server is a standby") from error
            raise

    async def _is_standby(self, conn):
        try:
            return await _copy(conn, self._IN_RECOVERY) == ["t"]
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            return False    # a pooler has closed it, say: its word is all that there is

    # --- LISTEN

    async def _run_ear(self):
        """Wake the follower up when something has changed; over a connection of its own."""
        while self._ears:
            for address in await self._ears.round():
                try:
                    await self._listen_for_a_minute(address)
                except Exception as error:
                    self._trouble.log_once("listen", f"cannot listen: {_words(error)}")
                    await asyncio.sleep(1.0)

    async def _listen_for_a_minute(self, address):
        """Then anew: that a path is cut is told by silence only."""
        conn = await asyncpg.connect(**{"timeout": self._call_timeout,
                                        **self._ears.arguments(address)})
        try:
            await asyncio.wait_for(conn.add_listener("leadership_changed", self._on_news),
                                   self._call_timeout)
            await asyncio.sleep(60.0)
        finally:
            conn.terminate()

    def _on_news(self, _conn, _pid, _channel, payload):
        if json.dumps(self.election, ensure_ascii=False) in payload:
            self._heard = True
            self._notify()


class SoleLeadership(_Candidate):
    """For a laptop, or one instance without the extension: always leads, and issues no term: term
    is None, leads is True. fenced() refuses, unless unfenced: then it does nothing."""

    async def start(self):
        await super().start()
        if not self._lead:
            self._begin(_Grant(None, float("inf"), 0.0, False))
        return self

    async def resign(self):
        self._lose("resigned")
        await self.start()


class FakeLeadership(_Candidate):
    """For tests: the test says who leads, and moves the clock. fenced() asks no server. When a
    method returns, so have the handlers."""

    def __init__(self, election="election", candidate=None, **options):
        super().__init__(election, candidate, **{**options, "unfenced": True})
        self._time, self._last = 0.0, 0

    def _now(self):
        return self._time

    async def elect(self, term=None, lease=15.0):
        """Be elected in this term (default: the next one), for so many seconds; returns it."""
        self._lose("not renewed")
        self._last = self._last + 1 if term is None else term
        self._begin(_Grant(self._last, self._time + lease, 0.0, False))
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


# --- where to connect

_Address = namedtuple("_Address", "host port ip")     # ip: to be dialled instead of the host

_PLACE = ("host", "hostaddr", "port", "service", "servicefile")
# Words of libpq's that asyncpg would send to the server. Our timers, and asking each server what it
# is, take their place.
_NOT_ASYNCPGS = ("connect_timeout", "fallback_application_name", "keepalives", "keepalives_idle",
                 "keepalives_interval", "keepalives_count", "tcp_user_timeout",
                 "target_session_attrs")


class _Addresses:
    """Where to connect. Each address of each host has its own last word: one that refuses a login
    may be a standby that lags, so only if all of them do, and for long, that is final."""

    def __init__(self, arguments, servers, refusal_timeout):
        self._arguments, self._servers = arguments, servers     # see _read()
        self._refusal_timeout = refusal_timeout
        self._all, self._primary = [], None
        self._refusals = {}         # by address: since when, and the last error

    @classmethod
    def of_a_pool(cls, refusal_timeout):
        """The pool knows where to connect. For us it is one address, "pool"."""
        addresses = cls({}, [], refusal_timeout)
        addresses._all = ["pool"]
        return addresses

    async def round(self):
        """All of them, each once, beginning with the one that was the primary. Names are looked up
        anew each time [one name]."""
        self._all = [address for server in self._servers for address in await _resolve(*server)]
        self._refusals = {address: self._refusals[address] for address in self._all
                          if address in self._refusals}
        return sorted(self._all, key=lambda address: address != self._primary)

    def arguments(self, address):
        """asyncpg.connect()'s, for this address alone: asyncpg would end the list at the first
        server that refuses, give all its time to a dead one, and stay with a standby."""
        arguments = {**self._arguments, "host": address.host, "port": address.port}
        if address.ip:
            arguments["loop"] = _Dialer(asyncio.get_running_loop(), address.ip)
        return arguments

    def refused(self, address, error):
        """It has said no, before login."""
        since, _ = self._refusals.get(address, (time.monotonic(), None))
        self._refusals[address] = since, error

    def answered(self, address):
        """It lets us in; or nobody knows what it would say, which is no refusal, either."""
        self._refusals.pop(address, None)

    def found_primary(self, address):
        self._primary = address

    def verdict(self):
        """The error, once every address has refused us for refusal_timeout without a break."""
        refusals = [self._refusals.get(address) for address in self._all]
        if not refusals or None in refusals:
            return None
        since, error = max(refusals, key=lambda refusal: refusal[0])
        return error if time.monotonic() - since >= self._refusal_timeout else None


class _Dialer:
    """An event loop that dials one address, whatever name it is given: asyncpg has no hostaddr, and
    without the name it would find neither the certificate's nor the password file's."""

    def __init__(self, loop, ip):
        self._loop, self._ip = loop, ip

    def __getattr__(self, name):
        return getattr(self._loop, name)

    def create_connection(self, factory, host=None, port=None, **more):
        if more.get("ssl"):
            more.setdefault("server_hostname", host)
        return self._loop.create_connection(factory, self._ip, port, **more)


async def _resolve(host, port, hostaddr):
    """The addresses of a server. One that cannot be looked up fails when asyncpg tries."""
    if hostaddr or host is None or host.startswith("/"):
        return [_Address(host, port, hostaddr)]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        found = []
    ips = list(dict.fromkeys(entry[4][0] for entry in found))
    return [_Address(host, port, ip) for ip in ips] if len(ips) > 1 else [
        _Address(host, port, None)]


def _read(where):
    """asyncpg.connect()'s arguments but for the server, and the servers, (host, port, hostaddr). As
    libpq reads it: what is given counts, then the service, then the environment."""
    given = where if isinstance(where, dict) else {"dsn": where}
    given = {word: value for word, value in given.items() if value is not None}
    parts = re.fullmatch(r"(?:(\w+):)?(?://([^/?]*))?([^?]*)(?:\?(.*))?",
                         given.pop("dsn", None) or "postgresql:")
    scheme, place, path, query = parts.groups("")
    if scheme not in ("postgresql", "postgres"):
        raise ValueError("where to connect is a URI, postgresql:..., or a dict")
    words = dict(urllib.parse.parse_qsl(query, strict_parsing=bool(query)))
    login, at, hosts = place.rpartition("@")
    if hosts:
        words.update(_hosts_of_uri(hosts))
    words.update({word: given.pop(word) for word in _PLACE if word in given})
    service = words.pop("service", None) or os.environ.get("PGSERVICE")
    servicefile = words.pop("servicefile", None)
    if service:
        words = {**_read_service(service, servicefile), **words}

    lists = [_list_of(words.pop(word, None) or os.environ.get(f"PG{word.upper()}"))
             for word in _PLACE[:3]]
    rest = {word: value for word, value in words.items() if word not in _NOT_ASYNCPGS}
    path = "" if path == "/" else path      # to asyncpg, a database whose name is empty
    given["dsn"] = f"{scheme}://{login}{at}{path}?{urllib.parse.urlencode(rest)}".rstrip("?")
    return given, _servers(*lists)


def _hosts_of_uri(text):
    """host and port of `a:1,[::1],b`, as lists."""
    found = [re.fullmatch(r"(?:\[(.*)\]|([^:]*))(?::(\d*))?", part) for part in text.split(",")]
    if None in found:
        raise ValueError(f"not a list of hosts: {text!r}")
    words = {"host": [urllib.parse.unquote(it[1] or it[2]) for it in found]}
    if any(it[3] for it in found):
        words["port"] = [it[3] for it in found]
    return words


def _list_of(value):
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else str(value).split(",")


def _servers(hosts, hostaddrs, ports):
    count = max(len(hosts), len(hostaddrs), 1)
    if any(len(values) not in (0, count) for values in (hosts, hostaddrs)) or \
            len(ports) not in (0, 1, count):
        raise ValueError(f"{len(hosts)} hosts, {len(hostaddrs)} addresses, {len(ports)} ports")
    hosts = hosts or hostaddrs or [None]
    ports = ports * count if len(ports) == 1 else ports or [None] * count
    return [(host or None, int(port or 5432), hostaddr or None)
            for host, port, hostaddr in zip(hosts, ports, hostaddrs or [None] * count)]


def _read_service(name, path):
    """The section of a service file, which asyncpg reads from 0.31 on, and not for PGSERVICE."""
    paths = [path or os.environ.get("PGSERVICEFILE") or pathlib.Path.home() / ".pg_service.conf"]
    if "PGSYSCONFDIR" in os.environ:
        paths.append(pathlib.Path(os.environ["PGSYSCONFDIR"]) / "pg_service.conf")
    for path in map(pathlib.Path, paths):
        words, ours, found = {}, False, False
        lines = path.read_text().splitlines() if path.is_file() else []
        for line in map(str.strip, lines):
            if line.startswith("["):
                ours = line == f"[{name}]" and not found
                found = found or ours
            elif ours and "=" in line and not line.startswith("#"):
                word, _, value = line.partition("=")
                words[word.strip()] = value
        if found:
            return words
    raise ValueError(f"no service {name!r} in {' or '.join(map(str, paths))}")


# --- the rest

_Grant = namedtuple("_Grant", "term deadline third yielding")


class _Trouble:
    """What the last attempt came to, for `state`, and for the log: a line when a trouble begins,
    then one a minute; the same for each kind, if several take turns; and one when it has ended."""

    def __init__(self, who):
        self.who = who
        self.text = None            # None: an answer
        self._logged = {}           # when, by kind
        self._ended = 0.0

    def goes_on(self, word, sqlstate, text):
        if not self.text and time.monotonic() - self._ended > 5.0:
            self._logged.clear()    # another trouble: all was well for more than a call or two
        self.text = word if word == "unhealthy" else f"{word}: {text}"
        self.log_once((word, sqlstate), f"{word}: {text}")

    def ends(self):
        if self.text:
            self.text, self._ended = None, time.monotonic()
            log.warning("%s: is answered again", self.who)

    def log_once(self, kind, text):
        now = time.monotonic()
        if now - self._logged.get(kind, float("-inf")) >= 60.0:
            self._logged[kind] = now
            log.warning("%s: %s", self.who, text)


class _NotPrimary(Exception):
    """What this server says counts for nothing."""


class _NotConnected(Exception):
    """No address has let us in. Each has been reported."""


class _Pooled(asyncpg.FeatureNotSupportedError):
    """A session behind a pooler that lends it to others."""


async def _copy(conn, sql):
    """The first row of the answer, as text, or None. A statement with arguments takes two steps,
    which a transaction pooler may send to two sessions; COPY is the one way in which asyncpg reads
    a row in one."""
    rows = asyncio.Queue()
    # The driver's own time limit is out of the way of ours [query timeout].
    await conn.copy_from_query(sql, output=rows.put, timeout=86400)
    return None if rows.empty() else rows.get_nowait().decode().rstrip("\n").split("\t")


def _fill(sql, *values):
    """The values in the places of $1, $2 and so on."""
    # E'': right whatever standard_conforming_strings is
    text = ["NULL" if v is None else " E'%s'" % re.sub(r"(['\\])", r"\1\1", str(v)) for v in values]
    return re.sub(r"\$(\d)", lambda place: text[int(place[1]) - 1], sql)


async def _called(function, *values):
    """What the application's function, or coroutine function, returns. (A task is not awaited.)"""
    answer = function(*values)
    return await answer if asyncio.iscoroutine(answer) else answer


def _seen(task):
    """Its error is ours to report, not asyncio's."""
    return task.cancelled() or task.exception()


def _sqlstate(error):
    return getattr(error, "sqlstate", None) or ""


def _text(error):
    """One line, without detail and hint"""
    return str(error).partition("\n")[0] or type(error).__name__


def _words(error):
    return f"{_sqlstate(error) or type(error).__name__} {_text(error)}"


def _default_name():
    """A candidate's name, of at most 200 bytes: the end of the host's name tells more than its
    beginning. In Kubernetes it is the pod's, which operators know."""
    pid = os.getpid()
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        host = os.environ.get("POD_NAME") or os.environ.get("HOSTNAME") or socket.gethostname()
        tail = "" if pid == 1 else f"-{pid}"
    else:
        host, tail = socket.gethostname(), f"-{pid}-{os.urandom(2).hex()}"
    return host.encode()[-(200 - len(tail)):].decode(errors="ignore") + tail


def _refuse_uwsgi_without_threads():
    """[forks] Only uWSGI's own thread runs there, and this loop is in another one."""
    uwsgi = sys.modules.get("uwsgi")
    if (uwsgi and threading.current_thread() is not threading.main_thread()
            and not {"enable-threads", "threads"} & set(uwsgi.opt)):
        raise RuntimeError("uWSGI runs no threads: say enable-threads = true")
