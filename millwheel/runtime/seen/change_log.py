"""Logs that weak productions have arrived again with other values."""

from __future__ import annotations

from typing import Any

from millwheel.core.codec import shown
from millwheel.core.model import Delivery
from millwheel.core.redaction import redacts, shown_key


class ChangeLog:
    """Logs one such production of each computation, the first."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._logged: set[str] = set()

    def add(self, computation: str, delivery: Delivery[Any]) -> None:
        if computation in self._logged:
            return
        self._logged.add(computation)
        self._log.warning(
            "weak_changed",
            computation=computation,
            stream=delivery.stream,
            key=shown_key(delivery.key),
            value=None if redacts() else shown(delivery.value),
            what_it_means=(
                "a weak production that was durable here arrived again with another value from "
                "another worker process: the first value stays, this one was dropped; the counter "
                "weak_changed shows how many were dropped"
            ),
            what_to_do=(
                "nothing, if a deploy has changed the code that writes the stream. Otherwise the "
                "code does not depend on its record alone: remove everything that differs between "
                "runs"
            ),
        )
