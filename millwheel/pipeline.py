"""`Pipeline`: connects sources, computations and sinks by streams."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from typing_extensions import TypeVar

from millwheel.aggregates import Aggregate, GroupPart, Parquet, make_aggregate
from millwheel.computation import Computation
from millwheel.core.codec import Codec
from millwheel.core.functions import check_function
from millwheel.core.model import Key
from millwheel.core.names import check_name
from millwheel.errors import GraphError
from millwheel.graph.checks import (
    check_broadcast,
    check_bundles,
    check_failures,
    check_inbox,
    check_injection,
    check_inputs,
    check_no_rows,
    check_readings,
    check_repeatable,
    check_shared,
    check_sink,
    check_sink_of_bundles,
    check_source,
    check_stream,
    check_values,
    check_waits,
)
from millwheel.graph.class_checks import check_computation, check_settings
from millwheel.graph.conflicts import check_options
from millwheel.graph.labels import free_name
from millwheel.graph.node import DeliveryMode, Injection, Node, OnError, OnFailure
from millwheel.graph.order import Graph
from millwheel.graph.relays import identify_node, relay_rows, sink_node
from millwheel.inbox import Inbox
from millwheel.parking import Park
from millwheel.settings import Settings
from millwheel.sinks import Console, Discard, JsonLinesFiles, Sink, SinkUse, Table
from millwheel.sources import Source
from millwheel.state import StateLayout
from millwheel.streams import Broadcast, Input, Stream

__all__ = ["Pipeline"]

V = TypeVar("V")
B = TypeVar("B")
R = TypeVar("R")
S = TypeVar(
    "S"
)  # a join's state has its two types apart: from V alone, mypy takes each for their union


class Pipeline:
    """Connects injectors, computations and sinks by streams; it does not start anything.

    ```python
    shop = Pipeline("shop", settings=Settings(lease_seconds=10))
    shop.inject(ORDERS, Inbox())
    shop.add(AddUp(), ORDERS.by(customer))
    shop.sink(SPENT, Console())
    assert [node.name for node in shop.graph().nodes][:2] == ["orders_injector", "add_up"]
    ```

    Args:
        name: the name of the pipeline, and of the Postgres schema with all its data.
        settings: limits that differ from the defaults.
    """

    def __init__(self, name: str, *, settings: Settings | None = None) -> None:
        self.name = self.name_in_code = _checked_name(name)
        self.settings = check_settings(name, settings)
        self.nodes: dict[str, Node] = {}
        self._identified: dict[str, tuple[Stream[Any], Callable[[Any], Key]]] = {}
        self.sinks: list[tuple[Stream[Any], SinkUse]] = []
        self.aggregates: dict[str, Aggregate] = {}
        self._graph: Graph | None = None

    def inject(
        self,
        stream: Stream[V],
        source: Source,
        *,
        timestamp: Callable[[V], datetime] | None = None,
        lateness: timedelta = timedelta(0),
        seen: Callable[[V], datetime] | None = None,
        watermark: Callable[[V], datetime | None] | None = None,
        idle_after: timedelta | None = None,
        id: Callable[[V], Key] | None = None,
        max_pending: int | None = None,
        latency_target: timedelta | None = None,
        on_error: OnError = "fail",
        name: str | None = None,
        renamed_from: str | None = None,
    ) -> None:
        """Read `source` into `stream`.

        ```python
        class Visit(Struct):
            page: str
            at: datetime

        VISITS = Stream("visits", Visit)
        pipeline.inject(
            VISITS,
            JsonLines("visits.jsonl"),
            timestamp=lambda visit: visit.at,
            lateness=timedelta(seconds=10),
        )
        ```

        The low watermark of the stream is the least of those of the source's partitions: of each
        the greatest `seen` time so far minus `lateness`, or the watermark from its records or from
        the source.

        Args:
            timestamp: returns a value's event time, an aware datetime; None: the row's own
                timestamp, if the source has them, as Kafka has.
            lateness: how far behind the newest record another may be and still be on time
                (``docs/why/time.md``); zero: times never go back.
            seen: returns the time at which a record was seen, if that is not its event time.
            watermark: in place of `seen` and `lateness`, returns the time of a record after which
                no record on time is older, or None.
            idle_after: a partition that owes nothing for this long (`Reader.caught_up`) follows the
                least watermark of the other injectors; older rows that come later are late. None:
                the source's default, if any.
            id: returns the record's own id. A second record of the stream with that id is dropped,
                for ``Settings.id_retention_seconds``.
            max_pending: maximum rows of a partition that are read and not acknowledged by all
                readers: it bounds how far the low watermark is behind. Default and maximum:
                ``Settings.max_unacked_records``.
            latency_target: time within which 95 of 100 rows should be durable at the readers. The
                engine adapts the number of pending rows, from 1 to `max_pending` (decision 31).
            on_error: on a row that cannot be read, stop, or keep the row as a dead letter.
            name: by default that of the stream with ``_injector``.
            renamed_from: the name under which it is deployed: it continues under the new one.

        Raises:
            GraphError: an option does not fit, or contradicts another one.
        """
        check_stream(stream, "inject(")
        check_source(stream, source)
        injection = Injection(
            source,
            timestamp,
            seen,
            lateness,
            on_error,
            watermark,
            getattr(source, "idle_after", None) if idle_after is None else idle_after,
            max_pending,
            latency_target,
        )
        check_injection(stream, injection, self.settings.max_unacked_records)
        if isinstance(source, Inbox):
            check_inbox(stream, self.nodes.values(), has_id=id is not None)
        target = stream
        if id is not None:
            check_function(
                id, f"inject into {stream.name!r}: id=", "returns the record's id of a value"
            )
            target, node = identify_node(stream, id)
            if stream.name in self._identified:
                target, known = self._identified[stream.name]
                if known is not id:
                    raise GraphError(
                        f"two injectors of stream {stream.name!r} take the id by different "
                        "functions; an id has one meaning in a stream, so give both the same "
                        "function"
                    )
            else:
                self._identified[stream.name] = (target, id)
                self._add(node)
        self._add(
            Node(
                name=check_name(
                    name or free_name(f"{stream.name}_injector", self.nodes), "injector"
                ),
                kind="injector",
                writes=(target,),
                injection=injection,
                renamed_from=renamed_from,
            )
        )

    def add(
        self,
        computation: Computation[V, S, B, Any],
        *inputs: Input[V] | Broadcast[B],
        name: str | None = None,
        renamed_from: str | None = None,
        productions: Literal["strong", "weak"] = "strong",
        exactly_once: bool = True,
        delivery: DeliveryMode = "acknowledged",
        straggler_after: timedelta = timedelta(seconds=1),
        acknowledgement: Literal["chain", "tree"] = "chain",
        replay_after: timedelta = timedelta(seconds=5),
        on_error: OnFailure | Park = "fail",
        retries: int = 0,
    ) -> None:
        """Run `computation` over `inputs`: ``STREAM.by(key)``, ``.spread()``, ``.broadcast()``.

        ```python
        pipeline.add(AddUp(), ORDERS.by(customer), retries=3, on_error="dead_letter")
        async with Harness(pipeline) as harness:
            await harness.inject(ORDERS, TEA, MILK)
            assert harness.produced(SPENT) == [300, 390]
        ```

        Args:
            name: by default that of the class in lower case.
            renamed_from: the name under which it is deployed; state, timers and records continue.
            productions: ``"strong"``: durable before they are sent. ``"weak"``: sent at once, and
                stored only if they are not acknowledged after `straggler_after`; for productions
                that depend on the record alone (paper 6.1.3).
            exactly_once: drop records already seen. False: at least once.
            delivery: ``"at_most_once"``: a record is sent once and not stored; a crash, a lost
                connection or the move of a key interval loses those in flight. `exactly_once` has
                no meaning then.
            straggler_after: time after which an input of a weak computation is acknowledged, and
                its unacknowledged productions are stored.
            acknowledgement: of weak productions. ``"chain"``: their producer keeps each until it is
                acknowledged. ``"tree"``: none is kept. The first such step tracks all descendants
                of a record in constant memory and replays losses, perhaps out of order;
                `straggler_after` has no meaning. For steps that only pass records on.
            replay_after: with ``"tree"``, time without a sign of them until it is processed again.
            on_error: on a record for which user code fails, stop; keep it as a dead letter and
                continue; or also park its key (``"park"``, or a `Park` with limits).
            retries: number of times that user code is retried before that.

        Raises:
            GraphError: an option or the inputs do not fit the computation.
        """
        check_computation(computation)
        label = check_name(name or computation.name, "computation")
        check_readings(label, inputs)
        check_values(label, productions, exactly_once, delivery, acknowledgement)
        check_waits(label, straggler_after=straggler_after, replay_after=replay_after)
        check_bundles(label, computation)
        keyed = tuple(i for i in inputs if isinstance(i, Input))
        node = Node(
            name=label,
            kind="computation",
            inputs=inputs,
            writes=tuple(computation.writes),
            computation=computation,
            renamed_from=renamed_from,
            cells=self.settings.broadcast_cells if len(keyed) < len(inputs) else 0,
            bundles=computation.bundles,
            on_error="park" if isinstance(on_error, Park) else on_error,
            park=check_failures(label, on_error, retries),
            retries=retries,
            productions=productions,
            exactly_once=exactly_once and delivery != "at_most_once",
            delivery=delivery,
            straggler_seconds=straggler_after.total_seconds(),
            acknowledgement=acknowledgement,
            replay_seconds=replay_after.total_seconds(),
        )
        check_options(node)
        check_inputs(label, inputs)
        check_broadcast(label, computation, inputs, self.settings.broadcast_cells)
        computation.check_inputs(keyed)
        self._add(node)

    def sql(self, text: str, *streams: Stream[Any], on_error: OnFailure = "fail") -> Stream[Any]:
        """Add queries in SQL (``docs/howto/compute``) to `streams`, or new ones; give the last one.

        ```python
        cheap = pipeline.sql("INSERT INTO cheap SELECT item FROM orders WHERE cents < 100")
        pipeline.sink(cheap, Table("cheap", cheap.value_type))
        ```

        Raises:
            SqlError: a query cannot be compiled.
        """
        from millwheel.sql.adding import add_queries  # a layer above this one

        return add_queries(self, text, streams, on_error=on_error)[-1]

    def sink(
        self,
        stream: Stream[V],
        sink: Sink,
        *,
        row: Callable[[V], Any] | None = None,
        on_error: OnError = "fail",
    ) -> None:
        """Write every record of `stream` to `sink`. A stream may have any number of sinks.

        ```python
        pipeline.sink(ORDERS, Table("bill", Order))
        pipeline.sink(ORDERS, Console(), row=lambda order: order.item)
        async with Harness(pipeline) as harness:
            await harness.inject(ORDERS, TEA)
            assert harness.rows("bill") == [("ann", "tea", 300)]
        ```

        Args:
            row: converts a value to the sink's row; None: the value is the row. Not for sinks
                outside the store.
            on_error: for a sink outside the store: on records that it cannot take, stop, or keep
                these records as dead letters.

        Raises:
            GraphError: `stream` is not a stream, `sink` is not a sink, or an option does not fit.
        """
        check_stream(stream, "sink(")
        check_sink(stream, sink, row=row, on_error=on_error)
        self.sinks.append((stream, SinkUse(sink, row, on_error=on_error)))
        self._graph = None

    def spark(
        self,
        function: Callable[..., Any],
        *,
        follows: str,
        reads: str | Sequence[str],
        group: GroupPart | Sequence[GroupPart],
        to: Table[Any] | Parquet,
        name: str | None = None,
    ) -> None:
        """Aggregate tables with PySpark as they change, by ``millwheel spark aggregate``.

        ```python
        from typing import Any

        def per_customer(orders: Any) -> Any:  # a DataFrame of PySpark
            return orders.groupBy("customer").sum("cents").toDF("customer", "cents")

        class Bill(Struct):
            customer: str
            cents: int

        pipeline.sink(ORDERS, Table("bought", Order, numbered=True))
        to = Table("bill", Bill, key=("customer",))
        pipeline.spark(per_customer, follows="bought", reads="bought", group="customer", to=to)
        ```

        New rows of `follows` show which groups have changed. `function` gets all rows of these
        groups in `reads`, at one snapshot, and its result replaces their rows in `to`. So it keeps
        no state, and late, amended and retracted panes need no care.

        Args:
            function: takes a DataFrame for each table of `reads`, and returns one with the columns
                of `to`, with rows of the groups that it was given.
            follows: name of a table of this pipeline with ``numbered=True``.
            reads: names of the tables that the aggregate is made of.
            group: columns that `follows` and `reads` share, or `millwheel.aggregates.months` and
                the like.
            to: a table of the pipeline's schema, with a column for each part of `group`; or files.
            name: by default that of the function.

        Raises:
            GraphError: a table or column does not exist, or does not fit.
        """
        tables = {use.sink.name: use.sink for _, use in self.sinks if isinstance(use.sink, Table)}
        made = make_aggregate(
            function, follows=follows, reads=reads, group=group, to=to, name=name, tables=tables
        )
        if made.name in self.aggregates or made.target in (
            other.target for other in self.aggregates.values()
        ):
            raise GraphError(
                f"two aggregates are called {made.name!r}, or write {made.target!r}: give one "
                "another name= and another target"
            )
        self.aggregates[made.name] = made
        self._graph = None

    def _add(self, node: Node) -> None:
        if node.name in self.nodes:
            raise GraphError(
                f"two nodes are called {node.name!r}; give one another name=... in add or inject"
            )
        if node.computation is not None:
            node.layout = self._layout(node.computation.state_type, node.name)
            if node.cells:
                node.shared = self._layout(node.computation.shared_type, f"{node.name} (shared)")
                check_shared(node)
        self.nodes[node.name] = node
        self._graph = None

    def _layout(self, state_type: Any, owner: str) -> StateLayout[Any]:
        return StateLayout(state_type, owner=owner, limit=self.settings.max_state_bytes)

    def named(self, name: str) -> Pipeline:
        """The same code as a pipeline with another name, so with data of its own.

        ```python
        fork = pipeline.named("shop2")
        assert (fork.name, pipeline.name) == ("shop2", "shop")
        ```

        Both share their sinks, which keep connections: run one of them in a process.
        """
        made = copied(self)
        made.name, made._graph = _checked_name(name), None
        return made

    @property
    def bounded(self) -> bool:
        """Whether all sources, and so event time, have an end."""
        nodes = self.nodes.values()
        return all(node.injection is None or node.injection.source.bounded for node in nodes)

    def graph(self) -> Graph:
        """The checked graph.

        Raises:
            GraphError: a stream without a writer, a cycle, a clash of names.
        """
        if self._graph is None:
            nodes = {name: _without_sinks(node) for name, node in self.nodes.items()}
            relay_rows(nodes, self._layout)
            for stream, use in self.sinks:
                self._attach(nodes, stream, use)
            self._graph = Graph(self.name, nodes.values(), self.aggregates.values())
            self._graph.name_in_code = self.name_in_code
            for stream in self._graph.streams.values():
                stream.codec = Codec(
                    stream.value_type,
                    what=f"stream {stream.name!r}",
                    limit=self.settings.max_record_bytes,
                    setting="max_record_bytes",
                )
            if not any(node.kind == "injector" for node in self._graph.nodes):
                raise GraphError(f"pipeline {self.name!r} has no injector, so nothing can happen")
        return self._graph

    def _repr_svg_(self) -> str:
        """The graph, or the reason why there is none yet, for a notebook."""
        from millwheel.graph.svg import refusal, svg  # programs draw nothing

        try:
            return svg(self.graph())
        except GraphError as error:
            return refusal(self.name, str(error))

    def _attach(self, nodes: dict[str, Node], stream: Stream[Any], use: SinkUse) -> None:
        """Let the producers write the sink, or give the sink a step of its own."""
        makers = [
            node for node in nodes.values() if any(s.name == stream.name for s in node.writes)
        ]
        writers = [node for node in makers if node.kind != "injector"]
        alone = not writers or len(writers) < len(makers) or use.apart
        owned = len(writers) == 1 and _is_owned(stream, use)
        if not alone and all(owned or _rides_along(writer, use) for writer in writers):
            for writer in writers:
                check_repeatable(writer, use)
                check_sink_of_bundles(writer, use)
                check_no_rows(writer, use)
                writer.sinks.setdefault(stream.name, []).append(use)
            return
        node = sink_node(stream, use, nodes)
        assert node.computation is not None
        node.layout = self._layout(node.computation.state_type, node.name)
        nodes[node.name] = node


def copied(pipeline: Pipeline) -> Pipeline:
    """The pipeline as it is now: a change of one does not change the other."""
    made = copy.copy(pipeline)
    made.nodes, made.sinks = dict(pipeline.nodes), list(pipeline.sinks)
    made.aggregates = dict(pipeline.aggregates)
    made._identified = dict(pipeline._identified)
    return made


def _checked_name(name: str) -> str:
    check_name(name, "pipeline")
    if name.startswith("pg_") or name in ("public", "information_schema"):
        raise GraphError(f"{name!r} cannot name a pipeline: Postgres reserves that schema name")
    return name


def _is_owned(stream: Stream[Any], use: SinkUse) -> bool:
    """Whether each row of a table is made by one key of the producer, by what the row holds."""
    sink = use.sink
    return (
        isinstance(sink, Table)
        and use.row is None
        and stream.facts.owners is not None
        and all(part & set(sink.key) for part in stream.facts.owners)
    )


def _rides_along(writer: Node, use: SinkUse) -> bool:
    match use.sink:
        case Table():
            return use.sink.in_producers_commit
        case JsonLinesFiles():
            writes_files = any(
                isinstance(other.sink, JsonLinesFiles)
                for uses in writer.sinks.values()
                for other in uses
            )
            return (
                use.sink.by is None
                and not writes_files
                and not writer.is_weak
                and writer.exactly_once
                and writer.bundles is None
            )
        case Console():
            return False
        case Discard():
            return True
        case _:
            return False


def _without_sinks(node: Node) -> Node:
    copy = Node(**{name: getattr(node, name) for name in node.__dataclass_fields__})
    copy.sinks = {}
    return copy
