"""Lines that a person types while the program works."""

from __future__ import annotations

import asyncio
import os
import sys
from types import TracebackType


class Keyboard:
    """Reads lines from a terminal; without one there are none, and `line` waits for ever."""

    def __init__(self) -> None:
        self.is_there = sys.stdin.isatty() and sys.stdout.isatty()
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        self._begun = b""

    def __enter__(self) -> Keyboard:
        if self.is_there:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.is_there:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    def _read(self) -> None:
        data = os.read(sys.stdin.fileno(), 4096)
        if not data:  # Ctrl-D
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            return
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            self._lines.put_nowait(line.decode(errors="replace").strip())

    def forget(self) -> None:
        """Drop lines that were typed before the question."""
        while not self._lines.empty():
            self._lines.get_nowait()

    async def line(self) -> str:
        return await self._lines.get()
