"""A parent with three children: each a run of its own, all of them stopped with one cancel.

python examples/family.py
"""

import anyio

from midrun import Agent, Call, Midrun, tool
from midrun.models import ScriptedModel, Use

VENDORS = ("Ajax", "Boreas", "Castor")
drafts: list[str] = []
busy = {name: anyio.Event() for name in VENDORS}


async def discard(_: Call, args: dict[str, str], __: object) -> None:
    """Take a draft back."""
    drafts.remove(args["vendor"])


@tool(undo=discard)
async def write_draft(vendor: str) -> str:
    """Write a draft about a vendor."""
    drafts.append(vendor)
    return "written"


@tool(read_only=True)
async def call_vendor(vendor: str) -> str:
    """Call them; they keep us waiting."""
    busy[vendor].set()
    await anyio.sleep_forever()
    return "nobody answered"


def scout(vendor: str) -> Agent:
    """Return an agent that looks into one vendor."""
    script: list[str | Use] = [
        Use("write_draft", vendor=vendor),
        Use("call_vendor", vendor=vendor),
        "Done.",
    ]
    return Agent(vendor, model=ScriptedModel(script), tools=[write_draft, call_vendor])


delegate: list[str | Use] = [Use(name, task=f"Look into {name}") for name in VENDORS]
plan: list[str | list[str | Use]] = [delegate, "Done."]
boss = Agent(
    "boss",
    model=ScriptedModel(plan),
    tools=[scout(name).as_tool() for name in VENDORS],
)


async def main() -> None:
    """Wait until all three are at it, then cancel the parent and have all of it undone."""
    async with Midrun("memory://", agents=[boss]) as midrun:
        run = await midrun.start(boss, "Compare the vendors")
        for name in VENDORS:
            await busy[name].wait()
        print("drafts:", sorted(drafts))

        await run.cancel(undo="all")
        await run.until("cancelled")  # said when every child has undone its work
        print("drafts:", sorted(drafts))
        for view in (await midrun.runs()).items:
            print(f"{view.agent}: {view.phase}")


if __name__ == "__main__":
    anyio.run(main)
