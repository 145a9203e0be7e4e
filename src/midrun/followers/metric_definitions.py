"""Definitions of all metrics, as data: the one source for Prometheus and OpenTelemetry.

A metric has its OpenTelemetry name here; the name in Prometheus follows from it by the rules of
the OpenTelemetry specification. The dashboard and the alert rules in `deploy/` may use only
metrics of this list, and a test checks that.

Labels hold names that developers and operators chose (agents, tools, models), or words of a
fixed set. No label and no metric holds a text of a run.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from msgspec import Struct

MetricKind = Literal["counter", "gauge", "histogram"]

PROMETHEUS_UNITS: Final = {"s": "_seconds", "USD": "_usd", "": ""}
"""Unit of a metric → its suffix in Prometheus."""


class Metric(Struct, frozen=True, kw_only=True):
    """The definition of one metric. `buckets` are the upper bounds of a histogram."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus; the series of a histogram add `_bucket`, `_sum`, `_count`."""
        suffix = "_total" if self.kind == "counter" else ""
        return self.name.replace(".", "_") + PROMETHEUS_UNITS[self.unit] + suffix


class Measurement(Struct, frozen=True):
    """One value of a metric: an increment, an observation, or the reading of a gauge.

    `labels` are in the order of the definition.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float


_WRITE_BUCKETS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
_CALL_BUCKETS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_PERSON_BUCKETS: Final = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0, 604800.0)

# ── counted from the entries of journals ─────────────────────────────────────────────────────

RUNS_STARTED: Final = Metric(
    name="midrun.runs_started", kind="counter", help="Runs started.", labels=("agent",)
)
RUNS_ENDED: Final = Metric(
    name="midrun.runs_ended",
    kind="counter",
    help="Runs that completed, failed or were cancelled. A failed run can be resumed.",
    labels=("agent", "outcome"),
)
TURNS: Final = Metric(
    name="midrun.turns",
    kind="counter",
    help="Turns: replies of a model to the conversation.",
    labels=("agent",),
)
MODEL_CALLS: Final = Metric(
    name="midrun.model_calls",
    kind="counter",
    help="Ended attempts of model calls.",
    labels=("agent", "model", "outcome"),
)
MODEL_CALL_DURATION: Final = Metric(
    name="midrun.model_call_duration",
    kind="histogram",
    help="Duration of an attempt of a model call.",
    labels=("agent", "model"),
    unit="s",
    buckets=_CALL_BUCKETS,
)
MODEL_TOKENS: Final = Metric(
    name="midrun.model_tokens",
    kind="counter",
    help="Tokens of model calls: input, output, or total if the provider reports no parts.",
    labels=("agent", "model", "kind"),
)
MODEL_COST: Final = Metric(
    name="midrun.model_cost",
    kind="counter",
    help="Cost of model calls, by the known prices.",
    labels=("agent", "model"),
    unit="USD",
)
TOOL_CALLS: Final = Metric(
    name="midrun.tool_calls",
    kind="counter",
    help="Ended attempts of tool calls and child runs.",
    labels=("agent", "tool", "outcome"),
)
TOOL_CALL_DURATION: Final = Metric(
    name="midrun.tool_call_duration",
    kind="histogram",
    help="Duration of an attempt of a tool call.",
    labels=("tool",),
    unit="s",
    buckets=_CALL_BUCKETS,
)
ASKS_OPENED: Final = Metric(
    name="midrun.asks_opened",
    kind="counter",
    help="Asks that were opened: questions, approvals, unknown outcomes.",
    labels=("agent", "kind"),
)
ASK_WAIT: Final = Metric(
    name="midrun.ask_wait",
    kind="histogram",
    help="Time from the opening of an ask to its decision by a person.",
    labels=("kind",),
    unit="s",
    buckets=_PERSON_BUCKETS,
)
CONTROLS: Final = Metric(
    name="midrun.controls",
    kind="counter",
    help="Controls that runs accepted.",
    labels=("control",),
)
CONTROL_LATENCY: Final = Metric(
    name="midrun.control_latency",
    kind="histogram",
    help="Time from the request of a control to its effect, such as pausing to paused.",
    labels=("control",),
    unit="s",
    buckets=_CALL_BUCKETS,
)
CAPS_REACHED: Final = Metric(
    name="midrun.caps_reached",
    kind="counter",
    help="Runs that paused at a cap.",
    labels=("agent",),
)
LEASES_LOST: Final = Metric(
    name="midrun.leases_lost",
    kind="counter",
    help="Leases taken from a worker that died, froze or was cut off.",
    labels=("agent",),
)
UNDO_FAILURES: Final = Metric(
    name="midrun.undo_failures",
    kind="counter",
    help="Failed attempts of undos and releases.",
    labels=("agent", "action"),
)
UNDOS_GIVEN_UP: Final = Metric(
    name="midrun.undos_given_up",
    kind="counter",
    help="Undos and releases without a further attempt: the effect stays, as residue.",
    labels=("agent", "action"),
)

# ── read from the store ──────────────────────────────────────────────────────────────────────

RUNS: Final = Metric(
    name="midrun.runs",
    kind="gauge",
    help="Runs that have not ended, by phase.",
    labels=("agent", "phase"),
)
QUEUE_AGE: Final = Metric(
    name="midrun.queue_age",
    kind="gauge",
    help="Time that the longest waiting run has been queued.",
    labels=("agent",),
    unit="s",
)
RUNS_WITHOUT_WORKER: Final = Metric(
    name="midrun.runs_without_worker",
    kind="gauge",
    help="Runs that need a worker and have no live one; counted up to 1000.",
)
ASKS_OPEN: Final = Metric(
    name="midrun.asks_open",
    kind="gauge",
    help="Asks that wait for a person.",
    labels=("agent",),
)
ASK_AGE: Final = Metric(
    name="midrun.ask_age",
    kind="gauge",
    help="Time since the last entry of the run that has waited longest with an open ask.",
    labels=("agent",),
    unit="s",
)
HALTS: Final = Metric(name="midrun.halts", kind="gauge", help="Halts in force.")
WORKERS: Final = Metric(
    name="midrun.workers", kind="gauge", help="Live workers that hold at least one lease."
)
WORKER_LAG: Final = Metric(
    name="midrun.worker_lag",
    kind="gauge",
    help="Delay of the event loop of the slowest worker, from its heartbeats.",
    unit="s",
)
FOLLOWER_LAG: Final = Metric(
    name="midrun.follower_lag",
    kind="gauge",
    help="Age of the oldest change of a resting run that a follower, such as a webhook, has "
    "not delivered.",
    labels=("follower",),
    unit="s",
)

# ── measured in this process ─────────────────────────────────────────────────────────────────

STORE_UP: Final = Metric(
    name="midrun.store_up",
    kind="gauge",
    help="1 if the last query of this process to the store succeeded, else 0.",
)
APPEND_DURATION: Final = Metric(
    name="midrun.append_duration",
    kind="histogram",
    help="Duration of an append to a journal, as its writer sees it.",
    unit="s",
    buckets=_WRITE_BUCKETS,
)
EVENT_LOOP_LAG: Final = Metric(
    name="midrun.event_loop_lag",
    kind="gauge",
    help="Longest delay of the event loop of this process since the previous reading.",
    unit="s",
)
FEED_WATCHERS: Final = Metric(
    name="midrun.feed_watchers", kind="gauge", help="Open streams of this server."
)

ACTIONS: Final = ("undo", "release")
RUN_OUTCOMES: Final = ("completed", "failed", "cancelled")


def list_zeros(agents: Iterable[str]) -> list[Measurement]:
    """Return a zero for each rare counter of `agents`, to be counted at the start.

    `increase()` of Prometheus does not see the first value of a series that did not exist
    before. Without these zeros, an alert would miss the first lost lease.
    """
    rare: Mapping[Metric, list[tuple[str, ...]]] = {
        LEASES_LOST: [()],
        CAPS_REACHED: [()],
        RUNS_STARTED: [()],
        RUNS_ENDED: [(outcome,) for outcome in RUN_OUTCOMES],
        UNDO_FAILURES: [(action,) for action in ACTIONS],
        UNDOS_GIVEN_UP: [(action,) for action in ACTIONS],
    }
    return [
        Measurement(metric, (agent, *rest), 0)
        for agent in agents
        for metric, rests in rare.items()
        for rest in rests
    ]


METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric
    for metric in (
        *(RUNS_STARTED, RUNS_ENDED, TURNS, MODEL_CALLS, MODEL_CALL_DURATION, MODEL_TOKENS),
        *(MODEL_COST, TOOL_CALLS, TOOL_CALL_DURATION, ASKS_OPENED, ASK_WAIT, CONTROLS),
        *(CONTROL_LATENCY, CAPS_REACHED, LEASES_LOST, UNDO_FAILURES, UNDOS_GIVEN_UP),
        *(RUNS, QUEUE_AGE, RUNS_WITHOUT_WORKER, ASKS_OPEN, ASK_AGE, HALTS, WORKERS),
        *(WORKER_LAG, FOLLOWER_LAG, STORE_UP, APPEND_DURATION, EVENT_LOOP_LAG, FEED_WATCHERS),
    )
}
"""Every metric, by its OpenTelemetry name."""
