"""How far the chain of commits of one interval is (I12), and how much of it is folded (I15)."""

from __future__ import annotations

import asyncio

from millwheel.store.port import Claim


class IntervalCommits:
    """The commits of an interval, numbered from its first claim on."""

    def __init__(self, claim: Claim) -> None:
        self.folding = asyncio.Lock()
        """Held while the interval is folded."""
        self.restore(claim)

    def restore(self, claim: Claim) -> None:
        """Start from what is stored."""
        self.sequencer = claim.interval.sequencer
        """The claim's sequencer: the store refuses commits under a lower one (I3)."""
        self.n = claim.n
        """The last commit built."""
        self.durable_n = claim.n
        """The last commit known to be durable."""
        self.last_bucket = claim.bucket
        """The bucket of the last durable commit."""
        self.folded = claim.folded
        """The last commit that is folded."""
        self.changed_since_fold = len(claim.states)
        """Changes of state and timers that are not folded."""
