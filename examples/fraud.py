"""A live service: orders and payments, read from files that another program appends to.

Orders arrive in one file, which is rotated. Payments arrive in a file for each terminal, and new
terminals appear while the pipeline runs. The results are in three tables:

====================  =======================================================================
``unpaid``            orders that were not paid in full ten minutes after they were placed
``spending``          the sum of each customer's orders in each ten minutes
``big_spender``       the rows of ``spending`` above 2,000
====================  =======================================================================

All results depend on event time alone: a payment counts if it was made in time, whichever file is
read first. Windows and deadlines are ten minutes, so the tables have their first rows after eleven
minutes; until then ``millwheel status fraud`` shows the progress of event time.

    python -m examples.fraud                                              # until Ctrl-C
    millwheel worker examples.fraud:pipeline --store .millwheel           # one worker, or several
    millwheel sql 'SELECT * FROM unpaid ORDER BY placed DESC LIMIT 5' --store .millwheel -p fraud
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random

import msgspec

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream, Table, Timer
from millwheel.computations import FlatMap, Windowed, total
from millwheel.windows import Pane, Tumbling

INPUT = Path(os.environ.get("FRAUD_INPUT", "fraud-input"))
DUE = timedelta(minutes=10)
"""Time after an order was placed in which it has to be paid."""
LATENESS = timedelta(seconds=60)
"""Rows of one file are out of order by less than this."""
SILENCE = timedelta(seconds=5)
"""Time after which a terminal without payments no longer holds the low watermark."""
BIG = 2_000_00
"""The limit of a big spender, in cents per ten minutes."""


class Order(msgspec.Struct, frozen=True, tag="order"):
    number: int
    customer: str
    cents: int
    at: datetime


class Payment(msgspec.Struct, frozen=True, tag="payment"):
    order: int
    terminal: str
    cents: int
    at: datetime


class Unpaid(msgspec.Struct, frozen=True):
    """A row of `unpaid`."""

    number: int
    customer: str
    placed: datetime
    missing_cents: int


class Spending(msgspec.Struct, frozen=True):
    """A row of `spending` and `big_spender`."""

    customer: str
    begin: datetime
    cents: int


class Owed(msgspec.Struct):
    """The known facts of one order."""

    order: Order | None = None
    payments: list[Payment] = msgspec.field(default_factory=list)
    """The payments so far; they may arrive before the order."""
    judged: bool = False


ORDERS = Stream("orders", Order)
PAYMENTS = Stream("payments", Payment)
UNPAID = Stream("unpaid", Unpaid)
SPENT = Stream("spent", Pane[int])
BIG_SPENT = Stream("big_spent", Pane[int])


class Judge(Computation[Order | Payment, Owed]):
    """Reports orders that are not paid in time."""

    writes = (UNPAID,)

    async def process_record(self, record: Record[Order | Payment], ctx: Context[Owed]) -> None:
        owed, value = ctx.state, record.value
        if owed.judged:
            ctx.count("paid_too_late")
        elif isinstance(value, Payment):
            owed.payments.append(value)
        else:
            owed.order = value
            ctx.set_timer(value.at + DUE)

    async def process_timer(self, timer: Timer, ctx: Context[Owed]) -> None:
        order, payments = ctx.state.order, ctx.state.payments
        assert order is not None
        paid = sum(payment.cents for payment in payments if payment.at <= order.at + DUE)
        if paid < order.cents:
            missing = order.cents - paid
            ctx.produce(UNPAID, Unpaid(order.number, order.customer, order.at, missing))
        ctx.state = Owed(judged=True)


def spending(pane: Pane[int]) -> Spending:
    """The row of a closed window."""
    return Spending(str(pane.key), pane.start, pane.value)


def build(directory: Path = INPUT, name: str = "fraud") -> Pipeline:
    """The pipeline over ``orders.jsonl`` and the files in ``payments`` of a directory."""
    made = Pipeline(name)
    made.inject(
        ORDERS,
        JsonLines(directory / "orders.jsonl", follow=True),
        timestamp=lambda order: order.at,
        lateness=LATENESS,
    )
    made.inject(
        PAYMENTS,
        JsonLines(f"{directory}/payments/", follow=True),
        timestamp=lambda payment: payment.at,
        lateness=LATENESS,
        idle_after=SILENCE,
    )
    made.add(
        Judge(), ORDERS.by(lambda order: order.number), PAYMENTS.by(lambda payment: payment.order)
    )
    made.add(
        Windowed(Tumbling(minutes=10), total(lambda order: order.cents), to=SPENT),
        ORDERS.by(lambda order: order.customer),
    )
    big = FlatMap(lambda pane: [pane] if pane.value > BIG else [], to=BIG_SPENT)
    made.add(big, SPENT.by(lambda pane: pane.key), name="find_big")
    made.sink(UNPAID, Table("unpaid", Unpaid, key=("number",)))
    made.sink(SPENT, Table("spending", Spending, key=("customer", "begin")), row=spending)
    made.sink(BIG_SPENT, Table("big_spender", Spending, key=("customer", "begin")), row=spending)
    return made


def trade(
    begin: datetime, every: timedelta, *, first: int = 0, seed: int = 1
) -> Iterator[Order | Payment]:
    """An endless sequence of orders and payments, in the order in which they are reported.

    Rows of one kind are out of order by up to five seconds. Of twenty orders, one is not paid and
    one is paid in part.

    Args:
        every: event time from one order to the next.
        first: the number of the first order.
    """
    random = Random(seed)  # noqa: S311 (no secret)
    pending: list[tuple[datetime, int, Order | Payment]] = []
    places = count()

    def report(event: Order | Payment) -> None:
        reported = event.at + timedelta(seconds=random.uniform(0, 5))
        heapq.heappush(pending, (reported, next(places), event))

    for number in count(first):
        placed = begin + (number - first) * every
        while pending and pending[0][0] <= placed:
            yield heapq.heappop(pending)[2]
        order = Order(
            number, f"customer {random.randrange(50)}", random.randrange(1_00, 99_00), placed
        )
        report(order)
        fate = random.randrange(20)
        if fate:
            cents = order.cents if fate > 1 else order.cents // 2
            at = placed + timedelta(minutes=random.uniform(0.1, 12))
            report(Payment(number, f"terminal-{random.randrange(8)}", cents, at))


def main() -> None:
    """Append about forty orders a second, and their payments, until Ctrl-C."""
    every = timedelta(seconds=0.025)
    (INPUT / "payments").mkdir(parents=True, exist_ok=True)
    print(f"appending to {INPUT}; press Ctrl-C to stop", flush=True)
    try:
        for event in trade(datetime.now(UTC), every, first=time.time_ns() // 1_000_000):
            name = "orders" if isinstance(event, Order) else f"payments/{event.terminal}"
            with (INPUT / f"{name}.jsonl").open("ab") as file:
                file.write(msgspec.json.encode(event) + b"\n")
            if isinstance(event, Order):
                time.sleep(every.total_seconds())
    except KeyboardInterrupt:
        print("stopped")


pipeline = build()

if __name__ == "__main__":
    main()
