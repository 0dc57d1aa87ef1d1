"""Steps that the engine adds: relays, and the step of a sink outside the store.

A relay passes a stream on under another key: records meet at the hash of a user-supplied id or at
the key of an upsert sink's row; rows of a source that are broadcast become productions first; files
and the terminal read a stream like any computation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_origin

from millwheel.computation import Computation
from millwheel.context import BundleContext, Context
from millwheel.core.chunk import Chunk
from millwheel.core.chunk_code import ChunkCode, SendAll
from millwheel.core.model import Key, Record
from millwheel.graph.checks import check_order
from millwheel.graph.labels import INJECTED, free_name, sink_name
from millwheel.graph.node import Node, Reading
from millwheel.graph.pane_relay import PaneRelay
from millwheel.sinks import BundleSink, Console, Discard, JsonLinesFiles, SinkUse, Table
from millwheel.state import StateLayout
from millwheel.streams import Broadcast, Input, Stream
from millwheel.windows import Pane, PaneOrder

RELAYED = "__relayed"
"""Suffix of the hidden stream that a relay fills with a source's rows, for readers by broadcast or
at most once."""


class Relay(Computation[Any, None], ChunkCode):
    def __init__(self, to: Stream[Any]) -> None:
        self.writes = (to,)
        self._to = to

    async def process_record(self, record: Record[Any], ctx: Context[None]) -> None:
        ctx.produce(self._to, record.value)

    def process_chunk(self, chunk: Chunk, send: SendAll) -> None:
        send(self._to.name, chunk.values)


class BundleDelivery(Computation[Any, None]):
    """Gives numbered bundles to a sink outside the store."""

    def __init__(self, sink: BundleSink) -> None:
        self.bundles = sink.bundles
        self.sink = sink

    async def process_bundle(self, records: Sequence[Record[Any]], ctx: Context[None]) -> None:
        assert isinstance(ctx, BundleContext)
        await self.sink.deliver(records, ctx)


def identify_node(stream: Stream[Any], identify: Callable[[Any], Key]) -> tuple[Stream[Any], Node]:
    """The hidden stream that injectors write, and the relay that reads it by the records' ids."""
    hidden = _copy(stream, stream.name + INJECTED)
    node = Node(
        name=f"{stream.name}_by_id",
        kind="relay",
        inputs=(Input(hidden, identify),),
        writes=(stream,),
        computation=Relay(stream),
        named=True,
    )
    return hidden, node


def relay_node(stream: Stream[Any], taken: Collection[str]) -> tuple[Stream[Any], Node]:
    """The hidden stream and the relay through which rows of a source are broadcast or sent once.

    One interval of each reader acknowledges a row's number, so a row for many intervals must become
    many productions first. A row that is sent at most once needs a relay because an un-ACKed row is
    read and sent again.
    """
    hidden = _copy(stream, stream.name + RELAYED)
    node = Node(
        name=free_name(f"{stream.name}_relay", taken),
        kind="relay",
        inputs=(Input(stream, _constant_key),),
        writes=(hidden,),
        computation=Relay(hidden),
    )
    return hidden, node


def relay_rows(nodes: dict[str, Node], layout: Callable[[None, str], StateLayout[Any]]) -> None:
    """Put a relay between a source and each reader by broadcast or at most once."""
    injected = {n.writes[0].name for n in nodes.values() if n.kind == "injector"}
    hidden: dict[str, Stream[Any]] = {}
    for node in list(nodes.values()):
        inputs: list[Reading] = []
        for input_ in node.inputs:
            needs_relay = isinstance(input_, Broadcast) or node.at_most_once
            if needs_relay and input_.stream.name in injected:
                stream = input_.stream
                if stream.name not in hidden:
                    hidden[stream.name], relay = relay_node(stream, nodes)
                    relay.layout = layout(None, relay.name)
                    nodes[relay.name] = relay
                input_ = replace(input_, stream=hidden[stream.name], relayed=stream)
            inputs.append(input_)
        node.inputs = tuple(inputs)


def sink_node(stream: Stream[Any], use: SinkUse, nodes: Mapping[str, Node]) -> Node:
    """The relay that writes a sink which cannot be written in the producer's commit."""
    check_order(stream, use)
    name = free_name(f"{stream.name}_to_{sink_name(use)}", nodes)
    if not isinstance(use.sink, (Table, JsonLinesFiles, Console, Discard)):
        return _delivery_node(name, stream, use.sink, use)
    hidden = _copy(stream, f"{stream.name}__{name}")
    extractor: Callable[[Any], Key] = _constant_key
    panes = False
    if isinstance(use.sink, Table) and use.sink.key:
        extractor = row_key(use.sink, use.row)
        panes = (get_origin(stream.value_type) or stream.value_type) is Pane
    elif isinstance(use.sink, JsonLinesFiles) and use.sink.by is not None:
        extractor = use.sink.by
    order = _pane_order(stream.name, nodes)
    return Node(
        name=name,
        kind="relay",
        inputs=(Input(stream, extractor),),
        writes=(hidden,),
        computation=PaneRelay(hidden, order) if panes else Relay(hidden),
        sinks={hidden.name: [use]},
    )


def row_key(table: Table[Any], row: Callable[[Any], Any] | None) -> Callable[[Any], Key]:
    def extract(value: Any) -> Key:
        parts = table.key_of(table.values(row(value) if row else value))
        return parts if len(parts) > 1 else parts[0]

    extract.__name__ = extract.__qualname__ = f"key of table {table.name}"
    return extract


def _constant_key(value: Any) -> Key:
    return ""


def _copy(stream: Stream[Any], name: str) -> Stream[Any]:
    """A hidden stream of the same type."""
    copy: Stream[Any] = Stream.__new__(Stream)
    copy.__dict__.update(stream.__dict__)
    copy.name = name
    return copy


def _pane_order(stream: str, nodes: Mapping[str, Node]) -> PaneOrder:
    """The order of panes, by the computations that have made their windows, directly or further
    up."""
    found: list[PaneOrder] = []
    waiting, seen = [stream], {stream}
    while waiting:
        name = waiting.pop()
        for node in nodes.values():
            if node.computation is None or not any(to.name == name for to in node.writes):
                continue
            if node.computation.pane_order is not None:
                found.append(node.computation.pane_order)
                continue
            further = {input_.stream.name for input_ in node.inputs} - seen
            waiting += further
            seen |= further
    return PaneOrder.of_all(found)


def _delivery_node(name: str, stream: Stream[Any], sink: BundleSink, use: SinkUse) -> Node:
    return Node(
        name=name,
        kind="computation",
        inputs=(Input(stream, sink.key or _constant_key),),
        computation=BundleDelivery(sink),
        bundles=sink.bundles,
        sinks={stream.name: [use]},
        on_error=use.on_error,
    )
