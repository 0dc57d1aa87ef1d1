"""An unbounded source of payments, for runs of a given duration."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from bench.workload import START, Payment, payments
from millwheel.sources import Lag, Partition, Row

ROUND = 100_000
"""Number of different payments, which repeat with later timestamps."""


class Endless:
    """The first payments of the workload, repeated, a millisecond of event time apart."""

    bounded = False

    def partitions(self) -> list[Partition]:
        """Return the only partition."""
        return [EndlessPayments()]

    def describe(self) -> dict[str, Any]:
        """Return the description to store in the graph."""
        return {"endless": ROUND}


@dataclass(frozen=True)
class EndlessPayments:
    """The only partition."""

    identity: str = "endless payments"

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> EndlessReader:
        """Open a reader at the stored row, or at the first."""
        return EndlessReader(position["row"] if position else 0)


class EndlessReader:
    """Generates payments."""

    ended = caught_up = False

    def __init__(self, row: int) -> None:
        self._row = row
        self._amounts = [(payment.account, payment.amount) for payment in payments(ROUND)]

    async def read(self, limit: int) -> list[Row]:
        """Return the next `limit` payments."""
        first, self._row = self._row, self._row + limit
        rows = []
        for number in range(first, first + limit):
            account, amount = self._amounts[number % ROUND]
            at = START + timedelta(milliseconds=number)
            rows.append(Row(number, number + 1, Payment(at, account, amount)))
        return rows

    def position(self, acknowledged: int) -> dict[str, Any]:
        """Return the position of the first unacknowledged row."""
        return {"row": acknowledged}

    async def wait(self) -> None:
        """Return immediately: there are always more rows."""

    def progress(self) -> None:
        """Return None: the source is unbounded."""

    def lag(self) -> Lag:
        """Return an unknown lag: there are always more rows."""
        return Lag()

    def close(self) -> None:
        """Do nothing: no resource is open."""
