"""Completion in the shells themselves: a person presses Tab, and reads what comes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect  # type: ignore[import-untyped]  # it has no types
import pytest

from tests.unit.cli.typist import APP, Shell

pytestmark = [pytest.mark.slow, pytest.mark.once]

PATIENCE_S = 60
SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], 'eval "$(midrun completion bash)"'),
    "zsh": (["-f", "-i"], 'eval "$(midrun completion zsh)"'),
}
"""Shell → how it starts without anybody's settings, and what its user has in the rc file."""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Give a shell in a folder with an app, and a store with one run."""
    folder = tmp_path_factory.mktemp("completing")
    made = Shell(folder, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    Path(folder, "app.py").touch()
    made.type("run", f"{APP}:searcher", "Find cats")
    return made


@pytest.fixture(scope="module")
def run(shell: Shell) -> str:
    """Give the id of the one run there is."""
    return shell.type("completion", "runs").out.strip()


@contextmanager
def at_the_prompt(shell: Shell, name: str) -> Iterator["pexpect.spawn[str]"]:
    """Start a shell on a terminal of its own, with its completion switched on."""
    arguments, switched_on = SHELLS[name]
    env = {**shell.env, "PS1": "ready> ", "TERM": "xterm", "HOME": str(shell.folder)}
    child = pexpect.spawn(
        name, arguments, env=env, encoding="utf-8", timeout=PATIENCE_S, dimensions=(50, 120)
    )
    try:
        child.expect_exact("ready> ")
        child.sendline(f"{switched_on}; echo on$((40 + 2))")
        child.expect_exact("on42")
        child.expect_exact("ready> ")
        yield child
    finally:
        child.close(force=True)


@pytest.mark.parametrize("name", ["bash", "zsh"])
def test_tab_completes_commands_options_and_runs(shell: Shell, run: str, name: str) -> None:
    """What is the only one is put in; of several, the list is shown."""
    with at_the_prompt(shell, name) as child:
        for begun, completed in (
            ("midrun redir", "ect"),
            ("midrun pause ", run),
            ("midrun pause x --no", "w"),
            ("midrun completion zs", "h"),
        ):
            child.send(begun)
            child.expect_exact(begun)
            child.send("\t")
            child.expect_exact(completed)
            child.send("\x15")  # and the line is cleared
        child.send("midrun ta\t\t")
        child.expect_exact("take-over")
        child.send("\x15midrun re\t\t")
        listed = ["redirect", "report", "resume-frame", "retry-undo"]
        while listed:  # in whatever order the shell has them
            listed.pop(child.expect_exact(listed))


def test_fish_completes_them_too(shell: Shell, run: str) -> None:
    """Fish says what it would offer, without a terminal."""
    wanted = {
        "midrun redir": {"redirect"},
        "midrun pause ": {run},
        "midrun pause x --no": {"--now"},
        "midrun completion zs": {"zsh"},
        "midrun re": {"redirect", "report", "resume", "resume-frame", "retry-undo"},
        "midrun run app": {"app.py"},
    }
    asked = "; ".join(f"complete -C '{line}'; echo then" for line in wanted)
    done = subprocess.run(  # noqa: S603 - our own script
        ["fish", "--no-config", "-c", f"midrun completion fish | source; {asked}"],  # noqa: S607 - as installed
        env=shell.env,
        cwd=shell.folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert done.stderr == ""
    for (line, words), said in zip(wanted.items(), done.stdout.split("then\n"), strict=False):
        assert words <= {row.partition("\t")[0] for row in said.splitlines()}, line


@pytest.mark.parametrize("name", ["bash", "zsh"])
def test_what_is_printed_is_a_script_of_that_shell(shell: Shell, name: str) -> None:
    """Read without being run: a quote in somebody's help must not break a whole shell."""
    script = shell.type("completion", name).out
    done = subprocess.run(  # noqa: S603 - it is only parsed
        [name, "-n"],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
