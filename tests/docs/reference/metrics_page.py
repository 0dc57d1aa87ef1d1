"""docs/reference/metrics.md, from the collectors that serve the metrics."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from millwheel.services.metrics import WorkerMetrics
from millwheel.services.store_endpoint import StoreLook, StoreMetrics
from millwheel.store.console.inspection import Operating
from tests.docs.reference.markdown import code, page, prose, table
from tests.support.figures import some_figures, some_status

HEAD = """
In the exposition format of Prometheus. Every metric has the label `pipeline`. A histogram has three
names, with the suffixes `_bucket`, `_sum` and `_count`. `docs/deploy/alerts.yaml` has rules, and
`docs/deploy/grafana.json` a dashboard.
"""
WORKER = """
`millwheel worker --http HOST:PORT` and `millwheel run --http HOST:PORT` serve them at `/metrics`.
Counters are of this process since it started. `process_*` metrics of the Prometheus client come
with them.
"""
STORE = """
`millwheel status --http HOST:PORT` serves them at `/metrics`, also while no worker lives.
"""


def metrics_page() -> str:
    operating = Operating(2, {"state": 100}, {"state": 3}, 5.0)
    store = StoreMetrics([StoreLook(some_status("one"), operating)])
    return page(
        "Metrics",
        prose(HEAD),
        "## Of a worker",
        prose(WORKER),
        _table(WorkerMetrics(some_figures()).collect()),
        "## Of a store",
        prose(STORE),
        _table(store.collect()),
    )


SUFFIXES = {"counter": "_total", "info": "_info"}


def _table(families: Iterable[Metric]) -> str:
    rows = [
        (
            code(each.name + SUFFIXES.get(each.type, "")),
            each.documentation,
            each.type,
            ", ".join(_labels(each)),
        )
        for each in families
        if not each.name.startswith("process_")
    ]
    return table(["metric", "meaning", "type", "labels"], rows)


def _labels(family: Metric) -> list[str]:
    names = getattr(family, "_labelnames", ())
    return [code(name) for name in names if name != "pipeline"]
