"""What the tests of both clients share."""


import os
from unittest import mock

# What a client reads of the environment, and a driver for it
READ = ("PG", "KUBERNETES_", "POD_NAME", "HOSTNAME")


class Told:
    """Notes what handlers are told. fake_class is FakeLeadership of the client. A test's environment
    says nothing of servers and names but what the test itself puts there."""

    def setUp(self):
        self.told = []
        rest = {name: value for name, value in os.environ.items() if not name.startswith(READ)}
        environment = mock.patch.dict(os.environ, rest, clear=True)
        environment.start()
        self.addCleanup(environment.stop)

    def handlers(self):
        return {f"on_{event}": lambda value, event=event: self.told.append((event, value))
                for event in ("elected", "lost", "yield", "error")}

    def fake(self, **more):
        return self.fake_class("e", **{**self.handlers(), **more})
