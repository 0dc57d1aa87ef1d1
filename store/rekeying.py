"""Key extractors that a deploy changes: found out, refused where something would be lost, and told.

A record that was not acknowledged comes again under the key that the new code gives it, and so may go to
another interval than before. There its id is found all the same (``look_up_seen.sql`` asks for no slot), if
nothing of the former code is at work any more. So such a deploy needs all workers stopped. State stays under
the keys that it was kept by; where there is any, the change must be meant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millwheel.errors import DeployRefused
from millwheel.extractors import AllKeys, Keys, comparable

if TYPE_CHECKING:
    from millwheel.store.generations import Code, Generation


@dataclass(frozen=True)
class Obstacles:
    """What of a pipeline stands in the way of other keys."""

    stateful: Collection[str] = frozenset()
    """Computations that keep state by key."""
    bundled: Collection[str] = frozenset()
    """Those with a numbered bundle that is begun."""
    workers: int = 0
    """Workers that run beside the one that is deployed."""


NO_OBSTACLES = Obstacles()


def changed(before: Code, after: Code) -> list[tuple[str, str]]:
    """The computations, and the streams, whose keys are not taken as before."""
    return [
        (name, stream)
        for name, stream, old, new in _both(before.keys, after.keys)
        if old.may_differ(new)
    ]


def check_keys(history: Sequence[Generation], code: Code, obstacles: Obstacles) -> None:
    """See to it that keys are not changed by mistake, nor beside workers of the former code.

    Raises:
        DeployRefused: they are.
    """
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
                f"{new.version}; deploy the newer code, or, to go back to the former keys, give them as "
                f"version = {most + 1}"
            )
        if not old.may_differ(new):
            continue
        if old.version == new.version and name in obstacles.stateful:
            raise DeployRefused(
                f"the code of {what} changed under the same name, and {name!r} keeps state by its keys: "
                "state of keys that it gives no more would stay behind, and nothing would read it\n"
                "If the keys are the same as before, or that is what you want, say so: "
                f".by(..., version={most + 1}). If the old state should go on under other keys, add the "
                f"computation under another name as well; the view state_of_{name} shows what it has"
            )
        if name in obstacles.bundled:
            raise DeployRefused(
                f"{what} changed, and a numbered bundle of {name!r} is begun: its records would come "
                "again under other keys, and it would wait for them for ever. Start the former code, "
                "let the injectors rest until it is delivered, and deploy then"
            )
        if obstacles.workers:
            raise DeployRefused(
                f"{what} changed, and workers of the former code run ({obstacles.workers}): records "
                "that are on their way would count under both keys. Stop all workers, and start them "
                "with the new code; one that crashed counts until its lease is over"
            )


def with_known(newest: Code, keys: AllKeys) -> AllKeys:
    """`keys`; where nobody can tell whether they are others than before, those."""
    found = {name: dict(of) for name, of in keys.items()}
    for name, stream, old, new in _both(newest.keys, keys):
        if not comparable(old.fingerprint, new.fingerprint) and old.version == new.version:
            found[name][stream] = old
    return found


def rekeyed(history: Sequence[Generation], code: Code) -> frozenset[str]:
    """Computations that may have had records under other keys: their extractors have changed, or
    nobody can tell."""
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
    """What both have."""
    for name, stream, new in _each(after):
        old = before.get(name, {}).get(stream)
        if old is not None:
            yield name, stream, old, new
