"""Packed arrays arrive in Postgres as the lists that they were made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest

from millwheel.store.postgres import arrays
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
