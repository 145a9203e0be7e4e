"""Refusals, request ids, outdated revisions, and concurrent controls."""

import anyio
import pytest

from midrun.core.values import TERMINAL_PHASES
from midrun.errors import ControlRefused, Misconfigured
from midrun.models import Use
from midrun.runs.values import Receipt
from midrun.testing.controllable_tools import ControllableTools
from midrun.testing.run_suite.fixtures import (
    OLGA,
    OpenHandle,
    RunSuiteFixtures,
    list_entry_kinds,
)


class ControlRequestTests(RunSuiteFixtures):
    """Refusals and races of controls."""

    @pytest.mark.parametrize(
        ("control", "args"),
        [
            ("pause", ()),
            ("resume", ()),
            ("redirect", ("Left.",)),
            ("say", ("Hello?",)),
            ("cancel", ()),
            ("force_pause", ()),
            ("retry_undo", ()),
            ("resume_frame", ("f1",)),
            ("drop_frame", ("f1",)),
            ("take_over", ()),
            ("write", ("Hello.",)),
            ("use_tool", ("quick", {"name": "x"})),
            ("hand_back", ()),
            ("withdraw", (1,)),
        ],
    )
    async def test_a_run_that_is_over_refuses_by_name(
        self,
        opened: OpenHandle,
        stage: ControllableTools,
        control: str,
        args: tuple[object, ...],
    ) -> None:
        """The error names the run, the control, the reason, and the allowed controls."""
        mid = await opened(stage.agent("Done."))
        run = await mid.start("actor", "go")
        await run.until("completed")
        with pytest.raises(ControlRefused) as refused:
            await getattr(run, control)(*args, actor=OLGA)
        error = refused.value
        assert (error.run, error.control, error.phase) == (run.id, control, "completed")
        assert error.reason
        assert isinstance(error.allowed, tuple)
        assert (await run.view()).phase == "completed"

    async def test_an_empty_or_invalid_text_is_refused(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """The run refuses an empty text; the handle refuses a value that is no text."""
        mid = await opened(stage.agent(Use("slow", name="a"), "Done."))
        run = await mid.start("actor", "go")
        await stage.start("a").wait()
        for control in (run.redirect, run.say):
            with pytest.raises(ControlRefused) as refused:
                await control("  ", actor=OLGA)
            assert refused.value.reason == "empty_text"
            with pytest.raises(Misconfigured):
                await control(7, actor=OLGA)  # type: ignore[arg-type]  # deliberately wrong
        with pytest.raises(Misconfigured):
            await run.cancel(undo="some", actor=OLGA)  # type: ignore[arg-type]  # deliberately wrong
        with pytest.raises(TypeError):
            await run.pause(why="lunch")  # type: ignore[call-arg]  # deliberately wrong

    async def test_a_request_is_applied_once(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """A repeat is a no-op; another text under the same request id is refused."""
        mid = await opened(stage.agent(Use("slow", name="a"), "Done."))
        run = await mid.start("actor", "go", request_id="s1")
        assert (await mid.start("actor", "go", request_id="s1")).id == run.id
        with pytest.raises(ControlRefused) as reused:
            await mid.start("actor", "something else", request_id="s1")
        assert reused.value.reason == "request_id_reused"
        await stage.start("a").wait()
        first = await run.say("Hello?", actor=OLGA, request_id="m 1 ünïcode")
        again = await run.say("Hello?", actor=OLGA, request_id="m 1 ünïcode")
        assert (again.already, again.seq) == ("duplicate_request", first.seq)
        assert not again.applied
        assert len((await run.view()).pending) == 1
        with pytest.raises(ControlRefused) as refused:
            await run.say("Else.", actor=OLGA, request_id="m 1 ünïcode")
        assert refused.value.reason == "request_id_reused"

    async def test_a_control_on_an_outdated_revision_is_refused_unless_it_stops_the_run(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """With the current revision it is accepted; steps of the run do not change it."""
        mid = await opened(stage.agent(Use("slow", name="a"), "Done."))
        run = await mid.start("actor", "go")
        await stage.start("a").wait()
        old = (await run.view()).control_rev
        await run.say("Hello?", actor=OLGA)
        with pytest.raises(ControlRefused) as refused:
            await run.redirect("Left.", actor=OLGA, seen=old, request_id="r1")
        assert refused.value.reason == "stale_revision"
        new = (await run.view()).control_rev
        await run.redirect("Left.", actor=OLGA, seen=new, request_id="r1")
        # Pause and cancel are accepted on any revision: a stop is never refused as outdated.
        await run.pause(actor=OLGA, seen=old)
        await run.cancel(actor=OLGA, seen=old)
        await run.until("cancelled")

    async def test_of_many_concurrent_cancels_one_wins(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """All callers learn of the same cancel, or that the run completed first."""
        mid = await opened(stage.agent(Use("slow", name="a"), "Done."))
        run = await mid.start("actor", "go")
        await stage.start("a").wait()
        receipts: list[Receipt] = []
        refusals: list[ControlRefused] = []

        async def cancel() -> None:
            try:
                receipts.append(await run.cancel(actor=OLGA))
            except ControlRefused as refused:
                refusals.append(refused)

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(cancel)
            stage.gate("a").set()  # so that the run may also complete before any cancel
        view = await run.until("terminal")
        assert view.phase in TERMINAL_PHASES
        winners = [receipt for receipt in receipts if receipt.already is None]
        assert len(winners) == (view.phase == "cancelled")
        # The others are told "already cancelled", or are refused because the run was completed.
        assert len(receipts) + len(refusals) == 10
        assert (await list_entry_kinds(run)).count("CancelRequested") == len(winners)
