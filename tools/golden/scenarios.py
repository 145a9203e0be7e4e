"""The stories that stored journals tell, made by the machine itself."""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from midrun.codec.hash_chain import UNKEYED_CHAIN
from midrun.codec.journal import format_record
from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    LateResult,
    RunImported,
)
from midrun.core.ids import MICROS_PER_SECOND, AskId, CallId, Epoch, FrameId, Micros, Seq
from midrun.core.stops import Custom, MaxCost, MaxSteps, MaxToolCalls, TextMention
from midrun.core.values import Actor, Effect, Item, Reply, Spend, Traits, Use
from midrun.testing.scenario import Scenario
from tools.golden import thinking
from tools.golden.telling import (
    A1,
    ANN,
    BOB,
    CHILD,
    DRAFT,
    LOCK,
    LOOK,
    MAIL,
    PAY,
    POST,
    begun,
    cleaned_up,
    ends,
    taken,
)


def plain_completion() -> Scenario:
    """Two steps, a plan, and an answer."""
    items = (Item(text="Read", mark="done"), Item(text="Write", mark="running"))
    run = begun(labels=("demo",), thread="t1").replies(LOOK, DRAFT, text="I will look first.")
    run = ends(run.starts("c2", "c3", reserve=Spend(tokens=9)), "c2", {"found": ["a", "ß"]})
    run = ends(run.later(0.25), "c3").after(v.SetPlan(epoch=Epoch(1), items=items))
    return run.later(1).replies(text="All sorted.").advances()


def pause_and_resume_with_an_instruction() -> Scenario:
    """The tool in flight finishes; the text is applied at the next boundary."""
    run = begun().replies(LOOK).starts("c2").when(c.Pause(by=ANN, reason="lunch", request="p1"))
    run = run.after(v.SaveProgress(epoch=Epoch(1), call=CallId("c2"), progress={"page": 3}))
    stopped = v.CloseCall(epoch=Epoch(1), outcome=CallAborted(call=CallId("c2")))
    run = run.after(stopped).advances().when(c.Pause(by=BOB, request="p2"))
    run = run.later(60).when(c.Resume(by=ANN, instruction="Only this year's", request="p3"))
    return taken(run).advances().replies(text="Only this year's, then.").advances()


def redirect_now() -> Scenario:
    """A stream is closed with its text kept; one redirect is withdrawn, one applied."""
    run = begun().replies(MAIL, LOOK).starts("c3").when(c.Redirect(by=ANN, text="Wait"))
    run = run.when(c.Withdraw(by=ANN, seq=Seq(run.state.seq)))
    run = run.when(c.Redirect(by=ANN, text="Answer eve only", when="now"))
    stopped = CallAborted(call=CallId("c3"), spent=Spend(tokens=1))
    run = run.after(v.CloseCall(epoch=Epoch(1), outcome=stopped)).advances()
    return run.replies(text="Eve has her answer.").advances()


def cancel_undoes_what_is_in_flight() -> Scenario:
    """Finished work is kept, unfinished work undone, also after a crash; locks are released."""
    run = ends(ends(begun().replies(LOCK, DRAFT).starts("c2", "c3"), "c2"), "c3")
    run = run.replies(DRAFT, MAIL, text="One more.").starts("c5").when(c.Say(by=ANN, text="?"))
    run = run.when(c.Cancel(by=ANN, reason="wrong inbox"))
    stopped = v.CloseCall(epoch=Epoch(1), outcome=CallAborted(call=CallId("c5")))
    undo = v.StartUndo(epoch=Epoch(1), call=CallId("c5"))
    return cleaned_up(taken(run.after(stopped, undo).later(30)))


def cancel_of_all_leaves_a_residue() -> Scenario:
    """One undo fails for ever; an operator tries again, in vain, and accepts it."""
    run = ends(
        ends(begun(undo_attempts=2).replies(DRAFT, DRAFT).starts("c2", "c3"), "c2"), "c3"
    )
    run = cleaned_up(run.when(c.Cancel(by=ANN, undo="all")), failing="c2")
    run = cleaned_up(taken(run.later(60).when(c.RetryUndo(by=BOB))), failing="c2")
    return run.when(c.AcceptResidue(by=BOB, reason="harmless"))


def a_cancel_that_undoes_one_keeps_one_and_fails_at_one() -> Scenario:
    """What cannot be taken back is kept and said, and so is what could not be."""
    run = begun(undo_attempts=2).replies(DRAFT, MAIL).starts("c2", "c3")
    run = ends(ends(run, "c2"), "c3").replies(DRAFT, text="A second one.").starts("c5")
    run = ends(run.later(5), "c5").when(c.Cancel(by=ANN, undo="all", reason="wrong inbox"))
    return cleaned_up(run, failing="c2")


def crash_and_an_unknown_call_settled_by_a_person() -> Scenario:
    """Nobody knows whether the mail left; ann does. What can be checked is checked."""
    run = taken(begun().replies(MAIL, PAY).starts("c2", "c3").later(30)).advances()
    checked = v.SettleCall(epoch=Epoch(2), call=CallId("c3"), happened=True, result="paid")
    run = run.after(checked).advances().later(300)
    run = taken(run.when(c.Answer(by=ANN, ask=A1, value="no"))).starts("c2")
    return ends(run, "c2").replies(text="Sent and paid.").advances()


def a_slow_driver_reports_late() -> Scenario:
    """Its evidence settles what nobody knew, and wakes the run."""
    run = taken(begun().replies(MAIL).starts("c2").later(30)).advances()
    late = LateResult(call=CallId("c2"), attempt=1, epoch=Epoch(1), result="sent")
    return taken(run.after(v.ReportLateResult(result=late))).replies(text="Sent.").advances()


def a_side_question_with_frames() -> Scenario:
    """One is answered and gone back from, one held for too long, one dropped by name."""
    run = begun(frame_ttl=60 * MICROS_PER_SECOND).replies(LOOK).starts("c2")
    run = ends(run.when(c.Say(by=ANN, text="What was that paper?")), "c2").advances()
    run = run.replies(text="The one by Lamport.").advances()
    run = run.when(c.Say(by=ANN, text="And the other?")).advances().later(61)
    run = run.replies(text="That one is lost.").advances()
    run = run.when(c.Say(by=ANN, text="Never mind?")).advances()
    run = run.when(c.DropFrame(by=ANN, frame=FrameId("f3"))).replies(text="As you wish.")
    return run.advances()


def messages_wait_their_turn() -> Scenario:
    """A note for later, one that is scheduled, and one that is taken back."""
    run = begun(frame_depth=1).replies(LOOK).starts("c2")
    run = run.when(c.Say(by=ANN, text="Thanks, by the way", urgency="later"))
    due = Micros(run.now + 5 * MICROS_PER_SECOND)
    run = run.when(c.Say(by=BOB, text="Standup", due=due), c.Say(by=ANN, text="Too late"))
    run = run.when(c.Withdraw(by=ANN, seq=Seq(run.state.seq)))
    run = ends(run.later(6).when(v.Wake()), "c2").advances()
    run = run.replies(text="Noted.").advances().replies(text="Done.").advances()
    return run.replies(text="You are welcome.").advances()


def a_queued_approval() -> Scenario:
    """The agent goes on; the outcome comes later as a message. One of two is declined."""
    run = begun().replies(POST, POST, text="Two proposals.").advances()
    run = run.replies(text="Both are proposed.").advances()
    run = run.when(c.Decline(by=BOB, ask=AskId("a2"), reason="not that one"))
    run = run.when(c.Approve(by=ANN, ask=A1), c.Approve(by=BOB, ask=A1, args={"text": "Hello"}))
    run = ends(taken(run).advances().starts("c2"), "c2", {"id": 7})
    return run.replies(text="One is posted.").advances()


def a_paused_run_is_imported() -> Scenario:
    """An approval that came with the checkpoint does not count: the call asks again."""
    gated = replace(MAIL, traits=Traits(approve="block", audience="operator", four_eyes=True))
    run = begun().replies(gated).advances().when(c.Pause(by=ANN), c.Approve(by=BOB, ask=A1))
    head = UNKEYED_CHAIN.compute_head(run.state.run, map(format_record, run.records)).hex()
    run = run.later(3600).after(
        RunImported(checkpoint=run.state.run, head=head, kid="77ab", by="eve", role="operator")
    )
    run = taken(run.when(c.Resume(by=ANN))).advances()
    eve = c.Approve(by=Actor(name="eve", role="operator"), ask=AskId("a2"), request="e1")
    run = taken(run.when(eve, c.Approve(by=BOB, ask=AskId("a2")))).starts("c2")
    return ends(run, "c2").replies(text="Sent.").advances()


def a_cap_reached_and_raised() -> Scenario:
    """Reaching a cap pauses; a bare resume is refused; a condition of ours never spoke up."""
    run = begun(stop=MaxSteps(1) | MaxCost(usd=0.5) | Custom("checks:enough"))
    run = run.after(v.RecordStopVerdict(epoch=Epoch(1), name="checks:enough", met=False))
    run = ends(run.replies(LOOK).starts("c2"), "c2")
    run = run.after(
        v.RecordStopVerdict(epoch=Epoch(1), name="checks:enough", met=False)
    ).advances()
    run = run.when(c.Resume(by=ANN, request="q1"), c.RaiseCap(by=BOB, caps={"steps": 3}))
    run = taken(run.when(c.Resume(by=ANN)))
    run = run.after(v.RecordStopVerdict(epoch=Epoch(2), name="checks:enough", met=False))
    return run.replies(text="Within bounds.").advances()


def a_cap_reached_within_one_reply() -> Scenario:
    """Four calls of one reply and a cap of two: the others wait; one is made, one given up."""
    run = begun(stop=MaxToolCalls(2)).replies(LOOK, DRAFT, LOOK, DRAFT).starts("c2", "c3")
    run = run.when(v.StartCall(epoch=Epoch(1), call=CallId("c4"), seen_seq=Seq(run.state.seq)))
    run = ends(ends(run, "c2"), "c3").advances().when(c.Resume(by=ANN, request="q1"))
    run = taken(run.when(c.Resume(by=BOB, caps={"tool_calls": 3}))).starts("c4")
    run = run.when(v.StartCall(epoch=Epoch(2), call=CallId("c5"), seen_seq=Seq(run.state.seq)))
    run = ends(run, "c4").advances()
    run = run.when(c.Resume(by=BOB, caps={"tool_calls": 9}, instruction="No more drafts"))
    return taken(run).advances().replies(text="Without the draft, then.").advances()


def four_eyes_and_who_steered() -> Scenario:
    """Who redirected the run may not approve; who edits the arguments needs a third person."""
    traits = Traits(approve="block", four_eyes=True)
    sign = Use(tool="sign", args={"eur": 5}, traits=traits)
    cyd, dan = Actor(name="cyd", role="operator"), Actor(name="dan", role="operator")
    run = begun().replies(LOOK).starts("c2").when(c.Redirect(by=BOB, text="Sign it"))
    run = ends(run, "c2").advances().replies(sign).advances()
    run = run.when(c.Approve(by=BOB, ask=A1, request="q1"))
    run = taken(run.when(c.Approve(by=cyd, ask=A1, args={"eur": 900}))).advances()
    run = run.when(c.Approve(by=cyd, ask=AskId("a2"), request="q2"))
    run = taken(run.when(c.Approve(by=dan, ask=AskId("a2")))).starts("c4")
    return ends(run, "c4").replies(text="It is signed.").advances()


def a_halt_and_a_lift() -> Scenario:
    """The latch holds; what was in flight is stopped, and the run goes on where it was."""
    run = (
        begun().replies(LOOK).starts("c2").when(c.Halt(by=BOB, reason="incident", scope="all"))
    )
    stopped = v.CloseCall(epoch=Epoch(1), outcome=CallAborted(call=CallId("c2")))
    run = run.after(stopped, v.StandDown(epoch=Epoch(1), why="halted"))
    run = taken(run.later(600).when(c.Lift(by=BOB))).starts("c2")
    return ends(run, "c2").replies(text="Where was I?").advances()


def a_person_takes_over_and_hands_back() -> Scenario:
    """They write, have a call made, and return the run with an instruction."""
    run = begun().replies(LOOK).starts("c2").when(c.TakeOver(by=BOB))
    run = ends(run, "c2").advances().when(c.Write(by=BOB, text="Let me do this one."))
    run = taken(run.when(c.UseTool(by=BOB, use=MAIL))).starts("c3")
    run = ends(run, "c3").advances().when(c.HandBack(by=BOB, instruction="Go on from there"))
    return taken(run).advances().replies(text="Going on.").advances()


def a_child_run_that_asks() -> Scenario:
    """The child's question shows on the parent; it is answered on the child."""
    run = begun().replies(CHILD).starts("c2")
    asked = v.AskPerson(epoch=Epoch(1), call=CallId("c2"), question="Which?", child=True)
    run = taken(run.after(asked).advances().when(v.CloseChildAsk(ask=A1))).starts("c2")
    return ends(run, "c2", {"output": "Read."}).replies(text="It is read.").advances()


def a_question_that_nobody_answers() -> Scenario:
    """A tool asks from within and expires; a second one is answered, and that is its result."""
    ask = Use(tool="ask", args={"question": "Blue?"})
    run = begun().replies(ask, ask).starts("c2", "c3")
    until = Micros(run.now + 60 * MICROS_PER_SECOND)
    for call, expires in (("c2", until), ("c3", None)):
        question = v.AskPerson(
            epoch=Epoch(1), call=CallId(call), question="Blue?", data=[1], expires=expires
        )
        run = run.after(question)
    run = run.advances().later(61).when(v.Wake())
    run = taken(run.when(c.Answer(by=ANN, ask=AskId("a2"), value={"blue": True})))
    return run.replies(text="Blue, then.").advances()


def a_failure_and_a_forced_pause() -> Scenario:
    """A model fails for good and is resumed; a tool does not respond and is given up on."""
    run = begun(model_attempts=1).starts("c1")
    failed = CallFailed(call=CallId("c1"), error="529", code="overloaded", text="I was")
    run = (
        run.after(v.CloseCall(epoch=Epoch(1), outcome=failed)).advances().when(c.Resume(by=ANN))
    )
    run = taken(run).replies(MAIL).starts("c3").when(c.Pause(by=ANN, now=True))
    run = run.later(60).when(c.ForcePause(by=ANN))
    return run.when(c.Pause(by=ANN), c.TakeOver(by=ANN, request="t1"), c.Resume(by=BOB))


def a_pause_that_was_withdrawn_and_a_drain() -> Scenario:
    """The run goes on as if nobody had asked; then its process shuts down."""
    run = begun().replies(LOOK).starts("c2").when(c.Pause(by=ANN), c.Resume(by=ANN))
    run = ends(run, "c2").after(v.StandDown(epoch=Epoch(1), why="shutdown"))
    run = taken(run).replies(text="It is done, I think.")
    return run.advances()


def a_text_that_ends_the_run() -> Scenario:
    """A stop condition may say that the run is done."""
    run = begun(stop=TextMention("FIN", then="complete")).replies(LOOK, text="FIN, almost.")
    return ends(run.starts("c2"), "c2").advances()


def a_hosted_agent() -> Scenario:
    """Its calls come one by one, by position, and its return value is the answer."""
    use = Use(
        tool="fetch", args={"n": 1}, position="1:fetch", traits=Traits(effect=Effect.READ)
    )
    run = begun(hosted=True).after(v.ProposeCall(epoch=Epoch(1), use=use)).starts("c1")
    run = ends(run, "c1", [1, 2])
    return run.after(v.FinishHostedAgent(epoch=Epoch(1), output="Fetched.")).advances()


def a_long_history_is_condensed() -> Scenario:
    """The model is given a summary; the journal keeps every word."""
    run = begun(window=5)
    for number in range(1, 9):
        call, tool = CallId(f"c{2 * number - 1}"), f"c{2 * number}"
        reply = Reply(text=f"Step {number}.", uses=(LOOK,), window=number - 1)
        done = CallDone(call=call, reply=reply)
        run = run.starts(call).after(v.CloseCall(epoch=Epoch(1), outcome=done))
        run = ends(run.starts(tool), tool)
    return run.replies(text="We looked often.").replies(text="Enough.").advances()


SCENARIOS: Final[Mapping[str, Callable[[], Scenario]]] = {
    story.__name__: story
    for story in (
        plain_completion,
        pause_and_resume_with_an_instruction,
        redirect_now,
        cancel_undoes_what_is_in_flight,
        cancel_of_all_leaves_a_residue,
        a_cancel_that_undoes_one_keeps_one_and_fails_at_one,
        crash_and_an_unknown_call_settled_by_a_person,
        a_slow_driver_reports_late,
        a_side_question_with_frames,
        messages_wait_their_turn,
        a_queued_approval,
        a_paused_run_is_imported,
        a_cap_reached_and_raised,
        a_cap_reached_within_one_reply,
        four_eyes_and_who_steered,
        a_halt_and_a_lift,
        a_person_takes_over_and_hands_back,
        a_child_run_that_asks,
        a_question_that_nobody_answers,
        a_failure_and_a_forced_pause,
        a_pause_that_was_withdrawn_and_a_drain,
        a_text_that_ends_the_run,
        a_hosted_agent,
        a_long_history_is_condensed,
        *thinking.STORIES,
    )
}
