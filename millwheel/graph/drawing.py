"""The graph for a terminal, and as a Mermaid flowchart."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.graph.labels import sink_name
from millwheel.graph.node import Node, Reading
from millwheel.graph.order import Graph
from millwheel.sinks import JsonLinesFiles, SinkUse, Table
from millwheel.streams import Broadcast, Input


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
    lines = ["flowchart LR"]
    shapes = {"injector": "[/{}/]", "computation": "[{}]", "relay": "({})"}
    for node in graph.nodes:
        shown = node.label if node.label == node.name else f'"{node.label}"'
        lines.append(f"  {node.name}{shapes[node.kind].format(shown)}")
        for stream, uses in node.sinks.items():
            lines += [
                f"  {node.name} -->|{stream}| {sink_name(use)}[({sink_name(use)})]" for use in uses
            ]
    for node in graph.nodes:
        for stream_ in node.writes:
            lines += [
                f"  {node.name} -->|{_label(input_)}| {reader.name}"
                for reader, input_ in graph.readers(stream_.name)
            ]
    for aggregate in graph.aggregates:
        lines.append(f"  {aggregate.follows} -.-> {aggregate.name}[[{aggregate.name}]]")
        lines.append(f'  {aggregate.name} --> {aggregate.name}_target[("{aggregate.target}")]')
    return "\n".join(lines)


def _manner(node: Node, input_: Reading) -> str:
    """The way in which a node reads a stream, for the terminal."""
    if isinstance(input_, Broadcast):
        return f"{input_.manner} to {node.cells} cells"
    return input_.manner


def _label(input_: Reading) -> str:
    """The label of an arrow in the flowchart: the stream, with its reading if that is not by
    key."""
    by_key = isinstance(input_, Input) and input_.extractor is not None
    return input_.stream.name if by_key else f"{input_.stream.name}, {input_.manner}"


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _sink_text(use: SinkUse) -> str:
    if isinstance(use.sink, JsonLinesFiles):
        return f"a part file in {use.sink.directory}"
    return f"table {use.sink.name}" if isinstance(use.sink, Table) else sink_name(use)
