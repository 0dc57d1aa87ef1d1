from __future__ import annotations

import dis
from collections.abc import Iterator
from typing import Any

from millwheel.computation import Computation
from millwheel.core.codec import place_of
from millwheel.errors import SparkRefused
from millwheel.graph.node import Node
from millwheel.graph.order import Graph
from millwheel.graph.relays import BundleDelivery
from millwheel.inbox import Inbox
from millwheel.sinks import Console, JsonLinesFiles
from millwheel.streams import Broadcast

WALL = "wall timers: an operator of Spark has one kind of time, and that is event time"
HOLD = "ctx.hold_watermark: nothing can hold back the watermark that an operator of Spark passes on"
EXECUTE = "ctx.execute: a record has no transaction of its own, its batch has one"

_CALLS = {"hold_watermark": HOLD, "execute": EXECUTE}
_METHODS = ("process_record", "process_timer")


def refuse(graph: Graph) -> None:
    """`SparkRefused` for a pipeline with parts that cannot run on Spark, with each part and the
    reason."""
    found = [f"  {node.label}: {reason}" for node in graph.nodes for reason in _reasons(node)]
    if found:
        raise SparkRefused(
            f"pipeline {graph.name!r} cannot run on Spark:\n"
            + "\n".join(found)
            + "\nRun it with the engine (millwheel run), or without these parts"
        )


def _reasons(node: Node) -> Iterator[str]:
    if any(isinstance(reading, Broadcast) for reading in node.inputs):
        yield "broadcast streams: an operator of Spark has no table that all keys share"
    if isinstance(node.computation, BundleDelivery):
        yield (
            "a sink outside the store: it takes numbered bundles, and a task that runs again has "
            "others"
        )
    elif node.bundles is not None:
        yield "numbered bundles: a task that runs again has others"
    if node.park is not None:
        yield (
            'on_error="park": its keys would have to stand still across batches; use '
            'on_error="dead_letter"'
        )
    if node.injection is not None and isinstance(node.injection.source, Inbox):
        yield "an Inbox: its records are taken by the engine's own transactions"
    for sink in (use.sink for uses in node.sinks.values() for use in uses):
        if isinstance(sink, Console | JsonLinesFiles):
            yield f"{type(sink).__name__}: tasks run on other machines; write a Table"
    if node.computation is not None:
        yield from _reasons_in_code(node.computation)


def _reasons_in_code(computation: Computation[Any, Any, Any, Any]) -> Iterator[str]:
    """Helpers that get `ctx` are not looked at: their use is refused when it happens."""
    if computation.wall_timers:
        yield WALL
    for method in _METHODS:
        function = getattr(type(computation), method)
        if not hasattr(function, "__code__"):
            continue
        before: dis.Instruction | None = None
        for each in dis.get_instructions(function):
            if (
                before is not None
                and before.opname.startswith("LOAD_FAST")
                and before.argval == "ctx"
                and each.argval in _CALLS
            ):
                yield f"{_CALLS[each.argval]} ({place_of(function)})"
            before = each
        if computation.wall_timers is None and "wall" in function.__code__.co_consts:
            yield (
                f"{WALL} ({place_of(function)}; if it sets none, give the class wall_timers = "
                "False)"
            )
