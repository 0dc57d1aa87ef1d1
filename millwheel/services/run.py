"""``millwheel run``: a pipeline in this process until its input ends, or it is stopped.

It has the pipeline to itself; a worker that shares it with others is `millwheel.services.worker`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from millwheel.clock import Clock, SystemClock
from millwheel.model import MAX_TIME
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.services.hosting import Beside, hosted, opened, unless
from millwheel.services.observed import EngineObserved

Outcome = Literal["complete", "nothing to do", "stopped"]


@dataclass(frozen=True)
class Summary:
    """How a run ended."""

    pipeline: str
    outcome: Outcome
    processed: int
    read: int | None
    """Rows; None: not known."""
    seconds: float
    low_watermark: int
    counters: dict[str, int] = field(default_factory=dict)
    """What the computations counted in this run."""

    @property
    def per_second(self) -> float:
        """Processed records per second, starting and ending included."""
        return self.processed / self.seconds if self.seconds > 0 else 0.0


class Run:
    """One run of a pipeline.

    Args:
        url: where the store is; its schema is at the right version.
        keep_open: as `Engine`'s.
        accept_late: as `Engine`'s.
        inject_copies: as `Engine`'s.
        beside: who is shown how far it is, and who looks after the store.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        url: str,
        *,
        keep_open: bool = False,
        accept_late: bool = False,
        inject_copies: int = 1,
        beside: Beside | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._url = url
        self._keep_open = keep_open
        self._accept_late = accept_late
        self._inject_copies = inject_copies
        self._beside = beside or Beside()
        self._clock = clock or SystemClock()

    async def run(self, stop: asyncio.Event | None = None) -> Summary:
        """Work until the input has ended and everything is stored, or `stop` is set. An input
        without an end goes on until then.

        Raises:
            MillwheelError: why it cannot go on; nothing that was acknowledged is lost.
        """
        stop = stop or asyncio.Event()
        began = self._clock.monotonic()
        async with opened(self._pipeline, self._url) as store:
            engine = Engine(
                self._pipeline,
                store,
                clock=self._clock,
                options=Options(
                    keep_open=self._keep_open,
                    accept_late=self._accept_late,
                    inject_copies=self._inject_copies,
                ),
            )
            observed = EngineObserved(engine)  # now: records are counted before the start is over
            async with hosted(engine, self._beside.services(engine, self._clock)):
                if await unless(stop, engine.start()):
                    await engine.run(stop, until_done=self._pipeline.bounded)
        found = engine.progress()
        return Summary(
            self._pipeline.name,
            _outcome(engine),
            processed=found["processed"],
            read=found["read"],
            seconds=self._clock.monotonic() - began,
            low_watermark=found["low_watermark"] if engine.intervals else MAX_TIME,
            counters={name: by for name, by in sorted(_counters(observed).items()) if by},
        )


def _counters(observed: EngineObserved) -> Counter[str]:
    total: Counter[str] = Counter()
    for computation in observed.figures().computations:
        total.update(computation.counters)
    return total


def _outcome(engine: Engine) -> Outcome:
    if not (engine.pipeline.bounded and engine.done.is_set()):
        return "stopped"
    found = engine.progress()
    return "complete" if found["processed"] or found["read"] else "nothing to do"
