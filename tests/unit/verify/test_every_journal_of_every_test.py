"""The net under all tests: journals that they make are verified, and what is wrong is told."""

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
from tests.support.verified_journals import PROBLEMS

PROBLEM = Problem(invariant="I5", seq=3, text="It went on after its end.")
SAYS = Agent("says", model=ScriptedModel(["Done."]))


async def damning(_: Store, run: RunId) -> Verdict:
    """Find fault with everything."""
    return Verdict(run_id=run, entries=3, problems=(PROBLEM,))


@pytest.mark.spoils_journals
@pytest.mark.parametrize("kind", ["file", "memory", "lent"])
async def test_what_is_wrong_with_a_journal_is_noticed_however_it_was_kept(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file, in memory, and in a store that outlives its `Midrun`."""
    monkeypatch.setattr(tests.support.verified_journals, "verify_run", damning)
    stores: dict[str, str | Store] = {
        "file": f"sqlite:///{tmp_path / 'runs.db'}",
        "memory": "memory://",
        "lent": MemoryStore(),
    }
    async with Midrun(stores[kind], agents=[SAYS]) as midrun:
        run = await midrun.start("says", "Say it")
        await run.until("completed")
    (problem,) = PROBLEMS
    assert run.id in problem
    assert "I5" in problem


async def test_what_is_sound_is_not_complained_about() -> None:
    """Once for each journal, and without a word."""
    async with Midrun("memory://", agents=[SAYS]) as midrun:
        await (await midrun.start("says", "Say it")).until("completed")
    assert PROBLEMS == []
