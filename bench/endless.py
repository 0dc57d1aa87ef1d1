"""Payments without an end: a source for runs that are measured by the clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from bench.workload import START, Payment, payments
from millwheel.sources import Lag, Partition, Row

ROUND = 100_000
"""Payments that come again and again, each time later."""


class Endless:
    """The first payments of the workload, over and over, a millisecond of event time apart."""

    bounded = False

    def partitions(self) -> list[Partition]:
        """One."""
        return [EndlessPayments()]

    def describe(self) -> dict[str, Any]:
        """What is stored of it in the graph."""
        return {"endless": ROUND}


@dataclass(frozen=True)
class EndlessPayments:
    """The one partition."""

    identity: str = "endless payments"

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> EndlessReader:
        """Start at a stored row, or with the first."""
        return EndlessReader(position["row"] if position else 0)


class EndlessReader:
    """Makes payments."""

    ended = False

    def __init__(self, row: int) -> None:
        self._row = row
        self._amounts = [(payment.account, payment.amount) for payment in payments(ROUND)]

    async def read(self, limit: int) -> list[Row]:
        """As many as are wanted."""
        first, self._row = self._row, self._row + limit
        rows = []
        for number in range(first, first + limit):
            account, amount = self._amounts[number % ROUND]
            at = START + timedelta(milliseconds=number)
            rows.append(Row(number, number + 1, Payment(at, account, amount)))
        return rows

    def position(self, acknowledged: int) -> dict[str, Any]:
        """The first row not acknowledged."""
        return {"row": acknowledged}

    async def wait(self) -> None:
        """Return at once: there is always more."""

    def progress(self) -> None:
        """There is no end."""

    def lag(self) -> Lag:
        """Not known: there is always more."""
        return Lag()

    def close(self) -> None:
        """Nothing is open."""
