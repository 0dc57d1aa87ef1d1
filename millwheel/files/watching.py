"""Wakes readers when a directory changes, by inotify where available.

Directories are watched: a file that is replaced takes its watch with it. Readers also poll every
few seconds, for changes that inotify does not report: on network file systems, on systems without
inotify, or when its limits are reached.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

HAS_INOTIFY = sys.platform == "linux" and find_spec("asyncinotify") is not None
inotify: Any = import_module("asyncinotify") if HAS_INOTIFY else None

REST_SECONDS = 0.01
"""Time between two reads of inotify events: a writer of many lines does not wake readers for
each."""


def logger() -> Any:
    """The log. structlog is imported late to keep the import of pipeline modules fast."""
    import structlog

    return structlog.get_logger()


Wake = Callable[[str], None]
"""Called with the name of the entry that changed in the directory; empty: unknown."""


class Signal:
    """An event that is set when files may have changed; waiting for it takes a timeout."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._watches: list[DirectoryWatch] = []

    def watch(self, directory: str, concerns: Callable[[str], bool]) -> None:
        def wake(name: str) -> None:
            if not name or concerns(name):
                self._event.set()

        self._watches.append(watch(directory, wake))

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        """Clear it; the caller is about to check all changes up to now."""
        self._event.clear()

    async def wait(self, seconds: float) -> bool:
        """Wait until it is set or `seconds` have passed; return whether it is set."""
        if not self._event.is_set():
            timer = asyncio.get_running_loop().call_later(seconds, self._expired)
            self._is_expired = False
            try:
                await self._event.wait()
            finally:
                timer.cancel()
            if self._is_expired:
                self._event.clear()
                return False
        else:
            await asyncio.sleep(0)  # a reader that is woken continuously must let other tasks run
        return True

    def _expired(self) -> None:
        if not self._event.is_set():
            self._is_expired = True
            self._event.set()

    def close(self) -> None:
        for each in self._watches:
            each.close()
        self._watches.clear()


class DirectoryWatch:
    """Calls `wake` for changes in one directory, until it is closed."""

    def __init__(self, watcher: _Watcher | None, directory: str, wake: Wake) -> None:
        self._watcher = watcher
        self.directory = directory
        self.wake = wake

    def close(self) -> None:
        """Stop watching. It may be called twice."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.remove(self)


def watch(directory: str, wake: Wake) -> DirectoryWatch:
    loop = asyncio.get_running_loop()
    if not HAS_INOTIFY:
        return DirectoryWatch(None, directory, wake)
    watcher = _watchers.get(loop)
    try:
        if watcher is None:
            watcher = _watchers[loop] = _Watcher(loop)
        return watcher.add(directory, wake)
    except OSError as error:
        if watcher is not None:
            watcher.close_if_unused()
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            # ENOSPC and EMFILE: fs.inotify.max_user_watches and max_user_instances
            logger().warning(
                "directory_not_watched", directory=directory, error=error.strerror,
                consequence="changes are found by polling every few seconds",
            )  # fmt: skip
        return DirectoryWatch(None, directory, wake)


class _Watcher:
    """The inotify instance of an event loop, shared by all watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        mask = inotify.Mask
        self._changes = (
            mask.MODIFY | mask.CREATE | mask.CLOSE_WRITE | mask.MOVE | mask.DELETE | mask.ONLYDIR
        )
        self._inotify = inotify.Inotify()
        self._watched: dict[Any, dict[DirectoryWatch, None]] = {}
        self._resting: asyncio.TimerHandle | None = None
        self._listen()

    def add(self, directory: str, wake: Wake) -> DirectoryWatch:
        watched = self._inotify.add_watch(directory, self._changes)
        made = DirectoryWatch(self, directory, wake)
        self._watched.setdefault(watched, {})[made] = None
        return made

    def remove(self, watch: DirectoryWatch) -> None:
        for watched, woken in list(self._watched.items()):
            if woken.pop(watch, watch) is None and not woken:
                del self._watched[watched]
                with suppress(OSError):  # the directory is gone, and its watch with it
                    self._inotify.rm_watch(watched)
        self.close_if_unused()

    def close_if_unused(self) -> None:
        if not self._watched:
            _watchers.pop(self._loop, None)
            if self._resting is not None:
                self._resting.cancel()
            self._loop.remove_reader(self._inotify.fd)
            self._inotify.close()

    def _listen(self) -> None:
        self._resting = None
        self._loop.add_reader(self._inotify.fd, self._happened)

    def _happened(self) -> None:
        self._loop.remove_reader(self._inotify.fd)
        self._resting = self._loop.call_later(REST_SECONDS, self._listen)
        self._inotify.sync_timeout = 0
        while (event := self._inotify.sync_get()) is not None:
            if inotify.Mask.Q_OVERFLOW in event.mask:
                woken = [each for some in self._watched.values() for each in some]
            else:
                watched = event.watch
                woken = list(self._watched.get(watched, ()))
                if inotify.Mask.IGNORED in event.mask:  # the directory was removed, or unmounted
                    self._watched.pop(watched, None)
            name = "" if event.name is None else str(event.name)
            for each in woken:
                each.wake(name)


_watchers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Watcher] = WeakKeyDictionary()
