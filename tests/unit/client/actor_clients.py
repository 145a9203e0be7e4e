"""A stand-in for `Midrun` that sends each call over HTTP with the token of its actor.

Tests that were written for `Midrun` run with it against a server. Methods that `RemoteMidrun`
does not have are called on the `Midrun` behind the server.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import cast
from urllib.parse import quote, unquote

from midrun import Actor, Midrun
from midrun.client.midrun import RemoteMidrun
from midrun.client.run import RemoteRun
from midrun.events import RunEvent
from midrun.runs.validation import ActorLike, parse_actor
from midrun.runs.values import FeedItem

Method = Callable[..., Awaitable[object]]  # type: ignore[explicit-any]  # any arguments


def make_actor_token(actor_like: ActorLike) -> str:
    """Return a token that contains the role and the name of the actor."""
    actor = parse_actor(actor_like)
    return f"a-token-with-an-actor:{actor.role}:{quote(actor.name, safe='')}"


async def authenticate(token: str) -> Actor | None:
    """Return the actor of a token. Users become operators: they may use all runs."""
    _, role, name = token.split(":")
    return Actor(name=unquote(name), role="viewer" if role == "viewer" else "operator")


class ActorMidrun:
    """A `Midrun` over HTTP with one client for each actor."""

    def __init__(self, mid: Midrun, url: str, stack: AsyncExitStack) -> None:
        self._mid = mid
        self._url = url
        self._stack = stack
        self._clients: dict[str, RemoteMidrun] = {}

    async def client_for(self, actor: ActorLike) -> RemoteMidrun:
        """Return the client with the token of `actor`."""
        token = make_actor_token(actor)
        if token not in self._clients:
            client = RemoteMidrun(self._url, token, patience=30.0)
            self._clients[token] = await self._stack.enter_async_context(client)
        return self._clients[token]

    def __getattr__(self, name: str) -> object:
        if not hasattr(RemoteMidrun, name):
            return getattr(self._mid, name)

        async def call(*args: object, **kwargs: object) -> object:
            remote = await self.client_for(cast("ActorLike", kwargs.get("actor")))
            result = await getattr(remote, name)(*args, **kwargs)
            return ActorRun(result, self) if isinstance(result, RemoteRun) else result

        return call


class ActorRun:
    """A `Run` over HTTP with one client for each actor."""

    def __init__(self, run: RemoteRun, mid: ActorMidrun) -> None:
        self.id = run.id
        self._run = run
        self._actor_midrun = mid
        self._service = mid._mid._service  # tests read the journal through it

    def feed(self, after: int = 0) -> AsyncGenerator[FeedItem, None]:
        """Return the feed of the run."""
        return self._run.feed(after)

    def events(self, after: int = 0) -> AsyncGenerator[RunEvent, None]:
        """Return the events of the run."""
        return self._run.events(after)

    def __getattr__(self, name: str) -> Method:
        async def call(*args: object, **kwargs: object) -> object:
            remote = await self._actor_midrun.client_for(cast("ActorLike", kwargs.get("actor")))
            result = await getattr(RemoteRun(self.id, remote._transport), name)(*args, **kwargs)
            return (
                ActorRun(result, self._actor_midrun)
                if isinstance(result, RemoteRun)
                else result
            )

        return call
