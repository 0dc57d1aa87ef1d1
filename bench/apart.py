"""Run work in a separate process, so that its memory can be measured alone."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from bench import quiet
from millwheel.services import loop

T = TypeVar("T")


class Died(Exception):
    """The process ended without a result; its output shows the reason."""


async def apart(work: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Run `work` in a separate process and return its result.

    `work` and its arguments must be picklable.

    Raises:
        Died: the process ended without a result.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_run, args=(theirs, work, args))
    process.start()
    theirs.close()
    try:
        answer: T = await asyncio.to_thread(ours.recv)
    except EOFError:
        raise Died(f"{getattr(work, '__qualname__', work)} returned no result") from None
    finally:
        process.join()
    return answer


def _run(
    answer: Connection, work: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...]
) -> None:
    quiet()
    answer.send(loop.run(work(*args)))
