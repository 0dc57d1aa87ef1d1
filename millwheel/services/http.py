"""A worker's HTTP endpoint: is it alive, is it ready, what does it count.

::

    /healthz   200 while the event loop answers; else 503
    /readyz    200 while the worker can process records; else 503, and the reason
    /metrics   for Prometheus
    /status    the same figures as JSON

Requests are answered by a thread with an event loop of its own (`http_server`), which asks the worker's
event loop and waits for a while only. So a loop that is held up (by user code that blocks, say) is
reported as such, and not by a connection that hangs. The figures are taken in the worker's loop: the
code that makes them need not think of threads.

It is meant for probes and a scraper on a trusted network: no encryption, no passwords, nothing can
be changed through it. It listens on the loopback address unless it is given another one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from types import TracebackType
from typing import Any, TypeVar

import msgspec
import structlog

from millwheel.errors import UsageError
from millwheel.model import MAX_TIME, MIN_TIME, from_micros
from millwheel.services import http_server
from millwheel.services.endpoint import Endpoint
from millwheel.services.figures import ComputationFigures, Figures, Observed
from millwheel.services.http_server import Answer, HttpServer

T = TypeVar("T")

ANSWER_SECONDS = 2.0
"""How long the worker's event loop, or a look whether the worker is ready, may take; a chunk of records
takes milliseconds."""


class HttpService:
    """Answers requests about a worker, from `start` until `stop`.

    Args:
        observed: the worker.
        address: where to listen.
    """

    def __init__(self, observed: Observed, address: Endpoint) -> None:
        self._observed = observed
        self._address = address
        self._server: HttpServer | None = None

    @property
    def address(self) -> Endpoint:
        """Where it listens; with the port that was chosen, once it was started."""
        return self._address

    @property
    def url(self) -> str:
        """As above, to be followed by a path."""
        return f"http://{self.address}"

    async def start(self) -> None:
        """Begin to listen, for the event loop that runs.

        Raises:
            UsageError: the address cannot be listened on.
        """
        # Imported here: only the endpoint needs the library.
        from millwheel.services.metrics import exposition

        answers = _Answers(self._observed, asyncio.get_running_loop(), exposition)
        listener = await asyncio.to_thread(_listen, self._address)
        self._address = Endpoint(self._address.host, listener.getsockname()[1])
        self._server = HttpServer(listener, answers.answer)
        self._server.start()
        structlog.get_logger().info("http_listening", url=self.url)

    async def stop(self) -> None:
        """Stop listening; answers that are under way are not waited for."""
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


class _Answers:
    """What each path answers; called in the server's thread."""

    def __init__(
        self,
        observed: Observed,
        loop: asyncio.AbstractEventLoop,
        exposition: Callable[[Figures, str], tuple[bytes, str]],
    ) -> None:
        self._observed = observed
        self._loop = loop
        self._exposition = exposition
        self._paths: dict[str, Callable[[str], Awaitable[Answer]]] = {
            "/healthz": self._health,
            "/readyz": self._readiness,
            "/metrics": self._metrics,
            "/status": self._status,
        }

    async def answer(self, path: str, accept: str) -> Answer:
        """The answer to a GET."""
        found = self._paths.get(path.partition("?")[0])
        if found is None:
            known = ", ".join(self._paths)
            return Answer.text(HTTPStatus.NOT_FOUND, f"there is: {known}")
        try:
            return await found(accept)
        except _Silent as error:
            return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except Exception as error:
            structlog.get_logger().error("http_failed", path=path, exc_info=error)
            what = f"this is a bug: {type(error).__name__}: {error}"
            return Answer.text(HTTPStatus.INTERNAL_SERVER_ERROR, what)

    async def _ask(self, question: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """What the worker's event loop answers, if it does so in time."""
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
            raise _Silent(
                f"the event loop has not answered for {seconds:g} s: is user code blocking it?"
            ) from None
        except asyncio.CancelledError:
            talk = asyncio.current_task()
            if talk is None or talk.cancelling():
                raise  # the connection is closed, or its time is up
            raise _Silent("the event loop is ending") from None

    async def _health(self, accept: str) -> Answer:
        async def nothing() -> None:
            pass

        await self._ask(nothing, ANSWER_SECONDS)
        return Answer.text(HTTPStatus.OK, "ok")

    async def _readiness(self, accept: str) -> Answer:
        async def why_not() -> str | None:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await self._observed.why_not_ready()
            except TimeoutError:
                return f"it is not known after {ANSWER_SECONDS:g} s; does the store answer?"

        reason = await self._ask(why_not, 2 * ANSWER_SECONDS)
        if reason is None:
            return Answer.text(HTTPStatus.OK, "ready")
        return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}")

    async def _figures(self) -> Figures:
        async def figures() -> Figures:
            return self._observed.figures()

        return await self._ask(figures, ANSWER_SECONDS)

    async def _metrics(self, accept: str) -> Answer:
        return Answer(HTTPStatus.OK, *self._exposition(await self._figures(), accept))

    async def _status(self, accept: str) -> Answer:
        body = msgspec.json.encode(_as_json(await self._figures()))
        return Answer(HTTPStatus.OK, body + b"\n", "application/json")


def _as_json(figures: Figures) -> dict[str, Any]:
    """The figures with times as in `millwheel status --json`."""
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
        "counters": figures.counters,
    }


def _time(micros: int) -> str:
    if micros >= MAX_TIME:
        return "infinity"
    return "-infinity" if micros <= MIN_TIME else from_micros(micros).isoformat()


def _listen(address: Endpoint) -> socket.socket:
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, place = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(http_server.WAITING_CONNECTIONS)
        except BaseException:
            listener.close()
            raise
        else:
            return listener
    except OSError as error:
        raise UsageError(
            f"cannot listen for HTTP on {address}: {error.strerror or error}. Give another "
            "HOST:PORT with --http; port 0 takes any that is free"
        ) from error
