"""Serves an `Ingest` in a worker: uvicorn in a thread with an event loop of its own, so that user
code that blocks the worker's loop keeps no requests waiting."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from millwheel.core.distribution import install
from millwheel.errors import UsageError
from millwheel.ingest import Ingest
from millwheel.pipeline import Pipeline
from millwheel.services.endpoint import Endpoint
from millwheel.services.http_access import tokens_of

VARIABLE = "MILLWHEEL_INGEST_TOKENS"

SWITCH_SECONDS = 0.001
"""Longest wait for the interpreter while the worker's loop runs user code. A request waits several
times; with Python's 5 ms it took four times as long beside code that is always busy."""


@dataclass(frozen=True)
class IngestOptions:
    """Where records are taken over HTTP, and from which callers."""

    address: Endpoint
    tokens: tuple[str, ...] = field(default=(), repr=False)
    """Bearer tokens, one of which a request must have; none: no token is asked for."""

    @classmethod
    def parse(cls, address: str | None, tokens_file: Path | None) -> IngestOptions | None:
        """The options of the command line; None without an address. Tokens are the words of the
        file, or of ``MILLWHEEL_INGEST_TOKENS``.

        `UsageError` if the address is wrong, the file cannot be read, or there is no token.
        """
        if address is None:
            if tokens_file is not None:
                raise UsageError("--ingest-tokens needs --ingest HOST:PORT")
            return None
        if tokens_file is None:
            return cls(Endpoint.parse(address), tokens_of(VARIABLE))
        try:
            tokens = tokens_file.read_text("utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--ingest-tokens {tokens_file} cannot be read: {error}") from error
        if not tokens:
            raise UsageError(f"--ingest-tokens {tokens_file}: there is no token in it")
        return cls(Endpoint.parse(address), tuple(tokens))


@asynccontextmanager
async def ingesting(
    pipeline: Pipeline, url: str, options: IngestOptions | None
) -> AsyncIterator[None]:
    """See `IngestServer`."""
    if options is None:
        yield
        return
    # Without a token a page in a browser on this machine could send, as everybody on it may.
    app = Ingest(pipeline, url, tokens=options.tokens, from_pages=bool(options.tokens))
    async with IngestServer(app, options.address, has_tokens=bool(options.tokens)):
        yield


class IngestServer:
    """Serves an app; `UsageError` if uvicorn is missing, or any machine could send."""

    def __init__(self, app: Ingest, address: Endpoint, *, has_tokens: bool) -> None:
        try:
            from millwheel.services.app_server import AppServer
        except ImportError as error:
            raise UsageError(f"--ingest needs a web server: {install('http')}") from error
        unguarded = [name for name, door in app.doors.items() if door.inbox.verify is None]
        if unguarded and not has_tokens and not address.is_loopback:
            raise UsageError(
                f"--ingest {address}: anybody who reaches this address could send to "
                f"{', '.join(unguarded)}. Set tokens with --ingest-tokens FILE or {VARIABLE}, "
                "give Inbox(verify=...), or listen on 127.0.0.1 behind a proxy that "
                "authenticates senders"
            )
        self._server = AppServer(app, address, name="ingest", option="--ingest")
        self._switch_seconds = sys.getswitchinterval()

    @property
    def url(self) -> str:
        """The base URL; after `start` with the port that was chosen."""
        return self._server.url

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)
        sys.setswitchinterval(min(SWITCH_SECONDS, self._switch_seconds))

    async def stop(self) -> None:
        """Requests in progress are answered first."""
        await asyncio.to_thread(self._server.stop)
        sys.setswitchinterval(self._switch_seconds)

    async def __aenter__(self) -> IngestServer:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()
