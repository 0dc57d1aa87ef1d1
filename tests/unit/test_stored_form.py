"""Values after a round trip through the store: types that keep them, and the values of others in
memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import reduce
from typing import Any, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from millwheel.computations import Fold, mean, total
from millwheel.core.codec import Codec
from millwheel.core.equality import Sum
from millwheel.core.stored_form import Fidelity, fidelity, first_difference
from millwheel.store.memory.jsonb import jsonb_text

BERLIN = ZoneInfo("Europe/Berlin")


class Colour(Enum):
    RED = "red"


class Kept(msgspec.Struct):
    """Of types that come back as they were."""

    number: int = 0
    text: str | None = None
    flag: bool = False
    day: date = date(2024, 1, 1)
    price: Decimal = Decimal(0)
    tag: UUID = UUID(int=0)
    raw: bytes = b""
    colour: Colour = Colour.RED
    pair: tuple[int, str] = (0, "")
    took: timedelta = timedelta(0)
    parts: list[Kept] = []
    names: set[str] = set()


class Rate(msgspec.Struct):
    rate: float = 0.0


@dataclass
class Late:
    rates: list[Rate] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rates = [*self.rates, Rate(1.0)]


class Total(msgspec.Struct):
    total: Sum = 0.0
    count: int = 0


class Named(TypedDict):
    b: int
    a: int


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (Kept, Fidelity.FULL),
        (Rate, Fidelity.BUT_MINUS_ZERO),
        (float | None, Fidelity.BUT_MINUS_ZERO),
        (list[Rate], Fidelity.BUT_MINUS_ZERO),
        (int | float, Fidelity.NONE),
        (dict[str, int], Fidelity.NONE),
        (Named, Fidelity.NONE),
        (datetime, Fidelity.NONE),
        (list[Total], Fidelity.FULL),
        (tuple[Total, Rate], Fidelity.BUT_MINUS_ZERO),
        (list[Any], Fidelity.NONE),
        (Late, Fidelity.NONE),
    ],
)
def test_a_type_proves_what_the_store_keeps(kind: Any, wanted: Fidelity) -> None:
    assert fidelity(inspect.type_info(kind)) == wanted
    assert Codec(kind, what="a test").fidelity == wanted


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (dict[str, int], {"zebra": 1, "ant": 2, "x": 3}),
        (dict[int, Any], {10: {"b": 1, "a": -0.0}, 9: (1, 2)}),
        (Any, {"n": [1e16, 1.5e300, 123456789012345680000.0, 1e-7, 5e-324, 0.1, -0.0, 10**30]}),
        (Any, {"text": '-0.0 1e16 "é\u2028'}),
        (int | float, 1e22),
        (Rate, Rate(-0.0)),
        (list[Rate], [Rate(1e22), Rate(-0.0)]),
        (Named, {"b": 1, "a": 2}),
        (datetime, datetime(2024, 3, 30, 9, tzinfo=BERLIN)),
        (datetime, datetime(1930, 5, 1, 12, tzinfo=ZoneInfo("Europe/Amsterdam"))),
        (set[str], {"express", "gift", "fragile"}),
    ],
)
def test_memory_holds_what_a_restart_reads(kind: Any, value: Any) -> None:
    check(Codec(kind, what="a test"), value)


def check(codec: Codec[Any], value: Any) -> None:
    encoded, kept = codec.settle(codec.encode(value), value)
    again = codec.read(jsonb_text(encoded))
    assert first_difference(kept, again) is None
    assert repr(again) == repr(kept) or isinstance(value, set), "also the order of dicts"
    assert codec.encode(again) == encoded or isinstance(value, set), "reading is no change"
    assert codec.settle(encoded, kept)[0] == encoded


json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab-0.e1"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab0", max_size=3), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(json)
def test_memory_holds_what_a_restart_reads_of_any_json(value: Any) -> None:
    check(Codec(Any, what="a test"), value)


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ({"a": [(1, 2)]}, {"a": [[1, 2]]}, "['a'][0] is (1, 2) in memory, and [1, 2]"),
        (Rate(-0.0), Rate(0.0), "rate is -0.0 in memory"),
        ([True], [1], "[0] is True"),
        (datetime(2024, 1, 1, tzinfo=BERLIN),
         datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1))), "it is datetime"),
        (datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC")), datetime(2024, 1, 1, tzinfo=UTC), None),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, None),
        (Kept(parts=[Kept(1)]), Kept(parts=[Kept(1)]), None),
        ("a", "b", "it is 'a' in memory, and 'b' when it is read again"),
    ],
)  # fmt: skip
def test_the_first_difference_is_named(before: Any, after: Any, wanted: str | None) -> None:
    found = first_difference(before, after)
    assert found is None if wanted is None else found is not None and wanted in found


def test_a_number_that_is_not_odd_is_left_alone() -> None:
    codec: Codec[Any] = Codec(Rate, what="a test")
    assert codec.is_kept(b'{"rate":0.0}')
    assert not codec.is_kept(codec.encode(Rate(-0.0)))
    assert math.copysign(1, codec.settle(codec.encode(Rate(-0.0)), Rate(-0.0))[1].rate) == 1


def test_sums_of_floats_are_never_minus_zero() -> None:
    folds: list[Fold[Any, Any, Any]] = [total(float, -0.0), mean(float)]
    for fold in folds:
        value = -0.0
        for values in ([value], [value, value], [5e-324, -5e-324], [1.0, -1.0, value]):
            one = reduce(fold.add, values, fold.init())
            many = fold.added(fold.init(), values)
            both = fold.merge(fold.init(), one) if fold.merge else one
            codec: Codec[Any] = Codec(fold.accumulator, what="a test")
            assert codec.fidelity == Fidelity.FULL
            for found in (one, many, both, fold.init()):
                assert b"-0.0" not in codec.encode(found)
