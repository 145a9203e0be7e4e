"""The state of a run: the result of folding its journal.

`State` holds everything that `decide` and the scheduler need to know about a run; `Call` is the
most important part of it. Only `evolve` makes new states. A stored state (`codec.snapshot`) is
a cache: the journal can rebuild it at any time.

All values are immutable. The parts that grow with the run (calls, asks, messages) are
persistent vectors, shared between consecutive states and never copied. Other parts refer to a
call or an ask by its number, counted from 1, so that item `n` is at index `n - 1`.
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
    """The stage of one call, over all its attempts."""

    PROPOSED = "proposed"  # wanted, and not started yet, or to be started again
    ASKING = "asking"  # waits for a person's decision; its code is not running meanwhile
    STARTED = "started"  # in flight
    DONE = "done"
    FAILED = "failed"
    ABORTED = "aborted"  # stopped within its grace; it may have taken effect
    UNKNOWN = "unknown"  # the outcome was lost: the worker died or the call did not respond
    SEALED = "sealed"  # will not be made; the agent is told the reason


UNCLOSED: Final = frozenset({Stage.PROPOSED, Stage.ASKING, Stage.STARTED})
"""Stages of a call that has not ended."""

ENDED: Final = frozenset({Stage.DONE, Stage.ABORTED, Stage.UNKNOWN})
"""Stages of a call that ended and may have had an effect. A failed call counts as without."""


Cleaned = Literal["", "started", "done", "failed", "unknown", "gave_up"]


class Cleanup(Value, kw_only=True):
    """The progress of the undo, or of the release, of one call."""

    stage: Cleaned = ""
    attempts: int = 0
    error: str = ""
    retry_at: Micros | None = None
    final: bool = False  # no further attempt: the last one may still be running

    @property
    def over(self) -> bool:
        """Whether no further attempt will be made."""
        return self.stage in {"done", "gave_up"}


class Call(Value, kw_only=True):
    """One call of a model, a tool or a child run, over all its attempts.

    Every attempt has the same id and the same idempotency key. Four questions about a call
    look alike and have different answers, hence the flags:

    - Is there still work to do? See `is_open`.
    - May it have changed the world? See `may_have_effect`.
    - Is it safe to make it once more without asking? See `safe_to_repeat`.
    - Does a cancel undo it? `in_undo_set` records the answer at the moment of the cancel, and
      no later outcome changes it.
    """

    number: int  # counted from 1 within the run
    call_kind: CallKind
    step: int
    use: Use = Use(tool="")
    purpose: Purpose = "step"
    stage: Stage = Stage.PROPOSED
    attempt: int = 0
    started: Seq = START  # the entry that started the last attempt
    started_at: Micros = Micros(0)
    seen: Seq = START  # the newest entry that the decision to start knew
    closed: Seq = START  # the entry that last closed it: undo goes by these, newest first
    # An earlier attempt was aborted or unknown. Stays True, whatever later attempts do, until
    # a result or a check settles the question.
    maybe: bool = False
    doomed: bool = False  # unfinished when the cancel came: undone however it ends
    again: bool = False  # to be made again, under the same key
    by_hand: bool = False  # requested by the person who took over
    steered_by: tuple[str, ...] = ()  # people whose text led to it: four eyes excludes them
    # Workers that died during it since it last made progress or a person resumed the run. The
    # run fails at `WORKER_DEATHS_MAX`: such a call would kill the next worker, too.
    deaths: int = 0
    denials: int = 0  # times that its check reported "not done"
    late: int = 0  # the attempt whose result came from a worker with an older epoch
    entered: bool = False  # its code asked a person: an effect may have happened before that
    shelved: bool = False  # the step goes on without it; its outcome arrives as a message
    result: Json = None
    error: str = ""
    retry_at: Micros | None = None
    progress: Json = None
    # Continuation, choice and value of its last answered question; see `evolve.asks`.
    answered: Json = None
    stopped_by: str = ""  # "a pause", "a redirect" or "a halt" that stopped its last attempt
    reserved: Spend = NOTHING
    approval: Approval | None = None
    undo: Cleanup = Cleanup()
    release: Cleanup = Cleanup()

    @property
    def id(self) -> CallId:
        """The id of the call in entries and in idempotency keys."""
        return call_id(self.number)

    @property
    def traits(self) -> Traits:
        """The declarations of its tool, as recorded with the call."""
        return self.use.traits

    @property
    def harmless(self) -> bool:
        """Whether a second attempt has no effect beyond that of the first.

        A model call has no effect. A child run is found by its id, so a second attempt
        continues the first one.
        """
        return self.call_kind != "tool" or self.traits.effect is not Effect.ONCE

    @property
    def touched(self) -> bool:
        """Whether the call may have changed the world."""
        return self.maybe or self.entered or self.doomed or self.stage in ENDED

    @property
    def lasting(self) -> bool:
        """Whether the call may need an undo, a release, or the end of its child run."""
        return self.traits.undo or self.traits.release or self.call_kind == "child"

    @property
    def unclosed(self) -> bool:
        """Whether the call can still change: it is wanted, waits, runs, or needs settling."""
        # An unknown call with an error was settled as "cannot be found out": no more to come.
        return self.again or self.stage in UNCLOSED or (self.unsure and not self.error)

    @property
    def unsure(self) -> bool:
        """Whether its outcome is lost and only a check or a person may settle it."""
        return self.stage is Stage.UNKNOWN and not self.harmless

    def cleanup(self, action: Action) -> Cleanup:
        """Return the progress of its undo or release."""
        return self.undo if action == "undo" else self.release


class Ask(Value, kw_only=True):
    """A decision that the run needs from a person."""

    id: AskId
    ask_kind: AskKind
    call: CallId
    opened: Seq
    question: str = ""
    data: Json = None
    blocking: bool = True
    of: AskKind | None = None  # for the ask of a child run: its kind in the child
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
    role: Role = "user"  # of the person who decided

    @property
    def kind(self) -> AskKind:
        """The kind of the ask; for the ask of a child run, its kind in the child."""
        return self.of or self.ask_kind

    @property
    def declinable(self) -> bool:
        """Whether a person may decline it instead of answering."""
        return self.kind in {"approval", "child"} or self.continuation is not None


class Frame(Value, kw_only=True):
    """A task that was suspended to answer a message, with the place to continue from."""

    id: FrameId
    goal: str
    done: int
    total: int
    next: str
    pushed: Seq
    expires: Micros
    parked: tuple[int, ...] = ()  # open calls of the suspended task
    plan: tuple[Item, ...] = ()  # the plan of the suspended task; a side question has its own


class Pending(Value, kw_only=True):
    """A redirect or a message that waits for the next step boundary."""

    seq: Seq
    kind: Literal["redirect", "message"]
    text: str
    by: str
    when: When = "next_step"
    urgency: Urgency = "next"
    due: Micros | None = None


class Hold(Value, kw_only=True):
    """The pause that was requested or is in force."""

    why: PauseReason = "user"
    now: bool = False  # abort the calls in flight, too
    cap: str = ""  # the cap that must be raised before the run may resume
    until: Micros | None = None  # the run resumes by itself at this time
    seq: Seq = START
    by: str = ""


class Heard(Value, kw_only=True):
    """The verdict that the first request with some request id received.

    A repeat of the request (a client whose reply was lost) gets the same verdict. `digest`
    identifies the content, so that a different request under the same id is refused.
    """

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
    seq: Seq = START  # the last entry that is folded in ...
    at: Micros = Micros(0)  # ... and its time; never decreases
    worked: int = 0  # microseconds in which a driver held the run
    since: Seq = START  # the entry that led into this phase ...
    since_by: str = ""  # ... and the person who requested it
    spec: RunStarted | None = None
    agent_print: str = ""  # fingerprint of the agent that drove the run last

    epoch: Epoch = Epoch(0)
    leased: bool = False
    # The entry that took the lease. A call that started before it and has no end is an orphan:
    # the worker that ran it is gone.
    taken: Seq = START
    # The last request of a person. A `StartCall` that has not seen it is refused, so that no
    # call leaves after a pause or a cancel that its worker did not know.
    controls: Seq = START
    # The last redirect, urgent message or return from a side question. A model call that has
    # not seen it is aborted: its reply would be about an outdated conversation.
    cut: Seq = START
    heard: dict[str, Heard] = {}  # noqa: RUF012 - msgspec copies an empty default

    # Numbers of calls. `in_flight` calls are running; `open` calls belong to the current step
    # and have not ended (some of them are in flight).
    calls: Vector[Call] = field(default_factory=Vector)
    in_flight: tuple[int, ...] = ()
    open: tuple[int, ...] = ()
    effects: Vector[int] = field(default_factory=Vector)  # started, and may need a cleanup
    cleaning: tuple[int, Action] | None = None  # the undo or release in flight: one at a time
    asks: Vector[Ask] = field(default_factory=Vector)
    open_asks: tuple[int, ...] = ()

    stop: Stop | None = None
    meter: Meter = Meter()
    hold: Hold | None = None
    then: Phase | None = None  # while halted: the phase to return to
    cancel: CancelRequested | None = None
    cancelled_at: Seq = START  # the entry of the cancel ...
    cancelled_on: Micros = Micros(0)  # ... and its time
    ended: bool = False  # was completed or cancelled; stays True while an undo is retried
    residue: tuple[Residue, ...] = ()
    residue_accepted: bool = False  # an operator accepted the residue
    retried: Seq = START  # the last request to retry failed undos
    error: RunFailed | None = None
    wheel: str = ""  # the person who took over; empty: the agent is in control

    pending: tuple[Pending, ...] = ()
    frames: tuple[Frame, ...] = ()
    frames_pushed: int = 0
    course: str = ""  # the last instruction that reached the agent
    goal: str = ""  # the task, or the side question that the agent is answering
    plan: tuple[Item, ...] = ()
    messages: Vector[Message] = field(default_factory=Vector)
    spoken: int = 0  # messages that the agent's model wrote, in full or in part
    steered_by: tuple[str, ...] = ()  # people whose text reached the agent, and its importer
    condensed: int = 0  # the oldest messages that `summary` replaces in a prompt
    summary: str = ""
    window: int = 0  # tokens in the last prompt, as counted by the provider
    answer: str | None = None  # the agent's answer to its goal, as long as it is final
    main: str | None = None  # the answer to the task, while a later message is answered
    prefix: str = ""  # text before the next reply: "Back to ..."
    prefixed: Seq = START  # the entry that set it: a reply begun before does not get it
    output: str = ""

    @property
    def started(self) -> RunStarted:
        """The first entry of the run."""
        assert self.spec is not None, "a journal begins with RunStarted"
        return self.spec

    @property
    def control_rev(self) -> Seq:
        """The revision for optimistic locking of controls.

        It grows with every request, new ask and phase change, but not with a step. A client
        that decides on a view of the run therefore does not conflict with ordinary progress.
        """
        last_ask = self.asks[-1].opened if len(self.asks) else START
        return max(self.controls, self.since, last_ask)

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
            # Text of the runtime itself ("Back to ...") steers nothing; all other text does.
            if message.role != "runtime":
                steered_by = with_name(steered_by, message.by)
        return replace(self, messages=grown, spoken=spoken, steered_by=steered_by)

    @property
    def waited_for(self) -> tuple[Ask, ...]:
        """The open asks that block the run."""
        return tuple(a for n in self.open_asks if (a := self.asks[n - 1]).blocking)

    def waits(self, call: Call) -> bool:
        """Tell whether `call` cannot continue before a person decides."""
        if call.stage is Stage.ASKING:
            return True
        # A call with an unknown outcome keeps its stage while its ask is open.
        return call.unsure and any(self.asks[n - 1].call == call.id for n in self.open_asks)

    @property
    def metered(self) -> Meter:
        """The meter with the time at work filled in; stop conditions need both."""
        return replace(self.meter, worked=self.worked)

    @property
    def at_hand(self) -> tuple[int, ...]:
        """The open calls that may proceed: after a takeover, only those of the person."""
        if not self.wheel:
            return self.open
        return tuple(n for n in self.open if self.calls[n - 1].by_hand)

    @property
    def redirects(self) -> tuple[Pending, ...]:
        """The redirects that wait for the next boundary."""
        if not self.pending:
            return ()
        return tuple(p for p in self.pending if p.kind == "redirect")


def with_name(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Return `names` with `name` at the end, unless it is empty or among them."""
    return names if not name or name in names else (*names, name)


Arms = Mapping[type, Callable[..., State]]  # type: ignore[explicit-any]  # see below
"""Type of entry → the function that folds it into a state.

Each function takes the one type that is its key, which a mapping type cannot express; a test
checks that every type has a function.
"""
