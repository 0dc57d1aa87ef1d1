"""Reads all states of an interval, if there are few, so that no record has to wait for one.

Then a key that is not in memory has no state, and a record of a new key needs no look-up
(decision 71). This lasts until a key is evicted.
"""

from __future__ import annotations

import asyncio
from itertools import groupby
from operator import itemgetter

from millwheel.core.addresses import CELL_MARK
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.interval import Interval, Ownership

SLOTS_A_PAGE = 2048
"""Slots read by one statement: some milliseconds."""

ROWS_A_PAGE = 4000
"""With more rows in a page, the interval has too many states."""

CACHE_SHARE = 4
"""States may fill 1/CACHE_SHARE of the cache before it is given up."""


async def read_all_states(env: Environment, interval: Interval) -> None:
    """Read the states that are not in memory, in pages, while the lane runs."""
    states = interval.states
    first, last = interval.slots
    evicted = states.evicted

    def is_valid() -> bool:
        """Whether what is read now is not older than what has been in memory."""
        return (
            interval.ownership is Ownership.HELD
            and interval.states is states
            and states.evicted == evicted
        )

    for low in range(first, last, SLOTS_A_PAGE):
        slots = low, min(low + SLOTS_A_PAGE, last)
        rows = await env.patiently(
            lambda slots=slots: env.store.scan_states(interval.step.id, slots, ROWS_A_PAGE)  # type: ignore[misc]
        )
        if len(rows) == ROWS_A_PAGE or not is_valid():
            return
        if any(row.version != states.version for row in rows):
            return  # each is migrated when a record needs it
        for (slot, key), of_key in groupby(rows, key=itemgetter(0, 1)):
            if key.startswith(CELL_MARK):
                continue  # a broadcast table, which has been loaded
            states.learn(slot, key, [(row.entry, row.value, row.version) for row in of_key])
        if states.size > env.settings.cache_bytes // CACHE_SHARE:
            return
        await asyncio.sleep(0)
    if is_valid():
        states.has_all = True
