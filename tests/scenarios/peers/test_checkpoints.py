"""What is kept of a run: little, plain JSON, and nothing that somebody else has written."""

import json
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Checkpoint, CheckpointRefused, Midrun, Paused, tool
from midrun.models import ScriptedModel
from midrun.models.scripted import Cue, Line
from tests.scenarios.peers.cast import Cast, Use
from tests.unit.runs.conftest import Opener

KEY = b"thirty-two bytes that nobody has"
THEIRS = b"thirty-two bytes of somebody else"

STEPS = 200
LARGE = 200_000
"""Bytes that the run has to remember from its first step on."""

PAY = Use("pay", amount=5, to="bob")


async def parked(opened: Opener, key: bytes | None = None) -> str:
    """Return the checkpoint of a run that waits for a yes, as a client would hold it."""
    midrun = await opened(Cast().agent(PAY, "Done."), key=key)
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    return (await run.checkpoint()).to_json()


async def test_the_store_grows_with_what_happens_and_not_with_what_is_remembered(
    tmp_path: Path,
) -> None:
    """LangGraph: 200 KB of state are stored with every step: 20 MB after 200 steps."""

    @tool
    async def look() -> str:
        """Find something large."""
        return "x" * LARGE

    @tool
    async def step(n: int) -> int:
        """Do something small."""
        return n

    turns: list[Line | Cue] = [Use("look"), *(Use("step", n=n) for n in range(STEPS)), "Done."]
    agent = Agent("looker", model=ScriptedModel(turns), tools=[look, step])
    async with Midrun(f"sqlite:///{tmp_path}/runs.db", agents=[agent]) as midrun:
        run = await midrun.start(agent, "go")
        await run.until("completed")
    stored = sum([(await file.stat()).st_size async for file in anyio.Path(tmp_path).iterdir()])
    assert LARGE < stored < 4 * LARGE


async def test_the_checkpoint_of_a_small_run_is_small() -> None:
    """Agentfootprint: 21.6 KB for a run of three calls."""
    cast = Cast()
    turn = [Use("quick", name="a"), Use("ask", name="b"), Use("quick", name="c")]
    outcome = await cast.agent(turn, "Done.").run("go")
    assert isinstance(outcome, Paused)
    assert len(outcome.checkpoint.to_json()) < 4_000


async def test_a_checkpoint_is_data_and_nothing_else() -> None:
    """OpenAI: the state as JSON can hold a live function; it fails later, and elsewhere."""
    cast = Cast()
    outcome = await cast.agent(Use("ask", name="a"), "Done.").run("go")
    assert isinstance(outcome, Paused)
    text = outcome.checkpoint.to_json()
    assert Checkpoint.from_json(json.dumps(json.loads(text))) == outcome.checkpoint


async def test_what_is_no_data_is_refused_by_name_where_it_is_given(opened: Opener) -> None:
    """LangGraph, OpenAI: a bare TypeError when the state is written, without the field."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("ask_badly", name="a"), cast.says("Then not.")))
    run = await midrun.start("actor", "go")
    view = await run.until("completed")
    assert view.asks == ()
    problem = cast.heard[-1][-1].uses[0].problem
    assert "how" in problem
    assert "NotJson" in problem


async def test_an_approval_cannot_be_changed_on_its_way_through_a_client(
    opened: Opener,
) -> None:
    """Where the client holds the history, it can have one thing approved and another done."""
    text = await parked(opened, KEY)
    forged = text.replace(r"\"amount\":5,", r"\"amount\":5000,")
    assert forged != text
    with pytest.raises(CheckpointRefused, match="changed after it was signed"):
        Checkpoint.from_json(forged, key=KEY)


async def test_a_changed_line_is_found_even_without_a_key(opened: Opener) -> None:
    """Elsewhere a stored history that was edited by accident is taken as it is."""
    text = await parked(opened)
    forged = text.replace(r"\"amount\":5,", r"\"amount\":5000,")
    assert forged != text
    with pytest.raises(CheckpointRefused, match="checkpoint_invalid"):
        Checkpoint.from_json(forged)


async def test_a_yes_that_nobody_gave_cannot_be_brought_along(opened: Opener) -> None:
    """Where the client holds the history, it can add a person's yes to it."""
    forger = Cast()
    theirs = await opened(forger.agent(PAY, "Done."), key=THEIRS)
    run = await theirs.start("actor", "go")
    await run.until("waiting")
    await run.pause()
    await run.approve(actor="ada")
    signed = (await run.checkpoint()).to_json()
    for text in (signed, _unsigned(signed)):
        with pytest.raises(CheckpointRefused, match="checkpoint_invalid"):
            Checkpoint.from_json(text, key=KEY)


def _unsigned(text: str) -> str:
    fields = json.loads(text)
    return json.dumps(
        {**{k: v for k, v in fields.items() if k not in {"kid", "mac"}}, "signed": False}
    )


async def test_a_runtime_with_a_key_takes_nothing_that_was_not_signed_with_it(
    opened: Opener, tmp_path: Path
) -> None:
    """Elsewhere it is enough to leave the signature off, and to forget to ask for it."""
    text = _unsigned(await parked(opened, THEIRS))
    cast = Cast()
    agent = cast.agent(PAY, "Done.")
    async with Midrun(f"sqlite:///{tmp_path}/ours.db", agents=[agent], key=KEY) as ours:
        with pytest.raises(CheckpointRefused):
            await ours.resume(Checkpoint.from_json(text), {"approved": True})
    assert cast.called == []


async def test_a_store_that_has_the_run_believes_itself(opened: Opener) -> None:
    """Where the client's history is the only one, whatever it says is what has happened."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("ask", name="a"), Use("quick", name="b"), "Done."))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    before = await run.checkpoint()
    await run.redirect("Something else")
    await run.until("completed")
    with pytest.raises(CheckpointRefused, match="stale_checkpoint"):
        await midrun.resume(before, "yes")
    assert cast.called == ["a", "b"]
