"""The graph for a terminal, and as a Mermaid flowchart."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.graph.labels import sink_name
from millwheel.graph.node import Node, Reading
from millwheel.graph.order import Graph
from millwheel.graph.picture import Arrow, GraphPicture
from millwheel.sinks import JsonLinesFiles, SinkUse, Table
from millwheel.streams import Broadcast

SHAPES = {
    "source": "[/{}/]",
    "computation": "[{}]",
    "relay": "({})",
    "sink": "[({})]",
    "aggregate": "[[{}]]",
}
"""Mermaid's shape of each kind of box."""


def text(graph: Graph) -> str:
    lines = [f"pipeline {graph.name}"]
    for node in graph.nodes:
        known = node.name if node.label == node.name else f"{node.name} ({node.label})"
        lines.append(f"  {node.kind} {known}")
        if node.injection:
            lines.append(f"    from  {json_text(node.injection.source.describe())}")
        lines += [f"    reads {i.stream.name} {_manner(node, i)}" for i in node.inputs]
        if node.is_weak or not node.exactly_once:
            once = "exactly once" if node.exactly_once else "at least once"
            once = "at most once" if node.at_most_once else once
            how = ", acknowledged by trees" if node.is_tree else ""
            lines.append(f"    {node.productions} productions, {once}{how}")
        if node.bundles is not None:
            lines.append(
                f"    in numbered bundles of {node.bundles.records:,}, or fewer after "
                f"{node.bundles.seconds:g} s"
            )
        for stream in node.writes:
            lines += [
                f"    {_sink_text(use)} gets {stream.name}, in the same commit"
                for use in node.sinks.get(stream.name, [])
            ]
            if graph.readers(stream.name) or not node.sinks.get(stream.name):
                lines.append(f"    sends {stream.name}")
    for aggregate in graph.aggregates:
        lines += [
            f"  aggregate {aggregate.name}, by Spark",
            f"    follows {aggregate.follows}",
            f"    reads {', '.join(aggregate.reads)} by {', '.join(aggregate.group_names)}",
            f"    replaces groups of {aggregate.target}",
        ]
    return "\n".join(lines)


def mermaid(graph: Graph) -> str:
    picture = GraphPicture.of(graph)
    lines = ["flowchart LR"]
    for box in picture.boxes:
        shown = box.title if box.title == box.name else f'"{box.title}"'
        lines.append(f"  {box.name}{SHAPES[box.kind].format(shown)}")
    for arrow in picture.arrows:
        line = "-.->" if arrow.by_spark else "-->"
        lines.append(f"  {arrow.start} {line}|{_label(arrow)}| {arrow.end}")
    return "\n".join(lines)


def _manner(node: Node, input_: Reading) -> str:
    """The way in which a node reads a stream, for the terminal."""
    if isinstance(input_, Broadcast):
        return f"{input_.manner} to {node.cells} cells"
    return input_.manner


def _label(arrow: Arrow) -> str:
    """The label of an arrow in the flowchart: the stream, with its reading if that is not by
    key."""
    by_key = not arrow.manner or arrow.is_keyed
    return arrow.stream if by_key else f"{arrow.stream}, {arrow.manner}"


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _sink_text(use: SinkUse) -> str:
    if isinstance(use.sink, JsonLinesFiles):
        return f"a part file in {use.sink.directory}"
    return f"table {use.sink.name}" if isinstance(use.sink, Table) else sink_name(use)
