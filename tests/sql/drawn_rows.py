"""Rows and conditions over them, for Hypothesis."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st

from tests.sql.answers import EPOCH, Payment

TRUTHS = ["paid", "cents > 0", "note IS NULL", "fee BETWEEN 1 AND 5", "note = 'tea'", "NOT paid",
          "account <> 'bob'", "fee IS DISTINCT FROM 3", "cents IN (0, 90, 300)", "price > 1.5",
          "date_trunc('hour', at) < at", "note < 'n'"]  # fmt: skip

truths = st.recursive(
    st.sampled_from(TRUTHS),
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=4,
)
filters = st.one_of(st.just(""), st.builds(" FILTER (WHERE {})".format, truths))

payments = st.lists(
    st.builds(
        Payment,
        account=st.sampled_from(["ann", "bob", ""]),
        at=st.integers(0, 400).map(lambda second: EPOCH + timedelta(seconds=second)),
        cents=st.sampled_from([-20, 0, 1, 90, 300, 2**31]),
        fee=st.none() | st.integers(-1, 7),
        note=st.none() | st.sampled_from(["tea", "milk", "", "é"]),
        price=st.decimals(-99, 99, places=2) | st.decimals(0, 9, places=1),
        paid=st.none() | st.booleans(),
    ),
    max_size=25,
)
