"""What `millwheel status --watch` shows; that it runs on a store is in tests/cli/test_cli.py."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from millwheel.cli.status_text import MOVING_SHOWN
from millwheel.cli.watch_text import Rates, lines, owners
from millwheel.core.quantities import duration
from millwheel.store.console.inspection import (
    END_OF_TIME,
    CodeStatus,
    ComputationStatus,
    Holder,
    IntervalStatus,
    PipelineStatus,
    WorkerStatus,
)

START = datetime(2024, 5, 1, 12, tzinfo=UTC)
ANN, BOB, RIP = (letter * 8 + "-0000-0000-0000-000000000000" for letter in "abc")


def worker(id: str, *, lease: float = 10) -> WorkerStatus:
    state = "running" if lease > 0 else "silent"
    return WorkerStatus(id, "mill", 42, START, START, lease, state, 1, 1)  # type: ignore[arg-type]


def interval(
    number: int, owner: str | None, computation: str = "count", wanted_by: str | None = None
) -> IntervalStatus:
    return IntervalStatus(
        number, computation, 0, 9, owner, 1, 1, 0, END_OF_TIME, END_OF_TIME, wanted_by
    )


def status(seconds: float = 0, processed: int = 0, **more: object) -> PipelineStatus:
    computation = ComputationStatus("count", "computation", processed=processed)
    found = PipelineStatus("shop", "1", True, deployed=True)
    found.at = (START + timedelta(seconds=seconds)).isoformat()
    found.computations = [computation]
    for name, value in more.items():
        setattr(found, name, value)
    return found


def rate(found: PipelineStatus) -> float | None:
    return found.computations[0].per_second


def test_rates_come_from_the_looks_before() -> None:
    rates = Rates()
    seen = [status(0, 100), status(2, 300), status(3, 300), status(4, 50), status(5, 60)]
    for one in seen:
        rates.fill([one])
    assert [rate(one) for one in seen] == [None, 100, 0, None, 10]


def test_a_moment_that_stands_still_has_no_rate() -> None:
    rates = Rates()
    for _ in range(2):
        one = status(0, 100)
        rates.fill([one])
    assert rate(one) is None


def test_the_rate_of_an_injector_is_that_of_its_heartbeats() -> None:
    """It processes no records, so that the difference of two totals would be 0."""
    rates = Rates()
    for second in range(2):
        look = status(second)
        injector = ComputationStatus("lines", "injector", records_out=70 * second, per_second=50.0)
        look.computations.append(injector)
        rates.fill([look])
    assert (injector.per_second, injector.out_per_second) == (50.0, 70.0)


def test_a_computation_that_is_new_has_no_rate_yet() -> None:
    rates = Rates()
    rates.fill([status(0)])
    later = status(1)
    later.computations.append(ComputationStatus("joined", "computation", processed=5000))
    rates.fill([later])
    assert [one.per_second for one in later.computations] == [0, None]


def test_a_pipeline_that_is_not_deployed_has_none() -> None:
    Rates().fill([PipelineStatus("old", "0", False)])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (60, "1 min 0 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (90_061, "1 d 1 h"),
        (86_400 * 4000, "4000 d 0 h"),
        (-2.5, "-2.5 s"),
    ],
)
def test_a_lag_has_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_owners_are_counted_and_the_dead_own_nothing() -> None:
    intervals = [interval(1, ANN), interval(2, ANN), interval(3, RIP), interval(4, None)]
    assert owners(intervals, [worker(ANN), worker(BOB)]) == "aaaaaaaa: 2, unowned: 2"
    assert owners(intervals[:2], [worker(ANN, lease=0)]) == "unowned: 2"
    assert owners([], [worker(ANN)]) == ""


def test_the_view() -> None:
    found = status(workers=[worker(ANN), worker(RIP, lease=-3)])
    found.intervals = [interval(1, ANN), interval(2, RIP), interval(3, ANN, "end")]
    found.computations = [
        ComputationStatus(
            "count", "computation", processed=1234567, backlog=12, per_second=2500.4,
            records_out=7654321, out_per_second=5000.2, user_code=CodeStatus(0.00025, 4.0),
            low_watermark="2024-05-01T11:59:00.123456+00:00", lag_seconds=60,
            holder=Holder("input", "waits for lines", None, "", 7.2, ["count", "lines"],
                          "row 3 of x"),
        ),
        ComputationStatus("end", "computation", low_watermark=END_OF_TIME, per_second=0.0),
        ComputationStatus("lines", "injector", low_watermark=END_OF_TIME, per_second=1200.0),
    ]  # fmt: skip
    name, figures, *tables = lines([found])
    assert name == "pipeline shop at 2024-05-01 12:00:00 UTC"
    assert figures == "  1 worker · 3 intervals · 1,200 rows/s · backlog 12"
    workers, computations, held = tables[2:4], tables[6:-1], tables[-1]
    assert [[cell.strip() for cell in row.split("|")] for row in workers] == [
        ["aaaaaaaa", "running", "42", "mill", "", "1", "10 s", "1", "", ""],
        ["cccccccc", "silent", "42", "mill", "", "1", "0 s", "1", "", ""],
    ]
    assert [[cell.strip() for cell in row.split("|")] for row in computations] == [
        ["count", "2,500", "1,234,567", "5,000", "12", "250 µs, p99 4.0 s", "",
         "2024-05-01T11:59:00", "1 min 0 s",
         "aaaaaaaa: 1, unowned: 1"],
        ["end", "0", "0", "", "0", "", "", "end of time", "", "aaaaaaaa: 1"],
        ["lines", "1,200", "0", "", "0", "", "", "end of time", "", ""],
    ]  # fmt: skip
    assert held == "  count held by: 7 s, behind lines: row 3 of x"


def test_a_narrow_terminal_has_fewer_columns_and_the_whole_key_that_holds_a_watermark() -> None:
    found = status(workers=[worker(ANN)])
    found.intervals = [interval(1, ANN)]
    one = found.computations[0]
    one.per_second, one.lag_seconds = 2500.0, 60
    one.holder = Holder("input", "x", None, "", 7.2, ["count"], f'key "{"k" * 30} {"l" * 30}"')
    for width in range(40, 200):
        shown = lines([found], width)
        assert max(map(len, shown)) <= width
        held = " ".join("".join(shown[-3:]).split())
        assert held.endswith(f'key "{"k" * 30} {"l" * 30}"'), width
    heads = [cells_of(line) for line in lines([found], 60) if "|" in line]
    assert heads[0] == ["worker", "state", "process", "host", "lease", "intervals"]
    assert heads[2] == ["computation", "records/s", "backlog", "lag"]


def test_pipelines_that_cannot_be_looked_into_are_told_in_a_line() -> None:
    old, unused = PipelineStatus("old", "0", False), PipelineStatus("unused", "1", True)
    shown = lines([old, unused])
    assert "Run: millwheel migrate old" in shown[0]
    assert shown[1:] == ["", "pipeline unused: created, but never run"]
    assert lines([]) == []


def test_workers_tell_where_they_are_and_what_they_cost() -> None:
    ann = WorkerStatus(
        ANN, "mill", 42, START, START, 10, "running", 1, 3, "10.0.0.1:7000", 0.256,
        300 << 20,
    )  # fmt: skip
    found = status(workers=[ann])
    head, _, row = lines([found])[2:5]
    cells = dict(zip(cells_of(head), cells_of(row), strict=True))
    assert cells["address"] == "10.0.0.1:7000"
    assert cells["code"] == "3"
    assert cells["CPU"] == "26%"
    assert cells["memory"] == "300 MB"


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]


def test_intervals_on_their_way_are_told() -> None:
    found = status(workers=[worker(ANN), worker(BOB)])
    found.intervals = [
        interval(1, ANN),
        interval(2, ANN, "end", BOB),
        interval(3, None, "end", BOB),
    ]
    shown = lines([found])
    assert [line for line in shown if "moving" in line] == [
        "  end[0:9] moving to bbbbbbbb from aaaaaaaa",
        "  end[0:9] moving to bbbbbbbb, unowned now",
    ]
    found.intervals = [interval(n, ANN, "end", BOB) for n in range(25)]
    told = [line for line in lines([found]) if "moving" in line]
    assert len(told) == MOVING_SHOWN + 1
    assert told[-1] == "  and 15 more intervals moving"


def test_an_injector_that_rests_is_marked() -> None:
    found = status()
    found.computations[0].paused = True
    assert cells_of(lines([found])[-1])[0] == "count (paused)"
