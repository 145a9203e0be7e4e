"""Golden scenarios, made by the state machine. Function names are file names."""

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
from midrun.core.values import (
    Actor,
    Effect,
    FileLimits,
    FileRef,
    PlanItem,
    Reply,
    RequestedCall,
    Spend,
    Traits,
)
from midrun.testing.scenario import Scenario
from tools.golden import conversation_scenarios
from tools.golden.fixtures import (
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
    finish_call,
    make_file,
    run_undos,
    start_run,
    take_lease,
)


def plain_completion() -> Scenario:
    """Two steps, a plan, and an answer."""
    items = (PlanItem(text="Read", state="done"), PlanItem(text="Write", state="running"))
    run = start_run(labels=("demo",), thread="t1").replies(
        LOOK, DRAFT, text="I will look first."
    )
    run = finish_call(
        run.starts("c2", "c3", reserve=Spend(tokens=9)), "c2", {"found": ["a", "ß"]}
    )
    run = finish_call(run.later(0.25), "c3").after(v.SetPlan(epoch=Epoch(1), items=items))
    return run.later(1).replies(text="All sorted.").advances()


def pause_and_resume_with_an_instruction() -> Scenario:
    """The tool in flight finishes; the text is applied at the next boundary."""
    run = (
        start_run()
        .replies(LOOK)
        .starts("c2")
        .when(c.Pause(by=ANN, reason="lunch", request_id="p1"))
    )
    run = run.after(v.SaveProgress(epoch=Epoch(1), call=CallId("c2"), progress={"page": 3}))
    stopped = v.CloseCall(epoch=Epoch(1), outcome=CallAborted(call=CallId("c2")))
    run = run.after(stopped).advances().when(c.Pause(by=BOB, request_id="p2"))
    run = run.later(60).when(c.Resume(by=ANN, instruction="Only this year's", request_id="p3"))
    return take_lease(run).advances().replies(text="Only this year's, then.").advances()


def files_and_artifacts() -> Scenario:
    """Files come with the task, a message and a result; a call shows two versions."""

    def show(run: Scenario, name: str, file: FileRef) -> Scenario:
        shown = v.ShowArtifact(epoch=Epoch(1), call=CallId("c2"), name=name, file=file)
        return run.after(shown)

    limits = FileLimits(file_bytes=9_000, run_files=7, run_bytes=20_000)
    run = start_run(files=(make_file("Receipt ä.png"),), file_limits=limits)
    run = run.replies(LOOK, DRAFT).starts("c2", "c3")
    for number, name in enumerate(("memo.md", "memo.md", "rows.csv")):
        run = show(run, name, make_file(name, number + 1))
    run = run.when(c.Say(by=ANN, text="Like this one", files=(make_file("Sketch.png", 5),)))
    run = run.when(c.Redirect(by=ANN, text="All of it", files=(make_file("Scan.pdf", 9),)))
    done = CallDone(call=CallId("c2"), result="found", files=(make_file("Chart.png", 6),))
    run = run.after(v.CloseCall(epoch=Epoch(1), outcome=done))
    over = CallDone(call=CallId("c3"), result="ok", files=(make_file("Eighth.png", 7),))
    run = run.after(v.CloseCall(epoch=Epoch(1), outcome=over)).advances()
    return run.replies(text="As you sketched it.").advances()


def redirect_now() -> Scenario:
    """A stream is closed with its text kept; one redirect is withdrawn, one applied."""
    run = start_run().replies(MAIL, LOOK).starts("c3").when(c.Redirect(by=ANN, text="Wait"))
    run = run.when(c.Withdraw(by=ANN, seq=Seq(run.state.seq)))
    run = run.when(c.Redirect(by=ANN, text="Answer eve only", when="now"))
    stopped = CallAborted(call=CallId("c3"), spent=Spend(tokens=1))
    run = run.after(v.CloseCall(epoch=Epoch(1), outcome=stopped)).advances()
    return run.replies(text="Eve has her answer.").advances()


def cancel_undoes_what_is_in_flight() -> Scenario:
    """Finished calls stay; a crash interrupts the undo of the others; locks are released."""
    run = finish_call(
        finish_call(start_run().replies(LOCK, DRAFT).starts("c2", "c3"), "c2"), "c3"
    )
    run = run.replies(DRAFT, MAIL, text="One more.").starts("c5").when(c.Say(by=ANN, text="?"))
    run = run.when(c.Cancel(by=ANN, reason="wrong inbox"))
    stopped = v.CloseCall(epoch=Epoch(1), outcome=CallAborted(call=CallId("c5")))
    return run_undos(take_lease(run.after(stopped).cleans("c5").later(30)))


def cancel_of_all_leaves_a_residue() -> Scenario:
    """One undo always fails; an operator retries it without success and accepts the residue."""
    run = finish_call(
        finish_call(start_run(undo_attempts=2).replies(DRAFT, DRAFT).starts("c2", "c3"), "c2"),
        "c3",
    )
    run = run_undos(run.when(c.Cancel(by=ANN, undo="all")), failing="c2")
    run = run_undos(take_lease(run.later(60).when(c.RetryUndo(by=BOB))), failing="c2")
    return run.when(c.AcceptResidue(by=BOB, reason="harmless"))


def a_cancel_that_undoes_one_keeps_one_and_fails_at_one() -> Scenario:
    """The report lists the call without an undo and the call whose undo failed."""
    run = start_run(undo_attempts=2).replies(DRAFT, MAIL).starts("c2", "c3")
    run = (
        finish_call(finish_call(run, "c2"), "c3")
        .replies(DRAFT, text="A second one.")
        .starts("c5")
    )
    run = finish_call(run.later(5), "c5").when(
        c.Cancel(by=ANN, undo="all", reason="wrong inbox")
    )
    return run_undos(run, failing="c2")


def crash_and_an_unknown_call_settled_by_a_person() -> Scenario:
    """One unknown call is settled by its check, the other by ann."""
    run = take_lease(start_run().replies(MAIL, PAY).starts("c2", "c3").later(30)).advances()
    checked = v.SettleCall(epoch=Epoch(2), call=CallId("c3"), happened=True, result="paid")
    run = run.after(checked).advances().later(300)
    run = take_lease(run.when(c.Answer(by=ANN, ask=A1, value="no"))).starts("c2")
    return finish_call(run, "c2").replies(text="Sent and paid.").advances()


def a_slow_driver_reports_late() -> Scenario:
    """Its late result settles the unknown call and wakes the run."""
    run = take_lease(start_run().replies(MAIL).starts("c2").later(30)).advances()
    late = LateResult(call=CallId("c2"), attempt=1, epoch=Epoch(1), result="sent")
    return (
        take_lease(run.after(v.ReportLateResult(result=late))).replies(text="Sent.").advances()
    )


def a_side_question_with_frames() -> Scenario:
    """One topic is resumed, one expires, one is dropped by name."""
    run = start_run(frame_ttl=60 * MICROS_PER_SECOND).replies(LOOK).starts("c2")
    run = finish_call(run.when(c.Say(by=ANN, text="What was that paper?")), "c2").advances()
    run = run.replies(text="The one by Lamport.").advances()
    run = run.when(c.Say(by=ANN, text="And the other?")).advances().later(61)
    run = run.replies(text="That one is lost.").advances()
    run = run.when(c.Say(by=ANN, text="Never mind?")).advances()
    run = run.when(c.DropFrame(by=ANN, frame=FrameId("f3"))).replies(text="As you wish.")
    return run.advances()


def messages_wait_their_turn() -> Scenario:
    """A note for later, a scheduled one, and a withdrawn one."""
    run = start_run(frame_depth=1).replies(LOOK).starts("c2")
    run = run.when(c.Say(by=ANN, text="Thanks, by the way", urgency="later"))
    due = Micros(run.now + 5 * MICROS_PER_SECOND)
    run = run.when(c.Say(by=BOB, text="Standup", due=due), c.Say(by=ANN, text="Too late"))
    run = run.when(c.Withdraw(by=ANN, seq=Seq(run.state.seq)))
    run = finish_call(run.later(6).when(v.Wake()), "c2").advances()
    run = run.replies(text="Noted.").advances().replies(text="Done.").advances()
    return run.replies(text="You are welcome.").advances()


def a_queued_approval() -> Scenario:
    """The agent continues; the outcome arrives later as a message. One of two is declined."""
    run = start_run().replies(POST, POST, text="Two proposals.").advances()
    run = run.replies(text="Both are proposed.").advances()
    run = run.when(c.Decline(by=BOB, ask=AskId("a2"), reason="not that one"))
    run = run.when(c.Approve(by=ANN, ask=A1), c.Approve(by=BOB, ask=A1, args={"text": "Hello"}))
    run = finish_call(take_lease(run).advances().starts("c2"), "c2", {"id": 7})
    return run.replies(text="One is posted.").advances()


def a_paused_run_is_imported() -> Scenario:
    """An approval that came with the checkpoint does not count: the call asks again."""
    gated = replace(MAIL, traits=Traits(approve="block", audience="operator", four_eyes=True))
    run = start_run().replies(gated).advances().when(c.Pause(by=ANN), c.Approve(by=BOB, ask=A1))
    head = UNKEYED_CHAIN.compute_head(run.state.run, map(format_record, run.records)).hex()
    run = run.later(3600).after(
        RunImported(checkpoint=run.state.run, head=head, kid="77ab", by="eve", role="operator")
    )
    run = take_lease(run.when(c.Resume(by=ANN))).advances()
    eve = c.Approve(by=Actor(name="eve", role="operator"), ask=AskId("a2"), request_id="e1")
    run = take_lease(run.when(eve, c.Approve(by=BOB, ask=AskId("a2")))).starts("c2")
    return finish_call(run, "c2").replies(text="Sent.").advances()


def a_cap_reached_and_raised() -> Scenario:
    """A cap pauses the run; a resume without a new cap is refused; a custom stop is not met."""
    run = start_run(stop=MaxSteps(1) | MaxCost(usd=0.5) | Custom("checks:enough"))
    run = run.after(v.RecordStopVerdict(epoch=Epoch(1), name="checks:enough", met=False))
    run = finish_call(run.replies(LOOK).starts("c2"), "c2")
    run = run.after(
        v.RecordStopVerdict(epoch=Epoch(1), name="checks:enough", met=False)
    ).advances()
    run = run.when(c.Resume(by=ANN, request_id="q1"), c.RaiseCap(by=BOB, caps={"steps": 3}))
    run = take_lease(run.when(c.Resume(by=ANN)))
    run = run.after(v.RecordStopVerdict(epoch=Epoch(2), name="checks:enough", met=False))
    return run.replies(text="Within bounds.").advances()


def a_cap_reached_within_one_reply() -> Scenario:
    """Four calls in one reply, a cap of two: of the waiting two, one is made, one dropped."""
    run = start_run(stop=MaxToolCalls(2)).replies(LOOK, DRAFT, LOOK, DRAFT).starts("c2", "c3")
    run = run.tries("c4")
    run = (
        finish_call(finish_call(run, "c2"), "c3")
        .advances()
        .when(c.Resume(by=ANN, request_id="q1"))
    )
    run = take_lease(run.when(c.Resume(by=BOB, caps={"tool_calls": 3}))).starts("c4")
    run = run.tries("c5")
    run = finish_call(run, "c4").advances()
    run = run.when(c.Resume(by=BOB, caps={"tool_calls": 9}, instruction="No more drafts"))
    return take_lease(run).advances().replies(text="Without the draft, then.").advances()


def four_eyes_and_who_steered() -> Scenario:
    """The redirecting person may not approve; edited arguments need a third person."""
    traits = Traits(approve="block", four_eyes=True)
    sign = RequestedCall(tool="sign", args={"eur": 5}, traits=traits)
    cyd, dan = Actor(name="cyd", role="operator"), Actor(name="dan", role="operator")
    run = start_run().replies(LOOK).starts("c2").when(c.Redirect(by=BOB, text="Sign it"))
    run = finish_call(run, "c2").advances().replies(sign).advances()
    run = run.when(c.Approve(by=BOB, ask=A1, request_id="q1"))
    run = take_lease(run.when(c.Approve(by=cyd, ask=A1, args={"eur": 900}))).advances()
    run = run.when(c.Approve(by=cyd, ask=AskId("a2"), request_id="q2"))
    run = take_lease(run.when(c.Approve(by=dan, ask=AskId("a2")))).starts("c4")
    return finish_call(run, "c4").replies(text="It is signed.").advances()


def calls_with_titles() -> Scenario:
    """A call with a title is edited and approved; a cancel undoes another."""
    title = "Write section “Risks”"
    write = replace(DRAFT, tool="write_section", args={"heading": "Risks"}, title=title)
    traits = Traits(approve="block")
    send = RequestedCall(tool="send", args={"to": "eve"}, traits=traits, title="Mail “eve”")
    run = start_run().replies(write, send).starts("c2")
    run = finish_call(run, "c2").advances()
    run = run.when(c.Approve(by=BOB, ask=A1, args={"to": "bo"}, title="Mail “bo”"))
    run = finish_call(take_lease(run).starts("c3"), "c3").advances()
    return run_undos(run.when(c.Cancel(by=ANN, undo="all")))


def a_halt_and_a_lift() -> Scenario:
    """The halt stops the call in flight; after the lift the run continues."""
    run = (
        start_run()
        .replies(LOOK)
        .starts("c2")
        .when(c.Halt(by=BOB, reason="incident", scope="all"))
    )
    stopped = v.CloseCall(epoch=Epoch(1), outcome=CallAborted(call=CallId("c2")))
    run = run.after(stopped, v.StandDown(epoch=Epoch(1), why="halted"))
    run = take_lease(run.later(600).when(c.Lift(by=BOB))).starts("c2")
    return finish_call(run, "c2").replies(text="Where was I?").advances()


def a_person_takes_over_and_hands_back() -> Scenario:
    """The person writes, makes a call, and hands the run back with an instruction."""
    run = start_run().replies(LOOK).starts("c2").when(c.TakeOver(by=BOB))
    run = finish_call(run, "c2").advances().when(c.Write(by=BOB, text="Let me do this one."))
    run = take_lease(run.when(c.UseTool(by=BOB, use=MAIL))).starts("c3")
    run = (
        finish_call(run, "c3")
        .advances()
        .when(c.HandBack(by=BOB, instruction="Go on from there"))
    )
    return take_lease(run).advances().replies(text="Going on.").advances()


def a_child_run_that_asks() -> Scenario:
    """The parent shows the child's question; it is answered on the child."""
    run = start_run().replies(CHILD).starts("c2")
    asked = v.AskPerson(epoch=Epoch(1), call=CallId("c2"), question="Which?", child=True)
    run = take_lease(run.after(asked).advances().when(v.CloseChildAsk(ask=A1))).starts("c2")
    return finish_call(run, "c2", {"output": "Read."}).replies(text="It is read.").advances()


def a_question_without_an_answer() -> Scenario:
    """The ask of one tool expires; the other is answered, and the answer is its result."""
    ask = RequestedCall(tool="ask", args={"question": "Blue?"})
    run = start_run().replies(ask, ask).starts("c2", "c3")
    until = Micros(run.now + 60 * MICROS_PER_SECOND)
    for call, expires in (("c2", until), ("c3", None)):
        question = v.AskPerson(
            epoch=Epoch(1), call=CallId(call), question="Blue?", data=[1], expires=expires
        )
        run = run.after(question)
    run = run.advances().later(61).when(v.Wake())
    run = take_lease(run.when(c.Answer(by=ANN, ask=AskId("a2"), value={"blue": True})))
    return run.replies(text="Blue, then.").advances()


def a_question_with_files() -> Scenario:
    """The question shows a file; the files of the answer are files of the call's result."""
    run = start_run().replies(RequestedCall(tool="compare")).starts("c2")
    shown = (make_file("Left.png", 3),)
    question = v.AskPerson(epoch=Epoch(1), call=CallId("c2"), question="This one?", files=shown)
    run = run.after(question).advances()
    given = (make_file("Right.png", 5), make_file("Notes.md", 7))
    run = take_lease(run.when(c.Answer(by=ANN, ask=A1, value="No, this", files=given)))
    return run.replies(text="The right one, then.").advances()


def a_failure_and_a_forced_pause() -> Scenario:
    """A failed run is resumed; a forced pause abandons a tool that does not respond."""
    run = start_run(model_attempts=1).starts("c1")
    failed = CallFailed(call=CallId("c1"), error="529", code="overloaded", text="I was")
    run = (
        run.after(v.CloseCall(epoch=Epoch(1), outcome=failed)).advances().when(c.Resume(by=ANN))
    )
    run = take_lease(run).replies(MAIL).starts("c3").when(c.Pause(by=ANN, now=True))
    run = run.later(60).when(c.ForcePause(by=ANN))
    return run.when(c.Pause(by=ANN), c.TakeOver(by=ANN, request_id="t1"), c.Resume(by=BOB))


def a_pause_that_was_withdrawn_and_a_drain() -> Scenario:
    """The run continues as if there had been no pause; then its process shuts down."""
    run = start_run().replies(LOOK).starts("c2").when(c.Pause(by=ANN), c.Resume(by=ANN))
    run = finish_call(run, "c2").after(v.StandDown(epoch=Epoch(1), why="shutdown"))
    run = take_lease(run).replies(text="It is done, I think.")
    return run.advances()


def a_text_that_ends_the_run() -> Scenario:
    """A stop condition completes the run."""
    run = start_run(stop=TextMention("FIN", then="complete")).replies(LOOK, text="FIN, almost.")
    return finish_call(run.starts("c2"), "c2").advances()


def a_hosted_agent() -> Scenario:
    """Its calls arrive one at a time, by position; its return value is the output."""
    use = RequestedCall(
        tool="fetch", args={"n": 1}, position="1:fetch", traits=Traits(effect=Effect.READ)
    )
    run = start_run(hosted=True).after(v.ProposeCall(epoch=Epoch(1), use=use)).starts("c1")
    run = finish_call(run, "c1", [1, 2])
    return run.after(v.FinishHostedAgent(epoch=Epoch(1), output="Fetched.")).advances()


def a_long_history_is_condensed() -> Scenario:
    """The model receives a summary; the journal keeps the full text."""
    run = start_run(window=5)
    for number in range(1, 9):
        call, tool = CallId(f"c{2 * number - 1}"), f"c{2 * number}"
        reply = Reply(text=f"Step {number}.", uses=(LOOK,), prompt_tokens=number - 1)
        done = CallDone(call=call, reply=reply)
        run = run.starts(call).after(v.CloseCall(epoch=Epoch(1), outcome=done))
        run = finish_call(run.starts(tool), tool)
    return run.replies(text="We looked often.").replies(text="Enough.").advances()


SCENARIOS: Final[Mapping[str, Callable[[], Scenario]]] = {
    scenario.__name__: scenario
    for scenario in (
        plain_completion,
        pause_and_resume_with_an_instruction,
        redirect_now,
        files_and_artifacts,
        a_question_with_files,
        calls_with_titles,
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
        a_question_without_an_answer,
        a_failure_and_a_forced_pause,
        a_pause_that_was_withdrawn_and_a_drain,
        a_text_that_ends_the_run,
        a_hosted_agent,
        a_long_history_is_condensed,
        *conversation_scenarios.SCENARIOS,
    )
}
