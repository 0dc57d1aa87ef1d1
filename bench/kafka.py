"""A Kafka topic as source and as sink, beside the bare client on the same topic: rate and CPU of
this process.

The broker is one that runs already (``--kafka HOST:PORT``), or one started for this part from
Maven's jars.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bench.workload import PAYMENTS, Payment, payments
from examples.kafka_broker import KafkaBroker
from millwheel import Discard, Pipeline
from millwheel.bundles import BundleId
from millwheel.core.model import Record
from millwheel.kafka import Kafka, KafkaCluster, KafkaSink
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.store.memory import MemoryStore

BUNDLE = 2_000

START = "start"
"""In place of an address: start a broker."""


class Rate:
    """Records a second, and CPU microseconds a record, of a block of code."""

    def __init__(self, records: int) -> None:
        self._records = records

    def __enter__(self) -> Rate:
        self._began, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.per_second = self._records / (time.perf_counter() - self._began)
        self.cpu_us = (time.process_time() - self._cpu) / self._records * 1e6

    def figures(self) -> dict[str, float]:
        return {"per_second": self.per_second, "cpu_us": self.cpu_us}


class Bundle:
    """The context of a bundle, without an engine."""

    def __init__(self, number: int) -> None:
        self.bundle_id = BundleId(1, number, number - 1)
        self.now = datetime.now(UTC)

    async def is_owner(self) -> bool:
        return True

    async def store_id(self) -> str:
        return "bench"


@asynccontextmanager
async def brokers(given: str | None, directory: Path) -> AsyncIterator[str]:
    """The address of the brokers; one is started, unless an address is given."""
    if given not in (None, START):
        yield given
        return
    broker = KafkaBroker(directory / "kafka")
    try:
        yield await asyncio.to_thread(broker.start)
    finally:
        await asyncio.to_thread(broker.remove)


async def make(address: str, name: str) -> str:
    """Make a topic with one partition."""
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    topic = f"{name}-{time.time_ns()}"
    await admin.create_topics([NewTopic(topic, 1, 1)])
    await admin.close()
    return topic


async def fill(address: str, topic: str, messages: Iterable[tuple[bytes | None, bytes]]) -> None:
    """Write messages with their keys."""
    producer = AIOKafkaProducer(bootstrap_servers=address, max_batch_size=900_000)
    await producer.start()
    batch = producer.create_batch()
    for key, body in messages:
        if batch.append(key=key, value=body, timestamp=None) is None:
            await producer.send_batch(batch, topic, partition=0)
            batch = producer.create_batch()
            batch.append(key=key, value=body, timestamp=None)
    await producer.send_batch(batch, topic, partition=0)
    await producer.flush()
    await producer.stop()


@asynccontextmanager
async def committed(kafka: str, topic: str) -> AsyncIterator[Callable[[], Awaitable[list[bytes]]]]:
    """A function that waits for committed records of a topic, and returns their values."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka, isolation_level="read_committed", auto_offset_reset="earliest",
        enable_auto_commit=False,
    )  # fmt: skip
    await consumer.start()
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    await consumer.seek_to_beginning(place)

    async def some() -> list[bytes]:
        first = await consumer.getone(place)
        more = await consumer.getmany(place, timeout_ms=0, max_records=1000)
        return [record.value for record in (first, *more.get(place, ()))]

    try:
        yield some
    finally:
        await consumer.stop()


async def read_bare(address: str, topic: str, records: int) -> dict[str, float]:
    """Read and decode all records with the client alone."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address, auto_offset_reset="none", enable_auto_commit=False,
        isolation_level="read_committed",
    )  # fmt: skip
    await consumer.start()
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek(place, 0)
    decode = msgspec.json.Decoder(Payment).decode
    found = 0
    with Rate(records) as rate:
        while found < records:
            some = await consumer.getmany(place, timeout_ms=1000, max_records=1000)
            found += len([decode(record.value) for record in some.get(place, ())])
    await consumer.stop()
    return rate.figures()


async def read(address: str, topic: str, records: int) -> dict[str, float]:
    """Read all records with the injector alone: a store in memory, and no computation."""
    pipeline = Pipeline("bench_kafka")
    pipeline.inject(PAYMENTS, Kafka(KafkaCluster(address), topic))
    pipeline.sink(PAYMENTS, Discard())
    engine = Engine(pipeline, MemoryStore("bench_kafka"), options=Options(keep_open=True))
    with Rate(records) as rate:
        await engine.start()
        while sum(injector.rows for injector in engine.injectors) < records:
            await asyncio.sleep(0.005)
    await engine.stop()
    return rate.figures()


async def write_bare(address: str, topic: str, bodies: Sequence[bytes]) -> dict[str, float]:
    """Write all records in transactions of as many, with the client alone and without positions."""
    producer = AIOKafkaProducer(
        bootstrap_servers=address, transactional_id=f"bare-{topic}", max_batch_size=900_000
    )
    await producer.start()
    with Rate(len(bodies)) as rate:
        for first in range(0, len(bodies), BUNDLE):
            async with producer.transaction():
                batch = producer.create_batch()
                for body in bodies[first : first + BUNDLE]:
                    batch.append(key=None, value=body, timestamp=None)
                await (await producer.send_batch(batch, topic, partition=0))
    await producer.stop()
    return rate.figures()


async def write(address: str, topic: str, values: Sequence[Payment]) -> dict[str, float]:
    """Write all records with the sink: positions, and read back."""
    sink = KafkaSink(KafkaCluster(address), topic)
    records = [Record("", value, 0, PAYMENTS.name) for value in values]
    warm: Any = Bundle(1)
    await sink.deliver(records[:1], warm)
    with Rate(len(records)) as rate:
        for number, first in enumerate(range(0, len(records), BUNDLE), 2):
            bundle: Any = Bundle(number)
            await sink.deliver(records[first : first + BUNDLE], bundle)
    await sink.close()
    return rate.figures()


async def measure(
    directory: Path, address: str | None, *, records: int, rounds: int
) -> dict[str, Any]:
    """Measure in turns: read with the client alone and with the injector; write the same ways."""
    values = list(payments(records))
    bodies = [msgspec.json.encode(value) for value in values]
    found: dict[str, list[dict[str, float]]] = {
        "read bare": [], "read": [], "write bare": [], "write": [],
    }  # fmt: skip
    async with brokers(address, directory) as at:
        topic = await make(at, "in")
        await fill(at, topic, [(None, body) for body in bodies])
        await read_bare(at, topic, records)
        for _ in range(rounds):
            found["read bare"].append(await read_bare(at, topic, records))
            found["read"].append(await read(at, topic, records))
            found["write bare"].append(await write_bare(at, await make(at, "out"), bodies))
            found["write"].append(await write(at, await make(at, "out"), values))
    result: dict[str, Any] = {
        name: {key: statistics.median(one[key] for one in ones) for key in ("per_second", "cpu_us")}
        for name, ones in found.items()
    }
    for what in ("read", "write"):
        ours, bare = result[what], result[f"{what} bare"]
        result[f"{what} ratio"] = ours["per_second"] / bare["per_second"]
        print(
            f"{what}: {ours['per_second']:,.0f} records/s at {ours['cpu_us']:.1f} us of CPU a "
            f"record; the client alone {bare['per_second']:,.0f} at {bare['cpu_us']:.1f}; ratio "
            f"of rates {result[f'{what} ratio']:.2f}"
        )
    return result
