"""Entry point of the `midrun` command: parse the arguments, then run one command.

Start-up time matters in a shell. Parsing needs neither the event loop nor a store, so the rest
of the command is imported after it: `midrun --help` and a mistyped option answer at once.
Nothing runs before that, so Ctrl-C ends the process there, without the traceback of an import.
The installed script and `python -m midrun` both call `main`.

A command has three parts, in three modules. `parser.py` knows its words. `command_runner.py`
finds its store or server, and turns expected errors into a line on stderr. Its function is in
the module that `command_specs.py` names.

Exit codes, on which scripts rely: 0 completed or done, 1 failed or refused, 2 wrong option,
argument or setting, 3 cancelled, 75 paused, 130 interrupted by Ctrl-C. `--help` lists them, and
no command has others of its own.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the parser is imported where Ctrl-C is handled
    from midrun.cli.parser import UsageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments` (default: `sys.argv`) and return its exit code."""
    with _ending_at_interrupt():
        command = _prepare(arguments)
    return command()


@contextmanager
def _ending_at_interrupt() -> Iterator[None]:
    """End the process at SIGINT, unless the caller handles or ignores that signal."""
    try:
        is_free = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if is_free:
            signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
    except ValueError:  # not in the main thread: signals do not arrive here
        is_free = False
    try:
        yield
    finally:
        if is_free:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _prepare(arguments: Sequence[str] | None) -> Callable[[], int]:
    """Parse the arguments and import the command; return the function that runs it."""
    from midrun.cli.parser import USAGE_EXIT_CODE, UsageError, build_parser  # noqa: PLC0415 - slow

    # Not from the parsed arguments: a usage error must be reported as JSON, too. If a
    # task is the text `--json`, that counts as the option: stdout is UTF-8, which does no harm.
    as_json = "--json" in (sys.argv if arguments is None else arguments)
    _configure_stdout(as_json=as_json)
    try:
        args = build_parser().parse_args(arguments)
    except UsageError as error:
        # argparse would print and exit by itself. Here the error is a value, so that `--json`
        # has its object on stdout and tests can call `main` without a process.
        _report_usage_error(error, as_json=as_json)
        return lambda: USAGE_EXIT_CODE
    # Imports create many objects and no garbage, so the collections that they trigger are
    # wasted. `freeze` keeps these objects out of later collections, too. The collector is on
    # again before the command runs, because `midrun worker` runs for weeks.
    gc.disable()
    try:
        from midrun.cli.command_runner import run_command  # noqa: PLC0415 - see the module
    finally:
        gc.freeze()
        gc.enable()
    return lambda: run_command(args)


def _report_usage_error(error: "UsageError", *, as_json: bool) -> None:
    """Print the error as JSON, if that is asked for, and for people in any case.

    Only the object is on stdout: a program that reads it never meets the usage text.
    """
    if as_json:
        from midrun.cli.output import CommandOutput  # noqa: PLC0415 - see the module

        CommandOutput(as_json=True).write_json({"error": "usage", "text": error.text})
    sys.stderr.write(f"{error.usage}{error.text}\n")


def _configure_stdout(*, as_json: bool) -> None:
    """Make `sys.stdout` usable for any text that an agent may produce.

    A character that the locale's encoding lacks is written as a backslash escape. JSON is
    always UTF-8, because its readers expect UTF-8 whatever the locale is.
    """
    # Python sets `sys.stdout` to None if the parent process closed file descriptor 1.
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for good
    # Tests and other programs put objects without `reconfigure` here; those stay as they are.
    if isinstance(sys.stdout, TextIOWrapper):
        if as_json:
            sys.stdout.reconfigure(encoding="utf-8")
        sys.stdout.reconfigure(errors="backslashreplace")
