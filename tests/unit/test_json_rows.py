"""Rows of JSON: the same row is bad in every source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.core.json_rows import MOST_DEPTH, BadRow, JsonRows, is_too_deep, without_strings
from millwheel.files import JsonLines
from millwheel.sources import Row
from tests.kafka.clusters import FakeSite, Written
from tests.kafka.readers import end, opened, read
from tests.support.bad_rows import BAD_ROWS, Payment, nested

GOOD = [b'{"number":1}', nested(MOST_DEPTH, 2), b'{"number":3,"x":"[[{\\"\\\\"}']


@pytest.fixture(params=list(BAD_ROWS.values()), ids=list(BAD_ROWS))
def bad(request: pytest.FixtureRequest) -> bytes:
    row: bytes = request.param
    return row


def test_good_rows_are_decoded_together() -> None:
    values = JsonRows(Payment).together(GOOD)
    assert values is not None
    assert [value.number for value in values] == [1, 2, 3]


def test_a_bad_row_is_found(bad: bytes) -> None:
    rows = JsonRows(Payment)
    assert rows.together([*GOOD, bad]) is None
    with pytest.raises(BadRow, match=r"\w"):
        rows.one(bad)


def test_a_row_with_nul_is_never_passed_on_as_it_is() -> None:
    raw = b'{"number":1,"x":"\\u0000"}'
    assert JsonRows(Payment).together([raw]) is None
    assert JsonRows(Payment).one(raw).number == 1


async def test_a_file_sets_it_apart(bad: bytes, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join([*GOOD, bad, GOOD[0], b""]))
    (partition,) = JsonLines(tmp_path / "rows.jsonl").partitions()
    reader = await partition.open(Payment, None)
    check([*await reader.read(100)])
    reader.close()


async def test_kafka_sets_it_apart(bad: bytes) -> None:
    cluster = FakeSite()
    topic = await cluster.make()
    await cluster.write(topic, [Written(raw) for raw in (*GOOD, bad, GOOD[0])])
    reader = await opened(cluster, topic, value_type=Payment)
    check(await read(reader, 5))
    await end(reader)


def check(rows: list[Row]) -> None:
    assert [row.error is not None for row in rows] == [False, False, False, True, False]
    assert [row.value.number for row in rows if row.error is None] == [1, 2, 3, 1]


VALUES = st.recursive(
    st.text(alphabet='[]{}"\\a', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("[]{}", max_size=2), inner),
    max_leaves=10,
)


@given(VALUES, st.integers(0, MOST_DEPTH + 5))
def test_depth_is_that_of_brackets_outside_of_strings(value: Any, levels: int) -> None:
    raw = b"[" * levels + json.dumps(value).encode() + b"]" * levels
    assert is_too_deep(raw) == (levels + depth(value) > MOST_DEPTH)


def depth(value: Any) -> int:
    if isinstance(value, str):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


@given(st.binary(max_size=30).map(lambda raw: raw.replace(b"\0", b'\\"')))
def test_strings_are_left_out_of_anything(raw: bytes) -> None:
    """Also of invalid JSON: an unfinished string goes on to the end."""
    left, inside, escaped = bytearray(), False, False
    for byte in raw:
        if not inside and byte != ord('"'):
            left.append(byte)
        elif not inside:
            inside = True
        elif escaped:
            escaped = False
        elif byte == ord("\\"):
            escaped = True
        elif byte == ord('"'):
            inside = False
    assert without_strings(raw) == bytes(left)
