"""Windows that many records of a chunk fall into: the records of a key and window folded together
(decision 70), beside the same windows one record at a time."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.apart import apart
from bench.engine_run import measured_run
from bench.in_turns import compared, shown
from bench.meter import Cost
from bench.workload import PAYMENTS, START, Payment
from millwheel import Context, Discard, JsonLines, Pipeline, Record, Stream
from millwheel.computations import Windowed, count, quantiles, total
from millwheel.windows import Pane, Session, Sliding, Tumbling

SCHEMA = "bench_windows"
KEYS = 50
PANES: Stream[Any] = Stream("panes", Pane[Any])

KINDS: dict[str, tuple[Any, Any]] = {
    "count by minute": (Tumbling(minutes=1), count),
    "sum of ten minutes, by minute": (
        Sliding(timedelta(minutes=10), timedelta(minutes=1)),
        total(lambda payment: payment.amount),
    ),
    "quantiles by minute": (Tumbling(minutes=1), quantiles(lambda payment: payment.amount)),
    "count by session": (Session(timedelta(seconds=10)), count),
}


class OneByOne(Windowed[Any, Any, Any]):
    """Windows without `process_group`: a class below it has its own `process_record`."""

    def process_record(self, record: Record[Any], ctx: Context[Any]) -> Coroutine[Any, Any, None]:
        """Process one record."""
        return super().process_record(record, ctx)


def _lines(directory: Path, records: int) -> Path:
    path = directory / f"few-keys-{records}.jsonl"
    if not path.exists():
        encode = msgspec.json.Encoder().encode
        path.write_bytes(b"".join(encode(payment) + b"\n" for payment in _payments(records)))
    return path


def _payments(records: int) -> Iterator[Payment]:
    draw = random.Random(1)
    for number in range(records):
        at = START + timedelta(milliseconds=number)
        yield Payment(at, draw.randrange(KEYS), draw.randrange(1, 1000))


async def rate(url: str, directory: Path, kind: str, together: bool, records: int) -> Cost:
    """Measure one kind of windows."""
    windows, fold = KINDS[kind]
    made = Windowed if together else OneByOne
    pipeline = Pipeline(SCHEMA)
    pipeline.inject(
        PAYMENTS,
        JsonLines(_lines(directory, records)),
        timestamp=lambda payment: payment.at,
        lateness=timedelta(seconds=10),
    )
    pipeline.add(made(windows, fold, to=PANES), PAYMENTS.by(lambda payment: payment.account))
    pipeline.sink(PANES, Discard())
    return await measured_run(url, pipeline, records)


async def measure(url: str, directory: Path, *, pairs: int, records: int) -> dict[str, Any]:
    """Measure each kind together and one by one, in turns."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        share = records // (4 if kind.startswith("quantiles") else 1)
        run = partial(rate, url, directory)
        both = [
            (await apart(run, kind, True, share), await apart(run, kind, False, share))
            for _ in range(pairs)
        ]
        found[kind] = compared(both)
        print(shown(kind, found[kind], "one by one"))
    return found
