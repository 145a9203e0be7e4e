"""The interface that local and remote handles share.

`Midrun` and `Run` implement it with a store, `RemoteMidrun` and `RemoteRun` (from
`midrun.connect`) over HTTP. Write code that works with both against `AnyMidrun` and `AnyRun`.
The methods are documented on `Midrun` and `Run`.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Protocol, Self, Unpack

from midrun.agents.agent import Agent
from midrun.agents.checkpoint import Checkpoint
from midrun.agents.file import File
from midrun.agents.outcome import Outcome
from midrun.core.ids import RunId
from midrun.core.stops import Stop
from midrun.core.values import Json, RedirectTiming, UndoSet, Urgency
from midrun.events import RunEvent
from midrun.ports.audit import AuditEntry
from midrun.ports.store import Page
from midrun.runs.validation import ActorLike, ControlOptions, SelectionOptions, TimeLike
from midrun.runs.values import (
    ArtifactView,
    DeletableRuns,
    Erasure,
    FeedItem,
    OpenAsk,
    Receipt,
    RunView,
    Verdict,
)
from midrun.text.report import Report

# ruff: noqa: D102 - documented once, on `midrun.runs.run.Run` and `midrun.runs.midrun.Midrun`


class AnyRun(Protocol):
    """The handle of one run: a `Run` or a `RemoteRun`."""

    @property
    def id(self) -> RunId: ...

    async def pause(
        self,
        *,
        now: bool = ...,
        hold: timedelta | None = ...,
        **options: Unpack[ControlOptions],
    ) -> Receipt: ...
    async def resume(
        self,
        instruction: str | None = ...,
        *,
        caps: dict[str, float] | None = ...,
        files: Sequence[File] | None = ...,
        **options: Unpack[ControlOptions],
    ) -> Receipt: ...
    async def redirect(
        self,
        text: str,
        *,
        when: RedirectTiming = ...,
        files: Sequence[File] | None = ...,
        **options: Unpack[ControlOptions],
    ) -> Receipt: ...
    async def say(
        self,
        text: str,
        *,
        urgency: Urgency = ...,
        at: TimeLike | None = ...,
        files: Sequence[File] | None = ...,
        **options: Unpack[ControlOptions],
    ) -> Receipt: ...
    async def answer(
        self,
        value: Json,
        *,
        ask: str | None = ...,
        files: Sequence[File] | None = ...,
        **options: Unpack[ControlOptions],
    ) -> Receipt: ...
    async def approve(
        self, *, ask: str | None = ..., args: Json = ..., **options: Unpack[ControlOptions]
    ) -> Receipt: ...
    async def decline(
        self,
        reason: str = ...,
        *,
        ask: str | None = ...,
        actor: ActorLike = ...,
        request_id: str | None = ...,
        seen: int | None = ...,
    ) -> Receipt: ...
    async def cancel(
        self, *, undo: UndoSet = ..., **options: Unpack[ControlOptions]
    ) -> Receipt: ...
    async def raise_cap(
        self,
        *,
        actor: ActorLike = ...,
        reason: str | None = ...,
        request_id: str | None = ...,
        seen: int | None = ...,
        **caps: float,
    ) -> Receipt: ...
    async def withdraw(self, seq: int, **options: Unpack[ControlOptions]) -> Receipt: ...
    async def force_pause(self, **options: Unpack[ControlOptions]) -> Receipt: ...
    async def retry_undo(self, **options: Unpack[ControlOptions]) -> Receipt: ...
    async def accept_residue(self, **options: Unpack[ControlOptions]) -> Receipt: ...
    async def resume_frame(self, frame: str, **options: Unpack[ControlOptions]) -> Receipt: ...
    async def drop_frame(self, frame: str, **options: Unpack[ControlOptions]) -> Receipt: ...
    async def take_over(self, **options: Unpack[ControlOptions]) -> Receipt: ...
    async def write(self, text: str, **options: Unpack[ControlOptions]) -> Receipt: ...
    async def use_tool(
        self, tool: str, args: Json, **options: Unpack[ControlOptions]
    ) -> Receipt: ...
    async def hand_back(
        self, instruction: str | None = ..., **options: Unpack[ControlOptions]
    ) -> Receipt: ...
    async def fork(
        self,
        seq: int | None = ...,
        *,
        instruction: str | None = ...,
        files: Sequence[File] | None = ...,
        actor: ActorLike = ...,
        request_id: str | None = ...,
    ) -> "AnyRun": ...

    async def view(self) -> RunView: ...
    async def until(self, *phases: str) -> RunView: ...
    async def result(self) -> Outcome: ...
    async def report(self) -> Report: ...
    async def artifacts(self) -> tuple[ArtifactView, ...]: ...
    async def file(self, file_hash: str) -> File: ...
    async def checkpoint(self, *, expires: timedelta | None = ...) -> Checkpoint: ...
    async def export(self) -> tuple[bytes, ...]: ...
    async def delete(self, reason: str = ..., *, actor: ActorLike = ...) -> Erasure: ...
    def feed(self, after: int = ...) -> AsyncGenerator[FeedItem, None]: ...
    def events(self, after: int = ...) -> AsyncGenerator[RunEvent, None]: ...


class AnyMidrun(Protocol):
    """The runs of one store, opened here or by a server. An async context manager."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None: ...

    async def start(  # noqa: PLR0913 - one keyword per setting
        self,
        agent: str | Agent,
        task: str,
        *,
        thread: str | None = ...,
        labels: Sequence[str] | None = ...,
        stop: Stop | None = ...,
        request_id: str | None = ...,
        actor: ActorLike = ...,
        files: Sequence[File] | None = ...,
        tenant: str | None = ...,
        team: str | None = ...,
    ) -> AnyRun: ...
    async def get(self, run_id: str) -> AnyRun: ...
    async def runs(
        self,
        *,
        phase: str | None = ...,
        agent: str | None = ...,
        label: str | None = ...,
        thread: str | None = ...,
        search: str | None = ...,
        tenant: str | None = ...,
        limit: int = ...,
        cursor: str | None = ...,
    ) -> Page[RunView]: ...
    async def find_ids(self, beginning: str) -> tuple[RunId, ...]: ...
    async def asks(self) -> tuple[OpenAsk, ...]: ...
    async def list_agents(self) -> tuple[str, ...]: ...
    async def resume(
        self,
        checkpoint: Checkpoint,
        answer: Json = ...,
        *,
        instruction: str | None = ...,
        caps: dict[str, float] | None = ...,
        actor: ActorLike = ...,
        request_id: str | None = ...,
    ) -> AnyRun: ...
    async def verify(self, run_id: str) -> Verdict: ...
    async def count_deletable(self, **selection: Unpack[SelectionOptions]) -> DeletableRuns: ...
    async def delete_runs(
        self, *, reason: str = ..., actor: ActorLike, **selection: Unpack[SelectionOptions]
    ) -> int: ...
    async def halt(
        self, reason: str, *, scope: str = ..., tenant: str | None = ..., actor: ActorLike
    ) -> None: ...
    def audit(
        self, *, since: TimeLike, until: TimeLike | None = ...
    ) -> AsyncIterator[AuditEntry]: ...
    async def lift(
        self, *, scope: str = ..., tenant: str | None = ..., actor: ActorLike
    ) -> bool: ...
