"""Blocking tools that the tests run and kill. The zygote imports this module."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from datetime import date
from pathlib import Path
from typing import Never

from midrun.agents.builtin_tools import pause_here
from midrun.agents.file import File
from midrun.agents.tool import NOT_DONE, tool
from midrun.agents.tool_context import Call
from midrun.core.values import Json
from midrun.errors import FileRefused

IMPORTED_IN = os.getpid()


def wait_at_gate(begun: str, gate: str, *pids: int) -> None:
    """Write the process ids to `begun`, and wait until the gate is opened."""
    Path(begun).write_text(" ".join(map(str, [os.getpid(), *pids])) + "\n")
    with Path(gate).open() as waiting:
        waiting.readline()


@tool
def draw(call: Call, path: str) -> list[object]:
    """Show two files, one of which is refused, and return a third with a text."""
    _ = call.show("chart.svg", "image/svg+xml", "<svg/>")
    try:
        _ = call.show("large.bin", "application/octet-stream", b"")
    except FileRefused as refusal:
        Path(path).write_text(str(refusal))
    return ["drawn", File("dot.png", "image/png", bytes(range(256)))]


# ── tools that wait at a gate ────────────────────────────────────────────────


@tool
def hold(begun: str, gate: str, effect: str) -> str:
    """Have an effect after the gate."""
    wait_at_gate(begun, gate)
    Path(effect).touch()
    return "held"


@tool
def hold_with_family(begun: str, gate: str, effect: str) -> None:
    """Wait at the gate with a shell and a child of the shell; each has the effect after it."""
    script = 'echo $$; (read line < "$0"; touch "$1") & echo $!; read line < "$0"; touch "$1"'
    command = ["/bin/sh", "-c", script, gate, effect]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as shell:  # noqa: S603 - ours
        assert shell.stdout
        pids = [int(shell.stdout.readline()) for _ in range(2)]
        wait_at_gate(begun, gate, *pids)
        Path(effect).touch()


@tool
def finish_when_asked_to_stop(begun: str, gate: str, effect: str) -> str:
    """Finish when SIGTERM arrives."""
    del gate
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    Path(begun).write_text(f"{os.getpid()}\n")
    while not asked.is_set():
        signal.pause()
    Path(effect).touch()
    return "finished"


@tool
def save_when_asked_to_stop(call: Call, begun: str, gate: str, effect: str) -> str:
    """Save progress within the grace."""
    del effect
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        wait_at_gate(begun, gate)
    finally:
        call.save({"page": 7})  # type: ignore[unused-awaitable]  # blocking
    return "saved"


@tool
def ignore_requests_to_stop(begun: str, gate: str, effect: str) -> None:
    """Ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait_at_gate(begun, gate)
    Path(effect).touch()


@tool
def leave_children_behind(begun: str, gate: str, effect: str) -> int:
    """Return while a child process still waits at the gate."""
    child = os.fork()
    if not child:
        wait_at_gate(begun, gate)
        Path(effect).touch()
        os._exit(0)
    return child


# ── results ──────────────────────────────────────────────────────────────────


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def plain(day: date) -> str:
    """Take a typed argument; the function is not declared as a tool."""
    return day.strftime("%A")


@tool
def facts(call: Call) -> Json:
    """Return the facts of its call."""
    return [call.key, call.run_id, call.epoch, call.attempt, call.progress]


@tool
def surroundings() -> Json:
    """Return facts about its own process."""
    links = list(Path("/proc/self/fd").iterdir())
    return {
        "pid": os.getpid(),
        "zygote": os.getppid(),
        "imported_in": IMPORTED_IN,
        "session": os.getsid(0),
        "group": os.getpgrp(),
        "threads": threading.active_count(),
        "cwd": str(Path.cwd()),
        "path": sys.path,
        "open": sorted(str(link.readlink()) for link in links if link.is_symlink()),
        "chance": random.random(),  # noqa: S311 - two processes must differ
        "int": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "term": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    }


@tool
def not_json(effect: str) -> object:
    """Have an effect, and return something that cannot be stored."""
    Path(effect).touch()
    return {"when": [date(2024, 2, 29)]}


@tool
def huge(size: int, text: str = "x") -> str:
    """Return a text of that many characters."""
    return text * size


@tool
def save_and_note(call: Call, seen: str) -> str:
    """Save twice, note once, and return what was stored when the second save returned."""
    call.save({"page": 1})  # type: ignore[unused-awaitable]  # blocking
    call.note("half of it")  # type: ignore[unused-awaitable]  # blocking
    call.save({"page": 2})  # type: ignore[unused-awaitable]  # blocking
    return Path(seen).read_text()


@tool
def save_from_threads(call: Call, count: int) -> None:
    """Save from several threads at once."""
    threads = [threading.Thread(target=call.save, args=(n,)) for n in range(1, count + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@tool
def save_badly(call: Call) -> None:
    """Save a value that is not JSON."""
    call.save({"when": date(2024, 2, 29)})  # type: ignore[unused-awaitable]  # blocking


@tool
def ask(amount: int) -> str:
    """Ask a person."""
    try:
        pause_here("May I?", amount=amount)
    except Exception:  # noqa: BLE001 - as careless tools do
        return "no person was asked"


def undo(call: Call, args: Json, result: Json) -> Json:
    """Undo."""
    return [call.key, args, result]


def undo_at_gate(_: Call, args: dict[str, str], __: Json) -> None:
    """Undo after the gate."""
    wait_at_gate(args["begun"], args["gate"])
    Path(args["effect"]).touch()


def check(call: Call, args: Json) -> object:
    """Check whether the call took effect."""
    return [call.key, args] if args else NOT_DONE


# ── failures ─────────────────────────────────────────────────────────────────


@tool
def fail(text: str) -> Never:
    """Raise."""
    raise LookupError(text)


@tool
def leave(code: int) -> Never:
    """Raise SystemExit."""
    sys.exit(code)


@tool
def exit_at_once(code: int) -> Never:
    """End the process."""
    os._exit(code)


@tool
def crash() -> None:
    """Cause a segmentation fault."""
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    ctypes.string_at(0)


@tool
def close_everything() -> str:
    """Close all descriptors, as daemons do."""
    os.closerange(3, 1000)
    return "done"


@tool
def connect_in_its_place(address: str, count: int) -> str:
    """Close all descriptors, and connect until one gets the number of Midrun's socket."""
    os.closerange(3, 1000)
    for _ in range(count):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        connection.detach()
    return "done"


@tool
def write_to_everything() -> None:
    """Write to every open descriptor, and then wait for ever."""
    for fd in range(3, 20):
        try:
            socket.socket(fileno=os.dup(fd)).send(b"\xff" * 100)
        except OSError:
            continue
    signal.pause()


@tool
def kill_the_zygote(begun: str, gate: str, effect: str) -> None:
    """Kill the parent process, and continue."""
    os.kill(os.getppid(), signal.SIGKILL)
    wait_at_gate(begun, gate)
    Path(effect).touch()


NUMBER = 7
