"""Clusters for tests of the Kafka source: real ones, and one in memory with the same calls."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.structs import TopicPartition

from examples.kafka_broker import KafkaBroker
from millwheel.kafka.aio import AioClient
from millwheel.kafka.cluster import KafkaCluster
from millwheel.kafka.port import Bounds, KafkaClient, KafkaRecord, OffsetGone, Topic
from tests.support.certificates import Authority

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
ACL = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

_numbers = itertools.count(1)


class GuardedBroker(KafkaBroker):
    """A broker of which each port asks in another way who its clients are.

    On the port of `bootstrap` it asks nobody, and all is allowed; on another one it asks for a name
    and a password, and on a third one for a certificate. Anna may do what she is given a right to,
    Berta and the holder of the certificate may do all.

    Args:
        folder: for the certificates.
    """

    def __init__(self, directory: Path, folder: Path) -> None:
        super().__init__(directory, nodes=2)
        for_all, with_password, controller, with_certificate = self.ports
        self.ports = [for_all, controller]
        self.with_password = f"127.0.0.1:{with_password}"
        self.with_certificate = f"127.0.0.1:{with_certificate}"
        self.folder = folder
        authority = Authority(folder, "authority")
        for name in ("broker", "anna"):
            chain, key = authority.certificate(name, "IP:127.0.0.1")
            (folder / f"{name}.both").write_text(key.read_text() + chain.read_text())
        of = "listener.name"
        self.settings += [
            f"listeners=PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller},"
            f"PASSWORD://{self.with_password},CERTIFICATE://{self.with_certificate}",
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
            "PASSWORD:SASL_PLAINTEXT,CERTIFICATE:SSL",
            f"{of}.password.sasl.enabled.mechanisms=PLAIN",
            f'{of}.password.plain.sasl.jaas.config={PLAIN} user_anna="secret" user_berta="secret";',
            f"{of}.certificate.ssl.client.auth=required",
            f"{of}.certificate.ssl.keystore.type=PEM",
            f"{of}.certificate.ssl.keystore.location={folder / 'broker.both'}",
            f"{of}.certificate.ssl.truststore.type=PEM",
            f"{of}.certificate.ssl.truststore.location={folder / 'authority.pem'}",
            f"authorizer.class.name={ACL}",
            "super.users=User:ANONYMOUS;User:berta;User:CN=anna",
        ]


class Written(NamedTuple):
    """A record as a test writes it; also what the cluster in memory returns."""

    value: bytes | None = b"1"
    timestamp: int = 1_700_000_000_000
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    topic: str = ""
    partition: int = 0
    offset: int = -1
    timestamp_type: int = 0


class KafkaSite(Protocol):
    """A cluster that a test writes to."""

    def client(self) -> KafkaClient:
        """A connection to it."""
        ...

    async def make(self, partitions: int = 1) -> str:
        """Make a topic, and return its name."""
        ...

    async def make_again(self, topic: str, partitions: int = 1) -> None:
        """Delete a topic, and make another one of its name."""
        ...

    async def delete(self, topic: str) -> None: ...
    async def grow(self, topic: str, partitions: int) -> None:
        """Add partitions, up to this number."""
        ...

    async def write(self, topic: str, records: Sequence[Written], *, aborted: bool = False) -> None:
        """Append records, in a transaction of their own if it is to be aborted."""
        ...

    def transaction(
        self, topic: str, records: Sequence[Written]
    ) -> contextlib.AbstractAsyncContextManager[None]:
        """Append records in a transaction that is open meanwhile, and then committed."""
        ...

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the oldest records, as retention does."""
        ...


class RealSite:
    """A real cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.cluster = KafkaCluster(bootstrap)
        self._admin: AIOKafkaAdminClient
        self._producer: AIOKafkaProducer

    async def open(self) -> None:
        self._admin = AIOKafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)
        await self._admin.start()
        self._producer = AIOKafkaProducer(bootstrap_servers=self.cluster.bootstrap)
        await self._producer.start()

    async def close(self) -> None:
        await self._producer.stop()
        await self._admin.close()

    def client(self) -> KafkaClient:
        return AioClient(self.cluster)

    async def make(self, partitions: int = 1) -> str:
        name = f"topic{next(_numbers)}-{uuid.uuid4().hex[:6]}"
        await self._make(name, partitions)
        return name

    async def _make(self, name: str, partitions: int) -> None:
        # The broker looks for old records every five minutes, and those of a test are of the year
        # 2023.
        topic = NewTopic(name, partitions, 1, topic_configs={"retention.ms": "-1"})
        for _ in range(100):
            answer = await self._admin.create_topics([topic])
            ((_, error, *_),) = answer.topic_errors
            if not error:
                return
            await asyncio.sleep(0.1)  # its predecessor is still being deleted
        raise AssertionError(f"{name} cannot be made: {error}")

    async def make_again(self, topic: str, partitions: int = 1) -> None:
        await self.delete(topic)
        await self._make(topic, partitions)

    async def delete(self, topic: str) -> None:
        await self._admin.delete_topics([topic])

    async def grow(self, topic: str, partitions: int) -> None:
        await self._admin.create_partitions({topic: NewPartitions(partitions)})

    async def write(self, topic: str, records: Sequence[Written], *, aborted: bool = False) -> None:
        producer = self._producer
        if aborted:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.cluster.bootstrap, transactional_id=uuid.uuid4().hex
            )
            await producer.start()
            await producer.begin_transaction()
        for one in records:
            await producer.send_and_wait(
                topic, one.value, key=one.key, partition=one.partition, timestamp_ms=one.timestamp,
                headers=list(one.headers),
            )  # fmt: skip
        if aborted:
            await producer.abort_transaction()
            await producer.stop()

    @contextlib.asynccontextmanager
    async def transaction(self, topic: str, records: Sequence[Written]) -> AsyncIterator[None]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.cluster.bootstrap, transactional_id=uuid.uuid4().hex
        )
        await producer.start()
        async with producer.transaction():
            for one in records:
                await producer.send_and_wait(
                    topic, one.value, partition=one.partition, timestamp_ms=one.timestamp
                )
            yield
        await producer.stop()

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        await self._admin.delete_records(
            {TopicPartition(topic, partition): RecordsToDelete(offset)}
        )


class _FakeTopic:
    def __init__(self, partitions: int) -> None:
        self.id = str(uuid.uuid4())
        self.partitions: list[list[Written | None]] = [[] for _ in range(partitions)]
        """The records by offset; None: a marker, an aborted or a deleted record."""
        self.first = [0] * partitions
        self.open: dict[int, int] = {}
        """The first offset of an open transaction, by partition."""
        self.news = asyncio.Event()

    def stable(self, partition: int) -> int:
        """One past the last record that readers of committed records see."""
        return self.open.get(partition, len(self.partitions[partition]))

    def wake(self) -> None:
        """Let readers look again."""
        self.news.set()
        self.news = asyncio.Event()


class FakeSite:
    """A cluster in memory."""

    def __init__(self) -> None:
        self.topics: dict[str, _FakeTopic] = {}
        self.committed: list[int] = []
        """Offsets that were stored for tools."""
        self.answers = True
        """Whether the leaders answer."""

    def client(self) -> KafkaClient:
        return FakeClient(self)

    async def make(self, partitions: int = 1) -> str:
        name = f"topic{next(_numbers)}"
        self.topics[name] = _FakeTopic(partitions)
        return name

    async def make_again(self, topic: str, partitions: int = 1) -> None:
        gone, self.topics[topic] = self.topics[topic], _FakeTopic(partitions)
        gone.news.set()

    async def delete(self, topic: str) -> None:
        del self.topics[topic]

    async def grow(self, topic: str, partitions: int) -> None:
        found = self.topics[topic]
        while len(found.partitions) < partitions:
            found.partitions.append([])
            found.first.append(0)

    async def write(self, topic: str, records: Sequence[Written], *, aborted: bool = False) -> None:
        found = self.topics[topic]
        for one in records:
            log = found.partitions[one.partition]
            log.append(None if aborted else one._replace(topic=topic, offset=len(log)))
        if aborted:
            for partition in {one.partition for one in records}:
                found.partitions[partition].append(None)  # the marker of the end
        found.wake()

    @contextlib.asynccontextmanager
    async def transaction(self, topic: str, records: Sequence[Written]) -> AsyncIterator[None]:
        found = self.topics[topic]
        partitions = {one.partition for one in records}
        found.open.update({n: len(found.partitions[n]) for n in partitions})
        await self.write(topic, records)
        yield
        for partition in partitions:
            found.partitions[partition].append(None)  # the marker of the end
            del found.open[partition]
        found.wake()

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        self.topics[topic].first[partition] = offset


class FakeClient:
    """A connection to the cluster in memory."""

    def __init__(self, site: FakeSite) -> None:
        self._site = site

    def wait_for_ever(self) -> None: ...

    async def topic(self, name: str) -> Topic | None:
        found = self._site.topics.get(name)
        return None if found is None else Topic(found.id, range(len(found.partitions)))

    async def bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, Bounds]:
        found = self._site.topics[topic]
        return {n: Bounds(found.first[n], found.stable(n)) for n in partitions}

    async def since(self, topic: str, partitions: Sequence[int], millis: int) -> dict[int, int]:
        logs = self._site.topics[topic].partitions
        return {
            n: next(
                (o for o, one in enumerate(logs[n]) if one is not None and one.timestamp >= millis),
                len(logs[n]),
            )
            for n in partitions
        }

    async def fetcher(
        self, topic: str, partition: int, offset: int, group: str | None
    ) -> FakeFetcher:
        return FakeFetcher(self._site, topic, partition, offset)

    async def close(self) -> None: ...


class FakeFetcher:
    """Fetches a partition of the cluster in memory."""

    def __init__(self, site: FakeSite, topic: str, partition: int, offset: int) -> None:
        self._site = site
        self._topic = topic
        self._partition = partition
        self._next = offset

    async def fetch(self, most: int) -> Sequence[KafkaRecord]:
        while True:
            found = self._site.topics.get(self._topic)
            if found is None:  # as aiokafka: it waits for the topic
                await asyncio.sleep(3600)
                continue
            log = found.partitions[self._partition]
            if not found.first[self._partition] <= self._next <= len(log):
                raise OffsetGone
            passed = log[self._next : min(self._next + most, found.stable(self._partition))]
            if passed:
                self._next += len(passed)
                return [one for one in passed if one is not None]
            try:
                async with asyncio.timeout(0.05):
                    await found.news.wait()
            except TimeoutError:
                return ()

    @property
    def position(self) -> int:
        return self._next

    @property
    def at_end(self) -> bool:
        log = self._site.topics[self._topic].partitions[self._partition]
        return self._site.answers and self._next == len(log)

    @property
    def stable_end(self) -> int | None:
        return self._site.topics[self._topic].stable(self._partition)

    async def commit(self, offset: int) -> None:
        self._site.committed.append(offset)

    async def close(self) -> None: ...
