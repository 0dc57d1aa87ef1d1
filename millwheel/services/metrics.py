"""A worker's figures in the words of Prometheus.

Names follow its conventions: base units, ``_total`` for what only grows. A label's values are
few: computations, and what became of late records.
"""

from __future__ import annotations

from collections.abc import Iterator

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

from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.services.figures import ComputationFigures, Distribution, Figures

LATE = "late_"
"""Begins the names of the counters of late records; the rest says what became of them."""

OWN = {
    "processed": ("records_processed", "Records and timers whose effects are durable"),
    "duplicates_dropped": ("duplicates_dropped", "Records that had been processed already"),
    "bloom_maybes": ("bloom_maybes", "Records that may have been seen, and that were looked up"),
    "dead_letters": ("dead_letters", "Records and timers given up on"),
    "bad_rows": ("bad_rows", "Rows of an input given up on"),
}  # fmt: skip
"""The engine's counters: metric and help."""

_process = ProcessCollector(registry=None)


def exposition(figures: Figures, accept: str = "") -> tuple[bytes, str]:
    """The text that Prometheus reads, in the newest form that `accept` allows; its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(_Moment(figures)), content_type


class _Moment(Collector):
    """Metrics of one moment, in the shape that the library takes."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        figures = self._figures
        yield InfoMetricFamily(
            "millwheel_worker",
            "Who this is",
            {"pipeline": figures.pipeline, "worker": figures.worker, "version": figures.version},
        )
        yield _gauge("lease_seconds_left", "Of this worker's lease", figures.lease_seconds_left)
        fenced = "Intervals that were lost to another owner"
        yield CounterMetricFamily("millwheel_fenced", fenced, figures.fenced)
        yield CounterMetricFamily(
            "millwheel_commits", "Commits known durable", figures.commits.count
        )
        yield _histogram("commit_seconds", "From sent to known durable", figures.commits)
        yield from _of_computations(figures)
        yield from _process.collect()


def _gauge(name: str, text: str, value: float | None = None, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"millwheel_{name}", text, value, labels or None)


def _histogram(name: str, text: str, found: Distribution) -> HistogramMetricFamily:
    bounds = [*map(str, found.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, found.counts), strict=True))
    return HistogramMetricFamily(f"millwheel_{name}", text, buckets, found.total)


def _of_computations(figures: Figures) -> Iterator[Metric]:
    found = figures.computations
    for counter, (name, text) in OWN.items():
        family = CounterMetricFamily(f"millwheel_{name}", text, labels=["computation"])
        for computation in found:
            family.add_metric([computation.name], computation.counters.get(counter, 0))
        yield family
    yield from _other_counters(found)
    owned = _gauge("intervals_owned", "Key intervals of this worker", None, "computation")
    backlog = _gauge("backlog", "Records that arrived and wait", None, "computation")
    unacked = _gauge("unacked", "Records sent and not acknowledged", None, "computation")
    for computation in found:
        owned.add_metric([computation.name], computation.intervals)
        backlog.add_metric([computation.name], computation.backlog)
        unacked.add_metric([computation.name], computation.unacked)
    yield from (owned, backlog, unacked)
    yield from _flow(found)
    yield from _watermarks(figures)


def _flow(found: tuple[ComputationFigures, ...]) -> Iterator[Metric]:
    """Of injectors; what is not known is left out."""
    cap = _gauge("pending_cap", "Rows that may be unacknowledged", None, "computation")
    took = _gauge("acknowledge_seconds", "Of 95 of 100 readings", None, "computation")
    target = _gauge("latency_target_seconds", "What they should take", None, "computation")
    rows = _gauge("source_lag_rows", "Rows there and not read", None, "computation")
    size = _gauge("source_lag_bytes", "Bytes there and not read", None, "computation")
    for computation in found:
        for family, value in (
            (cap, computation.pending_cap),
            (took, computation.acknowledge_seconds),
            (target, computation.latency_target_seconds),
            (rows, computation.lag_rows),
            (size, computation.lag_bytes),
        ):
            if value is not None:
                family.add_metric([computation.name], value)
    yield from (cap, took, target, rows, size)


def _other_counters(found: tuple[ComputationFigures, ...]) -> Iterator[Metric]:
    late = CounterMetricFamily(
        "millwheel_late",
        "Records behind the watermark, by what became of them",
        labels=["computation", "outcome"],
    )
    users = CounterMetricFamily(
        "millwheel_user", "Counters of user code", labels=["computation", "counter"]
    )
    for computation in found:
        for counter, total in sorted(computation.counters.items()):
            if counter.startswith(LATE):
                late.add_metric([computation.name, counter.removeprefix(LATE)], total)
            elif counter not in OWN:
                users.add_metric([computation.name, counter], total)
    yield from (late, users)


def _watermarks(figures: Figures) -> Iterator[Metric]:
    """Times since 1970. A watermark that is not known yet is left out; past the end of the input
    it is +Inf, and nothing lags."""
    labels = ("computation", "kind")
    time = _gauge("watermark_seconds", "Input and low watermark", None, *labels)
    lag = _gauge("watermark_lag_seconds", "How far behind the clock they are", None, *labels)
    for computation in figures.computations:
        kinds = {"input": computation.input_watermark, "low": computation.low_watermark}
        for kind, micros in kinds.items():
            if micros <= MIN_TIME or not computation.intervals:
                continue
            ended = micros >= MAX_TIME
            time.add_metric([computation.name, kind], float("inf") if ended else micros / 1e6)
            behind = 0.0 if ended else (figures.now - micros) / 1e6
            lag.add_metric([computation.name, kind], behind)
    yield from (time, lag)
