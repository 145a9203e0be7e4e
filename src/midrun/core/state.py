"""The state of a run: what its journal means.

Nothing here is stored as truth; a snapshot of it is a cache. Everything is immutable, and
what grows with the run (calls, messages, asks) is shared between states, never copied.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, Literal

from msgspec import field
from msgspec.structs import replace

from midrun.core.entries import CancelRequested, RunFailed, RunStarted
from midrun.core.ids import (
    START,
    AskId,
    CallId,
    Epoch,
    FrameId,
    Micros,
    RunId,
    Seq,
    ask_number,
    call_id,
    number_of,
)
from midrun.core.stops import Meter, Stop
from midrun.core.values import (
    NOTHING,
    Action,
    Approval,
    AskKind,
    CallKind,
    Decision,
    Effect,
    Item,
    Json,
    Message,
    PauseReason,
    Phase,
    Purpose,
    Residue,
    Role,
    Spend,
    Traits,
    Urgency,
    Use,
    Value,
    When,
)
from midrun.core.vector import Vector


class Stage(StrEnum):
    """Where one call stands."""

    PROPOSED = "proposed"
    ASKING = "asking"  # parked on an ask: not in flight, never entered again
    STARTED = "started"  # in flight
    DONE = "done"
    FAILED = "failed"
    ABORTED = "aborted"  # stopped within its grace; it may have taken effect
    UNKNOWN = "unknown"  # nobody knows
    SEALED = "sealed"  # will not be made


UNCLOSED: Final = frozenset({Stage.PROPOSED, Stage.ASKING, Stage.STARTED})
ENDED: Final = frozenset({Stage.DONE, Stage.ABORTED, Stage.UNKNOWN})


Cleaned = Literal["", "started", "done", "failed", "unknown", "gave_up"]


class Cleanup(Value, kw_only=True):
    """How far the undo, or the release, of one call is."""

    stage: Cleaned = ""
    attempts: int = 0
    error: str = ""
    retry_at: Micros | None = None
    final: bool = False  # the last attempt may still be running: there is no other

    @property
    def over(self) -> bool:
        """Nothing more will be tried."""
        return self.stage in {"done", "gave_up"}


class Call(Value, kw_only=True):
    """One model or tool call, over all its attempts."""

    number: int  # which call of its run it is, from 1
    call_kind: CallKind
    step: int
    use: Use = Use(tool="")
    purpose: Purpose = "step"
    stage: Stage = Stage.PROPOSED
    attempt: int = 0
    started: Seq = START
    started_at: Micros = Micros(0)
    seen: Seq = START
    closed: Seq = START  # its last closing: undo runs in the reverse order of these
    maybe: bool = False  # once unknown, it may have happened until evidence says otherwise
    doomed: bool = False  # in flight when the cancel came: in the undo set however it ends
    again: bool = False  # to be made again, under the same key
    by_hand: bool = False  # wanted by a person at the wheel
    steered_by: tuple[str, ...] = ()  # whose words led to it: excluded by four eyes
    deaths: int = 0  # drivers that ended under it since it got further, or a person came
    denials: int = 0  # how often its check said that it was not done
    late: int = 0  # the attempt whose result a worker of an older epoch has brought
    entered: bool = False  # it asked a person from within: it may have done things before
    shelved: bool = False  # the agent goes on; the outcome will come as a message
    result: Json = None
    error: str = ""
    retry_at: Micros | None = None
    progress: Json = None
    # The continuation of its last question, and what a person decided: see `folds.asks`.
    answered: Json = None
    stopped_by: str = ""  # "a pause", "a halt" …: what its last attempt was stopped by
    reserved: Spend = NOTHING
    approval: Approval | None = None
    undo: Cleanup = Cleanup()
    release: Cleanup = Cleanup()

    @property
    def id(self) -> CallId:
        """What the journal and the outside world call it."""
        return call_id(self.number)

    @property
    def traits(self) -> Traits:
        """What its tool declared."""
        return self.use.traits

    @property
    def harmless(self) -> bool:
        """Making it again changes nothing that the first time did not."""
        return self.call_kind != "tool" or self.traits.effect is not Effect.ONCE

    @property
    def touched(self) -> bool:
        """It may have changed the world."""
        return self.maybe or self.entered or self.doomed or self.stage in ENDED

    @property
    def lasting(self) -> bool:
        """It may leave something behind that has to be undone, released, or ended."""
        return self.traits.undo or self.traits.release or self.call_kind == "child"

    @property
    def unclosed(self) -> bool:
        """Something is still to come of it."""
        return self.again or self.stage in UNCLOSED or (self.unsure and not self.error)

    @property
    def unsure(self) -> bool:
        """Nobody knows, and making it again is not safe: a check or a person must say."""
        return self.stage is Stage.UNKNOWN and not self.harmless

    def cleanup(self, action: Action) -> Cleanup:
        """Return how far its undo or release is."""
        return self.undo if action == "undo" else self.release


class Ask(Value, kw_only=True):
    """Something a person has to decide."""

    id: AskId
    ask_kind: AskKind
    call: CallId
    opened: Seq
    question: str = ""
    data: Json = None
    blocking: bool = True
    of: AskKind | None = None  # of a child's: what kind of ask it is there
    audience: str = ""
    four_eyes: bool = False
    excluded: tuple[str, ...] = ()  # people who may not decide it, because of four eyes
    args_hash: str = ""
    expires: Micros | None = None
    continuation: Json = None  # not None: the call is made again with it and the decision
    decision: Decision | None = None
    closed: str = ""  # "" while open; then answered, superseded, cancelled, expired ...
    closed_seq: Seq = START
    by: str = ""
    role: Role = "user"  # of whoever decided

    @property
    def kind(self) -> AskKind:
        """What is asked, whoever asks it."""
        return self.of or self.ask_kind

    @property
    def declinable(self) -> bool:
        """Whether a person may say no instead of giving an answer."""
        return self.kind in {"approval", "child"} or self.continuation is not None


class Frame(Value, kw_only=True):
    """One suspended line of thought."""

    id: FrameId
    goal: str
    done: int
    total: int
    next: str
    pushed: Seq
    expires: Micros
    parked: tuple[int, ...] = ()  # calls of the suspended chain that wait with it
    plan: tuple[Item, ...] = ()  # its plan: a side question may have one of its own


class Pending(Value, kw_only=True):
    """A redirect or a message that waits for its boundary."""

    seq: Seq
    kind: Literal["redirect", "message"]
    text: str
    by: str
    when: When = "next_step"
    urgency: Urgency = "next"
    due: Micros | None = None


class Hold(Value, kw_only=True):
    """The pause that is asked for, or in force."""

    why: PauseReason = "user"
    now: bool = False
    cap: str = ""  # the bound that must be raised before the run may go on
    until: Micros | None = None
    seq: Seq = START
    by: str = ""


class Heard(Value, kw_only=True):
    """What a request id was told the first time."""

    seq: Seq
    digest: str
    verdict: str = ""
    refused: bool = False
    since: Seq = START
    since_by: str = ""


class State(Value, kw_only=True):
    """A run at one position of its journal."""

    run: RunId = RunId("run_unnamed")
    phase: Phase = Phase.QUEUED
    seq: Seq = START
    at: Micros = Micros(0)
    worked: int = 0  # microseconds in which a driver held the run
    since: Seq = START  # the entry that led into this phase ...
    since_by: str = ""  # ... and who asked for it
    spec: RunStarted | None = None
    agent_print: str = ""  # of the agent that drove it last

    epoch: Epoch = Epoch(0)
    leased: bool = False
    taken: Seq = START  # where the lease was: what was begun before is an orphan
    controls: Seq = START  # the last thing anyone asked for: a start must have seen it
    cut: Seq = START  # model calls that have not seen this entry are closed
    heard: dict[str, Heard] = {}  # noqa: RUF012 - msgspec copies an empty default

    calls: Vector[Call] = field(default_factory=Vector)
    in_flight: tuple[int, ...] = ()
    open: tuple[int, ...] = ()  # calls of the step, and approved ones, that are not closed
    effects: Vector[int] = field(default_factory=Vector)  # calls made that may need a cleanup
    cleaning: tuple[int, Action] | None = None  # the undo or release in flight
    asks: Vector[Ask] = field(default_factory=Vector)
    open_asks: tuple[int, ...] = ()

    stop: Stop | None = None
    meter: Meter = Meter()
    hold: Hold | None = None
    then: Phase | None = None
    cancel: CancelRequested | None = None
    cancelled_at: Seq = START  # where the cancel stands in the journal ...
    cancelled_on: Micros = Micros(0)  # ... and when it was asked for
    ended: bool = False  # completed or cancelled, once; an undo may still be tried again
    residue: tuple[Residue, ...] = ()
    residue_accepted: bool = False  # somebody has seen it and takes it as it is
    retried: Seq = START  # where somebody last wanted what was given up tried again
    error: RunFailed | None = None
    wheel: str = ""  # the person at the wheel, if anyone

    pending: tuple[Pending, ...] = ()
    frames: tuple[Frame, ...] = ()
    frames_pushed: int = 0
    course: str = ""  # the last instruction that reached the agent
    goal: str = ""  # of the chain of thought the run is at: its task, or a side question
    plan: tuple[Item, ...] = ()
    messages: Vector[Message] = field(default_factory=Vector)
    spoken: int = 0  # how many of them the agent's model said, whole or in part
    steered_by: tuple[str, ...] = ()  # whose words the agent was given, and who imported it
    condensed: int = 0
    summary: str = ""
    window: int = 0
    answer: str | None = None  # what the agent would end with, or answers a message with
    main: str | None = None  # the answer to the task, while a last question is answered
    prefix: str = ""  # what the next reply begins with: "Back to ..."
    prefixed: Seq = START  # since when: a reply that was begun before does not say it
    output: str = ""

    @property
    def started(self) -> RunStarted:
        """The run's first entry."""
        assert self.spec is not None, "a journal begins with RunStarted"
        return self.spec

    @property
    def control_rev(self) -> Seq:
        """What grows when somebody asked something, or the phase changed; not with a step."""
        asked = self.asks[-1].opened if len(self.asks) else START
        return max(self.controls, self.since, asked)

    def call(self, call: str) -> Call | None:
        """Return the call of that id, if there is one."""
        number = number_of(call)
        try:
            return self.calls[number - 1] if number else None
        except IndexError:
            return None

    def ask(self, ask: str) -> Ask | None:
        """Return the ask of that id, if there is one."""
        number = ask_number(ask)
        return self.asks[number - 1] if 0 < number <= len(self.asks) else None

    def with_call(self, call: Call) -> "State":
        """Return the state with `call` in place of the call of its number."""
        return replace(self, calls=self.calls.replace(call.number - 1, call))

    def with_ask(self, ask: Ask) -> "State":
        """Return the state with `ask` in place of the ask of its id, or after all others."""
        number = ask_number(ask.id)
        if number > len(self.asks):
            return replace(self, asks=self.asks.append(ask))
        return replace(self, asks=self.asks.replace(number - 1, ask))

    def saying(self, *messages: Message) -> "State":
        """Return the state with `messages` at the end of the conversation."""
        grown, spoken, steered_by = self.messages, self.spoken, self.steered_by
        for message in messages:
            grown = grown.append(message)
            spoken += message.role == "assistant" and message.kind != "person"
            if message.role != "runtime":
                steered_by = with_name(steered_by, message.by)
        return replace(self, messages=grown, spoken=spoken, steered_by=steered_by)

    @property
    def waited_for(self) -> tuple[Ask, ...]:
        """The asks that keep the run from going on."""
        return tuple(a for n in self.open_asks if (a := self.asks[n - 1]).blocking)

    def waits(self, call: Call) -> bool:
        """Tell whether only a person can say how `call` goes on."""
        if call.stage is Stage.ASKING:
            return True
        return call.unsure and any(self.asks[n - 1].call == call.id for n in self.open_asks)

    @property
    def metered(self) -> Meter:
        """What the run has used, its time at work included."""
        return replace(self.meter, worked=self.worked)

    @property
    def at_hand(self) -> tuple[int, ...]:
        """The unclosed calls whose turn it is: with a person at the wheel, only theirs."""
        if not self.wheel:
            return self.open
        return tuple(n for n in self.open if self.calls[n - 1].by_hand)

    @property
    def redirects(self) -> tuple[Pending, ...]:
        """Instructions that wait for their boundary."""
        if not self.pending:
            return ()
        return tuple(p for p in self.pending if p.kind == "redirect")


def with_name(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Return `names` with `name` at the end, unless it is empty or among them."""
    return names if not name or name in names else (*names, name)


Arms = Mapping[type, Callable[..., State]]  # type: ignore[explicit-any]  # see below
"""Kind of entry → what it means. Each arm takes the one kind that it is filed under, which a
mapping type cannot say; a test checks that every kind has its arm."""
