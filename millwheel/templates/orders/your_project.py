"""Finds orders that are not paid in time.

The shop's program (`shop.py`) writes its table `orders`, and sends the order to the pipeline in the
same transaction. Payments come by SQL too, or over HTTP. An order that is not paid within
`PAY_WITHIN` is marked in the shop's table and reported, both in one transaction.

    millwheel run your_project:pipeline --store store --ingest 127.0.0.1:8080
"""

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct

from millwheel import Computation, Console, Context, Inbox, Pipeline, Record, Stream, Table, Timer

PAY_WITHIN = timedelta(seconds=20)

MARK_PAID = "UPDATE public.orders SET state = 'paid' WHERE number = %s"
MARK_UNPAID = "UPDATE public.orders SET state = 'unpaid' WHERE number = %s"


class Order(Struct, tag="order"):
    """An order, in the transaction that wrote its row of the shop's table."""

    number: int
    customer: str
    cents: int


class Payment(Struct, tag="payment"):
    """A payment of an order."""

    order: int
    cents: int


class Unpaid(Struct):
    """An order that was not paid in time: a row of the table `unpaid`."""

    number: int
    customer: str
    missing: int


class Account(Struct):
    """The state of one order; its payment may come before the order does."""

    order: Order | None = None
    paid: int = 0
    closed: bool = False


ORDERS = Stream("orders", Order)
PAYMENTS = Stream("payments", Payment)
UNPAID = Stream("unpaid", Unpaid)


class AwaitPayment(Computation[Order | Payment, Account]):
    """Waits for the payments of each order."""

    writes = (UNPAID,)

    async def process_record(self, record: Record[Order | Payment], ctx: Context[Account]) -> None:
        value, account = record.value, ctx.state
        if account.closed:
            ctx.count("after_the_end")
            return
        if isinstance(value, Order):
            account.order = value
            ctx.set_timer(record.timestamp + PAY_WITHIN)
        else:
            account.paid += value.cents
        if account.order is not None and account.paid >= account.order.cents:
            account.closed = True
            ctx.cancel_timer()
            ctx.execute(MARK_PAID, [account.order.number])

    async def process_timer(self, timer: Timer, ctx: Context[Account]) -> None:
        account, order = ctx.state, ctx.state.order
        assert order is not None
        account.closed = True
        ctx.execute(MARK_UNPAID, [order.number])
        ctx.produce(UNPAID, Unpaid(order.number, order.customer, order.cents - account.paid))


pipeline = Pipeline("your_project")
pipeline.inject(ORDERS, Inbox(require_id=True))
pipeline.inject(PAYMENTS, Inbox(require_id=True))
pipeline.add(
    AwaitPayment(),
    ORDERS.by(lambda order: order.number),
    PAYMENTS.by(lambda payment: payment.order),
)
pipeline.sink(UNPAID, Table("unpaid", Unpaid, key=("number",)))
pipeline.sink(UNPAID, Console("unpaid: "))  # in its place: an alert of yours
