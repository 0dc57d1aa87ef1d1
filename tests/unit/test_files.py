"""Files as sources: every row once, at the same offset, however it is read; and every refusal."""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import gzip
import io
import json
import os
import random
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.errors import InputError, UsageError
from millwheel.files import Csv, JsonLines, packed, whole
from millwheel.files import reader as reading
from millwheel.files.csv_rows import CsvFormat
from millwheel.files.file_rows import TEXT_CHARACTERS
from millwheel.files.reader import BOM
from millwheel.sources import Partition, Reader, Row, Source
from tests.support.examples import examples


class Line(msgspec.Struct):
    a: int
    b: str = ""


class Flight(msgspec.Struct):
    carrier: str
    number: int
    delay: float | None
    tail: str | None = None
    seats: int = 100


async def open_file(source: Source, value_type: Any = Any, position: Any = None) -> Reader:
    (partition,) = source.partitions()
    if position is not None:
        position = json.loads(json.dumps(position))
    return await partition.open(value_type, position)


def share(reader: Reader) -> float:
    progress = reader.progress()
    assert progress is not None
    return progress


async def drain(reader: Reader, limit: int = 100) -> list[Row]:
    rows: list[Row] = []
    while more := await reader.read(limit):
        assert len(more) <= limit
        rows += more
    return rows


async def read_all(source: Source, value_type: Any = Any, limit: int = 100) -> list[Row]:
    reader = await open_file(source, value_type)
    try:
        return await drain(reader, limit)
    finally:
        reader.close()


def plain(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [
        (row.offset, row.line, row.value, row.error and str(row.error), row.text) for row in rows
    ]


async def refusal(source: Source, value_type: Any = Any, position: Any = None) -> str:
    """The text with which opening or reading fails."""
    with pytest.raises(InputError) as caught:  # noqa: PT012
        reader = await open_file(source, value_type, position)
        try:
            await drain(reader)
        finally:
            reader.close()
    return str(caught.value)


def wrong(row: Row) -> str:
    assert row.value is None
    assert row.error is not None
    return str(row.error)


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def zipped(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return packed.getvalue()


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": gzipped,
    "two gzip members": lambda data: (
        gzipped(data[: len(data) // 2]) + gzipped(data[len(data) // 2 :])
    ),
    "zip": lambda data: zipped(only=data),
}
packings = st.sampled_from(list(PACKINGS))


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """One path that each example of a property writes to."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory) / "input"


@contextmanager
def tuned(**constants: int) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in constants.items():
            for module in (packed, reading, whole):
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, value))
        yield


tunings = st.fixed_dictionaries(
    {
        "CHUNK_BYTES": st.sampled_from([1, 2, 7, 64, 4096]),
        "BLOCK_ROWS": st.sampled_from([1, 3, 1000]),
        "READ_BYTES": st.sampled_from([1, 10, 4096]),
        "GZIP_STEP_BYTES": st.sampled_from([1, 5, 4096]),
    }
)


# ----------------------------------------------------------------------------- properties

texts = st.text(alphabet='ab"\\,é\u2028 \r\n\x00', max_size=6)
json_values = st.one_of(st.integers(-9, 99), texts, st.lists(st.integers(0, 9), max_size=3))
blank_lines = st.sampled_from([b"", b" ", b"\t", b"\r", b" \r"])


@st.composite
def json_files(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int, Any]]]:
    """A JSON Lines file and its rows: (offset, line, value)."""
    data = draw(st.sampled_from([b"", BOM]))
    rows: list[tuple[int, int, Any]] = []
    parts = draw(st.lists(st.one_of(json_values, blank_lines), max_size=20))
    for line, part in enumerate(parts, 1):
        if isinstance(part, bytes):
            data += part + b"\n"
        else:
            rows.append((len(rows), line, part))
            ascii_only = draw(st.booleans())
            data += json.dumps(part, ensure_ascii=ascii_only).encode()
            data += draw(st.sampled_from([b"\n", b"\r\n"]))
    if draw(st.booleans()):
        data = data.removesuffix(b"\n")
    return data, rows


@st.composite
def csv_files(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int, Any]]]:
    """A CSV file of two columns and its rows."""
    lines = draw(st.integers(0, 2))
    data = draw(st.sampled_from([b"", BOM])) + b"\n" * lines + b"x,y\n"
    line = lines + 2
    rows: list[tuple[int, int, Any]] = []
    cell = st.text(alphabet='ab",é \n', max_size=5)
    for cells in draw(st.lists(st.none() | st.tuples(cell, cell), max_size=15)):
        if cells is None:
            data += draw(st.sampled_from([b"\n", b"\r\n"]))
            line += 1
            continue
        text = io.StringIO()
        quoting: Literal[0, 1] = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
        csv.writer(text, lineterminator="\n", quoting=quoting).writerow(cells)
        written = text.getvalue().removesuffix("\n")
        data += written.encode() + draw(st.sampled_from([b"\n", b"\r\n"]))
        rows.append((len(rows), line, {"x": cells[0], "y": cells[1]}))
        line += 1 + written.count("\n")
    if draw(st.booleans()):
        data = data.removesuffix(b"\n")
    return data, rows


async def check_reading(
    source: Source,
    value_type: Any,
    expected: list[tuple[int, int, Any]],
    data: st.DataObject,
) -> None:
    """Read in any sizes, with reopening at any position, and compare with what is expected."""
    reader = await open_file(source, value_type)
    acknowledged = done = 0
    try:
        for _ in range(100):
            limit = data.draw(st.integers(1, 9), "read")
            rows = await reader.read(limit)
            assert len(rows) <= limit
            found = [(row.offset, row.line, row.value) for row in rows]
            assert all(row.error is None for row in rows)
            assert found == expected[done : done + len(rows)]
            done += len(rows)
            if not rows:
                assert done == len(expected)
                assert reader.progress() == 1.0
                if acknowledged == done:
                    break
            assert 0 <= share(reader) <= 1
            if data.draw(st.booleans(), "acknowledge"):
                acknowledged = data.draw(st.integers(acknowledged, done), "acknowledged")
                position = reader.position(acknowledged)
                if data.draw(st.booleans(), "reopen"):
                    reader.close()
                    reader = await open_file(source, value_type, position)
                    assert reader.position(acknowledged)["row"] == acknowledged
                    done = acknowledged
    finally:
        reader.close()


@settings(max_examples=examples(60), deadline=None)
@given(json_files(), packings, tunings, st.data())
async def test_json_lines_are_read_once_each_whatever_happens(
    place: Path,
    file: tuple[bytes, list[tuple[int, int, Any]]],
    packing: str,
    tuning: dict[str, int],
    data: st.DataObject,
) -> None:
    place.write_bytes(PACKINGS[packing](file[0]))
    with tuned(**tuning):
        await check_reading(JsonLines(place), Any, file[1], data)


@settings(max_examples=examples(60), deadline=None)
@given(csv_files(), packings, tunings, st.data())
async def test_csv_rows_are_read_once_each_whatever_happens(
    place: Path,
    file: tuple[bytes, list[tuple[int, int, Any]]],
    packing: str,
    tuning: dict[str, int],
    data: st.DataObject,
) -> None:
    place.write_bytes(PACKINGS[packing](file[0]))
    with tuned(**tuning):
        await check_reading(Csv(place), dict[str, str], file[1], data)


async def outcome(source: Source, value_type: Any, limit: int) -> tuple[list[tuple[Any, ...]], str]:
    """Rows, then the error that ended reading, if any."""
    rows: list[Row] = []
    try:
        reader = await open_file(source, value_type)
        try:
            while more := await reader.read(limit):
                rows += more
        finally:
            reader.close()
    except InputError as error:
        return plain(rows), str(error)
    return plain(rows), ""


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.sampled_from([b"1", b'"a"', b'"\xff"', b"{", b" ", b"\n", b"\r", b"\0", b"\xc3"])),
    st.integers(1, 12),
    tunings,
    st.integers(1, 5),
)
async def test_any_bytes_are_rows_or_bad_rows_whatever_the_chunks(
    place: Path, parts: list[bytes], max_row_bytes: int, tuning: dict[str, int], limit: int
) -> None:
    place.write_bytes(data := b"".join(parts))
    source = JsonLines(place, max_row_bytes=max_row_bytes)
    rows, error = await outcome(source, Any, 1000)
    lines = [
        (number, line)
        for number, line in enumerate(data.split(b"\n"), 1)
        if line.strip(b" \t\r") or len(line) > max_row_bytes
    ]
    assert len(lines) - len(rows) in (0, 1)
    if len(rows) < len(lines):  # the last one is no good row, and may be half written
        number, last = lines.pop()
        assert data.endswith(last)
        assert f"line {number}: the file ends within this line (no newline)" in error
        with pytest.raises((ValueError, AssertionError)):  # noqa: PT012
            assert len(last) <= max_row_bytes
            json.loads(last.decode())
    else:
        assert error == ""
    assert [row[1] for row in rows] == [number for number, _ in lines]
    for row, (_, line) in zip(rows, lines, strict=True):
        try:
            assert len(line) <= max_row_bytes
            assert row[2] == json.loads(line)
            assert row[3] is None
        except (ValueError, AssertionError):
            assert row[3] is not None
    with tuned(**tuning):
        assert await outcome(source, Any, limit) == (rows, error)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.sampled_from(['"', '""', "a", ",", "\n", "\r", "\r\n", "é", "a,b\n", '"c"'])),
    st.integers(1, 20) | st.just(1000),
    tunings,
    st.integers(1, 5),
)
async def test_any_csv_is_cut_like_the_csv_module_cuts_it_whatever_the_chunks(
    place: Path, parts: list[str], max_row_bytes: int, tuning: dict[str, int], limit: int
) -> None:
    text = "x,y\n" + "".join(parts)
    place.write_bytes(text.encode())
    source = Csv(place, max_row_bytes=max(4, max_row_bytes))
    rows, error = await outcome(source, dict[str, str], 1000)
    with tuned(**tuning):
        assert await outcome(source, dict[str, str], limit) == (rows, error)
    with mock.patch.object(CsvFormat, "_decode_together", return_value=None):
        assert await outcome(source, dict[str, str], limit) == (rows, error)
    if max_row_bytes == 1000 and "\r" not in text.replace("\r\n", "\n") and not error:
        # the csv module gives up a bad row at its bad place: only good rows compare
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        expected: list[tuple[int, dict[str, str]]] = []
        next(reader)
        before = 1
        while not any(row[3] for row in rows):
            try:
                cells = next(reader)
            except StopIteration:
                assert [(row[1], row[2]) for row in rows] == expected
                break
            if cells:
                expected.append((before + 1, dict(zip("xy", cells, strict=True))))
            before = reader.line_num


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.lists(json_values | blank_lines, max_size=5), min_size=1, max_size=6),
    st.booleans(),
    st.sampled_from([b"\n", b"\r\n"]),
    st.data(),
)
async def test_a_file_that_grows_is_read_on(
    place: Path, stages: list[list[Any]], owe_newline: bool, newline: bytes, data: st.DataObject
) -> None:
    place.write_bytes(b"")
    source = JsonLines(place)
    expected: list[tuple[int, int, Any]] = []
    position = None
    line = acknowledged = 0
    owed = b""
    for stage in stages:
        with closing(await open_file(source, Any, position)) as reader:
            done = acknowledged
            for _ in range(data.draw(st.integers(1, 3))):  # grows while it is open
                for row in await drain(reader, data.draw(st.integers(1, 4))):
                    assert (row.offset, row.line, row.value) == expected[done]
                    done += 1
                assert done == len(expected)
                content = b""
                for part in stage:
                    line += 1
                    content += owed
                    if isinstance(part, bytes):
                        content += part
                    else:
                        expected.append((len(expected), line, part))
                        content += json.dumps(part).encode()
                    owed = newline
                if not owe_newline:
                    content, owed = content + owed, b""
                with place.open("ab") as file:
                    file.write(content)
            acknowledged = data.draw(st.integers(acknowledged, done))
            position = reader.position(acknowledged)
    with closing(await open_file(source, Any, position)) as reader:
        found = [(row.offset, row.line, row.value) for row in await drain(reader)]
        assert found == expected[acknowledged:]


# ------------------------------------------------------------------- the end of the file


@pytest.mark.parametrize("acknowledged", [0, 1, 2])
async def test_a_last_row_that_goes_on_later_is_a_row_or_a_bad_row(
    tmp_path: Path, acknowledged: int
) -> None:
    """Whole if nothing of it was processed; else the row was processed, and what came is told
    of."""
    path = tmp_path / "n.jsonl"
    path.write_bytes(b"1\n\n12")
    reader = await open_file(JsonLines(path))
    assert [row.value for row in await drain(reader)] == [1, 12]
    position = reader.position(acknowledged)
    reader.close()
    for good in (b"", b"\r", b"\n", b"\r\n", b" \n", b"\n3", b"\r\n3\n"):
        path.write_bytes(b"1\n\n12" + good)
        reader = await open_file(JsonLines(path), Any, position)
        rows = [(row.offset, row.line, row.value) for row in await drain(reader)]
        three = [(2, 4, 3)] if b"3" in good else []
        assert rows == [(0, 1, 1), (1, 3, 12)][acknowledged:] + three
        assert reader.position(reader.position(2)["row"] + len(three))["cut"] == (
            len(path.read_bytes()) - 1 if good == b"\n3" else None if b"\n" in good else 3
        )
        reader.close()
    path.write_bytes(b"1\n\n123\n4\n")
    reader = await open_file(JsonLines(path), Any, position)
    rows_ = await drain(reader)
    if acknowledged < 2:
        expected = [(0, 1, 1), (1, 3, 123), (2, 4, 4)][acknowledged:]
        assert [(row.offset, row.line, row.value) for row in rows_] == expected
    else:
        longer, four = rows_
        assert (longer.offset, longer.line, longer.text) == (2, 3, "123")
        assert f"{path}, line 3: the file ended within this line" in wrong(longer)
        assert "and 12 was processed as the whole row" in wrong(longer)
        assert "follow=True" in wrong(longer)
        assert (four.offset, four.line, four.value) == (3, 4, 4)
        behind = reader.position(3)
        again = await open_file(JsonLines(path), Any, behind)
        assert [(row.offset, row.value) for row in await drain(again)] == [(3, 4)]
        again.close()
    reader.close()


async def test_a_last_row_that_goes_on_later_is_a_bad_row_while_open(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(b"1\n12")
    reader = await open_file(JsonLines(path))
    await drain(reader)
    with path.open("ab") as file:
        file.write(b"\r")
    assert await reader.read(5) == []
    assert reader.ended
    with path.open("ab") as file:
        file.write(b"\n3")
    assert [(row.line, row.value) for row in await drain(reader)] == [(3, 3)]
    with path.open("ab") as file:
        file.write(b"4\n")
    (row,) = await reader.read(5)
    assert (row.offset, row.text) == (3, "34")
    assert "line 3: the file ended within this line" in wrong(row)
    assert reader.position(4)["byte"] == 9
    reader.close()


async def test_a_last_row_that_goes_on_is_seen_however_few_bytes_come_at_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "n.jsonl.gz"
    path.write_bytes(gzipped(b"1\n12"))
    with closing(await open_file(JsonLines(path))) as reader:
        await drain(reader)
        position = reader.position(2)
    path.write_bytes(gzipped(b"1\n12\r") + gzipped(b"3\n"))
    with closing(await open_file(JsonLines(path), Any, position)) as reader:
        (row,) = await drain(reader)
        assert "line 2: the file ended within this line" in wrong(row)


@pytest.mark.parametrize("follows", [b"1}\n", b"1}", b'"x"}\n{"a":3}\n'])
async def test_a_half_written_last_line_is_left_alone_until_it_is_whole(
    tmp_path: Path, follows: bytes
) -> None:
    """The run ends with an error that says so, and the next one reads the completed line."""
    path = tmp_path / "n.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":')
    reader = await open_file(JsonLines(path), Line)
    assert [row.value for row in await reader.read(10)] == [Line(1)]
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            await reader.read(10)
    text = str(caught.value)
    assert f"{path}, line 2: the file ends within this line (no newline)" in text
    assert "Input data was truncated" in text
    for way_out in ("follow=True", "run again", "end it with a newline", "remove it"):
        assert way_out in text
    position = reader.position(1)
    assert position["byte"] == 8
    reader.close()
    with path.open("ab") as file:
        file.write(follows)
    for stored in (position, None):
        reader = await open_file(JsonLines(path), Line, stored)
        rows = {row.offset: row for row in await drain(reader)}
        assert list(rows) == list(range(stored is not None, 2 + follows.endswith(b"3}\n")))
        if follows.startswith(b"1}"):
            assert rows[1].value == Line(1)
        else:
            assert "Expected `int`" in wrong(rows[1])  # it is whole: a bad row as any
            assert rows[2].value == Line(3)
        reader.close()


async def test_a_last_line_that_is_too_long_is_left_alone_until_it_is_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(b"1\n" + b"2" * 50)
    source = JsonLines(path, max_row_bytes=5)
    with tuned(CHUNK_BYTES=4):
        reader = await open_file(source)
        assert [row.value for row in await reader.read(10)] == [1]
        with pytest.raises(InputError, match=r"line 2: the file ends within this .* has 50 bytes"):
            await reader.read(10)
        position = reader.position(1)
        reader.close()
        with path.open("ab") as file:
            file.write(b"\n3\n")
        reader = await open_file(source, Any, position)
        long, third = await drain(reader)
        assert "the row has 50 bytes" in wrong(long)
        assert (third.offset, third.line, third.value) == (2, 3, 3)
        position = reader.position(2)
        reader.close()
        reader = await open_file(source, Any, position)
        assert [row.line for row in await drain(reader)] == [3]
        reader.close()


async def test_a_newline_that_comes_late_is_part_of_its_row(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    for newline in (b"\n", b"\r\n"):
        path.write_bytes(b"1")
        with closing(await open_file(JsonLines(path))) as reader:
            await drain(reader)
            with path.open("ab") as file:
                file.write(newline + b"2\n")
            await drain(reader)
            position = reader.position(1)  # right before the newline
        with closing(await open_file(JsonLines(path), Any, position)) as reader:
            assert [(row.offset, row.line, row.value) for row in await drain(reader)] == [(1, 2, 2)]


async def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(b"1\n2\n3\n")
    reader = await open_file(JsonLines(path))
    assert len(await drain(reader)) == 3
    path.write_bytes(b"1\n")
    with pytest.raises(InputError, match="was truncated below the 6 bytes"):
        await reader.read(1)
    reader.close()


async def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    for packing in PACKINGS.values():
        path.write_bytes(packing(b""))
        reader = await open_file(JsonLines(path))
        assert await reader.read(10) == []
        assert reader.progress() == 1.0
        position = reader.position(0)
        reader.close()
        path.write_bytes(packing(BOM + b"1\n"))
        reader = await open_file(JsonLines(path), Any, position)
        assert [(row.offset, row.line, row.value) for row in await drain(reader)] == [(0, 1, 1)]
        reader.close()


# --------------------------------------------------------------------------- JSON Lines


async def test_a_blank_line_that_is_too_long_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"   \n1\n  \n2\n   \n")
    for chunk in (1, 2, 4096):
        with tuned(CHUNK_BYTES=chunk):
            rows = await read_all(JsonLines(path, max_row_bytes=2))
            assert [(row.line, row.value) for row in rows] == [
                (1, None),
                (2, 1),
                (4, 2),
                (5, None),
            ]


async def test_bad_rows_of_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = [
        b'{"a": 1, "b": "x"}',
        b'{"a": "one"}',
        b"",
        b"{",
        b'{"a": 1, "b": "\xff"}',
        b'{"a": 1, "unknown": "\xff"}',
        b'{"a": 2, "b": "' + "é".encode() * 30 + b'"}',
        b"[" * 100_000,
        b'{"a": \0}',
        b'{"a": 3}\r',
    ]
    path.write_bytes(b"\n".join(lines) + b"\n")
    rows = await read_all(JsonLines(path, max_row_bytes=200), Line)
    assert [row.offset for row in rows] == list(range(9))
    assert [row.line for row in rows] == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert [row.value for row in rows if row.error is None] == [
        Line(1, "x"),
        Line(2, "é" * 30),
        Line(3),
    ]
    assert wrong(rows[1]) == f"{path}, line 2: Expected `int`, got `str` - at `$.a`"
    assert rows[1].text == '{"a": "one"}'
    assert wrong(rows[2]) == f"{path}, line 4: Input data was truncated"
    assert wrong(rows[3]) == f"{path}, line 5: byte 16 of the row is not UTF-8: invalid start byte"
    assert rows[3].text == '{"a": 1, "b": "\\xff"}'
    assert "is not UTF-8" in wrong(rows[4])
    assert "the row has 100,000 bytes, more than the limit of 200" in wrong(rows[6])
    assert rows[6].text == "[" * TEXT_CHARACTERS
    assert rows[7].text == '{"a": \\x00}'


async def test_a_deeply_nested_row_and_a_type_that_raises_are_bad_rows(tmp_path: Path) -> None:
    class Picky(msgspec.Struct):
        a: int

        def __post_init__(self) -> None:
            if self.a == 2:
                raise KeyError("two")

    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"[" * 50_000 + b"\n1\n")
    deep, one = await read_all(JsonLines(path))
    assert "nested more than 500 levels" in wrong(deep)
    assert one.value == 1
    path.write_bytes(b'{"a":1}\n{"a":2}\n{"a":3}\n')
    rows = await read_all(JsonLines(path), Picky)
    assert [row.value and row.value.a for row in rows] == [1, None, 3]
    assert wrong(rows[1]).endswith("line 2: KeyError: 'two'")
    path.write_bytes(b"a\n1\n2\n3\n")
    rows = await read_all(Csv(path), Picky)
    assert [row.value and row.value.a for row in rows] == [1, None, 3]
    assert wrong(rows[1]).endswith("line 3: KeyError: 'two'")


async def test_error_and_text_of_a_bad_row_fit_into_a_dead_letter(tmp_path: Path) -> None:
    class Choice(msgspec.Struct):
        pick: Literal["a", "b"]

    path = tmp_path / "lines.jsonl"
    value = "x\0" + "é😀" * 10_000
    path.write_bytes(msgspec.json.encode({"pick": value}) + b"\n")
    (row,) = await read_all(JsonLines(path), Choice)
    assert len(wrong(row)) < TEXT_CHARACTERS + 200
    assert "\0" not in wrong(row)
    assert len(row.text) == TEXT_CHARACTERS
    path.write_bytes(b"pick\n" + value.encode() + b"\n")
    (row,) = await read_all(Csv(path), Choice)
    assert "\0" not in wrong(row) + row.text
    assert row.text.startswith("x\\x00é😀é")


async def test_a_row_that_is_too_long_is_never_kept_whole(tmp_path: Path) -> None:
    path = tmp_path / "long"
    with path.open("wb") as file:
        file.write(b'"x"\n"')
        for _ in range(32):
            file.write(b"y" * (1 << 20))
        file.write(b'"\n"z"\n')
    for source in (
        JsonLines(path, max_row_bytes=10_000),
        Csv(path, max_row_bytes=10_000, null=()),
    ):
        tracemalloc.start()
        rows = await read_all(source, Any)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 << 20
        *_, long, last = rows
        assert "line 2: the row has 33,554,434 bytes, more than the limit of 10,000" in wrong(long)
        assert long.text == '"' + "y" * (TEXT_CHARACTERS - 1)
        assert last.value in ("z", {"x": "z"})
        assert last.line == 3


async def test_utf_16_is_named(tmp_path: Path) -> None:
    path = tmp_path / "n"
    for encoding in ("utf-16-le", "utf-16-be"):
        path.write_bytes("\ufeffx\n1\n".encode(encoding))
        for source in (JsonLines(path), Csv(path)):
            assert await refusal(source, Any) == f"{path}: is UTF-16; convert it to UTF-8"


# ---------------------------------------------------------------------------------- CSV


async def test_cells_become_typed_fields_and_null_cells_their_none_or_default(
    tmp_path: Path,
) -> None:
    path = tmp_path / "flights.csv"
    path.write_bytes(
        b"number,carrier,unused,delay,tail,seats\n"
        b"1,UA,x,2.5,N1,200\n"
        b"2,,x,,,\n"
        b"3,NA,x,NA,NA,NA\n"
        b",AA,x,1,,\n"
        b"007,AA,x,1,,\n"
        b"5,AA,x,late,,\n"
    )
    rows = await read_all(Csv(path, null=("", "NA")), Flight)
    assert [row.value for row in rows[:3]] == [
        Flight("UA", 1, 2.5, "N1", 200),
        Flight("", 2, None, None, 100),
        Flight("NA", 3, None, None, 100),
    ]
    assert wrong(rows[3]) == f"{path}, line 5: column 'number' holds '': Expected `int`, got `str`"
    assert "line 6: column 'number' holds '007'" in wrong(rows[4])
    assert "line 7: column 'delay' holds 'late': Expected `float | null`" in wrong(rows[5])
    assert rows[5].text == "5,AA,x,late,,"


async def test_value_types_of_csv_rows(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Plain:
        x: Annotated[int, msgspec.Meta(ge=0)]
        y: Annotated[Annotated[str, msgspec.Meta(title="Y")] | None, msgspec.Meta(title="Y")] = "n"

    class One(msgspec.Struct):
        x: int

    class Typed(TypedDict):
        x: int
        y: NotRequired[float]

    class Tagged(msgspec.Struct, tag_field="y", tag="b", rename={"first": "x"}):
        first: int

    class Closed(msgspec.Struct, forbid_unknown_fields=True):
        x: int

    class Listed(msgspec.Struct, array_like=True):
        x: int

    path = tmp_path / "n.csv"
    path.write_bytes(b"x,y\n1,\n2,b\n-3,4\n")
    assert [row.value for row in await read_all(Csv(path), Plain)] == [
        Plain(1, None),
        Plain(2, "b"),
        None,
    ]
    assert [
        row.value for row in await read_all(Csv(path), Annotated[One, msgspec.Meta(title="1")])
    ] == [
        One(1),
        One(2),
        One(-3),
    ]
    assert [row.value for row in await read_all(Csv(path), Typed)] == [
        {"x": 1},
        None,
        {"x": -3, "y": 4.0},
    ]
    assert [row.value for row in await read_all(Csv(path), Tagged)] == [None, Tagged(2), None]
    assert (await read_all(Csv(path), dict[str, str]))[0].value == {"x": "1", "y": ""}
    assert (await read_all(Csv(path), Any))[0].value == {"x": "1", "y": None}
    assert [row.value for row in await read_all(Csv(path), dict[str, int | None])] == [
        {"x": 1, "y": None},
        None,
        {"x": -3, "y": 4},
    ]
    assert "the column 'y' is not a field of Closed" in await refusal(Csv(path), Closed)
    path.write_bytes(b"x\n5\n")
    assert [row.value for row in await read_all(Csv(path), Closed)] == [Closed(5)]
    for value_type in (int, str, list[int], Listed, Plain | None):
        with pytest.raises(UsageError, match="a CSV row cannot become"):
            await open_file(Csv(path), value_type)


async def test_a_type_that_json_cannot_be_is_the_programs_fault(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(b"1\n")
    with pytest.raises(UsageError, match=r"n\.jsonl: rows cannot be read as"):
        await open_file(JsonLines(path), int | Line | TypedDict("T", {"a": int}))  # type: ignore[operator]


async def test_times_and_flags_in_csv(tmp_path: Path) -> None:
    class Event(msgspec.Struct):
        at: datetime
        on: bool

    path = tmp_path / "n.csv"
    path.write_bytes(b"at,on\n2013-01-01T10:00:00Z,TRUE\n2013-01-01T10:00:00Z,0\n")
    at = datetime(2013, 1, 1, 10, tzinfo=UTC)
    assert [row.value for row in await read_all(Csv(path), Event)] == [
        Event(at, True),
        Event(at, False),
    ]


@pytest.mark.parametrize("cell", ["20240101", "2024", "45292", "-5", "0", "1.5", "1e3", "-1.5E+3"])
async def test_a_number_is_no_time_in_csv(cell: str, tmp_path: Path) -> None:
    """Not seconds since 1970: it is more often a day, a year, or a day of a spreadsheet."""

    class Event(msgspec.Struct):
        at: datetime | None
        took: timedelta = timedelta(0)
        number: datetime | int = 0

    path = tmp_path / "n.csv"
    good = b"2013-01-01T10:00:00Z,PT2S,7\n,PT0S,2013-01-01T10:00:00Z\nnull,PT2S,7\n"
    path.write_bytes(b"at,took,number\n" + good)
    at = datetime(2013, 1, 1, 10, tzinfo=UTC)
    two = timedelta(seconds=2)
    wanted = [Event(at, two, 7), Event(None, timedelta(0), at), Event(None, two, 7)]
    assert [row.value for row in await read_all(Csv(path), Event)] == wanted
    text = cell.encode()
    path.write_bytes(
        b"at,took,number\n%b,PT2S,7\n%b2013-01-01T10:00:00Z,%b,7\n" % (text, good, text)
    )
    rows = await read_all(Csv(path), Event)
    assert [row.value for row in rows] == [None, *wanted, None]
    assert f"column 'at' holds {cell!r}, a number, and not a time such as 2013-" in str(
        rows[0].error
    )
    assert f"column 'took' holds {cell!r}, a number" in str(rows[-1].error)
    path.write_bytes(b"a,b\n%b,2013-01-01T10:00:00Z\n" % text)
    (row,) = await read_all(Csv(path), dict[str, datetime])
    assert "column 'a' holds" in str(row.error)


async def test_headers_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_bytes(b"carrier,Number,delay,tail,seats\n")
    text = await refusal(Csv(path), Flight)
    assert "the header has no column 'number', which Flight requires" in text
    assert "it has 'carrier', 'Number', 'delay', 'tail', 'seats'" in text
    path.write_bytes(b"carrier,number,delay\nUA,1,2\n")
    assert "no column 'tail', 'seats'" in await refusal(Csv(path), Flight)
    assert "no column 'tail'," in await refusal(Csv(path, optional=["seats"]), Flight)
    (row,) = await read_all(Csv(path, optional=("seats", "tail", "number")), Flight)
    assert row.value == Flight("UA", 1, 2.0)
    path.write_bytes(b"carrier,delay,tail,seats\n")
    # only what has a default can be left out
    assert "no column 'number'" in await refusal(Csv(path, optional=["number"]), Flight)
    path.write_bytes(b"x,y,x,z,z\n")
    assert "more than one column has the name 'x', 'z'" in await refusal(Csv(path), Any)
    path.write_bytes(b"a,b,,\n1,2,,\n")  # as spreadsheets leave it
    assert [row.value for row in await read_all(Csv(path), Line)] == [Line(1, "2")]
    assert "has the name ''" in await refusal(Csv(path), Any)
    path.write_bytes(b"\n\r\n")
    assert "is empty; a CSV file starts with a header row" in await refusal(Csv(path))
    path.write_bytes(b"")
    assert "is empty" in await refusal(Csv(path))
    path.write_bytes(b"\na,\xff\n")
    assert "n.csv, line 2: the header: byte 3 of the row is not UTF-8" in await refusal(Csv(path))
    path.write_bytes(b"a\r1\r2\r")
    assert "line 1: the header: there is a carriage return in cell 1" in await refusal(Csv(path))
    path.write_bytes(b'a,"b\n1,2\n')
    assert "line 1: a quote in the row that starts here is never closed" in await refusal(Csv(path))
    for chunk in (4, 4096):
        with tuned(CHUNK_BYTES=chunk):
            path.write_bytes(b"abcdefghi\n1\n")
            assert "the row has 9 bytes" in await refusal(Csv(path, max_row_bytes=5))


async def test_a_csv_header_alone_is_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_bytes(b"a,b")
    reader = await open_file(Csv(path), Line)
    assert await reader.read(5) == []
    position = reader.position(0)
    reader.close()
    path.write_bytes(b"a,b\n1,2\n")
    reader = await open_file(Csv(path), Line, position)
    assert [(row.offset, row.line, row.value) for row in await drain(reader)] == [
        (0, 2, Line(1, "2"))
    ]
    reader.close()
    path.write_bytes(b"a,b,c\n1,2,3\n")
    reader = await open_file(Csv(path), Line, position)  # the header was not whole
    assert [(row.offset, row.line, row.value) for row in await drain(reader)] == [
        (0, 2, Line(1, "2"))
    ]
    reader.close()


async def test_bad_rows_of_csv(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_bytes(
        b"a,b\n"
        b"1,one\n"
        b"2\n"
        b"3,three,3\n"
        b'4,"two\nlines"\n'
        b"5,\xff\n"
        b'6,"x"y\n'
        b"7,a\rb\n"
        b'8,"a\r\nb"\n'
        b'9,say "hi"\n'
        b'10,"say ""hi"""\n'
        b"\n"
        b'"11",""\r\n'
    )
    rows = await read_all(Csv(path), Line)
    assert [(row.line, row.value) for row in rows if row.error is None] == [
        (2, Line(1, "one")),
        (5, Line(4, "two\nlines")),
        (10, Line(8, "a\r\nb")),
        (12, Line(9, 'say "hi"')),
        (13, Line(10, 'say "hi"')),
        (15, Line(11, "")),
    ]
    assert [wrong(row).removeprefix(f"{path}, ") for row in rows if row.error] == [
        "line 3: the row has 1 cells, the header 2",
        "line 4: the row has 3 cells, the header 2",
        "line 7: byte 3 of the row is not UTF-8: invalid start byte",
        "line 8: cell 2 continues after its closing quote; a quote within quotes must be doubled",
        (
            "line 9: there is a carriage return in cell 2, which is not quoted; lines must end in "
            "\\n or \\r\\n"
        ),
    ]


async def test_an_open_quote_ends_reading_and_can_be_repaired(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    start, rest = b"a,b\n1,x\n", b'2,"y\n3,z\n' + b"4,z\n" * 20
    for limit in (20, 1000):
        for chunk in (5, 4096):
            path.write_bytes(start + rest)
            source = Csv(path, max_row_bytes=limit)
            with tuned(CHUNK_BYTES=chunk):
                reader = await open_file(source, Line)
                assert [row.value for row in await reader.read(10)] == [Line(1, "x")]
                for _ in range(2):
                    with pytest.raises(InputError, match="line 3: a quote in the row that starts"):
                        await reader.read(10)
                position = reader.position(1)
                assert position == reader.position(1)
                reader.close()
                path.write_bytes(start + rest.replace(b'"', b""))
                reader = await open_file(source, Line, position)
                rows = await drain(reader)
                assert [row.offset for row in rows] == list(range(1, 23))
                assert rows[0].value == Line(2, "y")
                reader.close()


async def test_a_row_whose_quote_is_closed_by_growth_is_read_then(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_bytes(b'a,b\n1,"x\n')
    reader = await open_file(Csv(path), Line)
    position = reader.position(0)
    with pytest.raises(InputError):
        await reader.read(1)
    reader.close()
    with path.open("ab") as file:
        file.write(b'y"\n2,z\n')
    reader = await open_file(Csv(path), Line, position)
    assert [row.value for row in await drain(reader)] == [Line(1, "x\ny"), Line(2, "z")]
    reader.close()


async def test_blank_lines_of_a_csv_file_with_one_column(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_bytes(b'a\r\n1\r\n\r\n2\n\n""\n')
    rows = await read_all(Csv(path), dict[str, str])
    assert [(row.line, row.value) for row in rows] == [
        (2, {"a": "1"}),
        (4, {"a": "2"}),
        (6, {"a": ""}),
    ]
    path.write_bytes(b"a\r\n1\r\n\r\n2\r\n")
    rows = await read_all(Csv(path), dict[str, str])
    assert [(row.line, row.value) for row in rows] == [(2, {"a": "1"}), (4, {"a": "2"})]


async def test_a_quote_within_a_cell_of_a_long_row_opens_nothing(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_bytes(b'a,b\n1,xyz"xyz\n2,"x""\ny"\n3,z\n')
    for chunk in (1, 2, 3, 4096):
        with tuned(CHUNK_BYTES=chunk):
            rows = await read_all(Csv(path, max_row_bytes=4), Line)
            assert [(row.line, row.value) for row in rows] == [
                (2, None),
                (3, None),
                (5, Line(3, "z")),
            ]


async def test_a_cell_beyond_the_csv_modules_limit(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    large = "x\n," * csv.field_size_limit()
    path.write_text(f'a,b\n1,"{large}"\n2,y\n')
    rows = await read_all(Csv(path), Line)
    assert [row.value for row in rows] == [Line(1, large), Line(2, "y")]
    assert csv.field_size_limit() == 131_072


@pytest.mark.parametrize("delimiter", [";", "\t", "|", " ", "^", "]", "\\", "-", "[", "."])
@pytest.mark.parametrize("quote", ['"', "'", "^", "]", "\\", None])
async def test_other_delimiters_and_quotes(
    tmp_path: Path, delimiter: str, quote: str | None
) -> None:
    if delimiter == quote:
        return
    path = tmp_path / "n.csv"
    cell = 'x"y' if quote is None else f"{quote}x{delimiter}{quote}{quote}y\nz{quote}"
    value = 'x"y' if quote is None else f"x{delimiter}{quote}y\nz"
    path.write_text(f"a{delimiter}b\n1{delimiter}{cell}\n2{delimiter}y\n")
    for chunk in (3, 4096):
        for limit in (3, 4096):
            with tuned(CHUNK_BYTES=chunk):
                source = Csv(path, delimiter=delimiter, quote=quote, max_row_bytes=limit)
                rows = await read_all(source, Line)
                assert [row.value for row in rows] == [
                    Line(1, value) if limit > 3 else None,
                    Line(2, "y"),
                ]
                assert rows[1].line == (3 if quote is None else 4)


# ------------------------------------------------------------------------- refused files


async def test_a_missing_file_a_directory_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for make in (JsonLines, Csv):
        text = await refusal(make(tmp_path / "none.x"))
        assert text == f"{tmp_path / 'none.x'}: there is no such file"
        with pytest.raises(UsageError, match="Without follow=True"):
            make(tmp_path)
        (tmp_path / "later").mkdir(exist_ok=True)
        later = make(tmp_path / "later" / "x")
        (tmp_path / "later" / "x").mkdir(exist_ok=True)
        assert "is a directory; name the files in it" in await refusal(later)
        (tmp_path / "later" / "x").rmdir()
        assert "is not a regular file" in await refusal(make(tmp_path / "pipe"))
        (tmp_path / "file").write_bytes(b"")
        assert "cannot be opened: Not a directory" in await refusal(make(tmp_path / "file" / "x"))


async def test_a_relative_path_is_told_with_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = JsonLines("none.jsonl")
    monkeypatch.chdir("/")
    assert await refusal(source) == f"none.jsonl: there is no such file ({tmp_path / 'none.jsonl'})"


async def test_a_file_that_may_not_be_read_or_breaks_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(b"1\n2\n3\n4\n")

    class Forbidden(io.FileIO):
        def __init__(self, path: str) -> None:
            raise PermissionError(13, "Permission denied", path)

    class Unreadable(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    class Broken(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() == 4:
                raise OSError(5, "Input/output error")
            return super().read(2 if self.tell() else 4) or b""

    monkeypatch.setattr(packed, "FileIO", Forbidden)
    assert await refusal(JsonLines(path)) == f"{path}: cannot be opened: Permission denied"
    monkeypatch.setattr(packed, "FileIO", Unreadable)
    assert await refusal(JsonLines(path)) == f"{path}: cannot be read: Input/output error"
    monkeypatch.setattr(packed, "FileIO", Broken)
    reader = await open_file(JsonLines(path))
    assert [row.value for row in await reader.read(10)] == [1, 2]
    for _ in range(2):
        with pytest.raises(InputError, match="cannot be read beyond byte 4: Input/output error"):
            await reader.read(10)
    position = reader.position(1)
    reader.close()
    monkeypatch.setattr(packed, "FileIO", io.FileIO)
    reader = await open_file(JsonLines(path), Any, position)
    assert [row.value for row in await drain(reader)] == [2, 3, 4]
    reader.close()


# -------------------------------------------------------------------------- gzip and zip


def numbers(count: int) -> bytes:
    source = random.Random(7)
    return b"".join(b"%d\n" % source.randrange(10**9) for _ in range(count))


async def until_error(source: Source) -> tuple[list[Any], str, dict[str, Any]]:
    reader = await open_file(source)
    values: list[Any] = []
    try:
        while rows := await reader.read(100):
            values += [row.value for row in rows]
    except InputError as error:
        return values, str(error), reader.position(len(values))
    else:
        return values, "", reader.position(len(values))
    finally:
        reader.close()


@pytest.mark.parametrize("damage", ["cut off", "flipped", "wrong checksum", "garbage behind"])
async def test_rows_before_the_damage_in_a_gzip_file_are_valid(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "n.jsonl.gz"
    content = numbers(30_000)
    packed = bytearray(gzipped(content))
    sound = bytes(packed)
    if damage == "cut off":
        del packed[len(packed) // 2 :]
    elif damage == "flipped":
        packed[len(packed) // 2 :] = bytes(len(packed) - len(packed) // 2)
    elif damage == "wrong checksum":
        packed[-8] ^= 1
    else:
        packed += b"garbage"
    path.write_bytes(packed)
    values, error, position = await until_error(JsonLines(path))
    expected = [int(line) for line in content.split()]
    assert f"{path}: the gzip file is damaged near its byte" in error
    if damage in ("cut off", "flipped"):
        assert len(values) > 10_000
    path.write_bytes(sound)
    if damage == "flipped":
        # deflate finds out late: rows of garbage came first, so the sound file is another one
        assert values != expected[: len(values)]
        assert "have changed since their rows were processed" in await refusal(
            JsonLines(path), Any, position
        )
    else:
        assert values == expected[: len(values)]
        reader = await open_file(JsonLines(path), Any, position)
        assert [row.value for row in await drain(reader)] == expected[len(values) :]
        reader.close()


async def test_a_gzip_file_grows_by_members_and_may_be_padded(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl.gz"
    path.write_bytes(gzipped(b"1\n2\n") + bytes(100) + gzipped(b"") + gzipped(b"3\n"))
    with tuned(GZIP_STEP_BYTES=20):
        assert [row.value for row in await read_all(JsonLines(path))] == [1, 2, 3]
    reader = await open_file(JsonLines(path))
    assert [row.value for row in await drain(reader)] == [1, 2, 3]
    with path.open("ab") as file:
        file.write(bytes(10) + gzipped(b"4\n5\n"))
    assert [row.value for row in await reader.read(1)] == [4]
    assert share(reader) < 1
    position = reader.position(2)
    reader.close()
    reader = await open_file(JsonLines(path), Any, position)
    assert [(row.offset, row.value) for row in await drain(reader)] == [(2, 3), (3, 4), (4, 5)]
    reader.close()
    path.write_bytes(gzipped(b"1\n2\n3\n4\n9\n"))  # packed anew: the bytes inside count
    reader = await open_file(JsonLines(path), Any, position)
    assert [(row.offset, row.value) for row in await drain(reader)] == [(2, 3), (3, 4), (4, 9)]
    reader.close()
    path.write_bytes(gzipped(b"1\n5\n3\n4\n9\n"))
    assert "the first 4 bytes (before line 3) have changed" in await refusal(
        JsonLines(path), Any, position
    )
    path.write_bytes(gzipped(b"1\n2\n3\n4\n9\n")[:-12])
    assert "is damaged" in await refusal(JsonLines(path), Any, position)


async def test_members_of_a_zip_file(tmp_path: Path) -> None:
    path = tmp_path / "all.zip"
    path.write_bytes(zipped(one=b"1\n", two=b"2\n3\n"))
    assert (
        await refusal(JsonLines(path))
        == f"{path}: choose one of its members with member=...: 'one', 'two'"
    )
    assert [row.value for row in await read_all(JsonLines(path, member="two"))] == [2, 3]
    assert (
        await refusal(JsonLines(path, member="three"))
        == f"{path}: has no member 'three'; it has 'one', 'two'"
    )
    path.write_bytes(zipped(**{"dir/": b"", "dir/n": b"x\n", "__MACOSX/dir/._n": b"?"}))
    (row,) = await read_all(JsonLines(path))
    assert wrong(row).startswith(f"{path}!dir/n, line 1: ")
    path.write_bytes(zipped(**{f"m{n}": b"" for n in range(50)}))
    assert (await refusal(JsonLines(path))).endswith("'m19' and 30 more")
    path.write_bytes(zipped())
    assert await refusal(JsonLines(path)) == f"{path}: the zip file holds no files"
    assert "holds no files" in await refusal(JsonLines(path, member="x"))
    path.write_bytes(b"1\n")
    assert (
        await refusal(JsonLines(path, member="x"))
        == f"{path}: is not a zip file, so it has no member 'x'"
    )


async def test_damaged_zip_files(tmp_path: Path) -> None:
    path = tmp_path / "all.zip"
    content = numbers(100_000)
    sound = zipped(only=content)
    expected = [int(line) for line in content.split()]
    path.write_bytes(sound[:-30])
    assert f"{path}: the zip file is damaged: File is not a zip file" in await refusal(
        JsonLines(path)
    )
    path.write_bytes(b"PK\x03\x04" + bytes(90) + sound[94:])
    assert f"{path}!only: cannot be unpacked: " in await refusal(JsonLines(path))
    half = len(sound) // 2
    path.write_bytes(sound[:half] + bytes(100) + sound[half + 100 :])
    values, error, position = await until_error(JsonLines(path))
    assert f"{path}!only: damaged after byte" in error
    good = next(n for n, (a, b) in enumerate(zip(values, expected, strict=False)) if a != b)
    assert 10_000 < good < len(values)  # the checksum stands at the end
    path.write_bytes(sound)
    assert "have changed since their rows were processed" in await refusal(
        JsonLines(path), Any, position
    )
    reader = await open_file(JsonLines(path))
    await reader.read(good)
    position = reader.position(good)
    reader.close()
    path.write_bytes(sound[:half] + bytes(100) + sound[half + 100 :])
    reader = await open_file(JsonLines(path), Any, position)
    assert [row.value for row in await reader.read(1)] != expected[good : good + 1]
    reader.close()
    locked = bytearray(zipped(only=b"1\n"))
    locked[6] |= 1  # flag bit 0: encrypted
    locked[locked.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(locked)
    assert "cannot be unpacked" in await refusal(JsonLines(path))
    assert "encrypted" in await refusal(JsonLines(path))


# --------------------------------------------------------------------------- positions


@settings(max_examples=examples(100), deadline=None)
@given(json_files() | csv_files(), tunings, st.data())
async def test_what_is_acknowledged_may_not_change_and_what_is_not_may(
    place: Path,
    file: tuple[bytes, list[tuple[int, int, Any]]],
    tuning: dict[str, int],
    data: st.DataObject,
) -> None:
    """The digest ends at the first byte of the first row that is not acknowledged."""
    content, _ = file
    place.write_bytes(content)
    is_csv = content.lstrip(BOM + b"\n").startswith(b"x,y")
    source: Source = Csv(place) if is_csv else JsonLines(place)
    with tuned(**tuning):
        with closing(await open_file(source)) as reader:
            done = acknowledged = 0
            for _ in range(data.draw(st.integers(1, 4))):
                done += len(await reader.read(data.draw(st.integers(1, 9))))
                acknowledged = data.draw(st.integers(acknowledged, done))
                position = reader.position(acknowledged)
            assert position == reader.position(acknowledged)
        end = position["byte"]
        for place_of_flip in range(end):
            changed = bytearray(content)
            changed[place_of_flip] ^= 1 << (place_of_flip % 8)
            place.write_bytes(changed)
            with pytest.raises(InputError):
                (await open_file(source, Any, position)).close()
        if end:
            place.write_bytes(content[: end - 1])
            with pytest.raises(InputError):
                (await open_file(source, Any, position)).close()
        more = content[:end] + b"\n" * (position["cut"] is not None) + b"7,7\n"
        has_header = b"x,y" in content[:end]
        place.write_bytes(more if not is_csv or has_header else content)
        with closing(await open_file(source, Any, position)) as reader:
            rows = await drain(reader)
            assert all(row.offset >= acknowledged for row in rows)
            if is_csv and has_header:
                assert rows[0].value == {"x": "7", "y": "7"}


async def test_a_corrected_row_is_read(tmp_path: Path) -> None:
    """The way out of a bad row that the error names: correct the file and start again."""
    path = tmp_path / "n.jsonl"
    lines = [b'{"a":%d}\n' % number for number in range(3_000)]
    lines[2_000] = b'{"a":"x"}\n'
    path.write_bytes(b"".join(lines))
    for limit in (7, 1_000, 3_000):
        with closing(await open_file(JsonLines(path), Line)) as reader:
            rows: list[Row] = []
            while len(rows) < 3_000:
                rows += await reader.read(limit)
            assert [row.offset for row in rows if row.error] == [2_000]
            positions = [reader.position(row) for row in (0, 1, 999, 1_500, 2_000)]
        for position in positions:
            corrected = [*lines[:2_000], b'{"a":2000, "b":"corrected"}\n', *lines[2_001:]]
            path.write_bytes(b"".join(corrected))
            with closing(await open_file(JsonLines(path), Line, position)) as reader:
                values = [row.value for row in await drain(reader, 500)]
                assert values[2_000 - position["row"]] == Line(2_000, "corrected")
                assert len(values) == 3_000 - position["row"]
            path.write_bytes(b"".join([b'{"a":9}\n', *corrected[1:]]))
            if position["row"]:
                assert "have changed since their rows were processed" in await refusal(
                    JsonLines(path), Line, position
                )
        path.write_bytes(b"".join(lines))


async def test_a_position_covers_what_is_acknowledged_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(b"1\n2\n3\n4\n")
    reader = await open_file(JsonLines(path))
    await reader.read(3)
    position = reader.position(1)
    reader.close()
    path.write_bytes(b"1\n5\n6\n")
    reader = await open_file(JsonLines(path), Any, position)
    assert [(row.offset, row.line, row.value) for row in await drain(reader)] == [
        (1, 2, 5),
        (2, 3, 6),
    ]
    reader.close()
    path.write_bytes(b"9\n2\n3\n4\n")
    text = await refusal(JsonLines(path), Any, position)
    assert text.startswith(f"{path}: the first 2 bytes (before line 2) have changed")
    assert "Restore the file as it was" in text
    assert "millwheel drop" in text


async def test_bytes_are_kept_only_until_their_rows_are_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes((b'"' + b"x" * 9_998 + b'"\n') * 2_000)
    tracemalloc.start()
    reader = await open_file(JsonLines(path))
    read = 0
    while rows := await reader.read(100):
        read += len(rows)
        reader.position(max(0, read - 200))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    reader.close()
    assert read == 2_000
    assert peak < 8 << 20, "of 20 MB"


async def test_the_event_loop_runs_while_a_long_prefix_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(numbers(20_000))
    reader = await open_file(JsonLines(path))
    while await reader.read(1_000):
        pass
    position = reader.position(20_000)
    reader.close()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    with tuned(CHUNK_BYTES=4096):
        (await open_file(JsonLines(path), Any, position)).close()
    counting.cancel()
    assert turns >= len(path.read_bytes()) // 4096


async def test_a_read_that_is_cancelled_loses_nothing(tmp_path: Path) -> None:
    """A row longer than may be kept takes many pieces, between which others run."""
    path = tmp_path / "n.jsonl"
    path.write_bytes(b"1\n" + b"\n" * 500 + b"2" * 1000 + b"\n3\n")
    with tuned(CHUNK_BYTES=8):
        reader = await open_file(JsonLines(path, max_row_bytes=5))
        rows: list[Row] = []
        for turn in range(2_000):
            reading = asyncio.create_task(reader.read(10))
            for _ in range(turn % 5 + 1):
                await asyncio.sleep(0)
            if reading.done():
                rows += reading.result()
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
        reader.close()
    assert [(row.offset, row.line, row.value) for row in rows] == [
        (0, 1, 1),
        (1, 502, None),
        (2, 503, 3),
    ]


async def test_what_waits_to_be_read_is_told_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(numbers(1_000))
    size = path.stat().st_size
    reader = await open_file(JsonLines(path))
    assert reader.lag()[:2] == (None, size)
    await reader.read(500)
    reader_at = reader.position(500)["byte"]
    assert reader.lag()[:2] == (None, size - reader_at)
    await reader.read(500)
    assert reader.lag()[:2] == (None, 0)
    reader.close()
    path.write_bytes(gzipped(numbers(1_000)))
    reader = await open_file(JsonLines(path))
    assert reader.lag().bytes == path.stat().st_size
    await drain(reader)
    assert reader.lag().bytes == 0
    reader.close()


async def test_no_more_is_read_at_a_time_than_memory_is_meant_for(tmp_path: Path) -> None:
    """However many rows are asked for; and the file does not end there."""
    path = tmp_path / "large.jsonl"
    path.write_bytes(b"\n" * 100 + (b'"' + b"x" * 998 + b'"\n') * 100)
    with tuned(READ_BYTES=5_000, CHUNK_BYTES=2_000):
        reader = await open_file(JsonLines(path))
        sizes = []
        while rows := await reader.read(1_000):
            sizes.append(len(rows))
        reader.close()
    assert sum(sizes) == 100
    assert max(sizes) <= 8, "5,000 bytes, and a buffer"
    assert min(sizes[1:-1]) >= 4, "and not much less"


async def test_positions_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "n"
    path.write_bytes(b'"x"\n"y"\n')
    reader = await open_file(JsonLines(path))
    await reader.read(2)
    position = reader.position(2)
    reader.close()
    assert 'was read as json_lines before and as csv ," now' in await refusal(
        Csv(path), Any, position
    )
    for broken in ({}, {**position, "more": 1}, {**position, "row": "2"}):
        assert "its stored position {" in await refusal(JsonLines(path), Any, broken)
    for broken in ({**position, "byte": -1}, {**position, "row": -1}, {**position, "cut": 9}):
        assert "its numbers contradict each other" in await refusal(JsonLines(path), Any, broken)


# ------------------------------------------------------------------------------- sources


async def test_partitions_and_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source: Source = JsonLines(["b.jsonl", Path("sub/../a.jsonl")])
    monkeypatch.chdir("/")
    parts: list[Partition] = source.partitions()
    assert [part.identity for part in parts] == [f"{tmp_path}/b.jsonl", f"{tmp_path}/a.jsonl"]
    (tmp_path / "a.jsonl").write_bytes(b"1\n")
    reader = await parts[1].open(int, None)
    assert [row.value for row in await drain(reader)] == [1]
    reader.close()
    reader.close()
    (part,) = Csv("/x/all.zip", member="y.csv").partitions()
    assert part.identity == "/x/all.zip!y.csv"


async def test_a_link_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "release-1").write_bytes(b"1\n")
    (tmp_path / "current").symlink_to(tmp_path / "release-1")
    (part,) = JsonLines(tmp_path / "current").partitions()
    assert part.identity == str(tmp_path / "current")


async def test_descriptions_are_as_given_and_json() -> None:
    assert JsonLines("x.jsonl").describe() == {"json_lines": "x.jsonl"}
    described = JsonLines([Path("x.zip"), "y.zip"], member="m").describe()
    assert described == {"json_lines": ["x.zip", "y.zip"], "member": "m"}
    described = Csv("x.csv", delimiter=";", null=["", "NA"], optional=["tail"]).describe()
    assert json.loads(json.dumps(described)) == {
        "csv": "x.csv",
        "delimiter": ";",
        "quote": '"',
        "null": ["", "NA"],
        "optional": ["tail"],
    }


async def test_sources_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="JsonLines: no path is given"):
        JsonLines([])
    with pytest.raises(UsageError, match="Csv: a file is given more than once: '/x'"):
        Csv(["/x", "/y/../x"])
    with pytest.raises(UsageError, match="max_row_bytes must be at least 1"):
        JsonLines("x", max_row_bytes=0)
    for delimiter in ("", ",,", "\n", "é", "\0"):
        with pytest.raises(UsageError, match="Csv: the delimiter must be one ASCII character"):
            Csv("x", delimiter=delimiter)
    with pytest.raises(UsageError, match="Csv: the quote must be one ASCII character"):
        Csv("x", quote="")
    with pytest.raises(UsageError, match="delimiter and quote are both"):
        Csv("x", delimiter='"')
    with pytest.raises(UsageError, match="give null as a tuple of strings, not 'NA'"):
        Csv("x", null="NA")
    with pytest.raises(UsageError, match="give optional as a tuple"):
        Csv("x", optional="tail")


async def test_progress_goes_from_nothing_to_all(tmp_path: Path) -> None:
    path = tmp_path / "n"
    for packing in PACKINGS.values():
        path.write_bytes(packing(numbers(20_000)))
        with tuned(CHUNK_BYTES=4096, GZIP_STEP_BYTES=4096):
            reader = await open_file(JsonLines(path))
            assert reader.progress() == 0.0
            shares = []
            for _ in range(4):
                await reader.read(5_000)
                shares.append(reader.progress())
            assert shares == pytest.approx([0.25, 0.5, 0.75, 1.0], abs=0.1)
            assert await reader.read(1) == []
            assert reader.progress() == 1.0
            reader.close()
