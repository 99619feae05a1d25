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
last_turn = time.monotonic()
hang = threading.Event()
hang_seconds = 0.0
misbehaved = []         # what HANDLER asks for is done once
last_state = None


def say(*words):
    os.write(1, f"{' '.join(map(str, words))} {time.monotonic_ns()}\n".encode())


def misbehave(event):
    """HANDLER=EVENT:WHAT. Returns whether that was done."""
    if misbehaved or env("HANDLER", ":").split(":")[0] != event:
        return False
    what = env("HANDLER").split(":")[1]
    misbehaved.append(what)
    if what == "raise":
        raise RuntimeError("a handler of the driver's")
    if what == "exit":
        sys.exit(7)
    if what == "block":
        time.sleep(2 * float(env("LEASE")))
    elif what == "close":
        leadership.close()
    elif what == "resign":
        leadership.resign()
    elif what == "wait":
        leadership.wait()
    return True


def on_elected(term):
    say("elected", term)
    misbehave("elected")


def on_lost(reason):
    say("lost", reason)
    misbehave("lost")


def on_yield(term):
    say("yield", term)
    if not misbehave("yield"):
        threading.Timer(0.2, leadership.resign).start()


def on_error(error):
    say("told", type(error).__name__)


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


def client():
    arguments = {"on_elected": on_elected, "on_lost": on_lost, "on_error": on_error,
                 "call_timeout": float(env("CALL_TIMEOUT", 1))}
    if env("YIELD") or env("HANDLER", "").startswith("yield"):
        arguments["on_yield"] = on_yield
    if env("HEALTH"):
        arguments["health_check"] = lambda: time.monotonic() - last_turn < float(env("HEALTH"))
    if env("REFUSAL_TIMEOUT"):
        arguments["refusal_timeout"] = float(env("REFUSAL_TIMEOUT"))
    if not env("DEFAULT_SLICE"):
        arguments["slice"] = float(env("SLICE", 1))
    name = None if env("DEFAULT_NAME") else candidate
    words = {}
    if env("SERVICE"):
        words["service"] = env("SERVICE")
    if env("QUERY_TIMEOUT"):
        words["options"] = f"-c statement_timeout={float(env('QUERY_TIMEOUT'))}s"
    where = psycopg.conninfo.make_conninfo(**words)
    if kind == "session":
        return leader_election.Leadership(where, election, name, pooler=env("POOLER"), **arguments)
    pool = psycopg_pool.ConnectionPool(where, min_size=1, max_size=2,
                                       kwargs={"connect_timeout": 2})
    return leader_election.DetachedLeadership(
        pool, election, name, interval=float(env("INTERVAL", 0.2)),
        listen=where if env("LISTEN") else None, **arguments)


def say_state():
    global last_state
    state = leadership.state
    if state != last_state:
        last_state = state
        say("state", state)


def ask_forked_child():
    def outcome(ask):
        try:
            return ask()
        except Exception as error:
            return type(error).__name__
    if os.fork() == 0:
        say("forked", "wait", outcome(lambda: leadership.wait(0.1)))
        say("forked", "fenced", outcome(lambda: leadership.fenced(None)))
        say("forked", "start", outcome(lambda: type(leadership.start()).__name__))
        say("forked", "term", leadership.term)
        say("forked", "leads", leadership.leads)
        os._exit(0)
    os.wait()


def write(work, term):
    """A fenced write; returns the connection for the next one."""
    try:
        if work is None or work.closed:
            words = {"user": env("WORKUSER"), "dbname": env("WORKDATABASE"),
                     "host": env("WORKHOST", env("PGHOST")), "port": env("WORKPORT", env("PGPORT"))}
            work = psycopg.connect(autocommit=True, connect_timeout=2, **words)
        with work.transaction():
            leadership.fenced(work)
            work.execute("SELECT conformance.write(%s, %s, %s)", [election, candidate, term])
        say("wrote", term)
    except leader_election.NotLeader:
        say("refused", term, "NotLeader")
    except psycopg.Error as error:
        say("refused", term, error.sqlstate or "08006")
    return work


def main():
    """In each turn wait() raises the error that has ended the client, if one has."""
    global last_turn
    work = None
    forks = bool(env("FORK"))
    for turn in range(1 << 62):
        if hang.is_set():
            hang.clear()
            time.sleep(hang_seconds)
        last_turn = time.monotonic()
        say_state()
        leadership.wait(0)
        asked, term = time.monotonic_ns(), leadership.term
        if term is not None:
            say("working", term, asked)
            if forks:
                forks = False
                ask_forked_child()
            if turn % 5 == 0:
                work = write(work, term)
        elif leadership.state == "closed":      # by a handler
            return
        time.sleep(0.02)


leadership = client()
if env("DEFAULT_NAME"):
    candidate = leadership.candidate
    say("name", candidate)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
threading.Thread(target=read_commands, daemon=True).start()
status = 1
say("ready")
try:
    with leadership:
        main()
    status = 0
except SystemExit as exit:      # SIGTERM, or a handler's
    status = exit.code
except Exception as error:
    os.write(1, f"error {getattr(error, 'sqlstate', None) or '-'} {str(error)!r}\n".encode())
    status = 3
finally:
    say_state()
    if status == 0:
        say("closed")
    os._exit(status)        # does not wait for the threads of the pool
