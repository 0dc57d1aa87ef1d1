"""Finds the partitions of a topic, including those that are added later.

Partitions of the first look begin where `start` says; these offsets are stored before the
partitions are made. A later one is read from its first record, which would be lost otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from millwheel.core.model import to_micros
from millwheel.errors import InputError
from millwheel.kafka.partition_names import PartitionName
from millwheel.kafka.port import KafkaClient, Topic

Start = Literal["earliest", "latest"] | datetime | Mapping[int, int]

LOOK_SECONDS = 10.0


class _Position(msgspec.Struct):
    id: str
    starts: dict[int, int]


class TopicDiscovery:
    def __init__(
        self, client: KafkaClient, topic: str, start: Start, position: dict[str, Any] | None
    ) -> None:
        self._client = client
        self._topic = topic
        self._start = start
        self._stored = (
            None if position is None else msgspec.convert(position, _Position, strict=False)
        )
        self.closing: asyncio.Task[None] | None = None

    async def look(self) -> Sequence[str]:
        """The identities of all partitions.

        Raises:
            InputError: there is no such topic, it was created again, or the cluster refuses it.
        """
        found = await self._client.topic(self._topic)
        if found is None:
            raise InputError(
                f"there is no Kafka topic {self._topic!r}, or it may not be read. Make it, or give "
                "this user the right to describe and read it"
            )
        if self._stored is None:
            self._stored = _Position(found.id, await self._starts(found))
        elif found.id != self._stored.id:
            raise InputError(
                f"Kafka topic {self._topic!r} was deleted and created again: it was read as "
                f"{self._stored.id}, and is {found.id} now, with other records under the same "
                "offsets. To read it from its start, remove the pipeline's state (millwheel "
                "drop), or give the injector another name"
            )
        self._client.wait_for_ever()
        return [PartitionName(self._topic, found.id, n).identity for n in found.partitions]

    async def _starts(self, found: Topic) -> dict[int, int]:
        start, topic, partitions = self._start, self._topic, found.partitions
        if isinstance(start, datetime):
            return await self._client.since(topic, partitions, to_micros(start) // 1000)
        bounds = await self._client.bounds(topic, partitions)
        if start == "earliest":
            return {number: bounds[number].first for number in partitions}
        if start == "latest":
            return {number: bounds[number].end for number in partitions}
        assert isinstance(start, Mapping)
        if unknown := start.keys() - set(partitions):
            raise InputError(
                f"Kafka topic {topic!r} has no partitions {sorted(unknown)}, for which start= "
                f"gives offsets; it has {list(partitions)}"
            )
        for number, offset in sorted(start.items()):
            if not 0 <= offset <= bounds[number].end:
                raise InputError(
                    f"Kafka topic {topic!r}: start= gives offset {offset:,} of partition {number}, "
                    f"which ends at {bounds[number].end:,}. Give an offset up to that one"
                )
        return {number: start.get(number, bounds[number].first) for number in partitions}

    async def wait(self) -> None:
        await asyncio.sleep(LOOK_SECONDS)

    def first_position(self, identity: str) -> dict[str, Any] | None:
        assert self._stored is not None
        first = self._stored.starts.get(PartitionName.of(identity).number)
        return None if first is None else {"next": first}

    def position(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self._stored, str_keys=True)
        return found

    def close(self) -> None:
        self.closing = asyncio.create_task(self._client.close())
