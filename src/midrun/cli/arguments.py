"""Arguments: what each command takes, by position and by name."""

from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser, Namespace
from pathlib import Path
from typing import Final, NoReturn

SCOPES: Final = "all, agent:NAME, label:LABEL or run:ID"
PORT: Final = 8700


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
    token(made, "of the server (default: $MIDRUN_TOKEN)")


def token(made: ArgumentParser, what: str) -> None:
    """Add `--token-file`; refuse `--token`."""
    made.add_argument("--token-file", metavar="FILE", help=f"has the token {what}")
    made.add_argument("--token", action=_RefuseToken, help=SUPPRESS)


class _RefuseToken(Action):
    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: object,
        option_string: str | None = None,
    ) -> NoReturn:
        """Refuse a token as an argument."""
        del parser, namespace, values, option_string
        problem = "every user of this machine can read it in the list of processes"
        raise ArgumentError(self, f"{problem}; use --token-file FILE, or set MIDRUN_TOKEN")


def run(made: ArgumentParser) -> None:
    """Take a run."""
    anywhere(made)
    made.add_argument("run", metavar="RUN", help="the run's id, or the beginning of it")


def app(made: ArgumentParser) -> None:
    """Take an app."""
    store(made)
    made.add_argument("app", metavar="APP", help="file.py, file.py:agent or module:agent")


def staff(made: ArgumentParser, *engines: str) -> None:
    """Take what only those who drive for others take."""
    app(made)
    made.add_argument(
        "--engine",
        choices=("local", "temporal", *engines),
        default="local",
        help="what gives runs out" + "; none: other processes drive them" * bool(engines),
    )
    made.add_argument(
        "--limit",
        action="append",
        metavar="SCOPE=N",
        help="runs at once in all processes together: all=50, agent:clerk=10, label:gpu=2",
    )
    made.add_argument(
        "--here", action="append", metavar="SCOPE=N", help="the same, of this process alone"
    )
    made.add_argument(
        "--versions",
        choices=("any", "same"),
        default="any",
        help="drive runs that another version of their agent drove last, or leave them to it",
    )
    made.add_argument("--temporal-address", metavar="HOST:PORT")
    made.add_argument("--temporal-namespace", metavar="NAME", default="default")
    made.add_argument(
        "--webhook",
        action="append",
        metavar="URL",
        help="post what happens there, signed with $MIDRUN_WEBHOOK_SECRET",
    )
    made.add_argument("--spans", action="store_true", help="emit OpenTelemetry spans")


def plain(made: ArgumentParser) -> None:
    """Take whether there is to be a bar."""
    made.add_argument("--plain", action="store_true", help="one line per fact, no control bar")


# ── drive and watch ───────────────────────────────────────────────────────────────────────


def start(made: ArgumentParser) -> None:
    """Take what a run is started with."""
    anywhere(made)
    made.add_argument(
        "app", metavar="APP", help="file.py, module:agent; with --url an agent's name"
    )
    made.add_argument("task", metavar="TASK", help="what the agent should do")
    made.add_argument("--agent", metavar="NAME", help="which agent, if the app has several")
    made.add_argument("--thread", metavar="NAME", help="the conversation that it goes on with")
    made.add_argument("--label", action="append", metavar="WORD", help="to find and halt it by")
    plain(made)


def attach(made: ArgumentParser) -> None:
    """Take a run to look at, and who drives it."""
    run(made)
    made.add_argument("--app", metavar="APP", help="drive the run here, with this app's agents")
    plain(made)


def serve(made: ArgumentParser) -> None:
    """Take what a server takes."""
    staff(made, "none")
    made.add_argument(
        "--host", default="127.0.0.1", help="where to listen (default: here only)"
    )
    made.add_argument("--port", type=int, default=PORT, help=f"0 for any that is free ({PORT})")
    token(made, "of the operator (default: $MIDRUN_TOKEN, or one is made)")
    made.add_argument(
        "--allow-host",
        action="append",
        metavar="NAME",
        help="a name it goes by, beyond this host",
    )
    made.add_argument(
        "--allow-origin",
        action="append",
        metavar="ORIGIN",
        help="https://app.example: its pages may call, with a bearer token",
    )
    made.add_argument(
        "--unsigned-checkpoints",
        action="store_true",
        help="let operators bring checkpoints that no key has signed",
    )
    made.add_argument(
        "--public-url",
        metavar="ORIGIN",
        help="https://runs.example: its address as browsers see it, behind a proxy",
    )
    made.add_argument(
        "--forwarded-allow-ips",
        metavar="ADDRESSES",
        help="proxies whose X-Forwarded-* headers are believed (127.0.0.1,::1)",
    )
    made.add_argument(
        "--root-path", default="", metavar="/PREFIX", help="what a proxy cuts off the path"
    )
    made.add_argument("--tls-cert", type=Path, metavar="FILE", help="speak https: PEM")
    made.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key: PEM")
    made.add_argument(
        "--drain",
        type=float,
        metavar="SECONDS",
        help="after SIGTERM, answer on with /readyz at 503 (5 beyond loopback, 0 on it)",
    )


# ── look ──────────────────────────────────────────────────────────────────────────────────


def ls(made: ArgumentParser) -> None:
    """Take which runs are meant."""
    anywhere(made)
    made.add_argument("--phase", help="only runs in this phase: running, paused, waiting …")
    made.add_argument("--agent", metavar="NAME", help="only runs of this agent")
    made.add_argument("--label", metavar="WORD", help="only runs with this label")
    made.add_argument("--limit", type=int, default=50, help="at most so many (50)")


def feed(made: ArgumentParser) -> None:
    """Take how much of what happened."""
    run(made)
    made.add_argument(
        "--follow", action="store_true", help="go on until the run has ended, or failed"
    )
    made.add_argument(
        "--after", type=int, default=0, metavar="SEQ", help="only what came after that entry"
    )


# ── steer ─────────────────────────────────────────────────────────────────────────────────


def pause(made: ArgumentParser) -> None:
    """Take a run, and how soon."""
    run(made)
    made.add_argument("--now", action="store_true", help="stop the tools in flight as well")


def resume(made: ArgumentParser) -> None:
    """Take a run, and how it goes on."""
    run(made)
    made.add_argument("text", nargs="?", metavar="TEXT", help="what to do from here on")
    made.add_argument(
        "--cap", action="append", metavar="NAME=AMOUNT", help="raise a cap: steps=20, cost=5"
    )


def redirect(made: ArgumentParser) -> None:
    """Take a run, and its new course."""
    run(made)
    made.add_argument("text", metavar="TEXT", help="what to do instead")
    made.add_argument("--now", action="store_true", help="at once, not at the next step")


def say(made: ArgumentParser) -> None:
    """Take a run, and what is said to it."""
    run(made)
    made.add_argument("text", metavar="TEXT", help="the side question")
    made.add_argument(
        "--urgency",
        choices=("now", "next", "later"),
        default="next",
        help="when it is taken up",
    )


def cancel(made: ArgumentParser) -> None:
    """Take a run, and how much is undone."""
    run(made)
    made.add_argument("--undo-all", action="store_true", help="undo finished work as well")
    made.add_argument("--reason", help="why; goes into the journal")


def withdraw(made: ArgumentParser) -> None:
    """Take a run, and what is taken back."""
    run(made)
    made.add_argument(
        "seq", nargs="?", type=int, metavar="SEQ", help="as `show` prints it (the newest)"
    )


def raise_cap(made: ArgumentParser) -> None:
    """Take a run, and its new bounds."""
    run(made)
    made.add_argument(
        "cap", nargs="+", metavar="NAME=AMOUNT", help="the new bound: steps=20, cost=5"
    )


def frame(made: ArgumentParser) -> None:
    """Take a run, and a thought that it holds."""
    run(made)
    made.add_argument(
        "frame", nargs="?", metavar="FRAME", help="as `show` prints it (the one on top)"
    )


def fork(made: ArgumentParser) -> None:
    """Take a run, from where, and how its copy goes on."""
    run(made)
    made.add_argument("text", nargs="?", metavar="TEXT", help="what to do from there on")
    made.add_argument(
        "--at", type=int, metavar="SEQ", help="a boundary, as `feed` numbers it (the newest)"
    )


def write(made: ArgumentParser) -> None:
    """Take a run, and what is said in the agent's place."""
    run(made)
    made.add_argument("text", metavar="TEXT", help="what the assistant says")


def use_tool(made: ArgumentParser) -> None:
    """Take a run, and a call to be made."""
    run(made)
    made.add_argument("tool", metavar="TOOL", help="one of the agent's tools")
    made.add_argument("args", nargs="?", default="{}", metavar="JSON", help="its arguments")
    made.add_argument("--app", metavar="APP", help="at a store: the app that has the agent")


def hand_back(made: ArgumentParser) -> None:
    """Take a run, and what its agent is told."""
    run(made)
    made.add_argument("text", nargs="?", metavar="TEXT", help="what to do from here on")


def ask(made: ArgumentParser) -> None:
    """Take what is asked."""
    anywhere(made)
    made.add_argument(
        "ask", metavar="ASK", help="as `midrun asks` prints it; or RUN, if it asks one thing"
    )


def answer(made: ArgumentParser) -> None:
    """Take what is asked, and the answer."""
    ask(made)
    made.add_argument("value", metavar="VALUE", help="JSON, or plain text")


def approve(made: ArgumentParser) -> None:
    """Take what is asked, and other arguments."""
    ask(made)
    made.add_argument("--args", metavar="JSON", help="with these arguments instead")


def decline(made: ArgumentParser) -> None:
    """Take what is asked, and why not."""
    ask(made)
    made.add_argument(
        "reason", nargs="?", default="", metavar="REASON", help="the agent is told"
    )


def halt(made: ArgumentParser) -> None:
    """Take why, and how far."""
    anywhere(made)
    made.add_argument("reason", metavar="REASON", help="why; everybody will read it")
    made.add_argument("--scope", default="all", help=SCOPES)


def lift(made: ArgumentParser) -> None:
    """Take how far."""
    anywhere(made)
    made.add_argument("--scope", default="all", help=SCOPES)


def demo(made: ArgumentParser) -> None:
    """Take what the demo takes."""
    from midrun.cli import demo  # noqa: PLC0415 - it brings the whole demo along

    demo.options(made)


def completion(made: ArgumentParser) -> None:
    """Take a shell."""
    anywhere(made)
    shells = ("bash", "zsh", "fish", "runs")
    made.add_argument(
        "shell", choices=shells, help="which shell; `runs` lists the ids there are"
    )
