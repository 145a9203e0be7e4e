"""Views, waiting, the feed, lists, checkpoints, journals."""

import anyio
import pytest

from midrun import events as ev
from midrun.agents.agent import Agent
from midrun.agents.checkpoint import Checkpoint
from midrun.agents.outcome import Failed
from midrun.driver.delta import Delta
from midrun.errors import CheckpointRefused, Misconfigured, RunNotFound, RunOver
from midrun.models import ScriptedModel, Use
from midrun.runs.values import FeedEntry, RunView
from midrun.testing.controllable_tools import ControllableTools
from midrun.testing.run_suite.fixtures import OLGA, OpenHandle, RunSuiteFixtures


class ViewTests(RunSuiteFixtures):
    """Everything that can be read about a run."""

    async def test_a_view_says_where_the_run_stands(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """Including the labels of its buttons."""
        mid = await opened(stage.agent(Use("draft", name="a"), Use("slow", name="b"), "Done."))
        run = await mid.start("actor", "go", labels=["x", "y"], thread="t")
        await stage.start("b").wait()
        view = await run.view()
        assert type(view) is RunView
        assert (view.run_id, view.phase, view.task, view.agent) == (
            run.id,
            "running",
            "go",
            "actor",
        )
        assert (view.labels, view.thread) == (("x", "y"), "t")
        assert 0 < view.started_at <= view.changed_at
        assert [call.tool for call in view.in_flight] == ["slow"]
        assert [effect.tool for effect in view.effects][:1] == ["draft"]
        assert view.controls["pause"].enabled
        stage.gate("b").set()
        ended = await run.until("terminal")
        assert (ended.output, ended.seq > view.seq) == ("Done.", True)
        assert ended.control_rev > view.control_rev

    async def test_waiting_ends_at_the_phase_or_when_it_is_out_of_reach(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """A waiter for a pause is released when the run has ended."""
        mid = await opened(stage.agent(Use("slow", name="a"), "Done."))
        run = await mid.start("actor", "go")
        await stage.start("a").wait()
        found: list[RunView] = []

        async def wait() -> None:
            found.append(await run.until("paused", "terminal"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await run.pause(now=True, actor=OLGA)
        assert found[0].phase == "paused"
        await run.resume(actor=OLGA)
        # Completed is the end: a waiter for another phase must not wait for ever.
        with pytest.raises(RunOver) as over:
            await run.until("waiting", "failed")
        assert (over.value.phase, over.value.wanted) == ("completed", ("failed", "waiting"))
        with pytest.raises(Misconfigured):
            await run.until()
        with pytest.raises(Misconfigured):
            await run.until("stopped")

    async def test_a_failure_is_an_outcome_that_can_go_on(self, opened: OpenHandle) -> None:
        """With the error, and a checkpoint to continue from."""
        broken = True

        def turn(_: object) -> str:
            if broken:
                raise RuntimeError("no such moon")
            return "Done."

        mid = await opened(Agent("looks", model=ScriptedModel(turn)))
        run = await mid.start("looks", "go")
        # A waiter for the end must not wait for a resume that may never come.
        for awaited in ("completed", "terminal", "paused"):
            with pytest.raises(RunOver, match=r"it failed: .*no such moon.*Resume") as over:
                await run.until(awaited)
            assert over.value.phase == "failed"
        assert (await run.until("completed", "failed")).phase == "failed"
        outcome = await run.result()
        assert isinstance(outcome, Failed)
        assert "no such moon" in outcome.error
        assert outcome.checkpoint.phase == "failed"
        broken = False
        await run.resume(actor=OLGA)
        await run.until("completed")

    async def test_the_feed_has_every_entry_once_and_words_as_they_come(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """From any seq on; the entries are those of the journal."""
        turns = [Use("slow", name="a"), ["Let me see now.", Use("quick", name="b")], "Done."]
        mid = await opened(stage.agent(*turns))
        run = await mid.start("actor", "go", actor=OLGA)
        items: list[FeedEntry] = []
        deltas: list[Delta] = []
        async for item in run.feed():
            if isinstance(item, Delta):
                deltas.append(item)
                continue
            items.append(item)
            if item.kind == "CallStarted":
                stage.gate("a").set()
        assert [item.seq for item in items] == list(range(1, len(items) + 1))
        assert items[0].kind == "RunStarted"
        assert getattr(items[0].entry, "by", "") == "olga"
        assert all(delta.run == run.id and delta.seq is None for delta in deltas)
        # Deltas are live only: a feed of the past has entries alone.
        rest = [item async for item in run.feed(4) if isinstance(item, FeedEntry)]
        assert rest == items[4:]
        assert [item async for item in run.feed(len(items))] == []

    async def test_events_tell_the_run_in_types_and_sentences(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """One event for each entry, from any seq on, and live text between them."""
        turns = [Use("slow", name="a"), Use("plan", items=["Look", "Tell"]), "All is done."]
        mid = await opened(stage.agent(*turns))
        run = await mid.start("actor", "go", actor=OLGA)
        found: list[ev.EntryEvent] = []
        deltas: list[ev.DeltaEvent] = []
        async for event in run.events():
            if isinstance(event, ev.DeltaEvent):
                deltas.append(event)
                continue
            found.append(event)
            if isinstance(event, ev.ToolStarted):
                stage.gate("a").set()
        assert [event.seq for event in found] == list(range(1, len(found) + 1))
        assert all(event.sentence.startswith(event.who) for event in found)
        assert [_summarize_event(event) for event in found] == [
            ("queued", None),
            ("running", "queued"),
            "reply 1",
            ("done", ""),
            ("slow", {"name": "a"}),
            ("slow", "done"),
            "reply 2",
            ("done", ""),
            ("plan", {"items": ["Look", "Tell"]}),
            ["Look", "Tell"],
            ("plan", "done"),
            "reply 3",
            ("done", "All is done."),
            ("completed", "running"),
        ]
        assert all(0 < delta.seq <= len(found) and delta.sentence for delta in deltas)
        rest = [event async for event in run.events(after=4)]
        assert rest == found[4:]

    async def test_runs_are_listed_page_by_page(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """Newest first, by phase, agent, label and thread."""
        mid = await opened(stage.agent("Done."), stage.agent("Done.", name="other"))
        ids = []
        for number in range(5):
            agent, label = ("other", "odd") if number % 2 else ("actor", "even")
            run = await mid.start(agent, f"task {number}", labels=[label], thread=f"t{number}")
            await run.until("completed")
            ids.append(run.id)
        first = await mid.runs(limit=3)
        assert [view.run_id for view in first.items] == ids[:1:-1]
        rest = await mid.runs(limit=3, cursor=first.cursor)
        assert [view.run_id for view in rest.items] == ids[1::-1]
        assert rest.cursor == ""
        assert await mid.find_ids(ids[2][:12]) == (ids[2],)
        assert await mid.find_ids(ids[2].removeprefix("run_")) == (ids[2],)
        odd = await mid.runs(label="odd")
        assert [view.agent for view in odd.items] == ["other", "other"]
        (alone,) = (await mid.runs(thread="t4")).items
        assert alone.run_id == ids[4]
        assert (await mid.runs(phase="paused")).items == ()
        assert len((await mid.runs(agent="actor", phase="completed")).items) == 3
        view = odd.items[0]
        lines = await (await mid.get(view.run_id)).export()
        assert (view.seq, view.task, view.phase) == (len(lines), "task 3", "completed")

    async def test_an_unknown_run_is_not_found(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """The error names the id, and is a LookupError."""
        mid = await opened(stage.agent("Done."))
        with pytest.raises(RunNotFound) as refused:
            await mid.get("run_none")
        assert refused.value.run == "run_none"
        with pytest.raises(LookupError):
            await mid.verify("run_none")
        with pytest.raises(Misconfigured):
            await mid.start("nobody", "go")
        with pytest.raises(Misconfigured):
            await mid.runs(phase="stopped")

    async def test_a_journal_is_verified_exported_and_checkpointed(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """A checkpoint equals the one read back from its JSON."""
        mid = await opened(stage.agent(Use("slow", name="a"), "Done."))
        run = await mid.start("actor", "go")
        await stage.start("a").wait()
        with pytest.raises(CheckpointRefused):
            await run.checkpoint()
        await run.pause(now=True, actor=OLGA)
        view = await run.until("paused")
        checkpoint = await run.checkpoint()
        text = checkpoint.to_json()
        assert Checkpoint.from_json(text, key=self.checkpoint_key) == checkpoint
        assert (checkpoint.run, checkpoint.head_seq) == (run.id, view.seq)
        assert checkpoint.journal == await run.export()
        verdict = await mid.verify(run.id)
        assert verdict
        assert (verdict.run_id, verdict.entries) == (run.id, view.seq)


def _summarize_event(event: ev.EntryEvent) -> object:
    match event:
        case ev.PhaseChanged():
            return event.phase, event.previous
        case ev.ReplyStarted():
            return f"reply {event.step}"
        case ev.ReplyFinished():
            return event.outcome, event.reply
        case ev.ToolStarted():
            return event.tool, event.args
        case ev.ToolFinished():
            return event.tool, event.outcome
        case ev.PlanChanged():
            return [item.text for item in event.items]
        case _:
            return event.sentence
