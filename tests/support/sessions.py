"""Sessions on a Postgres server, and what a test sees of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from psycopg import AsyncConnection

from millwheel.store.postgres.lane import PostgresLane
from tests.support.store_sites import Owner, PostgresSite, Schema


async def until(true: Callable[[], Awaitable[Any]], *, seconds: float = 60.0) -> None:
    """Wait for something to become true on the server, which tells nobody."""
    async with asyncio.timeout(seconds):
        while not await true():  # noqa: ASYNC110 - the server has no event to wait for
            await asyncio.sleep(0.005)


async def waiting_for_a_lock(site: PostgresSite) -> bool:
    """Whether a session of the store stands in line for a lock."""
    rows = await site.query(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND application_name = %s",
        f"millwheel {site.schema.name}",
    )
    return bool(rows[0][0])


def connection_of(lane: PostgresLane) -> AsyncConnection[Any]:
    """A lane's connection, to do to it what the lane never would."""
    assert lane._connection is not None
    return lane._connection


def lane_of(owner: Owner) -> PostgresLane:
    assert isinstance(owner.lane, PostgresLane)
    return owner.lane


@contextlib.asynccontextmanager
async def session(schema: Schema) -> AsyncIterator[AsyncConnection[Any]]:
    """Another session, in a transaction that is rolled back at the end."""
    async with await AsyncConnection.connect(schema.url, options="-c search_path=") as connection:
        yield connection
        await connection.rollback()
