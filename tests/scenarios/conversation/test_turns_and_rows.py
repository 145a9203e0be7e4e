"""The task list and what was said and done for each item, as every surface is shown it."""

import pytest

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.entries import (
    CallAborted,
    CallDone,
    LeaseTaken,
    PlanMade,
    RunStarted,
    UndoDone,
)
from midrun.core.ids import CallId, Epoch
from midrun.core.values import Item, Phase, Traits, Use
from midrun.runs.turns import SHOWN_MAX_CHARS, count_turns, list_turns, make_plan_rows
from midrun.testing.scenario import Scenario, given

E1 = Epoch(1)
DRAFT = Use(
    tool="draft", args={"title": "Memo"}, why="it was asked for", traits=Traits(undo=True)
)
MAIL = Use(tool="mail", args={"to": "bo"})
PLAN = Use(tool="plan", args={"items": ["Look", "Write", "Send"], "marks": {"1": "running"}})
ONWARD = Use(tool="plan", args={"marks": {"1": "done", "2": "running"}})

begun = given(RunStarted(agent="clerk", task="Sort the mail", by="ann"), LeaseTaken(epoch=E1))


def closed(name: str, result: object = "ok") -> v.CloseCall:
    """Return the evidence that a call returned."""
    return v.CloseCall(epoch=E1, outcome=CallDone(call=CallId(name), result=result))


def items(*marks: str) -> PlanMade:
    """Return the plan with these marks."""
    texts = ("Look", "Write", "Send")
    made = (Item(text=t, mark=m) for t, m in zip(texts, marks, strict=True))  # type: ignore[arg-type]  # literals
    return PlanMade(items=tuple(made))


def at_the_second() -> Scenario:
    """Return a run that has looked, with a draft in flight for the second item."""
    run = begun.replies(PLAN, MAIL, text="First I look.").starts("c2", "c3")
    run = run.after(items("running", "queued", "queued"), closed("c2"), closed("c3"))
    run = run.replies(ONWARD, DRAFT, text="Now I write.").starts("c5", "c6")
    return run.after(items("done", "running", "queued"), closed("c5"))


def looks(run: Scenario) -> list[str]:
    """Return where the items stand."""
    return [row.look for row in make_plan_rows(run.state)]


def test_each_item_has_its_state_and_the_tool_that_was_used_for_it_last() -> None:
    """This is the list that people follow."""
    run = at_the_second()
    assert looks(run) == ["done", "running", "queued"]
    assert [row.tool for row in make_plan_rows(run.state)] == ["mail", "draft", ""]


def test_what_was_said_and_done_belongs_to_the_item_at_work() -> None:
    """The agent's own marks say which that was."""
    shown = list_turns(at_the_second().state, 0, 10)
    assert [(turn.kind or turn.role, turn.item) for turn in shown] == [
        ("task", 0),
        ("assistant", 1),
        ("assistant", 2),
    ]
    assert [call.tool for call in shown[-1].calls] == ["plan", "draft"]
    draft = shown[-1].calls[-1]
    assert (draft.look, draft.args, draft.why) == (
        "running",
        '{"title":"Memo"}',
        "it was asked for",
    )


@pytest.mark.parametrize("phase", ["paused", "waiting", "cancelled"])
def test_nothing_is_called_running_that_does_not_run(phase: str) -> None:
    """And what was undone is not called done."""
    run = at_the_second()
    if phase == "paused":
        run = run.when(c.Pause()).after(closed("c6")).advances()
        assert looks(run.then(phase=Phase.PAUSED)) == ["done", "held", "queued"]
    elif phase == "waiting":
        asked = v.AskPerson(epoch=E1, call=CallId("c6"), question="Which?")
        run = run.after(asked).advances().then(phase=Phase.WAITING)
        assert looks(run) == ["done", "needs_you", "queued"]
        assert list_turns(run.state, 2, 1)[0].calls[-1].look == "needs_you"
    else:
        run = run.when(c.Cancel(undo="in_flight"))
        run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=CallId("c6"))))
        run = run.after(v.StartUndo(epoch=E1, call=CallId("c6")))
        run = run.after(v.CloseUndo(epoch=E1, outcome=UndoDone(call=CallId("c6")))).advances()
        assert looks(run.then(phase=Phase.CANCELLED)) == ["done", "undone", "not_started"]
        assert list_turns(run.state, 2, 1)[0].look == "undone"


def test_a_call_that_a_pause_stopped_and_that_is_made_again_is_held_meanwhile() -> None:
    """It waits for whoever paused, not for a place in the queue."""
    saved = v.SaveProgress(epoch=E1, call=CallId("c6"), progress={"page": 42})
    run = at_the_second().after(saved).when(c.Pause(now=True))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=CallId("c6")))).advances()
    run = run.then(phase=Phase.PAUSED)
    assert list_turns(run.state, 2, 1)[0].calls[-1].look == "held"
    assert list_turns(run.when(c.Resume()).state, 2, 1)[0].calls[-1].look == "queued"


def test_an_item_that_the_agent_left_open_is_not_called_done() -> None:
    """It ended without saying so, and so do we."""
    run = at_the_second().after(closed("c6")).replies(text="That is all.").advances()
    assert looks(run.then(phase=Phase.COMPLETED)) == ["done", "left_open", "not_started"]


def test_a_text_that_was_cut_short_says_so() -> None:
    """Whoever reads it knows that there was more to come."""
    run = begun.starts("c1").when(c.Pause())
    run = run.after(
        v.CloseCall(epoch=E1, outcome=CallAborted(call=CallId("c1"), text="The first"))
    )
    (turn,) = list_turns(run.state, 1, 10)
    assert (turn.text, turn.interrupted, turn.look) == ("The first", True, "stopped")


def test_a_long_result_is_cut_and_says_how_long_it_is() -> None:
    """A page is not a journal."""
    run = begun.replies(MAIL).starts("c2").after(closed("c2", "x" * (SHOWN_MAX_CHARS + 1)))
    result = list_turns(run.state, 1, 1)[0].calls[0].result
    assert result.endswith(f"… ({SHOWN_MAX_CHARS + 1} characters)")
    assert len(result) < SHOWN_MAX_CHARS + 30


def test_pages_of_turns_join_without_a_gap() -> None:
    """A reader who pages sees what one who does not page sees."""
    state = at_the_second().state
    whole = list_turns(state, 0, 10)
    assert (*list_turns(state, 0, 2), *list_turns(state, 2, 2)) == whole
    assert count_turns(state) == len(whole)


def test_without_a_plan_there_are_no_rows() -> None:
    """The turns themselves are the steps then."""
    assert make_plan_rows(begun.replies(MAIL).state) == ()


def test_a_hosted_agent_shows_its_calls_though_it_says_nothing() -> None:
    """Its messages are its framework's, its calls are ours."""
    started = RunStarted(agent="clerk", task="Sort", by="ann", hosted=True)
    run = given(started, LeaseTaken(epoch=E1)).after(v.ProposeCall(epoch=E1, use=MAIL))
    assert [call.tool for turn in list_turns(run.state, 0, 10) for call in turn.calls] == [
        "mail"
    ]
    assert count_turns(run.state) == 2
