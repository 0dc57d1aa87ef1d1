"""The graph of a pipeline, which is known, checked and printable before anything starts.

Nodes are injectors, computations, and *relays*. A relay is a small step of the engine that passes a
stream on under another key, where correctness needs it: records with user-supplied ids meet at the
hash of the id; rows of an upsert sink meet at the row's key; rows of a source that are broadcast
become productions first; files and the terminal read a stream like any computation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_origin

import msgspec

from millwheel.aggregates import Aggregate
from millwheel.bundles import Bundles
from millwheel.codec import Migration
from millwheel.computation import Computation, snake_case
from millwheel.context import BundleContext, Context
from millwheel.errors import GraphError
from millwheel.model import SLOTS, Key, Record
from millwheel.pane_relay import PaneRelay
from millwheel.parking import Park
from millwheel.sinks import BundleSink, Console, Discard, JsonLinesFiles, SinkUse, Table
from millwheel.sources import GrowingSource, Source
from millwheel.state import StateLayout
from millwheel.streams import Broadcast, Input, Stream
from millwheel.windows import Pane, PaneOrder

INJECTED = "__injected"
"""Suffix of the hidden stream between injectors and the relay that finds duplicate ids."""

RELAYED = "__relayed"
"""Suffix of the hidden stream that a relay fills with a source's rows, for readers by broadcast or
at most once."""

STATE_VIEWS = "state_of_"
"""Prefix of the views that show one computation's state."""

OnError = Literal["fail", "dead_letter"]
OnFailure = Literal["fail", "dead_letter", "park"]
DeliveryMode = Literal["acknowledged", "at_most_once"]
Productions = Literal["strong", "weak"]
Acknowledgement = Literal["chain", "tree"]
Reading: TypeAlias = Input[Any] | Broadcast[Any]


@dataclass(frozen=True)
class Injection:
    """A source, and the options with which it is read into a stream."""

    source: Source
    timestamp: Callable[[Any], datetime] | None
    """None: the rows have timestamps of their own."""
    seen: Callable[[Any], datetime] | None
    lateness: timedelta
    on_error: OnError
    watermark: Callable[[Any], datetime | None] | None = None
    idle_after: timedelta | None = None
    max_pending: int | None = None
    """Maximum un-ACKed rows of a partition; None: the credits are the only limit."""
    latency_target: timedelta | None = None
    """Time within which rows should be acknowledged; None: the limit of rows is fixed."""

    @cached_property
    def shown_by_reader(self) -> bool:
        """Whether the source itself shows how far event time is, and not its rows."""
        by_rows = self.timestamp or self.seen or self.watermark
        return by_rows is None and getattr(self.source, "shows_time", False)

    @cached_property
    def growing(self) -> GrowingSource | None:
        """The source, if it finds partitions while it runs."""
        return self.source if isinstance(self.source, GrowingSource) else None


@dataclass
class Node:
    """One node of the graph."""

    name: str
    kind: Literal["injector", "computation", "relay"]
    inputs: tuple[Reading, ...] = ()
    writes: tuple[Stream[Any], ...] = ()
    computation: Computation[Any, Any, Any, Any] | None = None
    injection: Injection | None = None
    layout: StateLayout[Any] | None = None
    shared: StateLayout[Any] | None = None
    """The layout of the table built from broadcast records."""
    cells: int = 0
    """Number of parts of its slots with a table each; 0: it has no broadcast input."""
    bundles: Bundles | None = None
    """The limits of its numbered bundles; None: it reads record by record."""
    on_error: OnFailure = "fail"
    park: Park | None = None
    """How its keys are parked, with ``on_error="park"``."""
    retries: int = 0
    productions: Productions = "strong"
    exactly_once: bool = True
    """Whether copies of a record are dropped, even if they arrive late."""
    delivery: DeliveryMode = "acknowledged"
    straggler_seconds: float = 1.0
    """With weak productions, the time that an input waits for their acknowledgement."""
    acknowledgement: Acknowledgement = "chain"
    """The way in which an input waits for its weak productions."""
    replay_seconds: float = 5.0
    """Time without a sign of a tree's records after which its root is processed again."""
    percentile: float | None = None
    """The percentile low watermark at which its timers fire; None: the exact one."""
    percentiles: tuple[float, ...] = ()
    """The percentiles that this node or any step downstream of it uses."""
    named: bool = False
    """Whether its input's key is the record's user-supplied id."""
    sinks: dict[str, list[SinkUse]] = field(default_factory=dict)
    """By stream, the sinks that are written in its own commits."""

    @property
    def label(self) -> str:
        """Its name for display: see `label_of`."""
        return label_of(self.name, self.describe())

    @property
    def injected(self) -> str:
        """The user's stream that an injector feeds, directly or by a hidden stream."""
        return self.writes[0].name.removesuffix(INJECTED)

    @property
    def grain(self) -> int:
        """Number of slots at multiples of which its intervals begin and end."""
        return SLOTS // self.cells if self.cells else 1

    @property
    def at_most_once(self) -> bool:
        """Whether records are sent to it once, and never again."""
        return self.delivery == "at_most_once"

    @property
    def shown_names(self) -> dict[str, str]:
        """The user's names of its hidden input streams."""
        return {i.stream.name: i.name for i in self.inputs if i.name != i.stream.name}

    @property
    def state_steps(self) -> Mapping[int, Migration]:
        """The migrations of its state, by the version from which each one leads."""
        return {} if self.computation is None else self._steps(self.computation.migrations)

    @property
    def shared_steps(self) -> Mapping[int, Migration]:
        """The migrations of its shared table, by the version from which each one leads."""
        return {} if self.computation is None else self._steps(self.computation.shared_migrations)

    def _steps(self, given: Mapping[int, Migration]) -> Mapping[int, Migration]:
        """`given`, with steps that change nothing for versions that changed only the other type.

        State and shared table have one version; the deploy has checked which type has changed.
        """
        if self.shared is None:
            return given
        assert self.computation is not None
        of_both = {**self.computation.migrations, **self.computation.shared_migrations}
        unchanged = range(1, max(self.computation.version, *of_both, 1) + 1)
        return {**dict.fromkeys(unchanged, _unchanged), **given}

    @property
    def is_weak(self) -> bool:
        """Whether its productions are sent before they are stored, if they are stored at all."""
        return self.productions == "weak"

    @property
    def is_tree(self) -> bool:
        """Whether its productions are not kept: losses are replayed from the root."""
        return self.acknowledgement == "tree"

    @property
    def is_spread(self) -> bool:
        """Whether the engine chooses its keys."""
        return any(isinstance(i, Input) and i.extractor is None for i in self.inputs)

    def describe(self) -> dict[str, Any]:
        """The stored description, which a later start compares with its own."""
        description: dict[str, Any] = {
            "kind": self.kind,
            "inputs": [[i.stream.name, i.extractor_name] for i in self.inputs],
            "writes": sorted(stream.name for stream in self.writes),
            "sinks": {
                stream: [use.sink.describe() for use in uses] for stream, uses in self.sinks.items()
            },
        }
        if self.injection:
            description["source"] = self.injection.source.describe()
            description["lateness_seconds"] = self.injection.lateness.total_seconds()
        if self.computation:
            description["class"] = type(self.computation).__name__
        if self.cells:
            description["broadcast_cells"] = self.cells
        if self.named:
            description["named"] = True
        if self.bundles is not None:
            description["bundles"] = True
        if self.percentile is not None:
            description["low_watermark_percentile"] = self.percentile
        if self.is_weak:  # its productions have other ids: stored ones would not be recognised
            description["productions"] = self.productions
        if self.at_most_once:  # records for it are not stored
            description["delivery"] = self.delivery
        return description


class Relay(Computation[Any, None]):
    """Passes every record on unchanged."""

    def __init__(self, to: Stream[Any]) -> None:
        self.writes = (to,)
        self._to = to

    async def process_record(self, record: Record[Any], ctx: Context[None]) -> None:
        ctx.produce(self._to, record.value)


class BundleDelivery(Computation[Any, None]):
    """Gives numbered bundles to a sink outside the store."""

    def __init__(self, sink: BundleSink) -> None:
        self.bundles = sink.bundles
        self.sink = sink

    async def process_bundle(self, records: Sequence[Record[Any]], ctx: Context[None]) -> None:
        assert isinstance(ctx, BundleContext)
        await self.sink.deliver(records, ctx)


def row_key(table: Table[Any], row: Callable[[Any], Any] | None) -> Callable[[Any], Key]:
    """The key of a table's own step: that of the row."""

    def extract(value: Any) -> Key:
        parts = table.key_of(table.values(row(value) if row else value))
        return parts if len(parts) > 1 else parts[0]

    extract.__qualname__ = f"key of table {table.name}"
    return extract


def _unchanged(value: Any) -> Any:
    return value


def _constant_key(value: Any) -> Key:
    return ""


def _copy(stream: Stream[Any], name: str) -> Stream[Any]:
    """A hidden stream of the same type."""
    copy: Stream[Any] = Stream.__new__(Stream)
    copy.__dict__.update(stream.__dict__)
    copy.name = name
    return copy


class Graph:
    """All nodes, in an order with every writer before its readers."""

    def __init__(
        self, name: str, nodes: Iterable[Node], aggregates: Iterable[Aggregate] = ()
    ) -> None:
        self.name = name
        found = list(nodes)
        self.aggregates = list(aggregates)
        """Aggregates of its tables, which Spark makes outside the engine."""
        self.streams = self._collect_streams(found)
        self._check_tables(found, self.aggregates)
        self.nodes = self._ordered(found)
        self.by_name = {node.name: node for node in self.nodes}
        self._spread_percentiles()
        for aggregate in self.aggregates:
            self._check_aggregate(aggregate)

    async def close_sinks(self) -> None:
        """Close the connections of sinks outside the store."""
        for node in self.nodes:
            if isinstance(node.computation, BundleDelivery):
                await node.computation.sink.close()

    @staticmethod
    def _collect_streams(nodes: list[Node]) -> dict[str, Stream[Any]]:
        streams: dict[str, Stream[Any]] = {}
        for node in nodes:
            for stream in (*node.writes, *(i.stream for i in node.inputs)):
                known = streams.setdefault(stream.name, stream)
                if known is not stream and (
                    known.value_type != stream.value_type or known.version != stream.version
                ):
                    raise GraphError(
                        f"two different streams are called {stream.name!r}: one of "
                        f"{known.value_type!r}, one of {stream.value_type!r}; rename one"
                    )
        return streams

    @staticmethod
    def _check_tables(nodes: list[Node], aggregates: list[Aggregate]) -> None:
        uses = [use for node in nodes for found in node.sinks.values() for use in found]
        tables: dict[str, Table[Any]] = {}
        targets = (*(use.sink for use in uses), *(aggregate.to for aggregate in aggregates))
        for table in (target for target in targets if isinstance(target, Table)):
            if table.name.startswith(STATE_VIEWS):
                raise GraphError(
                    f"a sink's table is called {table.name!r}, but names that begin with "
                    f"{STATE_VIEWS} are reserved for views of computations' state; rename it"
                )
            known = tables.setdefault(table.name, table)
            if known.columns != table.columns or known.key != table.key:
                raise GraphError(
                    f"two different tables are called {table.name!r}: {_table_text(known)}, and "
                    f"{_table_text(table)}; rename one, or give both the same columns and key"
                )

    def _check_aggregate(self, aggregate: Aggregate) -> None:
        """Refuse an aggregate that could see a new row of the table that it follows before the rows that it reads.

        They are there with it if one step writes both in its commits, or a step further up has written them
        before: strong productions are sent when they are durable.
        """
        for follower in self._writers(aggregate.follows):
            for table in aggregate.reads:
                for writer in self._writers(table):
                    if writer is follower:
                        continue
                    if writer.is_weak or writer not in self._all_upstream(follower):
                        raise GraphError(
                            f"aggregate {aggregate.name!r} follows table {aggregate.follows!r} and reads table "
                            f"{table!r}, but a row of {aggregate.follows!r}, written by {follower.name!r}, may come "
                            f"before the rows of {table!r} that go with it, written by {writer.name!r}: then they would "
                            "be missed. Write both from one stream, the table with a key by producer_key=, or "
                            f"follow a table that a step after {writer.name!r} writes"
                        )

    def _writers(self, table: str) -> list[Node]:
        """The steps that write a table."""
        return [
            node
            for node in self.nodes
            for uses in node.sinks.values()
            for use in uses
            if isinstance(use.sink, Table) and use.sink.name == table
        ]

    def _all_upstream(self, node: Node) -> list[Node]:
        """All steps whose records lead to those of a step."""
        found: list[Node] = []
        waiting = [node]
        while waiting:
            for sender in self.upstream(waiting.pop()):
                if sender not in found:
                    found.append(sender)
                    waiting.append(sender)
        return found

    def _spread_percentiles(self) -> None:
        """Give each percentile of a step to all steps upstream of it, which have to publish it."""
        wanted: dict[str, set[float]] = {node.name: set() for node in self.nodes}
        for node in reversed(self.nodes):
            if node.percentile is not None:
                wanted[node.name].add(node.percentile)
            node.percentiles = tuple(sorted(wanted[node.name]))
            for sender in self.upstream(node):
                wanted[sender.name] |= wanted[node.name]

    def writers(self, stream: str) -> list[Node]:
        """The nodes that write a stream."""
        return [n for n in self.nodes if any(s.name == stream for s in n.writes)]

    def readers(self, stream: str) -> list[tuple[Node, Reading]]:
        """The nodes that read a stream, each with its reading."""
        return [(n, i) for n in self.nodes for i in n.inputs if i.stream.name == stream]

    def upstream(self, node: Node) -> list[Node]:
        """The nodes that write the streams read by `node`."""
        names = {i.stream.name for i in node.inputs}
        return [n for n in self.nodes if any(s.name in names for s in n.writes)]

    def _ordered(self, nodes: list[Node]) -> list[Node]:
        writers: dict[str, list[Node]] = {}
        for node in nodes:
            for stream in node.writes:
                writers.setdefault(stream.name, []).append(node)
        for node in nodes:
            for input_ in node.inputs:
                if input_.stream.name not in writers:
                    raise GraphError(
                        f"{node.name!r} reads stream {input_.stream.name!r}, but nothing writes it: "
                        "no injector, and no computation has it in `writes`"
                    )
        read = {input_.stream.name for node in nodes for input_ in node.inputs}
        for node in nodes:
            if node.kind == "injector" and node.writes[0].name not in read:
                raise GraphError(
                    f"{node.name!r} injects stream {node.writes[0].name!r}, but nothing reads it; "
                    "add a computation or a sink that does"
                )
        order: list[Node] = []
        done: set[str] = set()
        path: list[str] = []

        def visit(node: Node) -> None:
            if node.name in done:
                return
            if node.name in path:
                loop = [*path[path.index(node.name) :], node.name]
                raise GraphError(
                    f"the graph has a cycle: {' → '.join(loop)}; a low watermark cannot pass it. "
                    "Break it, for example by writing to a table instead"
                )
            path.append(node.name)
            for input_ in node.inputs:
                for writer in writers[input_.stream.name]:
                    visit(writer)
            path.pop()
            done.add(node.name)
            order.append(node)

        for node in nodes:
            visit(node)
        return order

    def describe(self) -> dict[str, Any]:
        """The whole graph as a deploy stores it."""
        return {
            "nodes": {node.name: node.describe() for node in self.nodes},
            "streams": sorted(self.streams),
        }

    def text(self) -> str:
        """The graph for a terminal."""
        lines = [f"pipeline {self.name}"]
        for node in self.nodes:
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
                if self.readers(stream.name) or not node.sinks.get(stream.name):
                    lines.append(f"    sends {stream.name}")
        for aggregate in self.aggregates:
            lines += [
                f"  aggregate {aggregate.name}, by Spark",
                f"    follows {aggregate.follows}",
                f"    reads {', '.join(aggregate.reads)} by {', '.join(aggregate.group_names)}",
                f"    replaces groups of {aggregate.target}",
            ]
        return "\n".join(lines)

    def mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        lines = ["flowchart LR"]
        shapes = {"injector": "[/{}/]", "computation": "[{}]", "relay": "({})"}
        for node in self.nodes:
            shown = node.label if node.label == node.name else f'"{node.label}"'
            lines.append(f"  {node.name}{shapes[node.kind].format(shown)}")
            for stream, uses in node.sinks.items():
                lines += [
                    f"  {node.name} -->|{stream}| {sink_name(use)}[({sink_name(use)})]"
                    for use in uses
                ]
        for node in self.nodes:
            for stream_ in node.writes:
                lines += [
                    f"  {node.name} -->|{_label(input_)}| {reader.name}"
                    for reader, input_ in self.readers(stream_.name)
                ]
        for aggregate in self.aggregates:
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


def _table_text(table: Table[Any]) -> str:
    columns = ", ".join(f"{column.name} {column.type}" for column in table.columns)
    key = f" by {', '.join(table.key)}" if table.key else ""
    return f"one of {table.row_type.__name__}{key} ({columns})"


def json_text(value: Any) -> str:
    """Compact JSON for display."""
    return msgspec.json.encode(value).decode()


def _sink_text(use: SinkUse) -> str:
    """A description of a sink, for the terminal."""
    if isinstance(use.sink, JsonLinesFiles):
        return f"a part file in {use.sink.directory}"
    return f"table {use.sink.name}" if isinstance(use.sink, Table) else sink_name(use)


def sink_name(use: SinkUse) -> str:
    """The name of a sink in graphs and step names."""
    match use.sink:
        case Table(name=name):
            return str(name)
        case JsonLinesFiles():
            return "files"
        case Console():
            return "console"
        case Discard():
            return "discard"
        case sink:
            return snake_case(type(sink).__name__.removesuffix("Sink")) or "sink"


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

    A row is one number of the source's log, and one interval of each reader acknowledges it. A row
    for many intervals of a reader therefore has to become many productions first. A row that is
    sent at most once needs a relay because an unacknowledged row is read and sent again.
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


def label_of(name: str, description: Mapping[str, Any]) -> str:
    """A node's name for display, from its name and its description (`Node.describe`).

    A name that was generated reads as the field's: ``flat_map → words`` for ``make_words``,
    ``sink: spikes`` for ``spikes_to_spikes``. Any other name is its own label. Commands, views and the
    store use the name.
    """
    if description.get("kind") == "relay":
        return _relay_label(name, description)
    stream = name.removeprefix("make_")
    if stream != name and stream in description.get("writes", ()) and "class" in description:
        return f"{snake_case(description['class'])} → {stream}"
    return name


def _relay_label(name: str, description: Mapping[str, Any]) -> str:
    stream = str(description["inputs"][0][0])
    if stream.endswith(INJECTED):
        return f"ids: {stream.removesuffix(INJECTED)}"
    sinks = [sink for uses in description.get("sinks", {}).values() for sink in uses]
    if not sinks:
        generated, label = f"{stream}_relay", f"relay: {stream}"
    else:
        sink = _described_sink_name(sinks[0])
        generated = f"{stream}_to_{sink}"
        label = f"sink: {sink}" if sink == stream else f"sink: {stream} → {sink}"
    number = name.removeprefix(generated).removeprefix("_")  # see `free_name`
    return f"{label} ({number})" if number else label


def _described_sink_name(description: Mapping[str, Any]) -> str:
    """`sink_name`, from a sink's description."""
    return str(
        description.get("table")
        or next(
            name
            for name, part in (
                ("files", "json_lines"),
                ("console", "console"),
                ("discard", "discard"),
            )
            if part in description
        )
    )


def free_name(name: str, taken: Collection[str]) -> str:
    """`name`, with a number if another node has it already."""
    number = 2
    free = name
    while free in taken:
        free = f"{name}_{number}"
        number += 1
    return free


def sink_node(stream: Stream[Any], use: SinkUse, nodes: Mapping[str, Node]) -> Node:
    """The relay that writes a sink which cannot be written in the producer's commit."""
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


def _pane_order(stream: str, nodes: Mapping[str, Node]) -> PaneOrder:
    """The order of a stream's panes, by the computations that have made their windows, directly or further up."""
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
    """The step of a sink outside the store."""
    return Node(
        name=name,
        kind="computation",
        inputs=(Input(stream, sink.key or _constant_key),),
        computation=BundleDelivery(sink),
        bundles=sink.bundles,
        sinks={stream.name: [use]},
        on_error=use.on_error,
    )
