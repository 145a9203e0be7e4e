"""An agent whose tools write each effect into a log file.

Another process that resumes a run must find its tools by the same names. Therefore the tools
are functions of this module, and the file is their only state.
"""

from collections.abc import Sequence
from pathlib import Path

import anyio

from midrun import Agent, Checkpoint, ask_human, is_paused, pause_here, tool
from midrun.agents.outcome import Outcome
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Cue, Line
from midrun.stops import Stop
from tests.support.gated_model import repeat_results


def append_line(log: str, line: str) -> None:
    """Append one line to the log."""
    with Path(log).open("a") as file:
        file.write(line + "\n")


def read_log(log: str | Path) -> list[str]:
    """Return the lines of the log."""
    file = Path(log)
    return file.read_text().splitlines() if file.exists() else []


def reload_checkpoint(outcome: Outcome) -> Checkpoint:
    """Return the checkpoint of a paused run after a round trip through JSON."""
    assert is_paused(outcome)
    return Checkpoint.from_json(outcome.checkpoint.to_json())


@tool
async def ask_async(log: str, question: str) -> str:
    """Ask a person, in the event loop."""
    append_line(log, f"asked {question}")
    pause_here(question, severity="high")


@tool
def ask_blocking(log: str, question: str) -> str:
    """Ask a person, from a process of its own."""
    append_line(log, f"asked {question}")
    pause_here(question, severity="high")


@tool(in_process=True)
def ask_thread(log: str, question: str) -> str:
    """Ask a person, from a thread."""
    append_line(log, f"asked {question}")
    pause_here(question, severity="high")


@tool
async def ask_in_try(log: str, question: str) -> str:
    """Ask a person, inside a handler that catches every exception."""
    append_line(log, f"asked {question}")
    try:
        pause_here(question)
    except Exception:  # noqa: BLE001 - user code often catches too much
        return "swallowed"


@tool
async def ask_in_task(log: str, question: str) -> str:
    """Ask a person, from a task of a task group."""
    append_line(log, f"asked {question}")

    async def ask() -> None:
        pause_here(question)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
    return "never"


@tool
async def act(log: str, name: str) -> str:
    """Have an effect that must happen once."""
    append_line(log, f"did {name}")
    return f"{name} done"


@tool(approve=True)
async def pay(log: str, amount: int, to: str = "ada") -> str:
    """Pay an amount, after an approval."""
    append_line(log, f"paid {amount} to {to}")
    return f"paid {amount}"


@tool(approve=True, audience="operator")
async def wire(log: str, amount: int) -> str:
    """Pay an amount, after the approval of an operator."""
    append_line(log, f"wired {amount}")
    return f"wired {amount}"


@tool(approve=True, four_eyes=True)
async def sign(log: str, name: str) -> str:
    """Sign a document, after the approval of a second person."""
    append_line(log, f"signed {name}")
    return f"signed {name}"


ASK_TOOLS = (ask_async, ask_blocking, ask_thread, ask_in_try, ask_in_task, ask_human)
TOOLS = (*ASK_TOOLS, act, pay, wire, sign)


def log_agent(*turns: Line | Cue, stop: Stop | None = None) -> Agent:
    """Return the agent, with a model that plays these turns."""
    return Agent("logger", model=ScriptedModel(turns), tools=TOOLS, stop=stop)


def get_script(name: str, log: str) -> Sequence[Line | Cue]:
    """Return the turns of a script; every process gets the same."""
    if name.startswith("ask_") and name != "ask_human":
        return [Use(name, log=log, question="Refund?"), repeat_results]
    scripts: dict[str, Sequence[Line | Cue]] = {
        "ask_human": [
            Use("ask_human", question="Which?", options=["red", "blue"]),
            repeat_results,
        ],
        "siblings": [
            [
                Use("act", log=log, name="first"),
                Use("ask_async", log=log, question="Refund?"),
                Use("act", log=log, name="last"),
            ],
            repeat_results,
        ],
        "pay": [
            Use("act", log=log, name="first"),
            Use("pay", log=log, amount=100),
            repeat_results,
        ],
        "act": [
            Use("act", log=log, name="first"),
            Use("act", log=log, name="second"),
            repeat_results,
        ],
    }
    return scripts[name]
