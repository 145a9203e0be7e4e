"""The command in processes of its own: signals, exit codes, and what it does not load."""

import importlib
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Midrun
from midrun.cli import main as command
from midrun.cli.command_specs import COMMAND_GROUPS
from midrun.cli.output import format_count, format_duration
from midrun.cli.targets import load_agents
from midrun.errors import RunNotFound
from midrun.models import ScriptedModel
from midrun.server import serve
from tests.support.processes import ROOT
from tests.unit.cli.typist import APP, TOKEN, Shell, Typist, read_until, serving

HEAVY = (
    "httpx2",
    "mcp",
    "openai",
    "opentelemetry",
    "prompt_toolkit",
    "pydantic",
    "pydantic_ai",
    "starlette",
    "uvicorn",
)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Give a shell."""
    return Shell(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_pauses_the_run_and_says_how_to_resume(
    shell: Shell, tmp_path: Path, number: signal.Signals
) -> None:
    """Not a kill: the tool finishes, the run is paused, nothing is lost."""
    gate = tmp_path / "gate"
    with shell.start("run", f"{APP}:searcher", "Find cats", GATE=str(gate)) as running:
        read_until(running, "the agent called")
        running.send_signal(number)
        read_until(running, "asked the run to pause")
        gate.touch()
        read_until(running, "resume with: midrun resume run_")
        assert running.wait() == 75


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_watcher_that_is_ended_leaves_the_run_alone(
    shell: Shell, tmp_path: Path, number: signal.Signals
) -> None:
    """`timeout 5 midrun attach … | tail` must not pause what somebody else drives."""
    gate = tmp_path / "gate"
    with shell.start("run", f"{APP}:searcher", "Find cats", GATE=str(gate)) as running:
        run = read_until(running, "run_").strip()
        read_until(running, "the agent called")
        with shell.start("attach", run) as watching:
            read_until(watching, "the agent called")
            watching.send_signal(number)
            read_until(watching, "detached: the run goes on")
            assert watching.wait() == 0
        gate.touch()
        read_until(running, "Found cats.")
        assert running.wait() == 0
    assert "asked the run to pause" not in shell.type("feed", run).out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "told"),
    [
        (
            "--plain",
            ("the agent called", "asked the run to pause", "resume with: midrun resume run_"),
        ),
        ("--json", ('"call_kind":"tool"', '"PauseRequested"', '"phase":"pausing"}')),
    ],
)
def test_a_second_signal_leaves_at_once(
    shell: Shell, tmp_path: Path, form: str, told: tuple[str, str, str]
) -> None:
    """The tool is stopped in its grace; the pause stays asked for."""
    gate = str(tmp_path / "gate")
    with shell.start("run", f"{APP}:searcher", "Find cats", form, GATE=gate) as running:
        called, asked, last = told
        read_until(running, called)
        running.send_signal(signal.SIGINT)
        read_until(running, asked)
        running.send_signal(signal.SIGINT)
        read_until(running, last)
        assert running.wait() == 75


def test_a_paused_run_is_driven_again_by_whoever_attaches_with_its_app(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that asks exits as paused; it goes on where it was, in another process."""
    near = Typist(capsys, "--store", shell.env["MIDRUN_STORE"])
    asked = near("run", f"{APP}:asker", "Ask me")
    assert asked.code == 75
    (ask,) = near("asks", "--json").values
    assert f"decide with: midrun answer {ask['ref']} VALUE" in asked.out
    assert "a worker takes it" in near("answer", str(ask["ref"]), "red").out
    done = near("attach", str(ask["run_id"]), "--app", str(APP))
    assert done.code == 0
    assert done.out.endswith("completed:\nred!\n")


@pytest.mark.slow
def test_a_server_that_drives_nothing_needs_no_key_and_its_worker_no_token(
    shell: Shell, tmp_path: Path
) -> None:
    """So that they can have different accounts: the one with the token runs no tool."""
    app = tmp_path / "both.py"
    app.write_text(f"{APP.read_text()}\neveryone.append(Agent('a', model='openai:gpt-5'))\n")
    for name in ("OPENAI_API_KEY", "MIDRUN_TOKEN"):
        shell.env.pop(name, None)
    words = ("run", "searcher", "Find cats", "--json")
    with (
        serving(shell, "--engine", "none", app=f"{app}:everyone") as url,
        shell.start(*words, "--url", url, MIDRUN_TOKEN=TOKEN) as running,
    ):
        run = json.loads(read_until(running, '"RunStarted"'))
        assert run["seq"] == 1
        (row,) = [json.loads(line) for line in shell.type("ls", "--json").out.splitlines()]
        assert row["phase"] == "queued"
        with shell.start("worker", f"{APP}:everyone") as worker:
            read_until(running, "Found cats.")
            worker.terminate()


@pytest.mark.slow
def test_a_worker_stands_down_when_it_is_told_to(shell: Shell, tmp_path: Path) -> None:
    """Its runs go on elsewhere; nobody paused them."""
    gate = str(tmp_path / "gate")
    with (
        serving(shell, GATE=gate) as url,
        shell.start(
            "run", "searcher", "Find cats", "--url", url, "--json", MIDRUN_TOKEN=TOKEN
        ) as running,
    ):
        run = json.loads(read_until(running, '"RunStarted"'))
        read_until(running, '"call_kind":"tool"')
        running.kill()
    assert run["seq"] == 1
    (row,) = [json.loads(line) for line in shell.type("ls", "--json").out.splitlines()]
    assert row["phase"] == "queued"  # the server stood down before it went
    with shell.start("worker", f"{APP}:everyone") as worker:
        read_until(worker, "driving the runs of")
        assert "Found cats." in shell.type("feed", row["run_id"], "--follow").out
        worker.send_signal(signal.SIGTERM)
        read_until(worker, "stopped")
        assert worker.wait() == 0


STUBBORN = """
import asyncio
import os
import threading
from contextlib import suppress
from datetime import timedelta

import anyio

from midrun import Agent, tool
from midrun.models import ScriptedModel, Use

@tool
async def shielded() -> None:
    \"""Wait for ever behind a shield.\"""
    print("began", flush=True)
    while True:
        with suppress(asyncio.CancelledError), anyio.CancelScope(shield=True):
            await anyio.sleep_forever()

@tool(in_process=True)
def blocked() -> None:
    \"""Block a thread for ever.\"""
    print("began", flush=True)
    threading.Event().wait()

stubborn = Agent(
    "stubborn",
    model=ScriptedModel([Use(os.environ["TOOL"])]),
    tools=[shielded, blocked],
    grace=timedelta(seconds=float(os.environ["GRACE"])),
)
"""


@pytest.fixture
def stubborn(shell: Shell, tmp_path: Path) -> Path:
    """Give an app with a tool that does not stop, and queue a run for it."""
    app = tmp_path / "stubborn_app.py"
    app.write_text(STUBBORN)

    async def queue() -> None:
        agent = Agent("stubborn", model=ScriptedModel(["."]))
        async with Midrun(shell.env["MIDRUN_STORE"], agents=[agent], engine=None) as midrun:
            await midrun.start(agent, "go")

    anyio.run(queue)
    return app


@pytest.mark.parametrize("name", ["shielded", "blocked"])
def test_a_worker_ends_after_the_grace_of_a_tool_that_does_not_stop(
    shell: Shell, stubborn: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It stands down, names the tool, and ends; the run goes on elsewhere."""
    with shell.start("worker", str(stubborn), TOOL=name, GRACE="0.2") as worker:
        read_until(worker, "began")
        worker.send_signal(signal.SIGTERM)
        read_until(worker, "stopped")
        assert worker.wait() == 0
    assert f"code did not stop: tool {name}" in capfd.readouterr().err
    (row,) = [json.loads(line) for line in shell.type("ls", "--json").out.splitlines()]
    assert row["phase"] == "queued"


def test_a_second_signal_ends_a_worker_at_once(
    shell: Shell, stubborn: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever its calls are doing: their grace is an hour."""
    with shell.start("worker", str(stubborn), TOOL="shielded", GRACE="3600") as worker:
        read_until(worker, "began")
        worker.send_signal(signal.SIGTERM)
        read_until(worker, "stopping")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 128 + signal.SIGTERM
    assert "ended by another SIGTERM" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["run", "nowhere.py", "x"], 1, "there is no such file"),
        (["run", str(APP), "x"], 1, "choose one with --agent"),
        (["run", str(APP), "x", "--agent", "seracher"], 1, "its agents are: searcher, asker"),
        (["ls", "--store", "sqlite:///typo.db"], 1, "there is no store at typo.db"),
        (["pause", "x", "--store", "sqlite:///typo.db"], 1, "start a run to create it"),
        (
            ["run", f"{APP}:asker", "x", "--store", "sqlite:///no/x.db"],
            1,
            "the folder no first",
        ),
        (["ls", "--store", "nonsense://"], 1, "use memory://, sqlite:///"),
        (["ls", "--store", "memory://", "--url", "http://x"], 1, "give one of them"),
        (["puase", "x"], 2, "did you mean pause?"),
        (["pause", "x", "--nwo"], 2, "did you mean --now?"),
        (["say", "x", "y", "--urgency", "nxt"], 2, "did you mean next?"),
        (["pause"], 2, "more: midrun pause --help"),
        (["feed", "x", "--fol"], 2, "did you mean --follow?"),
    ],
)
def test_a_slip_is_answered_with_what_was_probably_meant(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, says: str
) -> None:
    """In one line, without a traceback; 2 for what cannot be a command at all."""
    said = Typist(capsys)(*words)
    assert (said.code, says in said.err) == (code, True), said.err
    assert "Traceback" not in said.err
    assert not Path("typo.db").exists()
    (value,) = Typist(capsys)(*words, "--json").values
    assert says in str(value["text"])


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "import anyio\nanyio.run(anyio.sleep, 0)\n",
            "runs code when it is imported",
        ),
        ("raise SystemExit(0)\n", 'put that code under if __name__ == "__main__":'),
        ("def f():\n    return 1 / 0\n\nf()\n", "ZeroDivisionError: division by zero ("),
        ("import json\njson.loads('')\n", "broken.py:2)"),
        ("import nowhere\n", "No module named 'nowhere'"),
        ("import os\nos.environ['MIDRUN_STORE']\n", "use another name"),
        ("def f(:\n", "SyntaxError: invalid syntax (broken.py, line 1)"),
    ],
)
def test_an_app_that_cannot_be_imported_says_why_in_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    source: str,
    says: str,
) -> None:
    """With the line of the app, not of the library that it called."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.invalidate_caches()
    (tmp_path / "broken.py").write_text(source)
    said = Typist(capsys)("worker", "broken.py")
    assert (said.code, said.err.count("\n"), says in said.err) == (1, 1, True), said.err


def test_what_the_tutorial_has_its_reader_save_can_be_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its last section says so; importing it must run nothing."""
    page = ROOT / "docs" / "tutorial.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "memo.py").write_text("\n".join(blocks))
    assert [agent.name for agent in load_agents("memo.py")] == ["writer"]
    assert not (tmp_path / "memo.db").exists()


def test_every_command_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    """And the list of them says what each is for."""
    midrun = Typist(capsys)
    listed = midrun("--help").out
    for name in (name for commands in COMMAND_GROUPS.values() for name in commands):
        assert f"  {name} " in listed
        told = midrun(name, "--help")
        assert told.code == 0
        assert f"midrun {name}" in told.out.partition("example")[2]
        assert "--json" in told.out


def test_times_and_sizes_are_for_people() -> None:
    """Nobody counts seconds of a day, or digits of a million."""
    times = (0, 59, 60, 3_599, 7_200, 5 * 86_400)
    assert [format_duration(seconds) for seconds in times] == [
        "0 s",
        "59 s",
        "1 min",
        "60 min",
        "2 h",
        "5 d",
    ]
    sizes = (940, 12_345, 999_999, 3_400_000, 12_345_678_901)
    assert [format_count(n) for n in sizes] == ["940", "12.3k", "1M", "3.4M", "12346M"]


@pytest.mark.parametrize("word", ["ls", "show run_x", "pause run_x", "asks"])
def test_buttons_are_pressed_without_loading_what_they_do_not_need(
    shell: Shell, word: str
) -> None:
    """No provider's package, no server, no terminal library: they start in a blink."""
    Path(shell.folder, "runs.db").touch()
    code = (
        f"import sys; from midrun.cli.main import main; main({word.split()});"
        f"print([m for m in sys.modules if m.split('.')[0] in {HEAVY}])"
    )
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code], env=shell.env, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_a_reader_that_has_had_enough_ends_the_command(shell: Shell) -> None:
    """`midrun feed … | head` is no reason for a traceback."""
    shell.type("run", f"{APP}:searcher", "Find cats")
    midrun = f"{sys.executable} -m midrun"
    done = subprocess.run(  # noqa: S602 - the pipe is the point
        f"for i in 1 2 3; do {midrun} ls --json; done | head -c 1",
        shell=True,
        env=shell.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


async def test_a_signal_that_comes_with_the_link_is_not_lost() -> None:
    """Whoever waits for the link and stops the server at once finds it stopped."""
    with anyio.open_signal_receiver(signal.SIGTERM), anyio.fail_after(60):
        async with Midrun("memory://") as midrun:
            await serve(
                midrun, port=0, token=TOKEN, say=lambda _: signal.raise_signal(signal.SIGTERM)
            )


def test_what_went_wrong_side_by_side_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that breaks while a run is shown comes out of a task group."""

    async def breaks(*_: object) -> int:
        raise ExceptionGroup("tasks", [ExceptionGroup("more", [RunNotFound("run_x")])])

    monkeypatch.setattr(command, "_run_command", breaks)
    said = Typist(capsys)("ls")
    assert (said.code, "run_x" in said.err, "Traceback" in said.err) == (1, True, False)
