"""A topic as a sink: each record once, for readers of committed records.

::

    bundle n ──▶ writer of the scope ──▶ transaction: messages + position n
                                                     └──▶ position read back ──▶ acknowledged

The engine numbers bundles and repeats them unchanged (decision 30). The number is the writer's
position, which Kafka keeps as the offset of a group, in the transaction of the bundle. An owner
first becomes the only writer of the scope's transactional id, which ends a transaction that its
predecessor has left open; then it reads the position, and decides (`millwheel.kafka.positions`). A
commit that has returned is no proof (once in ten tries with a frozen broker it was none): a bundle
is acknowledged when its position is read back.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import structlog

from millwheel.bundles import BundleId, Bundles, RecordsRefused
from millwheel.context import BundleContext
from millwheel.core.backoff import Backoff
from millwheel.core.clock import SystemClock
from millwheel.core.codec import reason
from millwheel.core.model import Key, Record, to_micros
from millwheel.errors import InputError, OutputError, UsageError
from millwheel.kafka.aio import AioClient
from millwheel.kafka.cluster import KafkaCluster, check_topic
from millwheel.kafka.limits import UNKNOWN, TopicLimits
from millwheel.kafka.messages import Encode, Headers, Messages, Timestamp
from millwheel.kafka.port import Interrupted, KafkaOutput, Message, Position, Refused, Writer
from millwheel.kafka.positions import OnLostCommits, is_written

BUNDLES = Bundles(records=2_000, seconds=0.0)
"""Records that come during a transaction make the next one: waiting for more would only delay
them."""

PARTITIONS_SECONDS = 60.0

RETRY_SECONDS = 0.5

READ_BACK_SECONDS = 0.001
"""First pause before the position is read again; each further one is doubled, up to
`RETRY_SECONDS`."""

SETTLE_SECONDS = 0.25
"""Wait before the position of a bundle that may be written is read a second time."""

IDLE_SECONDS = 600.0

STUCK_SECONDS = 60.0
"""Time after its commit after which a position that has not followed is a hung transaction."""

logger = structlog.get_logger("millwheel.kafka")


@dataclass
class _ScopeWriter:
    writer: Writer
    number: int
    used_at: float


class KafkaSink:
    """Writes the values of a stream to a topic, exactly once for readers of committed records.

    ```python
    CLUSTER = KafkaCluster("broker1:9092,broker2:9092")
    pipeline.sink(ORDERS, KafkaSink(CLUSTER, "bills", key=lambda order: order.customer))
    ```

    Readers need ``isolation.level=read_committed``: Kafka's own default also shows aborted records.

    Args:
        cluster: how to connect.
        topic: the name of a topic that exists.
        key: returns the key of a value: a text, bytes, or anything that is JSON. Values of a key go
            to one partition, as Java's producer chooses it, in order. None: no key; then one worker
            writes all values, in order.
        encode: returns the bytes of a value or None for a tombstone, or an awaitable of them. A
            value for which it raises an error is refused (so it is with the other functions); with
            `OutputError` the sink stops. By default JSON.
        headers: returns the headers of a value.
        timestamp: the messages' timestamps: ``"event"``, the records' event times; ``"written"``,
            the time of writing; or a function that returns an aware datetime for a value. A topic
            deletes messages older than its retention by these, unless its
            ``message.timestamp.type`` is LogAppendTime: historic data needs ``"written"`` or such a
            topic.
        bundles: how many records a transaction has, and how long it waits for them; by default not
            at all: the records that come during a transaction make the next one.
        exactly_once: False: without transactions and positions; a crash repeats records.
        id_prefix: the beginning of the transactional ids and groups; by default of the pipeline and
            its store. A copy of the store that writes to the same topic needs another one; a fork
            (``docs/howto/run/forks.md``) has its own by itself.
        positions_kept: how long the cluster keeps the position of a group without members
            (``offsets.retention.minutes``), at least.
        on_lost_commits: if Kafka has bundles that the store does not know, stop, or write their
            records again.

    Raises:
        UsageError: an option does not fit.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        topic: str,
        *,
        key: Callable[[Any], Any] | None = None,
        encode: Encode | None = None,
        headers: Headers | None = None,
        timestamp: Timestamp = "event",
        bundles: Bundles = BUNDLES,
        exactly_once: bool = True,
        id_prefix: str | None = None,
        positions_kept: timedelta = timedelta(days=6),
        on_lost_commits: OnLostCommits = "fail",
    ) -> None:
        subject = check_topic(cluster, topic)
        if on_lost_commits not in ("fail", "repeat"):
            raise UsageError(
                f'{subject}: on_lost_commits must be "fail" or "repeat", not {on_lost_commits!r}'
            )
        self.topic = topic
        self.bundles = bundles
        self.cluster = cluster
        self._maker = Messages(subject, key, encode, headers, timestamp)
        self._exactly_once = exactly_once
        self._prefix = id_prefix
        self._is_given = id_prefix is not None
        self._kept = positions_kept
        self._on_lost_commits = on_lost_commits
        self._client: KafkaOutput | None = None
        self._writers: dict[int, _ScopeWriter] = {}
        self._closing: set[asyncio.Future[None]] = set()
        self._partitions = 0
        self._partitions_at = 0.0
        self._limits: TopicLimits | None = None
        self._has_warned = False

    @property
    def key(self) -> Callable[[Any], Key] | None:
        return None if self._maker.key is None else self._maker.key_of

    def describe(self) -> dict[str, Any]:
        """The topic, without addresses and secrets."""
        return {"kafka": self.topic}

    def connect(self) -> KafkaOutput:
        return AioClient(self.cluster)

    async def close(self) -> None:
        writers, self._writers = list(self._writers.values()), {}
        client, self._client = self._client, None
        await asyncio.gather(*(each.writer.close() for each in writers), *self._closing)
        if client is not None:
            await client.close()

    # -- delivery ------------------------------------------------------------------------

    async def deliver(self, records: Sequence[Record[Any]], ctx: BundleContext[Any, Any]) -> None:
        """Write a bundle, unless Kafka has it.

        Raises:
            RecordsRefused: some records cannot be encoded, or the brokers refuse them; none is
                written.
            OutputError: the topic is gone, or the position of the scope does not fit the store's.
        """
        bundle, now = ctx.bundle_id, to_micros(ctx.now)
        id_ = await self._id(ctx) if self._exactly_once else None
        self._close_idle()
        singly = False
        while True:
            try:
                if await self._has(bundle, id_, now):
                    return
                messages = await self._messages(records, bundle, now)
                await self._write(id_, messages, bundle, singly=singly)
            except Refused as refused:
                self._drop(bundle.scope)
                if singly:
                    places = _places(records, bundle)
                    raise await self._explained(refused, messages, places) from refused
                singly = True  # to find the messages that are at fault
                bundle = replace(
                    bundle, is_repeat=True
                )  # another worker may have written it meanwhile
            except Interrupted as error:
                self._drop(bundle.scope)
                bundle = replace(bundle, is_repeat=True)  # it may be written
                self._partitions = 0  # the topic may be gone
                logger.warning("transaction_interrupted", topic=self.topic, reason=str(error))
                if not await ctx.is_owner():
                    await (
                        asyncio.Event().wait()
                    )  # another worker delivers the bundle; this call is cancelled
                await asyncio.sleep(RETRY_SECONDS)
            except InputError as error:
                raise OutputError(str(error)) from error
            except BaseException:
                self._drop(bundle.scope)
                raise
            else:
                return

    async def _id(self, ctx: BundleContext[Any, Any]) -> str:
        """The transactional id of the bundle's scope, which is its group as well."""
        prefix = self._prefix
        if prefix is None:
            prefix = self._prefix = f"millwheel.{await ctx.store_id()}"
        elif self._is_given:
            prefix = ctx.own_name(prefix)
        return f"{prefix}.{self.topic}.{ctx.bundle_id.scope}"

    async def _has(self, bundle: BundleId, id_: str | None, now: int) -> bool:
        """Become the writer of the scope, and find out whether Kafka has the bundle.

        Args:
            now: by the pipeline's clock, microseconds.
        """
        scope, client = bundle.scope, self._connected()
        known = self._writers.get(scope)
        if known is not None and not bundle.is_repeat and known.number == bundle.previous:
            # it has written the bundle before, and fails if another writer has begun since
            return False
        self._drop(scope)
        self._writers[scope] = _ScopeWriter(await client.writer(id_), bundle.previous, _clock())
        if id_ is None:
            return False
        position = await client.position(id_, self.topic)
        if bundle.is_repeat and (position is None or position.number < bundle.number):
            await asyncio.sleep(
                SETTLE_SECONDS
            )  # older brokers show the position a moment after the commit
            position = await client.position(id_, self.topic)
        found = is_written(
            f"Kafka topic {self.topic!r}, group {id_!r}",
            bundle,
            position,
            now=now,
            kept=self._kept,
            on_lost_commits=self._on_lost_commits,
        )
        if found and position is not None and not bundle.refused and position.note:
            raise RecordsRefused(
                dict.fromkeys(_noted(position.note), "refused before a restart of the worker")
            )
        return found

    async def _write(
        self, id_: str | None, messages: list[Message], bundle: BundleId, *, singly: bool
    ) -> None:
        scope = self._writers[bundle.scope]
        position = None if id_ is None else Position(bundle.number, _note(bundle.refused))
        await scope.writer.write(self.topic, messages, position, singly=singly)
        if id_ is not None:
            await self._read_back(id_, bundle.number)
        scope.number, scope.used_at = bundle.number, _clock()

    async def _read_back(self, id_: str, number: int) -> None:
        """Wait until the position is that of the bundle.

        Raises:
            OutputError: it does not come.
        """
        client = self._connected()
        backoff = Backoff(
            SystemClock(), first=READ_BACK_SECONDS, longest=RETRY_SECONDS, patience=STUCK_SECONDS
        )
        while True:
            position = await client.position(id_, self.topic)
            if position is not None and position.number == number:
                return
            if backoff.is_over:
                raise OutputError(
                    f"Kafka topic {self.topic!r}: the transaction of bundle {number} was "
                    f"committed, but its position is not readable after {STUCK_SECONDS:g} s: a "
                    f"transaction of {id_!r} hangs, and readers of committed records wait for it. "
                    "Find it with kafka-transactions.sh find-hanging, end it with "
                    "kafka-transactions.sh abort, and start again: missing records are then "
                    "written again"
                )
            await backoff.wait()

    def _close_idle(self) -> None:
        """Close writers of scopes that had nothing to write for long, or that other workers own
        now."""
        for scope, known in list(self._writers.items()):
            if _clock() - known.used_at > IDLE_SECONDS:
                self._drop(scope)

    def _drop(self, scope: int) -> None:
        """Close the writer of a scope, without waiting: it may be cut off."""
        dropped = self._writers.pop(scope, None)
        if dropped is not None:
            closing = asyncio.ensure_future(dropped.writer.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _connected(self) -> KafkaOutput:
        if self._client is None:
            self._client = self.connect()
        return self._client

    # -- messages ------------------------------------------------------------------------

    async def _messages(
        self, records: Sequence[Record[Any]], bundle: BundleId, now: int
    ) -> list[Message]:
        """
        Raises:
            RecordsRefused: some records cannot be encoded.
            OutputError: there is no such topic, or ``encode=`` has raised it.
        """
        partitions = await self._partition_count()
        places = _places(records, bundle)
        found: list[Message] = []
        failed: dict[int, str] = {}
        for place, record in zip(places, records, strict=True):
            try:
                found.append(await self._maker.message(record, place, partitions, now))
            except OutputError:
                raise
            except Exception as error:  # user code
                failed[place] = f"Kafka topic {self.topic!r}: {reason(error)}"
        if failed:
            raise RecordsRefused(failed)
        await self._warn_of_expiry(found, now)
        return found

    async def _warn_of_expiry(self, messages: Sequence[Message], now: int) -> None:
        """Warn once if the topic deletes messages at once, as it does with those of old events."""
        if self._limits is None:
            self._limits = await self._look_up_limits()
        if self._has_warned or not messages:
            return
        oldest = min(messages, key=lambda message: message.timestamp)
        if (why := self._limits.expired(oldest, now)) is not None:
            self._has_warned = True
            logger.warning("messages_expire", topic=self.topic, reason=why)

    async def _look_up_limits(self) -> TopicLimits:
        settings: Mapping[str, str | None] = {}
        with suppress(InputError):  # they only explain
            settings = await self._connected().settings(self.topic)
        limits = TopicLimits.of(settings) if settings else UNKNOWN
        logger.info(
            "topic_settings",
            topic=self.topic,
            timestamps=settings.get("message.timestamp.type", "unknown"),
            cleanup=settings.get("cleanup.policy", "unknown"),
            retention_ms=settings.get("retention.ms", "unknown"),
        )
        return limits

    async def _explained(
        self, refused: Refused, messages: Sequence[Message], places: Sequence[int]
    ) -> RecordsRefused:
        limits = await self._look_up_limits()
        subject = f"Kafka topic {self.topic!r}"
        return RecordsRefused(
            {
                places[n]: f"{subject}: {limits.refusal(why, messages[n])}"
                for n, why in refused.reasons.items()
            }
        )

    async def _partition_count(self) -> int:
        now = _clock()
        if not self._partitions or now - self._partitions_at > PARTITIONS_SECONDS:
            topic = await self._connected().topic(self.topic)
            if topic is None or not topic.partitions:
                raise OutputError(
                    f"there is no Kafka topic {self.topic!r}, or it may not be described. Make it, "
                    "and start again: no record is lost"
                )
            self._connected().wait_for_ever()
            self._partitions, self._partitions_at = len(topic.partitions), now
        return self._partitions

    def __repr__(self) -> str:
        return f"KafkaSink({self.topic!r})"


def _clock() -> float:
    return asyncio.get_running_loop().time()


def _places(records: Sequence[Record[Any]], bundle: BundleId) -> list[int]:
    refused = bundle.refused
    return [n for n in range(len(records) + len(refused)) if n not in refused]


def _note(refused: Iterable[int]) -> str:
    """The places of refused records for the note of a position: a bit each, which fits for any
    bundle."""
    bits = sum(1 << place for place in refused)
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def _noted(note: str) -> list[int]:
    bits = int.from_bytes(base64.b64decode(note), "little")
    return [place for place in range(bits.bit_length()) if bits >> place & 1]
