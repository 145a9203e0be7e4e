"""The plan of an agent: the `plan` tool, the status line, plan items and their turns."""

import pytest

from midrun import Completed
from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.entries import (
    CallAborted,
    CallDone,
    LeaseTaken,
    PlanMade,
    RedirectApplied,
    RunResumed,
    RunStarted,
    UndoDone,
)
from midrun.core.ids import CallId, Epoch
from midrun.core.values import Phase, PlanItem, Traits
from midrun.core.values import RequestedCall as ToolUse
from midrun.models import Use
from midrun.runs.turns import SHOWN_MAX_CHARS, count_turns, list_turns, make_plan_rows
from midrun.testing.scenario import Scenario, given
from tests.scenarios.conversation.toolkit import ApprovalToolkit
from tests.support.gated_model import repeat_results
from tests.support.run_journal import read_entries, read_turns, wait_for_entry
from tests.unit.runs.conftest import OpenMidrun

ITEMS = ["Find papers", "Read them", "Synthesise"]


async def test_a_plan_is_set_marked_and_revised_in_the_journal(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(
        Use("plan", items=ITEMS, marks={"1": "running"}),
        Use("plan", marks={"1": "done", "2": "running"}),
        Use("plan", items=[*ITEMS[:2], "Compare", "Synthesise"], marks={"1": "done"}),
        Use("slow", name="x"),
        "Done.",
    )
    run = await (await opened(agent)).start("actor", "go")
    await toolkit.start("x").wait()
    view = await run.view()
    assert [item.text for item in view.plan] == [
        "Find papers",
        "Read them",
        "Compare",
        "Synthesise",
    ]
    assert view.position == "plan 2/4"
    marks = [[item.state for item in made.items] for made in await read_entries(run, PlanMade)]
    assert marks[:2] == [["running", "queued", "queued"], ["done", "running", "queued"]]
    toolkit.gate("x").set()
    await run.until("completed")


async def test_a_mark_for_an_unknown_item_is_an_error_for_the_model(opened: OpenMidrun) -> None:
    """The plan does not change."""
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(
        Use("plan", items=ITEMS),
        Use("plan", marks={"9": "done"}),
        repeat_results,
    )
    run = await (await opened(agent)).start("actor", "go")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert "9" in outcome.output
    assert len(await read_entries(run, PlanMade)) == 1


async def test_a_dropped_item_is_not_counted(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(
        Use("plan", items=ITEMS, marks={"1": "done", "2": "dropped"}),
        Use("slow", name="x"),
        "Done.",
    )
    run = await (await opened(agent)).start("actor", "go")
    await toolkit.start("x").wait()
    assert (await run.view()).position == "plan 2/2"
    toolkit.gate("x").set()
    await run.until("completed")


async def test_a_redirect_records_the_plan_item_that_it_replaces(opened: OpenMidrun) -> None:
    """The instruction is recorded as one line."""
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(
        Use("plan", items=ITEMS, marks={"1": "done"}), Use("slow", name="x"), "Done."
    )
    run = await (await opened(agent)).start("actor", "go")
    await toolkit.start("x").wait()
    await run.redirect("Only papers\nof this year")
    toolkit.gate("x").set()
    applied = await wait_for_entry(run, RedirectApplied)
    assert (applied.minus, applied.plus) == ("Read them", "Only papers of this year")
    await run.until("completed")


async def test_a_resume_with_an_instruction_records_the_plan_item_that_it_replaces(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(
        Use("plan", items=ITEMS, marks={"1": "done"}), Use("slow", name="x"), "Done."
    )
    run = await (await opened(agent)).start("actor", "go")
    await toolkit.start("x").wait()
    await run.pause()
    toolkit.gate("x").set()
    await run.until("paused")
    await run.resume("Only papers of this year")
    (resumed,) = await read_entries(run, RunResumed)
    assert (resumed.minus, resumed.plus) == ("Read them", "Only papers of this year")
    await run.until("completed")


async def test_without_a_plan_the_status_line_has_only_the_step(opened: OpenMidrun) -> None:
    """The redirect has a replaced text all the same."""
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(Use("slow", name="x"), "Done.")
    run = await (await opened(agent)).start("actor", "go")
    await toolkit.start("x").wait()
    assert (await run.view()).position == "turn 1"
    await run.redirect("Elsewhere")
    toolkit.gate("x").set()
    applied = await wait_for_entry(run, RedirectApplied)
    assert applied.minus
    assert applied.plus == "Elsewhere"
    await run.until("completed")


async def test_another_process_reads_the_same_plan(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(
        Use("plan", items=ITEMS, marks={"1": "done"}), Use("slow", name="x"), repeat_results
    )
    run = await (await opened(agent)).start("actor", "go")
    await toolkit.start("x").wait()
    remote_run = await (await opened()).get(run.id)
    assert (await remote_run.view()).position == "plan 2/3"
    toolkit.gate("x").set()
    await run.until("completed")
    (made,) = [use for turn in await read_turns(run) for use in turn.uses if use.tool == "plan"]
    assert "item 2 of 3" in str(made.result)


async def test_two_revisions_in_one_reply_are_both_kept(opened: OpenMidrun) -> None:
    """Both calls start from the same plan, and the second one keeps the change of the first."""
    marks = [Use("plan", marks={"1": "done"}), Use("plan", marks={"2": "done"})]
    agent = ApprovalToolkit().agent(Use("plan", items=ITEMS), marks, "Done.")
    run = await (await opened(agent)).start("actor", "go")
    view = await run.until("completed")
    assert [item.state for item in view.plan] == ["done", "done", "queued"]


# ── plan rows and turns as the interfaces show them ───────────────────────────────────────


E1 = Epoch(1)
DRAFT = ToolUse(
    tool="draft", args={"title": "Memo"}, why="it was asked for", traits=Traits(undo=True)
)
MAIL = ToolUse(tool="mail", args={"to": "bo"})
PLAN = ToolUse(
    tool="plan", args={"items": ["Look", "Write", "Send"], "marks": {"1": "running"}}
)
NEXT_ITEM = ToolUse(tool="plan", args={"marks": {"1": "done", "2": "running"}})

STARTED_RUN = given(
    RunStarted(agent="clerk", task="Sort the mail", by="ann"), LeaseTaken(epoch=E1)
)


def close_call(name: str, result: object = "ok") -> v.CloseCall:
    """Return the driver input for a call that returned."""
    return v.CloseCall(epoch=E1, outcome=CallDone(call=CallId(name), result=result))


def make_plan_entry(*marks: str) -> PlanMade:
    """Return a plan entry with these marks."""
    texts = ("Look", "Write", "Send")
    made = (PlanItem(text=t, state=m) for t, m in zip(texts, marks, strict=True))  # type: ignore[arg-type]  # literals
    return PlanMade(items=tuple(made))


def start_second_item() -> Scenario:
    """Return a run that has finished the first item, with a call in flight for the second."""
    run = STARTED_RUN.replies(PLAN, MAIL, text="First I look.").starts("c2", "c3")
    run = run.after(
        make_plan_entry("running", "queued", "queued"), close_call("c2"), close_call("c3")
    )
    run = run.replies(NEXT_ITEM, DRAFT, text="Now I write.").starts("c5", "c6")
    return run.after(make_plan_entry("done", "running", "queued"), close_call("c5"))


def read_looks(run: Scenario) -> list[str]:
    """Return the look of each plan item."""
    return [row.style for row in make_plan_rows(run.state)]


def test_each_plan_row_has_its_look_and_the_last_tool() -> None:
    run = start_second_item()
    assert read_looks(run) == ["done", "running", "queued"]
    assert [row.tool for row in make_plan_rows(run.state)] == ["mail", "draft", ""]


def test_a_turn_belongs_to_the_plan_item_that_was_running() -> None:
    """The marks of the agent say which item that was."""
    turns_shown = list_turns(start_second_item().state, 0, 10)
    assert [(turn.kind or turn.role, turn.item) for turn in turns_shown] == [
        ("task", 0),
        ("assistant", 1),
        ("assistant", 2),
    ]
    assert [call.tool for call in turns_shown[-1].calls] == ["plan", "draft"]
    draft = turns_shown[-1].calls[-1]
    assert (draft.style, draft.args, draft.why) == (
        "running",
        '{"title":"Memo"}',
        "it was asked for",
    )


@pytest.mark.parametrize("phase", ["paused", "waiting", "cancelled"])
def test_no_item_is_shown_as_running_in_a_run_that_rests(phase: str) -> None:
    """An undone call is not shown as done."""
    run = start_second_item()
    if phase == "paused":
        run = run.when(c.Pause()).after(close_call("c6")).advances()
        assert read_looks(run.then(phase=Phase.PAUSED)) == ["done", "held", "queued"]
    elif phase == "waiting":
        ask_person = v.AskPerson(epoch=E1, call=CallId("c6"), question="Which?")
        run = run.after(ask_person).advances().then(phase=Phase.WAITING)
        assert read_looks(run) == ["done", "needs_you", "queued"]
        assert list_turns(run.state, 2, 1)[0].calls[-1].style == "needs_you"
    else:
        run = run.when(c.Cancel(undo="in_flight"))
        run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=CallId("c6"))))
        run = run.cleans("c6")
        run = run.after(
            v.CloseCleanup(epoch=E1, outcome=UndoDone(call=CallId("c6")))
        ).advances()
        assert read_looks(run.then(phase=Phase.CANCELLED)) == ["done", "undone", "not_started"]
        assert list_turns(run.state, 2, 1)[0].style == "undone"


def test_a_call_that_a_pause_aborted_and_a_resume_repeats_is_shown_as_held() -> None:
    """After the resume it is queued."""
    progress = v.SaveProgress(epoch=E1, call=CallId("c6"), progress={"page": 42})
    run = start_second_item().after(progress).when(c.Pause(now=True))
    run = run.after(v.CloseCall(epoch=E1, outcome=CallAborted(call=CallId("c6")))).advances()
    run = run.then(phase=Phase.PAUSED)
    assert list_turns(run.state, 2, 1)[0].calls[-1].style == "held"
    assert list_turns(run.when(c.Resume()).state, 2, 1)[0].calls[-1].style == "queued"


def test_an_item_that_was_running_at_the_end_is_shown_as_left_open() -> None:
    run = start_second_item().after(close_call("c6")).replies(text="That is all.").advances()
    assert read_looks(run.then(phase=Phase.COMPLETED)) == ["done", "left_open", "not_started"]


def test_a_partial_text_is_shown_as_interrupted() -> None:
    run = STARTED_RUN.starts("c1").when(c.Pause())
    run = run.after(
        v.CloseCall(epoch=E1, outcome=CallAborted(call=CallId("c1"), text="The first"))
    )
    (turn,) = list_turns(run.state, 1, 10)
    assert (turn.text, turn.interrupted, turn.style) == ("The first", True, "stopped")


def test_a_long_result_is_cut_and_shows_its_length() -> None:
    run = (
        STARTED_RUN.replies(MAIL)
        .starts("c2")
        .after(close_call("c2", "x" * (SHOWN_MAX_CHARS + 1)))
    )
    result = list_turns(run.state, 1, 1)[0].calls[0].result
    assert result.endswith(f"… ({SHOWN_MAX_CHARS + 1} characters)")
    assert len(result) < SHOWN_MAX_CHARS + 30


def test_pages_of_turns_join_without_a_gap() -> None:
    state = start_second_item().state
    all_turns = list_turns(state, 0, 10)
    assert (*list_turns(state, 0, 2), *list_turns(state, 2, 2)) == all_turns
    assert count_turns(state) == len(all_turns)


def test_without_a_plan_there_are_no_rows() -> None:
    assert make_plan_rows(STARTED_RUN.replies(MAIL).state) == ()


def test_the_turns_of_a_hosted_agent_have_its_calls() -> None:
    """Its messages belong to its framework and are not journaled."""
    started = RunStarted(agent="clerk", task="Sort", by="ann", hosted=True)
    run = given(started, LeaseTaken(epoch=E1)).after(v.ProposeCall(epoch=E1, use=MAIL))
    assert [call.tool for turn in list_turns(run.state, 0, 10) for call in turn.calls] == [
        "mail"
    ]
    assert count_turns(run.state) == 2
