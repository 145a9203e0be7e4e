"""Child process of these tests: drives a run whose model repeats its input, or watches a run.

The test writes lines to its standard input and reads lines from its standard output.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from midrun import Agent, Call, Midrun, tool
from midrun.core.values import Reply
from midrun.core.values import RequestedCall as ToolUse
from midrun.driver.delta import Delta
from midrun.ports.model import Finished, Piece, Prompt, Unpriced

Lines = MemoryObjectReceiveStream[str]


def print_line(*words: object) -> None:
    """Print a line and flush it."""
    print(*words, flush=True)  # noqa: T201 - the test reads it


class LineModel(Unpriced):
    """A model that says each line it receives, until `end`; at `use` it makes a call."""

    name = "lines"

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Stream the received lines."""
        del prompt
        yield self._pieces()

    async def _pieces(self) -> AsyncIterator[Piece | Finished]:
        spoken: list[str] = []
        async for line in self._lines:
            if line in {"end", "use"}:
                uses = (ToolUse(tool="work", args={}),) if line == "use" else ()
                yield Finished(reply=Reply(text="".join(spoken), uses=uses))
                return
            spoken.append(line)
            yield Piece(kind="text", text=line)


async def drive_run(path: str, name: str = "lines") -> None:
    """Start one run and print its id; then pass each line of standard input on to it.

    The lines `cancel` and `wait` are commands for this process.
    """
    to_run, from_test = anyio.create_memory_object_stream[str](1000)

    @tool
    async def work(call: Call) -> str:
        """Note each line, until `end`; after `deaf`, ignore a cancel until the next line."""
        async for line in from_test:
            if line == "end":
                break
            if line == "deaf":
                with anyio.CancelScope(shield=True):
                    await call.note("deaf")
                    await from_test.receive()
            await call.note(line)
        return "worked"

    agent = Agent(
        name, model=LineModel(from_test), tools=[work], grace=timedelta(milliseconds=100)
    )
    async with Midrun(f"sqlite:///{path}", agents=[agent]) as midrun:
        run = await midrun.start(agent, "Say it.")
        print_line(run.id)
        async for line in anyio.wrap_file(sys.stdin):
            if line.strip() == "cancel":
                await run.cancel(actor="ann")
            elif line.strip() == "wait":
                print_line((await run.until("terminal")).phase)
            else:
                await to_run.send(line.removesuffix("\n"))


async def watch_run(path: str, run_id: str) -> None:
    """Watch a run, and print every delta."""
    async with Midrun(f"sqlite:///{path}") as midrun:
        run = await midrun.get(run_id)
        print_line("watching")
        async for item in run.feed():
            if isinstance(item, Delta):
                print_line(item.kind, item.text)
        print_line("ended")


if __name__ == "__main__":
    {
        "drive": lambda *a: anyio.run(drive_run, *a),
        "watch": lambda *a: anyio.run(watch_run, *a),
    }[sys.argv[1]](*sys.argv[2:])
