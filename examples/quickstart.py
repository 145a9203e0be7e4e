"""Pause, redirect and cancel an agent that is already running; the model is played, no key.

python examples/quickstart.py
"""

import anyio

from midrun import Agent, Call, Midrun, Run, tool
from midrun.models import ScriptedModel, Use

# ── an agent, and the world that it changes ──────────────────────────────────────────────────

drafts: dict[str, str] = {}
mails: list[str] = []
page_arrives = anyio.Event()  # a web site that answers when we say so


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
    """Send the draft: the mail server is slow today."""
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


# ── a person, and the buttons ────────────────────────────────────────────────────────────────


async def main() -> None:
    """Start a run, and change our mind about it three times."""
    # "sqlite:///runs.db" keeps the runs, and lets any other process press these buttons.
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "Compare the three vendors")
        await in_the_middle_of(run, "search")

        # Pause. Asked for and happened are two facts: a started tool may finish, and only then
        # is the run paused. From there on nothing runs, and nothing is spent.
        receipt = await run.pause(actor="ada")
        print(receipt.phase)
        page_arrives.set()
        print((await run.until("paused")).phase)

        # Resume, with an instruction. The search is not made again: its result is kept.
        await run.resume("Vendor A will do. Write the memo.", actor="ada")
        await in_the_middle_of(run, "send_mail")

        # To the whole company? Cancel: stop what is in flight, and undo what was done.
        await run.cancel(undo="all", reason="wrong list", actor="ada")
        await run.until("cancelled")
        print(await run.report())
        print(f"drafts: {drafts}, mails: {mails}")

        # All of it is on the record, hash by hash.
        print(await midrun.verify(run.id))


async def in_the_middle_of(run: Run, tool_name: str) -> None:
    """Wait until a call of this tool is in flight."""
    async for _ in run.feed():
        if any(call.tool == tool_name for call in (await run.view()).in_flight):
            return


if __name__ == "__main__":
    anyio.run(main)
