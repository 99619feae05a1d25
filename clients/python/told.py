"""What the tests of both clients share."""


class Told:
    """Notes what handlers are told. fake_class is FakeLeadership of the client."""

    def setUp(self):
        self.told = []

    def handlers(self):
        return {f"on_{event}": lambda value, event=event: self.told.append((event, value))
                for event in ("elected", "lost", "yield", "error")}

    def fake(self, **more):
        return self.fake_class("e", **{**self.handlers(), **more})
