"""`Pipeline`: connects sources, computations and sinks by streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal

from typing_extensions import TypeVar

from millwheel.addresses import MOST_CELLS
from millwheel.checks import (
    check_bundles,
    check_computation,
    check_no_rows,
    check_readings,
    check_repeatable,
    check_sink,
    check_sink_of_bundles,
    check_source,
    check_spread,
    check_stream,
    check_tree,
    check_weak,
)
from millwheel.codec import Codec
from millwheel.computation import Computation
from millwheel.errors import GraphError
from millwheel.graph import (
    DeliveryMode,
    Graph,
    Injection,
    Node,
    OnError,
    Reading,
    free_name,
    identify_node,
    relay_node,
    sink_node,
)
from millwheel.model import Key
from millwheel.settings import Settings
from millwheel.sinks import Console, Discard, JsonLinesFiles, Sink, SinkUse, Table
from millwheel.sources import Source
from millwheel.state import StateLayout
from millwheel.streams import Broadcast, Input, Stream, check_name

V = TypeVar("V")
B = TypeVar("B")
R = TypeVar("R")


class Pipeline:
    """Connects injectors, computations and sinks by streams; it does not start anything.

    Args:
        name: the pipeline's name, and that of the Postgres schema with all its data.
        settings: limits that differ from the defaults.
    """

    def __init__(self, name: str, *, settings: Settings | None = None) -> None:
        self.name = check_name(name, "pipeline")
        if name.startswith("pg_") or name in ("public", "information_schema"):
            raise GraphError(f"{name!r} cannot name a pipeline: Postgres reserves that schema name")
        self.settings = settings or Settings()
        self.nodes: dict[str, Node] = {}
        self._identified: dict[str, tuple[Stream[Any], Callable[[Any], Key]]] = {}
        self.sinks: list[tuple[Stream[Any], SinkUse]] = []
        self._graph: Graph | None = None

    def inject(
        self,
        stream: Stream[V],
        source: Source,
        *,
        timestamp: Callable[[V], datetime],
        lateness: timedelta = timedelta(0),
        seen: Callable[[V], datetime] | None = None,
        watermark: Callable[[V], datetime | None] | None = None,
        idle_after: timedelta | None = None,
        id: Callable[[V], Key] | None = None,
        max_pending: int | None = None,
        latency_target: timedelta | None = None,
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> None:
        """Read `source` into `stream`.

        Each partition of the source has its own low watermark: the greatest `seen` time so far
        minus `lateness` (zero: its times never go back), or the watermark from its records or from
        the source. The low watermark of the stream is the least of them.

        Args:
            timestamp: returns a value's event time, an aware datetime.
            lateness: how far behind the newest record another may be and still be on time. A later
                record may find its window closed (``docs/guarantees.md`` says when it must).
            seen: returns the time at which a record was seen, if that is not its event time.
            watermark: replaces `seen` and `lateness`: returns a time from the record, after which
                no record on time has an older timestamp; None: the record has no such time.
            idle_after: a partition without a new row for this long follows the least watermark of
                the other injectors and does not hold the stream back. Rows that it delivers later,
                with older timestamps, are late.
            id: returns the record's own id. A second record of the stream with the same id is
                dropped, from any source; ids are remembered for ``Settings.id_retention_seconds``.
            max_pending: maximum rows of a partition that are read and not acknowledged by all
                readers of the stream. It bounds how far the low watermark is behind the newest row
                read. The default and the maximum are ``Settings.max_unacked_records``.
            latency_target: time within which 95 of 100 rows should be acknowledged, from the read
                until the readers' effects are durable. The engine then adapts the number of pending
                rows, from 1 to `max_pending` (decision 31).
            on_error: on a row that cannot be read, stop, or keep the row as a dead letter.
            name: the injector's name; by default that of the stream with ``_injector``.

        Raises:
            GraphError: an option does not fit, or contradicts another one.
        """
        check_stream(stream, "inject(")
        check_source(stream, source)
        for option, duration in (
            ("lateness", lateness),
            ("idle_after", idle_after),
            ("latency_target", latency_target),
        ):
            if duration is not None and not isinstance(duration, timedelta):
                raise GraphError(
                    f"inject into {stream.name!r}: {option} must be a timedelta, for example "
                    f"timedelta(seconds=10), not {duration!r}"
                )
        if lateness < timedelta(0):
            raise GraphError(
                f"inject into {stream.name!r}: lateness may not be negative: -{-lateness}"
            )
        if watermark is not None and (seen is not None or lateness):
            raise GraphError(
                f"inject into {stream.name!r}: the watermark comes from the records themselves, so "
                "`seen` and `lateness` would have no effect; give either `watermark` or these"
            )
        if idle_after is not None and idle_after <= timedelta(0):
            raise GraphError(
                f"inject into {stream.name!r}: idle_after must be above zero, not {idle_after}"
            )
        if latency_target is not None and latency_target <= timedelta(0):
            raise GraphError(
                f"inject into {stream.name!r}: latency_target must be above zero, not {latency_target}"
            )
        self._check_pending(stream, max_pending)
        target = stream
        if id is not None:
            target, node = identify_node(stream, id)
            if stream.name in self._identified:
                target, known = self._identified[stream.name]
                if known is not id:
                    raise GraphError(
                        f"two injectors of stream {stream.name!r} take the id by different "
                        "functions; an id has one meaning in a stream, so give both the same function"
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
                injection=Injection(
                    source,
                    timestamp,
                    seen,
                    lateness,
                    on_error,
                    watermark,
                    idle_after,
                    max_pending,
                    latency_target,
                ),
            )
        )

    def _check_pending(self, stream: Stream[Any], max_pending: int | None) -> None:
        """Check `max_pending`.

        Raises:
            GraphError: it is not a number of rows, or above the credits.
        """
        if max_pending is None:
            return
        if not isinstance(max_pending, int) or isinstance(max_pending, bool) or max_pending < 1:
            raise GraphError(
                f"inject into {stream.name!r}: max_pending must be a number of rows, 1 or more, not "
                f"{max_pending!r}"
            )
        most = self.settings.max_unacked_records
        if max_pending > most:
            raise GraphError(
                f"inject into {stream.name!r}: max_pending={max_pending:,} is above "
                f"Settings.max_unacked_records, {most:,}, which applies in any case; lower the "
                "first or raise the second"
            )

    def add(
        self,
        computation: Computation[V, Any, B, Any],
        *inputs: Input[V] | Broadcast[B],
        name: str | None = None,
        productions: Literal["strong", "weak"] = "strong",
        exactly_once: bool = True,
        delivery: DeliveryMode = "acknowledged",
        straggler_after: timedelta = timedelta(seconds=1),
        acknowledgement: Literal["chain", "tree"] = "chain",
        replay_after: timedelta = timedelta(seconds=5),
        low_watermark_percentile: float | None = None,
        on_error: OnError = "fail",
        retries: int = 0,
    ) -> None:
        """Run `computation` over `inputs`: ``STREAM.by(key)``, ``.spread()``, ``.broadcast()``.

        Args:
            name: the computation's name; by default that of its class in lower case.
            productions: ``"strong"``: productions are durable before they are sent. ``"weak"``:
                they are sent at once, and stored only if they are not acknowledged after
                `straggler_after`; for productions that depend on the record alone (paper 6.1.3).
                See ``docs/guarantees.md``.
            exactly_once: drop records already seen. False: at least once; a record that is sent
                again is processed again, and its effects happen again.
            delivery: ``"at_most_once"``: each record is sent to it once, is not stored and is never
                sent again. A crash, a lost connection or the move of a key interval loses the
                records in flight. ``exactly_once`` has no meaning then.
            straggler_after: time that an input of a weak computation waits for the acknowledgement
                of its productions. After it, the productions are stored, and the input is
                acknowledged.
            acknowledgement: of weak productions. ``"chain"``: each production is kept by its
                producer until it is acknowledged, step by step. ``"tree"``: none is kept. The first
                such step tracks all descendants of a record in constant memory, and losses are
                replayed from that record; a replay may break the order of a key's records. Use it
                for steps that only pass records on, above all for deep chains of steps and for
                steps that make many records of one. `straggler_after` has no meaning then.
            replay_after: with ``"tree"``, a record is processed again after this time without a
                sign of its descendants. Descendants that are only slow do give signs.
            low_watermark_percentile: for early and approximate answers, such as 99. Timers fire,
                and `Context.low_watermark` advances, at this percentile of the observed lateness
                (of the last 4,096 records of each partition of a source). A record behind it is
                late here, even if its source allows it: amend the result, or leave the record out.
                The low watermark published downstream stays exact (paper 7.2).
            on_error: when user code fails on a record, stop, or keep the record as a dead letter.
            retries: number of times that user code is retried before that.

        Raises:
            GraphError: an option or the inputs do not fit the computation.
        """
        check_computation(computation)
        label = check_name(name or computation.name, "computation")
        check_readings(label, inputs)
        if productions not in ("strong", "weak"):
            raise GraphError(
                f"{label!r}: productions must be 'strong' or 'weak', not {productions!r}"
            )
        if not isinstance(exactly_once, bool):
            raise GraphError(f"{label!r}: exactly_once must be True or False, not {exactly_once!r}")
        if not isinstance(straggler_after, timedelta) or straggler_after <= timedelta(0):
            raise GraphError(
                f"{label!r}: straggler_after must be a timedelta above zero, not {straggler_after!r}"
            )
        if delivery not in ("acknowledged", "at_most_once"):
            raise GraphError(
                f"{label!r}: delivery must be 'acknowledged' or 'at_most_once', not {delivery!r}"
            )
        if delivery == "at_most_once" and any(isinstance(i, Broadcast) for i in inputs):
            raise GraphError(
                f"{label!r} reads a stream by broadcast, and at most once: a record lost on its way "
                "to one range of keys but not to another would leave them with different tables for "
                'good. Remove delivery="at_most_once"'
            )
        check_bundles(label, computation, inputs, productions, exactly_once, delivery)
        if productions == "weak":
            check_weak(label, computation)
        if acknowledgement not in ("chain", "tree"):
            raise GraphError(
                f"{label!r}: acknowledgement must be 'chain' or 'tree', not {acknowledgement!r}"
            )
        if not isinstance(replay_after, timedelta) or replay_after <= timedelta(0):
            raise GraphError(
                f"{label!r}: replay_after must be a timedelta above zero, not {replay_after!r}"
            )
        if acknowledgement == "tree":
            check_tree(label, computation, productions, delivery, inputs)
        if not inputs:
            raise GraphError(f"{label!r} has no inputs; give it at least one STREAM.by(...)")
        names = [input_.stream.name for input_ in inputs]
        if len(set(names)) < len(names):
            raise GraphError(f"{label!r} reads one stream twice ({', '.join(names)}); read it once")
        if on_error not in ("fail", "dead_letter") or retries < 0:
            raise GraphError(
                f"{label!r}: on_error must be 'fail' or 'dead_letter', and retries 0 or more"
            )
        if low_watermark_percentile is not None and not 0 < low_watermark_percentile < 100:
            raise GraphError(
                f"{label!r}: low_watermark_percentile must be between 0 and 100, such as 99, not "
                f"{low_watermark_percentile!r}; leave it out for the exact low watermark"
            )
        keyed = tuple(i for i in inputs if isinstance(i, Input))
        check_spread(label, computation, keyed)
        cells = self._cells_of(label, computation, inputs)
        computation.check_inputs(keyed)
        self._add(
            Node(
                name=label,
                kind="computation",
                inputs=inputs,
                writes=tuple(computation.writes),
                computation=computation,
                cells=cells,
                bundles=computation.bundles,
                percentile=low_watermark_percentile,
                on_error=on_error,
                retries=retries,
                productions=productions,
                exactly_once=exactly_once and delivery != "at_most_once",
                delivery=delivery,
                straggler_seconds=straggler_after.total_seconds(),
                acknowledgement=acknowledgement,
                replay_seconds=replay_after.total_seconds(),
            )
        )

    def _cells_of(
        self,
        label: str,
        computation: Computation[Any, Any, Any, Any],
        inputs: tuple[Reading, ...],
    ) -> int:
        """The number of cells with a table each; 0 if no input is read by broadcast.

        Raises:
            GraphError: the broadcast inputs and the methods of the computation do not fit together.
        """
        broadcast = [i.stream.name for i in inputs if isinstance(i, Broadcast)]
        defined = computation.defines("process_broadcast")
        if not broadcast:
            if defined:
                raise GraphError(
                    f"{label!r} defines process_broadcast, but reads nothing by broadcast; give it "
                    "STREAM.broadcast() for the stream that builds its table"
                )
            return 0
        if not defined:
            raise GraphError(
                f"{label!r} reads {broadcast[0]!r} by broadcast, but defines no process_broadcast "
                "to add its records to the table"
            )
        if len(broadcast) == len(inputs):
            raise GraphError(
                f"{label!r} reads only {broadcast[0]!r}, by broadcast, so no record uses the table; "
                "give it a stream by a key or spread as well"
            )
        if computation.shared_type in (None, type(None)):
            raise GraphError(
                f"{label!r} reads {broadcast[0]!r} by broadcast, but its table has no type: "
                "give it as the last argument of Computation[..., ..., ..., Table]"
            )
        cells = self.settings.broadcast_cells
        if not 1 <= cells <= MOST_CELLS or cells & (cells - 1):
            raise GraphError(
                f"{label!r}: broadcast_cells must be a power of two from 1 to {MOST_CELLS}, not {cells}"
            )
        return cells

    def sink(self, stream: Stream[V], sink: Sink, *, row: Callable[[V], Any] | None = None) -> None:
        """Write every record of `stream` to `sink`. A stream may have any number of sinks.

        Args:
            row: converts a value to the sink's row; without it the value is the row.

        Raises:
            GraphError: `stream` is not a stream, or `sink` is not a sink.
        """
        check_stream(stream, "sink(")
        check_sink(stream, sink)
        self.sinks.append((stream, SinkUse(sink, row)))
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
                if node.shared.collections:
                    raise GraphError(
                        f"the shared table of {node.name!r} has the MapState or ListState "
                        f"{', '.join(node.shared.collections)}: the table is read as one object, so "
                        "use a dict or a list"
                    )
                if not node.shared.codec.mutable:
                    raise GraphError(
                        f"the shared table of {node.name!r} is of type "
                        f"{node.shared.state_type!r}, which cannot be changed in place; make it a "
                        "msgspec.Struct or a dataclass that is not frozen"
                    )
        self.nodes[node.name] = node
        self._graph = None

    def _layout(self, state_type: Any, owner: str) -> StateLayout[Any]:
        return StateLayout(state_type, owner=owner, limit=self.settings.max_state_bytes)

    @property
    def bounded(self) -> bool:
        """Whether all sources, and so event time, have an end."""
        injections = [node.injection for node in self.nodes.values()]
        return all(injection is None or injection.source.bounded for injection in injections)

    def graph(self) -> Graph:
        """The checked graph.

        Raises:
            GraphError: a stream without a writer, a cycle, a clash of names.
        """
        if self._graph is None:
            nodes = {name: _without_sinks(node) for name, node in self.nodes.items()}
            self._relay_rows(nodes)
            for stream, use in self.sinks:
                self._attach(nodes, stream, use)
            self._graph = Graph(self.name, nodes.values())
            for stream in self._graph.streams.values():
                stream.codec = Codec(
                    stream.value_type,
                    what=f"stream {stream.name!r}",
                    limit=self.settings.max_record_bytes,
                )
            if not any(node.kind == "injector" for node in self._graph.nodes):
                raise GraphError(f"pipeline {self.name!r} has no injector, so nothing can happen")
        return self._graph

    def _relay_rows(self, nodes: dict[str, Node]) -> None:
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
                        relay.layout = self._layout(None, relay.name)
                        nodes[relay.name] = relay
                    input_ = replace(input_, stream=hidden[stream.name], relayed=stream)
                inputs.append(input_)
            node.inputs = tuple(inputs)

    def _attach(self, nodes: dict[str, Node], stream: Stream[Any], use: SinkUse) -> None:
        """Let the producers write the sink, or give the sink a step of its own."""
        writers = [
            node
            for node in nodes.values()
            if node.kind != "injector" and any(s.name == stream.name for s in node.writes)
        ]
        injected = any(
            node.kind == "injector" and any(s.name == stream.name for s in node.writes)
            for node in nodes.values()
        )
        alone = not writers or injected or use.apart
        if not alone and all(_rides_along(writer, use) for writer in writers):
            for writer in writers:
                check_repeatable(writer, use)
                check_sink_of_bundles(writer, use)
                check_no_rows(writer, use)
                writer.sinks.setdefault(stream.name, []).append(use)
            return
        node = sink_node(stream, use, set(nodes))
        assert node.computation is not None
        node.layout = self._layout(node.computation.state_type, node.name)
        nodes[node.name] = node


def _rides_along(writer: Node, use: SinkUse) -> bool:
    """Whether a computation can write a sink in its own commits."""
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


def _without_sinks(node: Node) -> Node:
    copy = Node(**{name: getattr(node, name) for name in node.__dataclass_fields__})
    copy.sinks = {}
    return copy
