"""Numbered bundles: what a computation that writes to somebody else's database asks for.

A table of the store is written in the transaction of its records. Another database is not, and a
call that is repeated after a crash would write twice. One that keeps the last number it has written
beside the rows, in the same transaction, can leave out what it knows (decision 30; Storm's Trident
calls that a transactional topology)::

    class ToLedger(Computation[Order, None]):
        bundles = Bundles(records=500, seconds=0.2)

        async def process_bundle(self, records: Sequence[Record[Order]], ctx: Context[None]) -> None:
            with ledger.transaction():
                if ctx.bundle_id.number > ledger.last(ctx.bundle_id.scope):
                    ledger.add(record.value for record in records)
                    ledger.remember(ctx.bundle_id.scope, ctx.bundle_id.number)
"""

from __future__ import annotations

from dataclasses import dataclass

from millwheel.errors import GraphError

MOST_RECORDS = 10_000
"""Records of a bundle at the most: their ids are stored with each commit while it is open."""

MOST_SECONDS = 3600.0
"""Seconds that a record may wait for company at the most: so long the low watermark stands still."""


@dataclass(frozen=True, slots=True)
class Bundles:
    """How records gather to a bundle: until there are enough, or the oldest has waited enough.

    Args:
        records: so many at the most, 1 to 10,000.
        seconds: of wall time that a record waits for company at the most, 0 to 3,600; 0: none.

    Raises:
        GraphError: a limit is out of its range.
    """

    records: int = 500
    seconds: float = 0.2

    def __post_init__(self) -> None:
        if type(self.records) is not int or not 1 <= self.records <= MOST_RECORDS:
            raise GraphError(
                f"Bundles: records is a whole number from 1 to {MOST_RECORDS:,}, not "
                f"{self.records!r}"
            )
        if not isinstance(self.seconds, (int, float)) or not 0 <= self.seconds <= MOST_SECONDS:
            raise GraphError(
                f"Bundles: seconds is a number from 0 to {MOST_SECONDS:,.0f}, not {self.seconds!r}"
            )


@dataclass(frozen=True, slots=True)
class BundleId:
    """What tells a bundle from every other one of its computation.

    Within a scope numbers rise, and one that comes again brings the same records in the same order. They
    rise by one, but may jump after a restart or failover of the pipeline's own database, which may have lost its
    newest commits (decision 40): then they go on above all that can have been given, and records of lost
    bundles come again under those. An embedded server restarts after each run that used it alone. Keep numbers as
    64-bit integers. A scope that is new (an interval was split, or two were merged) goes on above the
    numbers of those it came from; rows of scopes that are gone must be kept outside.
    """

    scope: int
    """The key interval's id."""
    number: int
    """From 1 on."""
