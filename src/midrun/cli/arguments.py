"""Arguments of every command: functions that add them to an argparse parser.

The functions build on each other: a command on a run calls `add_run_argument`, which calls
`add_target_options`, which calls `add_store_options`. `command_specs` names the function of
each command. The commands of controls share one function, with the arguments of their specs.
"""

from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser, Namespace
from pathlib import Path
from typing import Final, NoReturn

from midrun.runs.control_specs import ControlSpec

SCOPE_HELP: Final = "all, agent:NAME, label:LABEL or run:ID"
SERVER_DEFAULT_PORT: Final = 8700
SERVER_CREDENTIAL_HELP: Final = (
    "of the server (default: $MIDRUN_TOKEN; for a server on this machine also the token that "
    "`midrun serve` saved for this folder)"
)


def add_store_options(parser: ArgumentParser) -> None:
    """Add the options that every command accepts."""
    parser.add_argument("--store", metavar="URL", help="the store, such as sqlite:///midrun.db")
    parser.add_argument("--json", action="store_true", help="print one JSON value per line")
    parser.add_argument("--actor", metavar="NAME", help="your name, as the journal records it")


def add_target_options(parser: ArgumentParser) -> None:
    """Add the options that choose a store or a server."""
    add_store_options(parser)
    parser.add_argument("--url", metavar="SERVER", help="use a server: http://host:8700")
    add_token_option(parser, SERVER_CREDENTIAL_HELP)


def add_token_option(parser: ArgumentParser, token_owner: str) -> None:
    """Add `--token-file`; refuse `--token`."""
    parser.add_argument(
        "--token-file", metavar="FILE", help=f"file with the token {token_owner}"
    )
    parser.add_argument("--token", action=_RefuseToken, help=SUPPRESS)


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


def add_run_argument(parser: ArgumentParser) -> None:
    """Add a run."""
    add_target_options(parser)
    parser.add_argument("run", metavar="RUN", help="the run's id, or the beginning of it")


def add_app_argument(parser: ArgumentParser) -> None:
    """Add an app."""
    add_store_options(parser)
    parser.add_argument("app", metavar="APP", help="file.py, file.py:agent or module:agent")


def add_worker_arguments(parser: ArgumentParser, *engines: str) -> None:
    """Add the options of a process that drives runs: a worker or a server."""
    add_app_argument(parser)
    parser.add_argument(
        "--engine",
        choices=("local", "temporal", *engines),
        default="local",
        help="assigns runs to workers" + "; none: other processes drive them" * bool(engines),
    )
    parser.add_argument(
        "--limit",
        action="append",
        metavar="SCOPE=N",
        help="max concurrent runs in all processes: all=50, agent:clerk=10, label:gpu=2",
    )
    parser.add_argument(
        "--here",
        action="append",
        metavar="SCOPE=N",
        help="max concurrent runs in this process",
    )
    parser.add_argument(
        "--versions",
        choices=("any", "same"),
        default="any",
        help="same: leave runs alone that another version of the agent drove last (any)",
    )
    parser.add_argument("--temporal-address", metavar="HOST:PORT")
    parser.add_argument("--temporal-namespace", metavar="NAME", default="default")
    parser.add_argument(
        "--webhook",
        action="append",
        metavar="URL",
        help="post events to this URL, signed with $MIDRUN_WEBHOOK_SECRET",
    )
    parser.add_argument("--spans", action="store_true", help="emit OpenTelemetry spans")


def add_plain_option(parser: ArgumentParser) -> None:
    """Add `--plain`, which turns the control bar off."""
    parser.add_argument(
        "--plain", action="store_true", help="one line per entry, no control bar"
    )


# ── drive and watch ───────────────────────────────────────────────────────────────────────


def add_run_command_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `run`."""
    add_target_options(parser)
    parser.add_argument(
        "app", metavar="APP", help="file.py or module:agent; with --url, an agent's name"
    )
    parser.add_argument("task", metavar="TASK", help="the task of the run")
    parser.add_argument("--agent", metavar="NAME", help="the agent, if the app has several")
    parser.add_argument("--thread", metavar="NAME", help="the conversation to continue")
    parser.add_argument(
        "--label", action="append", metavar="WORD", help="a label to find and halt runs by"
    )
    add_plain_option(parser)


def add_attach_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `attach`."""
    add_run_argument(parser)
    parser.add_argument(
        "--app", metavar="APP", help="drive the run here, with this app's agents"
    )
    add_plain_option(parser)


def add_serve_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `serve`."""
    add_worker_arguments(parser, "none")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=SERVER_DEFAULT_PORT,
        help=f"0 for any free port ({SERVER_DEFAULT_PORT})",
    )
    add_token_option(
        parser, "of the operator (default: $MIDRUN_TOKEN, or one that is saved for this folder)"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        metavar="NAME",
        help="another host name under which clients reach the server",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        metavar="ORIGIN",
        help="https://app.example: its pages may call the API with a bearer token",
    )
    parser.add_argument(
        "--unsigned-checkpoints",
        action="store_true",
        help="let operators import checkpoints without a signature",
    )
    parser.add_argument(
        "--public-url",
        metavar="ORIGIN",
        help="https://runs.example: the address that browsers use, behind a proxy",
    )
    parser.add_argument(
        "--forwarded-allow-ips",
        metavar="ADDRESSES",
        help="proxies whose X-Forwarded-* headers are trusted (127.0.0.1,::1)",
    )
    parser.add_argument(
        "--root-path",
        default="",
        metavar="/PREFIX",
        help="the prefix that a proxy strips from the path",
    )
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate: PEM")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key: PEM")
    parser.add_argument(
        "--drain",
        type=float,
        metavar="SECONDS",
        help="after SIGTERM, keep serving this long with /readyz at 503 (5; 0 on loopback)",
    )


# ── inspect ──────────────────────────────────────────────────────────────────────────────────


def add_ls_arguments(parser: ArgumentParser) -> None:
    """Add the filters of `ls`."""
    add_target_options(parser)
    parser.add_argument("--phase", help="only runs in this phase: running, paused, waiting …")
    parser.add_argument("--agent", metavar="NAME", help="only runs of this agent")
    parser.add_argument("--label", metavar="WORD", help="only runs with this label")
    parser.add_argument("--limit", type=int, default=50, help="max number of runs (50)")


def add_feed_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `feed`."""
    add_run_argument(parser)
    parser.add_argument(
        "--follow", action="store_true", help="continue until the run has ended or failed"
    )
    parser.add_argument(
        "--after", type=int, default=0, metavar="SEQ", help="only entries after this one"
    )


# ── control ─────────────────────────────────────────────────────────────────────────────────


def add_control_arguments(spec: ControlSpec, parser: ArgumentParser) -> None:
    """Add the arguments of a control: its run or ask, and those of the spec."""
    if spec.route.part == "ask":
        add_ask_argument(parser)
    else:
        add_run_argument(parser)
    for argument in spec.command.arguments:
        if argument.kind == "flag":
            parser.add_argument(argument.name, action="store_true", help=argument.help)
        else:
            parser.add_argument(
                argument.name,
                action="append" if argument.kind == "list" else "store",
                nargs=argument.nargs,
                type=int if argument.is_number else str,
                choices=argument.choices,
                default=argument.default,
                metavar=argument.metavar,
                help=argument.help,
            )


def add_ask_argument(parser: ArgumentParser) -> None:
    """Add an ask."""
    add_target_options(parser)
    parser.add_argument(
        "ask", metavar="ASK", help="id of the ask in `asks`; or RUN, if it has only one"
    )


def add_fork_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `fork`."""
    add_run_argument(parser)
    parser.add_argument(
        "text", nargs="?", metavar="TEXT", help="an instruction for the new run"
    )
    parser.add_argument(
        "--at", type=int, metavar="SEQ", help="number of a boundary in `feed` (the newest)"
    )


def add_halt_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `halt`."""
    add_target_options(parser)
    parser.add_argument("reason", metavar="REASON", help="the reason; all users can read it")
    parser.add_argument("--scope", default="all", help=SCOPE_HELP)


def add_lift_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `lift`."""
    add_target_options(parser)
    parser.add_argument("--scope", default="all", help=SCOPE_HELP)


def add_demo_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `demo`."""
    from midrun.cli import demo  # noqa: PLC0415 - imports the whole demo

    demo.add_arguments(parser)


def add_completion_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `completion`."""
    add_target_options(parser)
    shells = ("bash", "zsh", "fish", "runs")
    parser.add_argument("shell", choices=shells, help="the shell; `runs` lists all run ids")
