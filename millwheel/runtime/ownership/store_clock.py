"""The store's clock, which all workers of a shared pipeline use (decision 24)."""

from __future__ import annotations

from millwheel.runtime.environment import Environment

CLOCK_OFF_SECONDS = 5.0
"""A larger difference is not due to round trips: an operator should set the machine's clock."""


class StoreClock:
    def __init__(self, env: Environment) -> None:
        self._env = env
        self._is_off = False

    def set(self, before: int, store: int) -> None:
        """Adopt the store's time, asked for at this machine's time `before`; both in
        microseconds."""
        env = self._env
        ahead = env.stamps.adjust(before, env.clock.now(), store)
        off = abs(ahead) >= CLOCK_OFF_SECONDS * 1e6
        if off and not self._is_off:
            env.log.warning(
                "clock_is_off",
                seconds=round(-ahead / 1e6, 1),
                what_it_means=(
                    "this machine's clock is ahead of the store's by this number of "
                    "seconds (below zero: behind); the worker uses the store's time"
                ),
                what_to_do="set the machine's clock, or let NTP do it",
            )
        self._is_off = off
