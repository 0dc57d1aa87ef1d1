"""Prepares a step's user code: its context, and its `process_record`."""

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
from millwheel.core.model import Record
from millwheel.runtime.environment import Wrap
from millwheel.runtime.interval.step import Step
from millwheel.runtime.seen.weak_ids import WeakIds

Process = Callable[[Record[Any], Context[Any, Any]], Awaitable[None]]
"""The user's `process_record`, or a function around it."""


def context_of(step: Step, effects: Effects) -> Context[Any, Any]:
    """The context of a step's code. It offers less where the code's output must not depend on the
    time of the run."""
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


def lineage_of(step: Step) -> WeakIds | None:
    """The ids of a step's weak productions; None: its productions are strong."""
    return WeakIds(step.id, step.run) if step.node.is_weak else None


def process_of(
    step: Step, effects: Effects, lineage: WeakIds | None, *, wrap: Wrap | None
) -> Process:
    """A step's `process_record`, for contexts that write to `effects`.

    Args:
        lineage: each record is registered there as the cause of weak productions.
        wrap: puts code around the user code of weak computations (tests).
    """
    computation = step.node.computation
    assert computation is not None
    process: Process = computation.process_record
    if step.node.at_most_once and step.node.shown_names:
        process = _under_their_names(process, step.node.shown_names)
    if wrap is not None and step.node.is_weak:
        process = wrap(step, process, context_of, effects)
    if lineage is not None:
        process = _as_causes(process, lineage)
    return process


def _as_causes(process: Process, lineage: WeakIds) -> Process:
    """Wrap `process`: each record is registered as the cause of the productions that follow."""

    def registered(record: Record[Any], context: Context[Any, Any]) -> Awaitable[None]:
        lineage.begin(record)  # type: ignore[arg-type]
        return process(record, context)

    return registered


def _under_their_names(process: Process, names: Mapping[str, str]) -> Process:
    """Wrap `process`: records that arrive by a relay carry the name of the stream that the user
    reads."""

    def shown(record: Record[Any], context: Context[Any, Any]) -> Awaitable[None]:
        name = names.get(record.stream, record.stream)
        return process(Record(record.key, record.value, record.micros, name), context)

    return shown
