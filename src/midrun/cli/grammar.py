"""The grammar: every command with its arguments, a line of help, and examples that teach."""

import os
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Final

from msgspec import Struct

SCOPES: Final = "all, agent:NAME, label:LABEL or run:ID"
PORT: Final = 8700


class Command(Struct, frozen=True):
    """One command: what it is for, what it takes, and how it is used."""

    text: str
    options: Callable[[ArgumentParser], None]
    examples: tuple[str, ...]


def store(made: ArgumentParser) -> None:
    """Take what every command takes."""
    made.add_argument(
        "--store", metavar="URL", help="where the runs are, as sqlite:///midrun.db"
    )
    made.add_argument("--json", action="store_true", help="one JSON value a line, for programs")
    made.add_argument("--actor", metavar="NAME", help="who asks; goes into the journal")


def anywhere(made: ArgumentParser) -> None:
    """Take a store or a server."""
    store(made)
    made.add_argument("--url", metavar="SERVER", help="ask a server instead: http://host:8700")
    made.add_argument("--token", help="for the server (default: $MIDRUN_TOKEN)")


def _run(made: ArgumentParser) -> None:
    anywhere(made)
    made.add_argument("run", metavar="RUN", help="the run's id, or the beginning of it")


def _app(made: ArgumentParser) -> None:
    store(made)
    made.add_argument("app", metavar="APP", help="file.py, file.py:agent or module:agent")


def _staff(made: ArgumentParser) -> None:
    """Take what only those who drive for others take."""
    _app(made)
    address = os.environ.get("MIDRUN_TEMPORAL_ADDRESS", "127.0.0.1:7233")
    made.add_argument(
        "--engine", choices=("local", "temporal"), default="local", help="who gives runs out"
    )
    made.add_argument("--temporal-address", metavar="HOST:PORT", default=address)
    made.add_argument("--temporal-namespace", metavar="NAME", default="default")
    made.add_argument(
        "--webhook",
        action="append",
        metavar="URL",
        help="post what happens there, signed with $MIDRUN_WEBHOOK_SECRET",
    )
    made.add_argument("--spans", action="store_true", help="emit OpenTelemetry spans")


def _plain(made: ArgumentParser) -> None:
    made.add_argument("--plain", action="store_true", help="one line per fact, no control bar")


# ── drive and watch ───────────────────────────────────────────────────────────────────────


def _start(made: ArgumentParser) -> None:
    anywhere(made)
    made.add_argument(
        "app", metavar="APP", help="file.py, module:agent; with --url an agent's name"
    )
    made.add_argument("task", metavar="TASK", help="what the agent should do")
    made.add_argument("--agent", metavar="NAME", help="which agent, if the app has several")
    made.add_argument("--thread", metavar="NAME", help="the conversation that it goes on with")
    made.add_argument("--label", action="append", metavar="WORD", help="to find and halt it by")
    _plain(made)


def _attach(made: ArgumentParser) -> None:
    _run(made)
    made.add_argument("--app", metavar="APP", help="drive the run here, with this app's agents")
    _plain(made)


def _serve(made: ArgumentParser) -> None:
    _staff(made)
    made.add_argument(
        "--host", default="127.0.0.1", help="where to listen (default: here only)"
    )
    made.add_argument("--port", type=int, default=PORT, help=f"0 for any that is free ({PORT})")
    made.add_argument("--token", help="the operator's (default: $MIDRUN_TOKEN, or one is made)")
    made.add_argument(
        "--allow-host",
        action="append",
        metavar="NAME",
        help="a name it goes by, beyond this host",
    )


# ── look ──────────────────────────────────────────────────────────────────────────────────


def _ls(made: ArgumentParser) -> None:
    anywhere(made)
    made.add_argument("--phase", help="only runs in this phase: running, paused, waiting …")
    made.add_argument("--agent", metavar="NAME", help="only runs of this agent")
    made.add_argument("--label", metavar="WORD", help="only runs with this label")
    made.add_argument("--limit", type=int, default=50, help="at most so many (50)")


def _feed(made: ArgumentParser) -> None:
    _run(made)
    made.add_argument("--follow", action="store_true", help="go on until the run has ended")
    made.add_argument(
        "--after", type=int, default=0, metavar="SEQ", help="only what came after"
    )


# ── steer ─────────────────────────────────────────────────────────────────────────────────


def _pause(made: ArgumentParser) -> None:
    _run(made)
    made.add_argument("--now", action="store_true", help="stop the tools in flight as well")


def _resume(made: ArgumentParser) -> None:
    _run(made)
    made.add_argument("text", nargs="?", metavar="TEXT", help="what to do from here on")
    made.add_argument(
        "--cap", action="append", metavar="NAME=AMOUNT", help="raise a cap: steps=20, cost=5"
    )


def _redirect(made: ArgumentParser) -> None:
    _run(made)
    made.add_argument("text", metavar="TEXT", help="what to do instead")
    made.add_argument("--now", action="store_true", help="at once, not at the next step")


def _say(made: ArgumentParser) -> None:
    _run(made)
    made.add_argument("text", metavar="TEXT", help="the side question")
    made.add_argument(
        "--urgency",
        choices=("now", "next", "later"),
        default="next",
        help="when it is taken up",
    )


def _cancel(made: ArgumentParser) -> None:
    _run(made)
    made.add_argument("--undo-all", action="store_true", help="undo finished work as well")
    made.add_argument("--reason", help="why; goes into the journal")


def _ask(made: ArgumentParser) -> None:
    anywhere(made)
    made.add_argument(
        "ask", metavar="ASK", help="as `midrun asks` prints it; or RUN, if it asks one thing"
    )


def _answer(made: ArgumentParser) -> None:
    _ask(made)
    made.add_argument("value", metavar="VALUE", help="JSON, or plain text")


def _approve(made: ArgumentParser) -> None:
    _ask(made)
    made.add_argument("--args", metavar="JSON", help="with these arguments instead")


def _decline(made: ArgumentParser) -> None:
    _ask(made)
    made.add_argument(
        "reason", nargs="?", default="", metavar="REASON", help="the agent is told"
    )


def _halt(made: ArgumentParser) -> None:
    anywhere(made)
    made.add_argument("reason", metavar="REASON", help="why; everybody will read it")
    made.add_argument("--scope", default="all", help=SCOPES)


def _lift(made: ArgumentParser) -> None:
    anywhere(made)
    made.add_argument("--scope", default="all", help=SCOPES)


def _demo(made: ArgumentParser) -> None:
    from midrun.cli import demo  # noqa: PLC0415 - it brings the whole demo along

    demo.options(made)


def _completion(made: ArgumentParser) -> None:
    anywhere(made)
    shells = ("bash", "zsh", "fish", "runs")
    made.add_argument(
        "shell", choices=shells, help="which shell; `runs` lists the ids there are"
    )


GROUPS: Final = {
    "run": {
        "run": Command(
            "start a run and show it until it rests; Ctrl-C pauses it",
            _start,
            (
                'midrun run app.py "Compare the vendors"',
                'midrun run app:researcher "Find cats" --plain > log.txt',
                'midrun run researcher "Find cats" --url http://127.0.0.1:8700',
            ),
        ),
        "attach": Command(
            "show a run that is under way, with its control bar",
            _attach,
            (
                "midrun attach 3f2a                 driven elsewhere: d detaches, it goes on",
                "midrun attach 3f2a --app app.py    and drive it here, if nobody does",
            ),
        ),
        "serve": Command(
            "serve the runs of an app over HTTP, with a page, and drive them",
            _serve,
            ("midrun serve app.py", "midrun serve app.py --port 0 --store sqlite:///runs.db"),
        ),
        "worker": Command(
            "drive the runs of an app until interrupted",
            _staff,
            (
                "midrun worker app.py",
                "midrun worker app.py --engine temporal --store postgresql://db/midrun",
            ),
        ),
        "demo": Command(
            "show what this is for, in a minute: no key, no network",
            _demo,
            ("midrun demo", "midrun demo --terminal"),
        ),
    },
    "look": {
        "ls": Command(
            "list runs, newest first",
            _ls,
            ("midrun ls --phase waiting", "midrun ls --json | jq -r .run_id"),
        ),
        "show": Command(
            "show where a run stands, and what can be asked of it", _run, ("midrun show 3f2a",)
        ),
        "feed": Command(
            "print what happened to a run",
            _feed,
            ("midrun feed 3f2a", "midrun feed 3f2a --follow --after 120 --json"),
        ),
        "report": Command(
            "say what became of everything a run did", _run, ("midrun report 3f2a > report.md",)
        ),
        "verify": Command(
            "check a run's hash chain and every invariant", _run, ("midrun verify 3f2a",)
        ),
        "export": Command(
            "print a run's journal, line by line, as it is stored",
            _run,
            ("midrun export 3f2a > journal.jsonl",),
        ),
    },
    "steer": {
        "pause": Command(
            "stop a run at its next boundary, keeping everything",
            _pause,
            ("midrun pause 3f2a", "midrun pause 3f2a --now    stop the tools in flight, too"),
        ),
        "resume": Command(
            "let a run go on, with an instruction if you like",
            _resume,
            (
                "midrun resume 3f2a",
                'midrun resume 3f2a "Only the first three"',
                "midrun resume 3f2a --cap steps=40    after it paused at a cap",
            ),
        ),
        "redirect": Command(
            "change a run's course; finished work stays",
            _redirect,
            ('midrun redirect 3f2a "Only vendor A"', 'midrun redirect 3f2a "Stop that" --now'),
        ),
        "say": Command(
            "ask a run something while it works; it comes back to where it was",
            _say,
            ('midrun say 3f2a "How far are you?"', 'midrun say 3f2a "Thanks" --urgency later'),
        ),
        "cancel": Command(
            "stop everything, undo, and report",
            _cancel,
            ("midrun cancel 3f2a", 'midrun cancel 3f2a --undo-all --reason "wrong vendor"'),
        ),
    },
    "decide": {
        "asks": Command(
            "list what runs wait for somebody to decide", anywhere, ("midrun asks",)
        ),
        "answer": Command(
            "answer a question: the answer is the tool's result",
            _answer,
            ("midrun answer 3f2a blue", "midrun answer run_3f2a-a2 '{\"amount\": 40}'"),
        ),
        "approve": Command(
            "let a call be made, once",
            _approve,
            ("midrun approve 3f2a", 'midrun approve run_3f2a-a1 --args \'{"to": "ada"}\''),
        ),
        "decline": Command(
            "do not let a call be made",
            _decline,
            ('midrun decline 3f2a "not to everybody"',),
        ),
    },
    "operate": {
        "halt": Command(
            "set a latch: nothing starts until it is lifted",
            _halt,
            (
                'midrun halt "runaway costs"',
                'midrun halt "bad prompt" --scope agent:researcher',
            ),
        ),
        "lift": Command(
            "take a latch away; what it held goes on",
            _lift,
            ("midrun lift", "midrun lift --scope agent:researcher"),
        ),
        "completion": Command(
            "print what makes a shell complete commands and run ids",
            _completion,
            (
                'eval "$(midrun completion bash)"        in ~/.bashrc',
                'eval "$(midrun completion zsh)"         in ~/.zshrc',
                "midrun completion fish | source         in config.fish",
            ),
        ),
    },
}
"""Every command, in the order in which help lists them."""
