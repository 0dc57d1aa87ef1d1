"""A node of the graph: an injector, a computation or a relay, with its options.

A *relay* is a small step of the engine that passes a stream on under another key
(`millwheel/graph/relays.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, lru_cache, partial
from typing import Any, Literal, TypeAlias, cast

from millwheel.bundles import Bundles
from millwheel.computation import Computation
from millwheel.core.codec import Migration
from millwheel.core.extractors import fingerprint
from millwheel.core.model import SLOTS
from millwheel.graph.labels import INJECTED, label_of
from millwheel.graph.outside import leaves_store
from millwheel.parking import Park
from millwheel.sinks import SinkUse
from millwheel.sources import GrowingSource, Source
from millwheel.state import StateLayout
from millwheel.streams import Broadcast, Input, Stream

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
    """None if the rows have timestamps of their own."""
    seen: Callable[[Any], datetime] | None
    lateness: timedelta
    on_error: OnError
    watermark: Callable[[Any], datetime | None] | None = None
    idle_after: timedelta | None = None
    max_pending: int | None = None
    """Un-ACKed rows of a partition; None: the credits are the only limit."""
    latency_target: timedelta | None = None
    """Time within which rows should be acknowledged; None: the limit of rows is fixed."""

    @cached_property
    def shown_by_reader(self) -> bool:
        """The source itself shows how far event time is, and not its rows."""
        by_rows = self.timestamp or self.seen or self.watermark
        return by_rows is None and getattr(self.source, "shows_time", False)

    @cached_property
    def growing(self) -> GrowingSource | None:
        """The source, if it finds partitions while it runs."""
        return self.source if isinstance(self.source, GrowingSource) else None


@dataclass
class Node:
    name: str
    kind: Literal["injector", "computation", "relay"]
    inputs: tuple[Reading, ...] = ()
    writes: tuple[Stream[Any], ...] = ()
    computation: Computation[Any, Any, Any, Any] | None = None
    injection: Injection | None = None
    layout: StateLayout[Any] | None = None
    shared: StateLayout[Any] | None = None
    """The layout of the table built from broadcast records."""
    renamed_from: str | None = None
    """Its former name, under which it may be deployed."""
    cells: int = 0
    """Parts of its slots with a table each; 0: it has no broadcast input."""
    bundles: Bundles | None = None
    """Limits of its numbered bundles; None: it reads record by record."""
    on_error: OnFailure = "fail"
    park: Park | None = None
    """How its keys are parked, with ``on_error="park"``."""
    retries: int = 0
    productions: Productions = "strong"
    exactly_once: bool = True
    """Copies of a record are dropped, even if they arrive late."""
    delivery: DeliveryMode = "acknowledged"
    straggler_seconds: float = 1.0
    """Time that an input of weak productions waits for their acknowledgement."""
    acknowledgement: Acknowledgement = "chain"
    """The way in which an input waits for its weak productions."""
    replay_seconds: float = 5.0
    """Time without a sign of a tree's records after which its root is processed again."""
    named: bool = False
    """Its input's key is the record's user-supplied id."""
    sinks: dict[str, list[SinkUse]] = field(default_factory=dict)
    """Sinks that are written in its own commits, by stream."""

    @property
    def label(self) -> str:
        return label_of(self.name, self.describe())

    @property
    def leaves_store(self) -> bool:
        """Whether it writes outside the store."""
        return leaves_store(self.describe())

    @property
    def injected(self) -> str:
        """The user's stream that an injector feeds, directly or by a hidden stream."""
        return self.writes[0].name.removesuffix(INJECTED)

    @property
    def grain(self) -> int:
        """Its intervals begin and end at multiples of this number of slots."""
        return SLOTS // self.cells if self.cells else 1

    @property
    def at_most_once(self) -> bool:
        """Records are sent to it once, and never again."""
        return self.delivery == "at_most_once"

    @property
    def shown_names(self) -> dict[str, str]:
        """The user's names of its hidden input streams."""
        return {i.stream.name: i.name for i in self.inputs if i.name != i.stream.name}

    @property
    def state_steps(self) -> Mapping[int, Migration]:
        """Migrations of its state, by the version from which each one leads."""
        return {} if self.computation is None else self._steps(self.computation.migrations)

    @property
    def entry_steps(self) -> Mapping[str, Mapping[int, Migration]]:
        """Migrations of the entries of each collection of its state."""
        if self.computation is None or self.layout is None:
            return {}
        given = self.computation.entry_migrations
        return {name: self._steps(given.get(name, {})) for name in self.layout.collections}

    @property
    def shared_steps(self) -> Mapping[int, Migration]:
        """Migrations of its shared table, by the version from which each one leads."""
        return {} if self.computation is None else self._steps(self.computation.shared_migrations)

    def _steps(self, given: Mapping[int, Migration]) -> Mapping[int, Migration]:
        """`given`, with steps that change nothing for versions that changed only another type:
        state, collections and shared table have one version. A deploy is refused if one is missing
        here."""
        computation = self.computation
        assert computation is not None
        of_entries = computation.entry_migrations.values()
        of_all = {*computation.migrations, *computation.shared_migrations}.union(*of_entries)
        return {**dict.fromkeys(of_all, _unchanged), **given}

    @property
    def is_weak(self) -> bool:
        """Its productions are sent before they are stored, if they are stored at all."""
        return self.productions == "weak"

    @property
    def is_tree(self) -> bool:
        """Its productions are not kept: losses are replayed from the root."""
        return self.acknowledgement == "tree"

    @property
    def is_spread(self) -> bool:
        """The engine chooses its keys."""
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
            description["class"] = self.computation.class_name
            for part in ("state_rules", "rules"):
                if found := getattr(self.computation, part):
                    description[part] = dict(found)
            if functions := self.computation.state_functions:
                description["state_functions"] = {
                    name: [version, _code_of(of)] for name, (version, of) in functions.items()
                }
        if self.cells:
            description["broadcast_cells"] = self.cells
        if self.named:
            description["named"] = True
        if self.bundles is not None:
            description["bundles"] = True
        if self.is_weak:  # its productions have other ids: stored ones would not be recognised
            description["productions"] = self.productions
        if self.at_most_once:  # records for it are not stored
            description["delivery"] = self.delivery
        return description


def _unchanged(value: Any) -> Any:
    return value


@lru_cache(maxsize=200)
def _code_of(functions: tuple[Callable[..., Any] | None, ...]) -> str | None:
    """One fingerprint of some functions, which costs milliseconds."""
    return fingerprint(partial(cast(Any, tuple), *functions))
