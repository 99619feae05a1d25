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

The states are those of the clients for all languages (docs/clients.md draws them): standing; a
grant: leads; _lose(reason): losing, while the handlers of "lost" run; _give_back(), and after a
second: standing; after close() or a final error: ended.

Invariant: a term is never given out after the deadline, which is counted from the *sending* of
the last answered renewal; every "elected" has exactly one "lost"; the handlers of "lost" have
returned before the lease is given back.

Tasks of ours, in the application's loop; one of the application's that is cancelled takes none of
them with it:
  the engine        makes all calls to the server, one after the other; its waits end at the
                    deadline of a leadership.
  the teller        calls the handlers, one after the other: so a slow handler holds up no renewal.
While the loop is blocked, nothing is renewed and nothing is told; `term` is None all the same once
the deadline is over.

A name in brackets is that of the fault, in test/clients, which a line is there for.

The clock goes on while the machine sleeps where the system has such a clock (Linux). Even so a
process can be paused between the look at `term` and its next write: fence what must not be late.
"""

import asyncio
import contextlib
import json
import logging
import os
import pathlib
import random
import re
import secrets
import socket
import sys
import threading
import time
import urllib.parse
import uuid
from collections import namedtuple

import asyncpg

log = logging.getLogger("leader_election")
# What wait() raises, and on_error is told (see sqlstate), if it is not the error of a handler.
LeadershipError = asyncpg.PostgresError


class NotLeader(Exception):
    """fenced() was called, and this instance does not lead."""


class _Candidate:
    """What all four classes have in common, also their options, so that each can stand in for
    another.

    health_check: a function or coroutine function; unless it says true, in call_timeout seconds, we
    do not stand, and the lease is given back. call_timeout: how many seconds a call to the server
    may take. refusal_timeout: after how many seconds a refusal is final. slice: how many seconds
    one campaign waits, and so how soon a dead path is noticed. interval: how often a detached
    candidate asks. Handlers are functions or coroutine functions, and called one at a time: stop
    the work in on_lost, but do not do it in on_elected.
    """

    _ASSERT = "SELECT leader_election.assert_leader($1, $2)"

    def __init__(self, election="election", candidate=None, *, rank=None, metadata=None,
                 health_check=None, call_timeout=5.0, refusal_timeout=30.0, slice=None,
                 interval=1.0, listen=None, pooler=None, unfenced=False,
                 on_elected=None, on_lost=None, on_yield=None, on_error=None):
        if pooler not in (None, "session"):
            raise ValueError("pooler is None or 'session'")
        self.election = election
        self.candidate = candidate or _default_name()
        self.changes = 0                    # how often we were elected
        self._rank, self._metadata = rank, None if metadata is None else json.dumps(metadata)
        self._call_timeout, self._refusal_timeout = call_timeout, refusal_timeout
        self._slice, self._interval, self._listen, self._pooler = slice, interval, listen, pooler
        self._unfenced, self._health_check = unfenced, health_check
        self._handlers = {"elected": on_elected, "lost": on_lost, "yield": on_yield,
                          "error": on_error}
        # The last one, as the application knows it: so far one that has ended, and is told.
        self._lead = _Tenure(_Grant(0, 0.0, 0.0, False), ["never led"], {"elected", "lost"})
        self._closing = None                # why we end for good: "closed", or an "error"
        self._error = None
        self._trouble = _Trouble(self._warn)
        self._pid = None                    # of the process that called start()
        self._engine_ended = True           # nothing more to be given back
        self._bells = []                    # of all tasks that wait
        self._engine = self._teller = self._checker = None      # tasks

    # --- for the application

    @property
    def leads(self):
        return self._current() is not None

    @property
    def term(self):
        """The term in which this instance leads now, else None. Does not block."""
        lead = self._current()
        return lead and lead.term

    @property
    def state(self):
        """What the last attempt came to: standing, leads, unhealthy, "unreachable: ...",
        "refused: SQLSTATE ...", closed, "failed: SQLSTATE ...". Does not block."""
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
        seen = await self._await(lambda: self._current() or self._closing, timeout)
        if self._error:
            await self.close()              # waits until the lease is given back
            raise self._error
        return seen.term if isinstance(seen, _Tenure) else None     # even if it was lost just now

    async def fenced(self, connection):
        """Fence the transaction that is open on this asyncpg connection: from here on its COMMIT
        fails with SQLSTATE LE002 unless this very term still leads then. Raises NotLeader, without
        asking the server, if this instance does not lead; LE001 if the server says so."""
        self._refuse_forked()
        lead = self._current()
        if not lead:
            raise NotLeader(f"{self.candidate!r} does not lead election {self.election!r}")
        if self._unfenced:
            return
        if lead.term is None or not connection.is_in_transaction():
            raise RuntimeError("fenced() would fence nothing: no transaction, or no term")
        await connection.execute(_fill(self._ASSERT, self.election, lead.term))

    def set_metadata(self, metadata):
        """What view status is to show of us: from the next renewal on, or when we lead next."""
        self._metadata = json.dumps(metadata)

    async def resign(self):
        """Give up now, and stand again after a second. Does nothing if we do not lead, and waits
        for nothing: the lease is given back when the handler of "lost" has returned."""
        self._lose("yielded" if self._lead.grant.yielding else "resigned")
        if not self._engine:        # Sole and Fake: when a method returns, so have the handlers
            await self._settle()

    async def close(self):
        """Give up, withdraw, end; waits call_timeout seconds at most. Others are elected at once.
        All this is done even if the task that waits for it is cancelled."""
        if self._is_forked():
            return
        self._end("closed")
        ours = [task for task in (self._engine, self._teller, self._checker) if _runs(task)]
        # A handler or health check that calls it is waited for, and does not wait. [handlers]
        if ours and asyncio.current_task() not in ours:
            await asyncio.wait(ours, timeout=self._call_timeout)

    async def __aenter__(self):
        return await self.start()

    async def __aexit__(self, *_):
        await self.close()

    # --- a leadership begins, and ends

    def _now(self):
        """Seconds, on a clock that goes on while the machine sleeps, if there is one."""
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if boottime is None else time.clock_gettime(boottime)

    def _current(self):
        """Our leadership, or None. Where it is first seen to be over, by the clock or by close(),
        the reason is written down: it has ended for good then, and an answer that comes too late
        revives nothing. [stopped]"""
        lead = self._lead
        if not lead.ends and (self._closing or self._now() >= lead.grant.deadline):
            lead.ends.append(self._closing or "expired")
        return None if lead.ends or self._is_forked() else lead

    def _begin(self, grant):
        """Lead, unless the grant came too late: then the next turn gives it back."""
        if self._now() < grant.deadline and not self._closing:
            self.changes += 1
            self._lead = _Tenure(grant)
        self._ring()

    def _lose(self, reason):
        """End the leadership, if there is one. In this order: the term is gone; the teller calls
        the handlers of "lost"; the engine gives the lease back."""
        lead = self._current()
        if lead:
            lead.ends.append(reason)
        self._ring()

    def _end(self, reason):
        """End for good."""
        self._closing = self._closing or reason
        self._ring()

    def _fail(self, error):
        """End for good with this error."""
        if not self._error or isinstance(error, SystemExit):
            self._error = error
            self._warn("ends: %s", _words(error))
        self._end("error")

    # --- events are told: the teller

    def _due(self):
        """What the application is to be told next: the event and its value, or None."""
        lead, leads = self._lead, self._current()
        if "elected" not in lead.told:
            return "elected", lead.term
        if leads and lead.grant.yielding and "yield" not in lead.told:
            return "yield", lead.term
        if lead.ends and "lost" not in lead.told:
            return "lost", lead.ends[0]
        if lead.ends and self._error and self._engine_ended and "error" not in lead.told:
            return "error", self._error
        return None

    async def _tell(self):
        """Call the handler that is due, if one is: then returns true."""
        lead, due = self._lead, self._due()
        if due:
            try:
                await self._handle(*due)
            finally:
                lead.told.add(due[0])
                self._ring()
        return bool(due)

    async def _handle(self, event, value):
        """Call a handler. What its error means, says the table in docs/clients.md. [handlers]"""
        try:
            if self._handlers[event]:
                await _called(self._handlers[event], value)
            elif event == "yield":
                await self.resign()
        except asyncio.CancelledError:
            pass        # what `work.cancel(); await work` comes to: the handler has ended
        except SystemExit as error:
            self._fail(error)
            raise       # leaves the loop, as in any task; the next teller tells what is left
        except Exception as error:
            self._warn("handler of %r", event, exc_info=True)
            if event in ("elected", "lost"):
                self._fail(error)
            elif event == "yield":
                await self.resign()

    async def _run_teller(self):
        while await self._tell():
            pass

    async def _settle(self):
        """Until all that is due was told. A handler does not wait for itself."""
        while (self._due() or _runs(self._teller)) and asyncio.current_task() is not self._teller:
            self._ring()
            await asyncio.wait([self._teller], timeout=1.0)

    def _warn(self, text, *values, **options):
        log.warning(f"election %r, candidate %r: {text}", self.election, self.candidate, *values,
                    **options)

    # --- tasks wait, and wake each other

    async def _await(self, condition, seconds=None):
        """Until the condition holds, or the time is over; returns what the condition says then. It
        is asked when a task rings, and each second: the timers of the loop stand still while the
        machine sleeps."""
        until = time.monotonic() + (1e9 if seconds is None else seconds)
        while not (value := condition()) and time.monotonic() < until:
            bell = asyncio.get_running_loop().create_future()
            self._bells.append(bell)
            try:
                await asyncio.wait([bell], timeout=max(0.0, min(1.0, until - time.monotonic())))
            finally:
                self._bells.remove(bell)
        return value

    def _ring(self):
        """Something has changed: wake all that wait, and have a teller, if something is to tell."""
        for bell in self._bells:
            if not bell.done():
                bell.set_result(None)
        if self._due() and not _runs(self._teller):
            self._teller = asyncio.ensure_future(self._run_teller())
            self._teller.add_done_callback(_seen)

    # --- forks

    def _is_forked(self):
        return self._pid is not None and self._pid != os.getpid()

    def _forked_text(self):
        return (f"this leadership stands in the process that called start(), {self._pid}. Call "
                "start() after the fork, in each process that is to stand (gunicorn: in post_fork)")

    def _refuse_forked(self):
        """In a child no loop runs, and wait() would wait for ever. [forks]"""
        if self._is_forked():
            raise RuntimeError(self._forked_text())


class _Standing(_Candidate):
    """The engine, and what Leadership and DetachedLeadership have in common.

    _held is the grant that the server may take us to hold. What is held, but not led, is given back
    when the handlers of "lost" have returned, and before we lead again.

    A subclass says how to _stand(), _release(held) and _withdraw(), how to _call() the server, the
    statement _RENEW, and whether the lease is _BOUND to a connection: then closing it gives the
    lease back; and what an unexpected end of the connection means, _on_end(wire). These, and all
    methods below, run in the engine.
    """

    def __init__(self, election, candidate=None, **options):
        super().__init__(election, candidate, **options)
        self._named_in = os.getpid() if candidate is None else None     # the process
        self._held = None
        self._wire = None               # a connection of our own, when there is one
        self._attempted = float("-inf")     # when we called last
        self._pause = _FIRST_PAUSE
        self._refused_since = None      # by a primary, after login, for a lasting reason
        self._health_text = ""
        self._heard = False             # news of our election

    async def start(self):
        """Begin to stand, in a task of this loop."""
        await super().start()
        if not self._engine and not self._closing:
            _refuse_uwsgi_without_threads()
            if self._named_in not in (None, os.getpid()):
                self.candidate = _default_name()    # that of before a fork is each child's
            self._engine_ended = False
            self._engine = asyncio.ensure_future(self._run_engine())
            self._engine.add_done_callback(_seen)
        return self

    async def _run_engine(self):
        """The engine, from beginning to end."""
        seconds = 0.0
        while self._held or not self._closing:
            try:
                await self._rest(seconds)
                seconds = await self._turn()
                self._pause = _FIRST_PAUSE
            except _Stopped:
                seconds = 0.0
            except (asyncio.CancelledError, SystemExit):    # the loop is shut down: end in order
                self._end("closed")
                seconds = 0.0
            except Exception as error:
                seconds = self._recover(error)
        with contextlib.suppress(Exception):    # then the end of session or lease does it
            await self._withdraw()
        self._hang_up()
        self._engine_ended = True
        await self._settle()

    # --- one step

    async def _turn(self):
        """One step. Returns for how many seconds to rest then."""
        lead = self._current()
        if self._held and not lead:
            await self._give_back()
            return 0.0
        self._stop_if_closing()
        if not await self._is_healthy():
            return await self._stand_down()
        await self._pace()
        self._stop_if_closing()
        if lead:
            await self._renew(lead)
        else:
            self._held = await self._stand()
            if self._held:
                self._begin(self._held)
        self._refused_since = None
        self._trouble.ends()
        return self._held.third if self._held else self._interval

    async def _pace(self):
        """Never more than 10 attempts a second, whatever fails or wakes us. [spin]"""
        await self._await(lambda: self._closing, self._attempted + 0.1 - self._now())
        self._attempted = self._now()

    async def _renew(self, lead):
        """Go on leading: in this term; after a failover of the server, in a greater one. What has
        ended meanwhile is not revived: the next turn gives back what we hold then."""
        self._held = grant = await self._ask(self._RENEW, lead.term, self._metadata)
        if grant and grant.term == lead.term:
            if self._current():
                lead.grant = grant
                self._ring()
            return
        self._lose("failover" if grant else "not renewed")
        await self._await_lost()
        if lead.ends[0] == "failover":      # and not resigned during the call
            self._begin(grant)

    async def _give_back(self):
        """The end of a leadership, at the server."""
        await self._await_lost()
        # Cleared first: a call that fails is tried once, not for ever. [spin: server down]
        held, self._held = self._held, None
        await self._release(held)
        if self._lead.ends[0] != "connection lost":
            # Others first, and a lone candidate does not spin. [resign, alone]
            await self._await(lambda: self._closing, 1.0)

    async def _await_lost(self):
        """Until the handlers of "lost" have returned, however long that takes."""
        self._ring()
        while not await self._await(lambda: "lost" in self._lead.told, self._call_timeout):
            self._trouble.log("handler", "a handler has not returned yet")

    async def _rest(self, seconds):
        """Until there is something to do, or news of our election come."""
        await self._await(lambda: self._closing or self._heard or bool(self._held) != self.leads,
                          seconds)
        self._heard = False         # before we ask, so that what comes meanwhile is not missed

    # --- the health check

    async def _is_healthy(self):
        """What the health check says. It runs in a task of its own: while it hangs we are ill, and
        it is cancelled."""
        if not self._health_check:
            return True
        self._checker = asyncio.ensure_future(self._run_check())
        try:
            answer = await self._within(self._checker, stop=True)
        except Exception as error:
            answer, self._health_text = False, repr(error)
        else:
            self._health_text = repr(answer)
        return bool(answer)

    async def _run_check(self):
        """The task of one health check."""
        try:
            return await _called(self._health_check)
        except SystemExit as error:
            self._fail(error)
            raise

    async def _stand_down(self):
        """Do not stand until we are well. A lease that we hold is given back in the next turn."""
        self._lose("unhealthy")
        if not self._closing:
            self._trouble.begins("unhealthy", "", f"the health check says: {self._health_text}")
        if not self._held:
            await self._withdraw()
        return 1.0

    # --- what an error means

    def _recover(self, error):
        """What an error means for now. Returns for how many seconds to rest."""
        # Busy, cancelled: the call did nothing, and the deadline decides.
        did_nothing = self.leads and _sqlstate(error) in ("55P03", "57014")
        if self._BOUND and not did_nothing:
            self._lose("connection lost")
        # Closing the socket of a session gives its lease back, which is done only when the handlers
        # of "lost" have returned: by the next turn.
        if not (self._BOUND and self._held):
            self._hang_up()
        if not self._closing:
            self._judge(error)
        lead = self._current()
        if isinstance(error, (_LoginFailed, _NotPrimary)) and self._addresses.left and not lead:
            return 0.0      # the others of this round at once
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        if lead:            # often: a pool may hand out one broken connection after the other
            pause = min(pause, lead.grant.third / 8)
        return pause * random.uniform(0.5, 1.0)

    def _judge(self, error):
        """What an error means for good. A refusal ends us when it has lasted for refusal_timeout:
        before login, if every address refuses us; after login, if it is a primary's word."""
        sqlstate, verdict = _sqlstate(error), None
        if isinstance(error, _NotPrimary):      # no break in what a primary says, either
            if not self._addresses.left:        # no trouble while the next one is the primary
                self._trouble.begins("unreachable", sqlstate, _text(error))
            return
        if isinstance(error, _LoginFailed):
            verdict = self._addresses.verdict()
        elif isinstance(error, _Pooled):
            verdict = error
        elif not sqlstate.startswith(_LASTING):
            self._refused_since = None
        elif not self._refused_since:
            self._refused_since = time.monotonic()
        elif time.monotonic() - self._refused_since >= self._refusal_timeout:
            verdict = error
        if sqlstate and not sqlstate.startswith(_NO_ANSWER):
            self._trouble.begins("refused", sqlstate, _words(error))
        else:
            self._trouble.begins("unreachable", sqlstate, _text(error))
        if verdict:
            self._fail(verdict)

    # --- calls

    async def _ask(self, sql, *values):
        """A call that answers with a grant, or None: what remains counts from its sending."""
        sent = self._now()
        row = await self._call(sql, *values)
        if not row:
            return None
        term, remaining_ms, yielding = row
        seconds = int(remaining_ms) / 1000
        return _Grant(int(term), sent + seconds, seconds / 3, yielding == "t")

    async def _within(self, work, more=0.0, stop=False):
        """What this task or coroutine returns, if it does so in call_timeout seconds (and more),
        and before our deadline: a renewal is of no use after it [leader's network cut]. Else it is
        cancelled. stop: also when we are closing."""
        lead, until = self._current(), self._now() + self._call_timeout + more
        if lead:
            until = min(until, lead.grant.deadline)
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._on_done)
        try:
            await self._await(lambda: task.done() or stop and self._closing, until - self._now())
            if task.done() and not task.cancelled():
                return task.result()
            if stop:
                self._stop_if_closing()
            raise TimeoutError("no answer in time")
        finally:
            task.cancel()

    def _on_done(self, task):
        _seen(task)
        self._ring()

    async def _connect(self, addresses):
        """A connection to the next address."""
        address = await self._within(addresses.next(), stop=True)
        params = {"timeout": self._call_timeout, **addresses.params_of(address)}
        try:
            wire = await self._within(_Wire.open(params), stop=True)
        except Exception as error:
            addresses.refused(address, error)
            raise _LoginFailed(error) from error
        addresses.answered(address)
        wire.on_end(self._on_end)
        return wire

    def _stop_if_closing(self):
        """For waits that close() need not wait for."""
        if self._closing:
            raise _Stopped

    def _hang_up(self):
        wire, self._wire = self._wire, None
        if wire:
            wire.close()


class Leadership(_Standing):
    """A session candidate: a connection of its own, never a pool's.

    where: a URI, or a dict of asyncpg.connect()'s arguments (and service, servicefile, hostaddr);
    "": the PG* environment. Several hosts, and the addresses of one name, are tried in turn, until
    one is the primary. pooler="session": there is a pooler in between, in session mode; then
    nothing is set in the session.
    """

    _BOUND = True
    # The first statement, before anything is set
    _HELLO = """SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery(),
        (SELECT setting FROM pg_catalog.pg_settings
            WHERE name OPERATOR(pg_catalog.=) 'log_min_duration_statement'),
        (SELECT setting FROM pg_catalog.pg_settings
            WHERE name OPERATOR(pg_catalog.=) 'statement_timeout')"""
    # These would end a campaign, or the session. (transaction_timeout: since PostgreSQL 17)
    _NO_TIMEOUTS = """SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings
        WHERE name OPERATOR(pg_catalog.=) ANY
            ('{statement_timeout,idle_session_timeout,transaction_timeout}')"""
    # Without auto_renew: the server could elect a follower that is cut off, or the session of a
    # process that hangs, and would renew that lease.
    _JOIN = """SELECT leader_election.join($1, $2, rank => $3::pg_catalog.int4,
        metadata => $4::pg_catalog.jsonb, auto_renew => false)"""
    _CAMPAIGN = """CALL leader_election.campaign($1, $2,
        timeout => pg_catalog.make_interval(secs => $3))"""
    # Half: the server may end the session of a silent peer after 3 * floor(lease / 3) seconds, at
    # least 3, and another leads at once then.
    _RENEW = """SELECT term, remaining_ms / 2, yielding FROM leader_election.renew($1,
        metadata => $3::pg_catalog.jsonb) WHERE term OPERATOR(pg_catalog.=) $2::pg_catalog.int8"""
    _LEAVE = "SELECT leader_election.leave($1)"

    def __init__(self, where, election, candidate=None, **options):
        super().__init__(election, candidate, **{**options, "interval": 0.0})
        self._addresses = _Addresses(*_read(where), self._refusal_timeout)

    async def _stand(self):
        """Wait for a slice to be elected. Joins first: so our place in line survives each slice."""
        if not self._wire:
            self._wire = await self._connect(self._addresses)
            await self._check_server()
            await self._call(self._JOIN, self.candidate, self._rank, self._metadata)
            self._trouble.ends()    # campaign() may refuse us all the same
        [term] = await self._campaign()
        return await self._ask(self._RENEW, term, self._metadata) if term else None

    async def _check_server(self):
        """Is it the primary, and is the session ours alone? Nothing is set before we know that no
        pooler lends it to others as well. [behind a pooler]"""
        row = await self._within(self._wire.ask(self._HELLO))
        pid, in_recovery, logged_from, statement_timeout = row
        if not self._pooler and int(pid) != self._wire.conn.get_server_pid():
            raise _Pooled("this is a pooler: use DetachedLeadership, or say pooler='session' if it "
                          "is in session mode")
        if in_recovery == "t":
            raise _NotPrimary("this server is a standby")
        self._addresses.found_primary()
        if not self._pooler:
            await self._within(self._wire.ask(self._NO_TIMEOUTS))
            statement_timeout = 0
        limits = int(logged_from) / 1000, int(statement_timeout) / 1000
        self._fitting_slice = self._fit_slice(*limits)

    def _fit_slice(self, logged_from, statement_timeout):
        """For how many seconds a campaign waits: less than what the server logs as a slow
        statement [slices], or cancels, if we must not set that."""
        if self._slice is not None:
            return self._slice
        seconds = 5.0
        if 0.2 <= 0.8 * logged_from < seconds:
            seconds = 0.8 * logged_from
        elif 0 < 0.8 * logged_from < 0.2:
            self._trouble.log("slice", "the server's log will have each campaign, which is longer "
                              f"than {logged_from} s, its log_min_duration_statement")
        return min(seconds, 0.8 * statement_timeout) if statement_timeout > 0 else seconds

    async def _campaign(self):
        """If we close meanwhile, asyncpg has the server cancel it, and _withdraw() waits for that,
        and gives back what was granted. Were the connection closed, the server would log that as
        FATAL. [slices: SIGTERM]"""
        seconds = self._fitting_slice
        return await self._within(
            self._wire.conn.fetchrow(self._CAMPAIGN, self.election, self.candidate, seconds),
            more=seconds, stop=True)

    def _on_end(self, wire):
        """The session has ended, and not by us. [backend terminated]"""
        if wire is self._wire:
            self._lose("connection lost")

    async def _release(self, held):
        await self._withdraw()

    async def _withdraw(self):
        """Also gives back what we hold. Through a pooler the session would go on without us. If
        this fails, the end of the session does it."""
        if self._wire:
            with contextlib.suppress(Exception):
                await self._call(self._LEAVE)
                await self._within(self._wire.end())
            self._hang_up()

    async def _call(self, sql, *values):
        return await self._within(self._wire.ask(sql, self.election, *values))


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
        self._addresses = _Addresses({}, [], self._refusal_timeout)
        self._addresses.all = ["pool"]      # which knows itself where to connect
        self._listeners, self._listen_at = None, 0.0
        if self._listen is not None:
            self._listeners = _Addresses(*_read(self._listen), 0.0)
        self._request = None        # of acquire(), until one is granted
        self._stands = False        # as the server knows it

    async def _stand(self):
        """Ask for the lease. With the same request until it is granted: if the answer is lost, the
        next one is that grant. [lost answer]"""
        self._request = self._request or uuid.uuid4()
        self._stands = True
        grant = await self._ask(self._ACQUIRE, self.candidate, self._rank, self._metadata,
                                self._request)
        if grant:
            self._request = None
        elif self._listeners and self._now() >= self._listen_at:
            await self._begin_to_listen()
        return grant

    async def _begin_to_listen(self):
        """Each minute anew: asyncpg has no keepalives, and silence alone tells that a path is cut.
        Then we still ask each interval."""
        self._hang_up()
        try:
            self._wire = await self._connect(self._listeners)
            await self._within(self._wire.conn.add_listener("leadership_changed", self._on_news))
            self._listeners.found_primary()     # a standby refuses that
            self._listen_at = self._now() + 60.0
        except Exception as error:
            self._hang_up()
            if not self._listeners.left:        # else the next address, in the next turn
                self._listen_at = self._now() + 30.0
                self._trouble.log("listen", f"cannot listen: {_text(error)}")

    def _on_end(self, wire):
        if wire is self._wire:
            self._listen_at = 0.0

    def _on_news(self, _conn, _pid, _channel, payload):
        if json.dumps(self.election, ensure_ascii=False) in payload:
            self._heard = True
            self._ring()

    async def _release(self, held):
        await self._call(self._RELEASE, held.term)

    async def _withdraw(self):
        if self._stands:
            self._stands = False        # tried once, as in _give_back()
            # It may lead, by an answer that was lost. Then its lease runs out.
            with contextlib.suppress(asyncpg.InvalidParameterValueError):
                await self._call(self._LEAVE, self.candidate)

    async def _call(self, sql, *values):
        """Over any connection of the pool's. One on which a call may go on is closed: it does not
        get into the pool again."""
        lent = []
        try:
            return await self._within(self._call_over_pool(lent, sql, self.election, *values))
        except (TimeoutError, asyncio.CancelledError):
            # asyncpg's pool would wait for the end of what was cancelled; for ever, if all of the
            # answer had come, and asyncio.run() would not return. [handlers]
            for conn in lent:
                with contextlib.suppress(asyncpg.InterfaceError):   # it is the pool's again
                    conn.terminate()
            self._addresses.answered("pool")        # a refusal would be another word
            raise
        except Exception as error:
            if lent:
                raise
            self._addresses.refused("pool", error)
            raise _LoginFailed(error) from error

    async def _call_over_pool(self, lent, sql, *values):
        async with self._acquire() as conn:
            lent.append(conn)
            self._addresses.answered("pool")
            return await self._call_over(_Wire(conn), sql, *values)

    async def _call_over(self, wire, sql, *values):
        """A standby may lag: what it refuses, the primary may grant. [refused by the standby]"""
        try:
            return await wire.ask(sql, *values)
        except asyncpg.PostgresError as error:
            row = None
            if _sqlstate(error).startswith(_MAY_PASS + _LASTING):
                with contextlib.suppress(Exception):        # a pooler has closed it, say
                    row = await wire.ask(self._IN_RECOVERY)
            if row == ["t"]:
                raise _NotPrimary("this server is a standby") from error
            raise


class SoleLeadership(_Candidate):
    """For a laptop, or one instance without the extension: always leads, and issues no term: term
    is None, leads is True. fenced() refuses, unless unfenced: then it does nothing."""

    async def start(self):
        await super().start()
        self._lead_on()
        await self._settle()
        return self

    async def _tell(self):
        """Also leads again, once "lost" is told."""
        told = await super()._tell()
        self._lead_on()
        return told

    def _lead_on(self):
        if "lost" in self._lead.told:
            self._begin(_Grant(None, float("inf"), 0.0, False))


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
        await self.lose("not renewed")
        self._last = self._last + 1 if term is None else term
        self._begin(_Grant(self._last, self._time + lease, 0.0, False))
        await self._settle()
        return self._last

    async def lose(self, reason="connection lost"):
        self._lose(reason)
        await self._settle()

    async def ask_yield(self):
        self._lead.grant = self._lead.grant._replace(yielding=True)
        await self._settle()

    async def advance(self, seconds):
        """Move the clock; past the deadline the leadership has expired."""
        self._time += seconds
        await self._settle()


# --- what an error means

# SQLSTATEs, or classes of them. What a primary refuses may pass: by a restore, CREATE EXTENSION,
# GRANT, a rename.
_MAY_PASS = ("42501", "3F000", "42883", "42P01", "LE003")
# These end us when they have lasted for refusal_timeout. [refused for good]
_LASTING = ("28", "3D000", "22023", "0A000", "25001")
# No primary is there to refuse: a broken connection, shutdown and start, no room, a standby
_NO_ANSWER = ("08", "57P", "53", "25006")
# A login that is refused: this server may be a standby that lags.
_REFUSES_LOGIN = ("28", "3D000", "42501")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0     # between attempts, in seconds; it doubles


class _Stopped(BaseException):
    """We are closing, and need not wait for this. That is no error."""


class _LoginFailed(Exception):
    """No connection. sqlstate: if the server, or a pooler, refused us."""

    def __init__(self, error):
        super().__init__(_text(error))
        self.sqlstate = _sqlstate(error)


class _NotPrimary(Exception):
    """What this server says counts for nothing."""


class _Pooled(asyncpg.FeatureNotSupportedError):
    """There is a pooler between a session candidate and the server."""


class _Trouble:
    """What the last attempt came to, for `state`, and for the log: a line when a trouble begins,
    then one a minute, and one when it has ended. If it comes and goes, that is one trouble."""

    def __init__(self, warn):
        self._warn = warn
        self.text = None            # None: an answer
        self._logged = {}           # when, by kind
        self._is_known = False      # by the log: its end is to be logged, too

    def begins(self, word, sqlstate, text):
        self.text = word if word == "unhealthy" else f"{word}: {text}"
        if self.log((word, sqlstate), f"{word}: {text}"):
            self._is_known = True

    def ends(self):
        self.text = None
        if self._is_known:
            self._is_known = False
            self._warn("all is well again")

    def log(self, kind, text):
        """Once a minute for each kind. Returns whether it was logged."""
        now = time.monotonic()
        if now - self._logged.get(kind, float("-inf")) < 60.0:
            return False
        self._logged[kind] = now
        self._warn("%s", text)
        return True


def _sqlstate(error):
    return getattr(error, "sqlstate", None) or ""


def _text(error):
    """The first line, without detail and hint"""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _words(error):
    hint = ""
    if _sqlstate(error) in ("3F000", "42883"):      # no such schema, or function
        hint = " (CREATE EXTENSION leader_election, or portable.sql?)"
    return f"{_sqlstate(error) or type(error).__name__} {_text(error)}{hint}"


# --- what the server has given us

# third: of the lease, in seconds; then we renew. yielding: we are asked to go.
_Grant = namedtuple("_Grant", "term deadline third yielding")


class _Tenure:
    """A term in which we lead, or led. Only the engine prolongs it, by another grant; any thread
    may end it."""

    def __init__(self, grant, ends=(), told=()):
        self.term, self.grant = grant.term, grant
        self.ends = list(ends)      # reasons for its end, of which the first counts
        self.told = set(told)       # events whose handlers have returned


# --- where to connect

_Address = namedtuple("_Address", "host port hostaddr")     # hostaddr: dialled instead of the host
_PLACE = (*_Address._fields, "service", "servicefile")
# Words of libpq's that asyncpg would send to the server. Our timers, and asking each server what it
# is, take their place.
_NOT_ASYNCPGS = ("connect_timeout", "fallback_application_name", "keepalives", "keepalives_idle",
                 "keepalives_interval", "keepalives_count", "tcp_user_timeout",
                 "target_session_attrs")


class _Addresses:
    """Where to connect: one address after the other, round after round.

    asyncpg would end its list at the first server that refuses us, would give all its time to a
    dead one, and would stay with a standby. Each address has its own last word: one that refuses a
    login may be a standby that lags, so only if all of them do, and for long, that is final.
    """

    def __init__(self, params, servers, refusal_timeout):
        self._params, self._servers = params, servers       # see _read()
        self._refusal_timeout = refusal_timeout
        self.left = []              # of this round
        self.all = []
        self._refusals = {}         # by address: since when, and the last error
        self._last = self._primary = None

    async def next(self):
        """A round begins with the one that was the primary. Names are looked up anew each time."""
        if not self.left:
            self.all = [address for server in self._servers
                        for address in await _resolve(*server)]
            self.left = sorted(self.all, key=lambda address: address != self._primary)
        self._last = self.left.pop(0)
        return self._last

    def params_of(self, address):
        """asyncpg.connect()'s, for this address alone."""
        params = {**self._params, "host": address.host, "port": address.port}
        if address.hostaddr:
            params["loop"] = _Dialer(asyncio.get_running_loop(), address.hostaddr)
        return params

    def refused(self, address, error):
        """It has said no, before login, or something else: then nobody knows what it would say,
        which is no refusal."""
        if not _sqlstate(error).startswith(_REFUSES_LOGIN):
            return self.answered(address)
        since, _ = self._refusals.get(address, (time.monotonic(), None))
        self._refusals[address] = since, error

    def answered(self, address):
        self._refusals.pop(address, None)

    def found_primary(self):
        """The last address is the primary's: the next round begins with it."""
        self._primary, self.left = self._last, []

    def verdict(self):
        """The error, if the last word of every address is a refusal, and has been for so long."""
        refusals = [self._refusals.get(address) for address in self.all]
        if not refusals or None in refusals:
            return None
        since, error = max(refusals, key=lambda refusal: refusal[0])
        return error if time.monotonic() - since >= self._refusal_timeout else None


async def _resolve(host, port, hostaddr):
    """The addresses of a server [one name]. If there is none to look up, asyncpg says what is
    wrong."""
    ips = [hostaddr]
    if host and not hostaddr and not host.startswith("/"):      # that is a socket
        with contextlib.suppress(OSError, UnicodeError):
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            ips = list(dict.fromkeys(address[0] for *_, address in found))
    return [_Address(host, port, ip) for ip in (ips if len(ips) > 1 else [hostaddr])]


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
             for word in _Address._fields]
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
    return list(value) if isinstance(value, (list, tuple)) else str(value or "").split(",")


def _servers(*lists):
    count = max(map(len, lists))
    if any(len(values) not in (1, count) for values in lists):
        raise ValueError("as many {}s as {}s and {}s".format(*_Address._fields))
    servers = [[values[i % len(values)] for values in lists] for i in range(count)]
    return [_Address(host or hostaddr or None, int(port or 5432), hostaddr or None)
            for host, port, hostaddr in servers]


def _read_service(name, path):
    """The section of a service file, which asyncpg reads from 0.31 on, and not for PGSERVICE."""
    paths = [path or os.environ.get("PGSERVICEFILE") or pathlib.Path.home() / ".pg_service.conf"]
    if "PGSYSCONFDIR" in os.environ:
        paths.append(pathlib.Path(os.environ["PGSYSCONFDIR"]) / "pg_service.conf")
    for path in map(pathlib.Path, paths):
        text = path.read_text() if path.is_file() else ""
        section = re.search(rf"^\s*\[{re.escape(name)}\]\s*$(.*?)(^\s*\[|\Z)", text, re.M | re.S)
        if section:
            lines = [line.strip().partition("=") for line in section[1].splitlines()]
            return {word.strip(): value for word, equals, value in lines
                    if equals and not word.startswith("#")}
    raise ValueError(f"no service {name!r} in {' or '.join(map(str, paths))}")


# --- connections

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


class _Wire:
    """A connection of asyncpg's, and calls over it.

    A call that gets no answer may go on at the server, and a campaign may be elected there, of
    which nobody knows: then the connection is closed, and never used again. (asyncpg would ask the
    server to cancel the call, over another connection: over a cut path the call goes on.)
    [query timeout], [connections forgotten]
    """

    def __init__(self, conn):
        self.conn = conn

    @classmethod
    async def open(cls, params):
        # Time limits are ours. Nothing is prepared, to be left behind in a pooler.
        return cls(await asyncpg.connect(
            **{**params, "command_timeout": None, "statement_cache_size": 0}))

    def on_end(self, listener):
        self.conn.add_termination_listener(lambda _: listener(self))

    async def ask(self, sql, *values):
        """The first row of the answer, as texts (NULL is ""), or None. A statement with arguments
        takes two steps, which a transaction pooler may send to two sessions; COPY is the one way in
        which asyncpg reads a row in one."""
        rows = asyncio.Queue()
        # The driver's own time limit is out of the way of ours. [query timeout]
        await self.conn.copy_from_query(_fill(sql, *values), output=rows.put, timeout=86400)
        return None if rows.empty() else rows.get_nowait().decode().rstrip("\n").split("\t")

    async def end(self):
        """Properly: nothing is left in a pooler. [session pooler]"""
        await self.conn.close()

    def close(self):
        self.conn.terminate()


def _fill(sql, *values):
    """The values in the places of $1, $2 and so on."""
    # E'': right whatever standard_conforming_strings is
    text = ["NULL" if v is None else " E'%s'" % re.sub(r"(['\\])", r"\1\1", str(v)) for v in values]
    return re.sub(r"\$(\d)", lambda place: text[int(place[1]) - 1], sql)


# --- tasks

async def _called(function, *values):
    """What the application's function, or coroutine function, returns. (A task is not awaited.)"""
    answer = function(*values)
    return await answer if asyncio.iscoroutine(answer) else answer


def _runs(task):
    return task is not None and not task.done()


def _seen(task):
    """Its error is ours to report, not asyncio's."""
    return task.cancelled() or task.exception()


# --- where this process runs

def _default_name():
    """A candidate's name, of at most 200 bytes: the end of the host's name tells more than its
    beginning. In Kubernetes it is the pod's, which operators know."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        host = os.environ.get("POD_NAME") or os.environ.get("HOSTNAME") or socket.gethostname()
        rest = "" if os.getpid() == 1 else f"-{os.getpid()}"
    else:
        host, rest = socket.gethostname(), f"-{os.getpid()}-{secrets.token_hex(2)}"
    return host.encode()[-(200 - len(rest)):].decode(errors="ignore") + rest


def _refuse_uwsgi_without_threads():
    """uWSGI, in its default configuration, runs no threads but the one of a request. [forks]"""
    uwsgi = sys.modules.get("uwsgi")
    is_other_thread = threading.current_thread() is not threading.main_thread()
    if uwsgi and is_other_thread and not {"enable-threads", "threads"} & set(uwsgi.opt):
        raise RuntimeError("uWSGI runs no threads unless it is told to: enable-threads = true")
