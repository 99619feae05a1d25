"""
Elections for a Django project, over its own DATABASES, also through PgBouncer in transaction mode.

    INSTALLED_APPS = [..., "leader_election_django"]
    LEADER_ELECTION = {"database": "default"}       # and any option of a detached candidate

    from leader_election_django import leader, leadership

    @leader("reports")                  # does nothing where this process does not lead
    def send_reports():                 # in a transaction, whose COMMIT fails if it leads no longer
        ...

    python manage.py lead reports app.reports.send_reports      # again and again, where it leads

Django 3.2 or later, and psycopg 3 beside whatever driver Django has: candidates do not stand on
Django's own connections, which it closes, reuses and hands from thread to thread.
"""

import atexit
import functools
import os
import threading

import django.conf
import psycopg
from django.db import connections, transaction
from psycopg.pq import Conninfo

from leader_election import DetachedLeadership, NotLeader

_lock = threading.Lock()
_standing = {}      # leaderships, by process and election: those of a parent stand for nobody here


def _renew_lock():
    """In a child: a thread of the parent may have held the lock, and is not here to release it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):     # not on Windows
    os.register_at_fork(after_in_child=_renew_lock)


class Connections:
    """What DetachedLeadership needs of a pool: each connection is new, by DATABASES[alias]. A call
    is a few milliseconds longer than with a pool, and there are few of them."""

    def __init__(self, alias):
        known = {option.keyword.decode() for option in Conninfo.get_defaults()}
        given = dict(connections[alias].get_connection_params())
        given["dbname"] = given.pop("database", given.get("dbname"))
        words = {word: value for word, value in given.items() if word in known and value}
        self.conninfo = psycopg.conninfo.make_conninfo(**words)
        self.kwargs = {"autocommit": True, "prepare_threshold": None}

    def getconn(self, timeout):
        return psycopg.connect(self.conninfo, connect_timeout=max(2, round(timeout)), **self.kwargs)

    def putconn(self, conn):
        conn.close()


def _settings():
    return {"database": "default", **getattr(django.conf.settings, "LEADER_ELECTION", {})}


def database():
    """The alias of the database that has the elections."""
    return _settings()["database"]


def leadership(election):
    """The leadership of this process in an election. It begins to stand with the first call, in a
    forked child anew: make that in what serves or works, not when modules are loaded, or the parent
    stands, too. The first call after its close() stands anew. One that an error has ended stays so:
    its wait() raises that error, and its state has it."""
    key = os.getpid(), election
    with _lock:
        last = _standing.get(key)
        if last and last.state == "closed":
            atexit.unregister(last.close)
        if not last or last.state == "closed":
            options = _settings()
            pool = Connections(options.pop("database"))
            _standing[key] = DetachedLeadership(pool, election, **options).start()
            atexit.register(_standing[key].close)
        return _standing[key]


def leader(election):
    """A decorator: where this process leads, the function runs in a transaction that commits only
    if this process still leads in that very term then (else a DatabaseError: LE001, LE002).
    Elsewhere it does not run, and None is returned."""

    def decorate(function):
        @functools.wraps(function)
        def run(*args, **kwargs):
            if not leadership(election).leads:
                return None
            with transaction.atomic(using=database()):
                try:
                    leadership(election).fenced(connections[database()])
                except NotLeader:       # lost just now
                    return None
                return function(*args, **kwargs)

        return run

    return decorate
