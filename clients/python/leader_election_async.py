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

Copy this file and leader_election_core.py, which has the states of a candidate, its options, and
what errors mean. Handlers and health checks may be coroutine functions, too. Here are the tasks,
the calls and the connections. Tasks of ours, in the application's loop; one of the application's
that is cancelled takes none of them with it:

  the engine        makes all calls to the server, one after the other. It sees the deadline of a
                    leadership go by: calls end then, and each second it looks, whatever it
                    waits for.
  the teller        calls the handlers, one after the other: so a slow handler holds up no renewal.
                    There is one while there is something to tell.

While the loop is blocked, nothing is renewed and nothing is told; `term` is None all the same once
the deadline is over.
"""

import asyncio
import contextlib
import json
import os
import pathlib
import re
import socket
import threading
import time
import urllib.parse
import uuid

import asyncpg

if __package__:         # copied into a package
    from . import leader_election_core as core
else:
    import leader_election_core as core

__all__ = ["Leadership", "DetachedLeadership", "SoleLeadership", "FakeLeadership", "NotLeader",
           "LeadershipError"]

NotLeader = core.NotLeader

# What wait() raises, and on_error is told (see sqlstate), if it is not the error of a handler.
LeadershipError = asyncpg.PostgresError


class _Pooled(asyncpg.FeatureNotSupportedError):
    """There is a pooler between a session candidate and the server."""


class _Candidate(core.Candidate):
    """What the application calls, and how tasks wait and wake each other."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._bells = []                    # of all tasks that wait
        self._engine = self._teller = self._checker = None      # tasks

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
            await self.close()              # the lease is given back first, if that does not hang
            raise self._error
        # The one that was seen, even if it was lost just now: None means that we are closed, or
        # that the time is over.
        return seen.term if isinstance(seen, core.Tenure) else None

    async def fenced(self, connection):
        """Fence the transaction that is open on this asyncpg connection: from here on its COMMIT
        fails with SQLSTATE LE002 unless this very term still leads then. Raises NotLeader, without
        asking the server, if this instance does not lead; LE001 if the server says so."""
        lead = self._tenure_to_fence()
        if self._unfenced:
            return
        self._refuse_to_fence_nothing(lead, connection.is_in_transaction())
        await connection.execute(
            _fill("SELECT leader_election.assert_leader($1, $2)", self.election, lead.term))

    async def resign(self):
        """Give up now, and stand again after a second. Does nothing if we do not lead, and waits
        for nothing: the lease is given back when the handler of "lost" has returned."""
        self._resign()
        if not self._engine:        # Sole and Fake: when a method returns, so have the handlers
            await self._settle()

    async def close(self):
        """Give up, withdraw, end; waits call_timeout seconds at most. Others are elected at once.
        All this is done even if the task that waits for it is cancelled."""
        if self._is_forked():
            return
        self._end("closed")
        ours = [task for task in (self._engine, self._teller, self._checker) if _runs(task)]
        # Not if a handler or health check calls it: the teller or the engine waits for that one.
        # [handlers]
        if ours and asyncio.current_task() not in ours:
            await asyncio.wait(ours, timeout=self._call_timeout)

    async def __aenter__(self):
        return await self.start()

    async def __aexit__(self, *_):
        await self.close()

    # --- any task

    async def _run_teller(self):
        """The teller, from beginning to end: until nothing is due. _ring() begins the next one."""
        while await self._tell():
            pass

    async def _tell(self):
        """Call the handler of the next event that is due. Returns whether one was due."""
        due = self._due()
        if due:
            lead, event, value = due
            try:
                await self._handle(event, value)
            finally:
                lead.told.add(event)
                self._ring()
        return bool(due)

    async def _handle(self, event, value):
        try:
            if self._handlers[event]:
                await _called(self._handlers[event], value)
            elif event == "yield":
                self._resign()
        except asyncio.CancelledError:
            pass        # `work.cancel(); await work` raises this: the handler has ended
        except Exception as error:
            self._handler_failed(event, error)
        except SystemExit as error:
            self._handler_failed(event, error)
            raise       # leaves the loop, as in any task; the next teller tells what is left

    async def _settle(self):
        """Until all that is due was told. A handler does not wait for itself."""
        while (self._due() or _runs(self._teller)) and asyncio.current_task() is not self._teller:
            self._ring()
            await asyncio.wait([self._teller], timeout=1.0)

    async def _await(self, condition, seconds=None):
        """Until the condition holds, or the time is over; returns what the condition says then. It
        is asked when a task rings, and each second: the timers of the loop stand still while the
        machine sleeps. For the same reason we look each second whether an event is due, "lost" by
        the clock, whatever the engine waits for."""
        until = time.monotonic() + (1e9 if seconds is None else seconds)
        while not (value := condition()) and time.monotonic() < until:
            self._begin_teller()
            bell = asyncio.get_running_loop().create_future()
            self._bells.append(bell)
            try:
                await asyncio.wait([bell], timeout=max(0.0, min(1.0, until - time.monotonic())))
            finally:
                self._bells.remove(bell)
        return value

    def _ring(self):
        """Something has changed: wake all that wait, and tell what is due."""
        for bell in self._bells:
            if not bell.done():
                bell.set_result(None)
        self._begin_teller()

    def _begin_teller(self):
        """If an event is due, and none runs. Its line is logged even while one runs."""
        self._log_due()
        if self._due() and not _runs(self._teller):
            self._teller = asyncio.ensure_future(self._run_teller())
            self._teller.add_done_callback(_seen)


class _Standing(_Candidate, core.Engine):
    """The engine, and what Leadership and DetachedLeadership have in common.

    A subclass says how to _stand(), _release(held) and _withdraw(), how to _call() the server, and
    what an unexpected end of a connection means, _on_end(wire). These, and all methods below, run
    in the engine.
    """

    _PooledError = _Pooled
    _heard = False              # news of our election

    async def start(self):
        """Begin to stand, in a task of this loop."""
        await super().start()
        if not self._engine and not self._closing:
            if threading.current_thread() is not threading.main_thread():
                core.refuse_uwsgi_without_threads()
            self._rename_forked()
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
                self._pause = core.FIRST_PAUSE
            except core.Stopped:
                seconds = 0.0
            except (asyncio.CancelledError, SystemExit):    # the loop is shut down: end in order
                self._end("closed")
                seconds = 0.0
            except Exception as error:
                seconds = self._recover(error)
        with contextlib.suppress(Exception):    # if it fails, session or lease ends without us
            await self._withdraw()
        self._hang_up()
        self._engine_ended = True
        await self._settle()

    # --- one step

    async def _turn(self):
        """One step. Returns for how many seconds to rest then."""
        lead = self._current()
        if self._held and not lead:     # losing
            await self._give_back()
            return 0.0
        self._stop_if_closing()
        if not await self._is_healthy():
            self._sicken()
            if not self._held:
                await self._withdraw()
            return 1.0
        await self._pace()
        self._stop_if_closing()
        if lead:                        # leads
            await self._renew(lead)
        else:                           # standing
            self._held = await self._stand()
            if self._held:
                self._begin(self._held)
        self._answered()
        return self._held.third if self._held else self._interval

    async def _pace(self):
        """Never more than 10 attempts a second, whatever fails or wakes us. [spin]"""
        await self._await(lambda: self._closing, self._attempted + 0.1 - self._now())
        self._attempted = self._now()

    async def _renew(self, lead):
        """Go on leading: in this term; after a failover of the server, in a greater one."""
        self._held = grant = await self._ask(self._RENEW, lead.term, self._metadata)
        if grant and grant.term == lead.term:
            self._extend(lead, grant)
            return
        self._lose("failover" if grant else "not renewed")
        await self._await_lost()
        if lead.ends[0] == "failover":      # and not resigned during the call
            self._begin(grant)

    async def _give_back(self):
        """The end of a leadership, at the server."""
        await self._await_lost()
        # _held is cleared first: a call that fails is not tried again. [spin: server down]
        held, self._held = self._held, None
        await self._release(held)
        if self._lead.ends[0] != "connection lost":
            # So others are elected first, and a lone candidate does not spin. [resign, alone]
            await self._await(lambda: self._closing, 1.0)

    async def _await_lost(self):
        """Until the handlers of "lost" have returned, however long that takes."""
        self._ring()
        while not await self._await(lambda: "lost" in self._lead.told, self._call_timeout):
            self._trouble.log("handler", "a handler has not returned yet")

    async def _rest(self, seconds):
        """Until these seconds are over, we are closing, leadership is lost, or news of our election
        come."""
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

    # --- calls

    async def _ask(self, sql, *values):
        """A call that answers with a grant, or None."""
        sent = self._now()
        return self._grant_of(sent, await self._call(sql, *values))

    async def _within(self, work, more=0.0, stop=False):
        """What this task or coroutine returns, if it does so in time; else it is cancelled, and
        TimeoutError raised. stop: it is cancelled, and Stopped raised, also when we are closing."""
        until = self._until(more)
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._on_done)
        try:
            await self._await(
                lambda: task.done() or stop and self._closing or self._now() >= until,
                until - self._now())
            if task.done() and not task.cancelled():
                return task.result()
            if stop:
                self._stop_if_closing()
            raise TimeoutError("no answer in time")
        finally:
            if task.cancel():       # it had not ended
                task.add_done_callback(_hang_up_late)

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
            raise core.LoginFailed(error) from error
        addresses.answered(address)
        wire.on_end(self._on_end)
        return wire


class Leadership(core.SessionCandidate, _Standing):
    """A session candidate: a connection of its own, never a pool's.

    where: a URI, or a dict of asyncpg.connect()'s arguments (and service, servicefile, hostaddr);
    "": the PG* environment. Several hosts, and the addresses of one name, are tried in turn, until
    one is the primary. pooler="session": there is a pooler in between, in session mode; then
    nothing is set in the session.
    """

    def __init__(self, where, election, candidate=None, **options):
        super().__init__(election, candidate, **{**options, "interval": 0.0})
        self._addresses = _Addresses(self._refusal_timeout, *_read(where))

    async def _stand(self):
        """Wait for one slice to be elected. Joins first, once for each connection: so our place in
        line survives each slice."""
        if not self._wire:
            self._wire = await self._connect(self._addresses)
            hello = await self._within(self._wire.ask(self._HELLO))
            self._check_server(hello, self._wire.conn.get_server_pid())
            if not self._pooler:
                await self._within(self._wire.ask(self._NO_TIMEOUTS))
            await self._call(self._JOIN, self.candidate, self._rank, self._metadata)
            # Not _answered(): campaign() may refuse us all the same, and its refusal may last.
            self._trouble.pauses()
        [term] = await self._campaign()
        return await self._ask(self._RENEW, term, self._metadata) if term else None

    async def _campaign(self):
        """One slice: a row with the term, or NULL. If close() is called meanwhile, asyncpg has the
        server cancel the campaign; _withdraw() waits for that, and gives back what was granted. If
        we closed the connection, the server would log that as FATAL. [slices: SIGTERM]"""
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
        """Leave, which also gives back what we hold, and end the session. Without leave() the
        session of a pooler would go on standing. If the call fails, the end of the session does
        it."""
        if self._wire:
            with contextlib.suppress(Exception):
                await self._call(self._LEAVE)
                await self._within(self._wire.end())
            self._hang_up()

    async def _call(self, sql, *values):
        return await self._within(self._wire.ask(sql, self.election, *values))


# The one address of a pool, which knows itself where to connect
_POOL = core.Address("pool", None, None)


class DetachedLeadership(core.DetachedCandidate, _Standing):
    """A detached candidate: each call over any connection, also through PgBouncer.

    pool: an asyncpg.Pool, or a callable that returns an async context manager of an asyncpg
    connection. interval: how often one that does not lead asks. listen: a URI or dict for LISTEN,
    past any pooler; then a vacancy is noticed at once.
    """

    def __init__(self, pool, election, candidate=None, **options):
        super().__init__(election, candidate, **options)
        self._acquire = getattr(pool, "acquire", pool)
        self._addresses = core.Addresses(self._refusal_timeout, [_POOL])
        if self._listen is not None:
            self._listeners = _Addresses(0.0, *_read(self._listen))

    async def _stand(self):
        """Ask for the lease."""
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
        """Listen over a new connection, each minute anew: asyncpg sets no keepalives, and over a
        path that was cut no news come, and no error. Until then we still ask each interval."""
        self._hang_up()
        try:
            self._wire = await self._connect(self._listeners)
            await self._within(self._wire.conn.add_listener("leadership_changed", self._on_news))
            self._listeners.found_primary()     # for a standby refuses LISTEN
            self._listen_at = self._now() + 60.0
        except Exception as error:
            self._cannot_listen(error)

    def _hang_up(self):
        """Any failed call hangs up: then listen again at once, or we would be deaf for a minute."""
        if self._wire:      # else _listen_at tells how long not to try
            self._listen_at = 0.0
        super()._hang_up()

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
            self._stands = False        # first: tried once, as in _give_back()
            # leave() refuses one that leads. We may, if the answer to acquire() was lost: then that
            # lease runs out.
            with contextlib.suppress(asyncpg.InvalidParameterValueError):
                await self._call(self._LEAVE, self.candidate)

    async def _call(self, sql, *values):
        """Over any connection of the pool's. One on which a call may go on is closed: it does not
        get into the pool again. lent: the pool's connection, once it has lent us one."""
        lent = []
        try:
            return await self._within(self._call_over_pool(lent, sql, self.election, *values))
        except (TimeoutError, asyncio.CancelledError):
            # asyncpg's pool would wait for the end of what was cancelled; for ever, if all of the
            # answer had come, and asyncio.run() would not return. [handlers]
            for conn in lent:
                with contextlib.suppress(asyncpg.InterfaceError):   # it is the pool's again
                    conn.terminate()
            lent.append(None)       # what is lent from now on comes too late: not to be used
            self._addresses.answered(_POOL)         # no answer in time is no refusal
            raise
        except Exception as error:
            if lent:
                raise
            self._addresses.refused(_POOL, error)
            raise core.LoginFailed(error) from error

    async def _call_over_pool(self, lent, sql, *values):
        async with self._acquire() as conn:
            if lent:                # _call() has given up, and the cancellation was lost
                raise asyncio.CancelledError
            lent.append(conn)
            self._addresses.answered(_POOL)
            wire = _Wire(conn)
            try:
                return await wire.ask(sql, *values)
            except asyncpg.PostgresError as error:
                await self._ignore_standby(wire, error)
                raise

    async def _ignore_standby(self, wire, error):
        """A standby may lag: what it refuses, the primary may grant. [refused by the standby]"""
        if not core.sqlstate_of(error).startswith(core.MAY_PASS + core.LASTING):
            return
        row = None
        with contextlib.suppress(Exception):        # a pooler has closed it, say
            row = await wire.ask(self._IN_RECOVERY)
        if row == ["t"]:
            raise core.NotPrimary("this server is a standby") from error


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
            self._begin(core.Grant(None, float("inf"), 0.0, False))


class FakeLeadership(_Candidate):
    """For tests: the test says who leads, and moves the clock. fenced() asks no server. When a
    method returns, so have the handlers."""

    def __init__(self, election="election", candidate=None, **options):
        super().__init__(election, candidate, **{**options, "unfenced": True})
        self._time, self._last = 0.0, 0
        self._next = None       # what elect() has granted, while "lost" is still to be told

    def _now(self):
        return self._time

    async def elect(self, term=None, lease=15.0):
        """Be elected in this term (default: the next one), for so many seconds; returns it. In a
        handler: when that has returned, and "lost" was told."""
        term = self._last = self._last + 1 if term is None else term
        self._next = core.Grant(term, self._time + lease, 0.0, False)
        self._lose("not renewed")
        self._lead_next()
        await self._settle()
        return term

    async def _tell(self):
        told = await super()._tell()
        self._lead_next()
        return told

    def _lead_next(self):
        if self._next and "lost" in self._lead.told:
            grant, self._next = self._next, None
            self._begin(grant)

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


# --- where to connect

_PLACE = (*core.Address._fields, "service", "servicefile")
# Words of libpq's that asyncpg would send to the server. Our timers, and asking each server what it
# is, take their place.
_NOT_ASYNCPGS = ("connect_timeout", "fallback_application_name", "keepalives", "keepalives_idle",
                 "keepalives_interval", "keepalives_count", "tcp_user_timeout",
                 "target_session_attrs")


class _Addresses(core.Addresses):
    """Those of servers, (host, port, hostaddr), with asyncpg.connect()'s other arguments."""

    def __init__(self, refusal_timeout, params, servers):
        super().__init__(refusal_timeout)
        self._params, self._servers = params, servers       # see _read()

    async def next(self):
        """The next one. Names are looked up anew in each round."""
        if not self.left:
            self.begin_round([address for server in self._servers
                              for address in await _resolve(*server)])
        return self.take()

    def params_of(self, address):
        """asyncpg.connect()'s, for this address alone."""
        params = {**self._params, "host": address.host, "port": address.port}
        if address.hostaddr:
            params["loop"] = _Dialer(asyncio.get_running_loop(), address.hostaddr)
        return params


async def _resolve(host, port, hostaddr):
    """The addresses of a server. If there is none to look up, asyncpg says what is wrong; if there
    is but one, asyncpg dials it."""
    found = []
    if host and not hostaddr and not host.startswith("/"):      # that is a socket
        with contextlib.suppress(OSError, UnicodeError):
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = core.addresses_of(host, port, hostaddr, found)
    return addresses if len(addresses) > 1 else [core.Address(host, port, hostaddr)]


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
             for word in core.Address._fields]
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
        raise ValueError("as many {}s as {}s and {}s".format(*core.Address._fields))
    servers = [[values[i % len(values)] for values in lists] for i in range(count)]
    return [core.Address(host or hostaddr or None, int(port or 5432), hostaddr or None)
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
        """The first row of the answer, as COPY's texts (NULL: a backslash and N, which no caller
        reads), or None. With arguments, asyncpg prepares a statement, then executes it: a
        transaction pooler may send these two steps to two sessions. COPY is its only way to read a
        row in one step."""
        rows = asyncio.Queue()
        # The driver's own time limit is made so long that ours is always first. [query timeout]
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
    """Take the task's error, so that asyncio does not log it as never retrieved: we report it
    ourselves. Returns that error; True if the task was cancelled."""
    return task.cancelled() or task.exception()


def _hang_up_late(task):
    """A connect may lose a cancellation that comes just as it ends: by asyncio.wait_for() before
    Python 3.12, by asyncpg 0.27. Then nobody else would close that connection."""
    if not _seen(task) and isinstance(task.result(), _Wire):
        task.result().close()
