"""Pause an agent that would search for ever, and tell it to sum up its results.

python examples/research.py
"""

import anyio

from midrun import Agent, Call, Completed, Midrun, tool
from midrun.core.transcript import Transcript
from midrun.events import ToolNote
from midrun.models import ScriptedModel, Use

ENOUGH = "Summarise and stop; no more searching."

searches: list[str] = []


@tool(read_only=True)
async def search(call: Call, topic: str) -> str:
    """Search the web."""
    searches.append(topic)
    await call.note(note(topic))  # live text in the feed; it is not stored
    await anyio.sleep(0.2)  # a slow web site
    return f"{topic} is fine"


def note(topic: str) -> str:
    """Return the text that is shown during a search."""
    return f"searching {topic} …"


def think(messages: Transcript) -> str | list[str | Use]:
    """Play the model: search again unless the last message is `ENOUGH`.

    A real model receives the same messages.
    """
    found = [str(use.result) for turn in messages for use in turn.uses]
    if messages[-1].text == ENOUGH:
        return f"{len(found)} results: " + ", ".join(found)
    return ["Another one. ", Use("search", topic=f"vendor {len(found) + 1}")]


agent = Agent("researcher", model=ScriptedModel(think), tools=[search])


async def main() -> None:
    """Wait for the second search, pause, and let the agent sum up."""
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "Compare the vendors")
        async for event in run.events():
            if isinstance(event, ToolNote):
                print(event.text)
                if event.text == note("vendor 2"):
                    break

        await run.pause()
        await run.until("paused")  # the running search has finished, and its result is stored
        before = len(searches)
        print(f"paused after {before} searches")

        await run.resume(ENOUGH)
        outcome = await run.result()
        assert isinstance(outcome, Completed)
        print(outcome.output)
        print(f"searches since the pause: {len(searches) - before}")


if __name__ == "__main__":
    anyio.run(main)
