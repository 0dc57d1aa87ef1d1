"""Copies that leave the store: savepoints in files, and forks in other stores."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from millwheel import Inbox, Pipeline, Table
from millwheel.errors import InputError, MillwheelError, OutputError, UsageError
from millwheel.services.run import Run, Summary
from millwheel.store.console.inspection import inspect
from millwheel.store.console.migrate import migrate
from millwheel.store.copies import row_files
from millwheel.store.copies.file_manifest import manifest_text, read_manifest
from millwheel.store.copies.file_places import (
    MANIFEST,
    PARTIAL,
    DirectoryPlace,
    ObjectPlace,
    is_place,
    place_of,
)
from millwheel.store.copies.file_savepoints import LOAD_SCRIPT, FileLabel, write_savepoint
from millwheel.store.copies.forks import ForkTo, fork_files, fork_to_store
from millwheel.store.copies.layout import SchemaLayout, layout_of
from millwheel.store.copies.origins import EMPTY
from millwheel.store.embedded import binaries
from tests.support.copied_pipelines import USERS_OWN, rows_of, run
from tests.support.object_files import ObjectFiles
from tests.support.orders import ORDERS, TOTALS, AddUp, Order, Total
from tests.support.servers import database
from tests.support.store_sites import Schema
from tests.support.visit_files import SHARED, pipeline, write

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
        assert columns_of(before, "wheel") == columns_of(after, "wheel2")
        for table in layouts[0].tables:
            if table.name not in OWN_ROWS | EMPTY:
                found = rows_of(after, "wheel2", table.name)
                assert found == rows_of(before, "wheel", table.name), table.name
        assert [rows_of(after, "wheel2", table) for table in sorted(EMPTY)] == [[]] * len(EMPTY)
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


COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
    a.attcollation::regcollation, a.attstorage, a.attidentity, a.attgenerated,
    pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum), ARRAY(
        SELECT pg_get_constraintdef(k.oid) FROM pg_constraint k
        WHERE k.conrelid = c.oid AND k.contype = 'c' ORDER BY k.conname
    )
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' ORDER BY 1, a.attnum
"""


def columns_of(connection: psycopg.Connection[Any], schema: str) -> list[Any]:
    path = sql.SQL("SET search_path = {}").format(sql.Identifier(schema))
    connection.execute(path)
    return connection.execute(COLUMNS).fetchall()


def compared(layout: SchemaLayout) -> SchemaLayout:
    """Without sizes on disk, and without forms in which versions print the same definition."""
    return layout._replace(
        tables=[one._replace(bytes=0, blocks=0) for one in layout.tables],
        functions=sorted(one._replace(called="", definition="") for one in layout.functions),
        views=[one._replace(definition="") for one in layout.views],
    )


# -- files ----------------------------------------------------------------------------------------


@pytest.fixture
async def saved(new_schema: Callable[[int], Schema], tmp_path: Path) -> tuple[Schema, Path]:
    """A pipeline, and the directory of its savepoint."""
    origin = new_schema(18)
    await run(origin, tmp_path)
    directory = tmp_path / "one"
    write_savepoint(origin.url, "wheel", DirectoryPlace(directory), LABEL)
    return origin, directory


def test_each_damage_names_the_file(saved: tuple[Schema, Path]) -> None:
    """Whatever byte of a file is another one, and if a part of it is missing, or all."""
    origin, directory = saved
    manifest = read_manifest(DirectoryPlace(directory))
    assert len(manifest.files) > 10
    assert not EMPTY & {one.table for one in manifest.files}, "they have the workers' secret"
    for number, one in enumerate(manifest.files):
        file = directory / one.file
        whole = file.read_bytes()
        place = number * len(whole) // len(manifest.files)
        changed = bytes([*whole[:place], whole[place] ^ 4, *whole[place + 1 :]])
        for damage in (changed, whole[:place], whole + b"x", None):
            file.unlink() if damage is None else file.write_bytes(damage)
            with pytest.raises(InputError, match=f"{one.file}.* Nothing was made"):
                fork_files(DirectoryPlace(directory), "wheel", to(origin))
        file.write_bytes(whole)
    assert "wheel2" not in schemas(origin)


@pytest.mark.parametrize(
    "change", [(b"user 1", b"user 9"), (b"user 1", b"user,1"), (b"visits", b"v")]
)
def test_rows_that_another_program_has_written_are_refused(
    saved: tuple[Schema, Path], change: tuple[bytes, bytes]
) -> None:
    """A whole gzip file of the same size: with valid rows, with wrong ones, or another header."""
    origin, directory = saved
    manifest = read_manifest(DirectoryPlace(directory))
    (one,) = (one for one in manifest.files if one.table == "minute")
    text = gzip.decompress((directory / one.file).read_bytes())
    other = gzip.compress(text.replace(*change), 9)
    assert change[0] in text
    (directory / one.file).write_bytes(other.ljust(one.bytes, b"\0"))
    with pytest.raises(InputError, match=f"{one.file}, rows of table 'minute', is damaged"):
        fork_files(DirectoryPlace(directory), "wheel", to(origin))
    assert "wheel2" not in schemas(origin)


def test_a_manifest_that_is_not_as_written_is_refused(saved: tuple[Schema, Path]) -> None:
    origin, directory = saved
    file = directory / MANIFEST
    whole = file.read_bytes()
    for place in range(0, len(whole), len(whole) // 50):
        file.write_bytes(bytes([*whole[:place], whole[place] ^ 4, *whole[place + 1 :]]))
        with pytest.raises(MillwheelError, match=r"manifest\.json"):
            fork_files(DirectoryPlace(directory), "wheel", to(origin))
        file.write_bytes(whole[:place])
        with pytest.raises(InputError, match=r"manifest\.json is damaged"):
            fork_files(DirectoryPlace(directory), "wheel", to(origin))
    file.unlink()
    with pytest.raises(UsageError, match=r"has no manifest\.json"):
        fork_files(DirectoryPlace(directory), "wheel", to(origin))


def test_files_of_other_versions_are_refused_with_a_way_out(saved: tuple[Schema, Path]) -> None:
    origin, directory = saved
    file = directory / MANIFEST
    envelope = msgspec.json.decode(file.read_bytes())
    manifest = read_manifest(DirectoryPlace(directory))
    file.write_bytes(msgspec.json.encode({**envelope, "format": 2, "written_by": "9.1"}))
    with pytest.raises(UsageError, match=r"format 2, .* Load it with millwheel 9\.1"):
        fork_files(DirectoryPlace(directory), "wheel", to(origin))
    for version, remedy in (("0021", "millwheel migrate wheel"), ("9999", "newer millwheel")):
        changed = msgspec.structs.replace(manifest, schema_version=version)
        file.write_bytes(manifest_text(changed, "0.0.9"))
        with pytest.raises(UsageError, match=f"at version {version}.*{remedy}"):
            fork_files(DirectoryPlace(directory), "wheel", to(origin))


def test_names_that_are_taken(saved: tuple[Schema, Path], tmp_path: Path) -> None:
    origin, directory = saved
    place = DirectoryPlace(directory)
    with pytest.raises(UsageError, match="one is not empty"):
        write_savepoint(origin.url, "wheel", place, LABEL)
    with pytest.raises(UsageError, match="schema 'wheel' in the other store already"):
        fork_files(place, "wheel", to(origin, "wheel"))
    with pytest.raises(UsageError, match="schema 'wheel' in the other store already"):
        fork_to_store(origin.url, "wheel", to(origin, "wheel"))
    with pytest.raises(UsageError, match="is of pipeline 'wheel', not of 'shop'"):
        fork_files(place, "shop", to(origin))
    (tmp_path / "two").mkdir()  # an empty directory is as good as none
    write_savepoint(origin.url, "wheel", DirectoryPlace(tmp_path / "two"), LABEL)
    assert fork_files(DirectoryPlace(tmp_path / "two"), "wheel", to(origin)).rows > 0
    assert [*tmp_path.glob(f"*{PARTIAL}")] == []


def schemas(schema: Schema) -> list[str]:
    return [name for (name,) in schema.query("SELECT nspname FROM pg_namespace")]


async def test_no_room(
    new_schema: Callable[[int], Schema], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = new_schema(18)
    await run(origin, tmp_path)
    place = DirectoryPlace(tmp_path / "one")
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
        with pytest.raises(OutputError, match="has 1,000 bytes free"):
            write_savepoint(origin.url, "wheel", place, LABEL)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_after(5))
        with pytest.raises(OutputError, match=r"No space left on device.* Make room"):
            write_savepoint(origin.url, "wheel", place, LABEL)
    assert [name for name in os.listdir(tmp_path) if name.startswith("one")] == []
    write_savepoint(origin.url, "wheel", place, LABEL)
    assert read_manifest(place).rows > 0


def full_after(files: int) -> Callable[[int], None]:
    """A disk on which a file can be made durable so many times."""
    left = iter(range(files))

    def sync(_: int) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return sync


async def test_rows_keep_null_and_every_character(
    new_schema: Callable[[int], Schema], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In files of a few rows each, and the empty text is not NULL."""
    monkeypatch.setattr(row_files, "PART_BYTES", 100)
    monkeypatch.setattr(row_files, "BLOCK_BYTES", 50)
    origin, target = new_schema(18), new_schema(15)
    await run(origin, tmp_path)
    origin.query("CREATE TABLE {odd} (a text, b bytea, c float8, d interval, e text[])", odd="odd")
    values = ["", None, "\\N", '"', ",", "a\nb\r\n", "\\.", "\u2028ü", "x" * 500]
    for text in values:
        origin.query(
            "INSERT INTO {odd} VALUES (%s, %s, %s, '1 mon -3 days 00:00:00.000001', %s)",
            text, None if text is None else text.encode(), 0.1 + 0.2, [text, None], odd="odd",
        )  # fmt: skip
    place = DirectoryPlace(tmp_path / "one")
    made = write_savepoint(origin.url, "wheel", place, LABEL)
    odd = [one for one in read_manifest(place).files if one.table == "odd"]
    assert len(odd) > 2
    assert sum(one.rows for one in odd) == len(values)
    assert made.rows == fork_files(place, "wheel", to(target)).rows
    with psycopg.connect(origin.url) as before, psycopg.connect(target.url) as after:
        assert rows_of(after, "wheel2", "odd") == rows_of(before, "wheel", "odd")
        found = after.execute("SELECT a, b IS NULL FROM wheel2.odd").fetchall()
    assert found == [(text, text is None) for text in values]


# -- object stores --------------------------------------------------------------------------------


async def test_an_object_store_holds_a_savepoint(
    new_schema: Callable[[int], Schema], tmp_path: Path
) -> None:
    origin = new_schema(18)
    await run(origin, tmp_path)
    files = ObjectFiles()

    def place() -> ObjectPlace:
        return ObjectPlace(files, "bucket/one", "s3://bucket/one")

    files.fails_at = lambda name: name.endswith(MANIFEST)
    with pytest.raises(OutputError, match="the object store went away"):
        write_savepoint(origin.url, "wheel", place(), LABEL)
    assert files.objects == {}, "it is tidied up"
    files.objects["bucket/one/rows/left"] = b"by a process that was killed"
    with pytest.raises(UsageError, match="is not empty: 1 files"):
        write_savepoint(origin.url, "wheel", place(), LABEL)
    with pytest.raises(UsageError, match="interrupted or is still being written"):
        fork_files(place(), "wheel", to(origin))
    files.objects.clear()
    files.fails_at = lambda _: False
    made = write_savepoint(origin.url, "wheel", place(), LABEL)
    assert next(reversed(files.objects)) == f"bucket/one/{MANIFEST}", "it comes last"
    with pytest.raises(UsageError, match="has a savepoint already"):
        write_savepoint(origin.url, "wheel", place(), LABEL)
    assert fork_files(place(), "wheel", to(origin)).rows == made.rows
    one = read_manifest(place()).files[-1]
    del files.objects[f"bucket/one/{one.file}"]
    with pytest.raises(InputError, match=f"{one.file} is missing"):
        fork_files(place(), "wheel", to(origin, "wheel3"))


async def test_a_place_by_its_url(new_schema: Callable[[int], Schema], tmp_path: Path) -> None:
    """With the package itself, where it is installed."""
    pytest.importorskip("fsspec")
    origin = new_schema(18)
    await run(origin, tmp_path)
    made = write_savepoint(origin.url, "wheel", place_of("memory://bucket/one"), LABEL)
    with pytest.raises(UsageError, match="has a savepoint already"):
        write_savepoint(origin.url, "wheel", place_of("memory://bucket/one"), LABEL)
    assert fork_files(place_of("memory://bucket/one"), "wheel", to(origin)).rows == made.rows
    with pytest.raises(UsageError, match="no savepoint"):
        fork_files(place_of("memory://bucket/two"), "wheel", to(origin))


def test_a_url_without_its_package_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r"s3://\*\*\*@bucket/one .*millwheel-engine\[objects\]"):
        place_of("s3://me:secret@bucket/one")


def test_labels_are_told_from_places() -> None:
    assert not is_place("before-march")
    assert all(map(is_place, ["./one", "/backup/one", "~/one", "s3://bucket/one", ".."]))
    assert place_of("file:///backup/one").text == "/backup/one"


# -- other programs, and other processes ----------------------------------------------------------


async def test_psql_alone_loads_a_savepoint(
    new_schema: Callable[[int], Schema], postgres_url: Callable[[int], str], tmp_path: Path
) -> None:
    origin = new_schema(15)
    await run(origin, tmp_path)
    origin.query("CREATE VIEW {mine} AS SELECT * FROM {minute}", mine="mine", minute="minute")
    write_savepoint(origin.url, "wheel", DirectoryPlace(tmp_path / "one"), LABEL)
    packaged = binaries.packaged_directory()
    assert packaged is not None
    with database(postgres_url(18)) as url:
        words = [str(packaged / "psql"), "--no-psqlrc", "--quiet", "--file", LOAD_SCRIPT, url]
        done = await asyncio.to_thread(output, words, tmp_path / "one")
        assert done == (b"", b"", 0)
        with psycopg.connect(origin.url) as before, psycopg.connect(url) as after:
            for table in ("state", "mine", "states", "commit_record"):
                assert rows_of(after, "wheel", table) == rows_of(before, "wheel", table), table
        files, totals = write(tmp_path, 300)
        summary = await Run(pipeline("wheel", files), url).run()
        assert summary.read == 100
        with psycopg.connect(url) as connection:
            rows = connection.execute("SELECT * FROM wheel.minute").fetchall()
        assert {(user, minute): visits for user, minute, visits in rows} == totals


def output(words: list[str], directory: Path) -> tuple[bytes, bytes, int]:
    done = subprocess.run(words, cwd=directory, capture_output=True)
    return done.stdout, done.stderr, done.returncode


COMMAND = (sys.executable, "-P", "-m", "millwheel.cli.main")


@pytest.fixture
async def large(new_schema: Callable[[int], Schema], tmp_path: Path) -> Schema:
    """A pipeline whose copy takes some seconds."""
    origin = new_schema(18)
    await run(origin, tmp_path)
    origin.query(
        "CREATE TABLE {large} AS SELECT n, md5(n::text) AS text FROM generate_series(1, 600000) n",
        large="large",
    )
    return origin


@contextlib.contextmanager
def command(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the command line, killed when the block ends."""
    with subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def wait_until(process: subprocess.Popen[bytes], holds: Callable[[], bool]) -> None:
    """While the process runs."""
    while not holds():
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.005)


def test_a_killed_savepoint_leaves_none(large: Schema, tmp_path: Path) -> None:
    directory, partial = tmp_path / "one", tmp_path / f"one{PARTIAL}"
    words = ("savepoint", "wheel", "one", "--to", str(directory), "--store", large.url)
    with command(*words) as process:
        wait_until(process, lambda: any(partial.glob("rows/*large*")))
        with pytest.raises(UsageError, match="another process writes a savepoint"):
            write_savepoint(large.url, "wheel", DirectoryPlace(directory), LABEL)
        process.kill()
    assert not directory.exists()
    assert partial.exists()
    assert not (partial / MANIFEST).exists()
    made = write_savepoint(large.url, "wheel", DirectoryPlace(directory), LABEL)
    assert made.rows > 600_000
    assert not partial.exists()
    assert {path.name for path in directory.iterdir()} == {"rows", LOAD_SCRIPT, MANIFEST}


@pytest.mark.parametrize("way", ["files", pytest.param("straight", marks=pytest.mark.soak)])
def test_a_killed_fork_leaves_no_schema(
    large: Schema, new_schema: Callable[[int], Schema], tmp_path: Path, way: str
) -> None:
    target = new_schema(15)
    directory = tmp_path / "one"
    if way == "files":
        write_savepoint(large.url, "wheel", DirectoryPlace(directory), LABEL)
    source = ["--from", str(directory)] if way == "files" else []
    words = ("fork", "wheel", "--as", "wheel2", *source, "--to-store", target.url)
    with command(*words, "--store", large.url) as process:
        wait_until(process, lambda: is_loading(target))
        assert "wheel2" not in schemas(target), "nobody sees it before it is whole"
        process.kill()
    wait_until_gone(target)
    assert "wheel2" not in schemas(target)
    done = subprocess.run([*COMMAND, *words, "--store", large.url, "--json"], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "wheel2"
    assert "wheel2" in schemas(target)
    assert "fork" in verbs(target, "wheel2")
    assert ("fork" in verbs(large, "wheel")) == (way == "straight"), "it is in the origin's log too"


def verbs(schema: Schema, name: str) -> list[str]:
    with psycopg.connect(schema.url) as connection:
        table = sql.Identifier(name, "request")
        return [
            verb for (verb,) in connection.execute(sql.SQL("SELECT verb FROM {}").format(table))
        ]


def is_loading(target: Schema) -> bool:
    return bool(copying(target, "COPY % FROM STDIN%"))


def wait_until_gone(target: Schema) -> None:
    while copying(target, "%"):
        time.sleep(0.02)


def copying(target: Schema, query: str) -> list[Any]:
    return target.query(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'millwheel copy' "
        "AND datname = current_database() AND query LIKE %s",
        query,
    )


# -- inboxes --------------------------------------------------------------------------------------


def shop(name: str) -> Pipeline:
    made = Pipeline(name, settings=SHARED)
    made.inject(ORDERS, Inbox())
    made.add(AddUp(), ORDERS.by(lambda order: order.customer))
    made.sink(TOTALS, Table("totals", Total, key=("customer",)))
    return made


def send(schema: Schema, name: str, numbers: range) -> None:
    """Each order in a transaction of its own, with its number as its id."""
    call = sql.SQL("SELECT {}('orders', %s::jsonb, id => %s)").format(sql.Identifier(name, "send"))
    with psycopg.connect(schema.url, autocommit=True) as connection:
        for number in numbers:
            order = msgspec.json.encode(Order(number % 7, number, number * 3))
            connection.execute(call, [order.decode(), str(number)])


@contextlib.asynccontextmanager
async def running(schema: Schema, name: str) -> AsyncIterator[asyncio.Task[Summary]]:
    stop = asyncio.Event()
    task = asyncio.create_task(Run(shop(name), schema.url, keep_open=True).run(stop))
    try:
        yield task
    finally:
        stop.set()
        await task


async def until(holds: Callable[[], bool], task: asyncio.Task[Summary]) -> None:
    for _ in range(2_000):
        if holds() or task.done():
            return
        await asyncio.sleep(0.05)
    raise TimeoutError


async def totals_of(schema: Schema, name: str, number: int) -> list[Any]:
    """When so many orders are processed."""
    async with running(schema, name) as task:
        await until(lambda: added_up(schema, name) >= number, task)
    with psycopg.connect(schema.url) as connection:
        table = sql.Identifier(name, "totals")
        return connection.execute(sql.SQL("SELECT * FROM {} ORDER BY 1").format(table)).fetchall()


def added_up(schema: Schema, name: str) -> int:
    with inspect(schema.url) as inspection:
        steps = inspection.status(name).computations if name in inspection.pipelines() else []
    return sum(one.processed for one in steps if one.kind == "computation")


def expected(number: int) -> list[Any]:
    totals: dict[int, Total] = {}
    for n in range(number):
        order = Order(n % 7, n, n * 3)
        totals[order.customer] = totals.get(order.customer, Total(order.customer)).after(order)
    return [msgspec.structs.astuple(totals[customer]) for customer in sorted(totals)]


@pytest.mark.parametrize(
    "versions", [VERSIONS[0], pytest.param(VERSIONS[1], marks=pytest.mark.soak)], ids=str
)
async def test_records_that_were_sent_and_not_taken_are_processed_once(
    new_schema: Callable[[int], Schema], tmp_path: Path, versions: tuple[int, int]
) -> None:
    """Each server counts its transactions by itself: one is far ahead of the other."""
    origin, target = map(new_schema, versions)
    with psycopg.connect(origin.url, autocommit=True) as connection:
        for _ in range(2_000):
            connection.execute("SELECT pg_current_xact_id()")
    place = DirectoryPlace(tmp_path / "one")
    migrate(origin.url, "shop")
    async with running(origin, "shop") as task:
        await until(lambda: has_inbox(origin, "shop"), task)
        send(origin, "shop", range(500))
        await until(lambda: added_up(origin, "shop") > 0, task)
        await asyncio.to_thread(write_savepoint, origin.url, "shop", place, LABEL)
    send(origin, "shop", range(500, 600))
    await asyncio.to_thread(fork_to_store, origin.url, "shop", to(target, "shop3"))
    await asyncio.to_thread(fork_files, place, "shop", to(target, "shop2"))
    for name in ("shop2", "shop3"):
        send(target, name, range(400, 700))  # ids that came along have no second effect
        assert await totals_of(target, name, 700) == expected(700), name


def has_inbox(schema: Schema, name: str) -> bool:
    with psycopg.connect(schema.url) as connection:
        table = sql.Identifier(name, "inbox")
        return bool(connection.execute(sql.SQL("SELECT FROM {}").format(table)).rowcount)
