"""Changes of key extractors.

An un-ACKed record is sent again with the key that the new code extracts, perhaps to another
interval. Its id is found there too (``look_up_seen.sql`` looks in all slots), if no worker of the
former code runs: so such a deploy needs all workers stopped. State stays under its old keys; if
there is any, the code must confirm the change by a new version (decision 42).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from millwheel.core.extractors import AllKeys, Keys, comparable
from millwheel.store.port.change import CodeChange
from millwheel.store.rules.changes import kinds
from millwheel.store.rules.changes.obstacles import Obstacles
from millwheel.store.rules.code import SHARED, Code, Generation


def changed(before: Code, after: Code) -> list[tuple[str, str]]:
    return [
        (name, stream)
        for name, stream, old, new in _both(before.keys, after.keys)
        if old.may_differ(new)
    ]


def key_changes(
    history: Sequence[Generation], code: Code, obstacles: Obstacles
) -> Iterator[CodeChange]:
    """Code with extractors that are compared `with_known` ones."""
    highest: dict[tuple[str, str], int] = {}
    for generation in history:
        for name, stream, keys in _each(generation.code.keys):
            highest[name, stream] = max(keys.version, highest.get((name, stream), 1))
    for name, stream, old, new in _both(history[-1].code.keys, code.keys):
        where = f"the key extractor of {name!r} for stream {stream!r}"
        most = highest[name, stream]
        if new.version < most:
            given: dict[str, Any] = {
                "stored": most,
                "version": new.version,
                "next": most + 1,
            }
            yield CodeChange(kinds.KEYS_BEFORE, where, given=given)
        elif old.may_differ(new):
            is_said = old.version != new.version
            keeps = name in obstacles.begun and bool(code.states[name].type.keys() - {SHARED})
            if keeps and not is_said:
                given = {"name": name, "version": most + 1}
                yield CodeChange(kinds.KEYS_UNCONFIRMED, where, given=given)
            else:
                yield from _of_changed(where, name, obstacles)


def _of_changed(where: str, name: str, obstacles: Obstacles) -> Iterator[CodeChange]:
    if name in obstacles.bundled:
        yield CodeChange(kinds.KEYS_BUNDLED, where, given={"name": name})
    elif name in obstacles.parked:
        yield CodeChange(kinds.KEYS_PARKED, where, given={"name": name})
    elif obstacles.workers:
        yield CodeChange(kinds.KEYS_RUNNING, where, given={"workers": obstacles.workers})
    else:
        yield CodeChange(kinds.KEYS, where)


def with_known(newest: Code, keys: AllKeys) -> AllKeys:
    """`keys`, with the newest stored extractors in place of those that cannot be compared with
    them."""
    found = {name: dict(of) for name, of in keys.items()}
    for name, stream, old, new in _both(newest.keys, keys):
        if not comparable(old.fingerprint, new.fingerprint) and old.version == new.version:
            found[name][stream] = old
    return found


def rekeyed(history: Sequence[Generation], code: Code) -> frozenset[str]:
    """Computations that may have stored records under other keys: their extractors have changed, or
    cannot be compared."""
    found: set[str] = set()
    for generation in history:
        found.update(
            name
            for name, _, old, new in _both(generation.code.keys, code.keys)
            if old.may_differ(new) or not comparable(old.fingerprint, new.fingerprint)
        )
    return frozenset(found)


def _each(keys: Mapping[str, Mapping[str, Keys]]) -> Iterator[tuple[str, str, Keys]]:
    for name, streams in keys.items():
        for stream, found in streams.items():
            yield name, stream, found


def _both(
    before: Mapping[str, Mapping[str, Keys]], after: Mapping[str, Mapping[str, Keys]]
) -> Iterator[tuple[str, str, Keys, Keys]]:
    for name, stream, new in _each(after):
        old = before.get(name, {}).get(stream)
        if old is not None:
            yield name, stream, old, new
