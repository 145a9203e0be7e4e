"""`midrun demo`: start or continue the demo run, on a web page or in the terminal."""

import os
import sys
from argparse import Namespace
from typing import Final

from midrun.cli import hints
from midrun.cli.output import EXIT_CODE_BY_PHASE, PAUSED_EXIT_CODE, CommandOutput
from midrun.core.values import DRIVABLE_PHASES, TERMINAL_PHASES, Phase
from midrun.demo.agents import choose_model
from midrun.demo.launch import Demo, OnOpened
from midrun.demo.model import Pace
from midrun.errors import Misconfigured
from midrun.runs.values import RunView
from midrun.tui.styled_text import Hints

PAGE_TIPS: Final = """\
Try, while it works:
  Pause it      in the middle of a sentence. Resume: the next word follows.
  Redirect it   "Start writing": it reads no more, and soon asks you to approve
                its mail. Or "Summarise and stop", "Add a paragraph on salt".
  Ask it        "How hot did it get?": a side question. It answers, and
                returns to its work.
  Cancel it     during the analysis. The process is killed, the lock released,
                everything is reported.
  Kill it       kill -9 {pid}, then `{again}` again.
                Nothing is lost or done twice.
"""
TERMINAL_TIPS: Final = """\
Try, while it works:
  p   pause it in the middle of a sentence; again: it goes on with the next word
  r   redirect it: "Start writing", "Summarise and stop",
      "Add a paragraph on salt"
  s   ask a side question: "How hot did it get?"
  o   show the newest result of a tool in full
  c   cancel it, and see which work is undone
  t   take over, and write in its place
  d   leave; the run waits until `{again}` continues it.
  ?   all keys
"""


async def demo(args: Namespace, out: CommandOutput) -> int:
    """Show the demo on its page or in the terminal, until the user leaves."""
    model, shown_model = (
        choose_model(os.environ) if args.model is None else (args.model, args.model)
    )
    demo_config = Demo(
        store=args.store, model=model, pace=Pace(args.speed), actor=args.actor, new=args.new
    )

    def on_opened(link: str, found: str, view: RunView) -> None:
        facts = {"url": link, "run_id": view.run_id, "phase": view.phase, "model": model}
        out.write(facts, _build_greeting(demo_config, link, found, view, shown_model))

    if args.terminal:
        return await _show_in_terminal(demo_config, on_opened, out)
    try:
        from midrun.demo import page  # noqa: PLC0415 - needs the extra `server`
    except ImportError as error:
        raise Misconfigured("demo", f"install midrun[server] ({error})") from error
    browser = not args.no_browser and not out.as_json and page.has_screen(os.environ)
    phase = await page.serve_demo(demo_config, on_opened, port=args.port, browser=browser)
    if not out.as_json:
        out.write_text(f"\n{describe_stop(phase)}")
    return 0


def describe_stop(phase: Phase) -> str:
    """Describe the effect of starting the demo again, by the last phase of the run."""
    then = "starts a new one" if phase in TERMINAL_PHASES else "continues it"
    return (
        f"The server has stopped. The run is {phase}; `{hints.format_demo_command()}` {then}."
    )


async def _show_in_terminal(demo_config: Demo, on_opened: OnOpened, out: CommandOutput) -> int:
    if out.as_json or not (sys.stdin.isatty() and out.can_move_cursor):
        raise Misconfigured("demo --terminal", "needs a terminal; leave --terminal out")
    try:
        from midrun.demo import terminal  # noqa: PLC0415 - needs the extra `tui`
    except ImportError as error:
        problem = f"install midrun[tui] ({error})"
        raise Misconfigured("demo --terminal", problem) from error
    bar_hints = Hints(
        program=hints.find_program(),
        target_options=f"--store {demo_config.store}",
        driven_after_leaving=False,
    )
    view, report = await terminal.show_demo(demo_config, on_opened, bar_hints)
    if view is None:
        out.write_text("The run was kept in memory, and ended with this process.")
        return PAUSED_EXIT_CODE
    if view.phase == "cancelled":
        out.write_wrapped(str(report))
    if view.phase not in EXIT_CODE_BY_PHASE:
        out.write_text(_describe_after_leaving(view))
    return EXIT_CODE_BY_PHASE.get(view.phase, PAUSED_EXIT_CODE)


def _describe_after_leaving(view: RunView) -> str:
    """Describe a run that this process no longer drives, and how to continue it."""
    at = _format_place(view)
    again = hints.format_demo_command("--terminal")
    if view.phase not in DRIVABLE_PHASES:
        return f"The run is {view.phase}{at}; `{again}` shows it again."
    if view.status.style in {"running", "pausing"}:
        phase = f"it is {view.phase}{at}"
        return f"Another process drives the run: {phase}; `{again}` shows it again."
    return f"No worker drives the run now: it waits{at}. `{again}` continues it."


def _format_place(view: RunView) -> str:
    return f" ({view.position})" if view.position else ""


def _build_greeting(
    demo_config: Demo, link: str, found_phase: str, view: RunView, model: str
) -> str:
    """Return the text that is printed when the demo starts."""
    run = f"found again, {found_phase}{_format_place(view)}" if found_phase else "started"
    lines = [
        "An agent reads the notes of a small town and writes a briefing.",
        "Interrupt it at any time.",
        "",
        *([f"  {link}", ""] if link else []),
        f"  run     {view.run_id}, {run}",
        f"  model   {model}",
        f"  files   {demo_config.folder}/ (drafts, outbox, runs.db); delete it to start over",
        "",
    ]
    if not link:
        return "\n".join(
            [*lines, TERMINAL_TIPS.format(again=hints.format_demo_command("--terminal"))]
        )
    tips = PAGE_TIPS.format(pid=os.getpid(), again=hints.format_demo_command())
    attach = f"{hints.find_program()} attach {view.run_id} --store {demo_config.store}"
    elsewhere = f"From another terminal: {attach}"
    return "\n".join(
        [*lines, tips, elsewhere, "Ctrl-C stops; the run continues when you start it again."]
    )
