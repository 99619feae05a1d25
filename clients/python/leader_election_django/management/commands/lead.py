"""manage.py lead ELECTION FUNCTION: calls a function again and again, where this process leads.

SIGTERM and SIGINT end it between two calls, and the next process leads when it asks again. What the database
does not let it do (a restart, a failover, a leadership that was lost) ends no process: it is logged,
and after a pause the next call is made, if this process leads then."""

import logging
import signal
import threading

from django.core.management.base import BaseCommand
from django.db import DatabaseError, close_old_connections
from django.utils.module_loading import import_string

from leader_election_django import leader, leadership

log = logging.getLogger("leader_election")


class Command(BaseCommand):
    help = "Calls a function again and again, in a fenced transaction, while this process leads."

    def add_arguments(self, parser):
        parser.add_argument("election")
        parser.add_argument("function", help="a dotted path: app.jobs.work")
        parser.add_argument("--pause", type=float, default=1.0, metavar="SECONDS",
                            help="from the end of one call to the next (default: 1)")

    def handle(self, *args, election, function, pause, **options):
        if not log.hasHandlers():       # LOGGING says nothing of it: who led is to be seen
            log.addHandler(logging.StreamHandler())
            log.setLevel(logging.INFO)
        work = leader(election)(import_string(function))
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        with leadership(election) as stands:
            while not stop.is_set():
                # In short waits: a signal handler only sets stop.
                if stands.wait(0.5) is None:    # raises what ended the leadership
                    continue
                try:
                    work()
                except DatabaseError as error:
                    log.warning("election %r: %s", election, error)
                    close_old_connections()
                stop.wait(pause)
