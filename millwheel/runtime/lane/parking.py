"""Parks the keys of records that fail, and stores the records that arrive for them (decision
60)."""

from __future__ import annotations

from millwheel.core.effects import Effects
from millwheel.core.model import MAX_TIME, Firing
from millwheel.errors import SetAside, UserCodeError
from millwheel.runtime.interval.dead_letters import give_up, waiting_letter
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.requests import KeyRequest
from millwheel.runtime.interval.work import Item
from millwheel.runtime.keys.key_state import KeyState
from millwheel.store.port.requests import SettledRequest


def watermark_of(item: Item, watermark: int) -> int:
    """The low watermark that an item's user code sees; `watermark`, unless it is a timer that fires
    before a row."""
    if isinstance(item, Firing) and item.watermark is not None:
        return item.watermark
    return watermark


def one_turn(interval: Interval, state: KeyState, items: list[Item]) -> tuple[KeyState, list[Item]]:
    """Let a parked key have one turn; its other items wait behind it."""
    items, rest = interval.parked.first_turn(items)
    if rest:
        interval.backlog[state.key_text] = rest + (interval.backlog[state.key_text] or [])
    return state, items


def set_aside(
    interval: Interval, item: Item, error: BaseException, attempts: int, now: int, watermark: int
) -> Effects:
    """Give up on an item; if its computation says so, its key is parked.

    Args:
        watermark: the low watermark that its key sees.

    Raises:
        UserCodeError: the computation was added with ``on_error="fail"``, or too many keys are
            parked.
    """
    effects = give_up(interval.step, item, error, attempts, now)
    park = interval.step.node.park
    if park is None or isinstance(item, KeyRequest) or isinstance(error, SetAside):
        return effects
    if len(interval.parked) >= park.most_keys and item.key_text not in interval.parked:
        raise UserCodeError(
            f"{interval.step.name!r} has {len(interval.parked):,} parked keys of the slots "
            f"{interval.name}, the most that Park(most_keys={park.most_keys}) allows, and another "
            f"one failed: {error}\nNothing of this record was committed. Mend the code, start "
            "again, and retry them: millwheel dead-letters list"
        ) from error
    (letter,) = effects.dead_letters
    seen = watermark_of(item, watermark)
    effects.dead_letters = [letter._replace(parked="failed", watermark=seen)]
    return effects


def step_aside(
    interval: Interval, item: Item, now: int, watermark: int, before: Effects
) -> Effects:
    """Let an item wait: a record in a row, a due timer as it is, a row that was read where it is.

    Args:
        before: the effects of earlier items of its key in the same turn.
    """
    effects = Effects()
    if isinstance(item, KeyRequest):
        effects.settled.append(SettledRequest(item.id, "refused"))
    elif isinstance(item, Firing):
        item.aside = True
        name = (item.key_text, item.timer.kind, item.timer.tag)
        if interval.timers.still_due(item) and name not in before.timers:
            hold = item.hold if interval.parked.park.hold_watermark else MAX_TIME
            effects.timers[name] = (item.timer.micros, hold, item.key, item.slot)
    else:
        interval.step.renew(item)
        letter = waiting_letter(interval.step, item, watermark, now)
        effects.dead_letters.append(letter)
        effects.size += len(letter.value)
    return effects


def settle(interval: Interval, state: KeyState, effects: Effects) -> None:
    """Count the rows of a key that its turn has parked or run, and hold the low watermark at the
    oldest one left."""
    promised = interval.watermarks.promised
    effects.dead_letters[:] = [
        letter if letter.parked is None else letter._replace(hold=max(letter.ts, promised))
        for letter in effects.dead_letters
    ]
    interval.parked.decided(state.key_text, effects)


def let_on(interval: Interval, key_text: bytes) -> None:
    """Let items that have waited in memory have their turn behind one that was decided: the key's
    task takes them."""
    for firing in interval.parked.drop_void(key_text, interval.timers.still_due):
        interval.timers.fired(firing)
    waited = interval.parked.released(key_text)
    if waited:
        interval.backlog[key_text] = waited + (interval.backlog.get(key_text) or [])
    if waited is not None:
        interval.wake()
