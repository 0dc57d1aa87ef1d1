"""``millwheel worker``: one of any number of workers that share a pipeline."""

from __future__ import annotations

import asyncio

from millwheel.clock import Clock, SystemClock
from millwheel.pipeline import Pipeline
from millwheel.runtime.balancer import Balancer
from millwheel.runtime.engine import Engine
from millwheel.runtime.greeting import Identity
from millwheel.runtime.links import Links
from millwheel.runtime.network import Limits, Network
from millwheel.runtime.placing import LeaseGuard, Placing
from millwheel.services.tcp import Tcp
from millwheel.store.postgres import PostgresStore


class Worker:
    """A worker among others, from its start until it is asked to stop.

    Args:
        url: where the store is; its schema is at the right version.
        listen: host and port where other workers reach it; port 0: any that is free.
        advertise: at which host they do, if not at that.
        secret: what all workers of the pipeline know.
        until_done: end when everything is processed, instead of waiting for more.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        url: str,
        *,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        advertise: str | None = None,
        secret: bytes | None = None,
        until_done: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._url = url
        self._listen = listen
        self._advertise = advertise
        self._secret = secret
        self._until_done = until_done
        self._clock = clock or SystemClock()

    async def run(self, stop: asyncio.Event) -> bool:
        """Work until `stop` is set, or everything is done if that is what was asked for.

        Returns:
            Whether everything was done.

        Raises:
            MillwheelError: why it cannot go on; nothing that was acknowledged is lost.
        """
        pipeline = self._pipeline
        store = PostgresStore(
            self._url,
            pipeline.name,
            lock_timeout_milliseconds=pipeline.settings.lock_timeout_milliseconds,
        )
        await store.open()
        engine = Engine(
            pipeline,
            store,
            clock=self._clock,
            close_at_end=self._until_done,
            network=self._network,
        )
        try:
            await engine.start()
            engine.spawn(Placing(engine, Balancer(engine)).run(), "placing")
            engine.spawn(LeaseGuard(engine).run(), "lease guard")
            while True:
                await engine.run(stop)
                if stop.is_set() or self._until_done:
                    break
                engine.done.clear()
        finally:
            await engine.stop()
            await store.close()
        if engine.failure is not None:
            raise engine.failure
        return engine.done.is_set()

    def _network(self, worker: str) -> Network:
        limits = Limits()
        limits.check(self._pipeline.settings.max_record_bytes)
        return Links(
            Identity(self._pipeline.name, worker, self._secret),
            Tcp(*self._listen, advertise=self._advertise),
            clock=self._clock,
            limits=limits,
        )
