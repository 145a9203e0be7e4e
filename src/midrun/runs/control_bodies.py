"""Request bodies of the controls, and the method of `Run` that each of them calls.

A body is the form in which a control reaches a run from outside: the server decodes it from
JSON, the command line builds it from its arguments, and `RemoteRun` encodes it. `send` calls
the method of `Run`. Names and docstrings of the classes are in the OpenAPI document; an unknown
field is refused, not ignored. `control_specs` says which body belongs to which control.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal, Self

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from midrun.core.run_head import NAME_MAX_CHARS
from midrun.core.values import Json, RedirectTiming, UndoSet, Urgency, Value
from midrun.runs.protocols import AnyRun
from midrun.runs.validation import REASON_MAX_CHARS, ControlOptions
from midrun.runs.values import Receipt

# ruff: noqa: D102 - `send` is documented once, on `ControlBody`

ID_MAX_CHARS: Final = NAME_MAX_CHARS
"""The maximum length of an id, in characters: ids are part of every line of a list."""

Text = Annotated[str, Meta(max_length=100_000)]
Line = Annotated[str, Meta(max_length=REASON_MAX_CHARS)]
Name = Annotated[str, Meta(min_length=1, max_length=ID_MAX_CHARS)]
Count = Annotated[int, Meta(ge=1, le=10**9)]
Amount = Annotated[float, Meta(gt=0, le=1e9)]


class Body(Value, kw_only=True):
    """Base of the request bodies."""


class Caps(Body, kw_only=True):
    """Caps by name; cost in dollars, time in seconds."""

    steps: Count | None = None
    tokens: Count | None = None
    cost: Amount | None = None
    time: Amount | None = None
    tool_calls: Count | None = None
    repeats: Count | None = None

    @classmethod
    def from_amounts(cls, caps: Mapping[str, float]) -> Self:
        """Return caps with these amounts; the names must be those of the fields."""
        return cls(**caps)  # type: ignore[arg-type]  # the run checks that counts are integers

    def list_set_caps(self) -> dict[str, float]:
        """Return the caps that are set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class ControlTarget(Struct, frozen=True):
    """The run that gets a control, and the part of the run that the control is about.

    `part` is the id of an ask or of a held topic, or the number of a pending request. It is ""
    for a control of the whole run, and for the only open ask.
    """

    run: AnyRun
    part: str = ""


class ControlBody(Body, kw_only=True):
    """Base of the bodies of controls."""

    @property
    def reason(self) -> str:
        """The reason for the journal."""
        raise NotImplementedError

    def with_reason(self, reason: str) -> Self:
        """Return the body with this reason."""
        return replace(self, reason=reason)

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        """Send the control: call the method of `Run` with the fields of this body."""
        raise NotImplementedError


class Empty(ControlBody, kw_only=True):
    """A body with an optional reason."""

    reason: Line = ""


# ── pause, resume, redirect, message, cancel ─────────────────────────────────


class PauseBody(ControlBody, kw_only=True):
    """Pause at the boundary or now. With `hold_s`, the run resumes after that many seconds."""

    mode: Literal["boundary", "now"] = "boundary"
    hold_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    reason: Line = ""

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        hold = None if self.hold_s is None else timedelta(seconds=self.hold_s)
        return await target.run.pause(now=self.mode == "now", hold=hold, **options)


class ResumeBody(ControlBody, kw_only=True):
    """Resume, optionally with an instruction and raised caps."""

    instruction: Text = ""
    caps: Caps = Caps()
    reason: Line = ""

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        caps = self.caps.list_set_caps()
        return await target.run.resume(self.instruction or None, caps=caps, **options)


class RedirectBody(ControlBody, kw_only=True):
    """A new instruction that replaces the current course."""

    instruction: Text
    when: RedirectTiming = "next_step"
    reason: Line = ""

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        return await target.run.redirect(self.instruction, when=self.when, **options)


class MessageBody(ControlBody, kw_only=True):
    """A message to the run while it works; with `at`, delivered no earlier than that."""

    text: Text
    urgency: Urgency = "next"
    at: Annotated[datetime, Meta(tz=True)] | None = None
    reason: Line = ""

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        return await target.run.say(self.text, urgency=self.urgency, at=self.at, **options)


class CancelBody(ControlBody, kw_only=True):
    """Cancel the run, and undo the calls in flight or all calls that can be undone."""

    undo: UndoSet = "in_flight"
    reason: Line = ""

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        return await target.run.cancel(undo=self.undo, **options)


# ── asks ─────────────────────────────────────────────────────────────────────


class DecisionBody(ControlBody, kw_only=True):
    """A decision about an ask. `edit` approves with other arguments."""

    decision: Literal["approve", "edit", "decline", "answer"]
    args: Json = None
    value: Json = None
    comment: Line = ""

    @property
    def reason(self) -> str:
        """The comment: asks had this name for the reason first."""
        return self.comment

    def with_reason(self, reason: str) -> Self:
        """Return the body with this reason as its comment."""
        return replace(self, comment=reason)

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        run, ask = target.run, target.part or None
        match self.decision:
            case "approve" | "edit":
                return await run.approve(ask=ask, args=self.args, **options)
            case "decline":
                return await run.decline(
                    options.get("reason") or "",
                    ask=ask,
                    actor=options.get("actor"),
                    request_id=options.get("request_id"),
                    seen=options.get("seen"),
                )
            case "answer":
                return await run.answer(self.value, ask=ask, **options)


# ── more controls ────────────────────────────────────────────────────────────


class WithdrawBody(Empty, kw_only=True):
    """Withdraw a pending request. The path has its number; a DELETE has no body."""

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        return await target.run.withdraw(int(target.part), **options)


class ChangeBody(ControlBody, kw_only=True):
    """Caps to raise."""

    caps: Caps
    reason: Line = ""

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        return await target.run.raise_cap(
            actor=options.get("actor"),
            reason=options.get("reason"),
            request_id=options.get("request_id"),
            seen=options.get("seen"),
            **self.caps.list_set_caps(),
        )


class ForcePauseBody(Empty, kw_only=True):
    """Pause without the calls that do not respond."""

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        return await target.run.force_pause(**options)


class ResumeFrameBody(Empty, kw_only=True):
    """Return to a held topic. The path has its id."""

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        return await target.run.resume_frame(target.part, **options)


class DropFrameBody(Empty, kw_only=True):
    """Drop a held topic. The path has its id; a DELETE has no body."""

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        return await target.run.drop_frame(target.part, **options)


class RetryUndoBody(Empty, kw_only=True):
    """Retry the undos that failed."""

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        return await target.run.retry_undo(**options)


class AcceptResidueBody(Empty, kw_only=True):
    """Accept the effects that could not be undone."""

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        return await target.run.accept_residue(**options)


# ── a person in the agent's place ────────────────────────────────────────────


class TakeOverBody(Empty, kw_only=True):
    """Take the agent's place."""

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        return await target.run.take_over(**options)


class WriteBody(ControlBody, kw_only=True):
    """Text that the person who took over writes as the assistant."""

    text: Text
    reason: Line = ""

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        return await target.run.write(self.text, **options)


class UseToolBody(ControlBody, kw_only=True):
    """A tool call by the person who took over."""

    tool: Name
    args: Json = None
    reason: Line = ""

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        return await target.run.use_tool(self.tool, self.args, **options)


class HandBackBody(ControlBody, kw_only=True):
    """Hand the run back to its agent, optionally with an instruction."""

    instruction: Text = ""
    reason: Line = ""

    async def send(self, target: ControlTarget, options: ControlOptions) -> Receipt:
        return await target.run.hand_back(self.instruction or None, **options)
