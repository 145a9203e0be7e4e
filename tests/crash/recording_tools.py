"""Tools that record each action in a file that outlives their process, and their agents.

Zygotes and all processes of these tests import this module. A line is appended in one write, so
that it is complete as soon as the action has happened.
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


class ToolAction(NamedTuple):
    """One line of the file: an action of a tool.

    `of` is the key of the call. `key` is that of the action itself, which differs for an undo.
    """

    name: str
    original_key: str
    key: str
    attempt: int
    pid: int


def record_action(folder: str, name: str, call: Call) -> None:
    """Append a line for an action of the call."""
    line = f"{name} {call.original} {call.key} {call.attempt} {os.getpid()}\n"
    file = os.open(f"{folder}/actions", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def read_actions(folder: Path) -> list[ToolAction]:
    """Return the actions so far, in order."""
    try:
        lines = (folder / "actions").read_text().splitlines()
    except FileNotFoundError:
        return []
    words = (line.split() for line in lines)
    return [ToolAction(what, of, key, int(n), int(pid)) for what, of, key, n, pid in words]


def get_folder(args: Json) -> str:
    assert isinstance(args, dict)
    return str(args["folder"])


# ── tools that return at once ────────────────────────────────────────────────


async def uncharge(call: Call, args: Json, result: Json) -> None:
    """Undo a charge."""
    del result
    record_action(get_folder(args), "uncharge", call)


@tool(undo=uncharge)
async def charge(call: Call, folder: str) -> str:
    """Charge once; can be undone."""
    record_action(folder, "charge", call)
    return "charged"


@tool(idempotent=True)
async def put(call: Call, folder: str) -> str:
    """Put something; idempotent, because the receiver knows the key."""
    record_action(folder, "put", call)
    return "put"


@tool(read_only=True)
async def look(call: Call, folder: str) -> str:
    """Change nothing."""
    record_action(folder, "look", call)
    return "seen"


@tool
def press(call: Call, folder: str) -> str:
    """Press once, in a process of its own."""
    record_action(folder, "press", call)
    return "pressed"


async def unlock(call: Call, args: Json, result: Json) -> None:
    """Release a lock."""
    del result
    record_action(get_folder(args), "unlock", call)


@tool(release=unlock)
async def lock(call: Call, folder: str) -> str:
    """Lock something until the run ends."""
    record_action(folder, "lock", call)
    return "locked"


async def unhold(call: Call, args: Json, result: Json) -> None:
    """Undo a hold."""
    del result
    record_action(get_folder(args), "unhold", call)


@tool(undo=unhold)
async def hold(call: Call, folder: str) -> str:
    """Act, send a note, and never return."""
    record_action(folder, "hold", call)
    await call.note("holding")
    await anyio.sleep_forever()
    return "never"


def make_completing_agent(name: str, folder: Path) -> Agent:
    """Return an agent that uses tools of each kind and completes."""
    folder_name = str(folder)
    turns: list[Line] = [
        [
            "Three at once. ",
            Use("charge", folder=folder_name),
            Use("put", folder=folder_name),
            Use("look", folder=folder_name),
        ],
        ["Now the big one. ", Use("press", folder=folder_name)],
        [Use("lock", folder=folder_name)],
        "Done.",
    ]
    return Agent(name, model=ScriptedModel(turns), tools=[charge, put, look, press, lock])


def make_held_agent(name: str, folder: Path) -> Agent:
    """Return an agent that stays in `hold` until it is cancelled."""
    folder_name = str(folder)
    turns: list[Line] = [
        [Use("charge", folder=folder_name), Use("put", folder=folder_name)],
        [Use("lock", folder=folder_name)],
        ["Hold on. ", Use("hold", folder=folder_name)],
        "Never.",
    ]
    return Agent(name, model=ScriptedModel(turns), tools=[charge, put, lock, hold])


STORIES = {"completing": make_completing_agent, "held_up": make_held_agent}


# ── tools that wait for the test ─────────────────────────────────────────────


def wait_at_gate(gate: str) -> None:
    with Path(gate).open() as file:
        file.readline()


@tool(in_process=True)
def dwell(call: Call, folder: str) -> str:
    """Act once after a gate, in a thread of the worker."""
    record_action(folder, "dwell-begun", call)
    wait_at_gate(f"{folder}/gate-{call.attempt}")
    record_action(folder, "dwell", call)
    return f"dwelt {call.attempt}"


@tool(in_process=True, idempotent=True)
def dwell_again(call: Call, folder: str) -> str:
    """Act after a gate, in a thread of the worker; idempotent."""
    record_action(folder, "dwell-begun", call)
    wait_at_gate(f"{folder}/gate-{call.attempt}")
    record_action(folder, "dwell", call)
    return f"dwelt {call.attempt}"


@tool
def labour(call: Call, folder: str) -> str:
    """Act once after a gate, in a process of its own."""
    record_action(folder, "labour-begun", call)
    wait_at_gate(f"{folder}/gate-{call.attempt}")
    record_action(folder, "labour", call)
    return "laboured"


@tool(idempotent=True)
async def linger(call: Call, folder: str) -> str:
    """Wait in the event loop until the file `open` exists; idempotent."""
    record_action(folder, "linger-begun", call)
    try:
        while not await anyio.Path(f"{folder}/open").exists():  # noqa: ASYNC110 - another process creates it
            await anyio.sleep(0.01)
    except BaseException:
        record_action(folder, "linger-stopped", call)
        raise
    record_action(folder, "linger", call)
    return f"lingered {call.attempt}"


WAITING_TOOLS = {tool.name: tool for tool in (dwell, dwell_again, labour, linger)}


def make_waiting_agent(name: str, folder: Path) -> Agent:
    """Return an agent that calls the waiting tool `name` and then `charge`."""
    folder_name = str(folder)
    turns: list[Line] = [
        ["Wait. ", Use(name, folder=folder_name)],
        Use("charge", folder=folder_name),
        "Done.",
    ]
    return Agent("waiting", model=ScriptedModel(turns), tools=[WAITING_TOOLS[name], charge])


# ── a tool that kills its worker ─────────────────────────────────────────────


BYSTANDERS = 3
LAST_ATTEMPT = 3
"""The attempt that is made without another call in flight."""


def count_bystanders(folder: str, attempt: int) -> int:
    started = (action for action in read_actions(Path(folder)) if action.name == "linger-begun")
    return sum(action.attempt == attempt for action in started)


@tool(read_only=True)
async def parse_pdf(call: Call, folder: str) -> str:
    """Parse a file in the event loop; a bad file crashes the process.

    The first two attempts crash while the calls of all bystanders are in flight.
    """
    record_action(folder, "parse", call)
    if await anyio.Path(f"{folder}/bad.pdf").exists():
        expected = BYSTANDERS if call.attempt < LAST_ATTEMPT else 0
        while count_bystanders(folder, call.attempt) < expected:  # noqa: ASYNC110 - as above
            await anyio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGSEGV)
        await anyio.sleep_forever()  # the signal arrives first
    return "parsed"


def make_parsing_agent(folder: Path) -> Agent:
    """Return an agent that parses the file."""
    turns: list[Line] = [Use("parse_pdf", folder=str(folder)), "Done."]
    return Agent("parsing", model=ScriptedModel(turns), tools=[parse_pdf])


def make_bystander_agent(folder: Path) -> Agent:
    """Return a harmless agent whose call is in flight during the crashes."""
    turns: list[Line] = [Use("linger", folder=str(folder)), "Done."]
    return Agent("beside", model=ScriptedModel(turns), tools=[linger])


# ── a tool with a result that does not fit on the disk ───────────────────────


@tool
async def bulk(call: Call, folder: str) -> str:
    """Act once, limit the file size of this process, and return a result that is too large."""
    record_action(folder, "bulk", call)
    size = (await anyio.Path(f"{folder}/runs.db-wal").stat()).st_size
    sys.dont_write_bytecode = True  # Python 3.11 would leave a truncated .pyc
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    return "x" * 500_000


def make_bulky_agent(folder: Path) -> Agent:
    """Return an agent with a result that does not fit until the limit is lifted."""
    folder_name = str(folder)
    turns: list[Line] = [
        [Use("bulk", folder=folder_name)],
        [Use("charge", folder=folder_name)],
        "Done.",
    ]
    return Agent("bulky", model=ScriptedModel(turns), tools=[bulk, charge])
