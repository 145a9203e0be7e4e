"""Every error midrun raises, as one tree.

    MidrunError
    ├── ControlRefused         a control does not fit where the run stands
    ├── RunOver                what somebody waits for will never be
    ├── NotJson                user data that JSON cannot say
    ├── TooLarge               user data beyond its bound
    ├── CheckpointRefused      a checkpoint that must not be resumed
    ├── ModelFailed            a provider said no, or broke off
    ├── OutcomeUnknown         a tool says that nobody knows whether it took effect
    ├── ToolsUnreachable       the server that a tool lives in does not answer
    ├── EngineLost             somebody cancelled midrun's own tasks: nothing is driven here
    ├── ServerUnreachable      a client's server does not answer
    ├── ServerRefused          a client's server said no: the token, a limit, a bad request
    ├── Misconfigured          an agent, tool or store that cannot work as it is declared
    ├── JournalCorrupt         a stored line that cannot be what was written
    ├── JournalTooNew          a stored line that newer code wrote
    └── StoreError             the store said no, and nothing was applied
        ├── RunNotFound        (also a LookupError)
        ├── RunExists
        ├── SeqConflict        somebody appended first: read and decide again
        ├── StaleEpoch         a newer lease holder exists: drop everything
        ├── LeaseHeld
        ├── NoRoom             a limit of the fleet is reached: the run waits
        ├── HaltInForce
        ├── KindRefused        this writer may not append that kind of entry
        ├── CursorRefused      (also a ValueError)
        ├── StoreBusy          try again later
        ├── StoreFull          make room, then try again
        ├── StoreUnreachable   cannot be opened, or does not answer
        ├── StoreDamaged
        ├── StoreForeign       not ours, or of a newer version
        ├── StoreKeyRefused    its chains are made with another key, or with none
        ├── SqliteConflict     sqlite3 may not open the file of a store in the same process
        └── StoreClosed

`code` is stable and unique; branch on it or on the class, never on the text. All fields are in
`args`, so every error pickles. A pause is an entry, not an error.
"""

from typing import ClassVar, Final

# The root of the tree of errors.


class MidrunError(Exception):
    """Base of everything that midrun raises on purpose."""

    code: ClassVar[str] = "midrun"


# What can go wrong with a run, its agent, its model or its journal.

_OTHERWISE: Final = {
    "cap_reached": ", at its cap: {by}",
    "not_allowed": ", and that is for {by}",
    "frame_not_on_top": ", and {by} is on top",
    "taken_over": ", and {by} has taken it over",
}
"""Reason of a refusal → what its `by` says, where it is not who came first."""

LOST_ASK: Final = frozenset({"already_answered", "ask_closed"})
"""Reasons of a refusal that say: another decision, or the end of its time, closed the ask."""


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
        detail: str = "",
    ) -> None:
        super().__init__(run, control, reason, phase, allowed, by, seq, detail)
        self.run = run
        self.control = control
        self.reason = reason
        self.phase = phase
        self.allowed = allowed or ("fork",)  # a run can be forked in every phase
        self.by = by
        self.seq = seq
        self.detail = detail

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        first = _OTHERWISE.get(self.reason, ", first was {by} at seq {seq}") if self.by else ""
        first = first.format(by=self.by, seq=self.seq)
        instead = f"possible now: {', '.join(self.allowed)}"
        return (
            f"run {self.run}: {self.control} refused, {self.reason}{detail} "
            f"(the run is {self.phase}{first}); {instead}"
        )


class RunOver(MidrunError):
    """The run has ended, so that what somebody waits for will never be."""

    code = "run_over"

    def __init__(self, run: str, phase: str, wanted: tuple[str, ...]) -> None:
        super().__init__(run, phase, wanted)
        self.run = run
        self.phase = phase
        self.wanted = wanted

    def __str__(self) -> str:
        never = " or ".join(self.wanted)
        return f"run {self.run} is {self.phase}: it will never be {never}; look at its report"


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
    """A checkpoint that must not be resumed; `reason` says why.

    `checkpoint_invalid`, `checkpoint_unsigned`, `stale_checkpoint`, `checkpoint_expired` or
    `agent_mismatch`.
    """

    code = "checkpoint_refused"

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        advice = "take a new one from the run"
        if self.reason == "agent_mismatch":
            advice = "resume it with the agent that it is of, as it was then"
        if self.reason == "checkpoint_unsigned":
            advice = (
                "sign it: open both Midruns with the same key (key=…, MIDRUN_KEY); or allow "
                "unsigned ones: app(…, unsigned_checkpoints=True), "
                "midrun serve --unsigned-checkpoints"
            )
        return f"checkpoint refused: {self.reason}{detail}; {advice}"


class ModelFailed(MidrunError):
    """A provider said no, or broke off. A `transient` failure is worth another attempt.

    `reason` is a stable word: rate_limited, overloaded, timeout, connection, broken_stream,
    bad_request, unauthorized, context_too_long, refused, server_error. `retry_after` is how
    many seconds the provider asked us to wait, if it did.
    """

    code = "model_failed"

    def __init__(
        self,
        model: str,
        reason: str,
        detail: str = "",
        transient: bool = False,  # noqa: FBT001, FBT002 - all fields are in args, so it pickles
        retry_after: float | None = None,
    ) -> None:
        super().__init__(model, reason, detail, transient, retry_after)
        self.model = model
        self.reason = reason
        self.detail = detail
        self.transient = transient
        self.retry_after = retry_after

    def __str__(self) -> str:
        # Whether it is made again is decided elsewhere: attempts are bounded, and so are waits.
        advice = "this may pass" if self.transient else "see the provider's message"
        return f"model {self.model}: {self.reason}: {self.detail or 'no detail'}; {advice}"


class OutcomeUnknown(MidrunError):
    """Raised by a tool when nobody can say whether it took effect: an answer that got lost.

    The call is then *unknown*: made again only if that is safe, settled by its `check`, or put
    to a person. Any other error says that the call failed.
    """

    code = "outcome_unknown"

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.problem}; the call may have taken effect"


class ToolsUnreachable(MidrunError):
    """The server that a tool lives in cannot be reached; the call was not made."""

    code = "tools_unreachable"

    def __init__(self, server: str, problem: str) -> None:
        super().__init__(server, problem)
        self.server = server
        self.problem = problem

    def __str__(self) -> str:
        return f"server {self.server}: {self.problem}"


class EngineLost(MidrunError):
    """Tasks of an open `Midrun` were cancelled by others, so that nothing is driven any more.

    The block that it was open around is left. No run is lost: whoever opens the store next goes
    on with them.
    """

    code = "engine_lost"

    def __str__(self) -> str:
        return (
            "midrun's tasks were cancelled by others (by code that cancels "
            "asyncio.all_tasks()?), and nothing is driven here any more; the runs go on where "
            "their store is opened again"
        )


class Misconfigured(MidrunError, ValueError):
    """Something cannot work as it is declared. `where` names it, `problem` says what to do."""

    code = "misconfigured"

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        # "actor must be a str, got int" reads as one sentence; other texts follow a colon.
        joint = " " if self.problem.startswith("must ") else ": "
        return f"{self.where}{joint}{self.problem}"


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


# What can come between a client and the server that has the runs.

_ADVICE: Final = {
    401: "pass the token that the server was started with: connect(url, token=…)",
    403: "ask somebody whose token has the role for it",
    412: "look at the run again, then decide",
    429: "ask less often, or let what waits come to an end",
}


class ServerUnreachable(MidrunError):
    """No server answers there, or it broke off and did not come back in time.

    With a `request_id`, something was asked of it: whether it arrived nobody can say. Asking
    again under that id is safe: it is applied once.
    """

    code = "server_unreachable"

    def __init__(self, url: str, problem: str, request_id: str = "") -> None:
        super().__init__(url, problem, request_id)
        self.url = url
        self.problem = problem
        self.request_id = request_id

    def __str__(self) -> str:
        again = f"repeat it with request_id={self.request_id!r}" if self.request_id else ""
        advice = "check the address, and that `midrun serve` runs there"
        if again:
            advice += f"; what was asked may have arrived: {again}"
        return f"server {self.url}: {self.problem}; {advice}"


class ServerRefused(MidrunError):
    """The server said no for a reason of its own: the credential, a limit, a bad request.

    `problem` is the stable name of it, the end of the `type` of its problem+json. Nothing was
    applied.
    """

    code = "server_refused"

    def __init__(self, url: str, status: int, problem: str, detail: str = "") -> None:
        super().__init__(url, status, problem, detail)
        self.url = url
        self.status = status
        self.problem = problem
        self.detail = detail

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        advice = _ADVICE.get(self.status, "see docs/guides/client.md")
        return f"server {self.url}: {self.status} {self.problem}{detail}; {advice}"


# What a store may say no to. Whatever it was, nothing was applied.


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


__all__ = [
    "CheckpointRefused",
    "ControlRefused",
    "CursorRefused",
    "EngineLost",
    "HaltInForce",
    "JournalCorrupt",
    "JournalTooNew",
    "KindRefused",
    "LeaseHeld",
    "MidrunError",
    "Misconfigured",
    "ModelFailed",
    "NoRoom",
    "NotJson",
    "OutcomeUnknown",
    "RunExists",
    "RunNotFound",
    "RunOver",
    "SeqConflict",
    "ServerRefused",
    "ServerUnreachable",
    "SqliteConflict",
    "StaleEpoch",
    "StoreBusy",
    "StoreClosed",
    "StoreDamaged",
    "StoreError",
    "StoreForeign",
    "StoreFull",
    "StoreKeyRefused",
    "StoreUnreachable",
    "TooLarge",
    "ToolsUnreachable",
]
