"""Arguments of every command: one function each, which adds them to an argparse parser.

The functions build on each other: a command on a run calls `add_run_argument`, which calls
`add_target_options`, which calls `add_store_options`. `command_specs` names the function of
each command.
"""

from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser, Namespace
from pathlib import Path
from typing import Final, NoReturn

SCOPES: Final = "all, agent:NAME, label:LABEL or run:ID"
PORT: Final = 8700


def store(made: ArgumentParser) -> None:
    """Add the options that every command accepts."""
    made.add_argument("--store", metavar="URL", help="the store, such as sqlite:///midrun.db")
    made.add_argument("--json", action="store_true", help="print one JSON value per line")
    made.add_argument("--actor", metavar="NAME", help="your name, as the journal records it")


def anywhere(made: ArgumentParser) -> None:
    """Add the options that choose a store or a server."""
    store(made)
    made.add_argument("--url", metavar="SERVER", help="use a server: http://host:8700")
    token(made, "of the server (default: $MIDRUN_TOKEN)")


def token(made: ArgumentParser, what: str) -> None:
    """Add `--token-file`; refuse `--token`."""
    made.add_argument("--token-file", metavar="FILE", help=f"file with the token {what}")
    made.add_argument("--token", action=_RefuseToken, help=SUPPRESS)


class _RefuseToken(Action):
    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: object,
        option_string: str | None = None,
    ) -> NoReturn:
        del parser, namespace, values, option_string
        problem = "every user of this machine can read it in the list of processes"
        raise ArgumentError(self, f"{problem}; use --token-file FILE, or set MIDRUN_TOKEN")


def run(made: ArgumentParser) -> None:
    """Add a run."""
    anywhere(made)
    made.add_argument("run", metavar="RUN", help="the run's id, or the beginning of it")


def app(made: ArgumentParser) -> None:
    """Add an app."""
    store(made)
    made.add_argument("app", metavar="APP", help="file.py, file.py:agent or module:agent")


def staff(made: ArgumentParser, *engines: str) -> None:
    """Add the options of a process that drives runs: a worker or a server."""
    app(made)
    made.add_argument(
        "--engine",
        choices=("local", "temporal", *engines),
        default="local",
        help="assigns runs to workers" + "; none: other processes drive them" * bool(engines),
    )
    made.add_argument(
        "--limit",
        action="append",
        metavar="SCOPE=N",
        help="max concurrent runs in all processes: all=50, agent:clerk=10, label:gpu=2",
    )
    made.add_argument(
        "--here",
        action="append",
        metavar="SCOPE=N",
        help="max concurrent runs in this process",
    )
    made.add_argument(
        "--versions",
        choices=("any", "same"),
        default="any",
        help="same: leave runs alone that another version of the agent drove last (any)",
    )
    made.add_argument("--temporal-address", metavar="HOST:PORT")
    made.add_argument("--temporal-namespace", metavar="NAME", default="default")
    made.add_argument(
        "--webhook",
        action="append",
        metavar="URL",
        help="post events to this URL, signed with $MIDRUN_WEBHOOK_SECRET",
    )
    made.add_argument("--spans", action="store_true", help="emit OpenTelemetry spans")


def plain(made: ArgumentParser) -> None:
    """Add `--plain`, which turns the control bar off."""
    made.add_argument("--plain", action="store_true", help="one line per entry, no control bar")


# ── drive and watch ───────────────────────────────────────────────────────────────────────


def start(made: ArgumentParser) -> None:
    """Add the arguments of `run`."""
    anywhere(made)
    made.add_argument(
        "app", metavar="APP", help="file.py or module:agent; with --url, an agent's name"
    )
    made.add_argument("task", metavar="TASK", help="the task of the run")
    made.add_argument("--agent", metavar="NAME", help="the agent, if the app has several")
    made.add_argument("--thread", metavar="NAME", help="the conversation to continue")
    made.add_argument(
        "--label", action="append", metavar="WORD", help="a label to find and halt runs by"
    )
    plain(made)


def attach(made: ArgumentParser) -> None:
    """Add the arguments of `attach`."""
    run(made)
    made.add_argument("--app", metavar="APP", help="drive the run here, with this app's agents")
    plain(made)


def serve(made: ArgumentParser) -> None:
    """Add the arguments of `serve`."""
    staff(made, "none")
    made.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    made.add_argument("--port", type=int, default=PORT, help=f"0 for any free port ({PORT})")
    token(made, "of the operator (default: $MIDRUN_TOKEN, or a new one)")
    made.add_argument(
        "--allow-host",
        action="append",
        metavar="NAME",
        help="another host name under which clients reach the server",
    )
    made.add_argument(
        "--allow-origin",
        action="append",
        metavar="ORIGIN",
        help="https://app.example: its pages may call the API with a bearer token",
    )
    made.add_argument(
        "--unsigned-checkpoints",
        action="store_true",
        help="let operators import checkpoints without a signature",
    )
    made.add_argument(
        "--public-url",
        metavar="ORIGIN",
        help="https://runs.example: the address that browsers use, behind a proxy",
    )
    made.add_argument(
        "--forwarded-allow-ips",
        metavar="ADDRESSES",
        help="proxies whose X-Forwarded-* headers are trusted (127.0.0.1,::1)",
    )
    made.add_argument(
        "--root-path",
        default="",
        metavar="/PREFIX",
        help="the prefix that a proxy strips from the path",
    )
    made.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate: PEM")
    made.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key: PEM")
    made.add_argument(
        "--drain",
        type=float,
        metavar="SECONDS",
        help="after SIGTERM, keep serving this long with /readyz at 503 (5; 0 on loopback)",
    )


# ── inspect ──────────────────────────────────────────────────────────────────────────────────


def ls(made: ArgumentParser) -> None:
    """Add the filters of `ls`."""
    anywhere(made)
    made.add_argument("--phase", help="only runs in this phase: running, paused, waiting …")
    made.add_argument("--agent", metavar="NAME", help="only runs of this agent")
    made.add_argument("--label", metavar="WORD", help="only runs with this label")
    made.add_argument("--limit", type=int, default=50, help="max number of runs (50)")


def feed(made: ArgumentParser) -> None:
    """Add the arguments of `feed`."""
    run(made)
    made.add_argument(
        "--follow", action="store_true", help="continue until the run has ended or failed"
    )
    made.add_argument(
        "--after", type=int, default=0, metavar="SEQ", help="only entries after this one"
    )


# ── control ─────────────────────────────────────────────────────────────────────────────────


def pause(made: ArgumentParser) -> None:
    """Add the arguments of `pause`."""
    run(made)
    made.add_argument("--now", action="store_true", help="also stop the running tools")


def resume(made: ArgumentParser) -> None:
    """Add the arguments of `resume`."""
    run(made)
    made.add_argument("text", nargs="?", metavar="TEXT", help="an instruction for the agent")
    made.add_argument(
        "--cap", action="append", metavar="NAME=AMOUNT", help="raise a cap: steps=20, cost=5"
    )


def redirect(made: ArgumentParser) -> None:
    """Add the arguments of `redirect`."""
    run(made)
    made.add_argument("text", metavar="TEXT", help="the new instruction")
    made.add_argument("--now", action="store_true", help="at once, not at the next step")


def say(made: ArgumentParser) -> None:
    """Add the arguments of `say`."""
    run(made)
    made.add_argument("text", metavar="TEXT", help="the side question")
    made.add_argument(
        "--urgency",
        choices=("now", "next", "later"),
        default="next",
        help="when the agent answers",
    )


def cancel(made: ArgumentParser) -> None:
    """Add the arguments of `cancel`."""
    run(made)
    made.add_argument("--undo-all", action="store_true", help="also undo finished work")
    made.add_argument("--reason", help="the reason, as the journal records it")


def withdraw(made: ArgumentParser) -> None:
    """Add the arguments of `withdraw`."""
    run(made)
    made.add_argument(
        "seq",
        nargs="?",
        type=int,
        metavar="SEQ",
        help="number of the request in `show` (the newest)",
    )


def raise_cap(made: ArgumentParser) -> None:
    """Add the arguments of `raise-cap`."""
    run(made)
    made.add_argument(
        "cap", nargs="+", metavar="NAME=AMOUNT", help="the new cap: steps=20, cost=5"
    )


def frame(made: ArgumentParser) -> None:
    """Add the arguments of `resume-frame` and `drop-frame`."""
    run(made)
    made.add_argument(
        "frame", nargs="?", metavar="FRAME", help="id of the topic in `show` (the topmost)"
    )


def fork(made: ArgumentParser) -> None:
    """Add the arguments of `fork`."""
    run(made)
    made.add_argument("text", nargs="?", metavar="TEXT", help="an instruction for the new run")
    made.add_argument(
        "--at", type=int, metavar="SEQ", help="number of a boundary in `feed` (the newest)"
    )


def write(made: ArgumentParser) -> None:
    """Add the arguments of `write`."""
    run(made)
    made.add_argument("text", metavar="TEXT", help="the message of the assistant")


def use_tool(made: ArgumentParser) -> None:
    """Add the arguments of `use-tool`."""
    run(made)
    made.add_argument("tool", metavar="TOOL", help="one of the agent's tools")
    made.add_argument("args", nargs="?", default="{}", metavar="JSON", help="its arguments")
    made.add_argument("--app", metavar="APP", help="the app with the agent; not with --url")


def hand_back(made: ArgumentParser) -> None:
    """Add the arguments of `hand-back`."""
    run(made)
    made.add_argument("text", nargs="?", metavar="TEXT", help="an instruction for the agent")


def ask(made: ArgumentParser) -> None:
    """Add an ask."""
    anywhere(made)
    made.add_argument(
        "ask", metavar="ASK", help="id of the ask in `asks`; or RUN, if it has only one"
    )


def answer(made: ArgumentParser) -> None:
    """Add the arguments of `answer`."""
    ask(made)
    made.add_argument("value", metavar="VALUE", help="JSON, or plain text")


def approve(made: ArgumentParser) -> None:
    """Add the arguments of `approve`."""
    ask(made)
    made.add_argument("--args", metavar="JSON", help="make the call with other arguments")


def decline(made: ArgumentParser) -> None:
    """Add the arguments of `decline`."""
    ask(made)
    made.add_argument(
        "reason", nargs="?", default="", metavar="REASON", help="the reason; the agent reads it"
    )


def halt(made: ArgumentParser) -> None:
    """Add the arguments of `halt`."""
    anywhere(made)
    made.add_argument("reason", metavar="REASON", help="the reason; all users can read it")
    made.add_argument("--scope", default="all", help=SCOPES)


def lift(made: ArgumentParser) -> None:
    """Add the arguments of `lift`."""
    anywhere(made)
    made.add_argument("--scope", default="all", help=SCOPES)


def demo(made: ArgumentParser) -> None:
    """Add the arguments of `demo`."""
    from midrun.cli import demo  # noqa: PLC0415 - imports the whole demo

    demo.options(made)


def completion(made: ArgumentParser) -> None:
    """Add the arguments of `completion`."""
    anywhere(made)
    shells = ("bash", "zsh", "fish", "runs")
    made.add_argument("shell", choices=shells, help="the shell; `runs` lists all run ids")
