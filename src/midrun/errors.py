"""Every error midrun raises, as one tree.

    MidrunError
    ├── ControlRefused         a control does not fit where the run stands
    ├── NotJson                user data that JSON cannot say
    ├── TooLarge               user data beyond its bound
    ├── CheckpointRefused      a checkpoint that must not be resumed
    ├── JournalCorrupt         a stored line that cannot be what was written
    ├── JournalTooNew          a stored line that newer code wrote
    └── StoreError             the store said no, and nothing was applied
        ├── RunNotFound        (also a LookupError)
        ├── RunExists
        ├── SeqConflict        somebody appended first: read and decide again
        ├── StaleEpoch         a newer lease holder exists: drop everything
        ├── LeaseHeld
        ├── HaltInForce
        ├── KindRefused        this writer may not append that kind of entry
        ├── CursorRefused      (also a ValueError)
        ├── StoreBusy          try again later
        ├── StoreFull          make room, then try again
        ├── StoreUnreachable   cannot be opened, or does not answer
        ├── StoreDamaged
        ├── StoreForeign       not ours, or of a newer version
        └── StoreClosed

`code` is stable and unique; branch on it or on the class, never on the text. All fields are in
`args`, so every error pickles. A pause is an entry, not an error.
"""

from typing import ClassVar


class MidrunError(Exception):
    """Base of everything that midrun raises on purpose."""

    code: ClassVar[str] = "midrun"


class ControlRefused(MidrunError):
    """The run stands where this control makes no sense; nothing was applied.

    `reason` is one of the names of the transition table, `allowed` says what can be asked
    instead, `by` and `seq` say who came first where somebody did.
    """

    code = "control_refused"

    def __init__(
        self,
        run: str,
        control: str,
        reason: str,
        phase: str,
        allowed: tuple[str, ...] = (),
        by: str = "",
        seq: int = 0,
    ) -> None:
        super().__init__(run, control, reason, phase, allowed, by, seq)
        self.run = run
        self.control = control
        self.reason = reason
        self.phase = phase
        self.allowed = allowed
        self.by = by
        self.seq = seq

    def __str__(self) -> str:
        first = f", first was {self.by} at seq {self.seq}" if self.by else ""
        instead = (
            f"possible now: {', '.join(self.allowed)}"
            if self.allowed
            else "nothing is possible now"
        )
        return (
            f"run {self.run}: {self.control} refused, {self.reason} "
            f"(the run is {self.phase}{first}); {instead}"
        )


class NotJson(MidrunError):
    """A value that cannot be stored as JSON and come back the same. `path` says where it is."""

    code = "not_json"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}; pass plain JSON data"


class TooLarge(MidrunError):
    """A value beyond its bound; it was refused before it could fill memory or disk."""

    code = "too_large"

    def __init__(self, path: str, size: int, limit: int) -> None:
        super().__init__(path, size, limit)
        self.path = path
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.path}: at least {self.size} bytes, the limit is {self.limit}; "
            "store the data elsewhere and pass a reference"
        )


class CheckpointRefused(MidrunError):
    """A checkpoint that must not be resumed: invalid, stale, expired, or of another agent."""

    code = "checkpoint_refused"

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"checkpoint refused: {self.reason}{detail}; take a new one from the run"


class JournalCorrupt(MidrunError):
    """The stored line at `seq` is not what was written there. This run is not driven any more.

    Other runs go on. Compare with an export or a backup; `verify` lists everything it finds.
    """

    code = "journal_corrupt"

    def __init__(self, run: str, seq: int, problem: str) -> None:
        super().__init__(run, seq, problem)
        self.run = run
        self.seq = seq
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"run {self.run}: journal is corrupt at seq {self.seq}: {self.problem}; "
            "restore it from a backup, the run is left alone until then"
        )


class JournalTooNew(MidrunError):
    """The journal holds a kind of entry that this version does not know: it must not write."""

    code = "journal_too_new"

    def __init__(self, run: str, seq: int, kind: str) -> None:
        super().__init__(run, seq, kind)
        self.run = run
        self.seq = seq
        self.kind = kind

    def __str__(self) -> str:
        return (
            f"run {self.run}: seq {self.seq} holds {self.kind}, written by a newer midrun; "
            "upgrade this process to drive the run"
        )


class StoreError(MidrunError):
    """Base of what a store can say. Nothing of the refused request was applied."""

    code = "store"


class RunNotFound(StoreError, LookupError):
    """There is no run of this id in the store."""

    code = "run_not_found"

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run

    def __str__(self) -> str:
        return f"run {self.run}: not in this store; check the id and the store's address"


class RunExists(StoreError):
    """A run of this id exists already; its journal was left as it is."""

    code = "run_exists"

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run

    def __str__(self) -> str:
        return f"run {self.run}: exists already; read it, or start under another id"


class SeqConflict(StoreError):
    """Somebody appended after what the caller had seen. Read the rest and decide again."""

    code = "seq_conflict"

    def __init__(self, run: str, after: int, head: int) -> None:
        super().__init__(run, after, head)
        self.run = run
        self.after = after
        self.head = head

    def __str__(self) -> str:
        return (
            f"run {self.run}: append after seq {self.after} refused, the head is {self.head}; "
            "read on and decide again"
        )


class StaleEpoch(StoreError):
    """An append carried a lease that is no longer in force.

    The driver that sees this has lost the run. It cancels what it runs locally, appends nothing
    but late evidence and may take the lease anew. The same append is never retried.
    """

    code = "stale_epoch"

    def __init__(self, run: str, held: int, current: int) -> None:
        super().__init__(run, held, current)
        self.run = run
        self.held = held
        self.current = current

    def __str__(self) -> str:
        why = "was given back" if self.held == self.current else "is fenced off"
        return (
            f"run {self.run}: epoch {self.held} {why}, the lease is at {self.current}; "
            "drop the run and take the lease anew"
        )


class LeaseHeld(StoreError):
    """Another process drives the run and is alive."""

    code = "lease_held"

    def __init__(self, run: str, holder: str) -> None:
        super().__init__(run, holder)
        self.run = run
        self.holder = holder

    def __str__(self) -> str:
        return f"run {self.run}: {self.holder} holds the lease; leave the run to it"


class HaltInForce(StoreError):
    """An operator's latch covers the run: nothing starts until it is lifted."""

    code = "halt_in_force"

    def __init__(self, run: str, scope: str, reason: str, by: str) -> None:
        super().__init__(run, scope, reason, by)
        self.run = run
        self.scope = scope
        self.reason = reason
        self.by = by

    def __str__(self) -> str:
        return (
            f"run {self.run}: start refused, {self.by} halted {self.scope!r} ({self.reason}); "
            "wait until an operator lifts it"
        )


class KindRefused(StoreError):
    """Drivers may not write what only people decide, nor controls what only drivers know."""

    code = "kind_refused"

    def __init__(self, run: str, kind: str, writer: str) -> None:
        super().__init__(run, kind, writer)
        self.run = run
        self.kind = kind
        self.writer = writer

    def __str__(self) -> str:
        return f"run {self.run}: a {self.writer} may not append {self.kind}; mend the caller"


class CursorRefused(StoreError, ValueError):
    """A page was asked for with a cursor that no list has given out."""

    code = "cursor_refused"

    def __init__(self, cursor: str) -> None:
        super().__init__(cursor)
        self.cursor = cursor

    def __str__(self) -> str:
        return (
            f"cursor {self.cursor[:40]!r} refused: no list gave it out; start again without one"
        )


class StoreBusy(StoreError):
    """Another process kept the store locked for longer than the bounded wait."""

    code = "store_busy"

    def __init__(self, path: str, waited_s: float) -> None:
        super().__init__(path, waited_s)
        self.path = path
        self.waited_s = waited_s

    def __str__(self) -> str:
        return (
            f"store {self.path}: locked by another process for {self.waited_s:g} s; try again"
        )


class StoreFull(StoreError):
    """No room left on disk. What was acknowledged is safe; appends work again with room."""

    code = "store_full"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"store {self.path}: the disk is full; make room, then try again"


class StoreUnreachable(StoreError):
    """The store cannot be opened or does not answer."""

    code = "store_unreachable"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"store {self.path}: {self.problem}; check its address and permissions"


class StoreDamaged(StoreError):
    """The store's own structure is broken: a truncated, overwritten or bit-flipped file."""

    code = "store_damaged"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"store {self.path}: damaged ({self.problem}); restore it from a backup"


class StoreForeign(StoreError):
    """The file is not a midrun store, or a newer version wrote it. It was not touched."""

    code = "store_foreign"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"store {self.path}: {self.problem}; choose another path, or upgrade midrun"


class StoreClosed(StoreError):
    """The store was closed in this process."""

    code = "store_closed"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"store {self.path}: closed; open it again"
