"""Every fact is on record.

What the agent did and why, who pressed what and when, in one append-only journal whose entries
are tied together by hashes. What was changed afterwards is found, and where.
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
from midrun.driver.live import Delta
from midrun.errors import JournalCorrupt
from midrun.models import Use
from midrun.ports.model import Finished, Piece, Prompt, Unpriced
from midrun.stops import MaxSteps
from tests.scenarios.promises.office import office, script
from tests.scenarios.promises.seen import entries, journal, kinds
from tests.support.hands import UNDONE, by_hand, replaced
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools

# ── who, what, why ────────────────────────────────────────────────────────────────────────


async def test_who_asked_for_what_and_why_stands_in_the_journal(opened: Opener) -> None:
    """Each control with its actor, the actor's role, the reason and the words."""
    stage = ControllableTools()
    agent = stage.agent(Use("slow", name="a"), Use("slow", name="b"), "Done.", stop=MaxSteps(9))
    midrun = await opened(agent)
    run = await midrun.start("actor", "Sort it", actor="ada", labels=["mail"], thread="t1")
    await stage.start("a").wait()
    await run.raise_cap(steps=20, actor="operator:olga", reason="big one")
    await run.pause(actor="bob", reason="lunch")
    stage.gate("a").set()
    await run.until("paused")
    await run.resume("Be quick", actor="ada", reason="back")
    await stage.start("b").wait()
    await run.redirect("Use French", actor="bob", reason="the client asked")
    await run.cancel(actor="operator:olga", reason="enough")
    await run.until("cancelled")
    (started,) = await entries(run, RunStarted)
    assert (started.task, started.by, started.agent) == ("Sort it", "ada", "actor")
    assert (started.labels, started.thread) == (("mail",), "t1")
    assert started.agent_print == agent.fingerprint
    told = [
        (type(entry).__name__, entry.by, entry.role, entry.reason)
        for entry in await journal(run)
        if isinstance(
            entry, CapRaised | PauseRequested | RunResumed | RedirectRequested | CancelRequested
        )
    ]
    assert told == [
        ("CapRaised", "olga", "operator", "big one"),
        ("PauseRequested", "bob", "user", "lunch"),
        ("RunResumed", "ada", "user", "back"),
        ("RedirectRequested", "bob", "user", "the client asked"),
        ("CancelRequested", "olga", "operator", "enough"),
    ]
    assert (await entries(run, RunResumed))[0].instruction == "Be quick"
    assert (await entries(run, RedirectRequested))[0].text == "Use French"


@pytest.mark.parametrize("answer", ["approve", "decline"])
async def test_who_decided_about_a_call_stands_in_the_journal(
    answer: str, opened: Opener, tmp_path: Path
) -> None:
    """With the reason, whichever way it was decided."""
    midrun = await opened(office(*script("pay", str(tmp_path / "book.txt"))))
    run = await midrun.start("office", "go")
    await run.until("waiting")
    if answer == "approve":
        await run.approve(actor="ada", reason="small sum")
    else:
        await run.decline("small sum", actor="ada")
    await run.until("completed")
    (decided,) = await entries(run, AskAnswered)
    assert (decided.by, decided.decision.choice) == ("ada", answer)
    assert decided.reason == "small sum"


async def test_why_the_agent_makes_a_call_is_on_record_and_no_argument_of_the_tool(
    opened: Opener,
) -> None:
    """Every tool is offered with a place to say why; none is given it."""
    stage = ControllableTools()
    midrun = await opened(
        stage.agent(["Let me look. ", Use("quick", name="a", why="the bill is due")], "Done.")
    )
    run = await midrun.start("actor", "go")
    await run.until("completed")
    asked, made, _ = await entries(run, CallDone)
    assert asked.reply is not None
    (use,) = asked.reply.uses
    assert (use.why, use.args) == ("the bill is due", {"name": "a"})
    assert asked.reply.text == "Let me look. "
    assert made.result == "a done"
    for spec in midrun.agents["actor"].specs:
        properties = spec.schema["properties"]  # type: ignore[index]  # a JSON Schema
        assert "why" in properties


class Thinker(Unpriced):
    """Thinks before it speaks."""

    name = "thinker"

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Think, and speak."""
        del prompt
        yield self._pieces()

    async def _pieces(self) -> AsyncIterator[Piece | Finished]:
        yield Piece(kind="thinking", text="Six times seven.")
        yield Piece(kind="text", text="42")
        yield Finished(reply=Reply(text="42", thinking="Six times seven."))


async def test_what_the_model_thought_is_on_record_with_what_it_said(opened: Opener) -> None:
    """So that a decision can be understood afterwards."""
    midrun = await opened(Agent("actor", model=Thinker()))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    (said,) = await entries(run, CallDone)
    assert said.reply is not None
    assert (said.reply.thinking, said.reply.text) == ("Six times seven.", "42")


async def test_a_request_that_changed_nothing_is_on_record_too(opened: Opener) -> None:
    """Somebody pressed the button; that it was a no-op, or refused, is a fact as well."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.resume(actor="ada", request_id="r1")
    with pytest.raises(ControlRefused):
        await run.resume("hurry", actor="bob", request_id="r2")
    noted = [(n.by, n.verdict, n.refused) for n in await entries(run, RequestNoted)]
    assert noted == [("ada", "already_running", False), ("bob", "not_paused", True)]
    stage.gate("a").set()
    await run.until("completed")


async def test_the_feed_is_the_journal(opened: Opener) -> None:
    """Everything that stands there, in its place; from any place on, and nothing twice."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("quick", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    items = [item async for item in run.feed() if not isinstance(item, Delta)]
    assert [item.entry for item in items] == await journal(run)
    assert [item.kind for item in items] == await kinds(run)
    later = [item async for item in run.feed(after=4)]
    assert [item.seq for item in later] == [item.seq for item in items][4:]
    assert all(one.at <= other.at for one, other in pairwise(items))


# ── and nobody changed it ─────────────────────────────────────────────────────────────────


@pytest.fixture
async def told(path: Path) -> tuple[Path, str, int]:
    """Give a store with a run that was paused and resumed, and another one beside it."""
    stage = ControllableTools()
    agent = stage.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    async with Midrun(kept_at(path), agents=[agent]) as midrun:
        run = await midrun.start("actor", "Pay 100 to ada")
        await stage.start("a").wait()
        await run.pause(actor="bob", reason="lunch")
        stage.gate("a").set()
        await run.until("paused")
        await run.resume(actor="bob")
        await run.until("completed")
        other = await midrun.start("actor", "Another")
        assert isinstance(await other.result(), Completed)
        assert await midrun.verify(run.id)
        return path, run.id, (await run.view()).seq


def line_of(path: Path, seq: int) -> bytes:
    """Return a stored line of the first run."""
    wanted = f"SELECT line FROM midrun_entries WHERE no = 1 AND seq = {seq}"  # noqa: S608 - a number
    ((line,),) = by_hand(path, wanted)
    assert isinstance(line, bytes)
    return line


async def verdict(path: Path, run_id: str) -> tuple[bool, list[int]]:
    """Return whether a run is clean, and which entries are named if not."""
    async with Midrun(kept_at(path)) as midrun:
        found = await midrun.verify(run_id)
        return bool(found), [problem.seq for problem in found.problems]


async def test_an_entry_can_neither_be_changed_nor_removed_by_mistake(
    told: tuple[Path, str, int],
) -> None:
    """The store itself refuses, also to somebody with a database tool."""
    path, run_id, _ = told
    for statement in ("UPDATE midrun_entries SET line = line", "DELETE FROM midrun_entries"):
        with pytest.raises(UNDONE, match="never"):
            by_hand(path, statement, guarded=True)
    assert await verdict(path, run_id) == (True, [])


async def test_one_changed_byte_is_found_wherever_it_is(told: tuple[Path, str, int]) -> None:
    """In every entry: the first bad one is named, and the run beside it is clean."""
    path, run_id, last = told
    async with Midrun(kept_at(path)) as midrun:
        (beside,) = [row.run_id for row in (await midrun.runs()).items if row.run_id != run_id]
    for seq in range(1, last + 1):
        line = line_of(path, seq)
        at = len(line) // 2
        other = b"7" if line[at : at + 1] != b"7" else b"8"
        changed = line[:at] + other + line[at + 1 :]
        by_hand(path, _put(seq, changed))
        assert await verdict(path, run_id) == (False, [seq])
        by_hand(path, _put(seq, line))
    assert await verdict(path, run_id) == (True, [])
    assert await verdict(path, beside) == (True, [])


def _put(seq: int, line: bytes) -> str:
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
async def test_a_row_that_says_something_else_than_its_journal_is_found(
    column: str, value: str, told: tuple[Path, str, int]
) -> None:
    """Lists, leases and wake-ups go by its columns: a run could be hidden, or never driven."""
    path, run_id, last = told
    by_hand(path, f"UPDATE midrun_runs SET {column} = {value} WHERE no = 1")  # noqa: S608 - as given above
    async with Midrun(kept_at(path)) as midrun:
        (problem,) = (await midrun.verify(run_id)).problems
    assert (problem.invariant, problem.seq) == ("I2", last)
    assert f"The row has {column} " in problem.text


async def test_a_label_that_was_added_by_hand_is_found(told: tuple[Path, str, int]) -> None:
    """A halt or a limit for a label would cover the run, or not."""
    path, run_id, last = told
    by_hand(path, "INSERT INTO midrun_labels (label, no) VALUES ('paid', 1)")
    assert await verdict(path, run_id) == (False, [last])


AMOUNT = replaced("100", "900", where="no = 1")
NAME = replaced("bob", "eve", where="no = 1")
SPOILING = {
    "a fact": AMOUNT,
    "a name": NAME,
    "one removed": "DELETE FROM midrun_entries WHERE no = 1 AND seq = 5",
    "the end cut off": "DELETE FROM midrun_entries WHERE no = 1 AND seq > 9",
}


@pytest.mark.parametrize("how", SPOILING)
async def test_whatever_was_changed_is_found(how: str, told: tuple[Path, str, int]) -> None:
    """Facts, people, missing entries, a missing end: the first bad place is named."""
    path, run_id, last = told
    pressed = next(n for n in range(1, last + 1) if b"bob" in line_of(path, n))
    by_hand(path, SPOILING[how])
    first = {"a fact": 1, "a name": pressed, "one removed": 5, "the end cut off": 10}[how]
    assert await verdict(path, run_id) == (False, [first])


async def test_entries_that_changed_places_are_found(told: tuple[Path, str, int]) -> None:
    """With their own hashes, too: the order is part of what is told."""
    path, run_id, _ = told
    by_hand(
        path,
        "UPDATE midrun_entries SET seq = -4 WHERE no = 1 AND seq = 4",
        "UPDATE midrun_entries SET seq = 4 WHERE no = 1 AND seq = 5",
        "UPDATE midrun_entries SET seq = 5 WHERE no = 1 AND seq = -4",
    )
    assert await verdict(path, run_id) == (False, [4])


async def test_an_entry_of_another_run_is_found(told: tuple[Path, str, int]) -> None:
    """A chain belongs to its run."""
    path, run_id, _ = told
    by_hand(
        path,
        "DELETE FROM midrun_entries WHERE no = 1 AND seq = 1",
        "INSERT INTO midrun_entries (no, seq, line, hash) "
        "SELECT 1, seq, line, hash FROM midrun_entries WHERE no = 2 AND seq = 1",
    )
    assert await verdict(path, run_id) == (False, [1])


async def test_a_run_whose_journal_was_changed_is_not_driven_on(path: Path) -> None:
    """Nobody acts on what was not written; the other runs go on."""
    stage = ControllableTools()
    agent = stage.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    async with Midrun(kept_at(path), agents=[agent]) as midrun:
        run = await midrun.start("actor", "Pay 100")
        await stage.start("a").wait()
        await run.pause()
        stage.gate("a").set()
        await run.until("paused")
    by_hand(path, AMOUNT)
    async with Midrun(kept_at(path), agents=[agent]) as midrun:
        changed: Run = await midrun.get(run.id)
        with pytest.raises(JournalCorrupt) as refused:
            await changed.resume()
        assert refused.value.seq == 1
        other = await midrun.start("actor", "Another")
        await other.until("completed")
    assert stage.completed == ["a", "a", "b"]
