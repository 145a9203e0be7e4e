"""Secrets reach the tools, but no file, feed, report, checkpoint or log."""

import logging
import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import anyio
import httpx2
import msgspec
import pytest

from midrun import Actor, Agent, Midrun
from midrun.core.entries import CallFailed
from midrun.driver.delta import Delta
from midrun.models import Use
from midrun.runs.run import Run
from midrun.runs.values import FeedEntry
from midrun.server import app
from tests.support.paths import ROOT
from tests.support.secret_tools import (
    AUTH_HEADER,
    PASSWORD,
    SECRETS,
    SESSION,
    SecretTools,
    use_last_result,
)
from tests.unit.server.conftest import TIMEOUT_S, serve_on_loopback

pytestmark = pytest.mark.usefixtures("time_limit")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the store."""
    return tmp_path / "runs.db"


def find_secrets(*texts: object) -> list[str]:
    """Return the secrets that occur in `texts`."""
    return [secret for secret in SECRETS for text in texts if secret in str(text)]


def read_store_files(path: Path) -> list[str]:
    """Return the content of all files in the folder of the store."""
    files = (file for file in path.parent.iterdir() if file.is_file())
    return [file.read_bytes().decode("latin-1") for file in files]


async def read_all_views(run: Run, midrun: Midrun) -> list[object]:
    """Return a run in all forms: lines, view, report, row, checkpoint, HTTP replies."""
    lines = await midrun.store.read_lines(run.id)
    seen: list[object] = [line.decode() for line, _ in lines]
    seen += [await run.view(), await run.report(), await midrun.store.get_row(run.id)]
    if (await run.view()).phase not in {"completed", "cancelled"}:
        seen.append((await run.checkpoint()).to_json())
    token = "t" * 43
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        serve_on_loopback(app(midrun, token=token)) as port,
        httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=TIMEOUT_S
        ) as client,
    ):
        for route in ("", "/events?limit=256", "/effects", "/commands"):
            reply = await client.get(f"/v1/runs/{run.id}{route}")
            assert reply.status_code == 200, reply.text
            seen.append(reply.text)
    return seen


OpenMidrun = Callable[[Agent], Midrun]


@pytest.fixture
def open_midrun(path: Path, caplog: pytest.LogCaptureFixture) -> OpenMidrun:
    """Return a function that opens a `Midrun`; all log messages are captured."""
    caplog.set_level(logging.DEBUG)
    return lambda agent: Midrun(f"sqlite:///{path}", agents=[agent])


async def test_a_whole_run_leaves_no_secret_anywhere(
    open_midrun: OpenMidrun, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Arguments, results, errors, notes, progress, messages, and all views of them."""
    secret_tools = SecretTools()
    agent = secret_tools.make_agent(
        [f"I log in with {PASSWORD}.", Use("login", user="ann", password=PASSWORD)],
        use_last_result("fetch", "session_token", url="https://host"),
        Use("fail", password=PASSWORD),
        Use("ask"),
        f"The password is {PASSWORD}, the session {SESSION}.",
    )
    live: list[object] = []
    async with open_midrun(agent) as midrun:
        run = await midrun.start(agent, "Log in.")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_follow_feed, run, live)
            await run.until("waiting")
            assert not find_secrets(*await read_all_views(run, midrun))
            await run.answer({"password": PASSWORD, "ok": True}, actor="ann")
            await run.until("completed")
        assert secret_tools.received_args == [("ann", PASSWORD), (SESSION, "https://host")]
        assert not find_secrets(*await read_all_views(run, midrun))
        assert await midrun.verify(run.id)
    notes = [item for item in live if isinstance(item, Delta) and item.kind == "note"]
    assert notes
    assert not find_secrets(*(item for item in live if isinstance(item, FeedEntry)), *notes)
    assert not find_secrets(*read_store_files(path))
    assert not find_secrets(caplog.text)
    assert AUTH_HEADER not in caplog.text


async def _follow_feed(run: Run, seen: list[object]) -> None:
    async with aclosing(run.feed()) as feed:
        seen.extend([item async for item in feed])


async def test_a_tool_in_a_subprocess_gets_the_secret(
    open_midrun: OpenMidrun, path: Path
) -> None:
    """The secret is sent through a pipe, not in the command line or the environment."""
    agent = SecretTools().make_agent(
        Use("blocking_login", user="ann", password=PASSWORD), "Done."
    )
    async with open_midrun(agent) as midrun:
        run = await midrun.start(agent, "Log in.")
        await run.until("completed")
        seen = [item.entry async for item in run.feed() if isinstance(item, FeedEntry)]
        assert any("ann: True" in repr(entry) for entry in seen)
    assert not find_secrets(*read_store_files(path))


async def test_an_undo_gets_the_secret(open_midrun: OpenMidrun, path: Path) -> None:
    """The undo runs in the process that knows the secret; another has the placeholder."""
    secret_tools = SecretTools()
    agent = secret_tools.make_agent(
        Use("login", user="ann", password=PASSWORD), Use("ask"), "Never said."
    )
    async with open_midrun(agent) as midrun:
        run = await midrun.start(agent, "Log in.")
        await run.until("waiting")
        await run.cancel(undo="all", actor="ann")
        await run.until("cancelled")
    ((args, result),) = secret_tools.undone_calls
    assert args == {"user": "ann", "password": PASSWORD}
    assert result == {"user": "ann", "session_token": SESSION}
    assert not find_secrets(*read_store_files(path))


async def test_a_call_whose_secret_is_lost_fails_without_being_made(
    open_midrun: OpenMidrun, path: Path
) -> None:
    """Another process has only the placeholder, and must not send that as a password."""
    secret_tools = SecretTools()
    turns = (Use("gated_login", user="ann", password=PASSWORD), "Told of it.")
    async with open_midrun(secret_tools.make_agent(*turns)) as midrun:
        run = await midrun.start("clerk", "Log in.")
        view = await run.until("waiting")
        assert not find_secrets(*view.asks)
    command = [
        sys.executable,
        "-m",
        "tests.scenarios.redaction.approver_process",
        str(path),
        run.id,
    ]
    ended = await anyio.run_process(command, cwd=ROOT, stderr=None)
    assert ended.stdout == b"[]\n"
    async with Midrun(f"sqlite:///{path}") as midrun:
        run = await midrun.get(run.id)
        entries = [item.entry async for item in run.feed() if isinstance(item, FeedEntry)]
        (failed,) = [entry for entry in entries if isinstance(entry, CallFailed)]
        assert failed.code == "redacted"
        assert await midrun.verify(run.id)
    assert not find_secrets(*read_store_files(path))


async def test_an_approved_call_gets_the_secret_that_the_approver_wrote(
    open_midrun: OpenMidrun, path: Path
) -> None:
    """The journal has the placeholder of the edited argument."""
    secret_tools = SecretTools()
    agent = secret_tools.make_agent(Use("gated_login", user="ann", password=PASSWORD), "Done.")
    async with open_midrun(agent) as midrun:
        run = await midrun.start(agent, "Log in.")
        await run.until("waiting")
        await run.approve(args={"user": "bob", "password": "an0ther-pass"}, actor="ann")
        await run.until("completed")
        assert await midrun.verify(run.id)
    assert secret_tools.received_args == [("bob", "an0ther-pass")]
    assert not [text for text in read_store_files(path) if "an0ther-pass" in text]


async def test_messages_of_people_are_searched_by_the_redact_function(path: Path) -> None:
    """A secret in a chat message has no field name by which it could be found."""

    def find(name: str, text: str) -> list[str]:
        del name
        return [word for word in text.split() if word.startswith("sk-")]

    secret_tools = SecretTools()
    agent = secret_tools.make_agent(
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
    assert secret_tools.received_args == [("Use sk-789 today",)]
    for text in read_store_files(path):
        assert not [key for key in ("sk-012", "sk-123", "sk-456", "sk-789") if key in text]


async def test_a_child_run_gets_placeholders_in_its_task(path: Path) -> None:
    """The task of a child run is journaled."""
    secret_tools = SecretTools()
    inner = secret_tools.make_agent("Done.", name="inner")
    outer = Agent(
        "outer",
        model=secret_tools.make_agent(
            Use("inner", task='{"password": "' + PASSWORD + '"}'), "Done."
        ).model,
        tools=[inner.as_tool()],
    )
    async with Midrun(f"sqlite:///{path}", agents=[outer]) as midrun:
        run = await midrun.start(outer, "Have it done.")
        await run.until("completed")
    assert not find_secrets(*read_store_files(path))


async def test_the_snapshot_of_a_long_run_has_no_secret(
    open_midrun: OpenMidrun, path: Path
) -> None:
    secret_tools = SecretTools()
    turns = [Use("login", user=str(n), password=PASSWORD) for n in range(60)]
    agent = secret_tools.make_agent(*turns, "Done.")
    async with open_midrun(agent) as midrun:
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
        assert len(uses) <= 1, "equal secrets have the same placeholder"
    assert {password for _, password in secret_tools.received_args} == {PASSWORD}
    assert not find_secrets(*read_store_files(path))


async def test_with_redact_false_the_journal_has_the_secrets(path: Path) -> None:
    """Then any process can continue the run."""
    agent = SecretTools().make_agent(Use("login", user="ann", password=PASSWORD), "Done.")
    async with Midrun(f"sqlite:///{path}", agents=[agent], redact=False) as midrun:
        run = await midrun.start(agent, "Log in.")
        await run.until("completed")
    assert find_secrets(*read_store_files(path))
