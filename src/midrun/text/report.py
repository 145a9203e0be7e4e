"""Build the report of a run: every tool call with its outcome.

The report is shown after a cancel, and can be built at any time. Each call is in exactly one
list (`done`, `undone`, `stopped` …), except that a call whose resource could not be released
is also in `still_held`. Calls that only read are left out.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Final

import msgspec

from midrun.core.evolve.asks import CLOSE_REASON_TEXTS
from midrun.core.ids import CallId, Micros, make_child_id
from midrun.core.journaled_text import format_actor_name, format_outcome_phrase, shorten_to_line
from midrun.core.state import CallStage, CallState, State
from midrun.core.values import Effect, Json, Phase, Value
from midrun.text.titles import format_title

_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ReportedCall(Value, kw_only=True):
    """One call in the report."""

    call: CallId
    tool: str
    args: str = ""
    note: str = ""
    why: str = ""
    run: str = ""  # the id of the child run, which has its own report; else ""
    title: str = ""  # one line that tells people about the call

    def __str__(self) -> str:
        said = self.title or f"`{self.tool}` {self.args}".strip()
        said += f" by run {self.run}" if self.run else ""
        said += f" — {self.note}" if self.note else ""
        return f"{said} (why: {self.why})" if self.why else said


class ReportedArtifact(Value, kw_only=True):
    """The newest version of an artifact in the report."""

    name: str
    version: int
    media_type: str
    size: int
    hash: str

    def __str__(self) -> str:
        version = f", version {self.version}" if self.version > 1 else ""
        return f"{self.name} ({self.media_type}, {self.size} bytes{version})"


class Report(Value, kw_only=True):
    """The calls of a run, grouped by outcome."""

    phase: str
    task: str
    run: str = ""
    agent: str = ""
    speakers: tuple[str, ...] = ()  # with handoffs: the agents that made calls, in order
    cancelled_by: str = ""
    cancelled_at: Micros | None = None  # time of the cancel request; None without a cancel
    reason: str = ""  # the reason that was given with the cancel
    done: tuple[ReportedCall, ...] = ()  # finished, and kept
    undoing: tuple[ReportedCall, ...] = ()  # its undo is in progress
    undone: tuple[ReportedCall, ...] = ()  # in the order in which the calls were undone
    not_undone: tuple[ReportedCall, ...] = ()  # the undo was given up
    released: tuple[ReportedCall, ...] = ()  # its resource was released
    stopped: tuple[ReportedCall, ...] = ()  # stopped midway; may have taken effect in part
    unsure: tuple[ReportedCall, ...] = ()  # it is unknown whether it happened
    failed: tuple[ReportedCall, ...] = ()
    never_started: tuple[ReportedCall, ...] = ()
    still_held: tuple[ReportedCall, ...] = ()  # its resource could not be released
    artifacts: tuple[ReportedArtifact, ...] = ()  # the newest version of each
    partial: str = ""
    value: Json = None  # the output of a completed run as data, if it has a typed output

    @property
    def clean(self) -> bool:
        """True if all cleanup is finished and nothing is unsure or left behind."""
        if self.phase == Phase.CANCELLING or self.undoing:
            return False
        return not (self.not_undone or self.unsure or self.still_held)

    def __str__(self) -> str:
        parts = [
            f"# {self.task}",
            "",
            f"The run is {self.phase}.",
            "",
            *self._format_identity(),
            "",
        ]
        for title, calls in (
            ("Done and kept", self.done),
            ("Being undone", self.undoing),
            ("Undone", self.undone),
            ("Could not be undone", self.not_undone),
            ("Released", self.released),
            ("Stopped midway", self.stopped),
            ("Unknown whether it happened", self.unsure),
            ("Failed", self.failed),
            ("Never started", self.never_started),
            ("Could not be released", self.still_held),
        ):
            parts += _format_section(title, calls)
        if self.artifacts:
            parts += ["## Artifacts", "", *(f"- {shown}" for shown in self.artifacts), ""]
        if self.partial:
            parts += ["## Partial work", "", self.partial, ""]
        if self.value is not None:
            value = msgspec.json.format(msgspec.json.encode(self.value)).decode()
            parts += ["## Output", "", "```json", value, "```", ""]
        return "\n".join(parts)

    def _format_identity(self) -> Iterator[str]:
        """Yield the lines that identify the run and its cancel: id, agent, actor, time."""
        if self.run:
            yield f"- Run: {self.run}" + (f", of agent {self.agent}" if self.agent else "")
        if self.speakers:
            yield f"- Handed over: {', then '.join(self.speakers)}"
        if self.cancelled_at is not None:
            at = _UNIX_EPOCH + timedelta(microseconds=self.cancelled_at)
            by = f", by {_format_canceller(self.cancelled_by)}" if self.cancelled_by else ""
            yield f"- Cancel requested: {at:%Y-%m-%d %H:%M:%S} UTC{by}"
        if self.reason:
            yield f"- Reason: {self.reason}"


def _format_canceller(actor: str) -> str:
    run = actor.removeprefix("run:")
    return actor if run == actor else f"{format_actor_name(actor)}, {run}"


def _format_section(title: str, calls: tuple[ReportedCall, ...]) -> Iterable[str]:
    """Return one section of the report as Markdown lines.

    Three sections are present even when empty: their absence could be read as an omission.
    """
    if calls:
        return [f"## {title}", "", *(f"- {call}" for call in calls), ""]
    always = title in {"Done and kept", "Undone", "Could not be undone"}
    return [f"## {title}", "", "Nothing.", ""] if always else []


def build_report(state: State) -> Report:
    """Build the report of a run in `state`."""
    lists: dict[str, list[ReportedCall]] = {}
    unanswered = _find_unanswered_notes(state)
    for call in state.calls:
        if call.call_kind == "model":
            continue
        if (name := _find_list_name(call)) is not None:
            note = unanswered.get(call.id, "") if name == "stopped" else ""
            lists.setdefault(name, []).append(
                _make_reported_call(state, call, note or _find_note(call, name))
            )
        if call.release.stage == "gave_up":
            lists.setdefault("still_held", []).append(
                _make_reported_call(state, call, call.release.error)
            )
    closed = {call.id: call.closed_seq for call in state.calls}
    # Undo runs in the reverse order of closing; list the calls in the order of their undo.
    lists.get("undone", []).sort(key=lambda call: -closed[call.call])
    found = {name: tuple(calls) for name, calls in lists.items()}
    cancel = state.cancel_request
    return Report(
        phase=state.phase,
        task=shorten_to_line(state.run_started.task),
        run=state.run,
        agent=state.run_started.agent,
        speakers=_list_speakers(state),
        cancelled_by=cancel.by if cancel else "",
        cancelled_at=state.cancel_requested_at if cancel else None,
        reason=shorten_to_line(cancel.reason) if cancel else "",
        artifacts=_list_artifacts(state),
        partial=_find_partial_work(state),
        value=state.value,
        **found,
    )


def _list_artifacts(state: State) -> tuple[ReportedArtifact, ...]:
    """Return the newest version of each artifact, in the order of their first versions."""
    newest = {shown.name: shown for shown in state.artifacts}
    return tuple(
        ReportedArtifact(
            name=shown.name,
            version=shown.version,
            media_type=shown.file.media_type,
            size=shown.file.size,
            hash=shown.file.hash,
        )
        for shown in newest.values()
    )


def _list_speakers(state: State) -> tuple[str, ...]:
    """Return the agents that spoke, in order; () if there was no handoff."""
    if not state.run_started.handoffs:
        return ()
    first = state.run_started.speaker or state.run_started.agent
    names = [call.agent or state.run_started.agent for call in state.calls]
    speakers = [name for name, _ in groupby([first, *names, state.speaker_name])]
    return tuple(speakers) if len(speakers) > 1 else ()


def _find_partial_work(state: State) -> str:
    """Return the agent's partial answer, or "" if it only holds texts of the runtime.

    After a side question, `evolve` puts "Back to …" before the agent's next reply. A reply that
    only makes calls then consists of that prefix alone, which is not partial work.
    """
    if state.phase == "completed":
        return ""
    said = state.output
    for message in state.messages:
        if message.role == "runtime" and message.kind in {"back", "dropped"}:
            said = said.replace(message.text, "")
    return state.output if said.strip() else ""


def _find_list_name(call: CallState) -> str | None:
    """Return the name of the list for `call`; None for a read-only call.

    The state of the undo takes precedence over the outcome of the call.
    """
    if call.undo.stage == "done":
        return "undone"
    if call.undo.stage in {"started", "failed", "unknown"}:
        return "undoing"
    if call.undo.stage == "gave_up":
        return "not_undone"
    held_only = call.call_kind == "tool" and not call.traits.undo
    if call.stage is CallStage.DONE and held_only and call.release.stage == "done":
        return "released"  # a call that also has an undo has an effect, and counts as done
    if call.stage is CallStage.DONE:
        return None if call.traits.effect is Effect.READ else "done"
    if call.call_kind == "child" and call.release.stage == "done":
        return "stopped"  # the child run has ended; its own report has the details
    # The tool ran until it asked a person, and the call ended there.
    if call.asked_from_inside and call.stage is not CallStage.FAILED:
        return "stopped"
    if call.may_have_happened or call.stage is CallStage.UNKNOWN:
        return None if call.traits.effect is Effect.READ else "unsure"
    return {
        CallStage.ABORTED: "stopped",
        CallStage.STARTED: "stopped" if call.in_undo_set else "unsure",
        CallStage.FAILED: "failed",
    }.get(call.stage, "never_started")


def _find_unanswered_notes(state: State) -> dict[str, str]:
    """Return a note for each call whose question was closed without an answer."""
    return {
        ask.call: f"not answered: {CLOSE_REASON_TEXTS[ask.close_reason]}"
        for ask in state.asks
        if ask.ask_kind == "question" and ask.close_reason in CLOSE_REASON_TEXTS
    }


def _find_note(call: CallState, list_name: str) -> str:
    """Return a note that is more precise than the journaled reason, or ""."""
    if list_name == "undone" and call.call_kind == "child":
        return "the effects of this child run; its own report lists them"
    if list_name != "stopped":
        return ""
    if call.call_kind == "child" and call.release.stage == "done":
        return "its own report has the details"
    if call.stopped_by:
        return f"stopped by {call.stopped_by}"  # before the cancel came
    # The title of the list says how the call ended.
    return call.error.removeprefix(f"{format_outcome_phrase(call)}: ")


def _make_reported_call(state: State, call: CallState, note: str = "") -> ReportedCall:
    args = "" if call.use.args is None else msgspec.json.encode(call.use.args).decode()
    begun = call.call_kind == "child" and call.attempt > 0
    return ReportedCall(
        call=call.id,
        tool=call.use.tool,
        args=shorten_to_line(args),
        note=shorten_to_line(note or call.undo.error or call.error),
        why=call.use.why,
        run=make_child_id(state.run, call.id) if begun else "",
        title=format_title(call.use),
    )
