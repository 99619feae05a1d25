"""What can be tested without a server: FakeLeadership, SoleLeadership, the deadline, and the loop
of calls to a server that answers as the test says. python3 -m unittest discover clients/python"""

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import time
import types
import unittest
from unittest import mock

import asyncpg

import leader_election_async
from leader_election_async import (DetachedLeadership, FakeLeadership, Leadership, LeadershipError,
                                   NotLeader, SoleLeadership)
from told import Told


def call_of(sql):
    """The function of ours that a statement calls; that of PostgreSQL, if it calls none."""
    for schema in ("leader_election.", "pg_catalog."):
        if schema in sql:
            return sql.partition(schema)[2].partition("(")[0]


class Pool:
    """A pool whose server is answer(call), a coroutine function: a row of COPY, or None."""

    def __init__(self, answer):
        self.answer, self.sent, self.terminated = answer, [], 0
        Pool.last = self

    @contextlib.asynccontextmanager
    async def acquire(self):
        """asyncpg's may wait for ever for the end of a call that was cancelled."""
        terminated = self.terminated
        try:
            yield self
        except asyncio.CancelledError:
            while self.terminated == terminated:
                await asyncio.sleep(0.01)
            raise

    async def copy_from_query(self, sql, output, timeout):
        self.sent.append(call_of(sql))
        row = await self.answer(self.sent[-1])
        if row:
            await output(row.encode())

    def terminate(self):
        self.terminated += 1


class Session:
    """A connection of asyncpg to a server that elects at once, but says what the test wants it to:
    says is a dict of answers, or errors, by call."""

    def __init__(self, says, sent):
        self.says = {"pg_backend_pid": "1\tf\t-1\t0\n", "join": "\\N\n", "renew": "7\t15000\tf\n",
                     "leave": "t\n", "set_config": "0\n", **says}
        self.sent, self.closed = sent, False

    def get_server_pid(self):
        return 1

    def add_termination_listener(self, listener):
        pass

    def is_closed(self):
        return self.closed

    async def add_listener(self, channel, listener):
        pass

    def terminate(self):
        self.closed = True

    async def close(self):
        self.sent.append("close")
        self.closed = True

    async def answer(self, call):
        self.sent.append(call)
        answer = self.says.get(call)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def copy_from_query(self, sql, output, timeout):
        await output((await self.answer(call_of(sql))).encode())

    async def fetchrow(self, sql, *values):
        await self.answer(call_of(sql))
        return [7]


class Interrupting(asyncio.SelectorEventLoop):
    """A loop that cancels the task of the test after a number of its callbacks."""

    left, victim, is_hit = 0, None, False

    def call_soon(self, callback, *args, context=None):
        def step(*args):
            callback(*args)
            if self.victim:
                self.left -= 1
                if self.left == 0:
                    self.is_hit = self.victim.cancel()      # false: it has ended
        return super().call_soon(step, *args, context=context)


class Connection:
    def __init__(self, transaction):
        self.transaction, self.executed = transaction, []

    def is_in_transaction(self):
        return self.transaction

    async def execute(self, sql):
        self.executed.append(sql)


def short_rests(engine, sent, row, lease=60.0):
    """A grant that is renewed after 0.1 s, and ends after a minute: not while the machine stands
    still."""
    return row and leader_election_async.core.Grant(int(row[0]), sent + lease, 0.1, row[2] == "t")


class Tests(Told, unittest.IsolatedAsyncioTestCase):
    fake_class = FakeLeadership

    def detached(self, answer, **more):
        self.pool = Pool(answer)
        return DetachedLeadership(self.pool, "e", **{**self.handlers(), **more})

    def renewing(self, answer, lease=60.0, **more):
        """One that renews soon."""
        detached = self.detached(answer, **more)
        detached._grant_of = lambda sent, row: short_rests(detached, sent, row, lease)
        return detached

    async def until(self, condition):
        async def poll():
            while not condition():
                await asyncio.sleep(0.005)
        await asyncio.wait_for(poll(), 20)

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

    async def test_elected_in_a_handler(self):
        async def on_elected(term):
            self.told.append(("elected", term))
            if term == 1:
                self.assertEqual((await fake.elect(), await fake.elect()), (2, 3))
        fake = self.fake(on_elected=on_elected)
        self.assertEqual(await fake.elect(), 1)
        self.assertEqual(self.told, [("elected", 1), ("lost", "not renewed"), ("elected", 3)])
        self.assertEqual(fake.term, 3)

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
        """Waits do not count while the machine sleeps, so they are short."""
        async def leading(call):
            return "7\t60000\tf\n" if call in ("acquire", "renew") else "t\n"
        slept = [0.0]
        async with self.detached(leading) as detached:
            detached._now = lambda: time.monotonic() + slept[0]
            await detached.wait()
            slept[0] = 90.0
            self.assertIsNone(detached.term)
            await self.until_told(("lost", "expired"))

    async def test_machine_slept_beside_a_call(self):
        """Just before it begins, or while it hangs: "lost" does not wait for its end."""
        class Sleepy(DetachedLeadership):
            slept, when = 0.0, None

            def _now(self):
                return time.monotonic() + self.slept

            def _until(self, more=0.0):
                if self.when == "before" and self.leads:
                    self.slept = 90.0
                return super()._until(more)

        async def suspended(when, what):
            async def hangs(call):
                if call == what and sleepy.changes:
                    sleepy.slept = 90.0
                    await asyncio.sleep(60)
                return call == "check" or await long_lease(call)
            told = []
            pool = Pool(hangs)
            sleepy = Sleepy(pool, "e", call_timeout=50.0, on_lost=told.append,
                            health_check=lambda: hangs("check"))
            async with sleepy:
                sleepy.when = when
                await self.until(lambda: told and (when == "before" or "release" in pool.sent))
                sleepy._engine.cancel()     # else close() waits for the call
            return told

        async def long_lease(call):
            return "7\t60000\tf\n" if call in ("acquire", "renew") else "t\n"
        cases = [(when, what) for when in ("before", "during") for what in ("check", "renew")]
        with mock.patch.object(leader_election_async.core.Engine, "_grant_of", short_rests):
            told = await asyncio.gather(*(suspended(*case) for case in cases))
        self.assertEqual(told, [["expired"]] * 4)

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

    async def test_handler_that_is_cancelled_has_ended(self):
        async def on_lost(reason):
            work.cancel()
            await work
        work = asyncio.ensure_future(asyncio.sleep(60))
        fake = self.fake(on_lost=on_lost)
        await fake.elect()
        await fake.resign()
        await fake.elect()
        self.assertTrue(fake.leads)

    async def test_fake_whose_handler_raises(self):
        fake = self.fake(on_elected=lambda term: 1 / 0)
        with self.assertLogs("leader_election", "WARNING"):
            await fake.elect()
        self.assertEqual([event for event, _ in self.told], ["lost", "error"])
        self.assertEqual(self.told[0], ("lost", "error"))
        with self.assertRaises(ZeroDivisionError):
            await fake.wait()

    async def test_log_that_raises(self):
        """Handlers are called, and the engine goes on, whatever the program's log does."""
        def broken(record):
            raise ValueError("log")

        async def answer(call):
            if detached.changes:        # so it is elected once, if not by its first call
                raise OSError("no answer")
            return await self.leading_briefly(call)
        log = leader_election_async.core.log
        log.addFilter(broken)
        self.addCleanup(log.removeFilter, broken)
        log.setLevel(logging.INFO)
        self.addCleanup(log.setLevel, logging.NOTSET)
        detached = self.detached(answer)
        async with detached:
            await self.until(lambda: len(self.told) == 2)
            self.assertFalse(detached._engine.done())
        self.assertEqual(self.told, [("elected", 7), ("lost", "expired")])

    async def test_log_while_a_handler_runs(self):
        goes_on = asyncio.Event()

        async def on_elected(term):
            await goes_on.wait()
        with self.assertLogs("leader_election", "INFO") as logs:
            async with self.detached(self.leading, on_elected=on_elected) as detached:
                await detached.wait()
                await detached.resign()
                await self.until(lambda: len(logs.records) == 2)
                goes_on.set()
        self.assertEqual([record.getMessage() for record in logs.records[:2]],
                         ['elected leader of "e", term 7',
                          'lost leadership of "e", term 7: resigned'])

    async def test_log(self):
        with self.assertLogs("leader_election", "INFO") as logs:
            fake = self.fake()
            await fake.elect(7)
            await fake.lose()
            async with SoleLeadership("e"):
                pass
        self.assertEqual([record.getMessage() for record in logs.records],
                         ['elected leader of "e", term 7',
                          'lost leadership of "e", term 7: connection lost',
                          'elected leader of "e"', 'lost leadership of "e": closed'])

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
        return "7\t15000\tf\n" if call in ("acquire", "renew") else "t\n"

    async def leading_briefly(self, call):
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
            await self.until(lambda: logs.output)
            self.told.append(self.pool.sent[-1])
        async with self.detached(self.leading, on_lost=on_lost, call_timeout=0.2) as detached:
            await detached.wait()
            with self.assertLogs("leader_election", "WARNING") as logs:
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

    async def test_shutdown_during_a_call(self):
        """[handlers] A call that is cancelled does not keep the loop from ending."""
        async def hangs(call):
            return await (asyncio.sleep(60) if call == "renew" else self.leading(call))
        detached = await self.renewing(hangs, call_timeout=60.0).start()
        await self.until(lambda: "renew" in self.pool.sent)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in sorted(others, key=lambda task: task is not detached._engine):
            task.cancel()       # that of the call is cancelled by both, and wakes up once
        _, pending = await asyncio.wait(others, timeout=5)
        self.assertEqual(pending, set())
        self.assertEqual(self.pool.sent[-2:], ["release", "leave"])

    async def test_blocked_loop(self):
        async with self.detached(self.leading_briefly) as detached:
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
            detached = self.renewing(self.leading, 3.0, health_check=lambda: check[0]())
            with self.assertLogs("leader_election", "WARNING"):
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
            return await self.leading_briefly(call)
        async with self.detached(late):
            await self.until(lambda: len(self.pool.sent) > 1)
        self.assertEqual(self.pool.sent[:2], ["acquire", "release"])
        self.assertEqual(self.told, [])

    async def test_grant_after_close_is_released(self):
        async def slow(call):
            await self.until(lambda: detached._closing)
            return await self.leading(call)
        detached = self.detached(slow)
        async with detached:
            await self.until(lambda: self.pool.sent)
        self.assertEqual(self.pool.sent, ["acquire", "release", "leave"])
        self.assertEqual(self.told, [])

    async def test_errors_keep_the_term_until_the_deadline(self):
        async def failing(call):
            if call == "renew":
                raise OSError("down")
            return await self.leading_briefly(call)
        began = time.monotonic()
        with self.assertLogs("leader_election", "WARNING"):
            async with self.detached(failing) as detached:
                await detached.wait()
                await self.until_told(("lost", "expired"))
        self.assertGreater(time.monotonic() - began, 0.25)

    async def test_timeout_destroys_the_connection(self):
        async def hangs(call):
            await asyncio.sleep(60)
        with self.assertLogs("leader_election", "WARNING"):
            async with self.detached(hangs, call_timeout=0.1):
                await self.until(lambda: self.pool.terminated == 1)

    async def test_failover(self):
        async def other(call):
            return "4194305\t9000\tf\n" if call == "renew" else await self.leading(call)
        async with self.renewing(other):
            await self.until_told(("elected", 4194305))
        self.assertEqual(self.told, [("elected", 7), ("lost", "failover"), ("elected", 4194305),
                                     ("lost", "closed")])

    async def test_not_renewed(self):
        async def over(call):
            return None if call == "renew" else await self.leading(call)
        async with self.renewing(over):
            await self.until_told(("lost", "not renewed"))

    # --- what an error means

    async def test_not_renewed_after_it_was_lost(self):
        """It does not stand before the handler of "lost" has returned, whatever the answer is."""
        async def answer(call):
            if call == "renew":
                await leadership.resign()
                return None
            return "1\t15000\tf\n" if call == "acquire" else "t\n"

        async def on_lost(reason):
            await returns
            self.told.append("returned")
        returns = asyncio.get_running_loop().create_future()
        leadership = self.renewing(answer, on_lost=on_lost, interval=0.01)
        async with leadership:
            await self.until(lambda: "renew" in self.pool.sent)
            await asyncio.sleep(0.3)        # a turn would have come to its call long ago
            self.assertEqual(self.pool.sent, ["acquire", "renew"])
            returns.set_result(None)
            await self.until(lambda: self.pool.sent.count("acquire") > 1)
            self.assertEqual(self.told[:2], [("elected", 1), "returned"])

    async def test_refusal_that_passes(self):
        """[no extension] A restore, or CREATE EXTENSION, may mend it."""
        async def missing(call):
            if call == "pg_is_in_recovery":
                return "f\n"
            if not created:
                raise asyncpg.InvalidSchemaNameError("no schema")
            return await self.leading(call)
        created = []
        with self.assertLogs("leader_election", "WARNING") as logs:
            async with self.detached(missing, refusal_timeout=0.05) as detached:
                await self.until(lambda: len(self.pool.sent) >= 6)
                self.assertEqual(detached.state, "refused: 3F000 no schema (CREATE EXTENSION "
                                                 "leader_election, or portable.sql?)")
                created.append(True)
                self.assertEqual(await detached.wait(), 7)
                self.assertEqual(detached.state, "leads")
            self.assertEqual(detached.state, "closed")
        self.assertEqual(len(logs.output), 2, logs.output)      # it begins, it ends

    async def test_refusal_that_lasts(self):
        async def wrong(call):
            if call == "pg_is_in_recovery":
                return "f\n"
            raise asyncpg.InvalidParameterValueError("rank", "more")
        with self.assertLogs("leader_election", "WARNING"):
            async with self.detached(wrong, refusal_timeout=0.3) as detached:
                began = time.monotonic()
                await self.until(lambda: detached.state.startswith("refused: 22023"))
                with self.assertRaises(LeadershipError):
                    await detached.wait()
                self.assertGreater(time.monotonic() - began, 0.25)
                self.assertTrue(detached.state.startswith("failed: 22023"))
                with self.assertRaises(LeadershipError):
                    await detached.wait()
        self.assertEqual([event for event, _ in self.told], ["error"])

    async def test_word_of_a_standby(self):
        async def standby(call):
            if call == "pg_is_in_recovery":
                return "t\n"
            raise asyncpg.InvalidParameterValueError("what it had heard of once")
        with self.assertLogs("leader_election", "WARNING"):
            async with self.detached(standby, refusal_timeout=0.05) as detached:
                await self.until(lambda: len(self.pool.sent) >= 6)
                self.assertEqual(detached.state, "unreachable: this server is a standby")

    async def test_a_standby_does_not_excuse_a_primary(self):
        """What it says is no break in the primary's refusals."""
        answers = iter("tf" * 1000)

        async def answer(call):
            if call == "pg_is_in_recovery":
                return next(answers) + "\n"
            raise asyncpg.InvalidParameterValueError("no")
        with self.assertLogs("leader_election", "WARNING"):
            async with self.detached(answer, refusal_timeout=0.3) as detached:
                with self.assertRaises(asyncpg.InvalidParameterValueError):
                    await asyncio.wait_for(detached.wait(), 20)

    async def test_pooler_that_is_refused(self):
        """It passes the refusal on, and closes the connection: nobody can be asked."""
        async def refused(call):
            if call == "pg_is_in_recovery":
                raise asyncpg.ConnectionDoesNotExistError("closed")
            raise asyncpg.InvalidPasswordError("wrong")
        with self.assertLogs("leader_election", "WARNING"):
            async with self.detached(refused, refusal_timeout=0.2) as detached:
                with self.assertRaises(asyncpg.InvalidPasswordError):
                    await detached.wait()

    def test_pool_and_service(self):
        """Where the pool connects is not ours to read."""
        with mock.patch.dict(os.environ, PGSERVICE="nobody", PGSERVICEFILE="/nowhere"):
            self.detached(self.leading)

    async def test_pool_that_is_refused(self):
        @contextlib.asynccontextmanager
        async def refused():
            raise asyncpg.InvalidPasswordError("wrong")
            yield
        detached = DetachedLeadership(refused, "e", refusal_timeout=0.3)
        began = time.monotonic()
        with self.assertLogs("leader_election", "WARNING"):
            async with detached:
                with self.assertRaises(asyncpg.InvalidPasswordError):
                    await detached.wait()
        self.assertGreater(time.monotonic() - began, 0.25)

    async def test_spin(self):
        """[spin: server down] A release that fails is tried once; and trouble is logged once."""
        async def down(call):
            if leads and call in ("acquire", "renew"):
                return await self.leading(call)
            raise OSError("down")
        leads = [True]
        with self.assertLogs("leader_election", "WARNING") as logs:
            async with self.detached(down) as detached:
                await detached.wait()
                leads.clear()
                await detached.resign()
                await asyncio.sleep(1.0)
                self.assertEqual(self.pool.sent.count("release"), 1)
                self.assertLessEqual(self.pool.sent.count("acquire"), 11)
                self.assertEqual(detached.state, "unreachable: down")
        self.assertEqual(len([line for line in logs.output if "unreachable" in line]), 1)

    async def test_news_do_not_make_it_spin(self):
        async def other(call):
            return None

        def has_asked():
            detached._on_news(None, 0, "", '{"election": "e"}')
            return self.pool.sent.count("acquire") >= 5
        began = time.monotonic()
        async with self.detached(other, interval=60.0) as detached:
            await self.until(has_asked)
        self.assertGreater(time.monotonic() - began, 0.35)

    async def test_listens_again_after_a_failed_call(self):
        """For a failed call hangs up."""
        async def fails_once(call):
            if len(self.pool.sent) == 3:
                raise OSError("down")
        with self.connecting({}), self.assertLogs("leader_election", "WARNING"):
            async with self.detached(fails_once, listen={"host": "a", "hostaddr": "::1"},
                                     interval=0.01):
                await self.until(lambda: len(self.attempts) == 2)
                sent = len(self.pool.sent)
                await self.until(lambda: len(self.pool.sent) > sent + 2)
        self.assertEqual(len(self.attempts), 2, "it goes on listening over that connection")

    async def test_cannot_listen(self):
        """It is not tried more often for calls that fail meanwhile."""
        async def fails_often(call):
            if len(self.pool.sent) % 3 == 0:
                raise OSError("down")
        with self.connecting(OSError("no")), self.assertLogs("leader_election", "WARNING"):
            async with self.detached(fails_often, listen={"host": "a", "hostaddr": "::1"},
                                     interval=0.01):
                await self.until(lambda: len(self.pool.sent) > 6)
        self.assertEqual(len(self.attempts), 1)

    async def test_do_not_listen_all_at_once(self):
        """Those whose connections end together do not come back together."""
        async def ok(call):
            return ""
        when = set()
        for _ in range(5):
            with self.connecting(OSError("no")), self.assertLogs("leader_election", "WARNING"):
                async with self.detached(ok, listen={"host": "a", "hostaddr": "::1"}) as detached:
                    detached._now = lambda: 0.0
                    await self.until(lambda: detached._listen_at)
                    when.add(detached._listen_at)
        self.assertEqual(len(when), 5)

    # --- sessions

    def connecting(self, *servers):
        """asyncpg.connect() to these, in turn: each is what a session says, or an error."""
        async def connect(**arguments):
            self.attempts.append(arguments["host"])
            says = servers[(len(self.attempts) - 1) % len(servers)]
            if isinstance(says, Exception):
                raise says
            return Session(says, self.sent)
        self.attempts, self.sent = [], []
        return mock.patch("asyncpg.connect", connect)

    def session(self, hosts="a,b", **options):
        return Leadership({"host": hosts, "hostaddr": ",".join(["::1"] * len(hosts.split(",")))},
                          "e", **{**self.handlers(), "call_timeout": 0.3, **options})

    async def test_session(self):
        with self.connecting({}):
            async with self.session() as session:
                self.assertEqual(await session.wait(), 7)
        self.assertEqual(self.sent[:5],
                         ["pg_backend_pid", "set_config", "join", "campaign", "renew"])
        self.assertEqual(self.sent[-2:], ["leave", "close"])

    async def test_standby_refuses(self):
        """[refused by the standby] It goes on with the other one, for as long as it takes."""
        refusal = asyncpg.InvalidAuthorizationSpecificationError("no line in pg_hba.conf")
        with self.connecting(refusal, OSError("down")), \
                self.assertLogs("leader_election", "WARNING"):
            async with self.session(refusal_timeout=0.2) as session:
                await self.until(lambda: len(self.attempts) >= 8)
                self.assertTrue(session.state.startswith(("unreachable: down", "refused: 28000")))
        self.assertEqual(self.told, [])
        with self.connecting(refusal, {}), self.assertLogs("leader_election", "WARNING"):
            async with self.session(refusal_timeout=0.0) as session:
                self.assertEqual(await session.wait(), 7)

    async def test_all_refuse(self):
        with self.connecting(asyncpg.InvalidPasswordError("wrong")), \
                self.assertLogs("leader_election", "WARNING") as logs:
            began = time.monotonic()
            async with self.session(refusal_timeout=0.5) as session:
                await self.until(lambda: session.state == "refused: 28P01 wrong")
                with self.assertRaises(asyncpg.InvalidPasswordError):
                    await session.wait()
            self.assertGreater(time.monotonic() - began, 0.45)
        self.assertEqual(len(logs.output), 2, logs.output)
        self.assertEqual(self.attempts[:4], ["a", "b"] * 2)
        self.assertLess(len(self.attempts), 12)

    async def test_standby_is_passed_over(self):
        with self.connecting({"pg_backend_pid": "1\tt\t-1\t0\n"}, {}):
            async with self.session() as session:
                self.assertEqual(await session.wait(), 7)
        self.assertEqual(self.sent[:4], ["pg_backend_pid", "pg_backend_pid", "set_config", "join"])

    async def test_refused_campaign(self):
        """That join() succeeds each time is no break in the refusals of campaign()."""
        with self.connecting({"campaign": asyncpg.FeatureNotSupportedError("no")}), \
                self.assertLogs("leader_election", "WARNING"):
            async with self.session(refusal_timeout=0.3) as session:
                with self.assertRaises(asyncpg.FeatureNotSupportedError):
                    await asyncio.wait_for(session.wait(), 10)

    async def test_campaign_that_is_refused_for_now(self):
        """That join() succeeds each time is no end of the trouble."""
        says = {"campaign": asyncpg.InsufficientPrivilegeError("no")}
        with self.connecting(says), self.assertLogs("leader_election", "WARNING") as logs:
            async with self.session() as session:
                await self.until(lambda: self.sent.count("campaign") >= 4)
                self.assertEqual(len(logs.output), 1, logs.output)
                says.clear()
                await session.wait()
                await self.until(lambda: len(logs.output) == 2)
        self.assertIn("all is well again", logs.output[1])

    async def test_pooler(self):
        """[pooler] Nothing is set, and the error is final."""
        behind = {"pg_backend_pid": "2\tf\t-1\t60000\n"}
        with self.connecting(behind), self.assertLogs("leader_election", "WARNING"):
            async with self.session() as session:
                with self.assertRaisesRegex(LeadershipError, "this is a pooler") as raised:
                    await session.wait()
        self.assertEqual(raised.exception.sqlstate, "0A000")
        self.assertNotIn("set_config", self.sent)
        with self.connecting(behind):
            async with self.session(pooler="session") as session:
                self.assertEqual(await session.wait(), 7)
        self.assertNotIn("set_config", self.sent)
        with self.assertRaises(ValueError):
            self.session(pooler="transaction")

    def test_slices(self):
        def fit(logged_from, statement_timeout=0.0, **options):
            return self.session(**options)._fit_slice(logged_from, statement_timeout)
        self.assertEqual([fit(seconds) for seconds in (-0.001, 0, 1, 0.25, 6, 60)],
                         [5, 5, 0.8, 0.2, 4.800000000000001, 5])
        self.assertEqual(fit(1.0, slice=7.0), 7.0)
        self.assertEqual(fit(-0.001, 1.0, pooler="session"), 0.8)
        with self.assertLogs("leader_election", "WARNING") as logs:
            session = self.session()
            self.assertEqual([session._fit_slice(0.2, 0.0) for _ in "ab"], [5, 5])
        self.assertEqual(len(logs.output), 1)

    async def test_close_during_a_campaign(self):
        """[slices] It is cancelled at the server; then comes a proper end of the connection."""
        async def fetchrow(session, sql, *values):
            self.sent.append("campaign")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.sent.append("cancelled")
                raise
        with self.connecting({}), mock.patch.object(Session, "fetchrow", fetchrow):
            async with self.session():
                await self.until(lambda: "campaign" in self.sent)
        self.assertEqual(self.sent[-3:], ["cancelled", "leave", "close"])

    async def test_caller_is_cancelled(self):
        """What the caller's task has begun goes on without it, to its end."""
        async def caller():
            async with self.session() as session:
                sessions.append(session)
                await session.wait()
                await asyncio.sleep(60)
        sessions = []
        with self.connecting({}):
            task = asyncio.ensure_future(caller())
            await self.until_told(("elected", 7))
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()               # while it waits in close()
            with self.assertRaises(asyncio.CancelledError):
                await task
            await self.until(lambda: "close" in self.sent)
        self.assertEqual(self.told[-1], ("lost", "closed"))

    def test_caller_is_cancelled_at_each_step(self):
        """A cancellation is lost nowhere, and the lease is given back."""
        async def caller(leadership):
            async with leadership:
                await leadership.wait()
                await leadership.fenced(Connection(True))
                await leadership.resign()

        async def session():
            self.sent = []
            with self.connecting({}):
                await interrupt(self.session())

        async def detached():
            await interrupt(self.detached(self.leading))

        async def interrupt(leadership):
            self.told.clear()
            loop.victim = task = asyncio.ensure_future(caller(leadership))
            await asyncio.wait([task])
            loop.victim = None
            self.assertEqual(task.cancelled(), loop.is_hit)
            if leadership._engine:      # it has started
                await asyncio.wait([leadership._engine])
            self.assertIn([event for event, _ in self.told], ([], ["elected", "lost"]))
            self.assertEqual(leadership._held, None)

        for kind in session, detached:
            for number in range(1, 1000):
                with self.subTest(kind=kind.__name__, number=number), \
                        contextlib.closing(Interrupting()) as loop:
                    loop.left = number
                    loop.run_until_complete(kind())
                if loop.left > 0:
                    break
            self.assertIn(number, range(20, 1000))

    async def test_connect_that_loses_its_cancellation(self):
        """As that of asyncpg 0.27 may: a connection that comes too late is closed, and nothing is
        said over it."""
        async def connected():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            late.append(Session({}, sent))
            return late[-1]

        @contextlib.asynccontextmanager
        async def acquire():
            yield await connected()

        late, sent = [], []
        detached = DetachedLeadership(acquire, "e", call_timeout=0.05)
        with mock.patch("asyncpg.connect", lambda **_: connected()):
            for candidate in self.session(call_timeout=0.05), detached:
                with self.subTest(kind=type(candidate).__name__):
                    late.clear()
                    with self.assertLogs("leader_election", "WARNING"):
                        async with candidate:
                            await self.until(lambda: late)
                    await asyncio.wait([candidate._engine])
                    if candidate is not detached:       # else they are the pool's
                        await self.until(lambda: all(session.closed for session in late))
                    self.assertEqual(sent, [])

    # --- handlers

    async def handled(self, event, what, **options):
        """A leader whose handler of this event does this, once."""
        async def handler(value):
            self.told.append((event, value))
            if not done:
                done.append(True)
                await what()
        done = []
        return await self.detached(self.leading, **{f"on_{event}": handler, **options}).start()

    async def boom(self):
        raise ValueError("boom")

    async def test_elected_raises(self):
        with self.assertLogs("leader_election", "WARNING"):
            detached = await self.handled("elected", self.boom)
            with self.assertRaisesRegex(ValueError, "boom"):
                await detached.wait(60)
                await asyncio.sleep(0.1)
                await detached.wait(60)
        await self.until(lambda: len(self.told) == 3)
        self.assertEqual(self.told[:2], [("elected", 7), ("lost", "error")])
        self.assertEqual(self.pool.sent[-2:], ["release", "leave"])
        self.assertEqual(detached.state, "failed: ValueError boom")

    async def test_lost_raises(self):
        with self.assertLogs("leader_election", "WARNING"):
            detached = await self.handled("lost", self.boom)
            await detached.wait()
            await detached.resign()
            with self.assertRaisesRegex(ValueError, "boom"):
                await detached.wait(60)
        self.assertEqual(self.pool.sent[-2:], ["release", "leave"])
        self.assertEqual([event for event, _ in self.told], ["elected", "lost", "error"])

    async def test_yield_raises(self):
        async def asked(call):
            return "7\t15000\tt\n" if call == "acquire" else await self.leading(call)
        detached = self.detached(asked, on_yield=lambda term: 1 / 0)
        with self.assertLogs("leader_election", "WARNING"):
            async with detached:
                await self.until_told(("lost", "yielded"))
                self.assertEqual(detached.state, "standing")

    async def test_close_in_a_handler(self):
        for event in ("elected", "lost"):
            detached = await self.handled(event, lambda: detached.close(), call_timeout=60.0)
            await detached.wait()
            await detached.resign()
            await asyncio.wait_for(asyncio.shield(detached._engine), 5)
            self.assertEqual(self.pool.sent[-2:], ["release", "leave"])

    async def test_close_in_a_health_check(self):
        async def check():
            await detached.close()
            return True
        detached = self.detached(self.leading, health_check=check, call_timeout=60.0)
        await detached.start()
        await asyncio.wait_for(asyncio.shield(detached._engine), 5)

    async def test_lost_blocks(self):
        """Nothing is given back, and nobody stands, before it returns; close() does not wait."""
        block = asyncio.Event()
        detached = await self.handled("lost", block.wait, call_timeout=0.2)
        await detached.wait()
        await detached.close()
        self.assertNotIn("release", self.pool.sent)
        block.set()
        await self.until(lambda: self.pool.sent[-2:] == ["release", "leave"])

    def exits(self, event):
        """The exit status of a program whose handler of this event, or health check, exits."""
        program = f"""
import asyncio, sys
sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
import test_leader_election_async as tests
async def main():
    test = tests.Tests()
    test.setUp()
    async def answer(call):
        return "7\t15000\tt\\n" if call == "renew" else await test.leading(call)
    def on_error(error):
        print("on_error is told", type(error).__name__, flush=True)
    options = {{"on_error": on_error, {event!r}: lambda *_: sys.exit(7)}}
    async with test.renewing(answer, **options) as detached:
        print("started", flush=True)
        while True:
            await asyncio.sleep(0.2)
            await detached.resign()
try:
    asyncio.run(main())
finally:
    print(tests.Pool.last.sent, flush=True)
"""
        program = program.replace("test = tests.Tests()", "test = tests.Tests('test_literals')")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertNotIn("Traceback", done.stderr.replace("handler of", ""), done.stderr)
        return done.returncode, done.stdout

    def test_exits(self):
        for event in ("on_elected", "on_lost", "on_yield", "health_check"):
            status, output = self.exits(event)
            self.assertEqual(status, 7, (event, output))
            if event != "health_check":
                self.assertIn("'release'", output)
                self.assertIn("on_error is told SystemExit", output)

    # --- forks, names, where to connect

    async def test_fork(self):
        def asks(coroutine):
            try:
                coroutine.send(None)
            except RuntimeError as error:
                return "start()" in str(error)
        async with self.detached(self.leading) as detached:
            await detached.wait()
            pid = os.fork()
            if pid == 0:
                right = (all(list(map(asks, (detached.wait(), detached.fenced(None),
                                             detached.start()))))
                         and not detached.leads and detached.term is None)
                os._exit(0 if right else 1)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            self.assertEqual(detached.term, 7)

    async def test_uwsgi(self):
        async def start():
            await self.detached(self.leading).start()
        uwsgi = types.SimpleNamespace(opt={"master": True})
        with mock.patch.dict(sys.modules, uwsgi=uwsgi):
            with self.assertRaisesRegex(RuntimeError, "enable-threads"):
                await asyncio.to_thread(asyncio.run, start())
            uwsgi.opt["enable-threads"] = b"true"
            await asyncio.to_thread(asyncio.run, start())

    def test_default_name(self):
        def name(pid, **env):
            with mock.patch.dict(os.environ, env), mock.patch("os.getpid", return_value=pid):
                return Leadership("", "e").candidate
        self.assertRegex(name(12), r"^.+-12-[0-9a-f]{4}$")
        pod = {"KUBERNETES_SERVICE_HOST": "1", "POD_NAME": "mailer-0", "HOSTNAME": "host"}
        self.assertEqual(name(1, **pod), "mailer-0")
        self.assertEqual(name(12, **pod), "mailer-0-12")
        self.assertEqual(name(12, **{**pod, "POD_NAME": ""}), "host-12")
        self.assertEqual(len(name(12, **{**pod, "POD_NAME": "x" * 250})), 200)

    async def test_made_before_a_fork(self):
        with mock.patch("os.getpid", return_value=12):
            detached = self.detached(self.leading)
        async with detached:
            self.assertIn(f"-{os.getpid()}-", detached.candidate)

    async def test_refused_connection_is_tried_again(self):
        with self.assertLogs("leader_election", "WARNING"):
            async with Leadership({"host": "127.0.0.1", "port": 1}, "e") as leadership:
                self.assertIsNone(await leadership.wait(0.3))
                await self.until(lambda: leadership.state != "standing")
                self.assertRegex(leadership.state, "^unreachable: .*refused|Connect")

    def test_where(self):
        def servers(where, **env):
            with mock.patch.dict(os.environ, env):
                return leader_election_async._read(where)
        default = {"dsn": "postgresql://"}
        self.assertEqual(servers("postgresql://u:p@a:1,[::1],b/d?x=y"), (
            {"dsn": "postgresql://u:p@/d?x=y"},
            [("a", 1, None), ("::1", 5432, None), ("b", 5432, None)]))
        self.assertEqual(servers("postgresql:///d?host=/tmp,b&port=1,2&connect_timeout=3"), (
            {"dsn": "postgresql:///d"}, [("/tmp", 1, None), ("b", 2, None)]))
        self.assertEqual(servers({"host": ["a", "b"], "port": 1, "user": "u"}), (
            {**default, "user": "u"}, [("a", 1, None), ("b", 1, None)]))
        self.assertEqual(servers({"host": None, "service": None}, PGHOST="a"), (
            default, [("a", 5432, None)]))
        self.assertEqual(servers("", PGHOST="a,b", PGPORT="1,2"), (
            default, [("a", 1, None), ("b", 2, None)]))
        self.assertEqual(servers("", PGHOST="a", PGHOSTADDR="::1"), (
            default, [("a", 5432, "::1")]))
        for wrong in ("host=a", {"host": "a,b", "port": "1,2,3"}, "postgresql://a:b/d"):
            with self.assertRaises(ValueError):
                servers(wrong)

    def test_service(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("# [app]\n[other]\nhost=o\n\n[app]\nhost=a,b\nport=1,2\nuser=u\n"
                       "dbname=d\npassword=p=;#\n#x=y\n[last]\nhost=l\n")
            file.flush()
            expected = ({"dsn": "postgresql://?user=u&dbname=d&password=p%3D%3B%23"},
                        [("a", 1, None), ("b", 2, None)])
            read = leader_election_async._read
            with mock.patch.dict(os.environ, PGSERVICEFILE=file.name, PGHOST="x", PGSERVICE="app"):
                self.assertEqual(read(""), expected)
            with mock.patch.dict(os.environ, PGSERVICEFILE=file.name):
                self.assertEqual(read("postgresql:///?service=app"), expected)
                self.assertEqual(read("postgresql://c:3/?service=app")[1], [("c", 3, None)])
                with self.assertRaisesRegex(ValueError, "no service"):
                    read({"service": "nobody"})
            self.assertEqual(read({"service": "app", "servicefile": file.name}), expected)

    async def test_one_name(self):
        """Each address of a name is one of its own; asyncpg is given the name, for certificates."""
        loop = asyncio.get_running_loop()

        async def getaddrinfo(host, port, **_):
            return [(0, 0, 0, "", (ip, port)) for ip in ("192.0.2.1", "192.0.2.1", "192.0.2.2")]
        addresses = leader_election_async._Addresses(
            30.0, *leader_election_async._read("postgresql://cluster/d"))
        with mock.patch.object(loop, "getaddrinfo", getaddrinfo):
            found = [await addresses.next() for _ in "ab"]
            self.assertEqual([address.hostaddr for address in found], ["192.0.2.1", "192.0.2.2"])
            addresses.found_primary()
            self.assertEqual([await addresses.next() for _ in "ab"], found[::-1])
        arguments = addresses.params_of(found[1])
        self.assertEqual(arguments["host"], "cluster")
        with mock.patch.object(loop, "create_connection", mock.Mock()) as dialled:
            arguments["loop"].create_connection(None, "cluster", 5432)
        dialled.assert_called_once_with(None, "192.0.2.2", 5432)

    async def test_an_outage_of_name_lookup(self):
        """begins the time of the refusals of that name's addresses anew."""
        async def getaddrinfo(host, port, **_):
            if host == "db" and not works:
                raise OSError("temporary failure")
            return [(0, 0, 0, "", (f"1.1.{len(host)}.{last}", 0)) for last in (1, 2)]

        async def verdict():
            """After one more round."""
            for _ in range(4 if works else 3):
                address = await addresses.next()
                addresses.refused(address, no if address.hostaddr else OSError("no such host"))
            self.assertEqual(addresses.left, [])
            return addresses.verdict()
        no, works, now = asyncpg.InvalidPasswordError("no"), True, [0.0]
        time_of_test = types.SimpleNamespace(monotonic=lambda: now[0])
        addresses = leader_election_async._Addresses(
            0.1, *leader_election_async._read("postgresql://db,other"))
        with mock.patch.object(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo), \
                mock.patch.object(leader_election_async.core, "time", time_of_test):
            self.assertIsNone(await verdict())
            now[0] += 0.11
            works = False
            self.assertIsNone(await verdict())
            works = True
            self.assertIsNone(await verdict(), "db has refused only just now")
            now[0] += 0.11
            self.assertIs(await verdict(), no)

    async def test_name_that_cannot_be_looked_up(self):
        """No error: it would end the task that listens. The connection to it fails."""
        name = "x" * 70     # longer than DNS allows
        self.assertEqual(await leader_election_async._resolve(name, 1, None), [(name, 1, None)])

    def test_literals(self):
        self.assertEqual(leader_election_async._fill("f($1, $2, $1)", "a'b\\$2", None),
                         "f( E'a''b\\\\$2', NULL,  E'a''b\\\\$2')")


if __name__ == "__main__":
    unittest.main()
