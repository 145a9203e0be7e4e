"""All errors that Midrun raises, as one tree.

    MidrunError
    ├── ControlRefused         the control does not fit the phase or state of the run
    ├── RunOver                the run ended or failed outside of the awaited phases
    ├── NotJson                a value that JSON cannot represent
    ├── TooLarge               a value beyond its limit
    ├── FileRefused            a file beyond its limit, or one that the model cannot read
    ├── CheckpointRefused      a checkpoint that must not be resumed
    ├── ModelFailed            a provider refused a request, or its stream broke off
    ├── StepNotDone            a step of a hosted function has no result
    ├── ProcessFailed          the process of a hosted agent ended without an answer
    ├── ContextFailed          the function of `context=` could not make the context of a call
    ├── OutcomeUnknown         raised by a tool that lost the answer to its own request
    ├── ModelRetry             raised by a tool or an output validator: the model tries again
    ├── ToolsUnreachable       the MCP server of a tool does not answer
    ├── EngineLost             other code cancelled midrun's tasks: this process drives nothing
    ├── ServerUnreachable      the server of a client does not answer
    ├── ServerRefused          the server of a client refused: token, limit, bad request
    ├── Misconfigured          an agent, tool, store or argument that cannot work as declared
    ├── JournalUnreadable      this process cannot read a journal, so it must not append to it
    │   ├── JournalCorrupt     a stored line differs from the line that was written
    │   ├── JournalTooNew      a stored line was written by a newer version
    │   └── JournalKeyMissing  a stored line is encrypted with a key that this process lacks
    └── StoreError             the store refused, and nothing was applied
        ├── RunNotFound        (also a LookupError)
        │   └── RunErased      the run was deleted; only its tombstone is left
        ├── DeleteRefused      the run has not ended, or is part of another run
        ├── FileMissing        (also a LookupError)
        ├── RunExists
        ├── SeqConflict        another writer appended first: read and decide again
        ├── StaleEpoch         the lease was lost: drop the run
        ├── LeaseHeld
        ├── NoRoom             a concurrency limit is reached: the run waits
        ├── QuotaReached       one more run would exceed a quota
        ├── HaltInForce
        ├── KindRefused        this writer may not append that kind of entry
        ├── CursorRefused      (also a ValueError)
        ├── StoreBusy          locked for too long: retry
        ├── StoreFull          free space, then retry
        ├── StoreUnreachable   cannot be opened, or does not answer
        ├── StoreDamaged
        ├── StoreForeign       not a midrun store, or of a newer version
        ├── StoreKeyRefused    its chains are made with another key, or with none
        ├── StoreEncrypted     it is encrypted, and this process has none of its keys
        ├── SqliteConflict     sqlite3 may not open the file of a store in the same process
        └── StoreClosed

`code` is stable and unique; branch on it or on the class, never on the text. All fields are in
`args`, so every error pickles. A pause is an entry, not an error. Texts have the form *Cannot
X: reason. Do Y.* Some are stored as the error of a call, where the model reads them, too.
"""

from inspect import Parameter, Signature
from typing import ClassVar, Final, dataclass_transform

from midrun.refusal_texts import VERB_BY_CONTROL, explain_refusal


@dataclass_transform(eq_default=False)
class MidrunError(Exception):
    """Base of all errors that Midrun raises on purpose.

    The annotated names of a class are its fields, and the arguments of its constructor.
    """

    code: ClassVar[str] = "midrun"
    __signature__: ClassVar[Signature] = Signature()

    def __init_subclass__(cls) -> None:
        fields = [
            Parameter(
                name,
                Parameter.POSITIONAL_OR_KEYWORD,
                default=vars(cls).get(name, Parameter.empty),
                annotation=kind,
            )
            for name, kind in cls.__annotations__.items()
        ]
        cls.__signature__ = Signature([*cls.__signature__.parameters.values(), *fields])

    def __init__(self, *values: object, **named: object) -> None:
        given = self.__signature__.bind(*values, **named)
        given.apply_defaults()
        super().__init__(*given.args)
        vars(self).update(given.arguments)


def _end(text: str) -> str:
    """Return `text` as the end of a sentence; it may have a full stop of its own."""
    return text if text.endswith(".") else f"{text}."


# Errors about a run, its agent, its model or its journal.


class ControlRefused(MidrunError):
    """The run cannot accept this control now; nothing was applied.

    `reason` is the name of the refusal in the transition table, `allowed` lists the controls
    that the run accepts now. `by` and `seq` name the person and the entry that came first, if
    that is the reason.
    """

    code = "control_refused"
    run: str
    control: str
    reason: str
    phase: str
    allowed: tuple[str, ...] = ()
    by: str = ""
    seq: int = 0
    detail: str = ""

    def __str__(self) -> str:
        # The name of the reason is in the text, so that it can be looked up in docs/errors.md.
        name = self.control.replace("-", "_")  # the command line writes take-over
        verb = VERB_BY_CONTROL.get(name, name.replace("_", " "))
        why = explain_refusal(self.reason, self.by, self.seq, self.detail)
        text = f"Cannot {verb} {self.run}: {why} ({self.reason})."
        if self.detail.endswith("."):  # whole sentences
            text = f"{text} {self.detail}"
        return f"{text} Allowed now: {', '.join(self.allowed)}." if self.allowed else text


class RunOver(MidrunError):
    """The run ended or failed; it will not reach the awaited phase by itself.

    A completed or cancelled run has ended. A failed run (`phase` is "failed", `error` is its
    error) can be resumed.
    """

    code = "run_over"
    run: str
    phase: str
    wanted: tuple[str, ...]
    error: str = ""

    def __str__(self) -> str:
        text = f"Cannot wait until {self.run} is {' or '.join(self.wanted)}"
        if self.phase == "failed":
            why = f": {self.error}" if self.error else ""
            return f"{text}: it failed{_end(why)} Resume or cancel it, then wait again."
        return f"{text}: it is {self.phase} and has ended. Read its report."


class NotJson(MidrunError):
    """A value cannot be stored as JSON and read back unchanged. `path` locates it."""

    code = "not_json"
    path: str
    problem: str

    def __str__(self) -> str:
        return f"Cannot use {self.path} as JSON: {_end(self.problem)} Pass plain JSON data."


class TooLarge(MidrunError):
    """A value exceeds its limit; it was refused before it could fill memory or disk."""

    code = "too_large"
    path: str
    size: int
    limit: int

    def __str__(self) -> str:
        return (
            f"Cannot store {self.path}: it has at least {self.size} bytes, the limit is "
            f"{self.limit}. Store the data elsewhere and pass a reference."
        )


class FileRefused(MidrunError):
    """A file cannot be taken; `problem` names it, the limit, and the way out."""

    code = "file_refused"
    problem: str

    def __str__(self) -> str:
        return self.problem


_CHECKPOINT_REASONS: Final = {
    "agent_mismatch": "it does not fit the agent",
    "checkpoint_expired": "it has expired",
    "checkpoint_invalid": "it is not valid",
    "checkpoint_unsigned": "it is not signed",
    "stale_checkpoint": "the run has continued since it was taken",
}


class CheckpointRefused(MidrunError):
    """A checkpoint must not be resumed; `reason` is the stable name of the cause.

    `checkpoint_invalid`, `checkpoint_unsigned`, `stale_checkpoint`, `checkpoint_expired`,
    `agent_mismatch` or `tenant_mismatch`.
    """

    code = "checkpoint_refused"
    reason: str
    detail: str = ""

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        advice = "Take a new one from the run."
        if self.reason == "agent_mismatch":
            advice = "Resume it with its own agent, in the version that made it."
        if self.reason == "tenant_mismatch":
            advice = "Have an operator of its tenant, or of no tenant, import it."
        if self.reason == "checkpoint_unsigned":
            advice = (
                "Open both Midruns with the same key (key=…, MIDRUN_KEY), or allow unsigned "
                "checkpoints: app(…, unsigned_checkpoints=True), "
                "midrun serve --unsigned-checkpoints."
            )
        why = _CHECKPOINT_REASONS.get(self.reason, self.reason.replace("_", " "))
        return f"Cannot resume the checkpoint: {why}{detail} ({self.reason}). {advice}"


class ModelFailed(MidrunError):
    """A provider refused a request, or its stream broke off.

    A `transient` failure is worth a retry. `reason` is a stable word: rate_limited, overloaded,
    timeout, connection, broken_stream, bad_request, unauthorized, context_too_long, refused,
    server_error; of a hosted agent also bad_output and guardrail. `retry_after` is the wait
    that the provider asked for, in seconds.
    """

    code = "model_failed"
    model: str
    reason: str
    detail: str = ""
    transient: bool = False
    retry_after: float | None = None

    def __str__(self) -> str:
        # The driver decides about a retry: attempts and waits are bounded.
        advice = "A retry may succeed." if self.transient else "See the provider's message."
        detail = _end(self.detail or "no detail")
        return f"Model {self.model} failed: {self.reason}: {detail} {advice}"


class ContextFailed(MidrunError):
    """The function of `context=` raised, so the call was not made; `declared_in` names it."""

    code = "context_failed"
    declared_in: str
    problem: str

    def __str__(self) -> str:
        opening = f"Cannot open the context of {self.declared_in}: {_end(self.problem)}"
        return f"{opening} The next call opens it again."


class OutcomeUnknown(MidrunError):
    """Raised by a tool that cannot tell whether it took effect: it lost an answer.

    The call is then *unknown*: it is retried only if that is safe, settled by its `check`, or
    settled by a person. Any other error means that the call failed without effect.
    """

    code = "outcome_unknown"
    problem: str

    def __str__(self) -> str:
        return f"{_end(self.problem)} The call may have taken effect."


class ModelRetry(MidrunError):
    """Raised by a tool or an output validator to tell the model to try again.

    The model reads `problem`. Attempts are counted and bounded: `tool(retries=…)` and
    `Agent(output_retries=…)`. A tool that raises it has had no effect.
    """

    code = "model_retry"
    problem: str

    def __str__(self) -> str:
        return self.problem


class ToolsUnreachable(MidrunError):
    """The MCP server of a tool cannot be reached; the call was not made."""

    code = "tools_unreachable"
    server: str
    problem: str

    def __str__(self) -> str:
        problem = _end(self.problem)
        return f"Cannot reach tool server {self.server}: {problem} Check that it runs."


class EngineLost(MidrunError):
    """Other code cancelled the tasks of an open `Midrun`; this process drives nothing more.

    The `async with` block of the `Midrun` is left. No run is lost: the next process that opens
    the store continues them.
    """

    code = "engine_lost"

    def __str__(self) -> str:
        return (
            "Cannot drive runs any more: other code cancelled midrun's tasks (code that "
            "cancels asyncio.all_tasks()?). Open the store again to continue the runs."
        )


class Misconfigured(MidrunError, ValueError):
    """An agent, tool, store or argument cannot work as declared.

    `where` names it, `problem` says what to change.
    """

    code = "misconfigured"
    where: str
    problem: str

    def __str__(self) -> str:
        # "actor must be a str, got int" reads as one sentence; other texts follow a colon.
        joint = " " if self.problem.startswith("must ") else ": "
        return f"{self.where}{joint}{self.problem}"


class StepNotDone(MidrunError):
    """A step of a hosted function has no result: it failed, was declined or stopped.

    `step` is its name, `problem` the reason, as a model would read it.
    """

    code = "step_not_done"

    step: str
    problem: str

    def __str__(self) -> str:
        return f"{self.step}: {self.problem}"


class ProcessFailed(MidrunError):
    """The process of a hosted agent ended without an answer.

    `command` is the name of its program, `problem` the exit code or the reason, and `stderr`
    the end of its error output.
    """

    code = "process_failed"

    command: str
    problem: str
    stderr: str = ""

    def __str__(self) -> str:
        said = f" Its error output ends with: {self.stderr}" if self.stderr else ""
        return f"Cannot complete the run: {self.command} {_end(self.problem)}{said}"


class JournalUnreadable(MidrunError):
    """This process cannot read the journal of one run; other runs are not affected."""

    code = "journal_unreadable"
    run: str
    seq: int


class JournalCorrupt(JournalUnreadable):
    """The stored line at `seq` differs from the line that was written.

    This run is not driven any more; other runs are not affected. Compare with an export or a
    backup; `midrun verify` lists all problems.
    """

    code = "journal_corrupt"
    problem: str

    def __str__(self) -> str:
        return (
            f"Cannot read the journal of run {self.run}: seq {self.seq} is corrupt: "
            f"{_end(self.problem)} Restore it from a backup. Until then the run is not driven."
        )


class JournalTooNew(JournalUnreadable):
    """The journal holds an entry that this version does not know, so it must not append."""

    code = "journal_too_new"
    kind: str

    def __str__(self) -> str:
        return (
            f"Cannot read the journal of run {self.run}: seq {self.seq} holds {self.kind}, "
            "written by a newer midrun. Upgrade this process to drive the run."
        )


class JournalKeyMissing(JournalUnreadable):
    """The entry at `seq` is encrypted with a key that this process does not have.

    `seq` is 0 if it is a file. Nothing is lost: a process with the key reads the run.
    """

    code = "journal_key_missing"
    key_id: str

    def __str__(self) -> str:
        part = f"seq {self.seq}" if self.seq else "one of its files"
        return (
            f"Cannot read the journal of run {self.run}: {part} is encrypted with key "
            f"{self.key_id}. Add that key to encryption_keys, or to the file that "
            "MIDRUN_ENCRYPTION_KEYS_FILE names."
        )


# Errors between a client and its server.

_ADVICE_BY_HTTP_STATUS: Final = {
    401: "Pass the token that the server was started with: connect(url, token=…).",
    403: "Use a token whose role allows it.",
    412: "Read the run again, then decide.",
    429: "Send fewer requests, or wait until pending ones are done.",
}


class ServerUnreachable(MidrunError):
    """No server answers at the address, or it broke off and did not come back in time.

    With a `request_id`, the request may or may not have arrived. A repeat under that id is
    safe: the server applies it once.
    """

    code = "server_unreachable"
    url: str
    problem: str
    request_id: str = ""

    def __str__(self) -> str:
        advice = "Check the address, and that `midrun serve` runs there."
        if self.request_id:
            advice += (
                " The request may have arrived: repeat it with "
                f"request_id={self.request_id!r}; it is applied once."
            )
        return f"Cannot reach server {self.url}: {_end(self.problem)} {advice}"


class ServerRefused(MidrunError):
    """The server refused a request: the credential, a limit, a bad request.

    `problem` is its stable name, the end of the `type` of the problem+json. Nothing was
    applied.
    """

    code = "server_refused"
    url: str
    status: int
    problem: str
    detail: str = ""

    def __str__(self) -> str:
        answer = _end(f"{self.status} {self.problem}" + (self.detail and f": {self.detail}"))
        advice = _ADVICE_BY_HTTP_STATUS.get(self.status, "See docs/guides/client.md.")
        given = "" if self.problem == "quota_used_up" else f" {advice}"  # its detail has one
        return f"Server {self.url} refused the request: {answer}{given}"


# Errors of a store.


class StoreError(MidrunError):
    """Base of the errors of a store. Nothing of the refused request was applied."""

    code = "store"


class RunNotFound(StoreError, LookupError):
    """There is no run of this id in the store."""

    code = "run_not_found"
    run: str

    def __str__(self) -> str:
        return f"Cannot find run {self.run} in this store. Check the id and the address."


class FileMissing(StoreError, LookupError):
    """The run has no file of this hash, or an entry would name one that is not stored."""

    code = "file_missing"
    run: str
    hash: str

    def __str__(self) -> str:
        return (
            f"Cannot find file {self.hash[:12]} of run {self.run}. Take the hash from an entry "
            "of this run; a deleted run has no files."
        )


class RunErased(RunNotFound):
    """The run was deleted. `by`, `at` (microseconds) and `why` are those of its tombstone."""

    code = "run_erased"
    by: str
    at: int
    why: str = ""

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        text = f"Cannot read run {self.run}: {self.by} deleted it{why}. Its journal is gone;"
        return f"{text} `midrun verify` shows its tombstone. A new run needs another id."


class DeleteRefused(StoreError):
    """The run must not be deleted now: `reason` is `is_<phase>` or `has_parent`.

    `other` is the run that is the cause: the run itself, a child of it, or its parent.
    """

    code = "delete_refused"
    run: str
    reason: str
    other: str

    def __str__(self) -> str:
        if self.reason == "has_parent":
            text = f"Cannot delete run {self.run}: it is a child of run {self.other}."
            return f"{text} Delete {self.other}, which deletes its children, too."
        subject = "it" if self.other == self.run else f"its child run {self.other}"
        why = f"{subject} is {self.reason.removeprefix('is_')} and has not ended"
        return f"Cannot delete run {self.run}: {why}. Cancel {self.run} first, then delete it."


class RunExists(StoreError):
    """A run of this id exists already; its journal was not changed."""

    code = "run_exists"
    run: str

    def __str__(self) -> str:
        return f"Cannot create run {self.run}: it exists already. Use another id."


class SeqConflict(StoreError):
    """Another writer appended after the entry that the caller had seen.

    Read the new entries and decide again.
    """

    code = "seq_conflict"
    run: str
    after: int
    head: int

    def __str__(self) -> str:
        return (
            f"Cannot append to run {self.run} after seq {self.after}: the journal ends at "
            f"{self.head}. Read the new entries and decide again."
        )


class StaleEpoch(StoreError):
    """An append carried a lease that is no longer in force.

    The driver that gets this has lost the run. It cancels its local calls, appends nothing but
    late results, and may take the lease again. It never retries the same append.
    """

    code = "stale_epoch"
    run: str
    held: int
    current: int

    def __str__(self) -> str:
        why = f"another holder has epoch {self.current}"
        if self.held == self.current:
            why = "that lease was given back"
        return (
            f"Cannot append to run {self.run} under epoch {self.held}: {why}. "
            "Drop the run, then take the lease again."
        )


class LeaseHeld(StoreError):
    """Another process drives the run and is alive."""

    code = "lease_held"
    run: str
    holder: str

    def __str__(self) -> str:
        return (
            f"Cannot take the lease of run {self.run}: {self.holder} holds it and is alive. "
            "Leave the run to it."
        )


class NoRoom(StoreError):
    """The concurrency limit of a scope is reached; the run waits."""

    code = "no_room"
    run: str
    scope: str
    most: int

    def __str__(self) -> str:
        problem = f"the limit of {self.most} runs for {self.scope} is reached"
        advice = "Wait until one of them rests, or raise the limit."
        return f"Cannot drive run {self.run} yet: {problem}. {advice}"


class QuotaReached(StoreError):
    """The quota of a tenant, or of one owner in it, has no room for one more run."""

    code = "quota_reached"
    run: str
    tenant: str
    owner: str
    quota: str
    most: int

    def __str__(self) -> str:
        user = f"user {self.owner} in " if self.owner else ""
        whose = f"{user}tenant {self.tenant}" if self.tenant else f"{user}the default tenant"
        problem = f"the quota of {whose} is used up, {self.quota} is at {self.most}"
        return f"Cannot start run {self.run}: {problem}. Wait, or raise the quota."


class HaltInForce(StoreError):
    """An operator's halt covers the run: nothing starts until it is lifted."""

    code = "halt_in_force"
    run: str
    scope: str
    reason: str
    by: str

    def __str__(self) -> str:
        problem = f"{self.by} halted {self.scope!r} ({self.reason})"
        advice = "Wait until an operator lifts the halt."
        return f"Cannot start a call of run {self.run}: {problem}. {advice}"


class KindRefused(StoreError):
    """A driver may not append a person's decision, nor a control the outcome of a call."""

    code = "kind_refused"
    run: str
    kind: str
    writer: str

    def __str__(self) -> str:
        return f"Cannot append {self.kind} to run {self.run}: not allowed for a {self.writer}."


class CursorRefused(StoreError, ValueError):
    """A page was requested with a cursor that no list returned."""

    code = "cursor_refused"
    cursor: str

    def __str__(self) -> str:
        return (
            f"Cannot use cursor {self.cursor[:40]!r}: no list returned it. "
            "Start again without a cursor."
        )


class StoreBusy(StoreError):
    """Another process kept the store locked for longer than the timeout."""

    code = "store_busy"
    path: str
    waited_s: float

    def __str__(self) -> str:
        return (
            f"Cannot use store {self.path}: another process kept it locked for "
            f"{self.waited_s:g} s. Try again."
        )


class StoreFull(StoreError):
    """The disk is full. Acknowledged entries are safe; appends work again with free space."""

    code = "store_full"
    path: str

    def __str__(self) -> str:
        return f"Cannot write to store {self.path}: the disk is full. Free space, then retry."


class StoreUnreachable(StoreError):
    """The store cannot be opened or does not answer."""

    code = "store_unreachable"
    path: str
    problem: str

    def __str__(self) -> str:
        return (
            f"Cannot reach store {self.path}: {_end(self.problem)} "
            "Check its address and permissions."
        )


class StoreDamaged(StoreError):
    """The structure of the store is broken: a truncated, overwritten or bit-flipped file."""

    code = "store_damaged"
    path: str
    problem: str

    def __str__(self) -> str:
        return f"Cannot use store {self.path}: damaged ({self.problem}). Restore a backup."


class StoreForeign(StoreError):
    """The file is not a midrun store, or a newer version wrote it. It was not touched."""

    code = "store_foreign"
    path: str
    problem: str

    def __str__(self) -> str:
        return (
            f"Cannot use store {self.path}: {_end(self.problem)} "
            "Choose another path, or upgrade midrun."
        )


class StoreKeyRefused(StoreError):
    """The hash chains of the store are made with another key than this process has, or none.

    The store was not changed: lines without its key look forged to every process that has it.
    """

    code = "store_key_refused"
    path: str
    kept: str
    given: str

    def __str__(self) -> str:
        if not self.kept:
            return (
                f"Cannot use store {self.path} with key {self.given}: its journals are chained "
                "without a key, and a key cannot be added. Leave chain_key out, or create a "
                "new store with it."
            )
        given = f"with key {self.given}" if self.given else "without a key"
        return (
            f"Cannot use store {self.path} {given}: its journals are chained with key "
            f"{self.kept}. Pass that key as chain_key or in MIDRUN_CHAIN_KEY."
        )


class StoreEncrypted(StoreError):
    """The store is encrypted, and this process has none of its keys. Nothing was written.

    `stored` has the ids of the keys of the store, `given` those of this process.
    """

    code = "store_encrypted"
    path: str
    stored: str
    given: str

    def __str__(self) -> str:
        given = f"the keys {self.given}" if self.given else "no key"
        return (
            f"Cannot write to store {self.path}: it is encrypted with the keys {self.stored}, "
            f"and this process has {given}. Pass one of its keys in encryption_keys, or in the "
            "file that MIDRUN_ENCRYPTION_KEYS_FILE names."
        )


class SqliteConflict(StoreError):
    """`sqlite3` of the standard library tried to open a file that is open as a store."""

    code = "sqlite_conflict"
    path: str

    def __str__(self) -> str:
        return (
            f"Cannot open {self.path} with sqlite3: this process has it open as a store, with"
            " another copy of SQLite, and closing one copy's file drops the locks of the other."
            " Open it in another process, or with apsw, or use midrun export."
        )


class StoreClosed(StoreError):
    """The store was closed in this process."""

    code = "store_closed"
    path: str

    def __str__(self) -> str:
        return f"Cannot use store {self.path}: it was closed. Open it again."
