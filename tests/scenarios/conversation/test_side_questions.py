"""Side questions, the hard ones: nested, dropped, across processes, and what they cost."""

from pathlib import Path

import pytest

from midrun import Completed, ControlRefused, Midrun, Run
from midrun.core.entries import FrameAbandoned, FramePushed, FrameResumed, MessageClosed
from midrun.core.transcript import Transcript, Turn
from midrun.models import Use
from midrun.models.scripted import Line
from tests.scenarios.conversation.workshop import Workshop, child_of, delegating
from tests.scenarios.promises.seen import entries, recorded, turns
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener

BOUND = 200  # characters of a held thought that a model is given at most


async def held(opened: Opener, shop: Workshop, *rest: object, frame_depth: int = 4) -> Run:
    """Bring a run to where its task is held and a side question has a call in flight."""
    script = (Use("slow", name="main"), Use("slow", name="side"), *rest)
    agent = shop.agent(*script, frame_depth=frame_depth)
    run = await (await opened(agent)).start("actor", "Main")
    await shop.start("main").wait()
    await run.say("Side?")
    shop.gate("main").set()
    await shop.start("side").wait()
    return run


async def test_a_thought_that_is_dropped_is_named_in_the_next_reply(opened: Opener) -> None:
    """Given up, by name: none vanishes."""
    shop = Workshop()
    run = await held(opened, shop, "Side answer.", "Main.")
    (frame,) = (await run.view()).frames
    await run.drop_frame(frame.id, actor="ada")
    shop.gate("side").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output.startswith("Dropped *Main*")
    (gone,) = await entries(run, FrameAbandoned)
    assert (gone.why, gone.by) == ("dropped", "ada")


async def test_only_the_thought_on_top_can_be_dropped_or_resumed(opened: Opener) -> None:
    """Last in, first out; the refusal names the one on top."""
    shop = Workshop()
    run = await held(opened, shop, Use("slow", name="inner"), "1.", "2.", "3.", "4.")
    await run.say("Inner?")
    shop.gate("side").set()
    await shop.start("inner").wait()
    below, top = (frame.id for frame in (await run.view()).frames)
    for control in (run.drop_frame(below), run.resume_frame(below)):
        with pytest.raises(ControlRefused) as refused:
            await control
        assert (refused.value.reason, refused.value.by) == ("frame_not_on_top", top)
    with pytest.raises(ControlRefused) as unknown:
        await run.drop_frame("f99")
    assert unknown.value.reason == "no_such_frame"
    shop.gate("inner").set()
    await run.until("completed")


async def test_a_person_goes_back_before_the_question_is_answered(opened: Opener) -> None:
    """Who asked for the way back is on record, and the reply says it."""
    shop = Workshop()
    run = await held(opened, shop, "Main.", "Main.")
    (frame,) = (await run.view()).frames
    await run.resume_frame(frame.id, actor="ada")
    shop.gate("side").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert "Back to *Main*" in outcome.output
    (resumed,) = await entries(run, FrameResumed)
    assert resumed.by == "ada"


async def test_three_deep_comes_back_three_times(opened: Opener) -> None:
    """An interrupt during an interrupt during an interrupt; each is named on the way back."""
    shop = Workshop()
    run = await held(
        opened,
        shop,
        Use("slow", name="inner"),
        "Inmost.",
        "Inner.",
        "Side.",
        "Main.",
    )
    await run.say("Inner?")
    shop.gate("side").set()
    await shop.start("inner").wait()
    await run.say("Inmost?")
    shop.gate("inner").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    back = [resumed.words.split("*")[1] for resumed in await entries(run, FrameResumed)]
    assert back == ["Inner?", "Side?", "Main"]
    assert outcome.output.endswith("Main.")


async def test_a_side_question_with_a_plan_of_its_own_gives_the_first_plan_back(
    opened: Opener,
) -> None:
    """Step 2 of 3 is step 2 of 3 again."""
    shop = Workshop()
    agent = shop.agent(
        Use("plan", items=["A", "B", "C"], marks={"1": "done"}),
        Use("slow", name="main"),
        Use("plan", items=["only this"]),
        "Side.",
        Use("slow", name="again"),
        "Main.",
    )
    run = await (await opened(agent)).start("actor", "Main")
    await shop.start("main").wait()
    await run.say("Side?")
    shop.gate("main").set()
    await shop.start("again").wait()
    view = await run.view()
    assert (view.place, [item.text for item in view.plan]) == ("step 2 of 3", ["A", "B", "C"])
    shop.gate("again").set()
    await run.until("completed")


async def test_what_a_held_thought_costs_is_bounded(opened: Opener) -> None:
    """A task of ten thousand characters is not sent again for every interrupt."""
    shop = Workshop()
    heard: list[Turn] = []

    def listens(messages: Transcript) -> Line:
        heard.extend(messages)
        return "Side."

    agent = shop.agent(Use("slow", name="main"), listens, "Main.")
    run = await (await opened(agent)).start("actor", "A long task. " * 1_000)
    await shop.start("main").wait()
    await run.say("Side?")
    shop.gate("main").set()
    await run.until("completed")
    said = [turn for turn in [*heard, *await turns(run)] if turn.kind in {"held", "back"}]
    assert len(said) >= 2
    assert max(len(turn.text) for turn in said) <= BOUND


async def test_held_thoughts_outlive_the_process(opened: Opener, path: Path) -> None:
    """The next process answers the question and comes back to what was held."""
    shop = Workshop()
    script = (Use("read", name="main"), Use("read", name="side"), "Side.", "Main.")
    async with Midrun(kept_at(path), agents=[shop.agent(*script)]) as first:
        run = await first.start("actor", "Main")
        await shop.start("main").wait()
        await run.say("Side?")
        shop.gate("main").set()
        await shop.start("side").wait()
    shop.gate("side").set()
    run = await (await opened(shop.agent(*script))).get(run.id)
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "Back to *Main* — step 1\n\nMain."


async def test_a_question_that_was_never_taken_up_is_given_back(opened: Opener) -> None:
    """A cancel comes first: nobody's words are lost."""
    shop = Workshop()
    agent = shop.agent(Use("slow", name="main"), "x")
    run = await (await opened(agent)).start("actor", "Main")
    await shop.start("main").wait()
    await run.say("Side?")
    await run.cancel()
    await run.until("cancelled")
    (closed,) = await entries(run, MessageClosed)
    assert (closed.why, closed.text) == ("returned", "Side?")


async def test_a_question_to_a_parent_waits_for_its_child_and_costs_it_nothing(
    opened: Opener,
) -> None:
    """The child is a call in flight: it finishes, then the question is answered."""
    shop = Workshop()
    aide = shop.agent(Use("slow", name="x"), "Found.", name="aide")
    turns_ = [Use("aide", task="Find"), "Tuesday.", "Done."]
    midrun = await opened(delegating(aide, turns=turns_))
    run = await midrun.start("parent", "Main")
    await shop.start("x").wait()
    receipt = await run.say("What day is it?")
    assert receipt.said == "Hold on — finishing *Main* first"
    shop.gate("x").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output.endswith("Done.")
    assert shop.called == ["x"]


async def test_a_question_to_the_child_is_answered_by_the_child(opened: Opener) -> None:
    """And its parent gets what the child ends with, not the aside."""
    shop = Workshop()
    aide = shop.agent(Use("slow", name="x"), "Tuesday.", "Found.", name="aide")
    turns_ = [Use("aide", task="Find"), lambda messages: str(messages[-1].uses[0].result)]
    midrun = await opened(delegating(aide, turns=turns_))
    run = await midrun.start("parent", "Main")
    await shop.start("x").wait()
    child = await child_of(midrun, run)
    await child.say("What day is it?")
    shop.gate("x").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output.endswith("Found.")
    assert len(await entries(child, FramePushed)) == 1


async def test_a_redirect_in_a_side_question_names_what_becomes_of_the_held_thought(
    opened: Opener,
) -> None:
    """It stays held, or is given up by name: it does not vanish."""
    shop = Workshop()
    run = await held(opened, shop, "New.", "Main.", "Main.")
    await run.redirect("Look elsewhere")
    shop.gate("side").set()
    await run.until("completed")
    pushed = len(await entries(run, FramePushed))
    closed = len(await entries(run, FrameResumed)) + len(await entries(run, FrameAbandoned))
    assert pushed == closed == 1


async def test_a_question_at_a_full_stack_is_answered_before_the_run_ends(
    opened: Opener,
) -> None:
    """Queued is not forgotten."""
    shop = Workshop()

    def cue(messages: Transcript) -> Line:
        newest = next(t for t in reversed(messages) if t.role == "user")
        return f"Re {newest.text}"

    run = await held(opened, shop, cue, cue, cue, cue, cue, frame_depth=1)
    await run.say("Second?")
    shop.gate("side").set()
    await recorded(run, FrameResumed)
    await run.until("completed")
    replies = [t.text for t in await turns(run) if t.role == "assistant"]
    assert any("Re Second?" in text for text in replies)
