"""
What the clients for threads (leader_election.py) and for asyncio (leader_election_async.py) share.
Copy this file beside the one that you use. It makes no call, and has no thread, task or wait.

Candidate           the states, and what leads from one to the next
Engine              what errors mean
SessionCandidate, DetachedCandidate     their statements
Addresses           which address is tried next
Trouble             what is reported of what goes wrong

The states, as docs/clients.md draws them for all languages, and the methods between them:

    standing --_begin(grant)--> leads --_lose(reason)--> losing --_give_back()--> standing
                                leads --_extend(lead, grant)--> leads
                                leads --_lose("failover")--> losing --_begin(grant)--> leads
    any --_end("closed"), _fail(error)--> (if we lead: losing, then) closed

At the deadline _current() does what _lose("expired") would do. While losing, _current() is None,
and _held (see Engine) is what is still to be given back: after _lose("not renewed"), nothing.

Invariant: a term is never given out after the deadline, which is counted from the *sending* of
the last answered renewal; every "elected" has exactly one "lost"; the handlers of "lost" have
returned before the lease is given back.

The clock goes on while the machine sleeps where the system has such a clock (Linux). Even so a
process can be paused between the look at `term` and its next write: fence what must not be late.

A name in brackets, here and in both clients, is that of the fault, in test/clients, which a line is
there for.
"""

import contextlib
import json
import logging
import os
import random
import secrets
import socket
import sys
import time
from collections import deque, namedtuple

log = logging.getLogger("leader_election")


class NotLeader(Exception):
    """fenced() was called, and this instance does not lead."""


# What the server has given us. deadline: by our clock, _now(). third: a third of the seconds from
# the call to the deadline; we rest for so long, then we renew. yielding: we are asked to go.
Grant = namedtuple("Grant", "term deadline third yielding")


class Tenure:
    """A term in which we lead, or led. Only the engine extends it, by another grant; any thread
    may end it."""

    def __init__(self, grant, ends=(), told=()):
        self.term, self.grant = grant.term, grant
        self.ends = list(ends)      # reasons for its end, of which the first counts
        self.told = set(told)       # events whose handlers have returned


class Candidate:
    """The state of a candidate, and its options. All kinds take the same ones, so that each can
    stand in for another.

    health_check: a function; unless it says true, in call_timeout seconds, we do not stand, and the
    lease is given back. call_timeout: how many seconds a call to the server may take.
    refusal_timeout: after how many seconds a refusal is final. slice: how many seconds one campaign
    waits, and so how soon a dead path is noticed. interval: how often a detached candidate asks.
    Handlers are called one at a time: stop the work in on_lost, but do not do it in on_elected.

    A client adds start(), wait(), fenced(), resign(), close(), and _ring(): something has changed,
    so whatever waits is to look again, and what is _due() is to be told.
    """

    def __init__(self, election="election", candidate=None, *, rank=None, metadata=None,
                 health_check=None, call_timeout=5.0, refusal_timeout=30.0, slice=None,
                 interval=1.0, listen=None, pooler=None, unfenced=False,
                 on_elected=None, on_lost=None, on_yield=None, on_error=None):
        if pooler not in (None, "session"):
            raise ValueError("pooler is None or 'session'")
        self.election = election
        self.candidate = candidate or default_name()
        self.changes = 0                    # how often we were elected
        self._rank, self._metadata = rank, None if metadata is None else json.dumps(metadata)
        self._call_timeout, self._refusal_timeout = call_timeout, refusal_timeout
        self._slice, self._interval, self._listen, self._pooler = slice, interval, listen, pooler
        self._unfenced, self._health_check = unfenced, health_check
        self._handlers = {"elected": on_elected, "lost": on_lost, "yield": on_yield,
                          "error": on_error}
        # The present or the last tenure. It does not say whether we lead: _current() does. Before
        # the first one: a tenure that is over, and whose end has been told.
        self._lead = Tenure(Grant(0, 0.0, 0.0, False), ["never led"], {"elected", "lost"})
        self._closing = None                # why we end for good: "closed", or an "error"
        self._error = None                  # that error
        self._trouble = Trouble(self._warn)
        self._unlogged = deque()            # beginnings and ends of leaderships, to be logged
        self._pid = None                    # of the process that called start()
        self._named_in = None if candidate else os.getpid()     # the process of a default name
        self._engine_ended = True           # nothing (more) is to be given back

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
        "refused: SQLSTATE ...", closed, "failed: SQLSTATE ...". It has no word for losing: it says
        standing, the trouble or closed then. Does not block."""
        if self._is_forked():
            return f"failed: {self._forked_text()}"
        if self._error:
            return f"failed: {words_of(self._error)}"
        if self._closing:
            return "closed"
        return "leads" if self.leads else self._trouble.text or "standing"

    def set_metadata(self, metadata):
        """What view status is to show of us: from the next renewal on, or when we lead next."""
        self._metadata = json.dumps(metadata)

    # --- from one state to the next. Any thread (but only the engine begins and extends)

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
        """Lead, unless the grant came too late, or we are closing: then the next turn gives it
        back."""
        if self._now() < grant.deadline and not self._closing:
            self.changes += 1
            lead = self._lead = Tenure(grant)
            self._unlogged.extend([("elected", lead), ("lost", lead)])
        self._ring()

    def _extend(self, lead, grant):
        """Lead on in this term, unless it has ended meanwhile: then the next turn gives it back."""
        if self._current() is lead:
            lead.grant = grant
            self._ring()

    def _lose(self, reason):
        """End the leadership, if there is one. In this order: the term is gone; the handlers of
        "lost" are called; the engine gives the lease back."""
        lead = self._current()
        if lead:
            lead.ends.append(reason)
        self._ring()

    def _resign(self):
        self._lose("yielded" if self._lead.grant.yielding else "resigned")

    def _end(self, reason):
        """End for good."""
        self._closing = self._closing or reason
        self._ring()

    def _fail(self, error):
        """End for good with this error."""
        if not self._error or isinstance(error, SystemExit):
            self._error = error
            self._warn("ends: %s", words_of(error))
        self._end("error")

    # --- what the application is told

    def _due(self):
        """The event that is to be told next: its tenure, its name, its value; or None. The tenure
        is read once: the next one may begin meanwhile."""
        lead = self._lead
        leads = self._current() is lead
        if "elected" not in lead.told:
            return lead, "elected", lead.term
        if leads and lead.grant.yielding and "yield" not in lead.told:
            return lead, "yield", lead.term
        if lead.ends and "lost" not in lead.told:
            return lead, "lost", lead.ends[0]
        if lead.ends and self._error and self._engine_ended and "error" not in lead.told:
            return lead, "error", self._error
        return None

    def _handler_failed(self, event, error):
        """A handler has raised this error. The table in docs/clients.md says what that means.
        [handlers]"""
        if isinstance(error, SystemExit):
            self._fail(error)
            return
        self._warn("handler of %r", event, exc_info=error)
        if event in ("elected", "lost"):
            self._fail(error)
        elif event == "yield":
            self._resign()

    def _line_due(self):
        """The line of the log that is to be written next: its event and tenure, or None."""
        self._current()         # sees an end by the clock
        if self._unlogged:
            event, lead = self._unlogged[0]
            if event == "elected" or lead.ends:
                return event, lead
        return None

    def _log_due(self):
        """Log each leadership, even while a handler runs. One thread or task at a time calls
        this."""
        while line := self._line_due():
            self._unlogged.popleft()
            self._log_event(*line)

    def _log_event(self, event, lead):
        term = "" if lead.term is None else f", term {lead.term}"
        if event == "elected":
            self._log(logging.INFO, 'elected leader of "%s"%s', self.election, term)
        else:
            self._log(logging.INFO, 'lost leadership of "%s"%s: %s', self.election, term,
                      lead.ends[0])

    def _warn(self, text, *values, **options):
        self._log(logging.WARNING, f"election %r, candidate %r: {text}", self.election,
                  self.candidate, *values, **options)

    def _log(self, *args, **options):
        """A filter or handler of the program's log may raise: then no handler of ours would be
        called, or the engine would end."""
        with contextlib.suppress(Exception):
            log.log(*args, **options)

    # --- what fenced() refuses

    def _tenure_to_fence(self):
        """The tenure in which we lead now."""
        self._refuse_forked()
        lead = self._current()
        if not lead:
            raise NotLeader(f"{self.candidate!r} does not lead election {self.election!r}")
        return lead

    def _refuse_to_fence_nothing(self, lead, in_transaction):
        if lead.term is None or not in_transaction:
            raise RuntimeError("fenced() would fence nothing: no transaction, or no term")

    # --- forks

    def _is_forked(self):
        return self._pid is not None and self._pid != os.getpid()

    def _forked_text(self):
        return (f"this leadership stands in the process that called start(), {self._pid}. Call "
                "start() after the fork, in each process that is to stand (gunicorn: in post_fork; "
                "uWSGI: with lazy-apps = true, or in @postfork)")

    def _refuse_forked(self):
        """A child has no thread or task that would ever end its wait(). [forks]"""
        if self._is_forked():
            raise RuntimeError(self._forked_text())

    def _rename_forked(self):
        """A default name that was made before a fork is each child's own."""
        if self._named_in not in (None, os.getpid()):
            self.candidate = default_name()


# --- what errors mean

# SQLSTATEs, or classes of them. A primary refuses this, and a restore, CREATE EXTENSION, GRANT or a
# rename may mend it: we try for ever.
MAY_PASS = ("42501", "3F000", "42883", "42P01", "LE003")
# A primary refuses this: it ends us when it has lasted for refusal_timeout. [refused for good]
LASTING = ("28", "3D000", "22023", "0A000", "25001")
# No primary is there to refuse: a broken connection, shutdown and start, no room, a standby
NO_ANSWER = ("08", "57P", "53", "25006")
# A login that is refused: this server may be a standby that lags.
REFUSES_LOGIN = ("28", "3D000", "42501")
# The function or schema is not there.
NOT_INSTALLED = ("42883", "3F000")
# Busy, cancelled, or (the portable edition, where transactions are serializable by default) to be
# repeated: the call did nothing.
DID_NOTHING = ("55P03", "57014", "40001")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0       # between attempts, in seconds; it doubles


class Stopped(BaseException):
    """We are closing, and need not wait for this. That is no error."""


class LoginFailed(Exception):
    """No connection. sqlstate: if the server, or a pooler, refused us."""

    def __init__(self, error):
        super().__init__(text_of(error))
        self.sqlstate = sqlstate_of(error)


class NotPrimary(Exception):
    """A standby has answered, and may lag: whatever it says counts for nothing."""


class Engine(Candidate):
    """What the engines of both clients share.

    _held is a grant that may still be ours at the server, or None. If we hold one
    and do not lead, we give it back when the handlers of "lost" have returned, and before we lead
    again.

    A client sets _PooledError, the class of the error for a pooler in between, and _addresses.
    SessionCandidate and DetachedCandidate set _BOUND: whether the lease is bound to a connection,
    so that closing that one gives the lease back.
    """

    _held = None
    _wire = None                    # the session; of a detached candidate, where it listens
    _attempted = float("-inf")      # when the last attempt to stand or renew began
    _pause = FIRST_PAUSE
    _refused_since = None           # by a primary, after login, for a lasting reason
    _health_text = ""               # what the health check said

    def _stop_if_closing(self):
        """Called before and in waits that are to end when we are closing: ends them by Stopped."""
        if self._closing:
            raise Stopped

    def _until(self, more=0.0):
        """The time limit of a call that begins now. A renewal is of no use after the deadline.
        [leader's network cut]"""
        lead, until = self._current(), self._now() + self._call_timeout + more
        return min(until, lead.grant.deadline) if lead else until

    def _grant_of(self, sent, row):
        """The grant in an answer, or None. What remains counts from the sending of the call."""
        if not row:
            return None
        term, remaining_ms, yielding = row
        seconds = int(remaining_ms) / 1000
        return Grant(int(term), sent + seconds, seconds / 3, yielding == "t")

    def _answered(self):
        """A turn has ended without an error: so no trouble lasts any longer."""
        self._refused_since = None
        self._trouble.ends()

    def _sicken(self):
        """Do not lead. A lease that we hold is given back in the next turn."""
        self._lose("unhealthy")
        if not self._closing:
            self._trouble.begins("unhealthy", "", f"the health check says: {self._health_text}")

    def _recover(self, error):
        """What an error means for now. Returns for how many seconds to rest."""
        did_nothing = self.leads and sqlstate_of(error) in DID_NOTHING     # the deadline decides
        if self._BOUND and not did_nothing:
            self._lose("connection lost")
        # _wire may be what failed: close it. But not a session that holds the lease: that would
        # give it back before the handlers of "lost" have returned. The next turn does it.
        if not (self._BOUND and self._held):
            self._hang_up()
        if not self._closing:
            self._judge(error)
        lead = self._current()
        if isinstance(error, (LoginFailed, NotPrimary)) and self._tries_next() and not lead:
            return 0.0
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        if lead:            # often: a pool may hand out one broken connection after the other
            pause = min(pause, lead.grant.third / 8)
        return pause * random.uniform(0.5, 1.0)

    def _judge(self, error):
        """What an error means for good. A refusal ends us when it has lasted for refusal_timeout:
        before login, if every address refuses us; after login, if it is a primary's word."""
        sqlstate, verdict = sqlstate_of(error), None
        # A standby neither refuses us nor ends a primary's refusal: _refused_since stays as it is.
        if isinstance(error, NotPrimary):
            if not self._tries_next():          # else the next address may be the primary
                self._trouble.begins("unreachable", sqlstate, text_of(error))
            return
        if isinstance(error, LoginFailed):
            verdict = self._addresses.verdict()
            if not self._BOUND or self._addresses.is_at_primary():
                self._refused_since = None      # another word of where that refusal came from
        elif isinstance(error, self._PooledError):
            verdict = error
        elif not sqlstate.startswith(LASTING):
            self._refused_since = None
        elif not self._refused_since:
            self._refused_since = time.monotonic()
        elif time.monotonic() - self._refused_since >= self._refusal_timeout:
            verdict = error
        if sqlstate and not sqlstate.startswith(NO_ANSWER):
            self._trouble.begins("refused", sqlstate, words_of(error))
        else:
            self._trouble.begins("unreachable", sqlstate, text_of(error))
        if verdict:
            self._fail(verdict)

    def _tries_next(self):
        """Is the next attempt, which is made at once, at another address of this round? Over a pool
        it may be at the same one: the pool chooses. [spin]"""
        return self._BOUND and bool(self._addresses.left)

    def _hang_up(self):
        wire, self._wire = self._wire, None
        if wire:
            wire.close()


class Trouble:
    """What the last attempt came to, for `state`, and for the log: a line when a trouble begins,
    then one a minute, and one when it has ended. If it comes and goes, that is one trouble."""

    def __init__(self, warn):
        self._warn = warn
        self.text = None            # None: no trouble, or none any more
        self._logged = {}           # when each kind was logged last
        self._is_known = False      # the log tells of this trouble: it is to tell of its end, too

    def begins(self, word, sqlstate, text):
        self.text = word if word == "unhealthy" else f"{word}: {text}"
        if self.log((word, sqlstate), f"{word}: {text}"):
            self._is_known = True

    def pauses(self):
        """We have got further, and do not know yet how far: no trouble now, and nothing to log."""
        self.text = None

    def ends(self):
        self.text = None
        if self._is_known:
            self._is_known = False
            self._warn("all is well again")

    def log(self, kind, text):
        """Log this text, but once a minute for each kind. Returns whether it was logged."""
        now = time.monotonic()
        if now - self._logged.get(kind, float("-inf")) < 60.0:
            return False
        self._logged[kind] = now
        self._warn("%s", text)
        return True


def sqlstate_of(error):
    return getattr(error, "sqlstate", None) or ""


def text_of(error):
    """The first line, without detail and hint"""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def words_of(error):
    hint = ""
    if sqlstate_of(error) in NOT_INSTALLED:
        hint = " (CREATE EXTENSION leader_election, or portable.sql?)"
    return f"{sqlstate_of(error) or type(error).__name__} {text_of(error)}{hint}"


# --- the statements: the election is $1

class SessionCandidate(Engine):
    """What a session candidate says to the server, and what the first answer means."""

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
    # Half of what remains is our deadline: the server ends the session of a silent peer when that
    # is over, and another leads at once then.
    _RENEW = """SELECT term, remaining_ms / 2, yielding FROM leader_election.renew($1,
        metadata => $3::pg_catalog.jsonb) WHERE term OPERATOR(pg_catalog.=) $2::pg_catalog.int8"""
    _LEAVE = "SELECT leader_election.leave($1)"

    def _check_server(self, row, driver_pid):
        """The answer to _HELLO: is it the primary, and is the session ours alone? Nothing is set
        before we know that no pooler lends it to others as well. [behind a pooler]"""
        pid, in_recovery, logged_from, statement_timeout = row
        if not self._pooler and int(pid) != driver_pid:
            raise self._PooledError("this is a pooler: use DetachedLeadership, or say "
                                    "pooler='session' if it is in session mode")
        if in_recovery == "t":
            raise NotPrimary("this server is a standby")
        self._addresses.found_primary()
        if not self._pooler:
            statement_timeout = 0       # by _NO_TIMEOUTS, which is next
        limits = int(logged_from) / 1000, int(statement_timeout) / 1000
        self._fitting_slice = self._fit_slice(*limits)

    def _fit_slice(self, logged_from, statement_timeout):
        """For how many seconds a campaign waits: less than the server's log_min_duration_statement
        [slices], and less than its statement_timeout, if we must not turn that off."""
        if self._slice is not None:
            return self._slice
        seconds = 5.0
        if 0.2 <= 0.8 * logged_from < seconds:
            seconds = 0.8 * logged_from
        elif 0 < 0.8 * logged_from < 0.2:
            self._trouble.log("slice", "the server's log will have each campaign, which is longer "
                              f"than {logged_from} s, its log_min_duration_statement")
        return min(seconds, 0.8 * statement_timeout) if statement_timeout > 0 else seconds


class DetachedCandidate(Engine):
    """What a detached candidate says to the server."""

    _BOUND = False
    # With the same request until it is granted: if an answer is lost, the next one is that grant.
    # [lost answer]
    _ACQUIRE = """SELECT term, remaining_ms, yielding FROM leader_election.acquire($1, $2,
        rank => $3::pg_catalog.int4, metadata => $4::pg_catalog.jsonb,
        request => $5::pg_catalog.uuid)"""
    _RENEW = """SELECT term, remaining_ms, yielding FROM leader_election.renew($1, $2,
        metadata => $3::pg_catalog.jsonb)"""
    _RELEASE = "SELECT leader_election.release($1, $2)"
    _LEAVE = "SELECT leader_election.leave($1, $2)"
    _IN_RECOVERY = "SELECT pg_catalog.pg_is_in_recovery()"

    _request = None         # of acquire(), until one is granted
    _stands = False         # the server may know us as a candidate: we have asked, and not left
    _listeners = None       # addresses to listen at
    _listen_at = 0.0        # when we try to listen next

    def _cannot_listen(self, error):
        """We still ask each interval."""
        self._hang_up()
        if not self._listeners.left:            # else the next address, in the next turn
            # Not all at the same time: their connections may have ended together.
            self._listen_at = self._now() + random.uniform(15.0, 30.0)
            self._trouble.log("listen", f"cannot listen: {text_of(error)}")


# --- where to connect

Address = namedtuple("Address", "host port hostaddr")


class Addresses:
    """One address after the other, round after round.

    A driver itself would end its list at the first server that refuses us, would give all its time
    to a dead one, and would stay with a standby. Each address has its own last word: one that
    refuses a login may be a standby that lags, so only if all of them do, and for long, that is
    final.
    """

    def __init__(self, refusal_timeout, addresses=()):
        self._refusal_timeout = refusal_timeout
        self.all = list(addresses)
        self.left = []              # of this round
        self._refusals = {}         # by address: since when, and the last error
        self._last = self._primary = None

    def begin_round(self, addresses):
        """Begin anew, with the address that was last found to be the primary's."""
        self.all = addresses
        self.left = sorted(addresses, key=lambda address: address != self._primary)

    def take(self):
        """The next address of this round."""
        self._last = self.left.pop(0)
        return self._last

    def refused(self, address, error):
        """A connection to this address has failed. If that was a refused login, remember since when
        it refuses us. Anything else (no answer, say) is no refusal, and ends one."""
        if not sqlstate_of(error).startswith(REFUSES_LOGIN):
            return self.answered(address)
        since, _ = self._refusals.get(address, (time.monotonic(), None))
        self._refusals[address] = since, error

    def answered(self, address):
        """Another word than a refusal. A server whose name could not be looked up is tried without
        an IP address: that is the last word of all its addresses then."""
        for refused in list(self._refusals):
            if refused == address or not address.hostaddr and refused[:2] == address[:2]:
                del self._refusals[refused]

    def found_primary(self):
        """The address that was taken last is the primary's: this round is over, and the next one
        begins with it."""
        self._primary, self.left = self._last, []

    def is_at_primary(self):
        return self._last is not None and self._last == self._primary

    def verdict(self):
        """The error that ends us: if the last word of every address is a refusal, and has been for
        refusal_timeout. Else None."""
        refusals = [self._refusals.get(address) for address in self.all]
        if not refusals or None in refusals:
            return None
        since, error = max(refusals, key=lambda refusal: refusal[0])
        return error if time.monotonic() - since >= self._refusal_timeout else None


def addresses_of(host, port, hostaddr, found):
    """The addresses of one server. found: what getaddrinfo() has answered for its name. [one name]
    """
    ips = dict.fromkeys(address[0] for *_, address in found)
    return [Address(host, port, ip) for ip in ips or [hostaddr]]


# --- where this process runs

def default_name():
    """A candidate's name, of at most 200 bytes: the end of the host's name tells more than its
    beginning. In Kubernetes it is the pod's, which operators know."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        host = os.environ.get("POD_NAME") or os.environ.get("HOSTNAME") or socket.gethostname()
        rest = "" if os.getpid() == 1 else f"-{os.getpid()}"
    else:
        host, rest = socket.gethostname(), f"-{os.getpid()}-{secrets.token_hex(2)}"
    return host.encode()[-(200 - len(rest)):].decode(errors="ignore") + rest


def refuse_uwsgi_without_threads():
    """uWSGI, in its default configuration, runs no threads but the one of a request. [forks]"""
    uwsgi = sys.modules.get("uwsgi")
    if uwsgi and not {"enable-threads", "threads"} & set(uwsgi.opt):
        raise RuntimeError("uWSGI runs no threads unless it is told to: enable-threads = true")
