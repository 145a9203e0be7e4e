"""A call under way, as the process that makes it knows it."""

from midrun.core.state import Call, State


class Task:
    """A call in flight, as the process that makes it knows it. `stop` says why it must end."""

    __slots__ = ("attempt", "call", "key", "stop", "view")

    def __init__(self, call: Call, key: str, view: State) -> None:
        self.call = call
        self.attempt = call.attempt
        self.key = key
        self.view = view
        self.stop = ""
