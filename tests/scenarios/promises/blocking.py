"""Blocking tools for the promises; the process that can be killed imports this module."""

import os
import signal
from pathlib import Path

from midrun import Call, tool


def begin_and_wait(begun: str, gate: str) -> None:
    """Say who is in the middle of it, and wait to be let on."""
    Path(begun).write_text(f"{os.getpid()}\n")
    with Path(gate).open() as waiting:
        waiting.readline()


@tool
def hold(begun: str, gate: str, effect: str) -> str:
    """Have an effect behind the gate."""
    begin_and_wait(begun, gate)
    Path(effect).touch()
    return "held"


@tool
def crawl_pages(call: Call, begun: str, gate: str, effect: str) -> str:
    """Save, and have an effect behind the gate; with progress, go on from there."""
    if call.progress is not None:
        return f"went on from page {call.progress}"
    call.save(2)  # type: ignore[unused-awaitable]  # in a blocking tool it is simply called
    begin_and_wait(begun, gate)
    Path(effect).touch()
    return "never"


def _die_behind(effect: str) -> None:
    with Path(effect).open("a") as file:
        file.write("done\n")
    os.kill(os.getpid(), signal.SIGKILL)


@tool
def charge_and_die(effect: str) -> None:
    """Have an effect, and be killed before anybody hears of it."""
    _die_behind(effect)


@tool(idempotent=True)
def fetch_and_die(effect: str) -> None:
    """Do the same where it could be done again."""
    _die_behind(effect)
