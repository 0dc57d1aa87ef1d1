"""Being connected to a store for as long as a command works with it.

An embedded server is nobody's child: it is ended by the last one who leaves, who finds
that out by looking for other connections (`embedded.stop_if_unused`). So whoever works
with it keeps one connection open from before the first statement until after the last.
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
from millwheel.store import embedded, session
from millwheel.store.address import StoreAddress
from millwheel.store.statements import text_of

CONNECT_SECONDS = 5

log = structlog.get_logger("millwheel.store")


class Presence:
    """A store that answers, and stays up while this is open. Made by `present`."""

    def __init__(self, address: StoreAddress, *, create: bool) -> None:
        self.address = address
        self.directory = address.directory
        self.started = False
        """Whether the embedded server runs because of us."""
        self.left_running = False
        """After the end: whether an embedded server goes on, somebody else's or in use."""
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
        """Start or adopt the server, and connect before anybody finds it unused."""
        url = self._start(directory)
        try:
            self._connection = _connect(url, self.address)
        except StoreUnavailable:  # ended by its last user, just before we came
            url = self._start(directory)
            self._connection = _connect(url, self.address)
        return url

    def _start(self, directory: Path) -> str:
        server = embedded.start(directory)
        self.started = self.started or not server.adopted
        return server.url

    def renew(self) -> None:
        """Start an embedded server again that was killed; one that was stopped stays so.

        Blocks; to be called every few seconds while waiting for the store.

        Raises:
            StoreError: it cannot be started now.
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
            return  # it ended in order: somebody stopped it
        self._enter(self.directory)
        log.warning("store_restarted", store=str(self.directory))

    def close(self) -> None:
        """Leave; end an embedded server that runs because of us, unless others use it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self.directory is not None:
            self.left_running = not (self.started and embedded.stop_if_unused(self.directory))


@contextlib.contextmanager
def present(address: StoreAddress, *, create: bool = False) -> Iterator[Presence]:
    """The store of `address`, up and answering; an embedded server is left as it was found.

    Args:
        create: make the store of a directory that has none.

    Raises:
        UsageError: the directory holds no store, or Postgres is behind a connection pooler.
        StoreUnavailable, EmbeddedServerError: it cannot be reached or started.
    """
    presence = Presence(address, create=create)
    try:
        yield presence
    finally:
        try:
            presence.close()
        except MillwheelError as error:  # no reason to hide how the block ended
            log.warning("server_not_stopped", store=str(address), error=str(error))


def _connect(url: str, address: StoreAddress) -> psycopg.Connection[Any]:
    try:
        return session.connect(
            make_conninfo(url, application_name="millwheel", connect_timeout=CONNECT_SECONDS)
        )
    except psycopg.Error as error:
        raise StoreUnavailable(
            f"the store {address.redacted()} cannot be reached: {str(error).strip()}\nCheck "
            "--store, and that Postgres is running there"
        ) from error
