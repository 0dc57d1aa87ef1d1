"""Requests of operators to the owners of keys, as the owners see them (decision 59)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millwheel.store.port.requests import (
    KeptLetter,
    OpenRequest,
    ParkedKeyPlace,
    PlacedSlots,
    SettledRequest,
)
from millwheel.store.postgres import rows
from millwheel.store.postgres.connections import Subject


class PostgresRequests(Subject):
    async def open_requests(
        self, intervals: Sequence[PlacedSlots], taken: Sequence[int], limit: int
    ) -> list[OpenRequest]:
        ids, computations, slots_from, slots_to = zip(*intervals, strict=True)
        found = await self.connections.rows(
            "open_requests",
            {
                "ids": list(ids),
                "computations": list(computations),
                "slots_from": list(slots_from),
                "slots_to": list(slots_to),
                "taken": list(taken),
                "limit": limit,
            },
        )
        return [_open_request(row) for row in found]

    async def parked_rows(
        self, keys: Sequence[ParkedKeyPlace], taken: Sequence[int], limit: int
    ) -> list[OpenRequest]:
        ids, computations, slots, key_texts = zip(*keys, strict=True)
        found = await self.connections.rows(
            "parked_rows",
            {
                "ids": list(ids),
                "computations": list(computations),
                "slots": list(slots),
                "keys": [text.decode() for text in key_texts],
                "taken": list(taken),
                "limit": limit,
            },
        )
        return [_open_request(row) for row in found]

    async def settle_requests(self, settled: Sequence[SettledRequest]) -> None:
        encoded = msgspec.json.encode(rows.settled_rows(settled)).decode()
        await self.connections.run("settle_requests", {"rows": encoded})

    async def read_timer(
        self, interval_id: int, computation: int, slot: int, key: bytes, kind: str, tag: str
    ) -> tuple[int, int] | None:
        params = {
            "interval_id": interval_id, "computation": computation, "slot": slot,
            "key": key.decode(),
            "kind": kind, "tag": tag,
        }  # fmt: skip
        found = await self.connections.rows("key_timer", params)
        return (found[0][0], found[0][1]) if found else None


def _open_request(row: Sequence[Any]) -> OpenRequest:
    number, interval_id, verb, slot, key, payload, about, stream, record_id, *kept = row
    letter = None
    if about is not None and stream is not None:
        id_ = None if record_id is None else record_id.bytes
        letter = KeptLetter(about, stream, id_, *kept)
    return OpenRequest(
        number, interval_id, verb, slot, key.encode(), arguments(payload), about, letter
    )


def arguments(payload: str | None) -> Any:
    """The arguments of a request; None: Postgres takes larger numbers and deeper objects than this
    program."""
    try:
        return msgspec.json.decode(payload) if payload else {}
    except (msgspec.DecodeError, RecursionError):
        return None
