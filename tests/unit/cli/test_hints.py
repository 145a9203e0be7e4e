"""Hints are commands that can be pasted; refusals name the reason and the next step."""

import json
import shlex
import socket
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from midrun import Midrun
from midrun.cli import hints
from midrun.cli.hints import format_refusal, next_step
from midrun.cli.inspect_commands import _format_no_runs
from midrun.cli.parser import build_parser
from midrun.cli.settings import resolve_settings
from midrun.core.controls import Control
from midrun.core.transitions import GUARD_REFUSALS
from midrun.errors import ControlRefused
from midrun.ports.store import RunQuery
from tests.unit.cli.command_runner import (
    APP,
    TOKEN,
    CommandRunner,
    ProcessRunner,
    read_until,
    serve_app,
)


async def _release_leases(store: str) -> str:
    """Release all leases, as if the heartbeats of their holders had stopped; return the run."""
    async with Midrun(store, engine=None) as midrun:
        for holder in await midrun.store.list_holders():
            await midrun.store.release_leases(holder)
        (row,) = (await midrun.store.list_runs(RunQuery())).items
        return row.run


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--url", "http://127.0.0.1:1"], 'start one: midrun run AGENT "the task" --url http'),
        (["--store", "sqlite:///a.db"], 'start one: midrun run app.py "the task" --store'),
        (["--tenant", "acme"], "no matching runs; list all: midrun ls"),
    ],
)
def test_an_empty_list_says_how_to_start_a_run(words: list[str], hint: str) -> None:
    """At a server, `run` takes the name of an agent."""
    args = build_parser().parse_args(["ls", *words])
    resolve_settings(args)
    assert hint in _format_no_runs(args)


@pytest.mark.parametrize("words", [(), ("--store", "sqlite:///folder/runs.db")])
def test_only_an_unreachable_default_store_is_to_be_named(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A store that was named is unreachable for another reason."""
    for folder in ("midrun.db", "folder/runs.db"):  # a folder is no database
        Path(folder).mkdir(parents=True)
    refused = CommandRunner(capsys)("ls", *words)
    assert refused.code == 1
    assert "Cannot reach store" in refused.err
    assert ("name the store or the server" in refused.err) == (not words)


@pytest.mark.slow
@pytest.mark.parametrize("at_server", [False, True])
async def test_a_run_whose_worker_was_killed_is_shown_as_lost(
    tmp_path: Path, at_server: bool
) -> None:
    """In the list, in `show`, and after each control."""
    midrun_process = ProcessRunner(tmp_path)
    with midrun_process.start(
        "run", f"{APP}:searcher", "Find cats", GATE=str(tmp_path / "g")
    ) as driver:
        read_until(driver, "the agent called")
        driver.kill()
    run = await _release_leases(midrun_process.env["MIDRUN_STORE"])
    if at_server:  # a server without this agent, so that it does not take the run
        with serve_app(midrun_process, app=f"{APP}:evil") as url:
            _expect_lost_worker(
                ProcessRunner(tmp_path, MIDRUN_URL=url, MIDRUN_TOKEN=TOKEN), run, worker=False
            )
    else:
        _expect_lost_worker(midrun_process, run, worker=True)


def _expect_lost_worker(midrun_process: ProcessRunner, run: str, *, worker: bool) -> None:
    assert "! Worker not responding" in midrun_process.run("ls").out
    for arguments in (["show"], ["pause"], ["show"], ["resume"]):
        output = midrun_process.run(*arguments, run).out
        assert "Worker not responding" in output
        assert "the run is" not in output
        assert "It waits for" not in output
        assert ("midrun worker APP" in output) is worker
    view = json.loads(midrun_process.run("show", run, "--json").out)
    assert view["status"]["style"] == "lost"


def test_hints_repeat_the_store_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The next command would use another store otherwise."""
    store = f"sqlite:///{tmp_path}/my runs.db"
    output = CommandRunner(capsys, "--store", store)("run", f"{APP}:asker", "Ask me").out
    assert f"-ask_1 VALUE --store '{store}'" in output.replace("a1", "ask_1")
    run = output.split()[0]
    assert f"midrun pause {run} --store '{store}'" in output


def test_hints_do_not_repeat_a_store_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MIDRUN_STORE", f"sqlite:///{tmp_path}/runs.db")
    assert "--store" not in CommandRunner(capsys)("run", f"{APP}:asker", "Ask me").out


def test_hints_name_the_path_of_a_midrun_that_is_not_on_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Below the working directory, the path is relative."""
    assert hints.find_program() == "midrun"
    monkeypatch.setenv("PATH", "/nowhere")
    script = Path(sys.executable).with_name("midrun")
    assert hints.find_program() == str(script)
    monkeypatch.chdir(script.parents[2])
    assert hints.find_program() == str(script.relative_to(script.parents[2]))


def test_the_hint_of_the_demo_names_make_if_make_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MAKELEVEL", raising=False)
    assert hints.format_demo_command("--terminal") == "midrun demo --terminal"
    monkeypatch.setenv("MAKELEVEL", "1")
    assert hints.format_demo_command() == "make demo"
    assert hints.format_demo_command("--terminal") == 'make demo ARGS="--terminal"'


def test_the_hint_for_an_unknown_run_repeats_the_store_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"
    midrun = CommandRunner(capsys, "--store", store)
    midrun("run", f"{APP}:asker", "Ask me")
    assert f"list the runs: midrun ls --store {store}\n" in midrun("show", "run_x").err


def test_there_is_no_worker_hint_if_an_idle_worker_picks_the_run_up(
    midrun_at_store: CommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle worker sends no heartbeat until a control wakes it."""
    monkeypatch.setattr(hints, "IDLE_WORKER_PICKUP_S", 60)
    run = midrun_at_store("run", f"{APP}:asker", "Ask me").out.split()[0]
    output = midrun_at_store("answer", run, "red").out
    assert "answer: in the journal" in output
    assert "worker APP" not in output


def test_the_error_for_a_used_port_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        result = CommandRunner(capsys)("serve", f"{APP}:asker", "--port", port)
    assert result.code == 2
    assert "choose another port: --port N" in result.err


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        (".", "is a folder; name a file: file.py or file.py:agent"),
        (f"{APP}:askre", "has no askre; it has: searcher, asker, sender,"),
    ],
)
def test_the_error_for_an_unknown_app_lists_its_agents(
    capsys: pytest.CaptureFixture[str], app: str, expected: str
) -> None:
    assert expected in CommandRunner(capsys)("run", app, "Go").err


# ── refusals ─────────────────────────────────────────────────────────────────


REASONS = sorted(
    {
        reason
        for kind, names in GUARD_REFUSALS.items()
        if issubclass(kind, Control)
        for reason in names
    }
)
ARGUMENTS = Namespace(where=["--store", "sqlite:///x.db"], url=None)


def make_refusal(reason: str, control: str = "drop_frame", by: str = "steps") -> ControlRefused:
    """Return a refusal of `control`."""
    return ControlRefused("run_1", control, reason, "paused", ("take_over",), by, 7)


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_has_a_next_step_that_the_parser_accepts(reason: str) -> None:
    step = next_step(make_refusal(reason), ARGUMENTS)
    assert step
    advice, _, command = step.partition(": ")
    assert advice
    if "--store" in command:
        program, *arguments = shlex.split(command)
        assert program.endswith("midrun")
        build_parser().parse_args([word.replace("AMOUNT", "20") for word in arguments])


def test_a_refusal_spells_controls_like_commands() -> None:
    """`take-over`, not `take_over`."""
    text = format_refusal(make_refusal("no_such_frame", by=""))
    assert text == (
        "Cannot drop a topic of run_1: there is no such held topic (no_such_frame). "
        "Allowed now: take-over."
    )


@pytest.mark.parametrize(
    ("reason", "by", "expected"),
    [
        ("is_cancelled", "ada", "it was cancelled by ada at seq 7 (is_cancelled)."),
        ("is_running", "ada", "it is running, requested by ada at seq 7 (is_running)."),
        ("not_paused", "ada", "it is not paused; ada was first at seq 7 (not_paused)."),
        ("cap_reached", "steps", "it has reached its cap on steps (cap_reached)."),
        ("not_allowed", "operator", "only operator may decide this (not_allowed)."),
        ("frame_not_on_top", "f2", "the held topic f2 is on top (frame_not_on_top)."),
        ("taken_over", "ada", "ada has taken it over (taken_over)."),
    ],
)
def test_a_refusal_names_by_according_to_its_reason(
    reason: str, by: str, expected: str
) -> None:
    """For some reasons `by` is a cap, a role or a held topic."""
    assert expected in str(make_refusal(reason, by=by))
