"""A connection pooler between here and Postgres: said in one sentence, at once, whenever it
appears."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from millwheel.errors import PooledStore, StoreUnavailable
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.store.address import StoreAddress
from millwheel.store.console.presence import present
from millwheel.store.postgres import session
from millwheel.store.postgres.store import PostgresStore
from tests.support.pipelines import QUICK, script, tally_pipeline
from tests.support.store_sites import Schema
from tests.support.values import ITEMS, items

pytestmark = pytest.mark.newest

SECONDS = 60
WORKER = str(uuid.uuid4())

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
pool_mode = {mode}
default_pool_size = 20
logfile = {directory}/log
pidfile = {directory}/pid
"""


@pytest.fixture
def pooler() -> Iterator[Callable[..., str]]:
    """Starts PgBouncer before a server; gives its URL."""
    with contextlib.ExitStack() as started:

        def start(url: str, mode: str, *lines: str) -> str:
            return started.enter_context(running_pooler(url, mode, *lines))

        yield start


@contextlib.contextmanager
def running_pooler(url: str, mode: str, *lines: str) -> Iterator[str]:
    assert PGBOUNCER is not None
    server = conninfo_to_dict(url)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    directory = Path(tempfile.mkdtemp(prefix="mw-pooler-", dir="/tmp"))
    text = CONFIGURATION.format(**server, listen=port, mode=mode, directory=directory)
    (directory / "ini").write_text(text + "\n".join(lines) + "\n")
    command = [PGBOUNCER, str(directory / "ini")]
    if os.getuid() == 0:  # it refuses to run as root
        owner = Path(str(server["host"])).stat()  # of the server's socket
        for path in (directory, directory / "ini"):
            os.chown(path, owner.st_uid, owner.st_gid)
        command[1:1] = ["-u", pwd.getpwuid(owner.st_uid).pw_name]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + SECONDS
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield f"postgresql://{server['user']}@127.0.0.1:{port}/{server['dbname']}"
    finally:
        process.terminate()
        process.communicate()
        shutil.rmtree(directory)


class Switch:
    """A TCP address whose connections go to one server or another; async, in the test's loop."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Switch:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        if self._carrying:
            await asyncio.wait(self._carrying)

    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return make_conninfo(self.target, host="127.0.0.1", port=port)

    def cut(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        server = conninfo_to_dict(self.target)
        host, port = str(server["host"]), str(server["port"])
        if host.startswith("/"):
            there = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            there = await asyncio.open_connection(host, int(port))
        self._writers |= {writer, there[1]}
        with contextlib.suppress(OSError):
            await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


MODES = [
    pytest.param("transaction", (), "unsupported startup parameter", id="transaction"),
    pytest.param(
        "transaction", ("ignore_startup_parameters = options",), "it drops them", id="ignoring"
    ),
    pytest.param("session", (), "unsupported startup parameter", id="session"),
    pytest.param(
        "session", ("ignore_startup_parameters = options",), "it drops them", id="session ignoring"
    ),
    pytest.param(
        "statement", ("ignore_startup_parameters = options",), "it drops them", id="statement"
    ),
]


@needs_pgbouncer
@pytest.mark.parametrize(("mode", "lines", "how"), MODES)
async def test_a_pooler_is_refused_in_one_sentence(
    schema: Schema, pooler: Callable[..., str], mode: str, lines: tuple[str, ...], how: str
) -> None:
    url = pooler(schema.url, mode, *lines)
    with pytest.raises(PooledStore) as raised:
        await PostgresStore(url, schema.name).open()
    assert raised.value.exit_code == 2
    said = str(raised.value)
    assert "connection pooler" in said
    assert how in said
    assert "give the address of Postgres itself" in said
    assert "\n" not in said
    with pytest.raises(PooledStore, match="connection pooler"), present(StoreAddress.parse(url)):
        pass


async def test_a_direct_connection_keeps_its_own_settings(schema: Schema) -> None:
    """Those that are given with the address as well."""
    url = make_conninfo(schema.url, options="-c work_mem=5MB")
    async with await session.OwnSession.connect(url) as connection:
        cursor = await connection.execute("SHOW work_mem")
        assert await cursor.fetchone() == ("5MB",)
        assert connection.autocommit
    async with await session.OwnSession.connect(url, options="-c jit=off") as connection:
        cursor = await connection.execute("SHOW jit")
        assert await cursor.fetchone() == ("off",)
    with contextlib.closing(session.connect(url)) as look:
        assert look.execute("SHOW work_mem").fetchone() == ("5MB",)
        assert look.autocommit


def test_other_errors_are_not_taken_for_a_pooler() -> None:
    assert session.refusal(psycopg.OperationalError("connection refused")) is None
    assert session.refusal(psycopg.OperationalError('database "x" does not exist')) is None
    rds = "FATAL: feature not supported: RDS Proxy currently doesn't support command-line options."
    assert "RDS Proxy" in str(session.refusal(psycopg.OperationalError(rds)))
    newer = "unsupported startup parameter in options: search_path"
    assert newer in str(session.refusal(psycopg.OperationalError(newer)))


@needs_pgbouncer
@pytest.mark.parametrize(
    "lines", [(), ("ignore_startup_parameters = options",)], ids=["refusing", "ignoring"]
)
async def test_a_pooler_that_comes_in_between_later_is_an_error(
    schema: Schema, pooler: Callable[..., str], lines: tuple[str, ...]
) -> None:
    """Not one more store that does not answer."""
    pooled = pooler(schema.url, "transaction", *lines)
    async with Switch(schema.url) as switch:
        store = await PostgresStore(switch.url(), schema.name).open()
        lane = await store.open_lane()
        try:
            await store.register_worker(WORKER, 15.0)
            await store.heartbeat(WORKER, 15.0, {})
            switch.target = pooled
            switch.cut()
            with pytest.raises(PooledStore):
                await lane.connect()

            async def until(work: Callable[[], Any]) -> None:
                """The first answers are about connections that were lost."""
                while True:
                    with contextlib.suppress(StoreUnavailable):
                        await work()

            async with asyncio.timeout(SECONDS):
                with pytest.raises(PooledStore):
                    await until(lambda: store.heartbeat(WORKER, 15.0, {}))
            switch.target = schema.url
            async with asyncio.timeout(SECONDS):
                while True:
                    with contextlib.suppress(StoreUnavailable, PooledStore):
                        await store.heartbeat(WORKER, 15.0, {})
                        break
        finally:
            switch.target = schema.url
            await store.close()


@needs_pgbouncer
async def test_a_worker_ends_when_a_pooler_comes_in_between(
    schema: Schema, pooler: Callable[..., str]
) -> None:
    pooled = pooler(schema.url, "transaction", "ignore_startup_parameters = options")
    pipeline = tally_pipeline(script(ITEMS, items(*range(20))), settings=QUICK)
    async with Switch(schema.url) as switch:
        store = await PostgresStore(switch.url(), schema.name).open()
        engine = Engine(pipeline, store, options=Options(keep_open=True))
        await engine.start()
        async with asyncio.timeout(SECONDS):
            await engine.done.wait()
            switch.target = pooled
            switch.cut()
            await engine._failed.wait()
        assert isinstance(engine.failure, PooledStore)
        switch.target = schema.url
        with contextlib.suppress(StoreUnavailable, PooledStore):
            await engine.kill()
        await store.close()
