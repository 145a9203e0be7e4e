"""The demo's play: everything that a person can do to it, on the real runtime."""

from pathlib import Path

import pytest

from midrun.core.entries import AskOpened, FrameResumed, ProgressSaved, RedirectApplied
from midrun.demo import texts
from tests.unit.demo.theatre import Holding, Theatre, theatre


async def answered(stage: Theatre, value: str = "Shade, and soon") -> None:
    """Answer the one question that the agent asks."""
    await stage.asked("ask_human")
    await stage.run.answer(value, actor="ada")


async def test_the_whole_play_reads_asks_writes_checks_and_mails(tmp_path: Path) -> None:
    """From the first search to the mail: each tool is used, and the world is as it says."""
    async with theatre(tmp_path) as stage:
        await stage.asked("ask_human")
        assert stage.locked
        await stage.run.answer("Shade, and soon", actor="ada")
        await stage.asked("send_mail")
        assert not stage.mails
        await stage.run.approve(actor="ada")
        view = await stage.run.until("terminal")
        assert (view.phase, view.place) == ("completed", "step 7 of 7")
        assert {item.mark for item in view.plan} == {"done"}
        assert "one was corrected" in view.output
        used = {use.tool for turn in await stage.turns() for use in turn.uses}
        assert used == set(stage.mid.agents["researcher"].tools) - {"read_draft"}
    assert texts.TOP_SECTION_BY_EMPHASIS["shade"] in stage.draft
    assert "1,150" in stage.draft, "the fact checker found the wrong figure"
    assert "1,510" not in stage.draft
    (mail,) = stage.mails
    assert "To: clerk@larkhaven.example" in mail
    assert not stage.locked, "what is held is released at every end"


async def test_a_pause_in_mid_sentence_goes_on_with_the_next_word(tmp_path: Path) -> None:
    """Nothing is said twice, nothing is left out."""
    pace = Holding("sentence,")
    async with theatre(tmp_path, pace=pace) as stage:
        await pace.reached.wait()
        await stage.run.pause(actor="ada")
        await stage.run.until("paused")
        await stage.run.resume(actor="ada")
        await stage.asked("ask_human")
        cut, rest = (await stage.said())[1:3]
    assert cut.endswith("middle of a ")
    assert rest.startswith("sentence,")
    assert cut + rest == texts.INVITATION


async def test_a_resume_with_a_line_takes_it_up_and_goes_on(tmp_path: Path) -> None:
    """The line is answered first; the sentence is not begun anew."""
    pace = Holding("sentence,")
    async with theatre(tmp_path, pace=pace) as stage:
        await pace.reached.wait()
        await stage.run.pause(actor="ada")
        await stage.run.until("paused")
        await stage.run.resume("Please don't mail anything", actor="ada")
        await answered(stage)
        await stage.run.until("completed")
        cut, rest = (await stage.said())[1:3]
    lead, _, rest = rest.partition(" … ")
    assert lead == "Changing course. I will mail nothing."
    assert cut + rest == texts.INVITATION
    assert not stage.mails


async def test_told_to_summarise_and_stop_it_does(tmp_path: Path) -> None:
    """The story of the first promise: it had enough, and searches no more."""
    pace = Holding("soil.")
    async with theatre(tmp_path, pace=pace) as stage:
        await pace.reached.wait()
        await stage.run.redirect("Summarise and stop; no more searching", actor="ada")
        applied = await stage.recorded(RedirectApplied)
        view = await stage.run.until("terminal")
        assert view.phase == "completed"
        assert view.plan[-1].text == "Sum up what I have, and stop"
        assert view.place == "step 2 of 2"
        used = [use.tool for turn in await stage.turns() for use in turn.uses]
        *_, changed, summary, last = await stage.said()
    assert applied.minus == "Read what matters"
    assert used[-3:] == ["plan", "write_section", "plan"]
    assert changed.startswith("Changing course: no more searching. I sum up the 4 notes")
    assert "Larkhaven had 212 street ashes" in summary
    assert last.startswith("I stop here, as you asked.")
    assert stage.draft.startswith("## Summary")
    assert not stage.locked
    assert not stage.mails


async def test_a_topic_gets_a_section_of_its_own_and_then_it_goes_on(tmp_path: Path) -> None:
    """An instruction that fits no pattern is looked up, not ignored."""
    pace = Holding("soil.")
    async with theatre(tmp_path, pace=pace) as stage:
        await pace.reached.wait()
        await stage.run.redirect("Add a paragraph on watering", actor="ada")
        await stage.asked("ask_human")
        said = await stage.said()
        await stage.run.cancel(actor="ada")
        await stage.run.until("cancelled")
    cut = next(n for n, text in enumerate(said) if text.endswith("stays in the "))
    assert said[cut + 1].startswith("Changing course: Add a paragraph on watering.")
    assert said[cut + 4].startswith("That is in the draft. Back to where I was. … soil. Honey")
    assert "sixty litres" in stage.draft


async def test_what_the_library_does_not_know_is_put_on_record(tmp_path: Path) -> None:
    """A played model does not make things up either."""
    pace = Holding("soil.")
    async with theatre(tmp_path, pace=pace) as stage:
        await pace.reached.wait()
        await stage.run.redirect("Compare this with penguins", actor="ada")
        await stage.asked("ask_human")
        await stage.run.cancel(actor="ada")
        await stage.run.until("cancelled")
    assert "not in the library: Compare this with penguins" in stage.draft


@pytest.mark.parametrize("urgency", ["now", "next"])
async def test_a_side_question_is_answered_and_the_thread_kept(
    tmp_path: Path, urgency: str
) -> None:
    """With `now` it is answered in the middle of a sentence, which goes on afterwards."""
    pace = Holding("soil.")
    async with theatre(tmp_path, pace=pace) as stage:
        await pace.reached.wait()
        await stage.run.say("What does a trench cost?", urgency=urgency, actor="ada")  # type: ignore[arg-type]  # parametrised
        if urgency == "next":
            await stage.run.redirect("Go on", actor="ada")  # lets the held word go
        back = await stage.recorded(FrameResumed)
        await stage.asked("ask_human")
        said = await stage.said()
        await stage.run.cancel(actor="ada")
        await stage.run.until("cancelled")
    assert back.words.startswith(f"Back to *{texts.TASK}* — step 2 of 7")
    (answer,) = (n for n, text in enumerate(said) if "That is from “What a street" in text)
    assert "1,150 crowns" in said[answer]
    assert said[answer - 1] == "Let me look."
    assert said[answer + 1].startswith(back.words)
    if urgency == "now":
        assert (
            said[answer - 2] + said[answer + 1].removeprefix(f"{back.words}\n\n… ")
            == (texts.NOTE_REMARKS["salt-and-wind"])
        )


async def test_it_says_how_far_it_is(tmp_path: Path) -> None:
    """While it waits for an answer, and the question stays open."""
    async with theatre(tmp_path) as stage:
        await stage.asked("ask_human")
        await stage.run.say("How far are you?", actor="ada")
        await stage.recorded(FrameResumed)
        await stage.asked("ask_human")
        said = await stage.said()
        await answered(stage, "Whatever makes the bakers happy")
        await stage.asked("send_mail")
        await stage.run.decline("nobody reads it", actor="ada")
        view = await stage.run.until("completed")
        last = (await stage.said())[-2]
    assert "I am at “Ask what counts most”, item 4 of 7. So far I have read 5 of 16" in said[-1]
    assert "Asked for: Whatever makes the bakers happy." in stage.draft
    assert last == "The mail was not sent: declined by ada: nobody reads it."
    assert "was not mailed" in view.output
    assert view.plan[-1].mark == "dropped"
    assert not stage.mails


async def test_a_mail_that_is_declined_with_an_address_is_proposed_again(
    tmp_path: Path,
) -> None:
    """And what a person changes about it is what is sent, and said."""
    async with theatre(tmp_path) as stage:
        await answered(stage)
        await stage.asked("send_mail")
        await stage.run.decline("to mayor@larkhaven.example please", actor="ada")
        await stage.recorded(AskOpened, 3)  # the question, the mail, and the mail again
        await stage.asked("send_mail")
        (ask,) = (await stage.run.view()).asks
        assert isinstance(ask.args, dict)
        assert ask.args["to"] == "mayor@larkhaven.example"
        await stage.run.approve(args={**ask.args, "subject": "Trees"}, actor="ada")
        await stage.run.until("completed")
        said = await stage.said()
    assert said[-2] == "Sent, with your subject. It went to mayor@larkhaven.example."
    (mail,) = stage.mails
    assert "Subject: Trees\n" in mail


async def test_a_redirect_before_the_mail_is_heeded_before_it_is_proposed_again(
    tmp_path: Path,
) -> None:
    """Whoever says that it should go elsewhere, or not at all, is not asked the old thing."""
    async with theatre(tmp_path) as stage:
        await answered(stage)
        await stage.asked("send_mail")
        await stage.run.redirect("Send it to mayor@larkhaven.example", actor="ada")
        await stage.recorded(RedirectApplied)
        await stage.asked("send_mail")
        (ask,) = (await stage.run.view()).asks
        assert "mayor@larkhaven.example" in str(ask.args)
        await stage.run.redirect("No, don't mail it", actor="ada")
        view = await stage.run.until("completed")
    assert "was not mailed" in view.output
    assert not stage.mails


async def test_told_to_write_now_it_reads_no_further_note(tmp_path: Path) -> None:
    """What is said between two steps counts for the next."""
    async with theatre(tmp_path) as stage:
        await stage.asked("ask_human")
        await stage.run.redirect("Start writing now, skip the fact check", actor="ada")
        await stage.asked("send_mail")
        turns = await stage.turns()
        view = await stage.run.view()
        await stage.run.cancel(actor="ada")
        await stage.run.until("cancelled")
    at = next(n for n, turn in enumerate(turns) if turn.kind == "instruction")
    used = [use.tool for turn in turns[at:] for use in turn.uses]
    assert not {"read_note", "search_library", "check_facts"} & set(used)
    assert view.plan[5].mark == "dropped"


async def test_a_cancel_in_the_analysis_kills_it_and_cleans_up(tmp_path: Path) -> None:
    """The report is true: the draft is as it was, the lock is gone, the process is gone."""
    pace = Holding("soil.")
    async with theatre(tmp_path, pace=pace, rounds=1_000_000) as stage:
        await pace.reached.wait()
        await stage.run.redirect("Add a paragraph on watering", actor="ada")
        await stage.in_flight("find_themes")
        assert stage.locked
        assert stage.draft
        await stage.run.cancel(undo="all", actor="ada")
        await stage.run.until("cancelled")
        report = await stage.run.report()
    assert [deed.tool for deed in report.undone] == ["write_section"]
    assert [deed.tool for deed in report.stopped] == ["find_themes"]
    assert [deed.tool for deed in report.released] == ["lock_briefing"]
    assert report.clean
    assert not stage.draft
    assert not stage.locked


async def test_a_pause_does_not_wait_for_the_analysis_which_goes_on_where_it_was(
    tmp_path: Path,
) -> None:
    """It saves how far it is; a resume does not start it anew."""
    async with theatre(tmp_path, rounds=1_000_000) as stage:
        first = await stage.recorded(ProgressSaved)
        await stage.run.pause(actor="ada")
        await stage.run.until("paused")
        assert not (await stage.run.view()).in_flight
        saves = [
            record.entry
            for record in await stage.mid.store.read(stage.run.id)
            if isinstance(record.entry, ProgressSaved)
        ]
        await stage.run.resume(actor="ada")
        later = await stage.recorded(ProgressSaved, len(saves) + 1)
        await stage.run.cancel(actor="ada")
        await stage.run.until("cancelled")
    assert rounds(first) == 10
    assert rounds(later) == rounds(saves[-1]) + 10


def rounds(saved: ProgressSaved) -> int:
    """Return how many rounds of the analysis were done."""
    assert isinstance(saved.progress, dict)
    done = saved.progress[" "]
    assert isinstance(done, int)
    return done


async def test_a_fact_checker_that_is_cancelled_is_owned_up_to(tmp_path: Path) -> None:
    """The child is a run of its own; without its word the mail does not claim to be checked."""
    pace = Holding("Claim")
    async with theatre(tmp_path, pace=pace) as stage:
        await answered(stage)
        await pace.reached.wait()
        (row,) = (await stage.mid.runs(agent="fact-checker")).items
        await (await stage.mid.get(row.run_id)).cancel(actor="ada")
        await stage.asked("send_mail")
        (ask,) = (await stage.run.view()).asks
        said = await stage.said()
        await stage.run.cancel(actor="ada")
        await stage.run.until("cancelled")
    assert "The check did not come to an end" in said[-1]
    assert "nobody has checked the figures" in str(ask.args)


async def test_a_second_run_finds_the_briefing_locked_and_says_so(tmp_path: Path) -> None:
    """A tool that fails is something to react to, not the end."""
    async with theatre(tmp_path) as stage:
        await stage.asked("ask_human")
        second = await stage.mid.start("researcher", texts.TASK, actor="bob")
        await second.until("waiting")
        other = Theatre(stage.mid, second, tmp_path)
        assert f"is locked by {stage.run.id}" in "".join(await other.said())
        for run in (second, stage.run):
            assert stage.locked, "the lock is its holder's"
            await run.cancel(actor="ada")
            await run.until("cancelled")
    assert not stage.locked


async def test_a_fork_goes_on_from_what_the_first_run_had_read(tmp_path: Path) -> None:
    """Nothing is read again: the calls of the first run count as made."""
    async with theatre(tmp_path) as stage:
        await stage.asked("ask_human")
        first = await stage.said()
        fork = Theatre(stage.mid, await stage.run.fork(actor="ada"), tmp_path)
        await fork.asked("send_mail")
        said = await fork.said()
        read = [
            use.args["name"]
            for turn in await fork.turns()
            for use in turn.uses
            if use.tool == "read_note" and isinstance(use.args, dict)
        ]
        for run in (fork.run, stage.run):
            await run.cancel(actor="ada")
            await run.until("cancelled")
    assert said[: len(first)] == first
    assert said[len(first)].startswith("You did not say"), "its question was the first run's"
    assert read == [*texts.FIRST_NOTES, *texts.SECOND_NOTES, "prices", "traders-letter"]


async def test_a_run_on_the_same_thread_takes_its_task_as_an_instruction(
    tmp_path: Path,
) -> None:
    """The page has a button for it, and the new run knows what was read."""
    async with theatre(tmp_path) as stage:
        await stage.asked("ask_human")
        fork = await stage.run.fork(instruction="Summarise and stop", actor="ada")
        view = await fork.until("completed")
        await stage.run.cancel(actor="ada")
        await stage.run.until("cancelled")
    assert "The summary of 5 notes is in the draft" in view.output


async def test_another_task_is_looked_up_in_the_library(tmp_path: Path) -> None:
    """Somebody will type one into the page."""
    async with theatre(tmp_path, task="What do the traders want?") as stage:
        view = await stage.run.until("completed")
    assert "works in July" in stage.draft
    assert "in the draft" in view.output
