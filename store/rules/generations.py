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

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import structs

from millwheel.errors import DeployRefused, UsageError
from millwheel.store.port.deploy import DescribedGraph, NodeDeploy, StreamDeploy
from millwheel.store.rules.code import Code, Generation, TypeVersion
from millwheel.store.rules.rekeying import Obstacles, changed, check_keys, with_known


@dataclass(frozen=True)
class Admission:
    generation: int
    begins: bool = False
    """It is the first code of its generation: the deploy stores it."""
    is_older: bool = False
    """The deploy stores nothing: there is a newer generation."""
    outgrown: frozenset[str] = frozenset()
    """Nodes that older code must not own any more, because it does not know all their senders, or
    the newest type of their input, or would extract other keys."""
    rekeyed: tuple[tuple[str, str], ...] = ()
    """Changed key extractors, by computation and input stream."""


def obstacles_of(
    nodes: list[NodeDeploy], bundled: Collection[str], parked: Collection[str], workers: int
) -> Obstacles:
    stateful = {n.name for n in nodes if n.kind == "computation" and n.state.keys() - {SHARED}}
    return Obstacles(stateful, bundled, parked, workers)


def admit(
    pipeline: str,
    history: Sequence[Generation],
    described: DescribedGraph,
    removed: Collection[str],
    least_left: int | None,
    obstacles: Obstacles,
) -> tuple[Admission, Code]:
    """The generation of code that may run, and the code.

    Args:
        history: deployed generations, oldest first.
        removed: nodes that an operator has removed.
        least_left: the lowest generation that may own some interval; None: code that is not of the
            newest generation must not run, since it would run alone.

    Raises:
        DeployRefused: the code fits no generation; the message shows the differences and ways out.
    """
    _, nodes, streams, _ = described
    code = Code(
        described.graph,
        {node.name: TypeVersion(node.version, node.state) for node in nodes},
        {stream.name: TypeVersion(stream.version, stream.type) for stream in streams},
        {node.name: node.keys for node in nodes if node.keys},
    )
    _refuse_removed(pipeline, removed, code)
    return _admission(pipeline, history, plain(code), described, least_left, obstacles), code


def _admission(
    pipeline: str,
    history: Sequence[Generation],
    code: Code,
    described: DescribedGraph,
    least_left: int | None,
    obstacles: Obstacles,
) -> Admission:
    if not history:
        return Admission(1, begins=True)
    newest = history[-1]
    code = structs.replace(code, keys=with_known(newest.code, code.keys))
    try:
        _refuse_other_graph(pipeline, newest.code.graph, code.graph)
        _check_states(history, code, described.nodes)
        _check_streams(history, code, described.streams)
        check_keys(history, code, obstacles)
    except DeployRefused as refusal:
        older = [g.number for g in history[:-1] if g.code == code]
        if not older:
            raise
        return _join(pipeline, older[-1], newest.number, least_left, refusal)
    if code == newest.code:
        return Admission(newest.number)
    rekeyed = tuple(changed(newest.code, code))
    everything = frozenset(newest.code.graph.get("nodes", {}))
    outgrown = everything if rekeyed else _outgrown(newest.code, code)
    return Admission(newest.number + 1, begins=True, outgrown=outgrown, rekeyed=rekeyed)


def _join(
    pipeline: str, number: int, newest: int, least_left: int | None, refusal: DeployRefused
) -> Admission:
    """Admit older code: its worker may start again while others are upgraded."""
    if least_left is not None and least_left <= number:
        return Admission(number, is_older=True)
    why = (
        "It may only run beside workers of that one"
        if least_left is None
        else "No interval is left for it: newer code has written to every key interval"
    )
    raise DeployRefused(
        f"this code is generation {number} of pipeline {pipeline!r}, and generation {newest} is "
        f"deployed. {why}. Deploy the newer code, or add the missing parts to this code, so that "
        f"it can continue from there:\n{refusal}"
    ) from refusal


def _refuse_removed(pipeline: str, removed: Collection[str], code: Code) -> None:
    back = sorted(code.graph.get("nodes", {}).keys() & set(removed))
    if back:
        raise DeployRefused(
            f"removed from pipeline {pipeline!r} with all state, and still in this code: "
            f"{', '.join(map(repr, back))}. Deploy code without these nodes; a node that should "
            "start again from nothing needs another name"
        )


def _refuse_other_graph(pipeline: str, stored: Any, new: Any) -> None:
    new = dict(new)
    for part in ("nodes", "streams"):
        if set(stored.get(part, ())) < set(new.get(part, ())):  # it has grown: compare the rest
            new[part] = (
                {name: new[part][name] for name in stored[part]}
                if isinstance(new[part], dict)
                else stored[part]
            )
    differences = _differences(stored, new)
    if differences:
        raise DeployRefused(
            f"pipeline {pipeline!r} is deployed with another graph than this code's:\n  "
            + "\n  ".join(differences)
            + "\nGive this pipeline another name, go back to the deployed code, remove nodes that"
            f" are only in the store (millwheel remove {pipeline} NAME), or drop the old "
            f"pipeline with all its data: millwheel drop {pipeline}"
        )


SHARED = "shared"
"""Name of the shared table's type in a state's fingerprint."""


def _check_states(history: Sequence[Generation], code: Code, nodes: Sequence[NodeDeploy]) -> None:
    """Check that the code can read all stored states and shared tables.

    They have one version, so each needs a migration only where its own type changed.
    """
    described = {node.name: node for node in nodes}
    for name, new in code.states.items():
        node = described[name]
        found = [g.code.states[name] for g in history if name in g.code.states]
        steps: Collection[int] = node.migrates_from
        if not any(SHARED in kind.type for kind in (*found, new)):
            _check_type(f"state of {name!r}", "migrations", found, new, steps)
            continue
        own, own_new = [_own(kind) for kind in found], _own(new)
        steps = _with_unchanged(own, own_new, steps)
        _check_type(f"state of {name!r}", "migrations", own, own_new, steps)
        tables, table = [_shared(kind) for kind in found], _shared(new)
        steps = _with_unchanged(tables, table, node.shared_migrates_from)
        _check_type(f"shared table of {name!r}", "shared_migrations", tables, table, steps)


def _own(kind: TypeVersion) -> TypeVersion:
    return TypeVersion(kind.version, {part: of for part, of in kind.type.items() if part != SHARED})


def _shared(kind: TypeVersion) -> TypeVersion:
    return TypeVersion(kind.version, kind.type.get(SHARED))


def _with_unchanged(
    found: Sequence[TypeVersion], new: TypeVersion, steps: Collection[int]
) -> set[int]:
    """`steps`, and the versions that need no migration because the deployed versions before and
    after them have the same type."""
    types = {kind.version: kind.type for kind in (*found, new)}
    unneeded: set[int] = set()
    for low, high in pairwise(sorted(types)):
        if types[low] == types[high]:
            unneeded.update(v for v in range(low, high) if v < new.version)
            unneeded.update(v for v in range(low + 1, high + 1) if v > new.version)
    return unneeded.union(steps)


def _check_streams(
    history: Sequence[Generation], code: Code, streams: Sequence[StreamDeploy]
) -> None:
    steps = {stream.name: stream.migrates_from for stream in streams}
    for name, new in code.streams.items():
        found = [g.code.streams[name] for g in history if name in g.code.streams]
        _check_type(f"stream {name!r}", "migrations", found, new, steps[name])


def _check_type(
    what: str,
    attribute: str,
    found: Sequence[TypeVersion],
    new: TypeVersion,
    steps: Collection[int],
) -> None:
    """Check one type against all types that were deployed under its name, oldest first.

    `attribute` holds its migrations.
    """
    if not found:
        return
    stored = found[-1].version
    highest = max(kind.version for kind in found)
    for kind in found:
        if kind.version == new.version and kind.type != new.type:
            raise DeployRefused(
                f"the type of the {what} changed without a new version:\n  "
                + "\n  ".join(_differences(kind.type, new.type))
                + f"\nStored values might be misread. Set version = {highest + 1} and give"
                f" {attribute} = {{{stored}: upgrade}}, where upgrade turns the old JSON into "
                "the new"
            )
    down = [v for v in range(highest, new.version, -1) if v not in steps]
    if down:
        entries = ", ".join(f"{v}: down" for v in down)
        raise DeployRefused(
            f"the {what} is stored as version {highest}, but this code knows only version "
            f"{new.version}; deploy the newer code, or, to go back, give {attribute} = "
            f"{{{entries}}}, where down turns the JSON of that version into that of the one before"
        )
    up = [v for v in range(stored, new.version) if v not in steps]
    if up:
        raise DeployRefused(
            f"the {what} goes from version {stored} to {new.version}, but {attribute} has no "
            f"entry for version {', '.join(map(str, up))}"
        )


def _outgrown(before: Code, after: Code) -> frozenset[str]:
    """Nodes of the former graph that read a stream with another version now, or with a new
    writer."""
    nodes, grown = before.graph.get("nodes", {}), after.graph.get("nodes", {})
    changed = {
        name
        for name, kind in before.streams.items()
        if name in after.streams and after.streams[name].version != kind.version
    }
    for name in grown.keys() - nodes.keys():
        changed.update(_writes(grown[name]))
    return frozenset(name for name, node in nodes.items() if changed & _reads(node))


def without(pipeline: str, code: Code, names: Iterable[str]) -> Code:
    """`UsageError` if there is no such node, or a remaining node needs it."""
    gone = set(names)
    nodes: dict[str, Any] = code.graph.get("nodes", {})
    unknown = sorted(gone - nodes.keys())
    if unknown:
        raise UsageError(
            f"pipeline {pipeline!r} has no {', '.join(map(repr, unknown))}; it has "
            f"{', '.join(sorted(nodes))}"
        )
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
    if reasons:
        raise UsageError(
            "nothing was removed. Remaining nodes need the ones to remove:\n  "
            + "\n  ".join(reasons)
            + "\nRemove these nodes as well, or deploy code with a replacement first"
        )
    streams = {name: kind for name, kind in code.streams.items() if name in written | read}
    return Code(
        {**code.graph, "nodes": left, "streams": sorted(streams)},
        {name: kind for name, kind in code.states.items() if name in left},
        streams,
        {name: keys for name, keys in code.keys.items() if name in left},
    )


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


def _differences(stored: Any, new: Any, path: str = "") -> list[str]:
    if isinstance(stored, dict) and isinstance(new, dict):
        lines = []
        for name in sorted({*stored, *new}):
            where = f"{path}.{name}" if path else name
            if name not in new:
                lines.append(f"{where}: only in the store")
            elif name not in stored:
                lines.append(f"{where}: only in this code")
            else:
                lines += _differences(stored[name], new[name], where)
        return lines
    if stored == new:
        return []
    return [
        f"{path}: stored {msgspec.json.encode(stored).decode()}, "
        f"this code {msgspec.json.encode(new).decode()}"
    ]


def plain(code: Code) -> Code:
    """The code after a round trip through the store."""
    return msgspec.json.decode(msgspec.json.encode(code), type=Code)
