"""Records that users send: the store's part, and the SQL functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from millwheel.store.port import Store
from millwheel.store.port.inbox import InboxOwner, TakenRecords
from tests.support.store_sites import MemorySite, Owner, PostgresSite, Schema, Site

DAY = timedelta(days=1)

Send = Callable[..., Any]


async def opened(site: Site, *, remember: timedelta = DAY, requires_id: bool = False) -> Inbox:
    """The inbox of the stream `words`, held by an owner of everything."""
    inbox = Inbox(site, await Owner.take(site.store))
    inbox.stream = await site.store.open_inbox(
        "words", inbox.interval, requires_id=requires_id, remember=remember
    )
    return inbox


class Inbox:
    """An inbox with its owner."""

    def __init__(self, site: Site, owner: Owner) -> None:
        self.site = site
        self.owner = owner
        self.interval = owner.injector.id
        self.stream = 0

    async def send(self, value: str, **options: Any) -> Any:
        """Send a record in a transaction of its own."""
        text = msgspec.json.encode(value)
        if isinstance(self.site, PostgresSite):
            options = {"id": None, "at": None, **options}
            rows = await self.site.query(
                "SELECT {send}('words', %s::jsonb, %s, %s)",
                text.decode(), options["id"], options["at"], send="send",
            )  # fmt: skip
            return rows[0][0]
        assert isinstance(self.site, MemorySite)
        return self.site.tables.send("words", text, **options)

    async def take(self, first: int, limit: int = 100, store: Store | None = None) -> TakenRecords:
        sequencer = self.owner.claims[self.interval].interval.sequencer
        return await (store or self.site.store).take_sent(
            InboxOwner(self.stream, self.interval, sequencer), first, limit, mark=True
        )

    async def acknowledge(self, next_: int) -> None:
        """Store the injector's position, as its commits do."""
        commit = self.owner.commit(self.owner.injector)
        commit.intervals[0].position = msgspec.json.encode({"reader": {"next": next_}})
        await self.owner.lane.commit(commit)


def values_of(taken: TakenRecords) -> list[tuple[int, str]]:
    return [(number, msgspec.json.decode(value)) for number, value, _ in taken.records]


# -- the store's part ----------------------------------------------------------------------


async def test_records_are_numbered_once_in_their_order(site: Site) -> None:
    inbox = await opened(site)
    for word in ("a", "b", "c"):
        assert await inbox.send(word)
    assert values_of(await inbox.take(5, limit=2)) == [(5, "a"), (6, "b")]
    assert values_of(await inbox.take(7)) == [(7, "c")]
    assert values_of(await inbox.take(8)) == []
    read = await site.store.read_sent(inbox.interval, 6, 100)
    assert [(number, value) for number, value, _ in read] == [(6, b'"b"'), (7, b'"c"')]


async def test_an_owner_that_has_lost_the_interval_numbers_nothing(site: Site) -> None:
    """Its numbers may be those that the new owner gives to other records."""
    inbox = await opened(site)
    await inbox.send("a")
    successor = await Owner.take(await site.another(), inbox.owner.deployment)
    found = await inbox.take(0)
    assert (found.owned, found.records) == (False, [])
    inbox.owner = successor
    assert values_of(await inbox.take(0)) == [(0, "a")]


async def test_only_records_before_the_stored_position_are_deleted(site: Site) -> None:
    inbox = await opened(site)
    for word in ("a", "b", "c"):
        await inbox.send(word)
    await inbox.take(0)
    assert await site.store.forget_sent(inbox.stream, inbox.interval, 100) == 0
    await inbox.acknowledge(2)
    assert await site.store.forget_sent(inbox.stream, inbox.interval, 100) == 2
    assert [number for number, _, _ in await site.store.read_sent(inbox.interval, 0, 100)] == [2]


async def test_waiting_records_are_counted_up_to_a_limit(site: Site) -> None:
    inbox = await opened(site)
    for _ in range(3):
        await inbox.send("a")
    assert await site.store.count_sent(inbox.stream, 100) == 3
    assert await site.store.count_sent(inbox.stream, 2) == 2
    await inbox.take(0)
    assert await site.store.count_sent(inbox.stream, 100) == 0


async def test_an_id_has_one_effect_as_long_as_it_is_remembered(site: Site) -> None:
    inbox = await opened(site, remember=timedelta(microseconds=1))
    assert await inbox.send("a", id="1")
    assert not await inbox.send("a", id="1")
    if isinstance(site, MemorySite):
        site.clock.advance(1)
    await site.store.forget_sent(inbox.stream, inbox.interval, 100)
    assert await inbox.send("a", id="1")


@pytest.mark.parametrize(
    ("options", "reason"), [({"id": "1"}, "another value"), ({}, "without an id")]
)
async def test_what_an_inbox_refuses(site: Site, options: dict[str, Any], reason: str) -> None:
    inbox = await opened(site, requires_id=True)
    await inbox.send("a", id="1")
    with pytest.raises(Exception, match=reason):
        await inbox.send("b", **options)
    assert await site.store.count_sent(inbox.stream, 100) == 1


# -- transactions of Postgres --------------------------------------------------------------


def connect(schema: Schema, **options: Any) -> psycopg.Connection:
    return psycopg.connect(schema.url, **options)


def send(connection: psycopg.Connection, schema: Schema, value: str, id: str | None = None) -> bool:
    statement = schema.compose("SELECT {send}('words', %s::jsonb, id => %s)", send="send")
    row = connection.execute(statement, [f'"{value}"', id]).fetchone()
    assert row is not None
    return bool(row[0])


async def test_a_record_comes_with_its_transaction_or_not_at_all(postgres: PostgresSite) -> None:
    """It does not wait for transactions that began before, and none is lost that ends after."""
    inbox = await opened(postgres)
    schema = postgres.schema
    with connect(schema) as slow, connect(schema) as quick, connect(schema) as failed:
        send(slow, schema, "slow")
        send(failed, schema, "failed")
        send(quick, schema, "quick")
        assert values_of(await inbox.take(0)) == []
        quick.commit()
        assert values_of(await inbox.take(0)) == [(0, "quick")]
        failed.rollback()
        with slow.transaction(force_rollback=True):
            send(slow, schema, "savepoint")
        slow.commit()
        assert values_of(await inbox.take(1)) == [(1, "slow")]


async def test_the_time_that_no_later_record_is_before(postgres: PostgresSite) -> None:
    """A look promises its time once the transactions that it met have ended."""
    inbox = await opened(postgres)
    schema = postgres.schema
    with connect(schema) as slow:
        send(slow, schema, "slow")
        before = await inbox.take(0)
        later = await inbox.take(0)
        assert before.newest is not None
        assert later.oldest < before.newest
        slow.commit()
        last = await inbox.take(0)
        assert before.newest <= last.oldest
        ((_, _, ts),) = last.records
        assert ts < before.now


async def test_the_time_of_a_record_is_after_its_transactions_id(postgres: PostgresSite) -> None:
    """A transaction that only reads has no id, so a look before its first record does not meet
    it."""
    inbox = await opened(postgres)
    schema = postgres.schema
    with connect(schema) as reader:
        reader.execute("SELECT 1")
        look = await inbox.take(0)
        after = await inbox.take(0)
        assert look.newest is not None
        assert look.newest <= after.oldest
        send(reader, schema, "late")
        reader.commit()
    ((_, _, ts),) = (await inbox.take(0)).records
    assert ts >= look.now


async def test_a_look_without_a_mark_and_without_records_takes_no_transaction_id(
    postgres: PostgresSite,
) -> None:
    inbox = await opened(postgres)
    sequencer = inbox.owner.claims[inbox.interval].interval.sequencer
    current = "SELECT pg_current_xact_id()::text::bigint"
    ((before,),) = await postgres.query(current)
    taken = await postgres.store.take_sent(
        InboxOwner(inbox.stream, inbox.interval, sequencer), 0, 10
    )
    assert (taken.owned, taken.newest) == (True, None)
    assert await postgres.query(current) == [(before + 1,)]


async def test_a_transaction_that_holds_the_watermark_is_named(postgres: PostgresSite) -> None:
    """With its process, its user and its query; any writing transaction of the database counts."""
    inbox = await opened(postgres)
    schema = postgres.schema
    await inbox.acknowledge(0)
    await postgres.query("UPDATE {l} SET source = 'inbox' WHERE source IS NOT NULL", l="log")
    seen = "SELECT what, age > '1 second' FROM {h} WHERE computation = 'lines'"
    with connect(schema) as slow:
        send(slow, schema, "slow")
        pid = slow.info.backend_pid
        await asyncio.sleep(1.1)
        ((what, old),) = await postgres.query(seen, h="watermark_holders")
        assert what.startswith(f"inbox: waits for the open transaction of process {pid}, user ")
        assert what.endswith("words', $1::jsonb, id => $2)")
        assert old
    ((what, _),) = await postgres.query(seen, h="watermark_holders")
    assert what == "inbox: time of the last look"


async def test_a_repeat_waits_for_the_first_one(postgres: PostgresSite) -> None:
    """If the first one's transaction rolls back, the repeat counts."""
    inbox = await opened(postgres)
    schema = postgres.schema
    with connect(schema) as first, connect(schema) as second:
        assert send(first, schema, "a", "1")
        second.execute("SET lock_timeout = '50ms'")
        second.commit()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            send(second, schema, "a", "1")
        second.rollback()
        first.rollback()
        assert send(second, schema, "a", "1")
        second.commit()
    assert values_of(await inbox.take(0)) == [(0, "a")]


async def test_a_batch_is_all_or_nothing(postgres: PostgresSite) -> None:
    inbox = await opened(postgres)
    call = "SELECT {send_all}('words', %s::text[]::jsonb[], %s::text[], %s::timestamptz[])"
    moment = datetime(2024, 5, 1, tzinfo=UTC)

    async def send_all(*given: Any) -> Any:
        return (await postgres.query(call, *given, send_all="send_all"))[0][0]

    assert await send_all(['"a"', '"b"', '"b"'], [None, "2", "2"], [moment, None, None]) == [
        True,
        True,
        False,
    ]
    assert await send_all(['"b"', '"c"'], ["2", "3"], None) == [False, True]
    assert await send_all([], None, None) == []
    for records, ids, times, error in (
        (['"d"', '"x"'], ["4", "2"], None, "another value"),
        (['"d"', '"x"'], ["4", "4"], None, "another value"),
        (['"d"', None], None, None, "is NULL"),
        (['"d"'], ["4", "5"], None, "there are 1 records, 2 ids"),
        (['"d"', "{"], None, None, "json"),
        (['"d"'], None, ["infinity"], "infinite"),
    ):
        with pytest.raises(psycopg.Error, match=error):
            await send_all(records, ids, times)
    taken = await inbox.take(0)
    assert values_of(taken) == [(0, "a"), (1, "b"), (2, "c")]
    assert taken.records[0].ts == int(moment.timestamp()) * 1_000_000


async def test_one_record_is_treated_as_each_of_several(postgres: PostgresSite) -> None:
    """It goes another way in the function; only an array that begins at 1 has it at 1."""
    inbox = await opened(postgres)
    call = "SELECT {send_all}('words', %s::jsonb[], %s::text[], %s::timestamptz[])"

    async def send_all(*given: str | None) -> Any:
        return (await postgres.query(call, *given, send_all="send_all"))[0][0]

    time = "{2024-05-01 00:00+00}"
    assert await send_all("{1}", "{a}", time) == [True]
    assert await send_all("{1}", "{a}", None) == [False]
    assert await send_all("{2}", "{NULL}", "{NULL}") == [True]
    assert await send_all("{2}", None, time) == [True]
    for odd in ("[0:0]={b}", "{{b}}"):
        assert await send_all("{3}", odd, None) == [odd[0] == "["]
    assert await send_all("[0:0]={4}", "{c}", "[5:5]={2024-05-01 00:00+00}") == [True]
    for records, ids, times, error in (
        ("{5}", "{a}", None, "another value"),
        ("{NULL}", None, None, "is NULL"),
        ("{6}", "{}", None, "there are 1 records, 0 ids"),
        ("{6}", None, "{infinity}", "infinite"),
    ):
        with pytest.raises(psycopg.Error, match=error):
            await send_all(records, ids, times)
    taken = await inbox.take(0)
    assert [record.value for record in taken.records] == [b"1", b"2", b"2", b"3", b"4"]
    moment = int(datetime(2024, 5, 1, tzinfo=UTC).timestamp()) * 1_000_000
    assert [record.ts == moment for record in taken.records] == [True, False, True, False, True]


async def test_large_records_come_a_few_at_a_time(postgres: PostgresSite) -> None:
    inbox = await opened(postgres)
    for letter in "abc":
        await inbox.send(letter * (5 << 20))
    assert [number for number, _ in values_of(await inbox.take(0))] == [0, 1]
    assert [number for number, _ in values_of(await inbox.take(2))] == [2]
    read = await postgres.store.read_sent(inbox.interval, 0, 100)
    assert [number for number, _, _ in read] == [0, 1]
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="8 MiB"):
        await inbox.send("x" * (9 << 20))


async def test_a_role_needs_no_more_than_the_function(postgres: PostgresSite) -> None:
    await opened(postgres)
    schema = postgres.schema
    role = f"sender_of_{schema.name}"
    await postgres.query(f"CREATE ROLE {role}")
    try:
        with connect(schema) as connection:
            connection.execute(f"SET ROLE {role}")
            connection.commit()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                send(connection, schema, "a")
            connection.rollback()
            await postgres.query(f"GRANT USAGE ON SCHEMA {{schema}} TO {role}")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                send(connection, schema, "a")
            connection.rollback()
            await postgres.query(f"GRANT EXECUTE ON FUNCTION {{send}} TO {role}", send="send")
            await postgres.query(f"GRANT EXECUTE ON FUNCTION {{all}} TO {role}", all="send_all")
            # Nothing in the caller's session changes what the functions' names mean.
            connection.execute("CREATE TEMP TABLE inbox (stream int)")
            connection.execute("SET search_path = pg_temp, pg_catalog")
            assert send(connection, schema, "a")
            connection.commit()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(schema.compose("SELECT FROM {t}", t="sent_record"))
    finally:
        await postgres.query(f"DROP OWNED BY {role}")
        await postgres.query(f"DROP ROLE {role}")


async def test_a_stream_without_an_inbox_takes_nothing(postgres: PostgresSite) -> None:
    inbox = await opened(postgres)
    with pytest.raises(psycopg.errors.UndefinedObject, match="takes no records"):
        await postgres.query("SELECT {send}('totals', '1')", send="send")
    await postgres.query("DELETE FROM {f} WHERE interval_id = %s", inbox.interval, f="fold")
    await postgres.query("UPDATE {i} SET interval_id = -1", i="inbox")  # its injector was removed
    with pytest.raises(psycopg.errors.UndefinedObject, match="takes no records"):
        await postgres.query("SELECT {send}('words', '1')", send="send")
