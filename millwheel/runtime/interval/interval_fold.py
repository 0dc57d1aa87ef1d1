"""Folds one interval: writes its durable changes into the current tables (I15)."""

from __future__ import annotations

from millwheel.runtime.interval.interval import Interval
from millwheel.store.port import Store


async def fold(store: Store, interval: Interval) -> bool:
    """Returns:
    False: the interval has another owner, or was claimed again.
    """
    async with interval.commits.folding:
        upto, changed = interval.commits.durable_n, interval.commits.changed_since_fold
        sequencer = interval.commits.sequencer
        folded = await store.fold(interval.id, sequencer, interval.commits.folded, upto)
        # With another sequencer the interval was claimed again, which has read these values back.
        if folded and interval.commits.sequencer == sequencer:
            interval.commits.folded = upto
            interval.commits.changed_since_fold = max(
                0, interval.commits.changed_since_fold - changed
            )
            if interval.states is not None:
                interval.states.folded = upto
    return folded
