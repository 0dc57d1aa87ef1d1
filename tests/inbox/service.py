"""Writers that send records in transactions of their own, and workers under faults.

``python -m tests.inbox.service [--kills 20] [--zombies 4]``

Eight writers send orders in short and long transactions, roll some of them back, release and roll
back savepoints, and repeat ids. Workers are killed and frozen. In the end the table must equal the
sums of the committed orders, and the windows by time of sending must have all of them: none was
late.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from millwheel import Inbox, Pipeline, Settings, Stream, Table
from millwheel.client import Client
from millwheel.computations import Windowed
from millwheel.computations.folds import count
from millwheel.windows import Pane, Tumbling
from tests.support.orders import ORDERS, TOTALS, AddUp, Order, Total
from tests.support.worker_processes import LEASE_SECONDS, Workers

NAME = "inbox_shop"
PIPELINE = "tests.inbox.service:pipeline"
WRITERS = 8
CUSTOMERS = 200
LONG_SECONDS = 3.0
"""The longest transaction of a writer."""

SECONDS = Stream("seconds", Pane[int])


def pipeline() -> Pipeline:
    """The pipeline: totals of customers, and a count of orders for each second of sending."""
    made = Pipeline(NAME, settings=Settings(lease_seconds=LEASE_SECONDS, placement_seconds=0.5))
    made.inject(ORDERS, Inbox())
    made.add(AddUp(), ORDERS.by(lambda order: order.customer))
    made.sink(TOTALS, Table("totals", Total, key=("customer",)))
    made.add(Windowed(Tumbling(seconds=1), count, to=SECONDS), ORDERS.by(lambda _: "all"))
    made.sink(SECONDS, Table("seconds", Pane[int]))
    return made


class Writer:
    """Sends the orders of some customers, and keeps their sums."""

    def __init__(self, url: str, number: int, seed: int) -> None:
        self._client = Client(NAME, url)
        self._url = url
        self._place = number
        self._random = random.Random(f"{seed}/{number}")
        self._number = 0
        self._ids: list[tuple[str, Order]] = []
        self.expected: dict[int, Total] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Write until told to stop."""
        async with await psycopg.AsyncConnection.connect(self._url) as connection:
            while not stop.is_set():
                await self._write(connection)
                await asyncio.sleep(self._random.uniform(0, 0.1))

    async def _write(self, connection: psycopg.AsyncConnection) -> None:
        """One transaction, with a savepoint for each of its parts."""
        await connection.execute("SELECT")  # begins it
        choice = self._random
        long, fails = choice.random() < 0.1, choice.random() < 0.25
        sent: list[Order] = []
        new_ids: list[tuple[str, Order]] = []
        for _ in range(choice.randint(1, 4)):
            orders = [self._order() for _ in range(choice.randint(1, 20))]
            rolled_back = choice.random() < 0.1
            async with connection.transaction(force_rollback=rolled_back):
                await self._send(connection, orders, new_ids)
            if not rolled_back:
                sent += orders
            if long:
                await asyncio.sleep(choice.uniform(0, LONG_SECONDS / 4))
        if fails:
            await connection.rollback()
            return
        await connection.commit()
        kept = {order.number for order in sent}
        self._ids += [(id_, order) for id_, order in new_ids if order.number in kept]
        for order in sent:
            before = self.expected.get(order.customer, Total(order.customer))
            self.expected[order.customer] = before.after(order)

    async def _send(
        self,
        connection: psycopg.AsyncConnection,
        orders: list[Order],
        new_ids: list[tuple[str, Order]],
    ) -> None:
        choice = self._random
        if choice.random() < 0.5:
            new = await self._client.send_all(ORDERS, orders, connection=connection)
            assert all(new)
            return
        ids = [f"{self._place}-{order.number}" for order in orders]
        repeated = choice.choices(self._ids, k=2) if self._ids else []
        new = await self._client.send_all(
            ORDERS,
            [*orders, *(order for _, order in repeated)],
            ids=[*ids, *(id_ for id_, _ in repeated)],
            connection=connection,
        )
        assert new == [True] * len(orders) + [False] * len(repeated)
        new_ids += zip(ids, orders, strict=True)

    def _order(self) -> Order:
        self._number += 1
        customer = self._random.randrange(CUSTOMERS // WRITERS) * WRITERS + self._place
        return Order(self._number, customer, self._random.randrange(1000))


def totals(workers: Workers) -> dict[int, Total]:
    """The table; empty before there is one."""
    rows = workers.query("SELECT customer, orders, amount, newest, is_sorted FROM SCHEMA.totals")
    return {row[0]: Total(*row) for row in rows}


async def run(
    directory: Path, *, kills: int, zombies: int, seed: int, say: Callable[[str], None]
) -> list[str]:
    """Run the service with its faults; returns the differences."""
    choice = random.Random(seed)
    workers = await asyncio.to_thread(Workers, directory, NAME, PIPELINE)
    try:
        workers.start()
        workers.start()
        while not workers.query("SELECT FROM SCHEMA.inbox"):  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.1)
        stop = asyncio.Event()
        writers = [Writer(workers.url, number, seed) for number in range(WRITERS)]
        writing = [asyncio.create_task(writer.run(stop)) for writer in writers]
        faults = ["kill"] * kills + ["zombie"] * zombies
        choice.shuffle(faults)
        for number, fault in enumerate(faults, 1):
            await asyncio.sleep(choice.uniform(0.5, 3.0))
            if fault == "zombie":
                await workers.freeze(choice)
            else:
                workers.replace(choice)
            say(f"{number} of {len(faults)} faults")
        stop.set()
        await asyncio.gather(*writing)
        expected = {k: total for writer in writers for k, total in writer.expected.items()}
        orders = sum(total.orders for total in expected.values())
        deadline = time.monotonic() + 60
        found: dict[int, Total] = {}
        counted = 0
        while workers.alive and time.monotonic() < deadline:
            found = await asyncio.to_thread(totals, workers)
            rows = await asyncio.to_thread(
                workers.query, "SELECT sum(value::text::int) FROM SCHEMA.seconds"
            )
            counted = int(rows[0][0] or 0) if rows else 0
            if (found, counted) == (expected, orders):
                break
            await asyncio.sleep(0.2)
        wrong = [
            f"{found.get(customer)} in place of {total}"
            for customer, total in expected.items()
            if found.get(customer) != total
        ]
        if counted != orders:
            wrong.append(f"{counted} orders in windows, of {orders}")
        if wrong or workers.errors:
            wrong.append(workers.tail())
        say(f"{orders} orders: {len(wrong)} differences")
        return [*workers.errors, *wrong]
    finally:
        await asyncio.to_thread(workers.end)


def main() -> int:
    """Run it, with a store of its own."""
    parser = argparse.ArgumentParser(description="Senders and workers under faults.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--zombies", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="millwheel-inbox-"))
    directory.chmod(0o755)
    try:
        wrong = asyncio.run(
            run(directory, kills=given.kills, zombies=given.zombies, seed=given.seed, say=print)
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print("\n".join(wrong) or "all as arithmetic says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
