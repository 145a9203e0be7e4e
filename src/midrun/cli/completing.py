"""Completion for shells: words from the parser, run ids from the store when Tab is pressed."""

from argparse import ArgumentParser, Namespace

from midrun.cli.grammar import GROUPS
from midrun.cli.opening import opened
from midrun.cli.parsing import options, parser, subparsers
from midrun.cli.saying import Sayer

IDS = "midrun completion runs 2>/dev/null"


async def completion(args: Namespace, say: Sayer) -> int:
    """Print the script of a shell; or, for the script, the runs there are."""
    if args.shell != "runs":
        say.raw({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell]())
        return 0
    async with opened(args) as midrun:
        for run in await midrun.named(""):
            say.text(run)
    return 0


def _commands() -> dict[str, ArgumentParser]:
    return {name: made.filled() for name, made in subparsers(parser()).items()}


def _flags(made: ArgumentParser) -> list[str]:
    return [word for a in options(made) for word in a.option_strings if word.startswith("--")]


def _takes(made: ArgumentParser, *names: str) -> bool:
    """Tell whether the first thing that a command takes by position is one of `names`."""
    first = next((a.dest for a in options(made) if not a.option_strings), "")
    return first in names


def _texts() -> dict[str, str]:
    return {name: c.text for group in GROUPS.values() for name, c in group.items()}


def _bash() -> str:
    cases = []
    for name, made in _commands().items():
        words = " ".join([*_flags(made), *_choices(made)])
        ids = (
            f'; [ $COMP_CWORD = 2 ] && words+=" $({IDS})"' if _takes(made, "run", "ask") else ""
        )
        files = '; COMPREPLY=($(compgen -f -- "$word"))' if _takes(made, "app") else ""
        cases.append(f'    *\\ {name}) words="{words}"{ids}{files} ;;')
    return f"""\
_midrun() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
  COMPREPLY=()
  case "$COMP_CWORD ${{COMP_WORDS[1]}}" in
    1\\ *) words="{" ".join(_commands())}" ;;
{chr(10).join(cases)}
  esac
  COMPREPLY+=($(compgen -W "$words" -- "$word"))
}}
complete -F _midrun midrun
"""


def _zsh() -> str:
    cases = []
    for name, made in _commands().items():
        words = " ".join([*_flags(made), *_choices(made)])
        ids = (
            f"; (( CURRENT == 3 )) && compadd -- $({IDS})" if _takes(made, "run", "ask") else ""
        )
        files = "; _files" if _takes(made, "app") else ""
        cases.append(f"    {name}) compadd -- {words}{ids}{files} ;;")
    listed = " ".join(f"'{name}:{_quoted(text)}'" for name, text in _texts().items())
    return f"""\
_midrun() {{
  local -a commands
  commands=({listed})
  if (( CURRENT == 2 )); then _describe command commands; return; fi
  case $words[2] in
{chr(10).join(cases)}
  esac
}}
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit; }}
compdef _midrun midrun
"""


def _fish() -> str:
    lines = ["complete -c midrun -f"]
    for name, made in _commands().items():
        text = _quoted(_texts()[name])
        lines.append(f"complete -c midrun -n __fish_use_subcommand -a {name} -d '{text}'")
        seen = f"complete -c midrun -n '__fish_seen_subcommand_from {name}'"
        for action in options(made):
            for flag in action.option_strings:
                if flag.startswith("--"):
                    says = _quoted(action.help or "")
                    lines.append(f"{seen} -l {flag.removeprefix('--')} -d '{says}'")
        lines += [f"{seen} -a '{' '.join(_choices(made))}'"] if _choices(made) else []
        lines += [f"{seen} -a '({IDS})'"] if _takes(made, "run", "ask") else []
        lines += [f"{seen} -F"] if _takes(made, "app") else []
    return "\n".join(lines) + "\n"


def _choices(made: ArgumentParser) -> list[str]:
    return [str(c) for a in options(made) if not a.option_strings for c in a.choices or ()]


def _quoted(text: str) -> str:
    return text.replace("'", "").replace(":", " -").replace("%%", "%")
