"""Pause, redirect and cancel a running agent. The model is scripted, so no key is needed.

python examples/quickstart.py
"""

import anyio

from midrun import Agent, Call, Midrun, Run, tool
from midrun.events import ToolStarted
from midrun.models import ScriptedModel, Use

# ── the agent and its tools ──────────────────────────────────────────────────────────────────

drafts: dict[str, str] = {}
mails: list[str] = []
page_arrives = anyio.Event()  # the web site answers when this is set


@tool(read_only=True)
async def search(topic: str) -> str:
    """Search the web."""
    await page_arrives.wait()
    return f"all about {topic}"


async def discard(call: Call, args: dict[str, str], result: object) -> None:
    """Undo `write_draft`."""
    del call, result
    drafts.pop(args["title"], None)


@tool(undo=discard)
async def write_draft(title: str, body: str) -> str:
    """Write a draft."""
    drafts[title] = body
    return "written"


@tool
async def send_mail(to: str) -> str:
    """Send the draft. The mail server does not respond."""
    await anyio.sleep_forever()
    mails.append(to)
    return "sent"


agent = Agent(
    "assistant",
    tools=[search, write_draft, send_mail],
    model=ScriptedModel(  # or "openai:…", "anthropic:…"
        [
            ["I look at vendor A first. ", Use("search", topic="vendor A")],
            ["Then the memo. ", Use("write_draft", title="Memo", body="Take vendor A.")],
            ["And off it goes. ", Use("send_mail", to="the whole company")],
            "Sent.",
        ]
    ),
)


# ── the controls ─────────────────────────────────────────────────────────────────────────────


async def main() -> None:
    """Start a run, then pause, redirect and cancel it."""
    # With "sqlite:///runs.db", runs are stored and other processes can control them.
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "Compare the three vendors")
        await in_the_middle_of(run, "search")

        # pause() only requests; until("paused") confirms. The running tool may finish first.
        # Once the run is paused, nothing runs and nothing is billed.
        receipt = await run.pause(actor="ada")
        print(receipt.phase)
        page_arrives.set()
        print((await run.until("paused")).phase)

        # Resume with an instruction. The search is not repeated: its result is stored.
        await run.resume("Vendor A will do. Write the memo.", actor="ada")
        await in_the_middle_of(run, "send_mail")

        # Cancel: stop the call in flight, and undo the calls that have finished.
        await run.cancel(undo="all", reason="wrong list", actor="ada")
        await run.until("cancelled")
        print(await run.report())
        print(f"drafts: {drafts}, mails: {mails}")

        # Check the hash chain of the journal.
        print(await midrun.verify(run.id))


async def in_the_middle_of(run: Run, tool_name: str) -> None:
    """Wait until a call of this tool is in flight."""
    async for event in run.events():
        if isinstance(event, ToolStarted) and event.tool == tool_name:
            return


if __name__ == "__main__":
    anyio.run(main)
