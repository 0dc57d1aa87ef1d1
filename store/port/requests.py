from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

Parked = Literal["failed", "waiting"]
"""Of a dead letter in a parked key: it has failed and stops the key, or it waits in its order."""


class DeadLetter(NamedTuple):
    """A record, row or timer that the engine gave up on, with the reason."""

    slot: int
    computation: int
    stream: str
    record_id: bytes | None
    key: bytes | None
    value: str
    ts: int | None
    place: str
    error: str
    traceback: str
    attempts: int
    stamp: int
    parked: Parked | None = None
    """Its part in a parked key (decision 60); None: its key continues."""
    watermark: int | None = None
    """In a parked key, the low watermark that user code sees when it runs."""
    hold: int | None = None
    """In a parked key, where it holds the low watermark if the key's computation parks with
    ``hold_watermark``."""


class PlacedSlots(NamedTuple):
    interval_id: int
    computation: int
    slot_from: int
    slot_to: int


class KeptLetter(NamedTuple):
    """A dead letter that its owner is asked to process again."""

    id: int
    stream: str
    record_id: bytes | None
    value: str
    ts: int | None
    attempts: int
    parked: Parked | None = None
    watermark: int | None = None
    stamp: int = 0
    """When the engine gave up on it, in microseconds."""


class ParkedRows(NamedTuple):
    """A parked key, with the size of its rows."""

    computation: int
    slot: int
    key: bytes
    rows: int
    size: int
    """Characters of their values."""
    failed: bool
    """A failed one stops the key."""
    times: list[int]
    """Timestamps in microseconds."""


class BlockingItem(NamedTuple):
    """A record or timer whose code has blocked a worker's event loop for longer than the limit."""

    key: bytes
    item: str
    """Identifies it among the records and timers of its key: see
    `millwheel.runtime.interval.refused_items`."""
    error: str
    """With the lines of the code that blocked."""


class ParkedKeyPlace(NamedTuple):
    """A parked key of an interval."""

    interval_id: int
    computation: int
    slot: int
    key: bytes


class OpenRequest(NamedTuple):
    """A request of an operator to the owner of a key (decision 59)."""

    id: int
    interval_id: int
    verb: str
    slot: int
    key: bytes
    payload: Any
    """Its arguments, a dict; None: they could not be read."""
    about: int | None
    """The dead letter that it is about."""
    letter: KeptLetter | None
    """None: the dead letter is gone."""


class SettledRequest(NamedTuple):
    """The outcome of a request; its effects are in the same commit."""

    id: int
    outcome: Literal["done", "refused", "failed"]
    detail: str = ""
    letter: int | None = None
    """The dead letter that it was about: deleted with ``done``."""
    failure: DeadLetter | None = None
    """With ``failed``: the new text of the dead letter."""


class StoreRequests(Protocol):
    async def open_requests(
        self, intervals: Sequence[PlacedSlots], taken: Sequence[int], limit: int
    ) -> list[OpenRequest]:
        """Due requests to the owner of some intervals, the oldest first, except those that it has
        `taken`."""
        ...

    async def parked_rows(
        self, keys: Sequence[ParkedKeyPlace], taken: Sequence[int], limit: int
    ) -> list[OpenRequest]:
        """The records and timers that wait in parked keys, in order, as requests to run them,
        except `taken` letters.

        Each has the negative of its letter's number. `limit` is the most rows of each key.
        """
        ...

    async def settle_requests(self, settled: Sequence[SettledRequest]) -> None:
        """Settle requests that have no effect."""
        ...
