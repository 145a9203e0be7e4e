"""Ids and numbers that must not be mistaken for one another.

Ids inside a run are counted, not drawn: the n-th call of a run is `c<n>` wherever the journal
is folded, so a key that was handed to the outside world is the same on every machine.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Final, NewType

RunId = NewType("RunId", str)
CallId = NewType("CallId", str)
AskId = NewType("AskId", str)
FrameId = NewType("FrameId", str)
Seq = NewType("Seq", int)
Epoch = NewType("Epoch", int)
Micros = NewType("Micros", int)
"""Microseconds since 1970 by the store's clock: fits a JSON number for two centuries more."""

START: Final = Seq(0)
SECOND: Final = 1_000_000
_DIGITS: Final = 9
FAR: Final = Micros(2**53 - 1)
"""Later than any clock, and the largest number that every JSON reader agrees on."""


def later(now: Micros, by: float) -> Micros:
    """Return the moment `by` microseconds after `now`, or never."""
    return Micros(min(int(min(now + by, FAR)), FAR))


def call_id(number: int) -> CallId:
    """Return the id of the `number`-th call of a run, counted from 1."""
    return CallId(f"c{number}")


def ask_id(number: int) -> AskId:
    """Return the id of the `number`-th ask of a run, counted from 1."""
    return AskId(f"a{number}")


@lru_cache(maxsize=4096)  # every look at a call by its id comes through here
def number_of(call: str) -> int:
    """Return which call of its run `call` names, or 0 if it names none."""
    return _number(call, "c")


@lru_cache(maxsize=256)
def ask_number(ask: str) -> int:
    """Return which ask of its run `ask` names, or 0 if it names none."""
    return _number(ask, "a")


def _number(name: str, letter: str) -> int:
    digits = name[1:]
    known = name[:1] == letter and digits.isdecimal() and len(digits) <= _DIGITS
    number = int(digits) if known else 0
    return number if f"{letter}{number}" == name else 0  # "c02" is nobody's id


def call_key(run: RunId, call: CallId) -> str:
    """Return the idempotency key of `call`: the same for every attempt, in every process."""
    return _key("call", run, call)


def undo_key(run: RunId, call: CallId, action: str) -> str:
    """Return the key under which `call` is undone or released; never equal to its call key."""
    return _key(action, run, call)


def child_id(run: RunId, call: CallId) -> RunId:
    """Return the id of the child run of `call`, so that a retry finds the first one."""
    return RunId("run_" + _key("child", run, call)[:22])


def _key(purpose: str, run: RunId, call: CallId) -> str:
    return sha256(f"{purpose}\n{run}\n{call}".encode()).hexdigest()[:32]


# Dates: a store's microseconds as a date in UTC, and back. No clock is asked.

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO: Final = timedelta(microseconds=1)


def date_of(at: Micros) -> datetime:
    """Return the date of a moment, to the microsecond."""
    return _EPOCH + at * _MICRO


def micros_of(date: datetime) -> Micros:
    """Return the moment of a date, which must know its time zone."""
    return Micros((date - _EPOCH) // _MICRO)
