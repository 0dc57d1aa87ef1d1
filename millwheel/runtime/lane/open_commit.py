"""A bundle: what one commit of a lane will carry, per interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millwheel.context import Effects
from millwheel.model import Delivery, Firing

if TYPE_CHECKING:
    from millwheel.runtime.interval.interval import Interval

Item = Delivery[Any] | Firing
"""What is processed: a record, or a timer that is due."""


class IntervalWork:
    """One interval's part of a bundle."""

    __slots__ = (
        "delivers",
        "effects",
        "given_up",
        "items",
        "low_watermark",
        "n",
        "percentiles",
        "states",
    )

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.effects = Effects()
        self.states: dict[tuple[bytes, str], tuple[int, bytes | None]] = {}
        """(key, entry) -> (slot, encoded value or None): the last one counts."""
        self.given_up: list[int] = []
        """Offsets of an injector's rows that could not be read."""
        self.low_watermark = 0
        self.percentiles: dict[float, int] = {}
        self.n = 0
        self.delivers = False
        """It carries what the delivery of a numbered bundle has left; its items are the members."""


class Bundle:
    """Finished work of one lane that waits for its commit."""

    __slots__ = ("fleeting", "works")

    def __init__(self) -> None:
        self.works: dict[Interval, IntervalWork] = {}
        self.fleeting: list[Delivery[Any]] = []
        """Productions that are sent once, when it is durable, and stored nowhere."""

    @property
    def count(self) -> int:
        """How many items it holds."""
        return sum(len(work.items) for work in self.works.values())

    @property
    def size(self) -> int:
        """How many bytes of effects, about."""
        return sum(work.effects.size for work in self.works.values())

    def work(self, interval: Interval) -> IntervalWork:
        """The part of one interval."""
        found = self.works.get(interval)
        if found is None:
            found = self.works[interval] = IntervalWork()
        return found

    def items(self) -> list[tuple[Interval, Item]]:
        """Everything in it that can be run apart, interval by interval in the order it ran; the
        members of a numbered bundle cannot."""
        return [
            (interval, item)
            for interval, work in self.works.items()
            if not work.delivers
            for item in work.items
        ]
