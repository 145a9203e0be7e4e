"""Asks of child runs are shown on the parent, and can be settled on either run.

`test_resting_children.py` has the asks about children that rest for another reason.
"""

from collections.abc import Awaitable
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import (
    Agent,
    Completed,
    ControlRefused,
    File,
    Midrun,
    Receipt,
    Run,
    pause_here,
    tool,
)
from midrun.cli.output import format_ask, format_view
from midrun.core.entries import (
    AskAnswered,
    AskClosed,
    AskOpened,
    RunCancelled,
    RunStarted,
)
from midrun.core.ids import RunId
from midrun.core.run_head import Head
from midrun.core.transcript import Transcript
from midrun.core.values import Json, Phase
from midrun.errors import FileMissing, RunErased
from midrun.events import AskStarted
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import Environment
from midrun.tui.bar import draw_ask_dialog, format_ask_question
from midrun.tui.styled_text import plain_text
from tests.scenarios.conversation.toolkit import (
    HOUR,
    OPERATOR,
    ApprovalToolkit,
    expect_refusal,
    make_parent,
    wait_for_ask,
)
from tests.support.clocks import YEAR_LEASE, ManualClock
from tests.support.gated_model import repeat_results
from tests.support.run_journal import read_entries, wait_for_child, wait_for_entry
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun


async def start_waiting_parent(
    opened: OpenMidrun, toolkit: ApprovalToolkit, use: Use
) -> tuple[Midrun, Run, Run]:
    """Return a parent that waits, because its child needs a person for the call `use`."""
    child_agent = toolkit.agent(use, repeat_results, name="aide")
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Do"), repeat_results])
    )
    run = await midrun.start("parent", "go", actor="ada")
    await run.until("waiting")
    return midrun, run, await wait_for_child(midrun, run)


async def test_an_approval_on_the_parent_makes_the_call_of_the_child_once(
    opened: OpenMidrun,
) -> None:
    """The journal of the child has the actor of the approval."""
    toolkit = ApprovalToolkit()
    _, run, child = await start_waiting_parent(opened, toolkit, Use("pay", name="x"))
    await run.approve(actor="bob")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "aide: pay: x done"
    assert toolkit.completed == ["x"]
    (answer,) = await read_entries(child, AskAnswered)
    assert (answer.by, answer.decision.choice) == ("bob", "approve")


async def test_a_decline_on_the_parent_reaches_the_child_with_its_reason(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    _, run, _ = await start_waiting_parent(opened, toolkit, Use("pay", name="x"))
    await run.decline("too dear", actor="bob")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "aide: pay: declined by bob: too dear"
    assert toolkit.called == []


async def test_the_ask_on_the_parent_has_tool_and_arguments_of_the_call_of_the_child(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    midrun, run, child = await start_waiting_parent(opened, toolkit, Use("pay", name="x"))
    (ask,) = (await run.view()).asks
    assert isinstance(ask.data, dict)
    assert (ask.data["run"], ask.data["tool"]) == (child.id, "pay")
    assert (ask.data["kind"], ask.data["data"]) == ("approval", {"name": "x"})
    assert (ask.kind, ask.of) == ("child", "approval")
    assert (ask.tool, ask.args, ask.title) == ("pay", {"name": "x"}, "Pay: name “x”")
    # The same on the command line, in the terminal and in the events.
    (open_ask,) = [one for one in await midrun.asks() if one.run_id == run.id]
    view = await run.view()
    surfaces = [
        plain_text(format_ask(open_ask)),
        "\n".join(map(plain_text, format_view(view, view.changed_at))),
        format_ask_question(ask),
    ]
    for text in surfaces:
        assert "Approve “Pay”?" in text
        assert "(name: “x”)" in text
    dialog = list(map(plain_text, draw_ask_dialog(ask, 1, 1, 80)))
    assert "  a child run calls pay: Pay: name “x”" in dialog
    assert "  name: x" in dialog
    assert not any("task" in row for row in dialog)
    async with aclosing(run.events()) as events:
        while not isinstance(started := await anext(events), AskStarted):
            continue
    assert (started.tool, started.args, started.title) == (ask.tool, ask.args, ask.title)
    assert started.sentence.endswith("asks for approval (a1): pay (name: “x”)")


async def test_the_ask_on_the_top_run_is_about_the_call_of_the_grandchild(
    opened: OpenMidrun,
) -> None:
    """Every run between them passes on the tool, the arguments and the declared title."""

    @tool(approve=True, title="Remove “{path}”")
    async def remove(path: str) -> str:
        return path

    model = ScriptedModel([Use("remove", path="a.txt"), "Gone."])
    inner = Agent("inner", model=model, tools=[remove])
    middle = make_parent(inner, turns=[Use("inner", task="deeper"), repeat_results])
    top = Agent(
        "top",
        model=make_parent(turns=[Use("parent", task="go"), repeat_results]).model,
        tools=[middle.as_tool()],
    )
    midrun = await opened(top)
    run = await midrun.start("top", "go")
    ask = await wait_for_ask(midrun, run)
    assert (ask.tool, ask.args, ask.title) == ("remove", {"path": "a.txt"}, "Remove “a.txt”")
    await run.approve(args={"path": "b.txt"}, actor="bob")
    assert (await run.until("completed")).output == "parent: inner: Gone."


async def test_a_user_cannot_settle_an_operator_approval_of_the_child_on_the_parent(
    opened: OpenMidrun,
) -> None:
    """The refused decisions leave the ask open."""
    toolkit = ApprovalToolkit()
    _, run, _ = await start_waiting_parent(opened, toolkit, Use("wire", name="x"))
    (ask,) = (await run.view()).asks
    assert ask.audience == "operator"
    assert (await expect_refusal(run.approve(actor="ada"))).reason == "not_allowed"
    assert (await expect_refusal(run.decline(actor="ada"))).reason == "not_allowed"
    assert [open_ask.id for open_ask in (await run.view()).asks] == [ask.id]
    assert toolkit.called == []
    await run.approve(actor=OPERATOR)
    assert isinstance(await run.result(), Completed)
    assert toolkit.completed == ["x"]


async def test_four_eyes_of_a_child_exclude_the_actor_who_started_the_parent(
    opened: OpenMidrun,
) -> None:
    """The actor who started the parent counts as the one who started the child."""
    toolkit = ApprovalToolkit()
    _, run, _ = await start_waiting_parent(opened, toolkit, Use("sign", name="x"))
    assert (await expect_refusal(run.approve(actor="ada"))).reason == "not_allowed"
    assert toolkit.called == []
    await run.approve(actor="bob")
    assert isinstance(await run.result(), Completed)
    assert toolkit.completed == ["x"]


async def test_an_actor_who_steered_the_parent_cannot_approve_on_the_child(
    opened: OpenMidrun,
) -> None:
    """The instruction reaches the child in its task: four eyes exclude its author on both."""
    toolkit = ApprovalToolkit()
    child_agent = toolkit.agent(Use("sign", name="x"), repeat_results, name="aide")
    turns = [Use("slow", name="w"), Use("aide", task="Do"), repeat_results]
    midrun = await opened(make_parent(child_agent, turns=turns, toolkit=toolkit))
    run = await midrun.start("parent", "go", actor="ada")
    await toolkit.start("w").wait()
    await run.redirect("Have it signed", actor=OPERATOR)
    toolkit.gate("w").set()
    await run.until("waiting")
    child = await wait_for_child(midrun, run, "c4")
    for one in (run, child):
        assert (await expect_refusal(one.approve(actor=OPERATOR))).reason == "not_allowed"
    assert toolkit.completed == ["w"]
    await child.approve(actor="bob")
    await run.until("completed")
    assert toolkit.completed == ["w", "x"]


async def test_an_actor_who_steered_the_child_cannot_approve_later_calls_of_the_parent(
    opened: OpenMidrun,
) -> None:
    """The parent uses the result of its child, which the words of the actor influenced."""
    toolkit = ApprovalToolkit()
    child_agent = toolkit.agent(Use("pay", name="x"), repeat_results, name="aide")
    turns = [Use("aide", task="Do"), Use("sign", name="y"), repeat_results]
    midrun = await opened(make_parent(child_agent, turns=turns, toolkit=toolkit))
    run = await midrun.start("parent", "go", actor="ada")
    await run.until("waiting")
    child = await wait_for_child(midrun, run)
    await child.decline("Sign y instead", actor="bob")
    ask = await wait_for_entry(run, AskOpened, 2)
    assert (await expect_refusal(run.approve(ask=ask.ask, actor="bob"))).reason == "not_allowed"
    assert toolkit.completed == []
    await run.approve(ask=ask.ask, actor="cyd")
    await run.until("completed")
    assert await midrun.verify(run.id)


async def test_arguments_edited_under_four_eyes_need_the_approval_of_another_person(
    opened: OpenMidrun,
) -> None:
    """The child asks again, and the ask on the parent excludes the editor."""
    toolkit = ApprovalToolkit()
    _, run, _ = await start_waiting_parent(opened, toolkit, Use("sign", name="x"))
    await run.approve(args={"name": "y"}, actor="bob")
    second = await wait_for_entry(run, AskOpened, 2)
    assert second.excluded == ("ada", "bob")
    assert (
        await expect_refusal(run.approve(ask=second.ask, actor="bob"))
    ).reason == "not_allowed"
    await run.approve(ask=second.ask, actor="cyd")
    assert isinstance(await run.result(), Completed)
    assert toolkit.completed == ["y"]


async def test_an_approval_on_the_child_closes_the_ask_on_the_parent(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    _, run, child = await start_waiting_parent(opened, toolkit, Use("wire", name="x"))
    (ask,) = (await run.view()).asks
    await child.approve(actor=OPERATOR)
    await run.until("completed")
    assert [closed.why for closed in await read_entries(run, AskClosed)] == ["elsewhere"]
    assert (
        await expect_refusal(run.approve(ask=ask.id, actor=OPERATOR))
    ).reason == "ask_closed"


async def test_edited_arguments_reach_the_child_through_the_parent(opened: OpenMidrun) -> None:
    """They replace the arguments of the child's call, not of the call that is the child."""
    toolkit = ApprovalToolkit()
    _, run, _ = await start_waiting_parent(opened, toolkit, Use("pay", name="x"))
    await run.approve(args={"name": "y"}, actor="bob")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert (toolkit.completed, outcome.output) == (["y"], "aide: pay: y done")


async def test_edited_arguments_that_do_not_fit_the_childs_call_are_refused(
    opened: OpenMidrun,
) -> None:
    """The ask stays open."""
    toolkit = ApprovalToolkit()
    _, run, _ = await start_waiting_parent(opened, toolkit, Use("pay", name="x"))
    problem = await expect_refusal(run.approve(args={"task": "Do something else"}, actor="bob"))
    assert problem.reason == "bad_arguments"
    assert len((await run.view()).asks) == 1
    await run.approve()
    await run.until("completed")
    assert toolkit.completed == ["x"]


@pytest.mark.parametrize(
    ("use", "control", "reason"),
    [
        (Use("pay", name="x"), "answer", "not_a_question"),
        (Use("ask_human", question="Which?"), "approve", "not_an_approval"),
        (Use("ask_human", question="Which?"), "decline", "not_an_approval"),
    ],
)
async def test_a_decision_that_does_not_fit_the_childs_ask_is_refused_on_the_parent(
    opened: OpenMidrun, use: Use, control: str, reason: str
) -> None:
    toolkit = ApprovalToolkit()
    _, run, _ = await start_waiting_parent(opened, toolkit, use)
    controls: dict[str, Awaitable[Receipt]] = {}
    if control == "answer":
        controls["answer"] = run.answer("yes")
    elif control == "approve":
        controls["approve"] = run.approve()
    else:
        controls["decline"] = run.decline("no")
    assert (await expect_refusal(controls[control])).reason == reason
    assert len((await run.view()).asks) == 1
    assert len(await read_entries(run, AskOpened)) == 1


async def test_of_two_decisions_on_parent_and_child_at_once_one_wins(
    opened: OpenMidrun,
) -> None:
    """The call of the child is made at most once, and both asks are closed."""
    toolkit = ApprovalToolkit()
    _, run, child = await start_waiting_parent(opened, toolkit, Use("pay", name="x"))
    (outer,), (inner,) = (await run.view()).asks, (await child.view()).asks

    async def try_to(decision: Awaitable[Receipt]) -> None:
        try:
            await decision
        except ControlRefused as error:
            assert error.reason in {"ask_closed", "already_answered"}  # noqa: PT017 - the other decision was first

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(try_to, run.approve(ask=outer.id, actor="ada"))
        tasks.start_soon(try_to, child.decline("no", ask=inner.id, actor="bob"))
    await run.until("completed")
    (answer,) = await read_entries(child, AskAnswered)
    assert toolkit.completed == (["x"] if answer.by == "ada" else [])


async def test_a_parent_with_a_running_child_does_not_wait_for_another_that_asks(
    opened: OpenMidrun,
) -> None:
    """The parent waits only when no call of it is in flight."""
    toolkit = ApprovalToolkit()
    quiet = toolkit.agent(Use("slow", name="q"), "quiet!", name="quiet")
    asker = toolkit.agent(Use("pay", name="x"), "asker!", name="asker")
    turns = [[Use("quiet", task="go"), Use("asker", task="go")], repeat_results]
    midrun = await opened(make_parent(quiet, asker, turns=turns))
    run = await midrun.start("parent", "go")
    await toolkit.start("q").wait()
    await wait_for_entry(run, AskOpened)
    view = await run.view()
    assert (view.phase, len(view.asks)) == ("running", 1)
    toolkit.gate("q").set()
    await run.until("waiting")
    await run.approve()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "quiet: quiet!; asker: asker!"
    assert toolkit.completed == ["q", "x"]


async def test_each_answer_reaches_the_child_that_asked(opened: OpenMidrun) -> None:
    """The order of the answers is not the order of the questions."""
    toolkit = ApprovalToolkit()
    names = ("a", "b", "c")
    child_agents = [
        toolkit.agent(Use("ask_human", question=f"{n}?"), repeat_results, name=n) for n in names
    ]
    midrun = await opened(
        make_parent(*child_agents, turns=[[Use(n, task="go") for n in names], repeat_results])
    )
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    asks = {ask.question: ask.id for ask in (await run.view()).asks}
    assert sorted(asks) == ["a?", "b?", "c?"]
    for name in ("c", "a", "b"):
        await run.answer(f"{name}!", ask=asks[f"{name}?"])
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "; ".join(f"{n}: ask_human: {n}!" for n in names)


async def test_files_of_a_question_and_its_answer_pass_between_parent_and_child(
    opened: OpenMidrun,
) -> None:
    """Both runs name them, so each shows them. They are deleted with both."""
    asked, given = File("a.png", "image/png", b"asked"), File("b.png", "image/png", b"given")

    @tool
    async def compare() -> None:
        """Ask which picture is right."""
        pause_here("This one?", files=[asked])

    def reply(messages: Transcript) -> str:
        return ", ".join(file.name for file in messages[-1].uses[0].files)

    aide = Agent("aide", model=ScriptedModel([Use("compare"), reply]), tools=[compare])
    midrun = await opened(make_parent(aide, turns=[Use("aide", task="Do"), repeat_results]))
    run = await midrun.start("parent", "go", actor="ada")
    (ask,) = (await run.until("waiting")).asks
    assert (ask.kind, ask.files, ask.takes_files) == ("child", (asked.ref,), True)
    assert "file: a.png (image/png, 5 bytes)" in "\n".join(
        plain_text(line) for line in draw_ask_dialog(ask, 1, 1, 80)
    )
    await run.answer("no", files=[given], actor="bob")
    assert (await run.until("completed")).output == "aide: b.png"
    child = await wait_for_child(midrun, run)
    for each in (run, child):
        assert await each.file(asked.ref.hash) == asked
        assert await each.file(given.ref.hash) == given
    await midrun.delete_runs(agent="parent", actor=OPERATOR)
    with pytest.raises(RunErased):
        await midrun.store.read_file(run.id, asked.ref.hash)
    late = RunStarted(agent="aide", task="t", files=(asked.ref, given.ref))
    with pytest.raises(FileMissing):  # the store does not have them any more
        await midrun.store.create(RunId("run_late"), [late], head=Head(phase=Phase.QUEUED))


async def test_a_child_that_asks_twice_is_answered_twice(opened: OpenMidrun) -> None:
    """The two questions may appear on the parent one after the other."""
    toolkit = ApprovalToolkit()
    both = [Use("ask_human", question="One?"), Use("ask_human", question="Two?")]
    child_agent = toolkit.agent(both, repeat_results, name="aide")
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Ask"), repeat_results])
    )
    run = await midrun.start("parent", "go")
    answers: dict[str, Json] = {"One?": 1, "Two?": 2}
    seen: set[str] = set()
    while len(seen) < 2:
        for ask in (await run.until("waiting")).asks:
            if ask.question not in seen:
                seen.add(ask.question)
                await run.answer(answers[ask.question], ask=ask.id)
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "aide: ask_human: 1; ask_human: 2"


async def test_the_ask_of_a_grandchild_is_settled_on_the_top_run(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    inner = toolkit.agent(Use("wire", name="x"), repeat_results, name="inner")
    middle = Agent(
        "middle",
        model=ScriptedModel([Use("inner", task="deeper"), repeat_results]),
        tools=[inner.as_tool()],
    )
    midrun = await opened(
        make_parent(middle, turns=[Use("middle", task="deep"), repeat_results])
    )
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    assert (await expect_refusal(run.approve(actor="ada"))).reason == "not_allowed"
    await run.approve(actor=OPERATOR)
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "middle: inner: wire: x done"
    assert toolkit.completed == ["x"]


async def test_the_queued_review_of_a_child_is_settled_on_the_parent(
    opened: OpenMidrun,
) -> None:
    """The child has given its answer and waits for the review; so does its parent."""
    toolkit = ApprovalToolkit()
    child_agent = toolkit.agent(Use("post", name="x"), "Hm.", "Posted.", name="aide")
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Post"), repeat_results])
    )
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    await run.approve()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "aide: Posted."
    assert toolkit.completed == ["x"]


async def test_the_ask_of_a_child_expires_on_child_and_parent(path: Path) -> None:
    toolkit, clock = ApprovalToolkit(), ManualClock()
    pay = tool(toolkit._quick, name="hasty", approve=True, expires=HOUR)
    model = ScriptedModel([Use("hasty", name="x"), repeat_results])
    child_agent = Agent("aide", model=model, tools=[pay])
    parent = make_parent(child_agent, turns=[Use("aide", task="Do"), repeat_results])
    outside = Environment(clock=clock, lease=YEAR_LEASE)
    with anyio.fail_after(60):
        async with Midrun(get_store_url(path), agents=[parent], outside=outside) as midrun:
            run = await midrun.start("parent", "go")
            await run.until("waiting")
            clock.advance(timedelta(hours=2))
            output = (await run.until("completed")).output
            assert output == "aide: hasty: not executed: no decision in time"
            assert (await (await wait_for_child(midrun, run)).view()).phase == "completed"
            assert [closed.why for closed in await read_entries(run, AskClosed)] == [
                "elsewhere"
            ]
            assert await midrun.verify(run.id)
    assert toolkit.called == []


# ── controls of the parent while its child asks ──────────────────────────────────────────


async def test_a_redirect_of_the_parent_closes_the_ask_of_the_child(opened: OpenMidrun) -> None:
    """The child worked for the old instruction, so its call can no longer be approved."""
    toolkit = ApprovalToolkit()
    child_agent = toolkit.agent(Use("pay", name="x"), repeat_results, name="aide")
    turns = [Use("aide", task="Do"), Use("slow", name="new"), "Done."]
    midrun = await opened(make_parent(child_agent, turns=turns, toolkit=toolkit))
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    child = await wait_for_child(midrun, run)
    (ask,) = (await child.view()).asks
    await run.redirect("Something else")
    await toolkit.start("new").wait()
    assert (await expect_refusal(child.approve(ask=ask.id))).reason == "ask_closed"
    toolkit.gate("new").set()
    await run.until("completed")
    assert toolkit.completed == ["new"]
    await child.until("cancelled")


async def test_a_cancel_of_the_parent_cancels_a_child_that_waits(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    _, run, child = await start_waiting_parent(opened, toolkit, Use("pay", name="x"))
    await run.cancel()
    await run.until("cancelled")
    assert (await child.view()).phase == "cancelled"
    assert [closed.why for closed in await read_entries(child, AskClosed)] == ["cancelled"]
    assert toolkit.called == []


async def test_a_side_question_to_the_parent_keeps_the_ask_of_its_child_open(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    child_agent = toolkit.agent(
        Use("ask_human", question="Which?"), repeat_results, name="aide"
    )
    turns = [Use("aide", task="Do"), "Tuesday.", "All done."]
    midrun = await opened(make_parent(child_agent, turns=turns))
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    child = await wait_for_child(midrun, run)
    await run.say("What day is it?")
    while (view := await run.until("waiting")).frames or view.step < 2:
        pass
    assert [ask.question for ask in view.asks] == ["Which?"]
    assert (await child.view()).phase == "waiting"
    await run.answer("red")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output.endswith("All done.")


async def test_a_child_that_is_cancelled_while_it_waits_is_a_failed_call_of_its_parent(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    _, run, child = await start_waiting_parent(opened, toolkit, Use("pay", name="x"))
    await child.cancel(actor="bob")
    await wait_for_entry(child, RunCancelled)
    assert "was cancelled" in (await run.until("completed")).output


async def test_a_process_without_agents_approves_the_call_of_a_child(
    opened: OpenMidrun, path: Path
) -> None:
    """The first process asks, the second approves on the parent, the third makes the call."""
    toolkit = ApprovalToolkit()
    child_agent = toolkit.agent(Use("pay", name="x"), repeat_results, name="aide")
    parent = make_parent(child_agent, turns=[Use("aide", task="Do"), repeat_results])
    async with Midrun(get_store_url(path), agents=[parent]) as first:
        run = await first.start("parent", "go")
        await run.until("waiting")
    async with Midrun(get_store_url(path)) as second:
        await (await second.get(run.id)).approve(actor="ada")
    assert toolkit.called == []
    third = await opened(parent)
    view = await (await third.get(run.id)).until("completed")
    assert (view.output, toolkit.completed) == ("aide: pay: x done", ["x"])
