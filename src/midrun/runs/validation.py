"""What callers give, checked where it comes in: a slip is named, and nothing has happened."""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, TypeAlias, TypedDict, cast, get_args

from midrun.agents.checkpoint import Checkpoint
from midrun.core.ids import SECOND, Micros, date_of, later, micros_of
from midrun.core.run_head import NAME_MAX_CHARS
from midrun.core.stops import CAP_MAX
from midrun.core.values import Actor, Phase, Role
from midrun.errors import Misconfigured

Moment: TypeAlias = datetime | timedelta
"""A time of the world's clock, or so long from now."""

_TRACEPARENT: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_MILLIONTHS: Final = frozenset({"cost", "time"})

WORDS: Final = r"[^\s\x1c-\x1f\x85]"
"""Found in text that says something, by Python and by JavaScript, whose spaces are not ours."""


LABELS_MAX: Final = 32
"""How many labels a run may have."""

REASON_MAX_CHARS: Final = 1_000

SCOPE_MAX_CHARS: Final = len("agent:") + NAME_MAX_CHARS


def text(name: str, value: object) -> str:
    """Return `value`, which must be text that can be stored.

    Raises:
        Misconfigured: it is something else, or half of a character.
    """
    if not isinstance(value, str):
        raise Misconfigured(name, f"it is text; {type(value).__name__} was given")
    try:
        value.encode()
    except UnicodeEncodeError:
        problem = "it has half of a character (a lone surrogate), which cannot be stored"
        raise Misconfigured(name, problem) from None
    return value


def name(of: str, value: object, most: int = NAME_MAX_CHARS) -> str:
    """Return `value`, which must be short text that every store can index.

    Raises:
        Misconfigured: it is something else, is longer than `most` characters, or has a
            character that Postgres does not keep.
    """
    if "\0" in (checked := text(of, value)):
        raise Misconfigured(of, "it has the character NUL, by which nothing can be found")
    if len(checked) > most:
        problem = (
            f"must have at most {most} characters, got {len(checked)}; put long text elsewhere"
        )
        raise Misconfigured(of, problem)
    return checked


def labels(value: object) -> tuple[str, ...]:
    """Return `value`, which must be a list of at most `LABELS_MAX` names; None is empty.

    Raises:
        Misconfigured: it is one string, there are too many, or one of them is not a name.
    """
    if isinstance(value, str) or not isinstance(value, Iterable | None):
        raise Misconfigured("labels", f"must be a list of str, got {value!r}; write labels=[…]")
    checked = tuple(name("labels", label) for label in value or ())
    if len(checked) > LABELS_MAX:
        raise Misconfigured("labels", f"must be at most {LABELS_MAX}, got {len(checked)}")
    return checked


def scope(value: object) -> str:
    """Return `value`, which must say what a latch is to cover.

    Raises:
        Misconfigured: it would cover nothing.
    """
    kind, _, which = name("scope", value, SCOPE_MAX_CHARS).partition(":")
    if value != "all" and not (kind in {"agent", "label", "run"} and which):
        raise Misconfigured("scope", "say all, agent:NAME, label:LABEL or run:ID")
    return name("scope", value, SCOPE_MAX_CHARS)


def whole(of: str, value: object) -> int:
    """Return `value`, which must be a whole number.

    Raises:
        Misconfigured: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise Misconfigured(of, f"it is a whole number; {value!r} was given")
    return value


def count(of: str, value: object) -> int:
    """Return `value`, which must be a number from 1.

    Raises:
        Misconfigured: it is something else.
    """
    if whole(of, value) < 1:
        raise Misconfigured(of, f"it is a number from 1; {value!r} was given")
    return whole(of, value)


def task(value: object) -> str:
    """Return `value`, which must be text that says something.

    Raises:
        Misconfigured: it is something else, or empty.
    """
    if not re.search(WORDS, text("task", value)):
        raise Misconfigured("task", "it is empty; say what is to be done")
    return text("task", value)


def checkpoint(value: object) -> Checkpoint:
    """Return `value`, which must be a checkpoint.

    Raises:
        Misconfigured: it is something else, such as the text that one was stored as.
    """
    if isinstance(value, Checkpoint):
        return value
    if isinstance(value, str | bytes):
        raise Misconfigured("checkpoint", "it is its text; pass Checkpoint.from_json(text)")
    raise Misconfigured("checkpoint", f"it is a Checkpoint; {type(value).__name__} was given")


def traceparent(value: object) -> str:
    """Return `value`, which must be a W3C traceparent, or nothing.

    Raises:
        Misconfigured: it is something else.
    """
    if value and not _TRACEPARENT.fullmatch(text("trace", value)):
        raise Misconfigured("trace", "it is a W3C traceparent: 00-TRACE-SPAN-FLAGS, in hex")
    return text("trace", value)


def span(name: str, value: object) -> float:
    """Return a time to wait in microseconds.

    Raises:
        Misconfigured: it is no timedelta, or not more than nothing.
    """
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise Misconfigured(name, "it is a time to wait: timedelta(minutes=1)")
    return value.total_seconds() * SECOND


def moment(name: str, value: object, now: Micros) -> Micros:
    """Return the time that is meant.

    Raises:
        Misconfigured: it is neither a datetime with its time zone nor a timedelta.
    """
    if isinstance(value, timedelta):
        return later(now, value.total_seconds() * SECOND)
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise Misconfigured(name, "say timedelta(hours=1), or a datetime with its time zone")
    return micros_of(value)


def said(at: Micros) -> str:
    """Return a time as text that `datetime.fromisoformat` reads."""
    return date_of(at).isoformat()


def counted(caps: dict[str, float]) -> dict[str, int]:
    """Return caps as the journal counts them: money and time in millionths.

    Raises:
        Misconfigured: one is not a number that one can count to.
    """
    made = {}
    for name, value in caps.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Misconfigured(f"cap {name}", f"it is a number; {value!r} was given")
        if not 0 <= value <= CAP_MAX:  # NaN is not, either
            problem = f"it must be between 0 and {CAP_MAX:,}, got {value}"
            raise Misconfigured(f"cap {name}", problem)
        made[name] = round(value * SECOND) if name in _MILLIONTHS else round(value)
    return made


# Asking: who asks, why, and in which words. The same for every handle.

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
