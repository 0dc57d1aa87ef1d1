"""Runs the timers of a key, in the order of their instants (I6)."""

from __future__ import annotations

from typing import Any

from millwheel.core.effects import TimerIdentity
from millwheel.core.model import Firing, Timer
from millwheel.runtime.interval.interval_timers import IntervalTimers
from millwheel.runtime.running.step_code import StepCode

SOONER_TIMERS = 256
"""Most timers that user code has just set and that fire at once, between two due timers of a
key."""


async def fire_sooner(code: StepCode, timers: IntervalTimers, firing: Firing) -> None:
    """Run timers that this key has just set for an instant before that of a due timer (I6).

    They need not be stored first: if the run fails, they are set again. At most `SOONER_TIMERS` run
    here at a time; further ones go through the queue.
    """
    decided = code.effects.timers
    for _ in range(SOONER_TIMERS):
        if not decided or not timers.still_due(firing):
            return
        sooner = _soonest_before(firing, decided)
        if sooner is None:
            return
        due, name = sooner
        decided[name] = None
        await code.process_timer(Timer(name[2], firing.timer.kind, due))


async def fire(code: StepCode, timers: IntervalTimers, firing: Firing) -> None:
    """Run a timer, unless it was replaced or cancelled before its turn came."""
    timer = firing.timer
    name = (firing.key_text, timer.kind, timer.tag)
    decided = code.effects.timers
    if not timers.still_due(firing) or name in decided:
        return
    if decided and _soonest_before(firing, decided) is not None:
        decided[name] = (timer.micros, firing.hold, firing.key, firing.slot)
        return
    decided[name] = None
    await code.process_timer(timer)


def _soonest_before(
    firing: Firing, timers: dict[TimerIdentity, Any]
) -> tuple[int, TimerIdentity] | None:
    """The soonest timer that the key has just set for an instant before that of a due timer.

    It fires first; if it cannot fire at once, the due timer is set again to fire after it (I6).
    """
    due, kind = firing.timer.micros, firing.timer.kind
    return min(
        (
            (timer[0], name)
            for name, timer in timers.items()
            if timer is not None and timer[0] < due and name[1] == kind
        ),
        default=None,
    )
