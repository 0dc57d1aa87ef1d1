"""Numbered bundles: exactly-once writes to a database that is not the store.

A table of the store is written in the transaction of its records. Another database is not, so that
a call repeated after a crash would write its rows twice. A computation that stores the number of
the last bundle beside the rows, in the same transaction, can skip the bundles that are already
there (decision 30; Storm's Trident calls that a transactional topology)::

    class ToLedger(Computation[Order, None]):
        bundles = Bundles(records=500, seconds=0.2)

        async def process_bundle(self, records, ctx):
            with ledger.transaction():
                if ctx.bundle_id.number > ledger.last(ctx.bundle_id.scope):
                    ledger.add(record.value for record in records)
                    ledger.remember(ctx.bundle_id.scope, ctx.bundle_id.number)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millwheel.errors import GraphError, MillwheelError

__all__ = ["BundleId", "Bundles", "RecordsRefused"]

MOST_RECORDS = 10_000
"""Maximum number of records in a bundle: while it is open, each commit stores their ids."""

MOST_SECONDS = 3600.0
"""Maximum seconds that a record waits for its bundle; the low watermark waits as long."""


@dataclass(frozen=True, slots=True)
class Bundles:
    """The limits of a bundle: it closes when it is full, or when its oldest record has waited
    enough.

    Args:
        records: the maximum number of records in a bundle, 1 to 10,000.
        seconds: the maximum wall time that a record waits for others, 0 to 3,600; 0: it does not
            wait.

    Raises:
        GraphError: a limit is out of its range.
    """

    records: int = 500
    seconds: float = 0.2

    def __post_init__(self) -> None:
        if type(self.records) is not int or not 1 <= self.records <= MOST_RECORDS:
            raise GraphError(
                f"Bundles: records must be a whole number from 1 to {MOST_RECORDS:,}, not "
                f"{self.records!r}"
            )
        if not isinstance(self.seconds, (int, float)) or not 0 <= self.seconds <= MOST_SECONDS:
            raise GraphError(
                f"Bundles: seconds must be a number from 0 to {MOST_SECONDS:,.0f}, not "
                f"{self.seconds!r}"
            )


@dataclass(frozen=True, slots=True)
class BundleId:
    """Identifies a bundle among all bundles of its computation.

    Within a scope, numbers rise, and a repeated number brings the same records in the same order.
    Numbers rise by one, but may jump after a restart or failover of the pipeline's own database,
    which may have lost its newest commits (decision 40): numbering then continues above every
    number that can have been given, and the records of lost bundles arrive again under new numbers.
    An embedded server restarts after each run that was its only user. Keep numbers as 64-bit
    integers.

    A new scope (an interval was split, or two were merged) continues above the numbers of the
    scopes that it came from. Keep the rows of former scopes in the other database.
    """

    scope: int
    """The key interval's id."""
    number: int
    """The number within the scope; the first is 1."""
    previous: int = field(default=0, compare=False, repr=False)
    """The number of the bundle before it that the store has as delivered, in this scope or in the
    one that it came from; 0: there was none."""
    is_repeat: bool = field(default=False, compare=False, repr=False)
    """It was closed by an earlier owner, or before a restart, and may have been delivered
    already."""
    closed_at: int = field(default=0, compare=False, repr=False)
    """When it was closed, microseconds since 1970 by the worker's clock."""
    inherited: int = field(default=0, compare=False, repr=False)
    """The last number of the scopes that this one came from (splits and merges); its own numbers
    are above it. If the external database has this number or a lower one for the scope, then it is
    of a former scope with the same id, which the pipeline's own database has lost."""
    refused: Mapping[int, str] = field(default_factory=dict, compare=False, repr=False)
    """Records that an earlier call refused (`RecordsRefused`) and that this call leaves out: the
    reason, by place in the bundle."""


class RecordsRefused(MillwheelError):
    """Raised by `process_bundle`: some records cannot be delivered, and none of the bundle was.

    With ``on_error="dead_letter"`` these records become dead letters, and the others are delivered
    by another call (perhaps with no record left), which has them in `BundleId.refused`; otherwise
    the worker stops.

    Attributes:
        reasons: the reason for each record, by its place in the bundle.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__("; ".join(reasons.values()))
        self.reasons = dict(reasons)
