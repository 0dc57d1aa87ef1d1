"""The parts of an interval's mode, for tests that know which mode it has."""

from __future__ import annotations

from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.modes.ack_chain import AckChain
from millwheel.runtime.modes.batched import Batched
from millwheel.runtime.modes.batches import Batches
from millwheel.runtime.modes.tree import Tree
from millwheel.runtime.modes.tree_roots import Entry
from millwheel.runtime.modes.weak import Weak


def chain_of(interval: Interval) -> AckChain:
    """The ACK chain of a weak computation's interval."""
    assert isinstance(interval.mode, Weak)
    return interval.mode.chain


def entry_of(interval: Interval) -> Entry:
    """The entry of a tree computation's interval."""
    assert isinstance(interval.mode, Tree)
    return interval.mode.entry


def batches_of(interval: Interval) -> Batches:
    """The numbered bundles of an interval."""
    assert isinstance(interval.mode, Batched)
    return interval.mode.batches
