"""What one schedule is made of, drawn from its seed: the same seed is the same schedule."""

from random import Random
from typing import Final, Literal

from msgspec import Struct

Strategy = Literal["random", "pct", "targeted", "targeted+pct", "mixed"]

STRATEGIES: Final[tuple[Strategy, ...]] = ("random", "pct", "targeted", "targeted+pct", "mixed")
STYLES: Final = STRATEGIES[:4]

OPS: Final[tuple[tuple[str, ...], ...]] = (
    ("pause", "resume"),
    ("pause",),
    ("pause_now", "resume_with"),
    ("pause_until",),
    ("pause", "redirect"),
    ("pause", "pause_now", "force_pause"),
    ("pause", "withdraw"),
    ("force_pause",),
    ("resume",),
    ("resume_with",),
    ("redirect",),
    ("redirect",),
    ("redirect_now",),
    ("redirect", "withdraw"),
    ("say",),
    ("say", "say"),
    ("say_now",),
    ("say_now", "drop_frame"),
    ("say_now", "say_now", "drop_frame"),
    ("say", "say_now", "resume_frame"),
    ("say", "resume_frame"),
    ("say_later",),
    ("say_at", "withdraw"),
    ("say_at",),
    ("drop_frame",),
    ("answer",),
    ("answer", "answer"),
    ("approve", "approve"),
    ("approve_other",),
    ("approve_other", "redirect"),
    ("approve", "redirect"),
    ("decline",),
    ("answer_on_child",),
    ("answer_on_child", "answer"),
    ("cancel",),
    ("cancel",),
    ("cancel",),
    ("cancel_all",),
    ("cancel_all",),
    ("cancel", "cancel_all", "retry_undo"),
    ("cancel", "accept_residue"),
    ("cancel_all", "retry_undo"),
    ("raise_cap", "resume"),
    ("halt", "lift"),
    ("halt", "cancel", "lift"),
    ("cancel_all", "halt", "lift"),
    ("halt_agent", "lift"),
    ("halt_all", "halt", "lift"),
    ("lift",),
    ("raise_cap",),
    ("resume_caps",),
    ("take_over", "write", "hand_back"),
    ("take_over", "use_tool", "hand_back"),
    ("take_over", "use_tool", "redirect"),
    ("hand_back",),
)
"""What one person may press, one button after the other."""


class Setup(Struct, frozen=True, kw_only=True):
    """The parameters of one schedule."""

    seed: int
    strategy: Strategy
    style: Strategy
    depth: int  # of a PCT schedule: how often the order of priorities changes, plus one
    program: str
    drivers: int
    crashes: int
    freezes: int
    lapses: int
    jumps: int
    stand_downs: int
    undo_failures: int
    model_failures: int
    lost_replies: float
    batches: float
    snapshots: float
    people: tuple[tuple[str, ...], ...]

    @property
    def targeted(self) -> bool:
        """Controls and faults are placed by what stands in the journal."""
        return self.style in {"targeted", "targeted+pct"}

    @property
    def by_priority(self) -> bool:
        """The scheduler runs whoever has the highest priority."""
        return self.style in {"pct", "targeted+pct"}


def drawn(seed: int, strategy: Strategy, programs: tuple[str, ...], rng: Random) -> Setup:
    """Return the schedule that `seed` means; `rng` goes on being drawn from afterwards."""
    style = rng.choice(STYLES) if strategy == "mixed" else strategy
    few = (0, 0, 0, 1, 1, 2)
    return Setup(
        seed=seed,
        strategy=strategy,
        style=style,
        depth=rng.randint(2, 5),
        program=rng.choice(programs),
        drivers=rng.randint(1, 3),
        crashes=rng.choice(few),
        freezes=rng.choice(few),
        lapses=rng.choice(few),
        jumps=rng.choice((0, 0, 1, 2)),
        stand_downs=rng.choice((0, 0, 0, 1)),
        undo_failures=rng.choice((0, 0, 1, 2, 6)),
        model_failures=rng.choice((0, 0, 0, 1, 2)),
        lost_replies=rng.choice((0.0, 0.3)),
        batches=rng.choice((0.0, 0.5, 1.0)),
        snapshots=rng.choice((0.0, 0.0, 0.1)),
        people=tuple(rng.choice(OPS) for _ in range(rng.randint(1, 4))),
    )
