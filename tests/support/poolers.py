"""PgBouncer before a server of the tests."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

SECONDS = 60

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")

needs_pgbouncer = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")

CONFIGURATION = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
admin_users = {user}
pool_mode = {mode}
default_pool_size = 20
logfile = {directory}/log
pidfile = {directory}/pid
"""


class Pooler:
    """A PgBouncer before a server.

    Args:
        url: the address of the server, by its socket, with the login that all clients get.
        lines: further settings.
    """

    def __init__(self, url: str, mode: str, *lines: str) -> None:
        server = conninfo_to_dict(url)
        self._user = server["user"]
        self._directory = Path(tempfile.mkdtemp(prefix="mw-pooler-", dir="/tmp"))
        self._account = Path(str(server["host"])).stat()  # the owner of the server's socket
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self._server, self._lines = server, lines
        self._write(mode)
        self.url = f"postgresql://{self._user}@127.0.0.1:{self.port}/{server['dbname']}"
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        assert PGBOUNCER is not None
        command = [PGBOUNCER, str(self._directory / "ini")]
        if os.getuid() == 0:  # it refuses to run as root
            command[1:1] = ["-u", pwd.getpwuid(self._account.st_uid).pw_name]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + SECONDS
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            assert self._process.poll() is None, self._process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def stop(self) -> None:
        """End it at once, with all connections."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.communicate()
            self._process = None

    def set_mode(self, mode: str) -> None:
        """Change the mode while clients are connected."""
        self._write(mode)
        admin = f"postgresql://{self._user}@127.0.0.1:{self.port}/pgbouncer"
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.pgconn.exec_(b"RELOAD")

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._directory)

    def _write(self, mode: str) -> None:
        text = CONFIGURATION.format(
            **self._server, listen=self.port, mode=mode, directory=self._directory
        )
        path = self._directory / "ini"
        path.write_text(text + "\n".join(self._lines) + "\n")
        if os.getuid() == 0:
            for each in (self._directory, path):
                os.chown(each, self._account.st_uid, self._account.st_gid)


@contextlib.contextmanager
def running_pooler(url: str, mode: str, *lines: str) -> Iterator[Pooler]:
    pooler = Pooler(url, mode, *lines)
    try:
        yield pooler
    finally:
        pooler.remove()
