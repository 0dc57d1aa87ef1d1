"""The few calls that millwheel needs of a Kafka client, so that another client can take their
place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class KafkaRecord(Protocol):
    """A record as Kafka has it, the argument of ``decode=``.

    ```python
    def decode(record: KafkaRecord) -> Order:
        return Order((record.key or b"").decode(), record.topic, int(record.value or b"0"))

    pipeline.inject(ORDERS, Kafka(KafkaCluster("broker1:9092"), "orders", decode=decode))
    ```
    """

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch; -1: an old producer gave none."""
        ...

    @property
    def timestamp_type(self) -> int:
        """0: the producer set the timestamp; 1: the broker, when it appended the record."""
        ...

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None:
        """None: a tombstone, which deletes its key from a compacted topic."""
        ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """In order; a name may occur several times."""
        ...


class Topic(NamedTuple):
    id: str
    """A UUID: a topic that is deleted and made again under its name has another one."""
    partitions: Sequence[int]


class Bounds(NamedTuple):
    first: int
    """The first record that is there: older ones were deleted by retention."""
    end: int
    """One past the last record that a reader of committed records may see."""


class Message(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    """None: a tombstone."""
    timestamp: int
    """Milliseconds since the epoch."""
    headers: Sequence[tuple[str, bytes | None]] = ()


class Position(NamedTuple):
    """The position of a writer, which Kafka keeps as the offset of a group."""

    number: int
    note: str = ""
    """The text that came with it, up to 4,096 bytes."""


class Refused(Exception):
    """The brokers refuse some messages, or a batch with them; nothing of the transaction is
    written, and the writer cannot be used any more.

    Attributes:
        reasons: the name of the brokers' error for each message, by its place.
    """

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__("; ".join(reasons.values()))
        self.reasons = reasons


class Interrupted(Exception):
    """Whether a transaction was committed is unknown: the producer cannot be used any more."""


class Writer(Protocol):
    """Writes transactions under a transactional id, which no other writer has any more."""

    async def write(
        self,
        topic: str,
        messages: Sequence[Message],
        position: Position | None,
        *,
        singly: bool = False,
    ) -> None:
        """Write messages and the writer's position, all or nothing.

        Args:
            position: None: there is no transaction; each message is written at least once.
            singly: a batch for each message, so that only those are refused that are at fault.

        Raises:
            Refused, Interrupted: see there.
            OutputError: the cluster does not let this user write.
        """
        ...

    async def close(self) -> None: ...


class OffsetGone(Exception):
    """The partition has no record at an offset: it is below the first or above the end."""


class Fetcher(Protocol):
    """Fetches the committed records of a partition, in order, from an offset on."""

    async def fetch(self, limit: int) -> Sequence[KafkaRecord]:
        """Up to `limit` further records; it waits a moment for some, and may return none.

        A broker that does not answer is asked again for ever.

        Raises:
            OffsetGone: see there.
            InputError: the cluster refuses it.
        """
        ...

    @property
    def position(self) -> int:
        """One past the last offset that is passed: of a record, or of a marker or aborted record
        behind it."""
        ...

    @property
    def at_end(self) -> bool:
        """Whether the leader has answered a moment ago, and has nothing from `position` on: no
        committed record, and no open transaction."""
        ...

    @property
    def stable_end(self) -> int | None:
        """`Bounds.end`, as in the last answer; None: there was none."""
        ...

    async def commit(self, offset: int) -> None:
        """Store an offset for tools that show the lag of a group.

        Raises:
            InputError: it could not be stored.
        """
        ...

    async def close(self) -> None: ...


class KafkaClient(Protocol):
    """A connection to a cluster.

    Its calls raise `InputError` if the cluster refuses them, or if no broker answers for some time.
    """

    def wait_for_ever(self) -> None:
        """From now on wait for brokers for as long as it takes: the cluster was there once."""
        ...

    async def topic(self, name: str) -> Topic | None:
        """A topic; None: there is none of this name, or it may not be read."""
        ...

    async def bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, Bounds]: ...

    async def since(self, topic: str, partitions: Sequence[int], millis: int) -> dict[int, int]:
        """For each partition, the offset of the first record at or after an instant; the end if
        none is."""
        ...

    async def fetcher(
        self, topic: str, partition: int, offset: int, group: str | None
    ) -> Fetcher: ...

    async def close(self) -> None: ...


class KafkaOutput(Protocol):
    """A connection to a cluster that is written to, with the errors of `KafkaClient`."""

    def wait_for_ever(self) -> None: ...

    async def topic(self, name: str) -> Topic | None:
        """A topic; None: there is none of this name, or it may not be described."""
        ...

    async def settings(self, topic: str) -> Mapping[str, str | None]:
        """The settings of a topic, by name; none if the user has no right to see them."""
        ...

    async def writer(self, id: str | None) -> Writer:
        """Become the only writer of a transactional id; None: a writer without transactions.

        Other writers are fenced, and their open transaction has ended before this returns.
        """
        ...

    async def position(self, id: str, topic: str) -> Position | None:
        """The position of the writer of a transactional id in a topic; None: the cluster does not
        have it.

        During a transaction and for a moment after it, it is the one before.
        """
        ...

    async def close(self) -> None: ...
