"""What a store may say no to. Whatever it was, nothing was applied."""

from midrun.errors.root import MidrunError


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


class NoRoom(StoreError):
    """As many runs are driven as a limit of the fleet allows: this one waits."""

    code = "no_room"

    def __init__(self, run: str, scope: str, most: int) -> None:
        super().__init__(run, scope, most)
        self.run = run
        self.scope = scope
        self.most = most

    def __str__(self) -> str:
        return (
            f"run {self.run}: not taken up, {self.most} of {self.scope} are driven already;"
            " it waits until one of them rests, or the limit is raised"
        )


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


class StoreKeyRefused(StoreError):
    """The chain of the store is made with another key than this process was given, or none.

    It was not touched: what is written without the store's key looks forged to all who have it.
    """

    code = "store_key_refused"

    def __init__(self, path: str, kept: str, given: str) -> None:
        super().__init__(path, kept, given)
        self.path = path
        self.kept = kept
        self.given = given

    def __str__(self) -> str:
        if not self.kept:
            return (
                f"store {self.path}: its journals are chained without a key, and one cannot be"
                f" added ({self.given}); leave chain_key out, or begin a new store with it"
            )
        given = f"key {self.given}" if self.given else "no key"
        return (
            f"store {self.path}: its journals are chained with key {self.kept}, and {given} was"
            " given; give the one it was made with, as chain_key or in MIDRUN_CHAIN_KEY"
        )


class SqliteConflict(StoreError):
    """The standard library's `sqlite3` was to open a file that this process has as a store."""

    code = "sqlite_conflict"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"Cannot open {self.path} with sqlite3: this process has it open as a store, with"
            " another copy of SQLite, and closing one copy's file drops the locks of the other."
            " Open it in another process, or with apsw, or use midrun export."
        )


class StoreClosed(StoreError):
    """The store was closed in this process."""

    code = "store_closed"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"store {self.path}: closed; open it again"
