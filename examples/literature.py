"""A side question in the middle of a synthesis: it is answered, and the thread is not lost.

python examples/literature.py
"""

import anyio

from midrun import Agent, Midrun, tool
from midrun.models import ScriptedModel, Use

reading, book_closed = anyio.Event(), anyio.Event()


@tool(read_only=True)
async def read_papers(topic: str) -> str:
    """Read what was found; it takes a while."""
    reading.set()
    await book_closed.wait()
    return f"four papers on {topic}"


script: list[str | Use] = [
    Use(
        "plan",  # every agent has it; its list is what people see as the steps
        items=["Find papers", "Read them", "Synthesise", "Write it up"],
        marks={"1": "done", "2": "running"},
    ),
    Use("read_papers", topic="sleep and memory"),
    "That was Walker, from Tuesday.",  # the side question
    Use("plan", marks={"2": "done", "3": "running"}),  # and on it goes
    "The four papers agree: sleep helps.",
]
agent = Agent("scholar", model=ScriptedModel(script), tools=[read_papers])


async def main() -> None:
    """Ask in the middle of step 2, and watch the run find back."""
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "Literature synthesis")
        await reading.wait()

        receipt = await run.say("What was that paper from Tuesday?")
        print("runtime:", receipt.said)  # at once, and in its own words
        book_closed.set()

        async for item in run.feed():
            if item.seq is None:
                continue
            if item.kind == "FramePushed":
                print("journal: held the synthesis")
            if item.kind == "FrameResumed":
                print("journal:", getattr(item.entry, "words", ""))
        view = await run.view()
        print("agent:", view.output)
        print(view.place)


if __name__ == "__main__":
    anyio.run(main)
