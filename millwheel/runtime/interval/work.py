"""The part of one commit that belongs to one interval."""

from __future__ import annotations

from typing import Any

from millwheel.context import Effects
from millwheel.model import Delivery, Firing

Item = Delivery[Any] | Firing
"""An item to process: a record, or a timer that is due."""


class IntervalWork:
    """One interval's part of a commit."""

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
        """Changes of state: (key, entry) -> (slot, encoded value; None: removed). The last change counts."""
        self.given_up: list[int] = []
        """Offsets of an injector's rows that could not be read."""
        self.low_watermark = 0
        """The exact low watermark that the commit promises."""
        self.percentiles: dict[float, int] = {}
        """The percentile low watermarks that the commit promises."""
        self.n = 0
        """The number of the commit in the interval's chain; 0: not built yet."""
        self.delivers = False
        """Whether it carries the effects of delivering a numbered bundle; its items are the bundle's
        members."""
