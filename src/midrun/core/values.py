"""Values that entries, controls, effects and the state are made of.

Most of these are stored inside entries: names of fields and of choices are part of the journal
format and cannot change without an upcast (see `codec.journal`).
"""

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, dataclass_transform

from msgspec import Struct, field
from msgspec.structs import replace

from midrun.core.ids import AskId, CallId, RunId, Seq

if TYPE_CHECKING:
    Json = object
else:
    Json = Any  # msgspec takes `object` for a custom type that needs a hook
"""Plain JSON data. `codec.strict_json` has checked it before it reaches the core."""


class Phase(StrEnum):
    """The phase of a run."""

    QUEUED = "queued"  # waits for a worker to take its lease
    RUNNING = "running"  # a worker drives it
    PAUSING = "pausing"  # a pause was requested; calls are still in flight
    PAUSED = "paused"  # nothing is in flight; it continues when it is resumed
    WAITING = "waiting"  # it cannot continue before a person decides an ask
    CANCELLING = "cancelling"  # calls are stopped and undone
    CANCELLED = "cancelled"
    COMPLETED = "completed"
    FAILED = "failed"  # an error stopped it at a step boundary; it can be resumed
    HALTED = "halted"  # an operator's halt stopped it; it continues when the halt is lifted


DRIVABLE_PHASES = frozenset({Phase.QUEUED, Phase.RUNNING, Phase.PAUSING, Phase.CANCELLING})
"""A run in one of these phases needs a driver. In any other it is only in the store, except a
halted run until its worker has stopped the calls in flight."""

RESTING_PHASES = frozenset(Phase) - DRIVABLE_PHASES
"""Phases that a run leaves only by a control, a timer, or news of one of its calls."""

TERMINAL_PHASES = frozenset({Phase.CANCELLED, Phase.COMPLETED})
"""A failed run is not among them: it can be resumed."""

DELETABLE_PHASES = TERMINAL_PHASES | {Phase.FAILED}
"""Phases in which a run may be deleted: nothing of it runs, is held, or waits for a person."""


class Effect(StrEnum):
    """The effect of a call on the world, as declared by its tool."""

    READ = "read"  # none
    IDEMPOTENT = "idempotent"  # a second call changes nothing more
    ONCE = "once"  # a second call has a second effect: never repeat it without a check


Urgency = Literal["now", "next", "later"]
"""When the agent takes up a message: at once, after the current step, after its task."""

RedirectTiming = Literal["next_step", "now"]
UndoSet = Literal["in_flight", "all"]
"""The calls that a cancel undoes: those whose outcome was not certain, or all."""
CleanupAction = Literal["undo", "release"]
WorkKind = Literal["call", "undo", "release", "check"]
"""The work that a worker does for a call: the call itself, or one of its tool's hooks."""
CallKind = Literal["model", "tool", "child"]
CallPurpose = Literal["step", "condense"]
AskKind = Literal["question", "approval", "unsure", "child"]
ApprovalMode = Literal["", "block", "queue"]
"""No approval; the agent waits for it; or the agent continues and the call is made later."""

Role = Literal["viewer", "user", "operator", "system"]
PauseReason = Literal["user", "cap", "taken_over"]
PlanItemState = Literal["queued", "running", "done", "failed", "dropped"]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Value(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,  # frozen, and built after its parts: cannot be part of a reference cycle
):
    """Base of every value: immutable, built by keyword, stored without default fields."""


class Actor(Value, kw_only=True):
    """The sender of a control. The role comes from the credential, never from the request.

    An actor with a `tenant` sees and controls only the runs of that tenant. Without one, an
    operator or a viewer acts for all tenants, and a user for the default tenant, "". A user
    also sees the runs that are shared with one of the `teams`.
    """

    name: str = "user"
    role: Role = "user"
    tenant: str = ""
    teams: tuple[str, ...] = ()


class Spend(Value, kw_only=True):
    """Tokens, and cost in millionths of a dollar. Integers: sums of floats drift."""

    tokens: int = 0
    cost: int = 0
    # Parts of `tokens`, as far as the provider reports them.
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # of the input: read from the provider's cache
    thinking_tokens: int = 0  # of the output
    unpriced_tokens: int = 0  # no price is known for these: `cost` does not include them

    def plus(self, other: "Spend") -> "Spend":
        """Return the sum."""
        return Spend(
            tokens=self.tokens + other.tokens,
            cost=self.cost + other.cost,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            thinking_tokens=self.thinking_tokens + other.thinking_tokens,
            unpriced_tokens=self.unpriced_tokens + other.unpriced_tokens,
        )

    def minus(self, other: "Spend") -> "Spend":
        """Return the difference of two estimates, which have tokens and cost only."""
        return Spend(tokens=self.tokens - other.tokens, cost=self.cost - other.cost)


NO_SPEND: Final = Spend()
"""The empty spend. Use this object: msgspec compares defaults by identity, and an equal but
different object would be written into the line."""


ThinkingLevel = Literal["minimal", "low", "medium", "high", "xhigh", "max"]


class ModelSettings(Value, kw_only=True):
    """Settings of a model. None leaves the choice to the agent, or to the provider.

    A model that does not know a setting ignores it.

    Attributes:
        temperature: The randomness of the replies.
        top_p: The share of the most probable tokens to choose from.
        max_tokens: The most tokens that one reply may have, thinking included.
        thinking: True or False turns thinking on or off. A level is the effort of reasoning;
            a provider without that level uses the nearest one.
        cache: False turns the caching of prompts off. By default, the tools, the instructions
            and the conversation are cached at the provider, which makes a run of several steps
            cheaper.
        extra: Further settings of pydantic-ai by name, as {"openai_service_tier": "flex"}.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    thinking: bool | ThinkingLevel | None = None
    cache: bool | None = None
    extra: dict[str, Json] = {}

    def merge(self, over: "ModelSettings | None") -> "ModelSettings":
        """Return these settings with those that `over` sets."""
        if over is None:
            return self
        chosen = {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(over, name)) is not None
        }
        return replace(self, **{**chosen, "extra": {**self.extra, **over.extra}})


class Traits(Value, kw_only=True):
    """The declarations of a tool, recorded with each of its calls.

    The journal keeps them because the tool may change or vanish before the run is resumed.
    """

    effect: Effect = Effect.ONCE
    undo: bool = False  # has an undo hook
    undo_unknown: bool = True  # its undo is safe for an aborted or unknown call
    release: bool = False  # has a release hook for a resource that the call holds
    check: bool = False  # has a hook that finds out whether a call took effect
    approve: ApprovalMode = ""
    audience: str = ""
    four_eyes: bool = False
    unstoppable: bool = False  # runs in a thread, which cannot be killed
    ask_ttl: int = 0  # microseconds after which an open approval counts as declined; 0: never
    version: str = ""
    secret: tuple[str, ...] = ()  # paths of arguments that hold secrets, joined by dots
    retries: int = 3  # steps in a row in which it may ask the model to try again
    sequential: bool = False  # no other tool call runs beside it
    final: bool = False  # the result of a call is the answer of the run


_WORD_BREAK: Final = re.compile(r"[_\-\s]+|(?<=[a-z0-9])(?=[A-Z])")


def humanize_name(name: str) -> str:
    """Return the name of a tool as words: "send_mail" as "Send mail"."""
    words = _WORD_BREAK.sub(" ", name).strip()
    return words[:1].upper() + words[1:]


class RequestedCall(Value, kw_only=True):
    """A call that the model, a hosted agent, or the person who took over wants made."""

    tool: str
    args: Json = None
    why: str = ""
    kind: CallKind = "tool"  # "child" has the trait `release`: releasing it ends the child
    traits: Traits = Traits()
    refused: str = ""  # the driver found no such tool, or the arguments do not fit
    position: str = ""  # of a hosted agent: the place of the call in its code, for replay
    tool_call_id: str = ""  # of a hosted agent: the id of the call in its framework
    title: str = ""  # one line for people, as declared by the tool; "" without a declaration
    handoff: str = ""  # the agent that speaks after this call, if it is a handoff

    @property
    def label(self) -> str:
        """The declared title, or the name of the tool as words; "" for a model call."""
        return self.title or humanize_name(self.tool)


class Reply(Value, kw_only=True):
    """A complete reply of a model: text, thinking, and the calls that it requests."""

    text: str = ""
    thinking: str = ""
    uses: tuple[RequestedCall, ...] = ()
    opaque: Json = None  # the provider's own message, stored and never interpreted
    prompt_tokens: int = 0  # tokens in the prompt as the provider counted them
    value: Json = None  # the typed output of the agent; `text` is the same as text
    # Why the reply is not a valid output. The agent is told, and tries again; see
    # `retries.may_retry_output`. The text is also the refusal of a call of the output tool.
    invalid_output: str = ""
    model: str = ""  # the fallback that wrote it; empty: the agent's own model
    ungated: tuple[str, ...] = ()  # tools that the provider executed inside the model call


class FileRef(Value, kw_only=True):
    """A file beside the journal: the store has its bytes under `hash`, their SHA-256 in hex."""

    name: str
    media_type: str
    size: int
    hash: str


class FileLimits(Value, kw_only=True):
    """The bounds on the files of one run, artifacts included.

    Attributes:
        file_bytes: The most bytes that one file may have.
        run_files: The most files that a run may have. A file that comes twice counts twice.
        run_bytes: The most bytes that all files of a run may have together.
    """

    file_bytes: int = 10 * 1024 * 1024
    run_files: int = 200
    run_bytes: int = 100 * 1024 * 1024


class PlanItem(Value, kw_only=True):
    """One item of the agent's own plan."""

    text: str
    state: PlanItemState = "queued"


class SpeakerSettings(Value, kw_only=True):
    """An agent that may speak in a run after a handoff, with its settings for the run."""

    agent: str
    output_retries: int = 0
    max_parallel: int = 0
    window: int = 0


class ClientTool(Value, kw_only=True):
    """A tool of the client that started the run: the client makes its calls, by an answer."""

    name: str
    text: str  # its description
    schema: Json  # the JSON Schema of its arguments


class CallResult(Value, kw_only=True):
    """A call that the agent requested, with its `result`, or its `problem` in words."""

    call: CallId
    tool: str
    args: Json = None
    result: Json = None
    problem: str = ""
    files: tuple[FileRef, ...] = ()  # files that the call returned


class Message(Value, kw_only=True):
    """One message of the conversation, with its origin."""

    role: Literal["user", "assistant", "runtime"]
    text: str
    by: str = ""
    kind: str = ""
    thinking: str = ""
    calls: tuple[CallId, ...] = ()
    made: tuple[CallResult, ...] = ()  # calls of an earlier run with their outcomes
    interrupted: bool = False
    opaque: Json = None
    agent: str = ""  # the agent that wrote it, if that is not the agent of the run
    files: tuple[FileRef, ...] = ()


class Origin(Value, kw_only=True):
    """The run, and the place in it, that a child run or a fork came from."""

    run: RunId
    seq: Seq = Seq(0)
    call: CallId = CallId("")


class Residue(Value, kw_only=True):
    """A call whose effect could not be undone, or whose resource could not be released."""

    call: CallId
    action: CleanupAction = "undo"
    why: str = ""


class Decision(Value, kw_only=True):
    """A person's decision about an ask."""

    choice: Literal["answer", "approve", "decline"]
    value: Json = None
    reason: str = ""


class Approval(Value, kw_only=True):
    """Permission to make one call with exactly these arguments."""

    ask: AskId
    args_hash: str
