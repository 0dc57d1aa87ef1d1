from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from millwheel.store.port.placement import IntervalRow
from millwheel.store.port.requests import BlockingItem, OpenRequest, ParkedRows
from millwheel.store.port.states import TIMERS_A_PAGE, StateChange, TimerChange


@dataclass(slots=True)
class LogRow:
    """`source` names the partition of a replayable source."""

    id: int
    source: str | None


@dataclass(slots=True)
class Claim:
    interval: IntervalRow
    n: int
    bucket: int
    stamp: int
    input_watermark: int
    low_watermark: int
    acked: dict[int, tuple[int, list[tuple[int, int]]]]
    position: dict[str, Any] | None
    counters: dict[str, int]
    table_rows: dict[str, int]
    """Rows that the interval has written, by numbered table."""
    folded: int
    logs: list[LogRow]
    """Live logs, oldest first, without the one that this claim opened."""
    new_log: int
    """0 for an interval that writes no productions."""
    states: list[StateChange]
    """The last change of each entry that is not folded yet."""
    timers: list[TimerChange]
    """The soonest pending timers of each kind, in the order of time."""
    more_timers: frozenset[str]
    """Kinds that have further pending timers; see `Store.read_timers`."""
    parked: list[ParkedRows]
    blocking: list[BlockingItem]
    """Records and timers that blocked a former owner for too long; the claim deletes them from the
    store."""
    asked: list[OpenRequest]
    """The open requests to set records aside and, of an injector's interval, all open requests."""


class StoreClaims(Protocol):
    async def claim(
        self,
        worker: str,
        interval_ids: list[int],
        *,
        again: bool = False,
        timers: int = TIMERS_A_PAGE,
        sequencers: Mapping[int, int] | None = None,
    ) -> list[Claim]:
        """Claim intervals: raise their sequencers, and only then read their data (I4).

        Opens a log for each interval that is not a partition of a source. Ends sessions of the
        former owner that hold the intervals for longer than a moment, and no others.

        Args:
            again: the worker claims its own intervals again; intervals of other workers are not
                taken.
            timers: largest number of timers of each kind that is read.
            sequencers: by interval, the sequencer that was read. Then the claim takes exactly the
                intervals that still have it, that no newer code has owned, and that are free:
                without an owner, owned by this worker, or by one that has stopped, is unknown, or
                has an expired lease by the store's clock. Not together with `again`.

        Raises:
            Fenced: without `sequencers`: an interval is gone, or newer code has owned it, or, with
                `again`, another worker has claimed one; nothing was changed.
        """
        ...

    async def is_owner(self, interval_id: int, sequencer: int) -> bool: ...

    async def release(self, worker: str, sequencers: Mapping[int, int]) -> list[int]:
        """Release drained and folded intervals, with the sequencers of their claims, for their
        wanted owners.

        Returns those that the worker still owned.
        """
        ...
