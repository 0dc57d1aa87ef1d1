"""A part file of a JSON Lines sink: appended and fsynced before the commit that counts it.

The committed length stands in the commit; whatever is beyond it was written for a commit
that never became durable, and is cut off before anything is appended.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from millwheel.errors import InputError


class PartFile:
    """One file of lines, as long as the last commit says."""

    def __init__(self, path: Path, length: int) -> None:
        self.path = path
        self.length = length
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab")  # noqa: SIM115 - lives as long as the interval
        self.restore(length)

    def restore(self, length: int) -> None:
        """Cut the file to its committed length.

        Raises:
            InputError: the file is shorter than that: somebody took lines away.
        """
        size = os.fstat(self._file.fileno()).st_size
        if size < length:
            raise InputError(
                f"{self.path} has {size} bytes, but {length} were committed: the file was cut or "
                "replaced. Put it back, or start the pipeline under a new name"
            )
        self._file.truncate(length)
        self.length = length

    def length_with(self, lines: list[bytes]) -> int:
        """The length once `lines` are appended."""
        return self.length + sum(map(len, lines)) + len(lines)

    async def append(self, lines: list[bytes]) -> None:
        """Append lines and wait until they are on the disk."""
        data = b"".join(line + b"\n" for line in lines)
        await asyncio.to_thread(self._write, data)
        self.length += len(data)

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let the file go."""
        self._file.close()
