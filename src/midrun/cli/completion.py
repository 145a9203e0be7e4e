"""Completion scripts for bash, zsh and fish.

Commands and options are written into the script, from the parser. Run ids change, so the script
calls `midrun completion runs` each time Tab is pressed.
"""

from argparse import ArgumentParser, Namespace

from midrun.cli.command_specs import GROUPS
from midrun.cli.output import Sayer
from midrun.cli.parser import options, parser, subparsers
from midrun.cli.targets import opened

IDS = "midrun completion runs 2>/dev/null"


async def completion(args: Namespace, say: Sayer) -> int:
    """Print the script of a shell, or with `runs` all run ids."""
    if args.shell != "runs":
        script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell]()
        say.say({"shell": args.shell, "script": script}, script.removesuffix("\n"))
        return 0
    async with opened(args) as midrun:
        for run in await midrun.named(""):
            say.say({"run_id": run}, run)
    return 0


def _commands() -> dict[str, ArgumentParser]:
    return {name: made.filled() for name, made in subparsers(parser()).items()}


def _flags(made: ArgumentParser) -> list[str]:
    return [word for a in options(made) for word in a.option_strings if word.startswith("--")]


def _takes(made: ArgumentParser, *names: str) -> bool:
    """Tell whether the first positional argument of a command is one of `names`."""
    first = next((a.dest for a in options(made) if not a.option_strings), "")
    return first in names


def _texts() -> dict[str, str]:
    return {name: c.text for group in GROUPS.values() for name, c in group.items()}


def _bash() -> str:
    # `$COMP_CWORD$first` joins the position of the word with the kind of the first argument:
    # "2runs" is the first argument of a command that takes a run.
    cases = "\n".join(f"    {name}) {_case(made)} ;;" for name, made in _commands().items())
    return f"""\
_midrun() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words="" flags="" first=""
  COMPREPLY=()
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  if [ "$COMP_CWORD" = 1 ]; then words="{" ".join(_commands())}"
  elif [[ "$word" == -* ]]; then words="$flags"
  elif [ "$COMP_CWORD$first" = 2runs ]; then words="$({IDS})"
  elif [ "$COMP_CWORD$first" = 2files ]; then COMPREPLY=($(compgen -f -- "$word"))
  fi
  COMPREPLY+=($(compgen -W "$words" -- "$word"))
}}
complete -F _midrun midrun
"""


def _zsh() -> str:
    # In a completion function of zsh, `words` is the command line. So the variable that holds
    # the choices gets another name than in bash. `${=name}` splits a string into words.
    cases = "\n".join(f"    {name}) {_case(made)} ;;" for name, made in _commands().items())
    listed = " ".join(f"'{name}:{_quoted(text)}'" for name, text in _texts().items())
    return f"""\
_midrun() {{
  local -a commands
  local midrun_words="" flags="" first=""
  commands=({listed})
  if (( CURRENT == 2 )); then _describe command commands; return; fi
  case $words[2] in
{cases.replace("words=", "midrun_words=")}
  esac
  if [[ $PREFIX == -* ]]; then compadd -- ${{=flags}}
  elif [[ $CURRENT$first == 3runs ]]; then compadd -- $({IDS})
  elif [[ $CURRENT$first == 3files ]]; then _files
  else compadd -- ${{=midrun_words}}
  fi
}}
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit; }}
compdef _midrun midrun
"""


def _case(made: ArgumentParser) -> str:
    """Return one command's completions as assignments to shell variables.

    `flags` are its options, `words` the choices of its positional arguments. `first` is the
    kind of its first positional argument: run ids or file names.
    """
    case = f'flags="{" ".join(_flags(made))}"'
    if _choices(made):
        case += f'; words="{" ".join(_choices(made))}"'
    if _takes(made, "run", "ask"):
        case += "; first=runs"
    return f"{case}; first=files" if _takes(made, "app") else case


def _fish() -> str:
    lines = ["complete -c midrun -f"]
    for name, made in _commands().items():
        text = _quoted(_texts()[name])
        lines.append(f"complete -c midrun -n __fish_use_subcommand -a {name} -d '{text}'")
        condition = f"complete -c midrun -n '__fish_seen_subcommand_from {name}'"
        for action in options(made):
            for flag in action.option_strings:
                if flag.startswith("--"):
                    help_text = _quoted(action.help or "")
                    lines.append(f"{condition} -l {flag.removeprefix('--')} -d '{help_text}'")
        lines += [f"{condition} -a '{' '.join(_choices(made))}'"] if _choices(made) else []
        lines += [f"{condition} -a '({IDS})'"] if _takes(made, "run", "ask") else []
        lines += [f"{condition} -F"] if _takes(made, "app") else []
    return "\n".join(lines) + "\n"


def _choices(made: ArgumentParser) -> list[str]:
    return [str(c) for a in options(made) if not a.option_strings for c in a.choices or ()]


def _quoted(text: str) -> str:
    # zsh separates a name from its description with a colon. `%%` is argparse's escape for `%`.
    return text.replace("'", "").replace(":", " -").replace("%%", "%")
