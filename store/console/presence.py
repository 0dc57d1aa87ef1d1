"""The connection of a command to a store, open for as long as the command works with it.

The last command that leaves an embedded server stops it, after a look for other connections
(`embedded.stop_if_unused`). So each command keeps one connection open from before its first
statement until after its last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import structlog
from psycopg.conninfo import make_conninfo

from millwheel.errors import MillwheelError, StoreUnavailable, UsageError
from millwheel.store import embedded
from millwheel.store.address import StoreAddress
from millwheel.store.postgres import session
from millwheel.store.postgres.statements import text_of
from millwheel.store.postgres.translation import unreached

CONNECT_SECONDS = 5

log = structlog.get_logger("millwheel.store")


class Presence:
    """A store that answers, and keeps running until `close`. Made by `present`."""

    def __init__(self, address: StoreAddress, *, create: bool) -> None:
        self.address = address
        self.directory = address.directory
        self.started = False
        self.left_running = False
        """An embedded server still runs after `close`, because another process has started or uses
        it."""
        self._connection: psycopg.Connection[Any] | None = None
        if self.directory is None:
            self.url = address.open()
            _connect(self.url, address).close()
            return
        if not create and embedded.status(self.directory).state == "absent":
            raise UsageError(
                f"there is no store in {self.directory}. Run a pipeline first, or name the store "
                "with --store or MILLWHEEL_STORE"
            )
        self.url = self._enter(self.directory)

    def _enter(self, directory: Path) -> str:
        url = self._start(directory)
        try:
            self._connection = _connect(url, self.address)
        except StoreUnavailable:  # its last user stopped it just before
            url = self._start(directory)
            self._connection = _connect(url, self.address)
        return url

    def _start(self, directory: Path) -> str:
        server = embedded.start(directory)
        self.started = self.started or not server.adopted
        return server.url

    def renew(self) -> None:
        """Start an embedded server again if it was killed, but not if it was stopped.

        Blocks; call it every few seconds while the store does not answer. `StoreError` if the
        server cannot be started now.
        """
        if self.directory is None:
            return
        if self._connection is not None:
            try:
                self._connection.execute(text_of("ping"))
            except psycopg.Error:
                self._connection.close()
                self._connection = None
            else:
                return
        status = embedded.status(self.directory)
        if status.state in ("absent", "stopping") or status.data_directory is None:
            return
        if status.state == "stopped" and not (status.data_directory / "postmaster.pid").exists():
            return  # it shut down cleanly: another process stopped it
        self._enter(self.directory)
        log.warning("store_restarted", store=str(self.directory))

    def close(self) -> None:
        """Disconnect, and stop an embedded server that this object started, unless other clients
        use it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self.directory is not None:
            self.left_running = not (self.started and embedded.stop_if_unused(self.directory))


@contextlib.contextmanager
def present(address: StoreAddress, *, create: bool = False) -> Iterator[Presence]:
    """The store of `address`, running and answering. An embedded server that it has started is
    stopped at the end.

    Args:
        create: make a store in a directory without one.

    Raises:
        UsageError: the directory holds no store, or Postgres is behind a connection pooler that
            shares sessions.
        StoreUnavailable, EmbeddedServerError: the store cannot be reached or started.
    """
    presence = Presence(address, create=create)
    try:
        yield presence
    finally:
        try:
            presence.close()
        except MillwheelError as error:  # it must not hide the outcome of the block
            log.warning("server_not_stopped", store=str(address), error=str(error))


def _connect(url: str, address: StoreAddress) -> psycopg.Connection[Any]:
    try:
        return session.connect(
            make_conninfo(url, application_name="millwheel", connect_timeout=CONNECT_SECONDS)
        )
    except psycopg.Error as error:
        raise unreached(error, f"the store {address.redacted()}") from error
