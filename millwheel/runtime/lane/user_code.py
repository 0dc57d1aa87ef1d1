"""The user's `process_record` as a step calls it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from millwheel.context import (
    Context,
    Effects,
    SpreadContext,
    TimerlessContext,
    WeakContext,
    WeakSpreadContext,
    WeakTimerlessContext,
)
from millwheel.model import Record
from millwheel.runtime.interval.routing import Step
from millwheel.runtime.repetition import Repetition

Process = Callable[[Record[Any], Context[Any, Any]], Awaitable[None]]


def context_of(step: Step, effects: Effects) -> Context[Any, Any]:
    """What a step's code is handed: less, where what it says must not depend on when it runs."""
    node = step.node
    assert node.computation is not None
    weak = node.is_weak and not node.computation.order_insensitive
    kind: type[Context[Any, Any]]
    if node.is_spread:
        kind = WeakSpreadContext if weak else SpreadContext
    elif node.computation.defines("process_timer"):
        kind = WeakContext if weak else Context
    else:
        kind = WeakTimerlessContext if weak else TimerlessContext
    return kind(node.name, step.routes, effects)


def process_of(step: Step, effects: Effects, *, run_twice: bool) -> Process:
    """A step's `process_record`, which decides into `effects`.

    Args:
        run_twice: that of weak code is called again, and must say the same (tests).
    """
    computation = step.node.computation
    assert computation is not None
    process: Process = computation.process_record
    if step.node.at_most_once and step.node.shown_names:
        process = _under_their_names(process, step.node.shown_names)
    if run_twice and step.node.is_weak:
        process = Repetition(step, process, context_of, effects).process
    return process


def _under_their_names(process: Process, names: Mapping[str, str]) -> Process:
    """`process`, with records that came by a relay as of the stream that was asked for."""

    def shown(record: Record[Any], context: Context[Any, Any]) -> Awaitable[None]:
        name = names.get(record.stream, record.stream)
        return process(Record(record.key, record.value, record.micros, name), context)

    return shown
