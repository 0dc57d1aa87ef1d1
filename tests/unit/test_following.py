"""Files that are followed: each whole line once, in order, whatever writers and rotation do."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
import structlog
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millwheel.errors import InputError, UsageError
from millwheel.files import (
    Csv,
    JsonLines,
    content,
    directory,
    followed_files,
    followed_path,
    packed,
    position_search,
    watching,
)
from millwheel.files import discovery as discovering
from millwheel.files import reader as reading
from millwheel.files.file_sources import GrowingFiles
from millwheel.files.followed_position import FILE_ROWS
from millwheel.sources import GrowingSource, Reader, Row, Source
from tests.support.examples import examples

DEADLINE_SECONDS = 20.0
IN_FILE_2 = FILE_ROWS
IN_FILE_3 = 2 * FILE_ROWS


class Line(msgspec.Struct):
    a: int
    b: str = ""


@pytest.fixture(autouse=True)
def _no_grace() -> Iterator[None]:
    """A file is left at the second look, however soon it comes."""
    with (
        mock.patch.object(followed_files, "GRACE_SECONDS", 0.0),
        mock.patch.object(position_search, "ATTEMPT_SECONDS", 0.0),
    ):
        yield


@asynccontextmanager
async def following_of(
    source: Source, value_type: Any = Any, position: Any = None
) -> AsyncIterator[Reader]:
    (partition,) = source.partitions()
    if position is not None:
        position = json.loads(json.dumps(position))
    reader = await partition.open(value_type, position)
    try:
        yield reader
    finally:
        reader.close()


async def all_there(reader: Reader, limit: int = 100) -> list[Row]:
    """What can be read now; looks often enough to leave files that were renamed."""
    rows: list[Row] = []
    for _ in range(12):
        while more := await reader.read(limit):
            rows += more
    return rows


async def until(reader: Reader, count: int) -> list[Row]:
    """So many rows, as an injector gets them: it waits when there are none."""
    rows: list[Row] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(rows) < count:
            if more := await reader.read(100):
                rows += more
            else:
                await reader.wait()
    return rows


def values(rows: Sequence[Row]) -> list[Any]:
    assert [row.error for row in rows] == [None] * len(rows)
    return [row.value for row in rows]


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def wrong(row: Row) -> str:
    assert row.value is None
    assert row.error is not None
    return str(row.error)


def followed(path: Path | str, **options: Any) -> JsonLines:
    return JsonLines(path, follow=True, **options)


# --------------------------------------------------------------------- the end of the file


async def test_rows_are_read_as_they_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(b"1\n")
    source = followed(path)
    assert not source.bounded
    async with following_of(source) as reader:
        assert reader.progress() is None
        assert values(await all_there(reader)) == [1]
        append(path, b"2\n3\n")
        assert [(row.offset, row.line, row.value) for row in await all_there(reader)] == [
            (1, 2, 2),
            (2, 3, 3),
        ]
        assert not reader.ended


async def test_an_unfinished_last_line_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":')
    async with following_of(followed(path), Line) as reader:
        assert values(await all_there(reader)) == [Line(1)]
        assert reader.lag().bytes == 5
        append(path, b"2")
        assert await all_there(reader) == []
        position = reader.position(1)
        assert position["byte"] == 8
        append(path, b"}")
        assert await all_there(reader) == []  # whole, it seems; the writer may go on
        append(path, b"\n")
        assert values(await all_there(reader)) == [Line(2)]
        assert reader.lag().bytes == 0
    async with following_of(followed(path), Line, position) as reader:
        assert values(await all_there(reader)) == [Line(2)]


async def test_a_long_line_that_grows_slowly_is_never_kept_whole(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(b"1\n")
    async with following_of(followed(path, max_row_bytes=10)) as reader:
        assert values(await all_there(reader)) == [1]
        for _ in range(50):
            append(path, b"2" * 7)
            assert await all_there(reader) == []
            assert len(reader._buffer) <= 10  # type: ignore[attr-defined]
        append(path, b"\n3\n")
        long, three = await all_there(reader)
        assert "the row has 350 bytes" in wrong(long)
        assert (three.offset, three.line, three.value) == (2, 3, 3)
        position = reader.position(2)
    async with following_of(followed(path, max_row_bytes=10), Any, position) as reader:
        assert values(await all_there(reader)) == [3]


async def test_a_bad_row_may_be_corrected(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":"two"}\n{"a":3}\n')
    async with following_of(followed(path), Line) as reader:
        rows = await all_there(reader)
        assert "Expected `int`" in wrong(rows[1])
        position = reader.position(1)
    path.write_bytes(b'{"a":1}\n{"a":2}\n{"a":3}\n')  # in place, and shorter
    async with following_of(followed(path), Line, position) as reader:
        assert values(await all_there(reader)) == [Line(2), Line(3)]
    (tmp_path / "new").write_bytes(b'{"a":1}\n{"a":2}\n{"a":3}\n{"a":4}\n')
    (tmp_path / "new").rename(path)  # as editors do it
    async with following_of(followed(path), Line, position) as reader:
        assert values(await all_there(reader)) == [Line(2), Line(3), Line(4)]
    path.write_bytes(b'{"a":9}\n')
    async with following_of(followed(path), Line, reader_of_nothing(position)) as reader:
        assert values(await all_there(reader)) == [Line(9)]


def reader_of_nothing(position: dict[str, Any]) -> dict[str, Any]:
    """The position before its first row, of a file that nobody has looked into."""
    empty = content.fingerprint(0, b"", b"")
    nothing = {"row": 0, "byte": 0, "line": 1, "head": empty.head, "tail": empty.tail}
    return {**position, **nothing, "seen": 0, "files": []}


async def test_a_file_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    with structlog.testing.capture_logs() as logs:
        async with following_of(followed(path, poll=0.01)) as reader:
            assert await reader.read(10) == []
            position = reader.position(0)
            assert reader.lag().bytes == 0
            path.write_bytes(b"1\n")
            assert values(await until(reader, 1)) == [1]
    assert [log["event"] for log in logs] == ["file_not_there_yet"]
    async with following_of(followed(path), Any, position) as reader:
        assert values(await all_there(reader)) == [1]


# -------------------------------------------------------------------------------- rotation


async def test_a_renamed_file_is_read_to_its_end_first(tmp_path: Path) -> None:
    path, old = tmp_path / "app.log", tmp_path / "app.log.1"
    path.write_bytes(b"1\n")
    async with following_of(followed(path)) as reader:
        assert values(await all_there(reader)) == [1]
        path.rename(old)
        append(old, b"2\n")  # the writer has it open still
        assert values(await all_there(reader)) == [2]
        path.write_bytes(b"4\n")
        append(old, b"3\n")
        rows = [await reader.read(1), await reader.read(1)]
        assert [row.value for some in rows for row in some] == [3], "one look is not enough"
        append(old, b"3.5\n")
        rows_ = await all_there(reader)
        assert [(row.offset, row.line, row.value) for row in rows_] == [
            (3, 4, 3.5),
            (IN_FILE_2, 1, 4),
        ]


async def test_the_last_line_of_a_file_that_was_left_is_taken_as_it_is(tmp_path: Path) -> None:
    for last, is_good in ((b'{"a":2}', True), (b'{"a":', False)):
        path = tmp_path / f"{is_good}.log"
        path.write_bytes(b'{"a":1}\n' + last)
        async with following_of(followed(path), Line) as reader:
            assert values(await all_there(reader)) == [Line(1)]
            path.rename(tmp_path / f"{is_good}.log.1")
            path.write_bytes(b'{"a":3}\n')
            second, third = await all_there(reader)
            assert (third.offset, third.value) == (IN_FILE_2, Line(3))
            assert (second.offset, second.line) == (1, 2)
            if is_good:
                assert second.value == Line(2)
            else:
                assert "truncated" in wrong(second)
                assert second.text == '{"a":'
            position = reader.position(2)
        async with following_of(followed(path), Line, position) as reader:
            assert values(await all_there(reader)) == [Line(3)]
        append(tmp_path / f"{is_good}.log.1", b"4}\n")  # it was not left for good
        async with following_of(followed(path), Line, position) as reader:
            longer, third = await all_there(reader)
            assert "the file ended within this line" in wrong(longer)
            assert longer.offset == 2
            assert third.value == Line(3)


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("acknowledged", [0, 1, 2])
async def test_several_rotations_while_nobody_reads(
    tmp_path: Path, packs: bool, acknowledged: int
) -> None:
    path = tmp_path / "app.log"
    clock = Clock()
    clock.write(path, b"1\n2\n")
    async with following_of(followed(path)) as reader:
        assert values(await all_there(reader)) == [1, 2]
        position = reader.position(acknowledged)
    clock.append(path, b"3\n")
    for number, first in enumerate((4, 6, 8)):
        for old in range(number, -1, -1):
            for end in ("", ".gz"):
                if (name := tmp_path / f"app.log.{old}{end}").exists():
                    name.rename(tmp_path / f"app.log.{old + 1}{end}")
        path.rename(tmp_path / "app.log.0")
        if packs:
            clock.pack(tmp_path / "app.log.0")
        clock.write(path, b"%d\n%d\n" % (first, first + 1))
    async with following_of(followed(path), Any, position) as reader:
        rows = await all_there(reader)
        assert values(rows) == list(range(1, 10))[acknowledged:]
        assert [row.offset for row in rows] == [
            *range(acknowledged, 3),
            *(FILE_ROWS * file + row for file in (1, 2, 3) for row in (0, 1)),
        ]
        again = reader.position(FILE_ROWS * 2 + 1)
    async with following_of(followed(path), Any, again) as reader:
        rows = await all_there(reader)
        assert [(row.offset - 2 * FILE_ROWS, row.line, row.value) for row in rows] == [
            (1, 2, 7),
            (FILE_ROWS, 1, 8),
            (FILE_ROWS + 1, 2, 9),
        ]


@pytest.mark.parametrize("restarts", [False, True])
async def test_what_was_copied_and_truncated_is_read_on_in_the_copy(
    tmp_path: Path, restarts: bool
) -> None:
    path = tmp_path / "app.log"
    clock = Clock()
    clock.write(path, b"1\n2\n")
    async with following_of(followed(path)) as reader:
        assert values(await all_there(reader)) == [1, 2]
        position = reader.position(2)
        clock.append(path, b"3\n")
        clock.copy(path, tmp_path / "app.log.1")
        os.truncate(path, 0)
        clock.append(path, b"11\n12\n13\n")  # it is longer now than what was read
        if not restarts:
            rows = await all_there(reader)
            assert values(rows) == [3, 11, 12, 13]
            assert [row.offset for row in rows] == [2, *range(IN_FILE_2, IN_FILE_2 + 3)]
            assert [row.line for row in rows] == [3, 1, 2, 3]
    async with following_of(followed(path), Any, position) as reader:
        rows = await all_there(reader)
        assert values(rows) == [3, 11, 12, 13]
        assert [row.offset for row in rows] == [2, *range(IN_FILE_2, IN_FILE_2 + 3)]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_file_that_was_emptied_when_all_was_read(tmp_path: Path, restarts: bool) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n2\n")
    async with following_of(followed(path)) as reader:
        assert values(await all_there(reader)) == [1, 2]
        position = reader.position(2)
        path.write_bytes(b"9\n")
        if not restarts:
            (row,) = await all_there(reader)
            assert (row.offset, row.line, row.value) == (IN_FILE_2, 1, 9)
    async with following_of(followed(path), Any, position) as reader:
        (row,) = await all_there(reader)
        assert (row.offset, row.line, row.value) == (IN_FILE_2, 1, 9)


async def test_nothing_is_read_again_after_several_starts_without_a_row(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    clock = Clock()
    clock.write(tmp_path / "app.log.1", b"0\n")
    clock.write(path, b"1\n")
    async with following_of(followed(path)) as reader:
        assert values(await all_there(reader)) == [1]
        position = reader.position(1)
    os.truncate(path, 0)
    clock.tick(path)
    for _ in range(3):
        async with following_of(followed(path), Any, position) as reader:
            assert await all_there(reader) == []
            position = json.loads(json.dumps(reader.position(1)))
    clock.append(path, b"2\n")
    async with following_of(followed(path), Any, position) as reader:
        assert [(row.offset, row.value) for row in await all_there(reader)] == [(IN_FILE_2, 2)]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_file_that_begins_as_before_and_is_another(tmp_path: Path, restarts: bool) -> None:
    """Truncated and written again: its first 4 KiB are the same, and it is longer."""
    path = tmp_path / "app.log"
    lines = [b"%09d\n" % -(number + 10**7) for number in range(1_000)]
    path.write_bytes(b"".join(lines))
    async with following_of(followed(path)) as reader:
        assert len(await all_there(reader)) == 1_000
        position = reader.position(1_000)
        path.write_bytes(b"".join([*lines[:700], *lines[800:], *lines[:200]]))
        if not restarts:
            rows = await all_there(reader)
            assert [row.offset for row in rows] == list(range(IN_FILE_2, IN_FILE_2 + 1_100))
    async with following_of(followed(path), Any, position) as reader:
        rows = await all_there(reader)
        assert [row.offset for row in rows] == list(range(IN_FILE_2, IN_FILE_2 + 1_100))


@pytest.mark.parametrize("restarts", [False, True])
async def test_rows_that_were_cut_off_unread_are_missed(tmp_path: Path, restarts: bool) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n2\n3\n")
    async with following_of(followed(path)) as reader:
        with (
            mock.patch.object(packed, "CHUNK_BYTES", 2),
            mock.patch.object(reading, "CHUNK_BYTES", 2),
        ):
            assert values(await reader.read(1)) == [1]
        position = reader.position(1)
        path.write_bytes(b"9\n")
        if not restarts:
            with pytest.raises(InputError, match="was read up to byte 2 "):
                await all_there(reader)
    with pytest.raises(InputError) as caught:
        async with following_of(followed(path), Any, position):
            pass
    text = str(caught.value)
    assert f"{path}: the file at this path was read up to byte 2 (line 2, row 1)" in text
    assert "It had 6 bytes when last seen" in text
    for way_out in ('on_missing="skip"', "Bring the file back", "app.log.1.gz", "millwheel drop"):
        assert way_out in text
    with structlog.testing.capture_logs() as logs:
        async with following_of(followed(path, on_missing="skip"), Any, position) as reader:
            (row,) = await all_there(reader)
            assert (row.offset, row.value) == (IN_FILE_2, 9)
    assert [log["event"] for log in logs] == ["rows_missing"]
    (tmp_path / "app.log.1").write_bytes(b"1\n2\n3\n")  # it is brought back
    async with following_of(followed(path), Any, position) as reader:
        assert values(await all_there(reader)) == [2, 3, 9]


async def test_a_file_that_was_rotated_away_and_removed_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n2\n")
    async with following_of(followed(path)) as reader:
        await all_there(reader)
        position = reader.position(2)
    (tmp_path / "new").write_bytes(b"3\n")
    path.unlink()
    async with following_of(followed(path), Any, position) as reader:
        assert await all_there(reader) == []  # it may come back
        assert reader.position(2) == position
        (tmp_path / "new").rename(path)
        with pytest.raises(InputError, match="It is no longer here"):
            await all_there(reader)
    path.write_bytes(b"1\n2\n3\n")  # the same log from a backup, say
    async with following_of(followed(path), Any, position) as reader:
        assert values(await all_there(reader)) == [3]


async def test_an_unrelated_file_with_the_inode_of_the_one_that_was_read_proves_nothing(
    tmp_path: Path,
) -> None:
    """A file system gives the inode of a removed file to the next one, whatever that is called."""
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n2\n")
    async with following_of(followed(path)) as reader:
        assert values(await all_there(reader)) == [1, 2]
        position = reader.position(2)
    path.rename(tmp_path / "unrelated.txt")
    (tmp_path / "unrelated.txt").write_bytes(b"something else\n")
    path.write_bytes(b"9\n")
    with pytest.raises(InputError, match="It is no longer here"):
        async with following_of(followed(path), Any, position):
            pass


async def test_a_file_that_is_removed_and_written_again_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n2\n")
    async with following_of(followed(path)) as reader:
        assert values(await all_there(reader)) == [1, 2]
        path.unlink()
        assert await all_there(reader) == []
        path.write_bytes(b"1\n2\n3\n")  # as rsync does it: it goes on
        rows = await all_there(reader)
        assert [(row.offset, row.line, row.value) for row in rows] == [(2, 3, 3)]
        (tmp_path / "new").write_bytes(b"9\n")
        (tmp_path / "new").replace(path)  # another one
        rows = await all_there(reader)
        assert [(row.offset, row.line, row.value) for row in rows] == [(IN_FILE_2, 1, 9)]
        position = reader.position(IN_FILE_2 + 1)
    append(path, b"10\n")
    async with following_of(followed(path), Any, position) as reader:
        assert values(await all_there(reader)) == [10]


async def test_a_late_line_of_a_file_that_was_left_moves_no_number(tmp_path: Path) -> None:
    path, old = tmp_path / "app.log", tmp_path / "app.log.1"
    path.write_bytes(b"1\n2\n")
    async with following_of(followed(path)) as reader:
        assert values(await all_there(reader)) == [1, 2]
        position = reader.position(1)
        path.rename(old)
        path.write_bytes(b"4\n")
        (four,) = await all_there(reader)
    append(old, b"3\n")
    async with following_of(followed(path), Any, position) as reader:
        rows = await all_there(reader)
        assert [(row.offset, row.value) for row in rows] == [(1, 2), (2, 3), (four.offset, 4)]


async def test_a_file_that_got_the_inode_of_another_one_is_not_taken_for_it(
    tmp_path: Path,
) -> None:
    """Nothing of a file is acknowledged; it is packed, and a younger one gets its inode."""
    path = tmp_path / "app.log"
    clock = Clock()
    clock.write(path, b"1\n2\n")
    async with following_of(followed(path)) as reader:
        assert values(await all_there(reader)) == [1, 2]
        position = reader.position(0)
    path.rename(tmp_path / "app.log.2")
    clock.pack(tmp_path / "app.log.2")
    clock.write(tmp_path / "app.log.1", b"3\n")
    clock.write(path, b"4\n")
    position["files"][0][2] = (tmp_path / "app.log.1").stat().st_ino
    async with following_of(followed(path), Any, position) as reader:
        assert values(await all_there(reader)) == [1, 2, 3, 4]


async def test_a_rotation_between_two_looks_skips_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No rotated file was there, and then the path was rotated before it was opened."""
    path = tmp_path / "app.log"
    clock = Clock()
    clock.write(path, b"1\n")
    async with following_of(followed(path)) as reader:
        assert values(await all_there(reader)) == [1]
        path.rename(tmp_path / "app.log.2")
        clock.write(path, b"2\n")
        looks = 0
        real = directory.siblings

        def siblings(*arguments: Any) -> Any:
            nonlocal looks
            looks += 1
            found = real(*arguments)
            if looks == 3:  # one at the first look; at the second, to see and to go on
                path.rename(tmp_path / "app.log.1")
                clock.write(path, b"3\n")
            return found

        monkeypatch.setattr(followed_path, "siblings", siblings)
        rows = await all_there(reader)
        assert looks > 3
        assert [(row.offset, row.value) for row in rows] == [(IN_FILE_2, 2), (IN_FILE_3, 3)]


async def test_what_waits_is_told_over_all_files(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    clock = Clock()
    clock.write(path, b"1\n2\n")
    async with following_of(followed(path)) as reader:
        assert reader.lag()[:2] == (None, 4)
        await reader.read(1)
        assert reader.lag()[:2] == (None, 2)
        path.rename(tmp_path / "app.log.1")
        clock.write(path, b"345\n")
        assert reader.lag()[:2] == (None, 6)
        path.rename(tmp_path / "app.log.0")
        clock.write(path, b"67\n")
        assert reader.lag()[:2] == (None, 9)
        await all_there(reader)
        assert reader.lag()[:2] == (None, 0)


async def test_a_rotated_csv_file_begins_with_its_own_header(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    source = Csv(path, follow=True, optional=("b",))
    path.write_bytes(b"a,")
    async with following_of(source, Line) as reader:
        assert await all_there(reader) == []
        append(path, b'b\n1,x\n2,"y\n')
        assert values(await all_there(reader)) == [Line(1, "x")]  # the quote is open
        append(path, b'z"\n')
        assert values(await all_there(reader)) == [Line(2, "y\nz")]
        position = reader.position(1)
        path.rename(tmp_path / "n.csv.1")
        path.write_bytes(b"b,a\nw,3\n")
        rows = await all_there(reader)
        assert [(row.offset, row.line, row.value) for row in rows] == [(IN_FILE_2, 2, Line(3, "w"))]
        behind = reader.position(IN_FILE_2 + 1)
        append(path, b"v,4\n")
        path.rename(tmp_path / "n.csv.0")
        path.write_bytes(b"c\n1\n")
        (row,) = await reader.read(10)
        assert row.value == Line(4, "v")
        with pytest.raises(InputError, match="the header has no column 'a'"):
            await all_there(reader)
    path.write_bytes(b"a\n5\n")
    for stored, expected in (
        (position, [Line(2, "y\nz"), Line(3, "w"), Line(4, "v"), Line(5)]),
        (behind, [Line(4, "v"), Line(5)]),
    ):
        async with following_of(source, Line, stored) as reader:
            assert values(await all_there(reader)) == expected


class Clock:
    """Gives files modification times that differ, however fast a test is."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000_000

    def tick(self, path: Path) -> None:
        self.now += 1_000_000
        os.utime(path, ns=(self.now, self.now))

    def write(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        self.tick(path)

    def append(self, path: Path, data: bytes) -> None:
        append(path, data)
        self.tick(path)

    def copy(self, path: Path, target: Path) -> None:
        target.write_bytes(path.read_bytes())
        self.tick(target)

    def pack(self, path: Path) -> None:
        state = path.stat()
        target = path.with_name(path.name + ".gz")
        target.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        os.utime(target, ns=(state.st_mtime_ns, state.st_mtime_ns))
        path.unlink()


# ------------------------------------------------------------------------- any history at all


class History:
    """A writer, a rotation and a reader, with the rows that are expected."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "app.log"
        self.clock = Clock()
        self.open: list[Path] = []
        self.line = 0
        self.pending = b""
        """The part of the last line that is not written to the present file yet."""
        self.expected: list[Any] = []
        self.rows: dict[int, Any] = {}
        """By number, whatever was read under it."""
        self.file_line = 0
        self.is_bare = True
        """Nothing was appended to the present file since it was begun."""

    def write(self, data: bytes) -> None:
        self.clock.append(self.path, data)

    def lines(self, count: int, cut: int) -> None:
        """Append lines, but for the last bytes of the last one."""
        data = self.pending
        for _ in range(count):
            self.line += 1
            value = f"é{self.line}"
            self.expected.append(value)
            data += json.dumps(value, ensure_ascii=False).encode() + b"\n"
        stop = len(data) - min(cut, len(data))
        self.pending = data[stop:]
        if stop:
            self.write(data[:stop])

    def finish_line(self) -> None:
        if self.pending:
            data, self.pending = self.pending, b""
            self.write(data)

    def shift(self) -> None:
        directory = self.path.parent
        for number in range(30, 0, -1):
            for end in ("", ".gz"):
                if (old := directory / f"app.log.{number}{end}").exists():
                    old.rename(directory / f"app.log.{number + 1}{end}")

    def check(self, rows: Sequence[Row]) -> None:
        for row in rows:
            assert row.error is None, row.error
            assert self.rows.setdefault(row.offset, row.value) == row.value, "another row"

    def done(self) -> None:
        assert [self.rows[number] for number in sorted(self.rows)] == self.expected


events = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 4), st.integers(0, 8)),
    st.tuples(st.just("read"), st.integers(1, 5)),
    st.tuples(st.just("read all")),
    st.tuples(st.just("rename"), st.booleans()),
    st.tuples(st.just("copy and truncate")),
    st.tuples(st.just("truncate")),
    st.tuples(st.just("pack")),
    st.tuples(st.just("restart"), st.integers(0, 6)),
)


@settings(max_examples=examples(75), deadline=None)
@given(st.lists(events, min_size=1, max_size=25), st.sampled_from([1, 7, 4096]))
@example(
    [("append", 1, 0), ("truncate",), ("append", 1, 0), ("copy and truncate",), ("rename", False)],
    1,
)
async def test_each_line_comes_once_in_order_under_one_number(
    history: list[Any], chunk: int
) -> None:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        stack.enter_context(mock.patch.object(reading, "CHUNK_BYTES", chunk))
        stack.enter_context(mock.patch.object(content, "CHUNK_BYTES", chunk))
        world = History(Path(directory))
        world.clock.write(world.path, b"")
        # one that was emptied, and then packed while nobody looked, is not known again
        emptied = any(event[0] == "truncate" for event in history)
        source = followed(world.path, on_missing="skip" if emptied else "fail")
        (partition,) = source.partitions()
        reader = await partition.open(str, None)
        try:
            acknowledged, given_out = 0, [0]
            for event, *arguments in [*history, ("read all",)]:
                if event == "append":
                    world.lines(*arguments)
                elif event == "read":
                    rows = await reader.read(arguments[0])
                    world.check(rows)
                    given_out += [row.offset + 1 for row in rows]
                elif event in ("read all", "truncate"):
                    if event == "truncate":
                        world.finish_line()
                    rows = await all_there(reader)
                    world.check(rows)
                    given_out += [row.offset + 1 for row in rows]
                    if event == "truncate":
                        acknowledged = given_out[-1]
                        position = reader.position(acknowledged)
                        os.truncate(world.path, 0)
                        world.clock.tick(world.path)
                elif event == "rename":
                    world.finish_line()
                    world.shift()
                    world.path.rename(world.path.with_name("app.log.1"))
                    if arguments[0]:  # else it comes back with the first line
                        world.clock.write(world.path, b"")
                elif event == "copy and truncate":
                    if world.path.exists():
                        world.finish_line()
                        world.shift()
                        world.clock.copy(world.path, world.path.with_name("app.log.1"))
                        os.truncate(world.path, 0)
                        world.clock.tick(world.path)
                elif event == "pack":
                    if (old := world.path.with_name("app.log.1")).exists():
                        world.clock.pack(old)
                else:
                    later = [number for number in given_out if number >= acknowledged]
                    acknowledged = later[min(arguments[0], len(later) - 1)]
                    position = json.loads(json.dumps(reader.position(acknowledged)))
                    reader.close()
                    reader = await partition.open(str, position)
                    given_out = [acknowledged]
                if event == "rename" and not world.path.exists():
                    world.clock.write(world.path, b"")
            world.finish_line()
            world.check(await all_there(reader))
            world.done()
        finally:
            reader.close()


# --------------------------------------------------------------------------- other processes

APPENDER = """
import sys, time, os
path, lines = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
for number in range(lines):
    sys.stdin.readline()
    with open(path, "ab", buffering=0) as file:
        line = b'{"a":%d}\\n' % number
        file.write(line[:4])
        file.write(line[4:])
    print(time.monotonic_ns(), flush=True)
"""

ROTATOR = """
from tests.support.examples import examples
import os, sys
path, lines = sys.argv[1], int(sys.argv[2])
for number in range(lines):
    with open(path, "ab", buffering=0) as file:
        for part in (b'{"a":', b'%d' % number, b'}\\n'):
            file.write(part)
    if number % 50 == 49:
        for old in range(30, 0, -1):
            if os.path.exists(f"{path}.{old}"):
                os.rename(f"{path}.{old}", f"{path}.{old + 1}")
        os.rename(path, f"{path}.1")
"""


@asynccontextmanager
async def process(script: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, *arguments,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


@pytest.mark.process
@pytest.mark.skipif(not watching.HAS_INOTIFY, reason="needs Linux and asyncinotify")
async def test_a_line_that_another_process_appends_wakes_the_reader(tmp_path: Path) -> None:
    """Within 100 ms, which a look every hour could not: the best of twenty, as machines are
    busy."""
    path = tmp_path / "n.jsonl"
    delays = []
    async with (
        following_of(followed(path, poll=3600), Line) as reader,
        process(APPENDER, str(path), "20") as writer,
    ):
        assert writer.stdin is not None
        assert writer.stdout is not None
        await writer.stdout.readline()
        for number in range(20):
            waiting = asyncio.create_task(until(reader, 1))
            writer.stdin.write(b"\n")
            written = int(await writer.stdout.readline())
            assert values(await waiting) == [Line(number)]
            delays.append(time.monotonic_ns() - written)
        async with asyncio.timeout(DEADLINE_SECONDS):
            rests = False
            while not rests:  # at last: there may be something to be told of the last line
                assert await reader.read(1) == []
                resting = asyncio.create_task(reader.wait())
                for _ in range(100):
                    await asyncio.sleep(0)
                rests = not resting.done()
                resting.cancel()
    assert min(delays) < 100e6


@pytest.mark.skipif(not watching.HAS_INOTIFY, reason="needs Linux and asyncinotify")
async def test_a_reader_is_woken_after_the_file_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    async with following_of(followed(path, poll=3600)) as reader:
        for number in range(5):
            waiting = asyncio.create_task(until(reader, 2))
            (tmp_path / "new").write_bytes(b"%d\n" % number)
            (tmp_path / "new").replace(path)
            await asyncio.sleep(0)
            append(path, b"%d\n" % -number)
            assert values(await waiting) == [number, -number]
    assert not watching._watchers


@pytest.mark.process
@pytest.mark.parametrize("told", [True, False])
async def test_a_log_that_another_process_writes_and_rotates(
    tmp_path: Path, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With inotify, and where a system tells nothing."""
    if not told:
        monkeypatch.setattr(watching, "HAS_INOTIFY", False)
    monkeypatch.setattr(followed_files, "GRACE_SECONDS", 0.02)
    path = tmp_path / "app.log"
    source = followed(path, poll=0.01)
    (partition,) = source.partitions()
    reader = await partition.open(Line, None)
    rows: dict[int, Any] = {}
    position = None
    async with process(ROTATOR, str(path), "1000"), asyncio.timeout(DEADLINE_SECONDS):
        try:
            while len(rows) < 1000:
                more = await reader.read(37)
                before = len(rows)
                for row in more:
                    assert rows.setdefault(row.offset, row.value) == row.value
                if len(rows) > before and len(rows) % 5 == 0:  # as a crash would have it
                    position = json.loads(json.dumps(reader.position(more[len(more) // 2].offset)))
                    reader.close()
                    reader = await partition.open(Line, position)
                elif not more:
                    await reader.wait()
        finally:
            reader.close()
    assert [rows[number] for number in sorted(rows)] == [Line(number) for number in range(1000)]


async def test_waiting_can_be_cancelled_and_a_wake_up_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(b"")
    poll = 3600 if watching.HAS_INOTIFY else 0.01
    async with following_of(followed(path, poll=poll)) as reader:
        for number in range(20):
            assert await reader.read(5) == []
            waiting = asyncio.create_task(reader.wait())
            for _ in range(number % 4):
                await asyncio.sleep(0)
            append(path, b"%d\n" % number)
            waiting.cancel()
            assert await asyncio.gather(waiting, return_exceptions=True)
            assert values(await until(reader, 1)) == [number]


async def test_a_reader_that_has_read_all_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a system tells nothing, it looks by itself, and goes on waiting if nothing changed."""
    monkeypatch.setattr(watching, "HAS_INOTIFY", False)
    path = tmp_path / "n.jsonl"
    looks = 0

    def look(path: str) -> Any:
        nonlocal looks
        looks += 1
        return directory.entry_at(path)

    monkeypatch.setattr(followed_path, "entry_at", look)
    async with following_of(followed(path, poll=0.001)) as reader:
        for number in range(3):
            assert await reader.read(1) == []
            waiting = asyncio.create_task(reader.wait())
            async with asyncio.timeout(DEADLINE_SECONDS):
                start = looks
                while looks < start + 5:
                    await asyncio.sleep(0)
                    assert not waiting.done()
                append(path, b"%d\n" % number)
                await waiting
            assert values(await all_there(reader)) == [number]


async def test_a_file_is_read_that_was_at_the_path_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "HAS_INOTIFY", False)
    path = tmp_path / "n.jsonl"
    async with following_of(followed(path, poll=0.01)) as reader:
        assert await reader.read(5) == []
        waiting = asyncio.create_task(reader.wait())
        await asyncio.sleep(0)
        path.write_bytes(b"1\n")
        path.rename(tmp_path / "n.jsonl.1")
        async with asyncio.timeout(DEADLINE_SECONDS):
            await waiting
        assert values(await until(reader, 1)) == [1]


async def test_limits_of_inotify_are_told_and_looking_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(watching, "HAS_INOTIFY", True)
    monkeypatch.setattr(watching, "_Watcher", refuse)
    path = tmp_path / "n.jsonl"
    with structlog.testing.capture_logs() as logs:
        async with following_of(followed(path, poll=0.01)) as reader:
            append(path, b"1\n")
            assert values(await until(reader, 1)) == [1]
            append(path, b"2\n")
            assert values(await until(reader, 1)) == [2]
    assert "directory_not_watched" in [log["event"] for log in logs]


# ------------------------------------------------------------------------------ refused files


async def refused(source: Source, position: Any = None) -> str:
    with pytest.raises(InputError) as caught:
        async with following_of(source, Any, position) as reader:
            await all_there(reader)
    return str(caught.value)


async def test_files_that_cannot_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_file = tmp_path / "n.gz"
    packed_file.write_bytes(gzip.compress(b"1\n"))
    assert "is compressed (gzip), and a compressed file cannot be followed" in await refused(
        followed(packed_file)
    )
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in await refused(followed(tmp_path / "pipe"))
    appearing = followed(tmp_path / "appearing")
    (tmp_path / "appearing").mkdir()
    assert "has become a directory" in await refused(appearing)
    utf_16 = tmp_path / "utf16"
    utf_16.write_bytes("\ufeff1\n".encode("utf-16-le"))
    assert "is UTF-16" in await refused(followed(utf_16))
    path = tmp_path / "n.jsonl"
    path.write_bytes(b"1\n")
    assert "is invalid" in await refused(followed(path), {"row": 1})
    async with following_of(followed(path)) as reader:
        await all_there(reader)
        position = reader.position(1)
    assert 'was read as json_lines before and as csv ,"' in await refused(
        Csv(path, follow=True), position
    )
    assert "contradict each other" in await refused(followed(path), {**position, "cut": 9})

    class Forbidden:
        def __init__(self, path: str) -> None:
            raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(content, "FileIO", Forbidden)
    assert await refused(followed(path)) == f"{path}: cannot be opened: Permission denied"


async def test_a_new_file_gets_time_for_its_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(b"1\n")
    real = content.open_log
    denied = True

    def open_log(entry: directory.DirectoryEntry, *, rotated: bool) -> Any:
        if denied:
            raise content.Denied(f"{entry.path}: cannot be opened: Permission denied")
        return real(entry, rotated=rotated)

    async with following_of(followed(path)) as reader:
        assert values(await all_there(reader)) == [1]
        path.rename(tmp_path / "n.jsonl.1")
        path.write_bytes(b"2\n")
        monkeypatch.setattr(followed_path, "open_log", open_log)
        assert await all_there(reader) == []
        denied = False
        assert values(await all_there(reader)) == [2]
        path.rename(tmp_path / "n.jsonl.0")
        path.write_bytes(b"3\n")
        denied = True
        monkeypatch.setattr(followed_path, "DENIED_SECONDS", 0.0)
        with pytest.raises(InputError, match="Permission denied"):
            await all_there(reader)


async def test_a_rotated_file_in_a_packing_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    clock = Clock()
    clock.write(path, b"1\n")
    async with following_of(followed(path)) as reader:
        assert values(await all_there(reader)) == [1]
        position = reader.position(1)
    path.rename(tmp_path / "app.log.2")
    clock.write(tmp_path / "app.log.1.xz", b"\xfd7zXZ\x00...")
    clock.write(path, b"3\n")
    text = await refused(followed(path), position)
    assert "app.log.1.xz: is a rotated file with unread rows" in text
    assert "Unpack it in the same directory" in text


def test_sources_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="poll must be more than 0 seconds"):
        followed("x", poll=0)
    with pytest.raises(UsageError, match='on_missing must be "fail" or "skip"'):
        followed("x", on_missing="maybe")
    with pytest.raises(UsageError, match="a member of a zip file cannot be followed"):
        followed("x", member="y")
    for path, what in (("/data/*.jsonl", "a pattern"), ("/data/", "a directory")):
        with pytest.raises(UsageError, match=f"is {what}. Without follow=True") as caught:
            JsonLines(path)
        assert "sorted(glob.glob(...))" in str(caught.value)
        with pytest.raises(UsageError, match=f"is {what}, in which files appear; give it alone"):
            followed([path])  # type: ignore[arg-type]
    assert followed("x").describe() == {"json_lines": "x", "follow": True}
    assert not isinstance(followed("x"), GrowingSource)
    for given_path in (tmp_path, f"{tmp_path}/", str(tmp_path)):
        assert isinstance(followed(given_path), GrowingSource)
        assert followed(given_path).describe() == {
            "json_lines": f"{tmp_path}/",
            "follow": True,
            "discovers": True,
        }
    assert not isinstance(JsonLines("x"), GrowingSource)


def test_names_of_rotated_files() -> None:
    for name in ("app.log.1", "app.log.12.gz", "app.log-20260131", "app-2026-01-31.log",
                 "app.1.log",
                 "app.log.2026-01-31T10:00:00.gz", "app_3.log"):  # fmt: skip
        assert "app.log" in directory.bases(name), name
    for name in ("app.log", "app.log.bak", "app-errors.log", "app.log.gz", "apple.log.1"):
        assert "app.log" not in directory.bases(name), name


# ---------------------------------------------------------------------------- files that appear


async def found(source: Source, position: Any = None) -> tuple[list[str], Any]:
    assert isinstance(source, GrowingSource)
    assert not source.bounded
    assert source.partitions() == []
    discovery = source.discover(position)
    try:
        names = [os.path.basename(name) for name in await discovery.look()]
        return names, json.loads(json.dumps(discovery.position()))
    finally:
        discovery.close()


async def test_files_of_a_pattern_are_found_once(tmp_path: Path) -> None:
    clock = Clock()
    source = followed(f"{tmp_path}/**/*.jsonl*")
    assert await found(source) == ([], {"known": {}, "skipped": []})
    clock.write(tmp_path / "b.jsonl", b"1\n")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    clock.write(tmp_path / "deep" / "er" / "a.jsonl", b"2\n")
    clock.write(tmp_path / "c.jsonl", b"3\n")
    clock.write(tmp_path / "empty.jsonl", b"")
    clock.write(tmp_path / "other.txt", b"x\n")
    names, position = await found(source)
    assert names == ["b.jsonl", "a.jsonl", "c.jsonl"], "by age"
    (tmp_path / "b.jsonl").rename(tmp_path / "b.jsonl.1")  # rotated
    (tmp_path / "c.jsonl").rename(tmp_path / "d.jsonl")  # renamed
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "d.jsonl")
    names, position = await found(source, position)
    assert sorted(names) == ["a.jsonl", "b.jsonl", "c.jsonl"], "as they were called first"
    clock.write(tmp_path / "b.jsonl", b"11\n")
    clock.write(tmp_path / "c.jsonl", b"33\n")
    append(tmp_path / "d.jsonl", b"4\n")
    for _ in range(2):
        names, position = await found(source, position)
        assert sorted(names) == ["a.jsonl", "b.jsonl", "b.jsonl#2", "c.jsonl", "c.jsonl#2"]
    (tmp_path / "d.jsonl").unlink()
    clock.write(tmp_path / "e.jsonl", b"5\n")  # may get that inode
    names, position = await found(source, position)
    assert sorted(names) == [
        "a.jsonl", "b.jsonl", "b.jsonl#2", "c.jsonl", "c.jsonl#2", "e.jsonl",
    ]  # fmt: skip


async def test_the_files_of_a_directory(tmp_path: Path) -> None:
    clock = Clock()
    for name, data in (("a", b"1\n"), (".hidden", b"1\n"), ("b.gz", b"1\n"), ("c", b"PK\x03\x04"),
                       ("a.1", b"1\n"), ("d", b"2\n")):  # fmt: skip
        clock.write(tmp_path / name, data)
    (tmp_path / "sub").mkdir()
    with structlog.testing.capture_logs() as logs:
        names, _ = await found(followed(f"{tmp_path}/"))
    assert names == ["a", "a.1", "d"]
    assert sorted(os.path.basename(log["path"]) for log in logs) == ["b.gz", "c"]


async def test_each_file_that_a_pattern_matches_is_a_partition(tmp_path: Path) -> None:
    """The oldest one first, whatever they are called. One that does not match was there before, and
    is not read."""
    clock = Clock()
    clock.write(tmp_path / "app.log.2", b"1\n")
    clock.write(tmp_path / "app.log.1", b"2\n")
    clock.write(tmp_path / "app.log", b"3\n")
    for pattern, expected in (
        ("app.log*", ["app.log.2", "app.log.1", "app.log"]),
        ("*.log", ["app.log"]),
    ):
        source = followed(f"{tmp_path}/{pattern}")
        names, position = await found(source)
        assert names == expected
        names, _ = await found(source, position)
        assert names == expected
        assert isinstance(source, GrowingSource)
        read = []
        for name in names:
            partition = source.partition(str(tmp_path / name))
            assert partition.identity == str(tmp_path / name)
            discovery = source.discover(position)
            reader = await partition.open(int, discovery.first_position(partition.identity))
            try:
                read += values(await all_there(reader))
            finally:
                reader.close()
                discovery.close()
        assert read == [1, 2, 3][-len(expected) :]


async def test_rotated_files_of_a_pattern_are_read_although_they_do_not_match(
    tmp_path: Path,
) -> None:
    """Rotated twice while nobody looked, and compressed: what was at the path is read, what was
    there before is not."""
    source = followed(f"{tmp_path}/*.log")
    (tmp_path / "app.log.7").write_bytes(b"0\n")
    (tmp_path / "app.log").write_bytes(b"1\n")
    names, position = await found(source)
    assert names == ["app.log"]
    (tmp_path / "app.log.7").rename(tmp_path / "app.log.9")
    (tmp_path / "app.log").rename(tmp_path / "app.log.8")
    (tmp_path / "app.log.7.gz").write_bytes(gzip.compress(b"2\n"))
    (tmp_path / "app.log").write_bytes(b"3\n")
    names, position = await found(source, position)
    assert names == ["app.log", "app.log#2", "app.log.7.gz"]
    names, position = await found(source, position)
    assert names == ["app.log", "app.log#2", "app.log.7.gz"]


async def test_a_file_that_appears_wakes_the_discovery(tmp_path: Path) -> None:
    source = Csv(f"{tmp_path}/*/*.csv", follow=True, poll=0.01)
    assert isinstance(source, GrowingSource)
    assert source.describe()["follow"] is True
    discovery = source.discover(None)
    try:
        assert list(await discovery.look()) == []
        (tmp_path / "day").mkdir()
        (tmp_path / "day" / "part").write_bytes(b"a\n1\n")
        (tmp_path / "day" / "part").rename(tmp_path / "day" / "a.csv")
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not (names := list(await discovery.look())):
                await discovery.wait()
        assert names == [str(tmp_path / "day" / "a.csv")]
    finally:
        discovery.close()
    assert not watching._watchers


async def test_a_finished_file_that_grows_wakes_the_discovery(tmp_path: Path) -> None:
    """Its rest is another partition, of which lines and header are those of the file."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"a\n1\n\n2\n")
    source = Csv(f"{tmp_path}/", follow=True, poll=DEADLINE_SECONDS)
    assert isinstance(source, GrowingFiles)
    discovery = source.discover(None)
    try:
        (identity,) = await discovery.look()
        first = discovery.first_position(identity)
        with closing(await source.partition(identity).open(dict[str, str], first)) as reader:
            assert values(await all_there(reader)) == [{"a": "1"}, {"a": "2"}]
            discovery.resumed(identity, reader.position(2), ended=True)
        assert list(await discovery.look()) == []
        with path.open("ab") as file:
            file.write(b"3\n")
        async with asyncio.timeout(DEADLINE_SECONDS / 2):
            await discovery.wait()
        names = list(await discovery.look())
        assert names == [f"{path}#2"]
        first = discovery.first_position(names[0])
        with closing(await source.partition(names[0]).open(dict[str, str], first)) as reader:
            (row,) = await all_there(reader)
            assert (row.value, row.line) == ({"a": "3"}, 5)
    finally:
        discovery.close()


async def test_a_new_file_in_a_directory_gets_time_for_its_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forbidden:
        def __init__(self, path: str) -> None:
            raise PermissionError(13, "Permission denied", path)

    (tmp_path / "a").write_bytes(b"1\n")
    source = followed(f"{tmp_path}/")
    assert isinstance(source, GrowingSource)
    discovery = source.discover(None)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(content, "FileIO", Forbidden)
            assert list(await discovery.look()) == []
        assert list(await discovery.look()) == [str(tmp_path / "a")]
        (tmp_path / "b").write_bytes(b"1\n")
        monkeypatch.setattr(content, "FileIO", Forbidden)
        monkeypatch.setattr(discovering, "DENIED_SECONDS", 0.0)
        with pytest.raises(InputError, match="b: cannot be opened: Permission denied"):
            await discovery.look()
    finally:
        discovery.close()


async def test_a_directory_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    source = followed(f"{tmp_path}/")
    assert isinstance(source, GrowingSource)
    discovery = source.discover(None)
    with pytest.raises(InputError, match="cannot be listed: Permission denied"):
        await discovery.look()
    discovery.close()


# --------------------------------------------------------------------------- what was read


async def rotated(path: Path, clock: Clock, name: str, then: bytes) -> None:
    path.rename(path.with_name(name))
    clock.write(path, then)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_file_that_was_read_is_not_read_again_when_it_is_compressed_later(
    tmp_path: Path, restarts: bool
) -> None:
    """As logback and gzip do it: by another name for a moment, and with a new modification time."""
    path = tmp_path / "app.log"
    clock = Clock()
    clock.write(path, b"1\n2\n")
    position = None
    read = []
    for number in (3, 4, 5):
        async with following_of(followed(path), Any, position) as reader:
            read += values(await all_there(reader))
            hidden = tmp_path / f"app.2024-01-0{number}.log.tmp"
            await rotated(path, clock, hidden.name, b"%d\n" % number)
            if not restarts:
                rows = await all_there(reader)
                read += values(rows)
            position = reader.position(max(reader._rows, 0))  # type: ignore[attr-defined]
        packed_file = hidden.with_suffix(".gz")
        packed_file.write_bytes(gzip.compress(hidden.read_bytes()))
        clock.tick(packed_file)
        hidden.unlink()
    async with following_of(followed(path), Any, position) as reader:
        read += values(await all_there(reader))
    assert read == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("back", [1, 2])
async def test_a_file_that_was_read_is_not_read_again_when_it_is_touched(
    tmp_path: Path, back: int
) -> None:
    path = tmp_path / "app.log"
    clock = Clock()
    clock.write(path, b"1\n")
    async with following_of(followed(path)) as reader:
        read = values(await all_there(reader))
        for number in (2, 3):
            await rotated(path, clock, f"app.log.{9 - number}", b"%d\n" % number)
            read += values(await all_there(reader))
        clock.tick(tmp_path / f"app.log.{5 + back}")
        await rotated(path, clock, "app.log.1", b"4\n")
        read += values(await all_there(reader))
    assert read == [1, 2, 3, 4]


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_unread_file_is_read_although_the_clock_was_set_back(
    tmp_path: Path, restarts: bool
) -> None:
    path = tmp_path / "app.log"
    clock = Clock()
    clock.write(path, b"1\n")
    async with following_of(followed(path)) as reader:
        assert values(await all_there(reader)) == [1]
        position = reader.position(1)
        clock.now -= 30_000_000_000
        await rotated(path, clock, "app.log.2", b"2\n")
        await rotated(path, clock, "app.log.1", b"3\n")
        if not restarts:
            assert values(await all_there(reader)) == [2, 3]
    if restarts:
        async with following_of(followed(path), Any, position) as reader:
            assert values(await all_there(reader)) == [2, 3]


async def test_a_file_that_was_seen_and_removed_unread_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n2\n")
    async with following_of(followed(path)) as reader:
        assert values(await all_there(reader)) == [1, 2]
        position = reader.position(0)
    (tmp_path / "new").write_bytes(b"3\n")
    (tmp_path / "new").replace(path)
    text = await refused(followed(path), position)
    assert "read up to byte 0" in text
    assert "It had 4 bytes when last seen" in text
    source = followed(f"{tmp_path}/")
    assert isinstance(source, GrowingSource)
    discovery = source.discover(None)
    await discovery.look()
    first = discovery.first_position(str(path))
    discovery.close()
    path.unlink()
    with pytest.raises(InputError, match="It had 2 bytes when last seen"):
        await source.partition(str(path)).open(Any, first)


async def test_the_numbers_of_a_file_are_promised_before_its_rows(tmp_path: Path) -> None:
    """After a crash, a file that looks older by then does not get the numbers of another one."""
    path = tmp_path / "app.log"
    clock = Clock()
    clock.write(path, b"1\n")
    async with following_of(followed(path)) as reader:
        assert values(await all_there(reader)) == [1]
        promised = reader.promised  # type: ignore[attr-defined]
        await rotated(path, clock, "app.log.3", b"2\n")
        await rotated(path, clock, "app.log.2", b"3\n")
        rows = await all_there(reader)
        assert reader.promised != promised  # type: ignore[attr-defined]
        position = reader.position(1)
    clock.tick(tmp_path / "app.log.2")
    clock.tick(path)
    clock.now -= 10**12
    await rotated(path, clock, "app.log.1", b"4\n")
    async with following_of(followed(path), Any, position) as reader:
        again = await all_there(reader)
    assert [(row.offset, row.value) for row in again][:2] == [(r.offset, r.value) for r in rows]
    assert sorted(values(again)) == [2, 3, 4]


async def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that rests is read on: where it is, renamed, and not when it is gone."""
    monkeypatch.setattr(content.open_files, "most", 3)
    readers = []
    async with AsyncExitStack() as stack:
        for n in range(10):
            (tmp_path / f"f{n}").write_bytes(b"%d\n" % n)
            reader = await stack.enter_async_context(following_of(followed(tmp_path / f"f{n}")))
            assert values(await all_there(reader)) == [n]
            readers.append(reader)
        names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                 if os.path.islink(f"/proc/self/fd/{fd}")]  # fmt: skip
        assert len([name for name in names if name.startswith(str(tmp_path))]) <= 3
        (tmp_path / "f1").rename(tmp_path / "f1.1")
        append(tmp_path / "f1.1", b"11\n")
        append(tmp_path / "f0", b"10\n")
        assert values(await all_there(readers[0])) == [10]
        assert values(await all_there(readers[1])) == [11]
        append(tmp_path / "f2", b"12\n")
        assert readers[2].lag().bytes == 3
        (tmp_path / "f2").unlink()
        (tmp_path / "f2").write_bytes(b"x")
        readers[0].lag()
        with pytest.raises(InputError, match="It had 5 bytes when last seen"):
            await all_there(readers[2])
