"""The event loop of a worker process: the fastest that is installed, with a patient collector."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

from millwheel.codec import reason

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

    `sys.exit` in a task interrupts the event loop, whoever started the task. Here the loop goes on: code
    that awaits the task gets the SystemExit, and the log has it.
    """
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
                    what_it_means="a task that user code has started called sys.exit. That ends the "
                    "task, and not the worker",
                )


async def _until_done(task: asyncio.Task[Any]) -> None:
    """Wait for a task, whatever becomes of it; a Ctrl-C that cancels this cancels the task as well."""
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,))
        raise
