"""Ids, sequence numbers and times, each with a type of its own.

Ids inside a run are counted, not random: the n-th call of a run is `c<n>` in every process that
folds the journal. Idempotency keys and ids of child runs are hashes of these ids. A retry on
another machine therefore sends the same key and finds the same child run.
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
"""Microseconds since 1970 by the store's clock. Fits into 53 bits until the year 2255."""

SEQ_ZERO: Final = Seq(0)
"""The position before the first entry; also the default for "has not happened"."""

MICROS_PER_SECOND: Final = 1_000_000
_NUMBER_MAX_DIGITS: Final = 9
MICROS_MAX: Final = Micros(2**53 - 1)
"""Later than any clock, and the largest integer that a JavaScript reader represents exactly."""


def add_micros(now: Micros, micros: float) -> Micros:
    """Return the time `micros` microseconds after `now`, at most `MICROS_MAX`."""
    return Micros(
        min(int(min(now + micros, MICROS_MAX)), MICROS_MAX)
    )  # the inner `min`: int(inf) would raise


@lru_cache(maxsize=4096)  # each is asked for several times, and then parsed
def make_call_id(number: int) -> CallId:
    """Return the id of the `number`-th call of a run, counted from 1."""
    return CallId(f"c{number}")


def make_ask_id(number: int) -> AskId:
    """Return the id of the `number`-th ask of a run, counted from 1."""
    return AskId(f"a{number}")


@lru_cache(maxsize=4096)  # every lookup of a call by its id goes through here
def parse_call_number(call: str) -> int:
    """Return the number in the id of a call, or 0 if it is not the id of a call."""
    return _parse_number(call, "c")


@lru_cache(maxsize=256)
def parse_ask_number(ask: str) -> int:
    """Return the number in the id of an ask, or 0 if it is not the id of an ask."""
    return _parse_number(ask, "a")


def _parse_number(name: str, letter: str) -> int:
    digits = name[1:]
    known = name[:1] == letter and digits.isdecimal() and len(digits) <= _NUMBER_MAX_DIGITS
    number = int(digits) if known else 0
    return number if f"{letter}{number}" == name else 0  # refuses "c02", too


def make_call_key(run: RunId, call: CallId) -> str:
    """Return the idempotency key of `call`: the same for every attempt, in every process."""
    return _hash_key("call", run, call)


def make_undo_key(run: RunId, call: CallId, action: str) -> str:
    """Return the idempotency key for the undo or release of `call`."""
    return _hash_key(action, run, call)


def make_child_id(run: RunId, call: CallId) -> RunId:
    """Return the id of the child run of `call`; a retry finds the same run."""
    return RunId("run_" + _hash_key("child", run, call)[:22])


def _hash_key(purpose: str, run: RunId, call: CallId) -> str:
    return sha256(f"{purpose}\n{run}\n{call}".encode()).hexdigest()[:32]


# Conversion between the microseconds of a store and dates. No clock is read.

_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_MICROSECOND: Final = timedelta(microseconds=1)


def micros_to_datetime(at: Micros) -> datetime:
    """Return the date of `at` in UTC, to the microsecond."""
    return _UNIX_EPOCH + at * _ONE_MICROSECOND


def datetime_to_micros(date: datetime) -> Micros:
    """Return the time of a date, which must have a time zone."""
    return Micros((date - _UNIX_EPOCH) // _ONE_MICROSECOND)
