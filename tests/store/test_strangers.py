"""A login of the database without any right can hold up no pipeline: the locks that matter are rows
and tables of its schema."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import make_conninfo

from millwheel.errors import UsageError
from millwheel.spark.store_sessions import sole
from millwheel.store.console import administration
from millwheel.store.console.migrate import migrate
from millwheel.store.postgres.statements import _texts
from tests.support.store_sites import START, PostgresSite, Schema, deploy

PASSWORD = "a password of the tests"


@pytest.fixture
def stranger(schema: Schema) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A session of a login with no right but to connect."""
    login = f"stranger_{schema.version}_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(schema.url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {login} LOGIN PASSWORD '{PASSWORD}'")
        url = make_conninfo(schema.url, user=login, password=PASSWORD)
        try:
            with psycopg.connect(url, autocommit=True) as session:
                yield session
        finally:
            connection.execute(f"DROP ROLE {login}")


def hold_advisory_locks(session: psycopg.Connection[tuple[object, ...]], *names: str) -> None:
    """Hold all advisory locks that can be made of some names the way millwheel makes them."""
    for name in names:
        for text in (name, f"millwheel {name}"):
            for seed in range(4):
                query = "SELECT pg_try_advisory_lock(hashtextextended(%s, %s))"
                assert session.execute(query, (text, seed)).fetchone() == (True,)


def test_only_the_liveness_of_a_worker_is_told_by_an_advisory_lock() -> None:
    """It only makes a takeover faster than the lease (decision 58). Any login may hold such a
    lock. The key of a session behind a pooler is drawn for it, so no other login has it; so is that
    of `millwheel doctor`. A held `hold_tee` keeps the remnant of an interrupted fork, and no
    more."""
    of_sessions = {
        "own_session", "same_session", "settle_session", "release_lock", "end_backends", "try_lock",
    }  # fmt: skip
    found = {name for name, text in _texts().items() if "advisory" in text}
    assert found.difference(of_sessions) == {"heartbeat", "end_lost_leases", "hold_tee"}


async def test_a_stranger_holds_up_neither_leader_nor_deploy_nor_bucket_nor_migration(
    postgres: PostgresSite, stranger: psycopg.Connection[tuple[object, ...]]
) -> None:
    schema, store, one = postgres.schema, postgres.store, str(uuid.uuid4())
    hold_advisory_locks(stranger, schema.name, f"{schema.name} {one}")
    began = time.monotonic()
    migrate(schema.url, schema.name)
    await deploy(store)
    await store.register_worker(one, 60.0)
    assert await store.try_lead(one, 60.0) == 1
    assert (await store.view_buckets()).buckets
    bucket = await store.open_bucket("source", 7, 0, START)
    assert await store.close_bucket(bucket.id, START // 2) is not None
    await store.heartbeat(one, 60.0, {})
    await store.stop_worker(one)
    administration.drop_pipeline(schema.url, schema.name)
    assert time.monotonic() - began < administration.LOCK_SECONDS


async def test_a_stranger_with_the_liveness_lock_of_a_worker_delays_a_takeover_to_the_lease(
    postgres: PostgresSite, stranger: psycopg.Connection[tuple[object, ...]]
) -> None:
    """And makes no live worker dead."""
    store, one = postgres.store, str(uuid.uuid4())
    await deploy(store)
    await store.register_worker(one, 60.0)
    hold_advisory_locks(stranger, f"{postgres.schema.name} {one}")
    await store.heartbeat(one, 60.0, {})
    assert await store.end_lost_leases([one]) == []
    (other,) = await store.other_workers("")
    assert other.lease_left > 50


def test_a_stranger_keeps_nobody_from_work_that_one_process_does_alone(
    schema: Schema,
    stranger: psycopg.Connection[tuple[object, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millwheel.spark.store_sessions.SOLE_SECONDS", 0.0)
    hold_advisory_locks(stranger, f"{schema.name}.pages")
    with sole(schema.url, schema.name, ".pages", "another process does it"):
        pass
    stranger.execute("SELECT pg_advisory_unlock_all()")
    with (
        sole(schema.url, schema.name, ".pages", "another process does it"),
        pytest.raises(UsageError, match="another process does it; end it first"),
        sole(schema.url, schema.name, ".pages", "another process does it"),
    ):
        pass


@pytest.mark.parametrize("table", ["generation", "bucket", "leader", "key_interval"])
def test_a_stranger_cannot_lock_what_is_locked_instead(
    schema: Schema, stranger: psycopg.Connection[tuple[object, ...]], table: str
) -> None:
    with pytest.raises(errors.InsufficientPrivilege), stranger.transaction():
        stranger.execute(schema.compose("LOCK TABLE {t} IN ACCESS SHARE MODE", t=table))
