"""Follower cursors and push targets in memory, and the checks that all stores make on them."""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from anyio.lowlevel import checkpoint

from midrun.core.ids import SEQ_ZERO, Micros, RunId, Seq
from midrun.core.values import RESTING_PHASES
from midrun.errors import RunNotFound
from midrun.ports.environment import Clock
from midrun.ports.follower_cursors import NOTE_MAX_CHARS, FollowerCursor
from midrun.ports.push_targets import (
    TARGET_BODY_MAX_BYTES,
    TARGET_ID_MAX_CHARS,
    PushTarget,
)
from midrun.ports.store import RunRow
from midrun.stores import validation
from midrun.stores.encryption import PayloadCipher


def check_cursor(follower: str, cursor: FollowerCursor) -> None:
    """Refuse a cursor that no store can keep."""
    check_follower_name(follower)
    validation.check_run_id(cursor.run)
    validation.check_text("note", cursor.note)
    if cursor.seq < 0 or len(cursor.note) > NOTE_MAX_CHARS:
        raise ValueError(
            f"Cannot store the cursor of run {cursor.run}: seq must be 0 or more, got "
            f"{cursor.seq};"
            f" note must have at most {NOTE_MAX_CHARS} characters, got {len(cursor.note)}."
        )


def check_follower_name(follower: str) -> None:
    """Refuse a follower without a name."""
    validation.check_text("follower", follower)
    if not follower:
        raise ValueError("follower must not be empty")


class MemoryFollowerCursors:
    """Keep cursors in dictionaries; `rows` returns all runs, oldest first."""

    def __init__(self, rows: Callable[[], Iterable[RunRow]], clock: Clock) -> None:
        self._rows = rows
        self._clock = clock
        self._leaders: dict[str, tuple[str, int]] = {}
        self._cursors: dict[tuple[str, RunId], FollowerCursor] = {}

    async def acquire_leadership(self, follower: str, *, holder: str, ttl: timedelta) -> bool:
        await checkpoint()
        check_follower_name(follower)
        ttl_micros = validation.check_heartbeat(holder, ttl, 0.0)
        # A new follower starts at the end of every run that exists now: it reports what happens
        # from here on.
        if follower not in self._leaders:
            for row in self._rows():
                self._cursors[follower, row.run] = FollowerCursor(run=row.run, seq=row.seq)
        now = self._clock()
        # Leadership is a lease with an expiry. It may be renewed by its holder at any time, and
        # taken by another process once it has expired.
        leader, expires_at = self._leaders.get(follower, ("", 0))
        if leader not in {"", holder} and now < expires_at:
            return False
        self._leaders[follower] = (holder, now + ttl_micros)
        return True

    async def release_leadership(self, follower: str, *, holder: str) -> None:
        await checkpoint()
        if self._leaders.get(follower, ("", 0))[0] == holder:
            self._leaders[follower] = ("", 0)

    async def list_behind(self, follower: str, *, limit: int) -> Sequence[FollowerCursor]:
        await checkpoint()
        check_follower_name(follower)
        grown = (
            (row.changed_at, number, row)
            for number, row in enumerate(self._rows())
            if row.head.phase in RESTING_PHASES
            and row.seq > self._find_cursor(follower, row.run).seq
        )
        oldest = sorted(grown, key=_get_sort_key)[: validation.clamp_limit(limit)]
        return [self._find_cursor(follower, row.run) for _, _, row in oldest]

    async def get_cursor(self, follower: str, run: RunId) -> FollowerCursor:
        await checkpoint()
        check_follower_name(follower)
        self._check_run_exists(run)
        return self._find_cursor(follower, run)

    async def advance_cursor(self, follower: str, cursor: FollowerCursor) -> None:
        await checkpoint()
        check_cursor(follower, cursor)
        self._check_run_exists(cursor.run)
        if cursor.seq >= self._find_cursor(follower, cursor.run).seq:
            self._cursors[follower, cursor.run] = cursor

    def remove_run(self, run: RunId) -> None:
        """Remove the cursors of all followers in a deleted run."""
        for key in [key for key in self._cursors if key[1] == run]:
            del self._cursors[key]

    def _find_cursor(self, follower: str, run: RunId) -> FollowerCursor:
        return self._cursors.get((follower, run)) or FollowerCursor(run=run, seq=Seq(SEQ_ZERO))

    def _check_run_exists(self, run: RunId) -> None:
        if not any(row.run == run for row in self._rows()):
            raise RunNotFound(run)


def _get_sort_key(found: tuple[Micros, int, RunRow]) -> tuple[Micros, int]:
    return found[:2]


def check_push_target(run: RunId, target: PushTarget) -> None:
    """Refuse a push target that no store can keep."""
    validation.check_run_id(run)
    validation.check_text("id", target.id)
    if not 0 < len(target.id) <= TARGET_ID_MAX_CHARS:
        raise ValueError(f"id must have 1 to {TARGET_ID_MAX_CHARS} characters: {target.id!r}")
    if not 0 < len(target.body) <= TARGET_BODY_MAX_BYTES:
        problem = f"body must have 1 to {TARGET_BODY_MAX_BYTES} bytes, got {len(target.body)}"
        raise ValueError(problem)


class MemoryPushTargets:
    """Keep push targets in a dictionary."""

    def __init__(self, cipher: PayloadCipher) -> None:
        self._cipher = cipher
        self._bodies: dict[RunId, dict[str, bytes]] = {}

    async def put_target(self, run: RunId, target: PushTarget) -> None:
        await checkpoint()
        check_push_target(run, target)
        body = self._cipher.encrypt_target(run, target.body)
        self._bodies.setdefault(run, {})[target.id] = body

    async def list_targets(self, run: RunId) -> Sequence[PushTarget]:
        await checkpoint()
        return [
            PushTarget(id=name, body=self._cipher.decrypt_target(run, body))
            for name, body in sorted(self._bodies.get(run, {}).items())
        ]

    async def remove_target(self, run: RunId, target_id: str) -> None:
        await checkpoint()
        self._bodies.get(run, {}).pop(target_id, None)

    def remove_run(self, run: RunId) -> None:
        """Remove the targets of a deleted run."""
        self._bodies.pop(run, None)
