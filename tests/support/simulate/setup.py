"""The parameters of a schedule, drawn from its seed."""

from random import Random
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

Strategy = Literal["random", "pct", "targeted", "targeted+pct", "mixed"]

STRATEGIES: Final[tuple[Strategy, ...]] = ("random", "pct", "targeted", "targeted+pct", "mixed")
SINGLE_STRATEGIES: Final = STRATEGIES[:4]
MIXED_STRATEGIES: Final[tuple[Strategy, ...]] = (*SINGLE_STRATEGIES, "targeted", "targeted+pct")
"""The targeted strategies are drawn twice as often, because they find most faults."""

CONTROL_SEQUENCES: Final[tuple[tuple[str, ...], ...]] = (
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
    ("cancel_child",),
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
    ("halt_label", "lift"),
    ("pause_until", "pause", "resume"),
    ("halt_all", "halt", "lift"),
    ("lift",),
    ("raise_cap",),
    ("resume_caps",),
    ("take_over", "write", "hand_back"),
    ("take_over", "use_tool", "hand_back"),
    ("take_over", "use_tool", "redirect"),
    ("hand_back",),
)
"""The controls of one client, in order."""


FAULT_COUNTS: Final = (0, 0, 0, 1, 1, 2)


class Theme(Struct, frozen=True, kw_only=True):
    """Programs and controls that are combined to test one feature more often."""

    programs: tuple[str, ...]
    control_sequences: tuple[tuple[str, ...], ...]
    crashes: tuple[int, ...] = (0, 0, 1)
    freezes: tuple[int, ...] = (0, 0, 1)
    undo_failures: tuple[int, ...] = (0, 0, 2)
    trigger_entries: tuple[str, ...] = ()  # controls and faults are placed right after these


THEMES: Final[dict[str, Theme]] = {
    "frames": Theme(
        programs=("clerk", "asker", "planner", "crawler"),
        control_sequences=(
            ("say", "say_now"),
            ("say_now", "say_now", "drop_frame"),
            ("say", "resume_frame", "drop_frame"),
            ("say_later", "say"),
            ("say_at",),
            ("cancel",),
            ("halt", "cancel", "lift"),
            ("pause", "resume_frame"),
            ("answer",),
            ("redirect",),
            ("pause", "say", "resume"),
            ("take_over", "say", "hand_back"),
        ),
        trigger_entries=(
            "AskOpened",
            "RunWaiting",
            "PauseRequested",
            "RunPaused",
            "CallDone",
            "FramePushed",
            "MessageReceived",
            "RunHalted",
            "CancelRequested",
        ),
    ),
    "approvals": Theme(
        programs=("buyer", "mailer", "notary", "visitor", "reviewed", "reviewed"),
        control_sequences=(
            ("approve", "redirect"),
            ("approve_other",),
            ("approve_other", "pause", "resume"),
            ("approve", "approve"),
            ("approve", "decline"),
            ("decline",),
            ("redirect",),
            ("pause", "approve", "resume"),
            ("cancel_all",),
            ("take_over", "use_tool", "approve", "hand_back"),
            ("say_now", "approve"),
        ),
        freezes=(0, 1),
        trigger_entries=("AskOpened", "AskAnswered", "CallDone", "AskClosed"),
    ),
    "four_eyes": Theme(
        programs=("registry",),
        control_sequences=(
            ("approve", "approve"),
            ("redirect", "approve", "approve"),
            ("say", "approve", "approve"),
            ("approve_other", "approve"),
            ("take_over", "use_tool", "approve", "hand_back"),
        ),
        trigger_entries=("AskOpened", "RedirectApplied", "MessageTaken", "RunPaused"),
    ),
    "condensing": Theme(
        programs=("digest", "digest", "condensed"),
        control_sequences=(
            ("pause_now", "resume"),
            ("pause", "resume_with"),
            ("redirect_now",),
            ("redirect",),
            ("say_now", "say"),
            ("say_now", "drop_frame"),
            ("cancel",),
            ("halt", "lift"),
            ("take_over", "write", "hand_back"),
        ),
        crashes=(0, 1, 2),
        freezes=(0, 0, 1, 2),
        trigger_entries=(
            "HistoryCondensed",
            "CallStarted",
            "CallDone",
            "CallUnknown",
            "FramePushed",
        ),
    ),
    "expiring_approvals": Theme(
        programs=("grantor",),
        control_sequences=(
            ("approve", "pause_now", "resume", "cancel"),
            ("approve", "pause_now", "resume"),
            ("approve", "halt", "lift"),
            ("approve", "approve"),
            ("redirect_now",),
        ),
        trigger_entries=("AskOpened", "AskAnswered", "CallStarted", "CallAborted"),
    ),
    "zombies": Theme(
        programs=("writer", "clerk", "locker", "mailer", "unlucky"),
        control_sequences=(
            ("cancel",),
            ("cancel_all",),
            ("answer",),
            ("answer", "cancel"),
            ("halt_all", "lift"),
        ),
        crashes=(0, 0, 1),
        freezes=(1, 2),
        trigger_entries=("CallUnknown", "CallUnknown", "AskOpened", "RunWaiting"),
    ),
    "undo": Theme(
        programs=("writer", "locker", "unlucky", "crawler", "stubborn"),
        control_sequences=(
            ("cancel_all",),
            ("cancel_all", "halt_all", "lift"),
            ("halt_all", "lift"),
            ("halt", "lift"),
            ("cancel", "retry_undo"),
            ("pause", "force_pause"),
        ),
        undo_failures=(0, 1, 2, 6),
        trigger_entries=("UndoStarted", "UndoFailed", "CancelRequested", "CallStarted"),
    ),
    "children": Theme(
        programs=("family", "clan"),
        control_sequences=(
            ("cancel_all",),
            ("cancel_all", "retry_undo"),
            ("redirect", "cancel_all"),
            ("cancel_child", "cancel_all"),
            ("take_over", "use_tool", "hand_back"),
            ("halt_all", "answer_on_child", "lift"),
            ("answer_on_child",),
            ("pause", "answer_on_child", "resume"),
            ("answer", "answer_on_child"),
            ("say", "answer_on_child"),
            ("say_now", "drop_frame"),
            ("redirect_now",),
            ("redirect",),
            ("cancel",),
        ),
        freezes=(0, 0, 1),
        undo_failures=(0, 0, 0, 2),
        trigger_entries=("AskOpened", "AskOpened", "RunWaiting", "CallStarted", "CallUnknown"),
    ),
    "children_and_frames": Theme(
        programs=("guild", "guild", "clan"),
        control_sequences=(
            ("say_now", "drop_at_rest"),
            ("say_now", "drop_at_rest"),
            ("say_now", "say_now", "drop_frame"),
            ("drop_at_rest",),
            ("pause_now", "drop_frame", "resume"),
            ("halt", "lift", "drop_frame"),
            ("say_now", "take_over", "use_tool", "hand_back"),
            ("say_now", "redirect_now"),
            ("say", "resume_frame"),
            ("approve", "redirect"),
            ("answer_on_child",),
            ("cancel_child", "say_now"),
            ("answer",),
            ("cancel_all",),
        ),
        crashes=(0, 1, 2),
        undo_failures=(0, 0, 2, 6),
        trigger_entries=(
            "AskOpened",
            "FramePushed",
            "RunWaiting",
            "CallStarted",
            "HistoryCondensed",
        ),
    ),
    "take_over": Theme(
        programs=("clerk", "buyer", "counted", "family"),
        control_sequences=(
            ("take_over", "use_tool", "hand_back"),
            ("take_over", "use_tool", "use_tool", "write"),
            ("take_over", "write", "hand_back"),
            ("pause_now", "take_over", "use_tool"),
            ("redirect",),
            ("resume",),
            ("raise_cap",),
            ("say", "take_over", "write", "hand_back"),
        ),
        trigger_entries=(
            "TakenOver",
            "ToolUseRequested",
            "RunWoken",
            "CallStarted",
            "RunPaused",
        ),
    ),
}
"""Themes by name; half of all schedules have none."""


class Setup(Struct, frozen=True, kw_only=True):
    """The parameters of one schedule."""

    seed: int
    strategy: Strategy
    single_strategy: Strategy
    pct_depth: int  # priorities of a PCT schedule change one time less
    theme: str
    program: str
    drivers: int
    crashes: int
    freezes: int
    lease_lapses: int
    clock_jumps: int
    shutdowns: int
    lease_grabs: int
    store_failure_share: float  # of the operations of a worker's loop
    undo_failures: int
    model_failures: int
    lost_reply_share: float
    snapshot_share: float
    client_sequences: tuple[tuple[str, ...], ...]
    worker_kills: int = 0  # of the program's killer tool
    unknown_outcomes: int = 0  # of the program's unsure tool

    @property
    def is_targeted(self) -> bool:
        """Whether controls and faults are placed by the entries of the journal."""
        return self.single_strategy in {"targeted", "targeted+pct"}

    @property
    def uses_priorities(self) -> bool:
        """Whether the scheduler runs the thread with the highest priority."""
        return self.single_strategy in {"pct", "targeted+pct"}


KILLER_SHARE: Final = 0.05
"""The share of schedules with a call that kills its process or ends as unknown."""


def draw_killer_program(setup: Setup, killer_programs: tuple[str, ...]) -> Setup:
    """Return the setup, in some schedules with a killer program.

    It has its own random numbers, so the schedules of all other seeds do not depend on it.
    """
    own = Random(setup.seed ^ 0x5F3759DF)  # noqa: S311 - repeatable, not secret
    if own.random() >= KILLER_SHARE:
        return setup
    poison, doubts = own.randint(0, 8), own.randint(0, 16)
    return replace(
        setup, program=own.choice(killer_programs), worker_kills=poison, unknown_outcomes=doubts
    )


RULE_SHARE: Final = 0.05
"""The share of schedules with an agent that has rules of its own."""


def draw_rule_program(setup: Setup, rule_programs: tuple[str, ...]) -> Setup:
    """Return the setup, in some schedules with a rule program; as `draw_killer_program`."""
    own = Random(setup.seed ^ 0x2545F491)  # noqa: S311 - repeatable, not secret
    if setup.worker_kills or setup.unknown_outcomes or own.random() >= RULE_SHARE:
        return setup
    return replace(setup, program=own.choice(rule_programs))


def draw_setup(seed: int, strategy: Strategy, programs: tuple[str, ...], rng: Random) -> Setup:
    """Draw the parameters from `rng`, which has `seed`; callers continue to draw from it."""
    style = rng.choice(MIXED_STRATEGIES) if strategy == "mixed" else strategy
    name = rng.choice(tuple(THEMES)) if rng.random() < 0.5 else ""
    theme = THEMES.get(name) or Theme(
        programs=programs,
        control_sequences=CONTROL_SEQUENCES,
        crashes=FAULT_COUNTS,
        freezes=FAULT_COUNTS,
        undo_failures=(0, 0, 1, 2, 6),
    )
    return Setup(
        seed=seed,
        strategy=strategy,
        single_strategy=style,
        pct_depth=rng.randint(2, 5),
        theme=name,
        program=rng.choice(theme.programs),
        drivers=rng.randint(1, 3),
        crashes=rng.choice(theme.crashes),
        freezes=rng.choice(theme.freezes),
        lease_lapses=rng.choice(FAULT_COUNTS),
        clock_jumps=rng.choice((0, 0, 1, 2)),
        shutdowns=rng.choice((0, 0, 1)),
        lease_grabs=rng.choice((0, 0, 1)),
        store_failure_share=rng.choice((0.0, 0.0, 0.05, 0.2)),
        undo_failures=rng.choice(theme.undo_failures),
        model_failures=rng.choice((0, 0, 0, 1, 2)),
        lost_reply_share=rng.choice((0.0, 0.3)),
        snapshot_share=rng.choice((0.0, 0.0, 0.1)),
        client_sequences=tuple(
            rng.choice(theme.control_sequences) for _ in range(rng.randint(1, 4))
        ),
    )
