"""The driver program of clients/python/leader_election.py for the conformance suite, and an
example of its use: python.py session|detached ELECTION CANDIDATE (see ../README.md)."""

import os
import pathlib
import signal
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "clients/python"))

import psycopg
import psycopg_pool

import leader_election

kind, election, candidate = sys.argv[1:]
env = os.environ.get
options = f"-c statement_timeout={float(env('QUERY_TIMEOUT'))}s" if env("QUERY_TIMEOUT") else ""
last_turn = time.monotonic()
hang = threading.Event()
hang_seconds = 0.0


def say(*words):
    os.write(1, f"{' '.join(map(str, words))} {time.monotonic_ns()}\n".encode())


def on_yield(term):
    say("yield", term)
    threading.Timer(0.2, leadership.resign).start()


def on_error(error):
    os.write(1, f"error {error.sqlstate} {str(error)!r}\n".encode())
    os._exit(3)


def read_commands():
    global hang_seconds
    for words in map(str.split, sys.stdin):
        if words == ["resign"]:
            leadership.resign()
        elif words == ["say"]:
            leadership.set_metadata("said")
        elif words == ["close"]:
            os.kill(os.getpid(), signal.SIGTERM)
        elif words[:1] == ["hang"]:
            hang_seconds = float(words[1]) / 1000
            hang.set()


arguments = {"on_elected": lambda term: say("elected", term),
             "on_lost": lambda reason: say("lost", reason), "on_error": on_error,
             "call_timeout": float(env("CALL_TIMEOUT", 1))}
if env("YIELD"):
    arguments["on_yield"] = on_yield
if env("HEALTH"):
    arguments["health_check"] = lambda: time.monotonic() - last_turn < float(env("HEALTH"))
if kind == "session":
    leadership = leader_election.Leadership(
        f"options='{options}'", election, candidate, slice=float(env("SLICE", 1)), **arguments)
else:
    pool = psycopg_pool.ConnectionPool(
        "", min_size=1, max_size=2, kwargs={"options": options, "connect_timeout": 2})
    leadership = leader_election.DetachedLeadership(
        pool, election, candidate, interval=float(env("INTERVAL", 0.2)),
        listen="" if env("LISTEN") else None, **arguments)

work = None
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
threading.Thread(target=read_commands, daemon=True).start()
say("ready")
try:
    with leadership:
        for turn in range(1 << 62):
            if hang.is_set():
                hang.clear()
                time.sleep(hang_seconds)
            last_turn = time.monotonic()
            asked, term = time.monotonic_ns(), leadership.term
            if term is not None:
                say("working", term, asked)
            if term is not None and turn % 5 == 0:
                try:
                    if work is None or work.closed:
                        work = psycopg.connect(host=env("WORKHOST", env("PGHOST")),
                                               port=env("WORKPORT", env("PGPORT")),
                                               autocommit=True, connect_timeout=2)
                    with work.transaction():
                        leadership.fenced(work)
                        work.execute("SELECT conformance.write(%s, %s, %s)",
                                     [election, candidate, term])
                    say("wrote", term)
                except leader_election.NotLeader:
                    say("refused", term, "NotLeader")
                except psycopg.Error as error:
                    say("refused", term, error.sqlstate or "08006")
            time.sleep(0.02)
finally:
    say("closed")
    os._exit(0)     # does not wait for the threads of the pool
