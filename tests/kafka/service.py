"""Workers on a real Kafka under faults: ``python -m tests.kafka.service [--kills 100] [--zombies 20] …``.

Two ``millwheel worker`` processes read a topic, and write totals into a table and into another topic. This process
writes single records, committed and aborted transactions to the topic, adds partitions, kills and freezes workers, and
kills and freezes the broker. In the end the table must equal the sums of the committed records, and a reader of committed records
must find each total of each customer once, in order.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic

from examples.kafka_broker import KafkaBroker
from millwheel import Pipeline, Settings, Table
from millwheel.kafka import Kafka, KafkaCluster, KafkaSink
from tests.support.orders import ORDERS, TOTALS, AddUp, Order, Total
from tests.support.worker_processes import LEASE_SECONDS, Workers

NAME = "kafka_shop"
PIPELINE = "tests.kafka.service:pipeline"
TOPIC = "orders"
OUTPUT = "totals"
PLACEMENT = (
    "SELECT at::text, computation, slot_from, slot_to, what, from_worker::text, to_worker::text "
    "FROM SCHEMA.placement_events ORDER BY at"
)
"""What became of the key intervals, to be shown with differences."""
OUTPUT_PARTITIONS = 3
WAIT_SECONDS = 90.0
"""Longest wait for totals in the topic: longer than a sink waits for a hung transaction."""
PARTITIONS = 2
MOST_PARTITIONS = 5
CUSTOMERS = 200


def pipeline() -> Pipeline:
    """The pipeline, over the cluster in the environment."""
    settings = Settings(lease_seconds=LEASE_SECONDS, placement_seconds=0.5)
    made = Pipeline(NAME, settings=settings)
    cluster = KafkaCluster(os.environ["KAFKA"])
    made.inject(ORDERS, Kafka(cluster, TOPIC, group="millwheel-test"))
    made.add(AddUp(), ORDERS.by(lambda order: order.customer))
    made.sink(TOTALS, Table("totals", Total, key=("customer",)))
    made.sink(TOTALS, KafkaSink(cluster, OUTPUT, key=lambda total: total.customer))
    return made


class Writer:
    """Writes orders to the topic, and keeps their sums."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        self._bootstrap = bootstrap
        self._random = random.Random(seed)
        self._number = 0
        self.partitions = PARTITIONS
        self.expected: dict[int, Total] = {}
        self._home: dict[int, int] = {}
        """The partition of each customer, so that the orders of a customer are in order."""
        self.turn = asyncio.Lock()
        """Held during a write, and while the broker is away: the result of each write is known."""

    async def begin(self) -> None:
        self._admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await self._admin.start()
        await self._admin.create_topics(
            [NewTopic(TOPIC, PARTITIONS, 1), NewTopic(OUTPUT, OUTPUT_PARTITIONS, 1)]
        )
        self._plain = AIOKafkaProducer(bootstrap_servers=self._bootstrap, enable_idempotence=True)
        self._atomic = AIOKafkaProducer(bootstrap_servers=self._bootstrap, transactional_id="shop")
        await self._plain.start()
        await self._atomic.start()

    async def end(self) -> None:
        await self._plain.stop()
        await self._atomic.stop()
        await self._admin.close()

    async def write(self) -> None:
        """Write some orders: alone, in a transaction, or in one that is aborted."""
        async with self.turn:
            await self._write()

    async def _write(self) -> None:
        kind = self._random.choice(("plain", "plain", "committed", "aborted"))
        if kind == "plain":
            await self._send(self._plain, counts=True)
            return
        await self._atomic.begin_transaction()
        await self._send(self._atomic, counts=kind == "committed")
        if kind == "committed":
            await self._atomic.commit_transaction()
        else:
            await self._atomic.abort_transaction()

    async def grow(self) -> None:
        """Add a partition."""
        if self.partitions < MOST_PARTITIONS:
            self.partitions += 1
            await self._admin.create_partitions({TOPIC: NewPartitions(self.partitions)})

    async def _send(self, producer: AIOKafkaProducer, *, counts: bool) -> None:
        sent = []
        for _ in range(self._random.randint(1, 60)):
            customer = self._random.randrange(CUSTOMERS)
            home = self._home.setdefault(customer, self._random.randrange(self.partitions))
            order = Order(self._number, customer, self._random.randrange(1000))
            self._number += 1
            sent.append(await producer.send(TOPIC, msgspec.json.encode(order), partition=home))
            if counts:
                before = self.expected.get(customer, Total(customer))
                self.expected[customer] = before.after(order)
        await asyncio.gather(*sent)


def totals(workers: Workers) -> dict[int, Total]:
    """The table; empty before there is one."""
    rows = workers.query("SELECT customer, orders, amount, newest, is_sorted FROM SCHEMA.totals")
    return {row[0]: Total(*row) for row in rows}


class Output:
    """What a reader of committed records finds in the output topic."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.newest: dict[int, Total] = {}
        self.wrong: list[str] = []
        """Totals that are missing, come twice, or out of order."""

    async def read(self, until: int) -> None:
        """Read until there are so many totals, or none for some seconds."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        places = [TopicPartition(OUTPUT, number) for number in range(OUTPUT_PARTITIONS)]
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        found = 0
        waited = time.monotonic()
        while found < until or time.monotonic() - waited < 2.0:
            for records in (await consumer.getmany(*places, timeout_ms=200)).values():
                for record in records:
                    found += 1
                    waited = time.monotonic()
                    written = time.strftime("%H:%M:%S", time.gmtime(record.timestamp / 1000))
                    self._see(msgspec.json.decode(record.value, type=Total), written)
            if time.monotonic() - waited > WAIT_SECONDS:
                break
        await consumer.stop()

    def _see(self, total: Total, written: str) -> None:
        before = self.newest.get(total.customer, Total(total.customer))
        if total.orders != before.orders + 1:
            self.wrong.append(f"in the topic, written at {written}, {total} after {before}")
        self.newest[total.customer] = total


async def run(
    broker: KafkaBroker, directory: Path, *, kills: int, zombies: int, brokers: int, frozen: int, seed: int,
    say: Callable[[str], None]
) -> list[str]:  # fmt: skip
    """Run the service with its faults; returns the differences."""
    choice = random.Random(seed)
    writer = Writer(broker.bootstrap, seed)
    await writer.begin()
    workers = await asyncio.to_thread(
        Workers, directory, NAME, PIPELINE, {"KAFKA": broker.bootstrap}
    )
    try:
        workers.start()
        workers.start()
        stop = asyncio.Event()

        async def write() -> None:
            while not stop.is_set():
                await writer.write()
                await asyncio.sleep(choice.uniform(0, 0.05))

        writing = asyncio.create_task(write())
        faults = (
            ["kill"] * kills + ["zombie"] * zombies + ["broker"] * brokers + ["frozen"] * frozen
        )
        choice.shuffle(faults)
        for number, fault in enumerate(faults, 1):
            await asyncio.sleep(choice.uniform(0.5, 3.0))
            if number % max(2, len(faults) // 3) == 0:
                await writer.grow()
            if fault == "broker":
                async with writer.turn:
                    await asyncio.to_thread(broker.signal, signal.SIGKILL)
                    await asyncio.sleep(choice.uniform(0, 5))
                    await asyncio.to_thread(broker.start)
            elif fault == "frozen":
                async with writer.turn:
                    await asyncio.to_thread(broker.signal, signal.SIGSTOP)
                    await asyncio.sleep(choice.uniform(5, 12))
                    await asyncio.to_thread(broker.signal, signal.SIGCONT)
            elif fault == "zombie":
                await workers.freeze(choice)
            else:
                workers.replace(choice)
            say(f"{number} of {len(faults)} faults; {len(writer.expected)} customers")
        stop.set()
        await writing
        deadline = time.monotonic() + 120
        found = await asyncio.to_thread(totals, workers)
        while found != writer.expected and workers.alive and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            found = await asyncio.to_thread(totals, workers)
        wrong = [
            f"{found.get(customer)} in place of {total}"
            for customer, total in writer.expected.items()
            if found.get(customer) != total
        ]
        orders = sum(total.orders for total in writer.expected.values())
        output = Output(broker.bootstrap)
        await output.read(orders)
        wrong += output.wrong[:10]
        wrong += [
            f"in the topic, {output.newest.get(customer)} in place of {total}"
            for customer, total in writer.expected.items()
            if output.newest.get(customer) != total
        ]
        if wrong or workers.errors:
            wrong += [str(row) for row in workers.query("SELECT * FROM SCHEMA.sinks")]
            wrong += [str(event) for event in workers.query(PLACEMENT)]
            wrong.append(workers.tail())
        say(f"{orders} orders in {writer.partitions} partitions: {len(wrong)} differences")
        return [*workers.errors, *wrong]
    finally:
        await asyncio.to_thread(workers.end)
        await writer.end()


def main() -> int:
    """Run with a broker of its own."""
    parser = argparse.ArgumentParser(description="A service on a real Kafka under faults.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--zombies", type=int, default=20)
    parser.add_argument("--brokers", type=int, default=10, help="kills of the broker")
    parser.add_argument("--frozen", type=int, default=5, help="times that the broker is frozen")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="millwheel-kafka-"))
    directory.chmod(0o755)
    broker = KafkaBroker(directory / "kafka")
    broker.start()
    try:
        wrong = asyncio.run(
            run(
                broker,
                directory,
                kills=given.kills,
                zombies=given.zombies,
                brokers=given.brokers,
                frozen=given.frozen,
                seed=given.seed,
                say=print,
            )
        )
    finally:
        broker.remove()
        shutil.rmtree(directory, ignore_errors=True)
    print("\n".join(wrong) or "all as arithmetic says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
