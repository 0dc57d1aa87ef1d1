"""A pipeline: what is injected, what is computed, where results go."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal

from typing_extensions import TypeVar

from millwheel.addresses import MOST_CELLS
from millwheel.codec import Codec
from millwheel.computation import Computation
from millwheel.errors import GraphError
from millwheel.graph import (
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
from millwheel.sinks import Discard, Sink, SinkUse, Table
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
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> None:
        """Read `source` into `stream`.

        Each partition of the source has a low watermark of its own: the greatest `seen` time so
        far less `lateness` (zero: its times never go back), or what its records themselves say,
        or what the source says. The stream's is the least of them.

        Args:
            timestamp: a value's event time, an aware datetime.
            lateness: how far behind the newest a record may come and still be on time.
            seen: when a record was seen, if that is not its event time.
            watermark: what a record says of time, in place of `seen` and `lateness`: nothing on
                time comes with an older timestamp any more. None: it says nothing.
            idle_after: a partition that has had no row for so long, and waits for more, goes
                along with the least of the other injectors and does not hold the stream back.
                What it brings later and is older than that is late.
            id: the record's own id; a second record of the stream with the same id is
                dropped, whichever source it comes from (remembered for
                ``Settings.id_retention_seconds``).
            on_error: what to do with a row that cannot be read: stop, or keep it as a dead letter.
        """
        for option, duration in (("lateness", lateness), ("idle_after", idle_after)):
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
                    source, timestamp, seen, lateness, on_error, watermark, idle_after
                ),
            )
        )

    def add(
        self,
        computation: Computation[V, Any, B, Any],
        *inputs: Input[V] | Broadcast[B],
        name: str | None = None,
        productions: Literal["strong", "weak"] = "strong",
        exactly_once: bool = True,
        low_watermark_percentile: float | None = None,
        on_error: OnError = "fail",
        retries: int = 0,
    ) -> None:
        """Run `computation` over `inputs`: ``STREAM.by(key)``, ``.spread()``, ``.broadcast()``.

        Args:
            productions: ``"strong"``: outputs are durable before they are sent.
            exactly_once: drop records already seen.
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
        label = check_name(name or computation.name, "computation")
        if productions != "strong":
            raise GraphError(
                f"{label!r}: productions={productions!r} is not built yet; "
                "only 'strong' productions are available in this version"
            )
        if exactly_once is not True:
            raise GraphError(f"{label!r}: exactly_once=False is not built yet in this version")
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
        _check_spread(label, computation, keyed)
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
                percentile=low_watermark_percentile,
                on_error=on_error,
                retries=retries,
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
        """Let streams of sources that are read by broadcast be broadcast by a relay."""
        injected = {n.writes[0].name for n in nodes.values() if n.kind == "injector"}
        hidden: dict[str, Stream[Any]] = {}
        for node in list(nodes.values()):
            inputs: list[Reading] = []
            for input_ in node.inputs:
                if isinstance(input_, Broadcast) and input_.stream.name in injected:
                    stream = input_.stream
                    if stream.name not in hidden:
                        hidden[stream.name], relay = relay_node(stream, nodes)
                        relay.layout = self._layout(None, relay.name)
                        nodes[relay.name] = relay
                    input_ = Broadcast(hidden[stream.name], relayed=stream)
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
        rides_along = isinstance(use.sink, Discard) or (
            isinstance(use.sink, Table) and use.sink.in_producers_commit
        )
        if rides_along and writers and not injected:
            for writer in writers:
                writer.sinks.setdefault(stream.name, []).append(use)
            return
        node = sink_node(stream, use, set(nodes))
        assert node.computation is not None
        node.layout = self._layout(node.computation.state_type, node.name)
        nodes[node.name] = node


def _without_sinks(node: Node) -> Node:
    copy = Node(**{name: getattr(node, name) for name in node.__dataclass_fields__})
    copy.sinks = {}
    return copy


def _check_spread(
    label: str, computation: Computation[Any, Any, Any, Any], inputs: tuple[Input[Any], ...]
) -> None:
    """See to it that a computation whose keys are the engine's choice keeps nothing by key.

    Raises:
        GraphError: it has state or timers, or another input has a key that means something.
    """
    spread = [i.stream.name for i in inputs if i.extractor is None]
    if not spread:
        return
    why = f"{label!r} reads {spread[0]!r} spread, where the key is the engine's and means nothing"
    for input_ in inputs:
        if input_.extractor is not None:
            raise GraphError(
                f"{why}, and {input_.stream.name!r} by {input_.extractor_name}; read both by a key "
                "if it matters, both spread if it does not"
            )
    if computation.state_type not in (None, type(None)):
        raise GraphError(f"{why}, but keeps state by key; read the stream by a key: STREAM.by(...)")
    if computation.defines("process_timer"):
        raise GraphError(f"{why}, but has timers by key; read the stream by a key: STREAM.by(...)")
