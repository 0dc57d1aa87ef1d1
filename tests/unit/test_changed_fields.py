"""Migrations that say which fields they change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millwheel.state import changed_fields, changes


class Till(msgspec.Struct, omit_defaults=True):
    cents: int = 0
    sales: int = 0


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ({"cents": 100, "sales": 2}, None),
        (Till(100, 2), None),
        ({"cents": 100, "sales": 3}, "sales"),
        ({"cents": 100}, "sales"),
        ({"cents": 100, "sales": 2, "more": 1}, "more"),
    ],
)
def test_a_migration_changes_what_it_names(new: Any, said: str | None) -> None:
    @changes("dollars", "cents")
    def migration(old: dict[str, Any]) -> Any:
        old["sales"] += 0
        return new

    old = {"dollars": 1.0, "sales": 2}
    if said is None:
        assert migration(old) == new
    else:
        with pytest.raises(ValueError, match=f"it changes {said}, which"):
            migration(old)


def test_changing_the_argument_itself_is_seen() -> None:
    @changes("cents")
    def migration(old: dict[str, Any]) -> Any:
        old["marks"].append(1)
        return old

    with pytest.raises(ValueError, match="it changes marks"):
        migration({"marks": []})


def test_what_says_nothing_may_change_all() -> None:
    assert changed_fields(lambda old: old) is None
    assert changed_fields(changes("a")(lambda old: old)) == frozenset("a")
