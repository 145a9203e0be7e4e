"""The values that handles return: views of a run, receipts, feed items, verdicts.

They are plain immutable structs. A local handle computes them from the journal; a remote handle
decodes them from JSON. Their field names are the field names of the HTTP interface, so a field
must not be renamed. Times are microseconds since 1970 (`Micros`), on the wire RFC 3339.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

from midrun.agents.outcome import AskView
from midrun.core.entries import Entry
from midrun.core.ids import CallId, Epoch, FrameId, Micros, RunId, Seq, micros_to_datetime
from midrun.core.values import FileRef, Json, Phase, PlanItem, Value
from midrun.driver.delta import Delta
from midrun.ports.store import EndedQuery, Tombstone
from midrun.text.buttons import Button
from midrun.text.status import StatusLine
from midrun.verify.checks import Problem

# Items of a feed: a journal entry, or a live delta between two entries.


class FeedEntry(Struct, frozen=True, kw_only=True):
    """A journal entry with its position, as an item of a feed."""

    seq: Seq
    at: Micros
    kind: str
    entry: Entry
    epoch: Epoch | None = None


FeedItem: TypeAlias = FeedEntry | Delta

# Receipts: the answer to a control.


class Receipt(Value, kw_only=True):
    """The answer to a control: it is in the journal, or changed nothing.

    Attributes:
        seq: The position of the control's entry in the journal; `withdraw` takes it.
        phase: The phase of the run after the control.
        applied: False while the control waits: a pause while a call is in flight, a redirect
            or a message that the agent has not read yet. A cancel is applied when the run is
            *cancelling*; its calls may still be in flight.
        already: The name of the state that the run was already in; None if the control changed
            something.
        by: The actor of the control; if `already` is set, the actor who asked first.
        acknowledgement: The immediate answer to a message: "Hold on — finishing *X* first".
    """

    seq: Seq
    phase: Phase
    applied: bool = True
    already: str | None = None
    by: str = ""
    acknowledgement: str = ""


# Results of `verify`.


class Import(Value, kw_only=True):
    """Entries 1 to `upto` were imported with a checkpoint; this store did not write them."""

    upto: Seq
    checkpoint: RunId  # the run of the checkpoint
    head: str  # the hash of entry `upto` in a chain without a key
    by: str
    at: Micros
    kid: str = ""  # the key that signed the checkpoint; "" if it was not signed

    def __str__(self) -> str:
        entries = "entry 1 was" if self.upto == 1 else f"entries 1-{self.upto} were"
        rests = (
            f"their authenticity rests on the checkpoint's signature (key {self.kid})"
            if self.kid
            else "the checkpoint was not signed, so nothing shows that they are authentic"
        )
        return f"{entries} imported from run {self.checkpoint} by {self.by}; {rests}"


class Erasure(Value, kw_only=True):
    """The tombstone of a deleted run. `head` is the hash of its last entry."""

    run_id: RunId
    entries: int
    head: str
    by: str
    at: Micros
    reason: str = ""

    @classmethod
    def from_tombstone(cls, tombstone: Tombstone) -> "Erasure":
        """Return a tombstone in the form that users see."""
        return cls(
            run_id=tombstone.run,
            entries=tombstone.seq,
            head=tombstone.hash.hex(),
            by=tombstone.by,
            at=tombstone.at,
            reason=tombstone.reason,
        )

    def __str__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        when = micros_to_datetime(self.at).isoformat(" ", "seconds")
        return (
            f"erased by {self.by} at {when}{why}; "
            f"it had {self.entries} entries, the last hash was {self.head}"
        )


class Verdict(Value, kw_only=True):
    """The result of `verify`: true if no problem was found.

    `erased` is set if the run was deleted. Then only its tombstone could be checked.

    `imported` is set if the first entries came from a checkpoint. They can be free of problems
    and still not authentic; it names the actor and the signing key.

    `missing_key` is set if entries are encrypted with a key that this process does not have.
    Then only the hash chain was checked: no entry was changed, removed or added in between.
    """

    run_id: RunId
    entries: int
    problems: tuple[Problem, ...] = ()
    imported: Import | None = None
    erased: Erasure | None = None
    missing_key: str = ""

    def __bool__(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        lines = [f"  {problem}" for problem in self.problems]
        if self.imported is not None:
            lines.append(f"  {self.imported}")
        many = f"{len(self.problems)} problems in {self.entries}"
        first = many if self.problems else f"{self.entries} entries, clean"
        if self.erased is not None:
            first = str(self.erased)
        if self.missing_key and not self.problems:
            first = f"{self.entries} entries, the hash chain is intact"
            lines.append(
                f"  The content was not checked: it is encrypted with key {self.missing_key}. "
                "Run verify again in a process that has this key."
            )
        return "\n".join([f"run {self.run_id}: {first}", *lines])


class RunSelection(Value, kw_only=True):
    """Selects the runs to delete; all given fields must match.

    `older_than` is the time since the last entry, in seconds.
    """

    thread: str = ""
    user: str = ""
    agent: str = ""
    label: str = ""
    tenant: str | None = None
    older_than: float | None = None

    def describe(self) -> str:
        """Return the given fields as text, as `thread=t1, older_than=3600`."""
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        given["tenant"] = given["tenant"] or None
        return ", ".join(f"{name}={value}" for name, value in given.items() if value)

    def make_query(self, now: Micros) -> EndedQuery:
        """Return the query for the runs that may be deleted."""
        age = 0.0 if self.older_than is None else self.older_than
        return EndedQuery(
            # A run that ended in this very microsecond is included.
            before=Micros(max(0, now + 1 - round(age * 1e6))),
            agent=self.agent,
            label=self.label,
            thread=self.thread,
            tenant=self.tenant,
            owner=self.user,
        )


class DeletableRuns(Value, kw_only=True):
    """The number of runs that a deletion would delete, and of those that it would keep.

    Child runs are deleted with their parents and not counted. `alive` are the runs that match,
    too, but have not ended.
    """

    runs: int
    alive: int = 0


class Usage(Value, kw_only=True):
    """The tokens and the money that the run has used.

    `reserved_tokens` and `reserved_usd` are the estimate for model calls in flight. They also
    include calls whose outcome, and so whose usage, is unknown.
    """

    tokens: int = 0
    cost_usd: float = 0.0
    reserved_tokens: int = 0
    reserved_usd: float = 0.0
    # Parts of `tokens`, as far as the providers report them.
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # of the input: read from a provider's cache
    thinking_tokens: int = 0  # of the output
    unpriced_tokens: int = 0  # no price is known for these: the true cost is higher
    held_tokens: int = 0  # estimate: the part of all prompts that described held topics

    @property
    def cost_text(self) -> str:
        """The cost in words; "" if the run has used nothing that has a price."""
        known = f"${self.cost_usd:.2f}" if self.cost_usd else ""
        if not self.unpriced_tokens:
            return known
        return f"more than {known}" if known else "cost unknown"


class CapView(Value, kw_only=True):
    """A cap and the amount used; cost in dollars, time in seconds."""

    name: str
    used: float
    cap: float
    raised: float = 0.0  # the cap after one press of the *raise* button


class FrameView(Value, kw_only=True):
    """A topic that is held while the agent answers something else."""

    id: FrameId
    goal: str
    position: str
    held_at: Micros = Micros(0)
    expires_at: Micros  # after this, the topic can only be reconstructed from the messages


class CallView(Value, kw_only=True):
    """A call in flight, or the undo or release of a call."""

    id: CallId
    tool: str  # "" for a model call
    since: Micros
    attempt: int
    action: str = "call"  # or "undo", or "release"
    why: str = ""  # the agent's reason for the call
    unstoppable: bool = False  # it blocks a thread: a cancel will not wait for it
    not_responding: bool = False  # it was told to stop, and half of its grace has passed
    title: str = ""  # one line that tells people about the call


class EffectView(Value, kw_only=True):
    """A call that had an effect on the world, or may have had one."""

    id: CallId
    tool: str
    args: str = ""  # cut to one line
    stage: str
    can_undo: bool
    holds_resource: bool = False  # it is released when the run ends
    release: str = ""  # the stage of the release
    undo: str = ""  # the stage of the undo
    note: str = ""
    why: str = ""  # the agent's reason for the call
    title: str = ""  # one line that tells people about the call


class OpenAsk(AskView, kw_only=True):
    """An open ask with its run. `ref` is unique among the asks of all runs."""

    ref: str
    run_id: RunId
    task: str  # cut to a line
    may_decide: bool = True  # by the caller of a server; a local handle does not know it


class ArtifactView(Value, kw_only=True):
    """One version of an artifact that a tool has shown; `Run.file` reads `file.hash`."""

    call: CallId
    name: str
    version: int  # of this name, from 1
    file: FileRef
    seq: Seq
    at: Micros


class PendingView(Value, kw_only=True):
    """A redirect or a message that waits for a step boundary; `withdraw(seq)` removes it."""

    seq: Seq
    kind: str
    text: str
    by: str
    when: str = "next_step"  # of a redirect
    urgency: str = "next"  # of a message
    files: tuple[FileRef, ...] = ()


StepStyle = Literal[
    "queued",
    "running",
    "held",
    "needs_you",
    "done",
    "undone",
    "stopped",
    "not_started",
    "dropped",
    "left_open",
    "failed",
]
"""The state of a plan item, a turn or a call, as surfaces show it."""


class PlanRow(Value, kw_only=True):
    """One plan item as it is shown; `tool` is the last tool that was used for it."""

    text: str
    style: StepStyle
    tool: str = ""


class RunView(Value, kw_only=True):
    """The state of a run at `seq`, as all surfaces show it.

    `control_rev` changes with every control and every change of phase, but not with every
    step; pass it as `seen` to a control. `controls` has, for each button, its label and the
    effect of pressing it now; `allowed` names all controls that the run would accept.

    `not_responding` of a call is not stored in the journal. It is known to the process that
    drives the run, and to processes that receive its live deltas.
    """

    run_id: RunId
    seq: Seq
    control_rev: Seq
    agent: str
    task: str
    phase: Phase
    status: StatusLine
    phase_by: str = ""  # the actor who caused this phase
    reason: str = ""  # of a pause: "user", "cap", "taken_over"; of a wait: the kind of the ask
    hold_until: Micros | None = None  # a pause with `hold` ends by itself at this time
    hold_now: bool = False  # the pause aborts tool calls
    step: int = 0
    position: str = ""  # "plan 4/7", "plan 3/7 done", "turn 4"
    plan: tuple[PlanItem, ...] = ()
    plan_rows: tuple[PlanRow, ...] = ()  # the plan as a task list
    turns: int = 0  # the number of turns
    goal: str = ""  # the current goal: the task, or a question from a message
    taken_over_by: str = ""  # the person who has taken over, or ""
    elapsed: float = 0.0  # seconds in which the run was driven
    started_at: Micros = Micros(0)
    changed_at: Micros = Micros(0)
    usage: Usage = Usage()
    stop: str = ""
    caps: tuple[CapView, ...] = ()
    frames: tuple[FrameView, ...] = ()
    frames_max: int = 0
    asks: tuple[AskView, ...] = ()
    pending: tuple[PendingView, ...] = ()
    in_flight: tuple[CallView, ...] = ()
    effects: tuple[EffectView, ...] = ()
    artifacts: tuple[ArtifactView, ...] = ()  # all versions, oldest first
    controls: dict[str, Button] = {}  # noqa: RUF012 - msgspec copies an empty default
    allowed: tuple[str, ...] = ()  # all controls that the run would accept now
    output: str = ""
    value: Json = None  # the output as data, if the agent has a typed output
    framework: str = ""  # the framework of an agent made with `midrun.host`
    undeclared_tools: int = 0  # its tools without declared traits, when the run was started
    error: str = ""
    labels: tuple[str, ...] = ()
    speaker: str = ""  # the agent that speaks after a handoff; "": `agent` does
    thread: str = ""
    parent: str = ""  # the id of the parent run, of a child run
    started_by: str = ""
    head_hash: str = ""  # the hash of the chain at `seq`
