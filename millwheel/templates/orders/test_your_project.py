"""The pipeline in memory, under a clock that stands still: no server, no sleeping."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from millwheel.testing import Harness, advance, assert_exactly_once, inject

from your_project import (
    MARK_PAID,
    MARK_UNPAID,
    ORDERS,
    PAY_WITHIN,
    PAYMENTS,
    UNPAID,
    Order,
    Payment,
    Unpaid,
    pipeline,
)

START = datetime(2024, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def test_an_order_that_is_paid_in_time_is_marked_and_not_reported() -> None:
    async def run() -> None:
        async with Harness(pipeline, start=START) as harness:
            await harness.inject(ORDERS, Order(1, "ann", 300))
            await harness.inject(PAYMENTS, Payment(1, 100), Payment(1, 200))
            await harness.advance(ORDERS, START + PAY_WITHIN + SECOND)
            await harness.advance(PAYMENTS, START + PAY_WITHIN + SECOND)
            assert harness.statements() == [(MARK_PAID, (1,))]
            assert harness.produced(UNPAID) == []

    asyncio.run(run())


def test_an_order_that_is_not_paid_is_marked_and_reported_in_one_commit() -> None:
    async def run() -> None:
        async with Harness(pipeline, start=START) as harness:
            await harness.inject(ORDERS, Order(2, "eve", 300))
            await harness.inject(PAYMENTS, Payment(2, 100))
            await harness.advance(ORDERS, START + PAY_WITHIN + SECOND)
            await harness.advance(PAYMENTS, START + PAY_WITHIN + SECOND)
            assert harness.statements() == [(MARK_UNPAID, (2,))]
            assert harness.rows("unpaid") == [(2, "eve", 200)]

    asyncio.run(run())


def test_an_order_is_reported_once_whichever_commit_crashes() -> None:
    checked = assert_exactly_once(
        pipeline,
        inputs=[
            inject(ORDERS, Order(1, "ann", 300), at=START),
            inject(PAYMENTS, Payment(1, 300), at=START + SECOND),
            inject(ORDERS, Order(2, "eve", 500), at=START + 2 * SECOND),
            advance(ORDERS, START + 2 * PAY_WITHIN),
            advance(PAYMENTS, START + 2 * PAY_WITHIN),
        ],
        expected={UNPAID: [Unpaid(2, "eve", 500)]},
    )
    asyncio.run(checked)
