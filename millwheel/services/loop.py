"""The event loop of a worker process: the fastest that is installed, with a patient collector."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

COLLECT_AFTER = (50_000, 20, 50)
"""Objects made before the garbage collector looks: a worker holds tens of thousands of records
that are no garbage, and looking at them again and again took a tenth of its time."""

SWITCH_SECONDS = 0.0005
"""How long a thread waits for the interpreter: an fsync of a part file takes less, and a commit
waits for its thread to begin and to end."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end: on uvloop if it is there (``pip install 'millwheel[uvloop]'``)."""
    gc.set_threshold(*COLLECT_AFTER)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
