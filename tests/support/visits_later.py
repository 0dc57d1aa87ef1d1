"""The pipeline of `tests.support.visits` as its code is some time later, and as it is when that is
taken back.

Which of them a process runs, comes by ``VISITS_VERSION``:

=========  ================================================================================
``first``  `tests.support.visits` as it stands
``later``  the state of `CountVisits` and the stream of steps have another type: a field has
           another name, another one is new. Version 2, and the way up to it
``back``   the code that was there first, with the way down from version 2
=========  ================================================================================

The tables that come of it are the same.
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any, ClassVar

import msgspec

from millwheel import Computation, Context, Pipeline, Record, Stream, Timer
from tests.support import visits
from tests.support.visits import REMIND, REMINDERS, Code, Reminder, Visit, dawdle, region_of


class Step(msgspec.Struct, frozen=True):
    """`number` is called `visit`, and it is known whether it is the first."""

    user: str
    visit: int
    at: datetime
    region: int
    first: bool


class Visits(msgspec.Struct):
    """`number` is called `count`, and there is the time of the last one."""

    count: int = 0
    last: datetime | None = None


def up(state: dict[str, Any]) -> dict[str, Any]:
    """From version 1 of the state to version 2."""
    return {"count": state["number"]}


def down(state: dict[str, Any]) -> dict[str, Any]:
    """And back."""
    return {"number": state["count"]}


def step_up(step: dict[str, Any]) -> dict[str, Any]:
    """From version 1 of the stream to version 2."""
    number = step.pop("number")
    return {**step, "visit": number, "first": number == 1}


def step_down(step: dict[str, Any]) -> dict[str, Any]:
    """And back."""
    visit = step.pop("visit")
    del step["first"]
    return {**step, "number": visit}


STEPS = Stream("steps", Step, version=2, migrations={1: step_up})
STEPS_BACK = Stream("steps", visits.Step, migrations={2: step_down})


class CountVisits(Computation[Visit, Visits]):
    """As `tests.support.visits.CountVisits`, with another state."""

    writes = (STEPS,)
    version = 2
    migrations: ClassVar = {1: up}

    async def process_record(self, record: Record[Visit], ctx: Context[Visits]) -> None:
        visit = record.value
        ctx.state.count += 1
        ctx.state.last = visit.at
        await dawdle(visit)
        count = ctx.state.count
        ctx.produce(STEPS, Step(visit.user, count, visit.at, region_of(visit.user), count == 1))


class Remind(Computation[Step, None]):
    """As `tests.support.visits.Remind`, of other steps."""

    writes = (REMINDERS,)

    async def process_record(self, record: Record[Step], ctx: Context[None]) -> None:
        ctx.set_timer(record.value.at + REMIND, tag=str(record.value.visit))

    async def process_timer(self, timer: Timer, ctx: Context[None]) -> None:
        ctx.produce(REMINDERS, Reminder(str(ctx.key), timer.at))


class CountVisitsBack(visits.CountVisits):
    """The first one, with the way down."""

    writes = (STEPS_BACK,)
    migrations: ClassVar = {2: down}

    async def process_record(self, record: Record[Visit], ctx: Context[visits.Visits]) -> None:
        visit = record.value
        ctx.state.number += 1
        await dawdle(visit)
        number = ctx.state.number
        ctx.produce(STEPS_BACK, visits.Step(visit.user, number, visit.at, region_of(visit.user)))


CountVisitsBack.__name__ = "CountVisits"  # as it is in code that was taken back


def step_row(step: Step) -> visits.Step:
    """A row of `step`, as it was before."""
    return visits.Step(step.user, step.visit, step.at, step.region)


CODES = {
    "first": Code(),
    "later": Code(STEPS, CountVisits(), Remind(), step_row),
    "back": Code(STEPS_BACK, CountVisitsBack()),
}


def pipeline() -> Pipeline:
    """As the environment says."""
    return visits.pipeline(CODES[os.environ["VISITS_VERSION"]])
