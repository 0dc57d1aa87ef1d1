"""Chooses the mode of each interval, and holds the objects that the modes of one worker share."""

from __future__ import annotations

from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.mode import Mode
from millwheel.runtime.modes.batched import Batched
from millwheel.runtime.modes.batches import Numbering
from millwheel.runtime.modes.stragglers import Stragglers
from millwheel.runtime.modes.tree import Tree
from millwheel.runtime.modes.tree_acks import TreeAcks
from millwheel.runtime.modes.weak import Weak


class Modes:
    """Creates the mode of each interval of one worker."""

    def __init__(self, env: Environment, exchange: Exchange) -> None:
        self._env = env
        self._exchange = exchange
        self.trees = TreeAcks(env, exchange)
        self.stragglers = Stragglers(env, exchange)
        self.numbering = Numbering()
        """How the numbers of new bundles continue after the store may have lost some."""

    def of(self, interval: Interval) -> Mode:
        """Create the mode of an interval, by the options with which its computation was added."""
        node = interval.step.node
        if node.bundles is not None:
            return Batched(self._env, self.numbering, interval)
        if node.is_tree:
            return Tree(self._env, self._exchange, self.stragglers, self.trees, interval)
        if node.is_weak:
            return Weak(self._env, self._exchange, self.stragglers, interval)
        return Mode()
