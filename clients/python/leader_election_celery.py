"""
Celery beat on several hosts, of which one sends: celery -A app beat -S leader_election_celery:LeaderScheduler

    app.conf.leader_election = {"where": "host=db dbname=app", "election": "celery-beat"}

where says where the database is, for libpq; election defaults to "celery-beat". detached=True stands
over a pool (psycopg_pool), also behind PgBouncer in transaction mode. Everything else is handed to
Leadership or DetachedLeadership: candidate, rank, refusal_timeout ... When what was sent last is kept
in a table, which the role may read and write:

    CREATE TABLE celery_beat (election text, entry text, last_run_at timestamptz NOT NULL,
        total_run_count bigint NOT NULL, PRIMARY KEY (election, entry));

Invariant: a run is recorded, in a transaction fenced by the term, before it is sent. So no run is sent
twice, whatever beats die or hang; one that is recorded and not sent, because its beat died between the
two, is lost, as it is with a single beat. A new leader goes on from the records: a run that was due
while nobody led is sent then.
"""

import logging

import psycopg
from celery.beat import Scheduler
from psycopg.conninfo import conninfo_to_dict

from leader_election import DetachedLeadership, Leadership, NotLeader

log = logging.getLogger("leader_election")

# Unless where says otherwise: beat waits for these connections, and does nothing else meanwhile.
_LIMITS = {"connect_timeout": 5, "tcp_user_timeout": 10000, "keepalives_idle": 5,
           "keepalives_interval": 2, "keepalives_count": 3}
_STANDBY = 1.0      # seconds from one look at the term to the next
_NOT_SENT = ("LE001", "LE002", "55P03")     # the fence says that we do not lead, or cannot tell
_LOAD = "SELECT entry, last_run_at, total_run_count FROM celery_beat WHERE election = %s"
_RECORD = """INSERT INTO celery_beat VALUES (%s, %s, %s, %s)
    ON CONFLICT (election, entry) DO UPDATE
    SET last_run_at = excluded.last_run_at, total_run_count = excluded.total_run_count"""


class LeaderScheduler(Scheduler):
    """A scheduler of celery beat that sends while it leads, and stands by otherwise."""

    _leadership = None
    _loaded = None      # the term whose records are in the schedule

    def __init__(self, app, *args, lazy=False, **kwargs):
        options = {"where": "", "election": "celery-beat", **app.conf.get("leader_election", {})}
        self._where, self._election = options.pop("where"), options.pop("election")
        if not lazy:    # else celery only wants to show the schedule
            self._leadership = self._stand(options)
        super().__init__(app, *args, lazy=lazy, **kwargs)

    def _stand(self, options):
        if not options.pop("detached", False):
            return Leadership(self._where, self._election, **options).start()
        from psycopg_pool import ConnectionPool

        pool = ConnectionPool(self._where, min_size=1, max_size=2, open=True,
                              kwargs={"autocommit": True, "prepare_threshold": None})
        return DetachedLeadership(pool, self._election, **options).start()

    def tick(self, *args, **kwargs):
        """Send what is due, if we lead. Returns for how many seconds beat is to sleep then."""
        if self._leadership.state.startswith("failed"):
            self._leadership.wait(0)    # raises what ended it, and so ends beat
        term = self._leadership.term
        if term is None:
            return _STANDBY
        try:
            if self._loaded != term:
                self._load()
                self._loaded = term
            return min(super().tick(*args, **kwargs), _STANDBY)
        except (NotLeader, psycopg.Error) as error:
            # It may have been recorded or not: the records say, when we lead next.
            self._loaded = None
            if getattr(error, "sqlstate", None) not in _NOT_SENT:
                log.warning("celery beat has not sent: %r", error)
            return _STANDBY

    def apply_entry(self, entry, producer=None):
        """Record a run, then send it. tick() has already put the entry with this run counted into
        self.schedule; until the run is recorded, the entry without it stands there again."""
        counted, self.schedule[entry.name] = self.schedule[entry.name], entry
        with self._connect() as conn:       # one transaction
            self._leadership.fenced(conn)
            conn.execute(_RECORD, (self._election, entry.name, counted.last_run_at,
                                   counted.total_run_count))
        self.schedule[entry.name] = counted
        super().apply_entry(entry, producer=producer)

    def _connect(self):
        return psycopg.connect(**{**_LIMITS, **conninfo_to_dict(self._where)})

    def _load(self):
        """Go on where the last leader ended."""
        with self._connect() as conn:
            rows = conn.execute(_LOAD, (self._election,)).fetchall()
        for name, last_run_at, count in rows:
            if name in self.schedule:
                # In the app's time zone: crontab reads the hour off this.
                self.schedule[name].last_run_at = last_run_at.astimezone(self.app.timezone)
                self.schedule[name].total_run_count = count
        self._heap = None       # filled anew by tick()

    def close(self):
        super().close()
        if self._leadership:
            self._leadership.close()

    @property
    def info(self):
        return f"    . election -> {self._election}"
