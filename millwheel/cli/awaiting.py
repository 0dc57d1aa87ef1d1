"""Reports user code that forgets ``await``.

``if ctx.state.words.contains("cat"):`` is always true. Python says so by a `RuntimeWarning` when it
drops the coroutine, on the line that made it.
"""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from millwheel.errors import UserCodeError

FORGOTTEN = "was never awaited"


@contextmanager
def awaited(foreign: tuple[str, ...]) -> Iterator[None]:
    """Log each line of user code that drops a coroutine, and fail at the end of the block.

    Args:
        foreign: path prefixes of code that is not the user's.
    """
    found: list[str] = []
    shown = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if FORGOTTEN not in str(message) or filename.startswith(foreign):
            shown(message, category, filename, lineno, file, line)
            return
        code = linecache.getline(filename, lineno).strip()
        found.append(f"{message} at {filename}:{lineno}: {code}")
        import structlog

        structlog.get_logger().error(
            "not_awaited", at=found[-1], what_to_do='write "await" in front of the call'
        )

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = shown
    if found:
        raise UserCodeError(
            f"{found[0]}. A coroutine is always true and does nothing; what the code made of it "
            'may be stored. Write "await" in front of the call'
        )
