"""Changes of the types of states, shared tables and streams, compared with all types that were
deployed under their names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from millwheel.store.port.change import CodeChange
from millwheel.store.port.deploy import NodeDeploy, StreamDeploy
from millwheel.store.rules.changes import kinds
from millwheel.store.rules.changes.type_growth import reads
from millwheel.store.rules.code import SHARED, Code, Generation, TypeVersion


def state_changes(
    history: Sequence[Generation], code: Code, nodes: Sequence[NodeDeploy]
) -> Iterator[CodeChange]:
    """States and shared tables have one version, so each needs a migration only where its own type
    changed."""
    described = {node.name: node for node in nodes}
    for name, new in code.states.items():
        node = described[name]
        found = [g.code.states[name] for g in history if name in g.code.states]
        steps: Collection[int] = node.migrates_from
        if not any(SHARED in kind.type for kind in (*found, new)):
            yield from _changes(f"state of {name!r}", "migrations", found, new, steps)
            continue
        own, own_new = [_own(kind) for kind in found], _own(new)
        steps = _with_unchanged(own, own_new, steps)
        yield from _changes(f"state of {name!r}", "migrations", own, own_new, steps)
        tables, table = [_shared(kind) for kind in found], _shared(new)
        steps = _with_unchanged(tables, table, node.shared_migrates_from)
        where = f"shared table of {name!r}"
        yield from _changes(where, "shared_migrations", tables, table, steps)


def stream_changes(
    history: Sequence[Generation], code: Code, streams: Sequence[StreamDeploy]
) -> Iterator[CodeChange]:
    steps = {stream.name: stream.migrates_from for stream in streams}
    for name, new in code.streams.items():
        found = [g.code.streams[name] for g in history if name in g.code.streams]
        yield from _changes(f"stream {name!r}", "migrations", found, new, steps[name])


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


def _changes(
    where: str,
    attribute: str,
    found: Sequence[TypeVersion],
    new: TypeVersion,
    steps: Collection[int],
) -> Iterator[CodeChange]:
    """`found`: the types that were deployed under the name, oldest first; `attribute` holds the
    migrations."""
    if not found:
        return
    newest = found[-1]
    highest = max(kind.version for kind in found)
    given = {"attribute": attribute, "stored": newest.version, "version": new.version}
    for kind in found:
        if kind.version == new.version and not _may_read(kind, new, found):
            differences = "\n".join(f"  {line}" for line in differences_of(kind.type, new.type))
            given |= {"differences": differences, "version": highest + 1}
            yield CodeChange(kinds.TYPE_VERSION, where, given=given)
            return
    down = [v for v in range(highest, new.version, -1) if v not in steps]
    if down:
        entries = ", ".join(f"{v}: down" for v in down)
        given |= {"entries": entries, "stored": highest}
        yield CodeChange(kinds.TYPE_DOWN, where, given=given)
        return
    up = [v for v in range(newest.version, new.version) if v not in steps]
    if up:
        given |= {"missing": ", ".join(map(str, up))}
        yield CodeChange(kinds.TYPE_STEPS, where, newest.version, new.version, given=given)
    elif newest.version != new.version:
        yield CodeChange(kinds.TYPE_MIGRATED, where, newest.version, new.version)
    elif newest.type != new.type:
        grown = _reads(newest.type, new.type)
        yield CodeChange(kinds.TYPE_GROWN if grown else kinds.TYPE_BACK, where)


def _may_read(kind: TypeVersion, new: TypeVersion, found: Sequence[TypeVersion]) -> bool:
    """Whether `new` reads values of the same version: its type has grown since, or it is a former
    one from which that type has grown."""
    if _reads(kind.type, new.type):
        return True
    return any(one.type == new.type for one in found) and _reads(new.type, kind.type)


def _reads(stored: Any, new: Any) -> bool:
    """Of fingerprints of states as well, which have one for the plain fields, and one for each
    collection (`millwheel.state.StateLayout.fingerprint`)."""
    if not (_is_of_state(stored) and _is_of_state(new)):
        return stored in (None, {}, new) or reads(stored, new)
    collections, more = stored["collections"], new["collections"]
    return (
        reads(stored["plain"], new["plain"])
        and collections.keys() <= more.keys()
        and all(
            kind == more[name][0] and key == more[name][1] and reads(entry, more[name][2])
            for name, (kind, key, entry) in collections.items()
        )
    )


def _is_of_state(found: Any) -> bool:
    return isinstance(found, Mapping) and {"plain", "collections"} <= found.keys()


def differences_of(stored: Any, new: Any, path: str = "") -> list[str]:
    """Each difference of two JSON values, with its place."""
    if isinstance(stored, dict) and isinstance(new, dict):
        lines = []
        for name in sorted({*stored, *new}):
            where = f"{path}.{name}" if path else name
            if name not in new:
                lines.append(f"{where}: only in the store")
            elif name not in stored:
                lines.append(f"{where}: only in this code")
            else:
                lines += differences_of(stored[name], new[name], where)
        return lines
    if stored == new:
        return []
    return [
        f"{path}: stored {msgspec.json.encode(stored).decode()}, "
        f"this code {msgspec.json.encode(new).decode()}"
    ]
