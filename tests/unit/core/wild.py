"""Anything that people, drivers and time may bring: what the bare-core machine is fed with.

Every choice is made by a `Pick`, so that Hypothesis (which shrinks) and a plain generator
(which is fast) can play the same game.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core import effects as o
from midrun.core.controls import Control
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallUnknown,
    RunStarted,
    UndoDone,
    UndoFailed,
    UndoUnknown,
)
from midrun.core.ids import MICROS_PER_SECOND, AskId, CallId, Epoch, FrameId, Micros, Seq
from midrun.core.state import Call, State
from midrun.core.stops import (
    Custom,
    MaxCost,
    MaxSteps,
    MaxTime,
    MaxTokens,
    MaxToolCalls,
    Repeats,
    TextMention,
    measure_caps,
)
from midrun.core.transitions import INPUT_TABLE
from midrun.core.values import (
    Actor,
    CleanupAction,
    Effect,
    Item,
    Phase,
    Reply,
    Spend,
    Traits,
    Use,
)

T = TypeVar("T")
Outcome = CallDone | CallFailed | CallAborted | CallUnknown


class Pick(Protocol):
    """Chance: returns one of the items."""

    def __call__(self, items: Sequence[T], /) -> T:
        """Return one of `items`."""
        ...


ANN, BOB = Actor(name="ann"), Actor(name="bob", role="operator")

USES = (
    Use(tool="look", args={"at": 1}, traits=Traits(effect=Effect.READ)),
    Use(tool="put", args={}, traits=Traits(effect=Effect.IDEMPOTENT, undo=True)),
    Use(tool="mail", args={}),
    Use(tool="draft", args={}, traits=Traits(undo=True)),
    Use(tool="charge", args={}, traits=Traits(undo=True, undo_unknown=False)),
    Use(tool="lock", args={}, traits=Traits(release=True)),
    Use(tool="both", args={}, traits=Traits(undo=True, release=True)),
    Use(tool="pay", args={}, traits=Traits(check=True, undo=True)),
    Use(tool="send", traits=Traits(approve="block", audience="operator", four_eyes=True)),
    Use(tool="fix", args={}, traits=Traits(approve="block", effect=Effect.IDEMPOTENT)),
    Use(tool="post", args={}, traits=Traits(approve="queue", undo=True)),
    Use(tool="child", args={}, kind="child"),
    Use(tool="none", refused="there is no such tool"),
)
TEXTS = ("", "so", "all done", "more")
TOKENS = (0, 0, 40, 70)
COSTS = (0, 0, 9)
NUMBERS = tuple(range(12))
YES_NO = (False, True)
ACTIONS: tuple[CleanupAction, ...] = ("undo", "release")
CAPS = {"tokens": 300}

STOPS = (
    None,
    None,
    None,
    MaxTokens(100),
    MaxSteps(2) | MaxTokens(150),
    MaxCost(usd=0.00002),
    MaxTime(seconds=30),
    MaxToolCalls(2),
    Repeats(2),
    TextMention("done", then="complete") | MaxSteps(3),
    Custom("checks:enough"),
    MaxSteps(1) & ~TextMention("done"),
)

WISHES: tuple[type[Control], ...] = (
    *(c.Pause, c.Resume, c.Redirect, c.Say, c.Say, c.Cancel),
    *(c.Answer, c.Approve, c.Decline) * 2,
    *(c.Halt, c.Lift, c.RaiseCap, c.Withdraw, c.ForcePause, c.RetryUndo, c.AcceptResidue),
    *(c.ResumeFrame, c.DropFrame, c.TakeOver, c.Write, c.UseTool, c.HandBack),
)


def spec(pick: Pick) -> RunStarted:
    """Return some run."""
    return RunStarted(
        agent="clerk",
        task="Sort the mail",
        by="ann",
        stop=pick(STOPS),
        hosted=pick((False, False, False, True)),
        frame_depth=pick((2, 1, 0)),
        frame_ttl=20 * MICROS_PER_SECOND,
        undo_attempts=pick((1, 2)),
        model_attempts=pick((1, 2)),
        window=pick((0, 5)),
    )


def spend(pick: Pick) -> Spend:
    """Return some amount."""
    return Spend(tokens=pick(TOKENS), cost=pick(COSTS))


def habits(pick: Pick) -> tuple[type[Control], ...]:
    """Return what people ask for in one game: a few things often lead deeper than all."""
    chosen = tuple(kind for kind in WISHES if pick(YES_NO))
    return chosen or WISHES


def wish(
    pick: Pick, state: State, now: Micros, kinds: tuple[type[Control], ...] = WISHES
) -> Control:
    """Return something that a person may ask of a run in `state`, mostly at a fitting time."""
    fitting = tuple(kind for kind in kinds if INPUT_TABLE[kind][state.phase].next_phases)
    at_a_fitting_time = bool(fitting) and pick((True, True, True, False))
    kind = pick(fitting if at_a_fitting_time else kinds)
    later = pick((None, None, Micros(now + 5 * MICROS_PER_SECOND)))
    ask = AskId(f"a{max(0, len(state.asks) - pick((0, 0, 1, 2)))}")
    frame = FrameId(f"f{max(0, state.frames_pushed - pick((0, 0, 1)))}")
    more: dict[type[Control], dict[str, object]] = {
        c.Pause: {"now": pick(YES_NO), "until": later},
        c.Resume: {"instruction": pick(TEXTS), "caps": pick(({}, CAPS))},
        c.Redirect: {"text": pick(TEXTS), "when": pick(("next_step", "now"))},
        c.Say: {"text": pick(TEXTS), "urgency": pick(("next", "now", "later")), "due": later},
        c.Answer: {"ask": ask, "value": pick(("yes", "no", "unknown", 7))},
        c.Approve: {"ask": ask, "args": pick((None, {"to": "eve"}))},
        c.Decline: {"ask": ask},
        c.Cancel: {"undo": pick(("in_flight", "all"))},
        c.RaiseCap: {"caps": pick((CAPS, {"tokens": 400}, {"steps": 9}, {"cost": 99}))},
        c.Withdraw: {"seq": Seq(max(0, state.seq - pick((0, 1, 2, 3, 4))))},
        c.ResumeFrame: {"frame": frame},
        c.DropFrame: {"frame": frame},
        c.Write: {"text": pick(TEXTS)},
        c.UseTool: {"use": pick(USES)},
        c.HandBack: {"instruction": pick(TEXTS)},
    }
    request = pick(("", "", "", "", "r1", "r2", "r3", "r4"))
    return kind(by=pick((ANN, BOB)), request=request, **more.get(kind, {}))  # type: ignore[arg-type]  # its own fields


def revival(pick: Pick, state: State) -> Control | None:
    """Return what lets a run that rests go on, if anything does."""
    if state.phase is Phase.HALTED:
        return c.Lift(by=BOB)
    if state.phase is Phase.PAUSED and state.operator_name:
        return c.HandBack(by=ANN if state.operator_name == "ann" else BOB)
    if state.phase in {Phase.PAUSED, Phase.FAILED}:
        reached = state.pause.cap_name if state.pause is not None else ""
        bounds = measure_caps(state.stop, state.meter)
        return c.Resume(caps={reached: 2 * bounds[reached][1] + 90} if reached else {})
    if state.phase is not Phase.WAITING or not state.open_asks:
        return None
    ask = state.asks[pick(state.open_asks) - 1]
    if ask.ask_kind == "approval":
        decisions: tuple[Control, ...] = (
            c.Approve(ask=ask.id, by=BOB),
            c.Decline(ask=ask.id, by=BOB),
        )
        return pick(decisions)
    return c.Answer(ask=ask.id, by=BOB, value=pick(("yes", "no", "unknown")))


def ending(pick: Pick, state: State, call: Call) -> v.CloseCall:
    """Return how a call in flight may end."""
    reply = None
    if call.call_kind == "model":
        uses = tuple(pick(USES) for _ in range(pick((0, 1, 1, 2, 3))))
        reply = Reply(text=pick(TEXTS), uses=uses, window=pick((0, 9)))
    spent = pick((None, spend(pick)))
    done = CallDone(call=call.id, result=1, reply=reply, spent=spent)
    failed = CallFailed(call=call.id, error="no", transient=pick(YES_NO), spent=spent)
    aborted = CallAborted(call=call.id, text=pick(TEXTS), spent=spent)
    unknown = CallUnknown(call=call.id, why="not_responding")
    outcomes: tuple[Outcome, ...] = (done, done, done, done, failed, aborted, unknown)
    return v.CloseCall(epoch=state.epoch, outcome=pick(outcomes))


def undo_ending(pick: Pick, state: State) -> v.CloseUndo:
    """Return how the undo in flight may end."""
    assert state.cleanup_in_flight is not None
    number, action = state.cleanup_in_flight
    call = CallId(f"c{number}")
    kind = pick((UndoDone, UndoDone, UndoFailed, UndoUnknown))
    return v.CloseUndo(epoch=state.epoch, outcome=kind(call=call, action=action))


def asking(pick: Pick, state: State, call: Call, now: Micros) -> v.DriverInput:
    """Return what a call in flight may say before it ends: a question, or its progress."""
    if pick(YES_NO):
        return v.SaveProgress(epoch=state.epoch, call=call.id, progress=3)
    return v.AskPerson(
        epoch=state.epoch,
        call=call.id,
        question="Which one?",
        child=call.call_kind == "child",
        expires=pick((None, Micros(now + 5 * MICROS_PER_SECOND))),
    )


def finding(pick: Pick, state: State) -> v.DriverInput:
    """Return evidence that nobody ordered: out of turn, about calls that may not exist."""
    call = CallId(f"c{pick(NUMBERS)}")
    epoch = pick((state.epoch, state.epoch, Epoch(state.epoch - 1)))
    action: CleanupAction = pick(ACTIONS)
    items = (Item(text="one", mark="done"), Item(text="two"))
    found: tuple[v.DriverInput, ...] = (
        v.CrossBoundary(epoch=epoch),
        v.SettlePhase(epoch=epoch),
        v.StartCall(epoch=epoch, call=call, seen_seq=pick((state.seq, Seq(state.seq // 2)))),
        v.CloseCall(epoch=epoch, outcome=CallDone(call=call)),
        v.CloseUndo(epoch=epoch, outcome=UndoDone(call=call, action=action)),
        v.AskPerson(epoch=epoch, call=call, question="Which one?"),
        v.CloseChildAsk(ask=AskId(f"a{pick(NUMBERS)}")),
        v.SaveProgress(epoch=epoch, call=call, progress=3),
        v.ProposeCall(epoch=epoch, use=pick(USES)),
        v.SetPlan(epoch=epoch, items=items),
        v.RecordStopVerdict(epoch=epoch, name="checks:enough", met=pick(YES_NO)),
        v.SettleCall(epoch=epoch, call=call, happened=pick(YES_NO)),
        v.StartUndo(epoch=epoch, call=call, action=action),
        v.FinishHostedAgent(epoch=epoch, output="over"),
        v.FailRun(epoch=epoch, error="boom"),
        v.StandDown(epoch=epoch),
        v.TakeLease(holder="two", held_by_other=True),
    )
    return pick(found)


def hosted(pick: Pick, epoch: Epoch) -> v.DriverInput:
    """Return what a hosted agent wants: a call, or its end."""
    if pick(YES_NO):
        return v.ProposeCall(epoch=epoch, use=pick(USES))
    return v.FinishHostedAgent(epoch=epoch, output="hosted")


def performed(pick: Pick, order: o.DriverEffect, state: State) -> v.DriverInput | None:  # noqa: C901 - one arm per order
    """Return what a driver brings that performs `order`; None if it can only wait."""
    epoch = state.epoch
    match order:
        case o.Advance():
            return v.CrossBoundary(epoch=epoch)
        case o.CallModel(call=call) | o.CallTool(call=call):
            return v.StartCall(epoch=epoch, call=call, seen_seq=state.seq, reserved=spend(pick))
        case o.CheckCall(call=call):
            return v.SettleCall(epoch=epoch, call=call, happened=pick(YES_NO))
        case o.EvaluateStopCondition(name=name):
            return v.RecordStopVerdict(epoch=epoch, name=name, met=pick(YES_NO))
        case o.AbortCall(call=call) | o.ControlChild(call=call):
            return v.CloseCall(epoch=epoch, outcome=CallAborted(call=call))
        case o.Undo(call=call, action=action) | o.Release(call=call, action=action):
            return v.StartUndo(epoch=epoch, call=call, action=action)
        case o.RunHost():
            return hosted(pick, epoch)
        case o.Settle():
            return v.SettlePhase(epoch=epoch)
        case o.Park():
            return v.StandDown(epoch=epoch, why="parked")
        case o.WakeAt():
            return None
