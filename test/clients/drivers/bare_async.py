"""What a client is compared with: the same language and driver, asyncpg, and no client.
Whoever holds a plain advisory lock leads. bare_async.py bare ELECTION CANDIDATE (see
../README.md)."""

import asyncio
import os
import signal
import sys
import time

del sys.path[0]     # there, asyncpg.py is a driver

import asyncpg

election = sys.argv[2]


def say(*words):
    os.write(1, f"{' '.join(map(str, words))} {time.monotonic_ns()}\n".encode())


async def lead():
    global leads, conn
    try:
        conn = await asyncpg.connect(timeout=2)
        await conn.execute(f"SELECT pg_advisory_lock(hashtext('{election}'))")
        say("elected", 1)
        leads = True
        while True:
            asked = time.monotonic_ns()
            await conn.execute("SELECT")
            say("working", 1, asked)
            await asyncio.sleep(0.05)
    except Exception:       # of a connection that was just lost, asyncpg may say an internal error
        if leads:
            say("lost", "connection lost")
        leads = False
        await asyncio.sleep(0.05)


def close():
    if conn is not None:
        conn.terminate()
    if leads:
        say("lost", "closed")
    say("closed")
    os._exit(0)


async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, close)
    say("ready")
    while True:
        await lead()


leads, conn = False, None
asyncio.run(main())
