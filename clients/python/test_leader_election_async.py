"""What can be tested without a server: FakeLeadership, SoleLeadership, the deadline, and the loop
of calls over a pool that answers as the test says. python3 -m unittest discover clients/python"""

import asyncio
import contextlib
import time
import unittest

import asyncpg

import leader_election_async
from leader_election_async import (DetachedLeadership, FakeLeadership, Leadership, LeadershipError,
                                   NotLeader, SoleLeadership)
from told import Told


class Pool:
    """A pool whose server is answer(call), a coroutine function: a row of COPY, or None."""

    def __init__(self, answer):
        self.answer, self.sent, self.terminated = answer, [], 0

    @contextlib.asynccontextmanager
    async def acquire(self):
        yield self

    async def copy_from_query(self, sql, output, timeout):
        call = sql.partition("leader_election.")[2].partition("(")[0]
        self.sent.append(call)
        row = await self.answer(call)
        if row:
            await output(row.encode())

    def terminate(self):
        self.terminated += 1


class Connection:
    def __init__(self, transaction):
        self.transaction, self.executed = transaction, []

    def is_in_transaction(self):
        return self.transaction

    async def execute(self, sql):
        self.executed.append(sql)


class Tests(Told, unittest.IsolatedAsyncioTestCase):
    fake_class = FakeLeadership

    def detached(self, answer, **more):
        self.pool = Pool(answer)
        return DetachedLeadership(self.pool, "e", **{**self.handlers(), **more})

    async def until(self, condition):
        async def poll():
            while not condition():
                await asyncio.sleep(0.005)
        await asyncio.wait_for(poll(), 5)

    async def until_told(self, event):
        await self.until(lambda: event in self.told)

    async def test_elected_and_lost_once_each(self):
        fake = self.fake()
        self.assertIsNone(fake.term)
        self.assertEqual(await fake.elect(7), 7)
        self.assertEqual((fake.term, fake.leads, fake.changes), (7, True, 1))
        await fake.lose("connection lost")
        await fake.lose("connection lost")
        self.assertEqual(self.told, [("elected", 7), ("lost", "connection lost")])
        self.assertEqual(await fake.elect(), 8)
        self.assertEqual(await fake.wait(0), 8)

    async def test_deadline(self):
        fake = self.fake()
        await fake.elect(lease=15)
        await fake.advance(14.9)
        self.assertEqual(fake.term, 1)
        await fake.advance(0.1)
        self.assertIsNone(fake.term)
        self.assertEqual(self.told[-1], ("lost", "expired"))
        self.assertIsNone(await fake.wait(0))

    async def test_term_ends_by_the_clock_alone(self):
        fake = self.fake()
        await fake.elect(lease=15)
        fake._time = 15.0            # nobody has reported anything
        self.assertIsNone(fake.term)
        self.assertFalse(fake.leads)

    async def test_machine_slept(self):
        """The timer does not count while the machine sleeps: it fires each second."""
        fake = self.fake()
        await fake.elect(lease=15)
        fake._time = 15.0
        await self.until_told(("lost", "expired"))

    async def test_yield(self):
        fake = self.fake()
        await fake.elect()
        await fake.ask_yield()
        await fake.ask_yield()
        self.assertTrue(fake.leads)
        await fake.resign()
        self.assertEqual(self.told, [("elected", 1), ("yield", 1), ("lost", "yielded")])
        fake = self.fake(on_yield=None)
        await fake.elect()
        await fake.ask_yield()
        self.assertFalse(fake.leads)
        self.assertEqual(self.told[-1], ("lost", "yielded"))

    async def test_handler_resigns(self):
        async def on_yield(term):
            await fake.resign()         # does not wait for itself
            steps.append("yield returns")
        steps = []
        fake = self.fake(on_yield=on_yield, on_lost=steps.append)
        await fake.elect()
        await fake.ask_yield()
        self.assertEqual(steps, ["yield returns", "yielded"])

    async def test_failing_and_cancelled_handlers(self):
        async def cancelled(term):
            raise asyncio.CancelledError
        for handler in (lambda term: 1 / 0, cancelled):
            fake = self.fake(on_elected=handler)
            with self.assertLogs("leader_election"):
                await fake.elect()
            await fake.resign()
            self.assertEqual(self.told.pop(), ("lost", "resigned"))

    async def test_fake_fence_and_close(self):
        fake = self.fake()
        with self.assertRaises(NotLeader):
            await fake.fenced(None)
        await fake.elect()
        await fake.fenced(None)
        await fake.close()
        await fake.close()
        self.assertEqual(self.told[-1], ("lost", "closed"))
        await fake.elect()
        self.assertFalse(fake.leads)

    def test_fake_in_several_loops(self):
        fake = self.fake()
        for step in (fake.elect, fake.resign, fake.elect, fake.close):
            asyncio.run(step())
        self.assertEqual([event for event, _ in self.told], ["elected", "lost"] * 2)

    async def test_sole(self):
        sole = SoleLeadership("e", **self.handlers())
        self.assertFalse(sole.leads)
        async with sole:
            self.assertEqual((sole.leads, sole.term, await sole.wait()), (True, None, None))
            with self.assertRaises(RuntimeError):
                await sole.fenced(Connection(True))
            await sole.resign()
            self.assertTrue(sole.leads)
        self.assertFalse(sole.leads)
        self.assertEqual(self.told, [("elected", None), ("lost", "resigned"), ("elected", None),
                                     ("lost", "closed")])
        async with SoleLeadership("e", unfenced=True) as sole:
            await sole.fenced(None)

    async def leading(self, call):
        return "7\t300\tf\n" if call in ("acquire", "renew") else "t\n"

    async def test_fenced(self):
        async with self.detached(self.leading) as detached:
            with self.assertRaises(NotLeader):
                await detached.fenced(Connection(True))
            self.assertEqual(await detached.wait(), 7)
            with self.assertRaises(RuntimeError):
                await detached.fenced(Connection(False))
            connection = Connection(True)
            await detached.fenced(connection)
            self.assertIn("assert_leader( E'e',  E'7')", connection.executed[0])
        self.assertEqual(self.pool.sent[-2:], ["release", "leave"])

    async def test_lost_returns_before_the_lease_is_given_back(self):
        async def on_lost(reason):
            await asyncio.sleep(0.3)
            self.told.append(self.pool.sent[-1])
        async with self.detached(self.leading, on_lost=on_lost, call_timeout=0.2) as detached:
            await detached.wait()
            with self.assertLogs("leader_election") as logs:
                await detached.resign()
                await self.until(lambda: len(self.told) == 2)
        self.assertIn("has not returned", logs.output[0])
        self.assertNotIn("release", self.told)
        self.assertEqual(self.pool.sent[-2:], ["release", "leave"])

    async def test_shutdown_of_the_loop_is_a_close(self):
        async def on_lost(reason):
            await asyncio.sleep(0.05)
            self.told.append((reason, "release" in self.pool.sent))

        async def main():
            await (await self.detached(self.leading, on_lost=on_lost).start()).wait()
        await asyncio.to_thread(asyncio.run, main())
        self.assertEqual(self.told[-1], ("closed", False))
        self.assertEqual(self.pool.sent[-2:], ["release", "leave"])

    async def test_blocked_loop(self):
        async with self.detached(self.leading) as detached:
            await detached.wait()
            time.sleep(0.4)
            self.assertIsNone(detached.term)
            await self.until_told(("lost", "expired"))

    async def test_unhealthy(self):
        async def hangs():
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(True)

        async def cancelled():
            raise asyncio.CancelledError
        ended = []
        for sick, reason in ((lambda: False, "unhealthy"), (lambda: 1 / 0, "unhealthy"),
                             (cancelled, "unhealthy"), (hangs, "expired")):
            check = [lambda: True]
            detached = self.detached(self.leading, health_check=lambda: check[0]())
            with self.assertLogs("leader_election"):
                async with detached:
                    await detached.wait()
                    check[0] = sick
                    await self.until_told(("lost", reason))
                    await self.until(lambda: "release" in self.pool.sent)
            self.assertEqual(self.told, [("elected", 7), ("lost", reason)])
            self.told.clear()
        self.assertEqual(ended, [True])

    async def test_late_grant_is_released(self):
        async def late(call):
            await asyncio.sleep(0.4)
            return await self.leading(call)
        async with self.detached(late):
            await self.until(lambda: len(self.pool.sent) > 1)
        self.assertEqual(self.pool.sent[:2], ["acquire", "release"])
        self.assertEqual(self.told, [])

    async def test_grant_after_close_is_released(self):
        async def slow(call):
            await asyncio.sleep(0.1)
            return await self.leading(call)
        async with self.detached(slow):
            await self.until(lambda: self.pool.sent)
        self.assertEqual(self.pool.sent, ["acquire", "release", "leave"])
        self.assertEqual(self.told, [])

    async def test_errors_keep_the_term_until_the_deadline(self):
        async def failing(call):
            if call == "renew":
                raise OSError("down")
            return await self.leading(call)
        with self.assertLogs("leader_election"):
            async with self.detached(failing) as detached:
                await detached.wait()
                began = time.monotonic()
                await self.until_told(("lost", "expired"))
        self.assertGreater(time.monotonic() - began, 0.25)

    async def test_timeout_destroys_the_connection(self):
        async def hangs(call):
            await asyncio.sleep(60)
        with self.assertLogs("leader_election"):
            async with self.detached(hangs, call_timeout=0.1):
                await self.until(lambda: self.pool.terminated == 1)

    async def test_failover(self):
        async def other(call):
            return "4194305\t9000\tf\n" if call == "renew" else await self.leading(call)
        async with self.detached(other):
            await self.until_told(("elected", 4194305))
        self.assertEqual(self.told, [("elected", 7), ("lost", "failover"), ("elected", 4194305),
                                     ("lost", "closed")])

    async def test_not_renewed(self):
        async def over(call):
            return None if call == "renew" else await self.leading(call)
        async with self.detached(over):
            await self.until_told(("lost", "not renewed"))

    async def test_fatal(self):
        async def missing(call):
            raise asyncpg.InvalidSchemaNameError("no schema")
        with self.assertLogs("leader_election"):
            async with self.detached(missing) as detached:
                with self.assertRaisesRegex(LeadershipError, "CREATE EXTENSION"):
                    await detached.wait()
                with self.assertRaises(LeadershipError):
                    await detached.wait()
        self.assertEqual([event for event, _ in self.told], ["error"])

    async def test_refused_connection_is_tried_again(self):
        with self.assertLogs("leader_election"):
            async with Leadership({"host": "127.0.0.1", "port": 1}, "e") as leadership:
                self.assertIsNone(await leadership.wait(0.3))

    def test_hosts(self):
        targets = leader_election_async._targets
        self.assertEqual(
            targets("postgresql://u:p@a:1,b/d?x=y"),
            [{"dsn": "postgresql://u:p@a:1/d?x=y"}, {"dsn": "postgresql://u:p@b/d?x=y"}])
        self.assertEqual(targets("postgresql:///d"), [{"dsn": "postgresql:///d"}])
        self.assertEqual(targets({"host": ["a", "b"], "port": 1}),
                         [{"host": "a", "port": 1}, {"host": "b", "port": 1}])
        self.assertEqual(targets({"host": "a,b", "port": "1,2"}),
                         [{"host": "a", "port": 1}, {"host": "b", "port": 2}])

    def test_literals(self):
        self.assertEqual(leader_election_async._fill("f($1, $2, $1)", "a'b\\$2", None),
                         "f( E'a''b\\\\$2', NULL,  E'a''b\\\\$2')")


if __name__ == "__main__":
    unittest.main()
