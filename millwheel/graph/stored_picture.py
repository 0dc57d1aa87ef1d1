"""The boxes and arrows of a graph that a deploy has stored, where its code is not at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from millwheel.graph.labels import described_sink_name, free_name, label_of, users_stream
from millwheel.graph.picture import Arrow, Box, BoxKind, GraphPicture
from millwheel.graph.relays import BundleDelivery

Description = Mapping[str, Any]
"""Of a node, as `millwheel.graph.node.Node.describe` makes it."""

BROADCAST = "broadcast()"


def stored_picture(name: str, nodes: Mapping[str, Description]) -> GraphPicture:
    """The picture of a graph, by the descriptions of its nodes.

    Aggregates of Spark are not in it: no deploy stores them.
    """
    boxes = {node: _box(node, description) for node, description in nodes.items()}
    arrows: list[Arrow] = []
    tables: dict[str, str] = {}
    for node, description in nodes.items():
        if _is_sink(description):
            continue
        for stream, sink in _sinks(description):
            title = described_sink_name(sink)
            place = tables.get(title) if "table" in sink else None
            if place is None:
                place = free_name(title, boxes)
                boxes[place] = Box(place, "sink", title, "table" if "table" in sink else "")
            if "table" in sink:
                tables[title] = place
            arrows.append(Arrow(node, place, stream))
    arrows += _readings(nodes)
    return GraphPicture(name, tuple(boxes.values()), tuple(arrows))


def _box(node: str, description: Description) -> Box:
    return Box(node, _kind(description), label_of(node, description))


def _kind(description: Description) -> BoxKind:
    if description.get("kind") == "injector":
        return "source"
    if _is_sink(description):
        return "sink"
    return "relay" if description.get("kind") == "relay" else "computation"


def _is_sink(description: Description) -> bool:
    """Whether the engine has added the step for a sink."""
    if description.get("kind") == "relay":
        return any(description.get("sinks", {}).values())
    return description.get("class") == BundleDelivery.__qualname__


def _sinks(description: Description) -> Iterator[tuple[str, Description]]:
    for stream, sinks in description.get("sinks", {}).items():
        for sink in sinks:
            yield stream, sink


def _readings(nodes: Mapping[str, Description]) -> Iterator[Arrow]:
    writers: dict[str, list[str]] = {}
    for node, description in nodes.items():
        for stream in description.get("writes", ()):
            writers.setdefault(stream, []).append(node)
    for reader, description in nodes.items():
        for stream, extractor in description.get("inputs", ()):
            manner = "broadcast" if extractor == BROADCAST else ""
            for writer in writers.get(stream, ()):
                yield Arrow(writer, reader, users_stream(stream), manner)
