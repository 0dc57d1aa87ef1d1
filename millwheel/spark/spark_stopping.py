"""Handle Ctrl-C and SIGTERM while the main thread is probably waiting for the JVM.

Raising immediately does not work: the next call, which PySpark makes while the exception
propagates, takes the unread answer of the interrupted call for its own (seen on 4.3: SIGTERM during
``count()`` had no effect until the count was done, 59 s later; Ctrl-C became a Py4JError). And a
JVM whose launch is interrupted stays for ever (seen: it cannot report its port, and waits).
Therefore:

===================  =======================================================================
a signal arrives     action
===================  =======================================================================
outside a call       raise the exception immediately
inside a call,       cancel Spark's jobs from another thread; the call returns with an error,
or a launch          or soon by itself, and the signal is repeated until it arrives outside
after GRACE_SECONDS  raise it wherever it arrives: the JVM hangs
while closing        ignore it: the remaining work takes a bounded time
===================  =======================================================================

After a signal its exception replaces any other error of the block, since the error of a cancelled
job is not the user's. A terminal and some supervisors signal the JVM too; then the call fails
because the JVM is gone.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

import structlog

GRACE_SECONDS = 20.0
"""A launch takes 2 to 5 s, a session 5 more, cancelling jobs a fraction of one."""
REPEAT_SECONDS = 0.2

log = structlog.get_logger("millwheel.spark")


class Interruptible:
    """Context manager that SIGINT leaves with KeyboardInterrupt, and SIGTERM with
    SystemExit(143)."""

    def __init__(self) -> None:
        self._cancel: Callable[[], object] | None = None
        self._signal: int | None = None
        self._since = 0.0
        self._settled = threading.Event()
        self._repeating = threading.Lock()  # no signal may be pending when handlers are removed
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruptible:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._arrived)
        return self

    def cancel_by(self, cancel: Callable[[], object]) -> None:
        """Set the function that cancels the JVM's current work; it is called in another thread."""
        self._cancel = cancel

    def close(self) -> None:
        with self._repeating:
            self._settled.set()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._signal is not None and (error is None or isinstance(error, Exception)):
            raise self._exception() from None

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self._settled.is_set():
            return
        if self._signal is None:
            self._signal, self._since = number, time.monotonic()
            threading.Thread(target=self._insist, name="spark-interrupt", daemon=True).start()
        if not _in_jvm_call(frame) or time.monotonic() > self._since + GRACE_SECONDS:
            self._settled.set()
            raise self._exception()

    def _insist(self) -> None:
        main, number = threading.main_thread().ident, self._signal
        assert main is not None
        assert number is not None
        while not self._settled.is_set():
            if self._cancel is not None:
                try:
                    self._cancel()
                except Exception as error:  # the JVM is gone or ending: nothing is left to cancel
                    log.debug("spark's jobs cannot be cancelled", error=type(error).__name__)
            if not self._settled.wait(REPEAT_SECONDS):
                with self._repeating:
                    if not self._settled.is_set():
                        signal.pthread_kill(main, number)

    def _exception(self) -> BaseException:
        assert self._signal is not None
        if self._signal == signal.SIGINT:
            return KeyboardInterrupt()
        return SystemExit(128 + self._signal)


def _in_jvm_call(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(("py4j.", "pyspark.java_gateway")):
            return True
        frame = frame.f_back
    return False
