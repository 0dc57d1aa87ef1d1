"""A node of the graph in this worker: its routes, and the destinations of its records."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from millwheel.core.addresses import Address, spread_addresses
from millwheel.core.chunk import Chunk
from millwheel.core.chunk_code import ChunkCode
from millwheel.core.codec import Codec
from millwheel.core.model import SLOTS, Delivery
from millwheel.graph.node import Node
from millwheel.runtime.routes.destinations import Destination
from millwheel.runtime.routes.routes import StreamRoute
from millwheel.runtime.seen.weak_ids import NO_RUN
from millwheel.streams import Stream


@dataclass(eq=False)
class Step:
    """A node with its stored id, its routes, and the destinations of its slots."""

    id: int
    place: int
    """In the order of the graph, in which writers come before readers."""
    node: Node
    routes: dict[str, StreamRoute]
    run: bytes = NO_RUN
    """This worker's mark in the ids of weak productions."""
    withholds: bool = False
    """Its outputs outside the store are counted and dropped (decision 86)."""
    removed: bool = False
    """A newer deploy has removed the node, while this worker still runs code with it."""
    destinations: list[Destination] = field(default_factory=list)
    """In the order of their slots."""
    starts: list[int] = field(default_factory=list)
    """The first slot of each destination."""
    _nearest: list[Address] | None = None

    def put(self, destination: Destination) -> Destination | None:
        """Assign a destination to its slots; gives the former one that began at the same slot."""
        start = destination.slots[0]
        place = bisect_right(self.starts, start)
        if place and self.starts[place - 1] == start:
            before, self.destinations[place - 1] = self.destinations[place - 1], destination
            self._nearest = None
            return before
        self._nearest = None
        self.starts.insert(place, start)
        self.destinations.insert(place, destination)
        return None

    def arrange(self, destinations: list[Destination]) -> None:
        """Replace all destinations; the new ones are in the order of their slots."""
        self._nearest = None
        self.destinations = destinations
        self.starts = [destination.slots[0] for destination in destinations]

    def cut(self, chunk: Chunk) -> list[tuple[Destination, Chunk]]:
        destinations, starts = self.destinations, self.starts
        if len(destinations) == 1:
            return [(destinations[0], chunk)]
        of: dict[int, list[int]] = {}
        for place, slot in enumerate(chunk.slots):
            of.setdefault(bisect_right(starts, slot) - 1, []).append(place)
        if len(of) == 1:
            return [(destinations[number], chunk) for number in of]
        return [(destinations[number], chunk.part(places)) for number, places in of.items()]

    def interval_of(self, slot: int) -> Destination:
        """The destination of a slot's records."""
        return self.destinations[bisect_right(self.starts, slot) - 1]

    @property
    def nearest(self) -> list[Address]:
        """Addresses for spread records, each interval as often: intervals here if there are any."""
        if self._nearest is None:
            of: dict[int, list[Address]] = {}
            for address in spread_addresses():
                of.setdefault(bisect_right(self.starts, address.slot) - 1, []).append(address)
            here = [
                addresses for place, addresses in of.items() if self.destinations[place].is_here
            ]
            rows = _in_turn(here or list(of.values()))
            self._nearest = [address for row in rows for address in row]
        return self._nearest

    @property
    def slots(self) -> int:
        """Number of slots of its keys; for an injector, of present or possible partitions."""
        injection = self.node.injection
        if injection is None or injection.growing is not None:
            return SLOTS
        return len(injection.source.partitions())

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def version(self) -> int:
        """The version of its state's type."""
        return self.node.computation.version if self.node.computation else 1

    @cached_property
    def chunk_code(self) -> ChunkCode | None:
        """Its code for chunks as they are; None: it runs key by key."""
        code = self.node.computation
        return code if isinstance(code, ChunkCode) else None

    @cached_property
    def fleeting(self) -> frozenset[int]:
        """The computations among its readers that get each record at most once."""
        readers = [reader for route in self.routes.values() for reader in route.readers]
        return frozenset(reader.step.id for reader in readers if reader.step.node.at_most_once)

    def divided(self, productions: list[Chunk]) -> tuple[list[Chunk], list[Chunk]]:
        """Productions that are stored, and those that are sent at most once and stored nowhere."""
        fleeting = self.fleeting
        if not fleeting:
            return productions, []
        return (
            [p for p in productions if p.receiver not in fleeting],
            [p for p in productions if p.receiver in fleeting],
        )

    @cached_property
    def streams(self) -> dict[str, Stream[Any]]:
        """The streams that the node reads."""
        return {input_.stream.name: input_.stream for input_ in self.node.inputs}

    @cached_property
    def codecs(self) -> dict[str, Codec[Any]]:
        """Codecs of the streams that the node reads."""
        return {name: stream.codec for name, stream in self.streams.items()}

    def renew(self, delivery: Delivery[Any]) -> None:
        """Restore the value of a record that runs again: user code may have changed it."""
        codec = self.codecs[delivery.stream]
        if codec.mutable:
            delivery.value = codec.decode(delivery.encoded)


def _in_turn(lists: list[list[Address]]) -> list[list[Address]]:
    """Rows with one address of each list; shorter lists repeat until the longest one ends."""
    longest = max(map(len, lists))
    return [[each[row % len(each)] for each in lists] for row in range(longest)]
