"""Reads one partition of a topic.

A row's number is its record's offset (I1, I9). Offsets have gaps: markers of transactions, aborted
records, compacted ones. A fetch names the topic, not its id, and the offsets of a topic that was
deleted and made again mean other records. So the id, which never comes back, is asked for after
each fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

import structlog

from millwheel.errors import InputError
from millwheel.fetching import FetchingReader
from millwheel.kafka.decoding import Decoding
from millwheel.kafka.partition_names import PartitionName
from millwheel.kafka.port import Bounds, Fetcher, KafkaClient, KafkaRecord, OffsetGone
from millwheel.sources import Lag, Row, Rows

OnTruncation = Literal["fail", "skip"]

FETCH_RECORDS = 1_000

START_SECONDS = 60.0
"""Time between two looks for the partition's first record, which retention deletes."""

GROUP_SECONDS = 5.0

logger = structlog.get_logger("millwheel.kafka")


class KafkaReader(FetchingReader):
    def __init__(
        self,
        client: KafkaClient,
        name: PartitionName,
        decoding: Decoding,
        on_truncation: OnTruncation,
        group: str | None,
    ) -> None:
        super().__init__()
        self._client = client
        self._name = name
        self._decoding = decoding
        self._on_truncation = on_truncation
        self._group = group
        self._fetcher: Fetcher | None = None
        self._next = 0
        self._passed = 0
        """The same without records that are being decoded."""
        self._rows_end = 0
        """One past the last record that became a row, before markers, aborted and skipped
        records."""
        self._settled = 0
        """The position: all records before it are acknowledged, or offsets without a record."""
        self._committed = -1
        self._start = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.closing: asyncio.Task[None] | None = None
        self._missing: list[Row] = []
        """A row that stands for records that were deleted before they were read."""

    async def begin(self, position: dict[str, Any] | None) -> None:
        """Begin at a stored position, or with the first record.

        Raises:
            InputError: the topic was created again, or records from the position on are missing.
        """
        if position is not None:
            self._next = position["next"]
        await self._check_topic()
        bounds = await self._bounds()
        if position is None:
            self._next = bounds.first
        self._passed = self._rows_end = self._settled = self._next
        self._start = bounds.first
        self._check_bounds(bounds)
        await self._open()
        self._client.wait_for_ever()
        self._tasks.append(asyncio.create_task(self._look_for_start()))
        if self._group is not None:
            self._tasks.append(asyncio.create_task(self._commit_for_tools()))

    async def fetch(self) -> Sequence[Row]:
        """The next rows; it waits until there are some.

        Raises:
            InputError: the topic was created again, records are missing, or the cluster refuses it.
        """
        while True:
            records = await self._records()
            rows: Sequence[Row] = await self._decoding.rows(records) if records else ()
            if self._missing:
                rows, self._missing = self._missing, []
            if rows:  # columns stay columns: a single row is not looked at
                last = records[-1] if isinstance(rows, Rows) else rows[-1]
                self._rows_end = last.offset + 1
            has_passed, self._passed = self._passed != self._next, self._next
            if rows:
                return rows
            if has_passed:
                self.announce()
            if self._fetcher is not None and self._fetcher.at_end:
                self.found_none()

    async def _records(self) -> Sequence[KafkaRecord]:
        if self._missing:
            return ()
        assert self._fetcher is not None
        try:
            records = await self._fetcher.fetch(FETCH_RECORDS)
        except OffsetGone:
            await self._check_topic()
            self._check_bounds(await self._bounds())
            await self._fetcher.close()
            await self._open()
            return ()
        if (position := self._fetcher.position) != self._next:
            await self._check_topic()
            self._next = position
        return records

    async def _open(self) -> None:
        name = self._name
        self._fetcher = await self._client.fetcher(name.topic, name.number, self._next, self._group)

    async def _check_topic(self) -> None:
        name = self._name
        found = await self._client.topic(name.topic)
        if found is None:
            raise InputError(
                f"{name} is gone: the topic was deleted, or may not be read any more. Create it "
                "again and read it from its start (millwheel drop), or remove the injector"
            )
        if found.id != name.topic_id:
            raise InputError(
                f"{name} was deleted and created again: it was read as {name.topic_id} up to "
                f"offset {self._next:,}, and is {found.id} now, with other records under the same "
                "offsets. To read it from its start, remove the pipeline's state (millwheel "
                "drop), or give the injector another name"
            )

    async def _bounds(self) -> Bounds:
        name = self._name
        return (await self._client.bounds(name.topic, [name.number]))[name.number]

    def _check_bounds(self, bounds: Bounds) -> None:
        """Check that the next record is there, or will be the next one written.

        Raises:
            InputError: it is not, and missing records are not left out.
        """
        name, next_ = self._name, self._next
        if next_ > bounds.end:
            raise InputError(
                f"{name} ends at offset {bounds.end:,}, but was read up to offset {next_:,}: "
                f"{next_ - bounds.end:,} records that were read are gone, as after an unclean "
                "election of a leader or a restored backup, and others will come under their "
                "offsets. To read it from its start, remove the pipeline's state (millwheel "
                "drop)"
            )
        if next_ < bounds.first:
            what = (
                f"{name}: the records from offset {next_:,} to {bounds.first - 1:,} were deleted "
                f"before they were read ({bounds.first - next_:,} at most; offsets have gaps); "
                f"the first one left is {bounds.first:,}"
            )
            if self._on_truncation == "fail":
                raise InputError(
                    f'{what}. Give Kafka(..., on_truncation="skip") to continue with it, and look '
                    "at the topic's retention"
                )
            logger.warning(
                "records_missing",
                topic=name.topic,
                partition=name.number,
                first=next_,
                end=bounds.first,
                count=bounds.first - next_,
            )
            last = bounds.first - 1
            self._missing = [Row(last, last, error=InputError(what), text=what)]
            self._next = self._rows_end = bounds.first

    def position(self, acknowledged: int) -> dict[str, Any]:
        """The offset of the first record that is not acknowledged, or up to which the partition was
        passed.

        Offsets in between are no records, and may be deleted.
        """
        self._settled = max(acknowledged, self._settled)
        self._settle()
        return {"next": self._settled}

    def _settle(self) -> None:
        if self._settled >= self._rows_end:
            self._settled = max(self._settled, self._passed)

    def lag(self) -> Lag:
        end = None if self._fetcher is None else self._fetcher.stable_end
        if end is None:
            return Lag()
        return Lag(max(0, end - self._passed) + self.ahead, None, self._start, end)

    def close(self) -> None:
        super().close()
        for task in self._tasks:
            task.cancel()
        self.closing = asyncio.create_task(self._close())

    async def _close(self) -> None:
        if self._fetcher is not None:
            await self._fetcher.close()
        await self._client.close()

    async def _look_for_start(self) -> None:
        while True:
            await asyncio.sleep(START_SECONDS)
            with suppress(InputError):  # the next fetch meets it as well
                self._start = (await self._bounds()).first

    async def _commit_for_tools(self) -> None:
        """Store the position as the offset of a group, which is never read back."""
        warned = False
        while True:
            await asyncio.sleep(GROUP_SECONDS)
            self._settle()
            offset, fetcher = self._settled, self._fetcher
            if fetcher is None or offset == self._committed:
                continue
            try:
                await fetcher.commit(offset)
                self._committed, warned = offset, False
            except InputError as error:
                if not warned:
                    logger.warning("group_not_stored", group=self._group, reason=str(error))
                warned = True
