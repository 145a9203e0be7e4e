"""Cancel a parent and its three children with one call. Each child is a run of its own.

python examples/family.py
"""

import anyio

from midrun import Agent, Call, Midrun, tool
from midrun.models import ScriptedModel, Use

VENDORS = ("Ajax", "Boreas", "Castor")
drafts: list[str] = []
busy = {name: anyio.Event() for name in VENDORS}


async def discard(_: Call, args: dict[str, str], __: object) -> None:
    """Undo `write_draft`."""
    drafts.remove(args["vendor"])


@tool(undo=discard)
async def write_draft(vendor: str) -> str:
    """Write a draft about a vendor."""
    drafts.append(vendor)
    return "written"


@tool(read_only=True)
async def call_vendor(vendor: str) -> str:
    """Call a vendor that never picks up."""
    busy[vendor].set()
    await anyio.sleep_forever()
    return "no answer"


def scout(vendor: str) -> Agent:
    """Return an agent that examines one vendor."""
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
    """Wait until all three children work, then cancel the parent and undo everything."""
    async with Midrun("memory://", agents=[boss]) as midrun:
        run = await midrun.start(boss, "Compare the vendors")
        for name in VENDORS:
            await busy[name].wait()
        print("drafts:", sorted(drafts))

        await run.cancel(undo="all")
        await run.until("cancelled")  # reached when every child has undone its work
        print("drafts:", sorted(drafts))
        for view in (await midrun.runs()).items:
            print(f"{view.agent}: {view.phase}")


if __name__ == "__main__":
    anyio.run(main)
