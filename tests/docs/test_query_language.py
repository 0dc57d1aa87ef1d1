"""The page about the query language lists the functions and aggregates that queries may call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest
from msgspec import Struct

from millwheel import Inbox, Pipeline, Stream
from millwheel.errors import SqlError
from millwheel.sql import functions
from millwheel.sql.catalog import postgres
from millwheel.sql.functions.registry import implementation_of

PAGE = (Path(__file__).parents[2] / "docs/reference/query-language.md").read_text("utf-8")

CASTS = frozenset((
    "date", "float4", "float8", "int2", "int4", "int8", "interval", "numeric", "time", "timestamp",
    "timestamptz", "timezone",
))  # fmt: skip
"""Functions with the name of a type, and that of ``AT TIME ZONE``: queries write casts."""

UNUSUAL = frozenset((
    "dexp", "dlog1", "dlog10", "dround", "dtrunc", "like", "like_escape", "notlike",
    "numeric_div_trunc", "numeric_exp", "numeric_ln", "numeric_log", "numeric_sqrt", "textlen",
))  # fmt: skip
"""Second names of others, which nobody writes."""


class Row(Struct):
    x: int
    y: float
    b: bool
    t: str


def part(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def named_in_tables(text: str) -> set[str]:
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return set(re.findall(r"`([a-z_0-9]+)[`(]", "\n".join(rows)))


def available() -> Iterator[str]:
    for module in walk_packages(functions.__path__, f"{functions.__name__}."):
        import_module(module.name)
    catalog = postgres()
    operators = {each.name for some in catalog._operators.values() for each in some}
    for name, signatures in catalog._functions.items():
        if name not in operators | CASTS | UNUSUAL and any(
            each.kind == "f" and not each.code and implementation_of(each.keys)
            for each in signatures
        ):
            yield name


def test_the_page_lists_every_function() -> None:
    assert named_in_tables(part("Functions")) == set(available())


def compiles(aggregate: str) -> bool:
    """Whether some call of an aggregate compiles."""
    calls = [
        f"{aggregate}({arguments}){more}"
        for arguments in ("x", "y", "b", "t", "x, y", "t, ','", "x ORDER BY y", "0.5", "")
        for more in ("", " WITHIN GROUP (ORDER BY y)")
    ]
    for call in calls:
        pipeline = Pipeline("some")
        pipeline.inject(Stream("rows", Row), Inbox())
        try:
            pipeline.sql(f"INSERT INTO found SELECT {call} AS v FROM rows RETAIN UNBOUNDED")
        except SqlError:
            continue
        return True
    return False


@pytest.mark.parametrize(
    "name", [n for n in postgres().function_names if postgres().is_aggregate(n)]
)
def test_the_page_lists_the_aggregates_that_compile(name: str) -> None:
    listed = named_in_tables(part("Aggregates"))
    assert compiles(name) == (name in listed or (name.startswith("regr_") and "regr_" in listed))
