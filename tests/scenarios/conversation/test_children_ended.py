"""Children that are ended: with their parent or alone, by a failure, or left by a process."""

from datetime import timedelta
from pathlib import Path

import anyio

from midrun import Agent, Completed, Midrun, tool
from midrun.core.entries import CallStarted, RunCancelled
from midrun.models import ScriptedModel, Use
from tests.scenarios.conversation.workshop import Workshop, child_of, delegating, told
from tests.scenarios.promises.seen import entries, kinds, recorded
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener

SOON = timedelta(milliseconds=50)


def aide(shop: Workshop, *turns: object, name: str = "aide", **options: object) -> Agent:
    """Return an agent to be somebody's child."""
    return shop.agent(*turns, name=name, **options)


# ── cancelling ────────────────────────────────────────────────────────────────────────────


async def test_a_family_is_undone_in_the_reverse_order_of_all_its_deeds(opened: Opener) -> None:
    """Grandchild, child, parent: what came last goes first."""
    shop = Workshop()
    inner = aide(shop, Use("draft", name="i1"), Use("slow_draft", name="i2"), name="inner")
    middle = Agent(
        "middle",
        model=ScriptedModel([Use("draft", name="m1"), Use("inner", task="deeper")]),
        tools=[inner.as_tool(), *shop.tools()],
    )
    turns = [Use("draft", name="p1"), Use("middle", task="deep")]
    midrun = await opened(delegating(middle, turns=turns, stage=shop))
    run = await midrun.start("parent", "go")
    await shop.start("i2").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert shop.undone == ["i2", "i1", "m1", "p1"]
    page = await midrun.runs()
    assert {row.phase for row in page.items} == {"cancelled"}


async def test_a_child_whose_thought_is_dropped_is_ended_while_its_parent_waits(
    opened: Opener,
) -> None:
    """Nobody is asked for it any more, and nobody who answers it sets it to work again."""
    shop = Workshop()
    child = aide(shop, Use("ask_human", question="Which?"), Use("quick", name="late"), "Done.")
    turns = [Use("aide", task="Do"), Use("ask_human", question="Who?"), told]
    midrun = await opened(delegating(child, turns=turns, stage=shop))
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    await run.say("Wait, for whom?", urgency="now")
    await run.until("waiting")
    assert len(await midrun.asks()) == 3  # two on the parent, and the child's own
    await run.drop_frame("f1")
    await run.until("waiting")
    assert (await (await child_of(midrun, run)).view()).phase == "cancelled"
    (ask,) = await midrun.asks()
    assert ask.question == "Who?"
    await run.answer("ada")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output.endswith("ask_human: ada")
    assert shop.completed == []


async def test_a_parent_is_cancelled_only_after_all_its_children(opened: Opener) -> None:
    """Several in parallel, one of them slow to undo."""
    shop = Workshop()
    aides = [aide(shop, Use("slow_draft", name=n), name=n) for n in ("a", "b", "c")]
    turns = [[Use(n, task="go") for n in ("a", "b", "c")]]
    midrun = await opened(delegating(*aides, turns=turns))
    run = await midrun.start("parent", "go")
    for name in ("a", "b", "c"):
        await shop.start(name).wait()
    await run.cancel()
    await run.until("cancelled")
    assert sorted(shop.undone) == ["a", "b", "c"]
    for call in ("c2", "c3", "c4"):
        assert (await (await child_of(midrun, run, call)).view()).phase == "cancelled"


async def test_what_a_child_could_not_undo_is_not_clean_on_its_parent(opened: Opener) -> None:
    """Whoever reads the parent's report must not think that everything is gone."""
    shop = Workshop()
    dared = tool(shop._slow, name="dared", undo=shop._undo, undo_unknown=False)
    helper = Agent("aide", model=ScriptedModel([Use("dared", name="x")]), tools=[dared])
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Do")]))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    await run.cancel()
    await run.until("cancelled")
    child = await child_of(midrun, run)
    assert [deed.tool for deed in (await child.report()).not_undone] == ["dared"]
    assert shop.undone == []
    report = await run.report()
    assert not report.clean, str(report)


async def test_a_child_that_does_not_respond_does_not_hold_the_cancel_up(
    opened: Opener,
) -> None:
    """It blocks a thread: after its grace the child is unsure of it, and both are cancelled."""
    shop = Workshop()
    helper = aide(shop, Use("grind", name="x"), "Never.", grace=SOON)
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Grind")]))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    await run.cancel()
    await run.until("cancelled")
    child = await child_of(midrun, run)
    assert [deed.tool for deed in (await child.report()).unsure] == ["grind"]
    shop.let_go.set()


async def test_a_child_cancelled_alone_is_a_failure_that_its_parent_hears_of(
    opened: Opener,
) -> None:
    """The parent's agent is told, and decides what to do."""
    shop = Workshop()
    helper = aide(shop, Use("slow_draft", name="x"), "Never.")
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Do"), told]))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    child = await child_of(midrun, run)
    await child.cancel()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert "was cancelled" in outcome.output
    assert shop.undone == ["x"]


async def test_a_child_that_fails_is_a_failed_call_and_the_parent_goes_on(
    opened: Opener,
) -> None:
    """Its error reaches the parent's agent in words; the child is ended with its parent."""
    shop = Workshop()
    helper = aide(shop, Use("draft", name="x"))  # its script has no second turn
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Do"), told]))
    run = await midrun.start("parent", "go")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert "all turns of the script have been played" in outcome.output
    child = await child_of(midrun, run)
    assert (await child.view()).phase == "cancelled"


async def test_a_parent_that_is_over_leaves_no_child_behind(opened: Opener) -> None:
    """A failed child is held by its parent, and released when that ends."""
    shop = Workshop()
    helper = aide(shop, Use("draft", name="x"))
    turns = [Use("aide", task="Do"), Use("slow", name="y"), "Done."]
    midrun = await opened(delegating(helper, turns=turns, stage=shop))
    run = await midrun.start("parent", "go")
    await shop.start("y").wait()
    child = await child_of(midrun, run)
    await child.until("failed")
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert (await child.view()).phase == "cancelled"
    assert shop.undone == ["x"]


# ── leaving ───────────────────────────────────────────────────────────────────────────────


async def test_a_process_that_is_left_with_children_in_flight_loses_nothing(
    opened: Opener, path: Path
) -> None:
    """Children and parents stand down; whoever comes next goes on with the same children."""
    shop = Workshop()
    a = aide(shop, Use("quick", name="a1"), Use("read", name="a2"), "a!", name="a")
    b = aide(shop, Use("read", name="b1"), Use("quick", name="b2"), "b!", name="b")
    parent = delegating(a, b, turns=[[Use("a", task=""), Use("b", task="")], told])
    with anyio.fail_after(60):
        async with Midrun(kept_at(path), agents=[parent]) as first:
            run = await first.start("parent", "go")
            await shop.start("a2").wait()
            await shop.start("b1").wait()
    assert sorted(shop.stopped) == ["a2", "b1"]
    shop.gate("a2").set()
    shop.gate("b1").set()
    second = await opened(parent)
    again = await second.get(run.id)
    outcome = await again.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "a: a!; b: b!"
    assert sorted(shop.completed) == ["a1", "a2", "b1", "b2"]
    assert len((await second.runs()).items) == 3
    assert "PauseRequested" not in await kinds(again)


async def test_a_child_may_be_driven_by_another_process_than_its_parent(
    opened: Opener,
) -> None:
    """The parent attends to it over the store: answer, pause and cancel travel that way."""
    shop = Workshop()
    helper = aide(shop, Use("slow", name="x"), Use("slow_draft", name="y"), "Found.")
    parent = delegating(helper, turns=[Use("aide", task="Find"), told])
    other = await opened(helper)
    mine = await other.start("aide", "mine")
    await shop.start("x").wait()  # it is up, and looking
    midrun = await opened(parent)
    run = await midrun.start("parent", "go")
    child = await child_of(midrun, run)
    await recorded(child, CallStarted, count=2)  # one of the two drives it
    await run.pause()
    await child.until("pausing")
    shop.gate("x").set()
    await run.until("paused")
    await run.resume()
    await shop.start("y").wait()
    await run.cancel()
    await run.until("cancelled")
    assert len(await entries(child, RunCancelled)) == 1
    await mine.cancel()
    await mine.until("cancelled")
