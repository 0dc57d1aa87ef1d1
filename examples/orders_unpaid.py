"""Orders that are not paid within ten minutes of event time, found by a timer for each
order.

    echo '{"at": "2024-01-01T00:00:00Z", "order": 1, "cents": 300}' > steps.jsonl
    echo '{"at": "2024-01-01T00:01:00Z", "order": 2, "cents": 500}' >> steps.jsonl
    echo '{"at": "2024-01-01T00:05:00Z", "order": 1, "cents": -300}' >> steps.jsonl
    millwheel run examples.orders_unpaid:pipeline --store .millwheel
    millwheel sql 'TABLE unpaid' --store .millwheel --pipeline orders_unpaid
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream, Table, Timer

PAY_WITHIN = timedelta(minutes=10)


class Step(Struct):
    """An order, or a payment for it, whose cents are negative."""

    at: datetime
    order: int
    cents: int


class Account(Struct):
    """An order: the state, and a row of the table."""

    order: int = 0
    missing: int = 0
    due: datetime | None = None


STEPS, UNPAID = Stream("steps", Step), Stream("unpaid", Account)


class AwaitPayment(Computation[Step, Account]):
    writes = (UNPAID,)

    async def process_record(self, record: Record[Step], ctx: Context[Account]) -> None:
        step, account = record.value, ctx.state
        if step.cents > 0:
            account.order, account.due = step.order, step.at + PAY_WITHIN
            ctx.set_timer(account.due)  # it fires when event time has passed it
        if account.due is not None and step.at <= account.due:
            account.missing += step.cents

    async def process_timer(self, timer: Timer, ctx: Context[Account]) -> None:
        if ctx.state.missing > 0:
            ctx.produce(UNPAID, Account(ctx.state.order, ctx.state.missing, ctx.state.due))


pipeline = Pipeline("orders_unpaid")
pipeline.inject(STEPS, JsonLines("steps.jsonl"), timestamp=lambda step: step.at)
pipeline.add(AwaitPayment(), STEPS.by(lambda step: step.order))
pipeline.sink(UNPAID, Table("unpaid", Account, key=("order",)))
