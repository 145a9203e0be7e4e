"""Outcomes: how a run stands once nothing more happens by itself.

    match await agent.run("Sort the mail"):
        case Completed(output=output): ...
        case Paused(asks=asks, checkpoint=checkpoint): ...
        case Cancelled(report=report): ...
        case Failed(error=error, checkpoint=checkpoint): ...

A paused or failed run goes on from its checkpoint; a completed or cancelled one is over.
"""

from typing import Final, Literal, TypeAlias, TypeGuard

from midrun.agents.checkpoint import Checkpoint
from midrun.core.ids import AskId, CallId, Micros, RunId
from midrun.core.journaled_text import line
from midrun.core.placeholders import check_hidden
from midrun.core.state import Ask, State
from midrun.core.values import AskKind, Json, Phase, Value
from midrun.text.report import Report, report

Reason: TypeAlias = Literal[
    "user", "cap", "taken_over", "question", "approval", "unsure", "halted"
]

_REASONS: Final[dict[AskKind, Reason]] = {
    "question": "question",
    "approval": "approval",
    "unsure": "unsure",
    "child": "question",
}


class AskView(Value, kw_only=True):
    """Something a person has to decide, with the call that it is about."""

    id: AskId
    kind: AskKind
    of: AskKind | None = None  # of a child's: what kind of ask it is there
    question: str = ""
    data: Json = None
    call: CallId
    tool: str
    args: Json = None
    why: str = ""  # the agent wants it
    hidden: str = ""  # which of the arguments are hidden, by whose word, and what follows
    audience: str = ""  # who may decide: a role, or "user:…"; empty is anyone
    expires_at: Micros | None = None
    declinable: bool = False  # `decline` is an answer, too

    def __str__(self) -> str:
        about = f" {self.tool!r}" if self.tool else ""
        said = f": {line(self.question)}" if self.question else ""
        return f"{self.kind} {self.id}{about}{said}"


class Completed(Value, kw_only=True):
    """The run reached its end; `output` is what the agent said last."""

    run_id: RunId
    output: str

    @property
    def phase(self) -> str:
        """Where the run stands."""
        return Phase.COMPLETED

    def __str__(self) -> str:
        return f"run {self.run_id} completed: {line(self.output) or 'it said nothing'}"


class Paused(Value, kw_only=True):
    """The run is parked, by somebody or because it needs somebody: `reason` says which.

    `phase` tells *paused*, *waiting* and *halted* apart. `asks` is everything open, in the
    order in which it was asked, whatever the reason.
    """

    run_id: RunId
    checkpoint: Checkpoint
    reason: Reason
    asks: tuple[AskView, ...] = ()

    @property
    def phase(self) -> str:
        """Where the run stands."""
        return self.checkpoint.phase

    def __str__(self) -> str:
        asks = "; ".join(map(str, self.asks))
        why = "" if self.reason == self.phase else f" ({self.reason})"
        return f"run {self.run_id} {self.phase}{why}" + (asks and f": {asks}")


class Cancelled(Value, kw_only=True):
    """The run was cancelled; `report` says what it leaves behind."""

    run_id: RunId
    report: Report

    @property
    def phase(self) -> str:
        """Where the run stands."""
        return Phase.CANCELLED

    def __str__(self) -> str:
        told = self.report
        counts = (
            (len(told.done), "done and kept"),
            (len(told.undone), "undone"),
            (len(told.not_undone), "could not be undone"),
            (len(told.stopped), "stopped midway"),
            (len(told.unsure), "unsure"),
            (len(told.released), "released"),
            (len(told.still_held), "could not be released"),
        )
        said = ", ".join(f"{count} {what}" for count, what in counts if count)
        return f"run {self.run_id} cancelled: {said or 'it had changed nothing'}"


class Failed(Value, kw_only=True):
    """The run stopped at its last boundary; it can be resumed from there.

    `code` is the stable name of the error where it has one; branch on it, not on the text.
    """

    run_id: RunId
    error: str
    code: str = ""
    checkpoint: Checkpoint

    @property
    def phase(self) -> str:
        """Where the run stands."""
        return Phase.FAILED

    def __str__(self) -> str:
        return f"run {self.run_id} failed: {line(self.error)}; it can be resumed"


Outcome: TypeAlias = Completed | Paused | Cancelled | Failed


def is_paused(outcome: Outcome) -> TypeGuard[Paused]:
    """Tell whether the run is parked and can go on; a failed one is not *paused*."""
    return isinstance(outcome, Paused)


def outcome_of(state: State, checkpoint: Checkpoint | None = None) -> Outcome:
    """Return the outcome of a run that has come to rest in `state`.

    `checkpoint` is of that very state; a run that is over needs none.

    Raises:
        ValueError: the run has not come to rest, or its checkpoint is missing or another's.
    """
    if state.phase is Phase.COMPLETED:
        return Completed(run_id=state.run, output=state.output)
    if state.phase is Phase.CANCELLED:
        return Cancelled(run_id=state.run, report=report(state))
    if checkpoint is None or (checkpoint.run, checkpoint.head_seq) != (state.run, state.seq):
        where = f"run {state.run}, {state.phase} at seq {state.seq}"
        raise ValueError(f"{where}: needs its checkpoint, got {checkpoint}")
    if state.error is not None and state.phase is Phase.FAILED:
        said = state.error
        return Failed(run_id=state.run, error=said.error, code=said.code, checkpoint=checkpoint)
    return Paused(
        run_id=state.run,
        checkpoint=checkpoint,
        reason=paused_reason(state),
        asks=ask_views(state),
    )


def paused_reason(state: State) -> Reason:
    """Return why a paused, waiting or halted run does not go on.

    Raises:
        ValueError: it is in another phase.
    """
    if state.phase is Phase.HALTED:
        return "halted"
    if state.phase is Phase.PAUSED and state.hold is not None:
        return state.hold.why
    if state.phase is Phase.WAITING and state.open_asks:
        # With nothing that blocks, a finished run waits for its queued approvals.
        first = next(iter(state.waited_for), state.asks[state.open_asks[0] - 1])
        return _REASONS[first.kind]
    raise ValueError(f"run {state.run} is {state.phase}: it has not come to rest")


def ask_views(state: State) -> tuple[AskView, ...]:
    """Return everything that is open for people to decide, in the order it was asked."""
    return tuple(_view(state, state.asks[number - 1]) for number in state.open_asks)


def _view(state: State, ask: Ask) -> AskView:
    call = state.call(ask.call)
    assert call is not None, "an ask is about a call"
    return AskView(
        id=ask.id,
        kind=ask.ask_kind,
        of=ask.of,
        question=ask.question,
        data=ask.data,
        call=ask.call,
        tool=call.use.tool,
        args=call.use.args,
        why=call.use.why,
        hidden=check_hidden(ask, call.use)[0],
        audience=ask.audience,
        expires_at=ask.expires,
        declinable=ask.declinable,
    )
