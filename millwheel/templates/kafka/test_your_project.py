"""The pipeline in memory, under a clock that stands still: no broker, no server, no sleeping."""

from __future__ import annotations

import asyncio

from millwheel.testing import Harness, assert_exactly_once, inject

from your_project import ORDERS, TOTALS, Order, Total, pipeline


def test_orders_add_up_by_customer() -> None:
    async def run() -> None:
        async with Harness(pipeline) as harness:
            await harness.inject(ORDERS, Order(1, "ann", 300), Order(2, "bob", 50))
            await harness.inject(ORDERS, Order(3, "ann", 90))
            assert harness.produced(TOTALS) == [
                Total("ann", 1, 300),
                Total("bob", 1, 50),
                Total("ann", 2, 390),
            ]

    asyncio.run(run())


def test_each_order_counts_once_whichever_commit_crashes() -> None:
    inputs = [inject(ORDERS, Order(number, "ann", 100)) for number in range(3)]
    expected = {TOTALS: [Total("ann", number, 100 * number) for number in (1, 2, 3)]}
    asyncio.run(assert_exactly_once(pipeline, inputs, expected))
