"""What a client is compared with: the same language and driver, psycopg 3, and no client.
Whoever holds a plain advisory lock leads. bare.py bare ELECTION CANDIDATE (see ../README.md)."""

import os
import signal
import sys
import time

import psycopg

election = sys.argv[2]


def say(*words):
    os.write(1, f"{' '.join(map(str, words))} {time.monotonic_ns()}\n".encode())


def lead():
    global leads, conn
    try:
        conn = psycopg.connect("", autocommit=True)
        conn.execute("SELECT pg_advisory_lock(hashtext(%s))", [election])
        say("elected", 1)
        leads = True
        while True:
            asked = time.monotonic_ns()
            conn.execute("SELECT")
            say("working", 1, asked)
            time.sleep(0.05)
    except psycopg.Error:
        if leads:
            say("lost", "connection lost")
        leads = False
        time.sleep(0.05)


leads, conn = False, None
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
say("ready")
try:
    while True:
        lead()
except SystemExit:
    if conn is not None:
        conn.close()
    if leads:
        say("lost", "closed")
    say("closed")
    os._exit(0)
