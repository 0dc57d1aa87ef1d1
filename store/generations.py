"""Generations: which code a pipeline was deployed from, one after the other, as plain data.

A deploy that changes anything stored data depend on (a node more, another version of a type)
begins a *generation*. Code that starts is one of three things:

    it says what the newest generation says          it is of that generation
    what it says differs, and stored data can go     it begins the next one; older workers go on
    along (nodes are added, types have migrations)
    it says what an older generation said            a worker of old code that starts again: it is
                                                     of that one, as long as anything is left for it

Anything else is refused, with every difference. Which versions a type ever had is known from all
generations: a version number is never used for two types, and code that goes back must know the
way down from the highest one, since nobody knows which values are still stored as that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec
from msgspec import structs

from millwheel.errors import DeployRefused, UsageError
from millwheel.extractors import AllKeys
from millwheel.store.rekeying import NO_OBSTACLES, Obstacles, changed, check_keys, with_known


class TypeVersion(msgspec.Struct, frozen=True, array_like=True):
    """A type of state or of a stream's values: its version and its fingerprint."""

    version: int
    type: Any


class Code(msgspec.Struct, frozen=True):
    """What code says of a pipeline, as far as stored data depend on it."""

    graph: dict[str, Any]
    states: dict[str, TypeVersion]
    """By node."""
    streams: dict[str, TypeVersion]
    keys: AllKeys = {}
    """How keys are taken, by node and stream; empty: deployed before that was stored."""


class Generation(msgspec.Struct, frozen=True):
    """Code that was deployed."""

    number: int
    code: Code


Steps: TypeAlias = Mapping[str, Collection[int]]
"""By name, the versions from which there is a migration: towards the code's own."""


@dataclass(frozen=True)
class Admission:
    """Code that may run: as what, and what its deploy has to change."""

    generation: int
    begins: bool = False
    """It is the first of its generation: what it says is to be stored."""
    is_older: bool = False
    """There is a newer generation: nothing is to be stored."""
    outgrown: frozenset[str] = frozenset()
    """Nodes that were there and that older code must not have any more: it knows neither all who
    send to them nor the newest form of what they are sent; or it would give other keys."""
    rekeyed: tuple[tuple[str, str], ...] = ()
    """Computations and streams whose keys this deploy changes."""


def admit(
    pipeline: str,
    history: Sequence[Generation],
    code: Code,
    *,
    state_steps: Steps,
    shared_steps: Steps,
    stream_steps: Steps,
    removed: Collection[str] = (),
    least_left: int | None = None,
    obstacles: Obstacles = NO_OBSTACLES,
) -> Admission:
    """Find out of which generation the code is.

    Args:
        history: what was deployed, oldest first.
        removed: nodes that were taken away.
        least_left: of all intervals, the least generation that may have one; None: code that is
            not of the newest generation must not run, since it would run alone.
        obstacles: what is in the way of other keys.

    Raises:
        DeployRefused: it fits none; the message says what differs and what to do.
    """
    code = plain(code)
    if not history:
        return Admission(1, begins=True)
    newest = history[-1]
    code = structs.replace(code, keys=with_known(newest.code, code.keys))
    _refuse_removed(pipeline, removed, code)
    try:
        _refuse_other_graph(pipeline, newest.code.graph, code.graph)
        _check_states(history, code, state_steps, shared_steps)
        _check_streams(history, code, stream_steps)
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
    """Code of an older generation: a worker of it may start again while others go over."""
    if least_left is not None and least_left <= number:
        return Admission(number, is_older=True)
    why = (
        "It may only run beside workers of that one"
        if least_left is None
        else "Nothing is left for it: newer code has written to every key interval"
    )
    raise DeployRefused(
        f"this code is generation {number} of pipeline {pipeline!r}, and generation {newest} is "
        f"deployed. {why}. Deploy the newer code, or give this one what it lacks to go on from "
        f"there:\n{refusal}"
    ) from refusal


def _refuse_removed(pipeline: str, removed: Collection[str], code: Code) -> None:
    back = sorted(code.graph.get("nodes", {}).keys() & set(removed))
    if back:
        raise DeployRefused(
            f"removed from pipeline {pipeline!r} with all state, and still in this code: "
            f"{', '.join(map(repr, back))}. Deploy code without; what is to begin anew needs "
            "another name"
        )


def _refuse_other_graph(pipeline: str, stored: Any, new: Any) -> None:
    """See to it that the deployed graph is this code's, or a part of it."""
    new = dict(new)
    for part in ("nodes", "streams"):
        if set(stored.get(part, ())) < set(new.get(part, ())):  # it has grown: see the rest alone
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
            + "\nGive this pipeline another name, go back to the code that was deployed, take away "
            f"what is only in the store: millwheel remove {pipeline} NAME, or remove the old one "
            f"with all its data: millwheel drop {pipeline}"
        )


SHARED = "shared"
"""The part of a state's fingerprint that is the type of the table its keys share."""


def _check_states(
    history: Sequence[Generation], code: Code, state_steps: Steps, shared_steps: Steps
) -> None:
    """Check that the code can read all states, and all shared tables, that may be stored.

    A computation with a shared table has one version for both, so each needs a migration only where
    its own type changed.
    """
    for name, new in code.states.items():
        found = [g.code.states[name] for g in history if name in g.code.states]
        steps = state_steps.get(name, ())
        if not any(SHARED in kind.type for kind in (*found, new)):
            _check_type(f"state of {name!r}", "migrations", found, new, steps)
            continue
        own, own_new = [_own(kind) for kind in found], _own(new)
        steps = _with_unchanged(own, own_new, steps)
        _check_type(f"state of {name!r}", "migrations", own, own_new, steps)
        tables, table = [_shared(kind) for kind in found], _shared(new)
        steps = _with_unchanged(tables, table, shared_steps.get(name, ()))
        _check_type(f"shared table of {name!r}", "shared_migrations", tables, table, steps)


def _own(kind: TypeVersion) -> TypeVersion:
    return TypeVersion(kind.version, {part: of for part, of in kind.type.items() if part != SHARED})


def _shared(kind: TypeVersion) -> TypeVersion:
    return TypeVersion(kind.version, kind.type.get(SHARED))


def _with_unchanged(
    found: Sequence[TypeVersion], new: TypeVersion, steps: Collection[int]
) -> set[int]:
    """`steps`, and the versions from which none is needed: the version before and the one after
    them that were deployed have the same type."""
    types = {kind.version: kind.type for kind in (*found, new)}
    unneeded: set[int] = set()
    for low, high in pairwise(sorted(types)):
        if types[low] == types[high]:
            unneeded.update(v for v in range(low, high) if v < new.version)
            unneeded.update(v for v in range(low + 1, high + 1) if v > new.version)
    return unneeded.union(steps)


def _check_streams(history: Sequence[Generation], code: Code, steps: Steps) -> None:
    """Check that the code can read all values of its streams that may be stored."""
    for name, new in code.streams.items():
        found = [g.code.streams[name] for g in history if name in g.code.streams]
        _check_type(f"stream {name!r}", "migrations", found, new, steps.get(name, ()))


def _check_type(
    what: str,
    attribute: str,
    found: Sequence[TypeVersion],
    new: TypeVersion,
    steps: Collection[int],
) -> None:
    """Check one type against all that were deployed under its name, oldest first.

    Args:
        attribute: what holds its migrations.
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
                + f"\nStored values might be misread. Set version = {highest + 1} and give "
                f"{attribute} = {{{stored}: upgrade}}, where upgrade turns the old JSON into the new"
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
    """Nodes of the graph before that read a stream of another version, or by a new writer."""
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
    """What is left of a deployed pipeline when nodes are taken away.

    Raises:
        UsageError: there is no such node, or one that stays needs it.
    """
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
        f"{name} reads {stream}, and nobody else writes it"
        for name, node in sorted(left.items())
        for stream in sorted(_reads(node) - written)
    ] + [
        f"{name} injects {stream}, and nobody else reads it"
        for name, node in sorted(left.items())
        if node.get("kind") == "injector"
        for stream in sorted(_writes(node) - read)
    ]
    if reasons:
        raise UsageError(
            "nothing was removed. Something that stays needs what is to go:\n  "
            + "\n  ".join(reasons)
            + "\nRemove that as well, or deploy first what takes the place of what is to go"
        )
    streams = {name: kind for name, kind in code.streams.items() if name in written | read}
    return Code(
        {**code.graph, "nodes": left, "streams": sorted(streams)},
        {name: kind for name, kind in code.states.items() if name in left},
        streams,
        {name: keys for name, keys in code.keys.items() if name in left},
    )


def refuse_with_members(pipeline: str, found: Sequence[tuple[str, int, int]]) -> None:
    """See to it that nobody goes whose records are in a numbered bundle that is begun.

    Args:
        found: (computation, number, records) of such bundles.

    Raises:
        UsageError: there are some.
    """
    if found:
        raise UsageError(
            "nothing was removed. A bundle that is begun has records of what is to go; after a crash "
            "it could not be given again:\n  "
            + "\n  ".join(
                f"{records} in bundle {number} of {name}" for name, number, records in found
            )
            + f"\nLet the injectors rest (millwheel pause {pipeline}) until it is delivered, and try "
            "again; or remove the computation that it is for as well"
        )


def _reads(node: Any) -> set[str]:
    return {stream for stream, _ in node.get("inputs", ())}


def _writes(node: Any) -> set[str]:
    return set(node.get("writes", ()))


def _differences(stored: Any, new: Any, path: str = "") -> list[str]:
    """Every place where two JSON values differ, in words."""
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
    """The code as it comes back from the store."""
    return msgspec.json.decode(msgspec.json.encode(code), type=Code)
