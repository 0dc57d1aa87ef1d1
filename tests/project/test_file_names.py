"""A file's name stands for one thing, so that a search by name finds it.

In the store, a subject has the same name in each room that knows it: port, postgres, memory and
console.
"""

from __future__ import annotations

from collections import defaultdict

from tests.support.product import ROOT, TEMPLATES

FOLDERS = ("millwheel", "store", "computations", "timers", "migrations")
MOST = 8


def test_few_names_stand_for_two_things() -> None:
    places: defaultdict[str, set[str]] = defaultdict(set)
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            if path.name.startswith("__") or path.is_relative_to(TEMPLATES):
                continue
            if any(part.is_symlink() for part in path.parents):
                continue
            place = path.relative_to(ROOT)
            places[path.name].add("store" if folder == "store" else place.parent.as_posix())
    twice = {name: sorted(rooms) for name, rooms in places.items() if len(rooms) > 1}
    assert len(twice) <= MOST, twice
