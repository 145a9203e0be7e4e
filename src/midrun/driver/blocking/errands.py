"""Errands: what a blocking function is to do in a process of its own, and what came of it."""

from collections.abc import Coroutine
from typing import Literal, TypeAlias

from msgspec import Struct

from midrun.core.values import Json


class CallFacts(Struct, frozen=True, kw_only=True):
    """What the child needs to build the `Call` that a tool or hook is given."""

    key: str
    run_id: str
    epoch: int
    attempt: int
    progress: Json = None
    original: str = ""


class Errand(Struct, frozen=True, kw_only=True):
    """One function to be run.

    `target` is its place, "module:qualname". A tool gets `args` as its model gave them, parsed
    there; a hook gets the call and then the items of the list `args`: [args] or [args, result].
    """

    target: str
    form: Literal["tool", "hook"]
    args: Json
    call: CallFacts


class Returned(Struct, frozen=True, kw_only=True, tag="returned"):
    """It came to its end. The effect has happened, also where the result is not JSON.

    Then `problem` says what is wrong with it, and `shown` describes it in words.
    """

    value: Json = None
    problem: str = ""
    shown: str = ""


class NotDone(Struct, frozen=True, kw_only=True, tag="not_done"):
    """A `check` hook returned NOT_DONE: the call it looked into took no effect."""


class Raised(Struct, frozen=True, kw_only=True, tag="raised"):
    """It raised an exception of the type `kind`, or it could not be found or started."""

    kind: str
    message: str


class Asked(Struct, frozen=True, kw_only=True, tag="asked"):
    """It called `pause_here`."""

    question: str
    data: dict[str, Json]


class Died(Struct, frozen=True, kw_only=True):
    """Its process ended without an answer: by `signal`, or with `exit_code`.

    If it has not even `started`, it had no effect; otherwise nobody can say.
    """

    signal: int = 0
    exit_code: int = 0
    started: bool = True
    detail: str = ""


def unawaited(value: object) -> Raised:
    """Return that a function gave back something to await, which nobody will; close it."""
    if isinstance(value, Coroutine):
        value.close()
    return Raised(kind="TypeError", message="it returned a coroutine; make it an async def")


Answer: TypeAlias = Returned | NotDone | Raised | Asked
"""What the child itself can say."""

Outcome: TypeAlias = Answer | Died
