from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import Any

from millwheel.core.chunk import ASSUMED_ROW_BYTES, Chunk
from millwheel.core.codec import named_ids
from millwheel.core.counters import BAD_ROWS
from millwheel.core.model import (
    MAX_TIME,
    MIN_TIME,
    Delivery,
    all_event_micros,
    checked_micros,
    record_id,
)
from millwheel.errors import InputError
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.routes.destinations import Destination
from millwheel.runtime.routes.readers import StreamReader
from millwheel.runtime.source.asked_rows import AskedRows
from millwheel.runtime.source.row_rules import RowRules
from millwheel.runtime.source.source_time import SourceTime
from millwheel.sources import Partition, Row, Rows


class RowSender:
    """Sends the rows of one partition: timestamps, keys and holds, or dead letters."""

    def __init__(
        self,
        env: Environment,
        interval: Interval,
        partition: Partition,
        time: SourceTime,
        asked: AskedRows,
    ) -> None:
        node = interval.step.node
        assert node.injection is not None
        self._env = env
        self._interval = interval
        self._time = time
        self._asked = asked
        self._injection = node.injection
        self._stream = node.writes[0]
        self._rules = RowRules(
            node.injection, self._stream.name, partition, (node.name, env.graph.name)
        )
        self._route = interval.step.routes[self._stream.name]

    def send(self, rows: Sequence[Row]) -> None:
        """Send rows to all readers of the stream; bad rows become dead letters.

        A row holds the watermark at no less than the source's promise when it was read: an older
        row is late by declaration, and must not hold the watermark back while it is queued.
        """
        if isinstance(rows, Rows) and rows.are_columns:
            together = range(rows.offset, rows.offset + len(rows))
            if not self._send_together(together, rows.values, rows.raws or None, rows.micros):
                self._send_one_by_one(rows)
            return
        for plain, run in groupby(rows, key=_is_plain):
            found = list(run)
            numbers, values = [row.offset for row in found], [row.value for row in found]
            own = [row.micros for row in found] if self._injection.timestamp is None else None
            if not (plain and self._send_together(numbers, values, own=own)):
                self._send_one_by_one(found)

    def _send_together(
        self,
        numbers: Sequence[int],
        values: list[Any],
        encoded: list[bytes] | None = None,
        own: Sequence[int | None] | None = None,
    ) -> bool:
        """Send rows as one batch, or none of them: sending the rows one by one finds a bad row."""
        log, injection, codec = self._interval.log, self._injection, self._route.codec
        first, end = numbers[0], numbers[-1] + 1
        if end - first == len(numbers):
            numbers = range(first, end)
        readers = self._route.readers
        if injection.watermark is not None or first < log.known_end or not readers:
            return False
        if self._asked.any_of(numbers):
            return False
        try:
            if injection.timestamp is None:
                if own is None:
                    return False
                moments = micros = list(map(checked_micros, own))  # type: ignore[arg-type]
            else:
                moments = micros = all_event_micros(list(map(injection.timestamp, values)))
            if injection.shown_by_reader:
                moments = [MIN_TIME]
            elif injection.seen is not None:
                moments = all_event_micros(list(map(injection.seen, values)))
            if encoded is None:
                encoded = codec.encode_all(values) if codec.mutable else [b""] * len(values)
            holds = self._holds(micros, moments)
            parts: list[tuple[Destination, Chunk]] = []
            for reader in readers:
                chunk = Chunk(self._stream.name, reader.step.id, source=log.id)
                chunk.numbers, chunk.micros, chunk.holds = numbers, micros, holds
                chunk.values = codec.copies(encoded) if parts and codec.mutable else values
                chunk.encoded = encoded
                addresses = reader.addresses(values, chunk.stream, numbers)
                chunk.keys, chunk.key_texts, chunk.slots = addresses
                if reader.step.node.named:
                    chunk.names = named_ids(_scope(reader), chunk.key_texts)
                parts += reader.step.cut(chunk)
            for destination, part in parts:
                if not destination.is_here:  # another worker takes the stored form alone
                    part.encoded = codec.encode_all(part.values)
                    codec.check_all(part.encoded, part.values)
        except BaseException:
            return False
        self._interval.sent_before += len(numbers) * len(readers)
        for destination, part in parts * self._env.options.inject_copies:
            destination.intake.append(part)
        if len(readers) > 1:
            everybody = sum(reader.bit for reader in readers)
            for number in numbers:
                log.wait_for_several(number, everybody)
        self._time.seen = max(self._time.seen, max(moments))
        if end - log.next_seq > len(numbers):
            log.lack(_gaps(numbers, log.next_seq))
        size = sum(len(text) or ASSUMED_ROW_BYTES for text in encoded)
        log.sent(end, min(holds), size)
        return True

    def _holds(self, micros: list[int], moments: list[int]) -> list[int]:
        """Timestamps as far as the source's watermark is not past them."""
        promised, seen = self._interval.watermarks.promised, self._time.seen
        lateness = self._time.lateness
        if min(micros) >= max(promised, seen - lateness, max(moments) - lateness):
            return micros
        if self._injection.shown_by_reader:
            return [max(each, promised, seen - lateness) for each in micros]
        newest = accumulate(moments, max, initial=seen)  # of the rows before each row
        return [
            max(each, promised, new - lateness) for each, new in zip(micros, newest, strict=False)
        ]

    def _send_one_by_one(self, rows: Sequence[Row]) -> None:
        log, time = self._interval.log, self._time
        promised = self._interval.watermarks.promised
        lateness = time.lateness
        least = MAX_TIME
        size = 0
        number_of_last = rows[-1].offset
        known = rows[0].offset < log.known_end
        done: list[int] = []
        for row in rows:
            if row.offset in self._asked:
                least = min(least, promised)
                self._give_up(row, self._rules.set_aside(row))
                continue
            if row.error is not None:
                least = min(least, promised)
                self._give_up(row, row.error)
                continue
            if row.watermark is not None:
                time.seen = max(time.seen, row.watermark + lateness)
                time.mark(row.offset + 1, self._env.now())
                done.append(row.offset)
                continue
            try:
                micros = self._rules.time_of(row)
                moment = self._rules.shown_by(row.value, micros)
                if known and log.is_acknowledged(row.offset):
                    time.seen = max(time.seen, moment)
                    continue
                hold = max(micros, promised, time.seen - lateness)
                size += self._send_to_all(row, micros, hold)
            except BaseException as error:
                least = min(least, promised)
                self._give_up(row, self._rules.blame(row, error))
                continue
            least = min(least, hold)
            time.seen = max(time.seen, moment)
        if number_of_last - log.next_seq >= len(rows):
            log.lack(_gaps([row.offset for row in rows], log.next_seq))
        log.sent(number_of_last + 1, max(least, promised), size)
        if done or known:
            log.acknowledge(done)
            self._interval.touch(urgent=False)

    def _address(
        self, reader: StreamReader, offset: int, value: Any, micros: int, hold: int
    ) -> tuple[Destination, Delivery[Any]]:
        route, log = self._route, self._interval.log.id
        key, key_text, slot = reader.address(value, route.stream, offset)
        named = reader.step.node.named
        id_ = record_id(log, offset)
        if named:
            (id_,) = named_ids(_scope(reader), [key_text])
        destination = reader.step.interval_of(slot)
        encoded = b""
        if route.codec.mutable or not destination.is_here:
            encoded = route.codec.encode(value)
            if not destination.is_here:
                route.codec.check(encoded, value)
        return destination, Delivery(
            key, value, micros, route.stream, key_text, slot, reader.step.id, hold,
            len(encoded) or ASSUMED_ROW_BYTES, encoded, log, offset, offset, id_, 0, named,
            log,
        )  # fmt: skip

    def _send_to_all(self, row: Row, micros: int, hold: int) -> int:
        """Give each reader a value of its own; returns the row's size in the credits."""
        codec = self._route.codec
        value = row.value
        found: list[tuple[Destination, Delivery[Any]]] = []
        for reader in self._route.readers:
            if found and codec.mutable:
                value = codec.check(codec.encode(row.value), row.value)
            found.append(self._address(reader, row.offset, value, micros, hold))
        self._interval.sent_before += len(found)
        for destination, delivery in found * self._env.options.inject_copies:
            destination.intake.append(delivery)
        if len(self._route.readers) > 1:
            all_readers = sum(reader.bit for reader in self._route.readers)
            self._interval.log.wait_for_several(row.offset, all_readers)
        return max((delivery.size for _, delivery in found), default=0)

    def _give_up(self, row: Row, error: InputError) -> None:
        """Stop at a row that cannot be read, or store it as a dead letter."""
        interval = self._interval
        if interval.log.is_acknowledged(row.offset):
            return
        if row.offset not in self._asked:
            self._rules.check_may_go_on(row, error)
        assert interval.lane is not None
        work = interval.lane.open_work(interval)
        work.given_up.append(row.offset)  # acknowledged when the letter is durable
        work.effects.count(BAD_ROWS, 1)
        work.effects.dead_letters.append(
            self._rules.letter(
                row,
                error,
                computation=interval.step.id,
                record_id=record_id(interval.log.id, row.offset),
                stamp=self._env.now(),
            )
        )


def _scope(reader: StreamReader) -> str:
    """The stream within which ids of the user are unique."""
    return reader.step.node.writes[0].name


def _is_plain(row: Row) -> bool:
    return row.error is None and row.watermark is None


def _gaps(numbers: Iterable[int], start: int) -> Iterator[tuple[int, int]]:
    """Numbers from `start` on that are left out, as runs: first, and one past the last."""
    for number in numbers:
        if number > start:
            yield start, number
        start = number + 1
