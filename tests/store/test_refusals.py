"""What a trigger of the user's may answer, on real servers: each SQLSTATE ends where it should."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from millwheel.errors import StoreUnavailable, UserCodeError
from millwheel.runtime.engine import Engine
from millwheel.runtime.process.load import FREE_OF_CHARGE
from millwheel.store.postgres.store import PostgresStore
from tests.support.pipelines import QUICK, doing
from tests.support.servers import VERSIONS
from tests.support.store_sites import Schema
from tests.support.values import items

pytestmark = pytest.mark.newest

TEN = items(*range(10))
LIMITS = replace(QUICK, store_patience_seconds=1.5)

GUARD = """
CREATE TABLE {schema}.guarded (number bigint);
CREATE FUNCTION {schema}.guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.number = 7 THEN RAISE EXCEPTION 'no sevens' USING ERRCODE = '{code}'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard BEFORE INSERT ON {schema}.guarded
FOR EACH ROW EXECUTE FUNCTION {schema}.guard();
"""


@pytest.fixture(params=VERSIONS, ids=[f"pg{version}" for version in VERSIONS])
def guarded(
    request: pytest.FixtureRequest, new_schema: Callable[[int], Schema]
) -> Callable[[str], Schema]:
    """Gives a schema with a table that refuses the number 7 with an SQLSTATE."""

    def make(code: str) -> Schema:
        schema = new_schema(request.param)
        with psycopg.connect(schema.url, autocommit=True) as connection:
            connection.execute(GUARD.format(schema=schema.name, code=code).encode())
        return schema

    return make


async def write(record: Any, ctx: Any) -> None:
    ctx.execute("INSERT INTO guarded VALUES (%s)", (record.value.number,))


async def run(schema: Schema, **options: Any) -> tuple[list[int], list[str]]:
    """Run to the end; gives the numbers in the table, and why records were given up."""
    store = await PostgresStore(schema.url, schema.name).open()
    try:
        pipeline = doing(TEN, write, settings=LIMITS, **options)
        engine = Engine(pipeline, store, process=FREE_OF_CHARGE)
        try:
            async with asyncio.timeout(60):
                await engine.start()
                await engine.run()
        finally:
            await engine.stop()
    finally:
        await store.close()
    return numbers(schema), [
        error for (error,) in schema.query("SELECT error FROM {d} ORDER BY id", d="dead_letter")
    ]


def numbers(schema: Schema) -> list[int]:
    return [n for (n,) in schema.query("SELECT number FROM {g} ORDER BY number", g="guarded")]


ALL_BUT_SEVEN = [0, 1, 2, 3, 4, 5, 6, 8, 9]


@pytest.mark.parametrize("code", ["P0001", "23514", "MW001", "55000", "XX000", "38000", "57014"])
async def test_what_a_users_trigger_refuses_is_a_dead_letter(
    guarded: Callable[[str], Schema], code: str
) -> None:
    written, letters = await run(guarded(code), on_error="dead_letter")
    assert written == ALL_BUT_SEVEN
    assert ["no sevens" in letter for letter in letters] == [True]


async def test_what_a_users_trigger_refuses_ends_the_worker_if_its_computation_says_so(
    guarded: Callable[[str], Schema],
) -> None:
    schema = guarded("55000")
    with pytest.raises(UserCodeError, match="no sevens"):
        await run(schema)
    assert 7 not in numbers(schema)


async def test_a_race_that_is_never_won_is_a_dead_letter_after_a_while(
    guarded: Callable[[str], Schema],
) -> None:
    written, letters = await run(guarded("40P01"), on_error="dead_letter")
    assert written == ALL_BUT_SEVEN
    assert ["no sevens" in letter for letter in letters] == [True]


async def test_what_speaks_of_the_server_is_nobodys_fault_and_ends_in_time(
    guarded: Callable[[str], Schema],
) -> None:
    """Other intervals of the lane commit between, and it does not go round for ever."""
    schema = guarded("53100")
    with pytest.raises(StoreUnavailable, match="commits have failed for 2 s") as raised:
        await run(schema, on_error="dead_letter")
    assert "broke off the statement 'INSERT INTO guarded" in str(raised.value)
    assert schema.query("SELECT count(*) FROM {d}", d="dead_letter") == [(0,)]
