"""Outcomes: the result of a run that has ended, or that cannot continue by itself.

    match await agent.run("Sort the mail"):
        case Completed(output=output): ...
        case Paused(asks=asks, checkpoint=checkpoint): ...
        case Cancelled(report=report): ...
        case Failed(error=error, checkpoint=checkpoint): ...

A paused or failed run can be continued from its checkpoint. A completed or cancelled run has
ended.
"""

from typing import Final, Literal, TypeAlias, TypeGuard

from midrun.agents.checkpoint import Checkpoint
from midrun.core.ids import AskId, CallId, Micros, RunId
from midrun.core.journaled_text import shorten_to_line
from midrun.core.placeholders import check_hidden
from midrun.core.state import Ask, State, find_asked_use
from midrun.core.values import AskKind, FileRef, Json, Phase, Value
from midrun.text.report import Report, build_report
from midrun.text.titles import format_title

OutcomeReason: TypeAlias = Literal[
    "user", "cap", "taken_over", "question", "approval", "unsure", "halted"
]

_REASON_BY_ASK_KIND: Final[dict[AskKind, OutcomeReason]] = {
    "question": "question",
    "approval": "approval",
    "unsure": "unsure",
    "child": "question",
}


class AskView(Value, kw_only=True):
    """An open ask: a question, an approval or an unsure call that a person must settle.

    An ask of a child run is shown on its parent, too. There, `tool`, `args`, `why` and `title`
    are those of the child's call, because the decision is about that call.
    """

    id: AskId
    kind: AskKind
    of: AskKind | None = None  # for an ask of a child run: its kind there
    question: str = ""
    data: Json = None
    call: CallId
    tool: str
    args: Json = None
    why: str = ""  # the agent's reason for the call
    hidden: str = ""  # a sentence about arguments that are redacted; "" if none are
    audience: str = ""  # the role, or "user:NAME", that may decide; "" for every user
    expires_at: Micros | None = None
    declinable: bool = False  # `decline` settles it, too
    title: str = ""  # one line about the call, next to the arguments and never instead of them
    files: tuple[FileRef, ...] = ()  # shown with the question
    takes_files: bool = False  # `answer` may have files

    @property
    def effective_kind(self) -> AskKind:
        """The kind of the ask; for the ask of a child run, its kind in the child."""
        return self.of or self.kind

    def __str__(self) -> str:
        about = f" {self.tool!r}" if self.tool else ""
        question = f": {shorten_to_line(self.question)}" if self.question else ""
        return f"{self.kind} {self.id}{about}{question}"


class Completed(Value, kw_only=True):
    """The run completed its task; `output` is the last text of the agent.

    `value` is the same as JSON data, if the agent has a typed output; see `midrun.host`.
    """

    run_id: RunId
    output: str
    value: Json = None

    @property
    def phase(self) -> str:
        """The phase "completed"."""
        return Phase.COMPLETED

    def __str__(self) -> str:
        return (
            f"run {self.run_id} completed: {shorten_to_line(self.output) or 'it said nothing'}"
        )


class Paused(Value, kw_only=True):
    """The run is parked: it was paused, reached a cap, or waits for a person.

    Continue it with `Agent.resume` or `Midrun.resume`, from `checkpoint`.

    Attributes:
        reason: "user", "cap", "taken_over", "question", "approval", "unsure" or "halted".
        asks: All open asks, oldest first.
    """

    run_id: RunId
    checkpoint: Checkpoint
    reason: OutcomeReason
    asks: tuple[AskView, ...] = ()

    @property
    def phase(self) -> str:
        """The phase: "paused", "waiting" or "halted"."""
        return self.checkpoint.phase

    def __str__(self) -> str:
        asks = "; ".join(map(str, self.asks))
        why = "" if self.reason == self.phase else f" ({self.reason})"
        return f"run {self.run_id} {self.phase}{why}" + (asks and f": {asks}")


class Cancelled(Value, kw_only=True):
    """The run was cancelled; `report` lists the effects that were undone and that remain."""

    run_id: RunId
    report: Report

    @property
    def phase(self) -> str:
        """The phase "cancelled"."""
        return Phase.CANCELLED

    def __str__(self) -> str:
        report = self.report
        counts = (
            (len(report.done), "done and kept"),
            (len(report.undone), "undone"),
            (len(report.not_undone), "could not be undone"),
            (len(report.stopped), "stopped midway"),
            (len(report.unsure), "unsure"),
            (len(report.released), "released"),
            (len(report.still_held), "could not be released"),
        )
        parts = ", ".join(f"{count} {label}" for count, label in counts if count)
        return f"run {self.run_id} cancelled: {parts or 'it had changed nothing'}"


class Failed(Value, kw_only=True):
    """The run failed; it can be continued from its last step boundary.

    `code` is the stable name of the error, if it has one. Branch on it, not on the text.
    """

    run_id: RunId
    error: str
    code: str = ""
    checkpoint: Checkpoint

    @property
    def phase(self) -> str:
        """The phase "failed"."""
        return Phase.FAILED

    def __str__(self) -> str:
        return f"run {self.run_id} failed: {shorten_to_line(self.error)}; it can be resumed"


Outcome: TypeAlias = Completed | Paused | Cancelled | Failed


def is_paused(outcome: Outcome) -> TypeGuard[Paused]:
    """Tell whether the outcome is `Paused`. A type checker narrows the type accordingly."""
    return isinstance(outcome, Paused)


def make_outcome(state: State, checkpoint: Checkpoint | None = None) -> Outcome:
    """Return the outcome of a run that rests in `state`.

    `checkpoint` must be of exactly this state. A run that has ended needs none.

    Raises:
        ValueError: The run is not at rest, or the checkpoint is missing or of another state.
    """
    if state.phase is Phase.COMPLETED:
        return Completed(run_id=state.run, output=state.output, value=state.value)
    if state.phase is Phase.CANCELLED:
        return Cancelled(run_id=state.run, report=build_report(state))
    if checkpoint is None or (checkpoint.run, checkpoint.head_seq) != (state.run, state.seq):
        where = f"run {state.run}, {state.phase} at seq {state.seq}"
        raise ValueError(f"{where}: needs its checkpoint, got {checkpoint}")
    if state.error is not None and state.phase is Phase.FAILED:
        error = state.error
        return Failed(
            run_id=state.run, error=error.error, code=error.code, checkpoint=checkpoint
        )
    return Paused(
        run_id=state.run,
        checkpoint=checkpoint,
        reason=find_paused_reason(state),
        asks=make_ask_views(state),
    )


def find_paused_reason(state: State) -> OutcomeReason:
    """Return the reason why a paused, waiting or halted run does not continue.

    Raises:
        ValueError: The run is in another phase.
    """
    if state.phase is Phase.HALTED:
        return "halted"
    if state.phase is Phase.PAUSED and state.pause is not None:
        return state.pause.reason  # "user", "cap" or "taken_over"
    if state.phase is Phase.WAITING and state.open_asks:
        # The first ask that blocks the run. If none blocks, the agent has finished, and the run
        # waits for queued approvals (`approve="queue"`).
        first = next(iter(state.blocking_asks), state.asks[state.open_asks[0] - 1])
        return _REASON_BY_ASK_KIND[first.effective_kind]
    raise ValueError(f"run {state.run} is {state.phase}: it has not come to rest")


def make_ask_views(state: State) -> tuple[AskView, ...]:
    """Return the open asks of a run in `state`, oldest first."""
    return tuple(_make_ask_view(state, state.asks[number - 1]) for number in state.open_asks)


def _make_ask_view(state: State, ask: Ask) -> AskView:
    call = state.find_call(ask.call)
    assert call is not None, "every ask belongs to a call"
    use = find_asked_use(ask, call)
    return AskView(
        id=ask.id,
        kind=ask.ask_kind,
        of=ask.child_ask_kind,
        question=ask.question,
        data=ask.data,
        call=ask.call,
        tool=use.tool,
        args=use.args,
        why=use.why,
        hidden=check_hidden(ask, call.use)[0],
        audience=ask.audience,
        expires_at=ask.expires,
        declinable=ask.can_be_declined,
        title=format_title(use),
        files=ask.files,
        takes_files=ask.takes_files,
    )
