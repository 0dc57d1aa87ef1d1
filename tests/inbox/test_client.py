"""`millwheel.client`: on connections of its own, and in the caller's transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any, cast

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from millwheel import Stream
from millwheel.client import Client
from millwheel.errors import SendRefused, StoreUnavailable, UsageError, UserCodeError
from tests.support.store_sites import Owner, PostgresSite

pytestmark = pytest.mark.newest

WORDS = Stream("words", str)


@pytest.fixture
async def client(postgres: PostgresSite) -> AsyncIterator[Client]:
    """A client of a pipeline whose stream `words` takes records."""
    owner = await Owner.take(postgres.store)
    await open_words(postgres, owner)
    async with Client(postgres.schema.name, postgres.schema.url) as client:
        yield client


async def open_words(postgres: PostgresSite, owner: Owner, **options: Any) -> None:
    await postgres.store.open_inbox(
        "words", owner.injector.id, requires_id=False, remember=timedelta(days=1), **options
    )


async def sent(postgres: PostgresSite) -> list[str]:
    rows = await postgres.query("SELECT value FROM {t} ORDER BY seq", t="sent_record")
    return [value.strip('"') for (value,) in rows]


async def test_alone_each_record_is_committed_at_once(
    postgres: PostgresSite, client: Client
) -> None:
    assert await client.send(WORDS, "a", id="1")
    assert not await client.send(WORDS, "a", id="1")
    assert await client.send_all(WORDS, ["b", "c", "a"], ids=[None, "2", "1"]) == [
        True,
        True,
        False,
    ]
    assert await client.send_all(WORDS, ["d", "e"], batch="4") == [True, True]
    assert await client.send_all(WORDS, ["d", "e"], batch="4") == [False, False]
    with pytest.raises(SendRefused, match="other records"):
        await client.send_all(WORDS, ["d", "e", "f"], batch="4")
    assert await sent(postgres) == ["a", "b", "c", "d", "e"]


async def test_in_the_callers_transaction(postgres: PostgresSite, client: Client) -> None:
    """psycopg and SQLAlchemy, with and without an event loop: rolled back with it, committed with
    it."""
    url = postgres.schema.url
    of_sqlalchemy = url.replace("postgresql://", "postgresql+psycopg://")
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await client.send(WORDS, "no", connection=connection)
        await connection.rollback()
        assert await client.send(WORDS, "async psycopg", id="x", connection=connection)
    with psycopg.connect(url) as plain:
        await client.send(WORDS, "no", connection=plain)
        plain.rollback()
        assert not await client.send(WORDS, "async psycopg", id="x", connection=plain)
        assert await client.send(WORDS, "psycopg", connection=plain)
    asynchronous = create_async_engine(of_sqlalchemy)
    async with AsyncSession(asynchronous) as session:
        await client.send(WORDS, "no", connection=session)
        await session.rollback()
        await client.send(WORDS, "async session", connection=session)
        await session.commit()
    async with asynchronous.begin() as connected:
        await client.send(WORDS, "async connection", connection=connected)
    await asynchronous.dispose()
    engine = sqlalchemy.create_engine(of_sqlalchemy)
    with Session(engine) as in_session, in_session.begin():
        await client.send_all(WORDS, ["session", "again"], ids=["y", None], connection=in_session)
    engine.dispose()
    assert await sent(postgres) == [
        "async psycopg", "psycopg", "async session", "async connection", "session", "again",
    ]  # fmt: skip


async def test_a_statement_for_the_callers_own_driver(
    postgres: PostgresSite, client: Client
) -> None:
    with psycopg.connect(postgres.schema.url) as connection:
        connection.execute(*client.statement(WORDS, "by itself", id="1"))
    assert await sent(postgres) == ["by itself"]


@pytest.mark.parametrize("own", [True, False])
async def test_refusals_say_why(postgres: PostgresSite, client: Client, own: bool) -> None:
    await client.send(WORDS, "a", id="1")
    async with await psycopg.AsyncConnection.connect(postgres.schema.url) as connection:
        given: dict[str, Any] = {} if own else {"connection": connection}
        with pytest.raises(SendRefused, match="another value") as caught:
            await client.send(WORDS, "b", id="1", **given)
        assert caught.value.why == "another_value"
        await connection.rollback()
        with pytest.raises(SendRefused, match="takes no records") as caught:
            await client.send(Stream("totals", int), 1, **given)
        assert caught.value.why == "unknown_stream"


async def test_an_id_that_an_open_transaction_has_sent(
    postgres: PostgresSite, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client does not wait for it for ever."""
    monkeypatch.setattr("millwheel.client.LOCK_SECONDS", 1)
    with psycopg.connect(postgres.schema.url, row_factory=psycopg.rows.dict_row) as connection:
        assert await client.send(WORDS, "a", id="1", connection=connection)
        with pytest.raises(SendRefused) as caught:
            await client.send(WORDS, "a", id="1")
        assert caught.value.why == "busy"
    assert not await client.send(WORDS, "a", id="1")


async def test_mistakes(postgres: PostgresSite, client: Client) -> None:
    with pytest.raises(UserCodeError, match="str"):
        await client.send(WORDS, cast(str, 5))
    with pytest.raises(UsageError, match="no time zone"):
        await client.send(WORDS, "a", at=datetime(2024, 1, 1))
    with pytest.raises(UsageError, match="1 values and 2 ids"):
        await client.send_all(WORDS, ["a"], ids=["1", "2"])
    with pytest.raises(UsageError, match="takes a psycopg connection"):
        await client.send(WORDS, "a", connection=object())
    async with Client("no_such_pipeline", postgres.schema.url) as other:
        with pytest.raises(SendRefused) as caught:
            await other.send(WORDS, "a")
        assert caught.value.why == "unknown_stream"
    assert await sent(postgres) == []


async def test_a_store_that_is_away(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millwheel.client.WAIT_SECONDS", 0.3)
    async with Client("shop", "postgresql://nobody@127.0.0.1:1/nothing") as client:
        with pytest.raises(StoreUnavailable):
            await client.send(WORDS, "a")
