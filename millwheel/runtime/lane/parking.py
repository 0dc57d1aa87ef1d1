"""Parks the keys of records that fail, and stores the records that arrive for them (decision 60)."""

from __future__ import annotations

from millwheel.context import Effects
from millwheel.errors import UserCodeError
from millwheel.model import MAX_TIME, Delivery, Firing
from millwheel.runtime.interval.dead_letters import give_up, waiting_letter
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.parked_keys import HOLD
from millwheel.runtime.interval.requests import KeyRequest
from millwheel.runtime.interval.work import Item
from millwheel.store.port import SettledRequest


def set_aside(
    interval: Interval, item: Item, error: BaseException, attempts: int, now: int, watermark: int
) -> Effects:
    """Give up on an item; if its computation says so, its key is parked.

    Args:
        watermark: the low watermark that its key sees.

    Raises:
        UserCodeError: the computation was added with ``on_error="fail"``, or too many keys are parked.
    """
    effects = give_up(interval.step, item, error, attempts, now)
    park = interval.step.node.park
    if park is None or isinstance(item, KeyRequest):
        return effects
    if len(interval.parked) >= park.most_keys and item.key_text not in interval.parked:
        raise UserCodeError(
            f"{interval.step.name!r} has {len(interval.parked):,} parked keys of the slots {interval.name}, the most that "
            f"Park(most_keys={park.most_keys}) allows, and another one failed: {error}\nNothing of this record was "
            "committed. Mend the code, start again, and retry them: millwheel dead-letters list"
        ) from error
    if isinstance(item, Firing) and item.watermark is not None:
        watermark = item.watermark
    (letter,) = effects.dead_letters
    effects.dead_letters = [letter._replace(parked="failed", watermark=watermark)]
    _hold(interval, item, effects, effects)
    return effects


def step_aside(
    interval: Interval, item: Item, now: int, watermark: int, before: Effects
) -> Effects:
    """Let an item wait: a record in a row, a due timer as it is, a row that was read where it is.

    Args:
        before: the effects of earlier items of its key that are not in memory yet.
    """
    effects = Effects()
    if isinstance(item, KeyRequest):
        effects.settled.append(SettledRequest(item.id, "refused"))
    elif isinstance(item, Firing):
        hold = item.hold if interval.parked.park.hold_watermark else MAX_TIME
        name = (item.key_text, item.timer.kind, item.timer.tag)
        effects.timers[name] = (item.timer.micros, hold, item.key, item.slot)
    else:
        interval.step.renew(item)
        letter = waiting_letter(interval.step, item, watermark, now)
        effects.dead_letters.append(letter)
        effects.size += len(letter.value)
        _hold(interval, item, effects, before)
    return effects


def release_hold(interval: Interval, key_text: bytes, effects: Effects) -> None:
    """Release the hold of a parked key with its last row."""
    key = interval.parked.get(key_text)
    if key is not None and key.rows == 1:
        effects.timers[(key_text, "watermark", HOLD)] = None


def _hold(
    interval: Interval, item: Delivery[object] | Firing, effects: Effects, before: Effects
) -> None:
    """Hold the low watermark at the oldest record of a key that waits."""
    if not interval.parked.park.hold_watermark:
        return
    key = interval.parked.get(item.key_text)
    at = item.micros if isinstance(item, Delivery) else min(item.timer.micros, item.hold)
    name = (item.key_text, "watermark", HOLD)
    if key is not None:
        at = min(at, key.hold)
    if (held := before.timers.get(name)) is not None:
        at = min(at, held[1])
    hold = max(at, interval.watermarks.promised)
    effects.timers[name] = (MAX_TIME - 1, hold, item.key, item.slot)
