"""The command `midrun demo`: link and terminal, a restart after a kill, and options."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import httpx2
import pexpect  # type: ignore[import-untyped]  # it ships none
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from midrun import Midrun
from midrun.cli.demo import PAGE_TIPS, TERMINAL_TIPS, describe_stop
from midrun.cli.parser import UsageError, build_parser
from midrun.core.entries import CallAborted, CallDone, Entry
from midrun.core.values import Phase, Reply
from midrun.demo.agents import (
    AGENT_NAME,
    MODEL_BY_API_KEY,
    SCRIPTED_MODEL,
    build_researcher,
    choose_model,
)
from midrun.demo.launch import Demo
from midrun.demo.page import has_screen
from midrun.demo.texts import TEXTS
from tests.support.paths import ROOT
from tests.support.providers import Answer, Call, Provider, Text
from tests.unit.demo.demo_run import NO_DELAY, TIMEOUT_S

ENV_WITHOUT_API_KEYS = {
    key: value for key, value in os.environ.items() if not key.endswith("_API_KEY")
}


class PrintingProcess:
    """A process, and the lines that it prints."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        self.process = process
        self._out = BufferedByteReceiveStream(process.stdout)

    async def read_line(self) -> str:
        """Return the next line."""
        return (await self._out.receive_until(b"\n", 10_000)).decode()


@asynccontextmanager
async def start_python(*command: str, cwd: Path = ROOT) -> AsyncIterator[PrintingProcess]:
    """Start a Python process."""
    with anyio.fail_after(TIMEOUT_S):
        async with await anyio.open_process(
            [sys.executable, *command], cwd=cwd, env=ENV_WITHOUT_API_KEYS, stderr=None
        ) as process:
            yield PrintingProcess(process)


def make_client(link: str) -> httpx2.AsyncClient:
    """Return an HTTP client that sends the token of a link."""
    base, _, token = link.partition("#token=")
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.AsyncClient(
        base_url=base.partition("/runs/")[0], headers=headers, timeout=TIMEOUT_S
    )


@pytest.mark.slow
async def test_the_command_prints_a_working_link_and_stops_on_sigint(
    tmp_path: Path,
) -> None:
    """The page needs no credential, its data does."""
    command = ["-m", "midrun", "demo", "--no-browser", "--port", "0", "--json"]
    async with start_python(*command, cwd=tmp_path) as demo:
        printed = json.loads(await demo.read_line())
        async with make_client(printed["url"]) as browser:
            page = await browser.get(printed["url"])
            assert page.status_code == 200
            assert "text/html" in page.headers["content-type"]
            run = (await browser.get(f"/v1/runs/{printed['run_id']}")).json()
            assert run["task"] == TEXTS.task
            assert run["phase"] in {"queued", "running"}
            refused = await browser.get("/v1/runs", headers={"Authorization": "Bearer no"})
            assert refused.status_code == 401
        demo.process.send_signal(signal.SIGINT)
        assert await demo.process.wait() == 0
    assert (tmp_path / "midrun-demo" / "runs.db").is_file()
    async with Demo(store=f"sqlite:///{tmp_path}/midrun-demo/runs.db").build_midrun() as mid:
        row = await mid.store.get_row(printed["run_id"])
        assert await mid.verify(row.run)


@pytest.mark.slow
async def test_a_paused_run_survives_a_kill_and_continues_in_its_sentence(
    tmp_path: Path,
) -> None:
    """The second process finds the run and resumes it with the next word."""
    async with start_python(
        "-m", "tests.unit.demo.demo_process", str(tmp_path), "sentence,"
    ) as first:
        link, run, how = (await first.read_line()).split()
        assert how == "new"
        assert await first.read_line() == "reached"
        async with make_client(link) as browser:
            await browser.post(f"/v1/runs/{run}/pause", json={})
            wait = {"Prefer": f"wait={TIMEOUT_S}"}
            await browser.get(f"/v1/runs/{run}?until=paused", headers=wait)
        first.process.send_signal(signal.SIGKILL)
        await first.process.wait()
    async with start_python(
        "-m", "tests.unit.demo.demo_process", str(tmp_path), "soil."
    ) as second:
        link, found_run, how = (await second.read_line()).split()
        assert (found_run, how) == (run, "paused")
        async with make_client(link) as browser:
            body = {"instruction": "Go on"}
            reply = await browser.post(f"/v1/runs/{run}/resume", json=body)
            assert reply.status_code == 202, reply.text
            assert await second.read_line() == "reached"
        second.process.send_signal(signal.SIGTERM)
        await second.process.wait()
    async with Demo(store=f"sqlite:///{tmp_path}/runs.db").build_midrun() as mid:
        assert await mid.verify(run)
        records = await mid.store.read((await mid.get(run)).id)
    replies = [text for record in records if (text := _get_model_text(record.entry))]
    cut = next(n for n, text in enumerate(replies) if text.endswith("middle of a "))
    rest = next(text for text in replies[cut + 1 :] if "sentence," in text)
    lead, _, rest = rest.partition(" … ")
    assert lead == "Going on."
    assert replies[cut] + rest == TEXTS.invitation


def start_demo_terminal(folder: Path, *, speed: str) -> "pexpect.spawn[str]":
    """Start the demo in `folder`, in a pseudo-terminal of its own."""
    return pexpect.spawn(
        sys.executable,
        ["-m", "midrun", "demo", "--terminal", "--speed", speed],
        cwd=folder,
        env=ENV_WITHOUT_API_KEYS | {"TERM": "xterm"},
        timeout=TIMEOUT_S,
        dimensions=(40, 150),
        encoding="utf-8",
    )


@pytest.mark.slow
def test_the_terminal_finds_the_waiting_run_again_after_a_detach(tmp_path: Path) -> None:
    for how in ("started", "found again, waiting (plan 4/7)"):
        terminal = start_demo_terminal(tmp_path, speed="inf")
        terminal.expect_exact(how)
        terminal.expect_exact("Waiting")
        terminal.send("d")
        terminal.expect_exact("The run is waiting (plan 4/7)")
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 75


@pytest.mark.slow
async def test_leaving_the_bar_prints_that_no_worker_drives_the_run(tmp_path: Path) -> None:
    """The process that drove the run ends with its bar."""
    terminal = start_demo_terminal(tmp_path, speed="0.01")
    terminal.expect_exact("Running")
    terminal.send("d")
    terminal.expect_exact("No worker drives the run now: it waits")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 75
    async with Midrun(f"sqlite:///{tmp_path}/midrun-demo/runs.db", engine=None) as mid:
        (view,) = (await mid.runs()).items
        assert (view.phase, await mid.store.list_holders()) == ("queued", {})


@pytest.mark.slow
async def test_the_option_terminal_is_refused_without_a_terminal() -> None:
    command = [sys.executable, "-m", "midrun", "demo", "--terminal"]
    done = await anyio.run_process(command, env=ENV_WITHOUT_API_KEYS, check=False)
    assert done.returncode == 2
    assert b"needs a terminal" in done.stderr


def _get_model_text(entry: Entry) -> str:
    """Return the text of a model at the end of its call."""
    match entry:
        case CallAborted(text=text):
            return text
        case CallDone(reply=Reply(text=text)):
            return text
        case _:
            return ""


# ── options and defaults ─────────────────────────────────────────────────────


async def test_an_open_run_is_continued_and_an_ended_run_is_followed_by_a_new_one(
    tmp_path: Path,
) -> None:
    demo = Demo(store=f"sqlite:///{tmp_path}/runs.db", pace=NO_DELAY)
    with anyio.fail_after(TIMEOUT_S):
        async with demo.build_midrun() as mid:
            first, found_phase = await demo.find_or_start_run(mid)
            assert found_phase == ""
            await first.until("waiting")
            again, found_phase = await demo.find_or_start_run(mid)
            assert (again.id, found_phase) == (first.id, "waiting")
            other, found_phase = await replace(demo, new=True).find_or_start_run(mid)
            assert (other.id == first.id, found_phase) == (False, "")
            for run in (first, other):
                await run.cancel(actor="ada")
                await run.until("cancelled")
            new, found_phase = await demo.find_or_start_run(mid)
            assert (new.id in {first.id, other.id}, found_phase) == (False, "")
            await new.cancel(actor="ada")
            await new.until("cancelled")


def test_an_ended_run_is_not_announced_to_continue() -> None:
    """After a cancel on the page, the next demo starts a new run."""
    assert describe_stop(Phase.RUNNING).endswith("demo` continues it.")
    assert describe_stop(Phase.CANCELLED).endswith("demo` starts a new one.")


def test_the_files_are_next_to_the_store_or_in_midrun_demo() -> None:
    assert Demo().folder == Path("midrun-demo")
    assert Demo(store="sqlite:////var/lib/trees/runs.db").folder == Path("/var/lib/trees")
    assert Demo(store="memory://").folder == Path("midrun-demo")


def test_an_api_key_in_the_environment_selects_the_model() -> None:
    """The user is told, because the calls cost money."""
    assert choose_model({})[0] == SCRIPTED_MODEL
    assert choose_model({"OPENAI_API_KEY": ""})[0] == SCRIPTED_MODEL
    name, message = choose_model({"OPENAI_API_KEY": "sk-1"})
    assert name.startswith("openai:")
    assert "OPENAI_API_KEY is set" in message
    assert choose_model({"ANTHROPIC_API_KEY": "sk-1"})[0].startswith("anthropic:")


def test_an_api_key_without_its_package_selects_the_scripted_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message names the extra to install."""
    monkeypatch.setattr("midrun.demo.agents.find_spec", lambda _: None)
    name, message = choose_model({"OPENAI_API_KEY": "sk-1"})
    assert name == SCRIPTED_MODEL
    assert "midrun[openai] is not installed" in message


@pytest.mark.parametrize(
    ("environ", "platform", "opens"),
    [
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({}, "linux", False),
        ({}, "darwin", True),
        ({"SSH_CONNECTION": "1.2.3.4"}, "darwin", False),
    ],
)
def test_a_browser_is_opened_only_where_there_is_a_screen(
    environ: dict[str, str], platform: str, opens: bool
) -> None:
    """On a server, a text browser would take over the terminal."""
    assert has_screen(environ, platform) is opens


@pytest.mark.parametrize("tips", [PAGE_TIPS, TERMINAL_TIPS])
def test_the_tips_fit_a_terminal_of_80_columns(tips: str) -> None:
    text = tips.format(pid=4_194_304, again='make demo ARGS="--terminal"')
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("speed", ["0", "-1", "nan", "fast"])
def test_an_invalid_speed_is_refused(speed: str) -> None:
    assert build_parser().parse_args(["demo", "--speed", "2"]).speed == 2
    with pytest.raises(UsageError, match="speed must be a number"):
        build_parser().parse_args(["demo", "--speed", speed])


@pytest.mark.slow  # importing a provider's package takes seconds
@pytest.mark.once
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_the_agent_runs_on_a_model_of_a_provider(
    tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fake provider speaks the real protocol, and the tools are real."""
    section = Call("write_section", '{"heading": "Trees", "text": "Fifteen."}')
    async with Provider(Answer(section), Answer(Text("Done."))) as fake_provider:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{fake_provider.url}/v1")
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-1")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", fake_provider.url)
        (model,) = (name for _, name in MODEL_BY_API_KEY.values() if name.startswith(provider))
        with anyio.fail_after(TIMEOUT_S):
            async with Midrun(
                "memory://", agents=[build_researcher(tmp_path, model=model)]
            ) as mid:
                run = await mid.start(AGENT_NAME, TEXTS.task, actor="ada")
                view = await run.until("completed")
                assert await mid.verify(run.id)
        request = json.dumps(fake_provider.exchanges[0].body)
    assert view.output == "Done."
    assert "## Trees" in (tmp_path / "drafts" / f"{run.id}.md").read_text()
    assert all(name in request for name in ("Larkhaven", "find_themes", "check_facts"))


def test_the_pins_of_the_demo_are_a_subset_of_the_pins_for_development() -> None:
    """`make pins` writes both files."""
    lines_by_file = {
        name: set((ROOT / "requirements" / name).read_text().splitlines())
        for name in ("demo.txt", "dev.txt")
    }
    demo_pins = {line.split()[0] for line in lines_by_file["demo.txt"] if "==" in line}
    assert demo_pins <= {line.split()[0] for line in lines_by_file["dev.txt"] if "==" in line}
