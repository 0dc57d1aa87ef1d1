"""Work in a process of its own: what it occupies is then its alone."""

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
    """The process ended without an answer; it has said why."""


async def apart(work: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """What `work` gives in a process of its own; it and its arguments can be pickled.

    Raises:
        Died: the process ended without an answer.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_run, args=(theirs, work, args))
    process.start()
    theirs.close()
    try:
        answer: T = await asyncio.to_thread(ours.recv)
    except EOFError:
        raise Died(f"{work.__qualname__} gave no answer") from None
    finally:
        process.join()
    return answer


def _run(
    answer: Connection, work: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...]
) -> None:
    quiet()
    answer.send(loop.run(work(*args)))
