"""Checkpoints and stored data, compared with other frameworks: size, plain JSON, forgery.

The docstrings name the framework and the failure that was seen there.
"""

import json
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Checkpoint, CheckpointRefused, Midrun, Paused, tool
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Cue, Line
from tests.scenarios.peers.toolkit import PeerToolkit
from tests.unit.runs.conftest import OpenMidrun

KEY = b"k" * 32
OTHER_KEY = b"o" * 32

STEPS = 200
LARGE_RESULT_BYTES = 200_000
"""Size of the result of the first step, which is part of every later prompt."""

PAY = Use("pay", amount=5, to="bob")


async def make_waiting_checkpoint(opened: OpenMidrun, key: bytes | None = None) -> str:
    """Return the checkpoint of a run that waits for an approval, as JSON."""
    midrun = await opened(PeerToolkit().agent(PAY, "Done."), key=key)
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    return (await run.checkpoint()).to_json()


async def test_the_store_does_not_save_the_whole_state_with_each_step(tmp_path: Path) -> None:
    """LangGraph: 200 KB of state are stored with every step: 20 MB after 200 steps."""

    @tool
    async def look() -> str:
        """Return a large result."""
        return "x" * LARGE_RESULT_BYTES

    @tool
    async def step(n: int) -> int:
        """Return a small result."""
        return n

    turns: list[Line | Cue] = [Use("look"), *(Use("step", n=n) for n in range(STEPS)), "Done."]
    agent = Agent("looker", model=ScriptedModel(turns), tools=[look, step])
    async with Midrun(f"sqlite:///{tmp_path}/runs.db", agents=[agent]) as midrun:
        run = await midrun.start(agent, "go")
        await run.until("completed")
    stored = sum([(await file.stat()).st_size async for file in anyio.Path(tmp_path).iterdir()])
    assert LARGE_RESULT_BYTES < stored < 4 * LARGE_RESULT_BYTES


async def test_the_checkpoint_of_a_small_run_is_small() -> None:
    """Agentfootprint: 21.6 KB for a run of three calls."""
    toolkit = PeerToolkit()
    turn = [Use("quick", name="a"), Use("ask", name="b"), Use("quick", name="c")]
    outcome = await toolkit.agent(turn, "Done.").run("go")
    assert isinstance(outcome, Paused)
    assert len(outcome.checkpoint.to_json()) < 4_000


async def test_a_checkpoint_is_plain_json() -> None:
    """OpenAI: the JSON state can refer to a live function; a resume elsewhere fails."""
    toolkit = PeerToolkit()
    outcome = await toolkit.agent(Use("ask", name="a"), "Done.").run("go")
    assert isinstance(outcome, Paused)
    text = outcome.checkpoint.to_json()
    assert Checkpoint.from_json(json.dumps(json.loads(text))) == outcome.checkpoint


async def test_a_value_that_is_not_json_fails_the_call_and_is_named(opened: OpenMidrun) -> None:
    """LangGraph, OpenAI: a TypeError when the state is written; it does not name the field."""
    toolkit = PeerToolkit()
    midrun = await opened(
        toolkit.agent(Use("ask_badly", name="a"), toolkit.record_then_say("Then not."))
    )
    run = await midrun.start("actor", "go")
    view = await run.until("completed")
    assert view.asks == ()
    problem = toolkit.prompts[-1][-1].uses[0].problem
    assert "how" in problem
    assert "NotJson" in problem


async def test_a_client_cannot_change_the_arguments_of_an_approval(opened: OpenMidrun) -> None:
    """If the client holds the history, it can get one call approved and another one made."""
    text = await make_waiting_checkpoint(opened, KEY)
    forged = text.replace(r"\"amount\":5,", r"\"amount\":5000,")
    assert forged != text
    with pytest.raises(CheckpointRefused, match="changed after it was signed"):
        Checkpoint.from_json(forged, key=KEY)


async def test_a_changed_entry_is_detected_without_a_key(opened: OpenMidrun) -> None:
    """Other frameworks accept a stored history that was edited by accident."""
    text = await make_waiting_checkpoint(opened)
    forged = text.replace(r"\"amount\":5,", r"\"amount\":5000,")
    assert forged != text
    with pytest.raises(CheckpointRefused, match="checkpoint_invalid"):
        Checkpoint.from_json(forged)


async def test_a_checkpoint_with_a_forged_approval_is_refused(opened: OpenMidrun) -> None:
    """If the client holds the history, it can add the approval of a person to it."""
    other_toolkit = PeerToolkit()
    other_midrun = await opened(other_toolkit.agent(PAY, "Done."), key=OTHER_KEY)
    run = await other_midrun.start("actor", "go")
    await run.until("waiting")
    await run.pause()
    await run.approve(actor="ada")
    signed = (await run.checkpoint()).to_json()
    for text in (signed, _remove_signature(signed)):
        with pytest.raises(CheckpointRefused, match="checkpoint_invalid"):
            Checkpoint.from_json(text, key=KEY)


def _remove_signature(text: str) -> str:
    fields = json.loads(text)
    return json.dumps(
        {**{k: v for k, v in fields.items() if k not in {"kid", "mac"}}, "signed": False}
    )


async def test_a_midrun_with_a_key_refuses_a_checkpoint_without_a_signature(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """In other frameworks it is enough to remove the signature."""
    text = _remove_signature(await make_waiting_checkpoint(opened, OTHER_KEY))
    toolkit = PeerToolkit()
    agent = toolkit.agent(PAY, "Done.")
    async with Midrun(f"sqlite:///{tmp_path}/midrun.db", agents=[agent], key=KEY) as midrun:
        with pytest.raises(CheckpointRefused):
            await midrun.resume(Checkpoint.from_json(text), {"approved": True})
    assert toolkit.called == []


async def test_a_store_that_has_the_run_refuses_an_older_checkpoint(opened: OpenMidrun) -> None:
    """If the history of the client is the only one, it is accepted in any state."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent(Use("ask", name="a"), Use("quick", name="b"), "Done."))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    before = await run.checkpoint()
    await run.redirect("Something else")
    await run.until("completed")
    with pytest.raises(CheckpointRefused, match="stale_checkpoint"):
        await midrun.resume(before, "yes")
    assert toolkit.called == ["a", "b"]
