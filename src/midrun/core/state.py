"""The state of a run: the result of folding its journal.

`State` holds everything that `decide` and the scheduler need to know about a run. `CallState`
is the most important part of it. Only `evolve` makes new states. A stored state
(`codec.snapshot`) is a cache: the journal can rebuild it at any time.

All values are immutable. The parts that grow with the run (calls, asks, messages) are
persistent vectors, shared between consecutive states and never copied. Other parts refer to a
call or an ask by its number, counted from 1, so that item `n` is at index `n - 1`.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final, Literal

from msgspec import field
from msgspec.structs import replace

from midrun.core.entries import CancelRequested, RunFailed, RunStarted
from midrun.core.ids import (
    MICROS_PER_SECOND,
    SEQ_ZERO,
    AskId,
    CallId,
    Epoch,
    FrameId,
    Micros,
    RunId,
    Seq,
    make_child_id,
    parse_ask_number,
    parse_call_number,
)
from midrun.core.stops import CAP_MAX, Meter, Stop
from midrun.core.values import (
    NO_SPEND,
    Approval,
    AskKind,
    CallKind,
    CallPurpose,
    CleanupAction,
    Decision,
    Effect,
    FileRef,
    Json,
    Message,
    PauseReason,
    Phase,
    PlanItem,
    RedirectTiming,
    RequestedCall,
    Residue,
    Role,
    SpeakerSettings,
    Spend,
    Traits,
    Urgency,
    Value,
)
from midrun.core.vector import Vector


class CallStage(StrEnum):
    """The stage of one call, over all its attempts."""

    PROPOSED = "proposed"  # wanted, and not started yet, or to be started again
    ASKING = "asking"  # waits for a person's decision; its code is not running meanwhile
    STARTED = "started"  # in flight
    DONE = "done"
    FAILED = "failed"
    ABORTED = "aborted"  # stopped within its grace; it may have taken effect
    UNKNOWN = "unknown"  # the outcome was lost: the worker died or the call did not respond
    SEALED = "sealed"  # will not be made; the agent is told the reason


OPEN_STAGES: Final = frozenset({CallStage.PROPOSED, CallStage.ASKING, CallStage.STARTED})
"""Stages of a call that has not ended."""

MADE_STAGES: Final = frozenset({CallStage.DONE, CallStage.ABORTED, CallStage.UNKNOWN})
"""Stages of a call that ended and may have had an effect. A failed call counts as without."""


CleanupStage = Literal["", "started", "done", "failed", "unknown", "gave_up"]


class Cleanup(Value, kw_only=True):
    """The progress of the undo, or of the release, of one call."""

    stage: CleanupStage = ""
    attempts: int = 0
    error: str = ""
    retry_at: Micros | None = None
    is_final: bool = False  # its error is final: it may still be running, so it is not retried

    @property
    def is_finished(self) -> bool:
        """Whether the journal has its end: it is done, or was given up."""
        return self.stage in {"done", "gave_up"}


class CallState(Value, kw_only=True):
    """One call of a model, a tool or a child run, over all its attempts.

    Every attempt has the same id and the same idempotency key. Four questions about a call
    look alike and have different answers, hence the flags:

    - Is there still work to do? See `is_open`.
    - May it have changed the world? See `may_have_effect`.
    - Is it safe to make it once more without asking? See `safe_to_repeat`.
    - Does a cancel undo it? `in_undo_set` records whether the outcome was not certain at the
      moment of the cancel; no later outcome changes that. `undo.is_undo_due` has the rule.
    """

    number: int  # counted from 1 within the run
    id: CallId  # in entries and in idempotency keys; made from `number`
    call_kind: CallKind
    step: int
    agent: str = ""  # the agent that made it, if that is not the agent of the run
    use: RequestedCall = RequestedCall(tool="")
    purpose: CallPurpose = "step"
    stage: CallStage = CallStage.PROPOSED
    attempt: int = 0
    started_seq: Seq = SEQ_ZERO  # the entry that started the last attempt
    started_at: Micros = Micros(0)
    seen_seq: Seq = SEQ_ZERO  # the newest entry that the decision to start knew
    closed_seq: Seq = SEQ_ZERO  # the entry that last closed it; the newest is undone first
    # An earlier attempt was aborted or unknown. Stays True, whatever later attempts do, until
    # a result or a check settles the question.
    may_have_happened: bool = False
    in_undo_set: bool = False  # unfinished when the cancel came: undone however it ends
    must_retry: bool = False  # to be made again, under the same key
    requested_by_operator: bool = False  # requested by the person who took over
    steered_by: tuple[str, ...] = ()  # people whose text led to it: four eyes excludes them
    # Workers that died during it since it last made progress or a person resumed the run. The
    # run fails at `WORKER_DEATHS_MAX`: such a call would kill the next worker, too.
    worker_deaths: int = 0
    # Of each attempt at a model call that failed: whether its model would fail again.
    model_failures: tuple[bool, ...] = ()
    check_denials: int = 0  # times that its check reported "not done"
    late_attempt: int = 0  # the attempt whose result came from a worker with an older epoch
    # Its code asked a person: an effect may have happened before that.
    asked_from_inside: bool = False
    # The step continues without it, while a person reviews it; its outcome arrives as a
    # message.
    deferred_review: bool = False
    result: Json = None
    files: tuple[FileRef, ...] = ()  # returned beside the result
    error: str = ""
    retry_at: Micros | None = None
    progress: Json = None
    # Continuation, choice and value of its last answered question; see `evolve.asks`.
    question_answer: Json = None
    stopped_by: str = ""  # "a pause", "a redirect" or "a halt" that stopped its last attempt
    reserved: Spend = NO_SPEND
    # Of a model call of a hosted program: how many messages of the run existed when it was
    # proposed and when it started, and the index of its reply, or of its partial text.
    proposed_message_count: int = 0
    prompt_message_count: int = 0
    reply_index: int = -1
    approval: Approval | None = None
    undo: Cleanup = Cleanup()
    release: Cleanup = Cleanup()

    @property
    def traits(self) -> Traits:
        """The declarations of its tool, as recorded with the call."""
        return self.use.traits

    @property
    def safe_to_repeat(self) -> bool:
        """Whether a second attempt has no effect beyond that of the first.

        A model call has no effect. A child run is found by its id, so a second attempt
        continues the first one.
        """
        return self.call_kind != "tool" or self.traits.effect is not Effect.ONCE

    @property
    def may_have_effect(self) -> bool:
        """Whether the call may have changed the world."""
        return (
            self.may_have_happened
            or self.asked_from_inside
            or self.in_undo_set
            or self.stage in MADE_STAGES
        )

    @property
    def needs_cleanup(self) -> bool:
        """Whether the call may need an undo, a release, or the end of its child run."""
        traits = self.use.traits
        return traits.undo or traits.release or self.call_kind == "child"

    @property
    def is_open(self) -> bool:
        """Whether the call can still change: it is wanted, waits, runs, or needs settling."""
        # An unknown call with an error was settled as "cannot be found out": no more to come.
        if self.must_retry or self.stage in OPEN_STAGES:
            return True
        return self.stage is CallStage.UNKNOWN and self.needs_settling and not self.error

    @property
    def needs_settling(self) -> bool:
        """Whether its outcome is lost and only a check or a person may settle it."""
        return self.stage is CallStage.UNKNOWN and not self.safe_to_repeat

    def get_cleanup(self, action: CleanupAction) -> Cleanup:
        """Return the progress of its undo or release."""
        return self.undo if action == "undo" else self.release


class Ask(Value, kw_only=True):
    """A decision that the run needs from a person."""

    id: AskId
    ask_kind: AskKind
    call: CallId
    opened_seq: Seq
    question: str = ""
    data: Json = None
    blocking: bool = True
    child_ask_kind: AskKind | None = None  # for the ask of a child run: its kind in the child
    audience: str = ""
    four_eyes: bool = False
    excluded: tuple[str, ...] = ()  # people who may not decide it, because of four eyes
    args_hash: str = ""
    expires: Micros | None = None
    continuation: Json = None  # not None: the call is made again with it and the decision
    files: tuple[FileRef, ...] = ()  # shown with the question
    decision: Decision | None = None
    close_reason: str = ""  # "" while open; then answered, superseded, cancelled, expired ...
    closed_seq: Seq = SEQ_ZERO
    decided_by: str = ""
    decider_role: Role = "user"  # of the person who decided
    answer_files: tuple[FileRef, ...] = ()

    @property
    def effective_kind(self) -> AskKind:
        """The kind of the ask; for the ask of a child run, its kind in the child."""
        return self.child_ask_kind or self.ask_kind

    @property
    def can_be_declined(self) -> bool:
        """Whether a person may decline it instead of answering."""
        return self.effective_kind in {"approval", "child"} or self.continuation is not None

    @property
    def takes_files(self) -> bool:
        """Whether its answer may have files: it becomes the result of a call.

        With a continuation, the code that asked gets the answer, which has a form of its own.
        """
        is_result = self.ask_kind == "question" or bool(get_child_ask_id(self))
        return is_result and self.effective_kind == "question" and self.continuation is None


class Frame(Value, kw_only=True):
    """A held topic: work that was left to answer a message, with the place to continue from."""

    id: FrameId
    goal: str
    done_steps: int
    total_steps: int
    next_step: str
    pushed_seq: Seq
    expires: Micros
    parked_calls: tuple[int, ...] = ()  # open calls of the held topic
    plan: tuple[PlanItem, ...] = ()  # the plan of the held topic; a side question has its own
    speaker: SpeakerSettings | None = None  # as in `State`, when the topic was held


class PendingText(Value, kw_only=True):
    """A redirect or a message that waits for the next step boundary."""

    seq: Seq
    kind: Literal["redirect", "message"]
    text: str
    by: str
    timing: RedirectTiming = "next_step"
    urgency: Urgency = "next"
    due_at: Micros | None = None
    files: tuple[FileRef, ...] = ()


class Artifact(Value, kw_only=True):
    """One version of an artifact that a call has shown."""

    call: CallId
    name: str
    version: int
    file: FileRef
    seq: Seq
    at: Micros


class PauseState(Value, kw_only=True):
    """The pause that was requested or is in force."""

    reason: PauseReason = "user"
    now: bool = False  # abort the calls in flight, too
    cap_name: str = ""  # the cap that must be raised before the run may resume
    condition: str = ""  # without `cap_name`: the condition or quota that was reached
    ends_at: Micros | None = None  # the run resumes by itself at this time
    seq: Seq = SEQ_ZERO
    by: str = ""


class RequestOutcome(Value, kw_only=True):
    """The verdict that the first request with some request id received.

    A repeat of the request (a client whose reply was lost) gets the same verdict. `digest`
    identifies the content, so that a different request under the same id is refused.
    """

    seq: Seq
    digest: str
    verdict_name: str = ""
    refused: bool = False
    since_seq: Seq = SEQ_ZERO
    since_by: str = ""


NOT_STARTED: Final = RunStarted(agent="", task="")
"""The place of the first entry in the state of an empty journal, whose `seq` is 0."""


class State(Value, kw_only=True):
    """A run at one position of its journal."""

    run: RunId = RunId("run_unnamed")
    phase: Phase = Phase.QUEUED
    seq: Seq = SEQ_ZERO  # the last entry that is folded in ...
    at: Micros = Micros(0)  # ... and its time; never decreases
    worked_micros: int = 0  # microseconds in which a driver held the run
    phase_since: Seq = SEQ_ZERO  # the entry that led into this phase ...
    phase_by: str = ""  # ... and the person who requested it
    run_started: RunStarted = NOT_STARTED  # the first entry of the run
    agent_fingerprint: str = ""  # fingerprint of the agent that drove the run last

    epoch: Epoch = Epoch(0)
    is_leased: bool = False
    # The entry that took the lease. A call that started before it and has no end is lost:
    # the worker that ran it is gone.
    lease_seq: Seq = SEQ_ZERO
    # The last request of a person; part of `control_rev`.
    last_control_seq: Seq = SEQ_ZERO
    # The last redirect, urgent message or return from a side question. A model call that has
    # not seen it is aborted: its reply would be about an outdated conversation.
    prompt_outdated_seq: Seq = SEQ_ZERO
    requests: dict[str, RequestOutcome] = {}  # noqa: RUF012 - msgspec copies an empty default

    # Numbers of calls. `in_flight` calls are running; `open` calls belong to the current step
    # and have not ended (some of them are in flight).
    calls: Vector[CallState] = field(default_factory=Vector)
    in_flight: tuple[int, ...] = ()
    open_calls: tuple[int, ...] = ()
    # Started, and may need a cleanup. A cancel looks at these only, not at all calls.
    cleanup_calls: Vector[int] = field(default_factory=Vector)
    program_deaths: int = 0  # workers that died while a hosted program ran between its calls
    # The undo or release in flight. There is one at a time: the next effect to undo may be one
    # that this one was built on.
    cleanup_in_flight: tuple[int, CleanupAction] | None = None
    asks: Vector[Ask] = field(default_factory=Vector)
    open_asks: tuple[int, ...] = ()

    stop: Stop | None = None
    meter: Meter = Meter()
    pause: PauseState | None = None
    phase_after_halt: Phase | None = None  # while halted: the phase to return to
    cancel_request: CancelRequested | None = None
    cancel_seq: Seq = SEQ_ZERO  # the entry of the cancel ...
    cancel_requested_at: Micros = Micros(0)  # ... and its time
    has_ended: bool = False  # was completed or cancelled; stays True while an undo is retried
    residue: tuple[Residue, ...] = ()
    residue_accepted: bool = False  # an operator accepted the residue
    undo_retried_seq: Seq = SEQ_ZERO  # the last request to retry failed undos
    error: RunFailed | None = None
    taken_over_by: str = ""  # the person who took over; empty: the agent is in control

    speaker: SpeakerSettings | None = None  # None: the agent of the run speaks
    pending_handoff: CallId = CallId("")  # a handoff that has ended and is not applied yet
    pending_final: CallId = CallId("")  # its result is the answer, once all calls have ended
    pending: tuple[PendingText, ...] = ()
    frames: tuple[Frame, ...] = ()
    frames_pushed: int = 0
    instruction: str = ""  # the last instruction that reached the agent
    goal: str = ""  # the task, or the side question that the agent is answering
    plan: tuple[PlanItem, ...] = ()
    messages: Vector[Message] = field(default_factory=Vector)
    agent_message_count: int = 0  # messages that the agent's model wrote, in full or in part
    steered_by: tuple[str, ...] = ()  # people whose text reached the agent, and its importer
    condensed_count: int = 0  # the oldest messages that `summary` replaces in a prompt
    summary: str = ""
    prompt_tokens: int = 0  # tokens in the last prompt, as counted by the provider
    answer: str | None = None  # the agent's answer to its goal, as long as it is final
    answer_value: Json = None  # the value of the last answer
    main_answer: str | None = None  # the answer to the task, while a later message is answered
    main_value: Json = None  # the value of `main_answer`
    # Tool → the number of steps in a row in which it asked the model to try again, and the
    # last of these steps.
    tool_retries: dict[str, tuple[int, int]] = {}  # noqa: RUF012 - as above
    invalid_outputs: int = 0  # in a row, since the last answer or instruction
    reply_prefix: str = ""  # text before the next reply: "Back to ..."
    reply_prefix_seq: Seq = SEQ_ZERO  # the entry that set it; earlier replies do not get it
    output: str = ""
    value: Json = None
    # The files that the entries of this run name, without those of its history. `file_limits`
    # of the first entry bounds them, and so the length of `artifacts`.
    file_count: int = 0
    file_bytes: int = 0
    has_files: bool = False  # some message may have files, inherited ones included
    artifacts: tuple[Artifact, ...] = ()

    @property
    def speaker_name(self) -> str:
        """The agent that speaks: the agent of the run, or the last one of its handoffs."""
        return self.run_started.agent if self.speaker is None else self.speaker.agent

    @property
    def speaker_settings(self) -> RunStarted | SpeakerSettings:
        """The settings of the agent that speaks."""
        return self.run_started if self.speaker is None else self.speaker

    @property
    def open_and_parked_calls(self) -> tuple[int, ...]:
        """The numbers of the open calls, then of those that belong to held topics."""
        return (*self.open_calls, *(n for frame in self.frames for n in frame.parked_calls))

    @property
    def control_rev(self) -> Seq:
        """The revision for optimistic locking of controls.

        It grows with every request, new ask and phase change, but not with a step. A client
        that decides on a view of the run therefore does not conflict with ordinary progress.
        """
        # A new ask counts: a person who decides must have seen it. An entry of ordinary work
        # does not, or every click on a busy run would come too late.
        last_ask = self.asks[-1].opened_seq if self.asks.size else SEQ_ZERO
        return max(self.last_control_seq, self.phase_since, last_ask)

    def find_call(self, call: str) -> CallState | None:
        """Return the call of that id, if there is one."""
        number = parse_call_number(call)
        return self.calls[number - 1] if 0 < number <= self.calls.size else None

    def find_ask(self, ask: str) -> Ask | None:
        """Return the ask of that id, if there is one."""
        number = parse_ask_number(ask)
        return self.asks[number - 1] if 0 < number <= self.asks.size else None

    def with_call(self, call: CallState) -> "State":
        """Return the state with `call` in place of the call of its number."""
        return replace(self, calls=self.calls.replace(call.number - 1, call))

    def with_ask(self, ask: Ask) -> "State":
        """Return the state with `ask` in place of the ask of its id, or after all others."""
        number = parse_ask_number(ask.id)
        if number > self.asks.size:
            return replace(self, asks=self.asks.append(ask))
        return replace(self, asks=self.asks.replace(number - 1, ask))

    def with_messages(self, *messages: Message) -> "State":
        """Return the state with `messages` at the end of the conversation."""
        grown, spoken, steered_by = self.messages, self.agent_message_count, self.steered_by
        for message in messages:
            grown = grown.append(message)
            spoken += message.role == "assistant" and message.kind not in {"person", "result"}
            # Text of the runtime itself ("Back to ...") steers nothing; all other text does.
            if message.role != "runtime":
                steered_by = add_name(steered_by, message.by)
        return replace(self, messages=grown, agent_message_count=spoken, steered_by=steered_by)

    def with_files(self, files: tuple[FileRef, ...]) -> "State":
        """Return the state with `files` counted."""
        if not files:
            return self
        size = sum(file.size for file in files)
        return replace(
            self,
            file_count=self.file_count + len(files),
            file_bytes=self.file_bytes + size,
            has_files=True,
        )

    @property
    def blocking_asks(self) -> tuple[Ask, ...]:
        """The open asks that block the run."""
        return tuple(a for n in self.open_asks if (a := self.asks[n - 1]).blocking)

    def is_waiting_for_person(self, call: CallState) -> bool:
        """Tell whether `call` cannot continue before a person decides."""
        if call.stage is CallStage.ASKING:
            return True
        # A call with an unknown outcome keeps its stage while its ask is open.
        if call.stage is not CallStage.UNKNOWN or not call.needs_settling:
            return False
        return any(self.asks[n - 1].call == call.id for n in self.open_asks)

    @property
    def meter_with_time(self) -> Meter:
        """The meter with the time at work filled in; stop conditions need both."""
        return replace(self.meter, worked_micros=self.worked_micros)

    @property
    def active_calls(self) -> list[CallState]:
        """The open calls that may proceed: after a takeover, only those of the person."""
        calls: list[CallState] = []
        for number in self.open_calls:
            call = self.calls[number - 1]
            if not self.taken_over_by or call.requested_by_operator:
                calls.append(call)
        return calls

    @property
    def pending_redirects(self) -> tuple[PendingText, ...]:
        """The redirects that wait for the next boundary."""
        if not self.pending:
            return ()
        return tuple(p for p in self.pending if p.kind == "redirect")


def find_speaker(started: RunStarted, agent: str) -> SpeakerSettings | None:
    """Return the settings of an agent of a run; None if it is the agent of the run itself."""
    if agent in {"", started.agent}:
        return None
    known = (each for each in started.handoffs if each.agent == agent)
    return next(known, SpeakerSettings(agent=agent))


def add_name(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Return `names` with `name` at the end, unless it is empty or among them."""
    return names if not name or name in names else (*names, name)


EvolveFunctions = Mapping[type, Callable[..., State]]  # type: ignore[explicit-any]  # see below
"""Type of entry → the function that folds it into a state.

Each function takes the one type that is its key, which a mapping type cannot express; a test
checks that every type has a function.
"""

# Child runs: their ids, and the answers that a parent run passes on to them.


def iter_child_ids(state: State) -> Iterator[RunId]:
    """Yield the ids of the child runs that the run has started, in order.

    A worker may have died between `CallStarted` and the start of the child. Such a child is
    included and may not exist.
    """
    for number in state.cleanup_calls:  # every started call of a child is in there
        call = state.calls[number - 1]
        if call.call_kind == "child":
            yield make_child_id(state.run, call.id)


def get_child_ask_id(ask: Ask) -> str:
    """Return the id of the child's ask that `ask` shows; "" if the child waits without one."""
    return str(ask.data.get("ask", "")) if isinstance(ask.data, dict) else ""


def find_asked_use(ask: Ask, call: CallState) -> RequestedCall:
    """Return the call that `ask` is about: for an ask of a child run, the child's call.

    `call` is the call that the ask belongs to. The parent of a child run does not have the
    child's call; its ask holds the tool, the reason and the title, and as `data` the arguments.
    """
    data = ask.data
    if ask.ask_kind != "child" or not isinstance(data, dict) or not get_child_ask_id(ask):
        return call.use
    is_question = ask.effective_kind == "question"  # then `data` belongs to the question
    return RequestedCall(
        tool=str(data.get("tool", "")),
        args=None if is_question else data.get("data"),
        why=str(data.get("why", "")),
        title=str(data.get("title", "")),
    )


def read_child_caps(ask: Ask, answer: Json) -> dict[str, int]:
    """Return the caps that an answer raises in a child that rests without an ask; {} if none.

    People write dollars and seconds; `Resume` takes millionths of a dollar and microseconds. A
    bound out of range becomes the nearest one in range.
    """
    if ask.ask_kind != "child" or get_child_ask_id(ask) or not isinstance(answer, dict):
        return {}
    return {
        name: round(
            min(max(bound, 0), CAP_MAX) * (MICROS_PER_SECOND if name in {"cost", "time"} else 1)
        )
        for name, bound in answer.items()
        if isinstance(bound, int | float)
    }
