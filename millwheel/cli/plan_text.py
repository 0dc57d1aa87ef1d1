"""The lines in which commands show the changes of a deploy, each with its style, if any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millwheel.store.port.change import CodeChange, lines_of
from millwheel.store.port.deploy import Plan

Styled = tuple[str, str | None]


def plan_lines(name: str, found: Plan) -> Iterator[Styled]:
    yield _heading(name, found), None
    yield from change_lines(found.changes)
    for old in found.in_the_way:
        yield (
            f"  in the way: state of {old.computation!r}, key {old.key.decode()}"
            f"{old.entry and ', ' + old.entry}, is of version {old.version}",
            "error",
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


def change_lines(changes: Iterable[CodeChange]) -> Iterator[Styled]:
    for change in changes:
        head, *others = lines_of(change)
        yield f"  {head}", "error" if change.refuses else None
        for line in others:
            yield f"  {line}", None
