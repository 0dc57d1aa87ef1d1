"""The lines in which commands show the changes of a deploy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millwheel.store.port.change import CodeChange, lines_of
from millwheel.store.port.deploy import Plan


def plan_lines(name: str, found: Plan) -> Iterator[str]:
    yield _heading(name, found)
    yield from change_lines(found.changes)
    for old in found.in_the_way:
        yield (
            f"  in the way: state of {old.computation!r}, key {old.key.decode()}"
            f"{old.entry and ', ' + old.entry}, is of version {old.version}"
        )


def _heading(name: str, found: Plan) -> str:
    if found.deployed is None:
        return f"pipeline {name!r} is not deployed: this code begins its first generation"
    deployed = f"pipeline {name!r}, generation {found.deployed}"
    if not found.changes:
        return f"{deployed}: this code changes nothing that is stored"
    if found.older is not None:
        return f"{deployed}: this code is generation {found.older}, and differs in"
    return f"{deployed}: this code differs in"


def change_lines(changes: Iterable[CodeChange]) -> Iterator[str]:
    for change in changes:
        for line in lines_of(change):
            yield f"  {line}"
