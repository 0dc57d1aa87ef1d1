"""Real workers, real faults (`tests.faults.chaos`), and nothing but the batch answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime, timedelta

import pytest

from tests.faults import chaos
from tests.support import visits
from tests.support.fleet import Fleet, Report, unless_it_stands_still


async def check(
    seconds: float, seed: int, rows: int, workers: int = 3, mode: str | None = None
) -> chaos.ChaosReport:
    report = await chaos.run(
        seconds=seconds, workers=workers, seed=seed, rows=rows, rest=1.0, pause=0.5, mode=mode
    )
    print("\n".join(report.lines()))
    assert report.good, "\n".join(report.lines())
    return report


@pytest.mark.soak  # `make test` has some seconds of the campaign (tests/campaign/test_campaign.py)
async def test_some_seconds_of_faults() -> None:
    await check(15, seed=3, rows=9000)


@pytest.mark.soak
@pytest.mark.parametrize("mode", visits.MODES)
async def test_faults_in_every_mode(mode: str) -> None:
    await check(60, seed=5, rows=30_000, workers=4, mode=mode)


VISIT = ("user 1", visits.BEGIN)
ONE = visits.Answer(
    Counter({("user 1", 1, visits.BEGIN, 1): 1}), {(1, visits.BEGIN): 1}, Counter([VISIT])
)
TWICE = visits.Answer(
    Counter({("user 1", 1, visits.BEGIN, 1): 1, ("user 1", 2, visits.BEGIN, 1): 1}),
    {(1, visits.BEGIN): 2},
    Counter([VISIT, VISIT]),
)
NONE = visits.Answer(Counter(), {}, Counter())


@pytest.mark.parametrize(
    ("mode", "good", "bad"),
    [
        ("weak", [ONE], [NONE, TWICE]),
        ("strong", [ONE], [NONE, TWICE]),
        ("weak-at-least-once", [ONE, TWICE], [NONE]),
        ("at-most-once", [NONE, ONE], [TWICE]),
    ],
)
def test_each_mode_is_judged_by_its_own_promise(
    mode: str, good: list[visits.Answer], bad: list[visits.Answer]
) -> None:
    for answer in good:
        assert visits.broken_promises(answer, ONE, visits.MODES[mode]) == []
    for answer in bad:
        assert len(visits.broken_promises(answer, ONE, visits.MODES[mode])) >= 3


def test_visits_that_overtook_each_other_on_their_way_are_all_there() -> None:
    """Behind stages of another key; each with a number of its own, and each number once."""
    soon, later = visits.BEGIN, visits.BEGIN + timedelta(seconds=1)

    def answer(*numbered: tuple[int, datetime]) -> visits.Answer:
        return visits.Answer(
            Counter({("user 1", n, at, 1): 1 for n, at in numbered}), {}, Counter()
        )

    wanted = answer((1, soon), (2, later))
    other_way_round, same_number = answer((2, soon), (1, later)), answer((1, soon), (1, later))
    weak = visits.MODES["weak"]
    assert visits.broken_promises(other_way_round, wanted, weak) == []
    assert len(visits.broken_promises(same_number, wanted, weak)) == 1
    assert len(visits.differences(other_way_round, wanted)) == 1, "without such stages they are not"


async def test_work_may_take_long_while_something_is_done() -> None:
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    looks = iter([None, 0, 1])  # the store is away at first
    last = 2

    def progress() -> int | None:
        found = next(looks, last)
        if found == last:
            work.set_result(None)
        return found

    await unless_it_stands_still(work, progress, 0)


@pytest.mark.parametrize("looks", [[7, 7], [None, 7, None], [None, None]])
async def test_what_stands_still_or_is_not_known_to_go_on_is_given_up(
    looks: list[int | None],
) -> None:
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = iter(looks)
    with pytest.raises(TimeoutError, match="nothing was done for 0 s"):
        await unless_it_stands_still(work, lambda: next(left), 0)
    assert work.cancelled()
    assert not list(left)


def test_a_store_that_is_away_tells_of_no_rows() -> None:
    fleet: Fleet[Report] = Fleet.__new__(Fleet)  # without a store
    fleet.url = "postgresql://nobody@127.0.0.1:1/nothing"
    assert fleet.rows_done() is None


@pytest.mark.soak
async def test_ten_minutes_of_faults() -> None:
    report = await chaos.run(seconds=600, workers=4, seed=1, rows=250_000, rest=2.0, pause=1.0)
    print("\n".join(report.lines()))
    assert report.good, "\n".join(report.lines())
    assert len(report.faults) == 10
