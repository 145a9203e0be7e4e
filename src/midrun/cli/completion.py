"""Completion scripts for bash, zsh and fish.

Commands and options are written into the script, from the parser. Run ids change, so the script
calls `midrun completion runs` each time Tab is pressed.
"""

from argparse import ArgumentParser, Namespace

from midrun.cli.command_specs import COMMANDS
from midrun.cli.output import CommandOutput
from midrun.cli.parser import build_parser, find_subparsers, list_arguments
from midrun.cli.targets import open_target

LIST_RUN_IDS_COMMAND = "midrun completion runs 2>/dev/null"


async def completion(args: Namespace, out: CommandOutput) -> int:
    """Print the script of a shell, or with `runs` all run ids."""
    if args.shell != "runs":
        script = {
            "bash": _build_bash_script,
            "zsh": _build_zsh_script,
            "fish": _build_fish_script,
        }[args.shell]()
        out.write({"shell": args.shell, "script": script}, script.removesuffix("\n"))
        return 0
    async with open_target(args) as midrun:
        for run in await midrun.find_ids(""):
            out.write({"run_id": run}, run)
    return 0


def _build_command_parsers() -> dict[str, ArgumentParser]:
    return {
        name: made.with_arguments() for name, made in find_subparsers(build_parser()).items()
    }


def _list_options(command_parser: ArgumentParser) -> list[str]:
    return [
        word
        for a in list_arguments(command_parser)
        for word in a.option_strings
        if word.startswith("--")
    ]


def _is_first_argument(command_parser: ArgumentParser, *names: str) -> bool:
    """Tell whether the first positional argument of a command is one of `names`."""
    first = next((a.dest for a in list_arguments(command_parser) if not a.option_strings), "")
    return first in names


def _build_bash_script() -> str:
    # `$COMP_CWORD$first` joins the position of the word with the kind of the first argument:
    # "2runs" is the first argument of a command that takes a run.
    return f"""\
_midrun() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words="" flags="" first=""
  COMPREPLY=()
  case "${{COMP_WORDS[1]}}" in
{_build_shell_cases()}
  esac
  if [ "$COMP_CWORD" = 1 ]; then words="{" ".join(_build_command_parsers())}"
  elif [[ "$word" == -* ]]; then words="$flags"
  elif [ "$COMP_CWORD$first" = 2runs ]; then words="$({LIST_RUN_IDS_COMMAND})"
  elif [ "$COMP_CWORD$first" = 2files ]; then COMPREPLY=($(compgen -f -- "$word"))
  fi
  COMPREPLY+=($(compgen -W "$words" -- "$word"))
}}
complete -F _midrun midrun
"""


def _build_zsh_script() -> str:
    # In a completion function of zsh, `words` is the command line. So the variable that holds
    # the choices gets another name than in bash. `${=name}` splits a string into words.
    cases = _build_shell_cases().replace("words=", "midrun_words=")
    listed = " ".join(f"'{name}:{_quote(spec.summary)}'" for name, spec in COMMANDS.items())
    return f"""\
_midrun() {{
  local -a commands
  local midrun_words="" flags="" first=""
  commands=({listed})
  if (( CURRENT == 2 )); then _describe command commands; return; fi
  case $words[2] in
{cases}
  esac
  if [[ $PREFIX == -* ]]; then compadd -- ${{=flags}}
  elif [[ $CURRENT$first == 3runs ]]; then compadd -- $({LIST_RUN_IDS_COMMAND})
  elif [[ $CURRENT$first == 3files ]]; then _files
  else compadd -- ${{=midrun_words}}
  fi
}}
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit; }}
compdef _midrun midrun
"""


def _build_shell_cases() -> str:
    cases = {name: _build_shell_case(made) for name, made in _build_command_parsers().items()}
    return "\n".join(f"    {name}) {case} ;;" for name, case in cases.items())


def _build_shell_case(command_parser: ArgumentParser) -> str:
    """Return one command's completions as assignments to shell variables.

    `flags` are its options, `words` the choices of its positional arguments. `first` is the
    kind of its first positional argument: run ids or file names.
    """
    case = f'flags="{" ".join(_list_options(command_parser))}"'
    if _list_choices(command_parser):
        case += f'; words="{" ".join(_list_choices(command_parser))}"'
    if _is_first_argument(command_parser, "run", "ask"):
        case += "; first=runs"
    return f"{case}; first=files" if _is_first_argument(command_parser, "app") else case


def _build_fish_script() -> str:
    lines = ["complete -c midrun -f"]
    for name, made in _build_command_parsers().items():
        text = _quote(COMMANDS[name].summary)
        lines.append(f"complete -c midrun -n __fish_use_subcommand -a {name} -d '{text}'")
        condition = f"complete -c midrun -n '__fish_seen_subcommand_from {name}'"
        for action in list_arguments(made):
            for flag in action.option_strings:
                if flag.startswith("--"):
                    help_text = _quote(action.help or "")
                    lines.append(f"{condition} -l {flag.removeprefix('--')} -d '{help_text}'")
        if choices := _list_choices(made):
            lines.append(f"{condition} -a '{' '.join(choices)}'")
        if _is_first_argument(made, "run", "ask"):
            lines.append(f"{condition} -a '({LIST_RUN_IDS_COMMAND})'")
        if _is_first_argument(made, "app"):
            lines.append(f"{condition} -F")
    return "\n".join(lines) + "\n"


def _list_choices(command_parser: ArgumentParser) -> list[str]:
    return [
        str(c)
        for a in list_arguments(command_parser)
        if not a.option_strings
        for c in a.choices or ()
    ]


def _quote(text: str) -> str:
    # zsh separates a name from its description with a colon. `%%` is argparse's escape for `%`.
    return text.replace("'", "").replace(":", " -").replace("%%", "%")
