"""Metrics for OpenTelemetry: a sink that uses the meter provider of the application.

    async with (
        Midrun(…) as midrun,
        following(midrun, Metrics(midrun, OtelSink())),
    ):
        …

Counters and histograms of OpenTelemetry are told of each measurement. A gauge is different: a
reader asks for its value when it collects. Then the sink returns the newest readings, which may
be a few seconds old. It never queries the store in the thread of the reader.

The names and units are those of `metric_definitions`. A collector that converts them for
Prometheus gives the same names as `prometheus.PrometheusSink`.
"""

from collections.abc import Callable, Iterable, Sequence

from opentelemetry import metrics
from opentelemetry.metrics import (
    CallbackOptions,
    Counter,
    Histogram,
    MeterProvider,
    Observation,
)

from midrun.followers import metric_definitions as m

Observe = Callable[[CallbackOptions], Iterable[Observation]]


class OtelSink:
    """A `MetricSink` that passes all measurements to OpenTelemetry.

    `provider` replaces the global meter provider. The application sets OpenTelemetry up and
    shuts it down. Gauges are observed when a reader collects them.
    """

    def __init__(self, *, provider: MeterProvider | None = None) -> None:
        meter = metrics.get_meter("midrun", meter_provider=provider)
        self._gauges: Sequence[m.Measurement] = ()
        self._instruments: dict[str, Counter | Histogram] = {}
        for metric in m.METRICS.values():
            match metric.kind:
                case "counter":
                    self._instruments[metric.name] = meter.create_counter(
                        metric.name, metric.unit, metric.help
                    )
                case "histogram":
                    self._instruments[metric.name] = meter.create_histogram(
                        metric.name,
                        metric.unit,
                        metric.help,
                        explicit_bucket_boundaries_advisory=metric.buckets,
                    )
                case "gauge":
                    meter.create_observable_gauge(
                        metric.name, [self._make_observer(metric)], metric.unit, metric.help
                    )

    def record(self, measurement: m.Measurement) -> None:
        """Add to a counter, or record a value of a histogram."""
        instrument = self._instruments[measurement.metric.name]
        attributes = _name_labels(measurement)
        if isinstance(instrument, Histogram):
            instrument.record(measurement.value, attributes)
        else:
            instrument.add(measurement.value, attributes)

    def replace_gauges(self, readings: Sequence[m.Measurement]) -> None:
        """Replace all readings; one assignment, so a reader sees the old or the new ones."""
        self._gauges = readings

    def _make_observer(self, metric: m.Metric) -> Observe:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(reading.value, _name_labels(reading))
                for reading in self._gauges
                if reading.metric is metric
            ]

        return observe


def _name_labels(measurement: m.Measurement) -> dict[str, str]:
    return dict(zip(measurement.metric.labels, measurement.labels, strict=True))
