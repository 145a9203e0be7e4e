"""Errands: what a blocking function is to do in a process of its own, and what came of it."""

from collections.abc import Coroutine
from inspect import isasyncgen, isawaitable, isgenerator
from typing import Literal, TypeAlias

from msgspec import Struct

from midrun.core.values import Json

ErrandForm: TypeAlias = Literal["tool", "hook"]
"""A tool's own function; or its undo, release or check."""


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
    form: ErrandForm
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
    """It raised an exception of the type `kind`, or it could not be found or started.

    `not_found` says that its module cannot be imported, or lacks the function: a fault of the
    program, which no other arguments can mend.
    """

    kind: str
    message: str
    not_found: bool = False


class Asked(Struct, frozen=True, kw_only=True, tag="asked"):
    """It called `pause_here`."""

    question: str
    data: dict[str, Json]
    continuation: Json = None


class Died(Struct, frozen=True, kw_only=True):
    """Its process ended without an answer: by `signal`, or with `exit_code`.

    If it has not even `started`, it had no effect; otherwise nobody can say.
    """

    signal: int = 0
    exit_code: int = 0
    started: bool = True
    detail: str = ""


def unrun(value: object, form: ErrandForm) -> Raised | None:
    """Return that what was meant to happen has not: `value` is code that nobody will run.

    A coroutine; and of a hook, whose result is of no use, also a generator.
    """
    if isinstance(value, Coroutine):
        value.close()
    if isawaitable(value):
        return Raised(kind="TypeError", message="it returned a coroutine; make it an async def")
    if form == "hook" and (isgenerator(value) or isasyncgen(value)):
        return Raised(kind="TypeError", message="it returned a generator; drop its yield")
    return None


Answer: TypeAlias = Returned | NotDone | Raised | Asked
"""What the child itself can say."""

Outcome: TypeAlias = Answer | Died
