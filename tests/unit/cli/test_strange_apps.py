"""What is missing is named: the agent of a run, a task, the package of an extra."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.typist import APP, Shell, Typist, read_until


def _waiting(midrun: Typist) -> str:
    """Leave a run of the asker that goes on as soon as somebody takes it; return its id."""
    run = midrun("run", f"{APP}:asker", "Ask me").out.split()[0]
    assert midrun("answer", run, "red").code == 0
    return run


@pytest.mark.slow
def test_an_app_without_the_agent_says_what_waits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Whoever drives, watches or serves with it: named, with what it has instead."""
    shell = Shell(tmp_path)
    run = _waiting(Typist(capsys, "--store", shell.env["MIDRUN_STORE"]))
    app = f"{APP}:sender"
    has = f"asker, which {app} does not define (it defines sender)"
    with shell.start("attach", run, "--app", app) as attached:
        read_until(attached, f"{run} needs agent {has}; it is not driven here")
        attached.kill()
    for command in (["worker", app], ["serve", app, "--port", "0"]):
        with shell.start(*command) as started:
            read_until(started, f"1 run waits for {has}")
            started.terminate()
    with shell.start("worker", f"{APP}:asker") as worker:
        assert "waits for" not in read_until(worker, "driving the runs of")
        assert "red!" in shell.type("feed", run, "--follow").out
        worker.terminate()


def test_an_empty_task_is_no_task(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody means that; the name of the program is said once."""
    said = Typist(capsys)("run", f"{APP}:asker", "  ")
    assert said.code == 1
    assert said.err == "midrun: task must not be empty; describe the work\n"


def test_a_server_without_its_packages_names_the_extra() -> None:
    """Also to whoever imports it, and from a clone."""
    code = "import sys; sys.modules['starlette'] = None; import midrun.server"
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "Run pip install 'midrun[server]'" in done.stderr
