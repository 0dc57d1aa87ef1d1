"""Packed arrays arrive in Postgres as the lists that they were made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.store.postgres import arrays
from millwheel.store.postgres.rows import ROW_BYTES, ROW_RECORDS, stretches
from tests.support.store_sites import Schema

LONG = b"x" * (arrays.KEPT_HEADS + 1)
SMALL: list[Sequence[int]] = [[], [7], [7, 7, 7], (7, 8, 7), [-1, 0, 1], [7, 7, 8, 7]]


@pytest.mark.parametrize(
    ("pack", "type_", "lists"),
    [
        (arrays.smallints, "smallint", [*SMALL, [-(1 << 15), (1 << 15) - 1]]),
        (arrays.integers, "integer", [*SMALL, [-(1 << 31), (1 << 31) - 1]]),
        (arrays.bigints, "bigint", [*SMALL, [-(1 << 63), (1 << 63) - 1]]),
        (arrays.texts, "text", [[], [b""], [b"a", b"", "ä€".encode(), LONG, LONG], [b"a"] * 3]),
        (
            arrays.jsonbs,
            "jsonb",
            [[], [None], [b"1", None, b"null"], [b'{"a":[1]}', b'"' + LONG + b'"'], [b"[]"] * 3],
        ),
        (arrays.uuids, "uuid", [[], [bytes(range(16))], [bytes(16), b"\xff" * 16]]),
    ],
)
def test_what_is_packed_arrives(schema: Schema, pack: Any, type_: str, lists: Any) -> None:
    with psycopg.connect(schema.url) as connection:
        arrays.register(connection.adapters)
        for values in lists:
            row = connection.execute(f"SELECT %s::{type_}[]".encode(), [pack(values)]).fetchone()
            assert row is not None
            assert row[0] == [_plain(type_, value) for value in values]
            nulls = connection.execute(
                f"SELECT count(*) FROM unnest(%s::{type_}[]) AS x WHERE x IS NULL".encode(),
                [pack(values)],
            ).fetchone()
            assert nulls == (list(values).count(None),), "JSON's null is a value"


def _plain(type_: str, value: Any) -> Any:
    if value is None or isinstance(value, int):
        return value
    match type_:
        case "jsonb":
            return json.loads(value)
        case "uuid":
            return UUID(bytes=value)
    return value.decode()


def test_a_number_that_is_too_large_is_refused() -> None:
    for values in ([1 << 15], [1 << 15, 1 << 15]):
        with pytest.raises(OverflowError):
            arrays.smallints(values)


# -- rows of columns -------------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from([None, 0, 7, ROW_BYTES // 3, ROW_BYTES, ROW_BYTES + 1])),
    st.sampled_from([0, ROW_RECORDS, 2 * ROW_RECORDS + 5]),
)
def test_a_row_has_so_many_entries_and_bytes_or_one_value(
    sizes: list[int | None], more: int
) -> None:
    sizes += [1] * more
    values = [None if size is None else _Sized(size) for size in sizes]
    found = list(stretches(values))  # type: ignore[arg-type]
    assert [place for begin, end in found for place in range(begin, end)] == [*range(len(sizes))]
    for begin, end in found:
        own = [size for size in sizes[begin:end] if size]
        assert 0 < end - begin <= ROW_RECORDS
        assert sum(own) <= ROW_BYTES or len(own) == 1


class _Sized:
    """Stands for so many bytes."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size
