"""The grammar: every command with its arguments, a line of help, and examples that teach."""

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from midrun.cli import arguments as takes


class Command(Struct, frozen=True):
    """One command: what it is for, what it takes, and how it is used."""

    text: str
    options: Callable[[ArgumentParser], None]
    examples: tuple[str, ...]


GROUPS: Final = {
    "run": {
        "run": Command(
            "start a run and show it until it rests; Ctrl-C pauses it",
            takes.start,
            (
                'midrun run app.py "Compare the vendors"',
                'midrun run app:researcher "Find cats" --plain > log.txt',
                'midrun run researcher "Find cats" --url http://127.0.0.1:8700',
            ),
        ),
        "attach": Command(
            "show a run that is under way, with its control bar",
            takes.attach,
            (
                "midrun attach 3f2a                 driven elsewhere: d detaches, it goes on",
                "midrun attach 3f2a --app app.py    and drive it here, if nobody does",
            ),
        ),
        "serve": Command(
            "serve the runs of an app over HTTP, with a page, and drive them",
            takes.serve,
            ("midrun serve app.py", "midrun serve app.py --port 0 --store sqlite:///runs.db"),
        ),
        "worker": Command(
            "drive the runs of an app until interrupted",
            takes.staff,
            (
                "midrun worker app.py",
                "midrun worker app.py --limit agent:clerk=10 --here all=200 --versions same",
                "midrun worker app.py --engine temporal --store postgresql://db/midrun",
            ),
        ),
        "demo": Command(
            "show what this is for, in a minute: no key, no network",
            takes.demo,
            ("midrun demo", "midrun demo --terminal"),
        ),
    },
    "look": {
        "ls": Command(
            "list runs, newest first",
            takes.ls,
            ("midrun ls --phase waiting", "midrun ls --json | jq -r .run_id"),
        ),
        "show": Command(
            "show where a run stands, and what can be asked of it",
            takes.run,
            ("midrun show 3f2a",),
        ),
        "feed": Command(
            "tell what happened to a run, in sentences",
            takes.feed,
            ("midrun feed 3f2a", "midrun feed 3f2a --follow --after 120 --json"),
        ),
        "report": Command(
            "say what became of everything a run did",
            takes.run,
            ("midrun report 3f2a > report.md",),
        ),
        "verify": Command(
            "check a run's hash chain and every invariant", takes.run, ("midrun verify 3f2a",)
        ),
        "export": Command(
            "print a run's journal, line by line, as it is stored",
            takes.run,
            ("midrun export 3f2a > journal.jsonl",),
        ),
    },
    "steer": {
        "pause": Command(
            "stop a run at its next boundary, keeping everything",
            takes.pause,
            ("midrun pause 3f2a", "midrun pause 3f2a --now    stop the tools in flight, too"),
        ),
        "resume": Command(
            "let a run go on, with an instruction if you like",
            takes.resume,
            (
                "midrun resume 3f2a",
                'midrun resume 3f2a "Only the first three"',
                "midrun resume 3f2a --cap steps=40    after it paused at a cap",
            ),
        ),
        "redirect": Command(
            "change a run's course; finished work stays",
            takes.redirect,
            ('midrun redirect 3f2a "Only vendor A"', 'midrun redirect 3f2a "Stop that" --now'),
        ),
        "say": Command(
            "ask a run something while it works; it comes back to where it was",
            takes.say,
            ('midrun say 3f2a "How far are you?"', 'midrun say 3f2a "Thanks" --urgency later'),
        ),
        "cancel": Command(
            "stop everything, undo, and report",
            takes.cancel,
            ("midrun cancel 3f2a", 'midrun cancel 3f2a --undo-all --reason "wrong vendor"'),
        ),
    },
    "decide": {
        "asks": Command(
            "list what runs wait for somebody to decide", takes.anywhere, ("midrun asks",)
        ),
        "answer": Command(
            "answer a question: the answer is the tool's result",
            takes.answer,
            ("midrun answer 3f2a blue", "midrun answer run_3f2a-a2 '{\"amount\": 40}'"),
        ),
        "approve": Command(
            "let a call be made, once",
            takes.approve,
            ("midrun approve 3f2a", 'midrun approve run_3f2a-a1 --args \'{"to": "ada"}\''),
        ),
        "decline": Command(
            "do not let a call be made",
            takes.decline,
            ('midrun decline 3f2a "not to everybody"',),
        ),
    },
    "and also": {
        "withdraw": Command(
            "take back what was asked for and has not been applied",
            takes.withdraw,
            (
                "midrun withdraw 3f2a",
                "midrun withdraw 3f2a 41    the one that `show` has at 41",
            ),
        ),
        "raise-cap": Command(
            "move a bound while a run works; at a cap, use resume --cap",
            takes.raise_cap,
            ("midrun raise-cap 3f2a steps=40 cost=2.50",),
        ),
        "force-pause": Command(
            "stop waiting for calls that do not respond; nobody knows how they ended",
            takes.run,
            ("midrun force-pause 3f2a    after a pause that does not come to its end",),
        ),
        "resume-frame": Command(
            "go back to the held thought on top",
            takes.frame,
            ("midrun resume-frame 3f2a",),
        ),
        "drop-frame": Command(
            "give up the held thought on top",
            takes.frame,
            ("midrun drop-frame 3f2a",),
        ),
        "retry-undo": Command(
            "try again to undo what a cancel could not",
            takes.run,
            ("midrun report 3f2a        what is left, and why", "midrun retry-undo 3f2a"),
        ),
        "accept-residue": Command(
            "take what could not be undone as it is",
            takes.run,
            ("midrun accept-residue 3f2a",),
        ),
        "fork": Command(
            "continue from here in a new run; this one stays as it is",
            takes.fork,
            (
                'midrun fork 3f2a "The same for vendor B"',
                'midrun fork 3f2a "Try it without the table" --at 41',
            ),
        ),
    },
    "take over": {
        "take-over": Command(
            "become the assistant, once nothing is in flight",
            takes.run,
            ("midrun take-over 3f2a",),
        ),
        "write": Command(
            "say something in the agent's place",
            takes.write,
            ('midrun write 3f2a "Vendor A is out: they closed in May."',),
        ),
        "use-tool": Command(
            "make a call with one of the agent's tools",
            takes.use_tool,
            (
                'midrun use-tool 3f2a search \'{"q": "cats"}\' --url http://127.0.0.1:8700',
                'midrun use-tool 3f2a search \'{"q": "cats"}\' --app app.py    at a store',
            ),
        ),
        "hand-back": Command(
            "return the run to its agent, which is told what you did",
            takes.hand_back,
            ("midrun hand-back 3f2a", 'midrun hand-back 3f2a "Go on with vendor B"'),
        ),
    },
    "operate": {
        "halt": Command(
            "set a latch: nothing starts until it is lifted",
            takes.halt,
            (
                'midrun halt "runaway costs"',
                'midrun halt "bad prompt" --scope agent:researcher',
            ),
        ),
        "lift": Command(
            "take a latch away; what it held goes on",
            takes.lift,
            ("midrun lift", "midrun lift --scope agent:researcher"),
        ),
        "completion": Command(
            "print what makes a shell complete commands and run ids",
            takes.completion,
            (
                'eval "$(midrun completion bash)"        in ~/.bashrc',
                'eval "$(midrun completion zsh)"         in ~/.zshrc',
                "midrun completion fish | source         in config.fish",
            ),
        ),
    },
}
"""Every command, in the order in which help lists them."""
