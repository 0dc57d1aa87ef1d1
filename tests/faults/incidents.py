"""A pipeline with one poison key and one slow key, for the incidents that `docs/howto/incidents` is
about."""

from __future__ import annotations

import asyncio
import itertools
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Settings, Stream, Table
from millwheel.computations import Windowed, total
from millwheel.windows import Pane, Tumbling

INPUT = Path(os.environ.get("OPS_INPUT", "input"))
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
POISON = 13
SLOW = 7
KEYS = 20
MOST_PENDING = 50


class Payment(msgspec.Struct):
    account: int
    cents: int
    second: int


class Known(msgspec.Struct):
    seen: int = 0
    limit: int = 100


class Total(msgspec.Struct):
    minute: datetime
    cents: int


PAYS = Stream("pays", Payment)
CHECKED = Stream("checked", Payment)
SCORED = Stream("scored", Payment)
MINUTES = Stream("minutes", Pane[int])


class Check(Computation[Payment, Known]):
    """Refuses the payments of one account until there is a file `account_13`."""

    writes = (CHECKED,)

    async def process_record(self, record: Record[Payment], ctx: Context[Known]) -> None:
        if record.value.account == POISON and not (INPUT / "account_13").exists():
            raise LookupError(f"no such account: {record.value.account}")
        ctx.state.seen += 1
        ctx.produce(CHECKED, record.value)


class Score(Computation[Payment, None]):
    """Waits for a service, for one account, until there is a file `fast`."""

    writes = (SCORED,)

    async def process_record(self, record: Record[Payment], ctx: Context[None]) -> None:
        for _ in itertools.count():
            if record.value.account != SLOW or (INPUT / "fast").exists():
                break
            await asyncio.sleep(0.1)
        ctx.produce(SCORED, record.value)


def build() -> Pipeline:
    made = Pipeline("shop", settings=Settings(bucket_seconds=2.0, max_unacked_records=100))
    made.inject(
        PAYS,
        JsonLines(INPUT / "payments.jsonl", follow=True),
        timestamp=lambda pay: BEGIN + timedelta(seconds=pay.second),
        max_pending=MOST_PENDING,
    )
    made.add(Check(), PAYS.by(lambda pay: pay.account), on_error="park")
    made.add(Score(), CHECKED.by(lambda pay: pay.account))
    made.add(
        Windowed(Tumbling(minutes=1), total(lambda pay: pay.cents), MINUTES),
        SCORED.by(lambda _: "all"),
        name="minutes",
    )
    made.sink(MINUTES, Table("totals", Total), row=lambda pane: Total(pane.start, pane.value))
    return made


pipeline = build()


def append(directory: Path, seconds: range) -> None:
    """A payment of each account in every second."""
    with (directory / "payments.jsonl").open("ab") as file:
        for second in seconds:
            for account in range(KEYS):
                file.write(msgspec.json.encode(Payment(account, 1, second)) + b"\n")
