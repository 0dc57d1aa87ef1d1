"""Handle Ctrl-C and SIGTERM in the main thread's event loop.

The first signal requests an orderly shutdown. The second one ends the process at once, which is
always safe. It always works, because the handlers are Python's and not the event loop's, which user
code may block.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LAST_WORDS = b"\nstopped at once; nothing that was committed is lost. Run again to resume\n"


class Interruption:
    """Context manager: the first signal sets `asked`, the second one ends the process."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.signal: signal.Signals | None = None
        """The first signal."""
        self._loop = asyncio.get_running_loop()
        self._before: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, the convention of shells."""
        assert self.signal is not None
        return 128 + self.signal

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number)
            self._loop.call_soon_threadsafe(self.asked.set)
            return
        os.write(2, LAST_WORDS)
        os._exit(128 + number)


def stop_at_end_of_input(asked: asyncio.Event) -> None:
    """Stop when the parent process closes the pipe or dies."""
    running = asyncio.get_running_loop()
    pipe = sys.stdin.fileno()

    def read() -> None:
        if not os.read(pipe, 1024):
            running.remove_reader(pipe)
            asked.set()

    running.add_reader(pipe, read)
