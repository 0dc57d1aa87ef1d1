"""A store in memory, for tests and simulation only: nothing in it outlives the process.

It keeps the contract of the Postgres store, and has its modules. Every call lets the event loop run
before it does its work in one go; what Postgres does in two transactions (a claim) yields in
between. `MemoryStore.faults` breaks it at chosen points.
"""

from millwheel.store.memory.faults import Faults
from millwheel.store.memory.jsonb import jsonb_text
from millwheel.store.memory.lane import MemoryLane
from millwheel.store.memory.store import MemoryStore
from millwheel.store.memory.tables import ShownEvent
from millwheel.store.memory.views import ShownState, ShownTimer

__all__ = [
    "Faults",
    "MemoryLane",
    "MemoryStore",
    "ShownEvent",
    "ShownState",
    "ShownTimer",
    "jsonb_text",
]
