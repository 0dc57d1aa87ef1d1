"""Runs a coroutine in an event loop of its own, from code that is not async."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from millwheel.errors import UsageError

T = TypeVar("T")


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop.

    Raises:
        UsageError: a loop runs in this thread already.
    """
    refuse_running_loop(work)
    return asyncio.run(work)


def refuse_running_loop(work: Coroutine[Any, Any, Any]) -> None:
    """`UsageError`, and the end of `work`, if an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    name = getattr(work, "__name__", "this function").lstrip("_")
    work.close()
    raise UsageError(
        f"{name} needs an event loop of its own, but one runs in this thread already, as in a "
        "notebook and in async code. Call the function in another thread: "
        "await asyncio.to_thread(FUNCTION, ...); or use the command, in a notebook: "
        "!millwheel ..."
    )
