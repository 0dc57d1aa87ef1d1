from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

Parked = Literal["failed", "waiting"]
"""A failed letter stops its parked key; a waiting one keeps its place."""


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
    """Part in a parked key (decision 60); None: its key continues."""
    watermark: int | None = None
    """Low watermark that user code sees when a letter of a parked key runs."""
    hold: int | None = None
    """Time at which a letter of a parked key holds the low watermark, with ``hold_watermark``."""
    version: int | None = None
    """Version of the stream's type that the value is of; None: not known, or no value of it."""


class PlacedSlots(NamedTuple):
    interval_id: int
    computation: int
    slot_from: int
    slot_to: int


class KeptLetter(NamedTuple):
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
    version: int | None = None
    """As in `DeadLetter`."""


class ParkedRows(NamedTuple):
    computation: int
    slot: int
    key: bytes
    rows: int
    size: int
    """Characters of the values."""
    failed: bool
    """A failed one stops the key."""
    times: list[int]
    """Timestamps in microseconds."""


class BlockingItem(NamedTuple):
    """A record or timer whose code has blocked a worker's event loop for longer than the limit."""

    key: bytes
    item: str
    """Identifies it among the records and timers of its key: see
    `millwheel.runtime.interval.giving_up.name_in_store`."""
    error: str


class ParkedKeyPlace(NamedTuple):
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
    """A dict; None: the arguments could not be read."""
    about: int | None
    """Number of a dead letter."""
    letter: KeptLetter | None
    """None if the dead letter is gone."""


class SettledRequest(NamedTuple):
    """The outcome of a request; its effects are in the same commit."""

    id: int
    """The number of the request; of a row of a parked key the negative of its letter's."""
    outcome: Literal["done", "refused", "failed"]
    detail: str = ""
    letter: int | None = None
    """The dead letter that it was about: deleted with ``done``."""
    failure: DeadLetter | None = None
    """New text of the dead letter, with ``failed``."""

    @property
    def is_row(self) -> bool:
        """Whether it is about a row of a parked key, which no operator has asked for."""
        return self.id < 0


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
