"""The tools of the chaos run. They have effects in an external service.

A tool gets the folder of the service as an argument, so that blocking tools can be imported by
name and run in a process of their own. That process imports this module, so it imports little.
"""

from functools import lru_cache
from pathlib import Path
from typing import Final, cast

import anyio

from midrun import Call, File, tool
from midrun.core.values import Json
from tests.scenarios.fleet.external_service import Effect, ExternalService

EFFECT_S: Final = 0.02
"""Seconds before and after an effect: long enough to be interrupted."""

SHARED_TEXT: Final = "The same content in every run, stored once.\n" * 20


@lru_cache
def get_service(folder: str) -> ExternalService:
    """Return the connection of this process to the service."""
    return ExternalService(Path(folder))


def _get_folder(args: Json) -> str:
    return str(cast("dict[str, Json]", args)["folder"])


async def _have_effect(what: str, call: Call, folder: str, *, knows_keys: bool = False) -> str:
    await anyio.sleep(EFFECT_S)
    effect = Effect(what, call.run_id, call.key, call.attempt)
    get_service(folder).record(effect, knows_keys=knows_keys)
    await anyio.sleep(EFFECT_S)
    return f"{what} done"


def _reverse(what: str, call: Call, args: Json) -> None:
    """Record an undo or a release once; the service then refuses the call itself."""
    effect = Effect(what, call.run_id, call.original, call.attempt)
    service = ExternalService(Path(_get_folder(args)))
    service.record(effect, knows_keys=True, closes=True)
    service.close()


@tool(read_only=True)
async def look(folder: str) -> str:
    """Change nothing."""
    del folder
    await anyio.sleep(EFFECT_S)
    return "seen"


@tool
async def pay(call: Call, folder: str) -> str:
    """Have an effect that can be neither repeated nor undone."""
    return await _have_effect("pay", call, folder)


@tool(approve=True)
async def spend(call: Call, folder: str) -> str:
    """Have such an effect after a person has approved it."""
    return await _have_effect("spend", call, folder)


@tool(idempotent=True)
async def order(call: Call, folder: str) -> str:
    """Have an effect in a service that recognises idempotency keys."""
    return await _have_effect("order", call, folder, knows_keys=True)


async def undo_draft(call: Call, args: Json, result: Json) -> None:
    """Undo a draft."""
    del result
    await anyio.sleep(EFFECT_S)
    _reverse("undo draft", call, args)


@tool(undo=undo_draft)
async def draft(call: Call, folder: str) -> str:
    """Have an effect that can be undone."""
    return await _have_effect("draft", call, folder)


def undo_press(call: Call, args: Json, result: Json) -> None:
    """Undo `press`, in a process of its own."""
    del result
    _reverse("undo press", call, args)


@tool(undo=undo_press)
def press(call: Call, folder: str) -> str:
    """Have an effect in a process of its own."""
    service = ExternalService(Path(folder))
    service.record(Effect("press", call.run_id, call.key, call.attempt))
    service.close()
    return "pressed"


async def unlock(call: Call, args: Json, result: Json) -> None:
    """Release a lock."""
    del result
    _reverse("unlock", call, args)


@tool(release=unlock)
async def lock(call: Call, folder: str) -> str:
    """Hold a resource until the run ends."""
    return await _have_effect("lock", call, folder)


@tool(idempotent=True)
async def publish(call: Call, folder: str) -> str:
    """Show an artifact that all runs have in common, and one of this call."""
    del folder
    await call.show("shared.md", "text/markdown", SHARED_TEXT)
    await anyio.sleep(EFFECT_S)
    await call.show("own.md", "text/markdown", f"Of {call.key} in attempt {call.attempt}.")
    return "published"


@tool(read_only=True)
async def attach(call: Call, folder: str) -> list[str | File]:
    """Return files beside the result."""
    del folder
    await anyio.sleep(EFFECT_S)
    return [
        "two files",
        File("shared.txt", "text/plain", SHARED_TEXT.encode()),
        File("own.txt", "text/plain", f"Of {call.key}.".encode()),
    ]


@tool(idempotent=True)
async def crawl(call: Call, folder: str) -> str:
    """Work in parts and save the progress after each of them."""
    del folder
    done = call.progress if isinstance(call.progress, int) else 0
    for part in range(done, 5):
        await anyio.sleep(EFFECT_S)
        await call.save(part + 1)
    return "crawled"


@tool(read_only=True)
async def stumble(call: Call, folder: str) -> str:
    """Fail always."""
    del folder
    await anyio.sleep(EFFECT_S)
    raise RuntimeError(f"stumbled in attempt {call.attempt}")


@tool(read_only=True)
async def rest(folder: str) -> str:
    """Do nothing. Only the newer version of the agents has it."""
    del folder
    await anyio.lowlevel.checkpoint()
    return "rested"


# ── steps of hosted agents ───────────────────────────────────────────────────


def _record_ticket(what: str, folder: str, ticket: str) -> str:
    # A step of a hosted function has no `Call`: its ticket stands for the key of the call.
    service = ExternalService(Path(folder))
    service.record(Effect(what, ticket.partition("/")[0], ticket, 1))
    service.close()
    return f"{what} done"


async def pay_ticket(folder: str, ticket: str) -> str:
    """Pay, in the event loop."""
    await anyio.sleep(EFFECT_S)
    return _record_ticket("pay", folder, ticket)


async def draft_ticket(folder: str, ticket: str) -> str:
    """Draft, in the event loop."""
    await anyio.sleep(EFFECT_S)
    return _record_ticket("draft", folder, ticket)


def press_ticket(folder: str, ticket: str) -> str:
    """Press, in a process of its own."""
    return _record_ticket("press", folder, ticket)


async def undo_ticket(call: Call, args: Json, result: Json) -> None:
    """Undo a step of the function."""
    del result
    values = cast("dict[str, Json]", args)
    service = ExternalService(Path(str(values["folder"])))
    effect = Effect("undo ticket", call.run_id, str(values["ticket"]), call.attempt)
    service.record(effect, knows_keys=True, closes=True)
    service.close()
