"""``millwheel worker``: one of any number of workers that share a pipeline (decision 22)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from millwheel.clock import Clock, SystemClock
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.network.handshake import Identity, Secret
from millwheel.runtime.network.links import Links
from millwheel.runtime.network.ports import Limits, Network
from millwheel.runtime.ownership.balancer import Balancer
from millwheel.runtime.ownership.claiming import LeaseGuard, Placing
from millwheel.services.endpoint import Endpoint
from millwheel.services.hosting import Beside, hosted, opened, unless
from millwheel.services.http import HttpService
from millwheel.services.observed import EngineObserved
from millwheel.services.tcp import Tcp, Tls
from millwheel.store.port import Store


@dataclass(frozen=True)
class Neighbourhood:
    """How other workers reach this one, and how they know each other."""

    listen: Endpoint = field(default_factory=Endpoint)
    advertise: str | None = None
    """Host, or ``host:port``, at which others reach it, if not there."""
    secret: bytes | None = field(default=None, repr=False)
    """The secret that was given to all workers of the pipeline; None: they go by the store's."""
    tls: Tls | None = None

    def __post_init__(self) -> None:
        if self.secret is not None:
            Secret(self.secret, "given")

    def medium(self) -> Tcp:
        """What its connections are made of.

        Raises:
            UsageError: a certificate or key is missing, or is not what it should be.
        """
        return Tcp(self.listen.host, self.listen.port, advertise=self.advertise, tls=self.tls)

    async def secret_of(self, store: Store) -> Secret:
        """The secret that was given, or the one that is kept in the store.

        Raises:
            StoreUnavailable: the store cannot be asked.
        """
        if self.secret is not None:
            return Secret(self.secret, "given")
        return Secret(await store.peer_secret(), "store")

    def check(self) -> None:
        """Check what can be checked before anything is started.

        Raises:
            UsageError: it makes no sense, or is not safe.
        """
        self.medium().check()


class Worker:
    """A worker among others, from its start until it is asked to stop.

    Args:
        url: where the store is; its schema is at the right version.
        neighbourhood: how it is connected with the others.
        http: where probes and a scraper are answered, if at all.
        until_done: end when all input has ended and everything is stored, instead of waiting.
        keep_open: as `Engine`'s.
        accept_late: as `Engine`'s.
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
        keep_open: bool = False,
        accept_late: bool = False,
        beside: Beside | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._url = url
        self._neighbourhood = neighbourhood or Neighbourhood()
        self._http = http
        self._until_done = until_done
        self._keep_open = keep_open
        self._accept_late = accept_late
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
            secret = await self._neighbourhood.secret_of(store)  # before anything listens
            engine = Engine(
                self._pipeline,
                store,
                clock=self._clock,
                keep_open=self._keep_open,
                accept_late=self._accept_late,
                network=partial(self._network, secret),
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

    def _network(self, secret: Secret, worker: str) -> Network:
        limits = Limits()
        limits.check(self._pipeline.settings.max_record_bytes)
        return Links(
            Identity(self._pipeline.name, worker, secret),
            self._neighbourhood.medium(),
            clock=self._clock,
            limits=limits,
        )
