"""What to type next: it can be pasted as it stands, and it is what the run waits for."""

import json
import socket
import sys
from pathlib import Path

import pytest

from midrun import Midrun
from midrun.cli import hints
from midrun.ports.store import RunQuery
from tests.unit.cli.typist import APP, TOKEN, Shell, Typist, read_until, serving


async def _forget(store: str) -> str:
    """Have nobody heard of those who drive, as when their time is over; return their run."""
    async with Midrun(store, engine=None) as midrun:
        for holder in await midrun.store.list_holders():
            await midrun.store.release_leases(holder)
        (row,) = (await midrun.store.list_runs(RunQuery())).items
        return row.run


@pytest.mark.slow
@pytest.mark.parametrize("far", [False, True])
async def test_a_run_whose_driver_is_dead_is_not_said_to_be_at_work(
    tmp_path: Path, far: bool
) -> None:
    """Killed, it can tell nobody; whoever looks, or asks something of it, is told that."""
    shell = Shell(tmp_path)
    with shell.start("run", f"{APP}:searcher", "Find cats", GATE=str(tmp_path / "g")) as driver:
        read_until(driver, "the agent called")
        driver.kill()
    run = await _forget(shell.env["MIDRUN_STORE"])
    if far:  # a server that has other agents: it would take the run otherwise
        with serving(shell, app=f"{APP}:evil") as url:
            _is_told(Shell(tmp_path, MIDRUN_URL=url, MIDRUN_TOKEN=TOKEN), run, worker=False)
    else:
        _is_told(shell, run, worker=True)


def _is_told(shell: Shell, run: str, *, worker: bool) -> None:
    assert "! Worker not responding" in shell.type("ls").out
    for words in (["show"], ["pause"], ["show"], ["resume"]):
        said = shell.type(*words, run).out
        assert "Worker not responding" in said
        assert "the run is" not in said
        assert "It waits for" not in said
        assert ("midrun worker APP" in said) is worker
    view = json.loads(shell.type("show", run, "--json").out)
    assert view["sign"]["look"] == "lost"


def test_where_the_runs_are_is_repeated_if_it_was_typed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Otherwise the next command would look for the run in another store."""
    store = f"sqlite:///{tmp_path}/my runs.db"
    asked = Typist(capsys, "--store", store)("run", f"{APP}:asker", "Ask me").out
    assert f"-ask_1 VALUE --store '{store}'" in asked.replace("a1", "ask_1")
    run = asked.split()[0]
    assert f"midrun pause {run} --store '{store}'" in asked


def test_where_the_runs_are_is_not_repeated_if_the_environment_says_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It says it to the next command, too."""
    monkeypatch.setenv("MIDRUN_STORE", f"sqlite:///{tmp_path}/runs.db")
    assert "--store" not in Typist(capsys)("run", f"{APP}:asker", "Ask me").out


def test_a_midrun_that_is_not_on_the_path_is_named_by_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From a clone nobody has it on their path; below this folder, it is named from here."""
    assert hints.find_program() == "midrun"
    monkeypatch.setenv("PATH", "/nowhere")
    script = Path(sys.executable).with_name("midrun")
    assert hints.find_program() == str(script)
    monkeypatch.chdir(script.parents[2])
    assert hints.find_program() == str(script.relative_to(script.parents[2]))


def test_the_demo_is_found_again_as_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """By make, if make started it."""
    monkeypatch.delenv("MAKELEVEL", raising=False)
    assert hints.demo_command("--terminal") == "midrun demo --terminal"
    monkeypatch.setenv("MAKELEVEL", "1")
    assert hints.demo_command() == "make demo"
    assert hints.demo_command("--terminal") == 'make demo ARGS="--terminal"'


def test_a_run_that_is_not_there_is_looked_for_in_the_same_store(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Not in the one that would be opened without being told."""
    store = f"sqlite:///{tmp_path}/runs.db"
    midrun = Typist(capsys, "--store", store)
    midrun("run", f"{APP}:asker", "Ask me")
    assert f"list the runs: midrun ls --store {store}\n" in midrun("show", "run_x").err


def test_a_worker_that_has_nothing_to_do_is_not_overlooked(
    store: Typist, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle it gives no sign of life, until what was asked wakes it: nobody starts another."""
    monkeypatch.setattr(hints, "IDLE_WORKER_PICKUP_S", 60)
    run = store("run", f"{APP}:asker", "Ask me").out.split()[0]
    said = store("answer", run, "red").out
    assert "answer: in the journal" in said
    assert "worker APP" not in said


def test_a_port_that_is_taken_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    """The text is the system's; what to type is ours."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = Typist(capsys)("serve", f"{APP}:asker", "--port", port)
    assert said.code == 1
    assert "choose another port: --port N" in said.err


@pytest.mark.parametrize(
    ("app", "told"),
    [
        (".", "is a folder; name a file: file.py or file.py:agent"),
        (f"{APP}:askre", "has no askre; it has: searcher, asker, sender,"),
    ],
)
def test_an_app_that_is_not_there_says_what_is(
    capsys: pytest.CaptureFixture[str], app: str, told: str
) -> None:
    """A name that is misspelt is seen at a glance."""
    assert told in Typist(capsys)("run", app, "Go").err
