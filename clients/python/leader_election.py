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

The states are those of the clients for all languages (docs/clients.md draws them): standing; a
grant: leads; _lose(reason): losing, while the handlers of "lost" run; _give_back(), and after a
second: standing; after close() or a final error: ended.

Invariant: a term is never given out after the deadline, which is counted from the *sending* of
the last answered renewal; every "elected" has exactly one "lost"; the handlers of "lost" have
returned before the lease is given back.

Threads:
  the engine        makes all calls to the server, one after the other.
  the teller        calls the handlers, one after the other, and ends a leadership at its deadline:
                    so a slow handler holds up no renewal, and a dead server no "lost".
  the application   any of its threads, also in a signal handler, which may interrupt anything. So
                    there are no locks: close() and resign() are one assignment, and then ring.

A name in brackets is that of the fault, in test/clients, which a line is there for.

The clock goes on while the machine sleeps where the system has such a clock (Linux). Even so a
process can be paused between the look at `term` and its next write: fence what must not be late.
"""

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
import sys
import threading
import time
import uuid
from collections import namedtuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ConnStatus, ExecStatus, PGconn, PollingStatus, TransactionStatus

log = logging.getLogger("leader_election")
# What wait() raises, and on_error is told (see sqlstate), if it is not the error of a handler.
LeadershipError = psycopg.Error


class NotLeader(Exception):
    """fenced() was called, and this instance does not lead."""


class _Candidate:
    """What all four classes have in common, also their options, so that each can stand in for
    another.

    health_check: a function; unless it says true, in call_timeout seconds, we do not stand, and the
    lease is given back. call_timeout: how many seconds a call to the server may take.
    refusal_timeout: after how many seconds a refusal is final. slice: how many seconds one campaign
    waits, and so how soon a dead path is noticed. interval: how often a detached candidate asks.
    Handlers are called one at a time: stop the work in on_lost, but do not do it in on_elected.
    """

    _ASSERT = "SELECT leader_election.assert_leader(%s, %s)"

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
        self._bells = []                    # of all threads that wait
        self._telling = threading.Lock()    # never waited for: see _ring()

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

    def start(self):
        self._refuse_forked()
        self._pid = os.getpid()
        self._ring()
        return self

    def wait(self, timeout=None):
        """Until this instance leads: the term, or None after timeout seconds or close(). Raises the
        error that has ended us, also the SystemExit of a handler."""
        self._refuse_forked()
        seen = self._await(lambda: self._current() or self._closing, timeout)
        if self._error:
            self.close()                    # waits until the lease is given back
            raise self._error
        return seen.term if isinstance(seen, _Tenure) else None     # even if it was lost just now

    def fenced(self, connection):
        """Fence the transaction that is open on this DB-API connection (or Django's): from here
        on its COMMIT fails with SQLSTATE LE002 unless this very term still leads then. Raises
        NotLeader, without asking the server, if this instance does not lead; the driver's error,
        LE001, if the server says so."""
        self._refuse_forked()
        lead = self._current()
        if not lead:
            raise NotLeader(f"{self.candidate!r} does not lead election {self.election!r}")
        if self._unfenced:
            return
        with contextlib.closing(connection.cursor()) as cursor:     # Django connects here
            status = getattr(getattr(connection, "info", None), "transaction_status", 0)
            no_transaction = getattr(connection, "autocommit", False) and not status
            if lead.term is None or no_transaction:
                raise RuntimeError("fenced() would fence nothing: no transaction, or no term")
            cursor.execute(self._ASSERT, (self.election, lead.term))

    def set_metadata(self, metadata):
        """What view status is to show of us: from the next renewal on, or when we lead next."""
        self._metadata = json.dumps(metadata)

    def resign(self):
        """Give up now, and stand again after a second. Does nothing if we do not lead, and waits
        for nothing: the lease is given back when the handler of "lost" has returned."""
        self._lose("yielded" if self._lead.grant.yielding else "resigned")

    def close(self):
        """Give up, withdraw, end; waits call_timeout seconds at most. Others are elected at
        once."""
        self._end("closed")

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    # --- a leadership begins, and ends: any thread (only the engine begins one)

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

    def _tell(self):
        """Call the handler that is due, if one is: then returns true."""
        lead, due = self._lead, self._due()
        if due:
            self._handle(*due)
            lead.told.add(due[0])
            self._ring()
        return bool(due)

    def _handle(self, event, value):
        """Call a handler. What its error means, says the table in docs/clients.md. [handlers]"""
        try:
            if self._handlers[event]:
                self._handlers[event](value)
            elif event == "yield":
                self.resign()
        except SystemExit as error:
            self._fail(error)
        except BaseException as error:      # asyncio.CancelledError, too: it would end the thread
            self._warn("handler of %r", event, exc_info=True)
            if event in ("elected", "lost"):
                self._fail(error)
            elif event == "yield":
                self.resign()

    def _warn(self, text, *values, **options):
        log.warning(f"election %r, candidate %r: {text}", self.election, self.candidate, *values,
                    **options)

    # --- threads wait, and wake each other: any thread

    def _await(self, condition, seconds=None):
        """Until the condition holds, or the time is over; returns what the condition says then. It
        is asked when a thread rings, and each second: the timers of a wait stand still while the
        machine sleeps. The bell is a queue, because a signal handler may call its put() whatever it
        interrupts, even get()."""
        bell, until = queue.SimpleQueue(), time.monotonic() + (1e9 if seconds is None else seconds)
        self._bells.append(bell)
        try:
            while not (value := condition()) and time.monotonic() < until:
                with contextlib.suppress(queue.Empty):
                    bell.get(timeout=max(0.0, min(1.0, until - time.monotonic())))
            return value
        finally:
            self._bells.remove(bell)

    def _ring(self):
        """Something has changed: wake all that wait, and tell. Sole and Fake have no teller: the
        thread that caused an event calls its handler; if another handler runs, the thread of that
        one does when it has returned."""
        self._wake()
        while self._telling.acquire(blocking=False):
            try:
                self._tell()
            finally:
                self._telling.release()
            # Asked when it is released: a signal may have come after _tell(), whose handler could
            # not tell what it caused.
            if not self._due():
                break

    def _wake(self):
        if not self._is_forked():       # the bells of a child are its parent's
            for bell in tuple(self._bells):
                bell.put(None)

    # --- forks

    def _is_forked(self):
        return self._pid is not None and self._pid != os.getpid()

    def _forked_text(self):
        return (f"this leadership stands in the process that called start(), {self._pid}. Call "
                "start() after the fork, in each process that is to stand (gunicorn: in post_fork; "
                "uWSGI: with lazy-apps = true, or in @postfork)")

    def _refuse_forked(self):
        """In a child there are no threads, and wait() would wait for ever. [forks]"""
        if self._is_forked():
            raise RuntimeError(self._forked_text())


class _Standing(_Candidate):
    """The engine, and what Leadership and DetachedLeadership have in common.

    _held is the grant that the server may take us to hold. What is held, but not led, is given back
    when the handlers of "lost" have returned, and before we lead again.

    A subclass says how to _stand(), _release(held) and _withdraw(), how to _call() the server, the
    statement _RENEW, and whether the lease is _BOUND to a connection: then closing it gives the
    lease back. These, and all methods below, run in the engine, unless they say otherwise.
    """

    def __init__(self, election, candidate=None, **options):
        super().__init__(election, candidate, **options)
        self._named_in = os.getpid() if candidate is None else None     # the process
        self._engine = self._teller = self._checker = None      # threads
        self._held = None
        self._wire = None               # a connection of our own, when there is one
        self._attempted = float("-inf")     # when we called last
        self._pause = _FIRST_PAUSE
        self._refused_since = None      # by a primary, after login, for a lasting reason
        self._healthy, self._health_text = False, ""

    def start(self):
        """Begin to stand, in two threads of this process."""
        if not self._engine and not self._closing:
            _refuse_uwsgi_without_threads()
            if self._named_in not in (None, os.getpid()):
                self.candidate = _default_name()    # that of before a fork is each child's
            self._waker = _Waker(self._now)
            self._bells.append(self._waker)
            self._engine_ended = False
            self._engine = threading.Thread(target=self._run_engine, daemon=True)
            self._teller = threading.Thread(target=self._run_teller, daemon=True)
            self._engine.start()
            self._teller.start()
        return super().start()

    def close(self):
        super().close()
        teller = self._teller               # ends last
        ours = self._engine, teller, self._checker
        # A handler or health check that calls it is waited for, and does not wait. [handlers]
        if teller and not self._is_forked() and threading.current_thread() not in ours:
            if teller.is_alive():
                teller.join(self._call_timeout)

    def _ring(self):
        """Something has changed: wake all that wait, the teller and the engine, too. Any thread."""
        self._wake()

    def _run_teller(self):
        """The teller, from beginning to end."""
        while not self._engine_ended or self._due():
            if not self._tell():
                lead = self._current()
                self._await(lambda: self._due() or self._engine_ended,
                            lead.grant.deadline - self._now() if lead else 1.0)

    def _run_engine(self):
        """The engine, from beginning to end."""
        seconds = 0.0
        while self._held or not self._closing:
            try:
                self._rest(seconds)
                seconds = self._turn()
                self._pause = _FIRST_PAUSE
            except _Stopped:
                seconds = 0.0
            except Exception as error:
                seconds = self._recover(error)
        with contextlib.suppress(Exception):    # then the end of session or lease does it
            self._withdraw()
        self._hang_up()
        self._engine_ended = True
        self._ring()
        self._waker.close()

    # --- one step

    def _turn(self):
        """One step. Returns for how many seconds to rest then."""
        lead = self._current()
        if self._held and not lead:
            self._give_back()
            return 0.0
        self._stop_if_closing()
        if not self._is_healthy():
            return self._stand_down()
        self._pace()
        self._stop_if_closing()
        if lead:
            self._renew(lead)
        else:
            self._held = self._stand()
            if self._held:
                self._begin(self._held)
        self._refused_since = None
        self._trouble.ends()
        return self._held.third if self._held else self._interval

    def _pace(self):
        """Never more than 10 attempts a second, whatever fails or wakes us. [spin]"""
        self._await(lambda: self._closing, self._attempted + 0.1 - self._now())
        self._attempted = self._now()

    def _renew(self, lead):
        """Go on leading: in this term; after a failover of the server, in a greater one. What has
        ended meanwhile is not revived: the next turn gives back what we hold then."""
        self._held = grant = self._ask(self._RENEW, lead.term, self._metadata)
        if grant and grant.term == lead.term:
            if self._current():
                lead.grant = grant
                self._ring()
            return
        self._lose("failover" if grant else "not renewed")
        self._await_lost()
        if lead.ends[0] == "failover":      # and not resigned during the call
            self._begin(grant)

    def _give_back(self):
        """The end of a leadership, at the server."""
        self._await_lost()
        # Cleared first: a call that fails is tried once, not for ever. [spin: server down]
        held, self._held = self._held, None
        self._release(held)
        if self._lead.ends[0] != "connection lost":
            # Others first, and a lone candidate does not spin. [resign, alone]
            self._await(lambda: self._closing, 1.0)

    def _await_lost(self):
        """Until the handlers of "lost" have returned, however long that takes."""
        while not self._await(lambda: "lost" in self._lead.told, self._call_timeout):
            self._trouble.log("handler", "a handler has not returned yet")

    def _rest(self, seconds):
        """Until there is something to do, or news of our election come."""
        until, name = self._now() + seconds, json.dumps(self.election, ensure_ascii=False)
        while self._now() < until and not self._closing and bool(self._held) == self.leads:
            self._waker.sleep(until, self._wire and self._wire.pgconn.socket)
            if self._wire and any(name in payload for payload in self._wire.heard()):
                return

    # --- the health check

    def _is_healthy(self):
        """What the health check says. It runs in a thread of its own: while it hangs we are ill,
        and it is not called again."""
        if not self._health_check:
            return True
        if not self._checker:
            self._healthy, self._health_text = False, "no answer"
            self._checker = threading.Thread(target=self._run_check, daemon=True)
            self._checker.start()
        self._await(lambda: not self._checker or self._closing, self._call_timeout)
        return self._healthy and not self._checker

    def _run_check(self):
        """The thread of one health check."""
        try:
            answer = self._health_check()
            self._healthy, self._health_text = bool(answer), repr(answer)
        except SystemExit as error:
            self._fail(error)
        except BaseException as error:      # as in _handle()
            self._health_text = repr(error)
        self._checker = None
        self._ring()

    def _stand_down(self):
        """Do not stand until we are well. A lease that we hold is given back in the next turn."""
        self._lose("unhealthy")
        if not self._closing:
            self._trouble.begins("unhealthy", "", f"the health check says: {self._health_text}")
        if not self._held:
            self._withdraw()
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

    def _ask(self, sql, *values):
        """A call that answers with a grant, or None: what remains counts from its sending."""
        sent = self._now()
        row = self._call(sql, *values)
        if not row:
            return None
        term, remaining_ms, yielding = row
        seconds = int(remaining_ms) / 1000
        return _Grant(int(term), sent + seconds, seconds / 3, yielding == "t")

    def _until(self, more=0.0):
        """The time limit of a call that begins now. A renewal is of no use after the deadline.
        [leader's network cut]"""
        lead, until = self._current(), self._now() + self._call_timeout + more
        return min(until, lead.grant.deadline) if lead else until

    def _connect(self, addresses):
        """A connection to the next address."""
        address = addresses.next()
        params = {"fallback_application_name": self.candidate, **addresses.params_of(address)}
        seconds = float(params.get("connect_timeout") or 0)
        if seconds <= 0:        # libpq's "no limit"
            seconds = self._call_timeout
        try:
            wire = _Wire.open(params, self._waker, self._now() + seconds, self._stop_if_closing)
        except Exception as error:
            addresses.refused(address, error)
            raise _LoginFailed(error) from error
        addresses.answered(address)
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

    where: libpq's connection string or URI; "": the PG* environment, as libpq reads it. Several
    hosts, and the addresses of one name, are tried in turn, until one is the primary.
    pooler="session": there is a pooler in between, in session mode; then nothing is set in the
    session.
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
    _CAMPAIGN = "CALL leader_election.campaign($1, $2, timeout => $3::pg_catalog.interval)"
    # Half: the server may end the session of a silent peer after 3 * floor(lease / 3) seconds, at
    # least 3, and another leads at once then.
    _RENEW = """SELECT term, remaining_ms / 2, yielding FROM leader_election.renew($1,
        metadata => $3::pg_catalog.jsonb) WHERE term OPERATOR(pg_catalog.=) $2::pg_catalog.int8"""
    _LEAVE = "SELECT leader_election.leave($1)"

    def __init__(self, where, election, candidate=None, **options):
        super().__init__(election, candidate, **{**options, "interval": 0.0})
        self._addresses = _Addresses(conninfo_to_dict(where), self._refusal_timeout)

    def _stand(self):
        """Wait for a slice to be elected. Joins first: so our place in line survives each slice."""
        if not self._wire:
            self._wire = self._connect(self._addresses)
            self._check_server()
            self._call(self._JOIN, self.candidate, self._rank, self._metadata)
            self._trouble.ends()    # campaign() may refuse us all the same
        [term] = self._campaign()
        return self._ask(self._RENEW, term, self._metadata) if term else None

    def _check_server(self):
        """Is it the primary, and is the session ours alone? Nothing is set before we know that no
        pooler lends it to others as well. [behind a pooler]"""
        row = self._wire.ask(self._until(), self._HELLO)
        pid, in_recovery, logged_from, statement_timeout = row
        if not self._pooler and int(pid) != self._wire.pgconn.backend_pid:
            raise _Pooled("this is a pooler: use DetachedLeadership, or say pooler='session' if it "
                          "is in session mode")
        if in_recovery == "t":
            raise _NotPrimary("this server is a standby")
        self._addresses.found_primary()
        if not self._pooler:
            self._wire.ask(self._until(), self._NO_TIMEOUTS)
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

    def _campaign(self):
        seconds = self._fitting_slice
        try:
            return self._call(self._CAMPAIGN, self.candidate, f"{seconds} s", more=seconds,
                              stop=self._stop_if_closing)
        except _Stopped:
            # Were the connection closed now, the server would log that as FATAL. The answer may be
            # a grant: _withdraw() gives it back. [slices: SIGTERM]
            self._wire.cancel(self._until())
            raise

    def _release(self, held):
        self._withdraw()

    def _withdraw(self):
        """Also gives back what we hold. Through a pooler the session would go on without us. If
        this fails, the end of the session does it."""
        if self._wire:
            with contextlib.suppress(Exception):
                self._call(self._LEAVE)
            self._hang_up()

    def _call(self, sql, *values, more=0.0, stop=None):
        return self._wire.ask(self._until(more), sql, self.election, *values, stop=stop)


class DetachedLeadership(_Standing):
    """A detached candidate: each call over any connection, also through PgBouncer.

    pool: a psycopg_pool.ConnectionPool. interval: how often one that does not lead asks. listen: a
    connection string for LISTEN, past any pooler; then a vacancy is noticed at once.
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
        self._pool = pool
        self._addresses = _Addresses({}, self._refusal_timeout)     # the pool's: see _call()
        self._listeners, self._listen_at = None, 0.0
        if self._listen is not None:
            self._listeners = _Addresses(conninfo_to_dict(self._listen), 0.0)
        self._request = None        # of acquire(), until one is granted
        self._stands = False        # as the server knows it

    def _stand(self):
        """Ask for the lease. With the same request until it is granted: if the answer is lost, the
        next one is that grant. [lost answer]"""
        self._request = self._request or uuid.uuid4()
        self._stands = True
        grant = self._ask(self._ACQUIRE, self.candidate, self._rank, self._metadata, self._request)
        if grant:
            self._request = None
        elif self._listeners and not self._wire and self._now() >= self._listen_at:
            self._begin_to_listen()
        return grant

    def _begin_to_listen(self):
        """If that path is cut, we still ask each interval."""
        try:
            self._wire = self._connect(self._listeners)
            self._wire.ask(self._until(), "LISTEN leadership_changed")
            self._listeners.found_primary()     # a standby refuses that
        except Exception as error:
            self._hang_up()
            if not self._listeners.left:        # else the next address, in the next turn
                self._listen_at = self._now() + 30.0
                self._trouble.log("listen", f"cannot listen: {_text(error)}")

    def _release(self, held):
        self._call(self._RELEASE, held.term)

    def _withdraw(self):
        if self._stands:
            self._stands = False        # tried once, as in _give_back()
            # It may lead, by an answer that was lost. Then its lease runs out.
            with contextlib.suppress(psycopg.errors.InvalidParameterValue):
                self._call(self._LEAVE, self.candidate)

    def _call(self, sql, *values):
        """Over any connection of the pool's. One on which a call may go on is closed: it does not
        get into the pool again."""
        until = self._until()
        conn = self._get_connection(until)
        try:
            wire = _Wire(conn.pgconn, self._waker, conn.info.encoding)
            try:
                return wire.ask(until, sql, self.election, *values)
            except psycopg.Error as error:
                self._ignore_standby(wire, until, error)
                raise
        finally:
            if conn.info.transaction_status != TransactionStatus.IDLE:
                conn.close()
            self._pool.putconn(conn)

    def _get_connection(self, until):
        """A pool does not tell why it has no connection: then connect once without it, for the
        server's own word. Not while we lead: then the time is needed for the next attempt."""
        try:
            return self._pool.getconn(max(0.0, until - self._now()))
        except psycopg.OperationalError:
            if not self.leads and not self._closing:
                self._addresses.params = _params_of_pool(self._pool)
                self._connect(self._addresses).close()
            raise

    def _ignore_standby(self, wire, until, error):
        """A standby may lag: what it refuses, the primary may grant. [refused by the standby]"""
        if not _sqlstate(error).startswith(_MAY_PASS + _LASTING):
            return
        row = None
        with contextlib.suppress(psycopg.Error):    # a pooler has closed it, say
            row = wire.ask(until, self._IN_RECOVERY)
        if row == ["t"]:
            raise _NotPrimary("this server is a standby") from error


class SoleLeadership(_Candidate):
    """For a laptop, or one instance without the extension: always leads, and issues no term: term
    is None, leads is True. fenced() refuses, unless unfenced: then it does nothing."""

    def _tell(self):
        """Also leads again, once "lost" is told."""
        told = super()._tell()
        if self._pid and "lost" in self._lead.told:
            self._begin(_Grant(None, float("inf"), 0.0, False))
        return told


class FakeLeadership(_Candidate):
    """For tests: the test says who leads, and moves the clock. fenced() asks no server. When a
    method returns, so have the handlers."""

    def __init__(self, election="election", candidate=None, **options):
        super().__init__(election, candidate, **{**options, "unfenced": True})
        self._time, self._last = 0.0, 0

    def _now(self):
        return self._time

    def elect(self, term=None, lease=15.0):
        """Be elected in this term (default: the next one), for so many seconds; returns it."""
        self._lose("not renewed")
        self._last = self._last + 1 if term is None else term
        self._begin(_Grant(self._last, self._time + lease, 0.0, False))
        return self._last

    def lose(self, reason="connection lost"):
        self._lose(reason)

    def ask_yield(self):
        self._lead.grant = self._lead.grant._replace(yielding=True)
        self._ring()

    def advance(self, seconds):
        """Move the clock; past the deadline the leadership has expired."""
        self._time += seconds
        self._ring()


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
# libpq tells no SQLSTATE of a login that failed, only the text of the server, or of a pooler.
_LOGIN_REFUSALS = {
    "28P01": "password authentication failed|SASL authentication failed|no password supplied",
    "28000": r'authentication failed for user|pg_hba\.conf|role ".*" does not exist'
             "|not permitted to log in|no such user",
    "3D000": 'database ".*" does not exist|no such database',
    "42501": "permission denied for database",
}

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0     # between attempts, in seconds; it doubles


class _Stopped(BaseException):
    """We are closing, and need not wait for this. That is no error."""


class _LoginFailed(Exception):
    """No connection. sqlstate: if the server, or a pooler, refused us."""

    def __init__(self, error):
        super().__init__(_text(error))
        self.sqlstate = _sqlstate(error)


class _NotPrimary(psycopg.OperationalError):
    """What this server says counts for nothing."""


class _Pooled(psycopg.errors.FeatureNotSupported):
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

_Address = namedtuple("_Address", "host port hostaddr")
_KEEPALIVES = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3,
               "tcp_user_timeout": 10000}       # [connections forgotten]


class _Addresses:
    """Where to connect: one address after the other, round after round.

    An address is what libpq is given for one IP address, or one socket. libpq itself would end its
    list at the first server that refuses us, would give all its time to a dead one, and would stay
    with a standby. Each address has its own last word: one that refuses a login may be a standby
    that lags, so only if all of them do, and for long, that is final.
    """

    def __init__(self, params, refusal_timeout):
        self.params, self._refusal_timeout = params, refusal_timeout
        self.left = []              # of this round
        self.all, self._expanded = [], {}
        self._refusals = {}         # by address: since when, and the last error
        self._last = self._primary = None

    def next(self):
        """A round begins with the one that was the primary. Names are looked up anew each time."""
        if not self.left:
            self._expanded = _expand(self.params)
            self.all = [address for server in _servers(self._expanded)
                        for address in _resolve(*server)]
            self.left = sorted(self.all, key=lambda address: address != self._primary)
        self._last = self.left.pop(0)
        return self._last

    def params_of(self, address):
        # Empty, not left out: else libpq would take the whole list of the environment.
        return {**_KEEPALIVES, **self._expanded, **address._asdict()}

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


def _expand(params):
    """These parameters, and what libpq adds: from the environment, from a service's file, its
    defaults [service file]. libpq says what it has added only of a connection; so we begin one with
    a target_session_attrs that does not exist, and libpq opens no socket for it. (We need no such
    attribute: we ask each server ourselves whether it is the primary.)"""
    pgconn = PGconn.connect_start(make_conninfo(**{**params, "target_session_attrs": "?"}).encode())
    error, options = pgconn.error_message.decode(errors="replace"), pgconn.info
    pgconn.finish()
    expanded = {option.keyword.decode(): option.val.decode()
                for option in options if option.val is not None}
    if expanded.get("target_session_attrs") != "?":     # no such service, no such file
        raise psycopg.OperationalError(error)
    # client_encoding: what we send is UTF-8.
    return {**expanded, "target_session_attrs": "any", "client_encoding": "UTF8"}


def _servers(params):
    lists = [params.get(word, "").split(",") for word in _Address._fields]
    return [[values[i % len(values)] for values in lists] for i in range(max(map(len, lists)))]


def _resolve(host, port, hostaddr):
    """The addresses of a server [one name]. If there is none to look up, libpq says what is
    wrong."""
    ips = [hostaddr]
    if host and not hostaddr and host[0] not in "/@":       # those are sockets
        with contextlib.suppress(OSError, UnicodeError):
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            ips = list(dict.fromkeys(address[0] for *_, address in found))
    return [_Address(host, port, ip) for ip in ips]


def _params_of_pool(pool):
    """How a pool connects, in libpq's parameters. (Both may be callables in psycopg_pool 3.3.)"""
    conninfo, options = (value() if callable(value) else value
                         for value in (pool.conninfo, pool.kwargs))
    not_libpq = ("autocommit", "prepare_threshold", "context", "row_factory", "cursor_factory")
    return {**conninfo_to_dict(conninfo or ""),
            **{key: value for key, value in (options or {}).items() if key not in not_libpq}}


# --- connections

class _Waker:
    """What the engine sleeps on: it is woken by what comes over a connection, or by a ring."""

    def __init__(self, now):
        self.now = now
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)

    def put(self, _):
        """Ring, as with the bells of other threads. Any thread."""
        with contextlib.suppress(OSError):      # full: it is awake; closed: it has ended
            self._bell.send(b"!")

    def sleep(self, until, fd=None, write=False):
        """Returns when there is something to read (or room to write): then true; or when somebody
        rings, or a second is over: a wait does not count while the machine sleeps."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._ear, selectors.EVENT_READ)
            if fd is not None:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
                selector.register(fd, events)
            ready = selector.select(max(0.0, min(1.0, until - self.now())))
        with contextlib.suppress(BlockingIOError):
            self._ear.recv(4096)
        return any(key.fileobj is not self._ear for key, _ in ready)

    def close(self):
        self._ear.close()
        self._bell.close()


class _Wire:
    """A connection of libpq's, and calls over it with a time limit of our own.

    After an error the call may go on at the server, and a campaign may be elected there, of which
    nobody knows: then the connection is closed, and never used again. A time limit of the driver's
    would leave the socket open. [query timeout], [connections forgotten]
    """

    def __init__(self, pgconn, waker, encoding="utf-8"):
        self.pgconn, self._waker = pgconn, waker
        self._encoding = encoding.replace("ascii", "utf-8")     # SQL_ASCII: as it is

    @classmethod
    def open(cls, params, waker, until, stop):
        wire = cls(PGconn.connect_start(make_conninfo(**params).encode()), waker)
        try:
            wire._await_connected(wire.pgconn, wire.pgconn.connect_poll, until, stop)
        except BaseException:
            wire.close()
            raise
        return wire

    def _await_connected(self, pending, poll, until, stop=None):
        polled = PollingStatus.WRITING
        while polled != PollingStatus.OK:
            if pending.status == ConnStatus.BAD or polled == PollingStatus.FAILED:
                raise _refusal(pending.error_message.decode(errors="replace"))
            if self._sleep(until, stop, pending.socket, polled == PollingStatus.WRITING):
                polled = poll()     # never before its socket is ready

    def _sleep(self, until, stop, fd, write=False):
        """stop: may raise an error, to end the wait."""
        if stop:
            stop()
        if self._waker.now() >= until:
            raise TimeoutError("no answer in time")
        return self._waker.sleep(until, fd, write)

    def ask(self, until, sql, *values, stop=None):
        """The first row of the answer, as texts (NULL is ""), or None."""
        texts = [None if value is None else str(value).encode(self._encoding) for value in values]
        # Small enough to be sent at once, whatever the socket's buffer.
        self.pgconn.send_query_params(sql.encode(), texts)
        result = self._result(until, stop)
        if result.status == ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result, self._encoding)
        if not result.ntuples:
            return None
        row = [result.get_value(0, column) for column in range(result.nfields)]
        return [(value or b"").decode() for value in row]

    def _result(self, until, stop=None):
        """When the call has come to its end. (It has only one: we send one statement a call.)"""
        result = None
        while True:
            while self.pgconn.is_busy():
                self._sleep(until, stop, self.pgconn.socket)
                self.pgconn.consume_input()
            last, result = result, self.pgconn.get_result()
            if result is None:
                return last

    def cancel(self, until):
        """End the call that is running at the server, and read its answer."""
        if hasattr(self.pgconn, "cancel_conn") and psycopg.pq.version() >= 170000:
            request = self.pgconn.cancel_conn()
            request.start()
            self._await_connected(request, request.poll, until)
        else:       # without TLS, and without a time limit of ours
            self.pgconn.get_cancel().cancel()
        self._result(until)

    def heard(self):
        """The payloads of notifications that have come."""
        self.pgconn.consume_input()
        notes = iter(self.pgconn.notifies, None)
        return [note.extra.decode(self._encoding, "replace") for note in notes]

    def close(self):
        self.pgconn.finish()


def _refusal(text):
    """The error for a connection that failed, with the SQLSTATE that libpq does not tell."""
    error = psycopg.OperationalError(text.strip())
    for state, pattern in _LOGIN_REFUSALS.items():
        if re.search(pattern, text):
            error.sqlstate = state
            break
    return error


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
    if uwsgi and not {"enable-threads", "threads"} & set(uwsgi.opt):
        raise RuntimeError("uWSGI runs no threads unless it is told to: enable-threads = true")
