"""Checks and conversions of the arguments that callers pass to `Midrun` and `Run`.

Each function takes the value as `object`, because a caller without a type checker may pass
anything. It returns the checked value, or raises `Misconfigured` with the name of the argument,
the expected form and the value. The handles call these functions before they read or append
anything, so a wrong argument never leaves a half-done change. `midrun.client` uses the same
functions, so both handles refuse the same arguments with the same text.
"""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, TypeAlias, TypedDict, cast, get_args

from midrun.agents.checkpoint import Checkpoint
from midrun.agents.file import File, check_files
from midrun.core.ids import (
    MICROS_PER_SECOND,
    Micros,
    add_micros,
    datetime_to_micros,
)
from midrun.core.run_head import NAME_MAX_CHARS
from midrun.core.stops import CAP_MAX
from midrun.core.values import TERMINAL_PHASES, Actor, Phase, Role
from midrun.errors import Misconfigured
from midrun.runs.values import RunSelection

TimeLike: TypeAlias = datetime | timedelta
"""A point in time (a `datetime` with a time zone), or a `timedelta` from now."""

_TRACEPARENT: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_SCALED_CAPS: Final = frozenset({"cost", "time"})
"""Caps that callers give in dollars and seconds and the journal counts in millionths."""

NON_SPACE_PATTERN: Final = r"[^\s\x1c-\x1f\x85]"
"""Matches a character that is not white space. The page uses the pattern, too: U+001C-U+001F
and U+0085 are white space for Python's `\\s`, but not for JavaScript's, so they are listed."""


LABELS_MAX: Final = 32
"""The number of labels that a run may have."""

REASON_MAX_CHARS: Final = 1_000

SCOPE_MAX_CHARS: Final = len("agent:") + NAME_MAX_CHARS


def check_text(name: str, value: object) -> str:
    """Return `value` if it is a str that can be stored.

    Raises:
        Misconfigured: It is not a str, or has a lone surrogate, which UTF-8 cannot encode.
    """
    if not isinstance(value, str):
        raise Misconfigured(name, f"must be a str, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        problem = "must be valid Unicode, got a lone surrogate (half of a character)"
        raise Misconfigured(name, problem) from None
    return value


def check_name(argument: str, value: object, max_chars: int = NAME_MAX_CHARS) -> str:
    """Return `value` if it is a short str that every store can index.

    Raises:
        Misconfigured: It is not a str, is longer than `max_chars`, or has the character NUL,
            which Postgres cannot store.
    """
    if "\0" in (checked := check_text(argument, value)):
        raise Misconfigured(argument, "must not contain the character NUL")
    if len(checked) > max_chars:
        problem = (
            f"must have at most {max_chars} characters, got {len(checked)}; put long text "
            "elsewhere"
        )
        raise Misconfigured(argument, problem)
    return checked


SEARCH_MAX_CHARS: Final = 500
"""The length of a search over runs."""


def check_search(value: object) -> str:
    """Return the text to search for; "" for None.

    Raises:
        Misconfigured: It is not a str, or too long.
    """
    text = check_text("search", "" if value is None else value)
    if len(text) > SEARCH_MAX_CHARS:
        problem = f"must have at most {SEARCH_MAX_CHARS} characters, got {len(text)}"
        raise Misconfigured("search", problem)
    return text


def check_labels(value: object) -> tuple[str, ...]:
    """Return `value` as a tuple if it is a list of at most `LABELS_MAX` names.

    None means no labels.

    Raises:
        Misconfigured: It is one str, has too many labels, or one of them is not a name.
    """
    # A str is an iterable of str: "urgent" would become six labels.
    if isinstance(value, str) or not isinstance(value, Iterable | None):
        raise Misconfigured("labels", f"must be a list of str, got {value!r}; write labels=[…]")
    checked = tuple(check_name("labels", label) for label in value or ())
    if len(checked) > LABELS_MAX:
        raise Misconfigured("labels", f"must be at most {LABELS_MAX}, got {len(checked)}")
    return checked


def check_scope(value: object) -> str:
    """Return `value` if it is the scope of a halt.

    Raises:
        Misconfigured: It has another form. A halt with such a scope would cover nothing.
    """
    kind, _, which = check_name("scope", value, SCOPE_MAX_CHARS).partition(":")
    if value != "all" and not (kind in {"agent", "label", "run"} and which):
        problem = f"must be all, agent:NAME, label:LABEL or run:ID, got {value!r}"
        raise Misconfigured("scope", problem)
    return check_name("scope", value, SCOPE_MAX_CHARS)


def check_int(argument: str, value: object) -> int:
    """Return `value` if it is an int and not a bool.

    Raises:
        Misconfigured: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise Misconfigured(argument, f"must be an int, got {value!r}")
    return value


def check_positive_int(argument: str, value: object) -> int:
    """Return `value` if it is an int of at least 1.

    Raises:
        Misconfigured: It is not.
    """
    if check_int(argument, value) < 1:
        raise Misconfigured(argument, f"must be an int >= 1, got {value!r}")
    return check_int(argument, value)


def check_files_of(text: str, files: object) -> tuple[File, ...]:
    """Return the files of an instruction that may be empty.

    Raises:
        Misconfigured: They are not files, or there is no text that explains them.
    """
    found = check_files(files)
    if found and not text.strip():
        raise Misconfigured("files", "must come with an instruction; say what they are for")
    return found


def check_task(value: object) -> str:
    """Return `value` if it is a str with more than white space in it.

    Raises:
        Misconfigured: It is not.
    """
    if not re.search(NON_SPACE_PATTERN, check_text("task", value)):
        raise Misconfigured("task", "must not be empty; describe the work")
    return check_text("task", value)


def check_checkpoint(value: object) -> Checkpoint:
    """Return `value` if it is a `Checkpoint`.

    Raises:
        Misconfigured: It is something else, for example the JSON text of a checkpoint.
    """
    if isinstance(value, Checkpoint):
        return value
    kind = type(value).__name__
    if isinstance(value, str | bytes):
        problem = f"must be a Checkpoint, got {kind}; pass Checkpoint.from_json(text)"
        raise Misconfigured("checkpoint", problem)
    raise Misconfigured("checkpoint", f"must be a Checkpoint, got {kind}")


def check_traceparent(value: object) -> str:
    """Return `value` if it is a W3C traceparent or "".

    Raises:
        Misconfigured: It is something else.
    """
    if value and not _TRACEPARENT.fullmatch(check_text("trace", value)):
        problem = f"must be a W3C traceparent (00-TRACE-SPAN-FLAGS, in hex), got {value!r}"
        raise Misconfigured("trace", problem)
    return check_text("trace", value)


def convert_to_micros(name: str, value: object) -> float:
    """Return a positive timedelta in microseconds.

    Raises:
        Misconfigured: It is not a timedelta, or not positive.
    """
    if not isinstance(value, timedelta) or value <= timedelta(0):
        problem = f"must be a positive timedelta, as timedelta(minutes=1), got {value!r}"
        raise Misconfigured(name, problem)
    return value.total_seconds() * MICROS_PER_SECOND


def convert_time(name: str, value: object, now: Micros) -> Micros:
    """Return a datetime, or a timedelta after `now`, in microseconds since 1970.

    Raises:
        Misconfigured: It is neither, or the datetime has no time zone.
    """
    if isinstance(value, timedelta):
        return add_micros(now, value.total_seconds() * MICROS_PER_SECOND)
    if not isinstance(value, datetime) or value.tzinfo is None:
        problem = f"must be a timedelta or a datetime with a time zone, got {value!r}"
        raise Misconfigured(name, problem)
    return datetime_to_micros(value)


def convert_caps(caps: dict[str, float]) -> dict[str, int]:
    """Convert caps to the units of the journal: cost and time in millionths.

    Raises:
        Misconfigured: A cap is not a finite number >= 0, or is larger than `CAP_MAX`.
    """
    converted = {}
    for name, value in caps.items():
        where, problem = f"caps[{name!r}]", "must be a finite number >= 0"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Misconfigured(where, f"{problem}, got {value!r}")
        if not 0 <= value <= CAP_MAX:  # also true for NaN: every comparison with it is False
            if value > CAP_MAX:
                problem = f"must be at most {CAP_MAX:,}"
            raise Misconfigured(where, f"{problem}, got {value}")
        converted[name] = (
            round(value * MICROS_PER_SECOND) if name in _SCALED_CAPS else round(value)
        )
    return converted


# The keyword arguments that all control methods share.

ActorLike: TypeAlias = str | Actor | None
"""The actor of a control: a name, `role:name` (`operator:olga`), an `Actor`, or None for the
default actor `user`."""

_ROLES = get_args(Role)


def parse_actor(actor: ActorLike) -> Actor:
    """Return the actor for a name, `role:name`, an `Actor` or None.

    The role is taken from the text as it is: a program that has the store open is trusted.
    Over HTTP the role comes from the token instead.

    Raises:
        Misconfigured: The name is not a str, or is too long.
    """
    if actor is None:
        return Actor()
    if isinstance(actor, Actor):
        check_name("actor", actor.name)
        check_tenant(actor.tenant)
        return actor
    role, colon, rest = check_name("actor", actor).partition(":")
    if not colon or role not in _ROLES:
        return Actor(name=actor)  # a name may have a colon in it, such as "team:ada"
    # Actors of the runtime keep their prefix, so that no user name can look like one.
    return Actor(name=actor if role == "system" else rest, role=cast("Role", role))


def check_tenant(tenant: str | None) -> str | None:
    """Check the name of a tenant, if one is given; "" is the default tenant.

    Raises:
        Misconfigured: It is no name, or `*`, which stands for all tenants in a store.
    """
    if tenant is None:
        return None
    if tenant == "*":
        raise Misconfigured("tenant", "must be a name, got '*'; leave it out for all tenants")
    return check_name("tenant", tenant)


def choose_tenant(tenant: str | None, actor: Actor) -> str:
    """Return the tenant of a run that `actor` starts: the given one, or the actor's.

    Raises:
        Misconfigured: The actor belongs to another tenant.
    """
    given = check_tenant(tenant)
    if actor.tenant and given not in {None, actor.tenant}:
        problem = f"must be {actor.tenant}, the tenant of {actor.name}, got {given!r}"
        raise Misconfigured("tenant", problem)
    return check_tenant(actor.tenant if given is None else given) or ""


def restrict_tenant(tenant: str | None, actor: Actor) -> str | None:
    """Return the tenant that an action of `actor` is restricted to; None: to none.

    Raises:
        Misconfigured: The actor belongs to another tenant.
    """
    return choose_tenant(tenant, actor) if actor.tenant else check_tenant(tenant)


class ControlOptions(TypedDict, total=False):
    """The keyword arguments that all control methods share; `Run` describes them."""

    actor: ActorLike
    reason: str | None
    request_id: str | None
    seen: int | None


class SelectionOptions(TypedDict, total=False):
    """The keyword arguments that select runs to delete; `Midrun.delete_runs` describes them."""

    thread: str | None
    user: str | None
    agent: str | None
    label: str | None
    tenant: str | None
    older_than: timedelta | None


def parse_phase(name: str) -> Phase:
    """Return the phase with this name.

    Raises:
        Misconfigured: There is none. The text lists all phases.
    """
    if name in set(Phase):
        return Phase(name)
    raise Misconfigured("phase", f"must be one of {', '.join(Phase)}, got {name!r}")


WAIT_ENDING_PHASES: Final = TERMINAL_PHASES | {Phase.FAILED}
"""Phases in which `until` stops to wait: a run leaves them by a control or not at all."""


def parse_awaited_phases(names: tuple[str, ...]) -> frozenset[Phase]:
    """Return the phases that `until` waits for; "terminal" stands for two of them.

    Raises:
        Misconfigured: There is no name, or a name is not one of a phase.
    """
    if not names:
        problem = 'Cannot wait: no phase was given. Name one: until("paused").'
        raise Misconfigured("until", problem)
    phases = frozenset(parse_phase(name) for name in names if name != "terminal")
    return phases | TERMINAL_PHASES if "terminal" in names else phases


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Check that `value` is one of `choices`.

    Raises:
        Misconfigured: It is not.
    """
    if value not in choices:
        raise Misconfigured(name, f"must be {' or '.join(choices)}, got {value!r}")


def make_selection(
    *,
    thread: str | None = None,
    user: str | None = None,
    agent: str | None = None,
    label: str | None = None,
    tenant: str | None = None,
    older_than: timedelta | None = None,
) -> RunSelection:
    """Check the arguments of a deletion and return them as a selection.

    Raises:
        Misconfigured: nothing is selected, or a value has the wrong type.
    """
    age: object = older_than
    if age is not None and not (isinstance(age, timedelta) and age >= timedelta()):
        raise Misconfigured("older_than", f"must be a timedelta of 0 or more, got {age!r}")
    selection = RunSelection(
        thread=check_name("thread", thread or ""),
        user=check_name("user", user or ""),
        agent=check_name("agent", agent or ""),
        label=check_name("label", label or ""),
        tenant=check_tenant(tenant),
        older_than=None if older_than is None else older_than.total_seconds(),
    )
    check_selection(selection)
    return selection


def check_selection(selection: RunSelection) -> None:
    """Refuse a selection of all runs, or of runs of the future.

    Raises:
        Misconfigured: it is one.
    """
    if selection.older_than is not None and selection.older_than < 0:
        raise Misconfigured("older_than", f"must be 0 or more, got {selection.older_than}")
    if selection == RunSelection():
        problem = (
            "Cannot delete all runs by default. Name thread, user, agent, label, tenant or "
            "older_than; older_than=timedelta(0) selects all runs that have ended."
        )
        raise Misconfigured("delete_runs", problem)
