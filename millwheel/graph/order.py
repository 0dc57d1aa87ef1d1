from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millwheel.aggregates import Aggregate
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import GraphError
from millwheel.graph.node import STATE_VIEWS, Node, Reading
from millwheel.graph.relays import BundleDelivery
from millwheel.graph.submitted import NOTHING_SUBMITTED
from millwheel.sinks import Table
from millwheel.streams import Stream


class Graph:
    """All nodes of a pipeline, in an order with every writer before its readers."""

    def __init__(
        self, name: str, nodes: Iterable[Node], aggregates: Iterable[Aggregate] = ()
    ) -> None:
        self.name = self.name_in_code = name
        self.submitted = NOTHING_SUBMITTED
        """Its queries that are in the store, and not in the code."""
        found = list(nodes)
        self.aggregates = list(aggregates)
        """Aggregates of its tables, which Spark makes outside the engine."""
        self.streams = self._collect_streams(found)
        self._check_tables(found, self.aggregates)
        self.nodes = self._ordered(found)
        self.by_name = {node.name: node for node in self.nodes}
        for node in self.nodes:
            if node.renamed_from in self.by_name:
                raise GraphError(
                    f"{node.name!r} has renamed_from={node.renamed_from!r}, and another part of "
                    "the pipeline still has this name; a name has one successor"
                )
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
        """Refuse an aggregate that could see a new row of the table that it follows before the rows
        that it reads.

        It sees them if one step writes both in its commits, or a step further up has written them
        before: strong productions are sent when they are durable.
        """
        for follower in self._writers(aggregate.follows):
            for table in aggregate.reads:
                for writer in self._writers(table):
                    if writer is follower:
                        continue
                    if writer.is_weak or writer not in self._all_upstream(follower):
                        raise GraphError(
                            f"aggregate {aggregate.name!r} follows table {aggregate.follows!r} and "
                            f"reads table {table!r}, but a row of {aggregate.follows!r}, written "
                            f"by {follower.name!r}, may come before the rows of {table!r} that go "
                            f"with it, written by {writer.name!r}: then they would be missed. "
                            "Write both from one stream, the table with a key by producer_key=, "
                            f"or follow a table that a step after {writer.name!r} writes"
                        )

    def _writers(self, table: str) -> list[Node]:
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

    def writers(self, stream: str) -> list[Node]:
        return [n for n in self.nodes if any(s.name == stream for s in n.writes)]

    def readers(self, stream: str) -> list[tuple[Node, Reading]]:
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
                    message = (
                        f"{node.label!r} reads stream {input_.name!r}, but nothing writes it: no "
                        "injector, and no computation has it in `writes`"
                    )
                    raise GraphError(with_suggestion(message, input_.name, writers))
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
        labels = {node.name: node.label for node in nodes}

        def visit(node: Node) -> None:
            if node.name in done:
                return
            if node.name in path:
                loop = (
                    _quoted(labels[name]) for name in (*path[path.index(node.name) :], node.name)
                )
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


def _table_text(table: Table[Any]) -> str:
    columns = ", ".join(f"{column.name} {column.type}" for column in table.columns)
    key = f" by {', '.join(table.key)}" if table.key else ""
    return f"one of {table.row_type.__name__}{key} ({columns})"


def _quoted(label: str) -> str:
    """A label in a path of labels; some have an arrow of their own."""
    return f"'{label}'" if "→" in label else label
