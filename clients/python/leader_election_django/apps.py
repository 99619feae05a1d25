"""The app, and what `manage.py check --database default` says of it."""

from django.apps import AppConfig
from django.core import checks
from django.db import DatabaseError, connections

_MAY_STAND = """SELECT pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
        AND pg_catalog.has_schema_privilege(p.pronamespace, 'USAGE')
    FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
    WHERE n.nspname = 'leader_election' AND p.proname = 'acquire'"""


class LeaderElectionConfig(AppConfig):
    name = "leader_election_django"
    verbose_name = "Leader election"

    def ready(self):
        checks.register(check_database, checks.Tags.database)


def check_database(app_configs, databases=None, **kwargs):
    """Can this project's role stand for election there?"""
    from . import database

    alias = database()
    if alias not in (databases or ()):
        return []
    if connections[alias].vendor != "postgresql":
        return [checks.Error("the database of LEADER_ELECTION is not PostgreSQL",
                             hint="name its alias: LEADER_ELECTION = {'database': ...}",
                             id="leader_election.E001")]
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute(_MAY_STAND)
            row = cursor.fetchone()
    except DatabaseError as error:
        return [checks.Error(f"cannot ask the database of LEADER_ELECTION: {error}",
                             id="leader_election.E002")]
    # No errors: `migrate` checks before it runs, and may be what creates the extension.
    if not row:
        return [checks.Warning("the database has no extension leader_election",
                               hint="CREATE EXTENSION leader_election", id="leader_election.W003")]
    if not row[0]:
        return [checks.Warning("the role of LEADER_ELECTION's database may not stand",
                               hint="see docs/reference.md, Privileges",
                               id="leader_election.W004")]
    return []
