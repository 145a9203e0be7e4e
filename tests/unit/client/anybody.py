"""A `Midrun` that is a client of its own server, for tests that were written for the real one.

Whoever a test names as the actor has a token, and the call is made with it: over HTTP. What the
interface does not have, the tests find in the `Midrun` behind the server.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import cast
from urllib.parse import quote, unquote

from midrun import Actor, Midrun
from midrun.client.midrun import RemoteMidrun
from midrun.client.run import RemoteRun
from midrun.runs.validation import ActorLike, parse_actor
from midrun.runs.values import FeedItem

Call = Callable[..., Awaitable[object]]  # type: ignore[explicit-any]  # whatever the method takes


def token_for(who: ActorLike) -> str:
    """Return the token of anybody."""
    actor = parse_actor(who)
    return f"a-token-for-anybody:{actor.role}:{quote(actor.name, safe='')}"


async def anybody(token: str) -> Actor | None:
    """Return who shows such a token. Plain users are let at all runs, as they are at home."""
    _, role, name = token.split(":")
    return Actor(name=unquote(name), role="viewer" if role == "viewer" else "operator")


class Anybody:
    """The runs of a server, for whoever asks."""

    def __init__(self, mid: Midrun, url: str, stack: AsyncExitStack) -> None:
        self._mid = mid
        self._url = url
        self._stack = stack
        self._known: dict[str, RemoteMidrun] = {}

    async def by(self, who: ActorLike) -> RemoteMidrun:
        """Return the client of `who`."""
        token = token_for(who)
        if token not in self._known:
            made = RemoteMidrun(self._url, token, patience=30.0)
            self._known[token] = await self._stack.enter_async_context(made)
        return self._known[token]

    def __getattr__(self, name: str) -> object:
        if not hasattr(RemoteMidrun, name):
            return getattr(self._mid, name)

        async def call(*args: object, **kwargs: object) -> object:
            remote = await self.by(cast("ActorLike", kwargs.get("actor")))
            made = await getattr(remote, name)(*args, **kwargs)
            return AnybodysRun(made, self) if isinstance(made, RemoteRun) else made

        return call


class AnybodysRun:
    """One run of a server, for whoever asks."""

    def __init__(self, run: RemoteRun, runs: Anybody) -> None:
        self.id = run.id
        self._run = run
        self._runs = runs
        self._service = runs._mid._service  # where tests look at the journal itself

    def feed(self, after: int = 0) -> AsyncGenerator[FeedItem, None]:
        """Give what happens."""
        return self._run.feed(after)

    def __getattr__(self, name: str) -> Call:
        async def call(*args: object, **kwargs: object) -> object:
            remote = await self._runs.by(cast("ActorLike", kwargs.get("actor")))
            made = await getattr(RemoteRun(self.id, remote._transport), name)(*args, **kwargs)
            return AnybodysRun(made, self._runs) if isinstance(made, RemoteRun) else made

        return call
