"""What the agents of these tests do: every deed leaves a line in a file that outlives it.

A zygote imports this module, and so does every process of these tests. A line is appended in
one write, so that it is there as soon as the deed has happened, and whole.
"""

import os
import resource
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import anyio

from midrun import Agent, Call, tool
from midrun.core.values import Json
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line


class Deed(NamedTuple):
    """One line: what was done, of which call, at which attempt, by which process.

    `of` is the key of the call; `key` is the deed's own, which is another one for an undo.
    """

    what: str
    of: str
    key: str
    attempt: int
    pid: int


def mark(folder: str, what: str, call: Call) -> None:
    """Have the effect: a line at the end of the file."""
    line = f"{what} {call.original} {call.key} {call.attempt} {os.getpid()}\n"
    file = os.open(f"{folder}/deeds", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def deeds(folder: Path) -> list[Deed]:
    """Return what was done so far, in order."""
    try:
        lines = (folder / "deeds").read_text().splitlines()
    except FileNotFoundError:
        return []
    words = (line.split() for line in lines)
    return [Deed(what, of, key, int(n), int(pid)) for what, of, key, n, pid in words]


def _folder(args: Json) -> str:
    assert isinstance(args, dict)
    return str(args["folder"])


# ── at once ──────────────────────────────────────────────────────────────────


async def uncharge(call: Call, args: Json, result: Json) -> None:
    """Take a charge back."""
    del result
    mark(_folder(args), "uncharge", call)


@tool(undo=uncharge)
async def charge(call: Call, folder: str) -> str:
    """Act once; can be undone."""
    mark(folder, "charge", call)
    return "charged"


@tool(idempotent=True)
async def put(call: Call, folder: str) -> str:
    """Act as often as you like: the far end knows the key."""
    mark(folder, "put", call)
    return "put"


@tool(read_only=True)
async def look(call: Call, folder: str) -> str:
    """Change nothing."""
    mark(folder, "look", call)
    return "seen"


@tool
def press(call: Call, folder: str) -> str:
    """Act once, in a process of its own."""
    mark(folder, "press", call)
    return "pressed"


async def unlock(call: Call, args: Json, result: Json) -> None:
    """Release a lock."""
    del result
    mark(_folder(args), "unlock", call)


@tool(release=unlock)
async def lock(call: Call, folder: str) -> str:
    """Hold something until the run ends."""
    mark(folder, "lock", call)
    return "locked"


async def unhold(call: Call, args: Json, result: Json) -> None:
    """Take back what was held up."""
    del result
    mark(_folder(args), "unhold", call)


@tool(undo=unhold)
async def hold(call: Call, folder: str) -> str:
    """Act, say so, and never come to an end."""
    mark(folder, "hold", call)
    await call.note("holding")
    await anyio.sleep_forever()
    return "never"


def completing(name: str, folder: Path) -> Agent:
    """Return an agent that does a little of everything, and completes."""
    at = str(folder)
    turns: list[Line] = [
        [
            "Three at once. ",
            Use("charge", folder=at),
            Use("put", folder=at),
            Use("look", folder=at),
        ],
        ["Now the big one. ", Use("press", folder=at)],
        [Use("lock", folder=at)],
        "Done.",
    ]
    return Agent(name, model=ScriptedModel(turns), tools=[charge, put, look, press, lock])


def held_up(name: str, folder: Path) -> Agent:
    """Return an agent that comes as far as `hold`, to be cancelled there."""
    at = str(folder)
    turns: list[Line] = [
        [Use("charge", folder=at), Use("put", folder=at)],
        [Use("lock", folder=at)],
        ["Hold on. ", Use("hold", folder=at)],
        "Never.",
    ]
    return Agent(name, model=ScriptedModel(turns), tools=[charge, put, lock, hold])


STORIES = {"completing": completing, "held_up": held_up}


# ── where a test stops them ──────────────────────────────────────────────────


def _wait_at(gate: str) -> None:
    with Path(gate).open() as waiting:
        waiting.readline()


@tool(in_process=True)
def dwell(call: Call, folder: str) -> str:
    """Act once behind a gate, in a thread of the driving process."""
    mark(folder, "dwell-begun", call)
    _wait_at(f"{folder}/gate-{call.attempt}")
    mark(folder, "dwell", call)
    return f"dwelt {call.attempt}"


@tool(in_process=True, idempotent=True)
def dwell_again(call: Call, folder: str) -> str:
    """Act behind a gate, in a thread of the driving process; the far end knows the key."""
    mark(folder, "dwell-begun", call)
    _wait_at(f"{folder}/gate-{call.attempt}")
    mark(folder, "dwell", call)
    return f"dwelt {call.attempt}"


@tool
def labour(call: Call, folder: str) -> str:
    """Act once behind a gate, in a process of its own."""
    mark(folder, "labour-begun", call)
    _wait_at(f"{folder}/gate-{call.attempt}")
    mark(folder, "labour", call)
    return "laboured"


@tool(idempotent=True)
async def linger(call: Call, folder: str) -> str:
    """Act in the event loop, as long as the gate is not there."""
    mark(folder, "linger-begun", call)
    try:
        while not await anyio.Path(f"{folder}/open").exists():  # noqa: ASYNC110 - another process makes it
            await anyio.sleep(0.01)
    except BaseException:
        mark(folder, "linger-stopped", call)
        raise
    mark(folder, "linger", call)
    return f"lingered {call.attempt}"


WAITING = {tool.name: tool for tool in (dwell, dwell_again, labour, linger)}


def waiting(name: str, folder: Path) -> Agent:
    """Return an agent that makes the call `name`, which waits, and after it another."""
    at = str(folder)
    turns: list[Line] = [["Wait. ", Use(name, folder=at)], Use("charge", folder=at), "Done."]
    return Agent("waiting", model=ScriptedModel(turns), tools=[WAITING[name], charge])


# ── what ends its process ────────────────────────────────────────────────────


BYSTANDERS = 3
ALONE = 3
"""The attempt that finds no other call beside it."""


def _beside(folder: str, attempt: int) -> int:
    begun = (deed for deed in deeds(Path(folder)) if deed.what == "linger-begun")
    return sum(deed.attempt == attempt for deed in begun)


@tool(read_only=True)
async def parse_pdf(call: Call, folder: str) -> str:
    """Read a file in the event loop; a bad one is more than the parser can bear.

    Twice it has all others at work before it dies, and so dies with them.
    """
    mark(folder, "parse", call)
    if await anyio.Path(f"{folder}/bad.pdf").exists():
        while call.attempt < ALONE and _beside(folder, call.attempt) < BYSTANDERS:  # noqa: ASYNC110 - as above
            await anyio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGSEGV)
        await anyio.sleep_forever()  # it comes before the loop turns
    return "parsed"


def parsing(folder: Path) -> Agent:
    """Return an agent that reads the file."""
    turns: list[Line] = [Use("parse_pdf", folder=str(folder)), "Done."]
    return Agent("parsing", model=ScriptedModel(turns), tools=[parse_pdf])


def beside(folder: Path) -> Agent:
    """Return an agent that harms nobody, and is at work while others do."""
    turns: list[Line] = [Use("linger", folder=str(folder)), "Done."]
    return Agent("beside", model=ScriptedModel(turns), tools=[linger])


# ── with too much to say ─────────────────────────────────────────────────────


@tool
async def bulk(call: Call, folder: str) -> str:
    """Act once, forbid the files of this process to grow, and return more than fits."""
    mark(folder, "bulk", call)
    size = (await anyio.Path(f"{folder}/runs.db-wal").stat()).st_size
    sys.dont_write_bytecode = True  # Python 3.11 would leave half a file, and call it whole
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    return "x" * 500_000


def bulky(folder: Path) -> Agent:
    """Return an agent that makes a call with a result that is too large for now."""
    at = str(folder)
    turns: list[Line] = [[Use("bulk", folder=at)], [Use("charge", folder=at)], "Done."]
    return Agent("bulky", model=ScriptedModel(turns), tools=[bulk, charge])
