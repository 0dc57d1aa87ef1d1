from __future__ import annotations

import asyncio
from types import TracebackType

from millwheel.core.codec import reason
from millwheel.errors import MillwheelError, UserCodeError


class SourceBlamed:
    """Turns an exception of a user-written source into a `UserCodeError` with the source's name.

    Errors of millwheel pass unchanged, and so do all exceptions of the sources that come with it. A
    `sys.exit` does not end the worker. `called` is the source or a part of it.
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
            f"the source of {self._injector!r} failed in {of.__name__}.{self._method}: "
            f"{reason(error)}\nRows that were read and are not acknowledged will be read again. "
            "Correct the source and start again. (If the user of the source can correct the "
            "cause, let it raise InputError.)"
        ) from error
