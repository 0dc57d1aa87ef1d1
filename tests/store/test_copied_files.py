"""Copies that leave the store: savepoints in files, and forks in other stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from millwheel.services.run import Run
from millwheel.store.copies.file_manifest import read_manifest
from millwheel.store.copies.file_places import DirectoryPlace, place_of
from millwheel.store.copies.file_savepoints import FileLabel, write_savepoint
from millwheel.store.copies.forks import ForkTo, fork_files, fork_to_store
from millwheel.store.copies.layout import SchemaLayout, layout_of, table_definitions
from millwheel.store.copies.origins import EMPTY
from tests.support.copied_pipelines import USERS_OWN, rows_of, run
from tests.support.store_sites import Schema
from tests.support.visit_files import pipeline, write

LABEL = FileLabel("one", "0.1.0")
OWN_ROWS = {"pipeline", "key_interval", "leader", "request"}
"""Tables with rows that a copy has changed."""

Make = Callable[[Schema, Schema, Path], None]


def by_files(origin: Schema, target: Schema, directory: Path) -> None:
    write_savepoint(origin.url, "wheel", DirectoryPlace(directory / "one"), LABEL)
    fork_files(DirectoryPlace(directory / "one"), "wheel", to(target))


def straight(origin: Schema, target: Schema, directory: Path) -> None:
    fork_to_store(origin.url, "wheel", to(target))


def to(target: Schema, name: str = "wheel2") -> ForkTo:
    return ForkTo(target.url, "the other store", name)


VERSIONS = [(15, 18), (18, 15)]


@pytest.mark.parametrize("versions", VERSIONS, ids=["15 to 18", "18 to 15"])
@pytest.mark.parametrize("make", [by_files, straight])
async def test_a_copy_on_another_version_has_all_and_runs_on(
    new_schema: Callable[[int], Schema], tmp_path: Path, versions: tuple[int, int], make: Make
) -> None:
    origin, target = map(new_schema, versions)
    await run(origin, tmp_path)
    with psycopg.connect(origin.url, autocommit=True) as connection:
        connection.execute("SET search_path = wheel")
        connection.execute(USERS_OWN)
    make(origin, target, tmp_path)
    with psycopg.connect(origin.url) as before, psycopg.connect(target.url) as after:
        layouts = layout_of(before, "wheel"), layout_of(after, "wheel2")
        assert compared(layouts[0]) == compared(layouts[1])
        assert table_definitions(before, "wheel") == table_definitions(after, "wheel2")
        for table in layouts[0].tables:
            if table.name not in OWN_ROWS | EMPTY:
                found = rows_of(after, "wheel2", table.name)
                assert found == rows_of(before, "wheel", table.name), table.name
        assert rows_of(after, "wheel2", "worker") == []
        after.execute("SET search_path = wheel2")
        after.execute("INSERT INTO region (name) VALUES ('east')")
        after.execute('INSERT INTO "Shop ""1" (region, price) VALUES (3, 30)')
        assert ("east", 31) in after.execute("SELECT * FROM dear").fetchall()
    files, totals = write(tmp_path, 300)
    summary = await Run(pipeline("wheel2", files), target.url).run()
    assert summary.read == 100, "200 rows were read before"
    with psycopg.connect(target.url) as connection:
        rows = connection.execute("SELECT * FROM wheel2.minute").fetchall()
    assert {(user, minute): visits for user, minute, visits in rows} == totals


def compared(layout: SchemaLayout) -> SchemaLayout:
    """Without sizes on disk, and without forms in which versions print the same definition."""
    return layout._replace(
        tables=[one._replace(bytes=0, blocks=0) for one in layout.tables],
        functions=[one._replace(called="", definition="") for one in layout.functions],
        views=[one._replace(definition="") for one in layout.views],
    )
