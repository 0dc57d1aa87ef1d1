"""Payments and orders, chosen and drawn."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from hypothesis import strategies as st

from tests.sql.answers import EPOCH, Order, Payment


def second(number: float) -> datetime:
    """A time within the rows."""
    return EPOCH + timedelta(seconds=number)


PAID = [
    Payment("ann", second(0), 300, 3, "tea", Decimal("3.00"), True),
    Payment("bob", second(59.999999), -20, None, None, Decimal("0.5"), None),
    Payment("ann", second(60), 90, 1, "milk", Decimal("0.900"), False),
    Payment("ann", second(61), 90, None, "tea", Decimal("12.34"), True),
    Payment("", second(100), 0, 0, "", Decimal(1), False),
    Payment("cid", second(119), 7, 7, None, Decimal("-1.5"), None),
]
ORDERED = [
    Order("ann", second(1), 3, Decimal("3.0"), ["a", None]),
    Order("ann", second(70), 1, Decimal("0.9"), []),
    Order("bob", second(59), 7, Decimal("0.50"), ["b"]),
    Order(None, second(60), 7, Decimal(1)),
    Order("", second(90), 0, Decimal("1.000"), ["c", "c", ""]),
    Order("dan", second(95), 1),
]

paid = st.lists(
    st.builds(
        Payment,
        account=st.sampled_from(["ann", "bob", ""]),
        at=st.integers(0, 200).map(second),
        cents=st.sampled_from([-20, 0, 1, 90, 300]),
        fee=st.none() | st.integers(0, 4),
        note=st.none() | st.sampled_from(["ann", ""]),
        price=st.decimals(0, 2, places=1),
        paid=st.none() | st.booleans(),
    ),
    max_size=12,
)
ordered = st.lists(
    st.builds(
        Order,
        customer=st.none() | st.sampled_from(["ann", "bob", ""]),
        placed=st.integers(0, 200).map(second),
        item=st.integers(0, 4),
        price=st.decimals(0, 2, places=2),
    ),
    max_size=12,
)
