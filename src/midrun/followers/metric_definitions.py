"""Definitions of all metrics, as data: the one source for Prometheus and OpenTelemetry.

A metric has its OpenTelemetry name here; the name in Prometheus follows from it by the rules of
the OpenTelemetry specification. The dashboard and the alert rules in `deploy/` may use only
metrics of this list, and a test checks that.

Labels hold names that developers and operators chose (agents, tools, models, tenants), or words
of a fixed set. No label and no metric holds a text of a run.
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


def _count(name: str, help_text: str, *labels: str, unit: str = "") -> Metric:
    return Metric(name=name, kind="counter", help=help_text, labels=labels, unit=unit)


def _define_gauge(name: str, help_text: str, *labels: str, unit: str = "") -> Metric:
    return Metric(name=name, kind="gauge", help=help_text, labels=labels, unit=unit)


def _define_histogram(
    name: str, help_text: str, *labels: str, buckets: tuple[float, ...]
) -> Metric:
    """Define a histogram of durations."""
    return Metric(
        name=name, kind="histogram", help=help_text, labels=labels, unit="s", buckets=buckets
    )


# ── counted from the entries of journals ─────────────────────────────────────────────────────

RUNS_STARTED: Final = _count("midrun.runs_started", "Runs started.", "agent")
RUNS_ENDED: Final = _count(
    "midrun.runs_ended",
    "Runs that completed, failed or were cancelled. A failed run can be resumed.",
    "agent",
    "outcome",
)
TURNS: Final = _count("midrun.turns", "Turns: replies of a model to the conversation.", "agent")
MODEL_CALLS: Final = _count(
    "midrun.model_calls", "Ended attempts of model calls.", "agent", "model", "outcome"
)
MODEL_CALL_DURATION: Final = _define_histogram(
    "midrun.model_call_duration",
    "Duration of an attempt of a model call.",
    "agent",
    "model",
    buckets=_CALL_BUCKETS,
)
MODEL_TOKENS: Final = _count(
    "midrun.model_tokens",
    "Tokens of model calls: input, output, or total if the provider reports no parts.",
    "agent",
    "model",
    "kind",
)
MODEL_COST: Final = _count(
    "midrun.model_cost",
    "Cost of model calls, by the known prices.",
    "agent",
    "model",
    unit="USD",
)
TOOL_CALLS: Final = _count(
    "midrun.tool_calls",
    "Ended attempts of tool calls and child runs.",
    "agent",
    "tool",
    "outcome",
)
TOOL_CALL_DURATION: Final = _define_histogram(
    "midrun.tool_call_duration",
    "Duration of an attempt of a tool call.",
    "tool",
    buckets=_CALL_BUCKETS,
)
ASKS_OPENED: Final = _count(
    "midrun.asks_opened",
    "Asks that were opened: questions, approvals, unknown outcomes.",
    "agent",
    "kind",
)
ASK_WAIT: Final = _define_histogram(
    "midrun.ask_wait",
    "Time from the opening of an ask to its decision by a person.",
    "kind",
    buckets=_PERSON_BUCKETS,
)
CONTROLS: Final = _count("midrun.controls", "Controls that runs accepted.", "control")
CONTROL_LATENCY: Final = _define_histogram(
    "midrun.control_latency",
    "Time from the request of a control to its effect, such as pausing to paused.",
    "control",
    buckets=_CALL_BUCKETS,
)
CAPS_REACHED: Final = _count("midrun.caps_reached", "Runs that paused at a cap.", "agent")
LEASES_LOST: Final = _count(
    "midrun.leases_lost", "Leases taken from a worker that died, froze or was cut off.", "agent"
)
UNDO_FAILURES: Final = _count(
    "midrun.undo_failures", "Failed attempts of undos and releases.", "agent", "action"
)
UNDOS_GIVEN_UP: Final = _count(
    "midrun.undos_given_up",
    "Undos and releases without a further attempt: the effect stays, as residue.",
    "agent",
    "action",
)

# By tenant. These have no label for the agent: the product of both would be too many series.
TENANT_RUNS_STARTED: Final = _count(
    "midrun.tenant_runs_started", "Runs started, by tenant.", "tenant"
)
TENANT_RUNS_ENDED: Final = _count(
    "midrun.tenant_runs_ended",
    "Runs that completed, failed or were cancelled, by tenant.",
    "tenant",
    "outcome",
)
TENANT_MODEL_TOKENS: Final = _count(
    "midrun.tenant_model_tokens", "Tokens of model calls, by tenant.", "tenant"
)
TENANT_MODEL_COST: Final = _count(
    "midrun.tenant_model_cost",
    "Cost of model calls, by the known prices, by tenant.",
    "tenant",
    unit="USD",
)

# ── read from the store ──────────────────────────────────────────────────────────────────────

RUNS: Final = _define_gauge(
    "midrun.runs", "Runs that have not ended, by phase.", "agent", "phase"
)
QUEUE_AGE: Final = _define_gauge(
    "midrun.queue_age", "Time that the longest waiting run has been queued.", "agent", unit="s"
)
RUNS_WITHOUT_WORKER: Final = _define_gauge(
    "midrun.runs_without_worker",
    "Runs that need a worker and have no live one, also those that wait for a place "
    "under a limit; counted up to 1000.",
)
ASKS_OPEN: Final = _define_gauge("midrun.asks_open", "Asks that wait for a person.", "agent")
ASK_AGE: Final = _define_gauge(
    "midrun.ask_age",
    "Time since the last entry of the run that has waited longest with an open ask.",
    "agent",
    unit="s",
)
HALTS: Final = _define_gauge("midrun.halts", "Halts in force.")
WORKERS: Final = _define_gauge("midrun.workers", "Live workers that hold at least one lease.")
WORKER_LAG: Final = _define_gauge(
    "midrun.worker_lag",
    "Delay of the event loop of the slowest worker, from its heartbeats.",
    unit="s",
)
FOLLOWER_LAG: Final = _define_gauge(
    "midrun.follower_lag",
    "Age of the oldest change of a resting run that a follower, such as a "
    "webhook, has not delivered.",
    "follower",
    unit="s",
)

# ── measured in this process ─────────────────────────────────────────────────────────────────

STORE_UP: Final = _define_gauge(
    "midrun.store_up", "1 if the last query of this process to the store succeeded, else 0."
)
APPEND_DURATION: Final = _define_histogram(
    "midrun.append_duration",
    "Duration of an append to a journal, as its writer sees it.",
    buckets=_WRITE_BUCKETS,
)
EVENT_LOOP_LAG: Final = _define_gauge(
    "midrun.event_loop_lag",
    "Longest delay of the event loop of this process since the previous reading.",
    unit="s",
)
FEED_WATCHERS: Final = _define_gauge("midrun.feed_watchers", "Open streams of this server.")
QUOTA_REFUSALS: Final = _define_gauge(
    "midrun.quota_refusals",
    "Requests that this server has refused because of a quota, since its start.",
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
        *(TENANT_RUNS_STARTED, TENANT_RUNS_ENDED, TENANT_MODEL_TOKENS, TENANT_MODEL_COST),
        *(RUNS, QUEUE_AGE, RUNS_WITHOUT_WORKER, ASKS_OPEN, ASK_AGE, HALTS, WORKERS),
        *(WORKER_LAG, FOLLOWER_LAG, STORE_UP, APPEND_DURATION, EVENT_LOOP_LAG, FEED_WATCHERS),
        QUOTA_REFUSALS,
    )
}
"""Every metric, by its OpenTelemetry name."""
