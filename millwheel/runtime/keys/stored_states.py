"""Which part of a computation's state a stored value is, and its way to the present version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from millwheel.core.addresses import CELL_MARK
from millwheel.core.codec import Migration, apply_migrations, leads
from millwheel.graph.node import Node


@dataclass(frozen=True)
class StoredPart:
    """The plain part, a collection, or a shared table."""

    subject: str
    version: int
    """The code's."""
    steps: Mapping[int, Migration]
    decode: Callable[[bytes], Any]

    def leads_from(self, version: int) -> bool:
        return leads(self.steps, version, self.version)

    def migrated(self, value: bytes, version: int, key: str, entry: str) -> bytes:
        """JSON of `version`, in the code's. `MigrationFailed` as `apply_migrations`."""
        subject = f"{self.subject}, key {key}{entry and ', ' + entry}"
        return apply_migrations(value, version, self.version, self.steps, subject, self.decode)


class StoredParts:
    """The parts of one computation's state."""

    def __init__(self, node: Node) -> None:
        self._shared = node.shared is not None
        self._layout = node.layout
        self._tables: StoredPart | None = None
        self._plain: StoredPart | None = None
        self._collections: dict[str, StoredPart] = {}
        if node.computation is None:
            return
        version, state = node.computation.version, f"state of {node.label!r}"
        if node.shared is not None:
            decode = node.shared.codec.decode
            subject = f"shared table of {node.label!r}"
            self._tables = StoredPart(subject, version, node.shared_steps, decode)
        if node.layout is not None and not node.layout.stateless:
            decode = node.layout.codec.decode
            self._plain = StoredPart(state, version, node.state_steps, decode)
            for field, steps in node.entry_steps.items():
                decode = node.layout.collections[field][2].decode
                self._collections[field] = StoredPart(state, version, steps, decode)

    def of(self, key: str, entry: str) -> StoredPart | None:
        """None: the code reads no such value."""
        if self._shared and key.startswith(CELL_MARK.decode()):
            return self._tables
        if not entry or self._layout is None:
            return self._plain
        return self._collections.get(self._layout.field_of(entry) or "")
