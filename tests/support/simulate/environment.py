"""The scene: what everybody in one schedule shares, time and chance included."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from msgspec import Struct

from midrun.core.controls import Control
from midrun.core.entries import (
    ENTRY_TYPES,
    AskOpened,
    CallAborted,
    CallDone,
    CallStarted,
    CallUnknown,
    CancelRequested,
    CapReached,
    Entry,
    FramePushed,
    LeaseTaken,
    MessageReceived,
    PauseRequested,
    Record,
    RedirectRequested,
    RunCancelled,
    RunFailed,
    RunHalted,
    RunPaused,
    RunResumed,
    RunWaiting,
    TakenOver,
    UndoFailed,
    UndoStarted,
)
from midrun.core.ids import CallId, Micros, RunId, Seq, make_call_key
from midrun.core.state import State
from midrun.core.transitions import Verdict
from midrun.core.values import Json, Phase
from tests.support.simulate.journal import Desk
from tests.support.simulate.programs import NAMES, PILLS, program_of, start_of
from tests.support.simulate.scheduler import (
    Process,
    Ready,
    Scheduler,
    Steps,
    at_random,
    by_priority,
)
from tests.support.simulate.setup import THEMES, Strategy, drawn, poisoned
from tests.support.simulate.world import World

NOON: Final = Micros(1_800_000_000_000_000)
TICK: Final = 1000
REACH: Final = 34
"""The last position of the journal at which something is placed."""

BY_NAME: Final = {kind.__name__: kind for kind in ENTRY_TYPES}

TARGETS: Final[tuple[type[Entry], ...]] = (
    CallStarted,
    CallStarted,
    CallStarted,
    CallDone,
    CallDone,
    LeaseTaken,
    LeaseTaken,
    AskOpened,
    PauseRequested,
    CancelRequested,
    CancelRequested,
    RedirectRequested,
    CallUnknown,
    CallUnknown,
    CallAborted,
    UndoStarted,
    UndoStarted,
    UndoFailed,
    RunPaused,
    RunResumed,
    RunHalted,
    RunWaiting,
    RunCancelled,
    RunFailed,
    CapReached,
    FramePushed,
    MessageReceived,
    TakenOver,
)
"""The entries right after which something is placed; twice, where most races are."""


Sense = Callable[[State], bool]


def _asked(state: State) -> bool:
    return bool(state.open_asks)


def _rests(state: State) -> bool:
    return state.phase in {Phase.PAUSED, Phase.FAILED}


def _acts(state: State) -> bool:
    return any(state.calls[n - 1].call_kind != "model" for n in state.in_flight)


SENSIBLE: Final[Mapping[str, Sense]] = {
    **dict.fromkeys(("pause_now", "redirect_now", "halt"), _acts),
    **dict.fromkeys(("answer", "approve", "approve_other", "decline"), _asked),
    **dict.fromkeys(("answer_on_child", "cancel_child"), _asked),
    **dict.fromkeys(("resume", "resume_with", "resume_caps"), _rests),
    **dict.fromkeys(
        ("write", "use_tool", "hand_back"), lambda s: bool(s.operator_name) and _rests(s)
    ),
    **dict.fromkeys(("resume_frame", "drop_frame"), lambda s: bool(s.frames)),
    "drop_at_rest": lambda s: bool(s.frames) and s.phase is Phase.WAITING,
    "withdraw": lambda s: bool(s.pending) or s.phase is Phase.PAUSING,
    "force_pause": lambda s: s.phase is Phase.PAUSING,
    "halt_all": lambda s: s.phase is Phase.CANCELLING or _acts(s),
    "lift": lambda s: s.phase is Phase.HALTED,
    "retry_undo": lambda s: s.phase is Phase.CANCELLED,
    "accept_residue": lambda s: s.phase is Phase.CANCELLED,
    "raise_cap": lambda s: bool(s.pause and s.pause.cap_name),
}
"""When an op makes sense."""


class Told(Struct, frozen=True, kw_only=True):
    """A reply that somebody got: to which control, what, and where the journal stood then."""

    control: Control
    verdict: Verdict
    phase: Phase
    seq: Seq  # of the newest entry when the reply was given
    first: Seq  # of the first entry that the reply led to, if any


class Acted(Struct, frozen=True, kw_only=True):
    """A call that reached the world: which attempt, after which entry, with what."""

    call: CallId
    attempt: int
    seq: Seq
    args: Json


class Killed(Struct, frozen=True, kw_only=True):
    """A process that a call has ended, and where the journal stood then."""

    call: CallId
    seq: Seq


class Scene:
    """One schedule: its parameters, its journal, its world, its people's memory."""

    gap = False  # whether a process can freeze between the gate and the wire

    def __init__(self, seed: int, strategy: Strategy) -> None:
        self.rng = Random(seed)  # noqa: S311 - repeatable, not secret
        self.setup = poisoned(drawn(seed, strategy, NAMES, self.rng), tuple(PILLS))
        self.program = program_of(self.setup.program, self.rng)
        self.now = NOON
        self.desk = Desk(RunId("run_1"), self.clock)
        self.world = World(self.setup.undo_failures)
        self.model_failures = self.setup.model_failures
        self.agent_failures = self.rng.choice((0, 0, 0, 1))
        self.verdicts_left = 1  # how often the custom condition may say stop
        self.told: list[Told] = []
        self.fed: list[Record] = []
        self.acted: list[Acted] = []
        self.poison, self.doubts = self.setup.poison, self.setup.doubts  # what is left
        self.fallen: list[Process] = []  # ended by a call, and not missed yet
        self.killed: list[Killed] = []
        self.struck: set[tuple[str, str]] = set()  # what was on when which fault came
        self.spins = 0
        self.draining = False
        own = Random(seed ^ 0x9E3779B9)  # noqa: S311 - as above
        picker = (
            by_priority(own, self.setup.depth) if self.setup.by_priority else at_random(own)
        )
        self.scheduler = Scheduler(picker)
        self.desk.create(self.desk.batch(), start_of(self.program))

    def clock(self) -> Micros:
        """Return the store's time."""
        return self.now

    def chance(self, share: float) -> bool:
        """Tell whether something happens that does in this share of all cases."""
        return self.rng.random() < share

    def key(self, call: str) -> str:
        """Return the idempotency key of a call."""
        return make_call_key(self.desk.run, call)  # type: ignore[arg-type]  # ids are text

    def spawn(self, steps: Steps, process: Process) -> None:
        """Add a thread to a process."""
        self.scheduler.spawn(steps, process)

    def placed(self, op: str = "") -> Steps:
        """Wait for the moment at which something is to happen, as the strategy has it.

        What only makes sense at times is most often placed when it does.
        """
        sensible = SENSIBLE.get(op)
        if sensible is not None and self.setup.targeted and self.chance(0.6):
            yield lambda: sensible(self.desk.state)
            for _ in range(self.rng.randint(0, 3)):
                yield None
            return
        if not self.setup.targeted:
            for _ in range(self.rng.randint(0, 12)):
                yield None
            return
        draw = self.rng.random() if op != "fault" else self.rng.uniform(0.2, 0.8)
        if draw < 0.4:
            yield self.from_seq(self.rng.randint(1, REACH))
            return
        if draw < 0.6:
            acts = self.rng.randint(1, 4)
            yield lambda: len(self.acted) >= acts
            return
        theme = THEMES.get(self.setup.theme)
        kind, count = self.rng.choice(TARGETS), self.rng.choice((1, 1, 2, 3))
        if theme is not None and theme.moments and self.chance(0.7):
            kind, count = BY_NAME[self.rng.choice(theme.moments)], 1
        yield lambda: self.desk.tally[kind] >= count

    def from_seq(self, seq: int) -> Ready:
        """Return the condition that the journal is this long."""
        return lambda: self.desk.state.seq >= seq

    def changed(self, seq: int) -> Ready:
        """Return the condition that the journal has grown past `seq`."""
        return lambda: self.desk.state.seq > seq
