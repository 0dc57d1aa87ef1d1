"""Turns Kafka's records into rows: values, timestamps, tombstones, and records that cannot be
read."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec

from millwheel.core.codec import place_of, reason
from millwheel.core.json_rows import JsonRows
from millwheel.errors import InputError, UsageError
from millwheel.kafka.port import KafkaRecord
from millwheel.sources import Row, Rows

Decode = Callable[[KafkaRecord], Any]
Tombstones = Literal["skip", "deliver"]

SHOWN_BYTES = 12_000

SHOWN_KEY_BYTES = 1_000

SHOWN_HEADERS = 20


class Decoding:
    def __init__(
        self, place: str, value_type: Any, decode: Decode | None, tombstones: Tombstones
    ) -> None:
        """
        Args:
            place: names the partition in messages.

        Raises:
            UsageError: JSON cannot be decoded to this type.
        """
        self._place = place
        self._decode = decode
        self._skips = tombstones == "skip"
        try:
            self._json = JsonRows(value_type)
        except (TypeError, NotImplementedError, NameError) as error:
            if decode is None:
                raise UsageError(
                    f"{place}: values cannot be read as {value_type!r}: {error}; give decode="
                ) from error

    async def rows(self, records: Sequence[KafkaRecord]) -> Sequence[Row]:
        """The rows of some records: as columns if they have no gaps and can be read together.

        Raises:
            InputError: ``decode=`` has raised it: the source cannot continue; no record is at
                fault.
        """
        return self._together(records) or await self._one_by_one(records)

    def _together(self, records: Sequence[KafkaRecord]) -> Rows | None:
        first, last = records[0].offset, records[-1].offset
        raws = [record.value for record in records if record.value is not None]
        if self._decode is not None or not last - first + 1 == len(records) == len(raws):
            return None
        micros = [1000 * record.timestamp for record in records]
        if min(micros) < 0:
            return None
        values = self._json.together(raws)
        return None if values is None else Rows(first, first, values, raws, micros)

    async def _one_by_one(self, records: Sequence[KafkaRecord]) -> list[Row]:
        rows = [await self._row(record) for record in records]
        return [row for row in rows if row is not None]

    async def _row(self, record: KafkaRecord) -> Row | None:
        raw, offset = record.value, record.offset
        if raw is None and self._skips:
            return None
        if record.timestamp < 0:
            return self._bad(record, "the record has no timestamp: its producer gave none")
        try:
            if self._decode is not None:
                value = self._decode(record)
                if isinstance(value, Awaitable):
                    value = await value
            else:
                value = self._json.one(b"null" if raw is None else raw)
        except InputError:
            raise
        except Exception as error:  # decode= may raise anything
            if self._decode is None:
                return self._bad(record, str(error))
            problem = f"decode=, {place_of(self._decode)}, failed: {reason(error)}"
            return self._bad(record, problem)
        return Row(offset, offset, value, micros=1000 * record.timestamp)

    def _bad(self, record: KafkaRecord, what: str) -> Row:
        text = msgspec.json.encode(
            {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": _base64(record.key, SHOWN_KEY_BYTES),
                "value": _base64(record.value, SHOWN_BYTES),
                "value_bytes": len(record.value or b""),
                "headers": [
                    (name[:SHOWN_KEY_BYTES], _base64(value, SHOWN_KEY_BYTES))
                    for name, value in record.headers[:SHOWN_HEADERS]
                ],
            }
        ).decode()
        error = InputError(f"{self._place}, offset {record.offset}: {what}")
        return Row(record.offset, record.offset, error=error, text=text)


def _base64(data: bytes | None, limit: int) -> str | None:
    return None if data is None else base64.b64encode(data[:limit]).decode()
