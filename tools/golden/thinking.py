"""Stories of thinking across interrupts: side questions, reviews, children, wheel, forks."""

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.entries import CallAborted, CallDone, LeaseTaken, RunStarted, UndoFailed
from midrun.core.history import iter_history, make_fork_entry
from midrun.core.ids import MICROS_PER_SECOND, CallId, Epoch, Micros, RunId
from midrun.core.values import Actor, Effect, Item, Message, Origin, Reply, Traits, Use
from midrun.testing.scenario import Scenario, given
from tools.golden.telling import A1, ANN, BOB, DRAFT, LOOK, MAIL, begun, cleaned_up, ends, taken

AIDE = Use(
    tool="aide", args={"task": "Read"}, kind="child", traits=Traits(undo=True, version="1")
)
SIGN = Use(tool="sign", args={"page": 1}, traits=Traits(approve="block", four_eyes=True))
POST = Use(
    tool="post",
    args={"text": "Hi"},
    why="they asked for it",
    traits=Traits(approve="queue", undo=True, ask_ttl=60 * MICROS_PER_SECOND),
)
SYSTEM = Actor(name="system:calendar", role="system")


def stopped(run: Scenario, call: str, text: str = "") -> Scenario:
    """Let a call be stopped within its grace."""
    outcome = CallAborted(call=CallId(call), text=text)
    return run.after(v.CloseCall(epoch=run.state.epoch, outcome=outcome))


def side_questions_now_next_and_later() -> Scenario:
    """One cuts a reply short, one lies on top of it, one waits; all come back by name."""
    run = begun().replies(LOOK, text="First the mail.").starts("c2")
    items = tuple(Item(text=text) for text in ("Read", "Sort", "Answer"))
    done = (Item(text="Read", mark="done"), *items[1:])
    run = run.after(v.SetPlan(epoch=Epoch(1), items=items))
    run = ends(run.after(v.SetPlan(epoch=Epoch(1), items=done)), "c2").starts("c3")
    run = run.when(c.Say(by=ANN, text="Thanks, by the way", urgency="later"))
    run = run.when(c.Say(by=ANN, text="Who is eve?", urgency="now"))
    run = stopped(run, "c3", "Now I so").advances().starts("c4")
    run = run.when(c.Say(by=BOB, text="And how old?"))
    run = run.after(
        v.CloseCall(
            epoch=Epoch(1), outcome=CallDone(call=CallId("c4"), reply=Reply(uses=(LOOK,)))
        )
    )
    run = ends(run.starts("c5"), "c5").advances()
    run = run.replies(text="Forty.").advances().replies(text="A colleague.").advances()
    run = run.replies(text="Sorted, and answered.").advances()
    return run.replies(text="You are welcome.").advances()


def a_side_question_while_the_run_waits() -> Scenario:
    """It is answered in a frame; the ask stays open, and so does the thought."""
    ask = Use(tool="ask", args={"question": "Blue?"})
    run = begun().replies(ask).starts("c2")
    question = v.AskPerson(epoch=Epoch(1), call=CallId("c2"), question="Blue?")
    run = run.after(question).advances().when(c.Say(by=BOB, text="What for?"))
    run = taken(run).advances().replies(text="For the cover.").advances()
    run = taken(run.when(c.Answer(by=BOB, ask=A1, value="blue")))
    return run.replies(text="Blue it is.").advances()


def children_are_undone_with_their_parent() -> Scenario:
    """One had completed, one was in flight and cannot be ended; what came last goes first."""
    run = begun(undo_attempts=1).replies(DRAFT, AIDE, AIDE, text="With two aides.")
    run = ends(ends(run.starts("c2", "c3", "c4"), "c2"), "c3", "Read.")
    run = stopped(run.when(c.Cancel(by=ANN, undo="all", reason="wrong book")), "c4")
    left = UndoFailed(
        call=CallId("c4"), action="release", error="run x could not undo 1 of its calls"
    )
    epoch = run.state.epoch
    run = run.after(
        v.StartUndo(epoch=epoch, call=CallId("c4"), action="release"),
        v.CloseUndo(epoch=epoch, outcome=left),
    )
    return cleaned_up(run)


def a_completed_child_is_taken_back() -> Scenario:
    """Its parent is cancelled, and undoes all: its end is no longer its end."""
    parent = RunId("run_parent")
    spec = RunStarted(agent="aide", task="Read", parent=Origin(run=parent, call=CallId("c3")))
    run = given(spec, LeaseTaken(epoch=Epoch(1), holder="here"))
    run = ends(run.replies(DRAFT).starts("c2"), "c2").replies(text="Read.").advances()
    return cleaned_up(taken(run.later(60).when(v.TakeBack(parent=parent))))


def a_child_at_its_cap() -> Scenario:
    """The parent says so and waits; the answer goes to the child, which works on."""
    run = begun().replies(AIDE).starts("c2")
    stands = v.AskPerson(
        epoch=Epoch(1),
        call=CallId("c2"),
        question="Child run_x is paused at its step cap: raise it there, or answer here.",
        data={"run": "run_x", "ask": "", "data": {"phase": "paused", "cap": "steps"}},
        child=True,
        child_ask_kind="question",
    )
    run = run.after(stands).advances().when(c.Answer(by=ANN, ask=A1, value={"steps": 20}))
    return ends(taken(run).starts("c2"), "c2", "Read.").replies(text="It is read.").advances()


def a_child_that_is_left_behind() -> Scenario:
    """A redirect gives its call up; it is ended before the next step."""
    run = begun().replies(AIDE).starts("c2")
    asked = v.AskPerson(epoch=Epoch(1), call=CallId("c2"), question="Which?", child=True)
    run = run.after(asked).advances().when(c.Redirect(by=ANN, text="Do it yourself"))
    run = cleaned_up(taken(run).advances())
    return run.replies(text="I did it myself.").advances()


def a_review_edited_and_one_that_expires() -> Scenario:
    """The agent goes on; one is made with other arguments, one is a no after its time."""
    run = begun().replies(POST, POST, text="Two proposals.").advances()
    run = run.when(c.Approve(by=BOB, ask=A1, args={"text": "Hello"}))
    run = ends(run.starts("c2"), "c2", {"id": 7}).replies(text="One is out.").advances()
    run = run.later(61).when(v.Wake())
    return taken(run).replies(text="The other is not.").advances()


def a_person_uses_a_tool_that_another_must_allow() -> Scenario:
    """At the wheel everything goes by the same door: the ask, the yes, and a side question."""
    run = begun().replies(LOOK).starts("c2").when(c.TakeOver(by=ANN, request="t1"))
    run = ends(run, "c2").advances().when(c.UseTool(by=ANN, use=SIGN, request="t2"))
    run = taken(run).advances().when(c.Approve(by=ANN, ask=A1), c.Approve(by=BOB, ask=A1))
    run = ends(taken(run).starts("c3"), "c3", "signed").advances()
    run = run.when(c.Say(by=BOB, text="Is it signed?"), c.Write(by=ANN, text="I signed it."))
    run = taken(run.when(c.HandBack(by=ANN))).advances().replies(text="It is.").advances()
    return run.replies(text="All done.").advances()


def a_summary_that_was_interrupted() -> Scenario:
    """Paused in the middle of it, then left by a crash: made anew, and held thoughts kept."""
    run = begun(window=5, history=_long_ago())
    done = CallDone(call=CallId("c1"), reply=Reply(text="On.", uses=(LOOK,), window=9))
    run = run.starts("c1").after(v.CloseCall(epoch=Epoch(1), outcome=done))
    run = ends(run.starts("c2"), "c2").when(c.Say(by=ANN, text="How far?")).advances()
    run = stopped(run.starts("c3").when(c.Pause(by=ANN)), "c3", "In sh").advances()
    run = taken(taken(run.when(c.Resume(by=ANN))).starts("c4").later(30))
    summary = CallDone(call=CallId("c4"), reply=Reply(text="Much was said."))
    run = run.starts("c4").after(v.CloseCall(epoch=run.state.epoch, outcome=summary))
    return run.replies(text="Half.").advances().replies(text="All of it.").advances()


def _long_ago() -> tuple[Message, ...]:
    return tuple(Message(role="user", text=f"Long ago {n}") for n in range(12))


def a_fork() -> Scenario:
    """It continues from a boundary of another, with what was said and made there."""
    first = begun(thread="t1").replies(LOOK).starts("c2")
    first = ends(first, "c2", {"found": 3}).replies(DRAFT, text="Three.").starts("c4")
    first = ends(first, "c4").replies(text="Drafted.").advances()
    entry = make_fork_entry(first.state, by=BOB, instruction="Shorter, please")
    assert isinstance(entry, RunStarted)
    run = given(entry, LeaseTaken(epoch=Epoch(1), holder="here"))
    return run.replies(text="Shorter.").advances()


def a_thread_after_a_cancelled_run() -> Scenario:
    """The next run is told what was done, undone and left half said, and that it is partial."""
    first = ends(begun(thread="t1").replies(DRAFT, MAIL).starts("c2", "c3"), "c2")
    first = cleaned_up(stopped(first.when(c.Cancel(by=ANN, undo="all")), "c3"))
    said = tuple(iter_history(first.state))
    return begun(thread="t1", history=said).replies(text="From the start, then.").advances()


def a_scheduled_note_wakes_a_run_that_waits() -> Scenario:
    """From outside, at its time; the run answers it and waits on."""
    ask = Use(tool="ask", args={"question": "Blue?"}, traits=Traits(effect=Effect.READ))
    run = begun().replies(ask).starts("c2")
    run = run.after(v.AskPerson(epoch=Epoch(1), call=CallId("c2"), question="Blue?")).advances()
    due = Micros(run.now + 3600 * MICROS_PER_SECOND)
    run = run.when(c.Say(by=SYSTEM, text="The shop closes at six", due=due))
    run = taken(run.later(3600).when(v.Wake())).advances()
    run = run.replies(text="I will hurry.").advances()
    run = taken(run.when(c.Answer(by=ANN, ask=A1, value="blue")))
    return run.replies(text="Bought the blue one.").advances()


def a_cancel_under_a_latch() -> Scenario:
    """Taken down at once, carried out when the latch is lifted; a second one hears who."""
    run = ends(begun().replies(DRAFT, LOOK).starts("c2", "c3"), "c2")
    run = stopped(run.when(c.Halt(by=BOB, reason="incident")), "c3")
    run = run.after(v.StandDown(epoch=Epoch(1), why="halted"))
    run = run.when(c.Cancel(by=ANN, undo="all"), c.Cancel(by=BOB, request="c9"))
    return cleaned_up(taken(run.later(60).when(c.Lift(by=BOB))))


STORIES = (
    side_questions_now_next_and_later,
    a_side_question_while_the_run_waits,
    children_are_undone_with_their_parent,
    a_completed_child_is_taken_back,
    a_child_at_its_cap,
    a_child_that_is_left_behind,
    a_review_edited_and_one_that_expires,
    a_person_uses_a_tool_that_another_must_allow,
    a_summary_that_was_interrupted,
    a_fork,
    a_thread_after_a_cancelled_run,
    a_scheduled_note_wakes_a_run_that_waits,
    a_cancel_under_a_latch,
)
