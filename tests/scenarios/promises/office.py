"""An office, the same in every process that imports it: its tools write down what they do.

The tools of a run that is resumed elsewhere must be found there by the same names, so they are
here, at the top of a module, and their only memory is a file.
"""

from collections.abc import Sequence
from pathlib import Path

import anyio

from midrun import Agent, Checkpoint, ask_human, is_paused, pause_here, tool
from midrun.agents.outcome import Outcome
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Cue, Line
from midrun.stops import Stop


def write(log: str, line: str) -> None:
    """Write down what happened, in one piece."""
    with Path(log).open("a") as book:
        book.write(line + "\n")


def written(log: str | Path) -> list[str]:
    """Return what was written down, in order."""
    book = Path(log)
    return book.read_text().splitlines() if book.exists() else []


def carried(outcome: Outcome) -> Checkpoint:
    """Return the checkpoint of a paused run as it comes back from JSON."""
    assert is_paused(outcome)
    return Checkpoint.from_json(outcome.checkpoint.to_json())


@tool
async def ask_async(log: str, question: str) -> str:
    """Ask a person, in the event loop."""
    write(log, f"asked {question}")
    pause_here(question, severity="high")


@tool
def ask_blocking(log: str, question: str) -> str:
    """Ask a person, from a process of its own."""
    write(log, f"asked {question}")
    pause_here(question, severity="high")


@tool(in_process=True)
def ask_thread(log: str, question: str) -> str:
    """Ask a person, from a thread."""
    write(log, f"asked {question}")
    pause_here(question, severity="high")


@tool
async def ask_careful(log: str, question: str) -> str:
    """Ask a person, among handlers of errors."""
    write(log, f"asked {question}")
    try:
        pause_here(question)
    except Exception:  # noqa: BLE001 - it stands for somebody's handler that catches too much
        return "swallowed"


@tool
async def ask_deep(log: str, question: str) -> str:
    """Ask a person, from a task of a task group."""
    write(log, f"asked {question}")

    async def ask() -> None:
        pause_here(question)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
    return "never"


@tool
async def act(log: str, name: str) -> str:
    """Change the world once."""
    write(log, f"did {name}")
    return f"{name} done"


@tool(approve=True)
async def pay(log: str, amount: int, to: str = "ada") -> str:
    """Pay somebody, if a person says so."""
    write(log, f"paid {amount} to {to}")
    return f"paid {amount}"


@tool(approve=True, audience="operator")
async def wire(log: str, amount: int) -> str:
    """Pay a lot, if an operator says so."""
    write(log, f"wired {amount}")
    return f"wired {amount}"


@tool(approve=True, four_eyes=True)
async def sign(log: str, name: str) -> str:
    """Sign something, if somebody else says so."""
    write(log, f"signed {name}")
    return f"signed {name}"


def told(messages: Transcript) -> str:
    """Say what the agent was told of its last calls."""
    last = next(turn for turn in reversed(messages) if turn.uses)
    return "; ".join(f"{made.tool}: {made.problem or made.result}" for made in last.uses)


ASKING = (ask_async, ask_blocking, ask_thread, ask_careful, ask_deep, ask_human)
TOOLS = (*ASKING, act, pay, wire, sign)


def office(*turns: Line | Cue, stop: Stop | None = None) -> Agent:
    """Return the agent that plays these turns."""
    return Agent("office", model=ScriptedModel(turns), tools=TOOLS, stop=stop)


def script(name: str, log: str) -> Sequence[Line | Cue]:
    """Return the turns of that name: the same in every process."""
    if name.startswith("ask_") and name != "ask_human":
        return [Use(name, log=log, question="Refund?"), told]
    scripts: dict[str, Sequence[Line | Cue]] = {
        "ask_human": [Use("ask_human", question="Which?", options=["red", "blue"]), told],
        "siblings": [
            [
                Use("act", log=log, name="first"),
                Use("ask_async", log=log, question="Refund?"),
                Use("act", log=log, name="last"),
            ],
            told,
        ],
        "pay": [Use("act", log=log, name="first"), Use("pay", log=log, amount=100), told],
        "act": [Use("act", log=log, name="first"), Use("act", log=log, name="second"), told],
    }
    return scripts[name]
