"""The event loop of a worker process: the fastest that is installed, with a patient collector."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

COLLECT_AFTER = (50_000, 20, 50)
"""Objects made before the garbage collector looks: a worker holds tens of thousands of records
that are no garbage, and looking at them again and again took a tenth of its time."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end: on uvloop if it is there (``pip install 'millwheel[uvloop]'``)."""
    gc.set_threshold(*COLLECT_AFTER)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
