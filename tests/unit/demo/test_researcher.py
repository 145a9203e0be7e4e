"""The researcher of the demo on the real runtime: each control that a person can send to it."""

import re
from pathlib import Path

import pytest

from midrun.core.entries import (
    AskOpened,
    FrameResumed,
    PlanMade,
    ProgressSaved,
    RedirectApplied,
)
from midrun.core.journaled_text import count_plan_items
from midrun.demo.interruptions import ResearcherScript, _extract_topic
from midrun.demo.texts import TEXTS
from tests.unit.demo.demo_run import DemoRun, HoldingPace, start_demo


async def answer_question(demo: DemoRun, value: str = "Shade, and soon") -> None:
    """Answer the question of the agent."""
    await demo.wait_for_ask("ask_human")
    await demo.run.answer(value, actor="ada")


async def test_a_whole_run_reads_asks_writes_checks_and_mails(tmp_path: Path) -> None:
    """Each tool is used, and the files have the effects that the agent reports."""
    async with start_demo(tmp_path) as demo:
        await demo.wait_for_ask("ask_human")
        assert demo.is_locked
        await demo.run.answer("Shade, and soon", actor="ada")
        await demo.wait_for_ask("send_mail")
        assert not demo.sent_mails
        await demo.run.approve(actor="ada")
        view = await demo.run.until("terminal")
        assert (view.phase, view.position) == ("completed", "plan 7/7 done")
        assert {item.state for item in view.plan} == {"done"}
        assert "one was corrected" in view.output
        tools = {use.tool for turn in await demo.read_turns() for use in turn.uses}
        assert tools == set(demo.mid.agents["researcher"].tools) - {"read_draft"}
        shown = await demo.run.file(view.artifacts[-1].file.hash)
    versions = [one.version for one in view.artifacts if one.name == "briefing.md"]
    assert versions == [*range(1, len(versions) + 1)]
    assert len(versions) > 5, "the briefing grows before the reader's eyes"
    (notice,) = (tmp_path / "notices").iterdir()
    assert TEXTS.notice_after in notice.read_text(), "the correction was approved"
    assert shown.data.decode() == demo.draft
    assert TEXTS.top_section_by_emphasis["shade"] in demo.draft
    assert "1,150" in demo.draft, "the fact checker found the wrong figure"
    assert "1,510" not in demo.draft
    (mail,) = demo.sent_mails
    assert "To: clerk@larkhaven.example" in mail
    assert not demo.is_locked, "a lock is released at each end of a run"


async def test_a_resume_after_a_pause_continues_with_the_next_word(tmp_path: Path) -> None:
    """No word is repeated or missing."""
    pace = HoldingPace("sentence,")
    async with start_demo(tmp_path, pace=pace) as demo:
        await pace.reached.wait()
        await demo.run.pause(actor="ada")
        await demo.run.until("paused")
        await demo.run.resume(actor="ada")
        await demo.wait_for_ask("ask_human")
        cut, rest = (await demo.read_replies())[1:3]
    assert cut.endswith("middle of a ")
    assert rest.startswith("sentence,")
    assert cut + rest == TEXTS.invitation


async def test_a_resume_with_an_instruction_answers_it_and_continues_the_sentence(
    tmp_path: Path,
) -> None:
    pace = HoldingPace("sentence,")
    async with start_demo(tmp_path, pace=pace) as demo:
        await pace.reached.wait()
        await demo.run.pause(actor="ada")
        await demo.run.until("paused")
        await demo.run.resume("Please don't mail anything", actor="ada")
        await answer_question(demo)
        await demo.run.until("completed")
        cut, rest = (await demo.read_replies())[1:3]
    lead, _, rest = rest.partition(" … ")
    assert lead == "Changing course. I will mail nothing."
    assert cut + rest == TEXTS.invitation
    assert not demo.sent_mails


async def test_a_redirect_to_summarise_and_stop_ends_the_run_with_a_summary(
    tmp_path: Path,
) -> None:
    """The example of the first promise: the agent searches no more."""
    pace = HoldingPace("soil.")
    async with start_demo(tmp_path, pace=pace) as demo:
        await pace.reached.wait()
        await demo.run.redirect("Summarise and stop; no more searching", actor="ada")
        applied = await demo.wait_for_entry(RedirectApplied)
        view = await demo.run.until("terminal")
        assert view.phase == "completed"
        assert view.plan[-1].text == "Sum up what I have, and stop"
        assert view.position == "plan 2/2 done"
        tools = [use.tool for turn in await demo.read_turns() for use in turn.uses]
        *_, changed, summary, last = await demo.read_replies()
    assert applied.minus == "Read what matters"
    assert tools[-3:] == ["plan", "write_section", "plan"]
    assert changed.startswith("Changing course: no more searching. I sum up the 4 notes")
    assert "Larkhaven had 212 street ashes" in summary
    assert last.startswith("I stop here, as you asked.")
    assert demo.draft.startswith("## Summary")
    assert not demo.is_locked
    assert not demo.sent_mails


async def test_a_redirect_to_a_topic_adds_a_section_and_continues_the_sentence(
    tmp_path: Path,
) -> None:
    """An instruction that matches no pattern is looked up in the library."""
    pace = HoldingPace("soil.")
    async with start_demo(tmp_path, pace=pace) as demo:
        await pace.reached.wait()
        await demo.run.redirect("Add a paragraph on watering", actor="ada")
        await demo.wait_for_ask("ask_human")
        replies = await demo.read_replies()
        await demo.run.cancel(actor="ada")
        await demo.run.until("cancelled")
    cut = next(n for n, text in enumerate(replies) if text.endswith("stays in the "))
    assert replies[cut + 1].startswith("Changing course: Add a paragraph on watering.")
    assert replies[cut + 4].startswith(
        "That is in the draft. Back to where I was. … soil. Honey"
    )
    assert "sixty litres" in demo.draft


async def test_a_topic_that_is_not_in_the_library_is_noted_in_the_draft(tmp_path: Path) -> None:
    """The scripted model does not invent facts."""
    pace = HoldingPace("soil.")
    async with start_demo(tmp_path, pace=pace) as demo:
        await pace.reached.wait()
        await demo.run.redirect("Compare this with penguins", actor="ada")
        await demo.wait_for_ask("ask_human")
        await demo.run.cancel(actor="ada")
        await demo.run.until("cancelled")
    assert "not in the library: Compare this with penguins" in demo.draft


@pytest.mark.parametrize("urgency", ["now", "next"])
async def test_a_side_question_is_answered_and_the_topic_is_resumed(
    tmp_path: Path, urgency: str
) -> None:
    """With `now` it interrupts a sentence, which is continued afterwards."""
    pace = HoldingPace("soil.")
    async with start_demo(tmp_path, pace=pace) as demo:
        await pace.reached.wait()
        await demo.run.say("What does a trench cost?", urgency=urgency, actor="ada")  # type: ignore[arg-type]  # parametrised
        if urgency == "next":
            await demo.run.redirect("Go on", actor="ada")  # ends the wait of the pace
        back = await demo.wait_for_entry(FrameResumed)
        await demo.wait_for_ask("ask_human")
        replies = await demo.read_replies()
        await demo.run.cancel(actor="ada")
        await demo.run.until("cancelled")
    assert back.text.startswith(f"Back to *{TEXTS.task}* — plan 2/7")
    (answer,) = (n for n, text in enumerate(replies) if "That is from “What a street" in text)
    assert "1,150 crowns" in replies[answer]
    assert replies[answer - 1] == "Let me look."
    assert replies[answer + 1].startswith(back.text)
    if urgency == "now":
        assert (
            replies[answer - 2] + replies[answer + 1].removeprefix(f"{back.text}\n\n… ")
            == (TEXTS.first_notes["salt-and-wind"])
        )


async def test_a_question_about_the_progress_is_answered_while_an_ask_stays_open(
    tmp_path: Path,
) -> None:
    async with start_demo(tmp_path) as demo:
        await demo.wait_for_ask("ask_human")
        await demo.run.say("How far are you?", actor="ada")
        await demo.wait_for_entry(FrameResumed)
        await demo.wait_for_ask("ask_human")
        replies = await demo.read_replies()
        await answer_question(demo, "Whatever makes the bakers happy")
        await demo.wait_for_ask("send_mail")
        await demo.run.decline("the council has not read it", actor="ada")
        view = await demo.run.until("completed")
        last = (await demo.read_replies())[-2]
    assert (
        "I am at “Ask what counts most”, item 4 of 7. So far I have read 5 of 16" in replies[-1]
    )
    assert "Asked for: Whatever makes the bakers happy." in demo.draft
    assert last == "The mail was not sent: declined by ada: the council has not read it."
    assert "was not mailed" in view.output
    assert view.plan[-1].state == "dropped"
    assert not demo.sent_mails


async def test_a_mail_that_is_declined_with_an_address_is_proposed_again(
    tmp_path: Path,
) -> None:
    """An approval with other arguments sends these, and the agent mentions them."""
    async with start_demo(tmp_path) as demo:
        await answer_question(demo)
        await demo.wait_for_ask("send_mail")
        await demo.run.decline("to mayor@larkhaven.example please", actor="ada")
        await demo.wait_for_entry(AskOpened, 3)  # the question, the mail, and the mail again
        await demo.wait_for_ask("send_mail")
        (ask,) = (await demo.run.view()).asks
        assert isinstance(ask.args, dict)
        assert ask.args["to"] == "mayor@larkhaven.example"
        await demo.run.approve(args={**ask.args, "subject": "Trees"}, actor="ada")
        await demo.run.until("completed")
        replies = await demo.read_replies()
    assert replies[-2] == "Sent, with your subject. It went to mayor@larkhaven.example."
    (mail,) = demo.sent_mails
    assert "Subject: Trees\n" in mail


async def test_a_redirect_while_the_mail_waits_for_approval_changes_the_next_proposal(
    tmp_path: Path,
) -> None:
    """The agent uses a new address, and sends no mail if told so."""
    async with start_demo(tmp_path) as demo:
        await answer_question(demo)
        await demo.wait_for_ask("send_mail")
        await demo.run.redirect("Send it to mayor@larkhaven.example", actor="ada")
        await demo.wait_for_entry(RedirectApplied)
        await demo.wait_for_ask("send_mail")
        (ask,) = (await demo.run.view()).asks
        assert "mayor@larkhaven.example" in str(ask.args)
        await demo.run.redirect("No, don't mail it", actor="ada")
        view = await demo.run.until("completed")
    assert "was not mailed" in view.output
    assert not demo.sent_mails


async def test_an_approver_sees_the_whole_mail_and_what_the_call_does(tmp_path: Path) -> None:
    async with start_demo(tmp_path) as demo:
        await demo.wait_for_ask("ask_human")
        await demo.run.redirect("Start writing, skip the fact check", actor="ada")
        await demo.wait_for_ask("send_mail")
        (ask,) = (await demo.run.view()).asks
        await demo.run.cancel(actor="ada")
        await demo.run.until("cancelled")
    subject = "Trees for Quay Street: a briefing"
    assert ask.title == f"Mail “{subject}” to “clerk@larkhaven.example”"
    assert isinstance(ask.args, dict)
    headings = re.findall(r"^## (.+)$", str(ask.args["body"]), re.MULTILINE)
    assert headings == TEXTS.headings


async def test_a_redirect_to_write_is_obeyed_before_the_first_search(tmp_path: Path) -> None:
    """Before, the agent said "No more searching", and searched."""
    pace = HoldingPace("street.")
    async with start_demo(tmp_path, pace=pace) as demo:
        await pace.reached.wait()
        await demo.run.redirect("Start writing", actor="ada", when="now")
        await demo.wait_for_ask("send_mail")
        turns = await demo.read_turns()
        await demo.run.cancel(actor="ada")
        await demo.run.until("cancelled")
    tools = [use.tool for turn in turns for use in turn.uses]
    assert not {"read_note", "search_library"} & set(tools)
    assert "lock_briefing" in tools, "the other call of the line is made"
    assert "write_section" in tools


async def test_a_redirect_to_write_now_ends_reading_and_skips_the_fact_check(
    tmp_path: Path,
) -> None:
    async with start_demo(tmp_path) as demo:
        await demo.wait_for_ask("ask_human")
        await demo.run.redirect("Start writing now, skip the fact check", actor="ada")
        await demo.wait_for_ask("send_mail")
        turns = await demo.read_turns()
        view = await demo.run.view()
        await demo.run.cancel(actor="ada")
        await demo.run.until("cancelled")
    at = next(n for n, turn in enumerate(turns) if turn.kind == "instruction")
    tools = [use.tool for turn in turns[at:] for use in turn.uses]
    assert not {"read_note", "search_library", "check_facts"} & set(tools)
    assert view.plan[5].state == "dropped"


async def test_a_cancel_during_the_analysis_kills_its_process_and_undoes_the_draft(
    tmp_path: Path,
) -> None:
    """The report agrees with the files: the draft and the lock are gone."""
    pace = HoldingPace("soil.")
    async with start_demo(tmp_path, pace=pace, rounds=1_000_000) as demo:
        await pace.reached.wait()
        await demo.run.redirect("Add a paragraph on watering", actor="ada")
        await demo.wait_for_call("find_themes")
        assert demo.is_locked
        assert demo.draft
        await demo.run.cancel(undo="all", actor="ada")
        await demo.run.until("cancelled")
        report = await demo.run.report()
    assert [reported.tool for reported in report.undone] == ["write_section"]
    assert [reported.tool for reported in report.stopped] == ["find_themes"]
    assert [reported.tool for reported in report.released] == ["lock_briefing"]
    assert report.clean
    assert not demo.draft
    assert not demo.is_locked


async def test_a_pause_stops_the_analysis_and_a_resume_continues_it(
    tmp_path: Path,
) -> None:
    """It saves its progress, so it does not start again."""
    async with start_demo(tmp_path, rounds=1_000_000) as demo:
        first = await demo.wait_for_entry(ProgressSaved)
        await demo.run.pause(actor="ada")
        await demo.run.until("paused")
        assert not (await demo.run.view()).in_flight
        saves = [
            record.entry
            for record in await demo.mid.store.read(demo.run.id)
            if isinstance(record.entry, ProgressSaved)
        ]
        await demo.run.resume(actor="ada")
        later = await demo.wait_for_entry(ProgressSaved, len(saves) + 1)
        await demo.run.cancel(actor="ada")
        await demo.run.until("cancelled")
    assert count_rounds(first) == 10
    assert count_rounds(later) == count_rounds(saves[-1]) + 10


def count_rounds(saved: ProgressSaved) -> int:
    """Return the number of finished rounds of the analysis."""
    assert isinstance(saved.progress, dict)
    done = saved.progress[" "]
    assert isinstance(done, int)
    return done


async def test_the_mail_says_so_if_the_fact_checker_was_cancelled(tmp_path: Path) -> None:
    """The fact checker is a child run."""
    pace = HoldingPace("Claim")
    async with start_demo(tmp_path, pace=pace) as demo:
        await answer_question(demo)
        await pace.reached.wait()
        (row,) = (await demo.mid.runs(agent="fact-checker")).items
        await (await demo.mid.get(row.run_id)).cancel(actor="ada")
        await demo.wait_for_ask("send_mail")
        (ask,) = (await demo.run.view()).asks
        replies = await demo.read_replies()
        await demo.run.cancel(actor="ada")
        await demo.run.until("cancelled")
    assert "The check did not come to an end" in replies[-1]
    assert "the figures are not checked" in str(ask.args)


async def test_a_second_run_reports_that_the_briefing_is_locked(tmp_path: Path) -> None:
    """The failed tool does not end the second run."""
    async with start_demo(tmp_path) as demo:
        await demo.wait_for_ask("ask_human")
        second = await demo.mid.start("researcher", TEXTS.task, actor="bob")
        await second.until("waiting")
        other = DemoRun(demo.mid, second, tmp_path)
        assert f"is locked by {demo.run.id}" in "".join(await other.read_replies())
        for run in (second, demo.run):
            assert demo.is_locked, "only the run that holds the lock may release it"
            await run.cancel(actor="ada")
            await run.until("cancelled")
    assert not demo.is_locked


async def test_a_fork_does_not_read_the_notes_of_the_first_run_again(tmp_path: Path) -> None:
    """The calls of the first run count as made."""
    async with start_demo(tmp_path) as demo:
        await demo.wait_for_ask("ask_human")
        first = await demo.read_replies()
        fork = DemoRun(demo.mid, await demo.run.fork(actor="ada"), tmp_path)
        await fork.wait_for_ask("send_mail")
        replies = await fork.read_replies()
        read = [
            use.args["name"]
            for turn in await fork.read_turns()
            for use in turn.uses
            if use.tool == "read_note" and isinstance(use.args, dict)
        ]
        for run in (fork.run, demo.run):
            await run.cancel(actor="ada")
            await run.until("cancelled")
    assert replies[: len(first)] == first
    assert replies[len(first)].startswith("You did not say"), (
        "the question belonged to the first run"
    )
    assert read == list(TEXTS.first_notes)


async def test_a_fork_with_an_instruction_uses_the_notes_of_the_first_run(
    tmp_path: Path,
) -> None:
    """The page has a button for it."""
    async with start_demo(tmp_path) as demo:
        await demo.wait_for_ask("ask_human")
        fork = await demo.run.fork(instruction="Summarise and stop", actor="ada")
        view = await fork.until("completed")
        await demo.run.cancel(actor="ada")
        await demo.run.until("cancelled")
    assert "The summary of 5 notes is in the draft" in view.output


async def test_a_task_of_the_user_is_looked_up_in_the_library(tmp_path: Path) -> None:
    async with start_demo(tmp_path, task="What do the traders want?") as demo:
        view = await demo.run.until("completed")
    assert "works in July" in demo.draft
    assert "in the draft" in view.output


# ── the plan and the draft ───────────────────────────────────────────────────


async def read_plan_marks(demo: DemoRun) -> list[str]:
    """Return the marks of the plan."""
    return [item.state for item in (await demo.run.view()).plan]


async def test_plan_and_section_count_are_right_after_a_redirect_with_two_requests(
    tmp_path: Path,
) -> None:
    """The number of finished plan items never decreases."""
    pace = HoldingPace("soil.")
    async with start_demo(tmp_path, pace=pace) as demo:
        await pace.reached.wait()
        words = "Don't mail anything, and add a paragraph on salt"
        await demo.run.redirect(words, actor="ada")
        await demo.wait_for_ask("ask_human")
        assert (await read_plan_marks(demo))[-1] == "dropped", "the item is dropped at once"
        await demo.run.answer("Shade, and soon", actor="ada")
        view = await demo.run.until("completed")
        records = await demo.mid.store.read(demo.run.id)
    plans = [record.entry.items for record in records if isinstance(record.entry, PlanMade)]
    done = [count_plan_items(items)[0] for items in plans]
    assert done == sorted(done)
    assert [item.state for item in view.plan] == [*["done"] * 6, "dropped"]
    assert view.position == "plan 6/6 done"
    headings = re.findall(r"^## (.+)$", demo.draft, re.MULTILINE)
    assert headings == ["Salt", *TEXTS.headings]
    assert "It has 7 sections" in view.output


async def test_a_topic_that_arrives_during_the_last_reply_is_in_the_new_last_reply(
    tmp_path: Path,
) -> None:
    """The interrupted reply contained the old number of sections."""
    pace = HoldingPace("Thank")
    async with start_demo(tmp_path, pace=pace) as demo:
        await demo.wait_for_ask("ask_human")
        await demo.run.redirect("Start writing now, and don't mail it", actor="ada")
        await pace.reached.wait()
        assert await read_plan_marks(demo) == ["done"] * 3 + ["dropped"] + ["done"] * 2 + [
            "dropped"
        ]
        await demo.run.redirect("Add a paragraph on salt", actor="ada")
        view = await demo.run.until("completed")
    assert view.output.startswith("The briefing has 7 sections now")


@pytest.mark.slow
@pytest.mark.parametrize("hint", ["Shade matters most", "Skip the analysis"])
async def test_an_instruction_during_the_analysis_restarts_it_or_drops_it(
    tmp_path: Path, hint: str
) -> None:
    """The instruction closes the call. The plan item is not marked as done."""
    async with start_demo(tmp_path, rounds=400) as demo:
        await demo.wait_for_entry(ProgressSaved)
        await demo.run.pause(actor="ada")
        await demo.run.until("paused")
        before = len(await demo.read_replies())
        await demo.run.resume(hint, actor="ada")
        if hint.startswith("Skip"):
            await demo.wait_for_ask("ask_human")
            assert (await read_plan_marks(demo))[:4] == ["done", "done", "dropped", "running"]
        else:
            saves = [
                record.entry
                for record in await demo.mid.store.read(demo.run.id)
                if isinstance(record.entry, ProgressSaved)
            ]
            again = await demo.wait_for_entry(ProgressSaved, len(saves) + 1)
            assert isinstance(again.progress, dict)
            assert again.progress[" "] == 10, "it starts again from the first round"
            assert (await read_plan_marks(demo))[:4] == ["done", "done", "running", "dropped"]
        answer = (await demo.read_replies())[before]
        await demo.run.cancel(actor="ada")
        await demo.run.until("cancelled")
    is_dropped = hint.startswith("Skip")
    assert ("I continue without it" if is_dropped else "again from the first round") in answer


async def test_a_redirect_during_the_fact_check_starts_it_again(tmp_path: Path) -> None:
    """Its plan item is marked as done only at its end."""
    pace = HoldingPace("Claim")
    async with start_demo(tmp_path, pace=pace) as demo:
        await demo.wait_for_ask("ask_human")
        await demo.run.redirect("Start writing now", actor="ada")
        await pace.reached.wait()
        await demo.run.redirect("Don't mail anything", when="now", actor="ada")
        view = await demo.run.until("completed")
        replies = "\n".join(await demo.read_replies())
    assert "from the first claim" in replies
    assert [item.state for item in view.plan][-2:] == ["done", "dropped"]
    assert "one was corrected" in view.output


async def test_a_redirect_to_stop_drops_the_open_plan_items(tmp_path: Path) -> None:
    async with start_demo(tmp_path) as demo:
        await demo.wait_for_ask("ask_human")
        await demo.run.redirect("Summarise and stop", actor="ada")
        view = await demo.run.until("completed")
    assert [item.state for item in view.plan] == [*["done"] * 3, *["dropped"] * 4, "done"]
    assert view.position == "plan 4/4 done"


async def test_a_redirect_to_stop_before_the_first_note_drops_the_whole_plan(
    tmp_path: Path,
) -> None:
    """This includes the search that is in progress."""
    pace = HoldingPace("sentence,")
    async with start_demo(tmp_path, pace=pace) as demo:
        await pace.reached.wait()
        await demo.run.redirect("Stop here", actor="ada")
        view = await demo.run.until("completed")
    assert {item.state for item in view.plan[:-1]} == {"dropped"}
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
def test_the_heading_of_a_section_is_the_topic_of_the_instruction(
    text: str, heading: str
) -> None:
    assert _extract_topic(text) == heading


def test_an_instruction_to_skip_a_finished_item_is_answered_truthfully() -> None:
    script = ResearcherScript(rounds=1)
    script._work.end_item(3, done=True)
    words = script.react_to_instruction("Skip the analysis").words
    assert words == f"Changing course. “{TEXTS.plan[2]}” is done already; that stays."
