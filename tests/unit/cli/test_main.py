"""The command in processes of its own: signals, exit codes, workers, imports and errors."""

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
from midrun.cli import command_runner
from midrun.cli.command_specs import COMMAND_GROUPS
from midrun.cli.targets import load_agents
from midrun.errors import RunNotFound
from midrun.models import ScriptedModel
from midrun.server import serve
from tests.support.paths import ROOT
from tests.unit.cli.command_runner import (
    APP,
    TOKEN,
    CommandRunner,
    ProcessRunner,
    read_until,
    serve_app,
)

OPTIONAL_PACKAGES = {
    "httpx2",
    "mcp",
    "openai",
    "opentelemetry",
    "prompt_toolkit",
    "psycopg",
    "pydantic",
    "pydantic_ai",
    "starlette",
    "uvicorn",
}
SHORT_COMMANDS_NEVER_IMPORT = OPTIONAL_PACKAGES | {
    "midrun.client",
    "midrun.driver.run_loop",
    "midrun.driver.subprocess",
    "midrun.server",
    "midrun.stores.postgres",
    "midrun.verify.journal",
    "midrun.workers",
}
PARSING_NEVER_IMPORTS = SHORT_COMMANDS_NEVER_IMPORT | {
    "anyio",
    "apsw",
    "asyncio",
    "midrun.agents.agent",
    "midrun.driver.live",
    "midrun.runs.midrun",
    "midrun.stores",
}
PRINT_MODULES_AT_EXIT = "import atexit, sys; atexit.register(lambda: print(*sys.modules))\n"


@pytest.fixture
def midrun_process(tmp_path: Path) -> ProcessRunner:
    return ProcessRunner(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_pauses_the_run_and_prints_the_resume_command(
    midrun_process: ProcessRunner, tmp_path: Path, number: signal.Signals
) -> None:
    """The tool finishes, and the exit code is 75."""
    gate = tmp_path / "gate"
    with midrun_process.start(
        "run", f"{APP}:searcher", "Find cats", GATE=str(gate)
    ) as run_process:
        read_until(run_process, "the agent called")
        run_process.send_signal(number)
        read_until(run_process, "asked the run to pause")
        gate.touch()
        read_until(run_process, "resume with: midrun resume run_")
        assert run_process.wait() == 75


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_attach_does_not_pause_the_run(
    midrun_process: ProcessRunner, tmp_path: Path, number: signal.Signals
) -> None:
    """`timeout 5 midrun attach … | tail` must not pause a run that another process drives."""
    gate = tmp_path / "gate"
    with midrun_process.start(
        "run", f"{APP}:searcher", "Find cats", GATE=str(gate)
    ) as run_process:
        run = read_until(run_process, "run_").strip()
        read_until(run_process, "the agent called")
        with midrun_process.start("attach", run) as watcher:
            read_until(watcher, "the agent called")
            watcher.send_signal(number)
            read_until(watcher, "detached: the run continues")
            assert watcher.wait() == 0
        gate.touch()
        read_until(run_process, "Found cats.")
        assert run_process.wait() == 0
    assert "asked the run to pause" not in midrun_process.run("feed", run).out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "expected_lines"),
    [
        (
            "--plain",
            ("the agent called", "asked the run to pause", "midrun resume run_"),
        ),
        ("--json", ('"call_kind":"tool"', '"PauseRequested"', '"phase":"pausing"}')),
    ],
)
def test_a_second_signal_exits_at_once(
    midrun_process: ProcessRunner,
    tmp_path: Path,
    form: str,
    expected_lines: tuple[str, str, str],
) -> None:
    """The tool is stopped within its grace; the pause stays requested."""
    gate = str(tmp_path / "gate")
    with midrun_process.start(
        "run", f"{APP}:searcher", "Find cats", form, GATE=gate
    ) as run_process:
        called, requested, last = expected_lines
        read_until(run_process, called)
        run_process.send_signal(signal.SIGINT)
        read_until(run_process, requested)
        run_process.send_signal(signal.SIGINT)
        read_until(run_process, last)
        assert run_process.wait() == 75


@pytest.mark.slow
def test_attach_with_an_app_drives_a_waiting_run(
    midrun_process: ProcessRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run continues in another process."""
    local = CommandRunner(capsys, "--store", midrun_process.env["MIDRUN_STORE"])
    result = local("run", f"{APP}:asker", "Ask me")
    assert result.code == 75
    (ask,) = local("asks", "--json").values
    assert f"decide with: midrun answer {ask['ref']} VALUE" in result.out
    assert "a worker takes it" in local("answer", str(ask["ref"]), "red").out
    done = local("attach", str(ask["run_id"]), "--app", str(APP))
    assert done.code == 0
    assert done.out.endswith("completed:\nred!\n")


@pytest.mark.slow
def test_a_server_without_worker_needs_no_api_key_and_a_worker_no_token(
    midrun_process: ProcessRunner, tmp_path: Path
) -> None:
    """They can have different accounts: the server with the token runs no tool."""
    app = tmp_path / "both.py"
    app.write_text(f"{APP.read_text()}\nall_agents.append(Agent('a', model='openai:gpt-5'))\n")
    for name in ("OPENAI_API_KEY", "MIDRUN_TOKEN"):
        midrun_process.env.pop(name, None)
    arguments = ("run", "searcher", "Find cats", "--json")
    with (
        serve_app(midrun_process, "--engine", "none", app=f"{app}:all_agents") as url,
        midrun_process.start(*arguments, "--url", url, MIDRUN_TOKEN=TOKEN) as run_process,
    ):
        run = json.loads(read_until(run_process, '"RunStarted"'))
        assert run["seq"] == 1
        (row,) = midrun_process.run("ls", "--json").values
        assert row["phase"] == "queued"
        with midrun_process.start("worker", f"{APP}:all_agents") as worker:
            read_until(run_process, "Found cats.")
            worker.terminate()


@pytest.mark.slow
def test_a_worker_stands_down_on_sigterm(midrun_process: ProcessRunner, tmp_path: Path) -> None:
    """Its runs are queued for other workers, not paused."""
    gate = str(tmp_path / "gate")
    with (
        serve_app(midrun_process, GATE=gate) as url,
        midrun_process.start(
            "run", "searcher", "Find cats", "--url", url, "--json", MIDRUN_TOKEN=TOKEN
        ) as run_process,
    ):
        run = json.loads(read_until(run_process, '"RunStarted"'))
        read_until(run_process, '"call_kind":"tool"')
        run_process.kill()
    assert run["seq"] == 1
    (row,) = midrun_process.run("ls", "--json").values
    assert row["phase"] == "queued"  # the server stood down before it exited
    with midrun_process.start("worker", f"{APP}:all_agents") as worker:
        read_until(worker, "driving the runs of")
        assert "Found cats." in midrun_process.run("feed", str(row["run_id"]), "--follow").out
        worker.send_signal(signal.SIGTERM)
        read_until(worker, "stopped")
        assert worker.wait() == 0


STUBBORN_APP = """
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
def stubborn_app(midrun_process: ProcessRunner, tmp_path: Path) -> Path:
    """Return an app with a tool that does not stop, and queue a run for it."""
    app = tmp_path / "stubborn_app.py"
    app.write_text(STUBBORN_APP)

    async def queue() -> None:
        agent = Agent("stubborn", model=ScriptedModel(["."]))
        async with Midrun(
            midrun_process.env["MIDRUN_STORE"], agents=[agent], engine=None
        ) as midrun:
            await midrun.start(agent, "go")

    anyio.run(queue)
    return app


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shielded", "blocked"])
def test_a_worker_exits_after_the_grace_of_a_tool_that_does_not_stop(
    midrun_process: ProcessRunner,
    stubborn_app: Path,
    name: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The log names the tool, and the run is queued for other workers."""
    with midrun_process.start("worker", str(stubborn_app), TOOL=name, GRACE="0.2") as worker:
        read_until(worker, "began")
        worker.send_signal(signal.SIGTERM)
        read_until(worker, "stopped")
        assert worker.wait() == 0
    assert f"code did not stop: tool {name}" in capfd.readouterr().err
    (row,) = midrun_process.run("ls", "--json").values
    assert row["phase"] == "queued"


def test_a_second_signal_ends_a_worker_at_once(
    midrun_process: ProcessRunner, stubborn_app: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The grace of its call is an hour."""
    with midrun_process.start(
        "worker", str(stubborn_app), TOOL="shielded", GRACE="3600"
    ) as worker:
        read_until(worker, "began")
        worker.send_signal(signal.SIGTERM)
        read_until(worker, "stopping")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 128 + signal.SIGTERM
    assert "ended by another SIGTERM" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "nowhere.py", "x"], "there is no such file; check the path"),
        (["run", "", "x"], "APP must be file.py, file.py:agent or module:agent"),
        (["run", str(APP), "x"], "choose one with --agent"),
        (["run", str(APP), "x", "--agent", "seracher"], "its agents are: searcher, asker"),
        (["ls", "--store", "sqlite:///typo.db"], "there is no store at typo.db"),
        (["pause", "x", "--store", "sqlite:///typo.db"], "start a run to create it"),
        (["run", f"{APP}:asker", "x", "--store", "sqlite:///no/x.db"], "the folder no first"),
        (["ls", "--store", "nonsense://"], "--store must be memory://, sqlite:///"),
        (["ls", "--store", "memory://", "--url", "http://x"], "give one of them"),
        (["show", "", "--store", "memory://"], "the id must not be empty"),
        (["ls", "--phase", "over", "--store", "memory://"], "--phase must be one of queued,"),
        (["ls", "--url", "localhost:8700"], "--url must be like http://host:8700"),
        (["serve", f"{APP}:asker", "--port", "99999"], "--port must be from 0 to 65535"),
        (
            ["serve", f"{APP}:asker", "--host", "0.0.0.0"],  # noqa: S104 - it is refused
            "Pass --token-file or --users-file, or set MIDRUN_",
        ),
        (["serve", f"{APP}:asker", "--tls-key", "x"], "Pass --tls-cert"),
        (["serve", f"{APP}:asker", "--root-path", "x"], "--root-path must be like /midrun"),
        (["worker", f"{APP}:asker", "--webhook", "x"], "--webhook: the address must begin"),
        (["worker", f"{APP}:asker", "--quota", "x"], "--quota x must be user.NAME=N"),
        (["serve", f"{APP}:asker", "--encryption-keys-file", "x"], "read the encryption keys"),
        (["ls", "--frmat"], "more: midrun ls --help"),
        (["puase", "x"], "did you mean pause?"),
        (["pause", "x", "--nwo"], "did you mean --now?"),
        (["say", "x", "y", "--urgency", "nxt"], "did you mean next?"),
        (["pause"], "more: midrun pause --help"),
        (["feed", "x", "--fol"], "did you mean --follow?"),
    ],
)
def test_usage_errors_suggest_the_probable_meaning(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    """Without a traceback; the exit code is 2: the command must be typed in another way."""
    result = CommandRunner(capsys)(*arguments)
    assert (result.code, expected in result.err) == (2, True), result.err
    assert "Traceback" not in result.err
    assert not Path("typo.db").exists()
    (value,) = CommandRunner(capsys)(*arguments, "--json").values
    assert expected in str(value["text"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["demo", "--store", "sqlite:///file/runs.db"],
            "file: Cannot use it: File exists. Check",
        ),
        (["demo", "--store", "sqlite:///file/x/runs.db"], "file/x: Cannot use it: Not a dir"),
        (["serve", f"{APP}:asker", "--port", "0"], "Not a directory. Set MIDRUN_TOKEN, or set"),
        (
            ["users", "add", "ada", "--users-file", "no/users"],
            "No such file or directory. Create",
        ),
        (["run", "file", "x"], "file: is not a file of Python; name one that ends in .py"),
    ],
)
def test_a_path_that_cannot_be_used_is_named_with_the_reason(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    expected: str,
) -> None:
    """Here a file is in the place of a folder: root, who runs these tests, may write to all."""
    Path("file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(Path("file").absolute()))
    result = CommandRunner(capsys)(*arguments)
    assert (result.code, expected in result.err) == (2, True), result.err
    (value,) = CommandRunner(capsys)(*arguments, "--json").values
    assert expected in str(value["text"])


INTERRUPT_AT_IMPORT = """
import signal, sys
from midrun.cli.main import main

class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
main(["ls"])
"""


@pytest.mark.parametrize("module", ["midrun.cli.parser", "midrun.cli.command_runner"])
def test_ctrl_c_during_the_imports_prints_no_traceback(
    midrun_process: ProcessRunner, module: str
) -> None:
    """They take a third of a second on a slow machine."""
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", INTERRUPT_AT_IMPORT.format(module=module)],
        env=midrun_process.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(
    ("source", "expected"),
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
def test_the_error_for_an_app_that_cannot_be_imported_is_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    source: str,
    expected: str,
) -> None:
    """It has the line number in the app, not in a library."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.invalidate_caches()
    (tmp_path / "broken.py").write_text(source)
    result = CommandRunner(capsys)("worker", "broken.py")
    assert (result.code, result.err.count("\n"), expected in result.err) == (2, 1, True), (
        result.err
    )


def test_the_file_of_the_tutorial_can_be_imported_as_an_app(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The import must not start a run."""
    page = ROOT / "docs" / "tutorial.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "memo.py").write_text("\n".join(blocks))
    assert [agent.name for agent in load_agents("memo.py")] == ["writer"]
    assert not (tmp_path / "memo.db").exists()


FOREIGN_APP = """
from agents import Agent as OpenAIAgent
from google.adk.agents import Agent as AdkAgent
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from strands import Agent as StrandsAgent
from strands.models.anthropic import AnthropicModel

model = AnthropicModel(client_args={"api_key": "none"}, model_id="x", max_tokens=9)
porter = StrandsAgent(model)
root_agent = AdkAgent(name="guide", model="gemini-3.5-flash")
named = Agent(TestModel(), name="billing")
alias = named
support = Agent(TestModel())
clerk = create_agent(FakeListChatModel(responses=["Done."]), [])
tutor = OpenAIAgent(name="tutor")
"""


def test_agents_of_other_frameworks_in_a_module_are_hosted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The module has no line of Midrun. An agent without a name is named by its variable."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign_app.py").write_text(FOREIGN_APP)
    found = {agent.name: agent.framework for agent in load_agents("foreign_app.py")}
    assert found == {
        "billing": "pydantic-ai",
        "support": "pydantic-ai",
        "clerk": "langchain",
        "tutor": "openai-agents",
        "porter": "strands",
        "guide": "adk",
    }
    (one,) = load_agents("foreign_app.py:support")
    assert one.name == "support"


def test_the_help_of_each_command_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    midrun = CommandRunner(capsys)
    listing = midrun("--help").out
    for name in (name for commands in COMMAND_GROUPS.values() for name in commands):
        assert f"  {name} " in listing
        result = midrun(name, "--help")
        assert result.code == 0
        assert f"midrun {name}" in result.out.partition("example")[2]
        assert "--json" in result.out


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import midrun", PARSING_NEVER_IMPORTS | {"msgspec", "midrun.core", "midrun.errors"}),
        ("from midrun.cli.main import main; main(['--help'])", PARSING_NEVER_IMPORTS),
        (
            "from midrun.cli.main import main; main(['ls', '--no-such-option'])",
            PARSING_NEVER_IMPORTS,
        ),
        ("from midrun.cli.main import main; main(['ls'])", SHORT_COMMANDS_NEVER_IMPORT),
        (
            "from midrun.cli.main import main; main(['show', 'run_x'])",
            SHORT_COMMANDS_NEVER_IMPORT,
        ),
        (
            "from midrun.cli.main import main; main(['pause', 'run_x'])",
            SHORT_COMMANDS_NEVER_IMPORT,
        ),
        ("from midrun.cli.main import main; main(['asks'])", SHORT_COMMANDS_NEVER_IMPORT),
    ],
)
def test_heavy_modules_are_imported_only_when_they_are_needed(
    midrun_process: ProcessRunner, code: str, heavy: set[str]
) -> None:
    """A command in a shell must start fast."""
    Path(midrun_process.folder, "runs.db").touch()
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", f"{PRINT_MODULES_AT_EXIT}{code}"],
        env=midrun_process.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert heavy & set(done.stdout.splitlines()[-1].split()) == set()


@pytest.mark.slow
def test_a_closed_pipe_ends_the_command_without_a_traceback(
    midrun_process: ProcessRunner,
) -> None:
    """For example `midrun feed … | head`."""
    midrun_process.run("run", f"{APP}:searcher", "Find cats")
    midrun = f"{sys.executable} -m midrun"
    done = subprocess.run(  # noqa: S602 - the pipe is tested
        f"for i in 1 2 3; do {midrun} ls --json; done | head -c 1",
        shell=True,
        env=midrun_process.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


async def test_a_signal_right_after_the_link_stops_the_server() -> None:
    with anyio.open_signal_receiver(signal.SIGTERM), anyio.fail_after(60):
        async with Midrun("memory://") as midrun:
            await serve(
                midrun, port=0, token=TOKEN, say=lambda _: signal.raise_signal(signal.SIGTERM)
            )


def test_a_nested_exception_group_is_printed_as_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that breaks while a run is shown raises out of a task group."""

    async def raise_group(*_: object) -> int:
        raise ExceptionGroup("tasks", [ExceptionGroup("more", [RunNotFound("run_x")])])

    monkeypatch.setattr(command_runner, "_run_in_event_loop", raise_group)
    result = CommandRunner(capsys)("ls")
    assert (result.code, "run_x" in result.err, "Traceback" in result.err) == (1, True, False)


# ── missing agents, tasks and packages ───────────────────────────────────────


def _leave_answered_run(midrun: CommandRunner) -> str:
    """Start a run of the asker and answer it, so that it waits for a worker; return its id."""
    run = midrun("run", f"{APP}:asker", "Ask me").out.split()[0]
    assert midrun("answer", run, "red").code == 0
    return run


@pytest.mark.slow
def test_an_app_without_the_agent_of_a_run_names_the_agent(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In `attach`, `worker` and `serve`."""
    midrun_process = ProcessRunner(tmp_path)
    run = _leave_answered_run(
        CommandRunner(capsys, "--store", midrun_process.env["MIDRUN_STORE"])
    )
    app = f"{APP}:sender"
    missing_agent = f"asker, which {app} does not define (it defines sender)"
    with midrun_process.start("attach", run, "--app", app) as attached:
        read_until(attached, f"{run} needs agent {missing_agent}; it is not driven here")
        attached.kill()
    for command in (["worker", app], ["serve", app, "--port", "0"]):
        with midrun_process.start(*command) as started:
            read_until(started, f"1 run waits for {missing_agent}")
            started.terminate()
    with midrun_process.start("worker", f"{APP}:asker") as worker:
        assert "waits for" not in read_until(worker, "driving the runs of")
        assert "red!" in midrun_process.run("feed", run, "--follow").out
        worker.terminate()


def test_an_empty_task_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    result = CommandRunner(capsys)("run", f"{APP}:asker", "  ")
    assert result.code == 2
    assert result.err.startswith("midrun: task must ")


def test_importing_the_server_without_its_packages_names_the_extra() -> None:
    code = "import sys; sys.modules['starlette'] = None; import midrun.server"
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "Run pip install 'midrun[server]'" in done.stderr
