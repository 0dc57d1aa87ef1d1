"""The boxes and arrows of a graph, which each drawing of it shares.

A step that only writes a sink is the sink's box.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal, TypeAlias

from millwheel.computation import snake_case
from millwheel.core.model import Key
from millwheel.graph.labels import INJECTED, free_name, sink_name
from millwheel.graph.node import Node, Reading
from millwheel.graph.order import Graph
from millwheel.graph.relays import BundleDelivery
from millwheel.sinks import JsonLinesFiles, SinkUse, Table
from millwheel.streams import Input

BoxKind: TypeAlias = Literal["source", "computation", "relay", "sink", "aggregate"]
MOST_PARTS = 2
"""Files of a source that its box names."""
TAKING_FIELDS = ("RESUME", "LOAD_FAST", "LOAD_ATTR", "BUILD_TUPLE", "RETURN_VALUE")
"""Beginnings of the names of instructions, in functions that do nothing but take fields."""


@dataclass(frozen=True)
class Box:
    """A source, a step or a sink.

    Attributes:
        name: unique in the picture; the step's name, if it is one.
        detail: a second line: the source's description, the class, the kind of sink. May be empty.
    """

    name: str
    kind: BoxKind
    title: str
    detail: str = ""


@dataclass(frozen=True)
class Arrow:
    """Records of a stream, from the box that writes them to one that reads them.

    Attributes:
        manner: how they are read, such as ``by customer``; empty for a sink in the writer's commit.
        by_spark: Spark reads a table, outside of the pipeline.
    """

    start: str
    end: str
    stream: str
    manner: str = ""
    by_spark: bool = False

    @property
    def is_keyed(self) -> bool:
        return self.manner.startswith("by ")


@dataclass(frozen=True)
class GraphPicture:
    """Boxes, writers before readers, and arrows."""

    name: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    @classmethod
    def of(cls, graph: Graph) -> GraphPicture:
        drawn = _Drawn(graph)
        for node in graph.nodes:
            drawn.add_node(node)
        for node in graph.nodes:
            drawn.add_readings(node)
        drawn.add_aggregates()
        return cls(graph.name, tuple(drawn.boxes.values()), tuple(drawn.arrows))


@dataclass
class _Drawn:
    graph: Graph
    boxes: dict[str, Box] = field(default_factory=dict)
    arrows: list[Arrow] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=dict)
    """The box of each table of a sink."""

    def add_node(self, node: Node) -> None:
        """Add a box of a node, and those of the sinks in its commits."""
        use = _only_sink(node)
        if use is not None:
            self._add(Box(node.name, "sink", sink_name(use), _sink_detail(use)), use)
            return
        self._add(Box(node.name, _kind(node), node.label, _detail(node)))
        for stream, uses in node.sinks.items():
            for each in uses:
                self.arrows.append(Arrow(node.name, self._sink_box(each), stream))

    def add_readings(self, node: Node) -> None:
        """Add the arrows from a node to its readers."""
        for stream in node.writes:
            for reader, reading in self.graph.readers(stream.name):
                manner = _manner(reader, reading)
                self.arrows.append(Arrow(node.name, reader.name, _shown_stream(reading), manner))

    def add_aggregates(self) -> None:
        """Add Spark's aggregates of tables, and the tables or files that they write."""
        for aggregate in self.graph.aggregates:
            by = f"by {', '.join(aggregate.group_names)}"
            self._add(Box(aggregate.name, "aggregate", aggregate.name, "by Spark"))
            for table in dict.fromkeys((aggregate.follows, *aggregate.reads)):
                followed = "follows" if table == aggregate.follows else "reads"
                start = self.tables[table]
                self.arrows.append(Arrow(start, aggregate.name, table, followed, by_spark=True))
            target, kind = _last_part(aggregate.target), "table"
            if not isinstance(aggregate.to, Table):
                kind = "Parquet files"
            name = free_name(f"{aggregate.name}_target", self.boxes)
            self._add(Box(name, "sink", target, kind))
            self.arrows.append(Arrow(aggregate.name, name, "groups", by, by_spark=True))

    def _sink_box(self, use: SinkUse) -> str:
        """The box of a sink: one for each table, which several steps may write."""
        if isinstance(use.sink, Table) and use.sink.name in self.tables:
            return self.tables[use.sink.name]
        taken = {*self.boxes, *self.graph.by_name, *(a.name for a in self.graph.aggregates)}
        name = free_name(sink_name(use), taken)
        self._add(Box(name, "sink", sink_name(use), _sink_detail(use)), use)
        return name

    def _add(self, box: Box, use: SinkUse | None = None) -> None:
        self.boxes[box.name] = box
        if use is not None and isinstance(use.sink, Table):
            self.tables[use.sink.name] = box.name


def _only_sink(node: Node) -> SinkUse | None:
    """The sink of a step that the engine has added for it."""
    if node.kind == "relay" or isinstance(node.computation, BundleDelivery):
        return next((use for uses in node.sinks.values() for use in uses), None)
    return None


def _kind(node: Node) -> BoxKind:
    return "source" if node.kind == "injector" else node.kind


def _detail(node: Node) -> str:
    if node.injection is not None:
        return _described(node.injection.source.describe())
    if node.kind == "relay" or node.computation is None:
        return ""
    kind = node.computation.class_name.rpartition(".")[2]
    known = snake_case(kind)
    parts = ["" if known in (node.name, node.label.partition(" → ")[0]) else kind]
    parts += ["weak"] if node.is_weak else []
    parts += ["at most once"] if node.at_most_once else []
    return ", ".join(part for part in parts if part)


def _described(description: Mapping[str, Any]) -> str:
    """The first part of a source's description: ``kafka: orders``."""
    for name, value in description.items():
        shown = name.replace("_", " ")
        if value is True:
            return shown
        parts = value if isinstance(value, (list, tuple)) else [value]
        named = [_last_part(str(part)) for part in parts[:MOST_PARTS]]
        more = f" and {len(parts) - len(named)} more" if len(parts) > len(named) else ""
        return f"{shown}: {', '.join(named)}{more}"
    return ""


def _last_part(text: str) -> str:
    """The last part, if the text is a path."""
    return PurePath(text).name or text


def _sink_detail(use: SinkUse) -> str:
    match use.sink:
        case Table():
            return "table"
        case JsonLinesFiles(directory=directory):
            return f"in {_last_part(str(directory))}"
        case sink:
            return _described(sink.describe()).removeprefix(f"{sink_name(use)}: ")


def _shown_stream(reading: Reading) -> str:
    """The user's stream of a reading."""
    return reading.name.removesuffix(INJECTED)


def _manner(node: Node, reading: Reading) -> str:
    """How a node reads a stream; empty where all records have one key."""
    use = _only_sink(node)
    if node.kind == "relay" and use is None and not node.named:
        return ""
    if use is None:
        by = reading.extractor if isinstance(reading, Input) else None
    elif isinstance(use.sink, Table):
        return f"by {', '.join(use.sink.key)}" if use.sink.key else ""
    else:
        by = getattr(use.sink, "by", None) or getattr(use.sink, "key", None)
        if by is None:
            return ""
    return reading.manner if by is None else f"by {_key_text(by)}"


def _key_text(extractor: Callable[[Any], Key]) -> str:
    """The name of a function, without ``by_``; of a lambda that only takes fields, these."""
    name: str = getattr(extractor, "__name__", "key")  # the key of a query has none
    if name != "<lambda>":
        return name.removeprefix("by_")
    steps = list(dis.get_instructions(extractor))
    fields_ = [str(step.argval) for step in steps if step.opname == "LOAD_ATTR"]
    is_plain = all(step.opname.startswith(TAKING_FIELDS) for step in steps)
    return ", ".join(fields_) if fields_ and is_plain else "a lambda"
