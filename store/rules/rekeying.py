"""Changes of key extractors by a deploy: detected, refused where data would be lost, and reported.

An un-ACKed record is sent again with the key that the new code extracts, perhaps to another
interval. Its id is found there too (``look_up_seen.sql`` looks in all slots), if no worker of the
former code runs: so such a deploy needs all workers stopped. State stays under its old keys; if
there is any, the code must confirm the change by a new version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from millwheel.core.extractors import AllKeys, Keys, comparable
from millwheel.errors import DeployRefused
from millwheel.store.rules.code import Code, Generation


@dataclass(frozen=True)
class Obstacles:
    stateful: Collection[str] = frozenset()
    """Computations with state by key."""
    bundled: Collection[str] = frozenset()
    """Computations with an open numbered bundle."""
    parked: Collection[str] = frozenset()
    workers: int = 0


def changed(before: Code, after: Code) -> list[tuple[str, str]]:
    return [
        (name, stream)
        for name, stream, old, new in _both(before.keys, after.keys)
        if old.may_differ(new)
    ]


def check_keys(history: Sequence[Generation], code: Code, obstacles: Obstacles) -> None:
    """`DeployRefused` for changes that may be a mistake, or while workers of the former code
    run."""
    newest = history[-1].code
    highest: dict[tuple[str, str], int] = {}
    for generation in history:
        for name, stream, keys in _each(generation.code.keys):
            highest[name, stream] = max(keys.version, highest.get((name, stream), 1))
    for name, stream, old, new in _both(newest.keys, code.keys):
        what = f"the key extractor of {name!r} for stream {stream!r}"
        most = highest[name, stream]
        if new.version < most:
            raise DeployRefused(
                f"{what} is deployed as version {most}, but this code knows only version "
                f"{new.version}; deploy the newer code, or, to go back to the former keys, give "
                f"them version = {most + 1}"
            )
        if not old.may_differ(new):
            continue
        if old.version == new.version and name in obstacles.stateful:
            raise DeployRefused(
                f"the code of {what} changed under the same name, and {name!r} keeps state by its "
                "keys: state of keys that it extracts no more would stay behind, and no code "
                "would read it\nIf the keys are the same as before, or if you want that, confirm "
                f"the change: .by(..., version={most + 1}). If the old state should continue "
                "under other keys, add the computation under another name as well; the view "
                f"state_of_{name} shows its state"
            )
        if name in obstacles.bundled:
            raise DeployRefused(
                f"{what} changed, and a numbered bundle of {name!r} is open: its records would "
                "come again under other keys, and it would wait for them for ever. Start the "
                "former code, pause the injectors until the bundle is delivered, and deploy then"
            )
        if name in obstacles.parked:
            raise DeployRefused(
                f"{what} changed, and {name!r} has parked keys (see the view parked_keys): the "
                "records that wait in them would run under their former keys, and later ones "
                "overtake them under the new keys. Retry or discard them first: millwheel "
                f"dead-letters list --computation {name} --waiting"
            )
        if obstacles.workers:
            raise DeployRefused(
                f"{what} changed, and workers of the former code run ({obstacles.workers}): "
                "records that are on their way would count under both keys. Stop all workers, "
                "and start them with the new code; a crashed worker counts until its lease has "
                "expired"
            )


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
