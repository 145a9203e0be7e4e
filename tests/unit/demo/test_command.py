"""The demo as people start it: it prints a link, it is killed, and it is started again."""

import json
import os
import signal
import sys
from argparse import ArgumentParser
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
from midrun.cli.demo import PAGE_TIPS, TERMINAL_TIPS, add_arguments
from midrun.core.entries import CallAborted, CallDone, Entry
from midrun.core.values import Reply
from midrun.demo import texts
from midrun.demo.agents import (
    AGENT_NAME,
    MODEL_BY_API_KEY,
    SCRIPTED_MODEL,
    build_researcher,
    choose_model,
)
from midrun.demo.launch import Demo
from midrun.demo.page import has_screen
from tests.support.processes import ROOT
from tests.support.providers import Answer, Call, Provider, Text
from tests.unit.demo.theatre import AT_ONCE, PATIENCE

NO_KEYS = {key: value for key, value in os.environ.items() if not key.endswith("_API_KEY")}


class Printed:
    """A process and what it prints, line by line."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        self.process = process
        self._out = BufferedByteReceiveStream(process.stdout)

    async def line(self) -> str:
        """Return the next line."""
        return (await self._out.receive_until(b"\n", 10_000)).decode()


@asynccontextmanager
async def started(*command: str, cwd: Path = ROOT) -> AsyncIterator[Printed]:
    """Start a Python process."""
    with anyio.fail_after(PATIENCE):
        async with await anyio.open_process(
            [sys.executable, *command], cwd=cwd, env=NO_KEYS, stderr=None
        ) as process:
            yield Printed(process)


def client(link: str) -> httpx2.AsyncClient:
    """Return a client that shows the token of a link."""
    base, _, token = link.partition("#token=")
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.AsyncClient(
        base_url=base.partition("/runs/")[0], headers=headers, timeout=PATIENCE
    )


@pytest.mark.slow
async def test_the_command_prints_a_link_that_answers_and_leaves_when_told(
    tmp_path: Path,
) -> None:
    """With a run under way, whose page is there without a credential and its data is not."""
    command = ["-m", "midrun", "demo", "--no-browser", "--port", "0", "--json"]
    async with started(*command, cwd=tmp_path) as demo:
        told = json.loads(await demo.line())
        async with client(told["url"]) as browser:
            page = await browser.get(told["url"])
            assert page.status_code == 200
            assert "text/html" in page.headers["content-type"]
            run = (await browser.get(f"/v1/runs/{told['run_id']}")).json()
            assert run["task"] == texts.TASK
            assert run["phase"] in {"queued", "running"}
            refused = await browser.get("/v1/runs", headers={"Authorization": "Bearer no"})
            assert refused.status_code == 401
        demo.process.send_signal(signal.SIGINT)
        assert await demo.process.wait() == 0
    assert (tmp_path / "midrun-demo" / "runs.db").is_file()
    async with Demo(store=f"sqlite:///{tmp_path}/midrun-demo/runs.db").build_midrun() as mid:
        row = await mid.store.get_row(told["run_id"])
        assert await mid.verify(row.run)


@pytest.mark.slow
async def test_a_run_that_is_paused_survives_a_kill_and_goes_on_in_its_sentence(
    tmp_path: Path,
) -> None:
    """Close the laptop, start the demo tomorrow: the run is where it was."""
    async with started("-m", "tests.unit.demo.child", str(tmp_path), "sentence,") as first:
        link, run, how = (await first.line()).split()
        assert how == "new"
        assert await first.line() == "reached"
        async with client(link) as browser:
            await browser.post(f"/v1/runs/{run}/pause", json={})
            wait = {"Prefer": f"wait={PATIENCE}"}
            await browser.get(f"/v1/runs/{run}?until=paused", headers=wait)
        first.process.send_signal(signal.SIGKILL)
        await first.process.wait()
    async with started("-m", "tests.unit.demo.child", str(tmp_path), "soil.") as second:
        link, found, how = (await second.line()).split()
        assert (found, how) == (run, "paused")
        async with client(link) as browser:
            body = {"instruction": "Go on"}
            reply = await browser.post(f"/v1/runs/{run}/resume", json=body)
            assert reply.status_code == 202, reply.text
            assert await second.line() == "reached"
        second.process.send_signal(signal.SIGTERM)
        await second.process.wait()
    async with Demo(store=f"sqlite:///{tmp_path}/runs.db").build_midrun() as mid:
        assert await mid.verify(run)
        records = await mid.store.read((await mid.get(run)).id)
    replies = [text for record in records if (text := _reply(record.entry))]
    cut = next(n for n, text in enumerate(replies) if text.endswith("middle of a "))
    rest = next(text for text in replies[cut + 1 :] if "sentence," in text)
    lead, _, rest = rest.partition(" … ")
    assert lead == "Going on."
    assert replies[cut] + rest == texts.INVITATION


def demo_terminal(folder: Path, *, speed: str) -> "pexpect.spawn[str]":
    """Start the demo in `folder`, in a terminal of its own."""
    return pexpect.spawn(
        sys.executable,
        ["-m", "midrun", "demo", "--terminal", "--speed", speed],
        cwd=folder,
        env=NO_KEYS | {"TERM": "xterm"},
        timeout=PATIENCE,
        dimensions=(40, 150),
        encoding="utf-8",
    )


@pytest.mark.slow
def test_the_terminal_shows_the_same_run_with_its_bar(tmp_path: Path) -> None:
    """It waits for an answer; whoever leaves finds it there again."""
    for how in ("started", "found again, waiting at plan step 4 of 7"):
        terminal = demo_terminal(tmp_path, speed="inf")
        terminal.expect_exact(how)
        terminal.expect_exact("Waiting")
        terminal.send("d")
        terminal.expect_exact("The run is waiting, at plan step 4 of 7")
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 75


@pytest.mark.slow
async def test_leaving_the_bar_says_that_nothing_drives_the_run(tmp_path: Path) -> None:
    """The process that drove the run ends with its bar."""
    terminal = demo_terminal(tmp_path, speed="0.01")
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
async def test_without_a_terminal_the_bar_is_refused_in_words() -> None:
    """A pipe has nobody who could press a key."""
    command = [sys.executable, "-m", "midrun", "demo", "--terminal"]
    done = await anyio.run_process(command, env=NO_KEYS, check=False)
    assert done.returncode == 1
    assert b"needs a terminal" in done.stderr


def _reply(entry: Entry) -> str:
    """Return what a model had said when its call ended."""
    match entry:
        case CallAborted(text=text):
            return text
        case CallDone(reply=Reply(text=text)):
            return text
        case _:
            return ""


# ── what it is started with ──────────────────────────────────────────────────────────────────


async def test_a_run_under_way_is_found_and_an_ended_one_followed_by_a_new_one(
    tmp_path: Path,
) -> None:
    """Only where nothing is under way is anything started."""
    demo = Demo(store=f"sqlite:///{tmp_path}/runs.db", pace=AT_ONCE)
    with anyio.fail_after(PATIENCE):
        async with demo.build_midrun() as mid:
            first, found = await demo.find_or_start_run(mid)
            assert found == ""
            await first.until("waiting")
            again, found = await demo.find_or_start_run(mid)
            assert (again.id, found) == (first.id, "waiting")
            other, found = await replace(demo, new=True).find_or_start_run(mid)
            assert (other.id == first.id, found) == (False, "")
            for run in (first, other):
                await run.cancel(actor="ada")
                await run.until("cancelled")
            new, found = await demo.find_or_start_run(mid)
            assert (new.id in {first.id, other.id}, found) == (False, "")
            await new.cancel(actor="ada")
            await new.until("cancelled")


def test_the_files_are_beside_the_store_or_in_a_folder_of_their_own() -> None:
    """One place to look, one place to delete."""
    assert Demo().folder == Path("midrun-demo")
    assert Demo(store="sqlite:////var/lib/trees/runs.db").folder == Path("/var/lib/trees")
    assert Demo(store="memory://").folder == Path("midrun-demo")


def test_a_key_in_the_environment_chooses_the_model_and_says_so() -> None:
    """It is somebody's own money."""
    assert choose_model({})[0] == SCRIPTED_MODEL
    assert choose_model({"OPENAI_API_KEY": ""})[0] == SCRIPTED_MODEL
    name, told = choose_model({"OPENAI_API_KEY": "sk-1"})
    assert name.startswith("openai:")
    assert "OPENAI_API_KEY is set" in told
    assert choose_model({"ANTHROPIC_API_KEY": "sk-1"})[0].startswith("anthropic:")


def test_a_key_without_its_package_falls_back_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A demo that fails for want of a package is no demo."""
    monkeypatch.setattr("midrun.demo.agents.find_spec", lambda _: None)
    name, told = choose_model({"OPENAI_API_KEY": "sk-1"})
    assert name == SCRIPTED_MODEL
    assert "midrun[openai] is not installed" in told


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
def test_a_browser_is_opened_where_somebody_would_see_it(
    environ: dict[str, str], platform: str, opens: bool
) -> None:
    """A text browser that takes over the terminal of a server helps nobody."""
    assert has_screen(environ, platform) is opens


@pytest.mark.parametrize("tips", [PAGE_TIPS, TERMINAL_TIPS])
def test_what_to_try_fits_a_terminal_of_80_columns(tips: str) -> None:
    """It is the first thing that anybody reads."""
    told = tips.format(pid=4_194_304, again='make demo ARGS="--terminal"')
    assert max(map(len, told.splitlines())) <= 80


@pytest.mark.parametrize("speed", ["0", "-1", "nan", "fast"])
def test_a_speed_that_is_none_is_refused(
    speed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what a speed is, is said."""
    made = ArgumentParser()
    add_arguments(made)
    assert made.parse_args(["--speed", "2"]).speed == 2
    with pytest.raises(SystemExit):
        made.parse_args(["--speed", speed])
    assert "speed must be a number" in capsys.readouterr().err


@pytest.mark.slow  # importing a provider's package takes seconds
@pytest.mark.once
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_the_same_agent_runs_on_a_real_model(
    tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as a real model can be had in a test: the provider's protocol, and real tools."""
    section = Call("write_section", '{"heading": "Trees", "text": "Fifteen."}')
    async with Provider(Answer(section), Answer(Text("Done."))) as far:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{far.url}/v1")
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-1")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", far.url)
        (model,) = (name for _, name in MODEL_BY_API_KEY.values() if name.startswith(provider))
        with anyio.fail_after(PATIENCE):
            async with Midrun(
                "memory://", agents=[build_researcher(tmp_path, model=model)]
            ) as mid:
                run = await mid.start(AGENT_NAME, texts.TASK, actor="ada")
                view = await run.until("completed")
                assert await mid.verify(run.id)
        told = json.dumps(far.exchanges[0].body)
    assert view.output == "Done."
    assert "## Trees" in (tmp_path / "drafts" / f"{run.id}.md").read_text()
    assert all(name in told for name in ("Larkhaven", "find_themes", "check_facts"))


def test_the_pins_of_the_demo_are_among_all_others() -> None:
    """Two versions of one package would be two demos; `make pins` writes both files."""
    pins = {
        name: set((ROOT / "requirements" / name).read_text().splitlines())
        for name in ("demo.txt", "dev.txt")
    }
    small = {line.split()[0] for line in pins["demo.txt"] if "==" in line}
    assert small <= {line.split()[0] for line in pins["dev.txt"] if "==" in line}
