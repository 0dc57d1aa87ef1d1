"""The shop's own program: each order with its row and its record in one transaction.

python shop.py "$(millwheel url --store store)"
"""

from __future__ import annotations

import asyncio
import sys

import psycopg
from millwheel.client import Client

from your_project import ORDERS, PAY_WITHIN, PAYMENTS, Order, Payment

TABLE = """
CREATE TABLE IF NOT EXISTS public.orders (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL, cents bigint NOT NULL, state text NOT NULL DEFAULT 'open'
)
"""
INSERT = "INSERT INTO public.orders (customer, cents) VALUES (%s, %s) RETURNING number"

CUSTOMERS = ("ann", "bob", "cem", "dot", "eve")


async def trade(url: str, number: int = 10) -> None:
    """Take orders, and pay all but those of eve."""
    async with (
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
        Client("your_project", url) as client,
    ):
        await connection.execute(TABLE)
        orders = []
        for n in range(number):
            customer, cents = CUSTOMERS[n % len(CUSTOMERS)], 100 * (n + 1)
            async with connection.transaction():  # the row and the record: both, or neither
                row = await (await connection.execute(INSERT, [customer, cents])).fetchone()
                assert row is not None
                order = Order(row[0], customer, cents)
                await client.send(ORDERS, order, id=f"order-{row[0]}", connection=connection)
            orders.append(order)
        paid = [order for order in orders if order.customer != "eve"]
        for order in paid:  # a repeat with the same id has no second effect
            payment = Payment(order.number, order.cents)
            await client.send(PAYMENTS, payment, id=f"payment-{order.number}")
    unpaid = [order.number for order in orders if order not in paid]
    print(f"orders {orders[0].number} to {orders[-1].number}; not paid: {unpaid}")
    print(f"the pipeline reports them in {PAY_WITHIN.total_seconds():.0f} seconds")


if __name__ == "__main__":
    asyncio.run(trade(sys.argv[1]))
