"""What one commit carries of one interval."""

from __future__ import annotations

from typing import Any

from millwheel.context import Effects
from millwheel.model import Delivery, Firing

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
