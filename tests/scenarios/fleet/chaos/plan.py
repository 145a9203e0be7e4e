"""The plan of one chaos run: everything that its seed decides in advance.

A seed repeats the plan: the store, the faults, the tasks of the runs, and the order in which
each disturber chooses. It does not repeat the schedule of the processes. A failure that needs a
rare schedule may need several attempts with its seed.
"""

import json
from random import Random
from typing import Final, Literal

import msgspec
from msgspec import Struct

SINGLE_STEPS: Final = (
    "look",
    "pay",
    "order",
    "draft",
    "press",
    "lock",
    "publish",
    "attach",
    "crawl",
    "stumble",
    "spend",
    "ask_human",
    "helper",
)
"""The tools of the agent `clerk`; `helper` is a child run."""

PROGRAM_STEPS: Final = ("pay", "draft", "press", "ask")
"""The steps of the hosted function `biller`."""

HELPER_STEPS: Final = ("pay", "draft", "order", "publish")
GUEST_STEPS: Final = ("pay", "draft")
AGENTS: Final = ("clerk", "clerk", "clerk", "biller", "guest")
LABELS: Final = ("brief", "hold")
"""`brief`: the retention deletes the run soon. `hold`: it never does."""


class Task(Struct, frozen=True, kw_only=True):
    """A run that the test starts: its agent and the steps that the agent makes."""

    number: int
    agent: str
    steps: tuple[str, ...]  # the tools of one reply are joined by `+`
    thread: str = ""
    labels: tuple[str, ...] = ()
    has_file: bool = False

    @property
    def text(self) -> str:
        """The task as the agent reads it, with a word that no other run has."""
        return f"{TASK_START}{self.word} {' '.join(self.steps)}"

    @property
    def word(self) -> str:
        """A word of the task by which the search finds the run."""
        return f"word{self.number:05}"


TASK_START: Final = "Do: "


class Plan(Struct, frozen=True, kw_only=True):
    """What happens in one chaos run."""

    seed: int
    seconds: float
    store: Literal["sqlite", "postgres"]
    workers: int
    tasks: tuple[Task, ...]
    is_encrypted: bool = False
    has_full_disk: bool = False
    has_clock_jumps: bool = False
    has_upgrade: bool = False
    has_server_faults: bool = False
    has_guest: bool = False

    def describe(self) -> str:
        """Return the plan as one line of JSON, without the tasks."""
        fields = msgspec.to_builtins(self)
        return json.dumps(fields | {"tasks": len(self.tasks)})


def make_plan(
    seed: int, *, seconds: float, runs: int, store: Literal["sqlite", "postgres"] | None = None
) -> Plan:
    """Return the plan of a seed; without `store`, only odd seeds use SQLite."""
    random = Random(seed)  # noqa: S311 - to repeat it
    has_guest = random.random() < 0.5
    chosen = store or ("sqlite" if seed % 2 else "postgres")
    return Plan(
        seed=seed,
        seconds=seconds,
        store=chosen,
        workers=random.choice([2, 3]),
        has_guest=has_guest,
        tasks=tuple(make_task(random, number, has_guest=has_guest) for number in range(runs)),
        is_encrypted=random.random() < 0.4,
        has_full_disk=chosen == "sqlite" and random.random() < 0.6,
        has_clock_jumps=random.random() < 0.6,
        has_upgrade=random.random() < 0.5,
        has_server_faults=chosen == "postgres" and random.random() < 0.6,
    )


def make_task(random: Random, number: int, *, has_guest: bool) -> Task:
    """Return a random task."""
    agent = random.choice(AGENTS if has_guest else AGENTS[:-1])
    if agent == "clerk":
        groups = [
            random.sample(SINGLE_STEPS, k=random.choice([1, 1, 1, 2, 3]))
            for _ in range(random.randint(1, 6))
        ]
        steps = tuple("+".join(group) for group in groups)
    else:
        kinds = PROGRAM_STEPS if agent == "biller" else GUEST_STEPS
        steps = tuple(random.choices(kinds, k=random.randint(1, 5)))
    return Task(
        number=number,
        agent=agent,
        steps=steps,
        thread=random.choice(["", "", "north", "south"]) if agent == "clerk" else "",
        labels=tuple(label for label in LABELS if random.random() < 0.3),
        has_file=agent == "clerk" and random.random() < 0.3,
    )
