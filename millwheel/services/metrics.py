"""A worker's figures in the exposition format of Prometheus.

Every metric has the label ``pipeline``, so that pipelines scraped by one job can be distinguished.
Other labels have few values: computations, outcomes of late records and names of user counters. A
counter whose values are known has a series from the start, so that its first increase is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from millwheel.core.model import MAX_TIME, MIN_TIME
from millwheel.runtime.process.durations import Distribution
from millwheel.services.worker_figures import ComputationFigures, Figures

LATE = "late_"
"""Prefix of the counters of late records; the rest of the name is the outcome."""

OUTCOMES = ("amended", "dropped", "passed_on", "sent")
"""Outcomes of late records in the library's computations; user code may count others."""

OWN = {
    "processed": ("records_processed", "Records and timers whose effects are durable"),
    "records_out": ("records_out", "Records sent, one for each reader, and rows and lines written"),
    "duplicates_dropped": ("duplicates_dropped", "Records dropped as already processed"),
    "bloom_maybes": ("bloom_maybes", "Records looked up after a positive of the Bloom filter"),
    "dead_letters": ("dead_letters", "Records and timers that failed for good"),
    "bad_rows": ("bad_rows", "Input rows that could not be read"),
    "withheld": ("withheld", "Records and lines for outside the store, dropped as outputs are off"),
}  # fmt: skip
"""The engine's counters, with the metric's name and help text."""

Sample = tuple[tuple[str, ...], float]
"""The values of a metric's labels, without that of the pipeline, and its value."""

_process = ProcessCollector(registry=None)


def exposition(figures: Figures, accept: str = "") -> tuple[bytes, str]:
    """The metrics and their content type, in the newest format that `accept` allows."""
    encode, content_type = choose_encoder(accept)
    return encode(WorkerMetrics(figures)), content_type


class Families:
    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline

    def gauge(
        self, name: str, text: str, labels: Iterable[str], samples: Iterable[Sample]
    ) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"millwheel_{name}", text, labels=("pipeline", *labels))
        for values, value in samples:
            family.add_metric((self.pipeline, *values), value)
        return family

    def counter(
        self, name: str, text: str, labels: Iterable[str], samples: Iterable[Sample]
    ) -> CounterMetricFamily:
        family = CounterMetricFamily(f"millwheel_{name}", text, labels=("pipeline", *labels))
        for values, value in samples:
            family.add_metric((self.pipeline, *values), value)
        return family

    def histogram(
        self,
        name: str,
        text: str,
        labels: Iterable[str],
        samples: Iterable[tuple[tuple[str, ...], Distribution]],
    ) -> HistogramMetricFamily:
        family = HistogramMetricFamily(f"millwheel_{name}", text, labels=("pipeline", *labels))
        for values, found in samples:
            bounds = [*map(str, found.bounds), "+Inf"]
            buckets = list(zip(bounds, map(float, found.counts), strict=True))
            family.add_metric((self.pipeline, *values), buckets, found.total)
        return family

    def each(self, name: str, text: str, samples: Iterable[tuple[str, float | None]]) -> Metric:
        """A gauge of computations; those without a value are left out."""
        known = [((computation,), value) for computation, value in samples if value is not None]
        return self.gauge(name, text, ("computation",), known)


class WorkerMetrics(Collector):
    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._of = Families(figures.pipeline)

    def collect(self) -> Iterator[Metric]:
        figures = self._figures
        yield InfoMetricFamily(
            "millwheel_worker",
            "Pipeline, worker and version",
            {"pipeline": figures.pipeline, "worker": figures.worker, "version": figures.version},
        )
        yield self._of.gauge(
            "lease_seconds_left", "Until this worker's lease expires", (),
            [((), figures.lease_seconds_left)],
        )  # fmt: skip
        yield self._of.gauge(
            "certificate_not_after_seconds",
            "When a certificate of this worker, or its authority, expires, in seconds since 1970",
            ("use",),
            [((use,), expires) for use, expires in figures.certificates.items()],
        )
        yield self._of.counter(
            "fenced", "Intervals lost to another owner", (), [((), figures.fenced)]
        )
        yield self._of.counter(
            "commits", "Commits that are durable", (), [((), figures.commits.count)]
        )
        yield self._of.histogram(
            "commit_duration_seconds", "From sending a commit until durable", (),
            [((), figures.commits)],
        )  # fmt: skip
        yield self._of.gauge(
            "oldest_commit_seconds",
            "Time for which the oldest commit has been tried that is not durable", (),
            [((), figures.oldest_commit_seconds)],
        )  # fmt: skip
        yield self._of.counter(
            "loop_blocked_seconds", "Time for which code has blocked the event loop", (),
            [((), figures.blocked_seconds)],
        )  # fmt: skip
        yield self._of.histogram(
            "user_code_seconds",
            "Time of one call of user code, waits included; without waits, the mean of its chunk",
            ("computation",),
            [((name,), found) for name, found in figures.code.items()],
        )
        yield self._of.histogram(
            "stage_duration_seconds",
            "From the commit that produced a record until its effects are durable",
            ("computation",),
            [((name,), found) for name, found in figures.stages.items()],
        )
        yield self._of.histogram(
            "acknowledge_duration_seconds",
            "From reading rows until their effects are durable at all readers",
            ("computation",),
            [((name,), found) for name, found in figures.acknowledgements.items()],
        )
        yield from self._of_computations()
        yield from self._of_injectors()
        yield from self._watermarks()
        yield from _process.collect()

    # -- parts ------------------------------------------------------------------------------

    def _of_computations(self) -> Iterator[Metric]:
        found = self._figures.computations
        for counter, (name, text) in OWN.items():
            samples = [((c.name,), c.counters.get(counter, 0)) for c in found]
            yield self._of.counter(name, text, ("computation",), samples)
        yield self._of.counter(
            "late", "Records behind the watermark, by outcome", ("computation", "outcome"),
            _late(found)
        )  # fmt: skip
        yield self._of.counter(
            "user", "Counters of user code", ("computation", "counter"), _of_users(found)
        )
        yield self._of.each(
            "intervals_owned",
            "Key intervals this worker owns",
            [(c.name, c.intervals) for c in found],
        )
        yield self._of.each(
            "backlog_records",
            "Records received, with effects that are not durable yet",
            [(c.name, c.backlog) for c in found],
        )
        yield self._of.each(
            "unacked_records",
            "Records sent and not yet acknowledged",
            [(c.name, c.unacked) for c in found],
        )
        yield self._of.each(
            "keys_at_work", "Keys whose user code waits", [(c.name, c.keys_at_work) for c in found]
        )
        yield self._of.each(
            "oldest_key_at_work_seconds",
            "How long the oldest of them waits",
            [(c.name, c.oldest_at_work_seconds) for c in found],
        )
        yield self._of.each(
            "bundle_open_seconds",
            "Time that a bundle is being delivered",
            [(c.name, c.bundle_open_seconds) for c in found],
        )

    def _of_injectors(self) -> Iterator[Metric]:
        found = self._figures.computations
        yield self._of.each(
            "pending_cap_rows",
            "Limit of unacknowledged rows",
            [(c.name, c.pending_cap) for c in found],
        )
        yield self._of.each(
            "acknowledge_p95_seconds",
            "From read to acknowledged, 95th percentile of the slowest partition",
            [(c.name, c.acknowledge_seconds) for c in found],
        )
        yield self._of.each(
            "latency_target_seconds",
            "Target of acknowledge_p95_seconds",
            [(c.name, c.latency_target_seconds) for c in found],
        )
        yield self._of.each(
            "source_lag_rows",
            "Rows available and not yet read",
            [(c.name, c.lag_rows) for c in found],
        )
        yield self._of.each(
            "source_lag_bytes",
            "Bytes available and not yet read",
            [(c.name, c.lag_bytes) for c in found],
        )

    def _watermarks(self) -> Iterator[Metric]:
        """The watermarks, in seconds since 1970, and their lag.

        An unknown watermark is left out. After the end of the input it is +Inf, with a lag of 0.
        """
        times: list[Sample] = []
        lags: list[Sample] = []
        for computation in self._figures.computations:
            kinds = {"input": computation.input_watermark, "low": computation.low_watermark}
            for kind, micros in kinds.items():
                if micros <= MIN_TIME or not computation.intervals:
                    continue
                ended = micros >= MAX_TIME
                labels = (computation.name, kind)
                times.append((labels, float("inf") if ended else micros / 1e6))
                lags.append((labels, 0.0 if ended else (self._figures.now - micros) / 1e6))
        names = ("computation", "kind")
        yield self._of.gauge("watermark_seconds", "Input and low watermark", names, times)
        yield self._of.gauge(
            "watermark_lag_seconds", "Lag of the watermarks behind the clock", names, lags
        )


def _late(found: tuple[ComputationFigures, ...]) -> Iterator[Sample]:
    for computation in found:
        counted = {
            counter.removeprefix(LATE): total
            for counter, total in computation.counters.items()
            if counter.startswith(LATE)
        }
        for outcome in sorted({*OUTCOMES, *counted}):
            yield (computation.name, outcome), counted.get(outcome, 0)


def _of_users(found: tuple[ComputationFigures, ...]) -> Iterator[Sample]:
    for computation in found:
        for counter, total in sorted(computation.counters.items()):
            if not counter.startswith(LATE) and counter not in OWN:
                yield (computation.name, counter), total
