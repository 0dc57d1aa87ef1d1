"""Joins equal the answer worked out over all records at once, whatever the order of arrival,
with records twice and through crashes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel.testing import advance, assert_exactly_once, inject
from tests.support.fault_plans import FAULTS, Plan, run_plan
from tests.support.joins_oracle import LEFT, ON_TIME, RIGHT, TOLD, Setup, Told, setups
from tests.support.pipelines import QUICK
from tests.support.values import Item, at

EXAMPLES = 25
"""Of each kind of join; `make soak` runs two hundred times as many, with new seeds."""

Found = tuple[Setup, list[Item]]


def equals_batch(found: Found, plan: Plan) -> None:
    """Run it; what was on time must give exactly the batch answer, what was late is told so."""
    setup, values = found

    async def go() -> None:
        world = await run_plan(plan, setup.build)
        late = {row[1] for row in world.rows("late_left")}
        if setup.what != "temporal":
            late |= {row[1] for row in world.rows("late_right")}
        if setup.lateness == ON_TIME:
            assert late == set()
        on_time = [value for value in values if value.number not in late]
        told = Counter(Told(*row) for row in world.rows("told"))
        assert told == setup.answer(on_time)
        left = [row for row in world.store.states() if "versions/" not in str(row)]
        assert left == [], "something outlives the horizon"
        assert world.store.timers() == []

    asyncio.run(go())


def plans(values: list[Item], draw: st.DataObject) -> Plan:
    limits = replace(
        QUICK,
        intervals=draw.draw(st.integers(1, 2)),
        chunk_records=draw.draw(st.sampled_from([1, 3, 100])),
        bundle_records=draw.draw(st.sampled_from([1, 5, 1000])),
        max_unacked_records=draw.draw(st.sampled_from([2, 1000])),
        cache_bytes=draw.draw(st.sampled_from([0, 1 << 20])),
        eager_entries=draw.draw(st.sampled_from([1, 64])),
        fold_seconds=draw.draw(st.sampled_from([0.05, 2.0])),
        housekeeping_seconds=0.05,
    )
    faults = draw.draw(st.dictionaries(st.integers(0, 30), st.sampled_from(FAULTS), max_size=3))
    return Plan(limits, values, faults, draw.draw(st.integers(1, 2)), close_at_end=True)


def checked(what: Any, **options: Any) -> Callable[[], None]:
    @settings(deadline=None, suppress_health_check=list(HealthCheck), **options)
    @given(setups(what), st.data())
    def check(found: Found, data: st.DataObject) -> None:
        equals_batch(found, plans(found[1], data))

    return check


@pytest.mark.parametrize("what", ["interval", "window", "temporal"])
def test_a_join_equals_its_batch_answer(what: str) -> None:
    checked(what, max_examples=EXAMPLES, derandomize=True)()


@pytest.mark.soak
@pytest.mark.parametrize("what", ["interval", "window", "temporal"])
def test_a_join_equals_its_batch_answer_for_long(what: str) -> None:
    checked(what, max_examples=5000)()


@pytest.mark.parametrize("what", ["interval", "window", "temporal"])
async def test_joins_hold_through_every_mode_of_the_kit(what: Any) -> None:
    setup = Setup(what, "left" if what == "temporal" else "outer", 5, 10, False, ON_TIME)
    values = [Item("ab"[n % 3 % 2], n, float(7 * n % 50)) for n in range(10)]
    steps: list[Any] = [inject(LEFT if v.number % 2 == 0 else RIGHT, v) for v in values]
    steps += [advance(LEFT, at(40)), advance(RIGHT, at(30))]
    steps += [advance(LEFT, at(600)), advance(RIGHT, at(600))]
    await assert_exactly_once(
        setup.build([], QUICK), steps, {TOLD: list(setup.answer(values).elements())}
    )
