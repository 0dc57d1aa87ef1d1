"""``millwheel worker``: one of several workers that share a pipeline (decision 22)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from millwheel.core.clock import Clock, SystemClock
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.runtime.network.handshake import Identity, Secret
from millwheel.runtime.network.links import Links
from millwheel.runtime.network.peer_ports import Limits, Network
from millwheel.services.certificates import Certificate, CertificateWatch
from millwheel.services.endpoint import Endpoint
from millwheel.services.hosting import Beside, hosted, opened, unless
from millwheel.services.http import HttpService
from millwheel.services.http_access import certificate_in_use
from millwheel.services.observed import EngineObserved
from millwheel.services.reloading import LoadedQueries
from millwheel.services.tcp import Tcp, Tls
from millwheel.store.port import Store


@dataclass(frozen=True)
class PeerSettings:
    """How other workers reach this one, and how workers authenticate each other."""

    listen: Endpoint = field(default_factory=Endpoint)
    advertise: str | None = None
    """Host, or ``host:port``, that other workers connect to; None: the `listen` endpoint."""
    secret: bytes | None = field(default=None, repr=False)
    """Configured for all workers of the pipeline; None: the secret kept in the store."""
    tls: Tls | None = None

    def __post_init__(self) -> None:
        if self.secret is not None:
            Secret(self.secret, "given")

    def medium(self) -> Tcp:
        """`UsageError` if a certificate or key file is missing or invalid."""
        return Tcp(self.listen.host, self.listen.port, advertise=self.advertise, tls=self.tls)

    async def secret_of(self, store: Store) -> Secret:
        """The configured secret, or otherwise the one kept in the store."""
        if self.secret is not None:
            return Secret(self.secret, "given")
        return Secret(await store.peer_secret(), "store")

    def check(self) -> None:
        """`UsageError` if the settings contradict each other or are unsafe."""
        self.medium().check()


class PipelineWorker:
    """Runs one of several workers that share a pipeline, until it is stopped; see `Run` and
    `Engine`.

    Args:
        until_done: return when all input has ended and everything is stored.
        only_keys: the part of the keys of each computation that it runs, beside other workers.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        url: str,
        peers: PeerSettings | None = None,
        *,
        http: Endpoint | None = None,
        until_done: bool = False,
        keep_open: bool = False,
        accept_late: bool = False,
        only_keys: float = 1.0,
        beside: Beside | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._url = url
        self._peers = peers or PeerSettings()
        self._http = http
        self._until_done = until_done
        self._options = Options(keep_open=keep_open, accept_late=accept_late, only_keys=only_keys)
        self._beside = beside or Beside()
        self._clock = clock or SystemClock()

    async def run(self, stop: asyncio.Event) -> bool:
        """Returns whether everything is done.

        `MillwheelError` if the worker failed; nothing that was acknowledged is lost.
        """
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(opened(self._pipeline, self._url))
            secret = await self._peers.secret_of(store)  # before anything listens
            queries = LoadedQueries(self._pipeline, store)
            engine = Engine(
                self._pipeline,
                store,
                clock=self._clock,
                options=self._options,
                network=partial(self._network, secret),
                renew=queries.pipeline,
            )
            engine.attend(queries.watch, "queries")
            certificates = self._certificates()
            if self._http is not None:
                service = HttpService(EngineObserved(engine, certificates), self._http)
                await stack.enter_async_context(service)
            beside = self._beside.services(engine, self._clock)
            beside.append(CertificateWatch(certificates, self._clock))
            await stack.enter_async_context(hosted(engine, beside, store.thread_heartbeat()))
            if await unless(stop, engine.start()):
                engine.attend(Engine.claiming, "claiming")
                engine.attend(Engine.lease_guard, "lease guard")
                await engine.run(stop, until_done=self._until_done)
        return engine.done.is_set()

    def _certificates(self) -> list[Certificate]:
        peers = None if self._peers.tls is None else self._peers.tls.first_to_expire
        http = None if self._http is None else certificate_in_use()
        return [one for one in (peers, http) if one is not None]

    def _network(self, secret: Secret, worker: str) -> Network:
        limits = Limits()
        limits.check(self._pipeline.settings.max_record_bytes)
        return Links(
            Identity(self._pipeline.name, worker, secret),
            self._peers.medium(),
            clock=self._clock,
            limits=limits,
        )
