"""A program without a mistake, and its input; most entries change one of them."""

from __future__ import annotations

PROGRAM = """\
from datetime import datetime, timedelta

from msgspec import Struct

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Settings, Stream, Table


class Order(Struct):
    at: datetime
    customer: str
    cents: int


class Total(Struct):
    customer: str = ""
    cents: int = 0


ORDERS, TOTALS = Stream("orders", Order), Stream("totals", Total)


class AddUp(Computation[Order, Total]):
    writes = (TOTALS,)

    async def process_record(self, record: Record[Order], ctx: Context[Total]) -> None:
        order = record.value
        ctx.state.customer = order.customer
        ctx.state.cents += order.cents
        ctx.produce(TOTALS, Total(order.customer, ctx.state.cents))


pipeline = Pipeline("wheel", settings=Settings(lease_seconds=10))
pipeline.inject(
    ORDERS,
    JsonLines("orders.jsonl"),
    timestamp=lambda order: order.at,
    lateness=timedelta(seconds=5),
)
pipeline.add(AddUp(), ORDERS.by(lambda order: order.customer))
pipeline.sink(TOTALS, Table("totals", Total, key=("customer",)))
"""

ROWS = """\
{"at": "2026-01-01T00:00:00Z", "customer": "ann", "cents": 300}
{"at": "2026-01-01T00:00:10Z", "customer": "bob", "cents": 90}
{"at": "2026-01-01T00:00:20Z", "customer": "ann", "cents": 40}
"""

IMPORTS = "from datetime import datetime, timedelta\n"
WRITES = "    writes = (TOTALS,)\n"
CLASS = "class AddUp(Computation[Order, Total]):"
METHOD = "async def process_record"
FIRST = "        order = record.value\n"
"""The first line of the method."""
PRODUCE = "ctx.produce(TOTALS, Total(order.customer, ctx.state.cents))"
KEY = "lambda order: order.customer"
TIME = "timestamp=lambda order: order.at"
FIELD = "    cents: int = 0\n"
PIPELINE = 'pipeline = Pipeline("wheel", settings=Settings(lease_seconds=10))\n'
ADD = "pipeline.add(AddUp(), ORDERS.by(lambda order: order.customer))"
TABLE = 'Table("totals", Total, key=("customer",))'
SINK = f"pipeline.sink(TOTALS, {TABLE})"


def changed(*changes: tuple[str, str]) -> str:
    """The program with parts replaced by others."""
    text = PROGRAM
    for old, new in changes:
        assert text.count(old) >= 1, f"the program has no {old!r}"
        text = text.replace(old, new, 1)
    return text


def then(statement: str) -> tuple[str, str]:
    """A change: another statement at the end of the method."""
    return PRODUCE, f"{PRODUCE}\n        {statement}"


def with_(*lines: str) -> tuple[str, str]:
    """A change: lines in front of the class."""
    return CLASS, "\n".join((*lines, "", "", CLASS))


def without_package(name: str) -> tuple[str, str]:
    """A change: the program runs as if a package was not installed."""
    return IMPORTS, f"import sys\n\nsys.modules[{name!r}] = None\n{IMPORTS}"
