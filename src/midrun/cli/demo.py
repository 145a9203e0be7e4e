"""`midrun demo`: start or continue the demo run, on a web page or in the terminal."""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Final

from midrun.cli import hints
from midrun.cli.output import CODES, PAUSED, Sayer
from midrun.core.values import DRIVABLE
from midrun.demo.agents import choose_model
from midrun.demo.launch import STORE, Demo, Opened
from midrun.demo.model import Pace
from midrun.errors import Misconfigured
from midrun.runs.values import RunView
from midrun.tui.phrases import Hints, place

TRY: Final = """\
Try, while it works:
  Pause it      in the middle of a sentence. Resume: the next word follows.
  Redirect it   "Start writing" while it reads: soon it asks you before it
                mails. Or "Summarise and stop", "Add a paragraph on salt".
  Ask it        "How hot did it get?": Redirect, then choose Side question.
                It answers, and returns to its work.
  Cancel it     during the analysis. The process is killed, the lock released,
                everything is reported.
  Kill it       kill -9 {pid}, then `{again}` again.
                Nothing is lost or done twice.
"""
TRY_HERE: Final = """\
Try, while it works:
  p   pause it in the middle of a sentence; again: it goes on with the next word
  r   redirect it: "Start writing", "Summarise and stop",
      "Add a paragraph on salt"
  s   ask a side question: "How hot did it get?"
  c   cancel it, and see which work is undone
  t   take over, and write in its place
  d   leave; the run waits until `{again}` continues it.
  ?   all keys
"""


def options(made: ArgumentParser) -> None:
    """Add the arguments of `demo`."""
    made.add_argument("--store", metavar="URL", default=STORE, help=f"default: {STORE}")
    made.add_argument("--port", type=int, help="port of the page; 0 for any free port (8700)")
    made.add_argument("--no-browser", action="store_true", help="only print the link")
    made.add_argument("--terminal", action="store_true", help="show it here, not on a page")
    made.add_argument(
        "--speed", type=_speed, default=1.0, help="2 is twice as fast, inf never waits (1)"
    )
    made.add_argument(
        "--model",
        metavar="NAME",
        help="provider:model, or scripted (default: by the API key in the environment, if any)",
    )
    made.add_argument(
        "--new", action="store_true", help="start a new run, even if one is unfinished"
    )
    made.add_argument("--json", action="store_true", help="print one JSON value per line")
    made.add_argument("--actor", metavar="NAME", help="your name, as the journal records it")


async def demo(args: Namespace, say: Sayer) -> int:
    """Show the demo on its page or in the terminal, until the user leaves."""
    model, shown_model = (
        choose_model(os.environ) if args.model is None else (args.model, args.model)
    )
    demo_config = Demo(
        store=args.store, model=model, pace=Pace(args.speed), actor=args.actor, new=args.new
    )

    def on_opened(link: str, found: str, view: RunView) -> None:
        facts = {"url": link, "run_id": view.run_id, "phase": view.phase, "model": model}
        say.say(facts, _greeting(demo_config, link, found, view, shown_model))

    if args.terminal:
        return await _in_terminal(demo_config, on_opened, say)
    try:
        from midrun.demo import page  # noqa: PLC0415 - needs the extra `server`
    except ImportError as error:
        raise Misconfigured("demo", f"install midrun[server] ({error})") from error
    browser = not args.no_browser and not say.as_json and page.has_screen(os.environ)
    await page.show(demo_config, on_opened, port=args.port, browser=browser)
    if not say.as_json:
        say.text(f"\nStopped. `{hints.demo()}` continues from here.")
    return 0


async def _in_terminal(shown: Demo, opened: Opened, say: Sayer) -> int:
    if say.as_json or not (sys.stdin.isatty() and say.moves):
        raise Misconfigured("demo --terminal", "needs a terminal; leave --terminal out")
    try:
        from midrun.demo import terminal  # noqa: PLC0415 - needs the extra `tui`
    except ImportError as error:
        problem = f"install midrun[tui] ({error})"
        raise Misconfigured("demo --terminal", problem) from error
    bar_hints = Hints(program=hints.program(), where=f"--store {shown.store}", goes_on=False)
    view, report = await terminal.show(shown, opened, bar_hints)
    if view is None:
        say.text("The run was kept in memory, and ended with this process.")
        return PAUSED
    if view.phase == "cancelled":
        say.prose(str(report))
    if view.phase not in CODES:
        say.text(_describe_left(view))
    return CODES.get(view.phase, PAUSED)


def _describe_left(view: RunView) -> str:
    """Describe a run that this process no longer drives, and how to continue it."""
    at = f", at {place(view)}" if place(view) else ""
    again = hints.demo("--terminal")
    if view.phase not in DRIVABLE:
        return f"The run is {view.phase}{at}; `{again}` shows it again."
    if view.sign.look in {"running", "pausing"}:
        phase = f"it is {view.phase}{at}"
        return f"Another process drives the run: {phase}; `{again}` shows it again."
    return f"No worker drives the run now: it waits{at}. `{again}` continues it."


def _greeting(shown: Demo, link: str, found: str, view: RunView, model: str) -> str:
    """Return the text that is printed when the demo starts."""
    run = f"found again, {found} at {place(view)}" if found else "started"
    lines = [
        "An agent reads the notes of a small town and writes a briefing.",
        "You hold the handle.",
        "",
        *([f"  {link}", ""] if link else []),
        f"  run     {view.run_id}, {run}",
        f"  model   {model}",
        f"  files   {shown.folder}/ (drafts, outbox, runs.db); delete it to start over",
        "",
    ]
    if not link:
        return "\n".join([*lines, TRY_HERE.format(again=hints.demo("--terminal"))])
    tips = TRY.format(pid=os.getpid(), again=hints.demo())
    attach = f"{hints.program()} attach {view.run_id} --store {shown.store}"
    elsewhere = f"From another terminal: {attach}"
    return "\n".join(
        [*lines, tips, elsewhere, "Ctrl-C stops; the run goes on when you start it again."]
    )


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not speed > 0:
        raise ArgumentTypeError(f"speed must be a number > 0, got {text!r}")
    return speed
