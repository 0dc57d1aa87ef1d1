from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Obstacles:
    """Stored work that some changes would harm, by the names of deployed computations."""

    begun: Collection[str] = frozenset()
    """Computations that have processed a record or timer, so that they may have state."""
    bundled: Collection[str] = frozenset()
    """Computations with an open numbered bundle."""
    parked: Collection[str] = frozenset()
    """Computations with parked keys."""
    sent: Collection[tuple[str, str]] = frozenset()
    """Computations, each with a stream that the code no longer has in its `writes`, while some of
    its records are not acknowledged."""
    workers: int = 0

    def under_new_names(self, renames: Mapping[str, str]) -> Obstacles:
        """`renames` has the former names by the new ones."""
        new = {former: name for name, former in renames.items()}
        begun, bundled, parked = (
            {new.get(name, name) for name in names}
            for names in (self.begun, self.bundled, self.parked)
        )
        sent = {(new.get(name, name), stream) for name, stream in self.sent}
        return Obstacles(begun, bundled, parked, sent, self.workers)
