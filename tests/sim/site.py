"""The simulated server as a site of the store's contract: nothing goes wrong, and everything at
once."""

from __future__ import annotations

from typing import cast

from millwheel.store.memory import MemoryStore
from millwheel.store.port import Store
from tests.sim.server import Database, Server
from tests.sim.wire import store
from tests.support.store_sites import MemorySite


class SimulatedSite(MemorySite):
    """A store over the wire of the simulation."""

    def __init__(self) -> None:
        super().__init__()
        self._database = Database("wheel", clock=self.clock)
        self._server = Server(self._database)
        self.tables = self._database
        self.store = cast(MemoryStore, store(self._server, self._database))

    async def another(self) -> Store:
        database = self._database.another()
        assert isinstance(database, Database)
        return store(self._server, database)
