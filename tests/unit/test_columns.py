"""Columns of table sinks, and the keys of their rows."""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel import Stream, Table
from millwheel.core.codec import Codec, encode_key
from millwheel.core.equality import EXACT_DIGITS, canonical_json, exact_sum
from millwheel.errors import GraphError, UserCodeError
from millwheel.graph.relays import row_key


class Box(msgspec.Struct):
    xmin: float = 0
    ctid: int = 0


class Message(msgspec.Struct):
    sender: str = ""
    text: str = ""


@dataclasses.dataclass
class Made:
    """Annotations that are not fields."""

    unit: ClassVar[str] = "m"
    made_by: dataclasses.InitVar[str]
    _: dataclasses.KW_ONLY
    number: int = 0


class Holder(msgspec.Struct):
    number: int = 0
    kinds: ClassVar[dict[str, int]] = {}


class Anything(msgspec.Struct):
    name: str
    value: Any


def test_names_that_postgres_or_the_numbering_keeps_are_refused() -> None:
    with pytest.raises(GraphError, match=r"Postgres has a column 'xmin' of its own.*field of Box"):
        Table("boxes", Box)
    with pytest.raises(GraphError, match=r"numbered=True adds .* cannot have a field 'sender'"):
        Table("messages", Message, numbered=True)
    assert [column.name for column in Table("messages", Message).columns] == ["sender", "text"]


def test_class_variables_are_no_columns() -> None:
    assert [column.name for column in Table("made", Made).columns] == ["number"]
    assert [column.name for column in Table("held", Holder).columns] == ["number"]


def test_a_key_that_may_be_none_is_refused() -> None:
    with pytest.raises(GraphError, match="the key column 'value' may not be None"):
        Table("any", Anything, key=("value",))


class Timed(msgspec.Struct):
    at: datetime
    name: str = "a"


def test_a_naive_time_is_refused() -> None:
    for key in ((), ("at",)):
        table = Table("timed", Timed, key=key)
        with pytest.raises(UserCodeError, match=r"column 'at' of table 'timed'.* has no time zone"):
            table.values(Timed(datetime(2024, 1, 1)))
        assert table.values(Timed(datetime(2024, 1, 1, tzinfo=UTC)))


class Every(msgspec.Struct):
    """A column of each type."""

    text: str = "a"
    number: int = -1
    share: float = -0.0
    active: bool = True
    at: datetime = datetime(1969, 1, 1, tzinfo=UTC)
    day: date = date(1, 1, 1)
    raw: bytes = b"\x00\xff"
    amount: Decimal = Decimal("NaN")
    tag: UUID = UUID(int=7)
    tags: dict[str, int] = {}


@pytest.mark.parametrize("column", Every.__struct_fields__)
def test_a_value_of_each_type_can_be_a_key(column: str) -> None:
    for key in ((column,), (column, "text", "active")):
        extract = row_key(Table("every", Every, key=tuple(dict.fromkeys(key))), None)
        encode_key(extract(Every()))


def test_a_key_of_another_type_is_the_records_fault() -> None:
    table = Table("every", Every, key=("amount", "at"))
    with pytest.raises(UserCodeError, match=r"table 'every': amount, at of .* cannot be a key"):
        table.key_of(table.values(Every(amount=None)))  # type: ignore[arg-type]


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 30))
def test_a_decimal_has_one_text_however_it_is_written(number: Decimal, zeros: int) -> None:
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    longer = Decimal((sign, (*digits, *[0] * zeros), exponent - zeros))
    assert canonical_json(longer) == canonical_json(number)
    assert Decimal(msgspec.json.decode(canonical_json(number))) == number


def test_sums_of_decimals_have_all_their_digits() -> None:
    assert exact_sum(Decimal("1E+40"), Decimal("0.01")) == Decimal("1" + "0" * 40 + ".01")
    with pytest.raises(ValueError, match=f"more than {EXACT_DIGITS:,} digits"):
        exact_sum(Decimal("1E+999999"), 1)


def test_streams_of_sets_have_one_text_for_equal_values() -> None:
    """Sent twice under one id from two processes, it is one value: their sets have other orders."""
    stream = Stream("orders", set[str])
    first, second = set("abcdefgh"), set("hgfedcba")
    for other in range(1000):  # another history, another order
        second.add(str(other))
    for other in range(1000):
        second.discard(str(other))
    assert list(first) != list(second)
    codec: Codec[Any] = Codec(stream.value_type, what="a test")
    assert codec.encode(first) == codec.encode(second) == b'["a","b","c","d","e","f","g","h"]'
    assert codec.encode_all([second]) == [codec.encode(first)]
    assert codec.encode_unchecked(second) == codec.encode(first)
    mixed: Codec[Any] = Codec(dict[int, set[str]], what="a test")
    assert mixed.encode({10: first, 9: second}) == mixed.encode({10: second, 9: first})
