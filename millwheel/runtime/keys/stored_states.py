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
    """The plain part, an entry of a collection, or a shared table."""

    subject: str
    version: int
    """The code's."""
    steps: Mapping[int, Migration]
    decode: Callable[[bytes], Any]

    @classmethod
    def of(cls, node: Node, key: bytes, entry: str) -> StoredPart | None:
        """None: the code reads no such value."""
        is_table = node.shared is not None and key.startswith(CELL_MARK)
        layout = node.shared if is_table else node.layout
        if layout is None or layout.stateless or node.computation is None:
            return None
        what = "shared table" if is_table else "state"
        subject = f"{what} of {node.label!r}, key {key.decode()}"
        version = node.computation.version
        if not entry:
            steps = node.shared_steps if is_table else node.state_steps
            return cls(subject, version, steps, layout.codec.decode)
        field = layout.field_of(entry)
        if field is None:
            return None
        decode = layout.collections[field][2].decode
        return cls(f"{subject}, {entry}", version, node.entry_steps[field], decode)

    def leads_from(self, version: int) -> bool:
        return leads(self.steps, version, self.version)

    def migrated(self, value: bytes, version: int) -> bytes:
        """JSON of `version`, in the code's. `MigrationFailed` as `apply_migrations`."""
        return apply_migrations(value, version, self.version, self.steps, self.subject, self.decode)
