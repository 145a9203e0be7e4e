"""Promise 13: everything is on record.

The journal has all controls with actor and reason, and all calls. Its entries form a hash
chain, so that `verify` finds a changed entry.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from midrun import Agent, Completed, ControlRefused, Midrun, Run
from midrun.core.entries import (
    AskAnswered,
    CallDone,
    CancelRequested,
    CapRaised,
    PauseRequested,
    RedirectRequested,
    RequestNoted,
    RunResumed,
    RunStarted,
)
from midrun.core.values import Reply
from midrun.driver.delta import Delta
from midrun.errors import JournalCorrupt
from midrun.models import Use
from midrun.ports.model import Finished, Piece, Prompt, Unpriced
from midrun.stops import MaxSteps
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.promises.log_agent import get_script, log_agent
from tests.support.raw_sql import TRIGGER_ERRORS, execute_sql, make_replace_sql
from tests.support.run_journal import read_entries, read_journal, read_kinds
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun

# ── controls and calls ────────────────────────────────────────────────────────────────────


async def test_the_journal_has_actor_role_and_reason_of_each_control(
    opened: OpenMidrun,
) -> None:
    tools = ControllableTools()
    agent = tools.agent(Use("slow", name="a"), Use("slow", name="b"), "Done.", stop=MaxSteps(9))
    midrun = await opened(agent)
    run = await midrun.start("actor", "Sort it", actor="ada", labels=["mail"], thread="t1")
    await tools.start("a").wait()
    await run.raise_cap(steps=20, actor="operator:olga", reason="big one")
    await run.pause(actor="bob", reason="lunch")
    tools.gate("a").set()
    await run.until("paused")
    await run.resume("Be quick", actor="ada", reason="back")
    await tools.start("b").wait()
    await run.redirect("Use French", actor="bob", reason="the client asked")
    await run.cancel(actor="operator:olga", reason="enough")
    await run.until("cancelled")
    (started,) = await read_entries(run, RunStarted)
    assert (started.task, started.by, started.agent) == ("Sort it", "ada", "actor")
    assert (started.labels, started.thread) == (("mail",), "t1")
    assert started.agent_fingerprint == agent.fingerprint
    controls = [
        (type(entry).__name__, entry.by, entry.role, entry.reason)
        for entry in await read_journal(run)
        if isinstance(
            entry, CapRaised | PauseRequested | RunResumed | RedirectRequested | CancelRequested
        )
    ]
    assert controls == [
        ("CapRaised", "olga", "operator", "big one"),
        ("PauseRequested", "bob", "user", "lunch"),
        ("RunResumed", "ada", "user", "back"),
        ("RedirectRequested", "bob", "user", "the client asked"),
        ("CancelRequested", "olga", "operator", "enough"),
    ]
    assert (await read_entries(run, RunResumed))[0].instruction == "Be quick"
    assert (await read_entries(run, RedirectRequested))[0].text == "Use French"


@pytest.mark.parametrize("answer", ["approve", "decline"])
async def test_the_journal_has_actor_and_reason_of_a_decision(
    answer: str, opened: OpenMidrun, tmp_path: Path
) -> None:
    midrun = await opened(log_agent(*get_script("pay", str(tmp_path / "log.txt"))))
    run = await midrun.start("logger", "go")
    await run.until("waiting")
    if answer == "approve":
        await run.approve(actor="ada", reason="small sum")
    else:
        await run.decline("small sum", actor="ada")
    await run.until("completed")
    (decided,) = await read_entries(run, AskAnswered)
    assert (decided.by, decided.decision.choice) == ("ada", answer)
    assert decided.reason == "small sum"


async def test_the_reason_for_a_call_is_journaled_and_not_passed_to_the_tool(
    opened: OpenMidrun,
) -> None:
    """The schema of each tool has a property `why` for the model."""
    tools = ControllableTools()
    midrun = await opened(
        tools.agent(["Let me look. ", Use("quick", name="a", why="the bill is due")], "Done.")
    )
    run = await midrun.start("actor", "go")
    await run.until("completed")
    model_call, tool_call, _ = await read_entries(run, CallDone)
    assert model_call.reply is not None
    (use,) = model_call.reply.uses
    assert (use.why, use.args) == ("the bill is due", {"name": "a"})
    assert model_call.reply.text == "Let me look. "
    assert tool_call.result == "a done"
    for spec in midrun.agents["actor"].specs:
        properties = spec.schema["properties"]  # type: ignore[index]  # a JSON Schema
        assert "why" in properties


class ThinkingModel(Unpriced):
    """Streams its thinking before its text."""

    name = "thinking"

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Yield one reply."""
        del prompt
        yield self._pieces()

    async def _pieces(self) -> AsyncIterator[Piece | Finished]:
        yield Piece(kind="thinking", text="Six times seven.")
        yield Piece(kind="text", text="42")
        yield Finished(reply=Reply(text="42", thinking="Six times seven."))


async def test_the_thinking_of_the_model_is_journaled_with_its_text(opened: OpenMidrun) -> None:
    midrun = await opened(Agent("actor", model=ThinkingModel()))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    (done,) = await read_entries(run, CallDone)
    assert done.reply is not None
    assert (done.reply.thinking, done.reply.text) == ("Six times seven.", "42")


async def test_no_ops_and_refusals_are_journaled_too(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.resume(actor="ada", request_id="r1")
    with pytest.raises(ControlRefused):
        await run.resume("hurry", actor="bob", request_id="r2")
    noted = [(n.by, n.verdict, n.refused) for n in await read_entries(run, RequestNoted)]
    assert noted == [("ada", "already_running", False), ("bob", "not_paused", True)]
    tools.gate("a").set()
    await run.until("completed")


async def test_the_feed_yields_the_journal_in_order(opened: OpenMidrun) -> None:
    """It can start at the first entry or after any seq."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("quick", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    items = [item async for item in run.feed() if not isinstance(item, Delta)]
    assert [item.entry for item in items] == await read_journal(run)
    assert [item.kind for item in items] == await read_kinds(run)
    later = [item async for item in run.feed(after=4)]
    assert [item.seq for item in later] == [item.seq for item in items][4:]
    assert all(one.at <= other.at for one, other in pairwise(items))


# ── changed journals ──────────────────────────────────────────────────────────────────────


@pytest.fixture
async def stored_run(path: Path) -> tuple[Path, str, int]:
    """Return a store with two runs, the id of the first one, and its last seq."""
    tools = ControllableTools()
    agent = tools.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    async with Midrun(get_store_url(path), agents=[agent]) as midrun:
        run = await midrun.start("actor", "Pay 100 to ada")
        await tools.start("a").wait()
        await run.pause(actor="bob", reason="lunch")
        tools.gate("a").set()
        await run.until("paused")
        await run.resume(actor="bob")
        await run.until("completed")
        other = await midrun.start("actor", "Another")
        assert isinstance(await other.result(), Completed)
        assert await midrun.verify(run.id)
        return path, run.id, (await run.view()).seq


def read_line(path: Path, seq: int) -> bytes:
    """Return the line of an entry of the first run."""
    wanted = f"SELECT line FROM midrun_entries WHERE no = 1 AND seq = {seq}"  # noqa: S608 - a number
    ((line,),) = execute_sql(path, wanted)
    assert isinstance(line, bytes)
    return line


async def verify_run(path: Path, run_id: str) -> tuple[bool, list[int]]:
    """Return whether a run is valid, and the seqs of its problems."""
    async with Midrun(get_store_url(path)) as midrun:
        verdict = await midrun.verify(run_id)
        return bool(verdict), [problem.seq for problem in verdict.problems]


async def test_the_store_refuses_to_change_or_delete_an_entry(
    stored_run: tuple[Path, str, int],
) -> None:
    """Its triggers refuse that also for a database tool."""
    path, run_id, _ = stored_run
    for statement in ("UPDATE midrun_entries SET line = line", "DELETE FROM midrun_entries"):
        with pytest.raises(TRIGGER_ERRORS, match="never"):
            execute_sql(path, statement, guarded=True)
    assert await verify_run(path, run_id) == (True, [])


async def test_one_changed_byte_is_found_wherever_it_is(
    stored_run: tuple[Path, str, int],
) -> None:
    """Verify names the changed entry; the other run of the store is valid."""
    path, run_id, last = stored_run
    async with Midrun(get_store_url(path)) as midrun:
        (other_run,) = [
            row.run_id for row in (await midrun.runs()).items if row.run_id != run_id
        ]
    for seq in range(1, last + 1):
        line = read_line(path, seq)
        at = len(line) // 2
        byte = b"7" if line[at : at + 1] != b"7" else b"8"
        changed = line[:at] + byte + line[at + 1 :]
        execute_sql(path, _build_update(seq, changed))
        assert await verify_run(path, run_id) == (False, [seq])
        execute_sql(path, _build_update(seq, line))
    assert await verify_run(path, run_id) == (True, [])
    assert await verify_run(path, other_run) == (True, [])


def _build_update(seq: int, line: bytes) -> str:
    where = f"no = 1 AND seq = {seq}"
    return f"UPDATE midrun_entries SET line = decode('{line.hex()}', 'hex') WHERE {where}"  # noqa: S608 - a number and hex


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("phase", "'paused'"),
        ("agent", "'eve'"),
        ("thread", "'theirs'"),
        ("parent", "'run_other'"),
        ("owner", "'eve'"),
        ("attention", "'ask'"),
        ("wake_at", "1"),
        ("epoch", "7"),
        ("started_at", "7"),
    ],
)
async def test_a_row_that_differs_from_its_journal_is_found(
    column: str, value: str, stored_run: tuple[Path, str, int]
) -> None:
    """Lists, leases and timers use the columns: a change could hide a run or keep it idle."""
    path, run_id, last = stored_run
    execute_sql(path, f"UPDATE midrun_runs SET {column} = {value} WHERE no = 1")  # noqa: S608 - a column and a value of the list above
    async with Midrun(get_store_url(path)) as midrun:
        (problem,) = (await midrun.verify(run_id)).problems
    assert (problem.invariant, problem.seq) == ("I2", last)
    assert f"The row has {column} " in problem.text


async def test_a_label_that_was_added_by_hand_is_found(
    stored_run: tuple[Path, str, int],
) -> None:
    """Halts and limits apply to labels."""
    path, run_id, last = stored_run
    execute_sql(path, "INSERT INTO midrun_labels (label, no) VALUES ('paid', 1)")
    assert await verify_run(path, run_id) == (False, [last])


CHANGE_AMOUNT = make_replace_sql("100", "900", where="no = 1")
CHANGE_NAME = make_replace_sql("bob", "eve", where="no = 1")
CHANGES = {
    "an amount": CHANGE_AMOUNT,
    "a name": CHANGE_NAME,
    "an entry removed": "DELETE FROM midrun_entries WHERE no = 1 AND seq = 5",
    "the last entries removed": "DELETE FROM midrun_entries WHERE no = 1 AND seq > 9",
}


@pytest.mark.parametrize("how", CHANGES)
async def test_a_changed_journal_is_found_at_its_first_bad_entry(
    how: str, stored_run: tuple[Path, str, int]
) -> None:
    path, run_id, last = stored_run
    pause_seq = next(n for n in range(1, last + 1) if b"bob" in read_line(path, n))
    execute_sql(path, CHANGES[how])
    first = {
        "an amount": 1,
        "a name": pause_seq,
        "an entry removed": 5,
        "the last entries removed": 10,
    }[how]
    assert await verify_run(path, run_id) == (False, [first])


async def test_swapped_entries_are_found(stored_run: tuple[Path, str, int]) -> None:
    """They keep their hashes; the chain covers the order."""
    path, run_id, _ = stored_run
    execute_sql(
        path,
        "UPDATE midrun_entries SET seq = -4 WHERE no = 1 AND seq = 4",
        "UPDATE midrun_entries SET seq = 4 WHERE no = 1 AND seq = 5",
        "UPDATE midrun_entries SET seq = 5 WHERE no = 1 AND seq = -4",
    )
    assert await verify_run(path, run_id) == (False, [4])


async def test_an_entry_of_another_run_is_found(stored_run: tuple[Path, str, int]) -> None:
    """A chain belongs to its run."""
    path, run_id, _ = stored_run
    execute_sql(
        path,
        "DELETE FROM midrun_entries WHERE no = 1 AND seq = 1",
        "INSERT INTO midrun_entries (no, seq, line, hash) "
        "SELECT 1, seq, line, hash FROM midrun_entries WHERE no = 2 AND seq = 1",
    )
    assert await verify_run(path, run_id) == (False, [1])


async def test_a_run_with_a_changed_journal_is_not_driven(path: Path) -> None:
    """The worker still drives the other runs of the store."""
    tools = ControllableTools()
    agent = tools.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    async with Midrun(get_store_url(path), agents=[agent]) as midrun:
        run = await midrun.start("actor", "Pay 100")
        await tools.start("a").wait()
        await run.pause()
        tools.gate("a").set()
        await run.until("paused")
    execute_sql(path, CHANGE_AMOUNT)
    async with Midrun(get_store_url(path), agents=[agent]) as midrun:
        changed_run: Run = await midrun.get(run.id)
        with pytest.raises(JournalCorrupt) as refused:
            await changed_run.resume()
        assert refused.value.seq == 1
        other = await midrun.start("actor", "Another")
        await other.until("completed")
    assert tools.completed == ["a", "a", "b"]
