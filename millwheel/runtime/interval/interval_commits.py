"""The position in one interval's chain of commits (I12), and how much of it is folded (I15)."""

from __future__ import annotations

import asyncio

from millwheel.store.port.claims import Claim


class IntervalCommits:
    """Numbering starts at the interval's first claim."""

    def __init__(self, claim: Claim) -> None:
        self.folding = asyncio.Lock()
        self.restore(claim)

    def restore(self, claim: Claim) -> None:
        self.sequencer = claim.interval.sequencer
        """The store refuses commits under a lower sequencer (I3)."""
        self.n = claim.n
        """Number of the last commit built."""
        self.durable_n = claim.n
        """Number of the last commit known to be durable."""
        self.last_bucket = claim.bucket
        """Bucket of the last commit built."""
        self.folded = claim.folded
        """Number of the last folded commit."""
        self.table_rows = dict(claim.table_rows)
        """Rows written, by numbered table: the number of the next row."""
        self.changed_since_fold = len(claim.states)
        """Changes of state and timers that are not folded."""

    def number_row(self, table: str) -> int:
        number = self.table_rows.get(table, 0)
        self.table_rows[table] = number + 1
        return number
