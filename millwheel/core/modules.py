"""Python modules that lie beside each other."""

from __future__ import annotations

import os
from pkgutil import iter_modules


def modules_beside(name: str) -> list[str]:
    """Modules of the current directory, in the package of `name` if that has one."""
    package, _, _ = name.rpartition(".")
    folder = os.path.join(os.getcwd(), *package.split("."))
    return [f"{package}.{one.name}".lstrip(".") for one in iter_modules([folder])]
