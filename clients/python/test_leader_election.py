"""What can be tested without a server: FakeLeadership, SoleLeadership, the deadline, and the
engine with calls that are answered as the test says. python3 -m unittest discover clients/python"""

import asyncio
import logging
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

import psycopg

import leader_election
import leader_election_core as core
from leader_election import (DetachedLeadership, FakeLeadership, Leadership, LeadershipError,
                             NotLeader, SoleLeadership)
from told import Told


class Answered(DetachedLeadership):
    """Its server is answer(call), which gives a row, or None. rest: after how many seconds it
    renews, if not after a third of the lease. So that may be soon, and the lease long: it does not
    run out while the machine stands still."""

    def __init__(self, answer, rest=None, **options):
        super().__init__(None, "e", **{"interval": 0.01, **options})
        self.answer, self.rest, self.sent, self.released = answer, rest, [], []

    def _grant_of(self, sent, row):
        grant = super()._grant_of(sent, row)
        return grant._replace(third=self.rest) if grant and self.rest else grant

    def _call(self, sql, *values):
        call = sql.partition("leader_election.")[2].partition("(")[0]
        self.sent.append(call)
        if call == "release":
            self.released.extend(values)
        return self.answer(call)


class Interrupted(leader_election._Candidate):
    """Just after look number `at` at its tenure, the engine begins the next one."""

    at = 0

    @property
    def _lead(self):
        lead = self._tenure
        self.at -= 1
        if self.at == 0:
            self._begin(grant(2, float("inf")))
        return lead

    @_lead.setter
    def _lead(self, lead):
        self._tenure = lead


class Session:
    """A session's _Wire: campaign() answers a campaign."""

    def __init__(self, campaign):
        self.campaign, self.pgconn = campaign, types.SimpleNamespace(backend_pid=1, socket=None)

    def ask(self, until, sql, *values, stop=None):
        if sql == Leadership._HELLO:
            return ["1", "f", "-1", "0"]
        return self.campaign() if sql == Leadership._CAMPAIGN else [""]

    def close(self):
        pass


class Connection:
    """What fenced() needs of one."""

    def __init__(self, autocommit, transaction_status=0):
        self.autocommit, self.executed = autocommit, []
        self.info = types.SimpleNamespace(transaction_status=transaction_status)

    def cursor(self):
        return self

    def execute(self, sql, values):
        self.executed.append(values)

    def close(self):
        pass


class News:
    """A connection over which news of election "e" come without an end."""

    def __init__(self):
        self.pgconn, (self.socket, self.other_end) = self, socket.socketpair()
        self.other_end.send(b"!")

    def heard(self):
        return ['{"election": "e"}']

    def close(self):
        self.socket.close()
        self.other_end.close()


def granted(call, ms="15000", term="1", yielding="f"):
    return [term, ms, yielding] if call in ("acquire", "renew") else ["t"]


def clock(now):
    """For the core, the time is now[0] meanwhile: it passes as the test says."""
    return mock.patch.object(core, "time", types.SimpleNamespace(
        **{**vars(time), "monotonic": lambda: now[0]}))


def grant(term, deadline, third=0.0):
    return core.Grant(term, deadline, third, False)


class Logged(Told):
    """Keeps what is logged, in lines."""

    def setUp(self):
        super().setUp()
        self.lines = []
        self.log_handler = handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())
        core.log.addHandler(handler)
        core.log.propagate = False
        self.addCleanup(core.log.removeHandler, handler)

    def until(self, condition):
        end = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), end, f"told: {self.told}, logged: {self.lines}")
            time.sleep(0.002)


class Tests(Logged, unittest.TestCase):
    fake_class = FakeLeadership

    def answered(self, answer=granted, **more):
        self.leadership = Answered(answer, **{**self.handlers(), **more})
        self.addCleanup(self.leadership.close)
        return self.leadership.start()

    # --- Fake and Sole

    def test_elected_and_lost_once_each(self):
        fake = self.fake()
        self.assertIsNone(fake.term)
        self.assertEqual(fake.elect(7), 7)
        self.assertEqual((fake.term, fake.leads, fake.changes), (7, True, 1))
        fake.lose()
        fake.lose("expired")
        self.assertEqual(self.told, [("elected", 7), ("lost", "connection lost")])
        self.assertEqual(fake.elect(), 8)
        self.assertEqual(fake.wait(0), 8)

    def test_elected_in_a_handler(self):
        def on_elected(term):
            self.told.append(("elected", term))
            if term == 1:
                self.assertEqual((fake.elect(), fake.elect()), (2, 3))
        fake = self.fake(on_elected=on_elected)
        self.assertEqual(fake.elect(), 1)
        self.assertEqual(self.told, [("elected", 1), ("lost", "not renewed"), ("elected", 3)])
        self.assertEqual(fake.term, 3)

    def test_a_session_keeps_its_lease_after_errors_that_did_nothing(self):
        for sqlstate, leads in (("55P03", True), ("57014", True), ("40001", True), ("XX000", False)):
            session = Leadership("", "e")
            session._begin(grant(1, float("inf")))
            error = psycopg.Error()
            error.sqlstate = sqlstate
            session._recover(error)
            self.assertEqual(session.leads, leads, sqlstate)

    def test_deadline(self):
        with self.fake() as fake:
            fake.elect(lease=15)
            fake.advance(14.9)
            self.assertEqual(fake.term, 1)
            fake.advance(0.1)
            self.assertIsNone(fake.term)
            self.assertEqual(self.told[-1], ("lost", "expired"))
            self.assertIsNone(fake.wait(0))

    def test_term_ends_by_the_clock_alone(self):
        fake = self.fake()
        fake.elect(lease=15)
        fake._time = 15.0            # nobody has reported anything
        self.assertIsNone(fake.term)
        fake._lead.grant = grant(1, 30.0)
        self.assertIsNone(fake.term, "an answer after the deadline revives nothing")

    def test_late_grant_is_not_taken(self):
        fake = self.fake()
        fake._begin(grant(3, 0.0))
        self.assertEqual((self.told, fake.leads), ([], False))

    def test_yield(self):
        fake = self.fake()
        fake.elect()
        fake.ask_yield()
        fake.ask_yield()
        self.assertTrue(fake.leads)
        fake.resign()
        self.assertEqual(self.told, [("elected", 1), ("yield", 1), ("lost", "yielded")])
        fake = self.fake(on_yield=None)
        fake.elect()
        fake.ask_yield()
        self.assertFalse(fake.leads)
        self.assertEqual(self.told[-1], ("lost", "yielded"))

    def test_handlers_are_not_nested(self):
        def on_elected(term):
            fake.resign()
            steps.append("elected returns")
        steps = []
        fake = self.fake(on_elected=on_elected, on_lost=steps.append)
        fake.elect()
        self.assertEqual(steps, ["elected returns", "resigned"])

    def test_failing_handlers(self):
        """The table of handlers in docs/clients.md."""
        for wrong in (ZeroDivisionError, SystemExit):
            for event, told in (("elected", ["lost error", "error"]),
                                ("lost", ["elected 1", "yield 1", "error"]),
                                ("yield", ["elected 1", "lost error", "error"])):
                def handler(value):
                    raise wrong
                with self.subTest(wrong=wrong, event=event):
                    self.told.clear()
                    fake = self.fake(**{f"on_{event}": handler})
                    self.elect_ask_and_resign(fake)
                    if event == "yield" and wrong is ZeroDivisionError:
                        self.assertEqual(self.told, [("elected", 1), ("lost", "yielded")])
                        self.assertEqual(fake.state, "standing")
                        continue
                    words = [f"{event} {value}" if event != "error" else event
                             for event, value in self.told]
                    self.assertEqual(words, told)
                    self.assertIsInstance(self.told[-1][1], wrong)
                    self.assertTrue(fake.state.startswith(f"failed: {wrong.__name__}"), fake.state)
                    with self.assertRaises(wrong):
                        fake.wait()
                    self.assertEqual(fake.elect(), 2)
                    self.assertFalse(fake.leads, "it never leads again")

    def elect_ask_and_resign(self, fake):
        fake.elect()
        fake.ask_yield()
        fake.resign()

    def test_elected_while_the_teller_looks(self):
        """Whenever that is, the handlers are told of it once, and of nothing that is over."""
        for at in range(1, 8):
            with self.subTest(at=at):
                self.told.clear()
                candidate = Interrupted(**{**self.handlers(), "on_yield": None})
                candidate._lead = core.Tenure(core.Grant(1, 0.0, 0.0, True), ["resigned"],
                                              {"elected", "lost"})
                candidate.at = at
                while candidate.at > 0 or candidate._due():
                    candidate._tell()
                self.assertEqual((self.told, candidate.term), ([("elected", 2)], 2))

    def test_exit_just_after_a_handler(self):
        """That of a signal handler, say: the event has been told all the same."""
        class Exits(FakeLeadership):
            def _handle(self, event, value):
                super()._handle(event, value)
                if event == "elected":
                    raise SystemExit
        fake = Exits(**self.handlers())
        with self.assertRaises(SystemExit):
            fake.elect()
        fake.lose()
        self.assertEqual(self.told, [("elected", 1), ("lost", "connection lost")])

    def test_failing_error_handler(self):
        def exits(value):
            raise SystemExit(7)

        def fails(value):
            raise ZeroDivisionError
        fake = self.fake(on_elected=fails, on_error=fails)
        fake.elect()
        with self.assertRaises(ZeroDivisionError):
            fake.wait()
        fake = self.fake(on_elected=fails, on_error=exits)
        fake.elect()
        with self.assertRaises(SystemExit):
            fake.wait()

    def test_fake_fence_and_close(self):
        fake = self.fake()
        with self.assertRaises(NotLeader):
            fake.fenced(None)
        fake.elect()
        fake.fenced(None)
        fake.close()
        fake.close()
        self.assertEqual(self.told[-1], ("lost", "closed"))
        fake.elect()
        self.assertFalse(fake.leads)

    def test_sole(self):
        sole = SoleLeadership("e", **self.handlers())
        self.assertFalse(sole.leads)
        sole.start()
        self.assertEqual((sole.leads, sole.term, sole.wait()), (True, None, None))
        with self.assertRaises(RuntimeError):
            sole.fenced(Connection(False))
        sole.resign()
        sole.close()
        self.assertFalse(sole.leads)
        self.assertEqual(self.told, [("elected", None), ("lost", "resigned"), ("elected", None),
                                     ("lost", "closed")])
        with SoleLeadership("e", unfenced=True) as sole:
            sole.fenced(None)

    def test_log_that_raises(self):
        """Handlers are called, and the engine goes on, whatever the program's log does."""
        def broken(record):
            raise ValueError("log")

        def answer(call):
            if self.server.changes:     # so it is elected once, if not by its first call
                raise psycopg.OperationalError("no answer")
            return granted(call, ms="300")
        core.log.addFilter(broken)
        self.addCleanup(core.log.removeFilter, broken)
        core.log.setLevel(logging.INFO)
        self.addCleanup(core.log.setLevel, logging.NOTSET)
        self.server = Answered(answer, **self.handlers())
        with self.server:
            self.until(lambda: len(self.told) == 2)
            self.assertTrue(self.server._engine.is_alive())
        self.assertEqual(self.told, [("elected", 1), ("lost", "expired")])

    def test_log_while_a_handler_runs(self):
        core.log.setLevel(logging.INFO)
        self.addCleanup(core.log.setLevel, logging.NOTSET)
        goes_on = threading.Event()
        self.addCleanup(goes_on.set)
        with Answered(granted, on_elected=lambda term: goes_on.wait()) as server:
            server.wait()
            server.resign()
            self.until(lambda: len(self.lines) == 2)
            goes_on.set()
        self.assertEqual(self.lines[:2], ['elected leader of "e", term 1',
                                          'lost leadership of "e", term 1: resigned'])

    def test_log_of_a_loss_just_after_a_look(self):
        """A signal handler closes between the look for lines and the look for events."""
        class Interrupted(FakeLeadership):
            def _log_due(self):
                super()._log_due()
                if "elected" in self._lead.told and self.leads:
                    self.close()
        core.log.setLevel(logging.INFO)
        self.addCleanup(core.log.setLevel, logging.NOTSET)
        fake = Interrupted("e")
        fake.elect()
        fake.advance(1)
        self.assertEqual(self.lines, ['elected leader of "e", term 1',
                                      'lost leadership of "e", term 1: closed'])

    def test_close_while_the_log_is_locked(self):
        """A signal handler may have interrupted the log, and calls close()."""
        core.log.setLevel(logging.INFO)
        self.addCleanup(core.log.setLevel, logging.NOTSET)
        with Answered(granted, **self.handlers()) as server:
            self.until(lambda: self.lines and self.told)
            with self.log_handler.lock:
                server.close()
                self.assertFalse(server._teller.is_alive())
                self.assertEqual(server.sent[-2:], ["release", "leave"])
            server._writer.join(5)
        self.assertEqual(self.told, [("elected", 1), ("lost", "closed")])
        self.assertEqual(self.lines, ['elected leader of "e", term 1',
                                      'lost leadership of "e", term 1: closed'])

    def test_log(self):
        """Tells who leads, where the program wants to know that."""
        for level, lines in ((logging.INFO, ['elected leader of "e", term 7',
                                             'lost leadership of "e", term 7: connection lost',
                                             'elected leader of "e"',
                                             'lost leadership of "e": closed']),
                             (logging.NOTSET, [])):       # the root's: WARNING
            self.lines.clear()
            core.log.setLevel(level)
            self.addCleanup(core.log.setLevel, logging.NOTSET)
            fake = self.fake()
            fake.elect(7)
            fake.lose()
            SoleLeadership("e").start().close()
            self.assertEqual(self.lines, lines)

    # --- fenced()

    def test_a_signal_handler_closes_a_sole_one(self):
        class Interrupted(SoleLeadership):
            def _tell(self):
                told = super()._tell()
                if not told and self.leads:
                    self.close()        # at the last moment of _ring()
                return told
        Interrupted(**self.handlers()).start()
        self.assertEqual(self.told, [("elected", None), ("lost", "closed")])

    def test_wait_tells_the_term_that_it_saw(self):
        fake = self.fake()
        fake.elect(7)
        fake._current = mock.Mock(side_effect=[fake._lead, None])      # lost right after
        self.assertEqual(fake.wait(0), 7, "None would mean that it is closed")

    def test_what_cannot_be_fenced_is_refused(self):
        leadership = self.answered()
        leadership.wait(5)
        for connection in (Connection(True),
                           types.SimpleNamespace(autocommit=True, cursor=lambda: Connection(True))):
            with self.assertRaises(RuntimeError):
                leadership.fenced(connection)
        for connection in (Connection(False), Connection(True, transaction_status=2)):
            leadership.fenced(connection)
            self.assertEqual(connection.executed, [("e", 1)])

    # --- where to connect

    def addresses(self, where, *keys, count=3, **environment):
        """The first addresses, if names have the IP addresses that the test says, and libpq
        reads only the environment that it says."""
        ips = {"two": ["1.1.1.1", "1.1.1.2"]}

        def getaddrinfo(host, port, **_):
            return [(0, 0, 0, "", (ip, 0)) for ip in ips.get(host, ["0.0.0.0"])]
        with mock.patch.dict(os.environ, environment), \
                mock.patch("socket.getaddrinfo", getaddrinfo):
            addresses = leader_election._Addresses(30.0, psycopg.conninfo.conninfo_to_dict(where))
            return [tuple(params[key] for key in keys)
                    for params in (addresses.params_of(addresses.next()) for _ in range(count))]

    def test_hosts(self):
        self.assertEqual(self.addresses("host=a,b port=1,2 dbname=d", "host", "port", "dbname"),
                         [("a", "1", "d"), ("b", "2", "d"), ("a", "1", "d")])
        self.assertEqual(self.addresses("postgresql://u@a,b:5/d?connect_timeout=9", "host", "port"),
                         [("a", ""), ("b", "5"), ("a", "")])
        self.assertEqual(self.addresses("hostaddr=1.1.1.1,2.2.2.2 host=a,b", "host", "hostaddr"),
                         [("a", "1.1.1.1"), ("b", "2.2.2.2"), ("a", "1.1.1.1")])
        self.assertEqual(self.addresses("host=two,b port=7", "host", "hostaddr", "port", count=4),
                         [("two", "1.1.1.1", "7"), ("two", "1.1.1.2", "7"), ("b", "0.0.0.0", "7"),
                          ("two", "1.1.1.1", "7")])
        self.assertEqual(self.addresses("host=/tmp,b", "host", "hostaddr", count=2),
                         [("/tmp", ""), ("b", "0.0.0.0")])
        with self.assertRaises(psycopg.ProgrammingError):
            Leadership("no such word", "e")

    def test_lists_that_do_not_match(self):
        """End with what libpq says, which would not see it: it is given one address at a time."""
        for where, text in (("host=a,b,c port=1,2", "2 port numbers to 3 hosts"),
                            ("port=1,2", "2 port numbers to 1 hosts"),
                            ("hostaddr=1.1.1.1,2.2.2.2 port=1,2,3", "3 port numbers to 2 hosts"),
                            ("hostaddr=1.1.1.1 host=a,b", "2 host names to 1 hostaddr"),
                            ("hostaddr=1.1.1.1,2.2.2.2 host=a", "1 host names to 2 hostaddr")):
            with self.subTest(where=where), self.assertRaisesRegex(LeadershipError, text):
                self.addresses(where, "host")
        leadership = Leadership("host=a,b,c port=1,2", "e", refusal_timeout=0.1).start()
        self.addCleanup(leadership.close)
        with self.assertRaisesRegex(LeadershipError, "could not match"):
            self.assertIsNone(leadership.wait(5))

    def test_what_libpq_reads(self):
        """The environment, and a service in its file."""
        self.assertEqual(self.addresses("", "host", "port", PGHOST="a,b", PGPORT="1,2"),
                         [("a", "1"), ("b", "2"), ("a", "1")])
        self.assertEqual(self.addresses("", "host", "hostaddr", PGHOST="a,b",
                                        PGHOSTADDR="1.1.1.1,2.2.2.2", count=2),
                         [("a", "1.1.1.1"), ("b", "2.2.2.2")])
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("[app]\nhost=a,b\nport=1,2\nuser=app\n")
            file.flush()
            for where, service in (("service=app", {}), ("", {"PGSERVICE": "app"})):
                self.assertEqual(
                    self.addresses(where, "host", "port", "user", PGSERVICEFILE=file.name, **service),
                    [("a", "1", "app"), ("b", "2", "app"), ("a", "1", "app")])
            with self.assertRaisesRegex(psycopg.OperationalError, "nosuch"):
                self.addresses("service=nosuch", "host", PGSERVICEFILE=file.name)

    def test_verdict(self):
        """Only when the last word of every address is a refusal, for so long without a break."""
        addresses, now = leader_election._Addresses(0.1, {"host": "/a,/b", "port": "1"}), [0.0]
        a, b = addresses.next(), addresses.next()
        no = leader_election._refusal('role "x" does not exist')
        with clock(now):
            self.assertIsNone(addresses.verdict())
            addresses.refused(a, no)
            now[0] += 0.11
            self.assertIsNone(addresses.verdict(), "b has not refused")
            addresses.refused(b, no)
            self.assertIsNone(addresses.verdict(), "b has not refused for so long")
            now[0] += 0.11
            self.assertIs(addresses.verdict(), no)
            addresses.answered(a)
            addresses.refused(a, no)
            self.assertIsNone(addresses.verdict(), "there was a break")

    def test_an_outage_of_name_lookup(self):
        """begins the time of the refusals of that name's addresses anew."""
        def getaddrinfo(host, port, **_):
            if host == "db" and not works:
                raise socket.gaierror("temporary failure")
            return [(0, 0, 0, "", (f"1.1.{len(host)}.{last}", 0)) for last in (1, 2)]

        def verdict():
            """After one more round."""
            for _ in range(4 if works else 3):
                address = addresses.next()
                addresses.refused(address, no if address.hostaddr else OSError("no such host"))
            self.assertEqual(addresses.left, [])
            return addresses.verdict()
        no, works, now = leader_election._refusal('role "x" does not exist'), True, [0.0]
        addresses = leader_election._Addresses(0.1, {"host": "db,other"})
        with mock.patch("socket.getaddrinfo", getaddrinfo), clock(now):
            self.assertIsNone(verdict())
            now[0] += 0.11
            works = False
            self.assertIsNone(verdict())
            works = True
            self.assertIsNone(verdict(), "db has refused only just now")
            now[0] += 0.11
            self.assertIs(verdict(), no)

    def test_primary_comes_first(self):
        addresses = leader_election._Addresses(0.1, {"host": "/a,/b,/c", "port": "1"})
        self.assertEqual([addresses.next().host for _ in range(2)], ["/a", "/b"])
        addresses.found_primary()
        self.assertEqual([addresses.next().host for _ in range(4)], ["/b", "/a", "/c", "/b"])

    # --- names

    def test_default_name(self):
        with mock.patch("socket.gethostname", lambda: "host"):
            self.assertRegex(Leadership("", "e").candidate, rf"^host-{os.getpid()}-[0-9a-f]{{4}}$")
            with mock.patch.dict(os.environ, {"KUBERNETES_SERVICE_HOST": "x", "HOSTNAME": "web-1"}):
                self.assertEqual(Leadership("", "e").candidate, f"web-1-{os.getpid()}")
                os.environ["POD_NAME"] = "web-2"
                with mock.patch("os.getpid", lambda: 1):
                    self.assertEqual(Leadership("", "e").candidate, "web-2")
                    os.environ["POD_NAME"] = "x" * 250 + "-0"      # and there may be a -1
                    self.assertEqual(Leadership("", "e").candidate, "x" * 198 + "-0")
        made = Answered(granted)
        self.addCleanup(made.close)
        name = made.candidate
        made.start()
        self.assertEqual(made.candidate, name)
        with mock.patch("socket.gethostname", lambda: "h\u00f6st" * 60):
            self.assertEqual(len(Leadership("", "e").candidate.encode()), 200)

    def test_slices(self):
        """Below what the server logs, unless told otherwise, or that would be far too short."""
        session = Leadership("", "e")
        self.assertEqual([session._fit_slice(seconds, 0.0) for seconds in (-0.001, 0.0, 10.0, 1.0)],
                         [5.0, 5.0, 5.0, 0.8])
        self.assertEqual([session._fit_slice(0.1, 0.0) for _ in range(2)], [5.0, 5.0])
        self.assertEqual(len(self.lines), 1)
        self.assertEqual(Leadership("", "e", slice=3.0)._fit_slice(1.0, 2.0), 3.0)
        self.assertEqual(Leadership("", "e", pooler="session")._fit_slice(-1.0, 2.0), 1.6)
        with self.assertRaises(ValueError):
            Leadership("", "e", pooler="transaction")

    # --- the engine

    def test_lost_returns_before_the_lease_is_given_back(self):
        def on_lost(reason):
            time.sleep(0.2)
            steps.extend([reason, *self.leadership.sent])
        steps = []
        leadership = self.answered(on_lost=on_lost)
        leadership.wait(5)
        leadership.close()
        self.assertEqual(steps, ["closed", "acquire"])
        self.assertEqual(leadership.sent, ["acquire", "release", "leave"])
        self.until(lambda: not leadership._engine.is_alive() and not leadership._teller.is_alive())

    def test_a_check_that_hangs(self):
        """Is ill after call_timeout: the lease is given back, and close() is bounded."""
        hang, asked = threading.Event(), []
        self.addCleanup(hang.set)

        def check():
            if not self.leadership.changes:
                return True
            asked.append(1)
            return hang.wait()
        leadership = self.answered(rest=0.1, call_timeout=0.3, health_check=check)
        self.until(lambda: "release" in leadership.sent)
        self.assertEqual(self.told, [("elected", 1), ("lost", "unhealthy")])
        self.assertEqual(leadership.state, "unhealthy")
        turns, is_healthy = [], leadership._is_healthy
        leadership._is_healthy = lambda: turns.append(1) or is_healthy()
        self.until(lambda: len(turns) >= 2)
        self.assertEqual(len(asked), 1, "it is not asked again before it has answered")
        for _ in range(2000):       # fills what wakes the engine
            leadership.resign()
        start = time.monotonic()
        leadership.close()
        self.assertLess(time.monotonic() - start, 5.0)

    def test_unhealthy(self):
        well = threading.Event()
        leadership = self.answered(rest=0.1, health_check=well.is_set)
        self.until(lambda: leadership.state == "unhealthy")
        self.assertEqual(leadership.sent, [])
        well.set()
        self.until(lambda: ("elected", 1) in self.told)
        well.clear()
        self.until(lambda: leadership.sent[-2:] == ["release", "leave"])
        self.assertIn(("lost", "unhealthy"), self.told)

    def test_a_check_that_fails_exits_or_closes(self):
        asked = []

        def fails():
            asked.append(1)
            raise ZeroDivisionError

        def exits():
            raise SystemExit(7)
        leadership = self.answered(health_check=fails)
        self.until(lambda: len(asked) >= 3)
        self.assertEqual((leadership.state, len(self.lines)), ("unhealthy", 1), self.lines)
        leadership.close()
        leadership = self.answered(health_check=exits)
        with self.assertRaises(SystemExit):
            leadership.wait(5)
        leadership = self.answered(health_check=lambda: self.leadership.close())
        self.assertIsNone(leadership.wait(5))
        self.assertEqual(leadership.state, "closed")

    def test_an_answer_after_its_deadline(self):
        """Is not taken, but given back."""
        def answer(call):
            if call == "acquire":
                time.sleep(0.06)
            return granted(call, "50")
        leadership = self.answered(answer)
        self.until(lambda: leadership.sent.count("acquire") == 2)
        self.assertEqual((self.told, leadership.changes), ([], 0))

    def test_errors_until_the_deadline(self):
        def answer(call):
            if call == "renew":
                raise psycopg.OperationalError("no answer")
            return granted(call, "3000")
        leadership = self.answered(answer, rest=0.1)
        self.until(lambda: leadership.sent.count("renew") >= 3)
        self.assertEqual((leadership.term, self.told), (1, [("elected", 1)]))
        self.until(lambda: ("lost", "expired") in self.told)

    def test_release_is_tried_once(self):
        """Its server may be gone; and nothing spins meanwhile. The lease runs out."""
        def answer(call):
            if call == "release":
                raise psycopg.OperationalError("no server")
            return granted(call) if leadership.sent == ["acquire"] else None
        leadership = self.leadership = Answered(answer, **self.handlers())
        self.addCleanup(leadership.close)
        leadership.start().wait(5)
        leadership.resign()
        self.until(lambda: leadership.sent.count("acquire") == 3)
        self.assertEqual(leadership.sent[:4], ["acquire", "release", "acquire", "acquire"])
        self.until(lambda: len(self.lines) == 2)
        self.assertIn("unreachable: no server", self.lines[0])

    def test_nothing_spins(self):
        """At most ten failures a second, and one line for all of them, whatever fails."""
        for fails in ("acquire", "renew", "connection"):
            def answer(call):
                if call == fails or fails == "connection" and call != "acquire":
                    raise psycopg.OperationalError("no")
                return granted(call, "2400")
            with self.subTest(fails=fails):
                self.lines.clear()
                start = time.monotonic()
                leadership = self.answered(answer)
                time.sleep(2.0)
                leadership.close()
                seconds = time.monotonic() - start
                self.assertLessEqual(len(leadership.sent), 10 * seconds + 2, leadership.sent)
                self.assertLessEqual(len(self.lines), 3, self.lines)

    def test_failover_and_not_renewed(self):
        answers = iter([["3", "15000", "f"], ["4", "15000", "f"], None])
        self.answered(lambda call: next(answers, None) if call != "release" else ["t"], rest=0.1)
        self.until(lambda: len(self.told) == 4)
        self.assertEqual(self.told, [("elected", 3), ("lost", "failover"), ("elected", 4),
                                     ("lost", "not renewed")])

    def test_resigned_during_a_renewal_that_fails_over(self):
        """What that renewal has brought is given back: nobody leads on who has resigned."""
        def answer(call):
            if call == "renew":
                self.leadership.resign()
            return granted(call, term="1" if call == "acquire" else "2")
        leadership = self.leadership = Answered(answer, rest=0.1, **self.handlers())
        self.addCleanup(leadership.close)
        leadership.start().wait(5)
        self.until(lambda: "release" in leadership.sent)
        self.assertEqual(self.told, [("elected", 1), ("lost", "resigned")])
        self.assertEqual(leadership.released, [2])

    def test_asked_to_yield_once(self):
        leadership = self.answered(lambda call: granted(call, yielding="t"), rest=0.1)
        self.until(lambda: leadership.sent.count("renew") > 2)
        leadership.resign()
        self.until(lambda: "release" in leadership.sent)
        self.assertEqual(self.told, [("elected", 1), ("yield", 1), ("lost", "yielded")])

    def test_news_do_not_make_it_spin(self):
        leadership = self.leadership = Answered(lambda call: None, interval=60.0)
        self.addCleanup(leadership.close)
        leadership._wire = News()
        start = time.monotonic()
        leadership.start()
        self.until(lambda: leadership.sent.count("acquire") >= 5)
        self.assertGreater(time.monotonic() - start, 0.35)

    def test_what_a_primary_refuses(self):
        """(SQLSTATE, whether it ends us when it lasts, state)"""
        for sqlstate, lasting, word in (
                ("3F000", False, "refused"), ("42501", False, "refused"),
                ("42883", False, "refused"), ("42P01", False, "refused"),
                ("LE003", False, "refused"), ("55P03", False, "refused"),
                ("LE004", False, "refused"), ("LE006", False, "refused"),
                ("57P03", False, "unreachable"), ("53300", False, "unreachable"),
                (None, False, "unreachable"), ("22023", True, "refused"),
                ("0A000", True, "refused"), ("25001", True, "refused"),
                ("28000", True, "refused")):
            def answer(call):
                error = psycopg.OperationalError("it says no")
                error.sqlstate = sqlstate
                raise error
            with self.subTest(sqlstate=sqlstate):
                self.told.clear()
                self.lines.clear()
                leadership = self.answered(answer, refusal_timeout=0.2)
                self.until(
                    lambda: leadership._closing or not lasting and len(leadership.sent) > 3)
                self.assertEqual(len(self.lines), 2 if lasting else 1, self.lines)
                if not lasting:
                    text = f"{sqlstate} it says no" if word == "refused" else "it says no"
                    if sqlstate in ("3F000", "42883"):
                        text += " (CREATE EXTENSION leader_election, or portable.sql?)"
                    self.assertEqual(leadership.state, f"{word}: {text}")
                    self.assertEqual(self.told, [])
                    leadership.close()
                    self.assertEqual(leadership.state, "closed")
                    continue
                with self.assertRaises(LeadershipError) as raised:
                    leadership.wait(5)
                self.until(lambda: self.told)
                self.assertEqual(self.told, [("error", raised.exception)])
                self.assertEqual(raised.exception.sqlstate, sqlstate)
                self.assertTrue(leadership.state.startswith(f"failed: {sqlstate} "))

    def test_a_standby_does_not_refuse(self):
        leadership = self.answered(self.refuse_as_standby)
        self.until(lambda: leadership.state != "standing")
        self.assertTrue(leadership.state.startswith("unreachable: cannot"), leadership.state)

    def refuse_as_standby(self, call):
        raise psycopg.errors.ReadOnlySqlTransaction("cannot execute acquire() during recovery")

    def test_a_standby_does_not_excuse_a_primary(self):
        """What it says is no break in the primary's refusals."""
        answers = iter(range(1000))

        def answer(call):
            if next(answers) % 2 == 0:
                raise core.NotPrimary("a standby")
            raise psycopg.errors.InvalidParameterValue("no")
        leadership = self.answered(answer, refusal_timeout=0.3)
        with self.assertRaises(psycopg.errors.InvalidParameterValue):
            leadership.wait(20)

    def test_a_refusal_with_breaks(self):
        """An answer in between begins the time anew."""
        answers = iter(range(1000))

        def answer(call):
            if next(answers) % 2 == 0:
                return None
            raise psycopg.errors.InvalidParameterValue("no")
        leadership = self.answered(answer, refusal_timeout=0.3)
        self.until(lambda: len(leadership.sent) > 12)
        self.assertIsNone(leadership._closing)
        self.assertEqual(len(self.lines), 2, "trouble that comes and goes is no news")

    def test_a_refusal_with_an_outage(self):
        """of its address is one with a break; that another address is down is none."""
        refusal = psycopg.errors.InvalidParameterValue("no")
        for where, ends in (("host=/a", False), ("host=/a,/b", True)):
            session = Leadership(where, "e", refusal_timeout=0.1)
            session._addresses.next()
            session._addresses.found_primary()
            session._judge(refusal)
            time.sleep(0.11)
            while session._addresses.next().host != where[-2:]:
                pass
            session._judge(core.LoginFailed(psycopg.OperationalError("down")))
            session._judge(refusal)
            self.assertEqual(session._error is refusal, ends, where)

    def test_a_refusal_passes(self):
        """As after a restore, or a GRANT: the client goes on."""
        refuse = threading.Event()
        refuse.set()

        def answer(call):
            if refuse.is_set() and call == "acquire":
                raise psycopg.errors.InsufficientPrivilege("no")
            return granted(call)
        leadership = self.answered(answer, refusal_timeout=0.1)
        self.until(lambda: len(leadership.sent) > 4)
        self.assertTrue(leadership.state.startswith("refused: 42501 no"), leadership.state)
        refuse.clear()
        leadership.wait(20)
        self.assertEqual(leadership.state, "leads")
        self.until(lambda: len(self.lines) == 2)

    def test_a_campaign_that_is_refused(self):
        """That join() succeeds each time is no end of the trouble."""
        def campaign():
            states.append(leadership.state)
            if not granted.is_set():
                raise psycopg.errors.InsufficientPrivilege("no")
            return [""]
        states, granted = [], threading.Event()
        leadership = Leadership("", "e")
        leadership._connect = lambda addresses: Session(campaign)
        self.addCleanup(leadership.close)
        leadership.start()
        self.until(lambda: len(states) >= 4)
        self.assertEqual((self.lines, set(states)), (self.lines[:1], {"standing"}))
        granted.set()
        self.until(lambda: len(self.lines) == 2)
        self.assertIn("all is well again", self.lines[1])

    def test_refusal_of_a_leader(self):
        """Did nothing: the deadline decides."""
        def answer(call):
            if call == "renew":
                raise psycopg.errors.InsufficientPrivilege("revoked")
            return granted(call, "300")
        leadership = self.answered(answer)
        self.until(lambda: ("lost", "expired") in self.told)
        self.assertEqual(self.told[:2], [("elected", 1), ("lost", "expired")])

    def test_a_handler_fails(self):
        """The lease is given back before anybody hears of the error."""
        for event in ("elected", "lost"):
            for wrong in (ZeroDivisionError, SystemExit):
                def handler(value):
                    raise wrong
                with self.subTest(event=event, wrong=wrong):
                    sent = []
                    leadership = self.answered(**{
                        f"on_{event}": handler,
                        "on_error": lambda error: sent.extend(self.leadership.sent)})
                    self.until(lambda: leadership.changes)
                    leadership.resign()
                    with self.assertRaises(wrong):
                        self.until(lambda: leadership.wait(0.1) and False)
                    self.until(lambda: sent)
                    self.assertEqual(sent, ["acquire", "release", "leave"])

    def test_a_cancelled_error_ends_no_thread(self):
        def cancelled(*_):
            raise asyncio.CancelledError    # what asyncio.run() may raise; no Exception
        leadership = self.answered(on_elected=cancelled)
        with self.assertRaises(asyncio.CancelledError):     # once the handler has failed
            self.until(lambda: leadership.wait(0.1) and False)
        self.assertIn(("lost", "error"), self.told)
        self.assertEqual(leadership.sent[-2:], ["release", "leave"])
        checks = [lambda: True, cancelled]
        leadership = self.answered(health_check=lambda: checks.pop()(), on_elected=None)
        leadership._stand_down = mock.Mock(return_value=0.0)    # and no rest
        self.until(lambda: leadership.leads)

    def test_close_asks_for_nothing(self):
        leadership = self.answered(lambda call: None, interval=60)
        self.until(lambda: leadership.sent)
        leadership.close()
        self.assertEqual(leadership.sent, ["acquire", "leave"])

    def test_close_and_resign_in_handlers(self):
        returned = []
        leadership = self.answered(on_elected=lambda term: self.leadership.resign(),
                                   on_lost=lambda reason: returned.append(self.leadership.close()))
        leadership._teller.join(5)
        self.assertEqual(returned, [None])
        self.assertEqual(leadership.sent, ["acquire", "release", "leave"])
        self.assertIsNone(leadership.wait())

    def test_machine_slept(self):
        """Waits do not count while the machine sleeps, so they are short."""
        slept = [0.0]

        class Sleepy(Answered):
            def _now(self):
                return time.monotonic() + slept[0]
        leadership = Sleepy(lambda call: granted(call, "60000"), **self.handlers())
        self.addCleanup(leadership.close)
        leadership.start().wait(5)
        slept[0] = 90.0
        self.assertIsNone(leadership.term)
        self.until(lambda: ("lost", "expired") in self.told)

    # --- pools

    def test_a_pool_of_broken_connections(self):
        """Each costs a short pause, is closed, and put back into the pool, which makes new ones."""
        class Broken:
            def __init__(self):
                self.closed = 0
                self.info = self
                self.encoding = "utf-8"
                self.pgconn = self
                self.transaction_status = 4     # unknown

            def send_query_params(self, sql, values):
                raise psycopg.OperationalError("the connection is lost")

            def close(self):
                self.closed += 1

        broken, back = [Broken() for _ in range(20)], []

        class Pool:
            conninfo, kwargs = "host=/nowhere", {}

            def getconn(self, timeout):
                if leadership._closing:
                    raise psycopg.OperationalError("closed")
                return broken[len(back)]

            def putconn(self, conn):
                back.append(conn)

        leadership = DetachedLeadership(Pool(), "e", **self.handlers())
        leadership._held = grant(1, leadership._now() + 60.0, 0.8)
        leadership._lead = core.Tenure(leadership._held)
        leadership.start()
        self.until(lambda: len(back) >= 12)
        self.assertTrue(leadership.leads)
        leadership.close()
        self.assertTrue(all(conn.closed == 1 for conn in broken[:len(back)]))

    def test_a_pool_that_knows_several_hosts(self):
        """Whatever fails: there is a pause after each attempt, which grows. [spin]"""
        class OfStandby:
            """A connection to a standby, which lags."""
            info, encoding, transaction_status = None, "utf-8", 0

            def __init__(self):
                self.info = self.pgconn = self

        def ask(wire, until, sql, *values, stop=None):
            if "pg_is_in_recovery" in sql:
                return ["t"]
            raise psycopg.errors.InvalidSchemaName("not yet")

        class Pool:
            conninfo = "host=/nowhere/" + ",/nowhere/".join("abcdefghij")
            kwargs, asked, fails = {}, 0, 0

            def getconn(self, timeout):
                self.asked += 1
                if self.asked <= self.fails:
                    raise psycopg.OperationalError("none")
                return OfStandby()

            def putconn(self, conn):
                pass

        for fails in (1, 1000):     # then all connections are those of a standby
            with self.subTest(fails=fails), mock.patch("leader_election._Wire.ask", ask):
                pool = Pool()
                pool.fails = fails
                leadership = DetachedLeadership(pool, "e", **self.handlers())
                self.addCleanup(leadership.close)
                start = time.monotonic()
                leadership.start()
                self.until(lambda: pool.asked >= 6)
                self.assertGreater(time.monotonic() - start, 1.5)
                self.assertTrue(leadership.state.startswith("unreachable: "), leadership.state)
                leadership.close()

    # --- signals and forks

    def test_signal_handler_closes(self):
        """Whatever it interrupts: wait(), resign(), or the look at term."""
        previous = signal.signal(signal.SIGALRM, lambda *_: leadership.close())
        self.addCleanup(signal.signal, signal.SIGALRM, previous)
        for i in range(100):
            self.told.clear()
            leadership = self.answered(call_timeout=15.0)
            leadership.wait(5)
            start = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.001 + i * 0.00005)
            while not leadership._closing:
                leadership.term
                leadership.wait(0.0002)
                if i % 2:
                    leadership.resign()
            self.until(lambda: self.told and self.told[-1][0] == "lost")
            leadership.close()
            self.assertLess(time.monotonic() - start, 10.0)
            self.assertEqual([event for event, _ in self.told],
                             ["elected", "lost"] * leadership.changes)
            self.assertEqual(leadership.sent[-2:], ["release", "leave"])

    def test_signal_handler_closes_what_is_just_starting(self):
        leadership = DetachedLeadership(None, "e")
        with mock.patch("threading.Thread.start", lambda thread: leadership.close()):
            leadership.start()
        self.assertEqual(leadership.state, "closed")

    def test_signal_handler_exits(self):
        def handler(*_):
            raise SystemExit
        previous = signal.signal(signal.SIGALRM, handler)
        self.addCleanup(signal.signal, signal.SIGALRM, previous)
        leadership = self.answered()
        with self.assertRaises(SystemExit), leadership:
            leadership.wait(5)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            while True:
                leadership.wait(5)
        self.assertEqual(self.told, [("elected", 1), ("lost", "closed")])
        self.assertEqual(leadership.sent, ["acquire", "release", "leave"])
        self.until(lambda: leadership._bells == [leadership._waker])

    def test_fork(self):
        """A child does not lead, and its close() does not disturb the parent."""
        leadership = self.answered(rest=0.1)
        leadership.wait(5)
        child = os.fork()
        if child == 0:
            refused = 0
            for ask in (lambda: leadership.wait(1), lambda: leadership.fenced(None),
                        leadership.start):
                try:
                    ask()
                except RuntimeError as error:
                    refused += "in the process that called start()" in str(error)
            told = leadership.term, leadership.leads, refused, leadership.state[:7]
            leadership.close()
            os._exit(0 if told == (None, False, 3, "failed:") else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        renewed = leadership.sent.count("renew")
        self.until(lambda: leadership.sent.count("renew") >= renewed + 2)
        self.assertEqual((leadership.term, set(leadership.sent)), (1, {"acquire", "renew"}))

    def test_made_before_a_fork(self):
        """May be started after it, under a name of the child's."""
        made = DetachedLeadership(None, "e")
        child = os.fork()
        if child == 0:
            made.start()
            os._exit(0 if f"-{os.getpid()}-" in made.candidate and made.state != "failed" else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    # --- files to copy

    def test_copied_into_a_package(self):
        """The two files find each other there, too."""
        here = pathlib.Path(leader_election.__file__).parent
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder, "app")
            package.mkdir()
            for name in ("leader_election.py", "leader_election_core.py"):
                shutil.copy(here / name, package)
            program = "from app.leader_election import FakeLeadership; print(FakeLeadership().elect())"
            done = subprocess.run([sys.executable, "-c", program], cwd=folder, text=True,
                                  capture_output=True)
        self.assertEqual((done.stdout, done.stderr), ("1\n", ""))

    def test_uwsgi(self):
        for opt, runs in (({}, False), ({"enable-threads": b"true"}, True), ({"threads": b"2"}, True)):
            with self.subTest(opt=opt), \
                    mock.patch.dict(sys.modules, uwsgi=types.SimpleNamespace(opt=opt)):
                if runs:
                    self.answered().close()
                else:
                    with self.assertRaisesRegex(RuntimeError, "enable-threads"):
                        self.answered()


class Impostor:
    """A server that knows only how to refuse: answer() gives what it sends, b"" to hang up."""

    def __init__(self, answer):
        self.answer, self.logins = answer, 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                conn, _ = self.socket.accept()
            except OSError:
                return
            with conn:
                self.logins += 1
                conn.recv(4096)
                conn.sendall(self.answer())

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def refusal(sqlstate, text):
    fields = b"SFATAL\0VFATAL\0C" + sqlstate.encode() + b"\0M" + text.encode() + b"\0\0"
    return b"E" + struct.pack("!I", len(fields) + 4) + fields


PASSWORD = refusal("28P01", 'password authentication failed for user "x"')
STARTING = refusal("57P03", "the database system is starting up")


class LoginTests(Logged, unittest.TestCase):
    def stand(self, *answers, **options):
        """A session candidate that is given these servers."""
        self.servers = [Impostor(answer) for answer in answers]
        for server in self.servers:
            self.addCleanup(server.close)
        ports = ",".join(str(server.port) for server in self.servers)
        hosts = ",".join("127.0.0.1" for _ in self.servers)
        leadership = Leadership(f"host={hosts} port={ports} user=x dbname=x sslmode=disable "
                                "gssencmode=disable", "e", **{**self.handlers(), **options})
        self.addCleanup(leadership.close)
        return leadership.start()

    def test_all_refuse(self):
        start = time.monotonic()
        leadership = self.stand(lambda: PASSWORD, lambda: PASSWORD, refusal_timeout=2.0)
        self.until(lambda: leadership.state != "standing")
        self.assertTrue(leadership.state.startswith("refused: 28P01 "), leadership.state)
        with self.assertRaises(LeadershipError) as raised:
            leadership.wait(20)
        self.assertGreater(time.monotonic() - start, 1.5)
        self.assertEqual(raised.exception.sqlstate, "28P01")
        self.assertTrue(leadership.state.startswith("failed: 28P01 "), leadership.state)
        self.until(lambda: self.told)
        self.assertEqual(self.told, [("error", raised.exception)])
        self.assertEqual(len(self.lines), 2, self.lines)        # it begins; it has ended us

    def test_one_refuses(self):
        """The other one may come back."""
        for other in (lambda: STARTING, lambda: b""):
            self.lines.clear()
            leadership = self.stand(lambda: PASSWORD, other, refusal_timeout=0.2)
            self.until(lambda: self.servers[0].logins >= 5)
            self.assertIsNone(leadership._closing)
            leadership.close()
            self.assertEqual(len(self.lines), 2, self.lines)

    def test_a_refusal_with_a_break(self):
        server = iter([PASSWORD, STARTING] * 30)
        leadership = self.stand(lambda: next(server), refusal_timeout=0.5)
        self.until(lambda: self.servers[0].logins >= 6 or leadership._closing)
        self.assertIsNone(leadership._closing)

    def test_no_limit(self):
        """libpq takes a connect_timeout of less than 1 for none; ours is call_timeout then."""
        with mock.patch.object(leader_election._Wire, "open") as opened:
            leadership = Leadership("host=/x connect_timeout=-1", "e", call_timeout=7.0)
            leadership._now, leadership._waker = lambda: 100.0, None
            leadership._connect(leadership._addresses)
        self.assertEqual(opened.call_args.args[2], 107.0)

    def test_no_spinning(self):
        """At most ten logins a second, and one line for all of them."""
        for answer in (lambda: PASSWORD, lambda: STARTING, lambda: b""):
            self.lines.clear()
            start = time.monotonic()
            leadership = self.stand(answer, answer, answer)
            time.sleep(2.0)
            leadership.close()
            seconds = time.monotonic() - start
            self.assertLessEqual(sum(server.logins for server in self.servers), 10 * seconds + 2)
            self.assertEqual(len(self.lines), 1, self.lines)


if __name__ == "__main__":
    unittest.main()
