"""A process that drives a run whose model says what it is told, or one that watches a run.

It is told, and tells, in lines.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from midrun import Agent, Call, Midrun, tool
from midrun.core.values import Reply
from midrun.core.values import Use as Wanted
from midrun.driver.live import Delta
from midrun.ports.model import Finished, Piece, Prompt, Unpriced

Lines = MemoryObjectReceiveStream[str]


def say(*words: object) -> None:
    """Print a line at once."""
    print(*words, flush=True)  # noqa: T201 - this is how it talks


class Told(Unpriced):
    """A model that says each line it is told, until `end`; or that makes a call, at `use`."""

    name = "told"

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Say the lines."""
        del prompt
        yield self._pieces()

    async def _pieces(self) -> AsyncIterator[Piece | Finished]:
        said: list[str] = []
        async for line in self._lines:
            if line in {"end", "use"}:
                uses = (Wanted(tool="work", args={}),) if line == "use" else ()
                yield Finished(reply=Reply(text="".join(said), uses=uses))
                return
            said.append(line)
            yield Piece(kind="text", text=line)


async def drive(path: str, name: str = "told") -> None:
    """Drive one run, and say its id; then its model is told what comes in."""
    put, got = anyio.create_memory_object_stream[str](1000)

    @tool
    async def work(call: Call) -> str:
        """Note each line, until `end`; `deaf` does not stop when it is told to."""
        async for line in got:
            if line == "end":
                break
            if line == "deaf":
                with anyio.CancelScope(shield=True):
                    await call.note("deaf")
                    await got.receive()
            await call.note(line)
        return "worked"

    agent = Agent(name, model=Told(got), tools=[work], grace=timedelta(milliseconds=100))
    async with Midrun(f"sqlite:///{path}", agents=[agent]) as midrun:
        run = await midrun.start(agent, "Say it.")
        say(run.id)
        async for line in anyio.wrap_file(sys.stdin):
            if line.strip() == "cancel":
                await run.cancel(actor="ann")
            elif line.strip() == "wait":
                say((await run.until("terminal")).phase)
            else:
                await put.send(line.removesuffix("\n"))


async def watch(path: str, run_id: str) -> None:
    """Watch a run, and say every delta."""
    async with Midrun(f"sqlite:///{path}") as midrun:
        run = await midrun.get(run_id)
        say("here")
        async for item in run.feed():
            if isinstance(item, Delta):
                say(item.kind, item.text)
        say("over")


if __name__ == "__main__":
    {"drive": lambda *a: anyio.run(drive, *a), "watch": lambda *a: anyio.run(watch, *a)}[
        sys.argv[1]
    ](*sys.argv[2:])
