"""Serves an ASGI application: uvicorn with limits on its clients (`bounded_http`), in a thread with
an event loop of its own."""

from __future__ import annotations

import threading
from typing import Any

import structlog
import uvicorn

from millwheel.services.bounded_http import BoundedServer
from millwheel.services.endpoint import Endpoint

KEEP_ALIVE_SECONDS = 75
"""Lifetime of an idle connection: longer than load balancers keep theirs."""

BACKLOG = 1024
"""Length of the kernel's accept queue; the system may allow less."""

STOP_SECONDS = 5.0
"""Longest wait for requests in progress at the end."""


class AppServer:
    """Args:
    name: of the thread, and of the log event NAME_listening.
    option: that gives the address, for an error.
    prefix: of all addresses, if a proxy takes it off.
    """

    def __init__(
        self, app: Any, address: Endpoint, *, name: str, option: str, prefix: str = ""
    ) -> None:
        self.address = address
        """After `start` with the port that was chosen."""
        self._name = name
        self._option = option
        self._server = BoundedServer(
            uvicorn.Config(
                app,
                ws="none",
                lifespan="auto",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,  # no client is treated by what it says of its address
                root_path=prefix,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=int(STOP_SECONDS),
            )
        )
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def start(self) -> None:
        """`UsageError` if the address cannot be had."""
        listener = self.address.listen(self._option, BACKLOG)
        self.address = Endpoint(self.address.host, listener.getsockname()[1])
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name=self._name, daemon=True
        )
        self._thread.start()
        structlog.get_logger().info(f"{self._name}_listening", url=self.url)

    def stop(self) -> None:
        """Requests in progress are answered first."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._server.should_exit = True
            thread.join(2 * STOP_SECONDS)
