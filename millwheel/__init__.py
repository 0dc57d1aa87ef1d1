"""millwheel: a per-record persistent stream engine on Postgres, after Google's MillWheel.

Define computations as Python classes, run workers as services, inspect state via SQL.

The examples in docstrings continue this program; each also knows the names of its own module:

```python
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from millwheel import *
from millwheel.testing import Harness


class Order(Struct):
    customer: str
    item: str
    cents: int


class Spent(Struct):  # the state of one customer
    cents: int = 0


def customer(order: Order) -> str:
    return order.customer


def cents(order: Order) -> int:
    return order.cents


def at(seconds: float) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


TEA, MILK = Order("ann", "tea", 300), Order("ann", "milk", 90)
ORDERS, KEPT, SPENT = Stream("orders", Order), Stream("kept", Order), Stream("spent", int)


class AddUp(Computation[Order, Spent]):
    writes = (SPENT,)

    async def process_record(self, record: Record[Order], ctx: Context[Spent]) -> None:
        ctx.state.cents += record.value.cents
        ctx.produce(SPENT, ctx.state.cents)


pipeline = Pipeline("shop")
pipeline.inject(ORDERS, Inbox())
```
"""

from typing import TYPE_CHECKING

from millwheel.core.distribution import check_alone
from millwheel.core.lazy import imported_when_used

if TYPE_CHECKING:
    from millwheel.bundles import BundleId, Bundles
    from millwheel.computation import Computation
    from millwheel.context import Context
    from millwheel.core.model import Key, Record, Timer
    from millwheel.files import Csv, JsonLines
    from millwheel.inbox import Inbox
    from millwheel.parking import Park
    from millwheel.pipeline import Pipeline
    from millwheel.settings import Settings
    from millwheel.sinks import Console, Discard, JsonLinesFiles, Table
    from millwheel.state import ListState, MapState
    from millwheel.streams import Broadcast, Input, Stream

__version__ = "0.1.0"

__all__ = [
    "Broadcast",
    "BundleId",
    "Bundles",
    "Computation",
    "Console",
    "Context",
    "Csv",
    "Discard",
    "Inbox",
    "Input",
    "JsonLines",
    "JsonLinesFiles",
    "Key",
    "ListState",
    "MapState",
    "Park",
    "Pipeline",
    "Record",
    "Settings",
    "Stream",
    "Table",
    "Timer",
]

PUBLIC_MODULES = (
    "aggregates",
    "bundles",
    "client",
    "computation",
    "computations",
    "context",
    "errors",
    "fetching",
    "files",
    "following",
    "inbox",
    "ingest",
    "kafka",
    "parking",
    "pipeline",
    "settings",
    "sinks",
    "sources",
    "spark",
    "sql",
    "state",
    "streams",
    "testing",
    "timers",
    "ui",
    "windows",
)
"""Modules with a stable API: the names in each one's ``__all__``. All others are internal."""

_PLACES = {
    "Broadcast": "streams",
    "BundleId": "bundles",
    "Bundles": "bundles",
    "Computation": "computation",
    "Console": "sinks",
    "Context": "context",
    "Csv": "files",
    "Discard": "sinks",
    "Inbox": "inbox",
    "Input": "streams",
    "JsonLines": "files",
    "JsonLinesFiles": "sinks",
    "Key": "core.model",
    "ListState": "state",
    "MapState": "state",
    "Park": "parking",
    "Pipeline": "pipeline",
    "Record": "core.model",
    "Settings": "settings",
    "Stream": "streams",
    "Table": "sinks",
    "Timer": "core.model",
}

__getattr__ = imported_when_used(__name__, _PLACES, check_alone)
