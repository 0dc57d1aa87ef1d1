"""A few numbers that a worker process reads out of memory it shares with who harms it.

::

    wall      microseconds that its wall clock is off by
    standing  microseconds for which its monotonic clock has stood still
    point     the number of a `POINTS` at which it is to die; 0: none
    hog       megabytes that it is to take
    block     milliseconds for which its user code is to block the event loop once
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

POINTS = (
    "",
    "before commit",
    "commit on the wire",
    "between state and rows",
    "before COMMIT is known",
    "after commit",
    "in takeover, sequencer raised",
    "in takeover, before its logs are read",
    "in bucket drop, tables locked",
    "after bucket drop",
    "new bucket, before its tables",
    "in fold, states before timers",
    "in fold, before the states",
    "in split or merge",
)
"""Where a worker can be told to die. The state and the productions of a commit are one statement,
so between them there is no such point: a client that dies has sent both, or none."""

_numbers = struct.Struct("<5q")
FIELDS = ("wall", "standing", "point", "hog", "block")


class Control:
    """The numbers of one worker; made by who harms it, and opened by the worker."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        if create:
            path.write_bytes(bytes(_numbers.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _numbers.size)

    def get(self, field: str) -> int:
        """One number."""
        return int.from_bytes(
            self._memory[self._at(field) : self._at(field) + 8], "little", signed=True
        )

    def set(self, field: str, value: int) -> None:
        """Change one number."""
        at = self._at(field)
        self._memory[at : at + 8] = value.to_bytes(8, "little", signed=True)

    def arm(self, point: str) -> None:
        """Let it die when it next comes there."""
        self.set("point", POINTS.index(point))

    @property
    def armed(self) -> str:
        """Where it is to die."""
        return POINTS[self.get("point")]

    def close(self) -> None:
        """Let the memory go."""
        self._memory.close()

    def _at(self, field: str) -> int:
        return 8 * FIELDS.index(field)
