"""Blocking tools; the process that runs them imports them by name."""

import threading
from datetime import timedelta
from pathlib import Path

from midrun import tool
from tests.unit.driver.subprocess.blocking_tools import wait_at_gate

STARTED = threading.Event()
GATE = threading.Event()


@tool
def stamp(begun: str, gate: str, effect: str) -> str:
    """Take effect after the gate opens."""
    wait_at_gate(begun, gate)
    Path(effect).touch()
    return "stamped"


@tool(read_only=True)
def warm_up() -> None:
    """Do nothing, so that the next call does not wait for the import of this module."""


@tool(timeout=timedelta(milliseconds=300))
def stamp_soon(begun: str, gate: str, effect: str) -> str:
    """Take effect after a gate that opens too late."""
    wait_at_gate(begun, gate)
    Path(effect).touch()
    return "stamped"


@tool(in_process=True)
def carve(effect: str) -> str:
    """Take effect in a thread of this process, which cannot be stopped."""
    STARTED.set()
    GATE.wait()
    Path(effect).touch()
    return "carved"
