"""``millwheel worker``: one of any number of workers that share a pipeline (decision 22)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from millwheel.clock import Clock, SystemClock
from millwheel.pipeline import Pipeline
from millwheel.runtime.balancer import Balancer
from millwheel.runtime.engine import Engine
from millwheel.runtime.greeting import Identity
from millwheel.runtime.links import Links
from millwheel.runtime.network import Limits, Network
from millwheel.runtime.placing import LeaseGuard, Placing
from millwheel.services.endpoint import Endpoint
from millwheel.services.hosting import Beside, hosted, opened, unless
from millwheel.services.http import HttpService
from millwheel.services.observed import EngineObserved
from millwheel.services.tcp import Tcp, Tls


@dataclass(frozen=True)
class Neighbourhood:
    """How other workers reach this one, and how they know each other."""

    listen: Endpoint = field(default_factory=Endpoint)
    advertise: str | None = None
    """Host, or ``host:port``, at which others reach it, if not there."""
    secret: bytes | None = None
    """What all workers of the pipeline know and nobody else."""
    tls: Tls | None = None

    def medium(self) -> Tcp:
        """What its connections are made of.

        Raises:
            UsageError: a certificate or key is missing, or is not what it should be.
        """
        return Tcp(self.listen.host, self.listen.port, advertise=self.advertise, tls=self.tls)

    def identity(self, pipeline: str, worker: str) -> Identity:
        """Who a worker is to the others.

        Raises:
            UsageError: the secret can be guessed.
        """
        return Identity(pipeline, worker, self.secret)

    def check(self) -> None:
        """What can be told before anything is started.

        Raises:
            UsageError: it makes no sense, or is not safe.
        """
        self.identity("", "")
        self.medium().check(proven=self.secret is not None)


class Worker:
    """A worker among others, from its start until it is asked to stop.

    Args:
        url: where the store is; its schema is at the right version.
        neighbourhood: how it is connected with the others.
        http: where probes and a scraper are answered, if at all.
        until_done: end when everything is processed, instead of waiting for more; at the end of
            the input the watermark moves to the end of time, so that all windows close.
        beside: who is shown how far it is, and who looks after the store.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        url: str,
        neighbourhood: Neighbourhood | None = None,
        *,
        http: Endpoint | None = None,
        until_done: bool = False,
        beside: Beside | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._url = url
        self._neighbourhood = neighbourhood or Neighbourhood()
        self._http = http
        self._until_done = until_done
        self._beside = beside or Beside()
        self._clock = clock or SystemClock()

    async def run(self, stop: asyncio.Event) -> bool:
        """Work until `stop` is set, or everything is done if that is what was asked for.

        Returns:
            Whether everything was done.

        Raises:
            MillwheelError: why it cannot go on; nothing that was acknowledged is lost.
        """
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(opened(self._pipeline, self._url))
            engine = Engine(
                self._pipeline,
                store,
                clock=self._clock,
                close_at_end=self._until_done,
                network=self._network,
            )
            if self._http is not None:
                service = HttpService(EngineObserved(engine), self._http)
                await stack.enter_async_context(service)
            beside = self._beside.services(engine, self._clock)
            await stack.enter_async_context(hosted(engine, beside))
            if await unless(stop, engine.start()):
                engine.attend(lambda it: Placing(it, Balancer(it)), "placing")
                engine.attend(LeaseGuard, "lease guard")
                await engine.run(stop, until_done=self._until_done)
        return engine.done.is_set()

    def _network(self, worker: str) -> Network:
        limits = Limits()
        limits.check(self._pipeline.settings.max_record_bytes)
        return Links(
            self._neighbourhood.identity(self._pipeline.name, worker),
            self._neighbourhood.medium(),
            clock=self._clock,
            limits=limits,
        )
