"""Specifications of all commands: function, summary, examples and arguments.

`main` finds the function of a command in `COMMAND_GROUPS`, `parser` builds the command line
from it, and `completion` the shell completions. A new command needs an entry here and its
function. The command of a control needs neither: it is made from the control's spec.
"""

from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from msgspec import Struct

from midrun.demo import DEFAULT_DEMO_STORE
from midrun.runs.control_specs import CONTROL_SPECS, CommandGroup
from midrun.runs.control_specs import CommandArgument as Arg


class CommandSpec(Struct, frozen=True):
    """One command. `function` is `module.function` in this package."""

    function: str
    summary: str  # one line of help; lower case, no period
    examples: tuple[str, ...]
    arguments: tuple[Arg, ...]
    opens_target: bool = False  # the function opens the store or server, or needs neither
    has_settings: bool = False  # its options can be set in the environment and a file, too


def _parse_speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not speed > 0:
        raise ArgumentTypeError(f"speed must be a number > 0, got {text!r}")
    return speed


_DURATION_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _parse_duration(text: str) -> timedelta:
    number, unit = text[:-1], text[-1:]
    if text == "0":
        return timedelta()
    if not number.isdecimal() or unit not in _DURATION_UNITS:
        raise ArgumentTypeError(f"must be like 30m, 24h or 7d, got {text!r}")
    return timedelta(**{_DURATION_UNITS[unit]: int(number)})


def _parse_moment(text: str) -> datetime | timedelta:
    """Return a date or a time in UTC, or the time between `24h` ago and now."""
    units = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
    if text[:-1].isdecimal() and text[-1:] in units:
        try:
            return -int(text[:-1]) * units[text[-1]]
        except OverflowError:
            raise ArgumentTypeError(f"time is too long ago: {text!r}") from None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        problem = f"time must be like 2026-11-01, 2026-11-01T12:00:00 or 24h, got {text!r}"
        raise ArgumentTypeError(problem) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


# ── arguments of several commands ────────────────────────────────────────────────────────────

_OUTPUT_OPTIONS: Final = (
    Arg("--json", "print one JSON value per line", kind="flag"),
    Arg("--actor", "your name, as the journal records it", "NAME"),
)
_STORE_OPTIONS: Final = (
    Arg("--store", "the store (default: $MIDRUN_STORE, or sqlite:///midrun.db)", "URL"),
    *_OUTPUT_OPTIONS,
    Arg("--config", "TOML file with settings (default: $MIDRUN_CONFIG)", "FILE"),
)
TARGET_OPTIONS: Final = (
    *_STORE_OPTIONS,
    Arg("--url", "use a server: http://host:8700", "SERVER"),
    Arg(
        "--token-file",
        "file with the token of the server (default: $MIDRUN_TOKEN; for a server on this "
        "machine also the token that `midrun serve` saved for this folder)",
        "FILE",
    ),
)
_RUN: Final = (*TARGET_OPTIONS, Arg("run", "the run's id, or the beginning of it", "RUN"))
_ASK: Final = (
    *TARGET_OPTIONS,
    Arg("ask", "id of the ask in `asks`; or RUN, if it has only one", "ASK"),
)
USERS_FILE_OPTION: Final = Arg(
    "--users-file",
    "file with several users, their roles and hashes of their tokens (made by `midrun users`)",
    "FILE",
    type=Path,
)

UNSET_OPTIONS: Final = frozenset({"--config", "--json"})
"""Options that are no settings: they can only be typed."""

SERVICES: Final = ("serve", "worker")
"""Commands whose options are all settings."""

_PLAIN: Final = Arg("--plain", "one line per entry, no control bar", kind="flag")
_SCOPE: Final = Arg("--scope", "all, agent:NAME, label:LABEL or run:ID", default="all")
_TENANT: Final = Arg("--tenant", "only runs of this tenant (default: of all)", "NAME")


_APP: Final = Arg("app", "file.py, file.py:agent or module:agent", "APP")


_MONITORING_OPTIONS: Final = (
    Arg(
        "--log-format",
        "text or json (text, unless the app configures logging itself)",
        choices=("text", "json"),
    ),
    Arg(
        "--log-level",
        "the least severe records of midrun (info)",
        choices=("debug", "info", "warning", "error"),
    ),
    Arg("--access-log", "log each request to the server", kind="flag"),
    Arg(
        "--metrics",
        "serve metrics for Prometheus at http://HOST:PORT/metrics; beyond this machine "
        "they need $MIDRUN_METRICS_TOKEN",
        "HOST:PORT",
    ),
    Arg("--metrics-token-file", "file with $MIDRUN_METRICS_TOKEN", "FILE"),
    Arg("--otel-metrics", "emit OpenTelemetry metrics", kind="flag"),
)
"""Logs and metrics of a worker or a server."""


def _list_worker_options(engine: Arg) -> tuple[Arg, ...]:
    """Return the options of a process that drives runs: a worker or a server."""
    return (
        *_STORE_OPTIONS,
        engine,
        Arg(
            "--limit",
            "max concurrent runs in all processes: all=50, agent:clerk=10, label:gpu=2",
            "SCOPE=N",
            kind="list",
        ),
        Arg("--here", "max concurrent runs in this process", "SCOPE=N", kind="list"),
        Arg(
            "--quota",
            "a bound: user.open_runs=20, tenant.cost_per_day=50, tenant:acme.runs_per_day=900",
            "SCOPE.NAME=N",
            kind="list",
        ),
        Arg(
            "--versions",
            "same: leave runs alone that another version of the agent drove last (any)",
            choices=("any", "same"),
            default="any",
        ),
        Arg(
            "--retention",
            "delete runs this long after their end: all=90d, label:gpu=2w, agent:clerk=never",
            "SCOPE=AGE",
            kind="list",
        ),
        Arg(
            "--temporal-address",
            "the frontend of Temporal (127.0.0.1:7233)",
            "HOST:PORT",
            default="127.0.0.1:7233",
        ),
        Arg(
            "--temporal-namespace",
            "the namespace in Temporal (default)",
            "NAME",
            default="default",
        ),
        Arg(
            "--webhook",
            "post events, of one tenant or all, signed with $MIDRUN_WEBHOOK_SECRET",
            "[TENANT=]URL",
            kind="list",
        ),
        Arg("--spans", "emit OpenTelemetry spans", kind="flag"),
        Arg("--key-file", "file with the key that signs checkpoints ($MIDRUN_KEY)", "FILE"),
        Arg("--chain-key-file", "file with the chain key ($MIDRUN_CHAIN_KEY)", "FILE"),
        Arg(
            "--encryption-keys-file",
            "file with the keys that encrypt the store ($MIDRUN_ENCRYPTION_KEYS)",
            "FILE",
        ),
        Arg("--webhook-secret-file", "file with $MIDRUN_WEBHOOK_SECRET", "FILE"),
        *_MONITORING_OPTIONS,
    )


_SERVE_OPTIONS: Final = (
    *_list_worker_options(
        Arg(
            "--engine",
            "local: this process drives runs; temporal: Temporal assigns them to workers; "
            "none: only other processes drive them (local)",
            choices=("local", "temporal", "none"),
            default="local",
        )
    ),
    Arg(
        "--host",
        "address to listen on (default: this machine only)",
        default="127.0.0.1",
    ),
    Arg("--port", "0 for any free port (8700)", default="8700", type=int),
    Arg(
        "--token-file",
        "file with the token of the operator (default: $MIDRUN_TOKEN, or one that "
        "is saved for this folder)",
        "FILE",
    ),
    USERS_FILE_OPTION,
    Arg("--oidc-issuer", "accept the tokens of this OpenID Connect provider", "URL"),
    Arg("--oidc-audience", "the audience that its tokens must have", "NAME"),
    Arg(
        "--oidc-client-id",
        "let browsers sign in at the provider, as this client; its secret, if it has one: "
        "$MIDRUN_OIDC_CLIENT_SECRET",
        "ID",
        default="",
    ),
    Arg("--oidc-client-secret-file", "file with $MIDRUN_OIDC_CLIENT_SECRET", "FILE"),
    Arg("--oidc-name-claim", "the claim with the user's name (sub)", "CLAIM", default="sub"),
    Arg("--oidc-role-claim", "the claim with roles (role)", "CLAIM", default="role"),
    Arg(
        "--oidc-tenant-claim",
        "the claim with the user's tenant; tokens without it are refused (none)",
        "CLAIM",
        default="",
    ),
    Arg("--oidc-team-claim", "the claim with the user's teams (none)", "CLAIM", default=""),
    Arg(
        "--oidc-role",
        "the role for a value of that claim: staff=user (default: of the same name)",
        "VALUE=ROLE",
        kind="list",
    ),
    Arg(
        "--allow-host",
        "another host name under which clients reach the server",
        "NAME",
        kind="list",
    ),
    Arg(
        "--allow-origin",
        "https://app.example: its pages may call the API with a bearer token",
        "ORIGIN",
        kind="list",
    ),
    Arg(
        "--a2a-push-to",
        "https://hooks.example: clients of A2A may have notifications sent there",
        "ORIGIN",
        kind="list",
    ),
    Arg(
        "--unsigned-checkpoints",
        "let operators import checkpoints without a signature",
        kind="flag",
    ),
    Arg(
        "--public-url",
        "https://runs.example: the address that browsers use, behind a proxy",
        "ORIGIN",
    ),
    Arg(
        "--forwarded-allow-ips",
        "proxies whose X-Forwarded-* headers are trusted (127.0.0.1,::1)",
        "ADDRESSES",
    ),
    Arg(
        "--root-path",
        "the prefix that a proxy strips from the path",
        "/PREFIX",
        default="",
    ),
    Arg("--tls-cert", "certificate: PEM", "FILE", type=Path),
    Arg("--tls-key", "its private key: PEM", "FILE", type=Path),
    Arg(
        "--drain",
        "after SIGTERM, keep serving this long with /readyz at 503 (5; 0 on loopback)",
        "SECONDS",
        type=float,
    ),
)
_WORKER_OPTIONS: Final = _list_worker_options(
    Arg(
        "--engine",
        "local: this process takes runs itself; temporal: Temporal assigns them (local)",
        choices=("local", "temporal"),
        default="local",
    )
)

# ── commands ─────────────────────────────────────────────────────────────────────────────────


def _list_control_commands(group: CommandGroup) -> dict[str, CommandSpec]:
    return {
        spec.command_name: CommandSpec(
            "control_commands.send_control",
            spec.command.summary,
            spec.command.examples,
            (*(_ASK if spec.route.part == "ask" else _RUN), *spec.command.arguments),
        )
        for spec in CONTROL_SPECS
        if spec.command.group == group
    }


COMMAND_GROUPS: Final = {
    "run": {
        "run": CommandSpec(
            "run_commands.run",
            "start a run and show it until it rests; Ctrl-C pauses it",
            (
                'midrun run app.py "Compare the vendors"',
                'midrun run app:researcher "Find cats" --plain > log.txt',
                'midrun run app.py "What does it cost?" --file receipt.png',
                'midrun run researcher "Find cats" --url http://127.0.0.1:8700',
            ),
            (
                *TARGET_OPTIONS,
                Arg("app", "file.py or module:agent; with --url, an agent's name", "APP"),
                Arg("task", "the task of the run", "TASK"),
                Arg("--agent", "the agent, if the app has several", "NAME"),
                Arg("--thread", "the conversation to continue", "NAME"),
                Arg("--label", "a label to find and halt runs by", "WORD", kind="list"),
                Arg("--file", "a file for the agent; may be repeated", "PATH", kind="list"),
                Arg("--tenant", "the tenant of the run (default: the token's)", "NAME"),
                Arg("--team", "share the run with this team", "NAME"),
                _PLAIN,
            ),
            opens_target=True,
        ),
        "attach": CommandSpec(
            "run_commands.attach",
            "show an existing run, with its control bar",
            (
                "midrun attach 3f2a                 watch and control; d detaches",
                "midrun attach 3f2a --app app.py    also drive it here if no worker does",
            ),
            (*_RUN, Arg("--app", "drive the run here, with this app's agents", "APP"), _PLAIN),
            opens_target=True,
        ),
        "serve": CommandSpec(
            "run_commands.serve",
            "serve an app over HTTP with a web page, and drive its runs",
            ("midrun serve app.py", "midrun serve app.py --port 0 --store sqlite:///runs.db"),
            (_APP, *_SERVE_OPTIONS),
            opens_target=True,
            has_settings=True,
        ),
        "worker": CommandSpec(
            "run_commands.worker",
            "drive the runs of an app until interrupted",
            (
                "midrun worker app.py",
                "midrun worker app.py --limit agent:clerk=10 --here all=200 --versions same",
                "midrun worker app.py --engine temporal --store postgresql://db/midrun",
            ),
            (_APP, *_WORKER_OPTIONS),
            opens_target=True,
            has_settings=True,
        ),
        "mcp": CommandSpec(
            "run_commands.mcp",
            "serve runs as tools of an MCP server, over standard input and output",
            (
                "midrun mcp app.py                            drive its runs here",
                "midrun mcp --url http://127.0.0.1:8700       runs of a server",
            ),
            (
                *TARGET_OPTIONS,
                Arg("app", "drive the runs of this app here; not with --url", "APP", nargs="?"),
            ),
            opens_target=True,
        ),
        "demo": CommandSpec(
            "demo.demo",
            "try midrun in a minute: no API key, no network",
            ("midrun demo", "midrun demo --terminal"),
            (
                Arg(
                    "--store",
                    f"default: {DEFAULT_DEMO_STORE}",
                    "URL",
                    default=DEFAULT_DEMO_STORE,
                ),
                Arg("--port", "port of the page; 0 for any free port (8700)", type=int),
                Arg("--no-browser", "only print the link", kind="flag"),
                Arg("--terminal", "show it here, not on a page", kind="flag"),
                Arg(
                    "--speed",
                    "2 is twice as fast, inf never waits (1)",
                    default="1",
                    type=_parse_speed,
                ),
                Arg(
                    "--model",
                    "provider:model, or scripted (default: by the API key in the environment, "
                    "if any)",
                    "NAME",
                ),
                Arg("--new", "start a new run, even if one is unfinished", kind="flag"),
                *_OUTPUT_OPTIONS,
            ),
            opens_target=True,
        ),
    },
    "inspect": {
        "ls": CommandSpec(
            "inspect_commands.ls",
            "list runs, newest first",
            (
                "midrun ls --phase waiting",
                'midrun ls --search "bill vendor"',
                "midrun ls --watch",
                "midrun ls --json | jq -r .run_id",
            ),
            (
                *TARGET_OPTIONS,
                Arg("--phase", "only runs in this phase: running, paused, waiting …"),
                Arg("--agent", "only runs of this agent", "NAME"),
                Arg("--label", "only runs with this label", "WORD"),
                _TENANT,
                Arg(
                    "--search",
                    "only runs with these words in task, agent, labels or output",
                    "TEXT",
                ),
                Arg("--limit", "max number of runs (50)", "N", default="50", type=int),
                Arg("--watch", "list them again every two seconds", kind="flag"),
            ),
        ),
        "show": CommandSpec(
            "inspect_commands.show",
            "show the status of a run and the commands it accepts now",
            ("midrun show 3f2a", "midrun show 3f2a --raw    everything, as indented JSON"),
            (*_RUN, Arg("--raw", "print everything as indented JSON", kind="flag")),
        ),
        "feed": CommandSpec(
            "inspect_commands.feed",
            "print the history of a run, one sentence per entry",
            ("midrun feed 3f2a", "midrun feed 3f2a --follow --after 120 --json"),
            (
                *_RUN,
                Arg("--follow", "continue until the run has ended or failed", kind="flag"),
                Arg("--after", "only entries after this one", "SEQ", default="0", type=int),
            ),
        ),
        "report": CommandSpec(
            "inspect_commands.report",
            "print the outcome of every call: kept, undone or unknown",
            ("midrun report 3f2a > report.md",),
            _RUN,
        ),
        "artifacts": CommandSpec(
            "inspect_commands.artifacts",
            "list the artifacts of a run, or save them",
            (
                "midrun artifacts 3f2a",
                "midrun artifacts 3f2a --save out    the newest version of each",
            ),
            (
                *_RUN,
                Arg(
                    "--save", "write the newest versions into this directory", "DIR", type=Path
                ),
            ),
        ),
        "verify": CommandSpec(
            "inspect_commands.verify",
            "check a run's hash chain and its invariants",
            ("midrun verify 3f2a",),
            _RUN,
        ),
        "export": CommandSpec(
            "inspect_commands.export",
            "print a run's journal as stored, one entry per line",
            ("midrun export 3f2a > journal.jsonl",),
            _RUN,
        ),
    },
    "control": _list_control_commands("control"),
    "decide": {
        "asks": CommandSpec(
            "inspect_commands.asks",
            "list the questions and approvals that runs wait for",
            ("midrun asks",),
            TARGET_OPTIONS,
        ),
        **_list_control_commands("decide"),
    },
    "more controls": {
        **_list_control_commands("more controls"),
        "fork": CommandSpec(
            "control_commands.fork",
            "continue in a new run; this run does not change",
            (
                'midrun fork 3f2a "The same for vendor B"',
                'midrun fork 3f2a "Try it without the table" --at 41',
            ),
            (
                *_RUN,
                Arg("text", "an instruction for the new run", "TEXT", nargs="?"),
                Arg("--at", "number of a boundary in `feed` (the newest)", "SEQ", type=int),
            ),
        ),
    },
    "take over": _list_control_commands("take over"),
    "operate": {
        "halt": CommandSpec(
            "control_commands.halt",
            "set a halt: nothing starts until it is lifted",
            (
                'midrun halt "runaway costs"',
                'midrun halt "bad prompt" --scope agent:researcher',
            ),
            (
                *TARGET_OPTIONS,
                Arg("reason", "the reason; all users can read it", "REASON"),
                _SCOPE,
                _TENANT,
            ),
        ),
        "lift": CommandSpec(
            "control_commands.lift",
            "lift a halt; the halted runs continue",
            ("midrun lift", "midrun lift --scope agent:researcher"),
            (*TARGET_OPTIONS, _SCOPE, _TENANT),
        ),
        "users": CommandSpec(
            "admin_commands.users",
            "add, list and revoke the users of a server; rotate their tokens",
            (
                "midrun users add ada --role operator --users-file users.json",
                "midrun users add bob --tenant acme --team legal --users-file users.json",
                "midrun users rotate ada --overlap 24h --users-file users.json",
                "midrun users revoke ada --users-file users.json",
                "midrun users list --users-file users.json",
            ),
            (
                Arg("action", "the change", choices=("add", "rotate", "revoke", "list")),
                Arg("name", "the user", "NAME", nargs="?"),
                USERS_FILE_OPTION,
                Arg(
                    "--role",
                    "viewer sees all runs, user controls their own, operator all (user)",
                    choices=("viewer", "user", "operator"),
                    default="user",
                ),
                Arg("--tenant", "the tenant of a new user (default: none)", "NAME", default=""),
                Arg("--team", "a team of a new user", "NAME", kind="list"),
                Arg(
                    "--overlap",
                    "how long the earlier tokens stay valid after rotate (24h)",
                    "TIME",
                    default="24h",
                    type=_parse_duration,
                ),
                Arg("--config", "TOML file with settings (default: $MIDRUN_CONFIG)", "FILE"),
                Arg("--json", "print one JSON value per line", kind="flag"),
            ),
            opens_target=True,
        ),
        "keys": CommandSpec(
            "admin_commands.keys",
            "make a key that encrypts the content of a store",
            ("midrun keys new >> keys.txt",),
            (
                Arg("action", "new: print a new key", choices=("new",)),
                Arg("--json", "print one JSON value per line", kind="flag"),
            ),
            opens_target=True,
        ),
        "sessions": CommandSpec(
            "admin_commands.sessions",
            "list the signed-in browsers of a server, or sign a user out",
            (
                "midrun sessions list --url http://127.0.0.1:8700",
                "midrun sessions end ada --url http://127.0.0.1:8700",
            ),
            (
                *TARGET_OPTIONS,
                Arg("action", "list them, or end those of a user", choices=("list", "end")),
                Arg("name", "the user to sign out", "NAME", nargs="?"),
                Arg("--id", "the one session to end, as in the list", "ID"),
            ),
        ),
        "audit": CommandSpec(
            "admin_commands.audit",
            "list the actions of people: controls, approvals, sign-ins, refusals, halts",
            (
                "midrun audit --since 24h | sort    by time; else the log, then run by run",
                "midrun audit --since 2026-11-01 --until 2026-12-01 --format csv > audit.csv",
                "midrun audit --verify",
            ),
            (
                *TARGET_OPTIONS,
                Arg(
                    "--since",
                    "start: a date, a time (UTC), or 90m, 24h, 7d ago (7d)",
                    "TIME",
                    default="7d",
                    type=_parse_moment,
                ),
                Arg("--until", "end, in the same forms (now)", "TIME", type=_parse_moment),
                Arg(
                    "--format",
                    "text for people, jsonl or csv for programs (text)",
                    choices=("text", "jsonl", "csv"),
                    default="text",
                ),
                Arg(
                    "--verify", "check that no audit entry was changed or removed", kind="flag"
                ),
                Arg("--expect", "also check that this hash is in the log", "HASH"),
            ),
        ),
        "config": CommandSpec(
            "admin_commands.config",
            "check the settings of serve or worker; print each with its source",
            (
                "midrun config check --config midrun.toml",
                "midrun config check worker --config midrun.toml",
            ),
            (
                Arg("action", "check: print and check all settings", choices=("check",)),
                Arg(
                    "service",
                    "the command that the settings are for (serve)",
                    nargs="?",
                    choices=SERVICES,
                    default="serve",
                ),
                *_SERVE_OPTIONS,
            ),
            opens_target=True,
            has_settings=True,
        ),
        "delete": CommandSpec(
            "delete_commands.delete",
            "delete runs that have ended; id, hash, actor, time and reason stay",
            (
                "midrun delete 3f2a",
                "midrun delete --older-than 90d --yes",
                'midrun delete --user ann --reason "GDPR request 17"',
            ),
            (
                *TARGET_OPTIONS,
                Arg("run", "the run's id, or the beginning of it", "RUN", nargs="?"),
                Arg("--thread", "all runs of this thread", "NAME"),
                Arg("--user", "all runs that this user started", "NAME"),
                Arg("--agent", "all runs of this agent", "NAME"),
                Arg("--label", "all runs with this label", "WORD"),
                Arg("--tenant", "all runs of this tenant", "NAME"),
                Arg("--older-than", "runs whose last entry is older: 90d, 12h, 2w", "AGE"),
                Arg("--reason", "the reason; it stays with the id", "TEXT", default=""),
                Arg("--yes", "do not ask for confirmation", kind="flag"),
            ),
        ),
        "backup": CommandSpec(
            "backup_commands.backup",
            "copy a SQLite store into a file while it is in use, and check the copy",
            ("midrun backup /backups/runs-2026-11-18.db",),
            (*_STORE_OPTIONS, Arg("file", "the new file", "FILE", type=Path)),
            opens_target=True,
        ),
        "restore": CommandSpec(
            "backup_commands.restore",
            "make a store of a backup; its runs are halted until you lift the halt",
            (
                "midrun restore /backups/runs-2026-11-18.db --store sqlite:///runs.db",
                "midrun restore --store postgresql://db/midrun    after pg_restore",
            ),
            (
                *_STORE_OPTIONS,
                Arg("file", "the backup of a SQLite store", "FILE", nargs="?", type=Path),
                Arg(
                    "--no-halt",
                    "do not halt the runs: workers continue them at once",
                    kind="flag",
                ),
            ),
            opens_target=True,
        ),
        "completion": CommandSpec(
            "completion.completion",
            "print a script that completes commands and run ids",
            (
                'eval "$(midrun completion bash)"        in ~/.bashrc',
                'eval "$(midrun completion zsh)"         in ~/.zshrc',
                "midrun completion fish | source         in config.fish",
            ),
            (
                *TARGET_OPTIONS,
                Arg(
                    "shell",
                    "the shell; `runs` lists all run ids",
                    choices=("bash", "zsh", "fish", "runs"),
                ),
            ),
            opens_target=True,
        ),
    },
}
"""Every command, in the order in which help lists them."""

COMMANDS: Final = {
    name: command for group in COMMAND_GROUPS.values() for name, command in group.items()
}
