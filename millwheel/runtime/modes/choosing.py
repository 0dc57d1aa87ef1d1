"""Chooses the mode of each interval, and holds the objects that the modes of one worker share."""

from __future__ import annotations

from hashlib import blake2b

from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.mode import Mode
from millwheel.runtime.interval.turns import Turns
from millwheel.runtime.modes.batched import Batched
from millwheel.runtime.modes.batches import Numbering
from millwheel.runtime.modes.parked_keys import ParkedKeys
from millwheel.runtime.modes.stragglers import Stragglers
from millwheel.runtime.modes.tree import Tree
from millwheel.runtime.modes.tree_acks import TreeAcks, TreePeers
from millwheel.runtime.modes.weak import Weak
from millwheel.store.port.claims import Claim


class Modes:
    def __init__(self, env: Environment, exchange: Exchange) -> None:
        self._env = env
        self._exchange = exchange
        self.trees = exchange.trees = TreeAcks(env, exchange)
        self.stragglers = Stragglers(env, exchange)
        self.numbering = Numbering()
        """How the numbers of new bundles continue after the store may have lost some."""

    # -- the work that the modes of all intervals share ----------------------------------

    def connect(self, peers: TreePeers) -> None:
        self.trees.peers = peers

    def start(self) -> None:
        """Start the task that replays lost trees and reports the deliveries of others held here."""
        self._env.spawn(self.trees.run(), "tree ACKs")

    async def pause(self) -> None:
        """Store no more stragglers while the lane accepts no work."""
        await self.stragglers.stop()

    def close(self) -> int:
        """End all trees; gives the greatest bundle number that intervals here have given, or 0."""
        self.trees.close()
        modes = [interval.mode for interval in self._exchange.intervals]
        return max((m.batches.number for m in modes if isinstance(m, Batched)), default=0)

    # -- the mode of an interval --------------------------------------------------------

    async def number_bundles(self, incarnation: str, *, above: int, is_first: bool) -> None:
        """Set the numbering for the bundles that are closed from now on (decision 40).

        Args:
            incarnation: the incarnation of the store's server.
            above: the greatest bundle number that this process has given.
            is_first: the pipeline was first deployed in this incarnation.
        """
        if any(node.bundles is not None for node in self._env.graph.nodes):
            self.numbering = Numbering(
                blake2b(incarnation.encode(), digest_size=8).hexdigest(),
                max(above, await self._env.patiently(self._env.store.now)),
                is_first=is_first,
            )

    def of(self, interval: Interval) -> Mode:
        """Create the mode of an interval, by the options of its computation."""
        node = interval.step.node
        if node.bundles is not None:
            return Batched(self._env, self.numbering, interval)
        if node.is_tree:
            return Tree(self._env, self._exchange, self.stragglers, self.trees, interval)
        if node.is_weak:
            return Weak(self._env, self._exchange, self.stragglers, interval)
        return Mode()

    @staticmethod
    def turns_of(interval: Interval, claim: Claim) -> Turns:
        """Create the turns of an interval. Keys that former code has parked stay parked."""
        if interval.step.node.park is not None or claim.parked:
            return ParkedKeys(interval)
        return Turns(interval.step)
