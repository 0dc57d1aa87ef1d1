"""Aggregates for Hypothesis: with an order, of distinct values, of sorted values, statistics.

Orders end with the value itself, so that no two results are right.
"""

from __future__ import annotations

from hypothesis import strategies as st

WHOLE = ["cents", "fee", "cents + 1", "abs(cents)", "cents % 7", "coalesce(fee, -1)", "-fee",
         "CASE WHEN paid THEN cents ELSE fee END"]  # fmt: skip
TEXTS = ["account", "note", "coalesce(note, '-')", "CASE WHEN fee > 2 THEN note ELSE account END"]
TRUTHS = ["paid", "cents > 0", "note = 'tea'"]
SCALED = ["round(price, 2)", "round(price * fee, 1)", "cents::numeric"]
"""Numbers of one scale: equal ones have one text."""

NUMBERS = ["price", "price * 2", "price + cents", "fee / 2.0", "price * price * fee"]
FLOATS = ["cents::float8", "fee::float8", "price::float8", "(price * 0.37)::float8"]
SMALL = ["fee", "cents % 100", "length(account)", "fee * 3 - 1"]
KEYS = [*WHOLE, *TEXTS, *TRUTHS, "at", "price"]
FRACTIONS = [
    "0.5",
    "0",
    "1",
    "0.25",
    "0.9",
    "1 / 3.0",
    "ARRAY[0.5, 0.9]",
    "'{1,NULL,0.1}'::float8[]",
]
SPREADS = ["stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp"]
PAIRS = ["corr", "covar_pop", "covar_samp", "regr_avgx", "regr_avgy", "regr_count",
         "regr_intercept", "regr_r2", "regr_slope", "regr_sxx", "regr_sxy",
         "regr_syy"]  # fmt: skip

one_of = st.sampled_from
comparable = one_of([*WHOLE, *TEXTS, *TRUTHS, *SCALED, "at"])
directions = st.builds(
    "{}{}".format, one_of(["", " ASC", " DESC"]), one_of(["", " NULLS FIRST", " NULLS LAST"])
)


@st.composite
def ordered(draw: st.DrawFn, name: str, *arguments: str) -> str:
    """An aggregate with ORDER BY."""
    keys = draw(st.lists(one_of(KEYS), max_size=2))
    order = ", ".join(f"{key}{draw(directions)}" for key in [*keys, *arguments])
    return f"{name}({', '.join(arguments)} ORDER BY {order})"


@st.composite
def sorted_distinct(draw: st.DrawFn, name: str, value: str, more: str = "") -> str:
    order = f" ORDER BY {value}{draw(directions)}" if draw(st.booleans()) else ""
    return f"{name}(DISTINCT {value}{more}{order})"


def within(name: str, values: list[str]) -> st.SearchStrategy[str]:
    return st.builds(
        "{}({}) WITHIN GROUP (ORDER BY {}{})".format,
        st.just(name), st.just("") if name == "mode" else one_of(FRACTIONS), one_of(values),
        directions,
    )  # fmt: skip


drawn_aggregates = st.one_of(
    st.builds("{}".format, comparable).flatmap(lambda value: ordered("array_agg", value)),
    st.tuples(one_of(["first", "last", "any_value"]), comparable).flatmap(
        lambda found: ordered(*found)
    ),
    st.tuples(one_of(TEXTS), one_of(TEXTS)).flatmap(lambda found: ordered("string_agg", *found)),
    st.tuples(one_of(TEXTS), one_of(["', '", "''", "NULL"])).flatmap(
        lambda found: ordered("string_agg", found[0]).map(
            lambda call: call.replace(" ORDER BY", f", {found[1]} ORDER BY", 1)
        )
    ),
    comparable.flatmap(lambda value: sorted_distinct("array_agg", value)),
    one_of(TEXTS).flatmap(lambda value: sorted_distinct("string_agg", value, ", '{'")),
    st.builds("{}(DISTINCT {})".format, one_of(["count", "sum", "avg", "var_pop", "stddev"]),
              one_of(WHOLE + SCALED + FLOATS)),
    st.builds("bit_xor(DISTINCT {})".format, one_of(WHOLE)),
    within("percentile_cont", WHOLE + SCALED + FLOATS),
    within("percentile_disc", [*WHOLE, *TEXTS, *TRUTHS, *SCALED, "at"]),
    within("mode", [*WHOLE, *TEXTS, *TRUTHS, *SCALED, "at"]),
    st.builds("{}({})".format, one_of(SPREADS), one_of(WHOLE + SCALED + NUMBERS + FLOATS)),
    st.builds("{}({})".format, one_of(["bit_and", "bit_or", "bit_xor"]), one_of(WHOLE)),
    st.builds("{}({}, {})".format, one_of(PAIRS), one_of(SMALL), one_of(SMALL)),
    st.builds("{}({})".format, one_of(["sum", "avg"]), one_of(FLOATS)),
    one_of(FLOATS).flatmap(lambda value: ordered("sum", value)),
)  # fmt: skip
