"""What children ask: shown on the parent, decided on either, by those who may."""

from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import Actor, Agent, Completed, ControlRefused, Midrun, Receipt, Run, tool
from midrun.core.entries import AskAnswered, AskClosed, AskOpened, RunCancelled
from midrun.core.values import Json
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import Environment
from tests.scenarios.conversation.workshop import HOUR, Workshop, child_of, delegating, told
from tests.scenarios.promises.clocks import FAR, Hand
from tests.scenarios.promises.seen import entries, recorded
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener

OLGA = Actor(name="olga", role="operator")


async def refused(control: Awaitable[Receipt]) -> ControlRefused:
    """Return how a control was refused."""
    with pytest.raises(ControlRefused) as caught:
        await control
    return caught.value


async def asking(opened: Opener, shop: Workshop, use: Use) -> tuple[Midrun, Run, Run]:
    """Bring a parent to where it waits, because its child needs somebody for `use`."""
    aide = shop.agent(use, told, name="aide")
    midrun = await opened(delegating(aide, turns=[Use("aide", task="Do"), told]))
    run = await midrun.start("parent", "go", actor="ada")
    await run.until("waiting")
    return midrun, run, await child_of(midrun, run)


async def test_a_childs_approval_is_given_on_the_parent_and_the_call_made_once(
    opened: Opener,
) -> None:
    """The child's journal says who gave it."""
    shop = Workshop()
    _, run, child = await asking(opened, shop, Use("pay", name="x"))
    await run.approve(actor="bob")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "aide: pay: x done"
    assert shop.completed == ["x"]
    (answered,) = await entries(child, AskAnswered)
    assert (answered.by, answered.decision.choice) == ("bob", "approve")


async def test_a_childs_approval_is_declined_on_the_parent_with_the_reason(
    opened: Opener,
) -> None:
    """The child's agent is told, and goes on."""
    shop = Workshop()
    _, run, _ = await asking(opened, shop, Use("pay", name="x"))
    await run.decline("too dear", actor="bob")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "aide: pay: declined by bob: too dear"
    assert shop.called == []


async def test_a_person_sees_on_the_parent_what_the_child_wants_to_do(opened: Opener) -> None:
    """Which tool, with which arguments, of which run: nobody approves blind."""
    shop = Workshop()
    _, run, child = await asking(opened, shop, Use("pay", name="x"))
    (ask,) = (await run.view()).asks
    assert isinstance(ask.data, dict)
    assert (ask.data["run"], ask.data["tool"]) == (child.id, "pay")
    assert (ask.data["kind"], ask.data["data"]) == ("approval", {"name": "x"})


async def test_a_user_on_the_parent_cannot_decide_what_only_an_operator_may_on_the_child(
    opened: Opener,
) -> None:
    """The way round over the parent is closed: refused by name, and the ask stays open."""
    shop = Workshop()
    _, run, _ = await asking(opened, shop, Use("wire", name="x"))
    (ask,) = (await run.view()).asks
    assert ask.audience == "operator"
    assert (await refused(run.approve(actor="ada"))).reason == "not_allowed"
    assert (await refused(run.decline(actor="ada"))).reason == "not_allowed"
    assert [open_ask.id for open_ask in (await run.view()).asks] == [ask.id]
    assert shop.called == []
    await run.approve(actor=OLGA)
    assert isinstance(await run.result(), Completed)
    assert shop.completed == ["x"]


async def test_four_eyes_of_a_child_hold_on_the_parent(opened: Opener) -> None:
    """Who started the parent started the child."""
    shop = Workshop()
    _, run, _ = await asking(opened, shop, Use("sign", name="x"))
    assert (await refused(run.approve(actor="ada"))).reason == "not_allowed"
    assert shop.called == []
    await run.approve(actor="bob")
    assert isinstance(await run.result(), Completed)
    assert shop.completed == ["x"]


async def test_who_steered_the_parent_does_not_decide_on_the_child(opened: Opener) -> None:
    """The words of a person reach the child in its task: four eyes know them on both."""
    shop = Workshop()
    aide = shop.agent(Use("sign", name="x"), told, name="aide")
    turns = [Use("slow", name="w"), Use("aide", task="Do"), told]
    midrun = await opened(delegating(aide, turns=turns, stage=shop))
    run = await midrun.start("parent", "go", actor="ada")
    await shop.start("w").wait()
    await run.redirect("Have it signed", actor=OLGA)
    shop.gate("w").set()
    await run.until("waiting")
    child = await child_of(midrun, run, "c4")
    for one in (run, child):
        assert (await refused(one.approve(actor=OLGA))).reason == "not_allowed"
    assert shop.completed == ["w"]
    await child.approve(actor="bob")
    await run.until("completed")
    assert shop.completed == ["w", "x"]


async def test_who_steered_the_child_does_not_approve_what_its_parent_does_then(
    opened: Opener,
) -> None:
    """The parent goes by the result of its child, which the words on the child led to."""
    shop = Workshop()
    aide = shop.agent(Use("pay", name="x"), told, name="aide")
    turns = [Use("aide", task="Do"), Use("sign", name="y"), told]
    midrun = await opened(delegating(aide, turns=turns, stage=shop))
    run = await midrun.start("parent", "go", actor="ada")
    await run.until("waiting")
    child = await child_of(midrun, run)
    await child.decline("Sign y instead", actor="bob")
    ask = await recorded(run, AskOpened, 2)
    assert (await refused(run.approve(ask=ask.ask, actor="bob"))).reason == "not_allowed"
    assert shop.completed == []
    await run.approve(ask=ask.ask, actor="cyd")
    await run.until("completed")
    assert await midrun.verify(run.id)


async def test_an_edit_on_the_parent_is_put_to_another_person(opened: Opener) -> None:
    """The child asks again, and the parent knows who may not decide."""
    shop = Workshop()
    _, run, _ = await asking(opened, shop, Use("sign", name="x"))
    await run.approve(args={"name": "y"}, actor="bob")
    second = await recorded(run, AskOpened, 2)
    assert second.excluded == ("ada", "bob")
    assert (await refused(run.approve(ask=second.ask, actor="bob"))).reason == "not_allowed"
    await run.approve(ask=second.ask, actor="cyd")
    assert isinstance(await run.result(), Completed)
    assert shop.completed == ["y"]


async def test_an_operator_may_decide_on_the_child_and_the_parent_goes_on(
    opened: Opener,
) -> None:
    """The parent's own ask needs nobody any more, and says so."""
    shop = Workshop()
    _, run, child = await asking(opened, shop, Use("wire", name="x"))
    (ask,) = (await run.view()).asks
    await child.approve(actor=OLGA)
    await run.until("completed")
    assert [closed.why for closed in await entries(run, AskClosed)] == ["elsewhere"]
    assert (await refused(run.approve(ask=ask.id, actor=OLGA))).reason == "ask_closed"


async def test_edited_arguments_reach_the_child_through_the_parent(opened: Opener) -> None:
    """They are the arguments of the child's call, not of the call that is the child."""
    shop = Workshop()
    _, run, _ = await asking(opened, shop, Use("pay", name="x"))
    await run.approve(args={"name": "y"}, actor="bob")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert (shop.completed, outcome.output) == (["y"], "aide: pay: y done")


async def test_edited_arguments_that_do_not_fit_the_childs_call_are_refused(
    opened: Opener,
) -> None:
    """And the ask stays open, as it does without a parent."""
    shop = Workshop()
    _, run, _ = await asking(opened, shop, Use("pay", name="x"))
    problem = await refused(run.approve(args={"task": "Do something else"}, actor="bob"))
    assert problem.reason == "bad_arguments"
    assert len((await run.view()).asks) == 1
    await run.approve()
    await run.until("completed")
    assert shop.completed == ["x"]


@pytest.mark.parametrize(
    ("use", "control", "reason"),
    [
        (Use("pay", name="x"), "answer", "not_a_question"),
        (Use("ask_human", question="Which?"), "approve", "not_an_approval"),
        (Use("ask_human", question="Which?"), "decline", "not_an_approval"),
    ],
)
async def test_a_decision_that_does_not_fit_the_childs_ask_is_refused_on_the_parent(
    opened: Opener, use: Use, control: str, reason: str
) -> None:
    """Nobody gets a good receipt for what the child will not take."""
    shop = Workshop()
    _, run, _ = await asking(opened, shop, use)
    wishes: dict[str, Awaitable[Receipt]] = {}
    if control == "answer":
        wishes["answer"] = run.answer("yes")
    elif control == "approve":
        wishes["approve"] = run.approve()
    else:
        wishes["decline"] = run.decline("no")
    assert (await refused(wishes[control])).reason == reason
    assert len((await run.view()).asks) == 1
    assert len(await entries(run, AskOpened)) == 1


async def test_people_who_decide_on_parent_and_child_at_once_have_one_winner(
    opened: Opener,
) -> None:
    """However it goes, the child's call is made at most once and both journals close."""
    shop = Workshop()
    _, run, child = await asking(opened, shop, Use("pay", name="x"))
    (outer,), (inner,) = (await run.view()).asks, (await child.view()).asks

    async def try_to(decision: Awaitable[Receipt]) -> None:
        try:
            await decision
        except ControlRefused as error:
            assert error.reason in {"ask_closed", "already_answered"}  # noqa: PT017 - either may win

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(try_to, run.approve(ask=outer.id, actor="ada"))
        tasks.start_soon(try_to, child.decline("no", ask=inner.id, actor="bob"))
    await run.until("completed")
    (answered,) = await entries(child, AskAnswered)
    assert shop.completed == (["x"] if answered.by == "ada" else [])


async def test_one_of_several_children_asks_and_the_others_work_on(opened: Opener) -> None:
    """The parent waits only when nothing of it is in flight."""
    shop = Workshop()
    quiet = shop.agent(Use("slow", name="q"), "quiet!", name="quiet")
    asker = shop.agent(Use("pay", name="x"), "asker!", name="asker")
    turns = [[Use("quiet", task="go"), Use("asker", task="go")], told]
    midrun = await opened(delegating(quiet, asker, turns=turns))
    run = await midrun.start("parent", "go")
    await shop.start("q").wait()
    await recorded(run, AskOpened)
    view = await run.view()
    assert (view.phase, len(view.asks)) == ("running", 1)
    shop.gate("q").set()
    await run.until("waiting")
    await run.approve()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "quiet: quiet!; asker: asker!"
    assert shop.completed == ["q", "x"]


async def test_all_children_ask_and_each_is_answered_by_name(opened: Opener) -> None:
    """Out of order, each answer reaches the child that asked."""
    shop = Workshop()
    names = ("a", "b", "c")
    aides = [shop.agent(Use("ask_human", question=f"{n}?"), told, name=n) for n in names]
    midrun = await opened(delegating(*aides, turns=[[Use(n, task="go") for n in names], told]))
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    asks = {ask.question: ask.id for ask in (await run.view()).asks}
    assert sorted(asks) == ["a?", "b?", "c?"]
    for name in ("c", "a", "b"):
        await run.answer(f"{name}!", ask=asks[f"{name}?"])
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "; ".join(f"{n}: ask_human: {n}!" for n in names)


async def test_a_child_that_asks_twice_is_answered_twice(opened: Opener) -> None:
    """One after the other; the parent attends to the same child each time."""
    shop = Workshop()
    both = [Use("ask_human", question="One?"), Use("ask_human", question="Two?")]
    aide = shop.agent(both, told, name="aide")
    midrun = await opened(delegating(aide, turns=[Use("aide", task="Ask"), told]))
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


async def test_what_a_grandchild_asks_is_decided_at_the_top(opened: Opener) -> None:
    """Through every run between them."""
    shop = Workshop()
    inner = shop.agent(Use("wire", name="x"), told, name="inner")
    middle = Agent(
        "middle",
        model=ScriptedModel([Use("inner", task="deeper"), told]),
        tools=[inner.as_tool()],
    )
    midrun = await opened(delegating(middle, turns=[Use("middle", task="deep"), told]))
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    assert (await refused(run.approve(actor="ada"))).reason == "not_allowed"
    await run.approve(actor=OLGA)
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "middle: inner: wire: x done"
    assert shop.completed == ["x"]


async def test_a_childs_queued_review_is_decided_on_the_parent(opened: Opener) -> None:
    """The child has gone on, would end, and waits; so does its parent."""
    shop = Workshop()
    aide = shop.agent(Use("post", name="x"), "Hm.", "Posted.", name="aide")
    midrun = await opened(delegating(aide, turns=[Use("aide", task="Post"), told]))
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    await run.approve()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "aide: Posted."
    assert shop.completed == ["x"]


async def test_a_childs_ask_expires_on_both(path: Path) -> None:
    """The child hears that nobody decided, and goes on; the parent is not left waiting."""
    shop, clock = Workshop(), Hand()
    pay = tool(shop._quick, name="hasty", approve=True, expires=HOUR)
    model = ScriptedModel([Use("hasty", name="x"), told])
    aide = Agent("aide", model=model, tools=[pay])
    parent = delegating(aide, turns=[Use("aide", task="Do"), told])
    outside = Environment(clock=clock, lease=FAR)
    with anyio.fail_after(60):
        async with Midrun(kept_at(path), agents=[parent], outside=outside) as midrun:
            run = await midrun.start("parent", "go")
            await run.until("waiting")
            clock.move(timedelta(hours=2))
            output = (await run.until("completed")).output
            assert output == "aide: hasty: not executed: nobody decided in time"
            assert (await (await child_of(midrun, run)).view()).phase == "completed"
            assert [closed.why for closed in await entries(run, AskClosed)] == ["elsewhere"]
            assert await midrun.verify(run.id)
    assert shop.called == []


# ── a new course while a child asks ───────────────────────────────────────────────────────


async def test_a_redirect_of_the_parent_takes_the_childs_ask_with_it(opened: Opener) -> None:
    """The child worked for the old plan: nobody can let it act for it any more."""
    shop = Workshop()
    aide = shop.agent(Use("pay", name="x"), told, name="aide")
    turns = [Use("aide", task="Do"), Use("slow", name="new"), "Done."]
    midrun = await opened(delegating(aide, turns=turns, stage=shop))
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    child = await child_of(midrun, run)
    (ask,) = (await child.view()).asks
    await run.redirect("Something else")
    await shop.start("new").wait()
    with pytest.raises(ControlRefused) as late:
        await child.approve(ask=ask.id)
    assert late.value.reason == "ask_closed"
    shop.gate("new").set()
    await run.until("completed")
    assert shop.completed == ["new"]
    await child.until("cancelled")


async def test_a_cancel_of_the_parent_ends_a_child_that_waits(opened: Opener) -> None:
    """Both asks are closed, and the child ends first."""
    shop = Workshop()
    _, run, child = await asking(opened, shop, Use("pay", name="x"))
    await run.cancel()
    await run.until("cancelled")
    assert (await child.view()).phase == "cancelled"
    assert [closed.why for closed in await entries(child, AskClosed)] == ["cancelled"]
    assert shop.called == []


async def test_a_side_question_to_a_parent_whose_child_waits_leaves_the_child_alone(
    opened: Opener,
) -> None:
    """The ask of the child stays where it is, and so does the child."""
    shop = Workshop()
    aide = shop.agent(Use("ask_human", question="Which?"), told, name="aide")
    turns = [Use("aide", task="Do"), "Tuesday.", "All done."]
    midrun = await opened(delegating(aide, turns=turns))
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    child = await child_of(midrun, run)
    await run.say("What day is it?")
    while (view := await run.until("waiting")).frames or view.step < 2:
        pass
    assert [ask.question for ask in view.asks] == ["Which?"]
    assert (await child.view()).phase == "waiting"
    await run.answer("red")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output.endswith("All done.")


async def test_a_cancelled_child_that_was_asking_tells_its_parent(opened: Opener) -> None:
    """Somebody ended the child alone: the parent hears that it failed, and goes on."""
    shop = Workshop()
    _, run, child = await asking(opened, shop, Use("pay", name="x"))
    await child.cancel(actor="bob")
    await recorded(child, RunCancelled)
    assert "was cancelled" in (await run.until("completed")).output


async def test_a_childs_ask_is_decided_where_nothing_is_driven(
    opened: Opener, path: Path
) -> None:
    """Asked in one process, approved on the parent in a second, made in a third."""
    shop = Workshop()
    aide = shop.agent(Use("pay", name="x"), told, name="aide")
    parent = delegating(aide, turns=[Use("aide", task="Do"), told])
    async with Midrun(kept_at(path), agents=[parent]) as first:
        run = await first.start("parent", "go")
        await run.until("waiting")
    async with Midrun(kept_at(path)) as desk:
        await (await desk.get(run.id)).approve(actor="ada")
    assert shop.called == []
    third = await opened(parent)
    view = await (await third.get(run.id)).until("completed")
    assert (view.output, shop.completed) == ("aide: pay: x done", ["x"])
