"""The event loop of a worker process: uvloop if installed, with rare garbage collections."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

from millwheel.core.codec import reason
from millwheel.core.own_loop import refuse_running_loop

T = TypeVar("T")

TERMINATED = 128 + signal.SIGTERM
"""Exit code after a SIGTERM before the command's own signal handling is active."""

COLLECT_AFTER = (50_000, 20, 50)
"""Thresholds of the garbage collector: with Python's defaults, traversing tens of thousands of live
records took a tenth of a worker's time."""

SWITCH_SECONDS = 0.0005
"""Python's thread switch interval. An fsync of a part file takes less time, and a commit waits for
its thread to start and to finish."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to completion, on uvloop if installed (the extra ``uvloop``).

    In asyncio, `sys.exit` in any task interrupts the event loop. Here the SystemExit is logged and
    raised in the code that awaits the task.
    """
    refuse_running_loop(main)
    gc.set_threshold(*COLLECT_AFTER)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        import uvloop
    except ImportError:
        new_loop = None
    else:
        new_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        task = runner.get_loop().create_task(main)
        while True:
            try:
                runner.run(_until_done(task))
                return task.result()
            except SystemExit as error:
                if task.done() or error.code == TERMINATED:
                    raise
                structlog.get_logger().error(
                    "exit_in_a_task",
                    error=reason(error),
                    what_it_means=(
                        "a task started by user code called sys.exit. That ends the task, "
                        "not the worker"
                    ),
                )


async def _until_done(task: asyncio.Task[Any]) -> None:
    """Does not raise the task's error; cancellation (Ctrl-C) cancels the task too."""
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,))
        raise
