"""A FastAPI app beside a pipeline: it sends orders, each once, and reads the totals of
customers.

    export MILLWHEEL_STORE=postgresql://shop@db/shop
    millwheel migrate examples.with_fastapi:pipeline
    millwheel worker examples.with_fastapi:pipeline
    python -m uvicorn examples.with_fastapi:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psycopg
from fastapi import FastAPI

from millwheel import Inbox, Pipeline, Stream, Table
from millwheel.client import Client


@dataclass
class Order:
    number: int
    customer: str
    cents: int


ORDERS = Stream("orders", Order)
pipeline = Pipeline("with_fastapi")
pipeline.inject(ORDERS, Inbox(require_id=True))
totals = pipeline.sql("""INSERT INTO totals SELECT customer, CAST(sum(cents) AS bigint) AS cents
    FROM orders GROUP BY customer RETAIN UNBOUNDED""")
pipeline.sink(totals, Table("totals", totals.value_type, key=("customer",)))
client = Client(pipeline.name)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with client:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def take(order: Order) -> dict[str, bool]:
    return {"is_new": await client.send(ORDERS, order, id=f"order-{order.number}")}


@app.get("/totals/{customer}")
def total(customer: str) -> dict[str, int]:
    with psycopg.connect(os.environ["MILLWHEEL_STORE"]) as connection:
        statement = "SELECT cents FROM with_fastapi.totals WHERE customer = %s"
        row = connection.execute(statement, [customer]).fetchone()
    return {"cents": row[0] if row else 0}
