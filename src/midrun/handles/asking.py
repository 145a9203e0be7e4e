"""Asking: who asks, why, and in which words. The same for every handle."""

from typing import TypeAlias, TypedDict, cast, get_args

from midrun.core.values import Actor, Phase, Role
from midrun.errors import Misconfigured
from midrun.handles.given import name

Who: TypeAlias = str | Actor | None
"""A name, a role and a name (`operator:olga`), or a whole actor; None is the plain user."""

_ROLES = get_args(Role)


def actor_of(who: Who) -> Actor:
    """Return the actor that `who` names. A program that embeds midrun is trusted with roles.

    Raises:
        Misconfigured: the name is no text, or too long.
    """
    if who is None:
        return Actor()
    if isinstance(who, Actor):
        name("actor", who.name)
        return who
    role, colon, rest = name("actor", who).partition(":")
    if not colon or role not in _ROLES:
        return Actor(name=who)
    return Actor(name=who if role == "system" else rest, role=cast("Role", role))


class Asking(TypedDict, total=False):
    """Who asks, why, and under which request id: a repeat of it is applied only once.

    `seen` is the `control_rev` of the view that it is about: if anybody asked something since,
    or the phase is another, it is refused as `stale_revision`.
    """

    actor: Who
    reason: str | None
    request_id: str | None
    seen: int | None


def phase_of(word: str) -> Phase:
    """Return the phase of that name.

    Raises:
        Misconfigured: there is none; the text has all ten.
    """
    if word in set(Phase):
        return Phase(word)
    raise Misconfigured(f"phase {word!r}", f"the phases are {', '.join(Phase)}")


def one_of(name: str, word: str, words: tuple[str, ...]) -> None:
    """Refuse a word that means nothing.

    Raises:
        Misconfigured: it is none of `words`.
    """
    if word not in words:
        raise Misconfigured(f"{name} {word!r}", f"say {' or '.join(words)}")
