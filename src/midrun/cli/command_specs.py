"""Specifications of all commands: summary, arguments and examples.

`parser` builds the command line from `COMMAND_GROUPS`, and `completion` the shell completions.
A new command needs an entry here, its arguments in `arguments`, and its function in `main`. The
command of a control needs none of these: it is made from the control's spec.
"""

from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct

from midrun.cli import arguments
from midrun.runs.control_specs import CONTROL_SPECS, CommandGroup


class CommandSpec(Struct, frozen=True):
    """One command: its summary, its arguments and its examples."""

    summary: str  # one line of help; lower case, no period
    add_arguments: Callable[
        [ArgumentParser], None
    ]  # adds the arguments to the command's parser
    examples: tuple[str, ...]


def _list_control_commands(group: CommandGroup) -> dict[str, CommandSpec]:
    return {
        spec.command_name: CommandSpec(
            spec.command.summary,
            partial(arguments.add_control_arguments, spec),
            spec.command.examples,
        )
        for spec in CONTROL_SPECS
        if spec.command.group == group
    }


COMMAND_GROUPS: Final = {
    "run": {
        "run": CommandSpec(
            "start a run and show it until it rests; Ctrl-C pauses it",
            arguments.add_run_command_arguments,
            (
                'midrun run app.py "Compare the vendors"',
                'midrun run app:researcher "Find cats" --plain > log.txt',
                'midrun run researcher "Find cats" --url http://127.0.0.1:8700',
            ),
        ),
        "attach": CommandSpec(
            "show an existing run, with its control bar",
            arguments.add_attach_arguments,
            (
                "midrun attach 3f2a                 watch and control; d detaches",
                "midrun attach 3f2a --app app.py    also drive it here if no worker does",
            ),
        ),
        "serve": CommandSpec(
            "serve an app over HTTP with a web page, and drive its runs",
            arguments.add_serve_arguments,
            ("midrun serve app.py", "midrun serve app.py --port 0 --store sqlite:///runs.db"),
        ),
        "worker": CommandSpec(
            "drive the runs of an app until interrupted",
            arguments.add_worker_arguments,
            (
                "midrun worker app.py",
                "midrun worker app.py --limit agent:clerk=10 --here all=200 --versions same",
                "midrun worker app.py --engine temporal --store postgresql://db/midrun",
            ),
        ),
        "demo": CommandSpec(
            "try midrun in a minute: no API key, no network",
            arguments.add_demo_arguments,
            ("midrun demo", "midrun demo --terminal"),
        ),
    },
    "inspect": {
        "ls": CommandSpec(
            "list runs, newest first",
            arguments.add_ls_arguments,
            ("midrun ls --phase waiting", "midrun ls --json | jq -r .run_id"),
        ),
        "show": CommandSpec(
            "show the status of a run and the commands it accepts now",
            arguments.add_run_argument,
            ("midrun show 3f2a",),
        ),
        "feed": CommandSpec(
            "print the history of a run, one sentence per entry",
            arguments.add_feed_arguments,
            ("midrun feed 3f2a", "midrun feed 3f2a --follow --after 120 --json"),
        ),
        "report": CommandSpec(
            "print the outcome of every call: kept, undone or unknown",
            arguments.add_run_argument,
            ("midrun report 3f2a > report.md",),
        ),
        "verify": CommandSpec(
            "check a run's hash chain and its invariants",
            arguments.add_run_argument,
            ("midrun verify 3f2a",),
        ),
        "export": CommandSpec(
            "print a run's journal as stored, one entry per line",
            arguments.add_run_argument,
            ("midrun export 3f2a > journal.jsonl",),
        ),
    },
    "control": _list_control_commands("control"),
    "decide": {
        "asks": CommandSpec(
            "list the questions and approvals that runs wait for",
            arguments.add_target_options,
            ("midrun asks",),
        ),
        **_list_control_commands("decide"),
    },
    "more controls": {
        **_list_control_commands("more controls"),
        "fork": CommandSpec(
            "continue in a new run; this run does not change",
            arguments.add_fork_arguments,
            (
                'midrun fork 3f2a "The same for vendor B"',
                'midrun fork 3f2a "Try it without the table" --at 41',
            ),
        ),
    },
    "take over": _list_control_commands("take over"),
    "operate": {
        "halt": CommandSpec(
            "set a halt: nothing starts until it is lifted",
            arguments.add_halt_arguments,
            (
                'midrun halt "runaway costs"',
                'midrun halt "bad prompt" --scope agent:researcher',
            ),
        ),
        "lift": CommandSpec(
            "lift a halt; the halted runs go on",
            arguments.add_lift_arguments,
            ("midrun lift", "midrun lift --scope agent:researcher"),
        ),
        "completion": CommandSpec(
            "print a script that completes commands and run ids",
            arguments.add_completion_arguments,
            (
                'eval "$(midrun completion bash)"        in ~/.bashrc',
                'eval "$(midrun completion zsh)"         in ~/.zshrc',
                "midrun completion fish | source         in config.fish",
            ),
        ),
    },
}
"""Every command, in the order in which help lists them."""
