"""Sends the rows of one partition: timestamps, keys and holds, or dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from millwheel.codec import LETTER_CHARACTERS, named_id, place_of, reason, shown, storable
from millwheel.context import BAD_ROWS
from millwheel.errors import InputError, MillwheelError
from millwheel.model import MAX_TIME, MIN_TIME, Delivery, event_micros, record_id, to_micros
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.routing import NOBODY, Destination, StreamReader
from millwheel.runtime.source.source_time import SourceTime
from millwheel.sources import Partition, Row
from millwheel.store.port import DeadLetter

ASSUMED_ROW_BYTES = 256
"""Size of a row in the credits if its value is not encoded here: its reader is on this worker, and cannot
change the value."""


class RowSender:
    """Sends rows of a partition to the readers of its stream, since it was opened."""

    def __init__(
        self, env: Environment, interval: Interval, partition: Partition, time: SourceTime
    ) -> None:
        node = interval.step.node
        assert node.injection is not None
        self._env = env
        self._interval = interval
        self._partition = partition
        self._time = time
        self._injection = node.injection
        self._stream = node.writes[0]
        self._route = interval.step.routes[self._stream.name]
        readers = self._route.readers
        simple = len(readers) == 1 and env.options.inject_copies == 1
        self._only_reader = readers[0] if simple and not readers[0].step.node.named else None

    def send(self, rows: Sequence[Row]) -> None:
        """Send rows to all readers of the stream, as one batch; bad rows become dead letters.

        A row holds the watermark at no less than the source's promise when the row was read: an older row
        is late by declaration, and must not hold the watermark back while it is queued.
        """
        log, number = self._interval.log, self._interval.log.id
        route, stream = self._route, self._stream.name
        reader = self._only_reader
        time, promised = self._time, self._interval.watermarks.promised
        seen, lateness = time.seen, time.lateness
        injection = self._injection
        timestamp, seen_of, watermark_of = injection.timestamp, injection.seen, injection.watermark
        encode, check, mutable = route.codec.encode, route.codec.check, route.codec.mutable
        receiver = reader.step.id if reader is not None else NOBODY
        least = MAX_TIME
        size = 0
        number_of_last = rows[-1].offset
        known = rows[0].offset < log.known_end
        done: list[int] = []
        disorder = time.disorder if self._interval.watermarks.percentiles else None
        holds: list[int] = []
        """The hold of each row, if percentile low watermarks are kept."""
        for row in rows:
            offset, value = row.offset, row.value
            if row.error is not None:
                least = min(least, promised)
                self._give_up(row, row.error)
                continue
            if row.watermark is not None:
                seen = max(seen, row.watermark + lateness)
                time.seen = seen
                time.mark(offset + 1, self._env.now())
                done.append(offset)
                continue
            try:
                micros = event_micros(timestamp(value))
                if watermark_of is not None:
                    given = watermark_of(value)
                    moment = MIN_TIME if given is None else to_micros(given)
                else:
                    moment = micros if seen_of is None else event_micros(seen_of(value))
                if known and log.is_acknowledged(offset):
                    seen = max(seen, moment)
                    continue
                hold = micros if micros > promised else promised
                if hold < seen - lateness:
                    hold = seen - lateness
                if disorder is not None:
                    disorder.see(micros)
                    holds.append(hold)
                if reader is None:
                    size += self._send_to_all(row, micros, hold)
                else:
                    # `_address`, inlined: one reader without user-supplied ids is the normal case
                    key, key_text, slot = reader.address(value, stream, offset)
                    destination = reader.step.interval_of(slot)
                    encoded = b""
                    if mutable or not destination.is_here:
                        encoded = encode(value)
                        if not destination.is_here:
                            check(encoded, value)
                    bytes_ = len(encoded) or ASSUMED_ROW_BYTES
                    destination.intake.append(
                        Delivery(
                            key, value, micros, stream, key_text, slot, receiver, hold,
                            bytes_, encoded, number, offset, offset,
                            record_id(number, offset), 0, False, number,
                        )
                    )  # fmt: skip
                    size += bytes_
            except BaseException as error:
                least = min(least, promised)
                self._give_up(row, self._blame(row, error))
                continue
            if hold < least:
                least = hold
            if moment > seen:
                seen = moment
        time.seen = seen
        if number_of_last - log.next_seq >= len(rows):
            log.lack(_gaps(rows, log.next_seq))
        log.sent(number_of_last + 1, max(least, promised), size, holds=holds)
        if done or known:
            log.acknowledge(done)
            self._interval.touch(urgent=False)

    def _address(
        self, reader: StreamReader, offset: int, value: Any, micros: int, hold: int
    ) -> tuple[Destination, Delivery[Any]]:
        """The delivery of a row for one reader, and its destination; the reader's extractor gives the key."""
        route, log = self._route, self._interval.log.id
        key, key_text, slot = reader.address(value, route.stream, offset)
        named = reader.step.node.named
        id_ = record_id(log, offset)
        if named:
            id_ = named_id(reader.step.node.writes[0].name, key_text.decode())
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
        """Send a row to each reader, with a value of its own, in `inject_copies` copies.

        Returns:
            The row's size in the credits.
        """
        codec = self._route.codec
        value = row.value
        found: list[tuple[Destination, Delivery[Any]]] = []
        for reader in self._route.readers:
            if found and codec.mutable:
                value = codec.check(codec.encode(row.value), row.value)
            found.append(self._address(reader, row.offset, value, micros, hold))
        for destination, delivery in found * self._env.options.inject_copies:
            destination.intake.append(delivery)
        if len(self._route.readers) > 1:
            all_readers = sum(reader.bit for reader in self._route.readers)
            self._interval.log.wait_for_several(row.offset, all_readers)
        return max((delivery.size for _, delivery in found), default=0)

    def _blame(self, row: Row, error: BaseException) -> InputError:
        """The error to report for a bad row, with its place in the input."""
        place = f"{self._partition.identity}, line {row.line}"
        if isinstance(error, MillwheelError):
            return InputError(f"{place}: {error}")
        option, function = self._at_fault(row.value)
        return InputError(
            f"{place}: {option}= of inject({self._stream.name!r}, ...), {place_of(function)}, failed or "
            f"returned no time: {reason(error)}; value {shown(row.value, 300)}"
        )

    def _at_fault(self, value: Any) -> tuple[str, Callable[[Any], Any]]:
        """The function given to `inject` that fails on a value or returns no time, with its option."""
        injection = self._injection
        try:
            event_micros(injection.timestamp(value))
        except BaseException:
            return "timestamp", injection.timestamp
        if injection.watermark is not None:
            return "watermark", injection.watermark
        return "seen", injection.seen or injection.timestamp

    def _give_up(self, row: Row, error: InputError) -> None:
        """Handle a row that cannot be read: stop, or store it as a dead letter and continue."""
        if self._interval.log.is_acknowledged(row.offset):
            return
        if self._injection.on_error == "fail":
            raise InputError(
                f"{error}. Correct {'that function or the row' if row.error is None else 'the file'} "
                "and start again, or pass "
                'on_error="dead_letter" to inject(...) to set such rows aside'
            ) from error
        interval = self._interval
        assert interval.lane is not None
        work = interval.lane.open_work(interval)
        work.given_up.append(row.offset)  # acknowledged when the letter is durable
        work.effects.count(BAD_ROWS, 1)
        work.effects.dead_letters.append(
            DeadLetter(
                slot=0,
                computation=interval.step.id,
                stream=self._stream.name,
                record_id=record_id(self._interval.log.id, row.offset),
                key=None,
                value=storable(row.text or shown(row.value, LETTER_CHARACTERS)),
                ts=None,
                place=f"{self._partition.identity}, line {row.line}",
                error=storable(str(error)),
                traceback="",
                attempts=1,
                stamp=self._env.now(),
            )
        )


def _gaps(rows: Sequence[Row], start: int) -> Iterator[tuple[int, int]]:
    """The numbers from `start` on that rows skip, as runs: (first, one past the last)."""
    for row in rows:
        if row.offset > start:
            yield start, row.offset
        start = row.offset + 1
