"""The values of the HTTP interface that no handle returns, shared by server and client.

A run has three shapes. `RunListItem` is its row in a list. `RunView` (in `values.py`) is the
run at one seq, the same for all viewers. `RunOverlay` has the facts that no journal has: who
looks, at what time, which workers are alive, which halt covers the run. A surface lays it over
the view: its fields replace the fields of the view that have the same name.
"""

from midrun.core.ids import AskId, Epoch, Micros, RunId, Seq
from midrun.core.values import Json, Phase, Value
from midrun.ports.audit import AuditEntry
from midrun.ports.store import HaltRecord
from midrun.runs.turns import TurnView
from midrun.runs.values import ArtifactView, OpenAsk, Receipt, RunView
from midrun.text.buttons import Button
from midrun.text.phrases import EntryText
from midrun.text.status import StatusLine

# ── runs ──────────────────────────────────────────────────────────────────────────────────


class RunListItem(Value, kw_only=True):
    """A run in a list, as the viewer sees it now.

    `elapsed` grows while the run is `working`.
    """

    run_id: RunId
    seq: Seq
    head_hash: str
    phase: Phase
    agent: str
    task: str  # cut to a line
    thread: str
    labels: tuple[str, ...]
    parent: RunId
    attention: str  # the reason why a person is needed: ask, cap, failed, residue, or ""
    asks: int
    step: int
    holder: str  # the worker that has the lease, or ""
    epoch: Epoch
    wake_at: Micros | None
    started_at: Micros
    changed_at: Micros
    status: StatusLine
    button: Button  # the one button of a list: pause, keep running or resume
    elapsed: float = 0.0  # seconds at work
    working: bool = False
    cost_usd: float = 0.0
    position: str = ""  # "plan 4/7", "plan 3/7 done", "turn 4"
    output: str = ""  # the beginning of its answer, as one line
    needs_you: bool = False  # the run needs a person, and the viewer may act on it


class RunPage(Value, kw_only=True):
    """A page of runs. `counts` is runs per phase, for callers who may see all runs."""

    items: tuple[RunListItem, ...]
    next_cursor: str
    counts: dict[str, int]


class DeletedCount(Value, kw_only=True):
    """The number of runs that a request has deleted; `more` if others may match, too."""

    deleted: int
    more: bool


class RunOverlay(Value, kw_only=True):
    """The viewer's overlay of a run at `seq`, at the time `now`.

    `status`, `controls` and `elapsed` replace those of the view. `elapsed` grows while the run
    is `working`. `worker_lost` is true if a worker holds the lease and its heartbeat is
    overdue; `worker_silent_since` is a lower bound of that time. `halt` is the halt that covers
    the run, if any, also before the worker has noticed it and when no worker drives the run.
    """

    seq: Seq
    now: Micros
    you: str
    role: str
    status: StatusLine
    controls: dict[str, Button]
    decidable_asks: tuple[AskId, ...]  # the open asks that the viewer may decide
    elapsed: float
    working: bool
    worker_lost: bool
    worker_silent_since: Micros
    worker_count: int  # live workers
    phase_at: Micros  # the time at which the run entered its phase
    phase_reason: str
    halt: HaltRecord | None = None


class RunUpdate(Value, kw_only=True):
    """A change of a run, as the feed sends it to a page.

    `run` has the fields of `RunView` that differ from the update before; a client that has none
    gets all. `turns` are the turns that are new or have changed, at first the newest.
    """

    seq: Seq
    run: Json
    overlay: RunOverlay
    turns: tuple[TurnView, ...]


class TurnPage(Value, kw_only=True):
    """A page of turns, oldest first; `total` counts all turns of the run."""

    items: tuple[TurnView, ...]
    total: int


class ArtifactPage(Value, kw_only=True):
    """All versions of the artifacts of a run, oldest first."""

    items: tuple[ArtifactView, ...]


class AskPage(Value, kw_only=True):
    """A page of open asks."""

    items: tuple[OpenAsk, ...]
    next_cursor: str


class AuditPage(Value, kw_only=True):
    """A page of the audit trail. An empty `next_cursor` means that it is the last one."""

    items: tuple[AuditEntry, ...]
    next_cursor: str


# ── controls ──────────────────────────────────────────────────────────────────────────────


class CommandReceipt(Value, kw_only=True):
    """The id of a command and its receipt."""

    id: str
    receipt: Receipt


class ControlReply(Value, kw_only=True):
    """The command that a control became, and the run as it is now.

    A caller who may decide an ask but may not see its run gets the command only.
    """

    command: CommandReceipt
    run: RunView | None = None
    overlay: RunOverlay | None = None


# ── feeds ─────────────────────────────────────────────────────────────────────────────────


class FeedEvent(Value, kw_only=True):
    """An entry on the wire. `data` is the entry, `text` describes it for people.

    `hash` is the hash of the chain at its seq.
    """

    seq: Seq
    type: str
    ts: Micros
    run_id: RunId
    by: str = ""
    epoch: Epoch | None = None
    hash: str
    text: EntryText
    data: Json


class EventPage(Value, kw_only=True):
    """A page of events. `next_after` is the `after` of the next page, if there is `more`."""

    items: tuple[FeedEvent, ...]
    next_after: int
    more: bool


class RunDeleted(Value, kw_only=True):
    """An event in the stream of all runs: this run was deleted."""

    run_id: RunId


class StreamEnd(Value, kw_only=True):
    """The last event of a stream: the run has ended, and the client need not reconnect."""

    phase: Phase
    seq: int


class StreamReset(Value, kw_only=True):
    """The client's `after` is beyond the journal's end; the stream starts from the beginning.

    This happens, for example, after the store was restored from a backup.
    """

    after: int
    seq: int


# ── sessions ──────────────────────────────────────────────────────────────────────────────


class SessionActor(Value, kw_only=True):
    """The actor of a credential."""

    name: str
    role: str
    tenant: str = ""
    teams: tuple[str, ...] = ()


class SessionItem(SessionActor, kw_only=True):
    """A signed-in browser. `id` names it; `is_own` marks the session of the request."""

    id: str
    opened_at: Micros
    expires_at: Micros
    is_own: bool = False


class SessionList(Value, kw_only=True):
    """The open sessions that the answering process knows."""

    items: tuple[SessionItem, ...]


class EndedSessions(Value, kw_only=True):
    """The number of sessions that were ended."""

    ended: int
