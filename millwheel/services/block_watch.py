"""Watches the event loop from a thread, and keeps the worker's lease while user code blocks the
loop (decision 63).

::

    turns ──no answer for a third of a lease──▶ blocked ──block_limit_seconds──▶ given up
      ▲                                          │                                  │
      └────────────────the loop answers──────────┴──────────────────────────────────┘

While the loop is *blocked*, the thread sends the heartbeats, so that no other worker takes the
intervals and runs into the same code. It logs the computation, the key, the record and the lines of
code. At the limit it notes the record in the store and lets the lease end: ``on_error`` applies to
the record where it is met again.

An extension in C that does not release the interpreter's lock blocks this thread too.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

import millwheel
from millwheel.core.model import Delivery, Firing
from millwheel.core.redaction import shown_key
from millwheel.errors import Fenced, StoreError
from millwheel.runtime.engine import Engine
from millwheel.runtime.interval.giving_up import name_in_store
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.work import Item
from millwheel.runtime.ownership.heartbeat import BEATS_PER_LEASE
from millwheel.services import loop

NOTICE_SECONDS = 2.0
"""A loop that is blocked for this long is logged; again at each doubling of the time."""

LOOKS_PER_BEAT = 8

LONGEST_LOOK_SECONDS = 0.25

FRAMES = 6
"""Lines of code that are shown."""

OURS = str(Path(millwheel.__file__).parent)
LOOP = (str(Path(asyncio.__file__).parent), str(Path(loop.__file__)))
"""Files that run the event loop: lines outside of them belong to the command."""


class Culprit(NamedTuple):
    """The code that blocks the loop, as far as it is known."""

    task: str
    interval: Interval | None
    item: Item | None
    lines: list[str]
    """Lines of code, the innermost last."""

    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = {"task": self.task}
        if self.interval is not None:
            found = {"computation": self.interval.step.name}
        if self.item is not None:
            found |= {"key": shown_key(self.item.key), "record": place_of(self.item)}
        return {**found, "lines": self.lines}

    def __str__(self) -> str:
        *named, (_, lines) = self.fields().items()
        what = ", ".join(
            value if name == "record" else f"{name} {value}"  # its place begins with its kind
            for name, value in named
        )
        return f"{what}, at {lines[-1]}" if lines else what


def place_of(item: Item) -> str:
    """The origin of a record, or a timer's tag and time; no values."""
    if isinstance(item, Delivery):
        return f"record {item.seq} of log {item.log}, stream {item.stream!r}"
    if isinstance(item, Firing):
        return f"timer {item.timer.tag!r} due {item.timer.at.isoformat()}"
    return f"request {item.id}"


class Heartbeats(Protocol):
    """See `millwheel.store.postgres.thread_heartbeat`."""

    def beat(self, lease_seconds: float, load: dict[str, object], stamp: int) -> int: ...
    def note(self, computation: int, slot: int, key: bytes, item: str, error: str) -> None: ...
    def forget(self) -> None: ...
    def close(self) -> None: ...


class BlockWatch:
    def __init__(self, engine: Engine, heartbeats: Heartbeats) -> None:
        self._engine = engine
        self._heartbeats = heartbeats
        settings = engine.settings
        self._beat_seconds = settings.lease_seconds / BEATS_PER_LEASE
        self._look_seconds = min(LONGEST_LOOK_SECONDS, self._beat_seconds / LOOKS_PER_BEAT)
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._turned = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="block watch", daemon=True)
        self._beaten_at = 0.0
        """Monotonic time of the last heartbeat."""
        self._notice_at = 0.0
        """Blocked seconds at which it is logged next."""
        self._gave_up = False

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._ended.set()
        await asyncio.to_thread(self._thread.join)
        self._heartbeats.close()

    # -- in the thread --------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._ended.wait(self._look_seconds):
            self._turned.clear()
            asked = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._turned.set)
            except RuntimeError:  # closed
                return
            self._begin()
            while not self._turned.wait(self._look_seconds):
                if self._ended.is_set():
                    return
                self._guarded(self._blocked, time.monotonic() - asked)
            self._guarded(self._free, time.monotonic() - asked)

    def _guarded(self, step: Callable[[float], None], seconds: float) -> None:
        """The thread continues whatever a step raises."""
        try:
            step(seconds)
        except Exception:
            self._engine.log.exception("block_watch_failed")

    def _begin(self) -> None:
        self._notice_at = NOTICE_SECONDS
        self._gave_up = False
        self._beaten_at = time.monotonic()

    def _blocked(self, seconds: float) -> None:
        if seconds < min(self._beat_seconds, NOTICE_SECONDS) or self._gave_up:
            return
        culprit = self._culprit()
        self._engine.blocked_by = str(culprit)
        if seconds >= self._engine.settings.block_limit_seconds:
            self._give_up(culprit, seconds)
            return
        if seconds >= self._notice_at:
            self._notice_at = 2 * seconds
            self._engine.log.warning(
                "loop_blocked",
                seconds=round(seconds, 1),
                **culprit.fields(),
                what_it_means=(
                    "this code does not let the event loop turn, so no other code of this worker "
                    "runs; its lease is kept until block_limit_seconds"
                ),
                what_to_do=(
                    "await: an async client in place of a blocking one, asyncio.to_thread around a "
                    "blocking call, less work for one record"
                ),
            )
        if time.monotonic() - self._beaten_at >= self._beat_seconds:
            self._beat(culprit, seconds)

    def _beat(self, culprit: Culprit, seconds: float) -> None:
        engine, heartbeat = self._engine, self._engine.heartbeat
        if heartbeat is None or engine.lease.left <= 0:
            # after its end others may have claimed intervals: the loop loses them when it turns
            return
        asked, before = engine.clock.monotonic(), engine.clock.now()
        load = {
            **heartbeat.published,
            "blocked": {"seconds": round(seconds, 1), "by": str(culprit)},
        }
        self._beaten_at = time.monotonic()
        try:
            now = self._heartbeats.beat(engine.settings.lease_seconds, load, engine.env.stamps.last)
        except (StoreError, Fenced) as error:
            engine.log.warning("lease_not_kept", error=str(error))
            return
        engine.lease.renewed(asked)
        heartbeat.answered(before, now)

    def _give_up(self, culprit: Culprit, seconds: float) -> None:
        """Let the lease end, so that other workers take the intervals; note the record first."""
        self._gave_up = True
        limit = self._engine.settings.block_limit_seconds
        reason = "\n".join(
            [
                (
                    f"it blocked the event loop of a worker for {seconds:.0f} s "
                    f"(block_limit_seconds is {limit:g}):"
                ),
                *culprit.lines,
            ]
        )
        self._engine.log.error(
            "block_limit_reached",
            seconds=round(seconds, 1),
            **culprit.fields(),
            what_it_means=(
                "the worker's lease ends, and other workers take its intervals. They do not run "
                "this code on this record again: on_error of the computation applies to it"
            ),
        )
        item = culprit.item
        if culprit.interval is None or not isinstance(item, (Delivery, Firing)):
            return
        try:
            self._heartbeats.note(
                culprit.interval.step.id, item.slot, item.key_text, name_in_store(item), reason
            )
        except StoreError as error:
            self._engine.log.warning("blocking_item_not_noted", error=str(error))

    def _free(self, seconds: float) -> None:
        if self._engine.blocked_by is None:
            return
        self._engine.blocked_by = None
        if seconds >= NOTICE_SECONDS:
            self._engine.blocked_seconds += seconds
            self._engine.log.info("loop_turns", after_seconds=round(seconds, 1))
        if self._gave_up and (self._engine.lease.left > 0 or not self._engine.env.is_shared):
            try:
                self._heartbeats.forget()
            except StoreError as error:
                self._engine.log.warning("blocking_item_not_forgotten", error=str(error))

    def _culprit(self) -> Culprit:
        task = asyncio.current_task(self._loop)
        found = self._engine.lane.tasks.running(task)
        interval, item = (None, None) if found is None else found
        frame = sys._current_frames().get(self._loop_thread)
        return Culprit("" if task is None else task.get_name(), interval, item, lines_of(frame))


def lines_of(frame: FrameType | None) -> list[str]:
    """The lines of code that the loop's thread runs in this turn; those of the engine only if there
    are no others."""
    inner = takewhile(
        lambda each: not each.filename.startswith(LOOP), reversed(traceback.extract_stack(frame))
    )
    frames = list(inner)[::-1]
    own = [each for each in frames if not each.filename.startswith(OURS)]
    return [
        f"{each.filename}:{each.lineno} in {each.name}: {each.line or ''}".rstrip(": ")
        for each in (own or frames)[-FRAMES:]
    ]
