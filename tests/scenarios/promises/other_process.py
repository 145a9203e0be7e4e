"""A second process that builds the log agent anew and executes one command.

The last line of its output is the outcome as JSON.
"""

import json
import subprocess
import sys

import anyio

from midrun import Checkpoint, Failed, Midrun, MidrunError, Outcome, Paused
from tests.scenarios.promises.log_agent import get_script, log_agent
from tests.support.paths import ROOT
from tests.support.store_choice import get_store_url


async def run_in_other_process(*arguments: object) -> dict[str, str]:
    """Run this module with these arguments in a process; return its outcome."""
    command = [sys.executable, "-m", "tests.scenarios.promises.other_process"]
    with anyio.fail_after(120):
        ended = await anyio.run_process(
            [*command, *map(str, arguments)], cwd=ROOT, check=False, stderr=subprocess.STDOUT
        )
    output = ended.stdout.decode()
    assert ended.returncode == 0, output
    outcome: dict[str, str] = json.loads(output.splitlines()[-1])
    return outcome


# ── code that runs in the other process ───────────────────────────────────────────────────


def _encode_outcome(outcome: Outcome) -> dict[str, str]:
    fields = {"phase": outcome.phase, "output": getattr(outcome, "output", "")}
    if isinstance(outcome, Paused | Failed):
        fields["checkpoint"] = outcome.checkpoint.to_json()
    return fields


async def run(name: str, log: str, task: str) -> dict[str, str]:
    """Run the agent without a store."""
    return _encode_outcome(await log_agent(*get_script(name, log)).run(task))


async def resume(name: str, log: str, saved: str, answer: str, key: str) -> dict[str, str]:
    """Resume a checkpoint without a store."""
    text = await anyio.Path(saved).read_text()
    checkpoint = Checkpoint.from_json(text, key=bytes.fromhex(key) or None)
    agent = log_agent(*get_script(name, log))
    return _encode_outcome(await agent.resume(checkpoint, json.loads(answer)))


async def answer(name: str, log: str, path: str, run_id: str, value: str) -> dict[str, str]:
    """Answer a run in the shared store, and drive it to its end."""
    async with Midrun(
        get_store_url(path), agents=[log_agent(*get_script(name, log))]
    ) as midrun:
        run = await midrun.get(run_id)
        await run.answer(json.loads(value), actor="bob")
        await run.until("terminal")
        return _encode_outcome(await run.result())


async def drive(name: str, log: str, path: str, *phases: str) -> dict[str, str]:
    """Drive the only run of the shared store until it is in one of the phases."""
    async with Midrun(
        get_store_url(path), agents=[log_agent(*get_script(name, log))]
    ) as midrun:
        (row,) = (await midrun.runs()).items
        run = await midrun.get(row.run_id)
        return {"phase": (await run.until(*phases)).phase}


async def halt(path: str, scope: str, reason: str) -> dict[str, str]:
    """Set a halt, from a process without agents."""
    async with Midrun(get_store_url(path)) as midrun:
        await midrun.halt(reason, scope=scope, actor="operator:olga")
        return {"phase": "halted"}


COMMANDS = {"run": run, "resume": resume, "answer": answer, "drive": drive, "halt": halt}


def main() -> None:
    """Execute the command of the arguments, and print its outcome."""
    name, *arguments = sys.argv[1:]
    try:
        fields: dict[str, str] = anyio.run(COMMANDS[name], *arguments)  # type: ignore[arg-type]  # by name
    except MidrunError as error:
        reason = getattr(error, "reason", "")
        fields = {"error": error.code, "reason": reason, "text": str(error)}
    print(json.dumps(fields))  # noqa: T201 - the parent process reads it


if __name__ == "__main__":
    main()
