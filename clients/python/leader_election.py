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

Copy this file and leader_election_core.py, which has the states of a candidate, its options, and
what errors mean. Here are the threads, the calls and the connections.

  the engine        makes all calls to the server, one after the other.
  the teller        calls the handlers, one after the other, and ends a leadership at its deadline:
                    so a slow handler holds up no renewal, and a dead server no "lost".
  the writer        logs each leadership. A signal handler may have interrupted the program in
                    its log, and wait in close() for the engine and the teller: they must not
                    wait for that log.
  the application   any of its threads, also in a signal handler, which may interrupt anything. So
                    no lock is waited for: close() and resign() write down one thing, and then ring
                    (and close() waits for the end of the teller and, briefly, of the writer).
"""

import contextlib
import json
import os
import queue
import re
import selectors
import socket
import threading
import time
import uuid

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ConnStatus, ExecStatus, PGconn, PollingStatus, TransactionStatus

if __package__:         # copied into a package
    from . import leader_election_core as core
else:
    import leader_election_core as core

__all__ = ["Leadership", "DetachedLeadership", "SoleLeadership", "FakeLeadership", "NotLeader",
           "LeadershipError"]

NotLeader = core.NotLeader

# What wait() raises, and on_error is told (see sqlstate), if it is not the error of a handler.
LeadershipError = psycopg.Error


class _Pooled(psycopg.errors.FeatureNotSupported):
    """There is a pooler between a session candidate and the server."""


class _Candidate(core.Candidate):
    """What the application calls, and how threads wait and wake each other."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._bells = []                    # of all threads that wait; the engine's is a _Waker

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
            self.close()                    # the lease is given back first, if that does not hang
            raise self._error
        # The one that was seen, even if it was lost just now: None means that we are closed, or
        # that the time is over.
        return seen.term if isinstance(seen, core.Tenure) else None

    def fenced(self, connection):
        """Fence the transaction that is open on this DB-API connection (or Django's): from here
        on its COMMIT fails with SQLSTATE LE002 unless this very term still leads then. Raises
        NotLeader, without asking the server, if this instance does not lead; the driver's error,
        LE001, if the server says so."""
        lead = self._tenure_to_fence()
        if self._unfenced:
            return
        with contextlib.closing(connection.cursor()) as cursor:     # Django connects here
            status = getattr(getattr(connection, "info", None), "transaction_status", 0)
            in_transaction = status or not getattr(connection, "autocommit", False)
            self._refuse_to_fence_nothing(lead, in_transaction)
            cursor.execute("SELECT leader_election.assert_leader(%s, %s)",
                           (self.election, lead.term))

    def resign(self):
        """Give up now, and stand again after a second. Does nothing if we do not lead, and waits
        for nothing: the lease is given back when the handler of "lost" has returned."""
        self._resign()

    def close(self):
        """Give up, withdraw, end; waits call_timeout seconds at most. Others are elected at
        once."""
        self._end("closed")

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    # --- any thread

    def _tell(self):
        """Call the handler of the next event that is due. Returns whether one was due."""
        due = self._due()
        if due:
            lead, event, value = due
            try:
                self._handle(event, value)
            finally:        # Sole and Fake: a signal handler may raise SystemExit just now
                lead.told.add(event)
                self._ring()
        return bool(due)

    def _handle(self, event, value):
        try:
            if self._handlers[event]:
                self._handlers[event](value)
            elif event == "yield":
                self.resign()
        except BaseException as error:      # asyncio.CancelledError, too: it would end the thread
            self._handler_failed(event, error)

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
        """Something has changed: wake all that wait, the teller and the engine, too."""
        if not self._is_forked():       # the bells of a child are its parent's
            for bell in tuple(self._bells):
                bell.put(None)


class _Standing(_Candidate, core.Engine):
    """The engine, and what Leadership and DetachedLeadership have in common.

    A subclass says how to _stand(), _release(held) and _withdraw(), and how to _call() the server.
    These, and all methods below, run in the engine, unless they say otherwise.
    """

    _PooledError = _Pooled

    def __init__(self, election, candidate=None, **options):
        super().__init__(election, candidate, **options)
        self._engine = self._teller = self._writer = self._checker = None      # threads
        self._healthy = False

    def start(self):
        """Begin to stand, in three threads of this process."""
        if not self._engine and not self._closing:
            core.refuse_uwsgi_without_threads()
            self._rename_forked()
            self._waker = _Waker(self._now)
            self._bells.append(self._waker)
            self._engine_ended = False
            self._engine = threading.Thread(target=self._run_engine, daemon=True)
            self._writer = threading.Thread(target=self._run_writer, daemon=True)
            self._teller = threading.Thread(target=self._run_teller, daemon=True)
            self._engine.start()
            self._teller.start()
            self._writer.start()
        return super().start()

    def close(self):
        """Any thread; waits for the teller, which ends after the engine."""
        super().close()
        teller = self._teller
        ours = self._engine, teller, self._writer, self._checker
        # Not if a handler or health check calls it: the teller or the engine waits for that one.
        # [handlers]
        if teller and not self._is_forked() and threading.current_thread() not in ours:
            if teller.is_alive():
                teller.join(self._call_timeout)
            if self._writer.is_alive() and not teller.is_alive():
                # For the last line. Not for long: what we have interrupted may lock the log.
                self._writer.join(0.2)

    def _run_writer(self):
        """The writer, from beginning to end."""
        while not self._engine_ended or self._line_due():
            self._log_due()
            lead = self._current()
            self._await(lambda: self._line_due() or self._engine_ended,
                        lead.grant.deadline - self._now() if lead else 1.0)

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
                self._pause = core.FIRST_PAUSE
            except core.Stopped:
                seconds = 0.0
            except Exception as error:
                seconds = self._recover(error)
        with contextlib.suppress(Exception):    # if it fails, session or lease ends without us
            self._withdraw()
        self._hang_up()
        self._engine_ended = True
        self._ring()
        self._waker.close()

    # --- one step

    def _turn(self):
        """One step. Returns for how many seconds to rest then."""
        lead = self._current()
        if self._held and not lead:     # losing
            self._give_back()
            return 0.0
        self._stop_if_closing()
        if not self._is_healthy():
            self._sicken()
            if not self._held:
                self._withdraw()
            return 1.0
        self._pace()
        self._stop_if_closing()
        if lead:                        # leads
            self._renew(lead)
        else:                           # standing
            self._held = self._stand()
            if self._held:
                self._begin(self._held)
        self._answered()
        return self._held.third if self._held else self._interval

    def _pace(self):
        """Never more than 10 attempts a second, whatever fails or wakes us. [spin]"""
        self._await(lambda: self._closing, self._attempted + 0.1 - self._now())
        self._attempted = self._now()

    def _renew(self, lead):
        """Go on leading: in this term; after a failover of the server, in a greater one."""
        self._held = grant = self._ask(self._RENEW, lead.term, self._metadata)
        if grant and grant.term == lead.term:
            self._extend(lead, grant)
            return
        self._lose("failover" if grant else "not renewed")
        self._await_lost()
        if lead.ends[0] == "failover":      # and not resigned during the call
            self._begin(grant)

    def _give_back(self):
        """The end of a leadership, at the server."""
        self._await_lost()
        # _held is cleared first: a call that fails is not tried again. [spin: server down]
        held, self._held = self._held, None
        self._release(held)
        if self._lead.ends[0] != "connection lost":
            # So others are elected first, and a lone candidate does not spin. [resign, alone]
            self._await(lambda: self._closing, 1.0)

    def _await_lost(self):
        """Until the handlers of "lost" have returned, however long that takes."""
        while not self._await(lambda: "lost" in self._lead.told, self._call_timeout):
            self._trouble.log("handler", "a handler has not returned yet")

    def _rest(self, seconds):
        """Until these seconds are over, we are closing, leadership is lost, or news of our election
        come."""
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

    # --- calls

    def _ask(self, sql, *values):
        """A call that answers with a grant, or None."""
        sent = self._now()
        return self._grant_of(sent, self._call(sql, *values))

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
            raise core.LoginFailed(error) from error
        addresses.answered(address)
        return wire


class Leadership(core.SessionCandidate, _Standing):
    """A session candidate: a connection of its own, never a pool's.

    where: libpq's connection string or URI; "": the PG* environment, as libpq reads it. Several
    hosts, and the addresses of one name, are tried in turn, until one is the primary.
    pooler="session": there is a pooler in between, in session mode; then nothing is set in the
    session.
    """

    def __init__(self, where, election, candidate=None, **options):
        super().__init__(election, candidate, **{**options, "interval": 0.0})
        self._addresses = _Addresses(self._refusal_timeout, conninfo_to_dict(where))

    def _stand(self):
        """Wait for one slice to be elected. Joins first, once for each connection: so our place in
        line survives each slice."""
        if not self._wire:
            self._wire = self._connect(self._addresses)
            hello = self._wire.ask(self._until(), self._HELLO)
            self._check_server(hello, self._wire.pgconn.backend_pid)
            if not self._pooler:
                self._wire.ask(self._until(), self._NO_TIMEOUTS)
            self._call(self._JOIN, self.candidate, self._rank, self._metadata)
            # Not _answered(): campaign() may refuse us all the same, and its refusal may last.
            self._trouble.pauses()
        [term] = self._campaign()
        return self._ask(self._RENEW, term, self._metadata) if term else None

    def _campaign(self):
        seconds = self._fitting_slice
        try:
            return self._call(self._CAMPAIGN, self.candidate, seconds, more=seconds,
                              stop=self._stop_if_closing)
        except core.Stopped:
            # Cancel the campaign: if we closed the connection now, the server would log that as
            # FATAL. If it has elected us all the same, _withdraw() gives that back.
            # [slices: SIGTERM]
            self._wire.cancel(self._until())
            raise

    def _release(self, held):
        self._withdraw()

    def _withdraw(self):
        """Leave, which also gives back what we hold, and end the session. Without leave() the
        session of a pooler would go on standing. If the call fails, the end of the session does
        it."""
        if self._wire:
            with contextlib.suppress(Exception):
                self._call(self._LEAVE)
            self._hang_up()

    def _call(self, sql, *values, more=0.0, stop=None):
        return self._wire.ask(self._until(more), sql, self.election, *values, stop=stop)


class DetachedLeadership(core.DetachedCandidate, _Standing):
    """A detached candidate: each call over any connection, also through PgBouncer.

    pool: a psycopg_pool.ConnectionPool. interval: how often one that does not lead asks. listen: a
    connection string for LISTEN, past any pooler; then a vacancy is noticed at once.
    """

    def __init__(self, pool, election, candidate=None, **options):
        super().__init__(election, candidate, **options)
        self._pool = pool
        self._addresses = _Addresses(self._refusal_timeout, {})     # the pool's: see _call()
        if self._listen is not None:
            self._listeners = _Addresses(0.0, conninfo_to_dict(self._listen))

    def _stand(self):
        """Ask for the lease."""
        self._request = self._request or uuid.uuid4()
        self._stands = True
        grant = self._ask(self._ACQUIRE, self.candidate, self._rank, self._metadata, self._request)
        if grant:
            self._request = None
        elif self._listeners and not self._wire and self._now() >= self._listen_at:
            self._begin_to_listen()
        return grant

    def _begin_to_listen(self):
        try:
            self._wire = self._connect(self._listeners)
            self._wire.ask(self._until(), "LISTEN leadership_changed")
            self._listeners.found_primary()     # for a standby refuses LISTEN
        except Exception as error:
            self._cannot_listen(error)

    def _release(self, held):
        self._call(self._RELEASE, held.term)

    def _withdraw(self):
        if self._stands:
            self._stands = False        # first: tried once, as in _give_back()
            # leave() refuses one that leads. We may, if the answer to acquire() was lost: then that
            # lease runs out.
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
        if not core.sqlstate_of(error).startswith(core.MAY_PASS + core.LASTING):
            return
        row = None
        with contextlib.suppress(psycopg.Error):    # a pooler has closed it, say
            row = wire.ask(until, self._IN_RECOVERY)
        if row == ["t"]:
            raise core.NotPrimary("this server is a standby") from error


class _SelfTelling(_Candidate):
    """Has no threads: the thread that causes an event calls its handler; if another handler runs,
    the thread of that one does, when it has returned."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._telling = threading.Lock()    # never waited for

    def _tell(self):
        self._log_due()
        return super()._tell()

    def _ring(self):
        super()._ring()
        while self._telling.acquire(blocking=False):
            try:
                self._tell()
            finally:
                self._telling.release()
            # Look again when the lock is released: a signal handler may have called resign() after
            # _tell(), and could not tell that, because the lock was taken.
            if not (self._due() or self._line_due()):
                break


class SoleLeadership(_SelfTelling):
    """For a laptop, or one instance without the extension: always leads, and issues no term: term
    is None, leads is True. fenced() refuses, unless unfenced: then it does nothing."""

    def _tell(self):
        """Also leads again, once "lost" is told."""
        told = super()._tell()
        if self._pid and "lost" in self._lead.told:
            self._begin(core.Grant(None, float("inf"), 0.0, False))
        return told


class FakeLeadership(_SelfTelling):
    """For tests: the test says who leads, and moves the clock. fenced() asks no server. When a
    method returns, so have the handlers."""

    def __init__(self, election="election", candidate=None, **options):
        super().__init__(election, candidate, **{**options, "unfenced": True})
        self._time, self._last = 0.0, 0
        self._next = None       # what elect() has granted, while "lost" is still to be told

    def _now(self):
        return self._time

    def elect(self, term=None, lease=15.0):
        """Be elected in this term (default: the next one), for so many seconds; returns it. In a
        handler: when that has returned, and "lost" was told."""
        term = self._last = self._last + 1 if term is None else term
        self._next = core.Grant(term, self._time + lease, 0.0, False)
        self._lose("not renewed")
        return term

    def _tell(self):
        told = super()._tell()
        if self._next and "lost" in self._lead.told:
            grant, self._next = self._next, None
            self._begin(grant)
        return told

    def lose(self, reason="connection lost"):
        self._lose(reason)

    def ask_yield(self):
        self._lead.grant = self._lead.grant._replace(yielding=True)
        self._ring()

    def advance(self, seconds):
        """Move the clock; past the deadline the leadership has expired."""
        self._time += seconds
        self._ring()


# --- where to connect

_KEEPALIVES = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3,
               "tcp_user_timeout": 10000}       # [connections forgotten]


class _Addresses(core.Addresses):
    """Those in libpq's parameters. An address is what libpq is given for one IP address, or one
    socket."""

    def __init__(self, refusal_timeout, params):
        super().__init__(refusal_timeout)
        self.params = params
        self._expanded = {}

    def next(self):
        """The next one. Names are looked up anew in each round."""
        if not self.left:
            self._expanded = _expand(self.params)
            self.begin_round([address for server in _servers(self._expanded)
                              for address in _resolve(*server)])
        return self.take()

    def params_of(self, address):
        # Empty, not left out: else libpq would take the whole list of the environment.
        return {**_KEEPALIVES, **self._expanded, **address._asdict()}


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
    hosts, ports, ips = (expanded.get(word, "").split(",") for word in core.Address._fields)
    count = len(hosts) if ips == [""] else len(ips)
    if len(ports) not in (1, count) or hosts != [""] and len(hosts) != count:
        # Later libpq is given one address at a time, and would not say so.
        raise psycopg.errors.InvalidParameterValue(error)
    # client_encoding: what we send is UTF-8.
    return {**expanded, "target_session_attrs": "any", "client_encoding": "UTF8"}


def _servers(params):
    lists = [params.get(word, "").split(",") for word in core.Address._fields]
    return [[values[i % len(values)] for values in lists] for i in range(max(map(len, lists)))]


def _resolve(host, port, hostaddr):
    """The addresses of a server. If there is none to look up, libpq says what is wrong."""
    found = []
    if host and not hostaddr and host[0] not in "/@":       # those are sockets
        with contextlib.suppress(OSError, UnicodeError):
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return core.addresses_of(host, port, hostaddr, found)


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
        # We do not flush in steps: the call is small enough for any socket's buffer.
        self.pgconn.send_query_params(sql.encode(), texts)
        result = self._result(until, stop)
        if result.status == ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result, self._encoding)
        if not result.ntuples:
            return None
        row = [result.get_value(0, column) for column in range(result.nfields)]
        return [(value or b"").decode() for value in row]

    def _result(self, until, stop=None):
        """Wait for the end of the call, and return its last result. (It has only one: we send one
        statement a call.)"""
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


# libpq tells no SQLSTATE of a login that failed, only the text of the server, or of a pooler.
_LOGIN_REFUSALS = {
    "28P01": "password authentication failed|SASL authentication failed|no password supplied",
    "28000": r'authentication failed for user|pg_hba\.conf|role ".*" does not exist'
             "|not permitted to log in|no such user",
    "3D000": 'database ".*" does not exist|no such database',
    "42501": "permission denied for database",
}


def _refusal(text):
    """The error for a connection that failed, with the SQLSTATE that libpq does not tell."""
    error = psycopg.OperationalError(text.strip())
    for state, pattern in _LOGIN_REFUSALS.items():
        if re.search(pattern, text):
            error.sqlstate = state
            break
    return error
