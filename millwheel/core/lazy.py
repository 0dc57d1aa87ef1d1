"""Names of a package that are imported when they are first used, so that a command, or a Python
process of Spark, loads only its own modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def imported_when_used(
    package: str, places: Mapping[str, str], check: Callable[[], None] | None = None
) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package; `places` gives the module of each name.

    Args:
        check: called before the first import; its errors end the import.
    """
    checks = [] if check is None else [check]

    def __getattr__(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        while checks:
            checks[0]()
            checks.pop()
        found = getattr(import_module(f"{package}.{places[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return __getattr__
