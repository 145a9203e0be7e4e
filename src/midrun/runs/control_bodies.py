"""Request bodies of the controls.

A body is the form in which a control reaches a run from outside: the server decodes it from
JSON, the command line makes it from its arguments, and `RemoteRun` encodes it. Names and
docstrings of the classes are in the OpenAPI document; an unknown field is refused, not ignored.
`control_specs` says which control has which body.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal, Self, TypeAlias

from msgspec import Meta
from msgspec.structs import asdict, replace

from midrun.agents.file import FILE_NAME_MAX_CHARS, File
from midrun.core.run_head import NAME_MAX_CHARS
from midrun.core.values import Json, RedirectTiming, UndoSet, Urgency, Value
from midrun.runs.validation import REASON_MAX_CHARS

ID_MAX_CHARS: Final = NAME_MAX_CHARS
"""The maximum length of an id, in characters: ids are part of every line of a list."""

BODY_MAX_FILES: Final = 20
"""The number of files in one request."""

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


class FileBody(Body, kw_only=True):
    """A file in a request; `data` is base64."""

    name: Annotated[str, Meta(min_length=1, max_length=FILE_NAME_MAX_CHARS)]
    media_type: Annotated[str, Meta(min_length=3, max_length=200)]
    data: bytes

    @classmethod
    def from_file(cls, file: File) -> Self:
        """Return the body of `file`."""
        return cls(name=file.name, media_type=file.media_type, data=file.data)


FileBodies = Annotated[tuple[FileBody, ...], Meta(max_length=BODY_MAX_FILES)]


def make_files(bodies: Sequence[FileBody]) -> tuple[File, ...]:
    """Return the files of a request.

    Raises:
        Misconfigured: A name or a media type is malformed.
    """
    return tuple(File(body.name, body.media_type, body.data) for body in bodies)


def make_file_bodies(files: Sequence[File]) -> tuple[FileBody, ...]:
    """Return the bodies of `files` for a request."""
    return tuple(FileBody.from_file(file) for file in files)


class ControlBody(Body, kw_only=True):
    """Base of the bodies of controls."""

    @property
    def reason(self) -> str:
        """The reason for the journal."""
        raise NotImplementedError

    def with_reason(self, reason: str) -> Self:
        """Return the body with this reason."""
        return replace(self, reason=reason)


class Empty(ControlBody, kw_only=True):
    """A body with an optional reason."""

    reason: Line = ""


class PauseBody(ControlBody, kw_only=True):
    """Pause at the boundary or now. With `hold_s`, the run resumes after that many seconds."""

    mode: Literal["boundary", "now"] = "boundary"
    hold_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    reason: Line = ""

    @property
    def hold(self) -> timedelta | None:
        """The time after which the run resumes."""
        return None if self.hold_s is None else timedelta(seconds=self.hold_s)


class ResumeBody(ControlBody, kw_only=True):
    """Resume, optionally with an instruction and raised caps."""

    instruction: Text = ""
    caps: Caps = Caps()
    files: FileBodies = ()
    reason: Line = ""


class RedirectBody(ControlBody, kw_only=True):
    """A new instruction that replaces the current course."""

    instruction: Text
    when: RedirectTiming = "next_step"
    files: FileBodies = ()
    reason: Line = ""


class MessageBody(ControlBody, kw_only=True):
    """A message to the run while it works; with `at`, delivered no earlier than that."""

    text: Text
    urgency: Urgency = "next"
    at: Annotated[datetime, Meta(tz=True)] | None = None
    files: FileBodies = ()
    reason: Line = ""


class CancelBody(ControlBody, kw_only=True):
    """Cancel the run, and undo the calls in flight or all calls that can be undone."""

    undo: UndoSet = "in_flight"
    reason: Line = ""


Decision: TypeAlias = Literal["approve", "edit", "decline", "answer"]


class DecisionBody(ControlBody, kw_only=True):
    """A decision about an ask. `edit` approves with other arguments.

    `files` belong to an answer.
    """

    decision: Decision
    args: Json = None
    value: Json = None
    files: FileBodies = ()
    comment: Line = ""

    @property
    def reason(self) -> str:
        """The reason, which is called comment here."""
        return self.comment

    def with_reason(self, reason: str) -> Self:
        """Return the body with this reason as its comment."""
        return replace(self, comment=reason)


class ChangeBody(ControlBody, kw_only=True):
    """Caps to raise."""

    caps: Caps
    reason: Line = ""


class WriteBody(ControlBody, kw_only=True):
    """Text that the person who took over writes as the assistant."""

    text: Text
    reason: Line = ""


class UseToolBody(ControlBody, kw_only=True):
    """A tool call by the person who took over."""

    tool: Name
    args: Json = None
    reason: Line = ""


class HandBackBody(ControlBody, kw_only=True):
    """Hand the run back to its agent, optionally with an instruction."""

    instruction: Text = ""
    reason: Line = ""
