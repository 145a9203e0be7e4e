"""Staffing: the engine that a worker or a server drives with, and who is told of its runs."""

from argparse import Namespace
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Literal

from midrun.agents.agent import Agent
from midrun.cli.opening import check_file
from midrun.embed.midrun import Midrun
from midrun.engines.fleet import Fleet
from midrun.engines.placing import Placing
from midrun.errors import Misconfigured
from midrun.followers import Follower, following


def staffed(args: Namespace, agents: tuple[Agent, ...]) -> Midrun:
    """Return what drives the runs of `agents`; it is not open yet.

    Raises:
        Misconfigured: the engine's package is missing, or the folder of the store.
    """
    check_file(args.store, there=False)
    fleet = Fleet(
        limits=_limits("--limit", args.limit),
        here=_limits("--here", args.here),
        versions=args.versions,
    )
    return Midrun(args.store, agents=agents, engine=_engine(args), fleet=fleet, **args.keys)


def _limits(option: str, words: Iterable[str] | None) -> dict[str, int]:
    """Return limits by scope, as they are typed: `agent:clerk=10`.

    Raises:
        Misconfigured: one that is not written so.
    """
    limits: dict[str, int] = {}
    for word in words or ():
        scope, _, most = word.rpartition("=")
        if not most.isdecimal():
            problem = "write SCOPE=N: all=50, agent:clerk=10, label:gpu=2"
            raise Misconfigured(f"{option} {word}", problem)
        limits[scope] = int(most)
    return limits


def _engine(args: Namespace) -> Literal["local"] | Placing | None:
    if args.engine == "none":
        return None
    if args.engine == "local":
        return "local"
    try:
        from midrun.engines.temporal import Temporal  # noqa: PLC0415 - needs its extra
    except ImportError as error:
        problem = f"install midrun[temporal] ({error})"
        raise Misconfigured("--engine temporal", problem) from error
    return Temporal(args.temporal_address, namespace=args.temporal_namespace)


@asynccontextmanager
async def followed(args: Namespace, midrun: Midrun) -> AsyncIterator[None]:
    """Open `midrun`, and tell whoever wants to know what happens to its runs.

    Raises:
        Misconfigured: an address or a secret that will not do, or a missing package.
    """
    followers = _followers(args, midrun)
    async with midrun, following(midrun, *followers):
        yield


def _followers(args: Namespace, midrun: Midrun) -> list[Follower]:
    made: list[Follower] = []
    try:
        if args.webhook:
            from midrun.followers.webhooks import Webhook  # noqa: PLC0415 - needs its extra

            made += [Webhook(url, secret=args.webhook_secret) for url in args.webhook]
        if args.spans:
            from midrun.followers.spans import Spans  # noqa: PLC0415 - needs its extra

            made.append(Spans(midrun))
    except ImportError as error:
        problem = f"install midrun[client] for --webhook, midrun[otel] for --spans ({error})"
        raise Misconfigured("midrun", problem) from error
    return made
