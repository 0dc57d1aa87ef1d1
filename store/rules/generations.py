"""Generations: the successive versions of a pipeline's code, as plain data.

A deploy that changes the graph or a stored type (a new node, another version of a type) begins a
*generation*. Code that starts is compared with all of them:

    it equals the newest generation                  it belongs to that generation
    it differs, and stored data can follow (nodes    it begins the next generation; workers of older
    are added, types have migrations)                code continue
    it equals an older generation                    a worker of old code starts again: it belongs
                                                     to that generation, while an interval is left
                                                     for it

All other code is refused, with every difference. The generations keep all versions that a type ever
had: a version number is never used for two types. Code that goes back to a lower version needs
migrations down from the highest one, because values may still be stored as that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import structs

from millwheel.core.suggestion import with_suggestion
from millwheel.errors import DeployRefused, UsageError
from millwheel.graph.labels import label_of, users_stream
from millwheel.store.port.change import CodeChange, lines_of
from millwheel.store.port.deploy import DescribedGraph, Plan
from millwheel.store.rules.changes import kinds
from millwheel.store.rules.changes.graph_changes import (
    graph_changes,
    renamed_changes,
    with_known_functions,
)
from millwheel.store.rules.changes.key_changes import changed, key_changes, with_known
from millwheel.store.rules.changes.obstacles import Obstacles
from millwheel.store.rules.changes.table_changes import (
    Alteration,
    RenameColumn,
    StoredTable,
    table_changes,
)
from millwheel.store.rules.changes.type_changes import state_changes, stream_changes
from millwheel.store.rules.code import (
    Code,
    Generation,
    TypeVersion,
    effective_renames,
    with_present_names,
)


@dataclass(frozen=True)
class Deployed:
    """The parts of the store that a deploy compares with code."""

    pipeline: str
    history: Sequence[Generation]
    """The generations so far, oldest first."""
    removed: Collection[str] = ()
    """Nodes that an operator has removed."""
    tables: Mapping[str, StoredTable] = field(default_factory=dict)
    """Tables of the code's sinks that exist."""
    obstacles: Obstacles = field(default_factory=Obstacles)
    least_left: int | None = None
    """The lowest generation that may own some interval; None: the worker is alone, so its code must
    be of the newest generation."""
    back: bool = False
    """Older code is to begin a generation."""


@dataclass(frozen=True)
class Admission:
    generation: int
    code: Code
    begins: bool = False
    """It is the first code of its generation: the deploy stores it."""
    is_older: bool = False
    """The deploy stores nothing: there is a newer generation."""
    changes: Sequence[CodeChange] = ()
    """Differences from the newest generation; none refuses the code."""
    alterations: Sequence[Alteration] = ()
    """Changes of tables to make before the code writes them."""
    outgrown: frozenset[str] = frozenset()
    """Nodes that older code must not own any more, because it does not know all their senders, or
    the newest type of their input, or would extract other keys, or write columns by their former
    names."""
    rekeyed: tuple[tuple[str, str], ...] = ()
    """Changed key extractors, by computation and input stream."""
    unwritten: Sequence[tuple[str, str]] = ()
    """Nodes, each with a stream that it no longer writes."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Former names of nodes to rename, by the new one."""


def code_of(described: DescribedGraph) -> Code:
    """The code as the store keeps it."""
    code = Code(
        described.graph,
        {node.name: TypeVersion(node.version, node.state) for node in described.nodes},
        {stream.name: TypeVersion(stream.version, stream.type) for stream in described.streams},
        {node.name: node.keys for node in described.nodes if node.keys},
        {node.name: node.renamed_from for node in described.nodes if node.renamed_from},
        {name: sorted(steps) for name, steps in described.submitted.steps.items()},
    )
    return plain(code)


@dataclass(frozen=True)
class Comparison:
    """Code beside all generations, under the names that nodes have in this code."""

    history: Sequence[Generation]
    code: Code
    known: Code
    """`code`, with stored key extractors in place of those that cannot be compared."""
    renames: Mapping[str, str]
    """Former names of nodes that this deploy renames, by the new one."""
    changes: Sequence[CodeChange]
    alterations: Sequence[Alteration]
    older: int | None
    """The newest former generation with the same code."""
    is_older_otherwise: bool = False
    """`older` had other submitted queries."""

    @property
    def newest(self) -> Code:
        return self.history[-1].code

    @property
    def is_newest(self) -> bool:
        return not self.renames and _is_same(self.known, self.newest)

    @property
    def is_own_code_newest(self) -> bool:
        """Whether it is the newest code apart from queries that were submitted."""
        return not self.renames and self.known.own == self.newest.own


def compared(deployed: Deployed, described: DescribedGraph) -> Comparison:
    """Every difference between the newest generation and other code, and the changes of tables."""
    code, stored = code_of(described), deployed.history[-1].code
    renames = effective_renames(stored, code)
    history = with_present_names(deployed.history, renames)
    newest = history[-1].code
    known = structs.replace(
        code,
        keys=with_known(newest, code.keys),
        graph=with_known_functions(newest, code),
    )
    obstacles = deployed.obstacles.under_new_names(renames)
    of_tables = list(
        table_changes(
            deployed.pipeline,
            newest.tables,
            deployed.tables,
            described.tables,
            deployed.obstacles.workers,
        )
    )
    changes = [
        *renamed_changes(code, renames),
        *graph_changes(deployed.pipeline, history, code, deployed.removed, obstacles),
        *state_changes(deployed.pipeline, history, code, described.nodes),
        *stream_changes(history, code, described.streams),
        *key_changes(history, known, obstacles),
        *(change for change, _ in of_tables),
    ]
    labels = _labels(*(generation.code for generation in history), code)
    changes = [replace(change, labels=labels) for change in changes]
    alterations = [alteration for _, alteration in of_tables if alteration is not None]
    number, otherwise = _older(deployed.history, known)
    return Comparison(history, code, known, renames, changes, alterations, number, otherwise)


def _labels(*codes: Code) -> dict[str, str]:
    """Labels of steps, and users' streams behind hidden ones, by their names; the newest count."""
    nodes = {name: node for code in codes for name, node in code.nodes.items()}
    streams = {name for code in codes for name in code.streams}
    labels = {name: label_of(name, node) for name, node in nodes.items()}
    return {name: label for name, label in labels.items() if label != name} | {
        name: users_stream(name) for name in streams if users_stream(name) != name
    }


def _older(history: Sequence[Generation], code: Code) -> tuple[int | None, bool]:
    """The newest former generation with the same code, and whether it had other submitted queries:
    code is no newer by queries that were submitted to its successor."""
    if _is_same(code, history[-1].code):
        return None, False
    same = [g.number for g in history[:-1] if g.code == code]
    if same:
        return same[-1], False
    if not any(each.queries for each in (code, *(g.code for g in history))):
        return None, False
    own = code.own
    if own == history[-1].code.own:
        return None, False
    same = [g.number for g in history[:-1] if g.code.own == own]
    return (same[-1], True) if same else (None, False)


def _is_same(one: Code, other: Code) -> bool:
    """Whether two codes are the same, whichever of them has renamed a node."""
    return structs.replace(one, renames={}) == structs.replace(other, renames={})


def admit(deployed: Deployed, described: DescribedGraph) -> Admission:
    """The generation of code that may run.

    Raises:
        DeployRefused: the code fits no generation; the message shows the differences and ways out.
    """
    if not deployed.history:
        return _first(deployed, described)
    found = compared(deployed, described)
    number = deployed.history[-1].number
    refusal = None
    if any(change.refuses for change in found.changes):
        refusal = DeployRefused(_refusal(deployed.pipeline, found.changes))
        if any(change.kind in kinds.BACK for change in found.changes):
            raise refusal
    if found.older is not None and (refusal or not _goes_back(deployed, found.changes)):
        return _join(deployed, found, refusal)
    if refusal is not None:
        raise refusal
    if found.is_newest:
        return Admission(number, found.code, changes=found.changes, alterations=found.alterations)
    rekeyed = tuple(changed(found.newest, found.known))
    renamed = {of.table for of in found.alterations if isinstance(of, RenameColumn)}
    outgrown = _outgrown(found.newest, found.known) | _writers_of(renamed, found.newest)
    return Admission(
        number + 1,
        found.code,
        begins=True,
        changes=found.changes,
        alterations=found.alterations,
        outgrown=frozenset(found.newest.nodes) if rekeyed else outgrown,
        rekeyed=rekeyed,
        unwritten=_unwritten(found.newest, found.code, {}),
        renames=found.renames,
    )


def _first(deployed: Deployed, described: DescribedGraph) -> Admission:
    """The first generation. Tables of sinks may be there, made by hand."""
    found = list(table_changes(deployed.pipeline, {}, deployed.tables, described.tables))
    changes = tuple(change for change, _ in found)
    if any(change.refuses for change in changes):
        raise DeployRefused(_refusal(deployed.pipeline, changes))
    alterations = [alteration for _, alteration in found if alteration is not None]
    return Admission(1, code_of(described), begins=True, changes=changes, alterations=alterations)


def planned(deployed: Deployed, described: DescribedGraph) -> Plan:
    """The differences that a deploy of the code would find."""
    if not deployed.history:
        found_tables = table_changes(deployed.pipeline, {}, deployed.tables, described.tables)
        return Plan(None, [change for change, _ in found_tables])
    found = compared(deployed, described)
    return Plan(
        deployed.history[-1].number,
        found.changes,
        found.older,
        tables={
            name: {column: type_ for column, (type_, _) in of.columns.items()}
            for name, of in deployed.tables.items()
        },
        is_newest=found.is_newest,
        is_own_code_newest=found.is_own_code_newest,
    )


def refuse_sent(pipeline: str, sent: Collection[tuple[str, str]]) -> None:
    """`DeployRefused` if nodes have sent records of streams that they no longer write, and these
    are not acknowledged."""
    if sent:
        changes = [
            CodeChange(
                kinds.WRITES_MISSING_SENT, repr(name), before=stream, given={"pipeline": pipeline}
            )
            for name, stream in sorted(sent)
        ]
        raise DeployRefused(_refusal(pipeline, changes))


def _refusal(pipeline: str, changes: Sequence[CodeChange]) -> str:
    lines = [f"  {line}" for change in changes if change.refuses for line in lines_of(change)]
    return "\n".join(
        [
            f"this code cannot continue from the stored state of pipeline {pipeline!r}:",
            *lines,
            "All differences: millwheel plan MODULE:PIPELINE. To begin with nothing, give the "
            "pipeline another name, or remove it with all its data: millwheel drop " + pipeline,
        ]
    )


def _goes_back(deployed: Deployed, changes: Sequence[CodeChange]) -> bool:
    """Whether former code is meant to follow the deployed one. If not, a worker of it starts again
    while others are upgraded: such code has no migrations back, and it is not alone."""
    if deployed.back or deployed.least_left is None:
        return True
    return any(c.kind in kinds.MIGRATED and c.before > c.after for c in changes)


def _join(deployed: Deployed, found: Comparison, refusal: DeployRefused | None) -> Admission:
    """Admit older code: its worker may start again while others are upgraded."""
    number = found.older
    assert number is not None
    least_left, newest = deployed.least_left, deployed.history[-1].number
    if least_left is not None and least_left <= number and not found.is_older_otherwise:
        return Admission(number, found.code, is_older=True)
    if least_left is None:
        why = "It may only run beside workers of that one"
    elif found.is_older_otherwise:
        why = "Queries were submitted, replaced or dropped since, so it cannot join that one"
    else:
        why = "No interval is left for it: newer code has written to every key interval"
    is_older = (
        f"this code is generation {number} of pipeline {deployed.pipeline!r}, and generation "
        f"{newest} is deployed. {why}. Deploy the newer code, or "
    )
    if refusal is None:
        raise DeployRefused(f"{is_older}go back to this one: millwheel rollback MODULE:PIPELINE")
    raise DeployRefused(
        f"{is_older}add the missing parts to this code, so that it can continue from there:\n"
        f"{refusal}"
    ) from refusal


def _outgrown(before: Code, after: Code) -> frozenset[str]:
    """Nodes of the former graph that read a stream with another type now, or with a new writer, or
    one more stream; or that write one to a node that no longer reads it, or no longer write it."""
    nodes, grown = before.nodes, after.nodes
    changed = {
        name
        for name, kind in before.streams.items()
        if name in after.streams and after.streams[name] != kind
    }
    unread: set[str] = set()
    for name, node in grown.items():
        former = nodes.get(name, {})
        changed.update(_writes(node) - _writes(former))
        unread.update(_reads(former) - _reads(node))
    return frozenset(
        name
        for name, node in nodes.items()
        if name in grown
        and (
            changed & _reads(node)
            or _reads(grown[name]) - _reads(node)
            or unread & _writes(node)
            or _writes(node) - _writes(grown[name])
        )
    )


def unwritten(history: Sequence[Generation], described: DescribedGraph) -> list[tuple[str, str]]:
    """Deployed nodes, each with a stream that the code no longer has in its `writes`."""
    if not history:
        return []
    code, stored = code_of(described), history[-1].code
    names = {former: name for name, former in effective_renames(stored, code).items()}
    return _unwritten(stored, code, names)


def _unwritten(before: Code, after: Code, names: Mapping[str, str]) -> list[tuple[str, str]]:
    """`names` has the new names of nodes by the former ones, where they differ."""
    return [
        (name, stream)
        for name, node in before.nodes.items()
        if (new := after.nodes.get(names.get(name, name))) is not None
        for stream in sorted(_writes(node) - _writes(new))
    ]


def _writers_of(tables: Collection[str], code: Code) -> frozenset[str]:
    """Nodes with sinks that are one of some tables."""
    return frozenset(
        name
        for name, node in code.nodes.items()
        if any(sink.get("table") in tables for of in node.get("sinks", {}).values() for sink in of)
    )


def without(pipeline: str, code: Code, names: Iterable[str], *, are_replaced: bool = False) -> Code:
    """`UsageError` if there is no such node, or a remaining node needs it.

    Args:
        are_replaced: other nodes take their place in the same transaction.
    """
    gone = set(names)
    nodes = code.nodes
    unknown = sorted(gone - nodes.keys())
    if unknown:
        message = (
            f"pipeline {pipeline!r} has no {', '.join(map(repr, unknown))}; it has "
            f"{', '.join(sorted(nodes))}"
        )
        raise UsageError(with_suggestion(message, unknown[0], nodes))
    left = {name: node for name, node in nodes.items() if name not in gone}
    if not left:
        raise UsageError(
            f"these are all nodes of pipeline {pipeline!r}; to remove it as a whole: "
            f"millwheel drop {pipeline}"
        )
    written = {stream for node in left.values() for stream in _writes(node)}
    read = {stream for node in left.values() for stream in _reads(node)}
    reasons = [
        f"{name} reads {stream}, and no other node writes it"
        for name, node in sorted(left.items())
        for stream in sorted(_reads(node) - written)
    ] + [
        f"{name} injects {stream}, and no other node reads it"
        for name, node in sorted(left.items())
        if node.get("kind") == "injector"
        for stream in sorted(_writes(node) - read)
    ]
    if reasons and not are_replaced:
        raise UsageError(
            "nothing was removed. Remaining nodes need the ones to remove:\n  "
            + "\n  ".join(reasons)
            + "\nRemove these nodes as well, or deploy code with a replacement first"
        )
    return code.keeping(left)


def refuse_with_members(pipeline: str, found: Sequence[tuple[str, int, int]]) -> None:
    """`UsageError` for open numbered bundles with records of removed nodes: (computation, number,
    records)."""
    if found:
        raise UsageError(
            "nothing was removed. An open bundle has records of the nodes to remove; after a crash "
            "it could not be delivered again:\n  "
            + "\n  ".join(
                f"{records} in bundle {number} of {name}" for name, number, records in found
            )
            + f"\nPause the injectors (millwheel pause {pipeline}) until it is delivered, and try "
            "again; or remove the computation that receives it as well"
        )


def _reads(node: Any) -> set[str]:
    return {stream for stream, _ in node.get("inputs", ())}


def _writes(node: Any) -> set[str]:
    return set(node.get("writes", ()))


def plain(code: Code) -> Code:
    """The code after a round trip through the store."""
    return msgspec.json.decode(msgspec.json.encode(code), type=Code)
