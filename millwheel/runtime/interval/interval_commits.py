"""The position in one interval's chain of commits (I12), and how much of the chain is folded
(I15)."""

from __future__ import annotations

import asyncio

from millwheel.store.port.claims import Claim


class IntervalCommits:
    """Numbers of an interval's commits; numbering starts at its first claim."""

    def __init__(self, claim: Claim) -> None:
        self.folding = asyncio.Lock()
        """Held while the interval is folded."""
        self.restore(claim)

    def restore(self, claim: Claim) -> None:
        """Start from the stored numbers."""
        self.sequencer = claim.interval.sequencer
        """The claim's sequencer: the store refuses commits under a lower one (I3)."""
        self.n = claim.n
        """The number of the last commit built."""
        self.durable_n = claim.n
        """The number of the last commit known to be durable."""
        self.last_bucket = claim.bucket
        """The bucket of the last commit built."""
        self.folded = claim.folded
        """The number of the last folded commit."""
        self.table_rows = dict(claim.table_rows)
        """By numbered table: the rows that the interval has written, so the number of the next
        one."""
        self.changed_since_fold = len(claim.states)
        """Number of changes of state and timers that are not folded."""

    def number_row(self, table: str) -> int:
        """The number of the next row of a numbered table."""
        number = self.table_rows.get(table, 0)
        self.table_rows[table] = number + 1
        return number
