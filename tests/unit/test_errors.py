"""The tree in the head of `millwheel.errors` is that of the classes."""

from __future__ import annotations

import re

from millwheel import errors


def drawn() -> dict[str, str]:
    """The parent of each error, by the drawing."""
    found: dict[str, str] = {}
    line_of: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r" {4}([│├└─ ]*)([A-Z]\w+)", line)
        if match is None:
            continue
        depth = len(match[1]) // 4
        line_of[depth:] = [match[2]]
        found[match[2]] = line_of[depth - 1] if depth else ""
    return found


def test_each_error_stands_below_its_base() -> None:
    named = vars(errors).values()
    classes = [each for each in named if isinstance(each, type) and issubclass(each, Exception)]
    bases = {each.__name__: each.__bases__[0].__name__ for each in classes}
    bases["MillwheelError"] = ""
    assert drawn() == bases
