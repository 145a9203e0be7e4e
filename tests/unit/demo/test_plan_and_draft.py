"""What the played agent says of its work is so: its plan, its draft, its own words."""

import re
from pathlib import Path

import pytest

from midrun.core.entries import PlanMade, ProgressSaved
from midrun.core.journaled_text import count_plan_items
from midrun.demo import texts
from midrun.demo.interruptions import ResearcherScript, _extract_topic
from tests.unit.demo.theatre import Holding, Theatre, theatre

MARKUP = re.compile(r"\*\w|\w\*|`|^#", re.MULTILINE)


async def marks(stage: Theatre) -> list[str]:
    """Return the marks of the plan."""
    return [item.mark for item in (await stage.run.view()).plan]


async def test_after_every_detour_the_plan_and_the_count_of_sections_are_right(
    tmp_path: Path,
) -> None:
    """No mail and one section more, in one breath; what was done never comes undone."""
    pace = Holding("soil.")
    async with theatre(tmp_path, pace=pace) as stage:
        await pace.reached.wait()
        words = "Don't mail anything, and add a paragraph on salt"
        await stage.run.redirect(words, actor="ada")
        await stage.asked("ask_human")
        assert (await marks(stage))[-1] == "dropped", "it is known already"
        await stage.run.answer("Shade, and soon", actor="ada")
        view = await stage.run.until("completed")
        records = await stage.mid.store.read(stage.run.id)
        said = await stage.said()
    plans = [record.entry.items for record in records if isinstance(record.entry, PlanMade)]
    done = [count_plan_items(items)[0] for items in plans]
    assert done == sorted(done)
    assert [item.mark for item in view.plan] == [*["done"] * 6, "dropped"]
    assert view.place == "step 6 of 6"
    headings = re.findall(r"^## (.+)$", stage.draft, re.MULTILINE)
    assert headings == ["Salt", *texts.HEADINGS]
    assert "It has 7 sections" in view.output
    assert not any(MARKUP.search(text) for text in said), "the page shows text as text"


async def test_a_topic_that_comes_with_the_last_words_is_in_the_new_ones(
    tmp_path: Path,
) -> None:
    """They had been chosen, with a number in them."""
    pace = Holding("Thank")
    async with theatre(tmp_path, pace=pace) as stage:
        await stage.asked("ask_human")
        await stage.run.redirect("Start writing now, and don't mail it", actor="ada")
        await pace.reached.wait()
        assert await marks(stage) == ["done"] * 3 + ["dropped"] + ["done"] * 2 + ["dropped"]
        await stage.run.redirect("Add a paragraph on salt", actor="ada")
        view = await stage.run.until("completed")
    assert view.output.startswith("The briefing has 7 sections now")


@pytest.mark.parametrize("hint", ["Shade matters most", "Skip the analysis"])
async def test_an_analysis_that_was_sealed_is_run_again_or_left_out_and_never_ticked(
    tmp_path: Path, hint: str
) -> None:
    """New words close the call: a new one starts over, and the plan says so."""
    async with theatre(tmp_path, rounds=400) as stage:
        await stage.recorded(ProgressSaved)
        await stage.run.pause(actor="ada")
        await stage.run.until("paused")
        before = len(await stage.said())
        await stage.run.resume(hint, actor="ada")
        if hint.startswith("Skip"):
            await stage.asked("ask_human")
            assert (await marks(stage))[:4] == ["done", "done", "dropped", "running"]
        else:
            saves = [
                record.entry
                for record in await stage.mid.store.read(stage.run.id)
                if isinstance(record.entry, ProgressSaved)
            ]
            again = await stage.recorded(ProgressSaved, len(saves) + 1)
            assert isinstance(again.progress, dict)
            assert again.progress[" "] == 10, "from the first round, as it says"
            assert (await marks(stage))[:4] == ["done", "done", "running", "dropped"]
        answer = (await stage.said())[before]
        await stage.run.cancel(actor="ada")
        await stage.run.until("cancelled")
    wanted = "I go on without it" if hint.startswith("Skip") else "again from the first round"
    assert wanted in answer


async def test_a_fact_check_that_was_sealed_is_made_again(tmp_path: Path) -> None:
    """As the analysis: ticked when it was done, and not before."""
    pace = Holding("Claim")
    async with theatre(tmp_path, pace=pace) as stage:
        await stage.asked("ask_human")
        await stage.run.redirect("Start writing now", actor="ada")
        await pace.reached.wait()
        await stage.run.redirect("Don't mail anything", when="now", actor="ada")
        view = await stage.run.until("completed")
        said = "\n".join(await stage.said())
    assert "from the first claim" in said
    assert [item.mark for item in view.plan][-2:] == ["done", "dropped"]
    assert "one was corrected" in view.output


async def test_told_to_stop_it_keeps_what_was_done_and_drops_the_rest(tmp_path: Path) -> None:
    """Whoever looks at the plan afterwards sees what did not happen."""
    async with theatre(tmp_path) as stage:
        await stage.asked("ask_human")
        await stage.run.redirect("Summarise and stop", actor="ada")
        view = await stage.run.until("completed")
    assert [item.mark for item in view.plan] == [*["done"] * 3, *["dropped"] * 4, "done"]
    assert view.place == "step 4 of 4"


async def test_told_to_stop_before_it_read_anything_it_leaves_nothing_open(
    tmp_path: Path,
) -> None:
    """Not even the search that was under way."""
    pace = Holding("sentence,")
    async with theatre(tmp_path, pace=pace) as stage:
        await pace.reached.wait()
        await stage.run.redirect("Stop here", actor="ada")
        view = await stage.run.until("completed")
    assert {item.mark for item in view.plan[:-1]} == {"dropped"}
    assert "nothing to sum up" in view.output


@pytest.mark.parametrize(
    ("text", "heading"),
    [
        ("Add a paragraph on salt", "Salt"),
        ("Please also add a short section about the bucket brigade, too", "Bucket brigade"),
        ("Compare this with penguins.", "Penguins"),
        ("Tell me more about the traders please", "Traders"),
        ("Mention Mr Osei", "Mr Osei"),
        ("What do the traders want?", "What do the traders want"),
        ("Add", "Add"),
    ],
)
def test_a_section_is_headed_by_its_subject(text: str, heading: str) -> None:
    """And not by the order to write it."""
    assert _extract_topic(text) == heading


def test_what_is_done_cannot_be_left_out_and_it_says_so() -> None:
    """Nobody should believe that it was."""
    play = ResearcherScript(rounds=1)
    play._work.end_item(3, done=True)
    words = play.react_to_instruction("Skip the analysis").words
    assert words == f"Changing course. “{texts.PLAN[2]}” is done already; that stays."
