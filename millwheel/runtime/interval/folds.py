"""Folding one interval: its durable changes go into the current tables (I15)."""

from __future__ import annotations

from millwheel.runtime.interval.interval import Interval
from millwheel.store.port import Store


async def fold(store: Store, interval: Interval) -> bool:
    """Fold one interval's durable changes into the current tables (I15).

    Returns:
        Whether the store did: False if the interval has another owner, or was claimed again.
    """
    async with interval.commits.folding:
        upto, changed = interval.commits.durable_n, interval.commits.changed_since_fold
        sequencer = interval.commits.sequencer
        folded = await store.fold(interval.id, sequencer, interval.commits.folded, upto)
        if (
            folded and interval.commits.sequencer == sequencer
        ):  # otherwise it was read back with the claim
            interval.commits.folded = upto
            interval.commits.changed_since_fold = max(
                0, interval.commits.changed_since_fold - changed
            )
            if interval.states is not None:
                interval.states.folded = upto
    return folded
