"""Measure the entries of a journal: a pure function whose times are those of the entries.

A journal is measured in parts, as it grows. An entry of one part may end something that an
earlier part began: a call, a pause, an ask. So the measurement of a part returns a `Position`:
the seq of the oldest entry that is still unfinished, from which the next part is read again,
and whether a worker has the lease. Entries that are only read again are not counted twice.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from midrun.core import entries as e
from midrun.core.ids import MICROS_PER_SECOND, AskId, CallId, Micros, Seq
from midrun.core.state import CallState
from midrun.core.values import Spend
from midrun.followers import metric_definitions as m

FindCall = Callable[[CallId], CallState | None]

CALL_OUTCOMES: Final[dict[type[e.Entry], str]] = {
    e.CallDone: "done",
    e.CallFailed: "failed",
    e.CallAborted: "aborted",
    e.CallUnknown: "unknown",
    e.AskOpened: "asked",
}
"""Entry that ends an attempt of a call → outcome of the attempt."""

RUN_OUTCOMES: Final[dict[type[e.Entry], str]] = {
    e.RunCompleted: "completed",
    e.RunFailed: "failed",
    e.RunCancelled: "cancelled",
}

LEASE_ENDS: Final = (
    *(e.RunPaused, e.RunWaiting, e.RunCompleted, e.RunFailed, e.RunCancelled),
    *(e.RunHalted, e.LeaseReleased),
)
"""Entries with which a worker gives the lease back."""

CONTROL_NAMES: Final[dict[type[e.Entry], str]] = {
    e.PauseRequested: "pause",
    e.RunResumed: "resume",
    e.RedirectRequested: "redirect",
    e.CancelRequested: "cancel",
    e.MessageReceived: "message",
    e.AskAnswered: "decision",
    e.TakenOver: "take_over",
    e.HandedBack: "hand_back",
    e.CapRaised: "raise_cap",
}
"""Entry of an accepted control → name of the control."""


class Position(Struct, frozen=True, omit_defaults=True):
    """The position of the measurement of one journal, kept between two parts.

    `unfinished` is the seq of the oldest entry whose end has not come, or 0.
    """

    unfinished: Seq = Seq(0)
    is_leased: bool = False

    def encode(self) -> str:
        """Return the position as the note of a cursor."""
        return msgspec.json.encode(self).decode()


def decode_position(note: str) -> Position:
    """Return the position in the note of a cursor; the first one if there is none."""
    return msgspec.json.decode(note, type=Position) if note else Position()


class RunLabels(Struct, frozen=True):
    """The names that the labels of a run's measurements need.

    `models` has the name of each agent's model. After a handoff, several agents speak in one
    run; a call is labelled with the agent that made it.
    """

    agent: str
    models: Mapping[str, str]
    find_call: FindCall
    tenant: str = ""


class _Begun(Struct, frozen=True):
    """Something that has begun and not ended: a call, an ask or a control."""

    seq: Seq
    at: Micros
    kind: str = ""


class JournalMeasurement:
    """One pass over a part of a journal. `results` has the measurements so far."""

    def __init__(self, origin: RunLabels, position: Position) -> None:
        self.results: list[m.Measurement] = []
        self._origin = origin
        self._is_leased = position.is_leased
        self._calls: dict[CallId, _Begun] = {}
        self._asks: dict[AskId, _Begun] = {}
        self._controls: dict[str, _Begun] = {}  # pause, cancel, resume
        self._texts: dict[Seq, _Begun] = {}  # redirects and messages, by their seq
        self._counts = False

    @property
    def position(self) -> Position:
        """The position after the entries so far."""
        open_now: Iterator[_Begun] = (
            begun
            for table in (self._calls, self._asks, self._controls, self._texts)
            for begun in table.values()
        )
        # A duration needs the time of its begin. The next pass reads the journal again from the
        # oldest begin without an end, and counts only the entries that are new.
        oldest = min((begun.seq for begun in open_now), default=Seq(0))
        return Position(oldest, self._is_leased)

    def add_records(self, records: Sequence[e.Record], *, after: Seq) -> None:
        """Process the next entries; count those after `after`."""
        for record in records:
            self._counts = record.seq > after
            self._add_lifecycle(record)
            self._add_control(record)
            self._add_call(record)
            self._add_ask(record)

    def _add(self, metric: m.Metric, *labels: str, value: float = 1) -> None:
        if self._counts:
            self.results.append(m.Measurement(metric, labels, value))

    def _add_duration(
        self, metric: m.Metric, begun: _Begun | None, end: Micros, *labels: str
    ) -> None:
        if begun is not None:
            self._add(metric, *labels, value=(end - begun.at) / MICROS_PER_SECOND)

    # ── the run, its lease, its undos ─────────────────────────────────────────────────────

    def _add_lifecycle(self, record: e.Record) -> None:
        entry, agent = record.entry, self._origin.agent
        match entry:
            case e.RunStarted():
                self._add(m.RUNS_STARTED, agent)
                self._add(m.TENANT_RUNS_STARTED, self._origin.tenant)
            case e.LeaseTaken():
                # The worker before it had not given the lease back. An entry that is read
                # again has changed `_is_leased` already.
                if self._counts and self._is_leased:
                    self._add(m.LEASES_LOST, agent)
            case e.CapReached():
                self._add(m.CAPS_REACHED, agent)
            case e.UndoFailed(action=action):
                self._add(m.UNDO_FAILURES, agent, action)
            case e.UndoGaveUp(action=action):
                self._add(m.UNDOS_GIVEN_UP, agent, action)
            case _:
                pass
        if self._counts:
            self._is_leased = isinstance(entry, e.LeaseTaken) or (
                self._is_leased and not isinstance(entry, LEASE_ENDS)
            )
        if (outcome := RUN_OUTCOMES.get(type(entry))) is not None:
            self._add(m.RUNS_ENDED, agent, outcome)
            self._add(m.TENANT_RUNS_ENDED, self._origin.tenant, outcome)

    # ── controls ──────────────────────────────────────────────────────────────────────────

    def _add_control(self, record: e.Record) -> None:  # noqa: C901 - one arm per kind
        entry, begun = record.entry, _Begun(record.seq, record.at)
        name = CONTROL_NAMES.get(type(entry))
        # Controls of parents, timers and the retention are not actions of people.
        if name is not None and getattr(entry, "role", "") != "system":
            self._add(m.CONTROLS, name)
        match entry:
            case e.PauseRequested() | e.CancelRequested() | e.RunResumed():
                self._controls[CONTROL_NAMES[type(entry)]] = begun
            case e.RedirectRequested():
                self._texts[record.seq] = begun
            case e.MessageReceived(urgency=urgency, due=due):
                # The sender of a message for later wants it to wait.
                if urgency != "later" and due is None:
                    self._texts[record.seq] = begun
            case e.RedirectApplied(redirect=seq):
                self._end_text(record, seq, "redirect")
            case e.MessageTaken(message=seq) | e.FramePushed(message=seq):
                self._end_text(record, seq, "message")
            case e.RedirectClosed(redirect=seq) | e.MessageClosed(message=seq):
                self._texts.pop(seq, None)
            case e.RunPaused():
                self._end_control(record, "pause")
            case e.RunCancelled():
                self._end_control(record, "cancel")
            case e.LeaseTaken():
                self._end_control(record, "resume")
            case e.PauseWithdrawn():
                self._controls.pop("pause", None)
            case _:
                pass
        if isinstance(entry, e.RunCompleted | e.RunFailed | e.RunCancelled):
            # A control that came too late has no effect, and so no latency.
            self._controls.clear()
            self._texts.clear()

    def _end_control(self, record: e.Record, name: str) -> None:
        self._add_duration(m.CONTROL_LATENCY, self._controls.pop(name, None), record.at, name)

    def _end_text(self, record: e.Record, seq: Seq, name: str) -> None:
        self._add_duration(m.CONTROL_LATENCY, self._texts.pop(seq, None), record.at, name)

    # ── calls ─────────────────────────────────────────────────────────────────────────────

    def _add_call(self, record: e.Record) -> None:
        entry = record.entry
        if isinstance(entry, e.CallStarted):
            kind = "summary" if entry.purpose == "condense" else entry.call_kind
            self._calls[entry.call] = _Begun(record.seq, record.at, kind)
        call: CallId | None = getattr(entry, "call", None)
        outcome = CALL_OUTCOMES.get(type(entry))
        if call is None or outcome is None:
            return
        begun = self._calls.pop(call, None)
        if begun is None:
            return  # an ask before the first attempt, or the end of an attempt without a start
        found = self._origin.find_call(call)
        agent = (found.agent if found is not None else "") or self._origin.agent
        if begun.kind in {"model", "summary"}:
            self._end_model_call(record, begun, outcome, agent)
        else:
            tool = found.use.tool if found is not None else ""
            self._add(m.TOOL_CALLS, agent, tool, outcome)
            self._add_duration(m.TOOL_CALL_DURATION, begun, record.at, tool)

    def _end_model_call(
        self, record: e.Record, begun: _Begun, outcome: str, agent: str
    ) -> None:
        model, entry = self._origin.models.get(agent, ""), record.entry
        if isinstance(entry, e.CallDone) and entry.reply is not None:
            model = entry.reply.model or model
            if begun.kind == "model":
                self._add(m.TURNS, agent)
        self._add(m.MODEL_CALLS, agent, model, outcome)
        self._add_duration(m.MODEL_CALL_DURATION, begun, record.at, agent, model)
        spent: Spend | None = getattr(entry, "spent", None)
        if spent is None:
            return
        parts = {"input": spent.input_tokens, "output": spent.output_tokens}
        for kind, tokens in (parts if any(parts.values()) else {"total": spent.tokens}).items():
            if tokens:
                self._add(m.MODEL_TOKENS, agent, model, kind, value=tokens)
        if spent.tokens:
            self._add(m.TENANT_MODEL_TOKENS, self._origin.tenant, value=spent.tokens)
        if spent.cost:  # in millionths of a dollar
            self._add(m.MODEL_COST, agent, model, value=spent.cost / 1e6)
            self._add(m.TENANT_MODEL_COST, self._origin.tenant, value=spent.cost / 1e6)

    # ── asks ──────────────────────────────────────────────────────────────────────────────

    def _add_ask(self, record: e.Record) -> None:
        match record.entry:
            case e.AskOpened(ask=ask, ask_kind=kind):
                self._asks[ask] = _Begun(record.seq, record.at, kind)
                self._add(m.ASKS_OPENED, self._origin.agent, kind)
            case e.AskAnswered(ask=ask):
                opened = self._asks.pop(ask, None)
                if opened is not None:
                    self._add_duration(m.ASK_WAIT, opened, record.at, opened.kind)
            case e.AskClosed(ask=ask):
                self._asks.pop(ask, None)
            case _:
                pass
