"""``millwheel status --http``: the pipelines of a store over HTTP, whether workers live or not.

::

    /healthz   200 while the store answers; otherwise 503 with the reason
    /metrics   metrics of all pipelines for Prometheus, named millwheel_store_...
    /status    the same as `millwheel status --json`

Dead workers export no figures, so alerts need these. Read-only, and guarded as a worker's endpoint
is (`http_access`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import NamedTuple

import msgspec
from msgspec.structs import replace
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from millwheel.core.redaction import HIDDEN_VALUE, redacts, shown_key, without_key
from millwheel.errors import MillwheelError
from millwheel.services import http_server
from millwheel.services.endpoint import Endpoint
from millwheel.services.http_access import Access
from millwheel.services.http_server import HttpServer, Response
from millwheel.services.metrics import Families
from millwheel.store.console.inspection import UNKNOWN, Holder, Operating, PipelineStatus, inspect

PATHS = ("/healthz", "/metrics", "/status")

LOOK_SECONDS = 1.0
"""A look serves further requests for this time."""


class StoreLook(NamedTuple):
    status: PipelineStatus
    operating: Operating = UNKNOWN


def look(url: str, pipeline: str | None) -> list[StoreLook]:
    with inspect(url) as inspection:
        names = [inspection.choose(pipeline)] if pipeline else inspection.pipelines()
        found = []
        for name in names:
            status = inspection.status(name)
            operating = inspection.operating(name) if status.schema_current else UNKNOWN
            found.append(StoreLook(status, operating))
        return found


def _shown(status: PipelineStatus) -> PipelineStatus:
    """A status for a page, where keys are redacted if they are in logs; errors quote them."""
    if not redacts():
        return status
    computations = [replace(one, holder=_without_key(one.holder)) for one in status.computations]
    ends = [replace(one, error=HIDDEN_VALUE, item=None, key=None) for one in status.ends]
    return replace(status, computations=computations, ends=ends)


def _without_key(holder: Holder | None) -> Holder | None:
    if holder is None:
        return None
    key = holder.key
    return replace(
        holder,
        key=None if key is None else shown_key(tuple(key) if isinstance(key, list) else key),
        what=without_key(holder.what),
        root=without_key(holder.root),
    )


class StoreAnswers:
    """Answers requests for `PATHS`, from one look a second.

    Args:
        look: looks at the pipelines; called in a thread.
    """

    def __init__(self, look: Callable[[], list[StoreLook]]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._found: list[StoreLook] = []
        self._looked = float("-inf")

    async def answer(self, path: str, accept: str) -> Response:
        path = path.partition("?")[0]
        if path not in PATHS:
            known = ", ".join(PATHS)
            return Response.text(HTTPStatus.NOT_FOUND, f"not found; available: {known}")
        try:
            found = await asyncio.to_thread(self._recent)
        except MillwheelError as error:
            return Response.text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        if path == "/metrics":
            encode, content_type = choose_encoder(accept)
            return Response(HTTPStatus.OK, encode(StoreMetrics(found)), content_type)
        if path == "/status":
            body = msgspec.json.encode({"pipelines": [_shown(one.status) for one in found]})
            return Response(HTTPStatus.OK, body + b"\n", "application/json")
        return Response.text(HTTPStatus.OK, "ok")

    def _recent(self) -> list[StoreLook]:
        with self._lock:
            if time.monotonic() - self._looked > LOOK_SECONDS:
                self._found = self._look()
                self._looked = time.monotonic()
            return self._found


class StoreEndpoint:
    """Serves `StoreAnswers` on an address of its own."""

    def __init__(self, look: Callable[[], list[StoreLook]], address: Endpoint) -> None:
        self._answers = StoreAnswers(look)
        self.address = address
        self._access = Access.from_environment(address)
        self._server: HttpServer | None = None

    @property
    def url(self) -> str:
        return f"{self._access.scheme}://{self.address}"

    def start(self) -> None:
        listener = self.address.listen("--http", http_server.WAITING_CONNECTIONS)
        self.address = Endpoint(self.address.host, listener.getsockname()[1])
        self._server = HttpServer(listener, self._answers.answer, self._access)
        self._server.start()

    def stop(self) -> None:
        """Does not wait for responses in progress."""
        if self._server is not None:
            self._server.stop()


class StoreMetrics(Collector):
    def __init__(self, found: list[StoreLook]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for one in self._found:
            for family in _metrics(one):
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples += family.samples
        yield from families.values()


def _metrics(one: StoreLook) -> Iterator[Metric]:
    status, operating, of = one.status, one.operating, Families(one.status.name)
    gauge = of.gauge
    running = [worker for worker in status.workers if worker.state == "running"]
    alive = {worker.id for worker in running}
    free = sum(interval.owner not in alive for interval in status.intervals)
    yield gauge("store_schema_current", "1: this code can read the schema; otherwise migrate it",
                (),
                [((), float(status.schema_current))])  # fmt: skip
    yield gauge("store_complete", "1: all input is processed, and event time has ended", (),
                [((), float(status.complete))])  # fmt: skip
    yield gauge("store_workers", "Workers with a valid lease", (), [((), len(running))])
    yield gauge("store_intervals_unowned", "Key intervals without a live owner", (), [((), free)])
    yield gauge("store_open_requests", "Requests of operators that are not carried out yet", (),
                [((), operating.open_requests)])  # fmt: skip
    yield gauge("store_disk_bytes", "Bytes of tables and indexes, by kind", ("kind",),
                [((kind,), size) for kind, size in sorted(operating.disk.items())])  # fmt: skip
    yield gauge("store_dead_rows", "Former versions of rows that are not removed yet, by kind",
                ("kind",),
                [((kind,), rows) for kind,
                 rows in sorted(operating.dead_rows.items())])  # fmt: skip
    yield gauge("store_oldest_snapshot_seconds",
                "Age of the oldest snapshot, which keeps dead rows", (),
                [((), operating.snapshot_seconds)])  # fmt: skip
    each = status.computations
    yield of.each("store_backlog_records", "Records that wait for the computation",
                  [(c.name, c.backlog) for c in each])  # fmt: skip
    yield of.each("store_dead_letters_kept", "Dead letters that are not retried or discarded",
                  [(c.name, c.dead_letters_kept) for c in each])  # fmt: skip
    yield of.each("store_parked_keys", "Keys that stand still since a record failed",
                  [(c.name, c.parked.keys) for c in each])  # fmt: skip
    yield of.each("store_parked_records", "Records that wait in parked keys",
                  [(c.name, c.parked.records) for c in each])  # fmt: skip
    yield of.each("store_parked_seconds", "Time since the first of these keys was parked",
                  [(c.name, c.parked.seconds) for c in each])  # fmt: skip
    yield of.each("store_watermark_lag_seconds", "Wall time less the low watermark",
                  [(c.name, c.lag_seconds) for c in each])  # fmt: skip
    yield of.each("store_watermark_held_seconds", "Age of the holder of the low watermark",
                  [(c.name,
                    None if c.holder is None else c.holder.age_seconds) for c in each])  # fmt: skip
