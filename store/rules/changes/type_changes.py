"""Changes of the types of states, shared tables and streams, compared with all types that were
deployed under their names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from millwheel.graph.labels import users_stream
from millwheel.store.port.change import CodeChange, Kind
from millwheel.store.port.deploy import NodeDeploy, StreamDeploy
from millwheel.store.rules.changes import kinds
from millwheel.store.rules.changes.type_growth import reads
from millwheel.store.rules.code import SHARED, Code, Generation, TypeVersion


def state_changes(
    pipeline: str, history: Sequence[Generation], code: Code, nodes: Sequence[NodeDeploy]
) -> Iterator[CodeChange]:
    """Plain states, the entries of each collection, and shared tables have one version, so each
    needs a migration only where its own type changed."""
    described = {node.name: node for node in nodes}
    for name, new in code.states.items():
        node = described[name]
        found = [g.code.states[name] for g in history if name in g.code.states]
        if not found:
            continue
        steps_of = {
            PLAIN: node.migrates_from,
            SHARED: node.shared_migrates_from,
            **{COLLECTION + field: of for field, of in node.entries_migrate_from.items()},
        }
        of_all = {version for of in steps_of.values() for version in of}
        parts = {part: _part(new, part) for part in _parts(new)}
        for part in dict.fromkeys([PLAIN, *parts, *_parts(found[-1])]):
            own, own_new = [_part(kind, part) for kind in found], _part(new, part)
            if own_new.type is None and part.startswith(COLLECTION):
                given = {"pipeline": pipeline}
                yield CodeChange(kinds.ENTRIES_LEFT, _subject(name, part), given=given)
                continue
            steps = _Steps.of(steps_of.get(part, ()), of_all, own, own_new)
            yield from _changes(_subject(name, part), _attribute(part), own, own_new, steps)


class _Steps(NamedTuple):
    """Versions from which code leads to its own version of a type."""

    given: Collection[int]
    """It has a migration."""
    of_all: Collection[int]
    """Some part of the same state has one: at run time the others are taken for unchanged."""
    known: Collection[int]
    """It has a migration, or the type did not change in that step."""

    @classmethod
    def of(
        cls,
        given: Collection[int],
        of_all: Collection[int],
        found: Sequence[TypeVersion],
        new: TypeVersion,
    ) -> _Steps:
        types = {kind.version: kind.type for kind in (*found, new)}
        unchanged: set[int] = set()
        for low, high in pairwise(sorted(types)):
            if _reads(types[low], types[high]):
                unchanged.update(v for v in range(low, high) if v < new.version)
            if _reads(types[high], types[low]):
                unchanged.update(v for v in range(low + 1, high + 1) if v > new.version)
        return cls(given, of_all, unchanged.intersection(of_all).union(given))


PLAIN, COLLECTION = "plain", "entries of "
"""Parts of a state's fingerprint: the fields that are no collections; and each collection."""


def _parts(kind: TypeVersion) -> Iterator[str]:
    if not kind.type.keys() <= {SHARED}:
        yield PLAIN
    yield from (COLLECTION + name for name in kind.type.get("collections", ()))
    if SHARED in kind.type:
        yield SHARED


def _part(kind: TypeVersion, part: str) -> TypeVersion:
    """One part of a state's type; None: it has none."""
    if part == PLAIN:
        rest = {p: of for p, of in kind.type.items() if p not in (SHARED, "collections")}
        return TypeVersion(kind.version, rest.get(PLAIN, rest) if rest else None)
    if part == SHARED:
        return TypeVersion(kind.version, kind.type.get(SHARED))
    return TypeVersion(
        kind.version, kind.type.get("collections", {}).get(part.removeprefix(COLLECTION))
    )


def _subject(name: str, part: str) -> str:
    if part == PLAIN:
        return f"state of {name!r}"
    return f"shared table of {name!r}" if part == SHARED else f"state of {name!r}, {part}"


def _attribute(part: str) -> str:
    if part.startswith(COLLECTION):
        return f"entry_migrations[{part.removeprefix(COLLECTION)!r}]"
    return "migrations" if part == PLAIN else "shared_migrations"


def left_collections(history: Sequence[Generation]) -> dict[tuple[str, str], int]:
    """Collections of states that former code has written and the newest does not, by the name of
    the computation, each with the newest generation that has it.

    Args:
        history: with the present names.
    """
    left: dict[tuple[str, str], int] = {}
    for generation in history:
        for name, kind in generation.code.states.items():
            for collection in kind.type.get("collections", ()):
                left[name, collection] = generation.number
    return {
        (name, collection): number
        for (name, collection), number in left.items()
        if number < history[-1].number and name in history[-1].code.states
    }


def stream_changes(
    history: Sequence[Generation], code: Code, streams: Sequence[StreamDeploy]
) -> Iterator[CodeChange]:
    """Those of the hidden stream behind a step of the engine are left out where they are those of
    the user's stream that it has the type of."""
    steps = {stream.name: stream.migrates_from for stream in streams}
    of_all: dict[str, list[CodeChange]] = {}
    for name, new in code.streams.items():
        found = [g.code.streams[name] for g in history if name in g.code.streams]
        given = steps[name]
        all_given = _Steps(given, given, given)
        of_all[name] = [
            replace(change, kind=kinds.STREAM_MIGRATED)
            if change.kind is kinds.TYPE_MIGRATED
            else change
            for change in _changes(f"stream {name!r}", "migrations", found, new, all_given)
        ]
    for name, changes in of_all.items():
        of_users = of_all.get(users_stream(name), [])
        if users_stream(name) == name or _kinds_of(changes) != _kinds_of(of_users):
            yield from changes


def _kinds_of(changes: Iterable[CodeChange]) -> list[Kind]:
    return [change.kind for change in changes]


def _changes(
    where: str,
    attribute: str,
    found: Sequence[TypeVersion],
    new: TypeVersion,
    steps: _Steps,
) -> Iterator[CodeChange]:
    """The changes of one type.

    Args:
        found: the types that were deployed under the name, oldest first.
        attribute: the name of what holds the migrations.
    """
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
    down = [v for v in range(highest, new.version, -1) if v not in steps.known]
    if down:
        entries = ", ".join(f"{v}: down" for v in down)
        given |= {"entries": entries, "stored": highest}
        yield CodeChange(kinds.TYPE_DOWN, where, given=given)
        return
    first = min(kind.version for kind in found)
    up = [
        version
        for version in range(first, new.version)
        if version not in steps.known and (version >= newest.version or version in steps.of_all)
    ]
    if up:
        given |= {"missing": ", ".join(map(str, up))}
        yield CodeChange(kinds.TYPE_STEPS, where, newest.version, new.version, given=given)
    elif _migrates(newest, new, steps.given):
        yield CodeChange(kinds.TYPE_MIGRATED, where, newest.version, new.version)
    elif newest.type != new.type:
        grown = _reads(newest.type, new.type)
        yield CodeChange(kinds.TYPE_GROWN if grown else kinds.TYPE_BACK, where)


def _migrates(stored: TypeVersion, new: TypeVersion, migrations: Collection[int]) -> bool:
    """Whether values change on their way to a type; a version that changes nothing is no way."""
    up = range(stored.version, new.version)
    down = range(stored.version, new.version, -1)
    return any(version in migrations for version in (*up, *down))


def _may_read(kind: TypeVersion, new: TypeVersion, found: Sequence[TypeVersion]) -> bool:
    """Whether `new` reads values of the same version: its type has grown since, or it is a former
    one from which that type has grown."""
    if _reads(kind.type, new.type):
        return True
    return any(one.type == new.type for one in found) and _reads(new.type, kind.type)


def _reads(stored: Any, new: Any) -> bool:
    """Of fingerprints, or of a collection: its kind, the type of its keys and a fingerprint."""
    if stored is None:
        return True  # nothing was stored
    if isinstance(stored, list) and isinstance(new, list):
        return stored[:-1] == new[:-1] and reads(stored[-1], new[-1])
    return bool(stored == new) or reads(stored, new)


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
