"""``millwheel run``: run a whole pipeline in this process until its input ends or it is stopped."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal

from millwheel.core.clock import Clock, SystemClock
from millwheel.core.model import MAX_TIME
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.services.endpoint import Endpoint
from millwheel.services.hosting import Beside, hosted, opened, unless
from millwheel.services.http import HttpService
from millwheel.services.observed import EngineObserved
from millwheel.services.reloading import LoadedQueries

Outcome = Literal["complete", "nothing to do", "stopped"]


@dataclass(frozen=True)
class Summary:
    pipeline: str
    outcome: Outcome
    processed: int
    read: int | None
    """Rows read from the sources."""
    seconds: float
    low_watermark: int
    counters: dict[str, int] = field(default_factory=dict)
    """Counters of the computations, in this run."""

    @property
    def per_second(self) -> float:
        """Start and shutdown included."""
        return self.processed / self.seconds if self.seconds > 0 else 0.0


class Run:
    """One run of a pipeline; for the options see `Engine`.

    Args:
        url: URL of the store; its schema must be at the current version.
        http: where to serve probes and metrics; None: nowhere.
        beside: callbacks for progress and for the upkeep of the store.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        url: str,
        *,
        keep_open: bool = False,
        accept_late: bool = False,
        inject_copies: int = 1,
        http: Endpoint | None = None,
        beside: Beside | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._url = url
        self._keep_open = keep_open
        self._accept_late = accept_late
        self._inject_copies = inject_copies
        self._http = http
        self._beside = beside or Beside()
        self._clock = clock or SystemClock()

    async def run(self, stop: asyncio.Event | None = None) -> Summary:
        """Work until the input has ended and everything is stored, or `stop` is set.

        `MillwheelError` if the run failed; nothing that was acknowledged is lost.
        """
        stop = stop or asyncio.Event()
        began = self._clock.monotonic()
        async with opened(self._pipeline, self._url) as store:
            queries = LoadedQueries(self._pipeline, store)
            engine = Engine(
                self._pipeline,
                store,
                clock=self._clock,
                options=Options(
                    keep_open=self._keep_open,
                    accept_late=self._accept_late,
                    inject_copies=self._inject_copies,
                ),
                renew=queries.pipeline,
            )
            engine.attend(queries.watch, "queries")
            observed = EngineObserved(engine)  # before the start, which already counts records
            async with (
                nullcontext() if self._http is None else HttpService(observed, self._http),
                hosted(
                    engine,
                    self._beside.services(engine, self._clock),
                    store.thread_heartbeat(),
                ),
            ):
                if await unless(stop, engine.start()):
                    await engine.run(stop, until_done=engine.pipeline.bounded)
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
