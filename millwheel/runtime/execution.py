"""Running user code over the items of one key.

Fast path: one context for all of them, state captured once at the end. If anything
raises, the key goes back to where it was and the items run again one by one, with the
state captured after each: the one that fails is found, retried as often as its
computation allows, and then given up on or raised (design, errors).
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

from millwheel.context import Context, Effects
from millwheel.errors import InvariantBroken, UserCodeError
from millwheel.model import Delivery, Firing
from millwheel.runtime.bundle import Item
from millwheel.runtime.interval import Interval
from millwheel.runtime.states import Change, KeyState
from millwheel.store.port import DeadLetter

Outcome = tuple[Effects, list[Change]]


async def run_items(
    interval: Interval, state: KeyState, items: list[Item], watermark: int, now: int
) -> Outcome:
    """Run one key's items in order; gives what they ask for.

    Raises:
        UserCodeError: an item failed for good and its computation says ``on_error="fail"``.
    """
    try:
        context = _context(interval, state, watermark, now)
        for item in items:
            await _run_one(interval, context, item)
        return context._effects, state.capture(interval.n + 1)
    except (Exception, asyncio.CancelledError) as error:
        state.revert()
        if _is_ours(error):
            raise
    return await _run_carefully(interval, state, items, watermark, now)


def _is_ours(error: BaseException) -> bool:
    """Whether an exception means that the engine stops, not that user code failed."""
    if isinstance(error, InvariantBroken):
        return True
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _context(interval: Interval, state: KeyState, watermark: int, now: int) -> Context[Any]:
    step = interval.step
    return Context(
        step.node.name,
        step.routes,  # type: ignore[arg-type]
        state,
        state.key,
        state.key_text,
        state.slot,
        watermark=watermark,
        promised=interval.promised,
        now=now,
    )


async def _run_one(interval: Interval, context: Context[Any], item: Item) -> None:
    computation = interval.step.node.computation
    assert computation is not None
    if type(item) is Delivery:
        context._begin(item.micros)
        await computation.process_record(item, context)
        return
    assert isinstance(item, Firing)
    if not interval.still_due(item):
        return
    timer = item.timer
    if context._effects.timers.get((item.key_text, timer.kind, timer.tag), item) is not item:
        return  # an item before it in this very run replaced or cancelled it
    context._begin(timer.micros)
    context._effects.timers[(item.key_text, timer.kind, timer.tag)] = None
    await computation.process_timer(timer, context)


async def _run_carefully(
    interval: Interval, state: KeyState, items: list[Item], watermark: int, now: int
) -> Outcome:
    total = Effects()
    changes: dict[str, bytes | None] = {}
    node = interval.step.node
    for item in items:
        for attempt in range(1, node.retries + 2):
            context = _context(interval, state, watermark, now)
            try:
                context._effects.timers.update(_decided(total, item))
                await _run_one(interval, context, item)
                changed = state.capture(interval.n + 1)
            except (Exception, asyncio.CancelledError) as error:
                state.revert()
                if _is_ours(error):
                    raise
                if attempt <= node.retries:
                    continue
                total.merge(give_up(interval, item, error, attempt, now))
            else:
                total.merge(context._effects)
                changes.update(changed)
            break
    return total, list(changes.items())


def _decided(total: Effects, item: Item) -> dict[Any, Any]:
    """What earlier items of this run decided about the very timer that is due."""
    if isinstance(item, Firing):
        name = (item.key_text, item.timer.kind, item.timer.tag)
        if name in total.timers:
            return {name: total.timers[name]}
    return {}


def give_up(
    interval: Interval, item: Item, error: BaseException, attempts: int, now: int
) -> Effects:
    """The end of an item that cannot be processed: a dead letter, or an error that stops all.

    Raises:
        UserCodeError: the computation says ``on_error="fail"``.
    """
    node = interval.step.node
    key = item.key
    what = (
        f"record of stream {item.stream!r}"
        if isinstance(item, Delivery)
        else f"timer {item.timer.tag!r}"
    )
    reason = f"{type(error).__name__}: {error}"
    if node.on_error == "fail":
        raise UserCodeError(
            f"{node.name!r} failed on a {what}, key {key!r}, {_place(item)}: {reason}\n"
            "Nothing of it was committed. Fix the code and start again, or add the computation "
            'with on_error="dead_letter" to set such records aside'
        ) from error
    effects = Effects()
    effects.dead_letters.append(dead_letter(interval, item, error, attempts, now))
    effects.counters["dead_letters"] = 1
    if isinstance(item, Firing):
        effects.timers[(item.key_text, item.timer.kind, item.timer.tag)] = None
    return effects


def _place(item: Item) -> str:
    if isinstance(item, Delivery):
        return f"log {item.log} number {item.seq}"
    return f"due {item.timer.at.isoformat()}"


def dead_letter(
    interval: Interval, item: Item, error: BaseException, attempts: int, now: int
) -> DeadLetter:
    """The row that keeps an item that was given up on."""
    lines = "".join(traceback.format_exception(error)).replace("\x00", "")
    common = {
        "slot": item.slot,
        "computation": interval.step.id,
        "key": item.key_text,
        "place": _place(item),
        "error": f"{type(error).__name__}: {error}".replace("\x00", ""),
        "traceback": lines[-20_000:],
        "attempts": attempts,
        "stamp": now,
    }
    if isinstance(item, Delivery):
        encode: Callable[[Any], bytes] = interval.step.codecs[item.stream].encode
        return DeadLetter(
            stream=item.stream,
            record_id=item.id,
            value=(item.encoded or encode(item.value)).decode(),
            ts=item.micros,
            **common,  # type: ignore[arg-type]
        )
    return DeadLetter(
        stream="timer", record_id=None, value=f'"{item.timer.kind} {item.timer.tag}"',
        ts=item.timer.micros, **common,  # type: ignore[arg-type]
    )  # fmt: skip
