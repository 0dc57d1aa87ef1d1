"""A worker's HTTP endpoint: liveness, readiness and metrics; read-only.

::

    /healthz   200 while the event loop answers; otherwise 503
    /readyz    200 while the worker can process records; otherwise 503 with the reason
    /metrics   metrics for Prometheus
    /status    the same figures as JSON

A thread with its own event loop (`http_server`) serves requests. It asks the worker's loop, which
collects the figures, and waits for a limited time: a blocked loop is reported as such.

Beyond the loopback address, all but the probes needs a token or a certificate (`http_access`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from types import TracebackType
from typing import Any, TypeVar

import msgspec
import structlog

from millwheel.core.model import MAX_TIME, MIN_TIME, from_micros
from millwheel.services import http_server
from millwheel.services.endpoint import Endpoint
from millwheel.services.http_access import Access
from millwheel.services.http_server import HttpServer, Response
from millwheel.services.worker_figures import ComputationFigures, Figures, Observed

T = TypeVar("T")

ANSWER_SECONDS = 2.0
"""Time limit for the worker's event loop to answer, and for its readiness check; a chunk of records
takes milliseconds."""


class HttpService:
    """`UsageError` if any request from outside would be answered, or the environment is wrong."""

    def __init__(self, observed: Observed, address: Endpoint) -> None:
        self._observed = observed
        self._address = address
        self._access = Access.from_environment(address)
        self._server: HttpServer | None = None

    @property
    def address(self) -> Endpoint:
        """The listening address; after `start` with the port that was chosen."""
        return self._address

    @property
    def url(self) -> str:
        return f"{self._access.scheme}://{self.address}"

    async def start(self) -> None:
        """Start listening. The running event loop is the one that `/healthz` checks.

        `UsageError` if the address cannot be had.
        """
        # Imported late: only this endpoint needs prometheus_client.
        from millwheel.services.metrics import exposition

        answers = _Routes(self._observed, asyncio.get_running_loop(), exposition)
        listener = await asyncio.to_thread(
            self._address.listen, "--http", http_server.WAITING_CONNECTIONS
        )
        self._address = Endpoint(self._address.host, listener.getsockname()[1])
        self._server = HttpServer(listener, answers.answer, self._access)
        self._server.start()
        structlog.get_logger().info("http_listening", url=self.url)

    async def stop(self) -> None:
        """Does not wait for responses in progress."""
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.stop)

    async def __aenter__(self) -> HttpService:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()


class _Silent(Exception):
    """The event loop did not answer in time."""


class _Routes:
    """Called in the server's thread."""

    def __init__(
        self,
        observed: Observed,
        loop: asyncio.AbstractEventLoop,
        exposition: Callable[[Figures, str], tuple[bytes, str]],
    ) -> None:
        self._observed = observed
        self._loop = loop
        self._exposition = exposition
        self._paths: dict[str, Callable[[str], Awaitable[Response]]] = {
            "/healthz": self._health,
            "/readyz": self._readiness,
            "/metrics": self._metrics,
            "/status": self._status,
        }

    async def answer(self, path: str, accept: str) -> Response:
        found = self._paths.get(path.partition("?")[0])
        if found is None:
            known = ", ".join(self._paths)
            return Response.text(HTTPStatus.NOT_FOUND, f"not found; available: {known}")
        try:
            return await found(accept)
        except _Silent as error:
            return Response.text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except Exception as error:
            structlog.get_logger().error("http_failed", path=path, exc_info=error)
            text = f"this is a bug: {type(error).__name__}: {error}"
            return Response.text(HTTPStatus.INTERNAL_SERVER_ERROR, text)

    async def _ask(self, question: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """Run a coroutine in the worker's event loop; `_Silent` if that has ended, or does not
        answer in time."""
        asked = question()
        try:
            future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError:  # closed
            asked.close()
            raise _Silent("the event loop has ended") from None
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            by = self._observed.blocked_by
            raise _Silent(
                f"the event loop has not answered within {seconds:g} s: "
                + ("is user code blocking it?" if by is None else f"blocked by {by}")
            ) from None
        except asyncio.CancelledError:
            handler = asyncio.current_task()
            if handler is None or handler.cancelling():
                raise  # the connection was closed or timed out
            raise _Silent("the event loop is ending") from None

    async def _health(self, accept: str) -> Response:
        async def nothing() -> None:
            pass

        await self._ask(nothing, ANSWER_SECONDS)
        return Response.text(HTTPStatus.OK, "ok")

    async def _readiness(self, accept: str) -> Response:
        async def why_not() -> str | None:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await self._observed.why_not_ready()
            except TimeoutError:
                return f"unknown after {ANSWER_SECONDS:g} s; does the store answer?"

        reason = await self._ask(why_not, 2 * ANSWER_SECONDS)
        if reason is None:
            return Response.text(HTTPStatus.OK, "ready")
        return Response.text(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}")

    async def _figures(self) -> Figures:
        async def figures() -> Figures:
            return self._observed.figures()

        return await self._ask(figures, ANSWER_SECONDS)

    async def _metrics(self, accept: str) -> Response:
        return Response(HTTPStatus.OK, *self._exposition(await self._figures(), accept))

    async def _status(self, accept: str) -> Response:
        body = msgspec.json.encode(_as_json(await self._figures()))
        return Response(HTTPStatus.OK, body + b"\n", "application/json")


def _as_json(figures: Figures) -> dict[str, Any]:
    """JSON values, with times as in `millwheel status --json`."""
    commits = figures.commits
    mean = commits.total / commits.count if commits.count else None
    return {
        "pipeline": figures.pipeline,
        "worker": figures.worker,
        "version": figures.version,
        "now": _time(figures.now),
        "lease_seconds_left": figures.lease_seconds_left,
        "fenced": figures.fenced,
        "commits": {"count": commits.count, "mean_seconds": mean},
        "computations": [_computation(computation) for computation in figures.computations],
    }


def _computation(figures: ComputationFigures) -> dict[str, Any]:
    return {
        "name": figures.name,
        "intervals": figures.intervals,
        "backlog": figures.backlog,
        "unacked": figures.unacked,
        "pending_cap": figures.pending_cap,
        "acknowledge_seconds": figures.acknowledge_seconds,
        "latency_target_seconds": figures.latency_target_seconds,
        "input_watermark": _time(figures.input_watermark),
        "low_watermark": _time(figures.low_watermark),
        "lag_rows": figures.lag_rows,
        "lag_bytes": figures.lag_bytes,
        "bundle_open_seconds": figures.bundle_open_seconds,
        "counters": figures.counters,
    }


def _time(micros: int) -> str:
    if micros >= MAX_TIME:
        return "infinity"
    return "-infinity" if micros <= MIN_TIME else from_micros(micros).isoformat()
