"""A worker's figures in the exposition format of Prometheus.

Names follow its conventions: base units, and ``_total`` for counters. Labels have few values:
computations, outcomes of late records and names of user counters.
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
"""Prefix of the counters of late records; the rest of the name is the outcome."""

OWN = {
    "processed": ("records_processed", "Records and timers whose effects are durable"),
    "duplicates_dropped": ("duplicates_dropped", "Records dropped as already processed"),
    "bloom_maybes": ("bloom_maybes", "Records looked up after a positive of the Bloom filter"),
    "dead_letters": ("dead_letters", "Records and timers that failed for good"),
    "bad_rows": ("bad_rows", "Input rows that could not be read"),
}  # fmt: skip
"""The engine's counters, with the metric's name and help text."""

_process = ProcessCollector(registry=None)


def exposition(figures: Figures, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics and their content type, in the newest format that `accept` allows."""
    encode, content_type = choose_encoder(accept)
    return encode(_Moment(figures)), content_type


class _Moment(Collector):
    """The metrics of one moment, as a collector of prometheus_client."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        figures = self._figures
        yield InfoMetricFamily(
            "millwheel_worker",
            "Pipeline, worker and version",
            {"pipeline": figures.pipeline, "worker": figures.worker, "version": figures.version},
        )
        yield _gauge(
            "lease_seconds_left", "Until this worker's lease expires", figures.lease_seconds_left
        )
        fenced = "Intervals lost to another owner"
        yield CounterMetricFamily("millwheel_fenced", fenced, figures.fenced)
        yield CounterMetricFamily(
            "millwheel_commits", "Commits that are durable", figures.commits.count
        )
        yield _histogram("commit_seconds", "From sending a commit until durable", figures.commits)
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
    owned = _gauge("intervals_owned", "Key intervals this worker owns", None, "computation")
    backlog = _gauge("backlog", "Records received and not yet processed", None, "computation")
    unacked = _gauge("unacked", "Records sent and not yet acknowledged", None, "computation")
    at_work = _gauge("keys_at_work", "Keys whose user code waits", None, "computation")
    oldest = _gauge(
        "oldest_key_at_work_seconds", "How long the oldest of them waits", None, "computation"
    )
    for computation in found:
        owned.add_metric([computation.name], computation.intervals)
        backlog.add_metric([computation.name], computation.backlog)
        unacked.add_metric([computation.name], computation.unacked)
        at_work.add_metric([computation.name], computation.keys_at_work)
        oldest.add_metric([computation.name], computation.oldest_at_work_seconds)
    yield from (owned, backlog, unacked, at_work, oldest)
    open_ = _gauge(
        "bundle_open_seconds", "Time that a bundle is being delivered", None, "computation"
    )
    for computation in found:
        if computation.bundle_open_seconds is not None:
            open_.add_metric([computation.name], computation.bundle_open_seconds)
    yield open_
    yield from _flow(found)
    yield from _watermarks(figures)


def _flow(found: tuple[ComputationFigures, ...]) -> Iterator[Metric]:
    """Yield the metrics of injectors; unknown values are left out."""
    cap = _gauge("pending_cap", "Limit of unacknowledged rows", None, "computation")
    took = _gauge(
        "acknowledge_seconds", "From read to acknowledged, 95th percentile", None, "computation"
    )
    target = _gauge("latency_target_seconds", "Target of acknowledge_seconds", None, "computation")
    rows = _gauge("source_lag_rows", "Rows available and not yet read", None, "computation")
    size = _gauge("source_lag_bytes", "Bytes available and not yet read", None, "computation")
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
        "Records behind the watermark, by outcome",
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
    """Yield the watermarks, in seconds since 1970, and their lag.

    An unknown watermark is left out. After the end of the input it is +Inf, with a lag of 0.
    """
    labels = ("computation", "kind")
    time = _gauge("watermark_seconds", "Input and low watermark", None, *labels)
    lag = _gauge("watermark_lag_seconds", "Lag of the watermarks behind the clock", None, *labels)
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
