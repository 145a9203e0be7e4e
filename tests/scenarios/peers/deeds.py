"""Blocking tools, found by name in the process that runs them."""

import threading
from datetime import timedelta
from pathlib import Path

from midrun import tool
from tests.unit.driver.subprocess.deeds import begin_and_wait

BEGUN = threading.Event()
GATE = threading.Event()


@tool
def stamp(begun: str, gate: str, effect: str) -> str:
    """Have an effect behind the gate."""
    begin_and_wait(begun, gate)
    Path(effect).touch()
    return "stamped"


@tool(read_only=True)
def warm_up() -> None:
    """Do nothing, so that what comes next need not wait for this module to be imported."""


@tool(timeout=timedelta(milliseconds=300))
def stamp_soon(begun: str, gate: str, effect: str) -> str:
    """Have an effect behind a gate that opens too late."""
    begin_and_wait(begun, gate)
    Path(effect).touch()
    return "stamped"


@tool(in_process=True)
def carve(effect: str) -> str:
    """Have an effect in a thread of this process, which nobody can stop."""
    BEGUN.set()
    GATE.wait()
    Path(effect).touch()
    return "carved"
