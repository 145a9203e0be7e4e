"""No secret reaches a file, a feed, a report, a checkpoint or a log; tools have them all."""

import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import anyio
import httpx2
import msgspec
import pytest

from midrun import Actor, Agent, Midrun
from midrun.core.entries import CallFailed
from midrun.driver.live import Delta
from midrun.models import Use
from midrun.runs.run import Run
from midrun.runs.values import FeedEntry
from midrun.server import app
from tests.scenarios.redaction.office import HEADER, PASSWORD, SECRETS, SESSION, Office, copied
from tests.support.processes import ROOT
from tests.unit.server.conftest import PATIENCE, listening


@pytest.fixture(autouse=True)
async def _bounded() -> AsyncIterator[None]:
    with anyio.fail_after(60):
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give the file that the test's runs are kept in."""
    return tmp_path / "runs.db"


def leaks(*texts: object) -> list[str]:
    """Return which secrets are in `texts`."""
    return [secret for secret in SECRETS for text in texts if secret in str(text)]


def files(path: Path) -> list[str]:
    """Return everything that is in the folder of the store, byte for byte."""
    return [
        one.read_bytes().decode("latin-1") for one in path.parent.iterdir() if one.is_file()
    ]


async def everything(run: Run, midrun: Midrun) -> list[object]:
    """Return all that can be looked at of a run."""
    lines = await midrun.store.read_lines(run.id)
    seen: list[object] = [line.decode() for line, _ in lines]
    seen += [await run.view(), await run.report(), await midrun.store.get_row(run.id)]
    if (await run.view()).phase not in {"completed", "cancelled"}:
        seen.append((await run.checkpoint()).to_json())
    token = "t" * 43
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        listening(app(midrun, token=token)) as port,
        httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=PATIENCE
        ) as client,
    ):
        for what in ("", "/events?limit=256", "/effects", "/commands"):
            reply = await client.get(f"/v1/runs/{run.id}{what}")
            assert reply.status_code == 200, reply.text
            seen.append(reply.text)
    return seen


Opened = Callable[[Agent], Midrun]


@pytest.fixture
def opened(path: Path, caplog: pytest.LogCaptureFixture) -> Opened:
    """Give what opens a `Midrun`; whatever is logged is kept."""
    caplog.set_level(logging.DEBUG)
    return lambda agent: Midrun(f"sqlite:///{path}", agents=[agent])


async def test_a_whole_run_leaves_no_secret_anywhere(
    opened: Opened, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Arguments, results, errors, notes, progress, words, and what is made of them."""
    office = Office()
    agent = office.agent(
        [f"I log in with {PASSWORD}.", Use("login", user="ann", password=PASSWORD)],
        copied("fetch", "session_token", url="https://host"),
        Use("fail", password=PASSWORD),
        Use("ask"),
        f"The password is {PASSWORD}, the session {SESSION}.",
    )
    live: list[object] = []
    async with opened(agent) as midrun:
        run = await midrun.start(agent, "Log in.")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch, run, live)
            await run.until("waiting")
            assert not leaks(*await everything(run, midrun))
            await run.answer({"password": PASSWORD, "ok": True}, actor="ann")
            await run.until("completed")
        assert office.given == [("ann", PASSWORD), (SESSION, "https://host")]
        assert not leaks(*await everything(run, midrun))
        assert await midrun.verify(run.id)
    notes = [item for item in live if isinstance(item, Delta) and item.kind == "note"]
    assert notes
    assert not leaks(*(item for item in live if isinstance(item, FeedEntry)), *notes)
    assert not leaks(*files(path))
    assert not leaks(caplog.text)
    assert HEADER not in caplog.text


async def _watch(run: Run, seen: list[object]) -> None:
    async with aclosing(run.feed()) as feed:
        seen.extend([item async for item in feed])


async def test_a_tool_in_a_process_of_its_own_has_the_secret(
    opened: Opened, path: Path
) -> None:
    """It is handed over through a pipe: not in its arguments, nor in its environment."""
    agent = Office().agent(Use("blocking_login", user="ann", password=PASSWORD), "Done.")
    async with opened(agent) as midrun:
        run = await midrun.start(agent, "Log in.")
        await run.until("completed")
        seen = [item.entry async for item in run.feed() if isinstance(item, FeedEntry)]
        assert any("ann: True" in repr(entry) for entry in seen)
    assert not leaks(*files(path))


async def test_an_undo_has_it_too(opened: Opened, path: Path) -> None:
    """As long as this process knows it; in another it would be given the placeholder."""
    office = Office()
    agent = office.agent(Use("login", user="ann", password=PASSWORD), Use("ask"), "Never said.")
    async with opened(agent) as midrun:
        run = await midrun.start(agent, "Log in.")
        await run.until("waiting")
        await run.cancel(undo="all", actor="ann")
        await run.until("cancelled")
    ((args, result),) = office.undone
    assert args == {"user": "ann", "password": PASSWORD}
    assert result == {"user": "ann", "session_token": SESSION}
    assert not leaks(*files(path))


async def test_a_call_whose_secret_is_lost_is_not_made_and_the_agent_is_told(
    opened: Opened, path: Path
) -> None:
    """A password that reads [redacted:…] would be refused by the far end at best."""
    office = Office()
    turns = (Use("gated_login", user="ann", password=PASSWORD), "Told of it.")
    async with opened(office.agent(*turns)) as midrun:
        run = await midrun.start("clerk", "Log in.")
        view = await run.until("waiting")
        assert not leaks(*view.asks)
    command = [sys.executable, "-m", "tests.scenarios.redaction.elsewhere", str(path), run.id]
    ended = await anyio.run_process(command, cwd=ROOT, stderr=None)
    assert ended.stdout == b"[]\n"
    async with Midrun(f"sqlite:///{path}") as midrun:
        run = await midrun.get(run.id)
        entries = [item.entry async for item in run.feed() if isinstance(item, FeedEntry)]
        (failed,) = [entry for entry in entries if isinstance(entry, CallFailed)]
        assert failed.code == "redacted"
        assert await midrun.verify(run.id)
    assert not leaks(*files(path))


async def test_an_approved_call_has_its_secret_in_the_process_that_heard_it(
    opened: Opened, path: Path
) -> None:
    """The approval is for the arguments as they are shown, and as they are journaled."""
    office = Office()
    agent = office.agent(Use("gated_login", user="ann", password=PASSWORD), "Done.")
    async with opened(agent) as midrun:
        run = await midrun.start(agent, "Log in.")
        await run.until("waiting")
        await run.approve(args={"user": "bob", "password": "an0ther-pass"}, actor="ann")
        await run.until("completed")
        assert await midrun.verify(run.id)
    assert office.given == [("bob", "an0ther-pass")]
    assert not [text for text in files(path) if "an0ther-pass" in text]


async def test_what_people_write_is_searched_by_the_users_own_function(path: Path) -> None:
    """Nobody's tool is called password when a person types one into a chat."""

    def find(name: str, text: str) -> list[str]:
        del name
        return [word for word in text.split() if word.startswith("sk-")]

    office = Office()
    agent = office.agent(
        Use("plan", items=["use sk-012 first", "then rest"]),
        Use("ask"),
        Use("send", body="Use sk-789 today"),
        "Done.",
        "And sk-123 .",
    )
    address = f"sqlite:///{path}"
    async with Midrun(address, agents=[agent], redact=find) as midrun:
        run = await midrun.start(agent, "The key is sk-123 .", actor=Actor(name="ann"))
        await run.until("waiting")
        await run.say("another is sk-456 .", urgency="later", actor="ann", reason="for sk-456")
        await run.answer("it is sk-123 .", actor="ann")
        await run.until("completed")
    assert office.given == [("Use sk-789 today",)]
    for text in files(path):
        assert not [key for key in ("sk-012", "sk-123", "sk-456", "sk-789") if key in text]


async def test_a_child_is_given_placeholders_and_no_secret(path: Path) -> None:
    """Its task is a journal entry like any other."""
    office = Office()
    inner = office.agent("Done.", name="inner")
    outer = Agent(
        "outer",
        model=office.agent(
            Use("inner", task='{"password": "' + PASSWORD + '"}'), "Done."
        ).model,
        tools=[inner.as_tool()],
    )
    async with Midrun(f"sqlite:///{path}", agents=[outer]) as midrun:
        run = await midrun.start(outer, "Have it done.")
        await run.until("completed")
    assert not leaks(*files(path))


async def test_a_long_runs_snapshot_has_none(opened: Opened, path: Path) -> None:
    """A cache of the journal is made of the journal."""
    office = Office()
    turns = [Use("login", user=str(n), password=PASSWORD) for n in range(60)]
    agent = office.agent(*turns, "Done.")
    async with opened(agent) as midrun:
        run = await midrun.start(agent, "Log in, often.")
        await run.until("completed")
        assert await midrun.store.load_snapshot(run.id) is not None
        lines = await midrun.store.read_lines(run.id)
        uses = {
            msgspec.json.encode(use["args"]["password"])
            for line, _ in lines
            if "reply" in (entry := msgspec.json.decode(line).get("entry", {}))
            for use in entry["reply"].get("uses", [])
        }
        assert len(uses) <= 1, "equal secrets look equal"
    assert {password for _, password in office.given} == {PASSWORD}
    assert not leaks(*files(path))


async def test_it_can_be_turned_off(path: Path) -> None:
    """Then the journal has what was said, and any process can go on from it."""
    agent = Office().agent(Use("login", user="ann", password=PASSWORD), "Done.")
    async with Midrun(f"sqlite:///{path}", agents=[agent], redact=False) as midrun:
        run = await midrun.start(agent, "Log in.")
        await run.until("completed")
    assert leaks(*files(path))
