"""New code on a copy of a pipeline's state, in a test of a user."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream, Table
from millwheel.errors import DeployRefused, UsageError, UserCodeError
from millwheel.runtime.engine import Engine
from millwheel.store.console.inspection import inspect
from millwheel.store.copies.savepoints import make_savepoint
from millwheel.store.postgres.store import PostgresStore
from millwheel.testing import fork
from tests.support.store_sites import Schema

pytestmark = pytest.mark.newest

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


class Pay(msgspec.Struct):
    account: str
    cents: int


class Bill(msgspec.Struct):
    account: str
    cents: int


class Account(msgspec.Struct):
    cents: int = 0


class OtherAccount(msgspec.Struct):
    cents: list[int] = []


PAYS, BILLS = Stream("pays", Pay), Stream("bills", Bill)


class AddUp(Computation[Pay, Account]):
    writes = (BILLS,)
    fee = 0

    async def process_record(self, record: Record[Pay], ctx: Context[Account]) -> None:
        ctx.state.cents += record.value.cents + self.fee
        ctx.produce(BILLS, Bill(record.value.account, ctx.state.cents))


class WithFee(AddUp):
    """New code."""

    fee = 100


class Lists(Computation[Pay, OtherAccount]):
    """Its state does not fit."""

    writes = (BILLS,)

    async def process_record(self, record: Record[Pay], ctx: Context[OtherAccount]) -> None:
        ctx.state.cents.append(record.value.cents)


def shop(path: Path, add_up: Computation[Pay, Any]) -> Pipeline:
    made = Pipeline("wheel")
    made.inject(PAYS, JsonLines(path, follow=True), timestamp=lambda _: BEGIN)
    made.add(add_up, PAYS.by(lambda pay: pay.account), name="add_up")
    made.sink(BILLS, Table("bill", Bill, key=("account",)))
    return made


def append(path: Path, *pays: Pay) -> None:
    with path.open("ab") as file:
        file.writelines(msgspec.json.encode(pay) + b"\n" for pay in pays)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "pays.jsonl"
    append(path, Pay("ann", 1), Pay("bob", 2), Pay("ann", 3))
    return path


async def run(made: Pipeline, url: str) -> None:
    store = PostgresStore(url, made.name)
    await store.open()
    engine = Engine(made, store)
    await engine.start()
    await engine.run(until_done=True)
    await engine.stop()
    await store.close()


@pytest.fixture
def old(schema: Schema, path: Path) -> Schema:
    """A store whose pipeline has run."""
    asyncio.run(run(shop(path, AddUp()), schema.url))
    return schema


def names(schema: Schema) -> list[str]:
    with inspect(schema.url) as inspection:
        return inspection.pipelines()


def test_new_code_runs_on_from_the_state_of_the_pipeline(old: Schema, path: Path) -> None:
    append(path, Pay("ann", 10))
    with fork(old.url, "wheel") as copy:
        assert copy.origin == "wheel"
        assert copy.state("add_up", "ann") == {"cents": 4}
        copy.run(shop(path, WithFee()))
        assert copy.state("add_up", "ann") == {"cents": 114}
        rows = copy.query("SELECT * FROM bill WHERE account = %s", ["ann"])
        assert rows == [("ann", 114)]
        copy.run(shop(path, WithFee()))
        assert copy.state("add_up", "ann") == {"cents": 114}, "each payment counts once"
        assert names(old) == ["wheel", copy.name]
    assert names(old) == ["wheel"]
    with psycopg.connect(old.url) as connection:
        found = connection.execute("SELECT cents FROM wheel.bill WHERE account = 'ann'").fetchall()
    assert found == [(4,)], "the original is as it was"


def test_code_that_does_not_fit_the_state_is_refused(old: Schema, path: Path) -> None:
    with pytest.raises(DeployRefused, match="OtherAccount"), fork(old.url) as copy:
        copy.run(shop(path, Lists()))
    assert names(old) == ["wheel"], "the copy is dropped after a failure"


def test_a_savepoint_or_nothing(old: Schema, path: Path) -> None:
    make_savepoint(old.url, "wheel", "one")
    with fork(old.url, "wheel", savepoint="one") as copy:
        assert copy.origin == "wheel@one"
        assert copy.state("add_up", "bob") == {"cents": 2}
    missing = pytest.raises(UsageError, match="no savepoint 'wheel@two'")
    with missing, fork(old.url, "wheel", savepoint="two"):
        pass
    with pytest.raises(UsageError, match="no pipeline 'shop'"), fork(old.url, "shop"):
        pass
    assert names(old) == ["wheel"]


def test_an_end_that_does_not_come(old: Schema, path: Path) -> None:
    with fork(old.url) as copy, pytest.raises(UserCodeError, match="within 0 s"):
        copy.run(shop(path, WithFee()), seconds=0.0)
