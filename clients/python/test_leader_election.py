"""What can be tested without a server: FakeLeadership, SoleLeadership and the deadline.
python3 -m unittest discover clients/python"""

import asyncio
import inspect
import time
import unittest

import leader_election


class Told(list):
    """Records what handlers are told."""

    def handlers(self):
        return {f"on_{event}": lambda value, event=event: self.append((event, value))
                for event in ("elected", "lost", "yield", "error")}


def run(answer):
    """So that one test serves both files."""
    async def wait():
        return await answer
    return asyncio.run(wait()) if inspect.isawaitable(answer) else answer


class Connection:
    """What fenced() needs of a connection of either kind."""

    def __init__(self, autocommit):
        self.autocommit, self.executed = autocommit, []

    def is_in_transaction(self):
        return not self.autocommit

    def cursor(self):
        return self

    def close(self):
        pass


class Tests:
    def setUp(self):
        self.told = Told()

    def fake(self, **more):
        return self.module.FakeLeadership("e", **{**self.told.handlers(), **more})

    def test_elected_and_lost_once_each(self):
        fake = self.fake()
        self.assertIsNone(fake.term)
        self.assertEqual(run(fake.elect(7)), 7)
        self.assertEqual((fake.term, fake.leads, fake.changes), (7, True, 1))
        run(fake.lose("connection lost"))
        run(fake.lose("connection lost"))
        self.assertEqual(self.told, [("elected", 7), ("lost", "connection lost")])
        self.assertEqual(run(fake.elect()), 8)
        self.assertEqual(run(fake.wait(0)), 8)

    def test_deadline(self):
        fake = self.fake()
        run(fake.elect(lease=15))
        run(fake.advance(14.9))
        self.assertEqual(fake.term, 1)
        run(fake.advance(0.1))
        self.assertIsNone(fake.term)
        self.assertEqual(self.told[-1], ("lost", "expired"))
        self.assertIsNone(run(fake.wait(0)))

    def test_term_ends_by_the_clock_alone(self):
        fake = self.fake()
        run(fake.elect(lease=15))
        fake._time = 15.0            # nobody has reported anything
        self.assertIsNone(fake.term)
        self.assertFalse(fake.leads)
        self.assertFalse(fake._extend(30.0), "an answer after the deadline revives nothing")

    def test_late_grant_is_not_taken(self):
        fake = self.fake()
        self.assertFalse(fake._begin(3, 0.0))
        self.assertEqual(self.told, [])

    def test_yield(self):
        fake = self.fake()
        run(fake.elect())
        run(fake.ask_yield())
        run(fake.ask_yield())
        self.assertTrue(fake.leads)
        run(fake.resign())
        self.assertEqual(self.told, [("elected", 1), ("yield", 1), ("lost", "yielded")])
        fake = self.fake(on_yield=None)
        run(fake.elect())
        run(fake.ask_yield())
        self.assertFalse(fake.leads)
        self.assertEqual(self.told[-1], ("lost", "yielded"))

    def test_handlers_are_not_nested(self):
        steps = []

        def on_elected(term):
            fake._end("resigned")
            steps.append("elected returns")
        fake = self.fake(on_elected=on_elected, on_lost=steps.append)
        run(fake.elect())
        self.assertEqual(steps, ["elected returns", "resigned"])

    def test_failing_handler(self):
        fake = self.fake(on_elected=lambda term: 1 / 0)
        with self.assertLogs("leader_election"):
            run(fake.elect())
        run(fake.resign())
        self.assertEqual(self.told, [("lost", "resigned")])

    def test_fake_fence_and_close(self):
        fake = self.fake()
        with self.assertRaises(self.module.NotLeader):
            run(fake.fenced(None))
        run(fake.elect())
        run(fake.fenced(None))
        run(fake.close())
        run(fake.close())
        self.assertEqual(self.told[-1], ("lost", "closed"))
        run(fake.elect())
        self.assertFalse(fake.leads)

    def test_sole(self):
        sole = self.module.SoleLeadership("e", **self.told.handlers())
        self.assertFalse(sole.leads)
        run(sole.start())
        self.assertEqual((sole.leads, sole.term, run(sole.wait())), (True, None, None))
        with self.assertRaises(RuntimeError):
            run(sole.fenced(None))
        run(sole.resign())
        run(sole.close())
        self.assertFalse(sole.leads)
        self.assertEqual(self.told, [("elected", None), ("lost", "resigned"), ("elected", None),
                                     ("lost", "closed")])
        sole = self.module.SoleLeadership("e", unfenced=True)
        run(sole.start())
        run(sole.fenced(None))

    def test_autocommit_is_refused(self):
        leadership = self.module._Candidate("e")
        leadership._grant = (1, float("inf"))
        with self.assertRaises(RuntimeError):
            run(leadership.fenced(Connection(autocommit=True)))

    def test_errors(self):
        class Missing(Exception):
            sqlstate = "3F000"
        self.assertIn("CREATE EXTENSION", str(self.module._fatal(Missing("no schema"))))
        for state, fatal in (("28P01", True), ("42501", True), ("LE003", True), ("55P03", False),
                             ("LE004", False), ("LE006", False), ("25006", False), (None, False)):
            Missing.sqlstate = state
            self.assertEqual(self.module._fatal(Missing()) is not None, fatal, state)


class Sync(Tests, unittest.TestCase):
    module = leader_election

    def test_hosts(self):
        hosts = leader_election.Leadership("host=a,b port=1,2 dbname=d", "e")._hosts
        self.assertEqual(hosts, [{"host": "a", "port": "1"}, {"host": "b", "port": "2"}])

    def test_watchdog_tells_though_the_engine_hangs(self):
        """A health check that does not return; the handler of lost comes before close() ends."""
        class Hung(leader_election._Engine):
            def _work(self):
                self._begin(1, self._now() + 0.2)
                time.sleep(1.0)

            def _give_back(self):
                order.append("given back")

            def _disconnect(self):
                pass
        order = []
        with Hung("e", on_lost=order.append, call_timeout=2.0) as leadership:
            self.assertEqual(leadership.wait(1.0), 1)
            time.sleep(0.4)
            self.assertEqual(order, ["expired"])
        self.assertEqual(order, ["expired", "given back"])

    def test_lost_returns_before_the_lease_is_given_back(self):
        class Leading(leader_election._Engine):
            def _work(self):
                self._begin(1, self._now() + 60) or self._sleep(60)

            def _give_back(self):
                order.append("given back")

            def _disconnect(self):
                pass

        def on_lost(reason):
            time.sleep(0.3)
            order.append(reason)
        order = []
        with Leading("e", on_lost=on_lost) as leadership:
            leadership.wait()
        self.assertEqual(order, ["closed", "given back"])


if __name__ == "__main__":
    unittest.main()
