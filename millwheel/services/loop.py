"""The event loop of a worker process: the fastest that is installed, with a patient collector."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from millwheel.errors import UserCodeError

T = TypeVar("T")

TERMINATED = 128 + signal.SIGTERM
"""The code of a command that SIGTERM ends before anything else takes care of the signal."""

COLLECT_AFTER = (50_000, 20, 50)
"""Objects made before the garbage collector looks: a worker holds tens of thousands of records
that are no garbage, and looking at them again and again took a tenth of its time."""

SWITCH_SECONDS = 0.0005
"""How long a thread waits for the interpreter: an fsync of a part file takes less, and a commit
waits for its thread to begin and to end."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end: on uvloop if it is there (``pip install 'millwheel[uvloop]'``).

    Raises:
        UserCodeError: a task that user code has started called `sys.exit`, which ends the loop.
    """
    gc.set_threshold(*COLLECT_AFTER)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        import uvloop
    except ImportError:
        new_loop = None
    else:
        new_loop = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(main)
    except SystemExit as error:
        if error.code == TERMINATED:
            raise
        raise UserCodeError(
            f"a task that user code has started ended with SystemExit: {error}, which ends the event "
            "loop. Nothing that was committed is lost. Raise another exception, and await the task "
            "where it is started"
        ) from error
