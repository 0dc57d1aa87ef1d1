"""`millwheel.client`: on connections of its own, and in the caller's transaction."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
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


async def test_others_send_while_one_waits(postgres: PostgresSite, client: Client) -> None:
    assert await client.send(WORDS, "first")
    with psycopg.connect(postgres.schema.url) as connection:
        assert await client.send(WORDS, "a", id="1", connection=connection)
        waiting = asyncio.create_task(client.send(WORDS, "a", id="1"))
        await asyncio.sleep(0)
        for word in "bc":
            assert await client.send(WORDS, word)
        assert not waiting.done()
    assert not await waiting
    assert sorted(await sent(postgres)) == ["a", "b", "c", "first"]


async def test_a_large_send_and_small_ones_beside_it(
    postgres: PostgresSite, client: Client
) -> None:
    """Larger than the socket takes at once, in both directions."""
    words = [f"{number:03}{'x' * 40_000}" for number in range(400)]
    ids = [f"{number:0200}" for number in range(400)]
    assert await client.send(WORDS, "small")
    found = await asyncio.gather(
        client.send_all(WORDS, words, ids=ids), *(client.send(WORDS, "small") for _ in range(5))
    )
    assert found == [[True] * 400, *[True] * 5]
    assert [word for word in await sent(postgres) if word != "small"] == words


async def test_a_sender_that_gives_up_holds_nobody_up(
    postgres: PostgresSite, client: Client
) -> None:
    """Its connection is not used again: another answer could come on it."""
    with psycopg.connect(postgres.schema.url) as connection:
        assert await client.send(WORDS, "a", id="1", connection=connection)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.send(WORDS, "a", id="1")
        assert await client.send(WORDS, "b", id="2")
        assert not await client.send(WORDS, "b", id="2")
    assert sorted(await sent(postgres)) == ["a", "b"]


async def test_a_client_that_is_closed_while_it_sends(
    postgres: PostgresSite, client: Client
) -> None:
    with psycopg.connect(postgres.schema.url) as connection:
        assert await client.send(WORDS, "a", id="1", connection=connection)
        async with asyncio.timeout(20), Client(client.pipeline, postgres.schema.url) as other:
            assert await other.send(WORDS, "b")
            waiting = asyncio.create_task(other.send(WORDS, "a", id="1"))
            await asyncio.sleep(0.1)
            await other.close()
            with pytest.raises(StoreUnavailable):
                await waiting


async def test_a_connection_that_ends(postgres: PostgresSite, client: Client) -> None:
    """Between two sends the next one opens another; in a send its outcome is not known."""

    async def end() -> None:
        found = await postgres.query(
            "SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = %s AND datname = current_database()) AS ended",
            f"millwheel client of {postgres.schema.name}",
        )
        assert found > [(0,)]

    assert await client.send(WORDS, "a")
    await end()
    assert client._quick is not None
    while not client._quick.is_over:  # noqa: ASYNC110 - a poll will do
        await asyncio.sleep(0.01)
    assert await client.send(WORDS, "b")
    with psycopg.connect(postgres.schema.url) as connection:
        assert await client.send(WORDS, "c", id="1", connection=connection)
        waiting = asyncio.create_task(client.send(WORDS, "c", id="1"))
        await asyncio.sleep(0.1)
        await end()
        with pytest.raises(StoreUnavailable):
            await waiting
    assert await client.send(WORDS, "d")
    assert await sent(postgres) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("connections", [1, 2])
async def test_what_is_sent_is_what_arrives(
    postgres: PostgresSite, client: Client, connections: int
) -> None:
    """By the quick call and by psycopg's own: texts of all kinds, times, ids that are missing."""
    name, url = postgres.schema.name, postgres.schema.url
    words = ['"quoted"', "back\\slash", "{},NULL", "", "🦉", "NULL"]
    moment = datetime(2024, 1, 2, 3, 4, 5, 678_901, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    times = [moment, None, *[moment] * 4]
    async with Client(name, url, connections=connections) as other:
        ids = ["{a}", None, "b\\", '"', "NULL", "🦉"]
        assert await other.send_all(WORDS, words, ids=ids, at=times) == [True] * 6
        assert await other.send_all(WORDS, words, ids=ids) == [id_ is None for id_ in ids]
        for wrong in (b'"\0"', b'"\\u0000"', b"5 5"):
            with pytest.raises(SendRefused) as caught:
                await other.send_json("words", [wrong])
            assert caught.value.why == "wrong"
        for stream, id_, batch in (
            ("w\0", "a", None),
            ("words", "a\0", None),
            ("words", "a", "b\0"),
        ):
            with pytest.raises(SendRefused):
                await other.send_json(stream, [b'"a"'], ids=[id_], batch=batch)
    rows = await postgres.query("SELECT value, ts FROM {t} ORDER BY seq", t="sent_record")
    assert [json.loads(value) for value, _ in rows] == [*words, words[1]]
    micros = int(moment.timestamp() * 1_000_000)
    assert [ts == micros for _, ts in rows] == [time is not None for time in times] + [False]


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
