"""The built-in plan: the visible list, and what the runtime's own words take from it."""

from midrun import Completed
from midrun.core.entries import PlanMade, RedirectApplied, RunResumed
from midrun.models import Use
from tests.scenarios.conversation.workshop import Workshop, told
from tests.scenarios.promises.seen import entries, recorded, turns
from tests.unit.runs.conftest import Opener

ITEMS = ["Find papers", "Read them", "Synthesise"]


async def test_a_plan_is_set_marked_and_revised_in_the_journal(opened: Opener) -> None:
    """Everybody sees the list as it is, and how it came to be."""
    shop = Workshop()
    agent = shop.agent(
        Use("plan", items=ITEMS, marks={"1": "running"}),
        Use("plan", marks={"1": "done", "2": "running"}),
        Use("plan", items=[*ITEMS[:2], "Compare", "Synthesise"], marks={"1": "done"}),
        Use("slow", name="x"),
        "Done.",
    )
    run = await (await opened(agent)).start("actor", "go")
    await shop.start("x").wait()
    view = await run.view()
    assert [item.text for item in view.plan] == [
        "Find papers",
        "Read them",
        "Compare",
        "Synthesise",
    ]
    assert view.place == "step 2 of 4"
    marks = [[item.mark for item in made.items] for made in await entries(run, PlanMade)]
    assert marks[:2] == [["running", "queued", "queued"], ["done", "running", "queued"]]
    shop.gate("x").set()
    await run.until("completed")


async def test_an_item_that_is_not_there_is_told_and_changes_nothing(opened: Opener) -> None:
    """The model hears of its slip in words; the plan is as it was."""
    shop = Workshop()
    agent = shop.agent(
        Use("plan", items=ITEMS),
        Use("plan", marks={"9": "done"}),
        told,
    )
    run = await (await opened(agent)).start("actor", "go")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert "9" in outcome.output
    assert len(await entries(run, PlanMade)) == 1


async def test_a_dropped_item_does_not_count(opened: Opener) -> None:
    """Step 2 of 2, not of 3."""
    shop = Workshop()
    agent = shop.agent(
        Use("plan", items=ITEMS, marks={"1": "done", "2": "dropped"}),
        Use("slow", name="x"),
        "Done.",
    )
    run = await (await opened(agent)).start("actor", "go")
    await shop.start("x").wait()
    assert (await run.view()).place == "step 2 of 2"
    shop.gate("x").set()
    await run.until("completed")


async def test_a_redirect_shows_what_it_replaces_in_one_line(opened: Opener) -> None:
    """What was planned next, and the instruction in its place."""
    shop = Workshop()
    agent = shop.agent(
        Use("plan", items=ITEMS, marks={"1": "done"}), Use("slow", name="x"), "Done."
    )
    run = await (await opened(agent)).start("actor", "go")
    await shop.start("x").wait()
    await run.redirect("Only papers\nof this year")
    shop.gate("x").set()
    applied = await recorded(run, RedirectApplied)
    assert (applied.minus, applied.plus) == ("Read them", "Only papers of this year")
    await run.until("completed")


async def test_a_resume_with_an_instruction_shows_the_same_line(opened: Opener) -> None:
    """It is a change of course, too."""
    shop = Workshop()
    agent = shop.agent(
        Use("plan", items=ITEMS, marks={"1": "done"}), Use("slow", name="x"), "Done."
    )
    run = await (await opened(agent)).start("actor", "go")
    await shop.start("x").wait()
    await run.pause()
    shop.gate("x").set()
    await run.until("paused")
    await run.resume("Only papers of this year")
    (resumed,) = await entries(run, RunResumed)
    assert (resumed.minus, resumed.plus) == ("Read them", "Only papers of this year")
    await run.until("completed")


async def test_without_a_plan_the_words_still_make_sense(opened: Opener) -> None:
    """No "step 1 of 0", no empty side of a difference."""
    shop = Workshop()
    agent = shop.agent(Use("slow", name="x"), "Done.")
    run = await (await opened(agent)).start("actor", "go")
    await shop.start("x").wait()
    assert (await run.view()).place == "step 1"
    await run.redirect("Elsewhere")
    shop.gate("x").set()
    applied = await recorded(run, RedirectApplied)
    assert applied.minus
    assert applied.plus == "Elsewhere"
    await run.until("completed")


async def test_a_plan_survives_a_pause_and_another_process(opened: Opener) -> None:
    """It is in the journal, and nowhere else."""
    shop = Workshop()
    agent = shop.agent(
        Use("plan", items=ITEMS, marks={"1": "done"}), Use("slow", name="x"), told
    )
    run = await (await opened(agent)).start("actor", "go")
    await shop.start("x").wait()
    elsewhere = await (await opened()).get(run.id)
    assert (await elsewhere.view()).place == "step 2 of 3"
    shop.gate("x").set()
    await run.until("completed")
    (made,) = [use for turn in await turns(run) for use in turn.uses if use.tool == "plan"]
    assert "step 2 of 3" in str(made.result)


async def test_two_revisions_in_one_reply_are_both_kept(opened: Opener) -> None:
    """Both leave with the same plan in view; the second builds on the first all the same."""
    marks = [Use("plan", marks={"1": "done"}), Use("plan", marks={"2": "done"})]
    agent = Workshop().agent(Use("plan", items=ITEMS), marks, "Done.")
    run = await (await opened(agent)).start("actor", "go")
    view = await run.until("completed")
    assert [item.mark for item in view.plan] == ["done", "done", "queued"]
