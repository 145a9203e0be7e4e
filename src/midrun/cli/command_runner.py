"""Run one command with parsed arguments, and report the errors that a user can expect.

The module of a command is imported when the command is run, so that `midrun ls` does not pay
for the server or the terminal bar.
"""

import importlib
import re
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable
from errno import EADDRINUSE
from typing import Final, cast

import anyio

from midrun.cli.command_specs import COMMANDS
from midrun.cli.hints import format_command, format_refusal, next_step
from midrun.cli.output import UNWRITABLE_ERRNOS, CommandOutput
from midrun.cli.parser import USAGE_EXIT_CODE
from midrun.cli.settings import DEFAULT_STORE, resolve_settings
from midrun.cli.targets import find_saved_token, load_given_app, open_target
from midrun.errors import (
    ControlRefused,
    MidrunError,
    Misconfigured,
    RunErased,
    RunNotFound,
    ServerRefused,
    StoreUnreachable,
)
from midrun.runs.protocols import AnyMidrun
from midrun.tui.styled_text import escape_controls

Command = Callable[[AnyMidrun, Namespace, CommandOutput], Awaitable[int]]
StandaloneCommand = Callable[[Namespace, CommandOutput], Awaitable[int]]

OPTION_BY_ARGUMENT: Final = {
    "allow_hosts": "--allow-host",
    "allow_origins": "--allow-origin",
    "host": "--host",
    "labels": "--label",
    "limit": "--limit",
    "phase": "--phase",
    "port": "--port",
    "public_url": "--public-url",
    "push_to": "--a2a-push-to",
    "quota": "--quota",
    "root_path": "--root-path",
    "scope": "--scope",
    "session_key": "MIDRUN_SESSION_KEY",
    "store": "--store",
    "thread": "--thread",
    "tls_cert": "--tls-cert",
    "tls_key": "--tls-key",
    "users_file": "--users-file",
    "token= or auth": "--token-file or --users-file, or set MIDRUN_TOKEN",
    "url": "--url",
    "webhook": "--webhook",
}
"""Argument of a Python function → the option, or the variable, that sets it."""

HTTP_UNAUTHORIZED: Final = 401

INTERRUPTED_EXIT_CODE: Final = 130


def run_command(args: Namespace) -> int:
    """Run the command of `args`, report an expected error, and return the exit code."""
    out = CommandOutput(as_json=args.json)
    try:
        # Before the event loop: it removes settings, some of them secret, from the environment.
        resolve_settings(args)
        return anyio.run(_run_in_event_loop, args, out)
    except (MidrunError, OSError, BaseExceptionGroup) as raised:
        if not _report_error(_find_expected_error(raised), args, out):
            raise
        return USAGE_EXIT_CODE if _has_wrong_setting(raised) else 1
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE


def _has_wrong_setting(raised: BaseException) -> bool:
    """Tell whether the command must be typed in another way, as after a wrong option."""
    return isinstance(_find_expected_error(raised), Misconfigured)


def _report_error(error: BaseException | None, args: Namespace, out: CommandOutput) -> bool:
    """Report an expected error; return False for one that deserves a traceback.

    Expected are a `MidrunError`, a file that cannot be used, and an output that cannot be
    written. Anything else is a bug in midrun.
    """
    if isinstance(error, MidrunError):
        _print_error(error, args, out)
        return True
    if not isinstance(error, OSError) or error.errno not in UNWRITABLE_ERRNOS:
        return False
    # Standard output is broken. Without this, the interpreter's own flush at exit would fail
    # once more and print a second error.
    out.discard_output()
    # A closed pipe is normal: the reader, such as `head`, has read enough.
    if not isinstance(error, BrokenPipeError):
        sys.stderr.write(f"midrun: Cannot write the output: {error.strerror}\n")
    return True


async def _run_in_event_loop(args: Namespace, out: CommandOutput) -> int:
    spec = COMMANDS[args.command]
    module, name = spec.function.split(".")
    function = getattr(importlib.import_module(f"midrun.cli.{module}"), name)
    if spec.opens_target:
        return await cast("StandaloneCommand", function)(args, out)
    agents = load_given_app(args, "a server has its own agents")
    async with open_target(args, agents, drive=False) as midrun:
        return await cast("Command", function)(midrun, args, out)


def _find_expected_error(raised: BaseException) -> BaseException | None:
    """Return the first exception of a group; None if the group holds an unexpected one.

    Concurrent tasks may fail together. If one failure is a bug, the whole group must be raised,
    so that its traceback is not hidden behind an expected error.
    """
    if isinstance(raised, OSError) and raised.filename is not None:
        # A file or folder that the user chose, or the place of one that the command writes.
        problem = f"Cannot use it: {raised.strerror}. Check the path and its permissions"
        return Misconfigured(str(raised.filename), problem)
    if not isinstance(raised, BaseExceptionGroup):
        return raised
    expected, others = raised.split((MidrunError, OSError))
    if expected is None or others is not None:
        return None
    return _find_expected_error(expected.exceptions[0])


def _print_error(error: MidrunError, args: Namespace, out: CommandOutput) -> None:
    if out.as_json:
        out.write_json(
            {
                "error": error.code,
                "text": _format_error(error, args),
                **_make_refusal_fields(error),
            }
        )
        return
    hint = _find_hint(error, args)
    next_line = f"\nmidrun: {hint}" if hint else ""
    sys.stderr.write(f"midrun: {escape_controls(_format_error(error, args))}{next_line}\n")


def _make_refusal_fields(error: MidrunError) -> dict[str, object]:
    """Return the JSON fields of a refused control; none for other errors."""
    if not isinstance(error, ControlRefused):
        return {}
    names = ("control", "reason", "phase", "allowed", "by", "seq")
    return {"run_id": error.run, **{name: getattr(error, name) for name in names}}


def _find_hint(error: MidrunError, args: Namespace) -> str:
    """Return the next step for the user, if the text of `error` does not name one."""
    if isinstance(error, ControlRefused):
        return next_step(error, args)
    if isinstance(error, RunNotFound) and not isinstance(error, RunErased):
        return f"list the runs: {format_command(args, 'ls')}"
    if isinstance(error.__cause__, OSError) and error.__cause__.errno == EADDRINUSE:
        return "choose another port: --port N, or --port 0 for any free port"
    if isinstance(error, StoreUnreachable) and getattr(args, "store", "") == DEFAULT_STORE:
        return "name the store or the server: --store or --url"
    return ""


def _format_error(error: MidrunError, args: Namespace) -> str:
    """Return the error text, with option names instead of Python arguments."""
    if isinstance(error, ServerRefused) and error.status == HTTP_UNAUTHORIZED:
        return f"Cannot sign in to server {error.url}: {_explain_refused_token(args)}"
    if isinstance(error, Misconfigured):
        names = "|".join(OPTION_BY_ARGUMENT)
        return re.sub(
            rf"^({names})\b|\b({names})=",  # the subject, or an argument to pass
            lambda match: OPTION_BY_ARGUMENT[match[1] or match[2]],
            str(error),
        )
    return format_refusal(error) if isinstance(error, ControlRefused) else str(error)


def _explain_refused_token(args: Namespace) -> str:
    """Return the problem and the next step, by the source of the token that was sent."""
    if args.token:
        source = f"in {args.token_file or 'MIDRUN_TOKEN'}"
    elif find_saved_token(args.url):
        source = "that `midrun serve` saved for this folder"
    else:
        return (
            "it needs a token. Pass --token-file FILE, or set MIDRUN_TOKEN. In the folder in "
            "which the server was started, the command finds its token by itself."
        )
    return f"it does not accept the token {source}. Use the token of this server."
