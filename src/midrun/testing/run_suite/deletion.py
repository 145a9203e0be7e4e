"""Deletion of runs, one by one and by selection."""

from datetime import timedelta

import pytest

from midrun.errors import DeleteRefused, Misconfigured, RunErased
from midrun.models import Use
from midrun.testing.controllable_tools import ControllableTools
from midrun.testing.run_suite.fixtures import OLGA, OpenHandle, RunSuiteFixtures


class DeleteTests(RunSuiteFixtures):
    """Deleted runs are gone; `verify` shows who deleted them."""

    async def test_a_deleted_run_is_shown_as_erased(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        mid = await opened(stage.agent("Done."))
        run = await mid.start("actor", "go")
        view = await run.until("completed")
        erasure = await run.delete("GDPR", actor=OLGA)
        assert (erasure.run_id, erasure.entries) == (run.id, view.seq)
        assert (erasure.by, erasure.reason) == ("olga", "GDPR")
        for read in (run.view, run.report, run.export, run.result):
            with pytest.raises(RunErased) as refused:
                await read()
            assert refused.value.by == "olga"
        with pytest.raises(RunErased):
            await mid.get(run.id)
        assert (await mid.runs()).items == ()
        verdict = await mid.verify(run.id)
        assert verdict
        assert verdict.erased == erasure
        assert "erased by olga" in str(verdict)
        assert await run.delete("again", actor=OLGA) == erasure

    async def test_a_run_that_goes_on_is_cancelled_first(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        mid = await opened(stage.agent(Use("slow", name="a"), "Done."))
        run = await mid.start("actor", "go")
        await stage.start("a").wait()
        with pytest.raises(DeleteRefused, match="Cancel") as refused:
            await run.delete(actor=OLGA)
        assert refused.value.reason == "is_running"
        await run.cancel(actor=OLGA)
        await run.until("cancelled")
        assert (await run.delete(actor=OLGA)).by == "olga"

    async def test_a_request_does_not_bring_a_deleted_run_back(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        mid = await opened(stage.agent("Done.", "Done."))
        run = await mid.start("actor", "go", request_id="r1")
        await run.until("completed")
        await run.delete(actor=OLGA)
        with pytest.raises(RunErased):
            await mid.start("actor", "go", request_id="r1")

    async def test_runs_are_selected_by_thread_label_and_age(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        mid = await opened(stage.agent(*["Done."] * 3, Use("slow", name="a"), "Done."))
        for labels in ([], ["x"], []):
            run = await mid.start("actor", "go", thread="t", labels=labels)
            await run.until("completed")
        going = await mid.start("actor", "go", thread="t")
        await stage.start("a").wait()
        count = await mid.count_deletable(thread="t")
        assert (count.runs, count.alive) == (3, 1)
        assert await mid.delete_runs(label="x", actor=OLGA) == 1
        day = timedelta(days=1)
        assert await mid.delete_runs(thread="t", older_than=day, actor=OLGA) == 0
        assert await mid.delete_runs(thread="t", reason="old", actor=OLGA) == 2
        assert [view.run_id for view in (await mid.runs()).items] == [going.id]
        with pytest.raises(Misconfigured, match="all runs"):
            await mid.delete_runs(actor=OLGA)
        with pytest.raises(Misconfigured, match="older_than"):
            await mid.delete_runs(older_than=-day, actor=OLGA)
