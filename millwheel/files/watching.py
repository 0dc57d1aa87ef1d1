"""Wakes readers when something happens in a directory: by inotify where there is one.

Directories are watched and not files, as a file that is replaced takes its watch along. What inotify
does not tell of (network file systems, a system without it, a limit that was reached) is found by
looking: whoever waits here looks every few seconds all the same.
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
"""Between two looks at what happened: a writer of many lines must not wake readers for each."""


def logger() -> Any:
    """The log; loaded when it is needed, as pipelines are also imported to be looked at."""
    import structlog

    return structlog.get_logger()


Wake = Callable[[str], None]
"""Is called with the name of what changed in the directory; empty: nobody knows what."""


class Signal:
    """Set when there may be something new; waiting for it ends after a while at the latest."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._watches: list[Watch] = []

    def watch(self, directory: str, concerns: Callable[[str], bool]) -> None:
        """Be set by changes of what is in a directory, if its name concerns us."""

        def wake(name: str) -> None:
            if not name or concerns(name):
                self._event.set()

        self._watches.append(watch(directory, wake))

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        """What happened until now is going to be looked at."""
        self._event.clear()

    async def wait(self, seconds: float) -> bool:
        """Return when it is set, or this time has passed; gives which."""
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
            await asyncio.sleep(0)  # whoever is woken again and again must not stop all others
        return True

    def _expired(self) -> None:
        if not self._event.is_set():
            self._is_expired = True
            self._event.set()

    def close(self) -> None:
        """Watch nothing any more."""
        for each in self._watches:
            each.close()
        self._watches.clear()


class Watch:
    """Somebody who is woken by one directory, until it is closed."""

    def __init__(self, watcher: _Watcher | None, directory: str, wake: Wake) -> None:
        self._watcher = watcher
        self.directory = directory
        self.wake = wake

    def close(self) -> None:
        """Be woken no more. It may be called twice."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.remove(self)


def watch(directory: str, wake: Wake) -> Watch:
    """Have `wake` called when something changes in a directory, as far as this can be known."""
    loop = asyncio.get_running_loop()
    if not HAS_INOTIFY:
        return Watch(None, directory, wake)
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
                consequence="changes are found by looking every few seconds",
            )  # fmt: skip
        return Watch(None, directory, wake)


class _Watcher:
    """One inotify instance for all that is watched in an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        mask = inotify.Mask
        self._changes = (
            mask.MODIFY | mask.CREATE | mask.CLOSE_WRITE | mask.MOVE | mask.DELETE | mask.ONLYDIR
        )
        self._inotify = inotify.Inotify()
        self._watched: dict[Any, dict[Watch, None]] = {}
        """Whom each of inotify's watches wakes."""
        self._resting: asyncio.TimerHandle | None = None
        self._listen()

    def add(self, directory: str, wake: Wake) -> Watch:
        watched = self._inotify.add_watch(directory, self._changes)
        made = Watch(self, directory, wake)
        self._watched.setdefault(watched, {})[made] = None
        return made

    def remove(self, watch: Watch) -> None:
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
