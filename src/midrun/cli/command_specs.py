"""Specifications of all commands: summary, arguments and examples.

`parser` builds the command line from `COMMAND_GROUPS`, and `completion` the shell completions.
A new command needs an entry here, its arguments in `arguments`, and its function in `main`.
"""

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from midrun.cli import arguments


class Command(Struct, frozen=True):
    """One command: its summary, its arguments and its examples."""

    text: str  # one line of help; lower case, no period
    options: Callable[[ArgumentParser], None]  # adds the arguments to the command's parser
    examples: tuple[str, ...]


GROUPS: Final = {
    "run": {
        "run": Command(
            "start a run and show it until it rests; Ctrl-C pauses it",
            arguments.start,
            (
                'midrun run app.py "Compare the vendors"',
                'midrun run app:researcher "Find cats" --plain > log.txt',
                'midrun run researcher "Find cats" --url http://127.0.0.1:8700',
            ),
        ),
        "attach": Command(
            "show an existing run, with its control bar",
            arguments.attach,
            (
                "midrun attach 3f2a                 watch and control; d detaches",
                "midrun attach 3f2a --app app.py    also drive it here if no worker does",
            ),
        ),
        "serve": Command(
            "serve an app over HTTP with a web page, and drive its runs",
            arguments.serve,
            ("midrun serve app.py", "midrun serve app.py --port 0 --store sqlite:///runs.db"),
        ),
        "worker": Command(
            "drive the runs of an app until interrupted",
            arguments.staff,
            (
                "midrun worker app.py",
                "midrun worker app.py --limit agent:clerk=10 --here all=200 --versions same",
                "midrun worker app.py --engine temporal --store postgresql://db/midrun",
            ),
        ),
        "demo": Command(
            "try midrun in a minute: no API key, no network",
            arguments.demo,
            ("midrun demo", "midrun demo --terminal"),
        ),
    },
    "inspect": {
        "ls": Command(
            "list runs, newest first",
            arguments.ls,
            ("midrun ls --phase waiting", "midrun ls --json | jq -r .run_id"),
        ),
        "show": Command(
            "show the status of a run and the commands it accepts now",
            arguments.run,
            ("midrun show 3f2a",),
        ),
        "feed": Command(
            "print the history of a run, one sentence per entry",
            arguments.feed,
            ("midrun feed 3f2a", "midrun feed 3f2a --follow --after 120 --json"),
        ),
        "report": Command(
            "print the outcome of every call: kept, undone or unknown",
            arguments.run,
            ("midrun report 3f2a > report.md",),
        ),
        "verify": Command(
            "check a run's hash chain and its invariants",
            arguments.run,
            ("midrun verify 3f2a",),
        ),
        "export": Command(
            "print a run's journal as stored, one entry per line",
            arguments.run,
            ("midrun export 3f2a > journal.jsonl",),
        ),
    },
    "control": {
        "pause": Command(
            "pause a run at its next step; nothing is lost",
            arguments.pause,
            ("midrun pause 3f2a", "midrun pause 3f2a --now    also stop the running tools"),
        ),
        "resume": Command(
            "resume a run, optionally with an instruction",
            arguments.resume,
            (
                "midrun resume 3f2a",
                'midrun resume 3f2a "Only the first three"',
                "midrun resume 3f2a --cap steps=40    after it paused at a cap",
            ),
        ),
        "redirect": Command(
            "give a run a new instruction; finished work is kept",
            arguments.redirect,
            ('midrun redirect 3f2a "Only vendor A"', 'midrun redirect 3f2a "Stop that" --now'),
        ),
        "say": Command(
            "ask a side question; the run then returns to its task",
            arguments.say,
            ('midrun say 3f2a "How far are you?"', 'midrun say 3f2a "Thanks" --urgency later'),
        ),
        "cancel": Command(
            "cancel a run, undo its unfinished work, and report the result",
            arguments.cancel,
            ("midrun cancel 3f2a", 'midrun cancel 3f2a --undo-all --reason "wrong vendor"'),
        ),
    },
    "decide": {
        "asks": Command(
            "list the questions and approvals that runs wait for",
            arguments.anywhere,
            ("midrun asks",),
        ),
        "answer": Command(
            "answer a question; the answer becomes the tool's result",
            arguments.answer,
            ("midrun answer 3f2a blue", "midrun answer run_3f2a-a2 '{\"amount\": 40}'"),
        ),
        "approve": Command(
            "approve a call, once",
            arguments.approve,
            ("midrun approve 3f2a", 'midrun approve run_3f2a-a1 --args \'{"to": "ada"}\''),
        ),
        "decline": Command(
            "decline a call or a question",
            arguments.decline,
            ('midrun decline 3f2a "not to all customers"',),
        ),
    },
    "more controls": {
        "withdraw": Command(
            "withdraw a request that has not been applied yet",
            arguments.withdraw,
            (
                "midrun withdraw 3f2a",
                "midrun withdraw 3f2a 41    the request that `show` lists at 41",
            ),
        ),
        "raise-cap": Command(
            "raise a cap of a run; if it paused at the cap, use resume --cap",
            arguments.raise_cap,
            ("midrun raise-cap 3f2a steps=40 cost=2.50",),
        ),
        "force-pause": Command(
            "pause without calls that do not respond; their outcome is unknown",
            arguments.run,
            ("midrun force-pause 3f2a    if a pause does not complete",),
        ),
        "resume-frame": Command(
            "return to the topmost held topic",
            arguments.frame,
            ("midrun resume-frame 3f2a",),
        ),
        "drop-frame": Command(
            "drop the topmost held topic",
            arguments.frame,
            ("midrun drop-frame 3f2a",),
        ),
        "retry-undo": Command(
            "retry the undos that failed after a cancel",
            arguments.run,
            ("midrun report 3f2a        lists what was not undone", "midrun retry-undo 3f2a"),
        ),
        "accept-residue": Command(
            "accept the effects that could not be undone",
            arguments.run,
            ("midrun accept-residue 3f2a",),
        ),
        "fork": Command(
            "continue in a new run; this run does not change",
            arguments.fork,
            (
                'midrun fork 3f2a "The same for vendor B"',
                'midrun fork 3f2a "Try it without the table" --at 41',
            ),
        ),
    },
    "take over": {
        "take-over": Command(
            "act in the agent's place, once no call is in flight",
            arguments.run,
            ("midrun take-over 3f2a",),
        ),
        "write": Command(
            "write a message in the agent's place",
            arguments.write,
            ('midrun write 3f2a "Vendor A is out: they closed in May."',),
        ),
        "use-tool": Command(
            "call one of the agent's tools in its place",
            arguments.use_tool,
            (
                'midrun use-tool 3f2a search \'{"q": "cats"}\' --url http://127.0.0.1:8700',
                'midrun use-tool 3f2a search \'{"q": "cats"}\' --app app.py    for a store',
            ),
        ),
        "hand-back": Command(
            "return the run to its agent, which learns what you did",
            arguments.hand_back,
            ("midrun hand-back 3f2a", 'midrun hand-back 3f2a "Go on with vendor B"'),
        ),
    },
    "operate": {
        "halt": Command(
            "set a halt: nothing starts until it is lifted",
            arguments.halt,
            (
                'midrun halt "runaway costs"',
                'midrun halt "bad prompt" --scope agent:researcher',
            ),
        ),
        "lift": Command(
            "lift a halt; the halted runs go on",
            arguments.lift,
            ("midrun lift", "midrun lift --scope agent:researcher"),
        ),
        "completion": Command(
            "print a script that completes commands and run ids",
            arguments.completion,
            (
                'eval "$(midrun completion bash)"        in ~/.bashrc',
                'eval "$(midrun completion zsh)"         in ~/.zshrc',
                "midrun completion fish | source         in config.fish",
            ),
        ),
    },
}
"""Every command, in the order in which help lists them."""
