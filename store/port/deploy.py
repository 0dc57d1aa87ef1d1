from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from millwheel.core.extractors import Keys
from millwheel.graph.submitted import NOTHING_SUBMITTED, Submitted
from millwheel.sinks import Table
from millwheel.store.port.change import CodeChange
from millwheel.store.port.placement import IntervalRow, NodeKind
from millwheel.store.port.queries import QueryChange
from millwheel.store.port.state_shape import StateShape
from millwheel.store.port.states import OldState


class CopyState(NamedTuple):
    """The part of a pipeline's row that is about copies (decision 86)."""

    origin: str | None = None
    """The pipeline or savepoint that it was copied from; None: it is no copy."""
    withholds: bool = False
    """Nothing of it leaves the store."""

    def is_fork(self, name: str) -> bool:
        """Whether it runs beside its origin. A restored pipeline does not: it has the name of its
        origin."""
        return self.origin is not None and self.origin.partition("@")[0] != name

    def is_beside(self, name: str, name_in_code: str) -> bool:
        """Whether another pipeline has the names in this code: names outside the store then need
        this pipeline's as well."""
        return name != name_in_code or self.is_fork(name)


NO_COPY = CopyState()


@dataclass(slots=True)
class Deployment:
    computations: dict[str, int]
    streams: dict[str, int]
    intervals: list[IntervalRow]
    generation: int
    """Generation of the code, which decides the intervals that the worker may own."""
    rekeyed: frozenset[str] = frozenset()
    """Computations that may have stored records under other keys than this code gives them."""
    changes: Sequence[CodeChange] = ()
    """The differences that this deploy has taken."""
    newly_rekeyed: tuple[tuple[str, str], ...] = ()
    """Computations and their input streams with key extractors that this deploy has changed."""
    removed: Sequence[int] = ()
    """Computations that a change of queries has removed; their state is still there."""
    is_first: bool = True
    """The first deploy was in this incarnation of the server: none of the pipeline's commits is
    lost."""
    copied: CopyState = NO_COPY

    def add_former_names(self, present: Mapping[str, str]) -> None:
        """Former code finds its nodes by the names that it has for them."""
        for former, name in present.items():
            if name in self.computations:
                self.computations[former] = self.computations[name]


@dataclass(slots=True)
class NodeDeploy:
    name: str
    kind: NodeKind
    version: int
    state: dict[str, Any]
    upstream: list[str]
    slots: list[tuple[int, int]]
    """Intervals of a new node: slot ranges, or partition numbers of an injector."""
    sources: list[str]
    """Identities of the injector's partitions."""
    migrates_from: list[int] = field(default_factory=list)
    """The code has migrations from these versions of the state."""
    changed_fields: dict[int, list[str]] = field(default_factory=dict)
    """Fields that the migration from a version changes, if it says so."""
    entries_migrate_from: dict[str, list[int]] = field(default_factory=dict)
    """The code has migrations from these versions of the entries of each collection."""
    shared_migrates_from: list[int] = field(default_factory=list)
    """The code has migrations from these versions of the shared table."""
    keys: dict[str, Keys] = field(default_factory=dict)
    """Key extractors by stream."""
    shape: StateShape | None = None
    """Columns of the views of its state, if it has such views."""
    shared: StateShape | None = None
    """Columns of the view of its shared table, if it has one."""
    renamed_from: str | None = None
    """Its name in former code."""


@dataclass(slots=True)
class StreamDeploy:
    name: str
    version: int
    type: dict[str, Any]
    migrates_from: list[int] = field(default_factory=list)


class DescribedGraph(NamedTuple):
    graph: dict[str, Any]
    nodes: list[NodeDeploy]
    streams: list[StreamDeploy]
    tables: list[Table[Any]]
    submitted: Submitted = NOTHING_SUBMITTED
    """Its queries that are not in the code."""
    change: QueryChange | None = None
    """A change of these queries, which the deploy stores; the graph has it already."""


@dataclass(frozen=True)
class Plan:
    deployed: int | None
    """The newest generation; None: the pipeline is not deployed."""
    changes: Sequence[CodeChange]
    older: int | None = None
    """The code is this former generation."""
    in_the_way: Sequence[OldState] = ()
    """Some stored values of newer versions, which this code cannot read."""
    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Columns and their types of the tables of its sinks that exist."""
    is_newest: bool = False
    """The code, with its queries, is that of the newest generation."""
    is_own_code_newest: bool = False
    """Apart from submitted queries it is that code."""

    @property
    def is_refused(self) -> bool:
        return any(change.refuses for change in self.changes)


class StoreDeploys(Protocol):
    async def deploy(
        self,
        described: DescribedGraph,
        *,
        stamp: int,
        bucket_high: int,
        shared: bool = False,
        back: bool = False,
    ) -> Deployment:
        """Store the graph of the code, or compare it with the stored one.

        Args:
            stamp: logical time of the first commits.
            bucket_high: end of the first time bucket.
            shared: the worker is one of several: its code may be older than the deployed code, as
                long as some interval is left that it may own.
            back: code of a former generation begins the next one, in place of joining its own.

        Raises:
            DeployRefused: another graph is stored under this name, or a type changed without a
                migration.
            QueriesChanged: the store has other queries than those that the code was built with.
        """
        ...

    async def plan(self, described: DescribedGraph) -> Plan:
        """The differences that a deploy of the code would find; reads only, and locks nothing."""
        ...
