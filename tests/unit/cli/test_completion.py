"""Completion in bash, zsh and fish: Tab is pressed in a real shell."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect  # type: ignore[import-untyped]  # it has no types
import pytest

from tests.unit.cli.command_runner import APP, ProcessRunner

pytestmark = [pytest.mark.slow, pytest.mark.once]

TIMEOUT_S = 60
SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], 'eval "$(midrun completion bash)"'),
    "zsh": (["-f", "-i"], 'eval "$(midrun completion zsh)"'),
}
"""Shell → arguments to start it without settings, and the line for its rc file."""


@pytest.fixture(scope="module")
def midrun(tmp_path_factory: pytest.TempPathFactory) -> ProcessRunner:
    """Return a runner in a folder with an app, and a store with one run."""
    folder = tmp_path_factory.mktemp("completing")
    runner = ProcessRunner(folder)
    Path(folder, "app.py").touch()
    runner.run("run", f"{APP}:searcher", "Find cats")
    return runner


@pytest.fixture(scope="module")
def run(midrun: ProcessRunner) -> str:
    """Return the id of the run."""
    return midrun.run("completion", "runs").out.strip()


@contextmanager
def start_shell(midrun: ProcessRunner, name: str) -> Iterator["pexpect.spawn[str]"]:
    """Start a shell on a pseudo-terminal, with completion set up."""
    arguments, setup = SHELLS[name]
    env = {**midrun.env, "PS1": "ready> ", "TERM": "xterm", "HOME": str(midrun.folder)}
    child = pexpect.spawn(
        name, arguments, env=env, encoding="utf-8", timeout=TIMEOUT_S, dimensions=(50, 120)
    )
    try:
        child.expect_exact("ready> ")
        child.sendline(f"{setup}; echo on$((40 + 2))")
        child.expect_exact("on42")
        child.expect_exact("ready> ")
        yield child
    finally:
        child.close(force=True)


@pytest.mark.parametrize("name", ["bash", "zsh"])
def test_tab_completes_commands_options_and_runs(
    midrun: ProcessRunner, run: str, name: str
) -> None:
    """A unique match is inserted; of several, the list is shown."""
    with start_shell(midrun, name) as child:
        for typed, completed in (
            ("midrun redir", "ect"),
            ("midrun pause ", run),
            ("midrun pause x --no", "w"),
            ("midrun completion zs", "h"),
        ):
            child.send(typed)
            child.expect_exact(typed)
            child.send("\t")
            child.expect_exact(completed)
            child.send("\x15")  # clears the line
        child.send("midrun ta\t\t")
        child.expect_exact("take-over")
        child.send("\x15midrun re\t\t")
        remaining = ["redirect", "report", "resume-frame", "retry-undo"]
        while remaining:  # the order depends on the shell
            remaining.pop(child.expect_exact(remaining))


def test_fish_completes_commands_options_runs_and_files(
    midrun: ProcessRunner, run: str
) -> None:
    """Fish prints its completions without a terminal."""
    expected = {
        "midrun redir": {"redirect"},
        "midrun pause ": {run},
        "midrun pause x --no": {"--now"},
        "midrun completion zs": {"zsh"},
        "midrun re": {"redirect", "report", "resume", "resume-frame", "retry-undo"},
        "midrun run app": {"app.py"},
    }
    queries = "; ".join(f"complete -C '{line}'; echo then" for line in expected)
    done = subprocess.run(  # noqa: S603 - our own script
        ["fish", "--no-config", "-c", f"midrun completion fish | source; {queries}"],  # noqa: S607 - as installed
        env=midrun.env,
        cwd=midrun.folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    assert done.stderr == ""
    for (line, words), answer in zip(
        expected.items(), done.stdout.split("then\n"), strict=False
    ):
        assert words <= {row.partition("\t")[0] for row in answer.splitlines()}, line


@pytest.mark.parametrize("name", ["bash", "zsh"])
def test_the_completion_script_is_valid_in_its_shell(midrun: ProcessRunner, name: str) -> None:
    """It is parsed and not run: a quote in a help text must not break it."""
    script = midrun.run("completion", name).out
    done = subprocess.run(  # noqa: S603 - it is only parsed
        [name, "-n"],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
