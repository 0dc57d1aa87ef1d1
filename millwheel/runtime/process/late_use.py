"""Uses of a `Context` after its call, by tasks of user code that were not awaited.

A context serves call after call. Between two calls its reference count shows whether a call has
left a reference elsewhere; then the engine ends the context and makes a new one.

An ended context refuses each use. The record of its call may be durable by then, too late for a
dead letter: the engine fails, whatever `on_error` says. It also fails when all input is processed
and a task still waits that holds an ended context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import BuiltinMethodType, CellType, FrameType, FunctionType, MethodType
from typing import Any

from millwheel.context import Context, Ended, call_of, end_context, reporter_of
from millwheel.errors import UserCodeError

MOST_DEPTH = 3
"""Functions within functions that are searched for a context."""


class LateUses:
    def __init__(self, log: Any, fail: Callable[[BaseException], None]) -> None:
        self._log = log
        self._fail = fail
        self._is_logged = False
        self._has_ended_any = False

    def end(self, context: Context[Any, Any]) -> None:
        self._has_ended_any = True
        end_context(context, self.report)

    def report(self, error: UserCodeError) -> None:
        """Logged once, as `context_used_late`."""
        self._note(error)
        self._fail(error)

    def _note(self, error: UserCodeError) -> None:
        if not self._is_logged:
            self._is_logged = True
            self._log.error("context_used_late", error=str(error))

    def check_tasks(self, *, all_is_done: bool) -> None:
        """Log a running task that holds an ended context; fail if all input was thought to be
        processed."""
        if not self._has_ended_any:
            return
        for task in asyncio.all_tasks():
            for name, frame in self._held_by(task):
                place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
                error = UserCodeError(
                    f"{name} has started a task that uses ctx, and has not awaited it. The task "
                    f"still waits at {place}, and its effects are lost. Await every task that "
                    "uses ctx inside the process_record (or process_timer, process_bundle) that "
                    "starts it, for example with asyncio.TaskGroup"
                )
                if all_is_done:
                    self.report(error)
                else:
                    self._note(error)
                return

    def _held_by(self, task: asyncio.Task[Any]) -> Iterator[tuple[str, FrameType]]:
        """Computations, each with the frame that holds the context."""
        coroutine: Any = task.get_coro()
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            for value in frame.f_locals.values():
                for context in _contexts_in(value):
                    if reporter_of(context) == self.report:
                        yield call_of(context).name, frame
            coroutine = getattr(coroutine, "cr_await", None)


def _contexts_in(value: Any, depth: int = 0) -> Iterator[Ended]:
    """Itself, or by a method, a lambda or a partial."""
    if isinstance(value, Ended):
        yield value
        return
    parts: Iterable[Any] = ()
    if isinstance(value, (MethodType, BuiltinMethodType)):
        parts = (value.__self__,)
    elif isinstance(value, FunctionType):
        parts = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
    elif isinstance(value, partial):
        parts = (value.func, *value.args, *value.keywords.values())
    if depth < MOST_DEPTH:
        for part in parts:
            yield from _contexts_in(part, depth + 1)


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - it raises if the cell is empty
    except ValueError:
        return False
    return True
