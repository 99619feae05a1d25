"""The real Celery and the real Django, with a server (TEST_SERVER), each in two processes: one leads,
and when it is killed or hangs the other goes on."""

import collections
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import psycopg

HERE = pathlib.Path(__file__).parent
LIMIT = float(os.environ.get("LE_TEST_TIMEOUT", 300))


def needs(module):
    there = os.environ.get("TEST_SERVER") and importlib.util.find_spec(module)
    return unittest.skipUnless(there, f"needs a server and {module}")


class Processes:
    """Processes in a folder of their own, and an election."""

    election = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.running = {}       # by name: those that are to run
        self.conn = psycopg.connect("", autocommit=True)
        self.addCleanup(self.conn.close)
        self.sql("SELECT leader_election.create_election(%s, lease_duration => '2 s')", self.election)
        self.addCleanup(self.drop_election)

    def drop_election(self):
        """A killed leader's lease runs out first."""
        self.until(lambda: self.leader() is None)
        self.sql("SELECT leader_election.drop_election(%s)", self.election)

    def sql(self, statement, *values):
        cursor = self.conn.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    def start(self, name, *command, **env):
        output = open(self.folder / f"{name}.out", "w")
        self.addCleanup(output.close)
        process = subprocess.Popen(command, cwd=self.folder, stdout=output, stderr=subprocess.STDOUT,
                                   env={**os.environ, "PYTHONPATH": f"{HERE}:{self.folder}", **env})
        self.addCleanup(lambda: (process.kill(), process.wait(), self.running.pop(name, None)))
        self.running[name] = process
        return process

    def end(self, name, number):
        process = self.running.pop(name)
        process.send_signal(number)
        return process.wait(LIMIT)

    def until(self, condition):
        end = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > end or any(p.poll() is not None for p in self.running.values()):
                self.fail("\n".join(["not so in time, or a process has ended. They said:", *(
                    f"{name}: " + (self.folder / f"{name}.out").read_text()[-3000:]
                    for name in self.running)]))
            time.sleep(0.05)

    def leader(self):
        return self.sql("SELECT leader_election.leader(%s)", self.election)[0][0]

    def stands(self, name):
        return self.sql("SELECT 1 FROM leader_election.candidates WHERE election = %s AND candidate = %s",
                        self.election, name)


CELERY = """
import celery, os
app = celery.Celery("beats", broker="filesystem://")
app.conf.broker_transport_options = {"data_folder_in": "broker", "data_folder_out": "broker"}
app.conf.leader_election = {"detached": os.environ["DETACHED"] == "1", "candidate": os.environ["NAME"]}
app.conf.beat_schedule = {"often": {"task": "often", "schedule": 0.2}}
@app.task(name="often")
def often(): pass
"""


@needs("celery")
class Celery(Processes, unittest.TestCase):
    election = "celery-beat"

    def setUp(self):
        super().setUp()
        (self.folder / "broker").mkdir()
        (self.folder / "beats.py").write_text(CELERY)
        self.sql("""CREATE TABLE celery_beat (election text, entry text, last_run_at timestamptz NOT NULL,
            total_run_count bigint NOT NULL, PRIMARY KEY (election, entry))""")
        self.addCleanup(self.sql, "DROP TABLE celery_beat")

    def beat(self, name, detached):
        self.start(name, sys.executable, "-m", "celery", "-A", "beats", "beat", "-S",
                   "leader_election_celery:LeaderScheduler", "--pidfile=",
                   NAME=name, DETACHED=str(int(detached)))

    def sent(self):
        return sum(1 for path in (self.folder / "broker").glob("*.msg")
                   if json.loads(path.read_text())["headers"]["task"] == "often")

    def recorded(self):
        return sum(count for (count,) in self.sql("SELECT total_run_count FROM celery_beat"))

    def run_two(self, detached):
        self.beat("a", detached)
        self.until(lambda: self.sent() >= 3)
        self.beat("b", detached)
        self.until(lambda: self.stands("b"))
        self.assertEqual(self.leader(), "a")
        before = self.recorded()
        self.end("a", signal.SIGKILL)
        self.until(lambda: self.leader() == "b" and self.recorded() >= before + 3)

        # SIGTERM ends beat between two runs, and gives the lease back.
        self.assertEqual(self.end("b", signal.SIGTERM), 0)
        self.assertIsNone(self.leader())
        # It went on from what a had recorded. a may have died between recording and sending.
        self.assertIn(self.recorded() - self.sent(), (0, 1))

    def test_sessions(self):
        self.run_two(False)

    def test_detached(self):
        self.run_two(True)

    def test_a_late_leader_sends_nothing(self):
        self.beat("a", True)
        self.until(lambda: self.sent() >= 2)
        self.running["a"].send_signal(signal.SIGSTOP)
        self.beat("b", True)
        before = self.recorded()
        self.until(lambda: self.leader() == "b" and self.recorded() >= before + 3)
        self.running["a"].send_signal(signal.SIGCONT)
        before = self.recorded()
        self.until(lambda: self.recorded() >= before + 5)
        for name in "a", "b":
            self.end(name, signal.SIGTERM)
        self.assertIn(self.recorded() - self.sent(), (0, 1))


@unittest.skipUnless(importlib.util.find_spec("celery"), "needs celery")
class CeleryConnects(unittest.TestCase):
    def test_a_server_that_does_not_answer(self):
        """Beat goes on: it would not hear of SIGTERM, nor of a server that answers."""
        import celery
        from leader_election_celery import LeaderScheduler

        def load():
            try:
                scheduler._load()
            except psycopg.OperationalError as error:
                errors.append(error)
        errors, server = [], socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)
        app = celery.Celery("beats")
        app.conf.leader_election = {
            "where": f"host=127.0.0.1 port={server.getsockname()[1]} dbname=d user=u"}
        scheduler = LeaderScheduler(app, lazy=True)
        thread = threading.Thread(target=load, daemon=True)
        thread.start()
        thread.join(30)
        self.assertEqual(len(errors), 1, "it still waits")


SETTINGS = """
import os
SECRET_KEY = "tests"
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"],
    "USER": os.environ.get("PGUSER", ""), "HOST": os.environ["DBHOST"], "PORT": os.environ["DBPORT"],
    "DISABLE_SERVER_SIDE_CURSORS": True}}
INSTALLED_APPS = ["leader_election_django"]
LEADER_ELECTION = {"candidate": os.environ.get("NAME"), "interval": 0.2}
USE_TZ = True
"""
JOBS = """
import os
from django.db import connection
def work():
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO work (who) VALUES (%s)", [os.environ["NAME"]])
"""
HEALTH = """
import time
started = None
def healthy():
    return started is None or time.monotonic() - started < 2
"""
HANGS = """
import os, threading, time
from django.db import connection
import health
def work():
    health.started = time.monotonic()
    try:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO work (who) VALUES (%s)", [os.environ["NAME"]])
        if os.environ["NAME"] == "a":
            threading.Event().wait()
    finally:
        health.started = None
"""
PGBOUNCER = """[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
server_login_retry = 1
ignore_startup_parameters = extra_float_digits
"""


@needs("django")
class Django(Processes, unittest.TestCase):
    election = "reports"

    def setUp(self):
        super().setUp()
        (self.folder / "config.py").write_text(SETTINGS)
        (self.folder / "jobs.py").write_text(JOBS)
        self.sql("CREATE TABLE work (n serial PRIMARY KEY, who text NOT NULL)")
        self.addCleanup(self.sql, "DROP TABLE work")
        self.at = {"DBHOST": self.conn.info.host, "DBPORT": str(self.conn.info.port)}

    def start_pgbouncer(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            listen = free.getsockname()[1]
        user = f" user={self.conn.info.user}"
        (self.folder / "pgbouncer.ini").write_text(PGBOUNCER.format(
            host=self.at["DBHOST"], port=self.at["DBPORT"] + user, listen=listen))
        program = shutil.which("pgbouncer", path=os.environ["PATH"] + ":/usr/sbin")
        self.start("pgbouncer", program, "pgbouncer.ini")
        self.at = {"DBHOST": "127.0.0.1", "DBPORT": str(listen)}

    def manage(self, name, *arguments, **env):
        return self.start(name, sys.executable, "-m", "django", *arguments,
                          DJANGO_SETTINGS_MODULE="config", NAME=name, **self.at, **env)

    def lead(self, name):
        self.manage(name, "lead", "reports", "jobs.work", "--pause", "0.1")

    def worked(self):
        return collections.Counter(who for (who,) in self.sql("SELECT who FROM work"))

    def run_two(self):
        self.lead("a")
        self.until(lambda: self.worked()["a"] >= 3)
        self.lead("b")
        self.until(lambda: self.stands("b"))
        self.assertEqual(self.leader(), "a")

        # A lost connection ends neither the process nor its leadership.
        self.sql("""SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'""")
        before = self.worked()["a"]
        self.until(lambda: self.worked()["a"] >= before + 2)
        self.assertEqual(self.leader(), "a")

        self.end("a", signal.SIGKILL)
        self.until(lambda: self.worked()["b"] >= 2)
        self.assertEqual(self.end("b", signal.SIGTERM), 0)
        self.assertIsNone(self.leader())
        # One after the other
        whose = [who for (who,) in self.sql("SELECT who FROM work ORDER BY n")]
        self.assertEqual(whose, sorted(whose))
        self.assertRegex(self.said("a"), r'elected leader of "reports", term \d+\n')
        self.assertRegex(self.said("b"), r'(?s)elected leader of "reports", term (\d+)\n.*'
                         r'lost leadership of "reports", term \1: closed\n')

    def said(self, name):
        return (self.folder / f"{name}.out").read_text()

    def test_a_call_that_hangs(self):
        """The health check of docs/frameworks.md ends the leadership, not the call."""
        (self.folder / "health.py").write_text(HEALTH)
        with open(self.folder / "config.py", "a") as config:
            config.write("from health import healthy\nLEADER_ELECTION['health_check'] = healthy\n")
        (self.folder / "jobs.py").write_text(HANGS)
        self.lead("a")
        self.until(lambda: self.leader() == "a")
        self.lead("b")
        self.until(lambda: self.worked()["b"] >= 2)
        self.assertRegex(self.said("a"), r'lost leadership of "reports", term \d+: unhealthy\n')
        self.assertEqual(self.worked()["a"], 0)
        self.end("a", signal.SIGKILL)
        self.end("b", signal.SIGTERM)

    def test_command(self):
        self.run_two()

    def test_command_behind_a_pooler(self):
        self.start_pgbouncer()
        self.run_two()

    def test_forked(self):
        """A process that leads forks: its child, once it is alone, is elected by itself."""
        (self.folder / "forks.py").write_text("""
import django, os, signal, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "config"
django.setup()
from leader_election_django import leadership
leadership("reports").wait()
if os.fork():
    os._exit(0)
print("again" if leadership("reports").wait(60) else "never")
""")
        self.start("forks", sys.executable, "forks.py", NAME="", **self.at)
        del self.running["forks"]       # the parent ends
        self.until((self.folder / "forks.out").read_text)
        self.assertEqual((self.folder / "forks.out").read_text(), "again\n")

    def says(self, program):
        """What a program says, whose folder has config.py."""
        (self.folder / "program.py").write_text("""
import django, os, signal, threading
os.environ["DJANGO_SETTINGS_MODULE"] = "config"
django.setup()
import leader_election_django as app
""" + program)
        process = self.start("program", sys.executable, "program.py", NAME="", **self.at)
        del self.running["program"]
        process.wait(LIMIT)
        return (self.folder / "program.out").read_text()

    def test_closed(self):
        """One that was closed is used again: it stands anew."""
        self.assertEqual(self.says("""
app.leadership("reports").wait()
app.leadership("reports").close()
print("again" if app.leadership("reports").wait(60) else "never")
"""), "again\n")

    def test_forked_while_another_thread_begins(self):
        """The child does not wait for a thread that it does not have."""
        self.assertEqual(self.says("""
class Slow(app.DetachedLeadership):
    def start(self):
        begun.set()
        threading.Event().wait()
begun, app.DetachedLeadership = threading.Event(), Slow
threading.Thread(target=app.leadership, args=["other"], daemon=True).start()
begun.wait()
child = os.fork()
if not child:
    signal.alarm(60)
    app.DetachedLeadership = Slow.__base__
    print("leads" if app.leadership("reports").wait(50) else "never", flush=True)
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)
"""), "leads\n")

    def check(self, **env):
        process = self.manage("check", "check", "--database", "default", "--fail-level", "WARNING",
                              **env)
        del self.running["check"]
        return process.wait(LIMIT), (self.folder / "check.out").read_text()

    def test_check(self):
        status, output = self.check()
        self.assertEqual(status, 0, output)
        self.sql("CREATE ROLE stranger LOGIN")
        self.addCleanup(self.sql, "DROP ROLE stranger")
        status, output = self.check(PGUSER="stranger")
        self.assertEqual(status, 1)
        self.assertIn("leader_election.W004", output)
        status, output = self.check(PGDATABASE="template1")
        self.assertIn("leader_election.W003", output)


if __name__ == "__main__":
    unittest.main()
