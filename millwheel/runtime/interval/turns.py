"""The turns of an interval's keys: which items run now, one by one or not, and the result of a
failure.

Each item has its turn when its key is free, in the order of arrival; one that fails for good is
given up on (`on_error`). `millwheel.runtime.modes.parked_keys` overrides the hooks that do nothing
here::

    taken ──admitted──▶ the key is free ──begin──▶ user code ──decided──▶ open commit ──added──▶
                                                      │ stops: step_aside
                                                      ▼ fails: failed

Two kinds of records and timers must not be shown to user code, and are given up on:

* An item that has blocked a worker's event loop for too long (decision 63): another worker would be
  blocked as well.
* A record that an operator sets aside (``millwheel set-aside``): it ends every worker that meets
  it.

A claim brings both. The owner forgets an item once its outcome is durable.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from millwheel.core.effects import Effects
from millwheel.core.model import Delivery, Firing
from millwheel.errors import CodeBlocked, MillwheelError, SetAside
from millwheel.runtime.interval.giving_up import give_up, name_in_store
from millwheel.runtime.interval.key_requests import ParkedRow
from millwheel.runtime.interval.step import Step
from millwheel.runtime.interval.work import Item
from millwheel.store.port.claims import Claim
from millwheel.store.port.requests import ParkedKeyPlace

SET_ASIDE = "set_aside"
"""An operator's verb; its payload names the item: ``{"item": "record:…"}``."""

Stopped = set[tuple[int, bytes]]
"""Keys, by interval id, without further turns while a refused commit's items run apart."""


class Turns:
    is_empty = True
    """Whether nothing that waits here can run before an operator does something."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.careful: set[bytes] = set()
        """Keys with items that must run one by one."""
        self._refused: dict[bytes, dict[str, MillwheelError]] = {}
        """Errors to raise in place of calls, by key and name."""

    def restore(self, claim: Claim) -> None:
        for key, item, error in claim.blocking:
            self._refused.setdefault(key, {})[item] = CodeBlocked(error)
        for request in claim.asked:
            if request.verb == SET_ASIDE and isinstance(request.payload, dict):
                item = str(request.payload.get("item"))
                self._refused.setdefault(request.key, {})[item] = SetAside(request.id)
        self.careful = set(self._refused)

    def _is_careful(self, key_text: bytes) -> bool:
        return key_text in self._refused

    def _note(self, key_text: bytes) -> None:
        if self._is_careful(key_text):
            self.careful.add(key_text)
        else:
            self.careful.discard(key_text)

    def figures(self) -> dict[str, Any]:
        """For the heartbeat."""
        return {}

    # -- items that must not run ------------------------------------------------------------

    def refuse(self, item: Item) -> None:
        """Raises:
        CodeBlocked: the item has blocked a worker.
        SetAside: an operator has asked for it.
        """
        of_key = self._refused.get(item.key_text)
        if of_key is not None and isinstance(item, (Delivery, Firing)):
            error = of_key.get(name_in_store(item))
            if error is not None:
                raise error.with_traceback(None)

    def forget(self, items: Iterable[Item]) -> None:
        """Forget durable items: given up on, or processed by a former owner after all."""
        if not self._refused:
            return
        for item in items:
            of_key = self._refused.get(item.key_text)
            if of_key is None or not isinstance(item, (Delivery, Firing)):
                continue
            of_key.pop(name_in_store(item), None)
            if not of_key:
                del self._refused[item.key_text]
                self._note(item.key_text)

    # -- the next turn ----------------------------------------------------------------------

    def admitted(self, items: list[Item], running: Container[bytes] = ()) -> list[Item]:
        """The items that have their turn now.

        Args:
            running: keys that have a turn: their items wait behind it, and are asked again
                afterwards.
        """
        return items

    def begin(self, items: list[Item]) -> list[Item]:
        """The first of some items of a careful key; the others have another turn."""
        return items

    def apart(self, items: list[Item], stopped: Stopped) -> tuple[list[Item], list[Item]]:
        """The first of a key's items, which run again apart from other work, and the later ones.

        Args:
            stopped: gets the key if one of the items has no turn.
        """
        return items, []

    def ran_apart(self, key_text: bytes, effects: Effects, stopped: Stopped) -> None:
        """Args:
        stopped: gets the key if one of its items has failed.
        """

    # -- while user code runs ---------------------------------------------------------------

    def watermark_of(self, item: Item, watermark: int) -> int:
        """The low watermark that user code sees with an item."""
        return watermark

    def stops(self, item: Item, *, has_failed: bool) -> bool:
        """Whether an item must not run in this turn.

        Args:
            has_failed: an item before it has failed, and stops its key.
        """
        return False

    def step_aside(self, item: Item, now: int, watermark: int, before: Effects) -> Effects:
        """Let an item wait that must not run in this turn.

        Args:
            before: the effects of earlier items of its key in the same turn.
        """
        raise NotImplementedError

    def stops_key(self, item: Item) -> bool:
        """Whether the failure of an item stops its key."""
        return False

    def failed(
        self, item: Item, error: BaseException, attempts: int, now: int, watermark: int
    ) -> Effects:
        """Give up on an item.

        Args:
            watermark: the low watermark that its key sees.

        Raises:
            UserCodeError: the computation was added with ``on_error="fail"``.
        """
        return give_up(self.step, item, error, attempts, now)

    # -- what was decided -------------------------------------------------------------------

    def decided(self, key_text: bytes, items: list[Item], effects: Effects) -> list[Item]:
        """The effects of a key's items go into the open commit; gives the items that count."""
        return items

    def added(self, key_text: bytes) -> None:
        """The effects of a key's items are in the open commit."""

    # -- rows of parked keys ----------------------------------------------------------------

    def places(self) -> Iterator[ParkedKeyPlace]:
        """Parked keys with rows to read from the store."""
        return iter(())

    def add_rows(self, rows: Sequence[ParkedRow]) -> None:
        """Take rows that were read, in their order."""
        raise NotImplementedError
