"""Parsing what was typed; help that teaches, and a guess at what was meant."""

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from typing import Final, NoReturn, Self

from midrun.cli.command_specs import GROUPS, Command

TOP: Final = """\
Pause, redirect, resume and cancel agents that are already running.

{commands}

A run is its journal. Every command works on a run of any process that shares the store, or of a
server: start one here, pause it from another terminal, resume it tomorrow.
"""

EPILOG: Final = """\
examples:
  midrun run app.py "Compare the vendors"     p pauses, r redirects, c cancels
  midrun ls                                   what runs, what waits for you
  midrun pause 3f2a                           the beginning of an id will do
  midrun resume 3f2a "Vendor A will do"       go on, with an instruction

where the runs are: --store or --url; else $MIDRUN_URL, $MIDRUN_STORE, sqlite:///midrun.db
also: MIDRUN_TOKEN (of a server), MIDRUN_ACTOR (who you are), MIDRUN_KEY (signs checkpoints),
  MIDRUN_CHAIN_KEY (what the chains of the store are made with), NO_COLOR
exit codes: 0 completed or done, 1 failed or refused, 2 usage, 3 cancelled, 75 paused
"""


class Misused(Exception):
    """What was typed is no command: what is, and what was probably meant."""

    def __init__(self, usage: str, text: str) -> None:
        super().__init__(usage, text)
        self.usage = usage
        self.text = text


class Parser(argparse.ArgumentParser):
    """A parser that says what was probably meant, and learns what it takes when it must."""

    fill: Callable[["Parser"], None] | None = None

    def filled(self) -> Self:
        """Return it with all that it takes: most commands are not typed, most of the time."""
        fill, self.fill = self.fill, None
        if fill is not None:
            fill(self)
        return self

    def parse_known_args(  # type: ignore[override]  # argparse overloads it for other namespaces
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse what is meant for this parser."""
        return argparse.ArgumentParser.parse_known_args(self.filled(), args, namespace)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and what is close to it."""
        found = re.search(r"invalid choice: '([^']*)'|arguments: (--[\w-]+)", message)
        typed = (found[1] or found[2]) if found is not None else ""
        if message.startswith("argument COMMAND: invalid choice"):
            message = f"there is no command {typed!r}"
        close = difflib.get_close_matches(typed, known_words(self), n=1)
        hint = f"did you mean {close[0]}?" if close else f"more: {self.prog} --help"
        if close == [typed]:
            hint = f"{typed} comes after the command"
        raise Misused(self.format_usage(), f"{self.prog}: {message}; {hint}")


def parser() -> Parser:
    """Return the parser of the whole command line."""
    top = Parser(
        prog="midrun",
        usage="midrun COMMAND [--help]",
        description=TOP.format(commands=_listed()),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action=_Version, nargs=0, help="print it, and exit")
    made = top.add_subparsers(
        prog="midrun",
        dest="command",
        required=True,
        metavar="COMMAND",
        help=argparse.SUPPRESS,
        parser_class=Parser,
    )
    for commands in GROUPS.values():
        for name, command in commands.items():
            one = made.add_parser(
                name,
                description=command.text[0].upper() + command.text[1:] + ".",
                epilog=_examples(command),
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
            one.fill = command.options
    return top


def subparsers(top: argparse.ArgumentParser) -> dict[str, Parser]:
    """Return the parsers of the commands, by name."""
    for action in top._actions:  # noqa: SLF001 - argparse has no public way to look at itself
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            return dict(action.choices)
    return {}


def options(made: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return what a parser takes, by position and by name, as far as its help shows it."""
    return [
        action
        for action in made._actions  # noqa: SLF001 - as above
        if not isinstance(action, argparse._SubParsersAction)  # noqa: SLF001 - as above
        and action.help != argparse.SUPPRESS
    ]


def known_words(made: argparse.ArgumentParser) -> list[str]:
    """Return every word that means something to a parser or to the commands below it."""
    words = [word for action in options(made) for word in action.option_strings]
    words += [str(word) for action in options(made) for word in action.choices or ()]
    for name, below in subparsers(made).items():
        words += [name, *known_words(below)]
    return words


def _listed() -> str:
    lines = []
    for title, commands in GROUPS.items():
        lines.append(f"{title}:")
        lines += [f"  {name:<16}{command.text}" for name, command in commands.items()]
    return "\n".join(lines)


def _examples(command: Command) -> str:
    title = "examples:" if len(command.examples) > 1 else "example:"
    return "\n".join([title, *(f"  {example}" for example in command.examples)])


class _Version(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Look the version up only now: that takes longer than most commands."""
        from importlib.metadata import version  # noqa: PLC0415 - as above

        del namespace, values, option_string
        parser.exit(0, f"midrun {version('midrun')}\n")
