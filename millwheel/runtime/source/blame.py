"""Errors of sources that users write: told as such, not as a bug of millwheel."""

from __future__ import annotations

import asyncio
from types import TracebackType

from millwheel.codec import reason
from millwheel.errors import MillwheelError, UserCodeError


class SourceBlamed:
    """A block that calls a source: an exception that leaves it is a `UserCodeError` with the source's name.

    Errors that say what to do (`InputError`) pass as they are, and so does everything from the sources
    that come with millwheel. `sys.exit` of a source ends no worker with an exit code of its own.

    Args:
        injector: the name of the node that reads the source.
        called: the source, or a part of it, whose method is called.
        method: the name of that method.
    """

    __slots__ = ("_called", "_injector", "_method")

    def __init__(self, injector: str, called: object, method: str) -> None:
        self._injector = injector
        self._called = called
        self._method = method

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or isinstance(
            error, (MillwheelError, asyncio.CancelledError, GeneratorExit)
        ):
            return
        of = type(self._called)
        if of.__module__.partition(".")[0] == "millwheel":
            return
        raise UserCodeError(
            f"the source of {self._injector!r} failed in {of.__name__}.{self._method}: {reason(error)}\n"
            "What was read and is not acknowledged will be read again. Correct the source and start "
            "again; an InputError is for what the user of the source can mend"
        ) from error
