"""Runs a program between two topics of Kafka, and measures it by what a reader of committed records
sees.

The bench writes the payments, reads the balances, and takes the marks: a program only works. Rate:
all payments are in the topic before the program starts. Latency: payments come at a fixed rate,
after a warm-up; one is done when its balance can be read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from bench.kafka import committed, fill, make
from bench.workload import Balance, Payment

LOOK_SECONDS = 5.0
"""Time between two looks whether the program still runs."""


class Seen(NamedTuple):
    """The results of a run."""

    balances: list[Balance]
    latencies: list[float] | None
    """Milliseconds of each payment after the warm-up, if they came at a fixed rate."""


class Topics:
    """The topics of a run.

    Args:
        kafka: HOST:PORT of a broker.
        lines: payments, as JSON.
    """

    def __init__(self, kafka: str, lines: Sequence[bytes]) -> None:
        self.kafka = kafka
        self._lines = lines
        self.payments = asyncio.run(make(kafka, "payments"))
        self.balances = asyncio.run(make(kafka, "balances"))

    def fill(self, count: int) -> None:
        """Write the first payments, keyed by account."""
        messages = [(_key(line), line) for line in self._lines[:count]]
        asyncio.run(fill(self.kafka, self.payments, messages))

    async def watch(
        self,
        records: int,
        warm: int,
        rate: float | None,
        mark: Callable[[int], None],
        has_ended: Callable[[], bool],
    ) -> Seen:
        """Read all balances, or those that there are when the program has ended.

        Args:
            warm: payments of the warm-up.
            rate: with one, the payments after the warm-up are written now, so many each second.
            mark: called with the number of balances read, after the warm-up and at the end.
        """
        found: list[tuple[float, Balance]] = []
        decode = msgspec.json.Decoder(Balance).decode
        written: dict[tuple[int, int], float] = {}
        writing: asyncio.Task[None] | None = None
        async with committed(self.kafka, self.balances) as some:
            while len(found) < records:
                before = len(found)
                try:
                    values = await asyncio.wait_for(some(), LOOK_SECONDS)
                except TimeoutError:
                    if has_ended():
                        break
                    continue
                now = time.perf_counter()
                found += [(now, decode(value)) for value in values]
                if before < warm <= len(found):
                    mark(len(found))
                    if rate is not None:
                        writing = asyncio.create_task(self._write(records, warm, rate, written))
        if len(found) >= records:
            mark(len(found))
        if writing is not None:
            await writing
        balances = [balance for _, balance in found]
        if rate is None:
            return Seen(balances, None)
        read = {(one.account, one.payments): at for at, one in found[warm:]}
        return Seen(balances, [1000 * (read[it] - at) for it, at in written.items() if it in read])

    async def _write(
        self, records: int, warm: int, rate: float, written: dict[tuple[int, int], float]
    ) -> None:
        """Write payments at a fixed rate, and note when each was written."""
        payments = [msgspec.json.decode(line, type=Payment) for line in self._lines[:records]]
        counts: dict[int, int] = {}
        producer = AIOKafkaProducer(bootstrap_servers=self.kafka)
        await producer.start()
        began = time.perf_counter()
        for number, payment in enumerate(payments):
            count = counts[payment.account] = counts.get(payment.account, 0) + 1
            if number < warm:
                continue
            await asyncio.sleep(max(0.0, began + (number - warm) / rate - time.perf_counter()))
            line = self._lines[number]
            written[payment.account, count] = time.perf_counter()
            await producer.send(self.payments, line, key=_key(line), partition=0)
        await producer.stop()


def _key(line: bytes) -> bytes:
    return line.split(b'"account":')[1].split(b",")[0]


async def bare_transactions(kafka: str, samples: int) -> list[float]:
    """Milliseconds of transactions of one record and one offset, each until its record can be
    read."""
    topic = await make(kafka, "bare")
    producer = AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=topic)
    await producer.start()
    found = []
    async with committed(kafka, topic) as some:
        for number in range(samples):
            began = time.perf_counter()
            async with producer.transaction():
                await producer.send_and_wait(topic, b"x" * 100, partition=0)
                await producer.send_offsets_to_transaction(
                    {TopicPartition(topic, 0): OffsetAndMetadata(number, "")}, topic
                )
            await some()
            found.append(1000 * (time.perf_counter() - began))
    await producer.stop()
    return found
