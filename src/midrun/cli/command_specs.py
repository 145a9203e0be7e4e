"""Specifications of all commands: summary, arguments and examples.

`parser` builds the command line from `COMMAND_GROUPS`, and `completion` the shell completions.
A new command needs an entry here, its arguments in `arguments`, and its function in `main`.
"""

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from midrun.cli import arguments


class CommandSpec(Struct, frozen=True):
    """One command: its summary, its arguments and its examples."""

    summary: str  # one line of help; lower case, no period
    add_arguments: Callable[
        [ArgumentParser], None
    ]  # adds the arguments to the command's parser
    examples: tuple[str, ...]


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
    "control": {
        "pause": CommandSpec(
            "pause a run: the model stops at once, a tool call finishes first",
            arguments.add_pause_arguments,
            ("midrun pause 3f2a", "midrun pause 3f2a --now    also stop the running tools"),
        ),
        "resume": CommandSpec(
            "resume a run, optionally with an instruction",
            arguments.add_resume_arguments,
            (
                "midrun resume 3f2a",
                'midrun resume 3f2a "Only the first three"',
                "midrun resume 3f2a --cap steps=40    after it paused at a cap",
            ),
        ),
        "redirect": CommandSpec(
            "give a run a new instruction; a paused run continues with it",
            arguments.add_redirect_arguments,
            ('midrun redirect 3f2a "Only vendor A"', 'midrun redirect 3f2a "Stop that" --now'),
        ),
        "say": CommandSpec(
            "ask a side question; the run then returns to its task",
            arguments.add_say_arguments,
            ('midrun say 3f2a "How far are you?"', 'midrun say 3f2a "Thanks" --urgency later'),
        ),
        "cancel": CommandSpec(
            "cancel a run and undo its unfinished work; see also: report",
            arguments.add_cancel_arguments,
            ("midrun cancel 3f2a", 'midrun cancel 3f2a --undo-all --reason "wrong vendor"'),
        ),
    },
    "decide": {
        "asks": CommandSpec(
            "list the questions and approvals that runs wait for",
            arguments.add_target_options,
            ("midrun asks",),
        ),
        "answer": CommandSpec(
            "answer a question; the answer becomes the tool's result",
            arguments.add_answer_arguments,
            ("midrun answer 3f2a blue", "midrun answer run_3f2a-a2 '{\"amount\": 40}'"),
        ),
        "approve": CommandSpec(
            "approve a call, once",
            arguments.add_approve_arguments,
            ("midrun approve 3f2a", 'midrun approve run_3f2a-a1 --args \'{"to": "ada"}\''),
        ),
        "decline": CommandSpec(
            "decline a call or a question",
            arguments.add_decline_arguments,
            ('midrun decline 3f2a "not to all customers"',),
        ),
    },
    "more controls": {
        "withdraw": CommandSpec(
            "withdraw a request that has not been applied yet",
            arguments.add_withdraw_arguments,
            (
                "midrun withdraw 3f2a",
                "midrun withdraw 3f2a 41    the request that `show` lists at 41",
            ),
        ),
        "raise-cap": CommandSpec(
            "raise a cap of a run; if it paused at the cap, use resume --cap",
            arguments.add_raise_cap_arguments,
            ("midrun raise-cap 3f2a steps=40 cost=2.50",),
        ),
        "force-pause": CommandSpec(
            "pause without calls that do not respond; their outcome is unknown",
            arguments.add_run_argument,
            ("midrun force-pause 3f2a    if a pause does not complete",),
        ),
        "resume-frame": CommandSpec(
            "return to the topmost held topic",
            arguments.add_frame_arguments,
            ("midrun resume-frame 3f2a",),
        ),
        "drop-frame": CommandSpec(
            "drop the topmost held topic",
            arguments.add_frame_arguments,
            ("midrun drop-frame 3f2a",),
        ),
        "retry-undo": CommandSpec(
            "retry the undos that failed after a cancel",
            arguments.add_run_argument,
            ("midrun report 3f2a        lists what was not undone", "midrun retry-undo 3f2a"),
        ),
        "accept-residue": CommandSpec(
            "accept the effects that could not be undone",
            arguments.add_run_argument,
            ("midrun accept-residue 3f2a",),
        ),
        "fork": CommandSpec(
            "continue in a new run; this run does not change",
            arguments.add_fork_arguments,
            (
                'midrun fork 3f2a "The same for vendor B"',
                'midrun fork 3f2a "Try it without the table" --at 41',
            ),
        ),
    },
    "take over": {
        "take-over": CommandSpec(
            "act in the agent's place, once no call is in flight",
            arguments.add_run_argument,
            ("midrun take-over 3f2a",),
        ),
        "write": CommandSpec(
            "write a message in the agent's place",
            arguments.add_write_arguments,
            ('midrun write 3f2a "Vendor A is out: they closed in May."',),
        ),
        "use-tool": CommandSpec(
            "call one of the agent's tools in its place",
            arguments.add_use_tool_arguments,
            (
                'midrun use-tool 3f2a search \'{"q": "cats"}\' --url http://127.0.0.1:8700',
                'midrun use-tool 3f2a search \'{"q": "cats"}\' --app app.py    for a store',
            ),
        ),
        "hand-back": CommandSpec(
            "return the run to its agent, which learns what you did",
            arguments.add_hand_back_arguments,
            ("midrun hand-back 3f2a", 'midrun hand-back 3f2a "Go on with vendor B"'),
        ),
    },
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
