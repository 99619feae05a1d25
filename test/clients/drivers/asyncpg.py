"""The driver program of clients/python/leader_election_async.py for the conformance suite, and an
example of its use: asyncpg.py session|detached ELECTION CANDIDATE (see ../README.md)."""

import asyncio
import os
import pathlib
import signal
import sys
import threading
import time

sys.path[0] = str(pathlib.Path(__file__).parents[3] / "clients/python")   # this file is no asyncpg

import asyncpg

import leader_election_async

kind, election, candidate = sys.argv[1:]
env = os.environ.get
last_turn = time.monotonic()
misbehaved = []         # what HANDLER asks for is done once
closing = []            # the tasks of close()
last_state = None


def say(*words):
    os.write(1, f"{' '.join(map(str, words))} {time.monotonic_ns()}\n".encode())


async def misbehave(event):
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
        await asyncio.sleep(2 * float(env("LEASE")))
    elif what == "close":
        await leadership.close()
    elif what == "resign":
        await leadership.resign()
    elif what == "wait":
        await leadership.wait()
    return True


async def on_elected(term):
    say("elected", term)
    await misbehave("elected")


async def on_lost(reason):
    say("lost", reason)
    await misbehave("lost")


async def on_yield(term):
    say("yield", term)
    if not await misbehave("yield"):
        await asyncio.sleep(0.2)
        await leadership.resign()


def on_error(error):
    say("told", type(error).__name__)


def read_commands(loop, main_task):
    for words in map(str.split, sys.stdin):
        if words == ["resign"]:
            asyncio.run_coroutine_threadsafe(leadership.resign(), loop)
        elif words == ["say"]:
            leadership.set_metadata("said")
        elif words == ["close"]:
            loop.call_soon_threadsafe(stop, main_task)
        elif words[:1] == ["hang"]:
            loop.call_soon_threadsafe(time.sleep, float(words[1]) / 1000)    # the whole loop


async def client():
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
    limit = float(env("QUERY_TIMEOUT")) if env("QUERY_TIMEOUT") else None
    where = {"service": env("SERVICE"), "command_timeout": limit}
    if kind == "session":
        return leader_election_async.Leadership(where, election, name, pooler=env("POOLER"),
                                                **arguments)

    async def any_host(_):      # after a failover: asyncpg's pool would keep to the first host
        pool._working_addr = None

    pool = await asyncpg.create_pool(min_size=0, max_size=2, timeout=2, command_timeout=limit,
                                     statement_cache_size=0, init=any_host)
    return leader_election_async.DetachedLeadership(
        pool, election, name, interval=float(env("INTERVAL", 0.2)),
        listen=where if env("LISTEN") else None, **arguments)


def say_state():
    global last_state
    if leadership.state != last_state:
        last_state = leadership.state
        say("state", last_state)


def ask_forked_child():
    """What does not raise at once would wait: None stands for that."""
    def outcome(coroutine):
        try:
            coroutine.send(None)
        except StopIteration as end:
            return type(end.value).__name__
        except Exception as error:
            return type(error).__name__
    if os.fork() == 0:
        say("forked", "wait", outcome(leadership.wait(0.1)))
        say("forked", "fenced", outcome(leadership.fenced(None)))
        say("forked", "start", outcome(leadership.start()))
        say("forked", "term", leadership.term)
        say("forked", "leads", leadership.leads)
        os._exit(0)
    os.wait()


async def write(work, term):
    """A fenced write; returns the connection for the next one."""
    try:
        if work is None or work.is_closed():
            work = await asyncpg.connect(
                host=env("WORKHOST", env("PGHOST")).split(","), timeout=2,
                port=list(map(int, env("WORKPORT", env("PGPORT")).split(","))),
                user=env("WORKUSER"), database=env("WORKDATABASE"),
                statement_cache_size=0)     # there may be a pooler in between
        async with work.transaction():
            await leadership.fenced(work)
            await work.execute("SELECT conformance.write($1, $2, $3)", election, candidate, term)
        say("wrote", term)
    except leader_election_async.NotLeader:
        say("refused", term, "NotLeader")
    except Exception as error:      # asyncpg has several families, InternalClientError for one
        say("refused", term, getattr(error, "sqlstate", None) or "08006")
        if work is not None and not isinstance(error, asyncpg.PostgresError):
            work.terminate()
    return work


async def work_while_leading():
    """In each turn wait() raises the error that has ended the client, if one has."""
    global last_turn
    work, forks = None, bool(env("FORK"))
    for turn in range(1 << 62):
        last_turn = time.monotonic()
        say_state()
        await leadership.wait(0)
        asked, term = time.monotonic_ns(), leadership.term
        if term is not None:
            say("working", term, asked)
            if forks:
                forks = False
                ask_forked_child()
            if turn % 5 == 0:
                work = await write(work, term)
        elif leadership.state == "closed":      # by a handler
            return
        await asyncio.sleep(0.02)


def stop(main_task):
    """close(), too: asyncpg 0.27 may lose a cancellation that comes just as write() connects."""
    closing.append(asyncio.ensure_future(leadership.close()))
    main_task.cancel()


async def main():
    global leadership, candidate
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    leadership = await client()
    if env("DEFAULT_NAME"):
        candidate = leadership.candidate
        say("name", candidate)
    loop.add_signal_handler(signal.SIGTERM, stop, task)
    threading.Thread(target=read_commands, args=(loop, task), daemon=True).start()
    say("ready")
    try:
        async with leadership:
            await work_while_leading()
    except asyncio.CancelledError:      # SIGTERM; or the loop is shut down, by a handler's exit
        if leadership.state != "closed":
            raise


status = 0
try:
    asyncio.run(main())
except SystemExit as exit:      # a handler's
    status = exit.code
except Exception as error:
    os.write(1, f"error {getattr(error, 'sqlstate', None) or '-'} {str(error)!r}\n".encode())
    status = 3
say_state()
if status == 0:
    say("closed")
os._exit(status)        # does not wait for threads
