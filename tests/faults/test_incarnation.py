"""Servers that come back without their newest commits, for real: each survivor must notice
(decision 40)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from psycopg.conninfo import make_conninfo
from structlog.testing import capture_logs

from millwheel.errors import StoreUnavailable, StoreWentBack
from millwheel.store import embedded
from millwheel.store.console.inspection import inspect
from millwheel.store.console.migrate import migrate
from millwheel.store.console.selection import select
from millwheel.store.embedded import lifecycle
from millwheel.store.postgres import connections, incarnation
from millwheel.store.postgres.incarnation import Incarnations, ServerSession, begin_session
from millwheel.store.postgres.lane import PostgresLane
from millwheel.store.postgres.session import OwnSession
from millwheel.store.postgres.statements import Statements
from millwheel.store.postgres.store import PostgresStore
from tests.campaign.reader import wait_for
from tests.campaign.sites import Lagging, Refused, Stepping, until
from tests.faults.chaos import wait_for_end
from tests.support.servers import VERSIONS, programs_of, quick_directory
from tests.support.store_sites import Owner, PostgresSite, Schema, deploy

pytestmark = pytest.mark.newest

NAME = "wheel"
PATIENCE_SECONDS = 30.0


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that the server's account can reach."""
    found = Path(tempfile.mkdtemp(prefix="millwheel-incarnation-", dir=quick_directory()))
    found.chmod(0o755)
    yield found
    shutil.rmtree(found, ignore_errors=True)


class Server:
    """A server that a test may crash."""

    def __init__(self, directory: Path, version: int) -> None:
        self._directory = directory / "store"
        self.programs_of = programs_of(version)
        self.url = ""
        self.start()

    def start(self) -> None:
        self.url = embedded.start(self._directory, binaries=self.programs_of).url

    def stop(self) -> None:
        """End it in order, with a checkpoint."""
        embedded.stop(self._directory)

    def crash(self) -> None:
        """End it at once, without a checkpoint."""
        pid = embedded.status(self._directory).pid
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)
        wait_for_end(pid)

    def kill(self) -> None:
        """Kill the postmaster, which ends no other process of the server."""
        pid = embedded.status(self._directory).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)

    def copy(self) -> None:
        """Keep a cold copy of its data."""
        self.stop()
        data = self._data
        subprocess.run(["cp", "-a", data, data.with_name("copy")], check=True)
        self.start()

    def restore(self) -> None:
        """Put the copy in the place of its data."""
        self.crash()
        data = self._data
        shutil.rmtree(data)
        subprocess.run(["cp", "-a", data.with_name("copy"), data], check=True)
        self.start()

    @property
    def _data(self) -> Path:
        found = embedded.status(self._directory).data_directory
        assert found is not None
        return found

    def query(self, text: str, *params: Any) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(text.encode(), params or None)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(params=VERSIONS, ids=[f"pg{version}" for version in VERSIONS])
def server(
    request: pytest.FixtureRequest, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    """A server of one's own, with an empty pipeline."""
    monkeypatch.delenv("PGBIN", raising=False)
    found = Server(directory, request.param)
    migrate(found.url, NAME)
    yield found
    embedded.remove(found._directory)


async def opened(url: str) -> PostgresStore:
    return await PostgresStore(url, NAME).open()


async def patiently(store: PostgresStore, what: Callable[[], Any]) -> Any:
    """Until the server answers, one way or the other: pools find out one by one that lines are cut,
    and on a busy machine a new primary takes a moment to answer."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return await what()
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.02)


async def notices(store: PostgresStore) -> None:
    """Everything that the store does is refused until it begins again."""
    with pytest.raises(StoreWentBack):
        await patiently(store, store.open_lane)
    for call in (store.read_placement, store.now, store.incarnation):
        with pytest.raises(StoreWentBack):
            await patiently(store, call)
    with pytest.raises(StoreWentBack):
        await patiently(store, lambda: store.heartbeat(OWN, 15.0, {}))


OWN = "7d3bc7ee-3d4e-4c7d-9d0a-1d6dd4a1e0f1"


@pytest.fixture
async def stores(server: Server) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    one, two = await opened(server.url), await opened(server.url)
    yield one, two
    await one.close()
    await two.close()


def kill_one_backend(server: Server) -> None:
    """The postmaster lives, ends all other sessions, and recovers."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        victim = psycopg.connect(server.url, autocommit=True)
        os.kill(victim.info.backend_pid, signal.SIGKILL)
        until_ended(connection)
        victim.close()
    assert wait_for(server.url, 60.0)


def until_ended(connection: psycopg.Connection[Any]) -> None:
    """The server ends this session."""
    with contextlib.suppress(psycopg.OperationalError):
        connection.execute("SELECT pg_sleep(60)")
        raise AssertionError("the session lives")


def crash(server: Server) -> None:
    server.crash()
    server.start()


def restart(server: Server) -> None:
    server.stop()
    server.start()


@pytest.mark.parametrize(
    "mishap", [crash, kill_one_backend, pytest.param(restart, marks=pytest.mark.soak)]
)
async def test_who_survives_the_server_notices_and_may_begin_again(
    server: Server, stores: tuple[PostgresStore, PostgresStore], mishap: Callable[[Server], None]
) -> None:
    one, two = stores
    before = await one.incarnation()
    assert await two.incarnation() == before
    await one.register_worker(OWN, 15.0)
    mishap(server)
    await notices(one)
    one.begin_again()
    after = await patiently(one, one.incarnation)
    assert after != before
    lane = await one.open_lane()
    await lane.close()
    await patiently(one, lambda: one.heartbeat(OWN, 15.0, {}))
    await notices(two)
    two.begin_again()
    assert await patiently(two, two.incarnation) == after


def kill(server: Server) -> None:
    server.kill()
    server.start()


def restore(server: Server) -> None:
    server.restore()


@pytest.mark.parametrize("mishap", [kill_one_backend, kill, crash, restore])
async def test_a_server_that_empties_no_table_is_noticed_as_well(
    server: Server, mishap: Callable[[Server], None]
) -> None:
    """As Aurora, where an unlogged table survives a crash (decision 84)."""
    server.query(f"ALTER TABLE {NAME}.incarnation SET LOGGED")
    if mishap is restore:
        await (await opened(server.url)).close()
        server.copy()
    one, two = await opened(server.url), await opened(server.url)
    try:
        before = await one.incarnation()
        row = server.query(f"SELECT id FROM {NAME}.incarnation")
        assert await two.incarnation() == before
        await one.register_worker(OWN, 15.0)
        mishap(server)
        assert server.query(f"SELECT id FROM {NAME}.incarnation") == row != []
        for store in (one, two):
            await notices(store)
            store.begin_again()
        after = await patiently(one, one.incarnation)
        assert after != before
        assert await patiently(two, two.incarnation) == after
        await (await one.open_lane()).close()
    finally:
        await one.close()
        await two.close()


async def test_statistics_that_an_operator_resets_are_no_recovery(server: Server) -> None:
    store = await opened(server.url)
    before = await store.incarnation()
    await store.close()
    server.query("SELECT pg_stat_reset_shared('bgwriter'), pg_stat_reset()")
    store = await opened(server.url)
    after = await store.incarnation()
    await store.close()
    assert after == before


async def test_a_standby_that_has_the_table_is_no_store_to_work_with(pair: Lagging) -> None:
    with psycopg.connect(pair.url, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {NAME}.incarnation SET LOGGED")
        store = await opened(pair.url)
        await store.close()
        newest = connection.execute(f"SELECT id FROM {NAME}.incarnation").fetchall()
    standby = url_of_standby(pair)
    with psycopg.connect(standby, autocommit=True) as connection:
        until(lambda: _rows_of_a_logged_table(connection) == newest, "the standby has no row")
    store = PostgresStore(standby, NAME)
    try:
        with pytest.raises(StoreUnavailable, match="is a standby, which takes no writes"):
            await store.open()
    finally:
        await store.close()


def _rows_of_a_logged_table(connection: psycopg.Connection[Any]) -> list[Any]:
    try:
        return connection.execute(f"SELECT id FROM {NAME}.incarnation").fetchall()
    except psycopg.errors.FeatureNotSupported:  # unlogged here, by now
        return []


@pytest.mark.parametrize(
    ("first", "later", "noticed"),
    [
        ("1 00000001", "1 00000001", False),
        ("1 00000001", "1 00000002", True),
        ("1 00000001", "2 00000001", True),
        ("1 00000001", None, False),
        (None, "1 00000001", False),
    ],
)
def test_another_timeline_or_system_is_another_incarnation(
    first: str | None, later: str | None, noticed: bool
) -> None:
    """Of a server that says nothing else, and only as far as the login may read it."""
    found = Incarnations()
    found.meet(ServerSession((1, ""), "the same", "on", "on", first))
    found.meet(ServerSession((2, ""), "the same", "on", "on", None))
    found.meet(ServerSession((3, ""), "the same", "on", "on", later))
    with pytest.raises(StoreWentBack) if noticed else contextlib.nullcontext():
        found.check("the same")
    assert found.begin_again() == noticed
    found.check("the same")
    found.meet(ServerSession((4, ""), "the same", "on", "on", later or first))
    found.check("the same")
    found.meet(ServerSession((5, ""), "the same", "on", "on", "3 00000001"))
    with pytest.raises(StoreWentBack):
        found.check("the same")


async def test_logins_that_may_and_may_not_read_the_timeline_agree(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the server's log has no error for the one that may not."""
    asked = []
    read = incarnation._read_control

    async def noted(connection: OwnSession) -> str | None:
        asked.append(connection.info.user)
        return await read(connection)

    monkeypatch.setattr(incarnation, "_read_control", noted)
    with psycopg.connect(schema.url, autocommit=True) as connection:
        connection.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        connection.execute("CREATE ROLE shy LOGIN")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema.name} TO shy")
        connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema.name} TO shy")
        try:
            found = []
            for user in ("millwheel", "shy"):
                store = await PostgresStore(make_conninfo(schema.url, user=user), "wheel").open()
                found.append((await store.incarnation(), store.connections._incarnations._control))
                await store.close()
            (known, control), (as_well, none) = found
            assert known == as_well
            assert none is None
            assert control is not None
            assert control.endswith(" 00000001")
            assert set(asked) == {"millwheel"}
        finally:
            connection.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
            connection.execute("DROP OWNED BY shy")
            connection.execute("DROP ROLE shy")


async def test_a_restart_in_order_loses_nothing_and_keeps_the_id(server: Server) -> None:
    store = await opened(server.url)
    await store.close()
    before = server.query(f"SELECT id FROM {NAME}.incarnation")
    restart(server)
    assert server.query(f"SELECT id FROM {NAME}.incarnation") == before != []


async def test_a_pooled_connection_to_another_server_is_closed_unused(server: Server) -> None:
    """The former primary may live on, with a connection of the pool."""
    store = await opened(server.url)
    await store.now()
    former = list(store.connections._incarnation_of)
    for connection in former:
        store.connections._incarnation_of[connection] = "of the former primary"
    with pytest.raises(StoreUnavailable, match="earlier incarnation"):
        await store.now()
    await patiently(store, store.now)
    assert any(connection.closed for connection in former)
    await store.close()


@pytest.mark.parametrize("mishap", [crash, pytest.param(restart, marks=pytest.mark.soak)])
async def test_a_pipeline_is_deployed_first_in_one_incarnation_only(
    server: Server, mishap: Callable[[Server], None]
) -> None:
    """After a restart in order as well: a backup of the directory comes back with the same id.
    Numbers of bundles that were given in the lost time would be given to other records."""
    store = await opened(server.url)
    assert (await deploy(store)).is_first
    assert (await deploy(store)).is_first
    await store.close()
    mishap(server)
    store = await opened(server.url)
    assert not (await deploy(store)).is_first
    await store.close()


async def test_where_a_pipeline_was_deployed_does_not_depend_on_the_clock(server: Server) -> None:
    store = await opened(server.url)
    await deploy(store)
    await store.close()
    crash(server)
    server.query(f"UPDATE {NAME}.generation SET began_at = now() + interval '1 hour'")
    store = await opened(server.url)
    assert not (await deploy(store)).is_first
    await store.close()


@pytest.fixture(params=VERSIONS, ids=[f"pg{version}" for version in VERSIONS])
def pair(
    request: pytest.FixtureRequest, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lagging]:
    """A primary and an asynchronous standby."""
    monkeypatch.delenv("PGBIN", raising=False)
    programs = programs_of(request.param)
    try:
        found = Lagging(directory, programs)
    except Refused as refused:
        pytest.skip(str(refused))
    migrate(found.url, NAME)
    yield found
    found.remove()


async def test_who_survives_a_failover_notices(pair: Lagging) -> None:
    store = await opened(pair.url)
    try:
        before = await store.incarnation()
        held = pair.hold_back()
        with psycopg.connect(pair.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE lost ()")
        assert pair.newest() > held
        pair.fail_over()
        with psycopg.connect(pair.url, autocommit=True) as connection:
            assert connection.execute("SELECT to_regclass('lost')").fetchone() == (None,)
        await notices(store)
        store.begin_again()
        assert await patiently(store, store.incarnation) != before
    finally:
        await store.close()


def url_of_standby(pair: Lagging) -> str:
    """The address of the standby, once that has the schema."""
    url = make_conninfo(
        "", host=str(pair._sockets("b")), port=5432, user="millwheel", dbname="millwheel"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        until(
            lambda: (
                connection.execute(f"SELECT to_regclass('{NAME}.incarnation')").fetchone()
                != (None,)
            ),
            "the standby has no schema",
        )
    return url


async def test_a_standby_is_no_store_to_work_with(pair: Lagging) -> None:
    standby = url_of_standby(pair)
    store = PostgresStore(standby, NAME)
    with pytest.raises(
        StoreUnavailable, match="is a standby, which takes no writes: give the address"
    ):
        await store.open()
    await store.close()


async def test_a_look_goes_where_workers_go_and_to_a_standby(pair: Lagging) -> None:
    """Workers' address names all servers and asks for the one that takes writes."""
    standby = url_of_standby(pair)
    for url in (pair.url, standby):
        with inspect(url) as inspection:
            assert inspection.pipelines() == [NAME]
        with select(url, ["SELECT 1"], pipeline=NAME, seconds=5, as_json=True) as answers:
            assert list(next(answers).rows) == [(1,)]


# -- a server whose clock is set ----------------------------------------------------------------


async def test_workers_are_told_no_time_that_is_before_a_heartbeat(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The campaign moves the clock of a real server in the same way."""
    monkeypatch.delenv("PGBIN", raising=False)
    try:
        site = Stepping(directory)
    except Refused as refused:
        pytest.skip(str(refused))
    try:
        migrate(site.url, NAME)
        store = await opened(site.url)
        try:
            await store.register_worker(OWN, 15.0)
            before = await store.now()
            site.set_clock(-600)
            assert await store.now() < before - 590_000_000
            assert (await store.view_buckets()).now >= before - 1_000_000
            left = {w.id: w.lease_left for w in await store.other_workers("")}
            assert left[OWN] > 500
            await store.heartbeat(OWN, 15.0, {})
            await store.register_worker(str(uuid.uuid4()), 15.0)
            left = {w.id: w.lease_left for w in await store.other_workers("")}
            assert max(left.values()) <= 15
            with psycopg.connect(site.url, autocommit=True) as connection:
                connection.execute(f"DELETE FROM {NAME}.incarnation")
            async with asyncio.timeout(PATIENCE_SECONDS):  # a row before its server's last recovery
                await (await opened(site.url)).close()
        finally:
            await store.close()
    finally:
        site.remove()


# -- what commits wait for ----------------------------------------------------------------------


@pytest.fixture
def role(schema: Schema) -> Iterator[Callable[[str], str]]:
    """Gives the URL of the server for a role with its own `synchronous_commit`."""
    with psycopg.connect(schema.url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS hasty")
        connection.execute("CREATE ROLE hasty SUPERUSER LOGIN")

        def url(value: str) -> str:
            connection.execute(
                sql.SQL("ALTER ROLE hasty SET synchronous_commit = {}").format(sql.Literal(value))
            )
            return make_conninfo(schema.url, user="hasty")

        yield url
        connection.execute("DROP ROLE hasty")


async def kept(connection: psycopg.AsyncConnection[Any]) -> str:
    cursor = await connection.execute("SHOW synchronous_commit")
    return str((await cursor.fetchone() or ("",))[0])


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("off", "on"),
        ("local", "on"),
        ("remote_write", "on"),
        ("on", "on"),
        ("remote_apply", "remote_apply"),
    ],
)
async def test_commits_wait_for_the_disk_whatever_the_role_is_set_to(
    schema: Schema, role: Callable[[str], str], asked: str, found: str
) -> None:
    store = await PostgresStore(role(asked), schema.name).open()
    try:
        lane = await store.open_lane()
        assert isinstance(lane, PostgresLane)
        assert lane._connection is not None
        assert await kept(lane._connection) == found
        for pool in (store.connections.pool, store.connections.lifeline):
            async with pool.connection() as connection:
                assert await kept(connection) == found
        await lane.close()
    finally:
        await store.close()


async def test_a_server_that_is_set_to_less_later_changes_no_session(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload reaches open sessions, unless they have set the value themselves."""
    with monkeypatch.context() as patch:
        patch.delitem(lifecycle._FIXED_SETTINGS, "synchronous_commit")
        restart(server)
    server.query("ALTER SYSTEM RESET synchronous_commit")
    store = await opened(server.url)
    lane = await store.open_lane()
    assert lane._connection is not None
    server.query("ALTER SYSTEM SET synchronous_commit = off")
    server.query("SELECT pg_reload_conf()")
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as other:
        for _ in range(500):
            if await kept(other) == "off":
                break
            await asyncio.sleep(0.01)
        assert await kept(other) == "off"
    await asyncio.sleep(0.1)  # each process rereads its settings by itself
    assert await kept(lane._connection) == "on"
    await store.close()


async def test_a_session_whose_commits_do_not_wait_is_warned_of_once(
    schema: Schema, role: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    get = Statements.get

    def lost(self: Statements, name: str, **tables: str) -> str:
        """The pooler between hands each statement to another session."""
        return "SELECT 1" if name == "raise_durability" else get(self, name, **tables)

    monkeypatch.setattr(Statements, "get", lost)
    with capture_logs() as logs:
        store = await PostgresStore(role("off"), schema.name).open()
        await (await store.open_lane()).close()
        await store.close()
    told = [line for line in logs if line["event"] == "commits_do_not_wait"]
    assert [line["synchronous_commit"] for line in told] == ["off"]
    assert "allow the role to SET synchronous_commit" in told[0]["what_to_do"]


async def test_a_server_that_never_waits_for_its_disk_is_warned_of_once(schema: Schema) -> None:
    """The servers of the tests are such."""
    with capture_logs() as logs:
        store = await PostgresStore(schema.url, schema.name).open()
        await (await store.open_lane()).close()
        await store.close()
    assert [line["event"] for line in logs].count("fsync_is_off") == 1


async def test_a_lane_whose_chain_was_cut_behind_its_back_says_so(postgres: PostgresSite) -> None:
    """As after a restore into the running server: no connection was lost, and the commits are
    gone."""
    owner = await Owner.take(postgres.store)
    await owner.write(owner.fill(owner.commit(), 2))
    await owner.write(owner.fill(owner.commit(), 2, first=10))
    newest = f"(SELECT max(n) FROM {postgres.schema.name}.commit_record)"
    await postgres.query(f"DELETE FROM {{c}} WHERE n = {newest}", c="commit_record")
    with pytest.raises(StoreWentBack, match="the store has lost commits"):
        await owner.lane.commit(owner.fill(owner.commit(), 2, first=20))


async def test_a_connection_that_cannot_begin_is_closed(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool, which has made it, only drops it."""
    dropped: list[AsyncConnection[Any]] = []

    async def fail(connection: OwnSession, statements: Statements) -> ServerSession:
        if len(dropped) < 2:
            dropped.append(connection)
            raise psycopg.OperationalError("it ended just now")
        return await begin_session(connection, statements)

    store = PostgresStore(schema.url, schema.name)
    await store.open()
    monkeypatch.setattr(connections, "begin_session", fail)
    try:
        await asyncio.gather(*(store.now() for _ in range(6)))  # more than there are connections
        assert len(dropped) == 2
        assert all(connection.closed for connection in dropped)
    finally:
        await store.close()
