"""A pipeline: what is injected, what is computed, where results go."""

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
    """Wires injectors, computations and sinks by streams; starts nothing by itself.

    Args:
        name: also the name of the Postgres schema that holds everything of it.
        settings: limits, when the defaults do not fit.
    """

    def __init__(self, name: str, *, settings: Settings | None = None) -> None:
        self.name = check_name(name, "pipeline")
        if name.startswith("pg_") or name in ("public", "information_schema"):
            raise GraphError(
                f"{name!r} cannot name a pipeline: Postgres keeps that schema for itself"
            )
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

        Each partition of the source has a low watermark of its own: the greatest `seen` time so
        far less `lateness` (zero: its times never go back), or what its records themselves say,
        or what the source says. The stream's is the least of them.

        Args:
            timestamp: a value's event time, an aware datetime.
            lateness: how far behind the newest a record may come and still be on time. A later one
                may find its window closed (``docs/guarantees.md`` says when it must).
            seen: when a record was seen, if that is not its event time.
            watermark: what a record says of time, in place of `seen` and `lateness`: nothing on
                time comes with an older timestamp any more. None: it says nothing.
            idle_after: a partition that has had no row for so long, and waits for more, goes
                along with the least of the other injectors and does not hold the stream back.
                What it brings later and is older than that is late.
            id: the record's own id; a second record of the stream with the same id is
                dropped, whichever source it comes from (remembered for
                ``Settings.id_retention_seconds``).
            max_pending: how many rows of a partition may be read and not acknowledged by all readers
                of the stream. It bounds how far the low watermark is behind what was read. At most ``Settings.max_unacked_records``, which it is by itself.
            latency_target: within which 95 of 100 rows are to be acknowledged, from when they are
                read until the readers' effects are durable. How many may be pending is found by
                itself then, from 1 up to `max_pending` (decision 31).
            on_error: what to do with a row that cannot be read: stop, or keep it as a dead letter.
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
                "`seen` and `lateness` would have no effect; give one or the other"
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
                        "functions; an id means the same for the whole stream, so give both one"
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
        """See to it that the cap is one.

        Raises:
            GraphError: it is no number of rows, or above the credits.
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
                f"Settings.max_unacked_records, {most:,}, which holds all the same; lower the one or "
                "raise the other"
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
            productions: ``"strong"``: what it produces is durable before it is sent. ``"weak"``: it
                is sent at once and stored only if it has not arrived after `straggler_after`; for
                computations whose productions depend on the record alone (paper 6.1.3). See
                ``docs/guarantees.md``.
            exactly_once: drop records already seen. False: at least once; a record that is sent
                again is processed again, and what it does then counts again.
            delivery: ``"at_most_once"``: a record is sent to it once, stored nowhere and never sent
                again: a crash, a lost connection or a move of a key interval loses what was on
                its way. ``exactly_once`` means nothing then.
            straggler_after: how long an input of a weak computation waits for what came of it to
                be acknowledged before that is stored, and the input acknowledged in turn.
            acknowledgement: of weak productions. ``"chain"``: each is kept where it was produced
                until it is acknowledged, step by step. ``"tree"``: none is kept. Where a record
                enters steps that are added so, a few words hold together all that comes of it
                there, and what is lost is made again from that record; the order of a key's
                records is given up when that happens. For steps that only pass things on, above
                all deep ones and such that make many records of one. `straggler_after` has no
                meaning then.
            replay_after: with ``"tree"``, after so long without a sign of what came of a record
                that is processed again. What is only slow gives signs.
            low_watermark_percentile: for early and approximate answers: timers fire, and
                `Context.low_watermark` goes, by the time behind which only the rest of a hundred
                records come, judged by the last few thousand of each source (99, say). What
                comes behind it is late here, though its source had promised it: amend it, or
                leave it out. What is promised downstream stays exact (paper 7.2).
            on_error: when user code fails on a record: stop, or keep the record as a dead letter.
            retries: how often user code is tried again before that.

        Raises:
            GraphError: an option or the inputs do not fit the computation.
        """
        check_computation(computation)
        label = check_name(name or computation.name, "computation")
        check_readings(label, inputs)
        if productions not in ("strong", "weak"):
            raise GraphError(f"{label!r}: productions is 'strong' or 'weak', not {productions!r}")
        if not isinstance(exactly_once, bool):
            raise GraphError(f"{label!r}: exactly_once is True or False, not {exactly_once!r}")
        if not isinstance(straggler_after, timedelta) or straggler_after <= timedelta(0):
            raise GraphError(
                f"{label!r}: straggler_after is a timedelta above zero, not {straggler_after!r}"
            )
        if delivery not in ("acknowledged", "at_most_once"):
            raise GraphError(
                f"{label!r}: delivery is 'acknowledged' or 'at_most_once', not {delivery!r}"
            )
        if delivery == "at_most_once" and any(isinstance(i, Broadcast) for i in inputs):
            raise GraphError(
                f"{label!r} reads a stream by broadcast, and at most once: what is lost on its way to "
                "one range of keys and not to another would leave them with different tables for "
                'good. Take delivery="at_most_once" out'
            )
        check_bundles(label, computation, inputs, productions, exactly_once, delivery)
        if productions == "weak":
            check_weak(label, computation)
        if acknowledgement not in ("chain", "tree"):
            raise GraphError(
                f"{label!r}: acknowledgement is 'chain' or 'tree', not {acknowledgement!r}"
            )
        if not isinstance(replay_after, timedelta) or replay_after <= timedelta(0):
            raise GraphError(
                f"{label!r}: replay_after is a timedelta above zero, not {replay_after!r}"
            )
        if acknowledgement == "tree":
            check_tree(label, computation, productions, delivery, inputs)
        if not inputs:
            raise GraphError(f"{label!r} has no inputs; give it at least one STREAM.by(...)")
        names = [input_.stream.name for input_ in inputs]
        if len(set(names)) < len(names):
            raise GraphError(f"{label!r} reads one stream twice ({', '.join(names)}); read it once")
        if on_error not in ("fail", "dead_letter") or retries < 0:
            raise GraphError(f"{label!r}: on_error is 'fail' or 'dead_letter', retries 0 or more")
        if low_watermark_percentile is not None and not 0 < low_watermark_percentile < 100:
            raise GraphError(
                f"{label!r}: low_watermark_percentile is between 0 and 100, 99 for example, not "
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
        """In how many cells it has its table; none if it reads nothing by broadcast.

        Raises:
            GraphError: what it reads by broadcast and what it defines do not fit together.
        """
        broadcast = [i.stream.name for i in inputs if isinstance(i, Broadcast)]
        defined = computation.defines("process_broadcast")
        if not broadcast:
            if defined:
                raise GraphError(
                    f"{label!r} defines process_broadcast, but reads nothing by broadcast; give it "
                    "STREAM.broadcast() for the stream that makes its table"
                )
            return 0
        if not defined:
            raise GraphError(
                f"{label!r} reads {broadcast[0]!r} by broadcast, but defines no process_broadcast "
                "to take its records into the table"
            )
        if len(broadcast) == len(inputs):
            raise GraphError(
                f"{label!r} reads nothing but {broadcast[0]!r} by broadcast, so that nobody sees "
                "its table; give it a stream by a key or spread as well"
            )
        if computation.shared_type in (None, type(None)):
            raise GraphError(
                f"{label!r} reads {broadcast[0]!r} by broadcast, but says nothing of its table: "
                "name its type last in Computation[..., ..., ..., Table]"
            )
        cells = self.settings.broadcast_cells
        if not 1 <= cells <= MOST_CELLS or cells & (cells - 1):
            raise GraphError(
                f"{label!r}: broadcast_cells is a power of two from 1 to {MOST_CELLS}, not {cells}"
            )
        return cells

    def sink(self, stream: Stream[V], sink: Sink, *, row: Callable[[V], Any] | None = None) -> None:
        """Write every record of `stream` to `sink`; any number of sinks a stream.

        Args:
            row: makes the sink's row from a value; without it the value is the row.
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
                        f"{', '.join(node.shared.collections)}: it is read as one object, so use a "
                        "dict or a list"
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
        """Whether all its sources have an end, and event time with them."""
        injections = [node.injection for node in self.nodes.values()]
        return all(injection is None or injection.source.bounded for injection in injections)

    def graph(self) -> Graph:
        """The checked graph.

        Raises:
            GraphError: a stream nobody writes, a cycle, names that clash.
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
        """Let rows of sources reach by a relay who reads them by broadcast, or at most once."""
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
        """Let the producers write the sink, or give it a step of its own."""
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
