"""The report: what became of everything a run did, in words that are true at any moment."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from midrun.core.evolve.asks import BECAUSE
from midrun.core.ids import CallId, Micros, child_id
from midrun.core.journaled_text import fate, line, who
from midrun.core.state import Call, Stage, State
from midrun.core.values import Effect, Phase, Value

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Deed(Value, kw_only=True):
    """One call in the report."""

    call: CallId
    tool: str
    args: str = ""
    note: str = ""
    why: str = ""
    run: str = ""  # of a child: its own run, which has its own report

    def __str__(self) -> str:
        said = f"`{self.tool}` {self.args}".strip()
        said += f" by run {self.run}" if self.run else ""
        said += f" — {self.note}" if self.note else ""
        return f"{said} (why: {self.why})" if self.why else said


class Report(Value, kw_only=True):
    """What was done, what was undone, and what could not be; every call is in one list."""

    phase: str
    task: str
    run: str = ""
    agent: str = ""
    cancelled_by: str = ""
    cancelled_at: Micros | None = None  # when the cancel was asked for; None without one
    reason: str = ""  # of the cancel, as whoever asked for it gave it
    done: tuple[Deed, ...] = ()  # finished, and kept
    undoing: tuple[Deed, ...] = ()  # its undo is under way
    undone: tuple[Deed, ...] = ()  # in the order in which it was undone
    not_undone: tuple[Deed, ...] = ()  # the undo was tried and given up
    released: tuple[Deed, ...] = ()  # what it held is given up
    stopped: tuple[Deed, ...] = ()  # stopped midway; may have taken effect in part
    unsure: tuple[Deed, ...] = ()  # nobody knows whether it happened
    failed: tuple[Deed, ...] = ()
    never_started: tuple[Deed, ...] = ()
    still_held: tuple[Deed, ...] = ()  # could not be released
    partial: str = ""

    @property
    def clean(self) -> bool:
        """Nothing was left behind that should be gone; never while it is being undone."""
        if self.phase == Phase.CANCELLING or self.undoing:
            return False
        return not (self.not_undone or self.unsure or self.still_held)

    def __str__(self) -> str:
        parts = [
            f"# {self.task}",
            "",
            f"The run is {self.phase}.",
            "",
            *self._particulars(),
            "",
        ]
        for title, deeds in (
            ("Done and kept", self.done),
            ("Being undone", self.undoing),
            ("Undone", self.undone),
            ("Could not be undone", self.not_undone),
            ("Released", self.released),
            ("Stopped midway", self.stopped),
            ("Unsure whether it happened", self.unsure),
            ("Failed", self.failed),
            ("Never started", self.never_started),
            ("Could not be released", self.still_held),
        ):
            parts += _section(title, deeds)
        if self.partial:
            parts += ["## Partial work", "", self.partial, ""]
        return "\n".join(parts)

    def _particulars(self) -> Iterator[str]:
        """Give what tells this run from any other, and who ended it, when and why."""
        if self.run:
            yield f"- Run: {self.run}" + (f", of agent {self.agent}" if self.agent else "")
        if self.cancelled_at is not None:
            at = _EPOCH + timedelta(microseconds=self.cancelled_at)
            by = f", by {_asker(self.cancelled_by)}" if self.cancelled_by else ""
            yield f"- Cancel asked for: {at:%Y-%m-%d %H:%M:%S} UTC{by}"
        if self.reason:
            yield f"- Reason: {self.reason}"


def _asker(actor: str) -> str:
    run = actor.removeprefix("run:")
    return actor if run == actor else f"{who(actor)}, {run}"


def _section(title: str, deeds: tuple[Deed, ...]) -> Iterable[str]:
    """The first three are always there: a missing list could mean nothing, or forgotten."""
    if deeds:
        return [f"## {title}", "", *(f"- {deed}" for deed in deeds), ""]
    always = title in {"Done and kept", "Undone", "Could not be undone"}
    return [f"## {title}", "", "Nothing.", ""] if always else []


def report(state: State) -> Report:
    """Return what became of the run's tool calls so far, or in the end."""
    lists: dict[str, list[Deed]] = {}
    unanswered = _unanswered(state)
    for call in state.calls:
        if call.call_kind == "model":
            continue
        if (name := _belongs(call)) is not None:
            note = unanswered.get(call.id, "") if name == "stopped" else ""
            lists.setdefault(name, []).append(_deed(state, call, note or _note(call, name)))
        if call.release.stage == "gave_up":
            lists.setdefault("still_held", []).append(_deed(state, call, call.release.error))
    closed = {call.id: call.closed for call in state.calls}
    lists.get("undone", []).sort(key=lambda deed: -closed[deed.call])  # as it was undone
    found = {name: tuple(deeds) for name, deeds in lists.items()}
    cancel = state.cancel
    return Report(
        phase=state.phase,
        task=line(state.started.task),
        run=state.run,
        agent=state.started.agent,
        cancelled_by=cancel.by if cancel else "",
        cancelled_at=state.cancelled_on if cancel else None,
        reason=line(cancel.reason) if cancel else "",
        partial=_partial(state),
        **found,
    )


def _partial(state: State) -> str:
    """Return what the agent had said when it was ended; the runtime's own words are no work.

    A reply begins with "Back to …" after a side question. One that then only made calls says
    nothing else.
    """
    if state.phase == "completed":
        return ""
    said = state.output
    for message in state.messages:
        if message.role == "runtime" and message.kind in {"back", "dropped"}:
            said = said.replace(message.text, "")
    return state.output if said.strip() else ""


def _belongs(call: Call) -> str | None:
    """Return the list that `call` belongs in; None for one that only read."""
    if call.undo.stage == "done":
        return "undone"
    if call.undo.stage in {"started", "failed", "unknown"}:
        return "undoing"
    if call.undo.stage == "gave_up":
        return "not_undone"
    held_only = call.call_kind == "tool" and not call.traits.undo
    if call.stage is Stage.DONE and held_only and call.release.stage == "done":
        return "released"  # with an undo it has an effect besides, which is kept
    if call.stage is Stage.DONE:
        return None if call.traits.effect is Effect.READ else "done"
    if call.call_kind == "child" and call.release.stage == "done":
        return "stopped"  # whatever it was at, its own run has ended it and says so
    if call.entered and call.stage is not Stage.FAILED:
        return "stopped"
    if call.maybe or call.stage is Stage.UNKNOWN:
        return None if call.traits.effect is Effect.READ else "unsure"
    return {
        Stage.ABORTED: "stopped",
        Stage.STARTED: "stopped" if call.doomed else "unsure",
        Stage.FAILED: "failed",
    }.get(call.stage, "never_started")


def _unanswered(state: State) -> dict[str, str]:
    """Return why nobody answered, for each call whose question was closed without an answer."""
    return {
        ask.call: f"not answered: {BECAUSE[ask.closed]}"
        for ask in state.asks
        if ask.ask_kind == "question" and ask.closed in BECAUSE
    }


def _note(call: Call, belongs: str) -> str:
    """Return what is truer of a call than the words it was sealed with, if anything is."""
    if belongs == "undone" and call.call_kind == "child":
        return "what it had done, if anything"  # its own journal knows; this one does not
    if belongs != "stopped":
        return ""
    if call.call_kind == "child" and call.release.stage == "done":
        return "its own report says what it did and undid"
    if call.stopped_by:
        return f"stopped by {call.stopped_by}"  # and not by the cancel that came after
    return call.error.removeprefix(f"{fate(call)}: ")  # the list's title has said so


def _deed(state: State, call: Call, note: str = "") -> Deed:
    args = "" if call.use.args is None else msgspec.json.encode(call.use.args).decode()
    begun = call.call_kind == "child" and call.attempt > 0
    return Deed(
        call=call.id,
        tool=call.use.tool,
        args=line(args),
        note=line(note or call.undo.error or call.error),
        why=call.use.why,
        run=child_id(state.run, call.id) if begun else "",
    )
