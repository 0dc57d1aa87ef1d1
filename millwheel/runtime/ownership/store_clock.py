"""The store's clock: workers that share a pipeline go by it (decision 24)."""

from __future__ import annotations

from millwheel.runtime.environment import Environment

CLOCK_OFF_SECONDS = 5.0
"""A machine's clock that is this far from the store's is no matter of round trips: its logs and
files bear wrong times, and an operator should set it."""


class StoreClock:
    """Sets a worker's time by the store's."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._is_off = False
        """The clock warning has been logged."""

    def set(self, before: int, store: int) -> None:
        """Go by the store's clock, which was asked when this machine's showed `before`."""
        env = self._env
        ahead = env.stamps.adjust((before + env.clock.now()) // 2, store)
        off = abs(ahead) >= CLOCK_OFF_SECONDS * 1e6
        if off and not self._is_off:
            env.log.warning(
                "clock_is_off",
                seconds=round(-ahead / 1e6, 1),
                what_it_means="this machine's clock is so far ahead of the store's (below zero: "
                "behind); the worker goes by the store's",
                what_to_do="set the machine's clock, or let NTP do it",
            )
        self._is_off = off
