"""Anything that people, drivers and time may bring: what the bare-core machine is fed with."""

from hypothesis import strategies as st

from midrun.core import controls as c
from midrun.core import evidence as v
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
from midrun.core.ids import SECOND, AskId, CallId, Epoch, FrameId, Micros, Seq
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
)
from midrun.core.values import Actor, Effect, Item, Reply, Spend, Traits, Use

ANN, BOB = Actor(name="ann"), Actor(name="bob", role="operator")

LOOK = Use(tool="look", args={"at": 1}, traits=Traits(effect=Effect.READ))
PUT = Use(tool="put", args={}, traits=Traits(effect=Effect.IDEMPOTENT, undo=True))
MAIL = Use(tool="mail", args={})
DRAFT = Use(tool="draft", args={}, traits=Traits(undo=True))
CHARGE = Use(tool="charge", args={}, traits=Traits(undo=True, undo_unknown=False))
LOCK = Use(tool="lock", args={}, traits=Traits(release=True))
BOTH = Use(tool="both", args={}, traits=Traits(undo=True, release=True))
PAY = Use(tool="pay", args={}, traits=Traits(check=True, undo=True))
SEND = Use(
    tool="send", args={}, traits=Traits(approve="block", audience="operator", four_eyes=True)
)
POST = Use(tool="post", args={}, traits=Traits(approve="queue", undo=True))
CHILD = Use(tool="child", args={}, kind="child")
NONE = Use(tool="none", refused="there is no such tool")

USES = st.sampled_from(
    [LOOK, PUT, MAIL, DRAFT, CHARGE, LOCK, BOTH, PAY, SEND, POST, CHILD, NONE]
)
TEXTS = st.sampled_from(["", "so", "all done", "more"])
NUMBERS = st.integers(min_value=0, max_value=11)
SPENDS = st.builds(Spend, tokens=st.sampled_from([0, 40, 70]), cost=st.sampled_from([0, 9]))

STOPS = st.sampled_from(
    [
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
    ]
)

SPECS = st.builds(
    RunStarted,
    agent=st.just("clerk"),
    task=st.just("Sort the mail"),
    by=st.just("ann"),
    stop=STOPS,
    hosted=st.sampled_from([False, False, False, True]),
    frame_depth=st.integers(min_value=0, max_value=2),
    frame_ttl=st.just(20 * SECOND),
    undo_attempts=st.integers(min_value=1, max_value=2),
    model_attempts=st.integers(min_value=1, max_value=2),
    window=st.sampled_from([0, 5]),
)

WISHES = st.sampled_from(
    [c.Pause, c.Resume, c.Redirect, c.Say, c.Cancel]
    + [c.Answer, c.Approve, c.Decline] * 2
    + [c.Halt, c.Lift, c.RaiseCap, c.Withdraw, c.ForcePause, c.RetryUndo, c.AcceptResidue]
    + [c.ResumeFrame, c.DropFrame, c.TakeOver, c.Write, c.UseTool, c.HandBack]
)


@st.composite
def wishes(draw: st.DrawFn, state: State, now: Micros) -> Control:
    """Return something that a person may ask of a run in `state`, sensible or not."""
    kind = draw(WISHES)
    by = draw(st.sampled_from([ANN, BOB]))
    request = draw(st.sampled_from(["", "", "", "r1", "r2", "r3", "r4"]))
    later = draw(st.sampled_from([None, None, now + 5 * SECOND]))
    ask = AskId(f"a{max(0, len(state.asks) - draw(st.integers(0, 2)))}")
    frame = FrameId(f"f{max(0, state.frames_pushed - draw(st.integers(0, 1)))}")
    more: dict[type[Control], dict[str, object]] = {
        c.Pause: {"now": draw(st.booleans()), "until": later},
        c.Resume: {"instruction": draw(TEXTS), "caps": draw(st.sampled_from([{}, CAPS]))},
        c.Redirect: {"text": draw(TEXTS), "when": draw(st.sampled_from(["next_step", "now"]))},
        c.Say: {
            "text": draw(TEXTS),
            "urgency": draw(st.sampled_from(["now", "next", "later"])),
            "due": later,
        },
        c.Answer: {"ask": ask, "value": draw(st.sampled_from(["yes", "no", "unknown", 7]))},
        c.Approve: {"ask": ask, "args": draw(st.sampled_from([None, {"to": "eve"}]))},
        c.Decline: {"ask": ask},
        c.Cancel: {"undo": draw(st.sampled_from(["in_flight", "all"]))},
        c.RaiseCap: {"caps": draw(st.sampled_from([CAPS, {"tokens": 400}, {"steps": 9}]))},
        c.Withdraw: {"seq": Seq(max(0, state.seq - draw(st.integers(0, 4))))},
        c.ResumeFrame: {"frame": frame},
        c.DropFrame: {"frame": frame},
        c.Write: {"text": draw(TEXTS)},
        c.UseTool: {"use": draw(USES)},
        c.HandBack: {"instruction": draw(TEXTS)},
    }
    return kind(by=by, request=request, **more.get(kind, {}))


CAPS = {"tokens": 300}


@st.composite
def endings(draw: st.DrawFn, call: Call) -> v.Close:
    """Return how a call in flight may end, under a right epoch or a wrong one."""
    spent = draw(st.one_of(st.none(), SPENDS))
    reply = None
    if call.call_kind == "model":
        uses = tuple(draw(st.lists(USES, max_size=3)))
        reply = Reply(text=draw(TEXTS), uses=uses, window=draw(st.sampled_from([0, 9])))
    failed = CallFailed(call=call.id, error="no", transient=draw(st.booleans()), spent=spent)
    aborted = CallAborted(call=call.id, text=draw(TEXTS), spent=spent)
    done = CallDone(call=call.id, result=1, reply=reply, spent=spent)
    unknown = CallUnknown(call=call.id, why="not_responding")
    outcome = draw(st.sampled_from([done, done, done, failed, aborted, unknown]))
    return v.Close(epoch=Epoch(0), outcome=outcome)


@st.composite
def undo_endings(draw: st.DrawFn, state: State) -> v.CloseUndo:
    """Return how the undo in flight may end."""
    assert state.cleaning is not None
    number, action = state.cleaning
    call = CallId(f"c{number}")
    kind = draw(st.sampled_from([UndoDone, UndoDone, UndoFailed, UndoUnknown]))
    return v.CloseUndo(epoch=Epoch(0), outcome=kind(call=call, action=action))


@st.composite
def findings(draw: st.DrawFn, state: State, now: Micros) -> v.Evidence:
    """Return evidence that nobody ordered: out of turn, about calls that may not exist."""
    call = CallId(f"c{draw(NUMBERS)}")
    epoch = Epoch(state.epoch)
    later = draw(st.sampled_from([None, Micros(now + 5 * SECOND)]))
    action = draw(st.sampled_from(["undo", "release"]))
    return draw(
        st.sampled_from(
            [
                v.Advanced(epoch=epoch),
                v.Settled(epoch=epoch),
                v.Start(epoch=epoch, call=call, seen=state.seq),
                v.Close(epoch=epoch, outcome=CallDone(call=call)),
                v.CloseUndo(epoch=epoch, outcome=UndoDone(call=call, action=action)),
                v.AskPerson(
                    epoch=epoch,
                    call=call,
                    question="Which one?",
                    child=draw(st.booleans()),
                    expires=later,
                ),
                v.AskMoot(ask=AskId(f"a{draw(NUMBERS)}")),
                v.SaveProgress(epoch=epoch, call=call, progress=3),
                v.Propose(epoch=epoch, use=draw(USES)),
                v.SetPlan(epoch=epoch, items=(Item(text="one", mark="done"), Item(text="two"))),
                v.GiveVerdict(epoch=epoch, name="checks:enough", met=draw(st.booleans())),
                v.SettleCall(epoch=epoch, call=call, happened=draw(st.booleans())),
                v.StartUndo(epoch=epoch, call=call, action=action),
                v.Finish(epoch=epoch, output="over"),
                v.Fail(epoch=epoch, error="boom"),
                v.StandDown(epoch=epoch),
                v.TakeLease(holder="two", held=True),
            ]
        )
    )
