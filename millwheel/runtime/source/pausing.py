from __future__ import annotations

from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange


class PausedInjectors:
    """Injectors that an operator has paused (`millwheel pause`), by computation."""

    def __init__(self, env: Environment, exchange: Exchange) -> None:
        self._env = env
        self._exchange = exchange
        self._paused: frozenset[int] = frozenset()

    def __contains__(self, computation: int) -> bool:
        return computation in self._paused

    def __bool__(self) -> bool:
        return bool(self._paused)

    def set(self, computations: frozenset[int]) -> None:
        """Pause exactly these injectors.

        Rows that were already read are processed. A paused injector's watermark stands still, since
        its next rows are unknown.
        """
        if computations == self._paused:
            return
        exchange = self._exchange
        resting = [task for task in exchange.source_tasks if task.paused]
        self._paused = computations
        names = [step.name for id_, step in exchange.steps.items() if id_ in computations]
        self._env.log.info("injectors_paused", injectors=names)
        for task in resting:
            if not task.paused:
                task.resume()
        self._env.check_finished()
