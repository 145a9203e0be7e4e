"""Another process, which builds the office afresh and does what its arguments say.

Its last line is what came of it, as JSON.
"""

import json
import sys

import anyio

from midrun import Checkpoint, Failed, Midrun, MidrunError, Outcome, Paused
from tests.scenarios.promises.office import office, script
from tests.support.store_choice import kept_at


def told(outcome: Outcome) -> dict[str, str]:
    """Return an outcome as the other process is told of it."""
    said = {"phase": outcome.phase, "output": getattr(outcome, "output", "")}
    if isinstance(outcome, Paused | Failed):
        said["checkpoint"] = outcome.checkpoint.to_json()
    return said


async def run(name: str, log: str, task: str) -> dict[str, str]:
    """Run the office without a store."""
    return told(await office(*script(name, log)).run(task))


async def resume(name: str, log: str, saved: str, answer: str, key: str) -> dict[str, str]:
    """Go on from a checkpoint, without a store."""
    text = await anyio.Path(saved).read_text()
    checkpoint = Checkpoint.from_json(text, key=bytes.fromhex(key) or None)
    return told(await office(*script(name, log)).resume(checkpoint, json.loads(answer)))


async def answer(name: str, log: str, path: str, run_id: str, value: str) -> dict[str, str]:
    """Answer the run of a store that both processes have, and drive it to its end."""
    async with Midrun(kept_at(path), agents=[office(*script(name, log))]) as midrun:
        run = await midrun.get(run_id)
        await run.answer(json.loads(value), actor="bob")
        await run.until("terminal")
        return told(await run.result())


async def drive(name: str, log: str, path: str, *phases: str) -> dict[str, str]:
    """Drive whatever runs there are until a run is in one of the phases."""
    async with Midrun(kept_at(path), agents=[office(*script(name, log))]) as midrun:
        (row,) = (await midrun.runs()).items
        run = await midrun.get(row.run_id)
        return {"phase": (await run.until(*phases)).phase}


async def halt(path: str, scope: str, reason: str) -> dict[str, str]:
    """Set a latch, from a process that drives nothing."""
    async with Midrun(kept_at(path)) as midrun:
        await midrun.halt(reason, scope=scope, actor="operator:olga")
        return {"phase": "latched"}


VERBS = {"run": run, "resume": resume, "answer": answer, "drive": drive, "halt": halt}


def main() -> None:
    """Do what the arguments say, and tell of it."""
    verb, *arguments = sys.argv[1:]
    try:
        said: dict[str, str] = anyio.run(VERBS[verb], *arguments)  # type: ignore[arg-type]  # by name
    except MidrunError as error:
        said = {"error": error.code, "reason": getattr(error, "reason", ""), "text": str(error)}
    print(json.dumps(said))  # noqa: T201 - this is how it talks


if __name__ == "__main__":
    main()
