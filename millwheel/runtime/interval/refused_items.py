"""Records and timers that user code must not see: given up on where they are met.

* A worker notes what has blocked its event loop for too long (decision 63): another worker would be
  blocked as well.
* An operator asks for a record to be set aside (``millwheel set-aside``): it ends every worker that
  meets it.

A claim brings both. The owner forgets an item once its outcome is durable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from millwheel.core.model import Delivery, Firing
from millwheel.errors import CodeBlocked, MillwheelError, SetAside
from millwheel.runtime.interval.work import Item
from millwheel.store.port.requests import BlockingItem, OpenRequest, SettledRequest

SET_ASIDE = "set_aside"
"""The verb of an operator's request; its payload names the item: ``{"item": "record:…"}``."""


def name_in_store(item: Delivery[Any] | Firing) -> str:
    """The name of a record or timer among those of its key: the same when it runs again."""
    if isinstance(item, Delivery):
        return f"record:{item.id.hex()}"
    timer = item.timer
    return f"timer:{msgspec.json.encode([timer.kind, timer.tag, timer.micros]).decode()}"


class RefusedItems:
    """The records and timers of one interval that its user code must not see."""

    def __init__(self) -> None:
        self._why: dict[bytes, dict[str, MillwheelError]] = {}
        """The error in place of the call, by key and name."""

    def add(self, blocking: Iterable[BlockingItem], asked: Iterable[OpenRequest]) -> None:
        """Add the items that a claim has found."""
        for key, item, error in blocking:
            self._why.setdefault(key, {})[item] = CodeBlocked(error)
        for request in asked:
            if request.verb == SET_ASIDE and isinstance(request.payload, dict):
                item = str(request.payload.get("item"))
                self._why.setdefault(request.key, {})[item] = SetAside(request.id)

    def __len__(self) -> int:
        return len(self._why)

    def __contains__(self, key_text: bytes) -> bool:
        return key_text in self._why

    def refuse(self, item: Item) -> None:
        """Refuse to run an item.

        Raises:
            CodeBlocked: it has blocked a worker.
            SetAside: an operator has asked for it.
        """
        of_key = self._why.get(item.key_text)
        if of_key is not None and isinstance(item, (Delivery, Firing)):
            error = of_key.get(name_in_store(item))
            if error is not None:
                raise error.with_traceback(None)

    def forget(self, items: Iterable[Item]) -> None:
        """Forget items that are durable: given up on, or processed by a former owner after all."""
        for item in items:
            of_key = self._why.get(item.key_text)
            if of_key is None or not isinstance(item, (Delivery, Firing)):
                continue
            of_key.pop(name_in_store(item), None)
            if not of_key:
                del self._why[item.key_text]


def settled_by(error: BaseException) -> list[SettledRequest]:
    """The request that is done with an item that was given up on; none unless an operator has asked
    for it."""
    return [SettledRequest(error.request, "done")] if isinstance(error, SetAside) else []
