"""What can be typed: commands, their arguments, and help that teaches."""

import argparse
import os
from typing import Final

STORE: Final = "sqlite:///midrun.db"

EPILOG: Final = """\
A run is its journal. Every command works on a run of any process that shares the store:
start one here (`midrun run app.py "the task"`), pause it from another terminal, and resume it
tomorrow. Exit codes: 0 completed or done, 1 failed or refused, 2 usage, 3 cancelled, 75 paused.
Environment: MIDRUN_STORE (the store), MIDRUN_ACTOR (who you are).
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="midrun",
        description="Pause, redirect, resume and cancel agents that are already running.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _driving(commands)
    _looking(commands)
    _steering(commands)
    _deciding(commands)
    _operating(commands)
    return top


Commands = argparse._SubParsersAction  # noqa: SLF001 - argparse has no public name for it


def _add(
    commands: "Commands[argparse.ArgumentParser]", name: str, text: str
) -> argparse.ArgumentParser:
    made = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    made.add_argument(
        "--store",
        default=os.environ.get("MIDRUN_STORE", STORE),
        help=f"where the runs are (default: $MIDRUN_STORE or {STORE})",
    )
    made.add_argument("--json", action="store_true", help="one JSON value a line, for programs")
    made.add_argument(
        "--actor",
        default=os.environ.get("MIDRUN_ACTOR", os.environ.get("USER", "user")),
        help="who asks; goes into the journal (default: $MIDRUN_ACTOR or $USER)",
    )
    return made


def _run(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    made.add_argument("run", metavar="RUN", help="the run's id, or the beginning of it")
    return made


def _driving(commands: "Commands[argparse.ArgumentParser]") -> None:
    made = _add(commands, "run", "start a run and show it until it rests")
    made.add_argument("app", metavar="APP", help="file.py, file.py:agent or module:agent")
    made.add_argument("task", metavar="TASK", help="what the agent should do")
    made.add_argument("--agent", help="which agent, if the app has several")
    made.add_argument("--plain", action="store_true", help="one line per fact, no control bar")
    made = _add(commands, "serve", "serve the runs of an app over HTTP, and drive them")
    made.add_argument("app", metavar="APP", help="file.py, file.py:agent or module:agent")
    made.add_argument(
        "--host", default="127.0.0.1", help="where to listen (default: here only)"
    )
    made.add_argument("--port", type=int, default=8700, help="0 for any that is free")
    made.add_argument("--token", help="the operator's token; otherwise one is made and kept")
    made = _add(commands, "worker", "drive the runs of an app until interrupted")
    made.add_argument("app", metavar="APP", help="file.py, file.py:agent or module:agent")


def _looking(commands: "Commands[argparse.ArgumentParser]") -> None:
    made = _add(commands, "ls", "list runs, newest first")
    made.add_argument("--phase", help="only runs in this phase")
    made.add_argument("--agent", help="only runs of this agent")
    made.add_argument("--label", help="only runs with this label")
    made.add_argument("--limit", type=int, default=50, help="at most so many (default: 50)")
    _run(_add(commands, "show", "show where a run stands, and what can be asked of it"))
    made = _run(_add(commands, "feed", "print what happened to a run"))
    made.add_argument("--follow", action="store_true", help="go on until the run has ended")
    made.add_argument("--after", type=int, default=0, help="only what came after this seq")
    _run(_add(commands, "report", "say what became of everything a run did"))
    _run(_add(commands, "verify", "check a run's hash chain and every invariant"))
    _run(_add(commands, "export", "print a run's journal, line by line, as it is stored"))


def _steering(commands: "Commands[argparse.ArgumentParser]") -> None:
    made = _run(_add(commands, "pause", "stop a run at its next boundary, keeping everything"))
    made.add_argument("--now", action="store_true", help="stop the tools in flight as well")
    made = _run(_add(commands, "resume", "let a run go on, with an instruction if you like"))
    made.add_argument("text", nargs="?", metavar="TEXT", help="what to do from here on")
    made = _run(_add(commands, "redirect", "change a run's course; finished work stays"))
    made.add_argument("text", metavar="TEXT", help="what to do instead")
    made.add_argument("--now", action="store_true", help="at once, not at the next step")
    made = _run(_add(commands, "say", "speak to a run while it works: it comes back after"))
    made.add_argument("text", metavar="TEXT", help="the side question")
    made.add_argument("--urgency", choices=("now", "next", "later"), default="next")
    made = _run(_add(commands, "cancel", "stop everything, undo, and report"))
    made.add_argument("--undo-all", action="store_true", help="undo finished work as well")
    made.add_argument("--reason", help="why; goes into the journal")


def _deciding(commands: "Commands[argparse.ArgumentParser]") -> None:
    _add(commands, "asks", "list what runs wait for somebody to decide")
    for name, text in (
        ("answer", "answer a question: the answer is the tool's result"),
        ("approve", "let a call be made, once"),
        ("decline", "do not let a call be made"),
    ):
        made = _add(commands, name, text)
        made.add_argument("ask", metavar="ASK", help="RUN/ASK as `midrun asks` prints it")
        if name == "answer":
            made.add_argument("value", metavar="VALUE", help="JSON, or plain text")
        if name == "approve":
            made.add_argument("--args", metavar="JSON", help="with these arguments instead")
        if name == "decline":
            made.add_argument("reason", nargs="?", default="", metavar="REASON")


def _operating(commands: "Commands[argparse.ArgumentParser]") -> None:
    made = _add(commands, "halt", "set a latch: nothing starts until it is lifted")
    made.add_argument("reason", metavar="REASON", help="why; everybody will read it")
    made.add_argument("--scope", default="all", help="all, agent:NAME, label:LABEL or run:ID")
    made = _add(commands, "lift", "take a latch away")
    made.add_argument("--scope", default="all", help="all, agent:NAME, label:LABEL or run:ID")
