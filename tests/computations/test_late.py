"""A late record that is dropped is named once a stream; later ones are only counted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from millwheel import Computation, Pipeline, Stream
from millwheel.computations import (
    Debounce,
    Deduplicate,
    InOrder,
    IntervalJoin,
    TemporalJoin,
    Throttle,
)
from millwheel.testing import Harness
from tests.support.pipelines import QUICK, script
from tests.support.values import ITEMS, Item, at, key_of, time_of

OTHERS, OUT, LATE = Stream("others", Item), Stream("out", Item), Stream("late", Item)
SECOND = timedelta(seconds=1)

OF_TWO: Any = {
    "temporal": lambda **late: TemporalJoin(ITEMS, OTHERS, to=OUT, combine=lambda a, b: a, **late),
    "interval": lambda late=None: IntervalJoin(
        ITEMS, OTHERS, after=SECOND, to=OUT, combine=lambda a, b: a, late_left=late, late_right=late
    ),
}
OF_ONE: Any = {
    "deduplicate": lambda **late: Deduplicate(to=OUT, horizon=SECOND, **late),
    "throttle": lambda **late: Throttle(to=OUT, at_most=1, per=SECOND, **late),
    "debounce": lambda **late: Debounce(to=OUT, quiet=SECOND, **late),
    "in_order": lambda **late: InOrder(to=OUT, **late),
}


async def logged(computation: Computation[Any, Any], *streams: Stream[Item]) -> list[Any]:
    """The warnings for an item on time and three late ones of each stream."""
    pipeline = Pipeline("late", settings=QUICK)
    for stream in streams:
        pipeline.inject(stream, script(stream, []), timestamp=time_of)
    pipeline.add(computation, *(stream.by(key_of) for stream in streams), name="reader")
    with capture_logs() as logs:
        async with Harness(pipeline) as harness:
            for stream in streams:
                await harness.inject(stream, Item("a", 1, second=100))
                await harness.advance(stream, at(100))
            for stream in streams:
                await harness.inject(stream, *(Item("b", n, second=100 - n) for n in (40, 50, 60)))
            dropped = harness.counters("reader").get("late_dropped", 0)
            sent = harness.counters("reader").get("late_sent", 0)
    assert dropped + sent in (0, 3, 3 * len(streams))
    told = (log for log in logs if log["event"] == "late_record_dropped")
    return [log for log in told if "late_dropped" in log["what_it_means"]]


@pytest.mark.parametrize("name", [*OF_TWO, *OF_ONE])
async def test_the_first_late_record_of_a_stream_is_named(name: str) -> None:
    streams = (ITEMS, OTHERS) if name in OF_TWO else (ITEMS,)
    made = {**OF_TWO, **OF_ONE}[name]
    found = await logged(made(), *streams)
    expected = ["items", "others"] if name == "interval" else ["items"]  # late versions count apart
    assert [log["stream"] for log in found] == expected
    for log in found:
        assert (log["computation"], log["key"], log["late_seconds"]) == ("reader", "'b'", 40.0)
        assert log["timestamp"] == at(60).isoformat()
        assert log["log_level"] == "warning"
    assert await logged(made(late=LATE), *streams) == []
