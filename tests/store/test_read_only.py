"""A database that is read-only for a while, as providers make one whose disk is nearly full."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable

import psycopg
import pytest

from millwheel.errors import StoreUnavailable
from millwheel.store.console.migrate import migrate
from millwheel.store.postgres.store import PostgresStore
from tests.support.servers import VERSIONS, database

pytestmark = pytest.mark.newest

SCHEMA, WORKER = "shop", str(uuid.uuid4())
SECONDS = 60


async def test_a_worker_lives_again_when_the_database_takes_writes(
    postgres_url: Callable[[int], str],
) -> None:
    """Its connections were made while each session was read-only for its life."""
    with (
        database(postgres_url(VERSIONS[-1])) as url,
        psycopg.connect(url, autocommit=True) as operator,
    ):
        migrate(url, SCHEMA)
        name = operator.info.dbname

        def read_only(value: str) -> None:
            operator.execute("SET default_transaction_read_only = off")
            operator.execute(
                f"ALTER DATABASE {name} SET default_transaction_read_only = {value}".encode()
            )

        store = await PostgresStore(url, SCHEMA).open()
        try:
            await store.register_worker(WORKER, 15.0)
            await store.heartbeat(WORKER, 15.0, {})
            read_only("on")
            operator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = %s AND pid <> pg_backend_pid()",
                [name],
            )
            async with asyncio.timeout(SECONDS):
                while not await is_refused(store):
                    pass
            read_only("off")
            async with asyncio.timeout(SECONDS):
                while True:
                    with contextlib.suppress(StoreUnavailable):
                        await store.heartbeat(WORKER, 15.0, {})
                        break
        finally:
            await store.close()


async def is_refused(store: PostgresStore) -> bool:
    """Whether a heartbeat met a session that takes no writes."""
    try:
        await store.heartbeat(WORKER, 15.0, {})
    except StoreUnavailable as error:
        return "read-only" in str(error)
    return False
