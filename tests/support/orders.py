"""Orders of customers, and the computation that adds them up: what services under faults
process."""

from __future__ import annotations

import msgspec

from millwheel import Computation, Context, Record, Stream


class Order(msgspec.Struct, frozen=True):
    """A record."""

    number: int
    customer: int
    amount: int


class Total(msgspec.Struct, frozen=True):
    """A row: the orders of a customer."""

    customer: int
    orders: int = 0
    amount: int = 0
    newest: int = -1
    """The greatest of their numbers."""
    is_sorted: bool = True
    """They came in the order of their numbers."""

    def after(self, order: Order) -> Total:
        """The row after another order."""
        return Total(
            self.customer,
            self.orders + 1,
            self.amount + order.amount,
            max(order.number, self.newest),
            self.is_sorted and order.number > self.newest,
        )


class Sums(msgspec.Struct):
    """The state of a customer."""

    total: Total | None = None


ORDERS = Stream("orders", Order)
TOTALS = Stream("totals", Total)


class AddUp(Computation[Order, Sums]):
    """Adds up the orders of each customer."""

    writes = (TOTALS,)

    async def process_record(self, record: Record[Order], ctx: Context[Sums]) -> None:
        order = record.value
        ctx.state.total = (ctx.state.total or Total(order.customer)).after(order)
        ctx.produce(TOTALS, ctx.state.total)
