"""The view: a run as people look at it. Computed from its journal, stored nowhere."""

from midrun.agents.outcome import AskView, ask_views
from midrun.core.ids import CallId, FrameId, Micros, RunId, Seq
from midrun.core.offers import Offer, offers
from midrun.core.state import Call, Stage, State
from midrun.core.stops import caps
from midrun.core.values import Item, Phase, Value
from midrun.core.words import fate, line, place


class Usage(Value, kw_only=True):
    """What the run has used. `reserved` is set aside for calls in flight, or lost with them."""

    tokens: int = 0
    cost_usd: float = 0.0
    reserved_tokens: int = 0
    reserved_usd: float = 0.0


class CapView(Value, kw_only=True):
    """A bound, and how much of it is used; money in dollars, time in seconds."""

    name: str
    used: float
    cap: float


class FrameView(Value, kw_only=True):
    """A thought that is held while something else is answered."""

    id: FrameId
    goal: str
    place: str
    expires_at: Micros


class CallView(Value, kw_only=True):
    """A call that is in flight now, or the undo or release of one."""

    id: CallId
    tool: str  # empty for the model
    since: Micros
    attempt: int
    form: str = "call"  # or undo, or release
    why: str = ""  # the agent makes it
    unstoppable: bool = False  # it blocks a thread: a cancel will not wait for it


class EffectView(Value, kw_only=True):
    """A call that changed the world, or may have."""

    id: CallId
    tool: str
    stage: str
    can_undo: bool
    undo: str = ""  # how far its undo is
    note: str = ""
    why: str = ""  # the agent made it


class PendingView(Value, kw_only=True):
    """Words that wait for their boundary; can be withdrawn by their seq."""

    seq: Seq
    kind: str
    text: str
    by: str


class RunView(Value, kw_only=True):
    """Where a run stands, in one piece, as of `seq`."""

    run_id: RunId
    seq: Seq
    agent: str
    task: str
    phase: Phase
    since_by: str = ""  # who brought it into this phase
    reason: str = ""  # why it is paused
    step: int = 0
    place: str = ""  # "step 4 of 7", or "step 4"
    plan: tuple[Item, ...] = ()
    elapsed: float = 0.0  # seconds at work
    started_at: Micros = Micros(0)
    changed_at: Micros = Micros(0)
    usage: Usage = Usage()
    stop: str = ""
    caps: tuple[CapView, ...] = ()
    frames: tuple[FrameView, ...] = ()
    asks: tuple[AskView, ...] = ()
    pending: tuple[PendingView, ...] = ()
    in_flight: tuple[CallView, ...] = ()
    effects: tuple[EffectView, ...] = ()
    controls: dict[str, Offer] = {}  # noqa: RUF012 - msgspec copies an empty default
    output: str = ""
    error: str = ""
    labels: tuple[str, ...] = ()
    thread: str = ""


SCALES = {"cost": 1e6, "time": 1e6}


def view_of(state: State, *, started_at: Micros) -> RunView:
    """Return how the run in `state` looks."""
    spec, spent, reserved = state.started, state.meter.spent, state.meter.reserved
    return RunView(
        run_id=state.run,
        seq=state.seq,
        agent=spec.agent,
        task=spec.task,
        phase=state.phase,
        since_by=state.since_by,
        reason=state.hold.why if state.hold is not None else "",
        step=state.meter.steps,
        place=place(state.plan, state.meter.steps),
        plan=state.plan,
        elapsed=state.worked / 1e6,
        started_at=started_at,
        changed_at=state.at,
        usage=Usage(
            tokens=spent.tokens,
            cost_usd=spent.cost / 1e6,
            reserved_tokens=reserved.tokens,
            reserved_usd=reserved.cost / 1e6,
        ),
        stop="" if state.stop is None else str(state.stop),
        caps=tuple(
            CapView(name=name, used=used / SCALES.get(name, 1), cap=cap / SCALES.get(name, 1))
            for name, (used, cap) in caps(state.stop, state.metered).items()
        ),
        frames=_frames(state),
        asks=ask_views(state),
        pending=tuple(
            PendingView(seq=p.seq, kind=p.kind, text=p.text, by=p.by) for p in state.pending
        ),
        in_flight=_in_flight(state),
        effects=_effects(state),
        controls=offers(state),
        output=state.output,
        error=state.error.error if state.error is not None else "",
        labels=spec.labels,
        thread=spec.thread,
    )


def _frames(state: State) -> tuple[FrameView, ...]:
    return tuple(
        FrameView(
            id=frame.id,
            goal=frame.goal,
            place=place(frame.plan, frame.done),
            expires_at=frame.expires,
        )
        for frame in state.frames
    )


def _in_flight(state: State) -> tuple[CallView, ...]:
    calls = (state.calls[n - 1] for n in state.in_flight)
    flying = tuple(
        CallView(
            id=call.id,
            tool=call.use.tool,
            since=call.started_at,
            attempt=call.attempt,
            why=call.use.why,
            unstoppable=call.traits.unstoppable,
        )
        for call in calls
    )
    if state.cleaning is None:
        return flying
    number, action = state.cleaning
    call = state.calls[number - 1]
    attempt = call.cleanup(action).attempts
    cleanup = CallView(
        id=call.id, tool=call.use.tool, since=state.at, attempt=attempt, form=action
    )
    return (*flying, cleanup)


def _effects(state: State) -> tuple[EffectView, ...]:
    calls = (state.calls[n - 1] for n in state.effects)
    return tuple(
        EffectView(
            id=call.id,
            tool=call.use.tool,
            stage=call.stage,
            can_undo=call.traits.undo,
            undo=call.undo.stage,
            note=line(call.undo.error or call.error or _fate(call)),
            why=call.use.why,
        )
        for call in calls
    )


def _fate(call: Call) -> str:
    return "" if call.stage is Stage.DONE else fate(call)
