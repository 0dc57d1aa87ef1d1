"""Numbered bundles: exactly-once writes to a database that is not the store (decision 30).

A call that is repeated after a crash does not write its rows twice if the number of the last bundle
is stored beside them, in the same transaction (a transactional topology in Storm's Trident).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millwheel.errors import GraphError, MillwheelError

__all__ = ["BundleId", "Bundles", "RecordsRefused"]

MOST_RECORDS = 10_000
"""Maximum records of a bundle: while it is open, each commit stores their ids."""

MOST_SECONDS = 3600.0
"""Maximum seconds that a record, and so the low watermark, waits for its bundle."""


@dataclass(frozen=True, slots=True)
class Bundles:
    """The limits of a bundle: it closes when it is full, or when its oldest record has waited
    enough.

    ```python
    from collections.abc import Sequence

    class ToBooks(Computation[int, None]):
        bundles = Bundles(records=500, seconds=0.2)

        async def process_bundle(self, records: Sequence[Record[int]], ctx: Context[None]) -> None:
            print(ctx.bundle_id.number, [record.value for record in records])
    ```

    Args:
        records: maximum records of a bundle, 1 to 10,000.
        seconds: maximum wall time that a record waits for others, 0 (not at all) to 3,600.

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

    ```python
    done: dict[int, int] = {}  # in the other database, beside the rows

    def is_new(bundle: BundleId) -> bool:
        return bundle.number > done.get(bundle.scope, 0)

    assert is_new(BundleId(scope=3, number=1))
    ```

    A repeated number brings the same records in the same order. Within a scope, numbers rise by
    one, but may jump after a restart or failover of the pipeline's own database (for an embedded
    server: after each run), which may have lost its newest commits (decision 40). Then the records
    of lost bundles get new numbers, above all that can have been given. A new scope (after a split
    or merge) continues above the numbers of its origins; keep the rows of former scopes in the
    other database. Numbers need 64 bits.
    """

    scope: int
    """The key interval's id."""
    number: int
    """The number within the scope, from 1."""
    previous: int = field(default=0, compare=False, repr=False)
    """The last number delivered before it, as the store has it, in this scope or its origin; 0:
    none."""
    is_repeat: bool = field(default=False, compare=False, repr=False)
    """An earlier owner, or a run before a restart, closed it and may have delivered it."""
    closed_at: int = field(default=0, compare=False, repr=False)
    """When it was closed, microseconds since 1970 by the worker's clock."""
    inherited: int = field(default=0, compare=False, repr=False)
    """The last number of the scopes that this one came from, or that was withheld
    (``docs/howto/run/forks.md``). If the external database has this number or a lower one, it lacks
    nothing: it is of a former scope with the same id, which the pipeline's own database has lost,
    or of a time before."""
    refused: Mapping[int, str] = field(default_factory=dict, compare=False, repr=False)
    """Records left out because an earlier call refused them: the reason, by place in the bundle."""


class RecordsRefused(MillwheelError):
    """Raised by `process_bundle`: some records cannot be delivered, and none of the bundle was.

    ```python
    def check(records: list[Record[Order]]) -> None:
        free = {place: "no price" for place, each in enumerate(records) if each.value.cents == 0}
        if free:
            raise RecordsRefused(free)
    ```

    With ``on_error="dead_letter"`` these records become dead letters, and another call delivers the
    others (perhaps none), with these in `BundleId.refused`; otherwise the worker stops.

    Attributes:
        reasons: the reason for each record, by its place in the bundle.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__("; ".join(reasons.values()))
        self.reasons = dict(reasons)
