"""The part of one commit that belongs to one interval."""

from __future__ import annotations

from typing import Any

from millwheel.core.chunk import Chunk
from millwheel.core.effects import Effects
from millwheel.core.model import Delivery, Firing
from millwheel.runtime.interval.key_requests import KeyRequest
from millwheel.runtime.keys.key_state import KeyState

Item = Delivery[Any] | Firing | KeyRequest
"""An item to process: a record, a timer that is due, or an operator's request."""


class IntervalWork:
    """One interval's part of a commit."""

    __slots__ = (
        "chunks",
        "delivers",
        "effects",
        "entries",
        "given_up",
        "items",
        "low_watermark",
        "n",
        "places",
        "records_out",
        "states",
    )

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        """Chunks that have run as a whole."""
        self.places: list[int] = []
        """Number of the items that ran before each of these chunks."""
        self.items: list[Item] = []
        """Records and timers that have run one by one."""
        self.effects = Effects()
        self.states: dict[KeyState, bytes | None] = {}
        """Changed states without their collections, encoded; None: removed. The last change
        counts."""
        self.entries: dict[tuple[bytes, str], tuple[int, bytes | None]] = {}
        """Changed entries: (key, entry) -> (slot, encoded value; None: removed)."""
        self.given_up: list[int] = []
        """Offsets of an injector's rows that could not be read."""
        self.low_watermark = 0
        """The low watermark that the commit promises."""
        self.n = 0
        """The number of the commit in the interval's chain; 0: not built yet."""
        self.records_out = 0
        """Number of records for readers, and of rows and lines, that the commit counts."""
        self.delivers = False
        """Whether it carries the effects of delivering a numbered bundle; its items are the
        bundle's members."""

    @property
    def requests(self) -> int:
        """Number of requests of operators among the items; each has been settled."""
        if not self.effects.settled:
            return 0
        return sum(isinstance(item, KeyRequest) for item in self.items)

    @property
    def count(self) -> int:
        """Number of records and timers."""
        count = len(self.items)
        for chunk in self.chunks:
            count += len(chunk.slots)
        return count
