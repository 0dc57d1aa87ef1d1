"""A worker's HTTP endpoint: is it alive, is it ready, what does it count.

::

    /healthz   200 while the event loop answers; else 503
    /readyz    200 while the worker can process records; else 503, and the reason
    /metrics   for Prometheus
    /status    the same figures as JSON

Requests are answered by threads of their own, which ask the event loop and wait for a while
only. So a loop that is held up (by user code that blocks, say) is told as such, at once, and not
found out by a connection that hangs. The figures are taken in the loop: whoever makes them need not
think of threads.

It is meant for probes and a scraper on a trusted network: no encryption, no passwords, nothing can
be changed through it. It listens on the loopback address unless it is told another one.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError as FutureCancelled
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, TypeVar

import msgspec
import structlog

from millwheel.errors import UsageError
from millwheel.model import MAX_TIME, MIN_TIME, from_micros
from millwheel.services.endpoint import Endpoint
from millwheel.services.figures import ComputationFigures, Figures, Observed

T = TypeVar("T")

ANSWER_SECONDS = 2.0
"""How long the event loop, or a look whether the worker is ready, may take; a chunk of records
takes milliseconds."""

CLIENT_SECONDS = 5.0
"""How long a client may take to ask, or to take the answer."""

REQUESTS = 16
"""Answered at a time; more are hung up on."""

TEXT = "text/plain; charset=utf-8"


class HttpService:
    """Answers requests about a worker, from `start` until `stop`.

    Args:
        observed: the worker.
        address: where to listen.
    """

    def __init__(self, observed: Observed, address: Endpoint) -> None:
        self._observed = observed
        self._address = address
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> Endpoint:
        """Where it listens; with the port that was chosen, once it was started."""
        if self._server is None:
            return self._address
        return Endpoint(self._address.host, self._server.server_address[1])

    @property
    def url(self) -> str:
        """As above, to be followed by a path."""
        return f"http://{self.address}"

    async def start(self) -> None:
        """Begin to listen, for the event loop that runs.

        Raises:
            UsageError: the address cannot be listened on.
        """
        # Imported here: only who answers requests needs the library.
        from millwheel.services.metrics import exposition

        answers = _Answers(self._observed, asyncio.get_running_loop(), exposition)
        self._server = await asyncio.to_thread(_listen, self._address, answers)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="http", daemon=True
        )
        self._thread.start()
        structlog.get_logger().info("http_listening", url=self.url)

    async def stop(self) -> None:
        """Listen no longer; whoever is being answered is not waited for."""
        server, self._server = self._server, None
        if server is None:
            return
        assert self._thread is not None
        await asyncio.to_thread(server.shutdown)
        await asyncio.to_thread(self._thread.join)
        server.server_close()

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


@dataclass(frozen=True)
class _Answer:
    status: HTTPStatus
    body: bytes
    content_type: str = TEXT

    @classmethod
    def text(cls, status: HTTPStatus, text: str) -> _Answer:
        return cls(status, f"{text}\n".encode())


class _Silent(Exception):
    """The event loop did not answer in time."""


class _Answers:
    """What each path answers; called by the threads."""

    def __init__(
        self,
        observed: Observed,
        loop: asyncio.AbstractEventLoop,
        exposition: Callable[[Figures, str], tuple[bytes, str]],
    ) -> None:
        self._observed = observed
        self._loop = loop
        self._exposition = exposition
        self._paths: dict[str, Callable[[str], _Answer]] = {
            "/healthz": self._health,
            "/readyz": self._readiness,
            "/metrics": self._metrics,
            "/status": self._status,
        }

    def answer(self, path: str, accept: str) -> _Answer:
        """The answer to a GET."""
        found = self._paths.get(path.partition("?")[0])
        if found is None:
            known = ", ".join(self._paths)
            return _Answer.text(HTTPStatus.NOT_FOUND, f"there is: {known}")
        try:
            return found(accept)
        except _Silent as error:
            return _Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except Exception as error:
            structlog.get_logger().error("http_failed", path=path, exc_info=error)
            what = f"this is a bug: {type(error).__name__}: {error}"
            return _Answer.text(HTTPStatus.INTERNAL_SERVER_ERROR, what)

    def _ask(self, question: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """What the event loop says, if it says so in time."""
        asked = question()
        try:
            future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError:  # closed
            asked.close()
            raise _Silent("the event loop has ended") from None
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise _Silent(
                f"the event loop has not answered for {seconds:g} s: is user code blocking it?"
            ) from None
        except FutureCancelled:
            raise _Silent("the event loop is ending") from None

    def _health(self, accept: str) -> _Answer:
        async def nothing() -> None:
            pass

        self._ask(nothing, ANSWER_SECONDS)
        return _Answer.text(HTTPStatus.OK, "ok")

    def _readiness(self, accept: str) -> _Answer:
        async def why_not() -> str | None:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await self._observed.why_not_ready()
            except TimeoutError:
                return f"it is not known after {ANSWER_SECONDS:g} s; does the store answer?"

        reason = self._ask(why_not, 2 * ANSWER_SECONDS)
        if reason is None:
            return _Answer.text(HTTPStatus.OK, "ready")
        return _Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}")

    def _figures(self) -> Figures:
        async def figures() -> Figures:
            return self._observed.figures()

        return self._ask(figures, ANSWER_SECONDS)

    def _metrics(self, accept: str) -> _Answer:
        return _Answer(HTTPStatus.OK, *self._exposition(self._figures(), accept))

    def _status(self, accept: str) -> _Answer:
        body = msgspec.json.encode(_as_json(self._figures()))
        return _Answer(HTTPStatus.OK, body + b"\n", "application/json")


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
        "counters": figures.counters,
    }


def _time(micros: int) -> str:
    if micros >= MAX_TIME:
        return "infinity"
    return "-infinity" if micros <= MIN_TIME else from_micros(micros).isoformat()


class _Server(ThreadingHTTPServer):
    """A thread a request, up to a limit."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, family: socket.AddressFamily, address: tuple[str, int], answers: _Answers
    ) -> None:
        self.address_family = family
        self.answers = answers
        self._free = threading.BoundedSemaphore(REQUESTS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without asking a name server what this machine is called, as the library's does, and
        without sharing a port that is in use, as newer ones do."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name = str(self.server_address[0])
        self.server_port = int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nobody's business."""


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_SECONDS
    server: _Server

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        answer = self.server.answers.answer(self.path, self.headers.get("Accept", ""))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)

    def version_string(self) -> str:
        return "millwheel"

    def log_message(self, format: str, *args: Any) -> None:
        """A probe a second is no news."""


def _listen(address: Endpoint, answers: _Answers) -> _Server:
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, place = found[0]
        return _Server(family, (str(place[0]), int(place[1])), answers)
    except OSError as error:
        raise UsageError(
            f"cannot listen for HTTP on {address}: {error.strerror or error}. Give another "
            "HOST:PORT with --http; port 0 takes any that is free"
        ) from error
