"""Follower cursors in memory, and the checks that all stores make on a cursor."""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from anyio.lowlevel import checkpoint

from midrun.core.ids import START, Micros, RunId, Seq
from midrun.core.values import RESTS
from midrun.errors import RunNotFound
from midrun.ports.environment import Clock
from midrun.ports.follower_cursors import NOTE_MAX, Mark
from midrun.ports.store import RunRow
from midrun.stores import validation


def check_mark(follower: str, mark: Mark) -> None:
    """Refuse a cursor that no store can keep."""
    check_follower(follower)
    validation.check_id(mark.run)
    validation.check_text("note", mark.note)
    if mark.seq < 0 or len(mark.note) > NOTE_MAX:
        raise ValueError(
            f"Cannot store the cursor of run {mark.run}: seq must be 0 or more, got {mark.seq};"
            f" note must have at most {NOTE_MAX} characters, got {len(mark.note)}."
        )


def check_follower(follower: str) -> None:
    """Refuse a follower without a name."""
    validation.check_text("follower", follower)
    if not follower:
        raise ValueError("follower must not be empty")


class MemoryMarks:
    """Keep cursors in dictionaries; `rows` returns all runs, oldest first."""

    def __init__(self, rows: Callable[[], Iterable[RunRow]], clock: Clock) -> None:
        self._rows = rows
        self._clock = clock
        self._places: dict[str, tuple[str, int]] = {}
        self._kept: dict[tuple[str, RunId], Mark] = {}

    async def attend(self, follower: str, *, holder: str, ttl: timedelta) -> bool:
        await checkpoint()
        check_follower(follower)
        ttl_micros = validation.check_beat(holder, ttl, 0.0)
        # A new follower starts at the end of every run that exists now: it reports what happens
        # from here on.
        if follower not in self._places:
            for row in self._rows():
                self._kept[follower, row.run] = Mark(run=row.run, seq=row.seq)
        now = self._clock()
        # Leadership is a lease with an expiry. It may be renewed by its holder at any time, and
        # taken by another process once it has expired.
        leader, expires_at = self._places.get(follower, ("", 0))
        if leader not in {"", holder} and now < expires_at:
            return False
        self._places[follower] = (holder, now + ttl_micros)
        return True

    async def leave(self, follower: str, *, holder: str) -> None:
        await checkpoint()
        if self._places.get(follower, ("", 0))[0] == holder:
            self._places[follower] = ("", 0)

    async def behind(self, follower: str, *, limit: int) -> Sequence[Mark]:
        await checkpoint()
        check_follower(follower)
        grown = (
            (row.changed_at, number, row)
            for number, row in enumerate(self._rows())
            if row.head.phase in RESTS and row.seq > self._mark(follower, row.run).seq
        )
        oldest = sorted(grown, key=_first_two)[: validation.bounded(limit)]
        return [self._mark(follower, row.run) for _, _, row in oldest]

    async def marked(self, follower: str, run: RunId) -> Mark:
        await checkpoint()
        check_follower(follower)
        self._find(run)
        return self._mark(follower, run)

    async def mark(self, follower: str, mark: Mark) -> None:
        await checkpoint()
        check_mark(follower, mark)
        self._find(mark.run)
        if mark.seq >= self._mark(follower, mark.run).seq:
            self._kept[follower, mark.run] = mark

    def _mark(self, follower: str, run: RunId) -> Mark:
        return self._kept.get((follower, run)) or Mark(run=run, seq=Seq(START))

    def _find(self, run: RunId) -> None:
        if not any(row.run == run for row in self._rows()):
            raise RunNotFound(run)


def _first_two(found: tuple[Micros, int, RunRow]) -> tuple[Micros, int]:
    return found[:2]
