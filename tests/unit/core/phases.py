"""Runs in every phase, and inputs of every type, for the tests of the transition tables."""

from collections.abc import Mapping
from typing import Final

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.entries import CallDone, LateResult, LeaseTaken, RunStarted, UndoDone
from midrun.core.ids import AskId, CallId, Epoch, FrameId, RunId, Seq
from midrun.core.transitions import Input
from midrun.core.values import (
    Actor,
    FileRef,
    Origin,
    Phase,
    PlanItem,
    Reply,
    RequestedCall,
    Traits,
)
from midrun.testing.scenario import LEASED_RUN, Scenario, given

ANN: Final = Actor(name="ann")
MAIL: Final = RequestedCall(tool="mail", args={"to": "bo"}, traits=Traits(undo=True))
PICTURE: Final = FileRef(name="a.png", media_type="image/png", size=4, hash="0" * 64)
TOO_LARGE: Final = FileRef(name="b.bin", media_type="image/png", size=10**9, hash="1" * 64)
ASK: Final = RequestedCall(tool="ask_human", args={})

idle_run: Final = given(*LEASED_RUN)
mailing_run: Final = idle_run.replies(MAIL).starts("c2")
ASK_INPUT: Final = v.AskPerson(epoch=Epoch(1), call=CallId("c2"))
asking_run: Final = idle_run.replies(ASK).starts("c2").after(ASK_INPUT)
waiting_run: Final = asking_run.advances()
paused_run: Final = (
    mailing_run.after(v.CloseCall(epoch=Epoch(1), outcome=CallDone(call=CallId("c2"))))
    .when(c.Pause())
    .advances()
)
cancelling_run: Final = mailing_run.when(c.Cancel())
child_run: Final = (
    given(
        RunStarted(agent="aide", task="Mail", parent=Origin(run=RunId("run_parent"))),
        LeaseTaken(epoch=Epoch(1)),
    )
    .replies(MAIL)
    .starts("c2")
    .after(v.CloseCall(epoch=Epoch(1), outcome=CallDone(call=CallId("c2"))))
)
"""A child run with a finished call that can be undone."""

RUNS_BY_PHASE: Final[Mapping[Phase, tuple[Scenario, ...]]] = {
    Phase.QUEUED: (
        given(LEASED_RUN[0]),
        paused_run.when(c.Resume()),
        waiting_run.when(c.Redirect(text="no")),
    ),
    Phase.RUNNING: (
        idle_run,
        mailing_run,
        asking_run,
        idle_run.when(c.Say(text="hm?")).advances(),
    ),
    Phase.PAUSING: (mailing_run.when(c.Pause()), asking_run.when(c.TakeOver(by=ANN))),
    Phase.PAUSED: (
        paused_run,
        paused_run.when(c.TakeOver(by=ANN)),
        waiting_run.when(c.Pause()),
    ),
    Phase.WAITING: (waiting_run, waiting_run.when(c.Say(text="x", urgency="later"))),
    Phase.CANCELLING: (cancelling_run, paused_run.when(c.Cancel(undo="all"))),
    Phase.CANCELLED: (
        waiting_run.when(c.Cancel()),
        given(LEASED_RUN[0]).when(c.Cancel()),
        child_run.when(c.Cancel()).advances(),
    ),
    Phase.COMPLETED: (
        idle_run.replies(text="done").advances(),
        child_run.replies(text="done").advances(),
    ),
    Phase.FAILED: (idle_run.after(v.FailRun(epoch=Epoch(1), error="boom")),),
    Phase.HALTED: (
        mailing_run.when(c.Halt()),
        waiting_run.when(c.Halt()),
        cancelling_run.when(c.Halt()),
    ),
}

INPUTS: Final[tuple[Input, ...]] = (
    c.Pause(),
    c.Pause(now=True),
    c.Resume(),
    c.Resume(instruction="go on"),
    c.Resume(caps={"steps": 9}),
    c.Redirect(text="other way"),
    c.Redirect(text="", when="now"),
    c.Say(text="why?"),
    c.Say(text=" "),
    c.Answer(ask=AskId("a1"), value=1),
    c.Answer(ask=AskId("a9")),
    c.Approve(ask=AskId("a1")),
    c.Decline(ask=AskId("nonsense")),
    c.Say(text="look", files=(PICTURE,)),
    c.Say(text="look", files=(TOO_LARGE,)),
    c.Redirect(text="look", files=(TOO_LARGE,)),
    c.Resume(instruction="look", files=(PICTURE,)),
    c.Resume(instruction="look", files=(TOO_LARGE,)),
    c.Resume(files=(PICTURE,)),
    c.Cancel(),
    c.Cancel(undo="all"),
    c.Halt(),
    c.Lift(),
    c.RaiseCap(caps={"steps": 9}),
    c.Withdraw(seq=Seq(3)),
    c.Withdraw(seq=Seq(999)),
    c.ForcePause(),
    c.RetryUndo(),
    c.AcceptResidue(),
    c.ResumeFrame(frame=FrameId("f1")),
    c.DropFrame(frame=FrameId("f1")),
    c.TakeOver(by=ANN),
    c.Write(text="hello", by=ANN),
    c.UseTool(use=MAIL, by=ANN),
    c.HandBack(by=ANN),
    v.TakeLease(holder="w2"),
    v.TakeLease(holder="w2", held_by_other=True),
    v.ReportLateResult(result=LateResult(call=CallId("c2"), attempt=1, epoch=Epoch(0))),
    v.ReportLateResult(result=LateResult(call=CallId("c0"), attempt=1, epoch=Epoch(0))),
    v.Wake(),
    v.CloseCall(epoch=Epoch(1), outcome=CallDone(call=CallId("c2"), reply=Reply())),
    v.AskPerson(epoch=Epoch(1), call=CallId("c2")),
    v.CloseChildAsk(ask=AskId("a1")),
    v.TakeBack(parent=RunId("run_parent")),
    v.TakeBack(parent=RunId("run_other")),
    v.SaveProgress(epoch=Epoch(1), call=CallId("c2"), progress=1),
    v.ShowArtifact(epoch=Epoch(1), call=CallId("c2"), name="plan.md", file=PICTURE),
    v.ShowArtifact(epoch=Epoch(1), call=CallId("c2"), name="big.bin", file=TOO_LARGE),
    v.ProposeCall(epoch=Epoch(1), use=MAIL),
    v.SetPlan(epoch=Epoch(1), items=(PlanItem(text="one"),)),
    v.RecordStopVerdict(epoch=Epoch(1), name="m:f", met=False),
    v.SettleCall(epoch=Epoch(1), call=CallId("c2"), happened=True),
    v.CloseCleanup(epoch=Epoch(1), outcome=UndoDone(call=CallId("c2"))),
    v.FinishHostedAgent(epoch=Epoch(1)),
    v.FailRun(epoch=Epoch(1), error="boom"),
    v.StandDown(epoch=Epoch(1)),
)
