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


def say(*words):
    os.write(1, f"{' '.join(map(str, words))} {time.monotonic_ns()}\n".encode())


async def on_yield(term):
    say("yield", term)
    await asyncio.sleep(0.2)
    await leadership.resign()


def on_error(error):
    os.write(1, f"error {error.sqlstate} {str(error)!r}\n".encode())
    os._exit(3)


def read_commands(loop):
    for words in map(str.split, sys.stdin):
        if words == ["resign"]:
            asyncio.run_coroutine_threadsafe(leadership.resign(), loop)
        elif words == ["say"]:
            leadership.set_metadata("said")
        elif words == ["close"]:
            asyncio.run_coroutine_threadsafe(stop(), loop)
        elif words[:1] == ["hang"]:
            loop.call_soon_threadsafe(time.sleep, float(words[1]) / 1000)    # the whole loop


async def stop():
    await leadership.close()
    say("closed")
    os._exit(0)


async def write(work, term):
    try:
        if work is None or work.is_closed():
            work = await asyncpg.connect(host=env("WORKHOST", env("PGHOST")).split(","), timeout=2,
                                         port=list(map(int, env("WORKPORT", env("PGPORT")).split(","))))
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


async def main():
    global leadership
    loop, last_turn, work = asyncio.get_running_loop(), time.monotonic(), None
    limit = float(env("QUERY_TIMEOUT")) if env("QUERY_TIMEOUT") else None
    arguments = {"on_elected": lambda term: say("elected", term),
                 "on_lost": lambda reason: say("lost", reason), "on_error": on_error,
                 "call_timeout": float(env("CALL_TIMEOUT", 1))}
    if env("YIELD"):
        arguments["on_yield"] = on_yield
    if env("HEALTH"):
        arguments["health_check"] = lambda: time.monotonic() - last_turn < float(env("HEALTH"))
    if kind == "session":
        leadership = leader_election_async.Leadership(
            {"command_timeout": limit}, election, candidate, slice=float(env("SLICE", 1)),
            **arguments)
    else:
        async def any_host(_):      # after a failover: asyncpg's pool would keep to the first host
            pool._working_addr = None

        pool = await asyncpg.create_pool(min_size=0, max_size=2, timeout=2, command_timeout=limit,
                                         statement_cache_size=0, init=any_host)
        leadership = leader_election_async.DetachedLeadership(
            pool, election, candidate, interval=float(env("INTERVAL", 0.2)),
            listen="" if env("LISTEN") else None, **arguments)
    loop.add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(stop()))
    threading.Thread(target=read_commands, args=(loop,), daemon=True).start()
    say("ready")
    async with leadership:
        for turn in range(1 << 62):
            last_turn = time.monotonic()
            asked, term = time.monotonic_ns(), leadership.term
            if term is not None:
                say("working", term, asked)
                if turn % 5 == 0:
                    work = await write(work, term)
            await asyncio.sleep(0.02)


asyncio.run(main())
