"""Actors: who asks, as programs that embed midrun name them."""

from typing import TypeAlias, cast, get_args

from midrun.core.values import Actor, Role

Who: TypeAlias = str | Actor | None
"""A name, a role and a name (`operator:olga`), or a whole actor; None is the plain user."""

_ROLES = get_args(Role)


def actor_of(who: Who) -> Actor:
    """Return the actor that `who` names. A program that embeds midrun is trusted with roles."""
    if who is None:
        return Actor()
    if isinstance(who, Actor):
        return who
    role, colon, name = who.partition(":")
    if not colon or role not in _ROLES:
        return Actor(name=who)
    return Actor(name=who if role == "system" else name, role=cast("Role", role))
