"""Bodies: what clients send. A field that is not here is refused, not passed over."""

from datetime import datetime
from typing import Annotated, Final, Literal

from msgspec import Meta
from msgspec.structs import asdict

from midrun.core.head import NAME_MAX_CHARS
from midrun.core.stops import Stop
from midrun.core.values import Json, UndoSet, Urgency, Value, When
from midrun.handles.given import LABELS_MAX, REASON_MAX_CHARS, WORDS

SCOPE = r"^(all|(agent|label|run):[^\n]{1,200})(?!\n)$"  # as JavaScript reads it, too

REASON_MAX: Final = REASON_MAX_CHARS

ID_MAX: Final = NAME_MAX_CHARS
"""Characters of what clients name things by: it stands in every line of a list."""

Text = Annotated[str, Meta(max_length=100_000)]
Line = Annotated[str, Meta(max_length=REASON_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=ID_MAX)]
Count = Annotated[int, Meta(ge=1, le=10**9)]
Amount = Annotated[float, Meta(gt=0, le=1e9)]


class Body(Value, kw_only=True):
    """Base of the bodies."""


class Caps(Body, kw_only=True):
    """Bounds by name; money in dollars, time in seconds."""

    steps: Count | None = None
    tokens: Count | None = None
    cost: Amount | None = None
    time: Amount | None = None
    tool_calls: Count | None = None
    repeats: Count | None = None

    def given(self) -> dict[str, float]:
        """Return those that were named."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class Empty(Body, kw_only=True):
    """Nothing to say but why."""

    reason: Line = ""


class StartBody(Body, kw_only=True):
    """A run to start. `caps`, or a whole `stop`, stand in for the agent's own condition."""

    agent: Name
    input: Annotated[Text, Meta(extra_json_schema={"pattern": WORDS})]  # as a start has it
    thread_id: Annotated[str, Meta(max_length=ID_MAX)] = ""
    labels: Annotated[tuple[Name, ...], Meta(max_length=LABELS_MAX)] = ()
    caps: Caps = Caps()
    stop: Stop | None = None


class PauseBody(Body, kw_only=True):
    """Pause at the boundary or now; with `hold_s`, the run goes on by itself after that."""

    mode: Literal["boundary", "now"] = "boundary"
    hold_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    reason: Line = ""


class ResumeBody(Body, kw_only=True):
    """Go on, with an instruction and raised caps if given."""

    instruction: Text = ""
    caps: Caps = Caps()
    reason: Line = ""


class RedirectBody(Body, kw_only=True):
    """A new course."""

    instruction: Text
    when: When = "next_step"
    reason: Line = ""


class MessageBody(Body, kw_only=True):
    """Something said to the run while it works; with `at`, not before that time."""

    text: Text
    urgency: Urgency = "next"
    at: Annotated[datetime, Meta(tz=True)] | None = None
    reason: Line = ""


class CancelBody(Body, kw_only=True):
    """Stop everything, and undo what was in flight or all that can be undone."""

    undo: UndoSet = "in_flight"
    reason: Line = ""


class ChangeBody(Body, kw_only=True):
    """Bounds to raise."""

    caps: Caps
    reason: Line = ""


class DecisionBody(Body, kw_only=True):
    """What somebody decided about an ask. `edit` is an approval with other arguments."""

    decision: Literal["approve", "edit", "decline", "answer"]
    args: Json = None
    value: Json = None
    comment: Line = ""


class WriteBody(Body, kw_only=True):
    """What the person at the wheel says as the assistant."""

    text: Text
    reason: Line = ""


class UseToolBody(Body, kw_only=True):
    """A call that the person at the wheel wants made."""

    tool: Name
    args: Json = None
    reason: Line = ""


class HandBackBody(Body, kw_only=True):
    """The run goes back to its agent, with an instruction if given."""

    instruction: Text = ""
    reason: Line = ""


class ForkBody(Body, kw_only=True):
    """Continue from a boundary of the run, the newest unless `seq` names one, as another."""

    seq: Annotated[int, Meta(ge=-(2**53) + 1, le=2**53 - 1)] | None = None
    instruction: Text = ""


class CheckpointBody(Body, kw_only=True):
    """A checkpoint to go on from, with the answer it waits for, as `Midrun.resume` has it."""

    checkpoint: dict[str, Json]
    answer: Json = None
    instruction: Text = ""
    caps: Caps = Caps()


class HaltBody(Body, kw_only=True):
    """A latch: `all`, `agent:NAME`, `label:LABEL` or `run:ID`. It must be named."""

    scope: Annotated[str, Meta(pattern=SCOPE)]
    reason: Line = ""


class LiftBody(Body, kw_only=True):
    """The latch to take away."""

    scope: Annotated[str, Meta(pattern=SCOPE)]
