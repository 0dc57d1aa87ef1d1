"""Clusters whose workers are replaced one by one by workers of other code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from millwheel import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Environment, Options
from millwheel.runtime.network.handshake import Identity
from millwheel.runtime.network.links import Links
from millwheel.runtime.ownership.balancer import Balancer
from millwheel.runtime.ownership.claiming import Decide
from millwheel.runtime.process.load import FREE_OF_CHARGE
from millwheel.testing.fake_network import SECRET
from tests.support.clusters import Cluster
from tests.support.worlds import end_scripts


class Rolling(Cluster):
    """A cluster whose workers each run code of their own."""

    async def start_worker(
        self,
        pipeline: Pipeline,
        decide: Callable[[Environment], Decide] = Balancer,
        options: Options | None = None,
    ) -> Engine:
        """One more worker, with this code; `decide` makes what decides if it leads."""
        number = len(self.engines)

        def network(worker: str) -> Links:
            return Links(
                Identity(pipeline.name, worker, SECRET),
                self.ether.medium(f"w{number}"),
                clock=self.clock,
                random=Random(number),
            )

        if not self.endless:
            end_scripts(pipeline)
        engine = Engine(
            pipeline,
            self.store.another(),
            clock=self.clock,
            options=options or Options(),
            network=network,
            process=FREE_OF_CHARGE,
        )
        self.engines.append(engine)
        await engine.start()
        self.alive.append(engine)
        engine.attend(lambda it: it.claiming(decide(it.env)), "placing")
        engine.attend(Engine.lease_guard, "lease guard")
        return engine

    async def wait(self, seconds: float) -> None:
        """Let virtual time pass."""
        until = self.clock.monotonic() + seconds
        await self.go(lambda: self.clock.monotonic() >= until, tick=0.05)

    async def end(self) -> None:
        """Run to the end of the input, and stop everybody."""
        await self.go(self.finished)
        for engine in list(self.alive):
            await self.leave(engine)

    def versions(self, computation: str) -> Counter[int]:
        """How many keys have state of which version."""
        return Counter(row.version for row in self.store.states() if row.computation == computation)

    async def generation_of(self, engine: Engine) -> int:
        placement = await self.store.read_placement()
        (found,) = [w.generation for w in placement.workers if w.id == engine.worker]
        return found
