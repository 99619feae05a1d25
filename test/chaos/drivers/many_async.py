"""Several leaderships of clients/python/leader_election_async.py in one process, with the log
of test/chaos/candidate.c for each: many_async.py INSTANCE KIND:ELECTION:CANDIDATE:LOG..."""

import asyncio
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "clients/python"))

import asyncpg

import leader_election_async

TURN = 0.2
TURNS_PER_WRITE = 10
POOL = {"host": "127.0.0.1", "port": int(os.environ["POOL_PORT"]),
        "database": os.environ["POOL_DATABASE"], "timeout": 15,
        "statement_cache_size": 0}      # there may be a pooler
next_id = int(sys.argv[1]) * 1_000_000


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class Member:
    def __init__(self, argument):
        self.kind, self.election, self.candidate, log = argument.split(":", 3)
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.work = None

    async def open(self):
        options = {"call_timeout": 5}
        if self.kind == "session":
            return leader_election_async.Leadership(
                {}, self.election, self.candidate, slice=0.5, **options)
        pool = await asyncpg.create_pool(min_size=0, max_size=2, **POOL)
        return leader_election_async.DetachedLeadership(
            pool, self.election, self.candidate, interval=0.2, **options)

    def note(self, *words):
        os.write(self.log, f"{' '.join(map(str, words))}\n".encode())

    async def stand(self):
        self.leadership = await self.open()
        async with self.leadership:
            for n in range(1 << 62):
                await self.leadership.wait(0)       # raises what has ended it
                sent, term = now(), self.leadership.term
                if term is not None:
                    self.note("q", 1, self.election, sent, now(), term)
                    if n % TURNS_PER_WRITE == 0:
                        await self.write(term)
                await asyncio.sleep(TURN)

    async def write(self, term):
        global next_id
        next_id += 1
        number, outcome, sent = next_id, "lost", now()
        try:
            if self.work is None or self.work.is_closed():
                self.work = await asyncpg.connect(command_timeout=5, **POOL)
            await self.work.execute("BEGIN")
            await self.leadership.fenced(self.work)
            term = self.leadership.term or term     # the fenced one, else COMMIT fails
            await self.work.execute(
                f'INSERT INTO chaos."w_{self.election}" (term, candidate, id)'
                " VALUES ($1, $2, $3)", term, self.candidate, number)
            sent = now()
            await self.work.execute("COMMIT")
            outcome = "committed"
        except Exception as error:      # asyncpg has several families
            outcome = getattr(error, "sqlstate", None) or "refused"
            if self.work is not None:
                self.work.terminate()
        self.note("w", self.election, sent, now(), term, number, outcome)


async def main():
    task = asyncio.current_task()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await asyncio.gather(*(Member(argument).stand() for argument in sys.argv[2:]))


try:
    asyncio.run(main())
except asyncio.CancelledError:
    os._exit(0)
except Exception as error:
    print(f"gave up: {error!r}", flush=True)
    os._exit(3)
