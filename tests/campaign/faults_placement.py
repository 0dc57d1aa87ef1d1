"""What an operator does to intervals while they work, by what `millwheel intervals` is made of.

All of it is asked for as at the command line, and carried out by the workers: who is to, may be
dead, stopped or cut off by then. What is not done in time is left as it was asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise

from millwheel.core.clock import SystemClock
from millwheel.errors import MillwheelError
from millwheel.services.operating import Operator
from millwheel.store.port.placement import PlacedInterval
from millwheel.store.postgres.store import PostgresStore
from tests.campaign.crew import Hand
from tests.campaign.faults import IN_CUT, Outcome, Scene, fault, killed_at, on_one
from tests.campaign.workload import NAME

DONE_SECONDS = 8.0
"""For so long an operator waits."""
FEW = 8
"""Parts of one computation, from which on none of them is split any more."""

Work = Callable[[Operator, list[PlacedInterval]], Awaitable[list[int]]]
"""Asks for something, given those that can be cut; gives the intervals that it meets, none if there
was nothing to ask for."""


async def _operate(scene: Scene, work: Work) -> Outcome:
    """Let an operator do something; without effect if it was not done in time."""
    try:
        store = await PostgresStore(scene.crew.site.url, NAME).open()
    except MillwheelError as error:
        return Outcome(False, f"the operator has no store: {error}", ())
    try:
        placed = (await store.read_placement()).intervals
        rows = [row for row in placed if row.kind == "computation" and row.owner is not None]
        met = await work(Operator(store, SystemClock(), lambda _: None), rows)
        return Outcome(bool(met), "" if met else "nothing to ask for", met)
    except MillwheelError as error:
        return Outcome(False, str(error), ())
    finally:
        await store.close()


def _widest(rows: list[PlacedInterval]) -> PlacedInterval | None:
    """Of a computation in few parts, the one with the most slots."""
    parts: dict[int, list[PlacedInterval]] = {}
    for row in rows:
        parts.setdefault(row.computation, []).append(row)
    few = [row for found in parts.values() if len(found) < FEW for row in found]
    return max(few, key=lambda row: row.slot_to - row.slot_from, default=None)


def _neighbours(rows: list[PlacedInterval]) -> list[tuple[PlacedInterval, PlacedInterval]]:
    """All that can be merged."""
    in_order = sorted(rows, key=lambda row: (row.computation, row.slot_from))
    return [
        (lower, upper)
        for lower, upper in pairwise(in_order)
        if (lower.computation, lower.slot_to) == (upper.computation, upper.slot_from)
    ]


@fault("move")
async def move(scene: Scene) -> Outcome:
    """An operator moves an interval to another worker, and then returns it to the balancer."""

    async def ask(operator: Operator, rows: list[PlacedInterval]) -> list[int]:
        others = [hand for hand in scene.crew.alive if not hand.busy and hand.id]
        if not rows or not others:
            return []
        row, to = scene.draw.choice(rows), scene.draw.choice(others)
        if row.owner is not None and row.owner.startswith(to.id):
            return []
        try:
            await operator.move(row.id, to.id, DONE_SECONDS)
        finally:
            await operator.unpin(row.id)
        return [row.id]

    return await _operate(scene, ask)


@fault("split")
async def split(scene: Scene) -> Outcome:
    """An operator splits an interval, at any slot."""

    async def ask(operator: Operator, rows: list[PlacedInterval]) -> list[int]:
        row = _widest(rows)
        if row is None:
            return []
        await operator.split(row.id, _somewhere(scene, row), DONE_SECONDS)
        return [row.id]

    return await _operate(scene, ask)


def _somewhere(scene: Scene, row: PlacedInterval) -> int:
    return scene.draw.randrange(row.slot_from + 1, row.slot_to)


@fault("merge")
async def merge(scene: Scene) -> Outcome:
    """An operator merges two adjacent intervals of any owners; they are moved to one worker
    first."""

    async def ask(operator: Operator, rows: list[PlacedInterval]) -> list[int]:
        pairs = _neighbours(rows)
        if not pairs:
            return []
        lower, upper = scene.draw.choice(pairs)
        await operator.merge(lower.id, upper.id, DONE_SECONDS)
        return [lower.id, upper.id]

    return await _operate(scene, ask)


@fault("kill in split or merge", counts_as="kill")
@on_one
async def kill_in_split_or_merge(scene: Scene, hand: Hand) -> Outcome:
    """A worker kills itself with SIGKILL in the middle of the transaction of a split or merge that
    an operator requested."""

    async def ask(operator: Operator, rows: list[PlacedInterval]) -> list[int]:
        own = [row for row in rows if row.owner is not None and row.owner.startswith(hand.id)]
        pairs = _neighbours(own)
        if pairs and scene.draw.random() < 0.5:
            lower, upper = scene.draw.choice(pairs)
            await operator.merge(lower.id, upper.id, None)
            return [lower.id, upper.id]
        if not own:
            return []
        row = scene.draw.choice(own)
        await operator.split(row.id, _somewhere(scene, row), None)
        return [row.id]

    async def asked() -> Outcome:
        return await _operate(scene, ask)

    return await killed_at(scene, hand, IN_CUT, asked)
