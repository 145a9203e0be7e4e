"""The argparse parser of the command line: help texts, lazy subcommands, spelling hints."""

import argparse
import re
from collections.abc import Sequence
from typing import Final, NoReturn, Self

from midrun.cli.command_specs import COMMAND_GROUPS, COMMANDS, UNSET_OPTIONS, CommandSpec
from midrun.runs.control_specs import CommandArgument

DESCRIPTION: Final = """\
Pause, redirect, resume and cancel agents that are already running.

{commands}

Every command works on all runs of the store or server, whichever process drives them: start a
run here, pause it from another terminal, resume it tomorrow.
"""

EPILOG: Final = """\
examples:
  midrun run app.py "Compare the vendors"     p pauses, r redirects, c cancels
  midrun ls                                   runs, and the ones that wait for you
  midrun pause 3f2a                           the beginning of an id is enough
  midrun resume 3f2a "Vendor A will do"       resume, with an instruction

store or server: --store or --url; else $MIDRUN_URL, $MIDRUN_STORE, sqlite:///midrun.db
settings: an option, else the environment (--allow-host: MIDRUN_ALLOW_HOST), else the file
  (--config, MIDRUN_CONFIG); `midrun config check` prints each with its source
environment: MIDRUN_TOKEN (of the server), MIDRUN_ACTOR (your name), MIDRUN_KEY (signs
  checkpoints), MIDRUN_CHAIN_KEY (key of the store's hash chains),
  MIDRUN_ENCRYPTION_KEYS_FILE (keys that encrypt the store), NO_COLOR
exit codes: 0 completed or done, 1 failed or refused, 2 wrong option, argument or setting,
  3 cancelled, 75 paused, 130 interrupted by Ctrl-C
"""


USAGE_EXIT_CODE: Final = 2


class UsageError(Exception):
    """The arguments cannot be parsed. Holds the usage line and the message."""

    def __init__(self, usage: str, text: str) -> None:
        super().__init__(usage, text)
        self.usage = usage
        self.text = text


class CommandParser(argparse.ArgumentParser):
    """A parser that suggests corrections and adds its arguments when they are needed.

    One process runs one command, so adding the arguments of all others would be wasted time.
    `missing_arguments` holds them until then.
    """

    missing_arguments: tuple[CommandArgument, ...] = ()
    has_settings = False  # options that are not typed are None, and are filled in later

    def with_arguments(self) -> Self:
        """Add the arguments on the first call, and return the parser."""
        arguments, self.missing_arguments = self.missing_arguments, ()
        for argument in arguments:
            self._add_argument(argument)
        return self

    def _add_argument(self, argument: CommandArgument) -> None:
        is_open = self.has_settings and argument.name not in UNSET_OPTIONS
        if argument.kind == "flag":
            default = None if is_open else False
            self.add_argument(
                argument.name, action="store_true", default=default, help=argument.help
            )
            return
        is_open = is_open and argument.name.startswith("--")
        self.add_argument(
            argument.name,
            action="append" if argument.kind == "list" else "store",
            nargs=argument.nargs,
            type=argument.type,
            choices=argument.choices,
            default=None if is_open else argument.default,
            metavar=argument.metavar,
            help=argument.help or None,
        )
        if argument.name == "--token-file":
            self.add_argument("--token", action=_RefuseToken, help=argparse.SUPPRESS)

    def parse_known_args(  # type: ignore[override]  # argparse overloads it for other namespaces
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> tuple[argparse.Namespace, list[str]]:
        """Add the arguments of this command, then parse."""
        return argparse.ArgumentParser.parse_known_args(self.with_arguments(), args, namespace)

    def parse_args(  # type: ignore[override]  # as above
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> argparse.Namespace:
        """Parse; report unknown arguments with the usage of the command that got them."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command = find_subparsers(self).get(getattr(parsed, "command", ""), self)
            command.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with the closest known word as a suggestion."""
        import difflib  # noqa: PLC0415 - for errors only

        # argparse reports the wrong word only inside its message.
        match = re.search(r"invalid choice: '([^']*)'|arguments: (--[\w-]+)", message)
        typed = (match[1] or match[2]) if match is not None else ""
        if message.startswith("argument COMMAND: invalid choice"):
            message = f"there is no command {typed!r}"
        close = difflib.get_close_matches(typed, list_known_words(self), n=1)
        hint = f"did you mean {close[0]}?" if close else f"more: {self.prog} --help"
        # The word is spelled correctly, but stands before the command: `midrun --json ls`.
        if close == [typed]:
            hint = f"{typed} comes after the command"
        raise UsageError(self.format_usage(), f"{self.prog}: {message}; {hint}")


def build_parser() -> CommandParser:
    """Return the parser of the whole command line."""
    top = CommandParser(
        prog="midrun",
        usage="midrun COMMAND [--help]",
        description=DESCRIPTION.format(commands=_format_command_list()),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands_action = top.add_subparsers(
        prog="midrun",
        dest="command",
        required=True,
        metavar="COMMAND",
        help=argparse.SUPPRESS,
        parser_class=CommandParser,
    )
    for name, command in COMMANDS.items():
        subparser = commands_action.add_parser(
            name,
            description=command.summary[0].upper() + command.summary[1:] + ".",
            epilog=_format_examples(command),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        subparser.missing_arguments = command.arguments
        subparser.has_settings = command.has_settings
    return top


def find_subparsers(root: argparse.ArgumentParser) -> dict[str, CommandParser]:
    """Return the parser of each command, by name."""
    for action in root._actions:  # noqa: SLF001 - argparse has no public way to list its actions
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            return dict(action.choices)
    return {}


def list_arguments(arg_parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the arguments of a parser that its help shows, positional and optional."""
    return [
        action
        for action in arg_parser._actions  # noqa: SLF001 - as above
        if not isinstance(action, argparse._SubParsersAction)  # noqa: SLF001 - as above
        and action.help != argparse.SUPPRESS
    ]


def list_known_words(arg_parser: argparse.ArgumentParser) -> list[str]:
    """Return all options, choices and command names of a parser and its subparsers."""
    words = [word for action in list_arguments(arg_parser) for word in action.option_strings]
    words += [
        str(word) for action in list_arguments(arg_parser) for word in action.choices or ()
    ]
    for name, below in find_subparsers(arg_parser).items():
        words += [name, *list_known_words(below)]
    return words


def _format_command_list() -> str:
    lines = []
    for title, commands in COMMAND_GROUPS.items():
        lines.append(f"{title}:")
        lines += [f"  {name:<16}{command.summary}" for name, command in commands.items()]
    return "\n".join(lines)


def _format_examples(command: CommandSpec) -> str:
    title = "examples:" if len(command.examples) > 1 else "example:"
    return "\n".join([title, *(f"  {example}" for example in command.examples)])


class _RefuseToken(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> NoReturn:
        del parser, namespace, values, option_string
        problem = "every user of this machine can read it in the list of processes"
        advice = "use --token-file FILE, or set MIDRUN_TOKEN"
        raise argparse.ArgumentError(self, f"{problem}; {advice}")


class _Version(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        # The lookup takes longer than most commands, so it happens only on request.
        from importlib.metadata import version  # noqa: PLC0415 - see above

        del namespace, values, option_string
        parser.exit(0, f"midrun {version('midrun')}\n")
