"""A connection pooler between here and Postgres: in session mode it makes no difference, and in the
others it is refused in one sentence, at once, whenever it appears."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from millwheel import client
from millwheel.errors import PooledStore, StoreUnavailable
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.spark import store_sessions
from millwheel.store.address import StoreAddress
from millwheel.store.console.inspection import inspect
from millwheel.store.console.migrate import migrate
from millwheel.store.console.presence import present
from millwheel.store.postgres import session
from millwheel.store.postgres.lane import PostgresLane
from millwheel.store.postgres.statements import text_of
from millwheel.store.postgres.store import PostgresStore
from tests.support.pipelines import QUICK, script, tally_pipeline
from tests.support.poolers import SECONDS, Pooler, needs_pgbouncer, running_pooler
from tests.support.sessions import connection_of, lane_of
from tests.support.store_sites import COUNTS, LOG, Owner, Schema, deploy, row
from tests.support.values import ITEMS, items

pytestmark = pytest.mark.newest

WORKER = str(uuid.uuid4())


@pytest.fixture
def pooler() -> Iterator[Callable[..., Pooler]]:
    """Starts PgBouncer before a server."""
    with contextlib.ExitStack() as started:

        def start(url: str, mode: str, *lines: str) -> Pooler:
            return started.enter_context(running_pooler(url, mode, *lines))

        yield start


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


# -- poolers that share sessions ------------------------------------------------------------------

SHARING = [
    pytest.param("transaction", (), id="transaction"),
    pytest.param("transaction", ("ignore_startup_parameters = options",), id="ignoring"),
    pytest.param("transaction", ("server_round_robin = 1",), id="in turn"),
    pytest.param("transaction", ("default_pool_size = 1",), id="one session"),
    pytest.param(
        "transaction",
        ("server_reset_query_always = 1", "server_reset_query = DISCARD ALL"),
        id="reset each time",
    ),
    pytest.param("statement", (), id="statement"),
]


def others(url: str, number: int) -> list[psycopg.Connection[Any]]:
    """Clients that have made a pooler open as many sessions."""
    found = [psycopg.connect(url) for _ in range(number)]
    for each in found:
        each.execute("SELECT 1")
    for each in found:
        each.rollback()
    return found


@needs_pgbouncer
@pytest.mark.parametrize("sessions", [0, 1, 2, 3])
@pytest.mark.parametrize(("mode", "lines"), SHARING)
async def test_a_pooler_that_shares_sessions_is_refused_in_one_sentence(
    schema: Schema, pooler: Callable[..., Pooler], mode: str, lines: tuple[str, ...], sessions: int
) -> None:
    if sessions and (mode == "statement" or "default_pool_size = 1" in lines):
        pytest.skip("there are no further sessions")
    url = pooler(schema.url, mode, *lines).url
    with contextlib.ExitStack() as closing:
        for other in others(url, sessions):
            closing.callback(other.close)
        with pytest.raises(PooledStore) as raised:
            await PostgresStore(url, schema.name).open()
        assert raised.value.exit_code == 2
        said = str(raised.value)
        assert "connection pooler" in said
        assert "pool_mode = session" in said
        assert "the address of Postgres itself" in said
        assert "\n" not in said
        with pytest.raises(PooledStore, match="pooler"), present(StoreAddress.parse(url)):
            pass
        with pytest.raises(PooledStore, match="pooler"):
            migrate(url, "another")


@needs_pgbouncer
@pytest.mark.parametrize("order", ["last", "in turn"])
@pytest.mark.parametrize("sessions", [1, 2, 3])
def test_a_refused_pooler_is_left_as_it_was(
    schema: Schema, pooler: Callable[..., Pooler], order: str, sessions: int
) -> None:
    """Its sessions serve other programs, which would get the settings, and keep the lock."""
    lines = (f"default_pool_size = {sessions}", f"server_round_robin = {int(order == 'in turn')}")
    url = pooler(schema.url, "transaction", *lines).url
    with contextlib.ExitStack() as closing:
        all_ = others(url, sessions)
        for other in all_:
            closing.callback(other.close)

        def ask(query: bytes) -> set[Any]:
            """The answers of all sessions."""
            found = {other.execute(query).fetchone() for other in all_}
            for other in all_:
                other.commit()
            return found

        ask(b"SELECT set_config('work_mem', '5MB', false)")
        shown = b"SELECT current_setting('work_mem'), current_setting('search_path')"
        before = ask(shown)
        assert before == {("5MB", '"$user", public')}
        for _ in range(3):
            with pytest.raises(PooledStore):
                session.connect(url, {"search_path": ""})
            assert ask(shown) == before
        locks = b"""
            SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
            WHERE l.locktype = 'advisory' AND d.datname = current_database()
        """
        assert ask(locks) == {(0,)}


@pytest.mark.parametrize(
    ("statement", "answer"),
    [
        ("own_session", (5, "0", False)),
        ("is_shared", (True,)),
        ("same_session", (False, "1")),
        ("settle_session", (False,)),
    ],
)
def test_each_sign_of_a_shared_session_is_enough(statement: str, answer: tuple[Any, ...]) -> None:
    """Whatever the order in which a pooler takes its sessions."""
    answers = {
        text_of("own_session"): (5, "0", True),
        text_of("is_shared"): (False,),
        text_of("same_session"): (True, "1"),
        text_of("settle_session"): (True,),
    }
    for changed in ("", statement):
        given = {**answers, **({text_of(changed): answer} if changed else {})}
        if changed:
            with pytest.raises(PooledStore):
                told_by(session.prove(4, {}, {}), given)
        else:
            found = told_by(session.prove(4, {}, {}), given)
            assert found.pid == 5
            assert found.is_pooled


def told_by(proof: session.Proof, given: dict[str, Any]) -> session.Proven:
    """The end of a proof with these answers, by statement."""
    answer = None
    while isinstance(found := session._advance(proof, answer), session.ProofStep):
        answer = given.get(found.statement)
    return found


@needs_pgbouncer
@pytest.mark.parametrize("lines", [(), ("server_round_robin = 1",)], ids=["last", "in turn"])
def test_a_busy_pooler_that_shares_sessions_is_refused_as_well(
    schema: Schema, pooler: Callable[..., Pooler], lines: tuple[str, ...]
) -> None:
    url = pooler(schema.url, "transaction", *lines).url
    done = threading.Event()

    def be_busy() -> None:
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
            while not done.is_set():
                connection.execute("SELECT 1")

    threads = [threading.Thread(target=be_busy) for _ in range(4)]
    for each in threads:
        each.start()
    try:
        for _ in range(50):
            with pytest.raises(PooledStore):
                session.connect(url)
    finally:
        done.set()
        for each in threads:
            each.join()


@needs_pgbouncer
@pytest.mark.parametrize(
    "lines", [(), ("ignore_startup_parameters = options",)], ids=["refusing", "ignoring"]
)
async def test_a_pooler_that_comes_in_between_later_is_an_error(
    schema: Schema, pooler: Callable[..., Pooler], lines: tuple[str, ...]
) -> None:
    """Not one more store that does not answer."""
    pooled = pooler(schema.url, "transaction", *lines).url
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
            async with asyncio.timeout(SECONDS):
                with pytest.raises(PooledStore):
                    await again_and_again(store)
            switch.target = schema.url
            async with asyncio.timeout(SECONDS):
                while True:
                    with contextlib.suppress(StoreUnavailable, PooledStore):
                        await store.heartbeat(WORKER, 15.0, {})
                        break
        finally:
            switch.target = schema.url
            await store.close()


async def again_and_again(store: PostgresStore) -> None:
    """Heartbeats until one is refused; the first answers may be about lost connections."""
    while True:
        with contextlib.suppress(StoreUnavailable):
            await store.heartbeat(WORKER, 15.0, {})


@needs_pgbouncer
async def test_a_worker_ends_when_a_pooler_comes_in_between(
    schema: Schema, pooler: Callable[..., Pooler]
) -> None:
    pooled = pooler(schema.url, "transaction").url
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


# -- session mode ---------------------------------------------------------------------------------


@needs_pgbouncer
async def test_a_session_has_its_settings_behind_a_pooler(
    schema: Schema, pooler: Callable[..., Pooler]
) -> None:
    """Those that a commit relies on first."""
    direct, pooled = schema.url, pooler(schema.url, "session").url
    found = []
    for url in (direct, pooled):
        store = await PostgresStore(url, schema.name).open()
        lane = await store.open_lane()
        assert isinstance(lane, PostgresLane)
        shown = []
        async with store.connections.connection() as connection:
            for each in (connection, connection_of(lane)):
                for name in (
                    "search_path", "timezone", "statement_timeout", "synchronous_commit", "jit",
                    "idle_in_transaction_session_timeout", "default_transaction_isolation",
                    "application_name", "client_encoding",
                ):  # fmt: skip
                    cursor = await each.execute(f"SHOW {name}")
                    shown.append((name, await cursor.fetchone()))
        found.append(shown)
        await lane.close()
        await store.close()
    assert found[0] == found[1]
    assert ("application_name", (f"millwheel {schema.name}",)) in found[1]
    assert ("default_transaction_isolation", ("read committed",)) in found[1]


@needs_pgbouncer
async def test_nothing_of_a_former_client_is_left_in_a_session(
    schema: Schema, pooler: Callable[..., Pooler]
) -> None:
    """Without a query that resets it, the next client finds what the last one left."""
    url = pooler(schema.url, "session", "default_pool_size = 2", "server_reset_query =").url
    with psycopg.connect(url, autocommit=True) as former:
        former.execute("SET lock_timeout = '1ms'", prepare=True)
        former.execute("SET synchronous_commit = off", prepare=True)
        former.execute("SELECT pg_advisory_lock(7)")
        (pid,) = former.execute("SELECT pg_backend_pid()").fetchone() or ("",)
    connection = await session.OwnSession.connect(url)
    async with connection:
        assert connection.proven.pid == pid
        cursor = await connection.execute("SHOW lock_timeout", prepare=True)
        assert await cursor.fetchone() == ("0",)
        cursor = await connection.execute("SHOW synchronous_commit", prepare=True)
        assert await cursor.fetchone() == ("on",)
        cursor = await connection.execute("SELECT count(*) FROM pg_locks WHERE objid = 7")
        assert await cursor.fetchone() == (0,)


@needs_pgbouncer
async def test_a_store_works_behind_a_pooler_in_session_mode(
    schema: Schema, pooler: Callable[..., Pooler]
) -> None:
    """Commits with rows are prepared and run again and again, and a look finds them."""
    url = pooler(schema.url, "session").url
    store = await PostgresStore(url, schema.name).open()
    owner = await Owner.take(store, await deploy(store, tables=(COUNTS, LOG)))
    for number in range(12):
        commit = owner.fill(owner.commit(), 2, first=10 * number)
        commit.rows = [(LOG, row(f"word {number}", number))]
        await owner.write(commit)
    await store.register_worker(WORKER, 15.0)
    for _ in range(12):
        await store.heartbeat(WORKER, 15.0, {})
        await store.read_placement()
    async with store.connections.connection() as connection:
        cursor = await connection.execute("SELECT count(*) FROM pg_prepared_statements")
        assert await cursor.fetchone() == (0,), "another client may know them by the same name"
    cursor = await connection_of(lane_of(owner)).execute("TABLE pg_prepared_statements")
    assert await cursor.fetchall()
    await lane_of(owner).close()
    await store.close()
    with inspect(url) as inspection:
        assert inspection.pipelines() == [schema.name]
    with store_sessions.reading(url) as reading:
        query = f'SELECT count(*) FROM {schema.name}."order"'.encode()
        assert reading.execute(query).fetchone() == (12,)
        assert reading.execute("SHOW timezone").fetchone() == ("UTC",)


@needs_pgbouncer
async def test_clients_send_through_a_pooler_in_session_mode(
    schema: Schema, pooler: Callable[..., Pooler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "WAIT_SECONDS", 2.0)
    settled = pooler(schema.url, "session").url
    async with client.Client(schema.name, settled) as sender:
        assert await sender.count_waiting("orders") == 0
    async with client.Client(schema.name, pooler(schema.url, "transaction").url) as sender:
        with pytest.raises(PooledStore, match="session mode"):
            await sender.count_waiting("orders")


@needs_pgbouncer
async def test_a_pooler_without_a_free_session_is_an_unavailable_store(
    schema: Schema, pooler: Callable[..., Pooler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if only the session is to be had, and not its witness."""
    monkeypatch.setattr(session, "ANSWER_SECONDS", 1.0)
    url = pooler(schema.url, "session", "default_pool_size = 2").url
    for taken in (1, 2):
        with contextlib.ExitStack() as closing:
            for other in others(url, taken):
                closing.callback(other.close)
            with pytest.raises(StoreUnavailable, match="sessions of a connection pooler are in us"):
                await PostgresStore(url, schema.name).open()
            with (
                pytest.raises(StoreUnavailable, match="default_pool_size"),
                present(StoreAddress.parse(url)),
            ):
                pass
    with present(StoreAddress.parse(url)):
        pass


@needs_pgbouncer
async def test_options_of_the_address_do_not_pass_a_pooler(
    schema: Schema, pooler: Callable[..., Pooler]
) -> None:
    url = make_conninfo(pooler(schema.url, "session").url, options="-c work_mem=5MB")
    with pytest.raises(PooledStore, match="leave them out") as raised:
        await PostgresStore(url, schema.name).open()
    assert "\n" not in str(raised.value)
    with pytest.raises(PooledStore, match="leave them out"):
        session.connect(url)


@needs_pgbouncer
async def test_a_process_that_serves_another_client_by_now_is_not_ended(
    schema: Schema, pooler: Callable[..., Pooler]
) -> None:
    """Behind a pooler the process of a dead worker's session goes on, for the next client."""
    url = pooler(schema.url, "session", "default_pool_size = 3").url
    store = await PostgresStore(schema.url, schema.name).open()
    try:
        former = await PostgresStore(url, schema.name).open()
        lane = await former.open_lane()
        assert isinstance(lane, PostgresLane)
        backend = lane.backend
        assert backend is not None
        await store.end_backends([(backend[0], backend[1].split(" lock")[0] + "0")])
        await connection_of(lane).execute("SELECT 1")
        await connection_of(lane).close()  # as at its worker's end
        await former.close()
        with contextlib.ExitStack() as closing:
            by_pid = {}
            for other in others(url, 3):
                closing.callback(other.close)
                by_pid[other.execute("SELECT pg_backend_pid()").fetchone()] = other
            await store.end_backends([backend])
            by_pid[(backend[0],)].execute("SELECT 1")
        latter = await PostgresStore(url, schema.name).open()
        lane = await latter.open_lane()
        assert isinstance(lane, PostgresLane)
        assert lane.backend is not None
        await store.end_backends([lane.backend])
        with pytest.raises(psycopg.OperationalError):
            await connection_of(lane).execute("SELECT 1")
        await lane.close()
        await latter.close()
    finally:
        await store.close()


# -- a pooler that changes its mode ---------------------------------------------------------------


@needs_pgbouncer
async def test_a_commit_in_the_session_of_another_client_is_refused(
    schema: Schema, pooler: Callable[..., Pooler]
) -> None:
    """Its search path may be that of another pipeline, where the user's rows would go."""
    found = pooler(schema.url, "session")
    store = await PostgresStore(found.url, schema.name).open()
    owner = await Owner.take(store, await deploy(store, tables=(COUNTS, LOG)))
    commit = owner.commit()
    commit.rows = [(LOG, row("before", 1))]
    await owner.write(commit)
    found.set_mode("transaction")
    lane = lane_of(owner)
    connection = connection_of(lane)
    own = connection.info.backend_pid
    assert lane.backend is not None
    with contextlib.ExitStack() as closing:
        await connection.execute("SELECT 1")  # from now on the process is free for others
        for number, other in enumerate(others_of(found, closing)):
            if other == lane.backend[0]:
                break
            assert number < 10
        commit = owner.commit()
        commit.rows = [(LOG, row("after", 2))]
        with pytest.raises(PooledStore, match="pooler"):
            await owner.lane.commit(commit)
    assert own != lane.backend[0]
    rows = schema.query("SELECT word FROM {order} ORDER BY 1", order="order")
    assert rows == [("before",)]
    found.stop()
    with contextlib.suppress(StoreUnavailable, PooledStore):
        await store.close()


@pytest.mark.parametrize("kind", ["of one statement", "with rows"])
async def test_a_commit_in_another_server_process_than_its_lane_leaves_no_trace(
    schema: Schema, kind: str
) -> None:
    """Though the statement is prepared there by the same name."""
    store = await PostgresStore(schema.url, schema.name).open()
    owner = await Owner.take(store, await deploy(store, tables=(COUNTS, LOG)))
    commit = owner.fill(owner.commit(), 2)
    if kind == "with rows":
        commit.rows = [(LOG, row("after", 2))]
    lane = lane_of(owner)
    assert lane.backend is not None
    lane.backend = (lane.backend[0] + 1, lane.backend[1])
    with pytest.raises(PooledStore, match="session mode"):
        await owner.lane.commit(commit)
    assert schema.query("SELECT count(*) FROM {log} WHERE word = 'after'", log="order") == [(0,)]
    assert schema.query("SELECT max(n) FROM {c}", c="commit_record") == [(0,)]
    lane.backend = (lane.backend[0] - 1, lane.backend[1])
    await store.close()


def others_of(found: Pooler, closing: contextlib.ExitStack) -> Iterator[int]:
    """Clients in a transaction each, by the process that they have got."""
    while True:
        other = psycopg.connect(found.url)
        closing.callback(other.close)
        yield from (pid for (pid,) in other.execute("SELECT pg_backend_pid()"))


@needs_pgbouncer
async def test_a_heartbeat_in_the_session_of_another_client_ends_the_worker(
    schema: Schema, pooler: Callable[..., Pooler]
) -> None:
    found = pooler(schema.url, "session")
    store = await PostgresStore(found.url, schema.name).open()
    await store.register_worker(WORKER, 15.0)
    await store.heartbeat(WORKER, 15.0, {})
    found.set_mode("transaction")
    with contextlib.ExitStack() as closing:
        taking = others_of(found, closing)

        async def beat() -> None:
            for _ in range(10):
                next(taking)
                await store.heartbeat(WORKER, 15.0, {})

        with pytest.raises(PooledStore, match="session mode"):
            await beat()
    found.stop()
    with contextlib.suppress(StoreUnavailable, PooledStore):
        await store.close()


# -- no pooler ------------------------------------------------------------------------------------


async def test_a_direct_connection_keeps_its_own_settings(schema: Schema) -> None:
    """Those that are given with the address as well."""
    url = make_conninfo(schema.url, options="-c work_mem=5MB")
    settings = {"jit": "off"}
    async with await session.OwnSession.connect(url, settings=settings) as connection:
        cursor = await connection.execute("SHOW work_mem")
        assert await cursor.fetchone() == ("5MB",)
        cursor = await connection.execute("SHOW jit")
        assert await cursor.fetchone() == ("off",)
        assert connection.autocommit
        assert not connection.proven.is_pooled
    with contextlib.closing(session.connect(url, settings)) as look:
        assert look.execute("SHOW work_mem").fetchone() == ("5MB",)
        assert look.execute("SHOW jit").fetchone() == ("off",)
        assert look.autocommit
    with contextlib.closing(session.connect(url, autocommit=False)) as look:
        assert not look.autocommit


async def test_a_direct_connection_costs_one_statement(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no second connection, nor a lock."""
    made: list[str] = []
    connect = AsyncConnection.connect.__func__  # type: ignore[attr-defined]

    async def counted(cls: Any, /, conninfo: str = "", **kwargs: Any) -> Any:
        made.append(conninfo)
        return await connect(cls, conninfo, **kwargs)

    monkeypatch.setattr(AsyncConnection, "connect", classmethod(counted))
    async with await session.OwnSession.connect(schema.url) as connection:
        cursor = await connection.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        )
        assert await cursor.fetchone() == (0,)
    assert len(made) == 1


def test_other_errors_are_not_taken_for_a_pooler() -> None:
    assert session.refusal(psycopg.OperationalError("connection refused")) is None
    assert session.refusal(psycopg.OperationalError('database "x" does not exist')) is None
    rds = "FATAL: feature not supported: RDS Proxy currently doesn't support command-line options."
    assert "RDS Proxy" in str(session.refusal(psycopg.OperationalError(rds)))
    newer = "unsupported startup parameter in options: search_path"
    assert newer in str(session.refusal(psycopg.OperationalError(newer)))
