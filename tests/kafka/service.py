"""Workers on a real Kafka under faults: ``python -m tests.kafka.service [--kill 100] [--zombie 20]
…``.

Two ``millwheel worker`` processes read a topic, and write totals into a table and into another
topic. This process writes single records, committed and aborted transactions to the topic, adds
partitions, and lets faults happen (`tests.kafka.faults`). In the end the table must equal the sums
of the committed records, and a reader of committed records must find each total of each customer
once, and in order unless intervals were split, merged or moved.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic

from examples.kafka_broker import KafkaBroker
from millwheel import Pipeline, Settings, Table
from millwheel.kafka import Kafka, KafkaCluster, KafkaSink
from tests.kafka.faults import KINDS, Faults
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
CLAIMS = (
    "SELECT count(*) FROM SCHEMA.placement_events WHERE computation = 'totals_to_kafka' "
    "AND what = 'claim'"
)
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

    async def begin(self, copies: int) -> None:
        """Make the topics, with so many copies of each partition."""
        self._admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await self._admin.start()
        await self._admin.create_topics(
            [NewTopic(TOPIC, PARTITIONS, copies), NewTopic(OUTPUT, OUTPUT_PARTITIONS, copies)]
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
        """Add a partition, and wait until the producers know it: they refuse one that they do not
        know."""
        if self.partitions == MOST_PARTITIONS:
            return
        number = self.partitions + 1
        await self._admin.create_partitions({TOPIC: NewPartitions(number)})
        for producer in (self._plain, self._atomic):
            while len(await producer.partitions_for(TOPIC)) < number:
                await producer.client.force_metadata_update()
                await asyncio.sleep(0.1)
        self.partitions = number

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
        self._seen: dict[int, set[int]] = {}
        """The numbers of the totals of each customer."""
        self._newest: dict[int, int] = {}
        self.twice: list[str] = []
        self.out_of_order: list[str] = []
        self.not_readable: list[str] = []
        """Partitions with records that an open transaction keeps from readers."""

    async def read(self, until: int) -> None:
        """Read until there are so many totals and no more come, or none for a long time."""
        consumer = self._consumer("read_committed")
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
                    self._see(msgspec.json.decode(record.value, type=Total))
            if time.monotonic() - waited > WAIT_SECONDS:
                break
        await self._look_for_open_transactions(consumer, places)
        await consumer.stop()

    async def _look_for_open_transactions(
        self, committed: AIOKafkaConsumer, places: list[TopicPartition]
    ) -> None:
        everything = self._consumer("read_uncommitted")
        await everything.start()
        stable, ends = await committed.end_offsets(places), await everything.end_offsets(places)
        await everything.stop()
        self.not_readable = [
            f"in the topic, partition {place.partition} has {ends[place]} records, and is readable "
            f"up to {stable[place]}"
            for place in places
            if stable[place] < ends[place]
        ]

    def _consumer(self, isolation: str) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            isolation_level=isolation,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )

    def _see(self, total: Total) -> None:
        seen = self._seen.setdefault(total.customer, set())
        newest = self._newest.get(total.customer, 0)
        what = f"in the topic, {total} after the customer's order {newest}"
        if total.orders in seen:
            self.twice.append(what)
        elif total.orders < newest:
            self.out_of_order.append(what)
        seen.add(total.orders)
        self._newest[total.customer] = max(newest, total.orders)

    def missing(self, expected: Mapping[int, Total]) -> list[str]:
        """Totals that are not there."""
        return [
            f"in the topic, of customer {customer} {len(lost)} of {total.orders} are missing, from "
            f"{min(lost)} on"
            for customer, total in expected.items()
            if (lost := set(range(1, total.orders + 1)) - self._seen.get(customer, set()))
        ]


async def begun(bootstrap: str) -> int:
    """How many writers the transactional ids of the sink have had: each raises the epoch of its
    id."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    groups = [name for name, *_ in await admin.list_consumer_groups()]
    await admin.close()
    total = 0
    for name in groups:
        if f".{OUTPUT}." in name:
            writer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
            await writer.start()
            total += writer._txn_manager.producer_epoch
            await writer.stop()
    return total


async def run(
    broker: KafkaBroker, directory: Path, faults: Mapping[str, int], *, seed: int,
    frozen_seconds: tuple[float, float] = (5.0, 30.0), say: Callable[[str], None],
) -> list[str]:  # fmt: skip
    """Run the service with its faults; returns the differences.

    Args:
        faults: how many of each kind.
    """
    choice = random.Random(seed)
    writer = Writer(broker.bootstrap, seed)
    await writer.begin(copies=min(3, len(broker.nodes)))
    workers = await asyncio.to_thread(
        Workers, directory, NAME, PIPELINE, {"KAFKA": broker.bootstrap}
    )
    happen = Faults(workers, broker, writer.turn, choice, frozen_seconds)
    try:
        workers.start()
        workers.start()
        stop = asyncio.Event()

        async def write() -> None:
            while not stop.is_set():
                await writer.write()
                await asyncio.sleep(choice.uniform(0, 0.1))

        writing = asyncio.create_task(write())
        kinds = [kind for kind, times in faults.items() for _ in range(times)]
        choice.shuffle(kinds)
        for number, kind in enumerate(kinds, 1):
            await asyncio.sleep(choice.uniform(0.5, 3.0))
            if number % max(2, len(kinds) // 3) == 0:
                await writer.grow()
            await happen(kind)
            say(f"{number} of {len(kinds)} faults; {len(writer.expected)} customers")
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
        wrong += output.twice[:10] + output.out_of_order[:10]
        wrong += output.missing(writer.expected)[:10] + output.not_readable
        if happen.cuts:
            say(f"{Counter(happen.cuts)} were carried out")
        if workers.errors:
            wrong += workers.last_words()[-20:]
        if wrong:
            wrong += [str(row) for row in workers.query("SELECT s::text FROM SCHEMA.sinks AS s")]
            wrong += [str(event) for event in workers.query(PLACEMENT)]
            wrong.append(workers.tail())
        workers.stop()  # nobody begins a writer from here on
        ((claims,),) = workers.query(CLAIMS)
        say(f"{await begun(broker.bootstrap)} writers were begun in {claims} claims of the sink")
        say(f"{orders} orders in {writer.partitions} partitions: {len(wrong)} differences")
        return [*workers.errors, *wrong]
    finally:
        await asyncio.to_thread(workers.end)
        await writer.end()


def main() -> int:
    """Run with brokers of its own."""
    parser = argparse.ArgumentParser(description="A service on a real Kafka under faults.")
    for kind, what in KINDS.items():
        parser.add_argument(f"--{kind}", type=int, default=0, metavar="TIMES", help=what)
    parser.add_argument("--nodes", type=int, default=1, help="brokers")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="millwheel-kafka-"))
    directory.chmod(0o755)
    broker = KafkaBroker(directory / "kafka", given.nodes)
    broker.start()
    faults = {kind: getattr(given, kind) for kind in KINDS}
    try:
        wrong = asyncio.run(run(broker, directory, faults, seed=given.seed, say=print))
    finally:
        broker.remove()
        shutil.rmtree(directory, ignore_errors=True)
    print("\n".join(wrong) or "all as arithmetic says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
