"""The environment that all threads of a schedule share: time, randomness, journal, world."""

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
from tests.support.simulate.journal import SimulatedJournal
from tests.support.simulate.programs import (
    KILLER_PROGRAMS,
    PROGRAM_NAMES,
    RULE_PROGRAMS,
    get_program,
    make_run_started,
)
from tests.support.simulate.scheduler import (
    Condition,
    Process,
    Scheduler,
    Steps,
    make_priority_picker,
    make_random_picker,
)
from tests.support.simulate.setup import (
    THEMES,
    Strategy,
    draw_killer_program,
    draw_rule_program,
    draw_setup,
)
from tests.support.simulate.world import World

START_TIME: Final = Micros(1_800_000_000_000_000)
TICK_MICROS: Final = 1000
TARGET_SEQ_MAX: Final = 34
"""The highest seq at which a control or fault is placed."""

ENTRY_TYPE_BY_NAME: Final = {kind.__name__: kind for kind in ENTRY_TYPES}

TARGET_ENTRIES: Final[tuple[type[Entry], ...]] = (
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
"""Controls and faults are placed right after these entries; twice, where most races are."""


StatePredicate = Callable[[State], bool]


def _has_open_asks(state: State) -> bool:
    return bool(state.open_asks)


def _is_at_rest(state: State) -> bool:
    return state.phase in {Phase.PAUSED, Phase.FAILED}


def _has_tool_in_flight(state: State) -> bool:
    return any(state.calls[n - 1].call_kind != "model" for n in state.in_flight)


PRECONDITIONS: Final[Mapping[str, StatePredicate]] = {
    **dict.fromkeys(("pause_now", "redirect_now", "halt"), _has_tool_in_flight),
    **dict.fromkeys(("answer", "approve", "approve_other", "decline"), _has_open_asks),
    **dict.fromkeys(("answer_on_child", "cancel_child"), _has_open_asks),
    **dict.fromkeys(("resume", "resume_with", "resume_caps"), _is_at_rest),
    **dict.fromkeys(
        ("write", "use_tool", "hand_back"), lambda s: bool(s.taken_over_by) and _is_at_rest(s)
    ),
    **dict.fromkeys(("resume_frame", "drop_frame"), lambda s: bool(s.frames)),
    "drop_at_rest": lambda s: bool(s.frames) and s.phase is Phase.WAITING,
    "withdraw": lambda s: bool(s.pending) or s.phase is Phase.PAUSING,
    "force_pause": lambda s: s.phase is Phase.PAUSING,
    "halt_all": lambda s: s.phase is Phase.CANCELLING or _has_tool_in_flight(s),
    "lift": lambda s: s.phase is Phase.HALTED,
    "retry_undo": lambda s: s.phase is Phase.CANCELLED,
    "accept_residue": lambda s: s.phase is Phase.CANCELLED,
    "raise_cap": lambda s: bool(s.pause and s.pause.cap_name),
}
"""The states in which a control is useful."""


class ControlReply(Struct, frozen=True, kw_only=True):
    """The reply to a control, with the phase and seq of the run at that time."""

    control: Control
    verdict: Verdict
    phase: Phase
    seq: Seq  # of the newest entry at the time of the reply
    entry_seq: Seq  # of the entry that records the control; 0 if there is none


class TakenEffect(Struct, frozen=True, kw_only=True):
    """An effect of a call: its attempt, its arguments, and the newest entry at that time."""

    call: CallId
    attempt: int
    seq: Seq
    args: Json


class WorkerDeath(Struct, frozen=True, kw_only=True):
    """A process that was killed by a call, and the newest entry at that time."""

    call: CallId
    seq: Seq


class Environment:
    """The parameters, the journal, the world and the records of one schedule."""

    has_start_gap = False  # whether a process can freeze between the last check and the effect

    def __init__(self, seed: int, strategy: Strategy) -> None:
        self.rng = Random(seed)  # noqa: S311 - repeatable, not secret
        setup = draw_setup(seed, strategy, PROGRAM_NAMES, self.rng)
        setup = draw_killer_program(setup, tuple(KILLER_PROGRAMS))
        self.setup = draw_rule_program(setup, tuple(RULE_PROGRAMS))
        self.program = get_program(self.setup.program, self.rng)
        self.now = START_TIME
        self.journal = SimulatedJournal(RunId("run_1"), self.clock)
        self.world = World(self.setup.undo_failures)
        self.model_failures_left = self.setup.model_failures
        self.agent_failures_left = self.rng.choice((0, 0, 0, 1))
        self.stop_verdicts_left = 1  # of the custom stop condition
        self.replies: list[ControlReply] = []
        self.feed_records: list[Record] = []
        self.taken_effects: list[TakenEffect] = []
        self.worker_kills_left = self.setup.worker_kills
        self.unknown_outcomes_left = self.setup.unknown_outcomes
        self.killed_processes: list[Process] = []  # by a call, and not replaced yet
        self.worker_deaths: list[WorkerDeath] = []
        self.interrupted_activities: set[tuple[str, str]] = set()  # (activity, fault)
        self.is_draining = False
        picker_rng = Random(seed ^ 0x9E3779B9)  # noqa: S311 - as above
        picker = (
            make_priority_picker(picker_rng, self.setup.pct_depth)
            if self.setup.uses_priorities
            else make_random_picker(picker_rng)
        )
        self.scheduler = Scheduler(picker)
        self.network = Process("network", "system")  # has requests that are on their way
        self.journal.create(make_run_started(self.program))

    def clock(self) -> Micros:
        """Return the simulated time."""
        return self.now

    def chance(self, share: float) -> bool:
        """Return True with the probability `share`."""
        return self.rng.random() < share

    def draw_agent_failure(self, share: float) -> bool:
        """Return whether the code of the agent raises now."""
        if not self.agent_failures_left or not self.chance(share):
            return False
        self.agent_failures_left -= 1
        return True

    def make_key(self, call: str) -> str:
        """Return the idempotency key of a call."""
        return make_call_key(self.journal.run, call)  # type: ignore[arg-type]  # ids are text

    def spawn(self, steps: Steps, process: Process) -> None:
        """Add a thread to a process."""
        self.scheduler.spawn(steps, process)

    def wait_for_network(self) -> Steps:
        """Wait for a few steps, as a request or a reply on its way does."""
        for _ in range(self.rng.choice((0, 1, 1, 3))):
            yield None

    def wait_for_moment(self, op: str = "") -> Steps:
        """Wait for the moment of a control or fault, chosen by the strategy.

        A control that is useful only in some states is mostly placed in one of them.
        """
        is_useful = PRECONDITIONS.get(op)
        if is_useful is not None and self.setup.is_targeted and self.chance(0.6):
            yield lambda: is_useful(self.journal.state)
            for _ in range(self.rng.randint(0, 3)):
                yield None
            return
        if not self.setup.is_targeted:
            for _ in range(self.rng.randint(0, 12)):
                yield None
            return
        draw = self.rng.random() if op != "fault" else self.rng.uniform(0.2, 0.8)
        if draw < 0.4:
            yield self.make_seq_condition(self.rng.randint(1, TARGET_SEQ_MAX))
            return
        if draw < 0.6:
            effect_count = self.rng.randint(1, 4)
            yield lambda: len(self.taken_effects) >= effect_count
            return
        theme = THEMES.get(self.setup.theme)
        kind, count = self.rng.choice(TARGET_ENTRIES), self.rng.choice((1, 1, 2, 3))
        if theme is not None and theme.trigger_entries and self.chance(0.7):
            kind, count = ENTRY_TYPE_BY_NAME[self.rng.choice(theme.trigger_entries)], 1
        yield lambda: self.journal.entry_counts[kind] >= count

    def make_seq_condition(self, seq: int) -> Condition:
        """Return the condition that the journal has reached `seq`."""
        return lambda: self.journal.state.seq >= seq

    def make_growth_condition(self, seq: int) -> Condition:
        """Return the condition that the journal has grown past `seq`."""
        return lambda: self.journal.state.seq > seq
