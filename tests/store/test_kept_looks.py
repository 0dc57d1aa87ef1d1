"""Looks on a connection that is kept: each at one moment of its own, with nothing held between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import psycopg
import pytest

from millwheel.errors import StoreUnavailable
from millwheel.store.console import kept_looks, snapshot
from millwheel.store.console.kept_looks import KeptLooks
from tests.support.store_sites import Owner, PostgresSite

pytestmark = pytest.mark.newest

SESSIONS = """
    SELECT state, backend_xmin IS NULL, (SELECT count(*) FROM pg_locks AS l WHERE l.pid = a.pid)
    FROM pg_stat_activity AS a
    WHERE datname = current_database() AND application_name = 'millwheel look'
"""


@pytest.fixture
def looks() -> Iterator[KeptLooks]:
    made = KeptLooks(10.0)
    yield made
    made.close()


async def test_looks_share_a_connection_that_holds_nothing_between(
    postgres: PostgresSite, looks: KeptLooks
) -> None:
    url, name = postgres.schema.url, postgres.schema.name
    pids = set()
    for workers in range(3):
        with looks.inspect(url) as inspection:
            pids.add(inspection.connection.info.backend_pid)
            assert len(inspection.status(name).workers) == workers, "each look is of its moment"
        assert await postgres.query(SESSIONS) == [("idle", True, 0)]
        await postgres.store.register_worker(str(workers) * 8 + "-0000-0000-0000-000000000000", 9.0)
    assert len(pids) == 1


async def test_looks_at_the_same_time_have_connections_of_their_own(
    postgres: PostgresSite, looks: KeptLooks
) -> None:
    await Owner.take(postgres.store)
    url = postgres.schema.url
    with looks.inspect(url) as one, looks.inspect(url) as other:
        assert one.connection is not other.connection
        assert one.pipelines() == other.pipelines()


async def until_left(postgres: PostgresSite, number: int) -> None:
    """Until so many sessions are left: the server ends one a moment after it was closed."""
    deadline = time.monotonic() + 30
    while len(await postgres.query(SESSIONS)) != number:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_a_session_that_was_ended_is_replaced(
    postgres: PostgresSite, looks: KeptLooks
) -> None:
    url = postgres.schema.url
    with looks.inspect(url) as inspection:
        pid = inspection.connection.info.backend_pid
    await postgres.query(f"SELECT pg_terminate_backend({pid}, 5000)")
    with looks.inspect(url) as inspection:
        assert inspection.pipelines() == [postgres.schema.name]


async def test_locked_tables_are_waited_for_once(
    postgres: PostgresSite, looks: KeptLooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many connections are kept: each wait takes seconds."""
    monkeypatch.setattr(snapshot, "LOCK_SECONDS", 1)
    monkeypatch.setattr(kept_looks, "IDLE_SECONDS", 600.0)
    url = postgres.schema.url
    with looks.inspect(url), looks.inspect(url):
        pass
    with psycopg.connect(url) as other:
        other.execute(postgres.schema.compose("LOCK TABLE {c}", c="commit_record"))
        with pytest.raises(StoreUnavailable, match="locked for 1 s"), looks.inspect(url):
            pass
        await until_left(postgres, 1)  # the other one has not waited
    with looks.inspect(url) as inspection:
        assert inspection.pipelines() == [postgres.schema.name]


async def test_a_look_that_fails_leaves_no_connection(
    postgres: PostgresSite, looks: KeptLooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_looks, "IDLE_SECONDS", 600.0)
    with pytest.raises(ZeroDivisionError), looks.inspect(postgres.schema.url):
        raise ZeroDivisionError
    await until_left(postgres, 0)


async def test_without_looks_the_connections_are_closed(
    postgres: PostgresSite, looks: KeptLooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_looks, "IDLE_SECONDS", 0.05)
    with looks.inspect(postgres.schema.url):
        pass
    await until_left(postgres, 0)
