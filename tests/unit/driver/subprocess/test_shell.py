"""The built-in tool `shell`: output, exit code, and the end of its processes."""

from pathlib import Path

import anyio

from midrun.agents.builtin_tools import OUTPUT_MAX_BYTES, shell
from midrun.agents.tool import find_import_path
from midrun.core.values import Json
from midrun.driver.subprocess.protocol import Died, Returned
from midrun.driver.subprocess.zygote_client import Zygote
from tests.unit.driver.subprocess.process_calls import (
    LONG_GRACE,
    TIMEOUT_S,
    Fifo,
    ProcessEnd,
    ignore_callback,
    make_task,
    run_task,
)


async def _run(zygote: Zygote, command: str) -> dict[str, Json]:
    outcome = await run_task(zygote, make_task(_find_shell_path(), {"command": command}))
    assert isinstance(outcome, Returned)
    assert isinstance(outcome.value, dict)
    return outcome.value


def _find_shell_path() -> str:
    path = find_import_path(shell("sh"))
    assert path, "a tool without an import path does not run in a process"
    return path


async def test_a_command_returns_its_exit_code_and_its_output(zygote: Zygote) -> None:
    """A command that fails is a result, too: the model reads its error output."""
    assert await _run(zygote, "echo one | tr a-z A-Z; echo two >&2; cat; exit 3") == {
        "exit_code": 3,
        "stdout": "ONE\n",
        "stderr": "two\n",
    }
    assert (await _run(zygote, "kill -9 $$"))["exit_code"] == -9


async def test_long_output_keeps_its_beginning_and_its_end(zygote: Zygote) -> None:
    """The output goes to a model. Bytes that are no text are replaced."""
    printed = (await _run(zygote, "echo begin; head -c 1000000 /dev/zero; echo end"))["stdout"]
    assert isinstance(printed, str)
    assert printed.startswith("begin\n")
    assert printed.endswith("end\n")
    assert "bytes left out" in printed
    assert len(printed) < OUTPUT_MAX_BYTES + 100
    assert (await _run(zygote, r"printf '\377x'"))["stdout"] == "\ufffdx"


async def test_the_whole_pipeline_dies_with_the_call(zygote: Zygote, tmp_path: Path) -> None:
    """Killing the shell alone would leave the other processes running."""
    begun, gate = Fifo(tmp_path / "begun"), Fifo(tmp_path / "gate")
    effect = tmp_path / "effect"
    command = f"""
        (read line < {gate.path}; touch {effect}) & background=$!
        echo $$ $background > {begun.path}; read line < {gate.path} | cat; touch {effect}
    """
    it = make_task(_find_shell_path(), {"command": command})
    with anyio.fail_after(TIMEOUT_S):
        async with zygote.run_process(
            it, save=ignore_callback, note=ignore_callback, grace=LONG_GRACE
        ) as running:
            watches = [ProcessEnd(pid) for pid in await begun.read_numbers()]
    for watch in watches:
        await watch.wait_for_end()
    gate.let_one_through()
    gate.let_one_through()
    assert isinstance(running.final_outcome, Died)
    assert len(watches) == 2
    assert not effect.exists()
