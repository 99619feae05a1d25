"""Several leaderships of clients/python/leader_election.py in one process, with the log of
test/chaos/candidate.c for each: many.py INSTANCE KIND:ELECTION:CANDIDATE:LOG..."""

import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "clients/python"))

import psycopg
import psycopg_pool

import leader_election

TURN = 0.2
TURNS_PER_WRITE = 10
POOL = f"host=127.0.0.1 port={os.environ['POOL_PORT']} dbname={os.environ['POOL_DATABASE']}"
NOT_PREPARED = {"connect_timeout": 15, "prepare_threshold": None}   # there may be a pooler
next_id = int(sys.argv[1]) * 1_000_000


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class Member:
    def __init__(self, argument):
        kind, self.election, self.candidate, log = argument.split(":", 3)
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        options = {"call_timeout": 5}
        if kind == "session":
            self.leadership = leader_election.Leadership(
                "", self.election, self.candidate, slice=0.5, **options)
        else:
            pool = psycopg_pool.ConnectionPool(POOL, min_size=1, max_size=2, kwargs=NOT_PREPARED)
            self.leadership = leader_election.DetachedLeadership(
                pool, self.election, self.candidate, interval=0.2, **options)

    def note(self, *words):
        os.write(self.log, f"{' '.join(map(str, words))}\n".encode())

    def turn(self, n):
        self.leadership.wait(0)     # raises what has ended it
        sent, term = now(), self.leadership.term
        if term is None:
            return
        self.note("q", 1, self.election, sent, now(), term)
        if n % TURNS_PER_WRITE == 0:
            self.write(term)

    def write(self, term):
        global work, next_id
        next_id += 1
        outcome, sent = "lost", now()
        try:
            if work is None or work.closed:
                work = psycopg.connect(POOL, autocommit=True, **NOT_PREPARED)
            work.execute("BEGIN")
            self.leadership.fenced(work)
            term = self.leadership.term or term     # the fenced one, else COMMIT fails
            work.execute(f'INSERT INTO chaos."w_{self.election}" (term, candidate, id)'
                         " VALUES (%s, %s, %s)", [term, self.candidate, next_id])
            sent = now()
            work.execute("COMMIT")
            outcome = "committed"
        except (psycopg.Error, leader_election.NotLeader) as error:
            outcome = getattr(error, "sqlstate", None) or "refused"
            if work is not None:
                work.close()
        self.note("w", self.election, sent, now(), term, next_id, outcome)


work = None
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    members = [Member(argument) for argument in sys.argv[2:]]
    for member in members:
        member.leadership.start()
    for n in range(1 << 62):
        for i, member in enumerate(members):
            member.turn(n + i)
        time.sleep(TURN)
except SystemExit:
    for member in members:
        member.leadership.close()
    os._exit(0)
except Exception as error:
    print(f"gave up: {error!r}", flush=True)
    os._exit(3)
