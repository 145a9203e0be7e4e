"""Every journal that a test leaves behind is verified: `tests/support/verified_journals.py`."""

from pathlib import Path

import pytest

import tests.support.verified_journals
from midrun import Agent, Midrun
from midrun.core.ids import RunId
from midrun.models import ScriptedModel
from midrun.ports.store import Store
from midrun.runs.values import Verdict
from midrun.stores.memory import MemoryStore
from midrun.verify.checks import Problem
from tests.support.verified_journals import VIOLATIONS

PROBLEM = Problem(invariant="I5", seq=3, text="An entry follows the end.")
AGENT = Agent("says", model=ScriptedModel(["Done."]))


async def report_problem(_: Store, run: RunId) -> Verdict:
    """Return a verdict with one problem, in place of `verify_run`."""
    return Verdict(run_id=run, entries=3, problems=(PROBLEM,))


@pytest.mark.spoils_journals
@pytest.mark.parametrize("kind", ["file", "memory", "instance"])
async def test_a_problem_in_a_journal_is_recorded_for_every_kind_of_store(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store of the third case outlives its `Midrun`."""
    monkeypatch.setattr(tests.support.verified_journals, "verify_run", report_problem)
    stores: dict[str, str | Store] = {
        "file": f"sqlite:///{tmp_path / 'runs.db'}",
        "memory": "memory://",
        "instance": MemoryStore(),
    }
    async with Midrun(stores[kind], agents=[AGENT]) as midrun:
        run = await midrun.start("says", "Say it")
        await run.until("completed")
    (problem,) = VIOLATIONS
    assert run.id in problem
    assert "I5" in problem


async def test_a_sound_journal_is_not_reported() -> None:
    async with Midrun("memory://", agents=[AGENT]) as midrun:
        await (await midrun.start("says", "Say it")).until("completed")
    assert VIOLATIONS == []
