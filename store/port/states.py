from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class StateChange(NamedTuple):
    """One entry of one key after a commit; a `value` of None means that it is removed."""

    interval_id: int
    n: int
    computation: int
    slot: int
    key: bytes
    entry: str
    value: bytes | None
    version: int


class StateRun(NamedTuple):
    """Entries of one interval after a commit, as columns."""

    interval_id: int
    n: int
    computation: int
    version: int
    slots: Sequence[int]
    keys: Sequence[bytes]
    entries: Sequence[str] | None
    """None: the plain part of each state."""
    values: Sequence[bytes | None]


class OldState(NamedTuple):
    """Written by another version of its type than the code's."""

    computation: str
    key: bytes
    entry: str
    """As in `StateChange`."""
    version: int
    value: bytes


TIMER_KINDS = ("watermark", "wall", "hold")
"""Watermark and wall timers fire by event time and by the clock, holds never."""

TIMERS_A_PAGE = 20_000

TimerPlace = tuple[int, int, bytes, str]
"""Due, slot, key and tag."""


class TimerChange(NamedTuple):
    """One timer after a commit; a `due` of None means that it has fired or was cancelled."""

    interval_id: int
    n: int
    computation: int
    slot: int
    key: bytes
    kind: str
    tag: str
    due: int | None
    hold: int | None


class StoredEntry(NamedTuple):
    slot: int
    key: bytes
    entry: str
    """Empty for the state object."""
    value: bytes
    version: int


class StoreStates(Protocol):
    async def read_timer(
        self, interval_id: int, computation: int, slot: int, key: bytes, kind: str, tag: str
    ) -> tuple[int, int] | None:
        """Due time and hold of a timer, in microseconds; None: there is no such timer."""
        ...

    async def read_timers(
        self, interval_id: int, kind: str, after: TimerPlace | None, limit: int
    ) -> list[TimerChange]:
        """The next pending timers after a place in the order of time."""
        ...

    async def load_keys(
        self, computation: int, keys: list[tuple[int, bytes]], limit: int
    ) -> list[list[tuple[str, bytes, int]]]:
        """The first `limit` entries of each key: (entry, value, version)."""
        ...

    async def scan_states(
        self, computation: int, slots: tuple[int, int], limit: int
    ) -> list[StoredEntry]:
        """Up to `limit` entries of the keys of some slots ``[from, to)``, those of a key
        together."""
        ...

    async def load_entry(
        self, computation: int, slot: int, key: bytes, entry: str
    ) -> tuple[bytes, int] | None: ...

    async def scan_entries(
        self, computation: int, slot: int, key: bytes, after: str, before: str, limit: int
    ) -> list[tuple[str, bytes, int]]: ...

    async def sample_states(self, versions: Mapping[str, int], most: int) -> list[OldState]:
        """Plain states, entries of collections and shared tables of other versions than the code's,
        out of a bounded part of the stored ones.

        `versions` is by name of the computation; `most` limits each computation, collection and
        version.
        """
        ...

    async def fold(self, interval_id: int, sequencer: int, after: int, through: int) -> bool:
        """Fold the commits in (after, through]; False if another worker owns the interval or has
        folded it.

        `after` is the last commit that the owner knows to be folded. If the answer of a fold was
        lost, more commits are folded, and the owner may repeat the fold.
        """
        ...
