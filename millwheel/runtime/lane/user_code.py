"""Prepares a step's user code: its context, and its `process_record`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from millwheel.context import SPREAD, TIMERLESS, WEAK, Context, context_class
from millwheel.core.effects import Call, Effects
from millwheel.core.model import Record
from millwheel.runtime.environment import Wrap
from millwheel.runtime.interval.step import Step
from millwheel.runtime.seen.weak_ids import WeakIds

Process = Callable[[Record[Any], Context[Any, Any]], Awaitable[None]]
"""The user's `process_record`, or a function around it."""


def context_of(step: Step, call: Call) -> Context[Any, Any]:
    """The context of a step's code. It offers less where the code's output must not depend on the
    time of the run."""
    node = step.node
    assert node.computation is not None
    refusals = []
    if node.is_spread:
        refusals.append(SPREAD)
    elif not node.computation.defines("process_timer"):
        refusals.append(TIMERLESS)
    if node.is_weak and not node.computation.order_insensitive:
        refusals.append(WEAK)
    return context_class(*refusals)(call)


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
