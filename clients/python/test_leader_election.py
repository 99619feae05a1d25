"""What can be tested without a server: FakeLeadership, SoleLeadership, the deadline, and the
engine with calls that are answered as the test says. python3 -m unittest discover clients/python"""

import itertools
import os
import signal
import threading
import time
import types
import unittest

import psycopg

import leader_election
from leader_election import (DetachedLeadership, FakeLeadership, Leadership, LeadershipError,
                             NotLeader, SoleLeadership)
from told import Told


class Answered(DetachedLeadership):
    """Its server is answer(call), which gives a row, or None."""

    def __init__(self, answer, **options):
        super().__init__(None, "e", **{"interval": 0.01, **options})
        self.answer, self.sent = answer, []

    def _call(self, sql, *values):
        call = sql.partition("leader_election.")[2].partition("(")[0]
        self.sent.append(call)
        return self.answer(call)


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


def granted(call, ms="15000", term="1", yielding="f"):
    return [term, ms, yielding] if call in ("acquire", "renew") else ["t"]


class Tests(Told, unittest.TestCase):
    fake_class = FakeLeadership

    def answered(self, answer=granted, **more):
        self.leadership = Answered(answer, **{**self.handlers(), **more})
        self.addCleanup(self.leadership.close)
        return self.leadership.start()

    def until(self, condition):
        end = time.monotonic() + 5
        while not condition():
            self.assertLess(time.monotonic(), end, f"told: {self.told}")
            time.sleep(0.002)

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
        fake._extend(fake._lead, leader_election._grant(1, 15.0, 15.0))
        self.assertIsNone(fake.term, "an answer after the deadline revives nothing")

    def test_late_grant_is_not_taken(self):
        fake = self.fake()
        fake._extend(None, leader_election._grant(3, 0.0, 0.0))
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

    def test_failing_handler(self):
        for error in (ZeroDivisionError, SystemExit):
            def on_elected(term):
                raise error
            fake = self.fake(on_elected=on_elected)
            with self.assertLogs("leader_election"):
                fake.elect()
            fake.resign()
            self.assertEqual(self.told.pop(), ("lost", "resigned"))

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

    # --- fenced()

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

    def test_hosts(self):
        def hosts(where, *keys):
            cycle = leader_election._hosts(where, "me", 2)
            return [tuple(words[key] for key in keys) for words in itertools.islice(cycle, 3)]
        self.assertEqual(hosts("host=a,b port=1,2 dbname=d", "host", "port", "dbname"),
                         [("a", "1", "d"), ("b", "2", "d"), ("a", "1", "d")])
        self.assertEqual(hosts("postgresql://u@a,b:5/d?connect_timeout=9", "host", "port"),
                         [("a", None), ("b", "5"), ("a", None)])
        self.assertEqual(hosts("hostaddr=1.1.1.1,2.2.2.2 host=a,b", "host", "hostaddr"),
                         [("a", "1.1.1.1"), ("b", "2.2.2.2"), ("a", "1.1.1.1")])
        with self.assertRaises(psycopg.ProgrammingError):
            Leadership("no such word", "e")

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
        self.until(lambda: not any(thread.is_alive() for thread in leadership._threads))

    def test_a_check_that_hangs(self):
        """The teller tells at the deadline all the same, and close() is bounded."""
        hang = threading.Event()
        self.addCleanup(hang.set)
        leadership = self.answered(lambda call: granted(call, "300"), call_timeout=0.3,
                                   health_check=lambda: not self.leadership.changes or hang.wait())
        self.until(lambda: ("lost", "expired") in self.told)
        for _ in range(2000):       # fills what wakes the engine
            leadership.resign()
        start = time.monotonic()
        leadership.close()
        self.assertLess(time.monotonic() - start, 1.0)

    def test_unhealthy(self):
        well = threading.Event()
        leadership = self.answered(lambda call: granted(call, "300"), health_check=well.is_set)
        self.until(lambda: leadership.sent == ["leave"])
        well.set()
        self.until(lambda: ("elected", 1) in self.told)
        well.clear()
        self.until(lambda: ("lost", "unhealthy") in self.told and "release" in leadership.sent)

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
            return granted(call, "600")
        with self.assertLogs("leader_election"):
            leadership = self.answered(answer)
            self.until(lambda: leadership.sent.count("renew") >= 3)
            self.assertEqual((leadership.term, self.told), (1, [("elected", 1)]))
            self.until(lambda: ("lost", "expired") in self.told)

    def test_release_is_tried_again(self):
        def answer(call):
            if call == "release" and self.leadership.sent.count("release") < 3:
                raise psycopg.OperationalError("a broken connection")
            return granted(call)
        with self.assertLogs("leader_election"):
            leadership = self.answered(answer)
            leadership.wait(5)
            leadership.resign()
            self.until(lambda: leadership.sent[-1] == "acquire" and len(leadership.sent) > 1)
        self.assertEqual(leadership.sent, ["acquire"] + ["release"] * 3 + ["acquire"])

    def test_failover_and_not_renewed(self):
        answers = iter([["3", "300", "f"], ["4", "300", "f"], None])
        self.answered(lambda call: next(answers, None) if call != "release" else ["t"])
        self.until(lambda: len(self.told) == 4)
        self.assertEqual(self.told, [("elected", 3), ("lost", "failover"), ("elected", 4),
                                     ("lost", "not renewed")])

    def test_asked_to_yield_once(self):
        leadership = self.answered(lambda call: granted(call, "150", yielding="t"))
        self.until(lambda: leadership.sent.count("renew") > 2)
        leadership.resign()
        self.until(lambda: "release" in leadership.sent)
        self.assertEqual(self.told, [("elected", 1), ("yield", 1), ("lost", "yielded")])

    def test_fatal_errors(self):
        for state, text, fatal in (
                ("3F000", "no schema", True), ("42501", "", True), ("LE003", "", True),
                ("28P01", "", True), ("55P03", "", False), ("LE004", "", False),
                ("LE006", "", False), ("25006", "", False), (None, "out of memory", False),
                (None, 'FATAL: database "x" does not exist', True),
                (None, 'password authentication failed for user "x"', True)):
            def answer(call):
                error = psycopg.OperationalError(text)
                error.sqlstate = state
                raise error
            with self.subTest(state=state, text=text), self.assertLogs("leader_election"):
                self.told.clear()
                leadership = self.answered(answer)
                if not fatal:
                    self.until(lambda: len(leadership.sent) > 2)
                    self.assertEqual(self.told, [])
                    leadership.close()
                    continue
                with self.assertRaises(LeadershipError) as raised:
                    leadership.wait(5)
                self.until(lambda: self.told)
                self.assertEqual(self.told, [("error", raised.exception)])
                self.assertTrue(raised.exception.sqlstate)
                self.assertEqual("CREATE EXTENSION" in str(raised.exception), state == "3F000")

    def test_fatal_error_of_a_leader(self):
        def answer(call):
            if call == "renew":
                raise psycopg.errors.InsufficientPrivilege("revoked")
            return granted(call, "300")
        with self.assertLogs("leader_election"):
            leadership = self.answered(answer)
            self.until(lambda: len(self.told) == 3)
            self.assertEqual([event for event, _ in self.told], ["elected", "lost", "error"])
            self.assertEqual(self.told[1], ("lost", "error"))
            self.until(lambda: leadership.sent[-2:] == ["release", "leave"])

    def test_close_and_resign_in_handlers(self):
        returned = []
        leadership = self.answered(on_elected=lambda term: self.leadership.resign(),
                                   on_lost=lambda reason: returned.append(self.leadership.close()))
        leadership._threads[1].join(5)
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
        leadership._lead = leadership._held = leader_election._grant(1, leadership._now(), 2.4)
        with self.assertLogs("leader_election"):
            leadership.start()
            self.until(lambda: len(back) >= 15)
            self.assertTrue(leadership.leads)
            leadership.close()
        self.assertTrue(all(conn.closed == 1 for conn in back))

    # --- signals and forks

    def test_signal_handler_closes(self):
        """Whatever it interrupts: wait(), resign(), or the look at term."""
        previous = signal.signal(signal.SIGALRM, lambda *_: leadership.close())
        self.addCleanup(signal.signal, signal.SIGALRM, previous)
        for i in range(100):
            self.told.clear()
            leadership = self.answered(call_timeout=5.0)
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
            self.assertLess(time.monotonic() - start, 2.0)
            self.assertEqual(len(self.told), 2, self.told)
            self.assertEqual(leadership.sent[-2:], ["release", "leave"])

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
        self.assertEqual(leadership._bells, [])

    def test_fork(self):
        """A child does not lead, and its close() does not disturb the parent."""
        leadership = self.answered(lambda call: granted(call, "600"))
        leadership.wait(5)
        child = os.fork()
        if child == 0:
            term, leads = leadership.term, leadership.leads
            leadership.close()
            os._exit(0 if (term, leads) == (None, False) else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        renewed = leadership.sent.count("renew")
        self.until(lambda: leadership.sent.count("renew") >= renewed + 2)
        self.assertEqual((leadership.term, set(leadership.sent)), (1, {"acquire", "renew"}))


if __name__ == "__main__":
    unittest.main()
