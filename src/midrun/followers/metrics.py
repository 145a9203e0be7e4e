"""A follower that measures runs, their store and this process.

Metrics have three origins:

- **Journals.** Entries are counted as they are delivered, like webhooks: one process at a time
  leads, and the cursor in the store moves on after each part. So every entry is counted once
  over all processes and restarts; the sum over all processes is the number of entries. A
  counter starts at 0 with its process, which is the normal reset of a counter. A run that
  works is counted every `WORKING_INTERVAL_S`, a run that rests at once.
- **The store.** Gauges are read by query every `READ_INTERVAL_S`, in each process.
- **This process.** Its appends, the delay of its event loop, and the streams of its server.

A `MetricSink` passes the measurements on: see `prometheus` and `otel_metrics`. The definitions
are in `metric_definitions`, the arithmetic on entries is in `journal_metrics`.
"""

import logging
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol, runtime_checkable

import anyio

from midrun.agents.agent import Agent
from midrun.core.ids import MICROS_PER_SECOND, Seq
from midrun.core.values import Phase
from midrun.driver.journal_writer import load_run_state
from midrun.errors import MidrunError, Misconfigured, RunNotFound
from midrun.followers import metric_definitions as m
from midrun.followers.journal_metrics import JournalMeasurement, RunLabels, decode_position
from midrun.followers.span_builder import find_model_name
from midrun.followers.worker import PendingRun
from midrun.ports.follower_cursors import FollowerCursor, HasFollowerCursors
from midrun.ports.store import HasWriteTimes, RunGroup, Store
from midrun.runs.midrun import Midrun

METRICS_MAX_ATTEMPTS: Final = 10

WORKING_INTERVAL_S: Final = 15.0
"""Seconds between two counts of a run that works; one write to the store for each."""

READ_INTERVAL_S: Final = 10.0
"""Seconds between two readings of the gauges."""

LAG_PROBE_S: Final = 0.25
"""Seconds between two measurements of the event loop's delay."""

LABEL_SETS_MAX: Final = 500
"""Number of label sets of one metric; further ones are counted under the label `other`."""

WAITING_RUNS_MAX: Final = 1000

OPEN_LABELS: Final = frozenset({"agent", "tool", "model", "follower", "tenant"})
"""Labels whose values are not from a fixed set."""

_LABEL_PATTERN: Final = re.compile(r"[\w .:/@+-]{1,100}", re.ASCII)

log = logging.getLogger("midrun.followers")


class MetricSink(Protocol):
    """Passes measurements on to a monitoring system."""

    def record(self, measurement: m.Measurement) -> None:
        """Add to a counter, or observe a value of a histogram; in any thread."""
        ...

    def replace_gauges(self, readings: Sequence[m.Measurement]) -> None:
        """Replace all readings of all gauges."""
        ...


@runtime_checkable
class RendersMetrics(Protocol):
    """A sink whose metrics are fetched over HTTP."""

    def render(self) -> tuple[bytes, str]:
        """Return all metrics as text, and its content type."""
        ...


class Metrics:
    """A `Follower` that measures runs, their store and this process.

    `followers` are the names of other followers whose lag is measured. The metrics hold names
    of agents, tools, models and tenants, and no text of a run.
    """

    name = "metrics"
    attempts = METRICS_MAX_ATTEMPTS

    def __init__(
        self,
        midrun: Midrun,
        *sinks: MetricSink,
        followers: Iterable[str] = (),
        read_interval_s: float = READ_INTERVAL_S,
        working_interval_s: float = WORKING_INTERVAL_S,
    ) -> None:
        if not sinks:
            raise Misconfigured("metrics", "needs a sink: PrometheusSink() or OtelSink()")
        self.working_interval_s = working_interval_s
        self._midrun = midrun
        self._sinks = sinks
        self._followers = tuple(followers)
        self._read_interval_s = read_interval_s
        self._process_gauges: dict[m.Metric, Callable[[], float]] = {}
        self._label_sets: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
        self._loop_lag_s = 0.0

    def add_gauge(self, name: str, read: Callable[[], float]) -> None:
        """Read the gauge `name` of this process with `read`, which must return at once."""
        self._process_gauges[m.METRICS[name]] = read

    def render(self) -> tuple[bytes, str] | None:
        """Return all metrics as text and its content type; None without such a sink."""
        for sink in self._sinks:
            if isinstance(sink, RendersMetrics):
                return sink.render()
        return None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Read gauges, and time the writes of the store, while the context is open."""
        store = self._midrun.store
        for zero in m.list_zeros(self._agents):
            self._record(zero)
        if isinstance(store, HasWriteTimes):
            store.on_write = self._record_write
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._measure_loop_lag)
                tasks.start_soon(self._read_gauges_forever)
                yield
                tasks.cancel_scope.cancel()
        finally:
            if isinstance(store, HasWriteTimes):
                store.on_write = None

    # ── journals ──────────────────────────────────────────────────────────────────────────

    async def deliver(self, pending: PendingRun) -> FollowerCursor:
        """Count all entries of `pending` and return the cursor after them."""
        position = decode_position(pending.note)
        after, records = Seq(pending.records[0].seq - 1), list(pending.records)
        if 0 < position.unfinished <= after:
            start = Seq(position.unfinished - 1)
            earlier = await pending.store.read(pending.run, after=start, limit=after - start)
            records = [*earlier, *records]
        # The journal names a tool where its call is requested, which may be an earlier part.
        state = await load_run_state(pending.store, pending.run)
        models = {name: find_model_name(agent) for name, agent in self._agents.items()}
        head = pending.row.head
        labels = RunLabels(head.agent, models, state.find_call, head.tenant)
        part = JournalMeasurement(labels, position)
        part.add_records(records, after=after)
        for measurement in part.results:
            self._record(measurement)
        return FollowerCursor(run=pending.run, seq=records[-1].seq, note=part.position.encode())

    @property
    def _agents(self) -> Mapping[str, Agent]:
        return self._midrun.agents

    def _record_write(self, seconds: float) -> None:
        self._record(m.Measurement(m.APPEND_DURATION, (), seconds))

    def _record(self, measurement: m.Measurement) -> None:
        bounded = self._bound_labels(measurement)
        for sink in self._sinks:
            sink.record(bounded)

    def _bound_labels(self, measurement: m.Measurement) -> m.Measurement:
        """Replace label values that are unusual, or too many.

        Each label set is a time series, which costs memory here and in the monitoring system.
        """
        metric = measurement.metric
        labels = tuple(
            value if _LABEL_PATTERN.fullmatch(value) else "other" if value else ""
            for value in measurement.labels
        )
        known = self._label_sets[metric.name]
        if labels not in known:
            if len(known) >= LABEL_SETS_MAX:
                labels = tuple(
                    "other" if name in OPEN_LABELS else value
                    for name, value in zip(metric.labels, labels, strict=True)
                )
            known.add(labels)
        return m.Measurement(metric, labels, measurement.value)

    # ── gauges ────────────────────────────────────────────────────────────────────────────

    async def _measure_loop_lag(self) -> None:
        while True:
            due = anyio.current_time() + LAG_PROBE_S
            await anyio.sleep_until(due)
            self._loop_lag_s = max(self._loop_lag_s, anyio.current_time() - due)

    async def _read_gauges_forever(self) -> None:
        was_up = True
        while True:
            try:
                readings = await self._read_store()
                is_up = True
            except MidrunError as error:
                readings, is_up = [], False
                level = logging.WARNING if was_up else logging.DEBUG
                log.log(level, "metrics: cannot read the store: %s", error)
            was_up = is_up
            readings.append(m.Measurement(m.STORE_UP, (), float(is_up)))
            self._replace_gauges([*readings, *self._read_process()])
            await anyio.sleep(self._read_interval_s)

    def _replace_gauges(self, readings: Iterable[m.Measurement]) -> None:
        # Label sets that became equal are added up, as in `midrun_runs{agent="other"}`.
        totals: dict[tuple[m.Metric, tuple[str, ...]], float] = defaultdict(float)
        for reading in map(self._bound_labels, readings):
            totals[reading.metric, reading.labels] += reading.value
        bounded = [m.Measurement(*key, value) for key, value in totals.items()]
        for sink in self._sinks:
            sink.replace_gauges(bounded)

    def _read_process(self) -> list[m.Measurement]:
        lag, self._loop_lag_s = self._loop_lag_s, 0.0
        readings = [m.Measurement(m.EVENT_LOOP_LAG, (), lag)]
        readings += [
            m.Measurement(metric, (), read()) for metric, read in self._process_gauges.items()
        ]
        return readings

    async def _read_store(self) -> list[m.Measurement]:
        store = self._midrun.store
        groups = await store.count_open_runs()
        undriven = await store.list_drivable(limit=WAITING_RUNS_MAX)
        lags = (await store.list_holders()).values()
        halts = await store.list_halts()
        return [
            *_measure_groups(groups, self._midrun.now()),
            m.Measurement(m.RUNS_WITHOUT_WORKER, (), len(undriven)),
            m.Measurement(m.HALTS, (), len(halts)),
            m.Measurement(m.WORKERS, (), len(lags)),
            m.Measurement(m.WORKER_LAG, (), max(lags, default=0.0)),
            *[
                m.Measurement(
                    m.FOLLOWER_LAG, (name,), await self._read_follower_lag(store, name)
                )
                for name in self._followers
            ],
        ]

    async def _read_follower_lag(self, store: Store, follower: str) -> float:
        assert isinstance(store, HasFollowerCursors)  # checked by `following`
        behind = await store.follower_cursors().list_behind(follower, limit=1)
        try:
            row = await store.get_row(behind[0].run) if behind else None
        except RunNotFound:  # deleted in between
            row = None
        return 0.0 if row is None else _compute_age_s(row.changed_at, self._midrun.now())


def _measure_groups(groups: Sequence[RunGroup], now: int) -> list[m.Measurement]:
    """Return the gauges of runs by agent."""
    readings: list[m.Measurement] = []
    asks: defaultdict[str, int] = defaultdict(int)
    oldest_ask: dict[str, int] = {}
    for group in groups:
        agent = group.agent
        readings.append(m.Measurement(m.RUNS, (agent, group.phase), group.runs))
        if group.phase is Phase.QUEUED:
            age = _compute_age_s(group.oldest_change, now)
            readings.append(m.Measurement(m.QUEUE_AGE, (agent,), age))
        asks[agent] += group.asks
        if group.oldest_asking is not None:
            oldest_ask[agent] = min(oldest_ask.get(agent, now), group.oldest_asking)
    readings += [m.Measurement(m.ASKS_OPEN, (agent,), count) for agent, count in asks.items()]
    readings += [
        m.Measurement(m.ASK_AGE, (agent,), _compute_age_s(at, now))
        for agent, at in oldest_ask.items()
    ]
    return readings


def _compute_age_s(at: int, now: int) -> float:
    return max(0.0, (now - at) / MICROS_PER_SECOND)
