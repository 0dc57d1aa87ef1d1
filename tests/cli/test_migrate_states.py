"""``millwheel migrate --states``: stored values come to the present version while workers run."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from millwheel.store.console.old_states import BEFORE_ALL, CurrentVersion, OldStates
from tests.support.shells import Running, Shell
from tests.support.store_sites import Schema

MODULE = """
import os
from datetime import datetime

from msgspec import Struct, field

from millwheel import Computation, Context, JsonLines, MapState, Pipeline, Record, Settings, Stream


class Sale(Struct):
    at: datetime
    key: str
    cents: int


class Till(Struct):
    dollars: float = 0.0
    by_shop: MapState[str, float] = field(default_factory=MapState)


SALES = Stream("sales", Sale)


class Tills(Computation[Sale, Till]):
    async def process_record(self, record: Record[Sale], ctx: Context[Till]) -> None:
        ctx.state.dollars += record.value.cents / 100
        by_shop = ctx.state.by_shop
        by_shop.put("shop", (await by_shop.get("shop") or 0) + record.value.cents / 100)


pipeline = Pipeline("tills", settings=Settings(intervals=4))
pipeline.inject(SALES, JsonLines(os.environ["INPUT"], follow=True), timestamp=lambda sale: sale.at)
pipeline.add(Tills(), SALES.by(lambda sale: sale.key))
"""

NEW = (
    MODULE.replace("dollars: float = 0.0", "cents: int = 0")
    .replace("MapState[str, float]", "MapState[str, int]")
    .replace("ctx.state.dollars +=", "ctx.state.cents +=")
    .replace("record.value.cents / 100", "record.value.cents")
    .replace(
        "    async def process_record",
        """    version = 2
    migrations = {1: lambda old: {"cents": round(old.get("dollars", 0) * 100)}}
    entry_migrations = {"by_shop": {1: lambda old: round(old * 100)}}

    async def process_record""",
    )
)
"""The same tills in cents."""

KEYS = 300


@pytest.fixture
def shell(tmp_path: Path, new_schema: Callable[[int], Schema]) -> Shell:
    return Shell(tmp_path, new_schema(18).url, "tills")


def wait_for(shell: Shell, running: Running, text: str, count: int) -> None:
    for _ in range(300):
        if rows(shell, text) == [(count,)]:
            return
        assert running.process.poll() is None, running.end()
        time.sleep(0.1)
    raise AssertionError(rows(shell, text))


def deploy_former(shell: Shell, keys: int) -> None:
    """Sell 1 cent to each key by code of version 1."""
    deploy_to(shell, MODULE)
    shell("migrate", "tills")
    sell(shell, keys, cents=1)
    running = shell.start("run", "tills:pipeline")
    wait_for(shell, running, "SELECT count(*) FROM tills.state", 2 * keys)
    running.end(signal.SIGINT)


def deploy_new(shell: Shell) -> None:
    """Run code of version 2 until it has all intervals."""
    deploy_to(shell, NEW)
    running = shell.start("run", "tills:pipeline")
    wait_for(shell, running, "SELECT min(generation) FROM tills.key_interval", 2)
    running.end(signal.SIGINT)


def deploy_to(shell: Shell, module: str) -> None:
    (shell.directory / "tills.py").write_text(module)


def sell(shell: Shell, keys: int, cents: int) -> None:
    rows = [
        {"at": f"2026-01-01T00:00:{cents:02}Z", "key": f"k{key}", "cents": cents}
        for key in range(keys)
    ]
    shell.write(rows, append=True)


def rows(shell: Shell, text: str) -> list[tuple[object, ...]]:
    with psycopg.connect(shell.environment["MILLWHEEL_STORE"]) as connection:
        return connection.execute(sql.SQL(text)).fetchall()


SHOWN = """
SELECT t.version, s.version, t.cents, s.value, count(*)
FROM tills.state_of_tills AS t JOIN tills.state_of_tills_by_shop AS s USING (key)
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""


def test_states_are_migrated_while_a_worker_runs(shell: Shell) -> None:
    """The arithmetic of all keys is in the view at every moment: NULL, or the right number."""
    deploy_former(shell, KEYS)
    deploy_to(shell, NEW)
    assert "Deploy this code first" in shell("migrate", "tills:pipeline", "--states", code=2)

    running = shell.start("run", "tills:pipeline")
    sell(shell, 50, cents=2)
    wait_for(shell, running, "SELECT count(*) FROM tills.state_of_tills WHERE version = 2", 50)
    assert rows(shell, SHOWN) == [(1, 1, None, None, KEYS - 50), (2, 2, 3, 3, 50)]
    said = shell("migrate", "tills:pipeline", "--states")
    assert "every stored state has the present version" in said
    assert rows(shell, SHOWN) == [(2, 2, 1, 1, KEYS - 50), (2, 2, 3, 3, 50)]
    assert "0 values migrated" in shell("migrate", "tills:pipeline", "--states")

    sell(shell, KEYS, cents=4)
    wait_for(shell, running, "SELECT count(*) FROM tills.state_of_tills WHERE cents >= 5", KEYS)
    running.end(signal.SIGINT)
    assert rows(shell, SHOWN) == [(2, 2, 5, 5, KEYS - 50), (2, 2, 7, 7, 50)]


def test_values_of_intervals_that_former_code_may_own_stay(shell: Shell) -> None:
    deploy_former(shell, KEYS)
    deploy_new(shell)
    with psycopg.connect(shell.environment["MILLWHEEL_STORE"]) as connection:
        connection.execute(
            "UPDATE tills.key_interval SET generation = 1 "
            "WHERE id = (SELECT min(id) FROM tills.key_interval WHERE slot_to > 100)"
        )
    said = shell("migrate", "tills:pipeline", "--states")
    left = rows(shell, "SELECT count(*) FROM tills.states WHERE version = 1")[0][0]
    assert 0 < int(str(left)) < KEYS
    assert f"{left} values of former versions are left: {left} in key intervals" in said


def test_a_migration_that_fails_names_the_key_and_the_rest_follows(shell: Shell) -> None:
    deploy_former(shell, 3)
    deploy_new(shell)
    with psycopg.connect(shell.environment["MILLWHEEL_STORE"]) as connection:
        connection.execute(
            """UPDATE tills.state SET value = '{"dollars": "odd"}' """
            """WHERE key = '"k1"' AND entry = ''"""
        )
    said = shell("migrate", "tills:pipeline", "--states", code=6)
    assert """state of 'tills', key "k1": the migration from version 1 to 2 failed""" in said
    with psycopg.connect(shell.environment["MILLWHEEL_STORE"]) as connection:
        connection.execute(
            """UPDATE tills.state SET value = '{"dollars": 0.01}' """
            """WHERE key = '"k1"' AND entry = ''"""
        )
    assert rows(shell, SHOWN) == [(1, 2, None, 1, 1), (2, 2, 1, 1, 2)]
    assert "every stored state" in shell("migrate", "tills:pipeline", "--states")
    assert rows(shell, SHOWN) == [(2, 2, 1, 1, 3)]


def test_a_value_that_has_changed_since_it_was_read_stays(shell: Shell) -> None:
    deploy_former(shell, 3)
    url = shell.environment["MILLWHEEL_STORE"]
    ((computation,),) = rows(shell, "SELECT id FROM tills.computation WHERE name = 'tills'")
    with psycopg.connect(url, autocommit=True) as connection:
        states = OldStates(connection, "tills")
        current = CurrentVersion(int(str(computation)), 2, since=1)
        page = states.page([current], BEFORE_ALL)
        assert len(page.found) == 6
        assert page.last is not None
        assert states.page([current], page.last).last is None
        changed, held, *_ = page.found
        with psycopg.connect(url) as owner:
            owner.execute(
                "UPDATE tills.state SET value = '7' WHERE (key, entry) = (%s, %s)",
                (changed.place.key, changed.place.entry),
            )
            owner.commit()
            owner.execute(
                "SELECT FROM tills.state WHERE (key, entry) = (%s, %s) FOR UPDATE",
                (held.place.key, held.place.entry),
            )
            assert states.replace([(of, b"8", 2) for of in page.found]) == 4
    values = rows(shell, "SELECT value, version, count(*) FROM tills.state GROUP BY 1, 2")
    assert (7, 1, 1) in values, "somebody else has written it"
    assert (8, 2, 4) in values
    assert len(values) == 3, "the row that was held is as it was"
