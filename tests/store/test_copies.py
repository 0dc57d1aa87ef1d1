"""Copies of a pipeline: the same rows and structure in another schema, of one moment."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

from millwheel.cli.made_copies import confirm_size
from millwheel.errors import UsageError
from millwheel.services.run import Run
from millwheel.store.address import StoreAddress
from millwheel.store.console.inspection import inspect
from millwheel.store.copies.copying import CopyMarks, copy_pipeline
from millwheel.store.copies.forks import fork
from millwheel.store.copies.layout import layout_of
from millwheel.store.copies.origins import EMPTY
from millwheel.store.copies.savepoints import (
    drop_savepoint,
    list_savepoints,
    make_savepoint,
)
from tests.support.copied_pipelines import USERS_OWN, rows_of, run
from tests.support.store_sites import Schema
from tests.support.visit_files import pipeline, write

pytestmark = pytest.mark.newest


async def test_a_copy_has_all_that_its_origin_has(schema: Schema, tmp_path: Path) -> None:
    await run(schema, tmp_path)
    with psycopg.connect(schema.url, autocommit=True) as connection:
        connection.execute("SET search_path = wheel")
        connection.execute(USERS_OWN)
        made = copy_pipeline(schema.url, "wheel", "wheel@one", CopyMarks())
        assert made.left_out == []
        with connection.transaction():
            origin = layout_of(connection, "wheel")
            copy = layout_of(connection, "wheel@one")
        for before, after in zip(origin.tables, copy.tables, strict=True):
            assert before._replace(bytes=0, blocks=0) == after._replace(bytes=0, blocks=0)
            if before.name not in {*EMPTY, "pipeline", "key_interval", "leader"}:
                found = rows_of(connection, "wheel@one", before.name)
                assert found == rows_of(connection, "wheel", before.name), before.name
        assert [one._replace(type="") for one in copy.sequences] == [
            one._replace(type="") for one in origin.sequences
        ]
        assert copy.keys == origin.keys
        assert copy.indexes == origin.indexes
        assert copy.defaults == origin.defaults
        assert ("region", "name", 500) in origin.statistics
        assert copy.statistics == origin.statistics
        assert copy.views == origin.views
        assert {one.name for one in copy.functions} == {one.name for one in origin.functions}
        connection.execute('SET search_path = "wheel@one"')
        connection.execute("INSERT INTO region (name) VALUES ('east')")
        connection.execute('INSERT INTO "Shop ""1" (region, price) VALUES (3, 30)')
        assert connection.execute("SELECT max(id) FROM region").fetchone() == (3,)
        assert connection.execute('SELECT max(id) FROM "Shop ""1"').fetchone() == (7,)
        assert ("east", 31) in connection.execute("SELECT * FROM dear").fetchall()
        assert connection.execute("SELECT count(*) FROM wheel.region").fetchone() == (2,)


async def test_a_copy_of_a_copy_runs_on_where_its_origin_was(
    schema: Schema, tmp_path: Path
) -> None:
    await run(schema, tmp_path)
    copy_pipeline(schema.url, "wheel", "wheel@one", CopyMarks())
    copy_pipeline(schema.url, "wheel@one", "wheel2", CopyMarks())
    files, totals = write(tmp_path, 300)
    summary = await Run(pipeline("wheel2", files), schema.url).run()
    assert summary.read == 100, "200 rows were read before"
    with psycopg.connect(schema.url) as connection:
        rows = connection.execute("SELECT * FROM wheel2.minute").fetchall()
        before = [rows_of(connection, name, "minute") for name in ("wheel", "wheel@one")]
    assert {(user, minute): visits for user, minute, visits in rows} == totals
    assert before[0] == before[1]


async def test_names_that_are_taken(schema: Schema, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="was never run"):
        copy_pipeline(schema.url, "wheel", "wheel@one", CopyMarks())
    await run(schema, tmp_path)
    copy_pipeline(schema.url, "wheel", "wheel@one", CopyMarks())
    with pytest.raises(UsageError, match="there is a schema 'wheel@one' already"):
        copy_pipeline(schema.url, "wheel", "wheel@one", CopyMarks())


ADD_STATES = """
INSERT INTO wheel.state (slot, computation, key, entry, value, version)
SELECT n %% 65536, c.id, n::text, '', '{"visits": 1}', 1
FROM wheel.computation AS c, generate_series(1, %s) AS n WHERE c.name = 'make_minutes'
"""
COPYING = """
SELECT pid FROM pg_stat_activity
WHERE application_name = 'millwheel copy' AND state = 'active' AND query LIKE 'INSERT INTO%state%'
"""


def test_a_copy_that_is_killed_leaves_nothing(schema: Schema, tmp_path: Path) -> None:
    asyncio.run(run(schema, tmp_path))
    command = ["-m", "millwheel", "--store", schema.url, "savepoint", "wheel", "one", "--yes"]
    with psycopg.connect(schema.url, autocommit=True) as connection:
        connection.execute(ADD_STATES, [400_000])
        process = subprocess.Popen([sys.executable, *command])
        while not connection.execute(COPYING).fetchall():
            assert process.poll() is None, "it was faster than this test"
        process.kill()
        process.wait()
        while connection.execute(COPYING).fetchall():
            time.sleep(0.05)
        text = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'wheel%'"
        assert connection.execute(text).fetchall() == [("wheel",)]
    assert list_savepoints(schema.url) == []
    made, dropped = make_savepoint(schema.url, "wheel", "one")
    assert (made.name, dropped) == ("wheel@one", [])


async def test_a_savepoint_whose_time_is_over_is_dropped_by_the_next_one(
    schema: Schema, tmp_path: Path
) -> None:
    await run(schema, tmp_path)
    past = datetime.now(UTC) - timedelta(seconds=1)
    make_savepoint(schema.url, "wheel", "kept", keep_until=past + timedelta(days=1))
    make_savepoint(schema.url, "wheel", "old", keep_until=past)
    (old, kept) = list_savepoints(schema.url, "wheel")
    assert (old.name, old.is_expired, kept.is_expired) == ("wheel@old", True, False)
    _, dropped = make_savepoint(schema.url, "wheel", "new")
    assert dropped == ["wheel@old"]
    assert [one.label for one in list_savepoints(schema.url)] == ["new", "kept"]
    drop_savepoint(schema.url, "wheel@new")
    with pytest.raises(UsageError, match="there is no savepoint 'wheel@new'"):
        drop_savepoint(schema.url, "wheel@new")
    for label in ("", "A", "ü", "a" * 58, "-a"):
        with pytest.raises(UsageError, match="cannot name a savepoint"):
            make_savepoint(schema.url, "wheel", label)


async def test_no_list_of_pipelines_has_a_savepoint(schema: Schema, tmp_path: Path) -> None:
    await run(schema, tmp_path)
    make_savepoint(schema.url, "wheel", "one")
    fork(schema.url, "wheel@one", "wheel2")
    with inspect(schema.url) as inspection:
        assert inspection.pipelines() == ["wheel", "wheel2"]
    with pytest.raises(UsageError, match="cannot name a pipeline"):
        fork(schema.url, "wheel", "Wheel@2")
    with psycopg.connect(schema.url) as connection:
        text = "SELECT name, origin, withholds FROM wheel2.pipeline"
        assert connection.execute(text).fetchall() == [("wheel2", "wheel@one", True)]
        moments = [
            connection.execute(f'SELECT copied_at FROM "{name}".pipeline').fetchone()
            for name in ("wheel@one", "wheel2")
        ]
    assert moments[0] == moments[1]


def test_a_disk_with_too_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an embedded store, before anything is made."""
    usage = SimpleNamespace(free=1_000)
    monkeypatch.setattr("millwheel.cli.made_copies.shutil.disk_usage", lambda _: usage)
    presence = SimpleNamespace(url="postgresql://", address=StoreAddress(directory=tmp_path))
    with pytest.raises(UsageError, match=r"about 5 MB, and the disk of .* has 1,000 bytes left"):
        confirm_size(presence, 5_000_000, sure=True)  # type: ignore[arg-type]
