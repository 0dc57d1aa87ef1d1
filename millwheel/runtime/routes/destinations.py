"""The intervals of a step, here and on other workers, as their senders see them."""

from __future__ import annotations

from typing import Any, Protocol

from millwheel.core.addresses import Address
from millwheel.core.chunk import Chunk
from millwheel.core.model import Delivery
from millwheel.graph.node import Node


class DeliveryQueue(Protocol):
    def append(self, item: Chunk | Delivery[Any], /) -> None: ...


class Destination(Protocol):
    """An interval of this worker or of another one."""

    @property
    def id(self) -> int: ...
    @property
    def slots(self) -> tuple[int, int]: ...
    @property
    def intake(self) -> DeliveryQueue: ...
    @property
    def is_here(self) -> bool: ...
    @property
    def queued(self) -> int:
        """Number of records that wait for the interval, as far as this worker knows and no log
        bounds it."""
        ...

    def insert(self, deliveries: list[Delivery[Any]], /) -> None:
        """Take records that were queued elsewhere, ahead of newer ones."""
        ...


class ReceivingStep(Protocol):
    """The step of a stream's reader."""

    id: int
    node: Node
    destinations: list[Destination]

    @property
    def name(self) -> str: ...
    @property
    def nearest(self) -> list[Address]:
        """Addresses for spread records, each interval as often."""
        ...

    def cut(self, chunk: Chunk) -> list[tuple[Destination, Chunk]]:
        """The parts of a chunk for each destination."""
        ...

    def interval_of(self, slot: int) -> Destination: ...
