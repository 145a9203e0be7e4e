"""Ask a side question during a task; the agent answers and returns to the task.

python examples/literature.py
"""

import anyio

from midrun import Agent, Midrun, tool
from midrun.events import EntryAppended
from midrun.models import ScriptedModel, Use

reading, book_closed = anyio.Event(), anyio.Event()


@tool(read_only=True)
async def read_papers(topic: str) -> str:
    """Read the papers that were found; this takes a while."""
    reading.set()
    await book_closed.wait()
    return f"four papers on {topic}"


script: list[str | Use] = [
    Use(
        "plan",  # a tool of every agent; its items are shown as the plan
        items=["Find papers", "Read them", "Synthesise", "Write it up"],
        marks={"1": "done", "2": "running"},
    ),
    Use("read_papers", topic="sleep and memory"),
    "That was Walker, from Tuesday.",  # answers the side question
    Use("plan", marks={"2": "done", "3": "running"}),  # continues the task
    "The four papers agree: sleep helps.",
]
agent = Agent("scholar", model=ScriptedModel(script), tools=[read_papers])


async def main() -> None:
    """Ask during plan item 2, and print how the run returns to it."""
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "Literature synthesis")
        await reading.wait()

        receipt = await run.say("What was that paper from Tuesday?")
        print("runtime:", receipt.acknowledgement)  # immediate, and not from the model
        book_closed.set()

        async for event in run.events():
            if isinstance(event, EntryAppended) and event.kind in {
                "FramePushed",
                "FrameResumed",
            }:
                print("journal:", event.sentence)
        view = await run.view()
        print("agent:", view.output)
        print(view.position)


if __name__ == "__main__":
    anyio.run(main)
