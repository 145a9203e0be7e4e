"""An agent that would search for ever is paused, and told to sum up what it has.

python examples/research.py
"""

import anyio

from midrun import Agent, Call, Completed, Midrun, tool
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use

ENOUGH = "Summarise and stop; no more searching."

searches: list[str] = []


@tool(read_only=True)
async def search(call: Call, topic: str) -> str:
    """Search the web."""
    searches.append(topic)
    await call.note(note(topic))  # live, for whoever watches the feed
    await anyio.sleep(0.2)  # the web takes its time
    return f"{topic} is fine"


def note(topic: str) -> str:
    """Return what is shown while a search is under way."""
    return f"searching {topic} …"


def think(messages: Transcript) -> str | list[str | Use]:
    """Play the model: search, and search, unless somebody has said that it is enough.

    A real model is given the same messages, and does the same with them.
    """
    found = [str(use.result) for turn in messages for use in turn.uses]
    if messages[-1].text == ENOUGH:
        return f"{len(found)} results: " + ", ".join(found)
    return ["Another one. ", Use("search", topic=f"vendor {len(found) + 1}")]


agent = Agent("researcher", model=ScriptedModel(think), tools=[search])


async def main() -> None:
    """Watch two searches begin, pause, and have the agent sum up."""
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "Compare the vendors")
        async for item in run.feed():  # entries, which have a seq, and what is only live
            if item.seq is None and item.kind == "note":
                print(item.text)
                if item.text == note("vendor 2"):
                    break

        await run.pause()
        await run.until("paused")  # the search that was under way has finished, and is kept
        before = len(searches)
        print(f"paused after {before} searches")

        await run.resume(ENOUGH)
        outcome = await run.result()
        assert isinstance(outcome, Completed)
        print(outcome.output)
        print(f"searches since the pause: {len(searches) - before}")


if __name__ == "__main__":
    anyio.run(main)
