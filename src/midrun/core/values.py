"""The small values that entries, controls, orders and the state are made of."""

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, dataclass_transform

from msgspec import Struct, field

from midrun.core.ids import AskId, CallId, RunId, Seq

if TYPE_CHECKING:
    Json = object
else:
    Json = Any  # msgspec reads `object` as a type of ours that needs a hook
"""Anything JSON can say. `codec.strict` has checked it before it reaches the core."""


class Phase(StrEnum):
    """Where a run stands, in one word. The only ten."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    WAITING = "waiting"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    COMPLETED = "completed"
    FAILED = "failed"
    HALTED = "halted"


DRIVABLE = frozenset({Phase.QUEUED, Phase.RUNNING, Phase.PAUSING, Phase.CANCELLING})
"""A run in one of these needs a driver; in any other it leaves memory."""

RESTS = frozenset(Phase) - DRIVABLE
"""Phases in which nothing happens by itself."""

TERMINAL = frozenset({Phase.CANCELLED, Phase.COMPLETED})


class Effect(StrEnum):
    """What making a call twice would do to the world."""

    READ = "read"
    IDEMPOTENT = "idempotent"
    ONCE = "once"


Urgency = Literal["now", "next", "later"]
When = Literal["next_step", "now"]
UndoSet = Literal["in_flight", "all"]
Action = Literal["undo", "release"]
CallKind = Literal["model", "tool", "child"]
Purpose = Literal["step", "condense"]
AskKind = Literal["question", "approval", "unsure", "child"]
Gate = Literal["", "block", "queue"]
Role = Literal["viewer", "user", "operator", "system"]
PauseReason = Literal["user", "cap", "taken_over"]
Mark = Literal["queued", "running", "done", "failed", "dropped"]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Value(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,  # frozen and built from the inside out: none can be part of a cycle
):
    """Base of every value: frozen, built by keyword, small on disk."""


class Actor(Value, kw_only=True):
    """Who pressed the button. The role comes from a credential, never from the request."""

    name: str = "user"
    role: Role = "user"


class Spend(Value, kw_only=True):
    """Tokens and money. Money is in millionths of a dollar: sums of floats drift."""

    tokens: int = 0
    cost: int = 0

    def plus(self, other: "Spend") -> "Spend":
        """Return the sum."""
        return Spend(tokens=self.tokens + other.tokens, cost=self.cost + other.cost)

    def minus(self, other: "Spend") -> "Spend":
        """Return the difference."""
        return Spend(tokens=self.tokens - other.tokens, cost=self.cost - other.cost)


NOTHING: Final = Spend()
"""The one empty spend: a default is left out of a line only if it is this very object."""


class Traits(Value, kw_only=True):
    """What a tool has declared about itself, recorded with each of its calls."""

    effect: Effect = Effect.ONCE
    undo: bool = False
    undo_unknown: bool = True  # its undo is safe for a call that may not have happened
    release: bool = False
    check: bool = False
    approve: Gate = ""
    audience: str = ""
    four_eyes: bool = False
    unstoppable: bool = False  # it blocks a thread, which nobody can stop
    ask_ttl: int = 0  # microseconds after which an undecided approval is a no; 0 is never
    version: str = ""
    secret: tuple[str, ...] = ()  # paths of arguments that hold secrets, joined by dots


class Use(Value, kw_only=True):
    """A call that is wanted: by the model, a hosted agent, or a person at the wheel."""

    tool: str
    args: Json = None
    why: str = ""
    kind: CallKind = "tool"  # a child run is held: its traits say release, so that it ends
    traits: Traits = Traits()
    refused: str = ""  # the shell found no such tool, or the arguments do not fit
    position: str = ""  # where a hosted agent stood when it asked; its key on replay


class Reply(Value, kw_only=True):
    """What a model said: text, thinking, and the calls it asks for."""

    text: str = ""
    thinking: str = ""
    uses: tuple[Use, ...] = ()
    opaque: Json = None  # the provider's own message, carried and never read
    window: int = 0  # tokens the provider counted in the prompt, for condensing history


class Item(Value, kw_only=True):
    """One line of the agent's own plan."""

    text: str
    mark: Mark = "queued"


class Made(Value, kw_only=True):
    """A call that the agent asked for, and what came of it: `result`, or `problem` in words."""

    call: CallId
    tool: str
    args: Json = None
    result: Json = None
    problem: str = ""


class Message(Value, kw_only=True):
    """One message of the conversation, with where it came from."""

    role: Literal["user", "assistant", "runtime"]
    text: str
    by: str = ""
    kind: str = ""
    thinking: str = ""
    calls: tuple[CallId, ...] = ()
    made: tuple[Made, ...] = ()  # calls of an earlier run, with what came of them there
    interrupted: bool = False
    opaque: Json = None


class Origin(Value, kw_only=True):
    """Where a run came from when it is not the first of its kind."""

    run: RunId
    seq: Seq = Seq(0)
    call: CallId = CallId("")


class Residue(Value, kw_only=True):
    """A call whose effect could not be taken back, and why."""

    call: CallId
    action: Action = "undo"
    why: str = ""


class Decision(Value, kw_only=True):
    """What a person decided about an ask."""

    choice: Literal["answer", "approve", "decline"]
    value: Json = None
    reason: str = ""


class Approval(Value, kw_only=True):
    """A yes that can be used once: for these arguments of this call, and no others."""

    ask: AskId
    args_hash: str
